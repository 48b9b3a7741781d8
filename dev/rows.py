"""Writes docs/rows.md: which tests hold which promise of the systems that this project stands beside.

    python dev/rows.py            write it
    python dev/rows.py --check    say what is stale, unknown or open, and fail if anything is

Rows, with titles in our own words, are data (`tests/rows.yaml`). A test holds a row by naming its id in its
docstring or in a parameter; what does not exist here has the reason in the data. Nothing is written by hand.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "rows.yaml"
PAGE = ROOT / "docs" / "rows.md"
# Behind the last digit no other one and no letter: `TH-1x` is no row.
ID = re.compile(r"(?<![\w-])(?:(?:TH|PA|WN|VS)-\d+|(?:trpc|ref)-\d+(?:\.\d+)*)(?![\w-])")
INTRODUCTION = """\
# What other systems promise, and the tests that hold it

Made by `make rows` from `tests/rows.yaml` and the tests; not edited by hand. Five systems run skills in other
ways on other engines: Cloudflare's Think (TH), a plain Python agent (PA), skills in a flow (WN), the AI SDK's
guide (VS) and trpc-agent-go (trpc). Their promises are rows here; behaviours that our tests follow are `ref`
(of the first four) and `trpc` with one number.
"""


@dataclass
class Row:
    """One promise."""

    id: str
    title: str
    absent: str = ""
    tests: list[str] = field(default_factory=list)
    """`tests/unit/test_state.py::test_name`, sorted."""


def sections() -> list[tuple[str, list[Row]]]:
    """The rows as the data has them, each section with its title."""
    found = []
    for section in yaml.safe_load(DATA.read_text("utf-8")):
        rows = []
        for name, about in section["rows"].items():
            about = {"title": about} if isinstance(about, str) else about
            rows.append(Row(name, **about))
        found.append((section["title"], rows))
    return found


def named(path: Path) -> Iterator[tuple[str, str]]:
    """(test, row id) of every row that a test of this file names."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        texts = [ast.get_docstring(node) or ""]
        for decorator in node.decorator_list:
            texts += [
                inner.value
                for inner in ast.walk(decorator)
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
            ]
        for name in sorted(set(ID.findall("\n".join(texts)))):
            yield f"{path.relative_to(ROOT).as_posix()}::{node.name}", name


def collect() -> tuple[list[tuple[str, list[Row]]], list[str]]:
    """The sections with their tests, and what is wrong."""
    found = sections()
    rows = {row.id: row for _, own in found for row in own}
    wrong = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test, name in named(path):
            if name in rows:
                rows[name].tests.append(test)
            else:
                wrong.append(f"{test} names {name}, which is no row")
    for row in rows.values():
        if row.absent and row.tests:
            wrong.append(f"{row.id} is said not to exist here, and {row.tests[0]} holds it")
        elif not row.absent and not row.tests:
            wrong.append(f"{row.id} ({row.title}): no test names it, and there is no reason")
    return found, wrong


def page(found: list[tuple[str, list[Row]]]) -> str:
    """The page."""
    lines = [INTRODUCTION]
    for title, rows in found:
        held = sum(1 for row in rows if row.tests)
        lines += [
            f"## {title}",
            "",
            f"{held} of {len(rows)} held.",
            "",
            "| Row | What | Held by |",
            "|---|---|---|",
        ]
        lines += [f"| {row.id} | {row.title} | {_held(row)} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _held(row: Row) -> str:
    if row.absent:
        return f"*Not here:* {row.absent}"
    places: dict[str, list[str]] = {}
    for test in sorted(row.tests):
        file, _, name = test.partition("::")
        places.setdefault(file, []).append(f"`{name.removeprefix('test_')}`")
    shown = [f"[{Path(file).stem}](../{file}): {', '.join(names)}" for file, names in places.items()]
    return "; ".join(shown) or "**open**"


def main() -> int:
    """Write the page, or check it."""
    found, wrong = collect()
    made = page(found)
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text("utf-8") != made:
            wrong.append(f"{PAGE.relative_to(ROOT)} is stale: make rows")
    else:
        PAGE.write_text(made, "utf-8")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
