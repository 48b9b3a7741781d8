"""Code that a model wrote to call tools: which text of its reply is code, and how it is started.

Python is run with `await` allowed everywhere and the granted tools as functions of its globals; the value is
that of its last expression. Node is a module with the same globals; the value is its default export.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from executor.errors import BadRequestError

if TYPE_CHECKING:
    from executor.bridge.scripts import Plan

Language = Literal["python", "node"]
MAX_CODE = 64 << 10  # bytes, unless the caller says otherwise
FILES: dict[str, str] = {"python": "python/code.py", "node": "node/code.mjs"}
# What a fenced block may call itself → the language.
FENCES: dict[str, Language] = {
    "python": "python",
    "py": "python",
    "python3": "python",
    "javascript": "node",
    "js": "node",
    "mjs": "node",
    "node": "node",
}
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`\n]*")


def plan(code: str, language: str, most: int) -> tuple[Plan, bytes]:
    """How the code is started, and its bytes. BadRequestError when it is too long or of another language."""
    # Here, because `session.py` needs the constants above also when it runs no code.
    from executor.bridge.scripts import Plan

    if language not in FILES:
        raise BadRequestError(f"code in {language!r} cannot be run", hint=f"One of {', '.join(FILES)}.")
    try:
        content = code.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequestError("the code holds lone surrogates, which are no characters") from None
    if len(content) > most:
        raise BadRequestError(f"the code has {len(content):,} bytes, at most {most:,}")
    if b"\0" in content:
        raise BadRequestError("the code holds a NUL byte")
    return Plan(language, "function", {"SKILL_SCRIPT_CODE": "1"}), content  # type: ignore[arg-type]


def of_reply(text: str) -> tuple[Language, str] | None:
    """The code of a reply that has exactly one fenced block, of a language that can be run; else None."""
    blocks: list[tuple[str, list[str]]] = []
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line.rstrip("\r"))
        if not fence:
            if match is not None:
                fence = match[1]
                blocks.append((match[2].lower(), []))
        elif match is not None and match[1].startswith(fence) and not match[2]:
            fence = ""
        else:
            blocks[-1][1].append(line)
    if fence or len(blocks) != 1 or blocks[0][0] not in FENCES:
        return None
    return FENCES[blocks[0][0]], "\n".join(blocks[0][1]) + "\n"
