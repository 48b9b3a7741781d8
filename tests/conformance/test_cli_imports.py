"""What a command imports: nothing that it has no use for, for that is most of the time which it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from executor import Executor
from executor.cli import console
from executor.cli.app import COMMANDS, main

REPOSITORY = Path(__file__).parents[2]
PROBE = """
import sys
from executor.cli.app import main
status = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    print(status, *sys.modules, file=file)
"""

ENGINE = {"docker", "requests", "urllib3", "tenacity"}
NETWORK = {"httpx", "fsspec", "mcp", "anyio", "starlette", "opentelemetry"}
GRANTED = {f"executor.bridge.{part}" for part in ("grant", "dispatch", "network", "egress", "scripts", "mcp")}
# Of commands that end without acting, of those that read skills and start nothing, and of runs.
PARSING = {"pydantic", "yaml", "rich", "asyncio", "ssl", "sqlite3", "executor.bridge", *ENGINE, *NETWORK}
PARSING |= {f"executor.{part}" for part in ("executor", "settings", "models", "skills", "session")}
READING = {"asyncio", "ssl", "sqlite3", "executor.executor", "executor.session", *GRANTED, *ENGINE, *NETWORK}
RUNNING = {"rich", "sqlite3", "bracex", "executor.deps.building", *GRANTED, *NETWORK}

# Command → its status, a module of it, which shows that the list is its own, and those it has no use for.
COMMAND_LINES = {
    "--version": (0, "typer", PARSING),
    "--help": (0, "typer", PARSING),
    "no-such-command": (125, "typer", PARSING),
    "run --help": (0, "executor.cli.running", PARSING),
    "run a-skill --no-such-option": (125, "executor.cli.running", PARSING),
    "skills list --skills skills": (0, "executor.skills.repository", READING),
    "skills lint skills/sales-report": (0, "executor.skills.lint", READING),
}
RUN = "run sales-report --skills skills --runtime"
RUNS = {
    "local": ("executor.runtimes.local", {"ctypes", *RUNNING, *ENGINE}),
    "container": ("executor.runtimes.container", RUNNING),
}


def imported(line: str, where: Path) -> tuple[int, set[str]]:
    """The exit status of a command and every module that it imported."""
    env = {name: value for name, value in os.environ.items() if name not in console.FORCING}
    subprocess.run(
        [sys.executable, "-c", PROBE, str(where), *line.split()],
        capture_output=True,
        timeout=60,
        cwd=REPOSITORY,
        env=env,
        check=True,
    )
    status, *modules = where.read_text().split()
    return int(status), set(modules)


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_imports_what_it_needs(line: str, tmp_path: Path) -> None:
    expected, used, unused = COMMAND_LINES[line]
    status, found = imported(line, tmp_path / "modules")
    assert (status, found & unused) == (expected, set())
    assert used in found


def test_a_run_imports_what_it_needs(executor: Executor, runtime: str, tmp_path: Path) -> None:
    used, unused = RUNS[runtime]
    status, found = imported(f"{RUN} {runtime} -- true", tmp_path / "modules")
    assert (status, found & unused) == (0, set())
    assert used in found


@pytest.mark.parametrize("runtime", ["local"], indirect=True)
def test_a_run_that_is_granted_something_imports_that(
    executor: Executor, runtime: str, tmp_path: Path
) -> None:
    """The control of the test above: these are the names under which they would be found."""
    line = f"{RUN} {runtime} --session imports --allow-net a.example -- true"
    status, found = imported(line, tmp_path / "modules")
    assert status == 0
    assert {"sqlite3", *GRANTED} - found == {"executor.bridge.mcp", "executor.bridge.scripts"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_commands_say(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    first = capsys.readouterr().out.split("\n\n")[1]
    assert " ".join(first.split()) == COMMANDS[name][1]
