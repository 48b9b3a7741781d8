"""A runtime in front of another one: it keeps started sandboxes ready and bounds how many there are.

What waits here is a sandbox whose guest is up and has been told nothing: the session that gets it says hello
with a nonce of its own and checks what the guest attests, as with a sandbox that was started for it. With
`prepare` the pool has that done, each with a nonce of its own. No script has run in what waits. It serves one
session and never comes back. One that dies while it waits is replaced; one that dies on the way to
its session fails that hello, and whoever started it asks again (`Sandbox.spare`).

Everything here runs in one event loop, and between two `await`s nothing else does: places are counted without
a lock. The sandboxes' owner is this process, so what it leaves behind when it is killed is reaped like
everything else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from executor.errors import SandboxStartError, SessionClosedError
from executor.guest import bundle
from executor.runtimes.base import Runtime, Sandbox, SandboxSpec

AT_ONCE = 2  # sandboxes that are started ahead at one time; a session's own start is not to wait for them
AFTER = 0.05  # seconds until the next is started when one was taken: first its session gets to work
TICK = 1.0  # seconds between two looks at what waits
SHORT_LIFE = 10.0  # seconds; one that dies younger while it waits is taken for a sign that something is wrong
LONGEST_REST = 60.0  # seconds until another try after a failure; the first comes after a second
TELL_AGAIN = 60.0  # seconds between two warnings that all are in use

log = logging.getLogger("executor.pool")


class Pool(Runtime):
    """Sandboxes of `spec` started ahead.

    `size`: how many are kept ready. `most`: how many there may be at one time, those of sessions included; 0
    sets no bound. Whoever finds all of them in use waits in turn, at most `wait` seconds. After `idle_ttl`
    seconds in which none was asked for (0: never) those that wait are ended, and started again with the next
    that is.
    """

    def __init__(
        self,
        inner: Runtime,
        spec: SandboxSpec,
        *,
        size: int,
        most: int = 0,
        idle_ttl: float = 0.0,
        wait: float = 60.0,
        prepare: Callable[[Sandbox, SandboxSpec], Awaitable[None]] | None = None,
    ) -> None:
        self.name = inner.name
        self._inner = inner
        self._spec = dataclasses.replace(spec, session_id="")
        self._size, self._most = size, most
        self._idle_ttl, self._wait = idle_ttl, wait
        self._prepare = prepare
        self._ready: deque[Lent] = deque()
        self._alive = 0
        """Places taken: by sandboxes that wait, that are being started, and that are in use."""
        self._waiting: deque[tuple[asyncio.Future[Taken], bool]] = deque()
        self._filling: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._asked = time.monotonic()
        self._not_before = 0.0
        self._rest = 0.0
        self._told = -TELL_AGAIN
        self._tick: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def ready(self) -> int:
        """Sandboxes that wait for a session."""
        return len(self._ready)

    @property
    def alive(self) -> int:
        """Sandboxes that there are, those under way included."""
        return self._alive

    async def check(self) -> None:
        await self._inner.check()
        if self._tick is None and not self._closed:
            self._look()

    def reap(self) -> list[str]:
        return self._inner.reap()

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """One that waits if there is one for this order, else one that is started now."""
        if self._closed:
            raise SessionClosedError("the executor is closed", hint="Open a new one.")
        self._asked = time.monotonic()
        fits = dataclasses.replace(spec, session_id="") == self._spec
        taken = None if self._waiting else self._take(fits)
        if taken is None:
            taken = await self._turn(fits)
        asyncio.get_running_loop().call_later(AFTER, self._fill)
        if taken:
            return taken[0]
        try:
            return Lent(await self._inner.start(spec), self)
        except BaseException:
            self.free()
            raise

    async def close(self) -> None:
        """End everything that waits, and refuse whoever waits for one."""
        self._closed = True
        if self._tick is not None:
            self._tick.cancel()
        for turn, _ in self._waiting:
            if not turn.done():
                turn.set_exception(SessionClosedError("the executor was closed while its session waited"))
        for task in self._filling:
            task.cancel()
        while self._ready:
            self._end(self._ready.popleft())
        if pending := self._filling | self._ending:
            await asyncio.wait(pending)
        await self._inner.close()

    # -- places --

    def _take(self, fits: bool) -> Taken | None:
        """A sandbox that waits; or a place for another one, as (); or None when there is neither."""
        while fits and self._ready:
            found = self._ready.popleft()
            if not found.stream.ended:
                return (found,)
            self._end(found)
        if not self._most or self._alive < self._most:
            self._alive += 1
            return ()
        if (
            not fits and self._ready
        ):  # of another kind: it makes room, and its place comes free when it is gone
            self._end(self._ready.popleft())
        return None

    async def _turn(self, fits: bool) -> Taken:
        """Wait in line for a sandbox or a place. SandboxStartError when that takes too long."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Taken] = loop.create_future()
        self._waiting.append((turn, fits))
        self._tell_full()
        timer = loop.call_later(self._wait, self._give_up, turn)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._give_back(turn.result())  # it came, and whoever waited was cancelled at that moment
            self._serve()
            raise
        finally:
            timer.cancel()

    def _tell_full(self) -> None:
        """A warning when a line forms, now and then; every other one is a detail."""
        now = time.monotonic()
        level = logging.WARNING if now - self._told > TELL_AGAIN else logging.DEBUG
        if level == logging.WARNING:
            self._told = now
        log.log(level, "a session waits for a sandbox: %s, %d in line", self._full, len(self._waiting))

    @property
    def _full(self) -> str:
        used = self._alive - len(self._ready) - len(self._filling)
        return f"all {self._most} that pool.max allows are taken, {used} of them by sessions"

    def _give_up(self, turn: asyncio.Future[Taken]) -> None:
        if not turn.done():
            turn.set_exception(
                SandboxStartError(
                    f"no sandbox came free in {self._wait:g} s: {self._full}, {len(self._waiting)} in line",
                    hint="Close each session when it is done (`async with`), or raise pool.max or pool.wait.",
                )
            )

    def _serve(self) -> None:
        """Give what is free to those who wait, first come, first served."""
        while self._waiting:
            turn, fits = self._waiting[0]
            if not turn.done():
                taken = self._take(fits)
                if taken is None:
                    return
                turn.set_result(taken)
            self._waiting.popleft()

    def _give_back(self, taken: Taken) -> None:
        if not taken:
            self.free()
        elif self._closed:
            self._end(taken[0])
        else:
            self._ready.appendleft(taken[0])

    def free(self) -> None:
        """A sandbox is gone, or was never made: its place is free."""
        self._alive -= 1
        self._serve()
        self._fill()

    def _end(self, sandbox: Lent) -> None:
        task = asyncio.get_running_loop().create_task(sandbox.kill())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # -- what waits --

    def _fill(self) -> None:
        """Start as many as are missing, a few at a time."""
        now = time.monotonic()
        idle = self._idle_ttl and now - self._asked > self._idle_ttl
        if self._closed or self._waiting or idle or now < self._not_before:
            return
        while (
            len(self._ready) + len(self._filling) < self._size
            and len(self._filling) < AT_ONCE
            and (not self._most or self._alive < self._most)
        ):
            self._alive += 1
            self._filling.add(asyncio.get_running_loop().create_task(self._make()))

    async def _make(self) -> None:
        made: Lent | None = None
        sandbox: Sandbox | None = None
        try:
            sandbox = await self._inner.start(self._spec)
            if self._prepare is not None:
                await self._prepare(sandbox, self._spec)
            elif sandbox.sends_guest:  # it can be read and compiled while it waits
                sandbox.stream.write([len(bundle.source()).to_bytes(4, "big"), bundle.source()])
                sandbox.sends_guest = False
            made = Lent(sandbox, self, spare=True)
        except Exception:  # whoever needs one now will start it, and be told what is wrong
            self._failed()
        finally:
            if made is None and sandbox is not None:
                await asyncio.shield(sandbox.kill())
            task = asyncio.current_task()
            assert task is not None
            self._filling.discard(task)
            if made is None:
                self.free()
        if made is not None and self._closed:  # the cancellation came too late, or was lost
            await made.kill()
        elif made is not None:
            self._ready.append(made)
            self._serve()
            self._fill()

    def _failed(self) -> None:
        self._rest = min(LONGEST_REST, 2 * self._rest or 1.0)
        self._not_before = time.monotonic() + self._rest

    def _look(self) -> None:
        """Once a second: replace what died, end what nobody has asked for, start what is missing."""
        now = time.monotonic()
        for sandbox in [found for found in self._ready if found.stream.ended]:
            self._ready.remove(sandbox)
            self._end(sandbox)
            if now - sandbox.born < SHORT_LIFE:
                self._failed()
        if any(now - sandbox.born > SHORT_LIFE for sandbox in self._ready):
            self._rest = 0.0
        if self._idle_ttl and now - self._asked > self._idle_ttl:
            while self._ready:
                self._end(self._ready.popleft())
        self._fill()
        self._tick = asyncio.get_running_loop().call_later(TICK, self._look)


class Lent(Sandbox):
    """A sandbox of the pool. When it is gone, its place is free again."""

    def __init__(self, inner: Sandbox, pool: Pool, *, spare: bool = False) -> None:
        self.runtime, self.stream, self.facts = inner.runtime, inner.stream, inner.facts
        self.sends_guest, self.spare, self.ahead = inner.sends_guest, spare, inner.ahead
        self.born = time.monotonic()
        self._inner = inner
        self._pool: Pool | None = pool

    async def kill(self) -> None:
        try:
            await self._inner.kill()
        finally:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.free()

    async def post_mortem(self) -> tuple[str, str]:
        return await self._inner.post_mortem()


Taken = tuple[Lent, ...]  # a sandbox, or () for a place in which one may be started
