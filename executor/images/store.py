"""Where images live on this host.

`rootfs/` has one folder per build, its facts beside it, and a link per name; `cache/` has what is kept from
one build to the next. Whatever appears in them appears whole, by a rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from executor.errors import ExecutorError, ImageMissingError
from executor.images.description import Progress
from executor.places import data_dir

KEPT_ROOTFS = 2  # superseded folders that stay: sessions that started on them still read them


def rootfs_path(name: str = "base") -> Path:
    """The local runtime's root filesystem, resolved: sessions keep it when a newer one is built."""
    pointer = data_dir() / "rootfs" / name
    if not pointer.is_dir():
        raise ImageMissingError(
            f"no root filesystem for image {name!r} at {pointer}",
            hint=f"Build it: executor images build {name} --target local",
        )
    return pointer.resolve()


class Store:
    """The data folder of this host, or another one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rootfs = root / "rootfs"
        self.cache = root / "cache"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One build at a time; a second one waits and then finds the work done."""
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.root, self.rootfs, self.cache):
                if not folder.is_dir():
                    folder.mkdir()
                    folder.chmod(0o755)  # whatever the umask: sandboxes run as other users
            lock = open(self.cache / "lock", "w")  # noqa: SIM115
        except OSError as error:
            raise ExecutorError(
                f"cannot write to the data folder {self.root}: {error.strerror}",
                hint="EXECUTOR_DATA_DIR names another one.",
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Left by a build that was killed.
            for leftover in (*self.cache.glob("tmp-*"), *self.rootfs.glob(".new-*")):
                _remove(leftover)
            yield

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="tmp-", dir=self.cache) as folder:
            yield Path(folder)

    def facts(self, name: str) -> dict[str, Any] | None:
        """What is known about the folder that `name` points to; None when there is none."""
        try:
            path = (self.rootfs / name).resolve(strict=True)
            facts: dict[str, Any] = json.loads(path.with_name(f"{path.name}.json").read_text())
        except (OSError, ValueError):
            return None
        return {**facts, "path": str(path)}

    def unpack(self, name: str, layer: Path, digest: str, facts: Mapping[str, str], say: Progress) -> Path:
        """The layer as a folder, whole or not at all; then the name points to it."""
        goal = self.rootfs / f"{name}-{digest[:12]}"
        say("rootfs", f"unpacking to {goal}", None)
        if not goal.is_dir():
            fresh = self.rootfs / f".new-{secrets.token_hex(6)}"
            fresh.mkdir(mode=0o755)
            try:
                owner = "--same-owner" if os.geteuid() == 0 else "--no-same-owner"
                command = [
                    "tar",
                    "--extract",
                    "--numeric-owner",
                    "--preserve-permissions",
                    owner,
                    "--file",
                    str(layer),
                ]
                done = subprocess.run([*command, "--directory", str(fresh)], capture_output=True, text=True)
                if done.returncode:
                    raise ExecutorError(
                        f"cannot unpack the root filesystem to {fresh}: {done.stderr.strip()[-400:]}",
                        hint="Is the disk full?",
                    )
                fresh.chmod(0o755)
                fresh.rename(goal)
            except BaseException:
                _remove(fresh)
                raise
        size = layer.stat().st_size
        record = self.rootfs / f"{goal.name}.json"
        _replace(record, json.dumps({**facts, "digest": digest, "size_bytes": size}, indent=1) + "\n")
        point(self.rootfs / name, goal.name)
        self._prune(name)
        return goal

    def _prune(self, name: str) -> None:
        current = (self.rootfs / name).resolve()
        folders = [
            p for p in self.rootfs.glob(f"{name}-*") if re.fullmatch(rf"{name}-[0-9a-f]{{12}}", p.name)
        ]
        old = sorted(
            (p for p in folders if p != current), key=lambda p: p.with_suffix(".json").stat().st_mtime
        )
        for folder in old[: max(0, len(old) - KEPT_ROOTFS)]:
            folder.with_suffix(".json").unlink(missing_ok=True)
            _remove(folder)


def point(pointer: Path, goal: str) -> None:
    """Makes a link point to `goal` in one step: at no moment is there none."""
    fresh = pointer.with_name(f".new-{secrets.token_hex(6)}")
    fresh.symlink_to(goal)
    try:
        fresh.replace(pointer)
    except BaseException:
        fresh.unlink()
        raise


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".new-{secrets.token_hex(6)}")
    fresh.write_text(text)
    fresh.replace(path)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
