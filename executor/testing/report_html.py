"""A report as one HTML file that loads nothing: readable without scripts, searchable with them.

Everything that a skill or a script chose is hostile. What keeps it inert:
1. Text becomes HTML in `_e` alone, which escapes control characters first and markup second.
2. The page's policy allows the one style and the one script in it, by their hashes, and pictures from `data:`
   addresses. Nothing else is run or loaded, whatever gets into the page.
3. A collected file is a picture (`<img>`, in which SVG has neither scripts nor links), text, or a name.
4. Lengths are bounded: of names, output, previews, and of the pixels that a picture claims.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html as markup
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from executor.bridge.scripts import ScriptResult
from executor.models import ExecResult, OutputFile
from executor.testing import pictures
from executor.testing.results import CaseResult, Report
from executor.workspace.outputs import decode
from executor.workspace.text import clip, printable, printable_name

MAX_NAME = 300  # characters of a name or a message
MAX_OUTPUT = 64 << 10  # bytes of stdout, of stderr and of a file shown as text
MAX_FILES = 100  # listed for a case
MAX_ROWS, MAX_COLUMNS, MAX_CELL = 50, 20, 200  # of a table
MAX_JSON_NODES, MAX_JSON_DEPTH = 1000, 8
MAX_PIXELS, MAX_SIDE = 40_000_000, 16_384
MAX_SEARCHED = 4000  # characters of a case that the search looks at
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp", "image/svg+xml")
SYMBOLS = {"passed": "✓", "failed": "✗", "error": "!", "skipped": "–"}

_STYLE = Path(__file__).with_name("report.css").read_text("utf-8")
_SCRIPT = Path(__file__).with_name("report.js").read_text("utf-8")
_SGR = re.compile(r"\x1b\[([0-9;]{0,40})m")


def html(report: Report) -> bytes:
    """The page, in UTF-8."""
    return "".join(_page(report)).encode("utf-8")


def _e(text: str, most: int = MAX_NAME) -> str:
    """One line of text as HTML."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return markup.escape(_whole(printable_name(cut)))


def _whole(text: str) -> str:
    """Without the few characters that HTML forbids and that are not escaped yet."""
    return re.sub("[\ufdd0-\ufdef\ufffe\uffff]", "\ufffd", text)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# --- the page -----------------------------------------------------------------------------------------------


