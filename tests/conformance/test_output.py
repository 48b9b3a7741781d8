"""What a run writes: every byte counted, a bounded part kept, all of it streamed to who asks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from probes import eventually, processes

from executor import AsyncExecutor, BadLimitError, Executor, Session, Settings

MEMORY = 100 << 20  # what this process may grow by, whatever a script writes


@pytest.fixture
def session(shared: Session) -> Session:
    """One for all: every test here ends what it starts."""
    return shared


def settled(look: Callable[[], int]) -> bool:
    """Whether a number no longer grows."""
    first = look()
    time.sleep(0.3)
    return look() == first


class Growth:
    """How much the memory of this process has grown at most since this was made, in bytes."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        self._before = peak()

    def __call__(self) -> int:
        return peak() - self._before


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


# -- floods --


def test_a_gigabyte_is_counted_to_the_byte_in_bounded_memory(shared: Session) -> None:
    """trpc-53, ref-44"""
    growth = Growth()
    result = shared.exec("echo BEGIN; head -c 1000000000 /dev/zero | tr '\\0' x; echo END", timeout=120)
    assert (result.status, result.stdout_bytes) == ("ok", 1_000_000_000 + 10)
    assert (result.stdout_truncated, result.limits_hit) == (True, ["stdout"])
    assert result.stdout.startswith("BEGIN\nxxx")
    assert result.stdout.endswith("xxxEND\n")
    assert len(result.stdout) <= 1 << 20
    assert growth() < MEMORY


def test_a_hundred_megabytes_on_both_streams_at_once(shared: Session) -> None:
    growth = Growth()
    result = shared.exec(
        "(head -c 100000000 /dev/zero | tr '\\0' o) & (head -c 100000000 /dev/zero | tr '\\0' e >&2) & wait",
        timeout=120,
    )
    assert (result.status, result.stdout_bytes, result.stderr_bytes) == ("ok", 100_000_000, 100_000_000)
    for kept, letter in ((result.stdout, "o"), (result.stderr, "e")):
        assert re.fullmatch(letter + r"+\n\[\.\.\. [\d,]+ bytes omitted \.\.\.\]\n" + letter + "+", kept)
    assert (result.stdout_truncated, result.stderr_truncated) == (True, True)
    assert result.limits_hit == ["stdout", "stderr"]
    assert growth() < MEMORY


def test_output_below_the_limit_is_whole(shared: Session) -> None:
    result = shared.exec("head -c 1048576 /dev/zero | tr '\\0' x")
    assert (result.stdout, result.stdout_truncated, result.limits_hit) == ("x" * 1048576, False, [])
    result = shared.exec("head -c 1048577 /dev/zero | tr '\\0' x")
    assert (result.stdout_bytes, result.stdout_truncated) == (1048577, True)
    assert len(result.stdout) <= 1048576


# -- what a limit keeps --


def test_head_marker_and_tail_are_kept(shared: Session) -> None:
    """trpc-54, trpc-1.11.10"""
    text = "HEAD!" + "x" * 80 + "!TAIL"
    result = shared.exec(["printf", "%s", text], max_output=40)
    assert (result.stdout_bytes, result.stdout_truncated, result.limits_hit) == (90, True, ["stdout"])
    assert result.stdout == "HEAD!x\n[... 78 bytes omitted ...]\nx!TAIL"


def test_a_limit_too_small_for_a_marker_keeps_the_beginning(shared: Session) -> None:
    """trpc-54"""
    result = shared.exec(["printf", "%s", "abcdefghij"], max_output=4)
    assert (result.stdout, result.stdout_bytes, result.stdout_truncated) == ("abcd", 10, True)


@pytest.mark.parametrize(("limit", "expected"), [(0, ""), (2, ""), (3, "你"), (4, "你a"), (5, "你ab")])
def test_a_character_is_never_cut_in_half(shared: Session, limit: int, expected: str) -> None:
    """trpc-54, trpc-1.11.10"""
    result = shared.exec(["printf", "%s", "你abcdefghijklmnopqrstuvwxyz"], max_output=limit)
    assert (result.stdout, result.stdout_bytes, result.stdout_truncated) == (expected, 29, True)


