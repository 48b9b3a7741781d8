"""The local runtime: bubblewrap, no daemon, no root needed.

Its security is decided by the arguments and nothing else, so they are built by one function from tables and
pinned by a test. Started by root it drops to a uid of the session's own first. It never falls back to
running without a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from executor.errors import (
    BubblewrapMissingError,
    ImageMissingError,
    PlatformError,
    SandboxStartError,
    UserNamespacesOffError,
)
from executor.guest import bundle
from executor.places import data_dir
from executor.runtimes import cgroups
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
    Stream,
    namespaces_of_host,
)
from executor.runtimes.owner import UidSlot, owner_label, reap_slots
from executor.runtimes.seccomp import bpf_program
from executor.workspace.text import decode, printable

if sys.platform != "win32":
    import resource

INSIDE_UID = 1000  # what the session's own uid is called inside its user namespace
SHM_INODES = 1024

# Of a root filesystem of ours everything below these is shown; of this machine only what programs need.
ROOTFS_PATHS = ("/usr", "/etc", "/node_modules")
SYSTEM_PATHS = (
    "/usr",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/ssl/certs",
    "/etc/java-11-openjdk",
    "/etc/java-17-openjdk",
    "/etc/ImageMagick-6",
    "/etc/libreoffice",
    "/etc/perl",
)
# Top-level names that are links into /usr on a merged system and folders on others.
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Files of the kernel that speak of the host or open for writing where nothing can be written; an empty file
# stands in front of each that exists.
MASKED = (
    "/proc/1/attr/current",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/kallsyms",
    "/proc/key-users",
    "/proc/keys",
    "/proc/locks",
    "/proc/modules",
    "/proc/pagetypeinfo",
    "/proc/partitions",
    "/proc/slabinfo",
    "/proc/swaps",
    "/proc/timer_list",
    "/proc/vmallocinfo",
)
FILES = {
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
    "/etc/passwd": "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
    f"sandbox:x:{INSIDE_UID}:{INSIDE_UID}:sandbox:/tmp/home:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": f"root:x:0:\nsandbox:x:{INSIDE_UID}:\nnogroup:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
# The writable file systems: where, which size of the spec, mode, further options. bubblewrap limits a tmpfs
# by bytes only, so they are made by mount in a user namespace around it and bound from there.
TMPFS = (
    ("/dev/shm", "shm", "1777", "noexec"),
    ("/tmp", "tmp", "1777", "exec"),
    ("/workspace", "disk", "0755", "exec"),
    ("/skills", "skills_disk", "0755", "exec"),
)
# The same for IPC: the ipc namespace is made there, with its limits where the kernel lets its owner say so
# (Linux 6.9 on; /proc/sys is read-only for who comes later).
PREPARE = ("unshare", "--user", "--map-root-user", "--mount", "--ipc", "--", "sh", "-c")
PREPARE_SCRIPT = (
    "{ "
    + "".join(f"echo {value} >/proc/sys/kernel/{name}; " for name, value in IPC.items())
    + '} 2>/dev/null; mount -aT "$0" && exec "$@"'
)
PREPARE_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
NO_INODES = (
    "the number of files in /workspace, /skills, /tmp and /dev/shm is not limited here (only their size is): "
    "unshare and mount cannot make a tmpfs for this user"
)
# What bubblewrap says → what it means.
NO_USER_NAMESPACES = (
    "No permissions to create",
    "Creating new namespace failed",
    "setting up uid map",
    "unshare: Operation not permitted",
    "clone3: Operation not permitted",
)
MISSING = "bubblewrap is not installed: there is no `bwrap` on the PATH"
INSTALL = "Install it: `apt-get install bubblewrap`, `dnf install bubblewrap` or `pacman -S bubblewrap`."
NO_NAMESPACES = "the kernel does not let this user make user namespaces, which bubblewrap needs"
ALLOW = (
    "On Ubuntu 23.10 and later: `sysctl kernel.apparmor_restrict_unprivileged_userns=0` or an AppArmor "
    "profile for bwrap. On others: `sysctl user.max_user_namespaces=15000` and "
    "`sysctl kernel.unprivileged_userns_clone=1`. Inside a container: use the container runtime instead."
)


def mount_points() -> dict[str, Path]:
    """Empty folders of this machine on which each of TMPFS is mounted, out of everybody else's sight."""
    return {where: data_dir() / "mounts" / where.strip("/").replace("/", "-") for where, *_ in TMPFS}


