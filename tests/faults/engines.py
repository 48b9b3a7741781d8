"""Engines of the tests' own, to be killed and filled up, with an image of 20 MB cut out of the base image.

They use what `dev/engine.py` uses, in folders of their own. The engine that the other tests share is never
touched.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker

from executor.runtimes.local import LocalRuntime
from tests.conftest import REPOSITORY

SMALL = "executor-faults/small:1"
PREFIX = "executor-faults-"
# Of the base image's root filesystem: what the guest, a shell and a few programs need.
PARTS = (
    *("bin", "sbin", "lib", "lib64", "usr/lib64", "usr/lib64/ld-*", "usr/lib/ld-*", "usr/lib/*/ld-*"),
    *(f"usr/bin/{name}" for name in ("python3*", "bash", "sh", "dash", "sleep", "cat", "head", "yes", "tr")),
    *(f"usr/bin/{name}" for name in ("seq", "touch", "ls", "true", "dd")),
    *(f"usr/lib/*/lib{name}.so*" for name in ("c", "m", "z", "expat", "tinfo", "selinux", "pcre2-8", "ffi")),
    "usr/lib/python3.*/*.py",
    "usr/lib/python3.*/lib-dynload/[_fmrsu]*",
    *(
        f"usr/lib/python3.*/{name}/*.py"
        for name in ("collections", "ctypes", "encodings", "importlib", "json", "re")
    ),
)


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("dev_engine", REPOSITORY / "dev/engine.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dev = _module()


@functools.cache
def small_image() -> bytes:
    """The tar of a root filesystem in which the guest starts."""
    root = Path(LocalRuntime().rootfs("base"))
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for pattern in PARTS:
            for path in sorted(root.glob(pattern)):
                if not path.is_dir() or path.is_symlink():
                    tar.add(path, path.relative_to(root), recursive=False)
    return made.getvalue()


class OwnEngine:
    """A dockerd and its containerd, which die as the test wants it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._engine = dev.PrivateEngine(folder)
        self.host: str = self._engine.host
        self.socket: Path = self._engine.socket

    def start(self) -> None:
        """Start both, or a dockerd whose containerd still lives."""
        with self._engine.locked(), contextlib.redirect_stderr(io.StringIO()):
            named = self._engine.processes()
            if dev.alive(named.get("containerd", "")):
                self._engine.start_dockerd({"containerd": named["containerd"]})
            else:
                self._engine.start()

    def client(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=self.host, timeout=30)

    def send(self, number: int) -> None:
        """Send dockerd a signal."""
        os.kill(self.pid, number)

    @property
    def alive(self) -> bool:
        """Whether dockerd runs."""
        return bool(dev.alive(self._engine.processes().get("dockerd", "")))

    def shims(self) -> list[str]:
        """Processes that look after its containers."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if b"shim" in words[0] and os.fsencode(self._engine.containerd_socket) in words:
                    found.append(name)
        return found

    def overlays(self) -> list[str]:
        """File systems of its containers that are mounted."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if f" {self.folder}/" in line and "overlay" in line]

    @property
    def pid(self) -> int:
        return int(self._engine.processes()["dockerd"].split()[0])

    def configure(self, **settings: object) -> None:
        """Settings of dockerd, for this one and those that are started after it."""
        self._engine.settings = settings
        (self._engine.run / "daemon.json").write_text(json.dumps(settings))
        self.send(signal.SIGHUP)

    def kill(self) -> None:
        """SIGKILL to dockerd; the containers and their containerd live on."""
        self.send(signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def terminate(self) -> None:
        """SIGTERM to dockerd, and wait until it has ended."""
        dev.end(self._engine.processes()["dockerd"], 20.0)

    def stop(self) -> None:
        """End everything, containers too."""
        with self._engine.locked():
            self._engine._stop_processes()


@contextlib.contextmanager
def own_engine(size: str = "") -> Iterator[OwnEngine]:
    """An engine with the small image and nothing else; `size` puts its data on a disk of that size."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/var/tmp"))
    try:
        if size:
            options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
            subprocess.run(["mount", *options], check=True)
        (folder / "owner").write_text(dev.identity(os.getpid()))
        engine = OwnEngine(folder)
        try:
            engine.start()
            name, _, tag = SMALL.partition(":")
            with contextlib.closing(engine.client()) as client:
                change = ["ENV PATH=/usr/bin"]
                client.api.import_image_from_data(small_image(), repository=name, tag=tag, changes=change)
            yield engine
        finally:
            engine.stop()
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """The folder of an engine that has ended."""
    if os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """End the engines of tests that were killed themselves."""
    for folder in Path("/var/tmp").glob(PREFIX + "*"):
        try:
            owner = (folder / "owner").read_text()
        except OSError:
            continue  # it has only just been made
        if not dev.alive(owner):
            OwnEngine(folder).stop()
            remove(folder)


def missing() -> str:
    """Why no engine can be started here; '' when one can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "only root can start an engine of its own"
    try:
        dev.PrivateEngine(Path("/var/tmp/x")).check()
    except dev.EngineError as error:
        return str(error)
    return ""
