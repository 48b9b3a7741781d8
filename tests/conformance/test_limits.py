"""What a script may use, and that reaching a limit harms nobody: not its session, not its neighbours."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from probes import processes, python, until

from executor import Executor, Limits, Session

SMALL = Limits(memory="128m", pids=48, disk="16m", inodes=2000, tmp="8m", shm="8m")
BOMB = "data = bytearray(b'x') * (600 << 20)"

# Fork until it fails, tell after how many and why, and wait.
FORK = """
import errno, json, os, time
count = 0
try:
    while count < 5000:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        count += 1
except OSError as error:
    print(json.dumps([count, errno.errorcode[error.errno]]), flush=True)
"""
THREADS = """
import json, threading
gate = threading.Event()
count = 0
try:
    while count < 5000:
        threading.Thread(target=gate.wait, daemon=True).start()
        count += 1
except RuntimeError as error:
    print(json.dumps([count, str(error)]), flush=True)
gate.set()
"""


@pytest.fixture(scope="module")
def small(executor: Executor) -> Iterator[Session]:
    """A session with little of everything."""
    with executor.session(limits=SMALL) as opened:
        yield opened


@pytest.fixture
def counted(small: Session) -> Session:
    """The same, where the machine can limit a session as a whole; where it cannot, the session says so."""
    for warning in small.warnings:
        if "memory is limited for each process, not for the session" in warning:
            pytest.skip(warning)
    return small


@pytest.fixture
def neighbour(executor: Executor) -> Iterator[Session]:
    """Another session with a program that ticks; it must have gone on undisturbed."""
    with executor.session(limits=SMALL) as opened:
        ticker = opened.start("while :; do echo tick; sleep 0.1; done")
        until(ticker, "tick")
        yield opened
        seen = ticker.wait(0).stdout_bytes
        assert ticker.read(30).status == "running"
        deadline = time.monotonic() + 30
        while ticker.wait(0).stdout_bytes <= seen and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ticker.wait(0).stdout_bytes > seen
        assert opened.exec("echo fine").stdout == "fine\n"


# -- memory --


def test_a_memory_bomb_is_out_of_memory_and_harms_nobody(counted: Session, neighbour: Session) -> None:
    """ref-42, trpc-1.13.3"""
    result = counted.exec(
        ["python3", "-c", f"print('before', flush=True)\n{BOMB}\nprint('after')"], timeout=60
    )
    assert (result.status, result.exit_code, result.signal) == ("oom", 137, 9)
    assert (result.stdout, result.timed_out) == ("before\n", False)
    assert "memory" in result.limits_hit
    after = counted.exec("echo fine")
    assert (after.status, after.stdout, after.limits_hit) == ("ok", "fine\n", [])


def test_memory_below_the_limit_is_there(small: Session) -> None:
    result = small.exec(["python3", "-c", "print(len(bytearray(b'x') * (70 << 20)))"], timeout=60)
    assert (result.status, result.stdout, result.limits_hit) == ("ok", f"{70 << 20}\n", [])


def test_a_child_out_of_memory_is_told_though_its_parent_goes_on(counted: Session) -> None:
    for code, status in ((0, "ok"), (3, "error")) * 3:
        result = counted.exec(f'python3 -c "{BOMB}"; echo parent; exit {code}', timeout=60)
        assert (result.status, result.exit_code, result.stdout) == (status, code, "parent\n")
        assert result.limits_hit == ["memory"]
        assert [warning for warning in result.warnings if "for memory" in warning]


def test_a_parent_that_passes_on_its_childs_end_is_out_of_memory(counted: Session) -> None:
    result = counted.exec(f'python3 -c "{BOMB}"; exit $?', timeout=60)
    assert (result.status, result.exit_code) == ("oom", 137)


@pytest.mark.parametrize(
    ("line", "signal"), [("kill -9 $$", 9), ("exit 137", None), ("sh -c 'kill -9 $$'; exit $?", None)]
)
def test_what_only_looks_like_out_of_memory_is_not(small: Session, line: str, signal: int | None) -> None:
    result = small.exec(line)
    assert (result.status, result.exit_code, result.signal, result.limits_hit) == ("error", 137, signal, [])


def test_many_small_programs_out_of_memory_leave_the_session_usable(counted: Session) -> None:
    hog = "import time; data = bytearray(b'x') * (30 << 20); time.sleep(0.5)"
    result = counted.exec(
        f'for i in 1 2 3 4 5 6 7 8; do python3 -c "{hog}" & done; wait; echo parent', timeout=60
    )
    assert (result.status, result.stdout) == ("ok", "parent\n")
    assert result.limits_hit == ["memory"]
    assert counted.exec("echo fine").stdout == "fine\n"


# -- processes --


def test_a_fork_bomb_stops_at_the_limit_and_harms_nobody(executor: Executor, neighbour: Session) -> None:
    """ref-42, trpc-64"""
    with executor.session(limits=SMALL) as session:
        count, error = python(session, FORK, timeout=60)
        assert error == "EAGAIN"
        assert SMALL.pids // 2 < count <= SMALL.pids
        assert processes(session) == []
        assert session.exec("echo fine").stdout == "fine\n"


def test_the_shells_fork_bomb_ends_with_its_deadline(executor: Executor, neighbour: Session) -> None:
    with executor.session(limits=SMALL) as session:
        result = session.exec("bomb() { bomb | bomb & bomb; }; bomb", timeout=2)
        assert result.status in ("timeout", "error", "ok")
        assert "Resource temporarily unavailable" in result.stderr
        assert processes(session) == []
        assert session.exec("echo fine").stdout == "fine\n"


def test_threads_count_as_processes(counted: Session) -> None:
    count, error = python(counted, THREADS, timeout=60)
    assert "can't start new thread" in error
    assert SMALL.pids // 2 < count <= SMALL.pids
    assert counted.exec("echo fine").stdout == "fine\n"


def test_a_run_that_finds_no_process_left_says_so_and_the_next_one_works(executor: Executor) -> None:
    with executor.session(limits=SMALL) as session:
        bomb = session.start(["python3", "-c", FORK + "time.sleep(600)"])
        until(bomb, "EAGAIN", 60)
        result = session.exec("echo never")
        assert (result.status, result.exit_code, result.stdout) == ("error", 126, "")
        assert result.limits_hit == ["pids"]
        bomb.kill()
        assert session.exec("echo fine").stdout == "fine\n"


def test_a_program_over_the_memory_limit_fails_in_every_case(small: Session) -> None:
    result = small.exec(["python3", "-c", f"{BOMB}\nprint('after')"], timeout=60)
    assert (result.status in ("oom", "error"), result.stdout) == (True, "")
    assert small.exec("echo fine").stdout == "fine\n"


# -- processor time --


def test_many_spinners_get_the_time_of_the_processors_that_were_ordered(counted: Session) -> None:
    spin = "for i in 1 2 3 4; do timeout 1.5 sh -c 'while :; do :; done' & done; wait"
    usage = counted.exec(spin, timeout=60).usage
    assert usage.cpu_ms > 20
    assert usage.cpu_ms < 1.4 * usage.wall_ms


# -- disk --


@pytest.mark.parametrize(
    ("folder", "size"),
    [("/workspace", 16 << 20), ("/skills", 8 << 20), ("/tmp", 8 << 20), ("/dev/shm", 8 << 20)],
)
def test_a_full_folder_is_no_space_left_and_later_runs_work(small: Session, folder: str, size: int) -> None:
    program = """
