"""A skill's copy: mended, closed in itself, and the same digest for the same content anywhere."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from executor import places
from executor.errors import BadPathError, SkillUnreadableError
from executor.guest.records import FOLDER, LINK, REGULAR, Chunk, Record, RecordReader
from executor.workspace import staging
from executor.workspace.staging import Folder, Item, Stager, bytes_records, file_records, mend_script

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="links, modes and names of POSIX systems"),
    pytest.mark.timeout(60),
]
PLENTY = 1 << 30
OWN_LINKS = {
    b"out": (LINK, b"/workspace/out"),
    b"work": (LINK, b"/workspace/work"),
    b"inputs": (LINK, b"/workspace/inputs"),
}
BOM = b"\xef\xbb\xbf"


def write(path: Path, content: bytes = b"x", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def skill(path: Path, most_bytes: int = PLENTY) -> Folder:
    return Stager().skill(path, most_bytes=most_bytes)


def parsed(pieces: Iterable[bytes]) -> dict[bytes, tuple[int, int, bytes]]:
    """What a guest reads: name → kind, mode, content."""
    reader = RecordReader()
    found: dict[bytes, tuple[int, int, bytes]] = {}
    name = b""
    for piece in pieces:
        for item in reader.feed(piece):
            if isinstance(item, Record):
                name = item.name
                assert name not in found
                found[name] = (item.kind, item.mode, b"")
            elif isinstance(item, Chunk):
                kind, mode, content = found[name]
                found[name] = (kind, mode, content + item)
            else:
                assert item.error == 0
    assert reader.idle
    return found


# -- mending ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "mended"),
    [
        (b"a.sh", b"#!/bin/bash\necho a\n", b"#!/bin/bash\necho a\n"),
        (b"a.sh", b"#!/bin/bash\r\necho a\r\n\r\nx", b"#!/bin/bash\necho a\n\nx"),
        (b"a", b"#!/bin/sh\r\ncat <<E\r\nE\r\n", b"#!/bin/sh\ncat <<E\nE\n"),
        (b"a", b"#!/usr/bin/env bash\r\na\r\n", b"#!/usr/bin/env bash\na\n"),
        (b"a", b"#!/usr/bin/env -S zsh -f\r\na\r\n", b"#!/usr/bin/env -S zsh -f\na\n"),
        (b"a", BOM + b"#!/bin/dash\r\na\r\n", b"#!/bin/dash\na\n"),
        (b"a.SH", b"echo a\r\n", b"echo a\n"),
        (b"lib.bash", BOM + b"f() { :; }\r\n", b"f() { :; }\n"),
        (b"a.sh", b"a\rb\r\n", b"a\rb\n"),  # a CR inside a line is somebody's own
        (b"a.py", b"#!/usr/bin/env python3\r\nprint('a')\r\n", b"#!/usr/bin/env python3\nprint('a')\r\n"),
        (b"a.py", BOM + b"#!/usr/bin/python3\nx\n", b"#!/usr/bin/python3\nx\n"),
        (b"a.sh", b"#!/usr/bin/env python3\r\nx\r\n", b"#!/usr/bin/env python3\nx\r\n"),
        (b"a.js", b"#!/usr/bin/env node\r\nx;\r\n", b"#!/usr/bin/env node\nx;\r\n"),
        (b"a.fish", b"#!/usr/bin/fish\r\nx\r\n", b"#!/usr/bin/fish\nx\r\n"),
        (b"a", b"#!/bin/true", b"#!/bin/true"),
        (b"a.sh", b"", b""),
        (b"a.sh", BOM, b""),
    ],
)
def test_scripts_are_mended(name: bytes, content: bytes, mended: bytes) -> None:
    assert mend_script(name, content) == mended


def test_only_scripts_are_mended_and_only_in_the_copy(tmp_path: Path) -> None:
    crlf = b"#!/bin/sh\r\necho\r\n"
    script = write(tmp_path / "scripts/run", crlf)
    write(tmp_path / "scripts/plain.sh", b"a\r\n")
    write(tmp_path / "data.csv", BOM + b"a,b\r\n")
    write(tmp_path / "module.py", BOM + b"x = 1\r\n")
    write(tmp_path / "tool", b"\x7fELF", 0o755)
    write(tmp_path / "odd", b"secret", 0o6700)
    assert parsed(skill(tmp_path).records()) == {
        b"data.csv": (REGULAR, 0o644, BOM + b"a,b\r\n"),
        b"module.py": (REGULAR, 0o644, BOM + b"x = 1\r\n"),
        b"odd": (REGULAR, 0o755, b"secret"),
        b"scripts": (FOLDER, 0o755, b""),
        b"scripts/plain.sh": (REGULAR, 0o644, b"a\n"),
        b"scripts/run": (REGULAR, 0o755, b"#!/bin/sh\necho\n"),
        b"tool": (REGULAR, 0o755, b"\x7fELF"),
        **{name: (LINK, 0o777, target) for name, (_, target) in OWN_LINKS.items()},
    }
    assert script.read_bytes() == crlf
    assert stat.S_IMODE(script.stat().st_mode) == 0o644


def test_the_manifest_has_the_hashes_of_the_mended_files(tmp_path: Path) -> None:
    write(tmp_path / "run.sh", BOM + b"#!/bin/sh\r\n")
    write(tmp_path / "a/b", b"data")
    (tmp_path / "l").symlink_to("a/b")
    folder = skill(tmp_path)
    assert folder.manifest() == {
        b"run.sh": hashlib.sha256(b"#!/bin/sh\n").hexdigest(),
        b"a/b": hashlib.sha256(b"data").hexdigest(),
    }
    assert folder.size == 10 + 4
    assert folder.warnings == []


def test_a_long_script_is_mended_to_its_end(tmp_path: Path) -> None:
    write(tmp_path / "long.sh", b"#!/bin/sh\r\n" + b"echo\r\n" * 50_000)
    found = parsed(skill(tmp_path).records())
    assert found[b"long.sh"] == (REGULAR, 0o755, b"#!/bin/sh\n" + b"echo\n" * 50_000)


def test_inputs_are_left_as_they_are(tmp_path: Path) -> None:
    write(tmp_path / "a.sh", BOM + b"#!/bin/sh\r\n")
    write(tmp_path / "b", b"y", 0o700)
    folder = Stager().inputs(tmp_path, most_bytes=PLENTY)
    assert parsed(folder.records()) == {
        b"a.sh": (REGULAR, 0o644, BOM + b"#!/bin/sh\r\n"),
        b"b": (REGULAR, 0o755, b"y"),
    }


# -- links --------------------------------------------------------------------------------------------


def test_links_that_stay_inside_are_kept_as_relative_ones(tmp_path: Path) -> None:
    root = tmp_path / "skill"
    write(root / "a/file")
    for name, target in {
        "same": "a/file",
        "a/up": "../a/file",
        "a/absolute": str(root / "a/file"),
        "folder": "a",
        "a/top": "..",
        "self": ".",
        "chain": "same",
        "round": "../skill/a/./file",
        "through": "folder/file",
    }.items():
        (root / name).symlink_to(target)
    folder = skill(root)
    links = {item.name: item.target for item in folder.items if item.kind == LINK}
    assert {name: target for name, target in links.items() if name not in OWN_LINKS} == {
        b"same": b"a/file",
        b"a/up": b"file",
        b"a/absolute": b"file",
        b"folder": b"a",
        b"a/top": b"..",
        b"self": b".",
        b"chain": b"a/file",
        b"round": b"a/file",
        b"through": b"a/file",
    }
    assert folder.warnings == []
    assert [item.name for item in folder.items if item.kind == REGULAR] == [
        b"a/file"
    ]  # once, by its own name


@pytest.mark.parametrize(
    "target",
    [
        *("../secret", "/etc/passwd", "{outside}/secret", "missing", "a/../../secret", "..", "../skill-2/x"),
        *("out-of-here/secret", "loop", ".git/config", ".git", "a/../.git/config", "/proc/self/environ"),
    ],
)
def test_links_that_lead_out_or_nowhere_are_left_out(tmp_path: Path, target: str) -> None:
    root = tmp_path / "skill"
    write(root / "a/file")
    write(root / ".git/config", b"[core]")
    write(tmp_path / "secret")
    write(tmp_path / "skill-2/x")
    (root / "out-of-here").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    (root / "link").symlink_to(target.format(outside=tmp_path))
    folder = skill(root)
    assert sorted(item.name for item in folder.items) == [b"a", b"a/file", b"inputs", b"out", b"work"]
    message = "the link {!r} leads out of the folder or nowhere: left out"
    assert folder.warnings == [message.format(name) for name in ("link", "loop", "out-of-here")]


def test_a_root_that_is_a_link_itself(tmp_path: Path) -> None:
    write(tmp_path / "real/a/file")
    (tmp_path / "real/l").symlink_to(tmp_path / "link/a/file")
    (tmp_path / "link").symlink_to("real")
    assert skill(tmp_path / "link").digest == skill(tmp_path / "real").digest
    assert parsed(skill(tmp_path / "link").records())[b"l"] == (LINK, 0o777, b"a/file")


@pytest.mark.parametrize("name", ["out", "work", "inputs"])
def test_a_skill_keeps_its_own_folders(tmp_path: Path, name: str) -> None:
    write(tmp_path / name / "template.txt", b"mine")
    folder = skill(tmp_path)
    found = parsed(folder.records())
    assert found[name.encode()] == (FOLDER, 0o755, b"")
    assert found[name.encode() + b"/template.txt"] == (REGULAR, 0o644, b"mine")
    assert {link for link in OWN_LINKS if found[link][0] == LINK} == set(OWN_LINKS) - {name.encode()}
    assert folder.warnings == [f"the skill has its own {name}/: it is kept, and no link to /workspace/{name}"]


def test_an_empty_folder_of_that_name_is_its_own_too(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert parsed(skill(tmp_path).records())[b"out"] == (FOLDER, 0o755, b"")


# -- what is left out ---------------------------------------------------------------------------------


def test_special_files_are_left_out_without_waiting_for_them(tmp_path: Path) -> None:
    write(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        before = os.getcwd()
        os.chdir(tmp_path)  # the whole path may be too long for a socket's name
        try:
            server.bind("socket")
        finally:
            os.chdir(before)
        (tmp_path / "link").symlink_to("/dev/null")
        folder = skill(tmp_path)
    assert sorted(item.name for item in folder.items) == [b"file", b"inputs", b"out", b"work"]
    assert folder.warnings == [
        "the link 'link' leads out of the folder or nowhere: left out",
        "'pipe' is not a file, a folder or a link: left out",
        "'socket' is not a file, a folder or a link: left out",
    ]


def test_a_file_that_became_something_else_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "file")
    info = (tmp_path / "file").stat()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadPathError, match="pipe is not a regular file any more"):
        staging._read_file(str(tmp_path / "pipe"), b"pipe", info, True)
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic links"):
        staging._read_file(str(tmp_path / "link"), b"link", info, True)
    with pytest.raises(OSError, match="symbolic links"):
        list(file_records(b"link", tmp_path / "link"))


def test_repositories_are_left_out(tmp_path: Path) -> None:
    for name in (".git/config", "a/.hg/x", ".svn/y", ".github/z", ".gitignore"):
        write(tmp_path / name)
    names = {item.name for item in skill(tmp_path).items} - set(OWN_LINKS)
    assert names == {b".github", b".github/z", b".gitignore", b"a"}


def test_trees_too_deep_are_cut_with_a_warning(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 70)
    deep.mkdir(parents=True)
    write(tmp_path.joinpath(*["d"] * 61, "kept"))
    write(deep / "lost")
    folder = skill(tmp_path)
    names = {item.name for item in folder.items}
    assert b"/".join([b"d"] * 61) + b"/kept" in names
    assert b"/".join([b"d"] * 62) not in names
    assert max(name.count(b"/") for name in names) == 61
    assert folder.warnings == [f"'{'/'.join(['d'] * 62)}' is too deep: left out"]


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path)
    os.mkdir(raw + b"/\xff")
    with open(raw + b"/\xff/a\n\xfe b", "wb") as file:
        file.write(b"data")
    os.symlink(b"\xff/a\n\xfe b", raw + b"/l\x80")
    os.symlink(b"/nowhere", raw + b"/bad\x81")
    folder = skill(tmp_path)
    found = parsed(folder.records())
    assert found[b"\xff/a\n\xfe b"] == (REGULAR, 0o644, b"data")
    assert found[b"l\x80"] == (LINK, 0o777, b"\xff/a\n\xfe b")
    assert folder.warnings == ["the link 'bad\\udc81' leads out of the folder or nowhere: left out"]


# -- too much -----------------------------------------------------------------------------------------


def test_a_skill_that_is_too_large(tmp_path: Path) -> None:
    write(tmp_path / "a", b"x" * 60)
    write(tmp_path / "b", b"x" * 40)
    assert skill(tmp_path, 100).size == 100
    for read in (Stager().skill, Stager().inputs):
        kind = SkillUnreadableError if read.__name__ == "skill" else BadPathError
        with pytest.raises(kind) as caught:
            read(tmp_path, most_bytes=99)
        assert caught.value.message == f"{tmp_path} is larger than the 99 bytes that this session has for it"
        assert caught.value.hint.startswith("Raise Limits(disk=")


@pytest.mark.parametrize("name", ["data.bin", "huge.sh"])
def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    with open(tmp_path / name, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SkillUnreadableError, match=r"is larger than the 1,000,000 bytes"):
        skill(tmp_path, 1_000_000)


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MAX_FILES", 3)
    for number in range(3):
        write(tmp_path / str(number))
    assert len(skill(tmp_path).items) == 6
    write(tmp_path / "one more")
    with pytest.raises(SkillUnreadableError, match="has more than 3 files"):
        skill(tmp_path)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(SkillUnreadableError) as caught:
        skill(missing)
    assert caught.value.message == f"{missing} cannot be read: No such file or directory: {missing}"
    if os.geteuid() != 0:
        write(tmp_path / "s/closed", mode=0)
        with pytest.raises(SkillUnreadableError, match=r"cannot be read: Permission denied: .*closed"):
            skill(tmp_path / "s")


def test_a_file_that_goes_away_before_it_is_sent(tmp_path: Path) -> None:
    gone = write(tmp_path / "gone")
    folder = skill(tmp_path)
    gone.unlink()
    with pytest.raises(FileNotFoundError):
        list(folder.records())


# -- the digest ---------------------------------------------------------------------------------------


def fill(root: Path) -> None:
    write(root / "SKILL.md", b"---\nname: s\n---\n")
    write(root / "scripts/run.py", b"#!/usr/bin/env python3\n")
    write(root / "scripts/tool", b"\0\1", 0o755)
    (root / "empty").mkdir(parents=True)
    (root / "link").symlink_to("scripts/tool")


def test_the_digest_is_of_content_and_nothing_else(tmp_path: Path) -> None:
    """trpc-1.8.1, TH-24"""
    fill(tmp_path / "one")
    fill(tmp_path / "elsewhere/two")
    for path in (tmp_path / "elsewhere/two").rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1, 1))
    (tmp_path / "elsewhere/two/SKILL.md").chmod(0o600)
    write(tmp_path / "elsewhere/two/.git/HEAD", b"ref")
    expected = skill(tmp_path / "one").digest
    assert skill(tmp_path / "elsewhere/two").digest == expected
    # As it has to stay: a restored session compares with what an older version of this wrote.
    total = hashlib.sha256()
    for name, kind, mode, target, content in [
        (b"SKILL.md", b"1", b"644", b"", b"---\nname: s\n---\n"),
        (b"empty", b"2", b"0", b"", None),
        (b"inputs", b"3", b"0", b"/workspace/inputs", None),
        (b"link", b"3", b"0", b"scripts/tool", None),
        (b"out", b"3", b"0", b"/workspace/out", None),
        (b"scripts", b"2", b"0", b"", None),
        (b"scripts/run.py", b"1", b"755", b"", b"#!/usr/bin/env python3\n"),
        (b"scripts/tool", b"1", b"755", b"", b"\0\1"),
        (b"work", b"3", b"0", b"/workspace/work", None),
    ]:
        sha = b"" if content is None else hashlib.sha256(content).hexdigest().encode()
        for part in (name, kind + b" " + mode, target, sha):
            total.update(len(part).to_bytes(8, "big") + part)
    assert expected == total.hexdigest()


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda root: write(root / "SKILL.md", b"---\nname: t\n---\n"),
    "name": lambda root: (root / "SKILL.md").rename(root / "SKILL.MD"),
    "moved": lambda root: (root / "SKILL.md").rename(root / "scripts/SKILL.md"),
    "new file": lambda root: write(root / "scripts/new", b""),
    "lost file": lambda root: (root / "scripts/tool").rename(root / "gone") and (root / "gone").unlink(),
    "new folder": lambda root: (root / "also empty").mkdir(),
    "lost folder": lambda root: (root / "empty").rmdir(),
    "executable": lambda root: (root / "SKILL.md").chmod(0o755),
    "not executable": lambda root: (root / "scripts/tool").chmod(0o644),
    "link target": lambda root: (root / "link").unlink() or (root / "link").symlink_to("SKILL.md"),
    "link into file": lambda root: (root / "link").unlink() or write(root / "link", b"\0\1", 0o755),
    "file into folder": lambda root: (root / "SKILL.md").unlink() or (root / "SKILL.md").mkdir(),
    "its own out": lambda root: (root / "out").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_sees(tmp_path: Path, change: str) -> None:
    fill(tmp_path)
    stager = Stager()
    before = stager.skill(tmp_path, most_bytes=PLENTY).digest
    CHANGES[change](tmp_path)
    after = stager.skill(tmp_path, most_bytes=PLENTY).digest
    assert after != before
    assert after == skill(tmp_path).digest


def test_the_digest_does_not_run_parts_together(tmp_path: Path) -> None:
    """Files `a`="x", `b`="y" are not one file whose content looks like both. trpc-1.8.1"""
    write(tmp_path / "two/a", b"x")
    write(tmp_path / "two/b", b"y")
    write(tmp_path / "one/a", b"x\0b\0y")
    assert skill(tmp_path / "one").digest != skill(tmp_path / "two").digest


def random_items(chance: random.Random) -> list[Item]:
    """Items whose parts are so short and alike that any ambiguity of the framing would show."""
    alphabet = [b"", b"a", b"aa", b"b", b"\0", b"1 644", b"a\0"]
    return [
        Item(
            chance.choice(alphabet) + b"%d" % number,
            chance.choice((REGULAR, LINK)),
            chance.choice((0, 0o644)),
            target=chance.choice(alphabet),
            sha256=chance.choice(alphabet).decode(),
        )
        for number in range(chance.randrange(3))
    ]


def test_the_framing_is_unambiguous() -> None:
    chance = random.Random(7)
    seen: dict[str, object] = {}
    for _ in range(3000):
        items = random_items(chance)
        key = sorted((item.name, item.kind, item.mode, item.target, item.sha256) for item in items)
        digest = staging._digest(items)
        assert seen.setdefault(digest, key) == key
    assert len(seen) > 1000


# -- the cache ----------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Names of the files that were read, not taken from memory."""
    names: list[bytes] = []
    original = staging._read_file

    def counting(path: str, name: bytes, info: os.stat_result, mend: bool) -> Item:
        names.append(name)
        return original(path, name, info, mend)

    monkeypatch.setattr(staging, "_read_file", counting)
    monkeypatch.setattr(places, "TICK_NS", -1)
    return names


