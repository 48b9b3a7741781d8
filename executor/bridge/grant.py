"""What a run may use: tools by name, a folder, hosts of the network, and how much of it.

It is immutable, and only ever narrowed: a run's grant is the intersection of what the operator, the session
and the run allow, and of the active skill's `allowed-tools`. Nothing in a skill or in the sandbox widens it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from executor.bridge import remote
from executor.bridge.approvals import Approver, PolicyRequest
from executor.bridge.network import NetworkPolicy
from executor.bridge.tools import Approval, ToolSpec
from executor.errors import GrantError
from executor.models import Size

WorkspaceRight = Literal["none", "read", "read-write"]
RIGHTS: tuple[WorkspaceRight, ...] = ("none", "read", "read-write")  # each holds those before it
Verdict = Literal["allow", "deny", "ask"]
Policy = Callable[[PolicyRequest], Verdict | Awaitable[Verdict]]
VERDICTS: tuple[Verdict, ...] = ("allow", "ask", "deny")  # the later one wins


class BridgeLimits(BaseModel):
    """How much one run may ask for. Sizes are bytes or strings like `"1m"`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: int = Field(256, ge=0, le=1 << 20)
    """Calls of tools, also those that fail. Default 256."""
    operations: int = Field(4096, ge=0, le=1 << 20)
    """Everything else: workspace, listings, logs. Default 4,096."""
    in_flight: int = Field(32, ge=1, le=256)
    """Calls under way at one time. Default 32."""
    queue: int = Field(256, ge=0, le=512)
    """Calls that wait for one of those places; one more is refused. Default 256."""
    argument: Size = Field(1 << 20, ge=1024, le=16 << 20)
    """Bytes of one call's request. Default 1 MiB."""
    result: Size = Field(4 << 20, ge=1024, le=64 << 20)
    """Bytes of one result. Default 4 MiB."""
    rate: float | None = Field(50.0, gt=0)
    """Calls a second in the long run; None for no such limit. Default 50."""
    burst: int = Field(512, ge=1)
    """Calls at once before the rate counts. Default 512, so that `calls` is met first."""
    file: Size = Field(64 << 20, ge=0)
    """Bytes of one file that a call takes or gives (`HostFile`, `SandboxFile`). Default 64 MiB."""
    files: Size = Field(256 << 20, ge=0)
    """Bytes of all such files of a run. Default 256 MiB."""
    thinking: float = Field(600.0, ge=0, le=7 * 86400)
    """Seconds that people may take for their approvals, all of a run together. Default 600."""
    working: float = Field(600.0, ge=0, le=7 * 86400)
    """Seconds that tools may take uncounted, all of a run together (`Grant.count_tool_time`). Default 600."""
    entries: int = Field(10_000, ge=1, le=1_000_000)
    """Entries of one listing of the workspace. Default 10,000."""
    connections: int = Field(16, ge=1, le=64)
    """Connections to the network at one time; further ones wait. Default 16."""
    requests: int = Field(1000, ge=0, le=1 << 20)
    """Requests and tunnels of a run. Default 1,000."""
    upload: Size = Field(16 << 20, ge=0)
    """Bytes that one request or tunnel may send. Default 16 MiB."""
    download: Size = Field(64 << 20, ge=0)
    """Bytes that one request or tunnel may receive. Default 64 MiB."""
    transfer: Size = Field(256 << 20, ge=0)
    """Bytes of all requests and tunnels of a run, both ways. Default 256 MiB."""
    idle: float = Field(30.0, gt=0, le=3600)
    """Seconds without a byte after which a connection is ended. Default 30."""

    def __and__(self, other: BridgeLimits) -> BridgeLimits:
        """The smaller of each."""
        found = {}
        for name in type(self).model_fields:
            values = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            found[name] = min(values) if values else None
        return BridgeLimits(**found)


