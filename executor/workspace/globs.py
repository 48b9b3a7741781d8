"""Output globs: which files of a sandbox a caller wants back.

Pure text: nothing is listed or opened here. A pattern is compiled into `Glob`s, each saying where to look
(`root`, `recursive`) and which absolute paths inside the sandbox it means (`matches`).

    **           any number of folders, none included; at the end: every file below
    * ? [a-z]    inside one component; `[!a]` and `[^a]` negate; dot files match; case counts everywhere
    {a,b}        either; may be nested; `{1..9}` counts
    \\x           the character x itself

Where a pattern is looked for:

    out/a.txt            /workspace/out/a.txt, and with a skill also /skills/<skill>/out/a.txt
    skills/x/a           /skills/x/a; /workspace/skills/x/a is the same, for it is a link
    /workspace/a /skills/x/a   itself; every other absolute path is an error
    $OUTPUT_DIR/a ${WORK_DIR}/a   the variable's value, if it is the first component, whole

A pattern without wildcards that names a folder means all files below it, and so does a trailing `/`. A
pattern also matches the one file that is called exactly as the pattern is written, such as
`[Content_Types].xml`. There is no negation: a leading `!` is a character.

Braces are expanded by `bracex` (of `wcmatch`). Matching is our own: wcmatch's regular expressions take
minutes for `*a*a*a*a*a*a*a*b` against a name of 60 letters, and its `a` matches the name `a\\n`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from executor.errors import BadPathError
from executor.workspace.text import to_bytes

MAX_PATTERN = 4096
"""Characters of one pattern: as long as the longest path."""
MAX_ALTERNATIVES = 1000
"""Patterns that the braces of one pattern may stand for."""
MAX_EXPANDED = 1 << 16
"""Characters of all these together: compiling them stays below a tenth of a second or so."""
MAX_COMPONENTS = 256
"""Components of one pattern without its `**`: with the next number bounds the work for a path."""
MAX_ALL_COMPONENTS = 4096
"""Components with wildcards, and those behind them, of all alternatives of one pattern together."""

WORKSPACE = "/workspace"
SKILLS = "/skills"

# Variables that may begin a pattern; one that the caller does not give a value is an error, not a literal.
VARIABLES = ("WORKSPACE_DIR", "SKILLS_DIR", "WORK_DIR", "OUTPUT_DIR", "INPUTS_DIR", "RUN_DIR", "SKILL_DIR")

_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})(?=/|\Z)")
_MAGIC = re.compile(r"[*?\[\\]")
_STARS = re.compile(r"\*+")


@dataclass(frozen=True)
class Glob:
    """One place to look for one pattern."""

    text: str
    """The pattern as it was given."""
    root: str
    """Where to look: an absolute path inside the sandbox. It may be a folder, a file (then it is itself the
    only candidate), a link (then there is nothing: links are never followed) or missing."""
    recursive: bool
    """Whether folders below `root` have to be looked into, or only `root`'s own files."""
    _matcher: _Matcher = field(repr=False, compare=False)

    def matches(self, path: bytes | str) -> bool:
        """Whether the pattern means this absolute path, such as `/workspace/out/a b.txt`.

        Bytes that are not UTF-8 are surrogates in a str, as `text.to_text` makes them. All globs of one
        pattern give the same answer.
        """
        if isinstance(path, bytes):
            path = path.decode("utf-8", "surrogateescape")
        return self._matcher.matches(path)


def compile_globs(
    patterns: Sequence[str], *, variables: Mapping[str, str], skill: str | None = None
) -> list[Glob]:
    """The places to look for `patterns`, in their order; the same place for the same text only once.

    `variables` are the sandbox's own (`OUTPUT_DIR` → `/workspace/out`); `skill` is the slug of the skill that
    the run names. Raises `BadPathError`.
    """
    globs: dict[tuple[str, str], Glob] = {}
    for pattern in patterns:
        for glob in _compile(pattern, variables, skill):
            globs.setdefault((glob.text, glob.root), glob)
    return list(globs.values())