def test_head_and_tail_of_wide_characters_stay_whole(shared: Session) -> None:
    result = shared.exec(["printf", "%s", "你" * 3000 + "中" + "好" * 3000], max_output=100)
    assert result.stdout.startswith("你") and result.stdout.endswith("好")
    assert "\ufffd" not in result.stdout
    assert len(result.stdout.encode()) <= 100


def test_each_stream_has_the_limit_for_itself(shared: Session) -> None:
    result = shared.exec("printf 1234567890; printf 12 >&2", max_output=5)
    assert (result.stdout, result.stderr) == ("12345", "12")
    assert (result.stdout_truncated, result.stderr_truncated) == (True, False)
    assert result.limits_hit == ["stdout"]


def test_a_limit_of_nothing_still_counts(shared: Session) -> None:
    result = shared.exec("printf 12345", max_output=0)
    assert (result.stdout, result.stdout_bytes, result.stdout_truncated) == ("", 5, True)
    silent = shared.exec("true", max_output=0)
    assert (silent.stdout_bytes, silent.stdout_truncated) == (0, False)


def test_a_negative_limit_is_the_callers_error(shared: Session) -> None:
    with pytest.raises(BadLimitError):
        shared.exec("true", max_output=-1)


def test_one_very_long_line_is_cut_like_any_output(shared: Session) -> None:
    result = shared.exec(["python3", "-c", "print('a' * 20_000_000 + 'z')"])
    assert (result.stdout_bytes, result.stdout[:3], result.stdout[-3:]) == (20_000_002, "aaa", "az\n")


# -- bytes that are no text --


def test_bytes_that_are_not_utf_8_are_replaced_and_nul_is_kept(shared: Session) -> None:
    result = shared.exec(["printf", r"a\xff\xfe\0b\xe4\xbd\n"])
    assert result.stdout == "a\ufffd\ufffd\0b\ufffd\n"
    assert result.stdout_bytes == 8


def test_all_bytes_come_back_when_streamed(shared: Session) -> None:
    pieces: list[bytes] = []
    shared.exec(
        ["python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)))"],
        on_output=lambda _stream, data: pieces.append(data),
    )
    assert b"".join(pieces) == bytes(range(256))


def test_line_ends_are_left_as_they_are(shared: Session) -> None:
    assert shared.exec(["printf", r"a\r\nb\rc\n\n"]).stdout == "a\r\nb\rc\n\n"


def test_an_endless_flood_ends_with_the_deadline(shared: Session) -> None:
    growth = Growth()
    result = shared.exec("yes", timeout=1)
    assert (result.status, result.exit_code) == ("timeout", 124)
    assert result.stdout.startswith("y\ny\n") and result.stdout.endswith("y\n")
    assert result.stdout_bytes > 1 << 20
    assert (result.stdout_truncated, result.limits_hit) == (True, ["stdout", "timeout"])
    assert growth() < MEMORY
    assert processes(shared) == []


# -- streaming --


def test_every_byte_is_streamed_in_order(shared: Session) -> None:
    program = """
import sys, hashlib
sha = hashlib.sha256()
for number in range(20000):
    line = (b"%08d" % number) * 128
    sha.update(line)
    sys.stdout.buffer.write(line)
sys.stdout.flush()
print(sha.hexdigest(), end="", file=sys.stderr)
"""
    sha, sizes, errors = hashlib.sha256(), [], []

    def take(stream: str, data: bytes) -> None:
        if stream == "stdout":
            sha.update(data)
            sizes.append(len(data))
        else:
            errors.append(data)

    growth = Growth()
    result = shared.exec(["python3", "-c", program], on_output=take, timeout=60)
    assert (result.status, sum(sizes)) == ("ok", 20000 * 1024)
    assert sha.hexdigest() == b"".join(errors).decode() == result.stderr
    assert (result.stdout_bytes, result.stdout_truncated) == (20000 * 1024, True)
    assert growth() < MEMORY


