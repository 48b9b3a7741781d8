"""A tool is made from a function, a model or a schema, and what it cannot be is refused when it is made."""

from __future__ import annotations

import ast
import asyncio
import re
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from executor import GrantError, ToolContext, ToolSpec, tool
from executor.bridge import stubs
from executor.bridge.codes import CODES, BridgeError
from executor.bridge.schema import Schema
from executor.bridge.tools import identifier

OBJECT = {"type": "object"}


def context(name: str = "t") -> ToolContext:
    return ToolContext("run_1", "s", "run_1.c1", name, None, 0.0)


def spec(schema: Any, **more: Any) -> ToolSpec:
    return ToolSpec("t", "", schema, lambda value, ctx: value, **more)


# -- from functions -----------------------------------------------------------------------------------


@tool
def search(query: str, limit: Annotated[int, Field(ge=1, le=10)] = 3) -> list[str]:
    """Search the docs."""
    return [query] * limit


def test_a_function_becomes_a_schema() -> None:
    assert (search.name, search.description) == ("search", "Search the docs.")
    assert search.input_schema["properties"]["query"]["type"] == "string"
    assert search.input_schema["required"] == ["query"]
    assert search.input_schema["additionalProperties"] is False
    assert search.output_schema == {"items": {"type": "string"}, "type": "array"}
    assert search.handler({"query": "x", "limit": 2}, context()) == ["x", "x"]
    assert search.handler({"query": "x"}, context()) == ["x"] * 3


def test_options_of_the_decorator() -> None:
    @tool(name="do-it", description="d", approval="always", read_only=True, timeout_s=2, max_result=9)
    async def function() -> None: ...

    assert (function.name, function.description, function.approval) == ("do-it", "d", "always")
    assert (function.read_only, function.timeout_s, function.max_result) == (True, 2, 9)
    assert function.output_schema == {"type": "null"}


def test_a_context_parameter_is_no_input() -> None:
    @tool
    def who(name: str, ctx: ToolContext) -> str:
        return f"{name} {ctx.run_id}"

    assert list(who.input_schema["properties"]) == ["name"]
    assert who.handler({"name": "a"}, context()) == "a run_1"


def test_a_model_is_the_whole_input() -> None:
    class Order(BaseModel):
        """Place an order."""

        item: str
        count: int = 1

    @tool
    async def place(order: Order) -> Order:
        return order

    assert set(place.input_schema["properties"]) == {"item", "count"}
    assert asyncio.run(place.handler({"item": "x"}, context())) == {"item": "x", "count": 1}
    made = ToolSpec.from_model(Order, lambda order, ctx: order.count + 1, name="place2", approval="always")
    assert (made.name, made.description, made.approval) == ("place2", "Place an order.", "always")
    assert made.handler({"item": "x"}, context()) == 2
    with pytest.raises(BridgeError, match="place2: item: Field required"):
        made.handler({}, context())


def test_what_a_schema_cannot_say_is_still_an_input_error() -> None:
    from datetime import date

    @tool
    def on(day: date) -> str:
        return day.isoformat()

    on.check_input({"day": "2024-13-45"})  # `format` asserts nothing
    with pytest.raises(BridgeError) as caught:
        on.handler({"day": "2024-13-45"}, context())
    assert caught.value.code == "TOOL_INPUT_INVALID"
    assert caught.value.details[0]["path"] == "/day"


def test_results_become_plain_values() -> None:
    @dataclass
    class Point:
        x: int

    @tool
    def point() -> Point:
        return Point(1)

    assert point.handler({}, context()) == {"x": 1}


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda: tool(lambda *args: None), "'<lambda>'"),
        (lambda: ToolSpec.from_function(lambda *args: None, name="v"), "cannot be given by name"),
        (lambda: ToolSpec.from_function(lambda **kw: None, name="v"), "cannot be given by name"),
        (lambda: ToolSpec.from_function(lambda x, /: None, name="v"), "cannot be given by name"),
        (lambda: ToolSpec("", "", OBJECT, print), "cannot be a tool's name"),
        (lambda: ToolSpec("a b", "", OBJECT, print), "cannot be a tool's name"),
        (lambda: ToolSpec("../x", "", OBJECT, print), "cannot be a tool's name"),
        (lambda: ToolSpec("x" * 129, "", OBJECT, print), "cannot be a tool's name"),
        (lambda: ToolSpec("x\n", "", OBJECT, print), "cannot be a tool's name"),
        (lambda: ToolSpec("x", "", OBJECT, None), "handler"),  # type: ignore[arg-type]
        (lambda: spec(OBJECT, approval="maybe"), "no kind of approval"),
        (lambda: spec(OBJECT, timeout_s=0), "below zero"),
        (lambda: spec("text"), "not an object"),
        (lambda: spec({"type": "strange"}), "is not valid at"),
        (lambda: spec({"properties": {"a": {"minimum": "x"}}}), "is not valid at /properties/a/minimum"),
        (lambda: spec({"$schema": "http://example.org/mine"}), "unknown dialect"),
        (lambda: spec({"$ref": "https://example.org/s.json"}), "points outside"),
        (lambda: spec({"$ref": "other.json#/a"}), "points outside"),
        (lambda: spec({"items": [{"allOf": [{"$ref": "file:///etc/passwd"}]}]}), "points outside"),
        (lambda: spec({"$dynamicRef": "urn:x"}), "points outside"),
        (lambda: spec(OBJECT, output_schema={"$ref": "http://x/"}), "output of tool 't'"),
    ],
)
def test_what_cannot_be_a_tool(make: Any, fragment: str) -> None:
    with pytest.raises(GrantError, match=re.escape(fragment)):
        make()


