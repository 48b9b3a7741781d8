"""`images/<name>/`, read: what decides the result, and the keys by which earlier results are found."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from executor.deps import locks
from executor.deps.locks import Lock
from executor.errors import BadRequestError
from executor.guest import bundle

Target = Literal["container", "local"]
TARGETS: tuple[Target, ...] = ("container", "local")

Progress = Callable[[str, str, float | None], None]
"""Called with the step ("system", "node", "layer", "engine", "rootfs", "done"), what is happening, and how
far the step is (0 to 1, None when that is not known)."""

SUITE = "bookworm"
REGISTRY_BASE = "debian:bookworm-slim"
RECIPE = 1  # raise when the code here begins to lay things out differently: old results are then built anew

LABEL_IMAGE = "executor.image"  # the description's name
LABEL_GUEST = "executor.guest"  # digest of the guest that is baked in
LABEL_ROOTFS = "executor.rootfs"  # SHA-256 of the layer; absent on images built on a registry's base
LABEL_RECIPE = "executor.recipe"  # key of everything it was built from


def reference(name: str) -> str:
    """The image's name on an engine."""
    return f"executor/{name}"


@dataclass(frozen=True)
class Description:
    """`images/<name>/`, read. Everything that decides what comes out is in here.

    One with a file `extends` is the image named there and what it has in addition.
    """

    folder: Path
    name: str
    packages: tuple[str, ...]
    node: Mapping[str, Any]
    finish: str
    dpkg_options: tuple[str, ...]
    files: Mapping[str, bytes] = field(repr=False)
    compiler: str = field(repr=False)
    dockerfile: str = field(repr=False)
    lock: Lock | None = field(default=None, repr=False)
    """Packages of Python and Node that are laid over the system."""

    @classmethod
    def load(cls, name: str) -> Description:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", name):
            raise BadRequestError(
                f"not an image name: {name!r}", hint="Use lower-case letters, digits, - and _ (like 'base')."
            )
        package = Path(__file__).resolve().parents[1]
        roots = (package / "_images", package.parent / "images")  # in a wheel, in a checkout
        folder = next((root / name for root in roots if (root / name / "packages.txt").is_file()), None)
        if folder is None:
            known = sorted({p.parent.name for root in roots for p in root.glob("*/packages.txt")})
            raise BadRequestError(
                f"no image is called {name!r}", hint=f"There are: {', '.join(known) or 'none'}."
            )
        packages = _lines(folder / "packages.txt")
        files = _files(folder / "files")
        parent = cls.load("".join(_lines(folder / "extends"))) if (folder / "extends").is_file() else None
        if parent is not None:
            return dataclasses.replace(
                parent,
                folder=folder,
                name=name,
                packages=(*parent.packages, *packages),
                files={**parent.files, **files},
                lock=locks.read(folder / locks.FILE),
            )
        return cls(
            folder=folder,
            name=name,
            packages=packages,
            node=json.loads((folder / "node.json").read_text()),
            finish=(folder / "finish.sh").read_text(),
            dpkg_options=_lines(folder / "dpkg.cfg"),
            files=files,
            compiler=(folder / "compile_guest.py").read_text(),
            dockerfile=(folder / "Dockerfile").read_text(),
        )

    def system_key(self, machine: str) -> str:
        """Changes when the system has to be made again."""
        return _key(RECIPE, SUITE, machine, sorted(self.packages), self.finish, self.dpkg_options)

    def recipe_key(self, machine: str, base: str, system: str) -> str:
        """Changes when anything in the result would. `system` names the system it stands on."""
        files = {path: hashlib.sha256(data).hexdigest() for path, data in self.files.items()}
        return _key(
            self.system_key(machine),
            base,
            system,
            dict(self.node),
            files,
            self.compiler,
            self.dockerfile if base != "debian" else "",
            self.lock.text() if self.lock else "",
            bundle.digest(),
        )


def _files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def _lines(path: Path) -> tuple[str, ...]:
    stripped = (line.split("#", 1)[0].strip() for line in path.read_text().splitlines())
    return tuple(line for line in stripped if line)


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
