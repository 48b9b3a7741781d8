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
from pathlib import Path
from typing import Annotated, Any

import typer

from executor.cli import lint as lint_command
from executor.cli import mcp as mcp_command
from executor.cli import script as script_command
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


class RuntimeChoice(enum.StrEnum):
    """Values of --runtime."""

    auto = "auto"
    container = "container"
    local = "local"


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

SkillsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--skills",
        metavar="ROOT",
        help="Folder that holds skills; repeatable, the first wins. [default: $SKILLS_ROOT, then ./skills]",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout and nothing else.")]


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
  executor run my-skill --input data/:work/data --env LANG=de_DE.UTF-8 -- node scripts/x.mjs "two words"
""",
)
def _run(
    skill: Annotated[
        str, typer.Argument(metavar="SKILL", help="A skill's name in the roots, or the path of its folder.")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="One word is a shell line; several are an argument vector, passed on unchanged.",
            show_default=False,
        ),
    ] = None,
    skills: SkillsOption = None,
    runtime: Annotated[
        RuntimeChoice | None,
        typer.Option(
            help="Where the sandbox runs. [default: auto: container if an engine has the image, else local]",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Container: an image reference. Local: a built image, a folder, or `host` for this "
            "machine's own programs. [default: executor/base]",
            show_default=False,
        ),
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="SRC[:DEST]",
            help="File or folder to stage; repeatable. DEST is below inputs/ unless it begins with work/, "
            "out/, runs/, inputs/, skills/ or /workspace; one that ends in / keeps the name.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Files to bring back; repeatable. [default: out/**]", show_default=False
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the files below DIR, as DIR/out/...", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Let --save replace files.")] = False,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable for the script; repeatable.", show_default=False),
    ] = None,
    stdin: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="What the script reads on stdin; - is this command's own, read to its end first. "
            "[default: nothing]",
            show_default=False,
        ),
    ] = None,
    cwd: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Where it starts. [default: the skill's folder]", show_default=False
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="End it after so long. [default: 300]", show_default=False),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory, such as 512m. [default: 1g]", show_default=False),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(metavar="N", help="Processors. [default: 1]", show_default=False)
    ] = None,
    pids: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes and threads. [default: 128]", show_default=False),
    ] = None,
    disk: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Size of /workspace. [default: 256m]", show_default=False),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Keep the session's files under this name, and go on with them the next time.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but errors.")] = False,
) -> Action:
    """Run a command with a skill in a sandbox.

    The script's stdout and stderr come out as they are written; what the executor itself says goes to stderr.
    """
    if not command:
        raise BadRequestError(
            "there is no COMMAND", hint="Write it behind `--`: executor run SKILL -- python3 scripts/x.py"
        )
    given = {"memory": memory, "cpus": cpus, "pids": pids, "disk": disk}
    request = RunRequest(
        skill=skill,
        words=tuple(command),
        skills=tuple(skills or ()),
        runtime=None if runtime is None else runtime.value,
        image=image,
        inputs=tuple(input_ or ()),
        outputs=tuple(output or ("out/**",)),
        save=save,
        overwrite=overwrite,
        env=tuple(env or ()),
        stdin=stdin,
        cwd=cwd,
        timeout=timeout,
        limits={name: value for name, value in given.items() if value is not None},
        session=session,
        json=json,
        quiet=quiet,
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
def _skills_list(skills: SkillsOption = None, json: JsonOption = False) -> Action:
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
    skills: SkillsOption = None,
    json: JsonOption = False,
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
def _images_list(json: JsonOption = False) -> Action:
    """List the built images, and whether they are up to date."""
    from executor.cli.images import list_images

    return partial(list_images, json=json)


@app.command(
    "doctor",
    epilog="""Exit status: 0 when at least one runtime works, else 1.

\b
Examples:
  executor doctor
  executor doctor --json""",
)
def _doctor(json: JsonOption = False) -> Action:
    """Check this machine and run something in every runtime that works."""

    def action() -> int:
        from executor.cli.diagnosis import diagnose

        return diagnose(json=json)

    return action


skills_app.command("lint", epilog=lint_command.EPILOG)(lint_command.command)
app.command("script", epilog=script_command.EPILOG)(script_command.command)
app.command("test", epilog=test_command.EPILOG)(test_command.command)
mcp_command.register(app)


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
            sys.stdout.flush()
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
    try:
        action = parse(words)
        return action if isinstance(action, int) else action()
    except BrokenPipeError:
        raise
    except ExecutorError as error:
        return _failed(words, type(error).__name__, error.message, error.hint)
    except Exception as error:
        # Wrong usage: typer's own exceptions, which it does not name in public, know how to show themselves.
        if format_message := getattr(error, "format_message", None):
            return _failed(words, "UsageError", format_message(), _usage_hint(error))
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
        with contextlib.suppress(OSError):  # stdout may be what failed
            console.out_json({"error": {"type": kind, "message": message, "hint": hint}})
    return FAILED


def _usage_hint(error: Any) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "executor")
    return f"See `{path} --help`."


def _keep_standard_streams() -> None:
    """Descriptors 0 to 2 are always taken, so that a script's output never goes to a socket of ours."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
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
