#!/usr/bin/env python3
"""Draw a heat map of a CSV table as a PNG and pack it with its numbers into a zip.

Standard library only, Python 3.9 or newer. The PNG encoder and the font are this skill's own, and
nothing written depends on the clock or the machine: the same table gives the same bytes.
"""

import argparse
import codecs
import csv
import io
import json
import math
import os
import re
import struct
import sys
import unicodedata
import zipfile
import zlib
from decimal import Decimal

import font

EXIT_OK, EXIT_USAGE, EXIT_BAD_INPUT, EXIT_CANNOT_WRITE = 0, 2, 3, 4

MAX_SIDE = 200  # rows or columns of the map
MAX_PIXELS = 40_000_000
SAMPLE_ROWS = 500
ROW_NAMES = ("region", "category", "product", "department", "segment", "channel", "country", "store", "state", "type")
TIME_NAMES = ("month", "quarter", "year", "week", "weekday", "hour", "date", "day", "time", "period")
VALUE_NAMES = ("revenue", "sales", "amount", "total", "turnover", "value", "profit", "quantity", "units", "count")
NUMBER = re.compile(r"[+-]?(?:[0-9]{1,15}|[0-9]{1,3}(?:,[0-9]{3}){1,4})(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,2})?")

# Colours: light to dark for one direction, orange to blue through white for two. Both keep their order in grey
# within a direction and stay apart for the common kinds of colour blindness.
SEQUENTIAL = [(247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107)]
DIVERGING = [(127, 59, 8), (224, 130, 20), (254, 224, 182), (247, 247, 247), (178, 210, 232), (50, 120, 184), (5, 48, 97)]
WHITE, INK, MUTED, MISSING = (255, 255, 255), (31, 41, 51), (82, 96, 109), (222, 222, 222)
STEPS = 200  # palette entries for the scale


class BadInput(Exception):
    pass


class Usage(Exception):
    pass


# ---------------------------------------------------------------- the table


def printable(text):
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs", "Cf") else c for c in " ".join(str(text).split()))


def parse_number(text):
    text = text.strip().replace("\u2212", "-").lstrip("$€£¥ ").rstrip("% ")
    return Decimal(text.replace(",", "")) if NUMBER.fullmatch(text) else None


def open_table(path):
    with open(path, "rb") as stream:
        data = stream.read(64 * 1024)
    if not data.strip():
        raise BadInput("the file is empty")
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\x00" in data or data.startswith(b"PK\x03\x04"):
        raise BadInput("this looks like a binary file, not CSV")
    return open(path, encoding=encoding, errors="replace", newline="")


def guess_delimiter(sample):
    line = sample.split("\n", 1)[0]
    return max(",;\t|", key=lambda d: (line.count(d), -",;\t|".index(d)))


def rows_of(reader):
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            row = [""] * 1_000  # matches no header: counted as a bad row
        if row and any(c.strip() for c in row):
            yield reader.line_num, row


def words(name):
    return [w for w in re.split(r"[^a-z0-9]+", name.casefold()) if w]


def column(names, wanted, option):
    for index, name in enumerate(names):
        if name.casefold() == wanted.strip().casefold():
            return index
    raise Usage(f"{option}: no column named {printable(wanted)!r}; the columns are: {', '.join(names)}")


def preferred(names, candidates, wishes):
    for wish in wishes:
        for index in candidates:
            if wish == names[index].casefold() or wish in words(names[index]):
                return index
    return None


def choose(names, sample, args):
    """Indexes of the row, column and value columns: as asked, else found by name and content."""
    every = range(len(names))
    cells = [[r[i].strip() for r in sample if i < len(r) and r[i].strip()] for i in every]
    numeric = {i for i in every if cells[i] and sum(parse_number(c) is not None for c in cells[i]) >= 0.7 * len(cells[i])}
    times = [i for i in every if set(words(names[i])) & set(TIME_NAMES)]
    value = column(names, args.value, "--value") if args.value else None
    down = column(names, args.rows, "--rows") if args.rows else None
    across = column(names, args.cols, "--cols") if args.cols else None
    if across is None:
        free = [i for i in times if i not in (value, down)]
        across = preferred(names, free, TIME_NAMES)
    texts = [i for i in every if i not in numeric and i not in (value, down, across)]
    if down is None:
        down = preferred(names, [i for i in texts if i not in times], ROW_NAMES)
        if down is None:
            down = texts[0] if texts else None
    if across is None:
        across = next((i for i in texts if i != down), None)
    if value is None:
        free = [i for i in every if i in numeric and i not in (down, across) and i not in times
                and not {"id", "code", "zip", "no", "nr"} & set(words(names[i]))]
        value = preferred(names, free, VALUE_NAMES)
        if value is None and free:
            value = free[-1]
    for index, option in ((down, "--rows"), (across, "--cols"), (value, "--value")):
        if index is None:
            raise Usage(f"no fitting column found; name one with {option} (columns: {', '.join(names)})")
    if len({down, across, value}) < 3:
        raise Usage("--rows, --cols and --value must be three different columns")
    return down, across, value


