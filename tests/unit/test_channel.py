"""The host's end against guests that lie, stall, flood or vanish, and against honest ones in a hurry.

The guest is written here, on the other end of a real socket pair. Whatever it does, every pending request
ends with a clear error in bounded time, and nothing can be asked of the channel afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.channel import Channel, Expected, RunHandle, RunSpec, connection, files, runs
from executor.channel.runs import OutputBuffer
from executor.errors import (
    BadPathError,
    ExecutorError,
    ProtocolError,
    SandboxError,
    SandboxLostError,
    SandboxStartError,
    SessionClosedError,
)
from executor.guest import bundle, records, wire
from executor.guest.records import (
    FOLDER,
    LINK,
    MISSING,
    REGULAR,
    ROOT,
    pack_chunk,
    pack_end,
    pack_file,
    pack_record,
)
from executor.guest.wire import (
    ARGS,
    CONTENT,
    CREDIT,
    DATA,
    END,
    EXIT,
    FILE,
    GOODBYE,
    HELLO,
    PING,
    PONG,
    REPLY,
    RUN,
    SIGNAL,
    STARTED,
    STDERR,
    STDIN,
    STDOUT,
    WINDOW,
)
from executor.runtimes.base import Facts, Sandbox, Stream

PATIENCE = 20.0  # no wait in this file is meant to come near it
HOST_NAMESPACES = {name: f"{name}:[1]" for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")}
FACTS = Facts(uid=1234, gid=1234, namespaces=HOST_NAMESPACES)
HONEST: dict[str, Any] = {
    "nonce": "n0nce",
    "version": 1,
    "pid": 1,
    "dumpable": 0,
    "python": "3.9.2",
    "root": "ro,nosuid",
    "namespaces": {name: f"{name}:[2]" for name in HOST_NAMESPACES} | {"user": "user:[1]"},
    "status": {
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0000000000000000"),
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "Groups": "1234 65534",
        "Uid": "1234\t1234\t1234\t1234",
        "Gid": "1234\t1234\t1234\t1234",
    },
    "writable": [
        *(["/workspace", "tmpfs"], ["/skills", "tmpfs"], ["/tmp", "tmpfs"], ["/dev/shm", "tmpfs"]),
        *(["/proc", "proc"], ["/dev/pts", "devpts"], ["/dev/null", "devtmpfs"]),
    ],
}


def frame(kind: int, stream: int = 0, body: Any = b"{}", *, channel: int = 0, flags: int = 0) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack(">IBBHI", len(raw), kind, flags, channel, stream) + raw


def data(stream: int, channel: int, body: bytes = b"", flags: int = 0) -> bytes:
    return frame(DATA, stream, body, channel=channel, flags=flags)


def finished(stream: int, **body: Any) -> bytes:
    """An honest end of a run without output."""
    ends = data(stream, STDOUT, flags=END) + data(stream, STDERR, flags=END)
    return ends + frame(EXIT, stream, body or {"code": 0})


class FakeSandbox(Sandbox):
    runtime = "fake"

    def __init__(self, stream: Stream, sends_guest: bool) -> None:
        self.stream, self.facts, self.sends_guest = stream, FACTS, sends_guest

    async def kill(self) -> None:
        self.stream.close()

    async def post_mortem(self) -> tuple[str, str]:
        return "exited", "it fell over"


class Peer:
    """The guest's end: raw bytes out, the host's frames in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def frame(self) -> tuple[int, int, int, bytes]:
        """(type, stream, channel, payload) of the next frame that is no heartbeat."""
        while True:
            head = await self.reader.readexactly(12)
            length, kind, _flags, channel, stream = struct.unpack(">IBBHI", head)
            payload = await self.reader.readexactly(length)
            if kind != PING:
                return kind, stream, channel, payload

    async def until(self, kind: int) -> tuple[int, Any]:
        """(stream, body) of the next frame of this type; others are passed over."""
        while True:
            found, stream, _, payload = await self.frame()
            if found == kind:
                return stream, json.loads(payload)


class Bench:
    """A channel, its peer, and what `on_broken` was told."""

    def __init__(self, channel: Channel, peer: Peer, told: list[ExecutorError]) -> None:
        self.channel, self.peer, self.told = channel, peer, told

    async def poisoned(self, kind: type[ExecutorError], fragment: str) -> None:
        """The channel broke, once, for this reason, and nothing works on it any more."""
        broken = self.channel.broken
        assert type(broken) is kind
        assert fragment in str(broken)
        assert self.told == [broken]
        for later in (
            self.channel.run(spec()),
            self.channel.list_files([b"/workspace"]),
            self.channel.put_files(b"/workspace", []),
            self.channel.remove_files([b"/workspace/x"]),
            self.channel.send(1, STDIN, b"x"),
        ):
            with pytest.raises(kind) as caught:
                await later
            assert fragment in str(caught.value)
        assert self.channel._requests == {}


@contextlib.asynccontextmanager
async def bench(*, opened: bool = True, sends_guest: bool = False) -> AsyncIterator[Bench]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    _, stream = await asyncio.get_running_loop().create_connection(Stream, sock=ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    told: list[ExecutorError] = []
    made = Bench(Channel(FakeSandbox(stream, sends_guest)), Peer(reader, writer), told)
    made.channel.hand_over(made.channel.sandbox, told.append)
    try:
        if opened:
            opening = asyncio.create_task(made.channel.open(Expected("n0nce", FACTS), {"core": 0}))
            await made.peer.until(HELLO)
            made.peer.send(frame(HELLO, 0, HONEST))
            await opening
        yield made
    finally:
        made.channel.break_off(SandboxLostError("the test is over"), tell=False)
        writer.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), PATIENCE))  # type: ignore[arg-type]


def spec(run_id: str = "r1", **changes: Any) -> RunSpec:
    return RunSpec(
        **{"run_id": run_id, "argv": [b"true"], "shell": False, "cwd": b"/workspace", "env": {}} | changes
    )


async def failure(work: Awaitable[Any]) -> BaseException:
    """The exception with which something ends; it has to end with one."""
    try:
        result = await asyncio.wait_for(work, PATIENCE)
    except TimeoutError:
        raise AssertionError("it did not end") from None
    except Exception as error:
        return error
    raise AssertionError(f"it ended with {result!r}")


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  a test watches from outside
        await asyncio.sleep(0.001)


# -- the start ----------------------------------------------------------------------------------------


