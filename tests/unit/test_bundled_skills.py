"""The skills that ship with the project do what their SKILL.md says, run as plain programs.

Each script runs in a copy of its skill laid out as inside the sandbox: the cwd is the skill's root, with
links `out`, `work` and `inputs` into a workspace. Expected values are computed here by other means.
"""

import binascii
import csv
import hashlib
import io
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

SKILLS = Path(__file__).resolve().parents[2] / "skills"
NAMES = ["heatmap-png", "log-digest", "sales-report", "table-convert"]
POPULATION = SKILLS / "data" / "us-population.csv"
SVG = "{http://www.w3.org/2000/svg}"


def require(*tools):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return
    text = f"not on this host: {', '.join(missing)}"
    if os.environ.get("EXECUTOR_REQUIRE_RUNTIMES"):
        pytest.fail(text)
    pytest.skip(text)


@dataclass
class Laid:
    """A copy of a skill beside a workspace."""

    root: Path
    workspace: Path

    def put(self, name, content):
        path = self.workspace / "inputs" / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return f"inputs/{name}"

    def run(self, *argv, stdin=b"", **extra):
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OUTPUT_DIR": str(self.workspace / "out"),
            "INPUTS_DIR": str(self.workspace / "inputs"),
            "HOME": str(self.workspace),
        }
        env.update(extra)
        return subprocess.run(argv, cwd=self.root, env=env, input=stdin, capture_output=True, timeout=60)

    def python(self, script, *argv, **extra):
        return self.run(sys.executable, script, *argv, **extra)

    def out(self, name):
        return (self.workspace / "out" / name).read_bytes()

    def outputs(self):
        return sorted(p.name for p in (self.workspace / "out").iterdir())


@pytest.fixture
def lay(tmp_path):
    def make(name):
        workspace = tmp_path / "workspace"
        root = tmp_path / "skills" / name
        shutil.copytree(SKILLS / name, root)
        for folder in ("out", "work", "inputs"):
            (workspace / folder).mkdir(parents=True, exist_ok=True)
            (root / folder).symlink_to(workspace / folder)
        shutil.copy(POPULATION, workspace / "inputs")
        return Laid(root, workspace)

    return make


def population():
    with POPULATION.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def by(column, value="change"):
    sums = defaultdict(int)
    for row in population():
        sums[row[column]] += int(row[value])
    return dict(sums)


def ok(result):
    assert result.returncode == 0, result.stderr.decode()
    return result


# ---------------------------------------------------------------- the folders


def test_every_folder_is_a_skill_or_data():
    found = sorted(p.parent.name for p in SKILLS.glob("*/SKILL.md"))
    assert found == NAMES
    assert not (SKILLS / "data" / "SKILL.md").exists()


@pytest.mark.parametrize("name", NAMES)
def test_front_matter_follows_the_specification(name):
    text = (SKILLS / name / "SKILL.md").read_bytes().decode("utf-8")
    assert "\r" not in text
    _, front, body = text.split("---\n", 2)
    meta = yaml.safe_load(front)
    assert set(meta) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert meta["name"] == name and len(name) <= 64 and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert 0 < len(meta["description"]) <= 1024 and "Use when" in meta["description"]
    assert len(meta["compatibility"]) <= 500
    assert meta["license"] == "Apache-2.0"
    assert all(isinstance(v, str) for v in meta["metadata"].values())
    for heading in ("## Input", "## Output", "## Exit codes", "## Example"):
        assert heading in body
    for target in re.findall(r"\]\((references/[^)]+)\)", body):
        assert (SKILLS / name / target).is_file()
    for mentioned in re.findall(r"scripts/[a-z]+\.[a-z]+", body):
        assert (SKILLS / name / mentioned).is_file()


@pytest.mark.parametrize("name", NAMES)
def test_scripts_with_a_shebang_are_executable_and_have_unix_lines(name):
    shebangs = 0
    for path in (SKILLS / name / "scripts").iterdir():
        if not path.is_file():
            continue
        data = path.read_bytes()
        assert b"\r" not in data and data.endswith(b"\n")
        assert bool(path.stat().st_mode & stat.S_IXUSR) == data.startswith(b"#!/usr/bin/env ")
        shebangs += data.startswith(b"#!")
    assert shebangs == 1


# ---------------------------------------------------------------- the data

TOTALS = {  # census: United States, then Northeast, Midwest, South, West, as published
    "1990": (248_709_873, 50_809_229, 59_668_632, 85_445_930, 52_786_082),
    "2000": (281_421_906, 53_594_378, 64_392_776, 100_236_820, 63_197_932),
    "2010": (308_745_538, 55_317_240, 66_927_001, 114_555_744, 71_945_553),
    "2020": (331_449_281, 57_609_148, 68_985_454, 126_266_107, 78_588_572),
}


