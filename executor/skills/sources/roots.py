"""From the text of a root to its source.

./skills  /srv/skills  ~/skills           a folder
skills.zip  skills.tgz  skills.json       a file of this host: an archive, or a bundle
file:/srv/skills.tar.gz                   the same, as an address
https://host/skills.zip#sha256=…          the same, fetched; pinned if a checksum is given
git+https://host/repo.git@REV#FOLDER      a commit; also git+ssh, git+http and git+file
s3://bucket/prefix?endpoint_url=…         an S3-compatible bucket
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from executor.errors import BadPathError, ExecutorError, SkillSourceError
from executor.models import SourceLimits
from executor.skills.sources.base import Listing, SkillSource
from executor.skills.sources.directory import DirectorySource
from executor.skills.sources.members import LIMITS

_SCHEME = re.compile(r"([a-z][a-z0-9]*(?:\+[a-z]+)?):(?=//)|(file):(?=/)", re.IGNORECASE)


class UnusableSource(SkillSource):
    """A root that cannot be a source, so that the others still are."""

    def __init__(self, root: str, error: ExecutorError) -> None:
        self.id = root
        self._error = error

    def list(self) -> Listing:
        """Raises."""
        raise self._error

    def refresh(self) -> None:
        """Raises."""
        raise self._error


def open_sources(
    roots: Sequence[str | os.PathLike[str] | SkillSource], limits: SourceLimits = LIMITS
) -> tuple[SkillSource, ...]:
    """The sources in order, each once; nothing is fetched yet. Empty texts name no source."""
    folders = tuple(
        Path(_real(os.fspath(root)))
        for root in roots
        if not isinstance(root, SkillSource) and os.fspath(root) and not scheme(os.fspath(root))
    )
    found: dict[str, SkillSource] = {}
    for root in roots:
        if isinstance(root, SkillSource):
            found[f"{id(root)}"] = root
        elif text := os.fspath(root):
            key = text if scheme(text) else _real(text)
            if key not in found:
                found[key] = open_source(text, trusted=folders, limits=limits)
    return tuple(found.values())


def open_source(root: str, *, trusted: Sequence[Path] = (), limits: SourceLimits = LIMITS) -> SkillSource:
    """The source that a root names. One that cannot be says so when it is listed."""
    try:
        return _open(root, trusted, limits)
    except ExecutorError as error:
        return UnusableSource(shown(root), error)
    except ValueError as error:  # half an IPv6 address, a zero byte in a path
        return UnusableSource(shown(root), SkillSourceError(f"{shown(root)} cannot be one: {error}"))


def shown(root: str) -> str:
    """The text of a root without a name and a password."""
    return re.sub(r"(?<=://)[^/@]*@", "", root)


def missing(roots: Sequence[str]) -> list[str]:
    """The roots that are paths at which there is nothing."""
    return [root for root in roots if root and not scheme(root) and not os.path.lexists(_real(root))]


def nothing_at(roots: Sequence[str]) -> BadPathError:
    """What is said of missing roots, wherever they are met."""
    names = ", ".join(repr(_real(root)) for root in roots)
    return BadPathError(
        f"there is nothing at {names}, where skills are to come from",
        hint="Skills come from --skills (skills= in Python), else $SKILLS_ROOT, else ./skills: name a folder "
        "or an archive that there is (docs/sources.md).",
    )


def _real(path: str) -> str:
    try:
        return os.path.realpath(os.path.expanduser(path))
    except ValueError:
        return path


def scheme(root: str) -> str:
    """The scheme of an address in small letters; '' for a path."""
    found = _SCHEME.match(root)
    return (found[1] or found[2]).lower() if found else ""


def _open(root: str, trusted: Sequence[Path], limits: SourceLimits) -> SkillSource:
    kind = scheme(root)
    if not kind:
        path = Path(os.path.realpath(os.path.expanduser(root)))
        if path.name.lower() == "skill.md":
            path = path.parent
        if not path.is_file():
            return DirectorySource(path, trusted=trusted)
        from executor.skills.sources.archive import FileArchive, archive_source

        return archive_source(FileArchive(path, caps=limits))
    if kind in ("http", "https", "file"):
        from executor.skills.sources.archive import archive_at

        return archive_at(root, caps=limits)
    if kind.startswith("git+"):
        from executor.skills.sources.git import git_source

        return git_source(root, caps=limits)
    if kind == "s3":
        from executor.skills.sources.bucket import BucketSource

        return BucketSource.at(root, caps=limits)
    raise SkillSourceError(
        f"{kind}: is no kind of source",
        hint="Give a folder, an archive (https:, http:, file: or its path), git+https:, git+ssh:, or s3:.",
    )
