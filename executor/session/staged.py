"""Which skills a session has, at which digest: staged from the repository, remembered here on the host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from executor.channel import Channel
from executor.errors import BadPathError, ExecutorError, SkillError, SkillUnreadableError
from executor.guest import records
from executor.skills.repository import Repository, Skill
from executor.workspace import layout, staging


class StagedSkills:
    """The skills of one session. `most_bytes`: of one skill."""

    def __init__(self, repository: Repository, stager: staging.Stager, most_bytes: int) -> None:
        self.digests: dict[str, str] = {}
        """Slug → digest of the folder as it was staged."""
        self._repository = repository
        self._stager = stager
        self._most_bytes = most_bytes
        self._sources: dict[str, Path] = {}
        self._manifests: dict[str, dict[bytes, str]] = {}
        self._turn = asyncio.Lock()

    def find(self, name: str | os.PathLike[str]) -> Skill:
        """A skill in the roots, or at a path. SkillNotFoundError, SkillUnreadableError."""
        return self._repository.find(name if isinstance(name, str) else Path(name))

    def wanted(self, name: str | os.PathLike[str]) -> Skill | str:
        """The skill that a run names, or just its slug when it is staged as it is to be."""
        if isinstance(name, str) and name in self.digests:
            return name
        skill = self.find(name)
        staged = skill.slug in self.digests and self._sources.get(skill.slug) == skill.path
        return skill.slug if staged else skill

    async def stage(self, channel: Channel, skill: Skill) -> list[str]:
        """Bring a skill into the sandbox as it is now; what is to be warned of.

        An unchanged one gets its links again, a changed one is replaced as a whole.
        """
        async with self._turn:
            folder = self._stager.skill(skill.path, most_bytes=self._most_bytes)
            slug = skill.slug.encode()
            if self.digests.get(skill.slug) == folder.digest:
                links = [(item.name, item.target) for item in folder.items if item.kind == records.LINK]
                base = layout.SKILLS.encode() + b"/" + slug + b"/"
                try:
                    await channel.make_links([(base + name, target) for name, target in links])
                    self._sources[skill.slug] = skill.path
                    return []
                except BadPathError:
                    pass  # a script removed the folder that a link was in: the skill is staged anew
            before = self.digests.pop(skill.slug, None)
            try:
                await channel.put_files(layout.SKILLS.encode(), folder.records(), swap=slug)
            except (OSError, ExecutorError) as error:
                if before is not None:  # whole or nothing: what was there still is
                    self.digests[skill.slug] = before
                if isinstance(error, OSError):
                    raise SkillUnreadableError(f"{skill.path} changed while it was read: {error}") from error
                raise
            self.digests[skill.slug] = folder.digest
            self._sources[skill.slug] = skill.path
            self._manifests[skill.slug] = folder.manifest()
            return [f"{skill.slug}: {warning}" for warning in folder.warnings]

    def forget(self, slug: str) -> None:
        """It was removed from the sandbox."""
        self.digests.pop(slug, None)

    def shipped(self, path: bytes) -> str | None:
        """SHA-256 of a file as its skill brought it, by its absolute path in the sandbox."""
        parts = path.split(b"/", 3)
        if len(parts) != 4 or parts[1] != b"skills":
            return None
        return self._manifests.get(os.fsdecode(parts[2]), {}).get(parts[3])

    def record(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            slug: {
                "digest": digest,
                "files": {os.fsdecode(name): sha for name, sha in self._manifests[slug].items()},
            }
            for slug, digest in self.digests.items()
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""
        self.digests = {slug: staged["digest"] for slug, staged in record.items()}
        self._manifests = {
            slug: {os.fsencode(name): sha for name, sha in staged["files"].items()}
            for slug, staged in record.items()
        }

    def about(self, slug: str) -> dict[str, Any]:
        """What a script is told of its skill."""
        about: dict[str, Any] = {"slug": slug, "name": slug, "path": f"{layout.SKILLS}/{slug}"}
        try:
            document = self.find(self._sources.get(slug) or slug).document
        except SkillError:
            return about
        return {**about, "name": document.name, "description": document.description}

    def allowed_tools(self, slug: str) -> tuple[str, ...]:
        """What the front matter of a staged skill says; no tool at all when it cannot be read any more."""
        try:
            return self.find(self._sources.get(slug) or slug).document.allowed_tools
        except SkillError:
            return ("\0",)
