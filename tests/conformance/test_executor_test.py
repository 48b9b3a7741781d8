"""`executor test` and `executor skills lint` as they are typed, on every runtime."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from executor import ExecResult, Executor
from executor.executor import AsyncExecutor
from executor.settings import PoolSettings, load
from executor.testing import runner
from executor.testing.cases import Instance, discover
from executor.testing.expect import Outcome
from executor.testing.matching import Mismatch
from executor.workspace.archive import import_session
from tests import forked

SKILL = "---\nname: {name}\ndescription: For tests of the tests.\n---\nText.\n"

# `make soak` does it as often as it takes to believe that nothing here is flaky.
MANY, ROUNDS = (200, 10) if os.environ.get("EXECUTOR_SOAK") else (10, 1)

Invoke = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty root of skills."""
    folder = tmp_path / "skills"
    folder.mkdir()
    return folder.resolve()


@pytest.fixture
def skill(root: Path) -> Callable[..., Path]:
    """Makes a skill with one case file and scripts."""

    def make(cases: str, name: str = "probe", **scripts: str) -> Path:
        folder = root / name
        (folder / "tests").mkdir(parents=True)
        (folder / "SKILL.md").write_text(SKILL.format(name=name))
        (folder / "tests" / "a.yaml").write_text(cases)
        for script, text in scripts.items():
            (folder / script.replace("_", ".")).write_text(text)
        return folder

    return make


@pytest.fixture
def test(executor: Executor, runtime: str, root: Path) -> Invoke:
    """`executor test` on the root, on the runtime under test (which `executor` has checked)."""

    def invoke(*words: str, targets: tuple[str, ...] | None = None) -> subprocess.CompletedProcess[str]:
        where = targets if targets is not None else (str(root),)
        which = () if "--runtime" in words else ("--runtime", runtime)
        return forked.run("test", *where, *which, *words, text=True, timeout=600, cwd=root)

    return invoke


PASSING = """\
cases:
  - name: everything that can stand in a case
    run: python3 say.py "$GREETING" | tee out/said.txt
    inputs: {inputs/a.txt: {text: "one\\n"}, work/b: fixtures}
    env: {GREETING: hello}
    stdin: {file: fixtures/in.txt}
    timeout: 10
    limits: {pids: 32, memory: 256m}
    expect:
      stdout: {equals: "hello one two three\\n"}
      stderr: ''
      files:
        - {glob: 'out/*', count: 1, mime: text/plain, size: 20, golden: golden/said.txt}
        - {glob: work/b/in.txt, contains: three}
  - name: an exit status
    argv: [sh, -c, 'exit 3']
    expect: {exit: 3}
  - name: a timeout
    run: sleep 30
    timeout: 0.5
    expect: {exit: 124}
"""
SAY = """\
import sys
print(sys.argv[1], open("inputs/a.txt").read().strip(), "two", sys.stdin.read().strip())
"""


def test_cases_pass_with_all_that_can_stand_in_them(
    test: Invoke, skill: Callable[..., Path], runtime: str
) -> None:
    folder = skill(PASSING, say_py=SAY)
    for name, text in (("fixtures/in.txt", "three\n"), ("golden/said.txt", "hello one two three\n")):
        (folder / "tests" / name).parent.mkdir()
        (folder / "tests" / name).write_text(text)
    done = test("-j", "3")
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0]) == (0, f"probe [{runtime}]: 3 passed")
    assert lines[1].startswith(f"3 passed on {runtime} in ")
    assert len(lines) == 2


