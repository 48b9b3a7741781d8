"""The options that several commands have in common, each written once; and the request that they make.

The types are what typer reads; what the values mean is in `arguments.py`.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from executor.cli import arguments


class RuntimeChoice(enum.StrEnum):
    """Values of --runtime."""

    auto = "auto"
    container = "container"
    local = "local"


def _option(*names: str, metavar: str | None = None, help: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False, **more)


def _timeout(default: str) -> Any:
    return _option("--timeout", metavar="SECONDS", help=f"End it after so long. [default: {default}]")


Skill = Annotated[
    str, typer.Argument(metavar="SKILL", help="A skill's name in the roots, or the path of its folder.")
]
Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SKILL|ROOT",
        help="Names or folders of skills, or folders with skills. [default: all skills of the roots]",
        show_default=False,
    ),
]
Skills = Annotated[
    list[str] | None,
    _option(
        "--skills",
        metavar="ROOT",
        callback=arguments.roots,
        help="Where skills come from: a folder, an archive (path or https:), git+https:, s3: or a bundle; "
        "repeatable, the first wins. [default: $SKILLS_ROOT, then ./skills]",
    ),
]
Runtime = Annotated[
    RuntimeChoice | None,
    _option(
        "--runtime",
        help="Where the sandbox runs. [default: auto: container if an engine has the image, else local]",
    ),
]
Image = Annotated[
    str | None,
    _option(
        "--image",
        metavar="IMAGE",
        help="Container: an image reference. Local: a built image, a folder, or `host` for this "
        "machine's own programs. [default: executor/base]",
    ),
]
Inputs = Annotated[
    list[str] | None,
    _option(
        "--input",
        metavar="SRC[:DEST]",
        help="File or folder to stage; repeatable. DEST is below inputs/ unless it begins with work/, out/, "
        "runs/, inputs/, skills/ or /workspace; one that ends in / keeps the name.",
    ),
]
Outputs = Annotated[
    list[str] | None,
    _option("--output", metavar="GLOB", help="Files to bring back; repeatable. [default: out/**]"),
]
MadeOutputs = Annotated[
    list[str] | None,
    _option(
        "--output",
        metavar="GLOB",
        help="Files to bring back; repeatable. [default: what it made or changed in out/]",
    ),
]
Save = Annotated[
    Path | None,
    _option(
        "--save",
        metavar="DIR",
        help="Write the files below DIR, as DIR/out/...; below DIR/unsaved-... where one is there already.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Let --save replace files that are there.")]
Html = Annotated[Path | None, _option("--html", metavar="FILE", help="Write a report for a browser.")]
Env = Annotated[
    list[str] | None,
    _option("--env", metavar="NAME=VALUE", help="A variable for the script; repeatable."),
]
AllowNet = Annotated[
    list[str] | None,
    _option(
        "--allow-net",
        metavar="HOST[:PORT]",
        help="A host that the script may reach by HTTP and HTTPS; repeatable. *.NAME: every host below NAME. "
        "[default: no network]",
    ),
]
Cwd = Annotated[
    str | None, _option("--cwd", metavar="DIR", help="Where it starts. [default: the skill's folder]")
]
Timeout = Annotated[float | None, _timeout("300")]
ScriptTimeout = Annotated[float | None, _timeout("30")]
ShellTimeout = Annotated[float | None, _timeout("never")]
Memory = Annotated[
    str | None, _option("--memory", metavar="SIZE", help="Memory, such as 512m. [default: 1g]")
]
Cpus = Annotated[float | None, _option("--cpus", metavar="N", help="Processors. [default: 1]")]
Pids = Annotated[int | None, _option("--pids", metavar="N", help="Processes and threads. [default: 128]")]
Disk = Annotated[str | None, _option("--disk", metavar="SIZE", help="Size of /workspace. [default: 256m]")]
Session = Annotated[
    str | None,
    _option(
        "--session",
        metavar="ID",
        help="Keep the session's files under this name, and go on with them the next time.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but errors.")]


def request(**values: Any) -> dict[str, Any]:
    """The options of a command, as typer gives them, as the fields of `arguments.RunRequest`.

    Lists become tuples, a runtime its name, and the four limits one map of those that were given.
    """
    limits = {name: values.pop(name, None) for name in ("memory", "cpus", "pids", "disk")}
    for name in ("skills", "inputs", "env", "allow_net"):
        values[name] = tuple(values.get(name) or ())
    if (runtime := values.get("runtime")) is not None:
        values["runtime"] = runtime.value
    values["limits"] = {name: value for name, value in limits.items() if value is not None}
    return values
