"""`executor sessions`: the sessions that this machine keeps, and taking them to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from executor.cli import options
from executor.errors import BadRequestError
from executor.workspace.text import plural

if TYPE_CHECKING:
    from executor.state import KeptSession
    from executor.workspace.checkpoint import Store

Action = Callable[[], int]
HEADERS = ("session", "state", "runtime", "files", "size", "used", "skills", "last run")
AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))

sessions_app = typer.Typer(
    help="List, remove and move the sessions that are kept on this machine.",
    rich_markup_mode=None,
)
Id = Annotated[str, typer.Argument(metavar="ID", help="A session, as `executor sessions list` names it.")]


@sessions_app.command(
    "list",
    epilog="""State: `open` somewhere; `interrupted`: a run was under way as its process ended; `kept`: with
files; `empty`: without; `loaded`: an agent has loaded skills in it, and nothing else is kept.

\b
Examples:
  executor sessions list
  executor sessions list --json | jq -r '.sessions[] | select(.state == "kept") | .id'""",
)
def _list(json: options.Json = False) -> Action:
    """List the sessions, the one used last first."""
    return partial(list_sessions, json=json)


@sessions_app.command(
    "rm",
    epilog="""\b
Examples:
  executor sessions rm my-session
  executor sessions rm old-1 old-2 --force""",
)
def _rm(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Sessions to remove.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also one that is open: what it does from now on is not kept.")
    ] = False,
    json: options.Json = False,
) -> Action:
    """Remove sessions: their files, their record and what was loaded in them."""
    return partial(remove_sessions, tuple(ids), force=force, json=json)


@sessions_app.command(
    "export",
    epilog="""\b
Examples:
  executor sessions export my-session
  executor sessions export my-session /mnt/backup/my-session.tar.gz --overwrite""",
)
def _export(
    session: Id,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="A tar; in gzip when it ends in gz. [default: ID.tar.gz]",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.")] = False,
    json: options.Json = False,
) -> Action:
    """Write a session's latest checkpoint to one file, which any tar program can look into."""
    return partial(export, session, file or Path(f"{session}.tar.gz"), overwrite=overwrite, json=json)


@sessions_app.command(
    "import",
    epilog="""\b
Examples:
  executor sessions import my-session.tar.gz
  executor sessions import my-session.tar.gz --as copy && executor run my-skill --session copy -- ls""",
)
def _import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `executor sessions export` wrote.")],
    session: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="Another id for it.", show_default=False)
    ] = None,
    json: options.Json = False,
) -> Action:
    """Take a session from a file; it goes on with `executor run --session ID`, on any runtime."""
    return partial(take_in, file, session, json=json)


@sessions_app.command(
    "gc",
    epilog="""\b
Examples:
  executor sessions gc""",
)
def _gc(json: options.Json = False) -> Action:
    """Clear away contents that no session needs any more. It happens by itself now and then."""
    return partial(clear, json=json)


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    app.add_typer(sessions_app, name="sessions")


def list_sessions(*, json: bool) -> int:
    """The exit status."""
    from executor.cli import console
    from executor.skills.store import StateStore
    from executor.state import FILE

    store = _store()
    kept = store.sessions.all()
    loaded = StateStore(store.folder / FILE).sessions()
    found = [_about(session, loaded.pop(session.id, [])) for session in kept]
    found += [_only_loaded(name, skills) for name, skills in sorted(loaded.items())]
    warnings = [*store.sessions.database.warnings, *map(_aside, store.sessions.database.set_aside)]
    if json:
        console.out_json({"sessions": found, "warnings": warnings})
        return 0
    for warning in warnings:
        console.say(warning, kind="warning")
    if not found:
        console.say(f"no session is kept in {store.folder}")
        console.say("executor run SKILL --session ID keeps one", kind="hint")
        return 0
    console.table(HEADERS, [_row(about) for about in found], clipped="skills")
    return 0


def remove_sessions(ids: Sequence[str], *, force: bool, json: bool) -> int:
    """The exit status. BadRequestError before anything is removed when one is open or unknown."""
    from executor.cli import console
    from executor.skills.store import StateStore
    from executor.state import FILE

    store = _store()
    loaded = StateStore(store.folder / FILE)
    known = {session.id: session for session in store.sessions.all(runs=0)}
    for name in ids:
        if name not in known and name not in loaded.sessions():
            raise BadRequestError(
                f"there is no session {name!r} in {store.folder}",
                hint="`executor sessions list` shows those that there are.",
            )
        if name in known and known[name].open and not force:
            store.sessions.forget(name)  # raises, and says who has it open
    for name in ids:
        store.sessions.forget(name, force=force)
        loaded.forget(name)
    _, _, size = _cleared(store)
    if json:
        console.out_json({"removed": list(ids), "bytes": size})
    else:
        console.say(f"removed {', '.join(ids)}; {console.size(size)} are free")
    return 0


