"""A skill's way into a session: what lands at `/skills/<folder>`, and when it is replaced."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from executor import (
    AsyncExecutor,
    Executor,
    ExecutorError,
    Limits,
    OutputLimits,
    SandboxError,
    Session,
    SkillNotFoundError,
    SkillUnreadableError,
)

Make = Callable[..., Path]
MANY = OutputLimits(max_files=5000)
_numbers = itertools.count(1)


def write(folder: Path, files: dict[str | bytes, bytes | str]) -> None:
    for name, content in files.items():
        path = os.path.join(os.fsencode(folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a skill's folder on the host, under a name that no other test has."""

    def made(files: dict[str | bytes, bytes | str] | None = None, *, name: str = "") -> Path:
        name = name or f"skill-{next(_numbers)}"
        folder = tmp_path / str(next(_numbers)) / name
        write(folder, {"SKILL.md": f"---\nname: {name}\ndescription: A test.\n---\nText.\n", **(files or {})})
        return folder

    return made


def tree(folder: Path) -> dict[bytes, tuple[int, bytes]]:
    """name → (mode, bytes or link target) of everything below a folder of the host."""
    found = {}
    for at, folders, files in os.walk(os.fsencode(folder)):
        for name in [*folders, *files]:
            path = os.path.join(at, name)
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            elif stat.S_ISDIR(info.st_mode):
                content = b""
            else:
                with open(path, "rb") as file:
                    content = file.read()
            found[os.path.relpath(path, os.fsencode(folder))] = (info.st_mode, content)
    return found


def inside(session: Session, folder: str, what: str = "%y %P") -> list[str]:
    """What `find` says of everything below a folder of the sandbox, sorted."""
    result = session.exec(["find", folder, "-mindepth", "1", "-printf", what + r"\n"])
    assert (result.status, result.stderr) == ("ok", "")
    return sorted(result.stdout.splitlines())


def stamps(session: Session, folder: str) -> list[str]:
    """Path, inode, times of change of everything below a folder: equal only if nothing was touched."""
    return inside(session, folder, "%P %i %T@ %C@ %m")


def staged(session: Session, slug: str) -> dict[bytes, bytes]:
    """name → bytes of every file of a staged skill."""
    prefix = f"skills/{slug}/".encode()
    files = session.collect(f"skills/{slug}/**", limits=MANY)
    return {os.fsencode(file.path).removeprefix(prefix): file.read() for file in files}


# -- what lands --


def test_a_skill_lands_whole_below_its_folders_name(shared: Session, make: Make) -> None:
    """trpc-1.7.1"""
    skill = make({"scripts/a.py": "print(1)\n", "references/deep/er/b.md": "b", "assets/c.bin": b"\0\xff"})
    assert shared.load(skill) == f"/skills/{skill.name}"
    assert inside(shared, f"/skills/{skill.name}") == [
        "d assets",
        "d references",
        "d references/deep",
        "d references/deep/er",
        "d scripts",
        "f SKILL.md",
        "f assets/c.bin",
        "f references/deep/er/b.md",
        "f scripts/a.py",
        "l inputs",
        "l out",
        "l work",
    ]
    for name, (_, content) in tree(skill).items():
        if content:
            assert shared.read(f"skills/{skill.name}/{os.fsdecode(name)}") == content


def test_the_copy_belongs_to_the_uid_of_the_runs(shared: Session, make: Make) -> None:
    skill = make({"scripts/a.py": ""})
    shared.load(skill)
    uid, gid = shared.exec("id -u; id -g").stdout.split()
    assert uid != "0"
    found = shared.exec(f"stat -c '%u:%g %n' /skills/{skill.name}").stdout
    assert found == f"{uid}:{gid} /skills/{skill.name}\n"
    owners = {line.split()[0] for line in inside(shared, f"/skills/{skill.name}", "%U:%G %P")}
    names = {line.split()[0] for line in inside(shared, f"/skills/{skill.name}", "%u:%g %P")}
    assert len(owners) == len(names) == 1
    assert owners == {f"{uid}:{gid}"}


