"""The skills that come with the project, run in a sandbox: the same bytes from every runtime, and right ones.

What the scripts compute is tested without a sandbox in `tests/unit/test_bundled_skills.py`; here it is that a
skill is staged, run as its SKILL.md says, and its files collected with their types.
"""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor import ExecResult, Executor, File, Session

SKILLS = Path(__file__).resolve().parents[2] / "skills"
DATA = SKILLS / "data" / "us-population.csv"
LOG = (
    "2024-05-01T12:00:00Z INFO started\n"
    "2024-05-01T12:00:04Z ERROR db timeout after 31 ms\n"
    "2024-05-01T12:00:09Z ERROR db timeout after 7 ms\n"
    '203.0.113.9 - - [01/May/2024:12:00:10 +0000] "GET /users/17?x=1 HTTP/1.1" 404 153 "-" "curl/8"\n'
)
# case → (skill, command, [(file, type), …])
CASES: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "report": (
        "sales-report",
        "python3 scripts/report.py inputs/us-population.csv",
        [
            ("out/chart.svg", "image/svg+xml"),
            ("out/report.json", "application/json"),
            ("out/report.md", "text/markdown"),
        ],
    ),
    "heatmap": (
        "heatmap-png",
        "python3 scripts/heatmap.py inputs/us-population.csv",
        [
            ("out/bundle.zip", "application/zip"),
            ("out/heatmap.csv", "text/csv"),
            ("out/heatmap.json", "application/json"),
            ("out/heatmap.png", "image/png"),
        ],
    ),
    "digest": (
        "log-digest",
        "scripts/digest.sh inputs/app.log",
        [("out/digest.json", "application/json"), ("out/digest.txt", "text/plain")],
    ),
    "to json": (
        "table-convert",
        "node scripts/convert.mjs inputs/us-population.csv --to json --infer",
        [("out/us-population.json", "application/json")],
    ),
    "to markdown": (
        "table-convert",
        "node scripts/convert.mjs inputs/us-population.csv --to md --output out/table.md",
        [("out/table.md", "text/markdown")],
    ),
    "to tsv": (
        "table-convert",
        "node scripts/convert.mjs inputs/us-population.csv --to tsv --output out/table.tsv",
        [("out/table.tsv", "text/tab-separated-values")],
    ),
}
_seen: dict[tuple[str, str], tuple[str, dict[str, str], str]] = {}
"""(case, zlib's version) → (runtime, digests of the outputs, stdout) of the runtime that came first."""


@pytest.fixture(scope="module")
def session(executor: Executor) -> Iterator[Session]:
    """One session with the data in it; each run starts with an empty out/."""
    with executor.session() as opened:
        opened.put("inputs/", DATA)
        opened.put("inputs/app.log", LOG)
        yield opened


def run(session: Session, case: str) -> tuple[ExecResult, dict[str, File]]:
    skill, command, expected = CASES[case]
    session.remove("out")
    session.load(SKILLS / skill)
    result = session.exec(command, skill=skill, timeout=60, outputs=["out/**"])
    assert (result.status, result.stderr if skill != "sales-report" else "") == ("ok", "")
    assert [(file.path, file.mime) for file in result.files] == expected
    assert (result.limits_hit, result.warnings) == ([], [])
    return result, {file.path.removeprefix("out/"): file for file in result.files if isinstance(file, File)}


