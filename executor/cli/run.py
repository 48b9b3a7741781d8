"""`executor run`: stage the skill and the inputs, run the command, bring the files back, say how it went."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.cli import arguments, console
from executor.cli.arguments import RunRequest
from executor.cli.relay import Relay, TerminalFilter
from executor.cli.signals import until_interrupted
from executor.cli.terminal import ScreenFilter
from executor.errors import BadPathError, ExecutorError
from executor.workspace.text import plural, printable_name

if TYPE_CHECKING:
    from executor.executor import AsyncExecutor
    from executor.models import ExecResult, Limits, OutputFile
    from executor.session import AsyncSession
    from executor.settings import Settings
    from executor.skills.repository import Skill

LAST_WORDS = 0.5  # seconds for a reader to take what was written before an error or a signal

# Request, session, skill, variables, stdin, relay and settings → what to await for the result.
Execute = Callable[..., Coroutine[Any, Any, "ExecResult"]]
# What a limit that was hit means for a person; those that only concern the JSON stand apart.
LIMIT_NOTES = {
    "memory": "the memory limit was reached (--memory)",
    "pids": "the limit of processes was reached (--pids)",
}
JSON_LIMIT_NOTES = {
    "stdout": "stdout is cut in the JSON",
    "stderr": "stderr is cut in the JSON",
    "inline_bytes": "large files are without their content in the JSON: use --save",
    "max_file_bytes": "files are cut in the JSON: use --save",
    "max_total_bytes": "there is no room in the JSON for the content of every file: use --save",
}


def run(request: RunRequest, execute: Execute | None = None, *, screen: bool = False) -> int:
    """The exit status. ExecutorError when the executor itself failed. `execute`: default the words as a
    command. `screen`: it draws on this terminal, which takes more than colours.
    """
    if request.json:
        console.check_stdout()
    arguments.check_writable("--save", request.save)
    arguments.check_writable("--html", request.html, is_file=True)
    staged = arguments.inputs(request.inputs)
    env = arguments.environment(request.env)
    # Before there is an event loop: a read that waits for a person cannot be cancelled in one.
    stdin = arguments.read_stdin(request.stdin)
    return until_interrupted(_run(request, staged, env, stdin, execute or _exec, screen))


async def _run(
    request: RunRequest,
    staged: list[arguments.Input],
    env: dict[str, str],
    stdin: bytes | None,
    execute: Execute,
    screen: bool,
) -> int:
    from executor.executor import AsyncExecutor
    from executor.settings import PoolSettings
    from executor.workspace import globs, layout

    say = _nothing if request.quiet else console.say
    executor = AsyncExecutor(
        skills=request.skills or None,
        runtime=request.runtime,
        image=request.image,
        pool=PoolSettings(),  # one session: nothing is to wait for a second one
    )
    executor.layers.options = arguments.again(request.skills, request.runtime, request.image)
    limits = arguments.limits(executor.settings.limits, request.limits) if request.limits else None
    skill = executor.repository.find(request.skill)
    layout.working_folder(request.cwd, skill.slug)
    globs.compile_globs(
        request.outputs, variables=layout.folders(run_id="run", skill=skill.slug), skill=skill.slug
    )
    relay = None if request.json else Relay(ScreenFilter if screen else TerminalFilter)
    failures: list[ExecutorError] = []
    aside: list[Path] = []
    try:
        async with executor:
            say(f"runtime {executor.why}")
            async with _session(executor, request.session, limits, say) as session:
                await session.load(request.skill)
                for item in staged:
                    await session.put(item.dest, item.source)
                running = execute(request, session, skill.slug, env, stdin, relay, executor.settings)
                result = await _relayed(running, relay)
                if result is not None and request.save is not None:
                    failures, aside = await _save(result.files, request.save, request.overwrite)
                if request.session is not None and not session.lost:
                    say(f"session {session.id} is kept: use --session {session.id} again to go on")
        if relay is not None:
            await relay.finish()
    except BaseException:
        if relay is not None:  # what the script wrote before it went wrong still goes out
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(relay.finish(), LAST_WORDS)
        raise
    finally:
        if relay is not None:
            console.line_is_open(relay.line_is_open)
    if relay is not None and relay.failed is not None:
        if relay.reader_has_gone:
            return arguments.BROKEN_PIPE
        raise ExecutorError(f"cannot write the script's output: {relay.failed.strerror}")
    assert result is not None
    if request.html is not None:
        try:
            write_report(request.html, _html(request, result, skill, executor))
        except BadPathError as error:
            failures.append(error)
    return _report(request, result, failures, aside)


def _session(
    executor: AsyncExecutor, name: str | None, limits: Limits | None, say: Callable[[str], None]
) -> AsyncSession:
    """A fresh session; a named one has the files that it had when it was last used."""
    if name is not None:
        kept = executor.store.sessions.get(name)
        if kept is not None and kept.snapshot:
            say(f"session {name} goes on with its files")
    return executor.session(name, limits=limits, durable=name is not None)


async def _exec(
    request: RunRequest,
    session: AsyncSession,
    slug: str,
    env: dict[str, str],
    stdin: bytes | None,
    relay: Relay | None,
    settings: Settings,
) -> ExecResult:
    timeout = settings.timeout if request.timeout is None else request.timeout
    if relay is not None:
        relay.give_up_at = time.monotonic() + timeout + settings.grace
    return await session.exec(
        arguments.command(request.words),
        skill=slug,
        cwd=request.cwd,
        env=env,
        stdin=stdin,
        timeout=timeout,
        grant=arguments.grant(request),
        outputs=request.outputs,
        on_output=None if relay is None else relay.take,
    )


async def _relayed(run: Coroutine[Any, Any, ExecResult], relay: Relay | None) -> ExecResult | None:
    """The result, or None when the output cannot be written any more and the run was ended for it."""
    if relay is None:
        return await run
    running = asyncio.ensure_future(run)
    relay.on_failed = running.cancel
    try:
        return await running
    except asyncio.CancelledError:
        if relay.failed is not None:
            return None
        raise


async def _save(
    files: list[OutputFile], target: Path, overwrite: bool
) -> tuple[list[ExecutorError], list[Path]]:
    """Save what can be saved; the errors of the others, and the folders in which those are instead."""
    failures: list[ExecutorError] = []
    left: list[OutputFile] = []
    for file in files:
        try:
            await file.save(target, overwrite=overwrite)  # type: ignore[attr-defined]
        except ExecutorError as error:
            failures.append(error)
            left.append(file)
        except OSError as error:
            failures.append(BadPathError(f"cannot save {file.path!r} below {target}: {error.strerror}"))
            left.append(file)
    return failures, await _save_aside(left, target)


async def _save_aside(files: list[OutputFile], target: Path) -> list[Path]:
    """Save what the session will not have any more in a new folder below the target, and what cannot be saved
    there where temporary files go. The folders with something in them.
    """
    found: list[Path] = []
    for parent in (target, None):
        if not files:
            break
        try:
            folder = Path(tempfile.mkdtemp(prefix="unsaved-", dir=parent))
        except OSError:
            continue
        left: list[OutputFile] = []
        for file in files:
            try:
                await file.save(folder)  # type: ignore[attr-defined]
            except (ExecutorError, OSError):
                left.append(file)
        if len(left) < len(files):
            found.append(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        files = left
    return found


def _html(
    request: RunRequest, result: ExecResult, skill: Skill, executor: AsyncExecutor
) -> Callable[[], bytes]:
    from executor import __version__
    from executor.testing.report_html import html
    from executor.testing.results import of_one_run, this_machine

    environment = {"runtime": executor.why, **this_machine()}
    if executor.settings.image:
        environment["image"] = executor.settings.image
    report = of_one_run(
        result,
        skill=skill.slug,
        folder=str(skill.path),
        command=request.shown,
        environment=environment,
        version=__version__,
    )
    return partial(html, report)


def write_report(path: Path, make: Callable[[], bytes]) -> None:
    """Write a report. BadPathError when that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make())
    except OSError as error:
        raise BadPathError(f"cannot write the report {str(path)!r}: {error.strerror}") from error


