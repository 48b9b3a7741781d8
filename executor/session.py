"""A session: one sandbox with a workspace and skills, and the trusted record of what was put there.

`AsyncSession` does the work; `executor.sync` has the same for callers without an event loop. What is staged
(which digest of which skill) is remembered here on the host, never read back from the sandbox.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import os
import re
import secrets
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import PrivateAttr

from executor.bridge import ApprovalRequest, AuditLog, Decision, Grant, clients, scripts
from executor.bridge import code as code_text
from executor.bridge.code import MAX_CODE, Language
from executor.bridge.dispatch import RunBridge, Subject
from executor.bridge.grant import intersection
from executor.bridge.scripts import ScriptResult, Style
from executor.channel import Channel, Expected, RunHandle, RunSpec
from executor.channel.runs import ExitReport, OnOutput, OutputBuffer
from executor.errors import (
    BadLimitError,
    BadPathError,
    BadRequestError,
    ExecutorError,
    SandboxLostError,
    SandboxStartError,
    SessionClosedError,
    SkillError,
    SkillUnreadableError,
)
from executor.guest import records, wire
from executor.models import ExecResult, Limits, OutputFile, OutputLimits, Status, Usage
from executor.runtimes.base import Runtime, Sandbox, SandboxSpec
from executor.runtimes.owner import owner_label
from executor.settings import Settings
from executor.skills.repository import Repository, Skill
from executor.workspace import checkpoint, layout, outputs, staging, text
from executor.workspace.saving import saving

Command = str | Sequence[str | bytes | os.PathLike[str]]
F = TypeVar("F", bound=OutputFile)
Source = bytes | bytearray | memoryview | str | os.PathLike[str]
ABANDON_GRACE = 0.5  # between TERM and KILL for a run whose caller has gone
CLOSED = "session {id!r} is closed"


class AsyncFile(OutputFile):
    """A collected file whose content can still be had from the session."""

    _session: Any = PrivateAttr(default=None)

    async def read(self) -> bytes:
        """All its bytes. From the result if they are there, else from the sandbox."""
        whole = outputs.decode(self)
        if whole is not None:
            return whole
        pieces: list[bytes] = []
        await self._session.stream_file(self, pieces.append)
        return b"".join(pieces)

    async def save(self, target: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write it below the host folder `target`, as `target/<path>`. Returns where; see `saving`."""
        with saving(target, self.path, overwrite=overwrite) as sink:
            whole = outputs.decode(self)
            if whole is not None:
                sink.write(whole)
            else:
                await self._session.stream_file(self, sink.write)
        self.saved_as = str(sink.path)
        return sink.path


class Collected(list[F]):
    """Collected files, and what kept others out."""

    def __init__(self, files: Iterable[F], limits_hit: list[str], warnings: list[str]) -> None:
        super().__init__(files)
        self.limits_hit = limits_hit
        """Names of the caps that cut something: `max_files`, `inline_bytes`, …"""
        self.warnings = warnings
        """What was not collected, and why: links, pipes, files that could not be read."""


class RunOutput(ExecResult):
    """What came since the last look at a background run: `stdout` and `stderr` hold only that."""


