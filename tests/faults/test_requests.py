"""Requests that cannot be: an error of ours that names what is wrong, and the session goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executor import (
    AsyncExecutor,
    BadRequestError,
    Executor,
    ExecutorError,
    Limits,
    Session,
    SessionClosedError,
)
from executor.channel import RunHandle, RunSpec
from executor.guest import bundle, wire
from executor.runtimes.base import Sandbox
from tests.faults.conftest import Drive
from tests.faults.test_sandbox import under_way
from tests.faults.traces import guest_pid

LONE = "\ud800"


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": f"echo {LONE}"},
        {"command": ["echo", LONE]},
        {"command": ["echo", 5]},
        {"command": 5},
        {"command": None},
        {"command": b"echo"},
        {"command": [None]},
        {"command": "true", "stdin": LONE},
        {"command": "true", "stdin": 5},
        {"command": "true", "stdin": [1, 2]},
        {"command": "true", "timeout": "5"},
        {"command": "true", "timeout": True},
        {"command": "true", "timeout": float("nan")},
        {"command": "true", "timeout": 0},
        {"command": "true", "outputs": [f"out/{LONE}*"]},
        {"command": "true", "outputs": [5]},
        {"command": "true", "outputs": 5},
        {"command": "true", "cwd": LONE},
        {"command": "true", "cwd": f"work/{LONE}"},
        {"command": "true", "env": {"A": LONE}},
        {"command": "true", "env": {LONE: "a"}},
        {"command": "true", "env": {"A": 5}},
        {"command": "true", "max_output": "1m"},
    ],
    ids=repr,
)
def test_what_no_run_can_be_asked_is_refused(shared: Session, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as caught:
        shared.exec(**wrong)
    str(caught.value).encode("utf-8", "backslashreplace")


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.put(f"inputs/{LONE}", b""),
        lambda session: session.put("inputs/a", LONE),
        lambda session: session.read(f"out/{LONE}"),
        lambda session: session.remove(f"out/{LONE}"),
        lambda session: session.collect(f"out/{LONE}"),
        lambda session: session.start("cat").write(LONE),
        lambda session: session.start("cat").write(5),
        lambda session: session.start(["cat", LONE]),
    ],
)
def test_what_no_file_can_be_named_is_refused(shared: Session, call: Any) -> None:
    with pytest.raises(BadRequestError):
        call(shared)


def test_words_that_came_from_bytes_go_back_to_them(shared: Session) -> None:
    words = ["printf", "%s|", "é", b"\xff\xfe", "\udcff", Path("a/b"), "\u202e"]
    result = shared.exec(words)  # type: ignore[arg-type]
    assert result._stdout_raw == "é|".encode() + b"\xff\xfe|\xff|a/b|" + "\u202e|".encode()


MALFORMED: list[tuple[dict[str, Any], bytes]] = [
    ({}, b""),
    ({"op": "nonsense"}, b"/workspace\0"),
    ({"op": "list", "recursive": True}, b"/workspace without its end"),
    ({"op": "list"}, b"/workspace\0"),
    ({"op": "get"}, b"/workspace/out/x\0"),
    ({"op": "get", "limit": "much"}, b"/workspace/out/x\0"),
    ({"op": "put"}, b""),
    ({"op": "put", "base": 5}, b""),
    ({"op": ["put"]}, b""),
    ({"op": "link"}, b"no end"),
]


def test_a_malformed_request_ends_itself_and_not_process_1(drive: Drive) -> None:
    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        async with made.session() as session:
            beside = await under_way(session, "echo up; touch work/up; read line < /dev/zero; sleep 600")
            first = await asyncio.to_thread(guest_pid, started[-1])
            channel = session._box.channel
            for body, names in MALFORMED:
                with pytest.raises(ExecutorError, match="Protocol error"):
                    async with channel._file(body, lambda _item: None) as request:
                        await channel.send(request.stream, wire.ARGS, names, end=True)
                        await channel._reply(request, "ask")
                assert (await session.exec("echo well")).stdout == "well\n", body
            handle = RunHandle(channel, channel._open_stream(), RunSpec("run_x", [b"x"], False, b"/", {}))
            channel._requests[handle.stream] = handle
            channel.control(wire.RUN, handle.stream, {"nonsense": True})
            await channel.send(handle.stream, wire.ARGS, b"no end", end=True)
            report = await asyncio.wait_for(asyncio.shield(handle.report), 20)
            assert (report.code, report.errno) == (126, 71)
            assert not beside.done()
            beside.cancel()
            assert await asyncio.to_thread(guest_pid, started[-1]) == first
            assert (await session.exec("echo well")).stdout == "well\n"

    drive(work)


UNDO = """
import os
open("up", "w")
number = 0
while True:
    number += 1
    try:
        os.makedirs(f"again/{number}/x")
    except OSError:
        pass
