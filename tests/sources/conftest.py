"""Servers that the sources are tested against, and a cache of its own for every test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.skills.sources import progress
from tests.sources.publish import S3, Web


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of what is fetched; nothing is in it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SKILLS_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was warned of."""
    said: list[str] = []
    monkeypatch.setattr(progress, "warned", said.append)
    monkeypatch.setattr(progress, "_said", set())
    return said


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """An HTTP server that also serves git repositories."""
    with Web(tmp_path_factory.mktemp("git")) as server:
        yield server


@pytest.fixture
def web(served: Web) -> Iterator[Web]:
    """The same, as it is at first."""
    served.reset()
    yield served
    served.reset()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real S3 server process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(tmp_path_factory.mktemp("s3") / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
            env={"PATH": os.environ["PATH"]},
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A bucket of its own, and credentials for it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "two")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    return S3(s3_server)
