"""Fixtures of the integrations: `examples` runs what docs/frameworks.md shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import Examples

from executor import Executor


@pytest.fixture
def examples(executor: Executor, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examples:
    """The page's examples, in the runtime under test (which `executor` has found to work)."""
    return Examples(runtime, tmp_path, monkeypatch)
