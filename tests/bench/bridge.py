"""What a call of a granted tool costs, beside a bare Unix socket echo inside the same sandbox.

The two are measured in turns in one process of the sandbox, so that the machine's mood hits both alike; the
ratio is what counts. Nothing here is an assertion.

    python tests/bench/bridge.py [--runtime local] [--rounds 300]
"""
# ruff: noqa: E501 (the scripts inside are other languages' lines)

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from rich.console import Console
from rich.table import Table

from executor import BridgeLimits, Executor, ExecutorError, Grant, Session, tool

PROBE = """
import asyncio, json, os, socket, statistics, subprocess, sys, threading, time
rounds = int(sys.argv[1])
began = time.perf_counter()
from skill_tools import tools
imported = time.perf_counter() - began
if os.fork() == 0:
    server = socket.socket(socket.AF_UNIX); server.bind("/tmp/echo"); server.listen(64)
    async def serve():
        async def one(reader, writer):
            while data := await reader.read(65536):
                writer.write(data)
        await asyncio.start_unix_server(one, sock=server)
        await asyncio.sleep(3600)
    asyncio.run(serve())
while not os.path.exists("/tmp/echo"): time.sleep(0.01)
time.sleep(0.2)
link = socket.socket(socket.AF_UNIX); link.connect("/tmp/echo")
body = b'{"method":"tool.call","params":{"name":"add","input":{"a":1,"b":2}}}'
def echo(): link.sendall(body); link.recv(65536)
def call(): tools.add(a=1, b=2)
def measure(kinds, count):
    took = {name: [] for name in kinds}
    for _ in range(count):
        for name, work in kinds.items():
            t = time.perf_counter(); work(); took[name].append(time.perf_counter() - t)
    return {name: [1000 * q for q in (statistics.median(v), sorted(v)[int(len(v) * 0.99)])] for name, v in took.items()}
found = {"import": imported * 1000, "one at a time": measure({"echo": echo, "call": call}, rounds)}
async def twenty(flood):
    reader, writer = await asyncio.open_unix_connection("/tmp/echo")
    times = []
    async def one():
        for _ in range(rounds // 10):
            t = time.perf_counter(); await tools.aio.add(a=1, b=2); times.append(time.perf_counter() - t)
    t = time.perf_counter(); await asyncio.gather(*(one() for _ in range(20))); took = time.perf_counter() - t
    links = [await asyncio.open_unix_connection("/tmp/echo") for _ in range(20)]
    echoes = []
    async def other(pair):
        for _ in range(rounds // 10):
            t = time.perf_counter(); pair[1].write(body); await pair[0].read(65536); echoes.append(time.perf_counter() - t)
    await asyncio.gather(*(other(pair) for pair in links))
    q = lambda v: [1000 * statistics.median(v), 1000 * sorted(v)[int(len(v) * 0.99)]]
    return {"echo": q(echoes), "call": q(times), "per_second": len(times) / took}
found["20 in flight"] = asyncio.run(twenty(False))
stop = False
def flood():
    while not stop: os.write(2, b"x" * 65536)
thread = threading.Thread(target=flood); thread.start()
found["20 in flight, stderr flooded"] = asyncio.run(twenty(True))
stop = True; thread.join()
t = time.perf_counter()
for _ in range(30): subprocess.run(["tool", "add", "a:=1", "b:=2"], stdout=subprocess.DEVNULL)
bash = (time.perf_counter() - t) / 30 * 1000
t = time.perf_counter()
for _ in range(30): subprocess.run(["bash", "-c", ":"])
found["Bash"] = {"tool": bash, "bash -c :": (time.perf_counter() - t) / 30 * 1000}
t = time.perf_counter()
for _ in range(10): subprocess.run([sys.executable, "-IS", "-c", "pass"])
found["Bash"]["python3 -IS -c pass"] = (time.perf_counter() - t) / 10 * 1000
print(json.dumps(found), flush=True)
os.kill(0, 9)
"""


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def calls(session: Session, rounds: int) -> dict[str, Any]:
    """What the probe found, and milliseconds of a run without a grant and with one."""
    grant = Grant(tools=[add], limits=BridgeLimits(calls=1 << 20, rate=None))  # type: ignore[arg-type]
    session.put("work/probe.py", textwrap.dedent(PROBE))
    result = session.exec(f"python3 work/probe.py {rounds}", grant=grant, timeout=250)
    if not result.stdout:
        raise SystemExit(f"{session.runtime}: {result.status} {result.stderr[-2000:]}")
    return {
        **json.loads(result.stdout),
        "plain": min(session.exec(["/bin/true"]).duration_ms for _ in range(20)),
        "granted": min(session.exec(["/bin/true"], grant=grant).duration_ms for _ in range(20)),
    }


def measure(runtime: str, rounds: int) -> None:
    with Executor(runtime=runtime) as executor, executor.session() as session:
        found = calls(session, rounds)
    table = Table(title=f"{runtime}: milliseconds, median (99th percentile)")
    for heading in ("", "Unix socket echo", "tool call", "ratio", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in ("one at a time", "20 in flight", "20 in flight, stderr flooded"):
        row = found[name]
        echo, call = row["echo"], row["call"]
        more = f"{row['per_second']:,.0f} calls/s" if "per_second" in row else ""
        table.add_row(name, _pair(echo), _pair(call), f"{call[0] / echo[0]:.1f}", more)
    console = Console()
    console.print(table)
    console.print({**found["Bash"], "import skill_tools": found["import"]})
    console.print(f"a run of true: {found['plain']} ms without a grant, {found['granted']} ms with one")


def _pair(values: list[float]) -> str:
    return f"{values[0]:.3f} ({values[1]:.2f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runtime", action="append")
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    for name in options.runtime or ["local", "container"]:
        try:
            measure(name, options.rounds)
        except ExecutorError as error:
            print(f"{name}: {error.message}")
