#!/usr/bin/env python3
"""Group a CSV table by one column and write a report: JSON, Markdown and an SVG chart.

Standard library only, Python 3.9 or newer. The file is read once, row by row, so memory
depends on the number of groups and not on the number of rows. A row that cannot be used is
counted and reported, never fatal.
"""

import argparse
import codecs
import csv
import datetime
import io
import json
import math
import os
import re
import sys
import unicodedata
from decimal import Decimal, localcontext
from xml.sax.saxutils import escape

EXIT_OK, EXIT_USAGE, EXIT_BAD_INPUT, EXIT_CANNOT_WRITE = 0, 2, 3, 4

SAMPLE_BYTES = 64 * 1024  # what encoding, delimiter and columns are guessed from
SAMPLE_ROWS = 500
MAX_GROUPS = 100_000  # more than this is an identifier, not a category
MAX_BAD_LISTED = 20
MAX_CHART_POINTS = 400
TABLE_ROWS = 50
PROGRESS_EVERY = 1_000_000
DELIMITERS = (",", ";", "\t", "|")

# Column names, most telling first. A name matches whole, or as one of its words.
GROUP_NAMES = (
    "region", "category", "product", "department", "segment", "channel", "country", "territory",
    "store", "customer", "client", "item", "brand", "salesperson", "seller", "type", "group", "state", "city",
)
VALUE_NAMES = (
    "revenue", "sales", "amount", "total", "turnover", "net", "gross", "value", "profit",
    "quantity", "qty", "units", "count",
)
NOT_A_VALUE = {
    "id", "key", "no", "nr", "code", "zip", "postcode", "phone", "sku", "index",
    "year", "month", "day", "week", "quarter", "hour",
}

PLAIN_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(?:\.[0-9]{0,40})?")
COMMA_NUMBER = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3}){1,12}(?:\.[0-9]{0,40})?")
EXPONENT_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(?:\.[0-9]{0,40})?[eE][+-]?[0-9]{1,2}")
CURRENCY = "$€£¥₹"
DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[T ][0-9:.,+\-Z ]*)?")
MONTH_OR_YEAR = re.compile(r"[0-9]{4}(?:-[0-9]{2}|-?[Qq][1-4])?")
UNSAFE_FORMAT = "\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"


class BadInput(Exception):
    """The input cannot be read as a table; the message says why and what to do."""


class Usage(Exception):
    """An argument does not fit the input."""


# ---------------------------------------------------------------- text


def printable(text):
    """One line without control characters, lone surrogates or direction overrides."""
    out = []
    for char in " ".join(str(text).split()):
        kind = unicodedata.category(char)
        bad = kind in ("Cc", "Cs") or char in UNSAFE_FORMAT or char in "\ufffe\uffff"
        out.append("\ufffd" if bad else char)
    return "".join(out)


def shorten(text, limit):
    return text if len(text) <= limit else text[: limit - 1] + "…"


def markdown(text):
    text = re.sub(r"([\\`*_{}\[\]|#~!])", r"\\\1", printable(text))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def number_json(value):
    """An int where the value is whole, else the nearest float."""
    if value is None:
        return None
    return int(value) if value == value.to_integral_value() else float(value)


def number_text(value):
    """Thousands separated; two decimals only where there are any."""
    if value == value.to_integral_value():
        return f"{int(value):,}"
    return f"{value:,.2f}"


def number_short(value):
    """For the chart: 12.5M, 300k, 0.25."""
    value = float(value)
    for size, mark in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{mark}"
    return f"{value:.4g}"


# ---------------------------------------------------------------- numbers and dates


def grouped_number(group, decimal):
    """Thousands separators, only where they stand between groups of three digits."""
    return re.compile(r"([+-]?)([0-9]{1,3}([%s'’ \u00a0\u202f])[0-9]{3}(?:\3[0-9]{3})*)(?:%s([0-9]*))?"
                      % (re.escape(group), re.escape(decimal)))


GROUPED_NUMBER = {".": grouped_number(",", "."), ",": grouped_number(".", ",")}


