"""Makes many orphans that end at once: process 1 collects them, or their number eats the limit."""

import os
import time

LIMIT = int(os.environ["LIMIT_PIDS"])


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


made = 0
try:
    for made in range(4 * LIMIT):
        pid = os.fork()
        if pid == 0:
            try:
                if os.fork() == 0:
                    os._exit(0)
            except OSError:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0, "the orphan could not be made"
    check("orphans", True, made)
except (OSError, AssertionError) as error:
    check("orphans", False, "%d, then %s" % (made, error))
time.sleep(0.3)
zombies = []
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        if open("/proc/%s/stat" % name).read().rpartition(")")[2].split()[0] == "Z":
            zombies.append(name)
    except OSError:
        pass
check("zombies", len(zombies) < 4, len(zombies))
