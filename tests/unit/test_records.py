"""Files as records: what is packed comes out again, and nothing else ever does."""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.guest.records import (
    CHUNKED,
    FOLDER,
    LINK,
    MAX_CHUNK,
    MAX_NAME,
    MISSING,
    OTHER,
    REGULAR,
    ROOT,
    Chunk,
    Record,
    RecordError,
    RecordReader,
    Whole,
    check_relative,
    join_names,
    pack_chunk,
    pack_end,
    pack_file,
    pack_record,
    split_names,
)

SOAK = os.environ.get("EXECUTOR_SOAK") == "1"
pytestmark = pytest.mark.timeout(7200 if SOAK else 120)
Entry = tuple[int, bytes, int, int, int, "bytes | None", int]  # …, content, errno


def examples(usual: int) -> settings:
    return settings(
        max_examples=usual * 100 if SOAK else usual,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def cut(stream: bytes, points: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(point % (len(stream) + 1) for point in points), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def pack(entries: list[Entry]) -> bytes:
    out = b""
    for kind, name, mode, size, mtime, content, error in entries:
        out += pack_record(kind, name, mode, size, mtime, content is not None)
        if content is not None:
            for at in range(0, len(content), 7):
                out += pack_chunk(content[at : at + 7])
            out += pack_end(error)
    return out


def gather(items: Iterable[Any]) -> list[Entry]:
    """Items back as entries, whatever the pieces of content were."""
    found: list[list[Any]] = []
    for item in items:
        if isinstance(item, Record):
            content = b"" if item.chunked else None
            found.append([item.kind, item.name, item.mode, item.size, item.mtime_ns, content, 0])
        elif isinstance(item, Chunk):
            found[-1][5] += item
        else:
            found[-1][6] = item.error
    return [tuple(entry) for entry in found]


numbers = st.integers(0, 2**64 - 1)
times = st.integers(0, 2**63 - 1)
plain = st.tuples(
    st.sampled_from([REGULAR, FOLDER, LINK, OTHER, ROOT, MISSING]),
    st.binary(min_size=1, max_size=40),
    st.integers(0, 2**32 - 1),
    numbers,
    times,
    st.none(),
    st.just(0),
)
chunked = st.tuples(
    st.sampled_from([REGULAR, LINK]),
    st.binary(min_size=1, max_size=40),
    st.integers(0, 2**32 - 1),
    numbers,
    times,
    st.binary(max_size=40),
    st.integers(0, 4095),
)


def test_golden_bytes() -> None:
    assert pack_file(b"a/b", b"hi", 0o755).hex() == (
        "01" "01" "0003" "000001ed" "0000000000000002" "0000000000000000"
        + b"a/b".hex() + "00000002" + b"hi".hex() + "00000000"
    )  # fmt: skip
    assert pack_file(b"e", b"", 0o644).hex() == (
        "01" "01" "0001" "000001a4" "0000000000000000" "0000000000000000" "65" "00000000"
    )  # fmt: skip
    assert pack_record(MISSING, b"x", 2).hex() == "0600000100000002" + "00" * 16 + "78"
    assert pack_end(5).hex() == "ffffffff00000005"
    # A file may claim to be of the year 3000: its time is the latest that can be said.
    assert pack_record(MISSING, b"x", 2, 0, 2**63) == pack_record(MISSING, b"x", 2, 0, 2**63 - 1)


@examples(200)
@given(st.lists(plain | chunked, max_size=8), st.lists(st.integers(0, 2**32), max_size=20))
def test_round_trip_under_any_split(entries: list[Entry], points: list[int]) -> None:
    reader = RecordReader()
    items = [item for piece in cut(pack(entries), points) for item in reader.feed(piece)]
    assert gather(items) == entries
    assert reader.idle


def test_content_is_handed_on_as_it_comes() -> None:
    reader = RecordReader()
    list(reader.feed(pack_record(REGULAR, b"f", size=9, chunked=True) + struct.pack(">I", 6) + b"ab"))
    assert list(reader.feed(b"cd")) == [b"cd"]
    assert len(reader._buffer) == 0
    assert not reader.idle
    (rest, whole) = reader.feed(b"ef" + pack_end())
    assert rest == b"ef"
    assert isinstance(whole, Whole)
    assert whole.error == 0
    assert reader.idle


def test_a_channel_may_end_only_between_records() -> None:
    stream = pack_file(b"name", b"content", 0o644)
    for length in range(len(stream) + 1):
        reader = RecordReader()
        list(reader.feed(stream[:length]))
        assert reader.idle == (length in (0, len(stream)))


def head(kind: int, flags: int, length: int) -> bytes:
    return struct.pack(">BBHIQQ", kind, flags, length, 0, 0, 0)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (head(0, 0, 1), "kind 0, flags 0, name of 1 bytes"),
        (head(7, 0, 1), "kind 7, flags 0, name of 1 bytes"),
        (head(255, 255, 65535), "kind 255, flags 255, name of 65535 bytes"),
        (head(REGULAR, 2, 1), "kind 1, flags 2, name of 1 bytes"),
        (head(REGULAR, 0, 0), "kind 1, flags 0, name of 0 bytes"),
        (head(REGULAR, 0, MAX_NAME + 1), "kind 1, flags 0, name of 4097 bytes"),
        (head(FOLDER, CHUNKED, 1), "content for kind 2"),
        (head(OTHER, CHUNKED, 1), "content for kind 4"),
        (head(ROOT, CHUNKED, 1), "content for kind 5"),
        (head(MISSING, CHUNKED, 1), "content for kind 6"),
        (head(REGULAR, CHUNKED, 1) + b"n" + struct.pack(">I", MAX_CHUNK + 1), "chunk of 1048577 bytes"),
        (head(REGULAR, CHUNKED, 1) + b"n" + b"\xff\xff\xff\xfe", "chunk of 4294967294 bytes"),
        (head(REGULAR, CHUNKED, 1) + b"n" + b"\xff\xff\xff\xff\0\0\0\0", "errno 0"),
        (head(REGULAR, CHUNKED, 1) + b"n" + b"\xff\xff\xff\xff\0\0\x10\0", "errno 4096"),
    ],
)
def test_refused_records(stream: bytes, message: str) -> None:
    """A bad header is refused when it is there, before its name or its content comes."""
    with pytest.raises(RecordError) as caught:
        list(RecordReader().feed(stream))
    assert str(caught.value) == message
    reader = RecordReader()
    with pytest.raises(RecordError) as split:
        for index in range(len(stream)):
            list(reader.feed(stream[index : index + 1]))
    assert str(split.value) == message


