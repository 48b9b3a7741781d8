"""No payload of the battery gets anywhere, on any runtime. What each row is about stands in its payload."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from battery import CHECKS, ORDER, PAYLOADS, PROGRAMS, Host, host, run

from executor import BadPathError, Executor, Limits, SandboxStartError, Session
from executor.places import data_dir
from executor.runtimes import local
from executor.runtimes.owner import FIRST_UID, LAST_UID
from executor.settings import load
from executor.workspace.text import printable

# These need more than to be run: a second run, a second session, or the host's eyes. See below.
BY_HAND = {"c01_tree.py", "c02_swap.py", "o04_hold.py", "t01_census.py", "t01_escape.py", "u03_inotify.py"}
# These only look and try, and leave a session as it was: they have one in common.
CALM = {
    "d03_census.py",
    "k01_syscalls.py",
    "k02_foreign.py",
    "k03_identity.py",
    "k04_procfs.py",
    "k05_traces.py",
    "n01_inet.py",
    "n02_families.py",
    "n03_unix.py",
    "o05_forge.py",
    "t04_init.py",
    "t04_traps.sh",
    "u01_limits.py",
    "u02_core.py",
}
# What a row needs besides ORDER.
ORDERS = {
    "r09_cpu.py": ORDER.model_copy(update={"cpus": 0.5}),
    # Ordinary work, under the limits that everybody has.
    "s01_bash.sh": Limits(),
    "s01_node.js": Limits(),
    "s01_python.py": Limits(),
}
# What the local runtime cannot give an ordinary user on every machine; each result warns of it.
ORDINARY = {
    "r06_hogs.py": {"hogs-bounded"},  # without a cgroup memory is limited for each process
    "r10_kernel.py": {"socket-buffers"},  # and what waits at sockets not at all
    "r09_cpu.py": {"cpu"},  # and processor time is not limited
}
# Before Linux 6.9 a sandbox cannot limit System V memory by itself: the memory limit holds it.
OLD_KERNEL = {"r05_shared.py": {"system-v"}, "r10_kernel.py": {"messages", "semaphores"}}
# Version 2 of cgroups counts what waits at sockets; with version 1 only the local runtime gets it counted.
VERSION_1 = {"r10_kernel.py": {"socket-buffers"}}
# This machine's own programs, which are shown where our image was not built: set-id, and without effect.
OWN_PROGRAMS = {"d03_census.py": {"set-id-files"}}


@pytest.fixture(scope="module")
def there() -> Iterator[Host]:
    """Listeners on this machine."""
    with host() as found:
        yield found


@pytest.fixture(scope="module")
def calm(executor: Executor) -> Iterator[Session]:
    """One session for all that leave it as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_ONLY", "hostonly-value")
        with executor.session(limits=ORDER) as opened:
            yield opened


def test_every_payload_has_its_checks() -> None:
    assert {path.name for path in PAYLOADS.iterdir() if path.suffix in PROGRAMS} == set(CHECKS)
    assert set(ORDERS) | BY_HAND | CALM <= set(CHECKS)
    assert sum(len(CHECKS[name]) for name in ("s01_bash.sh", "s01_node.js", "s01_python.py")) >= 30


