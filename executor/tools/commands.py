"""Commands: run to the end or as a session that is read, written to and killed.

Rules of this module:
1. A command belongs to one agent of one session. To every other one its session_id is unknown.
2. What a call shows, no later call shows again; what it does not show is in a file that it names.
3. A command that nobody asks about ends; one that has ended is forgotten after a while.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import signal as signals
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from executor.errors import ExecutorError
from executor.session import AsyncRun, AsyncSession
from executor.tools.desk import Desk, progress, tables
from executor.tools.inputs import BashCommand, Exec, KillSession, Reference, WriteStdin, references
from executor.tools.outputs import SessionKilled
from executor.tools.results import RefusedError, ToolResult
from executor.tools.shown import (
    STREAMS,
    Shown,
    Stream,
    as_result,
    file_line,
    finished,
    output,
    output_lines,
    spill,
)
from executor.workspace import layout
from executor.workspace.artifacts import SCHEME as ARTIFACT

FOREGROUND_YIELD, BACKGROUND_YIELD, WRITE_YIELD = 1.0, 0.0, 0.2  # seconds
SETTLE = 0.075  # seconds of silence after output that end a wait
WRITE_WAIT = 5.0  # seconds for a command to take what is written to it
PROGRESS_EVERY = 1.0

SKILL = "skill://"


@dataclass
class Command:
    """A command that was started as a session."""

    id: str
    run: AsyncRun
    tty: bool
    offset: int = 0
    touched: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    writing: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None


class Commands:
    """The commands of one agent in one session."""

    def __init__(self, idle: float) -> None:
        self.by_id: dict[str, Command] = {}
        self.suspended: dict[str, AsyncRun] = {}
        """Scripts that wait for a decision, by run id."""
        self.idle = idle
        self._ending: set[asyncio.Task[Any]] = set()

    def add(self, run: AsyncRun, tty: bool) -> Command:
        command = Command("cmd_" + secrets.token_hex(6), run, tty)
        self.by_id[command.id] = command
        self.touch(command)
        return command

    def touch(self, command: Command) -> None:
        """It was asked about: its time begins anew."""
        command.touched = time.monotonic()
        if command.timer is not None:
            command.timer.cancel()
        loop = asyncio.get_running_loop()
        command.timer = loop.call_later(self.idle, self._expire, command)

    def _expire(self, command: Command) -> None:
        self.by_id.pop(command.id, None)
        if command.run.running:
            task = asyncio.get_running_loop().create_task(ended_quietly(command.run))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def get(self, session_id: str) -> Command:
        command = self.by_id.get(session_id)
        if command is None:
            raise RefusedError(
                f"unknown session_id: {session_id!r}",
                "It never was one of yours, or it ended long ago. Start it again with workspace_exec.",
                kind="UnknownSession",
            )
        self.touch(command)
        return command

    async def close(self) -> None:
        """End them all."""
        commands, self.by_id = list(self.by_id.values()), {}
        for command in commands:
            if command.timer is not None:
                command.timer.cancel()
        runs = [*(command.run for command in commands), *self.suspended.values()]
        self.suspended = {}
        await asyncio.gather(*map(ended_quietly, runs), *self._ending)


async def ended_quietly(run: AsyncRun) -> None:
    """End a run, be it that it went with its sandbox."""
    try:
        if run.running:
            await run.kill()
    except ExecutorError:
        pass  # with the sandbox went the command


def of(desk: Desk, session: AsyncSession) -> Commands:
    """The commands of this agent."""
    mine = tables(session).setdefault(desk.agent, Commands(desk.options.idle_seconds))
    assert isinstance(mine, Commands)
    return mine


# --- the tools ----------------------------------------------------------------------------------------------


async def workspace_exec(desk: Desk, args: Exec) -> ToolResult:
    """Run a command."""
    timeout = args.timeout_sec
    if timeout is not None and timeout > desk.options.max_timeout:
        raise RefusedError(
            f"timeout_sec={timeout:g} is above {desk.options.max_timeout:g}, the longest time here",
            "Give less, or run it with background=true.",
        )
    env = args.env
    if desk.options.policy is not None:
        desk.options.policy.check(args.command)
        env = desk.options.policy.environment(env)
    session = await desk.session()
    cwd, skill = _place(desk, session, args.cwd)
    await bring(desk, session, args.inputs)
    as_session = args.background or args.tty or bool(args.yield_time_ms)
    if not as_session:
        async with reporting(desk):
            result = await session.exec(
                args.command,
                skill=skill,
                cwd=cwd,
                env=env,
                stdin=args.stdin,
                timeout=timeout,
                max_output=desk.options.spill_bytes,
            )
        return await finished(desk, session, result)
    mine = of(desk, session)
    running = [command for command in mine.by_id.values() if command.run.running]
    if len(running) >= desk.options.max_commands:
        raise RefusedError(
            f"{len(running)} commands are running, and no more may",
            "End one with workspace_kill_session: " + ", ".join(command.id for command in running),
        )
    if timeout is None and not args.background:
        timeout = desk.executor.settings.timeout
    run = await session.start(
        args.command,
        skill=skill,
        cwd=cwd,
        env=env,
        timeout=timeout,
        tty=args.tty,
        max_output=desk.options.spill_bytes,
    )
    command = mine.add(run, args.tty)
    if args.stdin is not None:
        await _write(command, args.stdin.encode(), eof=not args.background and not args.tty)
    default = BACKGROUND_YIELD if args.background else FOREGROUND_YIELD
    wait = default if args.yield_time_ms is None else args.yield_time_ms / 1000
    try:
        async with reporting(desk):
            return await _look(desk, session, command, wait)
    except asyncio.CancelledError:
        # Nobody will ever hear of its session_id.
        mine.by_id.pop(command.id, None)
        await asyncio.shield(ended_quietly(run))
        raise


async def workspace_write_stdin(desk: Desk, args: WriteStdin) -> ToolResult:
    """Write to a command, or just look at it."""
    session = await desk.session()
    command = of(desk, session).get(args.session_id)
    if (args.rows is None) != (args.columns is None):
        raise RefusedError("rows and columns come together", "Give both.")
    if args.rows is not None and not command.tty:
        raise RefusedError(f"{command.id} has no terminal", "Start it with tty=true to give it a size.")
    if command.run.running:
        if args.signal is not None:
            command.run.send_signal(getattr(signals, "SIG" + args.signal))
        if args.rows is not None and args.columns is not None:
            command.run.resize(args.rows, args.columns)
    data = args.chars.encode() + (b"\n" if args.append_newline else b"")
    note = ""
    if data or args.eof:
        if not command.run.running:
            note = "It has ended and reads no more: nothing was written."
        elif not await _write(command, data, eof=args.eof):
            note = "It has not read all of this yet; the rest waits."
    wait = WRITE_YIELD if args.yield_time_ms is None else args.yield_time_ms / 1000
    result = await _look(desk, session, command, wait, note)
    if note and data and result.structured["status"] != "running" and "nothing" in note:
        return ToolResult(f"Error: {note}\n{result.text}", result.structured, is_error=True)
    return result


async def workspace_kill_session(desk: Desk, args: KillSession) -> ToolResult:
    """End a command and all that it started."""
    session = await desk.session()
    command = of(desk, session).get(args.session_id)
    was_running = command.run.running
    result = await command.run.kill() if was_running else await command.run.wait()
    shown = Shown(desk.options.output_bytes)
    async with command.lock:
        last = await command.run.read()
        streams = {name: shown.stream(name, getattr(last, name).encode()) for name in STREAMS}
        files = await spill(session, command.run.run_id, shown.cut, f".{command.offset}", shown.warnings)
        command.offset = command.run.offset
    killed = was_running and result.status == "killed"
    status = "killed" if killed else "exited"
    made = SessionKilled(
        ok=True,
        session_id=command.id,
        status=status,
        exit_code=result.exit_code,
        **streams,
    )
    lines = [f"[{status}]", *output_lines(streams), *(file_line(file) for file in files), *shown.warnings]
    return ToolResult("\n".join(lines), made.model_dump(mode="json"))


async def bash(desk: Desk, args: BashCommand) -> ToolResult:
    """Run a command line to its end: the shape that other systems call `bash`."""
    return await workspace_exec(desk, Exec(command=args.command))


async def bring(desk: Desk, session: AsyncSession, inputs: list[Reference]) -> None:
    """Bring in what a call names, artifacts from this toolset's store, files of skills that it may see."""
    if desk.artifacts is None and any(one.source.startswith(ARTIFACT) for one in inputs):
        raise RefusedError("there is no place for artifacts here", kind="BadRequestError")
    for one in inputs:
        name = one.source.removeprefix(SKILL).partition("/")[0]
        if one.source.startswith(SKILL) and name:
            desk.skill(name)
    await session.stage_inputs(references(inputs), artifacts=desk.artifacts)