SCRIPTS = """\
cases:
  - name: a function and its tools
    script: totals.py
    input: {cities: [Oslo, Rome]}
    inputs: {inputs/unit.txt: {text: C}}
    tools:
      weather.now:
        - {when: {city: Oslo}, returns: {degrees: 3}, calls: 1}
        - {when: {city: Rome}, error: no station there, calls: 1}
    expect:
      stdout: {contains: asked}
      result: {json: {n: 2}, equals: {Oslo: 3C, Rome: 'weather.now: no station there', n: 2}}
      files: [{glob: out/n.json, json: 2}]
  - name: a program and its tool
    script: words.sh
    input: {a: 1}
    args: [two words, x]
    env: {GREETING: hello}
    tools: {echo: {returns: [7]}}
    expect:
      stdout: "hello two words x {\\"a\\": 1}\\n[7]\\n"
  - name: a command with a tool
    run: tool echo '{"n":1}'
    tools: {echo: {returns: {deep: [1, null]}, calls: 1}}
    expect: {stdout: {json: {deep: [1, null]}}}
  - name: a function that fails
    script: totals.py
    input: {cities: 5}
    expect: {exit: 1, stderr: {contains: "'int' object is not iterable"}}
"""
SCRIPT_FILES = {
    "totals_py": """\
def run(input, ctx):
    found = {}
    unit = open("inputs/unit.txt").read() if len(list(input["cities"])) else ""
    for city in input["cities"]:
        try:
            found[city] = f"{ctx.tools.weather_now(city=city)['degrees']}{unit}"
        except Exception as error:
            found[city] = str(error)
    print("asked")
    open("out/n.json", "w").write(str(len(found)))
    return {**found, "n": len(found)}
""",
    "words_sh": '#!/bin/bash\necho "$GREETING" "$@" "$(cat)"\ntool echo \'{"n":1}\'\n',
}


def test_scripts_get_an_input_and_fake_tools(
    test: Invoke, skill: Callable[..., Path], runtime: str, tmp_path: Path
) -> None:
    skill(SCRIPTS, **SCRIPT_FILES)
    done = test("-j", "4")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"probe [{runtime}]: 4 passed"), done.stdout


def test_a_script_is_told_from_what_it_asked_and_returned(
    test: Invoke, skill: Callable[..., Path], runtime: str, tmp_path: Path
) -> None:
    skill(
        "cases:\n  - name: a\n    script: totals.py\n    input: {cities: [Rome]}\n"
        "    inputs: {inputs/unit.txt: {text: C}}\n"
        "    tools: {weather.now: [{when: {city: Oslo}, returns: 1, calls: 1}], other: {returns: 1}}\n"
        "    expect: {result: {json: {Rome: 5C}}}\n",
        **SCRIPT_FILES,
    )
    html = tmp_path / "r.html"
    done = test("--html", str(html))
    lines = [line for line in done.stdout.splitlines() if line.startswith("  ")]
    told = "weather.now: the test case has no answer to this call"
    assert (done.returncode, lines[:5]) == (
        1,
        [
            """  probe/tests/a.yaml:2: totals.py < {"cities": ["Rome"]}""",
            f"""  - result $.Rome: expected "5C", got "{told}\"""",
            '  - tools weather.now: expected a call with {"city": "Oslo"} (1 time), got {"city": "Rome"}',
            """  - tools weather.now: expected 1 call, got 0""",
            "  stdout:",
        ],
    )
    page = html.read_text()
    assert "<h3>Calls of tools</h3>" in page and "weather.now" in page and "<h3>Result</h3>" in page


FAILING = """\
cases:
  - name: wrong
    run: |
      printf 'one\\n\\033[2J::error::x ##[add-mask]y\\n'; echo oops >&2; echo data > out/o.txt; exit 4
    expect:
      stdout: "one\\ntwo\\n"
  - {name: right, run: 'true'}
  - {name: left out, run: 'true', skip: not yet}
"""


