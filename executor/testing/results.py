"""What came of a test run: the values that the terminal and every report are made of.

All text in them that a script wrote, or that names a file of its, is hostile and stands as it came.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from executor.models import ExecResult
from executor.testing.expect import Mismatch

Verdict = Literal["passed", "failed", "error", "skipped"]


class CaseResult(BaseModel):
    """One case on one runtime."""

    id: str
    """`sales-report::totals by region`."""
    skill: str
    name: str
    runtime: str
    file: str
    """Of the case, relative to where the command was given if it lies there."""
    line: int
    command: str
    verdict: Verdict
    """`error`: the executor failed, so nothing is known of the script."""
    reason: str = ""
    """Why it was skipped, or what the executor said."""
    mismatches: list[Mismatch] = []
    attempts: int = 0
    flaky: bool = False
    """It failed first and passed later."""
    duration_ms: int = 0
    """Of the last attempt, with starting the sandbox and comparing."""
    result: ExecResult | None = None
    """Of the last attempt; long output and large files are cut to what a report can show."""
    kept: str = ""
    """Folder with everything that the session held, when it was kept."""
    updated: list[str] = []
    """Golden files that were rewritten."""

    @property
    def title(self) -> str:
        """With the runtime: `sales-report::totals by region [local]`."""
        return f"{self.id} [{self.runtime}]"

    @property
    def reasons(self) -> list[str]:
        """Why it did not pass, one sentence each. Every report shows these."""
        if self.verdict == "failed":
            return [mismatch.reason for mismatch in self.mismatches]
        return [self.reason] if self.reason else []


class Coverage(BaseModel):
    """Which scripts of a skill its cases run. Found by reading commands and scripts, not by watching."""

    skill: str
    run: list[str] = []
    """Named by a command of a case."""
    reached: list[str] = []
    """Named by a script that is run: imported, sourced or called."""
    not_run: list[str] = []


class Report(BaseModel):
    """Everything."""

    version: str
    """Of the executor."""
    started: str
    """ISO 8601, UTC."""
    duration_ms: int = 0
    jobs: int = 1
    environment: dict[str, str] = {}
    """Runtimes with why they were chosen, images, Python, platform."""
    results: list[CaseResult] = []
    coverage: list[Coverage] = []

    def counted(self) -> dict[str, int]:
        """How many of each verdict, and how many of the passed ones are flaky."""
        counts = {"passed": 0, "failed": 0, "error": 0, "skipped": 0, "flaky": 0}
        for result in self.results:
            counts[result.verdict] += 1
            counts["flaky"] += result.flaky
        return counts

    @property
    def exit_status(self) -> int:
        """0 when all passed or were skipped, 1 when one failed, 125 when the executor itself failed."""
        verdicts = {result.verdict for result in self.results}
        return 125 if "error" in verdicts else 1 if "failed" in verdicts else 0
