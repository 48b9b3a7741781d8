"""Option values to what the library takes. Pure, but for looking whether an input exists.

Every error names the option and the value, and says how to write it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from executor.cli import console
from executor.errors import BadLimitError, BadPathError, BadRequestError

if TYPE_CHECKING:
    from executor.bridge import Grant
    from executor.models import ExecResult, Limits
    from executor.settings import Settings

MAX_STDIN = 256 << 20  # bytes of --stdin, which are held in memory; more is a file for --input

TIMED_OUT, FAILED, OUT_OF_MEMORY, BROKEN_PIPE = 124, 125, 137, 141
# Of what is not the script's own exit. All else is `exit_code`, which is 128 + n for a signal n.
STATUS_EXITS = {
    "timeout": TIMED_OUT,
    "oom": OUT_OF_MEMORY,
    "lost": FAILED,
    "cancelled": 130,
    "killed": 137,
    "output_limit": 137,
}


@dataclass(frozen=True)
class RunRequest:
    """What `run`, `script` or `shell` was asked to do, as it was written."""

    skill: str
    words: tuple[str, ...]
    skills: tuple[str, ...] = ()
    runtime: str | None = None
    image: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("out/**",)
    save: Path | None = None
    overwrite: bool = False
    html: Path | None = None
    env: tuple[str, ...] = ()
    allow_net: tuple[str, ...] = ()
    stdin: str | None = None
    cwd: str | None = None
    timeout: float | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    session: str | None = None
    json: bool = False
    quiet: bool = False

    @property
    def shown(self) -> str:
        """The command for a person."""
        return self.words[0] if len(self.words) == 1 else shlex.join(self.words)


@dataclass(frozen=True)
class Input:
    """A file or folder of this machine and where it goes; a `dest` that ends in `/` keeps its own name."""

    source: Path
    dest: str


def grant(request: RunRequest, *, root: str | None = None, write: bool = False) -> Grant | None:
    """What the options grant: hosts, a folder, or nothing. GrantError."""
    if not request.allow_net and root is None:
        return None
    from executor.bridge import Grant, allow

    right: Literal["read", "read-write"] | None = None
    if root is not None:
        right = "read-write" if write else "read"
    return Grant(root=root, workspace=right, network=allow(request.allow_net) if request.allow_net else None)


def command(words: Sequence[str]) -> str | list[str]:
    """One word is a shell line, several are an argument vector."""
    return words[0] if len(words) == 1 else list(words)


def roots(given: list[str] | None) -> list[str] | None:
    """The values of --skills, as they are. BadPathError for one that names nothing."""
    if given:
        from executor.skills.sources.roots import missing, nothing_at

        if lost := missing(given):
            raise nothing_at(lost)
    return given


def usable_roots(settings: Settings, *, needed: bool = False, told: bool = False) -> tuple[str, ...]:
    """Where skills come from. A root that does not exist is warned of, the default only where it is to be
    `told`; BadPathError when none does that the operator has named, or none at all where one is `needed`.
    """
    from executor.settings import DEFAULT_ROOTS
    from executor.skills.sources.roots import missing, nothing_at

    if lost := missing(settings.skills):
        error, named = nothing_at(lost), settings.skills != DEFAULT_ROOTS
        if len(lost) == len(settings.skills) and (needed or named):
            raise error
        if named or told:
            console.say(error.message, kind="warning")
            console.say(error.hint, kind="hint")
    return settings.skills


def skill_folders(targets: Sequence[str], settings: Settings, *, changing: str = "") -> list[str]:
    """The folders that targets mean: a folder is one skill or holds some, all else is the name of a skill in
    the roots. Without a target all roots that are folders. `changing`: the option that changes their files,
    which those of a skill that was fetched must not be.
    """
    from executor.skills.repository import Repository

    if not targets:
        roots = usable_roots(settings, needed=True)
        here = [folder for root in roots if os.path.isdir(folder := os.path.expanduser(root))]
        return here or list(roots)
    found: list[str] = []
    repository: Repository | None = None
    for target in targets:
        if os.path.isdir(target):
            found.append(target)
            continue
        repository = repository or Repository(settings.skills, settings.sources)
        skill = repository.find(target)
        if changing and skill.origin not in ("", str(skill.place)):
            raise BadRequestError(
                f"{changing} cannot change the skill {skill.slug!r}: it was fetched from {skill.origin}",
                hint=f"Make a folder of it first: executor skills export {shlex.quote(target)} --to DIR",
            )
        found.append(str(skill.path))
    return found


def again(roots: Sequence[str], runtime: str | None, image: str | None) -> str:
    """These options for a command that a person may paste, with a blank in front; passwords are left out."""
    from executor.skills.sources.roots import shown

    words = [word for root in roots for word in ("--skills", shown(root))]
    for option, value in (("--runtime", runtime), ("--image", image)):
        words += [option, value] if value is not None else []
    return "".join(f" {shlex.quote(word)}" for word in words)


def split_input(
    text: str,
    *,
    exists: Callable[[str], bool] = os.path.exists,
    windows: bool = sys.platform == "win32",
) -> tuple[str, str]:
    r"""`SRC[:DEST]` → (source, dest). The longest SRC that exists, so that a name may hold a colon.

    The colon of a Windows drive (`C:\data`) parts nothing there.
    """
    ends = [len(text), *(match.start() for match in reversed(list(re.finditer(":", text))))]
    if windows and re.match(r"[A-Za-z]:[\\/]", text):
        ends.remove(1)
    for end in ends:
        if end and exists(text[:end]):
            return text[:end], text[end + 1 :]
    if not text or ends[-1] == 0:
        raise BadRequestError(f"--input {text!r} names no file", hint="Write it as SRC or SRC:DEST.")
    missing = text[: ends[-1]]
    raise BadPathError(
        f"--input {text!r}: there is no file or folder {missing!r} here",
        hint="Give a path of this machine; relative ones begin in the current folder.",
    )


def destination(dest: str) -> str:
    """Where an input goes: below `inputs/`, unless it begins with a workspace folder or is absolute."""
    from executor.workspace import layout

    parts = [part for part in dest.split("/") if part not in ("", ".")]
    if not dest.startswith("/") and parts[:1] not in [[folder] for folder in layout.FOLDERS]:
        dest = f"inputs/{dest}"
    absolute = layout.absolute(dest)
    folders = {layout.WORKSPACE, layout.SKILLS, *(f"{layout.WORKSPACE}/{name}" for name in layout.FOLDERS)}
    into = absolute in folders or dest.endswith(("/", "/."))
    return f"{absolute}/" if into else absolute


def inputs(texts: Sequence[str]) -> list[Input]:
    """The values of --input. BadPathError for one that is missing or leads out of the workspace."""
    found = []
    for text in texts:
        source, dest = split_input(text)
        found.append(Input(Path(source), destination(dest)))
    return found


def check_writable(option: str, path: Path | None, *, is_file: bool = False) -> None:
    """Whether files can be written below a folder, or a file be written; what is not there will be made.
    BadPathError, so that it is known before a run and not after it.
    """
    if path is None:
        return
    here, what = os.path.abspath(path), f"{option} {str(path)!r}"
    if is_file:
        if os.path.isdir(here):
            raise BadPathError(f"{what} is a folder", hint="Give the name of a file.")
        if not os.path.exists(here):
            here = os.path.dirname(here)
    while not os.path.lexists(here):
        here = os.path.dirname(here)
    is_folder = os.path.isdir(here)
    if not is_folder and not (is_file and here == os.path.abspath(path)):
        raise BadPathError(f"{what}: {here} is not a folder", hint="Give another path.")
    if not os.access(here, os.W_OK | (os.X_OK if is_folder else 0)):
        raise BadPathError(f"{what}: {here} cannot be written to", hint="Give another path.")


def environment(pairs: Sequence[str]) -> dict[str, str]:
    """The values of --env; of a repeated name the last one counts."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise BadRequestError(
                f"--env {pair!r} is not NAME=VALUE",
                hint="Nothing is taken from this machine's environment: write the value too.",
            )
        found[name] = value
    return found


