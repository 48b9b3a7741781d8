"""The isolation as it is ordered, to the letter: the Engine's create body and bubblewrap's arguments.

A change here is a change of the security model: read docs/security.md first. Which setting protects against
what is shown by tests/hostile/test_ablation; that the whole holds, by tests/hostile/test_battery.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executor import Limits
from executor.runtimes import container, local
from executor.runtimes.base import WRITABLE, SandboxSpec
from executor.runtimes.seccomp import docker_profile
from executor.session.box import sandbox_spec
from executor.settings import Settings

MIB = 1 << 20
SPEC = SandboxSpec(
    session_id="s-1",
    image="",
    memory=1024 * MIB,
    cpus=1.5,
    pids=128,
    open_files=1024,
    disk=256 * MIB,
    inodes=16384,
    tmp=64 * MIB,
    shm=32 * MIB,
    owner="host:boot:1:2",
)
COMMAND = ["python3", "-I", "-S", "-B", "/guest"]


def body(**options: Any) -> dict[str, Any]:
    found = container.create_body(SPEC, "sha256:abc", 20_001, COMMAND, **{"cgroup_v1": False, **options})
    assert found["Labels"].pop("executor.created").isdigit()
    return found


# --- the container ----------------------------------------------------------------------------------------

EXPECTED_BODY = {
    "Image": "sha256:abc",
    "Entrypoint": [],
    "Cmd": COMMAND,
    "User": "20001:20001",
    "WorkingDir": "/",
    "Hostname": "sandbox",
    "Tty": False,
    "OpenStdin": True,
    "StdinOnce": True,
    "AttachStdin": True,
    "AttachStdout": True,
    "AttachStderr": True,
    "StopSignal": "SIGKILL",
    "StopTimeout": 1,
    "Healthcheck": {"Test": ["NONE"]},
    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
    "Labels": {"executor.owner": "host:boot:1:2", "executor.session": "s-1"},
}
EXPECTED_HOST = {
    "NetworkMode": "none",
    "IpcMode": "private",
    "PidMode": "",
    "UTSMode": "",
    "CgroupnsMode": "private",
    "Privileged": False,
    "ReadonlyRootfs": True,
    "Init": False,
    "AutoRemove": True,
    "RestartPolicy": {"Name": "no"},
    "LogConfig": {"Type": "none", "Config": {}},
    "CapDrop": ["ALL"],
    "CapAdd": [],
    "GroupAdd": [],
    "Binds": [],
    "Mounts": [],
    "Devices": [],
    "PortBindings": {},
    "PublishAllPorts": False,
    "SecurityOpt": ["no-new-privileges", "seccomp=" + docker_profile()],
    "PidsLimit": 128,
    "Memory": 1073741824,
    "MemorySwap": 1073741824,
    "OomKillDisable": False,
    "OomScoreAdj": 500,
    "NanoCpus": 1500000000,
    "CpuShares": 256,
    "Tmpfs": {
        "/tmp": "rw,nosuid,nodev,exec,size=67108864,nr_inodes=16384,mode=1777",
        "/workspace": "rw,nosuid,nodev,exec,size=268435456,nr_inodes=16384,mode=0755,uid=20001,gid=20001",
        "/skills": "rw,nosuid,nodev,exec,size=134217728,nr_inodes=16384,mode=0755,uid=20001,gid=20001",
        "/dev/shm": "rw,nosuid,nodev,noexec,size=33554432,nr_inodes=1024,mode=1777",
    },
    "Ulimits": [
        {"Name": "core", "Soft": 0, "Hard": 0},
        {"Name": "fsize", "Soft": 268435456, "Hard": 268435456},
        {"Name": "memlock", "Soft": 65536, "Hard": 65536},
        {"Name": "msgqueue", "Soft": 0, "Hard": 0},
        {"Name": "nice", "Soft": 0, "Hard": 0},
        {"Name": "nofile", "Soft": 1024, "Hard": 1024},
        {"Name": "rtprio", "Soft": 0, "Hard": 0},
        {"Name": "sigpending", "Soft": 1024, "Hard": 1024},
        {"Name": "nproc", "Soft": 512, "Hard": 512},
    ],
    "Sysctls": {
        "kernel.shmall": "2048",
        "kernel.msgmni": "128",
        "kernel.sem": "250 32000 32 128",
        "net.ipv6.conf.all.disable_ipv6": "0",
        "net.ipv6.conf.lo.disable_ipv6": "0",
        "net.ipv4.ping_group_range": "1 0",
    },
    "MaskedPaths": [
        "/proc/1/attr",
        "/proc/acpi",
        "/proc/asound",
        "/proc/cmdline",
        "/proc/config.gz",
        "/proc/diskstats",
        "/proc/interrupts",
        "/proc/iomem",
        "/proc/ioports",
        "/proc/kallsyms",
        "/proc/kcore",
        "/proc/key-users",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/locks",
        "/proc/modules",
        "/proc/pagetypeinfo",
        "/proc/partitions",
        "/proc/sched_debug",
        "/proc/scsi",
        "/proc/slabinfo",
        "/proc/swaps",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/proc/vmallocinfo",
        "/sys/block",
        "/sys/devices/virtual/powercap",
        "/sys/firmware",
        "/sys/kernel",
        "/sys/module",
    ],
    "ReadonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
}


def test_the_create_body() -> None:
    """trpc-1.7.5"""
    found = body()
    assert found.pop("HostConfig") == EXPECTED_HOST
    assert found == EXPECTED_BODY


def test_the_create_body_on_cgroup_version_1_keeps_memory_out_of_swap() -> None:
    assert body(cgroup_v1=True)["HostConfig"] == {**EXPECTED_HOST, "MemorySwappiness": 0}


def test_the_create_body_names_the_engines_own_runtime_only_when_asked() -> None:
    assert body(engine_runtime="runsc")["HostConfig"] == {**EXPECTED_HOST, "Runtime": "runsc"}


def test_the_create_body_is_json_and_new_each_time() -> None:
    """Nobody who changes one changes the next, or the tables."""
    first = body()
    json.dumps(first)
    first["HostConfig"]["MaskedPaths"].clear()
    first["HostConfig"]["Sysctls"].clear()
    assert body()["HostConfig"] == EXPECTED_HOST


def test_the_create_body_follows_its_spec() -> None:
    small = SandboxSpec("s", "", 64 * MIB, 0.5, 8, 64, 8 * MIB, 256, 2 * MIB, MIB)
    host = container.create_body(small, "i", 29_999, ["x"], cgroup_v1=False)["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (
        64 * MIB,
        64 * MIB,
        500_000_000,
        8,
    )
    ulimits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]}
    assert ulimits["nofile"] == (64, 64)
    assert ulimits["fsize"] == (8 * MIB, 8 * MIB)
    assert ulimits["nproc"] == (32, 32)
    assert "size=8388608,nr_inodes=256,mode=0755,uid=29999,gid=29999" in host["Tmpfs"]["/workspace"]


@pytest.mark.parametrize("uid", [20_000, 29_999])
def test_the_container_is_never_root(uid: int) -> None:
    assert container.create_body(SPEC, "i", uid, ["x"], cgroup_v1=False)["User"] == f"{uid}:{uid}"


# --- bubblewrap -------------------------------------------------------------------------------------------

FDS = {path: 20 + number for number, path in enumerate(local.FILES)}
MASKS = ["/proc/1/attr/current", "/proc/cmdline", "/proc/kallsyms"]
EMPTY = [31, 32, 33]
NAMESPACES = """
    --unshare-user --uid 1000 --gid 1000 --disable-userns
    --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try
