"""The installed command against real sandboxes: what reaches stdout and stderr, and the exit status."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from executor import Executor
from tests import forked

COMMAND = forked.COMMAND
SKILL = "cli-probe"

Invoke = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def probe(skills_root: Path) -> str:
    """A skill made for these tests."""
    folder = skills_root / SKILL
    folder.mkdir(exist_ok=True)
    (folder / "SKILL.md").write_text("---\nname: cli-probe\ndescription: For tests.\n---\nText.\n")
    scripts = folder / "scripts"
    scripts.mkdir(exist_ok=True)
    (scripts / "words.py").write_text("import os, sys\nprint([os.fsencode(word) for word in sys.argv[1:]])\n")
    return SKILL


@pytest.fixture
def words(executor: Executor, runtime: str, skills_root: Path, probe: str) -> list[str]:
    """The beginning of a `run` that says nothing of its own."""
    return [*COMMAND, "run", probe, "--skills", str(skills_root), "--runtime", runtime, "--quiet"]


@pytest.fixture
def run(words: list[str]) -> Invoke:
    """`executor run`, with options in front of `--` and the command behind it."""

    def invoke(
        *command: str | bytes, options: list[str] | None = None, stdin: bytes = b"", loud: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        base = [word for word in words[len(COMMAND) :] if not (loud and word == "--quiet")]
        return forked.run(*base, *(options or []), "--", *command, input=stdin)

    return invoke


@pytest.fixture
def background(words: list[str]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """The same, still running."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: str, *options: str, **popen: Any) -> subprocess.Popen[bytes]:
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        process = subprocess.Popen([*words, *options, "--", command], stdin=subprocess.DEVNULL, **popen)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def ended(done: subprocess.CompletedProcess[bytes]) -> tuple[int, bytes, bytes]:
    return done.returncode, done.stdout, done.stderr


# --- output ------------------------------------------------------------------------------------------------


def test_stdout_and_stderr_go_where_they_belong(run: Invoke) -> None:
    assert ended(run("echo out; echo err >&2; exit 7")) == (7, b"out\n", b"err\n")


def test_every_byte_arrives_unaltered(run: Invoke) -> None:
    done = run("python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)")
    assert ended(done) == (0, bytes(range(256)) * 1000, b"")


def test_output_beyond_what_a_result_keeps_is_streamed_whole(run: Invoke) -> None:
    done = run("head -c 20000000 /dev/zero")
    assert (done.returncode, len(done.stdout), set(done.stdout), done.stderr) == (0, 20_000_000, {0}, b"")


def test_the_first_line_arrives_before_the_script_ends(
    background: Callable[..., subprocess.Popen[bytes]],
) -> None:
    process = background("echo first; sleep 20")
    assert process.stdout is not None
    began = time.monotonic()
    assert process.stdout.readline() == b"first\n"
    assert time.monotonic() - began < 10
    assert process.poll() is None


