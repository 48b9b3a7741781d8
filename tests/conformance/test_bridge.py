"""The capability bridge from inside: tests 41 to 50 of the behaviour list, and hostile scripts.

A script that attacks it may fail, lose its connection or its bridge; nothing may happen on the host, and other
runs stay healthy.
"""
# ruff: noqa: E501 (the scripts inside are other languages' lines)

from __future__ import annotations

import asyncio
import hashlib
import json
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from executor import (
    ApprovalRequest,
    BadRequestError,
    BridgeLimits,
    ExecResult,
    Executor,
    Grant,
    HostFile,
    SandboxFile,
    Session,
    ToolContext,
    ToolSpec,
    tool,
)

LOOSE = BridgeLimits(calls=100_000, operations=100_000, rate=None)
started: list[Any] = []
lock = threading.Lock()


@pytest.fixture(autouse=True)
def _nothing_started() -> None:
    started.clear()


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    with lock:
        started.append((a, b))
    return a + b


@tool
async def slow(seconds: float = 0.1) -> str:
    """Takes its time."""
    with lock:
        started.append(seconds)
    await asyncio.sleep(seconds)
    return "done"


@tool(name="echo-value")
def echo(value: Any = None) -> Any:
    """Give back what came."""
    return value


def run_python(session: Session, code: str, grant: Grant | None, **more: Any) -> ExecResult:
    session.put("work/probe.py", textwrap.dedent(code))
    return session.exec("python3 work/probe.py", grant=grant, **more)


def run_node(session: Session, code: str, grant: Grant, **more: Any) -> ExecResult:
    session.put("work/probe.mjs", textwrap.dedent(code))
    return session.exec("node work/probe.mjs", grant=grant, **more)


def ended(result: ExecResult) -> str:
    assert result.status == "ok", (result.status, result.stdout, result.stderr)
    return result.stdout


def records(session: Session, result: ExecResult) -> list[dict[str, Any]]:
    return [entry for entry in session.audit.records if entry.get("run_id") == result.run_id]


def healthy(session: Session) -> None:
    """The session, its sandbox and the bridge of a further run work."""
    result = session.exec("tool add a:=20 b:=22", grant=Grant(tools=[add]), timeout=30)
    assert (result.status, result.stdout) == ("ok", "42\n"), result.stderr
    assert session.exec("ls -a /tmp").stdout.split() == [".", "..", ".cache", "home"] or ".bridge" not in (
        session.exec("ls -a /tmp").stdout
    )


# -- one call in each language ------------------------------------------------------------------------

PYTHON = """
import asyncio
from skill_tools import SkillBridgeError, tools
assert tools.add(a=1, b=2) == tools.add({"a": 1, "b": 2}) == tools.call("add", {"a": 1, "b": 2}) == 3
assert asyncio.run(tools.aio.add(a=1, b=2)) == 3
for value in (None, True, 0, -1.5, "é\\u2028\\0", [1, [2]], {"a": {"b": []}}, 10**30, "x" * 300_000):
    assert tools.echo_value(value=value) == value, value
assert [item["name"] for item in tools.list()] == ["add", "echo-value"]
assert not hasattr(tools, "other") and not hasattr(tools, "__await__")
assert {"add", "echo_value", "call"} <= set(dir(tools))
import copy, inspect
copy.copy(tools)
assert list(inspect.signature(tools.add).parameters) == ["a", "b"]
assert tools.add.__doc__ == "Add two numbers."
for wrong, kind in ((lambda: tools.other(), AttributeError), (lambda: tools.call("x"), LookupError),
                    (lambda: tools.add(a="1", b=2), ValueError), (lambda: tools.echo_value(value=float("nan")), ValueError)):
    try:
        wrong()
    except SkillBridgeError as error:
        assert isinstance(error, kind), error
    else:
        raise AssertionError("no error")
print("good")
"""
NODE = """
import assert from 'node:assert';
import { createRequire } from 'node:module';
import { SkillBridgeError, tools } from 'skill-tools';
const same = createRequire(import.meta.url)('skill-tools').tools;
assert.equal(await tools.add({ a: 1, b: 2 }), 3);
assert.equal(await same.add({ a: 1, b: 2 }), 3);
assert.equal(await tools.call('add', { a: 1, b: 2 }), 3);
for (const value of [null, true, -1.5, 'é\\u2028\\0', [1, [2]], { a: { b: [] } }, 'x'.repeat(300000)])
  assert.deepEqual(await tools.echo_value({ value }), value);
for (const name of ['toString', 'constructor', 'hasOwnProperty', 'then', 'toJSON', Symbol.iterator, Symbol.toPrimitive])
  assert.equal(tools[name], undefined);
assert.equal(await tools, tools);
assert.equal(JSON.stringify({ tools }), '{"tools":{}}');
assert('add' in tools && !('other' in tools));
await assert.rejects(tools.other(), { code: 'TOOL_NOT_FOUND', message: 'Tool not available: other' });
await assert.rejects(tools.add({ a: '1', b: 2 }), (e) => e instanceof SkillBridgeError && e.details[0].path === '/a');
await assert.rejects(tools.add({ a: 1, b: 2 }, { signal: AbortSignal.abort() }), { name: 'AbortError' });
console.log('good');
"""
BASH = """
set -e
[ "$(tool add '{"a":1,"b":2}')" = 3 ]
[ "$(tool add a:=1 b:=2)" = 3 ]
[ "$(tool add --a 1 --b 2)" = 3 ]
[ "$(echo '{"a":1,"b":2}' | tool add -)" = 3 ]
echo '{"a":1,"b":2}' > work/input.json; [ "$(tool add @work/input.json)" = 3 ]
[ "$(tool echo-value value='two words
and a line' --raw)" = 'two words
and a line' ]
printf 'rest of stdin' | { tool add a:=1 b:=2 > /dev/null; [ "$(cat)" = 'rest of stdin' ]; }
head -c 300000 /dev/zero | tr '\\0' x > work/long
[ "$(printf '{"value":"%s"}' "$(cat work/long)" | tool echo-value - --raw)" = "$(cat work/long)" ]
tool --list | grep -q '^add.Add two numbers.$'
tool --help add | grep -q -- '--a integer (required)'
set +e
tool other 2> work/err; [ $? = 127 ] || exit 11
grep -q 'Tool not available: other' work/err || exit 12
tool add a=x 2> /dev/null; [ $? = 2 ] || exit 13
tool add 2> /dev/null; [ $? = 2 ] || exit 14
tool 2> /dev/null; [ $? = 2 ] || exit 15
SKILL_BRIDGE=/nonexistent tool add 2> /dev/null; [ $? = 125 ] || exit 16
echo good
"""


