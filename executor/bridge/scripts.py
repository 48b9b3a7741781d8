"""A skill's script: which language, function or program, how it is started, and what comes back.

The style is found by parsing the script's text, never by looking for words in it: a Python script is a
function when it has a top-level `run` that takes two positional arguments, a Node script when it has a
default export (whether that is a function, Node says). Everything else is a program.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from executor.errors import BadPathError, BadRequestError
from executor.models import MADE_LATER, ExecResult
from executor.workspace.text import MAX_PARSED

if TYPE_CHECKING:
    from executor.bridge.dispatch import RunBridge

Style = Literal["auto", "function", "cli"]
MAX_SCRIPT = 4 << 20  # bytes of a script
MAX_INPUT = 16 << 20  # bytes of the input as JSON
LANGUAGES = {
    ".py": "python",
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
    ".ts": "node",
    ".mts": "node",
    ".cts": "node",
    ".sh": "bash",
    ".bash": "bash",
}
PROGRAMS = {"python": "python3", "node": "node", "bash": "bash"}
RUNNERS = {"python": "python/runner.py", "node": "node/runner.mjs"}
CONTEXT_NAMES = ("ctx", "_ctx", "context", "_context")


class ToolCall(BaseModel):
    """One call of a tool by a script."""

    model_config = MADE_LATER

    call_id: str
    name: str
    ok: bool
    ms: int
    code: str = ""
    """Code of the error, '' when there was none."""


class ScriptError(BaseModel):
    """An exception that a function did not catch."""

    model_config = MADE_LATER

    code: str
    """Its class."""
    message: str
    traceback: str = ""


class ScriptResult(ExecResult):
    """How a script ended: the fields of a run, and what is a script's own."""

    result: Any = None
    """What the function returned; None for a program."""
    style: Literal["function", "cli"] = "cli"
    language: Literal["python", "node", "bash"] = "python"
    error: ScriptError | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    """Calls of granted tools, in the order of their answers."""
    skill: str = ""
    skill_digest: str = ""
    script: str = ""

    def as_think(self) -> Any:
        """The same in the shape of Cloudflare Think's `run_skill_script`.

        A function's bare value, or `{result, logs?, outputFiles?}` when there is more than that; of a program
        `{stdout, stderr, exitCode, outputFiles?}`. A failed function is an error text with its output.
        """
        files = [
            {
                "path": file.path.removeprefix("out/"),
                "encoding": "text" if file.encoding == "utf-8" else file.encoding,
                "content": file.content,
            }
            for file in self.files
            if file.content is not None
        ]
        if self.style == "cli":
            exit_code = 124 if self.timed_out else self.exit_code
            found: dict[str, Any] = {"stdout": self.stdout, "stderr": self.stderr, "exitCode": exit_code}
            return {**found, "outputFiles": files} if files else found
        if self.status == "timeout":
            return {"error": "Execution timed out"}
        logs = [line for line in self.stdout.split("\n") if line]
        if self.error is not None or self.status != "ok":
            text = self.error.message if self.error is not None else self.status
            return {"error": text + ("\n\nConsole output:\n" + "\n".join(logs) if logs else "")}
        if not logs and not files:
            return self.result
        return {
            "result": self.result,
            **({"logs": logs} if logs else {}),
            **({"outputFiles": files} if files else {}),
        }


@dataclass(frozen=True)
class Plan:
    """How a script is started."""

    language: Literal["python", "node", "bash"]
    style: Literal["function", "cli"]
    flags: Mapping[str, str]
    """Variables for the runner."""

    def argv(self, folder: str, script: str, args: Sequence[str]) -> list[str]:
        """The command; `folder` is the run's own, `script` the absolute path inside."""
        program = PROGRAMS[self.language]
        if self.style == "function":
            return [program, f"{folder}/{RUNNERS[self.language]}", script, *args]
        return [program, script, *args]


