"""`make bench`: what a run, a start and a transfer cost, beside what people use today.

All systems of a row are measured in one process, in turns (one round of each, then the next round), so that
the machine's mood hits all alike; the table shows medians, the spread (10th to 90th percentile) and the ratio
to the first system of its row. Compare ratios, not milliseconds. Bounds are printed as met or not met;
nothing here is an assertion.

    python -m tests.bench.bench [--rounds N] [--only NAME] [--json FILE] [--svg FILE] [--runtime NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from executor.errors import ExecutorError
from tests.bench import chart
from tests.bench.rows import FILES, Row, ours, rows
from tests.bench.systems import docker_peer, many
from tests.bench.targets import judged

Report = dict[str, dict[str, Any]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(row: Row, rounds: int) -> dict[str, list[float]]:
    """Values of each system, its rounds in turn with those of the others."""
    values: dict[str, list[float]] = {name: [] for name in row.systems}
    for number in range(rounds + row.warm):
        for name, system in row.systems.items():
            began = time.perf_counter()
            value = system()
            took = (time.perf_counter() - began) * 1000
            if number >= row.warm:
                values[name].append(value if isinstance(value, float) else took)
    return values


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    tenth = len(ordered) // 10
    return {
        "median": statistics.median(ordered),
        "low": ordered[tenth],
        "high": ordered[-1 - tenth],
        "rounds": len(ordered),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="measured rounds of each row (default: the row's own)")
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument(
        "--runtime", action="append", help="measure only this one (default local and container)"
    )
    parser.add_argument("--json", type=Path, help="write the medians and the spread to this file")
    parser.add_argument("--svg", type=Path, help="write a chart of the medians to this file")
    options = parser.parse_args()
    report: Report = {}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        skill = work / "skills" / "big-skill"
        many(skill / "references", FILES - 1)
        (skill / "SKILL.md").write_text("---\nname: big-skill\ndescription: A large one.\n---\n")
        mine = []
        for runtime in options.runtime or ("local", "container"):
            try:
                mine.append(stack.enter_context(ours(runtime, skill.parent)))
            except ExecutorError as error:
                say(f"left out: {runtime}: {error.message}")
        containers = any(our.name == "container" for our in mine)
        peer = stack.enter_context(docker_peer()) if containers else None
        for row in rows(mine, peer, work, options.only):
            if options.only not in row.name:
                measure(row, 0)  # once, because a later row may need what it leaves
                continue
            say(f"measuring: {row.name}")
            values = measure(row, min(options.rounds or row.rounds, row.rounds))
            report[row.name] = {
                "unit": row.unit,
                "systems": {system: spread(found) for system, found in values.items()},
            }
    show(report)
    facts = {"cpus": len(os.sched_getaffinity(0)), "kernel": platform.release()}
    facts["python"] = platform.python_version()
    if options.json:
        options.json.write_text(json.dumps({**facts, "rows": report}, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(chart.svg(report, facts))
    return 0


def brief(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def show(report: Report) -> None:
    table = Table("what", "system", "median", "10 %–90 %", "ratio", title="medians of interleaved rounds")
    for name, row in report.items():
        base = next(iter(row["systems"].values()))["median"]
        for index, (system, found) in enumerate(row["systems"].items()):
            table.add_row(
                name if not index else "",
                system,
                f"{brief(found['median'])} {row['unit']}",
                f"{brief(found['low'])}–{brief(found['high'])}",
                f"{found['median'] / base:.2f}×" if base else "",
                end_section=index == len(row["systems"]) - 1,
            )
    console = Console(width=120)
    console.print(table)
    medians = {
        name: {system: found["median"] for system, found in row["systems"].items()}
        for name, row in report.items()
    }
    bounds = Table("bound", "reached", "", title="bounds")
    for target, value, met in judged(medians):
        bounds.add_row(str(target), f"{value:.3g}", "met" if met else "[bold]not met[/bold]")
    if bounds.row_count:
        console.print(bounds)


if __name__ == "__main__":
    sys.exit(main())
