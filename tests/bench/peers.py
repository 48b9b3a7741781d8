"""`make bench-peers`: the same jobs by other public packages, on the same engine with the same image.

Each package has an environment, an image and a process of its own (`packages.py`, `adapters.py`), and so have
we. A round is one job of each system in turn, so that the machine's mood hits all alike. The table shows
medians, the 10th to 90th percentile, and in brackets how many times ours. One that fails or hangs is ended
with its containers, gets no more jobs, and is listed with what it said.

    python -m tests.bench.peers [--rounds 15] [--only NAME] [--json FILE] [--svg FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from docker.errors import DockerException
from rich.console import Console
from rich.table import Table

from tests.bench import chart
from tests.bench.adapters import Setup, brief
from tests.bench.bench import brief as figure
from tests.bench.bench import say, spread
from tests.bench.packages import PACKAGES, Images, Skipped, compose, environment
from tests.bench.systems import many

OURS = ("container", "local")
CREATE, CLOSE = "create to first result", "close"
RUNS = ("true", "python script")
FILES = ("put 1,000 files", "get 1,000 files")
JOBS = (CREATE, *RUNS, *FILES, CLOSE)
SLOW = 3
"""Rounds of the jobs that take long: starts, ends, files."""
LIMITS = {"prepare": 60.0, CREATE: 120.0}
LIMIT = 60.0  # seconds at most for any other job
ADAPTERS = Path(__file__).with_name("adapters.py")
TITLE = "The same jobs by other packages"


class System:
    """A process that does jobs in sandboxes of one package, and what they took."""

    def __init__(self, name: str, command: Sequence[str], log: Path, variables: dict[str, str]) -> None:
        self.name = name
        self.times: dict[str, list[float]] = {}
        self.version = ""
        self.notes: list[str] = []
        self.stopped = ""
        """Why it gets no more jobs."""
        self.clean: Callable[[], None] = lambda: None
        """Ends what it leaves in the engine."""
        self._log = log
        self._came = b""
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **variables},
                start_new_session=True,  # so that what it starts can be ended with it
            )

    def do(self, job: str, number: int = 0, *, count: bool = True) -> None:
        """One job, bounded; not counted when it is the one that imports everything."""
        if self.stopped:
            return
        try:
            found = self._ask({"job": job, "number": number}, LIMITS.get(job, LIMIT))
        except Skipped as why:
            found = {"error": why}
        self.notes = found.get("notes", self.notes)
        self.version = found.get("version", self.version)
        if "error" in found:
            self.stopped = f"{job}: {found['error']}"
            self.end()
            self.clean()
        elif "ms" in found and count:
            self.times.setdefault(job, []).append(float(found["ms"]))

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        out = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            while b"\n" not in self._came:
                if not select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise Skipped(f"no answer within {seconds:g} s")
                piece = os.read(out, 1 << 16)
                if not piece:
                    raise Skipped(self._last_words())
                self._came += piece
        except BrokenPipeError:
            raise Skipped(self._last_words()) from None
        line, _, self._came = self._came.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        deadline = time.monotonic() + 5  # its end comes soon after the end of what it says
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT  # its number stays its own until `end`
        while os.waitid(os.P_PID, self._process.pid, how) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self.end()
        lines = self._log.read_text(errors="replace").splitlines()
        said = brief(lines[-1]) if lines else "it said nothing"
        return f"its process ended with status {self._process.returncode}: {said}"

    def end(self) -> None:
        """The process, and every process that it has started."""
        if self._process.returncode is not None:  # its number may be another's by now
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@contextlib.contextmanager
def system(name: str, images: Images, folder: Path, work: Path) -> Iterator[System]:
    """A package's process; Skipped when it cannot be had. Nothing of it is left afterwards."""
    scratch = work / name
    scratch.mkdir()
    variables = {"TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "tests.bench.adapters"]
    setup = Setup(name, "", str(folder))
    with contextlib.ExitStack() as stack:
        if name not in OURS:
            stack.callback(images.remove, name)
            try:
                python = environment(name)
                if PACKAGES[name].compose:
                    variables |= compose(name, python)
                setup.image = images.build(name, python)
                setup.host_network = images.host_network
            except DockerException as error:
                raise Skipped(f"its image: {brief(str(error))}") from None
            command = [str(python), str(ADAPTERS)]
        made = System(name, [*command, json.dumps(asdict(setup))], work / f"{name}.log", variables)
        stack.callback(made.end)
        if name not in OURS:
            made.clean = partial(images.end_containers, name)
        yield made


def measure(systems: Sequence[System], rounds: int) -> None:
    """All jobs of all systems. The sandboxes of the last start are those in which the rest is done."""

    def turn(*jobs: str, number: int = 0, count: bool = True) -> None:
        for each in systems:
            for job in jobs:
                each.do(job, number, count=count)

    turn("prepare", count=False)
    for number in range(SLOW):
        say(f"measuring: starts, {number + 1} of {SLOW}")
        turn(CREATE, CLOSE, count=number > 0)
    turn(CREATE)
    for number in range(rounds + 1):
        say(f"measuring: runs, {number} of {rounds}")
        turn(*RUNS, count=number > 0)
    for number in range(SLOW + 1):
        say(f"measuring: files, {number} of {SLOW}")
        turn(*FILES, number=number, count=number > 0)
    turn(CLOSE)


def outcome(systems: Sequence[System], left_out: dict[str, str]) -> dict[str, Any]:
    """What is written as JSON: rows as those of `bench.json`, and what is to be said of each system."""
    rows: dict[str, dict[str, Any]] = {}
    for job in JOBS:
        found = {each.name: spread(each.times[job]) for each in systems if each.times.get(job)}
        if found:
            rows[job] = {"unit": "ms", "systems": found}
    return {
        "rows": rows,
        "versions": {each.name: each.version for each in systems if each.version},
        "notes": {each.name: each.notes for each in systems if each.notes},
        "stopped": {each.name: each.stopped for each in systems if each.stopped and each.times},
        "left_out": left_out
        | {each.name: each.stopped for each in systems if each.stopped and not each.times},
    }


def show(report: dict[str, Any], console: Console) -> None:
    rows, versions = report["rows"], report["versions"]
    table = Table(
        "ms", *JOBS, title="medians, in brackets: times ours; below them 10 % to 90 %", show_lines=True
    )
    names = dict.fromkeys(name for row in rows.values() for name in row["systems"])
    for name in names:
        cells = []
        for job in JOBS:
            systems = rows.get(job, {"systems": {}})["systems"]
            if name not in systems:
                cells.append("–")
                continue
            found = systems[name]
            times = f" ({found['median'] / systems[OURS[0]]['median']:.1f})" if OURS[0] in systems else ""
            cells.append(
                f"{figure(found['median'])}{times}\n{figure(found['low'])} to {figure(found['high'])}"
            )
        table.add_row(f"{name}\n{versions.get(name, 'ours')}", *cells)
    console.print(table)
    for name, notes in report["notes"].items():
        for note in notes:
            console.print(f"{name}: {note}", markup=False, highlight=False)
    for what in ("stopped", "left_out"):
        for name, reason in report[what].items():
            console.print(f"{what.replace('_', ' ')}: {name}: {reason}", markup=False, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="of each run; starts and files have 3")
    parser.add_argument("--only", default="", help="packages whose name holds this text, beside ours")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--svg", type=Path, help="write a chart of the medians to this file")
    options = parser.parse_args()
    # Command lines and libraries look for an engine in different places; all are told the same.
    os.environ.setdefault("DOCKER_HOST", "unix:///var/run/docker.sock")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which removes what there is
    left_out: dict[str, str] = {}
    systems: list[System] = []
    with contextlib.ExitStack() as stack:
        try:
            images = stack.enter_context(contextlib.closing(Images()))
            facts: dict[str, Any] = {"engine": images.engine}
        except DockerException as error:
            print(f"no engine: {brief(str(error))}", file=sys.stderr)
            return 1
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = many(work / "many", 1000)
        for name in (*OURS, *PACKAGES):
            if name not in OURS and options.only not in name:
                continue
            say(f"preparing: {name}")
            try:
                systems.append(stack.enter_context(system(name, images, folder, work)))
            except Skipped as why:
                left_out[name] = str(why)
        measure(systems, options.rounds)
    facts |= {"cpus": len(os.sched_getaffinity(0)), "kernel": platform.release()}
    report = {**facts, **outcome(systems, left_out)}
    show(report, Console(width=140))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(chart.svg(report["rows"], facts, rows=JOBS, title=TITLE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