def test_the_data_adds_up_to_the_published_totals():
    rows = population()
    assert len(rows) == 153 and len({r["code"] for r in rows}) == 51
    before = {r["code"]: int(r["population"]) - int(r["change"]) for r in rows if r["year"] == "2000"}
    regions = {r["code"]: r["region"] for r in rows}
    counts = {"1990": before}
    for year in ("2000", "2010", "2020"):
        counts[year] = {r["code"]: int(r["population"]) for r in rows if r["year"] == year}
        previous = counts[str(int(year) - 10)]
        for row in rows:
            if row["year"] == year:
                assert int(row["change"]) == counts[year][row["code"]] - previous[row["code"]]
    for year, (whole, *parts) in TOTALS.items():
        assert sum(counts[year].values()) == whole
        for region, part in zip(("Northeast", "Midwest", "South", "West"), parts, strict=True):
            assert sum(n for code, n in counts[year].items() if regions[code] == region) == part


# ---------------------------------------------------------------- sales-report


def test_report_finds_the_columns_and_adds_up(lay):
    skill = lay("sales-report")
    result = ok(skill.python("scripts/report.py", "inputs/us-population.csv"))
    assert result.stderr == b"" and b"Sum of change by region" in result.stdout
    assert skill.outputs() == ["chart.svg", "report.json", "report.md"]
    data = json.loads(skill.out("report.json"))
    assert (data["group"], data["value"]) == ("region", "change")
    assert data["rows"] == {"read": 153, "used": 153, "bad": 0}
    # From the published totals alone: what each region gained between 1990 and 2020.
    gains = [TOTALS["2020"][i] - TOTALS["1990"][i] for i in range(5)]
    assert data["total"] == gains[0]
    sums = {g["label"]: g["sum"] for g in data["groups"]}
    assert sums == dict(zip(("Northeast", "Midwest", "South", "West"), gains[1:], strict=True))
    assert [g["label"] for g in data["groups"]] == ["South", "West", "Midwest", "Northeast"]
    assert sum(g["share"] for g in data["groups"]) == pytest.approx(1, abs=1e-5)
    south = [int(r["change"]) for r in population() if r["region"] == "South"]
    group = data["groups"][0]
    assert (group["count"], group["min"], group["max"]) == (len(south), min(south), max(south))
    assert group["mean"] == pytest.approx(sum(south) / len(south))
    assert "| South | 51 | 40,820,177 |" in skill.out("report.md").decode()


def test_report_chart_is_accessible_and_true_to_scale(lay):
    skill = lay("sales-report")
    ok(skill.python("scripts/report.py", "inputs/us-population.csv"))
    root = ET.fromstring(skill.out("chart.svg"))
    assert root.tag == SVG + "svg" and root.get("role") == "img"
    title, desc = root.find(SVG + "title"), root.find(SVG + "desc")
    assert root.get("aria-labelledby").split() == [title.get("id"), desc.get("id")]
    assert title.text == "Sum of change by region" and "South 40,820,177" in desc.text
    bars = {
        g.find(SVG + "title").text: float(g.find(SVG + "rect").get("width"))
        for g in root.iter(SVG + "g")
        if g.find(SVG + "rect") is not None
    }
    assert len(bars) == 4
    sums = by("region")
    unit = bars[f"South: {sums['South']:,}"] / sums["South"]
    for region, total in sums.items():
        assert bars[f"{region}: {total:,}"] == pytest.approx(total * unit, abs=0.11)
    texts = [t.text for t in root.iter(SVG + "text")]
    assert "change (sum)" in texts and "0" in texts


def test_report_over_time_is_a_line_in_order(lay):
    skill = lay("sales-report")
    ok(skill.python("scripts/report.py", "inputs/us-population.csv", "--group", "YEAR"))
    data = json.loads(skill.out("report.json"))
    assert [(g["label"], g["sum"]) for g in data["groups"]] == [
        (str(year), TOTALS[str(year)][0] - TOTALS[str(year - 10)][0]) for year in (2000, 2010, 2020)
    ]
    root = ET.fromstring(skill.out("chart.svg"))
    line = root.find(f".//{SVG}polyline").get("points").split()
    heights = [float(p.split(",")[1]) for p in line]
    assert len(heights) == 3 and heights == sorted(heights)  # falling values: growing y


def test_report_puts_dates_together_by_month_and_year(lay):
    skill = lay("sales-report")
    name = skill.put("s.csv", "date,amount\n2023-12-31,1\n2024-01-02,2.5\n2024-01-31,3\nunknown,9\n" * 30)
    ok(skill.python("scripts/report.py", name, "--group", "date", "--value", "amount", "--agg", "sum"))
    groups = {g["label"]: g["sum"] for g in json.loads(skill.out("report.json"))["groups"]}
    assert groups == {"unknown": 270, "2023-12-31": 30, "2024-01-02": 75, "2024-01-31": 90}
    name = skill.put(
        "s.csv", "date,amount\n" + "2023-12-31,1\n2024-01-02,2.5\n2024-01-31,3\n" * 30 + "soon,9\n"
    )
    for period, expected in (("month", {"2023-12": 30, "2024-01": 165}), ("year", {"2023": 30, "2024": 165})):
        ok(skill.python("scripts/report.py", name, "--group", "date", "--period", period))
        data = json.loads(skill.out("report.json"))
        assert {g["label"]: g["sum"] for g in data["groups"]} == expected
        assert data["bad_rows"]["reasons"] == {"not a date": 1}


