"""Code that calls granted tools as functions, several at once, in Python and Node."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from executor import BadRequestError, Grant, Session, ToolContext, ToolSpec, tool

ended: list[str] = []


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def slow(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return "done"


GRANT = Grant(tools=[add, slow])


def test_python_code(shared: Session) -> None:
    """trpc-1.13.7"""
    result = shared.execute_code(
        """
total = 0
for n in input["numbers"]:
    total = await add(a=total, b=n)
print("total", total)
await output.write_file("total.txt", str(total))
{"total": total, "same": await call_tool("add", a=1, b=2), "other": await tools.add({"a": 2, "b": 2})}
""",
        input={"numbers": [1, 2, 3]},
        grant=GRANT,
    )
    assert result.status == "ok", result.stderr
    assert result.result == {"total": 6, "same": 3, "other": 4}
    assert result.stdout == "total 6\n"
    assert [file.path for file in result.files] == ["out/total.txt"]
    assert [call.name for call in result.tool_calls] == ["add"] * 5


def test_node_code(shared: Session) -> None:
    result = shared.execute_code(
        """
import { sep } from 'node:path';
let total = 0;
for (const n of input.numbers) total = await add({ a: total, b: n });
console.log('total', total);
export default { total, same: await callTool('add', { a: 1, b: 2 }), sep };
""",
        language="node",
        input={"numbers": [1, 2, 3]},
        grant=GRANT,
    )
    assert result.status == "ok", result.stderr
    assert (result.result, result.stdout) == ({"total": 6, "same": 3, "sep": "/"}, "total 6\n")


def test_several_calls_in_flight(shared: Session) -> None:
    python = "t = __import__('time').monotonic()\n"
    python += (
        "await asyncio.gather(*(slow(seconds=0.5) for _ in range(16)))\n__import__('time').monotonic() - t"
    )
    assert shared.execute_code(python, grant=GRANT).result < 4
    node = "const t = performance.now();\n"
    node += "await Promise.all(Array.from({ length: 16 }, () => slow({ seconds: 0.5 })));\n"
    node += "export default performance.now() - t;\n"
    assert shared.execute_code(node, language="node", grant=GRANT).result < 4000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("1 + 1", 2),
        ("x = 1", None),
        ("if True:\n    5", None),
        ("None", None),
        ("'a\\nb'", "a\nb"),
    ],
)
def test_the_value_is_the_last_expression(shared: Session, text: str, value: Any) -> None:
    result = shared.execute_code(text)
    assert (result.status, result.result) == ("ok", value)


def test_errors_name_the_line(shared: Session) -> None:
    result = shared.execute_code("x = 1\n\nraise ValueError('no')\n")
    assert (result.status, result.exit_code) == ("error", 1)
    assert 'File "<code>", line 3' in result.stderr
    assert "raise ValueError('no')" in result.stderr
    assert result.error is not None
    assert result.error.code == "ValueError"
    broken = shared.execute_code("x = = 1\n")
    assert broken.status == "error"
    assert "SyntaxError" in broken.stderr


def test_trpc_65_errors_of_tools_are_runtime_errors(shared: Session) -> None:
    """trpc-65"""
    text = """
seen = []
for act in (lambda: call_tool("add", a=1), lambda: call_tool("other"), lambda: add(a="x", b=1)):
    try:
        await act()
    except RuntimeError as error:
        seen.append(error.code)
print('{"ok":true,"value":"forged"}')
seen
"""
    result = shared.execute_code(text, grant=GRANT)
    assert result.result == ["TOOL_INPUT_INVALID", "TOOL_NOT_FOUND", "TOOL_INPUT_INVALID"]


def test_trpc_65_endless_code_is_ended_and_its_calls_with_it(shared: Session) -> None:
    """trpc-65"""
    ended.clear()

    async def waits(value: Any, ctx: ToolContext) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    grant = Grant(tools=[ToolSpec("waits", "", {"type": "object"}, waits)])
    before = time.monotonic()
    result = shared.execute_code(
        "task = asyncio.ensure_future(waits())\nawait task", grant=grant, timeout=1.0
    )
    assert (result.status, ended) == ("timeout", ["cancelled"])
    assert shared.execute_code("while True: pass", timeout=0.3).status == "timeout"
    assert time.monotonic() - before < 30
    with pytest.raises(BadRequestError, match="9 bytes, at most 8"):
        shared.execute_code("x = 1 + 2", max_code=8)
