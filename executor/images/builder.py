"""Builds what is out of date, for which runtimes, by which way; and lists what there is."""

from __future__ import annotations

import contextlib
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import docker

from executor.errors import BadRequestError, PlatformError, RuntimeUnavailableError
from executor.guest import bundle
from executor.images.additions import (
    GUEST_PATH,
    compile_guest,
    fetch_node,
    node_files,
    own_files,
    package_files,
)
from executor.images.description import (
    LABEL_GUEST,
    LABEL_IMAGE,
    LABEL_RECIPE,
    LABEL_ROOTFS,
    REGISTRY_BASE,
    SUITE,
    TARGETS,
    Description,
    Progress,
    Target,
)
from executor.images.engine import ImageEngine, connect
from executor.images.layer import ENGINE_NAMES, Entry, digest_of, write_layer
from executor.images.store import Store
from executor.images.system import find_mmdebstrap, make_system
from executor.places import data_dir
from executor.workspace.text import plural

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # the engine's names of what Python calls otherwise


@dataclass(frozen=True)
class BuiltImage:
    """What `build` made, or found to be there already."""

    name: str
    digest: str
    """SHA-256 of the layer (of the image on a registry's base)."""
    size_bytes: int
    guest: str
    """Digest of the baked-in guest."""
    image_id: str | None
    """The engine's id, None when no container image was asked for."""
    rootfs: Path | None
    """The folder for the local runtime, None when it was not asked for."""
    rebuilt: tuple[Target, ...]
    """Targets that were out of date; empty when nothing had to be done."""
    seconds: float


@dataclass(frozen=True)
class ImageInfo:
    """One line of `images list`."""

    name: str
    target: Target
    where: str
    """Reference on the engine, or the folder."""
    digest: str
    """Image id, or the layer's SHA-256."""
    size_bytes: int
    guest: str
    guest_matches: bool
    """Whether the baked-in guest is this version's; with a stale one the guest is sent at start."""


def build(
    name: str = "base",
    *,
    targets: Sequence[Target] | None = None,
    base: str = "auto",
    client: docker.DockerClient | None = None,
    docker_host: str | None = None,
    refresh: bool = False,
    network: str | None = None,
    progress: Progress | None = None,
) -> BuiltImage:
    """Builds what is out of date and returns what is there afterwards.

    `targets`: None builds for every runtime that can work here. `base`: "debian" (mmdebstrap), an image of a
    registry, or "auto", which is "debian" where mmdebstrap is installed. `refresh` makes the system again
    though its description did not change, to take in security updates. `network` is the mode of a build on a
    registry's image. A second build of the same image waits for the first and then finds the work done.

    Raises RuntimeUnavailableError (and its kinds) when something has to be installed or started first, and
    ExecutorError when a step fails; nothing half-made stays behind.
    """
    started = time.monotonic()
    description = Description.load(name)
    for target in targets or ():
        if target not in TARGETS:
            raise BadRequestError(f"no runtime is called {target!r}", hint=f"Use {' or '.join(TARGETS)}.")
    chosen = _possible_targets(targets, base, client, docker_host)
    if "local" in chosen and sys.platform != "linux":
        raise PlatformError("the local runtime exists on Linux only", hint="Build with --target container.")
    if base == "auto":
        base = "debian" if find_mmdebstrap() else REGISTRY_BASE
    if client is None and ("container" in chosen or base != "debian"):
        client = connect(docker_host)
    say = progress or (lambda step, message, fraction: None)
    store = Store(data_dir())
    job = _Job(
        description=description,
        machine=_machine(client if base != "debian" else None),
        store=store,
        engine=ImageEngine(client, name, say) if client else None,
        say=say,
    )
    with store.locked():
        made = (
            job.from_debian(chosen, refresh) if base == "debian" else job.on(base, chosen, refresh, network)
        )
    if not made.rebuilt:
        say("done", "up to date", 1.0)
    return BuiltImage(
        name=name,
        digest=made.digest,
        size_bytes=made.size_bytes,
        guest=bundle.digest(),
        image_id=made.image_id,
        rootfs=made.rootfs,
        rebuilt=tuple(made.rebuilt),
        seconds=time.monotonic() - started,
    )