def test_a_failure_has_the_same_reason_everywhere(
    test: Invoke, skill: Callable[..., Path], runtime: str, tmp_path: Path
) -> None:
    skill(FAILING, never_py="print(1)\n")
    files = {name: tmp_path / "reports" / name for name in ("j.xml", "r.json", "r.html")}
    kept = tmp_path / "kept"
    reports = ["--junit", str(files["j.xml"]), "--json", str(files["r.json"]), "--html", str(files["r.html"])]
    done = test(*reports, "--github", "--keep-failed", str(kept))
    assert done.returncode == 1
    got = r"'\x1b[2J::error::x ##[add-mask]y'"
    reasons = ["exit: expected 0, got 4", f"stdout line 2: expected 'two', got {got}"]
    logged = [reason.replace("##[", r"#\x23[") for reason in reasons]
    lines = done.stdout.splitlines()
    assert [line.strip(" -") for line in lines if line.startswith("  - ")] == logged
    assert "  | -two" in lines and "  | oops" in lines
    assert "\x1b" not in done.stdout and "##[" not in done.stdout
    commands = [line for line in lines if line.startswith("::")]
    place = f"::error file=probe/tests/a.yaml,line=2,title=probe%3A%3Awrong [{runtime}]::"
    assert commands == [place + "; ".join(logged)]
    assert "probe: no case runs never.py" in lines

    root = ET.fromstring(files["j.xml"].read_bytes())
    assert [found.attrib["message"] for found in root.iter("failure")] == ["; ".join(reasons)]
    assert [found.attrib["message"] for found in root.iter("skipped")] == ["not yet"]
    listed = re.findall(r"<h3>Why</h3><ul><li>(.*?)</li></ul>", files["r.html"].read_text("utf-8"))
    assert [html.unescape(reason) for reason in listed[0].split("</li><li>")] == reasons
    report = json.loads(files["r.json"].read_text())
    assert report["counts"] == {"passed": 1, "failed": 1, "error": 0, "skipped": 1, "flaky": 0}
    wrong = report["results"][0]
    assert [f"{m['where']}: expected {m['expected']}, got {m['got']}" for m in wrong["mismatches"]] == reasons
    folder = Path(wrong["kept"])
    assert folder == kept / f"probe--wrong--{runtime}"
    assert (folder / "workspace" / "out" / "o.txt").read_text() == "data\n"
    assert (folder / "stderr").read_text() == "oops\n"
    assert json.loads((folder / "result.json").read_text())["exit_code"] == 4
    # The session goes on elsewhere: here on the same runtime, from another store.
    with Executor(runtime=runtime, settings=load({"state_dir": str(tmp_path / "state")})) as other:
        imported = import_session(other.store, folder / "session.tar.gz", session="again")
        with other.restore(imported.session) as session:
            assert session.exec("cat out/o.txt; ls $SKILLS_DIR").stdout == "data\nprobe\n"


def test_goldens_are_rewritten_only_where_nothing_else_is_wrong(
    test: Invoke, skill: Callable[..., Path]
) -> None:
    folder = skill(
        "cases:\n"
        "  - {name: changed, run: echo new, expect: {stdout: {golden: g/changed.txt}}}\n"
        "  - {name: broken, run: echo new; exit 1, expect: {stdout: {golden: g/broken.txt}}}\n"
    )
    (folder / "tests" / "g").mkdir()
    (folder / "tests" / "g" / "changed.txt").write_text("old\n")
    assert test().returncode == 1
    done = test("--update")
    assert done.returncode == 1
    assert "updated probe/tests/g/changed.txt" in done.stdout.splitlines()
    assert (folder / "tests" / "g" / "changed.txt").read_text() == "new\n"
    assert not (folder / "tests" / "g" / "broken.txt").exists()
    assert test("-k", "changed").returncode == 0


def test_a_case_that_passes_at_a_later_attempt_is_flaky(
    executor: Executor, skill: Callable[..., Path], runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = skill("cases:\n  - {name: a, run: 'true', retries: 2}\n  - {name: b, run: 'true'}\n")
    bad = Outcome((Mismatch(where="exit", expected="0", got="1"),), ())
    seen: list[str] = []

    def compare_badly_once(instance: Instance, result: ExecResult, _files: object) -> Outcome:
        seen.append(f"{instance.name} {result.session_id}")
        return bad if seen.count(seen[-1]) == 1 and len(seen) in (1, 3) else Outcome((), ())

    monkeypatch.setattr(runner, "compare", compare_badly_once)
    report = asyncio.run(runner.run(runner.Plan(discover(folder), executor.settings, runtimes=[runtime])))
    assert [(found.verdict, found.attempts, found.flaky) for found in report.results] == [
        ("passed", 2, True),
        ("failed", 1, False),
    ]
    assert len(set(seen)) == 3  # each attempt has a session of its own


def test_selection(test: Invoke, skill: Callable[..., Path], runtime: str) -> None:
    skill("cases:\n  - {name: a one, run: 'true'}\n  - {name: a two, run: 'true'}\n")
    skill("cases:\n  - {name: b, run: 'false'}\n", name="other")
    done = test("-v", "-k", "probe and not one")
    assert done.stdout.splitlines()[0].startswith(f"passed  probe::a two [{runtime}] ")
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, f"probe [{runtime}]: 1 passed")
    assert test(targets=("other",)).returncode == 1
    nothing = test("-k", "nonsense")
    assert (nothing.returncode, "no case is meant by -k 'nonsense'" in nothing.stderr) == (125, True)


