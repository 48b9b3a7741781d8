"""What a person sees while skills are fetched: one line on a terminal, and warnings anywhere."""

from __future__ import annotations

import logging
import sys
import threading
import time

from executor.cli import console
from executor.skills.sources import progress
from executor.workspace.text import printable_name

PAUSE = 0.1  # seconds between two states of the line


def show(*, warnings: bool = True) -> None:
    """From now on. `warnings`: say what was not as it should be, too."""
    progress.warned = (lambda text: console.say(text, kind="warning")) if warnings else (lambda _text: None)
    progress.fetching = _Line() if sys.stderr.isatty() else None


def tell_of_settings(*, quiet: bool) -> None:
    """From now on say what is odd about the settings, whatever is said of skills."""
    logging.getLogger("executor.settings").handlers = [logging.NullHandler() if quiet else _Said()]


class _Said(logging.Handler):
    """A warning of the library, as one of this program."""

    def emit(self, record: logging.LogRecord) -> None:
        console.say(record.getMessage(), kind="warning")


class _Line:
    """The one line, written over. Called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0.0

    def __call__(self, source: str, done: int, total: int) -> None:
        with self._lock:
            if total < 0:
                if self._at:
                    self._write("")
                self._at = 0.0
                return
            now = time.monotonic()
            if now - self._at < PAUSE:
                return
            self._at = now
            amount = console.size(done) + (f" of {console.size(total)}" if total else "")
            self._write(f"{console.PREFIX}fetching {printable_name(source)[-60:]}: {amount}")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        except OSError:  # nobody reads it
            pass
