"""The command line without a sandbox: parsing, errors, the terminal filter, skills and the doctor's rules."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from executor.cli import app, arguments, console
from executor.cli.relay import TerminalFilter
from executor.cli.terminal import ScreenFilter
from executor.doctor import runc_check
from executor.errors import BadLimitError, BadPathError, BadRequestError
from executor.models import ExecResult, Limits
from tests import forked

REPOSITORY = Path(__file__).parents[2]
# No engine answers, no bubblewrap is found, no settings come from outside.
NOWHERE = {"PATH": "/nonexistent", "DOCKER_HOST": "unix:///nonexistent/docker.sock", "NO_COLOR": "1"}


def invoke(*words: str, cwd: Path = REPOSITORY, **env: str) -> tuple[int, str, str]:
    done = forked.run(*words, text=True, cwd=cwd, env={**NOWHERE, **env})
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[arguments.RunRequest]:
    """What `run` was asked, instead of doing it."""
    found: list[arguments.RunRequest] = []
    monkeypatch.setattr("executor.cli.run.run", lambda request: found.append(request) or 0)
    return found


# --- words to a request ------------------------------------------------------------------------------------


def test_the_defaults_of_run(requested: list[arguments.RunRequest]) -> None:
    assert app.main(["run", "a-skill", "--", "true"]) == 0
    assert requested == [arguments.RunRequest(skill="a-skill", words=("true",))]


def test_every_option_of_run(
    requested: list[arguments.RunRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for root in ("r1", "r2"):
        (tmp_path / root).mkdir()
    line = (
        "run --skills r1 s --skills r2 --runtime local --image host --input a --input b:c --output x/** "
        "--output y --save d --overwrite --html r.html --env A=1 --env B=2 --stdin - --cwd work "
        "--timeout 1.5 --memory 1g --cpus 0.5 --pids 9 --disk 2m --session id --json --quiet "
        "-- cmd --json -- ''"
    )
    assert app.main([word if word != "''" else "" for word in line.split()]) == 0
    assert requested == [
        arguments.RunRequest(
            skill="s",
            words=("cmd", "--json", "--", ""),
            skills=("r1", "r2"),
            runtime="local",
            image="host",
            inputs=("a", "b:c"),
            outputs=("x/**", "y"),
            save=Path("d"),
            overwrite=True,
            html=Path("r.html"),
            env=("A=1", "B=2"),
            stdin="-",
            cwd="work",
            timeout=1.5,
            limits={"memory": "1g", "cpus": 0.5, "pids": 9, "disk": "2m"},
            session="id",
            json=True,
            quiet=True,
        )
    ]


def test_one_word_is_a_shell_line_and_several_are_a_vector() -> None:
    assert arguments.command(["a | b"]) == "a | b"
    assert arguments.command(["a | b", ""]) == ["a | b", ""]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "s", "node", "x.mjs", "--output", "a"], "no `--` that says whose they are"),
        (["run", "s"], "there is no COMMAND"),
        (["run", "s", "--"], "there is no COMMAND"),
        (["run", "s", "--timeout", "soon", "--", "true"], "'--timeout'"),
        (["run", "s", "--runtime", "vm", "--", "true"], "'--runtime'"),
        (["run", "s", "--no-such", "--", "true"], "No such option: --no-such"),
        (["run"], "Missing argument"),
        (["nonsense"], "No such command 'nonsense'"),
        (["skills", "show"], "Missing argument"),
    ],
)
def test_wrong_usage_is_125_with_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert app.main(words) == 125
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert first.startswith("executor: error: ") and message in first
    assert second.startswith("executor: hint: ")


def test_wrong_usage_with_json_is_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["run", "s", "--json", "--frobnicate"]) == 125
    assert json.loads(capsys.readouterr().out) == {
        "error": {
            "type": "UsageError",
            "message": "No such option: --frobnicate",
            "hint": "See `executor run --help`.",
        }
    }


def test_a_json_among_the_commands_words_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["run", "s", "--frobnicate", "--", "x", "--json"]) == 125
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("words", [[], ["--help"], ["run", "-h"], ["skills", "list", "--help"]])
def test_help_is_on_stdout_and_has_examples(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert app.main(words) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: executor") and "Examples:\n" in out
    assert err == ""


def test_every_command_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run"], ["doctor"], *(["skills", w] for w in ("list", "show")), ["images", "build"]):
        assert app.main([*words, "--help"]) == 0
        assert f"  executor {' '.join(words)}" in capsys.readouterr().out.partition("Examples:")[2]


def test_the_version() -> None:
    from executor import __version__

    assert invoke("--version") == (0, f"executor {__version__}\n", "")


def test_what_nobody_foresaw_is_one_line_and_a_traceback_only_on_demand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def burst(_request: object) -> int:
        raise ZeroDivisionError("so\x1bon")

    monkeypatch.setattr("executor.cli.run.run", burst)
    assert app.main(["run", "s", "--", "true"]) == 125
    hint = "executor: hint: This is a fault of the executor; EXECUTOR_DEBUG=1 shows where.\n"
    assert capsys.readouterr().err == "executor: error: ZeroDivisionError: so\\x1bon\n" + hint
    monkeypatch.setenv("EXECUTOR_DEBUG", "1")
    assert app.main(["run", "s", "--", "true"]) == 125
    assert capsys.readouterr().err.startswith("Traceback (most recent call last):\n")


# --- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "there", "expected"),
    [
        ("a", {"a"}, ("a", "")),
        ("a:b", {"a"}, ("a", "b")),
        ("a:b", {"a", "a:b"}, ("a:b", "")),
        ("a:b:c", {"a", "a:b"}, ("a:b", "c")),
        ("a:b:c", {"a"}, ("a", "b:c")),
        ("a:", {"a"}, ("a", "")),
        ("a:/workspace/x", {"a"}, ("a", "/workspace/x")),
    ],
)
def test_the_longest_source_that_exists_wins(text: str, there: set[str], expected: tuple[str, str]) -> None:
    assert arguments.split_input(text, exists=there.__contains__) == expected


@pytest.mark.parametrize(
    ("text", "there", "expected"),
    [
        (r"C:\data\a.csv", {r"C:\data\a.csv", "C"}, (r"C:\data\a.csv", "")),
        (r"C:\a.csv:work/b.csv", {r"C:\a.csv", "C"}, (r"C:\a.csv", "work/b.csv")),
        ("C:/a.csv:b", {"C:/a.csv", "C"}, ("C:/a.csv", "b")),
        ("c:b", {"c"}, ("c", "b")),
    ],
)
def test_the_colon_of_a_drive_parts_nothing(text: str, there: set[str], expected: tuple[str, str]) -> None:
    assert arguments.split_input(text, exists=there.__contains__, windows=True) == expected


@pytest.mark.parametrize(
    ("text", "missing"), [("gone", "'gone'"), ("gone:b", "'gone'"), (r"C:\gone:b", r"'C:\\gone'")]
)
def test_a_missing_input_is_named(text: str, missing: str) -> None:
    with pytest.raises(BadPathError, match=f"there is no file or folder {missing.replace(chr(92), '.')}"):
        arguments.split_input(text, exists=lambda _path: False, windows=True)


@pytest.mark.parametrize("text", ["", ":b"])
def test_an_input_without_a_source(text: str) -> None:
    with pytest.raises(BadRequestError, match="names no file"):
        arguments.split_input(text)


@pytest.mark.parametrize(
    ("dest", "expected"),
    [
        ("", "/workspace/inputs/"),
        (".", "/workspace/inputs/"),
        ("b.csv", "/workspace/inputs/b.csv"),
        ("sub/", "/workspace/inputs/sub/"),
        ("sub/b", "/workspace/inputs/sub/b"),
        ("inputs", "/workspace/inputs/"),
        ("inputs/b", "/workspace/inputs/b"),
        ("./work/b", "/workspace/work/b"),
        ("work", "/workspace/work/"),
        ("working/b", "/workspace/inputs/working/b"),
        ("out/b", "/workspace/out/b"),
        ("runs/b", "/workspace/runs/b"),
        ("skills/s/b", "/skills/s/b"),
        ("/workspace/b", "/workspace/b"),
        ("/workspace", "/workspace/"),
        ("/workspace/work", "/workspace/work/"),
        ("/skills/s/b", "/skills/s/b"),
    ],
)
def test_where_an_input_goes(dest: str, expected: str) -> None:
    assert arguments.destination(dest) == expected


@pytest.mark.parametrize("dest", ["../b", "work/../../b", "/etc/passwd", "/"])
def test_no_input_goes_outside(dest: str) -> None:
    with pytest.raises(BadPathError):
        arguments.destination(dest)


def test_variables() -> None:
    assert arguments.environment(["A=1", "B=x=y", "C=", "A=2"]) == {"A": "2", "B": "x=y", "C": ""}
    for bad in ("A", "=x", ""):
        with pytest.raises(BadRequestError, match="is not NAME=VALUE"):
            arguments.environment([bad])


def test_limits_go_over_those_of_the_settings() -> None:
    base = Limits(pids=50)
    assert arguments.limits(base, {}) is base
    assert arguments.limits(base, {"memory": "512m"}) == Limits(pids=50, memory=512 << 20)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": "1x"}, "--memory 1x: cannot read '1x' as a size; write bytes or 64k, 256m, 1g"),
        ({"memory": "1m"}, "--memory 1m: it must be at least 64.0 MiB"),
        ({"cpus": 0.0}, "--cpus 0.0: it must be greater than or equal to 0.01"),
        ({"cpus": float("nan")}, "--cpus nan: it must be less than or equal to 1024"),
        ({"pids": -1}, "--pids -1: it must be greater than or equal to 8"),
        ({"disk": ""}, "--disk : cannot read '' as a size; write bytes or 64k, 256m, 1g"),
    ],
)
def test_a_bad_limit_names_its_option(given: dict[str, object], message: str) -> None:
    with pytest.raises(BadLimitError) as caught:
        arguments.limits(Limits(), given)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (ExecResult(status="ok", exit_code=0), 0),
        (ExecResult(status="error", exit_code=2), 2),
        (ExecResult(status="error", exit_code=139, signal=11), 139),
        (ExecResult(status="timeout", exit_code=124), 124),
        (ExecResult(status="oom", exit_code=137), 137),
        (ExecResult(status="lost"), 125),
        (ExecResult(status="cancelled"), 130),
    ],
)
def test_exit_statuses(result: ExecResult, status: int) -> None:
    assert arguments.exit_status(result) == status


def test_sizes_for_people() -> None:
    assert [console.size(n) for n in (0, 1023, 1024, 1536, 5 << 20, 3 << 40, 5000 << 40)] == [
        *("0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 TiB", "5000.0 TiB")
    ]


# --- a script's output on a terminal -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain\ttext\r\nx\ry\n", b"plain\ttext\r\nx\ry\n"),
        (b"\x1b[1;38:2:1:2:3mred\x1b[0m", b"\x1b[1;38:2:1:2:3mred\x1b[0m\x1b[0m"),
        (b"\x1b[m", b"\x1b[m\x1b[0m"),
        (b"\x1b]52;c;eA==\x07", b"\\x1b]52;c;eA==\\x07"),
        (b"\x1b]8;;http://x\x1b\\link", b"\\x1b]8;;http://x\\x1b\\link"),
        (b"\x1bPq#0\x1b\\", b"\\x1bPq#0\\x1b\\"),
        (b"\x1b[2J\x1b[H\x1b[?1049h\x1b[6n", b"\\x1b[2J\\x1b[H\\x1b[?1049h\\x1b[6n"),
        (b"\x1b[>4;1m", b"\\x1b[>4;1m"),
        (b"\x1bc\x1b(0", b"\\x1bc\\x1b(0"),
        (b"\x07\x08\x0b\x0e\x00\x7f", b"\\x07\\x08\\x0b\\x0e\\x00\\x7f"),
        (b"\xc2\x9b2J\xc2\x9d52;", b"\\x9b2J\\x9d52;"),
        (b"\xff\xfe", "\ufffd\ufffd".encode()),
        ("gr\u00fc\u00dfe \u202etxt.exe".encode(), "gr\u00fc\u00dfe \\u202etxt.exe".encode()),
        (b"\x1b", b"\\x1b"),
        (b"\x1b[31", b"\\x1b[31"),
        (b"\x1b[" + b"1;" * 50 + b"m", b"\\x1b[" + b"1;" * 50 + b"m"),
    ],
)
def test_only_colours_get_through_to_a_terminal_however_the_bytes_are_cut(data: bytes, shown: bytes) -> None:
    whole = TerminalFilter()
    assert whole.feed(data, end=True) == shown
    single = TerminalFilter()
    pieces = [single.feed(data[n : n + 1]) for n in range(len(data))]
    assert b"".join(pieces) + single.feed(b"", end=True) == shown


SCREEN = {
    "cursor, erasing, colours": (b"\x1b[2J\x1b[3;4Ha\x1b[K\x1b[1;31mb\x1b[0m", b""),
    "keys that a shell writes": (b"a\x08\x07\r\n\tb", b""),
    "modes, and what puts them back": (
        b"\x1b[?2004h\x1b[?25l\x1b[?1049h",
        b"\x1b[?2004l\x1b[?25h\x1b[?1049l",
    ),
    "modes that were put back": (b"\x1b[?25l\x1b[?25h", b""),
    "letters of boxes": (b"\x1b(0qqq", b"\x1b(B"),
    "a region": (b"\x1b[2;5r", b"\x1b7\x1b[r\x1b8"),
}


@pytest.mark.parametrize("what", SCREEN)
def test_a_screen_is_drawn_and_put_back(what: str) -> None:
    data, restored = SCREEN[what]
    found = ScreenFilter()
    coloured = b"\x1b[0m" if b"m" in data else b""
    assert found.feed(data) + found.feed(b"", end=True) == data + restored + coloured
    cut = ScreenFilter()
    pieces = [cut.feed(data[at : at + 1]) for at in range(len(data))]
    assert b"".join(pieces) == data


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"a\x1b]0;title\x07b", b"ab"),
        (b"a\x1b]52;c;eA==\x1b\\b", b"ab"),
        (b"a\x1bP$qm\x1b\\b", b"ab"),
        (b"a\x1b]0;no end\nb", b"a\nb"),
        (b"a\x1b[21tb\x1b[>c\x1b[5ic", b"abc"),
        (b"\x1b[?1;1337;25h", b"\x1b[?1;25h"),
        (b"\x1b[?1337h\x1b[2h", b""),
        (b"\x0e\xc2\x9b2J\xe2\x80\xae", b"\\x0e\\x9b2J\\u202e"),
        (b"\x1b[" + b"1;" * 5000 + b"mx", None),
    ],
)
def test_what_could_do_more_than_draw_is_taken_out_however_it_is_cut(
    data: bytes, shown: bytes | None
) -> None:
    for size in (1, 3, len(data)):
        found = ScreenFilter()
        got = b"".join(found.feed(data[at : at + size]) for at in range(0, len(data), size))
        assert got == shown or (shown is None and b"\x1b" not in got)


def test_text_is_not_held_back_on_a_terminal() -> None:
    made = TerminalFilter()
    assert made.feed("ä".encode() + b"\xc3") == "ä".encode()
    assert made.feed(b"\xa4\x1b[3") == "ä".encode()
    assert made.feed(b"1mx") == b"\x1b[31mx"


# --- without any runtime -----------------------------------------------------------------------------------


def test_an_unknown_skill_is_125_with_a_close_match() -> None:
    assert invoke("run", "sales-repor", "--", "true") == (
        125,
        "",
        f"executor: error: there is no skill 'sales-repor' in {REPOSITORY}/skills\n"
        "executor: hint: did you mean 'sales-report'?\n",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "lots"], "--memory lots: cannot read 'lots' as a size"),
        (["--env", "NOVALUE"], "--env 'NOVALUE' is not NAME=VALUE"),
        (["--input", "/nonexistent/x"], "--input '/nonexistent/x': there is no file or folder"),
        (["--input", "README.md:../x"], "'inputs/../x' has a '..'"),
        (["--output", "../x"], "the output glob '../x' holds `..`"),
        (["--output", "/etc/*"], "the output glob '/etc/*'"),
        (["--cwd", "/etc"], "'/etc' is not below /workspace or /skills"),
        (["--stdin", "/nonexistent/x"], "--stdin '/nonexistent/x' cannot be read: No such file"),
        (["--save", "README.md"], f"--save 'README.md': {REPOSITORY}/README.md is not a folder"),
        (["--save", "README.md/x"], f"--save 'README.md/x': {REPOSITORY}/README.md is not a folder"),
        (["--html", "docs"], "--html 'docs' is a folder"),
        (["--html", "README.md/x"], f"--html 'README.md/x': {REPOSITORY}/README.md is not a folder"),
        (["--stdin", "/"], "--stdin '/' cannot be read: Is a directory"),
        ([], "no runtime works here."),
        (["--runtime", "local"], "bubblewrap is not installed"),
        (["--runtime", "container"], "no Docker engine answers at unix:///nonexistent/docker.sock"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(options: list[str], message: str) -> None:
    status, out, err = invoke("run", "sales-report", *options, "--json", "--", "true")
    error = json.loads(out)["error"]
    assert status == 125
    assert error["message"].startswith(message)
    assert err.startswith(f"executor: error: {message}")


def test_a_table_is_written_whatever_columns_are_said() -> None:
    for columns in ("0", "1", "20", "many"):
        status, out, err = invoke("skills", "list", "--skills", "skills", COLUMNS=columns)
        assert (status, err) == (0, "")
        assert "log-digest" in out


def test_a_variable_that_is_nearly_a_setting_is_said() -> None:
    words = ("skills", "list", "--skills", "skills")
    status, _, err = invoke(*words, EXECUTOR_TIMEOT="5")
    assert status == 0
    assert err == "executor: warning: there is no setting 'EXECUTOR_TIMEOT'; is EXECUTOR_TIMEOUT meant?\n"


def test_a_broken_settings_file_is_said() -> None:
    status, out, err = invoke("skills", "list", EXECUTOR_CONFIG="/nonexistent.yaml")
    assert (status, out) == (125, "")
    assert err.startswith("executor: error: EXECUTOR_CONFIG=/nonexistent.yaml cannot be read: ")


def test_the_doctor_without_a_runtime_fails_and_says_what_to_do() -> None:
    status, out, err = invoke("doctor", "--json")
    report = json.loads(out)
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert (status, err, report["works"], report["auto"]) == (1, "", False, "")
    assert states["python"] == "ok"
    assert (states["bubblewrap"], states["user namespaces"], states["engine"]) == ("fail", "fail", "fail")
    assert [(trial["runtime"], trial["works"]) for trial in report["trials"]] == [
        ("container", False),
        ("local", False),
    ]
    assert all(check["hint"] for check in report["checks"] if check["state"] == "fail")
    status, out, err = invoke("doctor", SKILLS_ROOT="/no/such")
    assert (status, err) == (1, "")
    assert "warn   there is nothing at '/no/such', where skills are to come from" in out
    assert "\nnext steps:\n" in out and "\nno runtime works: no runtime works here." in out


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("1.1.5+ds1", "warn"),
        ("1.2.7", "warn"),
        ("1.2.8", "ok"),
        ("1.2.10-0ubuntu1", "ok"),
        ("1.3.2", "warn"),
        ("1.3.3", "ok"),
        ("1.4.0", "ok"),
        ("2.0.0", "ok"),
        ("", "warn"),
    ],
)
def test_which_runc_is_warned_about(version: str, state: str) -> None:
    check = runc_check(version)
    assert check.state == state
    assert bool(check.hint) == (state == "warn")


# --- skills ------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two skills, one of them hostile, and one that cannot be used."""
    good = tmp_path / "good"
    (good / "scripts").mkdir(parents=True)
    (good / "SKILL.md").write_text(
        "---\nname: Good One\ndescription: Does good.\nlicense: MIT\nallowed-tools: Read, Bash\n"
        "metadata: {version: '1.0', author: {name: A}}\nodd: [x, y]\n---\n# Good\n\nText \x1b[31m.\n"
    )
    (good / "scripts" / "run.py").write_text("print()\n")
    (good / "scripts" / "tool").write_text("#!/bin/sh\n")
    (good / "data.csv").write_text("x" * 2048)
    (good / "link").symlink_to("data.csv")
    evil = tmp_path / "evil"
    evil.mkdir()
    long = "long " * 60
    (evil / "SKILL.md").write_text(f'---\ndescription: "\\e]0;owned\\a\\n[red]{long}"\n---\n')
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").write_bytes(b"\x89PNG\r\n")
    return tmp_path


