"""Finds skills in folders of the host and says which could not be used, and why.

Rules of this module:
1. It lists folders and reads SKILL.md files. It writes nothing, stages nothing and runs nothing.
2. A skill is any folder with a SKILL.md, at any depth, also inside another skill. Of variants of the file's
   name (`skill.md`, `Skill.md`) the exact `SKILL.md` counts.
3. Roots are ordered. A skill of an earlier root hides those of later roots with the same slug or the same
   name. Within a root only the slug is unique; the skill nearer to the root keeps it.
4. A bad skill is a `Problem` in a list, never an exception that hides the good ones.
5. Links: a folder link directly in a root is followed wherever it leads, for who laid out the root put it
   there. One deeper down came with a skill and is not followed: what it can rightly point at, inside the
   roots, is found in its own place. A SKILL.md that is a link counts if it ends inside a root or its own
   folder, so that no skill shows a file of the host as its text.
6. No folder is entered twice (device and inode), and depth and number are bounded, so cycles end.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from executor.errors import SkillNotFoundError, SkillUnreadableError
from executor.skills.document import MAX_BYTES, SkillDocument, parse, slug

MAX_DEPTH = 12  # levels below a root; the deepest public skill lies 7 down
MAX_FOLDERS = 100_000  # in all roots; the largest public collection has 19,000 skills

SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", ".tox", ".venv", "__pycache__", "node_modules"})


@dataclass(frozen=True)
class Skill:
    """A skill that can be used."""

    slug: str
    """The folder's name as one safe path component; the skill is staged as `/skills/<slug>`."""
    path: Path
    """The folder: absolute, links resolved."""
    document: SkillDocument

    @property
    def name(self) -> str:
        """What its author calls it. For people: two skills of one root may share it."""
        return self.document.name


@dataclass(frozen=True)
class Problem:
    """A skill that cannot be used, is hidden by another or shares its name, or a folder not searched."""

    path: Path
    reason: str