# --- inside -------------------------------------------------------------------------------------------------


def _place(desk: Desk, session: AsyncSession, cwd: str) -> tuple[str | None, str | None]:
    """(cwd, skill): a command that starts in a skill's folder runs with that skill's variables."""
    if not cwd:
        return None, None
    folder = layout.working_folder(cwd, None)
    parts = folder.split("/")
    if len(parts) < 3 or parts[1] != "skills":
        return folder, None
    slug = parts[2]
    if slug in session.staged:
        return folder, slug
    known = ", ".join(loaded.skill for loaded in desk.state.loaded()) or "none"
    raise RefusedError(
        f"cwd {cwd!r}: the skill {slug!r} is not loaded (loaded: {known})",
        "Load it with skill_load: its files are there after that.",
    )


async def _write(command: Command, data: bytes, *, eof: bool) -> bool:
    """Write in order; False when the command has not taken all of it yet."""
    before = command.writing

    async def work() -> None:
        if before is not None:
            await asyncio.wait({before})
        try:
            if data:
                await command.run.write(data)
            if eof and command.tty:
                await command.run.write(b"\x04")
            elif eof:
                await command.run.close_stdin()
        except ExecutorError:
            pass  # it ended meanwhile, which the next look tells

    command.writing = asyncio.get_running_loop().create_task(work())
    done, _ = await asyncio.wait({command.writing}, timeout=WRITE_WAIT)
    return bool(done)


