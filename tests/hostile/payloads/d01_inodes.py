"""Makes empty files until it may not: they take no space, but memory of the kernel."""

import errno
import os

LIMIT = int(os.environ["LIMIT_INODES"])


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


for place in ("/workspace", "/skills", "/tmp", "/dev/shm"):
    made, said = 0, "no limit"
    try:
        while made < 2 * LIMIT:
            os.close(os.open("%s/i%d" % (place, made), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            made += 1
    except OSError as error:
        said = errno.errorcode[error.errno]
    for number in range(made):
        os.unlink("%s/i%d" % (place, number))
    check("inodes:" + place, said == "ENOSPC" and made <= LIMIT, "%d files, then %s" % (made, said))
