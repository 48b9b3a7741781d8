"""What whoever waits for a source is told: how far a fetch is, and what was not as it should be.

A library has nobody to show progress to, so there is one listener in a process, and the command line is it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from executor.workspace.text import printable

Fetching = Callable[[str, int, int], None]
"""(source, bytes so far, bytes in all); in all is 0 when it is not known, and -1 when the fetch has ended."""

fetching: Fetching | None = None
"""Called from any thread, often."""
warned: Callable[[str], None] | None = None
"""Called with each distinct warning, once. None: it goes to the log."""

_log = logging.getLogger("executor.skills")
_said: set[str] = set()


def step(source: str, done: int, total: int = 0) -> None:
    """A fetch went on."""
    if fetching is not None:
        fetching(source, done, total)


def end(source: str) -> None:
    """A fetch has ended, well or not."""
    if fetching is not None:
        fetching(source, 0, -1)


def warn(text: str) -> None:
    """Say it, unless it was said before."""
    if text in _said or len(_said) > 10_000:
        return
    _said.add(text)
    if warned is not None:
        warned(text)
    else:
        _log.warning("%s", printable(text))
