"""Collecting: which files match, what they are, and what of them is carried in a result.

The listing and every byte come from the sandbox. Caps are by bytes received, never by a size that was
claimed; a cap that cuts something is named.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from executor.channel import Channel
from executor.errors import BadPathError, SandboxError
from executor.guest import records
from executor.models import OutputFile, OutputLimits
from executor.workspace import globs, layout, mime
from executor.workspace.text import plural, printable_name, to_bytes, to_text

HEAD = 8192  # bytes that the MIME type is judged by
READ = 2  # what one collection reads at most, in multiples of what fits on the disk: files may have two names
ENOENT = 2
# Why a path that exists is no file to read: errno → what it is.
_REASONS = {
    ENOENT: "there is no such file",
    18: "it leads out of the workspace",
    20: "there is no such file",
    21: "it is a folder",
    22: "it is not a regular file",
    40: "it is a link, and links are not followed",
}


def said(path: bytes) -> str:
    """A sandbox path in a warning."""
    return printable_name(layout.shown(path))


@dataclass
class Collection:
    """What a collection found. `limits_hit` and `warnings` are for the result."""

    files: list[OutputFile] = field(default_factory=list)
    limits_hit: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def hit(self, limit: str) -> None:
        if limit not in self.limits_hit:
            self.limits_hit.append(limit)


class _Reading:
    """One file while it comes in: hashed whole, kept up to what the caps allow."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.sha = hashlib.sha256()
        self.size = 0
        self.head = bytearray()
        self.kept = bytearray()

    def add(self, data: bytes) -> None:
        self.sha.update(data)
        self.size += len(data)
        if len(self.head) < HEAD:
            self.head += data[: HEAD - len(self.head)]
        if len(self.kept) < self.keep:
            self.kept += data[: self.keep - len(self.kept)]


def compile_patterns(patterns: Sequence[str], *, skill: str | None, run_id: str) -> list[globs.Glob]:
    """The globs with the variables of a run. BadPathError."""
    return globs.compile_globs(patterns, variables=layout.folders(run_id=run_id, skill=skill), skill=skill)


async def collect(
    channel: Channel,
    patterns: Sequence[str],
    *,
    limits: OutputLimits,
    skill: str | None = None,
    run_id: str = "",
    most_bytes: int,
    shipped: Callable[[bytes], str | None] = lambda _path: None,
) -> Collection:
    """The files that match any pattern, sorted by path, each once.

    `most_bytes` bounds one file (the session's disk), and `READ` times as much all that is read: sparse files
    may claim to be far more, and what does not fit is named and not read. `shipped` gives the SHA-256 with
    which a file below /skills was staged: unchanged ones are outputs only for a pattern that names the skills
    folder itself.
    """
    found = Collection()
    wanted = compile_patterns(patterns, skill=skill, run_id=run_id)
    matches = await _matches(channel, wanted, found)
    named = [glob for glob in wanted if _names_skills(glob.text)]

    def unasked(path: bytes) -> str | None:
        return None if any(glob.matches(path) for glob in named) else shipped(path)

    paths = await _without_shipped(channel, matches, unasked, most_bytes)
    if len(paths) > limits.max_files:
        found.hit("max_files")
        found.warnings.append(f"{len(paths):,} files match; only the first {limits.max_files:,} are returned")
        paths = paths[: limits.max_files]
    fitting = _fitting(paths, matches, most_bytes)
    if left_out := len(paths) - len(fitting):
        found.hit("max_total_bytes")
        found.warnings.append(
            f"{plural(left_out, 'file')} not read: all together they claim more than {READ} times the "
            "session's disk (sparse files count with their full size)"
        )
    await _read(channel, fitting, limits, most_bytes, found)
    if left_out:
        found.files += [_unread(path, matches[path]) for path in paths if path not in fitting]
        place = {layout.shown(path): number for number, path in enumerate(paths)}
        found.files.sort(key=lambda file: place[file.path])
    return found


