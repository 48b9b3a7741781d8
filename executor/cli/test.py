"""`executor test`: runs the cases of skills, says how they went, writes the reports that were asked for.

Results go to stdout, progress and the executor's own words to stderr. What a script wrote is escaped, and
shown behind a bar, so that it can be neither a terminal's orders nor a CI system's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from executor.workspace.text import printable, printable_name

if TYPE_CHECKING:
    from executor.testing.cases import Instance
    from executor.testing.results import CaseResult, Report

EPILOG = """Exit status: 0 when every case passed or was skipped, 1 when one failed, 125 when the executor
itself failed: no case was found, a case file is wrong, no engine answers.

\b
Examples:
  executor test
  executor test sales-report -k 'totals and not slow' -v
  executor test ./skills -j 4 --runtime local,container --junit junit.xml --html report.html
  executor test --changed-since origin/main --github
  executor test sales-report --update"""

MAX_JOBS = 64
SHOWN_COMMAND = 200  # characters of a command
SHOWN_LINES = 20  # of a script's stdout or stderr below a failed case


@dataclass(frozen=True)
class TestRequest:
    """What `test` was asked to do, as it was written."""

    targets: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()
    changed_since: str | None = None
    jobs: int = 1
    runtimes: str | None = None
    image: str | None = None
    timeout: float | None = None
    retries: int = 0
    update: bool = False
    keep_failed: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    json: Path | None = None
    github: bool = False
    verbose: bool = False


def command(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SKILL|ROOT",
            help="Name or folder of a skill, or a folder with skills. [default: $SKILLS_ROOT, then ./skills]",
            show_default=False,
        ),
    ] = None,
    expression: Annotated[
        list[str] | None,
        typer.Option(
            "-k",
            metavar="EXPRESSION",
            help="Only cases whose `skill::name [runtime]` has these words; `and`, `or`, `not`, parentheses. "
            "Repeatable: any of them.",
            show_default=False,
        ),
    ] = None,
    changed_since: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Only skills in which files differ from this git revision.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", metavar="N", min=1, max=MAX_JOBS, help="Cases at a time.")
    ] = 1,
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]", help="On each of these runtimes. [default: auto]", show_default=False
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="As for `executor run`.", show_default=False),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="For cases that bring none. [default: 30]", show_default=False),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=10, help="Try failed cases again; marked as flaky if they pass."
        ),
    ] = 0,
    update: Annotated[
        bool, typer.Option("--update", help="Rewrite golden files that differ, where nothing else is wrong.")
    ] = False,
    keep_failed: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the workspaces of failed cases below DIR.", show_default=False
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report for a browser.", show_default=False)
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write everything as JSON.", show_default=False)
    ] = None,
    github: Annotated[bool, typer.Option("--github", help="Annotate the lines of failed cases.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for each case.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of case files and exit.")
    ] = False,
) -> Callable[[], int]:
    """Run the cases in the `tests/*.yaml` of skills."""
    if schema:
        return print_schema
    request = TestRequest(
        targets=tuple(targets or ()),
        expressions=tuple(expression or ()),
        changed_since=changed_since,
        jobs=jobs,
        runtimes=runtime,
        image=image,
        timeout=timeout,
        retries=retries,
        update=update,
        keep_failed=keep_failed,
        junit=junit,
        html=html,
        json=json,
        github=github,
        verbose=verbose,
    )
    return partial(run_tests, request)


def print_schema() -> int:
    """The JSON Schema of case files, on stdout."""
    from executor.testing import schema

    sys.stdout.write(schema.text())
    return 0


def run_tests(request: TestRequest) -> int:
    """The exit status. ExecutorError when nothing could be run."""
    from executor import __version__
    from executor.cli import console
    from executor.cli.signals import until_interrupted
    from executor.settings import load
    from executor.testing.runner import Plan, collect, run

    settings = load({"image": request.image})
    runtimes = _runtimes(request.runtimes, settings.runtime)
    skills = _skills(request.targets, settings.skills)
    instances, bare = collect(skills)
    for path in bare:
        console.say(f"{path.name} has no cases (tests/*.yaml)", kind="warning")
    chosen = _chosen(request, instances)
    if chosen is None:
        console.say(f"nothing has changed since {request.changed_since}")
        return 0
    plan = Plan(
        chosen,
        settings,
        version=__version__,
        runtimes=runtimes,
        jobs=request.jobs,
        timeout=request.timeout,
        retries=request.retries,
        update=request.update,
        keep_failed=request.keep_failed,
        previews=request.html is not None or request.json is not None,
    )
    with _Progress(len(chosen) * len(runtimes), verbose=request.verbose) as progress:
        reports: list[Report] = []

        async def whole() -> int:
            reports.append(await run(plan, progress.take))
            return reports[0].exit_status

        status = until_interrupted(whole())
    _write_reports(request, reports[0])
    _tell(request, reports[0])
    return status


# --- what to run --------------------------------------------------------------------------------------------


def _runtimes(text: str | None, default: str) -> tuple[str, ...]:
    from executor.errors import BadRequestError

    names = tuple(dict.fromkeys(name.strip() for name in (text or default).split(",")))
    for name in names:
        if name not in ("auto", "local", "container"):
            raise BadRequestError(
                f"--runtime {name!r} is no runtime", hint="Use local, container or auto, with commas between."
            )
    return names


def _skills(targets: Sequence[str], roots: Sequence[str]) -> list[Path]:
    """The folders of the skills that were named, each once."""
    from executor.skills.lint.folder import find
    from executor.skills.repository import Repository

    found: dict[Path, None] = {}
    for target in targets or [root for root in roots if os.path.isdir(root)] or roots:
        if os.path.isdir(target):
            found.update(dict.fromkeys(Path(os.path.realpath(skill.path)) for skill in find([target])))
        else:
            found[Repository(roots).find(target).path] = None
    return list(found)


def _chosen(request: TestRequest, instances: Sequence[Instance]) -> list[Instance] | None:
    """The cases that were asked for; None when no skill has changed."""
    from executor.errors import BadRequestError
    from executor.testing.changes import changed_files, touches
    from executor.testing.selection import compile_expression

    if not instances:
        raise BadRequestError(
            "there is no case in these skills", hint="Cases stand in tests/*.yaml of a skill; see docs/ci.md."
        )
    chosen = list(instances)
    if request.changed_since is not None:
        changed = changed_files(request.changed_since, {item.skill for item in instances})
        chosen = [item for item in chosen if touches(changed, [item.skill, *item.fixtures()])]
        if not chosen:
            return None
    if request.expressions:
        wanted = [compile_expression(text) for text in request.expressions]
        chosen = [item for item in chosen if any(meant(item.id) for meant in wanted)]
        if not chosen:
            raise BadRequestError(
                f"no case is meant by -k {' '.join(map(repr, request.expressions))}",
                hint=f"There are {len(instances)}, such as {instances[0].id!r}.",
            )
    return chosen


# --- what is said while it runs -----------------------------------------------------------------------------

_STYLES = {"passed": "green", "failed": "red", "error": "bold red", "skipped": "yellow"}


class _Progress:
    """A bar on a terminal; with `verbose` a line for each case; else nothing."""

    def __init__(self, total: int, *, verbose: bool) -> None:
        self._total = total
        self._verbose = verbose
        self._bar: Any = None
        self._task: Any = None
        self._bad = 0

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[bad]}", style="red", markup=False),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total, bad="")
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def take(self, result: CaseResult) -> None:
        """A case has ended."""
        self._bad += result.verdict in ("failed", "error")
        if self._bar is not None:
            bad = f"{self._bad} failed" if self._bad else ""
            self._bar.update(self._task, advance=1, bad=bad, description=printable_name(result.title)[:60])
        if self._verbose:
            _print_line(_case_line(result), self._bar)


def _case_line(result: CaseResult) -> str:
    note = " (flaky)" if result.flaky else f": {result.reason}" if result.verdict == "skipped" else ""
    return f"{result.verdict:7} {result.title} {result.duration_ms / 1000:.2f} s{note}"


def _print_line(text: str, bar: Any = None) -> None:
    """One line of ours on stdout, in which nothing is an order to a terminal or to a CI system."""
    from executor.testing.report_github import defused

    shown = defused(printable_name(text))
    if bar is not None and sys.stdout.isatty():
        from rich.text import Text

        word = shown.split(" ", 1)[0]
        line = Text(shown)
        line.stylize(_STYLES.get(word, ""), 0, len(word))
        bar.console.print(line, soft_wrap=True)
    else:
        print(shown, flush=True)


# --- what is said at the end --------------------------------------------------------------------------------


def _tell(request: TestRequest, report: Report) -> None:
    for result in report.results:
        if result.verdict in ("failed", "error"):
            _tell_failure(result)
    for result in report.results:
        for golden in result.updated:
            _print_line(f"updated {result.skill}/{golden}")
        if result.flaky:
            _print_line(f"flaky: {result.title} passed at attempt {result.attempts}")
    _tell_skills(report)
    for entry in report.coverage:
        if entry.not_run and not (request.expressions or request.changed_since):
            _print_line(f"{entry.skill}: no case runs {', '.join(entry.not_run)}")
    counts = report.counted()
    words = [
        f"{counts[name]} {name}" for name in ("passed", "failed", "error", "skipped", "flaky") if counts[name]
    ]
    machines = ", ".join(dict.fromkeys(result.runtime for result in report.results))
    _print_line(f"{', '.join(words)} on {machines} in {report.duration_ms / 1000:.1f} s")
    if request.github:
        from executor.testing.report_github import github

        sys.stdout.write(github(report))


def _tell_failure(result: CaseResult) -> None:
    _print_line(f"{result.verdict} {result.title}")
    _print_line(f"  {result.file}:{result.line}: {_first_line(result.command)}")
    for reason in result.reasons:
        _print_line(f"  - {reason}")
    for mismatch in result.mismatches:
        _print_block(printable(mismatch.diff))
    if result.result is not None:
        for name in ("stdout", "stderr"):
            text = getattr(result.result, name)
            if text.strip():
                _print_line(f"  {name}:")
                _print_block(_last_lines(printable(text)))
    if result.kept:
        _print_line(f"  kept in {result.kept}")


def _first_line(command: str) -> str:
    first, *more = command.rstrip("\n").split("\n")
    return first[:SHOWN_COMMAND] + (" ..." if more or len(first) > SHOWN_COMMAND else "")


def _last_lines(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    more = len(lines) - SHOWN_LINES
    return "\n".join([*([f"[{more:,} lines above]"] if more > 0 else []), *lines[-SHOWN_LINES:]])


def _print_block(text: str) -> None:
    """Text of a script, already printable: tabs stay, and the bar keeps a line from being a command."""
    from executor.testing.report_github import defused

    for line in text.split("\n") if text else ():
        print(f"  | {defused(line[:1000].rstrip(chr(13)))}")


def _tell_skills(report: Report) -> None:
    """A line for each skill and runtime."""
    groups: dict[str, list[CaseResult]] = {}
    for result in report.results:
        groups.setdefault(f"{result.skill} [{result.runtime}]", []).append(result)
    for title, results in groups.items():
        verdicts = [result.verdict for result in results]
        words = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
        _print_line(f"{title}: {words}")


def _write_reports(request: TestRequest, report: Report) -> None:
    from executor.cli.run import write_report

    for path, make in _reports(request, report):
        write_report(path, make)


def _reports(request: TestRequest, report: Report) -> Iterable[tuple[Path, Callable[[], bytes]]]:
    if request.junit is not None:
        from executor.testing.report_junit import junit

        yield request.junit, partial(junit, report)
    if request.json is not None:
        yield request.json, partial(_as_json, report)
    if request.html is not None:
        from executor.testing.report_html import html

        yield request.html, partial(html, report)


def _as_json(report: Report) -> bytes:
    """In ASCII, so that names that are not UTF-8 survive as escaped surrogates."""
    import json

    whole = report.model_dump()
    whole["counts"] = report.counted()
    return (json.dumps(whole, indent=1) + "\n").encode("ascii")
