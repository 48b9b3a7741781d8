"""Hostile text on its way out: whatever a script, a file name or an error holds, nothing that moves a cursor,
hides or reorders text reaches a terminal, a log or a model. (Pages and reports: `unit/test_reports`.)
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executor import Executor, ExecutorError, Grant, SandboxStartError, Session, tool
from executor.channel.attestation import Expected, check_attestation
from executor.cli import console
from executor.runtimes.base import Facts, Sandbox
from executor.runtimes.container import ContainerSandbox
from executor.runtimes.local import LocalSandbox
from executor.tools.sync import SyncSkillToolset
from executor.workspace.text import printable, printable_name, traced

# name → bytes that a script writes; some are names of files too.
ATTACKS = {
    "colour": b"\x1b[31mred\x1b[0m",
    "cursor": b"\x1b[2J\x1b[1;1Hgone",
    "title": b"\x1b]0;title\x07",
    "clipboard": b"\x1b]52;c;ZWNobw==\x1b\\",
    "bell and backspace": b"safe\x07\x08\x08\x08\x08evil",
    "C1": "\x9b31mred\x9d0;t\x9c".encode(),
    "bidi": "a\u202etxt.exe\u202c \u2066b\u2069".encode(),
    "tags": "hi\U000e0069\U000e0067\U000e006e\U000e006f\U000e0072\U000e0065".encode(),
    "lone carriage return": b"allowed\rdenied ",
    "not UTF-8": b"\xff\xfe\xed\xa0\x80",
    "DEL": b"a\x7fb",
}
BAD = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]|\r(?!\n)"
)
EVERYTHING = b" ".join(ATTACKS.values()) + b" \x00 end"


def check(text: str, where: str) -> None:
    found = BAD.search(text)
    assert found is None, f"{where}: {text[max(0, found.start() - 40) : found.start() + 40]!a}"


def test_the_pattern_of_this_test_sees_every_attack() -> None:
    for name, data in ATTACKS.items():
        assert BAD.search(data.decode("utf-8", "surrogateescape")), name


@pytest.mark.parametrize("data", [*ATTACKS.values(), EVERYTHING], ids=[*ATTACKS, "everything"])
def test_the_one_function_leaves_nothing(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for shown in (printable(text), printable_name(text + "\u2028\n")):
        check(shown, "printable")
        shown.encode()
    assert len(printable_name(text + "\u2028\u2029\r\n").splitlines()) == 1
    check(traced(ValueError(text)), "traced")


MAKE = r"""
import os, sys
data = bytes.fromhex(sys.argv[1]).replace(b"\0", b"").replace(b"/", b"")
os.chdir("/workspace/out")
for index, name in enumerate(data.split(b" ")):
    name = b"%d" % index + name
    open(name, "wb").write(data)
    os.symlink("/etc/passwd", b"link" + name)
    os.mkfifo(b"pipe" + name)
os.chmod(b"0" + data.split(b" ")[0], 0)
sys.stdout.buffer.write(bytes.fromhex(sys.argv[1]))
sys.stderr.buffer.write(bytes.fromhex(sys.argv[1]))
"""
COMMAND = ["python3", "-c", MAKE, EVERYTHING.hex()]


def test_warnings_and_errors_of_the_library(shared: Session) -> None:
    result = shared.exec(COMMAND, outputs=["out/**"])
    assert len(result.files) >= len(ATTACKS) and len(result.warnings) >= 2 * len(ATTACKS)
    assert result._stdout_raw == EVERYTHING  # the bytes are there for who wants them
    for warning in result.warnings:
        check(warning, "warning")
    json.dumps(json.loads(result.model_dump_json()))
    text = EVERYTHING.decode("utf-8", "surrogateescape").replace("\0", "").replace("/", "")
    for call in (
        lambda: shared.read(f"out/{text}"),
        lambda: shared.exec("true", cwd=f"work/{text}"),
        lambda: shared.exec("true", env={text + "=": "x"}),
        lambda: shared.exec("true", outputs=[f"../{text}"]),
        lambda: shared.load(text),
        lambda: shared.put(f"../{text}", b""),
        lambda: shared.start("true", tty=True, size=(text, 1)),  # type: ignore[arg-type]
    ):
        with pytest.raises(ExecutorError) as caught:
            call()
        check(str(caught.value), "error")


def test_what_a_model_reads(executor: Executor) -> None:
    with executor.session() as session:
        session.exec(COMMAND)
        tools = SyncSkillToolset(executor, session=session.id, state=":memory:", artifacts=False)
        text = EVERYTHING.decode("utf-8", "surrogateescape").replace("\0", "")
        calls: list[tuple[str, dict[str, Any]]] = [
            ("workspace_exec", {"command": f"printf '%b' '{octal(EVERYTHING)}'; ls out"}),
            ("workspace_exec", {"command": "cat out/1*", "cwd": text}),
            ("workspace_list_files", {"path": "out"}),
            ("workspace_read_file", {"path": f"out/{text}"}),
            ("skill_load", {"name": text}),
            (text, {}),
        ]
        for name, arguments in calls:
            result = tools.call(name, arguments)
            check(result.text, f"{name}: text")
            result.text.encode()


SKILL = """---
name: evil
description: "hides \\e[8m \\u202e \\U000E0041 \\x9b here"
---
# Body """


