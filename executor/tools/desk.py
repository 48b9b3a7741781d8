"""What a tool's handler works with: one agent's view of the skills, its state, and the session's sandbox.

The sandbox is started by the first tool that needs one; a skill's files are staged before the first command
after its load. Knowledge tools never start anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from executor.bridge import Grant
from executor.errors import (
    BadRequestError,
    ProtocolError,
    SandboxError,
    SandboxLostError,
    SessionClosedError,
    SkillError,
    SkillNotFoundError,
)
from executor.executor import AsyncExecutor
from executor.session import AsyncSession
from executor.session.prepare import Step
from executor.skills.catalogue import Filter, brought, seen
from executor.skills.contents import Contents, contents
from executor.skills.prompt import Prompts
from executor.skills.repository import Skill
from executor.skills.state import SkillState
from executor.tools.policy import CommandPolicy
from executor.tools.results import RefusedError
from executor.workspace.artifacts import ArtifactStore
from executor.workspace.text import printable_name

log = logging.getLogger("executor.skills")

Progress = Callable[[float, str], Awaitable[None] | None]
"""Called about every second of a long call with the seconds so far and a line of text."""
context: ContextVar[Any] = ContextVar("context", default=None)
"""What the application says of the request under way; for the filter."""
Grants = Grant | Callable[[str], Grant]
"""What scripts may call, or a function that says it for a skill, asked for each run."""
progress: ContextVar[Progress | None] = ContextVar("progress", default=None)
"""Of the call under way."""


@dataclass(frozen=True)
class HostTool:
    """A tool of the application that a skill brings along: callable only while such a skill is active."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    """JSON Schema of its arguments. They are handed to `handler` as they came: it checks them."""
    handler: Callable[[dict[str, Any]], Awaitable[str] | str]


@dataclass(frozen=True)
class Fork:
    """A skill that is to run in a conversation of its own."""

    skill: str
    prompt: str
    """Its text, with its arguments: the first message."""
    tools: tuple[str, ...]
    """Its `allowed-tools`; () means all."""
    model: str
    """The model it asks for, or ''."""
    depth: int
    """How many forks deep this one is; for `Options.depth` of its toolset."""


@dataclass(frozen=True)
class Options:
    """Numbers and choices of one toolset."""

    placement: Literal["result", "system"] = "result"
    """Where a loaded skill's text stands: in the result of the call that loaded it, or in the system text."""
    prompts: Prompts = field(default_factory=Prompts)
    max_overview: int | None = None
    """Skills that the overview describes; more are listed by name. Default all."""
    output_bytes: int = 16 << 10
    """Bytes of each stream that one result shows. Default 16 KiB."""
    spill_bytes: int = 16 << 20
    """Bytes of each stream that are kept for a workspace file. Default 16 MiB."""
    read_bytes: int = 64 << 10
    """Bytes of a file that one result shows. Default 64 KiB."""
    image_bytes: int = 5 << 20
    """A larger picture is not shown. Default 5 MiB."""
    prepare: tuple[Step, ...] = ()
    """What the workspace is to have before any command, checked before each. Default nothing."""
    policy: CommandPolicy | None = None
    """Which programs a command may name. Default any; see `policy.py` for what that is worth."""
    fork: Callable[[Fork], Awaitable[str] | str] | None = None
    """Runs a forked skill and returns the last message. Default: such skills run here."""
    depth: int = 0
    """How many forks deep this conversation is. Default 0."""
    max_timeout: float = 3600.0
    """Ceiling of `timeout_sec`, in seconds. Default one hour."""
    max_commands: int = 16
    """Commands of one agent that may go on at the same time. Default 16."""
    idle_seconds: float = 1800.0
    """A command that nobody asks about is ended after so long, one that ended is forgotten. Default 1800."""


