"""`make bench-peers`: the same jobs by other public packages, on the same engine with the same image.

Each gets an environment of its own below the cache folder, filled by `pip` the first time, and a bounded
time. One that cannot run here is left out with its reason. Ratios are to ours in the same run.

    python -m tests.bench.peers [--rounds 15] [--only NAME] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from functools import partial
from pathlib import Path

import platformdirs
from rich.console import Console
from rich.table import Table

from executor import Executor, OutputLimits
from executor.runtimes.container import DEFAULT_IMAGE
from tests.bench.systems import TRUE, many

PACKAGES = {
    "llm-sandbox": ["llm-sandbox[docker]>=0.3,<0.4"],
    "openai-agents": ["openai-agents>=0.20", "docker>=7,<8"],
    "autogen-ext": ["autogen-ext[docker]>=0.7,<0.8", "autogen-core>=0.7,<0.8"],
    "swe-rex": ["swe-rex>=1.4,<2"],
}
LEFT_OUT = {
    "inspect-ai": "it starts sandboxes by `docker compose`, with an image and a compose file of its own",
    "smolagents": "it builds an image with a Jupyter server, which needs a registry and an index",
}
EVERYTHING = OutputLimits(max_files=10_000)
INSTALL, RUN = 300, 180  # seconds at most, for each
JOBS = ("create to first result", "true", "python script", "put 1,000 files", "get 1,000 files")
Times = dict[str, list[float]]


class Skipped(Exception):
    """Why a package was left out."""


def environment(name: str) -> Path:
    """The Python of a package's environment, which is made if it is not there."""
    folder = Path(platformdirs.user_cache_dir("executor-bench-peers")) / name
    python = folder / "bin" / "python"
    done = folder / "installed"
    if done.exists():
        return python
    venv.create(folder, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[name]]
    run(command, INSTALL, "it cannot be installed")
    done.touch()
    return python


def run(command: list[str], seconds: int, what: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise Skipped(f"{what} within {seconds} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise Skipped(f"{what}: {lines[-1][:200] if lines else f'status {done.returncode}'}")
    return done.stdout


def peer(name: str, rounds: int, folder: Path) -> Times:
    words = [name, DEFAULT_IMAGE, str(rounds), str(folder)]
    adapters = Path(__file__).with_name("adapters.py")
    said = run([str(environment(name)), str(adapters), *words], RUN, "it does not run here")
    found: Times = json.loads(said.splitlines()[-1])
    return found


def ours(rounds: int, folder: Path) -> Times:
    found: Times = {job: [] for job in JOBS}
    with Executor(skills=[], runtime="container") as executor:
        for _ in range(3):
            began = time.perf_counter()
            session = executor.session()
            session.exec(TRUE)
            found["create to first result"].append((time.perf_counter() - began) * 1000)
            session.close()
        with executor.session() as session:
            works: dict[str, tuple[int, Callable[[], object]]] = {
                "true": (rounds, partial(session.exec, ["true"])),
                "python script": (rounds, partial(session.exec, ["python3", "-c", "print(sum(range(10)))"])),
                "put 1,000 files": (3, partial(session.put, "work/many", folder)),
                "get 1,000 files": (3, partial(session.collect, "work/many/**", limits=EVERYTHING)),
            }
            for job, (times, work) in works.items():
                for _ in range(times):
                    began = time.perf_counter()
                    work()
                    found[job].append((time.perf_counter() - began) * 1000)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="packages whose name holds this text")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("DOCKER_HOST", "unix:///var/run/docker.sock")
    console = Console(width=130)
    medians: dict[str, dict[str, float]] = {}
    skipped = dict(LEFT_OUT)
    with tempfile.TemporaryDirectory() as work:
        folder = many(Path(work) / "many", 1000)
        for name in ("ours (container)", *PACKAGES):
            if options.only not in name and not name.startswith("ours"):
                continue
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            try:
                ours_now = name.startswith("ours")
                found = ours(options.rounds, folder) if ours_now else peer(name, options.rounds, folder)
            except Skipped as why:
                skipped[name] = str(why)
                continue
            medians[name] = {job: statistics.median(times) for job, times in found.items() if times}
    table = Table("ms", *JOBS, title="medians; in brackets: times ours")
    base = medians["ours (container)"]
    for name, jobs in medians.items():
        cells = [f"{jobs[job]:,.1f} ({jobs[job] / base[job]:.1f})" if job in jobs else "–" for job in JOBS]
        table.add_row(name, *cells)
    console.print(table)
    for name, reason in skipped.items():
        console.print(f"left out: {name}: {reason}", markup=False)
    if options.json:
        options.json.write_text(json.dumps({"milliseconds": medians, "left_out": skipped}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