import errno, json, sys
written, why = 0, ""
number = 0
while not why:
    with open(f"{sys.argv[1]}/fill{number}", "wb", buffering=0) as file:
        try:
            for _ in range(4):
                written += file.write(b"x" * (1 << 20))
        except OSError as error:
            why = errno.errorcode[error.errno]
    number += 1
print(json.dumps([written, why]))
"""
    written, why = python(small, program, folder, timeout=60)
    assert why == "ENOSPC"
    assert size - (2 << 20) <= written <= size
    assert small.exec("echo fine; echo x > /dev/null").stdout == "fine\n"
    assert small.exec(f"rm {folder}/fill*; echo x > {folder}/again && rm {folder}/again").status == "ok"


def test_all_folders_full_at_once_kill_nothing(counted: Session) -> None:
    fill = (
        "for d in /workspace /skills /tmp /dev/shm; do cat /dev/zero > $d/fill 2>/dev/null; done; echo full"
    )
    result = counted.exec(fill, timeout=60)
    assert (result.status, result.stdout, result.limits_hit) == ("ok", "full\n", [])
    fine = counted.exec(["python3", "-c", "print(len(bytearray(b'x') * (40 << 20)))"])
    assert fine.stdout == f"{40 << 20}\n"
    assert counted.exec(["python3", "-c", BOMB], timeout=60).status == "oom"
    assert (
        counted.exec("rm /workspace/fill /skills/fill /tmp/fill /dev/shm/fill; echo fine").stdout == "fine\n"
    )


@pytest.mark.parametrize("folder", ["/workspace", "/skills", "/tmp", "/dev/shm"])
def test_a_sparse_file_cannot_claim_to_be_huge(small: Session, folder: str) -> None:
    program = """
