"""`executor run`: its options and its help. What it does is in `run.py`, imported when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from executor.cli import options
from executor.cli.arguments import RunRequest
from executor.errors import BadRequestError

STATUSES = """\
Exit status: the script's own, 126 or 127 if it cannot be started, 128+N if signal N ended it; 124 after
--timeout; 137 out of memory; 125 if the executor itself failed, which includes wrong usage and files that
could not be saved; 130 after Ctrl-C, 143 after SIGTERM, 141 when nobody reads the output any more."""
EPILOG = f"""{STATUSES}

\b
Examples:
  executor run sales-report --input sales.csv --save results -- python3 scripts/report.py inputs/sales.csv
  executor run ./my-skill --timeout 10 -- 'scripts/a.sh | sort > $OUTPUT_DIR/sorted.txt'
  executor run log-digest --stdin app.log --json -- bash scripts/digest.sh -
  executor run my-skill --allow-net api.example.org --allow-net '*.cdn.org:443' -- python3 scripts/x.py
  executor run my-skill --input data/:work/data --env LANG=de_DE.UTF-8 -- node scripts/x.mjs "two words"
"""


def command(
    context: typer.Context,
    skill: options.Skill,
    words: Annotated[
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
) -> Callable[[], int]:
    """Run a command with a skill in a sandbox.

    The script's stdout and stderr come out as they are written; what the executor itself says goes to stderr.
    """
    if not words:
        raise BadRequestError(
            "there is no COMMAND", hint="Write it behind `--`: executor run SKILL -- python3 scripts/x.py"
        )
    if _are_mixed(context.obj, skill, words[0]):
        raise BadRequestError(
            "there are options behind the COMMAND, and no `--` that says whose they are",
            hint=f"Options of the script go behind `--`: executor run {skill} [OPTIONS] -- {words[0]} …",
        )
    request = RunRequest(
        **options.request(
            skill=skill,
            words=tuple(words),
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


def _are_mixed(given: Sequence[str], skill: str, first: str) -> bool:
    """Whether words behind the first of the COMMAND look like options, without a `--` before it."""
    if "--" in given or skill not in given:
        return False
    behind = given[given.index(skill) + 1 :]
    return first in behind and any(word.startswith("-") for word in behind[behind.index(first) :])


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", epilog=EPILOG)(command)
