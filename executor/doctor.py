"""Whether sandboxes work on this machine, and the next step for what does not.

Each check is one function that looks and returns `Check`s; it never raises. The last ones start real
sandboxes. Nothing here prints: `executor doctor` shows the report, and a program can call `examine`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from executor.errors import EngineForbiddenError, ExecutorError, ImageMissingError
from executor.executor import AsyncExecutor, choose
from executor.guest import bundle
from executor.runtimes import cgroups
from executor.runtimes.container import DEFAULT_IMAGE, LABEL_GUEST, ContainerRuntime
from executor.runtimes.local import LocalRuntime
from executor.runtimes.owner import FIRST_UID, LAST_UID, owner_label
from executor.session.box import sandbox_spec
from executor.settings import DEFAULT_ROOTS, Settings
from executor.skills.sources import roots

State = Literal["ok", "warn", "fail"]

RUNTIMES = ("container", "local")
OLDEST_PYTHON = (3, 11)
# The first releases of runc without the races of CVE-2025-31133, -52565 and -52881, by series.
SAFE_RUNC = ((1, 2, 8), (1, 3, 3), (1, 4, 0))
# What each sandbox is asked to run: interpreter → (argument vector, its output).
SMOKE: dict[str, tuple[list[str], str]] = {
    "python": (["python3", "-c", "print(6 * 7)"], "42\n"),
    "bash": (["bash", "-c", "echo $((6 * 7))"], "42\n"),
    "node": (["node", "-e", "console.log(6 * 7)"], "42\n"),
}
REPEATS = 7  # of `true`, for the median
BUILD = "Build it: executor images build --target {}"


@dataclass(frozen=True)
class Check:
    """What one look found. `hint` is the next step, '' when there is none to take."""

    name: str
    state: State
    detail: str
    hint: str = ""


@dataclass
class Trial:
    """A real sandbox of one runtime."""

    runtime: str
    works: bool = False
    start_ms: float | None = None
    """From the request to a sandbox whose guest was checked."""
    true_ms: float | None = None
    """Median of a run of `true`."""
    interpreters: dict[str, str] = field(default_factory=dict)
    """Interpreter → 'ok' or what went wrong."""
    problem: str = ""
    hint: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass
class Report:
    """Everything that was found."""

    checks: list[Check]
    trials: list[Trial]
    auto: str
    """The runtime that `auto` chooses, '' when none works."""
    why: str

    @property
    def works(self) -> bool:
        """Whether at least one runtime does."""
        return any(trial.works for trial in self.trials)


async def examine(settings: Settings) -> Report:
    """Look at everything. Takes a second or two where both runtimes work."""
    checks = list(_python()) + list(_platform())
    for look in (_bubblewrap, _user_namespaces, _cgroups, _uids, _engine, _rootfs, _libmagic, _skills):
        try:
            checks += await look(settings)
        except Exception as error:  # a look must not hide the others
            name = look.__name__.strip("_").replace("_", " ")
            checks.append(Check(name, "warn", f"could not be looked at: {type(error).__name__}: {error}"))
    trials = [await _try(settings, runtime) for runtime in RUNTIMES]
    auto, why = await _auto(settings)
    return Report(checks, trials, auto, why)


async def reaped(settings: Settings) -> dict[str, list[str]]:
    """Remove what dead executors of this machine left: runtime → what was removed. Runtimes that do not work
    here are left out.
    """
    found: dict[str, list[str]] = {}
    for runtime in (ContainerRuntime(docker_host=settings.docker_host or None), LocalRuntime()):
        try:
            await runtime.check()
            found[runtime.name] = await asyncio.to_thread(runtime.reap)
        except (ExecutorError, OSError):
            continue
        finally:
            await runtime.close()
    return found


# --- this machine -------------------------------------------------------------------------------------------


def _python() -> Iterator[Check]:
    version = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= OLDEST_PYTHON:
        yield Check("python", "ok", version)
    else:
        yield Check("python", "fail", version, "Use Python 3.11 or newer.")


def _platform() -> Iterator[Check]:
    name = f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform.startswith("linux"):
        yield Check("platform", "ok", name)
    else:
        yield Check(
            "platform", "warn", name, "Only the container runtime exists here: start a Docker engine."
        )


async def _bubblewrap(_settings: Settings) -> list[Check]:
    path = shutil.which("bwrap")
    if path is None:
        hint = "For the local runtime: apt-get install bubblewrap (or dnf, pacman)."
        return [Check("bubblewrap", "fail", "there is no bwrap on the PATH", hint)]
    said = await asyncio.to_thread(_output_of, [path, "--version"])
    return [Check("bubblewrap", "ok", f"{said or 'version unknown'} at {path}")]


async def _user_namespaces(_settings: Settings) -> list[Check]:
    try:
        await LocalRuntime().check()
    except ExecutorError as error:
        return [Check("user namespaces", "fail", error.message, error.hint)]
    return [Check("user namespaces", "ok", "a sandbox can be made with them")]


async def _cgroups(settings: Settings) -> list[Check]:
    spec, _ = sandbox_spec("doctor", settings.limits, settings)
    made = await asyncio.to_thread(cgroups.make, spec, f"{secrets.token_hex(6)}@{owner_label()}")
    if made is None:
        return [
            Check(
                "cgroup limits",
                "warn",
                "this user may not make cgroups: memory is limited for each process, CPU time is not",
                "Run as root, or use the container runtime.",
            )
        ]
    version = 2 if made.oom_file.name == "memory.events" else 1
    made.remove()
    return [Check("cgroup limits", "ok", f"memory, pids and cpu, cgroup version {version}")]


async def _uids(_settings: Settings) -> list[Check]:
    if sys.platform == "win32":
        return []
    uid = os.geteuid()
    if uid == 0:
        detail = f"root: every session gets a uid of its own, {FIRST_UID} to {LAST_UID}"
        return [Check("uid separation", "ok", detail)]
    detail = f"uid {uid}: local sandboxes share this user's uid on the host"
    return [Check("uid separation", "warn", detail, "Use the container runtime, or run as root.")]


async def _libmagic(_settings: Settings) -> list[Check]:
    from executor.workspace import mime

    # A picture format that only libmagic tells from its bytes.
    found = await asyncio.to_thread(mime.guess, "x", b"8BPS\0\1" + bytes(26), 32)
    if found == "application/octet-stream":
        hint = "pip install pylibmagic, or apt-get install libmagic1."
        return [Check("libmagic", "warn", "not found: unknown binary files get no precise MIME type", hint)]
    return [Check("libmagic", "ok", f"it answers ({found} for a probe)")]


async def _skills(settings: Settings) -> list[Check]:
    """Whether the roots are there that the operator has named; the default need not be."""
    if settings.skills == DEFAULT_ROOTS:
        return []
    if lost := roots.missing(settings.skills):
        error = roots.nothing_at(lost)
        return [Check("skills", "warn", error.message, error.hint)]
    return [Check("skills", "ok", ", ".join(map(roots.shown, settings.skills)))]


def _output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().split("\n")[0]


# --- the engine and the images ------------------------------------------------------------------------------


async def _engine(settings: Settings) -> list[Check]:
    runtime = ContainerRuntime(docker_host=settings.docker_host or None)
    socket = _socket(runtime.address)
    try:
        await runtime.check()
    except EngineForbiddenError as error:
        return [Check("engine socket", "fail", error.message, error.hint)]
    except ExecutorError as error:
        return [Check("engine", "fail", error.message, error.hint), *socket]
    finally:
        await runtime.close()
    return [*await asyncio.to_thread(_engine_facts, settings, runtime.address), *socket]


def _socket(address: str) -> list[Check]:
    path = address.removeprefix("unix://")
    if path == address or not os.path.exists(path):
        return []
    if not os.access(path, os.R_OK | os.W_OK):
        hint = "Add the user to the socket's group (that equals root here), or use the local runtime."
        return [Check("engine socket", "fail", f"this user may not open {path}", hint)]
    mode = os.stat(path).st_mode & 0o777
    if mode & 0o006:
        hint = f"Every user can become root through it: chmod o-rw {path}"
        return [Check("engine socket", "warn", f"{path} is open to every user (mode {mode:o})", hint)]
    return [Check("engine socket", "ok", f"{path} can be opened (mode {mode:o})")]


def _engine_facts(settings: Settings, address: str) -> list[Check]:
    from executor.images.engine import connect

    client = connect(settings.docker_host or None)
    try:
        info, version = client.info(), client.version()
        found = [
            Check(
                "engine",
                "ok",
                f"{info.get('ServerVersion')} at {address}, cgroup version {info.get('CgroupVersion', '1')}, "
                f"storage {info.get('Driver')}",
            ),
            _oci_runtime(settings.engine_runtime or str(info.get("DefaultRuntime")), version),
        ]
        return [*found, _image(client, settings.image or DEFAULT_IMAGE)]
    finally:
        client.close()


def _oci_runtime(name: str, version: dict[str, Any]) -> Check:
    if name != "runc":
        return Check("engine runtime", "ok", f"{name} (not runc)")
    components = {part.get("Name"): part.get("Version", "") for part in version.get("Components") or []}
    return runc_check(str(components.get("runc", "")))


def runc_check(version: str) -> Check:
    """Whether a runc of this version has the fixes of November 2025. Distributions patch older ones."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        return Check(
            "runc", "warn", f"version {version or 'unknown'}", "Check that it is 1.2.8, 1.3.3 or newer."
        )
    numbers = (int(match[1]), int(match[2]), int(match[3]))
    needed = next((safe for safe in SAFE_RUNC if numbers[:2] <= safe[:2]), SAFE_RUNC[-1])
    if numbers >= needed:
        return Check("runc", "ok", version)
    hint = (
        "Update it to 1.2.8, 1.3.3 or newer, or check that the distribution's package fixes CVE-2025-31133."
    )
    detail = f"{version} is older than {'.'.join(map(str, needed))}; a distribution may have patched it"
    return Check("runc", "warn", detail, hint)


