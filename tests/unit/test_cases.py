"""Case files: what can stand in one, what is wrong with one, and how a result is compared with it."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from executor.bridge import PublicToolError, ToolContext
from executor.bridge.scripts import ScriptResult
from executor.errors import BadRequestError
from executor.models import ExecResult
from executor.testing import patterns, pictures, schema
from executor.testing.cases import Instance, discover
from executor.testing.changes import changed_files, touches
from executor.testing.coverage import coverage
from executor.testing.expect import DIFF_LINES, Produced, compare, diff
from executor.testing.fakes import FakeTools
from executor.testing.form import Case
from executor.testing.matching import subset
from executor.testing.selection import compile_expression

REPOSITORY = Path(__file__).resolve().parents[2]
Write = Callable[[str], Path]


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    """An empty skill in a root of its own."""
    folder = tmp_path / "root" / "demo"
    (folder / "tests").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: demo\ndescription: d\n---\nx\n")
    return folder.resolve()


@pytest.fixture
def write(skill: Path) -> Write:
    """Writes the skill's case file; returns the skill."""

    def make(text: str) -> Path:
        (skill / "tests" / "a.yaml").write_text(text)
        return skill

    return make


# --- reading ------------------------------------------------------------------------------------------------


def test_a_case_is_read_with_its_line(write: Write) -> None:
    found = discover(
        write("cases:\n  - name: one\n    run: echo 1\n\n  - name: two\n    argv: [echo, '2']\n")
    )
    assert [(item.id, item.line, item.case.command) for item in found] == [
        ("demo::one", 2, "echo 1"),
        ("demo::two", 5, ["echo", "2"]),
    ]


def test_a_skill_without_cases_has_none(skill: Path) -> None:
    assert discover(skill) == []


