"""Makes locks and layers: the host resolves and unpacks, a sandbox says what it is for and compiles."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from executor.deps import npm, pypi
from executor.deps.declared import Declared, Wanted, declared
from executor.deps.layers import Layer, LayerStore, layer_of
from executor.deps.locks import Lock, NodePackage, Wheel
from executor.deps.offer import BENCH_LIMITS
from executor.deps.programs import in_thread
from executor.deps.target import Target, Workbench, probe
from executor.errors import DependencyError
from executor.models import OutputLimits
from executor.runtimes.base import LAYERS
from executor.skills.packages import canonical
from executor.workspace.text import plural

_PYC = "work/pyc"
Tell = Callable[[str], None]


async def lock(
    skill: Path,
    bench: Workbench,
    store: LayerStore,
    *,
    guess: bool = False,
    unscripted: Sequence[str] = (),
    first_index: bool = False,
    tell: Tell = lambda _line: None,
) -> Lock:
    """Resolve what a skill declares, for the image of `bench`.

    `guess`: take what its imports suggest where it declares nothing. `unscripted`: packages of Node whose
    install script may be left out. `first_index`: a package that several of the operator's indexes have is
    taken from the first. DependencyError says what was refused.
    """
    found = await asyncio.to_thread(declared, skill)
    _check(found, skill.name, guess)
    tell("asking the image for its interpreters")
    target = await probe(bench)
    python = found.python or ([item for item in found.guesses if item.kind == "python"] if guess else [])
    node = found.node or ([item for item in found.guesses if item.kind == "node"] if guess else [])
    if node and not target.node:
        raise DependencyError(f"{skill.name} needs packages of Node, and the image has no node")
    with tempfile.TemporaryDirectory(prefix="executor-lock-") as name:
        scratch = Path(name)
        wheels: tuple[Wheel, ...] = ()
        packages: dict[str, NodePackage] = {}
        if python:
            tell(f"resolving {plural(len(python), 'requirement')} for Python {target.python}")
            wheels = await in_thread(
                lambda: _resolve_python(python, found, target, store, scratch, first_index)
            )
        if node:
            tell(f"resolving {plural(len(node), 'package')} for Node {target.node}")
            (scratch / "node").mkdir()
            packages = await in_thread(
                lambda: npm.resolve(
                    node,
                    found.node_lock,
                    target,
                    unscripted=unscripted,
                    cache=store.cache / "npm",
                    scratch=scratch / "node",
                )
            )
    specs = found.specs()
    if not found.python and not found.node:
        specs = {**specs, "guessed": sorted(item.spec for item in [*python, *node])}
    try:
        return Lock(
            target=target.model_copy(update={"executable": "", "node": target.node if packages else ""}),
            declared=specs,
            python=wheels,
            node=packages,
            node_folder=found.node_folder,
        )
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise DependencyError(f"what {skill.name!r} needs cannot be locked: {why}") from None


def _check(found: Declared, name: str, guess: bool) -> None:
    if found.refused:
        lines = "; ".join(f"{refusal.where}: {refusal.reason}" for refusal in found.refused[:10])
        raise DependencyError(f"the declarations of {name!r} are refused: {lines}")
    if found.empty and found.guesses and not guess:
        lines = ", ".join(f"{item.spec} ({item.where})" for item in found.guesses[:20])
        raise DependencyError(
            f"{name!r} declares nothing; its files suggest {lines}",
            hint="A guessed name can be a stranger's package. Look at the list, then add --guess, or declare "
            "them in requirements.txt or package.json.",
        )


def _resolve_python(
    python: list[Wanted], found: Declared, target: Target, store: LayerStore, scratch: Path, first_index: bool
) -> tuple[Wheel, ...]:
    cache = store.cache / "uv"
    wheels = pypi.resolve(
        [item.spec for item in python],
        [item.spec for item in found.constraints],
        target,
        cache=cache,
        scratch=scratch,
    )
    for wheel in wheels:
        demanded = found.hashes.get(canonical(wheel.name))
        if demanded and not set(demanded) & set(wheel.hashes):
            raise DependencyError(
                f"no file of {wheel.name} {wheel.version} on the index has a hash that the skill demands"
            )
    several = {} if first_index else pypi.confusable(wheels, pypi.environment(cache, offline=True))
    if several:
        lines = "; ".join(f"{name}: {' and '.join(where)}" for name, where in several.items())
        raise DependencyError(
            f"more than one of your indexes has the same package, and one may be a stranger's: {lines}",
            hint="Take it from the first index that has it: --first-index. Or name one index only.",
        )
    return wheels


async def fetch(
    skill: Path, lock: Lock, bench: Workbench, store: LayerStore, *, tell: Tell = lambda _line: None
) -> None:
    """Bring the files of a lock into the caches, so that building needs no network."""
    if lock.empty or store.built(lock.digest):
        return
    found = await _answered(skill, lock)
    target = await probe(bench)
    with store.told(), tempfile.TemporaryDirectory(dir=store.cache, prefix="fetch-") as name:
        await in_thread(lambda: _unpack(lock, found, target, Path(name), store, False, tell))


async def build(
    skill: Path,
    lock: Lock,
    bench: Workbench,
    store: LayerStore,
    *,
    offline: bool = False,
    tell: Tell = lambda _line: None,
) -> Layer | None:
    """Build the layer of a lock, whole or not at all; None when nothing is needed. An existing one is kept.

    `offline`: take everything from the caches that locking has filled.
    """
    layer = layer_of(lock)
    if layer is None or store.built(lock.digest):
        return layer
    found = await _answered(skill, lock)
    target = await probe(bench)
    if not lock.target.fits(target):
        raise DependencyError(
            f"the lock is for Python {lock.target.python} on {lock.target.machine} ({lock.target.libc}), and "
            f"this image has Python {target.python} on {target.machine} ({target.libc})",
            hint="executor deps lock SKILL",
        )
    with store.told():
        return await _built(lock, layer, found, target, bench, store, offline, tell)


async def _built(
    lock: Lock,
    layer: Layer,
    found: Declared,
    target: Target,
    bench: Workbench,
    store: LayerStore,
    offline: bool,
    tell: Tell,
) -> Layer:
    async with _turn(store, lock.digest):
        if store.built(lock.digest):
            return layer
        part = store.folder / f".{lock.digest[:16]}-{os.urandom(4).hex()}"
        compiled = store.compiled / part.name
        for folder in (part, compiled):
            folder.mkdir(mode=0o755)
        try:
            await in_thread(lambda: _unpack_cached(lock, found, target, part, store, offline, tell))
            size = await asyncio.to_thread(_seal, part, target.executable)
            if lock.python:
                tell("compiling bytecode in a sandbox")
                size += await _compile(lock, part, compiled, bench)
                os.rename(compiled, store.compiled / lock.digest)
            os.rename(part, store.folder / lock.digest)
            store.record(lock, size)
        finally:
            await asyncio.to_thread(shutil.rmtree, part, True)
            await asyncio.to_thread(shutil.rmtree, compiled, True)
    return layer


async def _answered(skill: Path, lock: Lock) -> Declared:
    """What a skill declares. DependencyError when the lock is for something else."""
    found = await asyncio.to_thread(declared, skill)
    if not lock.answers(found.specs()):
        raise DependencyError(
            f"the lock is not what the skill {skill.name!r} declares by now",
            hint="executor deps lock SKILL",
        )
    return found


@contextlib.asynccontextmanager
async def _turn(store: LayerStore, digest: str) -> AsyncIterator[None]:
    """One process at a time builds a layer."""
    with (store.turns / f"{digest}.lock").open("w") as file:
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        if not store.built(digest):  # a build that died between its two last steps
            await asyncio.to_thread(store.remove, digest)
        yield


def _unpack_cached(
    lock: Lock, found: Declared, target: Target, part: Path, store: LayerStore, offline: bool, tell: Tell
) -> None:
    """From the caches where they have all of it, else from the operator's index."""
    try:
        _unpack(lock, found, target, part, store, True, tell)
    except DependencyError:
        if offline:
            raise
        shutil.rmtree(part)
        part.mkdir()
        _unpack(lock, found, target, part, store, False, tell)


