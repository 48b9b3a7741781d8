"""A session at its simplest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from executor import Executor, Session, SkillNotFoundError


def test_a_command_runs_and_its_output_comes_back(session: Session, runtime: str) -> None:
    result = session.exec("echo out; echo err >&2; exit 7")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == ("error", 7, "out\n", "err\n")
    assert (result.runtime, result.session_id) == (runtime, session.id)


def test_one_root_is_as_good_as_a_list_of_one(executor: Executor, skills_root: Path) -> None:
    """A text is a root, and not one for each of its letters."""
    for root in (skills_root, str(skills_root)):
        with Executor(skills=root, settings=executor.settings) as made, made.session() as session:
            assert session.exec("pwd", skill="log-digest").stdout == "/skills/log-digest\n"
            with pytest.raises(SkillNotFoundError, match=re.escape(f"in {skills_root}") + r"\n"):
                session.load("no-such-skill")
