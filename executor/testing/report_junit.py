"""A report as JUnit XML, in the form that the schema of Ant's JUnitReport describes and CI systems read.

One testsuite for each skill and runtime. What a script wrote is escaped before it becomes XML, so that it is
valid and looks the same in every viewer.
"""

from __future__ import annotations

import re
import socket
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from executor.testing.results import CaseResult, Report
from executor.workspace.text import clip, printable

SHOWN = 16 << 10  # bytes of stdout and of stderr of one case
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> bytes:
    """The XML, in UTF-8."""
    root = ET.Element("testsuites")
    suites: dict[tuple[str, str], list[CaseResult]] = {}
    for result in report.results:
        suites.setdefault((result.skill, result.runtime), []).append(result)
    for number, ((skill, runtime), results) in enumerate(suites.items()):
        root.append(_suite(report, number, skill, runtime, results))
    ET.indent(root)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _suite(
    report: Report, number: int, skill: str, runtime: str, results: Sequence[CaseResult]
) -> ET.Element:
    suite = ET.Element(
        "testsuite",
        {
            "id": str(number),
            "package": _text(skill),
            "name": _text(f"{skill} [{runtime}]"),
            "timestamp": report.started[:19],
            "hostname": _text(socket.gethostname()) or "localhost",
            "tests": str(len(results)),
            "failures": str(sum(result.verdict == "failed" for result in results)),
            "errors": str(sum(result.verdict == "error" for result in results)),
            "skipped": str(sum(result.verdict == "skipped" for result in results)),
            "time": _seconds(sum(result.duration_ms for result in results)),
        },
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in report.environment.items():
        ET.SubElement(properties, "property", {"name": _text(name), "value": _text(value)})
    for result in results:
        if result.flaky:
            value = f"passed at attempt {result.attempts}"
            ET.SubElement(properties, "property", {"name": _text(f"flaky {result.name}"), "value": value})
    for result in results:
        suite.append(_case(result))
    ET.SubElement(suite, "system-out")
    ET.SubElement(suite, "system-err")
    return suite


def _case(result: CaseResult) -> ET.Element:
    attributes = {
        "name": _text(result.name),
        "classname": _text(f"{result.runtime}.{result.skill}"),
        "time": _seconds(result.duration_ms),
    }
    case = ET.Element("testcase", attributes)
    message = _text("; ".join(result.reasons))
    if result.verdict == "skipped":
        ET.SubElement(case, "skipped", {"message": message})
    elif result.verdict in ("failed", "error"):
        name, kind = ("failure", "mismatch") if result.verdict == "failed" else ("error", "executor")
        failure = ET.SubElement(case, name, {"message": message, "type": kind})
        failure.text = _text(_details(result))
    return case


def _details(result: CaseResult) -> str:
    """Everything that a person needs to find the fault, as text."""
    parts = [f"{result.file}:{result.line}: {result.title}", f"command: {result.command}", ""]
    parts += [f"- {reason}" for reason in result.reasons]
    for mismatch in result.mismatches:
        if mismatch.diff:
            parts += ["", f"{mismatch.where}:", mismatch.diff]
    if result.result is not None:
        for name in ("stdout", "stderr"):
            raw = getattr(result.result, name).encode("utf-8", "replace")
            if raw.strip():
                parts += ["", f"{name}:", clip(raw, raw, len(raw), SHOWN)[0].rstrip("\n")]
    if result.kept:
        parts += ["", f"kept in {result.kept}"]
    return "\n".join(parts)


def _text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", printable(text))


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}"
