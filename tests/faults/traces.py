"""What this process has on the machine: everything that a fault might leave behind.

Only its own things are counted, so that others may use the machine meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from executor.places import data_dir
from executor.runtimes.base import Sandbox
from executor.runtimes.cgroups import places
from executor.runtimes.container import LABEL_OWNER, ContainerSandbox
from executor.runtimes.local import LocalSandbox
from executor.runtimes.owner import is_dead, owner_label
from tests import forked


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Whether a condition becomes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def containers(client: Any, owner: str | None = None) -> list[str]:
    """Names and states of the containers of an owner, this process if not given."""
    label = f"{LABEL_OWNER}={owner or owner_label()}"
    found = client.api.containers(all=True, filters={"label": label})
    return sorted(f"{entry['Names']} {entry['State']}" for entry in found)


def cgroups(owner: str | None = None) -> list[str]:
    """Control groups of an owner's local sandboxes."""
    ending = "@" + (owner or owner_label())
    return sorted(
        str(path)
        for place in places()
        if place.is_dir()
        for path in place.iterdir()
        if path.name.endswith(ending)
    )


def members(owner: str) -> list[str]:
    """Processes in the control groups of an owner."""
    found = []
    for group in cgroups(owner):
        with contextlib.suppress(OSError):
            found += Path(group, "cgroup.procs").read_text().split()
    return found


def cgroups_of_the_dead() -> list[str]:
    """Control groups of owners that are gone, which the reaper has not got to yet."""
    found = []
    for place in filter(Path.is_dir, places()):
        found += [str(path) for path in place.iterdir() if is_dead(path.name.partition("@")[2])]
    return sorted(found)


def children() -> list[str]:
    """Processes that this one started and that are there, zombies too; not what tests keep for later ones:
    engines, the tracker of multiprocessing, and the command line that is forked.
    """
    found = []
    kept = {getattr(resource_tracker._resource_tracker, "_pid", None), *forked.pids}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{name}/comm").read_text().strip()
            if int(name) in kept or command in ("containerd", "dockerd"):
                continue
            if int(fields[1]) == os.getpid():
                found.append(f"{name} {command}")
    return sorted(found)


def sleepers(words: str) -> list[str]:
    """Processes of this machine that are `sleep WORDS`, in whatever sandbox."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if line[:2] == [b"sleep", words.encode()]:
                found.append(name)
    return found


def slots() -> list[str]:
    """Locked uid slots."""
    folder = str(data_dir() / "uids")
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith(folder):
                found.append(target)
    return sorted(found)


def mounts() -> list[str]:
    """Mounts of sandboxes that this process sees; there is never one."""
    places = (str(data_dir() / "mounts"), str(data_dir() / "rootfs"))
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if any(f" {place}" in line for place in places)]


def remains(client: Any = None) -> dict[str, list[str]]:
    """Everything of sandboxes that this process has; empty when it has nothing."""
    found = {"cgroups": cgroups(), "children": children(), "slots": slots(), "mounts": mounts()}
    if client is not None:
        found["containers"] = containers(client)
    return {kind: what for kind, what in found.items() if what}


def threads() -> int:
    """Threads of this process that sandboxes need."""
    return sum(not thread.name.startswith("executor-reaper") for thread in threading.enumerate())


def resident_kb() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])


def files() -> int:
    """Open descriptors of this process that something still holds."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def settled(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """`eventually` without holding up the loop."""
    return await asyncio.to_thread(eventually, condition, seconds)


def guest_pid(sandbox: Sandbox) -> int:
    """Process 1 of a sandbox, as this machine numbers it."""
    if isinstance(sandbox, ContainerSandbox):
        return int(sandbox._api.inspect_container(sandbox.name)["State"]["Pid"])
    assert isinstance(sandbox, LocalSandbox) and sandbox.process is not None
    waiting = [sandbox.process.pid]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            numbers = status.partition("\nNSpid:\t")[2].partition("\n")[0].split()
            if len(numbers) > 1 and numbers[-1] == "1":
                return pid
            waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    raise LookupError("the sandbox has no process 1")
