"""Definitions of tools as the interfaces of models and protocols want them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from executor.errors import BadRequestError

Format = Literal["openai", "anthropic", "mcp", "json-schema"]


@dataclass(frozen=True)
class Definition:
    """A tool as it is offered, whatever the format."""

    name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    read_only: bool


def _openai(tool: Definition) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _anthropic(tool: Definition) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}


def _mcp(tool: Definition) -> dict[str, Any]:
    made = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "annotations": {"readOnlyHint": tool.read_only, "openWorldHint": False},
    }
    return made if tool.output_schema is None else {**made, "outputSchema": tool.output_schema}


def _json_schema(tool: Definition) -> dict[str, Any]:
    made = {"name": tool.name, "description": tool.description, "input": tool.input_schema}
    return made if tool.output_schema is None else {**made, "output": tool.output_schema}


FORMATS: dict[str, Callable[[Definition], dict[str, Any]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "mcp": _mcp,
    "json-schema": _json_schema,
}


def export(tools: list[Definition], form: str) -> list[dict[str, Any]]:
    """The definitions in one format, each a value of its own. BadRequestError."""
    if form not in FORMATS:
        raise BadRequestError(f"there is no format {form!r}", hint=f"Formats: {', '.join(FORMATS)}.")
    return [copy.deepcopy(FORMATS[form](tool)) for tool in tools]


def schema(model: type[BaseModel], *, output: bool = False) -> dict[str, Any]:
    """The JSON Schema of a model, without references and titles, so that every API takes it."""
    raw = model.model_json_schema(mode="serialization" if output else "validation")
    defs = raw.pop("$defs", {})
    found = _plain(raw, defs, output)
    assert isinstance(found, dict)
    found.pop("description", None)  # of the class, for programmers
    return found


def _plain(node: Any, defs: dict[str, Any], nulls: bool) -> Any:
    if isinstance(node, list):
        return [_plain(item, defs, nulls) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _plain(defs[node["$ref"].rpartition("/")[2]], defs, nulls)
    # `X | None` of an argument: it may be left out, which is all a model has to know.
    kinds = node.get("anyOf", [])
    if not nulls and {"type": "null"} in kinds and node.get("default", 0) is None and len(kinds) == 2:
        rest = next(kind for kind in kinds if kind != {"type": "null"})
        node = {**{k: v for k, v in node.items() if k not in ("anyOf", "default")}, **rest}
    made = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "properties":
            made[key] = {name: _plain(field, defs, nulls) for name, field in value.items()}
        else:
            made[key] = _plain(value, defs, nulls)
    return made