def test_the_copy_is_writable(shared: Session, make: Make) -> None:
    skill = make({"scripts/a.py": "old"})
    result = shared.exec(
        "echo new > scripts/a.py && echo more > scripts/b.py && mkdir deep && rm SKILL.md && ls", skill=skill
    )
    assert (result.status, result.stderr) == ("ok", "")
    assert result.stdout.split() == ["deep", "inputs", "out", "scripts", "work"]


def test_modes_are_0755_for_folders_and_scripts_and_0644_for_the_rest(shared: Session, make: Make) -> None:
    skill = make({"a.txt": "", "private.txt": "", "folder/x.sh": "#!/bin/sh\n", "tool": "no shebang"})
    os.chmod(skill / "private.txt", 0o600)
    os.chmod(skill / "tool", 0o700)
    os.chmod(skill / "folder", 0o700)
    shared.load(skill)
    found = [line for line in inside(shared, f"/skills/{skill.name}", "%m %P") if not line.startswith("777 ")]
    assert found == [
        "644 SKILL.md",
        "644 a.txt",
        "644 private.txt",
        "755 folder",
        "755 folder/x.sh",
        "755 tool",
    ]


def test_links_in_the_skill_point_to_the_folders_of_the_workspace(shared: Session, make: Make) -> None:
    """trpc-1.7.3"""
    skill = make()
    shared.load(skill)
    result = shared.exec("readlink out work inputs", skill=skill)
    assert result.stdout == "/workspace/out\n/workspace/work\n/workspace/inputs\n"


def test_the_workspace_has_links_to_skills_and_from_work_to_inputs(shared: Session) -> None:
    assert shared.exec("readlink skills work/inputs").stdout == "/skills\n../inputs\n"


def test_what_a_skill_writes_to_its_out_is_in_the_workspaces_out(shared: Session, make: Make) -> None:
    skill = make()
    name = f"{skill.name}.txt"
    assert shared.exec(f"echo hello > out/{name}", skill=skill).status == "ok"
    assert shared.read(f"out/{name}") == b"hello\n"


def test_a_skill_reads_its_inputs_through_each_of_their_names(shared: Session, make: Make) -> None:
    skill = make()
    shared.put(f"inputs/{skill.name}", "data")
    result = shared.exec(
        f"cat inputs/{skill.name} work/inputs/{skill.name} $INPUTS_DIR/{skill.name}", skill=skill
    )
    assert (result.stdout, result.stderr) == ("datadatadata", "")


# -- scripts as Linux can start them --


def test_scripts_with_a_shebang_run_although_they_were_shipped_as_0644(shared: Session, make: Make) -> None:
    skill = make(
        {
            "scripts/a.py": "#!/usr/bin/env python3\nprint('python')\n",
            "scripts/b.sh": "#!/bin/bash\necho bash\n",
            "scripts/c": "#!/usr/bin/env node\nconsole.log('node')\n",
        }
    )
    assert {mode & 0o111 for name, (mode, _) in tree(skill).items() if b"/" in name} == {0}
    result = shared.exec("scripts/a.py && ./scripts/b.sh && /skills/$SKILL_NAME/scripts/c", skill=skill)
    assert (result.stdout, result.stderr) == ("python\nbash\nnode\n", "")


@pytest.mark.parametrize(
    ("shipped", "copy"),
    [
        (b"#!/bin/bash\r\nif true\r\nthen echo ok\r\nfi\r\n", b"#!/bin/bash\nif true\nthen echo ok\nfi\n"),
        (b"\xef\xbb\xbf#!/bin/bash\necho ok\n", b"#!/bin/bash\necho ok\n"),
        (b"\xef\xbb\xbf#!/bin/sh\r\necho ok\r\n", b"#!/bin/sh\necho ok\n"),
        (b"#!/usr/bin/env python3\r\nprint('ok')\r\n", b"#!/usr/bin/env python3\nprint('ok')\r\n"),
    ],
    ids=["crlf", "bom", "bom and crlf", "crlf in python"],
)
def test_a_script_from_windows_runs_and_its_source_stays_as_it_is(
    shared: Session, make: Make, shipped: bytes, copy: bytes
) -> None:
    skill = make({"scripts/run": shipped})
    before = tree(skill)
    result = shared.exec(["./scripts/run"], skill=skill)
    assert (result.stdout, result.stderr, result.exit_code) == ("ok\n", "", 0)
    assert shared.read(f"skills/{skill.name}/scripts/run") == copy
    assert tree(skill) == before