def _image(client: Any, reference: str) -> Check:
    from docker.errors import DockerException, ImageNotFound

    try:
        labels = client.images.get(reference).labels
    except ImageNotFound:
        hint = BUILD.format("container")
        return Check("image", "fail", f"{reference} is not on the engine", hint)
    except DockerException as error:
        return Check("image", "fail", f"{reference}: {error}")
    return _guest("image", reference, labels.get(LABEL_GUEST, ""), "container")


async def _rootfs(settings: Settings) -> list[Check]:
    from executor.images.store import Store
    from executor.places import data_dir

    if not sys.platform.startswith("linux"):
        return []
    try:
        folder = LocalRuntime().rootfs(settings.image)
    except ImageMissingError as error:
        return [Check("root filesystem", "fail", error.message, error.hint)]
    if not folder:
        detail = "none: scripts get this machine's own programs, read-only"
        return [Check("root filesystem", "warn", detail, BUILD.format("local"))]
    facts = Store(data_dir()).facts(os.path.basename(folder)) or {}
    return [_guest("root filesystem", folder, str(facts.get(LABEL_GUEST, "")), "local")]


def _guest(name: str, where: str, digest: str, target: str) -> Check:
    if digest == bundle.digest():
        return Check(name, "ok", f"{where}, guest up to date")
    if not digest:
        return Check(name, "ok", f"{where}, not ours: the guest is sent at every start")
    hint = f"Build it anew: executor images build --target {target}"
    return Check(name, "warn", f"{where} has the guest of another version: ours is sent at every start", hint)


