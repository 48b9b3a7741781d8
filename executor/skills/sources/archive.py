"""Archives as sources: zip, tar, tar.gz, a bundle, or one bare SKILL.md; from a file or over HTTP(S).

What a file is, its first bytes say, and where they do not (old tar, Markdown) its name. The cache keeps what
was unpacked under the SHA-256 of the bytes, and next to the address what the server said about them, so that
an unchanged archive costs one answer without content. A look that fails leaves the last good copy in use.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit

from executor.errors import ExecutorError, SkillSourceError
from executor.models import SourceLimits
from executor.skills.sources import bundle, web, zips
from executor.skills.sources.base import SkillSource
from executor.skills.sources.cache import Cache, key
from executor.skills.sources.fetched import Fetched, FetchedSource, Fetcher
from executor.skills.sources.members import (
    LIMITS,
    Member,
    RefusedError,
    beyond,
    check,
    check_name,
    pieces,
    refused,
    unpack,
)
from executor.skills.sources.tars import Tar

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip", ".skill", ".json")
WAIT = 30.0  # seconds that one waits longer for another process than a fetch may take
HEAD = 512  # bytes that say what a file is
_FORM = "1"  # of the trees; another one leaves old trees unused


def archive_at(address: str, *, cache: Cache | None = None, caps: SourceLimits = LIMITS) -> SkillSource:
    """The source at an `http:`, `https:` or `file:` address. SkillSourceError for one that cannot be."""
    parts = urlsplit(address)
    pin = _pin(parts.fragment)
    if parts.scheme.lower() != "file":
        if not parts.hostname:
            raise SkillSourceError(f"{web.shown(address)} names no host")
        return FetchedSource(WebArchive(address, pin, caps), cache=cache)
    if parts.netloc not in ("", "localhost"):
        raise SkillSourceError(f"file://{parts.netloc}/… is on another host", hint="Write file:///path.")
    path = Path(os.path.realpath(unquote(parts.path)))
    if path.is_dir():
        from executor.skills.sources.directory import DirectorySource

        return DirectorySource(path)
    return archive_source(FileArchive(path, pin, caps), cache=cache)


def archive_source(archive: FileArchive, *, cache: Cache | None = None) -> SkillSource:
    """The source that is a file of this host."""
    return FetchedSource(archive, cache=cache, interval=None)


class FileArchive(Fetcher):
    """An archive that is a file of this host. `pin`: SHA-256 that it must have, or ''."""

    def __init__(self, path: Path, pin: str = "", caps: SourceLimits = LIMITS) -> None:
        self.id = str(path)
        self._path = path
        self._pin = pin
        self._caps = caps
        self._stamp: tuple[int, ...] = ()

    def changed(self) -> bool:
        """Whether the file is another one than at the last look."""
        return self._stamp != self._now()

    def fetch(self, cache: Cache) -> Fetched:
        """Unpack it, unless that was done before."""
        self._stamp = self._now()
        name = key("file", self.id, self._pin)
        with cache.turn(name, self._caps.seconds + WAIT):
            look = cache.look(name)
            top = cache.tree(look["tree"]) if "tree" in look else None
            if top is not None and look.get("stamp") == list(self._stamp):
                return Fetched(top)
            try:
                with self._opened() as file, cache.scratch() as scratch:
                    # What is unpacked is what was digested, whoever writes to the file meanwhile.
                    copy = scratch / "archive"
                    sha256, size = self._copied(file, copy)
                    _check_pin(self.id, self._pin, sha256)
                    tree, top = unpacked(cache, copy, sha256, size, self._path.name, self._caps)
            except (RefusedError, OSError) as error:
                return last_good(self.id, error, top, look)
            cache.remember(name, {"at": time.time(), "stamp": self._stamp, "tree": tree, "source": self.id})
            return Fetched(top)

    def _now(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _opened(self) -> IO[bytes]:
        file = open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise refused("it is not a regular file")
        return file

    def _copied(self, file: IO[bytes], copy: Path) -> tuple[str, int]:
        digest = hashlib.sha256()
        size = 0
        with open(copy, "wb") as into:
            while piece := file.read(1 << 20):
                size += len(piece)
                if size > self._caps.download:
                    raise beyond(f"it is larger than {self._caps.download:,} bytes", "download")
                digest.update(piece)
                into.write(piece)
        return digest.hexdigest(), size


class WebArchive(Fetcher):
    """An archive at an address. `pin`: SHA-256 that it must have, or ''."""

    def __init__(self, url: str, pin: str = "", caps: SourceLimits = LIMITS) -> None:
        self.id = web.shown(url)
        self._url = url
        self._pin = pin
        self._caps = caps

    def fetch(self, cache: Cache) -> Fetched:
        """Ask for it, unless it is here and pinned."""
        name = key("web", self._url)
        asked = time.time()
        with cache.turn(name, self._caps.seconds + WAIT):
            look = cache.look(name)
            top = cache.tree(look["tree"]) if "tree" in look else None
            if top is not None and (
                asked <= look["at"] <= time.time() or (self._pin and look["sha256"] == self._pin)
            ):
                return Fetched(top)
            known = look if top is not None else {}
            try:
                return self._fetch(cache, name, known, top)
            except (RefusedError, web.UnreachableError) as error:
                return last_good(self.id, error, top, look)

    def _fetch(self, cache: Cache, name: str, known: dict[str, Any], top: Path | None) -> Fetched:
        with cache.scratch() as scratch, open(scratch / "archive", "w+b") as file:
            got = web.download(
                self._url,
                file,
                etag=known.get("etag", ""),
                modified=known.get("modified", ""),
                caps=self._caps,
            )
            if not got.changed and top is not None:
                cache.remember(name, {**known, "at": time.time()})
                return Fetched(top)
            _check_pin(self.id, self._pin, got.sha256)
            path = unquote(urlsplit(self._url).path)
            tree, top = unpacked(cache, Path(file.name), got.sha256, got.size, path, self._caps)
        cache.remember(
            name,
            {
                "at": time.time(),
                "source": self.id,
                "sha256": got.sha256,
                "etag": got.etag,
                "modified": got.modified,
                "tree": tree,
            },
        )
        return Fetched(top)


def last_good(source: str, error: Exception, top: Path | None, look: dict[str, Any]) -> Fetched:
    """The copy of the last look that went well, with a note. The error if there is none."""
    if isinstance(error, RefusedError):
        error = RefusedError(f"{source} is refused: {error.message}", hint=error.hint)
    elif isinstance(error, OSError):
        error = SkillSourceError(f"{source} cannot be read: {error.strerror}")
    if top is None:
        raise error
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(look.get("at", 0)))
    reason = error.message if isinstance(error, ExecutorError) else str(error)
    reason = reason.removeprefix(source).lstrip(": ")
    return Fetched(top, (f"{reason}; the copy of {at} is used",))


# --- unpacking ----------------------------------------------------------------------------------------------


def unpacked(
    cache: Cache, file: Path, sha256: str, size: int, path: str, caps: SourceLimits
) -> tuple[str, Path]:
    """(the tree's name in the cache, its top). `path`: the archive's own, for names that it does not give."""
    title = _title(path)
    tree = key("archive", _FORM, sha256, path if path.lower().endswith("skill.md") else title)
    top = cache.tree(tree)
    if top is None:
        with cache.scratch() as scratch:
            made = scratch / "tree"
            inside = made / title
            inside.mkdir(parents=True)
            commit = _unpack(file, size, path, inside, caps)
            _plain_top(inside, commit, title)
            top = cache.keep(made, tree)
    return tree, top


def _unpack(file: Path, size: int, path: str, folder: Path, caps: SourceLimits) -> str:
    """Unpack by what the file is; the commit that it says it is, or ''."""
    with open(file, "rb") as opened:
        head = opened.read(HEAD)
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        with zips.opened(file) as data:
            check(zips.members(data, caps), caps)
            unpack(zips.members(data, caps), folder, packed=size, caps=caps)
            return zips.commit(data)
    if head.startswith(b"\x1f\x8b") or head[257:262] == b"ustar" or path.lower().endswith(".tar"):
        tar = Tar(lambda: pieces(file), size, zipped=head.startswith(b"\x1f\x8b"), caps=caps)
        check(tar.members(), caps)
        unpack(tar.members(), folder, packed=size, caps=caps)
        return tar.commit
    if head.lstrip()[:1] == b"{":
        bundle.unpack_bundle(file, folder, caps)
        return ""
    if path.lower().endswith("skill.md"):
        unpack([Member("SKILL.md", pieces(file))], folder, caps=caps)
        return ""
    raise refused("it is no zip, tar or tar.gz archive, no bundle and no SKILL.md")


def _plain_top(folder: Path, commit: str, ref: str) -> None:
    """Name the one top folder of a repository's archive (`repo-1f3a…`, `repo-main`) like the repository.

    Otherwise a skill that lies there would have another name with every commit.
    """
    entries = os.listdir(folder)
    if not commit or len(entries) != 1 or not (folder / entries[0]).is_dir():
        return
    top = entries[0]
    stem, _, end = top.rpartition("-")
    if not (stem and end and commit.startswith(end.lower()) and len(end) >= 7):
        stem = next((top.removesuffix("-" + one) for one in (ref, ref[1:]) if top.endswith("-" + one)), top)
    if stem and stem != top:
        os.rename(folder / top, folder / stem)


def _title(path: str) -> str:
    """What a skill at the top of the archive is called: the archive's own name without its ending."""
    parts = [part for part in path.split("/") if part]
    name = parts[-1] if parts else ""
    if name.lower() == "skill.md":
        name = parts[-2] if len(parts) > 1 else ""
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
    name = name[: len(name) - len(suffix)]
    try:
        return "/".join(check_name(name)) or "skills"
    except SkillSourceError:
        return "skills"


def _pin(fragment: str) -> str:
    pin = parse_qs(fragment).get("sha256", [""])[0].lower()
    if fragment and not re.fullmatch(r"[0-9a-f]{64}", pin):
        raise SkillSourceError(
            f"#{fragment[:80]} is no checksum", hint="Write it as #sha256= and 64 hexadecimal digits."
        )
    return pin


def _check_pin(source: str, pin: str, sha256: str) -> None:
    if pin and pin != sha256:
        raise SkillSourceError(
            f"{source} has another content than it was pinned to: {sha256}, not {pin}",
            hint="If the new content is meant, write its checksum behind #sha256=.",
        )