def strip_base(path: str) -> str:
    """An absolute path as results show it: `/workspace/out/a` → `out/a`, `/skills/x/y` → `skills/x/y`."""
    if path == WORKSPACE:
        return "."
    if path.startswith(WORKSPACE + "/"):
        return path[len(WORKSPACE) + 1 :]
    if path == SKILLS or path.startswith(SKILLS + "/"):
        return path[1:]
    raise BadPathError(f"{path!r} is neither in {WORKSPACE} nor in {SKILLS}")


# -------------------------------------------------------------------------------------------------- compiling


@dataclass(frozen=True)
class _Part:
    text: str | None = None
    """Plain text, or None."""
    regex: re.Pattern[str] | None = None
    """What a component must match; None with no text is `**`."""

    def accepts(self, component: str) -> bool:
        if self.text is not None:
            return self.text == component
        return self.regex is not None and self.regex.match(component) is not None


_GLOBSTAR = _Part()

# One pattern without braces, absolute: its components.
_Alternative = tuple[_Part, ...]


def _fixed(parts: _Alternative) -> tuple[str, ...]:
    """The leading components that are plain text."""
    texts: list[str] = []
    for part in parts:
        if part.text is None:
            break
        texts.append(part.text)
    return tuple(texts)


def _compile(pattern: str, variables: Mapping[str, str], skill: str | None) -> list[Glob]:
    if not pattern:
        raise BadPathError("an output glob is empty", hint="write for example out/** or skills/x/*.svg")
    if "\0" in pattern:
        raise BadPathError(f"the output glob {pattern[:80]!r} holds a NUL character")
    try:
        to_bytes(pattern)
    except UnicodeEncodeError:
        raise BadPathError(f"the output glob {pattern[:80]!r} holds what is no character") from None
    if len(pattern) > MAX_PATTERN:
        raise BadPathError(f"an output glob has {len(pattern)} characters, more than {MAX_PATTERN}")
    if skill is not None and (skill in ("", ".", "..") or "/" in skill or "\0" in skill):
        raise BadPathError(f"{skill!r} is not the name of a skill's folder")

    alternatives: dict[_Alternative, None] = {}  # a set that keeps the order
    components = 0
    for expanded in _expand_braces(pattern):
        for parts in _resolve(_split(expanded), pattern, variables, skill, plain=False):
            alternative = _alternative(parts, pattern)
            alternatives[alternative] = None
            components += len(alternative) - len(_fixed(alternative))
            if components > MAX_ALL_COMPONENTS:
                raise BadPathError(
                    f"the braces of the output glob {_short(pattern)} stand for more than"
                    f" {MAX_ALL_COMPONENTS} path components",
                    hint="pass several globs, or use **",
                )
            if len(_fixed(alternative)) == len(alternative):  # no wildcards: perhaps a folder
                alternatives[(*alternative, _GLOBSTAR)] = None

    # The pattern read as plain text, with nothing special in it.
    if _MAGIC.search(pattern) or "{" in pattern:
        for parts in _resolve(pattern.split("/"), pattern, variables, skill, plain=True):
            alternatives[tuple(_Part(text=part) if part else _GLOBSTAR for part in parts)] = None

    matcher = _Matcher(alternatives)
    return [Glob(pattern, root, recursive, matcher) for root, recursive in _roots(alternatives)]


def _expand_braces(pattern: str) -> list[str]:
    if "{" not in pattern:
        return [pattern]
    import bracex

    expanded: list[str] = []
    size = 0
    try:
        for text in bracex.iexpand(pattern, keep_escapes=True, limit=MAX_ALTERNATIVES):
            size += len(text)
            if size > MAX_EXPANDED:
                raise BadPathError(
                    f"the braces of the output glob {_short(pattern)} stand for more than"
                    f" {MAX_EXPANDED} characters",
                    hint="pass several globs, or use *",
                )
            expanded.append(text)
    except (bracex.ExpansionLimitException, RecursionError):
        raise BadPathError(
            f"the braces of the output glob {_short(pattern)} stand for more than {MAX_ALTERNATIVES} patterns"
            " or are nested too deep",
            hint="pass several globs, or use *",
        ) from None
    return expanded


def _split(pattern: str) -> list[str]:
    r"""At `/`; an escaped one is one as well. `[a/b]` is no class: a component cannot hold a slash."""
    return re.sub(r"\\(.)", lambda m: "/" if m[1] == "/" else m[0], pattern, flags=re.DOTALL).split("/")


