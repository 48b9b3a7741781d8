"""Profiles: the same tools as other systems name them. Data, and functions from a result to a result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from executor.bridge.scripts import ScriptResult
from executor.errors import BadRequestError
from executor.skills import prompt
from executor.skills.repository import Skill
from executor.skills.state import Mode
from executor.tools.desk import Desk
from executor.tools.results import ToolResult
from executor.workspace.text import printable


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
    require_loaded: bool = False
    """Scripts of a skill can be run only while it is loaded."""
    mode: Mode = "turn"
    """How long a load lives unless the application says."""
    nested: bool = False
    """A skill that others name in `allowed-tools`, as `Skill(name)`, can be loaded only while one of these is
    active, and is in no catalogue."""


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


def _think_error(_desk: Desk, result: ToolResult) -> ToolResult:
    """An unknown skill as that system says it."""
    if not result.is_error:
        return result
    error = dict(result.structured["error"])
    name = error["message"].removeprefix("unknown skill: ")
    if name == error["message"]:
        return result
    error["message"] = f"Skill not found: {name[1:-1]}"
    text = result.text.replace(f"unknown skill: {name}", error["message"], 1)
    return replace(result, text=text, structured={"error": error})


def _think_load(desk: Desk, result: ToolResult) -> ToolResult:
    """The text between tags, and behind it the list of files as lines."""
    if result.is_error:
        return _think_error(desk, result)
    text = result.text.partition("\n")[2]
    if "</skill_content>" not in text:
        return replace(result, text=text)  # it is active already
    lines = [
        f"- {prompt.one_line(one['path'])} ({one['kind']}, {one['encoding']}, {one['size']} bytes)"
        for one in result.structured["resources"]
    ]
    listed = ["Bundled resources:", *lines] if lines else ["No bundled resources."]
    body = text.rpartition("</skill_content>")[0] + "</skill_content>"
    return replace(result, text="\n".join([body, *listed]))


def _think_script(desk: Desk, result: ToolResult) -> ToolResult:
    """The value of a function, the streams of a program, and files and logs only when there are any."""
    if result.is_error:
        return _think_error(desk, result)
    made = result.structured
    if made["status"] in ("awaiting_approval", "lost"):
        return result
    fields = {name: made[name] for name in ScriptResult.model_fields if name in made}
    value = ScriptResult.model_validate(fields).as_think()
    if isinstance(value, dict) and set(value) == {"error"}:
        text = f"Skill script failed: {value['error']}"
        if made["error"] is None and made["stderr"]:  # it did not get as far as to say it itself
            text += f"\n{made['stderr']}"
    else:
        text = json.dumps(value, ensure_ascii=False)
    structured = value if isinstance(value, dict) else {"result": value}
    return replace(result, text=printable(text), structured=structured)


_SCRIPT = Offer("run_skill_script", "run_skill_script", {"name": "skill"})
_NAMES = (
    *("skill_load", "skill_unload", "skill_select_docs", "skill_list_docs", "read_skill_resource"),
    *("workspace_exec", "workspace_write_stdin", "workspace_kill_session", "workspace_list_files"),
    *("workspace_read_file", "workspace_write_file", "workspace_edit_file", "workspace_save_artifact"),
)
_TRPC = (*map(Offer, _NAMES[:5], _NAMES[:5]), _SCRIPT, *map(Offer, _NAMES[5:], _NAMES[5:]))

_PROFILES = (
    Profile("trpc", _TRPC, require_loaded=True),
    Profile(
        "think",
        (
            Offer(
                "skill_activate",
                "activate_skill",
                {"name": "skill"},
                hidden=("query",),
                shape=_think_load,
            ),
            Offer("read_skill_resource", "read_skill_resource", {"name": "skill"}, shape=_think_error),
            replace(_SCRIPT, hidden=("inputs",), shape=_think_script, shaped=True),
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
        nested=True,
        mode="run",
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
