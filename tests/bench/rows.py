"""The rows of the bench: each does one job by several systems."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from executor import Executor, Limits, OutputLimits, PoolSettings, Session
from tests.bench import bridge
from tests.bench.alone import RUNS, SESSIONS, alone
from tests.bench.systems import BIG, MIB, TRUE, Docker, bare, bwrap, many, tar

Systems = dict[str, Callable[[], object]]  # a float that comes back is the value, else its time in ms is
FILES, TREE = 1000, 5000
LARGE = Limits(memory="2g", disk="640m", inodes=40_000)
IMPORTS = "asyncio, email.message, sqlite3, xml.dom.minidom"
EVERYTHING = OutputLimits(max_files=10_000, max_total_bytes=1 << 30)


@dataclass
class Row:
    """One job. The first system is what the ratios are of."""

    name: str
    systems: Systems
    rounds: int = 15
    unit: str = "ms"
    warm: bool = True
    """Do it once unmeasured."""


@dataclass
class Ours:
    """An executor of one runtime with an open session, and one whose sandboxes wait in a pool."""

    name: str
    executor: Executor
    session: Session
    pooled: Executor
    skills: Path

    def first_result(self, executor: Executor) -> float:
        """Create to first result; closing is not counted, as with the others that remove it later."""
        began = time.perf_counter()
        session = executor.session()
        session.exec(TRUE)
        took = time.perf_counter() - began
        session.close()
        return took * 1000

    def from_pool(self) -> float:
        pool: Any = self.pooled._inner._runtime
        while pool.ready < pool._size:
            time.sleep(0.02)
        time.sleep(0.3)  # what waits is up by now, as it is wherever sessions do not come back to back
        return self.first_result(self.pooled)

    def exec_async(self, command: Sequence[str]) -> float:
        """A run as a caller with an event loop has it."""

        async def work() -> float:
            began = time.perf_counter()
            await self.session._inner.exec(command)
            return time.perf_counter() - began

        return self.session._loop.run(work()) * 1000

    def get(self, folder: str) -> float:
        """The transfer of every file below a folder, without what a collection does with it."""

        async def work() -> float:
            channel = await self.session._inner._ready()
            listing = await channel.list_files([folder.encode()])
            names = sorted(entry.path for entry in listing.entries if entry.kind == 1)
            began = time.perf_counter()
            await channel.get_files(
                names, limit=BIG, begin=lambda *_: None, chunk=lambda _: None, end=lambda _: None
            )
            return time.perf_counter() - began

        return self.session._loop.run(work()) * 1000


@contextmanager
def ours(runtime: str, skills: Path) -> Iterator[Ours]:
    with (
        Executor(skills=[skills], runtime=runtime) as executor,
        Executor(skills=[], runtime=runtime, pool=PoolSettings(size=2)) as pooled,
        executor.session(limits=LARGE) as session,
    ):
        yield Ours(runtime, executor, session, pooled, skills)


def rows(mine: list[Ours], peer: Docker | None, work: Path, only: str = "") -> Iterator[Row]:
    """The rows, in groups of which those are left out that have none whose name holds `only`."""
    groups: dict[tuple[str, ...], Callable[[], Iterator[Row]]] = {
        ("true", "python3 -c pass", "python3 -I -S -c pass", "node -e 0"): partial(runs, mine, peer),
        (f"python3 script importing {IMPORTS}",): partial(imports, mine, work),
        ("stdout 1 MiB", "stdout 256 MiB", "memory for stdout of 256 MiB"): partial(output, mine, peer),
        ("create to first result",): partial(starts, mine, peer),
        ("put 1,000 files", "get 1,000 files", "collect 1,000 files"): partial(small, mine, peer, work),
        ("put 5,000 files", "get 5,000 files"): partial(tree, mine, peer, work),
        ("put one file of 256 MiB", "get one file of 256 MiB"): partial(large, mine, peer, work),
        ("stage a skill of 1,000 files",): partial(staging, mine),
        ("call of a granted tool",): partial(calls, mine),
        ("runs per second", "an idle session", "host process"): partial(crowds, mine),
    }
    for names, group in groups.items():
        if any(only in name or name in only for name in names):
            yield from group()


def runs(mine: list[Ours], peer: Docker | None) -> Iterator[Row]:
    commands = {
        "true": TRUE,
        "python3 -c pass": ["/usr/bin/python3", "-c", "pass"],
        "python3 -I -S -c pass": ["/usr/bin/python3", "-I", "-S", "-c", "pass"],
    }
    if Path("/usr/bin/node").exists():  # where the image has it
        commands["node -e 0"] = ["/usr/bin/node", "-e", "0"]
    for name, command in commands.items():
        systems: Systems = {"bare subprocess": partial(bare, command)}
        if shutil.which("bwrap"):
            systems["bubblewrap per command"] = partial(bwrap, command)
        for our in mine:
            systems[our.name] = partial(our.session.exec, command)
            systems[our.name + ", async"] = partial(our.exec_async, command)
        if peer:
            systems["docker exec"] = partial(peer.exec_cli, command)
            systems["SDK exec_run"] = partial(peer.exec_sdk, command)
        yield Row(name, systems, rounds=60 if name == "true" else 20)


def imports(mine: list[Ours], work: Path) -> Iterator[Row]:
    script = work / "imports.py"
    script.write_text(f"import sys\nprint('asyncio' in sys.modules)\nimport {IMPORTS}\n")
    systems: Systems = {"bare subprocess": partial(bare, ["/usr/bin/python3", str(script)])}
    with ExitStack() as open_sessions:
        for our in mine:
            warm = open_sessions.enter_context(our.executor.session(warm=["python:" + IMPORTS]))
            for session, how in ((our.session, "cold"), (warm, "warm")):
                session.put("imports.py", script)
                systems[f"{our.name}, {how}"] = partial(session.exec, ["python3", "imports.py"])
            while warm.exec(["python3", "imports.py"]).stdout != "True\n":
                time.sleep(0.1)
        yield Row(f"python3 script importing {IMPORTS}", systems)


def output(mine: list[Ours], peer: Docker | None) -> Iterator[Row]:
    for name, size, rounds in (("stdout 1 MiB", MIB, 15), ("stdout 256 MiB", BIG, 3)):
        command = ["head", "-c", str(size), "/dev/zero"]
        systems: Systems = {"bare subprocess": partial(bare, command)}
        for our in mine:
            systems[our.name] = partial(our.session.exec, command)
            systems[our.name + ", streamed"] = partial(our.session.exec, command, on_output=ignore)
        if peer:
            systems["docker exec"] = partial(peer.exec_cli, command)
            systems["SDK exec_run"] = partial(peer.exec_sdk, command)
        yield Row(name, systems, rounds=rounds)
    systems = {"bare subprocess": partial(alone, "peak", "flood", "bare", "")}
    for our in mine:
        systems[our.name] = partial(alone, "peak", "flood", our.name, "kept")
        systems[our.name + ", streamed"] = partial(alone, "peak", "flood", our.name, "streamed")
    yield Row("memory for stdout of 256 MiB", systems, rounds=3, unit="MiB", warm=False)


def starts(mine: list[Ours], peer: Docker | None) -> Iterator[Row]:
    systems: Systems = {}
    if peer:
        systems["docker run --rm"] = partial(peer.run_cli, TRUE)
        systems["SDK create, start, exec"] = partial(peer.create_start_exec, TRUE)
    if shutil.which("bwrap"):
        systems["bubblewrap per command"] = partial(bwrap, TRUE)
    for our in mine:
        systems[our.name] = partial(our.first_result, our.executor)
        systems[our.name + ", pooled"] = our.from_pool
    yield Row("create to first result", systems)


def small(mine: list[Ours], peer: Docker | None, work: Path) -> Iterator[Row]:
    yield from folder(mine, peer, work, many(work / "small", FILES), FILES, rounds=7)
    systems: Systems = {
        our.name: partial(our.session.collect, "inputs/small/*", limits=EVERYTHING) for our in mine
    }
    yield Row(f"collect {FILES:,} files", systems, rounds=7)


def tree(mine: list[Ours], peer: Docker | None, work: Path) -> Iterator[Row]:
    yield from folder(mine, peer, work, many(work / "tree", TREE, levels=True), TREE, rounds=3)
    for our in mine:
        our.session.remove("inputs/tree")


def folder(
    mine: list[Ours], peer: Docker | None, work: Path, source: Path, count: int, rounds: int
) -> Iterator[Row]:
    name = source.name
    systems: Systems = {"put_archive": partial(peer.put_archive, tar(source))} if peer else {}
    systems["cp -a"] = partial(copy, source, work)
    for our in mine:
        systems[our.name] = partial(our.session.put, f"inputs/{name}", source)
    yield Row(f"put {count:,} files", systems, rounds=rounds)
    systems = {"get_archive": partial(peer.get_archive, f"/opt/{name}")} if peer else {}
    for our in mine:
        systems[our.name] = partial(our.get, f"/workspace/inputs/{name}")
    yield Row(f"get {count:,} files", systems, rounds=rounds)


def large(mine: list[Ours], peer: Docker | None, work: Path) -> Iterator[Row]:
    big = work / "big"
    big.write_bytes(os.urandom(MIB) * (BIG // MIB))
    systems: Systems = {"cp": partial(bare, ["cp", str(big), str(work / "copy")])}
    if peer:
        systems["docker exec -i cat"] = partial(peer.exec_cli, ["sh", "-c", "cat >/opt/big"], stdin=big)
        systems["put_archive"] = partial(peer.put_archive, tar(big))
    for our in mine:
        systems[our.name] = partial(our.session.put, "inputs/big", big)
    yield Row("put one file of 256 MiB", systems, rounds=7)
    systems = {}
    if peer:
        systems["docker exec cat"] = partial(peer.exec_cli, ["cat", "/opt/big"])
        systems["get_archive"] = partial(peer.get_archive, "/opt/big")
    for our in mine:
        systems[our.name] = partial(our.get, "/workspace/inputs/big")
    yield Row("get one file of 256 MiB", systems, rounds=7)
    for our in mine:
        our.session.remove("inputs/big")


def ignore(*_: object) -> None:
    pass


def copy(folder: Path, work: Path) -> None:
    bare(["cp", "-a", str(folder), tempfile.mkdtemp(dir=work)])


def staging(mine: list[Ours]) -> Iterator[Row]:
    changed = mine[0].skills / "big-skill" / "references" / "changes.md"

    def change(our: Ours) -> float:
        changed.write_text(str(time.time()))
        began = time.perf_counter()
        our.session.load("big-skill")
        return (time.perf_counter() - began) * 1000

    systems: Systems = {our.name: partial(change, our) for our in mine}
    yield Row(f"stage a skill of {FILES:,} files, one changed", systems, rounds=5)
    time.sleep(0.1)
    systems = {our.name: partial(our.session.load, "big-skill") for our in mine}
    yield Row(f"stage a skill of {FILES:,} files, unchanged", systems)


def calls(mine: list[Ours]) -> Iterator[Row]:
    """The two are measured in turns inside a sandbox; these are the medians that came out."""
    systems: Systems = {}
    for our in mine:
        row = bridge.calls(our.session, 300)["one at a time"]
        systems[f"Unix socket echo, {our.name}"] = partial(row["echo"].__getitem__, 0)
        systems[our.name] = partial(row["call"].__getitem__, 0)
    yield Row("call of a granted tool", systems, rounds=1, warm=False)


def crowds(mine: list[Ours]) -> Iterator[Row]:
    """Many sessions at one time, and what each costs while it does nothing."""
    found = {our.name: alone("", "crowd", our.name) for our in mine}
    systems: Systems = {}
    for name, values in found.items():  # each beside a bare one of the same minute
        systems[f"bare fork and exec, beside {name}"] = partial(dict.__getitem__, values, "bare")
        systems[name] = partial(dict.__getitem__, values, "rate")
    yield Row(f"runs per second, {SESSIONS} sessions with {RUNS} each", systems, rounds=1, unit="/s")
    for name, unit, key in (
        ("memory of an idle session", "MiB", "session"),
        ("memory of the host process with them", "MiB", "host"),
        ("host's CPU for an idle session", "ms/min", "idle"),
    ):
        systems = {runtime: partial(dict.__getitem__, values, key) for runtime, values in found.items()}
        yield Row(name, systems, rounds=1, unit=unit, warm=False)
