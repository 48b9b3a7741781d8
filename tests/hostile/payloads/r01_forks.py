"""Forks until the kernel says no: the session's own limit must say it, and forking works again afterwards."""

import errno
import os
import signal

LIMIT = int(os.environ["LIMIT_PIDS"])


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


children = []
said = "nothing"
try:
    while len(children) < 4 * LIMIT:
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        children.append(pid)
except OSError as error:
    said = errno.errorcode[error.errno]
# Another limit may say EAGAIN too, but later: the count tells which one spoke.
check("forks", said == "EAGAIN" and len(children) < LIMIT, "%d forks, then %s" % (len(children), said))
for pid in children:
    os.kill(pid, signal.SIGKILL)
for pid in children:
    os.waitpid(pid, 0)
pid = os.fork()
if pid == 0:
    os._exit(3)
check("forks-again", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3)
