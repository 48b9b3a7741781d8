"""An agent loop without a model: recorded calls (tests/replay/*.yaml) through every profile.

A step says the tool, its arguments, and what the result has to have: `structured` (a part of it, lists item
by item), `text` (a pattern at its beginning), `error` (a part of its message). `keep` names a value of the
result, which later arguments use as `$name`. At the end `history` is what the state has kept.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from executor import Executor
from executor.tools import PROFILES, HostTool, SyncSkillToolset, ToolResult

FOLDER = Path(__file__).parent.parent / "replay"
KEYS = {"call", "with", "structured", "text", "error", "is_error", "keep"}


def recorded(profile: str) -> dict[str, Any]:
    made = yaml.safe_load((FOLDER / f"{profile}.yaml").read_text("utf-8"))
    assert made["profile"] == profile and all(set(step) <= KEYS for step in made["steps"])
    return made  # type: ignore[no-any-return]


def has(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            name in found and has(found[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(has, found, expected))
    return bool(found == expected)


def check(step: dict[str, Any], result: ToolResult) -> None:
    wrong = step.get("is_error", "error" in step)
    assert result.is_error is wrong, result
    if "error" in step:
        assert step["error"] in result.structured["error"]["message"], result
    assert has(result.structured, step.get("structured", {})), (step["structured"], result.structured)
    if "text" in step:
        assert re.match(step["text"], result.text), (step["text"], result.text)


@pytest.mark.parametrize("profile", PROFILES)
def test_recorded_calls_give_what_the_rows_say(executor: Executor, profile: str, tmp_path: Path) -> None:
    """TH-40, TH-42, TH-43, TH-44, TH-62, WN-05, WN-06, WN-08, WN-10, WN-11, WN-12, WN-17, VS-07, VS-08,
    VS-09, VS-12, PA-10, PA-11, PA-13, PA-22, trpc-1.4.1, trpc-1.4.2, trpc-1.4.3, trpc-1.11.3, trpc-1.11.5,
    trpc-1.11.6, trpc-56
    """
    made = recorded(profile)
    counted: list[Any] = []

    def count(arguments: dict[str, Any]) -> str:
        counted.append(arguments)
        return str(len(counted))

    counter = HostTool("count", "Counts.", {"type": "object"}, count)
    scoped = {skill: [counter for _ in names] for skill, names in made.get("scoped", {}).items()}
    with executor.session() as session:
        tools = SyncSkillToolset(
            executor,
            session=session,
            profile=profile,
            mode="session",
            state=":memory:",
            artifacts=tmp_path,
            scoped=scoped,
        )
        before = tools.definitions()
        kept: dict[str, Any] = {}
        for step in made["steps"]:
            arguments = {
                name: kept[value[1:]] if isinstance(value, str) and value.startswith("$") else value
                for name, value in step.get("with", {}).items()
            }
            result = tools.call(step["call"], arguments)
            check(step, result)
            kept |= {name: result.structured[value] for value, name in step.get("keep", {}).items()}
        assert [event.kind for event in tools.state.history()] == made["history"]
        assert counted == made.get("counted", [])
        assert tools.definitions() == before
        tools.close()


def test_a_flow_goes_on_in_another_process_after_every_call(executor: Executor, tmp_path: Path) -> None:
    """WN-14, WN-17, ref-26; each call has a toolset that knows only what the state has kept"""
    made = recorded("flow")
    counted: list[Any] = []

    def count(arguments: dict[str, Any]) -> str:
        counted.append(arguments)
        return str(len(counted))

    counter = HostTool("count", "Counts.", {"type": "object"}, count)
    options: dict[str, Any] = {
        "session": "flow",
        "profile": "flow",
        "state": tmp_path / "state.sqlite",
        "artifacts": False,
        "scoped": {skill: [counter] for skill in made["scoped"]},
    }
    for step in made["steps"]:
        tools = SyncSkillToolset(executor, **options)
        tools.state.begin_run("one run")
        check(step, tools.call(step["call"], step.get("with", {})))
        tools.close()
    kinds = [event.kind for event in SyncSkillToolset(executor, **options).state.history()]
    assert (kinds, counted) == (made["history"], made["counted"])


def test_the_comparison_finds_what_differs() -> None:
    assert has({"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"c": 2}]})
    assert not has({"a": 1}, {"a": 2}) and not has({}, {"a": None})
    assert not has({"b": [{"c": 2}, {}]}, {"b": [{"c": 2}]})
    with pytest.raises(AssertionError):
        check({"call": "x"}, ToolResult("x", is_error=True))
    with pytest.raises(AssertionError):
        check({"call": "x", "text": "y"}, ToolResult("x"))