"""
PROCESS = """
    --die-with-parent --new-session --as-pid-1 --cap-drop ALL --hostname sandbox --clearenv
"""
FOLDERS = "--perms 0755 --dir /etc --perms 0755 --dir /run/executor"
SYSTEM = """
    --ro-bind-try /usr /usr
    --ro-bind-try /etc/alternatives /etc/alternatives
    --ro-bind-try /etc/fonts /etc/fonts
    --ro-bind-try /etc/ld.so.cache /etc/ld.so.cache
    --ro-bind-try /etc/localtime /etc/localtime
    --ro-bind-try /etc/ssl/certs /etc/ssl/certs
    --ro-bind-try /etc/java-11-openjdk /etc/java-11-openjdk
    --ro-bind-try /etc/java-17-openjdk /etc/java-17-openjdk
    --ro-bind-try /etc/ImageMagick-6 /etc/ImageMagick-6
    --ro-bind-try /etc/libreoffice /etc/libreoffice
    --ro-bind-try /etc/perl /etc/perl
    --symlink /usr/bin/python3 /run/executor/bin/python
    --perms 0755 --dir /node_modules
"""
KERNEL = "--proc /proc --ro-bind-try /proc/sys /proc/sys --dev /dev"
PREPARED = """
    --bind /data/mounts/dev-shm /dev/shm
    --bind /data/mounts/tmp /tmp
    --bind /data/mounts/workspace /workspace
    --bind /data/mounts/skills /skills
