"""Where things are: the table of ways to name a folder, and the layers of a run's environment."""

from __future__ import annotations

import os

import pytest

from executor.errors import BadPathError, BadRequestError
from executor.workspace.layout import (
    ENVIRONMENT,
    absolute,
    environment,
    folders,
    is_own_link,
    shown,
    working_folder,
)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "/workspace"),
        (".", "/workspace"),
        ("a", "/workspace/a"),
        ("./a//b/./c/", "/workspace/a/b/c"),
        ("out/my file.csv", "/workspace/out/my file.csv"),
        ("out/ü\n1.txt", "/workspace/out/ü\n1.txt"),
        ("skills", "/skills"),
        ("skills/s/x", "/skills/s/x"),
        ("./skills/s", "/skills/s"),
        ("skillset/x", "/workspace/skillset/x"),
        ("/workspace", "/workspace"),
        ("/workspace/", "/workspace"),
        ("//workspace///a", "/workspace/a"),
        ("/workspace/out/a", "/workspace/out/a"),
        ("/skills", "/skills"),
        ("/skills/s", "/skills/s"),
        ("/workspace/skills/s", "/skills/s"),
        ("/workspace/work/skills/s", "/workspace/work/skills/s"),
        ("workspace/a", "/workspace/workspace/a"),
        ("$WORKSPACE_DIR", "/workspace"),
        ("$OUTPUT_DIR/a.txt", "/workspace/out/a.txt"),
        ("${OUTPUT_DIR}/a.txt", "/workspace/out/a.txt"),
        ("$WORK_DIR/", "/workspace/work"),
        ("$INPUTS_DIR/x", "/workspace/inputs/x"),
        ("${SKILLS_DIR}/s", "/skills/s"),
        ("$OUTPUT_DIRECTORY/a", "/workspace/$OUTPUT_DIRECTORY/a"),
        ("$OUTPUT_DIR.bak", "/workspace/$OUTPUT_DIR.bak"),
        ("${OUTPUT_DIR}x", "/workspace/${OUTPUT_DIR}x"),
        ("$HOME/a", "/workspace/$HOME/a"),
        ("a/$OUTPUT_DIR", "/workspace/a/$OUTPUT_DIR"),
        ("...", "/workspace/..."),
        ("..a/b..", "/workspace/..a/b.."),
        ("a\\..\\b", "/workspace/a\\..\\b"),
        ("~/x", "/workspace/~/x"),
        ("-rf", "/workspace/-rf"),
        ("a';touch /tmp/p;'", "/workspace/a';touch /tmp/p;'"),
        ("n" * 255, "/workspace/" + "n" * 255),
    ],
)
def test_paths_of_a_caller(text: str, path: str) -> None:
    assert absolute(text) == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("..", "'..' has a '..': write the path without it"),
        ("../x", "'../x' has a '..'"),
        ("a/../b", "'a/../b' has a '..'"),
        ("/workspace/../etc", "has a '..'"),
        ("$OUTPUT_DIR/../../etc", "'/workspace/out/../../etc' has a '..'"),
        ("/", "'/' is not below /workspace or /skills"),
        ("/etc/passwd", "'/etc/passwd' is not below /workspace or /skills"),
        ("/workspaces", "'/workspaces' is not below"),
        ("/tmp/x", "is not below"),
        ("//etc", "is not below"),
        ("a\0b", "'a\\x00b' holds a NUL byte"),
        ("n" * 256, "is too long"),
        ("é" * 128, "is too long"),
        ("d/" * 100, "is too long"),
        ("\ud800", "cannot be a path: it has no bytes"),
    ],
)
def test_paths_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadPathError) as caught:
        absolute(text)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("cwd", "skill", "path"),
    [
        (None, None, "/workspace"),
        ("", None, "/workspace"),
        (".", None, "/workspace"),
        (None, "s", "/skills/s"),
        ("", "s", "/skills/s"),
        (".", "s", "/skills/s"),
        ("work/x", None, "/workspace/work/x"),
        ("/work/x", None, "/workspace/work/x"),
        ("/out", "s", "/workspace/out"),
        ("/inputs/a", None, "/workspace/inputs/a"),
        ("/runs", None, "/workspace/runs"),
        ("work\\sub", None, "/workspace/work/sub"),
        ("$WORK_DIR/a", None, "/workspace/work/a"),
        ("${WORK_DIR}/a", "s", "/workspace/work/a"),
        ("$SKILL_DIR/scripts", "s", "/skills/s/scripts"),
        ("$SKILL_DIR", None, "/workspace/$SKILL_DIR"),
        ("scripts", "s", "/skills/s/scripts"),
        ("scripts", None, "/workspace/scripts"),
        ("tmp/demo", None, "/workspace/tmp/demo"),
        ("work", "s", "/workspace/work"),
        ("out/x", "s", "/workspace/out/x"),
        ("skills/t", "s", "/skills/t"),
        ("/skills/t", "s", "/skills/t"),
        ("/workspace", "s", "/workspace"),
        ("/workspace/skills/s", None, "/skills/s"),
        ("./work", "s", "/skills/s/work"),
    ],
)
def test_where_a_run_starts(cwd: str | None, skill: str | None, path: str) -> None:
    assert working_folder(cwd, skill) == path


