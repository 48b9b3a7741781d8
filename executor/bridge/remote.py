"""A root that fsspec reaches (`s3://bucket/notes`, `memory://notes`), offered as a host folder is.

Names are components of this package's own: none is empty, `.` or `..`, and the storage only ever gets the
root, a `/` and such names, so nothing outside of the root can be named in a way that the storage understands.
Links inside of the storage are the business of whoever serves it. `file://` is not for here: it is a folder
of this machine, which `folder.py` confines by descriptors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from executor.bridge import files
from executor.bridge.codes import BridgeError
from executor.errors import GrantError
from executor.workspace.text import traced

log = logging.getLogger("executor.bridge")

# What means something in an address, and with some storages in a name: `x?versionId=1`, `%2e%2e`.
MEANINGFUL = frozenset("%?#\\")
HINTS = {
    FileNotFoundError: ("NOT_FOUND", "there is no such file or folder"),
    FileExistsError: ("EXISTS", "it exists"),
    IsADirectoryError: ("IS_DIR", "it is a folder"),
    NotADirectoryError: ("NOT_DIR", "a part of it is not a folder"),
    PermissionError: ("DENIED", "the storage does not permit it"),
    NotImplementedError: ("DENIED", "the storage cannot do it"),
}
TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


def is_url(root: object) -> bool:
    """Whether a root is one of fsspec's and not a path of this machine."""
    return isinstance(root, str) and "://" in root


def normal(url: str) -> str:
    """A root's URL in its one form. GrantError for one that cannot be a root."""
    protocol, _, path = url.partition("://")
    parts = [part for part in path.split("/") if part]
    if not protocol.isalnum() or "::" in url or ".." in parts or any(ord(mark) < 32 for mark in url):
        raise GrantError(
            f"root={url!r} is not a URL of one storage", hint="Write PROTOCOL://PATH, without '..' and '::'."
        )
    if protocol != "memory" and not parts:
        raise GrantError(f"root={url!r} names all of a storage", hint="Name a bucket or a folder of it.")
    return f"{protocol}://" + "/".join(part for part in parts if part != ".")


