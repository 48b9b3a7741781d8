"""`executor skills list|show`: what there is in the roots, what cannot be used, and one skill in full."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from executor.cli import arguments, console, export, fetching, lint, options
from executor.workspace.text import plural, printable_name

if TYPE_CHECKING:
    from executor.skills.repository import Problem, Repository, Skill

CLIPPED = 100  # characters of a description in a list
MOST_FILES = 1000  # shown of one skill
SCRIPT_SUFFIXES = (".py", ".sh", ".bash", ".js", ".mjs", ".cjs")
# Heading → attribute of the document.
FIELDS = {
    "description": "description",
    "license": "license",
    "compatibility": "compatibility",
    "allowed tools": "allowed_tools",
}


skills_app = typer.Typer(help="Find and read skills.", rich_markup_mode=None)


@skills_app.command(
    "list",
    epilog="""\b
Examples:
  executor skills list
  executor skills list --skills ./skills --skills ~/more-skills --json""",
)
def _skills_list(skills: options.Skills = None, json: options.Json = False) -> Callable[[], int]:
    """List the skills of the roots, then what cannot be used and why."""
    return partial(list_skills, tuple(skills or ()), json=json)


@skills_app.command(
    "show",
    epilog="""\b
Examples:
  executor skills show sales-report
  executor skills show ./my-skill --json""",
)
def _skills_show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A skill's name in the roots, or the path of its folder.")
    ],
    skills: options.Skills = None,
    json: options.Json = False,
) -> Callable[[], int]:
    """Show one skill: its front matter, what was odd about it, its files and its text."""
    return partial(show_skill, name, tuple(skills or ()), json=json)


skills_app.command("lint", epilog=lint.EPILOG)(lint.command)
skills_app.command("export", epilog=export.EXPORT_EPILOG)(export.export_command)
skills_app.command("bundle", epilog=export.BUNDLE_EPILOG)(export.bundle_command)


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    app.add_typer(skills_app, name="skills")


@dataclass(frozen=True)
class ListedFile:
    """A file of a skill's folder. `link` is where a symbolic link points, else ''."""

    path: str
    size: int
    script: bool
    link: str = ""


def list_skills(roots: Sequence[str], *, json: bool) -> int:
    """The skills of the roots, then what is hidden by another one, and what cannot be used and why."""
    fetching.show(warnings=False)  # all of them are in the list
    repository = open_repository(roots, told=True)
    skills, told = repository.skills(), repository.problems()
    hidden = [problem for problem in told if problem.hidden]
    problems = [problem for problem in told if not problem.hidden]
    if json:
        console.out_json(
            {
                "skills": [{**_head(skill), "description": skill.document.description} for skill in skills],
                "hidden": [_told(problem) for problem in hidden],
                "problems": [_told(problem) for problem in problems],
            }
        )
        return 0
    if skills:
        rows = [(_title(skill), _one_line(skill.document.description), skill.origin) for skill in skills]
        console.table(("NAME", "DESCRIPTION", "PATH"), rows, clipped="DESCRIPTION")
    else:
        console.say("no skills in " + (", ".join(source.id for source in repository.sources) or "any root"))
    for word, found in (("hidden skill", hidden), ("problem", problems)):
        if found:
            console.out(f"\n{plural(len(found), word)}:")
        for problem in found:
            console.out(printable_name(f"  {problem.where}: {problem.reason}"))
    return 0


def show_skill(name: str, roots: Sequence[str], *, json: bool) -> int:
    """Everything about one skill."""
    skill = open_repository(roots).find(name)
    document = skill.document
    files, more = _files(skill.path)
    if json:
        console.out_json(
            {
                **_head(skill),
                **{attribute: getattr(document, attribute) for attribute in FIELDS.values()},
                "metadata": _plain(document.metadata),
                "extra": _plain(document.extra),
                "warnings": list(document.warnings),
                "files": [vars(file) for file in files],
                "files_truncated": more,
                "body": document.body,
            }
        )
        return 0
    fields: list[tuple[str, str]] = [("name", skill.name), ("folder", skill.slug), ("path", str(skill.path))]
    if skill.origin != str(skill.place):
        fields.append(("from", skill.origin))
    for heading, attribute in FIELDS.items():
        value = getattr(document, attribute)
        fields.append((heading, value if isinstance(value, str) else ", ".join(value)))
    fields += _flat("metadata", document.metadata)
    fields += _flat("", document.extra)
    for heading, value in fields:
        if value:
            console.out(printable_name(f"{heading}: {' '.join(value.split())}"))
    for warning in document.warnings:
        console.out(printable_name(f"warning: {warning}"))
    console.out("\nfiles (* marks scripts):")
    sizes = [console.size(file.size) for file in files]
    for file, size in zip(files, sizes, strict=True):
        mark = "*" if file.script else " "
        target = f" -> {file.link}" if file.link else ""
        console.out(printable_name(f"  {mark} {size:>{max(map(len, sizes))}}  {file.path}{target}"))
    if more:
        console.out(f"    and more: only the first {MOST_FILES:,} are shown")
    console.out()
    console.out(document.body.rstrip("\n"))
    return 0


def open_repository(roots: Sequence[str], *, told: bool = False) -> Repository:
    """The repository of these roots, or of the default ones when there are none.

    BadPathError when there is no root but such as do not exist; some that do not are warned of, the default
    one only where it is to be `told`.
    """
    from executor.settings import load
    from executor.skills.repository import Repository

    settings = load({"skills": tuple(roots) or None})
    return Repository(arguments.usable_roots(settings, told=told), settings.sources)


def _told(problem: Problem) -> dict[str, str]:
    return {"path": str(problem.path), "origin": problem.where, "reason": problem.reason}


def _head(skill: Skill) -> dict[str, str]:
    return {"slug": skill.slug, "name": skill.name, "path": str(skill.place), "origin": skill.origin}


def _title(skill: Skill) -> str:
    """The word by which it is asked for, and its author's name for it where that is another."""
    name = _one_line(skill.name)
    return skill.slug if name == skill.slug else f"{skill.slug} ({name})"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= CLIPPED else line[: CLIPPED - 1].rstrip() + "…"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _flat(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Nested keys as `metadata.author.name`; lists as their items."""
    found = []
    for key, value in values.items():
        heading = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping):
            found += _flat(heading, value)
        elif isinstance(value, str):
            found.append((heading, value))
        else:
            found.append((heading, ", ".join(str(_plain(item)) for item in value)))
    return found


def _files(folder: Path) -> tuple[list[ListedFile], bool]:
    """The files of a skill sorted by path, no link followed; and whether there are more."""
    found: list[ListedFile] = []
    for here, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(here, name))]
        folders[:] = sorted(name for name in folders if name not in (".git", *links))
        for name in sorted([*names, *links]):
            if len(found) == MOST_FILES:
                return sorted(found, key=lambda file: file.path), True
            whole = os.path.join(here, name)
            path = os.path.relpath(whole, folder).replace(os.sep, "/")
            try:
                status = os.lstat(whole)
                link = os.readlink(whole) if stat.S_ISLNK(status.st_mode) else ""
            except OSError:
                continue
            script = stat.S_ISREG(status.st_mode) and _is_script(whole, path, status.st_mode)
            found.append(ListedFile(path, status.st_size, script, link))
    return sorted(found, key=lambda file: file.path), False


def _is_script(whole: str, path: str, mode: int) -> bool:
    if path.endswith(SCRIPT_SUFFIXES):
        return True
    if mode & 0o111 and sys.platform != "win32":
        return True
    try:
        with open(os.open(whole, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
