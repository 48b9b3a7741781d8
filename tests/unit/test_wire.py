"""The codec keeps its rules against any peer: nothing but events or ProtocolError, in bounded memory.

EXECUTOR_SOAK=1 runs the property tests for many more examples.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.guest import wire
from executor.guest.wire import (
    ARGS,
    CALL,
    CANCEL,
    CONTENT,
    CREDIT,
    DATA,
    END,
    EXIT,
    FILE,
    GOODBYE,
    GUEST,
    HELLO,
    HOST,
    MAX_CALLS,
    MAX_CONTROL,
    MAX_FRAME,
    MAX_STREAMS,
    PING,
    PONG,
    REPLY,
    RESULT,
    RUN,
    SIGNAL,
    STARTED,
    STDERR,
    STDIN,
    STDOUT,
    TUNNEL,
    WINDOW,
    Connection,
    Event,
    ProtocolError,
    dump_control,
    parse_control,
)

SOAK = os.environ.get("EXECUTOR_SOAK") == "1"
pytestmark = pytest.mark.timeout(7200 if SOAK else 120)
BOUND = wire.HEADER_SIZE + MAX_FRAME


def examples(usual: int) -> settings:
    return settings(
        max_examples=usual * 100 if SOAK else usual,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def frame(kind: int, stream: int = 0, body: bytes = b"{}", *, channel: int = 0, flags: int = 0) -> bytes:
    """One frame written by hand, so that a fault of the codec's own writer cannot hide one of its reader."""
    return struct.pack(">IBBHI", len(body), kind, flags, channel, stream) + body


def data(stream: int, channel: int, body: bytes = b"", flags: int = 0) -> bytes:
    return frame(DATA, stream, body, channel=channel, flags=flags)


def frames(stream: bytes) -> list[bytes]:
    """Whole frames of a valid byte stream."""
    found, at = [], 0
    while at < len(stream):
        end = at + 12 + int.from_bytes(stream[at : at + 4], "big")
        found.append(stream[at:end])
        at = end
    return found


def take(connection: Connection, limit: int = 1 << 30) -> bytes:
    return b"".join(connection.outgoing(limit))


def host_with(*openers: int, hello: bool = True) -> Connection:
    """A host that has opened streams 1, 3, … and heard a hello."""
    host = Connection(HOST)
    host.control(HELLO, 0, {})
    for index, opener in enumerate(openers):
        host.control(opener, 2 * index + 1, {})
    host.outgoing()
    if hello:
        host.receive(frame(HELLO))
    return host


def guest_with(*openers: int) -> Connection:
    guest = Connection(GUEST)
    guest.control(HELLO, 0, {})
    guest.outgoing()
    guest.receive(frame(HELLO) + b"".join(frame(kind, 2 * i + 1) for i, kind in enumerate(openers)))
    return guest


def pair(*openers: int) -> tuple[Connection, Connection]:
    return host_with(*openers), guest_with(*openers)


