"""One model of settings: defaults < YAML file < environment < arguments.

The file is `$EXECUTOR_CONFIG`, else none. A variable is `EXECUTOR_` and the field's name in capitals;
`SKILLS_ROOT` and `DOCKER_HOST` keep the names that people already use.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from executor.errors import BadRequestError
from executor.models import Limits, OutputLimits, Size, SourceLimits
from executor.places import data_dir
from executor.runtimes import options

RuntimeName = Literal["auto", "container", "local"]
DEFAULT_ROOTS = ("./skills",)
SHOWN = 200  # characters of a wrong value in an error
_OTHERS = ("CONFIG", "DATA_DIR", "DEBUG", "MCP_TOKEN", "RUN_ID")
"""Variables `EXECUTOR_…` that are read and are no settings."""

log = logging.getLogger("executor.settings")


class PoolSettings(BaseModel):
    """Sandboxes that are started ahead and wait for a session: see `executor.runtimes.pool`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(0, ge=0, le=1000)
    """Sandboxes kept ready. Default 0: each is started when a session needs it."""
    max: int = Field(0, ge=0)
    """Sandboxes at one time, those of sessions included; a session that finds none waits in turn. Default 0:
    no bound."""
    wait: float = Field(60.0, gt=0)
    """Seconds that a session waits at most. Default 60."""
    idle_ttl: float = Field(600.0, ge=0)
    """Seconds without a new session after which those that wait are ended; the next session brings them back.
    0: never. Default 600."""
    limits: Limits | None = None
    """Limits of those that wait; a session with others gets one of its own. Default `Settings.limits`."""
    skills: tuple[str, ...] = ()
    """Skills that are staged in those that wait, so that a session has them at once. Every session that gets
    such a sandbox can read them; one that begins with a checkpoint, or is durable, gets one of its own.
    Default none."""


class Settings(BaseModel):
    """Everything that an operator may choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runtime: RuntimeName = "auto"
    """`container`, `local`, or `auto`: container when an engine answers and has the image, else local."""
    image: str = ""
    """Container: an image reference. Local: a built image's name, a folder, or `host` for this machine's own
    programs. Default: `executor/base`, or this machine's programs where it was not built."""
    docker_host: str = ""
    """Address of the engine. Default `$DOCKER_HOST`, then the usual socket."""
    engine_runtime: str = ""
    """The engine's own runtime, such as `runsc` or `kata`. Default the engine's default."""
    container_options: dict[str, Any] = {}
    """What every container gets besides: of `cpuset_cpus`, `cpu_shares`, `blkio_weight`, `cgroup_parent`,
    `oom_score_adj`, `apparmor` and `labels`. Nothing else is allowed. Default nothing."""
    skills: tuple[str, ...] = ()
    """Where skills come from, the first one wins: folders, archives, git, buckets, bundles (docs/sources.md).
    Default `$SKILLS_ROOT`, then `./skills`."""
    sources: SourceLimits = SourceLimits()
    """What one of them may cost in bytes, files and seconds."""
    host_inputs: tuple[str, ...] = ()
    """Folders of this machine from which `host://` inputs may come. Default none. Only folders that no
    stranger writes to: what lies there is copied into sandboxes."""
    env: dict[str, str] = {}
    """Variables of every run."""
    skill_env: dict[str, dict[str, str]] = {}
    """Variables of the runs of a skill, by its name: over `env`, below the caller's."""
    limits: Limits = Limits()
    """Limits of a session that brings none."""
    outputs: OutputLimits = OutputLimits()
    """Caps of a collection that brings none."""
    timeout: float = Field(300.0, gt=0, le=7 * 86400)
    """Seconds for a run that brings no time-out. Default 300."""
    script_timeout: float = Field(30.0, gt=0, le=7 * 86400)
    """Seconds for a skill's script that brings none. Default 30."""
    grace: float = Field(2.0, ge=0, le=60)
    """Seconds between TERM and KILL. Default 2."""
    max_output: Size = Field(1 << 20, ge=0, le=1 << 30)
    """Bytes kept of stdout, and as many of stderr: head and tail. Default 1 MiB."""
    deps: Literal["off", "locked", "auto"] = "locked"
    """Dependencies of skills: `locked` gives a skill the layer of its lock, `auto` also locks and builds what
    a skill declares, `off` neither. Default locked."""
    layers_dir: str = ""
    """Folder for layers of dependencies, with their locks and caches. Default the data folder."""
    state_dir: str = ""
    """Folder for sessions that are kept: their record and their checkpoints. Default `state` in the data
    folder (`$EXECUTOR_DATA_DIR`)."""
    audit: str = ""
    """File for the record of the calls of granted tools, as JSON lines. Default: kept in memory only."""
    pool: PoolSettings = PoolSettings()
    """Sandboxes started ahead. Default none."""
    warm: tuple[str, ...] = ()
    """Warm interpreters of a session that brings none, such as `python:numpy,pandas` (docs/performance.md).
    Default none."""

    @field_validator("container_options")
    @classmethod
    def _allowed(cls, value: dict[str, Any]) -> dict[str, Any]:
        options.check(value)
        return value

    reap_interval: float = Field(300.0, ge=0, le=7 * 86400)
    """Seconds between two looks, while an executor is open, for what dead executors of this machine left. The
    first look is at its start; 0: no other. Default 300."""
    require_limits: bool = False
    """Refuse a sandbox whose machine cannot enforce every limit, instead of warning."""

    @property
    def state_folder(self) -> Path:
        """`state_dir`, or its default."""
        return Path(self.state_dir) if self.state_dir else data_dir() / "state"


