"""What agents have loaded, kept in the embedded database.

It keeps and gives back; it decides nothing. What loading means is in `state.py`, how the file is opened and
changed in `executor.state.database`: every change is one transaction that has read what it changes (`edit`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from executor.state.database import Database

KEPT = 30 * 86400.0  # seconds after its last change until a session's state is forgotten
_FORGET = (
    "DELETE FROM skill_state WHERE session = ?1 AND (?2 IS NULL OR agent = ?2)",
    "DELETE FROM skill_text WHERE session = ?1 AND (?2 IS NULL OR agent = ?2)",
    "DELETE FROM skill_event WHERE session = ?1 AND (?2 IS NULL OR agent = ?2)",
)


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
    """`path`: the database's file, made if missing and readable by its owner only; `:memory:` keeps nothing.

    StateError when the place cannot be used. May be used from any thread.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._database = Database(path)
        self.path = self._database.path
        self.warnings = self._database.warnings
        """What was wrong with the file that was found."""
        with self._database.change() as connection:
            old = connection.execute(
                "SELECT session, agent FROM skill_state WHERE changed < ?", (time.time() - KEPT,)
            ).fetchall()
            for statement in _FORGET:
                connection.executemany(statement, old)

    def close(self) -> None:
        """Close the file. A closed store is not used again."""
        self._database.close()

    @contextlib.contextmanager
    def edit(self, session: str, agent: str) -> Iterator[Record]:
        """The record, to be changed in place; written when the block ends, dropped when it raises."""
        with self._database.change() as connection:
            record = _read(connection, session, agent)
            before = json.dumps(record.value), {skill: dict(own) for skill, own in record.texts.items()}
            yield record
            if record.events or (json.dumps(record.value), record.texts) != before:
                _write(connection, session, agent, record, before[1])

    def read(self, session: str, agent: str) -> Record:
        """The record as it is now."""
        with self._database.look() as connection:
            return _read(connection, session, agent)

    def history(self, session: str, agent: str) -> list[Event]:
        """What was loaded and unloaded, oldest first."""
        with self._database.look() as connection:
            rows = connection.execute(
                "SELECT at, kind, skill, digest, reason FROM skill_event"
                " WHERE session = ? AND agent = ? ORDER BY number",
                (session, agent),
            ).fetchall()
        return [Event(*row) for row in rows]

    def sessions(self) -> dict[str, list[str]]:
        """The sessions of which anything is known → the skills that are loaded in them, of all agents."""
        found: dict[str, list[str]] = {}
        with self._database.look() as connection:
            for session, record in connection.execute("SELECT session, record FROM skill_state"):
                loaded = [entry["skill"] for entry in json.loads(record).get("loaded", [])]
                found.setdefault(session, []).extend(loaded)
        return {session: sorted(set(loaded)) for session, loaded in found.items()}

    def forget(self, session: str) -> bool:
        """Remove all that is known of a session, of all its agents; whether that was anything."""
        with self._database.change() as connection:
            gone = [connection.execute(statement, (session, None)).rowcount for statement in _FORGET]
        return any(gone)


def _read(connection: sqlite3.Connection, session: str, agent: str) -> Record:
    owner = (session, agent)
    row = connection.execute(
        "SELECT record FROM skill_state WHERE session = ? AND agent = ?", owner
    ).fetchone()
    record = Record(json.loads(row[0]) if row else {})
    for skill, path, text in connection.execute(
        "SELECT skill, path, text FROM skill_text WHERE session = ? AND agent = ?", owner
    ):
        record.texts.setdefault(skill, {})[path] = text
    return record


def _write(
    connection: sqlite3.Connection,
    session: str,
    agent: str,
    record: Record,
    texts_before: dict[str, dict[str, str]],
) -> None:
    owner = (session, agent)
    now = time.time()
    connection.execute(
        "INSERT INTO skill_state VALUES (?, ?, ?, ?) ON CONFLICT (session, agent)"
        " DO UPDATE SET changed = excluded.changed, record = excluded.record",
        (*owner, now, json.dumps(record.value)),
    )
    for skill in texts_before.keys() | record.texts.keys():
        texts = record.texts.get(skill)
        if texts == texts_before.get(skill):
            continue
        connection.execute(
            "DELETE FROM skill_text WHERE session = ? AND agent = ? AND skill = ?", (*owner, skill)
        )
        connection.executemany(
            "INSERT INTO skill_text VALUES (?, ?, ?, ?, ?)",
            [(*owner, skill, path, text) for path, text in (texts or {}).items()],
        )
    connection.executemany(
        "INSERT INTO skill_event (session, agent, at, kind, skill, digest, reason)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*owner, now, *event) for event in record.events],
    )
