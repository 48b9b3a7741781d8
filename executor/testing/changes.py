"""Which skills a change touches, asked of git: run on the host, with arguments that cannot be options."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from executor.errors import BadRequestError

MAX_SECONDS = 60


def changed_files(revision: str, folders: Iterable[Path]) -> set[Path]:
    """Every file that differs from the revision, also what is not committed or not known to git.

    Looks in the repositories that hold the folders. BadRequestError when there is none or no such revision.
    """
    if not revision or revision.startswith("-"):
        raise BadRequestError(f"{revision!r} is no revision", hint="Give a commit, a branch or a tag.")
    tops = {_top(folder) for folder in folders}
    found: set[Path] = set()
    for top in tops:
        commit = _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        base = commit.decode().strip()
        changed = _git(top, "diff", "--name-only", "--no-renames", "-z", base, "--")
        untracked = _git(top, "ls-files", "--others", "--exclude-standard", "-z")
        for name in (changed + untracked).split(b"\0"):
            if name:
                found.add(Path(os.path.realpath(top / os.fsdecode(name))))
    return found


def touches(changed: set[Path], paths: Iterable[Path]) -> bool:
    """Whether one of the changed files is one of the paths or below it."""
    wanted = [Path(os.path.realpath(path)) for path in paths]
    return any(file == path or path in file.parents for file in changed for path in wanted)


def _top(folder: Path) -> Path:
    return Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))


def _git(folder: Path, *arguments: str) -> bytes:
    command: Sequence[str] = ["git", "-C", os.fspath(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=MAX_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRequestError(f"--changed-since needs git: {error}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().split("\n")[0] or "no such revision"
        raise BadRequestError(
            f"git in {str(folder)!r}: {said}",
            hint="--changed-since takes a commit, a branch or a tag; in CI fetch enough history.",
        )
    return done.stdout
