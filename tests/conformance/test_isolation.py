"""What a sandbox keeps apart: sessions from each other, the host from all of them."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
from probes import alive, eventually, processes, python, until

from executor import Executor, Session

# -- two sessions at once --


@pytest.fixture
def session(shared: Session) -> Session:
    """One for all: every test here ends what it starts."""
    return shared


@pytest.fixture(scope="module")
def other(executor: Executor) -> Iterator[Session]:
    """A second session beside it."""
    with executor.session() as opened:
        yield opened


@pytest.mark.parametrize(
    "folder", ["/workspace", "/workspace/out", "/skills", "/tmp", "/tmp/home", "/dev/shm"]
)
def test_a_file_is_seen_in_its_own_session_only(session: Session, other: Session, folder: str) -> None:
    """trpc-63"""
    session.exec(f"echo mine > {folder}/mark")
    assert session.exec(f"cat {folder}/mark").stdout == "mine\n"
    assert other.exec(f"test -e {folder}/mark").exit_code == 1


def test_a_process_is_seen_and_can_be_killed_in_its_own_session_only(
    session: Session, other: Session
) -> None:
    run = session.start("exec sleep 4321")
    assert len(alive(session, "sleep 4321")) == 1
    assert processes(other) == []
    other.exec("kill -9 -1")
    other.exec("for pid in $(seq 2 200); do kill -9 $pid 2>/dev/null; done; true")
    assert run.running
    assert len(alive(session, "sleep 4321")) == 1
    session.exec("kill -9 $(ps -e -o pid=,args= | awk '/[s]leep 4321/ {print $1}')")
    assert run.wait(30).signal == 9


def test_an_abstract_socket_is_reached_in_its_own_session_only(session: Session, other: Session) -> None:
    serve = """
import socket
server = socket.socket(socket.AF_UNIX)
server.bind("\\0mark")
server.listen()
print("up", flush=True)
while True:
    server.accept()[0].close()
"""
    ask = """
import errno, json, socket
number = socket.socket(socket.AF_UNIX).connect_ex("\\0mark")
print(json.dumps(errno.errorcode.get(number, "connected")))
"""
    server = session.start(["python3", "-c", serve])
    until(server, "up\n")
    assert python(session, ask) == "connected"
    assert python(other, ask) == "ECONNREFUSED"
    server.kill()


@pytest.mark.parametrize(("family", "address"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")])
def test_a_loopback_port_is_reached_in_its_own_session_only(
    session: Session, other: Session, family: str, address: str
) -> None:
    serve = f"""
import socket
server = socket.socket(socket.{family})
server.bind(("{address}", 8123))
server.listen()
print("up", flush=True)
while True:
    server.accept()[0].close()
"""
    ask = f"""
import errno, json, socket
number = socket.socket(socket.{family}).connect_ex(("{address}", 8123))
print(json.dumps(errno.errorcode.get(number, "connected")))
"""
    server = session.start(["python3", "-c", serve])
    until(server, "up\n")
    assert python(session, ask) == "connected"
    assert python(other, ask) == "ECONNREFUSED"
    server.kill()


def test_system_v_shared_memory_is_seen_in_its_own_session_only(session: Session, other: Session) -> None:
    find = """
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
found = libc.shmget(4321, 4096, {flags})
print(json.dumps("found" if found >= 0 else errno.errorcode[ctypes.get_errno()]))
"""
    assert python(session, find.format(flags=0o1600)) == "found"
    assert python(session, find.format(flags=0)) == "found"
    assert python(other, find.format(flags=0)) == "ENOENT"


def test_one_session_cannot_use_up_what_the_kernel_counts_for_a_user(
    session: Session, other: Session
) -> None:
    hold = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
while libc.inotify_init() >= 0:
    pass
print("up", flush=True)
time.sleep(600)
"""
    try_one = "import ctypes, json; print(json.dumps(ctypes.CDLL(None).inotify_init() >= 0))"
    holder = session.start(["python3", "-c", hold])
    until(holder, "up\n")
    shared_uid = any("shares this user's uid" in warning for warning in other.warnings)
    assert python(other, try_one) is not shared_uid
    holder.kill()


# -- no network --


def test_there_is_only_loopback_and_no_route(shared: Session) -> None:
    assert shared.exec("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").stdout == "lo\n"
    assert shared.exec("tail -n +2 /proc/net/route").stdout == ""