def test_only_skills_that_changed(test: Invoke, skill: Callable[..., Path], root: Path, runtime: str) -> None:
    one = "cases:\n  - {name: a, run: 'true'}\n"
    skill(one)
    other = skill(one, name="other")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    done = test("--changed-since", "HEAD")
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing has changed since HEAD" in done.stderr
    (other / "SKILL.md").write_text(SKILL.format(name="other") + "More.\n")
    done = test("--changed-since", "HEAD")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"other [{runtime}]: 1 passed")
    assert test("--changed-since", "no-such").returncode == 125


def test_what_the_executor_cannot_do_is_125_and_not_a_failed_case(
    test: Invoke, skill: Callable[..., Path]
) -> None:
    folder = skill("cases:\n  - {name: a, run: 'true'}\n")
    for text, message in (
        ("cases:\n  - {name: a}\n", "probe/tests/a.yaml:2: give one of `run`, `argv` and `script`"),
        ("cases: [\n", "is not YAML"),
    ):
        (folder / "tests" / "a.yaml").write_text(text)
        done = test()
        assert (done.returncode, message in done.stderr) == (125, True)
    (folder / "tests" / "a.yaml").unlink()
    done = test()
    assert (done.returncode, "there is no case in these skills" in done.stderr) == (125, True)
    assert test("--runtime", "nonsense").returncode == 125


def test_a_broken_skill_is_an_error_of_its_cases_alone(
    test: Invoke, skill: Callable[..., Path], runtime: str
) -> None:
    broken = skill("cases:\n  - {name: a, run: 'true'}\n", name="broken")
    (broken / "SKILL.md").write_bytes(b"\0\0")
    skill("cases:\n  - {name: a, run: 'true'}\n")
    done = test()
    assert done.returncode == 125
    assert f"broken [{runtime}]: 1 error" in done.stdout.splitlines()
    assert f"probe [{runtime}]: 1 passed" in done.stdout.splitlines()


def test_a_case_for_another_runtime_is_skipped(
    test: Invoke, skill: Callable[..., Path], runtime: str
) -> None:
    other = {"local": "container", "container": "local"}[runtime]
    skill(
        f"cases:\n  - {{name: a, run: 'true', runtime: {other}}}\n"
        f"  - {{name: b, run: 'true', runtime: {runtime}}}\n"
    )
    done = test("-v")
    assert f"skipped probe::a [{runtime}] 0.00 s: only for {other}" in done.stdout.splitlines()
    assert done.returncode == 0


def test_many_cases_side_by_side(test: Invoke, skill: Callable[..., Path], runtime: str) -> None:
    many = "[" + ", ".join(f"{{n: {n}}}" for n in range(MANY)) + "]"
    skill(
        "cases:\n  - name: 'number {{n}}'\n"
        "    run: test ! -e work/mark && echo {{n}} | tee work/mark out/{{n}}.txt\n"
        f"    parametrize: {many}\n"
        "    expect: {stdout: '{{n}}', files: [{glob: 'out/*', count: 1}, {glob: 'out/{{n}}.txt'}]}\n"
    )
    for _round in range(ROUNDS):
        done = test("-j", "8")
        lines = done.stdout.splitlines()
        assert (done.returncode, lines[0]) == (0, f"probe [{runtime}]: {MANY} passed"), done.stdout
        print(lines[-1])


