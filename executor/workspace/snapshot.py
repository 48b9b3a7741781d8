"""A snapshot: the files of a session by name, kind, mode, time and hash, and the skills that were staged.

Pure: bytes in, a checked `Snapshot` out, and back. Its id is the hash of its canonical bytes. What it is read
from may come from a stranger, so every part is checked; what it holds is only ever given back to a sandbox.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from executor.workspace.text import to_bytes, to_text

VERSION = 1
KINDS = ("file", "folder", "link")
MOST_BYTES = 64 << 20  # of a manifest: some 250 bytes an entry
MOST_ENTRIES = 300_000  # above the inodes that any sandbox of ours has
MOST_VALUES = 16 * MOST_ENTRIES  # in the JSON, so that no text of that size becomes gigabytes of objects
MOST_SIZE = 1 << 40  # bytes of one file

_HASH = re.compile(r"[0-9a-f]{64}")
_HEX = re.compile(r"[0-9a-f]{8,128}")
_VERSION = re.compile(r"[0-9.]{0,16}", re.ASCII)
_SLUG = re.compile(r"[^/\0]{1,255}")


class DamagedError(ValueError):
    """These bytes are no snapshot; the text says why."""


@dataclass(frozen=True)
class Saved:
    """One entry of a snapshot. `path` is absolute inside the sandbox."""

    path: bytes
    kind: str
    mode: int
    size: int = 0
    mtime_ns: int = 0
    sha256: str = ""
    target: bytes = b""


@dataclass
class Snapshot:
    """A session's files, and the digests of the skills that were staged in it."""

    entries: list[Saved]
    """Sorted by path."""
    skills: dict[str, Any] = field(default_factory=dict)
    """Slug → `digest` of the folder as it was brought, and `files`: name → SHA-256."""
    id: str = ""
    """SHA-256 of what it holds."""
    warnings: list[str] = field(default_factory=list)
    """What was left out when it was taken."""

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.entries)

    @property
    def files(self) -> int:
        """How many files it has."""
        return sum(entry.kind == "file" for entry in self.entries)

    def value(self) -> dict[str, Any]:
        """As JSON."""
        entries = [
            {
                "path": to_text(entry.path),
                "kind": entry.kind,
                "mode": entry.mode,
                "size": entry.size,
                "mtime_ns": entry.mtime_ns,
                "sha256": entry.sha256,
                "target": to_text(entry.target),
            }
            for entry in self.entries
        ]
        return {"version": VERSION, "entries": entries, "skills": self.skills}

    def sealed(self) -> bytes:
        """Canonical bytes, of which `id` becomes the hash. DamagedError when they could not be read back."""
        self.entries.sort(key=lambda entry: entry.path)
        _check_tree(self.entries)
        data = canonical(self.value())
        _check_room(data)
        self.id = hashlib.sha256(data).hexdigest()
        return data


