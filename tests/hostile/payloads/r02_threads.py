"""Starts threads until the kernel says no: they count like processes."""

import os
import threading

LIMIT = int(os.environ["LIMIT_PIDS"])


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


threading.stack_size(64 * 1024)
gate = threading.Event()
started = []
said = "nothing"
try:
    while len(started) < 4 * LIMIT:
        thread = threading.Thread(target=gate.wait, daemon=True)
        thread.start()
        started.append(thread)
except RuntimeError as error:
    said = str(error)
check("threads", said != "nothing" and len(started) < LIMIT, "%d threads, then %s" % (len(started), said))
gate.set()
for thread in started:
    thread.join()
done = []
thread = threading.Thread(target=done.append, args=(1,))
thread.start()
thread.join()
check("threads-again", done == [1])
