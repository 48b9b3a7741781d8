"""The container runtime: one hardened container for a session, through the Docker Engine API.

The Engine is used to create, attach, start and kill, and never on the path of a run. The create body is
built by one function from tables and pinned by a test. Every API call has a timeout, runs off the event
loop, and every teardown closes the attached stream first: a stalled reader wedges the whole engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import docker
import docker.errors
import requests
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from executor.errors import (
    ExecutorError,
    ImageMissingError,
    RuntimeUnavailableError,
    SandboxStartError,
)
from executor.guest import bundle
from executor.runtimes.base import (
    BAKED_GUEST,
    BOOTSTRAP,
    IPC,
    LAYERS,
    PYTHON_FLAGS,
    Facts,
    Runtime,
    Sandbox,
    SandboxSpec,
    namespaces_of_host,
)
from executor.runtimes.engine import (
    FAILURES,
    AttachedStream,
    engine_error,
    engine_time,
    errno_of,
    plain_socket,
    remove_container,
)
from executor.runtimes.options import applied, check
from executor.runtimes.owner import UidSlot, boot_id, is_dead, owner_label
from executor.runtimes.seccomp import docker_profile
from executor.workspace.text import decode, printable

DEFAULT_IMAGE = "executor/base:latest"
LABEL_OWNER = "executor.owner"
LABEL_SESSION = "executor.session"
LABEL_GUEST = "executor.guest"
API_TIMEOUT = 30
KILL_TIMEOUT = 10.0  # after which nobody waits for the engine to remove a container; it goes on trying
# Those of a caller, who may ask for more than the engine's own: the kernel's number, and its name here.
ULIMITS = {"nofile": (7, "open_files"), "nproc": (6, "pids")}
REFUSED_ULIMIT = "error setting rlimit type {}:"
NAMES = 3  # tries to find a name that no other container has

# What the engine masks by itself, and what else speaks of the host.
MASKED_PATHS = [
    "/proc/1/attr",
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/locks",
    "/proc/modules",
    "/proc/pagetypeinfo",
    "/proc/partitions",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/swaps",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/block",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/kernel",
    "/sys/module",
]
READONLY_PATHS = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
SYSCTLS = {
    **{f"kernel.{name}": value for name, value in IPC.items()},
    "net.ipv6.conf.all.disable_ipv6": "0",  # ::1, which a container without network lacks
    "net.ipv6.conf.lo.disable_ipv6": "0",
    "net.ipv4.ping_group_range": "1 0",  # no ping sockets
}


def create_body(
    spec: SandboxSpec, image: str, uid: int, command: list[str], *, cgroup_v1: bool, engine_runtime: str = ""
) -> dict[str, Any]:
    """The Engine's create body for one session. Pure; pinned by a test and ablated by another."""
    inodes = f"nr_inodes={spec.inodes}"
    own = f"{inodes},mode=0755,uid={uid},gid={uid}"
    host: dict[str, Any] = {
        "NetworkMode": "none",
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "CgroupnsMode": "private",
        "Privileged": False,
        "ReadonlyRootfs": True,
        "Init": False,
        "AutoRemove": True,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none", "Config": {}},
        "CapDrop": ["ALL"],
        "CapAdd": [],
        "GroupAdd": [],
        "Binds": [],
        "Mounts": [],
        "Devices": [],
        "PortBindings": {},
        "PublishAllPorts": False,
        "SecurityOpt": ["no-new-privileges", "seccomp=" + docker_profile()],
        "PidsLimit": spec.pids,
        "Memory": spec.memory,
        "MemorySwap": spec.memory,
        "OomKillDisable": False,
        "OomScoreAdj": 500,
        "NanoCpus": int(spec.cpus * 1e9),
        "CpuShares": 256,
        "Tmpfs": {
            "/tmp": f"rw,nosuid,nodev,exec,size={spec.tmp},{inodes},mode=1777",
            "/workspace": f"rw,nosuid,nodev,exec,size={spec.disk},{own}",
            "/skills": f"rw,nosuid,nodev,exec,size={spec.skills_disk},{own}",
            "/dev/shm": f"rw,nosuid,nodev,noexec,size={spec.shm},nr_inodes=1024,mode=1777",
        },
        "Ulimits": [
            {"Name": name, "Soft": value, "Hard": value} for name, value in sorted(spec.rlimits().items())
        ]
        + [{"Name": "nproc", "Soft": 4 * spec.pids, "Hard": 4 * spec.pids}],
        "Sysctls": dict(SYSCTLS),
        "MaskedPaths": list(MASKED_PATHS),
        "ReadonlyPaths": list(READONLY_PATHS),
    }
    if spec.layers:
        host["Mounts"] = [{"Type": "bind", "Source": spec.layers, "Target": LAYERS, "ReadOnly": True}]
    if cgroup_v1:
        host["MemorySwappiness"] = 0  # unknown to version 2
    if engine_runtime:
        host["Runtime"] = engine_runtime
    return {
        "Image": image,
        "Entrypoint": [],
        "Cmd": command,
        "User": f"{uid}:{uid}",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "StopSignal": "SIGKILL",
        "StopTimeout": 1,
        "Healthcheck": {"Test": ["NONE"]},
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
        "Labels": {
            LABEL_OWNER: spec.owner or owner_label(),
            LABEL_SESSION: spec.session_id,
            "executor.created": str(int(time.time())),
        },
        "HostConfig": host,
    }