# -- schemas ------------------------------------------------------------------------------------------


def test_references_inside_the_schema_work() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    spec(schema).check_input({"a": 1})
    with pytest.raises(BridgeError, match="t: a: 'x' is not of type 'integer'"):
        spec(schema).check_input({"a": "x"})


def test_data_in_a_schema_is_no_reference() -> None:
    spec({"properties": {"a": {"const": {"$ref": "https://x/"}, "default": {"$ref": "https://x/"}}}})


def test_2020_12_and_what_servers_still_send() -> None:
    spec({"prefixItems": [{"type": "integer"}], "items": False}).check_input([1])
    with pytest.raises(BridgeError):
        spec({"prefixItems": [{"type": "integer"}], "items": False}).check_input([1, 2])
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    spec(old).check_input({})


def test_a_schema_without_an_end_is_an_error_and_no_crash() -> None:
    with pytest.raises(BridgeError):
        spec({"$ref": "#"}).check_input(1)


def test_true_is_no_number_and_details_are_bounded() -> None:
    with pytest.raises(BridgeError):
        spec({"type": "integer"}).check_input(True)
    with pytest.raises(BridgeError) as caught:
        spec({"items": {"type": "integer"}}).check_input(["x" * 1000] * 100)
    assert len(caught.value.details) == 10
    assert all(len(item["message"]) <= 200 for item in caught.value.details)


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([], True),
        ([1, True, "1", None, [1], {"a": 1}, 0, False, "", []], True),
        ([{"a": 1, "b": [2]}, {"a": 1, "b": [True]}, ["a", 1], [["a", 1]]], True),
        ([1, 1.0], False),
        ([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], False),
        ([[None, {}], 3, [None, {}]], False),
        ([None, *range(20_000)], True),  # each compared with each this would take minutes
        ([None, *range(20_000), 7], False),
    ],
)
def test_items_that_are_to_be_unique(items: list[Any], unique: bool) -> None:
    problems = Schema({"type": "array", "uniqueItems": True}, "t").problems(items)
    assert [problem["rule"] for problem in problems] == ([] if unique else ["uniqueItems"])
    assert Schema({"type": "array", "uniqueItems": False}, "t").problems(items) == []


def test_a_number_that_is_too_large_for_a_check_does_not_fit() -> None:
    assert Schema({"multipleOf": 0.5}, "t").problems(10**400) == [{"path": "", "rule": "range"}]


def test_what_a_tool_returned_is_not_quoted() -> None:
    made = spec(OBJECT, output_schema={"type": "integer"})
    with pytest.raises(BridgeError) as caught:
        made.check_output("the secret")
    assert caught.value.code == "TOOL_OUTPUT_INVALID"
    assert "secret" not in str(caught.value.body())


# -- names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a", "a"),
        ("a-b.c", "a_b_c"),
        ("class", "class_"),
        ("call", "call_"),
        ("then", "then_"),
        ("__init__", "__init___"),
        ("list", "list_"),
        ("Print", "Print"),
    ],
)
def test_names_as_identifiers(name: str, written: str) -> None:
    assert identifier(name) == written
    assert written.isidentifier()


# -- the table of errors is the same on both sides -----------------------------------------------------


def test_the_python_client_knows_every_code() -> None:
    source = resources.files("executor.guest").joinpath("clients/skill_tools.py").read_text("utf-8")
    tree = ast.parse(source)
    tables = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_CLASSES"
    ]
    (table,) = tables
    assert isinstance(table, ast.Dict)
    found = {ast.literal_eval(key): value.id for key, value in zip(table.keys, table.values, strict=True)}  # type: ignore
    assert found == {name: code.python for name, code in CODES.items()}


def test_the_node_client_renames_what_the_table_renames() -> None:
    source = resources.files("executor.guest").joinpath("clients/index.cjs").read_text("utf-8")
    block = source[source.index("const CODES = {") : source.index("};")]
    found = dict(re.findall(r"(\w+): '(\w+)'", block))
    assert found == {name: code.node for name, code in CODES.items() if code.node}


# -- stubs --------------------------------------------------------------------------------------------


class Shape(BaseModel):
    """x"""

    kind: Literal["circle", "square"]
    sizes: list[float] = []
    note: str | None = None


def entries() -> list[dict[str, Any]]:
    @tool
    def draw(shape: Shape) -> bool:
        """Draw */ "it".
        Second line."""
        return True

    odd = ToolSpec("odd-name", '"""', {"properties": {"a b": {}, "x": {"$ref": "#"}}}, print)
    return [draw.entry(), search.entry(), odd.entry()]


def test_python_stubs_are_python() -> None:
    text = stubs.python(entries())
    tree = ast.parse(text)
    (kind,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "_Tools"]
    methods = {node.name: ast.unparse(node.args) for node in kind.body if isinstance(node, ast.FunctionDef)}
    assert "kind: Literal['circle'] | Literal['square']" in methods["draw"]
    assert "sizes: list[float]" in methods["draw"]
    assert "note: str | None" in methods["draw"]
    assert "query: str" in methods["search"]
    assert "odd_name" in methods


def test_typescript_stubs_close_what_they_open() -> None:
    text = stubs.typescript(entries())
    assert '"kind": "circle" | "square"' in text
    assert '"sizes"?: (number)[]' in text
    assert "Promise<(string)[]>" in text
    assert "*/ " not in text.split("/** Draw ")[1].split("\n")[0].replace(" */", "")
    assert text.count("{") == text.count("}")
