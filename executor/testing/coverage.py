"""Which scripts of a skill its cases run, found by reading: commands name scripts, scripts name others.

Nothing is watched while it runs, so a script whose name is put together at run time counts as not run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from executor.testing.results import Coverage

SUFFIXES = (".py", ".sh", ".bash", ".js", ".mjs", ".cjs", ".ts", ".awk", ".jq", ".rb", ".pl", ".r")
NOT_SCRIPTS = frozenset({"tests", "out", "work", "inputs", "node_modules", "__pycache__", ".git"})
MAX_READ = 1 << 20
MAX_SCRIPTS = 2000

_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\b|import\s+([\w., ]+))", re.MULTILINE)


def coverage(skill: Path, name: str, commands: Iterable[str | Sequence[str]]) -> Coverage:
    """What the commands of the cases that were run reach in the skill's folder."""
    scripts = _scripts(skill)
    words = {word for command in commands for word in _words(command)}
    run = {path for path in scripts if any(_names(word, path) for word in words)}
    reached = set(run)
    todo = list(run)
    while todo:
        text = scripts[todo.pop()]
        imported = _imported(text)
        for path in scripts:
            if path not in reached and _mentioned(path, text, imported):
                reached.add(path)
                todo.append(path)
    return Coverage(
        skill=name,
        run=sorted(run),
        reached=sorted(reached - run),
        not_run=sorted(scripts.keys() - reached),
    )


def _scripts(skill: Path) -> dict[str, str]:
    """path → text of everything that can be run."""
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(skill):
        folders[:] = sorted(name for name in folders if name not in NOT_SCRIPTS)
        for name in sorted(files):
            full = os.path.join(folder, name)
            path = os.path.relpath(full, skill).replace(os.sep, "/")
            if os.path.islink(full) or not os.path.isfile(full) or len(found) >= MAX_SCRIPTS:
                continue
            with open(full, "rb") as file:
                data = file.read(MAX_READ)
            if name == "__init__.py" and not data.strip():
                continue
            if name.lower().endswith(SUFFIXES) or data.startswith(b"#!"):
                found[path] = data.decode("utf-8", "replace")
    return found


def _words(command: str | Sequence[str]) -> list[str]:
    if not isinstance(command, str):
        return [word for argument in command for word in (argument, *_split(argument))]
    return _split(command)


def _split(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return [word for token in lexer for word in (token, *token.split()) if word]
    except ValueError:  # an open quote; the shell will say so
        return line.split()


def _names(word: str, path: str) -> bool:
    """`scripts/a.py`, `$SKILL_DIR/scripts/a.py`, `a.py` after a `cd`, `scripts.a` after `-m`."""
    word = word.removeprefix("./")
    if word == path or word.endswith(f"/{path}") or path.endswith(f"/{word}"):
        return True
    stem, dot, suffix = path.rpartition(".")
    return bool(dot) and suffix == "py" and word == stem.replace("/", ".")


def _imported(text: str) -> set[str]:
    return {
        part
        for match in _IMPORT.finditer(text)
        for name in (match[1] or match[2]).split(",")
        for part in name.strip().split(" ")[0].split(".")
    }


def _mentioned(path: str, text: str, imported: set[str]) -> bool:
    name = path.rpartition("/")[2]
    stem, _, suffix = name.rpartition(".")
    if suffix == "py" and (stem in imported or (stem == "__init__" and path.split("/")[-2:-1] != []
                                                 and path.split("/")[-2] in imported)):  # fmt: skip
        return True
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None
