"""What an agent has loaded: lifetimes, order, cap, documents, declared loads, and that all of it is kept.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
from pathlib import Path

import pytest

from executor.errors import BadRequestError, SkillNotFoundError
from executor.skills.contents import Resource
from executor.skills.state import Expansion, LoadRequest, SkillState, merge_requests
from executor.skills.store import StateStore


def made(skill: str, digest: str = "d1", **more: object) -> Expansion:
    return Expansion(skill=skill, digest=digest, body=f"body of {skill}", **more)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "state.sqlite")


def state(store: StateStore, **options: object) -> SkillState:
    return SkillState(store, **{"session": "s", **options})  # type: ignore[arg-type]


def names(one: SkillState) -> list[str]:
    return [loaded.skill for loaded in one.loaded()]


# -- lifetimes --


def test_turn_mode_ends_once_at_the_next_turn_and_never_within_one(store: StateStore) -> None:
    """trpc-15, trpc-1.5.3"""
    one = state(store)
    one.begin_turn()
    one.load(made("a"))
    for _ in range(3):
        assert [loaded.skill for loaded in one.begin_request()] == ["a"]
    one.begin_turn()
    assert names(one) == []
    one.load(made("b"))
    one.begin_request()
    assert names(one) == ["b"]
    ended = [(event.skill, event.reason) for event in one.history() if event.kind == "skill_unloaded"]
    assert ended == [("a", "turn")]


def test_once_mode_is_shown_in_one_request(store: StateStore) -> None:
    """trpc-16, trpc-1.5.3"""
    one = state(store, mode="once")
    one.load(made("a"))
    assert [loaded.body for loaded in one.begin_request()] == ["body of a"]
    assert one.begin_request() == []


def test_session_mode_is_still_there_after_two_turns(store: StateStore) -> None:
    """trpc-16, trpc-1.5.3"""
    one = state(store, mode="session")
    one.load(made("a"))
    one.begin_turn()
    one.begin_turn()
    assert names(one) == ["a"]


def test_run_mode_outlives_turns_and_not_its_run(store: StateStore) -> None:
    """WN-07, ref-23"""
    one = state(store, mode="run")
    one.begin_run("r1")
    one.load(made("a", tools=("t",)))
    one.begin_turn()
    one.begin_run("r1")
    assert one.owners("t") == ["a"]
    one.begin_run("r2")
    assert (names(one), one.owners("t")) == ([], [])


def test_an_unknown_mode_is_turn(store: StateStore) -> None:
    """trpc row 1.5 modes"""
    one = state(store, mode="forever")
    assert one.mode == "turn"
    one.load(made("a"))
    one.begin_turn()
    assert names(one) == []


# -- who sees what --


def test_two_agents_and_two_sessions_never_see_each_other(store: StateStore) -> None:
    """trpc-17, trpc-1.5.1"""
    p, q = state(store, agent="p"), state(store, agent="q")
    other = state(store, agent="p", session="s2")
    p.load(made("a"))
    q.load(made("b"))
    q.unload("b")
    assert (names(p), names(q), names(other)) == (["a"], [], [])
    with pytest.raises(SkillNotFoundError):
        q.unload("a")
    q.clear()
    q.begin_turn()
    assert names(p) == ["a"]


def test_an_agents_name_may_hold_anything(store: StateStore) -> None:
    """trpc row 1.5 keys: an agent with / is another agent than its parts; trpc-1.5.1"""
    one, two = state(store, agent="a/b"), state(store, agent="a")
    one.load(made("x"))
    assert (names(one), names(two)) == (["x"], [])


# -- order and cap --


def test_the_ones_touched_longest_ago_go_first(store: StateStore) -> None:
    """trpc-17, trpc-1.5.5"""
    one = state(store, most=3)
    for skill in "abcd":
        one.load(made(skill))
    assert names(one) == ["b", "c", "d"]
    one.touch("b")
    one.load(made("e"))
    assert names(one) == ["d", "b", "e"]


def test_selecting_documents_is_a_touch(store: StateStore) -> None:
    """ref-19"""
    one = state(store, most=2)
    one.load(made("a"))
    one.load(made("b"))
    one.select("a", {"x.md": "x"})
    one.load(made("c"))
    assert names(one) == ["a", "c"]
    assert [event.skill for event in one.history() if event.reason == "cap"] == ["b"]


def test_a_cap_below_one_is_refused(store: StateStore) -> None:
    with pytest.raises(BadRequestError, match="most=0"):
        state(store, most=0)


# -- documents --


def test_documents_are_added_replaced_and_cleared(store: StateStore) -> None:
    """trpc-18, ref-18"""
    one = state(store)
    one.load(made("a"))

    def select(*docs: str, **how: object) -> tuple[list[str], bool]:
        loaded = one.select("a", {doc: f"text of {doc}" for doc in docs}, **how)  # type: ignore[arg-type]
        return list(loaded.docs), loaded.all_docs

    assert select("x") == (["x"], False)
    assert select("y", "x", mode="add") == (["x", "y"], False)
    assert select("z", mode="replace") == (["z"], False)
    assert select("q", mode="no such mode") == (["q"], False)
    assert select("x", "y", "z", include_all=True) == (["x", "y", "z"], True)
    assert select("x", mode="add") == (["x", "y", "z"], True)
    assert select("x") == (["x", "y", "z"], True)
    assert select(mode="clear") == ([], False)
    assert select("y", mode="add") == (["y"], False)
    kept = one.get("a")
    assert kept is not None and kept.docs == {"y": "text of y"}


def test_documents_of_a_skill_that_is_not_loaded_are_refused(store: StateStore) -> None:
    one = state(store)
    one.load(made("b"))
    with pytest.raises(SkillNotFoundError, match=r"'a' is not loaded \(loaded: b\)"):
        one.select("a", {})


# -- exit and scoped tools --


def test_exit_takes_the_most_recent_and_a_shared_tool_stays(store: StateStore) -> None:
    """ref-24, WN-11, WN-12"""
    one = state(store)
    one.load(made("a", tools=("t",)))
    one.load(made("b", tools=("t", "u")))
    assert (one.owners("t"), one.owners("u")) == (["a", "b"], ["b"])
    assert one.exit() == "b"
    assert (one.owners("t"), one.owners("u")) == (["a"], [])
    assert one.exit() == "a"
    assert one.owners("t") == []
    assert one.exit() is None
    expanded = [event.skill for event in one.history() if event.kind == "skill_expanded"]
    assert expanded == ["a", "b"]


def test_exit_goes_by_activation_and_not_by_touch(store: StateStore) -> None:
    """WN-11"""
    one = state(store)
    one.load(made("a"))
    one.load(made("b"))
    one.touch("a")
    assert one.exit() == "b"


# -- declared loads --


def test_declared_loads_replace_what_the_turn_before_had_in_one_change(store: StateStore) -> None:
    """trpc-19"""
    one = state(store)
    one.load(made("old"))
    one.begin_turn([made("review", docs={"guide.md": "how"})])
    assert [(x.skill, x.declared, dict(x.docs)) for x in one.loaded()] == [
        ("review", True, {"guide.md": "how"})
    ]
    assert [(e.kind, e.skill, e.reason) for e in one.history()][1:] == [
        ("skill_unloaded", "old", "turn"),
        ("skill_expanded", "review", "declared"),
    ]


def test_too_many_declared_loads_change_nothing(store: StateStore) -> None:
    """trpc-20"""
    one = state(store, most=1)
    one.load(made("old"))
    with pytest.raises(BadRequestError, match="2 skills are declared and at most 1"):
        one.begin_turn([made("a"), made("b")])
    assert names(one) == ["old"]


def test_equal_requests_merge_and_names_are_trimmed() -> None:
    """trpc-20, trpc-1.5.6"""
    merged = merge_requests([LoadRequest(" a "), LoadRequest("a"), LoadRequest("b", (" x.md ",))])
    assert merged == [LoadRequest("a"), LoadRequest("b", ("x.md",))]


@pytest.mark.parametrize(
    ("requests", "what"),
    [
        ([LoadRequest("a", ("x",)), LoadRequest("a", include_all_docs=True)], "declared twice"),
        ([LoadRequest("a", ("x",), True)], "certain docs and for all"),
        ([LoadRequest("a", (" ",))], "a doc without a name"),
        ([LoadRequest("a", ("SKILL.md",))], "SKILL.md"),
        ([LoadRequest("a", ("x", "x"))], "a doc twice"),
        ([LoadRequest("  ")], "no name"),
        ([LoadRequest("a"), LoadRequest("b"), LoadRequest("c")], "at most 2"),
    ],
)
def test_requests_that_contradict_themselves_are_refused(requests: list[LoadRequest], what: str) -> None:
    """trpc-20, trpc row 1.5 caller-declared loads"""
    with pytest.raises(BadRequestError, match=what):
        merge_requests(requests, most=2)


# -- kept --


def test_a_resumed_session_has_exactly_what_it_had(tmp_path: Path) -> None:
    """ref-26, WN-14"""
    path = tmp_path / "deep" / "state.sqlite"
    first = StateStore(path)
    one = SkillState(first, session="s", agent="p", mode="session")
    resources = (Resource("scripts/x.py", "script", 12, "text"),)
    one.load(made("a", digest="old", tools=("t",), resources=resources, docs={"d.md": "doc"}))
    one.load(made("b"))
    one.touch("a")
    before, history = one.loaded(), one.history()
    first.close()

    again = SkillState(StateStore(path), session="s", agent="p", mode="session")
    assert again.loaded() == before
    assert [loaded.skill for loaded in before] == ["b", "a"]
    assert (before[1].digest, before[1].body, before[1].resources) == ("old", "body of a", resources)
    assert again.history() == history
    assert again.exit() == "b"
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_what_is_loaded_stays_pinned_until_it_is_loaded_anew(store: StateStore) -> None:
    """ref-5"""
    one = state(store)
    one.load(Expansion("a", "v1", "old text"))
    one.load(made("b"))
    first = one.get("a")
    assert first is not None and (first.digest, first.body) == ("v1", "old text")
    one.load(Expansion("a", "v2", "new text"))
    second = one.get("a")
    assert second is not None and (second.digest, second.body) == ("v2", "new text")
    assert names(one) == ["b", "a"]
    assert [event.digest for event in one.history() if event.skill == "a"] == ["v1", "v2"]


def _load_until_killed(path: str, started: object) -> None:
    one = SkillState(StateStore(path), session="s", mode="session")
    number = 0
    while True:
        one.load(Expansion(f"skill-{number % 50}", str(number), "x" * 20_000))
        number += 1
        if number == 5:
            started.set()  # type: ignore[attr-defined]


def test_killing_a_writer_at_any_moment_leaves_a_whole_state(tmp_path: Path) -> None:
    """trpc-1.8.9"""
    path = tmp_path / "state.sqlite"
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        started = context.Event()
        writer = context.Process(target=_load_until_killed, args=(str(path), started))
        writer.start()
        assert started.wait(30)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        one = SkillState(StateStore(path), session="s", mode="session")
        loaded = one.loaded()
        assert len(loaded) >= 5
        assert {len(skill.body) for skill in loaded} == {20_000}
        last = [event for event in one.history() if event.kind == "skill_expanded"][-1]
        assert (last.skill, last.digest) == (loaded[-1].skill, loaded[-1].digest)


def test_no_change_is_lost_between_threads(store: StateStore) -> None:
    """trpc-35 for this store"""

    def work(number: int) -> None:
        one = SkillState(store, session="s", mode="session")
        for round_ in range(10):
            one.load(made(f"{number}-{round_}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(state(store))) == 50


def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path) -> None:
    """trpc-35 for this store"""
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"this is no database" * 1000)
    store = StateStore(path)
    one = state(store)
    one.load(made("a"))
    assert names(one) == ["a"]
    aside = [entry for entry in tmp_path.iterdir() if ".broken-" in entry.name]
    assert [entry.read_bytes() for entry in aside] == [b"this is no database" * 1000]
    assert len(store.warnings) == 1 and str(path) in store.warnings[0]


def test_a_folder_in_its_place_is_an_error_with_the_name(tmp_path: Path) -> None:
    """trpc-35 for this store"""
    with pytest.raises(BadRequestError, match=str(tmp_path)):
        StateStore(tmp_path)


def test_old_sessions_are_forgotten(tmp_path: Path) -> None:
    """trpc-w36: state does not grow for ever"""
    path = tmp_path / "state.sqlite"
    store = StateStore(path)
    state(store, session="old").load(made("a"))
    state(store, session="new").load(made("b"))
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE skill_state SET changed = changed - 40 * 86400 WHERE session = 'old'")
    again = StateStore(path)
    assert names(state(again, session="old")) == []
    assert state(again, session="old").history() == []
    assert names(state(again, session="new")) == ["b"]


def test_a_forgotten_session_has_nothing(store: StateStore) -> None:
    """trpc-w36: a session that is made anew under an old id sees nothing of the old one"""
    state(store, agent="p").load(made("a"))
    state(store, agent="q").load(made("b"))
    store.forget("s")
    assert (names(state(store, agent="p")), names(state(store, agent="q"))) == ([], [])


def test_a_change_that_fails_changes_nothing(store: StateStore) -> None:
    one = state(store)
    one.load(made("a"))
    with pytest.raises(RuntimeError), store.edit("s", "main") as record:
        record.value["loaded"] = []
        record.events.append(("skill_unloaded", "a", "", "x"))
        raise RuntimeError
    assert names(one) == ["a"]
    assert len(one.history()) == 1


def test_a_file_that_stays_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.state.database.WAIT", 0.05)
    path = tmp_path / "state.sqlite"
    one = state(StateStore(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BadRequestError, match=f"the state cannot be kept in {path}: database is locked"):
        one.load(made("a"))
    assert names(one) == []
    other.execute("ROLLBACK")
    one.load(made("a"))
    assert names(one) == ["a"]
