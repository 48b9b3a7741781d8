"""A Docker engine for development and tests, on machines that have `dockerd` but no engine running.

    python3 dev/engine.py run [--optional] -- make test     start it, run with DOCKER_HOST set, stop it
    python3 dev/engine.py start | status | stop [--force]   by hand; `start` keeps it until `stop`

An engine that already answers (DOCKER_HOST, else the default socket) is used as it is and never stopped.
Otherwise, as root, this starts a private containerd and dockerd: own socket, own folders, no bridge, no
firewall rules, no change to the host's network settings. The data folder stays between runs, so images are
loaded once.

Several commands may run at the same time: they share one engine. Each `run` leaves a note in `users/`; the
last one to go stops the engine. Notes of dead processes do not count. Everything that starts or stops happens
under one file lock. Only processes named in `engine.json`, by pid and start time, are ever ended.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

DEFAULT_SOCKET = "/var/run/docker.sock"
STATE_VARIABLE = "EXECUTOR_DEV_ENGINE_DIR"
DEFAULT_STATE = "/var/lib/executor/dev-engine"
START_TIMEOUT = 60.0  # a first start on a slow disk needs about 5 s
STOP_TIMEOUT = 25.0  # dockerd itself waits up to 15 s for its containers
SOCKET_PATH_MAX = 90  # the kernel takes 107 bytes; containerd's shims append to the folder's name
HELD = "held"  # the note that `start` leaves


class EngineError(Exception):
    """The engine cannot be had; the text says what to do."""


def say(text: str) -> None:
    print(f"engine: {text}", file=sys.stderr, flush=True)


# --- processes, named so that a recycled pid is never mistaken for ours ---


def start_time(pid: int) -> str | None:
    """The kernel's start time of a live process, None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def identity(pid: int) -> str:
    return f"{pid} {start_time(pid)}"


def alive(who: str) -> bool:
    pid, _, started = who.partition(" ")
    return pid.isdigit() and start_time(int(pid)) == started


def end(who: str, timeout: float) -> None:
    """TERM, then KILL, one process and nothing else."""
    pid = int(who.split()[0])
    for number, patience in ((signal.SIGTERM, timeout), (signal.SIGKILL, 5.0)):
        if not alive(who):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + patience
        while alive(who) and time.monotonic() < deadline:
            time.sleep(0.05)
        with contextlib.suppress(ChildProcessError):  # no zombie, should it be our own child
            os.waitpid(pid, os.WNOHANG)


# --- asking an engine ---


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def answers(host: str, timeout: float = 3.0) -> bool:
    """Whether an engine answers at a DOCKER_HOST address."""
    url = urllib.parse.urlsplit(host)
    connection: http.client.HTTPConnection
    if url.scheme == "unix":
        connection = UnixConnection(url.path, timeout)
    elif url.scheme in ("tcp", "http") and url.hostname and not os.environ.get("DOCKER_TLS_VERIFY"):
        connection = http.client.HTTPConnection(url.hostname, url.port or 2375, timeout=timeout)
    else:  # ssh and TLS need the client's own settings
        docker = shutil.which("docker")
        command = [docker or "docker", "--host", host, "version", "--format", "{{.Server.Version}}"]
        try:
            return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def existing() -> str | None:
    """The engine that the user already has."""
    host = os.environ.get("DOCKER_HOST") or f"unix://{DEFAULT_SOCKET}"
    if answers(host):
        return host
    if os.environ.get("DOCKER_HOST"):
        say(f"nothing answers at DOCKER_HOST={host}")
    return None


# --- the private engine ---