def test_python_calls(shared: Session) -> None:
    """TH-57"""
    assert ended(run_python(shared, PYTHON, Grant(tools=[add, echo]))) == "good\n"


def test_node_calls(shared: Session) -> None:
    """TH-57"""
    assert ended(run_node(shared, NODE, Grant(tools=[add, echo]))) == "good\n"


def test_bash_calls(shared: Session) -> None:
    """TH-63"""
    shared.put("work/probe.sh", BASH)
    result = shared.exec("bash work/probe.sh", grant=Grant(tools=[add, echo]))
    assert (result.stdout, result.exit_code) == ("good\n", 0), result.stderr


def test_without_a_grant_there_is_nothing(shared: Session) -> None:
    result = shared.exec("env; ls -a /tmp; command -v tool; python3 -c 'import skill_tools'")
    assert "BRIDGE" not in result.stdout
    assert ".bridge" not in result.stdout
    assert "No module named 'skill_tools'" in result.stderr


def test_the_folder_is_gone_when_the_run_is(shared: Session) -> None:
    result = shared.exec('ls -ld "$SKILL_BRIDGE"; ls -l "$SKILL_BRIDGE"', grant=Grant(tools=[add]))
    assert result.stdout.startswith("drwx------")
    assert " token" in result.stdout
    assert "-r--------" in result.stdout
    env = shared.exec(
        "cat $SKILL_BRIDGE/token; tr '\\0' '\\n' < /proc/self/environ", grant=Grant(tools=[add])
    )
    assert env.stdout.count(env.stdout.split()[0]) == 1  # the token is in no variable
    assert ".bridge" not in shared.exec("ls -a /tmp").stdout


def test_children_of_a_script_may_call_too(shared: Session) -> None:
    code = """
    import os, subprocess, sys
    from skill_tools import tools
    assert tools.add(a=1, b=1) == 2
    if os.fork() == 0:
        assert tools.add(a=2, b=2) == 4
        os._exit(0)
    assert os.wait()[1] == 0
    print(subprocess.run([sys.executable, "-c", "from skill_tools import tools; print(tools.add(a=3, b=3))"],
                         capture_output=True, text=True, start_new_session=True).stdout)
    """
    assert ended(run_python(shared, code, Grant(tools=[add]))).strip() == "6"


def test_a_background_run_has_a_bridge(shared: Session) -> None:
    run = shared.start("read line; tool add a:=$line b:=1", grant=Grant(tools=[add]))
    run.write("41\n")
    result = run.wait(30)
    assert (result.status, result.stdout) == ("ok", "42\n")


def test_the_sessions_grant_bounds_every_run(executor: Executor) -> None:
    with executor.session(grant=Grant(tools=[add])) as bounded:
        result = bounded.exec("tool --list", grant=Grant(tools=[add, echo]))
        assert result.stdout == "add\tAdd two numbers.\n"
        with pytest.raises(BadRequestError):
            executor.session(bounded.id, grant=Grant(tools=[echo]))


def test_front_matter_narrows(executor: Executor, skills_root: Path) -> None:
    """TH-50"""
    folder = skills_root / "narrowing"
    folder.mkdir(exist_ok=True)
    (folder / "SKILL.md").write_text(
        "---\nname: narrowing\ndescription: d\nallowed-tools: [add, slow]\n---\nb\n"
    )
    with executor.session() as session:
        result = session.exec("tool --list", skill="narrowing", grant=Grant(tools=[add, echo]))
    assert result.stdout == "add\tAdd two numbers.\n"
    assert any("leave out the granted echo-value" in warning for warning in result.warnings)


# -- 45: the workspace --------------------------------------------------------------------------------

WORKSPACE_PYTHON = """
from skill_tools import workspace
print(workspace.read_file("a.txt"), [e["name"] for e in workspace.list_files()], workspace.glob("**/*.md"),
      workspace.stat("a.txt")["size"], workspace.stat("missing"))
for act in (lambda: workspace.write_file("b.txt", "b"), lambda: workspace.read_file("missing"),
            lambda: workspace.read_file("../x"), lambda: workspace.read_file("link"), lambda: workspace.delete("a.txt")):
    try:
        act()
    except OSError as error:
        print(error.code, type(error).__mro__[2].__name__)
"""
WORKSPACE_NODE = """
import { workspace } from 'skill-tools';
console.log(await workspace.readFile('a.txt'), (await workspace.listFiles()).map((e) => e.name),
  await workspace.glob('**/*.md'), (await workspace.stat('a.txt')).size, await workspace.stat('missing'));
for (const act of [() => workspace.writeFile('b.txt', 'b'), () => workspace.readFile('missing'),
  () => workspace.readFile('../x'), () => workspace.readFile('link'), () => workspace.delete('a.txt')])
  await act().catch((error) => console.log(error.bridgeCode, error.code));
"""
WORKSPACE_BASH = """
workspace-read a.txt; workspace-list; workspace-glob '**/*.md'; workspace-stat a.txt; workspace-stat missing
echo b | workspace-write b.txt; echo "status $?"
workspace-read missing; echo "status $?"
workspace-read ../x; echo "status $?"
workspace-read link; echo "status $?"
workspace-delete a.txt; echo "status $?"
"""


@pytest.fixture
def offered(tmp_path: Path) -> Path:
    root = tmp_path / "offered"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("hello")
    (root / "sub/n.md").write_text("n")
    (tmp_path / "x").write_text("secret outside")
    (root / "link").symlink_to(tmp_path / "x")
    return root


