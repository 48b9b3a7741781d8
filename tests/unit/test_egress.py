"""The egress against hostile requests and hostile origins: real sockets on this machine, a tunnel of bytes.

Every refusal stands beside a request that differs in nothing but the fault and goes through.
"""
# ruff: noqa: E501, ASYNC110 (requests are written as they are sent; loops wait for the other side)

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from executor import AuditLog, BridgeLimits, Grant, NetworkRule, allow
from executor.bridge import egress
from executor.bridge.dispatch import RunBridge, Subject
from executor.channel.tunnels import TunnelClosed

LOCAL = ["127.0.0.0/8"]


class Pipe:
    """What the channel would hand over: what the client sends, and what it gets."""

    def __init__(self, *pieces: bytes, open_end: bool = False) -> None:
        self.sends: asyncio.Queue[bytes] = asyncio.Queue()
        for piece in pieces:
            self.sends.put_nowait(piece)
        if not open_end:
            self.sends.put_nowait(b"")
        self.got = b""
        self.on_cancel: Callable[[], object] = lambda: None
        self.received = self.sent = 0
        self.half_closed = self.was_cut = False
        self.closed = asyncio.Event()
        self.reads = True

    async def read(self) -> bytes:
        data = await self.sends.get()
        self.received += len(data)
        if not data:
            self.sends.put_nowait(b"")
        return data

    async def write(self, data: bytes) -> None:
        if self.closed.is_set() or self.half_closed:
            raise TunnelClosed
        while not self.reads:
            await asyncio.sleep(0.01)
        self.got += data
        self.sent += len(data)

    async def end(self) -> None:
        self.half_closed = True

    def close(self) -> None:
        self.closed.set()

    def cut(self) -> None:
        self.was_cut = True


class Origin:
    """A server that keeps what came and answers as it is told."""

    def __init__(self, answer: bytes | Callable[..., Awaitable[None]]) -> None:
        self.answer = answer
        self.seen: list[bytes] = []
        self.port = 0

    async def __aenter__(self) -> Origin:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(self.seen)
        self.seen.append(b"")
        try:
            if not isinstance(self.answer, bytes):
                await self.answer(reader, writer)
                return
            head = await reader.readuntil(b"\r\n\r\n")
            self.seen[at] += head
            size = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            if b"transfer-encoding: chunked" in head.lower():
                self.seen[at] += await reader.readuntil(b"0\r\n\r\n")
            self.seen[at] += await reader.readexactly(size)
            writer.write(self.answer)
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Case:
    """A run's egress with one origin, called api.test."""

    def __init__(self, origin: Origin, limits: dict[str, Any] | None = None, **rule: Any) -> None:
        self.audit = AuditLog()
        network = allow(
            [NetworkRule("api.test", (origin.port,), **rule)],
            allow_private=LOCAL,
            resolve=lambda name: ["127.0.0.1"],
        )
        self.bridge = RunBridge(
            Grant(network=network, limits=BridgeLimits(**(limits or {}))), Subject("r", "s"), self.audit
        )
        self.at = f"api.test:{origin.port}".encode()

    def connect(self, *pieces: bytes, **more: Any) -> Pipe:
        pipe = Pipe(*(piece.replace(b"@", self.at) for piece in pieces), **more)
        self.bridge.connected(pipe)  # type: ignore[arg-type]
        return pipe

    async def send(self, *pieces: bytes, **more: Any) -> bytes:
        pipe = self.connect(*pieces, **more)
        await asyncio.wait_for(pipe.closed.wait(), 10)
        return pipe.got

    def record(self) -> dict[str, Any]:
        return [entry for entry in self.audit.records if entry["event"] == "network"][-1]


