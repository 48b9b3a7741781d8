"""The model's tools against a real sandbox, on every runtime.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from probes import alive, eventually

from executor import BadPathError, Executor, Session
from executor.tools import (
    PROFILES,
    CommandPolicy,
    Options,
    Sandbox,
    SkillMetadata,
    SyncSkillToolset,
    discover_skills,
)
from executor.workspace.artifacts import ArtifactStore

Make = Callable[..., SyncSkillToolset]


@pytest.fixture(scope="module")
def make(executor: Executor, shared: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes toolsets for the session that these tests have in common."""
    folder = tmp_path_factory.mktemp("tools")
    made: list[SyncSkillToolset] = []

    def toolset(session: Session | str = shared, **options: Any) -> SyncSkillToolset:
        usual = {"state": folder / "state.sqlite", "artifacts": folder / "artifacts", "mode": "session"}
        tools = SyncSkillToolset(executor, session=session, **{**usual, **options})
        made.append(tools)
        return tools

    yield toolset
    for tools in made:
        tools.close()


@pytest.fixture(scope="module")
def tools(make: Make) -> SyncSkillToolset:
    """The default profile, with log-digest loaded."""
    made = make()
    assert not made.call("skill_load", {"skill": "log-digest"}).is_error
    return made


def ok(tools: SyncSkillToolset, name: str, **arguments: Any) -> dict[str, Any]:
    result = tools.call(name, arguments)
    assert not result.is_error, result.text
    return result.structured


def refused(tools: SyncSkillToolset, name: str, **arguments: Any) -> str:
    result = tools.call(name, arguments)
    assert result.is_error, result.text
    return str(result.structured["error"]["message"])


def start(tools: SyncSkillToolset, command: str, **arguments: Any) -> str:
    made = ok(tools, "workspace_exec", command=command, background=True, **arguments)
    assert (made["status"], made["exit_code"]) == ("running", None)
    return str(made["session_id"])


def until(tools: SyncSkillToolset, session_id: str, text: str) -> dict[str, Any]:
    """Look until `text` came, or the end; the last look, with all that came in `got`."""
    got = ""
    deadline = time.monotonic() + 30
    while True:
        made = ok(tools, "workspace_write_stdin", session_id=session_id, yield_time_ms=500)
        got += made["stdout"]
        if text in got or made["status"] != "running":
            break
        assert time.monotonic() < deadline, got
    return {**made, "got": got}


# -- commands that run to their end --


def test_the_result_is_an_exec_result(tools: SyncSkillToolset, shared: Session) -> None:
    """trpc-55, trpc-1.11.3"""
    result = tools.call("workspace_exec", {"command": "echo out; echo err >&2; exit 7"})
    made = result.structured
    assert not result.is_error
    assert (made["status"], made["exit_code"], made["stdout"], made["stderr"]) == (
        "error",
        7,
        "out\n",
        "err\n",
    )
    assert (made["stdout_bytes"], made["stderr_bytes"], made["total_bytes"], made["truncated"]) == (
        4,
        4,
        8,
        False,
    )
    assert (made["session_id"], made["timed_out"], made["full_output"]) == ("", False, [])
    assert made["runtime"] == shared.runtime
    first, *rest = result.text.split("\n")
    assert first.startswith("[exit 7, ") and first.endswith(" ms]")
    assert rest == ["out", "[stderr]", "err"]


def test_stdin_env_and_cwd(tools: SyncSkillToolset) -> None:
    """trpc-51, trpc-55, trpc-1.11.1"""
    made = ok(
        tools,
        "workspace_exec",
        command='cat; pwd; echo "$OUTPUT_DIR $A"; test -d "$RUN_DIR" && echo yes; echo "$WORKSPACE_DIR"',
        stdin="hello\n",
        env={"OUTPUT_DIR": "x", "A": 5},
        cwd="work",
    )
    assert made["stdout"] == "hello\n/workspace/work\nx 5\nyes\n/workspace\n"
    assert ok(tools, "workspace_exec", command="cat")["stdout"] == ""


@pytest.mark.parametrize(
    ("cwd", "where"),
    [
        ("", "/workspace"),
        (".", "/workspace"),
        ("/work", "/workspace/work"),
        ("out", "/workspace/out"),
        ("$WORK_DIR", "/workspace/work"),
        ("skills\\log-digest", "/skills/log-digest"),
        ("skills/log-digest/scripts", "/skills/log-digest/scripts"),
    ],
)
def test_a_working_folder(tools: SyncSkillToolset, cwd: str, where: str) -> None:
    """trpc-50, trpc-1.11.9"""
    assert ok(tools, "workspace_exec", command="pwd", cwd=cwd)["stdout"] == where + "\n"


