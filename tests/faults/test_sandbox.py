"""Sandboxes that die, stop or starve under a run: the result says so, nobody waits, and nothing stays."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import signal
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

from executor import AsyncExecutor, Executor, Limits, SandboxLostError
from executor.runtimes.base import Runtime, Sandbox, SandboxSpec
from executor.runtimes.container import ContainerSandbox
from executor.runtimes.local import FILES, LocalRuntime, LocalSandbox
from tests.faults.conftest import Drive
from tests.faults.engines import small_image
from tests.faults.traces import guest_pid

UP = "echo up; touch work/up; sleep 600"


async def under_way(session: Any, line: str = UP) -> asyncio.Task[Any]:
    """A run that is under way."""
    run = asyncio.create_task(session.exec(line, timeout=600))
    while not await session.collect("work/up"):  # noqa: ASYNC110  it happens in the sandbox
        await asyncio.sleep(0.02)
    return run


def remove(sandbox: ContainerSandbox) -> None:
    sandbox._api.remove_container(sandbox.name, force=True)


def stop(sandbox: ContainerSandbox) -> None:
    sandbox._api.stop(sandbox.name)


def kill_guest(sandbox: Sandbox) -> None:
    os.kill(guest_pid(sandbox), signal.SIGKILL)


def kill_bubblewrap(sandbox: LocalSandbox) -> None:
    assert sandbox.process is not None
    sandbox.process.kill()


DEATHS = {"local": (kill_guest, kill_bubblewrap), "container": (kill_guest, remove, stop)}


def test_a_sandbox_that_is_killed_under_a_run_is_lost(drive: Drive, runtime: str) -> None:
    """SECURITY 6: container removed or stopped by somebody else, process 1 killed."""

    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        for death in DEATHS[runtime]:
            session = made.session()
            run = await under_way(session)
            await asyncio.to_thread(death, started[-1])  # type: ignore[arg-type]
            result = await run
            assert (result.status, result.exit_code, result.stdout) == ("lost", None, "up\n"), death
            (warning,) = [text for text in result.warnings if "files are gone" in text]
            assert "the sandbox ended" in warning
            assert session.lost
            with pytest.raises(SandboxLostError, match="has lost its sandbox") as caught:
                await session.exec("true")
            assert "Open a new session" in caught.value.hint
            await session.close()

    drive(work)


def freeze(sandbox: Sandbox) -> None:
    os.kill(guest_pid(sandbox), signal.SIGSTOP)


def pause(sandbox: ContainerSandbox) -> None:
    sandbox._api.pause(sandbox.name)


STANDSTILLS = {"local": (freeze,), "container": (freeze, pause)}


def test_a_sandbox_that_stands_still_is_lost_after_the_silence(
    drive: Drive, runtime: str, impatient: None
) -> None:
    """SECURITY 6: paused container, starved process 1."""

    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        for standstill in STANDSTILLS[runtime]:
            session = made.session()
            run = await under_way(session)
            await asyncio.to_thread(standstill, started[-1])  # type: ignore[arg-type]
            result = await run
            assert (result.status, result.stdout) == ("lost", "up\n"), standstill
            assert any("has not answered for" in text for text in result.warnings)
            await session.close()

    drive(work)


def test_a_sandbox_that_is_starved_for_a_moment_is_not_lost(drive: Drive, impatient: None) -> None:
    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        async with made.session() as session:
            run = asyncio.create_task(session.exec("sleep 0.3; echo done"))
            pid = await asyncio.to_thread(guest_pid, started[-1])
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(0.8)
            os.kill(pid, signal.SIGCONT)
            result = await run
            assert (result.status, result.stdout) == ("ok", "done\n")

    drive(work)


def larger_than_memory(runtime: Runtime) -> None:
    """Sandboxes whose file systems hold more than their memory, which no order of ours ever has."""
    start = runtime.start

    async def generous(spec: SandboxSpec) -> Sandbox:
        sandbox = await start(dataclasses.replace(spec, disk=4 * spec.memory))
        sandbox.facts.rlimits["fsize"] = 4 * spec.memory
        return sandbox

    runtime.start = generous  # type: ignore[method-assign]


@pytest.mark.skipif(os.geteuid() != 0, reason="no memory limit on the whole sandbox")
def test_a_sandbox_that_dies_of_memory_says_so(drive: Drive, attentive: None) -> None:
    """SECURITY 6: memory that no process owns, so that the kernel ends everything and process 1 last."""

    async def work(made: AsyncExecutor, _started: list[Sandbox]) -> None:
        session = made.session(limits=Limits(memory="64m"))
        run = await under_way(session)
        with pytest.raises(SandboxLostError):
            await session.put("work/hog", bytes(100 << 20))
        result = await run
        assert (result.status, result.exit_code, result.stdout) == ("oom", 137, "up\n")
        assert "memory" in result.limits_hit
        assert session.lost
        await session.close()

    drive(work, wrap=larger_than_memory)


FILL = "echo kept > out/f; head -c 100000000 /dev/zero > work/hog; exec python3 -c 'bytes(1) * 60000000'"


@pytest.mark.skipif(os.geteuid() != 0, reason="no memory limit on the whole sandbox")
def test_a_sandbox_whose_memory_is_full_of_files_is_lost_or_gets_room_again(drive: Drive) -> None:
    """SECURITY 6: memory-bricked session. Every further run would die; files can still be had and removed."""

    async def work(made: AsyncExecutor, _started: list[Sandbox]) -> None:
        for way_out in (True, False):
            session = made.session(limits=Limits(memory="128m"))
            result = await session.exec(FILL, outputs=["out/**"], timeout=60)
            assert (result.status, result.files[0].content) == ("oom", "kept\n"), result
            if way_out:
                await session.remove("work/hog")
                assert (await session.exec("echo well")).stdout == "well\n"
            else:
                with pytest.raises(SandboxLostError, match="no program finds 25 MiB of 128"):
                    await session.exec("echo well")
                assert session.lost
            await session.close()

    drive(work, wrap=larger_than_memory)


def test_a_host_that_reads_no_more_can_still_end_a_sandbox(drive: Drive, client: Any) -> None:
    """SECURITY 6: a stalled reader wedges the engine until the attached stream is closed."""

    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        session = made.session()
        flood = await session.start("yes | head -c 1000000000; touch work/up", on_output=lambda *_: None)
        started[-1].stream.transport.pause_reading()
        await asyncio.sleep(0.5)  # what is on the way fills every buffer
        await session.close()
        assert not flood.running
        if client is not None:
            assert await asyncio.to_thread(client.ping)

    drive(work)


def test_a_sandbox_without_a_free_process_recovers(drive: Drive) -> None:
    """SECURITY 6: pids exhausted. Other runs get an answer meanwhile, and the session goes on afterwards."""

    async def work(made: AsyncExecutor, _started: list[Sandbox]) -> None:
        async with made.session(limits=Limits(pids=32)) as session:
            bomb = await session.start("touch work/up; while :; do sleep 600 & done")
            while not await session.collect("work/up"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            beside = await session.exec("echo beside", timeout=20)
            assert beside.status in ("ok", "error")
            assert beside.status == "ok" or "pids" in beside.limits_hit
            assert (await bomb.kill()).status in ("killed", "error")
            after = await session.exec("sleep 0.01 & wait; echo after")
            assert (after.status, after.stdout) == ("ok", "after\n")

    drive(work)


def test_a_local_session_keeps_the_root_file_system_it_began_with(runtime: str) -> None:
    """SECURITY 6: the image changed. As a container's: see `test_engine`."""
    if runtime != "local" or not LocalRuntime().rootfs(""):
        pytest.skip("needs a root file system of ours, to cut a small one out of it")
    with tempfile.TemporaryDirectory(prefix="executor-rootfs-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        current = folder / "current"
        for version in ("1", "2"):
            with tarfile.open(fileobj=io.BytesIO(small_image())) as tar:
                tar.extractall(folder / version, filter="fully_trusted")
            root = folder / version
            root.chmod(0o755)
            for inner in ("etc", "node_modules", "opt/layers"):
                (root / inner).mkdir(parents=True)
            for path in FILES:  # that something is bound over
                (root / path.lstrip("/")).touch()
            (root / "usr/version").write_text(version)
        current.symlink_to("1")
        with Executor(runtime="local", image=str(current), skills=[]) as made, made.session() as before:
            assert before.exec("cat /usr/version").stdout == "1"
            current.unlink()
            current.symlink_to("2")
            with made.session() as after:
                assert after.exec("cat /usr/version").stdout == "2"
            assert before.exec("cat /usr/version").stdout == "1"


def test_somebody_else_who_writes_to_the_guest_ends_the_session(
    drive: Drive, runtime: str, client: Any
) -> None:
    """SECURITY 6: two attachers. What they send is no protocol, and the sandbox is not used any more."""
    if runtime != "container":
        pytest.skip("nobody else can open a socket pair")

    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        session = made.session()
        run = await under_way(session)
        sandbox = started[-1]
        assert isinstance(sandbox, ContainerSandbox)
        other = client.api.attach_socket(sandbox.name, params={"stdin": 1, "stream": 1})
        other._sock.sendall(b"\xff" * 64)
        result = await run
        other.close()
        assert result.status == "lost"
        assert session.lost
        await session.close()

    drive(work)
