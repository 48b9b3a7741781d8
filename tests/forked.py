"""The command line in a process that was forked, for tests that start it again and again.

Half of the time of a command is its imports. `run` is `subprocess.run([executor, *words])` for a process that
has them already: forked for these words from one that has never run any, with stdio, folder and environment
of its own, and ended by the interpreter as always. Signals, terminals and what the start itself does are
tested with the real command; so is everything with EXECUTOR_SOAK=1.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "executor.cli"]
REPOSITORY = Path(__file__).parents[1]
REAL = bool(os.environ.get("EXECUTOR_SOAK"))
pids: set[int] = set()
"""Of the process that forks, once there is one."""
MODULES = (
    *("executor.executor", "executor.bridge.scripts", "executor.bridge.code", "executor.bridge.audit"),
    *("executor.runtimes.local", "executor.runtimes.container", "executor.testing.runner"),
    *("executor.testing.cases", "executor.workspace.checkpoint", "executor.state", "executor.deps.layers"),
    *("executor.skills.lint", "executor.skills.sources.directory"),
)


def run(
    *words: str | bytes,
    input: bytes = b"",
    text: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[Any]:
    """`executor WORDS` with its output captured."""
    line = [*COMMAND, *words]
    environment = dict(os.environ if env is None else env)
    if REAL or _options(environment) != _options(os.environ):
        given = input.decode() if text else input
        return subprocess.run(
            line, input=given, capture_output=True, text=text, cwd=cwd, env=environment, timeout=timeout
        )
    ours, theirs = zip(os.pipe(), os.pipe(), os.pipe(), strict=True)
    stdio = (ours[0], theirs[1], theirs[2])
    order = {
        "words": [os.fsdecode(word) for word in words],
        "cwd": str(cwd or Path.cwd()),
        "env": environment,
    }
    server = _server()
    server.settimeout(timeout)
    socket.send_fds(server, [b"."], stdio)
    data = json.dumps(order).encode()
    server.sendall(len(data).to_bytes(4, "big") + data)
    for fd in stdio:
        os.close(fd)
    found: dict[int, bytes] = {}
    threads = [threading.Thread(target=_read, args=(fd, found)) for fd in (ours[1], ours[2])]
    threads.append(threading.Thread(target=_write, args=(theirs[0], input)))
    for thread in threads:
        thread.start()
    status = int.from_bytes(_exactly(server, 4), "big", signed=True)
    for thread in threads:
        thread.join(timeout)
    out, err = found[ours[1]], found[ours[2]]
    if text:
        texts = [io.TextIOWrapper(io.BytesIO(raw)).read() for raw in (out, err)]
        return subprocess.CompletedProcess(line, status, *texts)
    return subprocess.CompletedProcess(line, status, out, err)


def _options(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that mean something while Python starts."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "LC_", "LANG", "PYDANTIC"))
    }


def _read(fd: int, found: dict[int, bytes]) -> None:
    with open(fd, "rb") as file:
        found[fd] = file.read()


def _write(fd: int, data: bytes) -> None:
    try:
        with open(fd, "wb") as file:
            file.write(data)
    except BrokenPipeError:
        pass


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = channel.recv(size - len(data))
        if not piece:
            raise EOFError("the process that forks has ended")
        data += piece
    return data


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,  # pipes, as the ones that take their place: Python asks once what they are
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYDANTIC_DISABLE_PLUGINS": "__all__"},
    )
    theirs.close()
    pids.add(server.pid)
    return ours


def _serve(channel: socket.socket) -> None:
    """Fork for each order until nobody gives any. Returns in the processes that are forked."""
    from executor.cli import app

    for module in (*(f"executor.cli.{module}" for module, _ in app.COMMANDS.values()), *MODULES):
        importlib.import_module(module)
    while True:
        message, stdio, _, _ = socket.recv_fds(channel, 1, 3)
        if not message:
            os._exit(0)
        order = json.loads(_exactly(channel, int.from_bytes(_exactly(channel, 4), "big")))
        child = os.fork()
        if not child:
            break
        for fd in stdio:
            os.close(fd)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        channel.sendall(status.to_bytes(4, "big", signed=True))
    channel.close()
    for target, fd in enumerate(stdio):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["executor", *order["words"]]
    sys.exit(app.main())


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
