"""Reads one SKILL.md, however it was written, into a `SkillDocument`.

Rules of this module:
1. Bytes in, a value out. It opens no file, keeps no state and has no clock.
2. A file that a person would call a skill loads; what was mended or dropped is said in `warnings`.
   `SkillUnreadableError` is for what cannot be a skill text (binary, too large) or was made to hurt
   whoever reads it (YAML references, depth, node counts).
3. Values stay as they were written. Scalars are text: `version: 1.10` is "1.10", a date is its letters.
4. YAML is composed from its events, one node a step and without recursion; nothing is ever expanded or
   constructed, so a document costs at most what its bytes cost.
5. The name in the front matter is for people. It is never a path; the path is `slug(folder)`.

How front matter is read: as YAML; when that fails, one top-level key at a time as YAML; where that fails
too, the key's own lines as text. So one bad line costs one value its structure and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from executor.errors import SkillUnreadableError

Value: TypeAlias = "str | list[Value] | dict[str, Value]"
"""What a key of the front matter can hold."""

MAX_BYTES = 1 << 20  # the largest of 21,000 public files has 190,579 bytes
MAX_DEPTH = 20  # real ones nest five deep
MAX_NODES = 10_000  # real ones have a few hundred
MAX_KEYS = 500  # top-level keys in broken YAML, each of which is tried alone; real files have ten
MAX_SLUG = 64  # the length the format allows to a name

KNOWN_KEYS = ("name", "description", "license", "compatibility", "allowed-tools", "metadata")

# Plain YAML text ends at " #", which in a sentence is a hash and not a comment ("C# and #tags").
# In these keys the text wins; in others ("version: 1.0  # bump me") the comment does.
PROSE_KEYS = frozenset({"description", "when_to_use", "when-to-use"})

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"{\\rtf", "an RTF document"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive or an office document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"\x7fELF", "a program"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b")) + b"\x7f"
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})

# What a YAML stream may not hold; YAML's own line breaks NEL, LS and PS are spaces to everyone else.
_NOT_YAML = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_BREAKS = str.maketrans(dict.fromkeys("\v\f\x85\u2028\u2029", " "))

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # MAX_SLUG in all
_WRAPPER = re.compile(r"(`{3,}|~{3,})[ \t]*[\w+-]*[ \t]*")
# JSON writes an emoji as two escapes; YAML knows no halves.
_SURROGATES = re.compile(r"(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_KEY = re.compile(
    r"""(?P<quote>["']?)(?P<key>[^\W\d][\w.-]*)(?P=quote)[ \t]*:(?P<space>[ \t]*)(?P<rest>.*)"""
)
_SCALAR_HEADER = re.compile(r"([|>])[-+0-9]{0,2}[ \t]*(?:#.*)?")

# The C parser is ten times faster; both give the same events.
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass(frozen=True)
class SkillDocument:
    """A SKILL.md. Texts are stripped; `metadata` and `extra` hold strings, lists and maps only."""

    name: str
    """The front matter's top-level `name`, else the folder's name. For people, never a path."""
    slug: str
    """`slug(folder)`: the folder's name as one safe path component."""
    description: str
    """When to use the skill; '' if the file does not say."""
    body: str
    """The text after the front matter without leading blank lines; the whole text if there is none."""
    license: str = ""
    compatibility: str = ""
    """As text; a map reads `os: linux, macos; python: >=3.9`."""
    allowed_tools: tuple[str, ...] = ()
    """A wish of the author and no grant: `Read`, `Bash(git add *)`."""
    metadata: Mapping[str, Value] = field(default_factory=dict, hash=False)
    extra: Mapping[str, Value] = field(default_factory=dict, hash=False)
    """Every other top-level key, as found."""
    warnings: tuple[str, ...] = ()
    """What was mended, dropped or guessed, one sentence each."""


def parse(data: bytes, *, folder: str) -> SkillDocument:
    """Reads the bytes of a SKILL.md that lies in a folder called `folder`.

    Raises SkillUnreadableError with the reason if it cannot be a skill text, or is built to exhaust a reader.
    Of a repeated key the last value counts, as with PyYAML, and a warning says so.
    """
    warnings: list[str] = []
    text = _decode(data, folder, warnings)
    front, body = _split(text, warnings)
    try:
        found = _read_front(front, warnings) if front is not None else _Front()
    except _RefusedError as refused:
        raise SkillUnreadableError(
            f"the SKILL.md of {folder!r} is refused: its front matter {refused}",
            hint="write plain keys and values; put quotes around text that begins with & * or !",
        ) from None
    if found.swallowed:
        body = "\n".join([*found.swallowed, "---", body])  # that fence was a rule of the body
    if front is not None and not found.values and any(line.strip() for line in front):
        warnings.append("there are no `key: value` lines between the --- lines; the whole file is the body")
        body = text
    return _document(found, body.lstrip("\n") if body is not text else body, folder, warnings)


def slug(text: str) -> str:
    """`text` as one path component: a letter or digit, then letters, digits, `.`, `_`, `-`, at most 64.

    A name that is that already stays as it is, capitals included. Blanks become `-` and capitals small
    ("My Skill" → "my-skill"); a name that loses more than that, or is cut, ends in eight characters of its
    hash, so that two names never fall together for want of letters. The same text gives the same slug.
    """
    if _SAFE_NAME.fullmatch(text):
        return text
    spaced = re.sub(r"\s+", "-", text.strip()).lower()
    if _SAFE_NAME.fullmatch(spaced):
        return spaced
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    ascii_text = unicodedata.normalize("NFKD", spaced).encode("ascii", "ignore").decode()
    stem = re.sub(r"[^a-z0-9._]+|\.{2,}", "-", ascii_text).lstrip("._-")[: MAX_SLUG - 9]
    stem = re.sub(r"-{2,}", "-", stem).rstrip("._-")
    return f"{stem or 'skill'}-{digest}"


# --- bytes to lines ---------------------------------------------------------------------------------------


def _decode(data: bytes, folder: str, warnings: list[str]) -> str:
    def unreadable(what: str, hint: str = "save it as plain UTF-8 text") -> SkillUnreadableError:
        return SkillUnreadableError(f"the SKILL.md of {folder!r} {what}", hint=hint)

    if len(data) > MAX_BYTES:
        raise unreadable(
            f"is larger than {MAX_BYTES:,} bytes",
            "move details into files of references/ that the body names",
        )
    head = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            raise unreadable(f"is {kind}, not text")
    if (nul := data.find(0)) >= 0:
        raise unreadable(f"holds a NUL byte at offset {nul}, so it is not text")
    controls = len(data) - len(data.translate(None, _CONTROL_BYTES))
    if controls > 8 and controls * 10 > len(data):
        raise unreadable(f"is binary: {controls:,} of its {len(data):,} bytes are control characters")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8-sig", "replace")
        warnings.append(f"not UTF-8 (first at byte {error.start}); unreadable bytes became U+FFFD")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _split(text: str, warnings: list[str]) -> tuple[list[str] | None, str]:
    """The lines between the fences (None without front matter) and the text after them."""
    lines = text.split("\n")
    start = _next_line(lines, 0)
    wrapper = _WRAPPER.fullmatch(lines[start]) if start < len(lines) else None
    if wrapper:
        start = _next_line(lines, start + 1)
    if start >= len(lines) or lines[start].rstrip() != "---":
        if not text.strip():
            warnings.append("the file is empty")
        else:
            warnings.append("no front matter: the name is the folder's and there is no description")
        return None, text
    # A fence stands at the start of its line: YAML itself allows no text there that begins with `---`,
    # while inside a value (`a---b`, an indented rule) it is the author's.
    end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("---")), None)
    if end is None:
        warnings.append("the front matter has no closing --- line; the whole file is the body")
        return None, text
    front, rest = lines[start + 1 : end], lines[end + 1 :]
    if glued := lines[end].strip().lstrip("-").strip():
        warnings.append(f"the closing --- has text on its line ({_short(glued)}); it was taken for the body")
        rest.insert(0, glued)
    if wrapper:
        warnings.append("the file is wrapped in a code fence; the wrapper was taken off")
        _drop_fence(rest, wrapper[1])
    return front, "\n".join(rest)


