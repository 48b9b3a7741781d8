"""What was fetched, by content, for any number of processes.

    trees/<key>/<title>/…    the files of one archive, commit or bundle; whole, never changed, read-only
    looks/<key>.json         what was seen at the last look at an address: validators, version, which tree
    locks/<key>              held by the one process that looks
    scratch/<random>/        what is not whole yet

A tree appears under its name at once (rename), so whoever sees it sees all of it. What is refused or was
interrupted is only ever in scratch.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from executor.errors import SkillSourceError
from executor.places import cache_dir

KEPT = 60 * 86400.0  # seconds after its last use until a tree is forgotten
SCRATCH_KEPT = 86400.0
TOUCH = 3600.0  # seconds between two marks that a tree is used


def key(*parts: str) -> str:
    """A name for a file or folder of the cache."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape")
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()[:40]


class Cache:
    """The cache in `folder`; default `$SKILLS_CACHE_DIR`, else a folder of the user."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """The folder, made if it is missing."""
        folder = self._folder or cache_dir()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in ("trees", "looks", "locks", "scratch"):
                (folder / name).mkdir(exist_ok=True, mode=0o700)
            found = os.stat(folder)
        except OSError as error:
            raise _unusable(folder, error) from error
        own = os.geteuid() in (0, found.st_uid) or found.st_uid == 0
        if not own or found.st_mode & stat.S_IWOTH:  # what is here is believed without another look
            raise SkillSourceError(
                f"the cache cannot be used: others may write to {folder}",
                hint="Take that right away (chmod 700), or set SKILLS_CACHE_DIR to a folder of your own.",
            )
        return folder

    @contextlib.contextmanager
    def turn(self, name: str, seconds: float) -> Iterator[None]:
        """Alone among all processes and threads. SkillSourceError when another one takes longer than that."""
        path = self.folder / "locks" / name
        deadline = time.monotonic() + seconds
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise SkillSourceError(
                            f"another process has been fetching it for {seconds:g} s",
                            hint=f"It holds {path}.",
                        ) from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(handle)

    def look(self, name: str) -> dict[str, Any]:
        """What was remembered under the name; {} for nothing."""
        try:
            found = json.loads((self.folder / "looks" / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def remember(self, name: str, value: dict[str, Any]) -> None:
        """Replace it."""
        with self.scratch() as scratch:
            (scratch / "look").write_text(json.dumps(value, indent=1), "utf-8")
            os.replace(scratch / "look", self.folder / "looks" / f"{name}.json")

    def tree(self, name: str) -> Path | None:
        """The top of a tree, marked as used; None if it is not here."""
        place = self.folder / "trees" / name
        try:
            (top,) = os.listdir(place)
            if time.time() - os.stat(place).st_mtime > TOUCH:
                os.utime(place)
        except (OSError, ValueError):
            return None
        return place / top

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder of one's own that is gone when the block ends."""
        top = self.folder / "scratch"
        try:
            made = Path(tempfile.mkdtemp(dir=top))
        except OSError as error:
            raise _unusable(top, error) from error
        try:
            yield made
        except OSError as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            raise _unusable(top, error) from error
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def keep(self, made: Path, name: str) -> Path:
        """Take over a tree: `made` is a folder in scratch with nothing but the top in it. The top's place."""
        place = self.folder / "trees" / name
        os.chmod(made, 0o755)  # noqa: S103  # the cache itself is private
        try:
            os.rename(made, place)
        except OSError:
            if not place.is_dir():  # else another process was faster, with the same content
                raise
        self._forget_old()
        top = self.tree(name)
        if top is None:
            raise SkillSourceError(f"{place} is damaged", hint="Remove it.")
        return top

    def _forget_old(self) -> None:
        for folder, kept in (("trees", KEPT), ("scratch", SCRATCH_KEPT)):
            with contextlib.suppress(OSError), os.scandir(self.folder / folder) as entries:
                for entry in entries:
                    if time.time() - entry.stat().st_mtime < kept:
                        continue
                    gone = self.folder / "scratch" / f"gone-{os.getpid()}-{entry.name}"
                    with contextlib.suppress(OSError):
                        os.rename(entry.path, gone)  # whoever looks for it finds all of it or nothing
                        shutil.rmtree(gone, ignore_errors=True)


def _unusable(folder: Path, error: OSError) -> SkillSourceError:
    return SkillSourceError(
        f"the cache cannot be used: {error.strerror or error}: {error.filename or folder}",
        hint="Make room there, or set SKILLS_CACHE_DIR to another folder.",
    )
