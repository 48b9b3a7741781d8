"""A commit of a git repository as a source.

    git+https://host/owner/repo.git@REV#FOLDER      also git+ssh:, git+http: and git+file:

REV is a branch, a tag or a whole commit id (default: the remote's HEAD); it is resolved to a commit at every
look, and the tree of a commit is fetched once. A whole commit id is a pin: it is never looked up again. How
the files come here is in `git_repository.py`.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from executor.errors import SkillSourceError
from executor.models import SourceLimits
from executor.skills.sources import progress
from executor.skills.sources.archive import WAIT, last_good
from executor.skills.sources.base import SkillSource
from executor.skills.sources.cache import Cache, key
from executor.skills.sources.fetched import Fetched, FetchedSource, Fetcher
from executor.skills.sources.git_repository import COMMIT, Repository
from executor.skills.sources.members import LIMITS, RefusedError, check_name
from executor.skills.sources.web import UnreachableError

TRANSPORTS = ("https", "ssh", "http", "file")
_FORM = "1"  # of the trees
_REV = re.compile(r"(?!.*(\.\.|//|@\{|\.lock(/|$)))[A-Za-z0-9_][A-Za-z0-9_./+-]*(?<![./])")
_HOST = re.compile(r"([^@/\s-][^@/\s]*@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*)(:[0-9]{1,5})?")


def git_source(address: str, *, cache: Cache | None = None, caps: SourceLimits = LIMITS) -> SkillSource:
    """The source at an address. SkillSourceError for one that cannot be."""
    return FetchedSource(Git(parse(address), caps), cache=cache)


@dataclass(frozen=True)
class Address:
    """A repository, a revision and a folder of it."""

    url: str
    """What git is given."""
    rev: str = ""
    folder: str = ""

    @property
    def shown(self) -> str:
        """For people: without a password."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        text = f"git+{parts.scheme}://{host}{parts.path}"
        return text + (f"@{self.rev}" if self.rev else "") + (f"#{self.folder}" if self.folder else "")

    @property
    def transport(self) -> str:
        """`https`, `ssh`, `http` or `file`."""
        return urlsplit(self.url).scheme


def parse(address: str) -> Address:
    """Take an address apart. SkillSourceError for one that could mean something else to git."""

    def bad(what: str) -> SkillSourceError:
        return SkillSourceError(what, hint="Write git+https://host/owner/repo.git@REV#FOLDER")

    parts = urlsplit(address)
    transport = parts.scheme.lower().removeprefix("git+")
    path, _, rev = parts.path.rpartition("@") if "@" in parts.path else (parts.path, "", "")
    folder = unquote(parts.fragment).strip("/")
    if transport not in TRANSPORTS:
        known = ", ".join(f"git+{one}:" for one in TRANSPORTS)
        raise bad(f"git+{transport}: is not read; these are: {known}")
    if transport == "file":
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            raise bad("git+file: needs an absolute path, as in git+file:///srv/repo.git")
    elif not _HOST.fullmatch(parts.netloc):
        raise bad(f"{parts.netloc.rpartition('@')[2][:80]!r} is no host")
    if parts.query or not path.strip("/") or re.search(r"[\x00-\x20\x7f]", path):
        raise bad(f"{path[:80]!r} is no path of a repository")
    if rev and not _REV.fullmatch(rev):
        raise bad(f"{rev[:80]!r} is no branch, tag or whole commit id")
    if folder:
        try:
            check_name(folder)
        except SkillSourceError as error:
            raise bad(error.message) from None
    host = "" if transport == "file" else parts.netloc
    return Address(f"{transport}://{host}{path}", rev, folder)


class Git(Fetcher):
    """Fetches the files of one commit."""

    def __init__(self, address: Address, caps: SourceLimits = LIMITS) -> None:
        self.id = address.shown
        self._address = address
        self._caps = caps

    def fetch(self, cache: Cache) -> Fetched:
        """Resolve the revision, and fetch the commit's files unless they are here."""
        address = self._address
        name = key("git", address.url, address.rev, address.folder)
        asked = time.time()
        with cache.turn(name, self._caps.seconds + WAIT):
            look = cache.look(name)
            top = cache.tree(look["tree"]) if "tree" in look else None
            if top is not None and (asked <= look["at"] <= time.time() or COMMIT.fullmatch(address.rev)):
                return Fetched(top, tuple(look["notes"]))
            try:
                commit, tree, top, notes = self._fetch(cache, look)
            except (RefusedError, UnreachableError) as error:
                return last_good(self.id, error, top, look)
            finally:
                progress.end(self.id)
            cache.remember(
                name,
                {"at": time.time(), "source": self.id, "commit": commit, "tree": tree, "notes": notes},
            )
            return Fetched(top, tuple(notes))

    def _fetch(self, cache: Cache, look: dict[str, Any]) -> tuple[str, str, Path, list[str]]:
        address = self._address
        title = address.folder.rpartition("/")[2] or _repository_name(address.url)
        with cache.scratch() as scratch:
            git = Repository(
                scratch / "git", address.url, folder=address.folder, caps=self._caps, name=self.id
            )
            commit = git.resolve(address.rev)
            tree = key("commit", _FORM, commit, address.folder, title)
            top = cache.tree(tree)
            if top is not None and look.get("commit") == commit:
                return commit, tree, top, look["notes"]
            git.fetch(commit)
            made = scratch / "tree"
            (made / title).mkdir(parents=True)
            notes = git.write(made / title)
            return commit, tree, cache.keep(made, tree), notes


def _repository_name(url: str) -> str:
    name = urlsplit(url).path.rstrip("/").rpartition("/")[2].removesuffix(".git")
    try:
        return "/".join(check_name(name))
    except SkillSourceError:
        return "skills"