def test_report_lists_bad_rows_and_goes_on(lay):
    skill = lay("sales-report")
    name = skill.put(
        "bad.csv",
        '\ufeffregion;amount\r\nNord;"1.234,50"\r\nSüd;(99,50)\r\nNord;abc\r\nNord;\r\nNord;1;2\r\n;7\r\n\r\n',
    )
    ok(skill.python("scripts/report.py", name))
    data = json.loads(skill.out("report.json"))
    assert data["input"]["delimiter"] == ";" and data["input"]["decimal"] == ","
    assert data["rows"] == {"read": 6, "used": 3, "bad": 3}
    assert data["bad_rows"]["reasons"] == {"empty value": 1, "not a number": 1, "wrong number of columns": 1}
    assert [b["line"] for b in data["bad_rows"]["first"]] == [4, 5, 6]
    assert {g["label"]: g["sum"] for g in data["groups"]} == {"Nord": 1234.5, "Süd": -99.5, "(blank)": 7}
    assert all(g["share"] is None for g in data["groups"])  # mixed signs have no shares


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("1,234", 1234),
        ("1,234,567.25", 1234567.25),
        ("$1,000.10", 1000.1),
        ("-$5", -5),
        ("€ 12", 12),
        ("(3.5)", -3.5),
        ("12%", 12),
        ("1 234 567", 1234567),
        ("1'000", 1000),
        ("\u22127", -7),
        ("4-", -4),
        (".5", 0.5),
        ("1e3", 1000),
        ("1,23", None),
        ("12,34,567", None),
        ("nan", None),
        ("inf", None),
        ("1_000", None),
        ("1e999999999", None),
        ("0x10", None),
        ("٣", None),
    ],
)
def test_report_reads_numbers_as_people_write_them(lay, cell, expected):
    skill = lay("sales-report")
    name = skill.put("n.csv", f'k,amount\na,0\nb,"{cell}"\n')
    ok(skill.python("scripts/report.py", name, "--group", "k", "--value", "amount", "--decimal", "."))
    groups = {g["label"]: g["sum"] for g in json.loads(skill.out("report.json"))["groups"]}
    assert groups == ({"a": 0} if expected is None else {"a": 0, "b": expected})


def test_report_escapes_hostile_labels(lay):
    skill = lay("sales-report")
    labels = [
        '<script>alert("1")</script>',
        "a|b`c` [x](y)",
        "]]>&amp;",
        "\x1b[31mred\x07",
        "\u202egnp",
        "tab\there",
    ]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["region", "<b>amount</b>"])
    writer.writerows([label, 10 - i] for i, label in enumerate(labels))
    name = skill.put("h.csv", out.getvalue())
    result = ok(skill.python("scripts/report.py", name, "--title", "<i>&\x1b"))
    svg, page = skill.out("chart.svg").decode(), skill.out("report.md").decode()
    root = ET.fromstring(svg)
    tags = {e.tag.removeprefix(SVG) for e in root.iter()}
    assert tags <= {"svg", "title", "desc", "rect", "text", "g", "line"}
    shown = "".join(root.itertext())
    assert labels[0] in shown and labels[2] in shown
    for text in (svg, page, result.stdout.decode()):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    assert "<script" not in page and r"a\|b\`c\` \[x\](y)" in page
    kept = {g["label"] for g in json.loads(skill.out("report.json"))["groups"]}
    assert kept == {" ".join([x]) for x in labels}  # the data itself stays as it was


def test_report_shortens_long_tails(lay):
    skill = lay("sales-report")
    ok(skill.python("scripts/report.py", "inputs/us-population.csv", "--group", "state", "--top", "5"))
    bars = [t.text for t in ET.fromstring(skill.out("chart.svg")).iter(SVG + "title")][1:]
    ranked = sorted(by("state").items(), key=lambda kv: -kv[1])
    assert bars == [f"{k}: {v:,}" for k, v in ranked[:5]] + [f"46 others: {sum(v for _, v in ranked[5:]):,}"]


