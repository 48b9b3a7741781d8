"""Runs a skill's script that is a function: `run(input, ctx)` in Python, plain or async.

`python3 runner.py SCRIPT ARGS…`. The module is loaded from its own path, with its folder first on `sys.path`,
so that its siblings and `__file__` are what they are for a program. The value goes to the host through the
bridge; whatever is printed stays printed text. An exception ends it as Python does: a traceback on stderr and
exit status 1. It never decides whether a script is of this kind: the host has.
"""
# mypy: ignore-errors

import json
import os
import sys
import traceback

MAX_FILES = 2000
MAX_FILE = 1 << 20  # bytes of a bundled text


class Files(dict):
    """The skill's bundled texts by relative path, read at the first look."""

    def __init__(self, folder):
        dict.__init__(self)
        for where, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not os.path.islink(os.path.join(where, name)))
            for name in sorted(names):
                path = os.path.join(where, name)
                try:
                    if os.path.islink(path) or os.path.getsize(path) > MAX_FILE or len(self) >= MAX_FILES:
                        continue
                    with open(path, encoding="utf-8", newline="") as file:
                        self[os.path.relpath(path, folder)] = file.read()
                except (OSError, ValueError):
                    continue  # not a text


class Context:
    """The second argument: what the script may use."""

    def __init__(self, about, tools, workspace, output):
        self.skill = about["skill"]
        self.run_id = about["run_id"]
        self.tools = tools
        self.workspace = workspace
        self.output = output
        self._files = None

    @property
    def files(self):
        """Bundled texts by relative path."""
        if self._files is None:
            self._files = Files(os.environ["SKILL_DIR"])
        return self._files


def load(path, names):
    """The script as a module, with `names` among its globals."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("skill_script", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["skill_script"] = module
    module.__dict__.update(names)
    spec.loader.exec_module(module)
    return module


def main():
    import skill_tools

    script = os.path.abspath(sys.argv[1])
    sys.argv = [script, *sys.argv[2:]]
    sys.path[0] = os.path.dirname(script)
    with open(os.environ["CONTEXT_JSON"], encoding="utf-8") as file:
        about = json.load(file)
    with open(os.environ["INPUT_JSON"], encoding="utf-8") as file:
        given = json.load(file)
    code = os.environ.get("SKILL_SCRIPT_CODE") == "1"
    waits = code or os.environ.get("SKILL_SCRIPT_ASYNC") == "1"  # the host parsed it
    tools = skill_tools.tools.aio if waits else skill_tools.tools
    workspace = skill_tools.workspace.aio if waits else skill_tools.workspace
    output = skill_tools._AsyncOutput() if waits else skill_tools.output
    context = Context(about, tools, workspace, output)
    try:
        if code:
            with open(script, encoding="utf-8") as file:
                value = run_code(file.read(), code_names(tools, workspace, output, given))
        else:
            value = load(script, {"tools": tools, "workspace": workspace}).run(given, context)
        if hasattr(value, "__await__"):
            import asyncio

            value = asyncio.run(_finish(value))
        json.dumps(value, allow_nan=False)
    except Exception as error:
        frames = error.__traceback__
        while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames))
        sys.stdout.flush()
        sys.stderr.write(text)
        sys.stderr.flush()
        told = {"code": type(error).__name__, "message": str(error), "traceback": text[-16000:]}
        _tell(skill_tools, {"error": told})
        sys.exit(1)
    _tell(skill_tools, {"value": value})


async def run_code(text, names):
    """A text as a program in which `await` is allowed; the value of its last expression."""
    import ast
    import inspect
    import linecache

    linecache.cache["<code>"] = (len(text), None, text.splitlines(True), "<code>")
    tree = ast.parse(text, "<code>")
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("__value__", ast.Store())], last.value), last)
        ast.fix_missing_locations(tree)
    compiled = compile(tree, "<code>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(compiled, names)  # noqa: S307  that is what it is for
    if inspect.isawaitable(running):
        await running
    return names.get("__value__")


def code_names(tools, workspace, output, given):
    """The globals of a text."""
    import asyncio

    import skill_tools

    def call_tool(name, input=None, **more):
        return tools.call(name, dict(input or {}, **more))

    names = {
        entry["identifier"]: getattr(tools, entry["identifier"]) for entry in skill_tools._settings()["tools"]
    }
    names.update(
        asyncio=asyncio, call_tool=call_tool, input=given, output=output, tools=tools, workspace=workspace
    )
    names["__name__"] = "__main__"
    return names


def _is_ours(name):
    """Frames that are of no use to anybody."""
    return name == __file__ or name.startswith("<frozen importlib")


async def _finish(value):
    return await value


def _tell(client, params):
    try:
        client._sync("script.value", params)
    except client.SkillBridgeError as error:
        sys.stderr.write("the script's result was not taken: %s\n" % error)
        sys.exit(1)


if __name__ == "__main__":
    main()
