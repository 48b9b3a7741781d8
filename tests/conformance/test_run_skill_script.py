"""The tool `run_skill_script` against a real sandbox, in the profiles that have it.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from executor import Executor, Grant, Session, tool
from executor.tools import Options, SyncSkillToolset

PNG = (
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360f8cfc000000301010018dd8db00000000049454e44ae426082"
)
SCRIPTS = {
    "value.py": "def run(input, ctx):\n    return {'got': input}\n",
    "talk.py": (
        "from pathlib import Path\n"
        "def run(input, ctx):\n"
        "    print('working')\n"
        f"    Path('out/p.png').write_bytes(bytes.fromhex('{PNG}'))\n"
        "    Path('out/t.txt').write_text('text')\n"
        "    return 7\n"
    ),
    "fails.py": "def run(input, ctx):\n    print('before')\n    raise ValueError('it broke')\n",
    "program.sh": "cat; echo oops >&2; exit 3\n",
    "long.py": "def run(input, ctx):\n    print('x' * 100)\n    return 'y' * 5000\n",
    "pay.py": (
        "import json\n"
        "async def run(input, ctx):\n"
        "    try:\n"
        "        return await ctx.tools.pay(amount=input['amount'])\n"
        "    except PermissionError as error:\n"
        "        return {'refused': str(error)}\n"
    ),
    "slow.py": "import time\ndef run(input, ctx):\n    time.sleep(60)\n",
    "other.rb": "puts 1\n",
}


@pytest.fixture(scope="module")
def root(skills_root: Path) -> Path:
    folder = skills_root / "tried"
    (folder / "scripts").mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text("---\nname: tried\ndescription: Tried\n---\nRun scripts/value.py.\n")
    for name, text in SCRIPTS.items():
        (folder / "scripts" / name).write_text(text)
    (folder / "scripts" / "binary.py").write_bytes(b"\0\1")
    (folder / "notes.py").write_text("print(1)\n")
    return skills_root


@pytest.fixture(scope="module")
def paid() -> list[int]:
    return []


@pytest.fixture(scope="module")
def session(executor: Executor, root: Path, paid: list[int]) -> Iterator[Session]:
    @tool(approval="always")
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    with executor.session(grant=Grant(tools=[pay], approver="suspend")) as made:
        yield made


@pytest.fixture
def make(executor: Executor, session: Session) -> Iterator[Callable[..., SyncSkillToolset]]:
    made: list[SyncSkillToolset] = []

    def toolset(**options: Any) -> SyncSkillToolset:
        usual: dict[str, Any] = {
            "session": session,
            "state": ":memory:",
            "artifacts": False,
            "mode": "session",
        }
        made.append(SyncSkillToolset(executor, **{**usual, **options}))
        return made[-1]

    yield toolset
    for tools in made:
        tools.close()


def run(tools: SyncSkillToolset, path: str, **arguments: Any) -> Any:
    return tools.call("run_skill_script", {"name": "tried", "path": f"scripts/{path}", **arguments})


def test_a_function_gives_its_value(make: Callable[..., SyncSkillToolset]) -> None:
    """TH-45, TH-62, TH-64, trpc-1.4.6, trpc-1.11.14, ref-34"""
    tools = make()
    result = run(tools, "value.py")
    assert result.is_error and "is not loaded" in result.text
    tools.call("skill_load", {"skill": "tried"})
    result = run(tools, "value.py")
    assert (result.structured["result"], result.structured["status"]) == ({"got": {}}, "ok")
    assert 'result: {"got": {}}' in result.text and not result.is_error
    value = [1, {"a": None}, "ü"]
    assert run(tools, "value.py", input=value).structured["result"] == {"got": value}
    program = run(tools, "program.sh", input={"k": 1}).structured
    assert (program["stdout"], program["stderr"], program["exit_code"]) == ('{"k": 1}', "oops\n", 3)
    assert program["style"] == "cli"


def test_think_has_its_own_shapes(make: Callable[..., SyncSkillToolset]) -> None:
    """TH-58, TH-62, TH-64, TH-65, TH-66, TH-50"""
    tools = make(profile="think")
    assert run(tools, "value.py", input=5).text == '{"got": 5}'
    assert run(tools, "program.sh").structured == {"stdout": "{}", "stderr": "oops\n", "exitCode": 3}
    talked = run(tools, "talk.py")
    assert talked.structured["result"] == 7 and talked.structured["logs"] == ["working"]
    files = {file["path"]: file for file in talked.structured["outputFiles"]}
    assert files["t.txt"] == {"path": "t.txt", "encoding": "text", "content": "text"}
    assert files["p.png"]["encoding"] == "base64"
    assert [image.data.hex() for image in talked.images] == [PNG]
    failed = run(tools, "fails.py")
    assert failed.text.startswith("Skill script failed: ") and "it broke" in failed.text
    assert failed.text.endswith("Console output:\nbefore")


def test_wrong_paths_have_their_own_messages(make: Callable[..., SyncSkillToolset]) -> None:
    """TH-46, TH-47, ref-14"""
    tools = make(profile="think")

    def wrong(path: str, name: str = "tried") -> str:
        result = tools.call("run_skill_script", {"name": name, "path": path})
        assert result.is_error, result
        return str(result.structured["error"]["message"])

    for path in ("../x.py", "/scripts/x.py", "scripts//x.py", "scripts/./x.py", "scripts/\0.py"):
        assert wrong(path).startswith("Skill resource path must be a normalized relative path: ")
    assert wrong("notes.py") == "Resource is not a script: tried/notes.py"
    assert wrong("scripts/other.rb") == "'scripts/other.rb' has no ending that says how to run it"
    assert wrong("scripts/ghost.py") == "Script not found: tried/scripts/ghost.py"
    assert wrong("scripts/binary.py") == "Script resource must be text, got base64: tried/scripts/binary.py"
    assert wrong("scripts/x.py", "ghost") == "Skill not found: ghost"
    hint = tools.call("run_skill_script", {"name": "tried", "path": "scripts/ghost.py"}).structured["error"][
        "hint"
    ]
    assert "scripts/value.py" in hint


def test_long_values_and_output_are_in_files(make: Callable[..., SyncSkillToolset], session: Session) -> None:
    """trpc-1.11.10, trpc-54"""
    tools = make(profile="trpc", options=Options(output_bytes=64))
    tools.call("skill_load", {"skill": "tried"})
    result = run(tools, "long.py")
    files = {file["stream"]: file for file in result.structured["full_output"]}
    assert result.structured["result"] is None and set(files) == {"stdout", "result"}
    assert json.loads(session.read(files["result"]["path"])) == "y" * 5000
    assert session.read(files["stdout"]["path"]) == b"x" * 100 + b"\n"
    assert files["result"]["path"] in result.text and len(result.text) < 1000


def test_a_run_that_asks_stands_still_until_a_person_decides(
    make: Callable[..., SyncSkillToolset], paid: list[int]
) -> None:
    """ref-46, TH-50"""
    paid.clear()
    tools = make(profile="think")
    other = make(profile="think", agent="other")
    asked = run(tools, "pay.py", input={"amount": 3})
    assert not asked.is_error and asked.structured["status"] == "awaiting_approval"
    (call,) = asked.structured["pending"]
    assert (call["tool"], call["input"], paid) == ("pay", {"amount": 3}, [])
    assert [request.call_id for request in tools.pending] == [call["call_id"]]
    assert other.pending == []
    run_id = asked.structured["run_id"]
    assert other.resume(run_id, {call["call_id"]: True}).is_error
    assert tools.resume(run_id, {"nonsense": True}).is_error and paid == []
    done = tools.resume(run_id, {call["call_id"]: True})
    assert (done.text, paid, tools.pending) == ('"paid 3"', [3], [])
    assert tools.resume(run_id, {call["call_id"]: True}).is_error and paid == [3]
    asked = run(tools, "pay.py", input={"amount": 4}).structured
    refused = tools.resume(asked["run_id"], {asked["pending"][0]["call_id"]: False})
    assert "refused" in refused.structured and paid == [3]


def test_what_a_script_may_call_is_worked_out_for_each_run(
    make: Callable[..., SyncSkillToolset], paid: list[int]
) -> None:
    """TH-50, TH-53"""
    asked: list[str] = []

    def nothing(skill: str) -> Grant:
        asked.append(skill)
        return Grant()

    tools = make(profile="think", grant=nothing)
    before = list(paid)
    for _ in range(2):
        assert "Skill script failed" in run(tools, "pay.py", input={"amount": 1}).text
    assert (asked, paid) == (["tried", "tried"], before)

    def broken(skill: str) -> Grant:
        raise RuntimeError("secret")

    refused = run(make(profile="think", grant=broken), "value.py")
    assert refused.is_error and "secret" not in refused.text


def test_closing_ends_what_still_waits(make: Callable[..., SyncSkillToolset], session: Session) -> None:
    tools = make(profile="think", agent="leaving")
    asked = run(tools, "pay.py", input={"amount": 9})
    assert asked.structured["status"] == "awaiting_approval"
    tools.close()
    assert tools.resume(asked.structured["run_id"], {}).is_error


def test_inputs_are_there_before_the_script_begins(
    make: Callable[..., SyncSkillToolset], session: Session
) -> None:
    """trpc-1.9.4"""
    tools = make()
    tools.call("skill_load", {"skill": "tried"})
    session.put("work/one.txt", "1")
    wanted = [{"from": "workspace://work/one.txt", "to": "inputs/two.txt"}]
    assert run(tools, "value.py", inputs=wanted).structured["status"] == "ok"
    assert session.read("inputs/two.txt") == b"1"
    made = tools.call(
        "workspace_exec",
        {"command": "cat inputs/3", "inputs": [{"source": wanted[0]["from"], "to": "inputs/3"}]},
    )
    assert made.structured["stdout"] == "1"
    bad = tools.call("workspace_exec", {"command": "true", "inputs": [{"from": "host:///etc/passwd"}]})
    assert bad.is_error and "operator" in bad.text
    none = tools.call("workspace_exec", {"command": "true", "inputs": [{"from": "artifact://a.csv"}]})
    assert none.is_error and "no place for artifacts" in none.text