def test_45_the_workspace_is_read_by_default(shared: Session, offered: Path) -> None:
    """ref-45, TH-56, TH-53"""
    grant = Grant(root=offered)
    python = ended(run_python(shared, WORKSPACE_PYTHON, grant)).splitlines()
    assert python[0] == "hello ['a.txt', 'link', 'sub'] ['sub/n.md'] 5 None"
    codes = ["DENIED", "NOT_FOUND", "BAD_PATH", "BAD_PATH", "DENIED"]
    assert [line.split()[0] for line in python[1:]] == codes
    node = ended(run_node(shared, WORKSPACE_NODE, grant)).splitlines()
    assert node[0] == "hello [ 'a.txt', 'link', 'sub' ] [ 'sub/n.md' ] 5 null"
    assert [line.split() for line in node[1:]] == [
        ["DENIED", "DENIED"],
        ["NOT_FOUND", "ENOENT"],
        ["BAD_PATH", "EINVAL"],
        ["BAD_PATH", "EINVAL"],
        ["DENIED", "DENIED"],
    ]
    bash = shared.exec(WORKSPACE_BASH, grant=grant)
    assert bash.stdout.startswith('hello[{"name": "a.txt"')
    assert '["sub/n.md"]' in bash.stdout
    assert [line for line in bash.stdout.splitlines() if "status" in line] == [
        "status 126",
        "status 1",
        "status 1",
        "status 1",
        "status 126",
    ]
    assert "Workspace write access is not available. [DENIED]" in bash.stderr
    assert not (offered / "b.txt").exists()
    assert "secret outside" not in "".join([*python, *node, bash.stdout, bash.stderr])


def test_without_a_root_there_is_no_workspace(shared: Session) -> None:
    result = shared.exec("workspace-read a.txt", grant=Grant(tools=[add]))
    assert (result.exit_code, result.stdout) == (126, "")
    assert "Workspace access is not available." in result.stderr


def test_writing_any_bytes(shared: Session, offered: Path) -> None:
    """TH-56"""
    grant = Grant(root=offered, workspace="read-write")
    data = bytes(range(256)) * 700
    shared.put("work/data.bin", data)
    assert shared.exec("workspace-write from/bash.bin < work/data.bin", grant=grant).status == "ok"
    code = "from skill_tools import workspace as w; w.write_file('p.bin', open('work/data.bin','rb').read())"
    ended(run_python(shared, code, grant))
    js = """
    import fs from 'node:fs'; import { workspace } from 'skill-tools';
    await workspace.writeFile('n.bin', fs.readFileSync('work/data.bin'));
    """
    ended(run_node(shared, js, grant))
    for name in ("from/bash.bin", "p.bin", "n.bin"):
        assert (offered / name).read_bytes() == data
    back = shared.exec("workspace-read p.bin | cmp - work/data.bin && echo same", grant=grant)
    assert back.stdout == "same\n"


def test_45_a_root_that_is_not_of_this_machine(shared: Session) -> None:
    """ref-45"""
    storage = pytest.importorskip("fsspec").filesystem("memory")
    storage.pipe_file("/shelf/notes/a.txt", b"hello")
    storage.pipe_file("/shelf/secret.txt", b"secret outside")
    read = Grant(root="memory://shelf/notes")
    python = "from skill_tools import workspace as w\nprint(w.read_file('a.txt'), w.glob('*'), w.stat('b'))\n"
    python += "for act in (lambda: w.read_file('missing'), lambda: w.write_file('b', 'x'), lambda: w.read_file('../secret.txt')):\n"
    python += "    try: act()\n    except OSError as e: print(e.code)\n"
    assert ended(run_python(shared, python, read)).split("\n") == [
        "hello ['a.txt'] None",
        "NOT_FOUND",
        "DENIED",
        "BAD_PATH",
        "",
    ]
    node = "import { workspace as w } from 'skill-tools';\nconsole.log(await w.readFile('a.txt'), await w.glob('*'));\n"
    node += "for (const act of [() => w.readFile('missing'), () => w.writeFile('b', 'x'), () => w.readFile('../secret.txt')])\n"
    node += "  await act().catch((e) => console.log(e.bridgeCode));\n"
    assert ended(run_node(shared, node, read)).split("\n") == [
        "hello [ 'a.txt' ]",
        "NOT_FOUND",
        "DENIED",
        "BAD_PATH",
        "",
    ]
    bash = "workspace-read a.txt; workspace-glob '*'; workspace-read missing; echo $?; echo x | workspace-write b; echo $?; workspace-read ../secret.txt"
    assert shared.exec(bash, grant=read).stdout == 'hello["a.txt"]\n1\n126\n'
    write = Grant(root="memory://shelf/notes", workspace="read-write")
    assert (
        shared.exec("echo new | workspace-write d/n.txt; workspace-delete a.txt", grant=write).exit_code == 0
    )
    assert sorted(storage.find("/shelf")) == ["/shelf/notes/d/n.txt", "/shelf/secret.txt"]
    storage.rm("/shelf", recursive=True)


