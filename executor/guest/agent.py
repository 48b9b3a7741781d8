"""Process 1 of a sandbox: it starts scripts, moves files, and ends everything when the host goes away.

It is one thread around one epoll. It speaks only the frames of `wire` on descriptors 0 and 1; scripts get
stdio of their own and never see the stream. Standard library only, Python 3.9, nothing imported that is
not used: the time to come up is part of every session.

What it must not do: trust a name, follow a link out of the two roots, wait for anything but epoll, or keep
a signal handler that a script could use. As process 1 with default dispositions it cannot be signalled from
inside, and because it is not dumpable it cannot be read or traced by scripts of the same uid. The one
handler is SIGCHLD's, which does nothing: a script that raises it only makes this loop look for zombies.

A run ends when its leader exits. What the leader left behind has DRAIN seconds to finish writing and is then
killed. Processes belong to the run that is their ancestor; orphans belong to the run whose session or
environment they carry; an orphan that hides both is killed with the first run that ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import stat
import struct
import sys
import time
from collections import deque

from executor.guest.door import Door
from executor.guest.records import (
    FOLDER,
    LINK,
    MISSING,
    OTHER,
    REGULAR,
    ROOT,
    Chunk,
    RecordError,
    RecordReader,
    Whole,
    check_relative,
    pack_chunk,
    pack_end,
    pack_record,
    split_names,
)
from executor.guest.wire import (
    ARGS,
    CONTENT,
    DATA,
    EXIT,
    FILE,
    GOODBYE,
    GUEST,
    HELLO,
    REPLY,
    RESULT,
    RUN,
    SIGNAL,
    STARTED,
    STDERR,
    STDIN,
    STDOUT,
    VERSION,
    Connection,
    ProtocolError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple

    from executor.guest.records import Record
    from executor.guest.wire import Body, Event

DRAIN = 0.2  # what a run's leftovers have to finish writing after the leader's exit
SWEEP = 2.0  # how long a killed process may take to go before the run is reported without it
READ = 256 * 1024  # of a pipe at a time
HIGH_WATER = 512 * 1024  # queued bytes of a channel at which its source is no longer read
FILE_PIECE = 60 * 1024  # content of a file at a time: a frame with room for a record's header
MAX_GENERATIONS = 256  # between a process and its run's leader
MAX_LINKS = 40  # what the kernel allows in one path
MAX_DEPTH_OF_TREE = 64
MAX_LISTED = 200_000  # entries of one listing; the host takes more for an attack
UMASK = 0o022
PATH_ROOTS = (b"workspace", b"skills")
COMPILED = "/usr/lib/executor/pycache/usr/lib"
LAYERS_COMPILED = "/opt/layers/pycache"  # of the layers of skills; the folder cannot be listed
LAYERS_COMPILED_SEEN = "/tmp/.cache/python/opt/layers"
COMPILED_SEEN = "/tmp/.cache/python/usr/lib"  # below the runs' PYTHONPYCACHEPREFIX
WORKSPACE_FOLDERS = (b"inputs", b"work", b"out", b"runs")
WORKSPACE_LINKS = ((b"work/inputs", b"../inputs"), (b"skills", b"/skills"))
# Where the kernel counts the processes of this sandbox that it killed for memory (cgroup v2, v1, and the
# single file that the local runtime shows).
OOM_COUNTERS = (
    "/run/executor/oom",
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
)
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
STATUS_FIELDS = (
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Uid",
    "Gid",
    "Groups",
)
# Signals that Python ignores for itself and that a script must find at their defaults.
RESET_SIGNALS = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD]


# -- becoming process 1 -------------------------------------------------------------------------------


def prctl(option: int, value: int) -> int:
    try:  # the C half of ctypes: the Python half costs more than the rest of the start
        import _ctypes

        handle = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
        address = _ctypes.dlsym(handle, "prctl")
        return int(_ctypes.call_function(address, (option, value, 0, 0, 0)))
    except (ImportError, AttributeError):
        import ctypes

        return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0))


def harden() -> None:
    """Out of reach of the scripts that this process will start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if prctl(4, 0) != 0 or prctl(3, 0) != 0:  # PR_SET_DUMPABLE 0, PR_GET_DUMPABLE
        raise OSError("cannot become undumpable")
    os.umask(UMASK)


class Score:
    """This process's place in the order in which the kernel kills for memory: after every script.

    Made before `harden`: what is not dumpable cannot open the file, but an open descriptor stays usable.
    Without privileges a score can be raised and lowered again, down to one that was set from outside. A
    script can do that too, so this process is as low as any of them can get.
    """

    SCRIPTS = 1000

    def __init__(self) -> None:
        self.fd = -1
        self.own = 0
        try:
            self.fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self.own = int(os.read(self.fd, 16))
        except (OSError, ValueError):
            return
        low = -1000
        while low < self.own:
            middle = (low + self.own) // 2
            if self.set(middle):
                self.own = middle
            else:
                low = middle + 1

    def set(self, value: int) -> bool:
        try:
            return self.fd >= 0 and os.pwrite(self.fd, b"%d" % value, 0) > 0
        except OSError:
            return False


def set_limits(limits: Dict[str, int]) -> None:
    """rlimits by their lower-case names, soft and hard alike; never above what is already in force."""
    import resource

    for name, value in limits.items():
        which = getattr(resource, "RLIMIT_" + name.upper(), None)
        if which is None:
            continue
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))


