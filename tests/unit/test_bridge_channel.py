"""Calls on the channel from a guest that lies: they reach the bridge of the run they name, or nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from executor import AuditLog, BridgeLimits, Grant, ProtocolError, allow, tool
from executor.bridge import clients, egress
from executor.bridge.dispatch import RunBridge, Subject
from executor.channel import RunHandle
from executor.guest.wire import (
    ARGS,
    CALL,
    CANCEL,
    CONTENT,
    CREDIT,
    DATA,
    END,
    MAX_CALLS,
    RESULT,
    RUN,
    SIGNAL,
    STARTED,
    TUNNEL,
    WINDOWS,
)
from tests.unit.test_channel import Bench, bench, data, eventually, finished, frame, run, spec

started: list[Any] = []


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    started.append((a, b))
    return a + b


@tool
async def slow() -> None:
    """Waits."""
    started.append("slow")
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        started.append("cancelled")
        raise


@tool
async def large() -> str:
    """Much."""
    return "x" * 300_000


@pytest.fixture(autouse=True)
def _nothing_started() -> None:
    started.clear()


REQUEST = b'{"method":"tool.call","params":{"name":"add","input":{"a":1,"b":2}}}'
OPEN = {"run": 1, "form": "json"}


async def begun(made: Bench, network: Any = None, **limits: Any) -> tuple[RunHandle, RunBridge]:
    """A run on stream 1 with a bridge."""
    grant = Grant(tools=[add, slow, large], network=network, limits=BridgeLimits(rate=None, **limits))
    bridge = RunBridge(grant, Subject("r1", "s"), AuditLog())
    order = spec(timeout=20.0)
    clients.equip(order, bridge)
    handle = await made.channel.run(order)
    _, body = await made.peer.until(RUN)
    assert set(body["bridge"]) == {"name", "calls", "argument", "proxy"}
    made.peer.send(frame(STARTED, 1, {"pid": 7}))
    return handle, bridge


def call(stream: int, request: bytes = REQUEST, **changes: Any) -> bytes:
    return frame(CALL, stream, OPEN | changes) + data(stream, ARGS, request, END)


async def answer(made: Bench, stream: int) -> Any:
    """The answer on a stream, with credit given for all of it."""
    size, content = -1, b""
    while size < 0 or len(content) < size:
        kind, at, channel, payload = await made.peer.frame()
        if kind == RESULT and at == stream:
            size = json.loads(payload)["bytes"]
        elif kind == DATA and at == stream:
            assert channel == CONTENT
            content += payload
            made.peer.send(frame(CREDIT, stream, len(payload).to_bytes(4, "big"), channel=CONTENT))
    return json.loads(content)


def test_a_call_is_answered() -> None:
    async def test() -> None:
        async with bench() as made:
            await begun(made)
            made.peer.send(call(2))
            assert (await answer(made, 2))["value"] == 3
            await eventually(lambda: not made.channel._calls)
            assert made.channel._answered == set()

    run(test)


@pytest.mark.parametrize(
    "changes", [{"run": 3}, {"run": "1"}, {"run": True}, {"run": None}, {"run": -1}, {"run": 2}]
)
def test_calls_of_no_run_are_refused(changes: dict[str, Any]) -> None:
    async def test() -> None:
        async with bench() as made:
            await begun(made)
            await made.channel.run(spec("r2"))  # a run without a bridge, on stream 3
            made.peer.send(call(2, **changes) + call(4, **{**changes, "form": "shell"}))
            assert (await answer(made, 2))["error"]["code"] == "REVOKED"
            assert started == []
            assert made.channel.broken is None

    run(test)


@pytest.mark.parametrize("changes", [{"form": "xml"}, {"form": None}, {"refused": "because"}, {"refused": 1}])
def test_malformed_calls_poison(changes: dict[str, Any]) -> None:
    async def test() -> None:
        async with bench() as made:
            await begun(made)
            made.peer.send(call(2, **changes))
            await eventually(lambda: made.channel.broken is not None)
            await made.poisoned(ProtocolError, "the guest's CALL is malformed")

    run(test)


def test_calls_after_the_end_are_refused() -> None:
    async def test() -> None:
        async with bench() as made:
            handle, bridge = await begun(made)
            made.peer.send(frame(CALL, 2, OPEN) + finished(1) + data(2, ARGS, REQUEST, END) + call(4))
            await handle.report
            assert bridge.revoked == "the run ended"
            assert (await answer(made, 4))["error"]["code"] == "REVOKED"
            assert started == []

    run(test)


def test_a_kill_revokes_before_it_is_sent() -> None:
    async def test() -> None:
        async with bench() as made:
            handle, bridge = await begun(made)
            made.peer.send(call(2, b'{"method":"tool.call","params":{"name":"slow"}}'))
            await eventually(lambda: started == ["slow"])
            handle.kill()
            assert bridge.revoked
            await made.peer.until(SIGNAL)
            await eventually(lambda: started == ["slow", "cancelled"])

    run(test)


def test_a_lost_sandbox_cancels_the_handlers() -> None:
    async def test() -> None:
        async with bench() as made:
            _, bridge = await begun(made)
            made.peer.send(call(2, b'{"method":"tool.call","params":{"name":"slow"}}'))
            await eventually(lambda: started == ["slow"])
            made.peer.writer.close()
            await eventually(lambda: started == ["slow", "cancelled"])
            assert bridge.revoked == "the sandbox was lost"
            assert made.channel._calls == {}

    run(test)


def test_a_cancel_reaches_the_handler() -> None:
    async def test() -> None:
        async with bench() as made:
            await begun(made)
            made.peer.send(call(2, b'{"method":"tool.call","params":{"name":"slow"}}'))
            await eventually(lambda: started == ["slow"])
            made.peer.send(frame(CANCEL, 2))
            assert (await answer(made, 2))["error"]["code"] == "CANCELLED"
            assert started == ["slow", "cancelled"]

    run(test)


def test_a_request_gets_credit_only_when_it_is_read() -> None:
    async def test() -> None:
        async with bench() as made:
            await begun(made, in_flight=1)
            made.peer.send(call(2, b'{"method":"tool.call","params":{"name":"slow"}}'))
            await eventually(lambda: started == ["slow"])
            made.peer.send(frame(CALL, 4, OPEN) + data(4, ARGS, b" " * WINDOWS[CALL]))
            await eventually(lambda: 4 in made.channel._calls)
            await asyncio.sleep(0.05)
            assert len(made.channel._calls[4]._data) == WINDOWS[CALL]
            made.peer.send(frame(CANCEL, 2))
            kind = 0
            while kind != CREDIT:  # its turn has come
                kind, stream, _, _ = await made.peer.frame()
            assert stream == 4

    run(test)


def test_a_request_without_an_end_stops_at_the_cap() -> None:
    async def test() -> None:
        async with bench() as made:
            await begun(made, argument=70_000)
            made.peer.send(frame(CALL, 2, OPEN) + data(2, ARGS, b"x" * 60_000))
            while (await made.peer.frame())[0] != CREDIT:
                pass
            made.peer.send(data(2, ARGS, b"x" * 60_000))
            assert (await answer(made, 2))["error"]["code"] == "VALUE_TOO_LARGE"

    run(test)


def test_more_calls_than_may_be_open_poison() -> None:
    async def test() -> None:
        async with bench() as made:
            await begun(made, queue=512)
            for number in range(1, MAX_CALLS + 2):
                made.peer.send(frame(CALL, 2 * number, OPEN))
            await eventually(lambda: made.channel.broken is not None)
            await made.poisoned(ProtocolError, "more than 1024 calls open")
            assert started == []

    run(test)


def test_answers_that_are_not_taken_go_with_the_run() -> None:
    async def test() -> None:
        async with bench() as made:
            handle, _ = await begun(made)
            made.peer.send(call(2, b'{"method":"tool.call","params":{"name":"large"}}'))
            await made.peer.until(RESULT)
            assert made.channel._connection.queued(2, CONTENT) > 200_000
            made.peer.send(finished(1))
            await handle.report
            await eventually(lambda: not made.channel._calls)
            assert made.channel._connection._bulk == {}

    run(test)


def test_a_guest_that_says_started_again_changes_nothing() -> None:
    async def test() -> None:
        async with bench() as made:
            _, bridge = await begun(made)
            await eventually(lambda: bridge._deadline is not None)
            before = bridge._deadline
            made.peer.send(frame(STARTED, 1, {"pid": 9}) + call(2))
            await answer(made, 2)
            assert bridge._deadline == before

    run(test)


def test_the_clock_of_the_wait_stands_still_too() -> None:
    async def test() -> None:
        async with bench() as made:
            order = spec(timeout=0.2, grace=0.0)
            handle = await made.channel.run(order)
            handle.hold(True, True)
            assert (await made.peer.until(SIGNAL))[1] == {"hold": [True, True]}
            await asyncio.sleep(0.1)
            assert handle.stopped >= 0.1
            handle.hold(False, False)
            assert (await made.peer.until(SIGNAL))[1] == {"hold": [False, False]}
            stopped = handle.stopped
            await asyncio.sleep(0.05)
            assert handle.stopped == stopped

    run(test)


# -- tunnels ------------------------------------------------------------------------------------------

ASK = b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n"


async def tunnelled(made: Bench, stream: int) -> bytes:
    """What comes through a tunnel until its last word and the end of its bytes have passed."""
    content, word, end = b"", False, False
    while not (word and end):
        head = await made.peer.reader.readexactly(12)
        length, kind, at = int.from_bytes(head[:4], "big"), head[4], int.from_bytes(head[8:], "big")
        payload = await made.peer.reader.readexactly(length)
        if at == stream and kind == DATA:
            content += payload
            end = bool(head[5] & END)
            if payload:
                made.peer.send(frame(CREDIT, stream, length.to_bytes(4, "big"), channel=CONTENT))
        elif at == stream and kind == RESULT:
            word = True
    return content


@pytest.mark.parametrize("number", [1, 3, "1", None, 2])
def test_tunnels_of_runs_without_network_lead_nowhere(number: Any) -> None:
    async def test() -> None:
        async with bench() as made:
            await begun(made)
            await made.channel.run(spec("r2"))
            made.peer.send(frame(TUNNEL, 2, {"run": number}) + data(2, ARGS, ASK))
            assert await tunnelled(made, 2) == b""
            await eventually(lambda: not made.channel._calls)
            assert made.channel.broken is None

    run(test)


def test_a_tunnel_is_answered_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "LINGER", 0.1)

    async def test() -> None:
        async with bench() as made:
            handle, bridge = await begun(made, allow(["api.test"]), connections=2)
            assert handle.spec.env[b"NODE_USE_ENV_PROXY"] == b"1"
            made.peer.send(frame(TUNNEL, 2, {"run": 1}) + data(2, ARGS, ASK))
            assert (await tunnelled(made, 2)).startswith(b"HTTP/1.1 403 ")
            for stream in (4, 6):
                made.peer.send(frame(TUNNEL, stream, {"run": 1}))
            made.peer.send(frame(TUNNEL, 8, {"run": 1}))  # a guest of ours would have waited
            assert await tunnelled(made, 8) == b""
            made.peer.send(frame(CANCEL, 4) + data(6, ARGS, b"GET"))
            assert await tunnelled(made, 4) == b""
            bridge.revoke("over")
            assert await tunnelled(made, 6) == b""
            await eventually(lambda: not made.channel._calls)
            assert made.channel._answered == set()
            assert made.channel._connection._streams.keys() == {1}

    run(test)


def test_a_tunnel_ends_with_its_run_and_its_sandbox() -> None:
    async def test() -> None:
        async with bench() as made:
            handle, bridge = await begun(made, allow(["api.test"]))
            made.peer.send(frame(TUNNEL, 2, {"run": 1}) + finished(1) + frame(TUNNEL, 4, {"run": 1}))
            await handle.report
            assert await tunnelled(made, 4) == b""
            assert bridge.revoked
        async with bench() as made:
            _, bridge = await begun(made, allow(["api.test"]))
            made.peer.send(frame(TUNNEL, 2, {"run": 1}) + data(2, ARGS, b"GET"))
            await eventually(lambda: len(bridge._egress._tasks) == 1)  # type: ignore[union-attr]
            made.peer.writer.close()
            await eventually(lambda: not bridge._egress._tasks)  # type: ignore[union-attr]
            assert made.channel._calls == {}

    run(test)
