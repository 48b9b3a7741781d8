"""An engine that dies, hangs, fills up or is asked too much: clear errors, nobody waits, and nothing stays.

The tests have an engine of their own. One that is down at the start is in `test_unavailable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import secrets
import signal
import tarfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker.errors
import pytest
import requests

from executor import (
    AsyncExecutor,
    EngineDownError,
    ImageMissingError,
    SandboxLostError,
    SandboxStartError,
    Settings,
)
from executor.channel import connection
from executor.runtimes import container
from executor.runtimes.container import ContainerRuntime
from executor.runtimes.engine import remove_container
from tests.conftest import REQUIRED
from tests.faults import traces
from tests.faults.engines import SMALL, OwnEngine, missing, own_engine
from tests.faults.test_sandbox import under_way
from tests.faults.test_soak import LONG


@pytest.fixture(scope="module")
def one() -> Iterator[OwnEngine]:
    if why := missing():
        if "container" in REQUIRED and "root" not in why:
            pytest.fail(why)
        pytest.skip(why)
    with own_engine() as made:
        yield made


@pytest.fixture
def engine(one: OwnEngine) -> Iterator[OwnEngine]:
    """The engine, which is there again after the test, without a single container or volume."""
    yield one
    if not one.alive:
        one.start()
    with contextlib.closing(one.client()) as client:
        assert traces.eventually(lambda: not client.api.containers(all=True)), client.api.containers(all=True)
        assert not client.api.volumes()["Volumes"]
    assert traces.eventually(lambda: not one.shims()), one.shims()
    assert one.overlays() == []
    assert traces.remains() == {}


@contextlib.asynccontextmanager
async def opened(engine: OwnEngine, **settings: Any) -> AsyncIterator[AsyncExecutor]:
    order = Settings(runtime="container", docker_host=engine.host, image=SMALL, skills=(), reap_interval=0.2)
    async with asyncio.timeout(90), AsyncExecutor(settings=order.model_copy(update=settings)) as made:
        yield made


@pytest.mark.parametrize("end", [OwnEngine.kill, OwnEngine.terminate])
def test_an_engine_that_ends_in_mid_run_loses_the_run_and_nothing_else(
    engine: OwnEngine, monkeypatch: pytest.MonkeyPatch, end: Callable[[OwnEngine], None]
) -> None:
    """SECURITY 6: dockerd KILL and TERM. The guest's lease ends what nobody supervises; the session is not
    made anew in silence; the same executor goes on when the engine is back.
    """
    monkeypatch.setattr(connection, "LEASE", 2.0)
    monkeypatch.setattr(connection, "PING_EVERY", 0.5)
    words = f"7{secrets.randbelow(10**9):09d}"

    async def work() -> None:
        async with opened(engine) as made:
            session = made.session()
            run = await under_way(session, f"echo up; touch work/up; exec sleep {words}")
            assert len(traces.sleepers(words)) == 1
            await asyncio.to_thread(end, engine)
            result = await run
            assert (result.status, result.stdout) == ("lost", "up\n")
            assert "the engine does not answer" in " ".join(result.warnings)
            with pytest.raises(SandboxLostError, match="has lost its sandbox"):
                await session.exec("true")
            with pytest.raises(EngineDownError, match="no Docker engine answers"):
                await made.session().exec("true")
            await session.close()
            assert await traces.settled(lambda: not traces.sleepers(words))
            await asyncio.to_thread(engine.start)
            async with made.session() as again:
                assert (await again.exec("echo back")).stdout == "back\n"

    asyncio.run(work())


@pytest.fixture
def restoring(engine: OwnEngine) -> Iterator[OwnEngine]:
    """The engine with live-restore: its containers live on while it does not."""
    engine.configure(**{"live-restore": True})
    with contextlib.closing(engine.client()) as client:
        assert traces.eventually(lambda: client.info()["LiveRestoreEnabled"])
        yield engine
        engine.configure(**{"live-restore": False})
        assert traces.eventually(lambda: not client.info()["LiveRestoreEnabled"])


@pytest.mark.parametrize("end", [OwnEngine.kill, *[OwnEngine.terminate] * LONG])
def test_a_container_that_its_engine_takes_up_again_is_lost_and_goes(
    restoring: OwnEngine, end: Callable[[OwnEngine], None]
) -> None:
    """SECURITY 6: live-restore. What the guest said meanwhile is gone, so nobody attaches again: the run is
    lost, and the container, which is still there, is removed.
    """
    words = f"8{secrets.randbelow(10**9):09d}"

    async def work() -> None:
        async with opened(restoring) as made:
            session = made.session()
            run = await under_way(session, f"echo up; touch work/up; exec sleep {words}")
            await asyncio.to_thread(end, restoring)
            result = await run
            assert (result.status, result.stdout) == ("lost", "up\n")
            assert len(traces.sleepers(words)) == 1  # in its container, which nobody supervises
            await asyncio.to_thread(restoring.start)
            assert await traces.settled(lambda: not traces.sleepers(words))
            with pytest.raises(SandboxLostError, match="has lost its sandbox"):
                await session.exec("true")
            await session.close()
            async with made.session() as again:
                assert (await again.exec("echo back")).stdout == "back\n"

    asyncio.run(work())


def test_an_engine_that_hangs_holds_nobody_up(
    engine: OwnEngine, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    monkeypatch.setattr(container, "KILL_TIMEOUT", 0.5)

    async def work() -> None:
        async with opened(engine) as made:
            session = made.session()
            run = await under_way(session)
            assert isinstance(made._runtime, ContainerRuntime)
            made._runtime._api.timeout = 2  # seconds without an answer
            engine.send(signal.SIGSTOP)
            try:
                result = await run
                assert (result.status, result.stdout) == ("lost", "up\n")
                await session.close()
                with pytest.raises(EngineDownError, match="no Docker engine answers"):
                    await made.session().exec("true")
            finally:
                engine.send(signal.SIGCONT)

    asyncio.run(work())


def test_an_engine_that_is_gone_before_a_create_is_named(engine: OwnEngine) -> None:
    async def work() -> None:
        async with opened(engine) as made:
            engine.kill()
            with pytest.raises(EngineDownError, match="Connection refused") as caught:
                await made.session("same").exec("true")
            assert engine.host in caught.value.message
            engine.socket.unlink()
            with pytest.raises(EngineDownError, match="No such file"):
                await made.session("same").exec("true")
            await asyncio.to_thread(engine.start)
            assert (await made.session("same").exec("echo back")).stdout == "back\n"

    asyncio.run(work())


def test_an_image_that_is_gone_since_the_executor_opened_is_named_and_not_pulled(engine: OwnEngine) -> None:
    async def work() -> None:
        with contextlib.closing(engine.client()) as client:
            client.api.tag(SMALL, "executor-faults/other", "1")
            async with opened(engine, image="executor-faults/other:1") as made:
                client.api.remove_image("executor-faults/other:1")
                with pytest.raises(ImageMissingError, match="has no image 'executor-faults/other:1'"):
                    await made.session().exec("true")
                assert [image["RepoTags"] for image in client.api.images()] == [[SMALL]]

    asyncio.run(work())


def test_a_session_has_the_image_that_was_looked_at_when_it_began(engine: OwnEngine) -> None:
    """SECURITY 6: digest changed. The name leads elsewhere from one session to the next, between look and
    create, and between look and create to nowhere.
    """
    name, other = "executor-faults/moving", "executor-faults/changed"

    def image_of(client: Any, container: str) -> str:
        return str(client.api.inspect_container(container)["Image"])

    async def work() -> None:
        with contextlib.closing(engine.client()) as client:
            first = client.api.inspect_image(SMALL)["Id"]
            made_of = client.api.create_container(SMALL, ["true"])["Id"]
            client.api.commit(made_of, other, "1")
            client.api.remove_container(made_of)
            second = client.api.inspect_image(f"{other}:1")["Id"]
            assert first != second
            client.api.tag(SMALL, name, "1")
            try:
                async with opened(engine, image=f"{name}:1") as made:
                    runtime = made._runtime
                    assert isinstance(runtime, ContainerRuntime)
                    named, between = runtime._named, contextlib.suppress()

                    def changing(sandbox: Any, body: Any) -> None:
                        with between:
                            named(sandbox, body)

                    runtime._named = changing  # type: ignore[method-assign]
                    for expected in (first, second):
                        async with made.session() as session:
                            await session.exec("true")
                            (sandbox,) = runtime._sandboxes
                            assert image_of(client, sandbox.name) == expected
                        client.api.tag(f"{other}:1", name, "1", force=True)
                    between = moved(client, SMALL, name)
                    async with made.session() as session:
                        await session.exec("true")
                        (sandbox,) = runtime._sandboxes
                        assert image_of(client, sandbox.name) == second
                        assert client.api.inspect_image(f"{name}:1")["Id"] == first
                    client.api.tag(f"{other}:1", name, "1", force=True)
                    between = gone(client, f"{other}:1", f"{name}:1")
                    with pytest.raises(ImageMissingError, match="has no image"):
                        await made.session().exec("true")
            finally:
                for left in (f"{other}:1", f"{name}:1"):
                    with contextlib.suppress(docker.errors.ImageNotFound):
                        client.api.remove_image(left)

    asyncio.run(work())


@contextlib.contextmanager
def moved(client: Any, image: str, name: str) -> Iterator[None]:
    """The name leads to another image before the container is made."""
    client.api.tag(image, name, "1", force=True)
    yield


@contextlib.contextmanager
def gone(client: Any, *names: str) -> Iterator[None]:
    """The image is removed before the container is made."""
    for name in names:
        client.api.remove_image(name)
    yield


def test_a_full_disk_is_named_and_leaves_nothing_half_made(one: OwnEngine) -> None:
    with own_engine(size="80m") as small:
        filler = small.folder / "filler"

        async def work() -> None:
            async with opened(small) as made:
                with contextlib.suppress(OSError), filler.open("wb") as file:
                    while file.write(bytes(4096)):
                        file.flush()
                with pytest.raises(SandboxStartError, match="no space left on device") as caught:
                    await made.session().exec("true")
                assert "disk is full" in caught.value.hint
                with contextlib.closing(small.client()) as client:
                    assert client.api.containers(all=True) == []
                filler.unlink()
                async with made.session() as session:
                    assert (await session.exec("echo room")).stdout == "room\n"

        asyncio.run(work())


def test_a_name_that_is_taken_is_left_to_its_owner(
    engine: OwnEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SECURITY 6: name conflict. The container of that name is somebody else's and must survive."""
    names = ["taken", "taken", "free", *["taken"] * 10]
    monkeypatch.setattr(container, "container_name", lambda: names.pop(0))

    async def work() -> None:
        with contextlib.closing(engine.client()) as client:
            theirs = client.api.create_container(SMALL, ["true"], name="taken")["Id"]
            try:
                async with opened(engine) as made:
                    async with made.session() as session:
                        assert (await session.exec("echo free")).stdout == "free\n"
                    with pytest.raises(SandboxStartError, match="already in use"):
                        await made.session().exec("true")
                    await asyncio.sleep(0.5)  # the reaper looks
                assert [found["Id"] for found in client.api.containers(all=True)] == [theirs]
            finally:
                client.api.remove_container(theirs)

    asyncio.run(work())


