"""A strict reader of tar archives, plain or compressed by gzip, as a stream.

It knows what GNU tar, BSD tar, Python and `git archive` write for files and folders: ustar, pax headers and
GNU's long names. Links, devices, sparse files and everything else are refused, and so is a header that does
not say what it should: nothing is guessed, repaired or skipped.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator

from executor.models import SourceLimits
from executor.skills.sources.members import LIMITS, Member, bounded, refused

BLOCK = 512
MAX_HEADER = 1 << 20  # bytes of one pax header or long name; real ones hold a path and some attributes
_PIECE = 1 << 16
_FILES = (b"0", b"\0")
_KINDS = {
    b"1": "a hard link",
    b"2": "a link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
    b"7": "a contiguous file",
    b"S": "a sparse file",
    b"K": "a link",
    b"M": "a part of a file",
    b"D": "a folder with a list",
    b"V": "a name of a volume",
}
_UTF8 = ("ISO-IR 10646 2000 UTF-8", "UTF-8")


class Tar:
    """An archive. `pieces`: gives the bytes of its file from the beginning; `packed`: the file's size."""

    def __init__(
        self, pieces: Callable[[], Iterable[bytes]], packed: int, *, zipped: bool, caps: SourceLimits = LIMITS
    ) -> None:
        self.commit = ""
        """The commit that `git archive` made it of, once the first member was read."""
        self._pieces = pieces
        self._packed = packed
        self._zipped = zipped
        self._caps = caps

    def members(self) -> Iterator[Member]:
        """The members in their order. SkillSourceError."""
        pieces = self._pieces()
        stream = _Stream(bounded(gunzipped(pieces), self._packed, self._caps) if self._zipped else pieces)
        pax: dict[str, str] = {}
        long_name: bytes | None = None
        headers = 0
        while True:
            block = stream.exactly(BLOCK)
            if not any(block):
                break
            kind, size, name, mode = _header(block)
            if kind in (b"x", b"g", b"L"):
                headers += 1
                if headers > self._caps.entries or size > MAX_HEADER:
                    raise refused(f"a header in front of {name[:100]!r} is too large or one of too many")
                content = stream.exactly(size)
                stream.exactly(-size % BLOCK)
                if kind == b"L":
                    long_name = content.rstrip(b"\0")
                elif kind == b"x":
                    pax = _pax(content)
                else:
                    self.commit = _global(_pax(content)).get("comment", "")
                continue
            if long_name is not None:
                name = long_name
            text = pax["path"] if "path" in pax else _text(name)
            size = _size(pax, size, text)
            pax, long_name = {}, None
            if kind == b"5" or (kind in _FILES and text.endswith("/")):
                if size:
                    raise refused(f"the folder {text!r} has content")
                yield Member(text)
            elif kind in _FILES:
                yield Member(text, stream.member(size), bool(mode & 0o111))
                stream.finish()
                stream.exactly(-size % BLOCK)
            else:
                raise refused(f"{text!r} is {_KINDS.get(kind, f'of the unknown kind {kind!r}')}")
        if pax or long_name is not None:
            raise refused("the archive ends behind a header")
        stream.only_zeros()


def gunzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What a gzip file holds; several streams in a row count as one, zeros at the end as nothing."""
    unpacker = None  # between two streams
    streams = 0
    try:
        for piece in pieces:
            rest = piece
            while rest:
                if unpacker is None:
                    rest = rest.lstrip(b"\0") if streams else rest
                    if not rest:
                        break
                    unpacker = zlib.decompressobj(zlib.MAX_WBITS + 16)
                    streams += 1
                yield unpacker.decompress(rest, _PIECE)
                rest = unpacker.unconsumed_tail
                if unpacker.eof:
                    rest, unpacker = unpacker.unused_data, None
        while unpacker is not None and (more := unpacker.decompress(b"", _PIECE)):
            yield more
    except zlib.error as error:
        raise refused(f"the gzip file is damaged, or something follows it: {error}") from None
    if not streams or (unpacker is not None and not unpacker.eof):
        raise refused("the gzip file is cut")


class _Stream:
    """Bytes that come in pieces, taken as asked for."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")  # slices of it copy nothing
        self._open = 0  # bytes of a member that nobody took yet

    def exactly(self, count: int) -> bytes:
        return b"".join(self._take(count))

    def member(self, count: int) -> Iterator[bytes]:
        self._open = count
        return self._opened()

    def _opened(self) -> Iterator[bytes]:
        while self._open:
            piece = next(self._take(self._open))
            self._open -= len(piece)
            yield piece

    def finish(self) -> None:
        """Pass over what is left of a member."""
        for _ in self._opened():
            pass

    def only_zeros(self) -> None:
        while self._rest or self._next():
            if any(self._rest):
                raise refused("bytes follow the end of the tar archive")
            self._rest = memoryview(b"")

    def _take(self, count: int) -> Iterator[bytes]:
        while count:
            if not self._rest and not self._next():
                raise refused("the tar archive is cut")
            piece, self._rest = bytes(self._rest[:count]), self._rest[count:]
            count -= len(piece)
            yield piece

    def _next(self) -> bool:
        self._rest = memoryview(next((piece for piece in self._pieces if piece), b""))
        return bool(self._rest)


def _header(block: bytes) -> tuple[bytes, int, bytes, int]:
    """(kind, size, name, mode)"""
    stated = _number(block[148:156], "checksum")
    blanked = block[:148] + b" " * 8 + block[156:]
    if stated != sum(blanked) and stated != sum(byte - 256 if byte > 127 else byte for byte in blanked):
        raise refused("a header of the tar archive is damaged, or it is no tar archive")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and (prefix := block[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    return block[156:157], _number(block[124:136], "size"), name, _number(block[100:108], "mode")


def _number(field: bytes, what: str) -> int:
    if field[0] & 0x80:  # GNU's form of large numbers
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40 or value > 1 << 62:
            raise refused(f"a {what} in the tar archive is damaged")
        return value
    text = field.split(b"\0", 1)[0].strip()
    if text.strip(b"01234567"):
        raise refused(f"a {what} in the tar archive is damaged")
    return int(text or b"0", 8)


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise refused(f"the name {name[:100]!r} is not UTF-8") from None


def _pax(content: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    while content:
        length, blank, _ = content.partition(b" ")
        if not blank or not length.isdigit() or len(length) > 7:
            raise refused("a pax header is damaged")
        record, content = content[: int(length)], content[int(length) :]
        key, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if len(record) != int(length) or not record.endswith(b"\n") or not equals or not key:
            raise refused("a pax header is damaged")
        if key.startswith(b"GNU.sparse."):
            raise refused("it holds a sparse file")
        if key in (b"path", b"size", b"comment", b"hdrcharset"):
            found[key.decode()] = _text(value)
    if found.get("hdrcharset", _UTF8[0]) not in _UTF8:
        raise refused(f"its names are in {found['hdrcharset'][:40]!r}; UTF-8 is read")
    return found


def _global(pax: dict[str, str]) -> dict[str, str]:
    if "path" in pax or "size" in pax:
        raise refused("a header says of all members what can be said of one")
    return pax


def _size(pax: dict[str, str], size: int, name: str) -> int:
    if "size" not in pax:
        return size
    text = pax["size"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise refused(f"the size of {name!r} is damaged")
    if size not in (0, int(text)):
        raise refused(f"{name!r} has two sizes")
    return int(text)
