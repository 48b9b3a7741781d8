"""A script's style is found by parsing: words in comments, strings and helpers do not count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor import BadPathError, BadRequestError, OutputFile
from executor.bridge import scripts
from executor.bridge.scripts import ScriptError, ScriptResult


def python(text: str) -> str:
    return scripts.plan("scripts/x.py", text.encode(), "auto").style


@pytest.mark.parametrize(
    "text",
    [
        "def run(input, ctx): pass",
        "async def run(input, ctx): pass",
        "def run(a, b, /): pass",
        "def run(*args): pass",
        "def run(input, *rest): pass",
        "def run(input, ctx, extra=1): pass",
        "def run(input, ctx=None): pass",
        "def run(input=None, ctx=None):\n  pass\nif __name__ == '__main__': run()",
        "import x\ndef run(input, ctx):\n  return 1\nif __name__ == '__main__':\n  print(1)",
        "def run(x): pass\ndef run(input, ctx): pass",
    ],
)
def test_python_functions(text: str) -> None:
    assert python(text) == "function"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "print('def run(input, ctx): pass')",
        "# def run(input, ctx): pass",
        '"""\ndef run(input, ctx):\n  pass\n"""',
        "def run(cmd): pass",
        "def run(): pass",
        "def run(a, b, c): pass",
        "def run(input, ctx, *, need): pass",
        "class A:\n  def run(self, input): pass",
        "def outer():\n  def run(input, ctx): pass",
        "def run(cmd, check=True): pass\nif __name__ == '__main__': run('x')",
        "def run(input, ctx) pass",  # does not parse
        "def runner(input, ctx): pass",
        "run = 1",
        "x = lambda: 0\0",
        "(" * 5000,
    ],
)
def test_python_programs(text: str) -> None:
    """ref-30"""
    assert python(text) == "cli"


def node(text: str, name: str = "x.mjs") -> tuple[str, str]:
    plan = scripts.plan(f"scripts/{name}", text.encode(), "auto")
    return plan.style, plan.flags.get("SKILL_SCRIPT_COMMONJS", "")


@pytest.mark.parametrize(
    "text",
    [
        "export default async function run(input, ctx) {}",
        "export default (input) => input;",
        "  export   default\nfunction () {}",
        "const input = 1; export const a = 2; import b from './b.mjs';\nexport default function f() {}",
        "function f() {}\nexport { f as default };",
        "export { a, b as default } from './x.mjs'",
        "// export default nothing\nexport default class {}",
        "const r = /[/`'\"]/; const t = `a ${ `b ${ '}' }` } c`; export default () => r",
        "const a = 1 / 2; const b = 3 / 4; export default a",
        "x = a\n/* ' */; export default 1",
        "#!/usr/bin/env node\nexport default 1",
    ],
)
def test_modules_with_a_default_export(text: str) -> None:
    """TH-54"""
    assert node(text) == ("function", "0")
    assert node(text, "x.ts") == ("function", "0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "console.log('export default function')",
        "// export default function run() {}",
        "/*\nexport default function run() {}\n*/",
        "const t = `\nexport default function run() {}\n`;",
        "const t = `${ 1 } export default ${ 2 }`;",
        "const r = /export default x/;",
        "export const run = 1; export function f() {}",
        "import x from './x.mjs'; module.exports = x",
        "const a = { export: 1, default: 2 }; a.export; a.default",
        "if (require.main === module) main()",
        "module.exports = main; if (require.main === module) main();",
        "exports.helper = 1",
        "'unterminated\nexport",
        "`unterminated ${",
        "/unterminated",
    ],
)
def test_node_programs(text: str) -> None:
    assert node(text, "x.js")[0] == "cli"


def test_commonjs() -> None:
    assert node("module.exports = async (input, ctx) => 1", "x.cjs") == ("function", "1")
    assert node("exports.default = f", "x.js") == ("function", "1")
    assert node("function f() { module.exports = 1 }", "x.cjs")[0] == "cli"


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=200) | st.text(alphabet="`${}()'\"/*\\\n[]exportdfaul ", max_size=200))
def test_any_text_has_tokens(text: str) -> None:
    for _, _, depth in scripts.tokens(text):
        assert depth >= 0
    scripts.plan("x.js", text.encode("utf-8", "surrogatepass"), "auto")
    scripts.plan("x.py", text.encode("utf-8", "surrogatepass"), "auto")


@pytest.mark.parametrize("piece", ["export{", "export {x as ", "`${", "f(/"])
def test_a_text_is_read_once(piece: str) -> None:
    """A list that is never closed was once looked through for each of its beginnings: for hours."""
    assert scripts.node_exports(piece.encode() * (300_000 // len(piece)), commonjs=False) is None
    assert scripts.node_exports(b"export { a, b as default }", commonjs=False) == "module"


def test_python_that_would_take_long_to_parse_is_not_parsed_here() -> None:
    long = b'f"' + b"{a}" * 400_000 + b'"\n'  # of which CPython looks at the beginning again for each part
    assert scripts.plan("x.py", long, "auto").style == "cli"
    for start, waits in ((b"def run(input, ctx): pass\n", "0"), (b"async def run(i, c): pass\n", "1")):
        assert scripts.plan("x.py", start, "auto").flags == {"SKILL_SCRIPT_ASYNC": waits}
        with pytest.raises(BadRequestError, match="too long to tell"):
            scripts.plan("x.py", start + long, "auto")
        assert scripts.plan("x.py", start + long, "cli").style == "cli"
        assert scripts.plan("x.py", start + long, "function").flags == {"SKILL_SCRIPT_ASYNC": waits}


def test_bash_is_a_program() -> None:
    assert scripts.plan("a.sh", b"run() { :; }", "auto").style == "cli"
    with pytest.raises(BadRequestError):
        scripts.plan("a.sh", b"", "function")


def test_an_explicit_style_counts() -> None:
    assert scripts.plan("x.py", b"def run(input, ctx): pass", "cli").style == "cli"
    assert scripts.plan("x.py", b"def run(cmd): pass", "function").style == "function"


@pytest.mark.parametrize(
    "path", ["", "/abs.py", "../x.py", "a/../x.py", "a//x.py", "./x.py", "x\0.py", "x.rb", "x", "py"]
)
def test_paths_that_are_no_script(path: str) -> None:
    with pytest.raises(BadPathError):
        scripts.check_path(path)


@pytest.mark.parametrize(
    ("path", "language"),
    [("scripts/x.PY", "python"), ("a.d.ts", "node"), ("deep/er/a.Bash", "bash"), ("x.mts", "node")],
)
def test_languages(path: str, language: str) -> None:
    assert scripts.check_path(path) == language


# -- the result in the shape of another system ---------------------------------------------------------

FILE = OutputFile(path="out/a.txt", size=1, mime="text/plain", sha256="", encoding="utf-8", content="a")


def think(**fields: Any) -> Any:
    return ScriptResult(**{"status": "ok", "exit_code": 0, **fields}).as_think()


def test_think_views() -> None:
    """TH-65, TH-66"""
    assert think(style="function", result={"a": 1}) == {"a": 1}
    assert think(style="function", result=None) is None
    assert think(style="function", result=1, stdout="x\ny\n") == {"result": 1, "logs": ["x", "y"]}
    assert think(style="function", result=1, files=[FILE]) == {
        "result": 1,
        "outputFiles": [{"path": "a.txt", "encoding": "text", "content": "a"}],
    }
    assert think(stdout="o", stderr="e") == {"stdout": "o", "stderr": "e", "exitCode": 0}
    assert think(stdout="o", status="timeout", timed_out=True)["exitCode"] == 124
    failed = think(style="function", status="error", error=ScriptError(code="E", message="m"), stdout="l\n")
    assert failed == {"error": "m\n\nConsole output:\nl"}
    assert think(style="function", status="timeout") == {"error": "Execution timed out"}


def test_a_result_is_json() -> None:
    made = ScriptResult(status="ok", result={"a": [1]}, style="function")
    assert json.loads(made.model_dump_json())["result"] == {"a": [1]}
