"""The shape of the code: imports point downwards, every module says what it is for, two forms are one."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import executor
from executor import errors, session, sync
from executor.executor import AsyncExecutor
from executor.guest import bundle

PACKAGE = Path(executor.__file__).parent
MODULES = {
    "executor." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# What each part may import besides the standard library, third parties and itself. A part is a subpackage
# or a module directly below `executor`; `""` is `executor/__init__.py`. `part.module` allows one module only.
BASE = {"errors", "places", "spans"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "places": set(),
    "spans": set(),
    "guest": set(),  # it runs inside, alone
    "models": {"errors"},
    "settings": {*BASE, "models", "runtimes.options"},
    "runtimes": {*BASE, "guest", "workspace.text"},
    "state": {*BASE, "runtimes.owner", "workspace.text"},
    "channel": {"errors", "guest.wire", "guest.records", "guest.bundle", "runtimes.base", "workspace.text"},
    "skills": {*BASE, "models", "state", "workspace.text", "workspace.layout"},
    "workspace": {*BASE, "models", "guest.records", "channel", "state"},
    "bridge": {*BASE, "models", "settings", "channel", "workspace", "guest"},
    "deps": {*BASE, "models", "settings", "skills", "workspace.text", "runtimes.base"},
    "images": {*BASE, "guest", "runtimes", "deps", "workspace.text"},
    "session": {
        *BASE,
        "models",
        "settings",
        "skills",
        "state",
        "workspace",
        "bridge",
        "channel",
        "guest",
        "runtimes",
        "deps",
    },
    "executor": {
        *BASE,
        "models",
        "settings",
        "skills",
        "state",
        "workspace",
        "bridge",
        "runtimes",
        "session",
        "deps",
    },
}
ALLOWED["sync"] = {*ALLOWED["executor"], "channel.runs", "executor"}
ALLOWED["doctor"] = {*ALLOWED["executor"], "guest", "images", "executor"}
# What people and models call: on top of everything, and beside each other nothing but the command line.
TOP = {*ALLOWED["executor"], "", "executor", "sync", "doctor", "images"}
ALLOWED[""] = {*BASE, "models", "settings", "bridge", "session", "executor", "sync"}
ALLOWED["tools"] = {*TOP, "channel", "guest.records"}  # past the session, still downwards
ALLOWED["testing"] = TOP
ALLOWED["mcp"] = {*TOP, "tools"}
ALLOWED["integrations"] = {*TOP, "tools"}  # and nothing may import them
ALLOWED["cli"] = {*TOP, "tools", "testing", "mcp"}


def part_of(module: str) -> str:
    """`executor.guest.wire` → `guest`; `executor` and `executor.__init__` → ``."""
    names = module.split(".")[1:]
    return names[0] if names and names[0] != "__init__" else ""


def imports(module: str) -> Iterator[tuple[int, str]]:
    """(line, imported name) of everything of ours that a module imports, wherever in it that stands."""
    package = module.rsplit(".", 1)[0]
    for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "executor":
                    yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *filter(None, [node.module])])
            if base.split(".")[0] == "executor":
                for name in node.names:
                    inner = f"{base}.{name.name}"
                    is_module = inner in MODULES or f"{inner}.__init__" in MODULES
                    yield node.lineno, inner if is_module else base


def may_import(part: str, imported: str) -> bool:
    if imported == "executor.__version__":
        return True
    target = part_of(imported)
    if target == part:
        return True
    below = imported.removeprefix("executor").removeprefix(".")
    return target in ALLOWED[part] or any(
        below == allowed or below.startswith(allowed + ".") for allowed in ALLOWED[part] if "." in allowed
    )


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module: str) -> None:
    part = part_of(module)
    assert part in ALLOWED, f"say in ALLOWED what executor.{part} may import"
    wrong = [f"line {line}: {name}" for line, name in imports(module) if not may_import(part, name)]
    assert wrong == []


def test_the_rule_itself_has_no_circles() -> None:
    below = {part: {name.split(".")[0] for name in allowed} - {part} for part, allowed in ALLOWED.items()}
    # They use modules of `workspace` that import nothing but errors.
    for part in ("channel", "runtimes", "skills", "state"):
        below[part].discard("workspace")
    done: set[str] = set()
    while rest := set(below) - done:
        ready = {part for part in rest if below[part] <= done}
        assert ready, f"these import each other: {sorted(rest)}"
        done |= ready


@pytest.mark.parametrize(
    ("part", "imported", "allowed"),
    [
        ("guest", "executor.errors", False),
        ("guest", "executor.guest.wire", True),
        ("runtimes", "executor.channel.connection", False),
        ("runtimes", "executor.session", False),
        ("runtimes", "executor.guest.bundle", True),
        ("channel", "executor.runtimes.local", False),
        ("channel", "executor.runtimes.base", True),
        ("channel", "executor.guest.agent", False),
        ("channel", "executor.workspace", False),
        ("workspace", "executor.session", False),
        ("skills", "executor.workspace.outputs", False),
        ("session", "executor.executor", False),
        ("session", "executor.cli", False),
        ("cli", "executor.session", True),
        ("errors", "executor.models", False),
    ],
)
def test_the_rule_means_what_it_should(part: str, imported: str, allowed: bool) -> None:
    assert may_import(part, imported) is allowed


def test_what_travels_into_the_sandbox_imports_only_what_travels() -> None:
    travels = {"executor.guest." + part.removesuffix(".py") for part in bundle.PARTS}
    assert {"executor.guest.wire", "executor.guest.records", "executor.guest.agent"} <= travels
    for module in travels:
        assert {imported for _, imported in imports(module)} <= travels


# Where `os.fsencode` and `os.fsdecode` are right: names of this machine, in the encoding of this machine.
NAMES_OF_THE_HOST = {
    "bridge.folder",  # a folder of the host that stands for a workspace
    "deps.pypi",
    "runtimes.local",  # arguments of bubblewrap
    "skills.contents",
    "skills.lint.formats",
    "skills.sources.parsed",
    "state.sessions",  # where an output was saved
    "testing.changes",
    "workspace.saving",
    "workspace.staging",
}


def test_names_in_a_sandbox_are_never_in_the_encoding_of_the_host() -> None:
    """`workspace.text.to_bytes` and `to_text` are for those. The guest is alone, and its own host."""
    users = {
        module.removeprefix("executor.")
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("fsencode", "fsdecode")
    }
    assert {user for user in users if part_of(f"executor.{user}") != "guest"} == NAMES_OF_THE_HOST


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_is_for(module: str) -> None:
    source = MODULES[module].read_text("utf-8")
    if MODULES[module].name == "__init__.py" and not source.strip():
        return  # a folder of modules that speak for themselves
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring
    assert len(docstring.splitlines()[0]) > 20


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "misc", "tools_common", "base_utils", "shared"}
    assert not [name for name in MODULES if drawers & set(name.split("."))]


def test_a_folder_with_one_file_is_a_file() -> None:
    for folder in {path.parent for path in MODULES.values()} - {PACKAGE}:
        files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert len([path for path in files if path.stat().st_size]) > 1, folder


# -- the two forms ------------------------------------------------------------------------------------

PAIRS = [
    (AsyncExecutor, sync.Executor),
    (session.AsyncSession, sync.Session),
    (session.AsyncRun, sync.Run),
    (session.AsyncFile, sync.File),
]
# Public for the other classes of the asynchronous form, not for callers.
INTERNAL = {
    "asked_grant",
    "attached",
    "on_close",
    "stream_file",
    "settle",
    "blank",
    "result",
    "since",
    "abandon",
}
DUNDERS = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def declared(kind: type) -> list[str]:
    """Public names of a class in the order of definition; attributes that `__init__` makes come first."""
    (tree,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == "__init__":
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                        found.append(inner.attr)
            found.append(DUNDERS.get(node.name, node.name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(node.target.id)
    plain = [name for name in found if not name.startswith("_") or name in DUNDERS.values()]
    return [name for name in plain if name not in INTERNAL]


def signature(function: Any) -> str:
    """Parameters, defaults and annotations, with the names of the synchronous form."""
    plain = re.sub(
        r"\b[a-z_]+\.(?=[A-Z])", "", str(inspect.signature(function))
    )  # however a type is imported
    return re.sub(r"\bAsync(?=[A-Z])", "", plain)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_both_forms_have_the_same_names_in_the_same_order(one: type, other: type) -> None:
    assert one.__name__ == "Async" + other.__name__
    names, others = declared(one), declared(other)
    dunders = [name for name in names if name.startswith("__")]
    attributes = [name for name in names if name not in dunders and not hasattr(one, name)]
    methods = [name for name in names if name not in attributes and name not in dunders]
    # An attribute of the one is a property of the other, and stands in the same place: in front.
    assert others == [*dunders, *attributes, *methods]
    assert len(methods) >= 2


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [(one, other, name) for one, other in PAIRS for name in declared(one) if name not in DUNDERS.values()],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_both_forms_take_the_same_arguments(one: type, other: type, name: str) -> None:
    first, second = inspect.getattr_static(one, name, None), inspect.getattr_static(other, name)
    if first is None:  # an attribute
        assert isinstance(second, property)
    elif isinstance(first, property):
        assert isinstance(second, property)
        assert signature(first.fget) == signature(second.fget)
    else:
        assert signature(first) == signature(second)
        assert not inspect.iscoroutinefunction(second)
    documented = second.fget if isinstance(second, property) else second
    assert inspect.getdoc(documented)


def test_both_executors_are_made_the_same_way() -> None:
    assert signature(AsyncExecutor.__init__) == signature(sync.Executor.__init__)
    assert AsyncExecutor.__doc__.split("\n\n")[1] == sync.Executor.__doc__.split("\n\n")[1]  # type: ignore[union-attr]


def test_a_file_is_a_file_in_both_forms() -> None:
    assert session.AsyncFile.__mro__[1] is sync.File.__mro__[1] is executor.OutputFile


# -- the public names ---------------------------------------------------------------------------------


def test_the_public_names_are_listed_once_and_exist() -> None:
    assert len(executor.__all__) == len(set(executor.__all__))
    assert [name for name in executor.__all__ if not hasattr(executor, name)] == []
    for one, other in PAIRS:
        assert {one.__name__, other.__name__} <= set(executor.__all__)


def error_classes() -> dict[str, type[Exception]]:
    found = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    return {name: kind for name, kind in found.items() if kind.__module__ == errors.__name__}


def test_every_error_is_public_and_below_the_one() -> None:
    assert set(error_classes()) <= set(executor.__all__)
    assert all(issubclass(kind, errors.ExecutorError) for kind in error_classes().values())


def test_the_picture_of_the_errors_is_the_tree() -> None:
    drawn: dict[str, str | None] = {}
    path: list[str] = []
    for indent, name in re.findall(r"^ {4}([│├└─ ]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE):
        depth = len(indent) // 4
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else None
    actual = {name: kind.__mro__[1].__name__ for name, kind in error_classes().items()}
    assert drawn.pop("ExecutorError") is None
    assert actual.pop("ExecutorError") == "Exception"
    assert drawn == actual


def test_an_error_shows_its_hint() -> None:
    assert str(errors.SandboxError("what", hint="do this")) == "what\n  do this"
    assert str(errors.SandboxError("what")) == "what"