async def _look(
    desk: Desk, session: AsyncSession, command: Command, wait: float, note: str = ""
) -> ToolResult:
    """What is new of a command, after at most `wait` seconds; sooner when it falls silent or ends."""
    run = command.run
    async with command.lock:
        start = command.offset
        deadline = time.monotonic() + wait
        pieces: dict[Stream, list[str]] = {name: [] for name in STREAMS}
        warnings: list[str] = []
        piece = await run.read(wait)
        while True:
            for name in STREAMS:
                pieces[name].append(getattr(piece, name))
            warnings += [warning for warning in piece.warnings if warning not in warnings]
            left = deadline - time.monotonic()
            if piece.status != "running" or left <= 0 or not any(getattr(piece, name) for name in STREAMS):
                break
            piece = await run.read(min(SETTLE, left))
        new = {name: "".join(parts).encode() for name, parts in pieces.items()}
        command.offset = end = run.offset
        shown = Shown(desk.options.output_bytes)
        streams = {name: shown.stream(name, data) for name, data in new.items()}
        files = await spill(session, run.run_id, shown.cut, f".{start}", warnings)
        made = output(desk, piece, streams, files, [*warnings, *shown.warnings])
        made.session_id = command.id
        made.offset, made.next_offset = start, end
        return as_result(made, note)


@asynccontextmanager
async def reporting(desk: Desk) -> AsyncIterator[None]:
    """Tell whoever wants to know that the call is still at work."""
    report = progress.get()
    if report is None:
        yield
        return

    async def tell() -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_EVERY)
            seconds = time.monotonic() - began
            told = report(seconds, f"running for {seconds:.0f} s")
            if inspect.isawaitable(told):
                await told

    task = asyncio.get_running_loop().create_task(tell())
    try:
        yield
    finally:
        task.cancel()
