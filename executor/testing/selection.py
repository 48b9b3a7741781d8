"""The expressions of `-k`: words with `and`, `or`, `not` and parentheses, as pytest users know them."""

from __future__ import annotations

import re
from collections.abc import Callable

from executor.errors import BadRequestError

Predicate = Callable[[str], bool]

MAX_LENGTH = 1000
_OPERATORS = frozenset({"and", "or", "not", "(", ")"})


def compile_expression(text: str) -> Predicate:
    """Whether a case's title is meant. Words side by side are one text with blanks; case does not count.

    BadRequestError when it cannot be read.
    """
    if len(text) > MAX_LENGTH:
        raise BadRequestError(f"-k is longer than {MAX_LENGTH:,} characters")
    tokens = re.findall(r"[()]|[^\s()]+", text)
    if not tokens:
        raise BadRequestError("-k is empty", hint="Write a part of a name, as in -k 'totals and not slow'.")
    parser = _Parser(text, tokens)
    found = parser.either()
    if parser.at < len(tokens):
        raise parser.wrong()
    return lambda title: found(title.lower())


class _Parser:
    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    def wrong(self) -> BadRequestError:
        """What cannot be read, and where."""
        where = repr(self.tokens[self.at]) if self.at < len(self.tokens) else "its end"
        return BadRequestError(
            f"-k {self.text!r} cannot be read at {where}", hint="Use and, or, not, ( and )."
        )

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, word: str) -> bool:
        if self.peek() == word:
            self.at += 1
            return True
        return False

    def either(self) -> Predicate:
        parts = [self.both()]
        while self.take("or"):
            parts.append(self.both())
        return lambda title: any(part(title) for part in parts)

    def both(self) -> Predicate:
        parts = [self.one()]
        while self.take("and"):
            parts.append(self.one())
        return lambda title: all(part(title) for part in parts)

    def one(self) -> Predicate:
        if self.take("not"):
            negated = self.one()
            return lambda title: not negated(title)
        if self.take("("):
            inner = self.either()
            if not self.take(")"):
                raise self.wrong()
            return inner
        words = []
        while self.peek() and self.peek() not in _OPERATORS:
            words.append(self.peek().lower())
            self.at += 1
        if not words:
            raise self.wrong()
        phrase = " ".join(words)
        return lambda title: phrase in title
