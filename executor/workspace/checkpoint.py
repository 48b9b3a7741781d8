"""Checkpoints: a session's files as one content-addressed snapshot on the host, for any runtime.

    <state>/objects/<aa>/<sha256>        file contents, each once
    <state>/snapshots/<sha256>.json      names, kinds, modes, times, hashes; and what was staged
    <state>/sessions/<id>.json           the latest snapshot of a session

Everything is written beside its place and renamed, contents before the snapshot that names them and that
before the pointer: killing the host at any moment leaves the last complete snapshot in force. Contents are
verified by their hash when they are read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executor.channel import Channel
from executor.errors import BadRequestError, SandboxError
from executor.guest import records
from executor.workspace import layout

VERSION = 1
PIECE = 60 * 1024
# What every sandbox makes by itself.
OWN = (*layout.WORKSPACE_LINKS, b"/workspace/runs")
FOLDERS = (b"/workspace/inputs", b"/workspace/work", b"/workspace/out")
IN_MEMORY = 1 << 20  # a smaller file is written to disk only when it is new
KINDS = {records.REGULAR: "file", records.FOLDER: "folder", records.LINK: "link"}


@dataclass(frozen=True)
class Saved:
    """One entry of a snapshot. `path` is absolute inside the sandbox."""

    path: bytes
    kind: str
    mode: int
    size: int = 0
    mtime_ns: int = 0
    sha256: str = ""
    target: bytes = b""


@dataclass
class Snapshot:
    """A session's files, and the digests of the skills that were staged in it."""

    entries: list[Saved]
    skills: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    """SHA-256 of what it holds."""
    size: int = 0
    """Bytes of all its files."""
    warnings: list[str] = field(default_factory=list)

    def dump(self) -> bytes:
        """Canonical JSON: equal snapshots have equal bytes."""
        entries = [
            {
                "path": os.fsdecode(entry.path),
                "kind": entry.kind,
                "mode": entry.mode,
                "size": entry.size,
                "mtime_ns": entry.mtime_ns,
                "sha256": entry.sha256,
                "target": os.fsdecode(entry.target),
            }
            for entry in sorted(self.entries, key=lambda entry: entry.path)
        ]
        whole = {"version": VERSION, "entries": entries, "skills": self.skills}
        return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode("ascii")


