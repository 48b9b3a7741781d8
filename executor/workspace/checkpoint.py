"""Checkpoints: a session's files as one snapshot on the host, and from there into a sandbox of any runtime.

Only what changed since the last checkpoint is copied. Contents and snapshots are kept as `objects` says, and
which snapshot is a session's latest as `executor.state` says. A checkpoint is in force when both have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from executor.channel import Channel
from executor.errors import PlatformError, SandboxError, StateError
from executor.guest import records
from executor.workspace import layout
from executor.workspace.objects import Objects, to_its_end
from executor.workspace.snapshot import DamagedError, Saved, Snapshot, parse

if TYPE_CHECKING:
    from executor.state import KeptSession, Sessions

# What every sandbox makes by itself.
OWN = (*layout.WORKSPACE_LINKS, b"/workspace/runs")
FOLDERS = (b"/workspace/inputs", b"/workspace/work", b"/workspace/out")
KINDS = {records.REGULAR: "file", records.FOLDER: "folder", records.LINK: "link"}
# Kernels tell times by a tick of at most 10 ms: what is read so long after its time was seen cannot change
# later and keep that time.
TICK = 0.012
LONGEST = 4096  # bytes of where a link leads
DUE = 256  # snapshots that newer ones replaced, after which what they held is cleared away
ROOTS = (layout.WORKSPACE.encode(), layout.SKILLS.encode())

Stamp = tuple[int, int, int, int]  # kind, size, mode, time of the last change of anything


@dataclass
class Taken:
    """What the last snapshot of a live sandbox held, by what its files looked like then."""

    entries: dict[bytes, tuple[Stamp, Saved]]
    folders: dict[bytes, int]
    """Path → mode."""
    snapshot: Snapshot


class Store:
    """Checkpoints in a folder of the host that only its owner can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = Objects(folder)
        self._sessions: Sessions | None = None
        self._opening = threading.Lock()

    @property
    def sessions(self) -> Sessions:
        """Whose the snapshots are. StateError when the database cannot be used."""
        with self._opening:
            if self._sessions is None:
                # Here, with SQLite: a session that is not kept needs none.
                from executor.state import FILE, Database, Sessions

                self._sessions = Sessions(Database(self.folder / FILE))
            return self._sessions

    def close(self) -> None:
        """Close the database."""
        if self._sessions is not None:
            self._sessions.database.close()
            self._sessions = None

    # -- taking --

    @contextlib.asynccontextmanager
    async def taking(
        self, channel: Channel, *, skills: dict[str, Any], most_bytes: int, before: Taken | None
    ) -> AsyncIterator[tuple[Snapshot, Taken]]:
        """Copy what changed since `before`, and make a snapshot of all of it.

        `most_bytes`: of all files together. It is safe from being cleared away while the block runs, which
        has to make it some session's latest. SandboxError when the sandbox cannot give it, StateError when
        the host cannot keep it.
        """
        async with self.objects.shared():
            try:
                yield await self._take(channel, skills, most_bytes, before)
            except OSError as error:
                raise self.objects.failed(error) from error

    async def _take(
        self, channel: Channel, skills: dict[str, Any], most_bytes: int, before: Taken | None
    ) -> tuple[Snapshot, Taken]:
        if before is not None and not self.objects.manifest(before.snapshot.id).exists():
            before = None  # it was cleared away, and its contents may have been
        snapshot = Snapshot([], skills)
        taken = Taken({}, {}, snapshot)
        wanted = await self._look(channel, taken, before)
        if before is not None and not wanted and _same(taken, before):
            before.snapshot.warnings = snapshot.warnings
            return before.snapshot, before
        if sum(stamp[1] for stamp, _ in taken.entries.values()) > most_bytes:
            raise _too_much(most_bytes)
        parts: dict[str, Path] = {}
        try:
            if wanted:
                await asyncio.sleep(TICK)
                await self._fetch(channel, wanted, taken, most_bytes, parts)
            snapshot.entries = [saved for _, saved in taken.entries.values()]
            snapshot.entries += [Saved(path, "folder", mode) for path, mode in taken.folders.items()]
            try:
                data = await asyncio.to_thread(snapshot.sealed)
            except DamagedError as error:
                raise SandboxError(
                    f"no checkpoint was taken: the listing of its files is false: {error}"
                ) from None
            await to_its_end(lambda: self.objects.add(parts, (snapshot.id, data)))
        finally:
            for part in parts.values():
                part.unlink(missing_ok=True)
        return snapshot, taken

    async def _look(self, channel: Channel, taken: Taken, before: Taken | None) -> list[bytes]:
        """List the files; those whose content has to be fetched."""
        listing = await channel.list_files(list(ROOTS), unlock=True)
        for root in ROOTS:
            found = listing.roots.get(root)
            if not isinstance(found, bytes):
                raise SandboxError(
                    f"no checkpoint was taken: {root.decode()} cannot be listed: {os.strerror(found or 5)}"
                )
        known = before.entries if before is not None else {}
        warnings = taken.snapshot.warnings
        wanted: list[bytes] = []
        for entry in listing.entries:
            if _left_out(entry.path):
                continue
            kind = KINDS.get(entry.kind)
            if kind is None:  # after a folder's own record: it could not be opened
                if entry.path in taken.folders:
                    what = "cannot be read: what is in it is"
                else:
                    what = "is no file, folder or link:"
                warnings.append(f"{layout.shown(entry.path)} {what} left out")
                continue
            if entry.path in taken.entries or entry.path in taken.folders:
                raise SandboxError(
                    f"no checkpoint was taken: {layout.shown(entry.path)} is listed twice",
                    hint="A script may have taken over the sandbox: end the session.",
                )
            if entry.path in FOLDERS and entry.kind == records.REGULAR:
                warnings.append(f"{layout.shown(entry.path)} is no folder any more: left out")
                continue
            if kind == "folder":
                taken.folders[entry.path] = entry.mode
            else:
                stamp = (entry.kind, entry.size, entry.mode, entry.changed_ns)
                old = known.get(entry.path)
                if old is not None and old[0] == stamp:
                    taken.entries[entry.path] = old
                else:
                    wanted.append(entry.path)
                    taken.entries[entry.path] = (stamp, Saved(entry.path, kind, entry.mode))
        return wanted

    async def _fetch(
        self,
        channel: Channel,
        paths: list[bytes],
        taken: Taken,
        most_bytes: int,
        parts: dict[str, Path],
    ) -> None:
        """The contents into parts, by hash. Sizes in the listing were only claims: bytes are counted."""
        warnings = taken.snapshot.warnings
        current: list[_Incoming] = []
        left = most_bytes

        def begin(name: bytes, record: records.Record | int) -> None:
            if isinstance(record, int):
                warnings.append(f"{layout.shown(name)} could not be read: {os.strerror(record)}")
                del taken.entries[name]
            else:
                current.append(_Incoming(self.objects, name, record))

        def chunk(data: bytes) -> None:
            nonlocal left
            left -= len(data)
            if left < 0:
                raise _too_much(most_bytes)
            current[-1].add(data)

        def end(error: int) -> None:
            incoming = current.pop()
            stamp, listed = taken.entries[incoming.name]
            if error:
                incoming.drop()
                warnings.append(f"{layout.shown(incoming.name)} could not be read: {os.strerror(error)}")
                del taken.entries[incoming.name]
            else:
                taken.entries[incoming.name] = (stamp, incoming.finish(listed, parts))

        try:
            await channel.get_files(
                paths, limit=most_bytes, begin=begin, chunk=chunk, end=end, links=True, unlock=True
            )
        finally:
            for incoming in current:
                incoming.drop()

    # -- giving back --

    async def restore(self, channel: Channel, snapshot: Snapshot) -> Taken:
        """Put a snapshot's files into a fresh sandbox in which nothing has run; what the next checkpoint may
        rely on. StateError when a content is damaged.
        """
        async with self.objects.shared():
            for root in ROOTS:
                below = [entry for entry in snapshot.entries if entry.path.startswith(root + b"/")]
                if below:
                    await channel.put_files(root, self._records(below, len(root) + 1))
        await asyncio.sleep(TICK)
        saved = {entry.path: entry for entry in snapshot.entries if entry.kind != "folder"}
        taken = Taken({}, {}, snapshot)
        for entry in (await channel.list_files(list(ROOTS), unlock=True)).entries:
            old = saved.get(entry.path)
            if old is not None and (KINDS.get(entry.kind), entry.size) == (old.kind, old.size):
                taken.entries[entry.path] = ((entry.kind, entry.size, entry.mode, entry.changed_ns), old)
            elif entry.kind == records.FOLDER and not _left_out(entry.path):
                taken.folders[entry.path] = entry.mode
        return taken

    def _records(self, entries: list[Saved], skip: int) -> Iterator[bytes]:
        for entry in entries:
            name = entry.path[skip:]
            if entry.kind == "folder":
                yield records.pack_record(records.FOLDER, name, entry.mode)
            elif entry.kind == "link":
                yield records.pack_record(records.LINK, name, 0o777, len(entry.target), 0, True)
                yield records.pack_chunk(entry.target) + records.pack_end()
            else:
                yield records.pack_record(records.REGULAR, name, entry.mode, entry.size, entry.mtime_ns, True)
                yield from map(records.pack_chunk, self.objects.read(entry.sha256))
                yield records.pack_end()

    # -- snapshots by name --

    def latest(self, session: str) -> Snapshot | None:
        """The latest snapshot of a session, None when there is none. StateError when it is damaged."""
        from executor.state import FILE

        if not (self.folder / FILE).exists():
            return None
        found = self.sessions.get(session)
        return self.load(found.snapshot) if found is not None and found.snapshot else None

    def load(self, snapshot_id: str) -> Snapshot:
        """A snapshot by its id. StateError when it is not there or not what its name says."""
        path = self.objects.manifest(snapshot_id)
        try:
            return parse(path.read_bytes(), snapshot_id)
        except OSError as error:
            raise StateError(f"there is no snapshot {snapshot_id!r} in {self.folder}") from error
        except DamagedError as error:
            raise StateError(f"{path} is damaged: {error}") from None

    def verify(self, session: KeptSession) -> Snapshot:
        """A session's latest snapshot with every content looked through. StateError when one is damaged."""
        snapshot = self.load(session.snapshot)
        for sha256 in {entry.sha256 for entry in snapshot.entries if entry.sha256}:
            for _piece in self.objects.read(sha256):
                pass
        return snapshot

    def clear(self, patience: float = 10.0) -> tuple[int, int, int]:
        """Remove what no session refers to: (snapshots, contents, bytes). StateError when others are at work,
        or when something is damaged that may still be wanted.
        """
        database = self.sessions.database
        with self.objects.held(alone=True, patience=patience):
            if database.set_aside:
                raise StateError(
                    f"nothing was cleared away: {database.set_aside[0]} may know of sessions here",
                    hint="Remove that file when nothing of it is wanted any more.",
                )
            referred = self.sessions.snapshots()
            contents: set[str] = set()
            for snapshot, session in referred.items():
                try:
                    contents |= {entry.sha256 for entry in self.load(snapshot).entries}
                except StateError as error:
                    raise StateError(
                        f"nothing was cleared away: {error.message}",
                        hint=f"executor sessions rm {session} gives up what is left of that session.",
                    ) from None
            database.to_disk()  # before what an older state of it refers to goes
            cleared = self.objects.clear(referred, contents)
            self.sessions.cleared()
        return cleared

    def clear_if_due(self) -> None:
        """The same now and then, when nobody is at work; what stands in its way is met the next time."""
        with contextlib.suppress(StateError, PlatformError, OSError):
            if self._sessions is not None and self.sessions.garbage() >= DUE:
                self.clear(patience=0)


