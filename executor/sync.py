"""The same as `AsyncExecutor` and `AsyncSession` for callers without an event loop.

Every method of the asynchronous form stands here with the same name and arguments and nothing else; a test
compares the two. One thread runs the loop for as long as the executor is open, which also keeps alive the
sandboxes that die with the thread that started them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pydantic import PrivateAttr

from executor.bridge.code import MAX_CODE, Language
from executor.channel.runs import OnOutput
from executor.deps.offer import Layers
from executor.errors import BadRequestError, SessionClosedError
from executor.executor import AsyncExecutor, Root
from executor.models import ExecResult, FileInfo, Input, Limits, OutputFile, OutputLimits, StagedInput
from executor.runtimes.base import Runtime
from executor.session import AsyncFile, AsyncRun, AsyncSession, Collected, Command, RunOutput, Source
from executor.session.prepare import Step
from executor.settings import PoolSettings, Settings
from executor.skills.repository import Repository
from executor.workspace.artifacts import ArtifactStore
from executor.workspace.checkpoint import Store

if TYPE_CHECKING:
    from executor.bridge import ApprovalRequest, AuditLog, Decision, Grant
    from executor.bridge.scripts import ScriptResult, Style

T = TypeVar("T")
R = TypeVar("R", bound=ExecResult)


class _Call(Generic[T]):
    """One coroutine in the loop's thread for one waiting thread: a hop there and a hop back, by a bare lock.

    `asyncio.run_coroutine_threadsafe` does the same with two futures and a condition, in twice the time.
    """

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._work, self._loop = work, loop
        self.over = threading.Lock()
        """Free when the work is done."""
        self.over.acquire()
        self.task: asyncio.Task[T]

    def start(self) -> None:
        self.task = self._loop.create_task(self._work)
        self.task.add_done_callback(lambda _task: self.over.release())

    def cancel(self) -> None:
        self.task.cancel()

    def abandon(self) -> None:
        """The loop has gone: whoever waits is let go."""
        with contextlib.suppress(RuntimeError):  # it was done
            self.over.release()


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="executor", daemon=True)
        self._calls: set[_Call[Any]] = set()
        self._gate = threading.Lock()
        self._shut = False
        """No call gets in any more: one that came after the others were let go would wait for ever."""
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end. An interrupt cancels the work and waits until it has let go."""
        if self._loop.is_closed():
            work.close()
            raise SessionClosedError("the executor is closed", hint="Open a new one.")
        if threading.current_thread() is self._thread:
            work.close()
            raise BadRequestError(
                "this call waits for the loop that it was made from, and would never return",
                hint="Do not use the session inside on_output: keep what came, and use it afterwards.",
            )
        call = _Call(work, self._loop)
        with self._gate:
            if shut := self._shut:
                work.close()
            else:
                self._calls.add(call)
                self._loop.call_soon_threadsafe(call.start)
        if shut:
            raise SessionClosedError("the executor is closed", hint="Open a new one.")
        try:
            call.over.acquire()
        except BaseException:  # an interrupt of this thread
            self._loop.call_soon_threadsafe(call.cancel)
            call.over.acquire(timeout=5)
            raise
        finally:
            self._calls.discard(call)
        try:
            return call.task.result()
        except (asyncio.CancelledError, asyncio.InvalidStateError):
            raise SessionClosedError("the executor was closed while this call was under way") from None

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function that is not a coroutine, in the loop's thread."""

        async def work() -> Any:
            return function(*args, **kwargs)

        return self.run(work())

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    async def _let_go(self) -> None:
        """Cancel what other threads still wait for, so that none of them waits for ever."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=5)

    def close(self) -> None:
        with self._gate:
            if self._shut:
                return
            self._shut = True
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._let_go(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        for call in list(self._calls):
            call.abandon()
        if not self._thread.is_alive():
            self._loop.close()


class File(OutputFile):
    """A collected file whose content can still be had from the session. See `AsyncFile`."""

    _inner: Any = PrivateAttr(default=None)
    _loop: Any = PrivateAttr(default=None)

    def read(self) -> bytes:
        """All its bytes. From the result if they are there, else from the sandbox."""
        data: bytes = self._loop.run(self._inner.read())
        return data

    def save(self, target: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write it below the host folder `target`, as `target/<path>`. Returns where."""
        where: Path = self._loop.run(self._inner.save(target, overwrite=overwrite))
        self.saved_as = self._inner.saved_as
        return where