def going(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


def hello(name: str | None = "api.test") -> bytes:
    """The first message of a TLS client that asks for a host."""
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    made = out.read()
    return made if b"@" not in made else hello(name)  # which stands for the origin here


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer else 0


GOOD = b"GET http://@/a?b=c HTTP/1.1\r\nHost: @\r\nX-Mine: 1\r\n\r\n"


@going
async def test_a_request_is_written_anew() -> None:
    async with Origin(OK) as origin:
        case = Case(origin)
        answer = await case.send(
            b"GET http://@/a?b=c HTTP/1.1\r\nhOST: @\r\nX-Mine: 1\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\n"
            b"Connection: X-Hop, close\r\nX-Hop: 1\r\nProxy-Authorization: Basic eA==\r\nUpgrade: h2c\r\n\r\n"
        )
        assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
        assert origin.seen == [
            b"GET /a?b=c HTTP/1.1\r\nHost: %s\r\nX-Mine: 1\r\nConnection: close\r\n\r\n" % case.at
        ]
        found = case.record()
        assert (found["method"], found["path"], found["status"], found["result"]) == (
            "GET",
            "/a",
            200,
            "ok",
        )
        assert (found["address"], found["rule"], found["decision"]) == ("127.0.0.1", "api.test", "allow")


@pytest.mark.parametrize(
    "request_",
    [
        GOOD.replace(b"\r\n", b"\n"),
        GOOD.replace(b"X-Mine: 1\r\n", b"X-Mine: 1\n"),
        GOOD.replace(b"X-Mine: 1", b"X-Mine: 1\rX-Other: 2"),
        GOOD.replace(b"X-Mine: 1", b"X-Mine: 1\0"),
        GOOD.replace(b"X-Mine: 1", b"X-Mine: 1\r\n folded"),
        GOOD.replace(b"X-Mine: 1", b"X-Mine : 1"),
        GOOD.replace(b"X-Mine: 1", b"X Mine: 1"),
        GOOD.replace(b"X-Mine: 1", b": 1"),
        GOOD.replace(b"X-Mine: 1", b"X-Mine"),
        GOOD.replace(b"X-Mine: 1", b"X-Mine: \x7f"),
        GOOD.replace(b"X-Mine: 1", b"Content-Length: 2\r\nContent-Length: 2") + b"hi",
        GOOD.replace(b"X-Mine: 1", b"Content-Length: 2, 2") + b"hi",
        GOOD.replace(b"X-Mine: 1", b"Content-Length: +2") + b"hi",
        GOOD.replace(b"X-Mine: 1", b"Content-Length: -2") + b"hi",
        GOOD.replace(b"X-Mine: 1", b"Content-Length: 0x2") + b"hi",
        GOOD.replace(b"X-Mine: 1", b"Content-Length: 2\r\nTransfer-Encoding: chunked") + b"0\r\n\r\n",
        GOOD.replace(b"X-Mine: 1", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked") + b"0\r\n\r\n",
        GOOD.replace(b"X-Mine: 1", b"Transfer-Encoding: xchunked") + b"0\r\n\r\n",
        GOOD.replace(b"X-Mine: 1", b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
        GOOD.replace(b"X-Mine: 1", b"Transfer-Encoding:\x0bchunked") + b"0\r\n\r\n",
        GOOD.replace(b"1.1\r\n", b"1.0\r\n").replace(b"X-Mine: 1", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
        GOOD.replace(b"Host: @\r\n", b""),
        GOOD.replace(b"Host: @\r\n", b"Host: @\r\nHost: @\r\n"),
        GOOD.replace(b"Host: @\r\n", b"Host: other.test\r\n"),
        GOOD.replace(b"Host: @\r\n", b"Host: @@\r\n"),
        GOOD.replace(b"Host: @\r\n", b"Host: api.test:1\r\n"),
        GOOD.replace(b"GET http://@/a?b=c", b"GET /a"),
        GOOD.replace(b"http://@", b"https://@"),
        GOOD.replace(b"http://@", b"ftp://@"),
        GOOD.replace(b"http://@", b"http://user@" b"@"),
        GOOD.replace(b"http://@", b"http://user:pw@" b"@"),
        GOOD.replace(b"?b=c", b"#fragment"),
        GOOD.replace(b"?b=c", b"?b=\rc"),
        GOOD.replace(b"?b=c", b"?b=\tc"),
        GOOD.replace(b"?b=c", b"?b= HTTP/1.1 c"),
        GOOD.replace(b"?b=c", "?b=é".encode()),
        GOOD.replace(b"?b=c", b"?b=" + b"x" * 20_000),
        GOOD.replace(b"X-Mine: 1", b"X-Mine: " + b"x" * 70_000),
        GOOD.replace(b"X-Mine: 1", b"\r\n".join(b"X-%d: 1" % n for n in range(200))),
        GOOD.replace(b"HTTP/1.1", b"HTTP/2.0"),
        GOOD.replace(b"HTTP/1.1", b"HTTP/1.1 "),
        GOOD.replace(b"GET http", b"GET  http"),
        GOOD.replace(b"GET", b"G(T"),
        GOOD.replace(b"GET", b"TRACE"),
        GOOD.replace(b"X-Mine: 1", b"Expect: 200-ok"),
        GOOD.replace(b"X-Mine: 1", b"Connection: Upgrade\r\nUpgrade: websocket"),
        GOOD[:-2],
        b"\x16\x03\x01\x02\x00\x01",
        b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)  # fmt: skip
@going
async def test_what_has_two_meanings_has_none(request_: bytes) -> None:
    async with Origin(OK) as origin:
        case = Case(origin)
        assert status(await case.send(GOOD)) == 200  # so the origin would have been reached
        # `@` stands for the origin; one that is meant as it is stands alone before a colon or a letter.
        pipe = Pipe(request_.replace(b"@@", b"@" + case.at).replace(b"pw@", b"pw\0").replace(b"user@", b"user\0")
                    .replace(b"@", case.at).replace(b"pw\0", b"pw@").replace(b"user\0", b"user@"))  # fmt: skip
        case.bridge.connected(pipe)  # type: ignore[arg-type]
        await asyncio.wait_for(pipe.closed.wait(), 10)
        assert 400 <= status(pipe.got) < 600, pipe.got
        assert len(origin.seen) == 1
        assert case.record()["decision"] == "deny"


@going
async def test_a_request_may_come_in_any_pieces() -> None:
    async with Origin(OK) as origin:
        case = Case(origin)
        whole = GOOD.replace(b"@", case.at)
        bad = whole.replace(b"X-Mine: 1\r\n", b"X-Mine: 1\n")
        for size in (1, 2, 3, 7):
            for text, code in ((whole, 200), (bad, 400)):
                assert (
                    status(await case.send(*[text[at : at + size] for at in range(0, len(text), size)]))
                    == code
                )
        assert status(await case.send(b"\n" + whole)) == 400


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (b"http://other.test:%d/", 403),
        (b"http://api.test:1%d/", 400),
        (b"http://127.0.0.1:%d/", 403),
        (b"http://2130706433:%d/", 400),
        (b"http://0x7f.1:%d/", 400),
        (b"http://0177.0.0.1:%d/", 400),
        (b"http://[::1]:%d/", 403),
        (b"http://[::ffff:127.0.0.1]:%d/", 403),
        (b"http://api.test.:%d/", 200),
        (b"http://API.test:%d/", 200),
        (b"http://api.test..:%d/", 400),
        (b"http://xn--pi-9ja.test:%d/", 403),
        (b"http://api.test%%2f.other.test:%d/", 400),
    ],
)
@going
async def test_which_host_is_meant(target: bytes, code: int) -> None:
    async with Origin(OK) as origin:
        case = Case(origin)
        where = target % origin.port
        host = where[7:].rstrip(b"/")
        answer = await case.send(b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (where, host))
        assert status(answer) == code, answer
        assert len(origin.seen) == (code == 200)
        if code == 200:
            assert b"Host: " + case.at in origin.seen[0]


@pytest.mark.parametrize(
    "name", ["X-HTTP-Method-Override", "x_http_method", "X-Original-URL", "X-REWRITE_URL"]
)
@going
async def test_no_header_asks_for_another_method_or_path(name: str) -> None:
    asked = GOOD.replace(b"X-Mine: 1", name.encode() + b": /admin")
    async with Origin(OK) as origin:
        for limited in ({"methods": ("GET",)}, {"paths": ("/a",)}):
            case = Case(origin, **limited)
            assert status(await case.send(asked)) == 403
            assert case.record()["result"] == "DENIED"
            assert status(await case.send(GOOD)) == 200
        assert len(origin.seen) == 2
        assert status(await Case(origin).send(asked)) == 200  # every method and path is allowed anyway


@going
async def test_what_a_lenient_server_takes_for_another_header_is_not_sent_on() -> None:
    async with Origin(OK) as origin:
        case = Case(origin, inject={"X-Api-Key": "of-the-host"}, upgrade=False)
        headers = b"Content_Length: 9\r\nTransfer_Encoding: chunked\r\nX_API_KEY: mine\r\nA_b: 1"
        assert status(await case.send(GOOD.replace(b"X-Mine: 1", headers))) == 200
        assert origin.seen[0].count(b"_") == 1
        assert b"\r\nA_b: 1\r\n" in origin.seen[0]


@going
async def test_what_stands_behind_a_request_is_never_sent_on() -> None:
    async with Origin(OK) as origin:
        case = Case(origin)
        second = GOOD.replace(b"/a?b=c", b"/second")
        assert status(await case.send(GOOD + second)) == 200
        body = b"POST http://@/p HTTP/1.1\r\nHost: @\r\nContent-Length: 3\r\n\r\nabc"
        assert status(await case.send(body + second)) == 200
        chunks = (
            b"POST http://@/c HTTP/1.1\r\nHost: @\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        )
        assert status(await case.send(chunks + second)) == 200
        assert b"/second" not in b"".join(origin.seen)
        assert origin.seen[1].endswith(b"\r\n\r\nabc")
        assert origin.seen[2].endswith(b"3\r\nabc\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "body",
    [b"3;x=y\r\nabc\r\n0\r\n\r\n", b"3\nabc\r\n0\r\n\r\n", b"+3\r\nabc\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n",
     b"3\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n", b" 3\r\nabc\r\n0\r\n\r\n", b"FFFFFFFFF\r\n", b"3\r\nab", b"\r\n"],
)  # fmt: skip
@going
async def test_malformed_chunks(body: bytes) -> None:
    async with Origin(OK) as origin:
        case = Case(origin)
        head = b"POST http://@/c HTTP/1.1\r\nHost: @\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert status(await case.send(head + body)) == 400
        assert not [seen for seen in origin.seen if seen.endswith(b"0\r\n\r\n")]


# -- origins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            b"2\r\nhi\r\n0\r\n\r\n",
        ),
        (b"HTTP/1.0 200 OK\r\n\r\nhi", b"2\r\nhi\r\n0\r\n\r\n"),
        (b"HTTP/1.1 204 No\r\n\r\n", b"Connection: close\r\n\r\n"),
        (b"HTTP/1.1 304 No\r\nETag: x\r\n\r\n", b"ETag: x\r\nConnection: close\r\n\r\n"),
        (
            b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            b"\r\n\r\nhi",
        ),
    ],
)
@going
async def test_answers_of_every_framing(answer: bytes, expected: bytes) -> None:
    async with Origin(answer) as origin:
        got = await Case(origin).send(GOOD)
        assert got.endswith(expected)
        assert b"103" not in got


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"nonsense\r\n\r\n", b"HTTP/1.1 999999 x\r\n\r\n", b"HTTP/1.1 200 OK\nX: 1\n\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw bytes",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
    ],
)  # fmt: skip
@going
async def test_answers_that_are_none(answer: bytes) -> None:
    async with Origin(answer) as origin:
        got = await Case(origin).send(GOOD)
        assert status(got) == 502
        assert b"raw bytes" not in got


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi",
    ],
)
@going
async def test_an_answer_that_is_cut_stays_cut(answer: bytes) -> None:
    async with Origin(answer) as origin:
        case = Case(origin)
        got = await case.send(GOOD)
        assert not got.endswith(b"0\r\n\r\n")
        assert b"Content-Length: 2" not in got
        assert case.record()["result"] == "IO"


