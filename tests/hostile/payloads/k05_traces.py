"""What of the host comes in with process 1 and with every script: variables, arguments, descriptors."""

import os

# Words that stand only on the host: paths, variables, addresses.
WORDS = os.environ["HOST_WORDS"].split("\n")


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def read(path):
    try:
        return open(path, "rb").read().decode("utf-8", "replace")
    except OSError:
        return ""


for name in ("environ", "cmdline"):
    text = read("/proc/1/" + name)
    found = [word for word in WORDS if word in text]
    check("init-" + name, not found, found)
known = set(WORDS) & set(os.environ) - {"HOST_WORDS"}
check("variables", not known, sorted(known))
own = {}
for name in os.listdir("/proc/self/fd"):
    try:
        own[int(name)] = os.readlink("/proc/self/fd/" + name)
    except OSError:
        pass  # the one that lists
check("descriptors", set(own) == {0, 1, 2}, own)
kinds = {target.partition(":")[0] for target in own.values()}
check("stdio", kinds <= {"pipe", "/dev/null", "/null"}, own)
paths = {line.rstrip("\n").split(":", 2)[2] for line in open("/proc/self/cgroup")}
check("cgroup-paths", paths <= {"/"}, sorted(paths))
others = [name for name in filter(str.isdigit, os.listdir("/proc")) if int(name) not in (1, os.getpid())]
check("processes", len(others) <= 1, others)