def test_report_is_the_same_twice_and_reads_a_large_table_in_little_memory(lay):
    skill = lay("sales-report")
    lines = ["id,region,amount\n"] + [f'{i},R{i % 7},"{i % 5000:,}.25"\n' for i in range(200_000)]
    name = skill.put("large.csv", "".join(lines))
    probe = (
        "import resource,subprocess,sys;r=subprocess.run(sys.argv[1:]).returncode;"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,file=sys.stderr);sys.exit(r)"
    )
    result = ok(skill.run(sys.executable, "-c", probe, sys.executable, "scripts/report.py", name))
    assert int(result.stderr.split()[-1]) < 80_000  # KiB
    expected = defaultdict(int)
    for i in range(200_000):
        expected[f"R{i % 7}"] += (i % 5000) * 4 + 1
    sums = {g["label"]: g["sum"] for g in json.loads(skill.out("report.json"))["groups"]}
    assert sums == {k: v / 4 for k, v in expected.items()}
    first = [skill.out(n) for n in skill.outputs()]
    ok(skill.python("scripts/report.py", name))
    assert [skill.out(n) for n in skill.outputs()] == first


@pytest.mark.parametrize(
    ("content", "arguments", "code", "says"),
    [
        (None, ["inputs/none.csv"], 3, "No such file"),
        (b"", ["inputs/x.csv"], 3, "empty"),
        (b"a,b\n", ["inputs/x.csv"], 3, "no rows"),
        (b"a,b\nx,y\n", ["inputs/x.csv"], 3, "no numeric column"),
        (b"a,b\nx,y\n", ["inputs/x.csv", "--value", "b"], 3, "not a number"),
        (b"PK\x03\x04\x00\x00", ["inputs/x.csv"], 3, "Excel"),
        (b"\x89PNG\x00\x01", ["inputs/x.csv"], 3, "binary"),
        (b"a,b\nx,1\n", ["inputs/x.csv", "--group", "zz"], 2, "columns are: a, b"),
        (b"a,b\nx,1\n", ["inputs/x.csv", "--top", "0"], 2, "1 to 100"),
        (b"a,b\nx,1\n", [], 2, "usage"),
        (b"a,b\nx,1\n", ["inputs/x.csv", "--out", "/dev/null/x"], 4, "cannot write"),
    ],
)
def test_report_says_what_is_wrong(lay, content, arguments, code, says):
    skill = lay("sales-report")
    if content is not None:
        skill.put("x.csv", content)
    result = skill.python("scripts/report.py", *arguments)
    assert result.returncode == code
    assert says in result.stderr.decode() and b"Traceback" not in result.stderr
    assert skill.outputs() == []


def test_report_help_names_every_exit_code(lay):
    result = ok(lay("sales-report").python("scripts/report.py", "--help"))
    assert all(
        word in result.stdout.decode() for word in ("--group", "--value", "2 wrong usage", "3 the input")
    )


# ---------------------------------------------------------------- log-digest

UUID = "550e8400-e29b-41d4-a716-44665544000"
ACCESS = f"""\
127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif?x=1 HTTP/1.0" 200 2326
10.0.0.2 - - [10/Oct/2000:22:55:37 +0200] "GET /u/123/{UUID}0 HTTP/1.1" 404 - "-" "a \\"b\\""
10.0.0.2 - - [11/Oct/2000:00:00:00 +0200] "POST /u/9/{UUID}1 HTTP/1.1" 500 10 "-" "curl"
10.0.0.3 - - [29/Feb/2000:23:59:59 +0000] "\\x16\\x03" 400 0
"""
PLAIN = """\
2024-05-01T12:00:00Z ERROR db timeout after 120 ms id=0xDEADBEEF
2024-03-01 00:00:01,123+0100 [warn] retry 3 of 5
[2024-05-01T12:00:01Z] INFO: started v1.2.3 sha deadbeef00112233
2024-05-01T12:00:00Z ERROR db timeout after 5 ms id=0x12
error: disk sda1 full
Error in the kitchen is no level
    at Foo.bar(Baz.java:12)

"""


def digest(skill, *arguments, **extra):
    require("bash", "jq", "awk")
    return skill.run("scripts/digest.sh", *arguments, **extra)


@pytest.fixture(params=["awk", *filter(shutil.which, ("mawk", "gawk"))])
def awk(request, tmp_path):
    """A PATH on which awk is the one named; gawk and mawk are tried where they are installed."""
    require(request.param)
    real = shutil.which(request.param)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "awk").symlink_to(real)
    return f"{folder}:{os.environ['PATH']}"


def test_digest_counts_an_access_log(lay, awk):
    skill = lay("log-digest")
    ok(digest(skill, skill.put("access.log", ACCESS), PATH=awk))
    data = json.loads(skill.out("digest.json"))
    assert data["sources"] == ["access.log"]
    assert data["lines"] == {"total": 4, "parsed": 4, "access": 4, "plain": 0, "other": 0}
    assert data["statuses"] == {"200": 1, "400": 1, "404": 1, "500": 1}
    assert data["status_classes"] == {"4xx": 2, "2xx": 1, "5xx": 1}
    assert data["methods"] == {"GET": 2, "(none)": 1, "POST": 1}
    assert data["top_paths"] == [
        {"path": "/u/N/N", "count": 2, "errors": 2},
        {"path": "(not an HTTP request)", "count": 1, "errors": 1},
        {"path": "/apache_pb.gif", "count": 1, "errors": 0},
    ]
    assert (data["bytes"], data["clients"]) == (2336, 3)
    assert data["time"] == {
        "first": "2000-02-29T23:59:59Z",
        "last": "2000-10-10T22:00:00Z",
        "seconds": 19_346_401,
        "utc": True,
    }