MISTAKES = {
    "not YAML": ("cases: [\n", 2, "is not YAML"),
    "no cases": ("case: []\n", 1, "there is no list `cases`"),
    "something beside cases": ("cases:\n  - {name: a, run: b}\nx: {}\n", 3, "'x' is not known here"),
    "an empty list": ("cases: []\n", 1, "`cases` is not a list of cases"),
    "a case that is no map": ("cases:\n  - echo 1\n", 2, "a case is a map"),
    "an unknown key": ("cases:\n  - name: a\n    run: b\n    exit: 1\n", 4, "'exit' is not known here"),
    "an unknown key deeper down": (
        "cases:\n  - name: a\n    run: b\n    expect:\n      exit: 1\n      stdou: x\n",
        6,
        "expect: 'stdou' is not known here",
    ),
    "no command": ("cases:\n  - name: a\n", 2, "give one of `run`, `argv` and `script`"),
    "two commands": (
        "cases:\n  - name: a\n    run: b\n    argv: [c]\n",
        2,
        "give one of `run`, `argv` and `script`",
    ),
    "a repeated key": ("cases:\n  - name: a\n    run: b\n    run: c\n", 4, "'run' is repeated"),
    "a limit that cannot be read": (
        "cases:\n  - name: a\n    run: b\n    limits: {memory: lots}\n",
        4,
        "memory: cannot read 'lots' as a size",
    ),
    "a missing fixture": (
        "cases:\n  - name: a\n    run: b\n    inputs:\n      inputs/x: nothing.csv\n",
        2,
        "there is no 'nothing.csv' beside a.yaml",
    ),
    "a fixture outside": (
        "cases:\n  - name: a\n    run: b\n    inputs: {inputs/x: ../../../secret}\n",
        2,
        "'../../../secret' leads out of",
    ),
    "an absolute fixture": (
        "cases:\n  - name: a\n    run: b\n    stdin: {file: /etc/passwd}\n",
        2,
        "'/etc/passwd' is not a path beside the case file",
    ),
    "a golden file outside of the skill": (
        "cases:\n  - name: a\n    run: b\n    expect: {stdout: {golden: ../../x}}\n",
        4,
        "the golden file '../../x' is not a file in the skill",
    ),
    "an input outside of the workspace": (
        "cases:\n  - name: a\n    run: b\n    inputs: {/etc/passwd: {text: x}}\n",
        4,
        "'/etc/passwd' is not below /workspace or /skills",
    ),
    "a bad regular expression": (
        "cases:\n  - name: a\n    run: b\n    expect: {stdout: {matches: '('}}\n",
        4,
        "'(' is no regular expression",
    ),
    "a bad glob": (
        "cases:\n  - name: a\n    run: b\n    expect:\n      files:\n        - glob: /etc/*\n",
        6,
        "the output glob '/etc/*' is outside",
    ),
    "a parameter without a value": (
        "cases:\n  - name: a\n    run: 'echo {{y}}'\n    parametrize: [{x: 1}]\n",
        2,
        "{{y}} has no value",
    ),
    "a script that is not there": (
        "cases:\n  - name: a\n    script: scripts/x.py\n",
        3,
        "there is no script 'scripts/x.py' in the skill",
    ),
    "a script outside": (
        "cases:\n  - name: a\n    script: ../x.py\n",
        3,
        "'../x.py' is not a script of a skill",
    ),
    "an input without a script": (
        "cases:\n  - name: a\n    run: b\n    input: {x: 1}\n",
        2,
        "`input` needs a `script`",
    ),
    "a value without a script": (
        "cases:\n  - name: a\n    run: b\n    expect: {result: {equals: 1}}\n",
        2,
        "`expect.result` needs a `script`",
    ),
    "an input that is not JSON": (
        "cases:\n  - name: a\n    script: SKILL.py\n    input: {day: 2026-01-02}\n",
        4,
        "is not JSON: Object of type date",
    ),
    "an answer that is not JSON": (
        "cases:\n  - name: a\n    run: b\n    tools:\n      t: {returns: .nan}\n",
        5,
        "is not JSON",
    ),
    "a tool with a bad name": (
        "cases:\n  - name: a\n    run: b\n    tools: {'a b': {returns: 1}}\n",
        4,
        "'a b' cannot be a tool's name",
    ),
    "a tool that answers nothing": (
        "cases:\n  - name: a\n    run: b\n    tools:\n      t: {calls: 1}\n",
        5,
        "give either `returns` or `error`",
    ),
    "a tool that answers twice": (
        "cases:\n  - name: a\n    run: b\n    tools:\n      t:\n        - {returns: 1, error: x}\n",
        6,
        "give either `returns` or `error`",
    ),
    "an expectation that is not JSON": (
        "cases:\n  - name: a\n    run: b\n    expect: {stdout: {json: {day: 2026-01-02}}}\n",
        4,
        "is not JSON: Object of type date",
    ),
    "no runtime at all": (
        "cases:\n  - name: a\n    run: b\n    runtime: []\n",
        4,
        "runtime: Input should be 'local' or 'container'",
    ),
    "a tag that its value does not fit": ("cases: !!bool maybe\n", 1, "is not YAML: 'maybe'"),
    "a number without digits": ("cases: !!int ''\n", 1, "is not YAML: "),
    "a time that is none": ("cases: !!timestamp noon\n", 1, "is not YAML: "),
    "YAML that holds itself": ("cases: &a [*a]\n", 1, "is not YAML: maximum recursion"),
    "too large a repetition": (
        "cases:\n  - name: a\n    run: b\n    expect: {stdout: {matches: 'a{99999999999}'}}\n",
        4,
        "holds a regular expression that is too much",
    ),
    "a fixture of too long a name": (
        f"cases:\n  - name: a\n    run: b\n    stdin: {{file: {'x' * 300}}}\n",
        2,
        "names a file that cannot exist: File name too long",
    ),
    "a fixture with half a character": (
        'cases:\n  - name: a\n    run: b\n    stdin: {file: "\\ud800"}\n',
        2,
        "names a file that cannot exist",
    ),
    "one name twice": (
        "cases:\n  - {name: a, run: b}\n  - {name: a, run: c}\n",
        3,
        "the case 'a' is in a.yaml too",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_with_file_and_line(write: Write, mistake: str) -> None:
    text, line, message = MISTAKES[mistake]
    with pytest.raises(BadRequestError) as caught:
        discover(write(text))
    assert f"a.yaml:{line}: " in caught.value.message
    assert message in caught.value.message


def test_a_fixture_may_not_be_a_link_to_the_host(write: Write, skill: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (skill / "tests" / "data.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(BadRequestError, match="leads out of"):
        discover(write("cases:\n  - {name: a, run: b, inputs: {inputs/x: data.txt}}\n"))


def test_yaml_that_multiplies_itself_is_refused(write: Write) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    with pytest.raises(BadRequestError, match="holds more than 100,000 nodes"):
        discover(write(bomb + "cases: [*a39]\n"))


def test_each_of_many_parameters_is_checked_once(write: Write) -> None:
    """A case carries its own parameters and not the list, which would be checked as often as it is long."""
    found = discover(
        write("cases:\n  - {name: a, run: 'echo {{x}}', parametrize: [{x: 1}, {x: 2}, {x: 3}]}\n")
    )
    assert [instance.case.parametrize for instance in found] == [({"x": 1},), ({"x": 2},), ({"x": 3},)]


def test_parameters_fill_texts_and_numbers(write: Write) -> None:
    text = (
        "cases:\n"
        "  - name: '{{who}} in {{n}}'\n"
        "    run: echo {{who}} $HOME\n"
        "    inputs: {'inputs/{{who}}': {text: '{{who}}'}}\n"
        "    parametrize: [{who: a b, n: 3}, {who: c, n: 0}]\n"
        "    expect: {exit: '{{n}}', stdout: {json: {n: '{{n}}', s: 'x{{n}}'}}}\n"
        "  - name: plain\n"
        "    run: echo {{kept}}\n"
        "  - name: unnamed\n"
        "    run: echo {{v}}\n"
        "    parametrize: [{v: true}]\n"
    )
    first, second, plain, unnamed = discover(write(text))
    assert (first.name, first.case.run, first.case.expect.exit) == ("a b in 3", "echo a b $HOME", 3)
    assert (second.name, second.case.expect.exit) == ("c in 0", 0)
    assert first.case.expect.stdout is not None and not isinstance(first.case.expect.stdout, str)
    assert first.case.expect.stdout.json_ == {"n": 3, "s": "x3"}
    assert list(first.case.inputs) == ["inputs/a b"]
    assert (plain.case.run, unnamed.name, unnamed.case.run) == (
        "echo {{kept}}",
        "unnamed [v=true]",
        "echo true",
    )


# --- the schema ---------------------------------------------------------------------------------------------


def test_the_published_schema_is_that_of_the_models() -> None:
    assert schema.FILE.read_text("utf-8") == schema.text()


def test_the_schema_takes_the_projects_cases_and_refuses_mistakes() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(schema.FILE.read_text("utf-8")))
    files = sorted((REPOSITORY / "skills").glob("*/tests/*.yaml"))
    assert len(files) == 4
    for file in files:
        assert list(validator.iter_errors(yaml.safe_load(file.read_text("utf-8")))) == []
    for wrong in ({}, {"cases": []}, {"cases": [{"name": "a", "run": "b", "expect": {"exit": "soon"}}]}):
        assert not validator.is_valid(wrong)


# --- comparing ----------------------------------------------------------------------------------------------


def reasons(
    write: Write, expect: dict[str, Any], files: list[Produced] | None = None, **result: Any
) -> list[str]:
    case = {"name": "a", "run": "b", "expect": expect}
    (instance,) = discover(write(yaml.safe_dump({"cases": [case]})))
    values = {"status": "ok", "exit_code": 0, "run_id": "run_1", **result}
    return [found.reason for found in compare(instance, ExecResult(**values), files or []).mismatches]


def produced(path: str, content: bytes | None, mime: str = "text/plain", size: int | None = None) -> Produced:
    return Produced(path, len(content or b"") if size is None else size, mime, "0" * 64, content)


def test_what_is_as_expected_has_no_mismatch(write: Write) -> None:
    expect = {
        "exit": [0, 3],
        "stdout": {"contains": ["b", "c"], "matches": r"^b\d$", "equals": "a\nb1\nc"},
        "stderr": "",
        "files": [
            {"glob": "out/*.json", "count": {"min": 1, "max": 2}, "json": {"a": [1, {"b": 2}]}, "size": 23},
            {"glob": "out/*.png", "count": 0},
            {"glob": "notes/**", "contains": "hi", "mime": ["text/plain", "text/markdown"]},
        ],
    }
    files = [
        produced("out/x.json", b'{"a":[1,{"b":2,"c":3}]}'),
        produced("skills/demo/notes/n.txt", b"oh hi"),
    ]
    assert reasons(write, expect, files, exit_code=3, status="error", stdout="a\nb1\nc\n") == []


def test_a_pattern_that_takes_for_ever_fails_the_case_and_is_named(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "SECONDS", 1.0)
    expect = {"stdout": {"matches": ["^a", "(a+)+b", "c"]}, "stderr": {"matches": "(a+)+b"}}
    found = reasons(write, expect, stdout="a" * 50, stderr="aaab")
    said = "no answer in 1 s: the pattern takes too long, or too much memory"
    assert found == [f"stdout: expected a match of '(a+)+b', got {said}"]


MISMATCHES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "exit": ({"exit": 2}, {"exit_code": 1, "status": "error"}, ["exit: expected 2, got 1"]),
    "no exit given means 0": ({}, {"exit_code": 7, "status": "error"}, ["exit: expected 0, got 7"]),
    "several exits": (
        {"exit": [0, 2]},
        {"exit_code": 124, "status": "timeout"},
        ["exit: expected 0 or 2, got 124 (timeout)"],
    ),
    "one line of text": ({"stdout": "a"}, {"stdout": "b\n"}, ["stdout: expected 'a', got 'b\\n'"]),
    "several lines": ({"stdout": "a\nb\n"}, {"stdout": "a\nc\n"}, ["stdout line 2: expected 'b', got 'c'"]),
    "contains": (
        {"stderr": {"contains": ["a", "x"]}},
        {"stderr": "abc"},
        ["stderr: expected text with 'x', got 'abc'"],
    ),
    "matches": (
        {"stdout": {"matches": r"^\d+$"}},
        {"stdout": "1 2"},
        [r"stdout: expected a match of '^\\d+$', got '1 2'"],
    ),
    "json": (
        {"stdout": {"json": {"a": 1, "b": [1, 2], "c": True, "d": {"e": "f"}}}},
        {"stdout": '{"a": "1", "b": [1], "c": 1}'},
        [
            'stdout $.a: expected 1, got "1"',
            "stdout $.b: expected 2 items, got 1: [1]",
            "stdout $.c: expected true, got 1",
            'stdout $.d: expected {"e": "f"}, got nothing',
        ],
    ),
    "no JSON": (
        {"stdout": {"json": {}}},
        {"stdout": "x"},
        ["stdout: expected JSON, got 'x' (JSONDecodeError)"],
    ),
    "output that was cut": (
        {"stdout": "a"},
        {"stdout": "a", "stdout_truncated": True},
        ["stdout: expected the whole text, got more than is kept (1 MiB): it was cut"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MISMATCHES)
def test_a_mismatch_says_what_was_expected_and_what_came(write: Write, what: str) -> None:
    expect, result, expected = MISMATCHES[what]
    assert reasons(write, expect, **result) == expected


def test_mismatches_of_files(write: Write) -> None:
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480)
    files = [
        produced("out/a.png", png, "image/png"),
        produced("out/b.txt", b"text"),
        produced("out/big.bin", None, "application/octet-stream", 9_000_000),
    ]
    expect = {
        "files": [
            {"glob": "out/*.svg"},
            {"glob": "out/*", "count": 2},
            {"glob": "out/a.png", "mime": "image/jpeg", "image": {"width": 640, "height": {"max": 400}}},
            {"glob": "out/b.txt", "size": {"min": 5}, "sha256": "1" * 64, "image": {"width": 1}},
            {"glob": "out/big.bin", "contains": "x"},
        ]
    }
    assert reasons(write, expect, files) == [
        "files out/*.svg: expected at least 1 files, got 0 (there are out/a.png, out/b.txt, out/big.bin)",
        "files out/*: expected 2 files, got 3 (out/a.png, out/b.txt, out/big.bin)",
        "files out/a.png: expected image/jpeg, got image/png",
        "files out/a.png: expected height at most 400, got 480",
        "files out/b.txt: expected at least 5 bytes, got 4",
        f"files out/b.txt: expected SHA-256 {'1' * 64}, got {'0' * 64}",
        "files out/b.txt: expected a picture, got 4 other bytes",
        "files out/big.bin: expected a file that can be read, got 9,000,000 bytes, too many",
    ]


def test_golden_files(write: Write, skill: Path) -> None:
    (skill / "tests" / "same.txt").write_bytes(b"a\nb\n")
    (skill / "tests" / "other.bin").write_bytes(b"\xff\x00")
    expect = {
        "stdout": {"golden": "same.txt"},
        "files": [
            {"glob": "out/x.txt", "golden": "same.txt"},
            {"glob": "out/x.bin", "golden": "other.bin"},
            {"glob": "out/new", "golden": "deep/new"},
        ],
    }
    files = [produced("out/x.txt", b"a\nc\n"), produced("out/x.bin", b"\xfe"), produced("out/new", b"n")]
    (instance,) = discover(write(yaml.safe_dump({"cases": [{"name": "a", "run": "b", "expect": expect}]})))
    outcome = compare(instance, ExecResult(status="ok", exit_code=0, stdout="a\nb\n"), files)
    assert [(found.reason, found.diff) for found in outcome.mismatches] == [
        (
            "files out/x.txt line 2: expected 'b' (as in same.txt), got 'c'",
            "--- expected\n+++ got\n@@ -1,2 +1,2 @@\n a\n-b\n+c",
        ),
        ("files out/x.bin: expected the 2 bytes of other.bin, got 1 other bytes", ""),
        ("files out/new: expected what is in new, got no such file (--update)", ""),
    ]
    assert [(path.relative_to(skill).as_posix(), data) for path, data in outcome.goldens] == [
        ("tests/same.txt", b"a\nc\n"),
        ("tests/other.bin", b"\xfe"),
        ("tests/deep/new", b"n"),
    ]


def test_a_diff_of_much_text_is_short_and_quick() -> None:
    shown = diff("a\n" * 100_000, "a\n" * 99_999 + "b\n").split("\n")
    assert len(shown) <= DIFF_LINES + 1
    shown = diff("".join(f"{n}\n" for n in range(200)), "".join(f"{n}x\n" for n in range(200))).split("\n")
    assert (len(shown), shown[-1]) == (DIFF_LINES + 1, "... 323 more lines")


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        ({"a": 1}, {"a": 1.0, "b": 2}, True),
        ({"a": 0.3}, {"a": 0.1 + 0.2}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": None}, {}, False),
        ({"a": None}, {"a": None}, True),
        ([1, 2], [1, 2, 3], False),
        ({1: "x"}, {"1": "x"}, True),
        ("a", ["a"], False),
    ],
)
def test_json_is_a_part(wanted: Any, found: Any, same: bool) -> None:
    assert (list(subset(wanted, found)) == []) is same


PICTURES = {
    "gif": (b"GIF89a" + struct.pack("<HH", 3, 4), (3, 4)),
    "bmp": (b"BM" + bytes(16) + struct.pack("<ii", 5, -6), (5, 6)),
    "jpeg": (b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc2\0\x11\x08" + struct.pack(">HH", 7, 8), (8, 7)),
    "webp": (b"RIFF....WEBPVP8X" + bytes(8) + b"\x09\0\0\x0a\0\0", (10, 11)),
    "webp, lossless": (b"RIFF....WEBPVP8L....\x2f" + struct.pack("<I", 11 | 12 << 14), (12, 13)),
    "svg with a size": (b"<?xml?>\n<svg xmlns='x' width='20px' height=\"30\">", (20, 30)),
    "svg with a box": (b'<svg viewBox="0 0 640 480.4">', (640, 480)),
    "text": (b"hello", None),
    "a torn png": (b"\x89PNG\r\n\x1a\n\0\0", None),
    "a jpeg without an end": (b"\xff\xd8" + b"\xff" * 100, None),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_sizes_of_pictures(kind: str) -> None:
    data, expected = PICTURES[kind]
    assert pictures.size(data) == expected


# --- choosing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("totals", True),
        ("TOTALS BY region", True),
        ("region totals", False),
        ("not totals", False),
        ("totals and not slow", True),
        ("slow or (sales and not slow)", True),
        ("sales-report::", True),
    ],
)
def test_expressions_choose_cases(text: str, meant: bool) -> None:
    assert compile_expression(text)("sales-report::totals by region") is meant


@pytest.mark.parametrize("text", ["", " ", "(", "a and", "not", "a)", "or b", "( )"])
def test_an_expression_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(BadRequestError):
        compile_expression(text)


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_changes_since_a_revision(write: Write, skill: Path) -> None:
    root = skill.parent
    (root / "data").mkdir()
    (root / "data" / "a b.csv").write_text("1")
    other = root / "other"
    other.mkdir()
    (other / "SKILL.md").write_text("x")
    text = "cases:\n  - {name: a, run: b, inputs: {inputs/x: '../../data/a b.csv'}}\n"
    (instance,) = discover(write(text))
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    paths = [instance.skill, *instance.fixtures()]

    assert changed_files("HEAD", [skill]) == set()
    (other / "SKILL.md").write_text("y")
    assert touches(changed_files("main", [skill]), paths) is False
    assert touches(changed_files("main", [skill]), [other]) is True
    (root / "data" / "a b.csv").write_text("2")  # a fixture outside of the skill
    assert touches(changed_files("HEAD", [skill]), paths) is True
    git(root, "commit", "-q", "-a", "-m", "two")
    assert changed_files("HEAD", [skill]) == set()
    (skill / "new.py").write_text("")  # not known to git
    assert changed_files("HEAD", [skill]) == {skill / "new.py"}
    assert touches(changed_files("HEAD~1", [skill]), paths) is True


@pytest.mark.parametrize("revision", ["no-such", "--output=/tmp/x", ""])
def test_a_revision_that_is_none_is_an_error(skill: Path, revision: str) -> None:
    git(skill, "init", "-q")
    with pytest.raises(BadRequestError):
        changed_files(revision, [skill])


# --- scripts and fake tools ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        ({"json": {"a": 1}}, {"a": 1, "b": 2}, []),
        ({"equals": {"a": 1}}, {"a": 1, "b": 2}, ["result $.b: expected nothing, got 2"]),
        ({"equals": None}, None, []),
        ({"equals": None}, 0, ["result $: expected null, got 0"]),
        ({"json": [{"a": 1}]}, [{"a": 2}], ["result $[0].a: expected 1, got 2"]),
        ({"equals": True}, 1, ["result $: expected true, got 1"]),
    ],
)
def test_the_value_of_a_function(
    write: Write, skill: Path, wanted: Any, value: Any, expected: list[str]
) -> None:
    (skill / "x.py").write_text("def run(input, ctx): pass\n")
    case = {"name": "a", "script": "x.py", "expect": {"result": wanted}}
    (instance,) = discover(write(yaml.safe_dump({"cases": [case]})))
    result = ScriptResult(status="ok", exit_code=0, style="function", result=value)
    assert [found.reason for found in compare(instance, result, []).mismatches] == expected
    program = ScriptResult(status="ok", exit_code=0, style="cli")
    assert [found.reason for found in compare(instance, program, []).mismatches] == [
        "result: expected the value of a function, got a program, which has none"
    ]


