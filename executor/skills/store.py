"""The embedded store of what is loaded: one SQLite file that any number of processes may have open.

Rules of this module:
1. It keeps and gives back; it decides nothing. What loading means is in `state.py`.
2. Every change is one transaction that has read what it changes (`edit`), so nothing is lost between two
   processes, and killing one at any moment leaves the last complete change in force.
3. A file that is no database any more is set aside under another name and never deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executor.errors import BadRequestError

WAIT = 10.0  # seconds for another process to finish its change
KEPT = 30 * 86400.0  # seconds after its last change until a session's state is forgotten

_SCHEMA = """
CREATE TABLE IF NOT EXISTS skill_state (
    session TEXT NOT NULL, agent TEXT NOT NULL, changed REAL NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (session, agent)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS skill_text (
    session TEXT NOT NULL, agent TEXT NOT NULL, skill TEXT NOT NULL, path TEXT NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (session, agent, skill, path)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS skill_event (
    number INTEGER PRIMARY KEY, session TEXT NOT NULL, agent TEXT NOT NULL, at REAL NOT NULL,
    kind TEXT NOT NULL, skill TEXT NOT NULL, digest TEXT NOT NULL, reason TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS skill_event_owner ON skill_event (session, agent, number);
"""
_TABLES = ("skill_state", "skill_text", "skill_event")
_BROKEN = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


@dataclass
class Record:
    """The state of one agent in one session, as it is kept."""

    value: dict[str, Any]
    """JSON: what `state.py` makes of it."""
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    """skill → path → text, '' being the body. Pinned: the source may have changed since."""
    events: list[tuple[str, str, str, str]] = field(default_factory=list)
    """(kind, skill, digest, reason) to append to the history."""


@dataclass(frozen=True)
class Event:
    """One entry of the history."""

    at: float
    """Seconds since the epoch."""
    kind: str
    skill: str
    digest: str
    reason: str


class StateStore:
    """`path`: the file, made if missing and readable by its owner only; `:memory:` keeps nothing.

    BadRequestError when the place cannot be used. May be used from any thread.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.warnings: list[str] = []
        """What was wrong with the file that was found."""
        self._lock = threading.RLock()
        try:
            self._connection = self._open()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF not in _BROKEN or self.path == ":memory:":
                raise self._unusable(error) from error
            aside = f"{self.path}.broken-{time.time_ns()}"
            os.replace(self.path, aside)
            for suffix in ("-wal", "-shm"):  # they belong to the file that went
                with contextlib.suppress(FileNotFoundError):
                    os.replace(self.path + suffix, aside + suffix)
            self.warnings.append(f"{self.path} was no usable database ({error}); it is now {aside}")
            self._connection = self._open()
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> BadRequestError:
        return BadRequestError(
            f"the state cannot be kept in {self.path}: {error}",
            hint="Give another file (state=…), or ':memory:' to keep nothing.",
        )

    def _open(self) -> sqlite3.Connection:
        if self.path != ":memory:":
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            self.path, timeout=WAIT, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
            self._forget_old(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _forget_old(self, connection: sqlite3.Connection) -> None:
        old = connection.execute(
            "SELECT session, agent FROM skill_state WHERE changed < ?", (time.time() - KEPT,)
        ).fetchall()
        for table in _TABLES:
            connection.executemany(f"DELETE FROM {table} WHERE session = ? AND agent = ?", old)  # noqa: S608

    def close(self) -> None:
        """Close the file. A closed store is not used again."""
        with self._lock:
            self._connection.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A full disk and a file that stays locked are told as errors of this package."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise self._unusable(error) from error

    @contextlib.contextmanager
    def edit(self, session: str, agent: str) -> Iterator[Record]:
        """The record, to be changed in place; written when the block ends, dropped when it raises."""
        with self._lock, self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                record = self._read(session, agent)
                before = json.dumps(record.value), {skill: dict(own) for skill, own in record.texts.items()}
                yield record
                if record.events or (json.dumps(record.value), record.texts) != before:
                    self._write(session, agent, record, before[1])
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def read(self, session: str, agent: str) -> Record:
        """The record as it is now."""
        with self._lock, self._told():
            self._connection.execute("BEGIN")
            try:
                return self._read(session, agent)
            finally:
                self._connection.execute("COMMIT")

    def history(self, session: str, agent: str) -> list[Event]:
        """What was loaded and unloaded, oldest first."""
        with self._lock, self._told():
            rows = self._connection.execute(
                "SELECT at, kind, skill, digest, reason FROM skill_event"
                " WHERE session = ? AND agent = ? ORDER BY number",
                (session, agent),
            ).fetchall()
        return [Event(*row) for row in rows]

    def forget(self, session: str) -> None:
        """Remove all that is known of a session, of all its agents."""
        with self._lock, self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            for table in _TABLES:
                self._connection.execute(f"DELETE FROM {table} WHERE session = ?", (session,))  # noqa: S608
            self._connection.execute("COMMIT")

    def _read(self, session: str, agent: str) -> Record:
        owner = (session, agent)
        row = self._connection.execute(
            "SELECT record FROM skill_state WHERE session = ? AND agent = ?", owner
        ).fetchone()
        record = Record(json.loads(row[0]) if row else {})
        for skill, path, text in self._connection.execute(
            "SELECT skill, path, text FROM skill_text WHERE session = ? AND agent = ?", owner
        ):
            record.texts.setdefault(skill, {})[path] = text
        return record

    def _write(
        self, session: str, agent: str, record: Record, texts_before: dict[str, dict[str, str]]
    ) -> None:
        owner = (session, agent)
        now = time.time()
        self._connection.execute(
            "INSERT INTO skill_state VALUES (?, ?, ?, ?) ON CONFLICT (session, agent)"
            " DO UPDATE SET changed = excluded.changed, record = excluded.record",
            (*owner, now, json.dumps(record.value)),
        )
        for skill in texts_before.keys() | record.texts.keys():
            texts = record.texts.get(skill)
            if texts == texts_before.get(skill):
                continue
            self._connection.execute(
                "DELETE FROM skill_text WHERE session = ? AND agent = ? AND skill = ?", (*owner, skill)
            )
            self._connection.executemany(
                "INSERT INTO skill_text VALUES (?, ?, ?, ?, ?)",
                [(*owner, skill, path, text) for path, text in (texts or {}).items()],
            )
        self._connection.executemany(
            "INSERT INTO skill_event (session, agent, at, kind, skill, digest, reason)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(*owner, now, *event) for event in record.events],
        )