def edit_unseen(path: Path, content: bytes) -> None:
    """Other content, same size, same times as far as anybody can set them."""
    before = path.stat()
    assert len(content) == before.st_size
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_unchanged_files_are_read_once(tmp_path: Path, reads: list[bytes]) -> None:
    fill(tmp_path)
    stager = Stager()
    first = stager.skill(tmp_path, most_bytes=PLENTY)
    assert sorted(reads) == [b"SKILL.md", b"scripts/run.py", b"scripts/tool"]
    reads.clear()
    again = stager.skill(tmp_path, most_bytes=PLENTY)
    assert reads == []
    assert again.digest == first.digest
    assert parsed(again.records()) == parsed(first.records())


def test_an_edit_is_seen_though_size_and_time_are_the_same(tmp_path: Path, reads: list[bytes]) -> None:
    script = write(tmp_path / "a.sh", b"#!/bin/sh\r\necho 1\r\n")
    write(tmp_path / "b", b"other")
    stager = Stager()
    before = stager.skill(tmp_path, most_bytes=PLENTY)
    reads.clear()
    edit_unseen(script, b"#!/bin/sh\r\necho 2\r\n")
    after = stager.skill(tmp_path, most_bytes=PLENTY)
    assert reads == [b"a.sh"]
    assert after.digest != before.digest
    assert parsed(after.records())[b"a.sh"][2] == b"#!/bin/sh\necho 2\n"


