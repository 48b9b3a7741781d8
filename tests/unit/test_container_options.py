"""What an operator may add to a container, and what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from executor import BadRequestError, Settings
from executor.runtimes import options
from executor.runtimes.base import SandboxSpec
from executor.runtimes.container import LABEL_OWNER, ContainerRuntime, create_body
from executor.settings import load

SPEC = SandboxSpec("s", "", 1 << 30, 1, 128, 1024, 1 << 28, 16384, 1 << 26, 1 << 26, owner="me")
GOOD: dict[str, Any] = {
    "apparmor": "docker-sandbox",
    "blkio_weight": 100,
    "cgroup_parent": "/sandboxes/tenant-1",
    "cpu_shares": 512,
    "cpuset_cpus": "0-2,4",
    "labels": {"team": "data", "Executor.owner": "x"},
    "oom_score_adj": 800,
}


def body(given: Mapping[str, Any]) -> dict[str, Any]:
    plain = create_body(SPEC, "image", 20000, ["true"], cgroup_v1=True)
    kept = repr(plain)
    made = options.applied(plain, given)
    assert repr(plain) == kept
    return made


def test_no_options_change_nothing() -> None:
    assert body({}) == create_body(SPEC, "image", 20000, ["true"], cgroup_v1=True)


def test_allowed_options_land_where_they_belong_and_change_nothing_else() -> None:
    assert set(GOOD) == set(options.ALLOWED)
    plain, made = body({}), body(GOOD)
    host, before = made["HostConfig"], plain["HostConfig"]
    changed = {name: value for name, value in host.items() if before.get(name) != value}
    assert changed == {
        "BlkioWeight": 100,
        "CgroupParent": "/sandboxes/tenant-1",
        "CpuShares": 512,
        "CpusetCpus": "0-2,4",
        "OomScoreAdj": 800,
        "SecurityOpt": [*before["SecurityOpt"], "apparmor=docker-sandbox"],
    }
    assert made["Labels"] == {"team": "data", "Executor.owner": "x", **plain["Labels"]}
    assert {**made, "HostConfig": 0, "Labels": 0} == {**plain, "HostConfig": 0, "Labels": 0}
    assert set(before) <= set(host)


def test_our_own_labels_win() -> None:
    made = options.applied({"HostConfig": {}, "Labels": {"team": "ours"}}, {"labels": {"team": "theirs"}})
    assert made["Labels"] == {"team": "ours"}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "privileged",
            "Privileged",
            "cap_add",
            "CapAdd",
            "cap_drop",
            "devices",
            "binds",
            "volumes",
            "mounts",
        ),
        *("network_mode", "NetworkMode", "pid_mode", "ipc_mode", "userns_mode", "security_opt", "tmpfs"),
        *(
            "read_only",
            "user",
            "entrypoint",
            "environment",
            "restart_policy",
            "init",
            "auto_remove",
            "ulimits",
        ),
        *("log_config", "sysctls", "runtime", "group_add", "oom_kill_disable", "mem_limit", "pids_limit"),
        *("HostConfig", "extra_hosts", "dns", "ports", "links", "masked_paths", "x", ""),
    ],
)
def test_everything_else_is_refused_and_says_what_is_allowed(name: str) -> None:
    with pytest.raises(BadRequestError, match=f"container option '{name}' is not allowed") as caught:
        body({name: True})
    assert caught.value.hint.startswith("Allowed are apparmor, blkio_weight, cgroup_parent, cpu_shares,")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("apparmor", "unconfined"),
        ("apparmor", ""),
        ("apparmor", "x,seccomp=unconfined"),
        ("apparmor", "x\n"),
        ("blkio_weight", 0),
        ("blkio_weight", "100"),
        ("cgroup_parent", ""),
        ("cgroup_parent", "/"),
        ("cgroup_parent", "../up"),
        ("cgroup_parent", "/a/../b"),
        ("cgroup_parent", "/a//b"),
        ("cgroup_parent", "a" * 300),
        ("cpu_shares", True),
        ("cpu_shares", 1),
        ("cpuset_cpus", ""),
        ("cpuset_cpus", "0,"),
        ("cpuset_cpus", "٣"),
        ("cpuset_cpus", 0),
        ("labels", {"executor.owner": "x"}),
        ("labels", {"": "x"}),
        ("labels", {"a": 1}),
        ("labels", ["a=b"]),
        ("oom_score_adj", -1),
        ("oom_score_adj", 1001),
    ],
)
def test_values_that_could_weaken_or_confuse_are_refused(name: str, value: Any) -> None:
    with pytest.raises(BadRequestError, match=f"container option {name}=") as caught:
        body({name: value})
    assert caught.value.hint.startswith("Write ")


def test_options_come_from_the_settings_and_are_refused_before_anything_starts() -> None:
    environment = {"EXECUTOR_CONTAINER_OPTIONS": "{cpuset_cpus: '0', labels: {team: data}}"}
    settings = load(environ=environment)
    assert settings.container_options == {"cpuset_cpus": "0", "labels": {"team": "data"}}
    with pytest.raises(BadRequestError, match="'privileged' is not allowed"):
        load(environ={"EXECUTOR_CONTAINER_OPTIONS": "{privileged: true}"})
    with pytest.raises(BadRequestError, match="'binds' is not allowed"):
        Settings(container_options={"binds": ["/:/host"]})
    with pytest.raises(BadRequestError, match="'devices' is not allowed"):
        ContainerRuntime(options={"devices": []})
    assert LABEL_OWNER.startswith(options.OWN_LABELS)