def test_the_host_says_hello_and_accepts_what_it_ordered() -> None:
    async def test() -> None:
        async with bench(opened=False, sends_guest=True) as made:
            opening = asyncio.create_task(made.channel.open(Expected("n0nce", FACTS), {"core": 0}))
            size = int.from_bytes(await made.peer.reader.readexactly(4), "big")
            assert await made.peer.reader.readexactly(size) == bundle.source()
            assert await made.peer.until(HELLO) == (
                0,
                {"nonce": "n0nce", "rlimits": {"core": 0}, "lease_s": 30.0},
            )
            made.peer.send(frame(HELLO, 0, HONEST))
            await opening
            assert made.channel.broken is None
            assert made.told == []

    run(test)


def change(*path: str, to: Any) -> dict[str, Any]:
    """The honest hello with one value replaced, or removed when `to` is Ellipsis."""
    body = copy.deepcopy(HONEST)
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    if to is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return body


def mounts(*pairs: list[Any], without: str = "") -> dict[str, Any]:
    kept = [mount for mount in HONEST["writable"] if mount[0] != without]
    return change("writable", to=[*kept, *pairs])


CAPS = "00000000a80425fb"
LIES = [
    (change("nonce", to="other"), "its hello does not carry our nonce"),
    (change("nonce", to=None), "its hello does not carry our nonce"),
    (change("version", to=2), "it speaks protocol 2, not 1"),
    (change("version", to=True), "it speaks protocol True, not 1"),
    (change("pid", to=2), "the guest is process 2, not 1"),
    (change("pid", to=True), "the guest is process True, not 1"),
    (change("pid", to=1.0), "the guest is process 1.0, not 1"),
    (change("pid", to="1"), "the guest is process '1', not 1"),
    (change("dumpable", to=1), "the guest is dumpable"),
    (change("dumpable", to=False), "the guest is dumpable"),
    (change("status", "CapInh", to=CAPS), f"CapInh is '{CAPS}', not empty"),
    (change("status", "CapPrm", to=CAPS), f"CapPrm is '{CAPS}', not empty"),
    (change("status", "CapEff", to=CAPS), f"CapEff is '{CAPS}', not empty"),
    (change("status", "CapBnd", to=CAPS), f"CapBnd is '{CAPS}', not empty"),
    (change("status", "CapAmb", to=CAPS), f"CapAmb is '{CAPS}', not empty"),
    (change("status", "CapEff", to=""), "CapEff is '', not empty"),
    (change("status", "CapEff", to=...), "CapEff is None, not empty"),
    (change("status", "CapEff", to=["0"]), "CapEff is ['0'], not empty"),
    (change("status", "NoNewPrivs", to="0"), "no_new_privs is off"),
    (change("status", "NoNewPrivs", to=1), "no_new_privs is off"),
    (change("status", "Seccomp", to="0"), "no seccomp filter is in force"),
    (change("status", "Seccomp", to="1"), "no seccomp filter is in force"),
    (change("status", "Seccomp", to=...), "no seccomp filter is in force"),
    (change("status", "Uid", to="0\t0\t0\t0"), "Uid is '0\\t0\\t0\\t0', not 1234"),
    (change("status", "Uid", to="1234\t0\t1234\t1234"), "Uid is '1234\\t0\\t1234\\t1234', not 1234"),
    (change("status", "Uid", to="1234"), "Uid is '1234', not 1234"),
    (change("status", "Gid", to="0\t0\t0\t0"), "Gid is '0\\t0\\t0\\t0', not 1234"),
    (change("status", "Groups", to="0 1234"), "it has the supplementary groups ['0']"),
    (change("status", "Groups", to="27 100"), "it has the supplementary groups ['100', '27']"),
    (change("namespaces", "net", to="net:[1]"), "its net namespace is the host's"),
    (change("namespaces", "pid", to="pid:[1]"), "its pid namespace is the host's"),
    (change("namespaces", "mnt", to="mnt:[1]"), "its mnt namespace is the host's"),
    (change("namespaces", "ipc", to="ipc:[1]"), "its ipc namespace is the host's"),
    (change("namespaces", "uts", to="uts:[1]"), "its uts namespace is the host's"),
    (change("namespaces", "net", to=""), "its net namespace is unknown"),
    (change("namespaces", "net", to=...), "its net namespace is unknown"),
    (change("namespaces", "net", to=7), "its net namespace is unknown"),
    (change("root", to="rw,nosuid"), "its root file system is writable"),
    (change("root", to="rodata"), "its root file system is writable"),
    (change("root", to=["ro"]), "its root file system is writable"),
    (mounts(["/home", "ext4"]), "/home (ext4) is writable"),
    (mounts(["/", "overlay"]), "/ (overlay) is writable"),
    (mounts(["/workspace/x", "tmpfs"]), "/workspace/x (tmpfs) is writable"),
    (mounts(["/tmp", "ext4"], without="/tmp"), "/tmp is ext4, not tmpfs"),
    (mounts(without="/skills"), "['/skills'] are not mounted writable"),
    (mounts(["/x"]), "its hello is malformed"),
    (mounts([1, 2]), "its hello is malformed"),
    (change("writable", to={}), "its hello is malformed"),
    (change("status", to=[]), "its hello is malformed"),
    (change("namespaces", to=None), "its hello is malformed"),
    (change("python", to=...), "its hello has the keys ["),
    (HONEST | {"more": 1}, "its hello has the keys ["),
    ({}, "its hello has the keys []"),
]


@pytest.mark.parametrize(("body", "fragment"), LIES)
def test_a_sandbox_that_is_not_what_was_ordered_is_never_used(body: dict[str, Any], fragment: str) -> None:
    async def test() -> None:
        async with bench(opened=False) as made:
            opening = asyncio.create_task(made.channel.open(Expected("n0nce", FACTS), {}))
            made.peer.send(frame(HELLO, 0, body))
            error = await failure(opening)
            assert type(error) is SandboxStartError
            assert error.message.startswith("the sandbox is not what was ordered: " + fragment)
            assert "; " not in error.message  # that one difference and no other
            assert made.channel.broken is error
            assert type(await failure(made.channel.run(spec()))) is SandboxStartError

    run(test)


def test_every_difference_is_named() -> None:
    async def test() -> None:
        async with bench(opened=False) as made:
            opening = asyncio.create_task(made.channel.open(Expected("n0nce", FACTS), {}))
            body = change("pid", to=7) | {"dumpable": 1, "root": "rw"}
            made.peer.send(frame(HELLO, 0, body))
            assert (await failure(opening)).message == (  # type: ignore[attr-defined]
                "the sandbox is not what was ordered: the guest is process 7, not 1; the guest is dumpable; "
                "its root file system is writable"
            )

    run(test)