@going
async def test_an_origin_that_answers_early_is_heard() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        writer.close()

    async with Origin(early) as origin:
        head = b"POST http://@/p HTTP/1.1\r\nHost: @\r\nContent-Length: 9000000\r\n\r\n"
        got = await Case(origin).send(head, *[b"x" * 100_000] * 90)
        assert (status(got), got[-3:]) == (413, b"big")


@going
async def test_nobody_there() -> None:
    async with Origin(OK) as origin:
        case = Case(origin)
    got = await case.send(GOOD)
    assert status(got) == 502
    assert b"no connection to api.test" in got


@going
async def test_a_name_that_means_something_else_the_second_time() -> None:
    """DNS rebinding: what is connected to is the address that was checked, and each request asks once."""
    asked: list[str] = []

    def resolve(name: str) -> list[str]:
        asked.append(name)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    async with Origin(OK) as origin:
        case = Case(origin)
        case.bridge._egress.policy = allow([f"api.test:{origin.port}"], allow_private=LOCAL, resolve=resolve)  # type: ignore[union-attr]
        assert status(await case.send(GOOD)) == 200
        assert asked == ["api.test"]
        assert status(await case.send(GOOD)) == 403
        assert len(origin.seen) == 1
        assert case.record()["address"] == ""


# -- limits -------------------------------------------------------------------------------------------


