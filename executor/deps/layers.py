"""The store of built layers, and what a run finds of the one of its skill.

    layers/<digest>/            mounted read-only into every sandbox, at /opt/layers
        bin/ lib/ pyvenv.cfg    a virtual environment for the image's Python
        node_modules/           packages of Node
    layers/pycache/<digest>/    bytecode once more, where PYTHONPYCACHEPREFIX has Python look for it
    deps/locks/<digest>.lock    locks of skills whose folder is not ours to write, by the folder's digest
    deps/layers/<digest>.json   what is in a layer; its time is when it was last used
    deps/turns/                 held by who builds a layer
    deps/cache/                 caches of uv and npm

The folder with the layers cannot be listed: who does not know a digest, which names the content of a lock,
finds nothing there. So a sandbox sees no layer but the ones whose lock came with its skills.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from executor.deps import locks
from executor.deps.locks import Lock
from executor.errors import DependencyError
from executor.places import data_dir, replace_file
from executor.runtimes.base import LAYERS
from executor.settings import Settings

LONGEST_BUILD = 86_400  # seconds; what is older and not complete is left of a build that died
Mode = Literal["off", "locked", "auto"]


@dataclass(frozen=True)
class Layer:
    """One built layer. `digest` is its lock's."""

    digest: str
    python: str
    """Version its packages are for, '' when it has none of Python."""
    node: bool
    node_folder: str = ""

    @property
    def inside(self) -> str:
        """Where a sandbox has it."""
        return f"{LAYERS}/{self.digest}"

    def environment(self, path: str) -> dict[str, str]:
        """Variables of a run whose PATH would be `path`."""
        found = {}
        bins = []
        if self.python:
            bins.append(f"{self.inside}/bin")
        if self.node:
            bins.append(f"{self.inside}/node_modules/.bin")
            found["NODE_PATH"] = f"{self.inside}/node_modules:/node_modules"
        found["PATH"] = ":".join([*bins, path])
        return found

    def links(self) -> dict[str, str]:
        """Links that the skill's folder gets: name → target. A skill's own file of that name stays."""
        if not self.node:
            return {}
        name = f"{self.node_folder}/node_modules" if self.node_folder else "node_modules"
        return {name: f"{self.inside}/node_modules"}

    def check_python(self, version: str) -> None:
        """DependencyError when a sandbox has another Python than its packages are for."""
        if self.python and version and not version.startswith(self.python + "."):
            raise DependencyError(
                f"its dependencies are locked for Python {self.python}, and this image has {version}",
                hint="Lock and build them for this image (--image): executor deps lock SKILL "
                "&& executor deps build SKILL",
            )


