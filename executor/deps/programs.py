"""Runs uv and npm, and says in our words why they failed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from executor.errors import DependencyError
from executor.workspace.text import printable

MAX_SECONDS = 1800


def run(
    argv: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    hints: Sequence[tuple[str, str, str]],
    failed: str,
) -> str:
    """The output of a program that ended well; else DependencyError with the first of `hints` that fits."""
    try:
        ended = subprocess.run(
            argv,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=MAX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DependencyError(f"{failed}: no end after {MAX_SECONDS} seconds") from None
    except OSError as error:
        raise DependencyError(f"{failed}: {argv[0]} cannot be started: {error.strerror}") from None
    said = ended.stdout.decode("utf-8", "replace")
    if ended.returncode == 0:
        return said
    words = printable(re.sub(r"\s*\n\s*", " ", said.strip())[-1500:])
    for pattern, why, hint in hints:
        if re.search(pattern, said):
            raise DependencyError(f"{failed}: {why}. {words}", hint=hint)
    raise DependencyError(f"{failed}. {words}")
