"""What `executor test` says: a bar or a line for each case, failures with their reasons, the sum.

Results go to stdout, progress and the executor's own words to stderr. What a script wrote is escaped, and
shown behind a bar, so that it can be neither a terminal's orders nor a CI system's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from executor.testing.report_github import defused, github
from executor.workspace.text import printable, printable_name

if TYPE_CHECKING:
    from executor.testing.results import CaseResult, Report

SHOWN_COMMAND = 200  # characters of a command
SHOWN_LINES = 20  # of a script's stdout or stderr below a failed case

_STYLES = {"passed": "green", "failed": "red", "error": "bold red", "skipped": "yellow"}


class Progress:
    """A bar on a terminal; with `verbose` a line for each case; else nothing."""

    def __init__(self, total: int, *, verbose: bool) -> None:
        self._total = total
        self._verbose = verbose
        self._bar: Any = None
        self._task: Any = None
        self._bad = 0

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (
                progress.BarColumn(bar_width=30),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[bad]}", style="red", markup=False),
                progress.TextColumn("{task.description}", markup=False),
                progress.TimeElapsedColumn(),
            )
            self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
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


def tell(report: Report, *, coverage: bool = True, annotations: bool = False) -> None:
    """Failures with their reasons, a line for each skill, and the sum; `annotations` are GitHub's."""
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
        if entry.not_run and coverage:
            _print_line(f"{entry.skill}: no case runs {', '.join(entry.not_run)}")
    counts = report.counted()
    words = [
        f"{counts[name]} {name}" for name in ("passed", "failed", "error", "skipped", "flaky") if counts[name]
    ]
    machines = ", ".join(dict.fromkeys(result.runtime for result in report.results))
    _print_line(f"{', '.join(words)} on {machines} in {report.duration_ms / 1000:.1f} s")
    if annotations:
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
        for warning in result.result.warnings:
            _print_line(f"  warning: {warning}")
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
