"""Many processes that together want more memory than there is. Children are the victims, and the session lives."""

import os
import time

LIMIT = int(os.environ["LIMIT_MEMORY_MIB"])
HOGS = 12


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def lower(value):
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(value))
        return True
    except OSError:
        return False


before = int(open("/proc/self/oom_score_adj").read())
check("victim-first", before >= 500, before)
lower(-1000), lower(0)
least, init = (int(open("/proc/%s/oom_score_adj" % pid).read()) for pid in ("self", "1"))
check("stays-victim", least >= init, "%d, process 1 has %d" % (least, init))
children = []
for _ in range(HOGS):
    pid = os.fork()
    if pid == 0:
        lower(1000)
        kept = []
        try:
            for _ in range(LIMIT // 8):
                kept.append(b"\x55" * (1 << 20))
        except MemoryError:
            os._exit(7)
        time.sleep(1.5)
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
check("hogs-bounded", any(code in (-9, 7) for code in codes), codes)
check("parent-lives", True)
