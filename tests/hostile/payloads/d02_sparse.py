"""Files that are larger than everything: sparse ones of 1 TiB and 8 EiB, one reserved beyond the file system."""

import errno
import os
import signal

LIMIT = int(os.environ["LIMIT_MEMORY_MIB"])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def attempt(name, path, work):
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        work(fd)
        check(name, False, os.fstat(fd).st_size)
    except OSError as error:
        check(name, True, errno.errorcode[error.errno])
    finally:
        os.close(fd)
        os.unlink(path)


for place in ("/workspace", "/skills", "/tmp", "/dev/shm"):
    path = place + "/huge"
    attempt("sparse-1t:" + place, path, lambda fd: os.ftruncate(fd, 1 << 40))
    attempt("sparse-8e:" + place, path, lambda fd: os.ftruncate(fd, (1 << 63) - 4096))
    attempt("reserve:" + place, path, lambda fd: os.posix_fallocate(fd, 0, LIMIT << 20))
