"""A session as one file, for another machine or another runtime: export and import.

    session.json                     what the session was, and its snapshot
    workspace/out/report.txt         each file in the snapshot's order, under its own name where that is
    objects/<sha256>                 plain, else under its hash

It is a tar of regular files with mode 0644, plain or in gzip; equal sessions make equal tars. It is read
without a reader of tars: all that may follow `session.json` is known from it, so every header is compared
with the one that export would have written, every content with its hash, and an archive that differs in a
byte is refused whole. No name in it is ever opened; links are lines in `session.json`, for a sandbox to make.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from executor.errors import BadPathError, BadRequestError, StateError
from executor.guest.records import PIECE
from executor.state import KeptSession
from executor.state.sessions import taken
from executor.workspace.checkpoint import Store
from executor.workspace.snapshot import MOST_BYTES, DamagedError, Saved, Snapshot, canonical, check, load_json
from executor.workspace.text import to_text

FORMAT, VERSION = "executor-session", 1
HEAD = "session.json"
BLOCK = 512
END = bytes(2 * BLOCK)
MOST_FILE = 8**11 - 1  # bytes that a tar's header can tell
SPARE = 256 << 20  # bytes of the disk that an import leaves free
SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PLAIN = re.compile(r"[A-Za-z0-9_.+=,@ /-]+")


@dataclass(frozen=True)
class Imported:
    """What came in."""

    session: str
    files: int
    size: int


def export_session(store: Store, session: str, target: Path, *, overwrite: bool = False) -> KeptSession:
    """Write a session's latest checkpoint to `target`, whole or not at all; in gzip when its name ends in
    `gz`. BadRequestError for an unknown session, BadPathError for a target that exists.
    """
    if target.exists() and not overwrite:
        raise BadPathError(f"{target} exists already", hint="Give another name, or --overwrite.")
    part = target.parent / f".part-{secrets.token_hex(6)}"
    with store.objects.held():
        kept = store.sessions.get(session)
        if kept is None or not kept.snapshot:
            raise BadRequestError(
                f"session {session!r} has no checkpoint in {store.folder}",
                hint="`executor sessions list` shows those that have.",
            )
        snapshot = store.load(kept.snapshot)
        try:
            with open(part, "xb") as file:
                os.chmod(part, 0o600)
                with _packed(file) if target.name.endswith("gz") else contextlib.nullcontext(file) as out:
                    for piece in _pieces(store, kept, snapshot):
                        out.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
        except OSError as error:
            raise BadPathError(f"cannot write {target}: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)
    return kept


def import_session(store: Store, source: Path, *, session: str | None = None) -> Imported:
    """Take a session from an archive, under its own id or `session`. StateError for an archive that is not as
    export writes it, BadRequestError for an id that is taken or cannot be one.
    """
    try:
        with open(source, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream: IO[bytes] = gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[assignment]
            reader = _Reader(stream, source)
            return _take(store, reader, session)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise StateError(f"{source} is no archive of a session: {error}") from error
    except OSError as error:
        raise StateError(
            f"{source} cannot be imported: {error.strerror or error}",
            hint="Give a file that `executor sessions export` wrote.",
        ) from error


# -- writing --


def _pieces(store: Store, kept: KeptSession, snapshot: Snapshot) -> Iterator[bytes]:
    about = {"id": kept.id, "runtime": kept.runtime, "image": kept.image}
    head = canonical(
        signed({"format": FORMAT, "version": VERSION, "session": about, "snapshot": snapshot.value()})
    )
    yield header(HEAD, len(head), 0) + head + _padding(len(head))
    for name, entry in members(snapshot):
        if entry.size > MOST_FILE:
            raise BadRequestError(f"{to_text(entry.path)!r} is too large for an archive")
        yield header(name, entry.size, entry.mtime_ns)
        yield from store.objects.read(entry.sha256)
        yield _padding(entry.size)
    yield END


def signed(value: dict[str, Any]) -> dict[str, Any]:
    """With a hash of all of it, against accidents."""
    return {**value, "sha256": hashlib.sha256(canonical(value)).hexdigest()}


@contextlib.contextmanager
def _packed(file: IO[bytes]) -> Iterator[IO[bytes]]:
    with gzip.GzipFile("", "wb", fileobj=file, mtime=0, compresslevel=6) as out:
        yield out  # type: ignore[misc]


def members(snapshot: Snapshot) -> Iterator[tuple[str, Saved]]:
    """The names of an archive's files in order, and what they hold."""
    seen = set()
    for entry in snapshot.entries:
        if entry.kind != "file":
            continue
        name = _member(entry)
        if name not in seen:
            seen.add(name)
            yield name, entry


def _member(entry: Saved) -> str:
    """A file's own name where every tar program takes it, at the start of a line too; else its hash."""
    name = to_text(entry.path)[1:]
    fits = len(name) <= 100 and _PLAIN.fullmatch(name)
    return name if fits else f"objects/{entry.sha256}"


