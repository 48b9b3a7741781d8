"""Files that come back from a session: which ones match, what is said of them, where they are saved."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import os
import stat
import zipfile
import zlib
from pathlib import Path

import pytest

from executor import (
    BadPathError,
    ExecResult,
    Executor,
    File,
    Limits,
    OutputFile,
    OutputLimits,
    Session,
    SessionClosedError,
    SkillError,
)

MANY = OutputLimits(max_files=5000)
_numbers = itertools.count(1)


@pytest.fixture
def place(shared: Session) -> str:
    """A folder below out/ that no other test uses."""
    name = f"out/t{next(_numbers)}"
    assert shared.exec(["mkdir", name]).status == "ok"
    return name


def touch(session: Session, folder: str, *names: str) -> None:
    for name in names:
        session.put(f"{folder}/{name}", os.fsencode(name))


def collected(session: Session, folder: str, *patterns: str, **options: object) -> list[str]:
    """Paths relative to the folder, in the order in which they come."""
    files = session.collect(*patterns, **options)  # type: ignore[arg-type]
    return [file.path.removeprefix(folder + "/") for file in files]


def png(width: int = 3, height: int = 2) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    rows = b"".join(b"\0" + bytes((x * 7 + y * 31) % 256 for x in range(3 * width)) for y in range(height))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def office(folder: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in ("[Content_Types].xml", "_rels/.rels", f"{folder}/document.xml"):
            archive.writestr(zipfile.ZipInfo(name), "<x/>")
    return data.getvalue()


# -- which files match --


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["@/**"], [".dot", ".hid/x.txt", "a.txt", "b.csv", "sub/a.txt", "sub/deep/c.txt"]),
        (["@/*"], [".dot", "a.txt", "b.csv"]),
        (["@/*.txt"], ["a.txt"]),
        (["@/**/*.txt"], [".hid/x.txt", "a.txt", "sub/a.txt", "sub/deep/c.txt"]),
        (["@/sub/**"], ["sub/a.txt", "sub/deep/c.txt"]),
        (["@/*/*.txt"], [".hid/x.txt", "sub/a.txt"]),
        (["@/{a,b}.*"], ["a.txt", "b.csv"]),
        (["@/{a.txt,sub/{a,z}.txt}"], ["a.txt", "sub/a.txt"]),
        (["@/[ab].*"], ["a.txt", "b.csv"]),
        (["@/[!b].*"], ["a.txt"]),
        (["@/[^a].csv"], ["b.csv"]),
        (["@/?.txt"], ["a.txt"]),
        (["@/.*"], [".dot"]),
        (["@/a.txt"], ["a.txt"]),
        (["@/sub"], ["sub/a.txt", "sub/deep/c.txt"]),
        (["@/sub/"], ["sub/a.txt", "sub/deep/c.txt"]),
        (["@/A.TXT", "@/missing", "@/missing/**", "@/a.txt/x"], []),
        (["./@/a.txt", "/workspace/@/b.csv"], ["a.txt", "b.csv"]),
        (["@/**/deep/**"], ["sub/deep/c.txt"]),
    ],
)
def test_globs_mean_what_they_say(
    shared: Session, place: str, patterns: list[str], expected: list[str]
) -> None:
    """trpc-1.10.1"""
    touch(shared, place, "b.csv", "a.txt", "sub/deep/c.txt", "sub/a.txt", ".dot", ".hid/x.txt")
    assert collected(shared, place, *(pattern.replace("@", place) for pattern in patterns)) == expected


def test_overlapping_globs_give_each_file_once_sorted_by_path(shared: Session, place: str) -> None:
    """trpc-1.10.2, trpc-42"""
    touch(shared, place, "b.txt", "a.txt", "B.txt", "a/z.txt", "a-b.txt")
    name = place.removeprefix("out/")
    patterns = (
        f"{place}/*.txt",
        f"{place}/**",
        f"$OUTPUT_DIR/{name}/a.txt",
        f"{place}/a.txt",
        f"{place}/a.txt",
    )
    assert collected(shared, place, *patterns) == ["B.txt", "a-b.txt", "a.txt", "a/z.txt", "b.txt"]


def test_the_default_is_everything_below_out(session: Session) -> None:
    session.exec("echo 1 > out/a; mkdir out/b; echo 2 > out/b/c; echo 3 > work/d; echo 4 > e")
    assert [file.path for file in session.collect()] == ["out/a", "out/b/c"]


def test_without_globs_a_run_brings_nothing_back(shared: Session, place: str) -> None:
    assert shared.exec(f"echo 1 > {place}/a").files == []


def test_one_glob_may_be_given_as_a_text(shared: Session, place: str) -> None:
    result = shared.exec(f"echo 1 > {place}/a", outputs=f"{place}/*")
    assert [file.path for file in result.files] == [f"{place}/a"]


def test_variables_name_folders_when_they_are_the_whole_first_component(session: Session) -> None:
    """trpc-1.10.1, trpc-48"""
    session.exec(
        "mkdir '$OUTPUT_DIRECTORY' '$FOO'\n"
        "for d in out work inputs '$OUTPUT_DIRECTORY' '$FOO'; do echo > $d/a; done"
    )
    for pattern, path in {
        "$OUTPUT_DIR/a": "out/a",
        "${WORK_DIR}/a": "work/a",
        "$INPUTS_DIR/*": "inputs/a",
        "${WORKSPACE_DIR}/out/*": "out/a",
        "$OUTPUT_DIRECTORY/a": "$OUTPUT_DIRECTORY/a",
        "${OUTPUT_DIR}ECTORY/a": "",
        "$FOO/a": "$FOO/a",
    }.items():
        assert [file.path for file in session.collect(pattern)] == ([path] if path else []), pattern


def test_the_folder_of_a_run_is_collected_by_its_variable(shared: Session) -> None:
    result = shared.exec("echo mine > $RUN_DIR/a.txt", outputs=["$RUN_DIR/*"])
    assert [(file.path, file.content) for file in result.files] == [(f"runs/{result.run_id}/a.txt", "mine\n")]


@pytest.mark.parametrize(
    "pattern",
    ["", "..", "../x", "out/../../etc/passwd", "/etc/passwd", "/tmp/**", "/", "a\0b", "$SKILL_DIR/x"],
)
def test_a_glob_that_leads_outside_is_refused_before_anything_runs(
    shared: Session, place: str, pattern: str
) -> None:
    with pytest.raises(BadPathError):
        shared.collect(pattern)
    with pytest.raises(BadPathError):
        shared.exec(f"touch {place}/ran", outputs=["out/**", pattern])
    assert collected(shared, place, f"{place}/**") == []


def test_patterns_match_names_with_brackets_and_braces_as_they_are_written(
    shared: Session, place: str
) -> None:
    """trpc-43"""
    touch(shared, place, "[Content_Types].xml", "C.xml", "{a,b}.txt", "a.txt", "x*y", "xzy")
    assert collected(shared, place, f"{place}/[Content_Types].xml") == ["C.xml", "[Content_Types].xml"]
    assert collected(shared, place, f"{place}/[[]Content_Types].xml") == ["[Content_Types].xml"]
    assert collected(shared, place, f"{place}/{{a,b}}.txt") == ["a.txt", "{a,b}.txt"]
    assert collected(shared, place, f"{place}/x\\*y") == ["x*y"]
    assert collected(shared, place, f"{place}/**/*.xml") == ["C.xml", "[Content_Types].xml"]


HOSTILE_NAMES = [
    "my file.csv",
    "ü\n1.txt",
    "-rf",
    "--help",
    "latin-\udce9\udcff.txt",
    "'quotes\"",
    "$(touch p)",
    "`id`",
    "back\\slash",
    " lead and trail ",
    "tab\t\r",
    "\x1b[31mred\x07",
    "\u202egnp.exe",
    "数据.csv",
    "*",
    "?",
    "a;b|c&d",
    "%41",
    "n" * 255,
    "...",
    "\u00e9 and e\u0301",
]


def test_hostile_names_come_back_exactly(shared: Session, place: str) -> None:
    """trpc-43"""
    script = "import sys\nfor name in sys.argv[2:]:\n    open(f'{sys.argv[1]}/{name}', 'w').write('x')\n"
    result = shared.exec(["python3", "-c", script, place, *HOSTILE_NAMES], outputs=[f"{place}/**"])
    assert (result.stderr, result.warnings) == ("", [])
    assert [file.path for file in result.files] == sorted(
        (f"{place}/{name}" for name in HOSTILE_NAMES), key=os.fsencode
    )
    assert {file.read() for file in result.files} == {b"x"}
    for file in result.files:
        assert file.path in [found.path for found in shared.collect(file.path)]


def test_a_result_with_any_names_is_plain_json(shared: Session, place: str) -> None:
    touch(shared, place, *HOSTILE_NAMES)
    shared.exec(["ln", "-s", "/etc/passwd", f"{place}/link-\udcff\n"])
    result = shared.exec(["printf", "\\377"], outputs=[f"{place}/**"])
    text = json.dumps(result.model_dump(), ensure_ascii=True)
    assert text.isascii()
    back = json.loads(text)
    assert [file["path"] for file in back["files"]] == [file.path for file in result.files]
    assert back["warnings"] == [f"{place}/link-\\udcff\\n is a link: not collected"]
    assert ExecResult(**back).model_dump() == result.model_dump()


def test_collecting_goes_deep_and_says_where_it_stopped(shared: Session, place: str) -> None:
    deep = (
        "import os, sys\nos.chdir(sys.argv[1])\nfor level in range(3000):\n"
        "    if level == 50: open('f', 'w').write('found')\n"
        "    os.mkdir('d'); os.chdir('d')\nopen('lost', 'w')\n"
    )
    result = shared.exec(["python3", "-c", deep, place], outputs=[f"{place}/**"])
    assert (result.stderr, [file.content for file in result.files]) == ("", ["found"])
    (warning,) = result.warnings
    assert warning.startswith(f"{place}/d/d/d/")
    assert warning.endswith(
        "/d/... is where the listing stopped, too deep or at too many files: not collected"
    )
    shared.remove(place)


def test_more_folders_than_file_descriptors_are_all_looked_into(shared: Session, place: str) -> None:
    made = (
        "import os, sys\nos.chdir(sys.argv[1])\n"
        "for n in range(1500):\n    os.makedirs(f'{n}/x'); open(f'{n}/x/f', 'w').close()\n"
    )
    result = shared.exec(["python3", "-c", made, place], outputs=[f"{place}/**"], output_limits=MANY)
    assert (len(result.files), result.warnings) == (1500, [])
    shared.remove(place)


def test_a_thousand_files_are_collected(shared: Session, place: str) -> None:
    made = (
        "import os, sys\nos.chdir(sys.argv[1])\n"
        "for n in range(1000):\n    open(f'{n:04}.txt', 'w').write(str(n) * 10)\n"
    )
    result = shared.exec(["python3", "-c", made, place], outputs=[f"{place}/**"], output_limits=MANY)
    assert [(file.path, file.content) for file in result.files] == [
        (f"{place}/{n:04}.txt", str(n) * 10) for n in range(1000)
    ]
    shared.remove(place)


# -- what is no file --


def test_what_is_no_regular_file_is_not_collected_and_told(shared: Session, place: str) -> None:
    """trpc-44"""
    made = (
        "import os, socket, sys\nos.chdir(sys.argv[1])\nopen('a.txt', 'w').write('a')\n"
        "os.mkdir('real'); open('real/b.txt', 'w').write('b')\n"
        "for link in ('host /etc/passwd', 'inside a.txt', 'dangling nowhere', 'folder /etc', 'up ..',\n"
        "             'folder-inside real', 'proc /proc/self/environ', 'zero /dev/zero'):\n"
        "    name, target = link.split()\n    os.symlink(target, name)\n"
        "os.mkfifo('pipe'); socket.socket(socket.AF_UNIX).bind('socket')\n"
    )
    result = shared.exec(["python3", "-c", made, place], outputs=[f"{place}/**"])
    assert result.stderr == ""
    assert [(file.path, file.content) for file in result.files] == [
        (f"{place}/a.txt", "a"),
        (f"{place}/real/b.txt", "b"),
    ]
    links = ("dangling", "folder", "folder-inside", "host", "inside", "proc", "up", "zero")
    assert sorted(result.warnings) == sorted(
        [f"{place}/{name} is a link: not collected" for name in links]
        + [f"{place}/{name} is not a regular file: not collected" for name in ("pipe", "socket")]
    )


def test_links_out_of_the_workspace_are_not_followed_when_named(shared: Session, place: str) -> None:
    """trpc-44"""
    shared.exec(
        f"cd {place}; ln -s /etc/passwd file; ln -s /etc folder; mkfifo pipe; ln -s loop loop; echo a > a"
    )
    named = [f"{place}/{name}" for name in ("file", "folder/passwd", "folder/**", "pipe", "loop/x", "a")]
    result = shared.exec("true", outputs=named)
    assert [(file.path, file.content) for file in result.files] == [(f"{place}/a", "a\n")]
    assert sorted(result.warnings) == [
        f"{place}/file: it leads out of the workspace: not collected",
        f"{place}/folder/passwd: it leads out of the workspace: not collected",
        f"{place}/folder: it leads out of the workspace: not collected",
        f"{place}/loop/x: it is a link, and links are not followed: not collected",
        f"{place}/pipe is not a regular file: not collected",
    ]


def test_a_folder_that_links_to_another_of_the_workspace_is_one_place(shared: Session, place: str) -> None:
    shared.put(f"inputs/{place}/a.txt", "a")
    files = shared.collect(f"work/inputs/{place}/*", f"inputs/{place}/*")
    assert [file.path for file in files] == [f"inputs/{place}/a.txt"]


def test_the_links_that_every_session_has_are_not_worth_a_warning(session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: plain\ndescription: d\n---\n")
    result = session.exec("echo a > out/a", skill=folder, outputs=["**"])
    assert ([file.path for file in result.files], result.warnings) == (["out/a"], [])


def test_files_without_read_permission_are_collected_or_told(shared: Session, place: str) -> None:
    command = f"cd {place}; echo a > a; echo b > b; mkdir c; echo d > c/d; chmod 000 b c"
    result = shared.exec(command, outputs=[f"{place}/**"])
    assert [(file.path, file.content) for file in result.files] == [(f"{place}/a", "a\n")]
    assert result.warnings == [
        f"{place}/c is not a regular file: not collected",
        f"{place}/b could not be read: Permission denied",
    ]
    shared.exec(f"chmod -R u+rwX {place}")


def test_a_file_swapped_for_a_link_during_collection_never_gives_what_it_links_to(session: Session) -> None:
    swap = (
        "import os\nopen('out/f', 'w').write('mine'); os.symlink('/etc/passwd', 'link')\n"
        "print('ready', flush=True)\nwhile True:\n"
        "    os.rename('out/f', 'g'); os.rename('link', 'out/f')\n"
        "    os.rename('out/f', 'link'); os.rename('g', 'out/f')\n"
    )
    run = session.start(["python3", "-c", swap])
    assert run.read(timeout=20).stdout.startswith("ready")
    seen = {file.content for _ in range(200) for file in session.collect("out/**")}
    run.kill()
    assert seen == {"mine"}
    assert session.exec("head -c 4 /etc/passwd").stdout == "root"


def test_a_growing_file_does_not_hold_up_its_collection(executor: Executor) -> None:
    with executor.session(limits=Limits(disk="16m")) as session:
        run = session.start("while :; do head -c 65536 /dev/zero >> out/grows; echo x >> out/other; done")
        while not session.exec("ls out").stdout.endswith("other\n"):
            pass
        files = session.collect("out/**")
        assert [file.path for file in files] == ["out/grows", "out/other"]
        run.kill()
        assert session.exec("echo works").stdout == "works\n"


# -- when they are collected --


def test_outputs_are_collected_when_the_script_fails(shared: Session, place: str) -> None:
    result = shared.exec(f"echo report > {place}/report.txt; exit 7", outputs=[f"{place}/**"])
    assert (result.status, result.exit_code) == ("error", 7)
    assert [(file.path, file.content) for file in result.files] == [(f"{place}/report.txt", "report\n")]


def test_outputs_are_collected_when_time_runs_out(shared: Session, place: str) -> None:
    result = shared.exec(f"echo partial > {place}/a; sleep 60", timeout=0.5, outputs=[f"{place}/**"])
    assert (result.status, result.timed_out, result.exit_code) == ("timeout", True, 124)
    assert [(file.path, file.content) for file in result.files] == [(f"{place}/a", "partial\n")]


def test_outputs_are_collected_when_a_signal_ends_the_script(shared: Session, place: str) -> None:
    result = shared.exec(f"echo partial > {place}/a; kill -KILL $$", outputs=[f"{place}/**"])
    assert (result.status, result.signal) == ("error", 9)
    assert [file.content for file in result.files] == ["partial\n"]


def test_outputs_are_collected_when_the_command_is_not_there(shared: Session, place: str) -> None:
    touch(shared, place, "earlier")
    result = shared.exec(["no-such-command"], outputs=[f"{place}/**"])
    assert (result.exit_code, [file.path for file in result.files]) == (127, [f"{place}/earlier"])


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "-c", "import sys; o = sys.argv[1]\nopen(o + '/b', 'wb').write(bytes(range(256)))\n"
         "open(o + '/t', 'w').write('text \u00fc\\n')"],
        ["bash", "-c", 'for i in $(seq 0 255); do printf "\\\\x$(printf %02x $i)"; done > $0/b\n'
         "printf 'text \u00fc\\n' > $0/t"],
        ["node", "-e", "const fs = require('fs'), o = process.argv[1];\n"
         "fs.writeFileSync(o + '/b', Buffer.from([...Array(256).keys()]));\n"
         "fs.writeFileSync(o + '/t', 'text \u00fc\\n');"],
    ],
    ids=["python", "bash", "node"],
)  # fmt: skip
def test_each_language_writes_bytes_and_text_that_come_back(
    shared: Session, place: str, command: list[str]
) -> None:
    result = shared.exec([*command, place], outputs=[f"{place}/*"])
    assert (result.stderr, result.exit_code) == ("", 0)
    data = bytes(range(256))
    assert [(file.encoding, file.content, file.size) for file in result.files] == [
        ("base64", base64.b64encode(data).decode(), 256),
        ("utf-8", "text \u00fc\n", 8),
    ]


# -- skills --


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    """A skill with files of its own, under a name that no other test has."""
    folder = tmp_path / f"outputs-{next(_numbers)}"
    (folder / "assets").mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: d\n---\n")
    (folder / "assets" / "logo.svg").write_text("<svg/>")
    (folder / "assets" / "plain.svg").write_text("<svg/>")
    (folder / "run.sh").write_bytes(b"#!/bin/sh\r\n")
    return folder


def test_a_relative_glob_also_means_files_in_the_skill(shared: Session, skill: Path) -> None:
    result = shared.exec(
        "mkdir diagrams; echo '<svg/>' > diagrams/a.svg", skill=skill, outputs=["diagrams/*.svg"]
    )
    assert [(file.path, file.mime) for file in result.files] == [
        (f"skills/{skill.name}/diagrams/a.svg", "image/svg+xml")
    ]
    assert [file.path for file in shared.collect("diagrams/*.svg", skill=skill)] == [result.files[0].path]
    assert shared.collect("diagrams/*.svg") == []


def test_files_that_a_skill_shipped_are_outputs_only_once_they_changed(shared: Session, skill: Path) -> None:
    patterns = ["assets/*.svg", "*.sh", "*.md"]
    assert shared.exec("true", skill=skill, outputs=patterns).files == []
    command = (
        "echo '<svg>new</svg>' > assets/logo.svg; touch assets/plain.svg; cp assets/plain.svg assets/copy.svg"
    )
    result = shared.exec(command, skill=skill, outputs=patterns)
    assert [file.path for file in result.files] == [
        f"skills/{skill.name}/assets/copy.svg",
        f"skills/{skill.name}/assets/logo.svg",
    ]


@pytest.mark.parametrize(
    "pattern", ["skills/{}/assets/*", "$SKILL_DIR/assets/*", "/skills/{}/assets/**", "skills/*/assets/*"]
)
def test_files_that_a_skill_shipped_are_outputs_when_asked_for_by_name(
    shared: Session, skill: Path, pattern: str
) -> None:
    found = shared.exec("true", skill=skill, outputs=[pattern.format(skill.name)]).files
    files = [file for file in found if file.path.startswith(f"skills/{skill.name}/")]
    assert [(file.path, file.content) for file in files] == [
        (f"skills/{skill.name}/assets/logo.svg", "<svg/>"),
        (f"skills/{skill.name}/assets/plain.svg", "<svg/>"),
    ]
    assert files[0].read() == b"<svg/>"


def test_asking_for_one_shipped_file_does_not_bring_the_others(shared: Session, skill: Path) -> None:
    patterns = ["assets/*.svg", "*.md", f"skills/{skill.name}/run.sh"]
    result = shared.exec("true", skill=skill, outputs=patterns)
    assert [(file.path, file.content) for file in result.files] == [
        (f"skills/{skill.name}/run.sh", "#!/bin/sh\n")
    ]


def test_out_is_collected_once_whether_it_is_named_from_the_skill_or_not(
    shared: Session, skill: Path
) -> None:
    name = skill.name
    patterns = ["out/**", f"skills/{name}/out/**", "$OUTPUT_DIR/**"]
    result = shared.exec(
        f"mkdir out/{name}; echo a > out/{name}/a", skill=skill, outputs=patterns, output_limits=MANY
    )
    assert [file.path for file in result.files if name in file.path] == [f"out/{name}/a"]
    assert all(file.path.startswith("out/") for file in result.files)


def test_collecting_for_an_unknown_skill_is_an_error(shared: Session) -> None:
    with pytest.raises(SkillError, match="no-such-skill"):
        shared.collect("out/**", skill="no-such-skill")


# -- caps --


def sized(session: Session, folder: str, **sizes: int) -> None:
    for name, size in sizes.items():
        session.put(f"{folder}/{name}", b"0123456789abcdef" * (size // 16) + b"x" * (size % 16))


def shape(files: list[OutputFile]) -> list[tuple[str, int, int | None, bool]]:
    """(name, size, length of content, truncated) of each."""
    return [
        (
            file.path.rpartition("/")[2],
            file.size,
            None if file.content is None else len(file.content),
            file.truncated,
        )
        for file in files
    ]


def capped(session: Session, folder: str, **limits: int) -> ExecResult:
    return session.exec("true", outputs=[f"{folder}/**"], output_limits=OutputLimits(**limits))


def test_max_files_cuts_the_list_and_is_named(shared: Session, place: str) -> None:
    """trpc-1.10.3, trpc-46"""
    touch(shared, place, *"abcde")
    result = capped(shared, place, max_files=2)
    assert [file.path for file in result.files] == [f"{place}/a", f"{place}/b"]
    assert result.limits_hit == ["max_files"]
    assert result.warnings == ["5 files match; only the first 2 are returned"]
    assert capped(shared, place, max_files=5).limits_hit == []


def test_max_file_bytes_cuts_the_content_and_not_the_size(shared: Session, place: str) -> None:
    """trpc-1.10.2, trpc-45"""
    sized(shared, place, a=1024, b=16, c=15)
    result = capped(shared, place, max_file_bytes=16)
    assert shape(result.files) == [("a", 1024, 16, True), ("b", 16, 16, False), ("c", 15, 15, False)]
    assert result.files[0].content == "0123456789abcdef"
    assert result.limits_hit == ["max_file_bytes"]
    assert result.files[0].sha256 == hashlib.sha256(b"0123456789abcdef" * 64).hexdigest()
    assert result.files[0].read() == b"0123456789abcdef" * 64


def test_max_total_bytes_is_shared_by_the_files_in_order(shared: Session, place: str) -> None:
    """trpc-1.10.3, trpc-46"""
    sized(shared, place, a=4, b=4)
    result = capped(shared, place, max_total_bytes=6)
    assert shape(result.files) == [("a", 4, 4, False), ("b", 4, 2, True)]
    assert result.limits_hit == ["max_total_bytes"]
    assert capped(shared, place, max_total_bytes=8).limits_hit == []


def test_inline_bytes_leaves_the_content_out_and_is_named(shared: Session, place: str) -> None:
    sized(shared, place, a=16, b=17)
    result = capped(shared, place, inline_bytes=16)
    assert shape(result.files) == [("a", 16, 16, False), ("b", 17, None, True)]
    assert result.limits_hit == ["inline_bytes"]
    assert result.files[1].read() == b"0123456789abcdefx"
    assert result.files[1].mime == "text/plain"


def test_a_file_of_5_mib_is_whole_below_a_cap_of_8_mib(shared: Session, place: str) -> None:
    """trpc-45"""
    sized(shared, place, a=5 << 20)
    whole = [("a", 5 << 20, 5 << 20, False)]
    assert shape(capped(shared, place, max_file_bytes=8 << 20).files) == whole
    assert shape(capped(shared, place, inline_bytes=8 << 20).files) == whole
    default = shared.exec("true", outputs=[f"{place}/**"])
    assert (shape(default.files), default.limits_hit) == ([("a", 5 << 20, None, True)], ["inline_bytes"])
    shared.remove(place)


def test_a_cut_does_not_split_a_character(shared: Session, place: str) -> None:
    shared.put(f"{place}/a", "ab数据")
    for cap, content in ((2, "ab"), (3, "ab"), (4, "ab"), (5, "ab数"), (7, "ab数"), (8, "ab数据")):
        file = capped(shared, place, max_file_bytes=cap).files[0]
        assert (file.content, file.encoding, file.truncated) == (content, "utf-8", cap < 8)


def test_caps_of_nothing_are_caps(shared: Session, place: str) -> None:
    sized(shared, place, a=4, empty=0)
    assert capped(shared, place, max_files=0).files == []
    assert shape(capped(shared, place, max_total_bytes=0).files) == [
        ("a", 4, 0, True),
        ("empty", 0, 0, False),
    ]
    assert shape(capped(shared, place, inline_bytes=0).files) == [
        ("a", 4, None, True),
        ("empty", 0, 0, False),
    ]


def test_a_file_of_100_mib_comes_by_read_and_save(session: Session, tmp_path: Path) -> None:
    made = (
        "import hashlib\nsha = hashlib.sha256()\nwith open('out/big.bin', 'wb') as file:\n"
        "    for number in range(100):\n        piece = (b'%08d' % number) * (1 << 17)\n"
        "        file.write(piece); sha.update(piece)\nprint(sha.hexdigest(), end='')\n"
    )
    result = session.exec(["python3", "-c", made], outputs=["out/**"])
    (file,) = result.files
    assert shape(result.files) == [("big.bin", 100 << 20, None, True)]
    assert (file.sha256, result.limits_hit) == (result.stdout, ["inline_bytes"])
    where = file.save(tmp_path)
    with open(where, "rb") as saved:
        assert hashlib.file_digest(saved, "sha256").hexdigest() == file.sha256
    data = file.read()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (100 << 20, file.sha256)


def test_a_sparse_file_is_no_more_than_its_bytes(shared: Session, place: str) -> None:
    (file,) = shared.exec(f"truncate -s 20M {place}/sparse", outputs=[f"{place}/*"]).files
    assert (file.size, file.sha256) == (20 << 20, hashlib.sha256(bytes(20 << 20)).hexdigest())


# -- what is said of each file --

MIMES = {
    "a.csv": (b"a,b\n1,2\n", "text/csv"),
    "a.tsv": (b"a\tb\n", "text/tab-separated-values"),
    "a.json": (b'{"a": 1}\n', "application/json"),
    "a.svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
    "a.png": (png(), "image/png"),
    "fake.png": (b"this is text", "text/plain"),
    "picture.txt": (png(), "image/png"),
    "picture": (png(), "image/png"),
    "a.md": (b"# Title\n", "text/markdown"),
    "a.py": (b"print(1)\n", "text/x-python"),
    "a.ts": (b"let x: number = 1;\n", "text/x-typescript"),
    "a.js": (b"let x = 1;\n", "text/javascript"),
    "a.sh": (b"echo\n", "text/x-shellscript"),
    "script": (b"#!/usr/bin/env python3\n", "text/x-python"),
    "a.html": (b"<!doctype html><p>", "text/html"),
    "a.xml": (b"<?xml version='1.0'?><x/>", "application/xml"),
    "a.yaml": (b"a: 1\n", "application/yaml"),
    "a.docx": (office("word"), "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    "a.xlsx": (office("xl"), "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    "office": (office("word"), "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    "a.zip": (office("x")[:0] + b"PK\x05\x06" + bytes(18), "application/zip"),
    "a.ipynb": (b'{"cells": [], "nbformat": 4}', "application/x-ipynb+json"),
    "a.pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "application/pdf"),
    "a.unknown": (b"plain text\n", "text/plain"),
    "noise": (b"\x00\x01\x02\x03\xfe\xff" * 10, "application/octet-stream"),
    "empty": (b"", "application/octet-stream"),
    "empty.csv": (b"", "text/csv"),
}


def test_types_are_the_same_on_every_runtime(shared: Session, place: str) -> None:
    """trpc-1.10.4, trpc-47"""
    for name, (content, _) in MIMES.items():
        shared.put(f"{place}/{name}", content)
    files = shared.collect(f"{place}/*")
    assert {file.path.removeprefix(place + "/"): file.mime for file in files} == {
        name: mime for name, (_, mime) in MIMES.items()
    }


def test_a_picture_comes_back_byte_for_byte(shared: Session, place: str) -> None:
    """trpc-47"""
    picture = png(200, 100)
    shared.put(f"inputs/{place}.png", picture)
    result = shared.exec(f"cp inputs/{place}.png {place}/a.png", outputs=[f"{place}/*"])
    (file,) = result.files
    assert (file.encoding, file.mime, file.size) == ("base64", "image/png", len(picture))
    assert base64.b64decode(file.content or "", validate=True) == picture
    assert file.read() == picture


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"plain\r\n\t", "utf-8"),
        ("ü 数据 \U0001f600".encode(), "utf-8"),
        (b"", "utf-8"),
        (b"\xef\xbb\xbfbom", "utf-8"),
        (b"\x1b[31m\x07", "utf-8"),
        (b"nul\0", "base64"),
        (b"latin \xe9", "base64"),
        (b"\xff\xfeu\0t\0f\0", "base64"),
        (b"\xed\xa0\x80", "base64"),
    ],
)
def test_text_is_given_as_text_and_all_else_as_base64(
    shared: Session, place: str, data: bytes, encoding: str
) -> None:
    """trpc-1.10.5"""
    shared.put(f"{place}/a", data)
    (file,) = shared.collect(f"{place}/*")
    assert (file.encoding, file.size, file.truncated) == (encoding, len(data), False)
    content = file.content or ""
    assert (base64.b64decode(content) if encoding == "base64" else content.encode()) == data
    assert file.read() == data
    assert file.sha256 == hashlib.sha256(data).hexdigest()


def test_a_collected_file_and_a_result_have_the_promised_fields(shared: Session, place: str) -> None:
    result = shared.exec(f"echo a > {place}/a.txt", outputs=[f"{place}/*"])
    assert list(ExecResult.model_fields) == [
        *("status", "exit_code", "signal", "stdout", "stderr", "stdout_bytes", "stderr_bytes"),
        *("stdout_truncated", "stderr_truncated", "timed_out", "duration_ms", "usage", "files", "limits_hit"),
        *("warnings", "killed_descendants", "pending", "run_id", "session_id", "runtime"),
    ]
    assert list(result.model_dump()["usage"]) == ["wall_ms", "cpu_ms", "max_rss_bytes"]
    assert [file.model_dump() for file in result.files] == [
        {
            "path": f"{place}/a.txt",
            "size": 2,
            "mime": "text/plain",
            "sha256": hashlib.sha256(b"a\n").hexdigest(),
            "encoding": "utf-8",
            "content": "a\n",
            "truncated": False,
            "saved_as": None,
        }
    ]
    assert isinstance(result.files[0], File)


# -- what changed since --


def test_the_content_in_a_result_is_what_was_collected(shared: Session, place: str) -> None:
    (file,) = shared.exec(f"echo old > {place}/a", outputs=[f"{place}/*"]).files
    shared.exec(f"echo new > {place}/a")
    assert file.read() == b"old\n"


@pytest.mark.parametrize(
    "change", ["echo more >> {}", "rm {}", "rm {0}; ln -s /etc/passwd {0}", "rm {0}; mkdir {0}"]
)
def test_a_file_that_changed_since_it_was_collected_is_an_error(
    shared: Session, place: str, tmp_path: Path, change: str
) -> None:
    small = OutputLimits(inline_bytes=1)
    (file,) = shared.exec(f"echo old > {place}/a", outputs=[f"{place}/*"], output_limits=small).files
    assert (file.content, file.read()) == (None, b"old\n")
    shared.exec(change.format(f"{place}/a"))
    with pytest.raises(BadPathError):
        file.read()
    with pytest.raises(BadPathError):
        file.save(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if not path.is_dir()]
    assert file.saved_as is None


# -- saving --


def one(session: Session, folder: str, name: str = "a.txt", content: str = "data") -> File:
    session.put(f"{folder}/{name}", content)
    return next(file for file in session.collect(f"{folder}/**") if file.path == f"{folder}/{name}")


def test_save_writes_below_the_folder_by_the_files_path(shared: Session, place: str, tmp_path: Path) -> None:
    file = one(shared, place, "sub/a.txt")
    where = file.save(tmp_path / "new" / "folder")
    assert where == tmp_path / "new" / "folder" / place / "sub" / "a.txt"
    assert where.read_bytes() == b"data"
    assert file.saved_as == str(where)


def test_what_is_saved_has_mode_0644(shared: Session, place: str, tmp_path: Path) -> None:
    shared.exec(f"echo x > {place}/tool; chmod 4777 {place}/tool")
    (file,) = shared.collect(f"{place}/*")
    assert stat.S_IMODE(file.save(tmp_path).stat().st_mode) == 0o644


def test_save_does_not_overwrite_unless_told_to(shared: Session, place: str, tmp_path: Path) -> None:
    file = one(shared, place)
    there = tmp_path / place / "a.txt"
    there.parent.mkdir(parents=True)
    there.write_text("precious")
    with pytest.raises(BadPathError, match="exists already"):
        file.save(tmp_path)
    assert there.read_text() == "precious"
    assert file.save(tmp_path, overwrite=True).read_text() == "data"
    assert [path.name for path in there.parent.iterdir()] == ["a.txt"]


def test_save_never_goes_through_a_link(shared: Session, place: str, tmp_path: Path) -> None:
    file = one(shared, place)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "a.txt").write_text("precious")
    target = tmp_path / "target"
    (target / "out").mkdir(parents=True)
    (target / place).symlink_to(victim)
    for overwrite in (False, True):
        with pytest.raises(BadPathError, match="nothing is saved through it"):
            file.save(target, overwrite=overwrite)
    (target / place).unlink()
    (target / place).mkdir()
    (target / place / "a.txt").symlink_to(victim / "a.txt")
    with pytest.raises(BadPathError, match="exists already"):
        file.save(target)
    assert file.save(target, overwrite=True).read_text() == "data"
    assert (victim / "a.txt").read_text() == "precious"


def test_save_says_what_is_in_its_way(shared: Session, place: str, tmp_path: Path) -> None:
    file = one(shared, place)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadPathError, match="is not a folder"):
        file.save(tmp_path / "file")
    with pytest.raises(BadPathError, match="is not a folder"):
        file.save(tmp_path / "file" / "below")
    (tmp_path / place / "a.txt").mkdir(parents=True)
    for overwrite in (False, True):
        with pytest.raises(BadPathError, match=r"exists already|is a folder"):
            file.save(tmp_path, overwrite=overwrite)


def test_hostile_names_are_saved_below_the_folder_under_safe_names(
    shared: Session, place: str, tmp_path: Path
) -> None:
    names = {
        "-rf": "%2Drf",
        "a\nb": "a%0Ab",
        "\x1b[31m": "%1B[31m",
        "back\\slash": "back%5Cslash",
        "latin-\udce9": "latin-%E9",
        "%41": "%2541",
        "数据 (1).csv": "数据 (1).csv",
        "...": "...",
        "~": "~",
        "$(id)": "$(id)",
    }
    touch(shared, place, *names)
    for file in shared.collect(f"{place}/*"):
        file.save(tmp_path)
    assert sorted(path.name for path in (tmp_path / place).iterdir()) == sorted(names.values())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_name_that_has_no_room_for_its_safe_form_is_an_error(
    shared: Session, place: str, tmp_path: Path
) -> None:
    touch(shared, place, "\x01" * 100)
    (file,) = shared.collect(f"{place}/*")
    with pytest.raises(BadPathError, match="longer than 255 bytes"):
        file.save(tmp_path)
    assert file.read() == b"\x01" * 100


def test_content_in_a_result_outlives_the_session(executor: Executor, tmp_path: Path) -> None:
    caps = OutputLimits(inline_bytes=4)
    with executor.session() as session:
        small, large = session.exec(
            "printf 1234 > out/a; printf 12345 > out/b", outputs=["out/*"], output_limits=caps
        ).files
    assert (small.read(), small.save(tmp_path).read_bytes()) == (b"1234", b"1234")
    for use in (large.read, lambda: large.save(tmp_path)):
        with pytest.raises(SessionClosedError):
            use()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]


def test_files_of_a_skill_are_saved_by_their_path(shared: Session, skill: Path, tmp_path: Path) -> None:
    (file,) = shared.exec("echo a > new.txt", skill=skill, outputs=["new.txt"]).files
    assert file.save(tmp_path / "t") == tmp_path / "t" / "skills" / skill.name / "new.txt"
