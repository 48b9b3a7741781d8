"""`executor mcp`, driven by the official client over a real subprocess, on every runtime.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from probes import eventually

from executor import AsyncExecutor, BadRequestError, Executor

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from executor.tools.mcp import serve_http

TOKEN = "a token for the tests"
ERAS = ("legacy", "auto")  # the protocol with a handshake, and the newest one that both ends speak


@pytest.fixture(scope="module")
def command(executor: Executor, runtime: str, skills_root: Path) -> list[str]:
    """How to start the server for the runtime under test (which `executor` has found to work)."""
    return [sys.executable, "-m", "executor.cli", "mcp", "--skills", str(skills_root), "--runtime", runtime]


class Connection:
    """A client in an event loop of its own, for as many tests as like to use it."""

    def __init__(self, connect: Callable[[], contextlib.AbstractAsyncContextManager[Client]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stop: asyncio.Event | None = None
        self._ready: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._whole = asyncio.run_coroutine_threadsafe(self._live(connect), self._loop)
        self.client = self._ready.result(60)

    async def _live(self, connect: Callable[[], contextlib.AbstractAsyncContextManager[Client]]) -> None:
        self._stop = asyncio.Event()
        try:
            async with connect() as client:
                self._ready.set_result(client)
                await self._stop.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, 60), self._loop).result(90)

    def close(self) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._whole.result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def stdio(command: list[str], mode: str = "auto") -> Client:
    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    return Client(server, mode=mode)


@pytest.fixture(scope="module", params=[*ERAS, "http"])
def connection(request: pytest.FixtureRequest, command: list[str]) -> Iterator[Connection]:
    """A client over stdio, in each era of the protocol, and one over HTTP."""
    if request.param == "http":
        url = request.getfixturevalue("url")
        made = Connection(lambda: connected(url))
    else:
        made = Connection(lambda: stdio(command, request.param))
    yield made
    made.close()


async def ok(client: Client, name: str, /, **arguments: Any) -> dict[str, Any]:
    """The structured result. That it fits the tool's output schema is checked by the client."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result
    return dict(result.structured_content)


