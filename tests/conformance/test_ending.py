"""How runs end: by themselves, a deadline, a kill, a cancelled caller or a closed session. Nothing stays."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from probes import alive, eventually, processes, until

from executor import AsyncExecutor, Executor, Session, SessionClosedError, Settings

SLEEP = "4321"  # seconds; nothing here waits for it, and no other program has this argument

# Every process hands on to a child in a session of its own and goes away; only the first one stays.
CHAIN = """
import os, time
print("up")
first = os.getpid()
end = time.monotonic() + 600
while time.monotonic() < end:
    if os.fork():
        if os.getpid() == first:
            time.sleep(600)
        os._exit(0)
    os.setsid()
    time.sleep(0.001)
"""
LOOP = """
print("up")
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""

# Programs that do not want to end. Each says `up` once all that it starts is there.
STUBBORN = {
    "sleeps": f"echo up; sleep {SLEEP}",
    "ignores TERM": f"trap '' TERM; echo up; while :; do sleep {SLEEP}; done",
    "ignores every signal": (
        "exec python3 -c 'import signal, time\n"
        "for number in set(signal.valid_signals()) - {9, 19, 32, 33}: signal.signal(number, signal.SIG_IGN)\n"
        f'print("up")\nwhile True: time.sleep({SLEEP})\''
    ),
    "a child in a session of its own": f"setsid sleep {SLEEP} & echo up; wait",
    "a daemon forked twice": f"(setsid sh -c 'sleep {SLEEP} & sleep {SLEEP}' &); echo up; sleep {SLEEP}",
    "stopped": "echo up; kill -STOP $$; sleep 1",
    "a stopped child": f"sleep {SLEEP} & kill -STOP $!; echo up; wait",
    "a chain of forks": f"exec python3 -c '{CHAIN}'",
    "closed descriptors": (
        f"echo up; exec 0<&- 1>&- 2>&-; (exec -a quiet sleep {SLEEP}) & exec sleep {SLEEP}"
    ),
    "renamed": f"(exec -a '[kworker/0:1]' setsid sleep {SLEEP}) & echo up; exec -a init sleep {SLEEP}",
    "no environment": f"env -i setsid -f sleep {SLEEP}; echo up; exec env -i sleep {SLEEP}",
    "a busy loop that catches everything": f"exec python3 -c '{LOOP}'",
}


@pytest.fixture
def session(shared: Session) -> Session:
    """One for all: every test here ends what it starts."""
    return shared


@pytest.fixture(scope="module")
def brisk(executor: Executor, runtime: str) -> Iterator[Session]:
    """A session whose grace between TERM and KILL is short."""
    with Executor(runtime=runtime, settings=Settings(grace=0.3)) as made, made.session() as opened:
        yield opened


# -- deadlines --


@pytest.mark.parametrize("program", STUBBORN.values(), ids=STUBBORN.keys())
def test_a_deadline_ends_it_and_all_that_it_started(brisk: Session, program: str) -> None:
    """trpc-52, ref-40, trpc-1.13.3"""
    began = time.monotonic()
    result = brisk.exec(program, timeout=0.7)
    assert (result.status, result.timed_out, result.exit_code, result.stdout) == (
        "timeout",
        True,
        124,
        "up\n",
    )
    assert result.limits_hit == ["timeout"]
    assert time.monotonic() - began < 20
    assert processes(brisk) == []


def test_deadlines_of_many_at_once_end_each_and_all_that_it_started(brisk: Session) -> None:
    """And nothing else: a run beside them keeps its daemon."""
    beside = brisk.start("setsid -f sleep 8765; echo up; read line")
    until(beside, "up\n")
    with concurrent.futures.ThreadPoolExecutor(len(STUBBORN)) as pool:
        results = list(pool.map(lambda program: brisk.exec(program, timeout=3), STUBBORN.values()))
    assert [(result.status, result.stdout) for result in results] == [("timeout", "up\n")] * len(STUBBORN)
    left = processes(brisk)
    assert [process.line for process in left if process.name != "bash"] == ["sleep 8765"]
    assert len(left) == 2
    beside.write("go\n")
    assert beside.wait(30).killed_descendants == 1
    assert processes(brisk) == []


