"""Whom a TLS client asks for: the name in its first message, which it says before anything is encrypted.

Nothing of TLS is understood beyond that. Many services may stand behind one address and choose by this name,
so a tunnel that was allowed for one host must not ask for another.
"""

from __future__ import annotations

from executor.bridge.http1 import BadMessage, Source

HANDSHAKE = 0x16  # type of a record, and first byte of every TLS connection
CLIENT_HELLO = 1
SERVER_NAME = 0  # an extension, and the only kind of name in it
MAX_HELLO = 32 << 10  # with keys for an age of quantum computers it has 2 KiB
# What is said to a client that asks for another host: a fatal alert, unrecognized_name.
ALERT = b"\x15\x03\x01\x00\x02\x02\x70"


async def server_name(source: Source) -> str:
    """The name in the message that comes next, which stays unread; '' when there is none. BadMessage."""
    message = bytearray()
    at = 0
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
        head = await source.ahead(at + 5)
        length = int.from_bytes(head[at + 3 : at + 5], "big")
        if head[at] != HANDSHAKE or head[at + 1] != 3 or not length or at + length > MAX_HELLO:
            raise BadMessage("the tunnel does not begin with TLS")
        message += (await source.ahead(at + 5 + length))[at + 5 : at + 5 + length]
        at += 5 + length
        if message[0] != CLIENT_HELLO:
            raise BadMessage("the tunnel does not begin with TLS")
    return _named(_Reader(bytes(message[4 : 4 + int.from_bytes(message[1:4], "big")])))


class _Reader:
    """Fields one after another. BadMessage where they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bool__(self) -> bool:
        return bool(self._data)

    def take(self, size: int) -> bytes:
        if size > len(self._data):
            raise BadMessage("the first message of TLS is malformed")
        found, self._data = self._data[:size], self._data[size:]
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def field(self, size: int) -> bytes:
        """What stands behind its length, which has `size` bytes."""
        return self.take(self.number(size))


def _named(hello: _Reader) -> str:
    hello.take(34)  # version, random
    for size in (1, 2, 1):  # session, ciphers, compression
        hello.field(size)
    extensions = _Reader(hello.field(2) if hello else b"")
    names: list[bytes] = []
    while extensions:
        kind, content = extensions.number(2), _Reader(extensions.field(2))
        if kind == SERVER_NAME:
            listed = _Reader(content.field(2))
            while listed:
                names.append(listed.field(2) if listed.number(1) == SERVER_NAME else b"")
    if len(names) > 1:
        raise BadMessage("the first message of TLS names several hosts")
    return names[0].decode("latin-1") if names else ""