def test_what_a_model_reads_of_a_skill(executor: Executor, tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    (folder / "references").mkdir(parents=True)
    text = EVERYTHING.decode("utf-8", "replace").replace("\0", "")
    (folder / "SKILL.md").write_text(SKILL + text + "\n", newline="")
    (folder / "references/a.md").write_text(text, newline="")
    settings = executor.settings.model_copy(update={"skills": (str(tmp_path),)})
    with Executor(settings=settings) as made, made.session("s"):
        tools = SyncSkillToolset(made, session="s", state=":memory:", artifacts=False)
        check(tools.system_prompt(), "the catalogue")
        for name, arguments in (
            ("skill_load", {"skill": "evil", "include_all_docs": True}),
            ("read_skill_resource", {"skill": "evil", "path": "references/a.md"}),
        ):
            result = tools.call(name, arguments)
            assert "red" in result.text, result
            check(result.text, name)
        check(tools.system_prompt([]), "what is loaded")


def octal(data: bytes) -> str:
    return "".join(f"\\0{byte:03o}" for byte in data)


def test_a_terminal(runtime: str, skills_root: Path) -> None:
    """The command line on a real terminal. A script's own output may keep its colours, which are switched
    off, and the carriage returns of its progress bars.
    """
    words = ["run", "log-digest", "--runtime", runtime, "--skills", str(skills_root), "--", *COMMAND]
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "executor.cli", *words], stdin=other, stdout=other, stderr=other
    )
    os.close(other)
    seen = b""
    try:
        while data := os.read(main, 65536):
            seen += data
    except OSError:
        pass  # the terminal's other end is closed
    finally:
        os.close(main)
        process.wait(60)
    text = seen.decode().replace("\r\r\n", "\r\n")
    assert "end" in text and "link1" in text
    check(re.sub(r"\x1b\[[\d;]*m|\r", "", text), "terminal")


def test_what_the_command_line_says_itself(capsys: pytest.CaptureFixture[str]) -> None:
    text = EVERYTHING.decode("utf-8", "surrogateescape")
    console.say(text, kind="warning")
    console.error(text, text)
    console.out(text)
    console.table(("A", "B"), [(text, "b"), ("a", text)])
    console.out_json({text: text})
    said = capsys.readouterr()
    check(said.out + said.err, "console")


def test_a_log_line(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    """A tool of the host that fails says what it was given."""

    @tool
    def fails(text: str) -> str:
        """Fails."""
        raise RuntimeError(text)

    text = EVERYTHING.decode("utf-8", "replace").replace("\0", "")
    script = (
        "from skill_tools import tools\ntry:\n    tools.fails(text="
        + ascii(text)
        + ")\nexcept Exception: pass"
    )
    with caplog.at_level(logging.DEBUG), executor.session() as session:
        session.exec(["python3", "-c", script], grant=Grant(tools=[fails]))
    formatted = [logging.Formatter("%(message)s").format(record) for record in caplog.records]
    assert any("RuntimeError" in line for line in formatted), formatted
    for line in formatted:
        check(line, "log")


def test_last_words_of_a_sandbox() -> None:
    async def work() -> None:
        local = LocalSandbox(set())
        local.stderr = EVERYTHING
        container = ContainerSandbox(None, set(), set())
        container.stream.stderr = EVERYTHING
        sandboxes: list[Sandbox] = [local, container]
        for sandbox in sandboxes:
            _, why = await sandbox.post_mortem()
            assert "red" in why
            check(why, "post-mortem")

    asyncio.run(work())


def test_a_first_word_that_is_not_what_was_ordered() -> None:
    text = EVERYTHING.decode("utf-8", "surrogateescape")
    body: dict[str, Any] = {"root": "ro", "writable": [[text, text]], "status": {}, "namespaces": {}}
    body |= dict.fromkeys(("dumpable", "nonce", "pid", "python", "version"), text)
    with pytest.raises(SandboxStartError) as caught:
        check_attestation(body, Expected("x", Facts(1, 1)))
    check(str(caught.value), "attestation")