@pytest.mark.parametrize(
    ("cwd", "message"),
    [
        ("../etc", "'../etc' has a '..'"),
        ("..\\etc", "'../etc' has a '..'"),
        ("work/../..", "has a '..'"),
        ("/etc", "'/etc' is not below /workspace or /skills"),
        ("/tmp", "is not below"),
        ("out/*.zip", "cwd 'out/*.zip' has a wildcard: name one folder"),
        ("wor?", "has a wildcard"),
        ("[ab]", "has a wildcard"),
        ("work\0", "holds a NUL byte"),
    ],
)
def test_where_no_run_starts(cwd: str, message: str) -> None:
    for skill in (None, "s"):
        with pytest.raises(BadPathError) as caught:
            working_folder(cwd, skill)
        assert message in caught.value.message


def test_folders() -> None:
    dirs = {
        "WORKSPACE_DIR": "/workspace",
        "INPUTS_DIR": "/workspace/inputs",
        "WORK_DIR": "/workspace/work",
        "OUTPUT_DIR": "/workspace/out",
        "SKILLS_DIR": "/skills",
    }
    assert folders() == dirs
    assert folders(run_id="r", skill="s") == {
        **dirs,
        "RUN_DIR": "/workspace/runs/r",
        "SKILL_DIR": "/skills/s",
        "SKILL_NAME": "s",
    }


def test_the_environment_is_built_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    found = environment(run_id="r")
    usual = b"/run/executor/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert found == {
        **{name.encode(): value.encode() for name, value in ENVIRONMENT.items()},
        **{name.encode(): value.encode() for name, value in folders(run_id="r").items()},
        b"PATH": usual,
        b"EXECUTOR_RUN_ID": b"r",
    }
    assert found[b"LANG"] == b"C.UTF-8"
    assert found[b"HOME"] == b"/tmp/home"
    assert found[b"PIP_RETRIES"] == b"0"
    assert b"SKILL_NAME" not in found


def test_a_later_layer_wins() -> None:
    operator = {"A": "operator", "B": "operator", "LANG": "de", "PATH": "/operator"}
    skill = {"B": "skill", "C": "skill"}
    caller = {"C": "caller", "OUTPUT_DIR": "x", "EXECUTOR_RUN_ID": "forged", "E": ""}
    found = environment(operator, skill, caller, run_id="r", skill="s", path="/image/bin", tty=True)
    assert found[b"A"] == b"operator"
    assert found[b"B"] == b"skill"
    assert found[b"C"] == b"caller"
    assert found[b"E"] == b""
    assert found[b"LANG"] == b"de"
    assert found[b"PATH"] == b"/operator"
    assert found[b"OUTPUT_DIR"] == b"x"
    assert found[b"SKILL_NAME"] == b"s"
    assert found[b"TERM"] == b"xterm-256color"
    assert found[b"EXECUTOR_RUN_ID"] == b"r"  # how orphans are told apart: not the caller's to choose


def test_the_path_of_an_image() -> None:
    assert environment(run_id="r", path="/opt/bin:/bin")[b"PATH"] == b"/run/executor/bin:/opt/bin:/bin"
    assert environment(run_id="r")[b"TERM"] == b"dumb"


def test_bytes_that_are_not_text_pass_through() -> None:
    assert environment({"A": os.fsdecode(b"\xff\n"), "é": "好"}, run_id="r")[b"A"] == b"\xff\n"
    assert environment({"é": "好"}, run_id="r")["é".encode()] == "好".encode()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"": "x"}, "'' cannot be a variable"),
        ({"A=B": "x"}, "'A=B' cannot be a variable"),
        ({"A\0": "x"}, "'A\\x00' cannot be a variable"),
        ({"A": "x\0y"}, "'A' cannot be a variable"),
        ({"A": "\ud800"}, "'A' cannot be a variable: it has a lone surrogate"),
        ({"A": 1}, "the variable 'A' is 1: both parts have to be text"),
        ({"A": None}, "the variable 'A' is None: both parts have to be text"),
        ({1: "x"}, "the variable 1 is 'x': both parts have to be text"),
    ],
)
def test_bad_variables(variables: dict[str, str], message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        environment({"OK": "1"}, variables, run_id="r")
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"/workspace/out/a", "out/a"),
        (b"/skills/s/a", "skills/s/a"),
        (b"/workspace/workspace/a", "workspace/a"),
        (b"/workspace/\xff", "\udcff"),
    ],
)
def test_shown(path: bytes, text: str) -> None:
    assert shown(path) == text


@pytest.mark.parametrize(
    ("path", "own"),
    [
        (b"/workspace/skills", True),
        (b"/workspace/work/inputs", True),
        (b"/skills/s/out", True),
        (b"/skills/s/work", True),
        (b"/skills/s/inputs", True),
        (b"/skills/s/other", False),
        (b"/skills/s/sub/out", False),
        (b"/workspace/out", False),
        (b"/workspace/out/inputs", False),
        (b"/skills/out", False),
    ],
)
def test_own_links(path: bytes, own: bool) -> None:
    assert is_own_link(path) is own
