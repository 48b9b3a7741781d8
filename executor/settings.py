"""One model of settings: defaults < YAML file < environment < arguments.

The file is `$EXECUTOR_CONFIG`, else none. A variable is `EXECUTOR_` and the field's name in capitals;
`SKILLS_ROOT` and `DOCKER_HOST` keep the names that people already use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from executor.errors import BadRequestError
from executor.models import Limits, OutputLimits, Size

RuntimeName = Literal["auto", "container", "local", "kubernetes"]


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
    skills: tuple[str, ...] = ()
    """Roots with skills, the first one wins. Default `$SKILLS_ROOT`, then `./skills`."""
    env: dict[str, str] = {}
    """Variables of every run."""
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
    state_dir: str = ""
    """Folder for checkpoints. Default `state` in the data folder (`$EXECUTOR_DATA_DIR`)."""
    audit: str = ""
    """File for the record of the calls of granted tools, as JSON lines. Default: kept in memory only."""
    require_limits: bool = False
    """Refuse a sandbox whose machine cannot enforce every limit, instead of warning."""


def load(overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings of this process. BadRequestError names the file or variable that is wrong."""
    values: dict[str, Any] = {}
    file = environ.get("EXECUTOR_CONFIG")
    if file:
        values.update(_from_file(Path(file)))
    for name in Settings.model_fields:
        text = environ.get("EXECUTOR_" + name.upper())
        if text is not None:
            values[name] = _from_text(name, text)
    for name in Limits.model_fields:
        if "EXECUTOR_" + name.upper() in environ:
            raise BadRequestError(
                f"there is no setting EXECUTOR_{name.upper()}, so it would limit nothing",
                hint=f"Limits stand in one variable: EXECUTOR_LIMITS='{{{name}: …}}'.",
            )
    values.update({name: value for name, value in (overrides or {}).items() if value is not None})
    if not values.get("skills"):
        root = environ.get("SKILLS_ROOT")
        values["skills"] = tuple(root.split(os.pathsep)) if root else ("./skills",)
    if not values.get("docker_host"):
        values["docker_host"] = environ.get("DOCKER_HOST", "")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadRequestError(
            f"setting {where}: {first['msg']} (got {first['input']!r})",
            hint="It comes from an argument, a variable EXECUTOR_… or the file in EXECUTOR_CONFIG.",
        ) from None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadRequestError(f"EXECUTOR_CONFIG={path} cannot be read: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadRequestError(f"EXECUTOR_CONFIG={path} is not a map of settings")
    return found


def _from_text(name: str, text: str) -> Any:
    """A variable's text as the field's type: maps as YAML, lists split as paths are, the rest as it is."""
    if name in ("env", "limits", "outputs"):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise BadRequestError(f"EXECUTOR_{name.upper()} is not a YAML map: {error}") from error
    if name == "skills":
        return tuple(text.split(os.pathsep))
    return text
