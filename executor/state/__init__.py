"""What outlives a process: one database beside the contents of checkpoints, in the state folder.

`database.py` opens the file and changes it; `sessions.py` keeps sessions, their runs and outputs in it.
Loaded skills are kept in the same file by `executor.skills.store`, contents by `executor.workspace.objects`.
"""

from executor.state.database import FILE, Database
from executor.state.sessions import KeptRun, KeptSession, Sessions

__all__ = ["FILE", "Database", "KeptRun", "KeptSession", "Sessions"]
