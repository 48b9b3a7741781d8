"""For Google's ADK: a code executor and an environment, both on a session.

    LlmAgent(…, code_executor=ExecutorCodeExecutor(session=session))
    LlmAgent(…, tools=[EnvironmentToolset(environment=ExecutorEnvironment(session))])

The first takes a `Session`, since ADK calls it without `await`, the second an `AsyncSession`.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import (
    CodeExecutionInput,
    CodeExecutionResult,
    File,
)
from google.adk.environment import BaseEnvironment, ExecutionResult
from pydantic import ConfigDict, Field

from executor.integrations.files import perform, reading, writing
from executor.models import OutputLimits
from executor.session import AsyncSession
from executor.sync import Session
from executor.workspace import layout

FOLDER = "work"  # where code runs: a file that it names without a folder is one that an earlier block made
CODE = "runs/.adk/code.py"  # not among what a block made
MOST = 100 << 20  # bytes of a file that is read
OUTPUTS = (f"{FOLDER}/**", "out/**")
TAKE = OutputLimits(max_files=1000)
LOOK = OutputLimits(max_files=1000, inline_bytes=0)
ENDED = ("timeout", "oom", "lost")


class ExecutorCodeExecutor(BaseCodeExecutor):
    """Runs an agent's Python in a session. The files of a call are there for the next, its variables not."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    session: Session = Field(exclude=True)
    """Whoever opened it closes it."""
    stateful: bool = Field(default=False, frozen=True, exclude=True)
    timeout_seconds: int | None = 300
    """Seconds for one call; None is that of the session's settings."""

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        """Run the code with its input files in its folder. `output_files` is what it made or changed there or
        in `out/`, as bytes; what was left out of that is said at the end of stdout.
        """
        for file in code_execution_input.input_files:
            self.session.put(f"{FOLDER}/{file.name}", _bytes(file.content))
        self.session.put(CODE, code_execution_input.code)
        before = {file.path: file.sha256 for file in self.session.collect(*OUTPUTS, limits=LOOK)}
        result = self.session.exec(
            ["python3", f"{layout.WORKSPACE}/{CODE}"],
            cwd=FOLDER,
            env={"PYTHONPATH": f"{layout.WORKSPACE}/{FOLDER}"},
            timeout=self.timeout_seconds,
        )
        ended = f"\n[{result.status}: the code was ended]\n" if result.status in ENDED else ""
        found = CodeExecutionResult(result.stdout, result.stderr + ended, exit_code=result.exit_code)
        if result.status != "lost":
            made = self.session.collect(*OUTPUTS, limits=TAKE)
            for file in made:
                if file.sha256 and before.get(file.path) == file.sha256:
                    continue
                name = file.path.removeprefix(f"{FOLDER}/")
                if file.truncated:
                    found.stdout += f"\n[{name} is not returned: it has {file.size:,} bytes]\n"
                else:
                    found.output_files.append(File(name, file.read(), file.mime))
            if "max_files" in made.limits_hit:
                found.stdout += f"\n[more than {TAKE.max_files:,} files; the rest was not looked at]\n"
        return found


class ExecutorEnvironment(BaseEnvironment):
    """A session as the environment of `EnvironmentToolset`. Whoever opened the session closes it."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        self.is_initialized = True

    @property
    def working_dir(self) -> Path:
        """`/workspace`."""
        return Path(layout.WORKSPACE)

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        """Run a shell line. `timeout` in seconds; None is that of the session's settings."""
        result = await self.session.exec(command, timeout=timeout)
        code = -1 if result.exit_code is None else result.exit_code
        return ExecutionResult(code, result.stdout, result.stderr, result.timed_out)

    async def read_file(self, path: Path) -> bytes:
        """The bytes of a file, at most 100 MiB. FileNotFoundError, PermissionError, IsADirectoryError."""
        return await perform(self.session, reading(str(path), most=MOST))

    async def write_file(self, path: Path, content: str | bytes) -> None:
        """Write a file, its folders made. PermissionError, IsADirectoryError."""
        data = content.encode() if isinstance(content, str) else content
        await perform(self.session, writing(str(path), data))


def _bytes(content: str | bytes) -> bytes:
    """ADK writes a file's bytes as they are, or as base64 in a str."""
    if isinstance(content, bytes):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return content.encode()