def test_output_is_streamed_as_it_comes_and_not_at_the_end(session: Session) -> None:
    came = threading.Event()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        run = pool.submit(
            session.exec,
            "echo first; until test -e work/go; do sleep 0.02; done; echo second",
            on_output=lambda _stream, _data: came.set(),
            timeout=60,
        )
        assert came.wait(30)
        assert not run.done()
        session.put("work/go", b"")
        assert run.result().stdout == "first\nsecond\n"


def test_a_slow_consumer_holds_the_script_back_and_loses_nothing(session: Session) -> None:
    size = 32 << 20
    program = f"""
import os
for number in range({size} >> 16):
    os.write(1, b"x" * 65536)
    open("/workspace/work/written", "w").write(str((number + 1) << 16))
"""
    gate = threading.Event()
    got = 0

    async def take(_stream: str, data: bytes) -> None:
        nonlocal got
        await asyncio.to_thread(gate.wait)
        got += len(data)

    def written() -> int:
        return int(session.exec("cat work/written").stdout or 0)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        growth = Growth()
        run = pool.submit(session.exec, ["python3", "-c", program], on_output=take, timeout=120)
        assert eventually(lambda: session.exec("test -s work/written").exit_code == 0)
        assert eventually(lambda: settled(written))
        held = written()
        assert 0 < held < size // 2
        assert not run.done()
        gate.set()
        result = run.result()
    assert (result.status, result.stdout_bytes, got) == ("ok", size, size)
    assert growth() < MEMORY


def test_a_slow_consumer_gets_what_was_still_in_the_pipe_when_the_script_ended(session: Session) -> None:
    """The script fills every buffer up to its own pipe, and goes."""
    program = """
import os, time
os.set_blocking(1, False)
written, blocked = 0, 0
while blocked < 10:
    try:
        written += os.write(1, b"x" * 4096)
        blocked = 0
    except BlockingIOError:
        blocked += 1
        time.sleep(0.05)
open("/workspace/work/written", "w").write(str(written))
"""
    gate = threading.Event()
    got = 0

    async def take(_stream: str, data: bytes) -> None:
        nonlocal got
        await asyncio.to_thread(gate.wait)
        got += len(data)

    session.remove("work/written")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        run = pool.submit(session.exec, ["python3", "-c", program], on_output=take, timeout=120)
        assert eventually(lambda: session.exec("test -s work/written").exit_code == 0, 60)
        assert eventually(lambda: not processes(session))
        gate.set()
        result = run.result()
    written = int(session.read("work/written"))
    assert written > 1 << 20
    assert (result.status, result.stdout_bytes, got) == ("ok", written, written)


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_consumer_that_raises_ends_the_run_and_its_error_comes_out(session: Session, kind: str) -> None:
    class MineError(Exception):
        pass

    def take(_stream: str, _data: bytes) -> None:
        raise MineError("no more")

    async def take_later(_stream: str, _data: bytes) -> None:
        await asyncio.sleep(0)
        raise MineError("no more")

    began = time.monotonic()
    with pytest.raises(MineError, match="no more"):
        session.exec(
            "echo one; sleep 60; echo two",
            on_output=take if kind == "function" else take_later,  # type: ignore[arg-type]
        )
    assert time.monotonic() - began < 30
    assert processes(session) == []
    assert session.exec("echo still here").stdout == "still here\n"


def test_a_consumer_that_raises_at_the_last_byte_is_heard_too(shared: Session) -> None:
    def take(_stream: str, _data: bytes) -> None:
        raise KeyError("late")

    with pytest.raises(KeyError):
        shared.exec("echo only", on_output=take)


# -- a limit that ends the run --