def test_carriage_returns_of_files_that_are_no_scripts_are_kept(shared: Session, make: Make) -> None:
    data = {
        "data.csv": b"a,b\r\n1,2\r\n",
        "page.html": b"\xef\xbb\xbf<p>\r\n",
        "lib.py": b"x = '''\r\n'''\r\n",
    }
    skill = make({**data})
    shared.load(skill)
    for name, content in data.items():
        assert shared.read(f"skills/{skill.name}/{name}") == content


def test_files_that_lie_next_to_a_script_are_found_in_python_bash_and_node(
    shared: Session, make: Make
) -> None:
    """TH-55"""
    skill = make(
        {
            "scripts/helper.py": "WORD = 'python import'\n",
            "scripts/run.py": "import os, helper\nprint(helper.WORD)\n"
            "print(open(os.path.join(os.path.dirname(__file__), 'data.txt')).read())\n",
            "scripts/helper.sh": "word='bash source'\n",
            "scripts/run.sh": '#!/bin/bash\nhere="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
            '. "$here/helper.sh"\necho "$word"\ncat "$here/data.txt"; echo\n',
            "scripts/helper.js": "exports.word = 'node require';\n",
            "scripts/run.js": "const fs = require('fs'), path = require('path');\n"
            "console.log(require('./helper').word);\n"
            "console.log(fs.readFileSync(path.join(__dirname, 'data.txt'), 'utf8'));\n",
            "scripts/helper.mjs": "export const word = 'node import';\n",
            "scripts/run.mjs": "import { word } from './helper.mjs';\nimport fs from 'node:fs';\n"
            "console.log(word);\n"
            "console.log(fs.readFileSync(new URL('./data.txt', import.meta.url), 'utf8'));\n",
            "scripts/data.txt": "sibling",
        }
    )
    result = shared.exec(
        "s=$SKILL_DIR/scripts; python3 $s/run.py && bash $s/run.sh && node $s/run.js && node $s/run.mjs",
        skill=skill,
        cwd="/workspace/work",
    )
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        *("python import", "sibling"),
        *("bash source", "sibling"),
        *("node require", "sibling"),
        *("node import", "sibling"),
    ]


def test_a_module_of_the_skill_runs_with_python_dash_m(shared: Session, make: Make) -> None:
    skill = make(
        {
            "scripts/__init__.py": "",
            "scripts/part.py": "WORD = 'part'\n",
            "scripts/main.py": "from scripts.part import WORD\nprint(WORD, __name__)\n",
        }
    )
    result = shared.exec("python -m scripts.main", skill=skill)
    assert (result.stdout, result.stderr) == ("part __main__\n", "")


def test_a_run_leaves_no_bytecode_in_the_skill(shared: Session, make: Make) -> None:
    skill = make({"scripts/helper.py": "X = 1\n", "scripts/run.py": "import helper\n"})
    assert shared.exec("python3 scripts/run.py", skill=skill).status == "ok"
    assert [line for line in inside(shared, f"/skills/{skill.name}") if "pycache" in line] == []


def test_a_skill_writes_inside_its_own_folder(shared: Session, make: Make) -> None:
    skill = make(
        {"scripts/draw.py": "import os\nos.mkdir('diagrams')\nopen('diagrams/a.svg', 'w').write('<svg/>')\n"}
    )
    result = shared.exec("python3 scripts/draw.py", skill=skill, outputs=["diagrams/*.svg"])
    assert (result.status, result.stderr) == ("ok", "")
    assert [(file.path, file.content) for file in result.files] == [
        (f"skills/{skill.name}/diagrams/a.svg", "<svg/>")
    ]


# -- names, links and what else a folder may hold --


def test_every_name_that_a_file_can_have_lands_unchanged(shared: Session, make: Make) -> None:
    """TH-67"""
    names = {
        b"new\nline.txt": b"1",
        b"-rf": b"2",
        "图表/数据 文件.md".encode(): b"3",
        b"[handle]/[Content_Types].xml": b"4",
        b"latin-\xe9\xff.txt": b"5",
        b"quote'\"$(touch x)`.txt": b"6",
        b"back\\slash": b"7",
        b" spaces (1) ": b"8",
        b"..dots..": b"9",
        b"x" * 255: b"10",
        b"\x1b[31mred\x07": b"11",
        b"#!": b"12",
    }
    skill = make(dict(names))
    shared.load(skill)
    found = staged(shared, skill.name)
    assert found.pop(b"SKILL.md").startswith(b"---\n")
    assert found == names


