"""The local runtime in the hands of an ordinary user: no privileges, no cgroups, no uid to spare.

When root runs the tests, the conformance and hostile ones are run once more under `setpriv`, from a copy that
the user can read. By default it is what privileges have a bearing on; with EXECUTOR_SOAK=1, everything.
An ordinary user's own run of the tests is this pass, so there the test has nothing to do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.places import data_dir

REPOSITORY = Path(__file__).parents[2]
REQUIRED = "local" in os.environ.get("EXECUTOR_REQUIRE_RUNTIMES", "").split(",")
SOAK = bool(os.environ.get("EXECUTOR_SOAK"))
USER = 1000
COPIED = ("executor", "tests", "skills", "images", "pyproject.toml")
# Tests of the installed commands, which the user has not.
LEFT_OUT = ("test_bridge_mcp.py", "test_executor_test.py", "test_mcp.py", "test_pytest_plugin.py")
ALL = ["tests/conformance", "tests/hostile/test_battery.py"]
SOME = [
    "tests/conformance/test_smoke.py",
    "tests/conformance/test_isolation.py",
    "tests/hostile/test_battery.py",
]
SOME_OF_THE_BATTERY = """
    test_smoke or test_isolation or ordinary or on_the_host or outlives or d01 or d03 or k01 or k03 or k04
    or k05 or o05 or n01 or r01 or r03 or r05 or t04 or u01
"""
# What differs for an ordinary user.
DIFFERS = {
    # These compare everything that is said, warnings included.
    "tests/conformance/test_cli.py::test_on_a_terminal_a_note_begins_on_a_line_of_its_own[local]",
    "tests/conformance/test_runs.py::test_the_result_says_whose_it_is_and_what_it_used[local]",
    # Without a cgroup memory is limited by RLIMIT_DATA, of which Node 24 reserves 512 MiB for each thread.
    "tests/hostile/test_battery.py::test_payload[local-s01_node.js]",
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can read, with the project in it and a home for the user."""
    with tempfile.TemporaryDirectory(prefix="executor-ordinary-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in COPIED:
            source = REPOSITORY / part
            if source.is_dir():
                shutil.copytree(
                    source, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*")
                )
            else:
                shutil.copy(source, folder / part)
        (folder / "home").mkdir()
        # The user's own, also to write: some tests put folders beside their skills.
        subprocess.run(["chown", "-R", f"{USER}:{USER}", name], check=True)
        yield folder
        subprocess.run(["chmod", "-R", "u+rwX", name], check=False)


def as_user(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the user, with nothing of this process's environment."""
    drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all"]
    return subprocess.run(
        [*drop, "--", *map(str, command)],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **env},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def packages(folder: Path) -> Path:
    """Where the packages lie that these tests run with; a copy where the user could not read them."""
    found = Path(pytest.__file__).parents[1]
    if as_user("test", "-r", found / "pytest" / "__init__.py", cwd=folder).returncode == 0:
        return found
    copy = folder / "packages"
    shutil.copytree(found, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def interpreter(folder: Path, path: str) -> str:
    """A Python that the user may start and that takes these packages: this one, or the system's own."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = f"""if True:
        import subprocess, sys, pydantic_core, docker, pytest
        assert sys.version.startswith({version!r})
        # setpriv looks up the path while it still may do everything: it has to be found again.
        subprocess.run([sys.executable, "-c", ""], check=True)
    """
    tried = [sys.executable, os.path.realpath(sys.executable)]
    tried += [f"/usr/bin/python{version}", f"/usr/local/bin/python{version}", "/usr/bin/python3"]
    for candidate in tried:
        if as_user(candidate, "-c", wanted, cwd=folder, PYTHONPATH=path).returncode == 0:
            return candidate
    if REQUIRED:
        pytest.fail(f"no Python {version} that an ordinary user could start; tried {tried}")
    pytest.skip(f"an ordinary user can start no Python {version} here (a private one in a closed home?)")


@pytest.mark.timeout(1200 if SOAK else 300)
@pytest.mark.skipif(os.geteuid() != 0, reason="this whole run is an ordinary user's")
def test_an_ordinary_user_gets_the_same_but_for_what_is_said(place: Path) -> None:
    if shutil.which("setpriv") is None or shutil.which("bwrap") is None:
        assert not REQUIRED, "setpriv and bwrap are needed"
        pytest.skip("setpriv or bwrap is not installed")
    path = os.pathsep.join(map(str, (place, place / "tests" / "hostile", packages(place))))
    python = interpreter(place, path)
    image = data_dir() / "rootfs" / "base"
    readable = as_user("test", "-x", image / "usr" / "bin" / "python3", cwd=place).returncode == 0
    done = as_user(
        *(python, "-m", "pytest", "-p", "no:cacheprovider", "-p", "ordinary", "-q", "-rfEs", "--tb=short"),
        *(ALL if SOAK else SOME),
        *("-k", "not container" if SOAK else f"not container and ({' '.join(SOME_OF_THE_BATTERY.split())})"),
        *(f"--ignore=tests/conformance/{name}" for name in LEFT_OUT),
        cwd=place,
        HOME=str(place / "home"),
        PYTHONPATH=path,
        PYTHONDONTWRITEBYTECODE="1",
        EXECUTOR_REQUIRE_RUNTIMES="local",
        EXECUTOR_SOAK="1" if SOAK else "",
        **({"EXECUTOR_IMAGE": os.path.realpath(image)} if readable else {}),
    )
    failed = set(re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", done.stdout, re.MULTILINE))
    assert failed <= DIFFERS, done.stdout[-20_000:]
    assert done.returncode == (1 if failed else 0), done.stdout[-5_000:] + done.stderr[-5_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > (500 if SOAK else 20), done.stdout[-5_000:]