def test_sandboxes_for_the_next_cases_are_started_ahead(
    executor: Executor, skill: Callable[..., Path], runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Recording(AsyncExecutor):
        def __init__(self, *, pool: PoolSettings, **rest: Any) -> None:
            super().__init__(pool=pool, **rest)
            sizes.append(pool.size)

    monkeypatch.setattr(runner, "AsyncExecutor", Recording)
    folder = skill("cases:\n" + "".join(f"  - {{name: c{n}, run: 'true'}}\n" for n in range(4)))
    cases = discover(folder)
    mine = executor.settings.model_copy(update={"pool": PoolSettings(size=1, max=3)})
    for chosen, jobs, settings in ((cases[:1], 1, None), (cases, 2, None), (cases[:1], 4, mine)):
        plan = runner.Plan(chosen, settings or executor.settings, runtimes=[runtime], jobs=jobs)
        report = asyncio.run(runner.run(plan))
        assert [found.verdict for found in report.results] == ["passed"] * len(chosen)
    assert sizes == [0, 2, 1]  # one case needs none; never more than there are; the operator's count first


def test_the_projects_own_skills_pass(test: Invoke, skills_root: Path, runtime: str) -> None:
    done = test("-j", "4", targets=(str(Path(__file__).parents[2] / "skills"),))
    assert done.stdout.splitlines()[:4] == [
        f"heatmap-png [{runtime}]: 4 passed",
        f"log-digest [{runtime}]: 5 passed",
        f"sales-report [{runtime}]: 7 passed",
        f"table-convert [{runtime}]: 9 passed",
    ]
    assert done.returncode == 0


def lint(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return forked.run("skills", "lint", *words, text=True, cwd=cwd)


def test_lint_as_it_is_typed(root: Path, skill: Callable[..., Path]) -> None:
    folder = skill("cases:\n  - {name: a, run: 'true'}\n", run_sh="#!/bin/bash\necho 1\n")
    done = lint(cwd=folder.parent.parent)
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "skills/probe/run.sh:1: warning script-mode: its mode is 644",
    )
    assert done.stderr.splitlines()[-1] == "executor: 1 skill: 1 warning"
    assert lint("--strict", cwd=root.parent).returncode == 1
    assert lint("--strict", "--ignore", "script-mode", cwd=root.parent).returncode == 0
    fixed = lint("--strict", "--fix", cwd=root.parent)
    assert (fixed.returncode, fixed.stdout, os.access(folder / "run.sh", os.X_OK)) == (0, "", True)
    (folder / "SKILL.md").write_text("nothing\n")
    assert lint("--format", "sarif", cwd=root.parent).returncode == 1
    assert lint("no-such-folder", cwd=root.parent).returncode == 125


def test_the_github_action_runs_the_installed_commands(
    executor: Executor, runtime: str, skill: Callable[..., Path], tmp_path: Path
) -> None:
    """The steps of action.yml as GitHub runs them: bash, the inputs in variables."""
    folder = skill(FAILING, name="with blank")
    (folder / "SKILL.md").write_text(SKILL.format(name="with blank"))
    bin_folder = tmp_path / "executor" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "executor").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m executor.cli "$@"\n')
    (bin_folder / "executor").chmod(0o755)
    inputs = {
        "SKILLS": "skills/with blank\n\n",
        "RUNTIME": runtime,
        "JOBS": "2",
        "STRICT": "true",
        "REPORTS": "reports",
        "RUNNER_TEMP": str(tmp_path),
    }
    action = yaml.safe_load((Path(__file__).parents[2] / "action.yml").read_text("utf-8"))
    steps = {step["name"]: step for step in action["runs"]["steps"]}
    done = {}
    for name in ("Lint", "Test"):
        step = steps[name]
        assert set(step["env"]) <= set(inputs)
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done[name] = subprocess.run(
            line, env={**os.environ, **inputs}, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
    assert done["Lint"].returncode == 1
    assert done["Lint"].stdout.startswith(
        "::error file=skills/with blank/SKILL.md,line=2,title=name-characters::"
    )
    assert done["Test"].returncode == 1
    assert "::error file=skills/with blank/tests/a.yaml,line=2," in done["Test"].stdout
    assert sorted(file.name for file in (tmp_path / "reports").iterdir()) == ["junit.xml", "report.html"]
