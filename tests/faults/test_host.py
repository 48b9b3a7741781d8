"""Faults of the host process: it stands still, its clock is set, threads and callers go, it closes twice.

One that is killed in mid-run is in `conformance/test_isolation`; cancelled callers are in
`conformance/test_ending`, cancelled starts in `conformance/test_robust`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor import AsyncExecutor, Executor, ExecutorError, Session, SessionClosedError
from executor.guest import bundle
from executor.runtimes.base import Sandbox
from executor.runtimes.local import LocalRuntime
from executor.runtimes.owner import in_use
from tests.conftest import REPOSITORY
from tests.faults import traces
from tests.faults.conftest import Drive
from tests.faults.test_sandbox import under_way

HANGING = """
import asyncio, sys
from executor import AsyncExecutor
from executor.channel import connection
connection.LEASE, connection.PING_EVERY = 1.5, 0.3
runtime, words = sys.argv[1:]
async def main():
    async with AsyncExecutor(runtime=runtime, skills=[]) as made:
        session = made.session()
        run = asyncio.create_task(session.exec(f"echo up; touch work/up; exec sleep {words}", timeout=600))
        while not await session.collect("work/up"):
            await asyncio.sleep(0.02)
        print("up", flush=True)
        result = await run
        print(result.status, result.stdout.strip(), flush=True)
        await session.close()
asyncio.run(main())
"""


def test_a_host_that_stands_still_leaves_no_sandbox_behind(executor: Executor, runtime: str) -> None:
    """SECURITY 6: SIGSTOP. Nothing reaches end of file; the guest's lease ends it. The host that wakes up
    again is told the truth and can close.
    """
    words = f"6{secrets.randbelow(10**9):09d}"
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, runtime, words], stdout=subprocess.PIPE, text=True
    ) as host:
        try:
            assert host.stdout is not None
            assert host.stdout.readline() == "up\n"
            assert len(traces.sleepers(words)) == 1
            host.send_signal(signal.SIGSTOP)
            assert traces.eventually(lambda: not traces.sleepers(words))
            host.send_signal(signal.SIGCONT)
            assert host.stdout.readline() == "lost up\n"
            assert host.wait(60) == 0
        finally:
            host.kill()


def test_a_clock_that_is_set_changes_no_deadline(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """SECURITY 6: clock step. Two hours forth and back, at every look."""
    real, steps = time.time, [0]

    def stepping() -> float:
        steps[0] += 1
        return real() + (7200 if steps[0] % 2 else -7200)

    monkeypatch.setattr(time, "time", stepping)
    assert session.exec("sleep 0.3; echo done", timeout=20).stdout == "done\n"
    began = time.monotonic()
    result = session.exec("echo up; sleep 600", timeout=0.5)
    assert (result.status, result.stdout) == ("timeout", "up\n")
    assert time.monotonic() - began < 60
    for path in Path(bundle.__file__).parent.glob("*.py"):  # the guest asks no clock that can be set
        asked = path.read_text("utf-8").replace(
            "logging._startTime = time.time_ns() if whole else time.time()", ""
        )
        assert "time.time" not in asked, path  # (what a run's own logging counts from is no deadline)
    time.time()
    assert steps[0]


def test_sandboxes_outlive_the_thread_that_made_the_executor(executor: Executor, runtime: str) -> None:
    """bubblewrap dies with the thread that started it: that is never a caller's."""
    made: list[Any] = []

    def make() -> None:
        opened = Executor(settings=executor.settings)
        session = opened.session()
        session.exec("echo kept > work/file")
        made.extend([opened, session])

    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    opened, session = made
    assert session.exec("cat work/file").stdout == "kept\n"
    opened.close()


def test_a_loop_that_ends_without_closing_leaves_nothing(executor: Executor, client: Any) -> None:
    """SECURITY 6: the thread with the event loop ends; the executor was never closed."""
    before = traces.remains(client)
    words = f"5{secrets.randbelow(10**9):09d}"
    opened: list[AsyncExecutor] = []

    async def forgotten() -> None:
        made = AsyncExecutor(settings=executor.settings.model_copy(update={"reap_interval": 0.2}))
        opened.append(made)
        await made.choose_runtime()
        await under_way(made.session(), f"touch work/up; exec sleep {words}")
        assert len(await asyncio.to_thread(traces.sleepers, words)) == 1

    thread = threading.Thread(target=lambda: asyncio.run(forgotten()))
    thread.start()
    thread.join()
    assert traces.eventually(lambda: not traces.sleepers(words))
    assert traces.eventually(lambda: traces.remains(client) == before), traces.remains(client)
    asyncio.run(opened[0].close())


