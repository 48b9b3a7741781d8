"""A strict reader of zip archives.

Rules of this module:
1. It reads what ordinary writers write and refuses the rest: nothing is guessed, repaired or skipped.
2. The central directory, each local header and the bytes themselves have to say the same: names, sizes, CRC.
3. No two members share a byte of the archive, so what comes out is bounded by what the members are.
4. No size that the archive states is trusted before so many bytes were there.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from executor.models import SourceLimits
from executor.skills.sources.members import LIMITS, Member, beyond, refused

_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_ENCRYPTED, _DESCRIPTOR, _PATCH, _STRONG, _UTF8, _HIDDEN = 1 << 0, 1 << 3, 1 << 5, 1 << 6, 1 << 11, 1 << 13
_STORED, _DEFLATED = 0, 8
_FULL = 0xFFFFFFFF  # the value stands in the zip64 field
_ZIP64 = 1
_PIECE = 1 << 16


@dataclass(frozen=True)
class _Entry:
    name: str
    raw: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int
    offset: int

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")


def commit(data: mmap.mmap) -> str:
    """The commit that `git archive` made it of, else ''."""
    at = data.rfind(b"PK\5\6", max(0, len(data) - 22 - 40))
    text = data[at + 22 :] if at >= 0 else b""
    return text.decode() if len(text) == 40 and text.isalnum() else ""


def members(data: mmap.mmap, caps: SourceLimits = LIMITS) -> Iterator[Member]:
    """The members in the order of the directory. SkillSourceError."""
    entries, directory = _entries(data, caps)
    _apart(data, entries, directory)
    for entry in entries:
        if entry.is_folder:
            yield Member(entry.name)
        else:
            yield Member(entry.name, _content(data, entry), bool(entry.mode & 0o111))


def _entries(data: mmap.mmap, caps: SourceLimits) -> tuple[list[_Entry], int]:
    """The entries, and where the directory begins that lists them."""
    end = data.rfind(b"PK\5\6", max(0, len(data) - 22 - 0xFFFF))
    if end < 0 or len(data) < end + 22:
        raise refused("it is no zip archive, or the end of it is missing")
    _, disk, first, here, count, length, start, comment = _END.unpack(data[end : end + 22])
    if len(data) != end + 22 + comment:
        raise refused("bytes follow the end of the zip archive")
    if (disk, first) != (0, 0) or here != count:
        raise refused("it is one part of a zip archive of several")
    if count > caps.entries:
        raise beyond(f"it has more than {caps.entries:,} entries", "entries")
    if start + length != end:
        raise refused("the zip archive's directory is not where its end says")
    found = []
    at = start
    for _ in range(count):
        entry, at = _central(data, at, end)
        found.append(entry)
    if at != end:
        raise refused("the zip archive's directory has more entries than its end says")
    return found, start


def _central(data: mmap.mmap, at: int, end: int) -> tuple[_Entry, int]:
    if at + _CENTRAL.size > end:
        raise refused("the zip archive's directory is cut")
    head = _CENTRAL.unpack(data[at : at + _CENTRAL.size])
    signature, _made, _needs, flags, method, _time, _date, crc, packed, size = head[:10]
    name_length, extra_length, comment_length, disk, _internal, external, offset = head[10:]
    after = at + _CENTRAL.size + name_length + extra_length + comment_length
    if signature != b"PK\1\2" or after > end:
        raise refused("the zip archive's directory is damaged")
    raw = data[at + _CENTRAL.size : at + _CENTRAL.size + name_length]
    name = _name(raw, flags)
    extra = data[at + _CENTRAL.size + name_length : at + _CENTRAL.size + name_length + extra_length]
    size, packed, offset = _wide(extra, (size, packed, offset), name)
    mode = external >> 16
    _check(name, flags, method, mode, disk)
    if name.endswith("/") and size:
        raise refused(f"the folder {name!r} has content")
    return _Entry(name, raw, flags, method, crc, packed, size, mode, offset), after


def _check(name: str, flags: int, method: int, mode: int, disk: int) -> None:
    kind = stat.S_IFMT(mode)
    if flags & (_ENCRYPTED | _STRONG | _HIDDEN):
        raise refused(f"{name!r} is encrypted")
    if flags & _PATCH or disk:
        raise refused(f"{name!r} is not whole")
    if method not in (_STORED, _DEFLATED):
        raise refused(f"{name!r} is packed by method {method}; stored and deflated are read")
    if kind == stat.S_IFLNK:
        raise refused(f"{name!r} is a link")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > name.endswith("/"):
        raise refused(f"{name!r} is neither a file nor a folder")


def _name(raw: bytes, flags: int) -> str:
    try:
        return raw.decode()  # many writers do not set the flag for it
    except UnicodeDecodeError:
        if flags & _UTF8:
            raise refused(f"the name {raw[:100]!r} is not UTF-8") from None
        return raw.decode("cp437")


def _wide(extra: bytes, values: tuple[int, int, int], name: str) -> tuple[int, int, int]:
    """size, packed size and offset, each from the zip64 field where it does not fit into its own."""
    if _FULL not in values:
        return values
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == _ZIP64:
            field = extra[at + 4 : at + 4 + length]
            wide = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
            try:
                size, packed, offset = (next(wide) if value == _FULL else value for value in values)
            except (RuntimeError, ValueError):
                break
            return size, packed, offset
        at += 4 + length
    raise refused(f"the sizes of {name!r} are damaged")


def _local(data: mmap.mmap, entry: _Entry) -> int:
    """Where a member's bytes begin, after its local header was found to say the same as the directory."""
    at = entry.offset
    if at + _LOCAL.size > len(data) or data[at : at + 4] != b"PK\3\4":
        raise refused(f"{entry.name!r} is not where the directory says")
    head = _LOCAL.unpack(data[at : at + _LOCAL.size])
    _, _needs, flags, method, _time, _date, crc, packed, size, name_length, extra_length = head
    name = data[at + _LOCAL.size : at + _LOCAL.size + name_length]
    if name != entry.raw:
        raise refused(f"{entry.name!r} has another name in its own header")
    later = flags & _DESCRIPTOR
    same = all(
        mine in (theirs, _FULL) or (later and mine == 0)
        for mine, theirs in ((packed, entry.packed), (size, entry.size), (crc, entry.crc))
    )
    if not same or method != entry.method or (flags ^ entry.flags) & (_ENCRYPTED | _STRONG | _HIDDEN):
        raise refused(f"{entry.name!r} has another size, method or checksum in its own header")
    return int(at + _LOCAL.size + name_length + extra_length)


