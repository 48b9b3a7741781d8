"""`executor skills lint`: the findings on stdout, a summary on stderr, 1 when there are errors."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import typer

from executor.cli import options
from executor.workspace.text import plural

EPILOG = """Exit status: 0 when there is no error (with --strict: no warning either), 1 when there is one, 125
when nothing could be checked.

\b
Examples:
  executor skills lint
  executor skills lint sales-report
  executor skills lint ./skills ./my-skill --strict --ignore network
  executor skills lint --fix
  executor skills lint --format sarif > lint.sarif"""


class FormatChoice(enum.StrEnum):
    """Values of --format."""

    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"


def command(
    targets: options.Targets = None,
    skills: options.Skills = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended mechanically.")] = False,
    format_: Annotated[FormatChoice, typer.Option("--format", help="How findings are written.")] = (
        FormatChoice.text
    ),
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Leave a rule out; repeatable.", show_default=False),
    ] = None,
) -> Callable[[], int]:
    """Check skills: the specification's rules, and what breaks loaders, sandboxes and other machines."""
    return partial(
        run_lint,
        tuple(targets or ()),
        tuple(skills or ()),
        fix=fix,
        format_=format_.value,
        strict=strict,
        ignore=tuple(ignore or ()),
    )


def run_lint(
    targets: Sequence[str],
    roots: Sequence[str],
    *,
    fix: bool,
    format_: str,
    strict: bool,
    ignore: Sequence[str],
) -> int:
    """The exit status."""
    from executor.cli import arguments, console
    from executor.settings import load
    from executor.skills import lint

    settings = load({"skills": tuple(roots) or None})
    roots = arguments.skill_folders(targets, settings, changing="--fix" if fix else "")
    linted = lint.lint(roots, ignore=ignore)
    if fix:
        changed = 0
        for _round in range(3):  # one fault may hide another, such as CRLF a blank first line
            now = lint.fix(linted.findings)
            changed += now
            linted = lint.lint(roots, ignore=ignore)
            if not now:
                break
        console.say(f"fixed: {plural(changed, 'change')}")
    sys.stdout.write(lint.render(format_, linted.skills, linted.findings))
    counted = {
        severity: sum(finding.rule.severity == severity for finding in linted.findings)
        for severity in lint.Severity
    }
    words = ", ".join(plural(number, severity.value) for severity, number in counted.items() if number)
    console.say(f"{plural(len(linted.skills), 'skill')}: {words or 'nothing found'}")
    failing = counted[lint.Severity.ERROR] + (counted[lint.Severity.WARNING] if strict else 0)
    return 1 if failing else 0
