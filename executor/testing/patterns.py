"""Regular expressions of case files, searched for in a process of their own, which can be ended.

`re` tries every way in which a pattern might match, and holds the interpreter all the while: `(a+)+b` on
thirty letters would stop every case, and the life signs of every sandbox. Pattern and text are strangers'.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

SECONDS = 5.0  # for the patterns of one text, together
MEMORY = 1 << 30  # bytes of address space

# The alarm is for a process whose parent was killed.
_PROGRAM = """
import json, re, signal, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
    signal.alarm(int(sys.argv[1]))
except (ImportError, AttributeError, OSError, ValueError):
    pass
text, patterns = json.load(sys.stdin)
for pattern in patterns:
    print(int(re.search(pattern, text, re.MULTILINE) is not None), flush=True)
"""


def search(patterns: Sequence[str], text: str) -> list[bool | None]:
    """Whether each pattern is found in the text; None for one that took too long or too much memory, and for
    those behind it. The patterns have been compiled before.
    """
    if not patterns:
        return []
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(int(SECONDS) + 2), str(MEMORY)]
    given = json.dumps([text, patterns]).encode("ascii")
    try:
        said = subprocess.run(command, input=given, capture_output=True, timeout=SECONDS).stdout
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
    found: list[bool | None] = [word == b"1" for word in said.split()]
    return found + [None] * (len(patterns) - len(found))