def parse_number(text, decimal):
    """A Decimal, or None when the text is not a number in the given convention."""
    if decimal == ".":  # the two usual shapes first: this is the inner loop
        if PLAIN_NUMBER.fullmatch(text):
            return Decimal(text)
        if COMMA_NUMBER.fullmatch(text):
            return Decimal(text.replace(",", ""))
    text = text.strip().replace("\u2212", "-")
    negative = False
    if text.startswith("(") and text.endswith(")"):
        negative, text = True, text[1:-1].strip()
    elif text.endswith("-"):
        negative, text = True, text[:-1].rstrip()
    text = text.strip(CURRENCY + "% \u00a0\u202f")
    if text[:1] in "+-" and text[1:2] and text[1] in CURRENCY + " ":
        text = text[0] + text[1:].strip(CURRENCY + " \u00a0\u202f")
    match = GROUPED_NUMBER[decimal].fullmatch(text)
    if match:
        digits = re.sub(r"[^0-9]", "", match.group(2))
        text = match.group(1) + digits + "." + (match.group(4) or "0")
    elif decimal == ",":
        if "." in text:
            return None
        text = text.replace(",", ".", 1)
    if text.startswith("."):
        text = "0" + text
    if not (PLAIN_NUMBER.fullmatch(text) or EXPONENT_NUMBER.fullmatch(text)):
        return None
    value = Decimal(text)
    return -value if negative else value


def parse_day(text):
    match = DATE.fullmatch(text.strip())
    if not match:
        return None
    try:
        return datetime.date(*map(int, match.groups()))
    except ValueError:
        return None


def is_time(text):
    return bool(MONTH_OR_YEAR.fullmatch(text.strip())) or parse_day(text) is not None


def is_year(text):
    text = text.strip()
    return len(text) == 4 and text.isdigit() and 1500 <= int(text) <= 2200


def period_label(text, period):
    day = parse_day(text)
    if day is None:
        return text
    return day.isoformat()[: {"year": 4, "month": 7, "day": 10}[period]]


# ---------------------------------------------------------------- the table


