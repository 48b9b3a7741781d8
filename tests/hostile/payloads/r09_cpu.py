"""Spins on more processors than were ordered: together they get what was ordered and no more."""

import os
import time

CPUS = float(os.environ["LIMIT_CPUS"])
SECONDS = 1.5


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


began = time.monotonic()
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        while time.monotonic() - began < SECONDS:
            pass
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
used = os.times()
rate = (used.children_user + used.children_system) / (time.monotonic() - began)
check("cpu", rate <= CPUS * 1.3 + 0.1, "%.2f processors, %g ordered" % (rate, CPUS))
