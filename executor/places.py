"""Where this project keeps things on the host."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

TICK_NS = 20_000_000  # longer than any tick by which a kernel stamps files
COARSE = 105  # ticks, where a file system stamps with whole seconds, or every other


def data_dir() -> Path:
    """Folder for what outlives a process: images' file systems, checkpoints, locks. It may not exist yet.

    `$EXECUTOR_DATA_DIR`; else `/var/lib/executor` for root, because unprivileged sandboxes have to be able
    to reach their root filesystem there; else the user's data folder.
    """
    chosen = os.environ.get("EXECUTOR_DATA_DIR")
    if chosen:
        return Path(chosen).absolute()
    if sys.platform != "win32" and os.geteuid() == 0:
        return Path("/var/lib/executor")
    import platformdirs  # which reads files and asks the system, where nothing else says where

    return platformdirs.user_data_path("executor")


def replace_file(path: str | os.PathLike[str], data: bytes, mode: int = 0o644) -> None:
    """Give a file this content and mode, whole or not at all: what was there stays until all of it is on the
    disk. OSError.
    """
    target = Path(path)
    descriptor, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, mode)
        os.replace(part, target)
    except BaseException:
        os.unlink(part)
        raise


def settled(now: int, *stamps: int) -> bool:
    """Whether a file with these times of writing and change (all in ns) can be known again by them. False for
    one that changed just now: it may change again within one tick of its file system's clock.
    """
    coarse = not any(stamp % 1_000_000_000 for stamp in stamps)
    return now - max(stamps) > TICK_NS * (COARSE if coarse else 1)


def cache_dir() -> Path:
    """Folder for what can be fetched again. It may not exist yet.

    `$SKILLS_CACHE_DIR`, else `skills` in the user's cache folder.
    """
    chosen = os.environ.get("SKILLS_CACHE_DIR")
    if chosen:
        return Path(chosen).absolute()
    import platformdirs

    return platformdirs.user_cache_path("executor") / "skills"
