"""The command policy: what it lets through, and that it fails closed.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

import pytest

from executor.errors import BadRequestError
from executor.tools.policy import CommandPolicy, programs
from executor.tools.results import RefusedError


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("echo hi", ["echo"]),
        ("  echo 'a; b | c' \"d && e\" ;", ["echo"]),
        ("a x|b y&&c||d;e", ["a", "b", "c", "d", "e"]),
        ("'ec'ho hi", ["echo"]),
        ("python3 scripts/x.py --in inputs/a=b.csv", ["python3"]),
        ("echo '$(id) * > x'", ["echo"]),
    ],
)
def test_plain_lines_are_read(line: str, expected: list[str]) -> None:
    """trpc row 1.11 policy; trpc-1.11.11"""
    assert programs(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "   ",
        ";",
        "| cat",
        "echo |",
        "echo &&",
        "echo a;;echo b",
        "echo a | | echo b",
        "echo $(id)",
        "echo `id`",
        'echo "$HOME"',
        'echo "`id`"',
        "echo > f",
        "echo < f",
        "echo a & curl x",
        "echo a |& cat",
        "(echo a)",
        "{ echo a; }",
        "echo {a,b}",
        "echo *",
        "echo a?",
        "echo [a]",
        "! echo",
        "echo a # b",
        "echo a\ncurl x",
        "echo a\rcurl x",
        "echo \\a",
        "echo ~",
        "X=1 echo",
        "X+=1 echo",
        "if true; then curl x; fi",
        "while true; do echo; done",
        "coproc curl x",
        "time curl x",
        "echo 'open",
        "'' echo",
        "echo a\0b",
        "e" * (17 << 10),
        "; ".join(["echo"] * 33),
    ],
)
def test_everything_else_is_refused(line: str) -> None:
    """trpc-61, trpc-1.11.11"""
    with pytest.raises(RefusedError, match="not let through"):
        programs(line)


@pytest.mark.parametrize(
    "line",
    [
        "echo hi | cat",
        "/bin/echo hi",
        "./echo hi",
        "/bin/../echo hi",
        "ECHO hi",
        "echo hi; curl x",
        "sh -c echo",
    ],
)
def test_an_allow_list_is_exact(line: str) -> None:
    """trpc-61, trpc-w42"""
    policy = CommandPolicy(allow=["echo"])
    policy.check("echo hi; echo ho")
    with pytest.raises(RefusedError):
        policy.check(line)


@pytest.mark.parametrize(
    "line", ["curl x", "CURL x", "/usr/bin/curl x", "'cu'rl x", "echo | curl x", "../curl"]
)
def test_a_deny_list_goes_by_the_last_part_in_any_case(line: str) -> None:
    """trpc-61"""
    with pytest.raises(RefusedError, match="is denied here"):
        CommandPolicy(deny=["curl"]).check(line)


def test_deny_wins_over_allow() -> None:
    """trpc row 1.11 policy"""
    with pytest.raises(RefusedError, match="'curl' is denied here"):
        CommandPolicy(allow=["curl"], deny=["/usr/bin/Curl"]).check("curl x")


@pytest.mark.parametrize(
    "program",
    [
        *("sh", "/bin/bash", "BASH", "eval", ".", "xargs", "env", "watch", "nsenter", "prlimit", "ld.so"),
        *("/lib64/ld-linux-x86-64.so.2", "cd", "busybox", "parallel", "setarch", "systemd-run", "chrt"),
    ],
)
def test_what_runs_other_programs_is_always_denied(program: str) -> None:
    """trpc-61, trpc-w41; trpc-1.11.11"""
    for policy in (CommandPolicy(), CommandPolicy(allow=[program])):
        with pytest.raises(RefusedError, match="always denied"):
            policy.check(f"{program} -c x")


def test_an_empty_allow_list_allows_nothing() -> None:
    with pytest.raises(RefusedError, match=r"allowed: none"):
        CommandPolicy(allow=()).check("echo")
    CommandPolicy().check("anything at all")


def test_variables_that_change_what_a_line_means_do_not_pass() -> None:
    """trpc-62, trpc-1.11.2, trpc-1.11.12"""
    given = {
        "OK": "1",
        "PATH": "/tmp",
        "BASH_ENV": "x",
        "LD_PRELOAD": "x",
        "DYLD_INSERT": "x",
        "BASH_FUNC_x%%": "() { :; }",
        "X; curl": "x",
        "IFS": "x",
    }
    assert CommandPolicy().environment(given) == {"OK": "1"}


def test_a_text_is_no_list() -> None:
    with pytest.raises(BadRequestError, match="'curl' is a text"):
        CommandPolicy(deny="curl")