class _Incoming:
    """One file on its way into the store."""

    def __init__(self, objects: Objects, name: bytes, record: records.Record) -> None:
        self.name = name
        self.record = record
        self.sha = hashlib.sha256()
        self.size = 0
        self.target = bytearray()
        self.part: Path | None = None
        self.file: IO[bytes] | None = None
        if record.kind != records.LINK:
            self.part, self.file = objects.part()

    def add(self, data: bytes) -> None:
        if self.file is None:
            self.target += data
            if len(self.target) > LONGEST:
                raise SandboxError(f"no checkpoint was taken: {layout.shown(self.name)} is no link")
        else:
            self.sha.update(data)
            self.size += len(data)
            self.file.write(data)

    def finish(self, listed: Saved, parts: dict[str, Path]) -> Saved:
        if self.file is None or self.part is None:
            return Saved(self.name, "link", 0o777, target=bytes(self.target))
        self.file.close()
        digest = self.sha.hexdigest()
        if digest in parts:
            self.part.unlink()
        else:
            parts[digest] = self.part
        mtime = min(self.record.mtime_ns, records.LATEST)
        return Saved(self.name, "file", listed.mode, self.size, mtime, digest)

    def drop(self) -> None:
        if self.file is not None and self.part is not None:
            with contextlib.suppress(OSError):
                self.file.close()
            with contextlib.suppress(OSError):
                self.part.unlink()


def _same(taken: Taken, before: Taken) -> bool:
    """Whether nothing is new and nothing is gone. (A change of what is there was seen before.)"""
    return (
        taken.entries.keys() == before.entries.keys()
        and taken.folders == before.folders
        and taken.snapshot.skills == before.snapshot.skills
    )


def _too_much(most_bytes: int) -> SandboxError:
    return SandboxError(
        f"no checkpoint was taken: its files are more than {most_bytes >> 20} MiB together",
        hint="Sparse files count with their full size: remove them, or raise Limits(disk=…).",
    )


def _left_out(path: bytes) -> bool:
    """What every sandbox makes by itself, and the folders of runs."""
    return path in OWN or path.startswith(b"/workspace/runs/")
