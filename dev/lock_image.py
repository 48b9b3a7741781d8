"""Locks the packages of an image: `python dev/lock_image.py office sharp` writes images/office/executor.lock.

Words after the name are packages of Node that work without their install script.
The versions are for the Python and the Node of the base image, which is asked in a sandbox.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from executor import AsyncExecutor
from executor.deps import building, locks

IMAGES = Path(__file__).resolve().parents[1] / "images"


async def main(name: str, *unscripted: str) -> None:
    folder = IMAGES / name
    async with AsyncExecutor() as executor, executor.layers.bench() as bench:
        lock = await building.lock(folder, bench, executor.layers.store, unscripted=unscripted, tell=print)
    locks.write(folder / locks.FILE, lock)
    print(f"{len(lock.python)} wheels and {len(lock.node)} packages of Node")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
