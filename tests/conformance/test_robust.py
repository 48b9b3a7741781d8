"""What one run or one collection must not do to the next."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from executor import (
    AsyncExecutor,
    BadLimitError,
    BadRequestError,
    Executor,
    ExecutorError,
    OutputLimits,
    SandboxLostError,
    Session,
    SessionClosedError,
)
from executor.runtimes.base import Sandbox, SandboxSpec


def test_a_removed_folder_of_the_workspace_is_there_again_for_the_next_run(session: Session) -> None:
    session.load("sales-report")
    session.exec("rm -rf /workspace/* /tmp/home")
    result = session.exec(
        'echo a > "$OUTPUT_DIR/a"; echo b > out/b; cd "$HOME"; ls /workspace', skill="sales-report"
    )
    assert (result.stderr, result.exit_code) == ("", 0)
    assert result.stdout.split() == ["inputs", "out", "runs", "skills", "work"]
    assert [file.path for file in session.collect()] == ["out/a", "out/b"]


def test_a_collection_says_what_its_caps_cut_and_what_it_left_out(session: Session) -> None:
    session.exec("cd out; for i in 1 2 3; do echo $i > $i; done; ln -s /etc/passwd link")
    found = session.collect("out/**", limits=OutputLimits(max_files=2))
    assert [file.path for file in found] == ["out/1", "out/2"]
    assert found.limits_hit == ["max_files"]
    assert found.warnings == [
        "out/link is a link: not collected",
        "3 files match; only the first 2 are returned",
    ]


def test_a_file_from_the_far_future_is_collected_like_any_other(session: Session) -> None:
    result = session.exec(
        'echo x > "$OUTPUT_DIR/a"; touch -d @18446744074 "$OUTPUT_DIR/a"', outputs=["out/**"]
    )
    assert [(file.path, file.content) for file in result.files] == [("out/a", "x\n")]


def test_what_lies_too_deep_to_be_named_is_said(session: Session) -> None:
    deep = "cd out; for i in $(seq 30); do mkdir $(printf 'd%.0s' $(seq 200)); cd d*; done; echo x > f"
    session.exec(deep)
    found = session.collect("out/**")
    assert list(found) == []
    (warning,) = found.warnings
    assert warning.endswith("/... is where the listing stopped, too deep or at too many files: not collected")


@pytest.mark.parametrize("size", [(-1, 5), (70_000, 70_000), (24.5, 80)])
def test_an_impossible_terminal_is_refused(session: Session, size: Any) -> None:
    with pytest.raises(BadRequestError, match="is not a size of a terminal"):
        session.start("true", tty=True, size=size)
    assert session.exec("echo well").stdout == "well\n"


def test_a_cap_that_is_no_number_of_bytes_is_refused(session: Session) -> None:
    with pytest.raises(BadLimitError, match=r"max_output=1\.5"):
        session.exec("true", max_output=1.5)  # type: ignore[arg-type]
    assert session.exec("echo well").stdout == "well\n"


async def opened(executor: Executor, work: Callable[[AsyncExecutor, list[Sandbox]], Awaitable[None]]) -> None:
    """Run `work` with an asynchronous executor like the one given, and a list of what it starts."""
    async with AsyncExecutor(settings=executor.settings) as made:
        runtime = made._runtime
        assert runtime is not None
        started: list[Sandbox] = []
        start = runtime.start

        async def recording(spec: SandboxSpec) -> Sandbox:
            sandbox = await start(spec)
            started.append(sandbox)
            return sandbox

        runtime.start = recording  # type: ignore[method-assign]
        await work(made, started)


@pytest.mark.parametrize("delay", [0, 0.02, 0.05, 0.2])
def test_a_session_that_is_closed_while_it_starts_leaves_no_sandbox(executor: Executor, delay: float) -> None:
    """trpc-64"""

    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        session = made.session()
        run = asyncio.create_task(session.exec("sleep 20"))
        await asyncio.sleep(delay)
        await session.close()
        with pytest.raises((SessionClosedError, SandboxLostError)):
            await run
        assert all(sandbox.stream.transport.is_closing() for sandbox in started)
        assert made._sessions == {}

    asyncio.run(opened(executor, work))


def test_a_start_that_is_cancelled_costs_nobody_the_session(executor: Executor) -> None:
    """trpc-1.7.7, trpc-37"""

    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        session = made.session()
        first = asyncio.create_task(session.exec("echo first"))
        await asyncio.sleep(0.02)
        second = asyncio.create_task(session.exec("echo second"))
        first.cancel()
        assert (await second).stdout == "second\n"
        assert (await session.exec("echo third")).stdout == "third\n"
        await session.close()
        assert all(sandbox.stream.transport.is_closing() for sandbox in started)

    asyncio.run(opened(executor, work))


def test_a_session_whose_close_was_cancelled_does_not_stand_in_the_way(executor: Executor) -> None:
    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        session = made.session("again")
        await session.exec("true")
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0)
        closing.cancel()
        assert (await made.session("again").exec("echo new")).stdout == "new\n"

    asyncio.run(opened(executor, work))


@pytest.mark.parametrize("delay", [0.02, 0.3, 1.0])
def test_closing_an_executor_lets_go_of_every_thread(executor: Executor, delay: float) -> None:
    made = Executor(settings=executor.settings)
    made.choose_runtime()

    def use() -> None:
        with contextlib.suppress(ExecutorError):
            made.session().exec("sleep 30")

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(delay)
    made.close()
    for thread in threads:
        thread.join(20)
    assert [thread for thread in threads if thread.is_alive()] == []
    made.close()
    with pytest.raises(SessionClosedError, match="the executor is closed"):
        made.session()


def test_a_closed_executor_opens_nothing(runtime: str, executor: Executor) -> None:
    """A session of it would be closed by nobody."""

    async def work() -> None:
        async with AsyncExecutor(runtime=runtime) as made:
            assert made.session("open").id == "open"
        for again in (lambda: made.session("late"), lambda: made.restore("late")):
            with pytest.raises(BadRequestError, match="executor is closed"):
                again()
        with pytest.raises(BadRequestError, match="executor is closed"):
            await made.choose_runtime()

    asyncio.run(work())
