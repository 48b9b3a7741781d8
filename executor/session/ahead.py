"""What a sandbox of the pool gets before there is a session for it: it is greeted, and skills are staged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from executor.channel import Channel
from executor.deps.offer import Layers
from executor.errors import DependencyError, SkillError
from executor.runtimes.base import Sandbox, SandboxSpec
from executor.session.box import greet
from executor.session.staged import StagedSkills
from executor.settings import Settings
from executor.skills.repository import Repository
from executor.workspace.staging import Stager


@dataclass(frozen=True)
class Ahead:
    """What a sandbox has already. No script has run in it, and none of another session ever will."""

    channel: Channel
    skills: StagedSkills


def preparing(
    settings: Settings, repository: Repository, stager: Stager, layers: Layers
) -> Callable[[Sandbox, SandboxSpec], Awaitable[None]]:
    """What the pool does with each sandbox that it has started: `spec.skills` are staged in it."""

    async def prepare(sandbox: Sandbox, spec: SandboxSpec) -> None:
        channel = await greet(sandbox, spec, settings)
        skills = StagedSkills(repository, stager, spec.skills_disk, layers)
        for name in spec.skills:
            try:
                await skills.stage(channel, skills.named(name))
            except (SkillError, DependencyError):
                continue  # told to the session that asks for it
        sandbox.ahead = Ahead(channel, skills)

    return prepare
