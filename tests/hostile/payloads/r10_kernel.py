"""Memory that the kernel keeps for a script and that no limit on processes or files counts, and pools of which
the machine has one: lists of rights, attributes, messages, semaphores, socket buffers, huge pages, filters.
"""

import ctypes
import errno
import mmap
import os
import platform
import signal
import socket
import struct

LIMIT = int(os.environ["LIMIT_MEMORY_MIB"])
ROOM = LIMIT // 4  # MiB: twice what a sandbox gives to sockets, and more than it gives to the rest
X86 = platform.machine() == "x86_64"
IPC_RMID = 0

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
os.chdir("/workspace")


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def said():
    return errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno())


def in_child(work):
    """What `work` returns in a child of its own; None when the kernel killed it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, repr(work()).encode())
        os._exit(0)
    os.close(write)
    found = os.read(read, 4096)
    os.waitpid(pid, 0)
    os.close(read)
    return eval(found) if found else None


def attribute(name, value):
    with open("note", "w"):
        pass
    try:
        os.setxattr("note", name, value)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "set"


def rights(count):
    """An access control list with many entries, all of this user."""
    owner, user, group, mask, other = 1, 2, 4, 0x10, 0x20
    entries = [(owner, 7, 0xFFFFFFFF), *[(user, 7, os.getuid())] * count]
    entries += [(kind, 7, 0xFFFFFFFF) for kind in (group, mask, other)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


found = attribute("system.posix_acl_access", rights(8000))
check("lists", found == "ENOTSUP", found)
found = attribute("user.note", b"x" * 60000)
check("attributes", found == "ENOTSUP", found)

# Another process could leave these behind: nobody has to be there for them.
queues = []
full = False
while len(queues) * 16384 < 2 * ROOM << 20:
    queue = libc.msgget(0, 0o1600)
    if queue < 0:
        full = True
        break
    queues.append(queue)
found = said()
check("messages", full and len(queues) * 16384 < 8 << 20, "%d queues, then %s" % (len(queues), found))
for queue in queues:
    libc.msgctl(queue, IPC_RMID, None)

sets = []
full = False
while len(sets) < 64:
    one = libc.semget(0, 250, 0o1600)
    if one < 0:
        full = True
        break
    sets.append(one)
for one in sets:
    libc.semctl(one, 0, IPC_RMID)
big = libc.semget(0, 32000, 0o1600)
if big >= 0:
    libc.semctl(big, 0, IPC_RMID)
check("semaphores", big < 0, "%d sets, one of 32,000: %s" % (len(sets), said() if big < 0 else "made"))

# io_setup is 206 on x86-64 and 0 on arm64.
context = ctypes.c_ulong(0)
done = libc.syscall(206 if X86 else 0, 4, ctypes.byref(context))
found = said() if done < 0 else "made"
if done >= 0:
    libc.syscall(207 if X86 else 1, context)
check("pool-aio", found == "ENOSYS", found)

MAP_HUGETLB = 0x40000
try:
    mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB).close()
    found = "mapped"
except OSError as error:
    found = errno.errorcode[error.errno]  # without any on this machine ENOMEM
shared = "made" if libc.memfd_create(b"huge", 4) >= 0 else said()
check("huge-pages", found == shared == "EPERM", "%s %s" % (found, shared))


def own_filter():
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    allow = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000))
    program = Program(1, ctypes.addressof(allow))
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    ways = [libc.prctl(22, 2, ctypes.byref(program), 0, 0)]
    ways.append(libc.syscall(317 if X86 else 277, 1, 0, ctypes.byref(program)))
    return ways


found = in_child(own_filter)
check("own-filter", found == [-1, -1], found)


def flood():
    """Send to sockets of its own that nobody reads, until the kernel drops."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(240)]
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.setblocking(False)
    for one in held:
        one.bind(("127.0.0.1", 0))
        for _ in range(100):
            try:
                out.sendto(bytes(1400), one.getsockname())
            except OSError:
                break
    return held


floods = []
for _ in range(4):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        sockets = flood()
        os.write(write, b"x")
        signal.pause()
    os.close(write)
    os.read(read, 1)
    floods.append(pid)
with open("/proc/net/udp") as table:  # what waits at each socket of this network, in bytes of memory
    waiting = sum(int(line.split()[4].partition(":")[2], 16) for line in list(table)[1:]) >> 20
for pid in floods:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
check("socket-buffers", waiting < ROOM, "%s MiB" % waiting)
