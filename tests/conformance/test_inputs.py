"""Files that a caller puts into a session, reads and removes there; and what a script cannot make of that."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import stat
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from executor import (
    AsyncExecutor,
    BadPathError,
    BadRequestError,
    Executor,
    Limits,
    OutputLimits,
    SandboxError,
    Session,
)

MANY = OutputLimits(max_files=5000)
_numbers = itertools.count(1)


@pytest.fixture
def place(shared: Session) -> str:
    """A folder below inputs/ that no other test uses."""
    name = f"inputs/t{next(_numbers)}"
    assert shared.exec(["mkdir", name]).status == "ok"
    return name


def write(folder: Path, files: dict[str | bytes, bytes]) -> Path:
    for name, content in files.items():
        path = os.path.join(os.fsencode(folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    return folder


def names(session: Session, folder: str, what: str = "%y %P") -> list[str]:
    """What `find` says of everything below a folder, sorted; the folders of runs come and go."""
    command = ["find", folder, "-mindepth", "1", "-not", "-path", "*/runs/run_*", "-printf", what + r"\n"]
    result = session.exec(command)
    assert result.stderr == ""
    return sorted(result.stdout.splitlines())


def content(session: Session, folder: str) -> dict[bytes, bytes]:
    """name → bytes of every file below a folder of the workspace."""
    files = session.collect(f"{folder}/**", limits=MANY)
    return {os.fsencode(file.path).removeprefix(os.fsencode(folder) + b"/"): file.read() for file in files}


# -- what can be put --


@pytest.mark.parametrize(
    ("source", "data"),
    [
        (b"bytes \0\xff", b"bytes \0\xff"),
        (bytearray(b"bytearray"), b"bytearray"),
        (memoryview(b"a view")[2:], b"view"),
        ("text ü 数据\r\n", "text ü 数据\r\n".encode()),
        (b"", b""),
        ("", b""),
    ],
    ids=["bytes", "bytearray", "memoryview", "str", "no bytes", "no text"],
)
def test_what_is_in_memory_lands_as_a_file(shared: Session, place: str, source: Any, data: bytes) -> None:
    """trpc-1.10.7"""
    shared.put(f"{place}/file", source)
    assert shared.read(f"{place}/file") == data
    assert names(shared, place, "%y %m %s %P") == [f"f 644 {len(data)} file"]


def test_a_text_that_looks_like_a_path_is_text_and_told(shared: Session, place: str) -> None:
    shared.put(f"{place}/file", "/etc/passwd")
    shared.put(f"{place}/a.csv", "no/such.csv")  # whether there is one is not asked
    shared.put(f"{place}/b.csv", "a,b.csv\n")
    shared.put(f"{place}/c.txt", "no/such.csv")
    assert shared.read(f"{place}/file") == b"/etc/passwd"
    assert shared.exec("true").warnings == [
        f"{place}/file holds the text '/etc/passwd': for the file of that name give put() a Path",
        f"{place}/a.csv holds the text 'no/such.csv': for the file of that name give put() a Path",
    ]


def test_a_text_of_lone_surrogates_is_refused(shared: Session, place: str) -> None:
    with pytest.raises(BadRequestError, match="lone surrogates"):
        shared.put(f"{place}/file", "\udcff")
    assert names(shared, place) == []


def test_a_file_of_the_host_lands_with_its_bytes(shared: Session, place: str, tmp_path: Path) -> None:
    write(tmp_path, {"a.bin": bytes(range(256))})
    shared.put(f"{place}/b.bin", tmp_path / "a.bin")
    assert content(shared, place) == {b"b.bin": bytes(range(256))}


def test_the_exec_bit_is_kept_and_no_other(shared: Session, place: str, tmp_path: Path) -> None:
    write(tmp_path, {"tool": b"#!/bin/sh\necho ran\n", "data": b"#!/bin/sh\n", "odd": b""})
    os.chmod(tmp_path / "tool", 0o700)
    os.chmod(tmp_path / "data", 0o600)
    os.chmod(tmp_path / "odd", 0o4777)
    shared.put(f"{place}/tool", tmp_path / "tool")
    shared.put(f"{place}/data", tmp_path / "data")
    shared.put(f"{place}/folder", tmp_path)
    assert names(shared, place, "%m %P") == [
        *("644 data", "644 folder/data"),
        *("755 folder", "755 folder/odd", "755 folder/tool", "755 tool"),
    ]
    assert shared.exec(f"{place}/tool").stdout == "ran\n"


def test_a_file_put_belongs_to_the_uid_of_the_runs(shared: Session, place: str) -> None:
    shared.put(f"{place}/new/file", b"")
    assert shared.exec(f"[ -O {place}/new ] && [ -O {place}/new/file ] && echo x >> {place}/new/file").ok


def test_a_folder_lands_with_all_that_it_holds(shared: Session, place: str, tmp_path: Path) -> None:
    files: dict[str | bytes, bytes] = {
        b"a.txt": b"a",
        b"sub/deep/b.bin": b"\0",
        b".hidden/.c": b"c",
        b"new\nline": b"1",
        b"-rf": b"2",
        "数据.csv".encode(): b"3",
        b"latin-\xe9": b"4",
        b"crlf.sh": b"#!/bin/sh\r\n",
        b"sub/empty.txt": b"",
    }
    write(tmp_path, files)
    (tmp_path / "nothing" / "in it").mkdir(parents=True)
    shared.put(f"{place}/copy", tmp_path)
    assert content(shared, f"{place}/copy") == files
    assert shared.exec(f"find {place}/copy/nothing -type d").stdout == (
        f"{place}/copy/nothing\n{place}/copy/nothing/in it\n"
    )


def test_links_inside_a_folder_are_kept_and_others_left_out_and_told(
    session: Session, tmp_path: Path
) -> None:
    write(tmp_path, {"in/a.txt": b"a", "in/sub/x": b"", "secret.txt": b"secret"})
    (tmp_path / "in" / "sub" / "up").symlink_to("../a.txt")
    (tmp_path / "in" / "host").symlink_to("/etc/passwd")
    (tmp_path / "in" / "out").symlink_to("../secret.txt")
    (tmp_path / "in" / "dangling").symlink_to("nowhere")
    session.put("inputs/copy", tmp_path / "in")
    result = session.exec("cat inputs/copy/sub/up")
    assert result.stdout == "a"
    assert result.warnings == [
        f"the link {name!r} leads out of the folder or nowhere: left out"
        for name in ("dangling", "host", "out")
    ]
    assert names(session, "inputs/copy", "%y %P %l") == [
        "d sub ",
        "f a.txt ",
        "f sub/x ",
        "l sub/up ../a.txt",
    ]


def test_a_link_given_by_name_is_followed(shared: Session, place: str, tmp_path: Path) -> None:
    write(tmp_path, {"real/a.txt": b"a"})
    (tmp_path / "file").symlink_to("real/a.txt")
    (tmp_path / "folder").symlink_to("real")
    shared.put(f"{place}/file", tmp_path / "file")
    shared.put(f"{place}/folder", tmp_path / "folder")
    assert names(shared, place) == ["d folder", "f file", "f folder/a.txt"]


def test_a_file_of_64_mib_lands_whole(session: Session, tmp_path: Path) -> None:
    piece = hashlib.sha256(b"seed").digest() * (1 << 15)  # 1 MiB
    with open(tmp_path / "big", "wb") as file:
        for number in range(64):
            file.write(bytes([number]) + piece[1:])
    digest = hashlib.sha256((tmp_path / "big").read_bytes()).hexdigest()
    session.put("inputs/path", tmp_path / "big")
    session.put("inputs/bytes", (tmp_path / "big").read_bytes())
    result = session.exec("sha256sum inputs/path inputs/bytes; stat -c %s inputs/*")
    assert result.stdout.split() == [
        *(digest, "inputs/path", digest, "inputs/bytes"),
        *(str(64 << 20), str(64 << 20)),
    ]


def test_a_large_folder_is_not_held_in_memory(shared: Session, place: str, tmp_path: Path) -> None:
    write(tmp_path, {f"{number}": b"x" * (4 << 20) for number in range(12)})
    tracemalloc.start()
    try:
        shared.put(f"{place}/large", tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
    assert shared.exec(f"cat {place}/large/* | wc -c").stdout == f"{48 << 20}\n"
    shared.remove(place)


def test_a_thousand_small_files_land(session: Session, tmp_path: Path) -> None:
    write(tmp_path, {f"d{number % 50}/f{number}": str(number).encode() for number in range(1000)})
    session.put("inputs/many", tmp_path)
    result = session.exec("find inputs/many -type f | wc -l; find inputs/many -type f -exec cat {} + | wc -c")
    assert result.stdout.split() == ["1000", "2890"]


def test_many_folders_land_with_few_file_descriptors(executor: Executor, tmp_path: Path) -> None:
    write(tmp_path, {f"d{number}/e/f": b"x" for number in range(150)})
    with executor.session(limits=Limits(open_files=64)) as session:
        session.put("inputs/many", tmp_path)
        assert len(session.collect("inputs/many/**", limits=MANY)) == 150


def test_puts_from_many_threads_all_land(session: Session) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: session.put(f"inputs/d{n % 3}/{n}", str(n) * n), range(60)))
    assert content(session, "inputs") == {f"d{n % 3}/{n}".encode(): (str(n) * n).encode() for n in range(60)}


# -- where it can be put --


@pytest.mark.parametrize(
    ("dest", "lands"),
    [
        ("inputs/x", "/workspace/inputs/x"),
        ("./inputs//./x", "/workspace/inputs/x"),
        ("x", "/workspace/x"),
        ("$INPUTS_DIR/x", "/workspace/inputs/x"),
        ("${WORK_DIR}/x", "/workspace/work/x"),
        ("$OUTPUT_DIR/a/x", "/workspace/out/a/x"),
        ("$WORKSPACE_DIR/x", "/workspace/x"),
        ("$SKILLS_DIR/x/y", "/skills/x/y"),
        ("/workspace/out/x", "/workspace/out/x"),
        ("work/inputs/x", "/workspace/inputs/x"),
        ("skills/x/y", "/skills/x/y"),
        ("/skills/x/y", "/skills/x/y"),
        ("/workspace/skills/x/y", "/skills/x/y"),
        ("$HOME/x", "/workspace/$HOME/x"),
        ("$INPUTS_DIRECTORY/x", "/workspace/$INPUTS_DIRECTORY/x"),
        ("~/x", "/workspace/~/x"),
        ("a/b/c/d/e/f/x", "/workspace/a/b/c/d/e/f/x"),
        ("inputs/..x", "/workspace/inputs/..x"),
        ("inputs/" + "n" * 255, "/workspace/inputs/" + "n" * 255),
    ],
)
def test_a_destination_is_understood(shared: Session, dest: str, lands: str) -> None:
    data = f"{next(_numbers)}"
    shared.put(dest, data)
    assert shared.exec(["cat", lands]).stdout == data
    assert shared.read(dest).decode() == data
    shared.remove(dest)
    assert shared.exec(["stat", lands]).exit_code == 1


@pytest.mark.parametrize(
    "dest",
    [
        *(
            "",
            ".",
            "/",
            "./",
            "..",
            "../x",
            "inputs/../../x",
            "a/..",
            "/workspace",
            "/workspace/",
            "$WORK_DIR/..",
        ),
        *("/etc/x", "/tmp/x", "/proc/self/x", "//etc/x", "/workspaces/x", "skills", "/skills"),
        *("inputs/\0", "a\0b", "inputs/\ud800", "inputs/" + "n" * 256, "n/" * 5000 + "x"),
        *("inputs/", "inputs/new/", "work/."),
    ],
)
def test_a_destination_is_refused(shared: Session, dest: str) -> None:
    before = names(shared, "/workspace"), names(shared, "/skills")
    with pytest.raises(BadPathError):
        shared.put(dest, b"data")
    assert (names(shared, "/workspace"), names(shared, "/skills")) == before


def test_missing_parents_are_made(shared: Session, place: str) -> None:
    shared.put(f"{place}/a/b/c.txt", b"c")
    assert names(shared, place, "%y %m %P") == ["d 755 a", "d 755 a/b", "f 644 a/b/c.txt"]


def test_a_destination_that_ends_in_a_slash_keeps_the_sources_name(
    shared: Session, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"folder/a.txt": b"a"})
    shared.put(f"{place}/", tmp_path / "folder" / "a.txt")
    shared.put(f"{place}/new/", tmp_path / "folder")
    monkeypatch.chdir(tmp_path / "folder")
    shared.put(f"{place}/dot/", Path("."))
    assert set(content(shared, place)) == {b"a.txt", b"new/folder/a.txt", b"dot/folder/a.txt"}


def test_a_file_is_replaced_by_a_later_one(shared: Session, place: str) -> None:
    shared.put(f"{place}/x", b"a longer first version")
    shared.put(f"{place}/x", b"second")
    assert shared.read(f"{place}/x") == b"second"
    assert names(shared, place) == ["f x"]


def test_a_file_that_a_script_made_unwritable_is_replaced(shared: Session, place: str) -> None:
    shared.exec(f"echo old > {place}/x; chmod 000 {place}/x")
    shared.put(f"{place}/x", b"new")
    assert shared.read(f"{place}/x") == b"new"


def test_a_folder_is_put_into_a_folder_that_is_there(shared: Session, place: str, tmp_path: Path) -> None:
    shared.exec(f"mkdir -p {place}/f/sub; echo old > {place}/f/old; echo old > {place}/f/sub/x")
    write(tmp_path, {"sub/x": b"new", "y": b"new"})
    shared.put(f"{place}/f", tmp_path)
    assert content(shared, f"{place}/f") == {b"old": b"old\n", b"sub/x": b"new", b"y": b"new"}


def test_a_file_cannot_be_put_over_a_folder(shared: Session, place: str) -> None:
    shared.exec(f"mkdir {place}/folder; echo kept > {place}/folder/x")
    with pytest.raises(BadPathError, match="Is a directory"):
        shared.put(f"{place}/folder", b"data")
    assert content(shared, place) == {b"folder/x": b"kept\n"}
    assert names(shared, place) == ["d folder", "f folder/x"]


def test_nothing_can_be_put_through_a_file(shared: Session, place: str, tmp_path: Path) -> None:
    shared.put(f"{place}/file", b"kept")
    write(tmp_path, {"a": b""})
    with pytest.raises(BadPathError, match="Not a directory"):
        shared.put(f"{place}/file/x", b"data")
    with pytest.raises(BadPathError, match="Not a directory"):
        shared.put(f"{place}/file", tmp_path)
    assert content(shared, place) == {b"file": b"kept"}


@pytest.mark.parametrize(
    "name",
    [
        "quote's",
        'double "quotes"',
        "';touch /workspace/p;'",
        "$(touch /workspace/p)",
        "`touch /workspace/p`",
        "a;b|c&d>e<f",
        "new\nline",
        "tab\tcr\r",
        "-rf",
        "--help",
        "*",
        "[a-z]?",
        "{a,b}",
        "back\\slash",
        "~",
        "#comment",
        " leading and trailing ",
        "\x1b[31mred\x07\x7f",
        "\u202egnp.exe",
        "数据",
        "latin-\udce9",
        "%2e%2e",
        "...",
    ],
)
def test_a_hostile_name_lands_literally(shared: Session, place: str, name: str) -> None:
    """trpc-41"""
    shared.put(f"{place}/{name}/{name}", b"data")
    assert content(shared, place) == {os.fsencode(f"{name}/{name}"): b"data"}
    assert shared.read(f"{place}/{name}/{name}") == b"data"
    assert shared.exec("ls /workspace/p").exit_code == 2
    shared.remove(f"{place}/{name}")
    assert content(shared, place) == {}


# -- links that a script planted --


@pytest.mark.parametrize(
    ("planted", "dest"),
    [
        ("mv inputs kept; ln -s /tmp inputs", "inputs/x"),
        ("mv inputs kept; ln -s /tmp inputs", "inputs/new/x"),
        ("mv work kept; ln -s /proc/1 work", "work/x"),
        ("mv work kept; ln -s /proc/self/cwd/../tmp work", "work/x"),
        ("ln -s ../../tmp out/up", "out/up/x"),
        ("ln -s / out/root", "out/root/tmp/x"),
        ("ln -s round out/round", "out/round/x"),
        ("ln -s one out/two; ln -s two out/one", "out/one/x"),
        ("ln -s /proc/self/root/tmp out/magic", "out/magic/x"),
        ("ln -s /workspace/../tmp out/dots", "out/dots/x"),
        ("ln -s /dev/shm out/shm", "out/shm/x"),
    ],
)
def test_a_link_out_of_the_workspace_is_not_followed_by_a_put(
    shared: Session, tmp_path: Path, planted: str, dest: str
) -> None:
    """trpc-41"""
    write(tmp_path, {"a/b": b"data"})
    assert shared.exec(planted).status == "ok"
    state = "find /tmp /dev/shm -mindepth 1 -not -path '/tmp/home*' -not -path '/tmp/.cache*'"
    before = shared.exec(state).stdout
    for source in (b"data", tmp_path, tmp_path / "a" / "b"):
        with pytest.raises(BadPathError):
            shared.put(dest, source)
    with pytest.raises(BadPathError):
        shared.read(dest)
    with pytest.raises(BadPathError):
        shared.remove(dest)
    assert shared.exec(state).stdout == before
    folder = dest.split("/")[0]
    undone = f"rm {folder}; mv kept {folder}" if "kept" in planted else "find out -type l -delete"
    assert shared.exec(undone).stderr == ""


def test_a_link_in_the_place_of_the_file_is_replaced_not_followed(shared: Session, place: str) -> None:
    shared.exec(
        f"echo kept > {place}/target; ln -s /etc/passwd {place}/a; ln -s target {place}/b; ln -s . {place}/c"
    )
    for name in "abc":
        shared.put(f"{place}/{name}", name)
    assert names(shared, place) == ["f a", "f b", "f c", "f target"]
    assert shared.read(f"{place}/target") == b"kept\n"
    assert "root:" in shared.exec("cat /etc/passwd").stdout


def test_a_link_to_a_folder_of_the_workspace_is_followed(shared: Session, place: str, tmp_path: Path) -> None:
    write(tmp_path, {"sub/a": b"folder"})
    shared.exec(f"mkdir -p {place}/real; ln -s real {place}/rel; ln -s /workspace/{place}/real {place}/abs")
    shared.put(f"{place}/rel/x", b"rel")
    shared.put(f"{place}/abs/y", b"abs")
    shared.put(f"{place}/rel", tmp_path)
    assert content(shared, f"{place}/real") == {b"x": b"rel", b"y": b"abs", b"sub/a": b"folder"}
    assert shared.read(f"{place}/rel/x") == b"rel"


def test_names_that_a_script_took_do_not_stop_a_put(shared: Session, place: str) -> None:
    taken = f"cd {place}; for i in $(seq 0 99); do ln -s /etc/passwd .part-$i; mkdir .tmp-$i; done"
    assert shared.exec(taken).status == "ok"
    shared.put(f"{place}/x", b"data")
    assert shared.read(f"{place}/x") == b"data"


def test_a_put_while_a_script_swaps_the_folder_for_a_link_never_writes_outside(session: Session) -> None:
    swap = (
        "import os\nos.mkdir('/tmp/victim'); os.makedirs('/workspace/inputs/d/real')\n"
        "os.chdir('/workspace/inputs')\n"
        "os.symlink('/tmp/victim', 'link')\nprint('ready', flush=True)\n"
        "while True:\n"
        "    os.rename('d', 'e'); os.rename('link', 'd'); os.rename('d', 'link'); os.rename('e', 'd')\n"
    )
    run = session.start(["python3", "-c", swap])
    assert run.read(timeout=20).stdout.startswith("ready")
    landed = 0
    for number in range(300):
        try:
            session.put(f"inputs/d/{number}", b"data")
            landed += 1
        except BadPathError:
            pass
    run.kill()
    assert landed > 0
    assert session.exec("ls /tmp/victim").stdout == ""


# -- puts that fail --


def test_a_source_that_is_not_there_is_an_error_and_puts_nothing(
    shared: Session, place: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to("nowhere")
    for source in ("missing", "pipe", "dangling"):
        with pytest.raises(BadPathError, match="there is no such file or folder on this machine"):
            shared.put(f"{place}/x", tmp_path / source)
    assert names(shared, place) == []


def test_a_source_that_vanishes_midway_is_an_error_and_leaves_no_half_file(
    shared: Session, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"big": b"x" * (4 << 20)})
    read, calls = os.read, 0

    def failing(fd: int, size: int) -> bytes:
        nonlocal calls
        if os.path.realpath(f"/proc/self/fd/{fd}") == str(tmp_path.resolve() / "big"):
            calls += 1
            if calls > 10:
                raise OSError(5, "Input/output error", "big")
        return read(fd, size)

    shared.put(f"{place}/x", b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", failing)
        with pytest.raises(BadPathError, match="Input/output error"):
            shared.put(f"{place}/x", tmp_path / "big")
    assert calls == 11
    assert content(shared, place) == {b"x": b"old"}
    shared.put(f"{place}/x", tmp_path / "big")
    assert len(shared.read(f"{place}/x")) == 4 << 20


def test_a_file_that_vanishes_from_a_folder_while_it_is_put_is_an_error(
    shared: Session, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a": b"a", "b": b"b" * 100_000, "c": b"c"})
    opened, calls = os.open, 0

    def vanishing(path: Any, *rest: Any, **named: Any) -> int:
        nonlocal calls
        if path == str(tmp_path.resolve() / "b"):
            calls += 1
            if calls == 2:  # the first time it is looked at, the second time it is sent
                raise FileNotFoundError(2, "No such file or directory", "b")
        return opened(path, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", vanishing)
        with pytest.raises(BadPathError, match="No such file or directory"):
            shared.put(f"{place}/copy", tmp_path)
    assert calls == 2
    assert b"copy/b" not in content(shared, place)
    assert [line for line in names(shared, place) if "part" in line] == []
    shared.put(f"{place}/copy", tmp_path)
    assert len(content(shared, f"{place}/copy")) == 3


def test_a_full_disk_is_an_error_and_leaves_no_half_file(executor: Executor, tmp_path: Path) -> None:
    write(tmp_path, {"big": b"x" * (5 << 20)})
    with executor.session(limits=Limits(disk="4m")) as session:
        session.put("inputs/x", b"old")
        for source in (b"x" * (5 << 20), tmp_path / "big"):
            with pytest.raises(SandboxError, match="No space left") as caught:
                session.put("inputs/x", source)
            assert "Limits(disk=" in caught.value.hint
        assert content(session, "inputs") == {b"x": b"old"}
        assert session.exec("echo works").stdout == "works\n"
        session.put("inputs/x", b"x" * (3 << 20))
        assert len(session.read("inputs/x")) == 3 << 20


def test_a_folder_larger_than_the_disk_is_an_error_and_puts_nothing(
    executor: Executor, tmp_path: Path
) -> None:
    write(tmp_path, {"a": b"x" * (3 << 20), "b": b"x" * (3 << 20)})
    with executor.session(limits=Limits(disk="4m")) as session:
        with pytest.raises(BadPathError, match="is larger than the 4,194,304 bytes"):
            session.put("inputs/x", tmp_path)
        assert content(session, "inputs") == {}


def test_a_cancelled_put_leaves_no_half_file(runtime: str, executor: Executor) -> None:
    data = b"x" * (100 << 20)

    async def work() -> tuple[str, bytes]:
        async with AsyncExecutor(skills=[], runtime=runtime) as own, own.session() as session:
            task = asyncio.create_task(session.put("inputs/x", data))
            while not (await session.exec("ls -A inputs")).stdout:
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            left = (await session.exec("ls -A inputs")).stdout
            await session.put("inputs/y", b"works")
            return left, await session.read("inputs/y")

    assert asyncio.run(work()) == ("", b"works")


# -- reading --


def test_read_gives_the_exact_bytes(shared: Session, place: str) -> None:
    data = bytes(range(256)) * 4000
    shared.put(f"{place}/x", data)
    assert shared.read(f"{place}/x") == data
    assert shared.read(f"/workspace/{place}/x") == data
    assert shared.read(f"work/{place}/x") == data


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "there is no such file"),
        ("missing/x", "there is no such file"),
        ("file/x", "there is no such file"),
        ("folder", "it is a folder"),
        ("out", "it is a link, and links are not followed"),
        ("in", "it is a link, and links are not followed"),
        ("dangling", "it is a link, and links are not followed"),
        ("etc/passwd", "it leads out of the workspace"),
        ("pipe", "it is not a regular file"),
        ("socket", ""),
    ],
)
def test_read_says_why_there_is_no_file_to_read(shared: Session, place: str, name: str, why: str) -> None:
    made = (
        "import os, socket, sys\nos.chdir(sys.argv[1])\nos.mkdir('folder'); os.mkfifo('pipe')\n"
        "open('file', 'w').write('x')\nos.symlink('/etc/passwd', 'out'); os.symlink('file', 'in')\n"
        "os.symlink('nowhere', 'dangling'); os.symlink('/etc', 'etc')\n"
        "socket.socket(socket.AF_UNIX).bind('socket')\n"
    )
    assert shared.exec(["python3", "-c", made, place]).stderr == ""
    assert shared.read(f"{place}/file") == b"x"
    if why:
        with pytest.raises(BadPathError) as caught:
            shared.read(f"{place}/{name}")
        assert caught.value.message == f"cannot read {f'{place}/{name}'!r}: {why}"
    else:
        with pytest.raises(SandboxError):
            shared.read(f"{place}/{name}")


@pytest.mark.parametrize("path", ["", ".", "..", "../etc/passwd", "/etc/passwd", "/proc/1/environ", "a\0b"])
def test_read_refuses_what_is_outside(shared: Session, path: str) -> None:
    with pytest.raises(BadPathError):
        shared.read(path)


# -- removing --


def test_remove_takes_files_folders_and_links_and_nothing_else(shared: Session, place: str) -> None:
    shared.exec(f"cd {place}; mkdir -p a/b kept; touch f a/f a/b/f kept/f; ln -s kept l; ln -s /etc/passwd p")
    for name in ("f", "a", "l", "p"):
        shared.remove(f"{place}/{name}")
    assert names(shared, place) == ["d kept", "f kept/f"]
    assert "root:" in shared.exec("cat /etc/passwd").stdout


def test_removing_what_is_not_there_is_no_error(shared: Session, place: str) -> None:
    shared.remove(f"{place}/missing")
    shared.remove(f"{place}/missing/below")


def test_remove_does_not_follow_links_below_a_folder(shared: Session, place: str) -> None:
    shared.exec(
        f"cd {place}; mkdir a kept; touch kept/f; ln -s ../kept a/l; ln -s /tmp a/t; touch /tmp/kept-$$"
    )
    before = shared.exec("ls /tmp").stdout
    shared.remove(f"{place}/a")
    assert names(shared, place) == ["d kept", "f kept/f"]
    assert shared.exec("ls /tmp").stdout == before


def test_remove_takes_a_tree_of_three_thousand_levels(shared: Session, place: str) -> None:
    deep = (
        "import os, sys\nos.chdir(sys.argv[1]); os.mkdir('deep'); os.chdir('deep')\n"
        "for _ in range(3000):\n    os.mkdir('d'); open('f', 'w').close(); os.chdir('d')\n"
    )
    assert shared.exec(["python3", "-c", deep, place]).stderr == ""
    shared.remove(f"{place}/deep")
    assert names(shared, place) == []


def test_remove_takes_folders_without_any_permission(shared: Session, place: str) -> None:
    shared.exec(f"cd {place}; mkdir -p a/b/c/d; touch a/f a/b/f a/b/c/d/f; chmod 000 a/f a/b/c/d a/b/c a/b a")
    shared.remove(f"{place}/a")
    assert names(shared, place) == []


def test_remove_takes_a_folder_with_names_like_its_own(shared: Session, place: str) -> None:
    shared.exec(f"mkdir -p {place}/a/.gone-{{1,2,3}}/x/y {place}/a/s/t/u/v")
    shared.remove(f"{place}/a")
    assert names(shared, place) == []


def test_remove_takes_thousands_of_files(session: Session) -> None:
    session.exec(
        "mkdir work/many; cd work/many; for d in $(seq 60); do mkdir $d; done; touch {1..60}/{1..60}"
    )
    session.remove("work/many")
    assert session.exec("ls -A work").stdout == "inputs\n"


@pytest.mark.parametrize("name", ["inputs", "work", "out", "runs", "$OUTPUT_DIR", "/workspace/work/"])
def test_a_folder_that_every_session_has_is_emptied_not_removed(shared: Session, name: str) -> None:
    shared.exec("rm -rf inputs/* out/*; for d in inputs work out; do mkdir $d/sub; touch $d/f $d/sub/f; done")
    before = names(shared, "/workspace", "%y %m %P %l")
    shared.remove(name)
    gone = name.replace("$OUTPUT_DIR", "out").replace("/workspace/", "").strip("/")
    kept = [line for line in before if f" {gone}/" not in line or " work/inputs ../inputs" in line]
    assert names(shared, "/workspace", "%y %m %P %l") == kept


@pytest.mark.parametrize(
    "path", ["", ".", "/", "skills", "/workspace", "/skills", "../x", "/etc/passwd", "a\0b"]
)
def test_remove_refuses_the_roots_and_what_is_outside(shared: Session, path: str) -> None:
    with pytest.raises(BadPathError):
        shared.remove(path)


def test_put_leaves_the_source_as_it_was(shared: Session, place: str, tmp_path: Path) -> None:
    write(tmp_path, {"a.sh": b"#!/bin/sh\r\n", "sub/b": b"b"})
    before = {
        path: (stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")
    }
    shared.put(f"{place}/copy", tmp_path)
    shared.exec(f"rm -rf {place}/copy; echo x > {place}/copy")
    after = {
        path: (stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")
    }
    assert after == before
    assert (tmp_path / "a.sh").read_bytes() == b"#!/bin/sh\r\n"