def export(session: str, file: Path, *, overwrite: bool, json: bool) -> int:
    """The exit status."""
    from executor.cli import console
    from executor.workspace.archive import export_session

    kept = export_session(_store(), session, file, overwrite=overwrite)
    size = file.stat().st_size
    if json:
        about = {"session": session, "file": str(file), "files": kept.files, "size": kept.size, "bytes": size}
        console.out_json({**about, "snapshot": kept.snapshot, "saved": kept.saved})
    else:
        console.say(f"session {session} is in {file}: {plural(kept.files, 'file')}, {console.size(size)}")
    return 0


def take_in(file: Path, session: str | None, *, json: bool) -> int:
    """The exit status."""
    from executor.cli import console
    from executor.workspace.archive import import_session

    found = import_session(_store(), file, session=session)
    if json:
        console.out_json({"session": found.session, "files": found.files, "size": found.size})
    else:
        console.say(f"session {found.session} is here, with {plural(found.files, 'file')}")
        console.say(f"executor run SKILL --session {found.session} -- COMMAND goes on with it", kind="hint")
    return 0


def clear(*, json: bool) -> int:
    """The exit status."""
    from executor.cli import console

    snapshots, contents, size = _store().clear()
    if json:
        console.out_json({"snapshots": snapshots, "contents": contents, "bytes": size})
    else:
        gone = f"{plural(snapshots, 'snapshot')}, {plural(contents, 'content')}"
        console.say(f"{console.size(size)} cleared away: {gone}")
    return 0


def _store() -> Store:
    from executor.settings import load
    from executor.workspace.checkpoint import Store

    return Store(load().state_folder)


def _cleared(store: Store) -> tuple[int, int, int]:
    """Clear away, unless others are at work: then the next one does it."""
    from executor.cli import console
    from executor.errors import ExecutorError

    try:
        return store.clear(patience=2.0)
    except ExecutorError as error:
        console.say(f"{error.message}; executor sessions gc does it later", kind="warning")
        return 0, 0, 0


def _about(session: KeptSession, loaded: list[str]) -> dict[str, Any]:
    run = session.runs[-1] if session.runs else None
    return {
        "id": session.id,
        "state": _state(session),
        "runtime": session.runtime,
        "image": session.image,
        "limits": session.limits,
        "durable": session.durable,
        "owner": session.owner or None,
        "created": session.created,
        "used": session.used,
        "saved": session.saved or None,
        "snapshot": session.snapshot or None,
        "files": session.files,
        "size": session.size,
        "skills": list(session.skills),
        "loaded": loaded,
        "last_run": None if run is None else vars(run) | {"status": _run_state(session, run.status)},
    }


def _only_loaded(name: str, loaded: list[str]) -> dict[str, Any]:
    """A session of which an agent has loaded skills, and nothing else is kept."""
    empty = dict.fromkeys(("image", "limits", "owner", "created", "used", "saved", "snapshot", "last_run"))
    rest = {"durable": False, "files": 0, "size": 0, "skills": [], "loaded": loaded}
    return {"id": name, "state": "loaded", "runtime": "", **empty, **rest}


def _state(session: KeptSession) -> str:
    if session.open:
        return "open"
    if session.runs and _run_state(session, session.runs[-1].status) == "interrupted":
        return "interrupted"
    return "kept" if session.snapshot else "empty"


def _run_state(session: KeptSession, status: str) -> str:
    return "interrupted" if status == "begun" and not session.open else status


def _row(about: dict[str, Any]) -> list[str]:
    from executor.cli import console

    run = about["last_run"]
    skills = sorted({*about["skills"], *about["loaded"]})
    return [
        about["id"],
        about["state"],
        about["runtime"],
        f"{about['files']:,}",
        console.size(about["size"]),
        _age(about["used"]),
        ", ".join(skills),
        f"{run['status']} {_age(run['begun'])}" if run else "",
    ]


def _age(when: float | None) -> str:
    """How long ago, in its largest unit."""
    if when is None:
        return ""
    seconds = max(0, int(time.time() - when))
    size, unit = next(((size, unit) for size, unit in AGES if seconds >= size), AGES[-1])
    return f"{seconds // size} {unit} ago"


def _aside(path: Path) -> str:
    return f"{path} was no usable database and was set aside; remove it when it is not wanted any more"
