"""Names that the host and scripts give, walked without trust: no link out of the two roots is followed."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, List, Optional, Tuple


REMOVE = 5.0  # how long one removal may take: scripts can put things there meanwhile
MAX_LINKS = 40  # what the kernel allows in one path
MAX_DEPTH_OF_TREE = 64
PATH_ROOTS = (b"workspace", b"skills")
COMPILED = "/usr/lib/executor/pycache/usr/lib"
LAYERS_COMPILED = "/opt/layers/pycache"  # of the layers of skills; the folder cannot be listed
LAYERS_COMPILED_SEEN = "/tmp/.cache/python/opt/layers"
COMPILED_SEEN = "/tmp/.cache/python/usr/lib"  # below the runs' PYTHONPYCACHEPREFIX
WORKSPACE_FOLDERS = (b"inputs", b"work", b"out", b"runs")
WORKSPACE_LINKS = ((b"work/inputs", b"../inputs"), (b"skills", b"/skills"))
FOLDER_MODE = 0o755
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """A path that cannot be used: an errno and the path."""

    def __init__(self, number: int, path: bytes) -> None:
        super().__init__(number, path)
        self.number = number
        self.path = path


class Place:
    """A folder below one of the roots, opened without following a link, and a last name in it.

    `name` is None when the path is a root or ends in one. `path` is the canonical absolute path.
    """

    __slots__ = ("folder", "name", "path")

    def __init__(self, folder: int, name: Optional[bytes], path: bytes) -> None:
        self.folder = folder
        self.name = name
        self.path = path

    def close(self) -> None:
        os.close(self.folder)


class Unlocked:
    """An open file or folder of this user's, which its mode may keep him out of, is open to him for a moment.

    It is named by its descriptor in /proc, be that O_PATH: no script can put something else in its place. Its
    mode goes back at once, unless a script changed it.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.path = "/proc/self/fd/%d" % fd
        needed = {stat.S_IFREG: 0o400, stat.S_IFDIR: 0o500}.get(stat.S_IFMT(os.fstat(fd).st_mode))
        if needed is None:
            raise OSError(errno.EACCES, "neither a file nor a folder")
        self.mode = self.now()
        self.open_mode = self.mode | needed

    def now(self) -> int:
        return stat.S_IMODE(os.fstat(self.fd).st_mode)

    @property
    def needed(self) -> bool:
        return self.mode != self.open_mode

    def __enter__(self) -> str:
        if self.needed:
            os.chmod(self.path, self.open_mode)
        return self.path

    def __exit__(self, *_: object) -> None:
        if self.needed and self.now() == self.open_mode:
            os.chmod(self.path, self.mode)


def open_locked(name: bytes, folder: int, flags: int) -> int:
    """Open a file or folder of this user's in spite of its mode. The folder it is in is `Unlocked`."""
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        with Unlocked(found) as path:
            return os.open(path, flags & ~os.O_NOFOLLOW)
    finally:
        os.close(found)


def locate(path: bytes, *, follow_last: bool = False, create: bool = False, unlock: bool = False) -> Place:
    """Walk an absolute path below /workspace or /skills. Links are followed by hand and only inside.

    `create` makes missing parent folders; `unlock` goes through those that their mode keeps this user out of.
    Raises Refused.
    """
    todo: Deque[bytes] = deque(part for part in path.split(b"/") if part and part != b".")
    trail: List[bytes] = []  # names from the root down
    stack: List[int] = []  # the folders opened for them, the first one a root
    links = 0
    try:
        while todo:
            part = todo.popleft()
            if b"\0" in part or len(part) > 255:
                raise Refused(errno.EINVAL, path)
            if part == b"..":
                if len(stack) < 2:
                    raise Refused(errno.EXDEV, path)
                os.close(stack.pop())
                trail.pop()
                continue
            if not stack:
                if part not in PATH_ROOTS:
                    raise Refused(errno.EXDEV, path)
                stack.append(os.open(b"/" + part, FOLDER_FLAGS))
                trail.append(part)
                continue
            if not todo and not follow_last:
                return Place(stack.pop(), part, b"/" + b"/".join([*trail, part]))
            try:
                stack.append(os.open(part, FOLDER_FLAGS, dir_fd=stack[-1]))
                trail.append(part)
                continue
            except OSError as error:
                if error.errno == errno.ENOENT and create and todo:
                    os.mkdir(part, 0o755, dir_fd=stack[-1])
                    todo.appendleft(part)
                    continue
                if error.errno == errno.EACCES and unlock:
                    with Unlocked(stack[-1]):
                        stack.append(open_locked(part, stack[-1], FOLDER_FLAGS))
                    trail.append(part)
                    continue
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    if error.errno == errno.ENOENT and not todo:
                        return Place(stack.pop(), part, b"/" + b"/".join([*trail, part]))
                    raise Refused(error.errno or errno.EIO, path)
            try:
                target = os.readlink(part, dir_fd=stack[-1])
            except OSError:
                if not todo:  # a file as the last component
                    return Place(stack.pop(), part, b"/" + b"/".join([*trail, part]))
                raise Refused(errno.ENOTDIR, path)
            links += 1
            if links > MAX_LINKS:
                raise Refused(errno.ELOOP, path)
            if target.startswith(b"/"):
                for folder in stack:
                    os.close(folder)
                stack, trail = [], []
            todo.extendleft(reversed([step for step in target.split(b"/") if step and step != b"."]))
        if not stack:
            raise Refused(errno.EINVAL, path)
        return Place(stack.pop(), None, b"/" + b"/".join(trail))
    except OSError as error:
        raise Refused(error.errno or errno.EIO, path)
    finally:
        for folder in stack:
            os.close(folder)


