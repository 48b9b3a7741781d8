"""Host folders as records for a sandbox: skills (mended, linked, digested) and inputs (as they are).

The host's side of it reads with descriptors and never follows a link while it walks: a skill may come from
anywhere. Links are kept only where they resolve inside the folder. What is left out is said in `warnings`.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from executor.errors import BadPathError, SkillUnreadableError
from executor.guest import records
from executor.guest.records import PIECE
from executor.places import settled
from executor.workspace.layout import SKILL_LINKS
from executor.workspace.text import to_text

MAX_FILES = 20_000  # of one folder; the largest real skill has 313
MOST_KNOWN = 200_000  # entries that a stager remembers
LEFT_OUT = {b".git", b".hg", b".svn"}
SHELL_NAMES = (b".sh", b".bash")
_BOM = b"\xef\xbb\xbf"
_SHELL = re.compile(rb"#![^\n]*\b(?:ba|da|z|k)?sh\b")


@dataclass(frozen=True)
class Item:
    """One entry of a folder. `target` is a link's; `content` is set when the copy differs from the file."""

    name: bytes
    kind: int
    mode: int = 0
    size: int = 0
    path: str = ""
    target: bytes = b""
    content: bytes | None = None
    sha256: str = ""


@dataclass
class Folder:
    """What will be copied, with its digest."""

    items: list[Item]
    warnings: list[str] = field(default_factory=list)
    digest: str = ""
    size: int = 0

    def records(self) -> Iterator[bytes]:
        """The folder as records, read piece by piece. OSError when a file goes away meanwhile."""
        for item in self.items:
            if item.kind == records.FOLDER:
                yield records.pack_record(records.FOLDER, item.name, 0o755)
            elif item.kind == records.LINK:
                yield records.pack_record(records.LINK, item.name, 0o777, len(item.target), 0, True)
                yield records.pack_chunk(item.target) + records.pack_end()
            elif item.content is not None:
                yield from bytes_records(item.name, item.content, item.mode)
            else:
                yield from file_records(item.name, item.path, item.mode)

    def manifest(self) -> dict[bytes, str]:
        """name → SHA-256 of every file as it will be inside."""
        return {item.name: item.sha256 for item in self.items if item.kind == records.REGULAR}


def bytes_records(name: bytes, content: bytes, mode: int = 0o644) -> Iterator[bytes]:
    """One file from memory."""
    if len(content) <= PIECE:
        yield records.pack_file(name, content, mode)
        return
    yield records.pack_record(records.REGULAR, name, mode, len(content), 0, True)
    for offset in range(0, len(content), PIECE):
        yield records.pack_chunk(content[offset : offset + PIECE])
    yield records.pack_end()


def file_records(name: bytes, path: str | os.PathLike[str], mode: int = 0o644) -> Iterator[bytes]:
    """One file from disk, opened without following a link."""
    fd = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        size = os.fstat(fd).st_size
        head = records.pack_record(records.REGULAR, name, mode, size, 0, True)
        piece = os.read(fd, PIECE)
        if len(piece) < PIECE and not (more := os.read(fd, PIECE)):
            yield head + (records.pack_chunk(piece) if piece else b"") + records.pack_end()
            return
        elif len(piece) < PIECE:
            piece += more
        yield head
        while piece:
            yield records.pack_chunk(piece)
            piece = os.read(fd, PIECE)
        yield records.pack_end()
    finally:
        os.close(fd)


_FLAGS = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


Stamp = tuple[int, ...]
"""What of an entry's stat changes whenever the entry does."""


@dataclass
class Reading:
    """One walk through a folder: what was found, and by what to see that it is all still the same."""

    root: str
    mend: bool
    most_bytes: int
    folder: Folder
    stamps: list[tuple[str, Stamp]] = field(default_factory=list)
    """Of each folder and file. A folder's changes with the names in it."""
    links: list[tuple[str, bytes, Item | None]] = field(default_factory=list)
    """path, name and what became of it: where a link leads may change far from it."""

    def settled(self, now: int) -> bool:
        """False when something changed just now: it may change again and look the same."""
        return all(settled(now, *stamp[:2]) for _, stamp in self.stamps)


