"""Compares what a run gave with what a case expects. Values in, mismatches out; reads golden files only.

A mismatch holds text of the script, which is hostile: it is kept as it came and escaped where it is shown.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.bridge.scripts import ScriptResult
from executor.models import ExecResult
from executor.testing import patterns, pictures
from executor.testing.cases import Instance
from executor.testing.form import FileExpectation, OneOrMore, Range, ResultExpectation, TextExpectation
from executor.testing.matching import SHOWN, Mismatch, counted, subset, within
from executor.testing.results import ending
from executor.workspace import globs, layout

DIFF_LINES = 80  # of a diff
MAX_DIFFED = 20_000  # lines; the time of a diff grows with their square
MAX_JSON_MISMATCHES = 10


@dataclass(frozen=True)
class Produced:
    """A file that the run left."""

    path: str
    size: int
    mime: str
    sha256: str
    content: bytes | None
    """None when it was too large to be brought back."""


@dataclass(frozen=True)
class Outcome:
    """What the comparison says."""

    mismatches: tuple[Mismatch, ...]
    goldens: tuple[tuple[Path, bytes], ...]
    """Golden files that differ or are missing, with what they would have to hold."""


def compare(instance: Instance, result: ExecResult, files: Sequence[Produced]) -> Outcome:
    """Everything in which the result differs from what the case expects."""
    expect = instance.case.expect
    found: list[Mismatch] = []
    goldens: list[tuple[Path, bytes]] = []
    wanted = expect.exit if isinstance(expect.exit, tuple) else (expect.exit,)
    if result.exit_code not in wanted:
        found.append(Mismatch(where="exit", expected=_either(map(str, wanted)), got=ending(result)))
    for where in ("stdout", "stderr"):
        text = getattr(expect, where)
        if text is None:
            continue
        if isinstance(text, str):
            text = TextExpectation(equals=text)
        whole = not getattr(result, f"{where}_truncated")
        found += _text(where, text, getattr(result, where), whole)
        if text.golden:
            _against_golden(
                where, instance.golden(text.golden), getattr(result, where).encode(), found, goldens
            )
    if expect.result is not None:
        found += _result(expect.result, result)
    for item in expect.files:
        found += _files(instance, item, result, files, goldens)
    return Outcome(tuple(found), tuple(goldens))


# --- text ---------------------------------------------------------------------------------------------------


def _text(where: str, wanted: TextExpectation, text: str, whole: bool) -> Iterable[Mismatch]:
    if wanted.equals is not None and wanted.equals.removesuffix("\n") != text.removesuffix("\n"):
        yield _differs(where, wanted.equals, text)
    yield from _parts(where, wanted.contains, wanted.matches, text)
    if wanted.json_ is not None:
        yield from _json(where, wanted.json_, text)
    if not whole and (wanted.equals is not None or wanted.json_ is not None or wanted.golden):
        yield Mismatch(where=where, expected="the whole text", got="more than is kept (1 MiB): it was cut")


def _parts(
    where: str, contains: OneOrMore | None, matches: OneOrMore | None, text: str
) -> Iterable[Mismatch]:
    for part in _several(contains):
        if part not in text:
            yield Mismatch(where=where, expected=f"text with {_quoted(part)}", got=_quoted(text))
    wanted = _several(matches)
    for pattern, found in zip(wanted, patterns.search(wanted, text), strict=True):
        if not found:
            got = _quoted(text)
            if found is None:
                got = f"no answer in {patterns.SECONDS:g} s: the pattern takes too long, or too much memory"
            yield Mismatch(where=where, expected=f"a match of {_quoted(pattern)}", got=got)
        if found is None:
            break  # those behind it were not looked for


def _differs(where: str, wanted: str, text: str, source: str = "") -> Mismatch:
    """`source`: where the expected text stands, as ` (as in a.txt)`."""
    if "\n" not in wanted.rstrip("\n") and "\n" not in text.rstrip("\n"):
        return Mismatch(where=where, expected=_quoted(wanted) + source, got=_quoted(text))
    before, after = wanted.splitlines(), text.splitlines()
    pairs = itertools.zip_longest(before, after)
    line, (expected, got) = next(
        ((number, pair) for number, pair in enumerate(pairs, 1) if pair[0] != pair[1]), (0, ("", ""))
    )
    if not line:
        return Mismatch(where=where, expected=f"the same line ends{source}", got="others")
    return Mismatch(
        where=f"{where} line {line}",
        expected=("the end" if expected is None else _quoted(expected)) + source,
        got="the end" if got is None else _quoted(got),
        diff=diff(wanted, text),
    )


def diff(wanted: str, text: str) -> str:
    """A unified diff of two texts, at most `DIFF_LINES` lines."""
    before, after = wanted.splitlines(), text.splitlines()
    if max(len(before), len(after)) > MAX_DIFFED:
        first = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
        before, after = before[first : first + DIFF_LINES], after[first : first + DIFF_LINES]
    lines = list(difflib.unified_diff(before, after, "expected", "got", lineterm=""))
    more = len(lines) - DIFF_LINES
    return "\n".join([*lines[:DIFF_LINES], *([f"... {more:,} more lines"] if more > 0 else [])])


def _several(given: OneOrMore | None) -> Sequence[str]:
    return () if given is None else (given,) if isinstance(given, str) else given


def _either(words: Iterable[str]) -> str:
    return " or ".join(words)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")


# --- JSON ---------------------------------------------------------------------------------------------------


def _json(where: str, wanted: Any, text: str) -> Iterable[Mismatch]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield Mismatch(where=where, expected="JSON", got=f"{_quoted(text)} ({type(error).__name__})")
        return
    for count, (path, expected, got) in enumerate(subset(wanted, found)):
        if count == MAX_JSON_MISMATCHES:
            break
        yield Mismatch(where=f"{where} {path}", expected=expected, got=got)


def _result(wanted: ResultExpectation, result: ExecResult) -> Iterable[Mismatch]:
    """Of a function's value. A program has none, and neither has a function that failed."""
    if not isinstance(result, ScriptResult) or result.style != "function":
        yield Mismatch(where="result", expected="the value of a function", got="a program, which has none")
    elif result.error is not None:
        got = f"{result.error.code}: {result.error.message}"
        yield Mismatch(where="result", expected="a value", got=_quoted(got))
    else:
        found: list[tuple[str, str, str]] = []
        if "equals" in wanted.model_fields_set:
            found += subset(wanted.equals, result.result, whole=True)
        if "json_" in wanted.model_fields_set:
            found += subset(wanted.json_, result.result)
        for path, expected, got in found[:MAX_JSON_MISMATCHES]:
            yield Mismatch(where=f"result {path}", expected=expected, got=got)