def cut(stream: bytes, points: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(point % (len(stream) + 1) for point in points), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


# -- golden bytes -------------------------------------------------------------------------------------


def test_the_format_does_not_change_unnoticed() -> None:
    assert wire.VERSION == 1
    assert wire.NAMES == {
        1: "HELLO",
        2: "RUN",
        3: "STARTED",
        4: "DATA",
        5: "CREDIT",
        6: "EXIT",
        7: "FILE",
        8: "REPLY",
        9: "SIGNAL",
        10: "PING",
        11: "PONG",
        12: "GOODBYE",
        13: "CALL",
        14: "RESULT",
        15: "CANCEL",
        16: "TUNNEL",
    }
    assert (STDOUT, STDERR, STDIN, ARGS, CONTENT, END) == (1, 2, 3, 4, 5, 1)
    assert (MAX_FRAME, MAX_CONTROL, WINDOW, wire.HEADER_SIZE) == (65536, 16384, 1048576, 12)


def test_golden_frames_of_the_host() -> None:
    host = Connection(HOST)
    host.control(HELLO, 0, {"nonce": "ab"})
    host.control(RUN, 1, {"id": "é", "argc": 2})
    host.ping(b"12345678")
    host.data(1, ARGS, b"ls\0", end=True)
    host.control(SIGNAL, 1, {"signal": 15})
    host.control(GOODBYE, 0, {})
    assert take(host).hex(" ", -4).replace(" ", "") == (
        "0000000e" + "01000000" + "00000000" + b'{"nonce":"ab"}'.hex()
        + "00000014" + "02000000" + "00000001" + '{"id":"é","argc":2}'.encode().hex()
        + "00000008" + "0a000000" + "00000000" + b"12345678".hex()
        + "0000000d" + "09000000" + "00000001" + b'{"signal":15}'.hex()
        + "00000002" + "0c000000" + "00000000" + b"{}".hex()
        + "00000003" + "04010004" + "00000001" + b"ls\0".hex()
    )  # fmt: skip


def test_golden_frames_of_the_guest() -> None:
    guest = guest_with(RUN, FILE)
    guest.receive(frame(PING, 0, b"abcdefgh") + data(3, CONTENT, b"x" * 65536) * 4)
    guest.consumed(3, CONTENT, 262144)
    guest.control(STARTED, 1, {"pid": 7})
    guest.data(1, STDERR, b"hi")
    guest.control(REPLY, 3, {})
    assert take(guest).hex() == (
        "00000008" + "0b000000" + "00000000" + b"abcdefgh".hex()
        + "00000004" + "05000005" + "00000003" + "00040000"
        + "00000009" + "03000000" + "00000001" + b'{"pid":7}'.hex()
        + "00000002" + "08000000" + "00000003" + b"{}".hex()
        + "00000002" + "04000002" + "00000001" + b"hi".hex()
    )  # fmt: skip


def test_events_are_what_was_sent() -> None:
    host = host_with(RUN)
    assert host.receive(
        frame(STARTED, 1, b'{"pid":7}')
        + data(1, STDOUT, b"ab")
        + frame(EXIT, 1, b'{"code":0}')
        + data(1, STDOUT, flags=END)
        + frame(PONG, 0, b"00000000")
        + data(1, STDERR, b"c", END)
        + frame(GOODBYE)
    ) == [
        Event(STARTED, 1, 0, False, {"pid": 7}),
        Event(DATA, 1, STDOUT, False, b"ab"),
        Event(EXIT, 1, 0, False, {"code": 0}),
        Event(DATA, 1, STDOUT, True, b""),
        Event(PONG, 0, 0, False, b"00000000"),
        Event(DATA, 1, STDERR, True, b"c"),
        Event(GOODBYE, 0, 0, False, {}),
    ]
    assert not host.is_open(1)


# -- control payloads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "fragment"),
    [
        (b"", "not JSON: JSONDecodeError"),
        (b"{", "not JSON: JSONDecodeError"),
        (b"{} {}", "not JSON: JSONDecodeError"),
        (b"{'a':1}", "not JSON: JSONDecodeError"),
        (b'{"a":1,}', "not JSON: JSONDecodeError"),
        (b'{"a":"\n"}', "not JSON: JSONDecodeError"),
        (b'{"a":"\\x"}', "not JSON: JSONDecodeError"),
        (b"\xef\xbb\xbf{}", "not JSON: JSONDecodeError"),
        (b'{"a":"\xff"}', "not JSON: UnicodeDecodeError"),
        (b'{"a":"\xed\xa0\x80"}', "not JSON: UnicodeDecodeError"),
        (b'{"a":"\\ud800"}', "not JSON: UnicodeEncodeError"),
        (b'{"\\udfff":1}', "not JSON: UnicodeEncodeError"),
        (b'{"a":["x\\ude00\\ud83d"]}', "not JSON: UnicodeEncodeError"),
        (b'{"a":' + b"9" * 5000 + b"}", "not JSON: ValueError"),
        (b"[]", "not an object"),
        (b'"{}"', "not an object"),
        (b"1", "not an object"),
        (b"null", "not an object"),
        (b'{"a":1,"a":1}', "holds a key twice"),
        (b'{"a":[{"b":1,"\\u0062":2}]}', "holds a key twice"),
        (b'{"a":NaN}', "holds NaN"),
        (b'{"a":Infinity}', "holds Infinity"),
        (b'{"a":[-Infinity]}', "holds -Infinity"),
        (b'{"a":1e999}', "holds a number out of range"),
        (b'{"a":-1e999}', "holds a number out of range"),
        (b'{"a":' * 17 + b"1" + b"}" * 17, "deeper than 16"),
        (b'{"a":' + b"[" * 16 + b"]" * 16 + b"}", "deeper than 16"),
        (b'{"a":"\\\\","b":' + b"[" * 16 + b"]" * 16 + b"}", "deeper than 16"),
        (b"[" * MAX_CONTROL, "deeper than 16"),
        (b'"' + b"[" * 100, "not JSON: JSONDecodeError"),
        (b'{"a":"' + b"x" * MAX_CONTROL + b'"}', "of 16392 bytes, at most 16384"),
    ],
)
def test_refused_control_payloads(payload: bytes, fragment: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_control(payload)
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (b"{}", {}),
        (b' {"a" : 1} \n', {"a": 1}),
        (b'{"a":"\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"é":"😀"}'.encode(), {"é": "😀"}),
        (b'{"a":' + b"[" * 15 + b"]" * 15 + b"}", {"a": [[[[[[[[[[[[[[[]]]]]]]]]]]]]]]}),
        (b'{"a":"' + b"[" * 100 + b'"}', {"a": "[" * 100}),
        (b'{"a":"\\"' + b"{[" * 50 + b'\\\\","b":[]}', {"a": '"' + "{[" * 50 + "\\", "b": []}),
        (b'{"' + b"[" * 99 + b'":[]}', {"[" * 99: []}),
        (b'{"a":' + b"[]," * 0 + b"[" + b"[]," * 30 + b"[]]}", {"a": [[]] * 31}),
        (b'{"a":1e308}', {"a": 1e308}),
        (b'{"a":"' + b"x" * (MAX_CONTROL - 8) + b'"}', {"a": "x" * (MAX_CONTROL - 8)}),
    ],
)
def test_accepted_control_payloads(payload: bytes, body: dict[str, Any]) -> None:
    assert parse_control(payload) == body


@pytest.mark.timeout(30)
@pytest.mark.parametrize("tail", [b'"' + b'\\"' * 8000, b'"' * 16000, b'"' + b"\\" * 16001, b'"\\' * 8000])
def test_depth_is_found_in_one_pass(tail: bytes) -> None:
    """A pass for every quote would take minutes here."""
    for _ in range(100):
        with pytest.raises(ProtocolError):
            parse_control(b"[{" * 9 + tail[: MAX_CONTROL - 18])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@examples(150)
@given(
    st.dictionaries(st.text(alphabet=st.characters()) | st.just("\ud800"), json_values | st.just("\udc80a"))
)
def test_what_can_be_sent_is_accepted(body: dict[str, Any]) -> None:
    try:
        payload = dump_control(body)
    except ValueError:
        return
    assert parse_control(payload) == body


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf"), "x" * MAX_CONTROL])
def test_what_would_be_refused_is_not_sent(value: Any) -> None:
    host = Connection(HOST)
    with pytest.raises(ValueError, match=r"surrogates|JSON compliant|at most 16384"):
        host.control(HELLO, 0, {"a": value})
    assert take(host) == b""


@examples(200)
@given(st.binary(max_size=300) | st.text(alphabet='{}[]",:\\u0123de.-+NaInfity \n', max_size=300))
def test_any_payload_is_an_object_or_refused(payload: bytes | str) -> None:
    raw = payload.encode() if isinstance(payload, str) else payload
    try:
        assert type(parse_control(raw)) is dict
    except ProtocolError:
        pass


# -- breaches -----------------------------------------------------------------------------------------

FULL_STDOUT = data(1, STDOUT, b"x" * MAX_FRAME) * 16  # a whole window
FULL_ARGS = data(2, ARGS, b"x" * MAX_FRAME)
FULL_CONTENT = data(3, CONTENT, b"x" * MAX_FRAME) * 16