def header(name: str, size: int, mtime_ns: int) -> bytes:
    """The one header that a file of this name, size and time has."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    info.mtime = min(mtime_ns // 10**9, MOST_FILE)
    return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


# -- reading --


class _Reader:
    """The bytes of an archive, which have to be the expected ones."""

    def __init__(self, stream: IO[bytes], source: Path) -> None:
        self._stream = stream
        self._source = source

    def wrong(self, why: str) -> StateError:
        return StateError(
            f"{self._source} is no archive of a session: {why}", hint="Nothing of it was taken."
        )

    def some(self, size: int) -> bytes:
        """So many bytes."""
        data = self._stream.read(size)
        if len(data) != size:
            raise self.wrong("it ends too early")
        return data

    def expect(self, data: bytes, what: str) -> None:
        """Exactly these bytes."""
        if self.some(len(data)) != data:
            raise self.wrong(f"{what} is not what it should be")

    def end(self) -> None:
        """The last bytes."""
        self.expect(END, "its end")
        if self._stream.read(1):
            raise self.wrong("there is more behind its end")

    def head(self) -> dict[str, Any]:
        """`session.json`."""
        first = self.some(BLOCK)
        try:
            size = tarfile.TarInfo.frombuf(first, "utf-8", "strict").size
        except (tarfile.TarError, UnicodeDecodeError):
            raise self.wrong("it does not begin as one") from None
        if not 0 < size <= MOST_BYTES or first != header(HEAD, size, 0):
            raise self.wrong("it does not begin as one")
        data = self.some(size)
        self.expect(_padding(size), HEAD)
        try:
            value = load_json(data)
        except DamagedError as error:
            raise self.wrong(f"{HEAD}: {error}") from None
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise self.wrong(f"{HEAD} is of another format")
        if value.get("version") != VERSION:
            raise self.wrong(f"its version is {value.get('version')!r}, and this executor knows {VERSION}")
        value.pop("sha256", None)
        if value.keys() != {"format", "version", "session", "snapshot"} or canonical(signed(value)) != data:
            raise self.wrong(f"{HEAD} is not as export writes it")
        return value

    def content(self, entry: Saved, take: Callable[[bytes], object]) -> None:
        """The bytes of a file."""
        sha = hashlib.sha256()
        left = entry.size
        while left:
            piece = self.some(min(left, PIECE))
            left -= len(piece)
            sha.update(piece)
            take(piece)
        if sha.hexdigest() != entry.sha256:
            raise self.wrong(f"the content of {to_text(entry.path)!r} does not have its hash")


def _take(store: Store, reader: _Reader, session: str | None) -> Imported:
    value = reader.head()
    about = value["session"]
    if not isinstance(about, dict) or about.keys() != {"id", "runtime", "image"}:
        raise reader.wrong(f"{HEAD} does not say whose it is")
    if not all(isinstance(text, str) and len(text) <= 1000 for text in about.values()):
        raise reader.wrong(f"{HEAD} does not say whose it is")
    name = session if session is not None else about["id"]
    if not SESSION_ID.fullmatch(name):
        raise BadRequestError(f"{name!r} cannot be a session's id", hint="Give another one: --as ID.")
    try:
        snapshot = check(value["snapshot"])
        for skill in snapshot.skills.values():  # only the archive says that these files are that skill's
            skill.update(digest="", files={})
        data = snapshot.sealed()
    except DamagedError as error:
        raise reader.wrong(str(error)) from None
    parts: dict[str, Path] = {}
    with store.objects.held():
        if store.sessions.get(name) is not None:
            raise taken(name)
        _check_room(store, snapshot)
        try:
            for member, entry in members(snapshot):
                reader.expect(header(member, entry.size, entry.mtime_ns), f"the header of {member!r}")
                if entry.sha256 in parts:
                    reader.content(entry, _nothing)
                else:
                    part, file = store.objects.part()
                    parts[entry.sha256] = part
                    with file:
                        reader.content(entry, file.write)
                reader.expect(_padding(entry.size), f"what follows {member!r}")
            reader.end()
            for entry in snapshot.entries:  # members that share a name have to share their size
                if entry.kind == "file" and parts[entry.sha256].stat().st_size != entry.size:
                    raise reader.wrong(f"{to_text(entry.path)!r} does not have its size")
            store.objects.add(parts, (snapshot.id, data))
            store.sessions.add(
                name,
                runtime=about["runtime"],
                image=about["image"],
                snapshot=snapshot.id,
                files=snapshot.files,
                size=snapshot.size,
                skills=snapshot.skills,
            )
        finally:
            for part in parts.values():
                part.unlink(missing_ok=True)
    return Imported(name, snapshot.files, snapshot.size)


def _check_room(store: Store, snapshot: Snapshot) -> None:
    contents = {entry.sha256: entry.size for entry in snapshot.entries}
    wanted, free = sum(contents.values()), shutil.disk_usage(store.folder).free - SPARE
    if wanted > free:
        raise StateError(
            f"the archive holds {wanted >> 20:,} MiB, and {store.folder} has room for {max(0, free) >> 20:,}",
            hint="Make room (executor sessions gc), or give another state_dir.",
        )


def _nothing(_data: bytes) -> None:
    """For what is there already."""
