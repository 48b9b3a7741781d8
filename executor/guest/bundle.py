"""The guest as one file of source, the way it travels into a sandbox.

The modules of `PARTS` are joined into one, in this order: their imports of each other are dropped, the rest
is kept to the letter. An image may carry it compiled; its `executor.guest` label then holds `digest()`.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources

PARTS = (
    "wire.py",
    "records.py",
    "proxy.py",
    "door.py",
    "warm.py",
    "process.py",
    "paths.py",
    "runs.py",
    "files.py",
    "agent.py",
)
_OWN_IMPORTS = re.compile(r"^[ ]*from executor\.guest\.?\w* import (\([^)]*\)|[^\n]*)\n", re.MULTILINE)


@cache
def source() -> bytes:
    """The bundle: UTF-8 Python source that runs as `__main__` on Python 3.9 and newer."""
    folder = resources.files("executor.guest")
    texts = [folder.joinpath(part).read_text("utf-8") for part in PARTS]
    joined = "\n".join(_OWN_IMPORTS.sub("", text) for text in texts)
    joined = joined.replace("from __future__ import annotations\n", "")
    return ("from __future__ import annotations\n" + joined).encode()


@cache
def digest() -> str:
    """SHA-256 of `source()`, in hex."""
    return hashlib.sha256(source()).hexdigest()
