"""Background runs that are talked to: stdin, reading bit by bit, signals, a terminal."""

from __future__ import annotations

import concurrent.futures
import hashlib
import signal
import time

import pytest
from probes import eventually, processes, until

from executor import BadRequestError, RunOutput, Session


@pytest.fixture
def session(shared: Session) -> Session:
    """One for all: every test here ends what it starts."""
    return shared


# -- stdin --


def test_a_line_is_read_and_answered(session: Session) -> None:
    """trpc-56"""
    run = session.start("read v; echo out:$v")
    run.write("hello\n")
    result = run.wait(30)
    assert (result.status, result.exit_code, result.stdout) == ("ok", 0, "out:hello\n")


def test_polling_after_the_end_gives_the_same_end(session: Session) -> None:
    """trpc-56"""
    run = session.start("read v; echo out:$v; exit 4")
    run.write(b"x\n")
    first, second = run.wait(30), run.wait(30)
    assert first == second
    assert (first.status, first.exit_code, first.stdout) == ("error", 4, "out:x\n")
    piece = run.read()
    assert (piece.status, piece.exit_code, piece.stdout) == ("error", 4, "out:x\n")
    again = run.read()
    assert (again.status, again.exit_code, again.stdout) == ("error", 4, "")


def test_a_prompt_without_a_newline_is_shown_once(session: Session) -> None:
    """trpc-58"""
    run = session.start(["python3", "-c", "name = input('Name: '); print('Hi', name)"])
    assert until(run, "Name: ") == "Name: "
    assert run.read(0.2).stdout == ""
    run.write("Ann\n")
    assert until(run, "Ann\n") == "Hi Ann\n"
    assert run.wait(30).stdout == "Name: Hi Ann\n"


def test_lines_polled_one_by_one_join_to_the_whole(session: Session) -> None:
    """trpc-58"""
    run = session.start("for w in a b c; do read go; printf %s $w; [ $w = c ] || echo; done")
    got = ""
    for word in ("a\n", "b\n", "c"):
        run.write("go\n")
        got += until(run, word)
    assert got == "a\nb\nc"
    assert run.wait(30).stdout == got


def test_a_look_at_a_silent_run_returns_at_once(session: Session) -> None:
    """trpc-58"""
    run = session.start("sleep 600")
    began = time.monotonic()
    piece = run.read(0)
    assert time.monotonic() - began < 10
    assert isinstance(piece, RunOutput)
    assert (piece.status, piece.exit_code, piece.stdout, piece.stderr) == ("running", None, "", "")
    run.kill()


def test_a_look_waits_no_longer_than_it_has_to(session: Session) -> None:
    run = session.start("read go; echo now; sleep 600")
    began = time.monotonic()
    run.write("go\n")
    assert until(run, "now\n", 600) == "now\n"
    assert time.monotonic() - began < 60
    run.kill()


def test_a_look_shows_both_streams_and_only_what_is_new(session: Session) -> None:
    run = session.start("echo out; echo err >&2; read go; echo more; read end")
    assert eventually(lambda: (run.wait(0).stdout_bytes, run.wait(0).stderr_bytes) == (4, 4))
    piece = run.read()
    assert (piece.stdout, piece.stderr) == ("out\n", "err\n")
    run.write("go\n")
    assert until(run, "more") == "more\n"
    run.kill()


def test_a_character_that_comes_in_two_pieces_is_shown_whole(session: Session) -> None:
    run = session.start("printf '\\xe4\\xbd'; read go; printf '\\xa0!'; read go")
    assert eventually(lambda: run.wait(0).stdout_bytes == 2)
    assert run.read().stdout == ""
    run.write("\n")
    assert until(run, "!") == "你!"
    run.kill()


def test_output_that_came_faster_than_it_was_read_is_counted_as_missing(session: Session) -> None:
    run = session.start("head -c 5000000 /dev/zero | tr '\\0' x; echo; read go", max_output=100_000)
    assert eventually(lambda: run.wait(0).stdout_bytes == 5_000_001)
    piece = run.read()
    assert (piece.status, piece.stdout_truncated) == ("running", True)
    assert len(piece.stdout) <= 100_000
    missing = 5_000_001 - len(piece.stdout)
    assert f"{missing:,} bytes of stdout came too fast and were dropped" in piece.warnings
    run.kill()


def test_end_of_stdin_reaches_the_program(session: Session) -> None:
    run = session.start("wc -c")
    run.write("12345")
    assert run.read(0.2).stdout == ""
    run.close_stdin()
    assert run.wait(30).stdout == "5\n"


