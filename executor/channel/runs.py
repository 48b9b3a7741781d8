"""One run as the host sees it: what was asked, what it has written so far, how it ended.

Output is kept in bounded memory however much comes: the first and the last bytes, and the true count.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from executor.channel.calls import Door
from executor.errors import ProtocolError
from executor.guest import wire

OnOutput = Callable[[Literal["stdout", "stderr"], bytes], Awaitable[None] | None]
MAX_WAITING = 256  # pieces of output that wait for a consumer; more of them join the last of their channel
CHANNEL_NAMES: dict[int, Literal["stdout", "stderr"]] = {wire.STDOUT: "stdout", wire.STDERR: "stderr"}


@dataclass
class RunSpec:
    """A run as the guest is told. Byte strings, because arguments and variables are."""

    run_id: str
    argv: list[bytes]
    shell: bool
    cwd: bytes
    env: dict[bytes, bytes]
    timeout: float | None = None
    grace: float = 2.0
    stdin: bytes | None = None
    """What the script reads; None is end of file at once."""
    interactive: bool = False
    """stdin stays open for `write`, and output comes as it is written."""
    pty: tuple[int, int] | None = None
    head: tuple[int, int] = (512 << 10, 512 << 10)
    """First bytes of stdout and of stderr to keep."""
    tail: tuple[int, int] = (512 << 10, 512 << 10)
    """Last bytes to keep."""
    on_output: OnOutput | None = None
    """Called with every piece, in order; a coroutine is awaited, and the script waits for it."""
    door: Door | None = None
    """Its bridge; None for a run that is granted nothing."""
    output_limit: int | None = None
    """Kill the run when stdout or stderr exceeds this many bytes."""
    warm: tuple[str, ...] = ()
    """Modules that a Python which is forked for it may have imported before."""
    only_warm: bool = False
    """Nothing is run: a warm interpreter for such runs is begun."""


class ExitReport(BaseModel):
    """The guest's EXIT. It is a claim by hostile code: shapes and ranges are checked, sums are not."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    code: int | None = Field(None, ge=0, le=255)
    signal: int | None = Field(None, ge=1, le=64)
    reason: Literal["timeout", "killed", "cancelled", "output_limit"] | None = None
    refused: Literal["cwd"] | None = None
    errno: int = Field(0, ge=0, le=4095)
    oom: int = Field(0, ge=0, lt=1 << 31)
    wall_ms: int = Field(0, ge=0, lt=1 << 40)
    cpu_ms: int = Field(0, ge=0, lt=1 << 50)
    max_rss: int = Field(0, ge=0, lt=1 << 50)
    killed: int = Field(0, ge=0, lt=1 << 31)
    left: int = Field(0, ge=0, lt=1 << 31)
    stdout: int = Field(0, ge=0, lt=1 << 62)
    stderr: int = Field(0, ge=0, lt=1 << 62)
    notice: str = Field("", max_length=2000)
    """Why there is no warm interpreter."""

    @model_validator(mode="after")
    def _one_end(self) -> ExitReport:
        ends = (self.code is not None) + (self.signal is not None) + (self.refused is not None)
        if ends != 1:
            raise ValueError("a run ends with a code, by a signal or refused")
        return self


@dataclass
class OutputBuffer:
    """The first `head_limit` and last `tail_limit` bytes of a stream, and how many there were."""

    head_limit: int
    tail_limit: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.head_limit - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        if data:
            self.tail += data
            if len(self.tail) > 2 * self.tail_limit:
                del self.tail[: len(self.tail) - self.tail_limit]

    def last(self) -> bytes:
        """The kept bytes after the head."""
        return bytes(self.tail[-self.tail_limit :]) if self.tail_limit else b""

    def since(self, offset: int) -> tuple[bytes, int]:
        """The bytes from an absolute offset on, and how many of them are no longer kept."""
        if offset >= self.total:
            return b"", 0
        tail = self.last()
        tail_start = self.total - len(tail)
        first = bytes(self.head[offset:]) if offset < len(self.head) else b""
        position = max(offset, len(self.head))
        missed = max(0, tail_start - position)
        return first + tail[max(0, position - tail_start) :], missed