@going
async def test_sizes() -> None:
    async with Origin(b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + b"x" * 3000) as origin:
        assert status(await Case(origin, {"download": 3000}).send(GOOD)) == 200
        assert status(await Case(origin, {"download": 2999}).send(GOOD)) == 502
        post = b"POST http://@/p HTTP/1.1\r\nHost: @\r\nContent-Length: %d\r\n\r\n"
        assert status(await Case(origin, {"upload": 100}).send(post % 100 + b"x" * 100)) == 200
        assert status(await Case(origin, {"upload": 100}).send(post % 101 + b"x" * 101)) == 413
        chunked = b"POST http://@/p HTTP/1.1\r\nHost: @\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = b"32\r\n" + b"x" * 50 + b"\r\n"
        assert status(await Case(origin, {"upload": 100}).send(chunked + chunks * 2 + b"0\r\n\r\n")) == 200
        assert status(await Case(origin, {"upload": 100}).send(chunked + chunks * 3 + b"0\r\n\r\n")) == 413
        case = Case(origin, {"transfer": 7000})
        assert [status(await case.send(GOOD)) for _ in range(2)] == [200, 200]
        third = await case.send(GOOD)
        assert third.count(b"x") < 3000
        assert case.record()["result"] == "VALUE_TOO_LARGE"
    async with Origin(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 3000) as origin:
        case = Case(origin, {"download": 2999})
        assert not (await case.send(GOOD)).endswith(b"0\r\n\r\n")
        assert case.record()["result"] == "VALUE_TOO_LARGE"


