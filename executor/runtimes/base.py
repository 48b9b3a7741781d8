"""The contract of a runtime: start a sandbox with the guest as process 1, hand back one duplex byte stream,
and be able to kill it. Nothing else: staging, running and collecting are written once, above the stream.

A new runtime is one file with a `Runtime` and a `Sandbox`, and passes `tests/conformance` unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

# The first thing that runs in a sandbox whose image has no guest baked in: read its source and become it.
BOOTSTRAP = """\
import os
def read(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data
exec(compile(read(int.from_bytes(read(4), "big")), "<guest>", "exec"), {"__name__": "__main__"})
"""
PYTHON_FLAGS = ("-I", "-S", "-B")  # no environment, no site packages, no files written
BAKED_GUEST = "/usr/lib/executor/guest.pyc"

# Namespaces that must be the sandbox's own. (The user namespace is the host's under a rootful engine.)
OWN_NAMESPACES = ("ipc", "mnt", "net", "pid", "uts")
# Of which file systems and mount points a sandbox may have writable ones; a host compares (see attestation).
WRITABLE = ("/workspace", "/skills", "/tmp", "/dev/shm")
# System V memory (pages), message queues and semaphores of a sandbox, all together: they would outlive the
# process that made them, and fill its memory for good.
IPC = {"shmall": "2048", "msgmni": "128", "sem": "250 32000 32 128"}
LAYERS = "/opt/layers"  # where a sandbox sees the layers of dependencies, read-only


@dataclass(frozen=True)
class SandboxSpec:
    """What to start. Sizes in bytes."""

    session_id: str
    image: str
    """Image reference (container) or root filesystem (local); '' means the runtime's default."""
    memory: int
    cpus: float
    pids: int
    open_files: int
    disk: int
    inodes: int
    tmp: int
    shm: int
    skills: tuple[str, ...] = ()
    """Skills that one of the pool has staged; for any other it means nothing."""
    layers: str = ""
    """Folder of the host with layers of dependencies, to be seen read-only at `LAYERS`; '' for none."""
    owner: str = ""
    """Who to ask whether this sandbox is still wanted: host, boot, process and start time of the owner."""

    @property
    def skills_disk(self) -> int:
        """Size of `/skills`: half of the workspace's."""
        return max(self.disk // 2, 1 << 20)

    def rlimits(self) -> dict[str, int]:
        """rlimits that process 1 sets on itself; scripts inherit them."""
        return {
            "core": 0,
            "fsize": max(self.disk, self.tmp, self.shm),
            "nofile": self.open_files,
            "memlock": 64 << 10,
            "msgqueue": 0,
            "sigpending": 1024,
            "rtprio": 0,
            "nice": 0,
        }


@dataclass
class Facts:
    """What the host knows of a started sandbox and the guest has to agree with."""

    uid: int
    gid: int
    namespaces: dict[str, str] = field(default_factory=dict)
    """The host's own namespaces: none of these may appear inside. Empty when they cannot be known."""
    path: str = ""
    """PATH of the image's own, '' for the usual one."""
    layers: bool = False
    """Whether it sees the layers that were ordered."""
    rlimits: dict[str, int] = field(default_factory=dict)
    """rlimits that stand in for limits this machine could not set on the whole sandbox."""
    warnings: list[str] = field(default_factory=list)
    """What this machine could not enforce, for `ExecResult.warnings`."""


def namespaces_of_host() -> dict[str, str]:
    """This process's namespaces; a sandbox on this machine may share none of them."""
    found = {}
    for name in OWN_NAMESPACES:
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/ns/{name}")
    return found


class Stream(asyncio.Protocol):
    """One duplex byte stream over a connected socket. Owns nothing above bytes.

    `on_bytes` is called with every piece that comes in and must not block; `on_end` once, when no more will.
    """

    def __init__(self) -> None:
        self.transport: Any = None
        self.writable = True
        self.on_bytes: Callable[[bytes], None] = lambda _data: None
        self.on_end: Callable[[], None] = lambda: None
        self.on_writable: Callable[[], None] = lambda: None
        self._early: list[bytes] = []
        self._started = False
        self._ended = False

    def start(
        self,
        on_bytes: Callable[[bytes], None],
        on_end: Callable[[], None],
        on_writable: Callable[[], None],
    ) -> None:
        """Begin to deliver. What came earlier is delivered now."""
        self.on_bytes, self.on_end, self.on_writable = on_bytes, on_end, on_writable
        self._started = True
        for data in self._early:
            on_bytes(data)
        self._early.clear()
        if self._ended:
            on_end()

    @property
    def ended(self) -> bool:
        """No more will come: the other end is gone."""
        return self._ended

    def write(self, buffers: Iterable[Any]) -> None:
        """Queue buffers. Stop calling it while `writable` is False."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(buffers)

    def close(self) -> None:
        """Close at once, dropping what was not written."""
        if self.transport is not None:
            self.transport.abort()

    def deliver(self, data: bytes) -> None:
        if self._started:
            self.on_bytes(data)
        else:
            self._early.append(data)

    # -- asyncio's names --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        # asyncio moves what a socket did not take to the front after every write: keep that short.
        transport.set_write_buffer_limits(high=64 << 10)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.deliver(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        if self._started:
            self.on_end()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.on_writable()


class Sandbox(ABC):
    """One started sandbox."""

    runtime: str
    stream: Stream
    facts: Facts
    sends_guest: bool = True
    """The guest's source has to be sent first; False when the image has it baked in."""
    spare: bool = False
    """It was started ahead; when it turns out to be gone, another one is as good."""
    ahead: Any = None
    """What was done in it before a session got it: `executor.session.ahead.Ahead`, or nothing."""

    @abstractmethod
    async def kill(self) -> None:
        """End it and remove what it left, in bounded time. Safe to call twice, and after a failed start."""

    @abstractmethod
    async def post_mortem(self) -> tuple[str, str]:
        """Why it ended: (`oom` | `exited` | `unknown`, a sentence for a person). After its stream ended."""


class Runtime(ABC):
    """A way to start sandboxes."""

    name: str

    @abstractmethod
    async def check(self) -> None:
        """Raise the RuntimeUnavailableError that says what is missing, or return."""

    @abstractmethod
    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox. SandboxStartError or RuntimeUnavailableError; nothing is left behind then."""

    def reap(self) -> list[str]:
        """Remove what dead owners of this runtime left on this machine, and nothing else. What was removed.

        It blocks and is called from a thread of its own, at start and again and again.
        """
        return []

    async def close(self) -> None:  # noqa: B027  a runtime may have nothing to close
        """Release what the runtime itself holds. Sandboxes are killed by who started them."""
