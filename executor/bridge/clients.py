"""What a run with a grant finds in its own folder: the clients, their stubs, and the catalogue.

The files are made here on the host, from the grant, and never run here. They live in `/tmp/<name>` for as
long as the run does.
"""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Mapping
from importlib import resources
from typing import Any

from executor.bridge import stubs
from executor.bridge.dispatch import SLACK, RunBridge
from executor.channel.calls import Door
from executor.channel.runs import RunSpec
from executor.guest import records

# What is sent as it lies in executor/guest/clients: name inside → (name there, mode).
FILES = {
    "bin/output-write": ("output-write", 0o700),
    "bin/tool": ("tool", 0o700),
    "node/hook.cjs": ("hook.cjs", 0o600),
    "node/skill-tools/index.cjs": ("index.cjs", 0o600),
    "node/skill-tools/index.mjs": ("index.mjs", 0o600),
    "node/skill-tools/package.json": ("package.json", 0o600),
    "python/skill_tools.py": ("skill_tools.py", 0o600),
}
FOLDERS = ("bin", "node", "node/skill-tools", "python")
# How programs are told of a proxy: those that name it, and those that say when it is not for them. Node looks
# at none of them without the last.
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
DIRECT = {
    "NO_PROXY": "localhost,127.0.0.1,::1",
    "no_proxy": "localhost,127.0.0.1,::1",
    "NODE_USE_ENV_PROXY": "1",
}
COMMANDS = ("delete", "glob", "list", "read", "stat", "write")  # workspace-…, all of them links to `tool`


@functools.cache
def _constant() -> bytes:
    """The records of what is the same in every run."""
    folder = resources.files("executor.guest").joinpath("clients")
    found = [records.pack_record(records.FOLDER, name.encode(), 0o700) for name in FOLDERS]
    for name, (source, mode) in FILES.items():
        found.append(_file(name, folder.joinpath(source).read_bytes(), mode))
    for command in COMMANDS:
        link = f"bin/workspace-{command}".encode()
        found.append(records.pack_record(records.LINK, link, 0o777, 4, 0, True))
        found.append(records.pack_chunk(b"tool") + records.pack_end())
    return b"".join(found)


def equip(spec: RunSpec, bridge: RunBridge, extra: Mapping[str, bytes] | None = None) -> str:
    """Give a run its bridge: the door, and the variables that lead there. The run's folder inside.

    `extra` are further files: name → content.
    """
    spec.door = _door(bridge, extra)
    spec.env = environment(spec.door.name, spec.env)
    if spec.door.proxy is not None:
        spec.env |= {name.encode(): value.encode() for name, value in DIRECT.items()}
    return f"/tmp/{spec.door.name}"


def _door(bridge: RunBridge, extra: Mapping[str, bytes] | None) -> Door:
    limits = bridge.grant.limits
    catalogue = {"tools": bridge.catalogue, "argument": bridge.largest + SLACK}
    made = {
        "catalog.json": json.dumps(catalogue, ensure_ascii=False).encode(),
        "python/skill_tools.pyi": stubs.python(bridge.catalogue).encode(),
        "node/skill-tools/index.d.ts": stubs.typescript(bridge.catalogue).encode(),
        **(extra or {}),
    }
    files = [_constant(), *(_file(name, content, 0o600) for name, content in made.items())]
    return Door(
        bridge=bridge,
        name=f".bridge-{secrets.token_hex(16)}",
        files=tuple(files),
        calls=limits.in_flight + limits.queue + 16,
        argument=bridge.largest + SLACK,
        proxy={"connections": limits.connections, "variables": PROXIES} if bridge.grant.network else None,
    )


def environment(name: str, env: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """A run's environment with the ways to its clients put in front."""
    folder = b"/tmp/" + name.encode()
    found = {**env, b"SKILL_BRIDGE": folder}
    for key, value in ((b"PATH", b"/bin"), (b"PYTHONPATH", b"/python"), (b"NODE_PATH", b"/node")):
        before = env.get(key)
        found[key] = folder + value + (b":" + before if before else b"")
    options = env.get(b"NODE_OPTIONS")
    found[b"NODE_OPTIONS"] = b"--require=" + folder + b"/node/hook.cjs" + (b" " + options if options else b"")
    return found


def _file(name: str, content: bytes, mode: int) -> bytes:
    head = records.pack_record(records.REGULAR, name.encode(), mode, len(content), 0, True)
    chunks: list[Any] = [
        records.pack_chunk(content[at : at + records.MAX_CHUNK])
        for at in range(0, len(content), records.MAX_CHUNK)
    ]
    return b"".join([head, *chunks, records.pack_end()])
