"""One collected file as a value: how its bytes are written, and what a cap does to them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.channel.files import Entry, Listing
from executor.errors import BadPathError, SandboxError
from executor.guest import records
from executor.models import OutputFile, OutputLimits
from executor.workspace.outputs import (
    HEAD,
    Collection,
    _names_skills,
    _Reading,
    collect,
    decode,
    encode,
    make_file,
    read_whole,
)

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


# -- collecting, over a sandbox that is a dictionary --------------------------------------------------


class Shelf:
    """As much of a channel as collecting uses: path → content, or the kind of what is no file."""

    def __init__(self, entries: dict[str, Any], roots: dict[bytes, bytes | int] | None = None) -> None:
        self.entries = {path.encode(): entry for path, entry in entries.items()}
        self.roots = roots or {}
        self.claims: dict[bytes, int] = {}  # sizes in the listing
        self.asked: list[bytes] = []

    async def list_files(self, paths: list[bytes], *, recursive: bool = True) -> Listing:
        listing = Listing([], {path: self.roots.get(path, path) for path in paths})
        for root in listing.roots.values():
            for path, entry in self.entries.items():
                if not isinstance(root, bytes) or not (path + b"/").startswith(root + b"/"):
                    continue
                if recursive or b"/" not in path[len(root) + 1 :]:
                    kind = entry if isinstance(entry, int) else records.REGULAR
                    size = self.claims.get(path, 1)
                    listing.entries.append(Entry(kind, path, root, 0o644, size, 0))
        return listing

    async def get_files(
        self, paths: list[bytes], *, limit: int, begin: Any, chunk: Any, end: Any, links: bool = False
    ) -> None:
        self.asked += paths
        for path in paths:
            content = self.entries[path]
            assert isinstance(content, bytes)
            if content == b"<gone>":
                begin(path, 2)
                continue
            begin(path, records.Record(records.REGULAR, 0o644, len(content), 0, path, True))
            for at in range(0, min(limit, len(content)), 3):
                chunk(content[at : at + 3])
            end(5 if content.endswith(b"<torn>") else 0)


def gather(shelf: Shelf, *patterns: str, limits: dict[str, int] | None = None, **more: Any) -> Collection:
    return asyncio.run(
        collect(
            shelf,  # type: ignore[arg-type]
            patterns,
            limits=OutputLimits(**(limits or {})),
            most_bytes=1000,
            **more,
        )
    )


def contents(found: Collection) -> dict[str, str | None]:
    return {file.path: file.content for file in found.files}


def test_a_file_that_several_globs_mean_comes_once() -> None:
    shelf = Shelf({"/workspace/out/a.txt": b"A", "/workspace/out/b/c.csv": b"C", "/workspace/work/x": b"X"})
    found = gather(shelf, "out/*.txt", "out/**", "$OUTPUT_DIR/a.txt", "${OUTPUT_DIR}/a.txt")
    assert contents(found) == {"out/a.txt": "A", "out/b/c.csv": "C"}
    assert [file.mime for file in found.files] == ["text/plain", "text/csv"]
    assert (found.limits_hit, found.warnings) == ([], [])
    assert shelf.asked == [b"/workspace/out/a.txt", b"/workspace/out/b/c.csv"]


def test_files_that_claim_more_than_the_disk_holds_are_named_and_not_read() -> None:
    shelf = Shelf({f"/workspace/out/{name}": b"x" for name in "abcd"})
    shelf.claims = {b"/workspace/out/a": 1000, b"/workspace/out/b": 1001, b"/workspace/out/c": 1000}
    found = gather(shelf, "out/*")
    assert shelf.asked == [b"/workspace/out/a", b"/workspace/out/c"]
    assert contents(found) == {"out/a": "x", "out/b": None, "out/c": "x", "out/d": None}
    assert [(file.size, bool(file.sha256), file.truncated) for file in found.files][1] == (1001, False, True)
    assert found.limits_hit == ["max_total_bytes"]
    assert found.warnings == [
        "2 files not read: all together they claim more than 2 times the session's disk (sparse files count "
        "with their full size)"
    ]
    # The same of what may have come with a skill: what is not compared is taken for changed.
    shelf = Shelf({"/skills/s/a": b"x", "/skills/s/b": b"x"})
    shelf.claims = {b"/skills/s/b": 2001}
    same = hashlib.sha256(b"x").hexdigest()
    found = gather(shelf, "**", skill="s", shipped=lambda path: same)
    assert (shelf.asked, list(contents(found))) == ([b"/skills/s/a"], ["skills/s/b"])


def test_files_that_grow_while_they_are_read_are_given_up() -> None:
    shelf = Shelf({f"/workspace/out/{name}": b"x" * 900 for name in "abc"})
    assert len(gather(shelf, "out/*").files) == 3
    shelf = Shelf({f"/workspace/out/{name}": b"x" * 900 for name in "abcd"})
    with pytest.raises(SandboxError, match="grew"):
        gather(shelf, "out/*")


def test_odd_names_are_exact() -> None:
    names = ["my file.csv", "ü\n1.txt", "a.txt", "b.txt", "c.txt", "-rf"]
    shelf = Shelf({f"/workspace/out/{name}": b"x" for name in names})
    assert list(contents(gather(shelf, "out/*"))) == sorted(f"out/{name}" for name in names)
    assert list(contents(gather(shelf, "out/my file.csv"))) == ["out/my file.csv"]
    assert list(contents(gather(shelf, "out/{a,b}.txt"))) == ["out/a.txt", "out/b.txt"]
    assert contents(gather(shelf, "$OUTPUT_DIRECTORY/a.txt")) == {}


def test_what_is_no_file_is_named_and_not_collected() -> None:
    shelf = Shelf(
        {
            "/workspace/out/dir": records.FOLDER,
            "/workspace/out/link": records.LINK,
            "/workspace/out/pipe": records.OTHER,
            "/workspace/out/z": b"Z",
        }
    )
    found = gather(shelf, "out/**", "out/*")
    assert contents(found) == {"out/z": "Z"}
    assert found.warnings == [
        "out/link is a link: not collected",
        "out/pipe is not a regular file: not collected",
    ]


def test_the_links_that_every_workspace_has_are_no_warning() -> None:
    shelf = Shelf({"/workspace/work/inputs": records.LINK, "/workspace/work/a": b"A"})
    found = gather(shelf, "work/**")
    assert (contents(found), found.warnings) == ({"work/a": "A"}, [])


def test_a_folder_that_is_missing_is_nothing_and_one_that_leads_out_a_warning() -> None:
    found = gather(Shelf({}, {b"/workspace/out": 2, b"/workspace/work": 18}), "out/**", "work/**")
    assert contents(found) == {}
    assert found.warnings == ["work: it leads out of the workspace: not collected"]


def test_a_folder_reached_through_a_link_is_matched_by_the_name_that_was_asked_for() -> None:
    shelf = Shelf({"/workspace/out/a": b"A"}, {b"/workspace/results": b"/workspace/out"})
    assert contents(gather(shelf, "results/**")) == {"out/a": "A"}


def test_no_more_files_than_asked_for() -> None:
    shelf = Shelf({f"/workspace/out/{number}": b"x" for number in range(5)})
    found = gather(shelf, "out/**", limits={"max_files": 2})
    assert list(contents(found)) == ["out/0", "out/1"]
    assert found.limits_hit == ["max_files"]
    assert found.warnings == ["5 files match; only the first 2 are returned"]


def test_no_more_content_than_asked_for() -> None:
    shelf = Shelf({"/workspace/out/a": b"aaaa", "/workspace/out/b": b"bbbb", "/workspace/out/c": b"c"})
    found = gather(shelf, "out/**", limits={"max_total_bytes": 6})
    assert contents(found) == {"out/a": "aaaa", "out/b": "bb", "out/c": ""}
    assert [(file.size, file.truncated) for file in found.files] == [(4, False), (4, True), (1, True)]
    assert found.files[1].sha256 == hashlib.sha256(b"bbbb").hexdigest()
    assert found.limits_hit == ["max_total_bytes"]


def test_a_file_over_the_inline_cap_does_not_use_up_the_total() -> None:
    shelf = Shelf({"/workspace/out/big": b"x" * 50, "/workspace/out/small": b"y" * 10})
    found = gather(shelf, "out/**", limits={"inline_bytes": 10, "max_total_bytes": 15})
    assert contents(found) == {"out/big": None, "out/small": "y" * 10}
    assert found.limits_hit == ["inline_bytes"]


def test_a_file_that_cannot_be_read_does_not_stop_the_others() -> None:
    shelf = Shelf({"/workspace/out/a": b"<gone>", "/workspace/out/b": b"x<torn>", "/workspace/out/c": b"C"})
    found = gather(shelf, "out/**")
    assert contents(found) == {"out/b": "x<torn>", "out/c": "C"}
    assert found.warnings == [
        "out/a could not be read: No such file or directory",
        "out/b could not be read to its end: Input/output error",
    ]


def test_what_a_skill_shipped_is_no_output_unless_it_is_asked_for() -> None:
    shelf = Shelf(
        {"/skills/s/old.txt": b"old", "/skills/s/edited.txt": b"new", "/skills/s/made.txt": b"made"}
    )
    shipped = {
        b"/skills/s/old.txt": hashlib.sha256(b"old").hexdigest(),
        b"/skills/s/edited.txt": hashlib.sha256(b"before").hexdigest(),
    }
    found = gather(shelf, "*.txt", skill="s", shipped=shipped.get)
    assert contents(found) == {"skills/s/edited.txt": "new", "skills/s/made.txt": "made"}
    named = gather(shelf, "skills/s/*.txt", shipped=shipped.get)
    assert list(contents(named)) == ["skills/s/edited.txt", "skills/s/made.txt", "skills/s/old.txt"]


def test_reading_one_file_again() -> None:
    shelf = Shelf({"/workspace/out/a": b"hello", "/workspace/out/gone": b"<gone>", "/workspace/b": b"<torn>"})
    taken: list[bytes] = []
    asyncio.run(read_whole(shelf, "out/a", most_bytes=100, take=taken.append))  # type: ignore[arg-type]
    assert b"".join(taken) == b"hello"
    with pytest.raises(BadPathError, match="cannot read 'out/gone': there is no such file"):
        asyncio.run(read_whole(shelf, "out/gone", most_bytes=100, take=taken.append))  # type: ignore[arg-type]
    with pytest.raises(SandboxError, match="cannot read 'b': Input/output error"):
        asyncio.run(read_whole(shelf, "b", most_bytes=100, take=taken.append))  # type: ignore[arg-type]
