"""Rules about SKILL.md: its bytes, the form and the content of its front matter, its body, what it names."""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from collections.abc import Iterator

from executor.errors import SkillUnreadableError
from executor.skills.document import KNOWN_KEYS, PROSE_KEYS, SkillDocument, parse
from executor.skills.lint import fixes, front
from executor.skills.lint.folder import SkillFolder, lines_of
from executor.skills.lint.front import Front, Key
from executor.skills.lint.rules import RULES, Finding, Fix

MAX_NAME, MAX_DESCRIPTION, MAX_COMPATIBILITY, MAX_BODY_LINES = 64, 1024, 500, 500  # the specification's
SHOWN = 60  # characters of a value in a message

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_WHERE = re.compile(r" on line (\d+) of it")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_LINK = re.compile(
    r"!?\[[^\]\n]*\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+[\"'][^\n]*?[\"'])?\s*\)"
)
_INLINE_CODE = re.compile(r"(`+)(?:(?!\1).)+\1")
# `scripts/x.py`, also behind `./` and behind the variables that harnesses put in front of it.
_NAMED = re.compile(
    r"(?:(?<=[\s`\"'(=])|^)(?:\./|\{baseDir\}/|\$\{?(?:SKILL_DIR|CLAUDE_SKILL_DIR)\}?/)?"
    r"((?:scripts|references|assets)/[\w./-]*[\w-]\.[A-Za-z][A-Za-z0-9]{0,5})(?=[\s`\"'),;:]|\.(?:\s|$)|$)"
)
_PLACEHOLDER = re.compile(
    r"[*<>{}$|…]|\.\.\."
    r"|(?<![A-Za-z])(?i:your|my|path[/_-]to|example|foo|bar|xxx+|name|file(?:name)?)(?![A-Za-z])"
)


def check(skill: SkillFolder) -> Iterator[Finding]:
    """Everything about the text of one skill."""
    name = skill.skill_file
    data = skill.skill_bytes
    if data is None:
        return  # the rules about links have said why

    def finding(rule: str, line: int, message: str, fix: Fix | None = None) -> Finding:
        return Finding(RULES[rule], skill.path, name, line, message, fix)

    if data.startswith(b"\xef\xbb\xbf"):
        yield finding("bom", 1, "the file begins with a byte order mark", Fix(change=fixes.strip_bom))
    if crlf := data.count(b"\r\n"):
        line = data[: data.index(b"\r\n")].count(b"\n") + 1
        lines = "line ends" if crlf > 1 else "line end"
        yield finding("crlf", line, f"{crlf:,} {lines} CRLF", Fix(change=fixes.to_lf))
    try:
        document = parse(data, folder=skill.title)
    except SkillUnreadableError as error:
        at = _WHERE.search(error.message)
        line = int(at[1]) + front.read(_text(data)).first if at else _line_of_fault(data)
        yield finding("skill-unreadable", line, error.message)
        return
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        yield finding("encoding", line, f"byte {error.start:,} is no UTF-8 (0x{data[error.start]:02x})")
    read = front.read(_text(data))
    for rule, line, message, fix in _form(read):
        yield finding(rule, line, message, fix)
    if read.opening is not None and read.closed:
        for rule, line, message, fix in (*_values(read), *_content(read, document, skill.title)):
            yield finding(rule, line, message, fix)
    for rule, line, message in (*_body(read, document), *_names(read, skill)):
        yield finding(rule, line, message)


_Found = tuple[str, int, str, Fix | None]


def _text(data: bytes) -> str:
    return data.decode("utf-8-sig", "replace")


def _line_of_fault(data: bytes) -> int:
    nul = data.find(0)
    return data[:nul].count(b"\n") + 1 if nul >= 0 else 1


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")


# --- the fences ---------------------------------------------------------------------------------------------


def _form(read: Front) -> Iterator[_Found]:
    if read.wrapped:
        yield "front-wrapped", 1, f"the file begins with {_short(read.lines[0].strip())}", None
    if read.opening is None:
        first = read.lines[0].strip() if read.lines else ""
        shown = f"the file begins with {_short(first)}" if first else "the file does not begin with ---"
        yield "front-missing", 1, shown, None
        return
    if read.before:
        fix = Fix(change=fixes.drop_leading_blanks)
        yield "front-late", 1, f"the opening --- is on line {read.opening + 1}", fix
    if not read.closed:
        yield "front-unclosed", read.opening + 1, "no line `---` follows", None
        return
    if read.glued:
        fix = Fix(change=fixes.split_fence)
        yield "front-glued", read.end + 1, f"the closing --- is followed by {_short(read.glued)}", fix
    for line in read.controls():
        yield "front-control", line, f"a control character: {_short(read.lines[line - 1])}", None
    for index in range(read.first, read.end):
        if "---" in read.lines[index]:
            yield "front-dashes", index + 1, f"'---' in {_short(read.lines[index].strip())}", None