class RunHandle:
    """A run in flight. Made by `Channel.run`."""

    def __init__(self, channel: Any, stream: int, spec: RunSpec) -> None:
        self._channel = channel
        self.stream = stream
        self.spec = spec
        self.pid: int | None = None
        self.output = {
            wire.STDOUT: OutputBuffer(spec.head[0], spec.tail[0]),
            wire.STDERR: OutputBuffer(spec.head[1], spec.tail[1]),
        }
        self.report: asyncio.Future[ExitReport] = asyncio.get_running_loop().create_future()
        self.report.add_done_callback(_retrieve)
        self._waiters: list[asyncio.Future[None]] = []
        self.changed = asyncio.Event()
        """Set whenever output came or the run ended; a reader clears it."""
        self._exit: ExitReport | None = None
        self._open = {wire.STDOUT, wire.STDERR}
        self._queue: deque[tuple[int, bytearray]] = deque()
        self._latest: dict[int, bytearray] = {}
        """The last piece of each channel that is in the queue."""
        self._over_limit = False
        self._consumer: asyncio.Task[None] | None = None
        self.callback_error: BaseException | None = None
        self._stopped = 0.0
        self._paused_at: float | None = None

    @property
    def channel(self) -> Any:
        """The channel that it runs over."""
        return self._channel

    # -- what a caller may do --

    async def write(self, data: bytes) -> None:
        """Send to stdin; returns when the stream has taken it."""
        await self._channel.send(self.stream, wire.STDIN, data)

    async def close_stdin(self) -> None:
        """End of file on stdin."""
        await self._channel.send(self.stream, wire.STDIN, b"", end=True)

    def send_signal(self, number: int) -> None:
        """Signal the run's process group."""
        self._channel.control(wire.SIGNAL, self.stream, {"signal": number})

    def resize(self, rows: int, columns: int) -> None:
        """Size of the terminal."""
        self._channel.control(wire.SIGNAL, self.stream, {"resize": [rows, columns]})

    def kill(self, reason: str = "killed", grace: float | None = None) -> None:
        """TERM to everything that the run started, KILL after the grace (default: the run's own)."""
        self._revoke(f"the run is being ended: {reason}")  # before anything of it is
        if self._exit is None:
            body: dict[str, Any] = {"kill": reason}
            if grace is not None:
                body["grace_ms"] = int(grace * 1000)
            self._channel.control(wire.SIGNAL, self.stream, body)

    def hold(self, stopped: bool, frozen: bool) -> None:
        """Stop its clock or let it go on; `frozen`: its processes stand still too."""
        if stopped and self._paused_at is None:
            self._paused_at = time.monotonic()
        elif not stopped and self._paused_at is not None:
            self._stopped, self._paused_at = self.stopped, None
        if self._exit is None:
            self._channel.control(wire.SIGNAL, self.stream, {"hold": [stopped, frozen]})

    @property
    def stopped(self) -> float:
        """Seconds that its clock has stood still."""
        return self._stopped + (time.monotonic() - self._paused_at if self._paused_at is not None else 0.0)

    def _revoke(self, why: str) -> None:
        if self.spec.door is not None:
            self.spec.door.bridge.revoke(why)

    async def reported(self, timeout: float | None) -> bool:
        """Wait for the report, at most so many seconds; whether it came. Raises what ended the run instead.

        On the path of every run: one turn of the loop from the report to its waiter, where `wait_for` and
        `shield` take three.
        """
        if not self.report.done():
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            timer = None if timeout is None else loop.call_later(timeout, _wake, waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
                if timer is not None:
                    timer.cancel()
        if not self.report.done():
            return False
        self.report.result()
        return True

    # -- what the channel calls --

    @property
    def waits_for_caller(self) -> bool:
        """The guest has reported the end; `on_output` is not done with what it wrote."""
        return self._exit is not None and self._consumer is not None

    @property
    def has_ended(self) -> bool:
        """The guest has reported the end; output may still come."""
        return self._exit is not None

    def event(self, event: wire.Event) -> None:
        if event.type == wire.DATA:
            self._data(event.channel, event.body, event.end)
        elif event.type == wire.STARTED:
            self.pid = event.body.get("pid") if isinstance(event.body.get("pid"), int) else None
            if self.spec.door is not None:
                self.spec.door.bridge.begin(self.spec.timeout, self.hold)
        elif event.type == wire.EXIT:
            try:
                self._exit = ExitReport.model_validate(event.body)
            except ValueError as error:
                raise ProtocolError(f"the guest's EXIT is malformed: {str(error)[:200]}") from None
            self._channel.starved |= self._exit.oom > 0
            self._revoke("the run ended")
        self._finish_if_over()

    def failed(self, error: BaseException) -> None:
        self._revoke("the sandbox was lost")
        if not self.report.done():
            self.report.set_exception(error)
        self._over()

    def _data(self, channel: int, data: bytes, end: bool) -> None:
        if end:
            self._open.discard(channel)
        if not data:
            return
        buffer = self.output[channel]
        buffer.add(data)
        self.changed.set()
        limit = self.spec.output_limit
        if limit is not None and buffer.total > limit and not self._over_limit:
            self._over_limit = True
            self.kill("output_limit")
        if self.spec.on_output is None or self.callback_error is not None:
            self._channel.consumed(self.stream, channel, len(data))
            return
        self._enqueue(channel, data)
        if self._consumer is None:
            self._consumer = asyncio.get_running_loop().create_task(self._consume())

    def _enqueue(self, channel: int, data: bytes) -> None:
        """Pieces join where they can: a byte that waits alone costs a hundred times its size."""
        waiting = self._latest.get(channel)
        if waiting is not None and (self._queue[-1][1] is waiting or len(self._queue) >= MAX_WAITING):
            waiting += data
        else:
            self._latest[channel] = piece = bytearray(data)
            self._queue.append((channel, piece))

    async def _consume(self) -> None:
        """Hand output to the caller; credit goes back only for what the caller has taken."""
        on_output = self.spec.on_output
        assert on_output is not None
        try:
            while self._queue:
                channel, piece = self._queue.popleft()
                if self._latest.get(channel) is piece:
                    del self._latest[channel]
                data = bytes(piece)
                try:
                    if self.callback_error is None:
                        returned = on_output(CHANNEL_NAMES[channel], data)
                        if inspect.isawaitable(returned):
                            await returned
                except (Exception, asyncio.CancelledError) as error:
                    self.callback_error = error
                    self.kill("cancelled")
                self._channel.consumed(self.stream, channel, len(data))
        finally:
            self._consumer = None
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        if self._exit is None or self._open or self._consumer is not None or self._queue:
            return
        if not self.report.done():
            self.report.set_result(self._exit)
        self._channel.forget(self.stream)
        self._over()

    def _over(self) -> None:
        for waiter in self._waiters:
            _wake(waiter)
        self.changed.set()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _retrieve(future: asyncio.Future[ExitReport]) -> None:
    """A run that nobody waits for any more must not be reported as a forgotten exception."""
    if not future.cancelled():
        future.exception()
