"""`executor test`: runs the cases of skills, says how they went, writes the reports that were asked for.
What is said of it is in `results.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from executor.cli import options

if TYPE_CHECKING:
    from executor.settings import Settings
    from executor.testing.cases import Instance
    from executor.testing.results import Report

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


@dataclass(frozen=True)
class TestRequest:
    """What `test` was asked to do, as it was written."""

    targets: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
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
    targets: options.Targets = None,
    skills: options.Skills = None,
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
        skills=tuple(skills or ()),
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


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("test", epilog=EPILOG)(command)


def print_schema() -> int:
    """The JSON Schema of case files, on stdout."""
    from executor.testing import schema

    sys.stdout.write(schema.text())
    return 0


def run_tests(request: TestRequest) -> int:
    """The exit status. ExecutorError when nothing could be run."""
    from executor import __version__
    from executor.cli import arguments, console
    from executor.cli.results import Progress, tell
    from executor.cli.signals import until_interrupted
    from executor.settings import load
    from executor.testing.runner import Plan, collect, run

    arguments.check_writable("--keep-failed", request.keep_failed)
    for option, path in (("--junit", request.junit), ("--html", request.html), ("--json", request.json)):
        arguments.check_writable(option, path, is_file=True)
    settings = load({"image": request.image, "skills": request.skills or None})
    runtimes = _runtimes(request.runtimes, settings.runtime)
    skills = _skills(request, settings)
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
    with Progress(len(chosen) * len(runtimes), verbose=request.verbose) as progress:
        reports: list[Report] = []

        async def whole() -> int:
            reports.append(await run(plan, progress.take))
            return reports[0].exit_status

        status = until_interrupted(whole())
    try:
        _write_reports(request, reports[0])
    finally:
        tell(
            reports[0],
            coverage=not (request.expressions or request.changed_since),
            annotations=request.github,
        )
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


def _skills(request: TestRequest, settings: Settings) -> list[Path]:
    """The folders of the skills that were named, each once."""
    from executor.cli import arguments
    from executor.skills.lint.folder import find

    changing = "--update" if request.update else ""
    folders = arguments.skill_folders(request.targets, settings, changing=changing)
    found = [Path(os.path.realpath(skill.path)) for folder in folders for skill in find([folder])]
    return list(dict.fromkeys(found))


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


# --- reports ---------------------------------------------------------------------------------------------


def _write_reports(request: TestRequest, report: Report) -> None:
    """All that can be written. The first error of the others."""
    from executor.cli.run import write_report
    from executor.errors import BadPathError

    failures: list[BadPathError] = []
    for path, make in _reports(request, report):
        try:
            write_report(path, make)
        except BadPathError as error:
            failures.append(error)
    if failures:
        raise failures[0]


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