def check_path(path: str) -> str:
    """The language of a script's path relative to the skill. BadPathError for one that cannot be."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise BadPathError(
            f"{path!r} is not a script of a skill",
            hint="Give its path relative to the skill's folder, such as scripts/report.py.",
        )
    name = parts[-1].lower()
    for ending, language in LANGUAGES.items():
        if name.endswith(ending):
            return language
    raise BadPathError(
        f"{path!r} has no ending that says how to run it", hint=f"One of {', '.join(LANGUAGES)}."
    )


def plan(path: str, content: bytes, style: Style) -> Plan:
    """How this script is started. BadRequestError when it cannot be of the given style."""
    language = check_path(path)
    flags: dict[str, str] = {}
    function = False
    if language == "python" and len(content) > MAX_PARSED:
        said = _RUN_LINE.search(content)
        if said and style == "auto":
            raise BadRequestError(
                f"{path!r} is too long to tell whether it is a function: {len(content):,} bytes",
                hint="Say it: style='function', or style='cli' for a program.",
            )
        flags["SKILL_SCRIPT_ASYNC"] = "1" if said and said[1] else "0"
    elif language == "python":
        found = python_run(content)
        function = found is not None
        flags["SKILL_SCRIPT_ASYNC"] = "1" if isinstance(found, ast.AsyncFunctionDef) else "0"
    elif language == "node":
        kind = node_exports(content, commonjs=path.lower().endswith((".cjs", ".cts")))
        function = kind is not None
        flags["SKILL_SCRIPT_COMMONJS"] = "1" if kind == "commonjs" else "0"
    if style == "function" and language == "bash":
        raise BadRequestError(f"{path!r} is a Bash script, which is always a program")
    if style != "auto":
        function = style == "function"
    return Plan(language, "function" if function else "cli", flags if function else {})  # type: ignore[arg-type]


def files(
    plan: Plan, value: Any, *, skill: Mapping[str, Any], run_id: str, bridge: RunBridge
) -> dict[str, bytes]:
    """What the script finds in the run's folder. BadRequestError when the input is not JSON."""
    try:
        text = json.dumps({} if value is None else value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"the input is not JSON: {error}") from None
    if len(text) > MAX_INPUT:
        raise BadRequestError(f"the input is larger than {MAX_INPUT >> 20} MiB", hint="Put it as a file.")
    context = {
        "skill": dict(skill),
        "run_id": run_id,
        "tools": [entry["name"] for entry in bridge.catalogue],
        "workspace": bridge.grant.right,
    }
    found = {"input.json": text, "context.json": json.dumps(context, ensure_ascii=False).encode()}
    if plan.style == "function":
        name = RUNNERS[plan.language]
        source = resources.files("executor.guest").joinpath("clients", name.rpartition("/")[2])
        found[name] = source.read_bytes()
    return found


def variables(folder: str) -> dict[str, str]:
    """Where a script finds its input and what is said of it."""
    return {"INPUT_JSON": f"{folder}/input.json", "CONTEXT_JSON": f"{folder}/context.json"}


def result(found: ExecResult, plan: Plan, bridge: RunBridge) -> ScriptResult:
    """A run's result with what is a script's own."""
    handed_in, value = bridge.value
    # Fields and not a dump: collected files keep their methods.
    fields = {name: getattr(found, name) for name in type(found).model_fields}
    made = ScriptResult(
        **fields,
        result=value,
        style=plan.style,
        language=plan.language,
        error=None if bridge.error is None else ScriptError(**bridge.error),
        tool_calls=[ToolCall(**vars(call)) for call in bridge.calls],
        skill=bridge.subject.skill or "",
        skill_digest=bridge.subject.skill_digest,
        script=bridge.subject.script,
    )
    made._stdout_raw, made._stderr_raw = found._stdout_raw, found._stderr_raw
    if plan.style == "function" and plan.language == "python" and made.status == "ok" and not handed_in:
        made.warnings = [*made.warnings, "the script ended before its function returned"]
    return made


# -- Python -------------------------------------------------------------------------------------------


_RUN_LINE = re.compile(rb"^(async[ \t]+)?def[ \t]+run\b", re.MULTILINE)


