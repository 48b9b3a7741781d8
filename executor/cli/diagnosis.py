"""`executor doctor`: the report of `executor.doctor` as a table or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from executor.cli import console, options
from executor.cli.signals import until_interrupted

if TYPE_CHECKING:
    from executor.doctor import Report, Trial

EPILOG = """Exit status: 0 when at least one runtime works, else 1.

\b
Examples:
  executor doctor
  executor doctor --json
  executor doctor --reap"""


def command(
    json: options.Json = False,
    reap: Annotated[
        bool,
        typer.Option(
            "--reap", help="First remove what dead executors of this machine left: containers, cgroups."
        ),
    ] = False,
) -> Callable[[], int]:
    """Check this machine and run something in every runtime that works."""

    return partial(diagnose, json=json, reap=reap)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", epilog=EPILOG)(command)


def diagnose(*, json: bool, reap: bool = False) -> int:
    """0 when at least one runtime works, else 1. `reap`: first remove what dead executors left."""
    return until_interrupted(_diagnose(json, reap))


async def _diagnose(json: bool, reap: bool) -> int:
    from executor.doctor import examine, reaped
    from executor.settings import load

    settings = load()
    removed = await reaped(settings) if reap else {}
    report = await examine(settings)
    if json:
        found = {**asdict(report), "works": report.works}
        console.out_json({**found, "reaped": removed} if reap else found)
    else:
        _show(report)
        for runtime, names in removed.items():
            console.out(f"\nremoved from {runtime}: {', '.join(names) or 'nothing'}")
    return 0 if report.works else 1


def _show(report: Report) -> None:
    rows: list[tuple[str, str, str]] = [(check.name, check.state, check.detail) for check in report.checks]
    rows += [(f"{trial.runtime} run", *_trial(trial)) for trial in report.trials]
    console.table(("CHECK", "STATE", "FOUND"), rows)
    steps = [(check.name, check.hint) for check in report.checks if check.state != "ok" and check.hint]
    known = {hint for _, hint in steps}
    steps += [(f"{t.runtime} run", t.hint) for t in report.trials if t.hint and t.hint not in known]
    if steps:
        console.out("\nnext steps:")
        for name, hint in steps:
            console.out(f"  {name}: {hint}")
    console.out(f"\nauto chooses {report.why}" if report.auto else f"\nno runtime works: {report.why}")


def _trial(trial: Trial) -> tuple[str, str]:
    """(state, what happened) of a real run."""
    if trial.problem:
        return "fail", trial.problem
    parts = [f"start {trial.start_ms} ms, true {trial.true_ms} ms"]
    parts += [f"{name}: {said}" for name, said in trial.interpreters.items()]
    well = trial.works and not trial.warnings and all(said == "ok" for said in trial.interpreters.values())
    state = "ok" if well else "warn" if trial.works else "fail"
    return state, "; ".join([", ".join([parts[0], *parts[1:]]), *trial.warnings])