def _fitting(paths: list[bytes], sizes: dict[bytes, int], most_bytes: int) -> dict[bytes, int]:
    """Those of the paths that may all be read, with their sizes, the first ones first."""
    room = READ * most_bytes
    fitting = {}
    for path in paths:
        if sizes[path] <= room:
            room -= sizes[path]
            fitting[path] = sizes[path]
    return fitting


def _unread(path: bytes, size: int) -> OutputFile:
    name = to_text(path).rpartition("/")[2]
    kind = mime.guess(name, b"", 0)
    return OutputFile(path=layout.shown(path), size=size, mime=kind, sha256="", truncated=True)


class _Room:
    """Files may grow after they were listed: how many bytes may still come of all of them."""

    def __init__(self, most_bytes: int) -> None:
        self.left = (READ + 1) * most_bytes

    def take(self, data: bytes) -> bytes:
        self.left -= len(data)
        if self.left < 0:
            raise SandboxError(
                "the files grew without an end while they were collected",
                hint="Collect when no run is under way.",
            )
        return data


def _names_skills(pattern: str) -> bool:
    return pattern.lstrip("./").startswith(("skills", "$SKILL", "${SKILL", "workspace/skills"))


async def _matches(channel: Channel, wanted: list[globs.Glob], found: Collection) -> dict[bytes, int]:
    """path → listed size of every regular file that a glob means."""
    matches: dict[bytes, int] = {}
    for recursive in (False, True):
        roots = sorted({to_bytes(glob.root) for glob in wanted if glob.recursive == recursive})
        if not roots:
            continue
        listing = await channel.list_files(roots, recursive=recursive)
        for root in roots:
            canonical = listing.roots.get(root)
            if not isinstance(canonical, bytes):
                if canonical not in (None, ENOENT, 20):
                    why = _REASONS.get(canonical or 0) or os.strerror(canonical or 0)
                    found.warnings.append(f"{said(root)}: {why}: not collected")
                continue
            here = [glob for glob in wanted if glob.recursive == recursive and to_bytes(glob.root) == root]
            for entry in listing.entries:
                if entry.root != canonical:
                    continue
                # A root may be reached through a link: patterns speak of the name that was asked for.
                asked = root + entry.path[len(canonical) :]
                if entry.path in matches or not any(glob.matches(asked) for glob in here):
                    continue
                if entry.kind == records.REGULAR:
                    matches[entry.path] = entry.size
                elif entry.kind in (records.LINK, records.OTHER) and not layout.is_own_link(entry.path):
                    kind = "a link" if entry.kind == records.LINK else "not a regular file"
                    if entry.kind == records.OTHER and entry.path.endswith(b"/..."):
                        kind = "where the listing stopped, too deep or at too many files"
                    warning = f"{said(entry.path)} is {kind}: not collected"
                    if warning not in found.warnings and len(found.warnings) < 100:
                        found.warnings.append(warning)
    return matches


async def _without_shipped(
    channel: Channel, matches: dict[bytes, int], shipped: Callable[[bytes], str | None], most_bytes: int
) -> list[bytes]:
    """The paths of the matches, sorted, without those of files that lie in a skill just as they came."""
    paths = sorted(matches)
    suspects = list(_fitting([path for path in paths if shipped(path) is not None], matches, most_bytes))
    if not suspects:
        return paths
    room = _Room(most_bytes)
    same: set[bytes] = set()
    current: list[tuple[bytes, _Reading]] = []

    def begin(name: bytes, record: records.Record | int) -> None:
        if not isinstance(record, int):
            current.append((name, _Reading(0)))

    def end(error: int) -> None:
        name, reading = current.pop()
        if not error and reading.sha.hexdigest() == shipped(name):
            same.add(name)

    await channel.get_files(
        suspects,
        limit=most_bytes,
        begin=begin,
        chunk=lambda data: current[-1][1].add(room.take(data)),
        end=end,
    )
    return [path for path in paths if path not in same]


