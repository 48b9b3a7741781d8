"""For the OpenAI Agents SDK: a shell and an editor for patches on a session, and a `SkillToolset`'s tools.

    Agent(name="…", tools=[await shell_tool(session, skills=["notes"]), ApplyPatchTool(Editor(session))])
    Agent(name="…", instructions=tools.system_prompt(), tools=function_tools(tools))

Commands run as the sandbox's user in the session; nothing of the machine that the agent runs on can be named.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agents import (
    FunctionTool,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellCommandRequest,
    ShellResult,
    ShellTool,
    ShellToolLocalSkill,
    ToolOutputImage,
    ToolOutputText,
    apply_diff,
)
from agents.editor import ApplyPatchOperation, ApplyPatchResult

from executor.errors import ExecutorError
from executor.integrations.files import perform, reading, removing, writing
from executor.session import AsyncSession
from executor.skills.document import parse
from executor.tools import SkillToolset

MOST = 16 << 20  # bytes of a file that is patched


class Shell:
    """The `executor` of a `ShellTool`. Each command is a run of its own; the files stay."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def __call__(self, request: ShellCommandRequest) -> ShellResult:
        """Run the commands one after the other, to the end of the list or to one that takes too long."""
        action = request.data.action
        timeout = action.timeout_ms / 1000 if action.timeout_ms else None
        done = []
        for command in action.commands:
            result = await self.session.exec(command, timeout=timeout, max_output=action.max_output_length)
            outcome = ShellCallOutcome("timeout" if result.timed_out else "exit", result.exit_code)
            done.append(ShellCommandOutput(result.stdout, result.stderr, outcome, command))
            if result.timed_out:
                break
        return ShellResult(done, max_output_length=action.max_output_length)


class Editor:
    """The `editor` of an `ApplyPatchTool`. Relative paths are below `/workspace`."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """A new file, its folders made."""
        return await self._try(operation, self._create)

    async def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """A file as the diff makes it, and at its new place if the operation has one."""
        return await self._try(operation, self._update)

    async def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """No file."""
        return await self._try(operation, self._delete)

    async def _create(self, operation: ApplyPatchOperation) -> str:
        text = apply_diff("", operation.diff or "", mode="create")
        await perform(self.session, writing(operation.path, text.encode()))
        return f"created {operation.path}"

    async def _update(self, operation: ApplyPatchOperation) -> str:
        before = (await perform(self.session, reading(operation.path, most=MOST))).decode("utf-8")
        place = operation.move_to or operation.path
        await perform(self.session, writing(place, apply_diff(before, operation.diff or "").encode()))
        if place != operation.path:
            await perform(self.session, removing(operation.path))
        return f"updated {place}"

    async def _delete(self, operation: ApplyPatchOperation) -> str:
        await perform(self.session, removing(operation.path))
        return f"deleted {operation.path}"

    async def _try(self, operation: ApplyPatchOperation, change: Any) -> ApplyPatchResult:
        try:
            return ApplyPatchResult("completed", await change(operation))
        except (OSError, ValueError, ExecutorError) as error:  # also a diff that does not fit
            return ApplyPatchResult("failed", f"{operation.path}: {error}")


async def shell_tool(session: AsyncSession, *, skills: Iterable[str] = ()) -> ShellTool:
    """A shell in the session, in whose sandbox these skills lie and of which the model is told.

    SkillNotFoundError, SkillUnreadableError.
    """
    told: list[ShellToolLocalSkill] = []
    for name in skills:
        place = await session.load(name)
        document = parse(await session.read(f"{place}/SKILL.md"), folder=place.rpartition("/")[2])
        told.append({"name": document.name, "description": document.description, "path": place})
    return ShellTool(executor=Shell(session), environment={"type": "local", "skills": told})


def function_tools(tools: SkillToolset) -> list[FunctionTool]:
    """The tools of a `SkillToolset` as they are now. Call its `begin_turn` for each turn of the user's."""
    return [
        FunctionTool(
            name=one["name"],
            description=one["description"],
            params_json_schema=one["input"],
            on_invoke_tool=_caller(tools, one["name"]),
            strict_json_schema=False,
        )
        for one in tools.definitions("json-schema")
    ]


def _caller(tools: SkillToolset, name: str) -> Any:
    async def call(_context: Any, arguments: str) -> Any:
        result = await tools.call(name, arguments)
        if not result.images:
            return result.text
        pictures = [
            ToolOutputImage(image_url=f"data:{image.mime};base64,{image.base64}") for image in result.images
        ]
        return [ToolOutputText(text=result.text), *pictures]

    return call