"""
UNPREPARED = """
    --perms 1777 --size 33554432 --tmpfs /dev/shm
    --perms 1777 --size 67108864 --tmpfs /tmp
    --perms 0755 --size 268435456 --tmpfs /workspace
    --perms 0755 --size 134217728 --tmpfs /skills
"""
DATA = """
    --perms 0444 --ro-bind-data 20 /etc/hosts
    --perms 0444 --ro-bind-data 21 /etc/passwd
    --perms 0444 --ro-bind-data 22 /etc/group
    --perms 0444 --ro-bind-data 23 /etc/nsswitch.conf
    --ro-bind-data 31 /proc/1/attr/current
    --ro-bind-data 32 /proc/cmdline
    --ro-bind-data 33 /proc/kallsyms
    --ro-bind /sys/fs/cgroup/x/memory.events /run/executor/oom
"""
END = "--chdir / --remount-ro /dev --remount-ro /"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine, wherever the test runs."""
    monkeypatch.setenv("EXECUTOR_DATA_DIR", "/data")
    monkeypatch.setattr(local, "masked", lambda: MASKS)


def arguments(
    rootfs: str, *, prepared: bool = True, oom: str | None = "/sys/fs/cgroup/x/memory.events"
) -> list[str]:
    return local.arguments(SPEC, rootfs, empty_fds=EMPTY, file_fds=FDS, oom_file=oom, prepared=prepared)


def test_bubblewraps_arguments_on_a_root_filesystem_of_ours(tmp_path: Path) -> None:
    for name in ("bin", "lib"):
        (tmp_path / name).symlink_to(f"usr/{name}")
    (tmp_path / "sbin").mkdir()
    root = str(tmp_path)
    binds = f"""
        --ro-bind {root}/usr /usr --ro-bind {root}/etc /etc --ro-bind {root}/node_modules /node_modules
        --symlink usr/bin /bin --ro-bind {root}/sbin /sbin --symlink usr/lib /lib
    """
    parts = (NAMESPACES, PROCESS, FOLDERS, binds, KERNEL, PREPARED, DATA, END)
    assert arguments(root) == " ".join(parts).split()


def test_bubblewraps_arguments_on_this_machines_own_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """trpc-1.13.1"""
    monkeypatch.setattr(local, "MERGED", ())
    parts = (NAMESPACES, PROCESS, FOLDERS, SYSTEM, KERNEL, PREPARED, DATA, END)
    assert arguments("") == " ".join(parts).split()


