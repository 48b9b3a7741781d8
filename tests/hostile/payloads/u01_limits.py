"""Limits of each process: what they are, that they cannot be raised, and that they hold."""

import os
import resource

FILES = int(os.environ["LIMIT_FILES"])
LIMIT = int(os.environ["LIMIT_MEMORY_MIB"])
MOST = {
    "NOFILE": FILES,
    "CORE": 0,
    "FSIZE": LIMIT << 20,
    "MEMLOCK": 64 << 10,
    "MSGQUEUE": 0,
    "SIGPENDING": 1024,
    "RTPRIO": 0,
    "NICE": 0,
}


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


for name, most in MOST.items():
    which = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(which)
    held = all(value != resource.RLIM_INFINITY and value <= most for value in (soft, hard))
    check("rlimit:" + name, held, (soft, hard))
    try:
        resource.setrlimit(which, (most + 1, most + 1))
        check("raise:" + name, False, resource.getrlimit(which))
    except (ValueError, OSError) as error:
        check("raise:" + name, True, error)
opened = []
try:
    while len(opened) < 2 * FILES:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for fd in opened:
    os.close(fd)
check("descriptors", len(opened) <= FILES, len(opened))
try:
    os.nice(-5)
    check("nice", False)
except OSError as error:
    check("nice", True, error.strerror)
