"""Every check of a call, in its order, without a sandbox: a request is bytes, an answer is bytes."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from executor import (
    ApprovalRequest,
    AuditLog,
    BadRequestError,
    BridgeLimits,
    Decision,
    Grant,
    PolicyRequest,
    PublicToolError,
    ToolContext,
    ToolSpec,
    tool,
)
from executor.bridge.dispatch import RunBridge, Subject
from executor.channel.calls import CallTooLarge

LOOSE = BridgeLimits(rate=None)


class Request:
    """What the channel would hand over."""

    def __init__(self, data: bytes, form: str = "json", refused: str = "", taken: bool = True) -> None:
        self.data = data
        self.form = form
        self.refused = refused
        self.on_cancel: Callable[[], object] = lambda: None
        self.answer: bytes | None = None
        self.answered = asyncio.Event()
        self.taken = asyncio.Event()
        self.was_read = False
        self.was_cut = False
        if taken:
            self.taken.set()

    async def read(self, most: int) -> bytes:
        self.was_read = True
        if len(self.data) > most:
            raise CallTooLarge
        return self.data

    def reply(self, payload: bytes) -> None:
        assert self.answer is None
        self.answer = payload
        self.answered.set()

    def cut(self) -> None:
        self.was_cut = True

    async def sent(self) -> None:
        await self.taken.wait()


class Run:
    """A bridge and its clock."""

    def __init__(self, grant: Grant, timeout: float | None = 10.0, script: bool = False) -> None:
        self.audit = AuditLog()
        self.clock: list[str] = []
        subject = Subject("run_1", "s1", "notes", "digest", "scripts/x.py", "sha")
        self.bridge = RunBridge(grant, subject, self.audit, script=script)
        self.bridge.begin(
            timeout, lambda _stopped, frozen: self.clock.append("pause" if frozen else "resume")
        )

    def send(self, data: Any, **more: Any) -> Request:
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        request = Request(raw, **more)
        self.bridge.incoming(request)  # type: ignore[arg-type]
        return request

    async def ask(self, data: Any, **more: Any) -> dict[str, Any]:
        request = self.send(data, **more)
        await asyncio.wait_for(request.answered.wait(), 10)
        assert request.answer is not None
        found: dict[str, Any] = json.loads(request.answer)
        return found

    async def call(self, name: Any, value: Any = None, **more: Any) -> Any:
        """The value, or the code of the error."""
        params = {"name": name, "input": {} if value is None else value}
        answer = await self.ask({"method": "tool.call", "params": params, **more})
        return answer["value"] if answer["ok"] else answer["error"]["code"]

    async def method(self, method: str, **params: Any) -> Any:
        answer = await self.ask({"method": method, "params": params})
        return answer["value"] if answer["ok"] else answer["error"]["code"]

    def calls(self) -> list[dict[str, Any]]:
        return [entry for entry in self.audit.records if entry["event"] == "call"]


def going(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine as a test."""
    import functools

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


started: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_started() -> None:
    started.clear()


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    started.append((a, b))
    return a + b


@tool
async def slow(seconds: float = 0.05) -> str:
    started.append(seconds)
    await asyncio.sleep(seconds)
    return "done"


def handler(work: Any, **more: Any) -> ToolSpec:
    return ToolSpec("t", "", {"type": "object"}, work, **more)


# -- what comes in ------------------------------------------------------------------------------------


@going
async def test_a_call() -> None:
    run = Run(Grant(tools=[add]))
    answer = await run.ask({"method": "tool.call", "params": {"name": "add", "input": {"a": 1, "b": 2}}})
    assert answer["ok"] is True
    assert answer["value"] == 3
    assert answer["call_id"] == "run_1.c1"
    assert [vars(call) | {"ms": 0} for call in run.bridge.calls] == [
        {"call_id": "run_1.c1", "name": "add", "ok": True, "ms": 0, "code": ""}
    ]


