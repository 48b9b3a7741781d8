"""The commands: their options, their help, and how every end of them becomes an exit status.

Parsing comes first and does nothing but make an action; the action runs outside of the parser, so that its
errors, signals and broken pipes are met in one place, `main`.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from executor.cli import deps as deps_command
from executor.cli import export as export_commands
from executor.cli import lint as lint_command
from executor.cli import mcp as mcp_command
from executor.cli import options, sessions
from executor.cli import script as script_command
from executor.cli import shell as shell_command
from executor.cli import test as test_command
from executor.cli.arguments import BROKEN_PIPE, FAILED, RunRequest
from executor.cli.signals import Interrupted, raising_on_signals
from executor.errors import BadRequestError, ExecutorError

Action = Callable[[], int]
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
STATUSES = """\
Exit status: the script's own, 126 or 127 if it cannot be started, 128+N if signal N ended it; 124 after
--timeout; 137 out of memory; 125 if the executor itself failed, which includes wrong usage and files that
could not be saved; 130 after Ctrl-C, 143 after SIGTERM, 141 when nobody reads the output any more."""


class TargetChoice(enum.StrEnum):
    """Values of --target."""

    container = "container"
    local = "local"


app = typer.Typer(
    name="executor",
    help="Runs the scripts of Agent Skills in sandboxes without a network.",
    epilog="""\b
Examples:
  executor doctor
  executor skills list
  executor run sales-report --input sales.csv -- python3 scripts/report.py inputs/sales.csv""",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)
skills_app = typer.Typer(help="Find and read skills.", rich_markup_mode=None, context_settings=HELP_OPTIONS)
images_app = typer.Typer(help="What sandboxes run on.", rich_markup_mode=None, context_settings=HELP_OPTIONS)
app.add_typer(skills_app, name="skills")
app.add_typer(images_app, name="images")
app.add_typer(sessions.app, name="sessions")


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from executor import __version__

        typer.echo(f"executor {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@app.command(
    "run",
    epilog=f"""{STATUSES}

\b
Examples:
  executor run sales-report --input sales.csv --save results -- python3 scripts/report.py inputs/sales.csv
  executor run ./my-skill --timeout 10 -- 'scripts/a.sh | sort > $OUTPUT_DIR/sorted.txt'
  executor run log-digest --stdin app.log --json -- bash scripts/digest.sh -
  executor run my-skill --allow-net api.example.org --allow-net '*.cdn.org:443' -- python3 scripts/x.py
  executor run my-skill --input data/:work/data --env LANG=de_DE.UTF-8 -- node scripts/x.mjs "two words"
""",
)
def _run(
    skill: options.Skill,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="One word is a shell line; several are an argument vector, passed on unchanged.",
            show_default=False,
        ),
    ] = None,
    skills: options.Skills = None,
    runtime: options.Runtime = None,
    image: options.Image = None,
    input_: options.Inputs = None,
    output: options.Outputs = None,
    save: options.Save = None,
    overwrite: options.Overwrite = False,
    html: options.Html = None,
    env: options.Env = None,
    allow_net: options.AllowNet = None,
    stdin: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="What the script reads on stdin; - is this command's own, read to its end first. "
            "[default: nothing]",
            show_default=False,
        ),
    ] = None,
    cwd: options.Cwd = None,
    timeout: options.Timeout = None,
    memory: options.Memory = None,
    cpus: options.Cpus = None,
    pids: options.Pids = None,
    disk: options.Disk = None,
    session: options.Session = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> Action:
    """Run a command with a skill in a sandbox.

    The script's stdout and stderr come out as they are written; what the executor itself says goes to stderr.
    """
    if not command:
        raise BadRequestError(
            "there is no COMMAND", hint="Write it behind `--`: executor run SKILL -- python3 scripts/x.py"
        )
    request = RunRequest(
        **options.request(
            skill=skill,
            words=tuple(command),
            skills=skills,
            runtime=runtime,
            image=image,
            inputs=input_,
            outputs=tuple(output or ("out/**",)),
            save=save,
            overwrite=overwrite,
            html=html,
            env=env,
            allow_net=allow_net,
            stdin=stdin,
            cwd=cwd,
            timeout=timeout,
            memory=memory,
            cpus=cpus,
            pids=pids,
            disk=disk,
            session=session,
            json=json,
            quiet=quiet,
        )
    )

    def action() -> int:
        from executor.cli.run import run

        return run(request)

    return action


@skills_app.command(
    "list",
    epilog="""\b
