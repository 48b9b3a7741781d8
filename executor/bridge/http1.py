"""HTTP/1.1 as the egress takes it from a hostile script: every message has one meaning, or is refused.

Requests are parsed whole and written anew, so that nothing that the script wrote reaches an origin unread: no
second request behind the first, no field that two readers would understand differently. One request for each
connection; what stands behind it is never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from executor.bridge.network import hostname

MAX_HEAD = 64 << 10  # bytes of a request line and its headers, or of an answer's
MAX_TARGET = 16 << 10
MAX_FIELDS = 128
MAX_CHUNK = 1 << 20  # of a body at a time

_TOKEN = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TARGET = re.compile(rb"[\x21-\x7e]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_BARE = re.compile(rb"(?:\A|[^\r])\n")
_CHUNK = re.compile(rb"[0-9A-Fa-f]{1,8}")
# What concerns only one connection, and is never passed on.
HOP_BY_HOP = {
    *(b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"proxy-authenticate"),
    *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"host", b"content-length"),
    *(b"http2-settings", b"proxy-status"),
}
# With these many servers take another method or path than the one in the first line.
OTHERWISE = {
    *(b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-method"),
    *(b"x-original-url", b"x-original-uri", b"x-rewrite-url", b"x-forwarded-uri", b"x-forwarded-prefix"),
}

Read = Callable[[], Awaitable[bytes]]
Fields = list[tuple[bytes, bytes]]


class BadMessage(Exception):
    """What came is not HTTP as it is taken here; `status` is what to answer."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


class NothingCame(BadMessage):
    """The other side closed without a word."""

    def __init__(self) -> None:
        super().__init__("nothing came")


class Source:
    """Bytes of a connection, with as much held back as a message needs."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._buffer = bytearray()

    async def fill(self) -> bool:
        """Wait for more. False at the end."""
        data = await self._read()
        self._buffer += data
        return bool(data)

    async def peek(self) -> int:
        """The first byte, which stays; -1 at the end."""
        if not self._buffer and not await self.fill():
            return -1
        return self._buffer[0]

    async def ahead(self, size: int) -> bytes:
        """So many bytes, which stay. BadMessage when fewer come."""
        while len(self._buffer) < size:
            if not await self.fill():
                raise BadMessage("the message is cut")
        return bytes(self._buffer[:size])

    async def head(self) -> bytes:
        """Everything up to the empty line, without it. BadMessage when it is too long or cut."""
        seen = 0
        while True:
            end = self._buffer.find(b"\r\n\r\n", max(0, seen - 3))
            if end > MAX_HEAD or (end < 0 and len(self._buffer) > MAX_HEAD):
                raise BadMessage(f"the headers are longer than {MAX_HEAD:,} bytes", 431)
            if end >= 0:
                head = bytes(self._buffer[:end])
                del self._buffer[: end + 4]
                return head
            # A bare line feed would be an end of line to some: refused as soon as it is there. What was
            # looked at is not looked at again, for the bytes may come one by one.
            if _BARE.search(self._buffer, max(0, seen - 1)):
                raise BadMessage("a line ends without a carriage return")
            seen = len(self._buffer)
            if not await self.fill():
                raise BadMessage("the message is cut") if seen else NothingCame

    async def line(self, most: int = 1024) -> bytes:
        """One line of a chunked body."""
        while True:
            end = self._buffer.find(b"\r\n")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 2]
                return line
            if len(self._buffer) > most or not await self.fill():
                raise BadMessage("a chunk is malformed")

    async def some(self, most: int) -> bytes:
        """Between one and `most` bytes; b'' at the end."""
        if not self._buffer and not await self.fill():
            return b""
        data = bytes(self._buffer[: min(most, MAX_CHUNK)])
        del self._buffer[: len(data)]
        return data

    def rest(self) -> bytes:
        """What was held back."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    async def exactly(self, size: int, take: Callable[[bytes], Awaitable[None]]) -> None:
        """Hand on `size` bytes in pieces. BadMessage when there are fewer."""
        while size:
            data = await self.some(size)
            if not data:
                raise BadMessage("the body is cut")
            size -= len(data)
            await take(data)

    async def chunks(self, take: Callable[[bytes], Awaitable[None]]) -> None:
        """Hand on a chunked body. BadMessage for extensions, trailers and all else that is not plain."""
        while True:
            line = await self.line()
            if not _CHUNK.fullmatch(line):
                raise BadMessage("the size of a chunk is malformed")
            size = int(line, 16)
            if not size:
                if await self.line():
                    raise BadMessage("trailers are not passed on")
                return
            await self.exactly(size, take)
            if await self.line(1):
                raise BadMessage("a chunk is longer than it says")


@dataclass
class Request:
    """A request as it was parsed."""

    method: str
    target: str
    version: bytes
    host: str
    """Its Host header as it was written; '' when there is none."""
    fields: Fields
    """Headers to pass on."""
    length: int | None = 0
    """Bytes of the body; None when it is chunked."""
    upgrade: bytes = b""
    expects: bool = False
    """It waits for `100 Continue`."""


@dataclass
class Answer:
    """The head of an origin's answer."""

    status: int
    reason: bytes
    fields: Fields = field(default_factory=list)
    length: int | None = 0
    """Bytes of the body; None when it is chunked or lasts until the end."""
    chunked: bool = False
    bodiless: bool = False


