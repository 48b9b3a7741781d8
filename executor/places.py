"""Where this project keeps things on the host."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


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


def cache_dir() -> Path:
    """Folder for what can be fetched again. It may not exist yet.

    `$SKILLS_CACHE_DIR`, else `skills` in the user's cache folder.
    """
    chosen = os.environ.get("SKILLS_CACHE_DIR")
    if chosen:
        return Path(chosen).absolute()
    import platformdirs

    return platformdirs.user_cache_path("executor") / "skills"
