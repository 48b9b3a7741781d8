"""docs/security.md names a test for each promise and each fault: they are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"
# `folder/test_file (words of a test's name, of another)`; a file without a folder is in the one before it.
REFERENCE = re.compile(r"(?:(\w+)/)?(test_\w+)(?: \(([^)]*)\))?")
PAYLOAD = re.compile(r"\b[a-z]\d\d\b")


def tables() -> list[tuple[str, list[list[str]]]]:
    """(heading above it, rows of cells) of every table with tests in its last column."""
    found: list[tuple[str, list[list[str]]]] = []
    heading, rows = "", None
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            rows = None
        elif rows is None:
            rows = []
            if cells[-1].startswith("Test"):
                found.append((heading, rows))
        elif not set(cells[0]) <= {"-", ""}:
            rows.append(cells)
    return found


ROWS = [
    pytest.param(heading, row[-1], id=f"{heading}: {row[0]}") for heading, rows in tables() for row in rows
]


@cache
def names(file: Path) -> set[str]:
    """Tests of a file."""
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@cache
def payloads() -> set[str]:
    return {path.name.partition("_")[0] for path in (TESTS / "hostile/payloads").iterdir()}


def test_there_are_both_tables() -> None:
    assert [heading for heading, _ in tables()] == ["How it is held", "Faults"]
    assert len(ROWS) > 40


@pytest.mark.parametrize(("heading", "cell"), ROWS)
def test_every_named_test_exists(heading: str, cell: str) -> None:
    folder = "faults" if heading == "Faults" else ""
    references = REFERENCE.findall(cell)
    for where, file, words in references:
        folder = where or folder
        path = TESTS / folder / f"{file}.py"
        assert path.exists(), path
        for some in filter(None, re.split(r",\s*", words)):
            wanted = some.replace(" ", "_")
            assert any(name.startswith("test_") and wanted in name for name in names(path)), (file, some)
        assert any(name.startswith("test_") for name in names(path))
    assert references or PAYLOAD.search(cell), "no test is named"
    assert set(PAYLOAD.findall(cell)) <= payloads()
