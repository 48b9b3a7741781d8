"""Fills every place that can be written, all at once. Space runs out before memory does, and programs still start."""

import errno
import os
import subprocess

LIMIT = int(os.environ["LIMIT_MEMORY_MIB"])
PLACES = ("/workspace", "/skills", "/tmp", "/dev/shm", "/dev", "/run", "/var/tmp", "/run/lock", "/etc", "/")
BLOCK = b"\xaa" * (1 << 20)


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def fill(place):
    """MiB written and why no more, at most most of the memory."""
    written = 0
    for number in range(1000):
        path = "%s/fill-%d" % (place, number)
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except OSError as error:
            return written, errno.errorcode[error.errno]
        files.append(path)
        try:
            while written < LIMIT * 3 // 4:
                os.write(file, BLOCK)
                written += 1
            return written, "no limit"
        except OSError as error:
            if error.errno != errno.EFBIG:  # a limit for each file: go on with the next one
                return written, errno.errorcode[error.errno]
        finally:
            os.close(file)
    return written, "no limit"


files = []
together = 0
for place in PLACES:
    written, said = fill(place)
    together += written
    check("fill:" + place, said != "no limit", "%d MiB, then %s" % (written, said))
check("fill-together", together <= LIMIT // 2, "%d MiB" % together)
said = subprocess.run(["bash", "-c", "echo alive"], capture_output=True, text=True).stdout
check("programs-start", said == "alive\n", repr(said))
for path in files:
    os.unlink(path)