def test_a_reader_that_pauses_loses_nothing(background: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = background("head -c 8000000 /dev/zero; echo end")
    assert process.stdout is not None
    time.sleep(4)
    assert process.poll() is None
    data = process.stdout.read()
    assert (len(data), data[-4:], process.wait()) == (8_000_004, b"end\n", 0)


def test_a_reader_that_pauses_beyond_the_time_out_does_not_cost_the_result(
    runtime: str, background: Callable[..., subprocess.Popen[bytes]]
) -> None:
    if runtime != "container" and not os.environ.get("EXECUTOR_SOAK"):
        pytest.skip("eleven seconds of waiting for what is above the runtime: make soak")
    process = background("yes", "--timeout", "1")
    assert process.stdout is not None and process.stderr is not None
    time.sleep(11)  # longer than time-out, grace and the margin after which a silent run counts as lost
    data = process.stdout.read()
    assert data.startswith(b"y\ny\n") and len(data) >= 256 << 10
    assert (process.wait(), process.stderr.read()) == (124, b"")


def test_a_reader_that_goes_away_ends_the_run(background: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = background("yes")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert (process.wait(20), process.stderr.read()) == (141, b"")


def test_a_full_disk_under_stdout_is_the_executors_failure(
    background: Callable[..., subprocess.Popen[bytes]],
) -> None:
    with open("/dev/full", "wb") as full:
        process = background("yes", stdout=full)
        assert process.stderr is not None
        assert process.wait(20) == 125
        said = process.stderr.read()
    assert said == b"executor: error: cannot write the script's output: No space left on device\n"


def test_a_closed_stdout_is_as_good_as_dev_null(words: list[str]) -> None:
    line = " ".join(words) + " -- 'echo lost; echo err >&2; exit 3' >&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60)
    assert ended(done) == (3, b"", b"err\n")


def test_on_a_terminal_colours_work_and_other_sequences_are_shown(words: list[str]) -> None:
    script = r"printf '\033[31mred\033[0m \033]52;c;eA==\007\033[2Jx\n'"
    assert _on_terminal([*words, "--", script]) == (
        b"\x1b[31mred\x1b[0m \\x1b]52;c;eA==\\x07\\x1b[2Jx\r\n\x1b[0m"
    )


def test_on_a_terminal_a_note_begins_on_a_line_of_its_own(words: list[str]) -> None:
    loud = [word for word in words if word != "--quiet"]
    shown = _on_terminal([*loud, "--", "printf glued; kill -9 $$"], {"NO_COLOR": "1"})
    assert shown.endswith(b"glued\r\nexecutor: the script was ended by signal 9 (SIGKILL)\r\n")
    assert b"\x1b" not in shown


def _on_terminal(command: list[str], env: dict[str, str] | None = None) -> bytes:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm", **(env or {})}
    )
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # EIO is a terminal's end of file
        while select.select([master], [], [], 60)[0] and (piece := os.read(master, 65536)):
            shown += piece
    os.close(master)
    process.wait(20)
    return shown


def test_a_json_that_nobody_could_read_is_no_success(words: list[str]) -> None:
    line = " ".join(words) + " --json -- 'touch ran' >&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60)
    assert (done.returncode, b"stdout is closed: the JSON would be lost" in done.stderr) == (125, True)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*words, "--json", "--", "true"], stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert (done.returncode, b"stdout cannot be written" in done.stderr) == (125, True)


def test_a_report_of_one_run(run: Invoke, tmp_path: Path) -> None:
    report = tmp_path / "new" / "r.html"
    options = ["--html", str(report)]
    done = run("echo '<b>hi</b>'; echo '{\"n\": 5}' > out/d.json; exit 3", options=options)
    page = report.read_text("utf-8")
    assert (done.returncode, done.stdout) == (3, b"<b>hi</b>\n")
    for part in (
        "<title>A run of cli-probe: 1 failed</title>",
        "<li>exit: expected 0, got 3</li>",
        "<pre>&lt;b&gt;hi&lt;/b&gt;\n</pre>",
        "<code>out/d.json</code>",
        "<div>&quot;n&quot;: 5</div>",
    ):
        assert part in page
    done = run("true", options=["--html", str(tmp_path)])
    assert (done.returncode, b"is a folder" in done.stderr) == (125, True)


# --- the command -------------------------------------------------------------------------------------------


def test_one_word_is_a_shell_line(run: Invoke) -> None:
    assert ended(run("echo $((6*7)) | tr 4 5; pwd")) == (0, b"52\n/skills/cli-probe\n", b"")


def test_several_words_are_passed_on_unchanged(run: Invoke) -> None:
    odd = [
        b"two words",
        b"$HOME `id` $(id)",
        b"'single' \"double\" \\",
        b"line\nbreak\ttab",
        b"",
        b"--json",
        b"--",
        b"-x",
        b"*",
        "grüße 日本".encode(),
        b"not-utf8-\xff\xfe",
        b"{a,b}",
        b"@file",
    ]
    done = run("python3", "scripts/words.py", *odd)
    assert ended(done) == (0, f"{odd!r}\n".encode(), b"")


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["exit 2"], 2),
        (["exit 255"], 255),
        (["no-such-program"], 127),
        (["no-such-program", "x"], 127),
        (["/etc/passwd"], 126),
        (["/etc/passwd", "x"], 126),
        (["kill -TERM $$"], 143),
        (["kill -SEGV $$"], 139),
    ],
)
def test_the_exit_status_is_the_scripts_own(run: Invoke, command: list[str], status: int) -> None:
    assert run(*command).returncode == status


