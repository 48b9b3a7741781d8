"""What a session asks for: the layer of a skill, made first where the operator wants that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from executor.deps import locks
from executor.deps.layers import Layer, LayerStore, Mode, layer_of
from executor.deps.target import Workbench
from executor.models import Limits

BENCH_LIMITS = Limits(memory="3g", cpus=2, pids=256, disk="768m", inodes=200_000)
"""What a session needs in which layers are made."""
Bench = Callable[[], AbstractAsyncContextManager[Workbench]]


class Layers:
    """Layers of one executor. `bench` opens a session in which layers are made."""

    def __init__(self, store: LayerStore, mode: Mode, bench: Bench) -> None:
        self.store = store
        self.mode = mode
        self.bench = bench
        """Opens a session in which layers are made, for `executor.deps.building`."""
        self.options = ""
        """What a command needs behind a skill's name to mean the same skill and image as here, such as
        ` --skills ./more`. Default nothing; the command line knows with which options it was called."""

    async def of(self, skill: Path, digest: str) -> Layer | None:
        """The layer that a skill of this content is to have. DependencyError when it cannot have it."""
        if self.mode == "off":
            return None
        if self.mode == "auto":
            await self._make(skill, digest)
        if not self.store.has_lock(skill, digest):  # most skills: not worth a thread
            return None
        return await asyncio.to_thread(self.store.of, skill, digest)

    async def _make(self, skill: Path, digest: str) -> None:
        from executor.deps import building  # what only who builds needs
        from executor.deps.declared import declared

        found = self.store.find_lock(skill, digest)
        lock = found[0] if found is not None else None
        if lock is None and (await asyncio.to_thread(declared, skill)).empty:
            return
        layer = layer_of(lock) if lock is not None else None
        if lock is not None and (layer is None or self.store.built(layer.digest)):
            return
        async with self.bench() as bench:
            if lock is None:
                lock = await building.lock(skill, bench, self.store)
                with self.store.told():
                    locks.write(self.store.locks / f"{digest}.lock", lock)
            await building.build(skill, lock, bench, self.store)
