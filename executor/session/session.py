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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from executor import bridge as bridges  # its parts are imported by those runs that are granted something
from executor import spans
from executor.bridge.audit import AuditLog
from executor.bridge.code import MAX_CODE, Language
from executor.channel import Channel, RunHandle, RunSpec
from executor.channel.runs import OnOutput
from executor.deps.hints import hints
from executor.deps.offer import Layers
from executor.errors import (
    BadLimitError,
    BadPathError,
    BadRequestError,
    ExecutorError,
    SandboxLostError,
    SessionClosedError,
)
from executor.guest import records, wire
from executor.models import (
    ExecResult,
    FileInfo,
    Input,
    Limits,
    OutputFile,
    OutputLimits,
    StagedInput,
    Status,
    WaitingCall,
)
from executor.places import data_dir
from executor.runtimes.base import Runtime
from executor.session import request
from executor.session.box import CLOSED, Box
from executor.session.files import AsyncFile, Collected, file_info
from executor.session.inputs import Inputs
from executor.session.keeping import Keeper
from executor.session.prepare import Step, prepare
from executor.session.run import AsyncRun, RunSpans, check_size, fill, take_output
from executor.session.staged import StagedSkills
from executor.settings import Settings
from executor.skills.repository import Repository, Skill
from executor.workspace import layout, outputs, staging, text
from executor.workspace.artifacts import ArtifactStore
from executor.workspace.checkpoint import Store
from executor.workspace.snapshot import Snapshot
from executor.workspace.text import to_bytes, to_text

if TYPE_CHECKING:
    from executor.bridge import Decision, Grant, RunBridge
    from executor.bridge.scripts import Plan, ScriptResult, Style