def guess_encoding(head):
    """(encoding, warning or None) from the first bytes."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16", None
    if head.startswith(b"PK\x03\x04"):
        raise BadInput("this is a ZIP or Excel file, not CSV; save the sheet as CSV first")
    if b"\x00" in head:
        raise BadInput("this looks like a binary file, not CSV")
    try:
        codecs.getincrementaldecoder("utf-8-sig")().decode(head, final=len(head) < SAMPLE_BYTES)
        return "utf-8-sig", None
    except UnicodeDecodeError:
        return "cp1252", "the file is not UTF-8; read as Windows-1252 (set --encoding if that is wrong)"


def guess_delimiter(sample):
    """The candidate under which most rows have as many cells as the first, and that many is largest."""
    first = sample.split("\n", 1)[0].strip()
    if re.fullmatch(r"sep=.", first):
        return first[-1]
    best, best_score = ",", (0.0, 1)
    for candidate in DELIMITERS:
        try:
            rows = [r for r in csv.reader(io.StringIO(sample, newline=""), delimiter=candidate) if r][:SAMPLE_ROWS]
        except csv.Error:
            continue
        if not rows or len(rows[0]) < 2:
            continue
        width = len(rows[0])
        score = (sum(len(r) == width for r in rows) / len(rows), width)
        if score > best_score or best_score[1] == 1:
            best, best_score = candidate, score
    return best


def column_by_name(names, wanted, option):
    for test in (lambda n: n == wanted, lambda n: n.casefold() == wanted.strip().casefold()):
        for index, name in enumerate(names):
            if test(name):
                return index
    shown = ", ".join(printable(n) for n in names)
    raise Usage(f"{option}: no column named {printable(wanted)!r}; the columns are: {shown}")


def by_preference(names, candidates, preferred):
    for whole in (True, False):
        for wanted in preferred:
            for index in candidates:
                words = re.split(r"[^a-z0-9]+", names[index].casefold())
                if (names[index].casefold() == wanted) if whole else (wanted in words):
                    return index
    return None


class Columns:
    """What the sample says about each column, and the choice of group, value and decimal mark."""

    def __init__(self, names, rows, args):
        rows = [r for r in rows if len(r) == len(names)]
        cells = [[r[i].strip() for r in rows if r[i].strip()] for i in range(len(names))]

        def share(index, test):
            return sum(map(test, cells[index])) / len(cells[index]) if cells[index] else 0.0

        def numeric(index, decimal):
            return share(index, lambda c: parse_number(c, decimal) is not None)

        self.decimal = args.decimal
        if self.decimal == "auto":
            chosen = [column_by_name(names, args.value, "--value")] if args.value else range(len(names))
            points = sum(numeric(i, ".") for i in chosen)
            commas = sum(numeric(i, ",") for i in chosen)
            self.decimal = "," if commas > points else "."

        every = range(len(names))
        numbers = [i for i in every if numeric(i, self.decimal) >= 0.7]
        times = [i for i in every if share(i, is_time) >= 0.9 and
                 (i not in numbers or share(i, is_year) >= 0.9)]
        texts = [i for i in every if i not in numbers and i not in times]
        values = [i for i in numbers if i not in times
                  and not NOT_A_VALUE.intersection(re.split(r"[^a-z0-9]+", names[i].casefold()))]

        if args.value is not None:
            self.value = column_by_name(names, args.value, "--value")
        else:
            self.value = by_preference(names, values, VALUE_NAMES)
            if self.value is None and values:
                self.value = values[-1]
        if args.group is not None:
            self.group = column_by_name(names, args.group, "--group")
        else:
            free = [i for i in texts if i != self.value]
            self.group = by_preference(names, free, GROUP_NAMES)
            if self.group is None:
                repeated = [i for i in free if 2 <= len(set(cells[i])) < max(3, len(cells[i]))]
                others = [i for i in times if i != self.value] or [i for i in every if i != self.value]
                self.group = (sorted(repeated, key=lambda i: len(set(cells[i]))) or free or others or [0])[0]
        self.by_time = bool(cells[self.group]) and share(self.group, is_time) >= 0.9


class Group:
    __slots__ = ("count", "high", "low", "total")

    def __init__(self):
        self.count, self.total, self.low, self.high = 0, Decimal(0), None, None

    def add(self, value):
        self.count += 1
        if value is not None:
            self.total += value
            if self.low is None or value < self.low:
                self.low = value
            if self.high is None or value > self.high:
                self.high = value

    def measure(self, aggregate):
        if aggregate == "count":
            return Decimal(self.count)
        return self.total / self.count if aggregate == "mean" else self.total


class Report:
    def __init__(self, args):
        self.args = args
        self.groups, self.bad, self.bad_reasons, self.warnings = {}, [], {}, []
        self.read = self.used = 0

    def reject(self, line, reason, detail=""):
        self.bad_reasons[reason] = self.bad_reasons.get(reason, 0) + 1
        if len(self.bad) < MAX_BAD_LISTED:
            self.bad.append({"line": line, "reason": reason, "detail": shorten(printable(detail), 60)})

    def load(self):
        args = self.args
        with open(args.input, "rb") as binary:
            head = binary.read(SAMPLE_BYTES)
        if not head.strip():
            raise BadInput("the file is empty")
        encoding, warning = (args.encoding, None) if args.encoding else guess_encoding(head)
        if warning:
            self.warnings.append(warning)
        with open(args.input, encoding=encoding, errors="replace", newline="") as stream:
            sample = stream.read(SAMPLE_BYTES)
            if len(head) == SAMPLE_BYTES and "\n" in sample:
                sample = sample[: sample.rindex("\n") + 1]  # the last line may be cut
            delimiter = args.delimiter or guess_delimiter(sample)
            stream.seek(0)
            self.consume(stream, sample, delimiter)
        self.delimiter, self.encoding = delimiter, encoding

    def consume(self, stream, sample, delimiter):
        reader = csv.reader(stream, delimiter=delimiter)
        header = self.next_row(reader)
        if header and len(header) <= 2 and "".join(header).strip().startswith("sep="):
            header = self.next_row(reader)
        if not header:
            raise BadInput("there is no header row")
        names = [printable(n) or f"column {i + 1}" for i, n in enumerate(header)]
        self.names = names
        known = sample_rows(sample, delimiter)
        self.columns = columns = Columns(names, known, self.args)
        if not known and columns.value is None:
            raise BadInput("there is a header but no rows")
        if columns.value is None and self.args.agg != "count":
            raise BadInput("no numeric column found; name one with --value, or count rows with --agg count")
        width, group_at, value_at = len(names), columns.group, columns.value
        counting, period = self.args.agg == "count", self.args.period
        last_progress, periods = 0, {}
        while True:
            row = self.next_row(reader)
            if row is None:
                break
            self.read += 1
            if self.read - last_progress >= PROGRESS_EVERY:
                last_progress = self.read
                print(f"… {self.read:,} rows", flush=True)
            if len(row) != width and (len(row) < width or any(c.strip() for c in row[width:])):
                self.reject(reader.line_num, "wrong number of columns", f"{len(row)} instead of {width}")
                continue
            value = None
            if not counting:
                cell = row[value_at].strip()
                value = parse_number(cell, columns.decimal)
                if value is None:
                    self.reject(reader.line_num, "not a number" if cell else "empty value", cell)
                    continue
            label = row[group_at].strip() or "(blank)"
            if columns.by_time:
                known = periods.get(label)
                if known is None:
                    if not is_time(label):
                        self.reject(reader.line_num, "not a date", label)
                        continue
                    known = period_label(label, period)
                    if len(periods) < MAX_GROUPS:
                        periods[label] = known
                label = known
            group = self.groups.get(label)
            if group is None:
                if len(self.groups) >= MAX_GROUPS:
                    raise BadInput(f"column {names[group_at]!r} has more than {MAX_GROUPS:,} different values; "
                                   "choose a category with --group")
                group = self.groups[label] = Group()
            group.add(value)
            self.used += 1
        if not self.read:
            raise BadInput("there is a header but no rows")
        if not self.used:
            reasons = ", ".join(f"{r} ({n:,})" for r, n in sorted(self.bad_reasons.items()))
            raise BadInput(f"none of {self.read:,} rows could be used: {reasons}")

    def next_row(self, reader):
        """The next row that is not blank; unreadable ones are reported. None at the end."""
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return None
            except csv.Error as error:
                self.read += 1
                self.reject(reader.line_num, "unreadable row", str(error))
                continue
            if row and (row[0].strip() or any(cell.strip() for cell in row)):
                return row

    # ------------------------------------------------------------ results

    def ranked(self):
        """[(label, group)] in the order of the report: by time, or largest first."""
        if self.columns.by_time:
            return sorted(self.groups.items())
        return sorted(self.groups.items(), key=lambda item: (-item[1].measure(self.args.agg), item[0]))

    def title(self):
        if self.args.title:
            return printable(self.args.title)
        group = self.names[self.columns.group]
        if self.args.agg == "count":
            return f"Rows by {group}"
        return f"{self.args.agg.capitalize()} of {self.names[self.columns.value]} by {group}"

    def as_json(self):
        columns, counting = self.columns, self.args.agg == "count"
        total = sum((g.total for g in self.groups.values()), Decimal(0))
        whole = Decimal(self.used) if counting else total
        # A share means something only when all parts pull the same way.
        parts = [g.count if counting else g.total for g in self.groups.values()]
        has_share = whole != 0 and (min(parts) >= 0 or max(parts) <= 0)
        groups = []
        for label, group in self.ranked():
            entry = {"label": label, "count": group.count}
            if not counting:
                entry.update(sum=number_json(group.total), mean=number_json(group.total / group.count),
                             min=number_json(group.low), max=number_json(group.high))
            part = Decimal(group.count) if counting else group.total
            entry["share"] = round(float(part / whole), 6) if has_share else None
            groups.append(entry)
        return {
            "title": self.title(),
            "input": {"name": os.path.basename(self.args.input), "encoding": self.encoding,
                      "delimiter": self.delimiter, "decimal": columns.decimal, "columns": self.names},
            "group": self.names[columns.group],
            "value": None if counting else self.names[columns.value],
            "aggregate": self.args.agg,
            "period": self.args.period if columns.by_time else None,
            "rows": {"read": self.read, "used": self.used, "bad": self.read - self.used},
            "bad_rows": {"reasons": dict(sorted(self.bad_reasons.items())), "first": self.bad},
            "total": None if counting else number_json(total),
            "groups": groups,
            "warnings": self.warnings,
        }

    def as_markdown(self):
        counting, data = self.args.agg == "count", self.as_json()
        lines = [f"# {markdown(self.title())}", ""]
        lines.append(f"{self.used:,} of {self.read:,} rows of `{printable(data['input']['name']).replace('`', '')}` "
                     f"in {len(self.groups):,} group(s)."
                     + ("" if counting else f" Total {number_text(sum((g.total for g in self.groups.values()), Decimal(0)))}."))
        lines += ["", f"![{markdown(self.title())}](chart.svg)", ""]
        heads = [markdown(data["group"]), "Rows"] + ([] if counting else ["Sum", "Mean", "Min", "Max"]) + ["Share"]
        lines.append("| " + " | ".join(heads) + " |")
        lines.append("| --- |" + " ---: |" * (len(heads) - 1))
        ranked = self.ranked()
        for (label, group), entry in list(zip(ranked, data["groups"]))[:TABLE_ROWS]:
            cells = [markdown(label), f"{group.count:,}"]
            if not counting:
                cells += [number_text(group.total), number_text(group.total / group.count),
                          number_text(group.low), number_text(group.high)]
            cells.append("" if entry["share"] is None else f"{entry['share'] * 100:.1f} %")
            lines.append("| " + " | ".join(cells) + " |")
        if len(ranked) > TABLE_ROWS:
            lines += ["", f"{len(ranked) - TABLE_ROWS:,} more group(s) are in `report.json`."]
        if self.bad_reasons:
            lines += ["", "## Rows left out", ""]
            lines += [f"- {reason}: {count:,}" for reason, count in sorted(self.bad_reasons.items())]
            lines += ["", "| Line | Reason | Found |", "| ---: | --- | --- |"]
            lines += [f"| {b['line']} | {b['reason']} | {markdown(b['detail'])} |" for b in self.bad]
        for warning in self.warnings:
            lines += ["", f"Note: {markdown(warning)}"]
        return "\n".join(lines) + "\n"


def sample_rows(sample, delimiter):
    rows = []
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
    try:
        for row in reader:
            if any(c.strip() for c in row):
                rows.append(row)
            if len(rows) > SAMPLE_ROWS:
                break
    except csv.Error:
        pass
    skip = 2 if rows and len(rows[0]) <= 2 and "".join(rows[0]).strip().startswith("sep=") else 1
    return rows[skip:]


# ---------------------------------------------------------------- the chart

INK, MUTED, GRID, BAR, NEGATIVE = "#1f2933", "#52606d", "#d9dee4", "#2563a8", "#b4481e"
FONT = "font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\""


def nice_ticks(low, high, wanted=5):
    """Round tick values that cover [low, high] and include zero."""
    low, high = min(0.0, float(low)), max(0.0, float(high))
    if low == high:
        high = 1.0
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def text(x, y, content, anchor="start", size=13, fill=INK, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{extra}>{escape(content)}</text>'


def svg_document(width, height, title, summary, body):
    # role="img" makes one picture of it for a screen reader; <desc> then holds the numbers.
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="chart-title chart-desc" {FONT}>',
        f'<title id="chart-title">{escape(title)}</title>',
        f'<desc id="chart-desc">{escape(summary)}</desc>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(20, 32, shorten(title, 80), size=18, extra=' font-weight="600"'),
        *body,
        "</svg>",
    ]) + "\n"


def bar_chart(points, title, summary, axis):
    """Horizontal bars: labels of any length stay readable."""
    shown = [shorten(label, 28) for label, _ in points]
    left = 36 + int(max(len(s) for s in shown) * 7.4)
    width, row, top = 820, 32, 60
    bottom = top + row * len(points) + 4
    height, right = bottom + 58, width - 40
    ticks = nice_ticks(min(v for _, v in points), max(v for _, v in points))
    pad = 70 if ticks[0] < 0 else 0  # 70: room for the value behind the longest bar
    scale = (right - left - 70 - pad) / (ticks[-1] - ticks[0])

    def at(value):
        return left + pad + (float(value) - ticks[0]) * scale

    body = ["<g>"]
    for tick in ticks:
        x = at(tick)
        body.append(f'<line x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>')
        body.append(text(x, bottom + 20, number_short(tick), "middle", 12, MUTED))
    body.append(text((at(ticks[0]) + at(ticks[-1])) / 2, bottom + 44, shorten(axis, 80), "middle", 13, MUTED))
    body.append("</g>")
    body.append("<g>")
    for index, ((label, value), short) in enumerate(zip(points, shown)):
        y, start, end = top + index * row, at(0), at(value)
        name = f"{label}: {number_text(value)}"
        body.append(f"<g><title>{escape(name)}</title>")
        body.append(text(left - 10, y + 19, short, "end"))
        body.append(f'<rect x="{min(start, end):.1f}" y="{y + 4}" width="{abs(end - start):.1f}" height="{row - 11}" '
                    f'fill="{BAR if value >= 0 else NEGATIVE}"/>')
        body.append(text(end + (6 if value >= 0 else -6), y + 19, number_short(value),
                         "start" if value >= 0 else "end", 12))
        body.append("</g>")
    body.append("</g>")
    body.append(f'<line x1="{at(0):.1f}" y1="{top - 6}" x2="{at(0):.1f}" y2="{bottom}" stroke="{INK}" stroke-width="1.5"/>')
    return svg_document(width, height, title, summary, body)


def line_chart(points, title, summary, axis, along):
    width, height, left, right, top, bottom = 820, 440, 90, 790, 70, 360
    ticks = nice_ticks(min(v for _, v in points), max(v for _, v in points))

    def across(index):
        return (left + right) / 2 if len(points) == 1 else left + 16 + (right - left - 32) * index / (len(points) - 1)

    def up(value):
        return bottom - (bottom - top) * (float(value) - ticks[0]) / (ticks[-1] - ticks[0])

    body = ["<g>"]
    for tick in ticks:
        y = up(tick)
        body.append(f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{INK if tick == 0 else GRID}"/>')
        body.append(text(left - 8, y + 4, number_short(tick), "end", 12, MUTED))
    every = max(1, math.ceil(len(points) / 10))
    for index in range(0, len(points), every):
        body.append(text(across(index), bottom + 22, shorten(points[index][0], 12), "middle", 12, MUTED))
    body.append(text((left + right) / 2, bottom + 52, shorten(along, 60), "middle", 13, MUTED))
    middle = (top + bottom) / 2
    body.append(text(22, middle, shorten(axis, 44), "middle", 13, MUTED, f' transform="rotate(-90 22 {middle:.1f})"'))
    path = " ".join(f"{across(i):.1f},{up(v):.1f}" for i, (_, v) in enumerate(points))
    body.append(f'<polyline points="{path}" fill="none" stroke="{BAR}" stroke-width="2.5" stroke-linejoin="round"/>')
    body.append("</g>")
    body.append("<g>")
    for index, (label, value) in enumerate(points):
        name = f"{label}: {number_text(value)}"
        body.append(f'<circle cx="{across(index):.1f}" cy="{up(value):.1f}" '
                    f'r="{4 if len(points) <= 60 else 2}" fill="{BAR}"><title>{escape(name)}</title></circle>')
    body.append("</g>")
    return svg_document(width, height, title, summary, body)


def chart(report, top):
    aggregate = report.args.agg
    points = [(printable(label), group.measure(aggregate)) for label, group in report.ranked()]
    along = report.names[report.columns.group]
    axis = "rows" if aggregate == "count" else f"{report.names[report.columns.value]} ({aggregate})"
    if report.columns.by_time:
        cut = len(points) - MAX_CHART_POINTS
        points = points[-MAX_CHART_POINTS:]
        summary = f"Line chart, {len(points)} points from {points[0][0]} to {points[-1][0]}."
        if cut > 0:
            summary += f" {cut} earlier points are not shown."
        return line_chart(points, report.title(), summary, axis, along)
    if len(points) > top:
        rest = report.ranked()[top:]
        points = points[:top]
        if aggregate != "mean":  # means do not add up
            points.append((f"{len(rest):,} others", sum((g.measure(aggregate) for _, g in rest), Decimal(0))))
    listed = "; ".join(f"{label} {number_text(value)}" for label, value in points)
    return bar_chart(points, report.title(), f"Bar chart, {len(points)} bars. {listed}.", axis)


# ---------------------------------------------------------------- the command


def arguments(argv):
    def one_char(value):
        value = {"tab": "\t", "\\t": "\t"}.get(value, value)
        if len(value) != 1 or value in '"\r\n':
            raise argparse.ArgumentTypeError("must be one character (or 'tab')")
        return value

    def positive(value):
        if not value.isdigit() or not 1 <= int(value) <= 100:
            raise argparse.ArgumentTypeError("must be a number from 1 to 100")
        return int(value)

    def codec(value):
        try:
            return codecs.lookup(value).name
        except LookupError:
            raise argparse.ArgumentTypeError(f"unknown encoding {value!r}")

    parser = argparse.ArgumentParser(
        prog="report.py",
        description="Group a CSV table by one column and write report.json, report.md and chart.svg.",
        epilog="Columns are found by name and content when --group or --value is not given. "
               "Exit codes: 0 done, 2 wrong usage, 3 the input is not a usable table, 4 cannot write.",
    )
    parser.add_argument("input", metavar="INPUT.csv", help="the table; its first row names the columns")
    parser.add_argument("--group", metavar="COLUMN", help="column to group by (default: found, such as region or product)")
    parser.add_argument("--value", metavar="COLUMN", help="numeric column (default: found, such as amount or sales)")
    parser.add_argument("--agg", choices=("sum", "mean", "count"), default="sum",
                        help="what the chart and the order show (default: sum)")
    parser.add_argument("--period", choices=("day", "month", "year"), default="month",
                        help="how full dates are put together when the group is a date (default: month)")
    parser.add_argument("--top", type=positive, default=20, metavar="N", help="bars in the chart (default: 20)")
    parser.add_argument("--title", help="title of the report")
    parser.add_argument("--delimiter", type=one_char, metavar="CHAR", help="column delimiter (default: found)")
    parser.add_argument("--decimal", choices=("auto", ".", ","), default="auto", help="decimal mark (default: auto)")
    parser.add_argument("--encoding", type=codec, help="text encoding (default: UTF-8, else UTF-16 by its mark, else Windows-1252)")
    parser.add_argument("--out", metavar="DIR", help="folder for the results (default: out)")
    return parser.parse_args(argv)


def output_folder(asked):
    if asked:
        return asked
    return "out" if os.path.isdir("out") else os.environ.get("OUTPUT_DIR") or "out"


def write(folder, name, content):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(content)
    return path


def main(argv=None):
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    args = arguments(argv)
    report = Report(args)
    shown = printable(args.input)
    try:
        with localcontext() as context:
            context.prec = 60
            print(f"reading {shown} ({os.stat(args.input).st_size:,} bytes)", flush=True)
            report.load()
            data, table, picture = report.as_json(), report.as_markdown(), chart(report, args.top)
    except Usage as error:
        print(f"report.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BadInput as error:
        print(f"report.py: {shown}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        print(f"report.py: cannot read {shown}: {reason}", file=sys.stderr)
        return EXIT_BAD_INPUT
    folder = output_folder(args.out)
    try:
        os.makedirs(folder, exist_ok=True)
        paths = [
            write(folder, "report.json", json.dumps(data, ensure_ascii=True, indent=2, allow_nan=False) + "\n"),
            write(folder, "report.md", table),
            write(folder, "chart.svg", picture),
        ]
    except OSError as error:
        print(f"report.py: cannot write to {printable(folder)}: {error.strerror}", file=sys.stderr)
        return EXIT_CANNOT_WRITE
    rows = data["rows"]
    print(f"{data['title']}: {rows['used']:,} rows used, {rows['bad']:,} left out, {len(data['groups']):,} group(s)")
    for label, group in report.ranked()[:5]:
        print(f"  {shorten(printable(label), 40)}: {number_text(group.measure(args.agg))}")
    if len(report.groups) > 5:
        print(f"  … {len(report.groups) - 5:,} more")
    for warning in report.warnings:
        print(f"report.py: note: {warning}", file=sys.stderr)
    print("wrote " + ", ".join(printable(p) for p in paths))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
