"""How the cost of one thing grows with the number of others: files in the workspace, skills, open sessions.

    python -m tests.bench.scale [--runtime local] [--rounds 21]

Each table has the time at every size, the sizes measured in turns: what does not look at the others should be
flat, and what looks at each of them linear.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from executor import Executor, Limits, Session
from executor.skills.repository import Repository
from tests.bench.systems import TRUE

FILES = (0, 1_000, 10_000, 100_000)
SKILLS = (10, 100, 1_000, 2_000)
SESSIONS = (1, 50, 200)
ROOMY = Limits(memory="2g", disk="512m", inodes=200_000)
MAKE = """
import os
for number in range({count}):
    os.makedirs(folder := f"work/many/{{number // 1000}}", exist_ok=True)
    open(f"{{folder}}/{{number}}", "w").close()
"""
Jobs = dict[str, dict[int, Callable[[], object]]]  # job → size → what is measured


def measured(jobs: Jobs, rounds: int) -> dict[str, dict[int, float]]:
    """Medians in milliseconds; every size of every job in turn."""
    times: dict[str, dict[int, list[float]]] = {
        job: {size: [] for size in sizes} for job, sizes in jobs.items()
    }
    for number in range(rounds + 1):
        for job, sizes in jobs.items():
            for size, work in sizes.items():
                began = time.perf_counter()
                work()
                if number:
                    times[job][size].append((time.perf_counter() - began) * 1000)
    return {
        job: {size: statistics.median(found) for size, found in sizes.items()} for job, sizes in times.items()
    }


def show(title: str, found: dict[str, dict[int, float]]) -> None:
    sizes = list(next(iter(found.values())))
    table = Table("ms", *(f"{size:,}" for size in sizes), title=title)
    for job, medians in found.items():
        table.add_row(job, *(f"{medians[size]:.2f}" for size in sizes))
    Console(width=110).print(table)


def files(stack: ExitStack, runtime: str) -> Jobs:
    executor = stack.enter_context(Executor(skills=[], runtime=runtime))
    sessions: dict[int, Session] = {}
    for count in FILES:
        session = stack.enter_context(executor.session(limits=ROOMY))
        made = session.exec(["python3", "-c", MAKE.format(count=count)], timeout=120)
        assert made.ok, made.stderr
        sessions[count] = session
    return {
        "exec true": {count: partial(session.exec, TRUE) for count, session in sessions.items()},
        "put one file": {
            count: partial(session.put, "inputs/one.txt", b"x") for count, session in sessions.items()
        },
        "collect out/**": {count: session.collect for count, session in sessions.items()},
    }


def crowd(stack: ExitStack, runtime: str) -> Jobs:
    chosen: dict[int, Session] = {}
    for count in SESSIONS:
        executor = stack.enter_context(Executor(skills=[], runtime=runtime))
        sessions = [executor.session() for _ in range(count)]
        for session in sessions:
            session.exec(TRUE)
        chosen[count] = sessions[0]
    return {"exec true": {count: partial(session.exec, TRUE) for count, session in chosen.items()}}


def skills(stack: ExitStack) -> tuple[Jobs, Jobs]:
    """(listing for the first time, listing again)."""
    first: dict[int, Callable[[], object]] = {}
    again: dict[int, Callable[[], object]] = {}
    for count in SKILLS:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number in range(count):
            folder = root / f"skill-{number}"
            folder.mkdir()
            text = f"---\nname: skill-{number}\ndescription: The {number}th of many.\n---\n\nSay {number}.\n"
            (folder / "SKILL.md").write_text(text)
        kept = Repository([str(root)])
        first[count] = lambda root=root: Repository([str(root)]).skills()  # type: ignore[misc]
        again[count] = kept.skills
    return {"list for the first time": first}, {"list again": again}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runtime", default="local")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = {}
    with ExitStack() as stack:
        first, again = skills(stack)
        report["skills in the root"] = {**measured(first, 3), **measured(again, options.rounds)}
    for title, group in (("files in the workspace", files), ("open sessions", crowd)):
        with ExitStack() as stack:
            report[title] = measured(group(stack, options.runtime), options.rounds)
    for title, found in report.items():
        show(title, found)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