def test_digest_counts_a_plain_log(lay, awk):
    skill = lay("log-digest")
    ok(digest(skill, skill.put("app.log", PLAIN.encode()), PATH=awk))
    data = json.loads(skill.out("digest.json"))
    assert data["lines"] == {"total": 7, "parsed": 5, "access": 0, "plain": 5, "other": 2}
    assert data["levels"] == {"ERROR": 3, "INFO": 1, "WARNING": 1}
    assert data["top_messages"] == [
        {"level": "ERROR", "message": "db timeout after N ms id=N", "count": 2},
        {"level": "ERROR", "message": "disk sdaN full", "count": 1},
        {"level": "INFO", "message": "started vN sha N", "count": 1},
        {"level": "WARNING", "message": "retry N of N", "count": 1},
    ]
    assert (data["time"]["first"], data["time"]["last"]) == ("2024-02-29T23:00:01Z", "2024-05-01T12:00:01Z")
    assert data["unparsed_samples"] == ["Error in the kitchen is no level", "    at Foo.bar(Baz.java:12)"]
    assert "2  ERROR  db timeout after N ms id=N" in skill.out("digest.txt").decode()


def test_digest_reads_odd_names_several_files_and_stdin(lay):
    skill = lay("log-digest")
    for name in ("-x a=b.log", "second file.log"):
        (skill.root / name).write_text("INFO one\nERROR two")  # no newline at the end
    ok(digest(skill, "--top=1", "--", "-x a=b.log", "second file.log", "-", stdin=b"INFO one\n"))
    data = json.loads(skill.out("digest.json"))
    assert data["sources"] == ["-x a=b.log", "second file.log", "stdin"]
    assert data["levels"] == {"INFO": 3, "ERROR": 2}
    assert data["top_messages"] == [{"level": "INFO", "message": "one", "count": 3}]


def test_digest_keeps_control_characters_out(lay, awk):
    skill = lay("log-digest")
    noise = b"INFO \x1b]0;owned\x07 \xff\xfe \x00 a\tb\r\nWARN $(touch pwned) `id`\n"
    result = ok(digest(skill, stdin=noise, PATH=awk))
    for text in (result.stdout, skill.out("digest.txt"), skill.out("digest.json")):
        assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", text)
    messages = [m["message"] for m in json.loads(skill.out("digest.json"))["top_messages"]]
    assert messages[1] == "$(touch pwned) `id`" and messages[0].endswith("a b")
    assert not (skill.root / "pwned").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["inputs/none.log"], 3, "no such file"),
        (["inputs"], 3, "folder"),
        (["--", "-none"], 3, "no such file: -none"),
        ([], 3, "no line looks like"),
        (["--top", "x"], 2, "--top"),
        (["--top"], 2, "needs a value"),
        (["--format", "xml"], 2, "--format"),
        (["-z"], 2, "unknown option"),
        (["--out", "/dev/null/x"], 4, "cannot write"),
    ],
)
def test_digest_says_what_is_wrong(lay, arguments, code, says):
    skill = lay("log-digest")
    result = digest(skill, *arguments, stdin=b"just text\n")
    assert result.returncode == code and says in result.stderr.decode()
    assert skill.outputs() == []


def test_digest_of_the_example_in_its_documentation(lay):
    skill = lay("log-digest")
    log = "2024-05-01T12:00:00Z INFO started\n2024-05-01T12:00:0{}Z ERROR db timeout after {} ms\n"
    name = skill.put("app.log", log.format(5, 17) + log.format(9, 170).split("\n", 1)[1])
    result = ok(digest(skill, name))
    shown = (
        (SKILLS / "log-digest" / "SKILL.md").read_text().split("$ scripts/digest.sh inputs/app.log\n", 1)[1]
    )
    assert result.stdout.decode() == shown.split("```", 1)[0]


# ---------------------------------------------------------------- table-convert


def convert(skill, *arguments, **extra):
    require("node")
    return skill.run("node", "scripts/convert.mjs", *arguments, **extra)


