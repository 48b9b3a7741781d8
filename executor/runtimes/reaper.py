"""Removing what dead owners left, for as long as an executor is open.

One daemon thread: the engine may be slow or gone, and neither the loop nor closing may wait for that.
"""

from __future__ import annotations

import contextlib
import threading

from executor.runtimes.base import Runtime


class Reaper:
    """Calls `Runtime.reap` at once and then every `interval` seconds; 0: only at once."""

    def __init__(self, runtime: Runtime, interval: float) -> None:
        self._runtime = runtime
        self._interval = interval
        self._over = threading.Event()
        threading.Thread(target=self._work, name="executor-reaper", daemon=True).start()

    def _work(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(Exception):  # an engine that is away is asked again the next time
                self._runtime.reap()
            if not self._interval:
                return
            self._over.wait(self._interval)

    def stop(self) -> None:
        """No further round. One that is under way ends by itself, and nobody waits for it."""
        self._over.set()