def python_run(content: bytes) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The top-level `run(input, ctx)` of a script, or None when it is a program."""
    if len(content) > MAX_PARSED:
        return None
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # Python itself will say what is wrong with it
    found = None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "run":
            found = node
    if found is None or not _takes_two(found.args):
        return None
    names = [argument.arg for argument in (*found.args.posonlyargs, *found.args.args)]
    helper = bool(found.args.defaults) and not (len(names) > 1 and names[1] in CONTEXT_NAMES)
    # `run(command, check=True)` of a program is a helper; with a guard there is a program.
    return None if helper and any(map(_is_guard, tree.body)) else found


def _takes_two(arguments: ast.arguments) -> bool:
    most = len(arguments.posonlyargs) + len(arguments.args)
    least = most - len(arguments.defaults)
    required = [default for default in arguments.kw_defaults if default is None]
    return least <= 2 and (most >= 2 or arguments.vararg is not None) and not required


def _is_guard(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and any(
            isinstance(part, ast.Name) and part.id == "__name__"
            for part in (node.test.left, *node.test.comparators)
        )
    )


# -- JavaScript and TypeScript ------------------------------------------------------------------------

_WORD = re.compile(r"[A-Za-z_$\u0080-\U0010ffff][\w$\u0080-\U0010ffff]*")
_SPACE = re.compile(r"\s+")
_NUMBER = re.compile(r"[0-9][\w.]*")
# After these a `/` begins a regular expression; after other words, `)`, `]`, `}` and literals it divides.
_BEFORE_REGEX = {
    *("return", "typeof", "case", "do", "else", "in", "instanceof", "new", "void", "delete", "throw"),
    *("yield", "await", "of", "default", "export"),
}


def node_exports(content: bytes, *, commonjs: bool) -> Literal["module", "commonjs"] | None:
    """How a script exports something that may be its function; None when it exports nothing like that.

    A CommonJS script that asks whether it is the main module is a program.
    """
    if len(content) > MAX_SCRIPT:
        return None
    module = asks_main = assigned = listing = False
    other = ""
    last, top = _NONE, _NONE  # the latest four tokens, of all and of those outside of brackets
    for _, text, depth in tokens(content.decode("utf-8", "replace")):
        last = (*last[1:], text)
        if last[2:] == ("export", "{"):
            listing = True
        elif text == "}":
            listing = False
        elif listing and last[2:] == ("as", "default"):
            module = True
        asks_main = asks_main or last[1:] == ("require", ".", "main")
        if depth:
            continue
        top = (*top[1:], text)
        module = module or (top[2:] == ("export", "default") and top[1] != ".")
        other = text if text in ("import", "export") else other
        assigned = assigned or top in _ASSIGNED
    if module and not commonjs:
        return "module"
    if asks_main or (other and not commonjs):
        return None
    return "commonjs" if assigned else None


_NONE = ("", "", "", "")
_ASSIGNED = (("module", ".", "exports", "="), ("exports", ".", "default", "="))


def tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """(kind, text, depth of brackets) of a script's tokens, without comments and the insides of literals.

    Kinds: `word`, `mark`, `literal`. What it cannot make sense of it takes for one mark.
    """
    before = ("", "")  # kind and text of the latest one
    depth, at, size = 0, 0, len(text)
    templates: list[int] = []  # depth at which a `${` was opened
    if text.startswith("#!"):
        at = text.find("\n") if "\n" in text else size
    while at < size:
        here = text[at]
        if match := _SPACE.match(text, at):
            at = match.end()
        elif text.startswith("//", at):
            end = text.find("\n", at)
            at = size if end < 0 else end
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            at = size if end < 0 else end + 2
        elif match := _WORD.match(text, at) or _NUMBER.match(text, at):
            yield (*(before := ("word", match[0])), depth)
            at = match.end()
        elif here in "'\"":
            at = _string_end(text, at)
            yield (*(before := ("literal", here)), depth)
        elif here == "`" or (here == "}" and templates and templates[-1] == depth):
            if here == "}":
                templates.pop()
                depth -= 1
            at, opened = _template_end(text, at + 1)
            yield (*(before := ("literal", "`")), depth)
            if opened:
                depth += 1
                templates.append(depth)
        elif here == "/" and _regex_may_begin(*before):
            at = _regex_end(text, at)
            yield (*(before := ("literal", "/")), depth)
        else:
            if here in ")]}":
                depth = max(0, depth - 1)
            yield (*(before := ("mark", here)), depth)
            if here in "([{":
                depth += 1
            at += 1


def _regex_may_begin(kind: str, text: str) -> bool:
    """`kind` and `text` are of the token before."""
    if kind == "word":
        return text in _BEFORE_REGEX
    return not kind or (kind == "mark" and text not in ")]}")


def _string_end(text: str, at: int) -> int:
    mark = text[at]
    at += 1
    while at < len(text) and text[at] not in (mark, "\n"):
        at += 2 if text[at] == "\\" else 1
    return min(at + 1, len(text))


def _template_end(text: str, at: int) -> tuple[int, bool]:
    """Where a template's text ends, and whether an expression begins there."""
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == "`":
            return at + 1, False
        elif text.startswith("${", at):
            return at + 2, True
        else:
            at += 1
    return len(text), False


def _regex_end(text: str, at: int) -> int:
    in_class = False
    at += 1
    while at < len(text) and text[at] != "\n":
        here = text[at]
        if here == "\\":
            at += 1
        elif here == "[":
            in_class = True
        elif here == "]":
            in_class = False
        elif here == "/" and not in_class:
            break
        at += 1
    at = min(at + 1, len(text))
    while at < len(text) and text[at].isalpha():
        at += 1
    return at
