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
import socket
import struct
import threading
import time
from typing import Any

import docker
import docker.errors
import requests
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from executor.errors import (
    EngineDownError,
    EngineForbiddenError,
    ExecutorError,
    ImageMissingError,
    RuntimeUnavailableError,
    SandboxStartError,
)
from executor.guest import bundle
from executor.runtimes.base import (
    BAKED_GUEST,
    BOOTSTRAP,
    PYTHON_FLAGS,
    Facts,
    Runtime,
    Sandbox,
    SandboxSpec,
    Stream,
    namespaces_of_host,
)
from executor.runtimes.owner import UidSlot, boot_id, is_dead, owner_label
from executor.runtimes.seccomp import docker_profile

DEFAULT_IMAGE = "executor/base:latest"
LABEL_OWNER = "executor.owner"
LABEL_SESSION = "executor.session"
LABEL_GUEST = "executor.guest"
API_TIMEOUT = 30
LONGEST_LIFE = 24 * 3600  # a container older than this whose owner cannot be asked is taken for dead

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
    "kernel.shmall": "2048",  # 8 MiB of SysV shared memory, which would outlive the process that made it
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


class AttachedStream(Stream):
    """The engine's attach stream: an 8-byte header (stream, 0, 0, 0, length) before every piece."""

    _head = struct.Struct(">BxxxL")

    def __init__(self) -> None:
        super().__init__()
        self._buffer = bytearray()
        self.stderr = b""

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        pieces: list[bytes] = []
        while len(buffer) - at >= 8:
            kind, length = self._head.unpack_from(buffer, at)
            if len(buffer) - at - 8 < length:
                break
            piece = bytes(buffer[at + 8 : at + 8 + length])
            at += 8 + length
            if kind == 1:
                pieces.append(piece)
            else:
                self.stderr = (self.stderr + piece)[-8192:]
        del buffer[:at]
        if pieces:
            self.deliver(pieces[0] if len(pieces) == 1 else b"".join(pieces))


class ContainerSandbox(Sandbox):
    """One container."""

    runtime = "container"

    def __init__(self, api: Any) -> None:
        self._api = api
        self.stream: AttachedStream = AttachedStream()
        self.id = ""
        self.slot: UidSlot | None = None
        self.started_at = time.time()
        self._removal: asyncio.Task[None] | None = None

    async def kill(self) -> None:
        self.stream.close()  # first: see the top of this file
        if self._removal is None:
            self._removal = asyncio.get_running_loop().create_task(self._remove())
        await asyncio.shield(self._removal)

    async def _remove(self) -> None:
        try:
            if self.id:
                await asyncio.to_thread(remove_container, self._api, self.id)
        finally:
            if self.slot is not None:
                self.slot.release()

    async def post_mortem(self) -> tuple[str, str]:
        said = self.stream.stderr.decode("utf-8", "replace").strip()
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
        for _ in range(20):
            events = list(
                self._api.events(
                    since=int(self.started_at) - 1,
                    until=int(time.time()) + 1,
                    filters={"container": self.id, "event": ["oom", "die"]},
                    decode=True,
                )
            )
            if any(event["Action"] == "die" for event in events):
                return events
            time.sleep(0.05)
        return events


