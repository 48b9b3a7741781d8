"""A session at its simplest."""

from __future__ import annotations

from executor import Session


def test_a_command_runs_and_its_output_comes_back(session: Session, runtime: str) -> None:
    result = session.exec("echo out; echo err >&2; exit 7")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == ("error", 7, "out\n", "err\n")
    assert (result.runtime, result.session_id) == (runtime, session.id)