@going
async def test_what_is_not_granted_is_not_found_whether_it_exists_or_not() -> None:
    """TH-53"""
    run = Run(Grant(tools=[add]))
    for name in ("slow", "nonexistent", "", "add ", None, 7, ["add"], "ADD", "__class__"):
        answer = await run.ask({"method": "tool.call", "params": {"name": name, "input": {}}})
        assert answer["error"]["code"] == "TOOL_NOT_FOUND"
        assert answer["error"]["message"] == f"Tool not available: {name}"
    assert started == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"method":1}',
        b'{"method":"tool.call","params":[]}',
        b'{"method":"tool.call","method":"tool.call"}',
        b'{"method":"tool.call","params":{"name":"add","input":{"a":NaN,"b":1}}}',
        b'{"method":"tool.call","params":{"name":"add","input":{"a":1,"a":2}}}',
        b'{"method":"tool.call","params":{"name":"\\ud800"}}',
        b'{"method":"tool.call","params":{"name":"add","input":' + b"[" * 70 + b"]" * 70 + b"}}",
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b'{"method":"tool.call","params":{},"timeout_ms":-1}',
        b'{"method":"tool.call","params":{},"timeout_ms":true}',
        b'{"method":"tool.call","params":{},"timeout_ms":"1"}',
        b'{"method":"tool.call","params":{},"timeout_ms":1' + b"0" * 400 + b"}",
    ],
)
@going
async def test_malformed_requests_start_nothing_and_are_recorded(data: bytes) -> None:
    run = Run(Grant(tools=[add]))
    answer = await run.ask(data)
    assert answer["error"]["code"] == "PROTOCOL"
    assert started == []
    assert [entry["result"] for entry in run.calls()] == ["PROTOCOL"]
    assert await run.call("add", {"a": 1, "b": 1}) == 2


@going
async def test_a_fault_of_the_bridge_costs_neither_a_place_nor_the_record() -> None:
    def fails(value: Any) -> None:
        raise AssertionError("a fault")

    broken = handler(lambda value, context: None)
    object.__setattr__(broken, "check_input", fails)
    run = Run(Grant(tools=[broken, add], limits=BridgeLimits(rate=None, in_flight=1)))
    for _ in range(3):
        assert await run.call("t") == "IO"
    assert await run.call("add", {"a": 1, "b": 2}) == 3
    assert [entry["result"] for entry in run.calls()] == ["IO", "IO", "IO", "ok"]


@going
async def test_a_grant_ends_with_what_cannot_be_recorded() -> None:
    run = Run(Grant(tools=[add], limits=LOOSE))
    kept, full = run.audit.record, OSError(28, "No space left on device")

    def record(fields: dict[str, Any]) -> dict[str, Any]:
        if fields["event"] == "call" and len(run.calls()) == 2:
            raise full
        return kept(fields)

    run.audit.record = record  # type: ignore[method-assign]
    assert [await run.call("add", {"a": 1, "b": 2}) for _ in range(4)] == [3, 3, 3, "REVOKED"]
    assert run.bridge.revoked
    assert run.bridge.warnings == [
        "the audit cannot be written: No space left on device; the run lost its grant"
    ]


@going
async def test_what_a_tool_reports_is_bounded_and_json() -> None:
    def reporting(what: Any) -> ToolSpec:
        return handler(lambda value, context: context.report({"it": what}))

    for what, kept in ((1, {"it": 1}), ("x" * 99_999, "characters"), (float("nan"), "not JSON")):
        run = Run(Grant(tools=[reporting(what)], limits=LOOSE))
        assert await run.call("t") is None
        (entry,) = run.calls()
        assert entry["extra"] == kept if isinstance(kept, dict) else kept in entry["extra"]["left_out"]


@going
async def test_what_the_guest_refused_is_answered_and_recorded() -> None:
    run = Run(Grant(tools=[add]))
    assert (await run.ask(b"", refused="too large"))["error"]["code"] == "VALUE_TOO_LARGE"
    assert (await run.ask(b"", refused="malformed"))["error"]["code"] == "PROTOCOL"
    assert [entry["decision"] for entry in run.calls()] == ["deny", "deny"]


