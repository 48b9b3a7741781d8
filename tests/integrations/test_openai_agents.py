"""The shell, the editor and the tools in the OpenAI Agents SDK, on every runtime."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="dev/setup.sh test installs it")

from agents import set_tracing_disabled
from agents.editor import ApplyPatchEditor, ApplyPatchOperation
from agents.testing import ScriptedModel, assistant_message, function_call
from examples import Examples

from executor import AsyncExecutor, Executor
from executor.integrations.openai_agents import Editor

set_tracing_disabled(True)


def shell_call(call_id: str, *commands: str, **action: Any) -> dict[str, Any]:
    """What a model with the hosted shell answers."""
    action = {"commands": list(commands), **action}
    return {"type": "shell_call", "id": call_id, "call_id": call_id, "status": "completed", "action": action}


def patch_call(call_id: str, **operation: str) -> dict[str, Any]:
    return {
        "type": "apply_patch_call",
        "id": call_id,
        "call_id": call_id,
        "status": "completed",
        "operation": operation,
    }


def outputs(answer: Any) -> list[Any]:
    return [item.output for item in answer.new_items if item.type.endswith("call_output_item")]


def test_a_shell_and_an_editor(examples: Examples) -> None:
    digest = "cd /skills/log-digest && scripts/digest.sh /workspace/inputs/app.log"
    model = ScriptedModel(
        [
            [patch_call("p1", type="create_file", path="inputs/app.log", diff="+ERROR one\n+INFO two\n")],
            [
                patch_call(
                    "p2", type="update_file", path="inputs/app.log", diff="@@\n-ERROR one\n+ERROR uno\n"
                )
            ],
            [patch_call("p3", type="update_file", path="inputs/app.log", diff="@@\n-not there\n+x\n")],
            [shell_call("s1", "cat inputs/app.log", "exit 7", digest)],
            [shell_call("s2", "echo begun; sleep 9", "echo never", timeout_ms=500)],
            [assistant_message("done")],
        ]
    )
    answer = examples.run("OpenAI Agents SDK", model=model)["answer"]
    assert answer.final_output == "done"
    created, updated, wrong, ran, late = map(str, outputs(answer))
    assert "created inputs/app.log" in created and "updated inputs/app.log" in updated
    assert "inputs/app.log: " in wrong
    assert "ERROR uno\nINFO two" in ran and "7" in ran and "digest" in ran
    assert "begun" in late and "timeout" in late.lower() and "never" not in late


def test_the_tools_as_functions(examples: Examples) -> None:
    calls = [
        ("skill_load", {"skill": "log-digest"}),
        ("workspace_exec", {"command": "echo $((6 * 7))"}),
        ("workspace_exec", {"comand": "true"}),
    ]
    steps = [[function_call(name, args, call_id=str(number))] for number, (name, args) in enumerate(calls)]
    model = ScriptedModel([*steps, [assistant_message("done")]])
    answer = examples.run("OpenAI Agents SDK", 1, model=model)["answer"]
    loaded, ran, wrong = map(str, outputs(answer))
    assert '<skill_content name="log-digest"' in loaded
    assert "42" in ran and "command is required" in wrong
    assert "- log-digest: " in model.calls[0].system_instructions


def test_a_picture_is_one(examples: Examples) -> None:
    calls = [
        ("workspace_exec", {"command": "printf '\\211PNG\\r\\n\\032\\n' > out/a.png"}),
        ("workspace_read_file", {"path": "out/a.png"}),
    ]
    steps = [[function_call(name, args, call_id=str(number))] for number, (name, args) in enumerate(calls)]
    answer = examples.run("OpenAI Agents SDK", 1, model=ScriptedModel([*steps, [assistant_message("done")]]))[
        "answer"
    ]
    _, image = outputs(answer)[1]
    assert image.image_url.startswith("data:image/png;base64,iVBORw0KGgo")


def test_the_editor_moves_and_deletes(executor: Executor, runtime: str, skills_root: Path) -> None:
    async def work() -> None:
        async with AsyncExecutor(skills=[skills_root], runtime=runtime) as own, own.session() as session:
            editor = Editor(session)
            assert isinstance(editor, ApplyPatchEditor)
            await session.put("a.txt", "one\r\ntwo\r\n")
            move = ApplyPatchOperation("update_file", "a.txt", "@@\n one\n-two\n+zwei\n", move_to="b/c.txt")
            assert (await editor.update_file(move)).status == "completed"
            assert await session.read("b/c.txt") == b"one\r\nzwei\r\n"
            assert await session.stat("a.txt") is None
            gone = await editor.delete_file(ApplyPatchOperation("delete_file", "b/c.txt"))
            assert gone.status == "completed" and await session.stat("b/c.txt") is None
            for operation in (
                ApplyPatchOperation("delete_file", "b/c.txt"),
                ApplyPatchOperation("delete_file", "/etc/passwd"),
                ApplyPatchOperation("delete_file", "b"),
            ):
                failed = await editor.delete_file(operation)
                assert failed.status == "failed" and operation.path in str(failed.output)
            binary = ApplyPatchOperation("update_file", "raw", "@@\n-a\n+b\n")
            await session.put("raw", b"\xff")
            assert (await editor.update_file(binary)).status == "failed"
            assert await session.read("raw") == b"\xff"

    asyncio.run(asyncio.wait_for(work(), 120))
