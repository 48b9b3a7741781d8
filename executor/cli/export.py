"""`executor skills export|bundle`: skills of any source as a folder, a zip, or one JSON file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from executor.cli import options
from executor.workspace.text import plural

EXPORT_EPILOG = """\b
Examples:
  executor skills export sales-report --to ./out
  executor skills export sales-report --to sales-report.zip
  executor skills export pdf --skills git+https://host/owner/repo.git@v1#skills --to pdf.zip --overwrite"""
BUNDLE_EPILOG = """\b
Examples:
  executor skills bundle ./skills -o skills.json
  executor skills bundle https://host/skills.tar.gz ./more -o skills.json
  executor run sales-report --skills skills.json -- python3 scripts/report.py"""
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def export_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A skill's name in the roots, or the path of its folder.")
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR|FILE.zip", help="Folder to make it in, or the zip to write.")
    ],
    skills: options.Skills = None,
    overwrite: Overwrite = False,
) -> Callable[[], int]:
    """Write one skill as a standard folder or zip, whatever source it comes from."""
    return partial(export_skill, name, tuple(skills or ()), to, overwrite=overwrite)


def bundle_command(
    roots: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROOT…", help="As --skills. [default: $SKILLS_ROOT, then ./skills]", show_default=False
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")] = Path(
        "skills.json"
    ),
    overwrite: Overwrite = False,
) -> Callable[[], int]:
    """Write all skills of the roots into one JSON file, which is then a root itself."""
    return partial(bundle_skills, tuple(roots or ()), output, overwrite=overwrite)


def export_skill(name: str, roots: tuple[str, ...], to: Path, *, overwrite: bool) -> int:
    """Find it and write it."""
    from executor.cli import console
    from executor.cli.skills import open_repository
    from executor.skills.sources.export import export

    place = export(open_repository(roots).find(name), to, overwrite=overwrite)
    console.out(str(place))
    return 0


def bundle_skills(roots: tuple[str, ...], output: Path, *, overwrite: bool) -> int:
    """Write what can be used; what cannot is said. BadRequestError when there is nothing."""
    from executor.cli import console
    from executor.cli.skills import open_repository
    from executor.errors import BadRequestError
    from executor.skills.sources.bundle import make
    from executor.skills.sources.export import write_file

    repository = open_repository(roots, told=True)
    skills, problems = repository.skills(), repository.problems()
    for problem in problems:
        console.say(f"{problem.where}: {problem.reason}", kind="warning")
    if not skills:
        raise BadRequestError("there are no skills to bundle", hint="See `executor skills list`.")
    made = make(skills)
    for note in made.notes:
        console.say(note, kind="warning")
    write_file(output, made.data, overwrite=overwrite)
    size = console.size(len(made.data))
    console.say(f"{plural(len(skills), 'skill')}, {size}, fingerprint {made.fingerprint}")
    console.out(str(output))
    return 0
