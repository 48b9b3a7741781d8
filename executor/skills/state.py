"""Which skills an agent has loaded in a session: pinned to what they were, in the order they were touched.

Rules of this module:
1. One `SkillState` is one (session, agent). No call of one agent ever shows or changes what another has.
2. What is loaded is frozen: body, selected documents and digest stay as they were when they were loaded,
   whatever happens to the source. A new version comes with a new load.
3. A change is whole: it is checked before anything is written, and written in one transaction.
4. It opens no skill and renders nothing: it is given an `Expansion` and gives back `Loaded`.

How long a load lives, by mode:

    once      for one model request
    turn      until the next turn of the conversation begins (default)
    run       until another run begins (`begin_run`); turns do not matter
    session   until it is unloaded, or falls out of the `most` recently touched ones
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from executor.errors import BadRequestError, SkillNotFoundError
from executor.skills.contents import Resource
from executor.skills.store import Event, Record, StateStore

Mode = Literal["once", "turn", "run", "session"]
SelectMode = Literal["add", "replace", "clear"]
EXPANDED, UNLOADED, DOCS = "skill_expanded", "skill_unloaded", "skill_docs"


@dataclass(frozen=True)
class Expansion:
    """A skill as it is when it is loaded: what will be pinned."""

    skill: str
    """Its slug."""
    digest: str
    body: str
    resources: tuple[Resource, ...] = ()
    docs: Mapping[str, str] = field(default_factory=dict)
    """Selected documents: path → text, in order."""
    all_docs: bool = False
    """Every document was asked for."""
    tools: tuple[str, ...] = ()
    """Tools that can be called only while it is active."""
    rules: tuple[str, ...] = ()
    """The only tools that may be called while it is active, as `Bash(git add:*)`; none means all."""


@dataclass(frozen=True)
class Loaded(Expansion):
    """A loaded skill."""

    mode: Mode = "turn"
    declared: bool = False
    """The caller loaded it and not the model."""


@dataclass(frozen=True)
class LoadRequest:
    """A load that the caller declares. `docs` or `include_all_docs`, not both."""

    name: str
    docs: tuple[str, ...] = ()
    include_all_docs: bool = False


class SkillState:
    """The loaded skills of one agent in one session.

    `mode`: how long a load lives that brings no mode of its own. `most`: how many may be loaded; those
    touched longest ago go first (default: any number).
    """

    def __init__(
        self,
        store: StateStore,
        *,
        session: str,
        agent: str = "main",
        mode: Mode = "turn",
        most: int | None = None,
    ) -> None:
        if mode not in get_args(Mode):
            mode = "turn"
        if most is not None and most < 1:
            raise BadRequestError(f"most={most} loaded skills: it has to be at least 1, or None")
        self.store = store
        self.session = session
        self.agent = agent
        self.mode: Mode = mode
        self.most = most

    # -- what is loaded --

    def loaded(self) -> list[Loaded]:
        """Every loaded skill, the one touched longest ago first."""
        record = self.store.read(self.session, self.agent)
        return [_view(entry, record.texts.get(entry["skill"], {})) for entry in _entries(record)]

    def get(self, skill: str) -> Loaded | None:
        """One loaded skill."""
        return next((loaded for loaded in self.loaded() if loaded.skill == skill), None)

    def owners(self, tool: str) -> list[str]:
        """The active skills that declare a scoped tool, the most recent last. [] means: not to be called."""
        return [loaded.skill for loaded in self.loaded() if tool in loaded.tools]

    def history(self) -> list[Event]:
        """Expansions, selections and unloads since the beginning, oldest first; what ended stays."""
        return self.store.history(self.session, self.agent)

    # -- the model's changes --

    def load(self, expansion: Expansion, *, mode: Mode | None = None, declared: bool = False) -> Loaded:
        """Load or load anew. It becomes the most recent one; beyond `most` the oldest ones go."""
        with self._edit() as record:
            self._put(record, expansion, mode or self.mode, declared)
            self._cap(record)
        loaded = self.get(expansion.skill)
        assert loaded is not None
        return loaded

    def touch(self, skill: str) -> None:
        """Make a loaded skill the most recent one."""
        with self._edit() as record:
            entries = _entries(record)
            entries.append(entries.pop(_index(entries, skill)))

    def select(
        self,
        skill: str,
        docs: Mapping[str, str],
        *,
        mode: str = "replace",
        include_all: bool = False,
    ) -> Loaded:
        """Change which documents of a loaded skill are shown: `add` to them, `replace` them, or `clear`.

        A mode that does not exist means `replace`. Once all are selected only `clear` changes that.
        """
        with self._edit() as record:
            entries = _entries(record)
            entry = entries.pop(_index(entries, skill))
            entries.append(entry)
            texts = record.texts.setdefault(skill, {})
            before = (list(entry["docs"]), entry["all_docs"])
            if mode == "clear":
                chosen: dict[str, str] = {}
                entry["all_docs"] = False
            elif entry["all_docs"]:
                chosen = {path: texts[path] for path in entry["docs"]}
            else:
                kept = {path: texts[path] for path in entry["docs"]} if mode == "add" else {}
                chosen = {**kept, **docs}
                entry["all_docs"] = include_all
            entry["docs"] = list(chosen)
            record.texts[skill] = {"": texts[""], **chosen}
            if before != (entry["docs"], entry["all_docs"]):
                reason = "*" if entry["all_docs"] else ", ".join(entry["docs"])
                record.events.append((DOCS, skill, entry["digest"], reason))
        loaded = self.get(skill)
        assert loaded is not None
        return loaded

    def unload(self, skill: str) -> None:
        """Take one out. SkillNotFoundError when it is not loaded."""
        with self._edit() as record:
            _index(_entries(record), skill)
            _drop(record, [skill], "unload")

    def exit(self) -> str | None:
        """Take out the one that was activated most recently; its slug, or None when nothing is active."""
        with self._edit() as record:
            entries = _entries(record)
            if not entries:
                return None
            last = str(max(entries, key=lambda entry: entry["activated"])["skill"])
            _drop(record, [last], "exit")
        return last

    def clear(self) -> None:
        """Take out everything."""
        with self._edit() as record:
            _drop(record, [entry["skill"] for entry in _entries(record)], "clear")

    # -- the caller's changes --

    def begin_turn(self, declared: Sequence[Expansion] = (), *, catalogue: str = "") -> bool:
        """A new turn: loads of mode `turn` and `once` end, and `declared` ones begin, in one change.

        `catalogue`: its fingerprint, which is kept. Returns whether it is another one than that of the turn
        before. BadRequestError when more are declared than may be loaded; then nothing has changed.
        """
        if self.most is not None and len(declared) > self.most:
            raise BadRequestError(
                f"{len(declared)} skills are declared and at most {self.most} may be loaded",
                hint="Declare fewer, or raise the cap.",
            )
        with self._edit() as record:
            ended = [entry["skill"] for entry in _entries(record) if entry["mode"] in ("turn", "once")]
            _drop(record, ended, "turn")
            for expansion in declared:
                self._put(record, expansion, self.mode, True)
            self._cap(record)
            changed = bool(record.value.get("catalogue", catalogue) != catalogue)
            record.value["catalogue"] = catalogue
        return changed

    def begin_run(self, run: str) -> None:
        """A run begins or goes on. When it is another one than before, loads of mode `run` end."""
        with self._edit() as record:
            if record.value.get("run") != run:
                _drop(record, [e["skill"] for e in _entries(record) if e["mode"] == "run"], "run")
            record.value["run"] = run

    def begin_request(self) -> list[Loaded]:
        """A model request: what it is to show. Loads of mode `once` that an earlier one showed end."""
        with self._edit() as record:
            shown = [e["skill"] for e in _entries(record) if e["mode"] == "once" and e["shown"]]
            _drop(record, shown, "once")
            for entry in _entries(record):
                entry["shown"] = True
            self._cap(record)
        return self.loaded()

    # -- inside --

    def _edit(self) -> Any:
        return self.store.edit(self.session, self.agent)

    def _put(self, record: Record, expansion: Expansion, mode: Mode, declared: bool) -> None:
        entries = _entries(record)
        entries[:] = [entry for entry in entries if entry["skill"] != expansion.skill]
        record.value["activations"] = number = record.value.get("activations", 0) + 1
        entries.append(
            {
                "skill": expansion.skill,
                "digest": expansion.digest,
                "resources": [[r.path, r.kind, r.size, r.encoding] for r in expansion.resources],
                "docs": list(expansion.docs),
                "all_docs": expansion.all_docs,
                "tools": list(expansion.tools),
                "rules": list(expansion.rules),
                "mode": mode if mode in get_args(Mode) else "turn",
                "declared": declared,
                "activated": number,
                "shown": False,
            }
        )
        record.texts[expansion.skill] = {"": expansion.body, **expansion.docs}
        record.events.append(
            (EXPANDED, expansion.skill, expansion.digest, "declared" if declared else "load")
        )

    def _cap(self, record: Record) -> None:
        if self.most is not None:
            surplus = [entry["skill"] for entry in _entries(record)[: -self.most]]
            _drop(record, surplus, "cap")


def merge_requests(requests: Iterable[LoadRequest], *, most: int | None = None) -> list[LoadRequest]:
    """Declared loads, trimmed and with equal ones merged. BadRequestError for what contradicts itself."""
    merged: dict[str, LoadRequest] = {}
    for request in requests:
        name = request.name.strip()
        docs = tuple(doc.strip() for doc in request.docs)
        wrong = None
        if not name:
            wrong = "a declared load has no name"
        elif docs and request.include_all_docs:
            wrong = f"{name!r} asks for certain docs and for all of them"
        elif "" in docs:
            wrong = f"{name!r} asks for a doc without a name"
        elif "skill.md" in (doc.lower() for doc in docs):
            wrong = f"{name!r} asks for SKILL.md, which is no doc: it comes with every load"
        elif len(set(docs)) != len(docs):
            wrong = f"{name!r} asks for a doc twice"
        tidy = LoadRequest(name, docs, request.include_all_docs)
        if wrong is None and merged.setdefault(name, tidy) != tidy:
            wrong = f"{name!r} is declared twice, with different docs"
        if wrong is not None:
            raise BadRequestError(f"invalid load request: {wrong}")
    if most is not None and len(merged) > most:
        raise BadRequestError(f"invalid load request: {len(merged)} skills, and at most {most} may be loaded")
    return list(merged.values())


def _entries(record: Record) -> list[dict[str, Any]]:
    found = record.value.setdefault("loaded", [])
    assert isinstance(found, list)
    return found


def _index(entries: list[dict[str, Any]], skill: str) -> int:
    for index, entry in enumerate(entries):
        if entry["skill"] == skill:
            return index
    names = ", ".join(entry["skill"] for entry in entries) or "none"
    raise SkillNotFoundError(f"the skill {skill!r} is not loaded (loaded: {names})", hint="Load it first.")


def _drop(record: Record, skills: Sequence[str], reason: str) -> None:
    entries = _entries(record)
    for entry in copy.copy(entries):
        if entry["skill"] in skills:
            entries.remove(entry)
            record.texts.pop(entry["skill"], None)
            record.events.append((UNLOADED, entry["skill"], entry["digest"], reason))


def _view(entry: dict[str, Any], texts: dict[str, str]) -> Loaded:
    return Loaded(
        skill=entry["skill"],
        digest=entry["digest"],
        body=texts.get("", ""),
        resources=tuple(Resource(*row) for row in entry["resources"]),
        docs={path: texts[path] for path in entry["docs"] if path in texts},
        all_docs=entry["all_docs"],
        tools=tuple(entry["tools"]),
        rules=tuple(entry.get("rules", ())),
        mode=entry["mode"],
        declared=entry["declared"],
    )
