"""The contract of a source of skills, on one page.

A source offers skills from one place. It is used from any thread; all of its methods may block, none of them
runs inside a sandbox. `tests/sources/test_contract.py` holds for every kind: whoever writes another runs it.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass

from executor.errors import SkillUnreadableError
from executor.skills import contents
from executor.skills.skill import Problem, Skill

INTERVAL = 60.0  # seconds between two looks at a source that is far away


@dataclass(frozen=True)
class Listing:
    """What a source offers now."""

    skills: tuple[Skill, ...] = ()
    """Usable ones in order of precedence; of two with one slug the first counts."""
    problems: tuple[Problem, ...] = ()
    """What cannot be used, and what is not as it seems."""

    def first(self) -> dict[str, Skill]:
        """slug → the skill that counts."""
        found: dict[str, Skill] = {}
        for skill in self.skills:
            found.setdefault(skill.slug, skill)
        return found


class SkillSource(ABC):
    """One place with skills."""

    id: str
    """What people call it, as the root was written; no password in it."""
    interval: float | None = None
    """Seconds after which `due` asks for another look. None: a look costs nothing and is taken at once."""

    @abstractmethod
    def list(self) -> Listing:
        """What is offered. Edits of files of this host show at once, all else after `refresh`.

        The first call fetches what is needed to know. SkillSourceError when the source cannot be used.
        """

    @abstractmethod
    def refresh(self) -> None:
        """Look again. SkillSourceError when the source cannot be used; then it offers nothing.

        A source that cannot be reached goes on with its last good copy where there is one, and says so.
        """

    def due(self) -> bool:
        """Whether the last look is older than `interval`."""
        return True

    def load(self, slug: str) -> Skill | None:
        """A skill with all its files on this host; None if it is not offered. SkillSourceError."""
        skill = self.list().first().get(slug)
        if skill is not None:
            _ = skill.path  # fetches
        return skill

    def read_resource(self, slug: str, path: str) -> bytes | None:
        """One file of a skill, SKILL.md included; None if there is no such skill or file.

        BadPathError for a path that is not plain and relative, or leads out of the skill.
        """
        contents.check_path(path)
        skill = self.load(slug)
        if skill is None or not os.path.lexists(skill.place / path):
            return None
        return contents.read_resource(skill, path)

    def fingerprint(self) -> str:
        """SHA-256 of all that is offered, as hexadecimal digits.

        It covers slugs, names and bytes of all files and nothing else: not the kind of source, not the place,
        no times. Sources that would have to fetch for it say in their own words what it covers.
        """
        whole = hashlib.sha256()
        for slug, skill in sorted(self.list().first().items()):
            try:
                digest = contents.contents(skill).digest
            except SkillUnreadableError:
                digest = "unreadable"
            whole.update(f"{slug} {digest}\n".encode())
        return whole.hexdigest()
