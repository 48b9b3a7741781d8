"""`make bench`: what a run, a start and a transfer cost, beside what people use today.

All systems are measured in one process, in turns (one round of each, then the next round), so that the
machine's mood hits all alike; the table shows medians, the spread (10th to 90th percentile) and the ratio to
the first system of its row. Compare ratios, not milliseconds. Nothing here is an assertion.

    python tests/bench/bench.py [--rounds 15] [--only NAME] [--json FILE]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import docker
from rich.console import Console
from rich.table import Table

from executor import Executor, Session
from executor.errors import ExecutorError
from executor.runtimes.container import DEFAULT_IMAGE

System = Callable[[], Any]
COMMANDS = {
    "true": ["/bin/true"],
    "python3 -c pass": ["/usr/bin/python3", "-c", "pass"],
    "node -e 0": ["/usr/bin/node", "-e", "0"],
}
SIZES = {"stdout 1 MiB": (1 << 20, 15), "stdout 256 MiB": (256 << 20, 3)}
FILES = 1000
BWRAP = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all"]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Peers:
    """A plain container and the two usual ways to talk to it."""

    def __init__(self) -> None:
        self.client = docker.from_env(timeout=120)
        self.container = self.client.containers.run(
            DEFAULT_IMAGE, ["sleep", "3600"], detach=True, network_mode="none", user="0:0"
        )

    def close(self) -> None:
        self.container.remove(force=True)
        self.client.close()

    def exec_cli(self, command: list[str]) -> None:
        subprocess.run(["docker", "exec", self.container.id, *command], check=True, stdout=subprocess.PIPE)

    def exec_sdk(self, command: list[str]) -> None:
        self.container.exec_run(command)

    def run_cli(self, command: list[str]) -> None:
        line = ["docker", "run", "--rm", "--network", "none", DEFAULT_IMAGE, *command]
        subprocess.run(line, check=True, stdout=subprocess.PIPE)

    def put_archive(self) -> None:
        self.container.put_archive("/opt", archive())

    def get_archive(self) -> None:
        stream, _ = self.container.get_archive("/opt/many")
        for _piece in stream:
            pass


def archive() -> bytes:
    """FILES small files as a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in small_files().items():
            info = tarfile.TarInfo(f"many/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def small_files() -> dict[str, bytes]:
    return {f"f{index:04d}.txt": b"x" * 100 for index in range(FILES)}


@contextmanager
def opened(runtime: str) -> Iterator[tuple[Executor, Session]]:
    with Executor(skills=[], runtime=runtime) as executor, executor.session() as session:
        yield executor, session


def subprocess_run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def first_result(executor: Executor) -> None:
    with executor.session() as session:
        session.exec(["/bin/true"])


def rows(sessions: dict[str, tuple[Executor, Session]], peers: Peers | None, folder: Path) -> dict[str, Any]:
    """name → (rounds or None, {system: callable}); the first system is what the others are compared with."""
    found: dict[str, tuple[int | None, dict[str, System]]] = {}
    ours = {f"executor {name}": pair for name, pair in sessions.items()}
    for name, command in COMMANDS.items():
        systems: dict[str, System] = {"bare subprocess": lambda c=command: subprocess_run(c)}
        for label, (_, session) in ours.items():
            systems[label] = lambda s=session, c=command: s.exec(c)
        if shutil.which("bwrap"):
            systems["bwrap per command"] = lambda c=command: subprocess_run([*BWRAP, *c])
        if peers:
            systems["docker exec"] = lambda c=command: peers.exec_cli(c)
            systems["engine SDK exec_run"] = lambda c=command: peers.exec_sdk(c)
        found[name] = (None, systems)
    for name, (size, rounds) in SIZES.items():
        command = ["head", "-c", str(size), "/dev/zero"]
        systems = {"bare subprocess": lambda c=command: subprocess_run(c)}
        for label, (_, session) in ours.items():
            systems[label] = lambda s=session, c=command: s.exec(c)
            systems[label + ", streamed"] = lambda s=session, c=command: s.exec(c, on_output=lambda *_: None)
        if peers:
            systems["docker exec"] = lambda c=command: peers.exec_cli(c)
            systems["engine SDK exec_run"] = lambda c=command: peers.exec_sdk(c)
        found[name] = (rounds, systems)
    systems = {}
    if peers:
        systems["docker run --rm"] = lambda: peers.run_cli(["true"])
    for label, (executor, _) in ours.items():
        systems[label] = lambda e=executor: first_result(e)
    found["create to first result, close"] = (None, systems)
    systems = {
        "cp -a": lambda: subprocess_run(["cp", "-a", str(folder), tempfile.mkdtemp(dir=folder.parent)])
    }
    for label, (_, session) in ours.items():
        systems[label] = lambda s=session: s.put("inputs/many", folder)
    if peers:
        systems["put_archive"] = peers.put_archive
    found[f"put {FILES} small files"] = (5, systems)
    systems = {}
    if peers:
        systems["get_archive"] = peers.get_archive
    for label, (_, session) in ours.items():
        systems[label] = lambda s=session: s._loop.run(read_many(s._inner))
    found[f"get {FILES} small files"] = (5, systems)
    return found


async def read_many(session: Any) -> None:
    """The transfer that a collection makes, without its caps."""
    names = [f"/workspace/inputs/many/{name}".encode() for name in small_files()]
    channel = await session._ready()
    await channel.get_files(
        names, limit=1 << 20, begin=lambda *_: None, chunk=lambda _: None, end=lambda _: None
    )


def measure(systems: dict[str, System], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in systems}
    for system in systems.values():
        system()  # once, unmeasured
    for _ in range(rounds):
        for name, system in systems.items():
            began = time.perf_counter()
            system()
            times[name].append((time.perf_counter() - began) * 1000)
    return times


def spread(values: list[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 10], statistics.median(ordered), ordered[-1 - len(ordered) // 10]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds of each row (default 15)")
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--json", type=Path, help="write the medians and the spread to this file")
    options = parser.parse_args()
    report: dict[str, Any] = {}
    with ExitStack() as stack:
        sessions = {}
        for runtime in ("local", "container"):
            try:
                sessions[runtime] = stack.enter_context(opened(runtime))
            except ExecutorError as error:
                say(f"left out: {runtime}: {error.message}")
        peers = None
        if "container" in sessions and shutil.which("docker"):
            peers = Peers()
            stack.callback(peers.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "many"
        folder.mkdir()
        for name, content in small_files().items():
            (folder / name).write_bytes(content)
        for name, (rounds, systems) in rows(sessions, peers, folder).items():
            if options.only not in name:
                continue
            say(f"measuring: {name}")
            times = measure(systems, rounds or options.rounds)
            report[name] = {system: spread(values) for system, values in times.items()}
    show(report)
    if options.json:
        options.json.write_text(json.dumps({"cpus": os.cpu_count(), "milliseconds": report}, indent=1) + "\n")
    return 0


def show(report: dict[str, Any]) -> None:
    table = Table("what", "system", "median ms", "10 %–90 %", "ratio", title="medians of interleaved rounds")
    for name, systems in report.items():
        base = next(iter(systems.values()))[1]
        for index, (system, (low, median, high)) in enumerate(systems.items()):
            table.add_row(
                name if not index else "",
                system,
                f"{median:,.1f}",
                f"{low:,.1f}–{high:,.1f}",
                f"{median / base:.2f}×",
                end_section=index == len(systems) - 1,
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
