"""Memory that is no process's own: memfd, System V segments (which outlive their maker), message queues."""

import ctypes
import errno
import os

LIMIT = int(os.environ["LIMIT_MEMORY_MIB"])
PIECE = 4 << 20
IPC_RMID = 0

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmget.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_int)


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def name_of(number):
    return errno.errorcode.get(number, number)


def memfd():
    fd = os.memfd_create("hog")
    try:
        for written in range(0, 2 * LIMIT):
            os.write(fd, b"\x55" * (1 << 20))
        return 2 * LIMIT, "no limit"
    except OSError as error:
        return written, name_of(error.errno)
    finally:
        os.close(fd)


def in_child(work):
    """What `work` returns in a child of its own; None when the kernel killed it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, repr(work()).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 4096)
    os.waitpid(pid, 0)
    os.close(read)
    return eval(said) if said else None


found = in_child(memfd)
check("memfd", found is None or found[1] == "EFBIG", found)

# Only reserved, not touched: a segment that nobody has to keep alive and that no process's end gives back.
segments, said = [], "no limit"
while len(segments) * PIECE < LIMIT << 20:
    segment = libc.shmget(0, PIECE, 0o1600)
    if segment < 0:
        said = name_of(ctypes.get_errno())
        break
    segments.append(segment)
check("system-v", said in ("ENOSPC", "EPERM", "ENOSYS"), "%d MiB, then %s" % (len(segments) * 4, said))
for segment in segments:
    libc.shmctl(segment, IPC_RMID, None)

try:
    queue = ctypes.CDLL("librt.so.1", use_errno=True).mq_open(b"/hog", os.O_CREAT | os.O_RDWR, 0o600, None)
    said = "opened" if queue >= 0 else name_of(ctypes.get_errno())
except OSError as error:
    said = str(error)
check("message-queue", said != "opened", said)
