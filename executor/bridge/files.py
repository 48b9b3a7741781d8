"""What scripts may ask of a workspace's files, wherever those are: names, parts, patterns, content."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable
from typing import Any

from executor.bridge.codes import BridgeError
from executor.workspace import globs
from executor.workspace.text import to_bytes

MAX_LEVELS = 64
SEEN = 20  # entries that a glob may look at, in multiples of those that it may return
BASE = "/workspace/x/"


def named(action: str, params: dict[str, Any]) -> str:
    """The path or pattern of a request. BridgeError BAD_PATH."""
    found = params.get("pattern" if action == "glob" else "path")
    if not isinstance(found, str):
        raise BridgeError("BAD_PATH", "A path is text.")
    return found


def components(path: str) -> list[str]:
    """Components of a path below the root. BridgeError BAD_PATH for one that leads out or is malformed."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    try:
        to_bytes(path)
    except UnicodeEncodeError:
        parts = [".."]
    if path.startswith("/") or ".." in parts or "\0" in path or len(parts) > MAX_LEVELS:
        raise BridgeError(
            "BAD_PATH", f"{path[:200]!a}: a path is relative to the workspace, without '..' and not too deep."
        )
    return parts


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a relative name fits the pattern. BridgeError BAD_PATH."""
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise BridgeError("BAD_PATH", f"{pattern[:200]}: a pattern begins in the workspace and has no '..'.")
    try:
        # Below a name of no meaning, for a pattern that begins with `skills/` means something else there.
        found = globs.compile_globs([BASE + pattern], variables={})
    except ValueError as error:
        raise BridgeError("BAD_PATH", str(error)) from None
    return lambda name: any(glob.matches(BASE + name) for glob in found)


def piece(path: str, size: int, most: int, params: dict[str, Any]) -> tuple[int, int]:
    """(offset, bytes) of what is to be read of a file of `size` bytes. BridgeError."""
    offset, want = _number(params, "offset", 0), _number(params, "size", most)
    if "size" not in params and size - offset > most:
        raise BridgeError(
            "VALUE_TOO_LARGE", f"{path[:200]}: {size:,} bytes, at most {most:,} at once: read parts."
        )
    return offset, min(want, most)


def shown(path: str, data: bytes, size: int, params: dict[str, Any]) -> Any:
    """What was read of a file of `size` bytes as the script gets it. BridgeError NOT_UTF8."""
    if params.get("binary") or "offset" in params or "size" in params:
        return {"base64": base64.b64encode(data).decode(), "size": size}
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BridgeError("NOT_UTF8", f"{path[:200]}: it is not UTF-8 text. Read its bytes.") from None


def content(params: dict[str, Any]) -> bytes:
    """What is to be written. BridgeError."""
    text, encoded = params.get("text"), params.get("base64")
    if isinstance(text, str) and encoded is None:
        return text.encode("utf-8", "surrogatepass")
    if isinstance(encoded, str) and text is None:
        with contextlib.suppress(ValueError, binascii.Error):
            return base64.b64decode(encoded, validate=True)
    raise BridgeError("TOOL_INPUT_INVALID", "A write needs `text`, or bytes as `base64`.")


def too_many(limit: int) -> BridgeError:
    """What is raised for a listing that is too long."""
    return BridgeError("VALUE_TOO_LARGE", f"More than {limit:,} entries. Ask for a part of them.")


def _number(params: dict[str, Any], name: str, default: int) -> int:
    value = params.get(name, default)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise BridgeError("TOOL_INPUT_INVALID", f"{name} is not a number of bytes.")
    return value