def _file(loop: _Loop, inner: AsyncFile) -> File:
    file = File(**inner.model_dump())
    file._inner, file._loop = inner, loop
    return file


def _with_files(loop: _Loop, result: R) -> R:
    """A result whose files have the methods of this form."""
    result.files = [_file(loop, file) if isinstance(file, AsyncFile) else file for file in result.files]
    return result


class Run:
    """A run in the background. See `AsyncRun`."""

    def __init__(self, loop: _Loop, inner: AsyncRun) -> None:
        self._loop = loop
        self._inner = inner

    @property
    def run_id(self) -> str:
        """Its id, which also names its folder below `runs/`."""
        return self._inner.run_id

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._inner.running

    @property
    def offset(self) -> int:
        """Bytes of its output that `read` has given so far, of both streams."""
        return self._inner.offset

    def write(self, data: bytes | str) -> None:
        """Send to its stdin."""
        self._loop.run(self._inner.write(data))

    def close_stdin(self) -> None:
        """End of file on its stdin."""
        self._loop.run(self._inner.close_stdin())

    def read(self, timeout: float = 0.0) -> RunOutput:
        """What it wrote since the last `read`; waits up to `timeout` seconds while there is nothing."""
        return self._loop.run(self._inner.read(timeout))

    @property
    def pending(self) -> list[ApprovalRequest]:
        """The calls that wait for a decision; the run and its clock stand still meanwhile."""
        return self._inner.pending

    def resume(self, decisions: Mapping[str, bool | Decision], timeout: float | None = None) -> ExecResult:
        """Decide about pending calls, by their `call_id`, and `wait` again."""
        return _with_files(self._loop, self._loop.run(self._inner.resume(decisions, timeout)))

    def wait(self, timeout: float | None = None) -> ExecResult:
        """Its result; `running` or `awaiting_approval` when it has not ended. See `AsyncRun.wait`."""
        return _with_files(self._loop, self._loop.run(self._inner.wait(timeout)))

    def send_signal(self, number: int) -> None:
        """Signal its process group: `signal.SIGINT`, …"""
        self._loop.call(self._inner.send_signal, number)

    def resize(self, rows: int, columns: int) -> None:
        """Size of its terminal."""
        self._loop.call(self._inner.resize, rows, columns)

    def kill(self) -> ExecResult:
        """End it and all that it started. Its result."""
        return _with_files(self._loop, self._loop.run(self._inner.kill()))


