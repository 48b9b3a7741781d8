"""Takes all inotify instances that its user may have. With `take` it keeps them until it is killed; without, it
needs one, as any file watcher does."""

import ctypes
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


if sys.argv[1:] == ["take"]:
    taken = 0
    while taken < 1000 and libc.inotify_init1(0) >= 0:
        taken += 1
    check("took-all", 0 < taken < 1000, taken)
    time.sleep(60)
else:
    check("one-watcher", libc.inotify_init1(0) >= 0, ctypes.get_errno())