# What a host with stream 1 (RUN) and 3 (FILE) open says to bytes from a guest.
FROM_A_GUEST = [
    (frame(HELLO), "second HELLO"),
    (frame(HELLO, 1), "HELLO on stream 1"),
    (frame(GOODBYE, 3), "GOODBYE on stream 3"),
    (frame(EXIT, 1) * 2, "EXIT on stream 1 after its end"),
    (frame(EXIT, 1) + frame(STARTED, 1), "STARTED on stream 1 after its end"),
    (frame(REPLY, 3) * 2, "REPLY on stream 3 after its end"),
    (frame(EXIT, 3), "EXIT ends a FILE"),
    (frame(REPLY, 1), "REPLY ends a RUN"),
    (frame(EXIT, 5), "EXIT on stream 5, which is not open"),
    (frame(EXIT, 0), "EXIT on stream 0, which is not open"),
    (frame(STARTED, 2), "STARTED on stream 2, which is not open"),
    (data(2, STDOUT, b"x"), "DATA on stream 2, which is not open"),
    (data(0, STDOUT, b"x"), "DATA on stream 0, which is not open"),
    (data(5, STDOUT, b"x"), "DATA on stream 5, which is not open"),
    (data(1, STDOUT, b"x", END) + data(1, STDOUT), "DATA on stream 1, channel 1: not open there"),
    (data(1, STDOUT, flags=END) * 2, "DATA on stream 1, channel 1: not open there"),
    (data(1, STDIN, b"x"), "DATA on stream 1, channel 3: not open there"),
    (data(1, ARGS, b"x"), "DATA on stream 1, channel 4: not open there"),
    (data(1, CONTENT, b"x"), "DATA on stream 1, channel 5: not open there"),
    (data(1, 0, b"x"), "DATA on stream 1, channel 0: not open there"),
    (data(1, 999, b"x"), "DATA on stream 1, channel 999: not open there"),
    (data(3, STDOUT, b"x"), "DATA on stream 3, channel 1: not open there"),
    (data(3, ARGS, b"x"), "DATA on stream 3, channel 4: not open there"),
    (FULL_STDOUT + data(1, STDOUT, b"x"), "DATA beyond the credit of stream 1, channel 1"),
    (data(1, STDOUT, b"x", 2), "DATA with unknown flags 2"),
    (data(1, STDOUT, b"x", 0x81), "DATA with unknown flags 129"),
    (frame(EXIT, 1, flags=END), "EXIT with flags or channel"),
    (frame(EXIT, 1, channel=STDOUT), "EXIT with flags or channel"),
    (frame(PONG, 0, b"x" * 8, channel=1), "PONG with flags or channel"),
    (frame(CREDIT, 1, b"\0\0\0\1", channel=STDIN, flags=1), "CREDIT with flags or channel"),
    (frame(0), "frame type 0 is unknown"),
    (frame(17), "frame type 17 is unknown"),
    (frame(255), "frame type 255 is unknown"),
    (frame(RUN, 5), "RUN from the guest"),
    (frame(CALL, 5), "CALL on stream 5"),
    (frame(CALL, 0), "CALL on stream 0"),
    (frame(CALL, 4) + frame(CALL, 4), "CALL on stream 4"),
    (frame(CALL, 4) + frame(CALL, 2), "CALL on stream 2"),
    (frame(CALL, 2, b"[]"), "not an object"),
    (b"".join(frame(CALL, n) for n in range(2, 2 * MAX_CALLS + 4, 2)), "more than 1024 calls open"),
    (frame(CALL, 2) + frame(RESULT, 2), "RESULT from the guest"),
    (frame(CALL, 2) + frame(EXIT, 2), "EXIT ends a CALL"),
    (frame(CALL, 2) + frame(STARTED, 2), "STARTED within a CALL"),
    (frame(CANCEL, 1), "CANCEL within a RUN"),
    (frame(CANCEL, 3), "CANCEL within a FILE"),
    (frame(CANCEL, 2), "CANCEL on stream 2, which is not open"),
    (frame(CALL, 2) + data(2, CONTENT, b"x"), "DATA on stream 2, channel 5: not open there"),
    (frame(CALL, 2) + data(2, STDOUT, b"x"), "DATA on stream 2, channel 1: not open there"),
    (frame(CALL, 2) + FULL_ARGS + data(2, ARGS, b"x"), "DATA beyond the credit of stream 2"),
    (frame(CALL, 2) + data(2, ARGS, flags=END) * 2, "DATA on stream 2, channel 4: not open there"),
    (frame(CALL, 2) + frame(CREDIT, 2, b"\0\0\0\1", channel=CONTENT), "over the window"),
    (frame(CALL, 2) + frame(CREDIT, 2, b"\0\0\0\1", channel=ARGS), "stream 2, channel 4: not ours"),
    (frame(TUNNEL, 3), "TUNNEL on stream 3"),
    (frame(CALL, 2) + frame(TUNNEL, 2), "TUNNEL on stream 2"),
    (frame(TUNNEL, 2) + frame(RESULT, 2), "RESULT from the guest"),
    (frame(TUNNEL, 2) + frame(STARTED, 2), "STARTED within a TUNNEL"),
    (frame(TUNNEL, 2) + data(2, CONTENT, b"x"), "DATA on stream 2, channel 5: not open there"),
    (
        b"".join(frame((CALL, TUNNEL)[n & 2 > 0], n) for n in range(2, 2 * MAX_CALLS + 4, 2)),
        "more than 1024 calls open",
    ),
    (frame(FILE, 4), "FILE from the guest"),
    (frame(SIGNAL, 1), "SIGNAL from the guest"),
    (frame(PING, 0, b"x" * 8), "PING from the guest"),
    (frame(PONG, 0, b"x" * 7), "PONG of 7 bytes on stream 0"),
    (frame(PONG, 1, b"x" * 8), "PONG of 8 bytes on stream 1"),
    (frame(CREDIT, 1, b"\0\0\1", channel=STDIN), "CREDIT of 3 bytes"),
    (frame(CREDIT, 1, b"\0\0\0\1", channel=STDIN), "credit of stream 1, channel 3 over the window"),
    (frame(CREDIT, 1, b"\xff\xff\xff\xff", channel=STDIN), "credit of stream 1, channel 3 over the window"),
    (frame(CREDIT, 1, b"\0\0\0\1", channel=STDOUT), "CREDIT for stream 1, channel 1: not ours"),
    (frame(CREDIT, 5, b"\0\0\0\1", channel=STDIN), "CREDIT for stream 5, which is not open"),
    (frame(CREDIT, 2, b"\0\0\0\1", channel=STDIN), "CREDIT for stream 2, which is not open"),
    (frame(CREDIT, 0, b"\0\0\0\1", channel=STDIN), "CREDIT for stream 0, which is not open"),
    (frame(EXIT, 1, b" " * (MAX_CONTROL + 1)), "control payload of 16385 bytes, at most 16384"),
    (struct.pack(">IBBHI", MAX_FRAME + 1, DATA, 0, STDOUT, 1), "frame of 65537 bytes, at most 65536"),
    (struct.pack(">IBBHI", 0xFFFFFFFF, EXIT, 0, 0, 1), "frame of 4294967295 bytes, at most 65536"),
    (frame(EXIT, 1, b'{"code":NaN}'), "holds NaN"),
    (frame(EXIT, 1, b"[]"), "not an object"),
    (
        data(1, STDOUT, flags=END) + data(1, STDERR, flags=END) + frame(EXIT, 1) + frame(EXIT, 1),
        "EXIT on stream 1, which is not open",
    ),
    (
        frame(EXIT, 1) + data(1, STDERR, flags=END) + data(1, STDOUT, flags=END) + data(1, STDOUT),
        "DATA on stream 1, which is not open",
    ),
    (
        frame(REPLY, 3) + data(3, CONTENT, flags=END) + frame(STARTED, 3),
        "STARTED on stream 3, which is not open",
    ),
]  # fmt: skip