class Session:
    """One sandbox and its files. See `AsyncSession`."""

    def __init__(self, loop: _Loop, inner: AsyncSession) -> None:
        self._loop = loop
        self._inner = inner

    def __enter__(self) -> Session:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        """Its id."""
        return self._inner.id

    @property
    def limits(self) -> Limits:
        """What it may use."""
        return self._inner.limits

    @property
    def warm(self) -> tuple[str, ...]:
        """Modules of its warm interpreters."""
        return self._inner.warm

    @property
    def audit(self) -> AuditLog:
        """Where the calls of granted tools are recorded."""
        return self._inner.audit

    @property
    def grant(self) -> Grant | None:
        """What no run of this session gets more than. None sets no such bound."""
        return self._inner.grant

    @property
    def runtime(self) -> str:
        """Name of its runtime."""
        return self._inner.runtime

    @property
    def warnings(self) -> list[str]:
        """What every result of this session is to say."""
        return self._inner.warnings

    @property
    def closed(self) -> bool:
        """`close` was called."""
        return self._inner.closed

    @property
    def durable(self) -> bool:
        """It takes a checkpoint after each run, and goes on from it when its sandbox is lost."""
        return self._inner.durable

    @property
    def lost(self) -> bool:
        """Its sandbox is gone, and its files with it; a durable one gets another at its next use."""
        return self._inner.lost

    def close(self) -> None:
        """End the sandbox and everything in it."""
        self._loop.run(self._inner.close())

    def load(self, name: str | os.PathLike[str]) -> str:
        """Stage a skill at `/skills/<name>`; returns that path."""
        return self._loop.run(self._inner.load(name))

    @property
    def staged(self) -> dict[str, str]:
        """The skills that are staged: name → digest of the folder as it was brought."""
        return self._inner.staged

    def put(self, dest: str, source: Source, *, executable: bool = False) -> None:
        """Write a file or a folder into the workspace: text and bytes are content, a Path is on the host."""
        self._loop.run(self._inner.put(dest, source, executable=executable))

    def stage_inputs(
        self, inputs: Iterable[Input | str], *, artifacts: ArtifactStore | None = None
    ) -> list[StagedInput]:
        """Bring in what is named by reference. See `AsyncSession.stage_inputs`."""
        return self._loop.run(self._inner.stage_inputs(inputs, artifacts=artifacts))

    def prepare(self, steps: Sequence[Step]) -> list[str]:
        """Do the steps that are not done yet. See `AsyncSession.prepare`."""
        return self._loop.run(self._inner.prepare(steps))

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The bytes of one file of the workspace."""
        return self._loop.run(self._inner.read(path, limit=limit))

    def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """What a folder holds, sorted by path; with `recursive` also what its folders hold."""
        return self._loop.run(self._inner.list_files(path, recursive=recursive))

    def stat(self, path: str) -> FileInfo | None:
        """What is at a path; None when nothing is. A link is told as one."""
        return self._loop.run(self._inner.stat(path))

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all it holds; a missing one is no error."""
        self._loop.run(self._inner.remove(path))

    def collect(
        self,
        *patterns: str,
        skill: str | os.PathLike[str] | None = None,
        limits: OutputLimits | None = None,
    ) -> Collected[File]:
        """The files that match the globs (default `out/**`), sorted by path. See `AsyncSession.collect`."""
        found = self._loop.run(self._inner.collect(*patterns, skill=skill, limits=limits))
        files = [_file(self._loop, inner) for inner in found]
        return Collected(files, found.limits_hit, found.warnings)

    def checkpoint(self) -> str:
        """Keep all files on the host, as the session's latest snapshot; its id."""
        return self._loop.run(self._inner.checkpoint())

    def exec(
        self,
        command: Command,
        *,
        skill: str | os.PathLike[str] | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        inputs: Iterable[Input | str] = (),
        outputs: Iterable[str] = (),
        output_limits: OutputLimits | None = None,
        on_output: OnOutput | None = None,
        on_output_limit: Literal["truncate", "kill"] = "truncate",
        max_output: int | None = None,
        tty: bool = False,
        grant: Grant | None = None,
    ) -> ExecResult:
        """Run a command to its end. See `AsyncSession.exec`; `on_output` is called in the loop's thread."""
        result = self._loop.run(
            self._inner.exec(
                command,
                skill=skill,
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout=timeout,
                inputs=inputs,
                outputs=outputs,
                output_limits=output_limits,
                on_output=on_output,
                on_output_limit=on_output_limit,
                max_output=max_output,
                tty=tty,
                grant=grant,
            )
        )
        return _with_files(self._loop, result)

    def script(
        self,
        skill: str | os.PathLike[str],
        path: str,
        *,
        input: Any = None,
        args: Sequence[str] = (),
        grant: Grant | None = None,
        timeout: float | None = None,
        style: Style = "auto",
        env: dict[str, str] | None = None,
        inputs: Iterable[Input | str] = (),
        outputs: Iterable[str] | None = None,
        output_limits: OutputLimits | None = None,
        on_output: OnOutput | None = None,
        max_output: int | None = None,
    ) -> ScriptResult:
        """Run a skill's script. See `AsyncSession.script`; `on_output` is called in the loop's thread."""
        result = self._loop.run(
            self._inner.script(
                skill,
                path,
                input=input,
                args=args,
                grant=grant,
                timeout=timeout,
                style=style,
                env=env,
                inputs=inputs,
                outputs=outputs,
                output_limits=output_limits,
                on_output=on_output,
                max_output=max_output,
            )
        )
        return _with_files(self._loop, result)

    def start_script(
        self,
        skill: str | os.PathLike[str],
        path: str,
        *,
        input: Any = None,
        args: Sequence[str] = (),
        grant: Grant | None = None,
        timeout: float | None = None,
        style: Style = "auto",
        env: dict[str, str] | None = None,
        inputs: Iterable[Input | str] = (),
        outputs: Iterable[str] | None = None,
        output_limits: OutputLimits | None = None,
        on_output: OnOutput | None = None,
        max_output: int | None = None,
    ) -> Run:
        """Start a skill's script in the background. See `AsyncSession.start_script`."""
        inner = self._loop.run(
            self._inner.start_script(
                skill,
                path,
                input=input,
                args=args,
                grant=grant,
                timeout=timeout,
                style=style,
                env=env,
                inputs=inputs,
                outputs=outputs,
                output_limits=output_limits,
                on_output=on_output,
                max_output=max_output,
            )
        )
        return Run(self._loop, inner)

    def execute_code(
        self,
        code: str,
        *,
        language: Language = "python",
        input: Any = None,
        grant: Grant | None = None,
        timeout: float | None = None,
        max_code: int = MAX_CODE,
        on_output: OnOutput | None = None,
        max_output: int | None = None,
    ) -> ScriptResult:
        """Run a text that calls granted tools as functions. See `AsyncSession.execute_code`."""
        result = self._loop.run(
            self._inner.execute_code(
                code,
                language=language,
                input=input,
                grant=grant,
                timeout=timeout,
                max_code=max_code,
                on_output=on_output,
                max_output=max_output,
            )
        )
        return _with_files(self._loop, result)

    def resume(self, run_id: str, decisions: Mapping[str, bool | Decision]) -> ExecResult:
        """Go on with a run that waits for a decision. See `AsyncSession.resume`."""
        return _with_files(self._loop, self._loop.run(self._inner.resume(run_id, decisions)))

    def start(
        self,
        command: Command,
        *,
        skill: str | os.PathLike[str] | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        max_output: int | None = None,
        tty: bool = False,
        size: tuple[int, int] = (24, 80),
        grant: Grant | None = None,
    ) -> Run:
        """Start a command in the background with an open stdin. See `AsyncSession.start`."""
        inner = self._loop.run(
            self._inner.start(
                command,
                skill=skill,
                cwd=cwd,
                env=env,
                timeout=timeout,
                on_output=on_output,
                max_output=max_output,
                tty=tty,
                size=size,
                grant=grant,
            )
        )
        return Run(self._loop, inner)


