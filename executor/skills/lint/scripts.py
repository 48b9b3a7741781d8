"""Rules about scripts: how they start, what they import without saying so, whether they need the network.

Python is parsed, never imported or run. Shell and JavaScript are read line by line, so a call that is put
together at run time is not seen; what is seen is there.
"""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from executor.errors import SkillUnreadableError
from executor.skills.document import parse
from executor.skills.lint import fixes
from executor.skills.lint.folder import Entry, SkillFolder, lines_of, read_regular
from executor.skills.lint.rules import RULES, Finding, Fix
from executor.skills.packages import (
    NODE_MODULES,
    NODE_NETWORK,
    PYTHON_MODULES,
    PYTHON_NETWORK,
    PYTHON_PACKAGES,
    SHELL_INSTALLERS,
    SHELL_NETWORK,
    canonical,
)
from executor.workspace.text import MAX_PARSED

MAX_DOCUMENT = 1 << 20  # bytes of a file that declares dependencies

_BOM = b"\xef\xbb\xbf"
_SHEBANG = re.compile(rb"#![ \t]*(\S*)[ \t]*([^\r\n]*)")
_SYSTEM = re.compile(r"/(?:usr/(?:local/)?)?s?bin/[^/]+")
_SHELLS = re.compile(r"(?:ba|da|z|k|a)?sh")
_PEP_723 = re.compile(r"^# /// script\s*$(.*?)^# ///\s*$", re.MULTILINE | re.DOTALL)
_QUOTED_NAME = re.compile(r"[\"']([A-Za-z0-9][\w.-]*)")
_INSTALL = re.compile(
    r"\b(?:pip3?|uv|uvx|pipx|poetry|conda|mamba|npm|pnpm|yarn|bun|npx|apt|apt-get|brew)\b[^\n`]*"
)
_WORD = re.compile(r"@?[A-Za-z0-9][\w./@+-]*")
_JS_IMPORT = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*|\brequire\(\s*)["'](@?[A-Za-z0-9][^"'\n]*)["']""")
_JS_FETCH = re.compile(r"""\bfetch\(\s*["'`]https?://(?!localhost|127\.)""")
_LOOPBACK = re.compile(r"localhost|127\.0\.0\.1|\[::1\]|0\.0\.0\.0")
_NEGATED = re.compile(
    r"\b(?:no|not|without|never|needs? no|requires? no)\b[^.;,]*\b(?:network|internet)\b|\boffline\b",
    re.IGNORECASE,
)
_NETWORKED = re.compile(r"\b(?:network|internet|online|api|web access|https?|url)\b", re.IGNORECASE)

_Make = Callable[..., Finding]


def check(skill: SkillFolder) -> Iterator[Finding]:
    """Everything about the scripts of one skill."""

    def finding(rule: str, path: str, line: int, message: str, fix: Fix | None = None) -> Finding:
        return Finding(RULES[rule], skill.path, path, line, message, fix)

    scripts = list(skill.scripts())
    declared = _Declared(skill, scripts)
    for entry, data in scripts:
        yield from _start(entry, data, finding)
        text = data.decode("utf-8-sig", "replace")
        kind = _language(entry, data)
        if kind == "python":
            yield from _python(text, entry, declared, finding)
        elif kind == "node":
            yield from _node(text, entry, declared, finding)
        elif kind == "shell":
            yield from _shell(text, entry, declared, finding)


# --- how a script starts ------------------------------------------------------------------------------------


def _language(entry: Entry, data: bytes) -> str:
    match = _SHEBANG.match(data.removeprefix(_BOM))
    line = b" ".join(match.groups()).decode("utf-8", "replace") if match else ""
    words = [word.rpartition("/")[2] for word in line.split()]
    program = next((word for word in words if word != "env" and not word.startswith("-")), "")
    if entry.suffix == ".py" or program.startswith("python"):
        return "python"
    if entry.suffix in (".js", ".mjs", ".cjs", ".ts", ".mts") or program in ("node", "bun", "deno"):
        return "node"
    if entry.suffix in (".sh", ".bash") or _SHELLS.fullmatch(program):
        return "shell"
    return ""


def _start(entry: Entry, data: bytes, finding: _Make) -> Iterator[Finding]:
    bare = data.removeprefix(_BOM)
    shebang = _SHEBANG.match(bare)
    if shebang and data.startswith(_BOM):
        fix = Fix(change=fixes.strip_bom)
        yield finding("script-bom", entry.path, 1, "a byte order mark stands before #!", fix)
    if (shebang or _language(entry, data) == "shell") and b"\r\n" in data:
        line = data[: data.index(b"\r\n")].count(b"\n") + 1
        count = data.count(b"\r\n")
        yield finding("script-crlf", entry.path, line, f"{count:,} line ends CRLF", Fix(change=fixes.to_lf))
    if not shebang:
        return
    if os.name == "posix" and not entry.mode & 0o111:
        fix = Fix(mode=lambda mode: mode | (mode & 0o444) >> 2)
        yield finding("script-mode", entry.path, 1, f"its mode is {entry.mode:o}", fix)
    program = shebang[1].decode("utf-8", "replace")
    if not _SYSTEM.fullmatch(program) and program.startswith("/"):
        fix = Fix(change=fixes.env_shebang)
        yield finding("script-shebang", entry.path, 1, f"the interpreter is {program!r}", fix)
    if bare.count(b"\n") <= 1 and (count := bare.count(rb"\n")) >= 3:
        yield finding("script-one-line", entry.path, 1, f"{count} times \\n in one line")


# --- what is declared ---------------------------------------------------------------------------------------


@dataclass
class _Declared:
    """The packages that a skill says it needs, anywhere, and the modules that it brings itself."""

    skill: SkillFolder
    scripts: list[tuple[Entry, bytes]]
    told: set[str] = field(default_factory=set)
    """Packages that were reported: each is named once for a skill."""

    @cached_property
    def local(self) -> set[str]:
        """Names under which the skill's own files can be imported."""
        names = set()
        for entry in self.skill.entries:
            parts = entry.path.split("/")
            names.update(parts[:-1])
            if entry.suffix in (".py", ".pyi", ".so", ".pyd") or entry.kind in ("folder", "link"):
                names.add(parts[-1].split(".")[0])
        return names

    @cached_property
    def names(self) -> set[str]:
        """Every word that can be a declared package, in canonical spelling."""
        found: set[str] = set()
        for entry in self.skill.entries:
            if entry.kind != "file":
                continue
            base = entry.path.rpartition("/")[2].lower()
            if (base.startswith("requirements") and base.endswith((".txt", ".in"))) or base in (
                "pyproject.toml",
                "pipfile",
                "environment.yml",
                "environment.yaml",
                "setup.py",
            ):
                found.update(_words(_read(entry)))
            elif base == "package.json":
                found.update(_package_json(_read(entry)))
            elif base.endswith(".md"):
                for line in _INSTALL.findall(_read(entry)):
                    found.update(_words(line))
        for _entry, data in self.scripts:
            text = data.decode("utf-8", "replace")
            for block in _PEP_723.findall(text):
                found.update(canonical(name) for name in _QUOTED_NAME.findall(block))
        for text in self._front():
            found.update(_words(text))
        return found

    def _front(self) -> Iterator[str]:
        data = self.skill.skill_bytes
        if data is None:
            return
        try:
            document = parse(data, folder=self.skill.title)
        except SkillUnreadableError:
            return
        yield document.compatibility
        yield json.dumps([dict(document.metadata), dict(document.extra)])
        yield from _INSTALL.findall(document.body)

    @cached_property
    def network(self) -> bool:
        """Whether the author says that the network is needed."""
        data = self.skill.skill_bytes
        try:
            text = parse(data, folder=self.skill.title).compatibility if data is not None else ""
        except SkillUnreadableError:
            text = ""
        return bool(_NETWORKED.search(_NEGATED.sub("", text)))

    def has(self, module: str) -> bool:
        """Whether a package for this import is declared."""
        wanted = {canonical(module), *PYTHON_PACKAGES.get(module, ())}
        return any(name in wanted or name.startswith(f"{canonical(module)}-") for name in self.names)


def _read(entry: Entry) -> str:
    return (read_regular(entry.full, MAX_DOCUMENT) or b"").decode("utf-8", "replace")


def _words(text: str) -> set[str]:
    words = set()
    for word in _WORD.findall(text):
        bare = re.split(r"[<>=!~\[;]", word)[0].rstrip(".,:;/")
        words.add(canonical(bare))
        words.add(bare)
    return words


def _package_json(text: str) -> set[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return set()
    if not isinstance(found, dict):
        return set()
    names: set[str] = {found["name"]} if isinstance(found.get("name"), str) else set()
    for key, value in found.items():
        if key.lower().endswith("dependencies") and isinstance(value, dict):
            names.update(map(str, value))
    return names


# --- Python -------------------------------------------------------------------------------------------------


def _python(text: str, entry: Entry, declared: _Declared, finding: _Make) -> Iterator[Finding]:
    if len(text) > MAX_PARSED:
        yield finding("script-long", entry.path, 1, f"it has {len(text):,} characters")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        yield finding("script-syntax", entry.path, error.lineno or 1, error.msg)
        return
    except (ValueError, RecursionError, MemoryError) as error:
        yield finding("script-syntax", entry.path, 1, f"it cannot be parsed: {type(error).__name__}")
        return
    networked = False
    for module, line, optional in _imports(tree):
        top = module.split(".")[0]
        if not networked and not declared.network and _is_networked(module) and top not in declared.local:
            networked = True
            yield finding("network", entry.path, line, f"it imports {module}")
        if optional or top in PYTHON_MODULES or top in declared.local or top in declared.told:
            continue
        if not declared.has(top):
            declared.told.add(top)
            package = PYTHON_PACKAGES.get(top, (canonical(top),))[0]
            shown = f"{top!r}" if canonical(top) == package else f"{top!r} (the package {package})"
            yield finding("import-undeclared", entry.path, line, f"it imports {shown}")


def _is_networked(module: str) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:n]) in PYTHON_NETWORK for n in range(1, len(parts) + 1))