def test_a_skill_of_two_hundred_files_lands_whole(shared: Session, make: Make) -> None:
    files: dict[str | bytes, bytes | str] = {
        f"data/{number % 20}/{number}.txt": f"{number}\n" * number for number in range(200)
    }
    skill = make(files)
    shared.load(skill)
    found = staged(shared, skill.name)
    found.pop(b"SKILL.md")
    assert found == {os.fsencode(name): str(content).encode() for name, content in files.items()}


def test_a_deep_tree_and_empty_folders_land(shared: Session, make: Make) -> None:
    deep = "/".join(f"d{level}" for level in range(40))
    skill = make({f"{deep}/bottom.txt": "found"})
    (skill / "empty" / "emptier").mkdir(parents=True)
    shared.load(skill)
    assert shared.read(f"skills/{skill.name}/{deep}/bottom.txt") == b"found"
    assert shared.exec("find empty", skill=skill).stdout == "empty\nempty/emptier\n"


def test_large_files_of_a_skill_are_byte_identical(shared: Session, make: Make) -> None:
    data = bytes(range(256)) * 12_000  # 3 MB
    skill = make({"assets/font.ttf": data, "scripts/big.sh": b"#!/bin/sh\r\n" + b"# padding\r\n" * 100_000})
    shared.load(skill)
    result = shared.exec(
        "sha256sum assets/font.ttf; grep -c $'\\r' scripts/big.sh; wc -l < scripts/big.sh", skill=skill
    )
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert result.stdout.splitlines()[1:] == ["0", "100001"]


def test_links_inside_the_skill_are_kept(shared: Session, make: Make) -> None:
    skill = make({"a/file.txt": "content", "b/x": ""})
    (skill / "b" / "link").symlink_to("../a/file.txt")
    (skill / "folder").symlink_to("a")
    (skill / "absolute").symlink_to(skill / "a" / "file.txt")
    result = shared.exec("cat b/link folder/file.txt absolute; readlink b/link folder absolute", skill=skill)
    assert result.stdout == "content" * 3 + "../a/file.txt\na\na/file.txt\n"
    assert result.warnings == []


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../secret.txt", "../..", "/", "missing", "loop"])
def test_a_link_that_leads_out_of_the_skill_or_nowhere_is_left_out_and_told(
    shared: Session, make: Make, target: str
) -> None:
    skill = make({"kept.txt": "kept"})
    write(skill.parent.parent, {"secret.txt": "secret of the host"})
    (skill / "sub").mkdir()
    (skill / "sub" / "loop").symlink_to(target)
    result = shared.exec("ls -A sub; cat kept.txt", skill=skill)
    assert (result.stdout, result.stderr) == ("kept", "")
    assert result.warnings == [
        f"{skill.name}: the link 'sub/loop' leads out of the folder or nowhere: left out"
    ]


def test_a_pipe_in_the_skill_is_left_out_and_told(shared: Session, make: Make) -> None:
    skill = make({"kept.txt": "kept"})
    os.mkfifo(skill / "pipe")
    result = shared.exec("ls", skill=skill)
    assert result.stdout.split() == ["SKILL.md", "inputs", "kept.txt", "out", "work"]
    assert result.warnings == [f"{skill.name}: 'pipe' is not a file, a folder or a link: left out"]


def test_folders_of_version_control_are_not_staged(shared: Session, make: Make) -> None:
    skill = make({".git/config": "[remote]\n", ".gitignore": "x\n", "a/.git": "gitdir: elsewhere\n"})
    shared.load(skill)
    assert set(staged(shared, skill.name)) == {b"SKILL.md", b".gitignore", b"a/.git"}