class LayerStore:
    """Layers on this machine, below the data folder `root`. Its methods are quick and block."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "layers"
        self.compiled = self.folder / "pycache"
        self._records = root / "deps" / "layers"
        self.locks = root / "deps" / "locks"
        self.turns = root / "deps" / "turns"
        self.cache = root / "deps" / "cache"
        self._known: dict[tuple[str, str], Layer | None] = {}

    @classmethod
    def of_settings(cls, settings: Settings) -> LayerStore:
        """The store that the settings name."""
        return cls(Path(settings.layers_dir) if settings.layers_dir else data_dir())

    def mounted(self, mode: Mode) -> str:
        """The folder that sandboxes get to see. '' for none: they are off, or nothing was ever built and
        nothing will be while the sandbox lives.
        """
        if mode == "auto":
            with contextlib.suppress(DependencyError):  # told when something is to be built
                self.prepare()
        return str(self.folder) if mode != "off" and self.folder.is_dir() else ""

    def prepare(self) -> None:
        """Make the folders. DependencyError where they cannot be."""
        with self.told():
            for folder in (self._records, self.locks, self.turns, self.cache, self.compiled):
                folder.mkdir(parents=True, exist_ok=True)
            # Root's sandboxes are other users, those of an ordinary user are itself: neither may list it.
            for folder in (self.compiled, self.folder):
                folder.chmod(0o711 if os.geteuid() == 0 else 0o311)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """A full disk and a folder that is not ours are told as a DependencyError."""
        try:
            yield
        except OSError as error:
            raise DependencyError(
                f"layers cannot be kept: {error.strerror or error}: {error.filename or self.folder}",
                hint="Make room (executor deps gc), look at the folder's owner, or give another layers_dir "
                "(EXECUTOR_LAYERS_DIR).",
            ) from error

    def _lock_places(self, skill: Path, digest: str) -> tuple[Path, Path]:
        return skill / locks.FILE, self.locks / f"{digest}.lock"

    def has_lock(self, skill: Path, digest: str) -> bool:
        """Whether there is anything to be read as the lock of a skill."""
        return any(map(os.path.lexists, self._lock_places(skill, digest)))

    def find_lock(self, skill: Path, digest: str) -> tuple[Lock, Path] | None:
        """The lock of a skill and where it stands. DependencyError for one that cannot be used."""
        for path in self._lock_places(skill, digest):
            found = locks.read(path)
            if found is not None:
                return found, path
        return None

    def of(self, skill: Path, digest: str) -> Layer | None:
        """The layer of a skill whose folder has this digest; None when it has no lock or needs nothing.

        DependencyError when the lock is older than what the skill declares, or the layer is not built.
        """
        key = (str(skill), digest)
        if key not in self._known or self._known[key] is None:
            self._known[key] = self._of(skill, digest)
        layer = self._known[key]
        if layer is not None:
            self.check(layer, skill.name)
        return layer

    def _of(self, skill: Path, digest: str) -> Layer | None:
        found = self.find_lock(skill, digest)
        if found is None:
            return None
        from executor.deps.declared import declared  # whose parsers only a skill with a lock needs

        lock, path = found
        if path.parent == skill and not lock.answers(declared(skill).specs()):
            raise DependencyError(
                f"{path} is not what the skill {skill.name!r} declares by now",
                hint="executor deps lock SKILL && executor deps build SKILL",
            )
        return layer_of(lock)

    def check(self, layer: Layer, name: str) -> None:
        """DependencyError unless the layer is built; remembers that it is used."""
        record = self._records / f"{layer.digest}.json"
        try:
            os.utime(record)
        except OSError:
            raise DependencyError(
                f"the dependencies of {name!r} are locked and not built on this machine",
                hint="executor deps build SKILL",
            ) from None

    def built(self, digest: str) -> bool:
        """Whether a layer is complete."""
        return (self._records / f"{digest}.json").exists()

    def record(self, lock: Lock, size: int) -> None:
        """A layer is complete."""
        content = {
            "digest": lock.digest,
            "made": time.time(),
            "size": size,
            "target": lock.target.model_dump(),
            "python": [f"{wheel.name} {wheel.version}" for wheel in lock.python],
            "node": [
                f"{place.rpartition('node_modules/')[2]} {item.version}" for place, item in lock.node.items()
            ],
        }
        replace_file(self._records / f"{lock.digest}.json", json.dumps(content).encode())

    def records(self) -> list[dict[str, Any]]:
        """Every layer's record, the one used last first; `used` is when, in seconds since the epoch."""
        found = []
        for path in self._records.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                found.append({**json.loads(path.read_bytes()), "used": path.stat().st_mtime})
        return sorted(found, key=lambda item: -item["used"])

    def remove(self, digest: str) -> None:
        """Take a layer away: its record first, so that nobody begins to use it."""
        (self._records / f"{digest}.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder / digest, ignore_errors=True)
        shutil.rmtree(self.compiled / digest, ignore_errors=True)

    def clean(self, unused_for: float) -> list[str]:
        """Remove layers not used for so many seconds, and what broken builds left. The layers' digests.

        DependencyError when they are not ours to remove.
        """
        gone = []
        with self.told():
            for item in self.records():
                if time.time() - item["used"] >= unused_for:
                    self.remove(item["digest"])
                    gone.append(item["digest"])
        for folder in (self.folder, self.compiled):
            with _listable(folder):
                for entry in list(os.scandir(folder)) if folder.is_dir() else []:
                    old = time.time() - entry.stat(follow_symlinks=False).st_mtime > LONGEST_BUILD
                    if old and not self.built(entry.name) and entry.path != str(self.compiled):
                        shutil.rmtree(entry.path, ignore_errors=True)
        return gone


def layer_of(lock: Lock) -> Layer | None:
    """The layer that a lock names, built or not."""
    if lock.empty:
        return None
    return Layer(lock.digest, lock.target.python if lock.python else "", bool(lock.node), lock.node_folder)


@contextlib.contextmanager
def _listable(folder: Path) -> Iterator[None]:
    if not folder.is_dir():
        yield
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(mode | 0o400)
    try:
        yield
    finally:
        folder.chmod(mode)