def open_folder(path: bytes) -> Tuple[int, bytes]:
    """A folder for reading, and its canonical path. Raises Refused."""
    place = locate(path, follow_last=True)
    if place.name is None:
        return place.folder, place.path
    place.close()
    raise Refused(errno.ENOENT if not exists(place) else errno.ENOTDIR, path)


def exists(place: Place) -> bool:
    path = place.path
    try:
        os.lstat(path)
        return True
    except OSError:
        return False


def unguessed() -> bytes:
    """Part of a name that no script can have taken before."""
    return os.urandom(8).hex().encode("ascii")


def remove_tree(name: bytes, folder: int) -> None:
    """Remove a file or a folder with all it holds, however deep and whatever its modes.

    OSError ENOTEMPTY when that takes too long: nothing else happens in this process meanwhile.
    """
    try:
        os.unlink(name, dir_fd=folder)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM, errno.EACCES):
            raise
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
    os.chmod(name, 0o700, dir_fd=folder)
    # Deep trees: what is inside is moved up to the top level folder by folder, so that the depth of the
    # tree never becomes a depth of descriptors or of calls.
    moved = b".gone-" + unguessed()
    top = os.open(name, FOLDER_FLAGS, dir_fd=folder)
    try:
        count = 0
        until = time.monotonic() + REMOVE
        while True:
            entries = list(os.scandir(top))
            if not entries:
                break
            if time.monotonic() > until:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
            for entry in entries:
                child = os.fsencode(entry.name)
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(child, dir_fd=top)
                    continue
                os.chmod(child, 0o700, dir_fd=top)
                inner = os.open(child, FOLDER_FLAGS, dir_fd=top)
                try:
                    for below in list(os.scandir(inner)):
                        below_name = os.fsencode(below.name)
                        if below.is_dir(follow_symlinks=False):
                            count += 1
                            os.chmod(below_name, 0o700, dir_fd=inner)
                            os.rename(below_name, b"%s-%d" % (moved, count), src_dir_fd=inner, dst_dir_fd=top)
                        else:
                            os.unlink(below_name, dir_fd=inner)
                finally:
                    os.close(inner)
                os.rmdir(child, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=folder)


def remove_below(path: bytes, name: bytes) -> None:
    """Remove what is in a folder under this name, if that can be done."""
    try:
        folder = os.open(path, FOLDER_FLAGS)
        try:
            remove_tree(name, folder)
        finally:
            os.close(folder)
    except OSError:
        pass


def make_workspace() -> None:
    """The workspace's folders and links, where they are not."""
    for name in WORKSPACE_FOLDERS:
        try:
            os.mkdir(b"/workspace/" + name, 0o755)
        except OSError:
            pass  # there, or there is no room
    for name, target in WORKSPACE_LINKS:
        try:
            os.symlink(target, b"/workspace/" + name)
        except OSError:
            pass  # there, or a script put something else in the place of its folder
    try:
        os.mkdir("/tmp/home", 0o700)
    except OSError:
        pass


def link_compiled() -> None:
    """Put the library's compiled form, which comes with an image of ours, where runs look for it."""
    try:
        names = os.listdir(COMPILED)
        os.makedirs(COMPILED_SEEN)
        for name in names:
            os.symlink(COMPILED + "/" + name, COMPILED_SEEN + "/" + name)
    except OSError:
        pass  # not an image of ours
    try:
        if os.path.isdir(LAYERS_COMPILED):
            os.makedirs(os.path.dirname(LAYERS_COMPILED_SEEN), exist_ok=True)
            os.symlink(LAYERS_COMPILED, LAYERS_COMPILED_SEEN)
    except OSError:
        pass
