"""The arguments of every tool. What a field's description says is what the model reads.

Unknown arguments are refused by name; numbers in quotes are taken for numbers, as models write them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from executor.models import Input
from executor.tools.results import RefusedError

SignalName = Literal["INT", "TERM", "HUP", "QUIT", "KILL", "USR1", "USR2", "TSTP", "CONT"]
MAX_CHARS = 1 << 20  # of one write to a program
SHOWN = 80  # characters of what was given, in an error


class Arguments(BaseModel):
    """What every tool's arguments have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


SkillName = Annotated[str, Field(min_length=1, max_length=256, description="Name of the skill.")]
SessionId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=64,
        validation_alias=AliasChoices("session_id", "sessionId"),
        description="The session_id that workspace_exec returned.",
    ),
]
Yield = Annotated[
    int | None,
    Field(
        ge=0,
        le=600_000,
        validation_alias=AliasChoices("yield_time_ms", "yieldMs"),
        description="Milliseconds to wait for output before the call returns.",
    ),
]
WorkspacePath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4096,
        description="Path below /workspace (relative to it) or below skills/<name>.",
    ),
]


class Reference(Arguments):
    """A file or folder to bring in first."""

    source: str = Field(
        min_length=1,
        max_length=4096,
        validation_alias=AliasChoices("from", "source"),
        description="artifact://name[@version], workspace://path, skill://name/path or host:///path.",
    )
    to: str = Field("", max_length=4096, description="Where it goes. Default inputs/<its name>.")
    mode: Literal["copy", "link"] = Field("copy", description="link: a link instead of a copy.")
    pin: bool = Field(False, description="Keep what came to this place first.")


def references(given: list[Reference]) -> list[Input]:
    """The arguments as the session takes them."""
    return [Input(one.source, one.to, one.mode, one.pin) for one in given]


References = Annotated[
    list[Reference], Field(max_length=64, description="Files to bring in before it starts.")
]


class LoadSkill(Arguments):
    skill: SkillName
    docs: list[str] = Field([], max_length=64, description="Documents of the skill to show with it.")
    include_all_docs: bool = Field(False, description="Show all of its documents. Costs tokens.")


class UnloadSkill(Arguments):
    skill: SkillName


class ActivateSkill(Arguments):
    skill: SkillName
    query: str = Field("", max_length=4096, description="What the skill is needed for.")


class ExitSkill(Arguments):
    pass


class NoArguments(Arguments):
    pass


class InvokeSkill(Arguments):
    skill: SkillName
    args: str = Field("", max_length=1 << 16, description="Words for the skill, as a user would type them.")


class SelectDocs(Arguments):
    skill: SkillName
    docs: list[str] = Field([], max_length=64, description="Documents, as skill_list_docs names them.")
    include_all_docs: bool = Field(False, description="Select all of its documents.")
    mode: str = Field(
        "replace",
        description="add: to those selected; replace: instead of them (default); clear: select none.",
    )


class ListDocs(Arguments):
    skill: SkillName


class ReadResource(Arguments):
    skill: str | None = Field(
        None, max_length=256, description="Name of the skill. Without it, path begins with the skill's name."
    )
    path: str = Field(min_length=1, max_length=4096, description="Path of the file in the skill.")
    offset: int = Field(0, ge=0, description="First byte to show, for long files.")


class Exec(Arguments):
    command: str = Field(min_length=1, max_length=1 << 17, description="A shell command line.")
    cwd: str = Field(
        "", max_length=4096, description="Where it starts: below work, out, inputs, runs or skills/<name>."
    )
    env: dict[str, str] = Field({}, max_length=256, description="Variables for the command.")
    stdin: str | None = Field(
        None,
        max_length=16 << 20,
        description="What the command reads on stdin. In the background or on a terminal more can follow.",
    )
    timeout_sec: float | None = Field(
        None,
        gt=0,
        validation_alias=AliasChoices("timeout_sec", "timeoutSec", "timeout"),
        description="Seconds until it is ended. Default 300; in the background none.",
    )
    background: bool = Field(
        False,
        description="Return at once with a session_id; the command goes on and reads its stdin from "
        "workspace_write_stdin.",
    )
    tty: bool = Field(False, description="Run it on a terminal, as a session.")
    yield_time_ms: Yield = None
    inputs: References = []