def test_the_list_that_says_nothing_is_left_sees_what_lives(brisk: Session) -> None:
    run = brisk.start(f"(setsid sleep {SLEEP} &); exec sleep {SLEEP}")
    assert eventually(lambda: len(alive(brisk, f"sleep {SLEEP}")) == 2)
    run.kill()
    assert processes(brisk) == []


def test_a_run_that_ends_in_time_did_not_time_out(brisk: Session) -> None:
    result = brisk.exec("sleep 0.1; exit 124", timeout=20)
    assert (result.status, result.exit_code, result.timed_out, result.limits_hit) == ("error", 124, False, [])


def test_a_term_of_the_scripts_own_is_no_deadline(brisk: Session) -> None:
    result = brisk.exec("kill -TERM $$; sleep 9", timeout=20)
    assert (result.status, result.signal, result.timed_out) == ("error", 15, False)


def test_a_handler_has_its_grace_and_its_output_is_kept(session: Session) -> None:
    line = "trap 'echo tidying; sleep 0.3; echo tidied; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    result = session.exec(line, timeout=0.5)
    assert (result.status, result.exit_code, result.timed_out) == ("timeout", 124, True)
    assert result.stdout == "up\ntidying\ntidied\n"


def test_the_grace_is_not_waited_for_when_the_script_obeys(runtime: str) -> None:
    with Executor(runtime=runtime, settings=Settings(grace=60)) as made, made.session() as session:
        began = time.monotonic()
        assert session.exec("echo up; sleep 600", timeout=0.3).stdout == "up\n"
        assert time.monotonic() - began < 30


def test_a_deadline_with_a_grace_of_nothing_kills_at_once(runtime: str) -> None:
    with Executor(runtime=runtime, settings=Settings(grace=0)) as made, made.session() as session:
        result = session.exec("trap 'echo never' TERM; echo up; while :; do sleep 0.05; done", timeout=0.3)
        assert (result.status, result.stdout, result.signal) == ("timeout", "up\n", 9)


def test_a_session_goes_on_after_a_deadline(brisk: Session) -> None:
    brisk.exec("echo kept > work/before; sleep 600", timeout=0.3)
    assert brisk.exec("cat work/before").stdout == "kept\n"


# -- the leader's exit --


@pytest.mark.parametrize(
    "line",
    [
        f"sleep {SLEEP} & echo done",
        f"(setsid sh -c 'sleep {SLEEP}; echo never' &); echo done",
        f"setsid -f sleep {SLEEP}; echo done",
        f"(trap '' TERM HUP; exec sleep {SLEEP}) & disown; echo done",
    ],
)
def test_a_run_ends_with_its_leader_though_a_child_holds_its_stdout(shared: Session, line: str) -> None:
    """ref-41"""
    began = time.monotonic()
    result = shared.exec(line, timeout=600)
    assert time.monotonic() - began < 30
    assert (result.status, result.exit_code, result.stdout) == ("ok", 0, "done\n")
    assert result.killed_descendants >= 1
    assert processes(shared) == []


def test_a_run_that_leaves_nothing_behind_killed_nothing(shared: Session) -> None:
    assert shared.exec("sleep 0.05 & wait; echo done").killed_descendants == 0


def test_a_flood_of_children_does_not_keep_a_run_from_ending(shared: Session) -> None:
    began = time.monotonic()
    result = shared.exec("for i in 1 2 3 4; do (yes &); done; sleep 0.1; echo done >&2", timeout=600)
    assert time.monotonic() - began < 30
    assert (result.status, result.stderr, result.killed_descendants) == ("ok", "done\n", 4)
    assert processes(shared) == []


def test_what_is_written_just_after_the_leaders_exit_is_kept(shared: Session) -> None:
    result = shared.exec("(sleep 0.02; echo late) & echo early")
    assert result.stdout == "early\nlate\n"