def limits(base: Limits, given: Mapping[str, Any]) -> Limits:
    """The limits of the settings with those of the options over them."""
    from pydantic import ValidationError

    from executor.models import Limits

    if not given:
        return base
    try:
        return Limits.model_validate({**base.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        why = first["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
        if name in ("memory", "disk") and "ge" in first.get("ctx", {}):
            why = f"it must be at least {console.size(first['ctx']['ge'])}"
        raise BadLimitError(
            f"--{name} {given.get(name, '')}: {why}",
            hint=("Sizes are bytes or 64k, 256m, 1g; " if name in ("memory", "disk") else "")
            + "`executor run --help` has the defaults.",
        ) from None


def read_stdin(source: str | None, option: str = "--stdin") -> bytes | None:
    """What an option names, read to its end; `-` is this process's own."""
    if source is None:
        return None
    try:
        if source == "-":
            data = sys.stdin.buffer.read(MAX_STDIN + 1)
        else:
            with open(source, "rb") as file:
                data = file.read(MAX_STDIN + 1)
    except OSError as error:
        raise BadPathError(f"{option} {source!r} cannot be read: {error.strerror}") from error
    if len(data) > MAX_STDIN:
        raise BadRequestError(
            f"{option} {source!r} is larger than {MAX_STDIN >> 20} MiB", hint="Stage it with --input."
        )
    return data


def exit_status(result: ExecResult) -> int:
    """The exit status that says how the run ended."""
    if result.status in STATUS_EXITS:
        return STATUS_EXITS[result.status]
    return FAILED if result.exit_code is None else result.exit_code
