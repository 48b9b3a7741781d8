"""The contract of a skill's script, in Python, Node and Bash: tests 30 to 44 of the behaviour list.

The known faults of other systems, by number, and the tests that show them absent (here and in test_bridge.py):
W-01, W-02 43 in test_network.py · W-03 36 · W-10 30 · W-11 31 · W-12 31 · W-13 33 · W-14 w14 · W-15 32 · W-16, 17 40 · W-18 49 · W-19 37 ·
W-20 w30 · W-25 33 · W-26 45 · W-27 bash calls · W-28 w28 · W-29 w29 · W-30 w30 · W-35 40 in Node · W-36 35 ·
W-37, 38 node calls · W-39 36, w39 · W-40 31 · W-45 46 · W-46 46 · W-47 47, 50.
"""
# ruff: noqa: E501 (the scripts inside are other languages' lines)

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor import (
    BadPathError,
    BadRequestError,
    BridgeLimits,
    Executor,
    Grant,
    OutputLimits,
    ScriptResult,
    Session,
    SkillNotFoundError,
    tool,
)

SKILL = "contract"
BINARY = bytes(range(256))


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.fixture(scope="module")
def folder(skills_root: Path) -> Path:
    where = skills_root / SKILL
    (where / "scripts").mkdir(parents=True, exist_ok=True)
    (where / "references").mkdir(exist_ok=True)
    (where / "SKILL.md").write_text(f"---\nname: {SKILL}\ndescription: Tests.\n---\nBody.\n")
    (where / "references/guide.md").write_text("the guide")
    (where / "references/blob.bin").write_bytes(b"\xff\xfe\0")
    return where


@pytest.fixture
def opened(executor: Executor, folder: Path) -> Iterator[Session]:
    with executor.session() as session:
        yield session


class Runner:
    """Writes a script into the skill and runs it."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session, self.folder = session, folder

    def __call__(self, name: str, text: str, **more: Any) -> ScriptResult:
        (self.folder / "scripts" / name).write_text(textwrap.dedent(text).lstrip("\n"))
        self.session.load(SKILL)
        return self.session.script(SKILL, f"scripts/{name}", **more)


@pytest.fixture
def run(opened: Session, folder: Path) -> Runner:
    return Runner(opened, folder)


# -- 30, 31, 38: programs -----------------------------------------------------------------------------


def test_30_a_program_with_a_helper_called_run(run: Runner) -> None:
    """ref-30, TH-62"""
    result = run(
        "helper.py",
        """
        import subprocess, sys
        def run(cmd):
            return subprocess.run(cmd, capture_output=True, text=True).stdout
        if __name__ == "__main__":
            print(run(["echo", "from the guard"]), end="")
            print("warned", file=sys.stderr)
            sys.exit(4)
        """,
    )
    assert (result.style, result.status, result.exit_code, result.result) == ("cli", "error", 4, None)
    assert (result.stdout, result.stderr) == ("from the guard\n", "warned\n")
    assert result.as_think() == {"stdout": "from the guard\n", "stderr": "warned\n", "exitCode": 4}


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('bad')", 1, "bad\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
    ],
)
def test_31_how_a_program_ends(run: Runner, end: str, code: int, says: str) -> None:
    """ref-31"""
    result = run("end.py", f"import sys\nprint('printed')\n{end}\n")
    assert (result.exit_code, result.stdout) == (code, "printed\n")
    assert says in result.stderr
    assert ("Traceback" in result.stderr) == ("Zero" in says)


@pytest.mark.parametrize(("end", "code"), [("sys.exit()", 0), ("sys.exit(3)", 3), ("sys.exit('bad')", 1)])
def test_31_how_a_function_ends_that_exits(run: Runner, end: str, code: int) -> None:
    """ref-31"""
    result = run("exits.py", f"import sys\ndef run(input, ctx):\n    print('printed')\n    {end}\n")
    assert (result.style, result.exit_code, result.stdout, result.result) == (
        "function",
        code,
        "printed\n",
        None,
    )


def test_31_an_exception_of_a_function(run: Runner) -> None:
    """ref-31, TH-66"""
    result = run("raises.py", "def run(input, ctx):\n    print('printed')\n    return 1 / 0\n")
    assert (result.status, result.exit_code, result.stdout) == ("error", 1, "printed\n")
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("ZeroDivisionError", "division by zero")
    assert 'scripts/raises.py", line 3, in run' in result.error.traceback
    assert result.error.traceback == result.stderr
    node = run(
        "raises.mjs",
        "export default () => {\n  console.log('printed');\n  throw new RangeError('far');\n};\n",
    )
    assert (node.exit_code, node.stdout) == (1, "printed\n")
    assert node.error is not None
    assert (node.error.code, node.error.message) == ("RangeError", "far")
    assert "raises.mjs:3" in node.stderr


def test_38_a_failing_bash_script_is_data(run: Runner) -> None:
    """ref-38, TH-64"""
    result = run("seven.sh", "echo out; echo err >&2; exit 7\n")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == ("error", 7, "out\n", "err\n")


# -- 32: functions ------------------------------------------------------------------------------------

PYTHON_FUNCTION = """
{word} run(input, ctx):
    print("a log")
    {wait}ctx.output.write_file("a.txt", "text")
    total = {wait}ctx.tools.add(a=input["n"], b=1)
    assert total == {wait}tools.add(a=input["n"], b=1)
    note = {wait}workspace.read_file("note.txt")
    return {{"total": total, "note": note, "skill": ctx.skill["name"], "guide": ctx.files["references/guide.md"],
            "blob": "references/blob.bin" in ctx.files}}
