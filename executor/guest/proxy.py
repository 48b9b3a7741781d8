"""The way of a run to the network: a port on the sandbox's own loopback that scripts take for an HTTP proxy.

Nothing is understood here. Every connection to the port becomes a TUNNEL to the host, which reads the
requests, decides, resolves names and connects; bytes go both ways as credit allows. A run that was granted no
network has no port.

Who may connect: a process of the run, which the kernel's tables tell: /proc/net/tcp has the inode of the
connection's other end, and /proc/<pid>/fd who holds it. That costs a millisecond or more, little beside a
connection to somewhere else; to keep whoever makes it cost more from holding up the other runs, a slow look
is followed by nine times as long a pause.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import time
from collections import deque

from executor.guest.wire import ARGS, CANCEL, CONTENT, MAX_CALLS, TUNNEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List

    from executor.guest.wire import Body

TUNNEL_READ = 64 * 1024
TUNNEL_HIGH = 256 * 1024  # queued bytes at which a connection is no longer read
SPARE = 32  # of MAX_CALLS, which tunnels leave to the calls
MAX_LOOKED = 8192  # descriptors that are looked at to find who connected
SLOW_LOOK = 0.005  # seconds of processor time
BACKLOG = 128
RETRY = 0.05


class Proxy:
    """The port of one run and the connections to it."""

    def __init__(self, agent: Any, run: Any, spec: Body) -> None:
        self.agent = agent
        self.run = run
        self.most = int(spec["connections"])
        self.variables: List[bytes] = [name.encode("ascii") for name in spec["variables"]]
        self.listener: Any = None
        self.port = 0
        self.listening = False
        self.quiet_until = 0.0
        self.tunnels: List[Tunnel] = []
        self.known: Deque[int] = deque(maxlen=8)  # processes that connected before
        self.closed = False

    def open(self, environment: Dict[bytes, bytes]) -> None:
        """Listen, and tell the run where."""
        import _socket

        os.close(os.open("/proc/net/tcp", os.O_RDONLY | os.O_CLOEXEC))  # without it nobody would be let in
        self.listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        self.listener.bind(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.listener.setblocking(False)
        self.listener.listen(BACKLOG)
        for name in self.variables:
            environment[name] = b"http://127.0.0.1:%d" % self.port
        self.listen()

    def listen(self) -> None:
        if not (self.closed or self.listening) and time.monotonic() >= self.quiet_until:
            self.listening = True
            self.agent.watch(self.listener.fileno(), select.EPOLLIN, self.accept)

    def deafen(self, pause: float = 0.0) -> None:
        """Take no connection for a while, or until one ends."""
        if self.listening:
            self.listening = False
            self.agent.unwatch(self.listener.fileno())
        if pause:
            self.quiet_until = time.monotonic() + pause
            self.agent.at(pause, self.listen)

    def accept(self, _events: int) -> None:
        if len(self.tunnels) >= self.most:
            self.deafen()
            return
        if self.agent.connection.open_calls >= MAX_CALLS - SPARE:
            self.deafen(RETRY)
            return
        try:
            fd, address = self.listener._accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self.deafen(RETRY)
            return
        before = time.process_time()  # what it costs, and not how busy the machine is
        admitted = self.comes_from_the_run(address)
        spent = time.process_time() - before
        if spent > SLOW_LOOK:
            self.deafen(9 * spent)
        if not admitted:
            os.close(fd)
            return
        os.set_blocking(fd, False)
        self.tunnels.append(Tunnel(self, fd))

    def comes_from_the_run(self, address: Any) -> bool:
        inode = inode_of(address, self.port)
        if not inode:
            return False
        target = b"socket:[%s]" % inode
        left = MAX_LOOKED
        others = self.agent.members(self.run, False)
        for pid in [*reversed(self.known), *others.difference(self.known)]:
            folder = b"/proc/%d/fd" % pid
            try:
                names = os.listdir(folder)
            except OSError:
                continue
            for name in reversed(names):  # what was opened last usually stands last
                left -= 1
                if left < 0:
                    return False
                try:
                    found = os.readlink(folder + b"/" + name)
                except OSError:
                    continue
                if found == target and self.agent.belongs(pid, self.run):
                    if pid not in self.known:
                        self.known.append(pid)
                    return True
        return False

    def ended(self, tunnel: Tunnel) -> None:
        self.tunnels.remove(tunnel)
        self.listen()

    def close(self) -> None:
        if self.closed:
            return
        self.deafen()
        self.closed = True
        for tunnel in list(self.tunnels):
            tunnel.drop()
        if self.listener is not None:
            self.listener.close()


class Tunnel:
    """One connection: what the client writes goes to the host, what the host sends is written back."""

    def __init__(self, proxy: Proxy, fd: int) -> None:
        self.proxy = proxy
        self.agent = proxy.agent
        self.fd = fd
        self.stream = self.agent.next_call
        self.agent.next_call += 2
        self.waiting: Deque[Any] = deque()
        self.paused = False  # the stream has enough of what the client wrote
        self.finished = False  # the client writes no more
        self.ended = False  # the host sends no more
        self.over = False  # the host has said its last word
        self.writing = False
        self.mask = -1
        self.agent.tunnels[self.stream] = self
        self.agent.connection.control(TUNNEL, self.stream, {"run": proxy.run.stream})
        self.watch()

    def watch(self) -> None:
        if self.fd < 0:
            return
        reading = not (self.paused or self.finished or self.over)
        mask = (select.EPOLLIN if reading else 0) | (select.EPOLLOUT if self.writing else 0)
        if mask != self.mask:
            self.mask = mask
            self.agent.unwatch(self.fd)
            self.agent.watch(self.fd, mask, self.ready)

    def ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self.writing = False
            self.flush()
        if self.fd >= 0 and events & self.mask & select.EPOLLIN:
            self.read()
        elif self.fd >= 0 and events & (select.EPOLLHUP | select.EPOLLERR):
            self.drop()
        self.watch()

    def read(self) -> None:
        try:
            data = os.read(self.fd, TUNNEL_READ)
        except BlockingIOError:
            return
        except OSError:
            self.drop()
            return
        connection = self.agent.connection
        self.finished = not data
        connection.data(self.stream, ARGS, data, end=not data)
        if connection.queued(self.stream, ARGS) > TUNNEL_HIGH:
            self.paused = True
            self.agent.paused.append(self)

    def resume(self) -> bool:
        """Read on when the stream has taken what was queued. True when done with waiting."""
        if self.fd >= 0 and self.agent.connection.queued(self.stream, ARGS) > TUNNEL_HIGH // 2:
            return False
        self.paused = False
        self.watch()
        return True

    def take(self, data: bytes, end: bool) -> None:
        """What the host sends."""
        self.ended = self.ended or end
        if self.fd < 0:
            self.agent.connection.consumed(self.stream, CONTENT, len(data))
        elif data:
            self.waiting.append(memoryview(data))
        self.flush()
        self.forget_if_over()

    def result(self) -> None:
        """The host is done with it."""
        self.over = True
        self.flush()
        self.forget_if_over()

    def flush(self) -> None:
        while self.waiting and self.fd >= 0:
            piece = self.waiting[0]
            try:
                size = os.write(self.fd, piece)
            except BlockingIOError:
                self.writing = True
                self.watch()
                return
            except OSError:
                self.drop()
                return
            self.agent.connection.consumed(self.stream, CONTENT, size)
            if size == len(piece):
                self.waiting.popleft()
            else:
                self.waiting[0] = piece[size:]
        if self.ended and self.fd >= 0:
            if self.over:
                self.drop()
            else:
                half_close(self.fd)

    def forget_if_over(self) -> None:
        if self.over and self.ended and self.fd < 0:
            self.agent.tunnels.pop(self.stream, None)
        self.watch()

    def drop(self) -> None:
        """The connection ends."""
        if self.fd < 0:
            return
        self.agent.unwatch(self.fd)
        os.close(self.fd)
        self.fd = -1
        connection = self.agent.connection
        for piece in self.waiting:
            connection.consumed(self.stream, CONTENT, len(piece))
        self.waiting.clear()
        if not self.over:
            connection.cut(self.stream, ARGS)
            connection.control(CANCEL, self.stream, {})
        self.proxy.ended(self)
        self.forget_if_over()


def half_close(fd: int) -> None:
    """No more is written; what the client still writes is read."""
    import _socket

    socket = _socket.socket(fileno=fd)
    try:
        socket.shutdown(_socket.SHUT_WR)
    except OSError:
        pass
    finally:
        socket.detach()


def inode_of(client: Any, port: int) -> bytes:
    """The inode of the socket at the client's end of a connection to a port of the loopback, or nothing."""
    import _socket

    def shown(address: bytes, number: int) -> bytes:
        return b"%08X:%04X" % (int.from_bytes(address, sys.byteorder), number)

    # A client may also be a socket of IPv6 that speaks IPv4: the table shows the same words behind a prefix.
    ends = shown(_socket.inet_aton(client[0]), client[1]), shown(b"\x7f\0\0\1", port)
    prefix = b"0" * 16 + b"%08X" % int.from_bytes(b"\0\0\xff\xff", sys.byteorder)
    for table, before in (("/proc/net/tcp", b""), ("/proc/net/tcp6", prefix)):
        wanted = b" %s%s %s%s " % (before, ends[0], before, ends[1])
        try:
            with open(table, "rb") as file:
                for line in file:
                    if wanted in line:
                        return line.split()[9]
        except OSError:
            continue
    return b""