import errno, json, os, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
found = []
for size in (1 << 20, 1 << 40, (1 << 63) - 4096):
    with open(sys.argv[1] + "/sparse", "wb") as file:
        try:
            file.truncate(size)
            found.append(os.stat(file.name).st_size)
        except OSError as error:
            found.append(errno.errorcode[error.errno])
    os.unlink(sys.argv[1] + "/sparse")
print(json.dumps(found))
"""
    assert python(small, program, folder) == [1 << 20, "EFBIG", "EFBIG"]


@pytest.mark.parametrize("folder", ["/workspace", "/skills", "/tmp"])
def test_the_number_of_files_is_limited_or_the_session_says_that_it_is_not(
    small: Session, folder: str
) -> None:
    """trpc-64"""
    program = """
import errno, json, os, shutil, sys
folder = sys.argv[1] + "/many"
os.mkdir(folder)
count, why = 0, ""
try:
    while count < 4000:
        os.close(os.open(f"{folder}/{count}", os.O_CREAT | os.O_WRONLY))
        count += 1
except OSError as error:
    why = errno.errorcode[error.errno]
shutil.rmtree(folder)
print(json.dumps([count, why]))
"""
    says_not = any("number of files" in warning for warning in small.warnings)
    count, why = python(small, program, folder, timeout=60)
    assert why == ("" if says_not else "ENOSPC")
    assert count <= (4000 if says_not else SMALL.inodes)
    assert small.exec(f"touch {folder}/again && rm {folder}/again").status == "ok"


# -- descriptors, core files --


def test_open_files_are_limited(small: Session) -> None:
    program = """
import errno, json, os
opened = 0
try:
    while opened < 100_000:
        os.open("/dev/null", os.O_RDONLY)
        opened += 1
except OSError as error:
    print(json.dumps([opened, errno.errorcode[error.errno]]))
"""
    opened, why = python(small, program)
    assert why == "EMFILE"
    assert 1000 <= opened < 1024


def test_a_limit_cannot_be_raised(small: Session) -> None:
    program = """
