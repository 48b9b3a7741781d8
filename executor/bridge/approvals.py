"""Who is asked before a tool runs, what they see, and what they answer.

A decision is bound to one call of one run (its tool, its input, the script) and counts once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class PolicyRequest:
    """A call that is about to be made, as a policy sees it. `input` fits the tool's schema."""

    run_id: str
    session_id: str
    call_id: str
    user: str
    skill: str | None
    skill_digest: str
    script: str
    tool: str
    read_only: bool
    input: Any


@dataclass(frozen=True)
class ApprovalRequest:
    """A call that waits for a person. `input` fits the tool's schema; its text is the script's."""

    run_id: str
    session_id: str
    call_id: str
    user: str
    skill: str | None
    script: str
    tool: str
    input: Any
    reason: str
    """Why it is asked: `the tool needs approval` or `the policy asks`."""
    digest: str
    """SHA-256 over tool, input, skill digest and script: what the decision is about."""


@dataclass(frozen=True)
class Decision:
    """What a person said."""

    allow: bool
    by: str = ""
    reason: str = ""
    """Told to the script when it is a no."""


Approver = Callable[[ApprovalRequest], Awaitable["bool | Decision"]] | Literal["suspend"]


def request_digest(tool: str, value: Any, skill_digest: str, script: str) -> str:
    """What identifies a request: the same tool, input and script give the same."""
    text = json.dumps([tool, value, skill_digest, script], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def decision(answer: object) -> Decision:
    """An approver's answer; everything that is not plainly a yes is a no."""
    return answer if isinstance(answer, Decision) else Decision(answer is True)