def calls(tools: str, *inputs: tuple[str, dict[str, Any]]) -> tuple[list[Any], list[str]]:
    """What the scripts get for each call, and the mismatches at the end."""
    case = Case.model_validate({"name": "a", "run": "b", "tools": yaml.safe_load(tools)})
    fakes = FakeTools(case.answers)
    assert fakes.grant is not None
    context = ToolContext("run_1", "s", "run_1.c1", "t", None, 0.0)
    got: list[Any] = []
    for name, value in inputs:
        try:
            got.append(asyncio.run(fakes.grant.tools[name].handler(value, context)))
        except PublicToolError as error:
            got.append(f"error: {error.message}")
    return got, [found.reason for found in fakes.mismatches()]


def test_a_fake_tool_gives_the_first_answer_that_fits() -> None:
    several = "t: [{when: {city: Oslo}, returns: 1}, {when: {city: Rome}, error: closed}]"
    assert calls(several, ("t", {"city": "Rome"}), ("t", {"city": "Oslo", "x": 1})) == (
        ["error: closed", 1],
        [],
    )
    pages = "t: [{returns: one, calls: 1}, {returns: two, calls: 1}]"
    assert calls(pages, ("t", {}), ("t", {})) == (["one", "two"], [])


def test_calls_that_nobody_expected_and_expected_ones_that_do_not_come() -> None:
    got, told = calls("t: [{when: {a: 1}, returns: x}]", *[("t", {"a": n}) for n in range(20)])
    assert got[:3] == ["error: the test case has no answer to this call", "x", got[0]]
    assert told[0] == 'tools t: expected a call with {"a": 1}, got {"a": 0}'
    assert len(told) == 5
    assert calls("t: {returns: null, calls: 2}", ("t", {})) == ([None], ["tools t: expected 2 calls, got 1"])
    assert calls("t: {returns: 1, calls: {min: 1, max: 2}}", *[("t", {})] * 3)[1] == [
        "tools t: expected a call with anything (1 to 2 times), got {}"
    ]
    assert calls("t: [{when: {a: 1}, returns: 1, calls: 1}, {returns: 2}]", ("t", {}))[1] == [
        'tools t with {"a": 1}: expected 1 call, got 0'
    ]


