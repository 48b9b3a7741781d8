"""Sources whose files are fetched whole: the skills are then those of a folder in the cache.

What is fetched and how is a `Fetcher`; this module decides when, keeps what is offered while a look is under
way, and says what was wrong with it.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from executor.errors import SkillSourceError
from executor.skills.skill import Problem
from executor.skills.sources import progress
from executor.skills.sources.base import INTERVAL, Listing, SkillSource
from executor.skills.sources.cache import Cache
from executor.skills.sources.directory import DirectorySource


@dataclass(frozen=True)
class Fetched:
    """What a look brought."""

    top: Path
    """The folder with the skills. It does not change."""
    notes: tuple[str, ...] = ()
    """What was not as it should be, one sentence each."""


class Fetcher(ABC):
    """Fetches the files of one source."""

    id: str
    """See `SkillSource.id`."""

    @abstractmethod
    def fetch(self, cache: Cache) -> Fetched:
        """Look, and fetch what is new. SkillSourceError when there is nothing to use."""

    def changed(self) -> bool:
        """Whether another look is due at once, as when a file of this host was written."""
        return False


class FetchedSource(SkillSource):
    """The skills among the files that a fetcher brings."""

    def __init__(
        self, fetcher: Fetcher, *, cache: Cache | None = None, interval: float | None = INTERVAL
    ) -> None:
        self.id = fetcher.id
        self.interval = interval
        self._fetcher = fetcher
        self._cache = cache or Cache()
        self._turn = threading.Lock()
        self._looked = -1e9
        self._state: tuple[DirectorySource, Fetched] | SkillSourceError | None = None

    def due(self) -> bool:
        """Whether the last look is older than `interval`."""
        return self.interval is None or time.monotonic() - self._looked >= self.interval

    def refresh(self) -> None:
        """Looks again. What was offered before is offered until the look is over."""
        self._look(self._looked)
        if isinstance(self._state, SkillSourceError):
            raise self._state

    def list(self) -> Listing:
        """What the last look brought."""
        state = self._state
        if isinstance(state, tuple):
            again = self._fetcher.changed() or not state[1].top.is_dir()  # somebody may empty the cache
        else:
            again = state is None or self.due()
        if again:
            self._look(self._looked)
            state = self._state
        if isinstance(state, SkillSourceError):
            raise state
        assert state is not None
        directory, fetched = state
        listing = directory.list()
        notes = (Problem(Path(self.id), note, origin=self.id) for note in fetched.notes)
        return Listing(listing.skills, (*notes, *listing.problems))

    def _look(self, seen: float) -> None:
        with self._turn:
            if self._looked != seen:  # another thread has looked while this one waited
                return
            try:
                fetched = self._fetcher.fetch(self._cache)
            except SkillSourceError as error:
                self._state = error
            else:
                self._take(fetched)
            self._looked = time.monotonic()

    def _take(self, fetched: Fetched) -> None:
        for note in fetched.notes:
            progress.warn(f"{self.id}: {note}")
        before = self._state
        if isinstance(before, tuple) and before[0].root == fetched.top:
            self._state = (before[0], fetched)
            return

        def name(folder: Path) -> str:
            try:
                below = folder.relative_to(fetched.top).as_posix()
            except ValueError:
                return str(folder)
            return self.id if below == "." else f"{below} in {self.id}"

        self._state = (DirectorySource(fetched.top, name=name), fetched)