@going
async def test_counts() -> None:
    async with Origin(OK) as origin:
        case = Case(origin, {"requests": 2})
        assert [status(await case.send(GOOD)) for _ in range(3)] == [200, 200, 429]
        for _ in range(10):
            await case.send(GOOD)
        assert await case.send(GOOD) == b""  # it only hammers
        assert len(origin.seen) == 2
        crowded = Case(origin, {"connections": 2})
        waiting = [crowded.connect(b"GET", open_end=True) for _ in range(2)]
        assert await crowded.send(GOOD) == b""
        waiting[0].sends.put_nowait(b"")
        await asyncio.wait_for(waiting[0].closed.wait(), 10)
        assert status(await crowded.send(GOOD)) == 200
        crowded.bridge.revoke("over")


@going
async def test_those_that_do_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "HEAD_TIME", 0.2)
    monkeypatch.setattr(egress, "LINGER", 0.1)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(5)

    async with Origin(silent) as origin:
        case = Case(origin, {"idle": 0.3})
        drip = case.connect(b"GET http://", open_end=True)
        for _ in range(50):  # slow loris: a byte now and then
            drip.sends.put_nowait(b"x")
            await asyncio.sleep(0.01)
        assert status(await case.send(b"GET http://", open_end=True)) == 400
        await asyncio.wait_for(drip.closed.wait(), 10)
        assert status(drip.got) == 400
        assert status(await case.send(GOOD)) == 504
        post = b"POST http://@/p HTTP/1.1\r\nHost: @\r\nContent-Length: 10\r\n\r\nabc"
        assert status(await case.send(post, open_end=True)) == 504


