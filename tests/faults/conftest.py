"""An asynchronous executor for each test here, and the promise that it leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import docker
import pytest

from executor import AsyncExecutor, Executor, Settings
from executor.channel import connection
from executor.runtimes.base import Runtime, Sandbox, SandboxSpec
from tests.faults import traces

Work = Callable[[AsyncExecutor, list[Sandbox]], Awaitable[None]]
Drive = Callable[..., None]


@pytest.fixture(scope="session")
def client(executor: Executor, runtime: str) -> Iterator[Any]:
    """A client of the engine under test; None for the local runtime."""
    if runtime != "container":
        yield None
        return
    made = docker.from_env()
    yield made
    made.close()


@pytest.fixture
def drive(executor: Executor, client: Any) -> Drive:
    """Run a coroutine with an executor of its own and the list of the sandboxes that it starts; nothing of
    them may be left afterwards.
    """

    def run(work: Work, wrap: Callable[[Runtime], None] | None = None, patience: float = 90) -> None:
        before = traces.remains(client)
        asyncio.run(_driven(executor.settings, work, wrap, patience))
        assert traces.eventually(lambda: traces.remains(client) == before), (before, traces.remains(client))

    return run


async def _driven(
    settings: Settings, work: Work, wrap: Callable[[Runtime], None] | None, patience: float
) -> None:
    async with asyncio.timeout(patience), AsyncExecutor(settings=settings) as made:
        runtime = made._runtime
        assert runtime is not None
        if wrap is not None:
            wrap(runtime)
        started: list[Sandbox] = []
        start = runtime.start

        async def recording(spec: SandboxSpec) -> Sandbox:
            sandbox = await start(spec)
            started.append(sandbox)
            return sandbox

        runtime.start = recording  # type: ignore[method-assign]
        await work(made, started)


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost after 4 s of silence: an engine may keep open the stream of a container that died while it was
    written to.
    """
    monkeypatch.setattr(connection, "PING_EVERY", 1.0)
    monkeypatch.setattr(connection, "SILENCE", 4.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats every 0.2 s, and lost after 1.5 s of silence."""
    monkeypatch.setattr(connection, "PING_EVERY", 0.2)
    monkeypatch.setattr(connection, "SILENCE", 1.5)
