"""Findings as text, JSON, GitHub workflow commands and SARIF 2.1.0. Pure: values in, text out.

Names and messages hold text from skills, which is hostile: it is escaped in each form.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from executor.skills.lint.rules import RULES, Finding, Severity
from executor.workspace.text import printable_name

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
GITHUB_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render(name: str, skills: Sequence[str], findings: Sequence[Finding], *, below: str = ".") -> str:
    """The findings in the format called `name`; paths are relative to `below` where they can be."""
    return FORMATS[name](skills, findings, below)


def shown_path(finding: Finding, below: str) -> str:
    """The file with forward slashes, relative to `below` if it lies there."""
    path = os.path.abspath(os.path.join(finding.skill, finding.path))
    base = os.path.abspath(below)
    inside = path == base or path.startswith(base + os.sep)
    return (os.path.relpath(path, base) if inside else path).replace(os.sep, "/")


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """How many of each severity."""
    counted = Counter(finding.rule.severity for finding in findings)
    return {severity.value: counted[severity] for severity in Severity}


def _text(_skills: Sequence[str], findings: Sequence[Finding], below: str) -> str:
    lines = []
    for finding in findings:
        rule = finding.rule
        place = f"{shown_path(finding, below)}:{finding.line}"
        lines.append(printable_name(f"{place}: {rule.severity.value} {rule.id}: {finding.message}"))
        mend = " (--fix does it)" if finding.fix else ""
        lines.append(f"    {rule.summary}. {rule.advice}{mend}")
    return "".join(line + "\n" for line in lines)


def _json(skills: Sequence[str], findings: Sequence[Finding], below: str) -> str:
    return (
        json.dumps(
            {
                "skills": [path.replace(os.sep, "/") for path in skills],
                "findings": [
                    {
                        "file": shown_path(finding, below),
                        "line": finding.line,
                        "rule": finding.rule.id,
                        "severity": finding.rule.severity.value,
                        "message": finding.message,
                        "summary": finding.rule.summary,
                        "advice": finding.rule.advice,
                        "fixable": finding.fix is not None,
                    }
                    for finding in findings
                ],
                "counts": counts(findings),
            },
            indent=2,
        )
        + "\n"
    )


def _github(_skills: Sequence[str], findings: Sequence[Finding], below: str) -> str:
    lines = []
    for finding in findings:
        rule = finding.rule
        place = f"file={_property(shown_path(finding, below))},line={finding.line},title={_property(rule.id)}"
        # `##[command]` is obeyed anywhere in a line.
        message = printable_name(f"{finding.message}. {rule.advice}").replace("##[", "#\\x23[")
        message = message.replace("%", "%25")
        lines.append(f"::{GITHUB_LEVELS[rule.severity]} {place}::{message}\n")
    return "".join(lines)


def _property(text: str) -> str:
    escaped = printable_name(text).replace("%", "%25")
    return escaped.replace(":", "%3A").replace(",", "%2C")


def _sarif(_skills: Sequence[str], findings: Sequence[Finding], below: str) -> str:
    rules: list[dict[str, Any]] = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.summary},
            "help": {"text": rule.advice},
            "defaultConfiguration": {"level": rule.severity.value},
        }
        for rule in RULES.values()
    ]
    index = {name: position for position, name in enumerate(RULES)}
    driver = {"name": "executor", "rules": rules}
    results = [
        {
            "ruleId": finding.rule.id,
            "ruleIndex": index[finding.rule.id],
            "level": finding.rule.severity.value,
            "message": {"text": printable_name(f"{finding.message}. {finding.rule.advice}")},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": _uri(shown_path(finding, below))},
                        "region": {"startLine": finding.line},
                    }
                }
            ],
        }
        for finding in findings
    ]
    log = {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}],
    }
    return json.dumps(log, indent=2) + "\n"


def _uri(path: str) -> str:
    return quote(os.fsencode(path)) if not path.startswith("/") else "file://" + quote(os.fsencode(path))


FORMATS: dict[str, Callable[[Sequence[str], Sequence[Finding], str], str]] = {
    "text": _text,
    "json": _json,
    "github": _github,
    "sarif": _sarif,
}
