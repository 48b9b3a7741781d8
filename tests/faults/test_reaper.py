"""The reaper: it removes what a dead owner of this machine left, at start and again and again, and nothing
that could be somebody's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor import AsyncExecutor, Executor
from executor.doctor import reaped
from executor.runtimes import cgroups
from executor.runtimes.container import DEFAULT_IMAGE, LABEL_OWNER
from executor.runtimes.local import LocalRuntime
from executor.runtimes.owner import UidSlot, boot_id, is_dead, owner_label, pid_namespace, start_time
from executor.runtimes.owner import slots as slots_folder
from tests.faults import traces

# What another host process does until it is killed; the argument says at which moment.
OTHER = """
import asyncio, os, sys, time
from executor import AsyncExecutor
from executor.runtimes.owner import owner_label
moment, runtime = sys.argv[1:]
async def main():
    async with AsyncExecutor(runtime=runtime, skills=[]) as made:
        session = made.session()
        if moment == "between create and start":
            made._runtime._run = lambda sandbox: (print(owner_label(), flush=True), time.sleep(600))
        await session.exec("true")
        print(owner_label(), flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@contextlib.contextmanager
def other(moment: str, runtime: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another host process and its owner's label."""
    words = [sys.executable, "-c", OTHER, moment, runtime]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def label(**changes: str) -> str:
    """An owner that is certainly gone, with some parts of its label changed."""
    parts = {
        "host": socket.gethostname(),
        "boot": boot_id(),
        "namespace": pid_namespace(),
        "pid": str(os.getpid()),
        "start": "1",  # the pid is in use, by a process that started later
    }
    return ":".join({**parts, **changes}.values())


NOT_DEAD = {
    "this process": owner_label(),
    "another process": f"{label().rpartition(':')[0].rpartition(':')[0]}:1:{start_time(1)}",
    "another machine": label(host="elsewhere"),
    "another boot": label(boot="00000000-0000-0000-0000-000000000000"),
    "another pid namespace": label(namespace="1"),
    "an older form": "host:boot:1:1",
    "none": "",
    "no label": "::::",
}


@pytest.mark.parametrize("owner", NOT_DEAD.values(), ids=NOT_DEAD.keys())
def test_an_owner_who_may_live_is_not_dead(owner: str) -> None:
    assert not is_dead(owner)


def test_an_owner_is_dead_when_its_pid_is_free_or_belongs_to_another_process() -> None:
    assert is_dead(label())
    assert is_dead(label(pid="4194304"))


def test_what_a_dead_owner_left_is_removed_while_an_executor_is_open(
    executor: Executor, runtime: str
) -> None:
    """And what a living one has stays, also when both use one engine."""
    if runtime != "container":
        pytest.skip("a local sandbox goes with its owner: see the next tests")
    from docker import from_env

    client = from_env()
    settings = executor.settings.model_copy(update={"reap_interval": 0.2})

    async def work() -> None:
        async with AsyncExecutor(settings=settings) as made, made.session() as mine:
            await mine.exec("touch work/kept")
            with other("running", runtime) as (_, alive), other("between create and start", runtime) as dead:
                process, owner = dead
                strangers = [make(client, text) for text in (label(), *STRANGERS)]
                try:
                    assert "created" in " ".join(traces.containers(client, owner))
                    process.kill()
                    process.wait()
                    assert await traces.settled(lambda: not traces.containers(client, owner))
                    assert await traces.settled(lambda: not exists(client, strangers[0]))
                    await asyncio.sleep(0.6)  # two rounds more
                    assert [exists(client, name) for name in strangers[1:]] == [True] * len(STRANGERS)
                    assert "running" in " ".join(traces.containers(client, alive))
                    assert (await mine.exec("ls work")).stdout.split() == ["inputs", "kept"]
                finally:
                    for name in strangers:
                        with contextlib.suppress(Exception):
                            client.api.remove_container(name)

    asyncio.run(work())
    assert traces.containers(client) == []
    client.close()


STRANGERS = [NOT_DEAD["another machine"], NOT_DEAD["another boot"], NOT_DEAD["another pid namespace"], None]


def make(client: Any, owner: str | None) -> str:
    """A container that is never started, with an owner's label."""
    labels = {LABEL_OWNER: owner} if owner is not None else {"executor": "no label of ours"}
    return str(client.api.create_container(DEFAULT_IMAGE, ["true"], labels=labels)["Id"])


def exists(client: Any, container: str) -> bool:
    return any(found["Id"] == container for found in client.api.containers(all=True))


# Dies with a process in a control group of its own, which no dead owner's sandbox should ever have.
ORPHAN = """
import subprocess, sys
from executor.runtimes import cgroups
from executor.runtimes.base import SandboxSpec
from executor.runtimes.owner import UidSlot, owner_label
spec = SandboxSpec("x", "", 64 << 20, 1, 16, 64, 1 << 20, 256, 1 << 20, 1 << 20)
group = cgroups.make(spec, "test@" + owner_label())
sleep = subprocess.Popen(["sleep", "600"], start_new_session=True)
if group is not None:
    group.add(sleep.pid)
slot = UidSlot()
print(owner_label(), sleep.pid, slot.uid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
def test_groups_and_slots_of_dead_owners_go_and_those_of_living_ones_stay() -> None:
    words = [sys.executable, "-c", ORPHAN]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen(words, **pipes) as living,  # type: ignore[call-overload]
        subprocess.Popen(words, **pipes) as dying,  # type: ignore[call-overload]
    ):
        facts = [process.stdout.readline().split() for process in (living, dying)]
        (alive, alive_sleep, alive_uid), (dead, dead_sleep, dead_uid) = facts
        try:
            assert traces.cgroups(alive) and traces.cgroups(dead)
            dying.kill()
            dying.wait()
            removed = LocalRuntime().reap()
            assert [name for name in removed if dead in name] == ["executor-test@" + dead]
            assert traces.cgroups(dead) == []
            assert traces.eventually(lambda: not running(int(dead_sleep)))
            assert not (slots_folder() / dead_uid).exists()
            assert traces.cgroups(alive) and running(int(alive_sleep))
            assert (slots_folder() / alive_uid).exists()
        finally:
            for pid in (alive_sleep, dead_sleep):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
    assert traces.eventually(lambda: not running(int(alive_sleep)))
    LocalRuntime().reap()
    assert traces.cgroups(alive) == []
    assert cgroups.reap() == []


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_slot_that_is_given_back_leaves_no_file_and_is_never_shared() -> None:
    slots = [UidSlot() for _ in range(20)]
    assert len({slot.uid for slot in slots}) == 20
    files = [slots_folder() / str(slot.uid) for slot in slots]
    LocalRuntime().reap()
    assert all(file.exists() for file in files)
    for slot in slots:
        slot.release()
        slot.release()
    assert not any(file.exists() for file in files)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_a_uid_whose_processes_live_on_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox can outlive the process that held its slot, under an engine that died."""
    monkeypatch.setattr("executor.runtimes.owner.FIRST_UID", 29_998)
    with subprocess.Popen(["sleep", "600"], user=29_998, group=29_998, extra_groups=[]) as sleep:
        slot = UidSlot()
        sleep.kill()
    assert slot.uid == 29_999
    slot.release()


class Stuck(LocalRuntime):
    """A runtime whose reaping hangs, as an engine can."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def reap(self) -> list[str]:
        self.rounds += 1
        self.entered.set()
        self.let_go.wait(60)
        raise OSError("no engine")


def test_a_round_that_hangs_holds_up_neither_a_session_nor_a_close() -> None:
    stuck, before = Stuck(), reapers()
    with Executor(runtime=stuck, skills=[]) as made:
        assert stuck.entered.wait(20)
        with made.session() as session:
            assert session.exec("echo well").stdout == "well\n"
    assert not stuck.let_go.is_set()
    stuck.let_go.set()
    assert traces.eventually(lambda: reapers() == before)
    assert stuck.rounds == 1


def reapers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "executor-reaper"]


def test_a_round_that_fails_is_followed_by_others_until_the_executor_closes(executor: Executor) -> None:
    stuck = Stuck()
    stuck.let_go.set()
    settings = executor.settings.model_copy(update={"reap_interval": 0.01})
    with Executor(runtime=stuck, settings=settings):
        assert traces.eventually(lambda: stuck.rounds > 3)
    seen = stuck.rounds
    assert traces.eventually(lambda: stuck.rounds <= seen + 1)


def test_the_doctor_reaps_when_asked(executor: Executor, runtime: str) -> None:
    """And only then. A container of a dead owner, a control group of one."""
    if runtime != "container":
        pytest.skip("the doctor looks at both")
    from docker import from_env

    client = from_env()
    name = make(client, label())
    try:
        found = asyncio.run(reaped(executor.settings))
        assert {"container", "local"} <= set(found)  # what others reap is not counted twice
        assert not exists(client, name)
    finally:
        with contextlib.suppress(Exception):
            client.api.remove_container(name)
        client.close()