@pytest.mark.parametrize(
    ("first", "fragment"),
    [
        (b"bash: python3: command not found\n", "what started is not the guest: the sandbox broke"),
        (frame(STARTED, 1), "STARTED before HELLO"),
        (frame(HELLO, 0, b"[]"), "control payload is not an object"),
        (frame(HELLO, 0, {"nonce": "n" * 17000}), "at most 16384"),
    ],
)  # fmt: skip
def test_something_else_than_the_guest(first: bytes, fragment: str) -> None:
    async def test() -> None:
        async with bench(opened=False) as made:
            made.peer.send(first)
            error = await failure(made.channel.open(Expected("n0nce", FACTS), {}))
            assert type(error) is SandboxStartError
            assert fragment in error.message
            assert type(made.channel.broken) is ProtocolError

    run(test)


def test_a_guest_that_does_not_say_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "START_TIMEOUT", 0.05)

    async def test() -> None:
        async with bench(opened=False) as made:
            error = await failure(made.channel.open(Expected("n0nce", FACTS), {}))
            assert type(error) is SandboxStartError
            await made.poisoned(SandboxStartError, "the guest said nothing for 0.05 s after its start")

    run(test)


def test_a_sandbox_that_ends_while_it_starts() -> None:
    async def test() -> None:
        async with bench(opened=False) as made:
            made.peer.writer.close()
            error = await failure(made.channel.open(Expected("n0nce", FACTS), {}))
            assert type(error) is SandboxStartError
            assert error.message == "the sandbox ended while it started: it fell over"

    run(test)


# -- breaches -----------------------------------------------------------------------------------------

OUT = b"/workspace/out"


def listed(*parts: bytes) -> bytes:
    """Content of the listing (stream 3), after its root."""
    return data(3, CONTENT, pack_record(ROOT, OUT) + b"".join(parts))


def listed_entry(name: bytes, kind: int = REGULAR, **fields: Any) -> bytes:
    return listed(pack_record(kind, name, **fields))


def got(*parts: bytes) -> bytes:
    """Content of the request for /workspace/a and /workspace/b (stream 5)."""
    return data(5, CONTENT, b"".join(parts))


A, B = b"/workspace/a", b"/workspace/b"
CLOSE3, CLOSE5 = data(3, CONTENT, flags=END), data(5, CONTENT, flags=END)
MALFORMED = "the guest's EXIT is malformed"