Command = str | Sequence[str | bytes | os.PathLike[str]]
Source = bytes | bytearray | memoryview | str | os.PathLike[str]
ABANDON_GRACE = 0.5  # between TERM and KILL for a run whose caller has gone


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
        store: Store,
        snapshot: Snapshot | None = None,
        durable: bool = False,
        audit: AuditLog | None = None,
        grants: tuple[Grant | None, ...] = (),
        layers: Layers | None = None,
        stager: staging.Stager | None = None,
        warm: Iterable[str] = (),
    ) -> None:
        self.id = session_id
        self.limits = limits
        self.warm = request.warm(warm)
        """Modules of its warm interpreters."""
        self._settings = settings
        self._stager = stager if stager is not None else staging.Stager()
        skills_disk = max(limits.disk // 2, 1 << 20)
        self._skills = StagedSkills(repository, self._stager, skills_disk, layers)
        self._keeper = Keeper(
            session_id,
            store,
            self._skills,
            about={"runtime": runtime.name, "image": settings.image, "limits": limits.model_dump()},
            most_bytes=2 * (limits.disk + skills_disk),  # one content may have more than one name
            durable=durable,
            snapshot=snapshot,
            post_mortem=lambda sandbox: self._box.post_mortem(sandbox),
        )
        self._box = Box(
            session_id,
            runtime,
            settings,
            limits,
            self._fill,
            renews=durable,
            skills=() if durable or snapshot is not None else settings.pool.skills,
        )
        self._inputs = Inputs(self, settings.host_inputs)
        self._notes: list[str] = []
        self._suspended: dict[str, AsyncRun] = {}
        self.audit = audit if audit is not None else AuditLog()
        """Where the calls of granted tools are recorded."""
        bounds = [grant for grant in grants if grant is not None]
        self.grant = bridges.intersection(*bounds) if bounds else None
        """What no run of this session gets more than. None sets no such bound."""
        self.asked_grant = grants[-1] if grants else None
        self.attached: dict[str, Any] = {}
        """What callers keep with it, by a name of theirs: it goes with the session."""
        self.on_close: Any = None
        self._closing = asyncio.Lock()

    # -- life --

    @property
    def runtime(self) -> str:
        """Name of its runtime."""
        return self._box.runtime.name

    @property
    def warnings(self) -> list[str]:
        """What every result of this session is to say: limits that this machine cannot enforce."""
        return self._box.warnings

    @property
    def closed(self) -> bool:
        """`close` was called."""
        return self._box.closed

    @property
    def durable(self) -> bool:
        """It takes a checkpoint after each run, and goes on from it when its sandbox is lost."""
        return self._keeper.durable

    @property
    def lost(self) -> bool:
        """Its sandbox is gone, and its files with it; a durable one gets another at its next use."""
        return self._box.lost is not None

    async def __aenter__(self) -> AsyncSession:
        try:
            await self._ready()
        except BaseException:
            await self.close()  # nobody gets it, so nobody else will
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sandbox and everything in it. Files that were not collected are gone, but for those of the
        last checkpoint.
        """
        self._box.closed = True
        if self.on_close is not None:
            self.on_close(self)
        async with self._closing:
            try:
                await self._keeper.last(self._box.channel)
            finally:
                await self._box.close()
                await self._keeper.close()

    async def _ready(self) -> Channel:
        """The channel, with the sandbox started if this is the first use."""
        return await self._box.ready()

    async def _fill(self, channel: Channel) -> None:
        """Put into a fresh sandbox what the session goes on with, and have a warm interpreter begun."""
        await self._keeper.fill(channel)
        if self.warm:
            run_id, path = _new_run_id(), channel.sandbox.facts.path
            environment = layout.environment(self._settings.env, run_id=run_id, path=path)
            spec = RunSpec(run_id, [b"python3"], False, b"/", environment, warm=self.warm, only_warm=True)
            await channel.run(spec)  # its answer means nothing

    # -- skills --

    async def load(self, name: str | os.PathLike[str]) -> str:
        """Stage a skill at `/skills/<name>`; returns that path. `name`: in the roots, or a path to a folder.

        An unchanged skill is not touched again; a changed one is replaced as a whole. SkillNotFoundError,
        SkillUnreadableError.
        """
        skill = self._skills.find(name)
        with spans.span("skill.load", exec_id=self.id, skill=skill.slug) as span:
            await self._stage(skill)
            span.say(digest=self._skills.digests.get(skill.slug))
        return f"{layout.SKILLS}/{skill.slug}"

    @property
    def staged(self) -> dict[str, str]:
        """The skills that are staged: name → digest of the folder as it was brought."""
        return dict(self._skills.digests)

    async def _stage(self, skill: Skill) -> None:
        channel = await self._ready()
        place = {"host_path": os.fspath(skill.place), "to": f"{layout.SKILLS}/{skill.slug}"}
        with spans.span("workspace.stage.dir", exec_id=self.id, mount_used=False, **place):
            self._notes = [*self._notes, *await self._skills.stage(channel, skill)]

    async def _skill(self, name: str | os.PathLike[str] | None) -> str | None:
        """The slug of the skill that a run names, staged if it was not."""
        if name is None:
            return None
        skill = self._skills.wanted(name)
        if isinstance(skill, str):
            return skill
        await self._stage(skill)
        return skill.slug

    # -- files --

    async def put(self, dest: str, source: Source, *, executable: bool = False) -> None:
        """Write a file or a folder into the workspace.

        `source`: bytes or text (UTF-8) are the content, a `Path` is a file or folder on the host; a text
        that looks like a path is stored as it is, and the next result warns of it. `dest` is relative to
        `/workspace`; one that ends in `/` keeps the source's own name. `executable` is for bytes and text:
        what lies on the host keeps its own. BadPathError.
        """
        if _is_folder(source):
            told = spans.span("workspace.stage.dir", exec_id=self.id, host_path=str(source), to=dest)
        else:
            told = spans.span("workspace.stage.files", exec_id=self.id, to=dest, count=1)
        if layout.absolute(dest).startswith(layout.SKILLS):
            self._skills.touched()
        with told:
            await self._put(dest, source, 0o755 if executable else 0o644)
        self._keeper.changed()

    async def _put(self, dest: str, source: Source, mode: int) -> None:
        channel = await self._ready()
        target = layout.absolute(dest)
        if dest.endswith("/"):
            if not isinstance(source, os.PathLike):
                raise BadPathError(
                    f"{dest!r} names a folder: bytes and text need the name of a file",
                    hint="A file of this machine is a Path: put(dest, Path(…)).",
                )
            target += "/" + _own_name(source)
        base, name = layout.split(target)
        if isinstance(source, os.PathLike):
            pieces = self._path_records(Path(source), name)
        elif isinstance(source, str):
            if request.is_like_path(source, dest):
                note = f"{dest} holds the text {source[:200]!r}: for the file of that name give put() a Path"
                self._notes = [*self._notes, note]
            try:
                pieces = staging.bytes_records(name, source.encode(), mode)
            except UnicodeEncodeError:
                raise BadRequestError(
                    f"the text for {dest!r} holds lone surrogates, which are no characters",
                    hint="Give bytes.",
                ) from None
        else:
            pieces = staging.bytes_records(name, bytes(source), mode)
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
                raise BadPathError(f"{source} is too deep to be put at {to_text(name)!r}")
            return itertools.chain([records.pack_record(records.FOLDER, name, 0o755)], renamed.records())
        real = source.resolve()
        if not real.is_file():
            raise BadPathError(f"cannot put {str(source)!r}: there is no such file or folder on this machine")
        mode = 0o755 if os.access(real, os.X_OK) else 0o644
        return staging.file_records(name, real, mode)

    async def stage_inputs(
        self, inputs: Iterable[Input | str], *, artifacts: ArtifactStore | None = None
    ) -> list[StagedInput]:
        """Bring in what is named by reference (see `Input`), in order; where each came to.

        `artifacts`: the store, default that of this session in the data folder. BadRequestError and
        BadPathError for a bad reference, before anything is brought in.
        """
        if isinstance(inputs, Sequence) and not inputs:
            return []
        store = ArtifactStore(data_dir() / "artifacts", scope=self.id) if artifacts is None else artifacts
        staged = await self._inputs.stage(inputs, store)
        if staged:
            self._keeper.changed()
        return staged

    async def prepare(self, steps: Sequence[Step]) -> list[str]:
        """Do the steps that are not done yet: files (`PutStep`), then skills (`LoadStep`), then commands
        (`RunStep`). The warnings of optional ones; SandboxError for another one that fails.
        """
        return await prepare(self, steps)

    async def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The bytes of one file of the workspace. BadPathError; also for one with more bytes than `limit`."""
        channel = await self._ready()
        data = bytearray()
        over = False

        def take(piece: bytes) -> None:
            nonlocal over
            over = over or (limit is not None and len(data) + len(piece) > limit)
            if not over:
                data.extend(piece)

        await outputs.read_whole(channel, path, most_bytes=self._most_bytes, take=take)
        if over:
            raise BadPathError(f"{path!r} has more than {limit:,} bytes")
        return bytes(data)

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """What a folder holds, sorted by path; with `recursive` also what its folders hold. BadPathError.

        Links are listed and not followed, but for those that every session has.
        """
        root = to_bytes(layout.absolute(path))
        listing = await (await self._ready()).list_files([root], recursive=recursive)
        canonical = listing.roots.get(root)
        if not isinstance(canonical, bytes):
            raise BadPathError(f"cannot list {path!r}: {os.strerror(canonical or 2)}")
        if any(entry.path == canonical for entry in listing.entries):
            raise BadPathError(f"cannot list {path!r}: it is a file")
        found = [file_info(entry, canonical) for entry in listing.entries]
        return sorted(found, key=lambda info: to_bytes(info.path))

    async def stat(self, path: str) -> FileInfo | None:
        """What is at a path; None when nothing is. A link is told as one. BadPathError for a bad path."""
        folder, _, name = layout.absolute(path).rpartition("/")
        if not folder:
            return FileInfo(path=path, name=name, type="folder")
        root = to_bytes(folder)
        listing = await (await self._ready()).list_files([root], recursive=False)
        canonical = listing.roots.get(root)
        if not isinstance(canonical, bytes):
            return None
        wanted = canonical + b"/" + to_bytes(name)
        return next((file_info(entry, canonical) for entry in listing.entries if entry.path == wanted), None)

    async def remove(self, path: str) -> None:
        """Remove a file or a folder with all it holds; a missing one is no error.

        A folder that every session has (`out`, `work`, `inputs`, `runs`) is emptied.
        """
        channel = await self._ready()
        base, name = layout.split(layout.absolute(path))
        self._skills.touched()
        self._keeper.changed()
        await channel.remove_files([base + b"/" + name])
        if base == layout.WORKSPACE.encode() and to_text(name) in layout.FOLDERS:
            await channel.put_files(base, [records.pack_record(records.FOLDER, name, 0o755)])
            if name == b"work":
                await channel.make_links([(base + b"/work/inputs", b"../inputs")])
        elif base == layout.SKILLS.encode():
            self._skills.forget(to_text(name))

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
        channel = await self._ready()
        with spans.span("workspace.collect", exec_id=self.id, patterns=len(patterns)) as span:
            found = await outputs.collect(
                channel,
                patterns,
                limits=limits or self._settings.outputs,
                skill=skill,
                run_id=run_id,
                most_bytes=self._most_bytes,
                shipped=self._skills.shipped,
            )
            span.say(count=len(found.files))
        return found

    def _file(self, file: OutputFile, run_id: str = "") -> AsyncFile:
        made = AsyncFile(**file.model_dump())
        made._session = self
        made._on_saved = partial(self._keeper.saved, run_id, file.path)
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
        if file.sha256 and sha.hexdigest() != file.sha256:
            raise BadPathError(f"{file.path!r} changed since it was collected", hint="Collect it again.")

    async def checkpoint(self) -> str:
        """Keep all files of `/workspace` and `/skills` on the host, as the session's latest snapshot; its id.

        Only what changed since the last one is copied. `AsyncExecutor.restore` puts it into a fresh sandbox.
        """
        return (await self._keeper.checkpoint(await self._ready())).id

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
        inputs: Iterable[Input | str] = (),
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
        seconds, default `Settings.timeout`. `stdin` is end of file unless given. `inputs` are brought in
        before it (`stage_inputs`), `outputs` are globs of files to bring back in `files`, whatever the exit
        status. `on_output(stream, bytes)` is called as output comes. `grant` is what it may call on the host
        (default: nothing); with approver `suspend` the result may be `awaiting_approval`: `resume` goes on.
        The result is a value also when the script fails, is killed or times out; BadRequestError and
        SkillError are for a wrong call, SandboxLostError for a session that was lost before it.
        """
        started = time.monotonic()
        patterns = request.patterns(outputs)
        limit = self._settings.max_output if max_output is None else max_output
        slug, spec = await self._spec(command, skill, cwd, env, timeout, limit, tty=tty)
        bridge = None
        if grant is not None:
            bridge = self._bridge(spec.run_id, slug, grant)
            bridges.clients.equip(spec, bridge)
        _check_globs(patterns, slug, spec.run_id)  # before the run, whose result a bad one would cost
        await self.stage_inputs(inputs)
        if stdin is not None:
            spec.stdin = request.stdin(stdin)
        spec.on_output = on_output
        spec.output_limit = limit if on_output_limit == "kill" else None
        handle = await self._launch(spec, slug, bridge)

        async def finish(found: ExecResult) -> ExecResult:
            if handle.callback_error is not None:
                raise handle.callback_error
            if patterns and _alive(handle):
                await self._bring(found, patterns, slug, spec.run_id, output_limits)
            return found

        run = AsyncRun(self, handle, slug, limit, bridge, finish)
        run.since(started)
        return await self._waited(run)

    async def _waited(
        self, run: AsyncRun, decisions: Mapping[str, bool | Decision] | None = None
    ) -> ExecResult:
        """The result of a run that is waited for. One that waits for a decision is kept for `resume`."""
        self._suspended.pop(run.run_id, None)
        try:
            result = await run.resume(decisions or {})
        except asyncio.CancelledError:
            run.abandon(ABANDON_GRACE)
            raise
        except BadRequestError:
            if run.pending:  # what was decided is none of it
                self._suspended[run.run_id] = run
            raise
        if result.status == "awaiting_approval":
            if run._bridge is not None and run._bridge.subject.script:  # of which nothing else is known yet
                result = bridges.scripts.ScriptResult(**result.model_dump())
            self._suspended[run.run_id] = run
            result.pending = [
                WaitingCall(**{name: getattr(request, name) for name in WaitingCall.model_fields})
                for request in run.pending
            ]
        return result

    async def _script_waited(self, run: AsyncRun) -> ScriptResult:
        result = await self._waited(run)
        assert isinstance(result, bridges.scripts.ScriptResult)
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
        result.files = [self._file(file, run_id) for file in found.files]
        await self._keeper.brought(run_id, result.files)
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
        inputs: Iterable[Input | str] = (),
        outputs: Iterable[str] | None = None,
        output_limits: OutputLimits | None = None,
        on_output: OnOutput | None = None,
        max_output: int | None = None,
    ) -> ScriptResult:
        """Run a skill's script: a function `run(input, ctx)`, or a program that reads its input on stdin.

        `path` is relative to the skill; its ending says the language. `input` is any JSON value, default
        `{}`; it is also in `$INPUT_JSON`. `timeout` in seconds, default `Settings.script_timeout`. `style`:
        `auto` finds it by parsing. `inputs` as in `exec`; `outputs` are globs, the default is what this run
        made or changed below `out/`. The result has `result` beside the fields of a run. BadPathError for a
        path that is no script, BadRequestError for an input that is not JSON.
        """
        run = await self.start_script(
            *(skill, path),
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
        return await self._script_waited(run)

    async def start_script(
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
    ) -> AsyncRun:
        """Start a skill's script in the background, with the arguments of `script`. With approver `suspend`
        it stands still until `resume`. Once it has ended `wait`, `resume` and `kill` give a `ScriptResult`.
        """
        started = time.monotonic()
        bridges.scripts.check_path(path)
        limit = self._settings.max_output if max_output is None else max_output
        timeout = self._settings.script_timeout if timeout is None else timeout
        patterns = request.patterns(outputs or ())
        slug, spec = await self._spec(["true"], skill, None, env, timeout, limit, tty=False)
        assert slug is not None
        _check_globs(patterns, slug, spec.run_id)
        where = f"{layout.SKILLS}/{slug}/{path}"
        try:
            content = await self.read(where)
        except BadPathError as error:
            hint = f"{error.message}. Give its path in the skill, such as scripts/x.py."
            raise BadPathError(f"Script not found: {slug}/{path}", hint=hint) from None
        # A long one takes a while.
        plan = await asyncio.to_thread(bridges.scripts.plan, path, content, style)
        sha = hashlib.sha256(content).hexdigest()
        bridge = self._bridge(spec.run_id, slug, grant or bridges.Grant(), script=path, script_sha256=sha)
        spec.on_output = on_output
        about = self._skills.about(slug)
        extra = bridges.scripts.files(plan, input, skill=about, run_id=spec.run_id, bridge=bridge)
        await self.stage_inputs(inputs)
        before = await self._made() if outputs is None else {}
        handle = await self._launch_script(spec, plan, bridge, extra, where, args)

        async def bring(found: ExecResult) -> None:
            if outputs is None:
                await self._bring_made(found, before, slug, spec.run_id, output_limits)
            elif patterns:
                await self._bring(found, patterns, slug, spec.run_id, output_limits)

        return self._script_run(handle, plan, bridge, slug, limit, started, bring)

    def _script_run(
        self,
        handle: RunHandle,
        plan: Plan,
        bridge: RunBridge,
        slug: str | None,
        limit: int,
        started: float,
        bring: Callable[[ExecResult], Awaitable[None]],
    ) -> AsyncRun:
        """A script or code that was started. `bring` puts the files into the result it ends with."""

        async def finish(found: ExecResult) -> ScriptResult:
            if handle.callback_error is not None:
                raise handle.callback_error
            if _alive(handle):
                await bring(found)
            return bridges.scripts.result(found, plan, bridge)

        run = AsyncRun(self, handle, slug, limit, bridge, finish)
        run.since(started)
        return run

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
        plan, content = bridges.code.plan(code, language, max_code)
        limit = self._settings.max_output if max_output is None else max_output
        timeout = self._settings.script_timeout if timeout is None else timeout
        _, spec = await self._spec(["true"], None, None, None, timeout, limit, tty=False)
        name = bridges.code.FILES[language]
        sha = hashlib.sha256(content).hexdigest()
        bridge = self._bridge(spec.run_id, None, grant or bridges.Grant(), script=name, script_sha256=sha)
        spec.on_output = on_output
        extra = bridges.scripts.files(plan, input, skill={}, run_id=spec.run_id, bridge=bridge)
        before = await self._made()
        handle = await self._launch_script(spec, plan, bridge, {**extra, name: content}, name, ())

        async def bring(found: ExecResult) -> None:
            await self._bring_made(found, before, None, spec.run_id, None)

        run = self._script_run(handle, plan, bridge, None, limit, started, bring)
        return await self._script_waited(run)

    async def resume(self, run_id: str, decisions: Mapping[str, bool | Decision]) -> ExecResult:
        """Go on with a run of `exec`, `script` or `execute_code` whose result was `awaiting_approval`, and
        decide about its calls by `call_id`. Its result, in the form of that call; it may wait again.
        BadRequestError for a run or a call that does not wait.
        """
        run = self._suspended.get(run_id)
        if run is None:
            raise BadRequestError(f"no run {run_id[:80]!r} waits for a decision")
        return await self._waited(run, decisions)

    async def _launch(
        self, spec: RunSpec, slug: str | None, bridge: RunBridge | None = None, language: str | None = None
    ) -> RunHandle:
        """Start a run. What it may call on the host is a span around it."""
        told = RunSpans(self.id, spec, slug, bridge, language)
        self._skills.touched()
        try:
            if self.durable:
                kind = ("script" if slug else "code") if language else "shell" if spec.shell else "argv"
                kind = f"background {kind}" if spec.interactive else kind
                await self._keeper.before(await self._ready(), spec.run_id, slug, kind)
            handle = await (await self._box.to_run()).run(spec)
        except BaseException as error:
            told.failed(error)
            if self.durable:
                await self._keeper.not_begun(spec.run_id)
            raise
        if told.heard:
            handle.report.add_done_callback(told.ended)
        if self.durable:
            self._keeper.begun(handle)
        return handle

    async def _launch_script(
        self,
        spec: RunSpec,
        plan: Plan,
        bridge: RunBridge,
        extra: Mapping[str, bytes],
        where: str,
        args: Sequence[str],
    ) -> RunHandle:
        """Start a script; a relative `where` is in the run's own folder."""
        folder = bridges.clients.equip(spec, bridge, extra)
        for name, value in {**bridges.scripts.variables(folder), **plan.flags}.items():
            spec.env[name.encode()] = value.encode()
        words = plan.argv(folder, os.path.join(folder, where), args)
        spec.argv = [request.argument(word, "an argument") for word in words]
        if plan.style == "cli":
            spec.stdin = extra["input.json"]
        return await self._launch(spec, bridge.subject.skill, bridge, plan.language)

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
        listing = await (await self._ready()).list_files([to_bytes(layout.DIRS["OUTPUT_DIR"])])
        return {
            to_text(entry.path): (entry.size, entry.changed_ns)
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
            check_size(*size)
            spec.pty = size
        bridge = None
        if grant is not None:
            bridge = self._bridge(spec.run_id, slug, grant)
            bridges.clients.equip(spec, bridge)
        return AsyncRun(self, await self._launch(spec, slug, bridge), slug, limit, bridge)

    def _bridge(
        self, run_id: str, slug: str | None, grant: Grant, *, script: str = "", script_sha256: str = ""
    ) -> RunBridge:
        """A run's bridge: what its grant, the session's and the skill's front matter all allow."""
        allowed = bridges.intersection(self.grant, grant)
        if grant.network is not None and allowed.network is None:
            self._notes = [
                *self._notes,
                "the session's grant leaves out the network that the run was granted",
            ]
        if slug is not None:
            narrowed = allowed.narrowed(self._skills.allowed_tools(slug))
            if left_out := sorted(set(allowed.tools) - set(narrowed.tools)):
                note = f"the allowed-tools of {slug} leave out the granted {', '.join(left_out)}"
                self._notes = [*self._notes, note]
            allowed = narrowed
        digest = self._skills.digests.get(slug, "") if slug is not None else ""
        subject = bridges.Subject(run_id, self.id, slug, digest, script, script_sha256)
        bridge = bridges.RunBridge(allowed, subject, self.audit, script=bool(script))
        folder = f"{layout.WORKSPACE}/runs/{run_id}"
        limits = allowed.limits
        bridge.values = bridges.Values(self._pull, self._push, folder, limits.file, limits.files)
        return bridge

    async def _pull(self, path: str, most: int, take: Callable[[bytes], None]) -> None:
        """Stream a file out of the sandbox, for a call."""
        await outputs.read_whole(await self._ready(), path, most_bytes=most, take=take)

    async def _push(self, path: str, content: bytes | Path) -> None:
        """Write a file into the sandbox, for a call."""
        await self._put(path, content, 0o644)

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
        argv = request.words(command)
        if timeout is None and not endless:
            timeout = self._settings.timeout
        if timeout is not None:
            timeout = request.timeout(timeout)
        if type(limit) is not int or limit < 0:
            raise BadLimitError(f"max_output={limit!r} is not a number of bytes")
        folder = layout.working_folder(cwd, None)  # a bad path is refused before anything is started
        channel_facts = (await self._ready()).sandbox.facts
        slug = await self._skill(skill)
        folder = layout.working_folder(cwd, slug)
        run_id = _new_run_id()
        environment = layout.environment(
            self._skills.environment(slug, layout.search_path(channel_facts.path)),
            self._settings.env,
            self._settings.skill_env.get(slug, {}) if slug is not None else {},
            env or {},
            run_id=run_id,
            skill=slug,
            path=channel_facts.path,
            tty=tty,
        )
        # Short output is kept whole in one piece; of long output the two halves.
        half = limit // 2
        head, tail = (limit, limit) if limit < 4096 else (limit - half, half)
        return slug, RunSpec(
            run_id=run_id,
            argv=argv,
            shell=shell,
            cwd=to_bytes(folder),
            env=environment,
            timeout=timeout,
            grace=self._settings.grace,
            pty=(24, 80) if tty else None,
            head=(head, head),
            tail=(tail, tail),
            warm=() if shell or tty else self.warm,
        )

    async def settle(self, handle: RunHandle) -> None:
        """Wait for the end of a run, be it that its sandbox is lost."""
        try:
            await handle.channel.wait(handle)
        except (SandboxLostError, SessionClosedError):
            if self.closed:
                raise SessionClosedError(CLOSED.format(id=self.id) + " while a run was under way") from None
        if handle.spec.door is not None:
            await handle.spec.door.bridge.settled()

    def blank(self, run_id: str, status: Status) -> ExecResult:
        """A result with what is known of every run."""
        notes, self._notes, self._keeper.notes = [*self._keeper.notes, *self._notes], [], []
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
            shown = to_text(spec.cwd)
            raise BadPathError(f"cwd {shown!r} cannot be used: {os.strerror(report.errno)}")
        kept = await self._keeper.after(handle) if self.durable else []
        result = self.blank(spec.run_id, "lost")
        result.warnings += kept
        if spec.door is not None:
            result.warnings += spec.door.bridge.warnings
        result.duration_ms = int((time.monotonic() - started) * 1000)
        reported = (report.stdout, report.stderr) if report is not None else (0, 0)
        for channel, name, claimed in zip(
            (wire.STDOUT, wire.STDERR), ("stdout", "stderr"), reported, strict=True
        ):
            take_output(result, name, handle.output[channel], claimed, limit)
        if report is None:
            await self._fill_lost(result, handle, error)
        else:
            fill(result, report)
            if result.status == "error":
                result.warnings += await self._hints(result, to_text(spec.env.get(b"SKILL_NAME", b"")))
        return result

    async def _hints(self, result: ExecResult, slug: str) -> list[str]:
        """What to do about what the output of a failed run says is missing."""
        streams = result.kept("stdout"), result.kept("stderr")
        if not slug:
            return hints(*streams)
        found = hints(*streams, self._skills.words(slug))
        if not found:  # most failures: its files are not looked at
            return []
        unlocked = await asyncio.to_thread(self._skills.unlocked, slug)
        return hints(*streams, self._skills.words(slug), unlocked=unlocked)

    async def _fill_lost(self, result: ExecResult, handle: RunHandle, error: BaseException | None) -> None:
        if isinstance(error, ExecutorError) and not isinstance(error, SandboxLostError):
            raise error
        kind, why = await self._box.post_mortem(handle.channel.sandbox)
        if kind == "oom":
            result.status, result.exit_code, result.signal = "oom", 137, int(signal.SIGKILL)
            result.limits_hit.append("memory")
        cause = error.message if isinstance(error, ExecutorError) else "the sandbox ended"
        cause = f"{cause} ({why})" if why else cause
        if self.durable:
            result.warnings.append(f"{cause}; the run may have begun, and is not repeated")
            result.warnings.append(f"the session is not lost: {self._keeper.goes_on}")
        else:
            result.warnings.append(f"{cause}; the session's files are gone" if why else cause)


def _new_run_id() -> str:
    return "run_" + secrets.token_hex(8)


def _alive(handle: RunHandle) -> bool:
    """Whether the sandbox of a run is still there."""
    return handle.channel.broken is None


def _check_globs(patterns: Sequence[str], skill: str | None, run_id: str) -> None:
    outputs.compile_patterns(patterns, skill=skill, run_id=run_id)


def _below(name: bytes, item: staging.Item) -> staging.Item:
    return dataclasses.replace(item, name=name + b"/" + item.name)


def _is_folder(source: Source) -> bool:
    return isinstance(source, os.PathLike) and os.path.isdir(source)


def _own_name(source: os.PathLike[str]) -> str:
    """Last component of a host path, also of `.` and `x/..`."""
    return os.path.basename(os.path.abspath(source))
