"""The pool's places: counted right whoever is cancelled, fails or goes away, and given out in turn.

A runtime made of nothing stands in here, so that every interleaving can be had; the real ones are in
`tests/conformance/test_pool.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from executor.errors import BadRequestError, SandboxStartError, SessionClosedError
from executor.runtimes import pool as pool_module
from executor.runtimes.base import Facts, Runtime, Sandbox, SandboxSpec, Stream
from executor.runtimes.pool import Pool
from executor.settings import load

SPEC = SandboxSpec("", "", 1 << 30, 1.0, 128, 1024, 1 << 20, 256, 1 << 20, 1 << 20)
OTHER = SandboxSpec("", "", 2 << 30, 1.0, 128, 1024, 1 << 20, 256, 1 << 20, 1 << 20)


class Fake(Sandbox):
    def __init__(self, runtime: Nothing) -> None:
        self.runtime, self.stream, self.facts, self.sends_guest = "nothing", Stream(), Facts(0, 0), False
        self.home = runtime
        runtime.living.add(self)
        runtime.most = max(runtime.most, len(runtime.living))

    async def kill(self) -> None:
        await self.home.pause()
        self.home.living.discard(self)

    async def post_mortem(self) -> tuple[str, str]:
        return "unknown", ""


class Nothing(Runtime):
    """Starts sandboxes that are nothing, in a random number of turns of the loop."""

    name = "nothing"

    def __init__(self, seed: int = 0, turns: int = 3) -> None:
        self.turns = turns
        self.living: set[Fake] = set()
        self.most = 0
        self.started = 0
        self.broken = False
        self.random = random.Random(seed)

    async def pause(self) -> None:
        for _ in range(self.random.randrange(self.turns)):
            await asyncio.sleep(0)

    async def check(self) -> None:
        pass

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self.started += 1
        await self.pause()
        if self.broken:
            raise SandboxStartError("broken")
        made = Fake(self)
        try:
            await self.pause()
        except BaseException:
            self.living.discard(made)
            raise
        return made


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


async def settle(pool: Pool) -> None:
    """Let everything that was begun come to its end."""
    for _ in range(200):
        await asyncio.sleep(0)
    await asyncio.sleep(2 * pool_module.AFTER)
    for _ in range(200):
        await asyncio.sleep(0)


def test_as_many_as_asked_for_are_kept_ready_and_what_is_taken_is_replaced() -> None:
    async def work() -> None:
        inner = Nothing()
        pool = Pool(inner, SPEC, size=3)
        await pool.check()
        await settle(pool)
        assert (pool.ready, pool.alive, len(inner.living)) == (3, 3, 3)
        first = await pool.start(SPEC)
        assert first.spare
        assert pool.ready == 2
        await settle(pool)
        assert (pool.ready, pool.alive) == (3, 4)
        await first.kill()
        await first.kill()  # a second time it frees no second place
        assert pool.alive == 3
        await pool.close()
        assert not inner.living and pool.alive == 0

    run(work())


def test_another_order_gets_a_sandbox_of_its_own() -> None:
    async def work() -> None:
        pool = Pool(Nothing(), SPEC, size=1)
        await pool.check()
        await settle(pool)
        other = await pool.start(OTHER)
        assert not other.spare
        assert pool.ready == 1
        await other.kill()
        await pool.close()

    run(work())


def test_those_who_wait_are_served_in_the_order_in_which_they_came() -> None:
    async def work() -> None:
        pool = Pool(Nothing(turns=1), SPEC, size=0, most=2)
        await pool.check()
        held = [await pool.start(SPEC) for _ in range(2)]
        order: list[int] = []

        async def one(number: int) -> Sandbox:
            sandbox = await pool.start(SPEC if number % 2 else OTHER)
            order.append(number)
            return sandbox

        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(one(number)))
            await asyncio.sleep(0)
        await settle(pool)
        assert order == []
        tasks.pop(2).cancel()  # one who leaves the line holds nobody up
        for sandbox in held:
            await sandbox.kill()
        for task in tasks:
            await (await task).kill()
        assert order == [0, 1, 3, 4, 5]
        assert pool.alive == 0
        await pool.close()

    run(work())


def test_the_bound_holds_and_whoever_waits_too_long_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        inner = Nothing()
        pool = Pool(inner, SPEC, size=2, most=2, wait=0.05)
        await pool.check()
        await settle(pool)
        held = [await pool.start(SPEC) for _ in range(2)]
        full = "all 2 that pool.max allows are taken, 2 of them by sessions"
        for _ in range(2):
            with pytest.raises(SandboxStartError, match=r"pool\.max or pool\.wait") as caught:
                await pool.start(SPEC)
            assert caught.value.message == f"no sandbox came free in 0.05 s: {full}, 1 in line"
        waited = f"a session waits for a sandbox: {full}, 1 in line"
        assert [record.getMessage() for record in caplog.records] == [waited]  # not for each that waits
        await held[0].kill()
        again = await pool.start(SPEC)
        assert inner.most == 2
        await again.kill()
        await held[1].kill()
        await pool.close()
        assert not inner.living

    run(work())


def test_one_that_waits_makes_room_for_another_kind() -> None:
    async def work() -> None:
        inner = Nothing()
        pool = Pool(inner, SPEC, size=2, most=2)
        await pool.check()
        await settle(pool)
        other = await pool.start(OTHER)
        assert inner.most == 2
        await other.kill()
        await pool.close()

    run(work())


def test_one_that_died_is_not_handed_out_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "TICK", 0.01)
    monkeypatch.setattr(pool_module, "SHORT_LIFE", 0.0)

    async def work() -> None:
        inner = Nothing()
        pool = Pool(inner, SPEC, size=2)
        await pool.check()
        await settle(pool)
        dead = next(iter(pool._ready))
        dead.stream.connection_lost(None)
        taken = await pool.start(SPEC)
        assert taken is not dead and taken.spare
        await settle(pool)
        assert (pool.ready, pool.alive) == (2, 3)
        for waiting in pool._ready:
            waiting.stream.connection_lost(None)
        await settle(pool)
        assert (pool.ready, pool.alive, len(inner.living)) == (2, 3, 3)
        assert not any(waiting.stream.ended for waiting in pool._ready)
        await taken.kill()
        await pool.close()

    run(work())


def test_a_runtime_that_fails_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "TICK", 0.001)

    async def work() -> None:
        inner = Nothing()
        inner.broken = True
        pool = Pool(inner, SPEC, size=4)
        await pool.check()
        await settle(pool)
        await asyncio.sleep(0.2)
        assert inner.started <= pool_module.AT_ONCE
        with pytest.raises(SandboxStartError, match="broken"):  # whoever needs one is told why
            await pool.start(SPEC)
        assert pool.alive == 0
        inner.broken = False
        pool._not_before = 0.0
        await settle(pool)
        await asyncio.sleep(0.05)
        assert pool.ready == 4
        await pool.close()

    run(work())


def test_nobody_asks_and_those_that_wait_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "TICK", 0.01)

    async def work() -> None:
        inner = Nothing()
        pool = Pool(inner, SPEC, size=2, idle_ttl=0.5)
        await pool.check()
        await settle(pool)
        assert pool.ready == 2
        await asyncio.sleep(0.6)
        await settle(pool)
        assert (pool.ready, pool.alive, len(inner.living)) == (0, 0, 0)
        taken = await pool.start(SPEC)
        assert not taken.spare
        await settle(pool)
        assert pool.ready == 2
        await taken.kill()
        await pool.close()

    run(work())


def test_closing_refuses_those_who_wait_and_leaves_nothing() -> None:
    async def work() -> None:
        inner = Nothing()
        pool = Pool(inner, SPEC, size=3, most=4)
        await pool.check()
        await settle(pool)
        held = [await pool.start(SPEC) for _ in range(4)]
        waiting = [asyncio.create_task(pool.start(SPEC)) for _ in range(3)]
        await settle(pool)
        await pool.close()
        for task in waiting:
            with pytest.raises(SessionClosedError):
                await task
        with pytest.raises(SessionClosedError):
            await pool.start(SPEC)
        for sandbox in held:
            await sandbox.kill()
        assert not inner.living and pool.alive == 0

    run(work())


@pytest.mark.parametrize("seed", range(12))
def test_a_storm_of_cancellations_loses_no_place(seed: int) -> None:
    """Starts that are cancelled after any number of turns, on top of each other."""

    async def work() -> None:
        chance = random.Random(seed)
        inner = Nothing(seed)
        pool = Pool(inner, SPEC, size=chance.randrange(4), most=chance.choice([0, 3, 5]))
        await pool.check()

        async def one() -> None:
            sandbox = await pool.start(chance.choice([SPEC, SPEC, OTHER]))
            try:
                await inner.pause()
            finally:
                await asyncio.shield(sandbox.kill())

        tasks: list[asyncio.Task[None]] = []
        for _ in range(60):
            tasks.append(asyncio.create_task(one()))
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            chance.choice(tasks).cancel()
        await settle(pool)
        for task in tasks[::2]:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await settle(pool)
        assert pool.alive == pool.ready == len(inner.living)
        assert not pool._waiting and not pool._filling
        if pool._most:
            assert inner.most <= pool._most
        await pool.close()
        assert not inner.living and pool.alive == 0

    run(work())


def test_the_settings_can_stand_in_a_variable() -> None:
    pool = load(environ={"EXECUTOR_POOL": "{size: 2, max: 5, idle_ttl: 0, limits: {memory: 512m}}"}).pool
    assert (pool.size, pool.max, pool.idle_ttl) == (2, 5, 0)
    assert pool.limits is not None
    assert pool.limits.memory == 512 << 20
    with pytest.raises(BadRequestError, match=r"pool\.size"):
        load(environ={"EXECUTOR_POOL": "{size: -1}"})