def _unpack(
    lock: Lock, found: Declared, target: Target, part: Path, store: LayerStore, offline: bool, tell: Tell
) -> None:
    """`target` is what the image said just now: where its Python is, no lock may decide."""
    with tempfile.TemporaryDirectory(prefix="executor-layer-") as name:
        scratch = Path(name)
        if lock.python:
            tell(f"unpacking {plural(len(lock.python), 'wheel')}")
            pypi.install(
                lock.python, lock.target, part, cache=store.cache / "uv", scratch=scratch, offline=offline
            )
            pypi.scripts(part, target, f"{LAYERS}/{lock.digest}")
        if lock.node:
            tell(f"unpacking {plural(len(lock.node), 'package')} of Node")
            (scratch / "node").mkdir()
            specs = lock.declared.get("node") or [
                spec for spec in lock.declared.get("guessed", []) if _is_node(spec, found)
            ]
            npm.install(
                lock.node,
                specs,
                lock.declared.get("node_optional", ()),
                lock.target,
                part,
                cache=store.cache / "npm",
                scratch=scratch / "node",
                offline=offline,
            )


def _is_node(spec: str, found: Declared) -> bool:
    return any(item.kind == "node" and item.spec == spec for item in found.guesses)


def _seal(part: Path, python: str) -> int:
    """Plain modes for all, no link that leaves, nothing but files, folders and links. The size in bytes."""
    size = 0
    for folder, folders, files in os.walk(part):
        os.chmod(folder, 0o755)  # noqa: S103  a sandbox of another uid reads it
        for name in [*folders, *files]:
            path = Path(folder, name)
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                target = os.readlink(path)
                inside = os.path.normpath(os.path.join(folder, target))
                if target != python and not inside.startswith(f"{part}/"):
                    raise DependencyError(f"a package has a link that leaves it: {name!r}")
            elif stat.S_ISREG(info.st_mode):
                os.chmod(path, 0o755 if info.st_mode & 0o100 else 0o644)
                size += info.st_size
            elif not stat.S_ISDIR(info.st_mode):
                raise DependencyError(f"a package has something that is no file: {name!r}")
    return size


