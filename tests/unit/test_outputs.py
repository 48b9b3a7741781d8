"""One collected file as a value: how its bytes are written, and what a cap does to them."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.models import OutputFile, OutputLimits
from executor.workspace.outputs import HEAD, _names_skills, _Reading, decode, encode, make_file

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.mark.parametrize(
    ("data", "torn", "encoding", "content"),
    [
        (b"", False, "utf-8", ""),
        (b"a,b\r\n", False, "utf-8", "a,b\r\n"),
        ("é好😀".encode(), False, "utf-8", "é好😀"),
        (b"\xef\xbb\xbfx", False, "utf-8", "\ufeffx"),
        (b"a\0b", False, "base64", "YQBi"),
        (b"\xff", False, "base64", "/w=="),
        (b"caf\xe9", False, "base64", "Y2Fm6Q=="),
        (b"\xed\xa0\x80", False, "base64", "7aCA"),
        ("a😀".encode()[:-1], False, "base64", "YfCfmA=="),
        ("a😀".encode()[:-1], True, "utf-8", "a"),
        ("a😀".encode()[:-2], True, "utf-8", "a"),
        ("a😀".encode()[:-3], True, "utf-8", "a"),
        ("a😀".encode(), True, "utf-8", "a😀"),
        ("é".encode()[:1], True, "utf-8", ""),
        (b"abc\xff", True, "base64", "YWJj/w=="),  # no character begins like that
        (b"abc\xa9", True, "base64", "YWJjqQ=="),
        (b"\xffabc", True, "base64", "/2FiYw=="),
        (b"a\0\xc3", True, "base64", "YQDD"),
    ],
)
def test_encode(data: bytes, torn: bool, encoding: str, content: str) -> None:
    assert encode(data, torn=torn) == (encoding, content)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_every_byte_comes_back(data: bytes) -> None:
    encoding, content = encode(data)
    file = OutputFile(path="p", size=len(data), mime="m", sha256="", encoding=encoding, content=content)
    assert decode(OutputFile.model_validate_json(file.model_dump_json())) == data


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20), st.integers(0, 80))
def test_cut_text_stays_text(text: str, size: int) -> None:
    raw = text.replace("\0", "").encode()
    encoding, content = encode(raw[:size], torn=True)
    assert encoding == "utf-8"
    assert raw.startswith(content.encode())
    assert len(raw[:size]) - len(content.encode()) <= 3


@pytest.mark.parametrize(("content", "truncated"), [(None, False), (None, True), ("abc", True)])
def test_content_that_is_not_all_there(content: str | None, truncated: bool) -> None:
    file = OutputFile(path="p", size=9, mime="m", sha256="", content=content, truncated=truncated)
    assert decode(file) is None


def read(
    data: bytes, keep: int, name: bytes = b"/workspace/out/x.txt", **limits: int
) -> tuple[OutputFile, str]:
    reading = _Reading(keep)
    for at in range(0, len(data), 1000):
        reading.add(data[at : at + 1000])
    return make_file(name, reading, OutputLimits(**limits))


def test_a_whole_file() -> None:
    file, cut = read(b"hello", 100)
    assert cut == ""
    assert file == OutputFile(
        path="out/x.txt",
        size=5,
        mime="text/plain",
        sha256=hashlib.sha256(b"hello").hexdigest(),
        encoding="utf-8",
        content="hello",
    )


def test_a_picture_keeps_every_byte() -> None:
    file, cut = read(PNG, 1000, b"/skills/s/out/plot.png")
    assert cut == ""
    assert (file.path, file.mime, file.encoding) == ("skills/s/out/plot.png", "image/png", "base64")
    assert decode(file) == PNG


@pytest.mark.parametrize(
    ("size", "keep", "limits", "cut", "content", "truncated"),
    [
        (10, 10, {"inline_bytes": 10}, "", "x" * 10, False),
        (11, 10, {"inline_bytes": 10}, "inline_bytes", None, True),
        (11, 4, {"inline_bytes": 20}, "inline_bytes", "x" * 4, True),  # the total was used up
        (1024, 16, {"max_file_bytes": 16}, "max_file_bytes", "x" * 16, True),
        (16, 16, {"max_file_bytes": 16}, "", "x" * 16, False),
        (50, 40, {"max_file_bytes": 40, "inline_bytes": 10}, "max_file_bytes", "x" * 40, True),
        (5, 0, {"max_file_bytes": 0}, "max_file_bytes", "", True),
        (0, 0, {"max_file_bytes": 0}, "", "", False),
    ],
)
def test_caps(
    size: int, keep: int, limits: dict[str, int], cut: str, content: str | None, truncated: bool
) -> None:
    file, hit = read(b"x" * size, keep, **limits)
    assert hit == cut
    assert (file.size, file.content, file.truncated) == (size, content, truncated)
    assert file.sha256 == hashlib.sha256(b"x" * size).hexdigest()  # of the whole file
    assert file.encoding == "utf-8"


def test_a_character_on_the_cut_is_left_out() -> None:
    file, _ = read("ab😀cd".encode(), 5, max_file_bytes=5)
    assert (file.encoding, file.content, file.truncated) == ("utf-8", "ab", True)


def test_binary_is_cut_by_bytes() -> None:
    file, _ = read(PNG, 20, max_file_bytes=20)
    assert file.encoding == "base64"
    assert base64.b64decode(file.content or "") == PNG[:20]


def test_the_head_is_bounded() -> None:
    reading = _Reading(10)
    for _ in range(30):
        reading.add(b"y" * 1000)
    assert (len(reading.head), len(reading.kept), reading.size) == (HEAD, 10, 30_000)


def test_a_name_that_is_not_utf_8() -> None:
    file, _ = read(b"{}", 10, b"/workspace/out/\xff.json")
    assert file.path == "out/\udcff.json"
    assert file.mime == "application/json"


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("skills/**", True),
        ("./skills/x", True),
        ("/skills/s/*", True),
        ("/workspace/skills/*", True),
        ("$SKILLS_DIR/*", True),
        ("$SKILL_DIR/*", True),
        ("${SKILL_DIR}/*", True),
        ("out/**", False),
        ("**", False),
        ("work/skills/*", False),
    ],
)
def test_whether_a_pattern_names_the_skills(pattern: str, named: bool) -> None:
    assert _names_skills(pattern) is named
