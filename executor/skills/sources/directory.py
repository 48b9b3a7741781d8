"""A folder of this host as a source of skills.

Rules of this module:
1. It lists folders and reads SKILL.md files. It changes nothing in them.
2. A skill is any folder with a SKILL.md, at any depth, also inside another skill. Of variants of the file's
   name (`skill.md`, `Skill.md`) the exact `SKILL.md` counts.
3. Links: a folder link directly in a root is followed wherever it leads, for who laid out the root put it
   there. One deeper down came with a skill and is not followed: what it can rightly point at, inside the
   roots, is found in its own place. A SKILL.md that is a link counts if it ends inside a root or its own
   folder, so that no skill shows a file of the host as its text.
4. No folder is entered twice (device and inode), and depth and number are bounded, so cycles end.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from executor.errors import SkillUnreadableError
from executor.skills.document import MAX_BYTES, SkillDocument, parse, slug
from executor.skills.skill import SKIPPED_FOLDERS, Problem, Skill
from executor.skills.sources.base import Listing, SkillSource

if TYPE_CHECKING:
    from executor.skills.sources.parsed import Parsed, Stamp

MAX_DEPTH = 12  # levels below a root; the deepest public skill lies 7 down
MAX_FOLDERS = 100_000  # in one root; the largest public collection has 19,000 skills
WORTH = 100  # skills in a root; fewer are read in less time than the store of those read before takes to open


class DirectorySource(SkillSource):
    """The skills below a folder. One that does not exist is empty.

    `trusted`: folders, besides the root, that a SKILL.md may link into. `name`: what people call a folder of
    it; default its path.
    """

    def __init__(
        self, root: Path, *, trusted: Sequence[Path] = (), name: Callable[[Path], str] | None = None
    ) -> None:
        self.root = root
        self.id = str(root)
        self._reader = Reader((root, *trusted))
        self._name = name
        self._scan: _Scan | None = None

    def refresh(self) -> None:
        """Looks for new and moved folders. Their texts are read when they are asked for."""
        scan = _scan(self.root)
        self._reader.keep(scan.places)
        self._scan = scan

    def list(self) -> Listing:
        """Reads what was edited; folders that are new or gone since `refresh` are not noticed."""
        if self._scan is None:
            self.refresh()
        scan = self._scan
        assert scan is not None
        skills: list[Skill] = []
        problems = [self._named(problem) for problem in scan.problems]
        for place, read in self._reader.read_all(scan.places):
            if isinstance(read, SkillDocument):
                skills.append(Skill(read.slug, place.folder, read, self._called(place.folder)))
            elif read is not None:
                problems.append(self._named(read))
        return Listing(tuple(skills), tuple(problems))

    def _called(self, folder: Path) -> str:
        return str(folder) if self._name is None else self._name(folder)

    def _named(self, problem: Problem) -> Problem:
        if self._name is None:
            return problem
        return Problem(problem.path, problem.reason, problem.slug, self._name(problem.path))


# --- the texts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A SKILL.md as the scan saw it."""

    title: str
    """The folder's name, or that of the link to it."""
    folder: Path
    """Links resolved."""
    file: str
    """Its path: in `folder`, not resolved."""

    @property
    def key(self) -> str:
        """What its text depends on besides the file's bytes, and which file it is."""
        return f"{self.file}\0{self.title}"

    def problem(self, reason: str) -> Problem:
        """Why it cannot be used."""
        return Problem(self.folder, reason, slug(self.title))


class Reader:
    """Reads SKILL.md files, each once as long as it is untouched. `tops`: what links may lead into."""

    def __init__(self, tops: Sequence[Path]) -> None:
        self._tops = tops
        self._known: dict[Place, tuple[Stamp, SkillDocument | Problem]] = {}

    def keep(self, places: Iterable[Place]) -> None:
        """Forget all others."""
        wanted = set(places)
        self._known = {place: entry for place, entry in self._known.items() if place in wanted}

    def read(self, place: Place) -> SkillDocument | Problem | None:
        """The document; None if the file is gone."""
        return next(iter(self.read_all([place])))[1]

    def read_all(self, places: Sequence[Place]) -> list[tuple[Place, SkillDocument | Problem | None]]:
        """The documents in the order of the places; None for a file that is gone."""
        found: dict[Place, SkillDocument | Problem | None] = {}
        unread: dict[Place, Stamp] = {}
        for place in places:
            try:
                stamp = _stamp(place.file)
            except OSError as error:
                found[place] = _unreadable(place, error)
                continue
            cached = self._known.get(place)
            if cached and cached[0] == stamp:
                found[place] = cached[1]
            else:
                unread[place] = stamp
        if unread:
            found.update(self._parse(unread))
        return [(place, found[place]) for place in places]

    def _parse(self, unread: dict[Place, Stamp]) -> dict[Place, SkillDocument | Problem | None]:
        store = _store() if len(unread) >= WORTH else None
        stored = store.get({place.key: stamp for place, stamp in unread.items()}) if store else {}
        found: dict[Place, SkillDocument | Problem | None] = {}
        for place, stamp in unread.items():
            read: SkillDocument | Problem | None = stored.get(place.key)
            if read is None:
                try:
                    read = _parse(place, self._tops)
                except OSError as error:
                    found[place] = _unreadable(place, error)
                    continue
            found[place] = read
            self._known[place] = (stamp, read)
        if store:
            store.put(
                (place.key, unread[place], read)
                for place, read in found.items()
                if isinstance(read, SkillDocument) and place.key not in stored
            )
        return found


