"""The embedded database: one SQLite file that any number of processes may have open.

Rules of this module:
1. Every change is one short transaction that has read what it changes (`change`), so nothing is lost between
   two processes, and killing one at any moment leaves the last complete change in force. No transaction is
   open while anything else is waited for.
2. The schema has a number. A file of an older one is brought up to date, whole or not at all; one of a newer
   schema is refused untouched.
3. A file that is no database any more is set aside under another name and never deleted.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from executor.errors import StateError

if sys.platform != "win32":
    import fcntl

FILE = "state.sqlite"  # its name in the state folder
WAIT = 10.0  # seconds for another process to finish its change
CHECKED = 16 << 20  # bytes up to which a file is looked through when it is opened; takes about 1 ms a MiB
BROKEN = ".broken-"

# The n-th brings a file of version n to version n+1. What stands here has been released and is never changed.
MIGRATIONS = (
    """
    CREATE TABLE IF NOT EXISTS skill_state (
        session TEXT NOT NULL, agent TEXT NOT NULL, changed REAL NOT NULL, record TEXT NOT NULL,
        PRIMARY KEY (session, agent)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS skill_text (
        session TEXT NOT NULL, agent TEXT NOT NULL, skill TEXT NOT NULL, path TEXT NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (session, agent, skill, path)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS skill_event (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, agent TEXT NOT NULL, at REAL NOT NULL,
        kind TEXT NOT NULL, skill TEXT NOT NULL, digest TEXT NOT NULL, reason TEXT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS skill_event_owner ON skill_event (session, agent, number);
    CREATE TABLE session (
        id TEXT PRIMARY KEY, runtime TEXT NOT NULL, image TEXT NOT NULL, limits TEXT,
        durable INTEGER NOT NULL, created REAL NOT NULL, used REAL NOT NULL, owner TEXT NOT NULL,
        snapshot TEXT NOT NULL, saved REAL NOT NULL, files INTEGER NOT NULL, size INTEGER NOT NULL,
        skills TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE run (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL, skill TEXT NOT NULL,
        kind TEXT NOT NULL, begun REAL NOT NULL, ended REAL, status TEXT NOT NULL, exit_code INTEGER,
        bytes INTEGER NOT NULL
    );
    CREATE INDEX run_session ON run (session, number);
    CREATE UNIQUE INDEX run_id ON run (id);
    CREATE TABLE output (
        run TEXT NOT NULL, path BLOB NOT NULL, size INTEGER NOT NULL, mime TEXT NOT NULL,
        sha256 TEXT NOT NULL, saved_as BLOB, PRIMARY KEY (run, path)
    ) WITHOUT ROWID;
    CREATE TABLE garbage (count INTEGER NOT NULL);
    INSERT INTO garbage VALUES (0);
    """,
)
VERSION = len(MIGRATIONS)
_BROKEN_CODES = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


class Database:
    """`path`: the file, made if missing and readable by its owner only; `:memory:` keeps nothing.

    StateError when the place cannot be used, or the file is of a newer version. May be used from any thread.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.warnings: list[str] = []
        """What was wrong with the file that was found."""
        self._lock = threading.RLock()
        self._is_closed = False
        try:
            with self._alone():
                self._connection = self._open_sound()
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(error) from error

    @property
    def set_aside(self) -> list[Path]:
        """Files that were no usable database. What only they knew of is still in the folder."""
        path = Path(self.path)
        return sorted(path.parent.glob(f"{path.name}{BROKEN}*"))

    @contextlib.contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One transaction: written when the block ends, dropped when it raises. Keep it short."""
        with self._lock, self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        """All reads of the block see one moment."""
        with self._lock, self._told():
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")

    def to_disk(self) -> None:
        """Everything that was changed is on the disk when this returns, also should the power fail."""
        with self._lock, self._told():
            self._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def close(self) -> None:
        """Close the file. A closed database is not used again."""
        with self._lock:
            self._is_closed = True
            self._connection.close()

    # -- opening --

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one process at a time makes, updates or sets aside the file."""
        if self.path == ":memory:":
            yield
            return
        Path(self.path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if sys.platform == "win32":
            yield
            return
        fd = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _open_sound(self) -> sqlite3.Connection:
        try:
            return self._open()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF not in _BROKEN_CODES or self.path == ":memory:":
                raise
            aside = f"{self.path}{BROKEN}{time.time_ns()}"
            os.replace(self.path, aside)
            for suffix in ("-wal", "-shm"):  # they belong to the file that went
                with contextlib.suppress(FileNotFoundError):
                    os.replace(self.path + suffix, aside + suffix)
            self.warnings.append(f"{self.path} was no usable database ({error}); it is now {aside}")
            return self._open()

    def _open(self) -> sqlite3.Connection:
        if self.path != ":memory:":
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            self.path, timeout=WAIT, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            # First, because everything that follows may write.
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise StateError(
                    f"{self.path} is of a newer version of executor: its schema is {version}, and this one"
                    f" knows {VERSION}",
                    hint="Update executor, or give another state_dir (EXECUTOR_STATE_DIR).",
                )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if self.path != ":memory:" and os.path.getsize(self.path) <= CHECKED:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if found != "ok":
                    error = sqlite3.DatabaseError(found)
                    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                    raise error
            for number in range(version, VERSION):
                self._migrate(connection, number)
        except BaseException:
            connection.close()
            raise
        return connection

    @staticmethod
    def _migrate(connection: sqlite3.Connection, number: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for statement in filter(str.strip, MIGRATIONS[number].split(";\n")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("COMMIT")

    # -- errors --

    def _unusable(self, error: Exception) -> StateError:
        return StateError(
            f"the state cannot be kept in {self.path}: {error}",
            hint="Make room and look at its folder's owner, or give another state_dir (EXECUTOR_STATE_DIR).",
        )

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A full disk, a file that stays locked and one that broke are told as errors of this package."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if self._is_closed:
                raise StateError(f"{self.path} has been closed", hint="Open it anew.") from None
            if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise
            raise self._unusable(error) from error