@pytest.mark.parametrize("name", ["out", "work", "inputs"])
def test_a_folder_of_its_own_is_kept_instead_of_a_link_and_told(
    shared: Session, make: Make, name: str
) -> None:
    """trpc-34"""
    skill = make({f"{name}/mine.txt": "mine"})
    result = shared.exec(f"cat {name}/mine.txt; [ -L {name} ] || echo folder", skill=skill)
    assert (result.stdout, result.stderr) == ("minefolder\n", "")
    assert result.warnings == [
        f"{skill.name}: the skill has its own {name}/: it is kept, and no link to /workspace/{name}"
    ]
    shared.load(skill)
    assert shared.read(f"skills/{skill.name}/{name}/mine.txt") == b"mine"


# -- loading again --


def test_loading_an_unchanged_skill_again_touches_nothing(shared: Session, make: Make) -> None:
    """trpc-1.8.2, trpc-26"""
    skill = make({"a/b.txt": "b", "run.sh": "#!/bin/sh\r\n"})
    (skill / "link").symlink_to("a/b.txt")
    shared.load(skill)
    before = stamps(shared, f"/skills/{skill.name}")
    shared.load(skill)
    os.utime(skill / "a" / "b.txt")  # the same bytes at another time are no change
    shared.load(str(skill))
    assert stamps(shared, f"/skills/{skill.name}") == before


def test_a_changed_skill_is_replaced_as_a_whole(shared: Session, make: Make) -> None:
    """trpc-26"""
    skill = make({"a.txt": "one", "gone.txt": "x", "folder/gone.txt": "x"})
    shared.load(skill)
    shared.exec("echo litter > litter.txt; echo mine > a.txt", skill=skill)
    shutil.rmtree(skill / "folder")
    (skill / "gone.txt").unlink()
    write(skill, {"a.txt": "two", "new.txt": "new"})
    shared.load(skill)
    found = staged(shared, skill.name)
    found.pop(b"SKILL.md")
    assert found == {b"a.txt": b"two", b"new.txt": b"new"}
    assert inside(shared, "/skills/" + skill.name, "%y %P") == [
        *("f SKILL.md", "f a.txt", "f new.txt"),
        *("l inputs", "l out", "l work"),
    ]


def test_a_change_of_the_same_length_is_seen_at_once(shared: Session, make: Make) -> None:
    skill = make({"a.txt": "0"})
    for number in range(1, 10):
        write(skill, {"a.txt": str(number)})
        shared.load(skill)
        assert shared.read(f"skills/{skill.name}/a.txt") == str(number).encode()


def test_making_a_file_executable_is_a_change(shared: Session, make: Make) -> None:
    """trpc-27"""
    skill = make({"tool": "echo hello\n"})
    assert shared.exec("./tool", skill=skill).exit_code == 126
    os.chmod(skill / "tool", 0o755)
    shared.load(skill)
    assert shared.exec("./tool", skill=skill).stdout == "hello\n"


def test_a_new_empty_folder_is_a_change(shared: Session, make: Make) -> None:
    skill = make()
    shared.load(skill)
    (skill / "empty").mkdir()
    shared.load(skill)
    assert shared.exec("ls -d empty", skill=skill).stdout == "empty\n"


def test_links_that_a_script_removed_are_there_again_after_the_next_load(shared: Session, make: Make) -> None:
    """trpc-1.8.2, trpc-1.8.4, trpc-27"""
    skill = make({"a/b.txt": "b"})
    (skill / "link").symlink_to("a/b.txt")
    shared.load(skill)
    assert shared.exec("rm out work inputs link && ls", skill=skill).stdout.split() == ["SKILL.md", "a"]
    shared.load(skill)
    result = shared.exec("readlink out work inputs link", skill=skill)
    assert result.stdout.split() == ["/workspace/out", "/workspace/work", "/workspace/inputs", "a/b.txt"]


def test_a_skill_that_a_script_removed_is_staged_anew_by_the_next_load(shared: Session, make: Make) -> None:
    skill = make({"a/b.txt": "b"})
    (skill / "a" / "link").symlink_to("b.txt")
    shared.load(skill)
    assert shared.exec("rm -rf a", skill=skill).status == "ok"
    shared.load(skill)
    assert shared.exec("cat a/link", skill=skill).stdout == "b"
    assert shared.exec(f"rm -rf /skills/{skill.name}").status == "ok"
    shared.load(skill)
    assert shared.exec("cat a/link", skill=skill).stdout == "b"