def test_49_a_write_far_away_is_over_before_the_result(
    shared: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = pytest.importorskip("fsspec").filesystem("memory")
    begun = threading.Event()
    plainly = type(storage).pipe_file

    def slowly(self: Any, path: str, value: bytes, **more: Any) -> None:
        begun.set()
        time.sleep(1.5)
        plainly(self, path, value, **more)

    monkeypatch.setattr(type(storage), "pipe_file", slowly)
    grant = Grant(root="memory://late", workspace="read-write")
    result = shared.exec(
        "echo x | workspace-write late.txt; echo x | workspace-write later.txt", grant=grant, timeout=0.8
    )
    assert result.status == "timeout"
    assert begun.is_set()
    after = storage.find("/late")
    time.sleep(1.0)
    assert storage.find("/late") == after == ["/late/late.txt"]


# -- values that are files ----------------------------------------------------------------------------


@tool
def digest_of(document: HostFile) -> str:
    """SHA-256 of a file."""
    return document.sha256


@tool
def reversed_of(document: HostFile) -> SandboxFile:
    """A file backwards."""
    return SandboxFile("backwards.bin", document.read()[::-1])


def test_large_values_travel_as_files_in_each_language(shared: Session) -> None:
    data = bytes(range(256)) * 20_000  # more than a call or a result may have
    shared.put("work/large.bin", data)
    there, back = hashlib.sha256(data).hexdigest(), hashlib.sha256(data[::-1]).hexdigest()
    grant = Grant(tools=[digest_of, reversed_of], limits=BridgeLimits(argument=4096, result=4096))
    python = """
    import hashlib
    from skill_tools import file, tools
    found = tools.reversed_of(document=file("work/large.bin"))
    print(tools.digest_of(document=file("work/large.bin")), hashlib.sha256(open(found["$file"], "rb").read()).hexdigest())
    """
    assert ended(run_python(shared, python, grant)).split() == [there, back]
    node = """
    import fs from 'node:fs'; import crypto from 'node:crypto'; import { file, tools } from 'skill-tools';
    const found = await tools.reversed_of({ document: file('work/large.bin') });
    console.log(await tools.digest_of({ document: file('work/large.bin') }),
      crypto.createHash('sha256').update(fs.readFileSync(found.$file)).digest('hex'));
    """
    assert ended(run_node(shared, node, grant)).split() == [there, back]
    bash = """
    cd work; tool digest_of document@=large.bin --raw; echo
    tool reversed_of document@=/workspace/work/large.bin > found.json
    python3 -c 'import json; print(json.load(open("found.json"))["$file"])' | xargs cat | sha256sum | cut -d' ' -f1
    """
    result = shared.exec(bash, grant=grant)
    assert result.stdout.split() == [there, back], result.stderr
    for path in (
        "/etc/passwd",
        "/proc/1/environ",
        "../../etc/passwd",
        "missing",
        "/workspace/work",
        "work/link",
    ):
        shared.exec("ln -sf /etc/passwd work/link")
        refused = shared.exec(["tool", "digest_of", json.dumps({"document": {"$file": path}})], grant=grant)
        assert (refused.exit_code, refused.stdout) == (1, ""), path
        assert "NOT_FOUND" in refused.stderr


# -- 46: schemas and approvals ------------------------------------------------------------------------

pay = ToolSpec("pay", "Pays.", add.input_schema, add.handler, approval="always")


def test_46_a_wrong_type_is_refused_before_anybody_is_asked(shared: Session) -> None:
    """ref-46"""
    asked: list[ApprovalRequest] = []

    async def approver(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    grant = Grant(tools=[pay], approver=approver)
    assert shared.exec("tool pay a=x b:=1", grant=grant).exit_code == 2
    assert asked == []
    assert shared.exec("tool pay a:=1 b:=1", grant=grant).stdout == "2\n"
    assert [request.input for request in asked] == [{"a": 1, "b": 1}]


def test_46_the_clock_stands_still_while_a_person_thinks(shared: Session) -> None:
    """ref-46"""

    async def approver(request: ApprovalRequest) -> bool:
        await asyncio.sleep(2.0)
        return True

    code = """
    import threading, time
    from skill_tools import tools
    steps = 0
    def count():
        global steps
        while True:
            steps += 1
            time.sleep(0.01)
    threading.Thread(target=count, daemon=True).start()
    print(tools.pay(a=1, b=2), steps < 100, flush=True)
    """
    result = run_python(shared, code, Grant(tools=[pay], approver=approver), timeout=1.9)
    assert ended(result) == "3 True\n"  # it had not finished, and could do nothing in the meantime
    assert result.duration_ms > 2000


def test_46_the_deadline_still_comes_afterwards(shared: Session) -> None:
    async def approver(request: ApprovalRequest) -> bool:
        await asyncio.sleep(0.5)
        return True

    started_at = time.monotonic()
    result = shared.exec(
        "tool pay a:=1 b:=2; sleep 60", grant=Grant(tools=[pay], approver=approver), timeout=1.5
    )
    assert (result.status, result.stdout) == ("timeout", "3\n")
    assert time.monotonic() - started_at < 15


def test_46_a_rejection_is_a_permission_error(shared: Session) -> None:
    """ref-46"""

    async def approver(request: ApprovalRequest) -> bool:
        return False

    code = """
    from skill_tools import tools
    try:
        tools.pay(a=1, b=2)
    except PermissionError as error:
        print(error.code)
    """
    assert ended(run_python(shared, code, Grant(tools=[pay], approver=approver))) == "APPROVAL_REJECTED\n"
    assert ended(run_python(shared, code, Grant(tools=[pay]))) == "APPROVAL_REJECTED\n"
    assert shared.exec("tool pay a:=1 b:=2", grant=Grant(tools=[pay])).exit_code == 126
    js = (
        "import { tools } from 'skill-tools'; await tools.pay({a: 1, b: 2}).catch((e) => console.log(e.code))"
    )
    assert ended(run_node(shared, js, Grant(tools=[pay]))) == "APPROVAL_REJECTED\n"
    assert started == []


def test_46_suspend_and_resume(shared: Session) -> None:
    """ref-46"""
    grant = Grant(tools=[pay], approver="suspend")
    run = shared.start(
        "echo before; tool pay a:=1 b:=2; tool pay a:=3 b:=4; echo $?", grant=grant, timeout=20
    )
    result = run.wait(30)
    assert result.status == "awaiting_approval"
    (first,) = run.pending
    assert first.input == {"a": 1, "b": 2}
    time.sleep(0.3)
    assert run.pending == [first]
    result = run.resume({first.call_id: True}, 30)
    assert result.status == "awaiting_approval"
    (second,) = run.pending
    with pytest.raises(BadRequestError):
        run.resume({first.call_id: True})
    result = run.resume({second.call_id: False}, 30)
    assert (result.status, result.stdout) == ("ok", "before\n3\n126\n")


def test_46_a_run_that_is_waited_for_can_be_suspended_too(shared: Session) -> None:
    """ref-46"""
    grant = Grant(tools=[pay], approver="suspend")
    shared.put("work/o.txt", "")
    result = shared.exec(
        "tool pay a:=1 b:=2; tool pay a:=3 b:=4; echo x > out/o.txt",
        grant=grant,
        timeout=20,
        outputs=["out/o.txt"],
    )
    assert (result.status, result.exit_code, result.files) == ("awaiting_approval", None, [])
    (waiting,) = result.pending
    assert (waiting.tool, waiting.input, waiting.reason) == (
        "pay",
        {"a": 1, "b": 2},
        "the tool needs approval",
    )
    for wrong in ({"x": True}, {waiting.call_id: True, "x": True}):
        with pytest.raises(BadRequestError, match="waits for a decision"):
            shared.resume(result.run_id, wrong)
    again = shared.resume(result.run_id, {waiting.call_id: True})
    assert (again.status, again.pending[0].input) == ("awaiting_approval", {"a": 3, "b": 4})
    with pytest.raises(BadRequestError, match="waits for a decision"):
        shared.resume(result.run_id, {waiting.call_id: True})  # a decision counts once
    over = shared.resume(result.run_id, {again.pending[0].call_id: False})
    assert (over.status, over.stdout, over.pending) == ("ok", "3\n", [])
    assert [file.content for file in over.files] == ["x\n"]
    assert over.files[0].read() == b"x\n"
    with pytest.raises(BadRequestError, match="no run"):
        shared.resume(result.run_id, {})
    assert shared.exec("echo nothing asked", grant=grant).stdout == "nothing asked\n"


@pytest.mark.parametrize("language", ["python", "node"])
def test_46_code_can_be_suspended(shared: Session, language: Any) -> None:
    """ref-46"""
    grant = Grant(tools=[pay], approver="suspend")
    code = {
        "python": "await asyncio.gather(pay(a=1, b=2), pay(a=3, b=4))",
        "node": "export default await Promise.all([pay({ a: 1, b: 2 }), pay({ a: 3, b: 4 })]);",
    }[language]
    result = shared.execute_code(code, language=language, grant=grant)
    waited = 0
    while result.status == "awaiting_approval":  # the second call may come with the first one, or after it
        waited += len(result.pending)
        resumed = shared.resume(result.run_id, {call.call_id: True for call in result.pending})
        assert type(resumed) is type(result)
        result = resumed
    assert (result.status, result.result, waited) == ("ok", [3, 7], 2)
    assert [call.ok for call in result.tool_calls] == [True, True]


def test_46_the_time_of_tools_counts_unless_it_is_granted_not_to(shared: Session) -> None:
    """ref-46"""
    command = (
        "tool slow --seconds 1.2 & tool slow --seconds 1.2; wait; tool slow --seconds 1.2; echo '; over'"
    )
    counted = shared.exec(command, grant=Grant(tools=[slow]), timeout=2.2)
    assert counted.status == "timeout"
    free = Grant(tools=[slow], count_tool_time=False)
    assert shared.exec(command, grant=free, timeout=2.2).stdout.endswith("; over\n")
    # The processes do not stand still meanwhile, and what they do afterwards is counted.
    busy = "tool slow --seconds 0.6 & i=0; while kill -0 $! 2>/dev/null; do i=$((i+1)); done; echo ticks $((i > 99)); sleep 60"
    result = shared.exec(busy, grant=free, timeout=1.2)
    assert (result.status, result.stdout.split()[-2:]) == ("timeout", ["ticks", "1"])
    short = Grant(tools=[slow], count_tool_time=False, limits=BridgeLimits(working=0.3))
    assert shared.exec("tool slow --seconds 20", grant=short, timeout=10).exit_code == 124


# -- 47: many calls -----------------------------------------------------------------------------------


def test_47_parallel_calls_overlap_and_meet_the_total(shared: Session) -> None:
    """ref-47"""
    code = """
    import asyncio, time, threading
    from skill_tools import LimitExceeded, tools
    async def main():
        before = time.monotonic()
        await asyncio.gather(*(tools.aio.slow(seconds=0.5) for _ in range(32)))
        print(time.monotonic() - before < 4)
        found = await asyncio.gather(*(tools.aio.slow(seconds=0.01) for _ in range(268)), return_exceptions=True)
        print(sum(isinstance(item, LimitExceeded) for item in found), found.count("done"))
    asyncio.run(main())
    """
    result = run_python(shared, code, Grant(tools=[slow]), timeout=60)
    assert ended(result) == "True\n44 224\n"
    assert len(started) == 256
    threads = """
    import threading, time
    from skill_tools import tools
    found = []
    work = [threading.Thread(target=lambda: found.append(tools.slow(seconds=0.5))) for _ in range(32)]
    before = time.monotonic()
    for thread in work: thread.start()
    for thread in work: thread.join()
    print(found.count("done"), time.monotonic() - before < 5)
    """
    assert ended(run_python(shared, threads, Grant(tools=[slow]), timeout=60)) == "32 True\n"
    js = """
    import { tools } from 'skill-tools';
    const before = performance.now();
    const found = await Promise.all(Array.from({ length: 32 }, () => tools.slow({ seconds: 0.5 })));
    console.log(found.filter((x) => x === 'done').length, performance.now() - before < 4000);
    """
    assert ended(run_node(shared, js, Grant(tools=[slow]), timeout=60)) == "32 true\n"
    bash = 'for i in $(seq 20); do tool slow --seconds 0.3 & done | sort | uniq -c | tr -s " "; wait'
    assert ended(shared.exec(bash, grant=Grant(tools=[slow]), timeout=60)) == ' 20 "done"\n'


# -- 48: hostile scripts ------------------------------------------------------------------------------

ATTACK = """
import os, socket, struct, sys, time
D = os.environ["SKILL_BRIDGE"]
TOKEN = open(D + "/token", "rb").read()
CALL = b'{"method":"tool.call","params":{"name":"add","input":{"a":1,"b":2}}}'
def frame(data, number=1, kind=1, length=None):
    return struct.pack(">BII", kind, number, len(data) if length is None else length) + data
def connect(token=TOKEN):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(D + "/s")
    s.sendall(token)
    return s
def answer(s):
    data = b""
    try:
        while len(data) < 9 or len(data) < 9 + int.from_bytes(data[5:9], "big"):
            piece = s.recv(65536)
            if not piece:
                return "closed"
            data += piece
    except (ConnectionError, TimeoutError) as error:
        return type(error).__name__
    return data[9:].decode()
"""


def attack(session: Session, code: str, grant: Grant | None = None, **more: Any) -> ExecResult:
    return run_python(
        session, ATTACK + textwrap.dedent(code), grant or Grant(tools=[add], limits=LOOSE), **more
    )


def test_48_frames_on_stdout_stay_text(shared: Session) -> None:
    """ref-48"""
    code = """
    import struct
    for stream in (2, 4):
        body = b'{"run":1,"form":"json"}'
        os.write(1, struct.pack(">IBBHI", len(body), 13, 0, 0, stream) + body)
        os.write(1, struct.pack(">IBBHI", len(CALL), 4, 1, 4, stream) + CALL)
    os.write(2, frame(CALL))
    """
    result = attack(shared, code)
    assert result.status == "ok"
    assert b'"tool.call"' in result._stdout_raw
    assert started == []
    healthy(shared)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(answer(connect(b'0' * 64 + b'\\n')))", ("closed", "ConnectionResetError")),
        ("print(answer(connect(b'\\n')))", ("closed", "ConnectionResetError")),
        ("print(answer(connect(b'x' * 100000)))", ("closed", "ConnectionResetError", "BrokenPipeError")),
        ("s = connect(TOKEN[:30]); print(answer(s))", ("closed",)),
        ("s = connect(); s.sendall(frame(b'', length=2 << 20)); print(answer(s))", ("VALUE_TOO_LARGE",)),
        ("s = connect(); s.sendall(frame(b'x' * (2 << 20))); print(answer(s))", ("VALUE_TOO_LARGE", "ConnectionResetError", "BrokenPipeError")),
        ("s = connect(); s.sendall(frame(CALL, kind=7)); print(answer(s))", ("PROTOCOL",)),
        ("s = connect(); s.sendall(frame(b'[' * 900000)); print(answer(s))", ("PROTOCOL",)),
        ("s = connect(); s.sendall(frame(b'\\xff' * 9)); print(answer(s))", ("PROTOCOL",)),
        ("s = connect(); s.sendall(frame(CALL[:20], length=900)); print(answer(s))", ("closed",)),
        ("s = connect(); s.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n'); print(answer(s))", ("PROTOCOL", "VALUE_TOO_LARGE")),
    ],
)  # fmt: skip
def test_48_malformed_clients_start_nothing(shared: Session, code: str, expected: tuple[str, ...]) -> None:
    """ref-48"""
    result = attack(
        shared,
        "try:\n    " + code.replace("; ", "\n    ") + "\nexcept OSError as e:\n    print(type(e).__name__)",
    )
    assert any(word in ended(result) for word in expected)
    assert started == []
    healthy(shared)


