"""Measurements that need a process of their own, whose memory nothing else has touched.

    python -m tests.bench.alone crowd RUNTIME         50 sessions with 20 runs each, then idle
    python -m tests.bench.alone flood RUNTIME WAY     256 MiB of stdout, WAY `kept` or `streamed`; or `bare`

Each prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from executor import AsyncExecutor, Executor
from tests.bench.systems import BIG, MIB, TRUE, bare

SESSIONS, RUNS, ROUNDS = 50, 20, 5


def alone(key: str, *words: str) -> Any:
    """Run this module in a process of its own; one of the numbers that it prints, or all for ''."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.alone", *words], check=True, stdout=subprocess.PIPE
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found[key] if key else found


def fork_exec() -> float:
    """Runs per second of as many commands, as many at a time as there are processors."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        began = time.perf_counter()
        list(threads.map(lambda _: bare(TRUE), range(SESSIONS * RUNS)))
        return SESSIONS * RUNS / (time.perf_counter() - began)


async def crowd(runtime: str) -> dict[str, float]:
    async with AsyncExecutor(skills=[], runtime=runtime) as executor:
        sessions = [executor.session() for _ in range(SESSIONS)]
        for first in range(0, SESSIONS, 10):
            await asyncio.gather(*(session.exec(TRUE) for session in sessions[first : first + 10]))

        async def one(session: Any) -> None:
            for _ in range(RUNS):
                await session.exec(TRUE)

        rates, bare_rates = [], []
        for _ in range(ROUNDS):
            bare_rates.append(await asyncio.to_thread(fork_exec))
            began = time.perf_counter()
            await asyncio.gather(*map(one, sessions))
            rates.append(SESSIONS * RUNS / (time.perf_counter() - began))
        before, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(12)  # two heartbeats
        idle = (time.process_time() - before) / (time.perf_counter() - began) * 60_000 / SESSIONS
        sizes = [resident(pid) for pid in guests(os.getpid() if runtime == "local" else None)]
        return {
            "rate": statistics.median(rates),
            "bare": statistics.median(bare_rates),
            "idle": idle,
            "session": statistics.fmean(sizes),
            "host": resident(os.getpid()),
        }


def flood(runtime: str, way: str) -> dict[str, float]:
    command = ["head", "-c", str(BIG), "/dev/zero"]
    if runtime == "bare":
        return {"peak": peak(lambda: bare(command))}
    with Executor(skills=[], runtime=runtime) as executor, executor.session() as session:
        session.exec(TRUE)
        on_output = (lambda *_: None) if way == "streamed" else None
        return {"peak": peak(lambda: session.exec(command, on_output=on_output))}


def peak(work: Callable[[], object]) -> float:
    """MiB by which this process grows while it works."""
    stop = threading.Event()

    def size() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = most = size()

    def watch() -> None:
        nonlocal most
        while not stop.is_set():
            most = max(most, size())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        stop.set()
        watcher.join()
    return (most - before) / MIB


def resident(pid: int | str) -> float:
    """MiB that a process holds alone, and its share of what it shares."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def guests(below: int | None) -> list[str]:
    """Process 1 of every sandbox on this machine; with `below`, of those that descend from that process."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            status = (folder / "status").read_text() if folder.name.isdigit() else ""
            command = (folder / "cmdline").read_bytes() if status else b""
        except OSError:
            continue
        first = re.search(r"^NSpid:.*\t1$", status, re.MULTILINE)
        ours = first and b"python3\0-I\0-S\0-B\0" in command and b"bwrap" not in command
        if ours and (below is None or descends(folder.name, below)):
            found.append(folder.name)
    return found


def descends(pid: str, ancestor: int) -> bool:
    while pid not in ("0", "1", str(ancestor)):
        try:
            pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            return False
    return pid == str(ancestor)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    print(json.dumps(asyncio.run(crowd(*words)) if what == "crowd" else flood(*words)))
