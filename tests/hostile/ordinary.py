"""A pytest plugin for the ordinary user's pass (see test_ordinary_user).

What an ordinary user cannot have is said in every result. Conformance tests compare whole lists of warnings:
there these sentences are taken out; the hostile tests look at them.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from executor.session import AsyncSession

STANDING = ("the sandbox shares this user's uid", "this machine gives no cgroups to this user")


@pytest.fixture(scope="session", autouse=True)
def without_standing_warnings() -> Any:
    """Take the sentences out of results, in the conformance tests only."""
    made = AsyncSession.blank

    def blank(self: AsyncSession, *args: Any, **kwargs: Any) -> Any:
        result = made(self, *args, **kwargs)
        if os.environ.get("PYTEST_CURRENT_TEST", "").startswith("tests/conformance"):
            result.warnings = [text for text in result.warnings if not text.startswith(STANDING)]
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncSession, "blank", blank)
        yield
