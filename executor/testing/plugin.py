"""A pytest plugin: case files of skills as tests, and fixtures for tests written in Python.

    pytest skills/                            every case of every skill, as `totals by region [local]`
    pytest skills/ --skill-runtime local,container

    @pytest.mark.skill_runtime("local", "container")
    def test_report(skill_session):           # a fresh session on each, with the skill that holds this file
        assert skill_session.exec("python3 scripts/report.py", skill="sales-report").exit_code == 3

`--skill-runtime` says on which runtimes tests run; a marker narrows it. A runtime that does not work is an
error, never a skip. Nothing here is imported but by pytest.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor.settings import load as load_settings
from executor.sync import Executor, Session
from executor.testing.cases import Instance
from executor.testing.cases import load as load_cases
from executor.testing.results import CaseResult
from executor.testing.runner import Plan, run
from executor.workspace.text import printable, printable_name

MARKER = "skill_runtime"
RUNTIMES = ("local", "container", "auto")
SKILL_FILE = "SKILL.md"


class CaseFailedError(Exception):
    """A case did not pass."""

    def __init__(self, result: CaseResult) -> None:
        super().__init__("; ".join(printable_name(reason) for reason in result.reasons))
        self.result = result


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--skill-runtime`."""
    parser.getgroup("skills").addoption(
        "--skill-runtime",
        metavar="NAME[,NAME]",
        default="",
        help="Run skill tests on each of these runtimes: local, container or auto (the default).",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker, and a check of the option."""
    config.addinivalue_line("markers", f"{MARKER}(name, ...): on which runtimes a skill test runs")
    for name in _asked(config):
        if name not in RUNTIMES:
            raise pytest.UsageError(f"--skill-runtime {name!r} is none of {', '.join(RUNTIMES)}")


def _asked(config: pytest.Config) -> list[str]:
    text: str = config.getoption("--skill-runtime")
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


# --- case files ---------------------------------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """`tests/*.yaml` of a folder with a SKILL.md."""
    if file_path.suffix not in (".yaml", ".yml") or file_path.parent.name != "tests":
        return None
    if not (file_path.parent.parent / SKILL_FILE).is_file():
        return None
    collector: pytest.Collector = CaseFileCollector.from_parent(parent, path=file_path)
    return collector


class CaseFileCollector(pytest.File):
    """The cases of one file."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test for each case and runtime."""
        skill = Path(os.path.realpath(self.path.parent.parent))
        for runtime in _asked(self.config) or ["auto"]:
            for instance in load_cases(self.path, skill):
                name = f"{instance.name} [{runtime}]"
                yield CaseItem.from_parent(
                    self, name=printable_name(name), instance=instance, runtime=runtime
                )


class CaseItem(pytest.Item):
    """One case on one runtime."""

    def __init__(self, *, instance: Instance, runtime: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.instance = instance
        self.runtime = runtime

    def runtest(self) -> None:
        """Run it in a session of its own."""
        plan = Plan([self.instance], load_settings(), runtimes=[self.runtime])
        (result,) = asyncio.run(run(plan)).results
        if result.verdict == "skipped":
            pytest.skip(printable_name(result.reason))
        if result.verdict != "passed":
            raise CaseFailedError(result)
        if result.flaky:
            self.warn(pytest.PytestWarning(f"flaky: passed at attempt {result.attempts}"))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The reasons, diffs and output, instead of a traceback of ours."""
        if not isinstance(excinfo.value, CaseFailedError):
            return super().repr_failure(excinfo, style)
        result = excinfo.value.result
        lines = [*result.reasons, f"{result.file}:{result.line}: {result.command}"]
        lines += [mismatch.diff for mismatch in result.mismatches if mismatch.diff]
        if result.result is not None:
            for name in ("stdout", "stderr"):
                if text := getattr(result.result, name):
                    lines += [f"{name}:", text]
        return printable("\n".join(lines))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the case stands."""
        return self.path, self.instance.line - 1, self.name


# --- fixtures -----------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that uses a session runs once for each runtime."""
    if "skill_runtime" not in metafunc.fixturenames:
        return
    asked = _asked(metafunc.config)
    marker = metafunc.definition.get_closest_marker(MARKER)
    wanted = list(marker.args) if marker else asked or ["auto"]
    for name in wanted:
        if name not in RUNTIMES:
            raise pytest.UsageError(f"the runtime {name!r} is none of {', '.join(RUNTIMES)}")
    if marker and asked:
        wanted = [name for name in wanted if name in asked]
    metafunc.parametrize("skill_runtime", wanted, indirect=True, scope="session")


@pytest.fixture(scope="session")
def skill_runtime(request: pytest.FixtureRequest) -> str:
    """Name of the runtime that the test is for."""
    return str(request.param)


@pytest.fixture(scope="session")
def executor(skill_runtime: str) -> Iterator[Executor]:
    """An open executor of the runtime, with the skills of the settings."""
    with Executor(runtime=skill_runtime) as opened:
        yield opened


@pytest.fixture
def skill_session(executor: Executor, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A fresh session. The skill whose folder holds the test's file is loaded."""
    with executor.session() as session:
        for folder in request.path.parents:
            if (folder / SKILL_FILE).is_file():
                session.load(folder)
                break
        yield session
