"""One tree of errors. Every message says what was wrong, with which value, and what to do next.

    ExecutorError
    ├── BadRequestError            what the caller asked for cannot be done
    │   ├── BadPathError           a path, glob or cwd that leaves the workspace or is malformed
    │   ├── BadLimitError          a limit that cannot be read or cannot be met
    │   ├── GrantError             a tool or a grant that cannot be
    │   ├── StateError             what is kept on this machine cannot be read or written
    │   └── SessionClosedError     the session was closed before this call
    ├── SkillError                 about a skill
    │   ├── SkillNotFoundError     no such skill in the roots
    │   ├── SkillUnreadableError   the folder or its SKILL.md cannot be used
    │   ├── SkillSourceError       a place with skills cannot be reached, or what it has is refused
    │   └── DependencyError        what it needs is not there, cannot be locked, or is refused
    ├── RuntimeUnavailableError    the operator has to do something first
    │   ├── EngineDownError        no Docker engine answers
    │   ├── EngineForbiddenError   an engine is there, its socket is not ours to open
    │   ├── ImageMissingError      the image is not on the engine
    │   ├── BubblewrapMissingError
    │   ├── UserNamespacesOffError
    │   └── PlatformError          the runtime does not exist on this operating system
    └── SandboxError               a sandbox that was started
        ├── SandboxStartError      it did not come up, or not as it was ordered
        ├── SandboxLostError       it died or stopped answering; its files are gone
        └── ProtocolError          it broke the protocol; it has been destroyed

A script that fails is not an error: its exit status, time-out or kill is an `ExecResult`.
"""

from __future__ import annotations


class ExecutorError(Exception):
    """Base of everything this package raises. `hint` is the next step for a person, or ''."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class BadRequestError(ExecutorError):
    """The caller asked for something that cannot be done."""


class BadPathError(BadRequestError, ValueError):
    """A path, glob or cwd that is malformed or leaves the workspace."""


class BadLimitError(BadRequestError, ValueError):
    """A limit that cannot be read or cannot be met on this machine."""


class GrantError(BadRequestError, ValueError):
    """A tool, a schema or a grant that cannot be."""


class StateError(BadRequestError):
    """What is kept on this machine cannot be read or written: a full disk, a damaged or newer file."""


class SessionClosedError(BadRequestError):
    """The session was closed before this call."""


class SkillError(ExecutorError):
    """About a skill."""


class SkillNotFoundError(SkillError, LookupError):
    """No such skill in the roots."""


class SkillUnreadableError(SkillError, ValueError):
    """The folder or its SKILL.md cannot be used; the message holds the reason."""


class DependencyError(SkillError):
    """A skill's dependencies are not built, cannot be locked, or are refused."""


class SkillSourceError(SkillError):
    """A source of skills cannot be reached, or what it offers is refused."""


class RuntimeUnavailableError(ExecutorError):
    """A runtime cannot be used here until the operator does something."""


class EngineDownError(RuntimeUnavailableError):
    """No Docker engine answers at the address."""


class EngineForbiddenError(RuntimeUnavailableError):
    """The engine's socket exists but this user may not open it."""


class ImageMissingError(RuntimeUnavailableError):
    """The image is not on the engine (it is never pulled silently)."""


class BubblewrapMissingError(RuntimeUnavailableError):
    """`bwrap` is not installed."""


class UserNamespacesOffError(RuntimeUnavailableError):
    """The kernel refuses user namespaces to this user."""


class PlatformError(RuntimeUnavailableError):
    """The runtime does not exist on this operating system."""


class SandboxError(ExecutorError):
    """About a sandbox that was started."""


class SandboxStartError(SandboxError):
    """The sandbox did not come up, or not as it was ordered; it has been destroyed unused."""


class SandboxLostError(SandboxError):
    """The sandbox died or stopped answering. Files that were not collected are gone."""


class ProtocolError(SandboxError):
    """The guest broke the protocol. The sandbox has been destroyed."""
