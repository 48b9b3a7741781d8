"""Leaves in `out` everything that a collector could fall over. The host collects it; see the test."""

import os
import socket

os.chdir("/workspace/out")


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def write(path, content=b"content"):
    with open(path, "wb") as file:
        file.write(content)


write("plain.txt")
for number, target in enumerate(
    ("/etc/passwd", "/etc/shadow", "/proc/1/environ", "/proc/self/mem", "/dev/zero", "/dev/tty", "..", "../..",
     "/", "plain.txt", "loop", "missing", "/workspace/out", "a" * 255)
):  # fmt: skip
    os.symlink(target, "link-%d" % number)
os.symlink("loop", "loop")
os.symlink("/etc", "folder-link")
os.link("plain.txt", "hard-link.txt")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
write("unreadable")
os.chmod("unreadable", 0)
os.mkdir("closed")
write("closed/inside")
os.chmod("closed", 0)
for name in (b"\xff\xfe", b"-rf", b"new\nline", b"\x1b[31mred", b"back\\slash", b"tab\tname", b"sp ace", b"\xe2\x80\xae",
             b"...", b"CON", b"a" * 255, b"\xc3\x28", b"%2e%2e", b"~", b"$HOME", b"`id`", b"*"):  # fmt: skip
    write(name)
write("setuid")
os.chmod("setuid", 0o6755)
with open("sparse", "wb") as file:
    file.truncate(32 << 20)
folder = os.open(".", os.O_RDONLY)
for _ in range(1500):
    os.mkdir("d", dir_fd=folder)
    inner = os.open("d", os.O_RDONLY, dir_fd=folder)
    os.close(folder)
    folder = inner
os.close(os.open("deep.txt", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
check("made", True, len(os.listdir(".")))
