"""What a skill says it needs, and where; where it says nothing, what its imports suggest.

Reads files of a skill folder and parses them; runs nothing and asks nobody. A declaration that would take
packages from elsewhere than the operator's index (a URL, a path, an index of the skill's own) is a `Refusal`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from executor.errors import ExecutorError
from executor.skills import toml
from executor.skills.document import SkillDocument, parse
from executor.skills.packages import NODE_MODULES, PYTHON_MODULES, PYTHON_PACKAGES, canonical
from executor.workspace.text import MAX_PARSED

MAX_FILE = 1 << 20
MAX_FILES = 2_000
MAX_TOTAL = 32 << 20  # bytes of all these files
MAX_PARSED_TOTAL = 4 << 20  # bytes of Python that are parsed for guesses
MAX_WANTED = 1_000  # of each list; a skill with more than that is after something else
MAX_LEVELS = 4
MAX_CHAIN = 100  # files that one requirements file leads to with -r and -c
SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "out", "work", "inputs"})
# Requirements that are for who works on the skill.
_FOR_AUTHORS = re.compile(r"dev|test|doc|lint|ci\b", re.IGNORECASE)
_INSTALL_LINE = re.compile(
    r"(?:^|[`;&|]\s*|\s)(?P<tool>(?:uv\s+)?pip3?|python3?\s+-m\s+pip|npm|pnpm|yarn|bun)\s+"
    r"(?:install|add|i)\s+(?P<rest>[^`\n;&|#]+)"
)
_PIP_WORD = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w,-]+\])?([<>=~!].*)?")
_JS_IMPORT = re.compile(
    r"""(?:\bfrom\s*|\bimport\s*(?:\(\s*)?|\brequire\s*\(\s*)["'](?P<name>[^"'./\s][^"'\s]*)["']"""
)
_NPM_NAME = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*", re.ASCII)
_NPM_RANGE = re.compile(r"[\w.^~<>=|&*+ x-]{0,100}", re.ASCII)


@dataclass(frozen=True)
class Wanted:
    """One dependency: `kind` is `python` or `node`, `spec` a requirement (`numpy>=2`) or `name@range`."""

    kind: str
    spec: str
    where: str
    """File and line: `scripts/requirements.txt:3`."""
    optional: bool = False
    """Left out where the platform does not have it (npm's `optionalDependencies`)."""


@dataclass(frozen=True)
class Refusal:
    """A declaration that is not followed, and why."""

    where: str
    reason: str


@dataclass
class Declared:
    """All that one skill says. `python` and `node` are declarations, `guesses` are not."""

    python: list[Wanted] = field(default_factory=list)
    node: list[Wanted] = field(default_factory=list)
    constraints: list[Wanted] = field(default_factory=list)
    """Bounds of Python packages that are needed only if something else needs them."""
    guesses: list[Wanted] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was seen and is not used."""
    node_lock: dict[str, Any] | None = None
    """The packages of the skill's own package-lock.json, when it has one beside its package.json."""
    node_folder: str = ""
    """Folder of the package.json below the skill, '' for the skill itself."""
    hashes: dict[str, list[str]] = field(default_factory=dict)
    """Hashes that the skill's own requirements demand, by canonical name."""

    @property
    def empty(self) -> bool:
        """Nothing is declared: guesses do not count."""
        return not (self.python or self.node)

    def names(self) -> set[str]:
        """Names of the declared packages, those of Python in their canonical form."""
        python = {canonical(Requirement(wanted.spec).name) for wanted in self.python}
        return python | {wanted.spec.rpartition("@")[0] for wanted in self.node}

    def specs(self) -> dict[str, list[str]]:
        """What a lock answers: the declarations in canonical order, without where they stand."""
        return {
            "python": sorted({wanted.spec for wanted in self.python}),
            "constraints": sorted({wanted.spec for wanted in self.constraints}),
            "node": sorted({wanted.spec for wanted in self.node if not wanted.optional}),
            "node_optional": sorted({wanted.spec for wanted in self.node if wanted.optional}),
        }


def declared(skill: Path) -> Declared:
    """Everything that a skill folder declares. A file that cannot be parsed becomes a refusal."""
    found = Declared()
    files = dict(_files(skill))
    for path, data in files.items():
        name = path.rpartition("/")[2]
        if re.fullmatch(r"requirements[\w.-]*\.(txt|in)", name) or (
            path.split("/")[-2:-1] == ["requirements"] and name.endswith(".txt")
        ):
            if _FOR_AUTHORS.search(name.removeprefix("requirements")):
                found.notes.append(f"{path} is for the skill's authors")
            elif name.endswith(".txt") or path.removesuffix(".in") + ".txt" not in files:
                _requirements(path, data, files, found, set())
        elif name == "pyproject.toml":
            _pyproject(path, data, found)
        elif name.endswith(".py"):
            _script_block(path, data, found)
        elif name == "package.json":
            _package_json(path, data, files, found)
    _front_matter(skill, files, found)
    if not found.python:
        _guess_python(files, found)
    if not found.node:
        _guess_node(files, found)
    return found


def _files(skill: Path) -> Iterator[tuple[str, bytes]]:
    """Relative path and bytes of every file that can hold a declaration. Links are not followed."""
    count = total = 0
    todo = [(skill, "", 0)]
    while todo:
        folder, base, level = todo.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            path = f"{base}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if level < MAX_LEVELS and entry.name not in SKIPPED:
                    todo.append((Path(entry.path), f"{path}/", level + 1))
                continue
            if not re.search(r"\.(py|txt|in|toml|json|md|[cm]?[jt]sx?)$", entry.name):
                continue
            info = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE:
                continue
            count, total = count + 1, total + info.st_size
            if count > MAX_FILES or total > MAX_TOTAL:
                return
            try:
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with os.fdopen(descriptor, "rb") as file:
                    yield path, file.read(MAX_FILE)
            except OSError:
                continue


# --- requirements.txt ---------------------------------------------------------------------------------------


def _requirements(
    path: str, data: bytes, files: dict[str, bytes], found: Declared, seen: set[str], constraint: bool = False
) -> None:
    if path in seen:
        return
    if len(seen) == MAX_CHAIN:
        found.refused.append(Refusal(path, f"more than {MAX_CHAIN} files lead to each other"))
        return
    seen.add(path)
    text = re.sub(r"\\\r?\n", " ", data.decode("utf-8-sig", "replace"))
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        where = f"{path}:{number}"
        if not line:
            continue
        other = re.fullmatch(r"(-r|--requirement|-c|--constraint)[ =]?\s*(\S+)", line)
        if other:
            target = os.path.normpath(os.path.join(os.path.dirname(path), other[2]))
            if target in files and not target.startswith(".."):
                _requirements(target, files[target], files, found, seen, constraint or "c" in other[1][:3])
            else:
                found.refused.append(Refusal(where, f"{other[2]!r} is no file of the skill"))
        elif line.startswith("-"):
            found.refused.append(
                Refusal(where, f"the option {line.split()[0]!r}: where packages come from is the operator's")
            )
        else:
            line, *hashes = re.split(r"(?<!\s)\s+--hash[= ]", line)
            _python(line.strip(), where, found, found.constraints if constraint else found.python)
            if hashes and not constraint and found.python and found.python[-1].where == where:
                name = canonical(Requirement(found.python[-1].spec).name)
                found.hashes[name] = [item.strip() for item in hashes]


def _python(text: str, where: str, found: Declared, into: list[Wanted] | None = None) -> None:
    """Take one requirement in, or refuse it."""
    into = found.python if into is None else into
    if _full(into, where, found):
        return
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        if re.match(r"(git|hg|svn|bzr)\+|https?:|file:|\.{0,2}/", text):
            found.refused.append(Refusal(where, f"{text[:80]!r} is not from the operator's index"))
        else:
            found.refused.append(Refusal(where, f"{text[:80]!r} is no requirement"))
        return
    if requirement.url:
        found.refused.append(Refusal(where, f"{requirement.name} is to come from a URL or a path"))
        return
    wanted = Wanted("python", str(requirement), where)
    if not wanted.spec.isprintable():  # a line break in a marker's text would be a line of its own for uv
        found.refused.append(Refusal(where, f"{wanted.spec[:80]!r} has characters that cannot be printed"))
        return
    if all(other.spec != wanted.spec for other in into):
        into.append(wanted)


# --- pyproject.toml and script blocks -----------------------------------------------------------------------


def _pyproject(path: str, data: bytes, found: Declared) -> None:
    try:
        table = toml.loads(data.decode("utf-8"))
    except ValueError as error:
        found.refused.append(Refusal(path, f"it is not TOML: {error}"))
        return
    project = _map(table.get("project"))
    for item in _strings(project.get("dependencies")):
        _python(item, path, found)
    poetry = _map(_map(_map(table.get("tool")).get("poetry")).get("dependencies"))
    for name, wanted in poetry.items():
        if name == "python":
            continue
        if isinstance(wanted, dict):
            if set(wanted) & {"git", "path", "url", "file", "source"}:
                found.refused.append(Refusal(path, f"{name} is not to come from the operator's index"))
                continue
            if wanted.get("optional"):
                continue
            wanted = wanted.get("version", "*")
        _python(name + poetry_range(str(wanted)), path, found)
    uv = _map(_map(table.get("tool")).get("uv"))
    for name in ("sources", "index", "index-url", "extra-index-url", "find-links"):
        if uv.get(name):
            found.refused.append(Refusal(path, f"tool.uv.{name}: where packages come from is the operator's"))


def poetry_range(text: str) -> str:
    """A range in Poetry's spelling (`^1.2`, `~1.2`, `1.*`, `*`) as a specifier; what is one already stays."""
    pieces = []
    for part in (piece.strip() for piece in text.split(",")):
        match = re.fullmatch(r"([\^~]?)\s*v?(\d{1,9}(?:\.\d{1,9}){0,9})", part, re.ASCII)
        if part in ("", "*"):
            continue
        if match is None:
            pieces.append("==" + part if re.fullmatch(r"\d+(\.\d+)*\.\*", part) else part)
            continue
        numbers = [int(number) for number in match[2].split(".")]
        if match[1] == "^":
            index = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
        elif match[1] == "~":
            index = min(1, len(numbers) - 1)
        else:
            pieces.append(f"=={match[2]}")
            continue
        upper = [*numbers[:index], numbers[index] + 1]
        pieces += [f">={match[2]}", "<" + ".".join(map(str, upper))]
    return ",".join(pieces)


def _script_block(path: str, data: bytes, found: Declared) -> None:
    if b"# /// script" not in data:
        return
    blocks = list(_blocks(data.decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n")))
    if not blocks:
        found.refused.append(Refusal(path, "its script block has no end"))
    for number, body in blocks[:1]:
        where = f"{path}:{number}"
        try:
            table = toml.loads("\n".join(line[2:] for line in body))
        except ValueError as error:
            found.refused.append(Refusal(where, f"its script block is not TOML: {error}"))
            continue
        for item in _strings(table.get("dependencies")):
            _python(item, where, found)
        if _map(_map(table.get("tool")).get("uv")).get("index"):
            found.refused.append(Refusal(where, "tool.uv.index: where packages come from is the operator's"))
    if len(blocks) > 1:
        found.refused.append(Refusal(path, "it has more than one script block"))


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """The number of the first line of each script block that has an end, and the lines in it."""
    begin = -1
    for at, line in enumerate(lines):
        if begin < 0:
            begin = at if line.rstrip() == "# /// script" else -1
        elif line.rstrip() == "# ///" and at > begin + 1:
            yield begin + 1, lines[begin + 1 : at]
            begin = -1
        elif line != "#" and not line.startswith("# "):
            begin = -1


# --- package.json -------------------------------------------------------------------------------------------


def _package_json(path: str, data: bytes, files: dict[str, bytes], found: Declared) -> None:
    table = _json(path, data, found)
    optional = _map(table.get("optionalDependencies"))
    wanted = {**_map(table.get("dependencies")), **optional}
    if not wanted:
        return
    folder = path.rpartition("/")[0]
    if found.node:
        found.notes.append(f"{path} is not used: {found.node[0].where} is nearer to the skill")
        return
    for name, spec in wanted.items():
        _node(name, spec, path, found, optional=name in optional)
    found.node_folder = folder
    beside = f"{folder}/" if folder else ""
    lock = files.get(f"{beside}package-lock.json")
    if lock is not None:
        packages = _json(f"{beside}package-lock.json", lock, found).get("packages")
        if isinstance(packages, dict):
            found.node_lock = packages
        else:
            found.notes.append(f"{beside}package-lock.json is of an old form and not used")
    for other in ("yarn.lock", "pnpm-lock.yaml", "bun.lock", "bun.lockb"):
        if beside + other in files:
            found.notes.append(f"{beside}{other} is not used")


def _node(
    name: str,
    spec: Any,
    where: str,
    found: Declared,
    into: list[Wanted] | None = None,
    optional: bool = False,
) -> None:
    into = found.node if into is None else into
    if _full(into, where, found):
        return
    if not _NPM_NAME.fullmatch(name) or len(name) > 214:
        found.refused.append(Refusal(where, f"{name[:80]!r} is no package name"))
    elif not isinstance(spec, str) or not _NPM_RANGE.fullmatch(spec):
        found.refused.append(
            Refusal(where, f"{name} is to come from {str(spec)[:80]!r}, not from the operator's registry")
        )
    else:
        wanted = Wanted("node", f"{name}@{spec.strip() or '*'}", where, optional)
        if all(other.spec != wanted.spec for other in into):
            into.append(wanted)


# --- front matter -------------------------------------------------------------------------------------------


def _front_matter(skill: Path, files: dict[str, bytes], found: Declared) -> None:
    data = files.get("SKILL.md")
    if data is None:
        return
    try:
        document = parse(data, folder=skill.name)
    except ExecutorError:
        return
    for key in ("dependencies", "requirements", "pip", "python-packages", "packages"):
        for item in _words(document.extra.get(key)):
            _prose(item, f"SKILL.md ({key})", found)
    for space, value in document.metadata.items():
        where = f"SKILL.md (metadata.{space})"
        if space in ("dependencies", "requirements", "pip", "packages"):
            for item in _words(value):
                _prose(item, where, found)
        table = _map(value)
        for key in ("requires", "dependencies"):
            inner = _map(table.get(key))
            for kind in ("pip", "python", "pypi", "packages"):
                for item in _words(inner.get(kind)):
                    _prose(item, where, found)
            for kind in ("npm", "node"):
                for item in _words(inner.get(kind)):
                    name, _, spec = item[1:].partition("@")
                    _node(item[:1] + name, spec or "*", where, found)
        steps = table.get("install")
        for step in steps if isinstance(steps, list) else []:
            step = _map(step)
            package = str(step.get("package") or step.get("formula") or "")
            kind = str(step.get("kind") or step.get("type") or "")
            if kind in ("pip", "uv", "pypi", "python") and package:
                _prose(package, where, found)
            elif kind in ("npm", "node") and package:
                name, _, spec = package[1:].partition("@")
                _node(package[:1] + name, spec or "*", where, found)
            elif kind:
                found.notes.append(
                    f"{where} installs {package or 'something'} by {kind}: use an image with it"
                )
    _compatibility(document, found)


def _compatibility(document: SkillDocument, found: Declared) -> None:
    """`Python 3.9+, pandas>=2, openpyxl`: only items that have a version or are known packages count."""
    known = {name for names in PYTHON_PACKAGES.values() for name in names} | _COMMON
    for item in re.split(r"[,;\n]| and ", document.compatibility):
        item = re.sub(r"^(?:requires?|needs?|python packages?:?)\s+", "", item.strip(), flags=re.IGNORECASE)
        try:
            requirement = Requirement(item)
        except InvalidRequirement:
            continue
        if canonical(requirement.name) in known:
            found.guesses.append(Wanted("python", str(requirement), "SKILL.md (compatibility)"))


_COMMON = frozenset(
    ("numpy", "pandas", "matplotlib", "scipy", "requests", "openpyxl", "pypdf", "pdfplumber", "reportlab")
)


def _prose(item: str, where: str, found: Declared) -> None:
    """An item of a list in front matter. `python>=3.9` and names of programs with spaces are no packages."""
    item = item.strip()
    if re.match(r"(?i)python\b|node\b|bash\b", item) or (" " in item and not re.search(r"[<>=~]", item)):
        found.notes.append(f"{where} names {item[:60]!r}, which is no package")
        return
    _python(item, where, found)


# --- guesses ------------------------------------------------------------------------------------------------


def _guess_python(files: dict[str, bytes], found: Declared) -> None:
    local = {part.removesuffix(".py") for path in files for part in path.split("/")}
    seen = set()
    left = MAX_PARSED_TOTAL
    for path, data in files.items():
        if path.endswith(".md"):
            _guess_from_text(path, data, found)
        if not path.endswith(".py"):
            continue
        left -= len(data)
        if len(data) > MAX_PARSED or left < 0:
            found.notes.append(f"{path} is not looked into for imports: it is too long")
            continue
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                modules = [node.module]
            for module in modules:
                top = module.split(".")[0]
                if top in PYTHON_MODULES or top in local or top in seen:
                    continue
                seen.add(top)
                name = PYTHON_PACKAGES.get(top, (canonical(top),))[0]
                line = getattr(node, "lineno", 1)
                _python(name, f"{path}:{line} (import {top})", found, found.guesses)


def _guess_node(files: dict[str, bytes], found: Declared) -> None:
    seen = set()
    for path, data in files.items():
        if not re.search(r"\.[cm]?[jt]sx?$", path):
            continue
        text = data.decode("utf-8", "replace")
        for line, match in _numbered(_JS_IMPORT, text, "name"):
            parts = match["name"].split("/")
            name = "/".join(parts[:2]) if parts[0].startswith("@") else parts[0]
            if name.startswith("node:") or name in NODE_MODULES or name in seen:
                continue
            seen.add(name)
            if _NPM_NAME.fullmatch(name):
                _node(name, "*", f"{path}:{line} (import)", found, found.guesses)


def _guess_from_text(path: str, data: bytes, found: Declared) -> None:
    """`pip install pypdf pdfplumber` in a text."""
    text = data.decode("utf-8", "replace")
    for line, match in _numbered(_INSTALL_LINE, text, "rest"):
        where = f"{path}:{line} (install line)"
        for word in match["rest"].split():
            word = word.strip("'\"")
            if word.startswith("-") or not re.fullmatch(r"[@\w][\w.@/\[\]<>=~!^-]*", word):
                continue
            if "pip" in match["tool"]:
                if (
                    re.fullmatch(r"[A-Za-z0-9][\w.-]*(\[[\w,-]+\])?([<>=~!].*)?", word)
                    and "." not in word[-4:]
                ):
                    _python(word, where, found, found.guesses)
            elif not found.node:
                name, _, spec = word[1:].partition("@")
                if _NPM_NAME.fullmatch(word[:1] + name):
                    _node(word[:1] + name, spec or "*", where, found, found.guesses)


# --- small things -------------------------------------------------------------------------------------------


def _numbered(pattern: re.Pattern[str], text: str, group: str) -> Iterator[tuple[int, re.Match[str]]]:
    """The matches, each with the number of the line on which a group of it begins."""
    line, at = 1, 0
    for match in pattern.finditer(text):
        line += text.count("\n", at, match.start(group))
        at = match.start(group)
        yield line, match


def _full(into: list[Wanted], where: str, found: Declared) -> bool:
    """Whether there is no room for more, which is refused once, unless it is only guessed."""
    if max(len(into), len(found.refused)) < MAX_WANTED:
        return False
    refusal = Refusal(where.partition(":")[0], f"more than {MAX_WANTED:,} packages are named")
    if into is not found.guesses and refusal not in found.refused[-1:]:
        found.refused.append(refusal)
    return True


def _json(path: str, data: bytes, found: Declared) -> dict[str, Any]:
    try:
        table = json.loads(data)
    except (ValueError, RecursionError) as error:
        found.refused.append(Refusal(path, f"it is not JSON: {error}"))
        return {}
    return _map(table)


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _words(value: Any) -> list[str]:
    """A list of strings, or a string of comma-separated ones."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return _strings(value)
