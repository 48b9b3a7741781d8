"""The list of commands, and how every end of them becomes an exit status.

Parsing comes first and does nothing but make an action; the action runs outside of the parser, so that its
errors, signals and broken pipes are met in one place, `main`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from executor.cli.arguments import BROKEN_PIPE, FAILED
from executor.cli.signals import Interrupted, raising_on_signals
from executor.errors import ExecutorError

Action = Callable[[], int]
EPILOG = """\b
Examples:
  executor doctor
  executor skills list
  executor run sales-report --input sales.csv -- python3 scripts/report.py inputs/sales.csv"""

# First word → the module whose `register` adds it, and its line in the list of commands. Only the one that is
# named is imported and made: the options of all of them would take longer than many a command.
COMMANDS = {
    "run": ("running", "Run a command with a skill in a sandbox."),
    "doctor": ("diagnosis", "Check this machine and run something in every runtime that works."),
    "shell": (
        "shell",
        "Open a shell with a skill in a sandbox, with the limits and the folders that its scripts get.",
    ),
    "script": ("script", "Run a skill's script: a function of its input, or a program."),
    "test": ("test", "Run the cases in the `tests/*.yaml` of skills."),
    "mcp": ("mcp", "Serve the skills and the sandbox to MCP clients; one sandbox for each connection."),
    "skills": ("skills", "Find and read skills."),
    "images": ("images", "What sandboxes run on."),
    "sessions": ("sessions", "List, remove and move the sessions that are kept on this machine."),
    "deps": ("deps", "Lock and build what skills need, so that they run without a network."),
}


def command_line(words: Sequence[str]) -> typer.Typer:
    """The parser of these words: the command that they name is whole, the others are a line of help."""
    app = typer.Typer(
        name="executor",
        help="Runs the scripts of Agent Skills in sandboxes without a network.",
        epilog=EPILOG,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_help_option=False,  # `_top` has its own
        context_settings={"help_option_names": ["-h", "--help"]},  # of every command below, too
    )
    app.callback(invoke_without_command=True)(_top)
    named = next((word for word in words if not word.startswith("-")), "")
    for name, (module, summary) in COMMANDS.items():
        if name == named:
            importlib.import_module(f"executor.cli.{module}").register(app)
        else:
            app.command(name, help=summary)(_another)
    return app


def _help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(context.get_help())
        raise typer.Exit


def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    # In place of typer's own, for which it imports pydantic.
    _wanted: Annotated[
        bool,
        typer.Option("-h", "--help", help="Show this message and exit.", is_eager=True, callback=_help),
    ] = False,
) -> None:
    if version:
        from executor import __version__

        typer.echo(f"executor {__version__}")
        raise typer.Exit
    _help(context, context.invoked_subcommand is None)


def _another() -> None:
    """What stands in the list for a command that the words do not name."""


# --- from words to an exit status ---------------------------------------------------------------------------


def parse(words: Sequence[str]) -> Action | int:
    """What the words ask for; an int when help or the version was printed. Typer raises for wrong usage."""
    found = command_line(words)(list(words), prog_name="executor", standalone_mode=False, obj=words)
    return found if callable(found) else int(found or 0)


def main(words: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status, and raises nothing."""
    words = sys.argv[1:] if words is None else list(words)
    # Looking for them reads the metadata of every installed package, and none has a part in what is done.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        _keep_standard_streams()
        with raising_on_signals():
            status = _run_words(words)
    except Interrupted as stop:
        return 128 + stop.number
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # What is still buffered would raise once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    return status


def _run_words(words: Sequence[str]) -> int:
    from executor.cli import console

    try:
        action = parse(words)
        status = action if isinstance(action, int) else _act(action, words)
        with console.writing_stdout():
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        raise
    except ExecutorError as error:
        return _failed(words, type(error).__name__, error.message, error.hint)
    except Exception as error:
        # Wrong usage: typer's own exceptions, which it does not name in public, know how to show themselves.
        if format_message := getattr(error, "format_message", None):
            # pydantic's words for what typer's own type says
            message = format_message().replace(": Value error, ", ": ")
            return _failed(words, "UsageError", message, _usage_hint(error, words))
        if isinstance(error, FileNotFoundError) and not _has_working_folder():
            gone = "the working folder of this command has been deleted"
            return _failed(words, "BadPathError", gone, "Change to a folder that exists, such as `cd ~`.")
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _failed(
            words,
            type(error).__name__,
            what,
            "This is a fault of the executor; EXECUTOR_DEBUG=1 shows where.",
        )


def _act(action: Action, words: Sequence[str]) -> int:
    from executor.cli import fetching

    own = words[: words.index("--")] if "--" in words else words
    quiet = bool({"-q", "--quiet"}.intersection(own))
    fetching.show(warnings=not quiet)
    fetching.tell_of_settings(quiet=quiet)
    return action()


def _failed(words: Sequence[str], kind: str, message: str, hint: str) -> int:
    """Say why the executor failed, for a person and, if the words ask for it, for a program."""
    from executor.cli import console

    if os.environ.get("EXECUTOR_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    console.error(message, hint)
    own = words[: words.index("--")] if "--" in words else words
    if "--json" in own and own[:1] != ["test"]:  # there it names a file
        with contextlib.suppress(OSError, ExecutorError):  # stdout may be what failed
            console.out_json({"error": {"type": kind, "message": message, "hint": hint}})
    return FAILED


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _usage_hint(error: Any, words: Sequence[str]) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "executor")
    hint = f"See `{path} --help`."
    plain = [word for word in words if not word.startswith("-")]
    if path == "executor run" and "--" not in words and len(plain) > 2:  # run, SKILL, and a command
        hint += " What the sandbox is to run, with its own options, goes behind `--`."
    return hint


def _keep_standard_streams() -> None:
    """Descriptors 0 to 2 are always taken, so that a script's output never goes to a socket of ours."""
    from executor.cli import console

    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            console.stdout_is_closed |= fd == 1
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