# --- files --------------------------------------------------------------------------------------------------


def _files(
    instance: Instance,
    item: FileExpectation,
    result: ExecResult,
    files: Sequence[Produced],
    goldens: list[tuple[Path, bytes]],
) -> Iterable[Mismatch]:
    where = f"files {item.glob}"
    variables = layout.folders(run_id=result.run_id, skill=instance.slug)
    compiled = globs.compile_globs([item.glob], variables=variables, skill=instance.slug)
    matched = [file for file in files if any(glob.matches(_absolute(file.path)) for glob in compiled)]
    count = item.count if item.count is not None else Range(min=1)
    if not within(count, len(matched)):
        names = ", ".join(file.path for file in matched) or "there are " + (
            ", ".join(file.path for file in files[:10]) or "no files"
        )
        yield Mismatch(where=where, expected=counted(count, "file"), got=f"{len(matched)} ({names[:SHOWN]})")
    for file in matched:
        yield from _file(f"files {file.path}", item, file)
    if item.golden and matched:
        golden = instance.golden(item.golden)
        if len(matched) > 1:
            yield Mismatch(where=where, expected="one file for a golden", got=f"{len(matched)} files")
        elif (content := matched[0].content) is not None:
            found: list[Mismatch] = []
            _against_golden(f"files {matched[0].path}", golden, content, found, goldens)
            yield from found


def _absolute(path: str) -> str:
    return f"/{path}" if path.startswith("skills/") else f"{layout.WORKSPACE}/{path}"


def _file(where: str, item: FileExpectation, file: Produced) -> Iterable[Mismatch]:
    if item.mime is not None and file.mime not in _several(item.mime):
        yield Mismatch(where=where, expected=_either(_several(item.mime)), got=file.mime)
    if item.size is not None and not within(item.size, file.size):
        yield Mismatch(where=where, expected=counted(item.size, "byte"), got=f"{file.size:,}")
    if item.sha256 is not None and file.sha256 != item.sha256:
        yield Mismatch(where=where, expected=f"SHA-256 {item.sha256}", got=file.sha256 or "none")
    checks: list[Callable[[bytes], Iterable[Mismatch]]] = []
    if item.contains is not None or item.matches is not None:
        checks.append(lambda data: _parts(where, item.contains, item.matches, _decoded(data)))
    if item.json_ is not None:
        checks.append(lambda data: _json(where, item.json_, _decoded(data)))
    if item.image is not None:
        checks.append(lambda data: _image(where, item, data))
    if file.content is None:
        if checks or item.golden:
            yield Mismatch(
                where=where, expected="a file that can be read", got=f"{file.size:,} bytes, too many"
            )
        return
    for check in checks:
        yield from check(file.content)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8-sig", "replace")


def _image(where: str, item: FileExpectation, data: bytes) -> Iterable[Mismatch]:
    assert item.image is not None
    found = pictures.size(data)
    if found is None:
        yield Mismatch(where=where, expected="a picture", got=f"{len(data):,} other bytes")
        return
    for name, wanted, got in zip(
        ("width", "height"), (item.image.width, item.image.height), found, strict=True
    ):
        if wanted is not None and not within(wanted, got):
            yield Mismatch(where=where, expected=f"{name} {counted(wanted)}", got=str(got))


# --- golden files -------------------------------------------------------------------------------------------


def _against_golden(
    where: str, golden: Path, content: bytes, found: list[Mismatch], goldens: list[tuple[Path, bytes]]
) -> None:
    try:
        wanted = golden.read_bytes()
    except FileNotFoundError:
        wanted = None
    if wanted == content:
        return
    goldens.append((golden, content))
    if wanted is None:
        found.append(
            Mismatch(where=where, expected=f"what is in {golden.name}", got="no such file (--update)")
        )
        return
    try:
        texts = wanted.decode("utf-8"), content.decode("utf-8")
    except UnicodeDecodeError:
        sizes = f"{len(content):,} other bytes"
        found.append(Mismatch(where=where, expected=f"the {len(wanted):,} bytes of {golden.name}", got=sizes))
        return
    found.append(_differs(where, *texts, f" (as in {golden.name})"))