def test_output_over_the_limit_can_end_the_run(shared: Session) -> None:
    result = shared.exec("yes", on_output_limit="kill", max_output=100_000, timeout=60)
    assert (result.status, result.timed_out) == ("output_limit", False)
    assert result.stdout_bytes > 100_000
    assert len(result.stdout) <= 100_000
    assert result.stdout.startswith("y\ny\n")
    assert "stdout" in result.limits_hit
    assert processes(shared) == []


def test_stderr_over_the_limit_can_end_the_run_too(shared: Session) -> None:
    result = shared.exec("yes >&2", on_output_limit="kill", max_output=1000, timeout=60)
    assert (result.status, "stderr" in result.limits_hit, result.stdout) == ("output_limit", True, "")


def test_output_at_the_limit_ends_nothing(shared: Session) -> None:
    result = shared.exec("printf 1234567890", on_output_limit="kill", max_output=10)
    assert (result.status, result.stdout, result.limits_hit) == ("ok", "1234567890", [])


# -- floods beside others --


def test_a_flood_delays_neither_another_run_nor_its_own_kill(session: Session) -> None:
    flood = session.start("yes")
    assert eventually(lambda: flood.wait(0).stdout_bytes > 10 << 20)
    began = time.monotonic()
    for number in range(10):
        assert session.exec(f"echo {number}; exit {number}", timeout=30).exit_code == number
    session.put("work/file", b"x" * 100_000)
    assert len(session.read("work/file")) == 100_000
    assert time.monotonic() - began < 15
    assert flood.running
    ended = flood.kill()
    assert time.monotonic() - began < 20
    assert (ended.status, ended.stdout[:2], ended.stdout_truncated) == ("killed", "y\n", True)
    assert processes(session) == []


def test_a_flood_that_nobody_takes_delays_neither_another_run_nor_its_own_kill(executor: Executor) -> None:
    """The consumer never returns: the script is blocked, and everything else goes on."""
    runtime = executor.choose_runtime()

    async def work() -> None:
        async with AsyncExecutor(runtime=runtime) as made, made.session() as session:
            never = asyncio.Event()

            async def stuck(_stream: str, _data: bytes) -> None:
                await never.wait()

            flood = await session.start("yes", on_output=stuck)
            await asyncio.sleep(0.3)
            result = await asyncio.wait_for(session.exec("echo quick; exit 3"), 20)
            assert (result.exit_code, result.stdout) == (3, "quick\n")
            assert flood.running
            flood.send_signal(9)
            never.set()
            ended = await asyncio.wait_for(flood.wait(), 20)
            assert (ended.signal, ended.exit_code) == (9, 137)

    asyncio.run(work())


def test_floods_of_many_runs_at_once_are_all_counted(shared: Session) -> None:
    """TH-52"""
    sizes = [1_000_000 * number + 7 for number in range(1, 9)]
    with concurrent.futures.ThreadPoolExecutor(len(sizes)) as pool:
        lines = [f"head -c {size} /dev/zero | tr '\\0' x" for size in sizes]
        results = list(pool.map(lambda line: shared.exec(line, timeout=120, max_output=10), lines))
    assert [result.stdout_bytes for result in results] == sizes


def test_python_output_is_not_lost_in_a_buffer(shared: Session) -> None:
    assert shared.exec(["python3", "-c", "import os; print('kept'); os._exit(0)"]).stdout == "kept\n"


def test_a_consumer_slower_than_the_deadline_does_not_cost_the_session(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is the script's: a caller who takes its output slowly still gets result and session."""
    monkeypatch.setattr("executor.channel.connection.EXIT_MARGIN", 1)

    async def take(_stream: str, _data: bytes) -> None:
        await asyncio.sleep(3)

    with Executor(runtime=runtime, settings=Settings(grace=0.1)) as made, made.session() as session:
        result = session.exec("echo one; sleep 30", timeout=0.5, on_output=take)
        assert (result.status, result.stdout) == ("timeout", "one\n")
        assert session.exec("echo still here").stdout == "still here\n"
