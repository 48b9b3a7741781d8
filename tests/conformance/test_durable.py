"""A durable session outlives its sandbox and its process: its files, its record, and no run twice."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor import BadRequestError, Executor, Limits, RuntimeUnavailableError, Session, Settings, StateError
from executor.runtimes.base import Sandbox
from tests.conftest import REQUIRED

RUN = "echo {0} >> work/log; cat work/log"


@pytest.fixture
def keeping(runtime: str, executor: Executor, skills_root: Path, tmp_path: Path) -> Iterator[Executor]:
    """An executor that keeps its sessions in a folder of the test's own."""
    settings = Settings(state_dir=str(tmp_path / "state"))
    with Executor(skills=[skills_root], runtime=runtime, settings=settings) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"s-{secrets.token_hex(4)}"


def sandbox(session: Session) -> Sandbox:
    found = session._inner._box._sandbox
    assert found is not None
    return found


def lose(session: Session) -> None:
    """Kill the sandbox, as an operator or the kernel would, and wait until that was noticed."""
    session._loop.run(sandbox(session).kill())
    deadline = time.monotonic() + 30
    while not session.lost:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def other_runtime(runtime: str) -> str:
    """The other one; the same where there is no other."""
    other = "container" if runtime == "local" else "local"
    try:
        with Executor(skills=[], runtime=other):
            return other
    except RuntimeUnavailableError:
        if other in REQUIRED:
            raise
        return runtime


def runs(executor: Executor, name: str) -> list[tuple[str, str, int | None]]:
    return [(run.kind, run.status, run.exit_code) for run in executor.store.sessions.runs(name)]


def test_a_lost_sandbox_is_followed_by_one_with_the_files_skills_and_rules_of_the_session(
    keeping: Executor, name: str, skills_root: Path
) -> None:
    with keeping.session(name, durable=True, limits=Limits(disk="64m")) as session:
        session.put("inputs/in.txt", b"given")
        assert session.exec(RUN.format(1)).stdout == "1\n"
        session.exec("echo mine > note.txt", skill="sales-report")
        first = sandbox(session)
        result: list[Any] = []
        session.load("log-digest")  # since the last checkpoint
        session.put("inputs/late.txt", b"late")  # and so is this, but before the run that is lost
        waiter = threading.Thread(
            target=lambda: result.append(session.exec("echo begun; echo lost > work/lost; sleep 60"))
        )
        background = session.start("sleep 60")
        waiter.start()
        deadline = time.monotonic() + 30
        while session.exec("cat work/lost").stdout != "lost\n":
            assert time.monotonic() < deadline
        session.exec("rm work/lost; sleep 0.1")
        lose(session)
        waiter.join()
        (lost,) = result
        assert (lost.status, lost.exit_code) == ("lost", None)
        assert any("the run may have begun, and is not repeated" in text for text in lost.warnings)
        assert any("goes on with the files of its checkpoint of 20" in text for text in lost.warnings)
        assert background.wait().status == "lost"

        again = session.exec(RUN.format(2) + "; cat inputs/in.txt inputs/late.txt; ls /skills")
        assert again.stdout == "1\n2\ngivenlatelog-digest\nsales-report\n"
        assert [text for text in again.warnings if "the session's sandbox was lost; it goes on" in text]
        assert sandbox(session) is not first and not session.lost
        assert session.exec("cat note.txt", skill="sales-report").warnings == session.warnings
        assert session.exec("cat note.txt", skill="sales-report").stdout == "mine\n"
        assert session.staged.keys() == {"sales-report", "log-digest"}
        assert session.limits.disk == 64 << 20
    statuses = [status for _, status, _ in runs(keeping, name)]
    assert statuses.count("lost") == 2
    assert "begun" not in statuses


def test_a_session_goes_on_after_a_loss_before_any_checkpoint(keeping: Executor, name: str) -> None:
    with keeping.session(name, durable=True) as session:
        lose(session)
        result = session.exec("ls work out")
        assert result.status == "ok"
        assert any("without files, because no checkpoint had been taken" in text for text in result.warnings)


def test_a_session_that_is_not_durable_stays_lost_and_is_not_recorded(keeping: Executor, name: str) -> None:
    with keeping.session(name) as session:
        session.exec("true")
        lose(session)
        with pytest.raises(Exception, match="has lost its sandbox"):
            session.exec("true")
    assert keeping.store.sessions.all() == []


def test_the_same_call_goes_on_with_the_session_in_another_executor(
    keeping: Executor, name: str, runtime: str, tmp_path: Path
) -> None:
    limits = Limits(memory="512m", disk="32m")
    with keeping.session(name, durable=True, limits=limits) as session:
        session.exec(RUN.format(1))
        session.put("work/after", b"put after the last run")
        assert keeping.session(name)._inner is session._inner
        keeping.session("passing")
        with pytest.raises(BadRequestError, match="'passing' is open and not durable"):
            keeping.session("passing", durable=True)
        with (
            Executor(skills=[], runtime=runtime, settings=keeping.settings) as other,
            pytest.raises(BadRequestError, match=f"session '{name}' is open in this process"),
            other.session(name, durable=True),
        ):
            pass
        assert session.exec(RUN.format(2)).stdout == "1\n2\n"
    other = other_runtime(runtime)
    with (
        Executor(skills=[], runtime=other, settings=keeping.settings) as elsewhere,
        elsewhere.session(name, durable=True) as session,
    ):
        result = session.exec(RUN.format(3) + "; cat work/after")
        assert result.stdout == "1\n2\n3\nput after the last run"
        assert (session.runtime, session.limits) == (other, limits)
        assert result.warnings == session.warnings  # it was closed in an orderly way
    (kept,) = keeping.store.sessions.all()
    assert (kept.id, kept.runtime, kept.open) == (name, other, False)