def open_root(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """(file system, path of the root in it). GrantError when it cannot be had."""
    try:
        import fsspec
    except ImportError:
        raise GrantError(
            f"root={url!r} needs fsspec", hint="Install the extra: pip install 'skill-executor[fsspec]'."
        ) from None
    protocol, _, path = url.partition("://")
    try:
        found = fsspec.filesystem(protocol, **{"use_listings_cache": False, **options})
    except (ImportError, ValueError) as error:
        raise GrantError(f"root={url!r} cannot be opened: {error}") from None
    return found, "/" + path if protocol == "memory" and path else path


class RemoteFolder:
    """Actions on the files below a URL. `do` may be called from any thread."""

    def __init__(self, url: str, options: Mapping[str, Any], *, most: int, entries: int) -> None:
        self._storage, self._root = open_root(url, options)
        self._most = most
        self._entries = entries
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """No action begins to take effect after this returns; one that has begun is seen through."""
        with self._lock:
            self._closed = True

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
        except BridgeError:
            raise
        except Exception as error:
            for kind, (code, why) in HINTS.items():
                if isinstance(error, kind):
                    raise BridgeError(code, f"{shown[:200]}: {why}") from None
            # What a storage says of itself may hold what the script must not see.
            log.warning("the storage of a workspace failed: %s", traced(error))
            raise BridgeError("IO", f"{shown[:200]}: the storage failed") from None

    # -- actions --

    def _read(self, path: str, params: dict[str, Any]) -> Any:
        where = self._at(path)
        size = self._file(where)
        offset, want = files.piece(path, size, self._most, params)
        end = min(size, offset + want)
        data = bytes(self._storage.cat_file(where, start=offset, end=end))[:want] if end > offset else b""
        return files.shown(path, data, size, params)

    def _list(self, path: str, params: dict[str, Any]) -> Any:
        where = self._at(path)
        if self._kind(where) == "file":
            raise NotADirectoryError
        found = []
        for info in self._storage.ls(where, detail=True):
            name = self._name_of(info, where)
            if name:
                found.append({"name": name, **_described(info)})
            if len(found) > self._entries:
                raise files.too_many(self._entries)
        return sorted(found, key=lambda item: str(item["name"]))

    def _glob(self, pattern: str, params: dict[str, Any]) -> Any:
        matches = files.matcher(pattern)
        found: list[str] = []
        for name in self._walk():
            if matches(name):
                found.append(name)
                if len(found) > self._entries:
                    raise files.too_many(self._entries)
        return sorted(found)

    def _stat(self, path: str, params: dict[str, Any]) -> Any:
        try:
            return _described(self._storage.info(self._at(path)))
        except FileNotFoundError:
            return {"type": "directory", "size": 0, "mtime": 0.0} if not files.components(path) else None

    def _write(self, path: str, params: dict[str, Any]) -> Any:
        data = files.content(params)
        where = self._at(path)
        if not files.components(path) or self._kind(where) == "directory":
            raise IsADirectoryError
        self._begin()
        try:
            self._storage.pipe_file(where, data)
        except FileNotFoundError:
            self._storage.makedirs(where.rpartition("/")[0], exist_ok=True)
            self._storage.pipe_file(where, data)
        return {"size": len(data)}

    def _delete(self, path: str, params: dict[str, Any]) -> Any:
        if not files.components(path):
            raise BridgeError("DENIED", "The workspace itself cannot be removed.")
        where = self._at(path)
        kind = self._kind(where)
        if kind is None:
            raise FileNotFoundError
        if kind == "file":
            self._begin()
            self._storage.rm_file(where)
        elif any(self._name_of(info, where) for info in self._storage.ls(where, detail=True)):
            raise BridgeError("EXISTS", f"{path[:200]}: the folder is not empty")
        else:
            self._begin()
            self._storage.rmdir(where)

    # -- names --

    def _begin(self) -> None:
        """From here on the storage changes, unless the grant was revoked."""
        with self._lock:
            if self._closed:
                raise BridgeError("REVOKED", "The run is over; its grant was revoked.")

    def _at(self, path: str) -> str:
        """The storage's path for one of a script. BridgeError BAD_PATH."""
        parts = files.components(path)
        for part in parts:
            if any(ord(mark) < 32 for mark in part) or MEANINGFUL & set(part):
                raise BridgeError(
                    "BAD_PATH", f"{path[:200]!a}: a name has a character that is not taken here."
                )
        return "/".join([self._root, *parts]) if parts else self._root

    def _name_of(self, info: Mapping[str, Any], where: str) -> str:
        """Last component of what a listing of `where` names; '' for what is not directly below."""
        name = str(info.get("name", "")).rstrip("/")
        above, _, last = name.rpartition("/")
        same = above.strip("/") == where.strip("/")
        return last if same and last not in ("", ".", "..") else ""

    def _kind(self, where: str) -> str | None:
        try:
            found = self._storage.info(where)
        except FileNotFoundError:
            return "directory" if where == self._root else None
        return "directory" if found.get("type") == "directory" else "file"

    def _file(self, where: str) -> int:
        """Bytes of a file."""
        if where == self._root:
            raise IsADirectoryError
        info = self._storage.info(where)
        if info.get("type") == "directory":
            raise IsADirectoryError
        size = info.get("size")
        return size if isinstance(size, int) and size >= 0 else 0

    def _walk(self) -> Iterator[str]:
        """Names of all files below the root, folder by folder."""
        seen = 0
        waiting: list[list[str]] = [[]]
        while waiting:
            parts = waiting.pop()
            where = "/".join([self._root, *parts]) if parts else self._root
            try:
                listed = self._storage.ls(where, detail=True)
            except FileNotFoundError:
                continue
            for info in listed:
                seen += 1
                if seen > files.SEEN * self._entries:
                    raise files.too_many(files.SEEN * self._entries)
                name = self._name_of(info, where)
                if name and info.get("type") == "directory":
                    if len(parts) < files.MAX_LEVELS:
                        waiting.append([*parts, name])
                elif name:
                    yield "/".join([*parts, name])


def _described(info: Mapping[str, Any]) -> dict[str, Any]:
    kind = "directory" if info.get("type") == "directory" else "file"
    size = info.get("size")
    changed = next((info[name] for name in TIMES if info.get(name)), 0)
    stamp = changed.timestamp() if hasattr(changed, "timestamp") else changed
    return {
        "type": kind,
        "size": size if kind == "file" and isinstance(size, int) else 0,
        "mtime": round(float(stamp), 3) if isinstance(stamp, int | float) else 0.0,
    }
