"""`--keep-failed`: a folder with everything that the session of a failed case held.

stdout, stderr        of the run, as far as they were kept
case.json             the case's result: what was expected and what came
result.json           how the run ended
workspace/, skills/   the files, to look at
session.tar.gz        the session itself, for `executor sessions import` on any machine and runtime
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path

from executor.errors import ExecutorError
from executor.models import ExecResult, OutputLimits
from executor.session import AsyncSession
from executor.testing.results import CaseResult
from executor.workspace.checkpoint import Store

ARCHIVE = "session.tar.gz"
LOOKED_AT = OutputLimits(max_files=10_000, inline_bytes=0, max_total_bytes=0)
GLOBS = ("/workspace/**", "/skills/**")


async def keep(
    session: AsyncSession, store: Store, folder: Path, case: CaseResult, result: ExecResult
) -> Path:
    """Write a folder for the case below `folder`; returns where. What cannot be had of a session is left out,
    and the reason stands in the archive's place.
    """
    # Here, for most cases pass.
    from executor.workspace.archive import export_session

    target = _new(folder, f"{case.skill}--{case.name}--{case.runtime}")
    (target / "stdout").write_text(result.stdout, "utf-8", errors="replace")
    (target / "stderr").write_text(result.stderr, "utf-8", errors="replace")
    (target / "case.json").write_text(json.dumps(case.model_dump(exclude={"result"}), indent=2), "utf-8")
    (target / "result.json").write_text(json.dumps(result.model_dump(exclude={"files"}), indent=2), "utf-8")
    try:
        await session.checkpoint()
        await asyncio.to_thread(export_session, store, session.id, target / ARCHIVE)
    except ExecutorError as error:
        (target / f"{ARCHIVE}.missing").write_text(f"{error}\n", "utf-8")
    with contextlib.suppress(ExecutorError):
        for file in await session.collect(*GLOBS, limits=LOOKED_AT):
            with contextlib.suppress(ExecutorError, OSError):  # one bad name does not cost the others
                within = target if file.path.startswith("skills/") else target / "workspace"
                await file.save(within)
    return target


def _new(folder: Path, name: str) -> Path:
    """A folder that was not there before."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:120]
    number = 1
    while True:
        target = folder / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            target.mkdir(parents=True)
            return target
        number += 1