def test_what_scripts_wrote_survives_a_load_of_the_unchanged_skill(shared: Session, make: Make) -> None:
    skill = make({"a.txt": "shipped", "b.txt": "shipped"})
    shared.exec("echo new > cache.txt; echo edited > a.txt; rm b.txt", skill=skill)
    shared.load(skill)
    found = staged(shared, skill.name)
    found.pop(b"SKILL.md")
    assert found == {b"a.txt": b"edited\n", b"cache.txt": b"new\n"}


def test_nothing_that_scripts_do_reaches_the_source(shared: Session, make: Make) -> None:
    skill = make({"a.txt": "shipped", "scripts/run.sh": "#!/bin/sh\r\n"})
    before = tree(skill)
    shared.load(skill)
    shared.exec(
        "echo x > a.txt; echo x > new; rm SKILL.md; chmod 000 scripts; ln -sf /etc/passwd l", skill=skill
    )
    shared.load(skill)
    write(skill, {"b.txt": "change"})
    shared.load(skill)
    after = tree(skill)
    assert after.pop(b"b.txt")[1] == b"change"
    assert after == before


def test_nothing_in_the_sandbox_makes_a_changed_skill_look_unchanged(shared: Session, make: Make) -> None:
    """trpc-34, trpc-1.8.9"""
    skill = make({"version": "1"})
    shared.load(skill)
    forged = (
        "printf 2 > version; d=$(find . -type f | sort | xargs sha256sum | sha256sum | cut -c1-64);"
        "for f in .digest .sha256 .staged metadata.json /workspace/metadata.json /skills/metadata.json;"
        ' do printf \'{"skills":{"%s":{"digest":"%s","mounted":true}}}\' "$SKILL_NAME" "$d" > $f; done; ls -A'
    )
    assert ".digest" in shared.exec(forged, skill=skill).stdout
    write(skill, {"version": "2"})
    shared.load(skill)
    found = staged(shared, skill.name)
    assert sorted(found) == [b"SKILL.md", b"version"]
    assert found[b"version"] == b"2"
    assert shared.exec("rm /workspace/metadata.json /skills/metadata.json").status == "ok"


def test_a_link_that_a_script_put_in_the_skills_place_is_replaced_not_followed(
    shared: Session, make: Make
) -> None:
    skill = make({"a.txt": "one"})
    shared.load(skill)
    victim = f"/workspace/work/{skill.name}"
    planted = f"mkdir {victim}; echo precious > {victim}/a.txt; cd /skills; rm -rf $n; ln -s {victim} $n"
    assert shared.exec(planted, env={"n": skill.name}).status == "ok"
    write(skill, {"a.txt": "two"})
    shared.load(skill)
    assert shared.read(f"work/{skill.name}/a.txt") == b"precious\n"
    assert shared.exec(["find", "/skills/" + skill.name, "-maxdepth", "0", "-printf", "%y"]).stdout == "d"
    assert shared.read(f"skills/{skill.name}/a.txt") == b"two"


def test_an_old_copy_that_resists_is_replaced_without_a_trace(session: Session, make: Make) -> None:
    skill = make({"a.txt": "one"})
    session.load(skill)
    resist = (
        "import os\n"
        "os.makedirs('.gone-1/x'); os.makedirs('.gone-2/x/y'); os.makedirs('s/u/b')\n"
        "os.makedirs('locked/in')\n"
        "open('locked/in/f', 'w').close(); os.chmod('locked/in', 0); os.chmod('locked', 0)\n"
        "os.mkdir('deep'); os.chdir('deep')\n"
        "for _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\n"
    )
    assert session.exec(["python3", "-c", resist], skill=skill).status == "ok"
    write(skill, {"a.txt": "two"})
    session.load(skill)
    assert session.exec("cat a.txt", skill=skill).stdout == "two"
    assert session.exec("ls -A /skills").stdout == f"{skill.name}\n"


