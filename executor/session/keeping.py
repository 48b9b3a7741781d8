"""What of a session outlives its sandbox: checkpoints, the record of its runs, and going on after a loss.

Rules of this module:
1. A run of a durable session is recorded before it is asked for, and is never asked for a second time.
2. A run's result waits for the checkpoint after it; a checkpoint that fails is a warning and costs no result.
3. Checkpoints take turns. One that begins after several runs have ended is the checkpoint of them all.
4. A session that is not durable is recorded only once it takes a checkpoint, and its runs never are.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from executor.channel import Channel, RunHandle
from executor.errors import ExecutorError
from executor.models import ExecResult, OutputFile
from executor.runtimes.base import Sandbox
from executor.session.run import fill
from executor.session.staged import StagedSkills
from executor.workspace.checkpoint import Store, Taken
from executor.workspace.objects import to_its_end
from executor.workspace.snapshot import Snapshot

if TYPE_CHECKING:
    from executor.state import KeptRun, Sessions


class Keeper:
    """Keeps one session. `about`: what its record says of it; `snapshot`: what it begins with.

    `most_bytes`: of all its files together. `post_mortem`: how a sandbox of the session died.
    """

    def __init__(
        self,
        session_id: str,
        store: Store,
        skills: StagedSkills,
        *,
        about: Mapping[str, Any],
        most_bytes: int,
        durable: bool,
        snapshot: Snapshot | None,
        post_mortem: Callable[[Sandbox], Awaitable[tuple[str, str]]],
    ) -> None:
        self.id = session_id
        self.durable = durable
        self.notes: list[str] = []
        """What the next result is to say."""
        self._post_mortem = post_mortem
        self._store = store
        self._skills = skills
        self._about = about
        self._most_bytes = most_bytes
        self._snapshot = snapshot
        self._saved = 0.0
        self._taken: Taken | None = None
        self._told: set[str] = set()
        self._owner = ""
        self._claimed = False
        self._filled = False
        self._closing = False
        self._turn = asyncio.Lock()
        self._asked = 0
        self._done = 0
        self._put = 0
        self._ends: weakref.WeakKeyDictionary[RunHandle, asyncio.Task[list[str]]] = (
            weakref.WeakKeyDictionary()
        )
        self._live: set[RunHandle] = set()
        self._working: set[asyncio.Task[list[str]]] = set()

    # -- a fresh sandbox --

    async def fill(self, channel: Channel) -> None:
        """Put into a fresh sandbox what the session begins or goes on with."""
        if self.durable and not self._claimed:
            await self._claim()
        if self._snapshot is not None:
            self._taken = await self._store.restore(channel, self._snapshot)
        else:
            self._taken = None
        kept = self._snapshot.skills if self._snapshot is not None else {}
        if not self._filled:
            self._skills.restore(kept)
            if channel.sandbox.ahead:
                self._skills.adopt(channel.sandbox.ahead.skills)
        else:
            self.notes += await self._skills.renew(channel, kept)
            self.notes.append(f"the session's sandbox was lost; {self.goes_on}")
        self._filled = True

    @property
    def goes_on(self) -> str:
        """From what a lost session goes on."""
        if self._snapshot is None:
            return "it goes on without files, because no checkpoint had been taken"
        return _from(self._saved)

    async def _claim(self) -> None:
        """Make the session this object's own. BadRequestError when somebody else has it open."""
        from executor.state import Sessions  # with SQLite, which a session that is not kept does not need

        # Named before it is claimed: should this be cancelled, `close` lets go of it.
        self._owner = self._owner or Sessions.new_owner()
        before, interrupted = await to_its_end(
            lambda: self._store.sessions.claim(self.id, self._owner, durable=self.durable, **self._about)
        )
        self.notes += self._store.sessions.database.warnings
        self.notes += [_interrupted(run) for run in interrupted]
        if before is not None and before.snapshot:
            self._saved = before.saved
            if before.owner not in ("", self._owner):
                self.notes.append(f"the process that had the session open has ended; {_from(before.saved)}")
            if self.durable and self._snapshot is None:
                self._snapshot = await to_its_end(lambda: self._store.load(before.snapshot))
        self._claimed = True

    # -- checkpoints --

    def changed(self) -> None:
        """The caller put or removed something: it is kept before the next run may lose it."""
        self._put += 1

    async def checkpoint(self, channel: Channel) -> Snapshot:
        """Take one that holds everything that was there when this was called."""
        self._asked += 1
        mine = self._asked
        async with self._turn:
            if self._done < mine or self._snapshot is None:
                covered, put = self._asked, self._put
                await self._take(channel)
                self._done, self._put = covered, self._put - put
            assert self._snapshot is not None
            return self._snapshot

    async def _take(self, channel: Channel) -> None:
        if not self._claimed:
            await self._claim()
        taking = self._store.taking(
            channel, skills=self._skills.record(), most_bytes=self._most_bytes, before=self._taken
        )
        async with taking as (snapshot, taken):
            self._saved = await to_its_end(
                lambda: self._store.sessions.keep(
                    self.id,
                    self._owner,
                    snapshot=snapshot.id,
                    files=snapshot.files,
                    size=snapshot.size,
                    skills=snapshot.skills,
                )
            )
        self._taken, self._snapshot = taken, snapshot
        told, self._told = self._told, set(snapshot.warnings)
        self.notes += [warning for warning in snapshot.warnings if warning not in told]

    async def _save(self, channel: Channel, when: str) -> list[str]:
        """A checkpoint of which only a warning is left when it fails, in whatever way."""
        try:
            await self.checkpoint(channel)
        except Exception as error:
            why = error.message if isinstance(error, ExecutorError) else repr(error)
            return [f"no checkpoint was taken {when}: {why}"]
        return []

    # -- runs --

    async def before(self, channel: Channel, run_id: str, skill: str | None, kind: str) -> None:
        """A run is about to be asked for: it is recorded, with what was put for it."""
        if self._put:
            self.notes += await self._save(channel, "before this run")
        await self._record(
            lambda sessions: sessions.begin_run(
                self.id, self._owner, run_id=run_id, skill=skill or "", kind=kind
            )
        )

    async def not_begun(self, run_id: str) -> None:
        """It could not be asked for."""
        await self._record(lambda sessions: sessions.end_run(run_id, status="error", exit_code=None, size=0))

    def begun(self, handle: RunHandle) -> None:
        """It was asked for: its end is awaited, whoever else waits for it."""
        self._live.add(handle)
        handle.report.add_done_callback(lambda _report: self._end_of(handle))

    async def after(self, handle: RunHandle) -> list[str]:
        """What is to be said of a run that ended, once it has been kept."""
        return await asyncio.shield(self._end_of(handle))

    def _end_of(self, handle: RunHandle) -> asyncio.Task[list[str]]:
        task = self._ends.get(handle)
        if task is None:
            self._live.discard(handle)
            self._ends[handle] = task = asyncio.get_running_loop().create_task(self._end(handle))
            self._working.add(task)
            task.add_done_callback(self._working.discard)
        return task

    async def _end(self, handle: RunHandle) -> list[str]:
        result = ExecResult(status="cancelled" if self._closing else "lost")
        warnings: list[str] = []
        if handle.report.exception() is None:
            fill(result, handle.report.result())
            if handle.channel.broken is None:
                warnings = await self._save(handle.channel, "after this run")
        elif not self._closing and (await self._post_mortem(handle.channel.sandbox))[0] == "oom":
            result.status, result.exit_code = "oom", 137
        size = sum(buffer.total for buffer in handle.output.values())
        await self._record(
            lambda sessions: sessions.end_run(
                handle.spec.run_id, status=result.status, exit_code=result.exit_code, size=size
            )
        )
        return warnings

    async def brought(self, run_id: str, files: Iterable[OutputFile]) -> None:
        """A run's result has files."""
        if self.durable:
            outputs = [(file.path, file.size, file.mime, file.sha256) for file in files]
            await self._record(lambda sessions: sessions.add_outputs(run_id, outputs))

    async def saved(self, run_id: str, path: str, where: str) -> None:
        """A file of a run's result was saved on this machine."""
        if self.durable and run_id:
            await self._record(lambda sessions: sessions.saved(run_id, path, where))

    async def _record(self, write: Callable[[Sessions], None]) -> None:
        """Write to the record. What cannot be written is said once, and nothing else comes of it."""
        try:
            await to_its_end(lambda: write(self._store.sessions))
        except ExecutorError as error:
            if error.message not in self._told:
                self._told.add(error.message)
                self.notes.append(error.message)

    # -- the end --

    async def last(self, channel: Channel | None) -> None:
        """The session is about to be closed: keep what no run's end has kept."""
        self._closing = True
        alive = channel is not None and channel.broken is None
        if self.durable and alive and (self._put or self._live):
            assert channel is not None
            await self._save(channel, "at the end")

    async def close(self) -> None:
        """Let go of the session."""
        if self._working:
            await asyncio.wait(self._working)
        owner, self._owner = self._owner, ""
        if owner:
            with contextlib.suppress(ExecutorError):
                await to_its_end(lambda: self._store.sessions.release(self.id, owner))


def _from(when: float) -> str:
    return f"it goes on with the files of its checkpoint of {_clock(when)}"


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


def _interrupted(run: KeptRun) -> str:
    what = f" of {run.skill}" if run.skill else ""
    return (
        f"run {run.id}{what} was under way at {_clock(run.begun)} when its process ended: it may have begun,"
        " and is not repeated"
    )
