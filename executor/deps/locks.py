"""The lock of a skill's dependencies: exact versions and hashes, for one Python, one Node and one platform.

It stands beside the SKILL.md as `executor.lock`, to be committed, or in the store when the skill's folder is
not ours to write. A lock comes with a skill and is as hostile as it: it names versions and hashes, no place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from executor.deps.target import Target
from executor.errors import DependencyError
from executor.places import replace_file

FILE = "executor.lock"
FORMAT = 1
MAX_BYTES = 8 << 20
_NAME = r"\A[A-Za-z0-9]([A-Za-z0-9._-]{0,212}[A-Za-z0-9])?\z"
_HASH = r"sha(256|384|512)-[A-Za-z0-9+/]+=*"
_PLACE = r"node_modules/(@[A-Za-z0-9_~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9_~-][A-Za-z0-9._~-]*"
_RANGE = re.compile(r"(npm:(@[\w.~-]+/)?[\w.~-]+(@|\Z))?[\w.^~<>=|&*+, -]{0,200}", re.ASCII)
_ALIAS = re.compile(r"npm:(.[^@]*).*")
_KINDS = ("dependencies", "optionalDependencies", "peerDependencies")
_VERSION = r"\A[A-Za-z0-9][A-Za-z0-9.!+_-]{0,99}\z"


class Wheel(BaseModel):
    """One Python package. Any file with one of the hashes is that package."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    name: str = Field(pattern=_NAME)
    version: str = Field(pattern=_VERSION)
    hashes: tuple[Annotated[str, Field(pattern=r"\Asha(256|384|512):[0-9a-f]+\z")], ...] = Field(min_length=1)
    """`sha256:…`."""

    def requirement(self) -> str:
        """As a line of a requirements file."""
        return f"{self.name}=={self.version} " + " ".join(f"--hash={item}" for item in self.hashes)


class NodePackage(BaseModel):
    """One package of Node at its place, `node_modules/a/node_modules/b`."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", populate_by_name=True)

    version: str = Field(pattern=_VERSION)
    integrity: str = Field(pattern=rf"\A{_HASH}( {_HASH})*\z")
    more: dict[str, object] = {}
    """The rest of what npm wrote of it: `dependencies`, `bin`, `optional`, `os`, `cpu`, …"""

    @field_validator("more")
    @classmethod
    def _from_the_registry(cls, more: dict[str, object]) -> dict[str, object]:
        """npm would fetch what else a dependency's range can be: a URL, a repository, a path."""
        for kind in _KINDS:
            wanted = more.get(kind, {})
            if not isinstance(wanted, dict):
                raise ValueError(f"{kind} are no map")
            for name, spec in wanted.items():
                if not isinstance(spec, str) or not _RANGE.fullmatch(spec):
                    raise ValueError(f"{name[:80]!r} is not to come from the registry")
        return more

    def wanted(self) -> Iterator[tuple[str, str]]:
        """(name, range) of what it depends on."""
        for kind in _KINDS:
            yield from cast("dict[str, str]", self.more.get(kind, {})).items()


class Lock(BaseModel):
    """See the module."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    format: int = Field(FORMAT, ge=1, le=FORMAT)
    target: Target
    declared: dict[str, list[str]]
    """What it answers: `Declared.specs()`. A skill that says something else by now needs a new lock."""
    python: tuple[Wheel, ...] = ()
    node: dict[Annotated[str, Field(pattern=rf"\A{_PLACE}(/{_PLACE})*\z")], NodePackage] = {}
    node_folder: str = ""
    """Folder of the package.json below the skill, '' for the skill itself: there its node_modules is."""

    @field_validator("node_folder")
    @classmethod
    def _inside(cls, folder: str) -> str:
        if folder and (not folder.isprintable() or {"", ".", ".."} & set(folder.split("/"))):
            raise ValueError(f"{folder[:80]!r} is no folder of a skill")
        return folder

    @field_validator("node")
    @classmethod
    def _named(cls, node: dict[str, NodePackage]) -> dict[str, NodePackage]:
        """A package stands under another name only where a package asks for it: `npm:left@^1` as `l`."""
        asked = {
            (alias, _ALIAS.sub(r"\1", spec))
            for item in node.values()
            for alias, spec in item.wanted()
            if spec.startswith("npm:")
        }
        for place, item in node.items():
            alias, name = place.rpartition("node_modules/")[2], item.more.get("name")
            if name not in (None, alias) and (alias, name) not in asked:
                raise ValueError(f"{alias!r} is to be {str(name)[:80]!r}, and no package asks for that")
        return node

    @property
    def digest(self) -> str:
        """Names the layer: everything that decides what is in it."""
        content = self.model_dump(mode="json", exclude={"declared", "node_folder"})
        content["target"].pop("executable")
        # A layer of Python does not depend on the image's Node.
        content["target"]["node"] = content["target"]["node"].split(".")[0] if self.node else ""
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def answers(self, specs: dict[str, list[str]]) -> bool:
        """Whether it is for what a skill declares now (`Declared.specs()`)."""
        return all(self.declared.get(kind, []) == wanted for kind, wanted in specs.items())

    @property
    def empty(self) -> bool:
        """Nothing is needed, and no layer."""
        return not (self.python or self.node)

    def text(self) -> str:
        """As it stands in its file."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"


def read(path: Path) -> Lock | None:
    """The lock in a file; None without one. DependencyError for one that cannot be used."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DependencyError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DependencyError(f"{path} is no file", hint="Make it anew: executor deps lock SKILL")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
        return Lock.model_validate_json(data)
    except (ValidationError, ValueError, RecursionError) as error:
        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise DependencyError(
            f"{path} is no lock that this version can use: {why}",
            hint="Make it anew: executor deps lock SKILL",
        ) from None


def write(path: Path, lock: Lock) -> None:
    """Put a lock into a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lock.text().encode())
