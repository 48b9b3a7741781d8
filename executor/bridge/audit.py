"""The record of every call and every run: JSON lines, each holding the hash of the one before it.

A line that was changed, removed or put in breaks the chain after it; `verify` says where. (Whoever can write
the file can write a new chain: keep the last hash elsewhere to notice that.) Inputs are recorded as a hash
and a short preview without secrets, results as a hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger("executor.bridge")

PREVIEW = 512  # bytes of an input that are shown
MAX_LINE = 64 << 10  # bytes of one record
KEPT = 1000  # records that stay in memory
FIRST = "0" * 64  # what the first record has for the hash before it
STRUCK = "[redacted]"

# Keys whose values are not shown, and texts that look like credentials wherever they stand.
SECRET_KEYS = re.compile(
    r"pass(word|wd|phrase)?|secret|token|api[-_]?key|authori[sz]ation|credential|cookie|session|private[-_]?key",
    re.IGNORECASE,
)
SECRET_TEXT = re.compile(
    r"(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}|\b(?:sk|pk|rk|ghp|gho|ghs|xox[abprs]|glpat)[-_][A-Za-z0-9_-]{8,}"
    r"|\bAKIA[A-Z0-9]{12,}"
    # Only from where a word begins: a word that is full of such beginnings is read once and not for each.
    r"|(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]*\beyJ)[A-Za-z0-9_-]{11,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----",
    re.IGNORECASE,
)


class AuditLog:
    """An append-only log. `path` None keeps only the latest records, in memory. Safe to share by threads.

    The file is created with mode 0600 and may be shared by processes; an existing one is continued after its
    chain was checked (ValueError). A last line without its end is what a process left that was killed while
    it wrote: that is cut off first.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.records: deque[dict[str, Any]] = deque(maxlen=KEPT)
        """The latest records, oldest first."""
        self._lock = threading.Lock()
        self._last, self._count, self._size = FIRST, 0, 0
        if self.path is not None and self.path.exists():
            with _opened(self.path) as fd:
                self._size = _whole(fd, self.path)
            self._count, self._last = _verified(self.path, self._size)

    def record(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Add one record; returns it with `ts`, `seq`, `prev_hash` and `hash`. OSError when it cannot be
        written: then nothing of it is.
        """
        with self._lock:
            if self.path is None:
                entry = self._sealed(fields)
            else:
                with _opened(self.path) as fd:
                    if os.fstat(fd).st_size != self._size:  # another process has written meanwhile
                        self._size = _whole(fd, self.path)
                        self._count, self._last = _last_of(fd, self._size)
                    entry = self._sealed(fields)
                    line = json.dumps(entry, ensure_ascii=True, separators=(",", ":")) + "\n"
                    self._size = _append(fd, self._size, line.encode())
            self._last, self._count = entry["hash"], self._count + 1
            self.records.append(entry)
            return entry

    def _sealed(self, fields: dict[str, Any]) -> dict[str, Any]:
        entry = {"ts": round(time.time(), 6), "seq": self._count, **fields, "prev_hash": self._last}
        entry["hash"] = _hash(entry)
        return entry


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The file, for nobody else meanwhile."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(fd)
        yield fd
    finally:
        os.close(fd)


def _append(fd: int, size: int, data: bytes) -> int:
    """Add all of it to a file of `size` bytes, or nothing; the new size. OSError."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:  # a full disk takes what it has room for
        os.ftruncate(fd, size)
        raise
    return size + len(data)


def _whole(fd: int, path: Path) -> int:
    """Cut off a last line without its end; the size."""
    found = size = os.fstat(fd).st_size
    while size:
        start = max(0, size - MAX_LINE)
        end = os.pread(fd, size - start, start).rfind(b"\n") + 1
        size = start + end
        if end:
            break
    if size != found:
        log.error("%s: the last record was cut short while it was written; it is removed", path)
        os.ftruncate(fd, size)
    return size


def _lock(fd: int) -> None:
    """For as long as the descriptor is open. A platform without such locks has one writer."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(fd, fcntl.LOCK_EX)


def _last_of(fd: int, size: int) -> tuple[int, str]:
    """(records, last hash) by the last line of a log."""
    if not size:
        return 0, FIRST
    start = max(0, size - MAX_LINE)
    line = os.pread(fd, size - start, start).rstrip(b"\n").rpartition(b"\n")[2]
    entry = json.loads(line)
    return entry["seq"] + 1, entry["hash"]


def verify(path: str | os.PathLike[str]) -> tuple[int, str]:
    """(records, last hash) of a log. ValueError names the first line that breaks the chain."""
    return _verified(path, math.inf)


def _verified(path: str | os.PathLike[str], most: float) -> tuple[int, str]:
    """The same of its first bytes: others may be adding to it."""
    last, count = FIRST, 0
    with open(path, "rb") as file:
        for line in file:
            if (most := most - len(line)) < 0:
                break
            try:
                entry = json.loads(line)
                told = entry.pop("hash")
                good = entry["prev_hash"] == last and entry["seq"] == count and _hash(entry) == told
            except (ValueError, KeyError, TypeError, AttributeError):
                good, told = False, ""
            if not good:
                raise ValueError(f"{os.fspath(path)}: the chain breaks at line {count + 1}")
            last, count = told, count + 1
    return count, last


def _hash(entry: dict[str, Any]) -> str:
    text = json.dumps(entry, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def preview(value: Any, secrets: Iterable[str] = ()) -> str:
    """The beginning of a value as JSON, without what looks like a secret."""
    text = json.dumps(_without_secrets(value, 0), ensure_ascii=True, separators=(",", ":"), default=str)
    text = SECRET_TEXT.sub(STRUCK, strike(text, secrets)[:MAX_LINE])
    return text if len(text) <= PREVIEW else text[: PREVIEW - 3] + "..."


def line(text: str, secrets: Iterable[str] = ()) -> str:
    """A text of one line, without what looks like a secret."""
    return SECRET_TEXT.sub(STRUCK, strike(text, secrets))[:PREVIEW]


def strike(text: str, secrets: Iterable[str]) -> str:
    """JSON text without the given secrets, however JSON writes them."""
    for secret in secrets:
        for ascii_only in (False, True):
            text = text.replace(json.dumps(secret, ensure_ascii=ascii_only)[1:-1], STRUCK)
    return text


def struck(value: Any, secrets: tuple[str, ...]) -> Any:
    """A JSON value without the given secrets: in texts, keys and numbers."""
    if not secrets or value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return {struck(key, secrets): struck(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [struck(item, secrets) for item in value]
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, STRUCK)
        return value
    return STRUCK if any(secret in json.dumps(value) for secret in secrets) else value


def _without_secrets(value: Any, depth: int) -> Any:
    if depth > 8:
        return "..."
    if isinstance(value, dict):
        return {
            str(key): STRUCK if SECRET_KEYS.search(str(key)) else _without_secrets(item, depth + 1)
            for key, item in list(value.items())[:50]
        }
    if isinstance(value, list):
        return [_without_secrets(item, depth + 1) for item in value[:50]]
    if isinstance(value, str):
        # Struck before it is cut, so that no half of a secret is left at the end.
        return SECRET_TEXT.sub(STRUCK, value[: 4 * PREVIEW])
    return value
