r"""A person's terminal and a program in a sandbox: raw keys one way, a screen without dangers the other way.

A program that draws needs sequences that move the cursor, erase, colour and switch modes. Those of `_FINAL`
and `_MODES` go through. Everything with which a program could do more than draw is taken out: titles,
clipboard (`\x1b]52;…`), printing, window operations, and every query whose answer could hold text of the
program's own, which the terminal would type into the shell of this machine. At the end all that was changed
is put back.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
from collections.abc import Iterator

from executor.workspace.text import printable

SIZE = (24, 80)  # rows and columns of a terminal that does not say

# Control sequences by their last letter: cursor, erasing, inserting, scrolling, colours, tabs, status.
_FINAL = frozenset("@ABCDEFGHIJKLMPSTXZ`abcdefgmnrsu")
# Private modes (`\x1b[?25h`): keys, wrapping, cursor, other screen, mouse, focus, pasting, drawing at once.
_MODES = frozenset(
    {1, 6, 7, 12, 25, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1048, 1049, 2004, 2026}
)
_ON_AT_FIRST = frozenset({7, 25})  # the others are off
_MOST = 256  # characters of a sequence

_SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[(?P<prefix>[<-?]?)(?P<params>[0-9;:]*)(?P<middle>[ -/]*)(?P<final>[@-~])"
    r"|(?P<string>[\]PX^_])"
    r"|(?P<charset>[()*+][0-9A-Za-z])"
    r"|(?P<simple>[78DEHM=>c])"
    r"|(?P<other>(?![][PX^_()*+])[ -~])"
    r")|(?P<plain>[\r\n\t\x07\x08])"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[<-?]?[0-9;:]*[ -/]*|[()*+])?\Z")
_STRING_END = re.compile(r"\x07|\x1b\\|[\x18\x1a\x9c]|(?=\n)")


class ScreenFilter:
    """Bytes for a terminal from a program's bytes, piece by piece, however they are cut."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._in_string = False
        self._modes: dict[int, bool] = {}
        self._drawn: dict[str, str] = {}
        """What was changed → what puts it back."""

    def feed(self, data: bytes, *, end: bool = False) -> bytes:
        """What may be written now; at the end also what puts the terminal back."""
        text = self._held + self._decoder.decode(data, end)
        self._held = ""
        shown = "".join(self._pieces(text, end)) + (self._restoring() if end else "")
        return shown.encode("utf-8")

    def _pieces(self, text: str, end: bool) -> Iterator[str]:
        at = 0
        while at < len(text):
            if self._in_string:  # nothing of it is shown; it ends with its line
                over = _STRING_END.search(text, at)
                if over is None:
                    self._held = "\x1b" if text.endswith("\x1b") and not end else ""
                    return
                self._in_string, at = False, over.end()
                continue
            found = _SEQUENCE.search(text, at)
            plain = text[at : found.start() if found else len(text)]
            unfinished = _UNFINISHED.search(plain) if found is None and not end else None
            if unfinished and len(unfinished[0]) <= _MOST:
                self._held = unfinished[0]
                plain = plain[: unfinished.start()]
            yield printable(plain)
            if found is None:
                return
            at = found.end()
            yield self._sequence(found)

    def _sequence(self, found: re.Match[str]) -> str:
        if found["plain"] or found["simple"]:
            return found[0]
        if found["charset"]:
            self._drawn["charset"] = "\x1b(B"
            return found[0]
        if found["string"]:
            self._in_string = True
            return ""
        final, prefix = found["final"], found["prefix"]
        if not final or found["middle"] not in ("", " ") or len(found[0]) > _MOST:
            return ""
        if final in "hl" and prefix in ("", "?"):
            return self._switch(found["params"], prefix, final)
        if final == "q" and found["middle"]:  # shape of the cursor
            self._drawn["cursor"] = "\x1b[0 q"
            return found[0]
        if final not in _FINAL or found["middle"] or (prefix and (prefix != "?" or final not in "JKn")):
            return ""
        if final == "m":
            self._drawn["colour"] = "\x1b[0m"
        elif final == "r":
            self._drawn["region"] = "\x1b7\x1b[r\x1b8"
        return found[0]

    def _switch(self, params: str, prefix: str, final: str) -> str:
        numbers = [int(number[:6]) for number in re.split("[;:]", params) if number]
        if not prefix:
            return f"\x1b[4{final}" if numbers == [4] else ""
        allowed = [number for number in numbers if number in _MODES]
        for number in allowed:
            self._modes[number] = final == "h"
        return f"\x1b[?{';'.join(map(str, allowed))}{final}" if allowed else ""

    def _restoring(self) -> str:
        modes = [
            f"\x1b[?{number}{'h' if number in _ON_AT_FIRST else 'l'}"
            for number, is_on in self._modes.items()
            if is_on != (number in _ON_AT_FIRST)
        ]
        return "".join([*modes, *self._drawn.values()])


def size(fd: int) -> tuple[int, int]:
    """Rows and columns of a terminal."""
    with contextlib.suppress(OSError):
        columns, rows = os.get_terminal_size(fd)
        if 0 < rows <= 10_000 and 0 < columns <= 10_000:
            return rows, columns
    return SIZE


@contextlib.contextmanager
def raw_keys(fd: int) -> Iterator[None]:
    """Every key as it is pressed, also Ctrl-C and Ctrl-Z; afterwards the terminal is as it was."""
    if sys.platform == "win32":
        raise OSError("a Windows console cannot be used")
    import termios
    import tty

    before = termios.tcgetattr(fd)
    tty.setraw(fd, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
