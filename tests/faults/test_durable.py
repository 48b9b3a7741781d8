"""A durable session and its engine: what is killed or absent costs the run under way, and nothing kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor import (
    AsyncExecutor,
    EngineDownError,
    Executor,
    Limits,
    SandboxLostError,
    Settings,
    StateError,
)
from executor.runtimes.base import Sandbox
from executor.workspace.archive import export_session, import_session
from executor.workspace.checkpoint import Store
from tests.faults import engines
from tests.faults.conftest import Drive
from tests.faults.test_sandbox import larger_than_memory, under_way


@pytest.fixture
def engine() -> Iterator[engines.OwnEngine]:
    if why := engines.missing():
        pytest.skip(why)
    with engines.own_engine() as made:
        yield made


def test_a_session_goes_on_after_its_engine_was_killed_and_is_back(
    engine: engines.OwnEngine, tmp_path: Path
) -> None:
    asyncio.run(_through_restarts(engine, tmp_path))


async def _through_restarts(engine: engines.OwnEngine, tmp_path: Path) -> None:
    settings = Settings(
        runtime="container", docker_host=engine.host, image=engines.SMALL, state_dir=str(tmp_path / "state")
    )
    async with (
        asyncio.timeout(120),
        AsyncExecutor(settings=settings, skills=[]) as executor,
        executor.session("s", durable=True) as session,
    ):
        await session.put("inputs/in.txt", b"given\n")
        for number in range(3):
            assert (await session.exec(f"echo {number} >> work/log; cat work/log")).status == "ok"
        for end in (engine.kill, engine.terminate):
            begun = asyncio.Event()
            line = "echo half > work/half; echo begun; sleep 60"
            running = asyncio.create_task(session.exec(line, on_output=lambda *_: begun.set()))
            background = await session.start("sleep 60")
            await begun.wait()
            end()
            result = await running
            assert (result.status, result.exit_code) == ("lost", None)
            assert any("may have begun, and is not repeated" in text for text in result.warnings)
            assert (await background.wait()).status == "lost"

            began = time.monotonic()
            with pytest.raises(EngineDownError, match="no Docker engine answers"):
                await session.exec("true")
            assert time.monotonic() - began < 30
            with pytest.raises(EngineDownError):
                await session.read("work/log")

            engine.start()
            result = await session.exec("cat inputs/in.txt work/log; ls work; echo again >> work/log")
            assert result.status == "ok", result
            assert result.stdout.startswith("given\n0\n1\n2\n")
            assert "half" not in result.stdout
            assert any(
                "it goes on with the files of its checkpoint of 20" in text for text in result.warnings
            )
        assert (await session.read("work/log")).endswith(b"again\nagain\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="no memory limit on the whole sandbox")
def test_a_session_goes_on_after_its_sandbox_died_of_memory(
    drive: Drive, tmp_path: Path, attentive: None
) -> None:
    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        made.store = Store(tmp_path / "state")
        async with made.session("s", durable=True, limits=Limits(memory="64m")) as session:
            await session.exec("echo kept > work/f")
            run = await under_way(session)
            with pytest.raises(SandboxLostError):
                await session.put("work/hog", bytes(100 << 20))
            result = await run
            assert (result.status, result.exit_code) == ("oom", 137)
            assert (await session.exec("cat work/f; ls work")).stdout == "kept\nf\ninputs\n"
            assert len(started) == 2
        statuses = [run.status for run in made.store.sessions.runs("s")]
        assert statuses == ["ok", "oom", "ok"]

    drive(work, wrap=larger_than_memory)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_costs_checkpoints_and_nothing_else(
    executor: Executor, runtime: str, small_disk: Path, tmp_path: Path
) -> None:
    settings = executor.settings.model_copy(update={"state_dir": str(small_disk)})
    with Executor(runtime=runtime, settings=settings) as made:
        with made.session("s", durable=True) as session:
            assert session.exec("echo kept > work/f").warnings == session.warnings
            export_session(made.store, "s", tmp_path / "s.tar")
            result = session.exec("echo more >> work/f; head -c 4000000 /dev/urandom > work/big; echo done")
            assert (result.status, result.stdout) == ("ok", "done\n")
            (warning,) = [text for text in result.warnings if text.startswith("no checkpoint was taken")]
            assert "No space left on device" in warning
            assert not list(small_disk.rglob(".part-*"))
            filler = small_disk / "filler"
            with pytest.raises(OSError), open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            result = session.exec("cat work/f")  # not even the run can be recorded
            assert (result.status, result.stdout) == ("ok", "kept\nmore\n")
            assert any("the state cannot be kept" in text for text in result.warnings), result.warnings
            with pytest.raises(StateError, match=r"has room for|No space left"):
                import_session(made.store, tmp_path / "s.tar", session="copy")
            filler.unlink()
            session.exec("rm work/big")
        assert [session.id for session in made.store.sessions.all()] == ["s"]
        assert made.store.verify(made.store.sessions.all()[0]).files == 1
        with made.session("s", durable=True) as session:
            assert session.exec("cat work/f").stdout == "kept\nmore\n"
    Store(small_disk).clear()