BREACHES = [
    ("exit without an end", frame(EXIT, 1, {}), MALFORMED),
    ("exit with two ends", frame(EXIT, 1, {"code": 0, "signal": 9}), MALFORMED),
    ("exit refused and ended", frame(EXIT, 1, {"code": 0, "refused": "cwd"}), MALFORMED),
    ("exit code 256", frame(EXIT, 1, {"code": 256}), MALFORMED),
    ("exit code -1", frame(EXIT, 1, {"code": -1}), MALFORMED),
    ("exit code text", frame(EXIT, 1, {"code": "0"}), MALFORMED),
    ("exit code true", frame(EXIT, 1, {"code": True}), MALFORMED),
    ("exit code float", frame(EXIT, 1, b'{"code":0.0}'), MALFORMED),
    ("exit code list", frame(EXIT, 1, {"code": [0]}), MALFORMED),
    ("exit signal 0", frame(EXIT, 1, {"signal": 0}), MALFORMED),
    ("exit signal 65", frame(EXIT, 1, {"signal": 65}), MALFORMED),
    ("exit with another key", frame(EXIT, 1, {"code": 0, "x": 1}), MALFORMED),
    ("exit with another reason", frame(EXIT, 1, {"code": 0, "reason": "bored"}), MALFORMED),
    ("exit with negative time", frame(EXIT, 1, {"code": 0, "wall_ms": -1}), MALFORMED),
    ("exit with endless time", frame(EXIT, 1, {"code": 0, "cpu_ms": 1 << 50}), MALFORMED),
    ("exit with absurd output", frame(EXIT, 1, {"code": 0, "stdout": 1 << 62}), MALFORMED),
    ("exit with huge number", frame(EXIT, 1, b'{"code":0,"oom":' + b"9" * 4000 + b"}"), MALFORMED),
    ("exit with endless number", frame(EXIT, 1, b'{"code":' + b"9" * 9000 + b"}"), "not JSON: ValueError"),
    ("exit as a bomb", frame(EXIT, 1, b'{"a":' * 3000), "deeper than 16"),
    ("exit with a key twice", frame(EXIT, 1, b'{"code":0,"code":1}'), "holds a key twice"),
    ("exit with NaN", frame(EXIT, 1, b'{"code":NaN}'), "holds NaN"),
    ("exit too large", frame(EXIT, 1, b" " * 16385), "of 16385 bytes, at most 16384"),
    ("second exit", frame(EXIT, 1, {"code": 0}) * 2, "EXIT on stream 1 after its end"),
    ("reply to a run", frame(REPLY, 1), "REPLY ends a RUN"),
    ("exit of a request", frame(EXIT, 3, {"code": 0}), "EXIT ends a FILE"),
    ("output after its end", data(1, STDOUT, flags=END) + data(1, STDOUT, b"x"), "channel 1: not open there"),
    ("output as stdin", data(1, STDIN, b"x"), "channel 3: not open there"),
    ("more than its credit", data(1, STDOUT, b"x" * 65536) * 16 + data(1, STDOUT, b"x"), "beyond the credit"),
    ("unknown stream", data(99, STDOUT, b"x"), "DATA on stream 99, which is not open"),
    ("end of an unknown stream", frame(EXIT, 99, {"code": 0}), "EXIT on stream 99, which is not open"),
    ("stream of its own", frame(RUN, 2), "RUN from the guest"),
    ("second hello", frame(HELLO, 0, HONEST), "second HELLO"),
    ("ping", frame(PING, 0, b"x" * 8), "PING from the guest"),
    ("goodbye", frame(GOODBYE), "the guest said goodbye"),
    ("unknown type", frame(77), "frame type 77 is unknown"),
    ("too long", struct.pack(">IBBHI", 1 << 31, DATA, 0, 1, 1), "frame of 2147483648 bytes, at most 65536"),
    ("too much credit", frame(CREDIT, 1, b"\xff" * 4, channel=STDIN), "over the window"),
    ("entry before its folder", data(3, CONTENT, pack_record(REGULAR, OUT + b"/x")), "outside the folder"),
    ("entry of another folder", listed_entry(b"/workspace/work/x"), "a file outside the folder"),
    ("entry of a longer name", listed_entry(b"/workspace/output"), "a file outside the folder"),
    ("entry with dots", listed_entry(OUT + b"/../../etc/passwd"), "named an unsafe path"),
    ("entry with a dot", listed_entry(OUT + b"/./x"), "named an unsafe path"),
    ("entry with two slashes", listed_entry(OUT + b"//x"), "named an unsafe path"),
    ("entry with a slash at its end", listed_entry(OUT + b"/x/"), "named an unsafe path"),
    ("entry with NUL", listed_entry(OUT + b"/a\0b"), "named an unsafe path"),
    ("entry with a long name", listed_entry(OUT + b"/" + b"n" * 256), "named an unsafe path"),
    ("entry with 2,000 levels", listed_entry(OUT + b"/d" * 2000), "named a path outside the workspace"),
    ("entry with 5,000 levels", listed(struct.pack(">BBHIQQ", 1, 0, 10014, 0, 0, 0)), "name of 10014 bytes"),
    ("entry with an impossible size", listed_entry(OUT + b"/x", size=1 << 62), "an impossible size or time"),
    (
        "entry with an impossible time",
        listed(struct.pack(">BBHIQQ", REGULAR, 0, len(OUT) + 2, 0, 0, 1 << 63) + OUT + b"/x"),
        "an impossible size or time",
    ),
    ("content in a listing", listed(pack_file(OUT + b"/x", b"boo", 0o644)), "sent content in a listing"),
    ("endless listing", listed(*(pack_record(REGULAR, OUT + b"/%d" % n) for n in range(9))), "more than 8"),
    ("long listing", listed(*[pack_record(REGULAR, OUT + b"/%0250d" % 0 * 10)] * 6), "MiB of names"),
    ("folder outside", data(3, CONTENT, pack_record(ROOT, b"/etc")), "named a path outside the workspace"),
    ("folder with dots", data(3, CONTENT, pack_record(ROOT, b"/workspace/..")), "named an unsafe path"),
    ("relative folder", data(3, CONTENT, pack_record(ROOT, b"workspace/out")), "a path outside the"),
    ("root folder", data(3, CONTENT, pack_record(ROOT, b"/")), "a path outside the workspace"),
    ("folder not asked for", listed_entry(b"/workspace/work", ROOT), "a folder that was not asked for"),
    ("missing other", data(3, CONTENT, pack_record(MISSING, b"/workspace/x", 2)), "for another path"),
    ("malformed record", data(3, CONTENT, b"\xff" * 24), "sent a malformed record: kind 255"),
    ("end inside a record", listed(pack_record(FOLDER, OUT)[:9]) + CLOSE3 + frame(REPLY, 3), "inside a"),
    ("no folder at all", CLOSE3 + frame(REPLY, 3), "did not list every folder"),
    ("errno 0", CLOSE3 + frame(REPLY, 3, {"errno": 0}), "the guest's REPLY is malformed"),
    ("errno true", CLOSE3 + frame(REPLY, 3, {"errno": True}), "the guest's REPLY is malformed"),
    ("errno null", CLOSE3 + frame(REPLY, 3, {"errno": None}), "the guest's REPLY is malformed"),
    ("errno text", CLOSE3 + frame(REPLY, 3, {"errno": "2"}), "the guest's REPLY is malformed"),
    ("errno 4096", CLOSE3 + frame(REPLY, 3, {"errno": 4096}), "the guest's REPLY is malformed"),
    ("other file", got(pack_file(b"/workspace/c", b"x", 0o644)), "sent a file that was not asked for"),
    ("second file first", got(pack_file(B, b"x", 0o644)), "sent a file that was not asked for"),
    ("a file twice", got(pack_file(A, b"x", 0o644) * 2), "sent a file that was not asked for"),
    ("missing another file", got(pack_record(MISSING, B, 2)), "sent a file that was not asked for"),
    ("a third file", got(*(pack_file(n, b"x", 0) for n in (A, B, A))), "sent a file that was not asked for"),
    ("folder for a file", got(pack_record(FOLDER, A)), "sent something else than a file"),
    ("file without content", got(pack_record(REGULAR, A)), "sent something else than a file"),
    ("link for a file", got(pack_record(LINK, A, chunked=True)), "sent something else than a file"),
    ("more than the limit", got(pack_file(A, b"x" * 11, 0)), "sent more of a file than was asked for"),
    ("more in pieces", got(pack_file(A, b"x" * 9, 0)[:-4], pack_chunk(b"yy")), "sent more of a file than"),
    ("one file short", got(pack_file(A, b"x", 0)) + CLOSE5 + frame(REPLY, 5), "did not send every file"),
    ("end inside content", got(pack_file(A, b"x", 0)[:-4]) + CLOSE5 + frame(REPLY, 5), "inside a record"),
    ("content for a put", data(7, CONTENT, pack_file(b"x", b"y", 0)), "sent content where there is none"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "fragment"), [row[1:] for row in BREACHES], ids=[row[0] for row in BREACHES])
