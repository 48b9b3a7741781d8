"""Faults of the host process: it stands still, its clock is set, threads and callers go, it closes twice.

That one which is killed leaves nothing is in `conformance/test_isolation`; cancelled callers are in
`conformance/test_ending`, cancelled starts in `conformance/test_robust`.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from executor import AsyncExecutor, Executor, Session, SessionClosedError
from executor.guest import bundle
from executor.runtimes.base import Sandbox
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
    assert "time.time(" not in bundle.source().decode()  # the guest asks no clock that can be set
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


def test_descriptors_that_run_out_are_an_error_and_leave_none(executor: Executor, runtime: str) -> None:
    """A start that fails half-way closes what it had opened."""
    if runtime != "local":
        pytest.skip("an engine is asked over one connection")
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Executor(settings=executor.settings) as made:
        made.choose_runtime()
        with made.session() as session:
            session.exec("true")
        seen = []
        for _ in range(2):  # the second round must not add to the first
            base, failures = traces.files(), 0
            try:
                for room in range(2, 44, 4):
                    resource.setrlimit(resource.RLIMIT_NOFILE, (base + room, hard))
                    try:
                        with made.session() as session:
                            session.exec("true")
                    except Exception as error:
                        assert str(error)
                        failures += 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert failures
            seen.append(traces.files())
        assert traces.eventually(lambda: traces.files() <= seen[0] + 2), (seen, traces.files())
        with made.session() as session:
            assert session.exec("echo well").stdout == "well\n"
