"""The front matter with line numbers: where the fences are, which keys there are, how YAML reads each value.

`skills.document` says what a SKILL.md means; this says how it is written. Bytes in, values out, no file is
opened. YAML is read as events, never composed or constructed, so that nesting costs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import yaml

from executor.skills.lint.folder import lines_of

_KEY = re.compile(r"""(?P<quote>["']?)(?P<key>[^\W\d][\w.-]*)(?P=quote)[ \t]*:(?:[ \t]+(?P<rest>.*)|$)""")
_WRAPPER = re.compile(r"(`{3,}|~{3,})[ \t]*[\w+-]*[ \t]*")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_RESOLVER: Any = yaml.resolver.Resolver()


@dataclass(frozen=True)
class Key:
    """One key of the front matter, at the top or one level below it."""

    path: tuple[str, ...]
    line: int
    """In the file, from 1."""
    kind: Literal["text", "map", "list"]
    value: str = ""
    """Of text: what YAML makes of it."""
    plain: bool = False
    """Text without quotes and not as a block."""
    flow: bool = False
    """A map or list in braces or brackets."""

    @property
    def type(self) -> str:
        """What YAML takes plain text for: `str`, `int`, `float`, `bool`, `timestamp`, `null`."""
        if self.kind != "text" or not self.plain:
            return "str"
        tag: str = _RESOLVER.resolve(yaml.ScalarNode, self.value, (True, False))
        return tag.rpartition(":")[2]


@dataclass
class Front:
    """The front matter of one text."""

    lines: list[str]
    """Of the whole file."""
    first: int = 0
    """Index of the line behind the opening fence."""
    end: int = 0
    """Index of the closing fence, or of the line behind the last one."""
    opening: int | None = None
    """Index of the opening fence; None when there is none."""
    closed: bool = False
    glued: str = ""
    """Text on the line of the closing fence."""
    wrapped: bool = False
    before: bool = False
    """Blank lines or a wrapper stand before the opening fence."""
    keys: list[Key] = field(default_factory=list)
    error: tuple[int, str] | None = None
    """Line and reason when it is not valid YAML; `keys` are those before it."""
    braces: list[int] = field(default_factory=list)
    """Lines on which a brace or bracket closes at the left margin."""

    def key(self, *path: str) -> Key | None:
        """The last key at this path."""
        return next((key for key in reversed(self.keys) if key.path == path), None)

    @cached_property
    def written(self) -> dict[str, list[tuple[int, str]]]:
        """The lines that look like top-level keys: name → (line, rest of it). Also when the YAML is bad."""
        found: dict[str, list[tuple[int, str]]] = {}
        if self.opening is not None:
            for index in range(self.first, self.end):
                if match := _KEY.match(self.lines[index]):
                    found.setdefault(match["key"], []).append((index + 1, match["rest"] or ""))
        return found

    def line_of(self, key: str) -> int:
        """Where a top-level key stands; the opening fence when it does not."""
        places = self.written.get(key)
        return places[-1][0] if places else (self.opening or 0) + 1

    def controls(self) -> list[int]:
        """Lines of the front matter with control characters."""
        return [n + 1 for n in range(self.first, self.end) if _CONTROL.search(self.lines[n])]


def read(text: str) -> Front:
    """The front matter of a SKILL.md's text, its byte order mark taken off."""
    front = Front(lines_of(text))
    lines = front.lines
    start = _next_line(lines, 0)
    if start < len(lines) and _WRAPPER.fullmatch(lines[start]):
        inner = _next_line(lines, start + 1)
        if inner < len(lines) and lines[inner].rstrip() == "---":
            front.wrapped = True
            start = inner
    if start >= len(lines) or lines[start].rstrip() != "---":
        return front
    front.opening, front.first = start, start + 1
    front.before = start > 0 and not front.wrapped
    end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("---")), None)
    front.closed = end is not None
    front.end = len(lines) if end is None else end
    if end is None:
        return front
    front.glued = lines[end].strip().lstrip("-").strip()
    _read_keys(front)
    return front


def _next_line(lines: list[str], start: int) -> int:
    return next((n for n in range(start, len(lines)) if lines[n].strip()), len(lines))


def _read_keys(front: Front) -> None:
    text = _CONTROL.sub(" ", "\n".join(front.lines[front.first : front.end]))
    offset = front.first + 1
    stack: list[tuple[str, list[tuple[str, int]]]] = []  # ("map" or "list", its pending key)
    try:
        for event in yaml.parse(text, Loader=_Loader):
            line = (event.start_mark.line if event.start_mark else 0) + offset
            if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                stack.pop()
                mark = event.end_mark
                if mark and mark.column == 1 and event.start_mark and event.start_mark.column == 0:
                    front.braces.append(mark.line + offset)
                if stack and stack[-1][0] == "map":
                    stack[-1][1].clear()
                continue
            if not isinstance(event, yaml.NodeEvent):
                continue
            if stack and stack[-1][0] == "map" and not stack[-1][1]:
                name = event.value if isinstance(event, yaml.ScalarEvent) else ""
                stack[-1][1].append((name, line))
                if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                    stack.append((_kind(event), []))  # a map as a key: its end clears nothing of ours
                continue
            _note(front, event, stack)
            if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                stack.append((_kind(event), []))
            elif stack and stack[-1][0] == "map":
                stack[-1][1].clear()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        front.error = ((mark.line if mark else 0) + offset, error.problem or "not YAML")
    except (yaml.YAMLError, ValueError, IndexError) as error:
        front.error = (offset, str(error).split("\n")[0])


def _kind(event: yaml.Event) -> Literal["map", "list"]:
    return "map" if isinstance(event, yaml.MappingStartEvent) else "list"


def _note(front: Front, event: yaml.NodeEvent, stack: list[tuple[str, list[tuple[str, int]]]]) -> None:
    """Remember a value whose parents are maps only, at most two deep."""
    if not 1 <= len(stack) <= 2 or any(kind != "map" for kind, _ in stack):
        return
    path = tuple(pending[0][0] for _, pending in stack)
    line = stack[-1][1][0][1]
    if isinstance(event, yaml.ScalarEvent):
        front.keys.append(Key(path, line, "text", event.value, event.style in (None, "")))
    elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
        front.keys.append(Key(path, line, _kind(event), flow=bool(event.flow_style)))