def test_48_ids_used_twice_end_the_connection(shared: Session) -> None:
    grant = Grant(tools=[slow], limits=LOOSE)
    code = """
    call = CALL.replace(b"add", b"slow").replace(b'{"a":1,"b":2}', b'{"seconds":3}')
    s = connect()
    s.sendall(frame(call, 5) + frame(call, 5) + frame(call, 6))
    print(answer(s))
    """
    assert "PROTOCOL" in ended(attack(shared, code, grant))
    assert len(started) == 1
    healthy(shared)


def test_48_the_port_takes_no_nonsense(shared: Session) -> None:
    code = r"""
    port = int(open(D + "/port").read())
    token = TOKEN.strip() + b"\0" + str(os.getpid()).encode()
    def proved(s):
        s.sendall(token + b"\0")
        return open(D + "/" + s.recv(100).decode().strip())
    for data in (b"GET / HTTP/1.0\r\n\r\n" * 9, b"0" * 64 + b"\0" + b"1\0", TOKEN.strip() + b"\0pid\0", TOKEN.strip() + b"\0" + b"1" * 99,
                 None, b"/tool\0x\0\0", b"/tool\0" + b"99999\0", b"/tool\0" + b"1\0add\0\0\0\0", b"x" * 3_000_000):
        s = socket.create_connection(("127.0.0.1", port))
        s.settimeout(20)
        try:
            if data is None:  # what it asks for is held by another process
                s.sendall(TOKEN.strip() + b"\0" + str(os.getppid()).encode() + b"\0")
                held = open(D + "/" + s.recv(100).decode().strip())
                data = b"/tool\0" + b"3\0add\0a:=1\0b:=1\0\0"
            elif data[:1] in b"/x":
                held = proved(s)
            s.sendall(data)
            print(s.recv(100)[:4])
        except OSError as error:
            print(type(error).__name__)
    """
    lines = ended(attack(shared, code)).splitlines()
    assert len(lines) == 9
    assert lines[:5] == ["b''"] * 5 or set(lines[:5]) <= {"b''", "ConnectionResetError", "BrokenPipeError"}
    assert started == []
    healthy(shared)


