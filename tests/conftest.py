"""Fixtures: every behaviour test runs on every runtime.

`runtime` goes over the runtimes; one that does not work here skips its tests with the reason, unless it is
named in EXECUTOR_REQUIRE_RUNTIMES (as in CI): then that is a failure. `executor` is one open executor for
each runtime, `session` a fresh session, `shared` one that the tests of a module have in common.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor import Executor, RuntimeUnavailableError, Session

RUNTIMES = ("local", "container")
REQUIRED = set(filter(None, os.environ.get("EXECUTOR_REQUIRE_RUNTIMES", "").split(",")))
REPOSITORY = Path(__file__).parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Sessions and fetched skills of the tests are kept apart from those of who runs them."""
    folder = Path(tempfile.mkdtemp(prefix="executor-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["EXECUTOR_STATE_DIR"] = str(folder / "state")
    os.environ["SKILLS_CACHE_DIR"] = str(folder / "cache")


@pytest.fixture(scope="session", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    """Name of the runtime under test."""
    return str(request.param)


@pytest.fixture(scope="session")
def skills_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with this project's own skills, to which tests may add folders."""
    root = tmp_path_factory.mktemp("skills")
    shutil.copytree(REPOSITORY / "skills", root, dirs_exist_ok=True, symlinks=True)
    return root


@pytest.fixture(scope="session")
def executor(runtime: str, skills_root: Path) -> Iterator[Executor]:
    """An open executor of the runtime under test."""
    made = Executor(skills=[skills_root], runtime=runtime)
    try:
        made.choose_runtime()
    except RuntimeUnavailableError as error:
        made.close()
        if runtime in REQUIRED:
            pytest.fail(f"runtime {runtime} is required here: {error}")
        pytest.skip(f"runtime {runtime}: {error.message}")
    with made:
        yield made


@pytest.fixture
def session(executor: Executor) -> Iterator[Session]:
    """A fresh session."""
    with executor.session() as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(executor: Executor) -> Iterator[Session]:
    """One session for the tests of a module that leave it as they found it."""
    with executor.session() as opened:
        yield opened
