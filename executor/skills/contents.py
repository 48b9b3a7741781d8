"""What a skill's folder holds for a model: its files, its documents, its digest, and the bytes of one file.

Rules of this module:
1. It reads below the skill's folder and nothing else. A link counts only if it ends inside that folder.
2. A path that was asked for is hostile: it is a plain relative path or it is refused, before the disk is
   touched.
3. The digest says that a model was shown this version. It covers names and bytes of every file, each with
   its length in front, and depends on nothing else: not on the place, the times or the order of listing.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from executor.errors import BadPathError, SkillUnreadableError
from executor.skills.skill import SKIPPED_FOLDERS, Skill

Kind = Literal["reference", "script", "asset", "file"]
Encoding = Literal["text", "base64"]

MAX_FILES = 5_000  # of one skill; the largest public one has 1,400
MAX_FILE_BYTES = 64 << 20
DOC_SUFFIXES = (".md", ".txt")
# First folder of a path → what its files are. All else is a `file`.
KINDS: dict[str, Kind] = {
    "references": "reference",
    "reference": "reference",
    "docs": "reference",
    "scripts": "script",
    "assets": "asset",
    "graphics": "asset",
    "fonts": "asset",
    "templates": "asset",
}
PATH_RULE = "Skill resource path must be a normalized relative path: {path!r}"


@dataclass(frozen=True)
class Resource:
    """One file of a skill besides its SKILL.md."""

    path: str
    """Relative to the skill, `/`-separated."""
    kind: Kind
    size: int
    """Bytes."""
    encoding: Encoding
    """`text`: UTF-8 without NUL, judged by its bytes; else `base64`."""


@dataclass(frozen=True)
class Contents:
    """A skill's folder as it is now."""

    digest: str
    """SHA-256 of all its files, as hexadecimal digits."""
    resources: tuple[Resource, ...]
    """Sorted by path."""

    @property
    def docs(self) -> tuple[str, ...]:
        """Paths of the text documents (`.md`, `.txt`) that can be selected, sorted."""
        return tuple(resource.path for resource in self.resources if is_doc(resource))


def is_doc(resource: Resource) -> bool:
    """Whether a resource is a document."""
    return resource.encoding == "text" and resource.path.lower().endswith(DOC_SUFFIXES)


def contents(skill: Skill) -> Contents:
    """The files of a skill. The same untouched files are not read twice.

    SkillUnreadableError when the folder is gone or holds too much.
    """
    root = os.fspath(skill.path)
    found = tuple(sorted(_files(root)))
    if len(found) > MAX_FILES:
        raise SkillUnreadableError(f"the skill {skill.slug!r} has more than {MAX_FILES:,} files")
    return _digest(root, found)


def read_resource(skill: Skill, path: str) -> bytes:
    """The bytes of one file, SKILL.md included. BadPathError with the reason when it is not to be had."""
    check_path(path)
    root = os.path.realpath(skill.path)
    try:
        real = os.path.realpath(os.path.join(root, path), strict=True)
        if not real.startswith(root + os.sep):
            raise BadPathError(f"{path!r} is a link that leaves the skill {skill.slug!r}")
        with open(_open(real), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadPathError(f"{path!r} in {skill.slug!r} is not a regular file")
            if status.st_size > MAX_FILE_BYTES:
                raise BadPathError(f"{path!r} in {skill.slug!r} is larger than {MAX_FILE_BYTES:,} bytes")
            return file.read(MAX_FILE_BYTES)
    except (OSError, UnicodeError):
        raise BadPathError(f"Resource not found: {skill.slug}/{path}") from None


def files(skill: Skill) -> Iterator[tuple[str, str]]:
    """(path, where its bytes are on this host) of every file that the digest covers, SKILL.md included."""
    for path, real, *_ in sorted(_files(os.fspath(skill.path))):
        yield path, real


def check_path(path: str) -> None:
    """BadPathError unless it is a plain relative path."""
    if not path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise BadPathError(PATH_RULE.format(path=path[:200]))


def _open(real: str) -> int:
    # Not blocking and not following: since the look the name may have become a pipe or a link.
    return os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)


_Stamp = tuple[str, str, int, int, int, int]  # path, real path, device, inode, size, time of change


def _files(root: str) -> Iterator[_Stamp]:
    real_root = os.path.realpath(root) + os.sep
    folders = [""]
    count = 0
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                listing = list(entries)
        except OSError as error:
            if not folder:
                raise SkillUnreadableError(f"{root} cannot be listed: {error.strerror}") from error
            continue
        for entry in listing:
            path = os.path.join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in SKIPPED_FOLDERS and path.count("/") < 30:
                    folders.append(path)
                continue
            real = os.path.realpath(entry.path)
            try:
                status = os.stat(real)
            except (OSError, ValueError):
                continue
            if stat.S_ISREG(status.st_mode) and real.startswith(real_root):
                count += 1
                yield (path, real, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
                if count > MAX_FILES:
                    return


@lru_cache(maxsize=256)
def _digest(root: str, found: tuple[_Stamp, ...]) -> Contents:
    whole = hashlib.sha256()
    resources = []
    for path, real, *_ in found:
        name = os.fsencode(path)
        one = hashlib.sha256()
        size, text = 0, _Utf8()
        try:
            with open(_open(real), "rb") as file:
                while piece := file.read(1 << 20):
                    one.update(piece)
                    size += len(piece)
                    text.feed(piece)
        except OSError:
            continue
        whole.update(len(name).to_bytes(8, "big") + name + one.digest())
        top = path.split("/", 1)[0] if "/" in path else ""
        if path.lower() != "skill.md" and path.isprintable():  # what a model can name
            encoding: Encoding = "text" if text.end() else "base64"
            resources.append(Resource(path, KINDS.get(top, "file"), size, encoding))
    return Contents(whole.hexdigest(), tuple(resources))


class _Utf8:
    """Whether bytes that come in pieces are text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = True

    def feed(self, piece: bytes) -> None:
        if not self._text:
            return
        try:
            self._text = b"\0" not in piece
            self._decoder.decode(piece)
        except UnicodeDecodeError:
            self._text = False

    def end(self) -> bool:
        try:
            self._decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
        return self._text
