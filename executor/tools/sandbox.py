"""The `Sandbox` of the AI SDK's agent-skills guide (`readFile`, `readdir`, `exec`), and skills found by it.

The names are the guide's, because code written for it calls them. Paths are those of the sandbox
(`/skills/notes`, `/workspace/out`); nothing of the host can be named. Skills that lie in the sandbox are data
of whoever put them there: what `discover_skills` finds is shown to a model and trusted with nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from executor.errors import BadPathError, BadRequestError, ExecutorError
from executor.session import AsyncSession
from executor.skills.document import parse


@dataclass(frozen=True)
class DirEntry:
    """One entry of a folder."""

    name: str
    is_directory: bool

    def isDirectory(self) -> bool:
        """Whether it is a folder. A link is none."""
        return self.is_directory


@dataclass(frozen=True)
class Output:
    """What a command wrote. `exitCode` is an addition to the guide."""

    stdout: str
    stderr: str
    exitCode: int | None


@dataclass(frozen=True)
class SkillMetadata:
    """A skill that was found. `path` is its folder in the sandbox."""

    name: str
    description: str
    path: str


class Sandbox:
    """The three methods, on a session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def readFile(self, path: str, encoding: Literal["utf-8"] = "utf-8") -> str:
        """The text of a file. BadPathError when there is none, or it is not UTF-8."""
        if encoding != "utf-8":
            raise BadRequestError(f"encoding {encoding!r} is not served", hint="Write 'utf-8'.")
        try:
            return (await self._session.read(path)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadPathError(f"{path!r} is not UTF-8 (first at byte {error.start})") from None

    async def readdir(self, path: str, *, withFileTypes: bool = True) -> list[DirEntry]:
        """The entries of a folder, sorted by name. BadPathError when there is none."""
        entries = await self._session.list_files(path)
        return [DirEntry(entry.name, entry.type == "folder") for entry in entries]

    async def exec(self, command: str) -> Output:
        """Run a shell command line to its end, or to the time-out of the settings."""
        result = await self._session.exec(command)
        return Output(result.stdout, result.stderr, result.exit_code)


async def discover_skills(sandbox: Sandbox, directories: Iterable[str]) -> list[SkillMetadata]:
    """The skills in the subfolders of `directories`; of one name the first counts.

    A folder that is missing, and a SKILL.md that is missing or cannot be used, is passed over.
    """
    found: dict[str, SkillMetadata] = {}
    for directory in directories:
        try:
            entries = await sandbox.readdir(directory)
        except BadPathError:
            continue
        for entry in entries:
            if not entry.isDirectory():
                continue
            path = f"{directory.rstrip('/')}/{entry.name}"
            try:
                document = parse((await sandbox.readFile(f"{path}/SKILL.md")).encode(), folder=entry.name)
            except ExecutorError:
                continue
            if document.description:
                metadata = SkillMetadata(document.name, document.description, path)
                found.setdefault(document.name, metadata)
    return list(found.values())
