"""The doors of a run's bridge: how its scripts reach the host, and nobody else does.

A run with a grant has a folder of its own below /tmp with the clients, a token and a Unix socket, and a port
on the loopback for the Bash commands, because Bash can open a TCP connection and no other. What comes in is
carried to the host as a CALL and what comes back is carried out again. Nothing is understood here, and
nothing is permitted here: that is the host's business.

Who may come in: a process that descends from the run's leader, or an orphan in the leader's session, that
knows the token. For the socket the kernel says who connected (SO_PEERCRED). On the port a client says its
pid and proves it by opening a file with a fresh name that it is told over the connection: /proc shows who
holds it. (/proc/net/tcp would say it too, but takes milliseconds.) Descriptors that a client passes are never
taken: what comes in is read, not received.

On the socket, after the token and a newline, each way: a header (kind, id, length) and so many bytes. On the
port: the token and the pid, each ended by a NUL; back the file's name and a newline; then the fields that
`executor.bridge.shell` describes, each ended by a NUL; back the raw answer.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
import struct
import time
from collections import deque

from executor.guest.proxy import Proxy
from executor.guest.records import FOLDER, LINK, Chunk, RecordReader, Whole, check_relative
from executor.guest.wire import ARGS, CALL, CANCEL, CONTENT, MAX_CALLS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, Optional

    from executor.guest.wire import Body

MAX_CLIENTS = 16  # connections of one run
IDLE = 2.0  # seconds for the token, and for the rest of a request that has begun
CROWDED = 0.05  # seconds that a client without a token keeps its place while others wait for one
PROVED = 0.5  # the same for a Bash client that has proved who it is
HELD = 32 * 1024 * 1024  # bytes of requests under way at which no further one is read
DOOR_READ = 64 * 1024
SHELL_WORDS = 1000
DOOR_HEADER = struct.Struct(">BII")  # kind, id, length
REQUEST, GIVE_UP = 1, 2  # kinds
PEER = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED


class CallUnderWay:
    """One call of one client, from its request to the last byte of its answer."""

    __slots__ = ("arrived", "client", "ended", "held", "number", "size", "stream", "waiting")

    def __init__(self, client: DoorClient, stream: int, number: int, held: int) -> None:
        self.client: Optional[DoorClient] = client
        self.stream = stream
        self.number = number
        self.held = held  # bytes of the request
        self.size = -1  # of the answer, once it is known
        self.waiting: Deque[Any] = deque()
        self.arrived = 0
        self.ended = False


class Door:
    """The folder, the listeners and the clients of one run."""

    def __init__(self, agent: Any, run: Any, spec: Body) -> None:
        self.agent = agent
        self.run = run
        self.most = int(spec["calls"])
        self.argument = int(spec["argument"])
        (self.name,) = check_relative(os.fsencode(spec["name"]))
        self.folder = b"/tmp/" + self.name
        self.token = os.urandom(32).hex().encode("ascii")
        self.reader = RecordReader()
        self.writing = b""
        self.content: Optional[bytearray] = None
        self.record: Any = None
        self.complete = self.broken = False
        self.listeners: List[Any] = []
        self.listening = False
        self.clients: List[DoorClient] = []
        self.calls = 0
        self.held = 0
        self.closed = False
        self.proxy: Optional[Proxy] = Proxy(agent, run, spec["proxy"]) if spec.get("proxy") else None
        os.mkdir(self.folder, 0o700)

    # -- files --

    def take_files(self, data: bytes, end: bool) -> None:
        """The clients, as records. RecordError or OSError when they cannot be written."""
        self.agent.connection.consumed(self.run.stream, CONTENT, len(data))
        if self.broken:
            return
        for item in self.reader.feed(data):
            if isinstance(item, Chunk):
                assert self.content is not None
                self.content += item
            elif isinstance(item, Whole):
                self.write_file()
            else:
                self.record = item
                self.writing = self.folder + b"/" + b"/".join(check_relative(item.name))
                if item.kind == FOLDER:
                    os.mkdir(self.writing, 0o700)
                else:
                    self.content = bytearray()
                    if not item.chunked:
                        self.write_file()
        self.complete = self.complete or end

    def write_file(self) -> None:
        content, self.content = bytes(self.content or b""), None
        if self.record.kind == LINK:
            os.symlink(content, self.writing)
            return
        fd = os.open(self.writing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, self.record.mode)
        with open(fd, "wb") as file:
            file.write(content)

    # -- listening --

    def open(self, environment: Dict[bytes, bytes]) -> None:
        """Listen; where the run has to know of it, its environment says it."""
        import _socket

        path = self.folder + b"/s"
        unix = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.listeners.append(unix)
        unix.bind(path)
        os.chmod(path, 0o600)
        tcp = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        self.listeners.append(tcp)
        tcp.bind(("127.0.0.1", 0))
        for name, content in ((b"token", self.token), (b"port", b"%d" % tcp.getsockname()[1])):
            fd = os.open(self.folder + b"/" + name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
            with open(fd, "wb") as file:
                file.write(content + b"\n")
        for listener in self.listeners:
            listener.setblocking(False)
            listener.listen(64)
        self.listen()
        if self.proxy is not None:
            self.proxy.open(environment)

    def listen(self) -> None:
        """Take clients again, if there is room."""
        if self.closed or self.listening:
            return
        self.listening = True
        for listener in self.listeners:
            self.agent.watch(
                listener.fileno(), select.EPOLLIN, lambda _events, which=listener: self.accept(which)
            )

    def deafen(self) -> None:
        if self.listening:
            self.listening = False
            for listener in self.listeners:
                self.agent.unwatch(listener.fileno())

    def accept(self, listener: Any) -> None:
        if not self.make_room():
            self.deafen()
            self.agent.at(CROWDED, self.listen)
            return
        try:
            fd, _ = listener._accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self.deafen()
                self.agent.at(CROWDED, self.listen)
            return
        os.set_blocking(fd, False)
        if listener is self.listeners[1]:
            self.clients.append(ShellClient(self, fd))
            return
        try:
            pid = peer_pid(fd)
        except OSError:
            pid = 0
        if not pid or not self.agent.belongs(pid, self.run):
            os.close(fd)
            return
        self.clients.append(FrameClient(self, fd))

    def make_room(self) -> bool:
        """Whether there is a place. A client that only sits there loses its own to one that waits."""
        if len(self.clients) < MAX_CLIENTS:
            return True
        now = time.monotonic()
        for client in self.clients:
            if not client.admitted and now - client.since > CROWDED:
                client.drop()
                return True
        for client in self.clients:
            if client.idle and now - client.since > CROWDED:
                client.drop()
                return True
        return False

    # -- calls --

    @property
    def full(self) -> bool:
        """No further call may be opened now."""
        calls = self.agent.connection.open_calls
        return self.calls >= self.most or self.held > HELD or calls >= MAX_CALLS - MAX_CLIENTS

    def call(
        self, client: DoorClient, number: int, form: str, payload: bytes, refused: str = ""
    ) -> CallUnderWay:
        stream = self.agent.next_call
        self.agent.next_call += 2
        body = {"run": self.run.stream, "form": form}
        if refused:
            body["refused"] = refused
        found = CallUnderWay(client, stream, number, len(payload))
        self.agent.calls[stream] = (self, found)
        self.calls += 1
        self.held += len(payload)
        connection = self.agent.connection
        connection.control(CALL, stream, body)
        connection.data(stream, ARGS, payload, end=True)
        return found

    def result(self, call: CallUnderWay, body: Body) -> None:
        call.size = int(body["bytes"])
        if call.client is not None:
            call.client.answered(call)

    def answer_data(self, call: CallUnderWay, data: bytes, end: bool) -> None:
        call.arrived += len(data)
        call.ended = call.ended or end
        client = call.client
        if client is None:
            self.agent.connection.consumed(call.stream, CONTENT, len(data))
        else:
            if data:
                call.waiting.append(memoryview(data))
            client.pump()
        if end:
            self.agent.calls.pop(call.stream, None)
            self.calls -= 1
            if call.client is not None and call.arrived != call.size:
                call.client.drop()  # cut: the run is being ended
            self.held -= call.held
            for other in list(self.clients):
                other.resume()

    def cancel(self, call: CallUnderWay) -> None:
        """Nobody waits for it any more."""
        call.client = None
        connection = self.agent.connection
        connection.cut(call.stream, ARGS)
        connection.control(CANCEL, call.stream, {})
        for piece in call.waiting:
            connection.consumed(call.stream, CONTENT, len(piece))
        call.waiting.clear()

    # -- the end --

    def abandon(self) -> None:
        """The files cannot be written: what still comes of them is dropped, and the run will not start."""
        self.complete = self.broken = True

    def close(self) -> None:
        """No client comes in any more and those inside are dropped."""
        if self.closed:
            return
        self.deafen()
        self.closed = True
        for client in list(self.clients):
            client.drop()
        for listener in self.listeners:
            listener.close()
        if self.proxy is not None:
            self.proxy.close()
        try:
            os.unlink(self.folder + b"/s")
        except OSError:
            pass


class DoorClient:
    """One connection. Reads requests while there is room for them, and writes answers one after another."""

    def __init__(self, door: Door, fd: int) -> None:
        self.door = door
        self.fd = fd
        self.buffer = bytearray()
        self.admitted = False
        self.since = time.monotonic()  # of the last progress
        self.calls: Dict[int, CallUnderWay] = {}
        self.answers: Deque[CallUnderWay] = deque()
        self.head = b""  # of the answer that is being written
        self.head_of: Optional[CallUnderWay] = None
        self.reading = self.writing = False
        self.mask = -1
        self.finished = False  # sends no more
        self.last = False  # close when everything is answered
        self.watch()
        door.agent.at(IDLE, self.look)

    @property
    def idle(self) -> bool:
        return not self.calls and not self.buffer

    def watch(self) -> None:
        """Watch for what there is to do now."""
        if self.fd < 0:
            return
        reading = not (self.finished or self.last or (self.admitted and self.door.full))
        mask = (select.EPOLLIN if reading else 0) | (select.EPOLLOUT if self.writing else 0)
        mask |= select.EPOLLRDHUP if self.gone_when_silent else 0
        self.reading = reading
        if mask != self.mask:
            self.mask = mask
            self.door.agent.unwatch(self.fd)
            self.door.agent.watch(self.fd, mask, self.ready)

    gone_when_silent = False  # whether the end of what a client sends means that it has gone

    def ready(self, events: int) -> None:
        gone = select.EPOLLHUP | select.EPOLLERR | (select.EPOLLRDHUP if self.gone_when_silent else 0)
        if events & select.EPOLLOUT:
            self.writing = False
            self.pump()
        if self.fd >= 0 and events & select.EPOLLIN and self.reading:
            self.read()
        elif self.fd >= 0 and events & gone:
            self.drop()
        elif self.fd >= 0:
            self.watch()

    def read(self) -> None:
        try:
            data = os.read(self.fd, DOOR_READ)
        except BlockingIOError:
            return
        except OSError:
            self.drop()
            return
        if not data:
            self.finished = True
            if self.gone_when_silent or not self.calls:
                self.drop()
            else:
                self.watch()
            return
        self.since = time.monotonic()
        self.buffer += data
        self.proceed()

    def proceed(self) -> None:
        if not self.admitted:
            self.admitted = self.admit()
        if self.admitted and self.fd >= 0:
            self.parse()
        if self.fd >= 0:
            self.watch()

    def resume(self) -> None:
        """There may be room again."""
        if self.fd >= 0 and not self.reading and not self.last and not self.door.full:
            self.proceed()

    def admit(self) -> bool:
        """Whether the token has come; drops the client when something else has."""
        mark = self.buffer.find(self.separator)
        size = len(self.door.token)
        if mark < 0 and len(self.buffer) <= size:
            return False
        if mark != size or not same(bytes(self.buffer[:size]), self.door.token):
            self.drop()
            return False
        del self.buffer[: size + 1]
        return True

    separator = b"\n"

    def parse(self) -> None:
        raise NotImplementedError

    def refuse(self, number: int, form: str, why: str) -> None:
        """Let the host know, pass its answer on, and close."""
        if self.door.agent.connection.open_calls >= MAX_CALLS:
            self.drop()
            return
        self.buffer.clear()
        self.last = True
        self.calls[number] = self.door.call(self, number, form, b"", why)

    def answered(self, call: CallUnderWay) -> None:
        self.answers.append(call)
        self.pump()

    def begin(self, call: CallUnderWay) -> bytes:
        """What stands before an answer."""
        return b""

    def pump(self) -> None:
        """Write answers, whole and in turn, as far as the client takes them."""
        while self.answers and self.fd >= 0:
            call = self.answers[0]
            if self.head_of is not call:
                self.head_of, self.head = call, self.begin(call)
            while self.head or call.waiting:
                pieces = [piece for piece in (self.head, *itertools.islice(call.waiting, 1)) if piece]
                try:
                    size = os.writev(self.fd, pieces)
                except BlockingIOError:
                    if not self.writing:
                        self.writing = True
                        self.watch()
                    return
                except OSError:
                    self.drop()
                    return
                self.since = time.monotonic()
                from_head = min(size, len(self.head))
                self.head, size = self.head[from_head:], size - from_head
                if size:
                    self.door.agent.connection.consumed(call.stream, CONTENT, size)
                    if size == len(call.waiting[0]):
                        call.waiting.popleft()
                    else:
                        call.waiting[0] = call.waiting[0][size:]
            if not call.ended:
                return
            self.answers.popleft()
            self.calls.pop(call.number, None)
            if not self.calls and (self.last or self.finished):
                self.drop()

    def look(self) -> None:
        """Drop it when it has begun something and does not go on."""
        if self.fd < 0:
            return
        stuck = not self.admitted or (self.buffer and self.reading)
        if stuck and not self.door.run.paused and time.monotonic() - self.since > IDLE:
            self.drop()
        else:
            self.door.agent.at(IDLE, self.look)

    def drop(self) -> None:
        if self.fd < 0:
            return
        self.door.agent.unwatch(self.fd)
        os.close(self.fd)
        self.fd = -1
        self.buffer.clear()
        self.door.clients.remove(self)
        for call in list(self.calls.values()):
            self.door.cancel(call)
        self.calls.clear()
        self.answers.clear()
        if not self.door.closed:
            self.door.listen()


class FrameClient(DoorClient):
    """Python and Node: many calls side by side on one connection."""

    def parse(self) -> None:
        while len(self.buffer) >= DOOR_HEADER.size and not self.last and not self.door.full:
            kind, number, length = DOOR_HEADER.unpack_from(self.buffer)
            if kind == GIVE_UP and not length:
                del self.buffer[: DOOR_HEADER.size]
                call = self.calls.pop(number, None)
                if call is not None and call not in self.answers:
                    self.door.cancel(call)
                elif call is not None:
                    self.calls[number] = call  # its answer is on the way
                continue
            if kind != REQUEST or number in self.calls:
                self.refuse(number, "json", "malformed")
                return
            if length > self.door.argument:
                self.refuse(number, "json", "too large")
                return
            end = DOOR_HEADER.size + length
            if len(self.buffer) < end:
                return
            payload = bytes(self.buffer[DOOR_HEADER.size : end])
            del self.buffer[:end]
            self.calls[number] = self.door.call(self, number, "json", payload)

    def begin(self, call: CallUnderWay) -> bytes:
        return DOOR_HEADER.pack(REQUEST, call.number, call.size)


class ShellClient(DoorClient):
    """A Bash command: one call, then the end."""

    separator = b"\0"
    gone_when_silent = True

    @property
    def idle(self) -> bool:
        # Between its proof and its request: Bash cannot tell whether its call was made, so as to try again.
        return not self.calls and not self.buffer and time.monotonic() - self.since > PROVED

    def __init__(self, door: Door, fd: int) -> None:
        super().__init__(door, fd)
        self.pid = 0
        self.proof = b""  # the file that the client has to hold open

    def parse(self) -> None:
        if self.calls or self.last:
            return
        if not self.proof and not self.challenge():
            return
        buffer = self.buffer
        if len(buffer) > self.door.argument * 4 // 3 + DOOR_READ:
            self.settle(b"", "too large")
            return
        if buffer.count(b"\0") < 2:
            return
        count = bytes(buffer.split(b"\0", 2)[1])
        if not count.isdigit() or len(count) > 4 or int(count) > SHELL_WORDS:
            self.settle(b"", "malformed")
            return
        missing = int(count) + 3 - buffer.count(b"\0")
        if missing < 0 or (not missing and buffer[-1]):
            self.settle(b"", "malformed")
        elif not missing:
            self.settle(bytes(buffer), "")

    def challenge(self) -> bool:
        """Take the pid and say which file to open. Whether that is done."""
        mark = self.buffer.find(b"\0")
        pid = bytes(self.buffer[: max(mark, 0)])
        if mark > 10 or (mark < 0 and len(self.buffer) > 10) or (mark >= 0 and not pid.isdigit()):
            self.drop()
            return False
        if mark < 0:
            return False
        del self.buffer[: mark + 1]
        self.pid = int(pid)
        name = os.urandom(16).hex().encode("ascii")
        self.proof = self.door.folder + b"/" + name
        try:
            os.close(os.open(self.proof, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400))
            os.write(self.fd, name + b"\n")
        except OSError:
            self.drop()
            return False
        return True

    def settle(self, payload: bytes, refused: str) -> None:
        """Make the call, if the client is who it says it is."""
        if not holds(self.pid, self.proof) or not self.door.agent.belongs(self.pid, self.door.run):
            self.drop()
        elif refused:
            self.refuse(0, "shell", refused)
        else:
            self.buffer.clear()
            self.last = True
            self.calls[0] = self.door.call(self, 0, "shell", payload)

    def drop(self) -> None:
        if self.proof:
            try:
                os.unlink(self.proof)
            except OSError:
                pass
        super().drop()


def holds(pid: int, path: bytes) -> bool:
    """Whether a process has a file open."""
    folder = b"/proc/%d/fd" % pid
    try:
        return any(os.readlink(folder + b"/" + name) == path for name in os.listdir(folder))
    except OSError:
        return False


def peer_pid(fd: int) -> int:
    """Which process connected, as the kernel knows it."""
    import _socket

    socket = _socket.socket(fileno=fd)
    try:
        return int(PEER.unpack(socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, PEER.size))[0])
    finally:
        socket.detach()


def same(given: bytes, wanted: bytes) -> bool:
    """Whether two texts are equal, in a time that does not depend on where they differ."""
    difference = len(given) ^ len(wanted)
    for one, other in zip(given, wanted):
        difference |= one ^ other
    return difference == 0
