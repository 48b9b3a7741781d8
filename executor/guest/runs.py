"""One run: its launch, its output and input, its end, and the end of all that it left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import stat
import struct
import time
from collections import deque

from executor.guest.door import Door
from executor.guest.paths import Refused, locate, make_workspace, open_folder, remove_below
from executor.guest.records import (
    split_names,
)
from executor.guest.warm import HandOver, is_script
from executor.guest.wire import (
    ARGS,
    CONTENT,
    EXIT,
    STARTED,
    STDERR,
    STDIN,
    STDOUT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, Optional, Set, Tuple

    from executor.guest.agent import Agent
    from executor.guest.wire import Body

DRAIN = 0.2  # what a run's leftovers have to finish writing after the leader's exit
SWEEP = 2.0  # how long a killed process may take to go before the run is reported without it
READ = 256 * 1024  # of a pipe at a time
HIGH_WATER = 512 * 1024  # queued bytes of a channel at which its source is no longer read


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


class Launch:
    """What a run's process is made of, until it is there. `ours` and `theirs` are the ends of its stdio."""

    def __init__(
        self, program: bytes, argv: List[bytes], environment: Dict[bytes, bytes], folder: int
    ) -> None:
        self.program = program
        self.argv = argv
        self.environment = environment
        self.folder = folder
        self.ours: List[int] = []
        self.theirs: List[int] = []
        self.terminal = ""  # its name, of a run that has one

    def words(self) -> Tuple[Any, ...]:
        """The arguments of `Agent.spawn`."""
        return self.program, self.argv, self.environment, self.theirs, self.terminal

    def take(self) -> List[int]:
        """Our ends; the rest is closed."""
        ours, self.ours = self.ours, []
        self.close()
        return ours

    def close(self) -> None:
        for fd in (self.folder, *self.ours, *self.theirs):
            os.close(fd)


class Run:
    """One script with everything that it starts. Life: args → (starting →) alive → draining → sweeping
    → over.
    """

    def __init__(self, agent: Agent, stream: int, spec: Body) -> None:
        self.agent = agent
        self.stream = stream
        self.spec = spec
        self.marker = b""
        self.folder = b""
        self.args = bytearray()
        self.early_signals: List[int] = []
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
        self.launch: Optional[Launch] = None
        self.hand_over: Optional[HandOver] = None
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
        if self.spec.get("only_warm"):  # so that the first run of its kind may find it
            self.agent.warm.find(
                self, find_program(argv[0], environment.get(b"PATH", b"")), argv, environment
            )
            self.over({"code": 0, "signal": None})
            return
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
            self.prepare(argv, environment, folder)
            self.begin()
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

    def prepare(self, argv: List[bytes], environment: Dict[bytes, bytes], folder: int) -> None:
        """Make what its process is started with, in its working folder."""
        if self.spec["shell"]:
            shell = b"/bin/bash" if os.path.exists(b"/bin/bash") else b"/bin/sh"
            argv = [shell, b"-c", *argv]
        program = find_program(argv[0], environment.get(b"PATH", b""))
        self.launch = launch = Launch(program, argv, environment, os.dup(folder))
        if self.spec["pty"]:
            launch.terminal = self.prepare_terminal(launch.ours, launch.theirs)
        else:
            self.prepare_pipes(launch.ours, launch.theirs)

    def begin(self) -> None:
        """Start its process, by a warm interpreter where that is the same."""
        launch = self.launch
        assert launch is not None
        self.started = time.monotonic()
        if is_script(launch.argv):
            zygote = self.agent.warm.find(self, launch.program, launch.argv, launch.environment)
            if zygote is not None:
                try:
                    self.hand_over = HandOver(self.agent.warm, zygote, self, launch)
                    self.state = "starting"
                    return
                except OSError:
                    pass  # it is stopped, or there is no room: a cold start finds out
        self.began(self.agent.spawn(*launch.words()))

    def go_cold(self) -> None:
        """A warm interpreter did not start it."""
        launch, self.hand_over = self.launch, None
        assert launch is not None
        try:
            os.fchdir(launch.folder)
            self.began(self.agent.spawn(*launch.words()))
        except OSError as error:
            self.not_started(error, launch.argv)
        finally:
            os.chdir("/")

    def began(self, pid: int) -> None:
        """Its process is there."""
        launch, self.launch, self.hand_over = self.launch, None, None
        assert launch is not None
        self.pid = pid
        self.state = "alive"
        self.agent.by_pid[pid] = self
        self.attach(launch.take())
        if self.door is not None:  # its bridge's clock begins; nobody else asks, and waking the host costs
            self.agent.connection.control(STARTED, self.stream, {"pid": self.pid})
        if self.spec["timeout_ms"] is not None:
            self.deadline = self.agent.at(self.spec["timeout_ms"] / 1000, lambda: self.end("timeout"))
        for data, end in self.early_stdin:
            self.feed(data, end)
        self.early_stdin.clear()
        for number in self.early_signals:  # of a forked process, blocked until its script begins
            self.signal(number)

    def prepare_pipes(self, ours: List[int], theirs: List[int]) -> None:
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

    def prepare_terminal(self, ours: List[int], theirs: List[int]) -> str:
        master, slave = os.openpty()
        ours.append(master)
        theirs.append(slave)
        self.master = master
        self.resize(self.spec["pty"])
        return os.ttyname(slave)

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
        if self.state in ("args", "starting"):
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
        elif self.state == "starting":
            self.early_signals.append(int(body["signal"]))
        elif self.state == "alive":
            self.signal(int(body["signal"]))

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
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
        if grace is None:
            grace = self.spec["grace_ms"] / 1000
        if self.state in ("args", "starting"):  # of a Python that has just begun TERM is the end, too
            number = signal.SIGTERM if grace > 0 else signal.SIGKILL
            self.over({"code": None, "signal": int(number), "reason": reason})
            return
        if self.state != "alive" or self.terminated:
            return
        self.reason = reason
        self.terminated = True
        self.paused = False
        if self.door is not None:
            self.door.close()
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
        notice = self.agent.warm.tell()
        self.over(
            {
                **({"notice": notice} if notice else {}),
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
        if self.hand_over is not None:
            self.hand_over.close()
        if self.launch is not None:
            self.launch.close()
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