def rows() -> list[dict[str, str]]:
    with DATA.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def changes(column: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in rows():
        sums[row[column]] = sums.get(row[column], 0) + int(row["change"])
    return sums


@pytest.mark.parametrize("case", CASES)
def test_the_outputs_are_the_same_bytes_on_every_runtime_and_every_time(
    session: Session, runtime: str, case: str
) -> None:
    version = session.exec(["python3", "-c", "import zlib; print(zlib.ZLIB_RUNTIME_VERSION)"]).stdout
    for _ in range(2):
        result, files = run(session, case)
        digests = {name: file.sha256 for name, file in files.items()}
        first = _seen.setdefault((case, version), (runtime, digests, result.stdout))
        assert (digests, result.stdout) == first[1:], f"{runtime} differs from {first[0]}"


def test_every_bundled_skill_has_a_case() -> None:
    assert {skill for skill, _, _ in CASES.values()} == {
        path.parent.name for path in SKILLS.glob("*/SKILL.md")
    }


def test_the_commands_are_those_of_the_instructions() -> None:
    for skill, command, _ in CASES.values():
        script = next(word for word in command.split() if word.startswith("scripts/"))
        assert script in (SKILLS / skill / "SKILL.md").read_text(encoding="utf-8")


def test_the_report_adds_up(session: Session) -> None:
    result, files = run(session, "report")
    sums = changes("region")
    report = json.loads(files["report.json"].read())
    assert {group["label"]: group["sum"] for group in report["groups"]} == sums
    assert (report["total"], report["rows"]) == (sum(sums.values()), {"read": 153, "used": 153, "bad": 0})
    for region, total in sums.items():
        assert f"  {region}: {total:,}\n" in result.stdout
        assert f"{total:,}" in files["report.md"].read().decode()
        assert f"{total:,}" in files["chart.svg"].read().decode()
    assert ET.fromstring(files["chart.svg"].read()).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_heat_map_is_a_whole_picture_and_its_bundle_holds_the_same_files(session: Session) -> None:
    _, files = run(session, "heatmap")
    picture = files["heatmap.png"].read()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    at, data, width, height, kinds = 8, b"", 0, 0, []
    while at < len(picture):
        size = int.from_bytes(picture[at : at + 4], "big")
        kind, body = picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]
        assert int.from_bytes(picture[at + 8 + size : at + 12 + size], "big") == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
        data += body if kind == b"IDAT" else b""
        kinds.append(kind)
        at += 12 + size
    assert (kinds[0], kinds[-1], at) == (b"IHDR", b"IEND", len(picture))
    assert len(zlib.decompress(data)) == height * (width + 1)  # a palette: one byte for a pixel
    table = list(csv.reader(io.StringIO(files["heatmap.csv"].read().decode())))
    years = table[0][1:]
    assert {row[0]: sum(map(int, row[1:])) for row in table[1:]} == changes("region")
    columns = {year: sum(int(row[1 + n]) for row in table[1:]) for n, year in enumerate(years)}
    assert columns == changes("year")
    with zipfile.ZipFile(io.BytesIO(files["bundle.zip"].read())) as bundle:
        assert bundle.testzip() is None
        packed = {name.rpartition("/")[2]: bundle.read(name) for name in bundle.namelist()}
    assert packed == {name: file.read() for name, file in files.items() if name != "bundle.zip"}


def test_the_digest_counts_the_lines(session: Session) -> None:
    result, files = run(session, "digest")
    digest = json.loads(files["digest.json"].read())
    assert digest["lines"] == {"total": 4, "parsed": 4, "access": 1, "plain": 3, "other": 0}
    assert digest["levels"] == {"ERROR": 2, "INFO": 1}
    assert digest["top_messages"][0] == {"level": "ERROR", "message": "db timeout after N ms", "count": 2}
    assert (digest["statuses"], digest["methods"]) == ({"404": 1}, {"GET": 1})
    assert digest["top_paths"] == [{"path": "/users/N", "count": 1, "errors": 1}]
    assert digest["time"] == {
        "first": "2024-05-01T12:00:00Z",
        "last": "2024-05-01T12:00:10Z",
        "seconds": 10,
        "utc": True,
    }
    assert files["digest.txt"].read().decode() in result.stdout


def test_the_converted_tables_hold_every_cell(session: Session) -> None:
    table = rows()
    numbers = ("year", "population", "change")
    expected = [{key: int(value) if key in numbers else value for key, value in row.items()} for row in table]
    assert json.loads(run(session, "to json")[1]["us-population.json"].read()) == expected
    tsv = run(session, "to tsv")[1]["table.tsv"].read().decode()
    assert list(csv.DictReader(io.StringIO(tsv, newline=""), delimiter="\t")) == table
    lines = run(session, "to markdown")[1]["table.md"].read().decode().splitlines()
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    assert cells[0] == list(table[0])
    assert all(re.fullmatch(r":?-+:?", cell) for cell in cells[1])
    assert cells[2:] == [list(row.values()) for row in table]


@pytest.mark.parametrize("case", ["report", "heatmap", "digest", "to json"])
def test_a_missing_input_is_exit_3_with_a_reason_and_no_output(session: Session, case: str) -> None:
    skill, command, _ = CASES[case]
    session.remove("out")
    missing = re.sub(r"inputs/\S+", "inputs/missing.csv", command)
    result = session.exec(missing, skill=skill, outputs=["out/**"])
    assert (result.status, result.exit_code, result.files) == ("error", 3, [])
    assert "missing.csv" in result.stderr


def test_a_table_goes_from_skill_to_skill_through_the_workspace(session: Session) -> None:
    session.remove("out")
    convert = "node scripts/convert.mjs inputs/us-population.csv --to tsv --output work/table.tsv"
    assert session.exec(convert, skill=SKILLS / "table-convert").status == "ok"
    result = session.exec(
        "python3 scripts/report.py work/table.tsv --group division",
        skill=SKILLS / "sales-report",
        outputs=["out/report.json"],
    )
    (file,) = result.files
    assert isinstance(file, File)
    report = json.loads(file.read())
    assert {group["label"]: group["sum"] for group in report["groups"]} == changes("division")


def test_running_leaves_the_shipped_skills_as_they_were(session: Session) -> None:
    for case, (skill, _, _) in CASES.items():
        run(session, case)
        for path in (SKILLS / skill).rglob("*"):
            if path.is_file():
                inside = f"skills/{skill}/{path.relative_to(SKILLS / skill).as_posix()}"
                assert session.read(inside) == path.read_bytes()