def _report(request: RunRequest, result: ExecResult, failures: list[ExecutorError], aside: list[Path]) -> int:
    """Say how it went, and the exit status: the script's own failure counts more than one to save."""
    status = arguments.exit_status(result)
    if not result.files and result.status == "ok" and (request.save or request.outputs != ("out/**",)):
        result.warnings.append(f"no file matches {' '.join(request.outputs)}")
    if not request.quiet:
        for line, kind in _lines(request, result):
            console.say(line, kind=kind)
    if result.status == "lost":
        console.error("the sandbox was lost while the script ran", "; ".join(result.warnings))
    for error in failures:
        console.error(error.message)
    for hint in dict.fromkeys(error.hint for error in failures if error.hint):
        console.say(hint, kind="hint")
    for folder in aside:
        console.say(f"what could not be saved as it was asked is in {folder}", kind="hint")
    result.warnings.extend(f"not written: {error.message}" for error in failures)
    result.warnings.extend(f"saved in {folder} instead" for folder in aside)
    if request.json:
        console.out_json(result.model_dump())
    return status or (arguments.FAILED if failures else 0)


def _lines(request: RunRequest, result: ExecResult) -> list[tuple[str, str]]:
    """What there is to say of a run: (line, kind)."""
    lines = [(warning, "warning") for warning in result.warnings if result.status != "lost"]
    if result.timed_out:
        lines.append((f"timeout: the script was ended after {result.duration_ms / 1000:.1f} s", ""))
    elif result.status == "oom":
        lines.append(("out of memory: the kernel ended the script", ""))
    elif result.signal is not None:
        lines.append((f"the script was ended by {_signal_name(result.signal)}", ""))
    notes = {**LIMIT_NOTES, **(JSON_LIMIT_NOTES if request.json else {})}
    lines += [(notes[limit], "") for limit in result.limits_hit if limit in notes]
    if result.killed_descendants:
        count = result.killed_descendants
        lines.append((f"{plural(count, 'process')} that the script left behind {_was(count)} ended", ""))
    lines += [(line, "") for line in _file_lines(request, result.files)]
    return lines


def _file_lines(request: RunRequest, files: list[OutputFile]) -> list[str]:
    if not files:
        return []
    names = [printable_name(file.path) for file in files]
    sizes = [console.size(file.size) for file in files]
    lines = [plural(len(files), "file") + ":"]
    for file, name, size in zip(files, names, sizes, strict=True):
        line = f"  {name:{max(map(len, names))}}  {size:>{max(map(len, sizes))}}  {file.mime}"
        if file.saved_as is not None and request.save is not None:
            where = Path(file.saved_as)
            if where != request.save / file.path:
                line += f"  as {where}"
        lines.append(printable_name(line))
    if request.save is None:
        return lines
    saved = sum(Path(file.saved_as).is_relative_to(request.save) for file in files if file.saved_as)
    if saved:
        lines.append(f"{plural(saved, 'file')} saved below {request.save}")
    return lines


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _nothing(_text: str) -> None:
    """With --quiet."""
