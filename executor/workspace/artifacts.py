"""Artifacts: versions of files that outlive their sandbox, in a folder of the host.

    <folder>/<scope>/<name>/<version>/data
    <folder>/<scope>/<name>/<version>/about.json
    <folder>/<scope>/.pins/<place>.json

Rules of this module:
1. A name is the caller's; on the disk it is a key of letters, digits, `.`, `-` and `_` without any `/`, which
   an object store takes as it is and which gives the name back (`key_of`, `name_of`).
2. A version is whole or not there, is never changed, and two writers never get the same number.
3. A reference is `artifact://name@version`; without `@version` it means the latest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.errors import BadRequestError
from executor.workspace import mime

SCHEME = "artifact://"
MAX_BYTES = 64 << 20
MAX_TOTAL_BYTES = 1 << 30
MAX_NAME = 200  # bytes of a name; as a key it may grow
_MAX_KEY = 200
LEFT = 86400.0  # seconds after which what is half made is nobody's
PINS = ".pins"  # no key begins with a dot

_SAFE = re.compile(r"[A-Za-z0-9.-]")
_ESCAPE = re.compile(r"_([0-9a-f]{2})")
_VERSIONED = re.compile(r"(.*)@(\d{1,9})", re.DOTALL)


@dataclass(frozen=True)
class Artifact:
    """One version of a named file."""

    name: str
    version: int
    """0 is the first."""
    size: int
    """Bytes."""
    mime: str
    sha256: str

    @property
    def ref(self) -> str:
        """`artifact://name@version`."""
        return f"{SCHEME}{self.name}@{self.version}"


class ArtifactStore:
    """Artifacts of one `scope` (a session, a user) below `folder`, which is made when something is saved.

    `max_bytes`: of one artifact, default 64 MiB. `max_total_bytes`: of the whole scope, default 1 GiB.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        scope: str = "default",
        max_bytes: int = MAX_BYTES,
        max_total_bytes: int = MAX_TOTAL_BYTES,
    ) -> None:
        self.folder = Path(folder)
        self.scope = scope
        self.max_bytes = max_bytes
        self.max_total_bytes = max_total_bytes
        self._root = self.folder / key_of(scope)

    def save(self, name: str, data: bytes) -> Artifact:
        """Keep `data` as the next version of `name`. BadRequestError for a bad name or too much."""
        check_name(name)
        if len(data) > self.max_bytes:
            raise BadRequestError(
                f"{name!r} has {len(data):,} bytes and an artifact may have {self.max_bytes:,}",
                hint="Save a smaller file, or several parts.",
            )
        if (held := self._held()) + len(data) > self.max_total_bytes:
            raise BadRequestError(
                f"{name!r} does not fit: {held:,} of {self.max_total_bytes:,} bytes of artifacts are used",
            )
        about = {
            "name": name,
            "size": len(data),
            "mime": mime.guess(name.rpartition("/")[2], data[: mime.HEAD_BYTES], len(data)),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        try:
            return self.get(name, self._add(self._root / key_of(name), name, data, about))
        except OSError as error:
            raise BadRequestError(f"{name!r} cannot be kept in {self.folder}: {error.strerror}") from error

    def _add(self, place: Path, name: str, data: bytes, about: dict[str, Any]) -> int:
        """Write the next version; its number."""
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        making = place / f".new-{secrets.token_hex(8)}"
        making.mkdir(mode=0o700)
        _remove_left(place)
        try:
            (making / "data").write_bytes(data)
            (making / "about.json").write_text(json.dumps(about), "utf-8")
            version = max(self.versions(name), default=-1) + 1
            while not _renamed(making, place / str(version)):
                version += 1
        finally:
            shutil.rmtree(making, ignore_errors=True)
        return version

    def get(self, name: str, version: int | None = None) -> Artifact:
        """One version, by default the latest. BadRequestError when there is none."""
        check_name(name)
        there = self.versions(name)
        if not there or (version is not None and version not in there):
            wanted = name if version is None else f"{name}@{version}"
            known = f"versions 0 to {there[-1]}" if there else "no version of it"
            raise BadRequestError(f"there is no artifact {wanted!r}: {known} was saved in this scope")
        number = there[-1] if version is None else version
        about = json.loads((self._root / key_of(name) / str(number) / "about.json").read_text("utf-8"))
        return Artifact(about["name"], number, about["size"], about["mime"], about["sha256"])

    def read(self, artifact: Artifact) -> bytes:
        """Its bytes. BadRequestError when they are not what was saved."""
        data = (self._root / key_of(artifact.name) / str(artifact.version) / "data").read_bytes()
        if hashlib.sha256(data).hexdigest() != artifact.sha256:
            raise BadRequestError(f"the artifact {artifact.ref} was changed on the disk")
        return data

    def versions(self, name: str) -> list[int]:
        """The versions there are, ascending."""
        try:
            found = os.listdir(self._root / key_of(name))
        except FileNotFoundError:
            return []
        return sorted(int(entry) for entry in found if entry.isdigit())

    def names(self) -> list[str]:
        """The names there are, sorted."""
        try:
            found = os.listdir(self._root)
        except FileNotFoundError:
            return []
        names = []
        for folder in found:
            # What a killed process left half made is no version: its name begins with a dot.
            for about in (self._root / folder).glob("[0-9]*/about.json") if folder != PINS else ():
                names.append(json.loads(about.read_text("utf-8"))["name"])
                break
        return sorted(names)

    def resolve(self, ref: str, *, pin: str = "") -> Artifact:
        """What a reference means. `pin`: the place it goes to; the version chosen for a place the first time
        stays for that place, whatever is saved later, unless the reference names another one.
        """
        name, version = parse_ref(ref)
        if version is None and pin:
            kept = self._pin(pin)
            if kept.get("name") == name:
                return self.get(name, int(kept["version"]))
        artifact = self.get(name, version)
        if pin:
            self._keep_pin(pin, {"name": name, "version": artifact.version})
        return artifact

    def _held(self) -> int:
        total = 0
        for data in self._root.glob("*/[0-9]*/data"):
            with contextlib.suppress(FileNotFoundError):
                total += data.stat().st_size
        return total

    def _pin(self, place: str) -> dict[str, Any]:
        try:
            found = json.loads((self._root / PINS / f"{key_of(place)}.json").read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _keep_pin(self, place: str, pin: dict[str, Any]) -> None:
        folder = self._root / PINS
        folder.mkdir(exist_ok=True, mode=0o700)
        part = folder / f".new-{secrets.token_hex(8)}"
        part.write_text(json.dumps(pin), "utf-8")
        os.replace(part, folder / f"{key_of(place)}.json")


def _remove_left(place: Path) -> None:
    """What processes left that were killed while they saved, a day or longer ago."""
    for left in place.glob(".new-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT:
                shutil.rmtree(left)


def _renamed(folder: Path, target: Path) -> bool:
    """False when another writer was first: a version that is there is never empty."""
    try:
        os.rename(folder, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def parse_ref(ref: str) -> tuple[str, int | None]:
    """(name, version or None) of `artifact://name[@version]`. BadRequestError."""
    if not ref.startswith(SCHEME):
        scheme = ref.split("://", 1)[0] if "://" in ref else ref
        raise BadRequestError(f"unsupported input: {scheme[:80]!r}", hint=f"Write {SCHEME}name@version.")
    rest = ref.removeprefix(SCHEME)
    match = _VERSIONED.fullmatch(rest)
    name, version = (match[1], int(match[2])) if match else (rest, None)
    check_name(name)
    return name, version


def check_name(name: str) -> None:
    """BadRequestError unless an artifact may have this name: a plain relative path, printable."""
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts):
        raise BadRequestError(f"{name[:80]!r} cannot be an artifact's name: it is no plain relative path")
    if not name.isprintable() or "\\" in name or _VERSIONED.fullmatch(name):
        raise BadRequestError(
            f"{name[:80]!r} cannot be an artifact's name: it has a control character, a '\\' or an '@version'"
        )
    if len(name.encode("utf-8")) > MAX_NAME:
        raise BadRequestError(f"{name[:80]!r}… cannot be an artifact's name: more than {MAX_NAME} bytes")


def key_of(name: str) -> str:
    """A name as one component that any file system and any object store takes. Different names differ."""

    def escape(character: str) -> str:
        if _SAFE.fullmatch(character):
            return character
        return "".join(f"_{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))

    key = "".join(map(escape, name))
    if key.startswith((".", "-")):
        key = f"_{ord(key[0]):02x}{key[1:]}"
    if len(key) > _MAX_KEY:
        return (
            key[: _MAX_KEY - 34]
            + "__"
            + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        )
    return key


def name_of(key: str) -> str:
    """The name that a key was made of; of one that was too long its beginning."""
    raw = bytearray()
    position = 0
    while position < len(key):
        if match := _ESCAPE.match(key, position):
            raw.append(int(match[1], 16))
            position = match.end()
        else:
            raw += key[position].encode()
            position += 1
    return raw.decode("utf-8", "replace")
