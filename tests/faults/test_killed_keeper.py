"""The process that keeps sessions is killed at any moment: nothing that it finished is lost, nothing half
done is taken for whole, and what opens the state afterwards finds it sound.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor import Executor
from executor.state import KeptSession
from executor.workspace.archive import import_session
from executor.workspace.checkpoint import Store
from tests.conftest import REPOSITORY

SOAK = os.environ.get("EXECUTOR_SOAK", "") not in ("", "0")
LIVES = {"local": 200, "container": 20} if SOAK else {"local": 6, "container": 1}


class Keeper:
    """The process and what it said."""

    def __init__(self, folder: Path, runtime: str) -> None:
        command = [sys.executable, "-m", "tests.faults.keeper", str(folder), runtime]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=REPOSITORY, text=True, **pipes)

    def life(self, command: str) -> list[list[str]]:
        """Let it live once: the lines that it said."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        said = []
        while (words := self._process.stdout.readline().split()) != ["end"]:
            assert words and words[0] != "failed", (command, said, words)
            said.append(words)
        return said

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def keeper(executor: Executor, runtime: str, tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path / "state", runtime)
    yield made
    made.close()


def count(store: Store, session: KeptSession) -> int:
    """The number that a session's own counter says, with every content of it looked through."""
    snapshot = store.verify(session)
    (entry,) = [entry for entry in snapshot.entries if entry.path == b"/workspace/work/n"]
    return int(b"".join(store.objects.read(entry.sha256)))


@pytest.mark.timeout(7200 if SOAK else 300)
def test_nothing_that_was_finished_is_lost_and_nothing_half_done_is_taken(
    keeper: Keeper, runtime: str, tmp_path: Path
) -> None:
    random.seed(os.environ.get("EXECUTOR_SEED", "0"))
    said = keeper.life("whole")
    (steps,) = (int(words[1]) for words in said if words[0] == "steps")
    kept, copies, exported = 0, set[str](), set[str]()
    killed = 0
    for number in range(LIVES[runtime]):
        for what, *words in said:
            if what == "kept":
                kept = int(words[0])
            elif what == "imported":
                copies.add(words[0])
            elif what == "removing":
                copies.discard(words[0])
            elif what == "exported":
                exported.add(words[0])
        killed += ["closed"] not in said
        _check(tmp_path, kept, copies, exported)
        if number % 4 == 3:
            command = f"time {random.uniform(0, 1.5):.4f}"
        else:
            command = f"step {random.randrange(1, steps)}"
        said = keeper.life(command)
    assert killed >= LIVES[runtime] // 2
    print(f"{LIVES[runtime]} lives, {killed} of them killed, {steps} steps in a whole one, counted to {kept}")
    said = keeper.life("whole")
    assert [words for words in said if words == ["closed"]]
    store = Store(tmp_path / "state")
    store.clear()
    assert import_session(Store(tmp_path / "scratch"), tmp_path / "1.tar").files
    assert not list(store.folder.rglob(".part-*"))
    statuses = {run.status for run in store.sessions.runs("main")}
    assert statuses <= {"ok", "interrupted", "lost"}


def _check(tmp_path: Path, kept: int, copies: set[str], exported: set[str]) -> None:
    store = Store(tmp_path / "state")
    sessions = {session.id: session for session in store.sessions.all()}
    assert not store.sessions.database.warnings and not store.sessions.database.set_aside
    assert count(store, sessions["main"]) >= kept
    for name, session in sessions.items():
        assert not session.open
        assert count(store, session) > 0, name
    assert copies <= sessions.keys()
    store.close()
    files = {file.name for file in tmp_path.glob("*.tar")}  # one that is not finished has another name
    assert files >= exported
    for name in files:
        _check_archive(tmp_path / name)


def _check_archive(path: Path) -> None:
    """An archive is whole, as another program sees it."""
    assert path.read_bytes()[-1024:] == bytes(1024)
    with tarfile.open(path) as tar:
        found = {member.name: tar.extractfile(member) for member in tar}
        contents = {name: file.read() for name, file in found.items() if file is not None}
    entries = json.loads(contents.pop("session.json"))["snapshot"]["entries"]
    hashes = {entry["path"].lstrip("/"): entry["sha256"] for entry in entries if entry["kind"] == "file"}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()} == hashes
