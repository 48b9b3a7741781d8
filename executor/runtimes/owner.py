"""Who owns a sandbox, and which uid it gets.

An owner is written as `host:boot:namespace:pid:start`, so that a later process can tell a dead owner's
leavings from a living one's, also after the pid was used again. Whoever cannot look the owner up (another
machine, another boot, another pid namespace) takes it for alive. A uid slot is held by a locked file for as
long as the session lives: two sessions of one machine never share a uid, because inotify, message queues and
process counts are per uid.
"""

from __future__ import annotations

import contextlib
import errno
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


@cache
def pid_namespace() -> str:
    """Number of the namespace in which this process's pids count; '' where the kernel has none."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""


def owner_label() -> str:
    """This process, for a label."""
    pid = os.getpid()
    return f"{socket.gethostname()}:{boot_id()}:{pid_namespace()}:{pid}:{start_time(pid) or ''}"


def is_dead(label: str) -> bool:
    """True only when the owner could be looked up from here and is certainly gone."""
    host, *where, pid, start = label.split(":") if label.count(":") == 4 else ("", "", "")
    if host != socket.gethostname() or where != [boot_id(), pid_namespace()] or "" in where:
        return False
    return pid.isdigit() and start_time(int(pid)) != start


class UidSlot:
    """A uid of its own for one session. `release` gives it back; so does the end of the process."""

    def __init__(self) -> None:
        self.uid = 0
        self._fd = -1
        self._path = slots() / "0"
        uids = range(FIRST_UID, LAST_UID + 1)
        offset = random.randrange(len(uids))  # noqa: S311  nothing secret about it
        for index in range(len(uids)):
            uid = uids[(index + offset) % len(uids)]
            if not in_use(uid) and self._take(uid):
                self.uid = uid
                return
        raise OSError(f"all {len(uids)} uids of {slots()} are in use")

    def _take(self, uid: int) -> bool:
        self._path = slots() / str(uid)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            return not self._path.parent.is_dir()  # no folder, no locks: the uid was chosen at random
        if not locked(fd):
            os.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Give the uid back."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(fd)


def slots() -> Path:
    """Folder of the locked files."""
    return data_dir() / "uids"


def locked(fd: int) -> bool:
    """Whether the lock of an open slot is ours now, and the slot not just given back by another."""
    if sys.platform != "win32":
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return os.fstat(fd).st_nlink > 0


def in_use(uid: int) -> bool:
    """Whether a process of this uid lives: a sandbox may outlive the one who held its slot."""
    try:
        os.getpriority(os.PRIO_USER, uid)
    except OSError:
        return False
    except AttributeError:  # not on this system
        return False
    return True


def reap_slots() -> None:
    """Remove the files of slots that their holders left behind."""
    with contextlib.suppress(OSError):
        for path in slots().iterdir():
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if locked(fd):
                        os.unlink(path)
                finally:
                    os.close(fd)
