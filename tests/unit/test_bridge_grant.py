"""A grant is what was given, never more: intersections only narrow, and nothing can be changed afterwards."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from executor import BridgeLimits, Grant, GrantError, PolicyRequest, ToolSpec
from executor.bridge.grant import intersection

OBJECT = {"type": "object"}


def named(name: str, **more: Any) -> ToolSpec:
    return ToolSpec(name, "", OBJECT, lambda value, ctx: None, **more)


A, B, C = named("a"), named("b"), named("c")
ASKED = PolicyRequest("r", "s", "c", "", None, "", "", "a", False, {})


def answer(found: Any) -> Any:
    async def settle() -> Any:
        return await found if inspect.isawaitable(found) else found

    return asyncio.run(settle())


def test_nothing_is_granted_by_default() -> None:
    """TH-51"""
    grant = Grant()
    assert (dict(grant.tools), grant.workspace, grant.root) == ({}, "none", None)


def test_a_grant_cannot_be_changed() -> None:
    grant = Grant(tools=[A])
    with pytest.raises(dataclasses.FrozenInstanceError):
        grant.workspace = "read"  # type: ignore[misc]
    with pytest.raises(TypeError):
        grant.tools["b"] = B  # type: ignore[index]
    with pytest.raises(ValidationError):
        grant.limits.calls = 9


def test_tools_are_given_as_specs_functions_or_a_map() -> None:
    def plain(x: int) -> int:
        return x

    assert list(Grant(tools=[A, plain]).tools) == ["a", "plain"]
    assert list(Grant(tools={"whatever": A}).tools) == ["a"]
    assert list(Grant(tools=[A, B, C]).only("b").tools) == ["b"]
    with pytest.raises(GrantError, match="no tool 'x'"):
        Grant(tools=[A]).only("x")


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda: Grant(tools=[A, named("a")]), "two tools are called 'a'"),
        (lambda: Grant(tools=[named("a-b"), named("a.b")]), "are both 'a_b'"),
        (lambda: Grant(tools=[named("call"), named("call_")]), "are both 'call_'"),
        (lambda: Grant(workspace="all"), "is none of"),
        (lambda: Grant(root="/nonexistent/folder"), "is not a folder"),
        (lambda: Grant(approver="yes"), "neither a function"),
        (lambda: Grant(secrets=("",)), "empty text"),
    ],
)
def test_what_cannot_be_a_grant(make: Any, fragment: str) -> None:
    with pytest.raises(GrantError, match=fragment):
        make()


def test_a_root_gives_the_right_to_read(tmp_path: Path) -> None:
    assert Grant(root=tmp_path).workspace == "read"
    assert Grant(root=tmp_path, workspace="none").workspace == "none"


# -- intersections ------------------------------------------------------------------------------------


def test_the_intersection_has_what_both_have(tmp_path: Path) -> None:
    """TH-50"""
    one = Grant(tools=[A, B], workspace="read-write", root=tmp_path, limits=BridgeLimits(calls=5, rate=None))
    other = Grant(tools=[B, C], workspace="read", limits=BridgeLimits(in_flight=2))
    both = one & other
    assert list(both.tools) == ["b"]
    assert (both.workspace, both.root) == ("read", tmp_path)
    assert (both.limits.calls, both.limits.in_flight, both.limits.rate) == (5, 2, 50.0)
    assert list((other & one).tools) == ["b"]


def test_layers_that_say_nothing_do_not_count() -> None:
    grant = Grant(tools=[A])
    assert intersection(None, grant, None) is grant
    assert not intersection(None, None).tools
    assert not intersection(Grant(), grant).tools


def test_roots_only_get_smaller(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "other").mkdir()
    outer, inner, other = (Grant(root=tmp_path / name) for name in (".", "in", "other"))
    assert (outer & inner).root == (inner & outer).root == tmp_path / "in"
    apart = inner & other
    assert (apart.workspace, apart.root) == ("none", None)
    assert (outer & Grant()).workspace == "none"
    sibling = tmp_path / "in-evil"
    sibling.mkdir()
    assert (inner & Grant(root=sibling)).root is None


def test_the_stricter_of_two_versions_of_a_tool() -> None:
    one = Grant(tools=[named("a", timeout_s=9, max_result=5)])
    other = Grant(tools=[named("a", timeout_s=3, max_result=7, approval="always")])
    both = (one & other).tools["a"]
    assert (both.timeout_s, both.max_result, both.approval) == (3, 5, "always")
    assert both.handler is one.tools["a"].handler


@pytest.mark.parametrize(
    ("one", "other", "asks"),
    [
        ("never", "never", False),
        ("never", lambda value: True, True),
        (lambda value: False, lambda value: True, True),
        (lambda value: False, lambda value: False, False),
        (lambda value: False, "always", True),
    ],
)
def test_approval_is_asked_when_either_asks(one: Any, other: Any, asks: bool) -> None:
    found = (Grant(tools=[named("a", approval=one)]) & Grant(tools=[named("a", approval=other)])).tools["a"]
    if callable(found.approval):
        assert answer(found.approval({})) is asks
    else:
        assert (found.approval == "always") is asks


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ("allow", "allow", "allow"),
        ("allow", "ask", "ask"),
        ("deny", "allow", "deny"),
        ("ask", "deny", "deny"),
        ("allow", "perhaps", "deny"),
    ],
)
def test_the_stricter_policy_counts(one: Any, other: Any, verdict: str) -> None:
    both = Grant(policy=lambda asked: one) & Grant(policy=lambda asked: other)
    assert both.policy is not None
    assert answer(both.policy(ASKED)) == verdict


def test_the_rest_of_an_intersection() -> None:
    one, other = Grant(secrets=("x",), user="u"), Grant(secrets=("y", "x"), approver="suspend")
    both = one & other
    assert (both.secrets, both.user, both.approver) == (("x", "y"), "u", "suspend")
    assert "hidden" not in repr(Grant(secrets=("hidden",)))


# -- front matter -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "kept"),
    [
        ([], ["a", "b", "mcp_x"]),
        (["  "], ["a", "b", "mcp_x"]),
        (["a"], ["a"]),
        (["a", "zzz"], ["a"]),
        (["Read", "Bash(git:*)"], []),
        (["b(anything)"], ["b"]),
        (["mcp_*"], ["mcp_x"]),
        (["*"], ["a", "b", "mcp_x"]),
        (["A"], []),
    ],
)
def test_allowed_tools_only_narrow(allowed: list[str], kept: list[str]) -> None:
    """TH-50"""
    assert list(Grant(tools=[A, B, named("mcp_x")]).narrowed(allowed).tools) == kept
    assert not Grant().narrowed(allowed).tools