def mount_table(spec: SandboxSpec) -> str:
    """The fstab from which the writable file systems are made. Pure."""
    lines = []
    for (where, size, mode, options), point in zip(TMPFS, mount_points().values(), strict=True):
        inodes = SHM_INODES if where == "/dev/shm" else spec.inodes
        limits = f"size={getattr(spec, size)},nr_inodes={inodes},mode={mode}"
        folder = str(point).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
        lines.append(f"tmpfs {folder} tmpfs rw,nosuid,nodev,{options},{limits} 0 0\n")
    return "".join(lines)


def arguments(
    spec: SandboxSpec,
    rootfs: str,
    *,
    empty_fds: list[int],
    file_fds: dict[str, int],
    oom_file: str | None,
    prepared: bool,
) -> list[str]:
    """bubblewrap's arguments, without the seccomp descriptor and the command. Pure.

    `rootfs` is '' for this machine's own system folders. `empty_fds` has a descriptor at end of file for
    each of MASKED that exists, `file_fds` one for each of FILES. `prepared`: the file systems of
    `mount_table` are there to be bound, in an ipc namespace of their own.
    """
    uid = str(INSIDE_UID)
    args = ["--unshare-user", "--uid", uid, "--gid", uid, "--disable-userns"]
    args += ["--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    args += [] if prepared else ["--unshare-ipc"]
    args += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    args += ["--hostname", "sandbox", "--clearenv"]
    args += ["--perms", "0755", "--dir", "/etc", "--perms", "0755", "--dir", "/run/executor"]
    if rootfs:
        for path in ROOTFS_PATHS:
            args += ["--ro-bind", rootfs + path, path]
    else:
        for path in SYSTEM_PATHS:
            args += ["--ro-bind-try", path, path]
        args += ["--symlink", "/usr/bin/python3", "/run/executor/bin/python"]
        args += ["--perms", "0755", "--dir", "/node_modules"]
    for name in MERGED:
        where = Path(rootfs or "/", name)
        if where.is_symlink():
            args += ["--symlink", os.readlink(where), f"/{name}"]
        elif where.is_dir():
            args += ["--ro-bind", str(where), f"/{name}"]
    # The session's uid owns some of the settings of its own namespaces: /proc/sys is shown read-only.
    args += ["--proc", "/proc", "--ro-bind-try", "/proc/sys", "/proc/sys", "--dev", "/dev"]
    for (path, size, mode, _), point in zip(TMPFS, mount_points().values(), strict=True):
        if prepared:
            args += ["--bind", str(point), path]
        else:
            args += ["--perms", mode, "--size", str(getattr(spec, size)), "--tmpfs", path]
    for path, fd in file_fds.items():
        args += ["--perms", "0444", "--ro-bind-data", str(fd), path]
    for path, fd in zip(masked(), empty_fds, strict=True):
        args += ["--ro-bind-data", str(fd), path]
    if oom_file is not None:
        args += ["--ro-bind", oom_file, "/run/executor/oom"]
    if spec.layers:
        args += ["--ro-bind", spec.layers, LAYERS]
    return [*args, "--chdir", "/", "--remount-ro", "/dev", "--remount-ro", "/"]


def masked() -> list[str]:
    """The files of MASKED that this kernel has."""
    return [path for path in MASKED if os.path.lexists(path)]


class LocalSandbox(Sandbox):
    """bubblewrap's outer process, whose death ends process 1 and with it everything inside."""

    runtime = "local"

    def __init__(self, open_ones: set[LocalSandbox]) -> None:
        self._open = open_ones
        self._open.add(self)
        self.stream = Stream()
        self.process: subprocess.Popen[bytes] | None = None
        self.slot: UidSlot | None = None
        self.cgroup: cgroups.Cgroup | None = None
        self.stderr = b""
        self.loop = asyncio.get_running_loop()
        self._stderr_read: asyncio.Task[None] | None = None
        self._removal: asyncio.Task[None] | None = None

    def watch_stderr(self, fd: int) -> None:
        async def read() -> None:
            loop = asyncio.get_running_loop()
            reader = asyncio.StreamReader()
            pipe = os.fdopen(fd, "rb", buffering=0)
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
            try:
                while data := await reader.read(4096):
                    self.stderr = (self.stderr + data)[-8192:]
            finally:
                transport.close()

        self._stderr_read = asyncio.get_running_loop().create_task(read())

    async def kill(self) -> None:
        self.stream.close()
        if self._removal is None:
            self._removal = self.loop.create_task(self._remove())
        await asyncio.shield(self._removal)

    async def _remove(self) -> None:
        try:
            if self.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self.process.kill()
                await self._wait(self.process)
            if self._stderr_read is not None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self._stderr_read, 1)
        finally:  # also when the loop is being torn down
            self.clear()

    def clear(self) -> None:
        """End it, and remove what bubblewrap does not take with it. From any thread, without a loop."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.cgroup is not None:
            self.cgroup.kill()
            self.cgroup.remove()
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        if self.slot is not None:
            self.slot.release()
        self._open.discard(self)

    async def _wait(self, process: subprocess.Popen[bytes], seconds: float = 5.0) -> None:
        for delay in (0.001, 0.002, 0.004, 0.008) + (0.02,) * int(50 * seconds):
            if process.poll() is not None:
                return
            await asyncio.sleep(delay)

    async def post_mortem(self) -> tuple[str, str]:
        if self.process is not None:
            await self._wait(self.process, 1.0)  # one that stands still ends only when it is killed
        if self._stderr_read is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.shield(self._stderr_read), 1)
        said = printable(decode(self.stderr)).strip()
        code = self.process.poll() if self.process is not None else None
        if self.cgroup is not None and self.cgroup.oom_kills() and not said:
            return "oom", "the kernel ended it because its memory limit was reached"
        if said:
            return "exited", f"it said: {said[-800:]}"
        return "exited" if code is not None else "unknown", f"bubblewrap ended with status {code}"


class LocalRuntime(Runtime):
    """Sandboxes by bubblewrap on this machine."""

    name = "local"

    def __init__(self, *, bwrap: str | None = None, cgroup: bool = True) -> None:
        self._bwrap = bwrap
        self._use_cgroup = cgroup
        self._prepare: list[str] = []
        """The command in front of bubblewrap that makes its file systems; empty where that does not work."""
        self._checked = False
        self._sandboxes: set[LocalSandbox] = set()

    # -- what is needed --

    async def check(self) -> None:
        if self._checked:
            return
        self._program()
        probe = [self._program(), "--unshare-user", "--unshare-pid", "--unshare-net", "--cap-drop", "ALL"]
        probe += ["--ro-bind", "/", "/", "/bin/true"]
        said = await asyncio.to_thread(_try, probe)
        if said is not None:
            raise _start_error(said)
        self._prepare = await asyncio.to_thread(_preparation, probe)
        self._checked = True

    def reap(self) -> list[str]:
        """Remove the control groups, with what lives in them, and the uid slots that dead owners left, and
        end the sandboxes of this process whose loop ended before they did.

        There is nothing else: mounts and processes go with bubblewrap, which goes with its owner.
        """
        for sandbox in list(self._sandboxes):
            if sandbox.loop.is_closed():  # nobody can end it any more
                sandbox.clear()
        removed = cgroups.reap()
        reap_slots()
        return removed

    def _program(self) -> str:
        if not sys.platform.startswith("linux"):
            raise PlatformError(
                f"the local runtime needs Linux; this is {sys.platform}",
                hint="Use the container runtime with Docker Desktop, Colima or Podman: --runtime container.",
            )
        found = self._bwrap or shutil.which("bwrap")
        if not found:
            raise BubblewrapMissingError(MISSING, hint=INSTALL)
        return found

    def rootfs(self, image: str) -> str:
        """Folder of the root filesystem for an image name; '' for this machine's own system folders."""
        if image.startswith("/"):
            if not Path(image, "usr").is_dir():
                raise ImageMissingError(f"{image} is not a root filesystem: it has no /usr")
            return os.path.realpath(image)
        if image == "host":
            return ""
        name = (image or "base").removeprefix("executor/").partition(":")[0]
        built = data_dir() / "rootfs" / name
        if built.is_dir():
            return os.path.realpath(built)
        if image:
            raise ImageMissingError(
                f"there is no root filesystem {image!r} for the local runtime in {built.parent}",
                hint=f"Build it: executor images build {shlex.quote(name)} --target local. Or take this "
                "machine's own programs: --image host.",
            )
        return ""

    # -- starting --

    async def start(self, spec: SandboxSpec) -> Sandbox:
        await self.check()
        rootfs = self.rootfs(spec.image)
        sandbox = LocalSandbox(self._sandboxes)
        try:
            ours, admit = self._spawn(sandbox, spec, rootfs)
            try:
                await asyncio.to_thread(admit)
                await asyncio.get_running_loop().create_connection(lambda: sandbox.stream, sock=ours)
            except BaseException:
                ours.close()
                raise
        except BaseException as error:
            await asyncio.shield(asyncio.ensure_future(sandbox.kill()))
            if isinstance(error, OSError):
                raise SandboxStartError(f"bubblewrap could not be started: {error}") from error
            raise
        return sandbox

    def _spawn(
        self, sandbox: LocalSandbox, spec: SandboxSpec, rootfs: str
    ) -> tuple[socket.socket, Callable[[], None]]:
        """Start bubblewrap, which waits. The stream's end that is ours, and what lets it go on."""
        if spec.layers and not _reachable(spec.layers):
            spec = dataclasses.replace(spec, layers="")
        facts = Facts(
            uid=INSIDE_UID,
            gid=INSIDE_UID,
            namespaces=namespaces_of_host(),
            layers=bool(spec.layers),
        )
        sandbox.facts = facts
        ids: dict[str, object] = {}
        if os.geteuid() == 0:
            sandbox.slot = UidSlot()
            ids = {"user": sandbox.slot.uid, "group": sandbox.slot.uid, "extra_groups": []}
        else:
            facts.warnings.append(
                "the sandbox shares this user's uid: inotify watches and queued signals are counted together"
            )
        if not Path(rootfs or "/", "usr/bin/python3").exists():
            raise SandboxStartError(
                f"there is no {rootfs}/usr/bin/python3, which the guest needs",
                hint="Install python3, or build the image.",
            )
        name = f"{secrets.token_hex(6)}@{owner_label()}"
        sandbox.cgroup = cgroups.make(spec, name) if self._use_cgroup else None
        if sandbox.cgroup is None:
            facts.rlimits = {"data": spec.memory, "nproc": spec.pids}
            facts.warnings.append(
                "this machine gives no cgroups to this user: memory is limited for each process, not for the "
                "session, and CPU time is not limited"
            )
        for limit, which in (("open_files", resource.RLIMIT_NOFILE), ("pids", resource.RLIMIT_NPROC)):
            asked, hard = getattr(spec, limit), resource.getrlimit(which)[1]
            if hard != resource.RLIM_INFINITY and asked > hard:
                facts.warnings.append(f"{limit}={asked} lowered to the {hard} of this machine")
        if not self._prepare:
            facts.warnings.append(NO_INODES)
        baked = _baked_guest(rootfs) == bundle.digest()
        sandbox.sends_guest = not baked
        code = [BAKED_GUEST] if baked else ["-c", BOOTSTRAP]
        fds: list[int] = []
        kept: list[int] = []  # not for bubblewrap, and closed only when something fails
        ours, theirs = socket.socketpair()
        try:
            seccomp_fd = _pipe_with(bpf_program(), fds)
            file_fds = {path: _pipe_with(text.encode(), fds) for path, text in FILES.items()}
            empty_fds = [_pipe_with(b"", fds) for _ in masked()]
            args_read, args_write = os.pipe()
            fds.append(args_read)
            kept.append(args_write)
            err_read, err_write = os.pipe()
            fds.append(err_write)
            kept.append(err_read)
            oom_file = str(sandbox.cgroup.oom_file) if sandbox.cgroup is not None else None
            args = arguments(
                spec,
                rootfs,
                empty_fds=empty_fds,
                file_fds=file_fds,
                oom_file=oom_file,
                prepared=bool(self._prepare),
            )
            args += ["--seccomp", str(seccomp_fd)]
            prepare = self._prepare
            if prepare:
                prepare = [*prepare, _mount_file(spec, fds)]
            command = ["/usr/bin/python3", *PYTHON_FLAGS, *code]
            kept.remove(err_read)
            sandbox.watch_stderr(err_read)
            # From this thread, which lives as long as the loop: --die-with-parent follows the thread.
            sandbox.process = subprocess.Popen(
                [*prepare, self._program(), "--args", str(args_read), "--", *command],
                env={},
                cwd="/",
                stdin=theirs,
                stdout=theirs,
                stderr=err_write,
                pass_fds=[fd for fd in fds if fd != err_write],
                start_new_session=True,
                **ids,  # type: ignore[call-overload]
            )
            kept.remove(args_write)
            blob = b"".join(os.fsencode(arg) + b"\0" for arg in args)
            admit = partial(_admit, sandbox.cgroup, sandbox.process.pid, os.fdopen(args_write, "wb"), blob)
        except BaseException as error:
            ours.close()
            for fd in kept:
                os.close(fd)
            if isinstance(error, OSError):
                raise SandboxStartError(f"bubblewrap could not be started: {error}") from error
            raise
        finally:
            theirs.close()
            for fd in fds:
                os.close(fd)
        ours.setblocking(False)
        return ours, admit