class AsyncRun:
    """A run in the background. Made by `AsyncSession.start`."""

    def __init__(
        self,
        session: AsyncSession,
        handle: RunHandle,
        skill: str | None,
        limit: int,
        bridge: RunBridge | None = None,
    ) -> None:
        self._session = session
        self._bridge = bridge
        self._handle = handle
        self._skill = skill
        self._limit = limit
        self._seen = {wire.STDOUT: 0, wire.STDERR: 0}
        self._started = time.monotonic()
        self._kept: ExecResult | None = None

    @property
    def run_id(self) -> str:
        """Its id, which also names its folder below `runs/`."""
        return self._handle.spec.run_id

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._handle.report.done()

    async def write(self, data: bytes | str) -> None:
        """Send to its stdin."""
        if not self.running:
            raise BadRequestError(f"run {self.run_id} has ended and reads no more")
        await self._handle.write(data.encode() if isinstance(data, str) else bytes(data))

    async def close_stdin(self) -> None:
        """End of file on its stdin."""
        if self.running:
            await self._handle.close_stdin()

    async def read(self, timeout: float = 0.0) -> RunOutput:
        """What it wrote since the last `read`; waits up to `timeout` seconds while there is nothing.

        Nothing is repeated and nothing is lost in silence: bytes that came faster than they were read and
        are no longer kept are counted in `warnings`.
        """
        deadline = time.monotonic() + timeout
        while self.running and not self._fresh():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._handle.changed.clear()
            try:
                await asyncio.wait_for(self._handle.changed.wait(), left)
            except TimeoutError:
                break
        result = await self._result() if not self.running else None
        base = result.model_dump() if result is not None else self._snapshot()
        for channel, name in ((wire.STDOUT, "stdout"), (wire.STDERR, "stderr")):
            buffer = self._handle.output[channel]
            data, missed = buffer.since(self._seen[channel])
            # A character that is still coming waits for its rest.
            keep = 0 if result is not None else text.torn_tail(data)
            self._seen[channel] = buffer.total - keep
            base[name] = text.decode(data[: len(data) - keep])
            base[name + "_truncated"] = bool(missed)
            if missed:
                base["warnings"].append(f"{missed:,} bytes of {name} came too fast and were dropped")
        return RunOutput(**base)

    @property
    def pending(self) -> list[ApprovalRequest]:
        """The calls that wait for a decision; the run and its clock stand still meanwhile."""
        return self._bridge.pending if self._bridge is not None else []

    async def resume(
        self, decisions: Mapping[str, bool | Decision], timeout: float | None = None
    ) -> ExecResult:
        """Decide about pending calls, by their `call_id`, and `wait` again. BadRequestError for a call that
        does not wait: every decision counts once.
        """
        for call_id, answer in decisions.items():
            if self._bridge is None:
                raise BadRequestError(f"run {self.run_id} was granted nothing: no call of it can wait")
            self._bridge.decide(call_id, answer)
        return await self.wait(timeout)

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """Its result; `status` is `running` when it has not ended after `timeout` seconds, and
        `awaiting_approval` when it waits for a decision (`pending`, `resume`).
        """
        bridge = self._bridge
        if bridge is not None and bridge.grant.approver == "suspend":
            stop = time.monotonic() + timeout if timeout is not None else None
            while self.running and not bridge.pending:
                bridge.changed.clear()
                waiting: asyncio.Future[Any] = asyncio.ensure_future(bridge.changed.wait())
                left = None if stop is None else max(0.0, stop - time.monotonic())
                either: set[asyncio.Future[Any]] = {waiting, self._handle.report}
                done, _ = await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if not done:
                    break
            if self.running:
                status: Status = "awaiting_approval" if bridge.pending else "running"
                return ExecResult(**{**self._snapshot(), "status": status})
        elif timeout is not None:
            await asyncio.wait({self._handle.report}, timeout=timeout)
            if self.running:
                return ExecResult(**self._snapshot())
        await self._session.settle(self._handle)
        return await self._result()

    def send_signal(self, number: int) -> None:
        """Signal its process group: `signal.SIGINT`, …"""
        if not 1 <= int(number) <= 64:
            raise BadRequestError(f"{number} is not a signal")
        self._handle.send_signal(int(number))

    def resize(self, rows: int, columns: int) -> None:
        """Size of its terminal."""
        _check_size(rows, columns)
        self._handle.resize(rows, columns)

    async def kill(self) -> ExecResult:
        """End it and all that it started. Its result; of one that ended before, the result it had."""
        self._handle.kill("killed")
        await self._session.settle(self._handle)
        return await self._result()

    def _fresh(self) -> bool:
        return any(self._handle.output[channel].total > seen for channel, seen in self._seen.items())

    async def _result(self) -> ExecResult:
        if self._kept is None:
            self._kept = await self._session.result(self._handle, self._started, self._limit)
        return self._kept

    def _snapshot(self) -> dict[str, Any]:
        result = self._session.blank(self.run_id, "running")
        result.stdout_bytes = self._handle.output[wire.STDOUT].total
        result.stderr_bytes = self._handle.output[wire.STDERR].total
        result.duration_ms = int((time.monotonic() - self._started) * 1000)
        return result.model_dump()


