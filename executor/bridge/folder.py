"""A host folder that scripts may look into: nothing outside of it can be reached by any name or link.

Every path is walked component by component with descriptors (O_NOFOLLOW), so no link is followed, not even
one that stays inside, and a folder that is swapped meanwhile leads nowhere else. Files with several names are
read but never written through: a write makes a new file and renames it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any

from executor.bridge import files
from executor.bridge.codes import BridgeError

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
KINDS = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink"))
# errno → code and words.
ERRORS = {
    errno.ENOENT: ("NOT_FOUND", "there is no such file or folder"),
    errno.ENOTDIR: ("NOT_DIR", "a part of it is not a folder"),
    errno.EISDIR: ("IS_DIR", "it is a folder"),
    errno.ELOOP: ("BAD_PATH", "it is a link, and links are not followed"),
    errno.EEXIST: ("EXISTS", "it exists"),
    errno.ENOTEMPTY: ("EXISTS", "the folder is not empty"),
    errno.EACCES: ("DENIED", "the host does not permit it"),
    errno.EPERM: ("DENIED", "the host does not permit it"),
    errno.EROFS: ("DENIED", "the host does not permit it"),
    errno.ENAMETOOLONG: ("BAD_PATH", "a name is too long"),
}


class HostFolder:
    """Actions on the files of one folder. `do` may be called from any thread."""

    def __init__(self, root: str, *, most: int, entries: int) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.fstat(self._root).st_dev
        self._most = most
        self._entries = entries
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """No action takes effect after this returns."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._root)

    def do(self, action: str, params: dict[str, Any]) -> Any:
        """`read`, `list`, `glob`, `stat`, `write` or `delete`. BridgeError."""
        shown = files.named(action, params)
        actions: dict[str, Callable[[str, dict[str, Any]], Any]] = {
            "read": self._read,
            "list": self._list,
            "glob": self._glob,
            "stat": self._stat,
            "write": self._write,
            "delete": self._delete,
        }
        try:
            return actions[action](shown, params)
        except OSError as error:
            code, why = ERRORS.get(error.errno or 0, ("IO", error.strerror or "it failed"))
            raise BridgeError(code, f"{shown[:200]}: {why}") from None

    # -- actions --

    def _read(self, path: str, params: dict[str, Any]) -> Any:
        fd, info = self._open(path)
        try:
            offset, want = files.piece(path, info.st_size, self._most, params)
            data = b""
            while len(data) < want and (piece := os.pread(fd, want - len(data), offset + len(data))):
                data += piece
        finally:
            os.close(fd)
        return files.shown(path, data, info.st_size, params)

    def _list(self, path: str, params: dict[str, Any]) -> Any:
        folder = self._folder(files.components(path))
        found: list[dict[str, Any]] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if len(found) >= self._entries:
                        raise files.too_many(self._entries)
                    with contextlib.suppress(OSError):
                        found.append(
                            {"name": _text(entry.name), **_described(entry.stat(follow_symlinks=False))}
                        )
        finally:
            os.close(folder)
        return sorted(found, key=lambda item: str(item["name"]))

    def _glob(self, pattern: str, params: dict[str, Any]) -> Any:
        matches = files.matcher(pattern)
        found: list[str] = []
        for name in self._walk():
            if matches(name):
                found.append(_text(name))
                if len(found) > self._entries:
                    raise files.too_many(self._entries)
        return sorted(found)

    def _stat(self, path: str, params: dict[str, Any]) -> Any:
        parts = files.components(path)
        if not parts:
            return _described(os.fstat(self._root))
        try:
            folder = self._folder(parts[:-1])
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise
        try:
            return _described(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False))
        except FileNotFoundError:
            return None
        finally:
            os.close(folder)

    def _write(self, path: str, params: dict[str, Any]) -> Any:
        data = files.content(params)
        parts = files.components(path)
        if not parts:
            raise BridgeError("IS_DIR", f"{path[:200]}: it is a folder")
        folder = self._folder(parts[:-1], create=True)
        part = f".part-{secrets.token_hex(8)}"
        try:
            mode = self._mode_of(parts[-1], folder, path)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                self._effect(lambda: os.rename(part, parts[-1], src_dir_fd=folder, dst_dir_fd=folder))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=folder)
                raise
            finally:
                os.close(fd)
        finally:
            os.close(folder)
        return {"size": len(data)}

    def _delete(self, path: str, params: dict[str, Any]) -> Any:
        parts = files.components(path)
        if not parts:
            raise BridgeError("DENIED", "The workspace itself cannot be removed.")
        folder = self._folder(parts[:-1])
        try:
            info = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            remove = os.rmdir if stat.S_ISDIR(info.st_mode) else os.unlink
            self._effect(lambda: remove(parts[-1], dir_fd=folder))
        finally:
            os.close(folder)
        return None

    # -- walking --

    def _effect(self, change: Callable[[], None]) -> None:
        """Do what changes the folder, unless the grant was revoked."""
        with self._lock:
            if self._closed:
                raise BridgeError("REVOKED", "The run is over; its grant was revoked.")
            change()

    def _dup_root(self) -> int:
        with self._lock:
            if self._closed:
                raise BridgeError("REVOKED", "The run is over; its grant was revoked.")
            return os.dup(self._root)

    def _folder(self, parts: list[str], *, create: bool = False) -> int:
        """The open folder at these components."""
        folder = self._dup_root()
        try:
            for part in parts:
                if create:
                    with contextlib.suppress(FileExistsError):
                        self._effect(lambda name=part, at=folder: os.mkdir(name, 0o755, dir_fd=at))  # type: ignore[misc]
                try:
                    below = os.open(part, FOLDER, dir_fd=folder)
                except NotADirectoryError:
                    # O_DIRECTORY on a link says the same as on a file.
                    if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                        raise OSError(errno.ELOOP, "link") from None
                    raise
                os.close(folder)
                folder = below
                if os.fstat(folder).st_dev != self._device:
                    raise OSError(errno.EACCES, "another file system")
            return folder
        except BaseException:
            os.close(folder)
            raise

    def _open(self, path: str) -> tuple[int, os.stat_result]:
        parts = files.components(path)
        if not parts:
            raise OSError(errno.EISDIR, "folder")
        folder = self._folder(parts[:-1])
        try:
            fd = os.open(parts[-1], FILE, dir_fd=folder)
        finally:
            os.close(folder)
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode):
            return fd, info
        os.close(fd)
        if stat.S_ISDIR(info.st_mode):
            raise OSError(errno.EISDIR, "folder")
        raise BridgeError("BAD_PATH", f"{path[:200]}: it is not a regular file")

    def _mode_of(self, name: str, folder: int, path: str) -> int:
        """Mode for what replaces `name`: its own, if it is a plain file."""
        try:
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return 0o644
        if stat.S_ISDIR(info.st_mode):
            raise OSError(errno.EISDIR, "folder")
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.ELOOP, "link")
        return stat.S_IMODE(info.st_mode) & 0o777

    def _walk(self) -> Iterator[str]:
        """Names of all regular files, however deep, in bounded memory and without recursion."""
        seen = 0
        waiting: list[list[str]] = [[]]
        while waiting:
            parts = waiting.pop()
            try:
                folder = self._folder(parts)
            except OSError:
                continue
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > files.SEEN * self._entries:
                            raise files.too_many(files.SEEN * self._entries)
                        if entry.is_dir(follow_symlinks=False):
                            if len(parts) < files.MAX_LEVELS:
                                waiting.append([*parts, entry.name])
                        elif entry.is_file(follow_symlinks=False):
                            yield "/".join([*parts, entry.name])
            finally:
                os.close(folder)


def _described(info: os.stat_result) -> dict[str, Any]:
    kind = next((name for test, name in KINDS if test(info.st_mode)), "other")
    return {"type": kind, "size": info.st_size if kind == "file" else 0, "mtime": round(info.st_mtime, 3)}


def _text(name: str) -> str:
    """A file's name as text that JSON can hold."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