if __name__ == "__main__":
    print("the guard ran")
"""
NODE_FUNCTION = """
console.log('a log');
export default async function run(input, ctx) {
  await ctx.output.writeFile('a.txt', 'text');
  const total = await ctx.tools.add({ a: input.n, b: 1 });
  const note = await ctx.workspace.readFile('note.txt');
  return { total, note, skill: ctx.skill.name, guide: ctx.files['references/guide.md'],
           blob: 'references/blob.bin' in ctx.files };
}
"""


@pytest.mark.parametrize("kind", ["sync", "async", "node", "typescript"])
def test_32_functions(run: Runner, tmp_path: Path, kind: str) -> None:
    """ref-32, TH-61, TH-54"""
    (tmp_path / "note.txt").write_text("noted")
    if kind in ("sync", "async"):
        asynchronous = kind == "async"
        text = PYTHON_FUNCTION.format(
            word="async def" if asynchronous else "def", wait="await " if asynchronous else ""
        )
        name = f"{kind}_function.py"
    elif kind == "node":
        name, text = "function.mjs", NODE_FUNCTION
    else:
        name, text = "function.ts", NODE_FUNCTION.replace("input, ctx", "input: { n: number }, ctx: any")
    result = run(name, text, input={"n": 41}, grant=Grant(tools=[add], root=tmp_path))
    assert result.status == "ok", result.stderr
    assert result.result == {
        "total": 42,
        "note": "noted",
        "skill": SKILL,
        "guide": "the guide",
        "blob": False,
    }
    assert result.stdout == "a log\n"
    assert [(file.path, file.content) for file in result.files] == [("out/a.txt", "text")]
    assert [call.name for call in result.tool_calls] == ["add"] * len(result.tool_calls)
    assert result.tool_calls
    think = result.as_think()
    assert think["logs"] == ["a log"]
    assert think["outputFiles"] == [{"path": "a.txt", "encoding": "text", "content": "text"}]


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -2.5, "é\u2028", [], {"a": {"b": [None]}}, "x" * 2_000_000],
    ids=lambda v: str(v)[:9],
)
def test_32_any_value_comes_back(run: Runner, value: Any) -> None:
    """ref-32"""
    source = 'def run(input, ctx):\n    print(\'{"ok":true,"value":0}\')\n    return input\n'
    result = run("same.py", source, input=value if value is not None else {"n": None})
    assert result.result == (value if value is not None else {"n": None})
    assert "ok" in result.stdout
    node = run("same.mjs", "export default (input) => input;\n", input={"v": value})
    assert node.result == {"v": value}


def test_32_what_is_no_json_is_an_error(run: Runner) -> None:
    for value in ("object()", "float('nan')", "{1: object()}"):
        result = run("nojson.py", f"def run(input, ctx):\n    return {value}\n")
        assert (result.status, result.result) == ("error", None)
        assert result.error is not None
    big = run("big.py", "def run(input, ctx):\n    return 'x' * 5_000_000\n")
    assert (big.status, big.result) == ("error", None)
    assert "the script's result was not taken" in big.stderr


# -- 33, 35: siblings and imports ---------------------------------------------------------------------


def test_33_siblings(run: Runner, folder: Path) -> None:
    """ref-33, TH-55"""
    (folder / "scripts/sibling.py").write_text("NAME = 'py'\n")
    (folder / "scripts/sibling.mjs").write_text("export const name = 'mjs';\n")
    (folder / "scripts/sibling.cjs").write_text("exports.name = 'cjs';\n")
    (folder / "scripts/sibling.sh").write_text("name=sh\n")
    (folder / "scripts/data.txt").write_text("data\n")
    cli = "from pathlib import Path\nimport sibling\n"
    cli += "print(sibling.NAME, (Path(__file__).parent / 'data.txt').read_text(), end='')\n"
    assert run("s1.py", cli).stdout == "py data\n"
    function = "import sibling\nfrom pathlib import Path\ndef run(input, ctx):\n"
    function += "    return [sibling.NAME, (Path(__file__).parent / 'data.txt').read_text()]\n"
    assert run("s2.py", function).result == ["py", "data\n"]
    js = """
    import fs from 'node:fs';
    import { name } from './sibling.mjs';
    import { createRequire } from 'node:module';
    const { name: other } = createRequire(import.meta.url)('./sibling.cjs');
    export default () => [name, other, fs.readFileSync(new URL('./data.txt', import.meta.url), 'utf8')];
    """
    assert run("s.mjs", js).result == ["mjs", "cjs", "data\n"]
    cjs = "const { name } = require('./sibling.cjs');\nmodule.exports = async () => [name, __filename];\n"
    assert run("s.cjs", cjs).result == ["cjs", f"/skills/{SKILL}/scripts/s.cjs"]
    bash = '. "$(dirname "$0")/sibling.sh"; echo $name; cat "$(dirname "${BASH_SOURCE[0]}")/data.txt"\n'
    assert run("s.sh", bash).stdout == "sh\ndata\n"


def test_35_a_module_is_loaded_as_it_is(run: Runner, folder: Path) -> None:
    """ref-35, TH-54"""
    (folder / "scripts/sibling.mjs").write_text("export const name = 'mjs';\n")
    result = run(
        "odd.mjs",
        """
        // export default function nothing() {}
        import { name } from './sibling.mjs';
        const input = 'mine', tools = 1, workspace = 2, output = 3, ctx = 4;
        export const named = input;
        export function helper() { return `export default ${name}`; }
        export default async function (given, context) { return [given, helper(), named, typeof context.tools]; }
        """,
        input=[1],
    )
    assert result.result == [[1], "export default mjs", "mine", "object"], result.stderr


def test_35_a_node_program_is_a_program(run: Runner) -> None:
    """ref-35"""
    text = "const run = async (input, ctx) => {};\n"
    text += "if (require.main === module) console.log('main', process.argv.slice(2).join(), process.cwd());\n"
    result = run("program.js", text, args=["a", "b c"])
    assert (result.style, result.stdout) == ("cli", f"main a,b c /skills/{SKILL}\n")


def test_33_typescript_with_siblings_and_packages_of_both_kinds(run: Runner, folder: Path) -> None:
    """ref-33, ref-35"""
    for kind, text in (("esm", "export const name = 'an esm package';\nexport default 1;\n"),
                       ("cjs", "exports.name = 'a cjs package';\n")):  # fmt: skip
        package = folder / f"node_modules/pkg-{kind}"
        package.mkdir(parents=True, exist_ok=True)
        about = {"name": f"pkg-{kind}", "main": "index.js", "type": "module" if kind == "esm" else "commonjs"}
        (package / "package.json").write_text(json.dumps(about))
        (package / "index.js").write_text(text)
    (folder / "scripts/near.ts").write_text(
        "export interface Input { n: number }\nexport const twice = (input: Input): number => 2 * input.n;\n"
    )
    (folder / "scripts/near.cts").write_text("exports.word = 'near' as string;\n")
    imports = """
    import fs from 'node:fs';
    import { twice, type Input } from './near.ts';
    import near from './near.cts';
    import { name as esm } from 'pkg-esm';
    import cjs from 'pkg-cjs';
    interface Context { tools: { add(input: { a: number; b: number }): Promise<number> } }
    """
    value = "[twice(input), near.word, esm, cjs.name, await ctx.tools.add({ a: input.n, b: 1 })]"
    expected = [6, "near", "an esm package", "a cjs package", 4]
    grant = Grant(tools=[add])
    for name in ("deep.ts", "deep.mts"):
        text = (
            imports
            + f"export default async function run(input: Input, ctx: Context): Promise<unknown[]> {{ return {value}; }}\n"
        )
        result = run(name, text, input={"n": 3}, grant=grant)
        assert (result.style, result.result) == ("function", expected), result.stderr
    program = imports + "import { tools } from 'skill-tools';\nconst ctx = { tools } as Context;\n"
    program += "const input: Input = JSON.parse(fs.readFileSync(0, 'utf8'));\n"
    result = run(
        "program.mts", program + f"console.log(JSON.stringify({value}));\n", input={"n": 3}, grant=grant
    )
    assert (result.style, result.stdout) == ("cli", json.dumps(expected, separators=(",", ":")) + "\n"), (
        result.stderr
    )
    common = """
    const { word } = require('./near.cts');
    const cjs: { name: string } = require('pkg-cjs');
    const esm = require('pkg-esm');
    module.exports = async (input: { n: number }, ctx: any): Promise<unknown[]> =>
      [2 * input.n, word, esm.name, cjs.name, await ctx.tools.add({ a: input.n, b: 1 })];
    """
    result = run("common.cts", common, input={"n": 3}, grant=grant)
    assert (result.style, result.result) == ("function", expected), result.stderr


# -- 34: the input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "seen"), [({}, {}), ({"input": {"q": ["é"]}}, {"q": ["é"]}), ({"input": 5}, 5)]
)
def test_34_the_input_is_everywhere(run: Runner, given: dict[str, Any], seen: Any) -> None:
    """ref-34, TH-59, TH-60"""
    python = "import json, os, sys\nprint(json.dumps([json.load(sys.stdin), json.load(open(os.environ['INPUT_JSON']))]))\n"
    assert json.loads(run("in.py", python, **given).stdout) == [seen, seen]
    js = "const fs = require('fs');\nconst read = (f) => JSON.parse(fs.readFileSync(f, 'utf8'));\n"
    js += "console.log(JSON.stringify([read(0), read(process.env.INPUT_JSON)]));\n"
    assert json.loads(run("in.js", js, **given).stdout) == [seen, seen]
    assert json.loads(run("in.sh", "cat\n", **given).stdout) == seen
    assert run("inf.py", "def run(input, ctx):\n    return input\n", **given).result == seen
    assert run("inf.mjs", "export default (input) => input;\n", **given).result == seen
    context = json.loads(run("context.sh", "cat $CONTEXT_JSON\n", **given).stdout)
    assert context["skill"]["name"] == SKILL
    assert context["skill"]["description"] == "Tests."


def test_34_arguments(run: Runner) -> None:
    assert run("args.sh", 'printf "%s|" "$@"\n', args=["a b", "", "*"]).stdout == "a b||*|"
    assert run("args.py", "import sys\nprint(sys.argv[1:])\n", args=["a b"]).stdout == "['a b']\n"
    function = "import sys\ndef run(input, ctx):\n    return sys.argv\n"
    assert run("argf.py", function, args=["x"]).result == [f"/skills/{SKILL}/scripts/argf.py", "x"]


# -- 36, 37, 39: outputs ------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["python", "node", "bash"])
def test_36_artefacts_in_every_language(run: Runner, language: str) -> None:
    """ref-36, TH-58"""
    text = {
        "python": "def run(input, ctx):\n    ctx.output.write_file('d/t.txt', 'té')\n"
        "    ctx.output.write_file('b.bin', bytes(range(256)))\n",
        "node": "export default async (input, ctx) => { await ctx.output.writeFile('d/t.txt', 'té');\n"
        "await ctx.output.writeFile('b.bin', Uint8Array.from({ length: 256 }, (_, i) => i)); };\n",
        "bash": "printf 'té' | output-write d/t.txt\n"
        "python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)))' | output-write b.bin\n",
    }[language]
    result = run(f"outputs{ {'python': '.py', 'node': '.mjs', 'bash': '.sh'}[language] }", text)
    assert result.status == "ok", result.stderr
    files = {file.path: file for file in result.files}
    assert set(files) == {"out/d/t.txt", "out/b.bin"}
    assert (files["out/d/t.txt"].encoding, files["out/d/t.txt"].content) == ("utf-8", "té")
    assert files["out/b.bin"].encoding == "base64"
    assert base64.b64decode(files["out/b.bin"].content or "") == BINARY
    again = run(f"more{ {'python': '.py', 'node': '.mjs', 'bash': '.sh'}[language] }", "\n")
    assert again.files == []  # what an earlier run made is not this one's


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x", "", "."])
def test_36_outputs_stay_in_their_folder(run: Runner, name: str) -> None:
    code = f"def run(input, ctx):\n    ctx.output.write_file({name!r}, 'x')\n"
    assert run("escape.py", code).status == "error"
    js = f"export default (input, ctx) => ctx.output.writeFile({json.dumps(name)}, 'x');\n"
    assert run("escape.mjs", js).status == "error"
    if name not in ("", "."):
        assert run("escape.sh", f"echo x | output-write '{name}'\n").exit_code == 1


def test_37_caps_and_links(run: Runner) -> None:
    """ref-37, TH-58"""
    result = run(
        "many.py",
        """
        import os
        def run(input, ctx):
            for number in range(19):
                ctx.output.write_file(f"f{number:02}.txt", "x")
            ctx.output.write_file("large.txt", "x" * 70_000)
            ctx.output.write_file("z.txt", "x")
            os.symlink("/etc/passwd", os.environ["OUTPUT_DIR"] + "/link.txt")
            return "done"
        """,
        output_limits=OutputLimits(max_files=20, inline_bytes=64_000),
    )
    assert (result.status, result.result) == ("ok", "done")
    assert len(result.files) == 20
    large = next(file for file in result.files if file.path == "out/large.txt")
    assert (large.content, large.truncated, large.size) == (None, True, 70_000)
    assert {"max_files", "inline_bytes"} <= set(result.limits_hit)
    assert not [file for file in result.files if "link" in file.path or "root:" in (file.content or "")]


def test_39_a_script_cannot_change_its_source(run: Runner, executor: Executor, folder: Path) -> None:
    """ref-39"""
    text = "import os\nprint(open(__file__).read().count('x'))\nopen(__file__, 'a').write('# xx')\n"
    text += "open(os.environ['SKILL_DIR'] + '/SKILL.md', 'w').write('gone')\n"
    first = run("selfish.py", text)
    source = (folder / "scripts/selfish.py").read_bytes()
    assert source.decode() == text
    assert (folder / "SKILL.md").read_text().startswith("---")
    with executor.session() as other:
        second = other.script(SKILL, "scripts/selfish.py")
        assert second.stdout == first.stdout
        assert second.skill_digest == first.skill_digest
        record = other.audit.records[-1]
        assert record["script_sha256"] == hashlib.sha256(source).hexdigest()


# -- 40 to 42, 44: limits -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "while True:\n        try:\n            time.sleep(1)\n        except BaseException:\n            pass",
        "__import__('ctypes').CDLL(None).sleep(60)",
        "subprocess.Popen(['sleep', '60'], start_new_session=True); time.sleep(60)",
    ],
    ids=["busy", "catches everything", "in C", "a child in a session of its own"],
)
def test_40_the_deadline_is_kept(run: Runner, body: str) -> None:
    """ref-40, TH-66"""
    code = f"import subprocess, time\ndef run(input, ctx):\n    print('before', flush=True)\n    {body}\n"
    before = time.monotonic()
    result = run("long.py", code, timeout=1)
    assert (result.status, result.exit_code, result.stdout) == ("timeout", 124, "before\n")
    assert time.monotonic() - before < 20
    assert "sleep" not in run.session.exec("cat /proc/[0-9]*/cmdline").stdout.replace("sleep,", "")


def test_40_the_deadline_is_kept_in_node(run: Runner) -> None:
    for text in (
        "export default () => { console.log('before'); for (;;); };\n",
        "console.log('before'); for (;;);\n",
    ):
        result = run("long.mjs", text, timeout=1)
        assert (result.status, result.stdout) == ("timeout", "before\n")


def test_41_a_child_that_is_left_behind(run: Runner) -> None:
    """ref-41"""
    code = "import subprocess\ndef run(input, ctx):\n    subprocess.Popen(['sleep', '60'])\n    return 1\n"
    result = run("leaves.py", code)
    assert (result.status, result.result) == ("ok", 1)
    assert result.killed_descendants == 1
    assert result.duration_ms < 20_000


def test_42_memory(executor: Executor, folder: Path) -> None:
    """ref-42"""
    from executor import Limits

    (folder / "scripts/bomb.py").write_text(
        "def run(input, ctx):\n    a = bytearray(1 << 30)\n    return len(a)\n"
    )
    (folder / "scripts/after.sh").write_text("printf '%s|' \"$@\"\n")
    with executor.session(limits=Limits(memory="256m")) as session:
        result = session.script(SKILL, "scripts/bomb.py")
        assert result.status in ("oom", "error")
        assert result.result is None
        assert session.script(SKILL, "scripts/after.sh", args=["still there"]).stdout == "still there|"


@pytest.mark.parametrize("language", ["python", "node", "bash"])
def test_43_there_is_no_network(run: Runner, language: str) -> None:
    """ref-43, TH-51"""
    name, text = {
        "python": ("net.py", "import socket\ntry:\n    socket.create_connection(('203.0.113.1', 80), 3)\nexcept OSError:\n    print('refused')\n"),
        "node": ("net.mjs", "import net from 'node:net';\nnet.connect(80, '203.0.113.1').on('error', () => console.log('refused'));\n"),
        "bash": ("net.sh", "(exec 3<>/dev/tcp/203.0.113.1/80) 2>/dev/null || echo refused\n"),
    }[language]  # fmt: skip
    assert run(name, text, timeout=20).stdout == "refused\n"


def test_44_a_flood_of_output(run: Runner) -> None:
    """ref-44"""
    code = "import sys\ndef run(input, ctx):\n    for n in range(100):\n        sys.stdout.write(f'{n:07}\\n' * 12500)\n    return 'done'\n"
    result = run("flood.py", code, max_output=100_000, timeout=60)
    assert (result.status, result.result, result.stdout_bytes) == ("ok", "done", 10_000_000)
    assert result.stdout_truncated
    assert result.stdout.startswith("0000000\n")
    assert result.stdout.endswith("0000099\n")


# -- wrong calls --------------------------------------------------------------------------------------


def test_wrong_calls(opened: Session, folder: Path) -> None:
    (folder / "scripts/ok.py").write_text("def run(input, ctx):\n    return 1\n")
    with pytest.raises(BadPathError, match=f"Script not found: {SKILL}/scripts/missing.py"):
        opened.script(SKILL, "scripts/missing.py")
    for path in ("../other/x.py", "/etc/x.py", "scripts/x.rb", "references/guide.md"):
        with pytest.raises(BadPathError):
            opened.script(SKILL, path)
    with pytest.raises(SkillNotFoundError):
        opened.script("no-such-skill", "scripts/x.py")
    with pytest.raises(BadRequestError, match="not JSON"):
        opened.script(SKILL, "scripts/ok.py", input=object())
    with pytest.raises(BadRequestError, match="not JSON"):
        opened.script(SKILL, "scripts/ok.py", input=float("nan"))
    assert opened.script(SKILL, "scripts/ok.py").result == 1


def test_a_script_is_granted_nothing_unless_it_is(run: Runner) -> None:
    """TH-51, TH-53"""
    code = "def run(input, ctx):\n    try:\n        ctx.tools.add(a=1, b=2)\n    except AttributeError as e:\n        return str(e)\n"
    assert run("none.py", code).result == "Tool not available: add"
    limits = BridgeLimits(calls=1)
    twice = "from skill_tools import LimitExceeded\ndef run(input, ctx):\n    ctx.tools.add(a=1, b=2)\n    try:\n        ctx.tools.add(a=1, b=2)\n    except LimitExceeded as e:\n        return e.code\n"
    assert run("twice.py", twice, grant=Grant(tools=[add], limits=limits)).result == "TOO_MANY_CALLS"


def test_36_odd_names_come_back_as_they_are(run: Runner) -> None:
    names = ["{1..99999}", "[ab]*?", "a\\b", "$OUTPUT_DIR", "!x", "{a,b}", " ", "ü", "-rf", "a\nb", "\ud800x"]
    result = run(
        "odd.py",
        f"""
        import os
        def run(input, ctx):
            for name in {names!a}:
                with open(os.fsencode(os.environ["OUTPUT_DIR"]) + b"/" + name.encode("utf-8", "surrogatepass"), "w") as f:
                    f.write("x")
        """,
    )
    assert result.status == "ok", result.stderr
    found = {os.fsencode(file.path.removeprefix("out/")) for file in result.files}
    assert found == {name.encode("utf-8", "surrogatepass") for name in names}, result.warnings


@pytest.mark.parametrize("name", ["pay.py", "pay.mjs", "pay.ts", "pay.sh"])
def test_46_a_script_that_waits_for_a_decision_goes_on_with_its_result(run: Runner, name: str) -> None:
    """ref-46"""
    paying = dataclasses.replace(add, name="pay", approval="always")
    text = {
        "py": "def run(input, ctx):\n    ctx.output.write_file('o.txt', 'x')\n    return ctx.tools.pay(a=1, b=2)\n",
        "mjs": "export default async (input, ctx) => { await ctx.output.writeFile('o.txt', 'x'); return ctx.tools.pay({ a: 1, b: 2 }); };\n",
        "ts": "export default async (input: object, ctx: any): Promise<number> => { await ctx.output.writeFile('o.txt', 'x'); return ctx.tools.pay({ a: 1, b: 2 }); };\n",
        "sh": "echo -n x | output-write o.txt; tool pay a:=1 b:=2\n",
    }[name.rpartition(".")[2]]
    result = run(name, text, grant=Grant(tools=[paying], approver="suspend"))
    assert (result.status, result.result, result.files) == ("awaiting_approval", None, [])
    over = run.session.resume(result.run_id, {result.pending[0].call_id: True})
    assert isinstance(over, ScriptResult)
    assert (over.status, over.result, over.stdout) == (
        ("ok", None, "3\n") if name == "pay.sh" else ("ok", 3, "")
    )
    assert [file.content for file in over.files] == ["x"]


# -- known faults of other systems --------------------------------------------------------------------


def test_w14_a_program_has_tools_and_workspace(run: Runner, tmp_path: Path) -> None:
    """TH-57"""
    (tmp_path / "n.txt").write_text("noted")
    code = (
        "from skill_tools import tools, workspace\nprint(tools.add(a=1, b=2), workspace.read_file('n.txt'))\n"
    )
    result = run("w14.py", code, grant=Grant(tools=[add], root=tmp_path))
    assert (result.style, result.stdout) == ("cli", "3 noted\n")


def test_w28_what_bash_printed_before_the_deadline_is_kept(run: Runner) -> None:
    result = run("w28.sh", "echo before; echo why >&2; sleep 60\n", timeout=1)
    assert (result.status, result.exit_code) == ("timeout", 124)
    assert (result.stdout, result.stderr) == ("before\n", "why\n")
    assert result.timed_out


def test_w29_bash_may_run_as_many_commands_as_it_likes(run: Runner) -> None:
    result = run(
        "w29.sh", "for ((i = 0; i < 30000; i++)); do x=$((x + i)); [ $i ]; true; done; echo $x\n", timeout=60
    )
    assert (result.status, result.stdout) == ("ok", "449985000\n")


def test_w30_scripts_call_each_other_across_languages(run: Runner) -> None:
    text = "set -e\npython3 -c 'print(1)'; node -e 'console.log(2)'; bash -c 'echo 3'; echo ${BASH_VERSINFO[0]}\n"
    text += 'python3 -c \'import subprocess; subprocess.run(["tool", "add", "a:=2", "b:=2"], check=True)\'\n'
    result = run("w30.sh", text, grant=Grant(tools=[add]))
    assert result.stdout.split() == ["1", "2", "3", "5", "4"], result.stderr


def test_w39_binary_resources_can_be_read_in_every_language(run: Runner) -> None:
    """TH-59"""
    python = "import os\ndef run(i, c):\n    return open(os.environ['SKILL_DIR'] + '/references/blob.bin', 'rb').read().hex()\n"
    node = "import fs from 'node:fs';\n"
    node += "export default () => fs.readFileSync(`${process.env.SKILL_DIR}/references/blob.bin`, 'hex');\n"
    assert run("w39.py", python).result == run("w39.mjs", node).result == "fffe00"


def test_the_command_line(run: Runner, executor: Executor, folder: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    (folder / "scripts/cmd.py").write_text(
        "def run(input, ctx):\n    print('log')\n    ctx.output.write_file('o.txt', 'x')\n"
        "    return {'in': input, 'n': ctx.workspace.read_file('n.txt')}\n"
    )
    (tmp_path / "n.txt").write_text("noted")
    (tmp_path / "in.json").write_text('{"é": 1}')
    words = [
        sys.executable,
        "-m",
        "executor.cli",
        "script",
        SKILL,
        "scripts/cmd.py",
        "--skills",
        str(folder.parent),
    ]
    words += ["--runtime", executor.choose_runtime(), "--workspace", str(tmp_path), "--input-json"]
    done = subprocess.run(
        [*words, f"@{tmp_path}/in.json", "--save", tmp_path / "s"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, 'log\n{"in": {"é": 1}, "n": "noted"}\n'), done.stderr
    assert (tmp_path / "s/out/o.txt").read_text() == "x"
    done = subprocess.run([*words, "5", "--json", "--quiet"], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert (found["result"]["in"], found["style"], found["status"]) == (5, "function", "ok")
    assert subprocess.run([*words, "{"], capture_output=True).returncode == 125
