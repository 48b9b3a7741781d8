"""A guest that lies while a checkpoint is taken gets nothing onto the host but bytes under their own hash.

The guest is that of `test_channel`. Each lie ends the checkpoint with an error, and leaves the last one in
force and nothing unfinished; what is merely odd (a file that grew, one that is gone) is taken as it came.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from executor.errors import ProtocolError, SandboxError, SandboxLostError, StateError
from executor.guest.records import (
    FOLDER,
    LINK,
    MISSING,
    OTHER,
    REGULAR,
    ROOT,
    pack_chunk,
    pack_end,
    pack_file,
    pack_record,
)
from executor.guest.wire import CONTENT, END, FILE, REPLY
from executor.workspace.checkpoint import Store, Taken
from executor.workspace.objects import to_its_end
from executor.workspace.snapshot import Snapshot
from tests.unit.test_channel import Bench, bench, data, frame, run

ROOTS = (b"/workspace", b"/skills")
F, G = b"/workspace/out/f", b"/workspace/out/g"
MOST = 1 << 20


def listing(*entries: bytes) -> bytes:
    """A listing of both folders, with these entries in the first."""
    return b"".join([pack_record(ROOT, ROOTS[0]), *entries, pack_record(ROOT, ROOTS[1])])


def entry(name: bytes, kind: int = REGULAR, size: int = 3, changed: int = 1) -> bytes:
    return pack_record(kind, name, 0o644, size, changed)


async def answer(made: Bench, *contents: bytes | str) -> None:
    """Answer one request after the other with content; a text is said instead of answering."""
    for content in contents:
        stream, _ = await made.peer.until(FILE)
        if content == "":
            made.peer.writer.close()
            return
        assert isinstance(content, bytes)
        for at in range(0, len(content), 60_000):
            made.peer.send(data(stream, CONTENT, content[at : at + 60_000]))
        made.peer.send(frame(REPLY, stream) + data(stream, CONTENT, flags=END))


def take(
    store: Store, *answers: bytes | str, before: Taken | None = None
) -> tuple[Snapshot, Taken] | BaseException:
    """A checkpoint, or what it ended with."""
    found: list[Any] = []

    async def test() -> None:
        async with bench() as made:
            answering = asyncio.create_task(answer(made, *answers))
            try:
                taking = store.taking(made.channel, skills={}, most_bytes=MOST, before=before)
                async with taking as taken:
                    found.append(taken)
            except Exception as error:
                found.append(error)
            answering.cancel()

    run(test)
    return found[0]  # type: ignore[no-any-return]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


def kept(store: Store) -> tuple[int, int]:
    """Snapshots and contents; every one of them has the hash of its name, and nothing is unfinished."""
    for path in store.folder.glob("objects/*/*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    assert not list(store.folder.rglob(".part-*"))
    return len(list(store.folder.glob("snapshots/*"))), len(list(store.folder.glob("objects/*/*")))


LIES: dict[str, tuple[type[Exception], str, tuple[bytes | str, ...]]] = {
    "the same file twice": (SandboxError, "listed twice", (listing(entry(F), entry(F)),)),
    "a file that is a folder": (SandboxError, "listed twice", (listing(entry(F), entry(F, FOLDER, 0)),)),
    "something below a file": (
        SandboxError,
        "below what is no folder",
        (listing(entry(F), entry(F + b"/x")), pack_file(F, b"abc", 0) + pack_file(F + b"/x", b"abc", 0)),
    ),
    "a path that leaves": (ProtocolError, "unsafe path", (listing(entry(b"/workspace/../../etc/passwd")),)),
    "a path elsewhere": (ProtocolError, "outside the folder", (listing(entry(b"/etc/passwd")),)),
    "a folder that cannot be listed": (
        SandboxError,
        "/workspace cannot be listed",
        (pack_record(MISSING, ROOTS[0], 13) + pack_record(ROOT, ROOTS[1]),),
    ),
    "more than there can be": (
        SandboxError,
        "more than 1 MiB together",
        (listing(entry(F, size=MOST // 2 + 1), entry(G, size=MOST // 2 + 1)),),
    ),
    "more than was said, in one file": (
        ProtocolError,
        "more of a file than was asked for",
        (listing(entry(F)), pack_file(F, b"x" * MOST, 0)[:-4] + pack_chunk(b"y") + pack_end()),
    ),
    "more than was said, in all": (
        SandboxError,
        "more than 1 MiB together",
        (listing(entry(F), entry(G)), pack_file(F, b"x" * MOST, 0) + pack_file(G, b"yyy", 0)),
    ),
    "another file than asked for": (
        ProtocolError,
        "not asked for",
        (listing(entry(F)), pack_file(G, b"abc", 0)),
    ),
    "a folder for a file": (
        ProtocolError,
        "something else than a file",
        (listing(entry(F)), entry(F, FOLDER)),
    ),
    "a file less": (
        ProtocolError,
        "did not send every file",
        (listing(entry(F), entry(G)), pack_file(F, b"", 0)),
    ),
    "a link that leads nowhere": (
        SandboxError,
        "is no link",
        (listing(entry(F, LINK)), pack_record(LINK, F, 0o777, 0, 0, True) + pack_end()),
    ),
    "a link that is endless": (
        SandboxError,
        "is no link",
        (listing(entry(F, LINK)), pack_record(LINK, F, 0, 0, 0, True) + pack_chunk(b"x" * 5000) + pack_end()),
    ),
    "death in the middle": (SandboxLostError, "", (listing(entry(F)), "")),
}


@pytest.mark.parametrize(("kind", "fragment", "answers"), LIES.values(), ids=LIES)
def test_a_lie_ends_the_checkpoint(
    store: Store, kind: type[Exception], fragment: str, answers: tuple[bytes | str, ...]
) -> None:
    found = take(store, *answers)
    assert type(found) is kind, found
    assert fragment in str(found)
    assert kept(store) == (0, 0)


def test_what_is_odd_is_taken_as_it_came(store: Store) -> None:
    gone, pipe = b"/workspace/gone", b"/workspace/pipe"
    content = b"longer than it said"
    found = take(
        store,
        # A folder that the guest may not open comes once as a folder and once as nothing that it knows.
        listing(
            *(entry(F), entry(gone), entry(pipe, OTHER), entry(G, LINK)),
            *(entry(b"/workspace/out", kind) for kind in (FOLDER, OTHER)),
        ),
        pack_record(REGULAR, F, 0o4755, 3, (1 << 64) - 1, True)
        + pack_chunk(content)
        + pack_end()
        + pack_record(MISSING, gone, 2)
        + pack_record(LINK, G, 0o777, 0, 0, True)
        + pack_chunk(b"/etc/passwd")
        + pack_end(),
    )
    assert isinstance(found, tuple)
    snapshot, _ = found
    assert [(saved.path, saved.kind, saved.size) for saved in snapshot.entries] == [
        (b"/workspace/out", "folder", 0),
        (F, "file", len(content)),
        (G, "link", 0),
    ]
    assert snapshot.warnings == [
        "pipe is no file, folder or link: left out",
        "out cannot be read: what is in it is left out",
        "gone could not be read: No such file or directory",
    ]
    assert store.load(snapshot.id).entries == snapshot.entries
    assert kept(store) == (1, 1)


def test_only_what_changed_is_asked_for_again(store: Store) -> None:
    first = take(store, listing(entry(F), entry(G)), pack_file(F, b"abc", 0) + pack_file(G, b"def", 0))
    assert isinstance(first, tuple)
    same = take(store, listing(entry(F), entry(G)), before=first[1])
    assert isinstance(same, tuple) and same[0].id == first[0].id
    other = take(store, listing(entry(F), entry(G, changed=2)), pack_file(G, b"new", 0), before=first[1])
    assert isinstance(other, tuple) and other[0].id != first[0].id
    assert kept(store) == (2, 3)
    fewer = take(store, listing(entry(F)), before=other[1])
    assert isinstance(fewer, tuple)
    assert [saved.path for saved in fewer[0].entries] == [F]


def test_what_was_cleared_away_meanwhile_is_copied_again(store: Store) -> None:
    both = listing(entry(F)), pack_file(F, b"abc", 0)
    first = take(store, *both)
    assert isinstance(first, tuple)
    store.clear()  # no session ever referred to it
    assert kept(store) == (0, 0)
    again = take(store, *both, before=first[1])
    assert isinstance(again, tuple)
    assert kept(store) == (1, 1)


def test_a_content_that_is_there_in_half_is_mended(store: Store) -> None:
    """As after a loss of power on a file system that had only the name on the disk."""
    content = b"a whole content"
    place = store.objects.content(hashlib.sha256(content).hexdigest())
    for half in (b"", content[:5], b"x" * len(content)):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(half)
        assert isinstance(take(store, listing(entry(F)), pack_file(F, content, 0)), tuple)
        assert place.read_bytes() == content


def test_clearing_away_waits_for_a_checkpoint_and_a_checkpoint_for_it(store: Store) -> None:
    async def test() -> None:
        async with store.objects.shared():
            with pytest.raises(StateError, match="in use by other processes"):
                await asyncio.to_thread(store.clear, 0.05)
        with store.objects.held(alone=True):
            waiting = asyncio.ensure_future(store.objects.shared().__aenter__())
            done, _ = await asyncio.wait([waiting], timeout=0.1)
            assert not done
        await waiting

    run(test)


def test_a_cancelled_caller_waits_for_what_is_done_under_the_lock(store: Store) -> None:
    done: list[str] = []

    def work() -> None:
        time.sleep(0.3)
        done.append("work")

    async def under_the_lock() -> None:
        try:
            async with store.objects.shared():
                await to_its_end(work)
        finally:
            done.append("unlocked")

    async def test() -> None:
        task = asyncio.ensure_future(under_the_lock())
        for _ in range(3):
            await asyncio.sleep(0.03)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["work", "unlocked"]

    run(test)
