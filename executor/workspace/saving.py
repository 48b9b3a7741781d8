"""Collected files onto the host's disk: regular files only, below the target, never through a link, never
over something that exists unless asked, mode 0644, whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from executor.errors import BadPathError
from executor.workspace.text import to_bytes

# What a terminal, a shell or another file system would trip over is written as %XX: control characters,
# those that reorder or end a line, bytes that are not UTF-8 (lone surrogates here), `\` and `%` itself.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\\%"
    + (r'<>:"|?*]' if sys.platform == "win32" else "]")
)
MAX_NAME = 255
NO_HARD_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)  # FAT, some shares
_HAS_DIR_FD = os.open in os.supports_dir_fd


class Saving(NamedTuple):
    """A file being saved: where it will be, and how to write to it."""

    path: Path
    write: Callable[[bytes], object]


def safe_component(name: bytes) -> str:
    """A file name for the host: what `_UNSAFE` names, and a leading `-`, as %XX."""

    def encode(match: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))

    shown = _UNSAFE.sub(encode, name.decode("utf-8", "surrogateescape"))
    if shown.startswith("-"):
        shown = "%2D" + shown[1:]
    try:
        os.fsencode(shown)
    except UnicodeEncodeError:  # this host's names are not UTF-8
        shown = re.sub(r"[^\x00-\x7f]+", encode, shown)
    if sys.platform == "win32":
        shown = shown.rstrip(". ") or "_"
    return shown


@contextlib.contextmanager
def saving(target: str | os.PathLike[str], path: str, *, overwrite: bool = False) -> Iterator[Saving]:
    """Create `target/path` from what is written inside the `with`; nothing is left if that fails.

    BadPathError when something is there already (and `overwrite` is False) or a link is in the way.
    """
    parts = [safe_component(part) for part in to_bytes(path).split(b"/")]
    if any(part in ("", ".", "..") for part in parts):
        raise BadPathError(f"{path!r} cannot be saved: it is not a plain relative path")
    if any(len(to_bytes(part)) > MAX_NAME for part in parts):
        raise BadPathError(
            f"{path!r} cannot be saved: as %XX its name is longer than {MAX_NAME} bytes",
            hint="Take its bytes with read() and choose a name.",
        )
    root = Path(target)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadPathError(f"{root} is not a folder: nothing can be saved in it") from error
    where = root.joinpath(*parts)
    folder = _open_folder(root, parts[:-1])
    here = "" if folder is not None else str(where.parent) + os.sep
    part = f"{here}.part-{secrets.token_hex(6)}"
    name = here + parts[-1]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:
            yield Saving(where, file.write)
            file.flush()
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), 0o644)
        if not overwrite:
            _claim(part, name, folder)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        raise BadPathError(
            f"{where} exists already and is not overwritten",
            hint="Save to an empty folder, or ask for overwriting (--overwrite, overwrite=True).",
        ) from None
    except IsADirectoryError:
        raise BadPathError(f"{where} is a folder and is not overwritten by a file") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=folder)
        if folder is not None:
            os.close(folder)


def _claim(part: str, name: str, folder: int | None) -> None:
    """Take a name that nobody has, whole where the file system has hard links. FileExistsError."""
    try:
        os.link(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder))


def _open_folder(root: Path, parts: list[str]) -> int | None:
    """The folder's descriptor, each component made if missing and never a link. None without openat."""
    if not _HAS_DIR_FD:
        for index in range(len(parts)):
            folder = root.joinpath(*parts[: index + 1])
            if folder.is_symlink():
                raise BadPathError(f"{folder} is a link: nothing is saved through it")
            folder.mkdir(exist_ok=True)
        return None
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(root, flags)
    for part in parts:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=fd)
            inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=fd)
        except OSError as error:
            raise BadPathError(
                f"{root / part} is a link or not a folder: nothing is saved through it"
            ) from error
        finally:
            os.close(fd)
        fd = inner
    return fd
