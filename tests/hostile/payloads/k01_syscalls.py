"""System calls that a script has no business with, each with harmless arguments, in a process of its own.

Refused is what fails, whatever the error: a call that the filter lets through must fail for want of a right.
"""

import ctypes
import errno
import os
import platform
import pty
import struct

NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
SIGCHLD = 17
ZEROS = bytes(4096)
X86 = platform.machine() == "x86_64"

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.malloc.restype = ctypes.c_void_p
# The one who made this process, or this process where that is process 1 (whose own battery is another).
PARENT = os.getppid() if os.getppid() > 1 else os.getpid()
PID = os.getpid()
TERMINAL = pty.openpty()[1]


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def clone3_arguments(flags):
    return struct.pack("<QQQQQ", flags, 0, 0, 0, SIGCHLD) + bytes(48)


def buffer():
    return libc.malloc(9 << 20)


# name, number on x86-64, number on arm64 (-1: not there), arguments
CALLS = (
    ("unshare-user", 272, 97, lambda: (NEWUSER,)),
    ("unshare-user-mount", 272, 97, lambda: (NEWUSER | NEWNS,)),
    ("unshare-mount", 272, 97, lambda: (NEWNS,)),
    ("unshare-net", 272, 97, lambda: (NEWNET,)),
    ("unshare-pid", 272, 97, lambda: (NEWPID,)),
    ("unshare-uts", 272, 97, lambda: (NEWUTS,)),
    ("unshare-ipc", 272, 97, lambda: (NEWIPC,)),
    ("unshare-cgroup", 272, 97, lambda: (NEWCGROUP,)),
    ("unshare-time", 272, 97, lambda: (NEWTIME,)),
    ("setns", 308, 268, lambda: (0, NEWUSER)),
    ("clone-user", 56, 220, lambda: (NEWUSER | SIGCHLD, 0, 0, 0, 0)),
    ("clone-net", 56, 220, lambda: (NEWNET | SIGCHLD, 0, 0, 0, 0)),
    ("clone3-user", 435, 435, lambda: (clone3_arguments(NEWUSER), 88)),
    ("mount", 165, 40, lambda: (b"none", b"/tmp", b"tmpfs", 0, 0)),
    ("umount2", 166, 39, lambda: (b"/proc/sys", 2)),
    ("pivot_root", 155, 41, lambda: (b"/", b"/")),
    ("chroot", 161, 51, lambda: (b"/",)),
    ("fsopen", 430, 430, lambda: (b"tmpfs", 0)),
    ("open_tree", 428, 428, lambda: (-100, b"/", 1)),
    ("move_mount", 429, 429, lambda: (-1, b"/", -1, b"/", 0)),
    ("mount_setattr", 442, 442, lambda: (-100, b"/", 0, ZEROS, 32)),
    ("fspick", 433, 433, lambda: (-100, b"/", 0)),
    ("keyctl", 250, 219, lambda: (0, -3, 0)),
    ("add_key", 248, 217, lambda: (b"user", b"probe", b"x", 1, -3)),
    ("request_key", 249, 218, lambda: (b"user", b"probe", 0, 0)),
    ("bpf-program", 321, 280, lambda: (5, ZEROS, 48)),
    ("bpf-map", 321, 280, lambda: (struct.pack("<5I", 2, 4, 4, 1, 0) + bytes(44), 64)),
    ("perf_event_open", 298, 241, lambda: (ZEROS, 0, -1, -1, 0)),
    ("userfaultfd", 323, 282, lambda: (0,)),
    ("userfaultfd-user", 323, 282, lambda: (1,)),
    ("io_uring_setup", 425, 425, lambda: (4, bytes(120))),
    ("io_uring_enter", 426, 426, lambda: (-1, 0, 0, 0, 0, 0)),
    ("io_uring_register", 427, 427, lambda: (-1, 0, 0, 0)),
    ("ptrace", 101, 117, lambda: (0, 0, 0, 0)),
    ("process_vm_readv", 310, 270, lambda: (PARENT, ZEROS, 0, ZEROS, 0, 0)),
    ("process_vm_writev", 311, 271, lambda: (PARENT, ZEROS, 0, ZEROS, 0, 0)),
    ("process_madvise", 440, 440, lambda: (-1, ZEROS, 0, 0, 0)),
    ("kcmp", 312, 272, lambda: (PID, PID, 0, 0, 0)),
    ("pidfd_getfd", 438, 438, lambda: (-1, 0, 0)),
    ("open_by_handle_at", 304, 265, lambda: (3, ZEROS, 0)),
    ("name_to_handle_at", 303, 264, lambda: (-100, b"/", struct.pack("<II", 128, 0) + bytes(128), bytes(4), 0)),
    ("fanotify_init", 300, 262, lambda: (0, 0)),
    ("init_module", 175, 105, lambda: (ZEROS, 0, b"/")),
    ("finit_module", 313, 273, lambda: (-1, b"/", 0)),
    ("delete_module", 176, 106, lambda: (b"no-such-module", 0)),
    ("kexec_load", 246, 104, lambda: (0, 0, 0, 0)),
    ("kexec_file_load", 320, 294, lambda: (-1, -1, 0, 0, 0)),
    ("swapon", 167, 224, lambda: (b"/", 0)),
    ("swapoff", 168, 225, lambda: (b"/",)),
    ("acct", 163, 89, lambda: (b"/",)),
    ("syslog", 103, 116, lambda: (3, ZEROS, 4000)),
    ("settimeofday", 164, 170, lambda: (0, bytes(8))),
    ("sethostname", 170, 161, lambda: (b"sandbox", 7)),
    ("setdomainname", 171, 162, lambda: (b"(none)", 6)),
    ("iopl", 172, -1, lambda: (3,)),
    ("ioperm", 173, -1, lambda: (0, 1, 1)),
    ("quotactl", 179, 60, lambda: (0x80000400, 0, 0, ZEROS)),
    ("lookup_dcookie", 212, 18, lambda: (0, ZEROS, 10)),
    ("personality-no-random", 135, 92, lambda: (0x0040000,)),
    ("personality-read-exec", 135, 92, lambda: (0x0400000,)),
    ("modify_ldt", 154, -1, lambda: (0, ZEROS, 8)),
    ("vhangup", 153, 58, lambda: ()),
    ("get_mempolicy", 239, 236, lambda: (0, 0, 0, 0, 0)),
    ("set_mempolicy", 238, 237, lambda: (0, 0, 0)),
    ("mbind", 237, 235, lambda: (0, 0, 0, 0, 0, 0)),
    ("move_pages", 279, 239, lambda: (0, 0, 0, 0, 0, 0)),
    ("migrate_pages", 256, 238, lambda: (0, 0, 0, 0)),
    ("uselib", 134, -1, lambda: (b"/",)),
    ("ustat", 136, -1, lambda: (0, ZEROS)),
    ("sysfs", 139, -1, lambda: (3,)),
    ("memfd_secret", 447, 447, lambda: (0,)),
    ("prlimit-other", 302, 261, lambda: (PARENT, 7, 0, bytes(16))),
    ("setpriority-other", 141, 140, lambda: (0, PARENT, 19)),
    ("setpriority-user", 141, 140, lambda: (2, 0, 19)),
    ("sched-other", 144, 119, lambda: (PARENT, 3, bytes(4))),
    ("sched-real-time", 144, 119, lambda: (0, 1, struct.pack("<i", 1))),
    ("ioprio-other", 251, 30, lambda: (1, PARENT, 3 << 13)),
    ("ioprio-real-time", 251, 30, lambda: (1, 0, 1 << 13)),
    ("mknod-char", 259, 33, lambda: (-100, b"/tmp/device", 0o20666, 0x103)),
    ("mknod-block", 259, 33, lambda: (-100, b"/tmp/device", 0o60666, 0xFE00)),
    ("setuid-0", 105, 146, lambda: (0,)),
    ("setgid-0", 106, 144, lambda: (0,)),
    ("setgroups", 116, 159, lambda: (1, bytes(4))),
    ("mlock-much", 149, 228, lambda: (buffer(), 8 << 20)),
    ("ioctl-tiocsti", 16, 29, lambda: (TERMINAL, 0x5412, b"x")),
    ("ioctl-tioclinux", 16, 29, lambda: (TERMINAL, 0x541C, b"\x02")),
    ("ioctl-tiocsetd", 16, 29, lambda: (TERMINAL, 0x5423, bytes(4))),
    ("fcntl-setlease", 72, 25, lambda: (os.open("/tmp/leased", os.O_RDWR | os.O_CREAT), 1024, 1)),
    ("newest", 1000, 1000, lambda: ()),
)  # fmt: skip


def attempt(number, arguments):
    """What the call returned and its errno, or how its process died."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        own = os.getpid()
        made = []
        for value in arguments():
            made.append(
                ctypes.create_string_buffer(value) if isinstance(value, bytes) else ctypes.c_long(value)
            )
        ctypes.set_errno(0)
        got = libc.syscall(ctypes.c_long(number), *made)
        if os.getpid() != own:
            os._exit(0)  # the call made this process
        os.write(write, b"%d %d" % (got, ctypes.get_errno()))
        os._exit(0)
    os.close(write)
    said = os.read(read, 64).split()
    os.close(read)
    status = os.waitpid(pid, 0)[1]
    return (int(said[0]), errno.errorcode.get(int(said[1]), said[1])) if said else (-1, "died of %d" % status)


for name, x86, arm, arguments in CALLS:
    number = x86 if X86 else arm
    if number < 0:
        print("CHECK", name, "INFO", "no such call on this machine", flush=True)
        continue
    got, said = attempt(number, arguments)
    check(name, got < 0, "%d %s" % (got, said))
