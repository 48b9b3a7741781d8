"""Crashes, after raising what may be raised: no core file appears anywhere that can be written."""

import os
import resource
import signal

os.chdir("/workspace")


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGSEGV)
    signal.pause()
status = os.waitpid(pid, 0)[1]
check("crash", os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV, status)
check("no-dump", not os.WCOREDUMP(status), status)
left = [name for name in os.listdir(".") if name.startswith("core")]
check("no-core-file", not left, left)
