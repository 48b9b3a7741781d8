"""Python packages by uv: resolved for the image's Python, installed from wheels only, with hashes.

uv is told nothing by the skill but requirement lines: it runs in an empty folder, with the operator's
configuration, and may build nothing. Console scripts are written here, for their interpreter is in the layer.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import stat
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from executor.deps.locks import Wheel
from executor.deps.programs import run
from executor.deps.target import Target
from executor.errors import DependencyError
from executor.skills.packages import canonical

_WHEELS_ONLY = ("--only-binary", ":all:", "--no-progress", "--color", "never")
_INDEXES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+-]+)(?: *;[^\\]*?)?(?P<hashes>(?:\s+--hash=\S+)+)"
)
_HINTS = (
    (
        r"hash mismatch|Hash mismatch|hashes? (?:do|does) not match",
        "a file on the index is not the one that was locked",
        "Find out why before anything else. If the change is right: executor deps lock SKILL",
    ),
    (
        r"no usable wheels|no wheels|building (?:is )?disabled|source distribution|Building source",
        "there is no wheel of it for this image, and nothing is built from source",
        "Pin a version that has wheels, or use an image that has the package.",
    ),
    (
        r"not found in the (?:package registry|provided package locations)|there are no versions",
        "the operator's index has no such package",
        "Check the name. Packages come from the index that UV_DEFAULT_INDEX names.",
    ),
    (
        r"dns error|error sending request|Failed to fetch|Connection|timed out|network",
        "the index does not answer",
        "Check the network and UV_DEFAULT_INDEX.",
    ),
    (r"unsatisfiable|depends on|conflict", "the versions that are asked for do not go together", ""),
)


def environment(cache: Path, offline: bool) -> dict[str, str]:
    """The environment of uv: the operator's, with pip's index where uv has none."""
    env = dict(os.environ)
    for ours, theirs in (("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), ("UV_INDEX", "PIP_EXTRA_INDEX_URL")):
        if ours not in env and "UV_INDEX_URL" not in env and theirs in env:
            env[ours] = env[theirs]
    env.update(UV_CACHE_DIR=str(cache), UV_NO_MANAGED_PYTHON="1", UV_PYTHON_DOWNLOADS="never")
    env.pop("VIRTUAL_ENV", None)
    if offline:
        env["UV_OFFLINE"] = "1"
    return env


def uv() -> str:
    """The program. DependencyError with the way to get it."""
    try:
        from uv import find_uv_bin

        return os.fsdecode(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise DependencyError("uv is not installed", hint="pip install 'skill-executor[deps]'")
    return found


def resolve(
    requirements: list[str], constraints: list[str], target: Target, *, cache: Path, scratch: Path
) -> tuple[Wheel, ...]:
    """Exact versions with hashes of everything that is needed. DependencyError says why there are none."""
    wanted, bounds, out = scratch / "wanted.in", scratch / "bounds.txt", scratch / "locked.txt"
    wanted.write_text("\n".join(requirements) + "\n")
    bounds.write_text("\n".join(constraints) + "\n")
    argv = [uv(), "pip", "compile", str(wanted), "-c", str(bounds), "-o", str(out), "--quiet", *_WHEELS_ONLY]
    argv += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
    argv += ["--python-version", target.python, "--python-platform", target.uv_platform]
    env = environment(cache, offline=False)
    if env.get("UV_INDEX_STRATEGY", "first-index") != "first-index":
        raise DependencyError(
            f"UV_INDEX_STRATEGY={env['UV_INDEX_STRATEGY']} takes a package from whichever index has the "
            "highest version, so that a stranger's package can stand in for one of yours",
            hint="Unset UV_INDEX_STRATEGY.",
        )
    run(argv, scratch, env, _HINTS, "the requirements cannot be resolved")
    return parse(out.read_text())


def indexes(env: Mapping[str, str]) -> list[str]:
    """The addresses of the operator's indexes when there is more than one; the default one may be unnamed."""
    named = " ".join(
        env.get(name, "") for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
    )
    return [re.sub(r"\A\w+=", "", word).rstrip("/") for word in named.split()]


def confusable(wheels: tuple[Wheel, ...], env: Mapping[str, str]) -> dict[str, list[str]]:
    """Packages that more than one of the operator's named indexes has: name → those indexes."""
    places = indexes(env)
    if len(places) < 2:
        return {}
    pairs = [(wheel.name, place) for wheel in wheels for place in places]
    with ThreadPoolExecutor(8) as pool:
        has = list(pool.map(lambda pair: _has(*pair), pairs))
    found: dict[str, list[str]] = {}
    for (name, place), there in zip(pairs, has, strict=True):
        if there:
            found.setdefault(name, []).append(place)
    return {name: where for name, where in found.items() if len(where) > 1}


