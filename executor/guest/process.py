"""What process 1 is to its kernel: hardened, limited, attested; and what it sees of other processes."""

from __future__ import annotations

import os
import signal
import sys

from executor.guest.wire import (
    VERSION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Tuple

    from executor.guest.wire import Body

UMASK = 0o022
# Where the kernel counts the processes of this sandbox that it killed for memory (cgroup v2, v1, and the
# single file that the local runtime shows).
OOM_COUNTERS = (
    "/run/executor/oom",
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
)
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
STATUS_FIELDS = (
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Uid",
    "Gid",
    "Groups",
)
# Signals that Python ignores for itself and that a script must find at their defaults.
RESET_SIGNALS = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD]


def prctl(option: int, value: int) -> int:
    try:  # the C half of ctypes: the Python half costs more than the rest of the start
        import _ctypes

        handle = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
        address = _ctypes.dlsym(handle, "prctl")
        return int(_ctypes.call_function(address, (option, value, 0, 0, 0)))
    except (ImportError, AttributeError):
        import ctypes

        return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0))


def harden() -> None:
    """Out of reach of the scripts that this process will start."""
    # Python's own SIGINT, and what the host ignores (because it is in the background, or below nohup), which
    # scripts would inherit. The two that Python itself ignores are reset for each of them.
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    if prctl(4, 0) != 0 or prctl(3, 0) != 0:  # PR_SET_DUMPABLE 0, PR_GET_DUMPABLE
        raise OSError("cannot become undumpable")
    os.umask(UMASK)


class Score:
    """This process's place in the order in which the kernel kills for memory: after every script.

    Made before `harden`: what is not dumpable cannot open the file, but an open descriptor stays usable.
    Without privileges a score can be raised and lowered again, down to one that was set from outside. A
    script can do that too, so this process is as low as any of them can get.
    """

    SCRIPTS = 1000

    def __init__(self) -> None:
        self.fd = -1
        self.own = 0
        try:
            self.fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self.own = int(os.read(self.fd, 16))
        except (OSError, ValueError):
            return
        low = -1000
        while low < self.own:
            middle = (low + self.own) // 2
            if self.set(middle):
                self.own = middle
            else:
                low = middle + 1

    def set(self, value: int) -> bool:
        try:
            return self.fd >= 0 and os.pwrite(self.fd, b"%d" % value, 0) > 0
        except OSError:
            return False


def set_limits(limits: Dict[str, int]) -> None:
    """rlimits by their lower-case names, soft and hard alike; never above what is already in force."""
    import resource

    for name, value in limits.items():
        which = getattr(resource, "RLIMIT_" + name.upper(), None)
        if which is None:
            continue
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))


def attest() -> Body:
    """What this sandbox is, for the host to compare with what it ordered."""
    with open("/proc/self/status") as file:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    writable = []
    root_options = ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="backslashreplace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            mount = before.split(" ")
            fstype, _, super_options = after.rstrip("\n").split(" ", 2)
            options = mount[5].split(",")
            if mount[4] == "/":
                root_options = mount[5]
            if "ro" in options or "ro" in super_options.split(","):
                continue
            # What this uid may not write is as good as read-only: the engine leaves /dev like that.
            if os.path.isdir(mount[4]) and os.access(mount[4], os.W_OK):
                writable.append([mount[4], fstype])
    return {
        "version": VERSION,
        "pid": os.getpid(),
        "status": {name: fields.get(name, "") for name in STATUS_FIELDS},
        "dumpable": prctl(3, 0),
        "namespaces": {name: namespace(name) for name in NAMESPACES},
        "root": root_options,
        "writable": writable[:128],
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def namespace(name: str) -> str:
    try:
        return os.readlink("/proc/self/ns/" + name)
    except OSError:
        return ""


class OomCounter:
    """How many processes of this sandbox the kernel has killed for memory. The file stays open: it is read
    twice for every run.
    """

    def __init__(self) -> None:
        self.fd = -1
        for path in OOM_COUNTERS:
            try:
                self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            if self.read() >= 0:
                return
            os.close(self.fd)
            self.fd = -1

    def read(self) -> int:
        """The count; -1 when the kernel does not say."""
        try:
            return int(os.pread(self.fd, 4096, 0).partition(b"oom_kill ")[2].split(None, 1)[0])
        except (OSError, ValueError, IndexError):
            return -1


def processes() -> Dict[int, Tuple[int, int, str]]:
    """pid → (parent, session, state letter) of everything in this pid namespace."""
    table: Dict[int, Tuple[int, int, str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = process_line(int(name))
            if found is not None:
                table[int(name)] = found
    return table


def process_line(pid: int) -> Optional[Tuple[int, int, str]]:
    """(parent, session, state letter) of a process; None when there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[3]), fields[0].decode("ascii")


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def leave(why: str) -> None:
    """End everything in the sandbox and this process with it."""
    if os.getpid() == 1:
        send(-1, signal.SIGKILL)
    if why:
        os.write(2, ("executor guest: %s\n" % why).encode("utf-8", "replace"))
    os._exit(0)
