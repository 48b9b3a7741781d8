"""SKILL.md files that were read before, so that a root with thousands lists at once in every process.

An entry counts only while the file is untouched (device, inode, size, times) and the reader of SKILL.md is
the same. The store is a cache: whatever is wrong with it, it is left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from executor.places import settled
from executor.skills import document
from executor.skills.document import SkillDocument

MOST = 200_000  # entries; then the store begins anew

Stamp = tuple[int, int, int, int, int]
"""device, inode, size, time of writing, time of change (ns)"""


@cache
def _reader() -> str:
    status = os.stat(document.__file__)
    return f"{status.st_size} {status.st_mtime_ns}"


class Parsed:
    """The store in the file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, files: Mapping[str, Stamp]) -> dict[str, SkillDocument]:
        """What is known of these files as they are now."""
        found: dict[str, SkillDocument] = {}
        try:
            if not self._path.exists():
                return {}
            with _open(self._path) as connection:
                for path, stamp in files.items():
                    row = connection.execute(
                        "SELECT stamp, value FROM parsed WHERE path = ?", (os.fsencode(path),)
                    ).fetchone()
                    if row and row[0] == _text(stamp):
                        found[path] = _document(json.loads(row[1]))
        except (sqlite3.Error, OSError, ValueError, TypeError, KeyError):
            return {}
        return found

    def put(self, read: Iterable[tuple[str, Stamp, SkillDocument]]) -> None:
        """Remember; files that changed just now may change again within one tick, and are not remembered."""
        now = time.time_ns()
        rows = [
            (os.fsencode(path), _text(stamp), json.dumps(dataclasses.asdict(found)))
            for path, stamp, found in read
            if settled(now, stamp[3], stamp[4])
        ]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _open(self._path) as connection:
                (count,) = connection.execute("SELECT count(*) FROM parsed").fetchone()
                if count > MOST:
                    connection.execute("DELETE FROM parsed")
                connection.executemany("INSERT OR REPLACE INTO parsed VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, OSError):
            pass


@contextlib.contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection whose changes are kept when the block ends well."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=2)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS parsed (path BLOB PRIMARY KEY, stamp TEXT, value TEXT) WITHOUT ROWID"
        )
        yield connection
        connection.commit()
    finally:
        connection.close()


def _text(stamp: Stamp) -> str:
    return f"{stamp} {_reader()}"


def _document(value: dict[str, Any]) -> SkillDocument:
    return SkillDocument(
        **{**value, "allowed_tools": tuple(value["allowed_tools"]), "warnings": tuple(value["warnings"])}
    )