def test_closing_twice_at_once_and_during_a_run_ends_once(drive: Drive) -> None:
    """SECURITY 6: close during run, two closes."""

    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        session = made.session()
        run = await under_way(session)
        await asyncio.gather(session.close(), session.close(), made.close(), session.close())
        with pytest.raises(SessionClosedError):
            await run
        await session.close()
        await made.close()
        assert len(started) == 1

    drive(work)


def test_sandboxes_that_start_while_their_callers_go_leave_nothing(drive: Drive) -> None:
    """SECURITY 6: cancel during start, at many moments and many at once."""

    async def work(made: AsyncExecutor, _started: list[Sandbox]) -> None:
        starts = [asyncio.create_task(made.session().exec("sleep 600")) for _ in range(8)]
        for start in starts:
            await asyncio.sleep(0.04)
            start.cancel()
            start.cancel()
        ended = await asyncio.gather(*starts, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)

    drive(work)


# How many descriptors are free, for each executor: an engine is asked over connections that are kept.
ROOMS = {"local": [range(2, 44, 4)], "container": [[1], [2]]}


def test_descriptors_that_run_out_are_an_error_and_leave_none(
    executor: Executor, runtime: str, client: Any
) -> None:
    """A start that fails half-way closes what it had opened, and removes what it had made."""
    with Executor(settings=executor.settings) as made, made.session() as session:
        session.exec("true")  # modules are loaded
    before, seen, failures = traces.remains(client), [], 0
    for rooms in ROOMS[runtime] * 2:  # the second round must not add to the first
        with Executor(settings=executor.settings) as made:
            made.choose_runtime()
            base = traces.files()
            for room in rooms:
                with contextlib.suppress(ExecutorError), without_descriptors(base + room):
                    failures += 1
                    with made.session() as session:
                        session.exec("true")
                    failures -= 1
        assert traces.remains(client) == before
        seen.append(traces.files())
    assert failures
    assert traces.eventually(lambda: traces.files() <= seen[0] + 2), (seen, traces.files())
    with Executor(settings=executor.settings) as made, made.session() as session:
        assert session.exec("echo well").stdout == "well\n"


@contextlib.contextmanager
def without_descriptors(most: int) -> Iterator[None]:
    """No more than so many. What fails has to say so."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    except ExecutorError as error:
        assert "Too many open files" in error.message
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


POOLED = """
import sys, time
from executor import Executor, PoolSettings
from executor.runtimes.owner import owner_label
from tests.faults import traces
executor = Executor(skills=[], runtime=sys.argv[1], pool=PoolSettings(size=3))
executor.choose_runtime()
while executor._inner._runtime.ready < 3:
    time.sleep(0.02)
print(owner_label(), *traces.slots(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes are found by the uids of their slots")
def test_a_host_that_is_killed_with_a_full_pool_leaves_nothing(runtime: str, client: Any) -> None:
    """What waits has no lease, because nobody has greeted it: it goes by the end of its stream or of its
    parent, and nobody has to reap.
    """
    with subprocess.Popen(
        [sys.executable, "-c", POOLED, runtime], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as host:
        try:
            assert host.stdout is not None
            owner, *slots = host.stdout.readline().split()
            uids = {int(Path(slot).name) for slot in slots}
            assert len(uids) == 3
            assert all(map(in_use, uids))
            assert runtime != "container" or len(traces.containers(client, owner)) == 3
        finally:
            host.kill()
    assert traces.eventually(lambda: not any(map(in_use, uids)), 10)
    assert runtime != "container" or traces.eventually(lambda: not traces.containers(client, owner), 10)
    # What may stay until an executor looks: an empty control group, and a slot's file that nobody has locked.
    assert traces.eventually(lambda: not any(held(Path(slot)) for slot in slots))
    assert traces.eventually(lambda: not traces.members(owner))
    LocalRuntime().reap()
    assert traces.cgroups(owner) == []
    assert not any(Path(slot).exists() for slot in slots)


def held(slot: Path) -> bool:
    """Whether somebody has a uid slot locked."""
    try:
        fd = os.open(slot, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