@pytest.mark.parametrize("payload", sorted(set(CHECKS) - BY_HAND))
def test_payload(
    executor: Executor, calm: Session, there: Host, payload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_ONLY", "hostonly-value")
    order = ORDERS.get(payload, ORDER)
    with contextlib.ExitStack() as stack:
        session = calm if payload in CALM else stack.enter_context(executor.session(limits=order))
        said = run(session, payload, there.environment(order))
        assert set(said.verdicts) == set(CHECKS[payload]), said.rest
        assert set(said.bad) <= excused(session, payload), said.bad
        # Whatever it did, the session is there for the next one.
        assert session.exec("echo alive").stdout == "alive\n"


def excused(session: Session, payload: str) -> set[str]:
    """Checks of the payload that may be BAD here."""
    found: set[str] = set()
    if session.runtime == "container" and not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        found |= VERSION_1.get(payload, set())
    if session.runtime == "local" and os.geteuid() != 0:
        found |= ORDINARY.get(payload, set())
    kernel = tuple(map(int, os.uname().release.replace("-", ".").split(".")[:2]))
    if session.runtime == "local" and kernel < (6, 9):
        found |= OLD_KERNEL.get(payload, set())
    if session.runtime == "local" and not (data_dir() / "rootfs" / "base").exists():
        found |= OWN_PROGRAMS.get(payload, set())
    return found


def test_what_an_ordinary_user_cannot_have_is_said_or_refused(executor: Executor, runtime: str) -> None:
    with executor.session() as session:
        said = " ".join(session.exec("true").warnings)
    if runtime == "container" or os.geteuid() == 0:
        assert "cgroup" not in said and "uid" not in said
        return
    assert "shares this user's uid" in said
    if "no cgroups" in said:
        with (
            Executor(settings=load({"runtime": "local", "require_limits": True})) as strict,
            pytest.raises(SandboxStartError) as caught,
        ):
            strict.session().exec("true")
        assert "memory is limited for each process" in caught.value.message


@pytest.mark.parametrize("runtime", ["local"], indirect=True)
def test_where_file_systems_cannot_be_prepared_bubblewrap_makes_them_and_it_is_said(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PREPARE_PATH", "/nowhere")
    with Executor(runtime="local") as unprepared, unprepared.session(limits=ORDER) as session:
        result = session.exec(
            "df --output=size /workspace /tmp | tail -2 | tr -d ' '; readlink /proc/self/ns/ipc"
        )
        assert result.stdout.split()[:2] == [str(ORDER.disk >> 10), str(ORDER.tmp >> 10)]
        assert result.stdout.split()[2] != os.readlink("/proc/self/ns/ipc")
        assert local.NO_INODES in result.warnings
    with executor.session(limits=ORDER) as session:
        assert local.NO_INODES not in session.exec("true").warnings


def test_scripts_run_as_a_uid_of_their_own_on_the_host(executor: Executor, runtime: str) -> None:
    uids = []
    with executor.session(limits=ORDER) as one, executor.session(limits=ORDER) as other:
        for session in (one, other):
            mark = secrets.token_hex(8)
            run = session.start(["bash", "-c", f"echo up; read x; : {mark}"])
            while not run.read(timeout=20).stdout:
                assert run.running
            uids.append(_uid_of(mark))
            run.kill()
    if None in uids:
        assert runtime == "container"
        pytest.skip("the engine is on another machine")
    if runtime == "local" and os.geteuid() != 0:
        assert set(uids) == {os.geteuid()}
    else:
        assert len(set(uids)) == 2 and all(uid in range(FIRST_UID, LAST_UID + 1) for uid in uids)


def _uid_of(mark: str) -> int | None:
    """The uid outside of the process that has this word in its arguments."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                return folder.stat().st_uid
        except OSError:
            pass  # gone
    return None


def test_nothing_outlives_its_run(executor: Executor, there: Host) -> None:
    with executor.session(limits=ORDER) as session:
        said = run(session, "t01_escape.py", there.environment())
        assert said.verdicts == {"escaped": "OK"}, said.rest
        said = run(session, "t01_census.py", there.environment())
        assert said.verdicts == {"survivors": "OK"}, said.details


def test_a_grandchild_that_holds_the_pipes_delays_nothing(executor: Executor, there: Host) -> None:
    with executor.session(limits=ORDER) as session:
        began = time.monotonic()
        said = run(session, "o04_hold.py", there.environment())
        assert said.verdicts == {"leader-done": "OK"}
        assert time.monotonic() - began < 5


def test_one_session_cannot_take_the_watchers_of_another(
    executor: Executor, there: Host, runtime: str
) -> None:
    if runtime == "local" and os.geteuid() != 0:
        pytest.skip(
            "an ordinary user's sandboxes share its uid; every result warns of it (test_ordinary_user)"
        )
    with executor.session(limits=ORDER) as one, executor.session(limits=ORDER) as other:
        one.put("work/u03_inotify.py", PAYLOADS / "u03_inotify.py")
        greedy = one.start(["python3", "work/u03_inotify.py", "take"])
        said = ""
        while "\n" not in said:
            taken = greedy.read(timeout=20)
            assert taken.status == "running", taken
            said += taken.stdout
        assert said.startswith("CHECK took-all OK")
        assert run(other, "u03_inotify.py", there.environment()).verdicts == {"one-watcher": "OK"}
        greedy.kill()


@pytest.mark.parametrize(
    ("command", "status", "code", "number"),
    [
        ("exit 0", "ok", 0, None),
        ("exit 1", "error", 1, None),
        ("exit 255", "error", 255, None),
        ("exit 256", "ok", 0, None),
        ("exit -1", "error", 255, None),
        ("exit 137", "error", 137, None),
        ("exit 124", "error", 124, None),
        ("kill -9 $$", "error", 137, 9),
        ("kill -SEGV $$", "error", 139, 11),
        ("kill -TERM $$", "error", 143, 15),
        ("kill -34 $$", "error", 162, 34),
        ("kill -PIPE $$", "error", 141, 13),
        ("bash -c 'kill -9 $$'; exit $?", "error", 137, None),
        ("definitely-not-a-command", "error", 127, None),
        ("/etc/passwd", "error", 126, None),
    ],
)
def test_an_exit_is_not_taken_for_a_signal(
    shared: Session, command: str, status: str, code: int, number: int | None
) -> None:
    result = shared.exec(command)
    assert (result.status, result.exit_code, result.signal) == (status, code, number)


def test_output_that_drives_terminals_is_harmless_when_shown(shared: Session) -> None:
    hostile = b"\x1b]52;c;Zm9v\x07\x1b[2J\x00\x9b31m\xe2\x80\xaemoc.elpmaxe\rforged\n\xff\xc3"
    script = f"import os; os.write(1, bytes.fromhex('{hostile.hex()}'))"
    result = shared.exec(["python3", "-c", script])
    assert result.stdout.encode().count(b"\x1b") == 2  # as it was: nothing is lost on the way
    shown = printable(result.stdout)
    assert not any(ord(character) < 32 and character not in "\n\t" for character in shown)
    assert not any(character in shown for character in "\x1b\x07\x9b\u202e\r\0")


def test_a_flood_costs_no_memory_on_the_host(executor: Executor) -> None:
    with executor.session(limits=ORDER) as session:
        before = _resident()
        result = session.exec("head -c 300m /dev/zero | tr '\\0' x; head -c 100m /dev/zero >&2", timeout=60)
        assert (result.status, result.stdout_bytes, result.stderr_bytes) == ("ok", 300 << 20, 100 << 20)
        assert len(result.stdout) <= 1 << 21
        assert {"stdout", "stderr"} <= set(result.limits_hit)
        assert _resident() - before < 64 << 20


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "cwd",
    [
        "/proc/self/fd/3",
        "/proc/self/fd/7/../..",
        "/proc/1/cwd",
        "/",
        "/etc",
        "..",
        "work/../../etc",
        "/dev/fd/3",
    ],
)
def test_a_run_starts_in_a_folder_of_the_session_or_not_at_all(shared: Session, cwd: str) -> None:
    with pytest.raises(BadPathError):
        shared.exec("pwd", cwd=cwd)


def test_a_link_does_not_lead_the_cwd_out(shared: Session) -> None:
    shared.exec("ln -sfn /proc/self/fd work/away; ln -sfn / work/top")
    for cwd in ("work/away", "work/top/etc"):
        with pytest.raises(BadPathError):
            shared.exec("pwd", cwd=cwd)


def test_only_regular_bytes_are_collected(executor: Executor, there: Host, tmp_path: Path) -> None:
    with executor.session(limits=ORDER) as session:
        assert run(session, "c01_tree.py", there.environment()).verdicts == {"made": "OK"}
        began = time.monotonic()
        found = session.collect("out/**")
        assert time.monotonic() - began < 20
        for file in found:
            name = os.path.basename(file.path)
            assert not name.startswith("link-") and name not in ("loop", "fifo", "socket"), file.path
            content = file.read()
            assert content in (b"content", b"", bytes(32 << 20)), file.path
            saved = file.save(tmp_path)
            assert saved.is_relative_to(tmp_path) and saved.is_file() and not saved.is_symlink()
            assert saved.stat().st_mode & 0o7777 == 0o644
            assert saved.read_bytes() == content
        names = {os.fsencode(os.path.basename(file.path)) for file in found}
        assert {
            b"plain.txt",
            b"hard-link.txt",
            b"-rf",
            b"new\nline",
            b"\xff\xfe",
            b"sparse",
            b"setuid",
        } <= names
        session.remove("out")
        assert session.exec("ls -A out").stdout == ""


def test_swapped_files_and_folders_never_leak_what_they_point_at(executor: Executor) -> None:
    with executor.session(limits=ORDER) as session:
        session.put("work/c02_swap.py", PAYLOADS / "c02_swap.py")
        swapping = session.start(["python3", "work/c02_swap.py"])
        while not swapping.read(timeout=20).stdout:
            assert swapping.running
        seen = set()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            for file in session.collect("out/**"):
                if file.content is not None:
                    seen.add(file.content)
        swapping.kill()
        assert seen <= {"honest"}


def test_nothing_stays_for_the_next_session(executor: Executor) -> None:
    with executor.session(limits=ORDER) as session:
        places = "/tmp /workspace /skills /dev/shm /workspace/out"
        made = session.exec(f"for d in {places}; do echo x > $d/left-behind && echo $d; done")
        assert made.stdout.count("\n") == 5
    with executor.session(limits=ORDER) as session:
        found = session.exec("find / -name 'left-behind' -not -path '/proc/*' 2>/dev/null")
        assert found.stdout == ""