def test_a_breach_fails_everything_that_is_pending(
    raw: bytes, fragment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_ENTRIES", 8)
    monkeypatch.setattr(files, "MAX_NAMES", 8192)

    async def never(_stream: str, _data: bytes) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        async with bench() as made:
            channel = made.channel
            handle = await channel.run(spec(on_output=never))
            pending = [asyncio.create_task(channel.wait(handle))]
            for work in (
                channel.list_files([OUT]),
                channel.get_files([A, B], limit=10, begin=ignore, chunk=ignore, end=ignore),
                channel.put_files(b"/workspace", [pack_file(b"x", b"y", 0o644)]),
            ):
                pending.append(asyncio.create_task(work))
                await asyncio.sleep(0)
            assert sorted(channel._requests) == [1, 3, 5, 7]
            made.peer.send(raw)
            for task in pending:
                error = await failure(task)
                assert type(error) is ProtocolError
                assert fragment in str(error)
            await made.poisoned(ProtocolError, fragment)
            assert channel.broken.message.startswith("the sandbox broke the protocol: ")  # type: ignore[union-attr]
            assert "It has been destroyed." in channel.broken.hint  # type: ignore[union-attr]
            with contextlib.suppress(ConnectionError):
                await made.peer.reader.read()  # the host has closed the stream
                assert made.peer.reader.at_eof()

    run(test)


def ignore(*_anything: Any) -> None:
    pass


# -- silence and death --------------------------------------------------------------------------------


async def keep_answering(peer: Peer) -> None:
    """The least that a live guest does: answer heartbeats, and read on."""
    while True:
        head = await peer.reader.readexactly(12)
        length, kind, _, _, _ = struct.unpack(">IBBHI", head)
        payload = await peer.reader.readexactly(length)
        if kind == PING:
            peer.send(frame(PONG, 0, payload))


def test_a_silent_guest_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_EVERY", 0.02)
    monkeypatch.setattr(connection, "SILENCE", 0.1)

    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(spec())
            pending = [made.channel.wait(handle), made.channel.list_files([OUT])]
            errors = await asyncio.gather(*map(failure, pending))
            assert [type(error) for error in errors] == [SandboxLostError, SandboxLostError]
            await made.poisoned(SandboxLostError, "the sandbox has not answered for 0 s")

    run(test)


def test_a_guest_that_answers_heartbeats_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_EVERY", 0.01)
    monkeypatch.setattr(connection, "SILENCE", 2.0)

    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(spec())
            waiting = asyncio.create_task(made.channel.wait(handle))
            for _ in range(10):
                head = await made.peer.reader.readexactly(12)
                while head[4] != PING:
                    await made.peer.reader.readexactly(int.from_bytes(head[:4], "big"))
                    head = await made.peer.reader.readexactly(12)
                made.peer.send(frame(PONG, 0, await made.peer.reader.readexactly(8)))
            assert made.channel.broken is None
            assert not waiting.done()
            made.peer.send(finished(1))
            await waiting
            assert handle.report.result().code == 0

    run(test)


def test_a_sandbox_that_dies_fails_everything() -> None:
    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(spec())
            listing = asyncio.create_task(made.channel.list_files([OUT]))
            await made.peer.until(FILE)
            made.peer.send(data(1, STDOUT, b"last words"))
            made.peer.writer.close()
            assert type(await failure(made.channel.wait(handle))) is SandboxLostError
            assert type(await failure(listing)) is SandboxLostError
            assert bytes(handle.output[STDOUT].head) == b"last words"
            await made.poisoned(SandboxLostError, "the sandbox ended")

    run(test)


def test_close_says_goodbye_and_fails_what_is_pending() -> None:
    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(spec())
            made.channel.close()
            error = await failure(made.channel.wait(handle))
            assert type(error) is SessionClosedError
            assert error.message == "the session was closed"
            assert made.told == []
            made.channel.close()

    run(test)


@pytest.mark.parametrize("lie", ["nothing", "exit without the ends", "the ends without an exit"])
def test_a_guest_that_does_not_report_the_end_of_a_run(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "EXIT_MARGIN", 0.05)
    monkeypatch.setattr(connection, "PING_EVERY", 0.02)
    ends = data(1, STDOUT, flags=END) + data(1, STDERR, flags=END)
    raw = {"nothing": b"", "exit without the ends": frame(EXIT, 1, {"code": 0})}.get(lie, ends)

    async def test() -> None:
        async with bench() as made:
            answering = asyncio.create_task(keep_answering(made.peer))
            handle = await made.channel.run(spec(timeout=0.05, grace=0.0))
            made.peer.send(raw)
            assert type(await failure(made.channel.wait(handle))) is SandboxLostError
            await made.poisoned(SandboxLostError, "the sandbox did not report the end of run r1 in time")
            answering.cancel()

    run(test)


def test_a_slow_caller_is_not_the_guests_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "EXIT_MARGIN", 0.02)
    taken: list[bytes] = []

    async def slow(_stream: str, piece: bytes) -> None:
        await asyncio.sleep(0.3)
        taken.append(piece)

    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(spec(timeout=0.01, grace=0.0, on_output=slow))
            made.peer.send(
                data(1, STDOUT, b"a") + data(1, STDERR, b"b") + finished(1, signal=9, reason="timeout")
            )
            await made.channel.wait(handle)
            assert taken == [b"a", b"b"]
            assert handle.report.result().reason == "timeout"
            assert made.channel.broken is None

    run(test)


