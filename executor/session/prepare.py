"""What a workspace is to have before its commands run: files, skills and commands, each done once.

Rules of this module:
1. Files come first, then skills, then commands; among each in the order given. Of two steps with one key the
   first counts.
2. A step is done again when it says something else than before, or when what it left is gone.
3. What was done is remembered on the host, with the session. A script cannot forge it, and another process
   does every step once more.
4. A session is prepared by one caller at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executor.errors import (
    BadRequestError,
    ExecutorError,
    SandboxError,
    SandboxLostError,
    SessionClosedError,
)
from executor.models import Input

if TYPE_CHECKING:
    from executor.session.session import AsyncSession

MAX_SAID = 512  # characters of what a failed command wrote


@dataclass(frozen=True)
class PutStep:
    """A file at `to`: `content`, or what the reference `source` names (see `Input`)."""

    to: str
    content: bytes | str | None = None
    source: str = ""
    executable: bool = False
    optional: bool = False
    """Its failure is a warning."""
    key: str = ""
    """What it is known by; default `file:<to>`."""


@dataclass(frozen=True)
class LoadStep:
    """A skill, as it is at the time."""

    skill: str
    optional: bool = False
    key: str = ""
    """Default `skill:<name>`."""


@dataclass(frozen=True)
class RunStep:
    """A command that has to end with status 0.

    `marker`: a file that says it was done, written after it; `observed`: what it makes. It is run again when
    one of these is missing, or when anything here changes, `salt` for example.
    """

    command: str | tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    timeout: float | None = None
    marker: str = ""
    observed: tuple[str, ...] = ()
    salt: str = ""
    optional: bool = False
    key: str = ""
    """Default `cmd:` and eight digits of what it says."""


Step = PutStep | LoadStep | RunStep
PHASES: dict[type, int] = {PutStep: 10, LoadStep: 20, RunStep: 30}


class Prepared:
    """What was done in one session."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.done: dict[str, str] = {}
        """Key → fingerprint of the step as it was done."""


async def prepare(session: AsyncSession, steps: Sequence[Step]) -> list[str]:
    """Do what is not done yet; the warnings of optional steps. SandboxError for a failed one that is not."""
    prepared = session.attached.setdefault("prepared", Prepared())
    async with prepared.turn:
        warnings = []
        for key, step in _ordered(steps).items():
            try:
                await _do(session, prepared, key, step)
            except (SessionClosedError, SandboxLostError):
                raise
            except ExecutorError as error:
                prepared.done.pop(key, None)
                if not step.optional:
                    raise SandboxError(f"the workspace is not prepared: {key}: {error.message}") from error
                warnings.append(f"{key} was not done: {error.message}")
        return warnings


async def _do(session: AsyncSession, prepared: Prepared, key: str, step: Step) -> None:
    if isinstance(step, LoadStep):
        await session.load(step.skill)  # compares digests itself, and mends the links
        return
    fingerprint = _fingerprint(step)
    left = [step.to] if isinstance(step, PutStep) else [step.marker, *step.observed]
    same = prepared.done.get(key) == fingerprint
    if same and all([await session.stat(path) is not None for path in left if path]):
        return
    if isinstance(step, RunStep):
        await _run(session, step)
    elif step.source:
        await session.stage_inputs([Input(step.source, step.to)])
    else:
        await session.put(step.to, step.content or b"", executable=step.executable)
    prepared.done[key] = fingerprint


async def _run(session: AsyncSession, step: RunStep) -> None:
    result = await session.exec(step.command, cwd=step.cwd, env=dict(step.env), timeout=step.timeout)
    if result.status != "ok":
        said = (result.stderr.strip() or result.stdout.strip())[:MAX_SAID]
        raise SandboxError(f"{result.status}, exit {result.exit_code}" + (f": {said}" if said else ""))
    if step.marker:
        await session.put(step.marker, f"{result.run_id}\n")


def _ordered(steps: Sequence[Step]) -> dict[str, Step]:
    """Key → step, in the order of phases. BadRequestError for what is none."""
    found: dict[str, Step] = {}
    for step in sorted(steps, key=lambda step: PHASES.get(type(step), 0)):
        if type(step) not in PHASES:
            raise BadRequestError(f"{step!r} is no step", hint="A PutStep, LoadStep or RunStep.")
        if isinstance(step, PutStep) and (step.content is None) == (not step.source):
            raise BadRequestError(f"the step for {step.to!r} needs either content or a source")
        found.setdefault(step.key or _key(step), step)
    return found


def _key(step: Step) -> str:
    if isinstance(step, RunStep):
        return f"cmd:{_fingerprint(step)[:8]}"
    return f"file:{step.to}" if isinstance(step, PutStep) else f"skill:{step.skill}"


def _fingerprint(step: Step) -> str:
    values: dict[str, Any] = {**vars(step), "kind": type(step).__name__}
    if isinstance(step, PutStep) and step.content is not None:
        content = step.content.encode() if isinstance(step.content, str) else step.content
        values["content"] = hashlib.sha256(content).hexdigest()
    text = json.dumps(values, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()
