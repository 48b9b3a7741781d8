"""One run's bridge on the host: every call is checked here, in one order, whatever the sandbox sent.

 1. the run is alive and its grant not revoked            7. the policy
 2. one call is reserved, before anything is awaited      8. approvals
 3. a place in flight, or in the queue for one            9. the handler, with a deadline
 4. size and shape of the request                        10. the result: schema, size, secrets
 5. the tool is in the grant                             11. the audit
 6. the input fits its schema                            12. the answer, if the run is still alive

The guest is believed in nothing but which of its runs a call came from: a grant belongs to the session, for
any process of it could take the place of another. Nothing here waits for the sandbox without a bound.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from executor import spans
from executor.bridge import shell
from executor.bridge.approvals import ApprovalRequest, Decision, PolicyRequest, decision, request_digest
from executor.bridge.audit import AuditLog, digest, line, preview, struck
from executor.bridge.clock import Clock
from executor.bridge.codes import BridgeError, PublicToolError
from executor.bridge.egress import Egress, Note
from executor.bridge.folder import HostFolder
from executor.bridge.grant import VERDICTS, Grant, Verdict
from executor.bridge.remote import RemoteFolder
from executor.bridge.threads import in_thread
from executor.bridge.tools import ToolContext, ToolSpec
from executor.bridge.values import Values, collecting, marked
from executor.channel.calls import CallRequest, CallTooLarge
from executor.channel.tunnels import Tunnel
from executor.errors import BadRequestError
from executor.guest import wire
from executor.workspace.text import printable_name, traced

log = logging.getLogger("executor.bridge")

DEPTH = 64  # of a request's JSON
SLACK = 4096  # bytes of a request besides its input: its method, the tool's name
EFFECTS = 10.0  # seconds that the result of a run waits for its last writes to a storage
CANCEL_GRACE = 0.5  # seconds that a cancelled handler has before it is left to itself
# Attempts, in multiples of what is allowed, after which a run is only hammering and loses its bridge.
PATIENCE = 4
MAX_RECORDS = 4096  # audit records of one run; more attempts are counted in its last record
MAX_REPORTED = 16 << 10  # bytes that a tool may add to the record of one call
MAX_SUMMARIES = 1000  # calls listed in a result
REVOKED = "The run is over; its grant was revoked."


@dataclass(frozen=True)
class Subject:
    """Whose run it is, for policies, approvals and the audit."""

    run_id: str
    session_id: str
    skill: str | None = None
    skill_digest: str = ""
    script: str = ""
    script_sha256: str = ""


@dataclass
class CallSummary:
    """One call in a run's result."""

    call_id: str
    name: str
    ok: bool
    ms: int
    code: str = ""


@dataclass
class _Record:
    """What the audit will say of one call."""

    method: str = ""
    tool: str = ""
    input: Any = None
    input_bytes: bytes = b""
    decision: str = "allow"
    rule: str = ""
    by: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    started: float = 0.0
    command: shell.Command | None = None
    placed: bool = False
    """Whether it holds a place in flight."""