class Stager:
    """Reads folders and remembers, by stat, what it has hashed."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], tuple[Stamp, Item]] = {}
        self._readings: dict[str, Reading] = {}
        """Skills as they were read last, by their real path."""

    def skill(self, path: Path, *, most_bytes: int) -> Folder:
        """A skill's copy: scripts executable and mended, links to the workspace added, all of it digested.

        SkillUnreadableError when it is too large or cannot be read. It is the same object for as long as
        nothing changes.
        """
        real = os.path.realpath(path)
        before = self._readings.get(real)
        if before is not None and before.folder.size <= most_bytes and _unchanged(before):
            return before.folder
        now = time.time_ns()
        reading = self._read(path, real, mend=True, most_bytes=most_bytes)
        folder = reading.folder
        own = {item.name.split(b"/", 1)[0] for item in folder.items}
        for name, target in SKILL_LINKS.items():
            if name.encode() in own:
                folder.warnings.append(f"the skill has its own {name}/: it is kept, and no link to {target}")
            else:
                folder.items.append(Item(name.encode(), records.LINK, target=target.encode()))
        folder.digest = _digest(folder.items)
        self._readings.pop(real, None)
        if reading.settled(now):
            if sum(len(known.stamps) for known in self._readings.values()) > MOST_KNOWN:
                self._readings.clear()
            self._readings[real] = reading
        return folder

    def inputs(self, path: Path, *, most_bytes: int) -> Folder:
        """A folder of inputs, unchanged. BadPathError when it is too large or cannot be read."""
        try:
            return self._read(path, os.path.realpath(path), mend=False, most_bytes=most_bytes).folder
        except SkillUnreadableError as error:
            raise BadPathError(error.message, hint=error.hint) from error

    def _read(self, path: Path, real: str, *, mend: bool, most_bytes: int) -> Reading:
        folder = Folder([])
        reading = Reading(real, mend, most_bytes, folder)
        try:
            for item in self._walk(real, b"", reading):
                folder.items.append(item)
                folder.size += item.size
                if len(folder.items) > MAX_FILES:
                    raise SkillUnreadableError(f"{path} has more than {MAX_FILES:,} files")
                if folder.size > most_bytes:
                    raise _too_large(path, most_bytes)
        except OSError as error:
            raise SkillUnreadableError(
                f"{path} cannot be read: {error.strerror}: {error.filename}"
            ) from error
        return reading

    def _walk(self, folder: str, prefix: bytes, reading: Reading) -> Iterator[Item]:
        warnings = reading.folder.warnings
        reading.stamps.append((folder, _stamp(os.lstat(folder))))
        with os.scandir(folder) as entries:
            found = sorted([(os.fsencode(entry.name), entry) for entry in entries])
        for raw, entry in found:
            name = prefix + raw
            if entry.is_symlink():
                link = _link(entry.path, name, reading.root)
                reading.links.append((entry.path, name, link))
                if link is None:
                    warnings.append(
                        f"the link {to_text(name)!r} leads out of the folder or nowhere: left out"
                    )
                else:
                    yield link
            elif entry.is_dir(follow_symlinks=False):
                if raw in LEFT_OUT:
                    continue
                if name.count(b"/") > 60:
                    warnings.append(f"{to_text(name)!r} is too deep: left out")
                    continue
                yield Item(name, records.FOLDER)
                yield from self._walk(entry.path, name + b"/", reading)
            elif entry.is_file(follow_symlinks=False):
                info = entry.stat(follow_symlinks=False)
                if info.st_size > reading.most_bytes:  # before it is read
                    raise _too_large(entry.path, reading.most_bytes)
                yield self._file(entry.path, info, name, reading)
            else:
                warnings.append(f"{to_text(name)!r} is not a file, a folder or a link: left out")

    def _file(self, path: str, info: os.stat_result, name: bytes, reading: Reading) -> Item:
        stamp, key = _stamp(info), (path, reading.mend)
        reading.stamps.append((path, stamp))
        known = self._known.get(key)
        if known is not None and known[0] == stamp and known[1].name == name:
            return known[1]
        item = _read_file(path, name, info, reading.mend)
        if settled(time.time_ns(), *stamp[:2]) and (item.content is None or len(item.content) < 1 << 20):
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            self._known[key] = (stamp, item)
        return item


def _stamp(info: os.stat_result) -> Stamp:
    return (info.st_ctime_ns, info.st_mtime_ns, info.st_ino, info.st_size, info.st_mode, info.st_dev)


def _unchanged(reading: Reading) -> bool:
    """Whether a walk would find the same: one lstat for each entry, and no other look at any."""
    lstat = os.lstat
    try:
        for path, stamp in reading.stamps:
            if _stamp(lstat(path)) != stamp:
                return False
        return all(_link(path, name, reading.root) == link for path, name, link in reading.links)
    except OSError:
        return False


def _link(path: str, name: bytes, root: str) -> Item | None:
    """A link that resolves inside, as a relative one; None for all others."""
    real = os.path.realpath(path)
    if not os.path.exists(real) or not (real + os.sep).startswith(root + os.sep):
        return None
    if LEFT_OUT.intersection(os.fsencode(os.path.relpath(real, root)).split(b"/")):
        return None
    target = os.path.relpath(real, os.path.realpath(os.path.dirname(path)))
    return Item(name, records.LINK, target=os.fsencode(target.replace(os.sep, "/")))


def _too_large(path: str | os.PathLike[str], most_bytes: int) -> SkillUnreadableError:
    return SkillUnreadableError(
        f"{path} is larger than the {most_bytes:,} bytes that this session has for it",
        hint="Raise Limits(disk=…); /skills gets half as much.",
    )


def _read_file(path: str, name: bytes, info: os.stat_result, mend: bool) -> Item:
    mode = 0o755 if info.st_mode & 0o111 else 0o644
    fd = os.open(path, os.O_RDONLY | _FLAGS)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadPathError(f"{path} is not a regular file any more")
        head = file.read(4096)
        if mend and _is_script(name, head):
            content = head + file.read()
            mended = mend_script(name, content)
            if mended.startswith(b"#!"):
                mode = 0o755
            digest = hashlib.sha256(mended).hexdigest()
            changed = mended if mended != content else None
            return Item(name, records.REGULAR, mode, len(mended), path, content=changed, sha256=digest)
        sha = hashlib.sha256(head)
        size = len(head)
        while piece := file.read(1 << 18):
            sha.update(piece)
            size += len(piece)
    return Item(name, records.REGULAR, mode, size, path, sha256=sha.hexdigest())


def _is_script(name: bytes, head: bytes) -> bool:
    return head.removeprefix(_BOM).startswith(b"#!") or name.lower().endswith(SHELL_NAMES)


def mend_script(name: bytes, content: bytes) -> bytes:
    """A script as Linux can start it: no BOM before the shebang, no CR at the ends of lines.

    All lines of a shell script, because a shell takes a CR for a part of the last word; else the first.
    """
    content = content.removeprefix(_BOM)
    first, newline, rest = content.partition(b"\n")
    if _SHELL.match(first) or (not first.startswith(b"#!") and name.lower().endswith(SHELL_NAMES)):
        return content.replace(b"\r\n", b"\n")
    return first.removesuffix(b"\r") + newline + rest if newline else content


def _digest(items: list[Item]) -> str:
    """SHA-256 over names, kinds, modes, contents and link targets, each with its length in front."""
    total = hashlib.sha256()
    for item in sorted(items, key=lambda item: item.name):
        for part in (item.name, b"%d %o" % (item.kind, item.mode), item.target, item.sha256.encode()):
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()
