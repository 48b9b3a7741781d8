"""Sessions that outlive their process: who has each open, its latest snapshot, its runs and their outputs.

A session belongs to at most one owner at a time. Whatever an owner writes is written only while the session
is still his; so one that was taken away (`executor sessions rm --force`) is not written to by the one before.

A run stands here before it is asked for, and is ended here after it has ended. One that never ended because
its owner died is `interrupted`: it may have begun, and nobody repeats it.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from executor.errors import BadRequestError, StateError
from executor.runtimes.owner import is_dead, owner_label
from executor.state.database import Database
from executor.workspace.text import to_bytes, to_text

MOST_RUNS = 1000  # kept of a session; older ones are forgotten with their outputs
BEGUN, INTERRUPTED = "begun", "interrupted"
_AS_TEXT = {"path": to_text, "saved_as": os.fsdecode}  # a name in a sandbox, and one on this machine
_SESSIONS = """
    SELECT id, runtime, image, limits, durable, created, used, owner, snapshot, saved, files, size, skills
    FROM session WHERE ?1 = '' OR id = ?1 ORDER BY used DESC
"""
_RUNS = """
    SELECT id, skill, kind, begun, ended, status, exit_code, bytes
    FROM run WHERE session = ?1 AND (?2 = '' OR status = ?2) ORDER BY number DESC LIMIT ?3