def test_48_ten_thousand_calls(shared: Session) -> None:
    code = """
    import threading
    s = connect()
    def read():
        while s.recv(1 << 20): pass
    threading.Thread(target=read, daemon=True).start()
    try:
        for number in range(1, 10001):
            s.sendall(frame(CALL, number))
    except OSError:
        pass
    print("sent")
    """
    grant = Grant(tools=[add])
    result = attack(shared, code, grant, timeout=60)
    assert ended(result) == "sent\n"
    assert len(started) <= 256
    assert len(records(shared, result)) < 6000
    healthy(shared)


def test_48_calls_while_stderr_is_flooded(shared: Session) -> None:
    code = """
    import threading
    from skill_tools import tools
    def flood():
        while True:
            os.write(2, b"x" * 65536)
    threading.Thread(target=flood, daemon=True).start()
    print(sum(tools.add(a=1, b=1) for _ in range(50)), flush=True)
    os._exit(0)
    """
    assert attack(shared, code, timeout=60).stdout == "100\n"


def test_48_two_hundred_idle_clients_do_not_lock_others_out(shared: Session) -> None:
    code = """
    import subprocess
    quiet = []
    for number in range(200):
        s = socket.socket(socket.AF_UNIX); s.setblocking(False)
        try:
            s.connect(D + "/s")
        except BlockingIOError:
            pass
        quiet.append(s)
    before = time.monotonic()
    print(subprocess.run(["tool", "add", "a:=1", "b:=2"], capture_output=True, text=True).stdout, end="")
    s = connect(); s.sendall(frame(CALL)); print("value" in answer(s))
    s.shutdown(socket.SHUT_WR)
    print(time.monotonic() - before < 15)
    """
    assert ended(attack(shared, code, timeout=60)) == "3\nTrue\nTrue\n"


def test_48_a_client_that_lost_its_place_comes_back(shared: Session) -> None:
    code = """
    import asyncio
    from skill_tools import tools
    assert tools.add(a=1, b=1) == 2
    async def main():
        assert await tools.aio.add(a=1, b=1) == 2
        time.sleep(0.2)
        others = [connect() for _ in range(40)]
        await asyncio.sleep(0.5)
        assert await tools.aio.add(a=2, b=2) == 4
    asyncio.run(main())
    others = [connect() for _ in range(40)]
    time.sleep(0.5)
    print(tools.add(a=3, b=3), tools.add(a=4, b=4))
    """
    assert ended(attack(shared, code)) == "6 8\n"


