"""The sandbox of a session: started at the first use, attested, filled, watched and ended once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import weakref
from collections.abc import Awaitable, Callable

from executor import spans
from executor.channel import Channel, Expected, RunSpec
from executor.deps.layers import LayerStore
from executor.errors import (
    ExecutorError,
    SandboxLostError,
    SandboxStartError,
    SessionClosedError,
)
from executor.models import Limits
from executor.runtimes.base import Runtime, Sandbox, SandboxSpec
from executor.runtimes.owner import owner_label
from executor.settings import Settings
from executor.workspace import layout

CLOSED = "session {id!r} is closed"
# Memory for each of `inodes`, which counts three times (/workspace, /skills, /tmp). The kernel takes 1.4 KiB
# for an empty file with a long name: all of them take less than a quarter.
PER_INODE = 18 << 10
PROBE = 64 << 20  # bytes that a program must find in a sandbox whose memory had run out


class Box:
    """One sandbox of one session. `filled` puts into a fresh one what the session begins with. With `renews`,
    a lost one is followed by another at the next use, filled with what the session goes on with. `skills`: it
    may be one of the pool in which these are staged.
    """

    def __init__(
        self,
        session_id: str,
        runtime: Runtime,
        settings: Settings,
        limits: Limits,
        filled: Callable[[Channel], Awaitable[None]],
        *,
        renews: bool = False,
        skills: tuple[str, ...] = (),
    ) -> None:
        self.id = session_id
        self.runtime = runtime
        self.settings = settings
        self.limits = limits
        self.warnings: list[str] = []
        """Limits that this machine cannot enforce, or that were changed."""
        self.closed = False
        self.lost: ExecutorError | None = None
        """Why the sandbox is gone, once it is and no other has followed it."""
        self._renews = renews
        self._skills = skills
        self._filled = filled
        self._sandbox: Sandbox | None = None
        self._channel: Channel | None = None
        self._starting = asyncio.Lock()
        self._start_under_way: asyncio.Task[Channel] | None = None
        self._burials: set[asyncio.Task[None]] = set()
        self._endings: weakref.WeakKeyDictionary[Sandbox, asyncio.Task[None]] = weakref.WeakKeyDictionary()
        self._causes: weakref.WeakKeyDictionary[Sandbox, asyncio.Task[tuple[str, str]]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def channel(self) -> Channel | None:
        """The channel of the last sandbox that was started, be it lost meanwhile."""
        return self._channel

    async def ready(self) -> Channel:
        """The channel, with the sandbox started if this is the first use."""
        if self._channel is not None and self._channel.broken is None and not self.closed:
            return self._channel
        async with self._starting:
            self._check_open()
            if self.lost is not None and self._renews:
                self.lost = self._sandbox = self._channel = None
            if self.lost is not None:
                raise SandboxLostError(
                    f"session {self.id!r} has lost its sandbox: {self.lost.message}",
                    hint="Its files are gone. Open a new session.",
                )
            if self._channel is None:
                about = {"exec_id": self.id, "runtime": self.runtime.name, "path": layout.WORKSPACE}
                with spans.span("workspace.create", **about):
                    self._start_under_way = asyncio.get_running_loop().create_task(self._start())
                    try:
                        self._channel = await self._start_under_way
                    except asyncio.CancelledError:
                        self._check_open()  # it was `close` that ended the start
                        raise
            return self._channel

    async def to_run(self) -> Channel:
        """`ready`, and a program finds memory: where the kernel had to kill for it, one is tried first.

        Files are memory, and so is what the kernel keeps for a script that has ended. A sandbox that is full
        of that would kill every further run; so it is lost here, with the reason.
        """
        channel = await self.ready()
        if not channel.starved or channel.runs:
            return channel
        channel.starved = False
        room = min(self.limits.memory // 5, PROBE)
        variables = {b"PATH": (channel.sandbox.facts.path or layout.USUAL_PATH).encode()}
        program = [b"python3", b"-I", b"-S", b"-c", b"b'x' * %d" % room]
        spec = RunSpec("memory", program, False, b"/workspace", variables, timeout=10, grace=0)
        probe = await channel.run(spec)
        with contextlib.suppress(SandboxLostError):
            await channel.wait(probe)
        report = probe.report.result() if channel.broken is None else None
        if report is not None and (report.oom or report.errno == errno.ENOMEM):
            channel.break_off(
                SandboxLostError(
                    f"after its processes were killed for memory, no program finds {room >> 20} MiB of "
                    f"{self.limits.memory >> 20}: files and what else outlives a process fill it"
                )
            )
        return await self.ready()

    async def close(self) -> None:
        """End the sandbox and everything in it."""
        self.closed = True
        if self._start_under_way is not None:
            self._start_under_way.cancel()  # it may be waiting for its turn
        async with self._starting:  # a start that was under way has cleaned up
            pass
        if self._channel is not None:
            self._channel.close()
        if self._burials:
            await asyncio.wait(self._burials)
        if self._sandbox is not None and self._sandbox not in self._endings:
            with spans.span("workspace.cleanup", exec_id=self.id, path=layout.WORKSPACE):
                await self._end(self._sandbox)
        elif self._sandbox is not None:
            await self._end(self._sandbox)

    async def post_mortem(self, sandbox: Sandbox) -> tuple[str, str]:
        """How a sandbox died: a kind such as `oom`, and what its runtime says of it."""
        if sandbox not in self._causes:
            self._causes[sandbox] = asyncio.get_running_loop().create_task(sandbox.post_mortem())
        return await asyncio.shield(self._causes[sandbox])

    def _check_open(self) -> None:
        if self.closed:
            raise SessionClosedError(CLOSED.format(id=self.id), hint="Open a new one.")

    async def _start(self, tries: int = 3) -> Channel:
        spec, notes = sandbox_spec(self.id, self.limits, self.settings, self._skills)
        sandbox = await self.runtime.start(spec)
        self._sandbox = sandbox
        channel: Channel | None = None
        try:
            self._check_open()
            channel = sandbox.ahead.channel if sandbox.ahead else await greet(sandbox, spec, self.settings)
            channel.hand_over(sandbox, self._broken)
            if sandbox.ahead:
                await channel.make_links([])  # it was greeted long ago: does it live?
            await self._filled(channel)
            self._check_open()
        except BaseException as error:
            # Not lost: whoever uses the session next starts another sandbox.
            if channel is not None:
                channel.break_off(SandboxStartError("the start was given up"), tell=False)
            self._sandbox = self.lost = None
            await asyncio.shield(sandbox.kill())
            gone = isinstance(error, SandboxStartError | SandboxLostError)
            if sandbox.spare and tries and gone and not self.closed:
                return await self._start(tries - 1)  # it died while it waited in the pool
            raise
        self.warnings = [*notes, *sandbox.facts.warnings]
        return channel

    def _broken(self, error: ExecutorError) -> None:
        self.lost = error
        if self._sandbox is not None:
            burial = asyncio.get_running_loop().create_task(self._bury(self._sandbox))
            self._burials.add(burial)
            burial.add_done_callback(self._burials.discard)

    async def _bury(self, sandbox: Sandbox) -> None:
        await self.post_mortem(sandbox)
        await self._end(sandbox)

    async def _end(self, sandbox: Sandbox) -> None:
        if sandbox not in self._endings:
            self._endings[sandbox] = asyncio.get_running_loop().create_task(sandbox.kill())
        await asyncio.shield(self._endings[sandbox])


async def greet(sandbox: Sandbox, spec: SandboxSpec, settings: Settings) -> Channel:
    """Say hello to what was started, and check what it attests. The caller kills it on any error."""
    if sandbox.facts.warnings and settings.require_limits:
        raise SandboxStartError(
            "this machine cannot enforce what the settings require: " + "; ".join(sandbox.facts.warnings),
            hint="Unset require_limits, run as root, or use the container runtime.",
        )
    channel = Channel(sandbox)
    try:
        expected = Expected(secrets.token_hex(16), sandbox.facts)
        await channel.open(expected, {**spec.rlimits(), **sandbox.facts.rlimits})
    except BaseException:
        channel.break_off(SandboxStartError("the start was given up"))
        raise
    return channel


def sandbox_spec(
    session_id: str, limits: Limits, settings: Settings, skills: tuple[str, ...] = ()
) -> tuple[SandboxSpec, list[str]]:
    """The order for a sandbox, and what had to be changed: memory-backed files get half of the memory, and
    what the kernel keeps of each file a quarter.
    """
    notes = []
    disk, tmp, shm = limits.disk, limits.tmp, limits.shm
    wanted = disk + max(disk // 2, 1 << 20) + tmp + shm
    room = limits.memory // 2
    if wanted > room:
        share = room / wanted
        disk, tmp, shm = (max(1 << 20, int(size * share)) for size in (disk, tmp, shm))
        notes.append(
            f"disk, tmp and shm are in memory and may take half of it: with memory={limits.memory >> 20}m "
            f"they are {disk >> 20}m, {tmp >> 20}m and {shm >> 20}m"
        )
    inodes = limits.inodes
    if inodes > (most := limits.memory // PER_INODE):
        inodes = most
        notes.append(
            f"inodes={limits.inodes:,} lowered to {most:,}: names and folders are kept in memory too, and "
            f"memory={limits.memory >> 20}m"
        )
    spec = SandboxSpec(
        session_id=session_id,
        image=settings.image,
        memory=limits.memory,
        cpus=limits.cpus,
        pids=limits.pids,
        open_files=limits.open_files,
        disk=disk,
        inodes=inodes,
        tmp=tmp,
        shm=shm,
        layers=LayerStore.of_settings(settings).mounted(settings.deps),
        owner=owner_label(),
        skills=skills,
    )
    return spec, notes
