"""The interfaces that Google's ADK publishes, on every runtime; and an agent that uses them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="dev/setup.sh test installs it")

from examples import Examples
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types
from waiting import gone, lives, until

from executor import AsyncExecutor, BadPathError, Executor
from executor.integrations.google_adk import ExecutorCodeExecutor, ExecutorEnvironment


class Scripted(BaseLlm):
    """A model that says what it was told to."""

    says: list[str]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        part = types.Part(text=self.says.pop(0))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def test_an_agent_uses_it(examples: Examples) -> None:
    code = "```python\nprint(6 * 7)\nopen('answer.txt', 'w').write('42')\n```"
    events = examples.run("Google ADK", model=Scripted(model="scripted", says=[code, "It is 42."]))["events"]
    parts = [part for event in events for part in event.content.parts]
    (result,) = [part.code_execution_result for part in parts if part.code_execution_result]
    assert (result.outcome, "42" in result.output) == (types.Outcome.OUTCOME_OK, True)
    assert {name for event in events for name in event.actions.artifact_delta} == {"answer.txt"}
    assert parts[-1].text == "It is 42."


def test_code_finds_its_files_and_hands_out_what_it_made(executor: Executor) -> None:
    with executor.session() as session:
        code = ExecutorCodeExecutor(session=session, timeout_seconds=20)

        def run(text: str, *files: File) -> Any:
            return code.execute_code(None, CodeExecutionInput(text, list(files)))  # type: ignore[arg-type]

        session.put("work/mine.csv", b"not the code's\n")
        table = File("in.csv", base64.b64encode(b"a\n1\n").decode(), "text/csv")
        made = run("open('out.csv', 'w').write(open('in.csv').read() * 2)", table)
        assert (made.exit_code, made.stdout, made.stderr) == (0, "", "")
        assert [(file.name, file.content) for file in made.output_files] == [("out.csv", b"a\n1\n" * 2)]
        again = run(
            "print(open('out.csv').read()); open('../out/x.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n')"
        )
        assert again.stdout == "a\n1\na\n1\n\n"
        assert [(file.name, file.mime_type) for file in again.output_files] == [("out/x.png", "image/png")]
        raw = run("import sys; print(open('raw').read(), file=sys.stderr); exit(3)", File("raw", b"\x61"))
        assert (raw.exit_code, raw.stderr, raw.output_files) == (3, "a\n", [])
        large = run("open('large', 'wb').write(bytes(5 << 20))")
        assert large.output_files == [] and "large is not returned: it has 5,242,880 bytes" in large.stdout
        with pytest.raises(BadPathError):
            run("print(1)", File("../../../etc/x", b""))
        code.timeout_seconds = 1
        late = run("print('begun'); import time; time.sleep(99)")
        assert (late.exit_code, late.stdout) == (124, "begun\n") and "timeout" in late.stderr


def test_an_environment(executor: Executor, runtime: str, skills_root: Path) -> None:
    async def work() -> None:
        async with AsyncExecutor(skills=[skills_root], runtime=runtime) as own, own.session() as session:
            place = ExecutorEnvironment(session)
            assert place.working_dir == Path("/workspace") and place.is_initialized
            await place.write_file(Path("a/b.txt"), "x\r\ny\n")
            assert await place.read_file(Path("/workspace/a/b.txt")) == b"x\r\ny\n"
            await place.write_file(Path("/tmp/raw"), b"\0\xff")
            assert await place.read_file(Path("/tmp/raw")) == b"\0\xff"
            done = await place.execute("pwd; echo e >&2; exit 3")
            assert (done.exit_code, done.stdout, done.stderr, done.timed_out) == (
                3,
                "/workspace\n",
                "e\n",
                False,
            )
            assert (await place.execute("sleep 9", timeout=0.2)).timed_out
            for path, kind in (("nothing", FileNotFoundError), ("/etc", IsADirectoryError)):
                with pytest.raises(kind, match=path):
                    await place.read_file(Path(path))
            for path, kind in (("/etc/x", OSError), ("a", IsADirectoryError)):
                with pytest.raises(kind, match=path):
                    await place.write_file(Path(path), "x")
            task = asyncio.ensure_future(place.execute("(setsid sleep 4322 &); sleep 4322"))
            await until(lambda: lives(session, "sleep 4322"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: gone(session, "sleep 4322"))

    asyncio.run(asyncio.wait_for(work(), 120))
