"""The host's end of a run's network: requests and tunnels of its scripts, each checked, resolved here,
connected to an address that was checked, and recorded.

A connection carries one request and is closed: a redirect is a new request and is checked as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from executor.bridge import hello, http1
from executor.bridge.grant import BridgeLimits
from executor.bridge.http1 import BadMessage
from executor.bridge.network import NetworkPolicy, Passage, Refusal, hostname, is_address
from executor.bridge.origin import PIECE, Failure, Mask, Origin, connect, credential, tls_context
from executor.channel.tunnels import Tunnel, TunnelClosed
from executor.errors import SandboxError

log = logging.getLogger("executor.bridge")
T = TypeVar("T")

HEAD_TIME = 10.0  # seconds for a client to send its request's headers
PATIENCE = 4  # connections, in multiples of the requests that are allowed, after which none is served
MAX_INTERIM = 8  # answers of the origin before the one that counts
SECRET = 8  # characters from which on a word of a credential is masked in an answer
LINGER = 1.0  # what a refused client has to read the answer while it still sends
REASONS = {
    200: "Connection established",
    400: "Bad Request",
    403: "Forbidden",
    411: "Length Required",
    413: "Content Too Large",
    414: "URI Too Long",
    417: "Expectation Failed",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    502: "Bad Gateway",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}


@dataclass
class Note:
    """What the audit will say of one connection."""

    method: str = ""
    host: str = ""
    port: int = 0
    path: str = ""
    address: str = ""
    rule: str = ""
    status: int = 0
    result: str = "ok"
    sent: int = 0
    received: int = 0
    secrets: list[str] = field(default_factory=list, repr=False)
    complete: bool = False
    """Whether a client that goes now has had what it came for."""
    began: float = field(default_factory=time.monotonic)


class Egress:
    """What one run may do on the network, and how much of it is left."""

    def __init__(
        self,
        policy: NetworkPolicy,
        limits: BridgeLimits,
        record: Callable[[Note], None],
        stopped: Callable[[], float],
    ) -> None:
        """`record` is called at the end of every connection; `stopped` says how long the run's clock has
        stood still.
        """
        self.policy = policy
        self._limits = limits
        self._record = record
        self._stopped = stopped
        self._tasks: set[asyncio.Task[None]] = set()
        self._attempts = self._requests = self._moved = 0
        self._tls: ssl.SSLContext | None = None
        self._revoked = False

    def connected(self, tunnel: Tunnel) -> None:
        """A script has connected. Served in a task of its own; this returns at once."""
        self._attempts += 1
        hammering = self._attempts > PATIENCE * self._limits.requests
        if self._revoked or hammering or len(self._tasks) >= self._limits.connections:
            tunnel.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(tunnel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        tunnel.on_cancel = task.cancel

    def revoke(self) -> None:
        """End every connection, and take no other."""
        self._revoked = True
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, tunnel: Tunnel) -> None:
        note = Note()
        source = http1.Source(lambda: self._within(self._limits.idle, tunnel.read))
        try:
            await self._request(tunnel, source, note)
        except BadMessage as error:
            note.status, note.result = error.status, "PROTOCOL"
            await self._answer(tunnel, error.status, str(error))
        except Failure as error:
            note.status, note.result = error.status, error.code
            await self._answer(tunnel, error.status, str(error))
        except (asyncio.CancelledError, TunnelClosed, SandboxError):
            if note.result == "ok" and not (note.complete and not self._revoked):
                note.result = "REVOKED" if self._revoked else "CANCELLED"
        except Exception:
            log.exception("a connection of a script failed inside the egress")
            note.result = "IO"
        finally:
            note.sent, note.received = tunnel.received, tunnel.sent
            if note.method or note.result not in ("CANCELLED", "REVOKED"):
                self._record(note)
            tunnel.close()
            if self._revoked:
                tunnel.cut()

    async def _answer(self, tunnel: Tunnel, status: int, why: str) -> None:
        """Say no, and let the client read it while it may still be sending."""
        body = (why + "\n").encode()
        head = http1.write_head(
            f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}".encode(),
            [
                (b"Content-Type", b"text/plain; charset=utf-8"),
                (b"Content-Length", str(len(body)).encode()),
                (b"Connection", b"close"),
                (b"Proxy-Status", b"executor"),
            ],
        )
        with contextlib.suppress(TunnelClosed, SandboxError, TimeoutError):
            async with asyncio.timeout(LINGER):
                await tunnel.write(head + body)
                await tunnel.end()
                while await tunnel.read():
                    pass

    # -- one request --

    async def _request(self, tunnel: Tunnel, source: http1.Source, note: Note) -> None:
        request = await self._read_head(source)
        self._requests += 1
        if self._requests > self._limits.requests:
            raise Failure(
                429, "TOO_MANY_CALLS", f"the run has used all of its {self._limits.requests} requests"
            )
        if request.method == "CONNECT":
            await self._connect(tunnel, source, request, note)
        else:
            await self._exchange(tunnel, source, request, note, None)

    async def _read_head(self, source: http1.Source) -> http1.Request:
        try:
            return http1.parse_request(await self._within(HEAD_TIME, source.head))
        except http1.NothingCame:
            raise TunnelClosed from None
        except TimeoutError:
            raise Failure(400, "TOOL_TIMEOUT", f"no request within {HEAD_TIME:g} s") from None

    async def _connect(
        self, tunnel: Tunnel, source: http1.Source, request: http1.Request, note: Note
    ) -> None:
        host, port = http1.authority(request.target, None)
        note.method, note.host, note.port = "CONNECT", host, port
        http1.check_host(request, host, port)
        try:
            passage: Passage | None = self.policy.tunnel(host, port)
        except Refusal as refusal:
            passage = None
            if not self.policy.carries_requests(host, port):
                raise Failure(403, "DENIED", str(refusal)) from None
        origin = None
        if passage is not None:
            note.rule = passage.rule
            origin = await self._open(host, passage, note)
        try:
            await tunnel.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            first = await source.peek()
            if first == hello.HANDSHAKE and origin is not None:
                await self._check_name(tunnel, source, host, note)
                note.status, note.complete = 200, True
                await self._splice(tunnel, source, origin, note)
                return
        except TimeoutError:
            raise TunnelClosed from None
        finally:
            if origin is not None:
                origin.close()
        if first < 0 or first == hello.HANDSHAKE:  # in TLS nothing can be looked into, nor answered
            raise TunnelClosed
        inner = await self._read_head(source)
        if inner.method == "CONNECT":
            raise BadMessage("a tunnel in a tunnel")
        await self._exchange(tunnel, source, inner, note, (host, port))

    async def _check_name(self, tunnel: Tunnel, source: http1.Source, host: str, note: Note) -> None:
        """TunnelClosed when the TLS in a tunnel asks for another host than the tunnel did."""
        try:
            named = await self._within(HEAD_TIME, lambda: hello.server_name(source))
            if is_address(host) or hostname(named) == host:
                return
            note.result = "DENIED"
        except (BadMessage, ValueError):
            note.result = "PROTOCOL"
        await tunnel.write(hello.ALERT)  # the only answer that a client of TLS understands
        await tunnel.end()
        raise TunnelClosed

    async def _exchange(
        self,
        tunnel: Tunnel,
        source: http1.Source,
        request: http1.Request,
        note: Note,
        inside: tuple[str, int] | None,
    ) -> None:
        """One request that is seen. `inside` is where the tunnel that it came through leads."""
        if inside is None:
            host, port, path = http1.absolute(request.target)
        else:
            host, port = inside
            path = request.target
            if not path.startswith("/"):
                raise BadMessage("inside a tunnel a request names a path")
        bare, mark, query = path.partition("?")
        note.method, note.host, note.port, note.path = request.method[:16], host, port, bare
        http1.check_host(request, host, port)
        if "#" in path:
            raise BadMessage("a request holds no fragment")
        if request.method == "TRACE":
            raise Failure(501, "DENIED", "TRACE is not passed on")
        if request.upgrade and request.upgrade != b"h2c":
            raise Failure(501, "DENIED", "no other protocol can be agreed on in a request; use https")
        if request.length is not None and request.length > self._limits.upload:
            raise Failure(413, "VALUE_TOO_LARGE", f"more than {self._limits.upload:,} bytes")
        try:
            passage = self.policy.request(host, port, request.method, bare)
        except Refusal as refusal:
            raise Failure(403, "DENIED", str(refusal)) from None
        note.rule = passage.rule
        for name, _ in request.fields if passage.narrow else ():
            if http1.known_as(name) in http1.OTHERWISE:
                why = f"{name.decode()} asks for more than the method and the path that are allowed"
                raise Failure(403, "DENIED", why)
        fields = await self._fields(request, host, passage, note)
        origin = await self._open(host, passage, note)
        try:
            await self._forward(tunnel, source, request, origin, bare + mark + query, fields, note)
        finally:
            origin.close()

    async def _fields(self, request: http1.Request, host: str, passage: Passage, note: Note) -> http1.Fields:
        """The headers for the origin, with what the host adds in place of what the script wrote there."""
        inject = {name: await credential(value) for name, value in passage.inject.items()}
        note.secrets = [
            secret for value in inject.values() for secret in {value, *value.split()} if len(secret) >= SECRET
        ]
        added = {http1.known_as(name.encode()) for name in inject}
        if inject:
            added.add(b"accept-encoding")  # what is compressed cannot be looked through
        shown = f"[{host}]" if ":" in host else host
        default = 443 if passage.tls else 80
        target = shown if passage.port == default else f"{shown}:{passage.port}"
        fields = [(b"Host", target.encode())]
        fields += [(name, value) for name, value in request.fields if http1.known_as(name) not in added]
        fields += [(name.encode(), value.encode("latin-1")) for name, value in inject.items()]
        if inject:
            fields.append((b"Accept-Encoding", b"identity"))
        if request.length is None:
            fields.append((b"Transfer-Encoding", b"chunked"))
        elif request.length or request.method in ("POST", "PUT", "PATCH"):
            fields.append((b"Content-Length", str(request.length).encode()))
        return [*fields, (b"Connection", b"close")]

    async def _forward(
        self,
        tunnel: Tunnel,
        source: http1.Source,
        request: http1.Request,
        origin: Origin,
        target: str,
        fields: http1.Fields,
        note: Note,
    ) -> None:
        line = f"{request.method} {target} HTTP/1.1".encode()
        if request.expects:
            await tunnel.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        back = http1.Source(lambda: self._within(self._limits.idle, origin.read))
        loop = asyncio.get_running_loop()
        up = loop.create_task(self._upload(source, request, origin, http1.write_head(line, fields)))
        down = loop.create_task(self._origin_head(back, request.method))
        try:
            # An origin may answer before it has read everything, and close.
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            if up.done() and not down.done() and not isinstance(up.exception(), OSError):
                up.result()
            answer = await down
            note.status = answer.status
            await self._download(tunnel, back, request, answer, note)
        finally:
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _origin_head(self, back: http1.Source, method: str) -> http1.Answer:
        """Failure."""
        try:
            for _ in range(MAX_INTERIM):
                answer = http1.parse_answer(await back.head(), method)
                if answer.status >= 200:
                    return answer
                if answer.status == 101:
                    break
            raise BadMessage("the origin wants another protocol")
        except http1.NothingCame:
            raise Failure(502, "IO", "the origin closed without an answer") from None
        except BadMessage as error:
            raise Failure(502, "IO", str(error)) from None
        except TimeoutError:
            raise Failure(504, "TOOL_TIMEOUT", "the origin did not answer in time") from None
        except OSError as error:
            raise Failure(502, "IO", f"the origin broke off: {error.strerror or error}") from None

    async def _upload(
        self, source: http1.Source, request: http1.Request, origin: Origin, head: bytes
    ) -> None:
        """The request to the origin. BadMessage, Failure; OSError when the origin takes no more."""
        sent = 0

        async def plain(data: bytes) -> None:
            self._count(len(data))
            await self._within(self._limits.idle, lambda: origin.write(data))

        async def chunk(data: bytes) -> None:
            nonlocal sent
            sent += len(data)
            _bounded(sent, self._limits.upload)
            await plain(b"%x\r\n%s\r\n" % (len(data), data))

        try:
            await plain(head)
            if request.length is None:
                await source.chunks(chunk)
                await plain(b"0\r\n\r\n")
            else:
                await source.exactly(request.length, plain)
        except TimeoutError:
            raise Failure(
                504, "TOOL_TIMEOUT", f"the request did not go on for {self._limits.idle:g} s"
            ) from None

    async def _download(
        self,
        tunnel: Tunnel,
        back: http1.Source,
        request: http1.Request,
        answer: http1.Answer,
        note: Note,
    ) -> None:
        """The answer to the script. One that breaks off is cut, which a client sees by its framing."""
        most = self._limits.download
        if answer.length is not None and answer.length > most:
            raise Failure(502, "VALUE_TOO_LARGE", f"the answer is larger than {most:,} bytes")
        chunked = answer.length is None and request.version == b"HTTP/1.1"
        mask = Mask(note.secrets)
        fields = [(name, mask.whole(value)) for name, value in answer.fields]
        if chunked:
            fields.append((b"Transfer-Encoding", b"chunked"))
        elif answer.length is not None and not answer.bodiless:
            fields.append((b"Content-Length", b"%d" % answer.length))
        fields.append((b"Connection", b"close"))
        line = b"HTTP/1.1 %d %s" % (answer.status, mask.whole(answer.reason))
        await tunnel.write(http1.write_head(line, fields))
        received = 0

        async def send(data: bytes) -> None:
            if data:
                piece = b"%x\r\n%s\r\n" % (len(data), data) if chunked else data
                await self._within(self._limits.idle, lambda: tunnel.write(piece))

        async def take(data: bytes) -> None:
            nonlocal received
            received += len(data)
            _bounded(received, most)
            self._count(len(data))
            await send(mask.next(data))

        try:
            if answer.chunked:
                await back.chunks(take)
            elif answer.length is not None:
                await back.exactly(answer.length, take)
            else:
                while data := await back.some(PIECE):
                    await take(data)
            await send(mask.rest())
            note.complete = True
            if chunked:
                await tunnel.write(b"0\r\n\r\n")
            await tunnel.end()
        except Failure as error:
            note.result = error.code
            raise TunnelClosed from None
        except (BadMessage, OSError, TimeoutError):
            note.result = "IO"
            raise TunnelClosed from None

    # -- tunnels --

    async def _splice(self, tunnel: Tunnel, source: http1.Source, origin: Origin, note: Note) -> None:
        """Bytes both ways until both have ended, one breaks off, or nothing moves."""
        moved = asyncio.Event()

        def counted(total: int, size: int, most: int) -> int:
            moved.set()
            _bounded(total + size, most)
            self._count(size)
            return total + size

        async def up() -> None:
            data, total = source.rest(), 0
            while data:
                total = counted(total, len(data), self._limits.upload)
                await origin.write(data)
                data = await tunnel.read()
            origin.writer.write_eof()

        async def down() -> None:
            total = 0
            while data := await origin.read():
                total = counted(total, len(data), self._limits.download)
                await tunnel.write(data)
            await tunnel.end()

        async def watch() -> None:
            while True:
                moved.clear()
                await self._within(self._limits.idle, moved.wait)

        loop = asyncio.get_running_loop()
        ways = {loop.create_task(up()), loop.create_task(down())}
        watcher = loop.create_task(watch())
        try:
            while ways and not watcher.done():
                done, _ = await asyncio.wait({*ways, watcher}, return_when=asyncio.FIRST_COMPLETED)
                ways -= done
                for task in done:
                    task.result()
        except Failure as error:  # no answer of ours would be understood inside
            note.result = error.code
            raise TunnelClosed from None
        except TimeoutError:
            note.result = "TOOL_TIMEOUT"
            raise TunnelClosed from None
        except OSError:
            pass  # so ends an origin that closes with something unread
        finally:
            for task in (*ways, watcher):
                task.cancel()
            await asyncio.gather(*ways, watcher, return_exceptions=True)

    # -- parts --

    async def _open(self, host: str, passage: Passage, note: Note) -> Origin:
        """Connect to a checked address of the host. Failure."""
        if passage.tls and self._tls is None:
            self._tls = tls_context(self.policy.ca)
        origin = await connect(self.policy, host, passage.port, self._tls if passage.tls else None)
        note.address = origin.address
        return origin

    def _count(self, size: int) -> None:
        self._moved += size
        _bounded(self._moved, self._limits.transfer)

    async def _within(self, seconds: float, act: Callable[[], Awaitable[T]]) -> T:
        """TimeoutError when it takes longer, the time not counted in which the run stood still."""
        task = asyncio.ensure_future(act())
        stopped, left = self._stopped(), seconds
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=left)
                if done:
                    return task.result()
                now = self._stopped()
                left, stopped = now - stopped, now
                if left <= 0:
                    raise TimeoutError
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def _bounded(size: int, most: int) -> None:
    if size > most:
        raise Failure(413, "VALUE_TOO_LARGE", f"more than {most:,} bytes")
