"""Tries to speak for process 1, to read it and to change it."""

import os


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def refused(path, flags):
    try:
        fd = os.open(path, flags | os.O_NONBLOCK)
    except OSError as error:
        return True, error.strerror
    os.close(fd)
    return False, "opened"


for number in (0, 1, 2):
    check("write:/proc/1/fd/%d" % number, *refused("/proc/1/fd/%d" % number, os.O_WRONLY))
    task = "/proc/1/task/1/fd/%d" % number
    check("write:/proc/1/task/1/fd/%d" % number, *refused(task, os.O_WRONLY))
for name in ("mem", "clear_refs", "oom_score_adj", "attr/current"):
    check("write:/proc/1/" + name, *refused("/proc/1/" + name, os.O_WRONLY))
try:  # opens for everybody; what counts is the writing
    with open("/proc/1/timerslack_ns", "w") as file:
        file.write("50000")
    check("write:/proc/1/timerslack_ns", False)
except OSError as error:
    check("write:/proc/1/timerslack_ns", True, error.strerror)
for name in ("mem", "environ", "maps", "auxv", "stack", "syscall", "personality"):
    ok, said = refused("/proc/1/" + name, os.O_RDONLY)
    if not ok and name in ("environ", "maps", "auxv", "stack", "syscall", "personality"):
        try:  # some open for everybody and refuse, or say nothing, at the read
            ok = not open("/proc/1/" + name, "rb").read(64).strip(b"\0\n 0")
        except OSError as error:
            ok, said = True, error.strerror
    check("read:/proc/1/" + name, ok, said)
for name in ("root", "cwd", "exe", "ns/net"):
    try:
        check("link:/proc/1/" + name, False, os.readlink("/proc/1/" + name))
    except OSError as error:
        check("link:/proc/1/" + name, True, error.strerror)
for name in ("fd", "map_files"):
    try:
        check("list:/proc/1/" + name, not os.listdir("/proc/1/" + name))
    except OSError as error:
        check("list:/proc/1/" + name, True, error.strerror)