@going
async def test_unknown_methods() -> None:
    run = Run(Grant(tools=[add]))
    for name in ("tool.cal", "workspace.chmod", "__init__", "state.get", "secret.use"):
        assert await run.method(name) == "METHOD_NOT_FOUND"


@going
async def test_arguments_have_a_cap_and_the_advice_what_to_do() -> None:
    run = Run(Grant(tools=[add], limits=BridgeLimits(argument=2000)))
    answer = await run.ask({"method": "tool.call", "params": {"name": "add", "input": {"a": "x" * 9000}}})
    assert answer["error"]["code"] == "VALUE_TOO_LARGE"
    assert "Write the data to a file and pass its path." in answer["error"]["message"]


# -- schemas, policies, approvals ----------------------------------------------------------------------


@going
async def test_wrong_types_are_refused_before_anybody_is_asked() -> None:
    asked: list[Any] = []

    async def approver(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    spec = ToolSpec("add", "", add.input_schema, add.handler, approval="always")
    run = Run(Grant(tools=[spec], approver=approver, policy=lambda request: asked.append(request) or "allow"))
    for value in ({"a": "1", "b": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, [], None, "x", {"a": True, "b": 1}):
        assert await run.call("add", value) == "TOOL_INPUT_INVALID"
    assert asked == started == []
    answer = await run.ask({"method": "tool.call", "params": {"name": "add", "input": {"a": "1", "b": 2}}})
    assert answer["error"]["details"][0] == {
        "path": "/a",
        "rule": "type",
        "message": "'1' is not of type 'integer'",
    }


@pytest.mark.parametrize("as_coroutine", [False, True])
@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [("allow", 3), ("deny", "DENIED"), ("ask", "APPROVAL_REJECTED"), ("maybe", "DENIED"), (None, "DENIED")],
)
@going
async def test_policies(verdict: Any, outcome: Any, as_coroutine: bool) -> None:
    seen: list[PolicyRequest] = []

    def policy(request: PolicyRequest) -> Any:
        seen.append(request)
        return verdict

    async def later(request: PolicyRequest) -> Any:
        return policy(request)

    run = Run(Grant(tools=[add], policy=later if as_coroutine else policy, user="u"))
    assert await run.call("add", {"a": 1, "b": 2}) == outcome
    (request,) = seen
    assert (request.tool, request.input, request.skill, request.user) == (
        "add",
        {"a": 1, "b": 2},
        "notes",
        "u",
    )
    assert started == ([(1, 2)] if outcome == 3 else [])


@going
async def test_a_policy_that_fails_denies() -> None:
    def policy(request: PolicyRequest) -> Any:
        raise ValueError("x")

    run = Run(Grant(tools=[add], policy=policy))
    assert await run.call("add", {"a": 1, "b": 2}) == "DENIED"
    assert started == []


def needs(approval: Any) -> ToolSpec:
    return ToolSpec("add", "", add.input_schema, add.handler, approval=approval)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (True, 3),
        (Decision(True, by="ann"), 3),
        (False, "APPROVAL_REJECTED"),
        (Decision(False, reason="not today"), "APPROVAL_REJECTED"),
        (None, "APPROVAL_REJECTED"),
        ("yes", "APPROVAL_REJECTED"),
        (1, "APPROVAL_REJECTED"),
        (ValueError("x"), "APPROVAL_REJECTED"),
    ],
)
@going
async def test_approvers(answer: Any, outcome: Any) -> None:
    async def approver(request: ApprovalRequest) -> Any:
        assert run.clock == ["pause"]
        if isinstance(answer, Exception):
            raise answer
        return answer

    run = Run(Grant(tools=[needs("always")], approver=approver))
    assert await run.call("add", {"a": 1, "b": 2}) == outcome
    assert run.clock == ["pause", "resume"]
    (record,) = run.calls()
    assert record["decision"] == ("approved" if outcome == 3 else "rejected")
    assert record["by"] == ("ann" if getattr(answer, "by", "") else "")