@pytest.mark.parametrize("cwd", ["../etc", "/etc", "out/*.zip", "work/none", "skills/sales-report", "out\0x"])
def test_a_bad_working_folder_is_refused(tools: SyncSkillToolset, cwd: str) -> None:
    """trpc-50, trpc-1.11.9"""
    message = refused(tools, "workspace_exec", command="pwd", cwd=cwd)
    assert "cwd" in message or ".." in message or "NUL" in message or "not below" in message


def test_a_command_in_a_skills_folder_has_its_variables(tools: SyncSkillToolset) -> None:
    made = ok(
        tools,
        "workspace_exec",
        command="echo ERROR db timeout | scripts/digest.sh --out work - >&2; echo $SKILL_NAME",
        cwd="skills/log-digest",
    )
    assert (made["stdout"], made["exit_code"]) == ("log-digest\n", 0)
    digest = json.loads(ok(tools, "workspace_read_file", path="work/digest.json")["content"])
    assert digest["levels"] == {"ERROR": 1}


def test_a_policy_stands_in_front_of_the_sandbox(make: Make) -> None:
    """trpc-61, trpc-62, trpc-1.11.2, trpc-1.11.11"""
    tools = make(options=Options(policy=CommandPolicy(allow=["python3", "echo"])))
    show = 'python3 -c \'import os; print(os.environ.get("OK"), os.environ.get("BASH_ENV"))\''
    unsafe = {"OK": "1", "BASH_ENV": "/workspace/x", "PATH": "/tmp", "BASH_FUNC_echo%%": "() { id; }"}
    assert ok(tools, "workspace_exec", command=show, env=unsafe)["stdout"] == "1 None\n"
    result = tools.call("workspace_exec", {"command": "echo hi | cat", "background": True})
    assert result.structured["error"]["type"] == "CommandDenied"
    assert result.structured["error"]["message"] == (
        "the command is not let through: 'cat' is not allowed here (allowed: echo, python3)"
    )


@pytest.mark.parametrize("name", ["timeout_sec", "timeoutSec", "timeout"])
def test_a_timeout_ends_everything_and_keeps_what_was_written(tools: SyncSkillToolset, name: str) -> None:
    """trpc-52, trpc-1.11.1"""
    began = time.monotonic()
    result = tools.call("workspace_exec", {"command": "echo part; sleep 77 & wait", name: 0.5})
    assert time.monotonic() - began < 10
    made = result.structured
    assert (made["status"], made["timed_out"], made["exit_code"]) == ("timeout", True, 124)
    assert (made["stdout"], result.is_error) == ("part\n", False)
    assert "timed out" in result.text.split("\n")[0]


def test_a_timeout_has_a_ceiling(tools: SyncSkillToolset) -> None:
    """trpc-w40"""
    assert refused(tools, "workspace_exec", command="true", timeout_sec=1e12) == (
        "timeout_sec=1e+12 is above 3600, the longest time here"
    )


def test_long_output_keeps_its_ends_and_the_whole_is_in_a_file(make: Make, shared: Session) -> None:
    """trpc-54, stella 1119; trpc-1.11.10"""
    tools = make(options=Options(output_bytes=200))
    result = tools.call("workspace_exec", {"command": "printf HEAD; seq 1000; printf TAIL; echo no >&2"})
    made = result.structured
    whole = ("HEAD" + "".join(f"{n}\n" for n in range(1, 1001)) + "TAIL").encode()
    assert made["stdout"].startswith("HEAD1\n") and made["stdout"].endswith("1000\nTAIL")
    assert len(made["stdout"]) <= 200 and "bytes omitted" in made["stdout"]
    assert (made["stdout_truncated"], made["stderr_truncated"], made["truncated"]) == (True, False, True)
    assert (made["stdout_bytes"], made["stderr"]) == (len(whole), "no\n")
    path = f"runs/{made['run_id']}.stdout.txt"
    assert made["full_output"] == [{"stream": "stdout", "path": path, "bytes": len(whole), "whole": True}]
    assert result.text.split("\n")[1] == f"[stdout is cut; all of it is in {path}, {len(whole)} bytes]"
    assert shared.read(path) == whole


