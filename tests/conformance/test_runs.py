"""A run: what the command gets (words, environment, folder, stdin) and what comes back from it."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest
from probes import eventually, python

from executor import BadPathError, BadRequestError, Executor, Session, Settings

ARGUMENTS = "import sys, os, json; print(json.dumps([os.fsencode(word).hex() for word in sys.argv[1:]]))"
ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"
# Every environment that the script may look into: its own and those of all processes it can see.
ENVIRONMENTS = """
import glob, json
found = []
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        found.append(open(path, "rb").read().decode(errors="replace"))
    except OSError:
        pass
print(json.dumps(found))
"""


# -- words --


def test_a_string_is_a_shell_line(shared: Session) -> None:
    result = shared.exec("echo $((6 * 7)) | tr 2 3; echo 'a  b'")
    assert (result.status, result.stdout) == ("ok", "43\na  b\n")


def test_a_sequence_is_an_argument_vector_that_no_shell_sees(shared: Session) -> None:
    result = shared.exec(["echo", "$((6 * 7))", "|", "tr"])
    assert (result.status, result.stdout) == ("ok", "$((6 * 7)) | tr\n")


@pytest.mark.parametrize(
    "word",
    [
        "it's",
        'say "hi"',
        "$HOME ${HOME} $(id) `id`",
        "  two  spaces  ",
        "line\nbreak\r\n\ttab",
        "back\\slash\\\\n",
        "",
        "*",
        "~",
        "-n",
        "naïve – 漢字 🎈",
        b"\xff\xfe\x80",
        b"caf\xe9",
        "\x01\x1b[31m\x7f",
    ],
    ids=ascii,
)
def test_an_argument_arrives_unchanged(shared: Session, word: str | bytes) -> None:
    sent = [word, "after", word]
    got = json.loads(shared.exec(["python3", "-c", ARGUMENTS, *sent]).stdout)
    assert got == [(item if isinstance(item, bytes) else item.encode()).hex() for item in sent]


def test_a_shell_line_that_is_not_ascii_arrives_unchanged(shared: Session) -> None:
    assert shared.exec("printf %s 'naïve – 漢字 🎈'").stdout == "naïve – 漢字 🎈"


def test_a_megabyte_of_arguments_arrives(shared: Session) -> None:
    words = [f"{number:04d}" * 250 for number in range(1000)]
    program = (
        "import sys, hashlib\n"
        "text = chr(0).join(sys.argv[1:])\n"
        "print(len(text), hashlib.sha256(text.encode()).hexdigest())"
    )
    text = "\0".join(words)
    expected = f"{len(text)} {hashlib.sha256(text.encode()).hexdigest()}\n"
    assert shared.exec(["python3", "-c", program, *words]).stdout == expected


def test_an_argument_that_the_kernel_does_not_take_is_a_failed_start(shared: Session) -> None:
    result = shared.exec(["echo", "x" * 200_000])  # one word: at most 128 KiB
    assert (result.status, result.exit_code) == ("error", 126)
    assert "Argument list too long" in result.stderr


@pytest.mark.parametrize("command", ["", [], [""], "echo a\0b", ["echo", "a\0b"]], ids=ascii)
def test_a_command_that_cannot_be_one_is_the_callers_error(shared: Session, command: str | list[str]) -> None:
    with pytest.raises(BadRequestError):
        shared.exec(command)


# -- environment --


def test_the_environment_is_what_is_documented_and_nothing_else(shared: Session) -> None:
    """trpc-1.7.2, trpc-1.11.12"""
    found = python(shared, ENVIRONMENT)
    run_id = found["EXECUTOR_RUN_ID"]
    expected = {
        "WORKSPACE_DIR": "/workspace",
        "INPUTS_DIR": "/workspace/inputs",
        "WORK_DIR": "/workspace/work",
        "OUTPUT_DIR": "/workspace/out",
        "RUN_DIR": f"/workspace/runs/{run_id}",
        "SKILLS_DIR": "/skills",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PIP_RETRIES": "0",
        "npm_config_fetch_retries": "0",
        "UV_OFFLINE": "1",
    }
    assert {name: found.get(name) for name in expected} == expected
    for name in ("PATH", "HOME", "USER", "MPLCONFIGDIR", "PYTHONPYCACHEPREFIX"):
        assert found[name]
    assert "SKILL_DIR" not in found
    assert "SKILL_NAME" not in found


def test_a_skills_run_has_the_variables_of_the_skill(shared: Session) -> None:
    """trpc-1.7.2, trpc-1.11.14"""
    found = python(shared, ENVIRONMENT, skill="sales-report")
    assert (found["SKILL_DIR"], found["SKILL_NAME"]) == ("/skills/sales-report", "sales-report")


def test_home_can_be_written(shared: Session) -> None:
    assert shared.exec("echo kept > ~/note && cat $HOME/note && rm ~/note").stdout == "kept\n"


def test_a_variable_of_the_host_is_nowhere_in_the_sandbox(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """trpc-63, trpc-1.11.12"""
    secret = "sk-only-the-host-has-this"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    with Executor(runtime=runtime) as made, made.session() as session:
        assert "OPENAI_API_KEY" not in python(session, ENVIRONMENT)
        assert not [text for text in python(session, ENVIRONMENTS) if secret in text]
        # The same look finds what the caller passes on.
        seen = python(session, ENVIRONMENTS, env={"OPENAI_API_KEY": secret})
        assert [text for text in seen if secret in text]


def test_the_callers_variable_wins_over_the_operators_and_both_over_ours(
    runtime: str, skills_root: Path
) -> None:
    """trpc-1.11.13, trpc-1.1.8"""
    operator = {"WHO": "operator", "MPLBACKEND": "operator", "ONLY": "operator"}
    own = {"log-digest": {"WHO": "skill", "MPLBACKEND": "skill", "KEY": "skill"}, "": {"KEY": "none"}}
    settings = Settings(env=operator, skill_env=own)
    with (
        Executor(runtime=runtime, skills=[skills_root], settings=settings) as made,
        made.session() as session,
    ):
        found = python(session, ENVIRONMENT, env={"WHO": "caller", "LANG": "C"})
        in_skill = python(session, ENVIRONMENT, skill="log-digest", env={"WHO": "caller"})
    wanted = {"WHO": "caller", "LANG": "C", "MPLBACKEND": "operator", "ONLY": "operator"}
    assert {name: found[name] for name in wanted} == wanted
    assert "KEY" not in found
    wanted = {"WHO": "caller", "MPLBACKEND": "skill", "KEY": "skill", "ONLY": "operator"}
    assert {name: in_skill[name] for name in wanted} == wanted


def test_the_callers_output_dir_wins(shared: Session) -> None:
    """trpc-1.7.2"""
    assert shared.exec("echo $OUTPUT_DIR", env={"OUTPUT_DIR": "/workspace/x"}).stdout == "/workspace/x\n"


def test_a_variable_arrives_unchanged(shared: Session) -> None:
    values = {"A": "", "B": "a=b c\n'\"$HOME\\", "C": "naïve 漢字", "with-dash.and dot": "yes"}
    found = python(shared, ENVIRONMENT, env=values)
    assert {name: found[name] for name in values} == values


@pytest.mark.parametrize("variable", [{"": "x"}, {"A=B": "x"}, {"A": "x\0y"}, {"A\0": "x"}], ids=ascii)
def test_a_variable_that_cannot_be_one_is_the_callers_error(
    shared: Session, variable: dict[str, str]
) -> None:
    with pytest.raises(BadRequestError):
        shared.exec("true", env=variable)


def test_a_run_does_not_inherit_what_another_run_exported(shared: Session) -> None:
    shared.exec("export LEFT=over; cd /tmp; umask 077")
    assert shared.exec("echo [$LEFT] $PWD; umask").stdout == "[] /workspace\n0022\n"


# -- folders --


def test_the_documented_folders_exist_and_can_be_written(shared: Session) -> None:
    """trpc-1.7.1"""
    line = (
        "for d in $WORKSPACE_DIR $INPUTS_DIR $WORK_DIR $OUTPUT_DIR $RUN_DIR $SKILLS_DIR $TMPDIR /dev/shm; do "
        "test -d $d && echo x > $d/probe && rm $d/probe || echo $d; done; readlink work/inputs skills"
    )
    assert shared.exec(line).stdout == "../inputs\n/skills\n"


def test_each_run_has_a_folder_of_its_own(shared: Session) -> None:
    first = shared.exec("echo $RUN_DIR; ls -A $RUN_DIR; echo mine > $RUN_DIR/file")
    second = shared.exec("echo $RUN_DIR; ls -A $RUN_DIR")
    assert first.stdout == f"/workspace/runs/{first.run_id}\n"
    assert second.stdout == f"/workspace/runs/{second.run_id}\n"
    assert first.run_id != second.run_id


def test_a_runs_folder_is_kept_when_used_and_gone_when_empty(shared: Session) -> None:
    used = shared.exec("echo kept > $RUN_DIR/note").run_id
    empty = shared.exec("true").run_id
    assert shared.exec(f"cat runs/{used}/note; ls -d runs/{empty} 2>&1 | wc -l").stdout == "kept\n1\n"
    assert shared.exec(["test", "-d", f"/workspace/runs/{used}"]).exit_code == 0
    assert shared.exec(["test", "-d", f"/workspace/runs/{empty}"]).exit_code == 1


@pytest.mark.parametrize(
    ("cwd", "expected"),
    [
        (None, "/workspace"),
        ("", "/workspace"),
        (".", "/workspace"),
        ("work/x", "/workspace/work/x"),
        ("/work/x", "/workspace/work/x"),
        ("work\\x", "/workspace/work/x"),
        ("$WORK_DIR/x", "/workspace/work/x"),
        ("${WORK_DIR}/x", "/workspace/work/x"),
        ("/workspace/work/x", "/workspace/work/x"),
        ("$OUTPUT_DIR", "/workspace/out"),
        ("skills", "/skills"),
        ("/skills", "/skills"),
    ],
)
def test_cwd_may_name_a_folder_in_many_ways(shared: Session, cwd: str | None, expected: str) -> None:
    shared.exec("mkdir -p work/x")
    assert shared.exec("pwd -P; echo $PWD", cwd=cwd).stdout == f"{expected}\n{expected}\n"


@pytest.mark.parametrize(
    "cwd",
    ["../etc", "work/../../etc", "/etc", "/", "/tmp", "out/*.zip", "$HOME", "missing", "a\0b"],
    ids=ascii,
)
def test_cwd_outside_or_missing_is_the_callers_error(shared: Session, cwd: str) -> None:
    with pytest.raises(BadPathError):
        shared.exec("pwd", cwd=cwd)


def test_cwd_through_a_link_inside_is_followed(shared: Session) -> None:
    shared.exec("mkdir -p work/real; ln -sfn ../work/real out/inside")
    assert shared.exec("pwd -P", cwd="out/inside").stdout == "/workspace/work/real\n"


@pytest.mark.parametrize("target", ["/etc", "/", "../../etc", "/proc/self/root/etc", "loop"])
def test_cwd_through_a_link_that_leaves_the_workspace_is_refused(shared: Session, target: str) -> None:
    """trpc-50"""
    shared.exec(["ln", "-sfn", target, "/workspace/out/loop" if target == "loop" else "/workspace/out/away"])
    with pytest.raises(BadPathError):
        shared.exec("pwd", cwd="out/loop" if target == "loop" else "out/away")


def test_cwd_that_is_a_file_is_refused(shared: Session) -> None:
    shared.exec("echo x > work/file")
    with pytest.raises(BadPathError):
        shared.exec("pwd", cwd="work/file")


def test_a_skills_run_starts_in_the_skill_and_cwd_is_below_it(shared: Session) -> None:
    """trpc-1.11.14"""
    assert shared.exec("pwd -P", skill="sales-report").stdout == "/skills/sales-report\n"
    assert shared.exec("pwd -P", skill="sales-report", cwd="scripts").stdout == (
        "/skills/sales-report/scripts\n"
    )
    assert shared.exec("pwd -P", skill="sales-report", cwd="$WORKSPACE_DIR").stdout == "/workspace\n"


# -- stdin --


def test_stdin_is_at_its_end_unless_given(shared: Session) -> None:
    result = shared.exec(["python3", "-c", "input('Name: ')"], timeout=20)
    assert (result.status, result.exit_code, result.stdout) == ("error", 1, "Name: ")
    assert result.stderr.endswith("EOFError: EOF when reading a line\n")


@pytest.mark.parametrize("data", ["hello\n", "", "naïve 漢字\r\n", b"\x00\xff\xfe\n\r", b""], ids=ascii)
def test_stdin_arrives_unchanged(shared: Session, data: str | bytes) -> None:
    raw = data if isinstance(data, bytes) else data.encode()
    result = shared.exec("od -An -v -tx1 | tr -d ' \\n'", stdin=data)
    assert (result.status, result.stdout) == ("ok", raw.hex())


def test_fifty_megabytes_of_binary_stdin_arrive(shared: Session) -> None:
    block = bytes(range(256)) * 4096
    data = block * 50
    result = shared.exec("sha256sum", stdin=data, timeout=60)
    assert result.stdout == f"{hashlib.sha256(data).hexdigest()}  -\n"


def test_stdin_that_nobody_reads_holds_nothing_up(shared: Session) -> None:
    result = shared.exec("echo done", stdin=b"x" * (8 << 20), timeout=60)
    assert (result.status, result.stdout) == ("ok", "done\n")


def test_stdin_that_a_program_closes_half_way_holds_nothing_up(shared: Session) -> None:
    result = shared.exec("head -c 3; exec <&-; echo; echo done", stdin=b"x" * (8 << 20), timeout=60)
    assert (result.status, result.stdout) == ("ok", "xxx\ndone\n")


def test_a_program_may_read_its_stdin_and_write_as_much_at_once(shared: Session) -> None:
    data = b"0123456789abcdef" * (1 << 19)
    result = shared.exec("tee /dev/stderr | sha256sum", stdin=data, timeout=60)
    assert result.stdout == f"{hashlib.sha256(data).hexdigest()}  -\n"
    assert result.stderr_bytes == len(data)


# -- how it ends --


@pytest.mark.parametrize(
    ("code", "expected"), [(0, 0), (1, 1), (7, 7), (124, 124), (137, 137), (255, 255), (256, 0), (-1, 255)]
)
def test_the_exit_status_is_the_scripts_own(shared: Session, code: int, expected: int) -> None:
    result = shared.exec(f"exit {code}")
    assert (result.status, result.exit_code, result.signal, result.timed_out) == (
        "ok" if expected == 0 else "error",
        expected,
        None,
        False,
    )


@pytest.mark.parametrize(
    ("number", "name"), [(9, "KILL"), (15, "TERM"), (11, "SEGV"), (13, "PIPE"), (34, "34")]
)
def test_a_signal_is_told_apart_from_an_exit_status(shared: Session, number: int, name: str) -> None:
    died = shared.exec(f"echo before; kill -{name} $$; echo after")
    assert (died.status, died.signal, died.stdout) == ("error", number, "before\n")
    exited = shared.exec(f"echo before; exit {128 + number}")
    assert (exited.status, exited.signal, exited.exit_code) == ("error", None, 128 + number)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("no-such-command", 127),
        (["no-such-command"], 127),
        (["/workspace/no-such-file"], 127),
        ("/etc/hosts", 126),
        (["/etc/hosts"], 126),
        (["/workspace"], 126),
    ],
    ids=str,
)
def test_a_command_that_cannot_be_started_has_a_shells_exit_status(
    shared: Session, command: str | list[str], code: int
) -> None:
    result = shared.exec(command)
    assert (result.status, result.exit_code, result.signal) == ("error", code, None)
    assert result.stderr


def test_a_program_of_the_wrong_format_cannot_be_started(shared: Session) -> None:
    shared.exec("printf '\\x7fELF-not-really' > work/broken; chmod +x work/broken")
    result = shared.exec(["/workspace/work/broken"])
    assert (result.status, result.exit_code) == ("error", 126)


def test_stdout_and_stderr_come_apart_and_each_in_order(shared: Session) -> None:
    result = shared.exec("for i in $(seq 1000); do echo out $i; echo err $i >&2; done")
    assert result.stdout == "".join(f"out {number}\n" for number in range(1, 1001))
    assert result.stderr == "".join(f"err {number}\n" for number in range(1, 1001))
    assert (result.stdout_bytes, result.stderr_bytes) == (len(result.stdout), len(result.stderr))
    assert not result.stdout_truncated
    assert not result.stderr_truncated


@pytest.mark.parametrize(
    ("end", "code", "stderr"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('bad')", 1, "bad\n"),
        ("raise ValueError('no')", 1, "ValueError: no\n"),
        ("os._exit(5)", 5, ""),
    ],
)
def test_every_way_to_end_python_is_kept_with_what_was_printed(
    shared: Session, end: str, code: int, stderr: str
) -> None:
    result = shared.exec(["python3", "-c", f"import os, sys\nprint('printed')\n{end}"])
    assert (result.exit_code, result.stdout) == (code, "printed\n")
    assert result.stderr.endswith(stderr) if stderr else result.stderr == ""
    assert ("Traceback" in result.stderr) is ("raise" in end)


def test_the_result_says_whose_it_is_and_what_it_used(shared: Session, runtime: str) -> None:
    result = shared.exec(["python3", "-c", "sum(range(3_000_000)); b = bytearray(50 << 20); print(len(b))"])
    assert (result.runtime, result.session_id) == (runtime, shared.id)
    assert result.run_id
    assert result.usage.max_rss_bytes > 50 << 20
    assert result.usage.cpu_ms > 0
    assert result.usage.wall_ms <= result.duration_ms + 1
    assert (result.limits_hit, result.warnings, result.files) == ([], shared.warnings, [])


def test_duration_is_the_time_it_took(shared: Session) -> None:
    result = shared.exec("sleep 0.3")
    assert 300 <= result.usage.wall_ms <= result.duration_ms + 1


# -- what a script may count on --


def test_a_script_with_a_shebang_runs_directly(shared: Session) -> None:
    shared.put("work/tool.py", "#!/usr/bin/env python3\nimport sys\nprint('tool', sys.argv[1:])\n")
    shared.exec("chmod +x work/tool.py")
    assert shared.exec(["/workspace/work/tool.py", "a b"]).stdout == "tool ['a b']\n"
    assert shared.exec("./tool.py 'a b'", cwd="work").stdout == "tool ['a b']\n"


def test_python_has_both_its_names(shared: Session) -> None:
    result = shared.exec("python -c 'import sys; print(sys.version_info[0])'; python3 -c 'print(3)'")
    assert result.stdout == "3\n3\n"


def test_python_prints_any_character(shared: Session) -> None:
    assert shared.exec(["python3", "-c", "print('naïve 漢字 🎈')"]).stdout == "naïve 漢字 🎈\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("diff <(echo a) <(echo a) && echo same", "same\n"),
        ("cat <<END\nhere $((1 + 1))\nEND", "here 2\n"),
        ("cat <<< word", "word\n"),
        ("trap 'echo bye' EXIT; echo hi", "hi\nbye\n"),
        ("trap 'echo got' USR1; kill -USR1 $$; echo on", "got\non\n"),
        ("trap 'echo int' INT; kill -INT $$; echo on", "int\non\n"),
        ("a=(x y z); echo ${a[@]:1} ${#a[@]}", "y z 3\n"),
        ("set -o pipefail; false | true; echo $?", "1\n"),
        ("{ sleep 0.05; echo late; } & wait; echo end", "late\nend\n"),
        ("[[ abc =~ ^a(.)c$ ]] && echo ${BASH_REMATCH[1]}", "b\n"),
        ("coproc cat; echo co >&${COPROC[1]}; read -u ${COPROC[0]} v; echo $v", "co\n"),
    ],
    ids=ascii,
)
def test_a_shell_line_may_use_all_of_bash(shared: Session, line: str, expected: str) -> None:
    result = shared.exec(line, timeout=20)
    assert (result.status, result.stdout, result.stderr) == ("ok", expected, "")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_a_script_can_serve_itself_on_loopback(shared: Session, host: str) -> None:
    shared.put("work/site/index.html", "served")
    program = """
