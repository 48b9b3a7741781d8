"""A skill's folder as the rules see it: what is in it, without following a link, and the bytes of its files.

Reads and lists; changes nothing. Everything here is untrusted: sizes are bounded, nothing is opened that is
not a regular file.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from executor.errors import BadPathError, SkillNotFoundError
from executor.skills.document import MAX_BYTES
from executor.skills.repository import MAX_DEPTH, MAX_FOLDERS, SKIPPED_FOLDERS
from executor.skills.sources.roots import missing, nothing_at

MAX_ENTRIES = 20_000  # of one skill, as when it is staged
MAX_READ = 2 << 20  # bytes of a script that are looked at; the largest public one has 300 KB
SCRIPT_SUFFIXES = (".py", ".sh", ".bash", ".js", ".mjs", ".cjs", ".ts", ".mts")

_LINES = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Entry:
    """One thing in a skill's folder."""

    path: str
    """Relative to the folder, `/`-separated; bytes that are not UTF-8 are surrogates."""
    full: str
    kind: Literal["file", "folder", "link", "special"]
    size: int = 0
    mode: int = 0

    @property
    def suffix(self) -> str:
        """`.py`, in small letters; '' without one."""
        return os.path.splitext(self.path)[1].lower()


@dataclass
class SkillFolder:
    """One skill on the disk."""

    path: str
    """As the root was written, with the folders below it."""
    entries: list[Entry] = field(default_factory=list)
    """All but what a nested skill holds, sorted by path."""
    skill_files: list[str] = field(default_factory=list)
    """The spellings of SKILL.md that are there."""
    nested: list[str] = field(default_factory=list)
    """Folders below this one that are skills too."""
    cut: bool = False
    """Whether there is more than was listed."""

    @property
    def title(self) -> str:
        """Name of the folder, or of the link to it."""
        return os.path.basename(os.path.abspath(self.path))

    @property
    def skill_file(self) -> str:
        """The SKILL.md that counts."""
        return "SKILL.md" if "SKILL.md" in self.skill_files else self.skill_files[0]

    @cached_property
    def real(self) -> str:
        """The folder with links resolved."""
        return os.path.realpath(self.path)

    @cached_property
    def by_path(self) -> dict[str, Entry]:
        """The entries by their path."""
        return {entry.path: entry for entry in self.entries}

    @cached_property
    def skill_bytes(self) -> bytes | None:
        """The SKILL.md; None when it cannot be read. One that is a link is read only inside the skill."""
        target = os.path.realpath(os.path.join(self.path, self.skill_file))
        if not (target + os.sep).startswith(self.real + os.sep):
            return None
        return read_regular(target, MAX_BYTES + 1)

    def scripts(self) -> Iterator[tuple[Entry, bytes]]:
        """Every file that is a script by its name or its shebang, with its bytes."""
        for entry in self.entries:
            if entry.kind != "file":
                continue
            named = entry.suffix in SCRIPT_SUFFIXES
            data = read_regular(entry.full, MAX_READ if named else 5)
            if data is None:
                continue
            if not named:
                if not data.removeprefix(b"\xef\xbb\xbf").startswith(b"#!"):
                    continue
                data = read_regular(entry.full, MAX_READ) or b""
            yield entry, data


def lines_of(text: str) -> list[str]:
    """Lines as an editor counts them."""
    return _LINES.split(text)


def read_regular(path: str, most: int) -> bytes | None:
    """At most `most` bytes of a regular file; None for anything else."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except (OSError, ValueError):
        return None


def find(roots: Sequence[str]) -> list[SkillFolder]:
    """Every skill in or below the roots, sorted by path; a folder that two roots hold comes once.

    As the repository finds them: links to folders are followed only directly in a root. BadPathError for a
    root that does not exist, SkillNotFoundError when there is no skill at all.
    """
    found: dict[str, SkillFolder] = {}
    entered: set[tuple[int, int]] = set()
    for root in roots:
        if missing([root]):
            raise nothing_at([root])
        if not os.path.isdir(root):
            raise BadPathError(
                f"{root!r} is not a folder", hint="Give a folder with skills, or a skill's name."
            )
        queue = deque([(root, 0)])
        while queue and len(entered) < MAX_FOLDERS:
            folder, depth = queue.popleft()
            try:
                info = os.stat(folder)
                with os.scandir(folder) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError:
                continue
            if (info.st_dev, info.st_ino) in entered:
                continue
            entered.add((info.st_dev, info.st_ino))
            if names := _skill_files(entries):
                found.setdefault(os.path.realpath(folder), SkillFolder(folder, skill_files=names))
            for entry in entries:
                if entry.name in SKIPPED_FOLDERS or depth == MAX_DEPTH:
                    continue
                followed = depth == 0 and entry.is_symlink() and os.path.isdir(entry.path)
                if followed or entry.is_dir(follow_symlinks=False):
                    queue.append((os.path.join(folder, entry.name), depth + 1))
    if not found:
        raise SkillNotFoundError(
            f"there is no skill in {', '.join(map(repr, roots))}",
            hint="A skill is a folder with a SKILL.md.",
        )
    for skill in found.values():
        _list(skill, found.keys())
    return sorted(found.values(), key=lambda skill: skill.path)


def _skill_files(entries: Sequence[os.DirEntry[str]]) -> list[str]:
    return [
        entry.name for entry in entries if entry.name.lower() == "skill.md" and not os.path.isdir(entry.path)
    ]


def _list(skill: SkillFolder, skills: Container[str]) -> None:
    queue = deque([("", skill.real)])
    while queue:
        prefix, folder = queue.popleft()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if len(skill.entries) >= MAX_ENTRIES:
                skill.cut = True
                break
            path = prefix + entry.name
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if entry.is_symlink():
                skill.entries.append(Entry(path, entry.path, "link"))
            elif stat.S_ISDIR(info.st_mode):
                if entry.name in SKIPPED_FOLDERS:
                    continue
                if entry.path in skills:
                    skill.nested.append(path)
                    continue
                skill.entries.append(Entry(path, entry.path, "folder"))
                queue.append((path + "/", entry.path))
            else:
                kind: Literal["file", "special"] = "file" if stat.S_ISREG(info.st_mode) else "special"
                skill.entries.append(Entry(path, entry.path, kind, info.st_size, stat.S_IMODE(info.st_mode)))
    skill.entries.sort(key=lambda entry: entry.path)