def test_skills_are_listed_with_what_cannot_be_used(root: Path) -> None:
    status, out, err = invoke("skills", "list", "--skills", str(root))
    lines = out.splitlines()
    assert (status, err, len(lines)) == (0, "", 6)
    assert lines[0].split() == ["NAME", "DESCRIPTION", "PATH"]
    assert lines[1].startswith("evil") and lines[1].endswith(f"{root}/evil")
    assert "…" in lines[1] and "[red]" in lines[1] and "\x1b" not in out and "\x07" not in out
    assert lines[2].split("  ")[0] == "good (Good One)"
    assert lines[3:5] == ["", "1 problem:"]
    assert lines[5] == f"  {root}/bad: the SKILL.md of 'bad' is a PNG image, not text"


def test_skills_as_json(root: Path) -> None:
    status, out, err = invoke("skills", "list", "--skills", str(root), "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert found["skills"][1] == {
        "slug": "good",
        "name": "Good One",
        "path": f"{root}/good",
        "origin": f"{root}/good",
        "description": "Does good.",
    }
    assert found["problems"] == [
        {
            "path": f"{root}/bad",
            "origin": f"{root}/bad",
            "reason": "the SKILL.md of 'bad' is a PNG image, not text",
        }
    ]


def test_no_skills_is_no_error(tmp_path: Path) -> None:
    assert invoke("skills", "list", "--skills", str(tmp_path)) == (
        0,
        "",
        f"executor: no skills in {tmp_path}\n",
    )


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """As `invoke`, in this process: no other one is started."""
    for name in ("SKILLS_ROOT", "EXECUTOR_SKILLS", "EXECUTOR_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EXECUTOR_LAYERS_DIR", str(tmp_path / "layers"))

    def run(*words: str, **env: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            status = app.main(list(words))
        return status, *capsys.readouterr()

    return run


def test_a_root_that_does_not_exist_is_told(
    here: Callable[..., tuple[int, str, str]], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its option at once; in SKILLS_ROOT it is an error when none is there, else a warning."""
    told, listing = "there is nothing at {}, where skills are to come from", ("skills", "list")
    for words in ([*listing], ["deps", "list"], ["run", "good"], ["mcp"], ["skills", "show", "good"]):
        end = ["--", "true"] if "run" in words else []
        status, out, err = here(*words, "--skills", "/no/such", *end)
        assert (status, out) == (125, "") and told.format("'/no/such'") in err and "hint: Skills come" in err
    lint, run = ["skills", "lint"], ["run", "x", "--", "true"]
    for words in ([*listing], lint, [*lint, "x"], ["test"], ["test", "x"], ["mcp"], run):
        status, out, err = here(*words, SKILLS_ROOT="/no/such:/nor/this")
        assert (status, out) == (125, "") and told.format("'/no/such', '/nor/this'") in err
        assert "hint: Skills come" in err
    status, out, err = here(*listing, SKILLS_ROOT=f"/no/such:{root}")
    assert status == 0 and "good" in out and f"warning: {told.format(repr('/no/such'))}" in err
    monkeypatch.chdir(root / "good")
    status, out, err = here(*listing)  # the default need not be there
    assert (status, out) == (0, "") and "no skills in" in err and "warning: there is nothing at" in err
    assert here("skills", "show", str(root / "good"))[2] == ""  # a path needs no root


def test_lint_and_test_take_the_name_of_a_skill(
    here: Callable[..., tuple[int, str, str]], tmp_path: Path, root: Path
) -> None:
    status, _, err = here("skills", "lint", "good", "--skills", str(root))
    assert "1 skill: " in err and status in (0, 1)
    for words in (("skills", "lint", "goood"), ("test", "goood")):
        status, out, err = here(*words, "--skills", str(root))
        assert (status, out) == (125, "") and "there is no skill 'goood' in" in err and "'good'" in err
    packed = str(tmp_path / "packed.json")
    assert here("skills", "bundle", str(root), "-o", packed)[0] == 0
    for words in (("skills", "lint", "good", "--fix"), ("test", "good", "--update")):
        status, out, err = here(*words, "--skills", packed)
        assert status == 125 and f"{words[-1]} cannot change the skill 'good'" in err
        assert "executor skills export good --to DIR" in err


def test_a_skill_that_another_one_hides_is_no_problem(
    here: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for name in ("r1", "r2"):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "a" / "SKILL.md").write_text("---\nname: a\ndescription: d\n---\n")
    words = ("skills", "list", "--skills", f"{tmp_path}/r1", "--skills", f"{tmp_path}/r2")
    status, out, _ = here(*words)
    assert status == 0 and "\n1 hidden skill:\n" in out and "problem" not in out
    found = json.loads(here(*words, "--json")[1])
    assert [item["path"] for item in found["hidden"]] == [f"{tmp_path}/r2/a"] and found["problems"] == []


def test_what_all_skills_of_the_roots_need_is_listed(
    here: Callable[..., tuple[int, str, str]], root: Path
) -> None:
    (root / "good" / "requirements.txt").write_text("numpy\n")
    (root / "evil" / "executor.lock").write_text("{")
    for words, env in (
        (("--skills", str(root)), {}),
        (("--all",), {"SKILLS_ROOT": str(root)}),
        (("good", "evil"), {"SKILLS_ROOT": str(root)}),
    ):
        status, out, _ = here("deps", "list", *words, "--json", **env)
        states = {item["skill"]: item["state"] for item in json.loads(out)["skills"]}
        assert (status, states) == (0, {"good": "not locked", "evil": "lock cannot be used"})
    assert here("deps", "list", "--json", SKILLS_ROOT=str(root))[1] == '{"layers": []}\n'


def test_a_skill_is_shown_whole(root: Path) -> None:
    status, out, err = invoke("skills", "show", "Good One", "--skills", str(root))
    assert (status, err) == (0, "")
    size = (root / "good" / "SKILL.md").stat().st_size
    assert out == (
        f"name: Good One\nfolder: good\npath: {root}/good\ndescription: Does good.\nlicense: MIT\n"
        "allowed tools: Read, Bash\nmetadata.version: 1.0\nmetadata.author.name: A\nodd: x, y\n"
        "\nfiles (* marks scripts):\n"
        f"      {size} B  SKILL.md\n    2.0 KiB  data.csv\n        8 B  link -> data.csv\n"
        "  *     8 B  scripts/run.py\n  *    10 B  scripts/tool\n"
        "\n# Good\n\nText \\x1b[31m.\n"
    )


def test_a_skill_as_json(root: Path) -> None:
    status, out, _ = invoke("skills", "show", str(root / "good"), "--json")
    found = json.loads(out)
    assert status == 0
    assert found["body"] == "# Good\n\nText \x1b[31m.\n"
    assert found["allowed_tools"] == ["Read", "Bash"]
    assert found["metadata"] == {"version": "1.0", "author": {"name": "A"}}
    assert found["files"][3] == {"path": "scripts/run.py", "size": 8, "script": True, "link": ""}


def test_a_skill_that_cannot_be_shown_is_125(root: Path) -> None:
    status, out, err = invoke("skills", "show", "bad", "--skills", str(root), "--json")
    assert (status, json.loads(out)["error"]["type"]) == (125, "SkillUnreadableError")
    assert "is a PNG image, not text\nexecutor: hint: mend its SKILL.md; `executor skills list` " in err


def test_a_reader_of_a_list_may_go_away(root: Path) -> None:
    words = [*forked.COMMAND, "skills", "show", "good", "--skills", str(root)]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, timeout=60, env=NOWHERE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