@pytest.mark.parametrize(
    ("family", "kind", "address"),
    [
        ("AF_INET", "SOCK_STREAM", ("203.0.113.1", 80)),
        ("AF_INET", "SOCK_STREAM", ("169.254.169.254", 80)),
        ("AF_INET", "SOCK_STREAM", ("10.0.0.1", 22)),
        ("AF_INET", "SOCK_DGRAM", ("203.0.113.1", 53)),
        ("AF_INET", "SOCK_DGRAM", ("224.0.0.251", 5353)),
        ("AF_INET6", "SOCK_STREAM", ("2001:db8::1", 80)),
        ("AF_INET6", "SOCK_DGRAM", ("2001:db8::1", 53)),
    ],
    ids=str,
)
def test_no_address_outside_can_be_reached_and_the_refusal_is_fast(
    shared: Session, family: str, kind: str, address: tuple[str, int]
) -> None:
    """trpc-63"""
    program = f"""
import errno, json, socket
def reach(family, kind, address):
    with socket.socket(family, kind) as made:
        made.settimeout(20)
        return errno.errorcode.get(made.connect_ex(address), "reached")
mine = "::1" if "{family}" == "AF_INET6" else "127.0.0.1"
with socket.socket(socket.{family}, socket.{kind}) as server:
    server.bind((mine, 0))
    if "{kind}" == "SOCK_STREAM":
        server.listen()
    control = reach(socket.{family}, socket.{kind}, server.getsockname()[:2])
print(json.dumps([control, reach(socket.{family}, socket.{kind}, {address!r})]))
"""
    control, outside = python(shared, program, timeout=15)
    assert control == "reached"
    assert outside in ("ENETUNREACH", "EADDRNOTAVAIL", "EACCES")


def test_no_name_is_found_besides_localhost_and_the_refusal_is_fast(shared: Session) -> None:
    program = """
import json, socket
def find(name):
    try:
        return sorted({found[4][0] for found in socket.getaddrinfo(name, 80)})
    except OSError as error:
        return type(error).__name__
print(json.dumps([find("localhost"), find("example.com"), find("host.docker.internal")]))
"""
    localhost, outside, host = python(shared, program, timeout=15)
    assert set(localhost) <= {"127.0.0.1", "::1"} and localhost
    assert (outside, host) == ("gaierror", "gaierror")


@pytest.mark.parametrize(
    "made",
    ["40, 1", "17, 3", "38, 5", "2, 3, 1", "16, 3, 16", "16, 3, 9", "31, 3"],
    ids=["vsock", "packet", "crypto", "raw", "generic netlink", "audit", "bluetooth"],
)
def test_a_way_to_the_host_or_the_kernel_is_refused(shared: Session, made: str) -> None:
    """trpc-1.13.2"""
    program = """
import errno, json, socket
def make(*words):
    try:
        socket.socket(*words).close()
        return "made"
    except OSError as error:
        return errno.errorcode[error.errno]
print(json.dumps([make({words}), make(2, 1), make(10, 1), make(1, 1)]))
"""
    refused, *controls = python(shared, program.replace("{words}", made))
    assert controls == ["made", "made", "made"]
    assert refused in ("EPERM", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT")


def test_what_listens_on_the_host_cannot_be_reached(shared: Session) -> None:
    name = "\0" + secrets.token_hex(8)
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        port = tcp.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(name)
        program = f"""
import errno, json, socket
print(json.dumps([
    errno.errorcode.get(socket.socket(socket.AF_INET).connect_ex(("127.0.0.1", {port})), "reached"),
    errno.errorcode.get(socket.socket(socket.AF_UNIX).connect_ex({name!r}), "reached"),
]))
"""
        assert python(shared, program) == ["ECONNREFUSED", "ECONNREFUSED"]


# -- the host's files and environment --


def test_the_hosts_files_are_not_there(shared: Session) -> None:
    """trpc-1.13.1, trpc-63"""
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="host-", suffix=".mark") as mark:
        assert Path(mark.name).exists()
        assert shared.exec(["test", "-e", mark.name]).exit_code == 1
        mine = shared.exec(f"touch {mark.name} && ls /tmp/*.mark && rm {mark.name}")
        assert mine.stdout == f"{mark.name}\n"
    missing = ["/var/run/docker.sock", "/run/docker.sock", "/dev/kvm", "/dev/mem", "/dev/vsock", "/dev/sda"]
    missing += [str(Path(__file__).resolve()), str(Path.cwd())]
    for path in missing:
        assert shared.exec(["test", "-e", path]).exit_code == 1, path
    assert shared.exec(["test", "-e", "/dev/null"]).exit_code == 0


