"""Where skills of a project, of a user and of an application usually lie, and a folder for each of its users.

Executor(skills=usual_roots(builtin=[package / "skills"]))
Executor(skills=[scoped_root("/srv/skills", app="shop", user=user_id), "/srv/skills/shared"])
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from executor.errors import BadRequestError

PROJECT = ("skills", ".agents/skills", ".claude/skills")
USER = (".config/agent/skills", ".agents/skills", ".claude/skills")
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,128}")


def usual_roots(
    project: str | os.PathLike[str] = ".",
    *,
    home: str | os.PathLike[str] = "~",
    builtin: Iterable[str | os.PathLike[str]] = (),
) -> list[Path]:
    """The project's folders, then the user's, then `builtin`: the first one with a skill wins.

    Those that do not exist are in the list too, for they may come to be.
    """
    above, own = Path(project), Path(os.path.expanduser(home))
    return [*(above / name for name in PROJECT), *(own / name for name in USER), *map(Path, builtin)]


def scoped_root(base: str | os.PathLike[str], *, app: str = "", user: str = "") -> Path:
    """The root of an application, or of a user of it, below `base`; `base` itself without an application.

    A name that is no plain path component becomes `id-` and 16 digits, always the same ones. BadRequestError
    for a user without an application.
    """
    if user and not app:
        raise BadRequestError(f"skills of the user {user[:80]!r} belong to an application: give app too")
    if not app:
        return Path(base)
    if not user:
        return Path(base) / "apps" / _part(app)
    return Path(base) / "users" / _part(app) / _part(user)


def _part(name: str) -> str:
    if _PLAIN.fullmatch(name) and ".." not in name and name != ".":
        return name
    return "id-" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
