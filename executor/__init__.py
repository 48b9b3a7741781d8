"""A sandboxed script-execution backend for Agent Skills.

from executor import Executor, Limits

with Executor(skills=["./skills"]) as ex, ex.session(limits=Limits(memory="1g")) as s:
    s.put("inputs/sales.csv", data)
    result = s.exec("python3 scripts/report.py inputs/sales.csv", skill="sales-report", outputs=["out/**"])
"""

from executor.errors import (
    BadLimitError,
    BadPathError,
    BadRequestError,
    BubblewrapMissingError,
    EngineDownError,
    EngineForbiddenError,
    ExecutorError,
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
    SkillUnreadableError,
    UserNamespacesOffError,
)
from executor.executor import AsyncExecutor
from executor.models import ExecResult, Limits, OutputFile, OutputLimits, Usage
from executor.session import AsyncFile, AsyncRun, AsyncSession, RunOutput
from executor.settings import Settings
from executor.sync import Executor, File, Run, Session

__version__ = "0.1.0"

__all__ = [
    "AsyncExecutor",
    "AsyncFile",
    "AsyncRun",
    "AsyncSession",
    "BadLimitError",
    "BadPathError",
    "BadRequestError",
    "BubblewrapMissingError",
    "EngineDownError",
    "EngineForbiddenError",
    "ExecResult",
    "Executor",
    "ExecutorError",
    "File",
    "ImageMissingError",
    "Limits",
    "OutputFile",
    "OutputLimits",
    "PlatformError",
    "ProtocolError",
    "Run",
    "RunOutput",
    "RuntimeUnavailableError",
    "SandboxError",
    "SandboxLostError",
    "SandboxStartError",
    "Session",
    "SessionClosedError",
    "Settings",
    "SkillError",
    "SkillNotFoundError",
    "SkillUnreadableError",
    "Usage",
    "UserNamespacesOffError",
    "__version__",
]
