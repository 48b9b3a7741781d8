"""An S3-compatible bucket as a source. Needs the extra `s3` (s3fs).

    s3://bucket/prefix?endpoint_url=https://host&fingerprint=content&refresh=300&skills=a,b&anon=true

Progressive: a look is one listing and the SKILL.md files that are new; the other files of a skill come when
the skill is used, all or none, each only if it is still the object that was listed. Credentials are those of
the AWS tools (environment, profile, role); there are none in the address.

Object names come from whoever may write to the bucket: a skill with a name that no folder could have is told
as a problem and not offered.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from executor.errors import SkillSourceError, SkillUnreadableError
from executor.models import SourceLimits
from executor.skills import contents
from executor.skills.document import MAX_BYTES, SkillDocument, parse, slug
from executor.skills.skill import SKIPPED_FOLDERS, Problem, Skill
from executor.skills.sources import progress
from executor.skills.sources.archive import WAIT
from executor.skills.sources.base import INTERVAL, Listing, SkillSource
from executor.skills.sources.cache import Cache, key
from executor.skills.sources.directory import MAX_DEPTH
from executor.skills.sources.members import LIMITS, Member, beyond, check_name, pieces, unpack
from executor.skills.sources.s3 import Object, Store
from executor.skills.sources.web import UnreachableError

OPTIONS = ("endpoint_url", "region", "anon", "fingerprint", "refresh", "skills")


@dataclass(frozen=True)
class _Item:
    """A skill of the bucket."""

    folder: str  # below the prefix, "" for the prefix itself
    title: str
    objects: tuple[Object, ...]  # sorted by path
    file: Object  # its SKILL.md


class BucketSource(SkillSource):
    """The skills below a prefix of a bucket.

    `fingerprint`: of `metadata` (names, sizes, entity tags and times as listed) or of `content`, as of other
    sources, which fetches everything. `skills`: only those with these names; None: all. `interval`: seconds.
    `endpoint_url`, `region`, `anon`: see s3fs.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        fingerprint: str = "metadata",
        skills: Iterable[str] | None = None,
        interval: float = INTERVAL,
        endpoint_url: str = "",
        region: str = "",
        anon: bool = False,
        cache: Cache | None = None,
        caps: SourceLimits = LIMITS,
    ) -> None:
        if fingerprint not in ("metadata", "content"):
            raise SkillSourceError(f"fingerprint={fingerprint!r}", hint="It is metadata or content.")
        self.id = f"s3://{bucket}/{prefix}".rstrip("/")
        self.interval = interval
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._bucket = bucket
        self._by_content = fingerprint == "content"
        self._wanted = None if skills is None else frozenset(skills)
        self._store = Store(bucket, endpoint_url, region, anon, caps, self.id)
        self._name = key("bucket", endpoint_url, bucket, self._prefix)
        self._cache = cache or Cache()
        self._caps = caps
        self._turn = threading.Lock()
        self._looked = -1e9
        self._state: tuple[Listing, dict[str, _Item]] | SkillSourceError | None = None
        self._parsed: dict[tuple[str, str], SkillDocument | str] = {}

    @classmethod
    def at(cls, address: str, *, cache: Cache | None = None, caps: SourceLimits = LIMITS) -> BucketSource:
        """The source at an `s3:` address. SkillSourceError for an option that does not exist."""
        parts = urlsplit(address)
        options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        unknown = sorted(options.keys() - set(OPTIONS))
        if unknown or not parts.netloc or "@" in parts.netloc or parts.fragment:
            what = f"there is no option {unknown[0]!r}" if unknown else "it is no address of a bucket"
            hint = f"Write s3://bucket/prefix?option=value; options are {', '.join(OPTIONS)}."
            raise SkillSourceError(what, hint=hint)
        try:
            interval = float(options.get("refresh", INTERVAL))
        except ValueError:
            raise SkillSourceError(f"refresh={options['refresh']!r} is no number of seconds") from None
        names = options.get("skills")
        return cls(
            parts.netloc,
            parts.path.strip("/"),
            fingerprint=options.get("fingerprint", "metadata"),
            skills=None if names is None else [name.strip() for name in names.split(",") if name.strip()],
            interval=interval,
            endpoint_url=options.get("endpoint_url", ""),
            region=options.get("region", ""),
            anon=options.get("anon", "").lower() in ("1", "true", "yes"),
            cache=cache,
            caps=caps,
        )

    def due(self) -> bool:
        """Whether the last look is older than `interval`."""
        return time.monotonic() - self._looked >= (self.interval or 0.0)

    def list(self) -> Listing:
        """What the last look found. Nothing but SKILL.md files is fetched for it."""
        state = self._state
        if state is None or (isinstance(state, SkillSourceError) and self.due()):
            self._look(self._looked)
            state = self._state
        if isinstance(state, SkillSourceError):
            raise state
        assert state is not None
        return state[0]

    def refresh(self) -> None:
        """One listing, and the SKILL.md files that are new."""
        self._look(self._looked)
        if isinstance(self._state, SkillSourceError):
            raise self._state

    def read_resource(self, slug: str, path: str) -> bytes | None:
        """That object alone, unless the whole skill is here."""
        contents.check_path(path)
        self.list()
        state = self._state
        item = state[1].get(slug) if isinstance(state, tuple) else None
        found = next((one for one in item.objects if one.path == path), None) if item else None
        return None if found is None else self._bodies([found])[found.key]

    def fingerprint(self) -> str:
        """Of the metadata, or of the content, as the source was made."""
        listing = self.list()
        if self._by_content:
            return super().fingerprint()
        state = self._state
        items = state[1] if isinstance(state, tuple) else {}
        whole = hashlib.sha256()
        for name in sorted(listing.first()):
            whole.update("\n".join([name, *(one.version for one in items[name].objects), ""]).encode())
        return whole.hexdigest()

    # -- a look --

    def _look(self, seen: float) -> None:
        with self._turn:
            if self._looked != seen:
                return
            notes: tuple[str, ...] = ()
            try:
                listed = self._store.listing(self._prefix)
                self._cache.remember(self._name, {"at": time.time(), "source": self.id, "objects": listed})
                self._state = self._made(listed, ())
            except UnreachableError as error:
                look = self._cache.look(self._name)
                if "objects" in look:
                    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(look["at"]))
                    reason = error.message.removeprefix(self.id).lstrip(": ")
                    notes = (f"{reason}; the list of {at} is used",)
                    self._state = self._made(look["objects"], notes)
                else:
                    self._state = error
            except SkillSourceError as error:
                self._state = error
            finally:
                progress.end(self.id)
            for note in notes:
                progress.warn(f"{self.id}: {note}")
            self._looked = time.monotonic()

    def _made(self, listed: list_[Any], notes: tuple[str, ...]) -> tuple[Listing, dict[str, _Item]]:
        problems = [Problem(Path(self.id), note, origin=self.id) for note in notes]
        items: list_[_Item] = []
        for item in _items(self._prefix, self._bucket, listed):
            if wrong := self._wrong(item):
                problems.append(self._problem(item, wrong))
            else:
                items.append(item)
        bodies = self._bodies([item.file for item in items])
        skills: list_[Skill] = []
        first: dict[str, _Item] = {}
        for item in items:
            document = self._document(item, bodies[item.file.key])
            if isinstance(document, str):
                problems.append(self._problem(item, document))
            elif self._wanted is None or document.name in self._wanted:
                skills.append(self._skill(item, document))
                first.setdefault(document.slug, item)
        return Listing(tuple(skills), tuple(problems)), first

    def _wrong(self, item: _Item) -> str:
        if item.file.size > MAX_BYTES:
            return f"its SKILL.md is larger than {MAX_BYTES:,} bytes"
        try:
            for one in item.objects:
                check_name(f"{item.folder}/{one.path}" if item.folder else one.path)
        except SkillSourceError as error:
            return error.message
        return ""

    def _document(self, item: _Item, body: bytes) -> SkillDocument | str:
        known = (item.file.version, f"{item.folder}/{item.title}")
        if known not in self._parsed:
            try:
                self._parsed[known] = parse(body, folder=item.title)
            except SkillUnreadableError as error:
                self._parsed[known] = error.message
        return self._parsed[known]

    def _skill(self, item: _Item, document: SkillDocument) -> Skill:
        version = self._version(item)
        place = self._cache.folder / "trees" / version / item.title
        return Skill(document.slug, place, document, self._called(item), partial(self._bring, item, version))

    def _called(self, item: _Item) -> str:
        return f"{item.folder} in {self.id}" if item.folder else self.id

    def _problem(self, item: _Item, reason: str) -> Problem:
        return Problem(Path(self.id, item.folder), reason, slug(item.title), self._called(item))

    def _version(self, item: _Item) -> str:
        return key("objects", self._name, item.folder, item.title, *(one.version for one in item.objects))

    # -- bodies --

    def _bring(self, item: _Item, version: str) -> None:
        if self._cache.tree(version) is not None:
            return
        total = sum(one.size for one in item.objects)
        if total > self._caps.total:
            raise beyond(f"the skill {self._called(item)} is larger than {self._caps.total:,} bytes", "total")
        if len(item.objects) > self._caps.entries:
            raise beyond(
                f"the skill {self._called(item)} has more than {self._caps.entries:,} files", "entries"
            )
        with self._cache.turn(version, self._caps.seconds + WAIT):
            if self._cache.tree(version) is not None:
                return
            with self._cache.scratch() as scratch:
                try:
                    files = self._store.fetch(item.objects, scratch)
                finally:
                    progress.end(self.id)
                made = scratch / "tree"
                (made / item.title).mkdir(parents=True)
                unpack(
                    (Member(one.path, pieces(files[one.key])) for one in item.objects),
                    made / item.title,
                    caps=self._caps,
                )
                self._cache.keep(made, version)

    def _bodies(self, objects: Iterable[Object]) -> dict[str, bytes]:
        """key → bytes, from the cache where it has them."""
        wanted = {key("object", self._name, one.key, one.version): one for one in objects}
        missing = [one for name, one in wanted.items() if self._cache.tree(name) is None]
        if missing:
            with self._cache.scratch() as scratch:
                files = self._store.fetch(missing, scratch)
                for name, one in wanted.items():
                    if one.key in files:
                        made = scratch / name
                        made.mkdir()
                        files[one.key].rename(made / "object")
                        self._cache.keep(made, name)
        found = {}
        for name, one in wanted.items():
            place = self._cache.tree(name)
            if place is None:
                raise SkillSourceError(f"{one.key} is gone from the cache")
            found[one.key] = place.read_bytes()
        return found


