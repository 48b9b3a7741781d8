"""Inputs that are named and not handed over: artifacts, files of the host, of the workspace and of skills.

    artifact://name[@version]   a saved artifact; without a version the latest
    host:///absolute/path       a file or folder below a root that the operator opened (`host_inputs`)
    workspace://path            what lies in the workspace already
    skill://name/path           a file or folder of a skill, which is staged for it

Rules of this module:
1. A reference may come from a model: it is hostile. All of a batch are read before the first is staged.
2. Of the host nothing is read outside of the operator's roots, with links resolved; without roots nothing.
3. A skill is one of the sources', by its name: never a folder of the host that is called so.
4. Inside, every path goes through `layout` and the guest, which follows no link out of the two roots.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from executor.errors import BadPathError, BadRequestError
from executor.guest import records
from executor.models import FileInfo, Input, StagedInput
from executor.skills.contents import check_path
from executor.workspace import layout
from executor.workspace.artifacts import ArtifactStore, parse_ref
from executor.workspace.text import to_bytes

if TYPE_CHECKING:
    from executor.session.session import AsyncSession

SCHEMES = ("artifact", "host", "workspace", "skill")
FOLDER = "inputs"  # where an input goes that does not say


class Inputs:
    """The inputs of one session, and which of them are pinned. `roots`: of the host."""

    def __init__(self, session: AsyncSession, roots: Sequence[str]) -> None:
        self._session = session
        self._roots = [Path(os.path.realpath(os.path.expanduser(root))) for root in roots if root]
        self._pins: dict[str, str] = {}

    async def stage(
        self, wanted: Iterable[Input | str], artifacts: ArtifactStore | None
    ) -> list[StagedInput]:
        """Bring them in, in order; where each came to. BadPathError, BadRequestError."""
        batch = [one if isinstance(one, Input) else Input(one) for one in wanted]
        places = [self._place(one) for one in batch]
        for one in batch:
            scheme, _, rest = one.source.partition("://")
            if scheme == "host":
                self._on_host(one.source)
            elif scheme == "skill":
                self._session._skills.named(rest.partition("/")[0])
        made = []
        for one, place in zip(batch, places, strict=True):
            scheme = one.source.partition("://")[0]
            if scheme == "artifact":
                source = await self._artifact(one, place, artifacts)
            elif one.pin and self._pins.get(place) == one.source and await self._session.stat(place):
                source = one.source  # what came here first stays
            else:
                if scheme == "host":
                    await self._session.put(place, self._on_host(one.source))
                else:
                    await self._inside(one, place)
                source = one.source
                self._pins[place] = one.source
            made.append(StagedInput(path=layout.shown(to_bytes(place)), source=source, mode=one.mode))
        return made

    def _place(self, one: Input) -> str:
        """The absolute path that an input goes to; what is wrong with the reference is said here."""
        scheme, mark, rest = one.source.partition("://")
        if not mark or scheme not in SCHEMES:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise BadRequestError(f"unsupported input: {one.source[:80]!r}", hint=f"One of {known}.")
        if one.mode not in ("copy", "link"):
            raise BadRequestError(f"mode={one.mode!r} of an input is neither 'copy' nor 'link'")
        if one.mode == "link" and scheme in ("artifact", "host"):
            raise BadRequestError(
                f"{one.source[:80]!r} cannot be linked: it lies outside the sandbox", hint="Copy it."
            )
        if scheme == "artifact":
            rest = parse_ref(one.source)[0]
        elif scheme == "skill":
            name, slash, below = rest.partition("/")
            if not name or (slash and not below):
                raise BadRequestError(
                    f"{one.source[:80]!r} names no file of a skill", hint="Write skill://name/path."
                )
            if below:
                check_path(below)
        elif scheme == "workspace":
            layout.absolute(_relative(rest))
        to = one.to.strip() or f"{FOLDER}/"
        if to.endswith("/"):
            base = posixpath.basename(rest.rstrip("/"))
            if not base or base in (".", ".."):
                raise BadRequestError(f"{one.source[:80]!r} has no name to keep", hint="Say where it goes.")
            to += base
        place = layout.absolute(to)
        if len(place.split("/")) < 4:
            raise BadPathError(
                f"{to!r} is a folder that every session has: name a file or folder in it",
                hint="End it with '/' to keep the name.",
            )
        return place

    def _on_host(self, source: str) -> Path:
        path = source.removeprefix("host://")
        if not path.startswith("/") or "\0" in path:
            raise BadPathError(
                f"{source[:80]!r} is no absolute path of the host", hint="Write host:///folder/file."
            )
        try:
            real = Path(os.path.realpath(path))
        except (OSError, UnicodeEncodeError):  # no name at all
            raise BadPathError(f"{source[:200]!r} is no path of a file") from None
        if not any(real.is_relative_to(root) for root in self._roots):
            raise BadPathError(
                f"{source[:200]!r} is not below a folder that the operator opened for inputs",
                hint="The operator opens folders with Settings(host_inputs=[…]) or EXECUTOR_HOST_INPUTS.",
            )
        # Of os.path, which says False where pathlib raises: too long a name, a folder that is not ours.
        if not (os.path.isfile(real) or os.path.isdir(real)):
            raise BadPathError(f"{source[:200]!r}: there is no such file or folder")
        return real

    async def _artifact(self, one: Input, place: str, artifacts: ArtifactStore | None) -> str:
        if artifacts is None:
            raise BadRequestError(f"{one.source[:80]!r}: there is no place for artifacts here")
        artifact = artifacts.resolve(one.source, pin=f"{self._session.id}:{place}" if one.pin else "")
        await self._session.put(place, artifacts.read(artifact))
        return artifact.ref

    async def _inside(self, one: Input, place: str) -> None:
        """From the workspace, or from a skill's copy there."""
        scheme, _, rest = one.source.partition("://")
        if scheme == "skill":
            name, _, below = rest.partition("/")
            skill = self._session._skills.named(name)
            await self._session._stage(skill)
            source = "/".join(filter(None, [f"{layout.SKILLS}/{skill.slug}", below]))
        else:
            source = layout.absolute(_relative(rest))
        info = await self._session.stat(source)
        if info is None or info.type not in ("file", "folder"):
            kind = "there is no such file or folder" if info is None else f"it is a {info.type}"
            raise BadPathError(f"{one.source[:200]!r}: {kind}")
        if place == source or place.startswith(source + "/") or source.startswith(place + "/"):
            raise BadPathError(f"{one.source[:200]!r} cannot be put into itself")
        if one.mode == "link":
            await self._link(source, place)
        elif info.type == "file":
            await self._session.put(place, await self._session.read(source), executable=info.executable)
        else:
            await self._folder(source, place)

    async def _folder(self, source: str, place: str) -> None:
        entries = await self._session.list_files(source, recursive=True)
        channel = await self._session._ready()
        base, name = layout.split(place)
        folders = [entry for entry in entries if entry.type == "folder"]
        left = [entry.name for entry in entries if entry.type not in ("file", "folder")]
        if left:
            note = f"{source} holds {len(left)} links or other entries, which were left out: {left[0]!r}"
            self._session._notes = [*self._session._notes, note]
        await channel.put_files(base, _folders(name, folders))
        for entry in entries:
            if entry.type == "file":
                data = await self._session.read(f"{source}/{entry.name}")
                await self._session.put(f"{place}/{entry.name}", data, executable=entry.executable)

    async def _link(self, source: str, place: str) -> None:
        # Absolute: the folder that the link is put into may be reached by one itself.
        target = to_bytes(source)
        base, name = layout.split(place)
        channel = await self._session._ready()
        await channel.remove_files([base + b"/" + name])
        await channel.put_files(
            base,
            [
                records.pack_record(records.LINK, name, 0o777, len(target), 0, True)
                + records.pack_chunk(target)
                + records.pack_end()
            ],
        )


def _folders(name: bytes, folders: Iterable[FileInfo]) -> Iterator[bytes]:
    yield records.pack_record(records.FOLDER, name, 0o755)
    for folder in folders:
        yield records.pack_record(records.FOLDER, name + b"/" + to_bytes(folder.name), 0o755)


def _relative(path: str) -> str:
    return path.lstrip("/") or "."
