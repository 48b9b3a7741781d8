"""Files of a session: one as it is listed, one that was collected, and the list of those."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import PrivateAttr

from executor.channel.files import Entry
from executor.guest import records
from executor.models import FileInfo, OutputFile
from executor.workspace import layout, outputs
from executor.workspace.saving import saving
from executor.workspace.text import to_text

F = TypeVar("F", bound=OutputFile)


TYPES: dict[int, Literal["file", "folder", "link"]] = {
    records.REGULAR: "file",
    records.FOLDER: "folder",
    records.LINK: "link",
}


def file_info(entry: Entry, folder: bytes) -> FileInfo:
    """A listed entry of a folder, given by its canonical path."""
    kind = TYPES.get(entry.kind, "other")
    return FileInfo(
        path=layout.shown(entry.path),
        name=to_text(entry.path[len(folder) + 1 :]),
        type=kind,
        size=entry.size if kind == "file" else 0,
        executable=kind == "file" and bool(entry.mode & stat.S_IXUSR),
    )


class AsyncFile(OutputFile):
    """A collected file whose content can still be had from the session."""

    _session: Any = PrivateAttr(default=None)
    _on_saved: Any = PrivateAttr(default=None)

    async def read(self) -> bytes:
        """All its bytes. From the result if they are there, else from the sandbox."""
        whole = outputs.decode(self)
        if whole is not None:
            return whole
        pieces: list[bytes] = []
        await self._session.stream_file(self, pieces.append)
        return b"".join(pieces)

    async def save(self, target: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write it below the host folder `target`, as `target/<path>`. Returns where; see `saving`."""
        with saving(target, self.path, overwrite=overwrite) as sink:
            whole = outputs.decode(self)
            if whole is not None:
                sink.write(whole)
            else:
                await self._session.stream_file(self, sink.write)
        self.saved_as = str(sink.path)
        if self._on_saved is not None:
            await self._on_saved(self.saved_as)
        return sink.path


class Collected(list[F]):
    """Collected files, and what kept others out."""

    def __init__(self, files: Iterable[F], limits_hit: list[str], warnings: list[str]) -> None:
        super().__init__(files)
        self.limits_hit = limits_hit
        """Names of the caps that cut something: `max_files`, `inline_bytes`, …"""
        self.warnings = warnings
        """What was not collected, and why: links, pipes, files that could not be read."""