def test_the_longest_name_and_chunk_are_accepted() -> None:
    name, content = b"n" * MAX_NAME, b"c" * MAX_CHUNK
    reader = RecordReader()
    assert gather(reader.feed(pack_file(name, content, 0))) == [(REGULAR, name, 0, MAX_CHUNK, 0, content, 0)]


@examples(300)
@given(
    st.lists(plain | chunked, min_size=1, max_size=5),
    st.integers(0, 2**32),
    st.lists(st.integers(0, 2**32), max_size=6),
)
def test_any_mutation_gives_items_or_a_record_error(
    entries: list[Entry], seed: int, points: list[int]
) -> None:
    chance = random.Random(seed)
    raw = bytearray(pack(entries))
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(raw) + 1)
        how = chance.choice(["flip", "insert", "delete", "truncate", "duplicate"])
        if how == "flip" and at < len(raw):
            raw[at] ^= 1 << chance.randrange(8)
        elif how == "insert":
            raw[at:at] = chance.randbytes(chance.randrange(1, 30))
        elif how == "delete":
            del raw[at : at + chance.randrange(1, 30)]
        elif how == "truncate":
            del raw[at:]
        elif how == "duplicate":
            raw[at:at] = raw[: chance.randrange(len(raw) + 1)]
    results = []
    for pieces in ([bytes(raw)], cut(bytes(raw), points)):
        reader, items, error = RecordReader(), [], ""
        try:
            for piece in pieces:
                for item in reader.feed(piece):
                    items.append(item)
                    assert isinstance(item, Record | Chunk | Whole)
                assert len(reader._buffer) < 24 + MAX_NAME
        except RecordError as problem:
            error = str(problem)
        results.append((gather(items), error))
    assert results[0] == results[1]


@examples(100)
@given(st.lists(st.binary(max_size=30).map(lambda name: name.replace(b"\0", b""))))
def test_names_round_trip(names: list[bytes]) -> None:
    assert split_names(join_names(names)) == names


@pytest.mark.parametrize(
    ("names", "blob"),
    [([], b""), ([b""], b"\0"), ([b"a", b"", b"\xff\n"], b"a\0\0\xff\n\0")],
)
def test_names_as_bytes(names: list[bytes], blob: bytes) -> None:
    assert join_names(names) == blob
    assert split_names(blob) == names


def test_a_nul_in_a_name_and_a_list_without_its_end_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a NUL byte cannot be part of .*: b'a.x00b'"):
        join_names([b"fine", b"a\0b"])
    with pytest.raises(RecordError, match="list of names without its end"):
        split_names(b"a\0b")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (b"a", (b"a",)),
        (b"a/b.c/d", (b"a", b"b.c", b"d")),
        (b"...", (b"...",)),
        (b"..a/b..", (b"..a", b"b..")),
        (b" /\n", (b" ", b"\n")),
        (b"\xff\xfe/-rf", (b"\xff\xfe", b"-rf")),
        (b"a\\..\\b", (b"a\\..\\b",)),
        (b"n" * 255, (b"n" * 255,)),
        (b"/".join([b"d"] * 64), (b"d",) * 64),
    ],
)
def test_plain_relative_names(name: bytes, parts: tuple[bytes, ...]) -> None:
    assert check_relative(name) == parts


@pytest.mark.parametrize(
    "name",
    [
        *(b"", b"/", b"/a", b"a/", b"a//b", b".", b"..", b"a/.", b"./a", b"a/../b", b"../a", b"a/.."),
        *(b"a\0", b"a/\0/b", b"n" * 256, b"a/" + b"n" * 256),
    ],
)
def test_unsafe_names(name: bytes) -> None:
    with pytest.raises(RecordError, match="unsafe name"):
        check_relative(name)


def test_too_many_levels() -> None:
    with pytest.raises(RecordError, match="more than 64 levels"):
        check_relative(b"/".join([b"d"] * 65))