# --- real sandboxes -----------------------------------------------------------------------------------------


async def _try(settings: Settings, runtime: str) -> Trial:
    trial = Trial(runtime)
    executor = AsyncExecutor(settings=settings, runtime=runtime)
    try:
        await executor.choose_runtime()
        session = executor.session(limits=settings.limits)
        began = time.perf_counter()
        async with session:
            trial.start_ms = _since(began)
            trial.warnings = list(session.warnings)
            for interpreter, (words, expected) in SMOKE.items():
                result = await session.exec(words, timeout=20)
                if result.ok and result.stdout == expected:
                    trial.interpreters[interpreter] = "ok"
                else:
                    said = (result.stderr or result.stdout).strip().split("\n")[-1][:200]
                    trial.interpreters[interpreter] = f"{result.status} {result.exit_code}: {said}"
            times = []
            for _ in range(REPEATS):
                began = time.perf_counter()
                await session.exec(["true"], timeout=20)
                times.append(_since(began))
            trial.true_ms = round(statistics.median(times), 1)
        trial.works = trial.interpreters["python"] == "ok"
    except ExecutorError as error:
        trial.problem, trial.hint = error.message, error.hint
    finally:
        with contextlib.suppress(ExecutorError):
            await executor.close()
    return trial


def _since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)


async def _auto(settings: Settings) -> tuple[str, str]:
    try:
        runtime, why = await choose(settings.model_copy(update={"runtime": "auto"}))
    except ExecutorError as error:
        return "", error.message
    await runtime.close()
    return runtime.name, why