def test_a_time_out_is_124_and_said(run: Invoke) -> None:
    done = run("echo before; sleep 60", options=["--timeout", "1"], loud=True)
    assert (done.returncode, done.stdout) == (124, b"before\n")
    assert b"executor: timeout: the script was ended after 1." in done.stderr


def test_out_of_memory_is_137_and_said(run: Invoke) -> None:
    done = run("python3", "-c", "x = bytearray(400 << 20)", options=["--memory", "128m"], loud=True)
    if b"no cgroups" in done.stderr:
        pytest.skip("no cgroups here")
    assert (done.returncode, done.stdout) == (137, b"")
    assert b"executor: out of memory: the kernel ended the script\n" in done.stderr


# --- what goes in ------------------------------------------------------------------------------------------


def test_inputs_land_where_they_are_sent(run: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "with:colon").write_text("colon")
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "b.txt").write_text("b")
    options = []
    for value in (
        "a.txt",
        "a.txt:renamed.txt",
        "a.txt:sub/",
        "a.txt:work/in-work.txt",
        "a.txt:/workspace/out/direct.txt",
        "a.txt:skills/cli-probe/extra.txt",
        "with:colon",
        "with:colon:plain",
        "folder",
        "folder:tree",
    ):
        options += ["--input", f"{tmp_path}/{value}"]
    done = run(
        "cd /workspace; find inputs work out /skills/cli-probe/extra.txt -type f | sort", options=options
    )
    assert ended(done) == (
        0,
        b"/skills/cli-probe/extra.txt\ninputs/a.txt\ninputs/folder/deep/b.txt\ninputs/plain\n"
        b"inputs/renamed.txt\ninputs/sub/a.txt\ninputs/tree/deep/b.txt\ninputs/with:colon\n"
        b"out/direct.txt\nwork/in-work.txt\n",
        b"",
    )


def test_stdin_comes_from_a_file_from_ours_or_from_nowhere(run: Invoke, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "in").write_bytes(data)
    assert ended(run("cat", options=["--stdin", "-"], stdin=data)) == (0, data, b"")
    assert ended(run("cat", options=["--stdin", str(tmp_path / "in")], stdin=b"no")) == (0, data, b"")
    assert ended(run("cat", stdin=b"not for the script")) == (0, b"", b"")


def test_variables_and_the_folder_can_be_chosen(run: Invoke) -> None:
    options = ["--env", "A=one", "--env", "B=x=y", "--env", "A=two", "--env", "EMPTY=", "--cwd", "work"]
    done = run('echo "$A|$B|${EMPTY-unset}|$PWD"', options=options)
    assert ended(done) == (0, b"two|x=y||/workspace/work\n", b"")


def test_nothing_of_the_hosts_environment_comes_along(run: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLI_SECRET", "s3cret")
    assert ended(run("env | grep -c s3cret")) == (1, b"0\n", b"")


def test_what_the_host_ignores_scripts_do_not(words: list[str]) -> None:
    """A host in the background, or below nohup, has signals ignored, and whatever it starts inherits that."""
    ignored = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGHUP)
    names = "[n for n in (1, 3, 10) if signal.getsignal(n) == signal.SIG_IGN]"
    script = ["python3", "-S", "-c", f"import signal; print({names})"]

    def ignore() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    bare = subprocess.run(script, preexec_fn=ignore, capture_output=True, timeout=60)
    assert bare.stdout == b"[1, 3, 10]\n"  # the control
    done = subprocess.run([*words, "--", *script], preexec_fn=ignore, capture_output=True, timeout=60)
    assert ended(done) == (0, b"[]\n", b"")


# --- what comes out ----------------------------------------------------------------------------------------


def test_files_are_saved_and_named(run: Invoke, tmp_path: Path) -> None:
    target = tmp_path / "saved"
    command = "mkdir -p out/sub; printf '{}' > out/a.json; head -c 2000 /dev/zero > out/sub/b.bin; echo hi"
    done = run(command, options=["--save", str(target)], loud=True)
    assert (done.returncode, done.stdout) == (0, b"hi\n")
    assert (target / "out/a.json").read_bytes() == b"{}"
    assert (target / "out/sub/b.bin").read_bytes() == bytes(2000)
    lines = done.stderr.decode().splitlines()[-4:]
    assert lines == [
        "executor: 2 files:",
        "executor:   out/a.json         2 B  application/json",
        "executor:   out/sub/b.bin  2.0 KiB  application/octet-stream",
        f"executor: 2 files saved below {target}",
    ]


