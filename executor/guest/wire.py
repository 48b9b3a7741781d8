"""The frame codec and the connection's state machine: one file for both ends of the stream.

This file has no I/O, no clock and no threads. Bytes come in through `Connection.receive` and events come
out; the caller queues frames with `control` and `data` and takes bytes with `outgoing`. It does not know
what a run or a file is, only which frame may follow which. The host trusts nothing that it receives here;
the guest trusts the host, and uses the same rules to find bugs.

Rules
 1. A frame is a 12-byte big-endian header (length, type, flags, channel, stream) and `length` bytes.
 2. No payload is longer than MAX_FRAME. A longer length is refused before anything is allocated.
 3. Control payloads are JSON objects of at most MAX_CONTROL bytes and MAX_DEPTH levels, UTF-8, without
    duplicate keys, NaN, infinities or lone surrogates. DATA and PING payloads are raw bytes.
 4. Stream 0 is the connection. Odd streams are opened by the host (RUN, FILE), even ones by the guest (CALL,
    TUNNEL), each id higher than the last of its kind.
 5. The first frame of each side is HELLO, and there is one.
 6. DATA may be sent only within the credit that the receiver gave for that (stream, channel); each begins
    with its opener's WINDOWS. END closes a channel: nothing follows it there.
 7. A stream is over when its last word (EXIT or REPLY from the guest, RESULT from the host) and the END of
    every channel of the end that says it have passed, in any order, for control frames overtake data. After
    that nothing may name it. Frames of the other end that come after the last word are dropped by the end
    that said it, because they may have been under way.
 8. The host sends PING and the guest answers PONG. A guest that could make the host answer could fill its
    memory with answers that it does not read.
 9. Any breach raises ProtocolError. There is no resynchronisation.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections import OrderedDict, deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, NamedTuple, NoReturn, Optional, Set, Tuple

    Body = Dict[str, Any]

VERSION = 1
MAX_FRAME = 64 * 1024  # one read of a pipe; the engine's attach stream cuts at 32 KiB anyway
MAX_CONTROL = 16 * 1024  # bounds what JSON parsing may cost
MAX_DEPTH = 16  # more than any control payload has, far below a parser's recursion
WINDOW = 1024 * 1024  # credit of a fresh channel: 16 full frames keep a 1 ms round trip at 1 GB/s
MAX_STREAMS = 4096  # of the host's, open at one time; a host that needs more has lost count
MAX_CALLS = 1024  # of the guest's, tunnels among them; each costs the host up to its window

HELLO, RUN, STARTED, DATA, CREDIT, EXIT, FILE, REPLY, SIGNAL, PING, PONG, GOODBYE = range(1, 13)
CALL, RESULT, CANCEL, TUNNEL = range(13, 17)
NAMES = dict(
    enumerate(
        "HELLO RUN STARTED DATA CREDIT EXIT FILE REPLY SIGNAL PING PONG GOODBYE"
        " CALL RESULT CANCEL TUNNEL".split(),
        1,
    )
)

END = 1  # the only flag: last DATA of this channel
STDOUT, STDERR, STDIN, ARGS, CONTENT = 1, 2, 3, 4, 5  # channels

HOST, GUEST = "host", "guest"

# Who may send a control frame, and whether it opens, continues or ends a stream or speaks of the connection.
CONNECTION, OPENS, WITHIN, ENDS = "connection", "opens", "within", "ends"
CONTROL_RULES = {
    HELLO: ((HOST, GUEST), CONNECTION),
    GOODBYE: ((HOST, GUEST), CONNECTION),
    RUN: ((HOST,), OPENS),
    FILE: ((HOST,), OPENS),
    SIGNAL: ((HOST,), WITHIN),
    STARTED: ((GUEST,), WITHIN),
    EXIT: ((GUEST,), ENDS),
    REPLY: ((GUEST,), ENDS),
    CALL: ((GUEST,), OPENS),
    TUNNEL: ((GUEST,), OPENS),
    CANCEL: ((GUEST,), WITHIN),
    RESULT: ((HOST,), ENDS),
}
# Channels of a stream by what opened it: those that the host fills, those that the guest fills.
CHANNELS = {
    RUN: ((STDIN, ARGS, CONTENT), (STDOUT, STDERR)),
    FILE: ((ARGS, CONTENT), (CONTENT,)),
    CALL: ((CONTENT,), (ARGS,)),
    TUNNEL: ((CONTENT,), (ARGS,)),
}
# Credit of a fresh channel by what opened its stream: a call that the host has not looked at costs little,
# and a tunnel whose reader has stopped holds little.
WINDOWS = {RUN: WINDOW, FILE: WINDOW, CALL: 64 * 1024, TUNNEL: 256 * 1024}
# The frame that must end a stream, by what opened it, and the streams that a frame within may speak of.
LAST_WORD = {RUN: EXIT, FILE: REPLY, CALL: RESULT, TUNNEL: RESULT}
SPEAKS_OF = {SIGNAL: (RUN, FILE), STARTED: (RUN, FILE), CANCEL: (CALL, TUNNEL)}
OF_THE_GUEST = (CALL, TUNNEL)  # streams that the guest opens

_HEADER = struct.Struct(">IBBHI")
HEADER_SIZE = _HEADER.size


class ProtocolError(Exception):
    """The peer broke a rule of this file; the message names it."""


if TYPE_CHECKING:

    class Event(NamedTuple):
        """A received frame. `body` is a dict for control frames and bytes for DATA."""

        type: int
        stream: int
        channel: int
        end: bool
        body: Any

else:
    from collections import namedtuple

    Event = namedtuple("Event", "type stream channel end body")


# -- control payloads ---------------------------------------------------------------------------------

# The closing quote is optional so that a string without one costs one pass and not one for each quote in it.
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


def _refuse_constant(name: str) -> NoReturn:
    raise ProtocolError("control payload holds %s" % name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ProtocolError("control payload holds a number out of range")
    return value


def _unique(pairs: List[Tuple[str, Any]]) -> Body:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ProtocolError("control payload holds a key twice")
    return found


_decode = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
).decode


def parse_control(payload: bytes, most: int = MAX_CONTROL, deepest: int = MAX_DEPTH) -> Body:
    """The JSON object in a control payload; ProtocolError when it is not one that rule 3 allows."""
    if len(payload) > most:
        raise ProtocolError("control payload of %d bytes, at most %d" % (len(payload), most))
    if payload.count(b"{") + payload.count(b"[") > deepest:
        depth = 0
        for mark in re.findall(rb"[\[\]{}]", _STRINGS.sub(b"", payload)):
            depth += 1 if mark in b"[{" else -1
            if depth > deepest:
                raise ProtocolError("control payload deeper than %d" % deepest)
    try:
        text = payload.decode("utf-8")
        found = _decode(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode("utf-8")  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError) as error:
        raise ProtocolError("control payload is not JSON: %s" % type(error).__name__)
    if type(found) is not dict:
        raise ProtocolError("control payload is not an object")
    return found


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def dump_control(body: Body) -> bytes:
    """The payload of a control frame. ValueError when it would not be accepted."""
    payload = _encode(body).encode("utf-8")
    if len(payload) > MAX_CONTROL:
        raise ValueError("control payload of %d bytes, at most %d" % (len(payload), MAX_CONTROL))
    return payload


# -- the connection -----------------------------------------------------------------------------------


class _Stream:
    """One open stream: what is still owed on it, and the credit in both directions."""

    __slots__ = (
        "final",
        "left_end",
        "opener",
        "receive_window",
        "send_credit",
        "sent_end",
        "to_come",
        "to_grant",
        "window",
    )

    def __init__(self, opener: int, role: str) -> None:
        host_fills, guest_fills = CHANNELS[opener]
        mine, theirs = (host_fills, guest_fills) if role == HOST else (guest_fills, host_fills)
        self.opener = opener
        self.window = window = WINDOWS[opener]
        self.final = False  # the last word has passed
        self.to_come: Set[int] = set(theirs)  # channels whose END has not been received
        self.receive_window = dict.fromkeys(theirs, window)
        self.to_grant = dict.fromkeys(theirs, 0)
        self.send_credit = dict.fromkeys(mine, window)
        self.sent_end: Set[int] = set()  # channels whose END was queued
        self.left_end: Set[int] = set()  # channels whose END was given out to be written


class Connection:
    """One end of the stream. `role` is HOST or GUEST; both run the same code over the tables above."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._peer = GUEST if role == HOST else HOST
        self._buffer = b""  # the beginning of a frame
        self._streams: Dict[int, _Stream] = {}
        self._last_opened = [0, 0]  # the guest's, which are even, and the host's
        self._open_calls = 0
        self._heard_hello = False
        self._broken: Optional[str] = None
        self._control: Deque[bytes] = deque()
        # Bulk frames wait by channel; the writer takes one from each in turn.
        self._bulk: OrderedDict[Tuple[int, int], Deque[Tuple[Any, bool]]] = OrderedDict()
        self._queued: Dict[Tuple[int, int], int] = {}

    # -- receiving --

    def receive(self, data: bytes) -> List[Event]:
        """Feed bytes from the peer, in pieces of any size. Raises ProtocolError for good at a breach."""
        if self._broken:
            raise ProtocolError(self._broken)
        buffer = self._buffer + data if self._buffer else data
        events: List[Event] = []
        position, available = 0, len(buffer)
        try:
            while available - position >= HEADER_SIZE:
                length, kind, flags, channel, stream = _HEADER.unpack_from(buffer, position)
                if length > MAX_FRAME:
                    raise ProtocolError("frame of %d bytes, at most %d" % (length, MAX_FRAME))
                if kind not in NAMES:
                    raise ProtocolError("frame type %d is unknown" % kind)
                start = position + HEADER_SIZE
                if available - start < length:
                    break
                position = start + length
                self._frame(kind, flags, channel, stream, buffer[start:position], events)
        except ProtocolError as error:
            self._broken = str(error)
            self._buffer = b""
            raise
        self._buffer = buffer[position:]
        return events

    def _frame(
        self, kind: int, flags: int, channel: int, stream: int, payload: bytes, events: List[Event]
    ) -> None:
        if not self._heard_hello and kind != HELLO:
            raise ProtocolError("%s before HELLO" % NAMES[kind])
        if kind == DATA:
            self._data_frame(flags, channel, stream, payload, events)
            return
        if flags or (channel and kind != CREDIT):
            raise ProtocolError("%s with flags or channel" % NAMES[kind])
        if kind == CREDIT:
            self._credit_frame(channel, stream, payload)
        elif kind in (PING, PONG):
            if stream or len(payload) != 8:
                raise ProtocolError("%s of %d bytes on stream %d" % (NAMES[kind], len(payload), stream))
            if (kind == PING) != (self.role == GUEST):
                raise ProtocolError("%s from the %s" % (NAMES[kind], self._peer))
            if kind == PING:
                self._control.append(_HEADER.pack(8, PONG, 0, 0, 0) + payload)
            else:
                events.append(Event(PONG, 0, 0, False, payload))
        else:
            self._control_frame(kind, stream, payload, events)

    def _control_frame(self, kind: int, stream: int, payload: bytes, events: List[Event]) -> None:
        senders, place = CONTROL_RULES[kind]
        if self._peer not in senders:
            raise ProtocolError("%s from the %s" % (NAMES[kind], self._peer))
        if place == CONNECTION:
            if stream:
                raise ProtocolError("%s on stream %d" % (NAMES[kind], stream))
            if kind == HELLO:
                if self._heard_hello:
                    raise ProtocolError("second HELLO")
                self._heard_hello = True
        elif place == OPENS:
            self._open(stream, kind)
        else:
            known = self._streams.get(stream)
            if known is None:
                if self._late(stream):
                    return
                raise ProtocolError("%s on stream %d, which is not open" % (NAMES[kind], stream))
            if known.final:
                if self._says_last(known.opener):
                    return
                raise ProtocolError("%s on stream %d after its end" % (NAMES[kind], stream))
            if place == ENDS and LAST_WORD[known.opener] != kind:
                raise ProtocolError("%s ends a %s" % (NAMES[kind], NAMES[known.opener]))
            if place == WITHIN and known.opener not in SPEAKS_OF[kind]:
                raise ProtocolError("%s within a %s" % (NAMES[kind], NAMES[known.opener]))
        events.append(Event(kind, stream, 0, False, parse_control(payload)))
        if place == ENDS:
            known = self._streams[stream]
            known.final = True
            self._forget_if_over(stream, known)

    def _data_frame(self, flags: int, channel: int, stream: int, payload: bytes, events: List[Event]) -> None:
        if flags & ~END:
            raise ProtocolError("DATA with unknown flags %d" % flags)
        known = self._streams.get(stream)
        if known is None:
            if self._late(stream):
                return
            raise ProtocolError("DATA on stream %d, which is not open" % stream)
        if channel not in known.to_come:
            raise ProtocolError("DATA on stream %d, channel %d: not open there" % (stream, channel))
        left = known.receive_window[channel] - len(payload)
        if left < 0:
            raise ProtocolError("DATA beyond the credit of stream %d, channel %d" % (stream, channel))
        known.receive_window[channel] = left
        end = bool(flags & END)
        if end:
            known.to_come.discard(channel)
        events.append(Event(DATA, stream, channel, end, payload))
        if end:
            self._forget_if_over(stream, known)

    def _credit_frame(self, channel: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError("CREDIT of %d bytes" % len(payload))
        known = self._streams.get(stream)
        if known is None:
            # Credit may cross the end of a stream on the way, in both directions.
            if 0 < stream <= self._last_opened[stream & 1]:
                return
            raise ProtocolError("CREDIT for stream %d, which is not open" % stream)
        if channel not in known.send_credit:
            raise ProtocolError("CREDIT for stream %d, channel %d: not ours" % (stream, channel))
        credit = known.send_credit[channel] + int.from_bytes(payload, "big")
        if credit > known.window:
            raise ProtocolError("credit of stream %d, channel %d over the window" % (stream, channel))
        known.send_credit[channel] = credit

    def _says_last(self, opener: int) -> bool:
        """Whether this end says the last word on streams of that opener."""
        return self.role in CONTROL_RULES[LAST_WORD[opener]][0]

    def _late(self, stream: int) -> bool:
        """A frame for a stream that this end has finished: the other could not know yet (rule 7)."""
        mine = 1 if self.role == GUEST else 0  # whose last word is ours: the streams that the other end opens
        return stream & 1 == mine and 0 < stream <= self._last_opened[mine]

    def _open(self, stream: int, kind: int) -> None:
        calls = kind in OF_THE_GUEST
        if stream & 1 == calls or stream <= self._last_opened[stream & 1]:
            raise ProtocolError("%s on stream %d" % (NAMES[kind], stream))
        if calls and self._open_calls >= MAX_CALLS:
            raise ProtocolError("more than %d calls open" % MAX_CALLS)
        if not calls and len(self._streams) - self._open_calls >= MAX_STREAMS:
            raise ProtocolError("more than %d streams open" % MAX_STREAMS)
        self._last_opened[stream & 1] = stream
        self._open_calls += calls
        self._streams[stream] = _Stream(kind, self.role)

    def _forget_if_over(self, stream: int, known: _Stream) -> None:
        if self._says_last(known.opener):
            ends_missing = set(CHANNELS[known.opener][0 if self.role == HOST else 1]) - known.left_end
        else:
            ends_missing = known.to_come
        if known.final and not ends_missing:
            del self._streams[stream]
            self._open_calls -= known.opener in OF_THE_GUEST
            for channel in known.send_credit:
                self._bulk.pop((stream, channel), None)
                self._queued.pop((stream, channel), None)

    # -- sending --

    def control(self, kind: int, stream: int, body: Body) -> None:
        """Queue a control frame. It leaves before any queued DATA."""
        payload = dump_control(body)
        place = CONTROL_RULES[kind][1]
        if place == OPENS:
            self._open(stream, kind)
        elif place in (WITHIN, ENDS) and stream not in self._streams:
            return  # the stream ended while the caller made up its mind
        self._control.append(_HEADER.pack(len(payload), kind, 0, 0, stream) + payload)
        if place == ENDS:
            known = self._streams[stream]
            known.final = True
            self._forget_if_over(stream, known)

    def ping(self, payload: bytes) -> None:
        """Queue a PING with 8 bytes that the peer sends back."""
        self._control.append(_HEADER.pack(8, PING, 0, 0, 0) + payload)

    def data(self, stream: int, channel: int, payload: Any, end: bool = False) -> None:
        """Queue bytes (any buffer) on a channel of an open stream; they leave as credit allows.

        On a stream that is over it does nothing: the consumer has gone.
        """
        known = self._streams.get(stream)
        if known is None or channel in known.sent_end:
            return
        key = (stream, channel)
        queue = self._bulk.get(key)
        if queue is None:
            queue = self._bulk[key] = deque()
            self._queued[key] = 0
        size = len(payload)
        if size <= MAX_FRAME:
            queue.append((payload, end))
        else:
            view = memoryview(payload)
            for offset in range(0, size, MAX_FRAME):
                last = offset + MAX_FRAME >= size
                queue.append((view[offset : offset + MAX_FRAME], end and last))
        self._queued[key] += size
        if end:
            known.sent_end.add(channel)

    def cut(self, stream: int, channel: int) -> None:
        """Drop what is queued on a channel and end it there: whoever wanted it has gone."""
        known = self._streams.get(stream)
        if known is None or channel in known.left_end:
            return
        known.sent_end.discard(channel)
        self._bulk.pop((stream, channel), None)
        self._queued.pop((stream, channel), None)
        self.data(stream, channel, b"", end=True)

    @property
    def open_calls(self) -> int:
        """Calls and tunnels that are not over."""
        return self._open_calls

    def consumed(self, stream: int, channel: int, size: int) -> None:
        """Say that `size` received bytes were used, so that the peer may send as many more."""
        known = self._streams.get(stream)
        if known is None or channel not in known.to_come:
            return
        grant = known.to_grant[channel] + size
        if grant * 4 >= known.window:  # a frame of credit for every quarter of the window
            known.receive_window[channel] += grant
            self._control.append(_HEADER.pack(4, CREDIT, 0, channel, stream) + grant.to_bytes(4, "big"))
            grant = 0
        known.to_grant[channel] = grant

    def queued(self, stream: int, channel: int) -> int:
        """Bytes of a channel that wait here: the caller's measure for stopping its source."""
        return self._queued.get((stream, channel), 0)

    def is_open(self, stream: int) -> bool:
        """Whether frames may still pass on the stream."""
        return stream in self._streams

    def outgoing(self, limit: int = 4 * MAX_FRAME) -> List[Any]:
        """Buffers to write now, in order: all control frames, then DATA up to about `limit` bytes.

        Control frames that are queued while these are being written still overtake the rest of the DATA.
        """
        out: List[Any] = []
        if self._control:
            out.extend(self._control)
            self._control.clear()
        if self._bulk:
            self._take_bulk(out, limit)
        return out

    def _take_bulk(self, out: List[Any], limit: int) -> None:
        waiting = len(self._bulk)
        while waiting and limit > 0:
            key, queue = next(iter(self._bulk.items()))
            stream, channel = key
            known = self._streams[stream]
            payload, end = queue[0]
            credit = known.send_credit[channel]
            size = len(payload)
            if size > credit:
                if not credit:
                    self._bulk.move_to_end(key)
                    waiting -= 1
                    continue
                view = memoryview(payload)
                queue[0] = (view[credit:], end)
                payload, end, size = view[:credit], False, credit
            else:
                queue.popleft()
            known.send_credit[channel] = credit - size
            self._queued[key] -= size
            out.append(_HEADER.pack(size, DATA, END if end else 0, channel, stream))
            if size:
                out.append(payload)
            limit -= size + HEADER_SIZE
            if queue:
                self._bulk.move_to_end(key)
                waiting = len(self._bulk)
            else:
                del self._bulk[key], self._queued[key]
                waiting = min(waiting, len(self._bulk))
            if end:
                known.left_end.add(channel)
                self._forget_if_over(stream, known)
                waiting = min(waiting, len(self._bulk))

    @property
    def wants_to_write(self) -> bool:
        """Whether `outgoing` would give anything."""
        if self._control:
            return True
        return any(
            self._streams[stream].send_credit[channel] or not len(queue[0][0])
            for (stream, channel), queue in self._bulk.items()
        )
