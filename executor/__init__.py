"""A sandboxed script-execution backend for Agent Skills.

from executor import Executor, Limits

with Executor(skills=["./skills"]) as ex, ex.session(limits=Limits(memory="1g")) as s:
    s.put("inputs/sales.csv", data)
    result = s.exec("python3 scripts/report.py inputs/sales.csv", skill="sales-report", outputs=["out/**"])
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.bridge import (
        ApprovalRequest,
        AuditLog,
        BridgeLimits,
        Decision,
        Grant,
        HostFile,
        NetworkPolicy,
        NetworkRule,
        PolicyRequest,
        PublicToolError,
        SandboxFile,
        ToolContext,
        ToolSpec,
        allow,
        tool,
    )
    from executor.bridge.scripts import ScriptResult
    from executor.errors import (
        BadLimitError,
        BadPathError,
        BadRequestError,
        BubblewrapMissingError,
        DependencyError,
        EngineDownError,
        EngineForbiddenError,
        ExecutorError,
        GrantError,
        ImageMissingError,
        PlatformError,
        ProtocolError,
        RuntimeUnavailableError,
        SandboxError,
        SandboxLostError,
        SandboxStartError,
        SessionClosedError,
        SkillError,
        SkillNotFoundError,
        SkillSourceError,
        SkillUnreadableError,
        StateError,
        UserNamespacesOffError,
    )
    from executor.executor import AsyncExecutor
    from executor.models import (
        ExecResult,
        FileInfo,
        Input,
        Limits,
        OutputFile,
        OutputLimits,
        SourceLimits,
        StagedInput,
        Usage,
        WaitingCall,
    )
    from executor.session import (
        AsyncFile,
        AsyncRun,
        AsyncSession,
        Collected,
        LoadStep,
        PutStep,
        RunOutput,
        RunStep,
    )
    from executor.settings import PoolSettings, Settings
    from executor.sync import Executor, File, Run, Session

__version__ = "0.1.0"

__all__ = [
    "ApprovalRequest",
    "AsyncExecutor",
    "AsyncFile",
    "AsyncRun",
    "AsyncSession",
    "AuditLog",
    "BadLimitError",
    "BadPathError",
    "BadRequestError",
    "BridgeLimits",
    "BubblewrapMissingError",
    "Collected",
    "Decision",
    "DependencyError",
    "EngineDownError",
    "EngineForbiddenError",
    "ExecResult",
    "Executor",
    "ExecutorError",
    "File",
    "FileInfo",
    "Grant",
    "GrantError",
    "HostFile",
    "ImageMissingError",
    "Input",
    "Limits",
    "LoadStep",
    "NetworkPolicy",
    "NetworkRule",
    "OutputFile",
    "OutputLimits",
    "PlatformError",
    "PolicyRequest",
    "PoolSettings",
    "ProtocolError",
    "PublicToolError",
    "PutStep",
    "Run",
    "RunOutput",
    "RunStep",
    "RuntimeUnavailableError",
    "SandboxError",
    "SandboxFile",
    "SandboxLostError",
    "SandboxStartError",
    "ScriptResult",
    "Session",
    "SessionClosedError",
    "Settings",
    "SkillError",
    "SkillNotFoundError",
    "SkillSourceError",
    "SkillUnreadableError",
    "SourceLimits",
    "StagedInput",
    "StateError",
    "ToolContext",
    "ToolSpec",
    "Usage",
    "UserNamespacesOffError",
    "WaitingCall",
    "__version__",
    "allow",
    "tool",
]

# Where each name is. It is imported when it is first asked for: `executor --help` needs no engine's SDK.
_HOMES = {
    "executor.bridge": (
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
        "SandboxFile",
        "ToolContext",
        "ToolSpec",
        "allow",
        "tool",
    ),
    "executor.bridge.scripts": ("ScriptResult",),
    "executor.errors": (
        "BadLimitError",
        "BadPathError",
        "BadRequestError",
        "BubblewrapMissingError",
        "DependencyError",
        "EngineDownError",
        "EngineForbiddenError",
        "ExecutorError",
        "GrantError",
        "ImageMissingError",
        "PlatformError",
        "ProtocolError",
        "RuntimeUnavailableError",
        "SandboxError",
        "SandboxLostError",
        "SandboxStartError",
        "SessionClosedError",
        "SkillError",
        "SkillNotFoundError",
        "SkillSourceError",
        "SkillUnreadableError",
        "StateError",
        "UserNamespacesOffError",
    ),
    "executor.executor": ("AsyncExecutor",),
    "executor.models": (
        "ExecResult",
        "FileInfo",
        "Input",
        "Limits",
        "OutputFile",
        "OutputLimits",
        "SourceLimits",
        "StagedInput",
        "Usage",
        "WaitingCall",
    ),
    "executor.session": (
        "AsyncFile",
        "AsyncRun",
        "AsyncSession",
        "Collected",
        "LoadStep",
        "PutStep",
        "RunOutput",
        "RunStep",
    ),
    "executor.settings": ("PoolSettings", "Settings"),
    "executor.sync": ("Executor", "File", "Run", "Session"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
