"""The requests that are made of an S3-compatible bucket, through s3fs: one listing, and objects as listed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from executor.errors import SkillSourceError
from executor.models import SourceLimits
from executor.skills.sources import progress
from executor.skills.sources.members import beyond, refused
from executor.skills.sources.web import UnreachableError

MAX_OBJECTS = 500_000  # in one listing
AT_ONCE = 16  # requests
_T = TypeVar("_T")


@dataclass(frozen=True)
class Object:
    """One object as it was listed."""

    path: str
    """Below the skill."""
    key: str
    size: int
    etag: str
    modified: str

    @property
    def version(self) -> str:
        """What changes when it is written again."""
        return f"{self.path}:{self.size}:{self.etag}:{self.modified}"


class Store:
    """The requests that are made of a bucket."""

    def __init__(
        self, bucket: str, endpoint_url: str, region: str, anon: bool, caps: SourceLimits, name: str
    ) -> None:
        self._bucket = bucket
        self._options = {"endpoint_url": endpoint_url or None, "anon": anon}
        self._region = region
        self._caps = caps
        self._name = name
        self._made: Any = None

    def listing(self, prefix: str) -> list[tuple[str, int, str, str]]:
        """(key, size, entity tag, time of writing) of every object below the prefix."""

        async def pages(call: Callable[..., Any]) -> list[tuple[str, int, str, str]]:
            found: list[tuple[str, int, str, str]] = []
            more: dict[str, str] = {}
            while True:
                page = await call("list_objects_v2", Bucket=self._bucket, Prefix=prefix, **more)
                for one in page.get("Contents", ()):
                    found.append((one["Key"], one["Size"], one["ETag"], one["LastModified"].isoformat()))
                if len(found) > MAX_OBJECTS:
                    raise refused(f"{self._name} has more than {MAX_OBJECTS:,} objects")
                if not page.get("IsTruncated"):
                    return found
                more = {"ContinuationToken": page["NextContinuationToken"]}

        return self._run(pages)

    def fetch(self, objects: Sequence[Object], folder: Path) -> dict[str, Path]:
        """Write objects into files of a folder; key → file. SkillSourceError if one was written meanwhile."""
        files = {one.key: folder / f"object-{number}" for number, one in enumerate(objects)}
        wanted = [(one, files[one.key]) for one in objects]
        total = sum(one.size for one, _ in wanted)
        done = 0

        async def get(call: Callable[..., Any], one: Object, file: Path, gate: asyncio.Semaphore) -> None:
            nonlocal done
            async with gate:
                if one.size > self._caps.file:
                    raise beyond(f"{one.key} is larger than {self._caps.file:,} bytes", "file")
                answer = await call("get_object", Bucket=self._bucket, Key=one.key, IfMatch=one.etag)
                size = 0
                with open(file, "wb") as opened:  # noqa: ASYNC230  # s3fs has a thread of its own for this
                    async with answer["Body"] as body:
                        while piece := await body.read(1 << 16):
                            size += len(piece)
                            if size > one.size:
                                break
                            opened.write(piece)
                            done += len(piece)
                            progress.step(self._name, done, total)
                if size != one.size:
                    raise SkillSourceError(f"{one.key} has another size than was listed", hint="Look again.")

        async def get_all(call: Callable[..., Any]) -> None:
            gate = asyncio.Semaphore(AT_ONCE)
            async with asyncio.TaskGroup() as group:
                for one, file in wanted:
                    group.create_task(get(call, one, file, gate))

        self._run(get_all)
        return files

    def _run(self, work: Callable[[Callable[..., Any]], Coroutine[Any, Any, _T]]) -> _T:
        """Do it on s3fs's own loop and say what went wrong in our words."""
        filesystem = self._filesystem()
        running = asyncio.run_coroutine_threadsafe(work(filesystem._call_s3), filesystem.loop)
        try:
            return running.result(self._caps.seconds)
        except ExceptionGroup as group:
            raise self._told(group.exceptions[0]) from group
        except Late:
            running.cancel()
            raise UnreachableError(f"{self._name} was not read within {self._caps.seconds:g} s") from None
        except Exception as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> SkillSourceError:
        if isinstance(error, SkillSourceError):
            return error
        text = str(error).partition("\n")[0][:300] or type(error).__name__
        if isinstance(error, FileNotFoundError):
            return SkillSourceError(f"{self._name}: {text}", hint="Look at the names of bucket and prefix.")
        if isinstance(error, PermissionError) or "redentials" in type(error).__name__:
            return SkillSourceError(
                f"{self._name}: {text}", hint="Give credentials as to the AWS tools, or write ?anon=true."
            )
        if "PreconditionFailed" in repr(error.__cause__) or "pre-condition" in text:
            return SkillSourceError(f"{self._name} was written to while it was read", hint="Look again.")
        return UnreachableError(
            f"{self._name} cannot be reached: {text}",
            hint="Look at endpoint_url (or AWS_ENDPOINT_URL), the region and the network of this machine.",
        )

    def _filesystem(self) -> Any:
        if self._made is None:
            try:
                import s3fs
            except ImportError:
                raise SkillSourceError(
                    f"{self._name} needs s3fs", hint="pip install 'skill-executor[s3]'"
                ) from None
            self._made = s3fs.S3FileSystem(
                **self._options,
                client_kwargs={"region_name": self._region} if self._region else {},
                config_kwargs={
                    "connect_timeout": self._caps.idle,
                    "read_timeout": self._caps.idle,
                    "retries": {"max_attempts": 2},
                },
                use_listings_cache=False,
                skip_instance_cache=True,
            )
            self._made.retries = 2
        return self._made
