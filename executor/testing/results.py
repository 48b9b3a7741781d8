"""What came of a test run: the values that the terminal and every report are made of.

All text in them that a script wrote, or that names a file of its, is hostile and stands as it came.
"""

from __future__ import annotations

import platform
from datetime import UTC, datetime, timedelta
from typing import Literal

from pydantic import BaseModel

from executor.bridge.scripts import ScriptResult
from executor.models import ExecResult, OutputFile
from executor.testing.matching import Mismatch
from executor.workspace import text

SHOWN_OUTPUT = 64 << 10  # bytes of stdout and of stderr in a report
SHOWN_FILE = 256 << 10  # a larger file is in a report without its content
SHOWN_FILES = 2 << 20  # content of all files of one case together

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
    """0 for what stands in no file."""
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
    result: ScriptResult | ExecResult | None = None
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

    title: str = "Skill tests"
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


def of_one_run(
    result: ExecResult, *, skill: str, folder: str, command: str, environment: dict[str, str], version: str
) -> Report:
    """The report of a run that was no test: it passed when its exit status is 0."""
    verdict: Verdict = "error" if result.status == "lost" else "passed" if result.ok else "failed"
    bad = [Mismatch(where="exit", expected="0", got=ending(result))]
    case = CaseResult(
        id=f"{skill}::{command}",
        skill=skill,
        name=command.split("\n", 1)[0],
        runtime=result.runtime,
        file=folder,
        line=0,
        command=command,
        verdict=verdict,
        reason="the sandbox was lost: " + "; ".join(result.warnings) if verdict == "error" else "",
        mismatches=bad if verdict == "failed" else [],
        attempts=1,
        duration_ms=result.duration_ms,
        result=for_report(result, previews=True),
    )
    return Report(
        title=f"A run of {skill}",
        version=version,
        started=(datetime.now(UTC) - timedelta(milliseconds=result.duration_ms)).isoformat(
            timespec="seconds"
        ),
        duration_ms=result.duration_ms,
        environment=environment,
        results=[case],
    )


def this_machine() -> dict[str, str]:
    """What a report says of this machine."""
    return {"python": platform.python_version(), "platform": platform.platform(terse=True)}


def ending(result: ExecResult) -> str:
    """How a run ended, in a few words: `4`, `124 (timeout)`."""
    code = "no exit status" if result.exit_code is None else str(result.exit_code)
    said = {"ok": "", "error": f" (signal {result.signal})" if result.signal else ""}
    return code + said.get(result.status, f" ({result.status})")


def for_report(result: ExecResult, *, previews: bool) -> ExecResult:
    """A copy with what a report can show; without `previews` no file has its content."""
    made = type(result).model_validate(result.model_dump(exclude={"files"}))
    for name in ("stdout", "stderr"):
        raw = getattr(result, name).encode("utf-8", "replace")
        shown, cut = text.clip(raw, raw, len(raw), SHOWN_OUTPUT)
        setattr(made, name, shown)
        setattr(made, f"{name}_truncated", cut or getattr(result, f"{name}_truncated"))
    room = SHOWN_FILES if previews else 0
    for file in result.files:
        kept = OutputFile.model_validate(file.model_dump())
        if kept.content is not None and (kept.size > SHOWN_FILE or kept.size > room):
            kept.content, kept.truncated = None, True
        elif kept.content is not None:
            room -= kept.size
        made.files.append(kept)
    return made