def _resolve(
    parts: list[str], pattern: str, variables: Mapping[str, str], skill: str | None, *, plain: bool
) -> list[list[str]]:
    """The absolute patterns that `parts` stand for, as components; a last "" stands for "all below".

    `plain` says that `parts` are text, where a variable's value needs no escaping.
    """
    variable = _VARIABLE.match(parts[0])
    name = (variable[1] or variable[2]) if variable else ""
    if name in variables:
        value = variables[name].split("/")
        parts = (value if plain else [_escape(part) for part in value]) + parts[1:]
    elif name in VARIABLES:
        raise BadPathError(
            f"the output glob {_short(pattern)} uses ${name}, which has no value here",
            hint="SKILL_DIR needs a run that names a skill",
        )

    absolute = parts[0] == ""
    folder = parts[-1] in ("", ".")
    parts = [part for part in parts if part not in ("", ".")]
    if any((part if plain else _unescape(part)) == ".." for part in parts):
        raise BadPathError(
            f"the output glob {_short(pattern)} holds `..`", hint="write the path without `..`"
        )
    end = [""] if folder else []

    first = parts[0] if parts else ""
    if absolute and first == "workspace":
        parts = parts[1:]
        if parts and parts[0] == "skills":  # a link to /skills
            return [[*parts, *end]]
        return [["workspace", *parts, *end]]
    if absolute and first == "skills":
        return [[*parts, *end]]
    if absolute:
        raise BadPathError(
            f"the output glob {_short(pattern)} is outside: only {WORKSPACE} and {SKILLS} can be collected",
            hint="let the script write to $OUTPUT_DIR",
        )
    if first == "skills":
        return [[*parts, *end]]
    bases = [["workspace"]]
    if skill is not None:
        bases.append(["skills", skill if plain else _escape(skill)])
    return [[*base, *parts, *end] for base in bases]


def _alternative(parts: list[str], pattern: str) -> _Alternative:
    compiled: list[_Part] = []
    for text in parts:
        part = _part(text)
        if part is _GLOBSTAR and compiled and compiled[-1] is _GLOBSTAR:
            continue
        compiled.append(part)
    if sum(part is not _GLOBSTAR for part in compiled) > MAX_COMPONENTS:
        raise BadPathError(
            f"the output glob {_short(pattern)} has more than {MAX_COMPONENTS} components", hint="use **"
        )
    return tuple(compiled)


@functools.lru_cache(maxsize=4096)
def _part(text: str) -> _Part:
    if text in ("", "**"):
        return _GLOBSTAR
    tokens = _tokens(text)
    if all(kind == "text" for kind, _ in tokens):
        return _Part(text=_unescape(text))
    return _Part(regex=re.compile(_regex(tokens), re.DOTALL))


def _tokens(text: str) -> list[tuple[str, str]]:
    """("star", ""), or ("text" | "any", a regular expression for one character)."""
    tokens: list[tuple[str, str]] = []
    at = 0
    closed = True  # once a `[` has no end, no later one has
    while at < len(text):
        char = text[at]
        at += 1
        if char == "*":
            if not tokens or tokens[-1][0] != "star":
                tokens.append(("star", ""))
        elif char == "?":
            tokens.append(("any", "."))
        elif char == "[" and closed and (found := _bracket(text, at)):
            one_of, at = found
            tokens.append(("any", one_of))
        else:
            closed = closed and char != "["
            if char == "\\" and at < len(text):
                char = text[at]
                at += 1
            tokens.append(("text", re.escape(char)))
    return tokens


def _bracket(text: str, at: int) -> tuple[str, int] | None:
    """The class that begins after the `[` and where it ends; None if it does not end."""
    negated = text[at : at + 1] in ("!", "^")
    at += negated
    items: list[tuple[str, bool]] = []  # a character, and whether it was escaped
    while True:
        char = text[at : at + 1]
        if not char:
            return None
        at += 1
        if char == "]" and items:
            break
        escaped = char == "\\" and at < len(text)
        if escaped:
            char = text[at]
            at += 1
        items.append((char, escaped))
    ranges: list[str] = []
    while items:
        low = items.pop(0)[0]
        if len(items) > 1 and items[0] == ("-", False):
            high = items[1][0]
            del items[:2]
            if low <= high:
                ranges.append(f"{_in_class(low)}-{_in_class(high)}")
        else:
            ranges.append(_in_class(low))
    if not ranges:  # only ranges that run backwards
        return ("." if negated else "(?!)"), at
    return f"[{'^' if negated else ''}{''.join(ranges)}]", at


