"""Skills that are invoked with arguments: by the model's `Skill` tool, or by a user's `/name words`.

Rules of this module:
1. Arguments are put in once. What they say is never read as a placeholder, and only whole declared names are.
2. A skill with `context: fork` runs in a conversation of its own, which the application holds
   (`Options.fork`): the caller gets its last message and nothing else. Without one it runs here.
3. `allowed-tools` is a limit: while skills are active, their tools are what may be called. A skill that names
   none limits nothing.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from executor.skills import prompt
from executor.skills.repository import Skill
from executor.skills.state import Expansion
from executor.tools import knowledge
from executor.tools.desk import Desk, Fork
from executor.tools.inputs import InvokeSkill, NoArguments
from executor.tools.outputs import ListedSkill, SkillInvoked, SkillsListed
from executor.tools.policy import commands
from executor.tools.results import RefusedError, ToolResult
from executor.workspace import layout
from executor.workspace.text import printable

_NO = ("false", "no", "off")
_RULE = re.compile(r"([A-Za-z_][\w-]*+)\s*+(?:\((.*)\))?", re.DOTALL)
_PLACEHOLDER = re.compile(r"\$([A-Z_][A-Z0-9_]*)")
PATH_ARGUMENT = {"Read": "path", "Write": "path", "Edit": "path"}  # tool → what of it a rule speaks of


@dataclass(frozen=True)
class Definition:
    """What a skill says about being invoked."""

    name: str
    """Its slug."""
    description: str
    triggers: tuple[str, ...]
    """What a user types; `/<name>` unless it says."""
    tools: tuple[str, ...]
    """`allowed-tools`, or `tools`."""
    when_to_use: str
    arguments: tuple[str, ...]
    """Names of the words behind the trigger."""
    model: str
    user_invocable: bool
    context: Literal["inline", "fork"]


@dataclass(frozen=True)
class Message:
    """A message of an invocation. One with `is_meta` is for the model and not shown to the user."""

    text: str
    is_meta: bool = False


@dataclass(frozen=True)
class Invocation:
    """A skill that a user invoked, as messages and the permissions that go with them."""

    messages: tuple[Message, ...]
    allowed_tools: tuple[str, ...]
    model: str


@dataclass(frozen=True)
class Slash:
    """What a line that begins with `/` means. `none`: it is ordinary text and not handled."""

    kind: Literal["builtin", "skill", "unknown", "none"]
    name: str = ""
    args: str = ""
    message: str = ""


def definition(skill: Skill) -> Definition:
    """Read from the front matter; a value that makes no sense is as if it were not there."""
    document, extra = skill.document, skill.document.extra
    return Definition(
        name=skill.slug,
        description=document.description,
        triggers=_texts(extra.get("triggers")) or (f"/{skill.slug}",),
        tools=document.allowed_tools or _texts(extra.get("tools")),
        when_to_use=" ".join(_texts(extra.get("when_to_use", extra.get("when-to-use")), split=False)),
        arguments=_texts(extra.get("arguments")),
        model=" ".join(_texts(extra.get("model"), split=False)),
        user_invocable=_flag(extra.get("user-invocable", extra.get("user_invocable"))),
        context="fork" if extra.get("context") == "fork" else "inline",
    )


def substitute(template: str, args: str, names: Sequence[str]) -> str:
    """`$ARGUMENTS` is all of `args`, `$NAME` the word of the declared name, '' when there is none."""
    words = args.split()
    values = {
        name.upper().replace("-", "_"): words[index] if index < len(words) else ""
        for index, name in enumerate(names)
    }
    values["ARGUMENTS"] = args
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def find(text: str, skills: Sequence[Skill], builtins: Collection[str] = ()) -> Slash:
    """What a user's line means: a command of the application first, then a skill by its longest trigger."""
    text = text.strip()
    first, _, rest = text.partition(" ")
    if first.removeprefix("/") in builtins and first.startswith("/"):
        return Slash("builtin", first.removeprefix("/"), rest.strip())
    best: tuple[int, Slash] = (0, Slash("none"))
    for skill in skills:
        about = definition(skill)
        for trigger in about.triggers if about.user_invocable else ():
            if trigger and (text == trigger or text.startswith(trigger + " ")) and len(trigger) > best[0]:
                best = (len(trigger), Slash("skill", skill.slug, text[len(trigger) :].strip()))
    if best[0] or not text.startswith("/") or text == "/":
        return best[1]
    return Slash("unknown", first.removeprefix("/"), message=f"Unknown command: {prompt.one_line(first)}")


# --- the tools ----------------------------------------------------------------------------------------------


