"""File requests as the host sees them: records out, checked records in.

The names, sizes and counts that come back are hostile: every one is checked here before anything is done
with it, and nothing on the host is opened by such a name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from executor.errors import BadPathError, ExecutorError, ProtocolError, SandboxError
from executor.guest import records, wire

MAX_ENTRIES = 300_000  # above the inodes that any sandbox of ours has
MAX_NAMES = 256 << 20  # bytes of all their paths


class Entry(NamedTuple):
    """One listed entry. `path` is absolute inside the sandbox; `root` is the canonical folder it is below.
    `changed_ns` is the time of its last change of any kind.
    """

    kind: int
    path: bytes
    root: bytes
    mode: int
    size: int
    changed_ns: int


@dataclass
class Listing:
    """What a listing found. `roots` maps each asked path to its canonical one, or to an errno."""

    entries: list[Entry]
    roots: dict[bytes, bytes | int]


class FileRequest:
    """A FILE stream in flight. `on_item` gets records and content; it may raise ProtocolError."""

    def __init__(self, channel: Any, stream: int, on_item: Callable[[Any], None]) -> None:
        self._channel = channel
        self.stream = stream
        self._on_item: Callable[[Any], None] | None = on_item
        self._reader = records.RecordReader()
        self._reply: dict[str, Any] | None = None
        self._ended = False
        self.done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_retrieve)
        self.progress = 0

    def event(self, event: wire.Event) -> None:
        if event.type == wire.DATA:
            if event.body:
                self.progress += 1
                self._take(event.body)
                self._channel.consumed(self.stream, event.channel, len(event.body))
            self._ended = self._ended or event.end
        elif event.type == wire.REPLY:
            number = event.body.get("errno", 1)
            if type(number) is not int or not 0 < number < 4096:
                raise ProtocolError("the guest's REPLY is malformed")
            self._reply = event.body
        if self._reply is not None and self._ended:
            if "errno" not in self._reply and self._on_item is not None and not self._reader.idle:
                raise ProtocolError("the guest ended a file stream inside a record")
            if not self.done.done():
                self.done.set_result(self._reply)
            self._channel.forget(self.stream)

    def _take(self, data: bytes) -> None:
        if self._on_item is None:
            return
        try:
            for item in self._reader.feed(data):
                self._on_item(item)
        except records.RecordError as error:
            raise ProtocolError(f"the guest sent a malformed record: {error}") from None
        except ProtocolError:
            raise
        except Exception as error:
            # What the caller does with the content failed (a full disk): its request ends, nothing else.
            self.failed(error)
            self.abandon()

    def failed(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def abandon(self) -> None:
        """The caller has gone: tell the guest, and drop what still comes."""
        self._on_item = None
        self._channel.control(wire.SIGNAL, self.stream, {"cancel": True})


def _retrieve(future: asyncio.Future[dict[str, Any]]) -> None:
    if not future.cancelled():
        future.exception()


def path_error(number: int, path: bytes | str, doing: str) -> ExecutorError:
    """An errno from inside as an error for the caller."""
    shown = path.decode("utf-8", "surrogateescape") if isinstance(path, bytes) else path
    text = os.strerror(number) if 0 < number < 134 else f"errno {number}"
    if number in (18, 40, 22, 36):  # EXDEV, ELOOP, EINVAL, ENAMETOOLONG
        return BadPathError(
            f"cannot {doing} {shown!r}: it is not a path below /workspace or /skills",
            hint="Use a path below the workspace's folders, without links that leave them.",
        )
    if number in (2, 20, 21, 17, 16):  # ENOENT, ENOTDIR, EISDIR, EEXIST, EBUSY
        return BadPathError(f"cannot {doing} {shown!r}: {text}")
    hint = ""
    if number == 28:
        hint = "The session's disk is full: raise Limits(disk=…, inodes=…) or remove files."
    return SandboxError(f"cannot {doing} {shown!r}: {text}", hint=hint)


class ListingReader:
    """Collects a listing and checks that every name is one that could have been asked for."""

    def __init__(self, asked: list[bytes]) -> None:
        self._left = list(reversed(asked))
        self._root = b""
        self._prefix = b""
        self._names = 0
        self.listing = Listing([], {})

    def item(self, item: Any) -> None:
        if not isinstance(item, records.Record) or item.chunked:
            raise ProtocolError("the guest sent content in a listing")
        if item.kind in (records.ROOT, records.MISSING):
            if not self._left:
                raise ProtocolError("the guest listed a folder that was not asked for")
            asked = self._left.pop()
            if item.kind == records.MISSING:
                if item.name != asked:
                    raise ProtocolError("the guest answered for another path")
                self.listing.roots[asked] = item.mode if 0 < item.mode < 4096 else 5
                return
            check_absolute(item.name)
            self._root, self._prefix = item.name, item.name + b"/"
            self.listing.roots[asked] = item.name
            return
        if not self._prefix or not (item.name.startswith(self._prefix) or item.name == self._root):
            raise ProtocolError("the guest listed a file outside the folder")
        if len(self.listing.entries) >= MAX_ENTRIES:
            raise ProtocolError(f"the guest listed more than {MAX_ENTRIES:,} entries")
        self._names += len(item.name)
        if self._names > MAX_NAMES:
            raise ProtocolError(f"the guest listed more than {MAX_NAMES >> 20} MiB of names")
        check_absolute(item.name)
        if item.size >= 1 << 62 or item.mtime_ns >= 1 << 63:
            raise ProtocolError("the guest listed an impossible size or time")
        self.listing.entries.append(
            Entry(item.kind, item.name, self._root, item.mode & 0o7777, item.size, item.mtime_ns)
        )

    def finish(self) -> None:
        """ProtocolError when folders are still owed."""
        if self._left:
            raise ProtocolError("the guest did not list every folder")


def check_absolute(path: bytes) -> None:
    """ProtocolError unless this is a canonical absolute path below one of the two roots."""
    parts = path.split(b"/")
    if len(parts) < 2 or parts[0] or parts[1] not in (b"workspace", b"skills") or len(parts) > 130:
        raise ProtocolError("the guest named a path outside the workspace")
    for part in parts[1:]:
        if not part or part in (b".", b"..") or b"\0" in part or len(part) > 255:
            raise ProtocolError("the guest named an unsafe path")


class ContentReader:
    """Checks that the files come that were asked for, in order, and hands their content on.

    `begin(name, record | errno)`, `chunk(bytes)` and `end(errno)` are called for each.
    """

    def __init__(
        self,
        asked: list[bytes],
        limit: int,
        begin: Callable[[bytes, records.Record | int], None],
        chunk: Callable[[bytes], None],
        end: Callable[[int], None],
        *,
        links: bool = False,
    ) -> None:
        self._kinds = (records.REGULAR, records.LINK) if links else (records.REGULAR,)
        self._left = list(reversed(asked))
        self._limit = limit
        self._got = 0
        self._begin, self._chunk, self._end = begin, chunk, end

    def item(self, item: Any) -> None:
        if isinstance(item, records.Chunk):
            self._got += len(item)
            if self._got > self._limit:
                raise ProtocolError("the guest sent more of a file than was asked for")
            self._chunk(item)
        elif isinstance(item, records.Whole):
            self._end(item.error)
        else:
            if not self._left or item.name != self._left.pop():
                raise ProtocolError("the guest sent a file that was not asked for")
            if item.kind == records.MISSING:
                self._begin(item.name, item.mode if 0 < item.mode < 4096 else 5)
            elif item.chunked and item.kind in self._kinds:
                self._got = 0
                self._begin(item.name, item)
            else:
                raise ProtocolError("the guest sent something else than a file")

    def finish(self) -> None:
        """ProtocolError when files are still owed."""
        if self._left:
            raise ProtocolError("the guest did not send every file")
