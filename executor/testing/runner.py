"""Runs cases: each in a session of its own, a bounded number at a time, on one runtime or several.

A case that fails is a value; only what makes every case meaningless (no engine, no such image, a broken
case file) is an exception. Files of the host are written for `update` and `keep_failed` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from executor.errors import BadRequestError, ExecutorError
from executor.executor import AsyncExecutor
from executor.models import ExecResult, Limits, OutputFile, OutputLimits
from executor.session import AsyncSession
from executor.settings import PoolSettings, Settings
from executor.testing.cases import Instance, discover, shown
from executor.testing.coverage import coverage
from executor.testing.expect import Outcome, Produced, compare
from executor.testing.fakes import FakeTools
from executor.testing.form import InlineText, StdinFile
from executor.testing.kept import keep
from executor.testing.results import CaseResult, Report, for_report, this_machine
from executor.workspace import outputs

AHEAD = 2  # sandboxes ready for the next cases; more only take processors from those that run
COLLECTED = OutputLimits(max_files=1000, inline_bytes=8 << 20, max_total_bytes=64 << 20)

log = logging.getLogger("executor.testing")

OnResult = Callable[[CaseResult], None]


@dataclass(frozen=True)
class Plan:
    """What to run and how."""

    instances: Sequence[Instance]
    settings: Settings
    version: str = ""
    """Of the executor, for reports."""
    runtimes: Sequence[str] = ("auto",)
    """Every case runs on each of them."""
    jobs: int = 1
    """Sessions at a time."""
    timeout: float | None = None
    """Seconds for a case that brings none. Default: `Settings.script_timeout`."""
    retries: int = 0
    """More attempts for each case, unless it asks for more of its own."""
    update: bool = False
    """Rewrite golden files that differ."""
    keep_failed: Path | None = None
    """A folder for all files of the sessions of cases that failed."""
    previews: bool = False
    """Keep the content of small files for a report."""


@dataclass
class _Machine:
    """An executor for one runtime and one image."""

    name: str
    executor: AsyncExecutor
    why: str = ""


@dataclass
class _Run:
    plan: Plan
    settings: Settings
    on_result: OnResult | None
    machines: dict[tuple[str, str | None], _Machine] = field(default_factory=dict)
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


async def run(plan: Plan, on_result: OnResult | None = None) -> Report:
    """Run the plan; `on_result` is called as each case ends. RuntimeUnavailableError before the first one."""
    if plan.jobs < 1:
        raise BadRequestError(f"-j {plan.jobs}: at least one case has to run at a time")
    started = time.monotonic()
    report = Report(
        version=plan.version, started=datetime.now(UTC).isoformat(timespec="seconds"), jobs=plan.jobs
    )
    state = _Run(plan, plan.settings, on_result)
    # Checkpoints of failed cases are on their way to `keep_failed`, and not for the operator's own store.
    store = tempfile.TemporaryDirectory(prefix="executor-test-")
    state.settings = plan.settings.model_copy(update={"state_dir": store.name})
    try:
        names = {
            runtime: (await _machine(state, runtime, None)).name for runtime in dict.fromkeys(plan.runtimes)
        }
        gate = asyncio.Semaphore(plan.jobs)
        async with asyncio.TaskGroup() as group:
            # In turn, so that no runtime waits until another has had all its cases; the gate keeps the order.
            tasks = [
                (group.create_task(_gated(gate, state, instance, runtime, name)), runtime)
                for instance in plan.instances
                for runtime, name in names.items()
            ]
        report.results = [task.result() for wanted in names for task, runtime in tasks if runtime == wanted]
        report.environment = _environment(state)
    finally:
        for machine in state.machines.values():
            await machine.executor.close()
        await asyncio.to_thread(store.cleanup)
    report.coverage = [
        coverage(
            skill,
            name,
            [item.case.command for item in plan.instances if item.skill == skill and not item.case.skip],
        )
        for skill, name in dict.fromkeys((item.skill, item.slug) for item in plan.instances)
    ]
    report.duration_ms = int((time.monotonic() - started) * 1000)
    return report


def collect(skills: Sequence[Path]) -> tuple[list[Instance], list[Path]]:
    """The cases of the skills, and the skills that have none. BadRequestError for a broken case file."""
    found: list[Instance] = []
    bare: list[Path] = []
    for skill in skills:
        cases = discover(skill)
        found += cases
        if not cases:
            bare.append(skill)
    return found, bare


async def _machine(state: _Run, runtime: str, image: str | None) -> _Machine:
    """The executor for a runtime and an image, started at its first use."""
    key = (runtime, image)
    async with state.opening:
        if key not in state.machines:
            executor = AsyncExecutor(
                settings=state.settings, runtime=runtime, image=image, pool=_pool(state, image)
            )
            try:
                name = await executor.choose_runtime()
            except BaseException:
                await executor.close()
                raise
            state.machines[key] = _Machine(name, executor, executor.why)
        return state.machines[key]


def _pool(state: _Run, image: str | None) -> PoolSettings:
    """Sandboxes started while other cases run: what the operator says, else a few, and never more than there
    are cases to take them.
    """
    given = state.settings.pool
    if given.size or given.max:
        return given
    takers = sum(not item.case.limits and item.case.image == image for item in state.plan.instances)
    return given.model_copy(update={"size": max(0, min(AHEAD, takers - state.plan.jobs))})


def _environment(state: _Run) -> dict[str, str]:
    found = this_machine()
    for (_runtime, image), machine in state.machines.items():
        label = f"runtime {machine.name}" + (f", image {image}" if image else "")
        found[label] = machine.why
    if state.plan.settings.image:
        found["image"] = state.plan.settings.image
    return found


async def _gated(
    gate: asyncio.Semaphore, state: _Run, instance: Instance, runtime: str, name: str
) -> CaseResult:
    async with gate:
        result = await _case(state, instance, runtime, name)
    if state.on_result is not None:
        state.on_result(result)
    return result


async def _case(state: _Run, instance: Instance, runtime: str, name: str) -> CaseResult:
    case = instance.case
    only = (case.runtime,) if isinstance(case.runtime, str) else case.runtime
    result = _blank(instance, name)
    if case.skip or (only is not None and name not in only):
        result.reason = case.skip or f"only for {' and '.join(only or ())}"
        return result
    attempts = 1 + max(case.retries, state.plan.retries)
    for attempt in range(1, attempts + 1):
        result.attempts = attempt
        began = time.monotonic()
        try:
            await _attempt(state, instance, runtime, result)
        except Exception as error:
            said = str(error)
            if isinstance(error, ExecutorError) and error.hint:
                said = f"{error.message.removesuffix('.')}. {error.hint}"
            said = " ".join(said.split())
            if not isinstance(error, ExecutorError | OSError):  # a fault of ours costs one case, not all
                log.exception("%s failed inside the executor", result.title)
                said = f"{type(error).__name__}: {said}"
            result.verdict, result.reason, result.mismatches = "error", said, []
        result.duration_ms = int((time.monotonic() - began) * 1000)
        if result.verdict == "passed":
            result.flaky = attempt > 1
            break
    return result


def _blank(instance: Instance, runtime: str) -> CaseResult:
    return CaseResult(
        id=instance.id,
        skill=instance.slug,
        name=instance.name,
        runtime=runtime,
        file=shown(instance.file).replace(os.sep, "/"),
        line=instance.line,
        command=instance.case.shown,
        verdict="skipped",
    )


async def _attempt(state: _Run, instance: Instance, runtime: str, into: CaseResult) -> None:
    """One attempt in a fresh session."""
    plan, case = state.plan, instance.case
    machine = await _machine(state, runtime, case.image)
    base = machine.executor.settings.limits
    limits = Limits.model_validate({**base.model_dump(), **case.limits})
    session = machine.executor.session(limits=limits)
    try:
        await session.load(instance.skill)
        for dest, source in case.inputs.items():
            content = source.text if isinstance(source, InlineText) else instance.fixture(source)
            await session.put(dest, content)
        fakes = FakeTools(case.answers)
        result = await _execute(session, instance, fakes, plan)
        into.result = result
        if result.status == "lost":
            into.verdict, into.reason = "error", "the sandbox was lost: " + "; ".join(result.warnings)
            return
        files = [_produced(file) for file in result.files]
        outcome = await asyncio.to_thread(compare, instance, result, files)  # large texts take a while
        outcome = replace(outcome, mismatches=(*outcome.mismatches, *fakes.mismatches()))
        _judge(plan, instance, outcome, into)
        if into.verdict == "failed" and plan.keep_failed is not None:
            into.kept = str(await keep(session, machine.executor.store, plan.keep_failed, into, result))
    finally:
        with contextlib.suppress(ExecutorError):
            await session.close()
        if into.result is not None:
            into.result = for_report(into.result, previews=plan.previews)


async def _execute(session: AsyncSession, instance: Instance, fakes: FakeTools, plan: Plan) -> ExecResult:
    """Run the command or the script of a case."""
    case = instance.case
    options: dict[str, Any] = {
        "env": dict(case.env),
        "timeout": case.timeout or plan.timeout or plan.settings.script_timeout,
        "outputs": list(dict.fromkeys([*(item.glob for item in case.expect.files), "out/**"])),
        "output_limits": COLLECTED,
        "grant": fakes.grant,
    }
    if case.script is not None:
        return await session.script(instance.skill, case.script, input=case.input, args=case.args, **options)
    stdin: str | bytes | None = None
    if isinstance(case.stdin, StdinFile):
        stdin = instance.fixture(case.stdin.file).read_bytes()
    elif case.stdin is not None:
        stdin = case.stdin
    return await session.exec(case.command, skill=instance.skill, stdin=stdin, **options)


def _judge(plan: Plan, instance: Instance, outcome: Outcome, into: CaseResult) -> None:
    """The verdict; with `update` golden files are rewritten, but not when something else is wrong too."""
    into.mismatches = list(outcome.mismatches)
    into.reason = ""
    if plan.update and outcome.goldens and len(outcome.goldens) == len(outcome.mismatches):
        for golden, content in outcome.goldens:
            golden.parent.mkdir(parents=True, exist_ok=True)
            golden.write_bytes(content)
            into.updated.append(os.path.relpath(golden, instance.skill))
        into.mismatches = []
    into.verdict = "failed" if into.mismatches else "passed"


def _produced(file: OutputFile) -> Produced:
    content = None if file.truncated else outputs.decode(file)
    return Produced(file.path, file.size, file.mime, file.sha256, content)