def test_48_half_a_close_still_gets_its_answer(shared: Session) -> None:
    code = """
    s = connect()
    s.sendall(frame(CALL))
    s.shutdown(socket.SHUT_WR)
    print(answer(s))
    """
    assert '"value":3' in ended(attack(shared, code))


def test_48_descriptors_are_never_taken(shared: Session) -> None:
    code = """
    import array
    s = connect()
    r, w = os.pipe()
    data = frame(CALL)
    s.sendmsg([data[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [w] * 100))])
    s.sendall(data[1:])
    print("value" in answer(s))
    os.close(w)
    os.set_blocking(r, False)
    print(os.read(r, 1))  # end of file: nobody else holds the other end
    """
    assert ended(attack(shared, code)) == "True\nb''\n"


def test_48_another_run_cannot_use_a_stolen_socket(shared: Session) -> None:
    """Its path and token are known to every process of the sandbox; who connects is what counts. TH-52"""
    thief = r"""
    import os, glob, socket, struct, time
    for _ in range(200):
        found = glob.glob("/tmp/.bridge-*/s")
        if found: break
        time.sleep(0.05)
    d = os.path.dirname(found[0])
    token = open(d + "/token", "rb").read()
    call = b'{"method":"tool.call","params":{"name":"add","input":{"a":6,"b":6}}}'
    outcome = []
    s = socket.socket(socket.AF_UNIX); s.settimeout(10)
    try:
        s.connect(d + "/s"); s.sendall(token + struct.pack(">BII", 1, 1, len(call)) + call)
        outcome.append(s.recv(100))
    except OSError: outcome.append(b"")
    t = socket.create_connection(("127.0.0.1", int(open(d + "/port").read()))); t.settimeout(10)
    victim = next(p for p in os.listdir("/proc") if p.isdigit() and b"read line" in open(f"/proc/{p}/cmdline", "rb").read())
    try:
        t.sendall(token.strip() + b"\0" + victim.encode() + b"\0")
        held = open(d + "/" + t.recv(100).decode().strip())
        t.sendall(b"/tool\0" + b"3\0add\0a:=6\0b:=6\0\0"); outcome.append(t.recv(100))
    except OSError: outcome.append(b"")
    if os.fork() == 0:  # an orphan in a session of its own
        os.setsid()
        if os.fork() == 0:
            time.sleep(0.3)
            s = socket.socket(socket.AF_UNIX); s.settimeout(10)
            try:
                s.connect(d + "/s"); s.sendall(token + struct.pack(">BII", 1, 1, len(call)) + call)
                open("work/orphan", "wb").write(s.recv(100))
            except OSError: open("work/orphan", "wb").write(b"")
        os._exit(0)
    os.wait(); time.sleep(1.5)
    print(outcome, open("work/orphan", "rb").read())
    """
    shared.put("work/thief.py", textwrap.dedent(thief))
    victim = shared.start("echo up; read line; tool add a:=1 b:=2", grant=Grant(tools=[add]))
    assert "up" in victim.read(10).stdout
    result = shared.exec("python3 work/thief.py", timeout=60)
    assert ended(result) == "[b'', b''] b''\n"
    other = shared.exec("python3 work/thief.py", grant=Grant(), timeout=60)
    assert "[b'', b''] b''" in other.stdout or other.stdout.startswith("[")
    assert started == []
    victim.write("\n")
    assert victim.wait(30).stdout.endswith("3\n")
    assert started == [(1, 2)]


def test_48_clients_that_do_not_read_hold_up_nobody_else(shared: Session) -> None:
    code = """
    big = b'{"method":"tool.call","params":{"name":"echo-value","input":{"value":"%s"}}}' % (b"x" * 900_000)
    lazy = []
    for _ in range(3):
        s = connect()
        s.settimeout(1)
        try:
            for number in range(20):
                s.sendall(frame(big, number))
        except OSError:
            pass
        lazy.append(s)
    print("stuck", flush=True)
    time.sleep(60)
    """
    shared.put("work/lazy.py", ATTACK + textwrap.dedent(code))
    run = shared.start("python3 work/lazy.py", grant=Grant(tools=[echo], limits=LOOSE))
    assert "stuck" in run.read(30).stdout
    result = shared.exec("tool add a:=20 b:=22", grant=Grant(tools=[add]), timeout=30)
    assert result.stdout == "42\n"
    run.kill()
    healthy(shared)


def test_48_a_script_that_fills_tmp_only_hurts_itself(shared: Session) -> None:
    run = shared.start("head -c 100000000 /dev/zero > /tmp/full 2>/dev/null; echo full; sleep 30")
    assert "full" in run.read(20).stdout
    result = shared.exec("tool add a:=1 b:=2", grant=Grant(tools=[add]))
    assert result.status in ("ok", "error")
    assert result.exit_code in (0, 126), result.stderr
    run.kill()
    shared.exec("rm -f /tmp/full")
    healthy(shared)


# -- 49: the end of a run -----------------------------------------------------------------------------


def test_49_the_deadline_cancels_and_revokes(shared: Session, offered: Path) -> None:
    """ref-49"""
    ends: list[str] = []

    async def waits(value: Any, ctx: ToolContext) -> None:
        started.append(ctx.call_id)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    spec = ToolSpec("waits", "", {"type": "object"}, waits)
    code = """
    import signal, sys, time
    from skill_tools import BridgeClosed, SkillBridgeError, tools, workspace
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for act in (lambda: tools.waits(), lambda: tools.add(a=1, b=2), lambda: workspace.write_file("late.txt", "x")):
        try:
            act()
        except SkillBridgeError as error:
            print(error.code, isinstance(error, BridgeClosed), flush=True)
    time.sleep(60)
    """
    grant = Grant(tools=[spec, add], root=offered, workspace="read-write")
    result = run_python(shared, code, grant, timeout=1.5)
    assert result.status == "timeout"
    assert result.stdout.splitlines()[-2:] == ["REVOKED True"] * 2
    assert ends == ["cancelled"]
    assert len(started) == 1
    assert not (offered / "late.txt").exists()


