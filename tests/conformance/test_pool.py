"""Sessions from a pool: nobody can tell, nothing is shared, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import docker
import pytest

from executor import (
    AsyncExecutor,
    AsyncSession,
    Executor,
    Limits,
    PoolSettings,
    SandboxStartError,
    SessionClosedError,
    SkillNotFoundError,
)
from executor.runtimes.container import LABEL_OWNER
from executor.runtimes.owner import owner_label
from executor.runtimes.pool import Lent, Pool

PROBE = (
    "ls -A /workspace/out /workspace/work /tmp/home /skills; cat /proc/sys/kernel/random/boot_id >/dev/null;"
    " readlink /proc/self/ns/pid"
)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 90))


@contextlib.asynccontextmanager
async def pooled(runtime: str, **settings: Any) -> AsyncIterator[tuple[AsyncExecutor, Pool]]:
    async with AsyncExecutor(skills=[], runtime=runtime, pool=PoolSettings(**settings)) as executor:
        pool = executor._runtime
        assert isinstance(pool, Pool)
        yield executor, pool


async def filled(pool: Pool) -> None:
    while pool.ready < pool._size:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def processes_of(pid: int) -> set[int]:
    """Everything that descends from a process."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for children in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                below = {int(word) for word in children.read_text().split()}
                waiting.extend(below - found)
                found |= below
    return found


def containers_of(label: str) -> list[str]:
    client = docker.from_env()
    try:
        found = client.api.containers(all=True, filters={"label": f"{LABEL_OWNER}={label}"})
        return [container["Id"] for container in found]
    finally:
        client.close()


def kill_one(runtime: str, waiting: Lent) -> None:
    """End a sandbox that waits, from outside and at once."""
    inner: Any = waiting._inner
    if runtime == "local":
        inner.process.kill()
        inner.process.wait()
    else:
        client = docker.from_env()
        client.api.kill(inner.name)
        client.close()


def test_a_session_from_the_pool_is_fresh_and_its_own(executor: Executor, runtime: str) -> None:
    async def work() -> None:
        async with pooled(runtime, size=2) as (made, pool):
            await filled(pool)
            places = set()
            for number in range(3):
                async with made.session() as session:
                    assert session._box._sandbox is not None
                    assert session._box._sandbox.spare
                    probe = await session.exec(PROBE)
                    assert probe.status == "ok"
                    *rest, namespace = probe.stdout.split()
                    assert [word for word in rest if not word.endswith(":")] == ["inputs"]
                    places.add(namespace)
                    # What the next one would find, were it the same sandbox.
                    await session.exec(
                        f"echo {number} >out/mine; touch work/mine /tmp/home/mine; sleep 100 &"
                    )
                await filled(pool)
            assert len(places) == 3
            async with made.session(limits=Limits(memory="128m")) as other:
                assert other._box._sandbox is not None
                assert not other._box._sandbox.spare
                assert (await other.exec("true")).status == "ok"
            await filled(pool)
            assert pool.alive == 2

    run(work())


def test_what_dies_while_it_waits_is_not_seen_by_anyone(executor: Executor, runtime: str) -> None:
    async def work() -> None:
        async with pooled(runtime, size=2) as (made, pool):
            await filled(pool)
            await asyncio.sleep(0.3)  # up, and not only under way
            waiting = list(pool._ready)
            for each in waiting:  # nothing has told the pool yet: this loop has not turned
                kill_one(runtime, each)
            results = await asyncio.gather(*(one(made) for _ in range(3)))
            assert results == ["ok"] * 3
            assert not set(waiting) & set(pool._ready)

    async def one(made: AsyncExecutor) -> str:
        async with made.session() as session:
            return (await session.exec("true")).status

    run(work())


