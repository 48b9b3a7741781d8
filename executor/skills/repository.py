"""Which skills an ordered list of sources offers, which one a name means, and what is said of the rest.

Rules of this module:
1. It orders what sources offer. How a source finds its skills is its own affair (`sources/`).
2. Sources are ordered. A skill of an earlier source hides those of later ones with the same slug or the same
   name. Within a source only the slug is unique; the first one that the source lists keeps it.
3. A bad skill is a `Problem` in a list, never an exception that hides the good ones, and so is a bad source.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from executor.errors import ExecutorError, SkillNotFoundError, SkillUnreadableError
from executor.models import SourceLimits
from executor.skills.document import slug
from executor.skills.skill import SKIPPED_FOLDERS, Problem, Skill
from executor.skills.sources import progress
from executor.skills.sources.base import SkillSource
from executor.skills.sources.directory import MAX_DEPTH, MAX_FOLDERS, DirectorySource, Reader, place_at
from executor.skills.sources.members import LIMITS
from executor.skills.sources.roots import missing, nothing_at, open_sources

__all__ = ["MAX_DEPTH", "MAX_FOLDERS", "SKIPPED_FOLDERS", "Problem", "Repository", "Skill"]

MOST_NAMED = 10  # skills in a hint

_T = TypeVar("_T")


class Repository:
    """The skills of an ordered list of roots: folders, addresses (see `sources/roots.py`), or sources.

    A folder that does not exist is empty. SKILL.md files of this host that were edited or deleted are noticed
    at every call; all else at `refresh()`, or when an unknown name is asked for and the last look is old. The
    first call fetches what lies elsewhere. `limits`: what a source that is a text may cost. May be used from
    any thread.
    """

    def __init__(
        self, roots: Sequence[str | os.PathLike[str] | SkillSource], limits: SourceLimits = LIMITS
    ) -> None:
        self.sources: tuple[SkillSource, ...] = open_sources(roots, limits)
        folders = [source.root for source in self.sources if isinstance(source, DirectorySource)]
        self._elsewhere = Reader(folders)
        self._stale: dict[SkillSource, str] = {}

    def prepare(self) -> None:
        """Fetches what has to be fetched to know what there is, so that `skills` and `find` need not."""
        far = [source for source in self.sources if not isinstance(source, DirectorySource)]
        self._each(far, lambda source: source.list())

    def refresh(self) -> None:
        """Looks at every source again. What goes wrong with one is in `problems()`."""
        self._refresh(self.sources)

    def renew(self) -> None:
        """Looks again at the sources far away whose last look is older than their interval."""
        self._refresh([one for one in self.sources if one.interval is not None and one.due()])

    def fingerprint(self) -> str:
        """`id:fingerprint|id:fingerprint` of the sources in their order. Reads all files."""
        found = self._each(self.sources, lambda source: source.fingerprint())
        return "|".join(
            f"{source.id}:{'' if isinstance(one, Exception) else one}"
            for source, one in zip(self.sources, found, strict=True)
        )

    def skills(self) -> list[Skill]:
        """Every usable skill, sorted by slug."""
        return sorted(self._catalogue().by_slug.values(), key=lambda skill: skill.slug)

    def problems(self) -> list[Problem]:
        """What is not usable or not as it seems, sorted by path; the same files give the same list."""
        return sorted(set(self._catalogue().problems), key=lambda problem: (problem.path, problem.reason))

    def find(self, name_or_path: str | Path) -> Skill:
        """A skill by name (see `named`), or by the path of its folder or its SKILL.md.

        A `Path`, `.`, `..` and text with a `/` are paths, and nothing is scanned for them; relative text
        that leads nowhere is still tried as a name ("CI/CD Pipeline"). A bare word is a name first and a
        folder here second, so that a folder which happens to be here does not replace a skill of the roots.
        This reads any folder of the host: give what a model says to `named`.

        Raises SkillNotFoundError, or SkillUnreadableError if the skill is there and cannot be used.
        """
        text = os.fspath(name_or_path)
        is_path = isinstance(name_or_path, Path) or text in (".", "..") or os.sep in text
        if is_path:
            if skill := self._at(text):
                return skill
            if isinstance(name_or_path, Path) or text.startswith((".", "/", "~")):
                raise _nothing_at(text)
        try:
            return self.named(text)
        except SkillNotFoundError:
            if text and not is_path and (skill := self._at(text)):
                return skill
            if is_path and os.path.exists(text):
                raise _nothing_at(text) from None
            raise

    def named(self, name: str) -> Skill:
        """A skill of the sources: by slug, by its author's name, by the folder's name, then in any case.

        Of several with one name it is that of the earliest source, the first in it. For an unknown name all
        sources are looked at again that are here, or are due. Raises as `find` does.
        """
        catalogue = self._catalogue()
        skill = catalogue.look_up(name)
        if skill is None:
            self._refresh([source for source in self.sources if source.due()])
            catalogue = self._catalogue()
            skill = catalogue.look_up(name)
        if skill is None:
            raise self._not_found(name, catalogue)
        return skill

    def _catalogue(self) -> _Catalogue:
        catalogue = _Catalogue()
        listings = self._each(self.sources, lambda source: source.list())
        for number, (source, listing) in enumerate(zip(self.sources, listings, strict=True)):
            if isinstance(listing, Exception):
                catalogue.add_failed(source.id, listing)
                continue
            if reason := self._stale.get(source):
                problem = Problem(
                    Path(source.id), f"could not be looked at again: {reason}", origin=source.id
                )
                catalogue.add_problem(problem)
            for skill in listing.skills:
                catalogue.add(skill, number)
            for problem in listing.problems:
                catalogue.add_problem(problem)
        return catalogue

    def _refresh(self, sources: Sequence[SkillSource]) -> None:
        done = self._each(sources, lambda source: source.refresh())
        for source, failed in zip(sources, done, strict=True):
            if isinstance(failed, Exception):
                self._stale[source] = _reason(failed).removeprefix(source.id).lstrip(": ")
                progress.warn(f"{source.id}: {self._stale[source]}")
            else:
                self._stale.pop(source, None)

    def _each(
        self, sources: Sequence[SkillSource], call: Callable[[SkillSource], _T]
    ) -> list[_T | Exception]:
        """The answers in order; one that fails is in the list and keeps no other from answering."""

        def guarded(source: SkillSource) -> _T | Exception:
            try:
                return call(source)
            except Exception as error:
                return error

        if sum(source.interval is not None for source in sources) < 2:
            return [guarded(source) for source in sources]
        with ThreadPoolExecutor(min(8, len(sources)), "executor-skills") as pool:  # they wait for networks
            return list(pool.map(guarded, sources))

    def _at(self, text: str) -> Skill | None:
        """The skill whose folder or SKILL.md the path is; None if there is none."""
        place = place_at(text)
        read = None if place is None else self._elsewhere.read(place)
        if place is None or read is None:
            return None
        if isinstance(read, Problem):
            raise SkillUnreadableError(
                f"the skill at {place.folder} cannot be used: {read.reason}",
                hint="mend the file, or give another folder",
            )
        return Skill(slug=read.slug, place=place.folder, document=read, origin=str(place.folder))

    def _not_found(self, name: str, catalogue: _Catalogue) -> SkillNotFoundError | SkillUnreadableError:
        shown = repr(name if len(name) <= 100 else name[:97] + "...")
        if problem := catalogue.broken.get(slug(name)):
            return SkillUnreadableError(
                f"the skill {shown} at {problem.where} cannot be used: {problem.reason}",
                hint="mend its SKILL.md; `executor skills list` names every skill that cannot be used",
            )
        lost = missing([source.id for source in self.sources if isinstance(source, DirectorySource)])
        nothing = nothing_at(lost) if lost else None
        if nothing is not None and len(lost) == len(self.sources):
            return SkillNotFoundError(f"there is no skill {shown}: {nothing.message}", hint=nothing.hint)
        if not self.sources:
            hint = "no skill roots are set: give a folder of skills, or the path of one skill"
        elif problem := catalogue.hidden.get(slug(name)):
            hint = f"{problem.where} is not used: {problem.reason}"
        elif catalogue.failed:
            hint = "it may be in a source that cannot be used: " + "; ".join(catalogue.failed)
        else:
            names = {word: None for skill in catalogue.by_slug.values() for word in (skill.slug, skill.name)}
            close = difflib.get_close_matches(name[:100], names, n=3)
            if close:
                hint = f"did you mean {' or '.join(map(repr, close))}?"
            elif nothing is not None:
                hint = f"{nothing.message}. {nothing.hint}"
            else:
                hint = _there_are(sorted(catalogue.by_slug))
        searched = ", ".join(source.id for source in self.sources) or "any root"
        return SkillNotFoundError(f"there is no skill {shown} in {searched}", hint=hint)


def _there_are(slugs: Sequence[str]) -> str:
    if not slugs:
        return "there is no skill at all: a skill is a folder with a SKILL.md"
    more = f" and {len(slugs) - MOST_NAMED:,} more" if len(slugs) > MOST_NAMED else ""
    return f"there are: {', '.join(slugs[:MOST_NAMED])}{more}"


def _nothing_at(text: str) -> SkillNotFoundError:
    path = os.path.expanduser(text)
    there = os.path.isdir(path)
    return SkillNotFoundError(
        f"there is no skill at {text!r}: " + ("the folder has no SKILL.md" if there else "no such folder"),
        hint="give the folder that holds the SKILL.md, or a skill's name",
    )


# --- which skills there are, by the rules of precedence -----------------------------------------------------


@dataclass
class _Catalogue:
    """Filled in order of precedence."""

    by_slug: dict[str, Skill] = field(default_factory=dict)
    by_name: dict[str, tuple[Skill, int]] = field(default_factory=dict)  # the first with the name, its root
    problems: list[Problem] = field(default_factory=list)
    broken: dict[str, Problem] = field(default_factory=dict)  # by slug
    hidden: dict[str, Problem] = field(default_factory=dict)  # by slug
    failed: list[str] = field(default_factory=list)

    def add(self, skill: Skill, root: int) -> None:
        same_name, its_root = self.by_name.get(skill.name, (None, root))
        other = self.by_slug.get(skill.slug) or (same_name if its_root != root else None)
        if other:
            if other.place != skill.place:  # the same folder, reached by a link or another root, is no news
                what = f"folder name {skill.slug!r}" if other.slug == skill.slug else f"name {skill.name!r}"
                reason = f"hidden by {other.origin}, which comes first and has the same {what}"
                problem = _about(skill, reason, hidden=True)
                self.problems.append(problem)
                self.hidden.setdefault(skill.slug, problem)
            return
        if same_name and same_name.place != skill.place:
            reason = (
                f"has the same name as {same_name.origin} ({skill.name!r}); ask for {skill.slug!r} to get it"
            )
            self.problems.append(_about(skill, reason))
        self.by_slug[skill.slug] = skill
        self.by_name.setdefault(skill.name, (skill, root))

    def add_problem(self, problem: Problem) -> None:
        self.problems.append(problem)
        if problem.slug:
            self.broken.setdefault(problem.slug, problem)

    def add_failed(self, source: str, error: Exception) -> None:
        reason = _reason(error).removeprefix(source).lstrip(": ")
        hint = f" ({error.hint})" if isinstance(error, ExecutorError) and error.hint else ""
        self.problems.append(Problem(Path(source), f"this source was skipped: {reason}{hint}", origin=source))
        self.failed.append(f"{source}: {reason}")
        progress.warn(f"{source}: {reason}")

    def look_up(self, name: str) -> Skill | None:
        if skill := self.by_slug.get(name):
            return skill
        if name in self.by_name:
            return self.by_name[name][0]
        if name and (skill := self.by_slug.get(slug(name))):  # the folder's name as it is on the disk
            return skill
        folded = name.casefold()
        skills = self.by_slug.values()
        return next(
            (skill for skill in skills if skill.slug.casefold() == folded),
            next((skill for skill in skills if skill.name.casefold() == folded), None),
        )


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, ExecutorError) else f"{type(error).__name__}: {error}"


def _about(skill: Skill, reason: str, *, hidden: bool = False) -> Problem:
    return Problem(skill.place, reason, hidden=hidden, origin=skill.origin)
