"""Everything that the executor itself says: short lines on stderr, tables on stdout.

Names and text from skills and scripts are hostile: they go through `printable` here, and nothing is read as
markup. Colour only on a terminal, and not with NO_COLOR.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TextIO

from executor.errors import ExecutorError
from executor.workspace.text import printable, printable_name

if TYPE_CHECKING:
    from rich.console import Console

PREFIX = "executor: "
GAP = "  "  # between the columns of a table
NARROWEST = 20  # columns of what is clipped to fit a terminal
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
STYLES = {
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
    "warning": "yellow",
    "error": "bold red",
    "hint": "dim",
}
# Variables by which Rich takes for a terminal what is none.
FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")
Line = list[tuple[str, str]]
"""Pieces of a line, each with its style."""

stdout_is_closed = False
"""Nobody gave this process a stdout. What a script writes may be lost then; a JSON that was asked for not."""

_open_line = False


def line_is_open(is_open: bool) -> None:
    """Tell whether a script left the cursor in the middle of a line on stderr: `say` then ends it first."""
    global _open_line
    _open_line = is_open


@cache
def _console(stderr: bool) -> Console:
    from rich.console import Console

    # NO_COLOR is read here: Rich would keep bold and dim.
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    made = Console(stderr=stderr, color_system=colours, highlight=False, markup=False, emoji=False)
    if made.width < 1:  # COLUMNS=0, with which Rich would write nothing at all
        made.width = 80
    return made


def size(count: int) -> str:
    """Bytes for a person: `512 B`, `1.2 KiB`."""
    value = float(count)
    for unit in UNITS:
        if value < 1024 or unit == UNITS[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def say(text: str, *, kind: str = "") -> None:
    """One thing on stderr; `kind` is '', `warning`, `error` or `hint`."""
    first, *more = printable(text).strip("\n").split("\n")
    lines = [[(PREFIX, "dim"), (f"{kind}: " if kind else "", STYLES.get(kind, "")), (first, "")]]
    lines += [[(f"  {rest.strip()}", "")] for rest in more]
    glued = "\n" if _open_line else ""
    line_is_open(False)
    with contextlib.suppress(OSError):  # nobody reads it: that is no reason to fail
        sys.stderr.write(glued + _laid_out(lines, sys.stderr) + "\n")
        sys.stderr.flush()


def error(message: str, hint: str = "") -> None:
    """What went wrong, and the next step."""
    say(message, kind="error")
    if hint:
        say(hint, kind="hint")


def out(text: str = "") -> None:
    """A line, or several, on stdout."""
    with writing_stdout():
        print(printable(text))


def out_json(value: Any) -> None:
    """One JSON object on stdout, in ASCII, so that names that are not UTF-8 survive as escaped surrogates.

    ExecutorError when stdout is closed.
    """
    check_stdout()
    with writing_stdout():
        print(json.dumps(value, ensure_ascii=True, indent=2 if sys.stdout.isatty() else None))


@contextlib.contextmanager
def writing_stdout() -> Iterator[None]:
    """A full disk is the operator's to mend, and no fault of this program. A reader that goes is `main`'s."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ExecutorError(f"stdout cannot be written: {error.strerror}") from None


def check_stdout() -> None:
    """ExecutorError when what is written to stdout would be lost."""
    if stdout_is_closed:
        raise ExecutorError("stdout is closed: the JSON would be lost", hint="Send it to a file or a pipe.")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, clipped: str = "") -> None:
    """On stdout, a line for each row. On a terminal the column named `clipped` gives way to the others.

    A cell that is one of `ok`, `warn`, `fail` gets its colour.
    """
    from rich.cells import cell_len, set_cell_size

    lines = [list(headers), *([printable_name(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(cell) for cell in column) for column in zip(*lines, strict=True)]
    if clipped and sys.stdout.isatty():
        at = headers.index(clipped)
        room = _console(False).width - sum(widths) + widths[at] - len(GAP) * (len(widths) - 1)
        widths[at] = max(NARROWEST, min(widths[at], room))
    shown = []
    for number, line in enumerate(lines):
        row: Line = []
        for cell, width in zip(line, widths, strict=True):
            if cell_len(cell) > width:
                cell = set_cell_size(cell, width - 1).rstrip() + "…"
            style = STYLES.get(cell, "") if number else "bold"
            row += [(cell, style), (" " * (width - cell_len(cell)) + GAP, "")]
        shown.append(row)
    with writing_stdout():
        print(_laid_out(shown, sys.stdout))


def _laid_out(lines: Sequence[Line], stream: TextIO) -> str:
    """With colours if the stream is a terminal, which takes Rich: it is not imported for anything else."""
    if not stream.isatty() and not any(os.environ.get(name) for name in FORCING):
        whole = ["".join(text for text, _ in line) for line in lines]
        return "\n".join(line.expandtabs().rstrip() for line in whole)
    from rich.text import Text

    console = _console(stream is sys.stderr)
    rows = []  # each by itself: Rich looks at the whole of a text whenever it is added to
    for line in lines:
        rows.append(Text.assemble(*line))
        rows[-1].rstrip()
    with console.capture() as captured:  # Rich does not write it: it ends on a broken pipe
        console.print(Text("\n").join(rows), soft_wrap=True)
    return captured.get().rstrip("\n")
