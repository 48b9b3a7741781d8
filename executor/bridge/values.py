"""Values that are files: large arguments and results go by reference and not through the call itself.

In a call a file is `{"$file": PATH}`. An argument names a file of the sandbox, of which the host takes a copy
before anybody is asked about the call; the handler gets a `HostFile`. A handler that returns a `SandboxFile`
puts one into the sandbox; the script gets its path.

    @tool
    def index(document: HostFile) -> SandboxFile:
        return SandboxFile("words.json", json.dumps(count(document.read())))
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from executor.bridge.codes import BridgeError
from executor.errors import ExecutorError, GrantError

KEY = "$file"
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {KEY: {"type": "string", "description": "Path of a file in the workspace."}},
    "required": [KEY],
    "additionalProperties": False,
}
Pull = Callable[[str, int, Callable[[bytes], None]], Awaitable[None]]
"""Path in the sandbox, most bytes, where they go. BadPathError, SandboxError."""
Push = Callable[[str, "bytes | Path"], Awaitable[None]]
"""Path in the sandbox, content."""


class HostFile:
    """A copy, on this machine, of a file of the sandbox. It is removed when nobody has it any more."""

    def __init__(self, path: str, local: Path, size: int, sha256: str) -> None:
        self.path = path
        """Its path in the sandbox, as the script said it."""
        self.local = local
        """Where the copy is."""
        self.size = size
        self.sha256 = sha256
        self._removing = weakref.finalize(self, _remove, local)

    def open(self) -> BinaryIO:
        """The copy, to be read."""
        return self.local.open("rb")

    def read(self) -> bytes:
        """All of it."""
        return self.local.read_bytes()

    @property
    def shown(self) -> dict[str, Any]:
        """What policies, people and the audit see of it."""
        return {KEY: self.path, "size": self.size, "sha256": self.sha256}

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> Any:
        return core_schema.is_instance_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(SCHEMA)


class SandboxFile:
    """What a handler returns to give the script a file. `content`: bytes, text, or a path on this machine."""

    def __init__(self, name: str, content: bytes | str | os.PathLike[str]) -> None:
        if not name or name in (".", "..") or "/" in name or not name.isprintable() or len(name) > 200:
            raise ValueError(f"{name[:80]!r} is not the name of a file")
        self.name = name
        self.content = content.encode() if isinstance(content, str) else content
        self._mark = f"{secrets.token_hex(16)}/{name}"

    @property
    def marker(self) -> dict[str, str]:
        """What stands for it in the JSON of a call's result until it is in the sandbox."""
        found = _of_this_call.get()
        if found is not None:
            found[self._mark] = self
        return {KEY: self._mark}

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> Any:
        return core_schema.is_instance_schema(
            cls, serialization=core_schema.plain_serializer_function_ser_schema(lambda made: made.marker)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "object", "required": [KEY]}


_of_this_call: ContextVar[dict[str, SandboxFile] | None] = ContextVar("files of a call", default=None)


@contextlib.contextmanager
def collecting() -> Iterator[dict[str, SandboxFile]]:
    """Files that become part of a result in here, by their marks: nobody else's mark means anything."""
    found: dict[str, SandboxFile] = {}
    token = _of_this_call.set(found)
    try:
        yield found
    finally:
        _of_this_call.reset(token)


def marked(value: Any) -> Any:
    """For `json.dumps(default=…)`."""
    if isinstance(value, SandboxFile):
        return value.marker
    raise TypeError(f"{type(value).__name__} is not JSON")


def file_fields(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the fields of a pydantic model whose hints speak of `HostFile`."""
    return tuple(
        field.alias or name for name, field in fields.items() if _mentions(field.annotation, HostFile)
    )


def _mentions(hint: Any, kind: type) -> bool:
    return hint is kind or any(_mentions(part, kind) for part in get_args(hint))


def check_fields(name: str, schema: Mapping[str, Any], fields: Iterable[str]) -> None:
    """GrantError when a tool says that an input is a file which its schema does not have."""
    known = schema.get("properties", {})
    if wrong := [field for field in fields if field not in known]:
        raise GrantError(f"tool {name!r} has no input {wrong[0]!r} that could be a file")


@dataclass
class Values:
    """The files of one run's calls: where they come from, where they go, and how much there may be."""

    pull: Pull
    push: Push
    folder: str
    """Of the sandbox, for what comes from tools."""
    most: int
    """Bytes of one file."""
    left: int
    """Bytes of all files that are still to come, both ways."""

    async def arguments(self, fields: Iterable[str], value: Any) -> tuple[Any, Any]:
        """(the input for the handler, the input for people) with its files fetched. BridgeError."""
        if not isinstance(value, dict):
            return value, value
        given, shown = dict(value), dict(value)
        for name in fields:
            if name in value:
                given[name], shown[name] = await self._fetched(value[name])
        return given, shown

    async def _fetched(self, value: Any) -> tuple[Any, Any]:
        if isinstance(value, list):
            pairs = [await self._fetched(item) for item in value]
            return [given for given, _ in pairs], [shown for _, shown in pairs]
        path = value.get(KEY) if isinstance(value, dict) else None
        if not isinstance(path, str):
            return value, value
        file = await self._copy(path)
        return file, file.shown

    async def _copy(self, path: str) -> HostFile:
        fd, name = tempfile.mkstemp(prefix="executor-file-")
        digest, size, most = hashlib.sha256(), 0, min(self.most, self.left)
        self.left -= most  # before anything is awaited: files side by side cannot get past the limit

        def take(data: bytes) -> None:
            nonlocal size
            size += len(data)
            if size <= most:
                digest.update(data)
                sink.write(data)

        try:
            with open(fd, "wb") as sink:  # noqa: ASYNC230  what the channel hands over is in memory
                await self.pull(path, most + 1, take)
            if size > most:
                raise self._too_large(path, most)
        except BaseException as error:
            self.left += most
            _remove(Path(name))
            if isinstance(error, ExecutorError):
                raise BridgeError("NOT_FOUND", f"{path[:200]}: it cannot be read as a file.") from None
            raise
        self.left += most - size
        return HostFile(path, Path(name), size, digest.hexdigest())

    async def results(self, value: Any, made: Mapping[str, SandboxFile], call: str) -> Any:
        """A result as JSON with the files that were made for it in the sandbox. BridgeError."""
        if isinstance(value, list):
            return [await self.results(item, made, call) for item in value]
        if not isinstance(value, dict):
            return value
        file = made.get(str(value.get(KEY))) if len(value) == 1 else None
        if file is None:
            return {key: await self.results(item, made, call) for key, item in value.items()}
        return await self.put(file.name, file.content, call)

    async def put(self, name: str, content: bytes | os.PathLike[str], call: str) -> dict[str, Any]:
        """Put one file into the sandbox; what stands for it in a result. BridgeError."""
        source = content if isinstance(content, bytes) else Path(content)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size > min(self.most, self.left):
            raise self._too_large(name, min(self.most, self.left))
        self.left -= size
        path = f"{self.folder}/{call}-{secrets.token_hex(4)}/{name}"
        try:
            await self.push(path, source)
        except ExecutorError:
            raise BridgeError("IO", f"{name}: the file cannot be written into the sandbox.") from None
        return {KEY: path, "size": size}

    def _too_large(self, name: str, most: int) -> BridgeError:
        return BridgeError(
            "VALUE_TOO_LARGE", f"{name[:200]}: a file of more than {most:,} bytes.", rule="file"
        )


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
