"""The capability bridge: host tools that a run's scripts may call, and nothing else.

    tools.py      ToolSpec and @tool
    schema.py     JSON Schema, compiled once
    grant.py      what a run may use: tools, a folder, limits; only ever narrowed
    approvals.py  what policies and people are asked
    dispatch.py   one run's bridge: every check, in order
    folder.py     a host folder, confined by descriptors
    remote.py     a root that fsspec reaches; files.py has what both need
    network.py    what may be reached on the network: rules, addresses
    egress.py     the host's end of it; http1.py and hello.py read what scripts write, origin.py connects
    audit.py      the record, hash-chained
    codes.py      what can go wrong, as one table
    shell.py      the Bash commands' words and answers
    values.py     large arguments and results as files
    clock.py      the run's clock, which stands still while a person thinks
    clients.py    what is sent into the sandbox; stubs.py writes its types
    scripts.py    a skill's script: function or program, and its result
    code.py       a text that calls tools
    mcp.py        the tools of an MCP server

Nothing here imports a JSON Schema library, OpenTelemetry or the MCP SDK before it is needed; a part is itself
imported when it is first asked for, as most runs are granted nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.bridge import clients, code, scripts
    from executor.bridge.approvals import ApprovalRequest, Decision, PolicyRequest
    from executor.bridge.audit import AuditLog
    from executor.bridge.codes import PublicToolError
    from executor.bridge.dispatch import RunBridge, Subject
    from executor.bridge.grant import BridgeLimits, Grant, intersection
    from executor.bridge.network import NetworkPolicy, NetworkRule, allow
    from executor.bridge.tools import ToolContext, ToolSpec, tool
    from executor.bridge.values import HostFile, SandboxFile, Values

__all__ = [
    "ApprovalRequest",
    "AuditLog",
    "BridgeLimits",
    "Decision",
    "Grant",
    "HostFile",
    "NetworkPolicy",
    "NetworkRule",
    "PolicyRequest",
    "PublicToolError",
    "RunBridge",
    "SandboxFile",
    "Subject",
    "ToolContext",
    "ToolSpec",
    "Values",
    "allow",
    "clients",
    "code",
    "intersection",
    "scripts",
    "tool",
]

_HOMES = {
    "approvals": ("ApprovalRequest", "Decision", "PolicyRequest"),
    "audit": ("AuditLog",),
    "codes": ("PublicToolError",),
    "dispatch": ("RunBridge", "Subject"),
    "grant": ("BridgeLimits", "Grant", "intersection"),
    "network": ("NetworkPolicy", "NetworkRule", "allow"),
    "tools": ("ToolContext", "ToolSpec", "tool"),
    "values": ("HostFile", "SandboxFile", "Values"),
    "clients": (),
    "code": (),
    "scripts": (),
}
"""Module → the names of it that are also found here."""

if not TYPE_CHECKING:  # so that a wrong name is one for mypy, too

    def __getattr__(name: str) -> Any:
        for module, names in _HOMES.items():
            if name == module or name in names:
                found = importlib.import_module(f"{__name__}.{module}")
                return found if name == module else getattr(found, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
