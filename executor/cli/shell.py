"""`executor shell`: a shell in the sandbox of a session, for authors. The limits are those of `executor run`.

With a terminal as stdin the shell has one too: line editing, full screens, Ctrl-C, its size. With a pipe or a
file it reads commands from there, and stdout and stderr stay two streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING

import typer

from executor.cli import arguments, options, terminal
from executor.cli.arguments import RunRequest
from executor.errors import ExecutorError

if TYPE_CHECKING:
    from executor.cli.relay import Relay
    from executor.models import ExecResult
    from executor.session import AsyncRun, AsyncSession
    from executor.settings import Settings

EPILOG = """The exit status is the shell's own, as of `executor run`. What is not saved is gone at the end.

\b
Examples:
  executor shell sales-report --input sales.csv
  executor shell ./my-skill --session work
  executor shell ./my-skill --memory 256m --save results
  echo 'ls -l; scripts/a.sh' | executor shell ./my-skill"""

# As a run sees it: no start-up file changes anything.
COMMAND = ["sh", "-c", "command -v bash >/dev/null && exec bash --norc; exec sh"]
PIECE = 4096  # bytes of stdin at a time
AHEAD = 16  # pieces that wait for the sandbox


def command(
    skill: options.Skill,
    skills: options.Skills = None,
    runtime: options.Runtime = None,
    image: options.Image = None,
    input_: options.Inputs = None,
    output: options.Outputs = None,
    save: options.Save = None,
    overwrite: options.Overwrite = False,
    env: options.Env = None,
    allow_net: options.AllowNet = None,
    cwd: options.Cwd = None,
    timeout: options.ShellTimeout = None,
    memory: options.Memory = None,
    cpus: options.Cpus = None,
    pids: options.Pids = None,
    disk: options.Disk = None,
    session: options.Session = None,
    quiet: options.Quiet = False,
) -> Callable[[], int]:
    """Open a shell with a skill in a sandbox, with the limits and the folders that its scripts get."""
    request = RunRequest(
        **options.request(
            skill=skill,
            words=(),
            skills=skills,
            runtime=runtime,
            image=image,
            inputs=input_,
            outputs=tuple(output or ("out/**",)),
            save=save,
            overwrite=overwrite,
            env=env,
            allow_net=allow_net,
            cwd=cwd,
            timeout=timeout,
            memory=memory,
            cpus=cpus,
            pids=pids,
            disk=disk,
            session=session,
            quiet=quiet,
        )
    )

    def action() -> int:
        from executor.cli.run import run

        return run(request, _interact, screen=os.isatty(0))

    return action


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shell", epilog=EPILOG)(command)


async def _interact(
    request: RunRequest,
    session: AsyncSession,
    slug: str,
    env: dict[str, str],
    _stdin: bytes | None,
    relay: Relay | None,
    _settings: Settings,
) -> ExecResult:
    """The shell from its start to its end."""
    from executor.cli import console

    assert relay is not None
    has_terminal = os.isatty(0)
    if has_terminal and not request.quiet:
        console.say(f"a shell in the sandbox, with the files of {slug}; exit or Ctrl-D ends it")
    with terminal.raw_keys(0) if has_terminal else contextlib.nullcontext():
        run = await session.start(
            COMMAND,
            skill=slug,
            cwd=request.cwd,
            env={"PS1": rf"{slug}:\w\$ ", **env},
            timeout=request.timeout,
            on_output=relay.take,
            tty=has_terminal,
            size=terminal.size(0),
            grant=arguments.grant(request),
        )
        with _resizing(run) if has_terminal else contextlib.nullcontext():
            typing = asyncio.ensure_future(_type(run))
            try:
                result = await run.wait()
            finally:
                typing.cancel()
                await asyncio.gather(typing, return_exceptions=True)
    if request.save is not None and result.status != "lost":
        found = await session.collect(*request.outputs, skill=slug)
        result.files = list(found)
        result.limits_hit.extend(found.limits_hit)
        result.warnings.extend(found.warnings)
    return result


@contextlib.contextmanager
def _resizing(run: AsyncRun) -> Iterator[None]:
    """The sandbox's terminal has the size of this one."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, lambda: run.resize(*terminal.size(0)))
    try:
        run.resize(*terminal.size(0))  # it may have changed since the start
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def _type(run: AsyncRun) -> None:
    """Everything that comes on stdin, to its end."""
    async with contextlib.aclosing(_stdin()) as pieces:
        try:
            async for data in pieces:
                await run.write(data)
            await run.close_stdin()
        except ExecutorError:
            pass  # the shell has ended


async def _stdin() -> AsyncGenerator[bytes]:
    """This process's stdin, piece by piece.

    Read by a thread, for a file cannot be waited for in an event loop. When this is closed the thread has
    ended too, so that it takes no key that is pressed later.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(AHEAD)
    stopped, stop = os.pipe()

    def read() -> None:
        data = b"-"
        while data:
            room.acquire()
            if stopped in select.select([0, stopped], [], [])[0]:
                return
            try:
                data = os.read(0, PIECE)
            except OSError:  # the terminal is gone
                data = b""
            loop.call_soon_threadsafe(pieces.put_nowait, data)

    thread = threading.Thread(target=read, name="stdin", daemon=True)
    thread.start()
    try:
        while data := await pieces.get():
            room.release()
            yield data
    finally:
        os.close(stop)
        room.release()
        thread.join()
        os.close(stopped)