def _admit(cgroup: cgroups.Cgroup | None, pid: int, pipe: BinaryIO, arguments: bytes) -> None:
    """bubblewrap waits for its arguments, so it is in its cgroup before it does anything.

    In a thread: moving a process takes the kernel milliseconds, and the loop has other sessions to serve.
    """
    with pipe:
        if cgroup is not None:
            cgroup.add(pid)
        pipe.write(arguments)


def _reachable(folder: str) -> bool:
    """Whether the uid of a session, which starts bubblewrap, gets to a folder of root's."""
    places = [Path(folder), *Path(folder).parents]
    return os.geteuid() != 0 or all(place.stat().st_mode & 0o001 for place in places)


def _baked_guest(rootfs: str) -> str:
    """Digest of the guest that a root filesystem of ours carries; its notes lie beside it."""
    try:
        notes = json.loads(Path(rootfs + ".json").read_bytes()) if rootfs else {}
    except (OSError, ValueError):
        return ""
    return str(notes.get("executor.guest", "")) if isinstance(notes, dict) else ""


def _pipe_with(content: bytes, fds: list[int]) -> int:
    """A descriptor from which `content` can be read to its end. It must fit into a pipe."""
    read, write = os.pipe()
    fds.append(read)
    try:
        os.write(write, content)
    finally:
        os.close(write)
    return read


