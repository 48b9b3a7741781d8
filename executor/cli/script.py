"""`executor script`: run a skill's script with a JSON input; a function's value comes last on stdout."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from executor.cli.arguments import RunRequest, read_stdin
from executor.errors import BadRequestError

if TYPE_CHECKING:
    from executor.bridge.scripts import Style
    from executor.cli.relay import Relay
    from executor.models import ExecResult
    from executor.session import AsyncSession
    from executor.settings import Settings

RUNTIMES = ("auto", "container", "local")
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
    workspace: Path | None = None
    workspace_write: bool = False


def command(
    skill: Annotated[
        str, typer.Argument(metavar="SKILL", help="A skill's name in the roots, or the path of its folder.")
    ],
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
        Path | None,
        typer.Option(metavar="DIR", help="Folder that the script may read.", show_default=False),
    ] = None,
    workspace_write: Annotated[
        bool, typer.Option("--workspace-write", help="Let it write and delete there too.")
    ] = False,
    skills: Annotated[
        list[str] | None,
        typer.Option(metavar="ROOT", help="Folder that holds skills; repeatable.", show_default=False),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(metavar="RUNTIME", help="auto, container or local.", show_default=False),
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="As in `run`.", show_default=False)
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="SRC[:DEST]", help="File or folder to stage; repeatable.", show_default=False
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Files to bring back; repeatable. [default: what it made or changed in out/]",
            show_default=False,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the files below DIR, as DIR/out/...", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Let --save replace files.")] = False,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable; repeatable.", show_default=False),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="End it after so long. [default: 30]", show_default=False),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory. [default: 1g]", show_default=False)
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(metavar="N", help="Processors. [default: 1]", show_default=False)
    ] = None,
    pids: Annotated[
        int | None, typer.Option(metavar="N", help="Processes. [default: 128]", show_default=False)
    ] = None,
    disk: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of /workspace. [default: 256m]", show_default=False)
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Keep the session's files.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but errors.")] = False,
) -> Callable[[], int]:
    """Run a skill's script: a function of its input, or a program.

    Its stdout and stderr come out as they are written; a function's value follows on stdout as JSON.
    """
    for option, value, choices in (("--style", style, STYLES), ("--runtime", runtime, RUNTIMES)):
        if value is not None and value not in choices:
            raise BadRequestError(f"{option} {value!r} is none of {', '.join(choices)}")
    given = {"memory": memory, "cpus": cpus, "pids": pids, "disk": disk}
    request = ScriptRequest(
        skill=skill,
        path=path,
        words=tuple(args or ()),
        value=input_json,
        style=style,
        workspace=workspace,
        workspace_write=workspace_write,
        skills=tuple(skills or ()),
        runtime=runtime,
        image=image,
        inputs=tuple(input_ or ()),
        outputs=tuple(output or ()),
        save=save,
        overwrite=overwrite,
        env=tuple(env or ()),
        timeout=timeout,
        limits={name: value for name, value in given.items() if value is not None},
        session=session,
        json=json,
        quiet=quiet,
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


def parse_input(text: str | None) -> Any:
    """The value of --input-json. BadRequestError when it is not JSON."""
    if text is None:
        return None
    where = text if text == "-" else text[1:] if text.startswith("@") else None
    data = (read_stdin(where) or b"") if where is not None else text.encode("utf-8", "surrogateescape")
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
    from executor.bridge import Grant

    timeout = settings.script_timeout if request.timeout is None else request.timeout
    if relay is not None:
        relay.give_up_at = time.monotonic() + timeout + settings.grace
    grant = None
    if request.workspace is not None:
        grant = Grant(root=request.workspace, workspace="read-write" if request.workspace_write else "read")
    result = await session.script(
        slug,
        request.path,
        input=value,
        args=request.words,
        grant=grant,
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