async def _compile(lock: Lock, part: Path, compiled: Path, bench: Workbench) -> int:
    """Compile in the sandbox, which sees the packages read-only, and bring the bytecode back."""
    seen = f"{LAYERS}/{part.name}"
    packages = f"lib/python{lock.target.python}/site-packages"
    argv = ["python3", "-I", "-X", f"pycache_prefix=/workspace/{_PYC}", "-m", "compileall", "-q", "-j", "2"]
    argv += ["-s", seen, "-p", f"{LAYERS}/{lock.digest}", "--invalidation-mode", "unchecked-hash"]
    await bench.exec([*argv, f"{seen}/{packages}"], timeout=900)
    limits = OutputLimits(max_files=BENCH_LIMITS.inodes, inline_bytes=0, max_total_bytes=0)
    size = 0
    with tempfile.TemporaryDirectory(dir=part) as name:
        for file in await bench.collect(f"{_PYC}/**/*.pyc", limits=limits):
            inner = Path(file.path.removeprefix(f"{_PYC}{seen}/"))
            folder, stem = part / inner.parent, inner.name.split(".")[0]
            if inner.is_absolute() or ".." in inner.parts or not (folder / f"{stem}.py").is_file():
                continue
            saved = await file.save(name)
            # Twice, as one file: beside the source, and where PYTHONPYCACHEPREFIX, which runs have, leads to.
            for place in (folder / "__pycache__", compiled / inner.parent):
                place.mkdir(parents=True, exist_ok=True)
                os.link(saved, place / inner.name)
            size += file.size
    return size
