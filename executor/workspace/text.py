"""Text from hostile bytes: decoding, cutting to a size, and making it safe to show.

A script chooses every byte of its output and of its file names. Nothing here raises on any of them, and
nothing here interprets them: escape sequences are shown, never obeyed.
"""

from __future__ import annotations

import codecs
import re
import traceback

# Bytes of a stranger's Python that are parsed in this process. A hostile text of 64 KiB takes a second in
# which nothing else of it runs; the time grows with the square of the length, and 4 MiB take gigabytes.
MAX_PARSED = 64 << 10

# What is shown escaped: all that moves a cursor, colours, hides, reorders or ends a line.
_ALWAYS = (
    r"\x00-\x08\x0b\x0c\x0e-\x1f"  # C0 without \t \n \r; holds NUL and ESC
    r"\x7f-\x9f"  # DEL and C1
    r"\u202a-\u202e\u2066-\u2069"  # bidirectional overrides, embeddings and isolates
    r"\U000e0000-\U000e007f"  # tags: ASCII that a model reads and nobody sees
    r"\ud800-\udfff"  # lone surrogates: bytes of names that are not UTF-8
)
_IN_TEXT = re.compile(rf"[{_ALWAYS}]|\r(?!\n)")
_IN_NAMES = re.compile(rf"[{_ALWAYS}\t\n\r\u2028\u2029]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}

_MARKER = "\n[... {:,} bytes omitted ...]\n"


def plural(number: int, noun: str) -> str:
    """A number of things: `1 file`, `2,000 files`, `0 processes`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def to_bytes(name: str) -> bytes:
    """The bytes of a name in a sandbox, where names are UTF-8 whatever the host's locale is; the reverse of
    `to_text`. UnicodeEncodeError for surrogates that stand for no byte.
    """
    return name.encode("utf-8", "surrogateescape")


def to_text(name: bytes) -> str:
    """A name in a sandbox as text; bytes that are not UTF-8 stand as lone surrogates."""
    return name.decode("utf-8", "surrogateescape")


def decode(data: bytes) -> str:
    """UTF-8; what is not becomes U+FFFD."""
    return data.decode("utf-8", errors="replace")


def clip(head: bytes, tail: bytes, total: int, limit: int) -> tuple[str, bool]:
    """(text, truncated) of a stream of `total` bytes of which the first and the last ones were kept.

    At most `limit` bytes of UTF-8, the marker included (a replacement character counts as the byte it
    stands for): the beginning, a marker that tells how many bytes are missing, the end. The beginning
    gets the odd byte. A character that a cut would split is left out. Where no marker fits: the beginning.
    """
    limit = max(0, limit)
    surplus = len(head) + len(tail) - total
    if surplus >= 0:  # nothing is missing; the tail may repeat what the head holds
        whole = head + tail[surplus:]
        if total <= limit:
            return decode(whole), False
        head = tail = whole
    marker = ""
    while True:
        # The number in the marker depends on the cuts, and the room for the cuts on its length.
        room = limit - len(marker)
        if marker and room < 2:
            return _beginning(head[:limit])[0], True
        end = min(room // 2, len(tail))
        begin = min(room - end, len(head))
        end = min(room - begin, len(tail))
        first, first_bytes = _beginning(head[:begin])
        last, last_bytes = _ending(tail[len(tail) - end :])
        exact = _MARKER.format(total - first_bytes - last_bytes)
        if len(exact) <= len(marker):
            return first + exact + last, True
        marker = exact


def torn_tail(data: bytes) -> int:
    """How many bytes at the end begin a character whose rest has not come yet: 0 to 3."""
    return len(data) - _beginning(data)[1]


def _beginning(data: bytes) -> tuple[str, int]:
    """The text without the torn character at its end, and how many bytes it took."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    return text, len(data) - len(decoder.getstate()[0])


def _ending(data: bytes) -> tuple[str, int]:
    """The text without the torn character at its beginning, and how many bytes it took."""
    torn = 0
    while torn < min(3, len(data)) and data[torn] & 0xC0 == 0x80:
        torn += 1
    return decode(data[torn:]), len(data) - torn


def printable(text: str) -> str:
    r"""For a terminal, a log or a model: control and reordering characters become visible, as `\x1b`.

    Line feeds and tabs stay, and so does a carriage return in front of a line feed.
    """
    return _IN_TEXT.sub(_escape, text)


def printable_name(name: str) -> str:
    """The same for a name: the result is one line."""
    return _IN_NAMES.sub(_escape, name)


def traced(error: BaseException) -> str:
    """An exception with its traceback, for a log: its message may hold what a script sent."""
    return printable("".join(traceback.format_exception(error)))


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return _SHORT.get(char) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