def test_runs_and_outputs_are_on_record(keeping: Executor, name: str, tmp_path: Path) -> None:
    with keeping.session(name, durable=True) as session:
        result = session.exec("echo héllo; printf x > $'out/a\\xff'", outputs=["out/*"])
        session.exec(["sh", "-c", "exit 7"], skill="sales-report")
        with pytest.raises(BadRequestError):
            session.exec("true", cwd="work/missing")
        run = session.start("cat")
        run.close_stdin()
        run.wait()
        session.execute_code("print(1)")
        result.files[0].save(tmp_path / "saved")
        first = keeping.store.sessions.runs(name)[0]
        assert (first.id, first.bytes) == (result.run_id, 7)
        (output,) = keeping.store.sessions.outputs(first.id)
        assert (output["path"], output["size"], output["mime"]) == ("out/a\udcff", 1, result.files[0].mime)
        assert output["saved_as"] == str(tmp_path / "saved/out/a%FF")
    assert runs(keeping, name) == [
        ("shell", "ok", 0),
        ("argv", "error", 7),
        ("shell", "error", None),
        ("background shell", "ok", 0),
        ("code", "ok", 0),
    ]


def test_runs_that_end_together_share_their_checkpoint(keeping: Executor, name: str) -> None:
    taken = 0
    store = keeping.store
    taking = store.taking

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal taken
        taken += 1
        return taking(*args, **options)

    with keeping.session(name, durable=True) as session:
        session.exec("true")
        store.taking = counted  # type: ignore[method-assign]
        inner, count = session._inner, 8

        async def together() -> list[Any]:
            asked = inner._keeper._asked
            async with inner._keeper._turn:  # as if another checkpoint took long
                work = [inner.exec(f"echo {number} > work/{number}") for number in range(count)]
                results = asyncio.gather(*work)
                while inner._keeper._asked < asked + count:  # noqa: ASYNC110  they wait for their turn
                    await asyncio.sleep(0.01)
            return await results

        results = session._loop.run(together())
        assert [result.status for result in results] == ["ok"] * count
        assert taken == 1
        lose(session)
        assert len(session.exec("ls work").stdout.split()) == count + 1  # and `inputs`


@pytest.mark.parametrize("what", ["a full disk", "a listing that is refused"])
def test_a_checkpoint_that_fails_is_a_warning_and_costs_no_result(
    keeping: Executor, name: str, what: str
) -> None:
    with keeping.session(name, durable=True) as session:
        session.exec("echo good > work/f")
        if what == "a full disk":
            objects = keeping.store.folder / "objects"
            shutil.rmtree(objects)
            objects.write_text("no folder")
            result = session.exec("echo new > work/g; echo done")
            why = "nothing can be kept in"
        else:
            result = session.exec("echo done; chmod 0 /workspace")
            why = "/workspace cannot be listed"
        assert (result.status, result.stdout) == ("ok", "done\n")
        (warning,) = [text for text in result.warnings if text.startswith("no checkpoint was taken")]
        assert "after this run" in warning and why in warning


def test_a_session_whose_checkpoint_is_damaged_never_begins_empty(keeping: Executor, name: str) -> None:
    with keeping.session(name, durable=True) as session:
        session.exec("echo precious > work/f")
    (snapshot,) = keeping.store.folder.glob("snapshots/*")
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[:-1])
    session = keeping.session(name, durable=True)
    for _ in range(2):
        with pytest.raises(StateError, match="does not have the hash of its name"):
            session.exec("true")
    snapshot.write_bytes(whole)
    assert session.exec("cat work/f").stdout == "precious\n"
    session.close()


OWNER = """
import sys
from executor import Executor, Settings
with Executor(skills=[], runtime=sys.argv[1], settings=Settings(state_dir=sys.argv[2])) as executor:
    session = executor.session(sys.argv[3], durable=True)
    session.exec("echo 1 > work/f")
    run = session.start("echo 2 >> work/f; echo begun; sleep 60")
    while "begun" not in run.read(5).stdout: pass
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_a_killed_process_had_under_way_is_interrupted_and_not_repeated(
    keeping: Executor, name: str, runtime: str
) -> None:
    state = str(keeping.store.folder)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, runtime, state, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout is not None and owner.stdout.readline() == b"begun\n"
        with (
            pytest.raises(BadRequestError, match=f"is open in process {owner.pid} of"),
            keeping.session(name, durable=True),
        ):
            pass
        assert keeping.store.sessions.all()[0].open
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    assert not keeping.store.sessions.all()[0].open
    with keeping.session(name, durable=True) as session:
        result = session.exec("cat work/f")
        assert result.stdout == "1\n"
        (interrupted,) = [text for text in result.warnings if "may have begun, and is not repeated" in text]
        assert "was under way at 20" in interrupted
        assert any("the process that had the session open has ended" in text for text in result.warnings)
        assert session.exec("true").warnings == session.warnings  # it is said once
    assert [status for _, status, _ in runs(keeping, name)] == ["ok", "interrupted", "ok", "ok"]
