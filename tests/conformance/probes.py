"""What the tests about running look at: the processes in a sandbox, and how to wait for something.

A probe is a run like any other, so its end sweeps the sandbox too: ask once, and look at the answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from executor import Run, Session

LIST = """
import json, os
rows = []
for name in filter(str.isdigit, os.listdir("/proc")):
    if int(name) in (1, os.getpid()):
        continue
    try:
        stat = open(f"/proc/{name}/stat").read()
        words = open(f"/proc/{name}/cmdline", "rb").read().decode(errors="replace").split("\\0")[:-1]
    except OSError:
        continue
    state, parent = stat.rpartition(")")[2].split()[:2]
    rows.append([int(name), int(parent), state, stat.partition("(")[2].rpartition(")")[0], words])
print(json.dumps(rows))
"""


@dataclass(frozen=True)
class Process:
    """One line of the list of processes."""

    pid: int
    parent: int
    state: str
    name: str
    words: tuple[str, ...]

    @property
    def line(self) -> str:
        """Its command line."""
        return " ".join(self.words)


def processes(session: Session) -> list[Process]:
    """Everything that lives in the sandbox besides process 1 and this probe, zombies included."""
    result = session.exec(["python3", "-c", LIST], timeout=20)
    assert result.status == "ok", result
    return [Process(row[0], row[1], row[2], row[3], tuple(row[4])) for row in json.loads(result.stdout)]


def alive(session: Session, words: str) -> list[Process]:
    """Those whose command line holds `words`."""
    return [process for process in processes(session) if words in process.line]


def python(session: Session, program: str, *arguments: str, **options: Any) -> Any:
    """What a Python program in the sandbox prints as JSON. It must end well and say nothing else."""
    result = session.exec(["python3", "-c", program, *arguments], **options)
    assert (result.status, result.stderr) == ("ok", ""), result
    return json.loads(result.stdout)


def until(run: Run, text: str, seconds: float = 30) -> str:
    """All that comes to stdout from a background run until it has written `text`."""
    got = ""
    deadline = time.monotonic() + seconds
    while text not in got and time.monotonic() < deadline:
        piece = run.read(1)
        got += piece.stdout
        if piece.status != "running":
            break
    assert text in got, got
    return got


def eventually(check: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true answer of `check`; its last one when none came in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer or time.monotonic() > deadline:
            return answer
        time.sleep(0.02)
