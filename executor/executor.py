"""`AsyncExecutor`: owns the runtime, the repository of skills and the open sessions.

`executor.sync.Executor` is the same for callers without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from executor.bridge.audit import AuditLog
from executor.deps import LayerStore
from executor.deps.offer import BENCH_LIMITS, Layers
from executor.errors import (
    BadRequestError,
    ExecutorError,
    ImageMissingError,
    RuntimeUnavailableError,
)
from executor.models import Limits
from executor.runtimes.base import Runtime
from executor.runtimes.pool import Pool
from executor.runtimes.reaper import Reaper
from executor.session import AsyncSession, request
from executor.session.ahead import preparing
from executor.session.box import sandbox_spec
from executor.settings import PoolSettings, Settings, load, over
from executor.skills.repository import Repository
from executor.skills.sources.base import SkillSource
from executor.workspace.checkpoint import Store
from executor.workspace.snapshot import Snapshot
from executor.workspace.staging import Stager

if TYPE_CHECKING:
    from executor.bridge import Grant

Root = str | os.PathLike[str] | SkillSource
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class AsyncExecutor:
    """Runs skills in sandboxes.

    `skills`: one root or several (docs/sources.md), texts, paths or sources of your own; the first wins
    (default `$SKILLS_ROOT`, then `./skills`). `runtime`: `auto`, `container`, `local`, or a `Runtime` of your
    own. `image`: see `Settings.image`. `pool`: sandboxes started ahead (default: none).
    `grant`: what no run of any session gets more than (default: no such bound). `settings`: everything else.
    """

    def __init__(
        self,
        *,
        skills: Root | Sequence[Root] | None = None,
        runtime: str | Runtime | None = None,
        image: str | None = None,
        pool: PoolSettings | None = None,
        grant: Grant | None = None,
        settings: Settings | None = None,
    ) -> None:
        overrides: dict[str, Any] = {"image": image, "pool": pool}
        if isinstance(skills, str | os.PathLike | SkillSource):
            skills = [skills]
        if skills is not None:
            overrides["skills"] = tuple(
                root.id if isinstance(root, SkillSource) else os.fspath(root) for root in skills
            )
        if isinstance(runtime, str):
            overrides["runtime"] = runtime
        if settings is None:
            settings = load(overrides)
        else:
            settings = over(settings, overrides)
        self.settings = settings
        self.repository = Repository(skills or settings.skills, settings.sources)
        self.store = Store(settings.state_folder)
        """Where sessions are kept."""
        self.audit = AuditLog(settings.audit or None)
        """Where the calls of granted tools are recorded."""
        self.grant = grant
        """What no run gets more than."""
        self.layers = Layers(LayerStore.of_settings(settings), settings.deps, self._bench)
        """Dependencies of skills: what a session gets of them."""
        self._stager = Stager()
        self.why = ""
        """Which runtime was chosen and why, once it has been."""
        self._runtime: Runtime | None = runtime if isinstance(runtime, Runtime) else None
        self._reaper: Reaper | None = None
        self._choosing = asyncio.Lock()
        self._sessions: dict[str, AsyncSession] = {}
        self._closed = False

    async def __aenter__(self) -> AsyncExecutor:
        await self.choose_runtime()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every session, then the runtime. Nothing can be opened afterwards."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.stop()
        sessions = list(self._sessions.values())
        await asyncio.gather(*(session.close() for session in sessions), return_exceptions=True)
        if self._runtime is not None:
            await self._runtime.close()
        await asyncio.to_thread(self.store.clear_if_due)
        self.store.close()

    async def choose_runtime(self) -> str:
        """Settle on a runtime and check that it works. Its name. RuntimeUnavailableError."""
        self._check_open()
        async with self._choosing:
            if self._runtime is None or not self.why:
                self._runtime, self.why = await choose(self.settings, self._runtime)
                if (pool := self.settings.pool).size or pool.max:
                    self._runtime = await self._pooled(self._runtime, pool)
                self._reaper = Reaper(self._runtime, self.settings.reap_interval)
                await asyncio.to_thread(self.repository.prepare)
        return self._runtime.name

    async def _pooled(self, runtime: Runtime, pool: PoolSettings) -> Pool:
        """The runtime behind a pool that has begun to fill."""
        for name in pool.skills:
            await asyncio.to_thread(self.repository.named, name)
        spec, _ = sandbox_spec("", pool.limits or self.settings.limits, self.settings, pool.skills)
        made = Pool(
            runtime,
            spec,
            size=pool.size,
            most=pool.max,
            idle_ttl=pool.idle_ttl,
            wait=pool.wait,
            prepare=preparing(self.settings, self.repository, self._stager, self.layers)
            if pool.skills
            else None,
        )
        await made.check()
        return made

    def session(
        self,
        session_id: str | None = None,
        *,
        limits: Limits | None = None,
        grant: Grant | None = None,
        durable: bool = False,
        warm: Sequence[str] | None = None,
    ) -> AsyncSession:
        """A session, started at its first use or by `async with`. The open one when the id is in use.

        `limits`: default `Settings.limits`. `grant`: what none of its runs gets more than. `durable`: it goes
        on with the files of its latest checkpoint if it has one, takes another after each run, and gets a
        fresh sandbox when it loses its own; `limits` are then by default those it had. `warm`: modules that a
        Python has imported before it is forked for a script, such as `["python:numpy,pandas"]`; default
        `Settings.warm`. BadRequestError for an id that is no plain name, for an open session with other
        limits, another grant, other warm interpreters or no durability, and (at its first use) for a durable
        one that another process has open.
        """
        name = session_id if session_id is not None else secrets.token_hex(16)
        return self._open(name, limits, grant, None, durable, warm)

    def restore(
        self,
        session_id: str,
        *,
        limits: Limits | None = None,
        grant: Grant | None = None,
        durable: bool = False,
        warm: Sequence[str] | None = None,
    ) -> AsyncSession:
        """A session that begins with the files of the latest checkpoint under this id, in a fresh sandbox of
        this executor's runtime, whichever took it. Arguments as of `session`. BadRequestError when there is
        none, or the session is open; StateError when it is damaged.
        """
        self._check_open()
        if session_id in self._sessions:
            raise BadRequestError(f"session {session_id!r} is open", hint="Close it first.")
        if not _SESSION_ID.fullmatch(session_id):
            raise BadRequestError(f"{session_id!r} cannot be a session's id")
        snapshot = self.store.latest(session_id)
        if snapshot is None:
            raise BadRequestError(
                f"session {session_id!r} has no checkpoint in {self.store.folder}",
                hint="Take one with session.checkpoint(), or `executor run --session`.",
            )
        return self._open(session_id, limits, grant, snapshot, durable, warm)

    def _check_open(self) -> None:
        if self._closed:
            raise BadRequestError("the executor is closed", hint="Make another one.")

    def _open(
        self,
        name: str,
        limits: Limits | None,
        grant: Grant | None,
        snapshot: Snapshot | None,
        durable: bool,
        warm: Sequence[str] | None,
    ) -> AsyncSession:
        self._check_open()
        if self._runtime is None:
            raise BadRequestError(
                "the executor has not chosen its runtime yet",
                hint="Use it in `async with`, or await choose_runtime() first.",
            )
        if not _SESSION_ID.fullmatch(name):
            raise BadRequestError(
                f"{name!r} cannot be a session's id",
                hint="Use letters, digits, '.', '_' and '-', at most 128.",
            )
        found = self._sessions.get(name)
        if found is not None and not found.closed and (found.durable or not found.lost):
            if durable and not found.durable:
                raise BadRequestError(
                    f"session {name!r} is open and not durable", hint="Close it first, or use another id."
                )
            if found.limits != (limits or (found.limits if found.durable else self.settings.limits)):
                raise BadRequestError(
                    f"session {name!r} is open with other limits", hint="Close it first, or use another id."
                )
            if grant is not None and grant is not found.asked_grant:
                raise BadRequestError(
                    f"session {name!r} is open with another grant", hint="Close it first, or use another id."
                )
            if warm is not None and request.warm(warm) != found.warm:
                raise BadRequestError(
                    f"session {name!r} is open with other warm interpreters",
                    hint="Close it first, or use another id.",
                )
            return found
        session = AsyncSession(
            name,
            runtime=self._runtime,
            repository=self.repository,
            settings=self.settings,
            limits=limits or (self._kept_limits(name) if durable else None) or self.settings.limits,
            store=self.store,
            snapshot=snapshot,
            durable=durable,
            audit=self.audit,
            grants=(self.grant, grant),
            layers=self.layers,
            stager=self._stager,
            warm=self.settings.warm if warm is None else warm,
        )
        session.on_close = self._forget
        self._sessions[name] = session
        return session

    @contextlib.asynccontextmanager
    async def _bench(self) -> AsyncIterator[AsyncSession]:
        """A session in which layers of dependencies are made: `executor.deps.building`."""
        self.layers.store.prepare()
        async with self.session(limits=BENCH_LIMITS, warm=()) as session:
            yield session

    def _kept_limits(self, name: str) -> Limits | None:
        """Those that a durable session had here; None when they are not known, or not allowed any more."""
        kept = self.store.sessions.get(name)
        if kept is None or kept.limits is None:
            return None
        try:
            return Limits.model_validate(kept.limits)
        except ValidationError:
            return None

    def _forget(self, session: AsyncSession) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]


async def choose(settings: Settings, given: Runtime | None = None) -> tuple[Runtime, str]:
    """The runtime for these settings, checked, and a sentence that says why it was chosen."""
    # Imported here: the engine's SDK alone takes a third of a second, and local does not need it.
    from executor.runtimes.local import LocalRuntime

    if given is not None:
        await given.check()
        return given, f"{given.name}: given by the caller"
    local = LocalRuntime()
    if settings.runtime == "local":
        await local.check()
        return local, "local: asked for"
    from executor.runtimes.container import DEFAULT_IMAGE, ContainerRuntime

    container = ContainerRuntime(
        docker_host=settings.docker_host or None,
        image=settings.image if settings.image and settings.runtime == "container" else DEFAULT_IMAGE,
        engine_runtime=settings.engine_runtime,
        options=settings.container_options,
    )
    if settings.runtime == "container":
        await container.check()
        await container.check_image(settings.image)
        return container, f"container: asked for; engine at {container.address}"
    try:
        await container.check()
        await container.check_image(settings.image)
    except RuntimeUnavailableError as no_container:
        await container.close()
        try:
            await local.check()
        except RuntimeUnavailableError as no_local:
            raise _neither(no_container, no_local) from no_local
        return local, f"local: {no_container.message}"
    return container, f"container: an engine answers at {container.address} and has the image"


def _neither(container: ExecutorError, local: ExecutorError) -> RuntimeUnavailableError:
    hints = [hint for hint in (container.hint, local.hint) if hint]
    kind = ImageMissingError if isinstance(container, ImageMissingError) else RuntimeUnavailableError
    return kind(
        f"no runtime works here. container: {container.message}. local: {local.message}",
        hint="Do one of these: " + " — ".join(hints),
    )
