"""What can be written at all, what has a set-id bit, and how it is mounted."""

import os
import stat

MAY = ("/workspace", "/skills", "/tmp", "/dev/shm")
# Files of the kernel that every process may open for writing and that hold nothing.
DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"}


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def makes(folder):
    """Whether a file can be made there: file systems of the kernel's own say that they are writable."""
    try:
        os.close(os.open(folder + "/.probe", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    os.unlink(folder + "/.probe")
    return True


writable, setid, special = [], [], []
for folder, below, files in os.walk("/"):
    below[:] = [name for name in below if os.path.join(folder, name) not in (*MAY, "/proc", "/sys")]
    if os.access(folder, os.W_OK) and makes(folder):
        writable.append(folder)
    for name in files:
        path = os.path.join(folder, name)
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & 0o6000:
            setid.append(path)
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            if not (folder in ("/dev", "/dev/pts") and {name, os.path.basename(folder)} & DEVICES):
                special.append(path)
        elif not stat.S_ISLNK(mode) and os.access(path, os.W_OK):
            writable.append(path)
check("writable-paths", not writable, writable[:20])
check("set-id-files", not setid, setid[:20])
check("devices", not special, special[:20])

# File systems of the kernel's own, and of memory: everything else lies on a disk of the host.
OWN = {"tmpfs", "devtmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2"}
loose, unexpected, disks = [], [], []
for line in open("/proc/self/mountinfo"):
    before, _, after = line.partition(" - ")
    where, options, kind = before.split()[4], before.split()[5].split(","), after.split()[0]
    if where in MAY and not {"nosuid", "nodev", "rw"} <= set(options):
        loose.append((where, options))
    if where in MAY and kind != "tmpfs":
        unexpected.append((where, kind))
    if where == "/" and "ro" not in options:
        unexpected.append((where, "rw"))
    if kind not in OWN and "ro" not in options:
        disks.append((where, kind))
    if where.startswith(MAY) and where not in MAY:
        unexpected.append((where, kind))
check("mount-options", not loose, loose)
check("mounts", not unexpected, unexpected)
check("disks-read-only", not disks, disks)
try:
    with open("/dev/shm/program", "w") as file:
        file.write("#!/bin/sh\n")
    os.chmod("/dev/shm/program", 0o755)
    ran = os.spawnv(os.P_WAIT, "/dev/shm/program", ["program"])
finally:
    os.unlink("/dev/shm/program")
check("shm-not-executable", ran != 0, ran)
for place in (
    "/etc",
    "/usr",
    "/usr/bin",
    "/dev",
    "/run",
    "/var/tmp",
    "/home",
    "/root",
    "/opt",
    "/proc",
    "/sys",
):
    try:
        os.close(os.open(place + "/.probe", os.O_CREAT | os.O_WRONLY, 0o600))
        check("create:" + place, False)
        os.unlink(place + "/.probe")
    except OSError as error:
        check("create:" + place, True, error.strerror)
