"""The offered folder: what is in it can be reached, and by no name and no link anything else."""

from __future__ import annotations

import base64
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor.bridge.codes import BridgeError
from executor.bridge.folder import HostFolder

SECRET = "nobody may read this"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    where = tmp_path / "outside"
    where.mkdir()
    (where / "secret.txt").write_text(SECRET)
    return where


@pytest.fixture
def root(tmp_path: Path, outside: Path) -> Path:
    where = tmp_path / "root"
    (where / "sub/deep").mkdir(parents=True)
    (where / "a.txt").write_text("a")
    (where / "sub/b.md").write_text("bé")
    (where / "sub/deep/c.bin").write_bytes(b"\xff\0")
    (where / "skills").mkdir()
    (where / "skills/s.md").write_text("s")
    (where / "link").symlink_to(outside / "secret.txt")
    (where / "folder").symlink_to(outside)
    (where / "inner").symlink_to("a.txt")
    (where / "loop").symlink_to("loop")
    os.mkfifo(where / "fifo")
    return where


@pytest.fixture
def folder(root: Path) -> Iterator[HostFolder]:
    made = HostFolder(str(root), most=1000, entries=50)
    yield made
    made.close()


def code(folder: HostFolder, action: str, path: Any, **params: Any) -> str:
    with pytest.raises(BridgeError) as caught:
        folder.do(action, {"pattern" if action == "glob" else "path": path, **params})
    assert SECRET not in str(caught.value)
    return caught.value.code


ESCAPES = [
    "../outside/secret.txt",
    "/etc/passwd",
    "sub/../../outside/secret.txt",
    "folder/secret.txt",
    "link",
]


@pytest.mark.parametrize("path", [*ESCAPES, "..", "a\0b", "inner", "loop", "\ud800", "fifo", "x/" * 70 + "y"])
def test_nothing_outside_can_be_read(folder: HostFolder, path: str) -> None:
    assert code(folder, "read", path) == "BAD_PATH"


@pytest.mark.parametrize("path", [*ESCAPES, "folder/new.txt", "link", "inner"])
@pytest.mark.parametrize("action", ["write", "delete", "list", "stat"])
def test_nothing_outside_can_be_touched(folder: HostFolder, outside: Path, action: str, path: str) -> None:
    try:
        found = folder.do(action, {"path": path, "text": "new"})
    except BridgeError as error:
        assert error.code in ("BAD_PATH", "NOT_DIR", "NOT_FOUND")
    else:  # a link may be looked at and removed, itself
        assert action == "delete" or found == {**found, "type": "symlink"}
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == SECRET


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing", "NOT_FOUND"),
        ("missing/x", "NOT_FOUND"),
        ("sub", "IS_DIR"),
        (".", "IS_DIR"),
        ("a.txt/x", "NOT_DIR"),
    ],
)
def test_what_is_not_a_file(folder: HostFolder, path: str, expected: str) -> None:
    assert code(folder, "read", path) == expected


def test_reading(folder: HostFolder) -> None:
    assert folder.do("read", {"path": "./sub//b.md"}) == "bé"
    assert code(folder, "read", "sub/deep/c.bin") == "NOT_UTF8"
    found = folder.do("read", {"path": "sub/deep/c.bin", "binary": True})
    assert base64.b64decode(found["base64"]) == b"\xff\0"


@pytest.mark.parametrize("bad", [-1, True, 1.5, "1", None, 1 << 62])
def test_offsets_are_numbers(folder: HostFolder, bad: Any) -> None:
    assert code(folder, "read", "a.txt", offset=bad) == "TOOL_INPUT_INVALID"


@pytest.mark.parametrize("path", [None, 1, ["a"], {}])
def test_paths_are_text(folder: HostFolder, path: Any) -> None:
    assert code(folder, "read", path) == "BAD_PATH"


def test_listing(folder: HostFolder) -> None:
    found = {item["name"]: item["type"] for item in folder.do("list", {"path": "."})}
    assert found["a.txt"] == "file"
    assert found["sub"] == "directory"
    assert found["link"] == found["folder"] == "symlink"
    assert found["fifo"] == "other"
    assert [item["name"] for item in folder.do("list", {"path": "sub"})] == ["b.md", "deep"]
    assert code(folder, "list", "missing") == "NOT_FOUND"
    assert code(folder, "list", "a.txt") == "NOT_DIR"


