"""Files at any path of a sandbox, on every runtime; and that the frameworks are there to be tested."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
from pathlib import Path

import pytest

from executor import AsyncExecutor, BadPathError, ExecResult, Executor, SandboxLostError, Session
from executor.integrations.files import FileCall, perform, reading, removing, writing

FRAMEWORKS = ("agents", "autogen_core", "deepagents", "google.adk", "inspect_ai", "pydantic_ai")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_is_installed(name: str) -> None:
    """Else its tests are skipped, and CI would be green without them."""
    if not os.environ.get("EXECUTOR_REQUIRE_RUNTIMES"):
        pytest.skip("needed where EXECUTOR_REQUIRE_RUNTIMES is set")
    assert importlib.util.find_spec(name) is not None, "dev/setup.sh test"


def do(session: Session, call: FileCall) -> bytes:
    return call.answer(session.exec(call.command, **call.options))


def test_bytes_come_back_whatever_the_path(shared: Session) -> None:
    data = bytes(range(256)) * 1000
    for path in (
        "a b/c.bin",
        "/tmp/x/y",
        "/workspace/out/z",
        "/dev/shm/s",
        "-n",
        "q'\"$(id)`\n\\",
        "ä/\udcff",
    ):
        assert do(shared, writing(path, data)) == b""
        assert do(shared, reading(path, most=len(data))) == data
        do(shared, writing(path, b""))
        assert do(shared, reading(path, most=0)) == b""
        do(shared, removing(path))
        with pytest.raises(FileNotFoundError):
            do(shared, reading(path, most=0))
    assert do(shared, reading("/proc/self/cmdline", most=1 << 20)).startswith(b"python3\0")


def test_what_a_file_is_not_read_beyond(shared: Session) -> None:
    """A limit counts for a file that says it is empty (/proc) as for one that says its size."""
    do(shared, writing("large", bytes(100_001)))
    for path, most in (("large", 100_000), ("/proc/self/cmdline", 5), ("/proc/self/status", 100)):
        with pytest.raises(OSError) as error:
            do(shared, reading(path, most=most))
        assert error.value.errno == errno.EFBIG and error.value.filename == path


@pytest.mark.parametrize(
    ("path", "kind", "number"),
    [
        ("/etc", IsADirectoryError, errno.EISDIR),
        ("/nowhere/x", FileNotFoundError, errno.ENOENT),
        ("/etc/passwd/x", NotADirectoryError, errno.ENOTDIR),
        ("/tmp/trap/fifo", OSError, errno.EINVAL),
        ("/tmp/trap/loop", OSError, errno.ELOOP),
        ("/tmp/trap/closed", PermissionError, errno.EACCES),
        ("/dev/zero", OSError, errno.EINVAL),
        ("x" * 300, OSError, errno.ENAMETOOLONG),
    ],
)
def test_errors_are_those_of_the_system(shared: Session, path: str, kind: type, number: int) -> None:
    """None of them blocks: a pipe that nobody writes to, a device without end."""
    trap = "mkdir -p /tmp/trap; cd /tmp/trap; mkfifo fifo; ln -s loop loop; touch closed; chmod 0 closed"
    shared.exec(trap)
    with pytest.raises(kind) as error:
        do(shared, reading(path, most=1000))
    assert (error.value.errno, error.value.filename) == (number, path)


def test_what_cannot_be_written(shared: Session) -> None:
    shared.exec(
        "mkdir -p /tmp/w/folder; echo keep > /tmp/w/locked; chmod 400 /tmp/w/locked; mkfifo /tmp/w/fifo"
    )
    for path, number in (
        ("/tmp/w/folder", errno.EISDIR),
        ("/tmp/w/locked", errno.EACCES),
        ("/tmp/w/locked/x", errno.EEXIST),
        ("/tmp/w/fifo", errno.ENXIO),
        ("/proc/nothing", errno.ENOENT),
    ):
        with pytest.raises(OSError) as error:
            do(shared, writing(path, b"new"))
        assert error.value.errno == number, path
    assert do(shared, reading("/tmp/w/locked", most=10)) == b"keep\n"
    with pytest.raises(OSError, match="No space left"):
        do(shared, writing("/tmp/full", bytes(80 << 20)))
    do(shared, removing("/tmp/full"))


@pytest.mark.parametrize("path", ["", "a\0b", "a\ud800"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(BadPathError):
        _ = reading(path, most=1).command


def test_an_answer_is_believed_no_further_than_it_was_asked_for() -> None:
    """A sandbox's own python3 might say anything."""
    call = reading("x", most=10)
    for _ in range(100):
        call.options["on_output"]("stdout", bytes(1 << 16))
    with pytest.raises(OSError) as error:
        call.answer(ExecResult(status="ok", exit_code=0))
    assert error.value.errno == errno.EFBIG
    assert len(call._received) <= 3 << 16
    for stderr in ("errno 99999999999999", "errno -1", "Traceback", ""):
        with pytest.raises(OSError) as error:
            call.answer(ExecResult(status="error", exit_code=1, stderr=stderr))
        assert error.value.errno == errno.EIO
    with pytest.raises(TimeoutError):
        call.answer(ExecResult(status="timeout", timed_out=True))
    with pytest.raises(SandboxLostError):
        call.answer(ExecResult(status="lost"))


def test_with_an_event_loop(executor: Executor, runtime: str, skills_root: Path) -> None:
    async def work() -> None:
        async with AsyncExecutor(skills=[skills_root], runtime=runtime) as own, own.session() as session:
            await perform(session, writing("/tmp/x", b"1"))
            assert await perform(session, reading("/tmp/x", most=1)) == b"1"

    asyncio.run(asyncio.wait_for(work(), 60))
