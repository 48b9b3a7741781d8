"""The tools, the skills and their files as an MCP server, over stdio or streamable HTTP.

Rules of this module:
1. One connection is one session with one sandbox: started by the first tool that needs it, ended with the
   connection. No connection sees what another one has.
2. It translates and decides nothing: what a tool does is in the table, what it is called in the profile.
3. Over stdio the standard output belongs to the protocol. Nothing here prints.
4. HTTP answers to who has the token. Without one it listens on the loopback interface only, and the SDK
   checks the Host header there, so that no web page reaches it by a name of its own.

HTTP serves the protocol with sessions (up to 2025-11-25). The one after that has no connection that a sandbox
could live as long as: its requests are refused with the versions that are served, on which its clients go
back to one of these. Over stdio both are served.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from executor.errors import BadRequestError, ExecutorError
from executor.executor import AsyncExecutor
from executor.places import data_dir
from executor.skills import prompt
from executor.skills.contents import read_resource
from executor.skills.repository import Skill
from executor.tools.results import RefusedError, ToolResult
from executor.tools.toolset import SkillToolset
from executor.workspace import mime
from executor.workspace.artifacts import ArtifactStore

SCHEME = "skill://"
PAGE = 500  # entries of one page of a listing
PATH = "/mcp"
MAX_LINE = 64 << 20  # bytes of one message over stdio
WAITING = 16  # pieces of stdin that were read and not yet taken
MAX_SESSIONS = 64  # connections over HTTP at the same time, each with a sandbox of its own
IDLE = 1800.0  # seconds without a request until a connection over HTTP is over

Context = ServerRequestContext[Any, Any]


@dataclass
class Served:
    """What a server serves, and the connection's toolset where the connection is the process."""

    executor: AsyncExecutor
    options: dict[str, Any]
    artifacts: ArtifactStore
    toolset: SkillToolset | None = None
    catalogue: SkillToolset = field(init=False)
    """Never opens a session: for what is the same for every connection."""

    def __post_init__(self) -> None:
        self.catalogue = self.make("catalogue")

    def make(self, session: str) -> SkillToolset:
        return SkillToolset(
            self.executor,
            session=session,
            mode="session",
            state=":memory:",
            artifacts=self.artifacts,
            **self.options,
        )

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[SkillToolset]:
        """A toolset with a session of its own, which ends with the block."""
        name = f"mcp-{secrets.token_hex(8)}"
        toolset = self.make(name)
        try:
            yield toolset
        finally:
            try:
                await toolset.close()
            finally:
                if (session := toolset.opened) is not None:
                    await session.close()


async def serve_stdio(executor: AsyncExecutor, **options: Any) -> None:
    """Serve this process's stdin and stdout until stdin ends. `options` as of `SkillToolset`."""
    served = _served(executor, options)

    @contextlib.asynccontextmanager
    async def lifespan(_server: Any) -> AsyncIterator[Served]:
        async with served.connection() as served.toolset:
            yield served

    server = _server(served, lifespan)
    with _stdin_lines() as lines:
        async with stdio_server(stdin=lines) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


