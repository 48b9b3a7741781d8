"""Lint says what is wrong with a skill, on which line, and says nothing about a good one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import sarif_pydantic
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from executor.errors import BadPathError, BadRequestError, SkillNotFoundError
from executor.skills import lint

REPOSITORY = Path(__file__).resolve().parents[2]
HEAD = b"---\nname: demo\ndescription: Does a thing. Use it for things.\n---\n"
BODY = b"\n# Demo\n\nDo it.\n"
PROGRAM = b"#!/usr/bin/env python3\nprint(1)\n"

Found = list[tuple[str, str, int]]


def make(root: Path, text: bytes, *, folder: str = "demo", **files: bytes) -> Path:
    skill = root / folder
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_bytes(text)
    for name, data in files.items():
        write(skill / name.replace("__", "/"), data)
    return skill


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def found(root: Path, *, ignore: tuple[str, ...] = ()) -> Found:
    """(rule, file, line) of every finding."""
    findings = lint.lint([str(root)], ignore=ignore).findings
    return [(finding.rule.id, finding.path, finding.line) for finding in findings]


# --- good skills --------------------------------------------------------------------------------------------

# The examples of the public specification, with the files that they name.
SPECIFICATION: dict[str, tuple[str, bytes, Mapping[str, bytes]]] = {
    "minimal": (
        "skill-name",
        b"---\nname: skill-name\ndescription: A description of what it does and when to use it.\n---\n"
        b"\nInstructions.\n",
        {},
    ),
    "with optional fields": (
        "pdf-processing",
        b"---\nname: pdf-processing\ndescription: Extract PDF text, fill forms, merge files. Use it "
        b"for PDFs.\nlicense: Apache-2.0\nmetadata:\n  author: org\n  version: \"1.0\"\n---\n\nSteps.\n",
        {},
    ),
    "license, compatibility and tools": (
        "data-analysis",
        b"---\nname: data-analysis\ndescription: Analyse data.\nlicense: Proprietary. LICENSE.txt has "
        b"complete terms\ncompatibility: Requires git, docker, jq, and access to the internet\n"
        b"allowed-tools: Bash(git:*) Bash(jq:*) Read\n---\n\nSteps.\n",
        {"scripts/get.sh": b"#!/bin/bash\ncurl https://example.org\n"},
    ),
    "file references": (
        "code-review",
        b"---\nname: code-review\ndescription: >-\n  Reviews code: style, bugs # and tests.\n---\n\n"
        b"See [the reference guide](references/REFERENCE.md) for details.\n\n"
        b"Run the extraction script:\nscripts/extract.py\n",
        {"references/REFERENCE.md": b"# Reference\n", "scripts/extract.py": PROGRAM},
    ),
}  # fmt: skip


@pytest.mark.parametrize("example", SPECIFICATION)
def test_the_examples_of_the_specification_have_no_finding(tmp_path: Path, example: str) -> None:
    folder, text, files = SPECIFICATION[example]
    skill = make(tmp_path, text, folder=folder)
    for name, data in files.items():
        write(skill / name, data, 0o755)
    assert found(tmp_path) == []


def test_the_skills_of_this_project_have_no_finding() -> None:
    linted = lint.lint([str(REPOSITORY / "skills")])
    assert [os.path.basename(path) for path in linted.skills] == [
        "heatmap-png",
        "log-digest",
        "sales-report",
        "table-convert",
    ]
    assert linted.findings == ()


def test_one_skill_may_be_given_by_its_folder(tmp_path: Path) -> None:
    skill = make(tmp_path, b"no front matter\n")
    assert found(skill) == [("front-missing", "SKILL.md", 1)]


# --- SKILL.md -----------------------------------------------------------------------------------------------

_NAMED = b"---\nname: demo\n"
SHAPES: dict[str, tuple[bytes, list[tuple[str, int]]]] = {
    "colon and blank in a description": (
        _NAMED + b"description: Reads: and writes\n---\n" + BODY,
        [("front-yaml", 3)],
    ),
    "hash in a description": (_NAMED + b"description: Tags and #names\n---\n" + BODY, [("front-hash", 3)]),
    "flow map in metadata": (
        _NAMED + b"description: d\nmetadata:\n  openclaw: {requires: {bins: [jq]}}\n---\n" + BODY,
        [("front-flow", 5), ("metadata-nested", 5)],
    ),
    "no front matter": (b"# Title\n\ntext\n", [("front-missing", 1)]),
    "rules and names in the body only": (b"# T\n---\n**Name**: x\n---\n", [("front-missing", 1)]),
    "keys twice, once in capitals": (
        _NAMED + b"Name: Demo\ndescription: d\nTier: x\n---\n" + BODY,
        [("front-key-case", 3), ("front-key-unknown", 5)],
    ),
    "a date and a number in metadata": (
        _NAMED + b"description: d\nmetadata:\n  updated: 2026-01-02\n  version: 1.0\n---\n" + BODY,
        [("front-type", 5), ("front-type", 6)],
    ),
    "capitals and blanks in the name": (
        b"---\nname: When Stuck - Do\ndescription: d\n---\n" + BODY,
        [("name-characters", 2), ("name-folder", 2)],
    ),
    "tools as a list": (
        _NAMED + b"description: d\nallowed-tools:\n  - Read\n---\n" + BODY,
        [("tools-form", 4)],
    ),
    "tools as a flow list": (
        _NAMED + b"description: d\nallowed-tools: [Read, Grep]\n---\n" + BODY,
        [("front-flow", 4), ("tools-form", 4)],
    ),
    "tools parted by commas": (
        _NAMED + b"description: d\nallowed-tools: Read, Bash(git log, git show)\n---\n" + BODY,
        [("tools-form", 4)],
    ),
    "a long description": (
        _NAMED + b"description: " + b"d" * 1025 + b"\n---\n" + BODY,
        [("description-length", 3)],
    ),
    "a description in angle brackets": (
        _NAMED + b"description: Makes <svg> files\n---\n" + BODY,
        [("description-angle", 3)],
    ),
    "a long compatibility": (
        _NAMED + b"description: d\ncompatibility: " + b"c" * 501 + b"\n---\n" + BODY,
        [("compatibility-length", 4)],
    ),
    "compatibility as a map": (
        _NAMED + b"description: d\ncompatibility:\n  os: linux\n---\n" + BODY,
        [("compatibility-type", 4)],
    ),
    "CRLF": ((HEAD + BODY).replace(b"\n", b"\r\n"), [("crlf", 1)]),
    "byte order mark": (b"\xef\xbb\xbf" + HEAD + BODY, [("bom", 1)]),
    "byte order mark and no front matter": (b"\xef\xbb\xbf# T\n", [("bom", 1), ("front-missing", 1)]),
    "a NUL byte": (HEAD + b"a\nb\0\n", [("skill-unreadable", 6)]),
    "RTF": (b"{\\rtf1 hello}", [("skill-unreadable", 1)]),
    "not UTF-8": (HEAD + b"\nna\xefve\n", [("encoding", 6)]),
    "a control character": (_NAMED + b"description: a\x01b\n---\n" + BODY, [("front-control", 3)]),
    "a number as a name": (
        b"---\nname: 8004\ndescription: d\n---\n" + BODY,
        [("front-type", 2), ("name-folder", 2)],
    ),
    "a list as a description": (
        _NAMED + b"description: [TODO: say it]\n---\n" + BODY,
        [("front-type", 3)],
    ),
    "Cyrillic with a blank": (
        b"---\nname: \xd0\xbf \xd1\x80\ndescription: d\n---\n" + BODY,
        [("name-characters", 2), ("name-folder", 2)],
    ),
    "a slash in the name": (
        b"---\nname: CI/CD\ndescription: d\n---\n" + BODY,
        [("name-characters", 2), ("name-folder", 2)],
    ),
    "a colon in the name": (
        b"---\nname: kradleverse:act\ndescription: d\n---\n" + BODY,
        [("name-characters", 2), ("name-folder", 2)],
    ),
    "an underscore in the name": (
        b"---\nname: google_admin\ndescription: d\n---\n" + BODY,
        [("name-characters", 2), ("name-folder", 2)],
    ),
    "a hyphen at the beginning of the name": (
        b"---\nname: -21risk\ndescription: d\nrequires: {mcp: [x]}\n---\n" + BODY,
        [("name-characters", 2), ("name-folder", 2), *[("front-flow", 4)] * 2, ("front-key-unknown", 4)],
    ),
    "a name that is not the folder's": (
        b"---\nname: vercel-demo\ndescription: d\n---\n" + BODY,
        [("name-folder", 2)],
    ),
    "a long description in a block": (
        _NAMED + b"description: |\n" + b"  words and words\n" * 70 + b"---\n" + BODY,
        [("description-length", 3)],
    ),
    "hints in brackets and a switch": (
        _NAMED + b"description: d\nargument-hint: [file]\ndisable-model-invocation: true\n---\n" + BODY,
        [("front-flow", 4), ("front-key-unknown", 4), ("front-key-unknown", 5)],
    ),
    "an empty list in metadata": (
        _NAMED + b"description: d\nmetadata:\n  depends_on: []\n---\n" + BODY,
        [("front-flow", 5), ("metadata-nested", 5)],
    ),
    "a repeated key": (
        _NAMED + b"description: a\ndescription: b\n---\n" + BODY,
        [("front-duplicate", 4)],
    ),
    "wrapped in a code fence": (b"```skill\n" + HEAD + BODY + b"```\n", [("front-wrapped", 1)]),
    "a blank line first": (b"\n" + HEAD + BODY, [("front-late", 1)]),
    "hyphens inside a value": (_NAMED + b"description: a --- b\n---\n" + BODY, [("front-dashes", 3)]),
    "a glued fence": (_NAMED + b"description: d\n---# Demo\n\ntext\n", [("front-glued", 4)]),
    "no closing fence": (_NAMED + b"description: d\n\n# Demo\n", [("front-unclosed", 1)]),
    "a bare dash": (
        _NAMED + b"description: d\nhomepage: -\n---\n" + BODY,
        [("front-yaml", 4), ("front-key-unknown", 4)],
    ),
    "metadata as a JSON string": (
        _NAMED + b"description: d\nmetadata: '{\"a\": 1}'\n---\n" + BODY,
        [("metadata-type", 4)],
    ),
    "a brace at the margin": (
        _NAMED + b'description: d\nmetadata: {\n  "a": "b"\n}\n---\n' + BODY,
        [("front-flow", 4), ("front-brace", 6)],
    ),
    "stars at the start": (_NAMED + b"description: ** bold ** text\n---\n" + BODY, [("front-yaml", 3)]),
    "an alias": (_NAMED + b"description: *note\n---\n" + BODY, [("skill-unreadable", 3)]),
    "no name": (b"---\ndescription: d\n---\n" + BODY, [("name-missing", 1)]),
    "an empty name": (b"---\nname:\ndescription: d\n---\n" + BODY, [("name-missing", 1)]),
    "a long name": (
        b"---\nname: " + b"n" * 65 + b"\ndescription: d\n---\n" + BODY,
        [("name-length", 2), ("name-folder", 2)],
    ),
    "two hyphens": (
        b"---\nname: a--b\ndescription: d\n---\n" + BODY,
        [("name-characters", 2), ("name-folder", 2)],
    ),
    "no description": (b"---\nname: demo\n---\n" + BODY, [("description-missing", 1)]),
    "an empty description": (_NAMED + b"description:\n---\n" + BODY, [("description-missing", 3)]),
    "an unknown key": (_NAMED + b"description: d\nversion: 1\n---\n" + BODY, [("front-key-unknown", 4)]),
    "no body": (HEAD, [("body-empty", 5)]),
    "a long body": (HEAD + b"line\n" * 501, [("body-length", 5)]),
    "an empty file": (b"", [("front-missing", 1), ("body-empty", 1)]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_awkward_skill_md_has_findings_with_lines(tmp_path: Path, shape: str) -> None:
    text, expected = SHAPES[shape]
    make(tmp_path, text)
    assert [(rule, line) for rule, file, line in found(tmp_path) if file == "SKILL.md"] == expected


def test_a_lower_case_file_name_is_reported_and_renamed(tmp_path: Path) -> None:
    skill = make(tmp_path, HEAD + BODY)
    (skill / "SKILL.md").rename(skill / "skill.md")
    findings = lint.lint([str(tmp_path)]).findings
    assert [(f.rule.id, f.path) for f in findings] == [("skill-file-name", "skill.md")]
    assert lint.fix(findings) == 1
    assert found(tmp_path) == []


def test_two_spellings_in_one_folder_are_an_error(tmp_path: Path) -> None:
    skill = make(tmp_path, HEAD + BODY)
    write(skill / "skill.md", HEAD)
    assert found(tmp_path) == [("skill-file-twice", "SKILL.md", 1)]


def test_a_skill_md_that_is_a_link_out_of_the_skill_or_to_nothing_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere.md", HEAD + BODY)
    for name, target in (("away", "../elsewhere.md"), ("gone", "nothing.md")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").symlink_to(target)
    findings = lint.lint([str(tmp_path)]).findings
    assert [(os.path.basename(f.skill), f.rule.id, f.path) for f in findings] == [
        ("away", "skill-link", "SKILL.md"),
        ("gone", "skill-link", "SKILL.md"),
    ]


def test_what_the_body_names_has_to_be_there(tmp_path: Path) -> None:
    body = (
        b"\nSee [guide](references/guide.md), [again](references/guide.md#x), [site](https://x.org/a.md),\n"
        b"[here](#top), [mail](mailto:a@b.c), [up](../other/x.md) and ![p](assets/logo.png \"Logo\").\n"
        b"Run `python3 scripts/gone.py in.csv` or ${SKILL_DIR}/scripts/there.py, never scripts/*.py.\n"
        b"Write `[text](some/link.md)` like this, and put scripts/your_script.py beside x/scripts/a.py.\n"
        b"```\n[not](a/link.md)\nscripts/gone-too.sh --help\n```\n"
    )  # fmt: skip
    make(tmp_path, HEAD + body, scripts__there=b"", **{"scripts__there.py": b"print(1)\n"})
    assert found(tmp_path) == [
        ("file-missing", "SKILL.md", 6),
        ("file-missing", "SKILL.md", 7),
        ("file-outside", "SKILL.md", 7),
        ("file-named-missing", "SKILL.md", 8),
        ("file-named-missing", "SKILL.md", 12),
    ]


# --- the folder ---------------------------------------------------------------------------------------------


def test_links_that_leave_the_skill_or_lead_nowhere(tmp_path: Path) -> None:
    skill = make(tmp_path, HEAD + BODY, **{"references__a.md": b"a"})
    (skill / "inside.md").symlink_to("references/a.md")
    (skill / "host").symlink_to("/etc")
    (skill / "gone").symlink_to("../demo2/x")
    assert found(tmp_path) == [("link-dangling", "gone", 1), ("link-outside", "host", 1)]


def test_names_that_hide_or_break_something(tmp_path: Path) -> None:
    make(
        tmp_path, HEAD + BODY, **{"-rf": b"", "a\x1b[2Jb.txt": b"", "x\u202efdp.exe": b"", "a b (1).txt": b""}
    )
    assert [(rule, file) for rule, file, _ in found(tmp_path)] == [
        ("file-name", "-rf"),
        ("file-name", "a\x1b[2Jb.txt"),
        ("file-name", "x\u202efdp.exe"),
    ]
    shown = lint.render("text", (), lint.lint([str(tmp_path)]).findings, below=str(tmp_path))
    assert "\x1b" not in shown and "\u202e" not in shown
    assert "demo/a\\x1b[2Jb.txt:1: warning file-name" in shown


def test_a_pipe_is_no_file_of_a_skill_and_is_never_opened(tmp_path: Path) -> None:
    skill = make(tmp_path, HEAD + BODY)
    os.mkfifo(skill / "scripts.py")
    assert found(tmp_path) == [("file-special", "scripts.py", 1)]


def test_own_folders_nested_skills_and_modes(tmp_path: Path) -> None:
    skill = make(tmp_path, HEAD + BODY, **{"out__x.txt": b"x"})
    (skill / "SKILL.md").chmod(0o755)
    make(skill, HEAD.replace(b"demo", b"inner") + BODY, folder="inner", **{"run.sh": b"#!/bin/sh\n"})
    assert found(tmp_path) == [
        ("skill-executable", "SKILL.md", 1),
        ("skill-nested", "inner/SKILL.md", 1),
        ("own-folder", "out", 1),
        ("script-mode", "run.sh", 1),
    ]


def test_a_large_skill_is_reported(tmp_path: Path) -> None:
    skill = make(tmp_path, HEAD + BODY)
    with open(skill / "big.bin", "wb") as file:
        file.truncate((16 << 20) + 1)
    assert found(tmp_path) == [("skill-size", "SKILL.md", 1)]


def test_two_skills_with_one_name(tmp_path: Path) -> None:
    make(tmp_path / "a", HEAD + BODY)
    make(tmp_path / "b", HEAD + BODY)
    findings = lint.lint([str(tmp_path)]).findings
    assert [(f.rule.id, f.skill) for f in findings] == [("name-duplicate", str(tmp_path / "b" / "demo"))]


# --- scripts ------------------------------------------------------------------------------------------------


def scripts(root: Path, head: bytes = HEAD, **files: bytes) -> Found:
    skill = make(root, head + BODY)
    for name, data in files.items():
        write(skill / name.replace("__", "/").replace("_dot_", "."), data, 0o755)
    return found(root)


def test_how_scripts_start(tmp_path: Path) -> None:
    skill = make(tmp_path, HEAD + BODY)
    write(skill / "a.sh", b"#!/bin/bash\necho 1\n")
    write(skill / "b.sh", b"echo 1\r\n", 0o644)
    write(skill / "c", b"\xef\xbb\xbf#!/bin/sh\n", 0o755)
    write(skill / "d.py", b"#!/opt/anaconda3/bin/python3\nprint(1)\n", 0o755)
    write(skill / "e.sh", b"#!/bin/bash\\nset -e\\necho 1\\necho 2\n", 0o755)
    write(skill / "f.py", b"print(1)\r\n")
    assert found(tmp_path) == [
        ("script-mode", "a.sh", 1),
        ("script-crlf", "b.sh", 1),
        ("script-bom", "c", 1),
        ("script-shebang", "d.py", 1),
        ("script-one-line", "e.sh", 1),
    ]


def test_undeclared_python_packages_are_named_once(tmp_path: Path) -> None:
    code = (
        b"import os, json\nimport yaml\nfrom PIL import Image\nimport helper\nfrom . import sibling\n"
        b"from matplotlib import pyplot\nimport numpy as np\nimport docx\n"
        b"try:\n    import orjson\nexcept ImportError:\n    orjson = None\n"
        b"try:\n    import lxml\nexcept ImportError:\n    raise SystemExit('pip')\n"
    )
    assert scripts(
        tmp_path,
        HEAD.replace(b"\n---\n", b"\ncompatibility: Needs numpy\n---\n\n`pip install python-docx`\n", 1),
        scripts__a_dot_py=code,
        scripts__b_dot_py=b"import yaml\n",
        scripts__helper_dot_py=b"",
        requirements_dot_txt=b"Pillow>=10\n",
    ) == [
        ("import-undeclared", "scripts/a.py", 2),
        ("import-undeclared", "scripts/a.py", 6),
        ("import-undeclared", "scripts/a.py", 14),
    ]


def test_inline_metadata_declares_python_packages(tmp_path: Path) -> None:
    code = b'# /// script\n# dependencies = ["pandas>=2", "rich"]\n# ///\nimport pandas, rich, polars\n'
    assert scripts(tmp_path, scripts__a_dot_py=code) == [("import-undeclared", "scripts/a.py", 4)]


def test_undeclared_node_packages(tmp_path: Path) -> None:
    code = (
        b"import fs from 'node:fs';\nimport path from 'path';\nimport { x } from './x.mjs';\n"
        b"// import no from 'commented';\nimport sharp from 'sharp';\nconst d = require('@scope/d/sub');\n"
        b"import marked from 'marked';\n"
    )
    declared = b'{"dependencies": {"marked": "^1"}}'
    assert scripts(tmp_path, scripts__a_dot_mjs=code, package_dot_json=declared) == [
        ("import-undeclared", "scripts/a.mjs", 5),
        ("import-undeclared", "scripts/a.mjs", 6),
    ]


NETWORK = {
    "get.py": (b"import urllib.parse\nimport urllib.request\n", 2),
    "from.py": (b"from urllib import request\n", 1),
    "get.sh": (b"#!/bin/bash\n# curl x\nset -e\nx=$(curl -s https://example.org)\n", 4),
    "pip.sh": (b"#!/bin/bash\nif true; then pip install numpy; fi\n", 2),
    "get.mjs": (b"const r = await fetch('https://example.org');\n", 1),
}
NO_NETWORK = {
    "parse.py": b"from urllib.parse import quote\nimport http.server\nimport socket\n",
    "local.sh": b"#!/bin/bash\ncurl http://localhost:80/\necho 'curl x'\necho \"wget y\"\ncommand -v curl\n",
    "here.sh": b"#!/bin/bash\ncat <<EOF\ncurl https://example.org\nEOF\ngit status\n",
    "local.mjs": b"await fetch('http://localhost:1/');\n",
}


@pytest.mark.parametrize("name", NETWORK)
def test_a_script_that_needs_the_network(tmp_path: Path, name: str) -> None:
    data, line = NETWORK[name]
    write(make(tmp_path, HEAD + BODY) / name, data, 0o755)
    assert found(tmp_path) == [("network", name, line)]


@pytest.mark.parametrize("name", NO_NETWORK)
def test_a_script_that_only_looks_like_it(tmp_path: Path, name: str) -> None:
    write(make(tmp_path, HEAD + BODY) / name, NO_NETWORK[name], 0o755)
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        (b"Requires access to the internet", False),
        (b"Python only. No network.", True),
        (b"Works offline", True),
    ],
)
def test_the_network_is_no_news_where_compatibility_says_it(
    tmp_path: Path, said: bytes, reported: bool
) -> None:
    head = HEAD.replace(b"\n---\n", b"\ncompatibility: " + said + b"\n---\n", 1)
    write(make(tmp_path, head + BODY) / "get.py", NETWORK["get.py"][0])
    assert found(tmp_path) == ([("network", "get.py", 2)] if reported else [])


def test_a_script_that_does_not_parse(tmp_path: Path) -> None:
    assert scripts(tmp_path, a_dot_py=b"x = 1\nprint 'python 2'\n") == [("script-syntax", "a.py", 2)]


def test_hostile_python_does_not_stop_lint(tmp_path: Path) -> None:
    deep = b"(" * 60_000
    assert [rule for rule, _, _ in scripts(tmp_path, a_dot_py=deep, b_dot_py=b"x\0y")] == [
        "script-syntax"
    ] * 2
    # In CPython this takes a time that grows with the square of its length: minutes for this one.
    slow = b'x = f"' + b"{a}" * 300_000 + b'"\n'
    assert scripts(tmp_path, a_dot_py=slow, b_dot_py=b"") == [("script-long", "a.py", 1)]


@given(text=st.binary(max_size=400), script=st.binary(max_size=200), name=st.sampled_from(sorted(SHAPES)))
@settings(max_examples=150, deadline=None)
def test_no_bytes_stop_lint_or_its_fixes(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, script: bytes, name: str
) -> None:
    root = tmp_path_factory.mktemp("fuzz")
    shape = SHAPES[name][0]
    at = len(text) % (len(shape) + 1)
    skill = make(root, shape[:at] + text + shape[at:])
    write(skill / "a.py", script)
    write(skill / "b.sh", b"#!" + script)
    write(skill / "package.json", text)
    findings = lint.lint([str(root)]).findings
    size = len(re.split(rb"\r\n|\n|\r", (skill / "SKILL.md").read_bytes()))
    assert all(1 <= finding.line <= size for finding in findings if finding.path == "SKILL.md")
    lint.fix(findings)
    for style in lint.FORMATS:
        lint.render(style, (), lint.lint([str(root)]).findings)


# --- fixes --------------------------------------------------------------------------------------------------


def test_mechanical_faults_are_fixed_and_the_rest_stays(tmp_path: Path) -> None:
    text = (
        "\ufeff\r\n---\r\nname: 8004\r\ndescription: Reads: tags #one\r\nallowed_tools: Read\r\n"
        "metadata:\r\n  version: 1.10  # bump me\r\n---# Demo\r\n\r\nSee [x](gone.md).\r\n"
    )
    skill = make(tmp_path, text.encode(), folder="8004")
    (skill / "SKILL.md").chmod(0o755)
    write(skill / "run.sh", b"\xef\xbb\xbf#!/opt/x/bash\r\necho 1\r\n", 0o640)
    for _round in range(3):  # a fault may hide another
        lint.fix(lint.lint([str(tmp_path)]).findings)
    assert (skill / "SKILL.md").read_bytes() == (
        b'---\nname: "8004"\ndescription: "Reads: tags #one"\nallowed-tools: Read\n'
        b'metadata:\n  version: "1.10"  # bump me\n---\n# Demo\n\nSee [x](gone.md).\n'
    )
    assert (skill / "run.sh").read_bytes() == b"#!/usr/bin/env bash\necho 1\n"
    assert (skill / "run.sh").stat().st_mode & 0o777 == 0o750
    assert (skill / "SKILL.md").stat().st_mode & 0o777 == 0o644
    assert found(tmp_path) == [("file-missing", "SKILL.md", 10)]


def test_a_fix_leaves_values_of_several_lines_to_their_author(tmp_path: Path) -> None:
    text = _NAMED + b"description: One # two\n  three\n---\n" + BODY
    skill = make(tmp_path, text)
    before = (skill / "SKILL.md").read_bytes()
    lint.fix(lint.lint([str(tmp_path)]).findings)
    assert (skill / "SKILL.md").read_bytes() == before


def test_a_fix_does_not_write_through_a_link(tmp_path: Path) -> None:
    write(tmp_path / "outside.sh", b"#!/bin/sh\r\n", 0o644)
    skill = make(tmp_path / "root", HEAD + BODY)
    (skill / "run.sh").symlink_to("../../outside.sh")
    lint.fix(lint.lint([str(tmp_path / "root")]).findings)
    assert (tmp_path / "outside.sh").read_bytes() == b"#!/bin/sh\r\n"


# --- formats and arguments ----------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path) -> lint.Linted:
    make(tmp_path, b"---\nname: a,b: 100%\ndescription: d\n---\n" + BODY, folder="x")
    return lint.lint([str(tmp_path)])


def test_text(broken: lint.Linted, tmp_path: Path) -> None:
    assert lint.render("text", broken.skills, broken.findings, below=str(tmp_path)).split("\n")[0] == (
        "x/SKILL.md:2: error front-yaml: mapping values are not allowed in this context: 'name: a,b: 100%'"
    )


def test_json(broken: lint.Linted, tmp_path: Path) -> None:
    shown = json.loads(lint.render("json", broken.skills, broken.findings, below=str(tmp_path)))
    assert shown["counts"] == {"error": 3, "warning": 0, "note": 0}
    assert shown["findings"][1] == {
        "file": "x/SKILL.md",
        "line": 2,
        "rule": "name-characters",
        "severity": "error",
        "message": "the name is 'a,b: 100%'",
        "summary": "a name is lower-case letters, digits and single hyphens, none of them at an end",
        "advice": "Rename it, and the folder with it.",
        "fixable": False,
    }


def test_github_commands_cannot_be_forged(broken: lint.Linted, tmp_path: Path) -> None:
    lines = lint.render("github", broken.skills, broken.findings, below=str(tmp_path)).splitlines()
    assert lines[1] == (
        "::error file=x/SKILL.md,line=2,title=name-characters::the name is 'a,b: 100%25'."
        " Rename it, and the folder with it."
    )
    make(tmp_path, HEAD + BODY, **{"a\n::set-env name=x::y": b""})
    forged = lint.render("github", (), lint.lint([str(tmp_path)]).findings, below=str(tmp_path))
    assert all(line.startswith(("::error file=", "::warning file=")) for line in forged.splitlines())


def test_sarif_opens_in_a_reader(broken: lint.Linted, tmp_path: Path) -> None:
    text = lint.render("sarif", broken.skills, broken.findings, below=str(tmp_path))
    (run,) = sarif_pydantic.Sarif.model_validate_json(text).runs
    assert [(found.rule_id, found.level.value) for found in run.results or ()] == [
        (finding.rule.id, finding.rule.severity.value) for finding in broken.findings
    ]
    without = json.loads(text)
    del without["runs"][0]["results"][0]["message"]
    with pytest.raises(ValidationError):  # the control: it is a reader that looks
        sarif_pydantic.Sarif.model_validate(without)


def test_sarif(broken: lint.Linted, tmp_path: Path) -> None:
    log = json.loads(lint.render("sarif", broken.skills, broken.findings, below=str(tmp_path)))
    run = log["runs"][0]
    assert log["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(lint.RULES)
    result = run["results"][1]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "name-characters"
    assert (result["level"], result["locations"]) == (
        "error",
        [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": "x/SKILL.md"},
                    "region": {"startLine": 2},
                }
            }
        ],
    )


def test_rules_can_be_ignored_but_not_unknown_ones(tmp_path: Path) -> None:
    make(tmp_path, HEAD)
    assert found(tmp_path, ignore=("body-empty",)) == []
    with pytest.raises(BadRequestError, match="no rule 'nonsense'"):
        found(tmp_path, ignore=("nonsense",))


def test_a_root_without_skills_is_an_error_and_not_a_success(tmp_path: Path) -> None:
    with pytest.raises(SkillNotFoundError, match="there is no skill in"):
        lint.lint([str(tmp_path)])
    with pytest.raises(BadPathError, match="there is nothing at"):
        lint.lint([str(tmp_path / "nothing")])


def test_every_rule_is_documented() -> None:
    text = (REPOSITORY / "docs" / "ci.md").read_text("utf-8")
    rows = [f"| `{rule.id}` | {rule.severity.value} | {rule.summary} |" for rule in lint.RULES.values()]
    assert [row for row in rows if row not in text] == []
