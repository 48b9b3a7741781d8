"""The pytest plugin in a pytest of its own, on every runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from executor import Executor

pytest_plugins = "pytester"

SKILL = "---\nname: probe\ndescription: d\n---\nx\n"
CASES = """\
cases:
  - {name: right, run: echo 1, expect: {stdout: '1'}}
  - {name: wrong, run: "printf 'a\\\\n\\\\033[2Jb\\\\n'; exit 2"}
  - {name: left out, run: 'true', skip: not yet}
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(executor: Executor, runtime: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """pytest with the plugin, in a folder with one skill, for the runtime (which `executor` has checked)."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    skill = pytester.mkdir("probe")
    (skill / "SKILL.md").write_text(SKILL)
    (skill / "tests").mkdir()

    def invoke(*words: str, name: str, text: str) -> pytest.RunResult:
        (Path(skill) / "tests" / name).write_text(text)
        options = [] if "--skill-runtime" in words else ["--skill-runtime", runtime]
        return pytester.runpytest_subprocess(
            "-p", "executor.testing.plugin", "--strict-markers", *options, *words, timeout=120
        )

    return invoke


def test_cases_are_collected_and_a_failure_shows_its_reasons(run: Run, runtime: str) -> None:
    result = run("-rA", name="cases.yaml", text=CASES)
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "exit: expected 0, got 2",
            "probe/tests/cases.yaml:3: printf*",
            "stdout:",
            "a",
            "\\x1b[[]2Jb",
            f"PASSED probe/tests/cases.yaml::right [[]{runtime}]",
            "SKIPPED*not yet",
            f"FAILED probe/tests/cases.yaml::wrong [[]{runtime}] - exit: expected 0, got 2",
        ]
    )


def test_a_broken_case_file_is_an_error(run: Run) -> None:
    result = run(name="cases.yaml", text="cases:\n  - {name: a}\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*cases.yaml:2: give one of `run`, `argv` and `script`*"])


def test_yaml_that_belongs_to_no_skill_is_left_alone(run: Run, pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("tests")
    (folder / "data.yaml").write_text("cases: 1\n")
    run(name="cases.yaml", text="cases:\n  - {name: a, run: 'true'}\n").assert_outcomes(passed=1)


PYTHON = """\
import pytest

def test_the_skill_of_this_file_is_loaded(skill_session, executor):
    assert skill_session.exec("cat SKILL.md", skill="probe").stdout.startswith("---")
    assert skill_session.runtime == executor.choose_runtime() == "RUNTIME"

@pytest.mark.skill_runtime("RUNTIME")
def test_here(skill_session):
    skill_session.exec("touch work/mark")

@pytest.mark.skill_runtime("RUNTIME")
def test_sessions_are_fresh(skill_session):
    assert skill_session.exec("test -e work/mark").exit_code == 1

@pytest.mark.skill_runtime("OTHER")
def test_elsewhere(skill_session):
    assert False
"""


def test_fixtures_and_the_marker(run: Run, runtime: str) -> None:
    other = {"local": "container", "container": "local"}[runtime]
    text = PYTHON.replace("RUNTIME", runtime).replace("OTHER", other)
    run(name="test_probe.py", text=text).assert_outcomes(passed=3, skipped=1)


def test_an_unknown_runtime_is_wrong_usage(run: Run) -> None:
    result = run("--skill-runtime", "nonsense", name="cases.yaml", text=CASES)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--skill-runtime 'nonsense' is none of local, container, auto*"])
