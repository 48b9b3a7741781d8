"""Where protection is off, each payload says so: a check that is never BAD proves nothing.

The plain places are bubblewrap and `docker run` as they come (see battery); a few need a host that shares its
network. Of each payload stand here the checks that have to fail there, of those that do so on any machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from battery import CHECKS, ORDER, PAYLOADS, PLAIN, Host, Report, host

REQUIRED = set(filter(None, os.environ.get("EXECUTOR_REQUIRE_RUNTIMES", "").split(",")))
NEEDS = {"bwrap": "local", "docker": "container"}
SLOW = {"cpus": 0.05}
DIES = "dies"
TELLING = "read:/proc/cmdline read:/proc/kallsyms read:/proc/interrupts read:/proc/swaps"
# (place, payload) → what must be BAD there; DIES: it must not come to its end.
FLIPS = {
    ("bwrap", "r01_forks.py"): "forks",
    ("docker", "r01_forks.py"): "forks",
    ("bwrap", "r02_threads.py"): "threads",
    ("docker", "r02_threads.py"): "threads",
    ("bwrap", "r03_memory.py"): "anonymous-memory",
    ("docker", "r03_memory.py"): "anonymous-memory",
    ("bwrap", "r04_tmpfs.py"): """
        fill:/workspace fill:/skills fill:/tmp fill:/dev/shm fill:/dev fill:/ fill-together""",
    ("bwrap", "r05_shared.py"): "memfd system-v message-queue",
    ("docker", "r05_shared.py"): "memfd system-v message-queue",
    ("bwrap", "r06_hogs.py"): "victim-first hogs-bounded",
    ("bwrap", "r07_pipes.py"): "pipes",
    ("bwrap", "r09_cpu.py"): "cpu",
    ("docker", "r09_cpu.py"): "cpu",
    ("bwrap", "r10_kernel.py"): "lists messages semaphores pool-aio huge-pages own-filter socket-buffers",
    ("docker", "r10_kernel.py"): "lists messages semaphores huge-pages own-filter",
    ("bwrap", "d01_inodes.py"): "inodes:/workspace inodes:/skills inodes:/tmp inodes:/dev/shm",
    ("bwrap", "d02_sparse.py"): """
        sparse-1t:/workspace sparse-8e:/workspace reserve:/workspace
        sparse-1t:/skills sparse-8e:/skills reserve:/skills
        sparse-1t:/tmp sparse-8e:/tmp reserve:/tmp
        sparse-1t:/dev/shm sparse-8e:/dev/shm reserve:/dev/shm""",
    ("bwrap", "d03_census.py"): "writable-paths set-id-files mounts shm-not-executable create:/dev",
    ("docker", "d03_census.py"): "writable-paths mounts create:/var/tmp",
    ("bwrap", "u01_limits.py"): "rlimit:CORE raise:CORE rlimit:FSIZE raise:FSIZE rlimit:MSGQUEUE",
    ("docker", "u01_limits.py"): "rlimit:CORE raise:CORE rlimit:FSIZE raise:FSIZE rlimit:MSGQUEUE",
    ("bwrap", "n01_inet.py"): "only-loopback host-loopback-4",
    ("docker", "n01_inet.py"): "loopback-6",
    ("bwrap", "n02_families.py"): "netlink:GENERIC netlink:KOBJECT_UEVENT netlink:SOCK_DIAG",
    ("docker", "n02_families.py"): "netlink:GENERIC netlink:KOBJECT_UEVENT netlink:SOCK_DIAG",
    ("bwrap", "n03_unix.py"): "host-abstract:SOCK_STREAM no-abstract-listed",
    ("bwrap", "k01_syscalls.py"): """
        unshare-user unshare-user-mount clone-user clone3-user keyctl add_key ptrace process_vm_readv
        process_vm_writev name_to_handle_at personality-no-random personality-read-exec prlimit-other
        setpriority-other setpriority-user sched-other ioprio-other ioctl-tiocsetd fcntl-setlease""",
    ("docker", "k01_syscalls.py"): """
        ptrace prlimit-other setpriority-other setpriority-user sched-other ioprio-other setgid-0
        ioctl-tiocsetd fcntl-setlease""",
    ("bwrap", "k02_foreign.py"): "i386-getpid i386-unshare",
    ("docker", "k02_foreign.py"): "i386-getpid",
    ("bwrap", "k03_identity.py"): "seccomp host-name",
    ("docker", "k03_identity.py"): "CapBnd no-new-privileges not-root host-name",
    (
        "bwrap",
        "k04_procfs.py",
    ): TELLING,
    (
        "docker",
        "k04_procfs.py",
    ): TELLING,
    ("bwrap", "k05_traces.py"): "init-environ variables",
    ("bwrap", "o05_forge.py"): """
        write:/proc/1/mem write:/proc/1/oom_score_adj read:/proc/1/mem read:/proc/1/environ read:/proc/1/maps
        link:/proc/1/exe list:/proc/1/fd""",
    ("docker", "o05_forge.py"): """
        write:/proc/1/fd/0 write:/proc/1/fd/1 write:/proc/1/fd/2 write:/proc/1/mem read:/proc/1/mem
        read:/proc/1/environ list:/proc/1/fd""",
    ("docker", "t04_init.py"): f"init:prlimit init:scheduler init:priority init:ioprio {DIES}",
}
# Payloads whose checks fail nowhere here, and why they are believed.
BELIEVED = {
    "s01_bash.sh": "ordinary work: it reports what does not work",
    "s01_node.js": "ordinary work: it reports what does not work",
    "s01_python.py": "ordinary work: it reports what does not work",
    "t03_zombies.py": "every process 1 collects orphans; test_ablation takes that away",
    "t04_traps.sh": "signals work everywhere; test_ablation makes process 1 ignore them",
    "c01_tree.py": "makes a tree: the host is what is tested",
    "c02_swap.py": "makes a tree: the host is what is tested",
    "o04_hold.py": "leaves a process: the host is what is tested",
    "t01_escape.py": "below",
    "t01_census.py": "below",
    "u03_inotify.py": "below",
    "u02_core.py": "below",
}


@pytest.fixture(scope="module")
def there() -> Iterator[Host]:
    """Listeners on this machine."""
    with host() as found:
        yield found


def _needs(place: str) -> None:
    program = shutil.which(place)
    works = program is not None
    if place == "docker" and works:
        asked = subprocess.run(["docker", "image", "inspect", "executor/base:latest"], capture_output=True)
        works = asked.returncode == 0
    if not works:
        assert NEEDS[place] not in REQUIRED, f"{place} has to work here"
        pytest.skip(f"{place} does not work here")


def test_every_payload_has_a_control() -> None:
    controlled = {payload for _, payload in FLIPS}
    assert controlled | set(BELIEVED) == set(CHECKS)
    assert not controlled & set(BELIEVED)
    for (_, payload), names in FLIPS.items():
        assert set(names.split()) - {DIES} <= set(CHECKS[payload])


@pytest.mark.parametrize(("place", "payload"), sorted(FLIPS))
def test_payload_fails_where_it_is_not_protected(there: Host, place: str, payload: str) -> None:
    _needs(place)
    order = ORDER.model_copy(update=SLOW) if payload == "r09_cpu.py" else ORDER
    said = PLAIN[place](payload, there.environment(order))
    wanted = set(FLIPS[place, payload].split())
    assert wanted - {DIES} <= set(said.bad), said
    assert (set(said.verdicts) < set(CHECKS[payload])) == (DIES in wanted), said.rest


def test_a_core_file_is_written_where_it_may_be(there: Host) -> None:
    _needs("bwrap")
    said = PLAIN["bwrap"]("u02_core.py", there.environment())
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    wanted = {"no-dump"} if pattern.startswith(("|", "/")) else {"no-dump", "no-core-file"}
    assert wanted <= set(said.bad) or "core_uses_pid" in pattern, said


def test_a_process_escapes_its_group_where_nobody_follows(there: Host) -> None:
    """Both payloads in one plain sandbox: what the first one leaves is there for the second."""
    _needs("bwrap")
    census = (PAYLOADS / "t01_census.py").read_text()
    code = (PAYLOADS / "t01_escape.py").read_text() + f"\nimport os\nos.setpgid(0, 0)\nexec({census!r})\n"
    command = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    command += ["--unshare-pid", "--die-with-parent", "--as-pid-1", "--", "/usr/bin/python3", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert "CHECK survivors BAD" in done.stdout, done


def test_one_user_can_take_the_watchers_of_another_process(there: Host) -> None:
    _needs("bwrap")
    as_user = ["setpriv", "--reuid=54322", "--regid=54322", "--clear-groups"] if os.geteuid() == 0 else []
    code = (PAYLOADS / "u03_inotify.py").read_text()
    program = [*as_user, "/usr/bin/python3", "-c", code]
    with subprocess.Popen([*program, "take"], stdout=subprocess.PIPE, text=True, cwd="/") as greedy:
        assert greedy.stdout is not None
        assert "took-all OK" in greedy.stdout.readline()
        done = subprocess.run(program, capture_output=True, text=True, cwd="/", timeout=20)
        greedy.kill()
    assert "CHECK one-watcher BAD" in done.stdout, done


def test_who_waits_for_the_end_of_the_pipes_waits_for_the_grandchild(there: Host) -> None:
    code = (PAYLOADS / "o04_hold.py").read_text().replace('"60"', '"2"')
    began = time.monotonic()
    done = subprocess.run(["python3", "-c", code], capture_output=True, text=True, timeout=30)
    assert "leader-done" in done.stdout
    assert time.monotonic() - began > 1.8


def test_what_a_payload_says_is_read_strictly() -> None:
    from battery import report

    said = report("CHECK a OK\nCHECK b BAD found it\nCHECK c MAYBE\nCHECK d\n", "")
    assert said == Report({"a": "OK", "b": "BAD"}, {"a": "", "b": "found it"}, "\nCHECK c MAYBE\nCHECK d")
    with pytest.raises(AssertionError, match="twice"):
        report("CHECK a OK\nCHECK a BAD\n", "")
