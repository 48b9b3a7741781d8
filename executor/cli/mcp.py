"""`executor mcp`: the MCP server. What it says goes to stderr; stdout belongs to the protocol.

`register` adds the command.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from executor.cli import options
from executor.errors import BadRequestError

Action = Callable[[], int]
TOKEN_VARIABLE = "EXECUTOR_MCP_TOKEN"  # noqa: S105 - the name of a variable


class TransportChoice(enum.StrEnum):
    """Values of --transport."""

    stdio = "stdio"
    http = "http"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "mcp",
        epilog="""\b
Examples:
  executor mcp
  executor mcp --skills ~/skills --profile think
  EXECUTOR_MCP_TOKEN=secret executor mcp --transport http --port 8931""",
    )(_mcp)


def _mcp(
    skills: options.Skills = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Names of the tools: trpc, think, flow, ai-sdk or claude.")
    ] = "trpc",
    transport: Annotated[TransportChoice, typer.Option(help="How clients connect.")] = TransportChoice.stdio,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="HTTP: address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="HTTP: port; 0 takes a free one.")
    ] = 8931,
    token_env: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="HTTP: variable that holds the token which clients send as `Authorization: Bearer`. "
            "Needed unless the address is loopback.",
        ),
    ] = TOKEN_VARIABLE,
    runtime: options.Runtime = None,
    image: options.Image = None,
    knowledge_only: Annotated[
        bool, typer.Option("--knowledge-only", help="Offer no tool that needs a sandbox.")
    ] = False,
) -> Action:
    """Serve the skills and the sandbox to MCP clients; one sandbox for each connection."""
    tools = {"profile": profile, "knowledge_only": knowledge_only}

    def action() -> int:
        token = os.environ.get(token_env, "")
        http = {"host": host, "port": port, "token": token} if transport is TransportChoice.http else None
        return serve(
            tuple(skills or ()), None if runtime is None else runtime.value, image, http=http, options=tools
        )

    return action


def serve(
    roots: tuple[str, ...],
    runtime: str | None,
    image: str | None,
    *,
    http: dict[str, Any] | None,
    options: dict[str, Any],
) -> int:
    """Serve until the client goes (stdio), or until a signal (HTTP). The exit status."""
    import asyncio

    from executor.cli import arguments, console
    from executor.cli.signals import until_interrupted
    from executor.executor import AsyncExecutor
    from executor.settings import load

    try:
        from executor.tools import mcp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "uvicorn"):
            raise
        raise BadRequestError(
            "the MCP SDK is not installed", hint="Install the extra: pip install 'skill-executor[mcp]'."
        ) from None

    arguments.usable_roots(load({"skills": roots or None}), told=True)

    async def work() -> int:
        executor = AsyncExecutor(skills=roots or None, runtime=runtime, image=image)
        executor.layers.options = arguments.again(roots, runtime, image)
        try:
            if http is None:
                await mcp.serve_stdio(executor, **options)
            else:
                await mcp.serve_http(
                    executor, ready=lambda url: console.say(f"listening on {url}"), **http, **options
                )
        finally:
            await asyncio.shield(executor.close())
        return 0

    return until_interrupted(work())
