"""A report as GitHub workflow commands: one annotation at the line of each case that did not pass.

A name or a message cannot end a command or begin another: what ends a line or parts a property is escaped.
"""

from __future__ import annotations

from executor.testing.results import Report
from executor.workspace.text import printable_name

LEVELS = {"failed": "error", "error": "error"}
MAX_MESSAGE = 4000  # characters; GitHub cuts at 64 KB a step


def github(report: Report) -> str:
    """The commands, a line each; '' when all passed."""
    lines = []
    for result in report.results:
        level = LEVELS.get(result.verdict, "warning" if result.flaky else "")
        if not level:
            continue
        reasons = result.reasons if level == "error" else [f"flaky: passed at attempt {result.attempts}"]
        place = f"file={_property(result.file)},line={result.line},title={_property(result.title)}"
        lines.append(f"::{level} {place}::{_message('; '.join(reasons))}\n")
    return "".join(lines)


def defused(text: str) -> str:
    """Text that a CI system may see in a log: `##[command]` is obeyed anywhere in a line."""
    return text.replace("##[", "#\\x23[")


def _message(text: str) -> str:
    text = text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 3] + "..."
    return defused(printable_name(text)).replace("%", "%25")


def _property(text: str) -> str:
    return defused(printable_name(text)).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
