"""`executor script`: run a skill's script with a JSON input; a function's value comes last on stdout."""

from __future__ import annotations

import json as json_module
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from executor.cli import arguments, options
from executor.cli.arguments import RunRequest, read_stdin
from executor.errors import BadRequestError

if TYPE_CHECKING:
    from executor.bridge.scripts import Style
    from executor.cli.relay import Relay
    from executor.models import ExecResult
    from executor.session import AsyncSession
    from executor.settings import Settings

STYLES = ("auto", "function", "cli")
EPILOG = """A script is a function when it has a top-level run(input, ctx) (Python) or a default export that
is a function (Node); everything else is a program, which reads the input on stdin. The exit status is that
of `executor run`.

\b
Examples:
  executor script my-skill scripts/report.py --input-json '{"year": 2024}'
  executor script my-skill scripts/report.mjs --input-json @request.json --workspace ./notes --json
  executor script my-skill scripts/convert.sh --input data.csv --save results -- --fast"""


@dataclass(frozen=True)
class ScriptRequest(RunRequest):
    """What `script` was asked to do. `words` are the script's arguments."""

    path: str = ""
    value: str | None = None
    """The input as it was written: JSON, `@FILE`, or `-` for stdin."""
    style: str = "auto"
    workspace: str | None = None
    workspace_write: bool = False

    @property
    def shown(self) -> str:
        """The command for a person."""
        return shlex.join([self.path, *self.words]) + (f" < {self.value}" if self.value else "")


def command(
    skill: options.Skill,
    path: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="The script's path in the skill: scripts/report.py.")
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGS...", help="Arguments for the script.", show_default=False),
    ] = None,
    input_json: Annotated[
        str | None,
        typer.Option(metavar="JSON|@FILE|-", help="The input. [default: {}]", show_default=False),
    ] = None,
    style: Annotated[str, typer.Option(metavar="STYLE", help="auto, function or cli.")] = "auto",
    workspace: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL", help="Folder that the script may read, or a URL of fsspec.", show_default=False
        ),
    ] = None,
    workspace_write: Annotated[
        bool, typer.Option("--workspace-write", help="Let it write and delete there too.")
    ] = False,
    skills: options.Skills = None,
    runtime: options.Runtime = None,
    image: options.Image = None,
    input_: options.Inputs = None,
    output: options.MadeOutputs = None,
    save: options.Save = None,
    overwrite: options.Overwrite = False,
    html: options.Html = None,
    env: options.Env = None,
    allow_net: options.AllowNet = None,
    timeout: options.ScriptTimeout = None,
    memory: options.Memory = None,
    cpus: options.Cpus = None,
    pids: options.Pids = None,
    disk: options.Disk = None,
    session: options.Session = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> Callable[[], int]:
    """Run a skill's script: a function of its input, or a program.

    Its stdout and stderr come out as they are written; a function's value follows on stdout as JSON.
    """
    if style not in STYLES:
        raise BadRequestError(f"--style {style!r} is none of {', '.join(STYLES)}")
    request = ScriptRequest(
        path=path,
        value=input_json,
        style=style,
        workspace=workspace,
        workspace_write=workspace_write,
        **options.request(
            skill=skill,
            words=tuple(args or ()),
            skills=skills,
            runtime=runtime,
            image=image,
            inputs=input_,
            outputs=tuple(output or ()),
            save=save,
            overwrite=overwrite,
            html=html,
            env=env,
            allow_net=allow_net,
            timeout=timeout,
            memory=memory,
            cpus=cpus,
            pids=pids,
            disk=disk,
            session=session,
            json=json,
            quiet=quiet,
        ),
    )

    def action() -> int:
        from executor.cli.run import run

        parsed = parse_input(request.value)

        async def execute(
            _request: RunRequest,
            session: AsyncSession,
            slug: str,
            env: dict[str, str],
            _stdin: bytes | None,
            relay: Relay | None,
            settings: Settings,
        ) -> ExecResult:
            return await _execute(request, parsed, session, slug, env, relay, settings)

        return run(request, execute)

    return action


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("script", epilog=EPILOG)(command)


def parse_input(text: str | None) -> Any:
    """The value of --input-json. BadRequestError when it is not JSON."""
    if text is None:
        return None
    where = text if text == "-" else text[1:] if text.startswith("@") else None
    if where is not None:
        data = read_stdin(where, "--input-json") or b""
    else:
        data = text.encode("utf-8", "surrogateescape")
    try:
        return json_module.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(
            f"--input-json is not JSON: {error}", hint="""Quote it for the shell: --input-json '{"a": 1}'."""
        ) from None


async def _execute(
    request: ScriptRequest,
    value: Any,
    session: AsyncSession,
    slug: str,
    env: dict[str, str],
    relay: Relay | None,
    settings: Settings,
) -> ExecResult:
    timeout = settings.script_timeout if request.timeout is None else request.timeout
    if relay is not None:
        relay.give_up_at = time.monotonic() + timeout + settings.grace
    result = await session.script(
        slug,
        request.path,
        input=value,
        args=request.words,
        grant=arguments.grant(request, root=request.workspace, write=request.workspace_write),
        timeout=timeout,
        style=cast("Style", request.style),
        env=env,
        outputs=request.outputs or None,
        on_output=None if relay is None else relay.take,
    )
    if relay is not None and result.style == "function" and result.status == "ok":
        line = json_module.dumps(result.result, ensure_ascii=False)
        await relay.take("stdout", line.encode("utf-8", "backslashreplace") + b"\n")
    return result
