"""Type stubs of the granted tools: `skill_tools/__init__.pyi` and `skill-tools/index.d.ts`.

They are for editors, type checkers and models that read code; nothing at run time depends on them. Schemas
may hold any text, so what goes into the stubs is quoted or left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

MAX_DEPTH = 6  # of a type; what is deeper is `Any`
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
PYTHON = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
    "array": "list[Any]",
}
TYPESCRIPT = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "Record<string, unknown>",
    "array": "unknown[]",
}


def python(entries: list[dict[str, Any]]) -> str:
    """The stub file of the Python client."""
    lines = [
        "from typing import Any, Literal, Mapping",
        "",
    ]
    for kind, returned in (("_Tools", _python_type), ("_AsyncTools", _awaited)):
        lines += [f"class {kind}:"]
        if kind == "_Tools":
            lines += ["    aio: _AsyncTools"]
        word = "def" if kind == "_Tools" else "async def"
        lines += [
            f"    {word} call(self, name: str, input: Any = ..., timeout: float | None = ...) -> Any: ...",
            f"    {word} list(self, query: str = ...) -> list[dict[str, str]]: ...",
            f"    {word} describe(self, name: str) -> dict[str, Any]: ...",
        ]
        for entry in entries:
            lines += [f"    {word} {entry['identifier']}({_python_parameters(entry)}) -> "]
            lines[-1] += f"{returned(entry['output_schema'], entry['output_schema'])}:"
            lines += [f"        {json.dumps(_line(entry['description']))}"]
        lines += [""]
    lines += ["tools: _Tools", "workspace: Any", "output: Any", ""]
    lines += ["def file(path: Any) -> dict[str, str]: ..."]
    lines += ["def log(message: str, level: str = ..., **fields: Any) -> None: ..."]
    lines += ["def progress(message: str = ..., fraction: float | None = ...) -> None: ...", ""]
    return "\n".join(lines)


def typescript(entries: list[dict[str, Any]]) -> str:
    """The declarations of the Node client."""
    lines = [
        "export interface CallOptions { timeout?: number; signal?: AbortSignal }",
        "export class SkillBridgeError extends Error {",
        "  code: string; bridgeCode: string; details: unknown[]; retryable: boolean;",
        "}",
        "export interface Tools {",
        "  call(name: string, input?: unknown, options?: CallOptions): Promise<any>;",
        "  list(query?: string): Promise<{ name: string; description: string }[]>;",
        "  describe(name: string): Promise<any>;",
    ]
    for entry in entries:
        given = _typescript_type(entry["input_schema"], entry["input_schema"])
        back = _typescript_type(entry["output_schema"], entry["output_schema"])
        lines += [f"  /** {_line(entry['description']).replace('*/', '* /')} */"]
        lines += [f"  {entry['identifier']}(input: {given}, options?: CallOptions): Promise<{back}>;"]
    lines += [
        "}",
        "export interface Entry { name: string; type: string; size: number; mtime: number }",
        "export interface Workspace {",
        "  readFile(path: string): Promise<string>;",
        "  readBytes(path: string, offset?: number, size?: number): Promise<Uint8Array>;",
        "  listFiles(path?: string): Promise<Entry[]>;",
        "  glob(pattern: string): Promise<string[]>;",
        "  stat(path: string): Promise<{ type: string; size: number } | null>;",
        "  writeFile(path: string, content: string | Uint8Array): Promise<{ size: number }>;",
        "  delete(path: string): Promise<null>;",
        "}",
        "export interface Output { writeFile(name: string, content: string | Uint8Array): Promise<string> }",
        "export const tools: Tools;",
        "export const workspace: Workspace;",
        "export const output: Output;",
        "export function file(path: string): { $file: string };",
        "export function log(message: string, level?: string, fields?: object): Promise<null>;",
        "export function progress(message?: string, fraction?: number | null): Promise<null>;",
        "",
    ]
    return "\n".join(lines)


def _line(text: str) -> str:
    return " ".join(text.split())[:500]


def _python_parameters(entry: dict[str, Any]) -> str:
    schema = entry["input_schema"]
    found = ["self", "input: Mapping[str, Any] = ...", "/"]
    names = [
        name for name in schema.get("properties", {}) if name.isidentifier() and _IDENTIFIER.fullmatch(name)
    ]
    if names:
        found.append("*")
    found += [f"{name}: {_python_type(schema['properties'][name], schema)} = ..." for name in names]
    return ", ".join(found)


def _awaited(schema: Any, root: Any) -> str:
    return _python_type(schema, root)


def _python_type(schema: Any, root: Any, depth: int = 0) -> str:
    return _type(
        schema, root, depth, PYTHON, "Any", _python_type, lambda value: f"Literal[{value!r}]", "list[{}]"
    )


def _typescript_type(schema: Any, root: Any, depth: int = 0) -> str:
    found = _resolve(schema, root)
    if isinstance(found, Mapping) and isinstance(found.get("properties"), Mapping) and depth < MAX_DEPTH:
        required = found.get("required", [])
        fields = [
            json.dumps(str(name))
            + (": " if name in required else "?: ")
            + _typescript_type(part, root, depth + 1)
            for name, part in found["properties"].items()
        ]
        return "{ " + "; ".join(fields) + " }" if fields else "Record<string, never>"
    return _type(schema, root, depth, TYPESCRIPT, "any", _typescript_type, json.dumps, "({})[]")


def _type(
    schema: Any,
    root: Any,
    depth: int,
    names: dict[str, str],
    unknown: str,
    again: Callable[[Any, Any, int], str],
    literal: Callable[[Any], str],
    array: str,
) -> str:
    schema = _resolve(schema, root)
    if not isinstance(schema, Mapping) or depth >= MAX_DEPTH:
        return unknown
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        values = [value for value in schema["enum"] if isinstance(value, str | int | bool) or value is None]
        return " | ".join(literal(value) for value in values) or unknown
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return " | ".join(dict.fromkeys(again(part, root, depth + 1) for part in schema[key])) or unknown
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(names.get(item, unknown) for item in kind if isinstance(item, str)) or unknown
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return array.format(again(schema["items"], root, depth + 1))
    return names.get(kind, unknown) if isinstance(kind, str) else unknown


def _resolve(schema: Any, root: Any) -> Any:
    """A schema, or what its `$ref` into the same document names."""
    for _ in range(MAX_DEPTH):
        target = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(target, str):
            return schema
        schema = root
        for part in target.lstrip("#/").split("/") if target != "#" else []:
            key = part.replace("~1", "/").replace("~0", "~")
            schema = schema.get(key) if isinstance(schema, Mapping) else None
    return None
