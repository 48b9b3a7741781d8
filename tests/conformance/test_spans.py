"""Spans of OpenTelemetry, as an SDK in this process records them.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from executor import BadRequestError, Executor, Grant, tool
from executor.spans import SPANS
from executor.tools import SyncSkillToolset

SECRETS = ("hunter2", "stdin-secret", "file-secret", "printed-secret", "argument-secret", "answer-secret")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What a provider of this test's own gets to see."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def named(exporter: InMemorySpanExporter, name: str) -> list[dict[str, object]]:
    return [dict(span.attributes or {}) for span in exporter.get_finished_spans() if span.name == name]


def parents(exporter: InMemorySpanExporter) -> set[tuple[str, str]]:
    """Pairs of a span and the one that it is below, by name."""
    spans: list[ReadableSpan] = list(exporter.get_finished_spans())
    names = {span.context.span_id: span.name for span in spans if span.context}
    return {(span.name, names.get(span.parent.span_id, "?")) for span in spans if span.parent}


@tool
def look_up(key: str) -> str:
    """Look a key up."""
    return f"answer-secret {key}"


def test_a_sessions_spans_say_what_was_done_and_nothing_secret(
    executor: Executor, recorded: InMemorySpanExporter, tmp_path: Path
) -> None:
    """trpc-1.13.6"""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("file-secret")
    with executor.session() as session:
        session.put("inputs/b.txt", "file-secret")
        session.put("inputs/in", tmp_path / "in")
        session.load("log-digest")
        session.exec(
            ["sh", "-c", "cat; echo printed-secret argument-secret; exit 3"],
            cwd="work",
            env={"PASSWORD": "hunter2"},
            stdin="stdin-secret",
        )
        session.exec("sleep 30 # argument-secret", timeout=0.2)
        session.put("work/s/SKILL.md", "x")
        code = "print(await look_up(key='argument-secret'))"
        session.execute_code(code, grant=Grant(tools=[look_up]))
        session.script("log-digest", "scripts/digest.sh", input={"token": "hunter2"})
        session.exec("echo x > out/x; echo y > out/y", outputs=["out/*", "work/*.none"])
        with pytest.raises(BadRequestError):
            session.exec([])
        about = {"exec_id": session.id}

    assert named(recorded, "workspace.create") == [
        {**about, "runtime": session.runtime, "path": "/workspace"}
    ]
    assert named(recorded, "workspace.cleanup") == [{**about, "path": "/workspace"}]
    assert {**about, "to": "inputs/b.txt", "count": 1} in named(recorded, "workspace.stage.files")
    staged = {one["to"]: one for one in named(recorded, "workspace.stage.dir")}
    assert staged["inputs/in"]["host_path"] == str(tmp_path / "in")
    assert staged["/skills/log-digest"]["mount_used"] is False
    (load, *_) = named(recorded, "skill.load")
    assert (load["skill"], len(str(load["digest"]))) == ("log-digest", 64)
    failed, late, *_ = named(recorded, "workspace.run")
    assert (failed["cmd"], failed["cwd"], failed["status"]) == ("sh", "/workspace/work", "error")
    assert (failed["exit_code"], failed["timed_out"]) == (3, False)
    assert (late["cmd"], late["status"], late["exit_code"], late["timed_out"]) == ("sh", "timeout", 124, True)
    (inline,) = named(recorded, "workspace.inline")
    assert (inline["language"], inline["status"]) == ("python", "ok")
    (call,) = [one for one in named(recorded, "skill.tool_call") if one["method"] == "tool.call"]
    assert (call["tool"], call["result"]) == ("look_up", "ok")
    assert call["run_id"] == inline["run_id"]
    (script,) = named(recorded, "skill.run")
    assert (script["skill"], script["script"]) == ("log-digest", "scripts/digest.sh")
    assert {"patterns": 2, "count": 2} in [
        {key: one[key] for key in ("patterns", "count")} for one in named(recorded, "workspace.collect")
    ]
    tree = parents(recorded)
    assert ("skill.tool_call", "workspace.inline") in tree
    assert ("workspace.run", "skill.run") in tree
    assert ("workspace.stage.dir", "skill.load") in tree
    assert {span.name for span in recorded.get_finished_spans()} == set(SPANS)
    whole = "".join(span.to_json() for span in recorded.get_finished_spans())
    assert [secret for secret in SECRETS if secret in whole] == []
    assert session.id in whole and "log-digest" in whole  # the search would find them


def test_a_load_of_a_model_is_a_span_with_its_agent(
    executor: Executor, recorded: InMemorySpanExporter
) -> None:
    """trpc-1.13.6"""
    tools = SyncSkillToolset(executor, session="never", agent="writer", state=":memory:", artifacts=False)
    tools.call("skill_load", {"skill": "log-digest"})
    (load,) = named(recorded, "skill.load")
    assert (load["skill"], load["agent"], load["exec_id"]) == ("log-digest", "writer", "never")
    assert len(str(load["digest"])) == 64
    assert named(recorded, "workspace.create") == []


def test_an_error_is_told_by_its_class(executor: Executor, recorded: InMemorySpanExporter) -> None:
    with executor.session() as session:
        with pytest.raises(BadRequestError):
            session.put("inputs/x", "\ud800 file-secret")
        run = session.start("sleep 30", grant=Grant(tools=[look_up]))
        run.kill()
    (failed,) = [span for span in recorded.get_finished_spans() if span.name == "workspace.stage.files"]
    assert (failed.status.status_code.name, failed.status.description) == ("ERROR", "BadRequestError")
    (ended,) = named(recorded, "skill.run")
    assert ended["status"] == "killed"


def test_without_a_tracer_nothing_is_imported() -> None:
    """A program that has not imported OpenTelemetry does not get it from us."""
    code = (
        "import sys\n"
        "from executor import AsyncExecutor, Executor, spans\n"
        "import executor.tools\n"
        "with spans.span('workspace.create', exec_id='x') as span: span.say(path='y')\n"
        "spans.begin('workspace.run', exec_id='x').end(ValueError())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_span_says_only_what_its_row_of_the_table_has(recorded: InMemorySpanExporter) -> None:
    from executor import spans

    with pytest.raises(AssertionError, match=r"workspace\.run does not say stdin"):
        spans.begin("workspace.run", stdin="x")
    with pytest.raises(KeyError):
        spans.begin("workspace.other", x=1)