def _imports(tree: ast.AST) -> list[tuple[str, int, bool]]:
    """(module, line, whether the script goes on without it), in the order of lines."""
    found: list[tuple[str, int, bool]] = []
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, optional = todo.pop()
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, optional) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if not node.level and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                whole = [name for name in names if name in PYTHON_NETWORK]
                found.append(((whole or [node.module])[0], node.lineno, optional))
        elif isinstance(node, ast.Try):
            guarded = any(_catches_imports(handler) for handler in node.handlers)
            todo += [(child, optional or guarded) for child in node.body]
            handlers = [child for handler in node.handlers for child in handler.body]
            todo += [(child, optional or guarded) for child in handlers]
            todo += [(child, optional) for child in (*node.orelse, *node.finalbody)]
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            todo += [(child, True) for child in node.body] + [(child, optional) for child in node.orelse]
        else:
            todo += [(child, optional) for child in ast.iter_child_nodes(node)]
    return sorted(found, key=lambda item: item[1])


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    """An `except ImportError` that does not only end the script."""
    if handler.type is not None:
        names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
        if not names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}:
            return False
    return not any(_ends(node) for node in handler.body)


def _ends(node: ast.stmt) -> bool:
    if isinstance(node, ast.Raise):
        return True
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    function = node.value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("exit", "_exit", "quit")


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


