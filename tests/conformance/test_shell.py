"""`executor shell` as an author types it: on a real terminal, and with commands in a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor import Executor

PATIENCE = 60  # seconds that a loaded machine may take for anything


@pytest.fixture
def words(executor: Executor, runtime: str, skills_root: Path) -> list[str]:
    """The beginning of a `shell` that says nothing of its own."""
    line = [sys.executable, "-m", "executor.cli", "shell", "log-digest", "--skills", str(skills_root)]
    return [*line, "--runtime", runtime, "--quiet"]


class Terminal:
    """A terminal with the command on it."""

    def __init__(self, command: list[str]) -> None:
        self.master, slave = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(slave)
        env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env)
        self.slave = slave
        self.shown = b""
        self.until(rb"\$ ")

    def resize(self, rows: int, columns: int) -> None:
        """What a person does at the corner of a window."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.master, keys)

    def until(self, pattern: bytes) -> re.Match[bytes]:
        """Wait until it is shown; what was shown up to its end is taken."""
        end = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.shown)) is None:
            left = end - time.monotonic()
            ready = left > 0 and select.select([self.master], [], [], left)[0]
            assert ready, f"{pattern!r} is not shown: {self.shown!r}"
            self.shown += os.read(self.master, 65536)
        self.shown = self.shown[found.end() :]
        return found

    def ended(self) -> int:
        """The exit status, with all that was shown read."""
        while self.process.poll() is None or select.select([self.master], [], [], 0)[0]:
            if select.select([self.master], [], [], 0.05)[0]:
                self.shown += os.read(self.master, 65536)
        return self.process.returncode

    def close(self) -> None:
        """End what is left."""
        self.process.kill()
        self.process.wait()
        for fd in (self.master, self.slave):
            with contextlib.suppress(OSError):
                os.close(fd)


@pytest.fixture
def terminal(words: list[str]) -> Iterator[Terminal]:
    """A shell that waits for its first command."""
    found = Terminal([*words, "--disk", "3m", "--env", "GREETING=hello"])
    yield found
    found.close()


def test_a_shell_on_a_terminal(terminal: Terminal, runtime: str) -> None:
    terminal.type(b"echo $GREETING $PWD $(stty size) [$(tty)]\r")
    terminal.until(rb"[\r\n]hello /skills/log-digest 30 100 \[/dev/pts/\d+\]\r\n")
    terminal.until(rb"log-digest:/skills/log-digest\$ ")

    # Ctrl-C is for the program inside; neither this command nor the shell ends.
    terminal.type(b"cat\r")
    terminal.until(rb"cat\r\n")
    terminal.type(b"is read\r")
    terminal.until(rb"is read\r\nis read\r\n")
    terminal.type(b"\x03")
    terminal.until(rb"\^C")
    terminal.until(rb"\$ ")

    # Its size follows that of the window, and the limits are those that were asked for.
    terminal.resize(41, 121)
    terminal.process.send_signal(signal.SIGWINCH)  # the kernel tells only a job in the foreground
    # Both are on their way: the keys may be there first.
    terminal.type(b"until [ \"$(stty size)\" = '41 121' ]; do sleep 0.1; done; ")
    terminal.type(b"stty size; df --output=size -m /workspace; (exit 6); echo $?\r")
    terminal.until(rb"41 121\r\n *1M-blocks\r\n *3\r\n6\r\n")

    # Titles and the clipboard are not for scripts; what a full screen changes is put back.
    terminal.type(b"printf '\\033]0;evil\\007\\033]52;c;eA==\\007a\\033[?1049h\\033[?25l\\n'; exit 7\r")
    terminal.until(rb"\ra\x1b\[\?1049h\x1b\[\?25l\r\n")
    assert terminal.ended() == 7
    assert b"\x1b[?1049l\x1b[?25h" in terminal.shown and b"evil" not in terminal.shown
    assert termios.tcgetattr(terminal.slave) == terminal.before


def test_a_signal_ends_the_shell_and_gives_the_terminal_back(terminal: Terminal) -> None:
    assert termios.tcgetattr(terminal.slave) != terminal.before  # the control: it was changed
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.ended() == 143
    assert termios.tcgetattr(terminal.slave) == terminal.before


def test_a_shell_reads_its_commands_from_a_pipe(words: list[str], tmp_path: Path) -> None:
    command = [*words, "--input", f"{__file__}:inputs/t.py", "--save", str(tmp_path)]
    script = b'read line\nthis line\necho "<$line>"; echo err >&2; test -t 0 || echo pipe\n'
    script += b"cp inputs/t.py out/; exit 5\n"
    done = subprocess.run(command, input=script, capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (5, b"<this line>\npipe\n", b"err\n")
    assert (tmp_path / "out" / "t.py").read_bytes() == Path(__file__).read_bytes()
    large = b"wc -c <<'end'\n" + b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 1_500 + b"end\n"
    (tmp_path / "script").write_bytes(large)
    with open(tmp_path / "script", "rb") as file:  # a file, which no event loop can wait for
        done = subprocess.run(words, stdin=file, capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, b"150100\n")


def test_what_cannot_be_is_said_with_the_next_step(words: list[str]) -> None:
    wrong = [word.replace("log-digest", "log-digset") for word in words]
    done = subprocess.run(wrong, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 125
    assert "log-digset" in done.stderr and "executor: hint: " in done.stderr
    done = subprocess.run(
        [*words, "--timeout", "0.3"], input="sleep 600\n", capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 124