def _next_line(lines: list[str], start: int) -> int:
    return next((n for n in range(start, len(lines)) if lines[n].strip()), len(lines))


def _drop_fence(lines: list[str], fence: str) -> None:
    """Takes the wrapper's end off: behind the front matter if only that was wrapped, else at the end."""
    filled = [n for n, line in enumerate(lines) if line.strip()]
    for n in filled[:1] + filled[-1:]:
        if lines[n].strip() == fence:
            del lines[n]
            return


# --- front matter to values -------------------------------------------------------------------------------


class _MalformedError(ValueError):
    """Not YAML; the line reader takes over."""


class _RefusedError(ValueError):
    """YAML that was made to hurt, or that uses what a skill has no use for."""


@dataclass
class _Front:
    values: dict[str, Value] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)  # top-level keys with an unquoted one-piece value
    lines: dict[str, int] = field(default_factory=dict)  # where each top-level key of block style begins
    raw: dict[str, str] = field(default_factory=dict)  # the letters of these values, folded
    repeated: list[str] = field(default_factory=list)
    swallowed: list[str] = field(default_factory=list)  # body text from above a missing closing fence


def _read_front(lines: list[str], warnings: list[str]) -> _Front:
    text = "\n".join(lines).translate(_BREAKS)
    text, dropped = _NOT_YAML.subn("", text)
    if dropped:
        warnings.append(f"{dropped} control character(s) in the front matter were dropped")
    text = _SURROGATES.sub(lambda pair: json.loads(f'"{pair[0]}"'), textwrap.dedent(text))
    lines = text.split("\n")
    try:
        front = _compose(text)
        for key, line in front.lines.items():
            if match := _KEY.match(lines[line]):
                front.raw[key] = _fold([match["rest"], *_indented(lines, line + 1)])
    except _MalformedError as error:
        warnings.append(f"the front matter is not valid YAML ({error}); it was read line by line")
        front = _read_lines(lines)
    for key in dict.fromkeys(front.repeated):
        warnings.append(f"the key {_short(key)} is repeated; its last value counts")
    if front.swallowed:
        warnings.append("the closing --- is missing or comes late; text above it was taken for the body")
    return front