MONTHS = {m: i for i, m in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split())}
WEEKDAYS = {d: i for i, d in enumerate("mon tue wed thu fri sat sun".split())}


def in_order(labels):
    """Numbers, months and weekdays in their own order, anything else by text."""
    def by_number(label):
        return (parse_number(label), label)

    if all(parse_number(x) is not None for x in labels):
        return sorted(labels, key=by_number)
    for calendar in (MONTHS, WEEKDAYS):
        if all(x[:3].casefold() in calendar and x.isalpha() for x in labels):
            return sorted(labels, key=lambda x: (calendar[x[:3].casefold()], x))
    return sorted(labels)


def load(args):
    """The pivot: row labels, column labels, {(row, column): sum}, names, counts."""
    with open_table(args.input) as stream:
        sample_text = stream.read(64 * 1024)
        delimiter = args.delimiter or guess_delimiter(sample_text)
        stream.seek(0)
        sample = [r for _, r in zip(range(SAMPLE_ROWS), (row for _, row in
                  rows_of(csv.reader(io.StringIO(sample_text, newline=""), delimiter=delimiter))))][1:]
        table = rows_of(csv.reader(stream, delimiter=delimiter))
        header = next(table, None)
        if header is None:
            raise BadInput("there is no header row")
        names = [printable(n) or f"column {i + 1}" for i, n in enumerate(header[1])]
        down, across, at = choose(names, sample, args)
        sums, used, bad, first_bad = {}, 0, 0, []
        seen_rows, seen_cols = set(), set()
        for line, row in table:
            value = parse_number(row[at]) if len(row) == len(names) else None
            if value is None:
                bad += 1
                if len(first_bad) < 20:
                    first_bad.append(line)
                continue
            key = (printable(row[down]) or "(blank)", printable(row[across])[: args.clip] or "(blank)")
            seen_rows.add(key[0])
            seen_cols.add(key[1])
            if len(seen_rows) > MAX_SIDE or len(seen_cols) > MAX_SIDE:
                side, name = (("rows", names[down]) if len(seen_rows) > MAX_SIDE else ("cols", names[across]))
                raise BadInput(f"column {name!r} has more than {MAX_SIDE} different values; choose another with --{side}"
                               + ("" if side == "rows" else ", or shorten labels with --clip (7 turns dates into months)"))
            sums[key] = sums.get(key, 0) + value
            used += 1
    if not used:
        raise BadInput("no row has a number in the value column")
    return {
        "rows": in_order(seen_rows), "cols": in_order(seen_cols),
        "sums": {key: float(total) for key, total in sums.items()},
        "names": {"rows": names[down], "cols": names[across], "value": names[at]},
        "used": used, "bad": bad, "first_bad": first_bad,
    }


# ---------------------------------------------------------------- picture


class Canvas:
    """An image of palette indexes."""

    def __init__(self, width, height):
        self.width, self.height, self.palette = width, height, []
        self.pixels = bytearray(width * height)

    def colour(self, rgb):
        if rgb not in self.palette:
            self.palette.append(rgb)
        return self.palette.index(rgb)

    def box(self, x, y, width, height, index):
        line = bytes([index]) * width
        for row in range(y, y + height):
            start = row * self.width + x
            self.pixels[start : start + width] = line

    def text(self, x, y, content, index, size=2):
        for char in content:
            for down, bits in enumerate(font.rows(char)):
                for along in range(font.WIDTH):
                    if bits & (16 >> along):
                        self.box(x + along * size, y + down * size, size, size, index)
            x += (font.WIDTH + 1) * size

    def png(self, title):
        """The file: one IDAT, filter 0 on every line, 8-bit palette."""
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        lines = b"".join(b"\x00" + self.pixels[y * self.width : (y + 1) * self.width] for y in range(self.height))
        title_text = zlib.compress(title.encode("utf-8"), 9)
        return b"".join((
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", self.width, self.height, 8, 3, 0, 0, 0)),
            chunk(b"PLTE", bytes(value for rgb in self.palette for value in rgb)),
            chunk(b"iTXt", b"Title\x00\x01\x00\x00\x00" + title_text),
            chunk(b"IDAT", zlib.compress(lines, 9)),
            chunk(b"IEND", b""),
        ))


