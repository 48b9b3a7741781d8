"""Limits on a whole local sandbox through cgroups, version 1 or 2, where this process may make groups.

A group is made below the one this process is in (version 1) or below the root (version 2, as root), holds
one sandbox and is removed with it. Where that is not possible, `make` returns None and the caller says so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from executor.runtimes.base import SandboxSpec
from executor.runtimes.owner import is_dead

PREFIX = "executor-"
PERIOD_US = 100_000
MONITOR = 1  # bubblewrap's outer process counts against `pids` and is not the script's


class Cgroup:
    """One sandbox's groups: a folder for each controller (version 1) or a single one (version 2)."""

    def __init__(self, folders: list[Path], oom_file: Path) -> None:
        self._folders = folders
        self.oom_file = oom_file
        """The file with the `oom_kill` counter."""

    def add(self, pid: int) -> None:
        """Move a process in."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def oom_kills(self) -> int:
        """Processes killed for memory so far."""
        with contextlib.suppress(OSError, ValueError):
            for line in self.oom_file.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def kill(self) -> None:
        """SIGKILL to everything inside, until nothing is; at most two seconds."""
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            try:
                pids = (self._folders[0] / "cgroup.procs").read_text().split()
            except OSError:
                return
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(int(pid), 9)
            time.sleep(0.002)

    def remove(self, patience: float = 0.2) -> bool:
        """Remove the groups; for so many seconds, because the kernel empties them a little after the last
        exit. Whether they are gone.
        """
        gone = True
        for folder in self._folders:
            deadline = time.monotonic() + patience
            while True:
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > deadline:
                        gone = False
                        break
                    time.sleep(0.004)
        return gone


def _mounts() -> dict[str, Path]:
    """controller → mount point (version 1); '' → mount point of version 2."""
    found: dict[str, Path] = {}
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = after.split(" ")
        where = Path(before.split(" ")[4])
        if fields[0] == "cgroup2":
            found[""] = where
        elif fields[0] == "cgroup":
            for controller in fields[2].split(","):
                found[controller] = where
    return found


def _own(controller: str) -> str:
    """Path of the group that this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""


def make(spec: SandboxSpec, name: str) -> Cgroup | None:
    """Groups with the limits of `spec`, or None when this process may not make them."""
    mounts = _mounts()
    try:
        if {"memory", "pids", "cpu"} <= set(mounts):
            return _make_v1(spec, name, mounts)
        if "" in mounts:
            return _make_v2(spec, name, mounts[""])
    except OSError:
        pass
    return None


def _make_v1(spec: SandboxSpec, name: str, mounts: dict[str, Path]) -> Cgroup | None:
    settings = {
        "memory": [
            ("memory.limit_in_bytes", spec.memory, True),
            ("memory.memsw.limit_in_bytes", spec.memory, False),
            ("memory.swappiness", 0, False),
            ("memory.kmem.tcp.limit_in_bytes", spec.memory // 8, False),  # version 2 counts them as memory
        ],
        "pids": [("pids.max", spec.pids + MONITOR, True)],
        "cpu": [
            ("cpu.cfs_period_us", PERIOD_US, True),
            ("cpu.cfs_quota_us", int(spec.cpus * PERIOD_US), True),
        ],
    }
    made: list[Path] = []
    try:
        for controller, values in settings.items():
            folder = mounts[controller] / _own(controller) / (PREFIX + name)
            folder.mkdir()
            made.append(folder)
            _write(folder, values)
    except OSError:
        Cgroup(made, Path()).remove()
        return None
    return Cgroup(made, made[0] / "memory.oom_control")


def _make_v2(spec: SandboxSpec, name: str, mount: Path) -> Cgroup | None:
    parent = mount / "executor"
    wanted = "+memory +pids +cpu"
    for folder in (mount, parent):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(wanted)
    folder = parent / (PREFIX + name)
    folder.mkdir()
    try:
        _write(
            folder,
            [
                ("memory.max", spec.memory, True),
                ("memory.swap.max", 0, False),
                ("pids.max", spec.pids + MONITOR, True),
                ("cpu.max", f"{int(spec.cpus * PERIOD_US)} {PERIOD_US}", True),
            ],
        )
    except OSError:
        Cgroup([folder], Path()).remove()
        return None
    return Cgroup([folder], folder / "memory.events")


def _write(folder: Path, values: Sequence[tuple[str, object, bool]]) -> None:
    for file, value, needed in values:
        try:
            (folder / file).write_text(str(value))
        except OSError:
            if needed:
                raise


def places() -> list[Path]:
    """Where the groups of sandboxes are."""
    mounts = _mounts()
    found = [mounts[c] / _own(c) for c in ("memory", "pids", "cpu") if c in mounts]
    return [*found, mounts[""] / "executor"] if "" in mounts else found


def reap() -> list[str]:
    """Remove the groups of owners that are gone, with what lives in them. Their names hold the owner."""
    removed = []
    for place in places():
        with contextlib.suppress(OSError):
            for folder in place.glob(PREFIX + "*"):
                label = folder.name.removeprefix(PREFIX).partition("@")[2]
                if label and is_dead(label):
                    group = Cgroup([folder], folder)
                    group.kill()
                    if group.remove(patience=2.0):
                        removed.append(folder.name)
    return list(dict.fromkeys(removed))
