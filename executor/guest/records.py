"""Files as records inside a CONTENT channel: the one format for putting, getting and listing.

A record is a 24-byte big-endian header (kind, flags, length of name, mode, size, mtime in ns), the name as
raw bytes and, when `flags` has CHUNKED, the content: chunks of a u32 length and bytes, ended by a length
of 0 (whole) or 0xFFFFFFFF and a u32 errno (the source failed while it was being read). Names are bytes
because file names are. No tar: a tar reader is where such systems get broken into.

This file has no I/O. `RecordReader` takes bytes in pieces of any size, and holds at most one header, one
name and the piece it was given.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, NamedTuple, Tuple, Union

    class Record(NamedTuple):
        """Header and name of one entry."""

        kind: int
        mode: int
        size: int
        mtime_ns: int
        name: bytes
        chunked: bool

else:
    from collections import namedtuple

    Record = namedtuple("Record", "kind mode size mtime_ns name chunked")

REGULAR, FOLDER, LINK, OTHER, ROOT, MISSING = 1, 2, 3, 4, 5, 6
CHUNKED = 1
MAX_NAME = 4096  # PATH_MAX
PIECE = 60 * 1024  # content of a file at a time: it fits into one frame, with the header of its record
MAX_CHUNK = 1 << 20
LATEST = (1 << 63) - 1  # a file may claim to be of any time
FAILED = 0xFFFFFFFF

_RECORD = struct.Struct(">BBHIQQ")
_U32 = struct.Struct(">I")


class RecordError(Exception):
    """The bytes are not records of this format."""


Chunk = bytes  # a piece of the content of the record before it


class Whole:
    """The content of the record before it is complete; `error` is an errno when its source failed."""

    __slots__ = ("error",)

    def __init__(self, error: int = 0) -> None:
        self.error = error


def pack_record(
    kind: int, name: bytes, mode: int = 0, size: int = 0, mtime_ns: int = 0, chunked: bool = False
) -> bytes:
    """Header and name of one record."""
    flags = CHUNKED if chunked else 0
    return _RECORD.pack(kind, flags, len(name), mode, size, min(mtime_ns, LATEST)) + name


def pack_chunk(piece: bytes) -> bytes:
    """One piece of content, not empty."""
    return _U32.pack(len(piece)) + piece


def pack_end(error: int = 0) -> bytes:
    """The end of a record's content."""
    return _U32.pack(FAILED) + _U32.pack(error) if error else _U32.pack(0)


def pack_file(name: bytes, content: bytes, mode: int) -> bytes:
    """A whole small file."""
    head = pack_record(REGULAR, name, mode, len(content), 0, True)
    return b"".join((head, pack_chunk(content), pack_end())) if content else head + pack_end()


class RecordReader:
    """Bytes in, records and their content out."""

    def __init__(self) -> None:
        self._buffer = b""  # the beginning of a header, a name or a length
        self._content = False
        self._chunk_left = 0

    def feed(self, data: bytes) -> Iterator[Union[Record, Chunk, Whole]]:
        """Everything that the bytes so far complete. RecordError when they cannot be records."""
        buffer = self._buffer + data if self._buffer else bytes(data)
        at, size = 0, len(buffer)
        try:
            while True:
                if self._chunk_left:
                    if at == size:
                        return
                    take = min(self._chunk_left, size - at)
                    piece = buffer[at : at + take]
                    at += take
                    self._chunk_left -= take
                    yield piece
                elif self._content:
                    if size - at < 4:
                        return
                    (length,) = _U32.unpack_from(buffer, at)
                    if length == FAILED:
                        if size - at < 8:
                            return
                        (error,) = _U32.unpack_from(buffer, at + 4)
                        if not 0 < error < 4096:
                            raise RecordError("errno %d" % error)
                        at += 8
                        self._content = False
                        yield Whole(error)
                    elif length == 0:
                        at += 4
                        self._content = False
                        yield Whole()
                    elif length > MAX_CHUNK:
                        raise RecordError("chunk of %d bytes" % length)
                    else:
                        at += 4
                        self._chunk_left = length
                else:
                    if size - at < _RECORD.size:
                        return
                    kind, flags, length, mode, file_size, mtime = _RECORD.unpack_from(buffer, at)
                    if not REGULAR <= kind <= MISSING or flags & ~CHUNKED or not 0 < length <= MAX_NAME:
                        raise RecordError("kind %d, flags %d, name of %d bytes" % (kind, flags, length))
                    if flags and kind not in (REGULAR, LINK):
                        raise RecordError("content for kind %d" % kind)
                    end = at + _RECORD.size + length
                    if size < end:
                        return
                    name = buffer[at + _RECORD.size : end]
                    at = end
                    self._content = bool(flags)
                    yield Record(kind, mode, file_size, mtime, name, self._content)
        finally:
            self._buffer = buffer[at:]

    @property
    def idle(self) -> bool:
        """Between two records: the only place where a channel may end."""
        return not (self._buffer or self._content or self._chunk_left)


def split_names(blob: bytes) -> List[bytes]:
    """NUL-terminated byte strings, as sent on ARGS channels."""
    if blob and not blob.endswith(b"\0"):
        raise RecordError("list of names without its end")
    return blob.split(b"\0")[:-1]


def join_names(names: List[bytes]) -> bytes:
    """The reverse of `split_names`. ValueError for a name with a NUL."""
    blob = b"".join([name + b"\0" for name in names])
    if blob.count(b"\0") != len(names):
        wrong = next(name for name in names if b"\0" in name)
        raise ValueError("a NUL byte cannot be part of an argument, a variable or a path: %r" % wrong[:80])
    return blob


def check_relative(name: bytes) -> Tuple[bytes, ...]:
    """The components of a relative name from the other side; RecordError for anything but plain names."""
    parts = tuple(name.split(b"/"))
    if len(parts) > 64:
        raise RecordError("more than 64 levels")
    for part in parts:
        if not part or part in (b".", b"..") or len(part) > 255 or b"\0" in part:
            raise RecordError("unsafe name %r" % name[:80])
    return parts
