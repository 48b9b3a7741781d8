"""AutoGen's interface of a code executor, on every runtime; and an agent that uses it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

pytest.importorskip("autogen_core", reason="dev/setup.sh test installs it")

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from examples import Examples
from waiting import gone, lives, until

from executor import BadRequestError, Executor, Settings
from executor.integrations.autogen import ExecutorCodeExecutor

Work = Callable[[ExecutorCodeExecutor], Coroutine[Any, Any, None]]


def with_code(runtime: str, work: Work) -> None:
    async def whole() -> None:
        settings = Settings(runtime=runtime)  # type: ignore[arg-type]
        async with ExecutorCodeExecutor(settings, timeout=20) as code:
            await work(code)

    asyncio.run(asyncio.wait_for(whole(), 120))


def test_an_agent_uses_it(examples: Examples) -> None:
    answer = examples.run("AutoGen")["answer"]
    assert "42" in answer.messages[-1].content


def test_blocks_run_in_order_until_one_fails(executor: Executor, runtime: str) -> None:
    async def work(code: ExecutorCodeExecutor) -> None:
        async def run(*blocks: tuple[str, str]) -> tuple[int, str]:
            made = [CodeBlock(text, language) for language, text in blocks]
            result = await code.execute_code_blocks(made, CancellationToken())
            return result.exit_code, result.output

        shared = "# filename: lib/shared.py\nANSWER = 42\n"
        found = await run(("python", shared), ("Python", "import lib.shared as s; print(s.ANSWER)"))
        assert found == (0, "42\n")
        assert await run(("sh", "echo a; echo b >&2; echo c"), ("js", "console.log(6 * 7)")) == (
            0,
            "a\nb\nc\n42\n",
        )
        assert await run(("bash", "echo x; exit 3"), ("bash", "echo never")) == (3, "x\n")
        assert (await run(("cobol", "x")))[0] == 1
        for name in ("../../etc/x", "/etc/x", "a/../../b"):
            status, output = await run(("python", f"# filename: {name}\nprint('ran')"))
            assert status == 1 and "ran" not in output and name in output
        assert (await code.session.stat("work/lib/shared.py")).size == len(shared)
        await code.restart()
        assert await code.session.stat("work/lib") is None

    with_code(runtime, work)


def test_time_and_cancellation_end_the_code(executor: Executor, runtime: str) -> None:
    async def work(code: ExecutorCodeExecutor) -> None:
        token = CancellationToken()
        block = CodeBlock("echo > begun; exec sleep 4321", "bash")
        task = asyncio.ensure_future(code.execute_code_blocks([block], token))
        await until(lambda: code.session.stat("work/begun"))
        await until(lambda: lives(code.session, "sleep 4321"))
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: gone(code.session, "sleep 4321"))
        code._timeout = 0.5
        late = await code.execute_code_blocks([CodeBlock("echo begun; sleep 99", "sh")], CancellationToken())
        assert (late.exit_code, late.output) == (124, "begun\n\n[timeout: the code was ended]\n")

    with_code(runtime, work)


def test_it_is_a_component() -> None:
    made = ExecutorCodeExecutor(Settings(runtime="local", timeout=5), timeout=7)
    again = CodeExecutor.load_component(made.dump_component())
    assert isinstance(again, ExecutorCodeExecutor)
    assert again.dump_component() == made.dump_component()
    assert (again._settings, again._timeout) == (made._settings, 7)
    with pytest.raises(BadRequestError, match="was not started"):
        _ = again.session
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(again.stop())
