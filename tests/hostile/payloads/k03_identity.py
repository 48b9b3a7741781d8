"""Who a script is to the kernel."""

import os


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    check(name, int(status[name], 16) == 0, status[name])
check("no-new-privileges", status["NoNewPrivs"] == "1", status["NoNewPrivs"])
check("seccomp", status["Seccomp"] == "2", status["Seccomp"])
own = status["Gid"].split()[0]
check("groups", set(status["Groups"].split()) <= {own, "65534"}, status["Groups"])
check("not-root", "0" not in status["Uid"].split() + status["Gid"].split(), status["Uid"])
for name in ("uid_map", "gid_map"):
    lines = [line.split() for line in open("/proc/self/" + name)]
    check(
        name,
        not any(inside == "0" and outside == "0" and int(size) < 1 << 31 for inside, outside, size in lines),
    )
for target in (0, 65534):
    try:
        os.setresuid(target, target, target)
        check("become:%d" % target, False, os.getresuid())
    except OSError as error:
        check("become:%d" % target, True, error.strerror)
for name, text in (("uid_map", "0 0 1"), ("gid_map", "0 0 1"), ("setgroups", "allow")):
    try:
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
        check("write:" + name, False, text)
    except OSError as error:
        check("write:" + name, True, error.strerror)
check("no-terminal", not any(os.isatty(fd) for fd in (0, 1, 2)))
check("host-name", os.uname().nodename == "sandbox", os.uname().nodename)
