"""Everything that one process can do to another of its own user, done to process 1. When process 1 dies of it, this
one dies too and its last check is missing."""

import ctypes
import errno
import os
import platform
import signal
import time

libc = ctypes.CDLL(None, use_errno=True)
# name, number on x86-64, number on arm64, arguments
CALLS = (
    ("prlimit", 302, 261, (1, 7, None, ctypes.create_string_buffer(16))),
    ("scheduler", 144, 119, (1, 5, ctypes.byref(ctypes.c_int(0)))),
    ("priority", 141, 140, (0, 1, 19)),
    ("ioprio", 251, 30, (1, 1, 3 << 13)),
    ("pidfd-getfd", 438, 438, (0, 0, 0)),
    ("read-memory", 310, 270, (1, None, 0, None, 0, 0)),
)


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


for name, x86, arm, arguments in CALLS:
    ctypes.set_errno(0)
    got = libc.syscall(x86 if platform.machine() == "x86_64" else arm, *arguments)
    check("init:" + name, got < 0, errno.errorcode.get(ctypes.get_errno(), got))
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
fd = os.pidfd_open(1)
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGSEGV):
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:
        pass
time.sleep(0.5)
state = open("/proc/1/stat").read().rpartition(")")[2].split()[0]
check("init-state", state in "SRD", state)
