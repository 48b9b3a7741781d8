"""The Bash commands: an argument vector as a request, and an answer as text and an exit status.

The commands inside only carry words and bytes; everything that has to be understood is understood here.

    tool NAME ['{"json":1}' | - | @FILE] [key=value] [key:=json] [key@=FILE] [--flag value] [--raw]
    tool --list [--json] [QUERY]        tool --help [NAME]
    workspace-read P    workspace-list [P]    workspace-glob G    workspace-stat P    workspace-write P < data

A flag counts more than a pair, a pair more than the JSON. stdin is read only where `-` says so.

The request is NUL-terminated fields: the command, the number of arguments, the arguments, and the content in
base64 (empty for none). The answer is a line `exit bytes-of-stderr bytes-of-stdout mode`, then those bytes;
the mode is `text` for what a variable of Bash can hold, else `raw`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from executor.bridge.codes import CODES, BridgeError
from executor.bridge.tools import ToolSpec
from executor.bridge.values import KEY
from executor.guest import wire

MAX_WORDS = 1000
MAX_TEXT = 64 << 10  # bytes that a command prints itself; for more it starts `cat`
USAGE = {
    "tool": "tool NAME [JSON | - | @FILE] [key=value] [key:=json] [key@=FILE] [--flag value] [--raw]\n"
    "       tool --list [--json] [QUERY]\n       tool --help [NAME]",
    "workspace-read": "workspace-read PATH",
    "workspace-list": "workspace-list [PATH]",
    "workspace-glob": "workspace-glob PATTERN",
    "workspace-stat": "workspace-stat PATH",
    "workspace-write": "workspace-write PATH < CONTENT",
    "workspace-delete": "workspace-delete PATH",
}
# Of which parameter of the method the command's one argument is; '' in front makes it optional.
ONE_ARGUMENT = {
    "workspace-read": ("workspace.read", "path", None),
    "workspace-list": ("workspace.list", "path", "."),
    "workspace-glob": ("workspace.glob", "pattern", None),
    "workspace-stat": ("workspace.stat", "path", None),
    "workspace-write": ("workspace.write", "path", None),
    "workspace-delete": ("workspace.delete", "path", None),
}
TEXTUAL = ("string", None)  # JSON Schema types of which a bare word is a value as it stands


@dataclass
class Command:
    """A command as it was called, and how its answer is to be shown."""

    name: str
    words: list[str]
    content: bytes | None
    show: Callable[[Any], bytes] = lambda value: _json_line(value)

    def request(self, tools: Mapping[str, ToolSpec]) -> tuple[str, dict[str, Any]]:
        """(method, params). BridgeError TOOL_INPUT_INVALID, which becomes exit status 2, for wrong usage."""
        if self.name == "tool":
            return self._tool(tools)
        if self.name not in ONE_ARGUMENT:
            raise BridgeError("METHOD_NOT_FOUND", f"There is no command {self.name[:80]!r}.")
        method, parameter, default = ONE_ARGUMENT[self.name]
        if len(self.words) > 1 or (not self.words and default is None):
            raise _usage(self.name)
        params: dict[str, Any] = {parameter: self.words[0] if self.words else default}
        if self.name == "workspace-write":
            params["base64"] = base64.b64encode(self.content or b"").decode()
        elif self.name == "workspace-read":
            params["binary"] = True
            self.show = lambda value: base64.b64decode(value["base64"])
        return method, params

    def _tool(self, tools: Mapping[str, ToolSpec]) -> tuple[str, dict[str, Any]]:
        words = self.words
        if not words:
            raise _usage("tool")
        if words[0] == "--list":
            if "--json" not in words:
                self.show = _list_text
            rest = [word for word in words[1:] if word != "--json"]
            return "tool.list", {"query": rest[0] if rest else ""}
        if words[0] == "--help":
            if len(words) == 1:
                self.show = lambda _value: _usage_text("tool").encode()
                return "tool.list", {"query": "\0"}
            self.show = _help_text
            return "tool.describe", {"name": words[1]}
        name = words[0]
        spec = tools.get(name)
        properties = spec.input_schema.get("properties", {}) if spec is not None else {}
        return "tool.call", {"name": name, "input": self._input(words[1:], properties)}

    def _input(self, words: list[str], properties: Mapping[str, Any]) -> Any:
        whole: Any = {}
        pairs: dict[str, Any] = {}
        flags: dict[str, Any] = {}
        todo = list(words)
        if todo and not _is_pair(todo[0]) and not todo[0].startswith("--"):
            first = todo.pop(0)
            from_content = first == "-" or first.startswith("@")
            whole = _parse((self.content or b"") if from_content else first.encode(), "the JSON")
        while todo:
            word = todo.pop(0)
            if word == "--raw" and "raw" not in properties:
                self.show = _bare
            elif word.startswith("--") and len(word) > 2:
                key, equals, text = word[2:].partition("=")
                key = _spelled(key, properties)
                kind = _kind(properties.get(key))
                if not equals and kind == "boolean" and not (todo and todo[0] in ("true", "false")):
                    flags[key] = True
                    continue
                if not equals:
                    if not todo:
                        raise _wrong(f"--{key} needs a value")
                    text = todo.pop(0)
                flags[key] = _typed(text, kind, f"--{key}")
            elif _is_pair(word):
                key, _, text = word.partition("=")
                if key.endswith(":"):
                    pairs[key[:-1]] = _parse(text.encode(), key[:-1])
                elif key.endswith("@"):
                    pairs[key[:-1]] = {KEY: text}
                else:
                    pairs[key] = text
            else:
                raise _wrong(f"{word[:80]!r} is neither key=value nor a flag")
        if not pairs and not flags:
            return whole
        if not isinstance(whole, dict):
            raise _wrong("the JSON is no object, so there is nothing to add key=value to")
        return {**whole, **pairs, **flags}


def read(data: bytes) -> Command:
    """The request of a command. BridgeError PROTOCOL when it is not one."""
    fields = data.split(b"\0")
    try:
        count = int(fields[1].decode("ascii"))
        if not 0 <= count <= MAX_WORDS or len(fields) != count + 4 or fields[-1]:
            raise ValueError
        words = [field.decode("utf-8") for field in fields[2 : 2 + count]]
        content = fields[2 + count]
        decoded = base64.b64decode(content.replace(b"\n", b""), validate=True) if content else None
        return Command(fields[0].decode("utf-8").rpartition("/")[2], words, decoded)
    except (ValueError, IndexError, binascii.Error):
        raise BridgeError("PROTOCOL", "The request of a command is malformed.") from None


def render(command: Command | None, outcome: Any) -> bytes:
    """The answer of a command."""
    if isinstance(outcome, BridgeError):
        name = command.name if command is not None else "tool"
        error = f"{name}: {outcome.message} [{outcome.code}]\n".encode()
        return _answer(CODES[outcome.code].exit, b"", error)
    return _answer(0, command.show(outcome) if command is not None else b"", b"")


def _answer(status: int, out: bytes, error: bytes) -> bytes:
    mode = b"raw" if b"\0" in out or len(out) > MAX_TEXT else b"text"
    return b"%d %d %d %s\n" % (status, len(error), len(out), mode) + error + out


def _json_line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _bare(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else _json_line(value)


def _list_text(found: Any) -> bytes:
    lines = [f"{item['name']}\t{item['description'].partition(chr(10))[0]}" for item in found]
    return "".join(line + "\n" for line in lines).encode()


def _help_text(entry: Any) -> bytes:
    lines = [f"{entry['name']} - {entry['description']}", ""]
    required = entry["input_schema"].get("required", [])
    for name, schema in entry["input_schema"].get("properties", {}).items():
        note = " (required)" if name in required else ""
        what = schema.get("description", "") if isinstance(schema, dict) else ""
        lines.append(f"  --{name} {_kind(schema) or 'value'}{note}{'  ' + what if what else ''}")
    if entry["approval"] != "never":
        lines += ["", "A person may be asked before it runs."]
    return "\n".join([*lines, ""]).encode()


def _usage_text(name: str) -> str:
    return f"usage: {USAGE[name]}\n"


def _usage(name: str) -> BridgeError:
    return BridgeError("TOOL_INPUT_INVALID", "usage: " + USAGE[name], rule="usage")


def _wrong(why: str) -> BridgeError:
    return BridgeError("TOOL_INPUT_INVALID", why, rule="usage")


def _parse(text: bytes, what: str) -> Any:
    """JSON of any kind by the rules of the bridge."""
    try:
        return wire.parse_control(b'{"":' + text + b"}", most=len(text) + 5, deepest=65)[""]
    except (wire.ProtocolError, KeyError):
        raise _wrong(f"{what} is not JSON") from None


def _is_pair(word: str) -> bool:
    key, equals, _ = word.partition("=")
    name = key[:-1] if key.endswith((":", "@")) else key
    return bool(equals and name) and name.replace("-", "_").replace(".", "_").isidentifier()


def _spelled(key: str, properties: Mapping[str, Any]) -> str:
    """A flag's name as the schema spells it: `--max-results` may mean `max_results`."""
    for name in (key, key.replace("-", "_")):
        if name in properties:
            return name
    return key


def _kind(schema: Any) -> str | None:
    """The one type of a property besides null; None when there is none or are several."""
    if not isinstance(schema, Mapping):
        return None
    kind = schema.get("type")
    if kind is None and isinstance(schema.get("anyOf"), list):
        kind = [part.get("type") for part in schema["anyOf"] if isinstance(part, Mapping)]
    if isinstance(kind, list):
        kinds = [item for item in kind if item != "null"]
        return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], str) else None
    return kind if isinstance(kind, str) else None


def _typed(text: str, kind: str | None, what: str) -> Any:
    return text if kind in TEXTUAL else _parse(text.encode(), what)