# --- how YAML reads the values ------------------------------------------------------------------------------


def _values(read: Front) -> Iterator[_Found]:
    if read.error is not None:
        line, reason = read.error
        shown = read.lines[line - 1] if 0 < line <= len(read.lines) else ""
        line, shown = (line, shown) if shown.strip() else (line - 1, read.lines[line - 2])
        name = shown.partition(":")[0].strip()
        fix = Fix(change=fixes.quote(name, shown)) if name in KNOWN_KEYS and name != "metadata" else None
        yield "front-yaml", line, f"{reason}: {_short(shown.strip())}", fix
    if read.error is not None:
        for name, places in read.written.items():
            for line, _rest in places[1:]:
                yield "front-duplicate", line, f"{_short(name)} is on line {places[0][0]} already", None
    seen: dict[tuple[str, ...], Key] = {}
    for key in read.keys:
        if key.path in seen:
            shown = _short(".".join(key.path))
            yield "front-duplicate", key.line, f"{shown} is on line {seen[key.path].line} already", None
        else:
            seen[key.path] = key
        yield from _value(read, key)
    for line in read.braces:
        yield "front-brace", line, "a brace or bracket closes at the left margin", None
    for name, places in read.written.items():
        wanted = name.lower().replace("_", "-")
        if wanted in KNOWN_KEYS and name != wanted:
            mend = Fix(change=fixes.rename_key(name, wanted)) if wanted not in read.written else None
            yield "front-key-case", places[0][0], f"{_short(name)} instead of {wanted!r}", mend
        elif wanted not in KNOWN_KEYS and (read.error is not None or (name,) in seen):
            yield "front-key-unknown", places[0][0], f"the key {_short(name)}", None


def _value(read: Front, key: Key) -> Iterator[_Found]:
    name, text = key.path[-1], read.lines[key.line - 1]
    known = key.path[0] in KNOWN_KEYS
    top = len(key.path) == 1
    if key.kind != "text":
        if key.flow and name not in ("name", "description"):
            yield "front-flow", key.line, f"{_short(text.strip())}", None
        if top and name in ("name", "description", "license"):
            fix = Fix(change=fixes.quote(name, text))
            yield "front-type", key.line, f"{name} is a {key.kind}: {_short(text.strip())}", fix
        return
    if key.plain and (top or key.path[0] == "metadata") and known and key.type not in ("str", "null"):
        fix = Fix(change=fixes.quote(name, text, comment=True))
        shown = ".".join(key.path)
        yield "front-type", key.line, f"{shown} is {_kind_name(key.type)}: {_short(key.value)}", fix
    if key.plain and top and name in PROSE_KEYS:
        rest = text.partition(":")[2]
        cut = rest.find(" #")
        if cut >= 0 and rest[:cut].strip() == key.value.strip():
            lost = rest[cut:].strip()
            fix = Fix(change=fixes.quote(name, text))
            yield "front-hash", key.line, f"what follows is dropped: {_short(lost)}", fix


def _kind_name(kind: str) -> str:
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "timestamp": "a date"}
    return names.get(kind, kind)


# --- what the values say ------------------------------------------------------------------------------------


def _content(read: Front, document: SkillDocument, folder: str) -> Iterator[_Found]:
    top = (read.opening or 0) + 1
    has_name = any(name.lower() == "name" for name in read.written) and document.name.strip()
    if not has_name or _is_empty(read, "name"):
        yield "name-missing", top, "there is no `name:`", None
    else:
        line = read.line_of("name") if "name" in read.written else read.line_of("Name")
        name = document.name
        if len(name) > MAX_NAME:
            yield "name-length", line, f"{len(name)} characters", None
        if not _NAME.fullmatch(name):
            yield "name-characters", line, f"the name is {_short(name)}", None
        if name != folder:
            yield "name-folder", line, f"the name is {_short(name)}, the folder {_short(folder)}", None
    line = read.line_of("description")
    if not document.description:
        yield "description-missing", line, "`description:` is missing or empty", None
    elif len(document.description) > MAX_DESCRIPTION:
        yield "description-length", line, f"{len(document.description):,} characters", None
    if "<" in document.description or ">" in document.description:
        near = re.search(r".{0,20}[<>].{0,20}", document.description)
        yield "description-angle", line, f"in {_short(near[0] if near else '')}", None
    if len(document.compatibility) > MAX_COMPATIBILITY:
        where = read.line_of("compatibility")
        yield "compatibility-length", where, f"{len(document.compatibility):,} characters", None
    for key in read.keys:
        yield from _shape(key)


