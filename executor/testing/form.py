"""What can stand in a case file, as models; `schema.py` makes the published JSON Schema of them."""

from __future__ import annotations

import json
import shlex
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

LimitName = Literal["memory", "cpus", "pids", "open_files", "disk", "inodes", "tmp", "shm"]
CaseRuntime = Literal["local", "container"]


class _Model(BaseModel):
    # A parameter may be a number where text is asked for: `stdout: "{{n}}"`.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, coerce_numbers_to_str=True)


Words = Annotated[tuple[str, ...], Field(min_length=1)]
OneOrMore = str | Words


class Range(_Model):
    """A number between two others, both included."""

    min: int | None = Field(None, ge=0)
    max: int | None = Field(None, ge=0)


Number = Annotated[int, Field(ge=0)] | Range


class TextExpectation(_Model):
    """What a text has to be like; all that is given has to hold."""

    equals: str | None = None
    """The whole text. A missing line feed at the end is forgiven."""
    contains: OneOrMore | None = None
    """Text that is in it, or several."""
    matches: OneOrMore | None = None
    """A Python regular expression that is found in it, or several; `^` and `$` match at lines."""
    json_: Any = Field(None, alias="json")
    """The text is JSON, and this is a part of it: a map may have more keys, a list has the same items."""
    golden: str | None = None
    """A file beside the case file with the whole text; `executor test --update` rewrites it."""


class ImageExpectation(_Model):
    """Size of a picture in pixels: PNG, JPEG, GIF, WebP, BMP, and SVG with width and height or a viewBox."""

    width: Number | None = None
    height: Number | None = None


class FileExpectation(_Model):
    """Files that the run has to leave, whatever its exit status; all that is given has to hold for each."""

    glob: str = Field(min_length=1)
    """As for `executor run --output`: relative to the workspace or the skill's folder."""
    count: Number | None = None
    """How many there are. Default: at least one; 0 means that there is none."""
    mime: OneOrMore | None = None
    """The media type, or several that will do."""
    size: Number | None = None
    """In bytes."""
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    """Of the whole file, in small hexadecimal letters."""
    contains: OneOrMore | None = None
    matches: OneOrMore | None = None
    json_: Any = Field(None, alias="json")
    image: ImageExpectation | None = None
    golden: str | None = None
    """A file beside the case file with the same bytes; `executor test --update` rewrites it."""


class ResultExpectation(_Model):
    """What a script that is a function has to return."""

    equals: Any = None
    """The whole value."""
    json_: Any = Field(None, alias="json")
    """A part of the value: a map may have more keys, a list has the same items."""


class Expect(_Model):
    """What has to come of a run."""

    exit: int | Annotated[tuple[int, ...], Field(min_length=1)] = 0
    """The exit status, or several that will do: the script's own; 124 on timeout, 137 out of memory."""
    stdout: str | TextExpectation | None = None
    """A plain string is the whole text."""
    stderr: str | TextExpectation | None = None
    result: ResultExpectation | None = None
    """Of a `script` that is a function."""
    files: tuple[FileExpectation, ...] = ()


class Answer(_Model):
    """What a fake tool answers: a value, or an error."""

    when: dict[str, Any] | None = None
    """Only calls whose input has this as a part. Default: every call."""
    returns: Any = None
    """The value that the script gets."""
    error: str | None = Field(None, min_length=1)
    """Instead: the message of the error that it gets."""
    calls: Number | None = None
    """How many calls have to get this answer; further ones get the next that fits. Default: any number."""

    @model_validator(mode="after")
    def _one_answer(self) -> Answer:
        if ("returns" in self.model_fields_set) == (self.error is not None):
            raise ValueError("give either `returns` or `error`")
        return self

    @property
    def most(self) -> int | None:
        """How many calls it may answer."""
        return self.calls.max if isinstance(self.calls, Range) else self.calls


class InlineText(_Model):
    """A file whose text stands in the case file."""

    text: str


class StdinFile(_Model):
    """What the script reads comes from a fixture."""

    file: str


class Case(_Model):
    """One run of a skill and what has to come of it."""

    name: str = Field(min_length=1, max_length=200)
    run: str | None = Field(None, min_length=1)
    """A shell line, as it is typed in the skill's folder."""
    argv: Words | None = None
    """A command and its arguments, instead of `run`."""
    script: str | None = Field(None, min_length=1)
    """Instead of `run`: a script of the skill, a function of its input or a program, as `executor script`."""
    input: Any = None
    """What `script` gets, any JSON value. Default: an empty map."""
    args: tuple[str, ...] = ()
    """Arguments for `script`."""
    tools: dict[str, Answer | Annotated[tuple[Answer, ...], Field(min_length=1)]] = {}
    """Fake tools that the script may call: name → an answer, or several, of which the first that fits counts.
    A call that none fits fails the case."""
    inputs: dict[str, str | InlineText] = {}
    """Path in the workspace → file or folder beside the case file, or `{text: ...}`."""
    env: dict[str, str] = {}
    stdin: str | StdinFile | None = None
    """What the script reads: text, or `{file: ...}`. Default: nothing."""
    timeout: float | None = Field(None, gt=0, le=7 * 86400)
    """Seconds. Default: `--timeout`, else 30."""
    limits: dict[LimitName, int | float | str] = {}
    """As the options of `executor run`: `memory: 256m`, `pids: 32`."""
    runtime: CaseRuntime | Annotated[tuple[CaseRuntime, ...], Field(min_length=1)] | None = None
    """Only on this runtime; on others the case is skipped. Default: on each."""
    image: str | None = None
    """Instead of the image that the command or the settings name."""
    retries: int = Field(0, ge=0, le=10)
    """More attempts after a failure. A case that needs one passes, and is marked as flaky."""
    skip: str | None = Field(None, min_length=1)
    """Do not run it, and why."""
    parametrize: tuple[dict[str, str | int | float | bool], ...] | None = Field(None, min_length=1)
    """Once for each map, whose values stand for `{{key}}` anywhere in the case."""
    expect: Expect = Expect()

    @model_validator(mode="after")
    def _one_command(self) -> Case:
        if [self.run, self.argv, self.script].count(None) != 2:
            raise ValueError("give one of `run`, `argv` and `script`")
        if self.script is not None and self.stdin is not None:
            raise ValueError("a script's stdin is its `input`")
        given = {"input", "args"} & self.model_fields_set
        if self.script is None and (given or self.expect.result is not None):
            name = sorted(given)[0] if given else "expect.result"
            raise ValueError(f"`{name}` needs a `script`")
        return self

    @property
    def command(self) -> str | list[str]:
        """As `AsyncSession.exec` takes it; of a script its path and arguments."""
        if self.run is not None:
            return self.run
        return [self.script, *self.args] if self.script is not None else list(self.argv or ())

    @property
    def shown(self) -> str:
        """The command for a person."""
        command = self.command
        line = command if isinstance(command, str) else shlex.join(command)
        return f"{line} < {json.dumps(self.input, ensure_ascii=False)}" if self.input is not None else line

    @property
    def answers(self) -> dict[str, tuple[Answer, ...]]:
        """`tools`, settled."""
        return {name: (found,) if isinstance(found, Answer) else found for name, found in self.tools.items()}


class CaseFile(_Model):
    """A file `tests/*.yaml` of a skill."""

    cases: tuple[Case, ...] = Field(min_length=1)
