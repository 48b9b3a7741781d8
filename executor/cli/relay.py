r"""A script's output on its way to this process's stdout and stderr, as it comes.

Bytes go through unaltered when the stream is a file or a pipe. On a terminal colours, line feeds, tabs and
carriage returns work; every other control is shown (`\x1b]52;…`) and not obeyed, because a script chooses
each byte and a terminal takes orders.

One thread writes, so that a reader that is slow (`| less`) never holds up the event loop and what was written
to both streams stays in order. The queue is bounded: a slow reader holds the script up, as a pipe does, but
only until the script's own deadline. What is under way then is bounded too, so it is kept.
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import queue
import re
import select
import threading
import time
from collections.abc import Callable
from typing import Literal, Protocol

from executor.workspace.text import printable

HIGH_WATER = 256 << 10  # queued bytes at which the script waits

COLOUR = r"\x1b\[[0-9;:]{0,40}m"
_ALLOWED = re.compile(rf"({COLOUR}|\r)")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:]{0,40})?\Z")
RESET = b"\x1b[0m"

StreamName = Literal["stdout", "stderr"]
DESCRIPTORS: dict[StreamName, int] = {"stdout": 1, "stderr": 2}


class Filter(Protocol):
    """Bytes for a terminal from a script's bytes."""

    def feed(self, data: bytes, *, end: bool = False) -> bytes:
        """What may be written now."""


class TerminalFilter:
    """Bytes for a terminal from a script's bytes, piece by piece, however they are cut."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # an escape sequence whose rest has not come
        self._coloured = False

    def feed(self, data: bytes, *, end: bool = False) -> bytes:
        """What may be written now. At the end also what was held back, and colours are switched off."""
        text = self._held + self._decoder.decode(data, end)
        self._held = ""
        if not end and (unfinished := _UNFINISHED.search(text)):
            self._held = unfinished[0]
            text = text[: unfinished.start()]
        pieces = _ALLOWED.split(text)
        self._coloured = self._coloured or any(len(piece) > 1 for piece in pieces[1::2])
        shown = "".join(piece if index % 2 else printable(piece) for index, piece in enumerate(pieces))
        return shown.encode("utf-8") + (RESET if end and self._coloured else b"")


class Relay:
    """Takes pieces in the event loop and writes them in a thread. `failed` says why writing stopped.

    `on_failed` is called in the loop, once, when a reader has gone (EPIPE) or a write fails.
    """

    def __init__(self, terminal_filter: Callable[[], Filter] = TerminalFilter) -> None:
        """`terminal_filter`: what makes bytes safe for a stream that is a terminal."""
        self.failed: OSError | None = None
        self.on_failed: Callable[[], object] = lambda: None
        self.give_up_at = float("inf")
        """When (`time.monotonic`) a slow reader does not hold the script up any longer."""
        self._open_lines: dict[StreamName, bool] = dict.fromkeys(DESCRIPTORS, False)
        self._loop = asyncio.get_running_loop()
        self._filters = {name: terminal_filter() for name, fd in DESCRIPTORS.items() if os.isatty(fd)}
        self._pieces: queue.SimpleQueue[tuple[StreamName, bytes] | None] = queue.SimpleQueue()
        self._queued = 0
        self._room = asyncio.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._write_all, name="relay", daemon=True)
        self._thread.start()

    async def take(self, stream: StreamName, data: bytes) -> None:
        """Queue a piece; waits while too much is queued."""
        while self._queued >= HIGH_WATER and self.failed is None:
            left = self.give_up_at - time.monotonic()
            if left <= 0:
                break
            self._room.clear()
            try:
                await asyncio.wait_for(self._room.wait(), min(left, 3600))
            except TimeoutError:
                continue
        if self.failed is None:
            self._queued += len(data)
            self._pieces.put((stream, data))

    async def finish(self) -> None:
        """Wait until everything is written, for as long as the reader takes."""
        self._pieces.put(None)
        await self._ended.wait()

    # -- in the thread --

    def _write_all(self) -> None:
        failed: OSError | None = None
        while (piece := self._pieces.get()) is not None:
            stream, data = piece
            if failed is None:
                try:
                    self._write(stream, self._for(stream, data))
                except OSError as error:
                    failed = error
            self._tell(self._written, len(data), failed)
        if failed is None:
            try:
                for stream in self._filters:
                    self._write(stream, self._for(stream, b"", end=True))
            except OSError as error:
                failed = error
        self._tell(self._written, 0, failed)
        self._tell(self._ended.set)

    def _for(self, stream: StreamName, data: bytes, *, end: bool = False) -> bytes:
        return self._filters[stream].feed(data, end=end) if stream in self._filters else data

    def _write(self, stream: StreamName, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(DESCRIPTORS[stream], view) :]
            except BlockingIOError:  # whoever shares the stream with us made it so
                select.select([], [DESCRIPTORS[stream]], [])
        if data and data != RESET:
            self._open_lines[stream] = not data.endswith((b"\n", b"\n" + RESET))

    def _tell(self, function: object, *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]
        except RuntimeError:
            pass  # the loop has ended: nobody waits any more

    # -- in the loop --

    def _written(self, count: int, failed: OSError | None) -> None:
        self._queued -= count
        self._room.set()
        if failed is not None and self.failed is None:
            self.failed = failed
            self.on_failed()

    @property
    def line_is_open(self) -> bool:
        """Whether what this process says next on stderr would be glued to a line of the script's."""
        one_terminal = len(self._filters) == len(DESCRIPTORS)
        return self._open_lines["stderr"] or (one_terminal and self._open_lines["stdout"])

    @property
    def reader_has_gone(self) -> bool:
        """Whether writing stopped because nobody reads."""
        return self.failed is not None and self.failed.errno == errno.EPIPE
