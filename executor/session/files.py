"""Files that came out of a session: one collected file, and the list of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import PrivateAttr

from executor.models import OutputFile
from executor.workspace import outputs
from executor.workspace.saving import saving

F = TypeVar("F", bound=OutputFile)


class AsyncFile(OutputFile):
    """A collected file whose content can still be had from the session."""

    _session: Any = PrivateAttr(default=None)

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
        return sink.path


class Collected(list[F]):
    """Collected files, and what kept others out."""

    def __init__(self, files: Iterable[F], limits_hit: list[str], warnings: list[str]) -> None:
        super().__init__(files)
        self.limits_hit = limits_hit
        """Names of the caps that cut something: `max_files`, `inline_bytes`, …"""
        self.warnings = warnings
        """What was not collected, and why: links, pipes, files that could not be read."""