class RunBridge:
    """Made for one run and useless after it."""

    def __init__(self, grant: Grant, subject: Subject, audit: AuditLog, *, script: bool = False) -> None:
        """`script`: the run may hand in a value, as large as a result."""
        self.grant = grant
        self.subject = subject
        self.calls: list[CallSummary] = []
        """The calls that were answered, in that order."""
        self.value: tuple[bool, Any] = (False, None)
        """Whether the script has handed in a result, and which."""
        self.error: dict[str, Any] | None = None
        """What the script's runner says of an exception in it."""
        self.span = spans.Span("skill.run")
        """The span of the run, above those of its calls."""
        self.values: Values | None = None
        """The way of files in and out of the sandbox."""
        self.changed = asyncio.Event()
        """Set when a call begins to wait for a decision."""
        self.revoked: str | None = None
        self.warnings: list[str] = []
        """What the run's result is to say."""
        self.largest = max(grant.limits.argument, grant.limits.result if script else 0)
        """Bytes of the largest request."""
        self._audit = audit
        self._clock = Clock(lambda _stopped, _frozen: None)
        self._begun = False
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: set[CallRequest] = set()
        self._numbers = self._attempts = self._tool_calls = self._operations = self._records = 0
        self._waiting = 0
        self._places = asyncio.Semaphore(grant.limits.in_flight)
        self._tokens, self._filled = float(grant.limits.burst), time.monotonic()
        self._pending: dict[str, tuple[ApprovalRequest, asyncio.Future[Decision]]] = {}
        self._folder: HostFolder | RemoteFolder | None = None
        self._effects: set[asyncio.Future[Any]] = set()
        self._egress: Egress | None = None
        if grant.network is not None:
            self._egress = Egress(
                grant.network, grant.limits, self._record_network, lambda: self._clock.stopped
            )
        self._began = time.monotonic()
        self.catalogue = [spec.entry() for spec in sorted(grant.tools.values(), key=lambda spec: spec.name)]

    # -- life --

    def begin(self, timeout: float | None, hold: Callable[[bool, bool], None]) -> None:
        """The run has started: its clock, and the host's own deadline for its calls. Only once: the guest is
        not to move it.
        """
        if self._begun:
            return
        self._begun = True
        self._began = time.monotonic()
        self._clock = Clock(hold)
        if timeout is not None:
            self._deadline = self._began + timeout
            self._arm()

    def _arm(self) -> None:
        left = self._left()
        assert left is not None
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._timed)

    def _timed(self) -> None:
        left = self._left()
        if left is None or left <= 0:
            self.revoke("the deadline passed")
        else:
            self._arm()  # the clock was stopped meanwhile

    def _left(self) -> float | None:
        """Seconds until the run's deadline, the stopped ones not counted."""
        if self._deadline is None:
            return None
        return self._deadline + self._clock.stopped - time.monotonic()

    def revoke(self, why: str) -> None:
        """End the grant: pending calls are answered with REVOKED, handlers cancelled, later calls refused."""
        if self.revoked is not None:
            return
        self.revoked = why
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for request in list(self._requests):
            request.cut()
        if self._folder is not None:
            self._folder.close()
        if self._egress is not None:
            self._egress.revoke()
        self.changed.set()
        self._keep(
            {
                "event": "run",
                "user": self.grant.user,
                "ended": why,
                "calls": self._tool_calls,
                "operations": self._operations,
                "attempts": self._attempts,
                "records": self._records,
                "ms": int((time.monotonic() - self._began) * 1000),
                "paused_ms": int(self._clock.stopped * 1000),
            }
        )

    async def settled(self) -> None:
        """Returns when no write to the workspace is under way any more, or after a while: a storage far away
        cannot be told to forget one.
        """
        if self._effects:
            await asyncio.wait(self._effects, timeout=EFFECTS)

    # -- decisions --

    @property
    def pending(self) -> list[ApprovalRequest]:
        """The calls that wait for a decision."""
        return [request for request, _ in self._pending.values()]

    def decide(self, call_id: str, answer: bool | Decision) -> None:
        """Answer a waiting call. BadRequestError when it does not wait: each decision counts once."""
        waiting = self._pending.pop(call_id, None)
        if waiting is None or waiting[1].done():
            raise BadRequestError(f"no call {call_id!r} waits for a decision")
        waiting[1].set_result(decision(answer))

    # -- the network --

    def connected(self, tunnel: Tunnel) -> None:
        """A script has connected to its proxy. This returns at once."""
        if self._egress is None or self.revoked is not None:
            tunnel.close()
        else:
            self._egress.connected(tunnel)

    def _record_network(self, note: Note) -> None:
        if self._records >= MAX_RECORDS:
            return
        self._records += 1
        self._keep(
            {
                "event": "network",
                "user": self.grant.user,
                "method": note.method,
                "host": note.host,
                "port": note.port,
                # Without its query, which is where credentials are written by those who know no better.
                "path": line(note.path, [*self.grant.secrets, *note.secrets]),
                "address": note.address,
                "rule": note.rule,
                "decision": "deny" if note.result in ("DENIED", "PROTOCOL") else "allow",
                "status": note.status,
                "result": note.result,
                "bytes_up": note.sent,
                "bytes_down": note.received,
                "ms": int((time.monotonic() - note.began) * 1000),
            }
        )

    # -- calls --

    def incoming(self, request: CallRequest) -> None:
        """A call has come. Answered in a task of its own; this returns at once."""
        self._numbers += 1
        call_id = f"{self.subject.run_id}.c{self._numbers}"
        self._attempts += 1
        limits = self.grant.limits
        if self._attempts > PATIENCE * (limits.calls + limits.operations) + limits.queue:
            self.revoke("it made far more calls than it may")
        if self.revoked is not None:
            request.reply(self._encode(request, BridgeError("REVOKED", REVOKED), call_id, None))
            return
        task = asyncio.get_running_loop().create_task(self._handle(request, call_id))
        self._tasks.add(task)
        self._requests.add(request)
        request.on_cancel = task.cancel
        task.add_done_callback(lambda done: self._done(done, request))

    def _done(self, task: asyncio.Task[None], request: CallRequest) -> None:
        self._tasks.discard(task)
        self._requests.discard(request)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a bridge call failed inside the bridge: %s", traced(error))
            request.cut()

    async def _handle(self, request: CallRequest, call_id: str) -> None:
        note = _Record(started=time.monotonic())
        began = note.started
        outcome: Any
        about = {"exec_id": self.subject.session_id, "run_id": self.subject.run_id, "call_id": call_id}
        with spans.inside(self.span), spans.span("skill.tool_call", **about) as span:
            try:
                outcome = await self._checked(request, call_id, note)
            except BridgeError as error:
                outcome = error
            except asyncio.CancelledError:
                if self.revoked is not None:
                    outcome = BridgeError("REVOKED", REVOKED)
                else:
                    outcome = BridgeError("CANCELLED", "The caller gave up.")
            except Exception as error:  # a fault of ours costs neither its record nor its place
                log.error("call %s failed inside the bridge: %s", call_id, traced(error))
                outcome = BridgeError("IO", f"The call failed ({call_id}).")
            code = outcome.code if isinstance(outcome, BridgeError) else "ok"
            span.say(method=note.method[:80], tool=note.tool, result=code)
        ended = time.monotonic()
        try:
            payload = self._encode(request, outcome, call_id, note, ms=int((ended - began) * 1000))
        except BridgeError as error:
            outcome = error
            payload = self._encode(request, outcome, call_id, note, ms=int((ended - began) * 1000))
        self._record(call_id, note, outcome, payload, began, ended)
        if note.method == "tool.call" and len(self.calls) < MAX_SUMMARIES:
            failed = isinstance(outcome, BridgeError)
            self.calls.append(
                CallSummary(
                    call_id,
                    note.tool,
                    not failed,
                    int((ended - began) * 1000),
                    outcome.code if failed else "",
                )
            )
        request.reply(payload)
        if self.revoked is None:
            # The place in flight is kept until the sandbox has taken the result: that bounds what waits here.
            try:
                await request.sent()
            finally:
                if note.placed:
                    self._places.release()
        elif note.placed:
            self._places.release()

    async def _checked(self, request: CallRequest, call_id: str, note: _Record) -> Any:
        limits = self.grant.limits
        self._take_token()
        if request.refused:  # what the guest's own door would not take
            code = "VALUE_TOO_LARGE" if request.refused == "too large" else "PROTOCOL"
            raise BridgeError(code, f"The request was refused: {request.refused}.", rule="door")
        if not self._places.locked():
            await self._places.acquire()
        else:
            if self._waiting >= limits.queue:
                raise BridgeError(
                    "TOO_MANY_INFLIGHT",
                    f"{limits.in_flight} calls are under way and {limits.queue} wait.",
                    rule="in_flight",
                )
            self._waiting += 1
            try:
                await self._places.acquire()
            finally:
                self._waiting -= 1
        note.placed = True
        note.started = time.monotonic()
        try:
            data = await request.read(self.largest + SLACK)
        except CallTooLarge:
            raise self._too_large() from None
        note.input_bytes = data
        method, params, timeout = self._parsed(request, data, note)
        note.method = method
        if method != "script.value" and len(data) > limits.argument + SLACK:
            raise self._too_large()
        if method == "tool.call":
            self._reserve("_tool_calls", limits.calls, "calls")
            return await self._call_tool(params, timeout, call_id, note)
        self._reserve("_operations", limits.operations, "operations")
        action = METHODS.get(method)
        if action is None:
            raise BridgeError("METHOD_NOT_FOUND", f"There is no method {method[:80]!r}.")
        note.input = params
        return await action(self, params)

    def _too_large(self) -> BridgeError:
        return BridgeError(
            "VALUE_TOO_LARGE",
            f"The request is larger than {self.grant.limits.argument:,} bytes. Write the data to a file and "
            "pass its path.",
            rule="argument",
        )

    def _take_token(self) -> None:
        rate, burst = self.grant.limits.rate, self.grant.limits.burst
        if rate is None:
            return
        now = time.monotonic()
        self._tokens = min(burst, self._tokens + (now - self._filled) * rate)
        self._filled = now
        if self._tokens < 1:
            wait = math.ceil((1 - self._tokens) / rate * 1000)
            raise BridgeError(
                "RATE_LIMITED",
                f"More than {rate:g} calls a second.",
                details=[{"retry_after_ms": wait}],
                rule="rate",
            )
        self._tokens -= 1

    def _reserve(self, counter: str, limit: int, what: str) -> None:
        """Count one, before anything else is awaited: calls side by side cannot get past the limit."""
        used = getattr(self, counter)
        if used >= limit:
            raise BridgeError("TOO_MANY_CALLS", f"The run has used all of its {limit} {what}.", rule=what)
        setattr(self, counter, used + 1)

    def _parsed(
        self, request: CallRequest, data: bytes, note: _Record
    ) -> tuple[str, dict[str, Any], float | None]:
        if request.form == "shell":
            note.command = shell.read(data)
            return *note.command.request(self.grant.tools), None
        body = parse(data)
        method, params, timeout = body.get("method"), body.get("params", {}), body.get("timeout_ms")
        if not isinstance(method, str) or not isinstance(params, dict):
            raise BridgeError("PROTOCOL", "The request has no method, or params that are no object.")
        if timeout is not None and (type(timeout) not in (int, float) or not 0 < timeout < 1 << 53):
            raise BridgeError("PROTOCOL", "timeout_ms is not a number of milliseconds.")
        return method, params, None if timeout is None else timeout / 1000

    # -- tools --

    async def _call_tool(
        self, params: dict[str, Any], timeout: float | None, call_id: str, note: _Record
    ) -> Any:
        name, value = params.get("name"), params.get("input", {})
        note.tool, note.input = str(name)[:128], value
        spec = self._spec(name)
        note.tool = spec.name
        spec.check_input(value)
        if spec.files:
            value, note.input = await self._values().arguments(spec.files, value)
        await self._permit(spec, note.input, call_id, note)
        limit = min(spec.timeout_s, timeout if timeout is not None else spec.timeout_s)
        left = self._left()
        free = not self.grant.count_tool_time
        if free:
            limit = min(limit, max(self.grant.limits.working - self._clock.working.seconds, 0.001))
        elif left is not None:
            limit = min(limit, max(left, 0.001))
        context = ToolContext(
            run_id=self.subject.run_id,
            session_id=self.subject.session_id,
            call_id=call_id,
            tool=spec.name,
            skill=self.subject.skill,
            deadline=time.monotonic() + limit,
            report=note.extra.update,
        )
        with collecting() as made:
            with self._clock.held(self._clock.working) if free else nullcontext():
                result = await self._run_handler(spec, value, context, limit, call_id)
            try:
                text = dump(result, marked)
            except (TypeError, ValueError, RecursionError):
                raise BridgeError(
                    "TOOL_OUTPUT_INVALID", f"{spec.name}: the tool's result is not JSON.", rule="json"
                ) from None
        # What is checked is what will be sent, not the object that it was made from.
        plain = json.loads(text)
        spec.check_output(plain)
        number = call_id.rpartition(".")[2]
        if made:
            plain = await self._values().results(plain, made, number)
        cap = min(spec.max_result, self.grant.limits.result)
        if len(text.encode("utf-8")) > cap:
            if spec.overflow == "file":
                text = dump(struck(json.loads(text), self.grant.secrets))
                return await self._values().put("result.json", text.encode(), number)
            raise BridgeError(
                "VALUE_TOO_LARGE",
                f"{spec.name}: the result is larger than {cap:,} bytes. Ask for less, or for a file.",
                rule="result",
            )
        return plain

    def _values(self) -> Values:
        if self.values is None:
            raise BridgeError("IO", "There is no sandbox to have files in.")
        return self.values

    def _spec(self, name: Any) -> ToolSpec:
        spec = self.grant.tools.get(name) if isinstance(name, str) else None
        if spec is None:
            raise BridgeError("TOOL_NOT_FOUND", f"Tool not available: {str(name)[:128]}", rule="grant")
        return spec

    async def _permit(self, spec: ToolSpec, value: Any, call_id: str, note: _Record) -> None:
        """The policy, then the approval. Whatever fails there refuses or asks, and never allows."""
        verdict: Verdict = "allow"
        who = self.subject
        if self.grant.policy is not None:
            asked = PolicyRequest(
                run_id=who.run_id,
                session_id=who.session_id,
                call_id=call_id,
                user=self.grant.user,
                skill=who.skill,
                skill_digest=who.skill_digest,
                script=who.script,
                tool=spec.name,
                read_only=spec.read_only,
                input=value,
            )
            try:
                answer = self.grant.policy(asked)
                verdict = await answer if inspect.isawaitable(answer) else answer
            except Exception:
                log.exception("the policy failed for tool %s", spec.name)
                verdict = "deny"
            if verdict not in VERDICTS or verdict == "deny":
                note.decision, note.rule = "deny", "policy"
                raise BridgeError(
                    "DENIED", f"{spec.name}: the policy does not allow this call.", rule="policy"
                )
        reason = "the policy asks" if verdict == "ask" else ""
        if not reason and await _needs_approval(spec, value):
            reason = "the tool needs approval"
        if reason:
            await self._ask(spec, value, reason, call_id, note)

    async def _ask(self, spec: ToolSpec, value: Any, reason: str, call_id: str, note: _Record) -> None:
        note.rule = "approval"
        approver = self.grant.approver
        if approver is None:
            note.decision = "rejected"
            raise BridgeError(
                "APPROVAL_REJECTED",
                f"{spec.name}: {reason}, and nobody is there to give it.",
                rule="approval",
            )
        who = self.subject
        asked = ApprovalRequest(
            run_id=who.run_id,
            session_id=who.session_id,
            call_id=call_id,
            user=self.grant.user,
            skill=who.skill,
            script=who.script,
            tool=spec.name,
            input=value,
            reason=reason,
            digest=request_digest(spec.name, value, who.skill_digest, who.script_sha256 or who.script),
        )
        left = self.grant.limits.thinking - self._clock.thinking.seconds
        try:
            with self._clock.held(self._clock.thinking):
                answer = await asyncio.wait_for(self._answer(asked, approver), max(0.0, left))
        except TimeoutError:
            note.decision = "expired"
            raise BridgeError(
                "APPROVAL_EXPIRED", f"{spec.name}: nobody decided in time.", rule="approval"
            ) from None
        finally:
            self._pending.pop(call_id, None)
        note.by = answer.by[:128]
        note.decision = "approved" if answer.allow else "rejected"
        if not answer.allow:
            why = f": {answer.reason[:500]}" if answer.reason else "."
            raise BridgeError(
                "APPROVAL_REJECTED", f"{spec.name}: the call was rejected{why}", rule="approval"
            )

    async def _answer(self, asked: ApprovalRequest, approver: Any) -> Decision:
        if approver == "suspend":
            future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
            self._pending[asked.call_id] = (asked, future)
            self.changed.set()
            return await future
        try:
            answer = approver(asked)
            return decision(await answer if inspect.isawaitable(answer) else answer)
        except Exception:
            log.exception("the approver failed for tool %s", asked.tool)
            return Decision(False)

    async def _run_handler(
        self, spec: ToolSpec, value: Any, context: ToolContext, limit: float, call_id: str
    ) -> Any:
        work = _start(spec, value, context)
        try:
            await asyncio.wait({work}, timeout=limit)
            if not work.done():
                if work.cancel():
                    await asyncio.wait({work}, timeout=CANCEL_GRACE)
                raise BridgeError(
                    "TOOL_TIMEOUT", f"{spec.name}: no result within {limit:g} s.", rule="timeout"
                )
            return work.result()
        except PublicToolError as error:
            failure = BridgeError("TOOL_FAILED", f"{spec.name}: {error.message}")
            failure.retryable = error.retryable
            raise failure from None
        except (BridgeError, asyncio.CancelledError):
            raise
        except Exception as error:
            # The text of any other exception may hold what the script must not see.
            log.warning("tool %s failed in call %s: %s", printable_name(spec.name), call_id, traced(error))
            context.report({"exception": type(error).__name__})
            raise BridgeError("TOOL_FAILED", f"{spec.name}: the tool failed ({call_id}).") from None
        finally:
            if not work.done():
                work.cancel()
                work.add_done_callback(lambda done: self._late(done, spec.name, call_id))
            elif not work.cancelled():
                work.exception()  # seen, whether or not it was waited for

    def _late(self, work: asyncio.Future[Any], tool: str, call_id: str) -> None:
        """A handler ended after its call was given up: its result is dropped, and the audit says so."""
        if work.cancelled():
            return
        failed = work.exception() is not None
        self._keep(
            {
                "event": "completed_after_revoke",
                "call_id": call_id,
                "tool": tool,
                "result": "failed" if failed else "ok",
            }
        )

    # -- the other methods --

    async def _list(self, params: dict[str, Any]) -> Any:
        query = str(params.get("query") or "").lower()
        found = [
            {"name": entry["name"], "description": entry["description"]}
            for entry in self.catalogue
            if query in entry["name"].lower() or query in entry["description"].lower()
        ]
        return found

    async def _describe(self, params: dict[str, Any]) -> Any:
        return self._spec(params.get("name")).entry()

    async def _workspace(self, params: dict[str, Any], *, action: str) -> Any:
        writes = action in ("write", "delete")
        right = self.grant.right
        if right == "none" or self.grant.root is None:
            raise BridgeError("DENIED", "Workspace access is not available.", rule="workspace")
        if writes and right != "read-write":
            raise BridgeError("DENIED", "Workspace write access is not available.", rule="workspace")
        if self._folder is None:
            most, entries = self.grant.limits.result // 2, self.grant.limits.entries
            root = self.grant.root
            if isinstance(root, str):
                self._folder = RemoteFolder(root, self.grant.root_options, most=most, entries=entries)
            else:
                self._folder = HostFolder(str(root), most=most, entries=entries)
        folder = self._folder
        work = in_thread(lambda: folder.do(action, params))
        if writes:
            self._effects.add(work)
            work.add_done_callback(self._effects.discard)
        return await asyncio.shield(work)

    async def _value(self, params: dict[str, Any]) -> Any:
        if "error" in params:
            error = params["error"] if isinstance(params["error"], dict) else {}
            self.error = {
                key: str(error.get(key, ""))[:limit]
                for key, limit in (("code", 128), ("message", 4096), ("traceback", 16384))
            }
        else:
            self.value = (True, params.get("value"))
        return None

    async def _note(self, params: dict[str, Any]) -> Any:
        """What a script says about itself: never trusted, only kept in the audit."""
        return None

    # -- answers and records --

    def _encode(
        self, request: CallRequest, outcome: Any, call_id: str, note: _Record | None, *, ms: int = 0
    ) -> bytes:
        """The bytes of an answer. BridgeError when the value cannot be sent."""
        failed, secrets = isinstance(outcome, BridgeError), self.grant.secrets
        if not failed:
            try:
                text = dump(outcome)
                # Not in the JSON text: of a number there would be left what is no JSON.
                outcome = struck(json.loads(text), secrets) if secrets else outcome
            except (TypeError, ValueError, RecursionError):
                raise BridgeError("TOOL_OUTPUT_INVALID", "The result is not JSON.") from None
        else:
            outcome.message = struck(outcome.message, secrets)
            outcome.details = struck(outcome.details, secrets)
        if request.form == "shell":
            return shell.render(note.command if note is not None else None, outcome)
        if failed:
            return dump({"ok": False, "error": outcome.body(), "call_id": call_id, "ms": ms}).encode()
        payload = dump({"ok": True, "value": outcome, "call_id": call_id, "ms": ms}).encode()
        cap = self.grant.limits.result + 4096
        if len(payload) > cap:
            raise BridgeError(
                "VALUE_TOO_LARGE", f"The result is larger than {self.grant.limits.result:,} bytes."
            )
        return payload

    def _keep(self, fields: dict[str, Any]) -> None:
        """Add to the audit. What cannot be recorded is the last that the run was allowed to do."""
        who = self.subject
        about = {
            "run_id": who.run_id,
            "session": who.session_id,
            "skill": who.skill,
            "skill_digest": who.skill_digest,
            "script": who.script,
            "script_sha256": who.script_sha256,
        }
        try:
            self._audit.record({**about, **fields})
        except (OSError, ValueError) as error:
            why = f"the audit cannot be written: {error.strerror if isinstance(error, OSError) else error}"
            log.error("%s; run %s is not recorded: %s", why, who.run_id, fields)
            if not self.warnings:
                self.warnings.append(f"{why}; the run lost its grant")
            self.revoke(why)

    def _record(
        self, call_id: str, note: _Record, outcome: Any, payload: bytes, began: float, ended: float
    ) -> None:
        if self._records >= MAX_RECORDS:
            return
        self._records += 1
        failed = isinstance(outcome, BridgeError)
        if failed and note.decision == "allow" and outcome.code not in ("TOOL_FAILED", "TOOL_TIMEOUT"):
            note.decision = "deny"
        held = self.grant.secrets
        self._keep(
            {
                "event": "call",
                "call_id": call_id,
                "user": self.grant.user,
                "method": note.method[:80],
                "tool": note.tool,
                "input_sha256": digest(note.input_bytes),
                "input_preview": preview(note.input, held) if note.method else "",
                "decision": note.decision,
                "rule": note.rule or (outcome.rule if failed else ""),
                "by": note.by,
                "result": outcome.code if failed else "ok",
                "result_sha256": digest(payload),
                "bytes_in": len(note.input_bytes),
                "bytes_out": len(payload),
                "queued_ms": int((note.started - began) * 1000),
                "exec_ms": int((ended - note.started) * 1000),
                **({"extra": _reported(note.extra, held)} if note.extra else {}),
            }
        )


