"""The database of what is kept: versions, damage, many processes, and whose a session is."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from executor.errors import BadRequestError, StateError
from executor.skills.state import Expansion, SkillState
from executor.skills.store import StateStore
from executor.state import FILE, Database, Sessions, database
from executor.workspace.checkpoint import Store
from executor.workspace.snapshot import Snapshot

ABOUT = {"runtime": "local", "image": "", "limits": {"memory": 1}, "durable": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE


@pytest.fixture
def sessions(path: Path) -> Sessions:
    return Sessions(Database(path))


def stranger(pid: int = 1) -> str:
    """An owner who cannot be looked up from here, and so is taken for alive."""
    return f"elsewhere:boot:ns:{pid}:0/aa"


def dead(owner: str) -> str:
    """The owner that this process would be, had it ended."""
    label, _, token = owner.rpartition("/")
    host, boot, namespace, _pid, _start = label.split(":")
    return f"{host}:{boot}:{namespace}:{1 << 22}:7/{token}"


# -- the file --


def test_a_file_of_a_newer_version_is_refused_untouched(path: Path) -> None:
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StateError, match=f"its schema is {database.VERSION + 1}") as caught:
        Database(path)
    assert "Update executor" in caught.value.hint
    assert path.read_bytes() == before


def test_a_file_without_a_version_keeps_what_is_loaded(path: Path) -> None:
    StateStore(path).close()
    with sqlite3.connect(path) as connection:
        for table in ("session", "run", "output", "garbage"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    one = SkillState(StateStore(path), session="s", mode="session")
    one.load(Expansion(skill="a", digest="d", body="b"))
    assert [loaded.skill for loaded in one.loaded()] == ["a"]
    assert Sessions(Database(path)).all() == []


def test_an_update_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Sessions(Database(path)).claim("s", stranger(), **ABOUT)
    broken = "ALTER TABLE session ADD COLUMN colour TEXT;\nCREATE TABLE session (id TEXT)"
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, broken))
    monkeypatch.setattr(database, "VERSION", database.VERSION + 1)
    with pytest.raises(StateError, match="already exists"):
        Database(path)
    monkeypatch.undo()
    assert [session.id for session in Sessions(Database(path)).all()] == ["s"]


def test_a_file_that_broke_in_its_middle_is_set_aside_and_nothing_is_cleared_away_meanwhile(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    part, file = store.objects.part()
    file.write(b"only the broken file knows of it")
    file.close()
    snapshot = Snapshot([])
    store.objects.add({"0" * 64: part}, (snapshot.id, snapshot.sealed()))
    for number in range(200):
        store.sessions.claim(f"s{number}", stranger(), **ABOUT)
    store.sessions.database.to_disk()
    store.close()
    path = tmp_path / FILE
    data = bytearray(path.read_bytes())
    data[3 * 4096 : 5 * 4096] = os.urandom(2 * 4096)
    path.write_bytes(data)
    again = Store(tmp_path)
    assert again.sessions.all() == []
    (warning,) = again.sessions.database.warnings
    (aside,) = again.sessions.database.set_aside
    assert str(aside) in warning and aside.read_bytes() == data
    with pytest.raises(StateError, match="nothing was cleared away"):
        again.clear()
    aside.unlink()
    assert again.clear()[1] == 1


def _claim(path: str, number: int) -> str:
    try:
        sessions = Sessions(Database(path))
        owner = sessions.new_owner()
        for turn in range(5):
            sessions.claim(f"own-{number}-{turn}", owner, **ABOUT)
            sessions.begin_run(
                f"own-{number}-{turn}", owner, run_id=f"{number}-{turn}", skill="", kind="argv"
            )
            sessions.end_run(f"{number}-{turn}", status="ok", exit_code=0, size=1)
            sessions.release(f"own-{number}-{turn}", owner)
        try:
            sessions.claim("shared", owner, **ABOUT)
        except BadRequestError:
            return "refused"
        return "claimed"
    except Exception as error:
        return repr(error)


def test_many_processes_make_and_use_one_file_and_one_of_them_gets_a_session(path: Path) -> None:
    """trpc-35 for this store"""
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        said = pool.starmap(_claim, [(str(path), number) for number in range(4)], chunksize=1)
        assert sorted(said) == ["claimed", *["refused"] * 3]
    sessions = Sessions(Database(path))
    assert len(sessions.all()) == 21
    assert all(session.runs[0].status == "ok" for session in sessions.all() if session.id != "shared")


def test_a_file_that_stays_locked_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAIT", 0.05)
    sessions = Sessions(Database(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateError, match="database is locked"):
        sessions.claim("s", sessions.new_owner(), **ABOUT)
    other.execute("ROLLBACK")
    sessions.claim("s", sessions.new_owner(), **ABOUT)


# -- whose a session is --


def test_a_session_is_claimed_by_one_until_he_lets_go_or_dies(sessions: Sessions) -> None:
    mine, other = sessions.new_owner(), stranger(77)
    assert sessions.claim("s", mine, **ABOUT) == (None, [])
    assert sessions.claim("s", mine, **ABOUT)[0] is not None  # again is no harm
    with pytest.raises(BadRequestError, match="is open in this process"):
        sessions.claim("s", sessions.new_owner(), **ABOUT)
    sessions.keep("s", mine, snapshot="a", files=1, size=2, skills=["x"])
    sessions.release("s", mine)
    before, _ = sessions.claim("s", other, **{**ABOUT, "durable": False})
    assert before is not None and (before.owner, before.snapshot, before.open) == ("", "a", False)
    with pytest.raises(BadRequestError, match="is open in process 77 of elsewhere"):
        sessions.claim("s", mine, **ABOUT)


def test_runs_of_a_dead_owner_are_interrupted_once(sessions: Sessions) -> None:
    mine = sessions.new_owner()
    gone = dead(mine)
    sessions.claim("s", gone, **ABOUT)
    sessions.begin_run("s", gone, run_id="r1", skill="x", kind="shell")
    sessions.begin_run("s", gone, run_id="r2", skill="", kind="argv")
    sessions.end_run("r2", status="ok", exit_code=0, size=3)
    (kept,) = sessions.all()
    assert (kept.open, kept.runs[-1].id) == (False, "r2")
    before, interrupted = sessions.claim("s", mine, **ABOUT)
    assert before is not None and before.owner == gone
    assert [(run.id, run.skill, run.status) for run in interrupted] == [("r1", "x", "begun")]
    assert [(run.id, run.status) for run in sessions.runs("s")] == [("r1", "interrupted"), ("r2", "ok")]
    assert sessions.claim("s", mine, **ABOUT)[1] == []


@pytest.mark.parametrize(
    "write",
    [
        lambda sessions, owner: sessions.keep("s", owner, snapshot="b", files=1, size=1, skills=[]),
        lambda sessions, owner: sessions.begin_run("s", owner, run_id="r", skill="", kind="argv"),
    ],
)
def test_an_owner_who_lost_a_session_writes_no_more_to_it(
    sessions: Sessions, write: Callable[[Sessions, str], object]
) -> None:
    mine = sessions.new_owner()
    sessions.claim("s", mine, **ABOUT)
    sessions.forget("s", force=True)
    with pytest.raises(StateError, match="removed or taken over"):
        write(sessions, mine)
    sessions.claim("s", stranger(), **ABOUT)
    with pytest.raises(StateError, match="removed or taken over"):
        write(sessions, mine)
    sessions.release("s", mine)  # no harm either
    assert sessions.all()[0].owner == stranger()


def test_an_open_session_is_removed_only_by_force_and_then_with_all_of_it(sessions: Sessions) -> None:
    sessions.claim("s", stranger(), **ABOUT)
    sessions.begin_run("s", stranger(), run_id="r", skill="", kind="argv")
    sessions.add_outputs("r", [("out/\udcff", 1, "text/plain", "0")])
    sessions.saved("r", "out/\udcff", "/tmp/\udcfe")
    assert sessions.outputs("r")[0]["path"] == "out/\udcff"
    assert sessions.outputs("r")[0]["saved_as"] == "/tmp/\udcfe"
    with pytest.raises(BadRequestError, match="is open in process 1 of elsewhere") as caught:
        sessions.forget("s")
    assert "--force" in caught.value.hint
    assert sessions.forget("s", force=True)
    assert not sessions.forget("s", force=True)
    assert (sessions.all(), sessions.runs("s"), sessions.outputs("r")) == ([], [], [])


def test_what_was_never_saved_and_never_ran_is_forgotten(sessions: Sessions) -> None:
    mine = sessions.new_owner()
    for name in ("empty", "ran"):
        sessions.claim(name, mine, **ABOUT)
    sessions.begin_run("ran", mine, run_id="r", skill="", kind="argv")
    for name in ("empty", "ran"):
        sessions.release(name, mine)
    assert [session.id for session in sessions.all()] == ["ran"]


def test_of_many_runs_the_newest_are_kept(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = sessions.new_owner()
    sessions.claim("s", mine, **ABOUT)
    for number in range(5):
        sessions.begin_run("s", mine, run_id=f"r{number}", skill="", kind="argv")
        sessions.add_outputs(f"r{number}", [("out/x", 1, "text/plain", "0")])
        sessions.end_run(f"r{number}", status="ok", exit_code=0, size=0)
    monkeypatch.setattr("executor.state.sessions.MOST_RUNS", 2)
    sessions.claim("s", mine, **ABOUT)
    assert [run.id for run in sessions.runs("s")] == ["r3", "r4"]
    assert (sessions.outputs("r2"), len(sessions.outputs("r3"))) == ([], 1)
