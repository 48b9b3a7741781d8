"""The guest travels as one file: it has to be one valid module for every Python from 3.9 on."""

from __future__ import annotations

import ast
import hashlib
import shutil
import subprocess
import sys
from collections import Counter
from importlib import resources

import pytest

from executor.guest import bundle

# What the standard library of Python 3.9 has and the guest may import; `_ctypes` falls back to `ctypes`.
ALLOWED = {
    *("__future__", "_ctypes", "_signal", "_socket", "_thread", "collections", "ctypes", "errno", "fcntl"),
    *("gc", "itertools", "json", "marshal", "math", "os", "posix", "re", "resource", "select", "signal"),
    *("stat", "struct", "sys", "time", "typing"),
}
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


def parts() -> dict[str, ast.Module]:
    folder = resources.files("executor.guest")
    return {name: ast.parse(folder.joinpath(name).read_text("utf-8")) for name in bundle.PARTS}


def imports(tree: ast.AST) -> dict[str, bool]:
    """Modules that are imported → whether more than types is needed of one."""
    found: dict[str, bool] = {}

    def look(node: ast.AST, needed: bool) -> None:
        if isinstance(node, ast.Import):
            found.update({name.name: found.get(name.name, False) or needed for name in node.names})
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found[module] = found.get(module, False) or needed
        needed &= not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING")
        for child in ast.iter_child_nodes(node):
            look(child, needed)

    look(tree, True)
    return found


def top_level(tree: ast.Module) -> set[str]:
    """Names that a module binds, without imports."""
    found: set[str] = set()
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {inner.id for t in targets for inner in ast.walk(t) if isinstance(inner, ast.Name)}
        elif isinstance(node, ast.If):
            waiting += node.body + node.orelse
    return found


def test_parts_do_not_overwrite_each_other() -> None:
    counts = Counter(name for tree in parts().values() for name in top_level(tree))
    assert {name for name, count in counts.items() if count > 1} == {"TYPE_CHECKING"}
    assert {"Connection", "RecordReader", "Agent", "main", "HELLO", "Record", "Body"} <= set(counts)


def test_guest_files_import_only_the_library_and_each_other() -> None:
    own = {f"executor.guest.{part.removesuffix('.py')}": at for at, part in enumerate(bundle.PARTS)}
    for name, tree in parts().items():
        for module, needed in imports(tree).items():
            if module not in own:
                assert module in ALLOWED
            elif needed:
                assert own[module] < bundle.PARTS.index(name)  # joined in the order of use


def test_the_bundle_is_a_module_of_python_3_9() -> None:
    text = bundle.source().decode()
    tree = ast.parse(text, feature_version=(3, 9))
    assert imports(tree).keys() <= ALLOWED
    assert "executor.guest" not in text
    assert not [module for module in imports(tree) if module.startswith(("executor", "."))]
    assert text.startswith("from __future__ import annotations\n")
    assert text.count("from __future__") == 1
    assert text.rstrip().endswith('if __name__ == "__main__":\n    main()')
    assert top_level(tree) == set().union(*map(top_level, parts().values()))


def test_no_annotation_is_evaluated_that_3_9_does_not_know() -> None:
    """`X | Y` and `match` parse on 3.9 or not at all; calls like zip(strict=…) parse and then fail."""
    tree = ast.parse(bundle.source())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            assert not {keyword.arg for keyword in node.keywords} & {"strict", "slots", "kw_only"}
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"bit_count", "pairwise", "aiter", "anext"}


def test_digest() -> None:
    assert bundle.digest() == hashlib.sha256(bundle.source()).hexdigest()
    bundle.source.cache_clear()
    bundle.digest.cache_clear()
    again = subprocess.run(
        [sys.executable, "-c", "from executor.guest import bundle; print(bundle.digest())"],
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.strip() == bundle.digest()


def other_pythons() -> list[str]:
    """Those of VERSIONS that are on the PATH and work (a version manager's stand-ins may not)."""
    found = [shutil.which(f"python{version}") for version in VERSIONS]
    return [python for python in found if python and works(python)]


def works(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


@pytest.mark.parametrize("python", [sys.executable, *other_pythons()])
def test_every_python_here_compiles_and_loads_it(python: str) -> None:
    done = subprocess.run(
        [
            *(python, "-I", "-S", "-B", "-c"),
            "import sys; names = {'__name__': 'guest'};"
            "exec(compile(sys.stdin.buffer.read(), '<guest>', 'exec'), names);"
            "a, b = names['Connection']('host'), names['Connection']('guest');"
            "a.control(names['HELLO'], 0, {'x': 1}); print(b.receive(b''.join(a.outgoing()))[0].body)",
        ],
        input=bundle.source(),
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{'x': 1}\n", b"")