def _in_class(char: str) -> str:
    return f"\\U{ord(char):08x}"


def _regex(tokens: list[tuple[str, str]]) -> str:
    """Each star but the last takes the first place that fits and never tries another (an atomic group):
    a later place could not fit where the first does not. So the work is at most length times length."""
    runs = [""]
    for kind, regex in tokens:
        if kind == "star":
            runs.append("")
        else:
            runs[-1] += regex
    if len(runs) == 1:
        return runs[0] + r"\Z"
    middle = "".join(f"(?>.*?{run})" for run in runs[1:-1])
    return f"{runs[0]}{middle}.*{runs[-1]}\\Z" if runs[-1] else runs[0] + middle


def _escape(text: str) -> str:
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", text)


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _short(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else pattern[:77] + "...")


def _roots(alternatives: Iterable[_Alternative]) -> list[tuple[str, bool]]:
    """(root, recursive), one for each first folder: the deepest path that holds all alternatives there."""
    groups: dict[tuple[str, ...], list[_Alternative]] = {}
    for parts in alternatives:
        fixed = _fixed(parts)
        groups.setdefault(fixed[: 3 if fixed[0] == "skills" else 2], []).append(parts)
    for key in sorted(groups, key=len, reverse=True):  # a folder that is looked at takes in those below it
        above = next((key[:length] for length in range(1, len(key)) if key[:length] in groups), None)
        if above is not None:
            groups[above] += groups.pop(key)
    roots: list[tuple[str, bool]] = []
    for group in groups.values():
        root = functools.reduce(_common, map(_fixed, group))
        recursive = any(_GLOBSTAR in parts or len(parts) > len(root) + 1 for parts in group)
        roots.append(("/" + "/".join(root), recursive))
    return roots


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return a[:length]


# --------------------------------------------------------------------------------------------------- matching


class _Matcher:
    """All alternatives of one pattern."""

    def __init__(self, alternatives: Iterable[_Alternative]) -> None:
        self._files: set[tuple[str, ...]] = set()
        self._folders: set[tuple[str, ...]] = set()
        self._patterns: list[_Alternative] = []
        for parts in alternatives:
            fixed = _fixed(parts)
            if len(fixed) == len(parts):
                self._files.add(fixed)
            elif len(fixed) + 1 == len(parts) and parts[-1] is _GLOBSTAR:
                self._folders.add(fixed)
            else:
                self._patterns.append(parts)
        self._depths = sorted({len(folder) for folder in self._folders})
        self._last = ("", False)  # the globs of one pattern are asked one after the other

    def matches(self, path: str) -> bool:
        last, answer = self._last
        if path != last:
            answer = self._matches(path)
            self._last = (path, answer)
        return answer

    def _matches(self, path: str) -> bool:
        root, *rest = path.split("/")
        if root or "" in rest or "." in rest or ".." in rest:
            return False  # not absolute, or not in its shortest form
        components = tuple(rest)
        if components in self._files:
            return True
        if any(depth < len(components) and components[:depth] in self._folders for depth in self._depths):
            return True
        return any(_match(parts, components) for parts in self._patterns)


def _match(parts: tuple[_Part, ...], components: tuple[str, ...]) -> bool:
    """`**` takes as few components as will do; only the last one seen is ever made longer."""
    part = at = 0
    retry: tuple[int, int] | None = None
    while at < len(components):
        if part < len(parts) and parts[part] is _GLOBSTAR:
            if part + 1 == len(parts):
                return True  # at the end: at least one component, and that is there
            retry = (part + 1, at)
            part += 1
        elif part < len(parts) and parts[part].accepts(components[at]):
            part += 1
            at += 1
        elif retry is not None:
            part, at = retry[0], retry[1] + 1
            retry = (part, at)
        else:
            return False
    return part == len(parts)