async def serve_http(
    executor: AsyncExecutor,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str = "",
    ready: Any = None,
    **options: Any,
) -> None:
    """Serve streamable HTTP at `http://host:port/mcp` until cancelled. `port` 0 takes a free one.

    `token`: what a client sends as `Authorization: Bearer …`. `ready(url)` is called once it listens.
    BadRequestError without a token on an address that is not loopback, or when the address cannot be had.
    """
    import uvicorn

    if not token and not _is_loopback(host):
        raise BadRequestError(
            f"{host} can be reached from other machines and there is no token",
            hint="Set one (--token-env NAME), or listen on 127.0.0.1.",
        )
    served = _served(executor, options)

    @contextlib.asynccontextmanager
    async def lifespan(_server: Any) -> AsyncIterator[Served]:
        yield served

    app = _server(served, lifespan).streamable_http_app(
        streamable_http_path=PATH, host=host, session_idle_timeout=IDLE, max_sessions=MAX_SESSIONS
    )
    try:
        listener = socket.create_server((host, port), family=_family(host))
    except (OSError, OverflowError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(" (while ")[0]
        raise BadRequestError(
            f"cannot listen on {host}:{port}: {why}",
            hint="Give another port (--port; 0 takes a free one) or an address of this machine (--host).",
        ) from error

    class Quiet(uvicorn.Server):
        """Signals belong to whoever called."""

        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    config = uvicorn.Config(
        _Gate(app, token), log_level="warning", access_log=False, timeout_graceful_shutdown=2
    )
    with listener:
        if ready is not None:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{listener.getsockname()[1]}{PATH}")
        server = Quiet(config)
        try:
            await server.serve(sockets=[listener])
        except asyncio.CancelledError:
            # The SDK ends every connection, and with it its sandbox, in the application's shutdown.
            await server.shutdown(sockets=[listener])
            raise


class _Gate:
    """What is asked of every HTTP request before the SDK sees it: the token, and a version with sessions."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self._token:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                await _answer(send, 401, {"error": "a bearer token is needed"})
                return
        version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        if version and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version[:100]}
            error = {
                "code": types.UNSUPPORTED_PROTOCOL_VERSION,
                "message": "This server has a sandbox for each connection: use a version with sessions.",
                "data": data,
            }
            await _answer(send, 400, {"jsonrpc": "2.0", "id": None, "error": error})
            return
        await self._app(scope, receive, send)


async def _answer(send: Any, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@contextlib.contextmanager
def _stdin_lines() -> Iterator[Any]:
    """Lines of stdin, while descriptor 0 itself is empty for everything else.

    The SDK reads stdin in a thread that it waits for, so that a signal would not end this process before the
    client does. Nothing waits for this one, and it shares no lock with the interpreter.
    """
    own = os.dup(0)
    os.set_inheritable(own, False)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(WAITING)

    def read() -> None:
        piece = b"-"
        while piece:
            room.acquire()
            try:
                piece = os.read(own, 1 << 16)
            except OSError:
                piece = b""
            with contextlib.suppress(RuntimeError):  # the loop has gone
                loop.call_soon_threadsafe(queue.put_nowait, piece)

    async def lines() -> AsyncIterator[str]:
        held = bytearray()
        while piece := await queue.get():
            room.release()
            held += piece
            if b"\n" in piece:
                *whole, rest = held.split(b"\n")
                held = bytearray(rest)
                for line in whole:
                    yield line.decode("utf-8", "replace")
            if len(held) > MAX_LINE:
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    try:
        yield lines()
    finally:
        os.dup2(own, 0)


# --- the server ---------------------------------------------------------------------------------------------


def _served(executor: AsyncExecutor, options: dict[str, Any]) -> Served:
    return Served(executor, options, ArtifactStore(data_dir() / "artifacts", scope="mcp"))


def _server(served: Served, lifespan: Any) -> Server[Any]:
    from executor import __version__

    return Server(
        "executor",
        version=__version__,
        instructions=served.catalogue.system_prompt(),
        lifespan=lifespan,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=_read_resource,
        on_list_prompts=_list_prompts,
        on_get_prompt=_get_prompt,
    )


async def _toolset(context: Context) -> SkillToolset:
    """The toolset of this connection, made at its first use."""
    served: Served = context.lifespan_context
    if served.toolset is not None:
        return served.toolset
    # The SDK has a place for what belongs to a connection and no public way to it from a request yet.
    connection = context.session._connection
    found: SkillToolset | None = connection.state.get("toolset")
    if found is None:
        found = await connection.exit_stack.enter_async_context(served.connection())
        connection.state["toolset"] = found
    return found


async def _list_tools(context: Context, _params: Any) -> types.ListToolsResult:
    definitions = context.lifespan_context.catalogue.definitions("mcp")
    return types.ListToolsResult(tools=[types.Tool.model_validate(one, by_name=False) for one in definitions])


async def _call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    toolset = await _toolset(context)

    async def report(seconds: float, message: str) -> None:
        await context.session.report_progress(seconds, None, message)

    return _result(await toolset.call(params.name, params.arguments, progress=report))


def _result(result: ToolResult) -> types.CallToolResult:
    content: list[Any] = [types.TextContent(text=result.text)]
    content += [types.ImageContent(data=image.base64, mime_type=image.mime) for image in result.images]
    structured = result.structured or None
    return types.CallToolResult(content=content, structured_content=structured, is_error=result.is_error)


async def _list_resources(context: Context, params: Any) -> types.ListResourcesResult:
    page, following = _page(context.lifespan_context.catalogue.skills(), params)
    listed = [
        types.Resource(
            name=skill.slug,
            uri=f"{SCHEME}{quote(skill.slug)}/SKILL.md",
            description=prompt.one_line(skill.document.description) or None,
            mime_type="text/markdown",
        )
        for skill in page
    ]
    return types.ListResourcesResult(resources=listed, next_cursor=following)


async def _list_templates(_context: Context, _params: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        name="file of a skill",
        uri_template=SCHEME + "{skill}/{+path}",
        description="One file of a skill; skill_load lists them.",
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def _read_resource(context: Context, params: Any) -> types.ReadResourceResult:
    uri = str(params.uri)
    name, slash, path = uri.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or not slash:
        raise _not_found(uri)
    path = unquote(path)
    try:
        skill = context.lifespan_context.catalogue.skill(unquote(name))
        data = read_resource(skill, path)
    except (RefusedError, ExecutorError) as error:
        raise _not_found(uri, error.message) from None
    media = mime.guess(path.rpartition("/")[2], data[: mime.HEAD_BYTES], len(data))
    contents: types.TextResourceContents | types.BlobResourceContents
    try:
        if b"\0" in data:
            raise ValueError
        contents = types.TextResourceContents(uri=uri, mime_type=media, text=data.decode("utf-8-sig"))
    except ValueError:
        blob = base64.b64encode(data).decode("ascii")
        contents = types.BlobResourceContents(uri=uri, mime_type=media, blob=blob)
    return types.ReadResourceResult(contents=[contents])


async def _list_prompts(context: Context, params: Any) -> types.ListPromptsResult:
    page, following = _page([s for s in context.lifespan_context.catalogue.skills() if _invocable(s)], params)
    argument = types.PromptArgument(name="arguments", description="What to do with it.", required=False)
    listed = [
        types.Prompt(
            name=skill.slug,
            description=prompt.one_line(skill.document.description) or None,
            arguments=[argument],
        )
        for skill in page
    ]
    return types.ListPromptsResult(prompts=listed, next_cursor=following)


async def _get_prompt(context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    """The prompt of a skill is a load of the skill: its text, and its files in the connection's sandbox."""
    toolset = await _toolset(context)
    try:
        skill = toolset.skill(params.name)
        if not _invocable(skill):
            raise RefusedError(f"the skill {skill.slug!r} is not for users to invoke")
        loaded = await toolset.load(skill)
    except (RefusedError, ExecutorError) as error:
        raise MCPError(types.INVALID_PARAMS, error.message) from None
    text = f"[Skill: {skill.slug}]\n\n{prompt.skill_content(loaded)}"
    if wanted := (params.arguments or {}).get("arguments", "").strip():
        text += f"\n\n{wanted}"
    message = types.PromptMessage(role="user", content=types.TextContent(text=text))
    return types.GetPromptResult(description=skill.document.description or None, messages=[message])


# --- inside -------------------------------------------------------------------------------------------------


def _invocable(skill: Skill) -> bool:
    extra = skill.document.extra
    value = extra.get("user-invocable", extra.get("user_invocable", "true"))
    return str(value).strip().lower() not in ("false", "no", "off")


def _page(skills: list[Skill], params: Any) -> tuple[list[Skill], str | None]:
    """The skills behind the cursor, which is the last slug of the page before."""
    cursor = getattr(params, "cursor", None) or ""
    left = [skill for skill in skills if skill.slug > cursor]
    page = left[:PAGE]
    return page, page[-1].slug if len(left) > PAGE else None


def _not_found(uri: str, why: str = "") -> MCPError:
    message = f"there is no resource {uri[:200]!r}" + (f": {why}" if why else "")
    return MCPError(types.INVALID_PARAMS, message, {"uri": uri[:1000]})


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