def _store() -> Parsed:
    from executor.places import cache_dir
    from executor.skills.sources.parsed import Parsed  # with SQLite, for large roots only

    return Parsed(cache_dir() / "parsed.sqlite")


def place_at(text: str) -> Place | None:
    """The skill whose folder or SKILL.md the path is; None if there is none."""
    path = os.path.expanduser(text)
    try:
        if os.path.basename(path).lower() == "skill.md" and not os.path.isdir(path):
            path = os.path.dirname(path) or "."
        folder = Path(os.path.realpath(path))
        with os.scandir(folder) as entries:
            file = skill_file(list(entries))
    except (OSError, ValueError):  # nothing there, no folder, or no path at all ("a/\0")
        return None
    if file is None:
        return None
    link = path.rstrip(os.sep)
    title = os.path.basename(link) if os.path.islink(link) else folder.name
    return Place(title, folder, str(folder / file))


def _unreadable(place: Place, error: OSError) -> Problem | None:
    name = os.path.basename(place.file)
    if isinstance(error, FileNotFoundError):
        return place.problem(f"its {name} is a link to nothing") if os.path.islink(place.file) else None
    return place.problem(f"its {name} cannot be read: {error.strerror}")


def _stamp(file: str) -> Stamp:
    status = os.stat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _parse(place: Place, tops: Sequence[Path]) -> SkillDocument | Problem:
    name = os.path.basename(place.file)
    real = os.path.realpath(place.file)
    if real != place.file and not any(Path(real).is_relative_to(top) for top in (place.folder, *tops)):
        return place.problem(f"its {name} links to {real}, outside the skill and the roots")
    # Not blocking and not following: since the look the name may have become a pipe or a link.
    handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return place.problem(f"its {name} is not a regular file")
        data = stream.read(MAX_BYTES + 1)
    try:
        return parse(data, folder=place.title)
    except SkillUnreadableError as error:
        return place.problem(error.message)


# --- the folders --------------------------------------------------------------------------------------------


@dataclass
class _Scan:
    places: list[Place] = field(default_factory=list)  # in order of precedence
    problems: list[Problem] = field(default_factory=list)


def _scan(root: Path) -> _Scan:
    """Breadth first, so that what is nearer to the root comes first."""
    scan = _Scan()
    entered: set[tuple[int, int]] = set()
    queue = deque([(str(root), root.name, 0)])
    too_deep = False
    while queue:
        folder, title, depth = queue.popleft()
        try:
            status = os.stat(folder)
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except FileNotFoundError:
            if depth:
                scan.problems.append(Problem(Path(folder), "is a link to nothing"))
            continue
        except OSError as error:
            scan.problems.append(Problem(Path(folder), f"cannot be listed: {error.strerror}"))
            continue
        if file := skill_file(entries):
            real = os.path.realpath(folder)
            scan.places.append(Place(title, Path(real), os.path.join(real, file)))
        if (status.st_dev, status.st_ino) in entered:
            continue
        if len(entered) >= MAX_FOLDERS:
            scan.problems.append(Problem(root, f"was searched in part: more than {MAX_FOLDERS:,} folders"))
            return scan
        entered.add((status.st_dev, status.st_ino))
        links = []
        for entry in entries:
            if entry.name in SKIPPED_FOLDERS:
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    queue.append((os.path.join(folder, entry.name), entry.name, depth + 1))
                elif not too_deep:
                    too_deep = True
                    reason = f"was not searched: more than {MAX_DEPTH} levels below the root {root}"
                    scan.problems.append(Problem(Path(folder, entry.name), reason))
            elif depth == 0 and entry.is_symlink() and _leads_to_folder(entry):
                links.append((os.path.join(folder, entry.name), entry.name, 1))
        queue.extend(links)  # behind the real folders, so that these are entered under their own names
    return scan


def _leads_to_folder(link: os.DirEntry[str]) -> bool:
    """Or nowhere, which is worth telling. (`DirEntry.is_dir` raises for a link to itself.)"""
    return os.path.isdir(link.path) or not os.path.exists(link.path)


def skill_file(entries: Iterable[os.DirEntry[str]]) -> str | None:
    """The name of the SKILL.md among a folder's entries."""
    names = sorted(
        entry.name for entry in entries if entry.name.lower() == "skill.md" and not os.path.isdir(entry.path)
    )
    return "SKILL.md" if "SKILL.md" in names else names[0] if names else None