@going
async def test_nobody_to_ask_means_no() -> None:
    run = Run(Grant(tools=[needs("always")]))
    answer = await run.ask({"method": "tool.call", "params": {"name": "add", "input": {"a": 1, "b": 2}}})
    assert answer["error"]["code"] == "APPROVAL_REJECTED"
    assert "nobody is there" in answer["error"]["message"]
    assert started == run.clock == []


@pytest.mark.parametrize(
    ("approval", "asks"),
    [
        (lambda value: value["a"] > 5, False),
        (lambda value: value["a"] < 5, True),
        (lambda value: 1 / 0, True),
        ("never", False),
    ],
)
@going
async def test_an_approval_function_looks_at_the_input(approval: Any, asks: bool) -> None:
    run = Run(Grant(tools=[needs(approval)]))
    assert await run.call("add", {"a": 1, "b": 2}) == ("APPROVAL_REJECTED" if asks else 3)


@going
async def test_suspended_calls_wait_for_a_decision_that_counts_once() -> None:
    run = Run(Grant(tools=[needs("always")], approver="suspend"))
    first = run.send({"method": "tool.call", "params": {"name": "add", "input": {"a": 1, "b": 2}}})
    second = run.send({"method": "tool.call", "params": {"name": "add", "input": {"a": 3, "b": 4}}})
    await asyncio.sleep(0.05)
    assert run.clock == ["pause"]
    one, two = run.bridge.pending
    assert (one.input, two.input) == ({"a": 1, "b": 2}, {"a": 3, "b": 4})
    assert one.digest != two.digest
    run.bridge.decide(one.call_id, True)
    with pytest.raises(BadRequestError):
        run.bridge.decide(one.call_id, True)
    with pytest.raises(BadRequestError):
        run.bridge.decide("run_1.c99", True)
    await first.answered.wait()
    assert run.clock == ["pause"]  # one still waits
    run.bridge.decide(two.call_id, Decision(False, by="bob", reason="no"))
    await second.answered.wait()
    assert run.clock == ["pause", "resume"]
    assert json.loads(second.answer or b"")["error"]["message"] == "add: the call was rejected: no"
    assert started == [(1, 2)]
    assert run.bridge.pending == []


@going
async def test_a_decision_that_does_not_come_expires() -> None:
    run = Run(Grant(tools=[needs("always")], approver="suspend", limits=BridgeLimits(thinking=0.1)))
    assert await run.call("add", {"a": 1, "b": 2}) == "APPROVAL_EXPIRED"
    assert await run.call("add", {"a": 1, "b": 2}) == "APPROVAL_EXPIRED"  # all of the time is used
    assert run.bridge.pending == []
    assert started == []


@going
async def test_the_deadline_does_not_run_while_a_person_thinks() -> None:
    async def approver(request: ApprovalRequest) -> bool:
        await asyncio.sleep(0.4)
        return True

    run = Run(Grant(tools=[needs("always"), slow], approver=approver), timeout=0.3)
    assert await run.call("add", {"a": 1, "b": 2}) == 3
    assert await run.call("slow", {"seconds": 0.01}) == "done"
    await asyncio.sleep(0.35)
    assert run.bridge.revoked == "the deadline passed"


# -- limits -------------------------------------------------------------------------------------------


@going
async def test_parallel_calls_cannot_get_past_the_total() -> None:
    run = Run(Grant(tools=[slow]))
    outcomes = await asyncio.gather(*(run.call("slow") for _ in range(300)))
    assert len(started) == 256
    assert outcomes.count("done") == 256
    assert set(outcomes) == {"done", "TOO_MANY_CALLS", "TOO_MANY_INFLIGHT"}  # 12 found no place to wait
    assert await run.call("slow") == "TOO_MANY_CALLS"
    assert await run.method("tool.list") != "TOO_MANY_CALLS"


