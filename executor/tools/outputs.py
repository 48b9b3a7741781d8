"""The structured results of every tool, as models: where output schemas come from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from executor.bridge.scripts import ScriptError, ToolCall
from executor.models import ExecResult


class Output(BaseModel):
    """What every structured result has in common."""

    model_config = ConfigDict(extra="forbid")


class ResourceInfo(Output):
    path: str
    kind: str
    size: int
    encoding: str


class SkillLoaded(Output):
    skill: str
    version: str
    digest: str
    already_loaded: bool
    docs: list[str]
    include_all_docs: bool
    resources: list[ResourceInfo]
    warnings: list[str]


class SkillInvoked(Output):
    skill: str
    version: str
    context: Literal["inline", "fork"]
    model: str
    allowed_tools: list[str]


class ListedSkill(Output):
    name: str
    triggers: list[str]
    arguments: list[str]
    description: str
    when_to_use: str


class SkillsListed(Output):
    skills: list[ListedSkill]


class SkillUnloaded(Output):
    skill: str | None
    loaded: list[str]


class DocsSelected(Output):
    skill: str
    selected_docs: list[str]
    include_all_docs: bool
    mode: str


class DocsListed(Output):
    skill: str
    docs: list[str]


class ResourceRead(Output):
    skill: str
    path: str
    kind: str
    encoding: str
    mime: str
    size: int
    offset: int
    next_offset: int | None
    """Where to go on; None at the end."""
    content: str | None
    """Text; None for what is shown as an image or is binary."""


FullStream = Literal["stdout", "stderr", "result"]


class FullOutput(Output):
    """A workspace file with output that was too long to show."""

    stream: FullStream
    path: str
    bytes: int
    whole: bool
    """False: it was even too long for the file, which holds its beginning and its end."""


class ExecOutput(ExecResult):
    """An `ExecResult` with what a session adds. `session_id` is the command's, for workspace_write_stdin."""

    session_id: str = ""
    """'' when the command ran to its end in this call: there is nothing to talk to."""
    offset: int = 0
    """Bytes of output that earlier calls have shown."""
    next_offset: int = 0
    total_bytes: int = 0
    """Bytes that the command has written."""
    truncated: bool = False
    """Something is not shown; `full_output` says where it is."""
    full_output: list[FullOutput] = Field(default_factory=list)


class ScriptOutput(ExecOutput):
    """How a skill's script ended, or what it waits for (`status` `awaiting_approval`, `pending`)."""

    result: Any = None
    """What a function returned; None for a program, and for what `full_output` holds."""
    error: ScriptError | None = None
    style: Literal["function", "cli"] = "cli"
    language: Literal["python", "node", "bash"] = "python"
    tool_calls: list[ToolCall] = Field(default_factory=list)
    skill: str = ""
    skill_digest: str = ""
    script: str = ""


class SessionKilled(Output):
    ok: bool
    session_id: str
    status: Literal["killed", "exited"]
    exit_code: int | None
    stdout: str
    stderr: str


class FileEntry(Output):
    path: str
    type: Literal["file", "folder", "link", "other"]
    size: int


class FilesListed(Output):
    path: str
    entries: list[FileEntry]
    truncated: bool


class FileRead(Output):
    path: str
    size: int
    mime: str
    content: str | None
    """Text; None for what is shown as an image or is binary."""
    start_line: int
    lines: int
    total_lines: int
    truncated: bool


class FileWritten(Output):
    path: str
    size: int


class FileEdited(Output):
    path: str
    replaced: int
    size: int


class ArtifactSaved(Output):
    path: str
    saved_as: str
    version: int
    ref: str
    mime_type: str
    size_bytes: int