@dataclass(frozen=True)
class Grant:
    """What one run may use. Default: nothing.

    `tools` is a list of `ToolSpec`s or of functions with type hints. GrantError for two tools of one name or
    of one identifier, for a root that is no folder, and for a workspace right without one to use it on.
    """

    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    workspace: WorkspaceRight | None = None
    """`none`, `read` or `read-write`. Default `read` when a root is given, else `none`."""
    root: Path | str | None = None
    """The host folder that is offered, or a URL of fsspec (`s3://bucket/notes`). None with a right is a
    ceiling: any folder that another layer names."""
    root_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What fsspec is given for the root besides its URL: credentials, an endpoint."""
    network: NetworkPolicy | None = None
    """What it may reach: `allow([…])`. None: nothing."""
    limits: BridgeLimits = field(default_factory=BridgeLimits)
    approver: Approver | None = None
    """Who is asked where a tool needs approval: an async function, or `suspend`. None: nobody, so it is
    refused."""
    policy: Policy | None = None
    """Asked before every tool call: `allow`, `deny` or `ask`. One that fails denies."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts that are struck out of every result and of the audit."""
    user: str = ""
    """On whose behalf, for the policy and the audit."""
    count_tool_time: bool = True
    """The time that tools take counts for the run's time-out. If not, its clock stands still while one works,
    at most `limits.working` in all; its processes do not."""

    def __post_init__(self) -> None:
        given: Any = self.tools
        listed = list(given.values()) if isinstance(given, Mapping) else list(given)
        specs = [item if isinstance(item, ToolSpec) else ToolSpec.from_function(item) for item in listed]
        object.__setattr__(self, "tools", MappingProxyType(_by_name(specs)))
        right = self.workspace
        if right is None:
            right = "none" if self.root is None else "read"
        if right not in RIGHTS:
            raise GrantError(f"workspace={right!r} is none of {', '.join(RIGHTS)}")
        object.__setattr__(self, "workspace", right)
        if self.root is not None:
            object.__setattr__(self, "root", _root(self.root, self.root_options))
        if not (self.network is None or isinstance(self.network, NetworkPolicy)):
            raise GrantError(
                f"network={self.network!r} is no policy",
                hint='Name the hosts: network=allow(["example.org"]).',
            )
        if not (self.approver is None or self.approver == "suspend" or callable(self.approver)):
            raise GrantError(f"approver={self.approver!r} is neither a function nor 'suspend'")
        if any(not secret for secret in self.secrets):
            raise GrantError("an empty text cannot be a secret")

    def __and__(self, other: Grant) -> Grant:
        """What both allow. Of a tool in both, the handler of the left one and the stricter of the rest."""
        tools = [
            _stricter(spec, other.tools[name]) for name, spec in self.tools.items() if name in other.tools
        ]
        right = min(self.right, other.right, key=RIGHTS.index)
        root = _inner(self.root, other.root)
        if self.root is not None and other.root is not None and root is None:
            right = "none"
        return Grant(
            tools=tools,  # type: ignore[arg-type]
            workspace=right,
            root=root if right != "none" else None,
            root_options=self.root_options if root == self.root else other.root_options,
            network=self.network & other.network if self.network and other.network else None,
            limits=self.limits & other.limits,
            approver=self.approver if self.approver is not None else other.approver,
            policy=_both(self.policy, other.policy),
            secrets=tuple(dict.fromkeys(self.secrets + other.secrets)),
            user=self.user or other.user,
            count_tool_time=self.count_tool_time or other.count_tool_time,
        )

    @property
    def right(self) -> WorkspaceRight:
        """`workspace`, settled."""
        return self.workspace or "none"

    def narrowed(self, allowed: Iterable[str]) -> Grant:
        """Only the tools that a skill's `allowed-tools` names; nothing changes when it names none at all.

        An entry is a name, a pattern with `*`, or `Name(…)`, of which the part in front counts.
        """
        patterns = [entry.partition("(")[0].strip() for entry in allowed]
        patterns = [pattern for pattern in patterns if pattern]
        if not patterns:
            return self
        kept = [
            spec
            for name, spec in self.tools.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        ]
        return self if len(kept) == len(self.tools) else dataclasses.replace(self, tools=kept)  # type: ignore[arg-type]

    def only(self, *names: str) -> Grant:
        """The same with only these tools. GrantError for one that is not here."""
        missing = sorted(set(names) - set(self.tools))
        if missing:
            raise GrantError(f"there is no tool {missing[0]!r} to grant")
        return dataclasses.replace(self, tools=[self.tools[name] for name in names])  # type: ignore[arg-type]


