"""The interpreters that a layer is for: asked of a sandbox of the image, for only it knows."""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from executor.errors import DependencyError
from executor.models import OutputLimits

_PROBE = r"""
import json, os, platform, shutil, subprocess, sys
base = os.path.realpath(sys.executable)
node = ""
if shutil.which("node"):
    node = subprocess.run(["node", "--version"], stdout=subprocess.PIPE).stdout.decode().strip()
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2],
    "implementation": sys.implementation.name,
    "home": os.path.dirname(base),
    "executable": base,
    "machine": platform.machine(),
    "libc": " ".join(platform.libc_ver()),
    "node": node.lstrip("v"),
}))
"""
_MACHINES = {"x86_64": ("x86_64", "x64"), "aarch64": ("aarch64", "arm64"), "arm64": ("aarch64", "arm64")}


class Workbench(Protocol):
    """What is used of a session: an `AsyncSession` is one."""

    async def exec(self, command: Any, *, timeout: float | None = None) -> Any:
        """As `AsyncSession.exec`."""

    async def collect(self, *patterns: str, limits: OutputLimits | None = None) -> Any:
        """As `AsyncSession.collect`."""


class Target(BaseModel):
    """Interpreters and platform of an image."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    python: str = Field(pattern=r"\A3\.\d{1,2}\z")
    """`3.11`."""
    executable: str = Field("", pattern=r"\A(/[\w.+-]+)*\z")
    """The real file of its `python3`. Not part of what a lock is for."""
    machine: str = Field(pattern=r"\A(x86_64|aarch64)\z")
    libc: str = Field(pattern=r"\A(glibc \d+\.\d+|musl)\z")
    """`glibc 2.36` or `musl`."""
    node: str = Field("", pattern=r"\A(\d+(\.\d+)*)?\z")
    """`24.11.0`, '' without Node."""

    @property
    def uv_platform(self) -> str:
        """The platform as uv calls it."""
        if self.libc == "musl":
            return f"{self.machine}-unknown-linux-musl"
        return f"{self.machine}-manylinux_{self.libc.split()[1].replace('.', '_')}"

    @property
    def npm_platform(self) -> dict[str, str]:
        """The platform as npm calls it."""
        cpu = _MACHINES[self.machine][1]
        return {"os": "linux", "cpu": cpu, "libc": "musl" if self.libc == "musl" else "glibc"}

    def fits(self, other: Target) -> bool:
        """Whether what was locked for this works on `other`. Without Node any Node will do."""
        return (self.python, self.machine, self.libc.split()[0]) == (
            other.python,
            other.machine,
            other.libc.split()[0],
        ) and (not self.node or self.node.split(".")[0] == other.node.split(".")[0])


async def probe(bench: Workbench) -> Target:
    """Ask a sandbox. DependencyError when its Python is none that wheels are made for."""
    found = await bench.exec(["python3", "-I", "-c", _PROBE], timeout=60)
    try:
        facts = json.loads(found.stdout)
        machine = _MACHINES[str(facts["machine"])][0]
        libc = re.match(r"glibc \d+\.\d+", str(facts["libc"]))
        if facts["implementation"] != "cpython":
            raise ValueError(facts["implementation"])
        return Target(
            python=facts["python"],
            executable=facts["executable"],
            machine=machine,
            libc=libc[0] if libc else "musl",
            node=facts["node"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DependencyError(
            f"the image's interpreters are not known: {error}; its python3 said {found.stderr[-200:]!r}",
            hint="Layers need an image with CPython 3.9 or newer on x86-64 or arm64.",
        ) from None
