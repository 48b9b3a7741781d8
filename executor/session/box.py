"""The sandbox of a session: started at the first use, attested, filled, watched and ended once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from executor.channel import Channel, Expected
from executor.errors import ExecutorError, SandboxLostError, SandboxStartError, SessionClosedError
from executor.models import Limits
from executor.runtimes.base import Runtime, Sandbox, SandboxSpec
from executor.runtimes.owner import owner_label
from executor.settings import Settings

CLOSED = "session {id!r} is closed"


class Box:
    """One sandbox of one session. `filled` puts into a fresh one what the session begins with."""

    def __init__(
        self,
        session_id: str,
        runtime: Runtime,
        settings: Settings,
        limits: Limits,
        filled: Callable[[Channel], Awaitable[None]],
    ) -> None:
        self.id = session_id
        self.runtime = runtime
        self.settings = settings
        self.limits = limits
        self.warnings: list[str] = []
        """Limits that this machine cannot enforce, or that were changed."""
        self.closed = False
        self.lost: ExecutorError | None = None
        """Why the sandbox is gone, once it is."""
        self._filled = filled
        self._sandbox: Sandbox | None = None
        self._channel: Channel | None = None
        self._starting = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None
        self._burying: asyncio.Task[None] | None = None
        self._post_mortem: tuple[str, str] | None = None

    @property
    def channel(self) -> Channel:
        """The channel of a sandbox that was started, be it lost meanwhile."""
        assert self._channel is not None
        return self._channel

    async def ready(self) -> Channel:
        """The channel, with the sandbox started if this is the first use."""
        if self._channel is not None and self._channel.broken is None and not self.closed:
            return self._channel
        async with self._starting:
            self._check_open()
            if self.lost is not None:
                raise SandboxLostError(
                    f"session {self.id!r} has lost its sandbox: {self.lost.message}",
                    hint="Its files are gone. Open a new session.",
                )
            if self._channel is None:
                self._channel = await self._start()
            return self._channel

    async def close(self) -> None:
        """End the sandbox and everything in it."""
        self.closed = True
        async with self._starting:  # a start under way ends itself when it sees that nobody wants it
            pass
        if self._channel is not None:
            self._channel.close()
        if self._burying is not None:
            await asyncio.shield(self._burying)
        await self._end()

    async def post_mortem(self) -> tuple[str, str]:
        """How the sandbox died: a kind such as `oom`, and what its runtime says of it."""
        if self._post_mortem is None and self._sandbox is not None:
            self._post_mortem = await self._sandbox.post_mortem()
        return self._post_mortem or ("unknown", "")

    def _check_open(self) -> None:
        if self.closed:
            raise SessionClosedError(CLOSED.format(id=self.id), hint="Open a new one.")

    async def _start(self) -> Channel:
        spec, notes = sandbox_spec(self.id, self.limits, self.settings)
        sandbox = await self.runtime.start(spec)
        self._sandbox = sandbox
        channel = Channel(sandbox, self._broken)
        try:
            self._check_open()
            if sandbox.facts.warnings and self.settings.require_limits:
                raise SandboxStartError(
                    "this machine cannot enforce what the settings require: "
                    + "; ".join(sandbox.facts.warnings),
                    hint="Unset require_limits, run as root, or use the container runtime.",
                )
            expected = Expected(secrets.token_hex(16), sandbox.facts)
            await channel.open(expected, {**spec.rlimits(), **sandbox.facts.rlimits})
            await self._filled(channel)
            self._check_open()
        except BaseException:
            # Not lost: whoever uses the session next starts another sandbox.
            channel.break_off(SandboxStartError("the start was given up"), tell=False)
            self._sandbox = None
            await asyncio.shield(sandbox.kill())
            raise
        self.warnings = [*notes, *sandbox.facts.warnings]
        return channel

    def _broken(self, error: ExecutorError) -> None:
        self.lost = error
        self._burying = asyncio.get_running_loop().create_task(self._bury())

    async def _bury(self) -> None:
        await self.post_mortem()
        await self._end()

    async def _end(self) -> None:
        if self._sandbox is not None:
            if self._ending is None:
                self._ending = asyncio.get_running_loop().create_task(self._sandbox.kill())
            await asyncio.shield(self._ending)


def sandbox_spec(session_id: str, limits: Limits, settings: Settings) -> tuple[SandboxSpec, list[str]]:
    """The order for a sandbox, and what had to be changed: memory-backed files get half of the memory."""
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
    spec = SandboxSpec(
        session_id=session_id,
        image=settings.image,
        memory=limits.memory,
        cpus=limits.cpus,
        pids=limits.pids,
        open_files=limits.open_files,
        disk=disk,
        inodes=limits.inodes,
        tmp=tmp,
        shm=shm,
        owner=owner_label(),
    )
    return spec, notes