def canonical(value: Any) -> bytes:
    """JSON of which equal values have equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def parse(data: bytes, snapshot_id: str) -> Snapshot:
    """The snapshot of an id. DamagedError when these are not its bytes."""
    if hashlib.sha256(data).hexdigest() != snapshot_id:
        raise DamagedError("it does not have the hash of its name")
    found = check(load_json(data))
    found.id = snapshot_id
    return found


def load_json(data: bytes) -> Any:
    """Bounded in memory and depth."""
    _check_room(data)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"it is no JSON: {str(error)[:200]}") from None


def _check_room(data: bytes) -> None:
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if len(data) > MOST_BYTES or values > MOST_VALUES:
        raise DamagedError("it is too large")


def check(value: Any) -> Snapshot:
    """A snapshot from JSON of whatever origin. DamagedError."""
    if not isinstance(value, dict) or type(value.get("version")) is not int:
        raise DamagedError("it is no snapshot")
    if value["version"] != VERSION:
        raise DamagedError(f"its version is {value['version']}, and this executor knows {VERSION}")
    entries, skills = value.get("entries"), value.get("skills")
    if value.keys() != {"version", "entries", "skills"} or not isinstance(entries, list):
        raise DamagedError("it is no snapshot")
    checked = [_entry(entry) for entry in entries]
    _check_tree(checked)
    return Snapshot(checked, _skills(skills))


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "path": lambda value: isinstance(value, str),
    "kind": lambda value: value in KINDS,
    "mode": lambda value: type(value) is int and 0 <= value <= 0o7777,
    "size": lambda value: type(value) is int and 0 <= value <= MOST_SIZE,
    "mtime_ns": lambda value: type(value) is int and 0 <= value < 1 << 63,
    "sha256": lambda value: isinstance(value, str) and (not value or bool(_HASH.fullmatch(value))),
    "target": lambda value: isinstance(value, str) and "\0" not in value,
}


def _entry(value: Any) -> Saved:
    if not isinstance(value, dict) or value.keys() != _FIELDS.keys():
        raise DamagedError("an entry has other fields than it should")
    for name, holds in _FIELDS.items():
        if not holds(value[name]):
            raise DamagedError(f"an entry has {name}={str(value[name])[:80]!r}")
    path, target = _bytes(value["path"]), _bytes(value["target"])
    entry = Saved(
        path, value["kind"], value["mode"], value["size"], value["mtime_ns"], value["sha256"], target
    )
    if bool(entry.sha256) != (entry.kind == "file") or (entry.size and entry.kind != "file"):
        raise DamagedError(f"{value['path'][:80]!r} is no {entry.kind}")
    return entry


def _bytes(text: str) -> bytes:
    try:
        return to_bytes(text)
    except UnicodeEncodeError:
        raise DamagedError(f"{text[:80]!r} are no bytes") from None


def _check_path(path: bytes) -> None:
    """DamagedError unless it is a canonical path below one of the two roots."""
    empty, *parts = path.split(b"/")
    plain = (
        not empty and 2 <= len(parts) <= 130 and parts[0] in (b"workspace", b"skills") and len(path) <= 4096
    )
    for part in parts:
        plain = plain and part not in (b"", b".", b"..") and b"\0" not in part and len(part) <= 255
    if not plain:
        raise DamagedError(f"{to_text(path)[:80]!r} is no path of a session")


def _check_tree(entries: list[Saved]) -> None:
    """DamagedError unless their number is bounded, their paths are plain and sorted, each stands once,
    nothing is below what is no folder, and links lead somewhere.
    """
    if len(entries) > MOST_ENTRIES:
        raise DamagedError(f"it has more than {MOST_ENTRIES:,} entries")
    leaves: set[bytes] = set()
    for number, entry in enumerate(entries):
        _check_path(entry.path)
        if number and entry.path <= entries[number - 1].path:
            raise DamagedError("its entries are not in order")
        parent = entry.path
        while (parent := parent.rpartition(b"/")[0]) and parent not in leaves:
            pass
        if parent:
            raise DamagedError(f"{to_text(entry.path)[:80]!r} is below what is no folder")
        if entry.kind != "folder":
            leaves.add(entry.path)
        if (entry.kind == "link") != (0 < len(entry.target) < 4096) or b"\0" in entry.target:
            raise DamagedError(f"{to_text(entry.path)[:80]!r} is no {entry.kind}")


def _skills(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DamagedError("its skills are no map")
    for slug, staged in value.items():
        fits = (
            _SLUG.fullmatch(slug)
            and slug not in (".", "..")
            and isinstance(staged, dict)
            and {"digest", "files"} <= staged.keys() <= {"digest", "files", "layer"}
            and isinstance(staged["digest"], str)
            and _is_layer(staged.get("layer"))
            and isinstance(staged["files"], dict)
            and all(isinstance(sha256, str) for sha256 in staged["files"].values())
        )
        if not fits:
            raise DamagedError(f"the skill {slug[:80]!r} is not described as one")
        for name in staged["files"]:
            _bytes(name)
    return value


def _is_layer(value: Any) -> bool:
    """Whether this is what a skill's packages are recorded as; its digest is part of a path on the host."""
    if value is None:
        return True
    return (
        isinstance(value, dict)
        and value.keys() == {"digest", "python", "node", "node_folder"}
        and all(isinstance(value[name], str) for name in ("digest", "python", "node_folder"))
        and type(value["node"]) is bool
        and bool(_HEX.fullmatch(value["digest"]))
        and bool(_VERSION.fullmatch(value["python"]))
        and len(value["node_folder"]) <= 1000
        and not {"..", "."} & set(value["node_folder"].split("/"))
        and not value["node_folder"].startswith("/")
    )