@dataclass
class _Made:
    digest: str = ""
    size_bytes: int = 0
    image_id: str | None = None
    rootfs: Path | None = None
    rebuilt: list[Target] = field(default_factory=list)


@dataclass
class _Job:
    """One build, under the store's lock."""

    description: Description
    machine: str
    store: Store
    engine: ImageEngine | None
    say: Progress

    def from_debian(self, targets: Sequence[Target], refresh: bool) -> _Made:
        system = self._system(refresh)
        recipe = self.description.recipe_key(self.machine, "debian", system.stem)
        made = _Made()
        made.rebuilt = [target for target in targets if not self._current(target, recipe, made)]
        if not made.rebuilt:
            return made
        overlay = own_files(self.description)
        overlay |= node_files(fetch_node(self.description, self.machine, self.store, self.say))
        with self.store.workspace() as work:
            overlay |= package_files(self.description, system, self.machine, work, self.store, self.say)
            self.say("layer", "compiling the guest with the image's Python", 0.0)
            overlay[GUEST_PATH] = Entry(data=compile_guest(self.description, system, work))
            self.say("layer", "writing the layer", 0.2)
            layer = work / "layer.tar"
            with open(layer, "wb", buffering=1 << 20) as stream:
                write_layer(system, overlay, stream)
            made.digest, made.size_bytes = digest_of(layer), layer.stat().st_size
            facts = self._facts(recipe)
            if "container" in made.rebuilt:
                assert self.engine is not None
                labels = {**facts, LABEL_ROOTFS: made.digest}
                made.image_id = self.engine.load(layer, made.digest, self.machine, labels)
            if "local" in made.rebuilt:
                made.rootfs = self.store.unpack(self.description.name, layer, made.digest, facts, self.say)
        return made

    def on(self, base: str, targets: Sequence[Target], refresh: bool, network: str | None) -> _Made:
        """On a registry's image. The engine builds; the folder is what the engine's image holds."""
        assert self.engine is not None
        recipe = self.description.recipe_key(self.machine, base, "")
        made = _Made()
        made.rebuilt = [t for t in targets if refresh or not self._current(t, recipe, made)]
        if not made.rebuilt:
            return made
        image = None if refresh else self.engine.find(recipe)
        facts = self._facts(recipe)
        if image is None:
            with self.store.workspace() as work:
                self.engine.build(self._context(work), base, facts, fresh=refresh, network=network)
            image = self.engine.find()
        made.image_id = str(image.id)
        made.digest, made.size_bytes = made.image_id.removeprefix("sha256:"), int(image.attrs["Size"])
        if "local" in made.rebuilt:
            with self.store.workspace() as work:
                raw, layer = work / "export.tar", work / "layer.tar"
                self.engine.export(made.image_id, raw)
                with open(layer, "wb", buffering=1 << 20) as stream:
                    # the engine puts its own empty files and mount points over ours
                    write_layer(raw, own_files(self.description), stream)
                name = self.description.name
                made.rootfs = self.store.unpack(name, layer, digest_of(layer), facts, self.say)
        return made

    def _facts(self, recipe: str) -> dict[str, str]:
        return {LABEL_IMAGE: self.description.name, LABEL_GUEST: bundle.digest(), LABEL_RECIPE: recipe}

    def _current(self, target: Target, recipe: str, made: _Made) -> bool:
        """Whether the target is there and made by this recipe; then `made` says where."""
        if target == "container":
            assert self.engine is not None
            image = self.engine.find(recipe)
            if image is None:
                return False
            made.image_id = str(image.id)
            made.digest = image.labels.get(LABEL_ROOTFS) or made.image_id.removeprefix("sha256:")
            made.size_bytes = int(image.attrs["Size"])
            return True
        facts = self.store.facts(self.description.name)
        if facts is None or facts.get(LABEL_RECIPE) != recipe:
            return False
        made.rootfs = Path(str(facts["path"]))
        made.digest, made.size_bytes = str(facts["digest"]), int(facts["size_bytes"])
        return True

    def _system(self, refresh: bool) -> Path:
        """The system's tar, made when it is not kept from before."""
        prefix = f"{self.description.name}-{self.machine}-"
        key = self.description.system_key(self.machine)[:16]
        kept = sorted(self.store.cache.glob(f"{prefix}{key}-*.tar"))
        if kept and not refresh:
            return kept[-1]
        packages = plural(len(self.description.packages), "package")
        self.say("system", f"making Debian {SUITE} with {packages}", 0.0)
        with self.store.workspace() as work:
            raw, system = work / "raw.tar", work / "system.tar"
            make_system(self.description, raw, self.say)
            self.say("system", "putting it in order", 0.9)
            with open(system, "wb", buffering=1 << 20) as stream:
                write_layer(raw, {}, stream)
            made = self.store.cache / f"{prefix}{key}-{digest_of(system)[:16]}.tar"
            system.replace(made)
        for old in self.store.cache.glob(f"{prefix}*.tar"):
            if old != made:
                old.unlink()
        return made

    def _context(self, work: Path) -> dict[str, Entry]:
        """What the Dockerfile copies from."""
        description = self.description
        wheel = fetch_node(description, self.machine, self.store, self.say)
        added = node_files(wheel) | package_files(description, None, self.machine, work, self.store, self.say)
        context = {f"node/{path}": entry for path, entry in added.items()}
        context |= {f"files/{path}": Entry(data=data) for path, data in description.files.items()}
        texts = {
            "Dockerfile": description.dockerfile,
            "dpkg.cfg": "\n".join(description.dpkg_options) + "\n",
            "packages.txt": "\n".join(description.packages) + "\n",
            "finish.sh": description.finish,
            "compile_guest.py": description.compiler,
        }
        context |= {path: Entry(data=text.encode()) for path, text in texts.items()}
        context["guest.py"] = Entry(data=bundle.source())
        return context


