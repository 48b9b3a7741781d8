"""`executor skills lint`: the findings on stdout, a summary on stderr, 1 when there are errors."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import typer

EPILOG = """Exit status: 0 when there is no error (with --strict: no warning either), 1 when there is one, 125
when nothing could be checked.

\b
Examples:
  executor skills lint
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
    roots: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROOT",
            help="A folder with skills below it, or one skill's. [default: $SKILLS_ROOT, then ./skills]",
            show_default=False,
        ),
    ] = None,
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
        tuple(roots or ()),
        fix=fix,
        format_=format_.value,
        strict=strict,
        ignore=tuple(ignore or ()),
    )


def run_lint(roots: Sequence[str], *, fix: bool, format_: str, strict: bool, ignore: Sequence[str]) -> int:
    """The exit status."""
    from executor.cli import console
    from executor.settings import load
    from executor.skills import lint

    roots = roots or load().skills
    linted = lint.lint(roots, ignore=ignore)
    if fix:
        changed = 0
        for _round in range(3):  # one fault may hide another, such as CRLF a blank first line
            now = lint.fix(linted.findings)
            changed += now
            linted = lint.lint(roots, ignore=ignore)
            if not now:
                break
        console.say(f"fixed: {changed} {'change' if changed == 1 else 'changes'}")
    sys.stdout.write(lint.render(format_, linted.skills, linted.findings))
    counted = {
        severity: sum(finding.rule.severity == severity for finding in linted.findings)
        for severity in lint.Severity
    }
    words = ", ".join(
        f"{number} {severity.value}{'' if number == 1 else 's'}"
        for severity, number in counted.items()
        if number
    )
    skills = f"{len(linted.skills)} {'skill' if len(linted.skills) == 1 else 'skills'}"
    console.say(f"{skills}: {words or 'nothing found'}")
    failing = counted[lint.Severity.ERROR] + (counted[lint.Severity.WARNING] if strict else 0)
    return 1 if failing else 0
