"""The battery: hostile payloads as data, the one way to run each, and the places where protection is off.

A payload is one file of `payloads/`, named after its row of the threat table, that runs inside a sandbox and
prints a line `CHECK name OK|BAD|INFO detail` for each thing it tried. `checks.txt` says which names each must
report, so that a payload that dies early fails. `PLAIN` has places with less protection: there the same
payload must report BAD, or it proves nothing (see test_controls). Everything is bounded by `ORDER`, in the
plain places too: no payload takes more than a few times what was ordered.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from executor import Limits, Session

PAYLOADS = Path(__file__).parent / "payloads"
CHECKS = {
    words[0]: words[1:]
    for line in Path(__file__).with_name("checks.txt").read_text().splitlines()
    if (words := line.split()) and not line.startswith("#")
}
PROGRAMS = {".py": "python3", ".sh": "bash", ".js": "node"}
# Small, so that a payload reaches every limit soon.
ORDER = Limits(memory="256m", cpus=1, pids=64, disk="64m", tmp="16m", shm="16m", inodes=4096, open_files=256)
PLAIN_USER = 54_321  # nobody's
_LINE = re.compile(r"CHECK (\S+) (OK|BAD|INFO)(?: (.*))?")


@dataclass(frozen=True)
class Report:
    """What a payload said."""

    verdicts: dict[str, str]
    details: dict[str, str]
    rest: str
    """Everything else: its end, and what it wrote besides."""

    @property
    def bad(self) -> dict[str, str]:
        """The checks that did not hold, with what was found."""
        return {name: self.details[name] for name, verdict in self.verdicts.items() if verdict == "BAD"}


def report(stdout: str, rest: str) -> Report:
    """Read the lines of a payload. A name may come once."""
    verdicts: dict[str, str] = {}
    details: dict[str, str] = {}
    for line in stdout.splitlines():
        if match := _LINE.fullmatch(line):
            assert match[1] not in verdicts, f"{match[1]} is reported twice"
            verdicts[match[1]], details[match[1]] = match[2], match[3] or ""
        else:
            rest += "\n" + line
    return Report(verdicts, details, rest)


@dataclass(frozen=True)
class Host:
    """What this machine has and no sandbox may see."""

    port: int
    """Of a listener on both loopback addresses."""
    abstract: str
    """Name of a listening abstract socket."""

    def environment(self, limits: Limits = ORDER) -> dict[str, str]:
        """What a payload has to know."""
        words = [str(Path(__file__).parent), "DOCKER_HOST", "HOST_ONLY", "hostonly-value", *PRIVATE_VARIABLES]
        return {
            "LIMIT_MEMORY_MIB": str(limits.memory >> 20),
            "LIMIT_CPUS": str(limits.cpus),
            "LIMIT_PIDS": str(limits.pids),
            "LIMIT_INODES": str(limits.inodes),
            "LIMIT_FILES": str(limits.open_files),
            "HOST_PORT": str(self.port),
            "HOST_ABSTRACT": self.abstract,
            "HOST_WORDS": "\n".join(words),
        }


PRIVATE_VARIABLES = ("SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "PYTEST_CURRENT_TEST", "VIRTUAL_ENV")


@contextlib.contextmanager
def host() -> Iterator[Host]:
    """Listen where a sandbox must not reach."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        listeners = [server]
        six = stack.enter_context(socket.socket(socket.AF_INET6))
        with contextlib.suppress(OSError):  # a machine without ::1
            six.bind(("::1", port))
            listeners.append(six)
        abstract = f"executor-test-{secrets.token_hex(8)}"
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind("\0" + abstract)
        listeners.append(unix)
        for listener in listeners:
            listener.listen(8)
            threading.Thread(target=_answer, args=(listener,), daemon=True).start()
        yield Host(port, abstract)


def _answer(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"x")


def run(session: Session, payload: str, env: dict[str, str], *arguments: str, timeout: float = 60) -> Report:
    """Run a payload in a session."""
    session.put(f"work/{payload}", PAYLOADS / payload)
    command = [PROGRAMS[Path(payload).suffix], f"/workspace/work/{payload}", *arguments]
    result = session.exec(command, env=env, timeout=timeout)
    return report(result.stdout, f"{result.status} {result.exit_code} {result.stderr} {result.warnings}")


# -- where protection is off --


def plain_bwrap(payload: str, env: dict[str, str], *, options: tuple[str, ...] = ()) -> Report:
    """Run a payload under bubblewrap as it comes: this machine's files, no policy."""
    as_user = ["setpriv", "--reuid", str(PLAIN_USER), "--regid", str(PLAIN_USER), "--clear-groups"]
    command = [*(as_user if os.geteuid() == 0 else []), "bwrap", "--unshare-pid", "--die-with-parent"]
    for path in map(Path, ("/usr", "/etc", "/sys", "/bin", "/sbin", "/lib", "/lib32", "/lib64")):
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            command += ["--ro-bind", str(path), str(path)]
    command += [
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--tmpfs",
        "/tmp",
        "--tmpfs",
        "/workspace",
        "--tmpfs",
        "/skills",
    ]
    command += ["--ro-bind-data", "0", "/tmp/payload", *options]
    program = shutil.which(PROGRAMS[Path(payload).suffix], path="/usr/bin:/bin")
    assert program is not None
    done = subprocess.run(
        [*command, "--", program, "/tmp/payload"],
        stdin=(PAYLOADS / payload).open("rb"),
        env={"PATH": "/usr/bin:/bin", "HOST_ONLY": "hostonly-value", **env},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    return report(done.stdout, f"{done.returncode} {done.stderr}")


def plain_docker(payload: str, env: dict[str, str], *, options: tuple[str, ...] = ()) -> Report:
    """Run a payload with `docker run` as it comes, but for the network and the user, on our image."""
    command = ["docker", "run", "--rm", "-i", "--network=none", "--init", f"--user={PLAIN_USER}"]
    for folder in ("/workspace", "/skills"):
        command.append(f"--tmpfs={folder}:exec,uid={PLAIN_USER},gid={PLAIN_USER}")
    for name, value in env.items():
        command += ["-e", f"{name}={value}"]
    program = PROGRAMS[Path(payload).suffix]
    name = f"executor-plain-{secrets.token_hex(6)}"
    command += ["--name", name, *options, "executor/base:latest"]
    try:
        done = subprocess.run(
            [*command, "sh", "-c", f"cat >/tmp/payload; exec {program} /tmp/payload"],
            stdin=(PAYLOADS / payload).open("rb"),
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, timeout=30)
        raise
    return report(done.stdout, f"{done.returncode} {done.stderr}")


PLAIN = {"bwrap": plain_bwrap, "docker": plain_docker}


def main() -> None:
    """`python battery.py bwrap|docker|local|container PAYLOAD…`: what payloads report there."""
    from executor import Executor

    where, *names = sys.argv[1:]
    with host() as found, tempfile.TemporaryDirectory() as skills:
        for name in names or sorted(CHECKS):
            env = found.environment()
            if where in PLAIN:
                said = PLAIN[where](name, env)
            else:
                with (
                    Executor(skills=[skills], runtime=where) as executor,
                    executor.session(limits=ORDER) as session,
                ):
                    said = run(session, name, env)
            print(name, *said.verdicts)
            for check, detail in said.bad.items():
                print(f"   {check} BAD {detail}")
            if name not in CHECKS or set(said.verdicts) != set(CHECKS[name]):
                print(said.rest)


if __name__ == "__main__":
    main()