def _machine(client: docker.DockerClient | None) -> str:
    name = str(client.version().get("Arch", "")) if client else platform.machine()
    machine = MACHINES.get(name.lower(), name.lower())
    if machine not in ENGINE_NAMES:
        raise PlatformError(
            f"no image can be built for the processor {name!r}", hint="x86_64 and aarch64 can."
        )
    return machine


def _possible_targets(
    wanted: Sequence[Target] | None, base: str, client: docker.DockerClient | None, docker_host: str | None
) -> tuple[Target, ...]:
    if wanted:
        return tuple(target for target in TARGETS if target in wanted)
    possible: list[Target] = []
    if client is not None:
        possible.append("container")
    else:
        with contextlib.suppress(RuntimeUnavailableError):
            connect(docker_host).close()
            possible.append("container")
    if sys.platform == "linux" and (possible or base == "debian" or find_mmdebstrap()):
        possible.append("local")
    if not possible:
        raise RuntimeUnavailableError(
            "no image can be built here: no Docker engine answers and mmdebstrap is not installed",
            hint="Start Docker or set DOCKER_HOST; on Debian: apt-get install mmdebstrap bubblewrap",
        )
    return tuple(possible)


def list_images(
    *, client: docker.DockerClient | None = None, docker_host: str | None = None
) -> list[ImageInfo]:
    """Every built image, on the engine (none when it does not answer) and as a folder."""
    found: list[ImageInfo] = []
    ours = bundle.digest()
    with contextlib.suppress(RuntimeUnavailableError):
        client = client or connect(docker_host)
        for image in client.images.list(filters={"label": LABEL_IMAGE}):
            guest = image.labels.get(LABEL_GUEST, "")
            name, size = image.labels[LABEL_IMAGE], int(image.attrs["Size"])
            for tag in image.tags:
                found.append(ImageInfo(name, "container", tag, str(image.id), size, guest, guest == ours))
    store = Store(data_dir())
    for pointer in sorted(store.rootfs.glob("*")) if store.rootfs.is_dir() else ():
        facts = store.facts(pointer.name) if pointer.is_symlink() else None
        if facts:
            guest, size = str(facts.get(LABEL_GUEST)), int(facts["size_bytes"])
            where, digest = str(facts["path"]), str(facts["digest"])
            found.append(ImageInfo(pointer.name, "local", where, digest, size, guest, guest == ours))
    return found
