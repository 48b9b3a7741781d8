"""A session: one sandbox with a workspace and skills.

`session.py` has what a caller sees; the other files are its parts.
"""

from executor.session.files import AsyncFile, Collected
from executor.session.prepare import LoadStep, PutStep, RunStep
from executor.session.run import AsyncRun, RunOutput
from executor.session.session import AsyncSession, Command, Source

__all__ = [
    "AsyncFile",
    "AsyncRun",
    "AsyncSession",
    "Collected",
    "Command",
    "LoadStep",
    "PutStep",
    "RunOutput",
    "RunStep",
    "Source",
]