@going
async def test_the_time_in_which_a_person_thinks_is_not_counted() -> None:
    async with Origin(OK) as origin:
        case = Case(origin, {"idle": 0.3})
        thinking = case.bridge._clock.held(case.bridge._clock.thinking)
        thinking.__enter__()
        pipe = case.connect(
            b"POST http://@/p HTTP/1.1\r\nHost: @\r\nContent-Length: 2\r\n\r\n", open_end=True
        )
        await asyncio.sleep(0.5)
        assert not pipe.closed.is_set()
        thinking.__exit__(None, None, None)
        pipe.sends.put_nowait(b"hi")
        await asyncio.wait_for(pipe.closed.wait(), 10)
        assert status(pipe.got) == 200


@going
async def test_a_client_that_does_not_read_is_given_up() -> None:
    async with Origin(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000) as origin:
        case = Case(origin, {"idle": 0.3})
        pipe = Pipe(GOOD.replace(b"@", case.at), open_end=True)
        case.bridge.connected(pipe)  # type: ignore[arg-type]
        while not pipe.got:
            await asyncio.sleep(0.01)
        pipe.reads = False
        await asyncio.wait_for(pipe.closed.wait(), 10)


@going
async def test_a_revoked_run_has_no_connection_left() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with Origin(silent) as origin:
        case = Case(origin)
        pipe = case.connect(GOOD, open_end=True)
        while not origin.seen:
            await asyncio.sleep(0.01)
        case.bridge.revoke("over")
        await asyncio.wait_for(pipe.closed.wait(), 10)
        assert pipe.was_cut
        assert case.record()["result"] == "REVOKED"
        assert await case.send(GOOD) == b""


# -- tunnels and credentials --------------------------------------------------------------------------


@going
async def test_a_tunnel_that_carries_a_plain_request() -> None:
    """Some clients tunnel http too: what is inside is looked into like any other request."""
    connect = b"CONNECT @ HTTP/1.1\r\nHost: @\r\n\r\n"
    inner = b"GET /in HTTP/1.1\r\nHost: @\r\n\r\n"
    async with Origin(OK) as origin:
        for rule in ({}, {"methods": ("GET",)}):
            case = Case(origin, **rule)
            got = await case.send(connect, inner)
            assert got.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK\r\n")
        case = Case(origin, methods=("GET",))
        assert b" 403 " in await case.send(connect, inner.replace(b"GET", b"PUT"))
        assert b" 400 " in await case.send(connect, inner.replace(b"Host: @", b"Host: other.test"))
        assert b" 400 " in await case.send(connect, connect)
        assert b" 400 " in await case.send(connect, GOOD)
        assert (await case.send(connect, b"\x16\x03\x01")).count(b"HTTP/1.1") == 1
        assert status(await case.send(connect.replace(b"CONNECT @", b"CONNECT api.test"))) == 400
        assert status(await case.send(connect.replace(b"@", b"other.test:443"))) == 403
        assert status(await case.send(connect.replace(b"Host: @", b"Host: other.test"))) == 400
        assert len([seen for seen in origin.seen if seen]) == 2


@going
async def test_a_tunnel_is_bytes_both_ways_and_bounded() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
        writer.close()

    async with Origin(echo) as origin:
        connect = b"CONNECT @ HTTP/1.0\r\n\r\n"
        case = Case(origin)
        first = hello()
        got = await case.send(connect, first + b"x" * 5000, b"y" * 5000)
        assert got.partition(b"\r\n\r\n")[2] == first + b"x" * 5000 + b"y" * 5000
        assert (case.record()["status"], case.record()["result"]) == (200, "ok")
        small = Case(origin, {"upload": 5000})
        got = await small.send(connect, hello() + b"x" * 4000, b"y" * 5000)
        assert b"y" not in got
        assert small.record()["result"] == "VALUE_TOO_LARGE"
        assert b"more than" not in got
        idle = Case(origin, {"idle": 0.2})
        await idle.send(connect, hello(), open_end=True)
        assert idle.record()["result"] == "TOOL_TIMEOUT"