def test_49_no_write_lands_after_the_result(shared: Session, offered: Path) -> None:
    """ref-49"""
    code = """
    import signal
    from skill_tools import workspace
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    number = 0
    while True:
        number += 1
        workspace.write_file("last.txt", str(number))
    """
    grant = Grant(root=offered, workspace="read-write", limits=LOOSE)
    result = run_python(shared, code, grant, timeout=1.0)
    assert result.status in ("timeout", "error")
    last = (offered / "last.txt").read_text()
    time.sleep(0.5)
    assert (offered / "last.txt").read_text() == last
    assert sorted(path.name for path in offered.iterdir()) == ["a.txt", "last.txt", "link", "sub"]


def test_49_a_script_that_leaves_a_child_behind_leaves_no_caller(shared: Session) -> None:
    code = """
    import os, sys, time
    if os.fork() == 0:
        from skill_tools import tools
        while True:
            try: tools.add(a=1, b=1)
            except Exception: time.sleep(0.01)
    time.sleep(0.3)
    """
    ended(run_python(shared, code, Grant(tools=[add], limits=LOOSE)))
    count = len(started)
    time.sleep(0.3)
    assert len(started) == count


def test_49_a_kill_ends_the_calls(shared: Session) -> None:
    run = shared.start("tool slow --seconds 20", grant=Grant(tools=[slow]))
    for _ in range(200):
        if started:
            break
        time.sleep(0.02)
    assert run.kill().status == "killed"
    healthy(shared)


def test_49_closing_the_session_ends_the_calls(executor: Executor) -> None:
    session = executor.session()
    run = session.start("tool slow --seconds 20", grant=Grant(tools=[slow]))
    for _ in range(200):
        if started:
            break
        time.sleep(0.02)
    session.close()
    assert not run.running
    assert session.audit.records[-1]["event"] in ("run", "call")


LATE = {
    "python": """
    import signal
    from skill_tools import SkillBridgeError, tools
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(3):
        try: tools.slow(seconds=30)
        except SkillBridgeError as error: print(error.code, flush=True)
    """,
    "node": """
    import { tools } from 'skill-tools';
    process.on('SIGTERM', () => {});
    for (let n = 0; n < 3; n++) await tools.slow({ seconds: 30 }).catch((error) => console.log(error.bridgeCode));
    """,
    "bash": "trap '' TERM; for n in 1 2 3; do tool slow --seconds 30; echo REVOKED $?; done",
}


@pytest.mark.parametrize("language", ["python", "node", "bash"])
def test_49_calls_after_the_end_are_refused_in_each_language(shared: Session, language: str) -> None:
    """ref-49"""
    name = {"python": "late.py", "node": "late.mjs", "bash": "late.sh"}[language]
    program = {"python": "python3", "node": "node", "bash": "bash"}[language]
    shared.put(f"work/{name}", textwrap.dedent(LATE[language]))
    run = shared.start(f"{program} work/{name}", grant=Grant(tools=[slow]))
    for _ in range(1000):
        if started:
            break
        time.sleep(0.02)
    result = run.kill()  # the grant ends first, and the script has a moment to go on without it
    assert len(started) == 1
    code = " 125" if language == "bash" else ""
    assert set(result.stdout.splitlines()) == {f"REVOKED{code}"}, (result.stdout, result.stderr)
    healthy(shared)


def test_49_a_handler_that_ignores_its_cancellation_changes_nothing(shared: Session) -> None:
    """ref-49"""
    let_go = threading.Event()

    async def stubborn(value: Any, ctx: ToolContext) -> str:
        started.append(ctx.call_id)
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return "late"

    def stuck(value: Any, ctx: ToolContext) -> str:
        started.append(ctx.call_id)
        let_go.wait(30)
        return "late"

    grant = Grant(tools=[ToolSpec("stubborn", "", {}, stubborn), ToolSpec("stuck", "", {}, stuck)])
    before = time.monotonic()
    result = shared.exec("tool stubborn & tool stuck; wait", grant=grant, timeout=1.0)
    assert (result.status, len(started)) == ("timeout", 2)
    assert "late" not in result.stdout
    healthy(shared)  # while both of them go on
    assert time.monotonic() - before < 20
    assert not [entry for entry in records(shared, result) if entry["event"] == "completed_after_revoke"]
    let_go.set()
    for _ in range(200):
        late = [
            entry["tool"] for entry in records(shared, result) if entry["event"] == "completed_after_revoke"
        ]
        if len(late) == 2:
            break
        time.sleep(0.05)
    assert sorted(late) == ["stubborn", "stuck"]


# -- 50: failures and the audit -----------------------------------------------------------------------


def test_50_what_a_handler_says_stays_on_the_host(shared: Session) -> None:
    """ref-50"""

    def broken(value: Any, ctx: ToolContext) -> None:
        raise RuntimeError("the password is hunter2")

    grant = Grant(tools=[ToolSpec("broken", "", {"type": "object"}, broken), pay])
    result = shared.exec(
        "tool broken password=hunter2; tool nope; tool pay a=x; tool pay a:=1 b:=2; exit 0", grant=grant
    )
    assert "the tool failed" in result.stderr
    found = records(shared, result)
    assert "hunter2" not in result.stderr + result.stdout + json.dumps(found)
    assert [entry["result"] for entry in found if entry["event"] == "call"] == [
        "TOOL_FAILED",
        "TOOL_NOT_FOUND",
        "TOOL_INPUT_INVALID",
        "APPROVAL_REJECTED",
    ]
    assert found[-1]["event"] == "run"
    hashes = {entry["hash"] for entry in shared.audit.records}
    assert all(entry["prev_hash"] in hashes | {"0" * 64} for entry in found[1:])


# -- trpc 65: a gateway for tools ---------------------------------------------------------------------


def test_trpc_65_a_gateway(shared: Session) -> None:
    """trpc-65"""
    total = ToolSpec(
        "sum",
        "",
        {"type": "object", "required": ["a", "b"]},
        lambda value, ctx: {"sum": value["a"] + value["b"]},
        output_schema={"properties": {"sum": {"type": "integer"}}},
    )
    code = """
    from skill_tools import tools
    print(tools.sum(a=2, b=3))
    for act in (lambda: tools.sum(a=2), lambda: tools.sum(a="x", b="y")):
        try: act()
        except Exception as error: print(error.code)
    print('{"ok":true,"value":5}')
    """
    assert ended(run_python(shared, code, Grant(tools=[total]))).splitlines()[:3] == [
        "{'sum': 5}",
        "TOOL_INPUT_INVALID",
        "TOOL_OUTPUT_INVALID",
    ]
