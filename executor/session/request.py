"""What a caller asks of a run as the bytes and numbers it is told; BadRequestError for what has none."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Any

from executor.errors import BadLimitError, BadRequestError
from executor.workspace.text import to_bytes

LONGEST = 7 * 86400
MOST_MODULES, LONGEST_MODULE = 32, 200  # of warm interpreters
_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def argument(value: Any, what: str) -> bytes:
    """A word as bytes: text is UTF-8, and what came from bytes goes back to them."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        try:
            value = to_bytes(value)
        except UnicodeEncodeError:
            raise BadRequestError(
                f"{what} holds a lone surrogate, which is no character: {value[:80]!r}", hint="Give bytes."
            ) from None
    if not isinstance(value, bytes):
        raise BadRequestError(f"{what} is {value!r}, a {type(value).__name__}: text or bytes are needed")
    if b"\0" in value:
        raise BadRequestError(f"{what} holds a NUL byte, which no argument can have")
    return value


def is_like_path(text: str, dest: str) -> bool:
    """Whether a text may have been meant as the path of a file: one word that begins as paths do, or ends as
    `dest` does (`.csv`).

    The host is not asked: a text may be a model's, which is not to learn what files there are.
    """
    if len(text) > 1000 or text.split() != [text]:
        return False
    suffix = posixpath.splitext(dest)[1]
    return text.startswith(("/", "./", "../", "~/")) or bool(suffix and text.endswith(suffix))


def words(command: Any) -> list[bytes]:
    """A shell line as one word, an argument vector as its words."""
    if isinstance(command, str):
        argv = [argument(command, "the command")]
    elif isinstance(command, Sequence) and not isinstance(command, (bytes, bytearray, memoryview)):
        argv = [argument(word, "the command") for word in command]
    else:
        raise BadRequestError(
            f"the command is a {type(command).__name__}",
            hint="Give text for a shell line, or a list of words.",
        )
    if not argv or not argv[0].strip():
        raise BadRequestError("the command is empty")
    return argv


def stdin(value: Any) -> bytes:
    """What a script reads."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadRequestError(
                "the text for stdin holds lone surrogates, which are no characters", hint="Give bytes."
            ) from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise BadRequestError(f"stdin is a {type(value).__name__}: text or bytes are needed")


def timeout(value: Any) -> float:
    """Seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LONGEST:
        raise BadLimitError(f"timeout={value!r} is not more than 0 and at most {LONGEST:,} seconds")
    return float(value)


def warm(value: Iterable[str] | str) -> tuple[str, ...]:
    """The modules of warm interpreters, sorted: `python:numpy,pandas` in one entry or in several."""
    entries = (value,) if isinstance(value, str) else tuple(value)
    modules: set[str] = set()
    for entry in entries:
        language, colon, names = entry.partition(":") if isinstance(entry, str) else ("", "", "")
        found = [name.strip() for name in names.split(",")]
        if not colon or not all(_MODULE.fullmatch(name) and len(name) <= LONGEST_MODULE for name in found):
            raise BadRequestError(
                f"warm={str(entry)[:80]!r} names no interpreter with its modules",
                hint="Write the language, a colon and names of modules: python:numpy,pandas.",
            )
        if language != "python":
            raise BadRequestError(f"there is no warm interpreter for {language[:80]!r}, only for python")
        modules.update(found)
    if len(modules) > MOST_MODULES:
        raise BadRequestError(f"warm names {len(modules)} modules, at most {MOST_MODULES}")
    return tuple(sorted(modules))


def patterns(value: Iterable[str] | str) -> tuple[str, ...]:
    """Globs; one stands for itself."""
    if isinstance(value, str):
        return (value,)
    try:
        found = tuple(value)
    except TypeError:
        raise BadRequestError(f"outputs is {value!r}: a list of globs is needed") from None
    if any(not isinstance(pattern, str) for pattern in found):
        raise BadRequestError(f"outputs is {found!r}: globs are text")
    return found