class PrivateEngine:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.users = state / "users"
        self.record = state / "engine.json"
        # Sockets and mounts live under /run, where they vanish with the machine, and where names are short.
        short = hashlib.sha256(str(state).encode()).hexdigest()[:8]
        run = Path("/run") if os.access("/run", os.W_OK) else Path(tempfile.gettempdir())
        self.run = run / f"executor-engine-{short}"
        self.socket = self.run / "docker.sock"
        self.containerd_socket = self.run / "containerd.sock"
        self.host = f"unix://{self.socket}"
        self.settings: dict[str, object] = {}  # for its daemon.json

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        self.state.mkdir(parents=True, exist_ok=True, mode=0o755)
        self.users.mkdir(exist_ok=True, mode=0o700)
        with open(self.state / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def processes(self) -> dict[str, str]:
        """What engine.json names, newest first: dockerd, then containerd."""
        try:
            named = json.loads(self.record.read_text())["processes"]
        except (OSError, ValueError, KeyError):
            return {}
        return {str(name): str(who) for name, who in named.items()}

    def running(self) -> bool:
        """Whether it answers; one that was started a moment ago, or is busy, is given time."""
        dockerd = self.processes().get("dockerd", "")
        deadline = time.monotonic() + 30.0
        while alive(dockerd) and time.monotonic() < deadline:
            if answers(self.host, timeout=10.0):
                return True
            time.sleep(0.2)
        return False

    def live_users(self) -> list[str]:
        """Notes that count; those of dead processes are removed."""
        live = []
        for note in sorted(self.users.iterdir()):
            if note.name == HELD or alive(note.read_text()):
                live.append(note.name)
            else:
                note.unlink(missing_ok=True)
        return live

    # -- used under the lock

    def start(self) -> None:
        if self.running():
            return
        self._stop_processes()  # what a crash left
        started = time.monotonic()
        self.run.mkdir(mode=0o711, parents=True, exist_ok=True)
        for name in ("containerd", "docker"):
            (self.state / name).mkdir(mode=0o711, parents=True, exist_ok=True)
        config = self.run / "containerd.toml"
        config.write_text(
            'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'root = "{self.state / "containerd"}"\nstate = "{self.run / "containerd"}"\n'
            f'[grpc]\n  address = "{self.containerd_socket}"\n'
        )
        processes: dict[str, str] = {}
        try:
            self._spawn(processes, "containerd", ["containerd", "--config", str(config)])
            self._wait(processes["containerd"], "containerd", self.containerd_socket.exists)
            self.start_dockerd(processes)
        except BaseException:
            self._stop_processes()
            raise
        say(f"started a private one in {time.monotonic() - started:.1f} s at {self.host}")

    def start_dockerd(self, processes: dict[str, str]) -> None:
        """A dockerd beside the containerd in `processes`."""
        # The machine's own /etc/docker/daemon.json is not for this engine.
        settings = self.run / "daemon.json"
        settings.write_text(json.dumps(self.settings) + "\n")
        command = [
            "dockerd",
            f"--config-file={settings}",
            f"--containerd={self.containerd_socket}",
            f"--data-root={self.state / 'docker'}",
            f"--exec-root={self.run / 'docker'}",
            f"--pidfile={self.run / 'docker.pid'}",
            f"--host={self.host}",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--ip-masq=false",
            "--userland-proxy=false",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            "--shutdown-timeout=5",
        ]
        self._spawn(processes, "dockerd", command)
        self._wait(processes["dockerd"], "dockerd", lambda: answers(self.host))

    def stop(self) -> None:
        if self.processes():
            self._stop_processes()
            say("stopped")

    def check(self) -> None:
        """Raises when one could not be started here, before anything is touched."""
        missing = [
            name for name in ("dockerd", "containerd", "runc") if shutil.which(name, path=_path()) is None
        ]
        if missing:
            raise EngineError(
                f"no engine answers and {', '.join(missing)} is not installed.\n"
                "  Install one (Debian: apt-get install docker.io), or set DOCKER_HOST to an engine."
            )
        if os.geteuid() != 0:
            raise EngineError(
                "no engine answers and only root can start a private one.\n"
                "  Start Docker (systemctl start docker) and join its group, set DOCKER_HOST, or run as root."
            )
        if len(str(self.socket)) > SOCKET_PATH_MAX:
            raise EngineError(
                f"the socket's path is too long: {self.socket}\n  Set {STATE_VARIABLE} to a short one."
            )

    # -- inside

    def _spawn(self, processes: dict[str, str], name: str, command: list[str]) -> None:
        with open(self.state / f"{name}.log", "wb") as log:
            # A session of its own: Ctrl-C in the terminal must reach the command first and the engine last.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                close_fds=True,
                env={**os.environ, "PATH": _path()},
            )
        processes[name] = identity(process.pid)
        fresh = self.record.with_suffix(".new")
        fresh.write_text(json.dumps({"host": self.host, "processes": dict(reversed(processes.items()))}))
        fresh.replace(self.record)

    def _wait(self, who: str, name: str, ready: object) -> None:
        assert callable(ready)
        deadline = time.monotonic() + START_TIMEOUT
        while not ready():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(who.split()[0]), os.WNOHANG)
            if not alive(who) or time.monotonic() > deadline:
                log = self.state / f"{name}.log"
                tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-15:])
                why = "did not answer in time" if alive(who) else "ended"
                raise EngineError(f"{name} {why}. The end of {log}:\n  {tail}")
            time.sleep(0.05)

    def _stop_processes(self) -> None:
        for who in self.processes().values():
            end(who, STOP_TIMEOUT)
        self._end_containers()
        self.record.unlink(missing_ok=True)
        self._unmount()
        shutil.rmtree(self.run, ignore_errors=True)

    def _end_containers(self) -> None:
        """Containers of a dockerd that could not stop them itself. A shim carries our socket's name."""
        for shim in _pids():
            arguments = _read(f"/proc/{shim}/cmdline").split(b"\0")
            if b"shim" in os.path.basename(arguments[0]) and os.fsencode(self.containerd_socket) in arguments:
                who = identity(shim)
                for pid in _pids():
                    if _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1:2] == [b"%d" % shim]:
                        end(identity(pid), 0.0)
                end(who, 2.0)

    def _unmount(self) -> None:
        """Mounts that a killed engine left below its own folders, deepest first."""
        mounts = []
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            target = line.split()[4].encode().decode("unicode_escape")
            if target.startswith((f"{self.run}/", f"{self.state}/")):
                mounts.append(target)
        for target in sorted(mounts, key=len, reverse=True):
            subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str) -> bytes:
    """A file of /proc, empty when its process is gone."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"


# --- commands ---


def command_start(engine: PrivateEngine) -> int:
    host = existing()
    if host is None:
        engine.check()
        with engine.locked():
            engine.start()
            (engine.users / HELD).write_text("")
        host = engine.host
    else:
        say(f"using the one that answers at {host}")
    print(f"export DOCKER_HOST={host}")
    return 0


def command_status(engine: PrivateEngine) -> int:
    host = existing()
    if host:
        print(f"an engine answers at {host}")
        return 0
    with contextlib.suppress(PermissionError), engine.locked():
        if engine.running():
            print(f"private engine at {engine.host}, used by: {', '.join(engine.live_users()) or 'nobody'}")
            return 0
    print("no engine")
    return 1


def command_stop(engine: PrivateEngine, *, force: bool) -> int:
    with engine.locked():
        (engine.users / HELD).unlink(missing_ok=True)
        users = engine.live_users()
        if users and not force:
            say(f"still used by {', '.join(users)}; it stops after the last of them (or now with --force)")
            return 0
        engine.stop()
    return 0


def command_run(engine: PrivateEngine, command: list[str], *, optional: bool) -> int:
    environment = dict(os.environ)
    host = existing()
    note: Path | None = None
    wanted: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: object) -> None:
        wanted.append(number)
        # Ctrl-C reaches the child from the terminal by itself: same process group.
        if child is not None and number != signal.SIGINT:
            child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    try:
        if host is None:
            try:
                engine.check()
                with engine.locked():
                    engine.start()
                    note = engine.users / str(os.getpid())
                    note.write_text(identity(os.getpid()))
                host = engine.host
            except EngineError as error:
                if not optional:
                    raise
                say(f"going on without one: {error}")
        else:
            say(f"using the one that answers at {host}")
        if host is not None:
            environment["DOCKER_HOST"] = host
        if wanted:
            return 128 + wanted[0]
        try:
            child = subprocess.Popen(command, env=environment)
        except OSError as error:
            raise EngineError(f"cannot start {command[0]!r}: {error.strerror}") from None
        if wanted:  # arrived between the check and the start
            child.send_signal(wanted[-1])
        code = child.wait()
        return code if code >= 0 else 128 - code
    finally:
        if note is not None:
            with engine.locked():
                note.unlink(missing_ok=True)
                if not engine.live_users():
                    engine.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="A Docker engine for development and tests.")
    parser.add_argument(
        "--state",
        default=os.environ.get(STATE_VARIABLE, DEFAULT_STATE),
        help=f"folder of the private engine (default ${STATE_VARIABLE}, then {DEFAULT_STATE})",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("start", help="start one and leave it running until `stop`")
    commands.add_parser("status", help="say which engine would be used")
    stop = commands.add_parser("stop", help="end what `start` started")
    stop.add_argument("--force", action="store_true", help="also while commands use it")
    run = commands.add_parser("run", help="run a command with an engine around it")
    run.add_argument("--optional", action="store_true", help="run the command even when there is no engine")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    arguments = parser.parse_args()
    engine = PrivateEngine(Path(arguments.state).absolute())
    try:
        if arguments.command == "start":
            return command_start(engine)
        if arguments.command == "status":
            return command_status(engine)
        if arguments.command == "stop":
            return command_stop(engine, force=arguments.force)
        argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
        if not argv:
            parser.error("run needs a command after --")
        return command_run(engine, argv, optional=arguments.optional)
    except (EngineError, PermissionError) as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