def plain_socket(attached: Any) -> socket.socket:
    """The attached connection as a socket that an event loop can watch.

    A Unix or TCP socket is that already. TLS, SSH and named pipes are not: two threads copy between them and
    a socket pair, and end with either side.
    """
    raw = getattr(attached, "_sock", attached)
    if type(raw) is socket.socket:
        try:
            return socket.socket(fileno=os.dup(raw.fileno()))
        finally:
            attached.close()
    raw.settimeout(None)
    ours, theirs = socket.socketpair()

    def copy(source: Any, target: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            theirs.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            attached.close()

    for source, target in ((raw, theirs), (theirs, raw)):
        threading.Thread(target=copy, args=(source, target), name="executor-attach", daemon=True).start()
    return ours


def remove_container(api: Any, container: str) -> None:
    """Kill and remove, in bounded time; gone already is success."""
    for delay in (0.05, 0.1, 0.2, 0.5, 1, 1, 2, 2):
        try:
            api.remove_container(container, force=True, v=True)
        except docker.errors.NotFound:
            return
        except (docker.errors.APIError, requests.RequestException, OSError):
            pass  # 409: being removed already; else the engine is away: tried again, then left to the reaper
        try:
            api.inspect_container(container)
        except docker.errors.NotFound:
            return
        except (docker.errors.APIError, requests.RequestException, OSError):
            pass
        time.sleep(delay)


class ContainerRuntime(Runtime):
    """Sandboxes as containers of a Docker engine."""

    name = "container"

    def __init__(
        self, *, docker_host: str | None = None, image: str = DEFAULT_IMAGE, engine_runtime: str = ""
    ) -> None:
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
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise engine_error(error, self.address) from error
        if info.get("OSType", "linux") != "linux":
            raise RuntimeUnavailableError(
                f"the engine at {self.address} runs {info.get('OSType')} containers; this needs Linux ones"
            )
        self._api, self._info = api, info
        self.reap()

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
        """Remove the containers that dead owners left, and no others. Their names."""
        removed = []
        for found in self._api.containers(all=True, filters={"label": LABEL_OWNER}):
            labels = found.get("Labels") or {}
            if is_dead(labels.get(LABEL_OWNER, "")):
                remove_container(self._api, found["Id"])
                removed.append(labels.get(LABEL_SESSION, found["Id"][:12]))
        return removed

    def _inspect_image(self, image: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._api.inspect_image(image)
        except docker.errors.ImageNotFound:
            raise ImageMissingError(
                f"the engine at {self.address} has no image {image!r}",
                hint="Build ours with `executor images build`, or pull yours with `docker pull`; an image is "
                "never pulled silently.",
            ) from None
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise engine_error(error, self.address) from error
        if (found.get("Config") or {}).get("Volumes"):
            raise SandboxStartError(
                f"image {image!r} declares volumes, which would be writable outside every limit",
                hint="Use an image without VOLUME.",
            )
        return found

    # -- starting --

    async def start(self, spec: SandboxSpec) -> Sandbox:
        await self.check()
        sandbox = ContainerSandbox(self._api)
        try:
            await self._start(sandbox, spec)
        except BaseException:
            await asyncio.shield(sandbox.kill())
            raise
        return sandbox

    async def _start(self, sandbox: ContainerSandbox, spec: SandboxSpec) -> None:
        # A create that is cancelled half-way must still give its id to the one who removes it.
        attached = asyncio.ensure_future(asyncio.to_thread(self._create, sandbox, spec))
        try:
            sock = await asyncio.shield(attached)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                (await attached).close()
            raise
        sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: sandbox.stream, sock=sock)
        await asyncio.to_thread(self._run, sandbox)

    def _create(self, sandbox: ContainerSandbox, spec: SandboxSpec) -> socket.socket:
        image = self._inspect_image(spec.image or self._image)
        config = image.get("Config") or {}
        baked = (config.get("Labels") or {}).get(LABEL_GUEST) == bundle.digest()
        sandbox.sends_guest = not baked
        sandbox.slot = UidSlot()
        uid = sandbox.slot.uid
        sandbox.facts = Facts(uid=uid, gid=uid, namespaces=self._host_namespaces())
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
            name = f"executor-{secrets.token_hex(8)}"
            sandbox.id = name  # known before it exists, so that a create that times out is removed too
            sandbox.id = self._api.create_container_from_config(body, name=name)["Id"]
            attached = self._api.attach_socket(
                sandbox.id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            )
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise self._start_error(error) from error
        return plain_socket(attached)

    def _run(self, sandbox: ContainerSandbox) -> None:
        try:
            self._api.start(sandbox.id)
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise self._start_error(error) from error

    def _start_error(self, error: Exception) -> ExecutorError:
        text = str(getattr(error, "explanation", None) or error)
        if isinstance(error, docker.errors.APIError):
            hint = ""
            if "executable file not found" in text or "no such file or directory" in text:
                hint = "The image needs python3 3.9 or newer on its PATH."
            elif "no space left" in text:
                hint = "The engine's disk is full: free some space and try again."
            return SandboxStartError(f"the engine could not start the container: {text[:500]}", hint=hint)
        return engine_error(error, self.address)

    def _host_namespaces(self) -> dict[str, str]:
        """This machine's namespaces when the engine is on it too."""
        if not self.address.startswith("unix://") or not boot_id():
            return {}
        return namespaces_of_host()

    async def close(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None


def engine_error(error: Exception, address: str) -> ExecutorError:
    """A connection failure as the error that names its cause and the next step."""
    text = str(error)
    if "SSL" in text or "TLS" in text:
        return EngineDownError(
            f"the engine at {address} and this client do not agree on TLS: {text[-300:]}",
            hint="Check DOCKER_TLS_VERIFY and the ca.pem, cert.pem and key.pem in DOCKER_CERT_PATH; a set "
            "REQUESTS_CA_BUNDLE goes before them.",
        )
    if _errno_of(error) in (errno.EACCES, errno.EPERM) or "Permission denied" in text:
        return EngineForbiddenError(
            f"this user may not open the engine's socket at {address}",
            hint="Add the user to the engine's group (that equals root on this machine), use a rootless "
            "engine, or use --runtime local.",
        )
    number = _errno_of(error)
    cause = os.strerror(number) if number else text[:200]
    return EngineDownError(
        f"no Docker engine answers at {address}: {cause}",
        hint="Start it, point DOCKER_HOST to one, or use --runtime local.",
    )


def _errno_of(error: BaseException | None) -> int | None:
    """The first errno in the chain of causes, which the SDK hides three levels deep."""
    for _ in range(10):
        if error is None:
            return None
        if isinstance(error, OSError) and error.errno:
            return error.errno
        inner = error.args[0] if error.args and isinstance(error.args[0], BaseException) else None
        for argument in error.args[1:]:
            if isinstance(argument, BaseException):
                inner = argument
        error = inner or error.__cause__ or error.__context__
    return None
