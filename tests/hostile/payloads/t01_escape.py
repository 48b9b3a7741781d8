"""Leaves processes behind in every way that is known to outlive a killed process group."""

import ctypes
import os
import signal
import time

MARK = "survivor-mark"
SLEEP = ["python3", "-c", "import time; time.sleep(60)", MARK]
PR_SET_CHILD_SUBREAPER, PR_SET_NAME = 36, 15
libc = ctypes.CDLL(None)


def run(environment=None):
    os.execvpe("python3", SLEEP, os.environ if environment is None else environment)


def setsid():
    os.setsid()
    run()


def double_fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    run()


def deaf():
    """Ignored signals stay ignored over exec."""
    for number in range(1, 65):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
    os.setsid()
    run()


def stopped():
    pid = os.fork()
    if pid:
        time.sleep(0.2)
        os.kill(pid, signal.SIGSTOP)
        os._exit(0)
    run()


def silent():
    os.closerange(0, 64)
    os.setsid()
    run()


def nameless():
    """No environment, no session of the run: nothing says whose it is."""
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setsid()
    run({"PATH": os.environ["PATH"]})


def renamed():
    libc.prctl(PR_SET_NAME, b"kworker/0:0", 0, 0, 0)
    os.setsid()
    while True:
        time.sleep(60)


def chain():
    """Always a new process, the one before it gone."""
    os.setsid()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        time.sleep(0.002)
    os._exit(0)


def subreaper():
    """Orphans come to it, not to process 1."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            run()
        os._exit(0)
    os.setsid()
    run()


for escape in (setsid, double_fork, deaf, stopped, silent, nameless, renamed, chain, subreaper):
    if os.fork() == 0:
        escape()
time.sleep(0.5)
print("CHECK escaped OK", flush=True)