class RunScript(Arguments):
    skill: SkillName
    path: str = Field(
        min_length=1, max_length=4096, description="Path of the script in the skill, such as scripts/x.py."
    )
    input: Any = Field({}, description="Its input: any JSON value. A program reads it on stdin.")
    inputs: References = []


class WriteStdin(Arguments):
    session_id: SessionId
    chars: str = Field("", max_length=MAX_CHARS, description="What to write; empty just reads what is new.")
    append_newline: bool = Field(
        False,
        validation_alias=AliasChoices("append_newline", "appendNewline", "submit"),
        description="Write a line end behind it.",
    )
    eof: bool = Field(False, description="End of file: the command's stdin is closed after this.")
    signal: SignalName | None = Field(None, description="Signal for the command's processes, sent first.")
    rows: int | None = Field(None, ge=1, le=10_000, description="New height of its terminal, with columns.")
    columns: int | None = Field(None, ge=1, le=10_000, description="New width of its terminal, with rows.")
    yield_time_ms: Yield = None


class KillSession(Arguments):
    session_id: SessionId


class ListFiles(Arguments):
    path: str = Field(".", max_length=4096, description="Folder to list.")
    recursive: bool = Field(False, description="Also what is in its folders.")
    pattern: str = Field("", max_length=1024, description="Only paths below it that match, such as **/*.csv.")
    limit: int = Field(200, ge=1, le=2000, description="How many entries at most.")


class ReadFile(Arguments):
    path: WorkspacePath
    start_line: int = Field(1, ge=1, description="First line to show.")
    max_lines: int = Field(2000, ge=1, le=100_000, description="How many lines at most.")


class WriteFile(Arguments):
    path: WorkspacePath
    content: str = Field(max_length=16 << 20, description="The whole new content.")
    append: bool = Field(False, description="Write behind what is there, instead of over it.")


class EditFile(Arguments):
    path: WorkspacePath
    old_text: str = Field(
        min_length=1, max_length=1 << 20, description="Text to replace; it has to be there exactly once."
    )
    new_text: str = Field(max_length=1 << 20, description="Text to put in its place.")
    replace_all: bool = Field(False, description="Replace every occurrence.")


class SaveArtifact(Arguments):
    path: WorkspacePath


class BashCommand(Arguments):
    command: str = Field(min_length=1, max_length=1 << 17, description="A shell command line.")


def read_arguments(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """A call's arguments as a map. RefusedError."""
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError) as error:
            raise RefusedError(
                f"the arguments are no JSON: {error}", "Send one JSON object.", kind="InvalidArguments"
            ) from None
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RefusedError(
            f"the arguments are {type(given).__name__} and not an object",
            "Send one JSON object.",
            kind="InvalidArguments",
        )
    return {str(key): value for key, value in given.items()}


def wrong_arguments(tool: str, names: Mapping[str, str], error: ValidationError) -> str:
    """What is wrong, each with the value that was given. `names`: the tool's own argument → the row's."""
    theirs = {ours: name for name, ours in names.items()}
    said = []
    for problem in error.errors()[:5]:
        where = [str(part) for part in problem["loc"]]
        name = _short(".".join([theirs.get(where[0], where[0]), *where[1:]]) if where else "arguments")
        if problem["type"] == "missing":
            said.append(f"{name} is required")
        elif problem["type"] == "extra_forbidden":
            said.append(f"unknown argument {name!r}")
        else:
            said.append(f"{name}={_value(problem['input'])}: {problem['msg']}")
    return f"{tool}: " + "; ".join(said)


def _value(given: object) -> str:
    try:
        return _short(repr(given))
    except (RecursionError, ValueError):  # nested too deep; a number of thousands of digits
        return f"<{type(given).__name__}>"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
