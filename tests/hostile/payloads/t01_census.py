"""What is alive besides process 1, this process and who started it. Run after `t01_escape`, as a run of its own."""

import os

own = {1, os.getpid(), os.getppid()}
found = []
for name in filter(str.isdigit, os.listdir("/proc")):
    if int(name) not in own:
        try:
            found.append((int(name), open("/proc/%s/comm" % name).read().strip()))
        except OSError:
            pass
print("CHECK survivors", "BAD" if found else "OK", found, flush=True)