# What a guest in the same state says to bytes from a host.
FROM_A_HOST = [
    (frame(HELLO), "second HELLO"),
    (frame(RUN, 1), "RUN on stream 1"),
    (frame(FILE, 3), "FILE on stream 3"),
    (frame(RUN, 2), "RUN on stream 2"),
    (frame(RUN, 4), "RUN on stream 4"),
    (frame(RUN, 0), "RUN on stream 0"),
    (frame(RUN, 9) + frame(FILE, 7), "FILE on stream 7"),
    (frame(RUN, 5, channel=1), "RUN with flags or channel"),
    (frame(STARTED, 1), "STARTED from the host"),
    (frame(EXIT, 1), "EXIT from the host"),
    (frame(REPLY, 3), "REPLY from the host"),
    (frame(CALL, 2), "CALL from the host"),
    (frame(TUNNEL, 2), "TUNNEL from the host"),
    (frame(CANCEL, 1), "CANCEL from the host"),
    (frame(RESULT, 2), "RESULT on stream 2, which is not open"),
    (frame(RESULT, 1), "RESULT ends a RUN"),
    (data(2, CONTENT, b"x"), "DATA on stream 2, which is not open"),
    (frame(PONG, 0, b"x" * 8), "PONG from the host"),
    (frame(PING, 0, b"x" * 9), "PING of 9 bytes on stream 0"),
    (frame(SIGNAL, 5), "SIGNAL on stream 5, which is not open"),
    (frame(SIGNAL, 2), "SIGNAL on stream 2, which is not open"),
    (data(1, STDOUT, b"x"), "DATA on stream 1, channel 1: not open there"),
    (data(3, STDIN, b"x"), "DATA on stream 3, channel 3: not open there"),
    (data(5, STDIN, b"x"), "DATA on stream 5, which is not open"),
    (data(1, ARGS, flags=END) + data(1, ARGS, b"x"), "DATA on stream 1, channel 4: not open there"),
    (FULL_CONTENT + data(3, CONTENT, b"x"), "DATA beyond the credit of stream 3, channel 5"),
    (b"".join(frame(RUN, n) for n in range(5, 2 * MAX_STREAMS + 2, 2)), "more than 4096 streams open"),
]  # fmt: skip


