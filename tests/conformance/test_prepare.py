"""A workspace that is prepared: files, skills and commands, each done once and checked.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from executor import BadRequestError, Executor, LoadStep, PutStep, RunStep, SandboxError, Session
from executor.tools import Options, SyncSkillToolset

COUNT = "echo x >> work/count"


@pytest.fixture(scope="module")
def session(shared: Session) -> Session:
    return shared


def count(session: Session) -> int:
    return (session.stat("work/count") is not None and session.read("work/count").count(b"x")) or 0


@pytest.fixture(autouse=True)
def _fresh(session: Session) -> None:
    session.remove("work")


def test_files_then_skills_then_commands(session: Session) -> None:
    """trpc-1.8.3, trpc-1.8.6, trpc-28"""
    order = "ls inputs/one.txt inputs/two.txt skills/log-digest/SKILL.md >> work/seen"
    steps = [
        RunStep(order, key="order"),
        PutStep("inputs/one.txt", "1", key="order-1"),
        LoadStep("log-digest"),
        PutStep("inputs/two.txt", source="skill://log-digest/SKILL.md", key="order-2"),
        RunStep("cat work/seen", key="after"),
        PutStep("inputs/one.txt", "never", key="order-1"),
    ]
    assert session.prepare(steps) == []
    assert session.read("work/seen").split() == [
        b"inputs/one.txt",
        b"inputs/two.txt",
        b"skills/log-digest/SKILL.md",
    ]
    assert session.read("inputs/one.txt") == b"1"  # of two steps with one key the first counts
    assert session.prepare(steps) == []
    assert len(session.read("work/seen").split()) == 3


def test_a_step_is_done_again_when_it_or_what_it_left_changed(session: Session) -> None:
    """trpc-1.8.4, trpc-30"""
    step = RunStep(COUNT, key="again", marker="work/done", observed=("work/count",))
    for _ in range(3):
        session.prepare([step])
    assert count(session) == 1
    session.remove("work/done")
    session.prepare([step])
    assert count(session) == 2
    session.exec("rm work/count")
    session.prepare([step])
    assert count(session) == 1
    session.prepare([RunStep(COUNT, key="again", marker="work/done", salt="2")])
    assert count(session) == 2
    # What a script writes counts for nothing: the record is on the host.
    session.exec("echo forged > work/other-done")
    session.prepare([RunStep(COUNT, key="other", marker="work/other-done")])
    assert count(session) == 3
    # Another process has no record, and does it once more.
    step = RunStep(COUNT, key="other", marker="work/other-done")
    session._inner.attached.pop("prepared")
    session.prepare([step])
    session.prepare([step])
    assert count(session) == 4
    file = PutStep("work/file", "a", executable=True)
    session.prepare([file])
    session.exec("echo changed > work/file")
    session.prepare([file])
    assert session.read("work/file") == b"changed\n"  # it is there, and the step says the same
    session.prepare([PutStep("work/file", "b")])
    assert session.read("work/file") == b"b"


def test_many_at_once_do_each_step_once(session: Session) -> None:
    """trpc-29"""
    with ThreadPoolExecutor(8) as pool:
        step = RunStep(f"sleep 0.2; {COUNT}", key="once")
        assert list(pool.map(lambda _: session.prepare([step]), range(8))) == [[]] * 8
    assert count(session) == 1


def test_an_optional_step_warns_and_another_one_stops(executor: Executor, session: Session) -> None:
    """trpc-31, trpc-1.8.7"""
    failing = "python3 -c \"import sys; sys.exit('no luck' + '!' * 2000)\""
    (warning,) = session.prepare([RunStep(failing, optional=True, key="try"), RunStep(COUNT, key="then")])
    assert warning.startswith("try was not done: error, exit 1: no luck!!") and len(warning) < 600
    assert count(session) == 1
    with pytest.raises(SandboxError, match="not prepared: must: error, exit 1: no luck") as raised:
        session.prepare([RunStep(failing, key="must"), RunStep(COUNT, key="never")])
    assert len(raised.value.message) < 620 and count(session) == 1
    # Through the tools: the warning comes with the next result, a failure instead of it.
    tools = SyncSkillToolset(
        executor,
        session=session,
        state=":memory:",
        artifacts=False,
        options=Options(prepare=(RunStep(failing, optional=True, key="try"), PutStep("work/a", "a"))),
    )
    result = tools.call("workspace_exec", {"command": "cat work/a"})
    assert result.structured["stdout"] == "a" and "warning: try was not done" in result.text
    tools = SyncSkillToolset(
        executor,
        session=session,
        state=":memory:",
        artifacts=False,
        options=Options(prepare=(RunStep(failing, key="must"),)),
    )
    result = tools.call("workspace_exec", {"command": COUNT})
    assert result.is_error and "no luck" in result.text and count(session) == 1


def test_what_is_no_step_is_refused(session: Session, tmp_path: Path) -> None:
    for wrong in ("true", PutStep("work/x"), PutStep("work/x", "a", source="workspace://work/y")):
        with pytest.raises(BadRequestError):
            session.prepare([wrong])  # type: ignore[list-item]
    with pytest.raises(SandboxError, match="operator"):
        session.prepare([PutStep("work/x", source=f"host://{tmp_path}")])