def test_listings_are_bounded(root: Path, folder: HostFolder) -> None:
    for number in range(60):
        (root / "sub" / f"f{number}").touch()
    assert code(folder, "list", "sub") == "VALUE_TOO_LARGE"
    assert code(folder, "glob", "**") == "VALUE_TOO_LARGE"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**/*.md", ["skills/s.md", "sub/b.md"]),
        ("*.txt", ["a.txt"]),
        ("sub/**", ["sub/b.md", "sub/deep/c.bin"]),
        ("skills/*", ["skills/s.md"]),
        ("{a,x}.txt", ["a.txt"]),
        ("folder/*", []),
        ("$WORKSPACE_DIR/*", []),
    ],
)
def test_globs(folder: HostFolder, pattern: str, found: list[str]) -> None:
    assert folder.do("glob", {"pattern": pattern}) == found


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a/../../*", "[", "x" * 5000])
def test_globs_that_lead_out_find_nothing(folder: HostFolder, pattern: str) -> None:
    try:
        assert folder.do("glob", {"pattern": pattern}) == []
    except BridgeError as error:
        assert error.code == "BAD_PATH"


def test_a_glob_that_would_take_for_ever(root: Path, folder: HostFolder) -> None:
    (root / ("a" * 60)).touch()
    assert folder.do("glob", {"pattern": "*a" * 12 + "b"}) == []


def test_stat(folder: HostFolder) -> None:
    assert folder.do("stat", {"path": "a.txt"})["size"] == 1
    assert folder.do("stat", {"path": "."})["type"] == "directory"
    assert folder.do("stat", {"path": "missing"}) is None
    assert folder.do("stat", {"path": "missing/x"}) is None
    assert folder.do("stat", {"path": "link"})["type"] == "symlink"


def test_writing(root: Path, folder: HostFolder) -> None:
    (root / "a.txt").chmod(0o640)
    assert folder.do("write", {"path": "a.txt", "text": "neu"}) == {"size": 3}
    assert (root / "a.txt").read_text() == "neu"
    assert (root / "a.txt").stat().st_mode & 0o777 == 0o640
    folder.do("write", {"path": "new/er/x.bin", "base64": base64.b64encode(b"\0\xff").decode()})
    assert (root / "new/er/x.bin").read_bytes() == b"\0\xff"
    assert not list(root.rglob(".part-*"))


def test_a_write_does_not_go_through_a_second_name(root: Path, outside: Path, folder: HostFolder) -> None:
    os.link(outside / "secret.txt", root / "hard.txt")
    folder.do("write", {"path": "hard.txt", "text": "new"})
    assert (outside / "secret.txt").read_text() == SECRET
    assert (root / "hard.txt").read_text() == "new"


@pytest.mark.parametrize("params", [{}, {"text": 1}, {"text": "a", "base64": "YQ=="}, {"base64": "!"}])
def test_what_cannot_be_written(folder: HostFolder, params: dict[str, Any]) -> None:
    assert code(folder, "write", "x", **params) == "TOOL_INPUT_INVALID"
    assert code(folder, "write", "sub", text="x") == "IS_DIR"
    assert code(folder, "write", ".", text="x") == "IS_DIR"


def test_deleting(root: Path, folder: HostFolder) -> None:
    folder.do("delete", {"path": "a.txt"})
    assert not (root / "a.txt").exists()
    assert code(folder, "delete", "sub") == "EXISTS"
    assert code(folder, "delete", ".") == "DENIED"
    assert code(folder, "delete", "missing") == "NOT_FOUND"
    folder.do("delete", {"path": "link"})
    assert not (root / "link").is_symlink()


def test_nothing_happens_after_the_end(root: Path) -> None:
    folder = HostFolder(str(root), most=1000, entries=50)
    folder.close()
    folder.close()
    for action in ("read", "write", "delete", "list", "stat", "glob"):
        assert code(folder, action, "a.txt", text="x") == "REVOKED"
    assert (root / "a.txt").read_text() == "a"


def test_sockets_are_not_opened(root: Path, folder: HostFolder) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(root / "sock"))
    assert code(folder, "read", "sock") in ("IO", "BAD_PATH")
    server.close()


def test_a_folder_that_is_swapped_while_it_is_read_leads_nowhere_else(
    root: Path, outside: Path, folder: HostFolder
) -> None:
    (root / "here").mkdir()
    (root / "here/secret.txt").write_text("mine")
    (root / "evil").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for one, other in (("here", "tmp"), ("evil", "here"), ("here", "evil"), ("tmp", "here")):
                os.rename(root / one, root / other)

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        for _ in range(3000):
            try:
                seen.add(folder.do("read", {"path": "here/secret.txt"}))
            except BridgeError as error:
                seen.add(error.code)
    finally:
        stop.set()
        thread.join()
    assert SECRET not in seen
    assert "mine" in seen