import http.server, socket, sys, threading, urllib.request
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass
server = Server((sys.argv[1].strip("[]"), 0), Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://{sys.argv[1]}:{server.server_port}/").read().decode())
"""
    result = shared.exec(["python3", "-c", program, host], cwd="work/site", timeout=20)
    assert (result.status, result.stdout, result.stderr) == ("ok", "served\n", "")


def test_curl_reaches_a_server_of_another_run(session: Session) -> None:
    session.put("work/site/index.html", "served")
    server = session.start(["python3", "-m", "http.server", "8123", "--bind", "127.0.0.1"], cwd="work/site")
    ask = "curl --silent --show-error http://localhost:8123/index.html"
    assert eventually(lambda: session.exec(ask).stdout) == "served"
    assert server.running


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("m.cjs", "console.log(require('answer').value)"),
        ("m.js", "console.log(require('answer').value)"),
        ("m.mjs", "import answer from 'answer'; console.log(answer.value)"),
    ],
)
def test_node_finds_a_package_beside_the_script_in_both_kinds_of_module(
    shared: Session, file: str, content: str
) -> None:
    shared.put("work/node_modules/answer/package.json", '{"name": "answer", "main": "index.js"}')
    shared.put("work/node_modules/answer/index.js", "module.exports = {value: 42}")
    shared.put(f"work/{file}", content)
    result = shared.exec(["node", file], cwd="work", timeout=30)
    assert (result.status, result.stdout, result.stderr) == ("ok", "42\n", "")


def test_node_looks_for_packages_in_the_folder_that_the_image_has_for_them(shared: Session) -> None:
    """`require` through NODE_PATH, `import` because every folder of a session lies below `/`."""
    program = "console.log(process.env.NODE_PATH, require('fs').statSync('/node_modules').isDirectory())"
    assert shared.exec(["node", "-e", program]).stdout == "/node_modules true\n"
    looked_in = "console.log(require('module')._nodeModulePaths('/skills/x/scripts').at(-1))"
    assert shared.exec(["node", "-e", looked_in]).stdout == "/node_modules\n"


def test_a_run_starts_long_before_another_ends(shared: Session) -> None:
    slow = shared.start("sleep 30")
    began = time.monotonic()
    assert shared.exec("echo quick").stdout == "quick\n"
    assert time.monotonic() - began < 15
    assert slow.running
    slow.kill()