def attest() -> Body:
    """What this sandbox is, for the host to compare with what it ordered."""
    with open("/proc/self/status") as file:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    writable = []
    root_options = ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="backslashreplace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            mount = before.split(" ")
            fstype, _, super_options = after.rstrip("\n").split(" ", 2)
            options = mount[5].split(",")
            if mount[4] == "/":
                root_options = mount[5]
            if "ro" in options or "ro" in super_options.split(","):
                continue
            # What this uid may not write is as good as read-only: the engine leaves /dev like that.
            if os.path.isdir(mount[4]) and os.access(mount[4], os.W_OK):
                writable.append([mount[4], fstype])
    return {
        "version": VERSION,
        "pid": os.getpid(),
        "status": {name: fields.get(name, "") for name in STATUS_FIELDS},
        "dumpable": prctl(3, 0),
        "namespaces": {name: namespace(name) for name in NAMESPACES},
        "root": root_options,
        "writable": writable[:128],
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def namespace(name: str) -> str:
    try:
        return os.readlink("/proc/self/ns/" + name)
    except OSError:
        return ""


class OomCounter:
    """How many processes of this sandbox the kernel has killed for memory. The file stays open: it is read
    twice for every run.
    """

    def __init__(self) -> None:
        self.fd = -1
        for path in OOM_COUNTERS:
            try:
                self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            if self.read() >= 0:
                return
            os.close(self.fd)
            self.fd = -1

    def read(self) -> int:
        """The count; -1 when the kernel does not say."""
        try:
            return int(os.pread(self.fd, 4096, 0).partition(b"oom_kill ")[2].split(None, 1)[0])
        except (OSError, ValueError, IndexError):
            return -1


# -- paths, one component at a time -------------------------------------------------------------------

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """A path that cannot be used: an errno and the path."""

    def __init__(self, number: int, path: bytes) -> None:
        super().__init__(number, path)
        self.number = number
        self.path = path


class Place:
    """A folder below one of the roots, opened without following a link, and a last name in it.

    `name` is None when the path is a root or ends in one. `path` is the canonical absolute path.
    """

    __slots__ = ("folder", "name", "path")

    def __init__(self, folder: int, name: Optional[bytes], path: bytes) -> None:
        self.folder = folder
        self.name = name
        self.path = path

    def close(self) -> None:
        os.close(self.folder)


def locate(path: bytes, *, follow_last: bool = False, create: bool = False) -> Place:
    """Walk an absolute path below /workspace or /skills. Links are followed by hand and only inside.

    `create` makes missing parent folders. Raises Refused.
    """
    todo: Deque[bytes] = deque(part for part in path.split(b"/") if part and part != b".")
    trail: List[bytes] = []  # names from the root down
    stack: List[int] = []  # the folders opened for them, the first one a root
    links = 0
    try:
        while todo:
            part = todo.popleft()
            if b"\0" in part or len(part) > 255:
                raise Refused(errno.EINVAL, path)
            if part == b"..":
                if len(stack) < 2:
                    raise Refused(errno.EXDEV, path)
                os.close(stack.pop())
                trail.pop()
                continue
            if not stack:
                if part not in PATH_ROOTS:
                    raise Refused(errno.EXDEV, path)
                stack.append(os.open(b"/" + part, FOLDER_FLAGS))
                trail.append(part)
                continue
            if not todo and not follow_last:
                return Place(stack.pop(), part, b"/" + b"/".join([*trail, part]))
            try:
                stack.append(os.open(part, FOLDER_FLAGS, dir_fd=stack[-1]))
                trail.append(part)
                continue
            except OSError as error:
                if error.errno == errno.ENOENT and create and todo:
                    os.mkdir(part, 0o755, dir_fd=stack[-1])
                    todo.appendleft(part)
                    continue
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    if error.errno == errno.ENOENT and not todo:
                        return Place(stack.pop(), part, b"/" + b"/".join([*trail, part]))
                    raise Refused(error.errno or errno.EIO, path)
            try:
                target = os.readlink(part, dir_fd=stack[-1])
            except OSError:
                if not todo:  # a file as the last component
                    return Place(stack.pop(), part, b"/" + b"/".join([*trail, part]))
                raise Refused(errno.ENOTDIR, path)
            links += 1
            if links > MAX_LINKS:
                raise Refused(errno.ELOOP, path)
            if target.startswith(b"/"):
                for folder in stack:
                    os.close(folder)
                stack, trail = [], []
            todo.extendleft(reversed([step for step in target.split(b"/") if step and step != b"."]))
        if not stack:
            raise Refused(errno.EINVAL, path)
        return Place(stack.pop(), None, b"/" + b"/".join(trail))
    except OSError as error:
        raise Refused(error.errno or errno.EIO, path)
    finally:
        for folder in stack:
            os.close(folder)


def open_folder(path: bytes) -> Tuple[int, bytes]:
    """A folder for reading, and its canonical path. Raises Refused."""
    place = locate(path, follow_last=True)
    if place.name is None:
        return place.folder, place.path
    place.close()
    raise Refused(errno.ENOENT if not exists(place) else errno.ENOTDIR, path)


def exists(place: Place) -> bool:
    path = place.path
    try:
        os.lstat(path)
        return True
    except OSError:
        return False


def unguessed() -> bytes:
    """Part of a name that no script can have taken before."""
    return os.urandom(8).hex().encode("ascii")


def remove_tree(name: bytes, folder: int) -> None:
    """Remove a file or a folder with all it holds, however deep and whatever its modes."""
    try:
        os.unlink(name, dir_fd=folder)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM, errno.EACCES):
            raise
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
    os.chmod(name, 0o700, dir_fd=folder)
    # Deep trees: what is inside is moved up to the top level folder by folder, so that the depth of the
    # tree never becomes a depth of descriptors or of calls.
    moved = b".gone-" + unguessed()
    top = os.open(name, FOLDER_FLAGS, dir_fd=folder)
    try:
        count = 0
        while True:
            entries = list(os.scandir(top))
            if not entries:
                break
            for entry in entries:
                child = os.fsencode(entry.name)
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(child, dir_fd=top)
                    continue
                os.chmod(child, 0o700, dir_fd=top)
                inner = os.open(child, FOLDER_FLAGS, dir_fd=top)
                try:
                    for below in list(os.scandir(inner)):
                        below_name = os.fsencode(below.name)
                        if below.is_dir(follow_symlinks=False):
                            count += 1
                            os.chmod(below_name, 0o700, dir_fd=inner)
                            os.rename(below_name, b"%s-%d" % (moved, count), src_dir_fd=inner, dst_dir_fd=top)
                        else:
                            os.unlink(below_name, dir_fd=inner)
                finally:
                    os.close(inner)
                os.rmdir(child, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=folder)


def remove_below(path: bytes, name: bytes) -> None:
    """Remove what is in a folder under this name, if that can be done."""
    try:
        folder = os.open(path, FOLDER_FLAGS)
        try:
            remove_tree(name, folder)
        finally:
            os.close(folder)
    except OSError:
        pass


# -- runs ---------------------------------------------------------------------------------------------


