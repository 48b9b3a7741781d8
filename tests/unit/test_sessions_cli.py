"""`executor sessions`: what is listed, removed, moved and cleared away, and what is refused."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from executor.cli import app
from executor.skills.state import Expansion, SkillState
from executor.skills.store import StateStore
from executor.state import FILE
from executor.workspace.checkpoint import Store
from tests.unit.test_archive import FILES, keep
from tests.unit.test_database import ABOUT, dead, stranger


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("EXECUTOR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "state")


Said = tuple[int, str, str]


@pytest.fixture
def sessions(store: Store, capfd: pytest.CaptureFixture[str]) -> Any:
    def invoke(*words: str) -> Said:
        status = app.main(["sessions", *words])
        out, err = capfd.readouterr()
        return status, out, err

    return invoke


def listed(sessions: Any) -> dict[str, dict[str, Any]]:
    status, out, err = sessions("list", "--json")
    assert (status, err) == (0, "")
    return {found["id"]: found for found in json.loads(out)["sessions"]}


def test_an_empty_state_says_how_to_keep_a_session(sessions: Any, store: Store) -> None:
    status, out, err = sessions("list")
    assert (status, out) == (0, "")
    assert f"no session is kept in {store.folder}" in err and "--session ID" in err
    assert listed(sessions) == {}
    assert sessions("gc") == (0, "", "executor: 0 B cleared away: 0 snapshots, 0 contents\n")


def test_the_list_says_what_is_there_and_how_it_stands(sessions: Any, store: Store) -> None:
    keep(store, "kept", FILES)
    mine = store.sessions.new_owner()
    for name, owner in (("open", stranger()), ("left", dead(mine))):
        store.sessions.claim(name, owner, **ABOUT)
        store.sessions.begin_run(name, owner, run_id=name, skill="x", kind="shell")
    SkillState(StateStore(store.folder / FILE), session="agent", mode="session").load(
        Expansion(skill="sales-report", digest="d", body="b")
    )
    found = listed(sessions)
    states = {name: session["state"] for name, session in found.items()}
    assert states == {"kept": "kept", "open": "open", "left": "interrupted", "agent": "loaded"}
    assert (found["kept"]["files"], found["kept"]["skills"], found["kept"]["last_run"]) == (5, ["x"], None)
    assert found["open"]["last_run"]["status"] == "begun"
    assert found["left"]["last_run"]["status"] == "interrupted"
    assert found["agent"]["loaded"] == ["sales-report"]
    assert abs(found["kept"]["saved"] - time.time()) < 60
    status, out, err = sessions("list")
    lines = [line.split() for line in out.splitlines()]
    assert (status, err) == (0, "")
    assert lines[0][:3] == ["session", "state", "runtime"]
    assert sorted(line[:2] for line in lines[1:]) == sorted([name, state] for name, state in states.items())


def test_rm_removes_all_of_a_session_and_nothing_of_another(sessions: Any, store: Store) -> None:
    keep(store, "s", FILES)
    keep(store, "twin", {b"/workspace/out/report.txt": FILES[b"/workspace/out/report.txt"]})
    loaded = StateStore(store.folder / FILE)
    for name in ("s", "twin"):
        SkillState(loaded, session=name, mode="session").load(Expansion(skill="a", digest="d", body="b"))
    status, out, err = sessions("rm", "s")
    assert (status, out) == (0, "") and err.startswith("executor: removed s; ")
    assert listed(sessions).keys() == {"twin"}
    assert loaded.sessions() == {"twin": ["a"]}
    assert store.verify(store.sessions.all()[0]).files == 1
    assert len(list(store.folder.glob("objects/*/*"))) == 1
    assert json.loads(sessions("rm", "twin", "--json")[1])["removed"] == ["twin"]
    assert not list(store.folder.glob("objects/*/*")) and not list(store.folder.glob("snapshots/*"))


def test_rm_refuses_before_it_removes_anything(sessions: Any, store: Store) -> None:
    keep(store, "s", FILES)
    store.sessions.claim("open", stranger(5), **ABOUT)
    status, _, err = sessions("rm", "s", "open")
    assert status == 125
    assert "session 'open' is open in process 5 of elsewhere" in err and "--force" in err
    status, _, err = sessions("rm", "s", "never")
    assert status == 125 and "there is no session 'never'" in err and "sessions list" in err
    assert listed(sessions).keys() == {"s", "open"}
    assert sessions("rm", "s", "open", "--force")[0] == 0
    assert listed(sessions) == {}


def test_a_session_goes_out_and_comes_in(sessions: Any, store: Store) -> None:
    keep(store, "s", FILES)
    status, out, err = sessions("export", "s")
    assert (status, out) == (0, "")
    assert err.startswith("executor: session s is in s.tar.gz: 5 files, ")
    status, _, err = sessions("export", "s")
    assert status == 125 and "s.tar.gz exists already" in err and "--overwrite" in err
    about = json.loads(sessions("export", "s", "s.tar.gz", "--overwrite", "--json")[1])
    assert (about["file"], about["files"], about["bytes"]) == ("s.tar.gz", 5, os.stat("s.tar.gz").st_size)
    status, _, err = sessions("import", "s.tar.gz")
    assert status == 125 and "there is a session 's' already" in err and "--as ID" in err
    status, out, _ = sessions("import", "s.tar.gz", "--as", "copy", "--json")
    assert (status, json.loads(out)["session"]) == (0, "copy")
    status, _, err = sessions("import", "s.tar.gz", "--as", "copy-2")
    assert status == 0 and "executor run SKILL --session copy-2 -- COMMAND goes on with it" in err
    assert store.sessions.get("copy").snapshot == store.sessions.get("copy-2").snapshot  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (("export", "never"), "'never' has no checkpoint"),
        (("export", "\udcff"), "has no checkpoint"),
        (("import", "missing.tar"), "missing.tar cannot be imported"),
        (("import", "."), "cannot be imported"),
        (("rm",), "Missing argument"),
    ],
)
def test_what_cannot_be_done_is_said_with_status_125(
    sessions: Any, words: tuple[str, ...], fragment: str
) -> None:
    status, out, err = sessions(*words)
    assert (status, out) == (125, "")
    assert fragment in err
    status, out, _ = sessions(*words, "--json")
    assert status == 125 and fragment in json.loads(out)["error"]["message"]


def test_gc_keeps_what_a_damaged_session_may_need(sessions: Any, store: Store) -> None:
    snapshot = keep(store, "s", FILES)
    store.objects.manifest(snapshot.id).write_bytes(b"{}")
    status, _, err = sessions("gc")
    assert status == 125
    assert "nothing was cleared away" in err and "executor sessions rm s" in err
    assert len(list(store.folder.glob("objects/*/*"))) == 4
    status, _, err = sessions("rm", "s")
    assert status == 0
    assert not list(store.folder.glob("objects/*/*"))


def test_the_list_tells_of_a_database_that_was_set_aside(sessions: Any, store: Store) -> None:
    store.folder.mkdir()
    (store.folder / FILE).write_bytes(b"this is no database" * 1000)
    status, _, err = sessions("list")
    assert status == 0
    assert err.count("warning") == 2 and f"{FILE}.broken-" in err
    assert json.loads(sessions("list", "--json")[1])["warnings"]