def test_what_a_leader_left_in_the_pipe_is_kept(shared: Session) -> None:
    result = shared.exec("head -c 200000 /dev/zero | tr '\\0' x; kill -9 $$")
    assert (result.signal, result.stdout) == (9, "x" * 200000)


def test_three_hundred_orphans_in_a_row_are_collected(session: Session) -> None:
    """More than there may be processes: zombies that nobody collects would stop the loop."""
    result = session.exec("for i in $(seq 300); do (setsid true &); sleep 0.003; done; echo all", timeout=120)
    assert (result.status, result.stdout, result.stderr) == ("ok", "all\n", "")
    assert processes(session) == []


# -- a caller who goes away --


def test_a_cancelled_caller_leaves_nothing_after_a_moment(runtime: str) -> None:
    """trpc-53"""

    async def work() -> None:
        async with AsyncExecutor(runtime=runtime) as made, made.session() as session:
            line = f"trap '' TERM; (setsid sleep {SLEEP} &); echo $$ > work/up; sleep {SLEEP} & wait; wait"
            task = asyncio.create_task(session.exec(line, timeout=600))
            async with asyncio.timeout(60):
                while not await session.collect("work/up"):  # noqa: ASYNC110  it happens in the sandbox
                    await asyncio.sleep(0.02)
            seen = await session.exec("ps -e -o args")
            assert seen.stdout.count(f"sleep {SLEEP}\n") == 2
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(1.5)
            seen = await session.exec("ps -e -o args")
            assert f"sleep {SLEEP}\n" not in seen.stdout
            assert (await session.exec("echo still here")).stdout == "still here\n"

    asyncio.run(work())


def test_a_callers_own_timeout_leaves_nothing_after_a_moment(runtime: str) -> None:
    async def work() -> None:
        async with AsyncExecutor(runtime=runtime) as made, made.session() as session:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(session.exec(f"setsid -f sleep {SLEEP}; sleep {SLEEP}"), 0.5)
            await asyncio.sleep(1.5)
            assert f"sleep {SLEEP}\n" not in (await session.exec("ps -e -o args")).stdout

    asyncio.run(work())


def test_a_caller_may_go_away_at_any_moment(runtime: str) -> None:
    """Before the run was sent, while it starts, when it has started, when it is about to end."""

    async def work() -> None:
        async with AsyncExecutor(runtime=runtime) as made, made.session() as session:
            for number in range(40):
                line = f"setsid -f sleep {SLEEP}; sleep 0.03; echo done"
                task = asyncio.create_task(session.exec(line))
                await asyncio.sleep(number / 1000)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(1.5)
            assert f"sleep {SLEEP}\n" not in (await session.exec("ps -e -o args")).stdout
            assert (await session.exec("echo still here")).stdout == "still here\n"

    asyncio.run(work())


def test_an_interrupt_leaves_nothing_after_a_moment(session: Session) -> None:
    """PA-20"""

    def interrupt() -> None:
        assert eventually(lambda: session.exec("test -e work/interrupt").exit_code == 0, 60)
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        session.exec(f"setsid -f sleep {SLEEP}; touch work/interrupt; sleep {SLEEP}", timeout=600)
    other.join()
    time.sleep(1.5)
    assert processes(session) == []
    assert session.exec("echo still here").stdout == "still here\n"


# -- background runs --


def test_a_kill_takes_the_children_of_the_shell_too(session: Session) -> None:
    """trpc-57"""
    run = session.start(f"sh -c 'sleep {SLEEP} & sleep {SLEEP}'")
    assert eventually(lambda: len(alive(session, f"sleep {SLEEP}")) >= 2)
    result = run.kill()
    assert (result.status, run.running) == ("killed", False)
    assert processes(session) == []


def test_a_kill_of_one_that_ignores_term_takes_its_grace_and_no_more(brisk: Session) -> None:
    run = brisk.start(f"trap '' TERM; echo up; while :; do sleep {SLEEP}; done")
    until(run, "up\n")
    result = run.kill()
    assert (result.status, result.signal) == ("killed", 9)
    assert processes(brisk) == []


