"""The tools for Pydantic AI: `Agent(model, toolsets=[ExecutorToolset(tools)])`.

A run of the agent is a turn of the conversation: skills that are loaded for a turn end with it. The session,
and what the tools know of it, are those of the `SkillToolset`, and live as long as that.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai import BinaryContent, RunContext, ToolDefinition, ToolReturn
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import InstructionPart
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from executor.tools import SkillToolset

# The tools look at their arguments themselves, and say more about a wrong one than its place.
ANY = SchemaValidator(core_schema.any_schema())


class ExecutorToolset(AbstractToolset[Any]):
    """A `SkillToolset` as a toolset of agents with any kind of dependencies. `id` names it in an agent."""

    def __init__(self, tools: SkillToolset, *, id: str = "executor") -> None:
        self.tools = tools
        self._id = id

    @property
    def id(self) -> str:
        """Its name in the agent."""
        return self._id

    async def for_run(self, ctx: RunContext[Any]) -> ExecutorToolset:
        """A new turn."""
        await self.tools.begin_turn()
        return self

    async def get_instructions(self, ctx: RunContext[Any]) -> InstructionPart | None:
        """What the model is told of the skills and the workspace. The same in every request of a run."""
        text = self.tools.begin_request()
        return InstructionPart(text) if text else None

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools of the profile."""
        return {
            one["name"]: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=one["name"], description=one["description"], parameters_json_schema=one["input"]
                ),
                max_retries=ctx.max_retries,
                args_validator=ANY,
            )
            for one in self.tools.definitions("json-schema")
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """The text of the result, and its pictures; the structured result, for the application, is the
        return's `metadata`. ToolFailed, which the model sees, for a call that was wrong.
        """
        result = await self.tools.call(name, tool_args)
        if result.is_error:
            raise ToolFailed(result.text)
        shown = [BinaryContent(image.data, media_type=image.mime) for image in result.images]
        value = [result.text, *shown] if shown else result.text
        return ToolReturn(return_value=value, metadata=result.structured)