def _page(report: Report) -> Iterator[str]:
    counts = report.counted()
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(_STYLE)}'; script-src '{_hash(_SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    bad = counts["failed"] + counts["error"]
    title = f"{bad} failed" if bad else f"{counts['passed']} passed"
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{_e(report.title)}: {title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    yield f"<header>\n<h1>{_e(report.title)}</h1>\n"
    at_a_time = f" · {report.jobs} at a time" if report.jobs > 1 else ""
    when = f"{_e(report.started)} · {_seconds(report.duration_ms)}{at_a_time}"
    yield f'<p class="dim">{when}</p>\n'
    yield '<p class="counts">'
    yield "".join(
        f'<span class="{name}">{SYMBOLS.get(name, "↻")} {number} {name}</span>'
        for name, number in counts.items()
        if number
    )
    yield "</p>\n"
    yield _tools(counts)
    yield "</header>\n<main>\n"
    yield '<p id="none" hidden>No case is meant by this search and filter.</p>\n'
    groups: dict[str, list[CaseResult]] = {}
    for result in report.results:
        groups.setdefault(result.skill, []).append(result)
    for skill, results in groups.items():
        yield f'<section class="skill">\n<h2>{_e(skill)}</h2>\n'
        for result in results:
            yield from _case(result)
        yield "</section>\n"
    yield from _about(report)
    yield f"</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"


def _tools(counts: dict[str, int]) -> str:
    buttons = "".join(
        f'<button type="button" data-filter="{name}" aria-pressed="false">{name} {number}</button>'
        for name, number in counts.items()
        if number
    )
    return (
        '<div class="tools" role="search" hidden>'
        '<input id="search" type="search" placeholder="Search (/)" aria-label="Search cases">'
        f'{buttons}<button type="button" id="theme" aria-label="Light or dark">◐</button></div>\n'
    )


def _about(report: Report) -> Iterator[str]:
    yield "<section>\n<h2>Scripts and machine</h2>\n"
    for entry in report.coverage:
        if entry.not_run:
            names = ", ".join(entry.not_run)
            yield f"<p>{_e(entry.skill)}: no case runs <code>{_e(names, 2000)}</code></p>\n"
    rows = {"executor": report.version, **report.environment}
    cells = "".join(f"<tr><th>{_e(name)}</th><td>{_e(value)}</td></tr>" for name, value in rows.items())
    yield f'<div class="scroll"><table>{cells}</table></div>\n</section>\n'


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.2f} s"


# --- a case -------------------------------------------------------------------------------------------------


def _case(result: CaseResult) -> Iterator[str]:
    state = f"{result.verdict} flaky" if result.flaky else result.verdict
    names = [file.path for file in result.result.files] if result.result else []
    searched = " ".join([result.title, result.command, result.file, *result.reasons, *names])
    opened = " open" if result.verdict in ("failed", "error") else ""
    tags = "".join(
        f'<span class="tag">{_e(tag)}</span>'
        for tag in (result.runtime, *(["flaky"] if result.flaky else []))
    )
    words = _e(searched.lower(), MAX_SEARCHED)
    yield (
        f'<details class="case" data-state="{state}" data-text="{words}"{opened}>'
        f'<summary><span class="badge {result.verdict}">{SYMBOLS[result.verdict]} {result.verdict}</span>'
        f'<span class="name">{_e(result.name)}{tags}</span>'
        f'<span class="time">{_seconds(result.duration_ms)}</span></summary>\n<div class="body">\n'
    )
    line = f":{result.line}" if result.line else ""
    yield f'<p class="dim">{_e(result.file)}{line}</p>\n<pre>{_text(result.command[:2000])}</pre>\n'
    if result.reasons:
        reasons = "".join(f"<li>{_e(reason, 2000)}</li>" for reason in result.reasons)
        yield f"<h3>{'Skipped' if result.verdict == 'skipped' else 'Why'}</h3><ul>{reasons}</ul>\n"
    for mismatch in result.mismatches:
        if mismatch.diff:
            yield f"<h3>{_e(mismatch.where)}</h3><pre>{_diff(mismatch.diff)}</pre>\n"
    if result.result is not None:
        yield from _result(result.result)
    if result.attempts > 1:
        yield f'<p class="dim">attempts: {result.attempts}</p>\n'
    if result.kept:
        yield f'<p class="dim">kept in {_e(result.kept)}</p>\n'
    yield "</div></details>\n"


def _result(result: ExecResult) -> Iterator[str]:
    for name in ("stdout", "stderr"):
        text = getattr(result, name)
        if text:
            size = getattr(result, f"{name}_bytes")
            cut = " (cut)" if getattr(result, f"{name}_truncated") else ""
            yield f"<h3>{name}, {size:,} bytes{cut}</h3><pre>{_coloured(text)}</pre>\n"
    if isinstance(result, ScriptResult):
        yield from _of_a_script(result)
    if result.files:
        yield f"<h3>Files ({len(result.files)})</h3>\n"
        for file in result.files[:MAX_FILES]:
            yield _file(file)
        if len(result.files) > MAX_FILES:
            yield f'<p class="dim">and {len(result.files) - MAX_FILES:,} more</p>\n'
    facts = {
        "status": result.status,
        "exit code": "" if result.exit_code is None else str(result.exit_code),
        "limits hit": ", ".join(result.limits_hit),
        "run": _seconds(result.duration_ms),
        "processor": _seconds(result.usage.cpu_ms),
        "memory": f"{result.usage.max_rss_bytes / (1 << 20):.0f} MiB",
        "ended with it": str(result.killed_descendants or ""),
    }
    cells = "".join(f"<tr><th>{name}</th><td>{_e(value)}</td></tr>" for name, value in facts.items() if value)
    yield f'<h3>Run</h3><div class="scroll"><table>{cells}</table></div>\n'
    if result.warnings:
        warnings = "".join(f"<li>{_e(warning, 1000)}</li>" for warning in result.warnings)
        yield f"<ul>{warnings}</ul>\n"


def _of_a_script(result: ScriptResult) -> Iterator[str]:
    if result.style == "function" and result.error is None:
        text = json.dumps(result.result, ensure_ascii=False, indent=2)
        yield f"<h3>Result</h3>{_json(text) or f'<pre>{_text(_bounded(text))}</pre>'}\n"
    if result.tool_calls:
        yield "<h3>Calls of tools</h3><ul>"
        for call in result.tool_calls[:MAX_FILES]:
            yield f"<li><code>{_e(call.name)}</code> {_e(call.code or 'ok')}, {call.ms} ms</li>"
        if len(result.tool_calls) > MAX_FILES:
            yield f"<li>and {len(result.tool_calls) - MAX_FILES:,} more</li>"
        yield "</ul>\n"


# --- text ---------------------------------------------------------------------------------------------------


def _bounded(text: str) -> str:
    raw = text.encode("utf-8", "replace")
    return clip(raw, raw, len(raw), MAX_OUTPUT)[0]


def _diff(text: str) -> str:
    lines = []
    for line in _bounded(text).split("\n"):
        kind = {"+": "add", "-": "del"}.get(line[:1], "")
        escaped = _text(line)
        lines.append(f'<span class="{kind}">{escaped}</span>' if kind else escaped)
    return "\n".join(lines)


def _text(text: str) -> str:
    return markup.escape(_whole(printable(text)))


def _coloured(text: str) -> str:
    """Output with the colours that it asks for; every other control is shown and not obeyed."""
    parts: list[str] = []
    classes: dict[str, str] = {}
    at = 0
    text = _bounded(text)
    for match in [*_SGR.finditer(text), None]:
        piece = _text(text[at : match.start() if match else len(text)])
        if piece:
            names = " ".join(sorted(set(classes.values())))
            parts.append(f'<span class="{names}">{piece}</span>' if names else piece)
        if match:
            _turn(classes, match[1])
            at = match.end()
    return "".join(parts)


def _turn(classes: dict[str, str], codes: str) -> None:
    """What a colour sequence changes. Letters in colours beyond the sixteen keep theirs."""
    numbers = [int(code[:4] or 0) for code in codes.split(";")]
    while numbers:
        code = numbers.pop(0)
        if code == 0:
            classes.clear()
        elif code in (1, 3, 4):
            classes[str(code)] = {1: "b", 3: "i", 4: "u"}[code]
        elif code in (22, 23, 24):
            classes.pop(str(code - 21 if code == 22 else code - 20), None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            classes["colour"] = f"f{code % 10}"
        elif 40 <= code <= 47 or 100 <= code <= 107:
            classes["ground"] = "g"
        elif code in (38, 48):
            wide = numbers[:1] == [2]
            value = numbers[1] if numbers[:1] == [5] and len(numbers) > 1 else 16
            del numbers[: 4 if wide else 2]
            if code == 38 and value < 16:
                classes["colour"] = f"f{value % 8}"
            elif code == 48:
                classes["ground"] = "g"
        elif code == 39:
            classes.pop("colour", None)
        elif code == 49:
            classes.pop("ground", None)


# --- files --------------------------------------------------------------------------------------------------


def _file(file: OutputFile) -> str:
    head = f'<code>{_e(file.path)}</code> <span class="dim">{file.size:,} bytes, {_e(file.mime)}</span>'
    return f'<details class="file"><summary>{head}</summary><div>{_preview(file)}</div></details>\n'


def _preview(file: OutputFile) -> str:
    data = None if file.truncated else decode(file)
    sha = f'<p class="dim"><code>sha256 {_e(file.sha256)}</code></p>' if file.sha256 else ""
    if data is None:
        return f'<p class="dim">not in the report: too large</p>{sha}'
    return (_image(file, data) or _as_text(file, data) or '<p class="dim">no preview</p>') + sha


def _image(file: OutputFile, data: bytes) -> str:
    if file.mime not in IMAGES:
        return ""
    size = pictures.size(data)
    if size is None and file.mime != "image/svg+xml":
        return ""
    width, height = size or (0, 0)
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        return f'<p class="dim">a picture of {width:,} by {height:,} pixels: too large to show</p>'
    address = f"data:{file.mime};base64,{base64.b64encode(data).decode()}"
    shown = f"{width} by {height} pixels" if size else ""
    picture = f'<img loading="lazy" decoding="async" alt="{_e(file.path)}" src="{address}">'
    return f'{picture}<p class="dim">{shown}</p>'


def _as_text(file: OutputFile, data: bytes) -> str:
    textual = file.encoding == "utf-8" or file.mime.startswith("text/")
    if not textual:
        return ""
    text = data.decode("utf-8-sig", "replace")
    if file.mime in ("text/csv", "text/tab-separated-values"):
        return _table(text, "\t" if file.mime != "text/csv" else None) or f"<pre>{_coloured(text)}</pre>"
    if file.mime == "application/json":
        return _json(text) or f"<pre>{_coloured(text)}</pre>"
    return f"<pre>{_coloured(text)}</pre>"


def _table(text: str, delimiter: str | None) -> str:
    sample = text[:4096].split("\n")[0]
    delimiter = delimiter or max(",;\t|", key=sample.count)
    try:
        reader = csv.reader(io.StringIO(text[:MAX_OUTPUT]), delimiter=delimiter)
        rows = [row[:MAX_COLUMNS] for row, _ in zip(reader, range(MAX_ROWS + 1), strict=False)]
    except csv.Error:
        return ""
    if not rows:
        return ""
    lines = []
    for number, row in enumerate(rows[:MAX_ROWS]):
        tag = "td" if number else "th"
        lines.append("<tr>" + "".join(f"<{tag}>{_e(cell, MAX_CELL)}</{tag}>" for cell in row) + "</tr>")
    total = text.count("\n") + (not text.endswith("\n"))
    more = f'<p class="dim">the first {MAX_ROWS} of {total:,} lines</p>' if len(rows) > MAX_ROWS else ""
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>{more}'


def _json(text: str) -> str:
    """Folded; '' for what is not JSON or too much of it."""
    try:
        value = json.loads(text)
        room = [MAX_JSON_NODES]
        return f'<div class="scroll json">{_node("", value, room, 0)}</div>'
    except (ValueError, RecursionError):
        return ""


def _node(label: str, value: Any, room: list[int], depth: int) -> str:
    room[0] -= 1
    if room[0] < 0 or depth > MAX_JSON_DEPTH:
        raise ValueError("too much")
    head = f"{label}: " if label else ""
    if isinstance(value, dict | list) and value:
        pairs: Sequence[tuple[str, Any]] = (
            [(_e(json.dumps(key, ensure_ascii=False)), item) for key, item in value.items()]
            if isinstance(value, dict)
            else [(str(index), item) for index, item in enumerate(value)]
        )
        what = f"{{{len(value)}}}" if isinstance(value, dict) else f"[{len(value)}]"
        inner = "".join(_node(name, item, room, depth + 1) for name, item in pairs)
        opened = " open" if depth < 2 else ""
        return f"<details{opened}><summary>{head}{what}</summary>{inner}</details>"
    return f"<div>{head}{_e(json.dumps(value, ensure_ascii=False), 1000)}</div>"
