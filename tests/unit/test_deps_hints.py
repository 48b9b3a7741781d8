"""A run that failed because something is missing says what to do; one that did not, says nothing."""

from __future__ import annotations

import pytest

from executor.deps.hints import LOOKED_AT, MAX_HINTS, hints

# Real output (shortened) and what the hint has to name.
SAID = {
    "no pip": ("/usr/bin/python3: No module named pip", "nothing can be installed without a network"),
    "no pip in a shell": ("bash: line 1: pip: command not found", "nothing can be installed"),
    "python import": ("ModuleNotFoundError: No module named 'yaml'", "'pyyaml'"),
    "python submodule": ("ModuleNotFoundError: No module named 'matplotlib.pyplot'", "'matplotlib'"),
    "python -m": ("/usr/bin/python3: No module named pytest", "'pytest'"),
    "node cjs": ("Error: Cannot find module 'docx'", "'docx'"),
    "node esm": ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'marked' imported from /a.mjs", "marked"),
    "node scoped": ("Error: Cannot find module '@scope/name/sub'", "'@scope/name'"),
    "bash": ("scripts/a.sh: line 3: soffice: command not found", "'soffice' here; images/office"),
    "bash -c": ("bash: line 1: cmake: command not found", "'cmake' here; use an image"),
    "sh": ("sh: 1: pandoc: not found", "'pandoc'"),
    "python subprocess": ("FileNotFoundError: [Errno 2] No such file or directory: 'pdftoppm'", "'pdftoppm'"),
    "node spawn": ("Error: spawn dot ENOENT", "'dot'"),
    "env": ("env: ‘bun’: No such file or directory", "'bun'"),
    "no grant, Python": ("ModuleNotFoundError: No module named 'skill_tools'", "granted no tools"),
    "no grant, Node": ("Error: Cannot find package 'skill-tools'", "granted no tools"),
    "no grant, Bash": ("a.sh: line 1: tool: command not found", "granted no tools"),
    "pip": ("ERROR: No matching distribution found for reportlab", "reportlab"),
    "pip, versions": ("ERROR: Could not find a version that satisfies the requirement pypdf (", "pypdf"),
    "npm": ("npm error code ENOTCACHED", "in package.json, then: executor deps lock report"),
    "name, python": ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "no network"),
    "name, node": ("Error: getaddrinfo EAI_AGAIN example.org", "no network"),
    "name, curl": ("curl: (6) Could not resolve host: example.org", "no network"),
    "route": ("OSError: [Errno 101] Network is unreachable", "no network"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_missing_is_named_with_the_next_step(name: str) -> None:
    line, part = SAID[name]
    noise = b"Traceback (most recent call last):\n  File x\n"
    (found,) = hints(b"", noise + line.encode() + b"\n", "report")
    assert part in found
    assert hints(line.encode(), b"", "report") == [found]  # on stdout too


@pytest.mark.parametrize(
    "line",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'sales.csv'",
        "Error: Cannot find module './lib/x'",
        "Error: Cannot find module '/skills/x/y.js'",
        "ValueError: no module is named so",
        "the command was not found",
        "",
    ],
)
def test_other_failures_get_no_hint(line: str) -> None:
    assert hints(b"", line.encode(), "report") == []


def test_a_hint_names_the_skill_and_its_commands() -> None:
    (found,) = hints(b"", b"ModuleNotFoundError: No module named 'numpy'", "plots")
    assert "executor deps lock plots && executor deps build plots" in found
    (found,) = hints(b"", b"ModuleNotFoundError: No module named 'numpy'")
    assert "executor deps lock SKILL" in found


@pytest.mark.parametrize(
    ("line", "unlocked", "said"),
    [
        (
            "ModuleNotFoundError: No module named 'cv2'",
            {"opencv-python-headless"},
            "'opencv-python-headless'",
        ),
        ("ERROR: No matching distribution found for My_Pkg", {"my-pkg"}, "'my-pkg'"),
        ("Error: Cannot find module '@scope/name/sub'", {"@scope/name"}, "'@scope/name'"),
        ("/usr/bin/python3: No module named pip", {"numpy"}, "What"),
    ],
)
def test_what_is_declared_and_not_locked_is_to_be_locked(line: str, unlocked: set[str], said: str) -> None:
    (found,) = hints(b"", line.encode(), "plots", unlocked=unlocked)
    assert f"{said} is declared" in found and "Declare" not in found
    assert found.endswith(" not locked: executor deps lock plots && executor deps build plots")
    (found,) = hints(b"", line.encode(), "plots", unlocked={"other"} if said != "What" else ())
    assert "Declare " in found


def test_hostile_output_gives_few_and_plain_hints() -> None:
    many = "\n".join(f"ModuleNotFoundError: No module named 'p{number}'" for number in range(1000))
    assert len(hints(b"", many.encode())) == MAX_HINTS
    evil = b"ModuleNotFoundError: No module named '\x1b[31m$(rm -rf /)'\n" + b"a" * (4 * LOOKED_AT)
    assert hints(evil, evil) == []
    long = b"No module named '" + b"x" * 5000 + b"'"
    assert hints(b"", long) == []