async def skill_invoke(desk: Desk, args: InvokeSkill) -> ToolResult:
    """Invoke a skill: its text with the arguments, or what its own conversation came to."""
    skill = _named(desk, args.skill)
    about = definition(skill)
    text = substitute(skill.document.body, args.args, about.arguments)
    forked = about.context == "fork" and desk.options.fork is not None
    expansion = dataclasses.replace(await knowledge.expand(desk, skill), body=text, rules=about.tools)
    made = SkillInvoked(
        skill=skill.slug,
        version=prompt.version(expansion.digest),
        context="fork" if forked else "inline",
        model=about.model,
        allowed_tools=list(about.tools),
    )
    if desk.options.fork is not None and forked:
        fork = Fork(
            skill.slug, written(skill.slug, expansion), about.tools, about.model, desk.options.depth + 1
        )
        answer = desk.options.fork(fork)
        said = await answer if inspect.isawaitable(answer) else answer
        return ToolResult(printable(said), made.model_dump(mode="json"))
    loaded = desk.state.load(expansion)
    desk.stage_anew(skill.slug)
    return ToolResult(written(skill.slug, loaded), made.model_dump(mode="json"))


async def skill_catalogue(desk: Desk, args: NoArguments) -> ToolResult:
    """List the skills with their triggers."""
    listed = []
    for skill in desk.skills():
        about = definition(skill)
        listed.append(
            ListedSkill(
                name=about.name,
                triggers=list(map(prompt.one_line, about.triggers)),
                arguments=list(map(prompt.one_line, about.arguments)),
                description=prompt.one_line(about.description),
                when_to_use=prompt.one_line(about.when_to_use),
            )
        )
    lines = []
    for one in listed:
        names = "".join(f" <{name}>" for name in one.arguments)
        when = f" ({one.when_to_use})" if one.when_to_use else ""
        lines.append(f"- {one.name} [{', '.join(one.triggers)}]{names}: {one.description}{when}")
    made = SkillsListed(skills=listed)
    return ToolResult("\n".join(lines) or "There are no skills.", made.model_dump(mode="json"))


def written(name: str, expansion: Expansion) -> str:
    """A skill with its arguments, as a message."""
    return f"[Skill: {name}]\n\n{prompt.skill_content(expansion)}"


# --- permissions --------------------------------------------------------------------------------------------


def permit(desk: Desk, tool: str, values: Any) -> None:
    """RefusedError when the active skills limit the tools and this call is none of theirs."""
    active = desk.state.loaded()
    if not active or any(not loaded.rules for loaded in active):
        return
    rules = [rule for loaded in active for rule in loaded.rules]
    if _allowed(rules, tool, values):
        return
    names = ", ".join(loaded.skill for loaded in active)
    raise RefusedError(
        f"{tool} is not among the tools of the active skills ({names})",
        f"They allow: {', '.join(rules)}",
        kind="ToolNotAllowed",
    )


def _allowed(rules: Sequence[str], tool: str, values: Any) -> bool:
    parsed = [
        match
        for match in (_RULE.fullmatch(rule.strip()) for rule in rules)
        if match is not None and match[1] == tool
    ]
    specs = [(match[2] or "").strip() for match in parsed]
    if any(spec in ("", "*") for spec in specs):
        return True
    if tool == "Bash":
        try:
            line = commands(values.command)
        except RefusedError:
            return False  # what cannot be read cannot be compared
        return all(any(_command_matches(spec, words) for spec in specs) for words in line)
    if tool in PATH_ARGUMENT:
        path = layout.absolute(getattr(values, PATH_ARGUMENT[tool])).removeprefix(layout.WORKSPACE + "/")
        return any(fnmatch.fnmatchcase(path, spec.removeprefix("./")) for spec in specs)
    return False


def _command_matches(spec: str, words: list[str]) -> bool:
    """`git add:*` and `git add *` mean every command that begins with these words, `git status` this one."""
    prefix = spec.removesuffix(":*") if spec.endswith(":*") else spec.removesuffix(" *")
    wanted = prefix.split()
    return words[: len(wanted)] == wanted if prefix != spec else words == wanted


# --- inside -------------------------------------------------------------------------------------------------


def _named(desk: Desk, name: str) -> Skill:
    try:
        return desk.skill(name)
    except RefusedError as error:
        available = ", ".join(skill.slug for skill in desk.skills()) or "none"
        raise RefusedError(f"skill {name!r} not found. Available: {available}", kind=error.kind) from None


def _texts(value: Any, *, split: bool = True) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.strip().strip("[]").split(",") if split else [value]
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(text for text in (str(item).strip() for item in value if isinstance(item, str)) if text)


def _flag(value: Any) -> bool:
    return not (isinstance(value, str) and value.strip().lower() in _NO)