def parse_request(head: bytes) -> Request:
    """BadMessage for what is not a request, or could be understood in two ways."""
    lines = _lines(head)
    words = lines[0].split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not _TARGET.fullmatch(words[1]):
        raise BadMessage("the request line is malformed")
    method, target, version = words
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadMessage("the version of HTTP is not 1.1", 505)
    if len(target) > MAX_TARGET:
        raise BadMessage("the address is too long", 414)
    found = _fields(lines[1:])
    hosts = [value for name, value in found if name.lower() == b"host"]
    if len(hosts) > 1 or (not hosts and version == b"HTTP/1.1"):
        raise BadMessage("there has to be one Host header")
    length, chunked = _framing(found)
    if chunked and version == b"HTTP/1.0":
        raise BadMessage("HTTP/1.0 has no chunked bodies")
    upgrade = [value for name, value in found if name.lower() == b"upgrade"]
    expect = [value.lower() for name, value in found if name.lower() == b"expect"]
    if any(value != b"100-continue" for value in expect):
        raise BadMessage("the expectation cannot be met", 417)
    return Request(
        method=method.decode("ascii"),
        target=target.decode("ascii"),
        version=version,
        host=hosts[0].decode("latin-1") if hosts else "",
        fields=_passed_on(found),
        length=None if chunked else length or 0,
        upgrade=b", ".join(upgrade).lower(),
        expects=bool(expect),
    )


def parse_answer(head: bytes, method: str) -> Answer:
    """BadMessage for what is not an answer."""
    lines = _lines(head)
    version, _, rest = lines[0].partition(b" ")
    status, _, reason = rest.partition(b" ")
    if not version.startswith(b"HTTP/1.") or len(status) != 3 or not status.isdigit():
        raise BadMessage("the origin's answer is malformed")
    if not _VALUE.fullmatch(reason):
        raise BadMessage("the origin's answer is malformed")
    found = _fields(lines[1:])
    length, chunked = _framing(found)
    number = int(status)
    if method == "HEAD" or number in (204, 304) or number < 200:
        kept = [
            (name, value) for name, value in found if method == "HEAD" and name.lower() == b"content-length"
        ]
        return Answer(number, reason, _passed_on(found) + kept, 0, bodiless=True)
    return Answer(number, reason, _passed_on(found), None if chunked else length, chunked)


def known_as(name: bytes) -> bytes:
    """A header's name as the most lenient server takes it: for some `_` is a `-`."""
    return name.lower().replace(b"_", b"-")


def write_head(first: bytes, fields: Fields) -> bytes:
    """A head for the wire."""
    return b"".join([first, b"\r\n", *(name + b": " + value + b"\r\n" for name, value in fields), b"\r\n"])


def _lines(head: bytes) -> list[bytes]:
    if b"\0" in head:
        raise BadMessage("there is a NUL in the headers")
    lines = head.split(b"\r\n")
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise BadMessage("a line ends in half of an end of line")
    return lines


def _fields(lines: list[bytes]) -> Fields:
    if len(lines) > MAX_FIELDS:
        raise BadMessage(f"there are more than {MAX_FIELDS} headers", 431)
    found: Fields = []
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            raise BadMessage("a header goes on in a second line")
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadMessage("a header is malformed")
        found.append((name, value.strip(b" \t")))
    return found


def _framing(found: Fields) -> tuple[int | None, bool]:
    """(length or None, chunked)."""
    lengths = [value for name, value in found if name.lower() == b"content-length"]
    codings = [value for name, value in found if name.lower() == b"transfer-encoding"]
    if codings:
        if lengths:
            raise BadMessage("Content-Length and Transfer-Encoding say different things")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise BadMessage("only the transfer encoding chunked is known", 501)
        return None, True
    if not lengths:
        return None, False
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise BadMessage("the Content-Length is malformed")
    return int(lengths[0]), False


def _passed_on(found: Fields) -> Fields:
    """Without what concerns one connection, and without what Connection says does."""
    named = {
        known_as(word.strip())
        for name, value in found
        if name.lower() == b"connection"
        for word in value.split(b",")
    }
    dropped = HOP_BY_HOP | named
    return [(name, value) for name, value in found if known_as(name) not in dropped]


def absolute(target: str) -> tuple[str, int, str]:
    """(host, port, path) of `http://…`. BadMessage."""
    scheme, _, rest = target.partition("://")
    if scheme.lower() != "http":
        raise BadMessage("a proxy is asked for http://…, or by CONNECT for https")
    ends = [rest.index(mark) for mark in "/?#" if mark in rest]
    end = min(ends, default=len(rest))
    host, port = authority(rest[:end], 80)
    path = rest[end:]
    return host, port, path if path.startswith("/") else "/" + path


def authority(text: str, default: int | None) -> tuple[str, int]:
    """(host, port) of `HOST:PORT`. BadMessage."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, "" if default is None else str(default)
    try:
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
            raise ValueError
        return hostname(host), int(port)
    except ValueError:
        raise BadMessage(f"{text[:200]!a} is not a host and a port") from None


def check_host(request: Request, host: str, port: int) -> None:
    """BadMessage when the Host header names another one than the request is for."""
    if request.host and authority(request.host, port) != (host, port):
        raise BadMessage("the Host header names another host than the request is for")
