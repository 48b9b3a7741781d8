"""The examples of docs/frameworks.md, as what a test runs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
PAGE = REPOSITORY / "docs" / "frameworks.md"
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Examples:
    """Runs the examples of the page in the runtime under test."""

    def __init__(self, runtime: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(REPOSITORY)
        monkeypatch.setenv("EXECUTOR_RUNTIME", runtime)
        monkeypatch.setenv("EXECUTOR_DATA_DIR", str(folder))

    def run(self, heading: str, number: int = 0, **names: Any) -> dict[str, Any]:
        """The names after an example: the `number`-th below a heading, given these names before it."""
        start = f"\n## {heading}\n"
        text = PAGE.read_text("utf-8")
        assert start in text, heading
        section = text.partition(start)[2].partition("\n## ")[0]
        code = compile(
            _FENCE.findall(section)[number], f"{PAGE.name}: {heading}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        found = dict(names)

        async def wait() -> None:
            await asyncio.wait_for(eval(code, found), 120)

        def work() -> None:
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(wait())
            else:
                exec(code, found)

        # In a thread of its own nothing knows of the loop that the tests of this process may have.
        with ThreadPoolExecutor(1) as alone:
            alone.submit(work).result()
        return found