def test_a_run_in_the_old_copy_goes_on_while_the_new_one_is_loaded(session: Session, make: Make) -> None:
    skill = make({"version": "1"})
    run = session.start(
        "cat version; read line; pwd -P >/dev/null; echo $line > /workspace/out/said", skill=skill
    )
    assert run.read(timeout=20).stdout == "1"
    write(skill, {"version": "2"})
    session.load(skill)
    assert session.exec("cat version", skill=skill).stdout == "2"
    run.write("still here\n")
    assert run.wait().exit_code == 0
    assert session.read("out/said") == b"still here\n"


# -- too much --


def test_a_skill_that_is_too_large_is_an_error_and_leaves_nothing(executor: Executor, make: Make) -> None:
    large = make({"a.bin": b"x" * (3 << 20)})
    small = make({"a.txt": "small"})
    with executor.session(limits=Limits(disk="4m")) as session:
        with pytest.raises(SkillUnreadableError, match=r"is larger than the 2,097,152 bytes") as caught:
            session.load(large)
        assert "disk" in caught.value.hint
        assert session.exec("ls -A /skills").stdout == ""
        assert session.exec("cat a.txt", skill=small).stdout == "small"


def test_when_the_disk_is_full_the_old_version_stays_in_use(executor: Executor, make: Make) -> None:
    skill = make({"version": "1", "a.bin": b"1" * (5 << 19)})
    with executor.session(limits=Limits(disk="8m")) as session:  # 4 MiB for skills
        session.load(skill)
        write(skill, {"version": "2", "a.bin": b"2" * (5 << 19)})
        with pytest.raises(SandboxError, match="No space left") as caught:
            session.load(skill)
        assert "disk" in caught.value.hint
        assert session.exec("cat version; head -c 1 a.bin; ls -A /skills", skill=skill.name).stdout == (
            f"11{skill.name}\n"
        )
        session.remove(f"skills/{skill.name}")
        session.load(skill)
        assert session.exec("cat version; head -c 1 a.bin", skill=skill.name).stdout == "22"