def test_output_beyond_what_is_kept_says_so(make: Make, shared: Session) -> None:
    """trpc-53, ref-44"""
    tools = make(options=Options(output_bytes=100, spill_bytes=8192))
    made = ok(
        tools, "workspace_exec", command="printf HEAD; head -c 12000 /dev/zero | tr '\\0' x; printf TAIL"
    )
    (file,) = made["full_output"]
    assert (made["stdout_bytes"], file["whole"], file["bytes"]) == (12008, False, 8192 + 31)
    kept = shared.read(file["path"]).decode()
    assert kept == "HEAD" + "x" * 4092 + "\n[... 3,816 bytes omitted ...]\n" + "x" * 4092 + "TAIL"
    assert made["stdout"].startswith("HEADx") and made["stdout"].endswith("xTAIL")


def test_text_of_a_script_is_escaped(tools: SyncSkillToolset) -> None:
    result = tools.call(
        "workspace_exec", {"command": r"printf '\033[2Jx\rfake\n\342\200\256y\377'; printf '\a' >&2"}
    )
    assert result.structured["stdout"] == "\\x1b[2Jx\\rfake\n\\u202ey\ufffd"
    assert result.structured["stderr"] == "\\x07"
    assert not set("\x1b\r\u202e\x07") & set(result.text)


