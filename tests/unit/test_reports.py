"""Reports of a test run: the same reasons in each, and nothing that a script wrote has any power there."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import junitparser
import pytest

from executor.models import ExecResult, OutputFile
from executor.testing.matching import Mismatch
from executor.testing.report_github import github
from executor.testing.report_junit import junit
from executor.testing.results import CaseResult, Coverage, Report

HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07 ]]> <script>alert(1)</script>"
    " \u202e \x00 \ufffe \udcff %0A::error::x\n::warning::y"
)


def case(name: str, verdict: str, **values: object) -> CaseResult:
    base = {
        "id": f"demo::{name}",
        "skill": "demo",
        "name": name,
        "runtime": "local",
        "file": "skills/demo/tests/a.yaml",
        "line": 7,
        "command": "echo 1",
        "verdict": verdict,
        "attempts": 1,
        "duration_ms": 1500,
        "result": ExecResult(status="ok", exit_code=0, stdout="one\n"),
    }
    return CaseResult.model_validate({**base, **values})


def mismatch(where: str = "stdout", diff: str = "") -> Mismatch:
    return Mismatch(where=where, expected="'a'", got="'b'", diff=diff)


@pytest.fixture
def report() -> Report:
    """One case of each verdict."""
    return Report(
        version="1",
        started="2026-01-02T03:04:05+00:00",
        duration_ms=4000,
        environment={"python": "3.11"},
        results=[
            case("good", "passed"),
            case("bad", "failed", mismatches=[mismatch(diff="--- expected\n+++ got\n-a\n+b")]),
            case("broken", "error", reason="no engine"),
            case("left out", "skipped", reason="not yet"),
            case("shaky", "passed", flaky=True, attempts=2, runtime="container"),
        ],
        coverage=[Coverage(skill="demo", run=["a.py"], not_run=["b.py"])],
    )


def test_the_exit_status_says_the_worst(report: Report) -> None:
    assert report.exit_status == 125
    assert report.counted() == {"passed": 2, "failed": 1, "error": 1, "skipped": 1, "flaky": 1}
    report.results = [result for result in report.results if result.verdict != "error"]
    assert report.exit_status == 1
    report.results = [result for result in report.results if result.verdict != "failed"]
    assert report.exit_status == 0


# What the schema of Ant's JUnitReport, which CI systems read, asks of each element.
REQUIRED = {
    "testsuite": ["id", "package", "name", "timestamp", "hostname", "tests", "failures", "errors", "time"],
    "testcase": ["name", "classname", "time"],
    "failure": ["type"],
    "error": ["type"],
    "property": ["name", "value"],
}
CHILDREN = {"testsuite": ["properties", "testcase", "system-out", "system-err"]}


def test_junit_has_the_form_of_the_common_schema(report: Report) -> None:
    root = ET.fromstring(junit(report))
    assert root.tag == "testsuites"
    for element in root.iter():
        assert [name for name in REQUIRED.get(element.tag, []) if name not in element.attrib] == []
    for suite in root:
        tags = list(dict.fromkeys(child.tag for child in suite))
        assert tags == CHILDREN["testsuite"]
        assert len(suite.attrib["timestamp"]) == 19
        for found in suite.iter("testcase"):
            assert len(found) <= 1


def test_junit_opens_in_a_reader(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_bytes(junit(report))
    local, container = junitparser.JUnitXml.fromfile(str(file))
    assert (local.name, local.tests, local.failures) == ("demo [local]", 4, 1)
    assert (local.errors, local.skipped) == (1, 1)
    assert (local.time, local.hostname != "") == (6.0, True)
    good, bad, broken, skipped = local
    assert (good.classname, good.name, good.is_passed) == ("local.demo", "good", True)
    (failure,) = bad.result
    assert (type(failure).__name__, failure.message) == ("Failure", "stdout: expected 'a', got 'b'")
    assert failure.text == (
        "skills/demo/tests/a.yaml:7: demo::bad [local]\ncommand: echo 1\n\n- stdout: expected 'a', got 'b'"
        "\n\n"
        "stdout:\n--- expected\n+++ got\n-a\n+b\n\nstdout:\none"
    )
    assert [type(item.result[0]).__name__ for item in (broken, skipped)] == ["Error", "Skipped"]
    assert (broken.result[0].message, skipped.result[0].message) == ("no engine", "not yet")
    assert {prop.name: prop.value for prop in container.properties()}["flaky shaky"] == "passed at attempt 2"


def test_github_annotates_the_line_of_each_case_that_did_not_pass(report: Report) -> None:
    assert github(report).splitlines() == [
        "::error file=skills/demo/tests/a.yaml,line=7,title=demo%3A%3Abad [local]"
        "::stdout: expected 'a', got 'b'",
        "::error file=skills/demo/tests/a.yaml,line=7,title=demo%3A%3Abroken [local]::no engine",
        "::warning file=skills/demo/tests/a.yaml,line=7,title=demo%3A%3Ashaky [container]"
        "::flaky: passed at attempt 2",
    ]


@pytest.fixture
def hostile() -> Report:
    """A report in which everything that a skill or a script can choose is hostile."""
    result = ExecResult(
        status="error",
        exit_code=1,
        stdout=HOSTILE,
        stderr=HOSTILE,
        files=[OutputFile(path=f"out/{HOSTILE}", size=1, mime="text/html", sha256="", content=HOSTILE)],
    )
    bad = Mismatch(where=HOSTILE, expected=HOSTILE, got=HOSTILE, diff=HOSTILE)
    values = dict.fromkeys(("id", "skill", "name", "command", "file"), HOSTILE)
    results = [case("x", "failed", mismatches=[bad], result=result).model_copy(update=values)]
    return Report(version="1", started="2026-01-02T03:04:05+00:00", results=results)


def test_hostile_text_is_inert_in_junit(hostile: Report) -> None:
    data = junit(hostile)
    root = ET.fromstring(data)
    assert [element.tag for element in root.iter()] == [
        "testsuites",
        "testsuite",
        "properties",
        "testcase",
        "failure",
        "system-out",
        "system-err",
    ]
    text = data.decode("utf-8")
    assert not [char for char in "\x1b\x07\x00\u202e\ufffe" if char in text]
    assert "\\x1b[31mred" in text


def test_hostile_text_cannot_forge_a_github_command(hostile: Report) -> None:
    (line,) = github(hostile).splitlines()
    assert line.startswith("::error file=\\x1b[31mred")
    properties, _, message = line.removeprefix("::error ").partition("::")
    assert [part.partition("=")[0] for part in properties.split(",")] == ["file", "line", "title"]
    assert "%250A%3A%3Aerror" in properties and "%250A::error::x\\n::warning::y" in message


def test_json_keeps_hostile_text_as_it_came(hostile: Report) -> None:
    text = json.dumps(hostile.model_dump())
    assert text.isascii()
    assert json.loads(text)["results"][0]["result"]["stdout"] == HOSTILE
