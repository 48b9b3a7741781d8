"""Hostile bytes become text that is whole, bounded and safe to show."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.workspace.text import clip, decode, printable, printable_name

MARKER = re.compile(r"\n\[\.\.\. ([\d,]+) bytes omitted \.\.\.\]\n")
LONG = b"HEAD!" + b"x" * 80 + b"!TAIL"
WIDE = ("你" + "x" * 80 + "好").encode()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        ("é好".encode(), "é好"),
        (b"a\xffb", "a\ufffdb"),
        (b"\xe4\xbd", "\ufffd"),
        (b"\x00\r\n", "\x00\r\n"),
    ],
)
def test_decode(data: bytes, text: str) -> None:
    assert decode(data) == text


@pytest.mark.parametrize(
    ("data", "limit", "result"),
    [
        (b"", 0, ("", False)),
        (b"", 10, ("", False)),
        (b"abc", 3, ("abc", False)),
        (b"abc", 2, ("ab", True)),
        (b"abc", 0, ("", True)),
        (b"abc", -5, ("", True)),
        ("你abcdefghij".encode(), 2, ("", True)),
        ("你abcdefghij".encode(), 4, ("你a", True)),
        (LONG, 40, ("HEAD!x\n[... 78 bytes omitted ...]\nx!TAIL", True)),
        (LONG, 39, ("HEAD!x\n[... 79 bytes omitted ...]\n!TAIL", True)),
        (LONG, 38, ("HEAD!\n[... 80 bytes omitted ...]\n!TAIL", True)),
        (LONG, 36, ("HEAD\n[... 82 bytes omitted ...]\nTAIL", True)),
        (LONG, 30, ("H\n[... 88 bytes omitted ...]\nL", True)),
        (LONG, 29, (LONG[:29].decode(), True)),  # no room for both ends
        (LONG, 89, ("HEAD!" + "x" * 26 + "\n[... 29 bytes omitted ...]\n" + "x" * 25 + "!TAIL", True)),
        (LONG, 90, (LONG.decode(), False)),
        (WIDE, 28 + 6, ("你\n[... 80 bytes omitted ...]\n好", True)),
        (WIDE, 28 + 5, ("你\n[... 83 bytes omitted ...]\n", True)),  # 好 is torn, so it is left out
        (WIDE, 28 + 4, ("\n[... 86 bytes omitted ...]\n", True)),
        (b"a\xff" * 50, 32, ("a\ufffd\n[... 96 bytes omitted ...]\na\ufffd", True)),
        (b"x" * 1_234_600, 80, ("x" * 23 + "\n[... 1,234,555 bytes omitted ...]\n" + "x" * 22, True)),
    ],
)
def test_clip(data: bytes, limit: int, result: tuple[str, bool]) -> None:
    assert clip(data, data, len(data), limit) == result
    assert clip(data, b"", len(data), limit) == result
    assert clip(b"", data, len(data), limit) == result
    assert clip(data[:50], data[50:], len(data), limit) == result
    room = max(limit, 0)
    assert clip(data[: room + 3], data[-room - 3 :], len(data), limit) == result


def test_clip_counts_what_was_never_kept() -> None:
    assert clip(b"ab", b"yz", 1000, 1000) == ("ab\n[... 996 bytes omitted ...]\nyz", True)
    assert clip(b"abcd", b"wxyz", 100, 32) == ("ab\n[... 96 bytes omitted ...]\nyz", True)
    assert clip(b"a", b"w" * 50, 100, 34) == ("a\n[... 94 bytes omitted ...]\n" + "w" * 5, True)


def test_clip_when_the_count_gains_a_digit_because_a_torn_character_was_dropped() -> None:
    data = b"a" + "好".encode() * 50  # 151 bytes
    for limit in range(len(data)):
        text, truncated = clip(data, data, len(data), limit)
        assert truncated
        assert len(text.encode()) <= limit
        assert "\ufffd" not in text


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 320), st.integers(0, 300), st.integers(0, 300))
def test_clip_is_bounded_and_honest(data: bytes, limit: int, first: int, last: int) -> None:
    head, tail = data[:first], data[len(data) - min(last, len(data)) :]
    text, truncated = clip(head, tail, len(data), limit)
    text.encode()  # valid: no lone surrogates
    marker = MARKER.search(text)
    if len(head) + len(tail) >= len(data):
        assert truncated == (len(data) > limit)
    if not truncated:
        assert text == decode(data)
    elif marker and not MARKER.search(decode(data)):
        before, after = text[: marker.start()], text[marker.end() :]
        assert decode(data).startswith(before.rstrip("\ufffd"))
        assert decode(data).endswith(after.lstrip("\ufffd"))
        assert 0 < int(marker[1].replace(",", "")) <= len(data)


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(0, 250))
def test_clip_of_valid_text_stays_within_the_limit_and_valid(text: str, limit: int) -> None:
    data = text.encode("utf-8", "surrogatepass").decode("utf-8", "ignore").encode()
    clipped, truncated = clip(data, data, len(data), limit)
    assert len(clipped.encode()) <= max(limit, 0)
    assert truncated == (len(data) > limit)
    marker = MARKER.search(clipped)
    if marker and "omitted" not in text:
        kept = len(clipped.encode()) - len(marker[0])
        assert int(marker[1].replace(",", "")) == len(data) - kept
        assert data.decode().startswith(clipped[: marker.start()])
        assert data.decode().endswith(clipped[marker.end() :])


@pytest.mark.parametrize(
    ("text", "shown", "name"),
    [
        ("plain ü 好 🙂", "plain ü 好 🙂", "plain ü 好 🙂"),
        ("a\tb\nc", "a\tb\nc", "a\\tb\\nc"),
        ("a\r\nb\rc\r", "a\r\nb\\rc\\r", "a\\r\\nb\\rc\\r"),
        ("\r\r\n", "\\r\r\n", "\\r\\r\\n"),
        ("\x1b[31mred", "\\x1b[31mred", "\\x1b[31mred"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07", "\\x1b]52;c;aGk=\\x07"),
        ("\x00\x7f\x80\x9b", "\\x00\\x7f\\x80\\x9b", "\\x00\\x7f\\x80\\x9b"),
        ("a\u202etxt.exe", "a\\u202etxt.exe", "a\\u202etxt.exe"),
        ("\u2066\u2069", "\\u2066\\u2069", "\\u2066\\u2069"),
        ("x\udcff", "x\\udcff", "x\\udcff"),
        ("back\\slash", "back\\slash", "back\\slash"),
    ],
)
def test_printable(text: str, shown: str, name: str) -> None:
    assert printable(text) == shown
    assert printable_name(text) == name


FORBIDDEN = {
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
}
HOSTILE = st.text(
    st.one_of(st.characters(codec=None), st.sampled_from(sorted(map(chr, FORBIDDEN)))), max_size=60
)


@settings(deadline=None)
@given(HOSTILE)
def test_nothing_forbidden_is_left(text: str) -> None:
    shown = printable(text)
    assert not {ord(c) for c in shown.replace("\r\n", "\n")} & (FORBIDDEN - {0x09, 0x0A})
    assert not {ord(c) for c in printable_name(text)} & FORBIDDEN
    assert printable(shown) == shown
    shown.encode()