def test_large_writes_arrive_whole(session: Session) -> None:
    block = bytes(range(256)) * 4096
    sha = hashlib.sha256()
    run = session.start("sha256sum")
    for _ in range(20):
        run.write(block)
        sha.update(block)
    run.close_stdin()
    assert run.wait(60).stdout == f"{sha.hexdigest()}  -\n"


def test_a_large_write_to_a_program_that_ends_instead_does_not_hang(session: Session) -> None:
    run = session.start("sleep 0.2; echo gone")
    try:
        run.write(b"x" * (8 << 20))
    except BadRequestError:
        pass  # it had ended
    assert run.wait(30).stdout == "gone\n"


@pytest.mark.parametrize("tty", [False, True])
def test_a_write_that_nobody_reads_waits_until_the_run_is_killed(session: Session, tty: bool) -> None:
    run = session.start("sleep 600", tty=tty)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        writing = pool.submit(run.write, b"x" * (8 << 20))
        with pytest.raises(concurrent.futures.TimeoutError):
            writing.result(0.3)
        assert session.exec("echo meanwhile").stdout == "meanwhile\n"
        assert run.kill().status == "killed"
        writing.result(30)


def test_writing_to_a_run_that_has_ended_is_the_callers_error(session: Session) -> None:
    run = session.start("true")
    run.wait(30)
    with pytest.raises(BadRequestError):
        run.write("late\n")
    run.close_stdin()  # is no error: there is nothing more to close


# -- signals and kills --


def test_an_interrupt_reaches_the_program(session: Session) -> None:
    program = """
import time
try:
    print("up")
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted")
    raise SystemExit(5)
"""
    run = session.start(["python3", "-c", program])
    until(run, "up\n")
    run.send_signal(signal.SIGINT)
    result = run.wait(30)
    assert (result.status, result.exit_code, result.stdout) == ("error", 5, "up\ninterrupted\n")


def test_an_interrupt_reaches_the_children_of_the_shell(session: Session) -> None:
    run = session.start("(trap 'echo child; exit' INT; echo up; while :; do sleep 0.05; done); echo after")
    until(run, "up")
    run.send_signal(signal.SIGINT)
    assert "child\n" in run.wait(30).stdout


def test_a_signal_that_ends_it_is_told(session: Session) -> None:
    run = session.start("echo up; exec sleep 600")
    until(run, "up")
    run.send_signal(signal.SIGUSR1)
    result = run.wait(30)
    assert (result.status, result.signal) == ("error", int(signal.SIGUSR1))


@pytest.mark.parametrize("number", [0, -1, 65, 1000])
def test_what_is_no_signal_is_the_callers_error(session: Session, number: int) -> None:
    run = session.start("sleep 600")
    with pytest.raises(BadRequestError):
        run.send_signal(number)
    assert run.running
    run.kill()


def test_a_kill_keeps_what_was_written(session: Session) -> None:
    run = session.start("echo before; sleep 600")
    until(run, "before")
    result = run.kill()
    assert (result.status, result.stdout, result.timed_out) == ("killed", "before\n", False)
    assert processes(session) == []


def test_killing_what_has_ended_keeps_its_end(session: Session) -> None:
    run = session.start("echo done; exit 7")
    ended = run.wait(30)
    killed = run.kill()
    assert killed == ended
    assert (killed.status, killed.exit_code, killed.signal) == ("error", 7, None)


def test_killing_twice_gives_the_same_result(session: Session) -> None:
    run = session.start("sleep 600")
    assert run.kill() == run.kill()


# -- terminals --


def test_a_terminal_is_one_and_has_the_size_that_was_asked_for(session: Session) -> None:
    run = session.start(
        "test -t 0 && test -t 1 && test -t 2 && stty size; echo $TERM", tty=True, size=(33, 99)
    )
    result = run.wait(30)
    assert (result.status, result.stdout) == ("ok", "33 99\r\nxterm-256color\r\n")


def test_without_one_nothing_is_a_terminal(session: Session) -> None:
    result = session.exec("test -t 0 || test -t 1 || test -t 2 || echo none; echo $TERM")
    assert result.stdout == "none\ndumb\n"


def test_a_short_run_can_have_a_terminal_too(session: Session) -> None:
    assert session.exec("test -t 1 && echo yes", tty=True, timeout=20).stdout == "yes\r\n"


