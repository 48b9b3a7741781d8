"""What a person reads when a runtime cannot be used: each cause its own error, with the next step.

The causes are real ones: a socket that is not there, one that this user may not open, an engine without the
image, a PATH without bubblewrap, a place where user namespaces are off.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from executor import (
    AsyncExecutor,
    BubblewrapMissingError,
    EngineDownError,
    Executor,
    ImageMissingError,
    PlatformError,
    RuntimeUnavailableError,
    Settings,
)
from executor.runtimes.container import ContainerRuntime
from executor.runtimes.local import LocalRuntime
from tests.conftest import REQUIRED

NO_BWRAP_DIR = "/nonexistent"


def check(runtime: ContainerRuntime | LocalRuntime) -> None:
    asyncio.run(runtime.check())


def test_no_socket_is_an_engine_that_is_down(tmp_path: Path) -> None:
    with pytest.raises(EngineDownError, match=r"no Docker engine answers at unix://.*docker\.sock") as caught:
        check(ContainerRuntime(docker_host=f"unix://{tmp_path}/docker.sock"))
    assert caught.value.hint == "Start it, point DOCKER_HOST to one, or use --runtime local."


def test_a_refused_connection_is_an_engine_that_is_down() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(EngineDownError, match="no Docker engine answers at tcp://127"):
            check(ContainerRuntime(docker_host=address))


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """A server that is no Docker engine: it sends `reply` to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.mark.parametrize(
    "reply", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b""]
)
def test_something_else_at_the_address_is_an_engine_that_is_down(reply: bytes) -> None:
    with answering(reply) as address, pytest.raises(EngineDownError):
        check(ContainerRuntime(docker_host=address))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who may not open the socket")
def test_a_socket_of_others_is_an_engine_that_is_forbidden(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        if folder.stat().st_uid == 0 and folder != Path("/tmp"):
            folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o600)
        server.listen()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                check(ContainerRuntime(docker_host=f"unix://{path}"))
            except BaseException as error:
                said = [
                    type(error).__name__,
                    getattr(error, "message", repr(error)),
                    getattr(error, "hint", ""),
                ]
                os.write(write, json.dumps(said).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            kind, message, hint = json.loads(pipe.read())
        os.waitpid(child, 0)
    assert (kind, message) == (
        "EngineForbiddenError",
        f"this user may not open the engine's socket at unix://{path}",
    )
    assert "--runtime local" in hint


def test_an_image_that_is_not_there_is_named_and_not_pulled() -> None:
    missing = "executor-test/never-built:1"
    try:
        check(ContainerRuntime())
    except RuntimeUnavailableError as error:
        if "container" in REQUIRED:
            raise
        pytest.skip(error.message)
    opened = Executor(runtime="container", image=missing, skills=[])
    with (
        pytest.raises(ImageMissingError, match="has no image 'executor-test/never-built:1'") as caught,
        opened,
    ):
        pass
    assert f"docker pull {missing}" in caught.value.hint


def test_a_missing_root_filesystem_is_named() -> None:
    with pytest.raises(ImageMissingError, match="no root filesystem 'never-built'") as caught:
        LocalRuntime().rootfs("never-built")
    assert "executor images build" in caught.value.hint


def test_no_bubblewrap_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", NO_BWRAP_DIR)
    with pytest.raises(BubblewrapMissingError, match="there is no `bwrap` on the PATH") as caught:
        check(LocalRuntime())
    assert "apt-get install bubblewrap" in caught.value.hint


PROBE = """
import asyncio, json
from executor.runtimes.local import LocalRuntime
try:
    asyncio.run(LocalRuntime().check())
    print(json.dumps(["works", "", ""]))
except Exception as error:
    print(json.dumps([type(error).__name__, error.message, error.hint]))
"""


@pytest.mark.parametrize(
    ("extra", "expected"), [([], "works"), (["--disable-userns"], "UserNamespacesOffError")]
)
def test_a_place_without_user_namespaces_is_told_from_one_with(extra: list[str], expected: str) -> None:
    if shutil.which("bwrap") is None:
        if "local" in REQUIRED:
            pytest.fail("bubblewrap is required here")
        pytest.skip("bubblewrap is not installed")
    around = ["bwrap", "--unshare-user", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *extra]
    identity = ["--uid", "1000", "--gid", "1000"]
    done = subprocess.run(
        [*around, *identity, "--", sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    kind, message, hint = json.loads(done.stdout)
    assert kind == expected, (message, hint)
    if extra:
        assert "does not let this user make user namespaces" in message
        assert "kernel.apparmor_restrict_unprivileged_userns" in hint


def test_without_engine_auto_takes_bubblewrap_and_says_why(tmp_path: Path) -> None:
    try:
        check(LocalRuntime())
    except RuntimeUnavailableError as error:
        if "local" in REQUIRED:
            raise
        pytest.skip(error.message)
    settings = Settings(docker_host=f"unix://{tmp_path}/docker.sock")
    with Executor(settings=settings, skills=[]) as executor:
        assert executor.choose_runtime() == "local"
        assert executor.why.startswith("local: no Docker engine answers at unix://")


def test_without_any_runtime_auto_names_both_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", NO_BWRAP_DIR)

    async def choose() -> None:
        settings = Settings(docker_host=f"unix://{tmp_path}/docker.sock")
        async with AsyncExecutor(settings=settings, skills=[]):
            pass

    with pytest.raises(RuntimeUnavailableError) as caught:
        asyncio.run(choose())
    assert "container: no Docker engine answers" in caught.value.message
    assert "local: bubblewrap is not installed" in caught.value.message
    assert "apt-get install bubblewrap" in caught.value.hint


ELSEWHERE = """
import os, sys, signal, socket
sys.platform = {platform!r}
for name in {missing!r}:
    sys.modules[name] = None
for module, names in {{os: {os_names!r}, signal: ["SIGKILL", "SIGSTOP"]}}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import asyncio
import executor
import executor.cli
from executor.runtimes.local import LocalRuntime
executor.Executor, executor.Limits(memory="1g")
try:
    asyncio.run(LocalRuntime().check())
except executor.PlatformError as error:
    print(error.message)
"""


@pytest.mark.parametrize(
    ("platform", "missing", "os_names"),
    [
        ("win32", ["fcntl", "pwd", "grp", "resource", "termios", "pty"], ["geteuid", "getuid", "fchmod"]),
        ("darwin", [], []),
    ],
)
def test_other_systems_import_the_package_and_local_says_it_needs_linux(
    platform: str, missing: list[str], os_names: list[str]
) -> None:
    code = ELSEWHERE.format(platform=platform, missing=missing, os_names=os_names)
    # What is not ours takes this machine for granted: it is imported before the change.
    before = (
        "import asyncio, sys, executor.cli.app, executor.cli.run, executor.sync\n"
        "import executor.runtimes.container\n"
        "for name in [n for n in sys.modules if n.partition('.')[0] == 'executor']: del sys.modules[name]\n"
    )
    done = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"the local runtime needs Linux; this is {platform}\n"
    assert PlatformError.__mro__[1] is RuntimeUnavailableError