def text_width(content, size=2):
    return len(content) * (font.WIDTH + 1) * size


def ascii_label(text, limit):
    """What the font can draw: accents fall away, other letters become boxes."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return plain if len(plain) <= limit else plain[: limit - 2] + ".."


def ramp(colours, position):
    """The colour at 0..1 along a list of colours."""
    place = position * (len(colours) - 1)
    low = min(int(place), len(colours) - 2)
    part = place - low
    return tuple(round(a + (b - a) * part) for a, b in zip(colours[low], colours[low + 1]))


def short_number(value):
    for size, mark in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{mark}"
    return f"{value:.3g}"


def scale_of(values):
    """(low, high, colours): symmetric about zero when values have both signs."""
    low, high = min(values), max(values)
    if low < 0 < high:
        reach = max(-low, high)
        return -reach, reach, DIVERGING
    if high <= 0 and low < 0:
        return low, 0.0, list(reversed(SEQUENTIAL))
    return min(0.0, low), high if high > 0 else 1.0, SEQUENTIAL


def draw(pivot, args, title):
    """The picture, and where each cell is: {(row, column): [x, y, width, height]}."""
    low, high, colours = scale_of(pivot["sums"].values())
    row_labels = [ascii_label(r, 24) for r in pivot["rows"]]
    col_labels = [ascii_label(c, 12) for c in pivot["cols"]]
    cell_width = args.cell or max(28, min(96, max(text_width(c) for c in col_labels) + 12, 2400 // len(col_labels)))
    cell_height = args.cell or 28
    left = 24 + max(text_width(r) for r in row_labels) + 10
    width = max(left + cell_width * len(col_labels) + 24, text_width(ascii_label(title, 60)) + 48, left + 320)
    top = 84
    bottom = top + cell_height * len(row_labels)
    height = bottom + 72
    if width * height > MAX_PIXELS:
        raise Usage("the picture would be too large; use a smaller --cell")
    canvas = Canvas(width, height)
    white, ink, muted, missing = (canvas.colour(c) for c in (WHITE, INK, MUTED, MISSING))
    steps = [canvas.colour(ramp(colours, i / (STEPS - 1))) for i in range(STEPS)]

    def step(value):
        return round((value - low) / (high - low) * (STEPS - 1))

    canvas.box(0, 0, width, height, white)
    canvas.text(24, 20, ascii_label(title, 60), ink)
    canvas.text(left, 46, ascii_label(pivot["names"]["cols"], 40), muted, 1)
    every = max(1, math.ceil((max(text_width(c) for c in col_labels) + 8) / cell_width))
    for i, label in enumerate(col_labels):
        if i % every == 0:
            canvas.text(left + i * cell_width + max(0, (cell_width - text_width(label)) // 2), 62, label, ink)
    cells = {}
    for j, (row, label) in enumerate(zip(pivot["rows"], row_labels)):
        y = top + j * cell_height
        if cell_height >= 14 or j % 2 == 0:
            canvas.text(left - 10 - text_width(label), y + max(0, (cell_height - 14) // 2), label, ink)
        for i, col in enumerate(pivot["cols"]):
            x = left + i * cell_width
            value = pivot["sums"].get((row, col))
            index = missing if value is None else steps[step(value)]
            canvas.box(x, y, cell_width - 1, cell_height - 1, index)
            cells[row, col] = [x, y, cell_width - 1, cell_height - 1]
            shown = "" if value is None else short_number(value)
            if value is not None and cell_height >= 16 and text_width(shown, 1) + 4 <= cell_width:
                red, green, blue = canvas.palette[index]
                dark = red * 299 + green * 587 + blue * 114 < 140_000
                canvas.text(x + (cell_width - text_width(shown, 1)) // 2, y + (cell_height - 7) // 2, shown, white if dark else ink, 1)
    legend = min(200, width - left - 60)
    for i in range(legend):
        canvas.box(left + i, bottom + 20, 1, 12, steps[i * (STEPS - 1) // (legend - 1)])
    for at, value in ((0, low), (legend, high)):
        mark = short_number(value)
        canvas.text(left + at - (text_width(mark, 1) // 2 if at else 0), bottom + 38, mark, ink, 1)
    canvas.text(left, bottom + 52, ascii_label("sum of " + pivot["names"]["value"], 40), muted, 1)
    return canvas.png(title), cells, {"low": low, "high": high, "width": width, "height": height}


# ---------------------------------------------------------------- files


def whole(value):
    return int(value) if value is not None and value == int(value) else value


def matrix_csv(pivot):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([pivot["names"]["rows"], *pivot["cols"]])
    for row in pivot["rows"]:
        sums = (pivot["sums"].get((row, col)) for col in pivot["cols"])
        writer.writerow([row, *("" if value is None else whole(value) for value in sums)])
    return out.getvalue().encode("utf-8")


def bundle(members):
    """A zip whose bytes depend on its content alone: fixed time, order, mode, and no compression
    (a PNG is compressed already, and other zlib builds would compress the rest to other bytes)."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, members[name])
    return out.getvalue()