def _compose(text: str) -> _Front:
    """YAML as strings, lists and maps. Raises _MalformedError, or _RefusedError for what rule 4 excludes."""
    front = _Front()
    stack: list[tuple[list[Value] | dict[str, Value], list[str]]] = []  # (container, its pending key)
    root: Value = {}
    forbidden = ""
    nodes = documents = 0
    block = False  # whether the keys stand on lines of their own
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _MalformedError("it holds more than one YAML document")
            value: Value
            if isinstance(event, yaml.NodeEvent):
                nodes += 1
                if nodes > MAX_NODES:
                    raise _RefusedError(f"holds more than {MAX_NODES:,} YAML nodes")
                # Not raised at once: `description: *note* that` is a typo further on, not a reference.
                forbidden = forbidden or _forbidden(event)
            if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                block = block if stack else not event.flow_style
                if len(stack) >= MAX_DEPTH:
                    raise _RefusedError(f"nests deeper than {MAX_DEPTH} levels")
                stack.append(({} if isinstance(event, yaml.MappingStartEvent) else [], []))
                continue
            if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                value = stack.pop()[0]
            elif isinstance(event, yaml.ScalarEvent):
                value = _NOT_YAML.sub("", event.value)  # escapes such as "\0" get past the stream check
            elif isinstance(event, yaml.AliasEvent):
                value = f"*{event.anchor}"
            else:
                continue
            if not stack:
                root = value
                continue
            container, pending = stack[-1]
            if isinstance(container, list):
                container.append(value)
            elif not pending:
                pending.append(value if isinstance(value, str) else _as_text(value))
                if block and len(stack) == 1 and (mark := event.start_mark):
                    front.lines[pending[0]] = mark.line
            else:
                key = pending.pop()
                if key in container:
                    front.repeated.append(key)
                container[key] = value
                if len(stack) == 1:
                    plain = isinstance(event, yaml.ScalarEvent) and event.style in (None, "")
                    (front.plain.add if plain else front.plain.discard)(key)
    except (_MalformedError, _RefusedError):
        raise
    except yaml.MarkedYAMLError as error:
        if error.problem and "nesting depth" in error.problem:  # the C parser's own, far higher bound
            raise _RefusedError(f"nests deeper than {MAX_DEPTH} levels") from None
        where = f" on line {error.problem_mark.line + 1} of it" if error.problem_mark else ""
        raise _MalformedError(f"{error.problem}{where}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise _MalformedError(_short(str(error))) from None
    if forbidden:
        raise _RefusedError(forbidden)
    if not isinstance(root, dict):
        if root:
            raise _MalformedError("it is not a map of keys and values")
        root = {}
    front.values = root
    return front


def _forbidden(event: yaml.NodeEvent) -> str:
    where = f"on line {event.start_mark.line + 1} of it" if event.start_mark else "in it"
    if isinstance(event, yaml.AliasEvent):
        return f"uses a YAML alias {where}: {_short(f'*{event.anchor}')}"
    if event.anchor is not None:
        return f"uses a YAML anchor {where}: {_short(f'&{event.anchor}')}"
    if (tag := getattr(event, "tag", None)) is not None:
        return f"uses a YAML tag {where}: {_short(tag)}"
    return ""


def _read_lines(lines: list[str]) -> _Front:
    """The reader for broken YAML: `key: rest of the line`, with the lines that continue it."""
    front = _Front()
    n = chunks = 0
    while n < len(lines):
        match = _key_at(lines, n)
        if match is None:
            # Comments and blanks are skipped. Prose below them was no comment but a heading with its text,
            # so this is the body already and the fence further down one of its rules.
            if front.values and lines[n].strip() and not lines[n].startswith(("#", " ", "\t", "-", "}", "]")):
                top = n
                while top > 0 and (not lines[top - 1].strip() or lines[top - 1].startswith("#")):
                    top -= 1
                front.swallowed = lines[top:]
                return front
            n += 1
            continue
        end = n + 1
        while end < len(lines) and _continues(lines, end):
            end += 1
        chunks += 1
        if chunks > MAX_KEYS:
            raise _RefusedError(f"is not valid YAML and holds more than {MAX_KEYS} keys")
        key = match["key"]
        if key in front.values:
            front.repeated.append(key)
        front.raw[key] = _fold([match["rest"], *lines[n + 1 : end]])
        try:
            alone = _compose("\n".join(lines[n:end]))
        except (_MalformedError, _RefusedError):  # as text nothing is expanded, so nothing is refused
            alone = _Front()
        if alone.values.keys() == {key}:
            front.values[key] = alone.values[key]
            (front.plain.add if key in alone.plain else front.plain.discard)(key)
        else:
            front.values[key] = _text_value(match["rest"], lines[n + 1 : end])
            front.plain.discard(key)
        n = end
    return front


def _key_at(lines: list[str], n: int) -> re.Match[str] | None:
    """`key: value`; for the known keys also `key:value`, a slip that YAML takes for plain text."""
    match = _KEY.match(lines[n])
    if match and not match["space"] and match["rest"] and match["key"] not in KNOWN_KEYS:
        return None
    return match


def _continues(lines: list[str], n: int) -> bool:
    """Also without indentation: translated descriptions go on for paragraphs at the left margin."""
    line = lines[n]
    return not line.strip() or line[0] in " \t" or (line[0] != "#" and _key_at(lines, n) is None)


def _indented(lines: list[str], start: int) -> list[str]:
    end = start
    while end < len(lines) and (not lines[end].strip() or lines[end][0] in " \t"):
        end += 1
    return lines[start:end]


def _fold(lines: list[str]) -> str:
    """As YAML folds plain text: lines are joined by a blank, an empty line is a line break."""
    folded = ""
    for line in "\n".join(line.strip() for line in lines).strip().split("\n"):
        glue = "\n" if not line or line.startswith("- ") else "" if folded.endswith("\n") else " "
        folded += glue + line if folded else line
    return folded


def _text_value(rest: str, more: list[str]) -> str:
    if header := _SCALAR_HEADER.fullmatch(rest.strip()):
        return textwrap.dedent("\n".join(more)).strip() if header[1] == "|" else _fold(more)
    text = _fold([rest, *more])
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1].strip()
    return text


