"""A call from the sandbox as the host's end sees it: its request comes in, one answer goes out.

Nothing is believed of it here; what it may do is the business of the run's bridge. A request is held in
memory only as far as its bridge reads it: until then it costs at most the window of a fresh call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from executor.channel.tunnels import Tunnel
from executor.errors import ProtocolError
from executor.guest import wire

FORMS = ("json", "shell")
REFUSALS = ("", "too large", "malformed")  # why the guest's door sends a request without its content


# What is answered when there is no bridge to ask: the run is over, or never had one.
GONE = {
    "json": b'{"ok":false,"error":{"code":"REVOKED","message":"The run is over; its grant was revoked.",'
    b'"retryable":false}}',
    "shell": b"125 40 0 text\nThe run is over; its grant was revoked.\n",
}


class CallTooLarge(Exception):
    """The request is larger than the reader takes."""


class Bridge(Protocol):
    """What a run needs to have calls: see `executor.bridge`."""

    warnings: list[str]
    """What the run's result is to say."""

    def begin(self, timeout: float | None, hold: Callable[[bool, bool], None]) -> None:
        """The run has started; `hold` is `RunHandle.hold`."""

    def incoming(self, request: CallRequest) -> None:
        """A call has come."""

    def connected(self, tunnel: Tunnel) -> None:
        """A script has connected to its proxy."""

    def revoke(self, why: str) -> None:
        """The run is over or about to be; may be called again."""

    async def settled(self) -> None:
        """Returns when nothing that the run asked for is still taking effect."""


@dataclass(frozen=True)
class Door:
    """What the guest is told of a run's bridge."""

    bridge: Bridge
    name: str
    """The folder's name below /tmp; not to be guessed."""
    files: tuple[bytes, ...]
    """The clients, as records."""
    calls: int
    """Calls that the guest may have under way at one time."""
    argument: int
    """Bytes of one request that it passes on."""
    proxy: dict[str, Any] | None = None
    """`connections` at one time and the `variables` that name the proxy; None for a run without network."""


class CallRequest:
    """One CALL stream. Made by the channel."""

    def __init__(self, channel: Any, stream: int, body: dict[str, Any]) -> None:
        form, refused = body.get("form"), body.get("refused", "")
        if form not in FORMS or refused not in REFUSALS:
            raise ProtocolError("the guest's CALL is malformed")
        self.stream = stream
        self.form: str = form
        """How the request is written: `json`, or `shell` for the words of a command."""
        self.refused: str = refused
        """Why the guest's door did not pass it on, '' if it did."""
        self.on_cancel: Callable[[], object] = lambda: None
        """Called when the caller has gone or gives up."""
        self._channel = channel
        self._data = bytearray()
        self._ended = False
        self._reading = False
        self._more = asyncio.Event()
        self._over = asyncio.Event()
        self._replied = False

    async def read(self, most: int) -> bytes:
        """The whole request. CallTooLarge as soon as it exceeds `most` bytes."""
        self._reading = True
        self._credit(len(self._data))
        while not self._ended and len(self._data) <= most:
            self._more.clear()
            await self._more.wait()
        if len(self._data) > most:
            self._reading = False
            self._data.clear()
            raise CallTooLarge
        data = bytes(self._data)
        self._data.clear()
        return data

    def reply(self, payload: bytes) -> None:
        """Answer it. Only the first answer counts, and none after the stream is over."""
        if self._replied:
            return
        self._replied = True
        self._data.clear()
        self._channel.answer(self.stream, payload)
        self.moved()

    def cut(self) -> None:
        """Drop what is left of the answer: nobody waits for it any more."""
        if self._replied:
            self._channel.cut_answer(self.stream)

    async def sent(self) -> None:
        """Returns when the sandbox has taken the answer, or the stream is over for another reason."""
        await self._over.wait()

    # -- what the channel calls --

    def event(self, event: wire.Event) -> None:
        if event.type == wire.DATA:
            self._ended = self._ended or event.end
            if not self._replied:
                self._data += event.body
                if self._reading:
                    self._credit(len(event.body))
            self._more.set()
        elif event.type == wire.CANCEL:
            self.on_cancel()

    def moved(self) -> None:
        """Something was written: look whether the stream is over."""
        if self._replied and not self._channel.is_open(self.stream):
            self._over.set()
            self._channel.forget_call(self.stream)

    def failed(self) -> None:
        """The channel broke."""
        self._over.set()
        self.on_cancel()

    def _credit(self, size: int) -> None:
        if size:
            self._channel.consumed(self.stream, wire.ARGS, size)