class Output:
    """One output channel of a run: the first bytes at once, the last ones at the end, all of them counted."""

    def __init__(self, agent: Agent, stream: int, channel: int, head: int, tail: int) -> None:
        self.agent = agent
        self.stream = stream
        self.channel = channel
        self.head = head  # bytes still to send as they come; -1 sends everything
        self.tail_limit = tail
        self.tail: Deque[bytes] = deque()
        self.tail_size = 0
        self.total = 0
        self.fd = -1
        self.paused = False
        self.is_pty = False

    def attach(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.agent.watch(fd, select.EPOLLIN, self.readable)

    def readable(self, _events: int) -> None:
        try:
            data = os.read(self.fd, READ)
        except BlockingIOError:
            return
        except OSError:  # a terminal whose other end is closed
            data = b""
        if not data:
            self.close()
            self.agent.output_closed(self.stream)
            return
        self.take(data)

    def take(self, data: bytes) -> None:
        self.total += len(data)
        connection = self.agent.connection
        if self.head < 0:
            connection.data(self.stream, self.channel, data)
            if connection.queued(self.stream, self.channel) > HIGH_WATER and not self.paused:
                self.paused = True
                self.agent.unwatch(self.fd)
                self.agent.paused.append(self)
            return
        if self.head:
            first = data[: self.head]
            self.head -= len(first)
            connection.data(self.stream, self.channel, first)
            data = data[len(first) :]
        if data and self.tail_limit:
            self.tail.append(data)
            self.tail_size += len(data)
            while self.tail_size - len(self.tail[0]) >= self.tail_limit:
                self.tail_size -= len(self.tail.popleft())

    def resume(self) -> bool:
        """Read on when the stream has taken what was queued. True when done with waiting."""
        if self.fd < 0:
            return True
        if self.agent.connection.queued(self.stream, self.channel) > HIGH_WATER // 2:
            return False
        self.paused = False
        self.agent.watch(self.fd, select.EPOLLIN, self.readable)
        return True

    def drain(self) -> None:
        """Take what is in the pipe now, and its end; not what a surviving child writes meanwhile.

        Also while paused: the script is over and can write no more than the pipe holds.
        """
        left = waiting_in(self.fd)
        while self.fd >= 0 and left >= 0:
            before = self.total
            self.readable(0)
            if self.total == before:
                return
            left -= self.total - before

    def close(self) -> None:
        if self.fd >= 0:
            if not self.paused:
                self.agent.unwatch(self.fd)
            if not self.is_pty:
                os.close(self.fd)
            self.fd = -1

    def finish(self) -> None:
        self.close()
        tail = b"".join(self.tail)
        if len(tail) > self.tail_limit:
            tail = tail[-self.tail_limit :]
        self.agent.connection.data(self.stream, self.channel, tail, end=True)


def waiting_in(fd: int) -> int:
    """Bytes that can be read from a pipe or a terminal now."""
    if fd < 0:
        return 0
    try:
        return int(struct.unpack("i", fcntl.ioctl(fd, 0x541B, b"\0\0\0\0"))[0])  # FIONREAD
    except OSError:
        return READ


class Input:
    """A run's stdin: bytes from the host, written as the script reads."""

    def __init__(self, agent: Agent, stream: int, fd: int) -> None:
        self.agent = agent
        self.stream = stream
        self.fd = fd
        self.waiting: Deque[Any] = deque()
        self.ended = False
        self.watched = False
        self.is_pty = False
        self.mid_line = False
        os.set_blocking(fd, False)

    def take(self, data: bytes, end: bool) -> None:
        if self.fd < 0:
            self.agent.connection.consumed(self.stream, STDIN, len(data))
            return
        if data:
            self.waiting.append(memoryview(data))
        self.ended = self.ended or end
        self.writable(0)

    def writable(self, _events: int) -> None:
        while self.waiting:
            piece = self.waiting[0]
            try:
                size = os.write(self.fd, piece)
            except BlockingIOError:
                if not self.watched:
                    self.watched = True
                    # The terminal's one descriptor is watched for reading by the output; poll it by time.
                    if self.is_pty:
                        self.agent.at(0.01, self.retry)
                    else:
                        self.agent.watch(self.fd, select.EPOLLOUT, self.writable)
                return
            except OSError:  # the script closed its stdin or is gone
                self.close()
                return
            self.used(piece, size)
            if size == len(piece):
                self.waiting.popleft()
            else:
                self.waiting[0] = piece[size:]
        if self.ended:
            if self.is_pty:
                # End of file, as a person would type it: in the middle of a line once is only "take this".
                self.ended = False
                self.waiting.append(b"\x04\x04" if self.mid_line else b"\x04")
                self.writable(0)
            else:
                self.close()
        elif self.watched and not self.is_pty:
            self.watched = False
            self.agent.unwatch(self.fd)

    def used(self, piece: Any, size: int) -> None:
        if isinstance(piece, memoryview):  # what the host sent, not what was typed here
            self.mid_line = piece[size - 1] != 10
            self.agent.connection.consumed(self.stream, STDIN, size)

    def retry(self) -> None:
        self.watched = False
        if self.fd >= 0:
            self.writable(0)

    def close(self) -> None:
        for piece in self.waiting:
            self.used(piece, len(piece))
        self.waiting.clear()
        if self.fd >= 0:
            if not self.is_pty:
                if self.watched:
                    self.agent.unwatch(self.fd)
                os.close(self.fd)
            self.fd = -1


class Run:
    """One script with everything that it starts. Life: args → alive → draining → sweeping → over."""

    def __init__(self, agent: Agent, stream: int, spec: Body) -> None:
        self.agent = agent
        self.stream = stream
        self.spec = spec
        self.marker = b""
        self.folder = b""
        self.args = bytearray()
        self.early_stdin: List[Tuple[bytes, bool]] = []
        self.pid = 0
        self.master = -1
        self.stdin: Optional[Input] = None
        self.outputs: List[Output] = []
        self.started = 0.0
        self.status: Optional[int] = None
        self.usage: Any = None
        self.reason: Optional[str] = None  # why the agent ended it: timeout or killed
        self.terminated = False  # TERM was sent
        self.state = "args"
        self.swept_until = 0.0
        self.killed: Set[int] = set()
        self.oom_before = -1
        self.deadline: Any = None
        self.ready = False  # all arguments have come
        self.paused = False
        self.left: Optional[float] = None  # seconds to the deadline of a paused run
        self.door: Optional[Door] = None
        self.door_error: Optional[OSError] = None
        if spec.get("bridge"):
            try:
                self.door = Door(agent, self, spec["bridge"])
            except OSError as error:
                self.door_error = error

    # -- starting --

    def take_args(self, data: bytes, end: bool) -> None:
        self.agent.connection.consumed(self.stream, ARGS, len(data))
        self.args += data
        self.ready = self.ready or end
        if self.ready and (self.door is None or self.door.complete):
            self.start()

    def take_files(self, data: bytes, end: bool) -> None:
        if self.door is None:
            self.agent.connection.consumed(self.stream, CONTENT, len(data))
            return
        try:
            self.door.take_files(data, end)
        except OSError as error:
            self.door_error = error
            self.door.abandon()
        if self.ready and self.door.complete and self.state == "args":
            self.start()

    def start(self) -> None:
        words = split_names(bytes(self.args))
        self.args.clear()
        count = int(self.spec["argc"])
        cwd, argv, variables = words[0], words[1 : 1 + count], words[1 + count :]
        environment = dict([pair.split(b"=", 1) for pair in variables])
        head, tail = self.spec["head"], self.spec["tail"]
        for index, channel in enumerate((STDOUT, STDERR)):
            self.outputs.append(Output(self.agent, self.stream, channel, head[index], tail[index]))
        self.oom_before = self.agent.oom.read()
        self.marker = b"EXECUTOR_RUN_ID=" + os.fsencode(self.spec["id"])
        try:
            folder, _ = open_folder(cwd)
        except Refused as refused:
            self.refuse("cwd", refused.number)
            return
        try:
            self.make_folder()
            if self.door_error is not None:
                raise self.door_error
            if self.door is not None:
                self.door.open(environment)
            os.fchdir(folder)
            self.spawn(argv, environment)
        except OSError as error:
            self.not_started(error, argv)
        finally:
            os.chdir("/")
            os.close(folder)

    def make_folder(self) -> None:
        """`/workspace/runs/<id>`, where a script may put things that are only this run's."""
        if len(self.agent.runs) > 1:
            make_workspace()  # `clear` does it after a run; one that is alive may have removed its folders
        self.folder = b"/workspace/runs/" + os.fsencode(self.spec["id"])
        try:
            place = locate(self.folder, create=True)
        except Refused:
            return
        try:
            if place.name is not None:
                os.mkdir(place.name, 0o755, dir_fd=place.folder)
        except OSError:
            self.folder = b""
        finally:
            place.close()

    def spawn(self, argv: List[bytes], environment: Dict[bytes, bytes]) -> None:
        if self.spec["shell"]:
            shell = b"/bin/bash" if os.path.exists(b"/bin/bash") else b"/bin/sh"
            argv = [shell, b"-c", *argv]
        program = find_program(argv[0], environment.get(b"PATH", b""))
        ours: List[int] = []  # descriptors that stay here
        theirs: List[int] = []  # descriptors that the child takes over
        try:
            if self.spec["pty"]:
                actions = self.prepare_terminal(ours, theirs)
            else:
                actions = self.prepare_pipes(ours, theirs)
            self.started = time.monotonic()
            self.agent.score.set(Score.SCRIPTS)  # inherited, so that no child of the script misses it
            self.pid = os.posix_spawn(
                program,
                argv,
                environment,
                file_actions=actions,
                setsid=True,
                setsigdef=RESET_SIGNALS,
                setsigmask=[],
            )
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            self.agent.score.set(self.agent.score.own)
            for fd in theirs:
                os.close(fd)
        self.state = "alive"
        self.agent.by_pid[self.pid] = self
        self.attach(ours)
        if self.door is not None:  # its bridge's clock begins; nobody else asks, and waking the host costs
            self.agent.connection.control(STARTED, self.stream, {"pid": self.pid})
        if self.spec["timeout_ms"] is not None:
            self.deadline = self.agent.at(self.spec["timeout_ms"] / 1000, lambda: self.end("timeout"))
        for data, end in self.early_stdin:
            self.feed(data, end)
        self.early_stdin.clear()

    def prepare_pipes(self, ours: List[int], theirs: List[int]) -> List[Tuple[Any, ...]]:
        if self.spec["stdin"]:
            read, write = os.pipe()
            theirs.append(read)
            ours.append(write)
        else:
            theirs.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        for _ in (STDOUT, STDERR):
            read, write = os.pipe()
            ours.append(read)
            theirs.append(write)
            try:
                fcntl.fcntl(read, 1031, READ)  # F_SETPIPE_SZ: fewer, larger reads
            except OSError:
                pass
        return [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(theirs)]

    def prepare_terminal(self, ours: List[int], theirs: List[int]) -> List[Tuple[Any, ...]]:
        master, slave = os.openpty()
        ours.append(master)
        theirs.append(slave)
        self.master = master
        self.resize(self.spec["pty"])
        # Opened by the child after its setsid, the terminal becomes its controlling one.
        name = os.ttyname(slave)
        return [
            (os.POSIX_SPAWN_OPEN, 0, name, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ]

    def attach(self, ours: List[int]) -> None:
        if self.master >= 0:
            self.stdin = Input(self.agent, self.stream, self.master)
            self.stdin.is_pty = self.outputs[0].is_pty = True
            self.outputs[0].attach(self.master)
            if not self.spec["stdin"]:
                self.stdin.take(b"", True)
            return
        if self.spec["stdin"]:
            self.stdin = Input(self.agent, self.stream, ours.pop(0))
        for output, fd in zip(self.outputs, ours):
            output.attach(fd)

    def refuse(self, what: str, number: int) -> None:
        """The caller asked for something impossible: not a run at all."""
        self.over({"refused": what, "errno": number})

    def not_started(self, error: OSError, argv: List[bytes]) -> None:
        """What a shell says and returns when a command cannot be started."""
        number = error.errno or errno.EIO
        name = b"bash" if self.spec["shell"] else argv[0]
        text = "executor: %s: %s\n" % (name.decode("utf-8", "backslashreplace"), os.strerror(number))
        self.outputs[1].take(text.encode())
        code = 127 if number == errno.ENOENT else 126
        self.over({"code": code, "signal": None, "errno": number})

    # -- while it lives --

    def feed(self, data: bytes, end: bool) -> None:
        if self.state == "args":
            self.early_stdin.append((data, end))
        elif self.stdin is not None:
            self.stdin.take(data, end)
        else:
            self.agent.connection.consumed(self.stream, STDIN, len(data))

    def resize(self, size: Any) -> None:
        if self.master >= 0:
            rows, columns = size
            packed = struct.pack("HHHH", int(rows), int(columns), 0, 0)
            fcntl.ioctl(self.master, 0x5414, packed)  # TIOCSWINSZ

    def signalled(self, body: Body) -> None:
        if "resize" in body:
            self.resize(body["resize"])
        elif "hold" in body:
            stopped, frozen = body["hold"]
            self.hold(bool(stopped), bool(frozen))
        elif "kill" in body:
            self.end(body["kill"], body["grace_ms"] / 1000 if "grace_ms" in body else None)
        elif self.state == "alive":
            try:
                os.killpg(self.pid, int(body["signal"]))
            except OSError:
                pass

    def hold(self, stopped: bool, frozen: bool) -> None:
        """Stop the run's clock or let it go on; `frozen`: all of it stands still, because a person thinks."""
        if self.state != "alive" or self.terminated:
            return
        if stopped and self.left is None and self.deadline is not None:
            self.agent.cancel(self.deadline)
            self.left = self.deadline[0] - time.monotonic()
        elif not stopped and self.left is not None:
            left, self.left = self.left, None
            self.deadline = self.agent.at(max(0.0, left), lambda: self.end("timeout"))
        if frozen == self.paused:
            return
        self.paused = frozen
        if frozen:
            self.agent.kill_members(self, signal.SIGSTOP)
            self.agent.kill_members(self, signal.SIGSTOP)  # a fork may have slipped through
        else:
            self.agent.kill_members(self, signal.SIGCONT)

    def end(self, reason: str, grace: Optional[float] = None) -> None:
        """TERM to all of it now, KILL after the grace. Only the first reason counts."""
        if self.state == "args":
            self.over({"code": None, "signal": int(signal.SIGKILL), "reason": reason})
            return
        if self.state != "alive" or self.terminated:
            return
        self.reason = reason
        self.terminated = True
        self.paused = False
        if self.door is not None:
            self.door.close()
        if grace is None:
            grace = self.spec["grace_ms"] / 1000
        if grace > 0:
            self.agent.kill_members(self, signal.SIGTERM)
            self.agent.kill_members(self, signal.SIGCONT)
        self.agent.at(grace, self.kill)

    def kill(self) -> None:
        if self.state == "alive":
            self.agent.kill_members(self, signal.SIGKILL)
            self.agent.at(0.05, self.kill)  # until the leader is gone: a fork may have slipped through

    # -- ending --

    def exited(self, status: int, usage: Any) -> None:
        self.status = status
        self.usage = usage
        self.state = "draining"
        if self.door is not None:
            self.door.close()
        del self.agent.by_pid[self.pid]
        if self.stdin is not None:
            self.stdin.close()
        for output in self.outputs:
            output.drain()
        if self.reason or all(output.fd < 0 for output in self.outputs):
            self.sweep()
        else:
            self.agent.at(DRAIN, self.sweep)

    def output_closed(self) -> None:
        if self.state == "draining" and all(output.fd < 0 for output in self.outputs):
            self.sweep()

    def sweep(self) -> None:
        """Kill what is left of the run, again and again until nothing is."""
        if self.state == "over":
            return
        if self.state == "draining":
            self.state = "sweeping"
            self.swept_until = time.monotonic() + SWEEP
        left = self.agent.kill_members(self, signal.SIGKILL)
        if not left or time.monotonic() > self.swept_until:
            self.finish(left)
        else:
            self.agent.at(0.005, self.sweep)

    def finish(self, left: int) -> None:
        for output in self.outputs:
            output.drain()
        status = self.status if self.status is not None else 0
        by_signal = os.WIFSIGNALED(status)
        usage = self.usage
        after = self.agent.oom.read()
        self.over(
            {
                "code": None if by_signal else os.WEXITSTATUS(status),
                "signal": os.WTERMSIG(status) if by_signal else None,
                "reason": self.reason,
                "oom": max(0, after - self.oom_before) if self.oom_before >= 0 else 0,
                "wall_ms": int((time.monotonic() - self.started) * 1000),
                "cpu_ms": int((usage.ru_utime + usage.ru_stime) * 1000),
                "max_rss": usage.ru_maxrss * 1024,
                "killed": len(self.killed),
                "left": left,
            }
        )

    def over(self, body: Body) -> None:
        self.state = "over"
        self.agent.cancel(self.deadline)
        if self.stdin is not None:
            self.stdin.close()
        for output in self.outputs or [Output(self.agent, self.stream, c, 0, 0) for c in (STDOUT, STDERR)]:
            body[("stdout", "stderr")[output.channel - STDOUT]] = output.total
            output.finish()
        if self.master >= 0:
            os.close(self.master)
            self.master = -1
        if self.door is not None:
            self.door.close()
        self.agent.chores.append(self.clear)
        self.agent.connection.control(EXIT, self.stream, body)
        self.agent.runs.pop(self.stream, None)

    def clear(self) -> None:
        """Remove its folders, once the host has its answer."""
        if self.door is not None:
            remove_below(b"/tmp", self.door.name)
        if self.folder:
            try:
                os.rmdir(self.folder)  # nothing was put there
            except OSError:
                pass
        make_workspace()  # a script may have removed its folders


def find_program(name: bytes, path: bytes) -> bytes:
    """The file that a shell would run for a command word."""
    if b"/" in name:
        return name
    denied = False
    for folder in path.split(b":"):
        candidate = os.path.join(folder or b".", name)
        try:
            mode = os.stat(candidate).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode):
            if os.access(candidate, os.X_OK):
                return candidate
            denied = True
    number = errno.EACCES if denied else errno.ENOENT
    raise OSError(number, os.strerror(number))


# -- files --------------------------------------------------------------------------------------------


class FileTask:
    """A FILE request of which the host sends the list of names first; `serve` does the work in pieces."""

    def __init__(self, agent: Agent, stream: int, spec: Body) -> None:
        self.agent = agent
        self.stream = stream
        self.spec = spec
        self.blob = bytearray()
        self.source: Optional[Iterator[bytes]] = None

    def received(self, channel: int, data: bytes, end: bool) -> None:
        self.agent.connection.consumed(self.stream, channel, len(data))
        if channel != ARGS or self.source is not None:
            return
        self.blob += data
        if end:
            self.source = self.serve(split_names(bytes(self.blob)))
            self.blob.clear()
            self.pump()

    def serve(self, names: List[bytes]) -> Iterator[bytes]:
        raise NotImplementedError

    def answer(self) -> Body:
        return {}

    def pump(self) -> bool:
        """Produce while the stream has room. True when finished."""
        connection = self.agent.connection
        if self.source is None:
            return False
        batch: List[bytes] = []
        size = 0
        try:
            while connection.queued(self.stream, CONTENT) < HIGH_WATER:
                piece = next(self.source, None)
                if piece is None:
                    connection.data(self.stream, CONTENT, b"".join(batch), end=True)
                    connection.control(REPLY, self.stream, self.answer())
                    self.agent.files.pop(self.stream, None)
                    return True
                batch.append(piece)
                size += len(piece)
                if size >= FILE_PIECE:
                    connection.data(self.stream, CONTENT, b"".join(batch))
                    batch, size = [], 0
                    self.agent.write()  # the host reads while the next piece is made
            if batch:
                connection.data(self.stream, CONTENT, b"".join(batch))
        except Refused as refused:
            self.fail(refused.number, refused.path)
            return True
        except OSError as error:
            self.fail(error.errno or errno.EIO, b"")
            return True
        return False

    def abort(self, number: int) -> None:
        self.fail(number, b"")

    def fail(self, number: int, path: bytes) -> None:
        self.source = iter(())
        connection = self.agent.connection
        connection.data(self.stream, CONTENT, b"", end=True)
        text = path.decode("utf-8", "backslashreplace")[:1024]
        connection.control(REPLY, self.stream, {"errno": number, "path": text})
        self.agent.files.pop(self.stream, None)


class ListTask(FileTask):
    """Every entry below the named folders (or the named files), as records without content."""

    def serve(self, names: List[bytes]) -> Iterator[bytes]:
        recursive = bool(self.spec["recursive"])
        left = MAX_LISTED
        for name in names:
            try:
                place = locate(name, follow_last=True)
            except Refused as refused:
                yield pack_record(MISSING, name, refused.number)
                continue
            try:
                if place.name is not None:
                    try:
                        info = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
                    except OSError as error:
                        yield pack_record(MISSING, name, error.errno or errno.EIO)
                        continue
                    yield pack_record(ROOT, place.path, stat.S_IMODE(info.st_mode))
                    yield entry_record(place.path, info)
                    continue
                yield pack_record(ROOT, place.path)
                for record in walk(os.dup(place.folder), place.path, recursive):
                    yield record
                    left -= 1
                    if not left:
                        yield pack_record(OTHER, place.path + b"/...", 0)
                        return
            finally:
                place.close()


def entry_record(path: bytes, info: os.stat_result) -> bytes:
    mode = info.st_mode
    kind = OTHER
    if stat.S_ISREG(mode):
        kind = REGULAR
    elif stat.S_ISDIR(mode):
        kind = FOLDER
    elif stat.S_ISLNK(mode):
        kind = LINK
    size = info.st_size if kind == REGULAR else 0
    # The time of the last change of anything, which no script can set back.
    return pack_record(kind, path, stat.S_IMODE(mode), size, max(0, info.st_ctime_ns))


def walk(folder: int, path: bytes, recursive: bool) -> Iterator[bytes]:
    """Entries below an open folder, which is closed. Links are named and never followed.

    One descriptor is open for each level of depth, however many folders a level holds.
    """
    levels: List[Tuple[int, bytes, Optional[List[str]]]] = [(folder, path, None)]
    try:
        while levels:
            folder, path, below = levels[-1]
            if below is None:
                below = []
                with os.scandir(folder) as entries:
                    for entry in entries:
                        full = path + b"/" + os.fsencode(entry.name)
                        if len(full) > 4092:  # with room for the mark of what is left out
                            yield pack_record(OTHER, path + b"/...", 0)
                            continue
                        try:
                            info = entry.stat(follow_symlinks=False)
                        except OSError:
                            continue
                        yield entry_record(full, info)
                        if recursive and stat.S_ISDIR(info.st_mode):
                            if len(levels) < MAX_DEPTH_OF_TREE:
                                below.append(entry.name)
                            else:
                                yield pack_record(OTHER, full + b"/...", 0)
                levels[-1] = (folder, path, below)
            if not below:
                levels.pop()
                os.close(folder)
                continue
            name = below.pop()
            full = path + b"/" + os.fsencode(name)
            try:
                levels.append((os.open(name, FOLDER_FLAGS, dir_fd=folder), full, None))
            except OSError:
                yield pack_record(OTHER, full, 0)
    finally:
        for folder, _, _ in levels:
            os.close(folder)


class GetTask(FileTask):
    """The named files as records with content, each at most `limit` bytes; MISSING with an errno else."""

    def serve(self, names: List[bytes]) -> Iterator[bytes]:
        limit = int(self.spec["limit"])
        links = bool(self.spec.get("links"))
        parent = Parent()
        try:
            for name in names:
                for piece in self.file(parent, name, limit, links):
                    yield piece
        finally:
            parent.close()

    def file(self, parent: Parent, name: bytes, limit: int, links: bool) -> Iterator[bytes]:
        try:
            folder, last = parent.find(name)
            target = link_target(folder, last) if links else b""
            if target:
                yield pack_record(LINK, name, 0o777, len(target), 0, True) + pack_chunk(target) + pack_end()
                return
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(last, flags, dir_fd=folder)
        except Refused as refused:
            yield pack_record(MISSING, name, refused.number)
            return
        except OSError as error:
            yield pack_record(MISSING, name, error.errno or errno.EIO)
            return
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                number = errno.EISDIR if stat.S_ISDIR(info.st_mode) else errno.EINVAL
                yield pack_record(MISSING, name, number)
                return
            mode = stat.S_IMODE(info.st_mode)
            head = pack_record(REGULAR, name, mode, info.st_size, max(0, info.st_mtime_ns), True)
            left = limit
            failed = 0
            while left > 0:
                # More than a small file has: a short read is its end, and no second one is needed.
                wanted = min(FILE_PIECE, left, max(info.st_size + 1, 4096))
                try:
                    piece = os.read(fd, wanted)
                except OSError as error:
                    failed = error.errno or errno.EIO
                    break
                if piece:
                    left -= len(piece)
                    head += pack_chunk(piece)
                if len(piece) < wanted:
                    break
                yield head
                head = b""
            yield head + pack_end(failed)
        finally:
            os.close(fd)


class Parent:
    """The folder of the name before, kept open for the next one: names of one folder come in a row."""

    def __init__(self) -> None:
        self.path: Optional[bytes] = None
        self.fd = -1

    def find(self, name: bytes) -> Tuple[int, bytes]:
        """The open folder that holds a file, and the file's name in it. Raises Refused."""
        path, _, last = name.rpartition(b"/")
        if path != self.path or last in (b"", b".", b"..") or len(last) > 255:
            self.close()
            place = locate(name)
            self.fd = place.folder
            if place.name is None:
                raise Refused(errno.EISDIR, name)
            if place.name != last:
                return self.fd, place.name
            self.path = path
        return self.fd, last

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.path = -1, None


def link_target(folder: int, name: bytes) -> bytes:
    """Where a link points; empty for everything else."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return b""


class RemoveTask(FileTask):
    """Remove the named files and folders. A name that is not there is not an error."""

    def serve(self, names: List[bytes]) -> Iterator[bytes]:
        for name in names:
            try:
                place = locate(name)
            except Refused as refused:
                if refused.number != errno.ENOENT:
                    raise
                continue
            try:
                if place.name is None:
                    raise Refused(errno.EBUSY, name)
                remove_tree(place.name, place.folder)
            except OSError as error:
                raise Refused(error.errno or errno.EIO, name)
            finally:
                place.close()
            yield b""


class LinkTask(FileTask):
    """Pairs of (path, target): make each link where nothing stands. Existing entries are left alone."""

    def serve(self, names: List[bytes]) -> Iterator[bytes]:
        for path, target in zip(names[::2], names[1::2]):
            place = locate(path)
            try:
                if place.name is not None:
                    os.symlink(target, place.name, dir_fd=place.folder)
            except FileExistsError:
                pass
            except OSError as error:
                raise Refused(error.errno or errno.EIO, path)
            finally:
                place.close()
            yield b""


class PutTask:
    """Write records below `base`. With `swap` they land in a fresh folder that takes that name at the end.

    Each single file is written beside its target and renamed, so that a reader never sees half of one; a
    swap is whole or nothing. After a failure the rest is read and dropped.
    """

    def __init__(self, agent: Agent, stream: int, spec: Body) -> None:
        self.agent = agent
        self.stream = stream
        self.base = os.fsencode(spec["base"])
        self.swap: Optional[bytes] = os.fsencode(spec["swap"]) if spec.get("swap") else None
        self.reader = RecordReader()
        self.failed: Optional[Tuple[int, bytes]] = None
        self.fd = -1
        self.folder = -1  # where the current file is being written
        self.name = b""
        self.target = b""
        self.link: Optional[bytearray] = None
        self.mode = 0
        self.mtime_ns = 0  # 0: now
        self.files = self.bytes = 0
        self.parents: Dict[bytes, int] = {}  # folders of the put, open while it lasts
        self.token = unguessed()
        self.staging = b".staging-" + self.token

    def received(self, channel: int, data: bytes, end: bool) -> None:
        self.agent.connection.consumed(self.stream, channel, len(data))
        if channel == CONTENT and data and self.failed is None:
            try:
                for item in self.reader.feed(data):
                    self.item(item)
            except Refused as refused:
                self.fail(refused.number, refused.path)
            except RecordError:
                self.fail(errno.EPROTO, b"")
            except OSError as error:
                self.fail(error.errno or errno.EIO, self.target)
        if end and channel == CONTENT:
            self.finish()

    def pump(self) -> bool:
        return False

    def item(self, item: Any) -> None:
        if isinstance(item, Chunk):
            if self.link is not None:
                self.link += item
                if len(self.link) > 4096:
                    raise Refused(errno.ENAMETOOLONG, self.target)
                return
            view = memoryview(item)
            while view:
                view = view[os.write(self.fd, view) :]
            self.bytes += len(item)
        elif isinstance(item, Whole):
            if item.error:
                raise Refused(item.error, self.target)
            self.complete()
        else:
            self.begin(item)

    def begin(self, record: Record) -> None:
        parts = check_relative(record.name)
        self.target = record.name
        if record.kind == FOLDER:
            self.parent(parts)
            return
        self.folder = self.parent(parts[:-1])
        self.name = parts[-1]
        self.mode = record.mode & 0o777
        self.mtime_ns = record.mtime_ns
        if record.kind == LINK:
            self.link = bytearray()
        elif record.kind == REGULAR:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.fd = os.open(self.written_as(), flags, self.mode, dir_fd=self.folder)
        else:
            raise Refused(errno.EINVAL, record.name)
        if not record.chunked:
            self.complete()

    def written_as(self) -> bytes:
        return self.name if self.swap else b".part-" + self.token

    def complete(self) -> None:
        self.files += 1
        if self.link is not None:
            target, self.link = bytes(self.link), None
            if not self.swap:
                remove_tree(self.name, self.folder)
            os.symlink(target, self.name, dir_fd=self.folder)
            return
        if self.mode & UMASK:
            os.fchmod(self.fd, self.mode)
        if self.mtime_ns:
            os.utime(self.fd, ns=(self.mtime_ns, self.mtime_ns))
        os.close(self.fd)
        self.fd = -1
        if not self.swap:
            part = self.written_as()
            try:
                os.rename(part, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            except OSError:
                os.unlink(part, dir_fd=self.folder)
                raise

    def parent(self, parts: Tuple[bytes, ...]) -> int:
        """The open folder for these components, made where it is missing."""
        key = b"/".join(parts)
        found = self.parents.get(key)
        if found is not None:
            return found
        if len(self.parents) > 16:  # stay far below the smallest limit of open files
            self.close_parents()
        if not parts:
            path = self.base + b"/" + self.staging if self.swap else self.base
            place = locate(path + b"/x", create=True)
            folder = place.folder
        else:
            above = self.parent(parts[:-1])
            try:
                os.mkdir(parts[-1], 0o755, dir_fd=above)
            except FileExistsError:
                pass
            try:
                folder = os.open(parts[-1], FOLDER_FLAGS, dir_fd=above)
            except OSError as error:
                if self.swap or error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                folder, _ = open_folder(self.base + b"/" + key)  # a link that stays inside
        self.parents[key] = folder
        return folder

    def close_parents(self) -> None:
        for folder in self.parents.values():
            os.close(folder)
        self.parents.clear()

    def fail(self, number: int, path: bytes) -> None:
        self.failed = (number, path)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            try:
                os.unlink(self.written_as(), dir_fd=self.folder)
            except OSError:
                pass
        self.close_parents()
        if self.swap:
            self.remove(self.staging)

    def abort(self, number: int) -> None:
        self.fail(number, b"")
        self.finish()

    def remove(self, name: bytes) -> None:
        try:
            folder, _ = open_folder(self.base)
        except Refused:
            return
        try:
            remove_tree(name, folder)
        except OSError:
            pass
        finally:
            os.close(folder)

    def finish(self) -> None:
        if self.failed is None and not self.reader.idle:
            self.fail(errno.EPROTO, b"")
        if self.failed is None and self.swap:
            try:
                self.parent(())
                self.close_parents()
                self.swap_in(self.swap)
            except Refused as refused:
                self.fail(refused.number, refused.path)
            except OSError as error:
                self.fail(error.errno or errno.EIO, self.swap)
        self.close_parents()
        connection = self.agent.connection
        connection.data(self.stream, CONTENT, b"", end=True)
        if self.failed is None:
            body = {"files": self.files, "bytes": self.bytes}
        else:
            number, path = self.failed
            body = {"errno": number, "path": path.decode("utf-8", "backslashreplace")[:1024]}  # type: ignore[dict-item]
        connection.control(REPLY, self.stream, body)
        self.agent.files.pop(self.stream, None)

    def swap_in(self, name: bytes) -> None:
        check_relative(name)
        folder, _ = open_folder(self.base)
        old = b".old-" + self.token
        try:
            try:
                os.rename(name, old, src_dir_fd=folder, dst_dir_fd=folder)
            except FileNotFoundError:
                pass
            try:
                os.rename(self.staging, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                try:
                    os.rename(old, name, src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    pass
                raise
            try:
                remove_tree(old, folder)
            except OSError:
                pass  # the new one stands; a script that still writes into the old one keeps its litter
        finally:
            os.close(folder)


TASKS: Dict[str, Any] = {
    "put": PutTask,
    "get": GetTask,
    "list": ListTask,
    "remove": RemoveTask,
    "link": LinkTask,
}


# -- the loop -----------------------------------------------------------------------------------------


class Agent:
    """The loop, the processes and the timers."""

    def __init__(self, lease: float, score: Score) -> None:
        self.score = score
        self.oom = OomCounter()
        self.connection = Connection(GUEST)
        self.epoll = select.epoll()
        self.handlers: Dict[int, Callable[[int], None]] = {}
        self.runs: Dict[int, Run] = {}
        self.by_pid: Dict[int, Run] = {}
        self.files: Dict[int, Any] = {}
        self.calls: Dict[int, Tuple[Door, Any]] = {}  # by stream
        self.tunnels: Dict[int, Any] = {}  # by stream
        self.next_call = 2
        self.paused: List[Any] = []  # what waits until the stream has taken what was queued
        self.timers: List[Tuple[float, Callable[[], None]]] = []
        self.chores: List[Callable[[], None]] = []  # what is done while the host reads its answer
        self.unsent: Deque[Any] = deque()
        self.writing = False
        self.lease = lease
        self.heard = time.monotonic()
        self.wake_read, self.wake_write = os.pipe()

    # -- plumbing --

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self.handlers[fd] = handler
        self.epoll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        if self.handlers.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def at(self, delay: float, action: Callable[[], None]) -> Any:
        timer = (time.monotonic() + delay, action)
        self.timers.append(timer)
        return timer

    def cancel(self, timer: Any) -> None:
        if timer in self.timers:
            self.timers.remove(timer)

    def loop(self) -> None:
        for fd in (0, 1, self.wake_read, self.wake_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.watch(0, select.EPOLLIN, self.host_readable)
        self.watch(self.wake_read, select.EPOLLIN, self.child_changed)
        while True:
            self.write()
            if self.chores:
                chores, self.chores = self.chores, []
                for chore in chores:
                    chore()
            for fd, events in self.epoll.poll(self.wait(), 64):
                handler = self.handlers.get(fd)
                if handler is not None:
                    handler(events)
            self.run_timers()
            if self.paused:
                self.paused = [source for source in self.paused if not source.resume()]
            for stream, task in list(self.files.items()):
                try:
                    task.pump()
                except Exception:
                    self.give_up(stream)

    def wait(self) -> float:
        now = time.monotonic()
        soonest = self.heard + self.lease
        for when, _ in self.timers:
            soonest = min(soonest, when)
        return max(0.0, soonest - now)

    def run_timers(self) -> None:
        now = time.monotonic()
        if now - self.heard > self.lease:
            leave("no word from the host for %g s" % self.lease)
        if self.timers:
            due = [timer for timer in self.timers if timer[0] <= now]
            if due:
                self.timers = [timer for timer in self.timers if timer[0] > now]
                for _, action in due:
                    action()

    def host_readable(self, _events: int) -> None:
        try:
            data = os.read(0, READ)
        except BlockingIOError:
            return
        if not data:
            leave("")
        self.heard = time.monotonic()
        for event in self.connection.receive(data):
            try:
                self.dispatch(event)
            except ProtocolError:
                raise
            except Exception:
                self.give_up(event.stream, event.type)

    def write(self) -> None:
        while True:
            if not self.unsent:
                self.unsent.extend(self.connection.outgoing())
                if not self.unsent:
                    break
            try:
                size = os.writev(1, [self.unsent[i] for i in range(min(len(self.unsent), 512))])
            except BlockingIOError:
                if not self.writing:
                    self.writing = True
                    self.watch(1, select.EPOLLOUT, lambda _events: None)
                return
            while size:
                first = self.unsent[0]
                if size >= len(first):
                    size -= len(first)
                    self.unsent.popleft()
                else:
                    self.unsent[0] = memoryview(first)[size:]
                    size = 0
        if self.writing:
            self.writing = False
            self.unwatch(1)

    # -- frames --

    def dispatch(self, event: Event) -> None:
        kind, stream = event.type, event.stream
        if kind == DATA:
            run = self.runs.get(stream)
            if run is not None:
                if event.channel == ARGS:
                    run.take_args(event.body, event.end)
                elif event.channel == CONTENT:
                    run.take_files(event.body, event.end)
                else:
                    run.feed(event.body, event.end)
                return
            task = self.files.get(stream)
            if task is not None:
                task.received(event.channel, event.body, event.end)
            elif stream in self.calls:
                door, call = self.calls[stream]
                door.answer_data(call, event.body, event.end)
            elif stream in self.tunnels:
                self.tunnels[stream].take(event.body, event.end)
            else:
                self.connection.consumed(stream, event.channel, len(event.body))
        elif kind == RESULT:
            if stream in self.calls:
                door, call = self.calls[stream]
                door.result(call, event.body)
            elif stream in self.tunnels:
                self.tunnels[stream].result()
        elif kind == RUN:
            self.runs[stream] = Run(self, stream, event.body)
        elif kind == FILE:
            self.files[stream] = TASKS.get(event.body.get("op"), FileTask)(self, stream, event.body)
        elif kind == SIGNAL:
            run = self.runs.get(stream)
            if run is not None:
                run.signalled(event.body)
            elif stream in self.files:  # the only thing to say to a file task: stop
                self.files[stream].abort(errno.ECANCELED)
        elif kind == GOODBYE:
            leave("")

    def give_up(self, stream: int, kind: int = DATA) -> None:
        """A request that cannot be understood, or met a fault of ours: it ends, and nothing else does."""
        task = self.files.get(stream)
        if task is None and kind == FILE:
            task = FileTask(self, stream, {})
        if task is not None:
            task.abort(errno.EPROTO)
            return
        run = self.runs.get(stream)
        if run is None and kind == RUN:
            run = Run(self, stream, {})
        if run is not None and run.state == "args":
            run.over({"code": 126, "signal": None, "errno": errno.EPROTO})

    def output_closed(self, stream: int) -> None:
        run = self.runs.get(stream)
        if run is not None:
            run.output_closed()

    # -- processes --

    def child_changed(self, _events: int) -> None:
        try:
            os.read(self.wake_read, 4096)
        except BlockingIOError:
            pass
        self.reap()

    def reap(self) -> bool:
        """Collect every dead child. False when no child is left at all."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            run = self.by_pid.get(pid)
            if run is not None:
                run.exited(status, usage)

    def kill_members(self, run: Run, number: int) -> int:
        """Signal every process of the run; how many there were. Dead ones are collected on the way."""
        alone = len(self.runs) == 1
        if alone and not self.reap():
            return 0
        if not alone and run.state == "sweeping" and not self.orphans():
            return 0
        members = self.members(run, alone)
        if number == signal.SIGKILL:
            if run.status is not None:
                run.killed |= members
            if not alone:
                # Stopped first, so that none forks while the others are being killed.
                seen: Set[int] = set()
                while members - seen:
                    for pid in members - seen:
                        send(pid, signal.SIGSTOP)
                    seen |= members
                    members = self.members(run, False)
                members |= seen
        if alone:
            send(-1, number)
        else:
            for pid in members:
                send(pid, number)
        return len(members)

    def orphans(self) -> Set[int]:
        """Children of this process that are not leaders of runs."""
        try:
            with open("/proc/self/task/%d/children" % os.getpid()) as file:
                children = {int(pid) for pid in file.read().split()}
        except OSError:
            children = {pid for pid, (parent, _, _) in processes().items() if parent == os.getpid()}
        return children - set(self.by_pid)

    def members(self, run: Run, alone: bool) -> Set[int]:
        """The living processes of a run, zombies left out."""
        table = processes()
        own = os.getpid()
        if alone:
            return {pid for pid, (_, _, state) in table.items() if pid != own and state not in "ZX"}
        below: Dict[int, List[int]] = {}
        for pid, (parent, _, _) in table.items():
            below.setdefault(parent, []).append(pid)
        tops = {run.pid} if run.pid in self.by_pid else set()
        for pid in below.get(own, ()):
            if pid not in self.by_pid and self.owner(pid, table[pid][1], run) is run:
                tops.add(pid)
        found: Set[int] = set()
        waiting = list(tops)
        while waiting:
            pid = waiting.pop()
            if pid in found or pid not in table:
                continue
            found.add(pid)
            waiting.extend(below.get(pid, ()))
        return {pid for pid in found if table[pid][2] not in "ZX"}

    def belongs(self, pid: int, run: Run) -> bool:
        """Whether a process surely belongs to a run: it descends from the leader, or is an orphan in the
        leader's session, which no other process can join. Whoever hides its descent does not belong.
        """
        own = os.getpid()
        for _ in range(MAX_GENERATIONS):
            leads = self.by_pid.get(pid)
            if leads is not None:
                return leads is run
            found = process_line(pid)
            if found is None:
                return False
            parent, session, _ = found
            if parent == own:
                return session == run.pid and run.pid in self.by_pid
            pid = parent
        return False

    def owner(self, pid: int, session: int, asking: Run) -> Optional[Run]:
        """The run that an orphan belongs to; the one that asks when it hides that."""
        others = [run for run in self.runs.values() if run is not asking]
        for run in others:
            if session == run.pid:
                return run
        if session == asking.pid:
            return asking
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                marks = file.read(1 << 17).split(b"\0")
        except OSError:
            return asking
        for run in others:
            if run.marker in marks:
                return run
        return asking


def processes() -> Dict[int, Tuple[int, int, str]]:
    """pid → (parent, session, state letter) of everything in this pid namespace."""
    table: Dict[int, Tuple[int, int, str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = process_line(int(name))
            if found is not None:
                table[int(name)] = found
    return table


def process_line(pid: int) -> Optional[Tuple[int, int, str]]:
    """(parent, session, state letter) of a process; None when there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[3]), fields[0].decode("ascii")


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def leave(why: str) -> None:
    """End everything in the sandbox and this process with it."""
    if os.getpid() == 1:
        send(-1, signal.SIGKILL)
    if why:
        os.write(2, ("executor guest: %s\n" % why).encode("utf-8", "replace"))
    os._exit(0)


def make_workspace() -> None:
    """The workspace's folders and links, where they are not."""
    for name in WORKSPACE_FOLDERS:
        try:
            os.mkdir(b"/workspace/" + name, 0o755)
        except OSError:
            pass  # there, or there is no room
    for name, target in WORKSPACE_LINKS:
        try:
            os.symlink(target, b"/workspace/" + name)
        except OSError:
            pass  # there, or a script put something else in the place of its folder
    try:
        os.mkdir("/tmp/home", 0o700)
    except OSError:
        pass


def link_compiled() -> None:
    """Put the library's compiled form, which comes with an image of ours, where runs look for it."""
    try:
        names = os.listdir(COMPILED)
        os.makedirs(COMPILED_SEEN)
        for name in names:
            os.symlink(COMPILED + "/" + name, COMPILED_SEEN + "/" + name)
    except OSError:
        pass  # not an image of ours
    try:
        if os.path.isdir(LAYERS_COMPILED):
            os.makedirs(os.path.dirname(LAYERS_COMPILED_SEEN), exist_ok=True)
            os.symlink(LAYERS_COMPILED, LAYERS_COMPILED_SEEN)
    except OSError:
        pass


def main() -> None:
    os.closerange(3, 1 << 16)  # what a runtime let through would reach every script
    score = Score()
    harden()
    # The host's hello comes first; it is read here because it sets the limits of this process.
    connection = Connection(GUEST)
    events: List[Event] = []
    while not events:
        data = os.read(0, 65536)
        if not data:
            os._exit(0)
        events = connection.receive(data)
    hello = events[0].body
    set_limits(hello["rlimits"])
    agent = Agent(float(hello["lease_s"]), score)
    agent.connection = connection
    make_workspace()
    link_compiled()
    body = attest()
    body["nonce"] = hello["nonce"]
    connection.control(HELLO, 0, body)
    try:
        for event in events[1:]:
            agent.dispatch(event)
        agent.loop()
    except ProtocolError as error:
        leave("protocol: %s" % error)


if __name__ == "__main__":
    main()