"""
_FORGET_RUNS = (  # all but the newest, whose number is the second parameter
    "DELETE FROM output WHERE run IN"
    " (SELECT id FROM run WHERE session = ?1 ORDER BY number DESC LIMIT -1 OFFSET ?2)",
    "DELETE FROM run WHERE number IN"
    " (SELECT number FROM run WHERE session = ?1 ORDER BY number DESC LIMIT -1 OFFSET ?2)",
)


@dataclass(frozen=True)
class KeptRun:
    """A run of a session. Times are seconds since the epoch."""

    id: str
    skill: str
    """'' when it named none."""
    kind: str
    """`shell`, `argv`, `script` or `code`; with `background` in front when it was started as such."""
    begun: float
    ended: float | None
    status: str
    """As in a result; `begun` while it is under way, `interrupted` when its owner died meanwhile."""
    exit_code: int | None
    bytes: int
    """Written to stdout and stderr."""


@dataclass(frozen=True)
class KeptSession:
    """A session that outlives its process. Times are seconds since the epoch."""

    id: str
    runtime: str
    image: str
    limits: dict[str, Any] | None
    """None for one that was imported: limits are not taken from a stranger."""
    durable: bool
    created: float
    used: float
    owner: str
    """Who has it open; '' when nobody has."""
    snapshot: str
    """Id of the latest one; '' when none was taken."""
    saved: float
    files: int
    size: int
    skills: tuple[str, ...] = ()
    """What was staged when it was saved."""
    runs: tuple[KeptRun, ...] = field(default=(), compare=False)
    """The newest one last; how many depends on who asked."""

    @property
    def open(self) -> bool:
        """Whether somebody has it open, as far as can be seen from here."""
        return bool(self.owner) and not is_dead(_label(self.owner))


def taken(session: str) -> BadRequestError:
    """What is said when a session is to come in under an id that there is."""
    return BadRequestError(
        f"there is a session {session!r} already",
        hint=f"Give another id (--as ID), or remove that one: executor sessions rm {session}",
    )


class Sessions:
    """The table of sessions. Every method is one short transaction; one that waits for another process blocks
    its thread.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    # -- owning --

    @staticmethod
    def new_owner() -> str:
        """A name for one holder of sessions in this process."""
        return f"{owner_label()}/{secrets.token_hex(4)}"

    def claim(
        self, session: str, owner: str, *, runtime: str, image: str, limits: Mapping[str, Any], durable: bool
    ) -> tuple[KeptSession | None, list[KeptRun]]:
        """Make a session this owner's: what it was before, and which of its runs were interrupted.

        BadRequestError when somebody else has it open.
        """
        now = time.time()
        with self.database.change() as connection:
            before = _one(connection, session)
            if before is not None and before.owner != owner and before.open:
                raise BadRequestError(
                    f"session {session!r} is open in {_who(before.owner)}",
                    hint="Close it there, use another id, or end that process.",
                )
            if before is None:
                connection.execute(
                    "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?, ?, '', 0, 0, 0, '[]')",
                    (session, runtime, image, json.dumps(dict(limits)), durable, now, now, owner),
                )
            else:
                connection.execute(
                    "UPDATE session SET runtime = ?, image = ?, limits = ?, durable = ?, used = ?, owner = ?"
                    " WHERE id = ?",
                    (runtime, image, json.dumps(dict(limits)), durable, now, owner, session),
                )
            interrupted = list(_runs(connection, session, MOST_RUNS, BEGUN))
            connection.execute(
                "UPDATE run SET status = ?, ended = ? WHERE session = ? AND status = ?",
                (INTERRUPTED, now, session, BEGUN),
            )
            for statement in _FORGET_RUNS:
                connection.execute(statement, (session, MOST_RUNS))
        return before, interrupted

    def release(self, session: str, owner: str) -> None:
        """It is closed. What was never saved and never ran is forgotten."""
        with self.database.change() as connection:
            mine = (session, owner)
            connection.execute(
                "UPDATE session SET owner = '', used = ? WHERE id = ? AND owner = ?", (time.time(), *mine)
            )
            connection.execute(
                "DELETE FROM session WHERE id = ? AND owner = '' AND snapshot = ''"
                " AND NOT EXISTS (SELECT 1 FROM run WHERE run.session = session.id)",
                (session,),
            )

    # -- what an owner writes --

    def keep(
        self, session: str, owner: str, *, snapshot: str, files: int, size: int, skills: Iterable[str]
    ) -> float:
        """Make a snapshot the session's latest. When that was. StateError when the session is not his."""
        now = time.time()
        with self.database.change() as connection:
            connection.execute(
                "UPDATE garbage SET count = count + 1 WHERE EXISTS"
                " (SELECT 1 FROM session WHERE id = ? AND owner = ? AND snapshot NOT IN ('', ?))",
                (session, owner, snapshot),
            )
            done = connection.execute(
                "UPDATE session SET snapshot = ?, saved = ?, used = ?, files = ?, size = ?, skills = ?"
                " WHERE id = ? AND owner = ?",
                (snapshot, now, now, files, size, json.dumps(sorted(skills)), session, owner),
            )
            if done.rowcount != 1:
                raise StateError(
                    f"session {session!r} was removed or taken over meanwhile: no more of it is kept"
                )
        return now

    def begin_run(self, session: str, owner: str, *, run_id: str, skill: str, kind: str) -> None:
        """A run is about to be asked for. StateError when the session is not his."""
        with self.database.change() as connection:
            done = connection.execute(
                "INSERT INTO run (session, id, skill, kind, begun, status, bytes)"
                " SELECT id, ?, ?, ?, ?, ?, 0 FROM session WHERE id = ? AND owner = ?",
                (run_id, skill, kind, time.time(), BEGUN, session, owner),
            )
            if done.rowcount != 1:
                raise StateError(
                    f"session {session!r} was removed or taken over meanwhile: its runs are not recorded"
                )

    def end_run(self, run_id: str, *, status: str, exit_code: int | None, size: int) -> None:
        """A run has ended, or will not begin."""
        with self.database.change() as connection:
            connection.execute(
                "UPDATE run SET status = ?, exit_code = ?, bytes = ?, ended = ? WHERE id = ?",
                (status, exit_code, size, time.time(), run_id),
            )

    def add_outputs(self, run_id: str, files: Iterable[tuple[str, int, str, str]]) -> None:
        """What a run brought: (path, size, MIME type, SHA-256)."""
        with self.database.change() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO output SELECT ?, ?, ?, ?, ?, NULL"
                " WHERE EXISTS (SELECT 1 FROM run WHERE id = ?)",
                [(run_id, to_bytes(path), *more, run_id) for path, *more in files],
            )

    def saved(self, run_id: str, path: str, where: str) -> None:
        """An output was saved on the host."""
        with self.database.change() as connection:
            connection.execute(
                "UPDATE output SET saved_as = ? WHERE run = ? AND path = ?",
                (os.fsencode(where), run_id, to_bytes(path)),
            )

    # -- asking --

    def get(self, session: str) -> KeptSession | None:
        """One session, without its runs."""
        with self.database.look() as connection:
            return _one(connection, session)

    def all(self, runs: int = 1) -> list[KeptSession]:
        """Every session, the one used last first, each with its newest `runs` runs."""
        with self.database.look() as connection:
            rows = connection.execute(_SESSIONS, ("",)).fetchall()
            return [_session(row, _runs(connection, row[0], runs)) for row in rows]

    def runs(self, session: str, most: int = MOST_RUNS) -> list[KeptRun]:
        """The newest runs of a session, oldest first."""
        with self.database.look() as connection:
            return list(_runs(connection, session, most))

    def outputs(self, run_id: str) -> list[dict[str, Any]]:
        """What a run brought, sorted by path: `path`, `size`, `mime`, `sha256`, `saved_as`."""
        names = ("path", "size", "mime", "sha256", "saved_as")
        with self.database.look() as connection:
            rows = connection.execute(
                "SELECT path, size, mime, sha256, saved_as FROM output WHERE run = ? ORDER BY path", (run_id,)
            ).fetchall()
        return [
            {
                name: _AS_TEXT[name](value) if isinstance(value, bytes) else value
                for name, value in zip(names, row, strict=True)
            }
            for row in rows
        ]

    def snapshots(self) -> dict[str, str]:
        """Every snapshot that is some session's latest → one of those sessions."""
        with self.database.look() as connection:
            rows = connection.execute("SELECT snapshot, id FROM session WHERE snapshot != ''").fetchall()
        return dict(rows)

    def garbage(self) -> int:
        """How many snapshots a newer one has replaced since the last clearing."""
        with self.database.look() as connection:
            (count,) = connection.execute("SELECT count FROM garbage").fetchone()
        return int(count)

    def cleared(self) -> None:
        """They are gone."""
        with self.database.change() as connection:
            connection.execute("UPDATE garbage SET count = 0")

    # -- coming and going whole --

    def add(
        self,
        session: str,
        *,
        runtime: str,
        image: str,
        snapshot: str,
        files: int,
        size: int,
        skills: Iterable[str],
    ) -> None:
        """A session that comes from elsewhere. BadRequestError when the id is taken."""
        now = time.time()
        with self.database.change() as connection:
            if _one(connection, session) is not None:
                raise taken(session)
            connection.execute(
                "INSERT INTO session VALUES (?, ?, ?, NULL, 1, ?, ?, '', ?, ?, ?, ?, ?)",
                (session, runtime, image, now, now, snapshot, now, files, size, json.dumps(sorted(skills))),
            )

    def forget(self, session: str, *, force: bool = False) -> bool:
        """Remove a session with its runs and outputs; whether there was one.

        BadRequestError when somebody has it open, unless `force`.
        """
        with self.database.change() as connection:
            found = _one(connection, session)
            if found is not None and found.open and not force:
                raise BadRequestError(
                    f"session {session!r} is open in {_who(found.owner)}",
                    hint="Close it there first, or remove it all the same with --force.",
                )
            for statement in _FORGET_RUNS:
                connection.execute(statement, (session, 0))
            connection.execute("DELETE FROM session WHERE id = ?", (session,))
        return found is not None


