"""Fills as many pipes as it gets: kernel memory that no process shows. Descriptors run out first."""

import errno
import fcntl
import os

FILES = int(os.environ["LIMIT_FILES"])
LIMIT = int(os.environ["LIMIT_MEMORY_MIB"])
F_SETPIPE_SZ = 1031


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


held, filled, said = [], 0, "no limit"
try:
    while len(held) < 2 * FILES:
        read, write = os.pipe()
        held += [read, write]
        try:
            fcntl.fcntl(write, F_SETPIPE_SZ, 1 << 20)
        except OSError:
            pass  # the user's share of large pipes is used up
        os.set_blocking(write, False)
        try:
            while True:
                filled += os.write(write, b"\x55" * 65536)
        except BlockingIOError:
            pass
except OSError as error:
    said = errno.errorcode[error.errno]
for fd in held:
    os.close(fd)
check("pipes", said == "EMFILE" and len(held) <= FILES, "%d descriptors, then %s" % (len(held), said))
check("pipe-memory", filled >> 20 <= LIMIT // 2, "%d MiB" % (filled >> 20))
