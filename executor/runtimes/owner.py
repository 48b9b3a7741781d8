"""Who owns a sandbox, and which uid it gets.

An owner is written as `host:boot:pid:start`, so that a later process can tell a dead owner's leavings from
a living one's, also after the pid was used again. A uid slot is held by a locked file for as long as the
session lives: two sessions of one machine never share a uid, because inotify, message queues and process
counts are per uid.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
from functools import cache
from pathlib import Path

from executor.places import data_dir

if sys.platform != "win32":
    import fcntl

FIRST_UID, LAST_UID = 20_000, 29_999  # above ordinary accounts, below the ranges of user namespaces


@cache
def boot_id() -> str:
    """Identity of this boot of this machine; '' where the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_time(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def owner_label() -> str:
    """This process, for a label."""
    pid = os.getpid()
    return f"{socket.gethostname()}:{boot_id()}:{pid}:{start_time(pid) or ''}"


def is_dead(label: str) -> bool:
    """True only when the owner was of this machine and is certainly gone."""
    parts = label.split(":")
    if len(parts) != 4 or parts[0] != socket.gethostname() or not boot_id():
        return False
    if parts[1] != boot_id():
        return True
    return not parts[2].isdigit() or start_time(int(parts[2])) != parts[3]


class UidSlot:
    """A uid of its own for one session. `release` gives it back; so does the end of the process."""

    def __init__(self) -> None:
        self.uid = 0
        self._fd = -1
        folder = data_dir() / "uids"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            self.uid = random.randint(FIRST_UID, LAST_UID)  # noqa: S311  nothing secret about it
            return
        uids = range(FIRST_UID, LAST_UID + 1)
        offset = random.randrange(len(uids))  # noqa: S311
        for index in range(len(uids)):
            uid = uids[(index + offset) % len(uids)]
            if self._take(folder / str(uid)):
                self.uid = uid
                return
        raise OSError(f"all {len(uids)} uids of {folder} are in use")

    def _take(self, path: Path) -> bool:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if sys.platform != "win32":
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Give the uid back."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
