"""What can go wrong with a call, as one table: code, what it is in each language, and whether to try again.

The clients in the sandbox carry the same table; a test compares them. A message never holds more than the
script may know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Code:
    """One kind of failure."""

    exit: int
    """Exit status of the Bash commands."""
    python: str
    """Class that the Python client raises."""
    retryable: bool = False
    node: str = ""
    """`.code` of the Node error where it is not the name of the code."""


CODES: dict[str, Code] = {
    "TOOL_NOT_FOUND": Code(127, "ToolNotFound"),  # not granted; whether the host has it is not said
    "METHOD_NOT_FOUND": Code(127, "ToolNotFound"),
    "DENIED": Code(126, "ToolDenied"),  # the policy, or a missing right
    "APPROVAL_REJECTED": Code(126, "ApprovalRejected"),
    "APPROVAL_EXPIRED": Code(126, "ApprovalRejected"),
    "TOOL_INPUT_INVALID": Code(2, "ToolInputError"),
    "TOOL_OUTPUT_INVALID": Code(1, "ToolError"),
    "TOOL_FAILED": Code(1, "ToolError"),
    "TOOL_TIMEOUT": Code(124, "ToolTimeout", retryable=True),
    "RATE_LIMITED": Code(75, "LimitExceeded", retryable=True),
    "TOO_MANY_CALLS": Code(75, "LimitExceeded"),
    "TOO_MANY_INFLIGHT": Code(75, "LimitExceeded"),
    "VALUE_TOO_LARGE": Code(75, "LimitExceeded"),
    "CANCELLED": Code(130, "Cancelled", node="ABORT_ERR"),
    "REVOKED": Code(125, "BridgeClosed"),  # the run is over, or was ended
    "PROTOCOL": Code(125, "BridgeClosed"),  # not a request
    "NOT_FOUND": Code(1, "WorkspaceNotFound", node="ENOENT"),
    "EXISTS": Code(1, "WorkspaceExists", node="EEXIST"),
    "IS_DIR": Code(1, "WorkspaceIsDirectory", node="EISDIR"),
    "NOT_DIR": Code(1, "WorkspaceNotDirectory", node="ENOTDIR"),
    "NOT_UTF8": Code(1, "WorkspaceNotText", node="ERR_ENCODING_INVALID_ENCODED_DATA"),
    "BAD_PATH": Code(1, "WorkspaceBadPath", node="EINVAL"),
    "IO": Code(1, "WorkspaceError", node="EIO"),
}


class BridgeError(Exception):
    """A call that is answered with an error. `message` goes to the script as it is."""

    def __init__(
        self, code: str, message: str, *, details: list[dict[str, Any]] | None = None, rule: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or []
        self.rule = rule
        """Which check refused it, for the audit."""
        self.retryable = CODES[code].retryable

    def body(self) -> dict[str, Any]:
        """As the script gets it."""
        found: dict[str, Any] = {"code": self.code, "message": self.message, "retryable": self.retryable}
        if self.details:
            found["details"] = self.details
        return found


class PublicToolError(Exception):
    """Raise it in a handler to let the script read `message`. Every other exception stays on the host."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
