"""Leaves a grandchild that keeps stdout and stderr open: who waits for the end of the pipes waits for it."""

import subprocess

subprocess.Popen(["setsid", "sleep", "60"])
print("CHECK leader-done OK", flush=True)
