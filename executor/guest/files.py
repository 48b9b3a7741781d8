"""Requests for files: listings, contents, removals, links, and records that are written whole or not."""

from __future__ import annotations

import errno
import os
import stat

from executor.guest.paths import (
    FOLDER_FLAGS,
    FOLDER_MODE,
    MAX_DEPTH_OF_TREE,
    Refused,
    Unlocked,
    locate,
    open_folder,
    open_locked,
    remove_tree,
    unguessed,
)
from executor.guest.process import UMASK
from executor.guest.records import (
    FOLDER,
    LINK,
    MISSING,
    OTHER,
    PIECE,
    REGULAR,
    ROOT,
    Chunk,
    RecordError,
    RecordReader,
    Whole,
    check_relative,
    pack_chunk,
    pack_end,
    pack_record,
    split_names,
)
from executor.guest.runs import HIGH_WATER
from executor.guest.wire import (
    ARGS,
    CONTENT,
    REPLY,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from executor.guest.agent import Agent
    from executor.guest.records import Record
    from executor.guest.wire import Body

MAX_LISTED = 200_000  # entries of one listing; the host takes more for an attack


class FileTask:
    """A FILE request of which the host sends the list of names first; `serve` does the work in pieces."""

    def __init__(self, agent: Agent, stream: int, spec: Body) -> None:
        self.agent = agent
        self.stream = stream
        self.spec = spec
        self.blob = bytearray()
        self.source: Optional[Iterator[bytes]] = None

    def received(self, channel: int, data: bytes, end: bool) -> None:
        self.agent.connection.consumed(self.stream, channel, len(data))
        if channel != ARGS or self.source is not None:
            return
        self.blob += data
        if end:
            self.source = self.serve(split_names(bytes(self.blob)))
            self.blob.clear()
            self.pump()

    def serve(self, names: List[bytes]) -> Iterator[bytes]:
        raise NotImplementedError

    def answer(self) -> Body:
        return {}

    def pump(self) -> bool:
        """Produce while the stream has room. True when finished."""
        connection = self.agent.connection
        if self.source is None:
            return False
        batch: List[bytes] = []
        size = 0
        try:
            while connection.queued(self.stream, CONTENT) < HIGH_WATER:
                piece = next(self.source, None)
                if piece is None:
                    connection.data(self.stream, CONTENT, b"".join(batch), end=True)
                    connection.control(REPLY, self.stream, self.answer())
                    self.agent.files.pop(self.stream, None)
                    return True
                batch.append(piece)
                size += len(piece)
                if size >= PIECE:
                    connection.data(self.stream, CONTENT, b"".join(batch))
                    batch, size = [], 0
                    self.agent.write()  # the host reads while the next piece is made
            if batch:
                connection.data(self.stream, CONTENT, b"".join(batch))
        except Refused as refused:
            self.fail(refused.number, refused.path)
            return True
        except OSError as error:
            self.fail(error.errno or errno.EIO, b"")
            return True
        return False

    def abort(self, number: int) -> None:
        self.fail(number, b"")

    def fail(self, number: int, path: bytes) -> None:
        self.source = iter(())
        connection = self.agent.connection
        connection.data(self.stream, CONTENT, b"", end=True)
        text = path.decode("utf-8", "backslashreplace")[:1024]
        connection.control(REPLY, self.stream, {"errno": number, "path": text})
        self.agent.files.pop(self.stream, None)


class ListTask(FileTask):
    """Every entry below the named folders (or the named files), as records without content."""

    def serve(self, names: List[bytes]) -> Iterator[bytes]:
        recursive = bool(self.spec["recursive"])
        unlock = bool(self.spec.get("unlock")) and not self.agent.runs  # scripts would see it
        left = MAX_LISTED
        for name in names:
            try:
                place = locate(name, follow_last=True)
            except Refused as refused:
                yield pack_record(MISSING, name, refused.number)
                continue
            try:
                if place.name is not None:
                    try:
                        info = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
                    except OSError as error:
                        yield pack_record(MISSING, name, error.errno or errno.EIO)
                        continue
                    yield pack_record(ROOT, place.path, stat.S_IMODE(info.st_mode))
                    yield entry_record(place.path, info)
                    continue
                yield pack_record(ROOT, place.path)
                for record in walk(os.dup(place.folder), place.path, recursive, unlock):
                    yield record
                    left -= 1
                    if not left:
                        yield pack_record(OTHER, place.path + b"/...", 0)
                        return
            finally:
                place.close()


def entry_record(path: bytes, info: os.stat_result) -> bytes:
    mode = info.st_mode
    kind = OTHER
    if stat.S_ISREG(mode):
        kind = REGULAR
    elif stat.S_ISDIR(mode):
        kind = FOLDER
    elif stat.S_ISLNK(mode):
        kind = LINK
    size = info.st_size if kind == REGULAR else 0
    # The time of the last change of anything, which no script can set back.
    return pack_record(kind, path, stat.S_IMODE(mode), size, max(0, info.st_ctime_ns))


def look_into(folder: int) -> Iterator[Tuple[str, os.stat_result]]:
    """The entries of an open folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield entry.name, info


def walk(folder: int, path: bytes, recursive: bool, unlock: bool) -> Iterator[bytes]:
    """Entries below an open folder, which is closed. Links are named and never followed.

    One descriptor is open for each level of depth, however many folders a level holds.
    """
    levels: List[Tuple[int, bytes, Optional[List[str]]]] = [(folder, path, None)]
    try:
        while levels:
            folder, path, below = levels[-1]
            if below is None:
                below = []
                found = look_into(folder)
                if unlock and Unlocked(folder).needed:
                    with Unlocked(folder):
                        found = iter(list(found))
                for name, info in found:
                    full = path + b"/" + os.fsencode(name)
                    if len(full) > 4092:  # with room for the mark of what is left out
                        yield pack_record(OTHER, path + b"/...", 0)
                        continue
                    yield entry_record(full, info)
                    if recursive and stat.S_ISDIR(info.st_mode):
                        if len(levels) < MAX_DEPTH_OF_TREE:
                            below.append(name)
                        else:
                            yield pack_record(OTHER, full + b"/...", 0)
                levels[-1] = (folder, path, below)
            if not below:
                levels.pop()
                os.close(folder)
                continue
            name = below.pop()
            full = path + b"/" + os.fsencode(name)
            try:
                levels.append((open_below(name, folder, unlock), full, None))
            except OSError:
                yield pack_record(OTHER, full, 0)
    finally:
        for folder, _, _ in levels:
            os.close(folder)


def open_below(name: str, folder: int, unlock: bool) -> int:
    """A folder in another one."""
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EACCES or not unlock:
            raise
    with Unlocked(folder):
        return open_locked(os.fsencode(name), folder, FOLDER_FLAGS)


class GetTask(FileTask):
    """The named files as records with content, each at most `limit` bytes; MISSING with an errno else."""

    def serve(self, names: List[bytes]) -> Iterator[bytes]:
        limit = int(self.spec["limit"])
        links = bool(self.spec.get("links"))
        parent = Parent(bool(self.spec.get("unlock")) and not self.agent.runs)
        try:
            for name in names:
                for piece in self.file(parent, name, limit, links):
                    yield piece
        finally:
            parent.close()

    def file(self, parent: Parent, name: bytes, limit: int, links: bool) -> Iterator[bytes]:
        try:
            fd, target = parent.open(name, links)
            if target:
                yield pack_record(LINK, name, 0o777, len(target), 0, True) + pack_chunk(target) + pack_end()
                return
        except Refused as refused:
            yield pack_record(MISSING, name, refused.number)
            return
        except OSError as error:
            yield pack_record(MISSING, name, error.errno or errno.EIO)
            return
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                number = errno.EISDIR if stat.S_ISDIR(info.st_mode) else errno.EINVAL
                yield pack_record(MISSING, name, number)
                return
            mode = stat.S_IMODE(info.st_mode)
            head = pack_record(REGULAR, name, mode, info.st_size, max(0, info.st_mtime_ns), True)
            left = limit
            failed = 0
            while left > 0:
                # More than a small file has: a short read is its end, and no second one is needed.
                wanted = min(PIECE, left, max(info.st_size + 1, 4096))
                try:
                    piece = os.read(fd, wanted)
                except OSError as error:
                    failed = error.errno or errno.EIO
                    break
                if piece:
                    left -= len(piece)
                    head += pack_chunk(piece)
                if len(piece) < wanted:
                    break
                yield head
                head = b""
            yield head + pack_end(failed)
        finally:
            os.close(fd)


class Parent:
    """The folder of the name before, kept open for the next one: names of one folder come in a row."""

    FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

    def __init__(self, unlock: bool) -> None:
        self.unlock = unlock
        self.path: Optional[bytes] = None
        self.fd = -1

    def open(self, name: bytes, links: bool) -> Tuple[int, bytes]:
        """(descriptor, b"") of a file, or (-1, target) of a link if `links`. Raises Refused and OSError."""
        folder, last = self.find(name)
        try:
            target = link_target(folder, last) if links else b""
            return (-1, target) if target else (os.open(last, self.FLAGS, dir_fd=folder), b"")
        except OSError as error:
            if error.errno != errno.EACCES or not self.unlock:
                raise
        with Unlocked(folder):
            target = link_target(folder, last) if links else b""
            return (-1, target) if target else (open_locked(last, folder, self.FLAGS), b"")

    def find(self, name: bytes) -> Tuple[int, bytes]:
        """The open folder that holds a file, and the file's name in it. Raises Refused."""
        path, _, last = name.rpartition(b"/")
        if path != self.path or last in (b"", b".", b"..") or len(last) > 255:
            self.close()
            place = locate(name, unlock=self.unlock)
            self.fd = place.folder
            if place.name is None:
                raise Refused(errno.EISDIR, name)
            if place.name != last:
                return self.fd, place.name
            self.path = path
        return self.fd, last

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.path = -1, None


def link_target(folder: int, name: bytes) -> bytes:
    """Where a link points; empty for everything else."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return b""


class RemoveTask(FileTask):
    """Remove the named files and folders. A name that is not there is not an error."""

    def serve(self, names: List[bytes]) -> Iterator[bytes]:
        for name in names:
            try:
                place = locate(name)
            except Refused as refused:
                if refused.number != errno.ENOENT:
                    raise
                continue
            try:
                if place.name is None:
                    raise Refused(errno.EBUSY, name)
                remove_tree(place.name, place.folder)
            except OSError as error:
                raise Refused(error.errno or errno.EIO, name)
            finally:
                place.close()
            yield b""


class LinkTask(FileTask):
    """Pairs of (path, target): make each link where nothing stands. Existing entries are left alone."""

    def serve(self, names: List[bytes]) -> Iterator[bytes]:
        for path, target in zip(names[::2], names[1::2]):
            place = locate(path)
            try:
                if place.name is not None:
                    os.symlink(target, place.name, dir_fd=place.folder)
            except FileExistsError:
                pass
            except OSError as error:
                raise Refused(error.errno or errno.EIO, path)
            finally:
                place.close()
            yield b""


class PutTask:
    """Write records below `base`. With `swap` they land in a fresh folder that takes that name at the end.

    Each single file is written beside its target and renamed, so that a reader never sees half of one; a
    swap is whole or nothing. After a failure the rest is read and dropped.
    """

    def __init__(self, agent: Agent, stream: int, spec: Body) -> None:
        self.agent = agent
        self.stream = stream
        self.base = os.fsencode(spec["base"])
        self.swap: Optional[bytes] = os.fsencode(spec["swap"]) if spec.get("swap") else None
        self.reader = RecordReader()
        self.failed: Optional[Tuple[int, bytes]] = None
        self.fd = -1
        self.folder = -1  # where the current file is being written
        self.name = b""
        self.target = b""
        self.link: Optional[bytearray] = None
        self.mode = 0
        self.mtime_ns = 0  # 0: now
        self.files = self.bytes = 0
        self.parents: Dict[bytes, int] = {}  # folders of the put, open while it lasts
        self.modes: List[Tuple[Tuple[bytes, ...], int]] = []  # of folders, other than the usual one
        self.token = unguessed()
        self.staging = b".staging-" + self.token

    def received(self, channel: int, data: bytes, end: bool) -> None:
        self.agent.connection.consumed(self.stream, channel, len(data))
        if channel == CONTENT and data and self.failed is None:
            try:
                for item in self.reader.feed(data):
                    self.item(item)
            except Refused as refused:
                self.fail(refused.number, refused.path)
            except RecordError:
                self.fail(errno.EPROTO, b"")
            except OSError as error:
                self.fail(error.errno or errno.EIO, self.target)
        if end and channel == CONTENT:
            self.finish()

    def pump(self) -> bool:
        return False

    def item(self, item: Any) -> None:
        if isinstance(item, Chunk):
            if self.link is not None:
                self.link += item
                if len(self.link) > 4096:
                    raise Refused(errno.ENAMETOOLONG, self.target)
                return
            view = memoryview(item)
            while view:
                view = view[os.write(self.fd, view) :]
            self.bytes += len(item)
        elif isinstance(item, Whole):
            if item.error:
                raise Refused(item.error, self.target)
            self.complete()
        else:
            self.begin(item)

    def begin(self, record: Record) -> None:
        parts = check_relative(record.name)
        self.target = record.name
        if record.kind == FOLDER:
            self.parent(parts)
            if record.mode & 0o777 != FOLDER_MODE:
                self.modes.append((parts, record.mode & 0o777))
            return
        self.folder = self.parent(parts[:-1])
        self.name = parts[-1]
        self.mode = record.mode & 0o777
        self.mtime_ns = record.mtime_ns
        if record.kind == LINK:
            self.link = bytearray()
        elif record.kind == REGULAR:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.fd = os.open(self.written_as(), flags, self.mode, dir_fd=self.folder)
        else:
            raise Refused(errno.EINVAL, record.name)
        if not record.chunked:
            self.complete()

    def written_as(self) -> bytes:
        return self.name if self.swap else b".part-" + self.token

    def complete(self) -> None:
        self.files += 1
        if self.link is not None:
            target, self.link = bytes(self.link), None
            if not self.swap:
                remove_tree(self.name, self.folder)
            os.symlink(target, self.name, dir_fd=self.folder)
            return
        if self.mode & UMASK:
            os.fchmod(self.fd, self.mode)
        if self.mtime_ns:
            os.utime(self.fd, ns=(self.mtime_ns, self.mtime_ns))
        os.close(self.fd)
        self.fd = -1
        if not self.swap:
            part = self.written_as()
            try:
                os.rename(part, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            except OSError:
                os.unlink(part, dir_fd=self.folder)
                raise

    def parent(self, parts: Tuple[bytes, ...]) -> int:
        """The open folder for these components, made where it is missing."""
        key = b"/".join(parts)
        found = self.parents.get(key)
        if found is not None:
            return found
        if len(self.parents) > 16:  # stay far below the smallest limit of open files
            self.close_parents()
        if not parts:
            path = self.base + b"/" + self.staging if self.swap else self.base
            place = locate(path + b"/x", create=True)
            folder = place.folder
        else:
            above = self.parent(parts[:-1])
            try:
                os.mkdir(parts[-1], FOLDER_MODE, dir_fd=above)
            except FileExistsError:
                pass
            try:
                folder = os.open(parts[-1], FOLDER_FLAGS, dir_fd=above)
            except OSError as error:
                if self.swap or error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                folder, _ = open_folder(self.base + b"/" + key)  # a link that stays inside
        self.parents[key] = folder
        return folder

    def close_parents(self) -> None:
        for folder in self.parents.values():
            os.close(folder)
        self.parents.clear()

    def fail(self, number: int, path: bytes) -> None:
        self.failed = (number, path)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            try:
                os.unlink(self.written_as(), dir_fd=self.folder)
            except OSError:
                pass
        self.close_parents()
        if self.swap:
            self.remove(self.staging)

    def abort(self, number: int) -> None:
        self.fail(number, b"")
        self.finish()

    def remove(self, name: bytes) -> None:
        try:
            folder, _ = open_folder(self.base)
        except Refused:
            return
        try:
            remove_tree(name, folder)
        except OSError:
            pass
        finally:
            os.close(folder)

    def finish(self) -> None:
        if self.failed is None and not self.reader.idle:
            self.fail(errno.EPROTO, b"")
        if self.failed is None:
            try:
                # The deepest first: a mode may keep this user out of what is below.
                for parts, mode in sorted(self.modes, key=lambda found: -len(found[0])):
                    os.fchmod(self.parent(parts), mode)
                if self.swap:
                    self.parent(())
                    self.close_parents()
                    self.swap_in(self.swap)
            except Refused as refused:
                self.fail(refused.number, refused.path)
            except OSError as error:
                self.fail(error.errno or errno.EIO, self.swap or self.target)
        self.close_parents()
        connection = self.agent.connection
        connection.data(self.stream, CONTENT, b"", end=True)
        if self.failed is None:
            body = {"files": self.files, "bytes": self.bytes}
        else:
            number, path = self.failed
            body = {"errno": number, "path": path.decode("utf-8", "backslashreplace")[:1024]}  # type: ignore[dict-item]
        connection.control(REPLY, self.stream, body)
        self.agent.files.pop(self.stream, None)

    def swap_in(self, name: bytes) -> None:
        check_relative(name)
        folder, _ = open_folder(self.base)
        old = b".old-" + self.token
        try:
            try:
                os.rename(name, old, src_dir_fd=folder, dst_dir_fd=folder)
            except FileNotFoundError:
                pass
            try:
                os.rename(self.staging, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                try:
                    os.rename(old, name, src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    pass
                raise
            try:
                remove_tree(old, folder)
            except OSError:
                pass  # the new one stands; a script that still writes into the old one keeps its litter
        finally:
            os.close(folder)