def _apart(data: mmap.mmap, entries: list[_Entry], directory: int) -> None:
    """Refuse members that share bytes with each other or with the directory."""
    last, before = 0, ""
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if entry.offset < last:
            raise refused(f"{before!r} and {entry.name!r} share bytes of the archive")
        last, before = _local(data, entry) + entry.packed, entry.name
        if last > directory:
            raise refused(f"{entry.name!r} is cut")


def _content(data: mmap.mmap, entry: _Entry) -> Iterator[bytes]:
    begin = _local(data, entry)
    size, crc = 0, 0
    for piece in _inflated(data, begin, entry):
        size += len(piece)
        crc = zlib.crc32(piece, crc)
        if size > entry.size:
            break
        yield piece
    if size != entry.size:
        raise refused(f"{entry.name!r} does not have the {entry.size:,} bytes that the archive says")
    if crc != entry.crc:
        raise refused(f"the checksum of {entry.name!r} is wrong")


def _inflated(data: mmap.mmap, begin: int, entry: _Entry) -> Iterator[bytes]:
    end = begin + entry.packed
    pieces = (data[at : min(at + _PIECE, end)] for at in range(begin, end, _PIECE))
    if entry.method == _STORED:
        yield from pieces
        return
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for piece in pieces:
            rest = piece
            while rest and not unpacker.eof:
                yield unpacker.decompress(rest, _PIECE)
                rest = unpacker.unconsumed_tail
            if rest or unpacker.unused_data:
                raise refused(f"bytes follow the end of {entry.name!r}")
        while not unpacker.eof and (more := unpacker.decompress(b"", _PIECE)):
            yield more
    except zlib.error as error:
        raise refused(f"{entry.name!r} is damaged: {error}") from None
    if not unpacker.eof:
        raise refused(f"{entry.name!r} is cut")


def opened(path: str | os.PathLike[str]) -> mmap.mmap:
    """The archive's bytes, mapped. The file must not be written to meanwhile."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