def arguments(argv):
    def size(value):
        if not value.isdigit() or not 4 <= int(value) <= 400:
            raise argparse.ArgumentTypeError("must be a number from 4 to 400")
        return int(value)

    def clip(value):
        if not value.isdigit() or not 1 <= int(value) <= 100:
            raise argparse.ArgumentTypeError("must be a number from 1 to 100")
        return int(value)

    def one_char(value):
        value = {"tab": "\t", "\\t": "\t"}.get(value, value)
        if len(value) != 1 or value in '"\r\n':
            raise argparse.ArgumentTypeError("must be one character (or 'tab')")
        return value

    parser = argparse.ArgumentParser(
        prog="heatmap.py",
        description="Draw a heat map of a CSV table: heatmap.png, heatmap.csv, heatmap.json and bundle.zip.",
        epilog="Exit codes: 0 done, 2 wrong usage, 3 the input is not a usable table, 4 cannot write.",
    )
    parser.add_argument("input", metavar="INPUT.csv", help="the table; its first row names the columns")
    parser.add_argument("--rows", metavar="COLUMN", help="column whose values go down (default: found, such as region)")
    parser.add_argument("--cols", metavar="COLUMN", help="column whose values go across (default: found, such as month)")
    parser.add_argument("--value", metavar="COLUMN", help="numeric column that is summed (default: found, such as amount)")
    parser.add_argument("--clip", type=clip, default=100, metavar="N",
                        help="keep the first N characters of column labels: 7 turns 2024-05-31 into 2024-05")
    parser.add_argument("--cell", type=size, metavar="PX", help="side of a cell in pixels (default: fits the labels)")
    parser.add_argument("--title", help="title of the picture")
    parser.add_argument("--delimiter", type=one_char, metavar="CHAR", help="column delimiter (default: found)")
    parser.add_argument("--out", metavar="DIR", help="folder for the results (default: out)")
    return parser.parse_args(argv)


def main(argv=None):
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    args = arguments(argv)
    shown = printable(args.input)
    try:
        pivot = load(args)
        names = pivot["names"]
        title = printable(args.title or f"{names['value']} by {names['rows']} and {names['cols']}")
        picture, cells, scale = draw(pivot, args, title)
    except Usage as error:
        print(f"heatmap.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BadInput as error:
        print(f"heatmap.py: {shown}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (OSError, UnicodeError) as error:
        print(f"heatmap.py: cannot read {shown}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    facts = {
        "title": title, "columns": names, "scale": {"low": whole(scale["low"]), "high": whole(scale["high"])},
        "image": {"width": scale["width"], "height": scale["height"]},
        "table": {"used": pivot["used"], "bad": pivot["bad"], "first_bad_lines": pivot["first_bad"]},
        "cells": [{"row": r, "col": c, "sum": whole(pivot["sums"].get((r, c))), "box": cells[r, c]}
                  for r in pivot["rows"] for c in pivot["cols"]],
    }
    files = {
        "heatmap.png": picture,
        "heatmap.csv": matrix_csv(pivot),
        "heatmap.json": (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode("ascii"),
    }
    files["bundle.zip"] = bundle(files)
    folder = args.out or ("out" if os.path.isdir("out") else os.environ.get("OUTPUT_DIR") or "out")
    try:
        os.makedirs(folder, exist_ok=True)
        for name, content in files.items():
            with open(os.path.join(folder, name), "wb") as stream:
                stream.write(content)
    except OSError as error:
        print(f"heatmap.py: cannot write to {printable(folder)}: {error.strerror}", file=sys.stderr)
        return EXIT_CANNOT_WRITE
    print(f"{title}: {len(pivot['rows'])} rows by {len(pivot['cols'])} columns, "
          f"{pivot['used']:,} table rows used, {pivot['bad']:,} left out")
    print("wrote " + ", ".join(f"{printable(folder)}/{name} ({len(content):,} bytes)" for name, content in files.items()))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
