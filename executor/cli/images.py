"""`executor images build|list`: what sandboxes run on."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from executor.cli import console, options
from executor.workspace.text import printable_name

if TYPE_CHECKING:
    from executor.images import Progress, Target

images_app = typer.Typer(help="What sandboxes run on.", rich_markup_mode=None)


class TargetChoice(enum.StrEnum):
    """Values of --target."""

    container = "container"
    local = "local"


@images_app.command(
    "build",
    epilog="""\b
Examples:
  executor images build
  executor images build --target local
  executor images build base --base debian:bookworm-slim --target container""",
)
def _images_build(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A folder of images/.")] = "base",
    target: Annotated[
        list[TargetChoice] | None,
        typer.Option(
            help="For which runtime; repeatable. [default: all that can work here]", show_default=False
        ),
    ] = None,
    base: Annotated[
        str,
        typer.Option(metavar="BASE", help="`debian` (made by mmdebstrap), an image to build on, or `auto`."),
    ] = "auto",
    refresh: Annotated[bool, typer.Option("--refresh", help="Take in new versions of the packages.")] = False,
    network: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="Network of a build on an image.", show_default=False),
    ] = None,
) -> Callable[[], int]:
    """Build what is out of date."""
    targets = [choice.value for choice in target or ()]
    return partial(build_image, name, targets, base, refresh=refresh, network=network)  # type: ignore[arg-type]


@images_app.command(
    "list",
    epilog="""\b
Examples:
  executor images list
  executor images list --json""",
)
def _images_list(json: options.Json = False) -> Callable[[], int]:
    """List the built images, and whether they are up to date."""
    return partial(list_images, json=json)


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    app.add_typer(images_app, name="images")


def build_image(
    name: str, targets: Sequence[Target], base: str, *, refresh: bool, network: str | None
) -> int:
    """Build what is out of date."""
    from executor.images import build, reference
    from executor.settings import load

    docker_host = load().docker_host or None

    def make(progress: Progress) -> Any:
        return build(
            name,
            targets=list(targets) or None,
            base=base,
            docker_host=docker_host,
            refresh=refresh,
            network=network,
            progress=progress,
        )

    made = _with_bars(make) if sys.stderr.isatty() else make(_plain_line)
    what = f"built for {' and '.join(made.rebuilt)}" if made.rebuilt else "up to date"
    console.out(f"{made.name}: {what}, {console.size(made.size_bytes)}, {made.seconds:.1f} s")
    if made.image_id:
        console.out(f"  container  {reference(made.name)}  {made.image_id}")
    if made.rootfs:
        console.out(f"  local      {made.rootfs}")
    return 0


def list_images(*, json: bool) -> int:
    """Every built image, and whether its guest is of this version."""
    from executor.images import list_images as found_images
    from executor.settings import load

    images = found_images(docker_host=load().docker_host or None)
    if json:
        console.out_json({"images": [asdict(image) for image in images]})
        return 0
    if not images:
        console.say("no images here; make one with `executor images build`")
        return 0
    rows = [
        (
            image.name,
            image.target,
            console.size(image.size_bytes),
            "current" if image.guest_matches else "out of date",
            image.where,
            image.digest.removeprefix("sha256:")[:12],
        )
        for image in images
    ]
    console.table(("NAME", "RUNTIME", "SIZE", "GUEST", "WHERE", "DIGEST"), rows)
    return 0


def _plain_line(step: str, message: str, fraction: float | None) -> None:
    share = "" if fraction is None else f" {fraction:.0%}"
    console.say(f"{step}: {message}{share}")


def _with_bars(make: Any) -> Any:
    """One bar for each step, on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[step]:8}", markup=False, table_column=Column(no_wrap=True, min_width=8)),
        BarColumn(bar_width=20, table_column=Column(min_width=20)),
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
    )
    with Progress(*columns, console=Console(stderr=True), expand=True) as bars:
        current: list[tuple[str, Any]] = []

        def progress(step: str, message: str, fraction: float | None) -> None:
            message = printable_name(message)
            if not current or current[-1][0] != step:
                if current:
                    bars.update(current[-1][1], total=1, completed=1)
                current.append((step, bars.add_task(message, step=step, total=None)))
            total = None if fraction is None else 1
            bars.update(current[-1][1], description=message, total=total, completed=fraction or 0)

        made = make(progress)
        if current:
            bars.update(current[-1][1], total=1, completed=1)
        return made
