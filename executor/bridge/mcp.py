"""The tools of an MCP server as tools that can be granted: the server is a process of this machine.

It runs with the host's rights and outside of every sandbox; scripts reach only those of its tools that a
grant names. The official SDK speaks with it, in a thread and an event loop of its own, so that the tools
work from whichever loop a session runs in.

    with McpServer(["python3", "server.py"]) as server:
        session.exec("tool search query=tax", grant=Grant(tools=server.tools("search")))
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from executor.bridge.codes import PublicToolError
from executor.bridge.tools import Approval, ToolContext, ToolSpec
from executor.errors import BadRequestError, GrantError

START = 30.0  # seconds for the process to start and to say what it has
STOP = 10.0
MAX_TOOLS = 1000  # of one server
MAX_ERROR = 2000  # characters of a server's error that a script gets


class McpServer:
    """A server process, for as long as it is open. BadRequestError when it does not start or is not one.

    `command` is its argument vector, `env` its whole environment besides what the SDK passes on.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        if not command:
            raise BadRequestError("the command of the MCP server is empty")
        self._command = [os.fspath(word) for word in command]
        self._env = dict(env) if env is not None else None
        self._cwd = None if cwd is None else os.fspath(cwd)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._session: Any = None
        self._found: dict[str, dict[str, Any]] = {}
        self._stop: asyncio.Event | None = None
        self._life: concurrent.futures.Future[None] | None = None

    def __enter__(self) -> McpServer:
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread.start()
        self._life = asyncio.run_coroutine_threadsafe(self._live(ready), self._loop)
        try:
            ready.result(START)
        except Exception as error:
            self.close()
            raise BadRequestError(
                f"the MCP server {self._command[0]!r} did not start: {error or type(error).__name__}",
                hint="Run its command by hand; it has to speak MCP on stdin and stdout.",
            ) from error
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._loop.is_closed():
            return
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._life is not None:
            concurrent.futures.wait([self._life], timeout=STOP)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP)
        if not self._thread.is_alive():
            self._loop.close()

    @property
    def names(self) -> list[str]:
        """Names of all its tools."""
        return sorted(self._found)

    def tools(
        self, *names: str, approval: Approval = "never", timeout_s: float = 30.0, max_result: int = 4 << 20
    ) -> list[ToolSpec]:
        """Its tools of these names; no name means none. GrantError for one that it does not have."""
        return [self._spec(name, approval, timeout_s, max_result) for name in names]

    def _spec(self, name: str, approval: Approval, timeout_s: float, max_result: int) -> ToolSpec:
        found = self._found.get(name)
        if found is None:
            raise GrantError(
                f"the MCP server has no tool {name!r}", hint=f"It has {', '.join(self.names) or 'none'}."
            )

        async def handler(value: Any, ctx: ToolContext) -> Any:
            call = self._call(name, value, ctx.left)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

        return ToolSpec(
            name=name,
            description=str(found.get("description") or ""),
            input_schema=found.get("inputSchema") or {"type": "object"},
            handler=handler,
            output_schema=found.get("outputSchema"),
            approval=approval,
            read_only=bool((found.get("annotations") or {}).get("readOnlyHint")),
            timeout_s=timeout_s,
            max_result=max_result,
        )

    # -- in its own loop --

    async def _live(self, ready: concurrent.futures.Future[None]) -> None:
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client

        self._stop = asyncio.Event()
        program, *args = self._command
        parameters = StdioServerParameters(command=program, args=args, env=self._env, cwd=self._cwd)
        try:
            async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
                await session.initialize()
                await self._list(session)
                self._session = session
                ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else RuntimeError("it ended"))
        finally:
            self._session = None

    async def _list(self, session: Any) -> None:
        cursor: str | None = None
        while True:
            page = await (session.list_tools() if cursor is None else _next_page(session, cursor))
            for item in page.tools:
                plain = item.model_dump(by_alias=True, mode="json")
                self._found[str(plain["name"])] = plain
            cursor = page.model_dump(by_alias=True).get("nextCursor")
            if not cursor or len(self._found) > MAX_TOOLS:
                return

    async def _call(self, name: str, value: Any, left: float) -> Any:
        if self._session is None:
            raise PublicToolError("the tool's server has ended")
        answer = await asyncio.wait_for(self._session.call_tool(name, value), max(left, 0.001))
        plain = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        content = plain.get("content") or []
        texts = [str(part.get("text", "")) for part in content if part.get("type") == "text"]
        if plain.get("isError"):
            raise PublicToolError("\n".join(texts)[:MAX_ERROR] or "the server says that it failed")
        if "structuredContent" in plain:
            return plain["structuredContent"]
        return "\n".join(texts) if len(texts) == len(content) else content


def _next_page(session: Any, cursor: str) -> Coroutine[Any, Any, Any]:
    from mcp.types import PaginatedRequestParams

    page: Coroutine[Any, Any, Any] = session.list_tools(params=PaginatedRequestParams(cursor=cursor))
    return page
