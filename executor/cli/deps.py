"""`executor deps lock|build|list|gc`: what skills need, without a network in their sandboxes."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from executor.cli import arguments, console, options
from executor.errors import BadRequestError, DependencyError
from executor.workspace.text import plural, printable_name

if TYPE_CHECKING:
    from executor.deps import LayerStore, locks
    from executor.deps.declared import Declared
    from executor.executor import AsyncExecutor
    from executor.skills.skill import Skill

Action = Callable[[], int]
DAY = 86_400
deps_app = typer.Typer(
    help="Lock and build what skills need, so that they run without a network.",
    rich_markup_mode=None,
)
Names = Annotated[
    list[str], typer.Argument(metavar="SKILL…", help="Names in the roots, or paths to folders.")
]


@deps_app.command(
    "lock",
    epilog="""\b
Examples:
  executor deps lock ./my-skill
  executor deps lock report --guess
  executor deps lock ./web --without-scripts core-js""",
)
def _lock(
    names: Names,
    skills: options.Skills = None,
    runtime: options.Runtime = None,
    image: options.Image = None,
    guess: Annotated[
        bool, typer.Option("--guess", help="Take what imports suggest where a skill declares nothing.")
    ] = False,
    without_scripts: Annotated[
        list[str] | None,
        typer.Option(
            "--without-scripts",
            metavar="NAME",
            help="A package of Node that works without its install script; repeatable.",
            show_default=False,
        ),
    ] = None,
    first_index: Annotated[
        bool, typer.Option("--first-index", help="Take a package that several indexes have from the first.")
    ] = False,
    store: Annotated[
        bool, typer.Option("--store", help="Keep the lock on this machine and not beside the SKILL.md.")
    ] = False,
    quiet: options.Quiet = False,
) -> Action:
    """Find exact versions and hashes, write them to executor.lock, and fetch the files."""

    async def one(desk: _Desk, name: str) -> None:
        from executor.deps import building, locks

        skill = desk.skill(name)
        path, fetched = skill.path, skill.origin not in ("", str(skill.place))
        async with desk.bench() as bench:
            lock = await building.lock(
                path,
                bench,
                desk.store,
                guess=guess,
                unscripted=without_scripts or (),
                first_index=first_index,
                tell=desk.tell,
            )
            await building.fetch(path, lock, bench, desk.store, tell=desk.tell)
        # What was fetched is named by its content, which no lock may change.
        where = desk.store.locks / f"{_digest(path)}.lock" if store or fetched else path / locks.FILE
        try:
            locks.write(where, lock)
        except OSError as error:
            raise BadRequestError(
                f"{where} cannot be written: {error.strerror}", hint="Keep it on this machine: --store"
            ) from error
        console.out(f"{name}: {len(lock.python)} Python and {len(lock.node)} Node packages, in {where}")

    return lambda: _each(names, one, skills=skills, runtime=runtime, image=image, quiet=quiet)


@deps_app.command(
    "build",
    epilog="""\b
Examples:
  executor deps build ./my-skill
  executor deps build report web --offline""",
)
def _build(
    names: Names,
    skills: options.Skills = None,
    runtime: options.Runtime = None,
    image: options.Image = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use only what was fetched before.")] = False,
    quiet: options.Quiet = False,
) -> Action:
    """Build the layers of locked skills."""

    async def one(desk: _Desk, name: str) -> None:
        from executor.deps import building

        path = desk.skill(name).path
        lock = desk.lock(path, _digest(path), name)
        began = time.monotonic()
        if lock.empty or desk.store.built(lock.digest):
            console.out(f"{name}: {'needs nothing' if lock.empty else 'was built before'}")
            return
        async with desk.bench() as bench:
            await building.build(path, lock, bench, desk.store, offline=offline, tell=desk.tell)
        console.out(f"{name}: built in {time.monotonic() - began:.1f} s, layer {lock.digest[:12]}")

    return lambda: _each(names, one, skills=skills, runtime=runtime, image=image, quiet=quiet)


@deps_app.command(
    "list",
    epilog="""\b
Examples:
  executor deps list
  executor deps list ./my-skill
  executor deps list --all
  executor deps list --skills ./skills --json""",
)
def _list(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SKILL…]", help="What these need; default with --skills: all of the roots."),
    ] = None,
    skills: options.Skills = None,
    every: Annotated[bool, typer.Option("--all", help="What every skill of the roots needs.")] = False,
    json: options.Json = False,
) -> Action:
    """List the built layers, or what skills declare and whether it is locked and built."""
    if names or skills or every:
        return lambda: _show_skills(names or [], tuple(skills or ()), json)
    return lambda: _show_layers(json)


@deps_app.command(
    "gc",
    epilog="""\b