def test_a_replaced_file_and_a_new_mode_are_seen(tmp_path: Path, reads: list[bytes]) -> None:
    path = write(tmp_path / "a", b"one")
    stager = Stager()
    stager.skill(tmp_path, most_bytes=PLENTY)
    write(tmp_path / "b", b"two").replace(path)
    assert stager.skill(tmp_path, most_bytes=PLENTY).manifest()[b"a"] == hashlib.sha256(b"two").hexdigest()
    path.chmod(0o755)
    found = parsed(stager.skill(tmp_path, most_bytes=PLENTY).records())
    assert found[b"a"] == (REGULAR, 0o755, b"two")


def test_a_file_that_changed_just_now_is_not_remembered(
    tmp_path: Path, reads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change again before the file system's clock ticks, and look the same."""
    monkeypatch.setattr(places, "TICK_NS", 10**15)
    write(tmp_path / "a")
    stager = Stager()
    for _ in range(3):
        stager.skill(tmp_path, most_bytes=PLENTY)
    assert reads == [b"a"] * 3


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_remembered_of_a_whole_skill_is_dropped_with_any_change(
    tmp_path: Path, reads: list[bytes], change: str
) -> None:
    root = tmp_path / "skill"
    fill(root)
    stager = Stager()
    before = stager.skill(root, most_bytes=PLENTY)
    assert stager.skill(root, most_bytes=PLENTY) is before  # the control: it is remembered
    CHANGES[change](root)
    after = stager.skill(root, most_bytes=PLENTY)
    assert after is not before
    assert parsed(after.records()) == parsed(skill(root).records())
    assert after.warnings == skill(root).warnings


def test_a_remembered_link_is_followed_again(tmp_path: Path, reads: list[bytes]) -> None:
    """It leads through a place outside, which changes while nothing in the skill does."""
    root = tmp_path / "skill"
    write(root / "a", b"one")
    outside = tmp_path / "outside"
    outside.symlink_to(root / "a")
    (root / "link").symlink_to(outside)
    stager = Stager()
    assert parsed(stager.skill(root, most_bytes=PLENTY).records())[b"link"][2] == b"a"
    outside.unlink()
    outside.symlink_to("/etc/passwd")
    after = stager.skill(root, most_bytes=PLENTY)
    assert b"link" not in parsed(after.records())
    assert len(after.warnings) == 1


def test_a_remembered_skill_is_still_bounded(tmp_path: Path, reads: list[bytes]) -> None:
    write(tmp_path / "a", b"x" * 100)
    stager = Stager()
    stager.skill(tmp_path, most_bytes=100)
    with pytest.raises(SkillUnreadableError, match="larger than the 99 bytes"):
        stager.skill(tmp_path, most_bytes=99)


def test_whole_seconds_are_believed_later(tmp_path: Path) -> None:
    """Where a file system has no finer stamps, an edit in the same second leaves none."""
    now = 1_800_000_000_600_000_000
    whole, fine = 1_800_000_000_000_000_000, 1_800_000_000_100_000_000
    assert not places.settled(now, whole, whole)
    assert places.settled(now + 2_000_000_000, whole, whole)
    assert places.settled(now, whole, fine)
    assert not places.settled(fine + 1_000_000, whole, fine)


def test_a_skill_and_inputs_do_not_share_what_was_mended(tmp_path: Path, reads: list[bytes]) -> None:
    write(tmp_path / "a.sh", b"#!/bin/sh\r\n")
    stager = Stager()
    assert parsed(stager.skill(tmp_path, most_bytes=PLENTY).records())[b"a.sh"][2] == b"#!/bin/sh\n"
    assert parsed(stager.inputs(tmp_path, most_bytes=PLENTY).records())[b"a.sh"][2] == b"#!/bin/sh\r\n"


# -- records ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 60 * 1024 - 1, 60 * 1024, 60 * 1024 + 1, 120 * 1024, 1 << 20])
def test_files_of_any_size_come_out_as_they_went_in(tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    path = write(tmp_path / "f", content)
    expected = {b"name": (REGULAR, 0o755, content)}
    assert parsed(file_records(b"name", path, 0o755)) == expected
    assert parsed(bytes_records(b"name", content, 0o755)) == expected
    assert max(map(len, bytes_records(b"name", content))) <= 60 * 1024 + 40
    (head, *_), (other, *_) = file_records(b"name", path), bytes_records(b"name", content)
    assert head[8:16] == other[8:16] == size.to_bytes(8, "big")


def test_folders_come_before_what_is_in_them(tmp_path: Path) -> None:
    for name in ("b/c/d", "a", "b/a", "b-", "b/c-"):
        write(tmp_path / name)
    (tmp_path / "b/z").symlink_to("a")
    order = list(parsed(skill(tmp_path).records()))
    assert order == [b"a", b"b", b"b/a", b"b/c", b"b/c/d", b"b/c-", b"b/z", b"b-", b"out", b"work", b"inputs"]
