"""What is known of a skill before it is loaded, and whether it is still the same catalogue.

A filter sees a `Summary` and whatever the application says of the request. It is asked anew every time, fails
closed, and what it hides is as unknown as what does not exist.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from executor.skills.document import Value
from executor.skills.repository import Skill

_SKILL = re.compile(r"Skill\(([^()]+)\)")

log = logging.getLogger("executor.skills")


@dataclass(frozen=True)
class Summary:
    """A skill without its text."""

    name: str
    """Its slug: what a model calls it."""
    title: str
    """What its author calls it."""
    description: str
    compatibility: str = ""
    license: str = ""
    allowed_tools: tuple[str, ...] = ()
    metadata: Mapping[str, Value] = field(default_factory=dict, hash=False)
    source: str = ""
    """Where it comes from, for people."""


Filter = Callable[[Any, Summary], bool]
"""`filter(context, summary)`: whether a skill exists for this request."""


def summary(skill: Skill) -> Summary:
    """What is known of a skill."""
    document = skill.document
    return Summary(
        name=skill.slug,
        title=document.name,
        description=document.description,
        compatibility=document.compatibility,
        license=document.license,
        allowed_tools=document.allowed_tools,
        metadata=document.metadata,
        source=skill.origin or str(skill.place),
    )


def seen(skills: Iterable[Skill], chosen: Filter | None, context: Any) -> list[Skill]:
    """The skills that a filter lets through. One that it fails on is hidden, and that is logged."""
    if chosen is None:
        return list(skills)
    found = []
    for skill in skills:
        try:
            if chosen(context, summary(skill)):
                found.append(skill)
        except Exception:
            log.exception("the filter failed, so the skill %r is hidden", skill.slug)
    return found


def brought(skills: Iterable[Skill]) -> dict[str, list[str]]:
    """Skill → the skills that bring it: whose `allowed-tools` name it as `Skill(name)`.

    What only skills bring that nothing leads to, as in a circle, counts as brought by none.
    """
    by_slug = {skill.slug: skill for skill in skills}
    below: dict[str, list[str]] = {}
    for slug, skill in by_slug.items():
        named = [match[1].strip() for match in map(_SKILL.fullmatch, skill.document.allowed_tools) if match]
        below[slug] = [name for name in named if name in by_slug and name != slug]
    found: dict[str, list[str]] = {}
    for slug, names in below.items():
        for name in names:
            found.setdefault(name, []).append(slug)
    reached = [slug for slug in by_slug if slug not in found]
    for slug in reached:  # grows while it is gone through
        reached += [name for name in below[slug] if name not in reached]
    return {slug: bringing for slug, bringing in found.items() if slug in reached}


def fingerprint(skills: Iterable[Skill]) -> str:
    """SHA-256 of the catalogue: names, descriptions and texts in order, whatever the place and the time.

    It costs nothing but hashing what was read anyway. `Repository.fingerprint` covers every file.
    """
    whole = hashlib.sha256()
    for skill in skills:
        document = skill.document
        for part in (skill.slug, document.name, document.description, document.body):
            data = part.encode("utf-8", "surrogatepass")
            whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()