@pytest.mark.parametrize(
    "noise", [b"", frame(STARTED, 1), data(1, CONTENT)], ids=["heartbeats", "STARTED", "empty DATA"]
)
@pytest.mark.parametrize("what", ["put", "list", "remove"])
def test_a_request_without_progress(what: str, noise: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest lives and says things, but takes and gives no bytes."""
    monkeypatch.setattr(connection, "STALL", 0.15)
    monkeypatch.setattr(connection, "PING_EVERY", 0.02)

    async def chatter(peer: Peer) -> None:
        while True:
            peer.send(noise + frame(PONG, 0, b"x" * 8))
            await asyncio.sleep(0.02)

    async def test() -> None:
        async with bench() as made:
            work = {
                "put": lambda: made.channel.put_files(b"/workspace", [b"x" * 65536] * 64),
                "list": lambda: made.channel.list_files([OUT]),
                "remove": lambda: made.channel.remove_files([OUT + b"/%d" % n for n in range(400_000)]),
            }[what]
            pending = asyncio.create_task(work())
            await made.peer.until(FILE)
            chattering = asyncio.create_task(chatter(made.peer))
            error = await failure(pending)
            assert type(error) is SandboxLostError
            doing = {"put": "write"}.get(what, what)
            await made.poisoned(SandboxLostError, f"the sandbox made no progress for 0.15 s: {doing}")
            chattering.cancel()

    run(test)


def test_a_slow_listing_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL", 0.3)

    async def test() -> None:
        async with bench() as made:
            listing = asyncio.create_task(made.channel.list_files([OUT]))
            await made.peer.until(FILE)
            for part in (pack_record(ROOT, OUT), *(pack_record(REGULAR, OUT + b"/%d" % n) for n in range(8))):
                await asyncio.sleep(0.1)
                made.peer.send(data(1, CONTENT, part))
            made.peer.send(data(1, CONTENT, flags=END) + frame(REPLY, 1))
            assert len((await listing).entries) == 8

    run(test)


def test_a_caller_that_goes_away_tells_the_guest() -> None:
    async def test() -> None:
        async with bench() as made:
            listing = asyncio.create_task(made.channel.list_files([OUT]))
            await made.peer.until(FILE)
            listing.cancel()
            assert await made.peer.until(SIGNAL) == (1, {"cancel": True})
            made.peer.send(data(1, CONTENT, b"\xff" * 100) + data(1, CONTENT, flags=END))
            made.peer.send(frame(REPLY, 1, {"errno": 125, "path": ""}))
            await eventually(lambda: made.channel._requests == {})
            assert made.channel.broken is None

    run(test)


def test_a_caller_whose_disk_is_full_fails_alone() -> None:
    def full(_piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def test() -> None:
        async with bench() as made:
            getting = asyncio.create_task(
                made.channel.get_files([A], limit=10, begin=ignore, chunk=full, end=ignore)
            )
            await made.peer.until(FILE)
            made.peer.send(data(1, CONTENT, pack_file(A, b"x", 0o644)))
            error = await failure(getting)
            assert isinstance(error, OSError)
            assert error.errno == 28
            assert await made.peer.until(SIGNAL) == (1, {"cancel": True})
            made.peer.send(data(1, CONTENT, flags=END) + frame(REPLY, 1, {"errno": 125}))
            handle = await made.channel.run(spec())
            made.peer.send(finished(3))
            await made.channel.wait(handle)
            assert made.channel.broken is None

    run(test)


def test_more_requests_than_the_stream_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_STREAMS", 2)

    async def test() -> None:
        async with bench() as made:
            handles = [await made.channel.run(spec()) for _ in range(2)]
            error = await failure(made.channel.run(spec()))
            assert type(error) is SandboxError
            assert error.message == "2 requests are under way in this session"
            made.peer.send(finished(1))
            await made.channel.wait(handles[0])
            await made.channel.run(spec())
            assert made.channel.broken is None

    run(test)


# -- what is asked and answered -----------------------------------------------------------------------


def test_a_run_as_the_guest_is_told() -> None:
    async def test() -> None:
        async with bench() as made:
            await made.channel.run(
                spec(
                    "run_x",
                    argv=[b"echo", b"\xff a"],
                    cwd=b"/workspace/work",
                    env={b"A": b"1=2", b"B": b""},
                    timeout=1.5,
                    grace=0.25,
                    stdin=b"in",
                    head=(10, 20),
                    tail=(30, 40),
                )
            )
            kind, stream, _, body = await made.peer.frame()
            assert (kind, stream) == (RUN, 1)
            assert json.loads(body) == {
                "id": "run_x", "argc": 2, "shell": False, "stdin": True, "pty": None,
                "timeout_ms": 1500, "grace_ms": 250, "head": [10, 20], "tail": [30, 40],
            }  # fmt: skip
            assert await made.peer.frame() == (
                *(DATA, 1, ARGS),
                b"/workspace/work\0echo\0\xff a\0A=1=2\0B=\0",
            )
            assert await made.peer.frame() == (DATA, 1, STDIN, b"in")

    run(test)


@pytest.mark.parametrize(
    "changes",
    [{"interactive": True}, {"on_output": ignore}, {"output_limit": 5}],
    ids=["stdin", "live", "limit"],
)
def test_output_that_is_wanted_at_once_is_asked_for_whole(changes: dict[str, Any]) -> None:
    async def test() -> None:
        async with bench() as made:
            await made.channel.run(spec(**changes))
            _, body = await made.peer.until(RUN)
            assert body["head"] == [-1, -1]
            assert body["stdin"] == ("interactive" in changes)
            assert body["timeout_ms"] is None

    run(test)


def test_what_a_caller_may_say_to_a_run() -> None:
    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(spec(interactive=True, stdin=b"first"))
            assert (await made.peer.frame())[0] == RUN
            assert (await made.peer.frame())[2] == ARGS
            assert await made.peer.frame() == (DATA, 1, STDIN, b"first")
            await handle.write(b"second")
            assert await made.peer.frame() == (DATA, 1, STDIN, b"second")
            for say, body in (
                (lambda: handle.send_signal(2), {"signal": 2}),
                (lambda: handle.resize(24, 80), {"resize": [24, 80]}),
                (lambda: handle.kill(), {"kill": "killed"}),
                (lambda: handle.kill("cancelled", 0.5), {"kill": "cancelled", "grace_ms": 500}),
            ):
                say()
                assert await made.peer.until(SIGNAL) == (1, body)
            await handle.close_stdin()
            assert await made.peer.frame() == (DATA, 1, STDIN, b"")
            made.peer.send(frame(STARTED, 1, {"pid": 9}) + data(1, STDERR, b"oops") + finished(1, signal=15))
            await made.channel.wait(handle)
            assert handle.pid == 9
            assert bytes(handle.output[STDERR].head) == b"oops"
            assert handle.report.result().signal == 15
            handle.kill()
            handle.send_signal(9)
            await handle.write(b"late")
            made.channel.close()
            assert await made.peer.frame() == (GOODBYE, 0, 0, b"{}")

    run(test)


def test_a_large_stdin_does_not_keep_a_run_from_ending() -> None:
    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(spec(stdin=b"x" * (8 << 20)))
            await made.peer.until(RUN)
            made.peer.send(finished(1, code=3))
            await made.channel.wait(handle)
            assert handle.report.result().code == 3
            assert made.channel._connection._bulk == {}

    run(test)


def test_over_the_output_limit_the_run_is_killed_once() -> None:
    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(spec(output_limit=10))
            made.peer.send(data(1, STDOUT, b"x" * 10))
            made.peer.send(data(1, STDOUT, b"y") * 500)
            await eventually(lambda: handle.output[STDOUT].total == 510)
            made.peer.send(finished(1, signal=15, reason="output_limit"))
            await made.channel.wait(handle)
            made.channel.close()
            said = []
            while (last := await made.peer.frame())[0] != GOODBYE:
                said.append(last)
            assert [(kind, body) for kind, _, _, body in said if kind == SIGNAL] == [
                (SIGNAL, b'{"kill":"output_limit"}')
            ]

    run(test)


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()])
def test_a_callback_that_fails_ends_the_run(error: BaseException) -> None:
    calls = []

    def fails(_stream: str, piece: bytes) -> None:
        calls.append(piece)
        raise error

    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(spec(on_output=fails))
            made.peer.send(data(1, STDOUT, b"a"))
            assert await made.peer.until(SIGNAL) == (1, {"kill": "cancelled"})
            made.peer.send(data(1, STDOUT, b"b") + finished(1, signal=15, reason="cancelled"))
            await made.channel.wait(handle)
            assert handle.callback_error is error
            assert calls == [b"a"]
            assert bytes(handle.output[STDOUT].head) == b"ab"

    run(test)


def test_an_honest_listing() -> None:
    async def test() -> None:
        async with bench() as made:
            listing = asyncio.create_task(made.channel.list_files([OUT, b"/workspace/no", b"/skills/s/out"]))
            assert (await made.peer.until(FILE))[1] == {"op": "list", "recursive": True}
            raw = (
                pack_record(ROOT, OUT)
                + pack_record(REGULAR, OUT + b"/a\xff", 0o100644, 5, 77)
                + pack_record(LINK, OUT + b"/l", 0o777)
                + pack_record(MISSING, b"/workspace/no", 2)
                + pack_record(ROOT, OUT)
                + pack_record(FOLDER, OUT + b"/d", 0o4755)
            )
            for at in range(0, len(raw), 11):
                made.peer.send(data(1, CONTENT, raw[at : at + 11]))
            made.peer.send(frame(REPLY, 1) + data(1, CONTENT, flags=END))
            found = await listing
            assert found.roots == {OUT: OUT, b"/workspace/no": 2, b"/skills/s/out": OUT}
            assert found.entries == [
                (REGULAR, OUT + b"/a\xff", OUT, 0o644, 5, 77),
                (LINK, OUT + b"/l", OUT, 0o777, 0, 0),
                (FOLDER, OUT + b"/d", OUT, 0o4755, 0, 0),
            ]

    run(test)


def test_an_honest_get() -> None:
    events: list[Any] = []

    async def test() -> None:
        async with bench() as made:
            getting = asyncio.create_task(
                made.channel.get_files(
                    [A, b"/workspace/no", B],
                    limit=10,
                    begin=lambda name, record: events.append(
                        (name, record if isinstance(record, int) else record.size)
                    ),
                    chunk=lambda piece: events.append(bytes(piece)),
                    end=events.append,
                )
            )
            assert (await made.peer.until(FILE))[1] == {"op": "get", "limit": 10, "links": False}
            made.peer.send(
                data(1, CONTENT, pack_file(A, b"0123456789", 0) + pack_record(MISSING, b"/workspace/no", 13))
                + data(1, CONTENT, pack_record(REGULAR, B, size=99, chunked=True))
                + data(1, CONTENT, pack_chunk(b"x") + pack_end(5))
                + frame(REPLY, 1)
                + data(1, CONTENT, flags=END)
            )
            await getting
            assert events == [(A, 10), b"0123456789", 0, (b"/workspace/no", 13), (B, 99), b"x", 5]

    run(test)


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (2, BadPathError, "cannot list '/workspace/é': No such file or directory"),
        (17, BadPathError, "cannot list '/workspace/é': File exists"),
        (18, BadPathError, "cannot list '/workspace/é': it is not a path below /workspace or /skills"),
        (40, BadPathError, "cannot list '/workspace/é': it is not a path below /workspace or /skills"),
        (28, SandboxError, "cannot list '/workspace/é': No space left on device"),
        (5, SandboxError, "cannot list '/workspace/é': Input/output error"),
        (4095, SandboxError, "cannot list '/workspace/é': errno 4095"),
    ],
)
def test_an_error_inside_is_an_error_for_the_caller(number: int, kind: type[Exception], text: str) -> None:
    async def test() -> None:
        async with bench() as made:
            listing = asyncio.create_task(made.channel.list_files([OUT]))
            await made.peer.until(FILE)
            # An error may come in the middle of a record.
            made.peer.send(data(1, CONTENT, b"\1\0\0", END))
            made.peer.send(frame(REPLY, 1, {"errno": number, "path": "/workspace/é"}))
            error = await failure(listing)
            assert type(error) is kind
            assert error.message == text  # type: ignore[attr-defined]
            assert made.channel.broken is None

    run(test)


def test_a_put_as_the_guest_sees_it() -> None:
    pieces = [pack_file(b"%d" % n, bytes([n]) * 50_000, 0o644) for n in range(60)]

    async def test() -> None:
        async with bench() as made:
            putting = asyncio.create_task(made.channel.put_files(b"/skills", pieces, swap=b"s"))
            assert await made.peer.until(FILE) == (1, {"op": "put", "base": "/skills", "swap": "s"})
            came = b""
            while len(came) < len(b"".join(pieces)):
                kind, stream, channel, body = await made.peer.frame()
                assert (kind, stream, channel) == (DATA, 1, CONTENT)
                came += body
                made.peer.send(frame(CREDIT, 1, len(body).to_bytes(4, "big"), channel=CONTENT))
            assert came == b"".join(pieces)
            made.peer.send(frame(REPLY, 1, {"files": 60, "bytes": 1}) + data(1, CONTENT, flags=END))
            await putting

    run(test)


def test_a_put_that_fails_early_is_not_sent_to_its_end() -> None:
    made_pieces = []

    def endless() -> Any:
        for number in range(10_000):
            made_pieces.append(number)
            yield b"x" * 65536

    async def test() -> None:
        async with bench() as made:
            putting = asyncio.create_task(made.channel.put_files(b"/workspace", endless()))
            await made.peer.until(FILE)
            made.peer.send(data(1, CONTENT, flags=END) + frame(REPLY, 1, {"errno": 28, "path": "x"}))
            assert type(await failure(putting)) is SandboxError
            assert len(made_pieces) < 100
            assert made.channel.broken is None

    run(test)


# -- an honest guest in a hurry -----------------------------------------------------------------------


class Guest:
    """Answers every run as `act` decides, over a `Connection` that keeps the rules."""

    def __init__(self, peer: Peer, act: Callable[[Guest, int, list[bytes]], None]) -> None:
        self.peer, self.act = peer, act
        self.wire = wire.Connection(wire.GUEST)
        self.wire._heard_hello = True
        self.args: dict[int, bytearray] = {}
        self.sent = 0

    async def serve(self) -> None:
        while received := await self.peer.reader.read(1 << 16):
            for event in self.wire.receive(received):
                if event.type == RUN:
                    self.args[event.stream] = bytearray()
                elif event.type == DATA and event.channel == ARGS:
                    self.args[event.stream] += event.body
                    if event.end:
                        self.act(self, event.stream, records.split_names(bytes(self.args.pop(event.stream))))
            self.flush()

    def finish(self, stream: int, output: bytes) -> None:
        self.wire.data(stream, STDOUT, output, end=True)
        self.wire.data(stream, STDERR, b"", end=True)
        self.wire.control(EXIT, stream, {"code": 0, "stdout": len(output)})

    def flush(self) -> None:
        while buffers := self.wire.outgoing():
            self.sent += sum(map(len, buffers))
            self.peer.writer.writelines(buffers)


def test_many_runs_at_once() -> None:
    waiting: list[tuple[int, list[bytes]]] = []

    def act(guest: Guest, stream: int, words: list[bytes]) -> None:
        waiting.append((stream, words))
        if len(waiting) == 300:  # all of them, last one first
            while waiting:
                number, sent = waiting.pop()
                guest.finish(number, b" ".join(sent))

    async def test() -> None:
        async with bench() as made:
            serving = asyncio.create_task(Guest(made.peer, act).serve())

            async def one(number: int) -> bytes:
                handle = await made.channel.run(spec(argv=[b"echo", b"%d" % number]))
                await made.channel.wait(handle)
                return bytes(handle.output[STDOUT].head)

            found = await asyncio.gather(*map(one, range(300)))
            assert found == [b"/workspace echo %d" % number for number in range(300)]
            assert made.channel._requests == {}
            assert made.channel._connection._streams == {}
            serving.cancel()

    run(test)


def test_a_slow_consumer_holds_up_its_own_run_only() -> None:
    flood = bytes(range(256)) * (4 * WINDOW // 256)
    came: list[bytes] = []
    release = asyncio.Event()

    async def slow(stream: str, piece: bytes) -> None:
        assert stream == "stdout"
        await release.wait()
        came.append(piece)

    def act(guest: Guest, stream: int, words: list[bytes]) -> None:
        guest.finish(stream, flood if words[1] == b"flood" else b"quick")

    async def test() -> None:
        async with bench() as made:
            guest = Guest(made.peer, act)
            serving = asyncio.create_task(guest.serve())
            flooded = await made.channel.run(spec(argv=[b"flood"], on_output=slow))
            await eventually(lambda: flooded.output[STDOUT].total == WINDOW)
            for _ in range(20):
                quick = await made.channel.run(spec(argv=[b"quick"]))
                await made.channel.wait(quick)
                assert bytes(quick.output[STDOUT].head) == b"quick"
            assert flooded.output[STDOUT].total == WINDOW  # and not a byte more without credit
            assert guest.wire.queued(1, STDOUT) == len(flood) - WINDOW
            assert sum(len(piece) for _, piece in flooded._queue) <= WINDOW
            assert not flooded.report.done()
            release.set()
            await made.channel.wait(flooded)
            assert b"".join(came) == flood
            assert flooded.output[STDOUT].total == len(flood)
            serving.cancel()

    run(test)


def test_a_drip_of_single_bytes_waits_in_little_memory() -> None:
    came: dict[str, bytes] = {"stdout": b"", "stderr": b""}
    release = asyncio.Event()

    async def slow(stream: str, piece: bytes) -> None:
        await release.wait()
        came[stream] += piece

    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(spec(on_output=slow))
            drip = b"".join(data(1, STDOUT, b"%c" % (n % 256)) + data(1, STDERR, b"!") for n in range(5000))
            made.peer.send(drip)
            await eventually(lambda: handle.output[STDERR].total == 5000)
            assert len(handle._queue) <= runs.MAX_WAITING
            release.set()
            made.peer.send(finished(1))
            await made.channel.wait(handle)
            assert came == {"stdout": bytes(n % 256 for n in range(5000)), "stderr": b"!" * 5000}

    run(test)


def test_output_comes_in_the_order_it_was_written() -> None:
    came: list[tuple[str, bytes]] = []

    async def test() -> None:
        async with bench() as made:
            handle = await made.channel.run(
                spec(on_output=lambda stream, piece: came.append((stream, piece)))
            )
            made.peer.send(
                data(1, STDOUT, b"a") + data(1, STDERR, b"b") + data(1, STDOUT, b"c") + finished(1)
            )
            await made.channel.wait(handle)
            assert came == [("stdout", b"a"), ("stderr", b"b"), ("stdout", b"c")]

    run(test)


# -- kept output --------------------------------------------------------------------------------------


def check_buffer(head: int, tail: int, pieces: list[bytes]) -> None:
    buffer = OutputBuffer(head, tail)
    for piece in pieces:
        buffer.add(piece)
        assert len(buffer.head) <= head
        assert len(buffer.tail) <= 2 * tail
    whole = b"".join(pieces)
    rest = whole[head:]
    last = rest[max(0, len(rest) - tail) :]
    assert buffer.total == len(whole)
    assert bytes(buffer.head) == whole[:head]
    assert buffer.last() == last
    kept = whole[:head] + bytes(len(rest) - len(last)) + last  # zeros where nothing is kept
    gap = range(len(whole[:head]), len(whole) - len(last))
    for offset in range(len(whole) + 3):
        missed = [at for at in gap if at >= offset]
        expected = bytes(byte for at, byte in enumerate(kept) if at >= offset and at not in gap)
        assert buffer.since(offset) == (expected, len(missed))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.lists(st.binary(max_size=15), max_size=8))
def test_the_first_and_last_bytes_are_kept(head: int, tail: int, pieces: list[bytes]) -> None:
    check_buffer(head, tail, pieces)


@pytest.mark.parametrize(
    ("head", "tail", "pieces"),
    [
        (0, 0, [b"abc"]),
        (2, 0, [b"abc", b"d"]),
        (0, 2, [b"abc", b"d"]),
        (2, 2, [b"abcd"]),
        (2, 2, [b"abcde"]),
        (3, 1, [b"a", b"b", b"c", b"d", b"e"]),
    ],
)
def test_the_first_and_last_bytes_at_the_edges(head: int, tail: int, pieces: list[bytes]) -> None:
    check_buffer(head, tail, pieces)


def test_what_is_kept_of_a_run() -> None:
    async def test() -> None:
        async with bench() as made:
            handle: RunHandle = await made.channel.run(spec(head=(4, 1), tail=(3, 1)))
            made.peer.send(data(1, STDOUT, b"0123456789") + data(1, STDERR, b"xyz") + finished(1))
            await made.channel.wait(handle)
            out, err = handle.output[STDOUT], handle.output[STDERR]
            assert (bytes(out.head), out.last(), out.total) == (b"0123", b"789", 10)
            assert (bytes(err.head), err.last(), err.total) == (b"x", b"z", 3)
            assert out.since(2) == (b"23789", 3)
            assert handle.changed.is_set()

    run(test)