list_ = list  # `BucketSource.list` has the name inside the class


def _items(prefix: str, bucket: str, listed: Iterable[Any]) -> Iterator[_Item]:
    """The skills among the objects, those nearer to the prefix first; as `DirectorySource` finds them."""
    objects: dict[tuple[str, ...], list[Object]] = {}
    files: dict[tuple[str, ...], list[Object]] = {}
    rows = []
    for name, size, etag, modified in listed:
        below = name[len(prefix) :]
        parts = tuple(below.split("/"))
        if name.endswith("/") or SKIPPED_FOLDERS.intersection(parts[:-1]):
            continue  # the mark of an empty folder; a folder of tools
        rows.append((parts, Object(below, name, size, etag, modified)))
        if parts[-1].lower() == "skill.md" and len(parts) - 1 <= MAX_DEPTH:
            files.setdefault(parts[:-1], []).append(rows[-1][1])
    for parts, one in rows:
        for depth in range(len(parts)):
            if parts[:depth] in files:
                path = "/".join(parts[depth:])
                own = Object(path, one.key, one.size, one.etag, one.modified)
                objects.setdefault(parts[:depth], []).append(own)
    for folder in sorted(files, key=lambda folder: (len(folder), folder)):
        all_of_it = sorted(objects[folder], key=lambda one: one.path)
        here = [one for one in all_of_it if one.path.lower() == "skill.md"]
        file = next((one for one in here if one.path == "SKILL.md"), here[0])
        title = folder[-1] if folder else prefix.rstrip("/").rpartition("/")[2] or bucket
        yield _Item("/".join(folder), title, tuple(all_of_it), file)
