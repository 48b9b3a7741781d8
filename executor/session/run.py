"""A run seen from outside: the one in the background that can be talked to, and the result of any run."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from executor import spans
from executor.channel import RunHandle, RunSpec
from executor.channel.runs import ExitReport, OutputBuffer
from executor.errors import BadRequestError, SandboxLostError
from executor.guest import wire
from executor.models import ExecResult, Status, Usage
from executor.session import request
from executor.workspace import text
from executor.workspace.text import plural, to_text

if TYPE_CHECKING:
    from executor.bridge import ApprovalRequest, Decision, RunBridge
    from executor.session.session import AsyncSession


class RunOutput(ExecResult):
    """What came since the last look at a background run: `stdout` and `stderr` hold only that."""


class AsyncRun:
    """A run in the background. Made by `AsyncSession.start`."""

    def __init__(
        self,
        session: AsyncSession,
        handle: RunHandle,
        skill: str | None,
        limit: int,
        bridge: RunBridge | None = None,
        finish: Callable[[ExecResult], Awaitable[ExecResult]] | None = None,
    ) -> None:
        self._session = session
        self._finish = finish
        self._finishing = asyncio.Lock()
        self._bridge = bridge
        self._handle = handle
        self._skill = skill
        self._limit = limit
        self._seen = {wire.STDOUT: 0, wire.STDERR: 0}
        self._started = time.monotonic()
        self._kept: ExecResult | None = None

    @property
    def run_id(self) -> str:
        """Its id, which also names its folder below `runs/`."""
        return self._handle.spec.run_id

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._handle.report.done()

    @property
    def offset(self) -> int:
        """Bytes of its output that `read` has given so far, of both streams."""
        return sum(self._seen.values())

    async def write(self, data: bytes | str) -> None:
        """Send to its stdin."""
        if not self.running:
            raise BadRequestError(f"run {self.run_id} has ended and reads no more")
        await self._handle.write(request.stdin(data))

    async def close_stdin(self) -> None:
        """End of file on its stdin."""
        if self.running:
            await self._handle.close_stdin()

    async def read(self, timeout: float = 0.0) -> RunOutput:
        """What it wrote since the last `read`; waits up to `timeout` seconds while there is nothing.

        Nothing is repeated and nothing is lost in silence: bytes that came faster than they were read and
        are no longer kept are counted in `warnings`.
        """
        deadline = time.monotonic() + timeout
        while self.running and not self._fresh():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._handle.changed.clear()
            try:
                await asyncio.wait_for(self._handle.changed.wait(), left)
            except TimeoutError:
                break
        result = await self._result() if not self.running else None
        base = result.model_dump() if result is not None else self._snapshot()
        for channel, name in ((wire.STDOUT, "stdout"), (wire.STDERR, "stderr")):
            buffer = self._handle.output[channel]
            data, missed = buffer.since(self._seen[channel])
            # A character that is still coming waits for its rest.
            keep = 0 if result is not None else text.torn_tail(data)
            self._seen[channel] = buffer.total - keep
            base[name] = text.decode(data[: len(data) - keep])
            base[name + "_truncated"] = bool(missed)
            if missed:
                base["warnings"].append(f"{missed:,} bytes of {name} came too fast and were dropped")
        return RunOutput(**base)

    @property
    def pending(self) -> list[ApprovalRequest]:
        """The calls that wait for a decision; the run and its clock stand still meanwhile."""
        return self._bridge.pending if self._bridge is not None else []

    async def resume(
        self, decisions: Mapping[str, bool | Decision], timeout: float | None = None
    ) -> ExecResult:
        """Decide about pending calls, by their `call_id`, and `wait` again. BadRequestError for a call that
        does not wait: every decision counts once.
        """
        waiting = {request.call_id for request in self.pending}
        if wrong := sorted(set(decisions) - waiting):  # all of them or none
            raise BadRequestError(f"no call {wrong[0][:80]!r} of run {self.run_id} waits for a decision")
        for call_id, answer in decisions.items():
            assert self._bridge is not None
            self._bridge.decide(call_id, answer)
        return await self.wait(timeout)

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """Its result; `status` is `running` when it has not ended after `timeout` seconds, and
        `awaiting_approval` when it waits for a decision (`pending`, `resume`).
        """
        bridge = self._bridge
        if bridge is not None and bridge.grant.approver == "suspend":
            stop = time.monotonic() + timeout if timeout is not None else None
            while self.running and not bridge.pending:
                bridge.changed.clear()
                waiting: asyncio.Future[Any] = asyncio.ensure_future(bridge.changed.wait())
                left = None if stop is None else max(0.0, stop - time.monotonic())
                either: set[asyncio.Future[Any]] = {waiting, self._handle.report}
                done, _ = await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if not done:
                    break
            if self.running:
                status: Status = "awaiting_approval" if bridge.pending else "running"
                return ExecResult(**{**self._snapshot(), "status": status})
        elif timeout is not None:
            await asyncio.wait({self._handle.report}, timeout=timeout)
            if self.running:
                return ExecResult(**self._snapshot())
        await self._session.settle(self._handle)
        return await self._result()

    def send_signal(self, number: int) -> None:
        """Signal its process group: `signal.SIGINT`, …"""
        if not 1 <= int(number) <= 64:
            raise BadRequestError(f"{number} is not a signal")
        self._handle.send_signal(int(number))

    def resize(self, rows: int, columns: int) -> None:
        """Size of its terminal."""
        check_size(rows, columns)
        self._handle.resize(rows, columns)

    async def kill(self) -> ExecResult:
        """End it and all that it started. Its result; of one that ended before, the result it had."""
        self._handle.kill("killed")
        await self._session.settle(self._handle)
        return await self._result()

    def since(self, started: float) -> None:
        """Count its duration from an earlier moment of the monotonic clock."""
        self._started = started

    def abandon(self, grace: float) -> None:
        """End it because nobody waits for it any more; its result is lost."""
        self._handle.kill("cancelled", grace)

    def _fresh(self) -> bool:
        return any(self._handle.output[channel].total > seen for channel, seen in self._seen.items())

    async def _result(self) -> ExecResult:
        async with self._finishing:
            if self._kept is None:
                found = await self._session.result(self._handle, self._started, self._limit)
                self._kept = found if self._finish is None else await self._finish(found)
            return self._kept

    def _snapshot(self) -> dict[str, Any]:
        result = self._session.blank(self.run_id, "running")
        result.stdout_bytes = self._handle.output[wire.STDOUT].total
        result.stderr_bytes = self._handle.output[wire.STDERR].total
        result.duration_ms = int((time.monotonic() - self._started) * 1000)
        return result.model_dump()


class RunSpans:
    """The spans of one run: `workspace.run`, and around it what it is for when it has a bridge."""

    def __init__(
        self,
        session_id: str,
        spec: RunSpec,
        skill: str | None,
        bridge: RunBridge | None,
        language: str | None,
    ) -> None:
        about: dict[str, Any] = {"exec_id": session_id, "run_id": spec.run_id}
        self._all: list[spans.Span] = []
        program = "sh" if spec.shell else to_text(spec.argv[0])
        inner = {**about, "skill": skill, "cmd": program, "cwd": to_text(spec.cwd)}
        if bridge is None:
            self._all.append(spans.begin("workspace.run", **inner))
            return
        inline = language is not None and skill is None
        more = {"language": language} if inline else {"skill": skill, "script": bridge.subject.script or None}
        outer = spans.begin("workspace.inline" if inline else "skill.run", **about, **more)
        bridge.span = outer
        with spans.inside(outer):
            self._all += [spans.begin("workspace.run", **inner), outer]

    @property
    def heard(self) -> bool:
        """Somebody wants to know how it ends."""
        return any(span.heard for span in self._all)

    def failed(self, error: BaseException) -> None:
        """It could not be started."""
        for span in self._all:
            span.end(error)

    def ended(self, report: asyncio.Future[ExitReport]) -> None:
        """It ended, or its sandbox did."""
        if report.cancelled() or report.exception() is not None:
            lost = None if report.cancelled() else report.exception()
            self.failed(lost or SandboxLostError("the sandbox ended"))
            return
        result = ExecResult(status="ok")
        fill(result, report.result())
        for span in self._all:
            span.say(status=result.status, exit_code=result.exit_code, timed_out=result.timed_out)
            span.end()


def take_output(result: ExecResult, name: str, buffer: OutputBuffer, claimed: int, limit: int) -> None:
    """Put what was kept of one stream into a result; `claimed` is how many bytes the guest says it was."""
    total = max(claimed, buffer.total)
    head, tail = bytes(buffer.head), buffer.last()
    shown, cut = text.clip(head, tail, total, limit)
    setattr(result, name, shown)
    setattr(result, name + "_bytes", total)
    setattr(result, name + "_truncated", cut)
    setattr(result, f"_{name}_raw", head + tail)
    if cut:
        result.limits_hit.append(name)


def fill(result: ExecResult, report: ExitReport) -> None:
    """Status and numbers of a run that the guest reported."""
    result.signal = report.signal
    result.exit_code = 128 + report.signal if report.signal is not None else report.code
    result.killed_descendants = report.killed
    result.usage = Usage(wall_ms=report.wall_ms, cpu_ms=report.cpu_ms, max_rss_bytes=report.max_rss)
    died_of_memory = report.oom > 0 and (report.signal == signal.SIGKILL or report.code == 137)
    if report.reason is not None:
        result.status = report.reason
    elif died_of_memory:
        result.status, result.exit_code = "oom", 137
    else:
        result.status = "ok" if report.code == 0 else "error"
    if result.status == "timeout":
        result.timed_out, result.exit_code = True, 124
        result.limits_hit.append("timeout")
    if report.oom:
        result.limits_hit.append("memory")
        if result.status != "oom":
            killed = plural(report.oom, "process")
            result.warnings.append(f"the kernel killed {killed} of this sandbox for memory")
    if report.errno == 11:
        result.limits_hit.append("pids")
    if report.notice:
        result.warnings.append(text.printable(report.notice))
    if report.left:
        result.warnings.append(f"{plural(report.left, 'process')} of this run could not be ended yet")


def check_size(rows: int, columns: int) -> None:
    """BadRequestError for a size that no terminal has."""
    if not all(type(number) is int and 1 <= number <= 10_000 for number in (rows, columns)):
        raise BadRequestError(f"{rows!r} by {columns!r} is not a size of a terminal")