def container_name() -> str:
    """A name that no other container has."""
    return f"executor-{secrets.token_hex(8)}"


class ContainerSandbox(Sandbox):
    """One container."""

    runtime = "container"

    def __init__(self, api: Any, left: set[str], open_ones: set[ContainerSandbox]) -> None:
        self._api = api
        self._open = open_ones
        self._open.add(self)
        self.loop = asyncio.get_running_loop()
        self._left = left
        """Names of containers that nobody wants and that may be there; shared with the reaper."""
        self.stream: AttachedStream = AttachedStream()
        self.name = ""
        """Known before the container exists, so that one whose create times out is removed too."""
        self.making = threading.Lock()
        """Held while the engine makes it, which goes on when its caller is cancelled."""
        self.socket: socket.socket | None = None
        self.slot: UidSlot | None = None
        self.left_out: set[str] = set()
        """Of ULIMITS, those that only the guest sets."""
        self.unwanted = False
        self.uncertain = False
        """The engine was asked to make it and never answered: it may come yet."""
        self._removal: asyncio.Task[None] | None = None

    async def kill(self) -> None:
        self.stream.close()  # first: see the top of this file
        self.unwanted = True
        if self._removal is None:
            self._removal = self.loop.create_task(asyncio.to_thread(self.clear))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._removal), KILL_TIMEOUT)

    @property
    def forsaken(self) -> bool:
        """Its loop ended before it did, or gave up its removal."""
        return self.loop.is_closed() or (self._removal is not None and self._removal.cancelled())

    def clear(self) -> None:
        """Remove it and what belongs to it, in bounded time. From any thread, without a loop."""
        with self.making:
            if self.socket is not None:
                self.socket.close()
            if self.name:
                self._left.add(self.name)
                if remove_container(self._api, self.name) and not self.uncertain:
                    self._left.discard(self.name)
            if self.slot is not None:
                self.slot.release()
        self._open.discard(self)

    async def post_mortem(self) -> tuple[str, str]:
        said = printable(decode(self.stream.stderr)).strip()
        try:
            events = await asyncio.to_thread(self._events)
        except Exception:
            return "unknown", said or "the engine does not answer"
        code = next((e["Actor"]["Attributes"].get("exitCode") for e in events if e["Action"] == "die"), None)
        if said:
            return "exited", f"it said: {said[-800:]}"
        if any(event["Action"] == "oom" for event in events) and code == "137":
            return "oom", "the kernel ended it because its memory limit was reached"
        return ("exited", f"its process ended with status {code}") if code else ("unknown", "it is gone")

    def _events(self) -> list[dict[str, Any]]:
        """What the engine remembers of this container; it gives the past and returns."""
        deadline = time.monotonic() + 1  # one that stands still has not died, and does not
        while True:
            now = engine_time(self._api)  # its clock may differ from ours
            events = list(
                self._api.events(
                    since=1,
                    until=now,
                    filters={"container": self.name, "event": ["oom", "die"]},
                    decode=True,
                )
            )
            if time.monotonic() > deadline or any(event["Action"] == "die" for event in events):
                return events
            time.sleep(0.05)