class Executor:
    """Runs skills in sandboxes. See `AsyncExecutor`.

    `skills`: one root or several (docs/sources.md), texts, paths or sources of your own; the first wins
    (default `$SKILLS_ROOT`, then `./skills`). `runtime`: `auto`, `container`, `local`, or a `Runtime` of your
    own. `image`: see `Settings.image`. `pool`: sandboxes started ahead (default: none).
    `grant`: what no run of any session gets more than (default: no such bound). `settings`: everything else.
    """

    def __init__(
        self,
        *,
        skills: Root | Sequence[Root] | None = None,
        runtime: str | Runtime | None = None,
        image: str | None = None,
        pool: PoolSettings | None = None,
        grant: Grant | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._loop = _Loop()
        try:
            self._inner: AsyncExecutor = self._loop.call(
                AsyncExecutor,
                skills=skills,
                runtime=runtime,
                image=image,
                pool=pool,
                grant=grant,
                settings=settings,
            )
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> Executor:
        try:
            self.choose_runtime()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._inner.settings

    @property
    def repository(self) -> Repository:
        """The skills."""
        return self._inner.repository

    @property
    def store(self) -> Store:
        """Where sessions are kept."""
        return self._inner.store

    @property
    def audit(self) -> AuditLog:
        """Where the calls of granted tools are recorded."""
        return self._inner.audit

    @property
    def grant(self) -> Grant | None:
        """What no run gets more than."""
        return self._inner.grant

    @property
    def layers(self) -> Layers:
        """Dependencies of skills: what a session gets of them."""
        return self._inner.layers

    @property
    def why(self) -> str:
        """Which runtime was chosen and why, once it has been."""
        return self._inner.why

    def close(self) -> None:
        """Close every session, then the runtime. A second time it does nothing."""
        if self._loop.closed:
            return
        try:
            self._loop.run(self._inner.close())
        finally:
            self._loop.close()

    def choose_runtime(self) -> str:
        """Settle on a runtime and check that it works. Its name. RuntimeUnavailableError."""
        return self._loop.run(self._inner.choose_runtime())

    def session(
        self,
        session_id: str | None = None,
        *,
        limits: Limits | None = None,
        grant: Grant | None = None,
        durable: bool = False,
        warm: Sequence[str] | None = None,
    ) -> Session:
        """A session, started at its first use or by `with`. The open one when the id is in use."""
        self.choose_runtime()
        options = {"limits": limits, "grant": grant, "durable": durable, "warm": warm}
        return Session(self._loop, self._loop.call(self._inner.session, session_id, **options))

    def restore(
        self,
        session_id: str,
        *,
        limits: Limits | None = None,
        grant: Grant | None = None,
        durable: bool = False,
        warm: Sequence[str] | None = None,
    ) -> Session:
        """A session that begins with the files of the latest checkpoint under this id."""
        self.choose_runtime()
        options = {"limits": limits, "grant": grant, "durable": durable, "warm": warm}
        return Session(self._loop, self._loop.call(self._inner.restore, session_id, **options))
