"""A real MCP server process: its tools, granted by name, are called from scripts of each language."""
# ruff: noqa: E501 (the server inside is a file of its own)

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor import BadRequestError, Executor, Grant, GrantError, Session
from executor.bridge.mcp import McpServer

pytest.importorskip("mcp")

SERVER = """
import anyio, mcp.types as types
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}

async def list_tools(ctx, params):
    return types.ListToolsResult(tools=[
        types.Tool(name="mcp-add", description="Adds.", input_schema=SCHEMA),
        types.Tool(name="mcp-fail", description="Fails.", input_schema={"type": "object"}),
    ])

async def call_tool(ctx, params):
    if params.name == "mcp-fail":
        return types.CallToolResult(content=[types.TextContent(type="text", text="it is full")], is_error=True)
    total = params.arguments["a"] + params.arguments["b"]
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=str(total))], structured_content={"sum": total})

server = Server("adder", on_list_tools=list_tools, on_call_tool=call_tool)

async def main():
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpServer]:
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(textwrap.dedent(SERVER))
    with McpServer([sys.executable, path]) as opened:
        yield opened


def test_tools_of_a_server_in_each_language(shared: Session, server: McpServer) -> None:
    assert server.names == ["mcp-add", "mcp-fail"]
    grant = Grant(tools=server.tools("mcp-add"))
    shared.put("work/m.py", "from skill_tools import tools\nprint(tools.mcp_add(a=1, b=2)['sum'])\n")
    shared.put(
        "work/m.mjs",
        "import { tools } from 'skill-tools';\nconsole.log((await tools.mcp_add({ a: 3, b: 4 })).sum);\n",
    )
    result = shared.exec("python3 work/m.py; node work/m.mjs; tool mcp-add a:=5 b:=6", grant=grant)
    assert result.stdout == '3\n7\n{"sum": 11}\n', result.stderr
    refused = shared.exec("tool mcp-fail; tool mcp-add a=x", grant=grant)
    assert "Tool not available: mcp-fail" in refused.stderr
    assert "is not of type 'integer'" in refused.stderr


SCRIPTS = {
    "m.py": "def run(input, ctx):\n    return ctx.tools.mcp_add(a=input['a'], b=2)['sum']\n",
    "a.py": "async def run(input, ctx):\n    return (await ctx.tools.call('mcp-add', {'a': input['a'], 'b': 2}))['sum']\n",
    "m.mjs": "export default async (input, ctx) => (await ctx.tools.mcp_add({ a: input.a, b: 2 })).sum;\n",
    "m.cjs": "module.exports = async (input, ctx) => (await ctx.tools.mcp_add({ a: input.a, b: 2 })).sum;\n",
    "m.ts": "interface Sum { sum: number }\nexport default async (input: { a: number }, ctx: any): Promise<number> =>\n"
    "  ((await ctx.tools.call('mcp-add', { a: input.a, b: 2 })) as Sum).sum;\n",
    "m.sh": "tool mcp-add a:=40 b:=2\n",
}


def test_scripts_of_each_language_call_it(executor: Executor, skills_root: Path, server: McpServer) -> None:
    folder = skills_root / "caller"
    (folder / "scripts").mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text("---\nname: caller\ndescription: d\n---\nb\n")
    for name, text in SCRIPTS.items():
        (folder / "scripts" / name).write_text(text)
    with executor.session() as session:
        grant = Grant(tools=server.tools("mcp-add"))
        for name in SCRIPTS:
            result = session.script("caller", f"scripts/{name}", input={"a": 40}, grant=grant)
            if name == "m.sh":
                assert (result.style, result.stdout) == ("cli", '{"sum": 42}\n'), result.stderr
            else:
                assert (result.style, result.result) == ("function", 42), (name, result.stderr)
            assert [call.name for call in result.tool_calls] == ["mcp-add"]


def test_an_error_of_the_server_is_told(shared: Session, server: McpServer) -> None:
    result = shared.exec("tool mcp-fail", grant=Grant(tools=server.tools("mcp-fail")))
    assert result.exit_code == 1
    assert "mcp-fail: it is full [TOOL_FAILED]" in result.stderr


def test_what_a_server_does_not_have(server: McpServer, tmp_path: Path) -> None:
    assert server.tools() == []
    with pytest.raises(GrantError, match="has no tool 'other'"):
        server.tools("other")
    with pytest.raises(BadRequestError, match="did not start"), McpServer([tmp_path / "nothing"]):
        pass
    with pytest.raises(BadRequestError, match="did not start"), McpServer([sys.executable, "-c", "pass"]):
        pass