def test_many_remove_one_container_and_each_is_told_that_it_is_gone(engine: OwnEngine) -> None:
    """SECURITY 6: concurrent rm. The engine answers all but one with 409, and the last ones with 404."""
    with contextlib.closing(engine.client()) as client, ThreadPoolExecutor(6) as pool:
        made = client.api.create_container(SMALL, ["sleep", "600"])["Id"]
        client.api.start(made)
        assert list(pool.map(lambda _: remove_container(client.api, made), range(6))) == [True] * 6
        assert remove_container(client.api, made)


def slow_creates(runtime: Any, seconds: float, *, answer: bool) -> threading.Event:
    """Creates take their time; without `answer` their caller hears only that it took too long. Set when the
    engine has made one.
    """
    create, done = runtime._api.create_container_from_config, threading.Event()

    def work(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        made = create(*args, **kwargs)
        done.set()
        return made

    def slow(*args: Any, **kwargs: Any) -> Any:
        if answer:
            return work(*args, **kwargs)
        threading.Thread(target=work, args=args, kwargs=kwargs).start()
        raise requests.ReadTimeout("read timed out")

    runtime._api.create_container_from_config = slow
    return done


@pytest.mark.parametrize("moments", [(0.1,), (0.1, 0.1), (0.3, 0.3)])
def test_a_create_whose_caller_went_away_leaves_no_container(
    engine: OwnEngine, moments: tuple[float, ...]
) -> None:
    """Also when the caller is cancelled again while it cleans up."""

    async def work() -> None:
        async with opened(engine, reap_interval=0) as made:
            done = slow_creates(made._runtime, 0.4, answer=True)
            start = asyncio.create_task(made.session().exec("true"))
            for moment in moments:
                await asyncio.sleep(moment)
                start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
            assert await traces.settled(done.is_set)

    asyncio.run(work())


def test_a_create_that_ends_after_its_time_leaves_no_container(engine: OwnEngine) -> None:
    """Nobody is told the name of the container that comes at last; the reaper knows it."""

    async def work() -> None:
        async with opened(engine) as made:
            done = slow_creates(made._runtime, 0.6, answer=False)
            with pytest.raises(EngineDownError, match="timed out"):
                await made.session().exec("true")
            assert await traces.settled(done.is_set)
            with contextlib.closing(engine.client()) as client:
                assert await traces.settled(lambda: not client.api.containers(all=True))

    asyncio.run(work())


def test_a_start_that_is_refused_leaves_no_container(engine: OwnEngine) -> None:
    async def work() -> None:
        async with opened(engine, engine_runtime="not-a-runtime") as made:
            with pytest.raises(SandboxStartError, match="not-a-runtime"):
                await made.session().exec("true")

    asyncio.run(work())


def test_a_container_that_ends_at_once_is_seen_and_told(engine: OwnEngine) -> None:
    """SECURITY 6: fast exit. The stream is attached before the start, so that last words are not lost."""
    name = "executor-faults/fleeting"
    script = b"#!/bin/sh\necho 'no guest here' >&2\nexit 3\n"
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo("usr/local/bin/python3")
        entry.size, entry.mode = len(script), 0o755
        tar.addfile(entry, io.BytesIO(script))

    async def work() -> None:
        with contextlib.closing(engine.client()) as client:
            made_of = client.api.create_container(SMALL, ["true"])["Id"]
            client.api.put_archive(made_of, "/", layer.getvalue())
            client.api.commit(made_of, name, "1")
            client.api.remove_container(made_of)
            try:
                async with opened(engine, image=f"{name}:1") as made:
                    for _ in range(5):
                        with pytest.raises(SandboxStartError, match="no guest here") as caught:
                            await made.session().exec("true")
                        assert "ended while it started" in caught.value.message
            finally:
                client.api.remove_image(f"{name}:1")

    asyncio.run(work())


def test_the_reaper_needs_no_engine_to_be_there(engine: OwnEngine) -> None:
    """A round that fails is followed by another."""

    async def work() -> None:
        async with opened(engine) as made:
            runtime = made._runtime
            assert isinstance(runtime, ContainerRuntime)
            await asyncio.to_thread(engine.kill)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(engine.start)
            with contextlib.closing(engine.client()) as client:
                runtime._left.add("executor-unwanted")
                labels = {"executor.owner": "elsewhere:::1:1"}
                client.api.create_container(SMALL, ["true"], name="executor-unwanted", labels=labels)
                assert await traces.settled(lambda: not client.api.containers(all=True))

    asyncio.run(work())