def test_progress_is_told_while_a_command_runs(
    tools: SyncSkillToolset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.tools.commands.PROGRESS_EVERY", 0.2)
    told: list[tuple[float, str]] = []
    tools.call("workspace_exec", {"command": "sleep 0.9"}, progress=lambda *what: told.append(what))
    # One every 0.2 s at most, however busy the machine is.
    times = [seconds for seconds, _ in told]
    assert told and all(later - earlier >= 0.2 for earlier, later in zip([0.0, *times], times, strict=False))
    assert told[0][1] == f"running for {times[0]:.0f} s"


@pytest.mark.parametrize("more", [{}, {"yield_time_ms": 60_000}])
def test_cancelling_a_call_ends_its_command(
    executor: Executor, tools: SyncSkillToolset, shared: Session, more: dict[str, Any]
) -> None:
    """trpc-53, PA-20"""
    loop = executor._loop._loop
    work = tools._inner.call("workspace_exec", {"command": "exec sleep 4711", **more})
    future = asyncio.run_coroutine_threadsafe(work, loop)
    assert eventually(lambda: alive(shared, "sleep 4711"))
    future.cancel()
    assert eventually(lambda: not alive(shared, "sleep 4711"))


# -- commands that go on --


def test_a_command_reads_what_is_written_to_it(tools: SyncSkillToolset) -> None:
    """trpc-56, trpc-1.11.5, trpc-1.11.4"""
    session_id = start(tools, "read v; echo out:$v; exit 4")
    made = ok(
        tools, "workspace_write_stdin", sessionId=session_id, chars="hello", submit=True, yieldMs=20_000
    )
    assert (made["status"], made["exit_code"], made["stdout"]) == ("error", 4, "out:hello\n")
    assert (made["offset"], made["next_offset"], made["total_bytes"]) == (0, 10, 10)
    again = ok(tools, "workspace_write_stdin", session_id=session_id)
    assert (again["status"], again["exit_code"], again["stdout"]) == ("error", 4, "")
    assert (again["offset"], again["next_offset"]) == (10, 10)
    killed = ok(tools, "workspace_kill_session", session_id=session_id)
    assert killed == {
        "ok": True,
        "session_id": session_id,
        "status": "exited",
        "exit_code": 4,
        "stdout": "",
        "stderr": "",
    }


def test_writing_to_what_has_ended_is_an_error_with_its_end(tools: SyncSkillToolset) -> None:
    session_id = start(tools, "exit 3")
    until(tools, session_id, "never")
    result = tools.call("workspace_write_stdin", {"session_id": session_id, "chars": "x"})
    assert (result.is_error, result.structured["exit_code"]) == (True, 3)
    assert result.text.startswith("Error: It has ended and reads no more")


def test_a_prompt_is_shown_once(tools: SyncSkillToolset) -> None:
    """trpc-58"""
    session_id = start(tools, "printf 'Name: '; read n; echo Hi $n")
    assert until(tools, session_id, "Name: ")["got"] == "Name: "
    assert ok(tools, "workspace_write_stdin", session_id=session_id, yield_time_ms=300)["stdout"] == ""
    made = ok(tools, "workspace_write_stdin", session_id=session_id, chars="Ann\n", yield_time_ms=20_000)
    assert (made["stdout"], made["offset"], made["next_offset"]) == ("Hi Ann\n", 6, 13)


def test_lines_polled_one_by_one_join_to_the_whole(tools: SyncSkillToolset) -> None:
    """trpc-58"""
    session_id = start(tools, "for w in a b c; do read go; printf $w; [ $w = c ] || echo; done")
    got, offset = "", 0
    for _ in range(3):
        made = ok(tools, "workspace_write_stdin", session_id=session_id, chars="\n", yield_time_ms=20_000)
        assert made["offset"] == offset
        offset = made["next_offset"]
        got += made["stdout"]
    got += until(tools, session_id, "never")["got"]
    assert got == "a\nb\nc"


def test_a_look_at_a_silent_command_returns_at_once(tools: SyncSkillToolset) -> None:
    """trpc-58"""
    session_id = start(tools, "sleep 600")
    began = time.monotonic()
    made = ok(tools, "workspace_write_stdin", session_id=session_id, yield_time_ms=0)
    assert time.monotonic() - began < 5
    assert (made["status"], made["stdout"]) == ("running", "")
    assert ok(tools, "workspace_kill_session", session_id=session_id)["status"] == "killed"


def test_yield_alone_waits_and_then_becomes_a_session(tools: SyncSkillToolset) -> None:
    """trpc row 1.11 foreground/session; trpc-1.11.4"""
    done = ok(tools, "workspace_exec", command="cat; echo now", stdin="in\n", yield_time_ms=20_000)
    assert (done["status"], done["stdout"]) == ("ok", "in\nnow\n")
    going = ok(tools, "workspace_exec", command="echo first; sleep 600", yield_time_ms=5_000)
    assert (going["status"], going["stdout"]) == ("running", "first\n")
    assert ok(tools, "workspace_kill_session", session_id=going["session_id"])["ok"] is True
    asking = ok(tools, "workspace_exec", command="printf 'who? '; read n; echo hi $n", yield_time_ms=5_000)
    assert (asking["status"], asking["stdout"]) == ("running", "who? ")
    answered = ok(
        tools, "workspace_write_stdin", session_id=asking["session_id"], chars="me\n", yield_time_ms=20_000
    )
    assert (answered["status"], answered["stdout"]) == ("ok", "hi me\n")


def test_killing_leaves_nothing_and_the_rest_of_the_output_comes(
    tools: SyncSkillToolset, shared: Session
) -> None:
    """trpc-57, trpc-1.11.6"""
    session_id = start(tools, "trap 'echo bye; exit' TERM; sleep 9191 & sleep 9191 & echo up; wait")
    assert until(tools, session_id, "up\n")["got"] == "up\n"
    killed = ok(tools, "workspace_kill_session", session_id=session_id)
    assert (killed["status"], killed["stdout"]) == ("killed", "bye\n")
    assert alive(shared, "sleep 9191") == []
    assert ok(tools, "workspace_kill_session", session_id=session_id)["stdout"] == ""


def test_end_of_file_and_signals(tools: SyncSkillToolset) -> None:
    """trpc-w18"""
    reader = start(tools, "cat; echo end")
    made = ok(
        tools, "workspace_write_stdin", session_id=reader, chars="abc\n", eof=True, yield_time_ms=20_000
    )
    assert (made["stdout"], made["status"]) == ("abc\nend\n", "ok")
    trapper = start(tools, "trap 'echo usr1; exit 5' USR1; echo up; while :; do sleep 0.1; done")
    until(tools, trapper, "up\n")
    ok(tools, "workspace_write_stdin", session_id=trapper, signal="USR1")
    end = until(tools, trapper, "usr1\n")
    assert until(tools, trapper, "never")["exit_code"] == 5, end
    assert "signal='SEGV'" in refused(tools, "workspace_write_stdin", session_id=trapper, signal="SEGV")


def test_a_terminal_with_its_size(tools: SyncSkillToolset) -> None:
    """trpc row 1.11 tty, trpc-w18"""
    made = ok(
        tools, "workspace_exec", command="test -t 0 && read x; stty size; cat", tty=True, yield_time_ms=100
    )
    session_id = made["session_id"]
    ok(tools, "workspace_write_stdin", session_id=session_id, rows=50, columns=132)
    got = ok(tools, "workspace_write_stdin", session_id=session_id, chars="\n", yield_time_ms=2000)["stdout"]
    if "50 132" not in got:
        got += until(tools, session_id, "50 132")["got"]
    assert "50 132" in got
    ended = ok(tools, "workspace_write_stdin", session_id=session_id, eof=True, yield_time_ms=20_000)
    assert ended["status"] == "ok"
    plain = start(tools, "sleep 600")
    assert "has no terminal" in refused(tools, "workspace_write_stdin", session_id=plain, rows=1, columns=1)
    assert "come together" in refused(tools, "workspace_write_stdin", session_id=plain, rows=1)
    ok(tools, "workspace_kill_session", session_id=plain)


def test_much_output_between_two_looks_is_in_a_file(make: Make, shared: Session) -> None:
    """trpc-54 for sessions"""
    tools = make(options=Options(output_bytes=100))
    session_id = start(tools, "read x; seq 5000; read x; echo last")
    ok(tools, "workspace_write_stdin", session_id=session_id, chars="\n", yield_time_ms=0)
    whole = "".join(f"{n}\n" for n in range(1, 5001))
    got, files = "", []
    deadline = time.monotonic() + 30
    while sum(file["bytes"] for file in files) + len(got) < len(whole):
        made = ok(tools, "workspace_write_stdin", session_id=session_id, yield_time_ms=1000)
        assert time.monotonic() < deadline
        if made["full_output"]:
            files += made["full_output"]
            got += shared.read(files[-1]["path"]).decode()
            files[-1]["bytes"] = 0
            assert len(made["stdout"]) <= 100
        else:
            got += made["stdout"]
    assert got == whole
    assert files
    end = ok(tools, "workspace_write_stdin", session_id=session_id, chars="\n", yield_time_ms=20_000)
    assert (end["stdout"], end["offset"]) == ("last\n", len(whole))


def test_a_command_belongs_to_one_agent_of_one_session(
    tools: SyncSkillToolset, make: Make, executor: Executor
) -> None:
    """trpc-59"""
    session_id = start(tools, "sleep 600")
    for other in (make(agent="other"), make(session="another", agent="main")):
        for name in ("workspace_write_stdin", "workspace_kill_session"):
            assert refused(other, name, session_id=session_id) == f"unknown session_id: {session_id!r}"
    executor.session("another").close()
    # The same agent finds it again, also in the next turn's toolset.
    assert ok(make(), "workspace_kill_session", session_id=session_id)["status"] == "killed"
    assert "session_id is required" in refused(tools, "workspace_kill_session")


def test_a_command_that_nobody_asks_about_ends(make: Make, shared: Session) -> None:
    """trpc-57, trpc-w46; trpc-1.11.7"""
    tools = make(agent="idle", options=Options(idle_seconds=0.5))
    session_id = start(tools, "sleep 3131")
    assert eventually(lambda: not alive(shared, "sleep 3131"))
    assert "unknown session_id" in refused(tools, "workspace_write_stdin", session_id=session_id)


def test_only_so_many_commands_go_on(make: Make) -> None:
    tools = make(agent="many", options=Options(max_commands=2))
    first, second = start(tools, "sleep 600"), start(tools, "sleep 600")
    result = tools.call("workspace_exec", {"command": "sleep 600", "background": True})
    assert result.structured["error"] == {
        "type": "BadRequestError",
        "message": "2 commands are running, and no more may",
        "hint": f"End one with workspace_kill_session: {first}, {second}",
    }
    ok(tools, "workspace_kill_session", session_id=first)
    start(tools, "sleep 600")
    tools.close()


# -- files --


def test_files_are_written_listed_read_and_edited(make: Make, session: Session) -> None:
    """trpc-w47"""
    tools = make(session=session, agent="files", state=":memory:")
    assert ok(tools, "workspace_write_file", path="out/d/a.txt", content="one\ntwo\ntwo\n") == {
        "path": "out/d/a.txt",
        "size": 12,
    }
    ok(tools, "workspace_write_file", path="out/d/a.txt", content="end\n", append=True)
    assert ok(tools, "workspace_list_files", path="out", recursive=True) == {
        "path": "out",
        "entries": [
            {"path": "d", "type": "folder", "size": 0},
            {"path": "d/a.txt", "type": "file", "size": 16},
        ],
        "truncated": False,
    }
    assert [entry["path"] for entry in ok(tools, "workspace_list_files")["entries"]] == [
        "inputs",
        "out",
        "runs",
        "skills",
        "work",
    ]
    assert ok(tools, "workspace_list_files", pattern="**/*.txt")["entries"] == [
        {"path": "out/d/a.txt", "type": "file", "size": 16}
    ]
    assert refused(tools, "workspace_edit_file", path="out/d/a.txt", old_text="two", new_text="2") == (
        "old_text is 2 times in out/d/a.txt"
    )
    assert ok(
        tools, "workspace_edit_file", path="out/d/a.txt", old_text="two", new_text="2", replace_all=True
    ) == {"path": "out/d/a.txt", "replaced": 2, "size": 12}
    assert "is not in" in refused(
        tools, "workspace_edit_file", path="out/d/a.txt", old_text="two", new_text="2"
    )
    result = tools.call("workspace_read_file", {"path": "out/d/a.txt", "start_line": 2, "max_lines": 2})
    assert result.text == "2\n2\n[lines 2 to 3 of 4; go on with start_line=4]"
    assert result.structured == {
        "path": "out/d/a.txt",
        "size": 12,
        "mime": "text/plain",
        "content": "2\n2\n",
        "start_line": 2,
        "lines": 2,
        "total_lines": 4,
        "truncated": True,
    }
    assert "it has 4 lines" in refused(tools, "workspace_read_file", path="out/d/a.txt", start_line=5)
    assert "is a file" in refused(tools, "workspace_list_files", path="out/d/a.txt")
    assert "no such file" in refused(tools, "workspace_read_file", path="out/none").lower()
    assert "folder" in refused(tools, "workspace_read_file", path="out/d")
    assert "folder" in refused(tools, "workspace_write_file", path="out", content="x")


def test_an_edit_keeps_mode_and_line_ends(tools: SyncSkillToolset, shared: Session) -> None:
    shared.exec("printf 'a\\r\\nb\\r\\nc\\n' > work/x.sh; chmod 755 work/x.sh")
    ok(tools, "workspace_edit_file", path="work/x.sh", old_text="a\nb\n", new_text="A\nB\n")
    assert shared.read("work/x.sh") == b"A\r\nB\r\nc\n"
    assert shared.exec("stat -c %a work/x.sh").stdout == "755\n"


def test_an_edit_cannot_fill_the_host(tools: SyncSkillToolset, shared: Session) -> None:
    shared.exec("head -c 1000000 /dev/zero | tr '\\0' a > work/as; head -c 17000000 /dev/zero > work/big")
    message = refused(
        tools, "workspace_edit_file", path="work/as", old_text="a", new_text="b" * 1_000_000, replace_all=True
    )
    assert message == "work/as would have 1,000,000,000,000 bytes, more than 16,777,216"
    for name, more in (
        ("workspace_read_file", {}),
        ("workspace_edit_file", {"old_text": "a", "new_text": "b"}),
        ("workspace_write_file", {"content": "x", "append": True}),
    ):
        assert "17,000,000 bytes, more than the 16,777,216" in refused(tools, name, path="work/big", **more)
    shared.exec("rm work/as work/big")


def test_a_picture_is_shown_and_other_bytes_are_not(tools: SyncSkillToolset, shared: Session) -> None:
    shared.put("inputs/sales.csv", "region,month,amount\nn,2024-01,1\ns,2024-02,2\n")
    ok(tools, "skill_load", skill="heatmap-png")
    made = ok(
        tools,
        "workspace_exec",
        command="python3 scripts/heatmap.py inputs/sales.csv",
        cwd="skills/heatmap-png",
    )
    assert made["exit_code"] == 0, made
    result = tools.call("workspace_read_file", {"path": "out/heatmap.png"})
    (image,) = result.images
    assert (image.mime, image.data) == ("image/png", shared.read("out/heatmap.png"))
    assert image.data.startswith(b"\x89PNG")
    assert result.structured["content"] is None
    zipped = tools.call("workspace_read_file", {"path": "out/bundle.zip"})
    assert (zipped.images, zipped.structured["mime"], zipped.structured["content"]) == (
        (),
        "application/zip",
        None,
    )
    assert "it is not text" in zipped.text


def test_long_files_and_long_lines_are_cut(make: Make, shared: Session) -> None:
    tools = make(options=Options(read_bytes=100))
    shared.put("work/long.txt", "ä" * 200 + "\nnext\n")
    first = ok(tools, "workspace_read_file", path="work/long.txt")
    assert (first["content"], first["truncated"]) == ("ä" * 50, True)
    assert ok(tools, "workspace_read_file", path="work/long.txt", start_line=2)["content"] == "next\n"


def test_nothing_of_the_host_is_reached(tools: SyncSkillToolset, shared: Session) -> None:
    """trpc-w20, trpc-63"""
    shared.exec("ln -sf /etc/passwd work/link; ln -sfn /etc work/etc")
    for path in ("work/link", "work/etc/passwd", "/etc/passwd", "../x", "work/../../x"):
        assert "root:" not in refused(tools, "workspace_read_file", path=path)
        refused(tools, "workspace_edit_file", path=path, old_text="root", new_text="x")
    for path in ("work/etc/x", "/etc/x", "../x"):
        refused(tools, "workspace_write_file", path=path, content="x")
    assert "/etc" in refused(tools, "workspace_list_files", path="/etc")
    refused(tools, "workspace_list_files", path="work/etc")
    assert not Path("/etc/x").exists()
    shared.exec("rm work/link work/etc")


def test_names_of_a_script_are_escaped(tools: SyncSkillToolset, shared: Session) -> None:
    shared.exec(["python3", "-c", "open('/workspace/work/a\\x1b[2J\\n.txt', 'w')"])
    result = tools.call("workspace_list_files", {"path": "work"})
    assert "a\\x1b[2J\\n.txt" in [entry["path"] for entry in result.structured["entries"]]
    assert "\x1b" not in result.text + json.dumps(result.structured)
    shared.exec("rm work/a*")


# -- artifacts --


def test_an_artifact_is_saved_and_comes_back(make: Make, session: Session, tmp_path: Path) -> None:
    """trpc-38, trpc-49, trpc-1.10.6, trpc-1.10.7"""
    store = ArtifactStore(tmp_path / "kept", scope="s", max_bytes=1000)
    tools = make(session=session, artifacts=store, agent="artifacts", state=":memory:")
    ok(tools, "workspace_write_file", path="out/a.csv", content="x\n1\n")
    saved = ok(tools, "workspace_save_artifact", path="$OUTPUT_DIR/a.csv")
    assert saved == {
        "path": "out/a.csv",
        "saved_as": "out/a.csv",
        "version": 0,
        "ref": "artifact://out/a.csv@0",
        "mime_type": "text/csv",
        "size_bytes": 4,
    }
    ok(tools, "workspace_write_file", path="out/a.csv", content="x\n2\n")
    assert tools.put_artifact("artifact://out/a.csv", pin=True) == "inputs/a.csv"
    assert ok(tools, "workspace_save_artifact", path="out/a.csv")["ref"] == "artifact://out/a.csv@1"
    tools.put_artifact("artifact://out/a.csv", pin=True)
    assert session.read("work/inputs/a.csv") == b"x\n1\n"
    assert tools.put_artifact("artifact://out/a.csv@1", to="work/b.csv") == "work/b.csv"
    assert session.read("work/b.csv") == b"x\n2\n"
    session.exec("mkdir -p out/d; head -c 1001 /dev/zero > out/big")
    for path, what in {
        "skills/x/a": "not below work/, out/ or runs/",
        "inputs/a.csv": "not below",
        "out/*": "wildcard",
        "out/none": "no such file",
        "out/d": "folder",
        "out/big": "1,001 bytes and an artifact may have 1,000",
    }.items():
        assert what in refused(tools, "workspace_save_artifact", path=path)
    assert store.names() == ["out/a.csv"]


# -- skills and the session --


def test_a_loaded_skill_that_went_away_does_not_stop_commands(
    make: Make, session: Session, skills_root: Path
) -> None:
    """trpc-33, trpc-w31"""
    folder = skills_root / "passing"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: passing\ndescription: x\n---\nx\n")
    tools = make(session=session, agent="gone", state=":memory:")
    ok(tools, "skill_load", skill="passing")
    shutil.rmtree(folder)
    made = ok(tools, "workspace_exec", command="echo works")
    assert made["stdout"] == "works\n"
    (warning,) = made["warnings"]
    assert warning.startswith("the files of passing could not be staged: there is no skill 'passing'")
    assert ok(tools, "workspace_exec", command="echo again")["warnings"] == []


def test_a_load_stages_the_version_that_it_showed(make: Make, session: Session, skills_root: Path) -> None:
    """trpc-26, ref-5, ref-26"""
    folder = skills_root / "versioned"
    folder.mkdir(exist_ok=True)
    (folder / "SKILL.md").write_text("---\nname: versioned\ndescription: x\n---\nv1\n")
    tools = make(session=session, agent="versions", state=":memory:")
    ok(tools, "skill_load", skill="versioned")
    show = {"command": "tail -n 1 /skills/versioned/SKILL.md"}
    assert ok(tools, "workspace_exec", **show)["stdout"] == "v1\n"
    (folder / "SKILL.md").write_text("---\nname: versioned\ndescription: x\n---\nv2\n")
    assert ok(tools, "workspace_exec", **show)["stdout"] == "v1\n"
    ok(tools, "skill_load", skill="versioned")
    assert ok(tools, "workspace_exec", **show)["stdout"] == "v2\n"
    shutil.rmtree(folder)


def test_a_resumed_session_has_exactly_what_it_had(make: Make, executor: Executor, tmp_path: Path) -> None:
    """ref-26, WN-14"""
    state = tmp_path / "state.sqlite"
    with executor.session("resumed") as first:
        tools = make(session=first, state=state)
        ok(tools, "skill_load", skill="log-digest", docs=["references/digest-json.md"])
        ok(
            tools,
            "workspace_exec",
            command="echo kept > work/x; echo '# mine' >> /skills/log-digest/SKILL.md",
        )
        loaded, history = tools.state.loaded(), tools.state.history()
        first.checkpoint()
    with executor.restore("resumed") as second:
        again = make(session=second, state=state)
        assert again.state.loaded() == loaded and loaded[0].docs
        assert again.state.history() == history
        made = ok(again, "workspace_exec", command="cat work/x; tail -n 1 /skills/log-digest/SKILL.md")
        assert made["stdout"] == "kept\n# mine\n"


def test_a_lost_sandbox_is_a_result(make: Make, executor: Executor) -> None:
    tools = make(session="doomed", state=":memory:")
    ok(tools, "workspace_exec", command="true")
    executor.session("doomed").close()
    assert "closed" in refused(tools, "workspace_exec", command="true")


NASTY: tuple[Any, ...] = (
    None,
    "",
    "\ud800",
    "\0",
    "x" * 5000,
    "\u202e\x1b[2J",
    "../../etc/passwd",
    "/etc/passwd",
    -1,
    10**30,
    float("nan"),
    True,
    ["\ud800", None],
    {"\ud800": "\0", "": None},
)


@pytest.mark.parametrize("profile", PROFILES)
def test_no_argument_whatever_raises(make: Make, profile: str) -> None:
    """Every argument of every tool with every nasty value: a result each time, and one that can be sent."""
    tools = make(profile=profile, agent=f"nasty-{profile}", state=":memory:", options=Options(max_timeout=2))
    valid = {
        **dict.fromkeys(("skill", "name", "skillId"), "log-digest"),
        **dict.fromkeys(("path", "file_path"), "work/nasty.txt"),
        **dict.fromkeys(("command", "content", "chars", "old_text", "old_string"), "true"),
        **dict.fromkeys(("new_text", "new_string"), "false"),
        "session_id": "cmd_none",
    }
    calls = 0
    for tool in tools.definitions():
        required = {name: valid[name] for name in tool["input"].get("required", [])}
        for field in [*tool["input"]["properties"], "no_such_argument"]:
            for value in NASTY:
                if field in ("background", "tty") and value is True:
                    continue  # these would go on
                result = tools.call(tool["name"], {**required, field: value})
                json.dumps(result.structured, allow_nan=False).encode()
                result.text.encode()
                assert "root:" not in result.text and "\x1b" not in result.text
                calls += 1
    assert calls >= 4 * len(NASTY)


# -- the guide's sandbox --


def test_the_guides_sandbox_has_its_three_methods(executor: Executor, session: Session) -> None:
    """VS-01, VS-13, VS-15, VS-08, VS-09"""
    sandbox = Sandbox(session._inner)
    session.exec("mkdir out/d; printf 'a\\377' > out/raw; printf text > out/a.txt; ln -s d out/link")

    async def work() -> None:
        assert await sandbox.readFile("/workspace/out/a.txt", "utf-8") == "text"
        entries = await sandbox.readdir("/workspace/out", withFileTypes=True)
        assert [(entry.name, entry.isDirectory()) for entry in entries] == [
            ("a.txt", False),
            ("d", True),
            ("link", False),
            ("raw", False),
        ]
        done = await sandbox.exec("echo out; echo err >&2; exit 3")
        assert (done.stdout, done.stderr, done.exitCode) == ("out\n", "err\n", 3)
        for path in ("/workspace/out/raw", "/workspace/out/none", "/etc/passwd", "/workspace/out"):
            with pytest.raises(BadPathError):
                await sandbox.readFile(path)
        for path in ("/etc", "/workspace/none", "/workspace/out/a.txt"):
            with pytest.raises(BadPathError):
                await sandbox.readdir(path)

    executor._loop.run(work())


def test_skills_are_found_in_the_sandbox(executor: Executor, session: Session) -> None:
    """VS-02, VS-03, VS-16, ref-8, ref-9"""
    for place, name, text in (
        ("one", "notes", "---\nname: notes\ndescription: first\n---\nbody"),
        ("two", "notes", "---\nname: notes\ndescription: second\n---\nbody"),
        ("two", "more", "---\nname: more\ndescription: other\n---\nbody"),
        ("two", "broken", "\0"),
        ("two", "plain", "no front matter"),
    ):
        session.put(f"work/{place}/{name}/SKILL.md", text)
    session.put("work/two/file.md", "beside")
    session.exec("mkdir work/two/empty")
    places = ["/workspace/work/one", "/workspace/work/missing", "/workspace/work/two"]
    found = executor._loop.run(discover_skills(Sandbox(session._inner), places))
    assert found == [
        SkillMetadata("notes", "first", "/workspace/work/one/notes"),
        SkillMetadata("more", "other", "/workspace/work/two/more"),
    ]