Examples:
  executor skills list
  executor skills list --skills ./skills --skills ~/more-skills --json""",
)
def _skills_list(skills: options.Skills = None, json: options.Json = False) -> Action:
    """List the skills of the roots, then what cannot be used and why."""
    from executor.cli.skills import list_skills

    return partial(list_skills, tuple(skills or ()), json=json)


@skills_app.command(
    "show",
    epilog="""\b
Examples:
  executor skills show sales-report
  executor skills show ./my-skill --json""",
)
def _skills_show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A skill's name in the roots, or the path of its folder.")
    ],
    skills: options.Skills = None,
    json: options.Json = False,
) -> Action:
    """Show one skill: its front matter, what was odd about it, its files and its text."""
    from executor.cli.skills import show_skill

    return partial(show_skill, name, tuple(skills or ()), json=json)


@images_app.command(
    "build",
    epilog="""\b
Examples:
  executor images build
  executor images build --target local
  executor images build base --base debian:bookworm-slim --target container""",
)
def _images_build(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A folder of images/.")] = "base",
    target: Annotated[
        list[TargetChoice] | None,
        typer.Option(
            help="For which runtime; repeatable. [default: all that can work here]", show_default=False
        ),
    ] = None,
    base: Annotated[
        str,
        typer.Option(metavar="BASE", help="`debian` (made by mmdebstrap), an image to build on, or `auto`."),
    ] = "auto",
    refresh: Annotated[bool, typer.Option("--refresh", help="Take in new versions of the packages.")] = False,
    network: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="Network of a build on an image.", show_default=False),
    ] = None,
) -> Action:
    """Build what is out of date."""
    from executor.cli.images import build_image

    targets = [choice.value for choice in target or ()]
    return partial(build_image, name, targets, base, refresh=refresh, network=network)  # type: ignore[arg-type]


@images_app.command(
    "list",
    epilog="""\b
Examples:
  executor images list
  executor images list --json""",
)
def _images_list(json: options.Json = False) -> Action:
    """List the built images, and whether they are up to date."""
    from executor.cli.images import list_images

    return partial(list_images, json=json)


@app.command(
    "doctor",
    epilog="""Exit status: 0 when at least one runtime works, else 1.

\b
Examples:
  executor doctor
  executor doctor --json
  executor doctor --reap""",
)
def _doctor(
    json: options.Json = False,
    reap: Annotated[
        bool,
        typer.Option(
            "--reap", help="First remove what dead executors of this machine left: containers, cgroups."
        ),
    ] = False,
) -> Action:
    """Check this machine and run something in every runtime that works."""

    def action() -> int:
        from executor.cli.diagnosis import diagnose

        return diagnose(json=json, reap=reap)

    return action


skills_app.command("lint", epilog=lint_command.EPILOG)(lint_command.command)
skills_app.command("export", epilog=export_commands.EXPORT_EPILOG)(export_commands.export_command)
skills_app.command("bundle", epilog=export_commands.BUNDLE_EPILOG)(export_commands.bundle_command)
app.command("shell", epilog=shell_command.EPILOG)(shell_command.command)
app.command("script", epilog=script_command.EPILOG)(script_command.command)
app.command("test", epilog=test_command.EPILOG)(test_command.command)
mcp_command.register(app)
deps_command.register(app)


# --- from words to an exit status ---------------------------------------------------------------------------


def parse(words: Sequence[str]) -> Action | int:
    """What the words ask for; an int when help or the version was printed. Typer raises for wrong usage."""
    found = app(list(words), prog_name="executor", standalone_mode=False)
    return found if callable(found) else int(found or 0)


def main(words: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status, and raises nothing."""
    words = sys.argv[1:] if words is None else list(words)
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
    from executor.cli import console, fetching

    try:
        action = parse(words)
        own = words[: words.index("--")] if "--" in words else words
        quiet = bool({"-q", "--quiet"}.intersection(own))
        fetching.show(warnings=not quiet)
        fetching.tell_of_settings(quiet=quiet)
        status = action if isinstance(action, int) else action()
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
            return _failed(words, "UsageError", format_message(), _usage_hint(error))
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


def _usage_hint(error: Any) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "executor")
    return f"See `{path} --help`."


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
