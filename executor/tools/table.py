"""The one table of tools: name, what the model reads, arguments, result, handler.

Profiles (`profiles.py`) choose rows of it and rename them; nothing else makes a tool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from executor.tools import commands, files, inputs, invoke, knowledge, outputs, scripts
from executor.tools.desk import Desk
from executor.tools.results import ToolResult

Needs = Literal["skills", "scripts", "sandbox", "artifacts"]
"""`skills`: at least one skill. All else is left out in knowledge-only mode: `sandbox`; `scripts`, which also
needs a skill; `artifacts`, which needs a store.
"""


@dataclass(frozen=True)
class Tool:
    """One row."""

    name: str
    needs: Needs
    description: str
    input: type[inputs.Arguments]
    output: type[BaseModel]
    handler: Callable[[Desk, Any], Awaitable[ToolResult]]
    read_only: bool = False
    """It changes neither the workspace nor what is loaded."""


_ROWS = (
    Tool(
        "skill_load",
        "skills",
        "Load a skill: shows its instructions and its list of files, and puts its files at skills/<name>. "
        "Do this before working on a task that the skill's description matches.",
        inputs.LoadSkill,
        outputs.SkillLoaded,
        knowledge.skill_load,
    ),
    Tool(
        "skill_activate",
        "skills",
        "Load a skill by name: shows its instructions and its list of files.",
        inputs.ActivateSkill,
        outputs.SkillLoaded,
        knowledge.activate_skill,
    ),
    Tool(
        "skill_invoke",
        "skills",
        "Invoke a skill by name, with arguments if it takes any. Its instructions are the result.",
        inputs.InvokeSkill,
        outputs.SkillInvoked,
        invoke.skill_invoke,
    ),
    Tool(
        "skill_catalogue",
        "skills",
        "List the skills with what a user types for them, their arguments and when to use them.",
        inputs.NoArguments,
        outputs.SkillsListed,
        invoke.skill_catalogue,
        read_only=True,
    ),
    Tool(
        "skill_unload",
        "skills",
        "Take a skill out when it is not needed any more.",
        inputs.UnloadSkill,
        outputs.SkillUnloaded,
        knowledge.skill_unload,
    ),
    Tool(
        "skill_exit",
        "skills",
        "Leave the skill that was activated last. Tools that only it brought cannot be called after that.",
        inputs.ExitSkill,
        outputs.SkillUnloaded,
        knowledge.exit_skill,
    ),
    Tool(
        "skill_select_docs",
        "skills",
        "Choose which documents of a loaded skill are shown: add, replace or clear.",
        inputs.SelectDocs,
        outputs.DocsSelected,
        knowledge.skill_select_docs,
    ),
    Tool(
        "skill_list_docs",
        "skills",
        "List the documents of a skill that can be selected.",
        inputs.ListDocs,
        outputs.DocsListed,
        knowledge.skill_list_docs,
        read_only=True,
    ),
    Tool(
        "read_skill_resource",
        "skills",
        "Show one file of a skill, such as references/format.md. Pictures are shown as pictures.",
        inputs.ReadResource,
        outputs.ResourceRead,
        knowledge.read_skill_resource,
        read_only=True,
    ),
    Tool(
        "run_skill_script",
        "scripts",
        "Run a script of a skill with an input and return what it gives back, what it wrote and its files in "
        "out/. It may call the tools that were granted.",
        inputs.RunScript,
        outputs.ScriptOutput,
        scripts.run_skill_script,
    ),
    Tool(
        "workspace_exec",
        "sandbox",
        "Run a shell command in the sandbox. It starts in /workspace, has no network, and its output comes "
        "back cut in the middle when it is long, with the file that holds all of it. With background, tty or "
        "yield_time_ms it may go on after the call and then has a session_id.",
        inputs.Exec,
        outputs.ExecOutput,
        commands.workspace_exec,
    ),
    Tool(
        "bash",
        "sandbox",
        "Run a shell command in the sandbox and return what it wrote. It starts in /workspace.",
        inputs.BashCommand,
        outputs.ExecOutput,
        commands.bash,
    ),
    Tool(
        "workspace_write_stdin",
        "sandbox",
        "Write to a command that goes on, and return its new output. With nothing to write it only looks. "
        "Can also send a signal, end of file, or a new size of its terminal.",
        inputs.WriteStdin,
        outputs.ExecOutput,
        commands.workspace_write_stdin,
    ),
    Tool(
        "workspace_kill_session",
        "sandbox",
        "End a command that goes on, and everything it started.",
        inputs.KillSession,
        outputs.SessionKilled,
        commands.workspace_kill_session,
    ),
    Tool(
        "workspace_list_files",
        "sandbox",
        "List files of the workspace (inputs, work, out, runs) or of a loaded skill (skills/<name>).",
        inputs.ListFiles,
        outputs.FilesListed,
        files.workspace_list_files,
        read_only=True,
    ),
    Tool(
        "workspace_read_file",
        "sandbox",
        "Show lines of a text file of the workspace, or a picture (PNG, JPEG, GIF, WebP).",
        inputs.ReadFile,
        outputs.FileRead,
        files.workspace_read_file,
        read_only=True,
    ),
    Tool(
        "workspace_write_file",
        "sandbox",
        "Write a text file in the workspace, over what is there or behind it.",
        inputs.WriteFile,
        outputs.FileWritten,
        files.workspace_write_file,
    ),
    Tool(
        "workspace_edit_file",
        "sandbox",
        "Replace a piece of text in a file of the workspace. It has to be there exactly once.",
        inputs.EditFile,
        outputs.FileEdited,
        files.workspace_edit_file,
    ),
    Tool(
        "workspace_save_artifact",
        "artifacts",
        "Keep a file from work/, out/ or runs/ beyond this session, as a new version of an artifact.",
        inputs.SaveArtifact,
        outputs.ArtifactSaved,
        files.workspace_save_artifact,
    ),
)
TABLE: dict[str, Tool] = {tool.name: tool for tool in _ROWS}