class AsyncSession:
    """One sandbox and its files. Made by `AsyncExecutor.session`; use it in an `async with`."""

    def __init__(
        self,
        session_id: str,
        *,
        runtime: Runtime,
        repository: Repository,
        settings: Settings,
        limits: Limits,
        store: checkpoint.Store,
        snapshot: checkpoint.Snapshot | None = None,
        audit: AuditLog | None = None,
        grants: tuple[Grant | None, ...] = (),
    ) -> None:
        self.id = session_id
        self.limits = limits
        self.warnings: list[str] = []
        """What every result of this session is to say: limits that this machine cannot enforce."""
        self._runtime = runtime
        self._repository = repository
        self._settings = settings
        self._sandbox: Sandbox | None = None
        self._channel: Channel | None = None
        self._store = store
        self._snapshot = snapshot
        self._taken: checkpoint.Taken | None = None
        self._starting = asyncio.Lock()
        self._staging = asyncio.Lock()
        self._stager = staging.Stager()
        self._digests: dict[str, str] = {}
        self._sources: dict[str, Path] = {}
        self._manifests: dict[str, dict[bytes, str]] = {}
        self._notes: list[str] = []
        self.audit = audit if audit is not None else AuditLog()
        """Where the calls of granted tools are recorded."""
        bounds = [grant for grant in grants if grant is not None]
        self.grant = intersection(*bounds) if bounds else None
        """What no run of this session gets more than. None sets no such bound."""
        self.asked_grant = grants[-1] if grants else None
        self._ending: asyncio.Task[None] | None = None
        self._burying: asyncio.Task[None] | None = None
        self._closed = False
        self._lost: ExecutorError | None = None
        self._post_mortem: tuple[str, str] | None = None
        self.on_close: Any = None

    # -- life --

    @property
    def runtime(self) -> str:
        """Name of its runtime."""
        return self._runtime.name

    @property
    def closed(self) -> bool:
        """`close` was called."""
        return self._closed

    @property
    def lost(self) -> bool:
        """Its sandbox is gone, and its files with it."""
        return self._lost is not None

    async def __aenter__(self) -> AsyncSession:
        await self._ready()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sandbox and everything in it. Files that were not collected are gone."""
        self._closed = True
        if self.on_close is not None:
            self.on_close(self)
        async with self._starting:  # a start under way ends itself when it sees that nobody wants it
            pass
        if self._channel is not None:
            self._channel.close()
        if self._burying is not None:
            await asyncio.shield(self._burying)
        await self._end()

    async def _end(self) -> None:
        if self._sandbox is not None:
            if self._ending is None:
                self._ending = asyncio.get_running_loop().create_task(self._sandbox.kill())
            await asyncio.shield(self._ending)

    async def _ready(self) -> Channel:
        """The channel, with the sandbox started if this is the first use."""
        if self._channel is not None and self._channel.broken is None and not self._closed:
            return self._channel
        async with self._starting:
            self._check_open()
            if self._lost is not None:
                raise SandboxLostError(
                    f"session {self.id!r} has lost its sandbox: {self._lost.message}",
                    hint="Its files are gone. Open a new session.",
                )
            if self._channel is None:
                self._channel = await self._start()
            return self._channel

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError(CLOSED.format(id=self.id), hint="Open a new one.")

    async def _start(self) -> Channel:
        spec, self._notes = sandbox_spec(self.id, self.limits, self._settings)
        sandbox = await self._runtime.start(spec)
        self._sandbox = sandbox
        channel = Channel(sandbox, self._broken)
        try:
            self._check_open()
            if sandbox.facts.warnings and self._settings.require_limits:
                raise SandboxStartError(
                    "this machine cannot enforce what the settings require: "
                    + "; ".join(sandbox.facts.warnings),
                    hint="Unset require_limits, run as root, or use the container runtime.",
                )
            expected = Expected(secrets.token_hex(16), sandbox.facts)
            await channel.open(expected, {**spec.rlimits(), **sandbox.facts.rlimits})
            if self._snapshot is not None:
                await self._store.restore(channel, self._snapshot)
                for slug, staged in self._snapshot.skills.items():
                    self._digests[slug] = staged["digest"]
                    self._manifests[slug] = {os.fsencode(k): v for k, v in staged["files"].items()}
            self._check_open()
        except BaseException:
            # Not lost: whoever uses the session next starts another sandbox.
            channel.break_off(SandboxStartError("the start was given up"), tell=False)
            self._sandbox = None
            await asyncio.shield(sandbox.kill())
            raise
        self.warnings = [*self._notes, *sandbox.facts.warnings]
        return channel

    def _broken(self, error: ExecutorError) -> None:
        self._lost = error
        self._burying = asyncio.get_running_loop().create_task(self._bury())

    async def _bury(self) -> None:
        if self._sandbox is not None:
            self._post_mortem = await self._sandbox.post_mortem()
        await self._end()

    # -- skills --

    async def load(self, name: str | os.PathLike[str]) -> str:
        """Stage a skill at `/skills/<name>`; returns that path. `name`: in the roots, or a path to a folder.

        An unchanged skill is not touched again; a changed one is replaced as a whole. SkillNotFoundError,
        SkillUnreadableError.
        """
        skill = self._repository.find(name if isinstance(name, str) else Path(name))
        await self._stage(skill)
        return f"{layout.SKILLS}/{skill.slug}"

    async def _stage(self, skill: Skill) -> None:
        channel = await self._ready()
        async with self._staging:
            folder = self._stager.skill(skill.path, most_bytes=max(self.limits.disk // 2, 1 << 20))
            slug = skill.slug.encode()
            if self._digests.get(skill.slug) == folder.digest:
                links = [(item.name, item.target) for item in folder.items if item.kind == records.LINK]
                base = layout.SKILLS.encode() + b"/" + slug + b"/"
                try:
                    await channel.make_links([(base + name, target) for name, target in links])
                    self._sources[skill.slug] = skill.path
                    return
                except BadPathError:
                    pass  # a script removed the folder that a link was in: the skill is staged anew
            before = self._digests.pop(skill.slug, None)
            try:
                await channel.put_files(layout.SKILLS.encode(), folder.records(), swap=slug)
            except (OSError, ExecutorError) as error:
                if before is not None:  # whole or nothing: what was there still is
                    self._digests[skill.slug] = before
                if isinstance(error, OSError):
                    raise SkillUnreadableError(f"{skill.path} changed while it was read: {error}") from error
                raise
            self._digests[skill.slug] = folder.digest
            self._sources[skill.slug] = skill.path
            self._manifests[skill.slug] = folder.manifest()
            self._notes = [*self._notes, *(f"{skill.slug}: {warning}" for warning in folder.warnings)]

    async def _skill(self, name: str | os.PathLike[str] | None) -> str | None:
        """The slug of the skill that a run names, staged if it was not."""
        if name is None:
            return None
        if isinstance(name, str) and name in self._digests:
            return name
        skill = self._repository.find(name if isinstance(name, str) else Path(name))
        if skill.slug not in self._digests or self._sources.get(skill.slug) != skill.path:
            await self._stage(skill)
        return skill.slug

    def _shipped(self, path: bytes) -> str | None:
        parts = path.split(b"/", 3)
        if len(parts) != 4 or parts[1] != b"skills":
            return None
        return self._manifests.get(os.fsdecode(parts[2]), {}).get(parts[3])

    # -- files --

    async def put(self, dest: str, source: Source) -> None:
        """Write a file or a folder into the workspace.

        `source`: bytes, text (UTF-8), or the Path of a file or folder on the host. `dest` is relative to
        `/workspace`; one that ends in `/` keeps the source's own name. BadPathError.
        """
        channel = await self._ready()
        target = layout.absolute(dest)
        if dest.endswith("/"):
            if not isinstance(source, os.PathLike):
                raise BadPathError(f"{dest!r} names a folder: bytes and text need the name of a file")
            target += "/" + _own_name(source)
        base, name = _split(target)
        if isinstance(source, os.PathLike):
            pieces = self._path_records(Path(source), name)
        elif isinstance(source, str):
            try:
                pieces = staging.bytes_records(name, source.encode())
            except UnicodeEncodeError:
                raise BadRequestError(
                    f"the text for {dest!r} holds lone surrogates, which are no characters",
                    hint="Give bytes, such as os.fsencode(text).",
                ) from None
        else:
            pieces = staging.bytes_records(name, bytes(source))
        try:
            await channel.put_files(base, pieces)
        except OSError as error:
            raise BadPathError(f"cannot read {error.filename or source!r}: {error.strerror}") from error

    def _path_records(self, source: Path, name: bytes) -> Iterator[bytes]:
        if source.is_dir():
            folder = self._stager.inputs(source, most_bytes=self.limits.disk)
            self._notes = [*self._notes, *folder.warnings]
            renamed = staging.Folder([_below(name, item) for item in folder.items])
            if any(item.name.count(b"/") > 63 or len(item.name) > 4000 for item in renamed.items):
                raise BadPathError(f"{source} is too deep to be put at {os.fsdecode(name)!r}")
            return itertools.chain([records.pack_record(records.FOLDER, name, 0o755)], renamed.records())
        real = source.resolve()
        if not real.is_file():
            raise BadPathError(f"cannot put {str(source)!r}: there is no such file or folder on this machine")
        mode = 0o755 if os.access(real, os.X_OK) else 0o644
        return staging.file_records(name, real, mode)

    async def read(self, path: str) -> bytes:
        """The bytes of one file of the workspace. BadPathError."""
        channel = await self._ready()
        pieces: list[bytes] = []
        await outputs.read_whole(channel, path, most_bytes=self._most_bytes, take=pieces.append)
        return b"".join(pieces)

    async def remove(self, path: str) -> None:
        """Remove a file or a folder with all it holds; a missing one is no error.

        A folder that every session has (`out`, `work`, `inputs`, `runs`) is emptied.
        """
        channel = await self._ready()
        base, name = _split(layout.absolute(path))
        await channel.remove_files([base + b"/" + name])
        if base == layout.WORKSPACE.encode() and os.fsdecode(name) in layout.FOLDERS:
            await channel.put_files(base, [records.pack_record(records.FOLDER, name, 0o755)])
            if name == b"work":
                await channel.make_links([(base + b"/work/inputs", b"../inputs")])
        elif base == layout.SKILLS.encode():
            self._digests.pop(os.fsdecode(name), None)

    async def collect(
        self,
        *patterns: str,
        skill: str | os.PathLike[str] | None = None,
        limits: OutputLimits | None = None,
    ) -> Collected[AsyncFile]:
        """The files that match the globs (default `out/**`), sorted by path. Relative ones are below
        `/workspace` and, with `skill`, below that skill. `limits_hit` and `warnings` of the list say what a
        cap cut and what was left out.
        """
        found = await self._collect(patterns or ("out/**",), await self._skill(skill), "", limits)
        return Collected(map(self._file, found.files), found.limits_hit, found.warnings)

    async def _collect(
        self, patterns: Sequence[str], skill: str | None, run_id: str, limits: OutputLimits | None
    ) -> outputs.Collection:
        if isinstance(patterns, str):
            patterns = (patterns,)
        return await outputs.collect(
            await self._ready(),
            patterns,
            limits=limits or self._settings.outputs,
            skill=skill,
            run_id=run_id,
            most_bytes=self._most_bytes,
            shipped=self._shipped,
        )

    def _file(self, file: OutputFile) -> AsyncFile:
        made = AsyncFile(**file.model_dump())
        made._session = self
        return made

    @property
    def _most_bytes(self) -> int:
        return max(self.limits.disk, self.limits.tmp)

    async def stream_file(self, file: OutputFile, take: Any) -> None:
        """Hand over the bytes of a collected file again; SandboxLostError or BadPathError if it changed."""
        channel = await self._ready()
        sha = hashlib.sha256()

        def both(data: bytes) -> None:
            sha.update(data)
            take(data)

        path = file.path if file.path.startswith("skills/") else f"{layout.WORKSPACE}/{file.path}"
        await outputs.read_whole(channel, path, most_bytes=self._most_bytes, take=both)
        if sha.hexdigest() != file.sha256:
            raise BadPathError(f"{file.path!r} changed since it was collected", hint="Collect it again.")

    async def checkpoint(self) -> str:
        """Keep all files of `/workspace` and `/skills` on the host, as the session's latest snapshot; its id.

        Only what changed since the last one is copied. `AsyncExecutor.restore` puts it into a fresh sandbox.
        """
        channel = await self._ready()
        skills = {
            slug: {
                "digest": digest,
                "files": {os.fsdecode(name): sha for name, sha in self._manifests[slug].items()},
            }
            for slug, digest in self._digests.items()
        }
        snapshot, self._taken = await self._store.take(
            channel, skills=skills, most_bytes=self._most_bytes, before=self._taken
        )
        self._store.remember(self.id, snapshot)
        self._notes = [*self._notes, *snapshot.warnings]
        return snapshot.id

    # -- runs --

    async def exec(
        self,
        command: Command,
        *,
        skill: str | os.PathLike[str] | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        outputs: Iterable[str] = (),
        output_limits: OutputLimits | None = None,
        on_output: OnOutput | None = None,
        on_output_limit: Literal["truncate", "kill"] = "truncate",
        max_output: int | None = None,
        tty: bool = False,
        grant: Grant | None = None,
    ) -> ExecResult:
        """Run a command to its end. A str is a shell line, a sequence an argument vector.

        `skill` is staged if it was not, and the run starts in its folder, else in `/workspace`. `timeout` in
        seconds, default `Settings.timeout`. `stdin` is end of file unless given. `outputs` are globs of files
        to bring back in `files`, whatever the exit status. `on_output(stream, bytes)` is called as output
        comes. `grant` is what it may call on the host (default: nothing). The result is a value also when the
        script fails, is killed or times out; BadRequestError and SkillError are for a wrong call,
        SandboxLostError for a session that was lost before it.
        """
        started = time.monotonic()
        patterns = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        limit = self._settings.max_output if max_output is None else max_output
        _check_approver(grant)
        slug, spec = await self._spec(command, skill, cwd, env, timeout, limit, tty=tty)
        if grant is not None:
            clients.equip(spec, self._bridge(spec.run_id, slug, grant))
        _check_globs(patterns, slug, spec.run_id)  # before the run, whose result a bad one would cost
        if stdin is not None:
            spec.stdin = stdin.encode() if isinstance(stdin, str) else bytes(stdin)
        spec.on_output = on_output
        spec.output_limit = limit if on_output_limit == "kill" else None
        handle = await (await self._ready()).run(spec)
        return await self._finished(handle, started, limit, patterns, slug, output_limits)

    async def _finished(
        self,
        handle: RunHandle,
        started: float,
        limit: int,
        patterns: Sequence[str],
        slug: str | None,
        output_limits: OutputLimits | None,
    ) -> ExecResult:
        """The result of a run that is waited for, with its files."""
        try:
            await self.settle(handle)
        except asyncio.CancelledError:
            handle.kill("cancelled", ABANDON_GRACE)
            raise
        result = await self.result(handle, started, limit)
        if handle.callback_error is not None:
            raise handle.callback_error
        if patterns and result.status != "lost" and self._lost is None:
            await self._bring(result, patterns, slug, handle.spec.run_id, output_limits)
        return result

    async def _bring(
        self,
        result: ExecResult,
        patterns: Sequence[str],
        slug: str | None,
        run_id: str,
        output_limits: OutputLimits | None,
    ) -> None:
        """Put the files that match into a result."""
        found = await self._collect(patterns, slug, run_id, output_limits)
        result.files = [self._file(file) for file in found.files]
        result.limits_hit.extend(found.limits_hit)
        result.warnings.extend(found.warnings)

    async def script(
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
        outputs: Iterable[str] | None = None,
        output_limits: OutputLimits | None = None,
        on_output: OnOutput | None = None,
        max_output: int | None = None,
    ) -> ScriptResult:
        """Run a skill's script: a function `run(input, ctx)`, or a program that reads its input on stdin.

        `path` is relative to the skill; its ending says the language. `input` is any JSON value, default
        `{}`; it is also in `$INPUT_JSON`. `timeout` in seconds, default `Settings.script_timeout`. `style`:
        `auto` finds it by parsing. `outputs` are globs; the default is what this run made or changed below
        `out/`. The result has `result` beside the fields of a run. BadPathError for a path that is no script,
        BadRequestError for an input that is not JSON.
        """
        started = time.monotonic()
        _check_approver(grant)
        scripts.check_path(path)
        limit = self._settings.max_output if max_output is None else max_output
        timeout = self._settings.script_timeout if timeout is None else timeout
        patterns = (outputs,) if isinstance(outputs, str) else tuple(outputs or ())
        slug, spec = await self._spec(["true"], skill, None, env, timeout, limit, tty=False)
        assert slug is not None
        _check_globs(patterns, slug, spec.run_id)
        where = f"{layout.SKILLS}/{slug}/{path}"
        try:
            content = await self.read(where)
        except BadPathError as error:
            raise BadPathError(f"Script not found: {slug}/{path}", hint=error.message) from None
        plan = scripts.plan(path, content, style)
        sha = hashlib.sha256(content).hexdigest()
        bridge = self._bridge(spec.run_id, slug, grant or Grant(), script=path, script_sha256=sha)
        spec.on_output = on_output
        extra = scripts.files(plan, input, skill=self._about(slug), run_id=spec.run_id, bridge=bridge)
        before = await self._made() if outputs is None else {}
        found = await self._finished(
            await self._launch(spec, plan, bridge, extra, where, args),
            *(started, limit, patterns, slug, output_limits),
        )
        if outputs is None and found.status != "lost" and self._lost is None:
            await self._bring_made(found, before, slug, spec.run_id, output_limits)
        return scripts.result(found, plan, bridge)

    async def execute_code(
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
        """Run a text that calls granted tools as functions; see `executor.bridge.code`.

        It begins in `/workspace`. `timeout` in seconds, default `Settings.script_timeout`; `max_code` in
        bytes. The result is as `script`'s. BadRequestError for code that is too long.
        """
        started = time.monotonic()
        _check_approver(grant)
        plan, content = code_text.plan(code, language, max_code)
        limit = self._settings.max_output if max_output is None else max_output
        timeout = self._settings.script_timeout if timeout is None else timeout
        _, spec = await self._spec(["true"], None, None, None, timeout, limit, tty=False)
        name = code_text.FILES[language]
        sha = hashlib.sha256(content).hexdigest()
        bridge = self._bridge(spec.run_id, None, grant or Grant(), script=name, script_sha256=sha)
        spec.on_output = on_output
        extra = scripts.files(plan, input, skill={}, run_id=spec.run_id, bridge=bridge)
        before = await self._made()
        found = await self._finished(
            await self._launch(spec, plan, bridge, {**extra, name: content}, name, ()),
            *(started, limit, (), None, None),
        )
        if found.status != "lost" and self._lost is None:
            await self._bring_made(found, before, None, spec.run_id, None)
        return scripts.result(found, plan, bridge)

    async def _launch(
        self,
        spec: RunSpec,
        plan: scripts.Plan,
        bridge: RunBridge,
        extra: Mapping[str, bytes],
        where: str,
        args: Sequence[str],
    ) -> RunHandle:
        """Start a script; a relative `where` is in the run's own folder."""
        folder = clients.equip(spec, bridge, extra)
        for name, value in {**scripts.variables(folder), **plan.flags}.items():
            spec.env[name.encode()] = value.encode()
        spec.argv = [os.fsencode(word) for word in plan.argv(folder, os.path.join(folder, where), args)]
        if plan.style == "cli":
            spec.stdin = extra["input.json"]
        return await (await self._ready()).run(spec)

    async def _bring_made(
        self,
        result: ExecResult,
        before: dict[str, tuple[int, int]],
        slug: str | None,
        run_id: str,
        output_limits: OutputLimits | None,
    ) -> None:
        """Put the files into a result that were made or changed below `out/`. Names are the script's."""
        most = (output_limits or self._settings.outputs).max_files + 1
        made = sorted(path for path, stamp in (await self._made()).items() if before.get(path) != stamp)
        patterns = []
        for path in made[:most]:
            pattern = re.sub(r"[*?\[\]{}\\,!$]", r"\\\g<0>", path)
            try:
                _check_globs([pattern], slug, run_id)
            except BadPathError:
                result.warnings.append(
                    f"the name of an output cannot be asked for: {text.printable_name(path)}"
                )
            else:
                patterns.append(pattern)
        if patterns:
            await self._bring(result, patterns, slug, run_id, output_limits)

    async def _made(self) -> dict[str, tuple[int, int]]:
        """Every file below `out/`: absolute path → size and time of its last change."""
        listing = await (await self._ready()).list_files([os.fsencode(layout.DIRS["OUTPUT_DIR"])])
        return {
            os.fsdecode(entry.path): (entry.size, entry.changed_ns)
            for entry in listing.entries
            if entry.kind == records.REGULAR
        }

    async def start(
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
    ) -> AsyncRun:
        """Start a command in the background with an open stdin. It lives until it ends, is killed, or the
        session closes; `timeout` None means no deadline of its own. `size` is rows and columns of the tty.
        `grant` as in `exec`; with approver `suspend` the run stands still until `resume`.
        """
        limit = self._settings.max_output if max_output is None else max_output
        slug, spec = await self._spec(command, skill, cwd, env, timeout, limit, tty=tty, endless=True)
        spec.interactive = True
        spec.on_output = on_output
        if tty:
            _check_size(*size)
            spec.pty = size
        channel = await self._ready()
        bridge = None
        if grant is not None:
            bridge = self._bridge(spec.run_id, slug, grant)
            clients.equip(spec, bridge)
        return AsyncRun(self, await channel.run(spec), slug, limit, bridge)

    def _bridge(
        self, run_id: str, slug: str | None, grant: Grant, *, script: str = "", script_sha256: str = ""
    ) -> RunBridge:
        """A run's bridge: what its grant, the session's and the skill's front matter all allow."""
        allowed = intersection(self.grant, grant)
        if slug is not None:
            narrowed = allowed.narrowed(self._allowed_tools(slug))
            if left_out := sorted(set(allowed.tools) - set(narrowed.tools)):
                note = f"the allowed-tools of {slug} leave out the granted {', '.join(left_out)}"
                self._notes = [*self._notes, note]
            allowed = narrowed
        digest = self._digests.get(slug, "") if slug is not None else ""
        subject = Subject(run_id, self.id, slug, digest, script, script_sha256)
        return RunBridge(allowed, subject, self.audit, script=bool(script))

    def _about(self, slug: str) -> dict[str, Any]:
        """What a script is told of its skill."""
        about: dict[str, Any] = {"slug": slug, "name": slug, "path": f"{layout.SKILLS}/{slug}"}
        try:
            document = self._repository.find(self._sources.get(slug) or slug).document
        except SkillError:
            return about
        return {**about, "name": document.name, "description": document.description}

    def _allowed_tools(self, slug: str) -> tuple[str, ...]:
        """What the front matter of a staged skill says; no tool at all when it cannot be read any more."""
        try:
            return self._repository.find(self._sources.get(slug) or slug).document.allowed_tools
        except SkillError:
            return ("\0",)

    async def _spec(
        self,
        command: Command,
        skill: str | os.PathLike[str] | None,
        cwd: str | None,
        env: dict[str, str] | None,
        timeout: float | None,
        limit: int,
        *,
        tty: bool,
        endless: bool = False,
    ) -> tuple[str | None, RunSpec]:
        shell = isinstance(command, str)
        argv = [os.fsencode(command)] if isinstance(command, str) else [os.fsencode(word) for word in command]
        if not argv or not argv[0].strip():
            raise BadRequestError("the command is empty")
        if any(b"\0" in word for word in argv):
            raise BadRequestError("the command holds a NUL byte, which no argument can have")
        if timeout is None and not endless:
            timeout = self._settings.timeout
        if timeout is not None and not 0 < timeout <= 7 * 86400:
            raise BadLimitError(f"timeout={timeout!r} is not between 0 and 604,800 seconds")
        if type(limit) is not int or limit < 0:
            raise BadLimitError(f"max_output={limit!r} is not a number of bytes")
        folder = layout.working_folder(cwd, None)  # a bad path is refused before anything is started
        channel_facts = (await self._ready()).sandbox.facts
        slug = await self._skill(skill)
        folder = layout.working_folder(cwd, slug)
        run_id = "run_" + secrets.token_hex(8)
        environment = layout.environment(
            self._settings.env, env or {}, run_id=run_id, skill=slug, path=channel_facts.path, tty=tty
        )
        # Short output is kept whole in one piece; of long output the two halves.
        half = limit // 2
        head, tail = (limit, limit) if limit < 4096 else (limit - half, half)
        return slug, RunSpec(
            run_id=run_id,
            argv=argv,
            shell=shell,
            cwd=os.fsencode(folder),
            env=environment,
            timeout=timeout,
            grace=self._settings.grace,
            pty=(24, 80) if tty else None,
            head=(head, head),
            tail=(tail, tail),
        )

    async def settle(self, handle: RunHandle) -> None:
        """Wait for the end of a run, be it that its sandbox is lost."""
        assert self._channel is not None
        try:
            await self._channel.wait(handle)
        except SandboxLostError:
            if self._closed:
                raise SessionClosedError(CLOSED.format(id=self.id) + " while a run was under way") from None

    def blank(self, run_id: str, status: Status) -> ExecResult:
        """A result with what is known of every run."""
        notes, self._notes = self._notes, []
        warnings = list(dict.fromkeys([*self.warnings, *notes]))
        return ExecResult(
            status=status, run_id=run_id, session_id=self.id, runtime=self.runtime, warnings=warnings
        )

    async def result(self, handle: RunHandle, started: float, limit: int) -> ExecResult:
        """How a run ended."""
        spec = handle.spec
        error = handle.report.exception() if handle.report.done() else None
        report = handle.report.result() if handle.report.done() and error is None else None
        if report is not None and report.refused:
            shown = os.fsdecode(spec.cwd)
            raise BadPathError(f"cwd {shown!r} cannot be used: {os.strerror(report.errno)}")
        result = self.blank(spec.run_id, "lost")
        result.duration_ms = int((time.monotonic() - started) * 1000)
        reported = (report.stdout, report.stderr) if report is not None else (0, 0)
        for channel, name, claimed in zip(
            (wire.STDOUT, wire.STDERR), ("stdout", "stderr"), reported, strict=True
        ):
            self._take_output(result, name, handle.output[channel], claimed, limit)
        if report is None:
            await self._fill_lost(result, error)
        else:
            _fill(result, report, handle)
        return result

    def _take_output(
        self, result: ExecResult, name: str, buffer: OutputBuffer, claimed: int, limit: int
    ) -> None:
        total = max(claimed, buffer.total)
        head, tail = bytes(buffer.head), buffer.last()
        shown, cut = text.clip(head, tail, total, limit)
        setattr(result, name, shown)
        setattr(result, name + "_bytes", total)
        setattr(result, name + "_truncated", cut)
        setattr(result, f"_{name}_raw", head + tail)
        if cut:
            result.limits_hit.append(name)

    async def _fill_lost(self, result: ExecResult, error: BaseException | None) -> None:
        if isinstance(error, ExecutorError) and not isinstance(error, SandboxLostError):
            raise error
        if self._post_mortem is None and self._sandbox is not None:
            self._post_mortem = await self._sandbox.post_mortem()
        kind, why = self._post_mortem or ("unknown", "")
        if kind == "oom":
            result.status, result.exit_code, result.signal = "oom", 137, int(signal.SIGKILL)
            result.limits_hit.append("memory")
        cause = error.message if isinstance(error, ExecutorError) else "the sandbox ended"
        result.warnings.append(f"{cause} ({why}); the session's files are gone" if why else cause)


