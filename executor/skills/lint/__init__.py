"""Lint for skills: the specification's rules, and what breaks other loaders, sandboxes and machines.

    rules.py     the table of rules; what a finding and a fix are
    folder.py    a skill's folder: what is in it, read without following links
    front.py     the front matter with line numbers
    text.py      rules about SKILL.md
    tree.py      rules about the folder
    scripts.py   rules about scripts; skills/packages.py has the names that it needs
    fixes.py     the mechanical repairs
    formats.py   findings as text, JSON, GitHub annotations and SARIF

Nothing of a skill is run or imported, and nothing is changed but by `fix`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from executor.errors import BadRequestError
from executor.skills.lint import fixes, scripts, text, tree
from executor.skills.lint.folder import find
from executor.skills.lint.formats import FORMATS, render
from executor.skills.lint.rules import RULES, Finding, Fix, Rule, Severity

__all__ = ["FORMATS", "RULES", "Finding", "Fix", "Linted", "Rule", "Severity", "fix", "lint", "render"]


@dataclass(frozen=True)
class Linted:
    """What was looked at and what was found."""

    skills: tuple[str, ...]
    """Folders, as the roots were written."""
    findings: tuple[Finding, ...]
    """Sorted by file and line."""


def lint(roots: Sequence[str], *, ignore: Collection[str] = ()) -> Linted:
    """Every finding in the skills in or below the roots, but those of the rules in `ignore`.

    BadPathError for a root that does not exist, SkillNotFoundError when there is no skill at all,
    BadRequestError for an unknown rule.
    """
    for rule in ignore:
        if rule not in RULES:
            raise BadRequestError(f"there is no rule {rule!r}", hint="docs/ci.md lists them.")
    skills = find(roots)
    found: list[Finding] = []
    for skill in skills:
        for check in (tree.check, text.check, scripts.check):
            found += check(skill)
    found += tree.same_names(skills)
    kept = [finding for finding in found if finding.rule.id not in ignore]
    order = list(RULES)
    kept.sort(key=lambda item: (item.skill, item.path, item.line, order.index(item.rule.id), item.message))
    return Linted(tuple(skill.path for skill in skills), tuple(kept))


def fix(findings: Sequence[Finding]) -> int:
    """Carry out the fixes that the findings bring; how many files changed. BadPathError."""
    return fixes.apply(
        (os.path.join(os.path.realpath(finding.skill), finding.path), finding) for finding in findings
    )