METHODS: Mapping[str, Callable[[RunBridge, dict[str, Any]], Any]] = {
    "tool.list": RunBridge._list,
    "tool.describe": RunBridge._describe,
    "log": RunBridge._note,
    "progress": RunBridge._note,
    "script.value": RunBridge._value,
    **{
        f"workspace.{action}": functools.partial(RunBridge._workspace, action=action)
        for action in ("read", "list", "glob", "stat", "write", "delete")
    },
}


def parse(data: bytes) -> dict[str, Any]:
    """The JSON object of a request, by the same rules as control payloads. BridgeError PROTOCOL."""
    try:
        return wire.parse_control(data, most=len(data), deepest=DEPTH)
    except wire.ProtocolError as error:
        raise BridgeError("PROTOCOL", str(error).replace("control payload", "The request")) from None


def dump(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """JSON text without NaN and lone surrogates. ValueError or TypeError when it cannot be."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=default)
    text.encode("utf-8")
    return text


def _reported(fields: dict[str, Any], secrets: tuple[str, ...]) -> Any:
    """What a tool says of a call, for the audit."""
    try:
        text = dump(fields, str)
        if len(text) > MAX_REPORTED:
            return {"left_out": f"{len(text):,} characters"}
        return struck(json.loads(text), secrets)
    except (TypeError, ValueError, RecursionError):
        return {"left_out": "it is not JSON"}


async def _needs_approval(spec: ToolSpec, value: Any) -> bool:
    if isinstance(spec.approval, str):
        return spec.approval == "always"
    try:
        answer = spec.approval(value)
        return bool(await answer if inspect.isawaitable(answer) else answer)
    except Exception:
        log.exception("the approval function of tool %s failed", spec.name)
        return True


def _start(spec: ToolSpec, value: Any, context: ToolContext) -> asyncio.Future[Any]:
    """The handler under way: a coroutine as a task, a function in a thread."""
    handler = spec.handler
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        return asyncio.get_running_loop().create_task(handler(value, context))
    return in_thread(lambda: handler(value, context))