def test_a_background_run_outlives_foreground_runs(session: Session) -> None:
    run = session.start(f"(setsid sleep {SLEEP} &); echo up; while :; do sleep 0.1; done")
    until(run, "up\n")
    for _ in range(3):
        session.exec("true")
    # This one leaves daemons of its own: only those go with it.
    ended = session.exec(
        "setsid -f sleep 8765; (setsid sh -c 'sleep 8765 & sleep 8765' &) ; sleep 0.1; echo done"
    )
    assert (ended.stdout, ended.killed_descendants >= 3) == ("done\n", True)
    left = processes(session)
    assert run.running
    assert not [process for process in left if "8765" in process.line]
    assert len([process for process in left if process.words == ("sleep", SLEEP)]) == 1
    assert run.kill().status == "killed"
    assert processes(session) == []


def test_a_background_runs_daemon_goes_when_the_run_ends_by_itself(session: Session) -> None:
    other = session.start("sleep 600")
    run = session.start(f"setsid -f sleep {SLEEP}; read line")
    assert eventually(lambda: alive(session, f"sleep {SLEEP}"))
    run.write("go\n")
    assert run.wait(30).killed_descendants == 1
    assert [process.line for process in processes(session)] == ["sleep 600"]
    assert other.running
    other.kill()


def test_two_background_runs_do_not_end_each_others_daemons(session: Session) -> None:
    first = session.start("setsid -f sleep 1111; echo up; read line")
    second = session.start("setsid -f sleep 2222; echo up; read line")
    until(first, "up\n")
    until(second, "up\n")
    assert first.kill().status == "killed"
    assert [process.line for process in processes(session) if process.name == "sleep"] == ["sleep 2222"]
    second.write("go\n")
    assert (second.wait(30).status, second.wait(30).killed_descendants) == ("ok", 1)
    assert processes(session) == []


def test_a_background_run_can_have_a_deadline(brisk: Session) -> None:
    run = brisk.start(f"echo up; sleep {SLEEP}", timeout=0.5)
    result = run.wait(30)
    assert (result.status, result.exit_code, result.stdout) == ("timeout", 124, "up\n")


def test_waiting_for_a_background_run_tells_when_it_has_not_ended(session: Session) -> None:
    run = session.start("echo up; sleep 600")
    until(run, "up\n")
    result = run.wait(0.1)
    assert (result.status, result.exit_code, run.running) == ("running", None, True)
    run.kill()


def test_twenty_runs_at_once_end_each_with_its_own(session: Session) -> None:
    def one(number: int) -> tuple[int | None, str, str]:
        result = session.exec(f"setsid -f sleep {SLEEP}; echo {number}; echo {number} >&2; exit {number}")
        return result.exit_code, result.stdout, result.stderr

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        results = list(pool.map(one, range(20)))
    assert results == [(number, f"{number}\n", f"{number}\n") for number in range(20)]
    assert processes(session) == []


# -- a session that closes --


def test_closing_ends_a_run_that_is_under_way(executor: Executor) -> None:
    session = executor.session()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        run = pool.submit(session.exec, "touch work/up; sleep 600", timeout=600)
        assert eventually(lambda: session.exec("test -e work/up").exit_code == 0)
        began = time.monotonic()
        session.close()
        with pytest.raises(SessionClosedError):
            run.result(30)
        assert time.monotonic() - began < 30


def test_a_closed_session_runs_nothing(executor: Executor) -> None:
    session = executor.session()
    assert session.exec("echo open").stdout == "open\n"
    session.close()
    with pytest.raises(SessionClosedError):
        session.exec("echo closed")
    with pytest.raises(SessionClosedError):
        session.start("echo closed")
    session.close()  # again is no error


def test_closing_ends_a_background_run(executor: Executor) -> None:
    session = executor.session()
    run = session.start("sleep 600")
    session.close()
    with pytest.raises(SessionClosedError):
        run.wait(30)


def test_a_session_of_the_same_name_starts_anew_after_a_close(executor: Executor) -> None:
    with executor.session("again") as first:
        first.exec("echo old > work/file")
    with executor.session("again") as second:
        assert second.exec("ls work").stdout == "inputs\n"