import json, resource
found = {}
for name in ("CORE", "NOFILE", "FSIZE", "MEMLOCK", "MSGQUEUE", "SIGPENDING", "RTPRIO"):
    which = getattr(resource, "RLIMIT_" + name, None)
    which = {"SIGPENDING": 11, "MSGQUEUE": 12, "RTPRIO": 14}.get(name, which)
    soft, hard = resource.getrlimit(which)
    try:
        resource.setrlimit(which, (hard + 1, hard + 1))
        found[name] = "raised"
    except (ValueError, OSError):
        found[name] = soft == hard
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
found["lowered"] = resource.getrlimit(resource.RLIMIT_NOFILE)[1] == 64
print(json.dumps(found))
"""
    found = python(small, program)
    assert found == dict.fromkeys(found, True)


def test_a_crash_leaves_no_core_file(small: Session) -> None:
    result = small.exec("ulimit -c; ulimit -S -c 100 2>/dev/null; kill -SEGV $$", cwd="work")
    assert (result.signal, result.stdout) == (11, "0\n")
    assert small.exec("ls -A", cwd="work").stdout == "inputs\n"


# -- process 1 --

AT_PROCESS_1 = """
import ctypes, errno, json, os, sys
target = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]

def write(path, data):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)

def ptrace():
    if libc.ptrace(16, target, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")

print(json.dumps({
    "environ": attempt(lambda: open(f"/proc/{target}/environ", "rb").read()),
    "maps": attempt(lambda: open(f"/proc/{target}/maps", "rb").read()),
    "mem": attempt(lambda: os.open(f"/proc/{target}/mem", os.O_RDWR)),
    "fd": attempt(lambda: os.listdir(f"/proc/{target}/fd")),
    "stdout": attempt(lambda: os.open(f"/proc/{target}/fd/1", os.O_WRONLY)),
    "root": attempt(lambda: os.readlink(f"/proc/{target}/root")),
    "oom_score_adj": attempt(lambda: write(f"/proc/{target}/oom_score_adj", b"1000")),
}))
"""
SIGNALS = """
import os, signal, sys
for number in sorted(signal.valid_signals()):
    if number not in (32, 33):
        try:
            os.kill(int(sys.argv[1]), number)
        except OSError:
            pass
print(1)
"""


def test_process_1_cannot_be_signalled_away(session: Session) -> None:
    """Every signal, three times; the same loop ends a process of the script's own."""
    session.exec("echo kept > work/file")
    for _ in range(3):
        assert python(session, SIGNALS, "1") == 1
    assert session.exec("cat work/file; cut -d' ' -f3 /proc/1/stat").stdout in ("kept\nS\n", "kept\nR\n")
    own = session.exec(["bash", "-c", 'sleep 600 & python3 -c "$0" $!; wait $!; echo $?', SIGNALS])
    assert own.stdout.startswith("1\n")
    assert int(own.stdout.split()[1]) > 128


def test_process_1_cannot_be_read_written_or_traced(session: Session) -> None:
    refused = {"EACCES", "EPERM"}
    assert set(python(session, AT_PROCESS_1, "1").values()) <= refused
    # The same looks at a process of the script's own are allowed.
    own = session.exec(["bash", "-c", 'sleep 600 & python3 -c "$0" $!', AT_PROCESS_1])
    assert set(json.loads(own.stdout).values()) == {"done"}


def test_process_1_cannot_be_slowed_down(session: Session) -> None:
    program = """
import errno, json, os, resource
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
print(json.dumps([
    attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19)),
    attempt(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))),
    attempt(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (4, 4))),
    attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, 1)),
    attempt(lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))),
    attempt(lambda: resource.prlimit(0, resource.RLIMIT_NOFILE, (64, 64))),
]))
"""
    assert python(session, program) == ["EPERM", "EPERM", "EPERM", "done", "done", "done"]


def test_a_script_is_killed_for_memory_before_process_1(session: Session) -> None:
    # Process 1 takes a script's place while it starts one: no child can begin with a better one.
    line = "sleep 0.3; cat /proc/1/oom_score_adj /proc/self/oom_score_adj; (cat /proc/self/oom_score_adj)"
    first, own, child = map(int, session.exec(line).stdout.split())
    assert (own, child) == (1000, 1000)
    assert first < 1000
    # Nor can it get below process 1.
    lowered = session.exec(f"echo {first - 1} > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj")
    assert int(lowered.stdout) >= first