Examples:
  executor deps gc
  executor deps gc --unused-days 0""",
)
def _gc(
    days: Annotated[
        float, typer.Option("--unused-days", metavar="DAYS", min=0, help="Remove layers unused for so long.")
    ] = 30,
) -> Action:
    """Remove layers that were not used for a while."""

    def action() -> int:
        gone = _store().clean(days * DAY)
        console.out(f"removed {plural(len(gone), 'layer')}")
        return 0

    return action


# --- what they do -------------------------------------------------------------------------------------------


class _Desk:
    """An executor in which the layers of some skills are looked after."""

    def __init__(self, executor: AsyncExecutor, quiet: bool, say: Callable[[str], None]) -> None:
        self._executor = executor
        self.store = executor.layers.store
        self.bench = executor.layers.bench
        self.tell: Callable[[str], None] = (lambda _line: None) if quiet else say

    def skill(self, name: str) -> Skill:
        """A skill by its name in the roots, or by its folder."""
        return self._executor.repository.find(name)

    def lock(self, path: Path, digest: str, name: str) -> locks.Lock:
        """The lock of a skill; DependencyError without one."""
        found = self.store.find_lock(path, digest)
        if found is None:
            raise DependencyError(f"{name!r} is not locked", hint="executor deps lock SKILL")
        return found[0]


def _each(
    names: list[str],
    one: Callable[[_Desk, str], Any],
    *,
    skills: list[str] | None,
    runtime: str | None,
    image: str | None,
    quiet: bool,
) -> int:
    import asyncio

    from executor.deps.hints import naming
    from executor.executor import AsyncExecutor

    again = arguments.again(skills or (), runtime, image)

    async def all_of_them() -> None:
        async with AsyncExecutor(skills=skills, runtime=runtime, image=image) as executor:
            for name in names:
                with _progress(name, quiet) as say, naming(shlex.quote(name) + again):
                    await one(_Desk(executor, quiet, say), name)

    asyncio.run(all_of_them())
    return 0


@contextlib.contextmanager
def _progress(name: str, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Lines on stderr; on a terminal one line that moves."""
    if quiet or not sys.stderr.isatty():
        yield lambda line: console.say(f"{name}: {line}")
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{printable_name(name)}: begins", spinner="dots") as status:
        yield lambda line: status.update(f"{printable_name(name)}: {printable_name(line)}")


def _store() -> LayerStore:
    from executor.deps import LayerStore
    from executor.settings import load

    return LayerStore.of_settings(load())


def _show_layers(json: bool) -> int:
    layers = _store().records()
    if json:
        console.out_json({"layers": layers})
        return 0
    if not layers:
        console.say("no layers here; make one with `executor deps lock SKILL && executor deps build SKILL`")
        return 0
    rows = []
    for layer in layers:
        packages = ", ".join([*layer["python"], *layer["node"]])
        used = time.strftime("%Y-%m-%d", time.localtime(layer["used"]))
        rows.append(
            (layer["digest"][:12], layer["target"]["python"], console.size(layer["size"]), used, packages)
        )
    console.table(("LAYER", "PYTHON", "SIZE", "USED", "PACKAGES"), rows)
    return 0


def _show_skills(names: list[str], roots: tuple[str, ...], json: bool) -> int:
    """Those with these names, or all of the roots."""
    from executor.cli.skills import open_repository
    from executor.deps.declared import declared

    repository = open_repository(roots, told=not names)
    store = _store()
    entries: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    for skill in [repository.find(name) for name in names] if names else repository.skills():
        said = declared(skill.path)
        state = _state(skill.path, said, store)
        entries.append({"skill": skill.slug, "state": state, **dataclasses.asdict(said)})
        rows.append((skill.slug, state, "", ""))
        for kind, wanted in (("python", said.python), ("node", said.node), ("a guess", said.guesses)):
            rows += [("", kind, item.spec, item.where) for item in wanted]
        rows += [("", "refused", item.reason, item.where) for item in said.refused]
        rows += [("", "note", note, "") for note in said.notes]
    if json:
        for entry in entries:
            del entry["node_lock"], entry["hashes"]
        console.out_json({"skills": entries})
        return 0
    if not rows:
        console.say("no skills in these roots")
        return 0
    console.table(("SKILL", "STATE", "WHAT", "WHERE"), rows)
    return 0


def _state(path: Path, said: Declared, store: LayerStore) -> str:
    try:
        found = store.find_lock(path, _digest(path))
    except DependencyError as error:
        said.notes.append(error.message)
        return "lock cannot be used"
    if found is None:
        return "not locked" if not said.empty else "guesses only" if said.guesses else "needs nothing"
    lock = found[0]
    if not lock.answers(said.specs()):
        return "lock out of date"
    return "built" if lock.empty or store.built(lock.digest) else "locked, not built"


def _digest(path: Path) -> str:
    from executor.workspace.staging import Stager

    return Stager().skill(path, most_bytes=1 << 40).digest


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    app.add_typer(deps_app, name="deps")