@pytest.mark.parametrize("folder", ["/root", "/home", "/mnt", "/media", "/srv", "/opt", "/boot"])
def test_the_hosts_folders_are_missing_empty_or_closed(shared: Session, folder: str) -> None:
    # Layers of dependencies are mounted where this machine has any, and not to be listed.
    found = shared.exec(f"ls -A {folder} | grep -vx layers; ls -A {folder}/layers")
    assert found.stdout == ""
    assert shared.exec("ls /usr").stdout != ""


def test_secrets_of_a_system_cannot_be_read(shared: Session) -> None:
    for path in ("/etc/shadow", "/etc/gshadow", "/proc/1/environ", "/proc/kcore", "/proc/kmsg"):
        assert shared.exec(["cat", path]).exit_code == 1, path
    assert shared.exec(["cat", "/etc/hosts"]).exit_code == 0


def test_the_hosts_environment_is_in_none_of_the_sandboxs_processes(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at from the host, which may read what a script may not."""
    words, secret = unique_sleep(), secrets.token_hex(16)
    monkeypatch.setenv("HOST_SECRET", secret)
    with Executor(runtime=runtime) as made, made.session() as session:
        session.start(["sleep", words], env={"GIVEN": "given-" + secret[::-1]})
        assert eventually(lambda: host_processes(words))
        texts = [text for pid in companions(words) for text in read_environment(pid)]
    assert [text for text in texts if secret[::-1] in text]  # the script's own is seen
    assert not [text for text in texts if secret in text]


# -- what can be written, and as whom --


def test_exactly_the_documented_folders_can_be_written(shared: Session) -> None:
    program = """
import json, os
folders, files = [], []
for folder, below, names in os.walk("/"):
    if folder == "/":
        below[:] = [name for name in below if name not in ("proc", "sys")]
    probe = os.path.join(folder, ".probe")
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
        folders.append(folder)
        below.clear()
        continue
    except OSError:
        pass
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path) and os.access(path, os.W_OK):
            files.append(path)
print(json.dumps([sorted(folders), files]))
"""
    folders, files = python(shared, program, timeout=60)
    assert set(folders) - {"/dev/mqueue"} == {"/workspace", "/skills", "/tmp", "/dev/shm"}
    assert files == []


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/sem",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sysrq-trigger",
    ],
)
def test_no_setting_of_the_kernel_can_be_written(shared: Session, path: str) -> None:
    assert shared.exec(f"cat {path} > /dev/null; echo 1 > {path}").exit_code != 0
    assert shared.exec("echo 1 > /dev/null").exit_code == 0


@pytest.mark.parametrize(
    "path", ["/usr/bin/evil", "/etc/evil", "/evil", "/run/evil", "/var/tmp/evil", "/dev/evil"]
)
def test_the_system_is_read_only(shared: Session, path: str) -> None:
    result = shared.exec(f"echo x > {path}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert shared.exec(["test", "-e", path]).exit_code == 1


def test_a_script_has_no_rights_and_cannot_get_any(shared: Session) -> None:
    lines = shared.exec("grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid|Groups)' /proc/self/status").stdout
    fields = dict(re.split(r":\s*", line, maxsplit=1) for line in lines.splitlines())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert "0" not in fields["Uid"].split()
    assert "0" not in fields["Groups"].split()


def test_on_the_host_a_script_is_not_root_either(runtime: str) -> None:
    words = unique_sleep()
    with Executor(runtime=runtime) as made, made.session() as first, made.session() as second:
        first.start(["sleep", words])
        second.start(["sleep", words])
        found = eventually(lambda: len(host_processes(words)) == 2 and host_processes(words))
        uids = [Path(f"/proc/{pid}/status").read_text().partition("\nUid:\t")[2].split()[0] for pid in found]
    assert "0" not in uids
    shared_uid = any("shares this user's uid" in warning for warning in first.warnings)
    assert (uids[0] == uids[1]) is shared_uid


def test_a_setuid_program_gives_nothing(shared: Session) -> None:
    shared.exec("cp /usr/bin/id work/id && chmod 6755 work/id")
    assert shared.exec("test -u work/id && [ $(work/id -u) = $(id -u) ] && echo same").stdout == "same\n"
    program = """
import json
found = []
for line in open("/proc/self/mounts"):
    kind, options = line.split()[2:4]
    if "nosuid" not in options.split(","):
        found.append([line.split()[1], options.split(",")[0]])
