"""A run's clock, which its bridge stops while a person thinks and, if that is granted, while tools work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watch:
    """Time during which at least one of several holders held."""

    def __init__(self) -> None:
        self._holders = 0
        self._since = 0.0
        self._total = 0.0

    @property
    def held(self) -> bool:
        """Whether one holds now."""
        return self._holders > 0

    @property
    def seconds(self) -> float:
        """How long it was held so far."""
        return self._total + (time.monotonic() - self._since if self._holders else 0.0)

    def take(self) -> None:
        """One more holds."""
        if not self._holders:
            self._since = time.monotonic()
        self._holders += 1

    def leave(self) -> None:
        """One less."""
        self._total = self.seconds
        self._since = time.monotonic()
        self._holders -= 1


class Clock:
    """`hold(stopped, frozen)` says how the run is to be: its clock stopped, and its processes with it."""

    def __init__(self, hold: Callable[[bool, bool], None]) -> None:
        self._hold = hold
        self._told = (False, False)
        self.thinking = Watch()
        """People decide. The run stands still."""
        self.working = Watch()
        """Tools work whose time does not count. The run goes on."""
        self._stopped = Watch()

    @property
    def stopped(self) -> float:
        """Seconds that the clock has stood still."""
        return self._stopped.seconds

    @contextmanager
    def held(self, watch: Watch) -> Iterator[None]:
        """Stop it for one of its watches."""
        watch.take()
        self._stopped.take()
        self._tell()
        try:
            yield
        finally:
            watch.leave()
            self._stopped.leave()
            self._tell()

    def _tell(self) -> None:
        wanted = (self._stopped.held, self.thinking.held)
        if wanted != self._told:
            self._told = wanted
            self._hold(*wanted)
