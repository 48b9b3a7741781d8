"""The words of the Bash commands: what they mean, and how an answer is written."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor import ToolSpec
from executor.bridge import shell
from executor.bridge.codes import CODES, BridgeError

SCHEMA = {
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array"},
        "max_results": {"type": ["integer", "null"]},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    }
}
TOOLS = {"find": ToolSpec("find", "Finds.\nMore.", SCHEMA, print)}


def command(*words: str, content: bytes | None = None, name: str = "tool") -> shell.Command:
    encoded = base64.encodebytes(content) if content is not None else b""
    fields = [f"/x/{name}".encode(), str(len(words)).encode(), *(word.encode() for word in words), encoded]
    return shell.read(b"".join(field + b"\0" for field in fields))


def value(*words: str, content: bytes | None = None) -> Any:
    method, params = command("find", *words, content=content).request(TOOLS)
    assert (method, params["name"]) == ("tool.call", "find")
    return params["input"]


@pytest.mark.parametrize(
    ("words", "content", "expected"),
    [
        ((), None, {}),
        (('{"a":1}',), None, {"a": 1}),
        (("[1]",), None, [1]),
        (('"text"',), None, "text"),
        (("-",), b'{"a": [1, 2]}\n', {"a": [1, 2]}),
        (("@file.json",), b"3", 3),
        (("query=a=b",), None, {"query": "a=b"}),
        (("query=",), None, {"query": ""}),
        (("limit:=5", "tags:=[1]"), None, {"limit": 5, "tags": [1]}),
        (("query=5",), None, {"query": "5"}),
        (("--query", "5"), None, {"query": "5"}),
        (("--limit", "5"), None, {"limit": 5}),
        (("--limit=5",), None, {"limit": 5}),
        (("--limit", "-5"), None, {"limit": -5}),
        (("--deep",), None, {"deep": True}),
        (("--deep", "false"), None, {"deep": False}),
        (("--deep", "--limit", "1"), None, {"deep": True, "limit": 1}),
        (("--max-results", "2"), None, {"max_results": 2}),
        (("--maybe", "2.5"), None, {"maybe": 2.5}),
        (("--unknown", "x"), None, {"unknown": "x"}),
        (
            ('{"limit":1,"query":"j"}', "query=p", "limit:=2", "--limit", "3"),
            None,
            {"limit": 3, "query": "p"},
        ),
        (("--limit", "3", "limit:=2"), None, {"limit": 3}),
    ],
)
def test_forms_of_arguments(words: tuple[str, ...], content: bytes | None, expected: Any) -> None:
    assert value(*words, content=content) == expected


@pytest.mark.parametrize(
    "words",
    [
        ("{",),
        ("{'a':1}",),
        ("NaN",),
        ("-",),
        ("--limit", "x"),
        ("--limit",),
        ("limit:=x",),
        ("query=a", "word"),
        ("[1]", "a=b"),
        ('{"a":1,"a":2}',),
        ("[" * 100 + "]" * 100,),
        ('1},{"":2',),
    ],
)
def test_wrong_usage_is_status_2(words: tuple[str, ...]) -> None:
    with pytest.raises(BridgeError) as caught:
        value(*words)
    assert CODES[caught.value.code].exit == 2


def test_lists_and_help() -> None:
    asked = command("--list", "fi")
    assert asked.request(TOOLS) == ("tool.list", {"query": "fi"})
    assert asked.show([{"name": "find", "description": "Finds.\nMore."}]) == b"find\tFinds.\n"
    asked = command("--list", "--json")
    assert asked.request(TOOLS) == ("tool.list", {"query": ""})
    assert asked.show([]) == b"[]\n"
    asked = command("--help", "find")
    assert asked.request(TOOLS) == ("tool.describe", {"name": "find"})
    text = asked.show(TOOLS["find"].entry()).decode()
    assert "--limit integer" in text
    asked = command("--help")
    asked.request(TOOLS)
    assert b"usage: tool NAME" in asked.show([])
    with pytest.raises(BridgeError):
        command().request(TOOLS)


def test_raw_prints_text_bare() -> None:
    asked = command("find", "query=x", "--raw")
    asked.request(TOOLS)
    assert asked.show("text") == b"text"
    assert asked.show({"a": "é"}) == '{"a": "é"}\n'.encode()


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("workspace-read", ("a",), ("workspace.read", {"path": "a", "binary": True})),
        ("workspace-list", (), ("workspace.list", {"path": "."})),
        ("workspace-list", ("a",), ("workspace.list", {"path": "a"})),
        ("workspace-glob", ("*",), ("workspace.glob", {"pattern": "*"})),
        ("workspace-stat", ("a",), ("workspace.stat", {"path": "a"})),
        ("workspace-delete", ("a",), ("workspace.delete", {"path": "a"})),
    ],
)
def test_workspace_commands(name: str, words: tuple[str, ...], expected: Any) -> None:
    assert command(*words, name=name).request(TOOLS) == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [("workspace-read", ()), ("workspace-read", ("a", "b")), ("workspace-glob", ()), ("workspace-write", ())],
)
def test_commands_with_wrong_arguments(name: str, words: tuple[str, ...]) -> None:
    with pytest.raises(BridgeError, match="usage: workspace-"):
        command(*words, name=name).request(TOOLS)


def test_writes_carry_any_bytes() -> None:
    data = bytes(range(256))
    method, params = command("a", content=data, name="workspace-write").request(TOOLS)
    assert (method, base64.b64decode(params["base64"])) == ("workspace.write", data)
    assert command("a", name="workspace-write").request(TOOLS)[1]["base64"] == ""


def test_answers() -> None:
    asked = command("find")
    asked.request(TOOLS)
    assert shell.render(asked, {"a": 1}) == b'0 0 9 text\n{"a": 1}\n'
    error = BridgeError("TOOL_NOT_FOUND", "Tool not available: x")
    assert shell.render(asked, error) == b"127 45 0 text\ntool: Tool not available: x [TOOL_NOT_FOUND]\n"
    read = command("a", name="workspace-read")
    read.request(TOOLS)
    assert shell.render(read, {"base64": "AP8="}) == b"0 0 2 raw\n\0\xff"
    assert shell.render(None, error).startswith(b"127 ")


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200) | st.lists(st.binary(max_size=9), max_size=8).map(b"\0".join))
def test_any_bytes_are_a_command_or_malformed(data: bytes) -> None:
    try:
        shell.read(data).request(TOOLS)
    except BridgeError as error:
        assert error.code in ("PROTOCOL", "METHOD_NOT_FOUND", "TOOL_INPUT_INVALID")