print(json.dumps(found))
"""
    assert [mount for mount in python(shared, program) if mount[1] != "ro"] == []
    assert shared.exec("find / -xdev -perm /6000 -type f -not -path '/workspace/*' 2>/dev/null").stdout == ""


@pytest.mark.parametrize(
    "call",
    [
        "unshare(0x10000000)",
        "unshare(0x20000)",
        "unshare(0x40000000)",
        'mount(b"none", b"/tmp", b"tmpfs", 0, 0)',
        'umount2(b"/tmp", 2)',
        'chroot(b"/tmp")',
        "setuid(0)",
        'sethostname(b"x", 1)',
        "ptrace(0, 0, 0, 0)",
        'mknod(b"/tmp/device", 0o20666, 0x103)',
    ],
)
def test_a_privileged_call_is_refused(shared: Session, call: str) -> None:
    program = f"""
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
found = libc.{call}
print(json.dumps([found, errno.errorcode.get(ctypes.get_errno(), ""), libc.getppid() >= 0]))
"""
    found, why, control = python(shared, program)
    assert (found, control) == (-1, True)
    assert why in ("EPERM", "EINVAL", "ENOSYS", "EACCES")


# -- a host that dies --

VICTIM = """
import sys, time
from executor import Executor
runtime, session_id, words = sys.argv[1:]
with Executor(runtime=runtime) as executor, executor.session(session_id) as session:
    session.start(f"setsid -f sleep {words}; trap '' TERM; sleep {words}")
    print("up", flush=True)
    time.sleep(600)
"""


def unique_sleep() -> str:
    """A number of seconds that no other process sleeps."""
    return f"8{secrets.randbelow(10**9):09d}"


def host_processes(words: str) -> list[int]:
    """Processes of this machine that are `sleep WORDS`."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if line[:2] == [b"sleep", words.encode()]:
            found.append(int(name))
    return found


def namespaces(kind: str) -> dict[int, str]:
    """The namespace of each process of this machine."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(name)] = os.readlink(f"/proc/{name}/ns/{kind}")
        except OSError:
            continue
    return found


def companions(words: str) -> list[int]:
    """Every process that shares the file systems of a `sleep WORDS`: all of its sandbox."""
    table = namespaces("mnt")
    theirs = {table[pid] for pid in host_processes(words) if pid in table} - {table[os.getpid()]}
    return [pid for pid, namespace in table.items() if namespace in theirs]


def read_environment(pid: int) -> list[str]:
    """The environment of a process, [] when it is gone."""
    try:
        return [Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")]
    except OSError:
        return []


def children(parent: int) -> list[int]:
    """Living processes that this one started: bubblewrap, where that is what it starts."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, above = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(above) == parent and state != "Z":
            found.append(int(name))
    return found


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def containers(session_id: str) -> list[str]:
    """Ids of the containers with a session's label."""
    client = docker.from_env()
    try:
        label = f"executor.session={session_id}"
        return [found["Id"] for found in client.api.containers(all=True, filters={"label": label})]
    finally:
        client.close()


# What a session is on the host besides the processes in it: how many containers, how many processes of ours.
# bubblewrap's file systems live as long as a process that sees them, so there is no mount to look for.
TRACES: dict[str, tuple[Callable[[str], list[str]], int, int]] = {
    "local": (lambda _session_id: [], 0, 1),
    "container": (containers, 1, 0),
}


def mounts_with(texts: list[str]) -> list[str]:
    """Lines about mounts, as any process of this machine sees them, that hold one of `texts`."""
    found = set()
    for pid in {namespace: pid for pid, namespace in namespaces("mnt").items()}.values():
        try:
            lines = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines()
        except OSError:
            continue
        found.update(line for line in lines if any(text in line for text in texts))
    return sorted(found)


def test_a_host_process_that_is_killed_leaves_nothing(executor: Executor, runtime: str) -> None:
    """trpc-1.7.5, trpc-64"""
    traces, count, started = TRACES[runtime]
    words, session_id = unique_sleep(), "killed-" + secrets.token_hex(8)
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM, runtime, session_id, words], stdout=subprocess.PIPE, text=True
    ) as victim:
        try:
            assert victim.stdout
            assert victim.stdout.readline() == "up\n"
            assert eventually(lambda: len(host_processes(words)) == 2)
            sandbox = companions(words)
            mounted = {namespaces("mnt")[pid] for pid in sandbox}
            assert len(sandbox) >= 3  # process 1 too
            own = children(victim.pid)
            assert len(own) == started
            left = traces(session_id)
            assert len(left) == count
            assert bool(mounts_with(left)) is bool(left)
        finally:
            os.kill(victim.pid, signal.SIGKILL)

    def remains() -> list[object]:
        here = set(namespaces("mnt").values()) & mounted
        return [*host_processes(words), *traces(session_id), *here, *filter(running, own)]

    eventually(lambda: not remains(), seconds=2)
    assert remains() == []
    assert mounts_with(left) == []
