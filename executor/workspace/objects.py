"""Contents on the host's disk, each once, under the hash of what it holds.

    <state>/objects/<aa>/<sha256>        contents of files
    <state>/snapshots/<sha256>.json      names, kinds, modes, times and hashes of a session's files
    <state>/lock                         shared by who adds or reads, alone for who clears away

Rules of this module:
1. A name appears when all of its bytes are on the disk, contents before the snapshot that names them: killing
   the host or cutting its power at any moment leaves no snapshot without its contents.
2. Nothing is trusted for its name: bytes are hashed when they are read, and what is there already under a
   hash is looked at before it is relied on.
3. Who adds or reads holds the lock shared, from before he looks until another may know what he relies on.
   Clearing away holds it alone; then whatever nobody refers to, and every unfinished part, is garbage.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TypeVar

from executor.errors import PlatformError, StateError
from executor.guest.records import PIECE

if sys.platform != "win32":
    import fcntl

PART = ".part-"
PATIENCE = 30.0  # seconds for another process to finish what needs the folder alone
FEW = 8  # up to so many files are brought to the disk one by one, more with their whole file system


T = TypeVar("T")


async def to_its_end(work: Callable[[], T]) -> T:
    """Run it in a thread. A caller who is cancelled waits all the same: what is done under a lock must not
    outlive it.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


class Objects:
    """The files of a state folder, which only its owner can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # -- names --

    def content(self, sha256: str) -> Path:
        """Where a content is."""
        return self.folder / "objects" / sha256[:2] / sha256

    def manifest(self, snapshot: str) -> Path:
        """Where a snapshot is."""
        return self.folder / "snapshots" / f"{snapshot}.json"

    # -- the lock --

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """While it is held nothing that is there goes away."""
        fd = self._open_lock()
        try:
            deadline = time.monotonic() + PATIENCE
            while not _locked(fd, alone=False):
                if time.monotonic() > deadline:
                    raise self._busy()
                await asyncio.sleep(0.01)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def held(self, *, alone: bool = False, patience: float = PATIENCE) -> Iterator[None]:
        """The same for callers without an event loop; with `alone`, nobody else adds or reads."""
        if alone and sys.platform == "win32":
            raise PlatformError("there are no locks to clear away safely on this system")
        fd = self._open_lock()
        try:
            deadline = time.monotonic() + patience
            while not _locked(fd, alone=alone):
                if time.monotonic() > deadline:
                    raise self._busy()
                time.sleep(0.01)
            yield
        finally:
            os.close(fd)

    def _open_lock(self) -> int:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self.failed(error) from error

    def _busy(self) -> StateError:
        return StateError(f"{self.folder} is in use by other processes", hint="Try again in a moment.")

    def failed(self, error: OSError) -> StateError:
        """A full disk, or a folder that is not ours."""
        return StateError(
            f"nothing can be kept in {self.folder}: {error.strerror or error}",
            hint="Make room (executor sessions gc), look at the folder's owner, or give another state_dir.",
        )

    # -- adding --

    def part(self) -> tuple[Path, IO[bytes]]:
        """A file to be filled and handed to `add`."""
        path = self.folder / "objects" / f"{PART}{secrets.token_hex(8)}"
        try:
            return path, open(path, "xb", buffering=PIECE)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return path, open(path, "xb", buffering=PIECE)

    def add(self, parts: dict[str, Path], manifest: tuple[str, bytes] | None = None) -> None:
        """Give closed parts their names, by hash, and a manifest (id, bytes) its own. What is there stays."""
        moves: list[tuple[Path, Path]] = []
        made: list[Path] = list(parts.values())
        try:
            for sha256, part in parts.items():
                place = self.content(sha256)
                if _sound(place, sha256):
                    part.unlink()
                else:
                    moves.append((part, place))
            if manifest is not None and not _sound(self.manifest(manifest[0]), manifest[0]):
                part, file = self.part()
                made.append(part)
                with file:
                    file.write(manifest[1])
                moves.append((part, self.manifest(manifest[0])))
            _to_disk([part for part, _ in moves])
            for part, place in moves:
                place.parent.mkdir(exist_ok=True, mode=0o700)
                os.replace(part, place)
            _to_disk(sorted({parent for _, place in moves for parent in (place.parent, place.parent.parent)}))
        finally:
            for part in made:
                with contextlib.suppress(OSError):
                    part.unlink()

    # -- reading --

    def read(self, sha256: str) -> Iterator[bytes]:
        """The bytes of a content. StateError, at their end at the latest, when they do not have its hash."""
        place = self.content(sha256)
        sha = hashlib.sha256()
        try:
            with open(place, "rb") as file:
                while piece := file.read(PIECE):
                    sha.update(piece)
                    yield piece
        except FileNotFoundError:
            raise StateError(f"the snapshot is damaged: {sha256} is missing in {self.folder}") from None
        except OSError as error:
            raise StateError(f"the snapshot is damaged: {place} cannot be read: {error.strerror}") from error
        if sha.hexdigest() != sha256:
            raise StateError(f"the snapshot is damaged: {place} does not have the hash of its name")

    # -- clearing away: the lock is held alone --

    def clear(self, snapshots: Iterable[str], contents: Iterable[str]) -> tuple[int, int, int]:
        """Remove every snapshot and content but these, and unfinished parts: snapshots, contents, bytes."""
        kept = {f"{snapshot}.json" for snapshot in snapshots}
        gone = [path for path in self.folder.glob("snapshots/*") if path.name not in kept]
        size = sum(_remove(path) for path in gone)
        wanted = set(contents)
        unwanted = [path for path in self.folder.glob("objects/??/*") if path.name not in wanted]
        size += sum(_remove(path) for path in (*unwanted, *self.folder.glob(f"objects/{PART}*")))
        return len(gone), len(unwanted), size


def _remove(path: Path) -> int:
    size = path.stat().st_size
    path.unlink()
    return size


def _locked(fd: int, *, alone: bool) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sound(place: Path, sha256: str) -> bool:
    """Whether what is there under a hash is what it should be: the power may have failed while it came."""
    try:
        with open(place, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _to_disk(paths: list[Path]) -> None:
    """Files and folders of one file system are on the disk when this returns."""
    syncfs = _syncfs() if len(paths) > FEW else None
    for path in paths if syncfs is None else paths[:1]:
        if sys.platform == "win32" and path.is_dir():
            continue  # cannot be opened there
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if syncfs is None:
                os.fsync(fd)
            else:
                syncfs(fd)
        finally:
            os.close(fd)


def _syncfs() -> Callable[[int], None] | None:
    """The call that brings the whole file system of a descriptor to the disk; None where there is none."""
    if sys.platform != "linux":
        return None
    import ctypes  # for checkpoints alone

    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        return None

    def syncfs(fd: int) -> None:
        if call(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    return syncfs
