"""What the members of an archive may be called, how many and how large they may be; and unpacking them.

Every kind of source whose files come from elsewhere goes through `unpack`: archives, bundles, commits,
buckets. It writes into a folder that nobody else knows yet. Whatever is wrong with one member ends it all.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from executor.errors import SkillSourceError
from executor.models import SourceLimits

_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
# Categories of characters that no name has a use for: controls, halves of characters, separators of lines;
# and the marks that turn the direction of text, so that a name does not read as it is.
_BAD_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


FREE = 4 << 20  # bytes that come out of an archive of any size, whatever the ratio
DEPTH = 30  # parts of a path
NAME, PATH = 255, 1024  # bytes of one name and of a whole path, as usual file systems have them
LIMITS = SourceLimits()


@dataclass(frozen=True)
class Member:
    """One member of an archive. Its bytes have to be taken before the next member is."""

    name: str
    """As it was written; a folder's may end in `/`."""
    chunks: Iterable[bytes] | None = None
    """None: a folder."""
    executable: bool = False


class RefusedError(SkillSourceError):
    """What came is refused as a whole: a good copy of it stays good."""


def refused(what: str) -> RefusedError:
    """The error for it."""
    return RefusedError(what, hint="Nothing of it was kept. Mend it where it is made.")


def beyond(what: str, limit: str) -> RefusedError:
    """The error for more than a field of `SourceLimits` allows."""
    return RefusedError(
        what, hint=f"Nothing of it was kept. If that is meant, raise `{limit}` of the setting `sources`."
    )


def check(members: Iterable[Member], caps: SourceLimits = LIMITS) -> None:
    """Whether all their names may be, alone and together, before anything is written. SkillSourceError."""
    names = _Names(caps)
    for member in members:
        names.take(member.name, member.chunks is None)


def unpack(members: Iterable[Member], folder: Path, *, packed: int = 0, caps: SourceLimits = LIMITS) -> int:
    """Write all members below `folder`, an empty one; the number of files. SkillSourceError.

    `packed`: the size of the archive, for the ratio; 0 means that the ratio does not matter.
    """
    names = _Names(caps)
    budget = _most(packed, caps) if packed else caps.total
    most = budget
    count = 0
    for member in members:
        path = names.take(member.name, member.chunks is None)
        target = folder.joinpath(*path)
        if member.chunks is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        size = 0
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            for chunk in member.chunks:
                size += len(chunk)
                if size > caps.file:
                    raise beyond(f"{member.name!r} is larger than {caps.file:,} bytes", "file")
                if size > budget:
                    raise _too_much(most, packed, caps)
                file.write(chunk)
            os.fchmod(file.fileno(), 0o555 if member.executable else 0o444)
        budget -= size
        count += 1
    return count


def bounded(pieces: Iterable[bytes], packed: int, caps: SourceLimits) -> Iterator[bytes]:
    """The stream that comes out of a compressed one, ended by an error when it grows beyond its caps."""
    most = _most(packed, caps)
    # Headers and padding of a tar come on top of its files.
    more = caps.entries * 1024 if packed * caps.ratio > FREE else FREE
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > most + more:
            raise _too_much(most, packed, caps)
        yield piece


def _most(packed: int, caps: SourceLimits) -> int:
    """How much may come out of so many bytes."""
    return min(caps.total, max(FREE, caps.ratio * packed))


def _too_much(most: int, packed: int, caps: SourceLimits) -> RefusedError:
    if packed and most < caps.total:
        what = f"its {packed:,} bytes unpack to more than {most:,} (at most {caps.ratio} for 1)"
        return beyond(what, "ratio")
    return beyond(f"it unpacks to more than {most:,} bytes", "total")


def pieces(file: Path) -> Iterator[bytes]:
    """The bytes of a file."""
    with open(file, "rb") as opened:
        while piece := opened.read(1 << 16):
            yield piece


class _Names:
    """All names so far: every one can be a file of its own on any usual file system."""

    def __init__(self, caps: SourceLimits) -> None:
        self._caps = caps
        self._seen: dict[str, tuple[str, bool]] = {}  # folded path → path as it was written, whether a folder
        self._entries = 0

    def take(self, name: str, is_folder: bool) -> tuple[str, ...]:
        """The parts of a name, `()` for the top itself. SkillSourceError for one that may not be."""
        self._entries += 1
        if self._entries > self._caps.entries:
            raise beyond(f"it has more than {self._caps.entries:,} entries", "entries")
        parts = check_name(name, is_folder)
        path = ""
        for number, part in enumerate(parts, 1):
            path = f"{path}/{part}" if path else part
            self._add(path, is_folder or number < len(parts))
        if not parts and not is_folder:
            raise refused(f"{name!r} names no file")
        return parts

    def _add(self, path: str, is_folder: bool) -> None:
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
        before = self._seen.get(folded)
        if before is None:
            self._seen[folded] = (path, is_folder)
        elif before[0] != path:
            raise refused(f"{before[0]!r} and {path!r} are one name where capitals or accents do not count")
        elif before[1] != is_folder:
            raise refused(f"{path!r} is a file and a folder")
        elif not is_folder:
            raise refused(f"{path!r} is there twice")


def check_name(name: str, is_folder: bool = False) -> tuple[str, ...]:
    """The parts of a member's name, without a leading `./`. SkillSourceError for one that may not be."""

    def bad(why: str) -> SkillSourceError:
        shown = name if len(name) <= 100 else name[:97] + "..."
        return refused(f"the name {shown!r} {why}")

    if name.startswith("/"):
        raise bad("is absolute")
    if "\\" in name:
        raise bad("holds a backslash")
    if re.match(r"[A-Za-z]:", name):
        raise bad("begins with a drive letter")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise bad("is not UTF-8") from None
    if length > PATH:
        raise bad(f"is longer than {PATH} bytes")
    while name.startswith("./"):
        name = name[2:]
    if is_folder:
        name = name.removesuffix("/")
    if name in ("", ".") and is_folder:
        return ()
    parts = tuple(name.split("/"))
    if len(parts) > DEPTH:
        raise bad(f"is nested more than {DEPTH} deep")
    for part in parts:
        if part in ("", ".", ".."):
            raise bad(f"has the part {part!r}")
        if len(part.encode()) > NAME:
            raise bad(f"has a part longer than {NAME} bytes")
        if part[-1] in ". ":
            raise bad("has a part that ends in a dot or a blank")
        if ":" in part:
            raise bad("holds a colon")
        if _DEVICES.fullmatch(part):
            raise bad("is reserved for a device on some systems")
        if any(unicodedata.category(one) in _BAD_CATEGORIES or one in _TURNING for one in part):
            raise bad("holds a character that cannot be in a name")
    return parts
