"""What is measured beside ours: a bare process, bubblewrap for each command, and Docker the usual ways.

Each system does the same job as ours does, in the way that its documentation shows.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker

from executor.runtimes.container import DEFAULT_IMAGE

BWRAP = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all"]
MIB = 1 << 20
BIG = 256 * MIB
TRUE = ["/bin/true"]


def bare(command: Sequence[str]) -> None:
    """The command as it is, its output read."""
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def bwrap(command: Sequence[str]) -> None:
    """The same in a bubblewrap of its own: namespaces, and no other protection."""
    bare([*BWRAP, *command])


class Docker:
    """A plain container, and what can be done with it."""

    def __init__(self) -> None:
        self.client = docker.from_env(timeout=300)
        self.container = self._run("sleep", "3600")

    def _run(self, *command: str) -> Any:
        return self.client.containers.run(
            DEFAULT_IMAGE, list(command), detach=True, network_mode="none", user="0:0", entrypoint=[]
        )

    def close(self) -> None:
        self.container.remove(force=True)
        self.client.close()

    def exec_cli(self, command: Sequence[str], *, stdin: Path | None = None) -> None:
        """`docker exec`."""
        line = ["docker", "exec", *(["-i"] if stdin else []), self.container.id, *command]
        with open(stdin or "/dev/null", "rb") as source:
            subprocess.run(line, check=True, stdin=source, stdout=subprocess.PIPE)

    def exec_sdk(self, command: Sequence[str]) -> None:
        """The SDK's `exec_run`."""
        self.container.exec_run(list(command))

    def run_cli(self, command: Sequence[str]) -> None:
        """`docker run --rm`."""
        line = ["docker", "run", "--rm", "--network", "none", DEFAULT_IMAGE, *command]
        subprocess.run(line, check=True, stdout=subprocess.PIPE)

    def create_start_exec(self, command: Sequence[str]) -> None:
        """A container by the SDK, one `exec_run`, and its removal."""
        container = self._run("sleep", "60")
        try:
            container.exec_run(list(command))
        finally:
            container.remove(force=True)

    def put_archive(self, archive: bytes) -> None:
        self.container.put_archive("/opt", archive)

    def get_archive(self, path: str) -> None:
        pieces, _ = self.container.get_archive(path)
        for _piece in pieces:
            pass


@contextmanager
def docker_peer() -> Iterator[Docker | None]:
    """None where there is no command line for the engine."""
    if shutil.which("docker") is None:
        yield None
        return
    peer = Docker()
    try:
        yield peer
    finally:
        peer.close()


def tar(folder: Path) -> bytes:
    """A folder as an archive that holds it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, folder.name)
    return buffer.getvalue()


def many(folder: Path, count: int, *, levels: bool = False, size: int = 100) -> Path:
    """A new folder with `count` small files; with `levels`, twenty in each of many folders."""
    for index in range(count):
        below = folder / f"a{index // 500:02d}" / f"b{index // 20 % 25:02d}" if levels else folder
        below.mkdir(parents=True, exist_ok=True)
        (below / f"f{index:05d}.txt").write_bytes(b"x" * size)
    return folder
