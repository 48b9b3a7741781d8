"""Many sessions, and many at once: nothing accumulates, and nobody is disturbed by the others.

A short form runs always; EXECUTOR_SOAK=1 (`make soak`) runs a thousand sessions.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor import AsyncExecutor, Executor, Limits
from tests.conftest import REPOSITORY, REQUIRED
from tests.faults.conftest import Drive
from tests.faults.engines import SMALL, missing, own_engine

LONG = os.environ.get("EXECUTOR_SOAK", "") not in ("", "0")
COUNT = int(os.environ.get("EXECUTOR_SOAK_SESSIONS", "1000")) if LONG else 4
RATE = 0.1 if LONG else 0.5  # of sessions that do not end by themselves
GROWTH_KB = 24 << 10  # of the host between the first hundred sessions and the last, for the allocator's sake


@pytest.fixture
def engine_host(runtime: str) -> Iterator[str]:
    """An engine that nobody else uses, so that all of it can be counted; '' for the local runtime."""
    if runtime != "container":
        yield ""
        return
    if why := missing():
        if "container" in REQUIRED and "root" not in why:
            pytest.fail(why)
        pytest.skip(why)
    with own_engine() as engine:
        yield engine.host
        assert engine.shims() == []
        assert engine.overlays() == []


def soaked(runtime: str, host: str, folder: Path) -> dict[str, Any]:
    image = SMALL if host else ""
    words = [sys.executable, "-m", "tests.faults.soak", runtime, image, str(COUNT), str(RATE), "4711"]
    environment = {**os.environ, "TMPDIR": str(folder), **({"DOCKER_HOST": host} if host else {})}
    done = subprocess.run(words, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(3 * 3600 if LONG else 200)
def test_sessions_leave_nothing_however_they_end(
    executor: Executor, runtime: str, engine_host: str, tmp_path: Path
) -> None:
    """One in ten is killed at a random moment: its sandbox, its caller, its session, its host process."""
    found = soaked(runtime, engine_host, tmp_path)
    print(json.dumps({**found, "along": [look["resident_kb"] for look in found["along"]]}))
    assert found["wrong"] == []
    before, after = found["before"], found["along"][-1]
    assert after["files"] <= before["files"] + 2
    assert after["threads"] <= before["threads"] + 2  # the pool of the loop grows to its size and no further
    exact = {"cgroups", "children", "slots", "mounts", "groups", "temporary", "containers", "volumes"}
    assert {name: after.get(name, []) for name in exact} == {name: before.get(name, []) for name in exact}
    if LONG:
        assert after["resident_kb"] < found["along"][0]["resident_kb"] + GROWTH_KB


HOSTILE = {
    "flood": "yes | head -c 2000000000",
    "flood without lines": "cat /dev/zero | head -c 2000000000 >&2",
    "fork bomb": "bomb() { bomb | bomb & }; bomb; sleep 600",
    "memory": "python3 -c 'held = []\nwhile True: held.append(bytearray(1 << 20))'",
    "memory in files": "cat /dev/zero > /workspace/work/a; cat /dev/zero > /dev/shm/a; sleep 600",
    "sleepers": "for i in $(seq 20); do setsid sleep 600 & done; trap '' TERM; sleep 600",
    "busy": "for i in 1 2 3 4; do (while :; do :; done) & done; wait",
    "many files": "cd work; i=0; while :; do : > f$i; i=$((i+1)); done",
}
# A fixed job that needs the processor, memory, files and processes, and its answer.
HONEST = r"""
import hashlib, json, pathlib, subprocess, sys
data = bytes(range(256)) * 4096
path = pathlib.Path("/workspace/work/block")
path.write_bytes(data)
digest = hashlib.sha256(path.read_bytes()).hexdigest()
total = sum(i * i for i in range(200_000))
lines = subprocess.run(["sh", "-c", "seq 1000 | tr 0-9 a-j"], capture_output=True, text=True).stdout.split()
pathlib.Path("/workspace/out/answer.json").write_text(json.dumps([digest, total, len(lines), lines[-1]]))
print(digest, total, len(lines), lines[-1])
"""
ANSWER = "fbbab289f7f94b25736c58be46a994c441fd02552cc6022352e3d86d2fab7c83 2666646666700000 1000 baaa"


@pytest.mark.timeout(1200 if LONG else 200)
def test_an_honest_session_among_hostile_ones_is_right_every_time(drive: Drive) -> None:
    """Twenty sessions at once under floods, fork bombs, memory hogs and sleepers."""
    others, rounds = (20, 30) if LONG else (4, 2)

    async def work(made: AsyncExecutor, _started: list[Any]) -> None:
        limits = Limits(memory="128m", disk="16m", tmp="4m", shm="4m", pids=48, cpus=0.2)
        over = asyncio.Event()

        async def hostile(line: str) -> None:
            while not over.is_set():
                session = made.session(limits=limits)
                try:
                    while not over.is_set() and not session.lost:
                        result = await session.exec(line, timeout=2, max_output=1 << 16)
                        assert result.status != "ok" or "head" in line, result
                finally:
                    await session.close()

        lines = list(HOSTILE.values())
        loads = [asyncio.create_task(hostile(lines[number % len(lines)])) for number in range(others)]
        async with made.session() as session:
            for number in range(rounds):
                result = await session.exec(
                    ["python3", "-c", HONEST], outputs=["out/**"], timeout=120, on_output=None
                )
                assert (result.status, result.stdout.strip()) == ("ok", ANSWER), (number, result)
                (file,) = result.files
                assert json.loads(file.content or "")[:3] == [ANSWER.split()[0], 2666646666700000, 1000]
        over.set()
        ended = await asyncio.gather(*loads, return_exceptions=True)
        assert [end for end in ended if end is not None] == []

    drive(work, patience=1000 if LONG else 150)