class ContainerRuntime(Runtime):
    """Sandboxes as containers of a Docker engine."""

    name = "container"

    def __init__(
        self,
        *,
        docker_host: str | None = None,
        image: str = DEFAULT_IMAGE,
        engine_runtime: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`options`: what the operator adds to every container; see `options.ALLOWED`. BadRequestError."""
        check(options or {})
        self._options = dict(options or {})
        self._left: set[str] = set()
        self._sandboxes: set[ContainerSandbox] = set()
        self._docker_host = docker_host or os.environ.get("DOCKER_HOST") or None
        self._image = image
        self._engine_runtime = engine_runtime
        self._api: Any = None
        self._info: dict[str, Any] = {}
        self._checked = asyncio.Lock()

    @property
    def address(self) -> str:
        """The engine's address."""
        return self._docker_host or "unix:///var/run/docker.sock"

    # -- what is needed --

    async def check(self) -> None:
        async with self._checked:
            if self._api is None:
                await asyncio.to_thread(self._connect)

    async def check_image(self, image: str = "") -> None:
        """Raise ImageMissingError unless the image is on the engine."""
        await self.check()
        await asyncio.to_thread(self._inspect_image, image or self._image)

    def _connect(self) -> None:
        try:
            api = self._client()
            info = api.info()
        except FAILURES as error:
            raise engine_error(error, self.address) from error
        if info.get("OSType", "linux") != "linux":
            raise RuntimeUnavailableError(
                f"the engine at {self.address} runs {info.get('OSType')} containers; this needs Linux ones"
            )
        self._api, self._info = api, info

    @retry(
        retry=retry_if_exception_type(requests.ConnectionError),
        stop=stop_after_attempt(3),
        wait=wait_random_exponential(0.1, max=0.5),
        reraise=True,
    )
    def _client(self) -> Any:
        """A client whose version handshake worked. Retried: asking twice changes nothing."""
        environment = dict(os.environ)
        if self._docker_host:
            environment["DOCKER_HOST"] = self._docker_host
        return docker.from_env(timeout=API_TIMEOUT, environment=environment).api

    def reap(self) -> list[str]:
        """Remove the containers that dead owners left, and those of this process whose loop ended before they
        did. The names of the sessions.
        """
        for sandbox in list(self._sandboxes):
            if sandbox.forsaken:
                sandbox.unwanted = True
                sandbox.clear()
        api = self._api
        removed = []
        for found in api.containers(all=True, filters={"label": LABEL_OWNER}) if api is not None else ():
            labels, name = found.get("Labels") or {}, (found.get("Names") or [""])[0].lstrip("/")
            unwanted = is_dead(labels.get(LABEL_OWNER, "")) or name in self._left
            if unwanted and remove_container(api, found["Id"]):
                self._left.discard(name)
                removed.append(labels.get(LABEL_SESSION) or name)
        return removed

    def _inspect_image(self, image: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._api.inspect_image(image)
        except docker.errors.ImageNotFound:
            raise self._image_missing(image) from None
        except FAILURES as error:
            raise engine_error(error, self.address) from error
        if (found.get("Config") or {}).get("Volumes"):
            raise SandboxStartError(
                f"image {image!r} declares volumes, which would be writable outside every limit",
                hint="Use an image without VOLUME.",
            )
        return found

    def _image_missing(self, image: str) -> ImageMissingError:
        ours = image.startswith("executor/")
        name = image.removeprefix("executor/").partition(":")[0] if ours else image
        command = "executor images build" if ours else "docker pull"
        step = f"{'Build' if ours else 'Pull'} it: {command} {shlex.quote(name)}"
        return ImageMissingError(
            f"the engine at {self.address} has no image {image!r}",
            hint=f"{step}. An image is never pulled silently.",
        )

    # -- starting --

    async def start(self, spec: SandboxSpec) -> Sandbox:
        await self.check()
        refused: set[str] = set()
        while True:
            try:
                sandbox = await self._begin(spec, refused)
            except SandboxStartError as error:
                # More than this engine may give: without an order it gives what it has.
                said = {name for name, (n, _) in ULIMITS.items() if REFUSED_ULIMIT.format(n) in error.message}
                if not said - refused:
                    raise
                refused |= said
                continue
            for _, limit in (ULIMITS[name] for name in sorted(refused)):
                value = getattr(spec, limit)
                sandbox.facts.warnings.append(f"{limit}={value} lowered to what this engine can give")
            return sandbox

    async def _begin(self, spec: SandboxSpec, left_out: set[str]) -> ContainerSandbox:
        """Start a container. Of ULIMITS those that are left out are set by the guest only."""
        sandbox = ContainerSandbox(self._api, self._left, self._sandboxes)
        sandbox.left_out = left_out
        try:
            await self._start(sandbox, spec)
        except BaseException:
            await asyncio.shield(sandbox.kill())
            raise
        return sandbox

    async def _start(self, sandbox: ContainerSandbox, spec: SandboxSpec) -> None:
        await asyncio.to_thread(self._make, sandbox, spec)
        sock, sandbox.socket = sandbox.socket, None
        assert sock is not None
        sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: sandbox.stream, sock=sock)
        await asyncio.to_thread(self._run, sandbox)

    def _make(self, sandbox: ContainerSandbox, spec: SandboxSpec) -> None:
        with sandbox.making:
            if not sandbox.unwanted:
                self._create(sandbox, spec)

    def _create(self, sandbox: ContainerSandbox, spec: SandboxSpec) -> None:
        image = self._inspect_image(spec.image or self._image)
        config = image.get("Config") or {}
        baked = (config.get("Labels") or {}).get(LABEL_GUEST) == bundle.digest()
        sandbox.sends_guest = not baked
        try:
            sandbox.slot = UidSlot()
        except OSError as error:
            raise SandboxStartError(f"no uid for the sandbox: {error.strerror or error}") from error
        uid = sandbox.slot.uid
        if spec.layers and not self.address.startswith("unix://"):  # it is a folder of this machine
            spec = dataclasses.replace(spec, layers="")
        sandbox.facts = Facts(uid=uid, gid=uid, namespaces=self._host_namespaces(), layers=bool(spec.layers))
        for variable in config.get("Env") or []:
            if variable.startswith("PATH="):
                sandbox.facts.path = variable[5:]
        cpus = self._info.get("NCPU") or spec.cpus
        if spec.cpus > cpus:
            sandbox.facts.warnings.append(f"cpus={spec.cpus:g} lowered to the {cpus} of this engine")
        if self._info.get("MemoryLimit") is False:
            sandbox.facts.warnings.append("this engine cannot limit memory")
        if self._info.get("PidsLimit") is False:
            sandbox.facts.warnings.append("this engine cannot limit processes")
        command = ["python3", *PYTHON_FLAGS, *([BAKED_GUEST] if baked else ["-c", BOOTSTRAP])]
        body = create_body(
            dataclasses.replace(spec, cpus=min(spec.cpus, cpus)),
            image["Id"],
            uid,
            command,
            cgroup_v1=self._info.get("CgroupVersion", "1") == "1",
            engine_runtime=self._engine_runtime,
        )
        try:
            host = body["HostConfig"]
            host["Ulimits"] = [limit for limit in host["Ulimits"] if limit["Name"] not in sandbox.left_out]
            self._named(sandbox, applied(body, self._options))
            attached = self._api.attach_socket(
                sandbox.name, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            )
            sandbox.socket = plain_socket(attached)
        except docker.errors.ImageNotFound:  # it went since it was looked at
            raise self._image_missing(spec.image or self._image) from None
        except FAILURES as error:
            raise self._start_error(error) from error

    def _named(self, sandbox: ContainerSandbox, body: dict[str, Any]) -> None:
        """Create it under a name that no other container has."""
        for left in reversed(range(NAMES)):
            sandbox.name = container_name()
            try:
                self._api.create_container_from_config(body, name=sandbox.name)
                return
            except docker.errors.APIError as error:
                if error.status_code == 409:
                    sandbox.name = ""  # somebody else's, and not to be removed
                    if left:
                        continue
                raise
            except FAILURES as error:
                sandbox.uncertain = errno_of(error) not in (errno.ECONNREFUSED, errno.ENOENT, errno.EACCES)
                raise

    def _run(self, sandbox: ContainerSandbox) -> None:
        try:
            self._api.start(sandbox.name)
        except FAILURES as error:
            raise self._start_error(error) from error

    def _start_error(self, error: Exception) -> ExecutorError:
        text = printable(str(getattr(error, "explanation", None) or error))
        if isinstance(error, docker.errors.APIError):
            hint = ""
            if "executable file not found" in text or "no such file or directory" in text:
                hint = "The image needs python3 3.9 or newer on its PATH."
            elif "no space left" in text:
                hint = "The engine's disk is full: free some space and try again."
            return SandboxStartError(f"the engine could not start the container: {text[:500]}", hint=hint)
        return engine_error(error, self.address)

    def _remove_left(self) -> None:
        for name in list(self._left):
            if remove_container(self._api, name):
                self._left.discard(name)

    def _host_namespaces(self) -> dict[str, str]:
        """This machine's namespaces when the engine is on it too."""
        if not self.address.startswith("unix://") or not boot_id():
            return {}
        return namespaces_of_host()

    async def close(self) -> None:
        if self._api is not None:
            if self._left:  # with this object goes the one who knows of them
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.to_thread(self._remove_left), KILL_TIMEOUT)
            self._api.close()
            self._api = None