# --- coverage of scripts ------------------------------------------------------------------------------------


def test_which_scripts_no_case_runs(skill: Path) -> None:
    files = {
        "scripts/main.py": "import helper\nfrom lib.tools import x\n",
        "scripts/helper.py": "",
        "scripts/lib/tools.py": "",
        "scripts/run.sh": "#!/bin/sh\nawk -f \"$here/table.awk\"\n",
        "scripts/table.awk": "",
        "scripts/mod.py": "",
        "scripts/other.py": "",
        "scripts/lonely": "#!/usr/bin/env node\n",
        "scripts/notes.txt": "",
        "tests/x.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (skill / name).parent.mkdir(parents=True, exist_ok=True)
        (skill / name).write_text(text)
    commands = ["cd scripts && python3 main.py x|sort", ["bash", "-c", "$SKILL_DIR/scripts/run.sh; true"]]
    found = coverage(skill, "demo", [*commands, "python3 -m scripts.mod"])
    assert found.run == ["scripts/main.py", "scripts/mod.py", "scripts/run.sh"]
    assert found.reached == ["scripts/helper.py", "scripts/lib/tools.py", "scripts/table.awk"]
    assert found.not_run == ["scripts/lonely", "scripts/other.py"]


def test_an_instance_names_every_file_that_it_reads(write: Write, skill: Path) -> None:
    for name in ("in.csv", "stdin.txt"):
        (skill / "tests" / name).write_text("x")
    text = (
        "cases:\n  - name: a\n    run: b\n    inputs: {inputs/x: in.csv}\n    stdin: {file: stdin.txt}\n"
        "    expect: {stdout: {golden: out.txt}, files: [{glob: out/x, golden: x.bin}]}\n"
    )
    instance: Instance = discover(write(text))[0]
    names = [path.name for path in instance.fixtures()]
    assert names == ["in.csv", "stdin.txt", "out.txt", "x.bin"]