def load(overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings of this process. BadRequestError names the file or variable that is wrong.

    A variable whose name is close to one of ours, and none, is logged (`executor.settings`).
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}  # where each comes from, for an error
    file = environ.get("EXECUTOR_CONFIG")
    if file:
        values.update(_from_file(Path(file)))
        origins.update(dict.fromkeys(map(str, values), f"the file EXECUTOR_CONFIG={file}"))
    for name in Settings.model_fields:
        text = environ.get("EXECUTOR_" + name.upper())
        if text is not None:
            values[name] = _from_text(name, text)
            origins[name] = f"the variable EXECUTOR_{name.upper()}"
    _look_for_typos(environ)
    for name in Limits.model_fields:
        if "EXECUTOR_" + name.upper() in environ:
            raise BadRequestError(
                f"there is no setting EXECUTOR_{name.upper()}, so it would limit nothing",
                hint=f"Limits stand in one variable: EXECUTOR_LIMITS='{{{name}: …}}'.",
            )
    for name, value in (overrides or {}).items():
        if value is not None:
            values[name] = value
            origins[name] = "an argument"
    if not values.get("skills"):
        root = environ.get("SKILLS_ROOT")
        values["skills"] = split_roots(root) if root else DEFAULT_ROOTS
        origins["skills"] = "the variable SKILLS_ROOT"
    if not values.get("docker_host"):
        values["docker_host"] = environ.get("DOCKER_HOST", "")
        origins["docker_host"] = "the variable DOCKER_HOST"
    return _checked(values, origins)


def over(settings: Settings, overrides: Mapping[str, Any]) -> Settings:
    """These settings with others over them; None overrides nothing. BadRequestError names a wrong one."""
    given = {name: value for name, value in overrides.items() if value is not None}
    return _checked({**settings.model_dump(), **given}, dict.fromkeys(given, "an argument"))


def _checked(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        got = repr(first["input"])
        hint = f"It comes from {origins.get(str(first['loc'][0]), 'a default')}."
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            hint += f" There are: {', '.join(Settings.model_fields)}."
        raise BadRequestError(
            f"setting {where[:SHOWN]}: {first['msg'].removeprefix('Value error, ')} "
            f"(got {got[:SHOWN]}{'...' * (len(got) > SHOWN)})",
            hint=hint,
        ) from None


def _look_for_typos(environ: Mapping[str, str]) -> None:
    """Variables that mean nothing to us are not wrong: clusters and other programs set such too."""
    known = [name.upper() for name in Settings.model_fields] + list(_OTHERS)
    for variable in environ:
        name = variable.removeprefix("EXECUTOR_")
        if name == variable or name in known or name.lower() in Limits.model_fields:
            continue
        close = [longer for longer in known if name.startswith(f"{longer}_")]
        close += difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
        if close:
            log.warning("there is no setting %r; is EXECUTOR_%s meant?", variable, close[0])


def split_roots(text: str, separator: str = os.pathsep) -> tuple[str, ...]:
    """The roots in a list as `$PATH` has it. The colons of an address part nothing: of its scheme, of a port,
    of a name and password, and of an address among its options; one in its path is written `%3A`.
    """
    roots: list[str] = []
    for piece in text.split(separator):
        if roots and separator == ":" and _goes_on(roots[-1], piece):
            roots[-1] += ":" + piece
        else:
            roots.append(piece)
    return tuple(root for root in roots if root)


_SCHEME_END = re.compile(r"(?:.*=)?[a-z][a-z0-9]*(?:\+[a-z]+)?", re.IGNORECASE | re.DOTALL)
_HOST_END = re.compile(r".*://[^/?#&]*", re.DOTALL)
_PORT = re.compile(r"[0-9]{1,5}(?:[/?#&].*)?", re.DOTALL)
_LOGIN = re.compile(r"[^/?#]*@.*", re.DOTALL)


def _goes_on(root: str, piece: str) -> bool:
    if piece.startswith("//"):
        return _SCHEME_END.fullmatch(root) is not None
    if root == "file":
        return piece.startswith("/")
    return bool(_HOST_END.fullmatch(root) and (_PORT.fullmatch(piece) or _LOGIN.fullmatch(piece)))


def _from_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadRequestError(
            f"EXECUTOR_CONFIG={path} cannot be read: {why}",
            hint="Give the path of a YAML file with settings, or unset the variable.",
        ) from error
    found = _from_yaml(text, f"EXECUTOR_CONFIG={path}")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadRequestError(f"EXECUTOR_CONFIG={path} is not a map of settings")
    return found


def _from_text(name: str, text: str) -> Any:
    """A variable's text as the field's type: maps as YAML, lists split as paths are, the rest as it is."""
    if name in ("container_options", "env", "limits", "outputs", "pool", "skill_env", "sources"):
        return _from_yaml(text, f"EXECUTOR_{name.upper()}")
    if name == "skills":
        return split_roots(text)
    if name == "warm":
        return tuple(text.split())
    if name == "host_inputs":
        return tuple(folder for folder in text.split(os.pathsep) if folder)
    return text


def _from_yaml(text: str, where: str) -> Any:
    import yaml  # where a setting is written in it

    try:
        return yaml.safe_load(text)
    except Exception as error:  # a wrong `!!int` or `!!bool` makes PyYAML raise whatever comes of it
        raise BadRequestError(f"{where} is not YAML: {error or type(error).__name__}") from error
