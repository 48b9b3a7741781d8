"""Profiles: the same tools as other systems name them. Data, and functions from a result to a result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from executor.errors import BadRequestError
from executor.skills import prompt
from executor.skills.repository import Skill
from executor.tools.desk import Desk
from executor.tools.results import ToolResult


@dataclass(frozen=True)
class Offer:
    """A row of the table as one profile offers it."""

    tool: str
    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Their argument → ours. Not named ones keep their names."""
    hidden: tuple[str, ...] = ()
    """Arguments of ours that this profile does not have."""
    shape: Callable[[Desk, ToolResult], ToolResult] | None = None
    """What the profile makes of a result."""
    shaped: bool = False
    """The structured result is the profile's own, and not as the row's output model says."""
    description: str = ""
    """Instead of the row's."""


@dataclass(frozen=True)
class Profile:
    """A choice of tools with their names, and the words around the catalogue."""

    name: str
    offers: tuple[Offer, ...]
    header: str = prompt.HEADER
    guidance: str = prompt.GUIDANCE
    skill_id: Callable[[str], str] = str
    """A skill's slug as this profile writes it."""
    catalogue_in: str = ""
    """The tool whose description holds the catalogue, instead of the system text."""
    permissions: bool = False
    """`allowed-tools` of active skills limit the tools."""


def flow_id(slug: str) -> str:
    """`skill_<slug>`, with characters that a tool's name may have."""
    return "skill_" + "".join(c if c.isalnum() or c in "_-" else "_" for c in slug)


def _as_json(result: ToolResult, values: dict[str, Any]) -> ToolResult:
    return replace(result, text=json.dumps(values, ensure_ascii=False), structured=values)


def _sdk_load(desk: Desk, result: ToolResult) -> ToolResult:
    if result.is_error:
        message = result.structured["error"]["message"]
        name = message.removeprefix("unknown skill: ")
        wrong = f"Skill {name} not found" if name != message else message
        return _as_json(result, {"error": wrong})
    slug = result.structured["skill"]
    loaded = desk.state.get(slug)
    content = prompt.harmless(loaded.body).strip() if loaded else ""
    return _as_json(result, {"skillDirectory": f"/skills/{slug}", "content": content})


def _sdk_bash(_desk: Desk, result: ToolResult) -> ToolResult:
    if result.is_error:
        return result
    kept = {"stdout": "stdout", "stderr": "stderr", "exitCode": "exit_code"}
    values = {theirs: result.structured[ours] for theirs, ours in kept.items()}
    extra = [f"{file['stream']} is cut; see {file['path']}" for file in result.structured["full_output"]]
    notes = extra + (["timed out"] if result.structured["timed_out"] else [])
    return _as_json(result, {**values, **({"notes": notes} if notes else {})})


def _without_first_line(_desk: Desk, result: ToolResult) -> ToolResult:
    """`loaded: x` is trpc's."""
    if result.is_error:
        return result
    return replace(result, text=result.text.partition("\n")[2] or result.text)


_TRPC = tuple(
    Offer(name, name)
    for name in (
        "skill_load",
        "skill_unload",
        "skill_select_docs",
        "skill_list_docs",
        "read_skill_resource",
        "workspace_exec",
        "workspace_write_stdin",
        "workspace_kill_session",
        "workspace_list_files",
        "workspace_read_file",
        "workspace_write_file",
        "workspace_edit_file",
        "workspace_save_artifact",
    )
)

_PROFILES = (
    Profile("trpc", _TRPC),
    Profile(
        "think",
        (
            Offer(
                "skill_activate",
                "activate_skill",
                {"name": "skill"},
                hidden=("query",),
                shape=_without_first_line,
            ),
            Offer("read_skill_resource", "read_skill_resource", {"name": "skill"}),
        ),
        header="Call activate_skill with a skill's name before you use the skill. Available skills:\n",
        guidance="",
    ),
    Profile(
        "flow",
        (
            Offer("skill_activate", "loadSkill", {"skillId": "skill"}, shape=_without_first_line),
            Offer("skill_exit", "exitSkill"),
        ),
        header="Available skills (load one with loadSkill before you use its tools):",
        guidance="",
        skill_id=flow_id,
    ),
    Profile(
        "ai-sdk",
        (
            Offer(
                "skill_activate",
                "loadSkill",
                {"name": "skill"},
                hidden=("query",),
                shape=_sdk_load,
                shaped=True,
            ),
            Offer("workspace_read_file", "readFile", hidden=("start_line", "max_lines")),
            Offer("bash", "bash", shape=_sdk_bash, shaped=True),
        ),
        header="Use the `loadSkill` tool to load a skill when the user's request would benefit from its "
        "instructions.\n\nAvailable skills:",
        guidance="",
    ),
    Profile(
        "claude",
        (
            Offer("skill_invoke", "Skill", {"name": "skill"}),
            Offer("skill_catalogue", "SkillList"),
            Offer("bash", "Bash"),
            Offer(
                "workspace_read_file",
                "Read",
                {"file_path": "path", "offset": "start_line", "limit": "max_lines"},
            ),
            Offer("workspace_write_file", "Write", {"file_path": "path"}, hidden=("append",)),
            Offer(
                "workspace_edit_file",
                "Edit",
                {"file_path": "path", "old_string": "old_text", "new_string": "new_text"},
            ),
        ),
        guidance="",
        catalogue_in="Skill",
        permissions=True,
    ),
)
PROFILES: dict[str, Profile] = {profile.name: profile for profile in _PROFILES}


def profile(name: str) -> Profile:
    """A profile by name. BadRequestError."""
    if name not in PROFILES:
        raise BadRequestError(f"there is no profile {name!r}", hint=f"Profiles: {', '.join(PROFILES)}.")
    return PROFILES[name]


def skill_named(profile: Profile, skills: list[Skill], text: str) -> str:
    """The slug that a profile's id means; the text itself when it is none of them."""
    ids = {profile.skill_id(skill.slug): skill.slug for skill in skills}
    return ids.get(text, text)