@going
async def test_parallel_calls_overlap() -> None:
    run = Run(Grant(tools=[slow]))
    before = time.monotonic()
    await asyncio.gather(*(run.call("slow", {"seconds": 0.2}) for _ in range(32)))
    assert time.monotonic() - before < 1.0


@going
async def test_functions_that_block_overlap_too() -> None:
    spec = handler(lambda value, ctx: time.sleep(0.2))
    run = Run(Grant(tools=[spec]))
    before = time.monotonic()
    await asyncio.gather(*(run.call("t") for _ in range(32)))
    assert time.monotonic() - before < 1.5


@going
async def test_places_in_flight_and_the_queue_for_them() -> None:
    limits = BridgeLimits(in_flight=2, queue=3, rate=None)
    run = Run(Grant(tools=[slow], limits=limits))
    outcomes = await asyncio.gather(*(run.call("slow", {"seconds": 0.1}) for _ in range(8)))
    assert sorted(outcomes) == ["TOO_MANY_INFLIGHT"] * 3 + ["done"] * 5


@going
async def test_a_result_that_is_not_taken_keeps_its_place() -> None:
    run = Run(Grant(tools=[add], limits=BridgeLimits(in_flight=2, queue=0, rate=None)))
    body = {"method": "tool.call", "params": {"name": "add", "input": {"a": 1, "b": 2}}}
    stuck = [run.send(body, taken=False) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert all(request.answer for request in stuck)
    assert await run.call("add", {"a": 1, "b": 2}) == "TOO_MANY_INFLIGHT"
    stuck[0].taken.set()
    await asyncio.sleep(0.05)
    assert await run.call("add", {"a": 1, "b": 2}) == 3


@going
async def test_a_request_in_the_queue_is_not_read() -> None:
    run = Run(Grant(tools=[slow], limits=BridgeLimits(in_flight=1, queue=5, rate=None)))
    body = {"method": "tool.call", "params": {"name": "slow", "input": {"seconds": 5}}}
    first, second = run.send(body), run.send(body)
    await asyncio.sleep(0.05)
    assert (first.was_read, second.was_read) == (True, False)
    run.bridge.revoke("test")


@going
async def test_the_rate() -> None:
    run = Run(Grant(tools=[add], limits=BridgeLimits(rate=20, burst=3)))
    body = {"method": "tool.call", "params": {"name": "add", "input": {"a": 1, "b": 2}}}
    answers = [await run.ask(body) for _ in range(5)]
    assert [answer["ok"] for answer in answers] == [True] * 3 + [False] * 2
    error = answers[-1]["error"]
    assert (error["code"], error["retryable"]) == ("RATE_LIMITED", True)
    assert 0 < error["details"][0]["retry_after_ms"] <= 100
    await asyncio.sleep(0.11)
    assert (await run.ask(body))["ok"]
    assert len(started) == 4


@going
async def test_who_only_hammers_loses_the_bridge() -> None:
    limits = BridgeLimits(calls=5, operations=5, queue=0, rate=None)
    run = Run(Grant(tools=[add], limits=limits))
    for _ in range(60):
        run.send(b"nonsense")
    await asyncio.sleep(0.05)
    assert run.bridge.revoked
    assert await run.call("add", {"a": 1, "b": 2}) == "REVOKED"
    assert len(run.calls()) < 60


# -- handlers -----------------------------------------------------------------------------------------


@going
async def test_the_text_of_an_exception_stays_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(value: Any, ctx: ToolContext) -> None:
        raise RuntimeError("password=hunter2 in /etc/secret")

    run = Run(Grant(tools=[handler(broken)]))
    answer = await run.ask({"method": "tool.call", "params": {"name": "t", "input": {}}})
    assert answer["error"] == {
        "code": "TOOL_FAILED",
        "message": "t: the tool failed (run_1.c1).",
        "retryable": False,
    }
    (record,) = run.calls()
    assert "hunter2" not in json.dumps(record)
    assert record["extra"] == {"exception": "RuntimeError"}
    assert "hunter2" in caplog.text  # where the operator looks


@going
async def test_what_a_handler_may_tell() -> None:
    async def busy(value: Any, ctx: ToolContext) -> None:
        raise PublicToolError("the index is being rebuilt", retryable=True)

    run = Run(Grant(tools=[handler(busy)]))
    error = (await run.ask({"method": "tool.call", "params": {"name": "t"}}))["error"]
    assert error == {"code": "TOOL_FAILED", "message": "t: the index is being rebuilt", "retryable": True}


@pytest.mark.parametrize(
    ("returned", "code"),
    [
        (float("nan"), "TOOL_OUTPUT_INVALID"),
        (float("inf"), "TOOL_OUTPUT_INVALID"),
        ({1, 2}, "TOOL_OUTPUT_INVALID"),
        (object(), "TOOL_OUTPUT_INVALID"),
        ("\ud800", "TOOL_OUTPUT_INVALID"),
        ("x" * 3000, "VALUE_TOO_LARGE"),
        (StopIteration(), "TOOL_OUTPUT_INVALID"),
    ],
)
@going
async def test_results_that_cannot_be_sent(returned: Any, code: str) -> None:
    run = Run(Grant(tools=[handler(lambda value, ctx: returned, max_result=2000)]))
    assert await run.call("t") == code


@going
async def test_a_result_has_to_fit_its_schema() -> None:
    spec = handler(
        lambda value, ctx: {"sum": "5"}, output_schema={"properties": {"sum": {"type": "integer"}}}
    )
    run = Run(Grant(tools=[spec]))
    answer = await run.ask({"method": "tool.call", "params": {"name": "t", "input": {}}})
    assert answer["error"]["code"] == "TOOL_OUTPUT_INVALID"
    assert answer["error"]["details"] == [{"path": "/sum", "rule": "type"}]


@going
async def test_secrets_are_struck_from_results_and_the_audit() -> None:
    run = Run(Grant(tools=[handler(lambda value, ctx: {"a": ['see hun"ter2']})], secrets=('hun"ter2',)))
    assert await run.call("t", {"q": 'hun"ter2'}) == {"a": ["see [redacted]"]}
    assert "ter2" not in json.dumps(list(run.audit.records))


@going
async def test_a_secret_that_is_a_number_leaves_what_is_json() -> None:
    """And not a call that is never answered."""
    result = {"pin": 471147, "list": [1471147.5, "no 471147!", 12, True], "471147": None}

    def work(value: Any, context: ToolContext) -> Any:
        context.report({"saw": 471147})
        if value:
            raise PublicToolError("it is 471147")
        return result

    run = Run(Grant(tools=[handler(work)], limits=LOOSE, secrets=("471147",)))
    assert await run.call("t") == {
        "pin": "[redacted]",
        "list": ["[redacted]", "no [redacted]!", 12, True],
        "[redacted]": None,
    }
    answer = await run.ask({"method": "tool.call", "params": {"name": "t", "input": {"a": 1}}})
    assert answer["error"] == {
        "code": "TOOL_FAILED",
        "message": "t: it is [redacted]",
        "retryable": False,
    }
    command = run.send(b"tool\0" + b"2\0t\0" + b'{"a":1}\0' + b"\0", form="shell")
    await asyncio.wait_for(command.answered.wait(), 10)
    assert command.answer is not None
    assert command.answer.endswith(b"tool: t: it is [redacted] [TOOL_FAILED]\n")
    assert [entry["extra"] for entry in run.calls()] == [{"saw": "[redacted]"}] * 3
    assert "471147" not in json.dumps(run.calls())


@pytest.mark.parametrize("blocking", [False, True])
@going
async def test_a_call_has_a_deadline(blocking: bool) -> None:
    async def sleeps(value: Any, ctx: ToolContext) -> None:
        assert 0 < ctx.left <= 0.2
        await asyncio.sleep(5)

    work: Any = (lambda value, ctx: time.sleep(1)) if blocking else sleeps
    run = Run(Grant(tools=[handler(work, timeout_s=0.2)]))
    before = time.monotonic()
    error = (await run.ask({"method": "tool.call", "params": {"name": "t", "input": {}}}))["error"]
    assert (error["code"], error["retryable"]) == ("TOOL_TIMEOUT", True)
    assert time.monotonic() - before < 0.9


@going
async def test_a_caller_may_wait_less_but_not_longer() -> None:
    run = Run(Grant(tools=[ToolSpec("slow", "", slow.input_schema, slow.handler, timeout_s=0.3)]))
    before = time.monotonic()
    assert await run.call("slow", {"seconds": 5}, timeout_ms=50) == "TOOL_TIMEOUT"
    assert time.monotonic() - before < 0.25
    assert await run.call("slow", {"seconds": 5}, timeout_ms=60_000) == "TOOL_TIMEOUT"
    assert time.monotonic() - before < 1.2


@going
async def test_no_call_outlives_the_run() -> None:
    run = Run(Grant(tools=[slow]), timeout=0.2)
    assert await run.call("slow", {"seconds": 5}) in ("TOOL_TIMEOUT", "REVOKED")
    await asyncio.sleep(0.1)
    assert await run.call("slow") == "REVOKED"


@going
async def test_a_handler_that_ignores_cancellation_is_left_behind() -> None:
    release = asyncio.Event()

    async def stubborn(value: Any, ctx: ToolContext) -> str:
        while True:
            try:
                await release.wait()
                return "too late"
            except asyncio.CancelledError:
                continue

    run = Run(Grant(tools=[handler(stubborn), add]))
    request = run.send({"method": "tool.call", "params": {"name": "t", "input": {}}})
    await asyncio.sleep(0.05)
    run.bridge.revoke("the run ended")
    await asyncio.wait_for(request.answered.wait(), 1)
    assert json.loads(request.answer or b"")["error"]["code"] == "REVOKED"
    release.set()
    await asyncio.sleep(0.05)
    late = [entry for entry in run.audit.records if entry["event"] == "completed_after_revoke"]
    assert [(entry["tool"], entry["result"]) for entry in late] == [("t", "ok")]


# -- giving up and revoking ----------------------------------------------------------------------------


@going
async def test_a_caller_that_gives_up_cancels_the_handler() -> None:
    ended: list[str] = []

    async def waits(value: Any, ctx: ToolContext) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    run = Run(Grant(tools=[handler(waits)]))
    request = run.send({"method": "tool.call", "params": {"name": "t", "input": {}}})
    await asyncio.sleep(0.05)
    request.on_cancel()
    await asyncio.wait_for(request.answered.wait(), 1)
    assert json.loads(request.answer or b"")["error"]["code"] == "CANCELLED"
    await asyncio.sleep(0)
    assert ended == ["cancelled"]


@going
async def test_revocation_ends_everything_at_once() -> None:
    run = Run(Grant(tools=[slow], approver="suspend", limits=BridgeLimits(in_flight=2, rate=None)))
    body = {"method": "tool.call", "params": {"name": "slow", "input": {"seconds": 5}}}
    requests = [run.send(body) for _ in range(6)]
    await asyncio.sleep(0.05)
    run.bridge.revoke("the run ended")
    run.bridge.revoke("again")
    await asyncio.gather(*(asyncio.wait_for(request.answered.wait(), 1) for request in requests))
    assert {json.loads(request.answer or b"")["error"]["code"] for request in requests} == {"REVOKED"}
    assert len(started) == 2
    assert all(request.was_cut for request in requests)
    assert [entry["ended"] for entry in run.audit.records if entry["event"] == "run"] == ["the run ended"]


@going
async def test_a_guest_cannot_start_the_clock_twice() -> None:
    run = Run(Grant(tools=[slow]), timeout=0.2)
    for _ in range(5):
        await asyncio.sleep(0.05)
        run.bridge.begin(100, lambda _stopped, _frozen: None)
    assert run.bridge.revoked == "the deadline passed"


# -- the other methods --------------------------------------------------------------------------------


@going
async def test_the_catalogue_is_the_grant() -> None:
    run = Run(Grant(tools=[slow, add]))
    assert await run.method("tool.list") == [
        {"name": "add", "description": "Add."},
        {"name": "slow", "description": ""},
    ]
    assert [item["name"] for item in await run.method("tool.list", query="AD")] == ["add"]
    assert (await run.method("tool.describe", name="add"))["input_schema"]["required"] == ["a", "b"]
    assert await run.method("tool.describe", name="other") == "TOOL_NOT_FOUND"


@going
async def test_a_script_hands_in_its_value() -> None:
    run = Run(Grant(limits=BridgeLimits(argument=1024)), script=True)
    assert await run.method("script.value", value={"x": "y" * 100_000}) is None
    assert run.bridge.value == (True, {"x": "y" * 100_000})
    assert await run.method("script.value", error={"code": "E", "message": "m", "extra": 1}) is None
    assert run.bridge.error == {"code": "E", "message": "m", "traceback": ""}
    assert await run.method("log", message="x" * 50_000) == "VALUE_TOO_LARGE"


@going
async def test_the_workspace_and_its_rights(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    none, read = Run(Grant()), Run(Grant(root=tmp_path))
    write = Run(Grant(root=tmp_path, workspace="read-write"))
    body = {"method": "workspace.read", "params": {"path": "a.txt"}}
    assert (await none.ask(body))["error"]["message"] == "Workspace access is not available."
    assert (await read.ask(body))["value"] == "hello"
    body = {"method": "workspace.write", "params": {"path": "b.txt", "text": "x"}}
    assert (await read.ask(body))["error"]["message"] == "Workspace write access is not available."
    assert (await read.ask(body))["error"]["code"] == "DENIED"
    assert not (tmp_path / "b.txt").exists()
    assert (await write.ask(body))["value"] == {"size": 1}
    write.bridge.revoke("the run ended")
    assert (await write.ask(body))["error"]["code"] == "REVOKED"


@going
async def test_bytes_of_a_file_in_parts(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 8)
    run = Run(Grant(root=tmp_path, limits=BridgeLimits(result=2048)))
    assert await run.method("workspace.read", path="a.bin") == "VALUE_TOO_LARGE"
    part = await run.method("workspace.read", path="a.bin", offset=256, size=16)
    assert base64.b64decode(part["base64"]) == bytes(range(16))
    assert part["size"] == 2048


# -- the audit ----------------------------------------------------------------------------------------


@going
async def test_every_call_is_recorded_with_what_was_decided() -> None:
    run = Run(Grant(tools=[add, ToolSpec("ask", "", {}, add.handler, approval="always")]))
    await run.call("add", {"a": 1, "b": 2})
    await run.call("nope")
    await run.call("add", {"a": "x"})
    await run.call("ask", {})
    await run.ask(b"garbage")
    assert [(e["method"], e["tool"], e["decision"], e["rule"], e["result"]) for e in run.calls()] == [
        ("tool.call", "add", "allow", "", "ok"),
        ("tool.call", "nope", "deny", "grant", "TOOL_NOT_FOUND"),
        ("tool.call", "add", "deny", "input_schema", "TOOL_INPUT_INVALID"),
        ("tool.call", "ask", "rejected", "approval", "APPROVAL_REJECTED"),
        ("", "", "deny", "", "PROTOCOL"),
    ]
    first = run.calls()[0]
    assert (first["run_id"], first["session"], first["skill"], first["script"]) == (
        "run_1",
        "s1",
        "notes",
        "scripts/x.py",
    )
    assert first["input_preview"] == '{"a":1,"b":2}'
    assert len(first["input_sha256"]) == len(first["result_sha256"]) == 64


@going
async def test_a_handler_may_add_to_its_record() -> None:
    def work(value: Any, ctx: ToolContext) -> None:
        ctx.report({"rows": 3})

    run = Run(Grant(tools=[handler(work)]))
    await run.call("t")
    assert run.calls()[0]["extra"] == {"rows": 3}
