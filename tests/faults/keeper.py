"""A process that keeps sessions, to be killed at a chosen moment. Started by `test_killed_keeper.py`.

    python -m tests.faults.keeper STATE RUNTIME

Each line on stdin is a life: `step K` kills it with SIGKILL at its K-th step (see `Steps`), `time S` after S
seconds, `whole` not at all. Beside every second one another process clears away all the time. What a life has
finished it says in a line on stdout, before it can be killed for the next thing; `end` follows when it is
over, or dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import executor.runtimes.container
import executor.runtimes.local
from executor import AsyncExecutor, ExecutorError, Settings
from executor.workspace.archive import export_session, import_session
from executor.workspace.checkpoint import Store

KEEPING = tuple(
    str(Path(executor.__file__).parent / part) for part in ("state", "workspace", "session/keeping")
)
CHANGING = {
    *("open", "write", "close", "fsync", "replace", "rename", "link", "unlink", "mkdir", "chmod"),
    *("flock", "execute", "executemany"),
}
RUNS = 2
COUNT = """\
[ -e work/n ] || echo 0 > work/n
read n < work/n; echo $((n+1)) > work/n; echo x$n > work/n$((n%5)); echo $((n%3)) > out/x; echo $((n+1))
"""


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Steps:
    """Counts the moments before and after each call that changes something on the disk or takes a lock, made
    by the code that keeps things or by what it calls.
    """

    def __init__(self, last: int) -> None:
        self.count = 0
        self._last = last

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if event in ("c_call", "c_return") and called.__name__ in CHANGING:
            outer = frame.f_back or frame
            if frame.f_code.co_filename.startswith(KEEPING) or outer.f_code.co_filename.startswith(KEEPING):
                self.count += 1
                if self.count == self._last:
                    os.kill(os.getpid(), signal.SIGKILL)


async def life(folder: Path, runtime: str, number: int) -> None:
    """Go on with session `main`, change it, and move copies of it about."""
    settings = Settings(runtime=runtime, state_dir=str(folder))
    async with (
        AsyncExecutor(settings=settings, skills=[]) as made,
        made.session("main", durable=True) as main,
    ):
        for _ in range(RUNS):
            result = await main.exec(COUNT)
            if not any("checkpoint" in warning for warning in result.warnings if "goes on" not in warning):
                say("kept", result.stdout.strip())
        await asyncio.to_thread(_move, made.store, folder, number)
    say("closed")


def _move(store: Store, folder: Path, number: int) -> None:
    copy = f"copy-{number}"
    for file in (folder.parent / "1.tar", folder.parent / "2.tar"):
        export_session(store, "main", file, overwrite=True)
        say("exported", file.name)
    import_session(store, file, session=copy)
    say("imported", copy)
    for session in store.sessions.all(runs=0)[4:]:
        say("removing", session.id)
        store.sessions.forget(session.id)
    with contextlib.suppress(ExecutorError):  # somebody is at work
        store.clear(patience=0.2)


def clear_on(folder: Path) -> None:
    """Clear away again and again, beside the others."""
    store, parent = Store(folder), os.getppid()
    while os.getppid() == parent:
        with contextlib.suppress(ExecutorError):
            store.clear(patience=0.05)
        time.sleep(0.05)


def fork(work: Any, *args: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            work(*args)
        except BaseException as error:
            say("failed", repr(error))
        finally:
            os._exit(0)
    return child


def lived(folder: Path, runtime: str, number: int, how: str, what: str) -> None:
    steps = Steps(int(what) if how == "step" else 0)
    threading.setprofile(steps)
    sys.setprofile(steps)
    asyncio.run(life(folder, runtime, number))
    say("steps", steps.count)


def main() -> None:
    folder, runtime = Path(sys.argv[1]), sys.argv[2]
    for number, command in enumerate(sys.stdin):
        how, _, what = command.strip().partition(" ")
        child = fork(lived, folder, runtime, number, how, what)
        other = fork(clear_on, folder) if number % 2 else None  # it would clear away what is half done
        if how == "time":
            time.sleep(float(what))
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if other is not None:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
        say("end")


if __name__ == "__main__":
    main()