def on_this_machine(word: str) -> bool:
    """Whether a process with this argument lives here, in whatever sandbox."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in entry.read_bytes().split(b"\0"):
                return True
    return False


def unique_seconds() -> str:
    """A time for `sleep` that no other test sleeps."""
    return f"{secrets.randbelow(10**6) + 4000}.{secrets.randbelow(10**9):09}"


# -- stdio --


def test_a_client_lists_loads_runs_and_sees_a_picture(connection: Connection) -> None:
    async def work(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools)[:2] == ["skill_load", "skill_unload"] and len(tools) == 14
        for tool in tools.values():
            assert tool.input_schema["type"] == "object"
            assert tool.output_schema is not None and tool.output_schema["type"] == "object"
        catalogue = (client.instructions or "").partition("Available skills:\n")[2]
        assert "\n- heatmap-png: Draws" in "\n" + catalogue
        loaded = await ok(client, "skill_load", skill="heatmap-png")
        assert (loaded["skill"], loaded["already_loaded"]) == ("heatmap-png", False)
        table = "region,month,amount\nn,2024-01,1\ns,2024-02,2\n"
        await ok(client, "workspace_write_file", path="inputs/sales.csv", content=table)
        made = await ok(
            client,
            "workspace_exec",
            command="python3 scripts/heatmap.py inputs/sales.csv",
            cwd="skills/heatmap-png",
        )
        assert (made["status"], made["exit_code"]) == ("ok", 0), made
        result = await client.call_tool("workspace_read_file", {"path": "out/heatmap.png"})
        text, image = result.content
        assert (image.type, image.mime_type) == ("image", "image/png")
        assert re.fullmatch(r"out/heatmap\.png: image/png, \d+ bytes", text.text)
        assert image.data.startswith("iVBORw0KGgo")
        failed = await ok(client, "workspace_exec", command="echo no >&2; exit 7")
        assert (failed["status"], failed["exit_code"], failed["stderr"]) == ("error", 7, "no\n")
        wrong = await client.call_tool("workspace_exec", {"comand": "true"})
        assert wrong.is_error
        assert wrong.content[0].text.startswith("Error: workspace_exec: command is required")
        assert (await client.call_tool("no_such_tool", {})).is_error

    connection.run(work(connection.client))


def test_every_tool_answers_as_its_output_schema_says(connection: Connection) -> None:
    """The client compares; each tool is called once."""

    async def work(client: Client) -> None:
        await ok(client, "skill_load", skill="log-digest")
        await ok(client, "skill_list_docs", skill="log-digest")
        await ok(client, "skill_select_docs", skill="log-digest", docs=["references/digest-json.md"])
        await ok(client, "read_skill_resource", path="log-digest/SKILL.md")
        ran = await ok(client, "run_skill_script", name="log-digest", path="scripts/digest.sh")
        assert (ran["exit_code"], ran["style"], ran["pending"]) == (3, "cli", [])
        started = await ok(client, "workspace_exec", command="cat", background=True)
        looked = await ok(client, "workspace_write_stdin", session_id=started["session_id"], chars="x\n")
        assert looked["status"] == "running"
        await ok(client, "workspace_kill_session", session_id=started["session_id"])
        await ok(client, "workspace_write_file", path="out/a.txt", content="a\n")
        await ok(client, "workspace_edit_file", path="out/a.txt", old_text="a", new_text="b")
        await ok(client, "workspace_list_files", path="out")
        await ok(client, "workspace_read_file", path="out/a.txt")
        long = await ok(client, "workspace_exec", command="seq 10000")
        assert long["full_output"][0]["whole"] is True
        await ok(client, "skill_unload", skill="log-digest")

    connection.run(work(connection.client))


def test_a_long_call_reports_progress_and_cancelling_it_ends_its_command(connection: Connection) -> None:
    """trpc-53"""
    seconds = unique_seconds()
    told: list[tuple[float, str | None, bool]] = []

    async def work(client: Client) -> None:
        await ok(client, "workspace_exec", command="echo kept > work/x")
        with anyio.CancelScope() as scope:

            async def progress(done: float, total: float | None, message: str | None) -> None:
                told.append((done, message, on_this_machine(seconds)))
                scope.cancel()

            await client.call_tool(
                "workspace_exec", {"command": f"exec sleep {seconds}"}, progress_callback=progress
            )
        assert scope.cancelled_caught
        assert await asyncio.to_thread(eventually, lambda: not on_this_machine(seconds))
        assert (await ok(client, "workspace_exec", command="cat work/x"))["stdout"] == "kept\n"

    connection.run(work(connection.client))
    assert told[0][1:] == ("running for 1 s", True)
    assert 1 <= told[0][0] < 30


def test_skills_are_resources_and_prompts(connection: Connection) -> None:
    async def work(client: Client) -> None:
        uris = [resource.uri for resource in (await client.list_resources()).resources]
        assert "skill://log-digest/SKILL.md" in uris and uris == sorted(uris)
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "skill://{skill}/{+path}"
        (text,) = (await client.read_resource("skill://log-digest/SKILL.md")).contents
        assert text.text.startswith("---\nname: log-digest\n") and text.mime_type == "text/markdown"
        (doc,) = (await client.read_resource("skill://log-digest/references/digest-json.md")).contents
        assert doc.text.startswith("# digest.json")
        for uri in ("skill://ghost/SKILL.md", "skill://log-digest/..%2F..%2Fx", "file:///etc/passwd"):
            with pytest.raises(MCPError, match="there is no resource"):
                await client.read_resource(uri)
        assert "log-digest" in [prompt.name for prompt in (await client.list_prompts()).prompts]
        prompt = await client.get_prompt("log-digest", {"arguments": "read app.log"})
        (message,) = prompt.messages
        assert message.content.text.startswith('[Skill: log-digest]\n\n<skill_content name="log-digest"')
        assert message.content.text.endswith("\n\nread app.log")
        made = await ok(client, "workspace_exec", command="ls scripts", cwd="skills/log-digest")
        assert "digest.sh" in made["stdout"]
        with pytest.raises(MCPError, match="unknown skill"):
            await client.get_prompt("ghost")

    connection.run(work(connection.client))


HANDSHAKE: list[dict[str, Any]] = [
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
]


@pytest.mark.parametrize("stop", ["SIGTERM", "SIGKILL", "end of input"])
def test_the_sandbox_ends_with_the_server_and_stdout_holds_only_the_protocol(
    command: list[str], stop: str
) -> None:
    """trpc-64"""
    seconds = unique_seconds()
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    try:
        arguments = {"command": f"exec sleep {seconds}", "background": True}
        call = {"name": "workspace_exec", "arguments": arguments}
        server.stdin.write(b"this is no JSON\n\n")
        for message in (*HANDSHAKE, {"id": 2, "method": "tools/call", "params": call}):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        server.stdin.flush()
        answers = {}
        while 2 not in answers:
            line = server.stdout.readline()
            assert line, "the server has gone"
            answer = json.loads(line)
            assert answer["jsonrpc"] == "2.0"
            answers[answer.get("id")] = answer
        assert answers[1]["result"]["serverInfo"]["name"] == "executor"
        assert answers[2]["result"]["structuredContent"]["status"] == "running"
        assert eventually(lambda: on_this_machine(seconds))
        if stop == "end of input":
            server.stdin.close()
        else:
            server.send_signal(getattr(signal, stop))
        expected = {"SIGTERM": 143, "SIGKILL": -9, "end of input": 0}[stop]
        assert server.wait(15) == expected
        assert server.stdout.read() == b""
        assert eventually(lambda: not on_this_machine(seconds))
    finally:
        server.kill()
        server.wait()


# -- HTTP --


@contextlib.contextmanager
def serving(command: list[str], token: str = TOKEN) -> Iterator[str]:
    """The URL of a server."""
    server = subprocess.Popen(
        [*command, "--transport", "http", "--port", "0"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "EXECUTOR_MCP_TOKEN": token},
        text=True,
    )
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        assert "listening on " in line, line + server.stderr.read()
        yield line.split("listening on ")[1].strip()
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            assert server.wait(20) == 143
        finally:
            server.kill()


@pytest.fixture(scope="module")
def url(command: list[str]) -> Iterator[str]:
    with serving(command) as found:
        yield found


@contextlib.asynccontextmanager
async def connected(url: str, mode: str = "auto", token: str = TOKEN) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ERAS)
def test_each_connection_has_a_session_of_its_own(url: str, mode: str) -> None:
    """trpc-17, trpc-59"""

    async def work() -> None:
        async with connected(url, mode) as one, connected(url, mode) as two:
            assert one.protocol_version == two.protocol_version == "2025-11-25"
            await ok(one, "skill_load", skill="log-digest")
            await ok(one, "workspace_write_file", path="work/secret", content="x")
            started = await ok(one, "workspace_exec", command="sleep 600", background=True)
            assert (await ok(two, "skill_load", skill="log-digest"))["already_loaded"] is False
            assert (await ok(two, "workspace_exec", command="ls work"))["stdout"] == "inputs\n"
            foreign = await two.call_tool("workspace_kill_session", {"session_id": started["session_id"]})
            assert foreign.is_error and "unknown session_id" in foreign.content[0].text
            killed = await ok(one, "workspace_kill_session", session_id=started["session_id"])
            assert killed["status"] == "killed"

    run(work())


def test_a_sandbox_ends_with_its_connection_and_a_new_one_begins_empty(url: str) -> None:
    seconds = unique_seconds()

    async def work() -> None:
        async with connected(url) as client:
            await ok(client, "workspace_exec", command=f"touch work/mine; sleep {seconds}", background=True)
            assert await asyncio.to_thread(eventually, lambda: on_this_machine(seconds))
        assert await asyncio.to_thread(eventually, lambda: not on_this_machine(seconds))
        async with connected(url) as client:
            assert (await ok(client, "workspace_exec", command="ls work"))["stdout"] == "inputs\n"

    run(work())


def test_cancelling_and_progress_over_http(url: str) -> None:
    seconds = unique_seconds()
    told: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(done)

    async def work() -> None:
        async with connected(url) as client:
            with anyio.move_on_after(1.6) as scope:
                await client.call_tool(
                    "workspace_exec", {"command": f"exec sleep {seconds}"}, progress_callback=progress
                )
            assert scope.cancelled_caught
            assert await asyncio.to_thread(eventually, lambda: not on_this_machine(seconds))
            assert (await ok(client, "workspace_exec", command="echo still here"))["stdout"] == "still here\n"

    run(work())
    assert told


def _initialize(url: str, headers: dict[str, str]) -> httpx2.Response:
    usual = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    body = {"jsonrpc": "2.0", **HANDSHAKE[0]}
    return httpx2.post(url, headers={**usual, **headers}, json=body, timeout=20)


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
def test_without_the_token_there_is_nothing(url: str, given: str | None) -> None:
    answer = _initialize(url, {} if given is None else {"authorization": given})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json() == {"error": "a bearer token is needed"}


def test_a_page_of_the_web_does_not_get_in(url: str) -> None:
    good = {"authorization": f"Bearer {TOKEN}"}
    assert _initialize(url, good).status_code == 200
    assert _initialize(url, {**good, "host": "attacker.example"}).status_code in (403, 421)
    assert _initialize(url, {**good, "origin": "https://attacker.example"}).status_code == 403


def test_the_protocol_without_sessions_is_refused_with_those_that_are_served(url: str) -> None:
    answer = _initialize(url, {"authorization": f"Bearer {TOKEN}", "mcp-protocol-version": "2026-07-28"})
    assert answer.status_code == 400
    assert "2025-11-25" in answer.json()["error"]["data"]["supported"]


# -- without a sandbox --


def test_an_address_for_others_needs_a_token(skills_root: Path) -> None:
    executor = AsyncExecutor(skills=[skills_root], runtime="local")
    with pytest.raises(BadRequestError, match=r"0\.0\.0\.0 can be reached from other machines"):
        run(serve_http(executor, host="0.0.0.0"))


def test_loopback_without_a_token_and_another_profile(skills_root: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "executor.cli",
        "mcp",
        "--skills",
        str(skills_root),
        "--profile",
        "think",
    ]

    async def work(url: str) -> None:
        async with Client(url) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == ["activate_skill", "read_skill_resource", "run_skill_script"]
            result = await client.call_tool("activate_skill", {"name": "log-digest"})
            assert result.content[0].text.startswith('<skill_content name="log-digest"')

    with serving(command, token="") as url:
        run(work(url))