# --- values to a document ---------------------------------------------------------------------------------


def _document(front: _Front, body: str, folder: str, warnings: list[str]) -> SkillDocument:
    values = dict(front.values)
    for key in sorted(PROSE_KEYS & front.plain & values.keys()):
        value, raw = values[key], front.raw.get(key, "")
        if isinstance(value, str) and raw.startswith(value) and raw[len(value) :].lstrip().startswith("#"):
            values[key] = raw
            warnings.append(f"the {key} holds ' #', which YAML drops; it was kept (put the text in quotes)")
    known = {key: _take(key, values, front, warnings) for key in KNOWN_KEYS}

    name = " ".join(_as_text(known["name"]).split())
    if "/" in name or "\\" in name or name in (".", ".."):
        warnings.append(
            f"the name {_short(name)} looks like a path; it is shown only, the folder is the path"
        )
    description = _as_text(known["description"]).strip()
    if front.values and not description:
        warnings.append("there is no description, so nothing says when to use the skill")
    metadata = _as_map(known["metadata"])
    if metadata is None:
        warnings.append("metadata is not a map of keys and values; it was kept among the extra keys")
        values["metadata"] = known["metadata"]
    return SkillDocument(
        name=name or folder.encode("utf-8", "replace").decode(),  # a folder's name can be any bytes
        slug=slug(folder),
        description=description,
        body=body,
        license=_as_text(known["license"]).strip(),
        compatibility=_as_text(known["compatibility"]).strip(),
        allowed_tools=_tools(known["allowed-tools"]),
        metadata=metadata or {},
        extra=values,
        warnings=tuple(warnings),
    )