def intersection(*layers: Grant | None) -> Grant:
    """What all layers allow; a layer that is None says nothing. Nothing when all are."""
    found: Grant | None = None
    for layer in layers:
        if layer is not None:
            found = layer if found is None else found & layer
    return found if found is not None else Grant()


def _by_name(specs: list[ToolSpec]) -> dict[str, ToolSpec]:
    found: dict[str, ToolSpec] = {}
    identifiers: dict[str, str] = {}
    for spec in specs:
        if spec.name in found:
            raise GrantError(f"two tools are called {spec.name!r}")
        other = identifiers.setdefault(spec.identifier, spec.name)
        if other != spec.name:
            raise GrantError(
                f"the tools {other!r} and {spec.name!r} are both {spec.identifier!r} in a script",
                hint="Rename one of them.",
            )
        found[spec.name] = spec
    return found


def _stricter(one: ToolSpec, other: ToolSpec) -> ToolSpec:
    if one is other:
        return one
    return dataclasses.replace(
        one,
        approval=_either(one.approval, other.approval),
        timeout_s=min(one.timeout_s, other.timeout_s),
        max_result=min(one.max_result, other.max_result),
    )


def _either(one: Approval, other: Approval) -> Approval:
    """Approval when either asks for it."""
    if "always" in (one, other):
        return "always"
    if one == "never" or one is other:
        return other
    if other == "never":
        return one
    functions = (one, other)

    async def asks(value: Any) -> bool:
        for function in functions:
            answer = function(value)  # type: ignore[operator]
            if await answer if inspect.isawaitable(answer) else answer:
                return True
        return False

    return asks


def _both(one: Policy | None, other: Policy | None) -> Policy | None:
    """The stricter verdict of the two."""
    if one is None or other is None or one is other:
        return one or other
    policies = (one, other)

    async def ask(request: PolicyRequest) -> Verdict:
        found: Verdict = "allow"
        for policy in policies:
            answer = policy(request)
            verdict = await answer if inspect.isawaitable(answer) else answer
            if verdict not in VERDICTS:
                return "deny"
            found = max(found, verdict, key=VERDICTS.index)
        return found

    return ask


def _root(root: Path | str, options: Mapping[str, Any]) -> Path | str:
    """A root in its one form. GrantError."""
    if isinstance(root, str) and root.startswith("file://"):
        root = root.removeprefix("file://")  # a folder of this machine, and confined as one
    if remote.is_url(root):
        url = remote.normal(str(root))
        remote.open_root(url, options)
        return url
    found = Path(os.path.realpath(root))
    if not found.is_dir():
        raise GrantError(
            f"root={str(root)!r} is not a folder on this machine",
            hint="Make it first, or give one that there is (--workspace of the command line is this root).",
        )
    return found


def _inner(one: Path | str | None, other: Path | str | None) -> Path | str | None:
    """The root that is inside the other; None when neither is."""
    if one is None or other is None:
        return one if one is not None else other
    if isinstance(one, Path) and isinstance(other, Path):
        if one.is_relative_to(other):
            return one
        return other if other.is_relative_to(one) else None
    a, b = str(one).rstrip("/") + "/", str(other).rstrip("/") + "/"
    if a.startswith(b):
        return one
    return other if b.startswith(a) else None