def _label(owner: str) -> str:
    return owner.rpartition("/")[0]


def _who(owner: str) -> str:
    label = _label(owner)
    if label == owner_label():
        return "this process"
    host, *_, pid, _start = label.split(":")
    return f"process {pid} of {host}"


def _one(connection: sqlite3.Connection, session: str) -> KeptSession | None:
    try:
        row = connection.execute(_SESSIONS, (session,)).fetchone() if session else None
    except UnicodeEncodeError:  # bytes of a command line that are no text: no session is called that
        row = None
    return None if row is None else _session(row)


def _session(row: tuple[Any, ...], runs: tuple[KeptRun, ...] = ()) -> KeptSession:
    name, runtime, image, limits, durable, created, used, owner, snapshot, saved, files, size, skills = row
    return KeptSession(
        name,
        runtime,
        image,
        None if limits is None else json.loads(limits),
        bool(durable),
        created,
        used,
        owner,
        snapshot,
        saved,
        files,
        size,
        tuple(json.loads(skills)),
        runs,
    )


def _runs(connection: sqlite3.Connection, session: str, most: int, status: str = "") -> tuple[KeptRun, ...]:
    rows = connection.execute(_RUNS, (session, status, most)).fetchall()
    return tuple(KeptRun(*row) for row in reversed(rows))
