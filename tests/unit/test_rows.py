"""docs/rows.md is made from the tests, and every promise is held by one or says why it is not here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MADE = [
    ("TH", 1, 15),
    ("TH", 20, 35),
    ("TH", 40, 48),
    ("TH", 50, 69),
    ("PA", 1, 22),
    ("WN", 1, 17),
    ("VS", 1, 16),
]
# Rows of each section of the trpc list, and behaviours of both lists.
TRPC = {1: 9, 2: 6, 3: 6, 4: 6, 5: 6, 6: 2, 7: 7, 8: 9, 9: 5, 10: 7, 11: 14, 13: 7}


@pytest.fixture(scope="module")
def rows() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dev_rows", ROOT / "dev" / "rows.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_row_of_the_lists_is_there(rows: ModuleType) -> None:
    wanted = {f"{name}-{number:02}" for name, first, last in MADE for number in range(first, last + 1)}
    wanted |= {f"trpc-1.{section}.{row}" for section, most in TRPC.items() for row in range(1, most + 1)}
    wanted |= {f"ref-{number}" for number in range(1, 51)} | {f"trpc-{number}" for number in range(1, 67)}
    found = [row.id for _, own in rows.sections() for row in own]
    assert len(found) == len(set(found)) and set(found) == wanted
    assert all(row.title for _, own in rows.sections() for row in own)


def test_every_row_is_held_or_says_why_not(rows: ModuleType) -> None:
    _, wrong = rows.collect()
    assert wrong == []


def test_the_page_is_not_stale(rows: ModuleType) -> None:
    assert rows.PAGE.read_text("utf-8") == rows.page(rows.collect()[0]), "make rows"


def test_ids_are_read_from_docstrings_and_parameters(rows: ModuleType, tmp_path: Path) -> None:
    file = rows.ROOT / "tests" / "unit" / "test_rows.py"
    assert [name for _, name in rows.named(file)] == []
    made = tmp_path / "test_made.py"
    made.write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, id='PA-03 first')])\n"
        "def test_one(x):\n"
        "    '''TH-01, trpc-1.2.3; not XTH-02, TH-1x or W-07'''\n"
        "    'TH-05'\n"
        "def helper():\n"
        "    '''TH-06'''\n"
    )
    rows.ROOT, root = tmp_path, rows.ROOT
    try:
        assert list(rows.named(made)) == [
            ("test_made.py::test_one", "PA-03"),
            ("test_made.py::test_one", "TH-01"),
            ("test_made.py::test_one", "trpc-1.2.3"),
        ]
    finally:
        rows.ROOT = root