@pytest.mark.parametrize(
    "first",
    [
        hello("other.test"), hello(None), hello("api.test.other.test"), hello("API.test")[:50], b"\x16\x03\x01\x00\x05hello",
        b"\x16\x02" + hello()[2:], b"\x16" + b"\0" * 500, hello()[:5] + b"\x02" + hello()[6:], hello().replace(b"api.test", b"api\0test"),
        b"\x16\x03\x01\xff\xff" + b"\x01" * 70_000, b"\x16\x03\x01\x00\x01\x01" * 20_000,
    ],
    ids=range(11),
)  # fmt: skip
@going
async def test_a_tunnel_asks_for_the_host_that_it_was_allowed_for(first: bytes) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    async with Origin(echo) as origin:
        case = Case(origin)
        connect = b"CONNECT @ HTTP/1.1\r\nHost: @\r\n\r\n"
        good = hello("API.test")
        got = await case.send(connect, *[good[at : at + 1] for at in range(len(good))])
        assert got.endswith(good)
        pipe = Pipe(connect.replace(b"@", case.at), first)
        case.bridge.connected(pipe)  # type: ignore[arg-type]
        await asyncio.wait_for(pipe.closed.wait(), 10)
        assert pipe.got.partition(b"\r\n\r\n")[2] == b"\x15\x03\x01\x00\x02\x02\x70"
        assert case.record()["decision"] == "deny"


@going
async def test_credentials_are_added_here_and_seen_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGRESS_TEST_TOKEN", "s3cret-of-the-host")

    async def parrot(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head)
        writer.write(
            b"HTTP/1.1 200 OK\r\nX-Echo: s3cret-of-the-host\r\nContent-Length: %d\r\n\r\n" % len(head)
        )
        for byte in head:  # so that no piece holds all of it
            writer.write(bytes([byte]))
            await writer.drain()
        writer.close()

    seen: list[bytes] = []

    async def rotating() -> str:
        return f"key-number-{len(seen)}"

    async with Origin(parrot) as origin:
        inject = {"Authorization": "Bearer ${EGRESS_TEST_TOKEN}", "X-Key": rotating}
        case = Case(origin, inject=inject, upgrade=False)
        got = await case.send(
            GOOD.replace(b"X-Mine: 1", b"authorization: mine\r\nx-KEY: mine\r\nAccept-Encoding: gzip")
        )
        assert status(got) == 200
        assert b"\r\nAuthorization: Bearer s3cret-of-the-host\r\nX-Key: key-number-0\r\n" in seen[0]
        assert b"mine" not in seen[0]
        assert b"gzip" not in seen[0]
        assert b"s3cret" not in got
        assert b"key-number-0" not in got
        assert b"X-Echo: ******************\r\n" in got
        assert b"Authorization: *************************\r\n" in got
        assert "s3cret" not in str(list(case.audit.records))
        assert status(await case.send(b"CONNECT @ HTTP/1.1\r\nHost: @\r\n\r\n", b"\x16")) == 200
        assert len(seen) == 1  # in TLS nothing of it goes out
        monkeypatch.delenv("EGRESS_TEST_TOKEN")
        got = await case.send(GOOD)
        assert status(got) == 502
        assert b"EGRESS_TEST_TOKEN" not in got
        for wrong in ("a\r\nb", "", "\x7f", "ключ"):
            assert (
                status(await Case(origin, inject={"X": lambda made=wrong: made}, upgrade=False).send(GOOD))
                == 502
            )
        assert len(seen) == 1


def test_the_environment_of_the_host_is_not_read_by_anybody_else() -> None:
    assert "EGRESS_TEST_TOKEN" not in os.environ