def test_convert_goes_round_through_every_format(lay):
    skill = lay("table-convert")
    source = "inputs/us-population.csv"
    for step in ("json", "ndjson", "md", "tsv", "csv"):
        result = ok(convert(skill, source, "--to", step))
        source = f"out/us-population.{step}"
        assert result.stdout.decode().startswith(
            f"wrote {source}: 153 rows, 7 columns, {len(skill.out(f'us-population.{step}'))} "
        )
    assert skill.out("us-population.csv").replace(b"\r\n", b"\n") == POPULATION.read_bytes()
    rows = population()
    assert json.loads(skill.out("us-population.json")) == rows
    assert [json.loads(x) for x in skill.out("us-population.ndjson").splitlines()] == rows
    tsv = csv.DictReader(io.StringIO(skill.out("us-population.tsv").decode(), newline=""), delimiter="\t")
    assert list(tsv) == rows
    assert skill.out("us-population.md").decode().splitlines()[:2] == [
        "| year | region | division | state | code | population | change |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]


HOSTILE = [
    ["plain", 'quo"te', "a,b"],
    ["line\nbreak", "tab\there", "=1+1"],
    ["|bar\\|", "<br>", "\\"],
    ["", "ünïcödé 日本 🎈", "'"],
    ["*_`~[x](y)", "\\<br>", "null"],
]


@pytest.mark.parametrize("middle", ["tsv", "json", "ndjson", "md"])
def test_convert_keeps_hostile_cells(lay, middle):
    skill = lay("table-convert")
    out = io.StringIO()
    csv.writer(out).writerows([["a", "b c", "__proto__"], *HOSTILE])
    name = skill.put("h.csv", "\ufeff" + out.getvalue())
    ok(convert(skill, name, "--to", middle))
    ok(convert(skill, f"out/h.{middle}", "--to", "csv", "--output", "out/back.csv"))
    back = list(csv.reader(io.StringIO(skill.out("back.csv").decode(), newline="")))
    assert back == [["a", "b c", "__proto__"], *HOSTILE]
    assert "back.csv" in skill.outputs() and not [n for n in skill.outputs() if n.endswith(".part")]


def test_convert_infers_only_what_loses_nothing(lay):
    skill = lay("table-convert")
    cells = ["1", "-2.50", "1e3", "12345678901234567890", "007", "+1", "1.", "true", "", "NaN", "-0"]
    name = skill.put("i.csv", "v,k\n" + "".join(f"{c},x\n" for c in cells))
    ok(convert(skill, name, "--to", "json", "--infer"))
    values = [row["v"] for row in json.loads(skill.out("i.json"), parse_float=str, parse_int=str)]
    assert values == ["1", "-2.50", "1e3", "12345678901234567890", "007", "+1", "1.", True, None, "NaN", "-0"]
    kinds = re.findall(r'"v":("?)', skill.out("i.json").decode())
    assert kinds == ["", "", "", "", '"', '"', '"', "", "", '"', ""]


def test_convert_keeps_key_order_and_digits_of_json(lay):
    skill = lay("table-convert")
    first = '{"b":1,"2020":12345678901234567890,"1990":1.10,"x":{"y":[1e2,null]}}'
    text = f'[{first},{{"x":null,"z":"\\ud83c\\udf88"}}]'
    ok(convert(skill, skill.put("o.json", text), "--to", "ndjson"))
    assert skill.out("o.ndjson").decode().splitlines() == [
        '{"b":1,"2020":12345678901234567890,"1990":1.10,"x":{"y":[1e2,null]},"z":null}',
        '{"b":null,"2020":null,"1990":null,"x":null,"z":"🎈"}',
    ]
    ok(convert(skill, "out/o.ndjson", "--to", "csv"))
    assert list(csv.reader(io.StringIO(skill.out("o.csv").decode(), newline=""))) == [
        ["b", "2020", "1990", "x", "z"],
        ["1", "12345678901234567890", "1.10", '{"y":[1e2,null]}', ""],
        ["", "", "", "", "🎈"],
    ]


def test_convert_reads_from_stdin_and_writes_to_stdout(lay):
    skill = lay("table-convert")
    result = ok(
        convert(
            skill,
            "-",
            "--from",
            "md",
            "--to",
            "csv",
            "--output",
            "-",
            stdin=b"# T\n\n|a|b|\n|:-:|--:|\n|1|2\\|3|\n\nend",
        )
    )
    assert result.stdout == b"a,b\r\n1,2|3\r\n" and b"1 rows, 2 columns" in result.stderr
    result = ok(
        convert(
            skill,
            "-",
            "--from",
            "csv",
            "--delimiter",
            ";",
            "--to",
            "ndjson",
            "--output",
            "-",
            stdin=b"a;a;\r1;2;3",
        )
    )
    assert json.loads(result.stdout) == {"a": "1", "a_2": "2", "column_3": "3"}
    assert skill.outputs() == []


def test_convert_streams_a_large_table(lay):
    skill = lay("table-convert")
    body = "".join(f'{i},"name, {i}",{i * i}\r\n' for i in range(100_000))
    name = skill.put("l.csv", "id,name,square\r\n" + body)
    ok(convert(skill, name, "--to", "ndjson"))
    ok(convert(skill, "out/l.ndjson", "--to", "csv"))
    assert skill.out("l.csv").decode() == "id,name,square\r\n" + body


@pytest.mark.parametrize(
    ("name", "content", "arguments", "code", "says"),
    [
        ("x.csv", None, ["--to", "json"], 3, "no such file"),
        ("x.csv", b"", ["--to", "json"], 3, "no table"),
        ("x.csv", b"a,b\n1\n", ["--to", "json"], 3, "line 2: 1 cells"),
        ("x.csv", b'a,b\n1,"2\n', ["--to", "json"], 3, "line 2: a quote is opened"),
        ("x.csv", b'a,b\n1,x"2\n', ["--to", "json"], 3, "line 2: a quote inside"),
        ("x.csv", b"a,b\n\xff,1\n", ["--to", "json"], 3, "not UTF-8"),
        ("x.json", b'[{"a":1},]', ["--to", "csv"], 3, "line 1, column 10"),
        ("x.json", b'{"a":1}', ["--to", "csv"], 3, "expected a JSON array"),
        ("x.json", b"[" * 100_000, ["--to", "csv"], 3, "nested too deeply"),
        ("x.ndjson", b'{"a":1}\nx\n', ["--to", "csv"], 3, "line 2"),
        ("x.md", b"no table\n", ["--to", "csv"], 3, "no table"),
        ("x.csv", b"a\n1\n", [], 2, "--to is needed"),
        ("x.csv", b"a\n1\n", ["--to", "xml"], 2, "unknown format"),
        ("x.csv", b"a\n1\n", ["--to", "json", "--zz"], 2, "--zz"),
        ("x.csv", b"a\n1\n", ["--to", "csv", "--output", "inputs/x.csv"], 2, "overwrite"),
        ("x.csv", b"a\n1\n", ["--to", "json", "--output", "/dev/null/x/y.json"], 4, "cannot write"),
        ("x.csv", b"a\n1\n", ["--to", "json", "--output", "/proc/nope/y.json"], 4, "cannot write"),
    ],
)
def test_convert_says_what_is_wrong(lay, name, content, arguments, code, says):
    skill = lay("table-convert")
    if content is not None:
        skill.put(name, content)
    result = convert(skill, f"inputs/{name}", *arguments)
    assert result.returncode == code, result.stderr
    assert says in result.stderr.decode() and skill.outputs() == []


def test_convert_lenient_mends_rows_and_says_so(lay):
    skill = lay("table-convert")
    result = ok(convert(skill, skill.put("x.csv", "a,b\n1\n1,2,3\n"), "--to", "json", "--lenient"))
    assert json.loads(skill.out("x.json")) == [{"a": "1", "b": ""}, {"a": "1", "b": "2"}]
    assert b"2 row(s)" in result.stderr


# ---------------------------------------------------------------- heatmap-png


def decode_png(data):
    """(width, height, rows of RGB tuples): every chunk checked, filter 0 and 8-bit palette expected."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = [], 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (crc,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert crc == binascii.crc32(kind + body)
        chunks.append((kind, body))
        at += 12 + length
    assert [k for k, _ in chunks] == [b"IHDR", b"PLTE", b"iTXt", b"IDAT", b"IEND"]
    parts = dict(chunks)
    width, height, *rest = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert rest == [8, 3, 0, 0, 0]
    palette = [tuple(parts[b"PLTE"][i : i + 3]) for i in range(0, len(parts[b"PLTE"]), 3)]
    raw = zlib.decompress(parts[b"IDAT"])
    assert len(raw) == height * (width + 1)
    lines = [raw[y * (width + 1) : (y + 1) * (width + 1)] for y in range(height)]
    assert all(line[0] == 0 for line in lines)
    return width, height, [[palette[i] for i in line[1:]] for line in lines]


def test_heatmap_is_a_true_picture_of_the_table(lay):
    skill = lay("heatmap-png")
    ok(skill.python("scripts/heatmap.py", "inputs/us-population.csv"))
    assert skill.outputs() == ["bundle.zip", "heatmap.csv", "heatmap.json", "heatmap.png"]
    facts = json.loads(skill.out("heatmap.json"))
    assert facts["columns"] == {"rows": "region", "cols": "year", "value": "change"}
    width, height, pixels = decode_png(skill.out("heatmap.png"))
    assert facts["image"] == {"width": width, "height": height}
    regions = ("Northeast", "Midwest", "South", "West")
    expected = {
        (region, str(year)): TOTALS[str(year)][i + 1] - TOTALS[str(year - 10)][i + 1]
        for i, region in enumerate(regions)
        for year in (2000, 2010, 2020)
    }
    cells = {(c["row"], c["col"]): c for c in facts["cells"]}
    assert {k: c["sum"] for k, c in cells.items()} == expected
    assert facts["scale"] == {"low": 0, "high": max(expected.values())}
    # A corner of each cell is free of text: darker means more.
    light = {}
    for key, cell in cells.items():
        x, y, w, h = cell["box"]
        corners = {pixels[y + dy][x + dx] for dx in (0, w - 1) for dy in (0, h - 1)}
        assert len(corners) == 1
        light[key] = sum(corners.pop())
    by_value = sorted(expected, key=expected.get)
    assert [light[k] for k in by_value] == sorted(light.values(), reverse=True)
    assert light[by_value[-1]] == sum((8, 48, 107)) and pixels[0][0] == (255, 255, 255)
    matrix = list(csv.reader(io.StringIO(skill.out("heatmap.csv").decode())))
    assert matrix[0] == ["region", "2000", "2010", "2020"]
    assert {
        (r[0], y): int(v) for r in matrix[1:] for y, v in zip(matrix[0][1:], r[1:], strict=True)
    } == expected


def test_heatmap_shows_both_signs_and_gaps(lay):
    skill = lay("heatmap-png")
    name = skill.put("t.csv", "kind,month,amount\na,Feb,-10\na,Jan,10\nb,Jan,0\nb,Jan,oops\n")
    ok(skill.python("scripts/heatmap.py", name))
    facts = json.loads(skill.out("heatmap.json"))
    assert facts["scale"] == {"low": -10, "high": 10}
    assert facts["table"] == {"used": 3, "bad": 1, "first_bad_lines": [5]}
    _, _, pixels = decode_png(skill.out("heatmap.png"))
    colour = {(c["row"], c["col"]): pixels[c["box"][1]][c["box"][0]] for c in facts["cells"]}
    assert list(colour) == [("a", "Jan"), ("a", "Feb"), ("b", "Jan"), ("b", "Feb")]  # months in their order
    assert colour["a", "Jan"] == (5, 48, 97) and colour["a", "Feb"] == (127, 59, 8)
    assert min(colour["b", "Jan"]) > 240 and colour["b", "Feb"] == (222, 222, 222)


def test_heatmap_bundle_is_stable(lay):
    skill = lay("heatmap-png")
    lines = POPULATION.read_text().splitlines()
    ok(skill.python("scripts/heatmap.py", skill.put("t.csv", "\n".join(lines) + "\n")))
    first = hashlib.sha256(skill.out("bundle.zip")).hexdigest()
    with zipfile.ZipFile(io.BytesIO(skill.out("bundle.zip"))) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["heatmap.csv", "heatmap.json", "heatmap.png"]
        for entry in archive.infolist():
            assert entry.date_time == (1980, 1, 1, 0, 0, 0) and entry.external_attr >> 16 == 0o100644
            assert archive.read(entry) == skill.out(entry.filename)
    # Another order of rows, another hash seed, another time zone: the same bytes.
    name = skill.put("t.csv", "\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    ok(skill.python("scripts/heatmap.py", name, PYTHONHASHSEED="7", TZ="Asia/Tokyo"))
    assert hashlib.sha256(skill.out("bundle.zip")).hexdigest() == first


def test_heatmap_draws_every_label(lay):
    skill = lay("heatmap-png")
    glyphs = "".join(map(chr, range(32, 127))).replace('"', '""')
    text = f'region,month,amount\n"{glyphs}",x,1\n"日本 é\u202e\x1b",y,2\n'
    result = ok(skill.python("scripts/heatmap.py", skill.put("g.csv", text), "--title", "<T>"))
    decode_png(skill.out("heatmap.png"))
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", result.stdout.decode())


@pytest.mark.parametrize(
    ("content", "arguments", "code", "says"),
    [
        (None, ["inputs/none.csv"], 3, "No such file"),
        (b" \n", ["inputs/x.csv"], 3, "empty"),
        (b"\x00\x01", ["inputs/x.csv"], 3, "binary"),
        (b"region,month,amount\n", ["inputs/x.csv", "--value", "amount"], 3, "no row"),
        (b"a,b\nx,1\n", ["inputs/x.csv"], 2, "name one with"),
        (b"a,b,c\nx,y,1\n", ["inputs/x.csv", "--rows", "zz"], 2, "columns are: a, b, c"),
        (b"a,b,c\nx,y,1\n", ["inputs/x.csv", "--rows", "a", "--cols", "a"], 2, "different"),
        (b"", [], 2, "usage"),
        (b"a,b,c\nx,y,1\n", ["inputs/x.csv", "--out", "/dev/null/x"], 4, "cannot write"),
        (
            b"region,month,amount\n" + b"".join(b"r%d,m,1\n" % i for i in range(300)),
            ["inputs/x.csv"],
            3,
            "more than 200",
        ),
    ],
)
def test_heatmap_says_what_is_wrong(lay, content, arguments, code, says):
    skill = lay("heatmap-png")
    if content is not None:
        skill.put("x.csv", content)
    result = skill.python("scripts/heatmap.py", *arguments)
    assert result.returncode == code
    assert says in result.stderr.decode() and b"Traceback" not in result.stderr
    assert skill.outputs() == []