def test_when_the_source_vanishes_midway_the_old_version_stays_in_use(
    shared: Session, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    skill = make({"version": "1", "z.bin": "1"})
    shared.load(skill)
    write(skill, {"version": "2", "z.bin": b"2" * 500_000})
    opened, calls = os.open, 0

    def vanishing(path: Any, *rest: Any, **named: Any) -> int:
        nonlocal calls
        if path == str(skill.resolve() / "z.bin"):
            calls += 1
            if calls == 2:  # the first time it is looked at, the second time it is sent
                raise FileNotFoundError(2, "No such file or directory", "z.bin")
        return opened(path, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", vanishing)
        with pytest.raises(SkillUnreadableError, match="changed while it was read"):
            shared.load(skill)
    assert calls == 2
    assert shared.exec("cat version z.bin", skill=skill.name).stdout == "11"
    assert [line for line in inside(shared, "/skills", "%P") if line.startswith(".")] == []
    shared.load(skill)
    assert shared.exec("cat version", skill=skill.name).stdout == "2"


def test_more_files_than_inodes_is_an_error_and_leaves_nothing(executor: Executor, make: Make) -> None:
    skill = make({f"{number}.txt": "" for number in range(400)})
    with executor.session(limits=Limits(inodes=256)) as session:
        if any("number of files" in warning for warning in session.warnings):
            pytest.skip("this machine cannot bound the inodes of a sandbox, and says so")
        with pytest.raises(ExecutorError, match="No space left"):
            session.load(skill)
        assert session.exec("ls -A /skills").stdout == ""
        (skill / "1.txt").unlink()
        assert session.exec("echo works").stdout == "works\n"


# -- which skill --


def test_an_unknown_skill_is_not_found(shared: Session) -> None:
    with pytest.raises(SkillNotFoundError, match="'no-such-skill'"):
        shared.load("no-such-skill")
    with pytest.raises(SkillNotFoundError, match="'no-such-skill'"):
        shared.exec("touch out/ran", skill="no-such-skill")
    assert shared.exec("ls out/ran").exit_code == 2


def test_a_folder_without_a_skill_file_is_not_found(shared: Session, tmp_path: Path) -> None:
    with pytest.raises(SkillNotFoundError, match=r"the folder has no SKILL\.md"):
        shared.load(tmp_path)


def test_a_skill_of_the_roots_is_loaded_by_its_name(shared: Session, skills_root: Path) -> None:
    name = f"in-root-{next(_numbers)}"
    write(skills_root / name, {"SKILL.md": f"---\nname: {name}\ndescription: d\n---\n", "a.txt": "a"})
    try:
        assert shared.load(name) == f"/skills/{name}"
        assert shared.exec("cat a.txt", skill=name).stdout == "a"
    finally:
        shutil.rmtree(skills_root / name)


def test_a_skill_is_loaded_by_the_path_of_its_folder_or_of_its_file(shared: Session, make: Make) -> None:
    skill = make({"a.txt": "a"})
    for path in (skill, str(skill), skill / "SKILL.md", f"{skill}/"):
        assert shared.load(path) == f"/skills/{skill.name}"
    assert shared.read(f"skills/{skill.name}/a.txt") == b"a"


def test_a_run_uses_the_folder_it_names_even_if_another_of_that_name_is_loaded(
    shared: Session, make: Make
) -> None:
    name = f"twin-{next(_numbers)}"
    one, two = make({"who": "one"}, name=name), make({"who": "two"}, name=name)
    for skill, who in ((one, "one"), (two, "two"), (one, "one")):
        assert shared.exec("cat who", skill=skill).stdout == who


def test_a_folder_name_that_is_unsafe_becomes_a_safe_one(shared: Session, make: Make) -> None:
    """trpc-1.8.5"""
    skill = make({"a.txt": "a"}, name="My Skill $(touch x)")
    path = shared.load(skill)
    assert path.startswith("/skills/")
    assert set(path.removeprefix("/skills/")) <= set("abcdefghijklmnopqrstuvwxyz0123456789-._MS")
    assert (
        shared.exec("cat a.txt; basename $PWD", skill=skill).stdout == f"a{path.removeprefix('/skills/')}\n"
    )


# -- several at once --


def test_two_sessions_have_copies_of_their_own(shared: Session, session: Session, make: Make) -> None:
    skill = make({"a.txt": "shipped"})
    for each in (shared, session):
        each.load(skill)
    shared.exec("echo changed > a.txt", skill=skill)
    assert shared.exec("cat a.txt", skill=skill).stdout == "changed\n"
    assert session.exec("cat a.txt", skill=skill).stdout == "shipped"


def test_many_threads_loading_one_skill_stage_it_once_and_whole(shared: Session, make: Make) -> None:
    skill = make({f"d{number % 7}/{number}": str(number) for number in range(100)})
    with ThreadPoolExecutor(8) as pool:
        reads = [pool.submit(shared.exec, "find . -type f | wc -l", skill=skill) for _ in range(16)]
        assert [read.result().stdout for read in reads] == ["101\n"] * 16
    before = stamps(shared, f"/skills/{skill.name}")
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(shared.load, [skill] * 16)) == {f"/skills/{skill.name}"}
    assert stamps(shared, f"/skills/{skill.name}") == before


def test_many_tasks_loading_skills_at_once_get_each_of_them(
    runtime: str, executor: Executor, make: Make
) -> None:
    skills = [make({"who": str(number), "big": b"x" * 300_000}) for number in range(5)]

    async def work() -> list[str]:
        async with AsyncExecutor(skills=[], runtime=runtime) as own, own.session() as session:
            await asyncio.gather(*(session.load(skill) for skill in skills * 3))
            results = [await session.exec("cat who; wc -c < big", skill=skill) for skill in skills]
            return [result.stdout for result in results]

    assert asyncio.run(work()) == [f"{number}300000\n" for number in range(5)]


def test_a_load_that_is_cancelled_leaves_no_half_skill(runtime: str, executor: Executor, make: Make) -> None:
    skill = make({f"{number}.bin": b"x" * (1 << 20) for number in range(40)})

    async def work() -> tuple[str, str]:
        async with AsyncExecutor(skills=[], runtime=runtime) as own, own.session() as session:
            task = asyncio.create_task(session.load(skill))
            while not (await session.exec("ls -A /skills")).stdout:
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            first = (await session.exec("ls -A /skills")).stdout
            await session.load(skill)
            second = (await session.exec("ls | wc -l", skill=skill)).stdout
            return first, second

    first, second = asyncio.run(work())
    assert (first, second) in [("", "44\n"), (f"{skill.name}\n", "44\n")]