def _preparation(probe: list[str]) -> list[str]:
    """PREPARE with whole paths, tried with a table of small file systems around `probe`; [] if it fails."""
    programs = {name: shutil.which(name, path=PREPARE_PATH) for name in ("unshare", "sh", "mount")}
    if not all(programs.values()):
        return []
    command = [programs.get(word) or word for word in PREPARE]
    command.append(PREPARE_SCRIPT.replace("mount", str(programs["mount"]), 1))
    small = SandboxSpec("", "", 1 << 20, 1, 1, 1, disk=1 << 20, inodes=64, tmp=1 << 20, shm=1 << 20)
    fds: list[int] = []
    try:
        for point in mount_points().values():
            for folder in (point.parent, point):
                if not folder.is_dir():
                    folder.mkdir(parents=True)
                    folder.chmod(0o755)
        said = _try([*command, _mount_file(small, fds), *probe], fds)
    except (OSError, subprocess.TimeoutExpired):
        return []
    finally:
        for fd in fds:
            os.close(fd)
    return command if said is None else []


def _mount_file(spec: SandboxSpec, fds: list[int]) -> str:
    """Path of the mount table for one who has the descriptor. Not a pipe: another uid has to open it anew."""
    fd = os.memfd_create("mounts")
    fds.append(fd)
    os.write(fd, mount_table(spec).encode())
    return f"/proc/self/fd/{fd}"


def _try(command: list[str], fds: list[int] | None = None) -> str | None:
    """Run a probe, as nobody when this is root. What it said if it failed, else None."""
    nobody = 65534 if os.geteuid() == 0 else None
    groups: list[str | int] | None = None if nobody is None else []
    done = subprocess.run(
        command,
        env={},
        cwd="/",
        capture_output=True,
        pass_fds=fds or (),
        timeout=20,
        user=nobody,
        group=nobody,
        extra_groups=groups,
    )
    return printable(decode(done.stderr)) if done.returncode else None


def _start_error(said: str) -> Exception:
    if any(mark in said for mark in NO_USER_NAMESPACES):
        return UserNamespacesOffError(f"{NO_NAMESPACES} (bwrap says: {said.strip()[:200]})", hint=ALLOW)
    return SandboxStartError(f"bubblewrap does not work here: {said.strip()[:400] or 'it said nothing'}")