def test_it_is_the_controlling_terminal(session: Session) -> None:
    run = session.start("echo from tty > /dev/tty; ps -o tty= -p $$", tty=True)
    first, second = run.wait(30).stdout.split("\r\n")[:2]
    assert (first, second.strip().startswith("pts/")) == ("from tty", True)


def test_a_terminal_can_be_resized_and_the_program_is_told(session: Session) -> None:
    line = "trap 'stty size' WINCH; stty -echo; echo up; while read v; do echo got $v; done"
    run = session.start(line, tty=True)
    until(run, "up\r\n")
    run.resize(50, 132)
    run.write("x\n")
    assert "50 132\r\n" in until(run, "got x")
    run.kill()


@pytest.mark.parametrize("size", [(0, 80), (24, 0), (24, 100_000)])
def test_what_is_no_size_is_the_callers_error(session: Session, size: tuple[int, int]) -> None:
    run = session.start("sleep 600", tty=True)
    with pytest.raises(BadRequestError):
        run.resize(*size)
    run.kill()


def test_a_terminal_echoes_and_edits_lines_as_one_does(session: Session) -> None:
    run = session.start("read v; echo got:$v", tty=True)
    run.write("helo\x7flo\n")  # a backspace
    assert run.wait(30).stdout.endswith("got:hello\r\n")


def test_control_c_on_a_terminal_interrupts(session: Session) -> None:
    run = session.start("trap 'echo int; exit 9' INT; echo up; while :; do sleep 0.05; done", tty=True)
    until(run, "up\r\n")
    run.write("\x03")
    result = run.wait(30)
    assert (result.exit_code, "int\r\n" in result.stdout) == (9, True)


def test_end_of_stdin_on_a_terminal_is_control_d(session: Session) -> None:
    run = session.start("stty -echo; echo up; cat; echo end", tty=True)
    until(run, "up\r\n")
    run.write("line\n")
    until(run, "line\r\n")
    run.close_stdin()
    result = run.wait(30)
    assert (result.status, result.stdout) == ("ok", "up\r\nline\r\nend\r\n")


def test_end_of_stdin_on_a_terminal_counts_in_the_middle_of_a_line_too(session: Session) -> None:
    run = session.start("stty -echo; echo up; cat; echo end", tty=True)
    until(run, "up\r\n")
    run.write("no newline")
    run.close_stdin()
    assert run.wait(30).stdout == "up\r\nno newlineend\r\n"


def test_a_short_run_on_a_terminal_is_at_the_end_of_stdin_unless_it_is_given(session: Session) -> None:
    silent = session.exec("read line; echo $?", tty=True, timeout=30)
    assert (silent.status, silent.stdout) == ("ok", "1\r\n")
    given = session.exec("stty -echo; cat; echo end", tty=True, stdin="hello\n", timeout=30)
    assert given.stdout.endswith("hello\r\nend\r\n")


@pytest.mark.parametrize("size", [(1 << 18) - 1, 1 << 18, (1 << 20) - 1])
def test_end_of_stdin_on_a_terminal_after_any_number_of_bytes_is_sound(session: Session, size: int) -> None:
    """The guest types the end of file itself: that byte is none of those that the host may send again."""
    run = session.start(f"stty raw -echo; echo up; head -c {size} | wc -c; sleep 0.2", tty=True)
    until(run, "up")
    run.write(b"x" * size)
    run.close_stdin()
    assert str(size) in run.wait(60).stdout
    assert session.exec("echo still here").stdout == "still here\n"


def test_a_large_write_to_a_terminal_arrives_whole(session: Session) -> None:
    run = session.start("stty raw -echo; echo up; head -c 1000000 | sha256sum", tty=True)
    until(run, "up")
    data = (b"0123456789abcdef" * 62_500)[:1_000_000]
    run.write(data)
    assert hashlib.sha256(data).hexdigest() in run.wait(60).stdout


def test_a_python_prompt_can_be_talked_to(session: Session) -> None:
    run = session.start(["python3", "-i", "-q"], tty=True)
    until(run, ">>> ")
    run.write("6 * 7\n")
    assert "42" in until(run, "42")
    run.write("exit(3)\n")
    assert run.wait(30).exit_code == 3


def test_a_terminal_run_leaves_nothing_behind(session: Session) -> None:
    run = session.start("setsid -f sleep 4321; sleep 4321 & echo up; read v", tty=True)
    until(run, "up")
    assert run.kill().status == "killed"
    assert processes(session) == []