class Store:
    """Snapshots in a folder of the host that only its owner can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # -- taking --

    async def take(
        self, channel: Channel, *, skills: dict[str, Any], most_bytes: int, before: Taken | None
    ) -> tuple[Snapshot, Taken]:
        """Copy what changed since `before`, and make a snapshot of all of it."""
        roots = [layout.WORKSPACE.encode(), layout.SKILLS.encode()]
        listing = await channel.list_files(roots)
        known = before.entries if before is not None else {}
        taken = Taken({})
        wanted: list[bytes] = []
        snapshot = Snapshot([], skills)
        for root in roots:
            found = listing.roots.get(root)
            if not isinstance(found, bytes):
                raise SandboxError(
                    f"no checkpoint was taken: {root.decode()} cannot be listed: {os.strerror(found or 5)}"
                )
        for entry in listing.entries:
            if _left_out(entry.path):
                continue
            if entry.path in FOLDERS and entry.kind == records.REGULAR:
                snapshot.warnings.append(f"{layout.shown(entry.path)} is no folder any more: left out")
                continue
            kind = KINDS.get(entry.kind)
            if kind is None:
                snapshot.warnings.append(f"{layout.shown(entry.path)} is no file, folder or link: left out")
            elif kind == "folder":
                snapshot.entries.append(Saved(entry.path, kind, entry.mode))
            else:
                stamp = (entry.kind, entry.size, entry.mode, entry.changed_ns)
                old = known.get(entry.path)
                if old is not None and old[0] == stamp:
                    taken.entries[entry.path] = old
                else:
                    wanted.append(entry.path)
                    taken.entries[entry.path] = (stamp, Saved(entry.path, kind, entry.mode))
        fresh: list[Path] = []
        await self._fetch(channel, wanted, taken, most_bytes, snapshot.warnings, fresh)
        await asyncio.to_thread(_sync, fresh)
        snapshot.entries.extend(saved for _, saved in taken.entries.values())
        snapshot.size = sum(entry.size for entry in snapshot.entries)
        data = snapshot.dump()
        snapshot.id = hashlib.sha256(data).hexdigest()
        self._write(self.folder / "snapshots" / f"{snapshot.id}.json", data)
        return snapshot, taken

    async def _fetch(
        self,
        channel: Channel,
        paths: list[bytes],
        taken: Taken,
        most_bytes: int,
        warnings: list[str],
        fresh: list[Path],
    ) -> None:
        current: list[_Incoming] = []

        def begin(name: bytes, record: records.Record | int) -> None:
            if isinstance(record, int):
                warnings.append(f"{layout.shown(name)} could not be read: {os.strerror(record)}")
                del taken.entries[name]
            else:
                current.append(_Incoming(self.folder, name, record))

        def end(error: int) -> None:
            incoming = current.pop()
            stamp, listed = taken.entries[incoming.name]
            if error:
                incoming.drop()
                warnings.append(f"{layout.shown(incoming.name)} could not be read: {os.strerror(error)}")
                del taken.entries[incoming.name]
            else:
                taken.entries[incoming.name] = (stamp, incoming.finish(self, listed, fresh))

        if paths:
            try:
                await channel.get_files(
                    paths,
                    limit=most_bytes,
                    begin=begin,
                    chunk=lambda data: current[-1].add(data),
                    end=end,
                    links=True,
                )
            finally:
                for incoming in current:
                    incoming.drop()

    # -- giving back --

    async def restore(self, channel: Channel, snapshot: Snapshot) -> None:
        """Put a snapshot's files into a fresh sandbox. SandboxError when a content is damaged."""
        for root in (layout.WORKSPACE.encode(), layout.SKILLS.encode()):
            below = [entry for entry in snapshot.entries if entry.path.startswith(root + b"/")]
            if below:
                await channel.put_files(root, self._records(below, len(root) + 1))

    def _records(self, entries: list[Saved], skip: int) -> Iterator[bytes]:
        for entry in sorted(entries, key=lambda entry: entry.path):
            name = entry.path[skip:]
            if entry.kind == "folder":
                yield records.pack_record(records.FOLDER, name, entry.mode)
            elif entry.kind == "link":
                yield records.pack_record(records.LINK, name, 0o777, len(entry.target), 0, True)
                yield records.pack_chunk(entry.target) + records.pack_end()
            else:
                yield records.pack_record(records.REGULAR, name, entry.mode, entry.size, entry.mtime_ns, True)
                yield from self._content(entry)
                yield records.pack_end()

    def _content(self, entry: Saved) -> Iterator[bytes]:
        sha = hashlib.sha256()
        try:
            with open(self._object(entry.sha256), "rb") as file:
                while piece := file.read(PIECE):
                    sha.update(piece)
                    yield records.pack_chunk(piece)
        except FileNotFoundError:
            raise SandboxError(f"the snapshot is damaged: {entry.sha256} is missing") from None
        if sha.hexdigest() != entry.sha256:
            raise SandboxError(
                f"the snapshot is damaged: {self._object(entry.sha256)} does not have the hash of its name"
            )

    # -- names --

    def remember(self, session: str, snapshot: Snapshot) -> None:
        """Make a snapshot the latest of a session."""
        note = {"snapshot": snapshot.id, "updated": int(time.time())}
        self._write(self.folder / "sessions" / f"{session}.json", json.dumps(note).encode())

    def latest(self, session: str) -> Snapshot | None:
        """The latest snapshot of a session, None when there is none. BadRequestError when it is damaged."""
        try:
            note = json.loads((self.folder / "sessions" / f"{session}.json").read_bytes())
            return self.load(str(note["snapshot"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequestError(f"the note of session {session!r} is damaged: {error}") from error

    def load(self, snapshot_id: str) -> Snapshot:
        """A snapshot by its id. BadRequestError when it is not there or not what its name says."""
        path = self.folder / "snapshots" / f"{snapshot_id}.json"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadRequestError(f"there is no snapshot {snapshot_id!r} in {self.folder}") from error
        if hashlib.sha256(data).hexdigest() != snapshot_id:
            raise BadRequestError(f"{path} is damaged: it does not have the hash of its name")
        found = json.loads(data)
        entries = [
            Saved(
                path=os.fsencode(entry["path"]),
                kind=entry["kind"],
                mode=entry["mode"],
                size=entry["size"],
                mtime_ns=entry["mtime_ns"],
                sha256=entry["sha256"],
                target=os.fsencode(entry["target"]),
            )
            for entry in found["entries"]
        ]
        return Snapshot(entries, found["skills"], snapshot_id, sum(entry.size for entry in entries))

    def _object(self, sha256: str) -> Path:
        return self.folder / "objects" / sha256[:2] / sha256

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.parent / f".part-{secrets.token_hex(6)}"
        try:
            with open(part, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()


@dataclass
class Taken:
    """What the last snapshot of a live session held, by what its files looked like then."""

    entries: dict[bytes, tuple[tuple[int, int, int, int], Saved]]


class _Incoming:
    """One file on its way into the store."""

    def __init__(self, folder: Path, name: bytes, record: records.Record) -> None:
        self.name = name
        self.record = record
        self.sha = hashlib.sha256()
        self.size = 0
        self.target = bytearray()
        self.part: Path | None = None
        self.file: Any = None
        self.kept = bytearray()
        self.objects = folder / "objects"

    def add(self, data: bytes) -> None:
        if self.record.kind == records.LINK:
            self.target += data
            return
        self.sha.update(data)
        self.size += len(data)
        self.kept += data
        if self.file is not None or len(self.kept) > IN_MEMORY:
            self.spill()

    def spill(self) -> None:
        if self.file is None:
            self.objects.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.part = self.objects / f".part-{secrets.token_hex(8)}"
            self.file = open(self.part, "xb")  # noqa: SIM115  closed by finish or drop
        self.file.write(self.kept)
        self.kept.clear()

    def finish(self, store: Store, listed: Saved, fresh: list[Path]) -> Saved:
        if self.record.kind == records.LINK:
            return Saved(self.name, "link", 0o777, target=bytes(self.target))
        digest = self.sha.hexdigest()
        path = store._object(digest)
        if path.exists():
            self.drop()
        else:
            self.spill()
            self.file.close()
            assert self.part is not None
            path.parent.mkdir(exist_ok=True, mode=0o700)
            os.replace(self.part, path)
            fresh.append(path)
        return Saved(self.name, "file", listed.mode, self.size, self.record.mtime_ns, digest)

    def drop(self) -> None:
        if self.file is not None:
            self.file.close()
            with contextlib.suppress(OSError):
                if self.part is not None:
                    self.part.unlink()


def _sync(paths: list[Path]) -> None:
    """To the disk, before a snapshot names them."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _left_out(path: bytes) -> bool:
    """What every sandbox makes by itself, and the folders of runs."""
    return path in OWN or path.startswith(b"/workspace/runs/")
