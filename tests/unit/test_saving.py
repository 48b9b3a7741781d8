"""Collected files land where they were meant to, or nowhere."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from executor.errors import BadPathError
from executor.workspace.saving import safe_component, saving

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="names and links of POSIX systems")


def save(target: Path, path: str, data: bytes = b"new", *, overwrite: bool = False) -> Path:
    with saving(target, path, overwrite=overwrite) as sink:
        sink.write(data)
    return sink.path


def tree(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: path → content, or → target for links."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"report.csv", "report.csv"),
        (b"a b", "a b"),
        ("é好😀".encode(), "é好😀"),
        (b"a\nb", "a%0Ab"),
        (b"\x1b[31m", "%1B[31m"),
        (b"\x7f", "%7F"),
        (b"50%", "50%25"),
        (b"a%0Ab", "a%250Ab"),  # so that no two names become one
        (b"..\\x", "..%5Cx"),
        (b"-rf", "%2Drf"),
        (b"--", "%2D-"),
        (b"a-b", "a-b"),
        (b"\xff", "%FF"),
        (b"a\xffb", "a%FFb"),
        (b"\xc3\xa9\xff", "é%FF"),
        (b"\xed\xa0\x80", "%ED%A0%80"),  # a surrogate is no character
        ("\x9b31m".encode(), "%C2%9B31m"),  # a C1 control sequence
        ("gnp.\u202etxt".encode(), "gnp.%E2%80%AEtxt"),  # shown as txt.png
        ("a\u2066b\u2029".encode(), "a%E2%81%A6b%E2%80%A9"),
        (b"a\0b", "a%00b"),
        (b"~", "~"),
        (b"$(id)`;|&", "$(id)`;|&"),  # a name is no shell line
        (b".hidden", ".hidden"),
        (b"...", "..."),
        (b"", ""),
        (b".", "."),
        (b"..", ".."),
    ],
)
def test_names_on_the_host(name: bytes, shown: str) -> None:
    assert safe_component(name) == shown


@pytest.mark.parametrize(
    ("path", "saved"),
    [
        ("out/a.txt", "out/a.txt"),
        ("skills/s/out/deep/er/a", "skills/s/out/deep/er/a"),
        ("out/ü\n1.txt", "out/ü%0A1.txt"),
        (os.fsdecode(b"out/\xff"), "out/%FF"),
        ("-x/-y", "%2Dx/%2Dy"),
        ("out/..a/b..", "out/..a/b.."),
        ("out/" + "n" * 255, "out/" + "n" * 255),
    ],
)
def test_a_file_is_saved_below_the_target(tmp_path: Path, path: str, saved: str) -> None:
    target = tmp_path / "made" / "on the way"
    assert save(target, path, b"content") == target / saved
    assert tree(tmp_path) == {f"made/on the way/{saved}": b"content"}


def test_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        path = save(tmp_path, "out/a")
    finally:
        os.umask(before)
    info = path.stat()
    assert stat.S_IMODE(info.st_mode) == 0o644
    assert info.st_nlink == 1


@pytest.mark.parametrize(
    "path", ["", "/", "/etc/x", "a//b", "a/", ".", "..", "../x", "a/../b", "a/./b", "a/.."]
)
def test_paths_that_are_not_plain_are_refused(tmp_path: Path, path: str) -> None:
    target = tmp_path / "target"
    with pytest.raises(BadPathError, match="cannot be saved: it is not a plain relative path"):
        save(target, path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_grows_too_long(tmp_path: Path) -> None:
    with pytest.raises(BadPathError, match="its name is longer than 255 bytes"):
        save(tmp_path / "target", "out/" + "\x01" * 86)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_bytes(b"old")
    with pytest.raises(BadPathError, match=r"a exists already and is not overwritten"):
        save(tmp_path, "out/a")
    assert tree(tmp_path) == {"out/a": b"old"}


def test_something_that_appears_while_it_is_written_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(BadPathError, match="exists already"), saving(tmp_path, "a") as sink:
        sink.write(b"new")
        (tmp_path / "a").write_bytes(b"raced")
    assert tree(tmp_path) == {"a": b"raced"}


def test_overwriting_when_asked(tmp_path: Path) -> None:
    old = save(tmp_path, "out/a", b"old")
    os.link(old, tmp_path / "other name")
    save(tmp_path, "out/a", b"new", overwrite=True)
    assert tree(tmp_path) == {"out/a": b"new", "other name": b"old"}


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/kept").write_bytes(b"old")
    with pytest.raises(BadPathError, match="is a folder and is not overwritten by a file"):
        save(tmp_path, "a", overwrite=True)
    with pytest.raises(BadPathError, match="exists already"):
        save(tmp_path, "a")
    assert tree(tmp_path) == {"a/kept": b"old"}


def test_a_file_where_a_folder_is_needed(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(BadPathError, match="is a link or not a folder: nothing is saved through it"):
        save(tmp_path, "out/a", overwrite=True)
    with pytest.raises(BadPathError, match="out is not a folder: nothing can be saved in it"):
        save(tmp_path / "out", "a")
    assert tree(tmp_path) == {"out": b"old"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("path", ["out/a", "out/sub/a", "deep/er/out/a"])
def test_nothing_is_saved_through_a_link(tmp_path: Path, path: str, overwrite: bool) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    link = target / path.partition("out")[0] / "out"
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(BadPathError, match="is a link or not a folder: nothing is saved through it"):
        save(target, path, overwrite=overwrite)
    assert tree(outside) == {}


@pytest.mark.parametrize("existing", ["victim", "missing"])
def test_a_link_at_the_end_is_never_written_through(tmp_path: Path, existing: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    target = tmp_path / "target"
    target.mkdir()
    (target / "a").symlink_to(tmp_path / existing)
    with pytest.raises(BadPathError, match="exists already"):
        save(target, "a")
    assert tree(tmp_path) == {"victim": b"precious", "target/a": str(tmp_path / existing)}
    save(target, "a", overwrite=True)  # replaces the link itself
    assert tree(tmp_path) == {"victim": b"precious", "target/a": b"new"}


def test_a_folder_swapped_for_a_link_while_it_is_written(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    with saving(target, "out/a") as sink:
        sink.write(b"new")
        (target / "out").rename(target / "moved")
        (target / "out").symlink_to(outside)
    assert tree(outside) == {}
    assert tree(target) == {"moved/a": b"new", "out": str(outside)}


def test_the_callers_own_target_may_be_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert save(tmp_path / "link", "a") == tmp_path / "link" / "a"
    assert tree(real) == {"a": b"new"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("lost"), OSError(28, "full"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path: Path, overwrite: bool, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, saving(tmp_path, "out/a", overwrite=overwrite) as sink:
        sink.write(b"half")
        raise error
    assert caught.value is error
    assert tree(tmp_path) == {}


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    save(tmp_path, "a", b"old")
    with pytest.raises(RuntimeError), saving(tmp_path, "a", overwrite=True) as sink:
        sink.write(b"half")
        raise RuntimeError
    assert tree(tmp_path) == {"a": b"old"}


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc here")
    save(tmp_path, "d/e/f/a")
    before = set(os.listdir("/proc/self/fd"))
    for path in ("d/e/f/a", "d/e/f/b", "d/e/f/a/x", "../x"):
        try:
            save(tmp_path, path)
        except BadPathError:
            pass
    assert len(set(os.listdir("/proc/self/fd"))) == len(before)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_served_and_still_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with saving(tmp_path, "out/a") as sink:
        sink.write(b"one")
    with pytest.raises(BadPathError, match="exists already"), saving(tmp_path, "out/a") as sink:
        sink.write(b"two")
    assert (tmp_path / "out/a").read_bytes() == b"one"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]