class Repository:
    """The skills below an ordered list of roots.

    A root that does not exist is empty. SKILL.md files that were edited or deleted are noticed at every
    call; new folders at `refresh()`, or when an unknown name is asked for.
    """

    def __init__(self, roots: Sequence[str | Path]) -> None:
        paths = (Path(os.path.realpath(os.path.expanduser(root))) for root in roots if str(root))
        self.roots: tuple[Path, ...] = tuple(dict.fromkeys(paths))
        self._scan: _Scan | None = None
        self._cache: dict[_Place, tuple[_Stamp, SkillDocument | Problem]] = {}

    def refresh(self) -> None:
        """Looks for new and moved folders. Their texts are read when they are asked for."""
        self._scan = _scan(self.roots)
        known = set(self._scan.places)
        self._cache = {place: entry for place, entry in self._cache.items() if place in known}

    def skills(self) -> list[Skill]:
        """Every usable skill, sorted by slug."""
        return sorted(self._catalogue().by_slug.values(), key=lambda skill: skill.slug)

    def problems(self) -> list[Problem]:
        """What is not usable or not as it seems, sorted by path; the same files give the same list."""
        return sorted(self._catalogue().problems, key=lambda problem: (problem.path, problem.reason))

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
        """A skill of the roots: by slug, by its author's name, by the folder's name, then in any case.

        Of several with one name it is that of the earliest root, nearest to it. An unknown name costs one
        `refresh()`. Raises as `find` does.
        """
        scanned_now = self._scan is None
        catalogue = self._catalogue()
        skill = catalogue.look_up(name)
        if skill is None and not scanned_now:
            self.refresh()
            catalogue = self._catalogue()
            skill = catalogue.look_up(name)
        if skill is None:
            raise self._not_found(name, catalogue)
        return skill

    def _catalogue(self) -> _Catalogue:
        if self._scan is None:
            self.refresh()
        assert self._scan is not None
        catalogue = _Catalogue(problems=list(self._scan.problems))
        for place in self._scan.places:
            read = self._read(place)
            if isinstance(read, SkillDocument):
                catalogue.add(Skill(slug=read.slug, path=place.folder, document=read), place.root)
            elif read is not None:
                catalogue.add_broken(read, slug(place.title))
        return catalogue

    def _read(self, place: _Place) -> SkillDocument | Problem | None:
        """The document, from the cache if its file is untouched; None if the file is gone."""
        try:
            stamp = _stamp(place.file)
            cached = self._cache.get(place)
            if cached and cached[0] == stamp:
                return cached[1]
            read = _parse(place, self.roots)
        except FileNotFoundError:
            gone = not os.path.islink(place.file)
            return None if gone else Problem(place.folder, f"its {place.file.name} is a link to nothing")
        except OSError as error:
            return Problem(place.folder, f"its {place.file.name} cannot be read: {error.strerror}")
        self._cache[place] = (stamp, read)
        return read

    def _at(self, text: str) -> Skill | None:
        """The skill whose folder or SKILL.md the path is; None if there is none."""
        path = os.path.expanduser(text)
        try:
            if os.path.basename(path).lower() == "skill.md" and not os.path.isdir(path):
                path = os.path.dirname(path) or "."
            folder = Path(os.path.realpath(path))
            with os.scandir(folder) as entries:
                file = _skill_file(list(entries))
        except (OSError, ValueError):  # nothing there, no folder, or no path at all ("a/\0")
            return None
        if file is None:
            return None
        link = path.rstrip(os.sep)
        place = _Place(
            0, os.path.basename(link) if os.path.islink(link) else folder.name, folder, folder / file
        )
        read = self._read(place)
        if isinstance(read, Problem):
            raise SkillUnreadableError(
                f"the skill at {folder} cannot be used: {read.reason}",
                hint="mend the file, or give another folder",
            )
        return None if read is None else Skill(slug=read.slug, path=folder, document=read)

    def _not_found(self, name: str, catalogue: _Catalogue) -> SkillNotFoundError | SkillUnreadableError:
        shown = repr(name if len(name) <= 100 else name[:97] + "...")
        if problem := catalogue.broken.get(slug(name)):
            return SkillUnreadableError(
                f"the skill {shown} at {problem.path} cannot be used: {problem.reason}",
                hint="mend its SKILL.md; `executor skills list` names every skill that cannot be used",
            )
        if not self.roots:
            hint = "no skill roots are set: give a folder of skills, or the path of one skill"
        elif problem := catalogue.hidden.get(slug(name)):
            hint = f"{problem.path} is not used: {problem.reason}"
        else:
            names = {word: None for skill in catalogue.by_slug.values() for word in (skill.slug, skill.name)}
            close = difflib.get_close_matches(name[:100], names, n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "see `executor skills list`"
        searched = ", ".join(map(str, self.roots)) or "any root"
        return SkillNotFoundError(f"there is no skill {shown} in {searched}", hint=hint)


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

    def add(self, skill: Skill, root: int) -> None:
        same_name, its_root = self.by_name.get(skill.name, (None, root))
        other = self.by_slug.get(skill.slug) or (same_name if its_root != root else None)
        if other:
            if other.path != skill.path:  # the same folder, reached by a link or by another root, is no news
                what = f"folder name {skill.slug!r}" if other.slug == skill.slug else f"name {skill.name!r}"
                problem = Problem(
                    skill.path, f"hidden by {other.path}, which comes first and has the same {what}"
                )
                self.problems.append(problem)
                self.hidden.setdefault(skill.slug, problem)
            return
        if same_name and same_name.path != skill.path:
            reason = (
                f"has the same name as {same_name.path} ({skill.name!r}); ask for {skill.slug!r} to get it"
            )
            self.problems.append(Problem(skill.path, reason))
        self.by_slug[skill.slug] = skill
        self.by_name.setdefault(skill.name, (skill, root))

    def add_broken(self, problem: Problem, its_slug: str) -> None:
        self.problems.append(problem)
        self.broken.setdefault(its_slug, problem)

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


# --- the disk -----------------------------------------------------------------------------------------------

_Stamp = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class _Place:
    """A SKILL.md as the scan saw it."""

    root: int
    title: str  # the folder's name, or that of the link to it
    folder: Path  # links resolved
    file: Path


@dataclass
class _Scan:
    places: list[_Place] = field(default_factory=list)  # in order of precedence
    problems: list[Problem] = field(default_factory=list)


def _scan(roots: Sequence[Path]) -> _Scan:
    """Breadth first, so that what is nearer to a root comes first."""
    scan = _Scan()
    entered: set[tuple[int, int]] = set()
    for number, root in enumerate(roots):
        queue = deque([(root, root.name, 0)])
        too_deep = False
        while queue:
            folder, title, depth = queue.popleft()
            try:
                status = os.stat(folder)
                with os.scandir(folder) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except FileNotFoundError:
                if depth:
                    scan.problems.append(Problem(folder, "is a link to nothing"))
                continue
            except OSError as error:
                scan.problems.append(Problem(folder, f"cannot be listed: {error.strerror}"))
                continue
            if file := _skill_file(entries):
                real = Path(os.path.realpath(folder))
                scan.places.append(_Place(number, title, real, real / file))
            if (status.st_dev, status.st_ino) in entered:
                continue
            if len(entered) >= MAX_FOLDERS:
                scan.problems.append(
                    Problem(root, f"was searched in part: more than {MAX_FOLDERS:,} folders")
                )
                return scan
            entered.add((status.st_dev, status.st_ino))
            links = []
            for entry in entries:
                if entry.name in SKIPPED_FOLDERS:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if depth < MAX_DEPTH:
                        queue.append((folder / entry.name, entry.name, depth + 1))
                    elif not too_deep:
                        too_deep = True
                        reason = f"was not searched: more than {MAX_DEPTH} levels below the root {root}"
                        scan.problems.append(Problem(folder / entry.name, reason))
                elif depth == 0 and entry.is_symlink() and _leads_to_folder(entry):
                    links.append((folder / entry.name, entry.name, 1))
            queue.extend(links)  # behind the real folders, so that these are entered under their own names
    return scan


def _leads_to_folder(link: os.DirEntry[str]) -> bool:
    """Or nowhere, which is worth telling. (`DirEntry.is_dir` raises for a link to itself.)"""
    return os.path.isdir(link.path) or not os.path.exists(link.path)


def _skill_file(entries: Sequence[os.DirEntry[str]]) -> str | None:
    """The name of the SKILL.md among a folder's entries."""
    names = sorted(
        entry.name for entry in entries if entry.name.lower() == "skill.md" and not os.path.isdir(entry.path)
    )
    return "SKILL.md" if "SKILL.md" in names else names[0] if names else None


def _stamp(file: Path) -> _Stamp:
    status = os.stat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _parse(place: _Place, roots: Sequence[Path]) -> SkillDocument | Problem:
    real = Path(os.path.realpath(place.file))
    if real != place.file and not any(real.is_relative_to(top) for top in (place.folder, *roots)):
        return Problem(
            place.folder, f"its {place.file.name} links to {real}, outside the skill and the roots"
        )
    # Not blocking and not following: since the look the name may have become a pipe or a link.
    handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return Problem(place.folder, f"its {place.file.name} is not a regular file")
        data = stream.read(MAX_BYTES + 1)
    try:
        return parse(data, folder=place.title)
    except SkillUnreadableError as error:
        return Problem(place.folder, error.message)
