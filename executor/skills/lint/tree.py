"""Rules about the folder: links, names, sizes, permissions, and how skills lie to one another."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence

from executor.errors import SkillUnreadableError
from executor.skills.document import SkillDocument, parse
from executor.skills.lint.folder import MAX_ENTRIES, Entry, SkillFolder
from executor.skills.lint.rules import RULES, Finding, Fix
from executor.workspace.layout import SKILL_LINKS

MAX_BYTES = 16 << 20  # the largest public skill has 9.7 MB
MAX_FILES = 1000  # the one with the most has 313

_Make = Callable[..., Finding]

# What ends a line, moves a cursor, reorders text or begins an option.
_BAD_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udcff\\]|\A-|[ .]\Z")


def check(skill: SkillFolder) -> Iterator[Finding]:
    """Everything about the folder of one skill."""

    def finding(rule: str, path: str, message: str, fix: Fix | None = None) -> Finding:
        return Finding(RULES[rule], skill.path, path, 1, message, fix)

    names = skill.skill_files
    if len(names) > 1:
        yield finding("skill-file-twice", skill.skill_file, f"there are {' and '.join(names)}")
    elif names[0] != "SKILL.md":
        yield finding("skill-file-name", names[0], f"it is called {names[0]}", Fix(rename="SKILL.md"))
    for name in names:
        yield from _skill_link(skill, name, finding)
    entry = skill.by_path.get(skill.skill_file)
    if os.name == "posix" and entry is not None and entry.kind == "file" and entry.mode & 0o111:
        fix = Fix(mode=lambda mode: mode & ~0o111)
        yield finding("skill-executable", entry.path, f"its mode is {entry.mode:o}", fix)

    for path in skill.nested:
        yield finding("skill-nested", f"{path}/SKILL.md", f"{path!r} is a skill inside {skill.title!r}")
    size = sum(entry.size for entry in skill.entries)
    files = sum(entry.kind == "file" for entry in skill.entries)
    if skill.cut or size > MAX_BYTES or files > MAX_FILES:
        more = f"more than {MAX_ENTRIES:,} entries" if skill.cut else f"{size:,} bytes in {files:,} files"
        yield finding("skill-size", skill.skill_file, more)
    for entry in skill.entries:
        yield from _entry(skill, entry, finding)


def _skill_link(skill: SkillFolder, name: str, finding: _Make) -> Iterator[Finding]:
    full = os.path.join(skill.path, name)
    if not os.path.islink(full):
        return
    target = os.path.realpath(full)
    if not os.path.exists(target):
        yield finding("skill-link", name, f"it points to {os.readlink(full)!r}, where there is nothing")
    elif not (target + os.sep).startswith(skill.real + os.sep):
        yield finding("skill-link", name, f"it points to {os.readlink(full)!r}, outside the skill")


def _entry(skill: SkillFolder, entry: Entry, finding: _Make) -> Iterator[Finding]:
    name = entry.path.rpartition("/")[2]
    if _BAD_NAME.search(name):
        yield finding("file-name", entry.path, f"the name is {name!r}")
    if entry.kind == "special":
        yield finding("file-special", entry.path, f"{entry.path!r} is a pipe, a socket or a device")
    elif entry.kind == "link" and entry.path not in skill.skill_files:
        target = os.path.realpath(entry.full)
        if not os.path.exists(target):
            message = f"it points to {os.readlink(entry.full)!r}, where there is nothing"
            yield finding("link-dangling", entry.path, message)
        elif not (target + os.sep).startswith(skill.real + os.sep):
            yield finding("link-outside", entry.path, f"it points to {os.readlink(entry.full)!r}")
    if "/" not in entry.path and entry.path in SKILL_LINKS:
        yield finding("own-folder", entry.path, f"the skill has its own {entry.path!r}")


def same_names(skills: Sequence[SkillFolder]) -> Iterator[Finding]:
    """Skills whose front matter has one name, each but the first."""
    first: dict[str, SkillFolder] = {}
    for skill in skills:
        document = _document(skill)
        if document is None:
            continue
        other = first.setdefault(document.name, skill)
        if other is not skill:
            message = f"{document.name!r} is the name of {other.path} too"
            yield Finding(RULES["name-duplicate"], skill.path, skill.skill_file, 1, message)


def _document(skill: SkillFolder) -> SkillDocument | None:
    data = skill.skill_bytes
    if data is None:
        return None
    try:
        return parse(data, folder=skill.title)
    except SkillUnreadableError:
        return None
