"""Sandboxes for the sandbox agents of the OpenAI Agents SDK.

    RunConfig(sandbox=SandboxRunConfig(client=ExecutorSandboxClient(executor)))

A session of the SDK is one of the executor's. The SDK's snapshots are archives that `tar` makes and unpacks
in the sandbox; nothing of them is looked at on this machine. There are no exposed ports and no mounts.
"""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any, Literal

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import BaseSandboxClient
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult

from executor.errors import BadRequestError, SandboxError, SessionClosedError
from executor.executor import AsyncExecutor
from executor.integrations.files import FileCall, perform, reading, writing
from executor.session import AsyncSession
from executor.workspace import layout

MOST_OUTPUT = 16 << 20  # bytes kept of each stream of a command
MOST_FILE = 256 << 20


class ExecutorSessionState(SandboxSessionState):
    """What the SDK keeps of a session."""

    type: Literal["executor"] = "executor"


class ExecutorSandboxSession(BaseSandboxSession):
    """One session. `session` is the executor's."""

    state: ExecutorSessionState

    def __init__(self, state: ExecutorSessionState, session: AsyncSession) -> None:
        self.state = state
        self.session = session

    async def running(self) -> bool:
        """Neither closed nor lost."""
        return not self.session.closed and not self.session.lost

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        return await self._run([str(word) for word in command], timeout=timeout)

    async def _run(
        self, command: list[str], *, timeout: float | None = None, stdin: bytes = b"", most: int = MOST_OUTPUT
    ) -> ExecResult:
        """The bytes of both streams, of more than `most` the beginning."""
        kept = {"stdout": bytearray(), "stderr": bytearray()}

        def take(stream: str, data: bytes) -> None:
            kept[stream] += data[: most - len(kept[stream])]

        try:
            result = await self.session.exec(
                command, timeout=timeout, stdin=stdin, on_output=take, max_output=4096
            )
        except (SandboxError, SessionClosedError) as error:
            raise ExecTransportError(command=command, cause=error, message=error.message) from error
        if result.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        if result.exit_code is None:
            raise ExecTransportError(command=command, message="; ".join(result.warnings) or result.status)
        return ExecResult(
            stdout=bytes(kept["stdout"]), stderr=bytes(kept["stderr"]), exit_code=result.exit_code
        )

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        """A file's bytes, as a stream. WorkspaceReadNotFoundError, PermissionError, IsADirectoryError."""
        try:
            return io.BytesIO(await self._perform(reading(self._place(path, user), most=MOST_FILE)))
        except FileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        """Write a file, its folders made. PermissionError, IsADirectoryError."""
        content = coerce_write_payload(path=path, data=data).stream.read()
        await self._perform(writing(self._place(path, user), content))

    async def _perform(self, call: FileCall) -> bytes:
        try:
            return await perform(self.session, call)
        except (SandboxError, SessionClosedError) as error:
            raise ExecTransportError(command=call.command, cause=error, message=error.message) from error

    def _place(self, path: Path, user: Any) -> str:
        if user is not None:
            raise PermissionError(f"cannot act as {user}: a sandbox of executor has one user")
        return str(path)

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar archive."""
        skipped = [
            f"--exclude=./{path}" for path in sorted(map(str, self._persist_workspace_skip_relpaths()))
        ]
        command = ["tar", "-C", layout.WORKSPACE, "--anchored", "--no-wildcards", *skipped, "-cf", "-", "."]
        found = await self._run(command, most=MOST_FILE)
        if found.exit_code != 0 or len(found.stdout) == MOST_FILE:
            raise WorkspaceArchiveReadError(
                path=Path(layout.WORKSPACE), context={"reason": found.stderr.decode("utf-8", "replace")[:500]}
            )
        return io.BytesIO(found.stdout)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack what `persist_workspace` made."""
        command = ["tar", "-C", layout.WORKSPACE, "--no-overwrite-dir", "-xf", "-"]
        found = await self._run(command, stdin=data.read())
        if found.exit_code != 0:
            raise WorkspaceArchiveWriteError(
                path=Path(layout.WORKSPACE), context={"reason": found.stderr.decode("utf-8", "replace")[:500]}
            )


class ExecutorSandboxClient(BaseSandboxClient[Any]):
    """Sessions of an open executor, which decides about runtime, image and limits. It takes no options."""

    backend_id = "executor"
    supports_default_options = True

    def __init__(self, executor: AsyncExecutor) -> None:
        super().__init__()
        self._executor = executor
        self._sessions: dict[uuid.UUID, AsyncSession] = {}

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: None = None,
    ) -> SandboxSession:
        """A fresh session. BadRequestError for a manifest whose root is not `/workspace`."""
        manifest = self._validate_manifest_for_create(manifest if manifest is not None else Manifest())
        if manifest.root != layout.WORKSPACE:
            raise BadRequestError(f"the manifest's root is {manifest.root!r}: here it is {layout.WORKSPACE}")
        name = uuid.uuid4()
        state = ExecutorSessionState(
            session_id=name, manifest=manifest, snapshot=resolve_snapshot(snapshot, str(name))
        )
        return self._open(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The session if it is still open, else a fresh one that the SDK fills from its snapshot."""
        if not isinstance(state, ExecutorSessionState):
            raise BadRequestError(f"{type(state).__name__} is no state of a session of executor")
        state.assert_path_grants_rebound()
        return self._open(state)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End the session and what runs in it."""
        await session._inner.session.close()
        self._sessions.pop(session.state.session_id, None)
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """A state from its JSON."""
        return self._deserialize_session_state_payload(payload, ExecutorSessionState)

    def _open(self, state: ExecutorSessionState) -> SandboxSession:
        known = self._sessions.get(state.session_id)
        if preserved := known is not None and not known.closed and not known.lost:
            session = known
        else:
            session = self._sessions[state.session_id] = self._executor.session(str(state.session_id))
        inner = ExecutorSandboxSession(state, session)
        inner._set_start_state_preserved(preserved)
        return self._wrap_session(inner, instrumentation=Instrumentation())