def check_breach(connection: Connection, stream: bytes, fragment: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        connection.receive(stream)
    assert fragment in str(caught.value)
    assert len(connection._buffer) == 0
    for later in (b"", frame(PONG, 0, b"x" * 8), stream):
        with pytest.raises(ProtocolError) as again:
            connection.receive(later)
        assert str(again.value) == str(caught.value)


@pytest.mark.parametrize(("stream", "fragment"), FROM_A_GUEST, ids=[text for _, text in FROM_A_GUEST])
def test_breaches_by_a_guest(stream: bytes, fragment: str) -> None:
    check_breach(host_with(RUN, FILE), stream, fragment)


@pytest.mark.parametrize(("stream", "fragment"), FROM_A_HOST, ids=[text for _, text in FROM_A_HOST])
def test_breaches_by_a_host(stream: bytes, fragment: str) -> None:
    check_breach(guest_with(RUN, FILE), stream, fragment)


@pytest.mark.parametrize("kind", sorted(set(wire.NAMES) - {HELLO}))
@pytest.mark.parametrize("role", [HOST, GUEST])
def test_nothing_comes_before_hello(role: str, kind: int) -> None:
    check_breach(Connection(role), frame(kind, 1, b"{}"), f"{wire.NAMES[kind]} before HELLO")


def test_a_long_frame_is_refused_before_it_comes() -> None:
    host = host_with(RUN)
    with pytest.raises(ProtocolError, match="frame of 65537 bytes"):
        host.receive(struct.pack(">IBBHI", MAX_FRAME + 1, DATA, 0, STDOUT, 1))


def test_a_host_opens_no_more_streams_than_it_may() -> None:
    host = Connection(HOST)
    for number in range(MAX_STREAMS):
        host.control(RUN, 2 * number + 1, {})
    with pytest.raises(ProtocolError, match="more than 4096 streams open"):
        host.control(RUN, 2 * MAX_STREAMS + 1, {})


@pytest.mark.parametrize("stream", [0, 1, 2, 4, 6])
def test_a_host_opens_only_rising_odd_streams(stream: int) -> None:
    host = host_with(RUN, FILE)
    with pytest.raises(ProtocolError, match=f"RUN on stream {stream}"):
        host.control(RUN, stream, {})


# -- what is forgiven ---------------------------------------------------------------------------------


def test_a_signal_that_crosses_the_exit_is_dropped() -> None:
    """The run is over, its output is still waiting for credit: the host could not know."""
    host, guest = pair(RUN)
    guest.data(1, STDOUT, b"x" * (3 * WINDOW), end=True)
    guest.data(1, STDERR, b"", end=True)
    guest.control(EXIT, 1, {"code": 0})
    on_its_way = take(guest)
    host.control(SIGNAL, 1, {"kill": "killed"})
    assert guest.receive(take(host)) == []
    assert len(host.receive(on_its_way)) == 1 + 16 + 1
    assert host.is_open(1)
    assert guest.is_open(1)


def test_a_guest_drops_what_comes_late_for_a_finished_stream() -> None:
    guest = guest_with(RUN)
    guest.data(1, STDOUT, b"", end=True)
    guest.data(1, STDERR, b"", end=True)
    guest.control(EXIT, 1, {})
    take(guest)
    assert not guest.is_open(1)
    late = data(1, STDIN, b"x" * 10, END) + frame(SIGNAL, 1) + frame(CREDIT, 1, b"\0\0\0\1", channel=STDOUT)
    assert guest.receive(late) == []
    assert guest.receive(frame(RUN, 3)) == [Event(RUN, 3, 0, False, {})]


def test_credit_for_a_finished_stream_is_dropped_by_the_host() -> None:
    host = host_with(FILE)
    host.receive(frame(REPLY, 1) + data(1, CONTENT, flags=END))
    assert not host.is_open(1)
    assert host.receive(frame(CREDIT, 1, b"\0\0\0\1", channel=CONTENT)) == []


def test_sending_on_a_finished_or_closed_channel_does_nothing() -> None:
    host = host_with(RUN)
    host.data(1, STDIN, b"a", end=True)
    host.data(1, STDIN, b"b")
    assert take(host) == data(1, STDIN, b"a", END)
    host.receive(frame(EXIT, 1) + data(1, STDOUT, flags=END) + data(1, STDERR, flags=END))
    host.data(1, ARGS, b"c")
    host.control(SIGNAL, 1, {"signal": 9})
    host.consumed(1, STDOUT, WINDOW)
    assert take(host) == b""
    assert not host.wants_to_write


def test_a_flood_of_pings_is_not_answered_by_a_host() -> None:
    host = host_with(RUN)
    with pytest.raises(ProtocolError):
        host.receive(frame(PING, 0, b"x" * 8) * 1000)
    assert take(host) == b""


# -- calls: the guest opens them, the host says the last word ------------------------------------------


def test_a_call_there_and_back() -> None:
    host, guest = pair(RUN)
    guest.control(CALL, 2, {"run": 1})
    guest.data(2, ARGS, b"args", end=True)
    assert host.receive(take(guest)) == [
        Event(CALL, 2, 0, False, {"run": 1}),
        Event(DATA, 2, ARGS, True, b"args"),
    ]
    assert host.open_calls == guest.open_calls == 1
    host.control(RESULT, 2, {"bytes": 3})
    assert host.is_open(2)
    host.data(2, CONTENT, b"yes", end=True)
    assert guest.receive(take(host)) == [
        Event(RESULT, 2, 0, False, {"bytes": 3}),
        Event(DATA, 2, CONTENT, True, b"yes"),
    ]
    assert not host.is_open(2) and not guest.is_open(2)
    assert host.open_calls == guest.open_calls == 0
    guest.control(CALL, 4, {"run": 1})
    host.receive(take(guest))


def test_a_host_drops_what_comes_late_for_an_answered_call() -> None:
    host, guest = pair(RUN)
    guest.control(CALL, 2, {"run": 1})
    guest.data(2, ARGS, b"x" * (3 * MAX_FRAME))
    host.receive(take(guest))
    host.control(RESULT, 2, {})
    guest.control(CANCEL, 2, {})  # crosses the result
    assert host.receive(take(guest)) == []
    host.data(2, CONTENT, b"", end=True)
    on_its_way = take(host)
    assert not host.is_open(2)
    late = data(2, ARGS, b"y") + frame(CANCEL, 2) + frame(CREDIT, 2, b"\0\0\0\1", channel=CONTENT)
    assert host.receive(late) == []
    assert len(guest.receive(on_its_way)) == 2
    assert not guest.is_open(2)
    assert (guest._bulk, guest._queued) == ({}, {})


def test_a_call_that_was_not_looked_at_costs_one_small_window() -> None:
    host, guest = pair(RUN)
    guest.control(CALL, 2, {"run": 1})
    guest.data(2, ARGS, b"x" * WINDOW, end=True)
    received = host.receive(take(guest))
    assert sum(len(event.body) for event in received if event.type == DATA) == wire.WINDOWS[CALL] == 64 * 1024
    assert not guest.wants_to_write


def test_calls_do_not_take_the_streams_of_the_host() -> None:
    host, guest = pair()
    for number in range(MAX_CALLS):
        guest.control(CALL, 2 * number + 2, {})
    host.receive(take(guest))
    for number in range(MAX_STREAMS):
        host.control(RUN, 2 * number + 1, {})
    with pytest.raises(ProtocolError, match="more than 4096 streams open"):
        host.control(RUN, 2 * MAX_STREAMS + 1, {})


def test_what_nobody_wants_any_more_is_cut() -> None:
    host, guest = pair(RUN)
    guest.control(CALL, 2, {"run": 1})
    host.receive(take(guest))
    host.control(RESULT, 2, {})
    host.data(2, CONTENT, b"x" * WINDOW, end=True)
    first = take(host)
    assert host.queued(2, CONTENT) == WINDOW - wire.WINDOWS[CALL]
    host.cut(2, CONTENT)
    assert host.queued(2, CONTENT) == 0
    assert take(host) == data(2, CONTENT, b"", END)
    host.cut(2, CONTENT)
    assert take(host) == b""
    assert not host.is_open(2)
    guest.receive(first + data(2, CONTENT, b"", END))
    assert not guest.is_open(2)


# -- order and credit ---------------------------------------------------------------------------------


def test_control_overtakes_queued_data() -> None:
    guest = guest_with(RUN)
    guest.data(1, STDOUT, b"x" * (4 * MAX_FRAME))
    first = frames(take(guest, MAX_FRAME))
    assert [part[4] for part in first] == [DATA]
    guest.control(STARTED, 1, {})
    guest.control(EXIT, 1, {})
    assert [part[4] for part in frames(take(guest))] == [STARTED, EXIT, DATA, DATA, DATA]


def test_channels_take_turns() -> None:
    guest = guest_with(RUN, FILE)
    for stream, channel in ((1, STDOUT), (1, STDERR), (3, CONTENT)):
        guest.data(stream, channel, b"x" * (2 * MAX_FRAME))
    assert [(part[11], part[7]) for part in frames(take(guest))] == [
        (1, STDOUT), (1, STDERR), (3, CONTENT), (1, STDOUT), (1, STDERR), (3, CONTENT),
    ]  # fmt: skip


def test_a_channel_without_credit_does_not_hold_up_the_others() -> None:
    host, guest = pair(RUN, FILE)
    guest.data(1, STDOUT, b"x" * (WINDOW + 5))
    host.receive(take(guest))
    assert guest.queued(1, STDOUT) == 5
    assert not guest.wants_to_write
    guest.data(3, CONTENT, b"y")
    guest.data(1, STDERR, b"z")
    assert guest.wants_to_write
    assert take(guest) == data(3, CONTENT, b"y") + data(1, STDERR, b"z")
    host.consumed(1, STDOUT, WINDOW // 4 - 1)
    assert take(host) == b""
    host.consumed(1, STDOUT, 1)
    granted = take(host)
    assert granted == frame(CREDIT, 1, b"\0\4\0\0", channel=STDOUT)
    guest.receive(granted)
    assert take(guest) == data(1, STDOUT, b"x" * 5)


def test_an_end_needs_no_credit() -> None:
    guest = guest_with(RUN)
    guest.data(1, STDOUT, b"x" * WINDOW)
    take(guest)
    guest.data(1, STDOUT, b"", end=True)
    assert guest.wants_to_write
    assert take(guest) == data(1, STDOUT, b"", END)


def test_a_frame_is_cut_to_the_credit_that_is_left() -> None:
    guest = guest_with(RUN)
    guest.data(1, STDOUT, b"x" * (WINDOW - 3))
    take(guest)
    guest.data(1, STDOUT, b"abcdef", end=True)
    assert take(guest) == data(1, STDOUT, b"abc")
    guest.receive(frame(CREDIT, 1, b"\0\0\0\3", channel=STDOUT))
    assert take(guest) == data(1, STDOUT, b"def", END)


def test_thousands_of_streams_leave_nothing_behind() -> None:
    host, guest = pair()
    for number in range(5000):
        stream = 2 * number + 1
        kind = (RUN, FILE)[number % 2]
        host.control(kind, stream, {})
        host.data(stream, ARGS, b"a\0", end=number % 3 > 0)
        host.data(stream, (STDIN, CONTENT)[number % 2], b"b" * 10)
        guest.receive(take(host))
        for channel in (STDOUT, STDERR) if kind == RUN else (CONTENT,):
            guest.data(stream, channel, b"c" * 10, end=True)
        guest.control(wire.LAST_WORD[kind], stream, {})
        host.data(stream, ARGS, b"too late")
        host.receive(take(guest))
    for connection in (host, guest):
        assert connection._streams == {}
        assert connection._bulk == {}
        assert connection._queued == {}
        assert len(connection._control) == 0
        assert len(connection._buffer) == 0


# -- properties: two ends, any legal use --------------------------------------------------------------

PATTERN = bytes(range(251)) * ((8 * WINDOW) // 251 + 2)
SIZES = [0, 1, 17, 1000, MAX_FRAME - 1, MAX_FRAME, MAX_FRAME + 1, 5 * MAX_FRAME, WINDOW // 2, WINDOW + 5]
Key = tuple[str, int, int]  # sender, stream, channel


class Talk:
    """Two connections, two pipes, and a plain record of what has to arrive."""

    def __init__(self) -> None:
        self.ends = {HOST: Connection(HOST), GUEST: Connection(GUEST)}
        self.pipes = {HOST: bytearray(), GUEST: bytearray()}  # by sender
        self.openers: dict[int, int] = {}
        self.queued: Counter[Key] = Counter()  # bytes given to `data`
        self.written: Counter[Key] = Counter()  # bytes that left in frames
        self.arrived: Counter[Key] = Counter()
        self.consumed: Counter[Key] = Counter()
        self.ended: set[Key] = set()
        self.end_seen: set[Key] = set()
        self.finals: set[int] = set()
        self.controls: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for role in (HOST, GUEST):
            self.control(role, HELLO, 0)

    def control(self, role: str, kind: int, stream: int) -> None:
        if kind == HELLO or kind in wire.LAST_WORD or self.ends[role].is_open(stream):
            if kind in wire.LAST_WORD.values() and not self.ends[role].is_open(stream):
                return
            self.controls[role].append((kind, stream))
        self.ends[role].control(kind, stream, {})

    def open(self, kind: int) -> None:
        guests = kind in wire.OF_THE_GUEST
        before = sum((other in wire.OF_THE_GUEST) == guests for other in self.openers.values())
        stream = 2 * before + (2 if guests else 1)
        self.openers[stream] = kind
        self.control(GUEST if guests else HOST, kind, stream)

    def ender(self, stream: int) -> str:
        """Who says the last word."""
        return HOST if self.openers[stream] in wire.OF_THE_GUEST else GUEST

    def data(self, role: str, stream: int, channel: int, size: int, end: bool) -> None:
        key = (role, stream, channel)
        if key in self.ended or not self.ends[role].is_open(stream):
            return
        start = self.queued[key] % 251
        self.ends[role].data(stream, channel, PATTERN[start : start + size], end)
        self.queued[key] += size
        if end:
            self.ended.add(key)

    def final(self, stream: int) -> None:
        role = self.ender(stream)
        if stream not in self.finals and self.ends[role].is_open(stream):
            self.finals.add(stream)
            self.control(role, wire.LAST_WORD[self.openers[stream]], stream)

    def write(self, role: str, limit: int) -> bool:
        had_control = bool(self.ends[role]._control)
        wanted = self.ends[role].wants_to_write
        out = take(self.ends[role], limit)
        assert bool(out) == wanted
        kinds = []
        for part in frames(out):
            kinds.append(part[4])
            if part[4] == DATA:
                key = (role, int.from_bytes(part[8:12], "big"), part[7])
                self.written[key] += len(part) - 12
                assert self.written[key] - self.consumed[key] <= WINDOW
        if had_control:
            assert kinds[0] != DATA
        assert kinds == sorted(kinds, key=lambda kind: kind == DATA)  # all control before all data
        self.pipes[role] += out
        return bool(out)

    def deliver(self, role: str, size: int) -> bool:
        """Bytes from `role` reach the other end."""
        piece = bytes(self.pipes[role][:size])
        del self.pipes[role][:size]
        other = GUEST if role == HOST else HOST
        for event in self.ends[other].receive(piece):
            if event.type == DATA:
                key = (role, event.stream, event.channel)
                start = self.arrived[key] % 251
                assert event.body == PATTERN[start : start + len(event.body)]
                assert key not in self.end_seen
                self.arrived[key] += len(event.body)
                if event.end:
                    self.end_seen.add(key)
            elif event.type != PONG:
                # Control frames keep their order; who said the last word drops those that come after it.
                while (dropped := self.controls[role].pop(0)) != (event.type, event.stream):
                    assert self.ender(dropped[1]) != role
        assert len(self.ends[other]._buffer) < BOUND
        return bool(piece)

    def consume(self, role: str, stream: int, channel: int, size: int) -> bool:
        """The receiver of what `role` sent has used up to `size` bytes."""
        key = (role, stream, channel)
        size = min(size, self.arrived[key] - self.consumed[key])
        if size:
            self.consumed[key] += size
            self.ends[GUEST if role == HOST else HOST].consumed(stream, channel, size)
        return size > 0

    def channels(self) -> list[Key]:
        return [
            (role, stream, channel)
            for stream, kind in self.openers.items()
            for role, channels in zip((HOST, GUEST), wire.CHANNELS[kind], strict=True)
            for channel in channels
        ]

    def settle(self) -> None:
        """Let everything move for as long as anything does."""
        moved = True
        while moved:
            moved = False
            for role in (HOST, GUEST):
                moved |= self.write(role, 4 * MAX_FRAME)
                moved |= self.deliver(role, 1 << 30)
            for key in self.channels():
                moved |= self.consume(*key, 1 << 30)


OPERATIONS = [
    *("open", "data", "data", "data", "data", "final", "signal", "started", "ping"),
    *("write", "write", "deliver", "deliver", "consume"),
]


def step(talk: Talk, chance: random.Random) -> None:
    """Any one thing that a correct user of either end, or the operating system between them, may do."""
    name = chance.choice(OPERATIONS)
    role = chance.choice((HOST, GUEST))
    size = chance.choice(SIZES)
    if name == "open":
        if len(talk.openers) < 6:
            talk.open(chance.choice((RUN, FILE, CALL, TUNNEL)))
    elif name == "ping":
        talk.ends[HOST].ping(b"pingpong")
    elif name == "write":
        talk.write(role, size + 1)
    elif name == "deliver":
        talk.deliver(role, chance.choice((size, chance.randrange(1, 40), 1 << 30)))
    elif talk.openers:
        key = chance.choice(talk.channels())
        calls = talk.openers[key[1]] in wire.OF_THE_GUEST
        heard = talk.ends[HOST if calls else GUEST].is_open(key[1])
        if name == "data" and (key[0] != talk.ender(key[1]) or heard):
            talk.data(*key, size, chance.random() < 0.1)
        elif name == "consume":
            talk.consume(*key, size)
        elif name == "signal":
            talk.control(GUEST if calls else HOST, CANCEL if calls else SIGNAL, key[1])
        elif name == "started" and heard and not calls and key[1] not in talk.finals:
            talk.control(GUEST, STARTED, key[1])
        elif name == "final" and heard and chance.random() < 0.3:
            talk.final(key[1])


@examples(120)
@given(st.integers(0, 2**64), st.integers(1, 200))
def test_two_ends_deliver_everything_in_order_within_credit(seed: int, steps: int) -> None:
    talk, chance = Talk(), random.Random(seed)
    for _ in range(steps):
        step(talk, chance)
    talk.settle()
    for key in talk.channels():
        if key[0] == talk.ender(key[1]) or key[1] not in talk.finals:
            assert talk.arrived[key] == talk.queued[key]  # so nothing is ever stuck
            assert (key in talk.end_seen) == (key in talk.ended)
    assert not any(talk.ends[role].wants_to_write for role in (HOST, GUEST))
    assert {kind for kind, _ in talk.controls[GUEST]} <= {CANCEL}
    for role, stream, channel in talk.channels():
        if role == talk.ender(stream):
            talk.data(role, stream, channel, 0, True)
    for stream in talk.openers:
        talk.final(stream)
    talk.settle()
    for end in talk.ends.values():
        assert (end._streams, end._bulk, end._queued) == ({}, {}, {})
        assert len(end._buffer) == len(end._control) == 0


# -- properties: any bytes ----------------------------------------------------------------------------


def transcript(seed: int, role: str) -> tuple[list[int], bytes]:
    """What a peer might legally send to `role` that has these streams open (the host opens them itself)."""
    chance = random.Random(seed)
    openers = [chance.choice([RUN, FILE]) for _ in range(chance.randrange(1, 5))]
    host = host_with(*openers, hello=False)
    if role == GUEST:
        host = Connection(HOST)
        host.control(HELLO, 0, {"nonce": "n", "rlimits": {"core": 0}})
    out = b""
    guest = guest_with(*openers)
    sender = guest if role == HOST else host
    calls: list[int] = []
    if role == HOST:
        out += frame(HELLO, 0, b'{"version":1}')
    else:
        for index, kind in enumerate(openers):
            host.control(kind, 2 * index + 1, {"op": "get", "n": [1, {"a": None}]})
    for _ in range(chance.randrange(12)):
        index = chance.randrange(len(openers))
        stream, kind = 2 * index + 1, openers[index]
        channels = wire.CHANNELS[kind][1 if role == HOST else 0]
        what = chance.choice(["data", "data", "end", "word", "last", "flush", "call", "call"])
        if what == "call" and role == HOST:
            if not calls or chance.random() < 0.5:
                calls.append(2 * len(calls) + 2)
                guest.control(chance.choice(wire.OF_THE_GUEST), calls[-1], {"run": stream})
            elif chance.random() < 0.3:
                guest.control(CANCEL, chance.choice(calls), {})
            else:
                guest.data(chance.choice(calls), ARGS, chance.randbytes(99), chance.random() < 0.3)
        elif what in ("data", "end"):
            body = chance.randbytes(chance.choice([0, 1, 30, 700]))
            sender.data(stream, chance.choice(channels), body, what == "end")
        elif what == "word" and role == GUEST:
            host.control(SIGNAL, stream, {"signal": 15})
            host.ping(b"12345678")
        elif (
            what == "last"
            and role == HOST
            and not (stream in guest._streams and guest._streams[stream].final)
        ):
            guest.control(wire.LAST_WORD[kind], stream, {"code": 0, "text": "aé"})
        else:
            out += take(sender)
    return openers, out + take(sender)


def receiver(role: str, openers: list[int]) -> Connection:
    return host_with(*openers, hello=False) if role == HOST else Connection(GUEST)


def feed(connection: Connection, pieces: list[bytes]) -> tuple[list[Event], str]:
    """All events and the error, checking on the way what must hold for any bytes."""
    events: list[Event] = []
    for index, piece in enumerate(pieces):
        try:
            events += connection.receive(piece)
        except ProtocolError as error:
            assert len(connection._buffer) == 0
            for later in [b"", *pieces[index + 1 :]]:
                with pytest.raises(ProtocolError) as again:
                    connection.receive(later)
                assert str(again.value) == str(error)
            return events, str(error)
        assert len(connection._buffer) < BOUND
    return events, ""


@examples(200)
@given(st.integers(0, 2**32), st.sampled_from([HOST, GUEST]), st.lists(st.integers(0, 2**32), max_size=30))
def test_any_split_gives_the_same_events(seed: int, role: str, points: list[int]) -> None:
    openers, stream = transcript(seed, role)
    whole = receiver(role, openers)
    expected = whole.receive(stream)
    assert feed(receiver(role, openers), cut(stream, points)) == (expected, "")
    assert len(expected) >= 1


def test_byte_by_byte_gives_the_same_events() -> None:
    for seed in range(20):
        for role in (HOST, GUEST):
            openers, stream = transcript(seed, role)
            expected = receiver(role, openers).receive(stream)
            single = [stream[i : i + 1] for i in range(len(stream))]
            assert feed(receiver(role, openers), single) == (expected, "")


def mutate(stream: bytes, chance: random.Random) -> bytes:
    how = chance.choice(
        ["flip", "flip", "bytes", "insert", "delete", "truncate", "duplicate", "drop", "swap", "header"]
    )
    parts = frames(stream)
    raw = bytearray(stream)
    at = chance.randrange(len(raw))
    index = chance.randrange(len(parts))
    if how == "flip":
        raw[at] ^= 1 << chance.randrange(8)
    elif how == "bytes":
        raw[at : at + 4] = chance.randbytes(4)
    elif how == "insert":
        raw[at:at] = chance.randbytes(chance.randrange(1, 20))
    elif how == "delete":
        del raw[at : at + chance.randrange(1, 20)]
    elif how == "truncate":
        del raw[at:]
    elif how == "header":
        part = bytearray(parts[index])
        part[chance.randrange(4, 12)] = chance.randrange(18)
        parts[index] = bytes(part)
        return b"".join(parts)
    else:
        if how == "duplicate":
            parts.insert(chance.randrange(len(parts) + 1), parts[index])
        elif how == "drop":
            del parts[index]
        else:
            other = chance.randrange(len(parts))
            parts[index], parts[other] = parts[other], parts[index]
        return b"".join(parts)
    return bytes(raw)


@examples(600)
@given(
    st.integers(0, 2**32),
    st.sampled_from([HOST, GUEST]),
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.lists(st.integers(0, 2**32), max_size=6),
)
def test_any_mutation_gives_events_or_a_protocol_error(
    seed: int, role: str, mutation: int, count: int, points: list[int]
) -> None:
    openers, stream = transcript(seed, role)
    chance = random.Random(mutation)
    parts = stream
    try:
        for _ in range(count):
            parts = mutate(parts, chance) or stream
    except IndexError:  # the length in a mutated header leads past the end: mutated enough
        pass
    events, error = feed(receiver(role, openers), cut(parts, points))
    assert all(isinstance(event, Event) for event in events)
    if not error:
        again = receiver(role, openers)
        assert again.receive(parts) == events  # and the split made no difference
        take(again)  # whatever it took in, it can still write


@examples(200)
@given(st.lists(st.binary(max_size=200), max_size=8), st.sampled_from([HOST, GUEST]), st.booleans())
def test_garbage_gives_events_or_a_protocol_error(pieces: list[bytes], role: str, hello: bool) -> None:
    openers = [RUN, FILE]
    feed(receiver(role, openers), [frame(HELLO), *pieces] if hello else pieces)
