"""`make bench-peers` without its packages: what becomes of one that fails, hangs, dies or cannot do a job."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench import peers
from tests.bench.packages import Skipped, call

# Packages that only pretend, behind the real protocol of the adapters.
PRETENDED = """
import asyncio, subprocess, sys, time
from tests.bench import adapters

class Good(adapters.Peer):
    async def create(self):
        self.notes = ["in another way"]
        print("noise on stdout", flush=True)
    async def run(self, *words):
        subprocess.run(["cat"])  # reads stdin, if there is any
        return "45\\n" if "-c" in words else ""
    async def close(self):
        pass

class Failing(Good):
    async def script(self):
        raise ConnectionError("the port\\nis closed")

class Wrong(Good):
    async def script(self):
        return "46"

class Dying(Good):
    async def create(self):
        print("the last word", file=sys.stderr)
        sys.exit(7)

class Hanging(Good):
    async def prepare(self):
        child = subprocess.Popen(["sleep", "60"])
        print(child.pid, file=sys.stderr, flush=True)
    async def create(self):
        time.sleep(60)

kind = globals()[sys.argv[1]]
asyncio.run(adapters.serve(kind(adapters.Setup("pytest", "", sys.argv[2]))))
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_one_that_cannot_is_reported_with_its_own_reason_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("Good", "Failing", "Wrong", "Dying", "Hanging")
    cleaned: list[str] = []
    systems = []
    for name in names:
        command = [sys.executable, "-c", PRETENDED, name, str(tmp_path)]
        each = peers.System(name, command, tmp_path / name, {"PYTHONPATH": os.getcwd()})
        each.clean = lambda name=name: cleaned.append(name)  # type: ignore[misc]
        systems.append(each)
    try:
        hanging = systems[-1]
        hanging.do("prepare")
        with monkeypatch.context() as patch:
            patch.setitem(peers.LIMITS, peers.CREATE, 0.2)
            hanging.do(peers.CREATE)
        peers.measure(systems, 1)
    finally:
        for each in systems:
            each.end()
    report = peers.outcome(systems, {"absent": "it cannot be installed"})

    good = systems[0]
    assert not good.stopped
    assert {job: len(times) for job, times in good.times.items()} == {
        peers.CREATE: peers.SLOW,
        "true": 1,
        "python script": 1,
        peers.CLOSE: peers.SLOW,
    }, "files are no job of a package that has no call for them"
    assert report["notes"]["Good"] == ["in another way"]
    assert report["versions"]["Good"] == pytest.__version__
    assert report["stopped"] == {
        "Failing": "python script: ConnectionError: the port",
        "Wrong": "python script: AssertionError: the script said '46'",
    }
    assert report["left_out"] == {
        "absent": "it cannot be installed",
        "Dying": "create to first result: its process ended with status 7: the last word",
        "Hanging": "create to first result: no answer within 0.2 s",
    }
    assert sorted(cleaned) == ["Dying", "Failing", "Hanging", "Wrong"]
    child = int((tmp_path / "Hanging").read_text())
    deadline = time.monotonic() + 10
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone(child)

    json.dumps(report)
    shown = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    peers.show(report, shown)
    text = " ".join(shown.export_text().split())
    assert "left out: Hanging: create to first result: no answer within 0.2 s" in text
    assert "Good │" in text and "Hanging │" not in text


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'WARNING: old' >&2; echo 'ERROR: no such version' >&2; exit 1", "pip: ERROR: no such version"),
        ("echo first >&2; echo last >&2; exit 3", "pip: last"),
        ("exit 3", "pip: status 3"),
        ("sleep 9", "pip: sh took more than 0.1 s"),
    ],
)
def test_a_step_that_fails_is_told_in_its_own_words(script: str, reason: str) -> None:
    with pytest.raises(Skipped) as error:
        call(["sh", "-c", script], "pip", seconds=0.1 if "sleep" in script else 5)
    assert str(error.value) == reason


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(Skipped, match="compose: no-such-command: No such file"):
        call(["no-such-command"], "compose")
