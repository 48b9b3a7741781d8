"""A sandbox for evaluations with Inspect: `Task(sandbox="executor")`.

    Task(…, sandbox=("executor", Settings(runtime="local", limits=Limits(memory="512m"))))

The provider is known to Inspect by an entry point. Its configuration is a `Settings`, or the path of a YAML
file with settings, or nothing: then they are those of the process. A sample has one session. There is one
user in a sandbox, and no network. A command that ran into its deadline is not tried again, for it may have
done half its work.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Literal, cast, overload

import sniffio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from executor.errors import BadPathError, BadRequestError, SandboxError, SessionClosedError
from executor.executor import AsyncExecutor
from executor.integrations.files import FileCall, perform, reading, writing
from executor.session import AsyncSession
from executor.settings import Settings, load
from executor.workspace import layout

USER = layout.ENVIRONMENT["USER"]
# Folders that a run can be told to begin in; to begin anywhere else it has to go there itself.
ROOTS = (layout.WORKSPACE, layout.SKILLS)
GO = ["/bin/sh", "-c", 'cd -- "$0" && exec "$@"']


@sandboxenv(name="executor")
class ExecutorSandbox(SandboxEnvironment):
    """One sample's session. `session` is the whole of it, for what Inspect has no name for."""

    def __init__(self, executor: AsyncExecutor, session: AsyncSession) -> None:
        super().__init__()
        self.session = session
        self._executor = executor
        self._uid: str | None = None

    # -- life --

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """A started session, as the one named `default`."""
        if sniffio.current_async_library() != "asyncio":
            raise BadRequestError(
                "sandboxes of executor need asyncio",
                hint="Unset INSPECT_ASYNC_BACKEND, or set it to asyncio.",
            )
        executor = AsyncExecutor(settings=settings_of(config))
        try:
            await executor.choose_runtime()
            session = await executor.session().__aenter__()
        except BaseException:
            await executor.close()
            raise
        return {"default": cls(executor, session)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End it, and whatever runs in it."""
        for environment in environments.values():
            await environment.as_type(cls)._executor.close()

    @classmethod
    def default_concurrency(cls) -> int:
        """Two sandboxes for each processor, as Inspect's own provider for Docker has it."""
        return 2 * (os.cpu_count() or 1)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> Settings:
        """The `Settings` that a log holds."""
        return Settings.model_validate(config)

    # -- commands --

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command. See `SandboxEnvironment.exec`; more output than its limit is an error that holds the
        beginning and the end.
        """
        await self._check_user(user)
        if cwd is not None and cwd.startswith("/") and not cwd.startswith(ROOTS):
            cmd, cwd = [*GO, cwd, *cmd], None
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await self.session.exec(
                cmd, stdin=input, cwd=cwd, env=env, timeout=timeout, max_output=most
            )
        except BadPathError as error:  # there is no such folder, or it is none
            return ExecResult(False, 126, "", f"{error.message}\n")
        except (SandboxError, SessionClosedError) as error:
            raise SandboxUnavailableError(str(error)) from error
        if result.status == "lost":
            raise SandboxUnavailableError("; ".join(result.warnings) or "the sandbox is gone")
        if result.timed_out:
            late = TimeoutError(f"Command timed out after {timeout} seconds")
            late.truncated_output = result.stdout + result.stderr  # type: ignore[attr-defined]
            raise late
        if result.stdout_truncated or result.stderr_truncated:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout + result.stderr
            )
        if result.exit_code == 126 and "permission denied" in result.stderr.lower():
            raise PermissionError(errno.EACCES, result.stderr.strip())
        return ExecResult(result.exit_code == 0, cast(int, result.exit_code), result.stdout, result.stderr)

    async def _check_user(self, user: str | None) -> None:
        """There is one user: unprivileged, of a uid of the session's own."""
        if user in (None, USER):
            return
        if self._uid is None:
            self._uid = (await self.session.exec(["id", "-u"])).stdout.strip()
        if user != self._uid:
            raise SandboxUserUnsupportedError(
                f"cannot run as {user!r}: a sandbox of executor has one user, {USER} ({self._uid})"
            )

    # -- files --

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, as a command in the sandbox would. See `SandboxEnvironment.write_file`."""
        await self._perform(writing(file, contents.encode() if isinstance(contents, str) else contents))

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, as a command in the sandbox would. See `SandboxEnvironment.read_file`."""
        data = await self._perform(reading(file, most=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE))
        return data.decode("utf-8") if text else data

    async def _perform(self, call: FileCall) -> bytes:
        try:
            return await perform(self.session, call)
        except (SandboxError, SessionClosedError) as error:
            raise SandboxUnavailableError(str(error)) from error
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise OutputLimitExceededError(
                    SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None
                ) from error
            raise


def settings_of(config: SandboxEnvironmentConfigType | None) -> Settings:
    """The settings that an evaluation's configuration means. BadRequestError."""
    if config is None:
        return load()
    if isinstance(config, str):
        return load(environ={"EXECUTOR_CONFIG": config})
    if isinstance(config, Settings):
        return config
    raise BadRequestError(
        f"a sandbox of executor is configured by executor.Settings, and this is {type(config).__name__}"
    )
