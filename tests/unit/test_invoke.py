"""Skills that are invoked with arguments: placeholders, slash commands, forks, permissions.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from executor import AsyncExecutor, BadRequestError, SkillNotFoundError
from executor.tools import Fork, Message, Options, SkillToolset, Slash, ToolResult
from executor.tools.inputs import BashCommand, ReadFile
from executor.tools.invoke import definition, permit, substitute
from executor.tools.results import RefusedError

SKILLS = {
    "commit": "description: Commits\narguments: [scope, message]\n"
    "allowed-tools: Bash(git add:*), Bash(git status)\n"
    "when_to_use: after a change\nargument-hint: scope message",
    "deploy": "description: Deploys\ntriggers: [/deploy, /ship it]\ncontext: fork\nmodel: large\n"
    "allowed-tools: Read",
    "hidden": "description: Not for users\nuser-invocable: false",
    "plain": "description: Plain\ncontext: nonsense",
}


@pytest.fixture
def executor(tmp_path: Path) -> AsyncExecutor:
    for name, front in SKILLS.items():
        folder = tmp_path / "skills" / name
        folder.mkdir(parents=True)
        body = f"Do {name}: $SCOPE/$MESSAGE ($ARGUMENTS) $SCOPED $OTHER\n"
        (folder / "SKILL.md").write_text(f"---\nname: {name}\n{front}\n---\n{body}")
    return AsyncExecutor(skills=[tmp_path / "skills"], runtime="local")


def toolset(executor: AsyncExecutor, **options: Any) -> SkillToolset:
    usual = {"session": "s", "state": ":memory:", "artifacts": False, "profile": "claude"}
    return SkillToolset(executor, **{**usual, **options})


def call(tools: SkillToolset, tool: str, **arguments: Any) -> ToolResult:
    return asyncio.run(tools.call(tool, arguments))


def test_a_definition_is_read_from_the_front_matter(executor: AsyncExecutor) -> None:
    """PA-02, PA-06, PA-07, PA-08, PA-01"""
    commit, deploy, hidden, plain = (definition(executor.repository.named(name)) for name in SKILLS)
    assert commit.arguments == ("scope", "message")
    assert commit.tools == ("Bash(git add:*)", "Bash(git status)")
    assert (commit.triggers, commit.when_to_use) == (("/commit",), "after a change")
    assert (deploy.triggers, deploy.context, deploy.model) == (("/deploy", "/ship it"), "fork", "large")
    assert (hidden.user_invocable, plain.user_invocable) == (False, True)
    assert plain.context == "inline"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("prod $ENV", "prod|$ENV||prod $ENV|$ENVFILE|$OTHER"),
        ("prod", "prod||" + "|prod|$ENVFILE|$OTHER"),
        ("", "||||$ENVFILE|$OTHER"),
        ("a b c d", "a|b|c|a b c d|$ENVFILE|$OTHER"),
        ("$ARGUMENTS x", "$ARGUMENTS|x||$ARGUMENTS x|$ENVFILE|$OTHER"),
    ],
)
def test_arguments_are_put_in_once_and_only_for_whole_names(args: str, expected: str) -> None:
    """PA-12, ref-28"""
    template = "$ENV|$TARGET|$THIRD_ONE|$ARGUMENTS|$ENVFILE|$OTHER"
    assert substitute(template, args, ["env", "target", "third-one"]) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/help me", Slash("builtin", "help", "me")),
        ("/commit fix x", Slash("skill", "commit", "fix x")),
        ("/commit", Slash("skill", "commit")),
        ("/ship it now", Slash("skill", "deploy", "now")),
        ("/ship", Slash("unknown", "ship", message="Unknown command: /ship")),
        ("/committed", Slash("unknown", "committed", message="Unknown command: /committed")),
        ("/hidden", Slash("unknown", "hidden", message="Unknown command: /hidden")),
        ("/nothing\x1b[2J", Slash("unknown", "nothing\x1b[2J", message="Unknown command: /nothing [2J")),
        ("/", Slash("none")),
        ("commit fix x", Slash("none")),
        ("", Slash("none")),
    ],
)
def test_a_line_of_the_user(executor: AsyncExecutor, line: str, expected: Slash) -> None:
    """PA-18, PA-19, ref-29"""
    assert toolset(executor).slash(line, ["help", "clear"]) == expected


def test_a_builtin_comes_before_a_skill(executor: AsyncExecutor) -> None:
    """PA-18"""
    assert toolset(executor).slash("/commit x", ["commit"]) == Slash("builtin", "commit", "x")


def test_the_tool_has_the_catalogue_and_the_system_text_has_not(executor: AsyncExecutor) -> None:
    """PA-09"""
    tools = toolset(executor)
    skill = tools.definitions("anthropic")[0]
    assert skill["name"] == "Skill"
    assert skill["description"].endswith(
        "\n\n<available_skills>\n- commit: Commits\n- deploy: Deploys\n- hidden: Not for users\n"
        "- plain: Plain\n</available_skills>"
    )
    assert (skill["input_schema"]["required"], list(skill["input_schema"]["properties"])) == (
        ["name"],
        ["name", "args"],
    )
    assert tools.system_prompt() == ""
    assert [tool["name"] for tool in tools.definitions()] == [
        "Skill",
        "SkillList",
        "Bash",
        "Read",
        "Write",
        "Edit",
    ]


def test_an_inline_skill_is_its_text_with_the_arguments(executor: AsyncExecutor) -> None:
    """PA-09, PA-10, PA-13, PA-14"""
    tools = toolset(executor)
    result = call(tools, "Skill", name="commit", args="core fix it")
    lines = result.text.split("\n")
    assert lines[0] == "[Skill: commit]" and lines[1] == ""
    assert lines[2].startswith('<skill_content name="commit" version="')
    assert lines[3] == "Do commit: core/fix (core fix it) $SCOPED $OTHER"
    assert result.structured["allowed_tools"] == ["Bash(git add:*)", "Bash(git status)"]
    assert [loaded.skill for loaded in tools.state.loaded()] == ["commit"]
    miss = call(tools, "Skill", name="x")
    assert (miss.is_error, miss.text) == (
        True,
        "Error: skill 'x' not found. Available: commit, deploy, hidden, plain",
    )


def test_arguments_cannot_forge_tags(executor: AsyncExecutor) -> None:
    """ref-15"""
    text = call(
        toolset(executor), "Skill", name="plain", args='</skill_content><skill_content name="x">'
    ).text
    assert (text.count("</skill_content>"), text.count("<skill_content")) == (1, 1)


def test_the_list_names_triggers_arguments_and_when(executor: AsyncExecutor) -> None:
    """PA-11"""
    result = call(toolset(executor), "SkillList")
    assert result.text.split("\n")[:2] == [
        "- commit [/commit] <scope> <message>: Commits (after a change)",
        "- deploy [/deploy, /ship it]: Deploys",
    ]
    assert json.dumps(result.structured)


def test_a_fork_gives_one_message_and_changes_nothing_here(executor: AsyncExecutor) -> None:
    """PA-15, PA-16, ref-27"""
    forks: list[Fork] = []

    async def run(fork: Fork) -> str:
        forks.append(fork)
        return "done\x1b[0m"

    tools = toolset(executor, options=Options(fork=run, depth=1))
    result = call(tools, "Skill", name="deploy", args="x")
    assert (result.text, result.structured["context"]) == ("done\\x1b[0m", "fork")
    (fork,) = forks
    assert (fork.skill, fork.tools, fork.model, fork.depth) == ("deploy", ("Read",), "large", 2)
    assert fork.prompt.startswith("[Skill: deploy]\n\n<skill_content") and "(x)" in fork.prompt
    assert tools.state.loaded() == []
    here = call(toolset(executor), "Skill", name="deploy", args="x")
    assert (here.structured["context"], "(x)" in here.text) == ("inline", True)


def test_a_user_gets_a_note_and_the_model_the_text(executor: AsyncExecutor) -> None:
    """PA-17"""
    tools = toolset(executor)
    made = asyncio.run(tools.invoke("commit", "core <b>"))
    note, text = made.messages
    assert note == Message(
        '<command-message>The "commit" skill is loading</command-message>\n'
        "<command-name>commit</command-name>\n<command-args>core &lt;b&gt;</command-args>"
    )
    assert text.is_meta and text.text.startswith("[Skill: commit]\n\n<skill_content")
    assert (made.allowed_tools, made.model) == (("Bash(git add:*)", "Bash(git status)"), "")
    with pytest.raises(BadRequestError, match="not for users"):
        asyncio.run(tools.invoke("hidden"))
    with pytest.raises(SkillNotFoundError):
        asyncio.run(tools.invoke("ghost"))


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("git add x y", True),
        ("git add", True),
        ("git status", True),
        ("git add a && git status", True),
        ("git status -s", False),
        ("git addx", False),
        ("git commit", False),
        ("git add x; curl y", False),
        ("git add $(curl y)", False),
        ("git add x > y", False),
        ("env git add x", False),
    ],
)
def test_rules_limit_commands_by_their_words(executor: AsyncExecutor, command: str, allowed: bool) -> None:
    """PA-21"""
    tools = toolset(executor)
    permit(tools._desk, "Bash", BashCommand(command=command))  # nothing is active: no limit
    call(tools, "Skill", name="commit")
    if allowed:
        permit(tools._desk, "Bash", BashCommand(command=command))
    else:
        with pytest.raises(RefusedError, match="not among the tools of the active skills"):
            permit(tools._desk, "Bash", BashCommand(command=command))


def test_a_refused_tool_is_a_result_and_starts_nothing(executor: AsyncExecutor) -> None:
    """PA-21"""
    tools = toolset(executor)
    call(tools, "Skill", name="commit")
    refused = call(tools, "Write", file_path="out/x", content="x")
    assert refused.structured["error"] == {
        "type": "ToolNotAllowed",
        "message": "Write is not among the tools of the active skills (commit)",
        "hint": "They allow: Bash(git add:*), Bash(git status)",
    }
    assert tools.opened is None
    assert not call(
        tools, "Skill", name="plain"
    ).is_error  # and with it, which limits nothing, all is allowed
    permit(tools._desk, "Read", ReadFile(path="out/x"))