def test_bubblewraps_arguments_where_it_has_to_make_the_file_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it makes the ipc namespace too."""
    monkeypatch.setattr(local, "MERGED", ())
    parts = (NAMESPACES, "--unshare-ipc", PROCESS, FOLDERS, SYSTEM, KERNEL, UNPREPARED, DATA, END)
    assert arguments("", prepared=False) == " ".join(parts).split()


def test_without_a_cgroup_no_file_of_the_host_is_shown_for_its_counter() -> None:
    assert not any(word.startswith("/sys/") for word in arguments("", oom=None))


def test_nothing_but_the_four_file_systems_is_bound_writable() -> None:
    for prepared in (True, False):
        words = arguments("", prepared=prepared)
        bound = [
            words[at + 2] for at, word in enumerate(words) if word in ("--bind", "--bind-try", "--dev-bind")
        ]
        made = [words[at + 1] for at, word in enumerate(words) if word == "--tmpfs"]
        assert sorted(bound + made) == sorted(WRITABLE)


def test_no_argument_shows_the_hosts_root_or_shares_a_namespace() -> None:
    """trpc-1.13.1"""
    words = arguments("")
    assert not any(word.startswith("--share") for word in words)
    sources = [words[at + 1] for at, word in enumerate(words) if word.endswith(("bind", "bind-try"))]
    for source in sources:
        assert source == "/usr" or source.startswith(
            ("/etc/", "/proc/sys", "/data/mounts/", "/sys/fs/cgroup/x")
        )


def test_the_mount_table() -> None:
    """What bubblewrap cannot say of a tmpfs: how many files it may hold."""
    assert local.mount_table(SPEC).splitlines() == [
        f"tmpfs /data/mounts/{name} tmpfs rw,nosuid,nodev,{options} 0 0"
        for name, options in (
            ("dev-shm", "noexec,size=33554432,nr_inodes=1024,mode=1777"),
            ("tmp", "exec,size=67108864,nr_inodes=16384,mode=1777"),
            ("workspace", "exec,size=268435456,nr_inodes=16384,mode=0755"),
            ("skills", "exec,size=134217728,nr_inodes=16384,mode=0755"),
        )
    ]


def test_the_mount_table_survives_a_data_folder_with_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECUTOR_DATA_DIR", "/my data/a\\b")
    assert "tmpfs /my\\040data/a\\134b/mounts/tmp tmpfs " in local.mount_table(SPEC)


def test_the_command_in_front_of_bubblewrap() -> None:
    assert local.PREPARE == ("unshare", "--user", "--map-root-user", "--mount", "--ipc", "--", "sh", "-c")
    assert local.PREPARE_SCRIPT == (
        "{ echo 2048 >/proc/sys/kernel/shmall; echo 128 >/proc/sys/kernel/msgmni; "
        "echo 250 32000 32 128 >/proc/sys/kernel/sem; } 2>/dev/null; "
        'mount -aT "$0" && exec "$@"'
    )


# --- both -------------------------------------------------------------------------------------------------


def test_files_and_names_together_cannot_fill_the_memory() -> None:
    """Half of it for contents, a quarter for what the kernel keeps of each file."""
    for memory in (64 << 20, 1 << 30, 1 << 40):
        spec, notes = sandbox_spec("", Limits(memory=memory, inodes=1 << 30), Settings())
        assert spec.disk + spec.skills_disk + spec.tmp + spec.shm <= memory // 2
        assert 3 * spec.inodes * 1400 < memory // 4
        assert any(note.startswith("inodes=1,073,741,824 lowered") for note in notes) or memory == 1 << 40
    assert not [note for note in sandbox_spec("", Limits(), Settings())[1] if "inodes" in note]


def test_both_runtimes_mask_the_same_files() -> None:
    """What the local one masks by file, an engine masks by the same path or its folder."""
    masked = {path for path in container.MASKED_PATHS if path.startswith("/proc/")}
    for path in local.MASKED:
        assert path in masked or str(Path(path).parent) in masked, path


def test_both_runtimes_have_the_same_writable_places() -> None:
    assert set(EXPECTED_HOST["Tmpfs"]) == {where for where, *_ in local.TMPFS} == set(WRITABLE)  # type: ignore[call-overload]


def test_the_guests_rlimits() -> None:
    assert SPEC.rlimits() == {
        "core": 0,
        "fsize": 256 * MIB,
        "nofile": 1024,
        "memlock": 64 << 10,
        "msgqueue": 0,
        "sigpending": 1024,
        "rtprio": 0,
        "nice": 0,
    }


@pytest.mark.parametrize(
    "limits",
    [
        Limits(),
        Limits(memory="64m"),
        Limits(memory="256m", disk="10g"),
        Limits(memory="128m", tmp="1g", shm="1g"),
        Limits(memory="8g", disk="1g"),
        Limits(disk="1m", tmp="1m", shm="1m"),
    ],
)
def test_what_lies_in_memory_takes_at_most_half_of_it(limits: Limits) -> None:
    """Else a script could fill it with files, which no kill gives back, and no later run would start."""
    spec, notes = sandbox_spec("s", limits, Settings())
    least = 3 * MIB  # what is made smaller keeps 1 MiB each
    assert spec.disk + spec.skills_disk + spec.tmp + spec.shm <= spec.memory // 2 + least
    asked = (limits.disk, limits.tmp, limits.shm)
    assert bool(notes) == ((spec.disk, spec.tmp, spec.shm) != asked)


def test_the_defaults_are_as_documented() -> None:
    """trpc-1.7.6, TH-51"""
    settings = Settings()
    assert (settings.timeout, settings.script_timeout, settings.grace) == (300, 30, 2)
    spec, notes = sandbox_spec("s", Limits(), settings)
    assert not notes
    assert (spec.memory, spec.cpus, spec.pids, spec.open_files) == (1024 * MIB, 1.0, 128, 1024)
    assert (spec.disk, spec.skills_disk, spec.tmp, spec.shm) == (256 * MIB, 128 * MIB, 64 * MIB, 64 * MIB)
    assert spec.inodes == 16_384
