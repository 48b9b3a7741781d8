"""Where this project keeps things on the host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import platformdirs


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
    return platformdirs.user_data_path("executor")


def cache_dir() -> Path:
    """Folder for what can be fetched again. It may not exist yet.

    `$SKILLS_CACHE_DIR`, else `skills` in the user's cache folder.
    """
    chosen = os.environ.get("SKILLS_CACHE_DIR")
    return Path(chosen).absolute() if chosen else platformdirs.user_cache_path("executor") / "skills"
