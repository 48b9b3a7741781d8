"""Reads TOML of strangers: that of skills, in a time and with a memory that its length allows.

`tomllib` needs both with the square of a dotted key's length: 400 KB of `a.a.a.…` end the process.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_PARTS = 32  # of one key; people write three
_BARE, _BASIC, _LITERAL = r"[\w-]++", r'"(?:[^"\\\n]|\\.)*+"', r"'[^'\n]*+'"
_LONG_KEY = re.compile(rf"(?<![\w-])(?:(?:{_BARE}|{_BASIC}|{_LITERAL})[ \t]*+\.[ \t]*+){{{MAX_PARTS}}}")


def loads(text: str) -> dict[str, Any]:
    """The document. ValueError with the reason for what is none, or is not to be read."""
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {MAX_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
