"""Values against what was wanted of them: JSON, numbers and ranges; and what a difference is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from executor.testing.form import Number
from executor.workspace.text import plural

SHOWN = 400  # characters of a value in a message


class Mismatch(BaseModel):
    """One thing that was not as expected."""

    where: str
    """`exit`, `stdout`, or `files out/*.svg`."""
    expected: str
    got: str
    diff: str = ""
    """From the expected to what came, for texts of several lines."""

    @property
    def reason(self) -> str:
        """In one sentence."""
        return f"{self.where}: expected {self.expected}, got {self.got}"


def subset(
    wanted: Any, found: Any, path: str = "$", *, whole: bool = False
) -> Iterator[tuple[str, str, str]]:
    """(path, expected, got) where `wanted` is no part of `found`; with `whole`, where it is not the same.

    A map may have more keys; a list has as many items, each a part of its counterpart; numbers are compared
    to nine digits, true and false are no numbers.
    """
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            yield path, "a map", json_text(found)
            return
        for key, value in wanted.items():
            if str(key) not in found:
                yield f"{path}.{key}", json_text(value), "nothing"
            else:
                yield from subset(value, found[str(key)], f"{path}.{key}", whole=whole)
        if whole:
            for key in sorted(found.keys() - set(map(str, wanted))):
                yield f"{path}.{key}", "nothing", json_text(found[key])
    elif isinstance(wanted, list):
        if not isinstance(found, list):
            yield path, "a list", json_text(found)
        elif len(wanted) != len(found):
            yield path, plural(len(wanted), "item"), f"{len(found)}: {json_text(found)}"
        else:
            for index, pair in enumerate(zip(wanted, found, strict=True)):
                yield from subset(*pair, f"{path}[{index}]", whole=whole)
    elif not _same(wanted, found):
        yield path, json_text(wanted), json_text(found)


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return wanted == found or math.isclose(wanted, found, rel_tol=1e-9)
    return type(wanted) is type(found) and bool(wanted == found)


def json_text(value: Any) -> str:
    """A value for a message, of a bounded length."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def within(wanted: Number, got: int) -> bool:
    """Whether a number is the wanted one, or in the wanted range."""
    if isinstance(wanted, int):
        return got == wanted
    return (wanted.min is None or got >= wanted.min) and (wanted.max is None or got <= wanted.max)


def counted(wanted: Number, noun: str = "") -> str:
    """A wanted number or range in words, with what is counted if that is given."""
    if noun:
        return plural(wanted, noun) if isinstance(wanted, int) else f"{counted(wanted)} {noun}s"
    if isinstance(wanted, int):
        return f"{wanted:,}"
    if wanted.min is not None and wanted.max is not None:
        return f"{wanted.min:,} to {wanted.max:,}"
    return f"at least {wanted.min:,}" if wanted.min is not None else f"at most {wanted.max or 0:,}"
