"""What a tool gives back. Values only; nothing here knows a session."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from executor.errors import ExecutorError
from executor.workspace.text import printable


@dataclass(frozen=True)
class Image:
    """A picture that a tool shows to the model."""

    data: bytes
    mime: str
    """`image/png`, `image/jpeg`, `image/gif` or `image/webp`."""
    name: str = ""

    @property
    def base64(self) -> str:
        """Its bytes as protocols carry them."""
        return base64.b64encode(self.data).decode("ascii")


@dataclass(frozen=True)
class ToolResult:
    """The answer to one call. A script that fails is an answer; `is_error` is for a call that was wrong."""

    text: str
    """For the model. Nothing in it moves a cursor, hides or reorders text."""
    structured: dict[str, Any] = field(default_factory=dict)
    """The same for a program: JSON values. Of an error `{"error": {"type", "message", "hint"}}`."""
    images: tuple[Image, ...] = ()
    is_error: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))


class RefusedError(Exception):
    """A call that cannot be done. It becomes a result with `is_error` and never leaves this package."""

    def __init__(self, message: str, hint: str = "", *, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.message, self.hint, self.kind = message, hint, kind


def failure(error: RefusedError | ExecutorError) -> ToolResult:
    """The result of a call that was refused or could not be done."""
    kind = error.kind if isinstance(error, RefusedError) else type(error).__name__
    message, hint = printable(error.message), printable(error.hint)
    text = f"Error: {message}" + (f"\n{hint}" if hint else "")
    return ToolResult(text, {"error": {"type": kind, "message": message, "hint": hint}}, is_error=True)