# --- JavaScript ---------------------------------------------------------------------------------------------


def _node(text: str, entry: Entry, declared: _Declared, finding: _Make) -> Iterator[Finding]:
    networked = False
    block = False
    for number, line in enumerate(lines_of(text), 1):
        stripped = line.strip()
        block = block or stripped.startswith("/*")
        if block:
            block = "*/" not in stripped
            continue
        if stripped.startswith(("//", "*")):
            continue
        modules = [match[1] for match in _JS_IMPORT.finditer(line)]
        names = [_package_of(module) for module in modules]
        reason = next((f"it imports {name}" for name in names if name in NODE_NETWORK), "")
        if not reason and _JS_FETCH.search(line):
            reason = "it calls fetch()"
        if reason and not networked and not declared.network:
            networked = True
            yield finding("network", entry.path, number, reason)
        for module, name in zip(modules, names, strict=True):
            if module.startswith(("node:", "bun:", "npm:", "jsr:", "http:", "https:", "data:", "file:")):
                continue
            if name in NODE_MODULES or name in declared.names or name in declared.told:
                continue
            declared.told.add(name)
            yield finding("import-undeclared", entry.path, number, f"it imports {name!r}")


def _package_of(module: str) -> str:
    parts = module.split("/")
    return "/".join(parts[:2]) if module.startswith("@") else parts[0]


# --- shell --------------------------------------------------------------------------------------------------

_COMMAND_START = re.compile(r"(?:^|[;&|(`]|\$\(|\b(?:then|do|else|if|while|until|time|exec|sudo|env|!)\s)\s*")
_HERE_DOCUMENT = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")


def _shell(text: str, entry: Entry, declared: _Declared, finding: _Make) -> Iterator[Finding]:
    if declared.network:
        return
    until = ""
    for number, line in enumerate(lines_of(text), 1):
        stripped = line.strip()
        if until:
            until = "" if stripped == until else until
            continue
        if stripped.startswith("#"):
            continue
        if match := _HERE_DOCUMENT.search(line):
            until = match[1]
        command = _networked_command(stripped)
        if command and not _LOOPBACK.search(line):
            yield finding("network", entry.path, number, f"it runs {command}")
            return


def _networked_command(line: str) -> str:
    # A quoted text is no command, though `"$(curl …)"` holds one.
    bare = re.sub(r"'[^']*'|\"(?:[^\"$`\\]|\\.|\$(?!\())*\"", "''", line)
    for match in _COMMAND_START.finditer(bare):
        words = bare[match.end() :].split(None, 2)[:2]
        words = [word.rstrip(";)|&") for word in words]
        if not words:
            continue
        if words[0] in SHELL_NETWORK and len(words) > 1:
            return words[0]
        if SHELL_INSTALLERS.get(words[0]) == words[-1]:
            return " ".join(words)
    return ""