def test_skills_are_there_before_the_session_and_as_they_are_now(
    executor: Executor, runtime: str, tmp_path: Path
) -> None:
    """A copy that was staged ahead is used only while its source is the same, and belongs to one session."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Says it.\n---\n")
        (tmp_path / name / "say.sh").write_text(f"echo {name}\n")
        (tmp_path / name / "lost").symlink_to("/etc/passwd")  # a warning that the session is to have
    puts: list[bytes] = []

    async def work() -> None:
        pool_settings = PoolSettings(size=1, skills=("one", "two"))
        async with AsyncExecutor(skills=[tmp_path], runtime=runtime, pool=pool_settings) as made:
            pool = made._runtime
            assert isinstance(pool, Pool)
            await filled(pool)
            (tmp_path / "two" / "say.sh").write_text("echo changed\n")
            async with made.session() as session:
                channel = await session._ready()
                assert session.staged == {}
                original = channel.put_files

                async def counted(*arguments: Any, **options: Any) -> Any:
                    puts.append(options["swap"])
                    return await original(*arguments, **options)

                channel.put_files = counted  # type: ignore[method-assign]
                assert await said(session, "one") == "one\n"
                assert puts == []  # the control: it is the other that is brought
                assert await said(session, "two") == "changed\n"
                assert puts == [b"two"]
                assert set(session.staged) == {"one", "two"}
                await session.exec("echo echo other >/skills/one/say.sh")
                assert await said(session, "one") == "other\n"
            await filled(pool)
            async with made.session() as session:
                assert await said(session, "one") == "one\n"
                await session.checkpoint()
            async with made.restore(session.id) as session:  # not into one that has files already
                assert session._box._sandbox is not None
                assert not session._box._sandbox.spare
                assert await said(session, "one") == "one\n"

    async def said(session: AsyncSession, skill: str) -> str:
        before = skill in session.staged
        result = await session.exec("bash say.sh", skill=skill)
        assert any("'lost' leads out" in warning for warning in result.warnings) is not before
        return result.stdout

    run(work())


def test_what_was_staged_ahead_is_nothing_once_a_script_could_change_it(
    executor: Executor, runtime: str, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "SKILL.md").write_text("---\nname: one\ndescription: Says it.\n---\n")
    (tmp_path / "one" / "say.sh").write_text("echo one\n")

    async def work() -> None:
        settings = PoolSettings(size=1, skills=("one",))
        async with AsyncExecutor(skills=[tmp_path], runtime=runtime, pool=settings) as made:
            pool = made._runtime
            assert isinstance(pool, Pool)
            await filled(pool)
            async with made.session() as session:
                planted = await session.exec("echo echo evil >/skills/one/say.sh; cat /skills/one/say.sh")
                assert planted.stdout == "echo evil\n"  # the control: it is there to be changed
                assert (await session.exec("bash say.sh", skill="one")).stdout == "one\n"
            await filled(pool)
            kill_one(runtime, pool._ready[0])  # nothing has told the pool yet
            async with made.session() as session:
                assert (await session.exec("bash say.sh", skill="one")).stdout == "one\n"

    run(work())


def test_closing_while_skills_are_staged_leaves_no_sandbox(
    executor: Executor, runtime: str, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "SKILL.md").write_text("---\nname: one\ndescription: Says it.\n---\n")

    async def work() -> None:
        for number in range(12 if runtime == "local" else 2):
            settings = PoolSettings(size=2, skills=("one",))
            async with AsyncExecutor(skills=[tmp_path], runtime=runtime, pool=settings) as made:
                pool = made._runtime
                assert isinstance(pool, Pool)
                await asyncio.sleep(0.01 * number)
            assert (pool.alive, pool.ready) == (0, 0)

    run(work())


def test_a_pool_of_skills_that_there_are_not_is_an_error(executor: Executor, runtime: str) -> None:
    async def work() -> None:
        settings = PoolSettings(size=1, skills=("nowhere",))
        with pytest.raises(SkillNotFoundError, match="nowhere"):
            async with AsyncExecutor(skills=[], runtime=runtime, pool=settings):
                pass

    run(work())


def test_sessions_wait_in_turn_and_may_go_away(executor: Executor, runtime: str) -> None:
    async def work() -> None:
        async with pooled(runtime, size=1, max=1, wait=30) as (made, pool):
            await filled(pool)
            first = made.session()
            await first.exec("true")
            order: list[int] = []

            async def one(number: int) -> None:
                async with made.session() as session:
                    order.append(number)
                    assert (await session.exec("true")).status == "ok"

            tasks = []
            for number in range(3):
                tasks.append(asyncio.create_task(one(number)))
                await asyncio.sleep(0)
            closed = made.session()
            waiting = asyncio.create_task(closed.exec("true"))
            await asyncio.sleep(0.05)
            assert not order
            tasks.pop(1).cancel()
            began = time.monotonic()
            await closed.close()  # does not wait for a sandbox that it will never use
            with pytest.raises(SessionClosedError):
                await waiting
            assert time.monotonic() - began < 10
            await first.close()
            await asyncio.gather(*tasks)
            assert order == [0, 2]
            assert pool.alive <= 1

    run(work())


def test_the_bound_is_told_and_closing_ends_the_wait(executor: Executor, runtime: str) -> None:
    async def work() -> None:
        async with pooled(runtime, max=1, wait=0.2) as (made, _), made.session() as first:
            with pytest.raises(SandboxStartError, match=r"pool\.max"):
                await made.session().exec("true")
            assert (await first.exec("true")).status == "ok"
        async with pooled(runtime, max=1) as (made, _):
            first = made.session()
            await first.exec("true")
            waiting = [asyncio.create_task(made.session().exec("true")) for _ in range(3)]
            await asyncio.sleep(0.05)
            await made.close()
            for task in waiting:
                with pytest.raises(SessionClosedError):
                    await task

    run(work())


def test_a_storm_of_cancelled_sessions_leaves_nothing(executor: Executor, runtime: str) -> None:
    async def work() -> None:
        before = processes_of(os.getpid()), set(containers_of(owner_label()))
        async with pooled(runtime, size=1, max=3) as (made, pool):

            async def one(delay: float) -> None:
                task = asyncio.create_task(use())
                await asyncio.sleep(delay)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

            async def use() -> None:
                async with made.session() as session:
                    await session.exec("sleep 0.05")

            await asyncio.gather(*(one(0.02 * number) for number in range(12)))
            await filled(pool)
            assert pool.alive == 1
        deadline = time.monotonic() + 10
        while (left := leavings(before)) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert not left

    def leavings(before: tuple[set[int], set[str]]) -> set[Any]:
        if runtime == "container":
            return set(containers_of(owner_label())) - before[1]
        return processes_of(os.getpid()) - before[0]

    run(work())


def test_no_pool_is_no_pool(executor: Executor, runtime: str) -> None:
    with Executor(skills=[], runtime=runtime, pool=PoolSettings(size=0)) as made:
        assert not isinstance(made._inner._runtime, Pool)