def _has(name: str, index: str) -> bool:
    try:
        with urllib.request.urlopen(f"{index}/{canonical(name)}/", timeout=10) as answer:  # noqa: S310
            return bool(answer.status in (None, 200))
    except (OSError, ValueError):
        return False


def parse(text: str) -> tuple[Wheel, ...]:
    """The lines of a requirements file with hashes."""
    found = []
    for match in _LINE.finditer(text.replace("\\\n", " ")):
        hashes = tuple(sorted(item.removeprefix("--hash=") for item in match["hashes"].split()))
        found.append(Wheel(name=match["name"], version=match["version"], hashes=hashes))
    return tuple(sorted(found, key=lambda wheel: wheel.name))


def install(
    wheels: tuple[Wheel, ...], target: Target, folder: Path, *, cache: Path, scratch: Path, offline: bool
) -> None:
    """Unpack wheels into `folder` as a prefix: `lib/python3.11/site-packages`, `share`, `bin`."""
    locked = scratch / "locked.txt"
    locked.write_text("".join(wheel.requirement() + "\n" for wheel in wheels))
    argv = [uv(), "pip", "install", "--prefix", str(folder), "-r", str(locked), "--quiet", *_WHEELS_ONLY]
    argv += ["--no-deps", "--require-hashes", "--link-mode", "hardlink", "--no-compile-bytecode"]
    argv += ["--python-version", target.python, "--python-platform", target.uv_platform]
    run(argv, scratch, environment(cache, offline), _HINTS, "the packages cannot be installed")
    (folder / ".lock").unlink(missing_ok=True)  # uv's own
    for lib in (folder / "lib").glob("python3.*"):
        if lib.name != f"python{target.python}":
            lib.rename(lib.with_name(f"python{target.python}"))


def site_packages(folder: Path, target: Target) -> Path:
    """Where the packages of a prefix are."""
    return folder / "lib" / f"python{target.python}" / "site-packages"


def scripts(folder: Path, target: Target, inside: str) -> None:
    """Write `bin` anew for a layer that a sandbox sees at `inside`: its python, its packages' commands."""
    folder_bin = folder / "bin"
    if not folder_bin.is_dir():
        _clear(folder_bin)
        folder_bin.mkdir()
    for file in folder_bin.iterdir():
        _mend_shebang(file, f"{inside}/bin/python3")
    for entry_points in sorted(site_packages(folder, target).glob("*.dist-info/entry_points.txt")):
        for name, value in _console_scripts(entry_points).items():
            _clear(folder_bin / name)
            module, _, function = value.partition(":")
            (folder_bin / name).write_text(
                f"#!{inside}/bin/python3\nimport sys\nfrom {module} import {function.split('.')[0]}\n"
                f"sys.exit({function}())\n"
            )
    for file in folder_bin.iterdir():
        file.chmod(0o755)  # what was written here and by wheels that forgot the bit
    for name in ("python3", "python", f"python{target.python}"):
        _clear(folder_bin / name)
        (folder_bin / name).symlink_to(target.executable)
    home = os.path.dirname(target.executable)
    _clear(folder / "pyvenv.cfg")
    (folder / "pyvenv.cfg").write_text(
        f"home = {home}\ninclude-system-site-packages = true\nversion = {target.python}\n"
    )


def _clear(place: Path) -> None:
    """Make room where a wheel put something of its own: it may put files and folders anywhere in a prefix."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _console_scripts(path: Path) -> Mapping[str, str]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(path.read_text("utf-8"))
    except (configparser.Error, UnicodeDecodeError, OSError):
        return {}
    found = {}
    for name, value in parser.items("console_scripts") if parser.has_section("console_scripts") else ():
        value = value.split("[")[0].strip()
        if (
            re.fullmatch(r"[\w.-]+", name)
            and name not in (".", "..")
            and re.fullmatch(r"[\w.]+:[\w.]+", value)
        ):
            found[name] = value
    return found


def _mend_shebang(file: Path, python: str) -> None:
    """Point a script at the layer's Python. It is a copy then: the file may be the cache's own."""
    info = file.lstat()
    if not stat.S_ISREG(info.st_mode) or info.st_size > 1 << 20:
        return
    data = file.read_bytes()
    if not data.startswith(b"#!"):
        return
    first, _, rest = data.partition(b"\n")
    if first.startswith(b"#!/bin/sh") and rest.startswith(b"'''exec'"):
        rest = rest.split(b"\n", 2)[2] if rest.count(b"\n") > 1 else b""
    elif b"python" not in first:
        return
    file.unlink()
    file.write_bytes(b"#!" + python.encode() + b"\n" + rest)
