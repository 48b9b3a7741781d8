"""What to do when a run failed because something was missing: recognised in its output, said in `warnings`.

The output is a script's and proves nothing: a hint changes no result, and quotes at most one plain name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from executor.errors import DependencyError
from executor.skills.packages import PYTHON_PACKAGES, canonical

LOOKED_AT = 16 << 10  # bytes at the end of each stream
MAX_HINTS = 3

# Programs that `images/office` has and `images/base` has not.
OFFICE = frozenset(
    (
        "soffice", "libreoffice", "localc", "lowriter", "pdftoppm", "pdftotext", "pdfinfo", "pdfimages",
        "pandoc", "tesseract", "convert", "magick", "identify", "mogrify", "gs", "ffmpeg", "ffprobe", "dot",
        "neato", "qpdf", "bun",
    )
)  # fmt: skip
OURS = frozenset(
    (
        "tool", "workspace-read", "workspace-list", "workspace-glob", "workspace-stat", "workspace-write",
        "output-write",
    )
)  # fmt: skip
"""Programs that a run has when it was granted something."""
INSTALLERS = ("ensurepip", "pip", "pip3", "uv")
_NO_TOOLS = "this run was granted no tools: give it a grant (docs/bridge.md)"
_NAME = r"([A-Za-z0-9_@][\w.@/+-]{0,99})"


@contextlib.contextmanager
def naming(skill: str) -> Iterator[None]:
    """Hints of errors say SKILL in their commands; further up they say `skill`, which is words of a shell."""
    try:
        yield
    except DependencyError as error:
        error.hint = re.sub(r"\bSKILL\b", lambda _match: skill, error.hint)
        raise


@dataclass(frozen=True)
class _Of:
    """The skill of a run: its words in a shell, and what it declares while nothing locks it."""

    words: str
    unlocked: Collection[str]


def _python(name: str, skill: _Of) -> str:
    top = name.split(".")[0]
    if top == "skill_tools":
        return _NO_TOOLS
    if top in INSTALLERS:
        return _pip("", skill)
    packages = PYTHON_PACKAGES.get(top, (canonical(top),))
    step = _declare(packages, "requirements.txt", skill)
    return f"there is no Python package {packages[0]!r} here. {step}"


def _node(name: str, skill: _Of) -> str:
    parts = name.split("/")
    package = "/".join(parts[:2]) if name.startswith("@") else parts[0]
    if package == "skill-tools":
        return _NO_TOOLS
    return f"there is no Node package {package!r} here. {_declare((package,), 'package.json', skill)}"


def _program(name: str, skill: _Of) -> str:
    if name in OURS:
        return _NO_TOOLS
    if name in INSTALLERS:
        return _pip("", skill)
    where = "images/office has it: executor images build office, then --image executor/office"
    if name not in OFFICE:
        where = "use an image that has it (--image), or a package that brings it"
    return f"there is no program {name!r} here; {where}"


def _known_program(name: str, skill: _Of) -> str:
    """Python says the same of a missing program and of a missing file."""
    return _program(name, skill) if name in OFFICE else ""


def _pip(name: str, skill: _Of) -> str:
    packages = (canonical(name),) if name else ()
    return f"nothing can be installed without a network. {_declare(packages, 'requirements.txt', skill)}"


def _npm(_name: str, skill: _Of) -> str:
    return f"nothing can be installed without a network. {_declare((), 'package.json', skill)}"


def _network(_name: str, _skill: _Of) -> str:
    return (
        "there is no network here. Bring what it fetches with --input, or grant its hosts: --allow-net HOST "
        "(docs/bridge.md)"
    )


def _declare(packages: Sequence[str], file: str, skill: _Of) -> str:
    """`packages`: other names of one of them; none where the output does not say which is missing."""
    then = f"executor deps lock {skill.words} && executor deps build {skill.words}"
    declared = [name for name in packages or skill.unlocked if name in skill.unlocked]
    if declared:
        what = f"{declared[0]!r} is declared and not locked" if packages else "What is declared is not locked"
        return f"{what}: {then}"
    return f"Declare {packages[0] if packages else 'what it needs'} in {file}, then: {then}"


# As text: most runs do not fail, and `re` keeps what it has compiled.
_TABLE: tuple[tuple[str, Callable[[str, _Of], str]], ...] = (
    (rf"ModuleNotFoundError: No module named '{_NAME}'", _python),
    (rf"No module named {_NAME}\s*\Z", _python),
    (rf"Cannot find (?:module|package) '{_NAME}'", _node),
    (r"Could not find a version that satisfies the requirement ([A-Za-z0-9][\w.-]{0,99})", _pip),
    (r"No matching distribution found for ([A-Za-z0-9][\w.-]{0,99})", _pip),
    (r"npm (?:error|ERR!) code (?:EAI_AGAIN|ENOTFOUND|ENOTCACHED|ECONNREFUSED)()", _npm),
    (rf"(?:line \d+: |: |^){_NAME}: (?:command )?not found", _program),
    (rf"No such file or directory: '{_NAME}'", _known_program),
    (rf"spawn {_NAME} ENOENT", _program),
    (rf"env: ['‘]?{_NAME}['’]?: No such file or directory", _program),
    (
        r"(?:Temporary failure in name resolution|Name or service not known|Could not resolve host"
        r"|getaddrinfo E(?:AI_AGAIN|NOTFOUND)|nodename nor servname|[Nn]etwork is unreachable)()",
        _network,
    ),
)


def hints(stdout: bytes, stderr: bytes, skill: str = "SKILL", *, unlocked: Collection[str] = ()) -> list[str]:
    """Sentences for what the ends of a failed run's output name as missing.

    `skill`: its words in a shell. `unlocked`: packages that it declares and that nothing locks.
    """
    of = _Of(skill, unlocked)
    found: list[str] = []
    seen: set[tuple[object, str]] = set()
    for stream in (stderr, stdout):
        for line in stream[-LOOKED_AT:].decode("utf-8", "replace").splitlines()[-200:]:
            for pattern, make in _TABLE:
                match = re.search(pattern, line[:1000])
                if match is None or (make is _program and "/" in match[1]):
                    continue
                if (make, match[1]) not in seen:
                    seen.add((make, match[1]))
                    found.append(make(match[1], of))
                break
        if len(found) >= MAX_HINTS:
            break
    return list(dict.fromkeys(filter(None, found)))[:MAX_HINTS]