async def _read(
    channel: Channel, paths: dict[bytes, int], limits: OutputLimits, most_bytes: int, found: Collection
) -> None:
    room = _Room(most_bytes)
    left = limits.max_total_bytes
    inline = limits.inline_bytes
    current: list[tuple[bytes, _Reading]] = []

    def begin(name: bytes, record: records.Record | int) -> None:
        if isinstance(record, int):
            found.warnings.append(f"{said(name)} could not be read: {os.strerror(record)}")
            return
        keep = min(limits.max_file_bytes if limits.max_file_bytes is not None else inline, left)
        current.append((name, _Reading(keep)))

    def end(error: int) -> None:
        nonlocal left
        name, reading = current.pop()
        if error:
            found.warnings.append(f"{said(name)} could not be read to its end: {os.strerror(error)}")
        file, cut = make_file(name, reading, limits)
        if cut:
            by_total = reading.keep == left and reading.size > left
            found.hit("max_total_bytes" if by_total else cut)
        if file.content is not None:
            left -= min(reading.size, reading.keep)
        found.files.append(file)

    if paths:
        await channel.get_files(
            list(paths),
            limit=most_bytes,
            begin=begin,
            chunk=lambda data: current[-1][1].add(room.take(data)),
            end=end,
        )


def make_file(name: bytes, reading: _Reading, limits: OutputLimits) -> tuple[OutputFile, str]:
    """The model of one read file, and the limit that cut its content, or ''."""
    kept = bytes(reading.kept)
    cut = ""
    content: str | None
    if reading.size > len(kept):
        cut = "inline_bytes" if limits.max_file_bytes is None else "max_file_bytes"
    encoding, content = encode(kept, torn=bool(cut))
    if reading.size > limits.inline_bytes and limits.max_file_bytes is None:
        content, encoding = None, "utf-8"
    file = OutputFile(
        path=layout.shown(name),
        size=reading.size,
        mime=mime.guess(to_text(name).rpartition("/")[2], bytes(reading.head), reading.size),
        sha256=reading.sha.hexdigest(),
        encoding=encoding,
        content=content,
        truncated=bool(cut),
    )
    return file, cut


def encode(data: bytes, *, torn: bool = False) -> tuple[Literal["utf-8", "base64"], str]:
    """(encoding, content): text as it is, all else in base64. `torn`: the end may split a character."""
    if b"\0" not in data:
        try:
            return "utf-8", data.decode("utf-8")
        except UnicodeDecodeError as error:
            # The end of what was kept may lie inside a character; any other error means binary.
            if torn and error.reason == "unexpected end of data":
                return "utf-8", data[: error.start].decode("utf-8")
    return "base64", base64.b64encode(data).decode("ascii")


def decode(file: OutputFile) -> bytes | None:
    """The whole bytes of a file whose content is all there, else None."""
    if file.content is None or file.truncated:
        return None
    return base64.b64decode(file.content) if file.encoding == "base64" else file.content.encode("utf-8")


async def read_whole(channel: Channel, path: str, *, most_bytes: int, take: Callable[[bytes], None]) -> None:
    """Stream one file. BadPathError when there is none, SandboxError when it cannot be read."""
    failed: list[int] = []
    name = to_bytes(path if path.startswith("/") else layout.absolute(path))

    def begin(_name: bytes, record: records.Record | int) -> None:
        if isinstance(record, int):
            failed.append(record)

    await channel.get_files([name], limit=most_bytes, begin=begin, chunk=take, end=failed.append)
    if any(failed):
        number = max(failed)
        if number in _REASONS:
            raise BadPathError(f"cannot read {path!r}: {_REASONS[number]}")
        raise SandboxError(f"cannot read {path!r}: {os.strerror(number)}")