def _fill(result: ExecResult, report: ExitReport, handle: RunHandle) -> None:
    """Status and numbers of a run that the guest reported."""
    result.signal = report.signal
    result.exit_code = 128 + report.signal if report.signal is not None else report.code
    result.killed_descendants = report.killed
    result.usage = Usage(wall_ms=report.wall_ms, cpu_ms=report.cpu_ms, max_rss_bytes=report.max_rss)
    died_of_memory = report.oom > 0 and (report.signal == signal.SIGKILL or report.code == 137)
    if report.reason is not None:
        result.status = report.reason
    elif died_of_memory:
        result.status, result.exit_code = "oom", 137
    else:
        result.status = "ok" if report.code == 0 else "error"
    if result.status == "timeout":
        result.timed_out, result.exit_code = True, 124
        result.limits_hit.append("timeout")
    if report.oom:
        result.limits_hit.append("memory")
        if result.status != "oom":
            result.warnings.append(f"the kernel killed {report.oom} of its processes for memory")
    if report.errno == 11:
        result.limits_hit.append("pids")
    if report.left:
        result.warnings.append(f"{report.left} of its processes could not be ended yet")


def sandbox_spec(session_id: str, limits: Limits, settings: Settings) -> tuple[SandboxSpec, list[str]]:
    """The order for a sandbox, and what had to be changed: memory-backed files get half of the memory."""
    notes = []
    disk, tmp, shm = limits.disk, limits.tmp, limits.shm
    wanted = disk + max(disk // 2, 1 << 20) + tmp + shm
    room = limits.memory // 2
    if wanted > room:
        share = room / wanted
        disk, tmp, shm = (max(1 << 20, int(size * share)) for size in (disk, tmp, shm))
        notes.append(
            f"disk, tmp and shm are in memory and may take half of it: with memory={limits.memory >> 20}m "
            f"they are {disk >> 20}m, {tmp >> 20}m and {shm >> 20}m"
        )
    spec = SandboxSpec(
        session_id=session_id,
        image=settings.image,
        memory=limits.memory,
        cpus=limits.cpus,
        pids=limits.pids,
        open_files=limits.open_files,
        disk=disk,
        inodes=limits.inodes,
        tmp=tmp,
        shm=shm,
        owner=owner_label(),
    )
    return spec, notes


def _check_size(rows: int, columns: int) -> None:
    if not all(type(number) is int and 1 <= number <= 10_000 for number in (rows, columns)):
        raise BadRequestError(f"{rows!r} by {columns!r} is not a size of a terminal")


def _check_approver(grant: Grant | None) -> None:
    if grant is not None and grant.approver == "suspend":
        raise BadRequestError(
            "a run that waits for its result cannot be suspended",
            hint="Use start(), whose run has `pending` and `resume`, or give the grant an async approver.",
        )


def _check_globs(patterns: Sequence[str], skill: str | None, run_id: str) -> None:
    outputs.compile_patterns(patterns, skill=skill, run_id=run_id)


def _split(target: str) -> tuple[bytes, bytes]:
    """An absolute path as one of the two roots and the rest."""
    for root in (layout.WORKSPACE, layout.SKILLS):
        if target.startswith(root + "/"):
            return root.encode(), os.fsencode(target[len(root) + 1 :])
    raise BadPathError(f"{target!r} is a folder that every session has: name a file or folder in it")


def _below(name: bytes, item: staging.Item) -> staging.Item:
    return dataclasses.replace(item, name=name + b"/" + item.name)


def _own_name(source: os.PathLike[str]) -> str:
    """Last component of a host path, also of `.` and `x/..`."""
    return os.path.basename(os.path.abspath(source))
