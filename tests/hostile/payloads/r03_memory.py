"""A child touches twice the memory that there is. It is stopped at the limit; its parent lives."""

import os

LIMIT = int(os.environ["LIMIT_MEMORY_MIB"])


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(read)
    kept = []
    try:
        for _ in range(2 * LIMIT):
            kept.append(b"\x55" * (1 << 20))
            os.write(write, b".")
    except MemoryError:
        os._exit(7)
    os._exit(0)
os.close(write)
touched = 0
while piece := os.read(read, 4096):
    touched += len(piece)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
check("anonymous-memory", code in (-9, 7) and touched <= LIMIT, "%d MiB, then %d" % (touched, code))
check("parent-lives", True)
