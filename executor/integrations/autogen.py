"""A code executor for AutoGen: `CodeExecutorAgent("runner", code_executor=ExecutorCodeExecutor())`.

It has the shape of AutoGen's own command-line executors: each block is a file in one folder and is run by the
interpreter of its language. `start` opens a session, `restart` a fresh one, `stop` ends it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re

from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import BaseModel

from executor.errors import BadPathError, BadRequestError
from executor.executor import AsyncExecutor
from executor.models import ExecResult
from executor.session import AsyncSession
from executor.settings import Settings, load
from executor.workspace import layout

FOLDER = "work"
# Names of a language → how a file of it is run, and the ending of its name.
LANGUAGES = {
    **dict.fromkeys(("python", "py", "python3"), ("python3", "py")),
    **dict.fromkeys(("bash", "shell"), ("bash", "sh")),
    "sh": ("sh", "sh"),
    **dict.fromkeys(("javascript", "js", "node"), ("node", "js")),
}
# A block may name its file in its first line.
_FILE_NAME = re.compile(r"\s*(?:#|//)\s*filename:\s*(\S[^\r\n]*)")
# One text of both streams, in the order in which they were written.
MERGED = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh"]


class ExecutorConfig(BaseModel):
    """What a component's file holds."""

    settings: Settings = Settings()
    timeout: float = 60.0


class ExecutorCodeExecutor(CodeExecutor, Component[ExecutorConfig]):
    """Runs code blocks in a sandbox of its own."""

    component_config_schema = ExecutorConfig
    component_provider_override = "executor.integrations.autogen.ExecutorCodeExecutor"

    def __init__(self, settings: Settings | None = None, *, timeout: float = 60.0) -> None:
        """`settings`: default those of the process. `timeout`: seconds for each block, default 60."""
        self._settings = settings
        self._timeout = timeout
        self._executor: AsyncExecutor | None = None
        self._session: AsyncSession | None = None

    @property
    def session(self) -> AsyncSession:
        """The session, for `put`, `load` and `collect`. BadRequestError before `start`."""
        if self._session is None:
            raise BadRequestError("the code executor was not started", hint="Use it in `async with`.")
        return self._session

    async def start(self) -> None:
        """Open the session."""
        if self._session is not None:
            return
        executor = AsyncExecutor(settings=self._settings or load())
        try:
            await executor.choose_runtime()
            self._session = await executor.session().__aenter__()
        except BaseException:
            await executor.close()
            raise
        self._executor = executor

    async def stop(self) -> None:
        """End the session and what runs in it."""
        executor, self._executor, self._session = self._executor, None, None
        if executor is not None:
            await executor.close()

    async def restart(self) -> None:
        """A fresh session: files and processes are gone."""
        await self.stop()
        await self.start()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Run the blocks in order until one fails. The output is that of all, the exit code that of the last:
        124 for one that took too long. asyncio.CancelledError when the token is cancelled; the code ends.
        """
        written: list[str] = []
        code = 0
        for block in code_blocks:
            language = block.language.strip().lower()
            if language not in LANGUAGES:
                written.append(f"unknown language {block.language!r}; use one of {', '.join(LANGUAGES)}\n")
                code = 1
                break
            try:
                result = await self._run(block.code, language, cancellation_token)
            except BadPathError as error:
                written.append(f"{error}\n")
                code = 1
                break
            written.append(result.stdout)
            code = 1 if result.exit_code is None else result.exit_code
            if result.status in ("timeout", "oom", "lost"):
                written.append(f"\n[{result.status}: the code was ended]\n")
            if code:
                break
        return CodeResult(exit_code=code, output="".join(written))

    async def _run(self, code: str, language: str, token: CancellationToken) -> ExecResult:
        program, ending = LANGUAGES[language]
        named = _FILE_NAME.match(code)
        digest = hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
        name = named[1].strip() if named else f"tmp_code_{digest[:16]}.{ending}"

        async def work() -> ExecResult:
            place = layout.absolute(name, below=f"{layout.WORKSPACE}/{FOLDER}")
            await self.session.put(place, code)
            return await self.session.exec([*MERGED, program, place], cwd=FOLDER, timeout=self._timeout)

        task = asyncio.ensure_future(work())
        token.link_future(task)
        return await task

    def _to_config(self) -> ExecutorConfig:
        return ExecutorConfig(settings=self._settings or load(), timeout=self._timeout)

    @classmethod
    def _from_config(cls, config: ExecutorConfig) -> ExecutorCodeExecutor:
        return cls(config.settings, timeout=config.timeout)
