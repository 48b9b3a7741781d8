"""Runs uv and npm, and says in our words why they failed."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from executor.errors import DependencyError
from executor.workspace.text import printable

MAX_SECONDS = 1800
POLL = 0.1  # seconds between two looks whether a program is still wanted
T = TypeVar("T")
_STOP: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("stop", default=None)


async def in_thread(work: Callable[[], T]) -> T:
    """Run it in a thread. When the caller is cancelled, so are the programs that it runs."""
    stop = threading.Event()
    context = contextvars.copy_context()
    context.run(_STOP.set, stop)
    task = asyncio.get_running_loop().run_in_executor(None, context.run, work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # that it was given up
        raise


def _wait(process: subprocess.Popen[bytes], failed: str) -> None:
    deadline = time.monotonic() + MAX_SECONDS
    stop = _STOP.get()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL)
            return
        if stop is not None and stop.is_set():
            raise DependencyError(f"{failed}: it was given up")
        if time.monotonic() > deadline:
            raise DependencyError(f"{failed}: no end after {MAX_SECONDS} seconds")


def run(
    argv: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    hints: Sequence[tuple[str, str, str]],
    failed: str,
) -> str:
    """The output of a program that ended well; else DependencyError with the first of `hints` that fits."""
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise DependencyError(f"{failed}: {argv[0]} cannot be started: {error.strerror}") from None
        try:
            _wait(process, failed)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # what npm started too
            process.wait()
            raise
        out.seek(0)
        said = out.read().decode("utf-8", "replace")
    if process.returncode == 0:
        return said
    words = printable(re.sub(r"\s*\n\s*", " ", said.strip())[-1500:])
    for pattern, why, hint in hints:
        if re.search(pattern, said):
            raise DependencyError(f"{failed}: {why}. {words}", hint=hint)
    raise DependencyError(f"{failed}. {words}")