def _take(key: str, values: dict[str, Value], front: _Front, warnings: list[str]) -> Value:
    """Moves one known key out of `values`; '' if it is missing or null."""
    found = key if key in values else None
    if found is None:  # `Description`, `allowed_tools`: the same key to a person
        found = next((other for other in values if other.lower().replace("_", "-") == key), None)
        if found is None:
            return ""
        warnings.append(f"the key {_short(found)} was read as {key!r}")
    value = values.pop(found)
    if found in front.plain and value in _NULLS:
        return ""
    if key in ("name", "description") and not isinstance(value, str):
        warnings.append(f"the {key} is not text; it was read as text (put it in quotes)")
        # `description: [TODO: say it]` is text in brackets, whatever YAML makes of it.
        raw = front.raw.get(found, "")
        return raw if raw.startswith(("[", "{")) else value
    return value


def _as_map(value: Value) -> dict[str, Value] | None:
    """A map, also when it is written as one JSON string; None if it is something else."""
    if isinstance(value, str) and value.strip().startswith("{"):
        try:
            return _compose(value).values  # JSON is YAML, and this reader is bounded
        except (_MalformedError, _RefusedError):
            return None
    if isinstance(value, dict):
        return value
    return None if value else {}


def _tools(value: Value) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(_split_tools(value))
    return tuple(text for item in value if (text := _as_text(item).strip()))


def _split_tools(text: str) -> list[str]:
    """At commas and blanks, but not inside parentheses: `Bash(node scripts/x.ts *)` is one tool."""
    tools: list[str] = []
    start = depth = 0
    for n, char in enumerate(text + ","):
        if char in "()":
            depth = max(0, depth + (1 if char == "(" else -1))
        elif (depth == 0 and (char == "," or char.isspace())) or n == len(text):
            tool, start = text[start:n], n + 1
            if tool.startswith("(") and tools:  # `Bash (git *)`
                tools[-1] += tool
            elif tool:
                tools.append(tool)
    return tools


def _as_text(value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(_as_text(item) for item in value)
    return "; ".join(f"{key}: {_nested(item)}" for key, item in value.items())


def _nested(value: Value) -> str:
    return f"({_as_text(value)})" if isinstance(value, dict) else _as_text(value)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
