"""A connection of a script to the outside as the host's end sees it: bytes both ways, as credit allows.

Nothing is believed of it here; where it may lead is the business of the run's bridge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from executor.guest import wire

HIGH = 256 << 10  # queued bytes at which a writer waits


class TunnelClosed(Exception):
    """The client has gone, or the run is over."""


class Tunnel:
    """One TUNNEL stream. Made by the channel."""

    def __init__(self, channel: Any, stream: int) -> None:
        self.stream = stream
        self.on_cancel: Callable[[], object] = lambda: None
        """Called when the client has gone."""
        self.received = self.sent = 0
        """Bytes that were read and written here."""
        self._channel = channel
        self._data = bytearray()
        self._ended = False
        self._half_closed = False
        self._closed = False
        self._gone = False
        self._more = asyncio.Event()

    async def read(self) -> bytes:
        """What has come, at least one byte; b'' at the end. TunnelClosed when it breaks off."""
        while not (self._data or self._ended or self._gone or self._closed):
            self._more.clear()
            await self._more.wait()
        data = bytes(self._data)
        self._data.clear()
        if data:
            self.received += len(data)
            self._channel.consumed(self.stream, wire.ARGS, len(data))
        elif not self._ended:
            raise TunnelClosed
        return data

    async def write(self, data: bytes) -> None:
        """Send; waits while the client does not read. TunnelClosed when it has gone."""
        if self._gone or self._closed or self._half_closed:
            raise TunnelClosed
        self.sent += len(data)
        await self._channel.send(self.stream, wire.CONTENT, data, high=HIGH)
        if self._gone or self._closed:
            raise TunnelClosed

    async def end(self) -> None:
        """Nothing more is sent; the client may go on writing."""
        if not (self._half_closed or self._closed or self._gone):
            self._half_closed = True
            await self._channel.send(self.stream, wire.CONTENT, b"", end=True, high=HIGH)

    def close(self) -> None:
        """The last word. What was written is still delivered, unless the client does not take it."""
        if self._closed:
            return
        self._closed = True
        self._data.clear()
        self._channel.end_tunnel(self.stream, cut=self._gone)
        self._more.set()
        self.moved()

    def cut(self) -> None:
        """Drop what is not delivered yet."""
        self._channel.cut_answer(self.stream)
        self.moved()

    # -- what the channel calls --

    def event(self, event: wire.Event) -> None:
        if event.type == wire.DATA:
            self._ended = self._ended or event.end
            if not self._closed:
                self._data += event.body
        elif event.type == wire.CANCEL:
            self._gone = True
            if self._closed:
                self.cut()
            self.on_cancel()
        self._more.set()

    def moved(self) -> None:
        """Something was written: look whether the stream is over."""
        if self._closed and not self._channel.is_open(self.stream):
            self._channel.forget_call(self.stream)

    def failed(self) -> None:
        """The channel broke."""
        self._gone = self._closed = True
        self._more.set()
        self.on_cancel()