class Desk:
    """One agent's desk. `session`: an open session, or the id of one to be opened when it is needed."""

    def __init__(
        self,
        executor: AsyncExecutor,
        session: AsyncSession | str,
        *,
        agent: str,
        state: SkillState,
        options: Options,
        artifacts: ArtifactStore | None,
        chosen: Filter | None,
        scoped: Mapping[str, Sequence[HostTool]],
        grant: Grants | None = None,
        require_loaded: bool = False,
        nested: bool = False,
    ) -> None:
        self.executor = executor
        self.agent = agent
        self.state = state
        self.options = options
        self.artifacts = artifacts
        self.scoped = scoped
        self.warnings: list[str] = []
        """What the next result of a command is to say."""
        self.shown: dict[str, str] = {}
        """skill → digest of the text that results of this toolset have shown. Another one's conversation may
        be another conversation."""
        self.grant = grant
        self.require_loaded = require_loaded
        """A skill's scripts can be run only while it is loaded."""
        self._nested = nested
        self._filter = chosen
        self._catalogue: list[Skill] | None = None
        self._told: set[tuple[str, str]] = set()
        self._session = session
        self._opening = asyncio.Lock()
        self._fresh: set[str] = set()
        self._given_up: set[str] = set()

    # -- skills --

    def begin_turn(self, catalogue: list[Skill]) -> None:
        """This is the catalogue until the next turn, whatever changes."""
        self._catalogue = catalogue

    def look(self) -> list[Skill]:
        """The skills that there are now; sources far away are asked if it is time. May take long.

        What is wrong with others is logged, once each.
        """
        repository = self.executor.repository
        repository.renew()
        found = repository.skills()
        for problem in repository.problems():
            told = (problem.where, problem.reason)
            if told not in self._told:
                self._told.add(told)
                log.warning("skill at %s: %s", printable_name(told[0]), printable_name(told[1]))
        return found

    def known(self) -> list[Skill]:
        """The skills that this request may see, sorted by slug: of this turn, or of now before the first."""
        found = self.executor.repository.skills() if self._catalogue is None else self._catalogue
        return seen(found, self._filter, context.get())

    def skills(self) -> list[Skill]:
        """Those of them that are offered: not the ones that only an active skill brings."""
        found = self.known()
        inner = brought(found) if self._nested else {}
        return [skill for skill in found if skill.slug not in inner]

    def skill(self, name: str) -> Skill:
        """One of them. A hidden one is as unknown as one that does not exist."""
        name = name.strip()
        try:
            found: Skill | None = self.executor.repository.named(name)
        except SkillNotFoundError:
            found = None
        if found is None or not seen([found], self._filter, context.get()):
            names = [skill.slug for skill in self.skills()]
            shown = ", ".join(names[:50]) + (", …" if len(names) > 50 else "") or "none"
            raise RefusedError(f"unknown skill: {name!r}", f"There are: {shown}", kind="SkillNotFoundError")
        bringing = brought(self.known()).get(found.slug, []) if self._nested else []
        if bringing and not any(loaded.skill in bringing for loaded in self.state.loaded()):
            raise RefusedError(
                f"the skill {found.slug!r} can be loaded only while one that brings it is active",
                f"Load {' or '.join(bringing)} first.",
                kind="ToolNotActive",
            )
        return found

    async def contents(self, skill: Skill) -> Contents:
        """Its files as they are now."""
        return await asyncio.to_thread(contents, skill)

    def stage_anew(self, slug: str) -> None:
        """The skill was loaded: the next command gets its files as they are now."""
        self._fresh.add(slug)
        self._given_up.discard(slug)

    # -- the sandbox --

    async def session(self) -> AsyncSession:
        """The session, started, with the files of all loaded skills in it."""
        async with self._opening:
            if isinstance(self._session, str):
                await self.executor.choose_runtime()
                self._session = self.executor.session(self._session)
            if self.options.prepare:
                self.warnings += await self._session.prepare(self.options.prepare)
            for loaded in self.state.loaded():
                await self._stage(self._session, loaded.skill)
            return self._session

    @property
    def opened(self) -> AsyncSession | None:
        """The session, if it was opened."""
        return None if isinstance(self._session, str) else self._session

    async def _stage(self, session: AsyncSession, slug: str) -> None:
        staged = session.staged
        if (slug in staged and slug not in self._fresh) or slug in self._given_up:
            return
        try:
            await session.load(slug)
        except (SessionClosedError, SandboxLostError, ProtocolError):
            raise
        except (SkillError, BadRequestError, SandboxError) as error:
            # A skill that went away or does not fit must not take every command of the session with it.
            self._given_up.add(slug)
            what = "are those of an earlier version" if slug in staged else "could not be staged"
            self.warnings.append(f"the files of {slug} {what}: {error.message}")
        self._fresh.discard(slug)

    def take_warnings(self) -> list[str]:
        """What is to be said, once."""
        taken, self.warnings = self.warnings, []
        return taken


def tables(session: AsyncSession) -> dict[str, Any]:
    """Per agent, what belongs to it as long as the session lives, whichever toolset asks."""
    found: dict[str, Any] = session.attached.setdefault("tools", {})
    return found
