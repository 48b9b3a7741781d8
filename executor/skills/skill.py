"""What every part of the program means by a skill, and by a skill that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from executor.skills.document import SkillDocument

SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", ".tox", ".venv", "__pycache__", "node_modules"})


@dataclass(frozen=True)
class Skill:
    """A skill that can be used."""

    slug: str
    """The folder's name as one safe path component; the skill is staged as `/skills/<slug>`."""
    place: Path
    """Where its folder is on this host, or will be once its files were fetched: absolute, links resolved."""
    document: SkillDocument
    origin: str = ""
    """Where it comes from, for people: a folder, or `folder in source`. Holds no password."""
    fetch: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    """Brings the files to `place` if they are not there. None when they always are."""

    @property
    def path(self) -> Path:
        """The folder, with all its files on this host. This may fetch them: SkillSourceError."""
        if self.fetch is not None:
            self.fetch()
        return self.place

    @property
    def name(self) -> str:
        """What its author calls it. For people: two skills of one root may share it."""
        return self.document.name


@dataclass(frozen=True)
class Problem:
    """A skill that cannot be used, is hidden by another or shares its name, a folder not searched, or a
    source that could not be reached.
    """

    path: Path
    reason: str
    slug: str = field(default="", compare=False)
    """Of a skill that is there and cannot be used, else ''."""
    origin: str = field(default="", compare=False)
    """As `Skill.origin`; '' means the path."""
    hidden: bool = field(default=False, compare=False)
    """Nothing is wrong: the skill is hidden by one that comes first."""

    @property
    def where(self) -> str:
        """The place, for people."""
        return self.origin or str(self.path)
