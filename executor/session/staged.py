"""Which skills a session has, at which digest: staged from the repository, remembered here on the host."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shlex
from pathlib import Path
from typing import Any

from executor.channel import Channel
from executor.deps.hints import naming
from executor.deps.layers import Layer
from executor.deps.offer import Layers
from executor.errors import BadPathError, DependencyError, ExecutorError, SkillError, SkillUnreadableError
from executor.guest import records
from executor.skills.repository import Repository, Skill
from executor.workspace import layout, staging
from executor.workspace.text import to_bytes, to_text


class StagedSkills:
    """The skills of one session. `most_bytes`: of one skill."""

    def __init__(
        self, repository: Repository, stager: staging.Stager, most_bytes: int, layers: Layers | None = None
    ) -> None:
        self.digests: dict[str, str] = {}
        """Slug → digest of the folder as it was staged."""
        self._repository = repository
        self._layers = layers
        self._layer: dict[str, Layer] = {}
        self._stager = stager
        self._most_bytes = most_bytes
        self._ahead: dict[str, str] = {}
        """The same of what was staged before there was a session: nobody has asked for it yet."""
        self._sources: dict[str, Path] = {}
        self._asked: dict[str, str] = {}
        self._manifests: dict[str, dict[bytes, str]] = {}
        self._turn = asyncio.Lock()

    def find(self, name: str | os.PathLike[str]) -> Skill:
        """A skill in the roots, or at a path. SkillNotFoundError, SkillUnreadableError."""
        skill = self._repository.find(name if isinstance(name, str) else Path(name))
        self._asked[skill.slug] = os.fspath(name)
        return skill

    def words(self, slug: str) -> str:
        """A skill as a command of this program has to name it, in a shell."""
        options = self._layers.options if self._layers is not None else ""
        return shlex.quote(self._asked.get(slug, slug)) + options

    def named(self, name: str) -> Skill:
        """One of the sources' skills, never a folder of the host: for what a model says."""
        return self._repository.named(name)

    def wanted(self, name: str | os.PathLike[str]) -> Skill | str:
        """The skill that a run names, or just its slug when it is staged as it is to be."""
        if isinstance(name, str) and name in self.digests:
            return name
        skill = self.find(name)
        staged = skill.slug in self.digests and self._sources.get(skill.slug) == skill.place
        return skill.slug if staged else skill

    async def stage(self, channel: Channel, skill: Skill) -> list[str]:
        """Bring a skill into the sandbox as it is now; what is to be warned of.

        An unchanged one gets its links again, a changed one is replaced as a whole.
        """
        async with self._turn:
            path = skill.place if skill.fetch is None else await asyncio.to_thread(lambda: skill.path)
            folder = self._stager.skill(path, most_bytes=self._most_bytes)
            slug = skill.slug.encode()
            layer = await self._find_layer(channel, skill, folder.digest)
            ahead = self._ahead.pop(skill.slug, None)
            if folder.digest in (self.digests.get(skill.slug), ahead):
                links = [(item.name, item.target) for item in folder.items if item.kind == records.LINK]
                base = layout.SKILLS.encode() + b"/" + slug + b"/"
                try:
                    await channel.make_links([(base + name, target) for name, target in links])
                    return await self._staged(channel, skill, folder, layer, told=ahead is None)
                except BadPathError:
                    pass  # a script removed the folder that a link was in: the skill is staged anew
            before = self.digests.pop(skill.slug, None)
            try:
                await channel.put_files(layout.SKILLS.encode(), folder.records(), swap=slug)
            except (OSError, ExecutorError) as error:
                if before is not None:  # whole or nothing: what was there still is
                    self.digests[skill.slug] = before
                if isinstance(error, OSError):
                    raise SkillUnreadableError(f"{skill.place} changed while it was read: {error}") from error
                raise
            return await self._staged(channel, skill, folder, layer, told=False)

    async def _staged(
        self, channel: Channel, skill: Skill, folder: staging.Folder, layer: Layer | None, *, told: bool
    ) -> list[str]:
        """Remember what is there now. The folder's warnings, unless the session was `told` them."""
        if not told:
            self.digests[skill.slug] = folder.digest
            self._manifests[skill.slug] = folder.manifest()
        self._sources[skill.slug] = skill.place
        await self._offer(channel, skill.slug, layer, folder)
        return [] if told else [f"{skill.slug}: {warning}" for warning in folder.warnings]

    def adopt(self, other: StagedSkills) -> None:
        """Take over what was staged before there was a session. It counts once it is asked for, and
        is brought again if it changed meanwhile.
        """
        self._ahead = dict(other.digests)

    def touched(self) -> None:
        """What was staged ahead may be changed: whoever asks for it from now on gets it anew."""
        self._ahead.clear()

    async def _find_layer(self, channel: Channel, skill: Skill, digest: str) -> Layer | None:
        """The layer that the skill is to have. DependencyError when it has to have one and cannot."""
        if self._layers is None:
            return None
        with naming(self.words(skill.slug)):
            layer = await self._layers.of(skill.place, digest)
            if layer is None:
                return None
            if not channel.sandbox.facts.layers:
                raise DependencyError(
                    f"the sandbox does not see the dependencies of {skill.slug!r}: it began before the first "
                    "layer was built, or its engine is on another machine",
                    hint="Open a new session; with an engine elsewhere use an image that has the packages.",
                )
            layer.check_python(channel.python)
        return layer

    async def _offer(self, channel: Channel, slug: str, layer: Layer | None, folder: staging.Folder) -> None:
        """What the skill finds of its layer from now on."""
        self._layer.pop(slug, None)
        if layer is None:
            return
        self._layer[slug] = layer
        own = {to_text(item.name) for item in folder.items}
        base = f"{layout.SKILLS}/{slug}/"
        links = [(name, target) for name, target in layer.links().items() if name not in own]
        await channel.make_links([(to_bytes(base + name), to_bytes(target)) for name, target in links])

    def environment(self, slug: str | None, path: str) -> dict[str, str]:
        """Variables that a skill's runs get for its dependencies; `path` is the PATH they would have.

        DependencyError when they are not on this machine: the session was restored on another.
        """
        layer = self._layer.get(slug) if slug is not None else None
        if layer is None or self._layers is None:
            return {}
        with naming(self.words(str(slug))):
            self._layers.store.check(layer, str(slug))
        return layer.environment(path)

    def forget(self, slug: str) -> None:
        """It was removed from the sandbox."""
        self.digests.pop(slug, None)
        self._layer.pop(slug, None)

    def shipped(self, path: bytes) -> str | None:
        """SHA-256 of a file as its skill brought it, by its absolute path in the sandbox."""
        parts = path.split(b"/", 3)
        if len(parts) != 4 or parts[1] != b"skills":
            return None
        return self._manifests.get(to_text(parts[2]), {}).get(parts[3])

    def _again(self, slug: str) -> Skill:
        """A staged skill as it is on the host now. SkillNotFoundError, SkillUnreadableError."""
        return self._repository.find(self._sources.get(slug) or slug)

    def record(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            slug: {
                "digest": digest,
                "files": {to_text(name): sha for name, sha in self._manifests[slug].items()},
                "layer": dataclasses.asdict(self._layer[slug]) if slug in self._layer else None,
            }
            for slug, digest in self.digests.items()
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""
        self.digests = {slug: staged["digest"] for slug, staged in record.items()}
        self._manifests = {
            slug: {to_bytes(name): sha for name, sha in staged["files"].items()}
            for slug, staged in record.items()
        }
        self._layer = {
            slug: Layer(**staged["layer"]) for slug, staged in record.items() if staged.get("layer")
        }

    async def renew(self, channel: Channel, record: dict[str, Any]) -> list[str]:
        """In another sandbox: take over what a checkpoint kept, and bring again what was staged since.

        What is to be warned of.
        """
        before, self.digests = self.digests, {}
        self.restore(record)
        warnings = []
        for slug, digest in before.items():
            if self.digests.get(slug) != digest:
                try:
                    warnings += await self.stage(channel, self._again(slug))
                except (SkillError, DependencyError) as error:
                    warnings.append(f"the files of {slug} could not be staged again: {error.message}")
        return warnings

    def about(self, slug: str) -> dict[str, Any]:
        """What a script is told of its skill."""
        about: dict[str, Any] = {"slug": slug, "name": slug, "path": f"{layout.SKILLS}/{slug}"}
        try:
            document = self._again(slug).document
        except SkillError:
            return about
        return {**about, "name": document.name, "description": document.description}

    def unlocked(self, slug: str) -> set[str]:
        """The packages that a staged skill declares where nothing locks them. Reads its files."""
        place = self._sources.get(slug)
        if place is None or self._layers is None or slug not in self.digests:
            return set()
        if self._layers.store.has_lock(place, self.digests[slug]):
            return set()
        from executor.deps.declared import declared  # whose parsers most runs do not need

        try:
            return declared(place).names()
        except (OSError, ValueError, ExecutorError):  # its folder is going, or is none any more
            return set()

    def allowed_tools(self, slug: str) -> tuple[str, ...]:
        """What the front matter of a staged skill says; no tool at all when it cannot be read any more."""
        try:
            return self._again(slug).document.allowed_tools
        except SkillError:
            return ("\0",)
