"""Where things are inside a sandbox, and the variables that say so. The same in every runtime.

Data and pure functions: nothing here opens a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from executor.errors import BadPathError, BadRequestError
from executor.workspace.text import to_bytes, to_text

WORKSPACE = "/workspace"
SKILLS = "/skills"
FOLDERS = ("inputs", "work", "out", "runs", "skills")
MAX_NAME, MAX_LEVELS, MAX_PATH = 255, 60, 3800  # of a caller's path: the guest takes 255, 64 and 4096

DIRS = {
    "WORKSPACE_DIR": WORKSPACE,
    "INPUTS_DIR": f"{WORKSPACE}/inputs",
    "WORK_DIR": f"{WORKSPACE}/work",
    "OUTPUT_DIR": f"{WORKSPACE}/out",
    "SKILLS_DIR": SKILLS,
}
# Links that every workspace has.
WORKSPACE_LINKS = (b"/workspace/skills", b"/workspace/work/inputs")
# Links in the root of every staged skill; a skill's own entry of that name wins.
SKILL_LINKS = {name: f"{WORKSPACE}/{name}" for name in ("out", "work", "inputs")}

USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OWN_BIN = "/run/executor/bin"  # `python` on machines that only have `python3`
# Everything that a script finds in its environment besides the folders. Nothing comes from the host.
ENVIRONMENT = {
    "HOME": "/tmp/home",
    "USER": "sandbox",
    "LOGNAME": "sandbox",
    "SHELL": "/bin/bash",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PYTHONUTF8": "1",
    "PYTHONUNBUFFERED": "1",  # what was printed before a deadline is not lost in a buffer
    "PYTHONPYCACHEPREFIX": "/tmp/.cache/python",
    "XDG_CACHE_HOME": "/tmp/.cache",
    "MPLCONFIGDIR": "/tmp/.cache/matplotlib",
    "MPLBACKEND": "Agg",
    "NODE_PATH": "/node_modules",
    # Installers fail at once instead of after minutes of retries: there is no network.
    "PIP_RETRIES": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "npm_config_cache": "/tmp/.cache/npm",
    "npm_config_fetch_retries": "0",
    "npm_config_update_notifier": "false",
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "UV_OFFLINE": "1",
    "UV_CACHE_DIR": "/tmp/.cache/uv",
    "GIT_TERMINAL_PROMPT": "0",
}
TERMINAL = {"TERM": "xterm-256color"}
_ENCODED, _ENCODED_TERMINAL = (
    {name.encode(): value.encode() for name, value in table.items()} for table in (ENVIRONMENT, TERMINAL)
)

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})(?=/|\Z)", re.ASCII)


def folders(*, run_id: str = "", skill: str | None = None) -> dict[str, str]:
    """The variables that name folders."""
    found = dict(DIRS)
    if run_id:
        found["RUN_DIR"] = f"{WORKSPACE}/runs/{run_id}"
    if skill is not None:
        found["SKILL_DIR"] = f"{SKILLS}/{skill}"
        found["SKILL_NAME"] = skill
    return found


def search_path(own: str) -> str:
    """PATH of a run in an image whose own is `own`, '' for the usual one."""
    return f"{OWN_BIN}:{own or USUAL_PATH}"


def environment(
    *layers: Mapping[str, str], run_id: str, skill: str | None = None, path: str = "", tty: bool = False
) -> dict[bytes, bytes]:
    """The whole environment of a run: ours, then each of `layers`, a later one over an earlier one."""
    merged = {"PATH": search_path(path), **folders(run_id=run_id, skill=skill)}
    for layer in layers:
        merged.update(layer)
    merged["EXECUTOR_RUN_ID"] = run_id  # how the guest knows whose an orphan is
    found = {**_ENCODED, **_ENCODED_TERMINAL} if tty else dict(_ENCODED)
    for name, value in merged.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadRequestError(f"the variable {name!r} is {value!r}: both parts have to be text")
        if not name or "=" in name or "\0" in name + value:
            raise BadRequestError(
                f"{name!r} cannot be a variable: a name is not empty and has no '=', neither part has a NUL"
            )
        try:
            found[to_bytes(name)] = to_bytes(value)
        except UnicodeEncodeError:
            raise BadRequestError(f"{name!r} cannot be a variable: it has a lone surrogate") from None
    return found


def absolute(text: str, *, variables: Mapping[str, str] = DIRS, below: str = WORKSPACE) -> str:
    """A caller's path as a canonical absolute path below /workspace or /skills. BadPathError otherwise.

    Relative paths are below `below`; `skills/x` means `/skills/x`; a `$NAME/` or `${NAME}/` in front is
    expanded when it is one of `variables`.
    """
    if "\0" in text:
        raise BadPathError(f"{text!r} holds a NUL byte")
    _check_length(text)
    match = _VARIABLE.match(text)
    if match and (match[1] or match[2]) in variables:
        text = variables[match[1] or match[2]] + text[match.end() :]
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadPathError(f"{text!r} has a '..': write the path without it")
    if not text.startswith("/"):
        if parts[:1] == ["skills"]:
            return "/" + "/".join(parts)
        return "/".join([below, *parts])
    if parts[:1] not in (["workspace"], ["skills"]):
        raise BadPathError(
            f"{text!r} is not below /workspace or /skills",
            hint="Only these two folders belong to a session.",
        )
    if parts[:2] == ["workspace", "skills"]:
        parts = parts[1:]
    return "/" + "/".join(parts)


def split(target: str) -> tuple[bytes, bytes]:
    """An absolute path as one of the two roots and the rest. BadPathError for a root itself."""
    for root in (WORKSPACE, SKILLS):
        if target.startswith(root + "/"):
            return root.encode(), to_bytes(target[len(root) + 1 :])
    raise BadPathError(f"{target!r} is a folder that every session has: name a file or folder in it")


def _check_length(text: str) -> None:
    """BadPathError for what no file system of a sandbox could hold."""
    try:
        path = to_bytes(text)
    except UnicodeEncodeError:
        raise BadPathError(f"{text[:80]!r} cannot be a path: it has no bytes") from None
    parts = path.split(b"/")
    if len(path) > MAX_PATH or len(parts) > MAX_LEVELS or max(map(len, parts)) > MAX_NAME:
        raise BadPathError(
            f"the path {text[:80]!r}… is too long",
            hint=f"At most {MAX_NAME} bytes a name, {MAX_LEVELS} levels and {MAX_PATH:,} bytes together.",
        )


def working_folder(cwd: str | None, skill: str | None) -> str:
    """Where a run starts: the skill's folder or the workspace; `cwd` may be any way to name one inside."""
    home = f"{SKILLS}/{skill}" if skill is not None else WORKSPACE
    if cwd is None or cwd in ("", "."):
        return home
    cwd = cwd.replace("\\", "/")
    if any(character in cwd for character in "*?["):
        raise BadPathError(f"cwd {cwd!r} has a wildcard: name one folder")
    first = cwd.lstrip("/").split("/", 1)[0]
    if cwd.startswith("/") and first in FOLDERS and first != "skills":
        return absolute(cwd.lstrip("/"))
    if not cwd.startswith(("/", "$")) and first in FOLDERS:
        return absolute(cwd)
    return absolute(cwd, variables=folders(skill=skill), below=home)


def is_own_link(path: bytes) -> bool:
    """Whether a link belongs here: one of those that every workspace and every staged skill has."""
    if path in WORKSPACE_LINKS:
        return True
    parts = to_text(path).split("/")
    return len(parts) == 4 and parts[1] == "skills" and parts[3] in SKILL_LINKS


def shown(path: bytes) -> str:
    """A sandbox path as `OutputFile.path`: relative to /workspace, or `skills/…`."""
    text = to_text(path)
    return text.removeprefix(WORKSPACE + "/").removeprefix("/")