"""


def test_a_removal_that_scripts_undo_meanwhile_ends_with_an_error(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 does nothing else meanwhile: it would not end, and be taken for dead."""
    source = bundle.source().replace(b"\nREMOVE = 5.0 ", b"\nREMOVE = 0.2 ")
    assert source != bundle.source()
    monkeypatch.setattr(bundle, "source", lambda: source)
    monkeypatch.setattr(bundle, "digest", lambda: "changed")

    async def work(made: AsyncExecutor, _started: list[Sandbox]) -> None:
        async with made.session(limits=Limits(cpus=2)) as session:
            runs = [await session.start(["python3", "-c", UNDO], cwd="work") for _ in range(3)]
            while not await session.collect("work/up"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            with pytest.raises(ExecutorError, match="Directory not empty"):
                for _ in range(20):
                    await session.remove("work/again")
            for run in runs:
                await run.kill()
            assert (await session.exec("rm -rf work/again; ls work")).stdout == "inputs\nup\n"

    drive(work)


def test_files_that_are_under_way_while_a_session_closes_say_closed(drive: Drive) -> None:
    async def work(made: AsyncExecutor, started: list[Sandbox]) -> None:
        session = made.session()
        await session.exec("for i in $(seq 200); do echo $i > out/$i; done")
        started[-1].stream.transport.pause_reading()  # answers stay away
        calls = [
            asyncio.create_task(session.put("inputs/a", bytes(8 << 20))),
            asyncio.create_task(session.collect("out/**")),
            asyncio.create_task(session.read("out/1")),
            asyncio.create_task(session.exec("true", outputs=["out/**"])),
        ]
        await asyncio.sleep(0.1)
        await session.close()
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            assert type(ended) is SessionClosedError, ended

    drive(work)


ELSEWHERE = """
import os, sys
from pathlib import Path
from executor import Executor, Input, Settings
from executor.workspace.archive import export_session, import_session
assert sys.getfilesystemencoding() != "utf-8", sys.getfilesystemencoding()
runtime, image, root, target = sys.argv[1:]
raw = "\\u00e9\\udcff"  # two bytes of UTF-8, and one that is none
folder = os.fsencode(root) + b"/given"
os.mkdir(folder)
with open(folder + b"/\\xc3\\xa9\\xff", "wb") as file:
    file.write(b"given")
settings = Settings(runtime=runtime, image=image, state_dir=root + "/state", skills=())
with Executor(settings=settings) as made:
    with made.session("s", durable=True) as session:
        name = "out/\\u00e9\\u4e2d.txt"
        session.put("inputs/\\u00e9", "text \\u00e9")
        session.put("inputs/" + raw, b"raw")
        session.put("work/given", Path(root, "given"))
        assert session.read(f"work/given/{raw}") == b"given"
        command = f"cat inputs/*; cp inputs/\\u00e9 {name}; ln -s {raw} work/{raw}"
        result = session.exec(command, outputs=["out/**"], env={"A": "\\u00e9"})
        assert result.stdout == "text \\u00e9raw", ascii(result.stdout)
        (file,) = result.files
        assert file.path == name, ascii(file.path)
        assert session.read(name).decode() == "text \\u00e9"
        assert [file.path for file in session.collect("out/\\u00e9*")] == [name]
        there = f"workspace://inputs/{raw}"
        inputs = [Input(there, f"work/c{raw}"), Input(there, f"work/l{raw}", "link")]
        assert [one.path for one in session.stage_inputs(inputs)] == [f"work/c{raw}", f"work/l{raw}"]
        saved = file.save(target)
        print(ascii(str(saved)))
        session.checkpoint()
    (run,) = made.store.sessions.runs("s")
    (output,) = made.store.sessions.outputs(run.id)
    assert (output["path"], output["saved_as"]) == (name, str(saved)), ascii(output)
    export_session(made.store, "s", Path(root, "s.tar"))
    import_session(made.store, Path(root, "s.tar"), session="copy")
    for again in ("s", "copy"):
        with made.restore(again) as session:
            assert session.read(name).decode() == "text \\u00e9"
            assert session.exec(f"cat inputs/{raw} work/l{raw}; readlink work/{raw}").stdout.count("raw") == 2
            assert [file.path for file in session.collect(f"inputs/{raw}")] == [f"inputs/{raw}"]
"""


def test_names_in_a_sandbox_do_not_depend_on_the_hosts_locale(
    executor: Executor, runtime: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-c", ELSEWHERE, runtime, executor.settings.image, str(tmp_path), str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().strip("'") == f"{tmp_path}/out/%C3%A9%E4%B8%AD.txt"
    assert (tmp_path / "out/%C3%A9%E4%B8%AD.txt").read_text("utf-8") == "text é"


GONE = """
import os, sys
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
os.execv(sys.executable, [sys.executable, "-m", "executor.cli", "run", "x", "--", "true"])
"""


def test_a_deleted_working_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    words = [sys.executable, "-c", GONE, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 125
    assert "the working folder of this command has been deleted" in done.stderr
    assert "fault of the executor" not in done.stderr


def test_a_limit_beyond_the_machine_is_lowered_alike_and_said(executor: Executor) -> None:
    with executor.session(limits=Limits(open_files=1 << 20)) as session:
        result = session.exec("ulimit -Hn")
        had = int(result.stdout)
        lowered = [warning.partition(" to ")[0] for warning in result.warnings if "lowered to" in warning]
        assert lowered == ([] if had == 1 << 20 else ["open_files=1048576 lowered"]), result
        assert had >= 1024
    with pytest.raises(ValueError, match="memory"):
        Limits(memory=1 << 60)