def _is_empty(read: Front, name: str) -> bool:
    key = read.key(name)
    return key is not None and key.kind == "text" and (not key.value.strip() or key.type == "null")


def _shape(key: Key) -> Iterator[_Found]:
    """The type of one value, where the specification asks for another."""
    top = len(key.path) == 1
    name = key.path[0]
    if top and name == "compatibility" and key.kind != "text":
        yield "compatibility-type", key.line, f"it is a {key.kind}", None
    elif top and name == "metadata" and key.kind != "map" and key.value.strip() and key.type != "null":
        what = f"it is the text {_short(key.value)}" if key.kind == "text" else f"it is a {key.kind}"
        yield "metadata-type", key.line, what, None
    elif not top and name == "metadata" and key.kind != "text":
        yield "metadata-nested", key.line, f"{_short('.'.join(key.path))} is a {key.kind}", None
    elif top and name == "allowed-tools":
        if key.kind != "text":
            yield "tools-form", key.line, f"it is a {key.kind}", None
        elif "," in re.sub(r"\([^)]*\)", "", key.value):
            yield "tools-form", key.line, f"the tools are parted by commas: {_short(key.value)}", None


# --- the body -----------------------------------------------------------------------------------------------


def _body(read: Front, document: SkillDocument) -> Iterator[tuple[str, int, str]]:
    if not document.body.strip():
        yield "body-empty", len(read.lines), "nothing follows the front matter"
        return
    count = len(lines_of(document.body.rstrip()))
    if count > MAX_BODY_LINES:
        yield "body-length", read.end + 2 if read.closed else 1, f"{count:,} lines"


def _names(read: Front, skill: SkillFolder) -> Iterator[tuple[str, int, str]]:
    """Files that the body names: links outside of code, and `scripts/…` anywhere. One finding for each."""
    start = read.end + 1 if read.closed else 0
    told: set[str] = set()
    fence = ""
    for number, line in enumerate(read.lines[start:], start + 1):
        if match := _FENCE.match(line):
            if not fence:
                fence = match[1]
            elif match[1].startswith(fence) and line.strip() == match[1]:
                fence = ""
            continue
        if not fence:
            for link in _LINK.finditer(_INLINE_CODE.sub(lambda code: " " * len(code[0]), line)):
                yield from _linked(link[1], number, skill, told)
        for named in _NAMED.finditer(line):
            path = posixpath.normpath(named[1])
            if path in told or _PLACEHOLDER.search(path) or _there(skill, path):
                continue
            told.add(path)
            yield "file-named-missing", number, f"{_short(path)} is not in the skill"


def _linked(target: str, line: int, skill: SkillFolder, told: set[str]) -> Iterator[tuple[str, int, str]]:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|#|/|~|@", target) or _PLACEHOLDER.search(target):
        return
    path = urllib.parse.unquote(re.split(r"[#?]", target, maxsplit=1)[0])
    if not path or not re.search(r"[./]", path):
        return  # a word in brackets and parentheses is prose
    normal = posixpath.normpath(path)
    if normal in told:
        return
    if normal == ".." or normal.startswith("../"):
        told.add(normal)
        yield "file-outside", line, f"the link {_short(target)} leaves the skill"
    elif not _there(skill, normal):
        told.add(normal)
        yield "file-missing", line, f"{_short(path)} is not in the skill"


def _there(skill: SkillFolder, path: str) -> bool:
    if path == "." or path in skill.by_path or any(path.startswith(below) for below in skill.nested):
        return True
    parts = path.split("/")
    # Below a link, or in a folder that is left to the run.
    return any("/".join(parts[:n]) in skill.by_path and skill.by_path["/".join(parts[:n])].kind == "link"
               for n in range(1, len(parts))) or parts[0] in ("out", "work", "inputs")  # fmt: skip
