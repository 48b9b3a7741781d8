"""Width and height of a picture, from the first bytes of it. Never decodes, never raises on hostile bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

Size = tuple[int, int]

_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the segments that hold the size
_SVG_TAG = re.compile(rb"<svg\b[^>]{0,4096}>")
_NUMBER = rb"\s*=\s*[\"']\s*([0-9.]+)(?:px)?\s*[\"']"
_VIEW_BOX = re.compile(
    rb"\bviewBox\s*=\s*[\"']\s*[-0-9.]+[\s,]+[-0-9.]+[\s,]+([0-9.]+)[\s,]+([0-9.]+)\s*[\"']"
)


def size(data: bytes) -> Size | None:
    """(width, height) in pixels; None when the bytes are no picture that is known here."""
    for begins, read in _READERS:
        if data.startswith(begins):
            try:
                return read(data)
            except (struct.error, IndexError, ValueError):
                return None
    return _svg(data)


def _png(data: bytes) -> Size:
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _gif(data: bytes) -> Size:
    width, height = struct.unpack("<HH", data[6:10])
    return width, height


def _bmp(data: bytes) -> Size:
    width, height = struct.unpack("<ii", data[18:26])
    return width, abs(height)


def _jpeg(data: bytes) -> Size | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:  # padding
            at += 1
            continue
        if kind in _JPEG_SIZES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
    return None


def _webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if data[8:12] != b"WEBP":
        return None
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack("<HH", data[26:30])
    return width & 0x3FFF, height & 0x3FFF


def _svg(data: bytes) -> Size | None:
    tag = _SVG_TAG.search(data[:65536])
    if tag is None:
        return None
    width, height = (re.search(rb"\b" + name + _NUMBER, tag[0]) for name in (b"width", b"height"))
    box = _VIEW_BOX.search(tag[0])
    try:
        if width and height:
            return round(float(width[1])), round(float(height[1]))
        return (round(float(box[1])), round(float(box[2]))) if box else None
    except ValueError:
        return None


_READERS: tuple[tuple[bytes, Callable[[bytes], Size | None]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"GIF8", _gif),
    (b"\xff\xd8", _jpeg),
    (b"RIFF", _webp),
    (b"BM", _bmp),
)
