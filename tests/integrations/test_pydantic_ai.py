"""The tools in Pydantic AI, on every runtime."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="dev/setup.sh test installs it")

from examples import Examples
from pydantic_ai import BinaryContent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

CSV = "region,month,amount\nn,2024-01,1\ns,2024-02,2\n"
DRAW = "python3 scripts/heatmap.py inputs/sales.csv"


class Scripted:
    """A model that makes these calls one after the other and keeps what it was told."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self._calls = [ModelResponse([ToolCallPart(name, args)]) for name, args in calls]
        self.told: list[AgentInfo] = []
        self.model = FunctionModel(self._say)

    def _say(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.told.append(info)
        return self._calls.pop(0) if self._calls else ModelResponse([TextPart("done")])


def test_an_agent_uses_it(examples: Examples) -> None:
    script = Scripted(
        ("skill_load", {"skill": "heatmap-png"}),
        ("workspace_write_file", {"path": "inputs/sales.csv", "content": CSV}),
        ("workspace_exec", {"command": DRAW, "cwd": "skills/heatmap-png"}),
        ("workspace_read_file", {"path": "out/heatmap.png"}),
        ("workspace_exec", {"command": "exit 7"}),
        ("workspace_exec", {"comand": "true"}),
        ("skill_load", {"skill": "ghost"}),
    )
    answer = examples.run("Pydantic AI", model=script.model)["answer"]
    assert answer.output == "done"
    parts = [part for message in answer.all_messages() for part in message.parts]
    loaded, _, drawn, picture, failed, wrong, ghost = [
        part for part in parts if part.part_kind == "tool-return"
    ]
    assert '<skill_content name="heatmap-png"' in loaded.content
    assert drawn.metadata["status"] == "ok"
    text, image = picture.content
    assert "image/png" in text
    assert isinstance(image, BinaryContent) and image.data.startswith(b"\x89PNG") and image.is_image
    assert (failed.outcome, failed.metadata["exit_code"]) == ("success", 7)
    assert wrong.outcome == ghost.outcome == "failed"
    assert "command is required" in wrong.content and "ghost" in ghost.content
    first, last = script.told[0], script.told[-1]
    assert [tool.name for tool in first.function_tools][:2] == ["skill_load", "skill_unload"]
    assert "heatmap-png" in (first.instructions or "")
    assert first.instructions == last.instructions