def test_a_file_too_large_for_json_is_saved_whole(run: Invoke, tmp_path: Path) -> None:
    options = ["--save", str(tmp_path), "--json", "--disk", "100m"]
    done = run("head -c 30000000 /dev/zero > out/big", options=options)
    (file,) = json.loads(done.stdout)["files"]
    assert (done.returncode, file["content"], file["truncated"]) == (0, None, True)
    assert file["saved_as"] == str(tmp_path / "out/big")
    assert (tmp_path / "out/big").stat().st_size == 30_000_000


def test_outputs_choose_what_comes_back(run: Invoke) -> None:
    command = "touch out/a.csv out/b.txt /workspace/work/c.csv"
    options = ["--json", "--output", "out/*.csv", "--output", "work/**"]
    done = run(command, options=options)
    assert [file["path"] for file in json.loads(done.stdout)["files"]] == ["out/a.csv", "work/c.csv"]


def test_a_file_that_is_there_already_is_not_overwritten_unless_asked(run: Invoke, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_text("mine")
    save = ["--save", str(tmp_path)]
    done = run("echo new > out/a; echo new > out/b", options=save)
    assert (done.returncode, done.stdout) == (125, b"")
    assert (
        f"executor: error: {tmp_path}/out/a exists already and is not overwritten\n" in done.stderr.decode()
    )
    assert ((tmp_path / "out/a").read_text(), (tmp_path / "out/b").read_text()) == ("mine", "new\n")
    (aside,) = tmp_path.glob("unsaved-*")  # what the run made is not lost
    assert f"hint: what could not be saved as it was asked is in {aside}\n" in done.stderr.decode()
    assert [str(file.relative_to(aside)) for file in aside.rglob("*") if file.is_file()] == ["out/a"]
    assert (aside / "out/a").read_text() == "new\n"
    assert run("echo new > out/a; exit 9", options=save).returncode == 9
    done = run("echo new > out/a", options=[*save, "--overwrite"])
    assert ended(done) == (0, b"", b"")
    assert (tmp_path / "out/a").read_text() == "new\n"


def test_hostile_names_are_shown_escaped_and_saved_safely(run: Invoke, tmp_path: Path) -> None:
    script = "import os; open(b'out/\\x1b]0;x\\x07\\xff', 'w').close()"
    done = run("python3", "-c", script, options=["--save", str(tmp_path)], loud=True)
    assert done.returncode == 0
    assert b"\\x1b]0;x\\x07\\udcff" in done.stderr
    assert b"\x1b" not in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["%1B]0;x%07%FF"]


def test_json_is_one_object_and_nothing_else(run: Invoke, runtime: str) -> None:
    done = run(
        "printf 'o\\xff\\n'; echo e >&2; printf x > $OUTPUT_DIR/$'n\\xff'; exit 4",
        options=["--json", "--session", "my-session"],
    )
    assert done.stdout.count(b"\n") == 1 and done.stdout.isascii()
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (4, b"")
    assert list(result) == [
        *("status", "exit_code", "signal", "stdout", "stderr", "stdout_bytes", "stderr_bytes"),
        *("stdout_truncated", "stderr_truncated", "timed_out", "duration_ms", "usage", "files"),
        *("limits_hit", "warnings", "killed_descendants", "pending", "run_id", "session_id", "runtime"),
    ]
    told = {key: result[key] for key in ("status", "exit_code", "stdout", "stderr", "session_id", "runtime")}
    assert told == {
        "status": "error",
        "exit_code": 4,
        "stdout": "o\ufffd\n",
        "stderr": "e\n",
        "session_id": "my-session",
        "runtime": runtime,
    }
    assert [(file["path"], file["content"]) for file in result["files"]] == [("out/n\udcff", "x")]


# --- errors and interruptions ------------------------------------------------------------------------------


def test_the_executors_own_failure_is_125_also_as_json(run: Invoke) -> None:
    done = run("true", options=["--cwd", "no-such-folder", "--json"])
    found = json.loads(done.stdout)
    assert done.returncode == 125
    assert found["error"]["type"] == "BadPathError"
    assert found["error"]["message"] == (
        "cwd '/skills/cli-probe/no-such-folder' cannot be used: No such file or directory"
    )
    assert done.stderr.decode().startswith(f"executor: error: {found['error']['message']}\n")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_sandbox_and_the_command(
    background: Callable[..., subprocess.Popen[bytes]], number: int, status: int
) -> None:
    mark = f"5{os.getpid()}{number:02d}"  # seconds that no other process sleeps
    process = background(f"echo ready; sleep {mark} & sleep {mark}")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"ready\n"
    assert _sleepers(mark, 2) == 2
    process.send_signal(number)
    assert process.wait(20) == status
    assert process.stderr.read() == b""
    assert _sleepers(mark, 0) == 0


def test_a_lost_sandbox_is_the_executors_failure(
    background: Callable[..., subprocess.Popen[bytes]], runtime: str
) -> None:
    name = f"lost-{os.getpid()}-{runtime}"
    process = background(f"echo ready; sleep 6{os.getpid()}1", "--session", name, "--json", "--timeout", "30")
    assert _sleepers(f"6{os.getpid()}1", 1) == 1
    if runtime == "local":
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
    else:
        client = docker.from_env()
        (container,) = client.containers.list(filters={"label": f"executor.session={name}"})
        container.kill()
        client.close()
    assert process.stdout is not None and process.stderr is not None
    result = json.loads(process.stdout.read())
    assert (process.wait(20), result["status"], result["exit_code"]) == (125, "lost", None)
    said = process.stderr.read()
    assert said.startswith(b"executor: error: the sandbox was lost while the script ran\nexecutor: hint: ")


def _sleepers(mark: str, wanted: int) -> int:
    """How many processes sleep so long; waits until they are as many as wanted."""
    deadline = time.monotonic() + 10
    while True:
        count = 0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                count += (folder / "cmdline").read_bytes() == f"sleep\0{mark}\0".encode()
        if count == wanted or time.monotonic() > deadline:
            return count
        time.sleep(0.05)


# --- the doctor --------------------------------------------------------------------------------------------


def test_the_doctor_runs_something_in_every_runtime_that_works(executor: Executor, runtime: str) -> None:
    done = forked.run("doctor", "--json")
    report = json.loads(done.stdout)
    (trial,) = (trial for trial in report["trials"] if trial["runtime"] == runtime)
    assert (done.returncode, done.stderr, report["works"]) == (0, b"", True)
    assert (trial["works"], trial["problem"], trial["interpreters"]["python"]) == (True, "", "ok")
    assert 0 < trial["true_ms"] < trial["start_ms"]
    assert report["auto"] in ("container", "local") and report["why"].startswith(f"{report['auto']}: ")


def test_an_output_that_nothing_matches_is_told(run: Invoke) -> None:
    told = run("true", options=["--output", "outt/**"], loud=True).stderr
    assert b"warning: no file matches outt/**" in told
    report = json.loads(run("true", options=["--output", "outt/**", "--json"]).stdout)
    assert report["warnings"] == ["no file matches outt/**"]
    assert b"matches" not in run("true", loud=True).stderr  # the control: nobody asked for any


def test_a_named_session_goes_on_with_its_files(
    run: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EXECUTOR_STATE_DIR", str(tmp_path))
    kept = ["--session", "kept"]
    first = run("echo one > $WORK_DIR/count; echo mine > note.txt", options=kept, loud=True)
    assert b"session kept is kept: use --session kept again to go on" in first.stderr
    again = run("cat $WORK_DIR/count note.txt", options=kept, loud=True)
    assert (again.stdout, again.returncode) == (b"one\nmine\n", 0)
    assert b"session kept goes on with its files" in again.stderr
    other = run("cat $WORK_DIR/count", options=["--session", "other"])
    assert other.returncode == 1


def test_a_named_session_keeps_the_files_of_a_run_that_failed(
    run: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EXECUTOR_STATE_DIR", str(tmp_path))
    kept = ["--session", "kept"]
    assert run("echo two > $WORK_DIR/count; exit 9", options=kept).returncode == 9
    assert run("cat $WORK_DIR/count", options=kept).stdout == b"two\n"
