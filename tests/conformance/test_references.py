"""Inputs by reference: artifacts, files of the host below the operator's roots, of the workspace, of skills.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executor import BadPathError, BadRequestError, Executor, Input, Session, Settings
from executor.errors import SkillNotFoundError
from executor.tools import SyncSkillToolset
from executor.workspace.artifacts import ArtifactStore


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the operator opened, and a secret beside it."""
    top = tmp_path_factory.mktemp("host")
    folder = top / "opened"
    (folder / "tree" / "sub").mkdir(parents=True)
    (folder / "a.csv").write_bytes(b"a,b\n")
    (folder / "tree" / "one.txt").write_text("1")
    (folder / "tree" / "sub" / "run.sh").write_text("echo hi\n")
    (folder / "tree" / "sub" / "run.sh").chmod(0o755)
    (top / "secret.txt").write_text("secret")
    (folder / "way-out").symlink_to(top / "secret.txt")
    (folder / "way-up").symlink_to(top)
    return folder


@pytest.fixture(scope="module")
def session(executor: Executor, skills_root: Path, opened: Path) -> Iterator[Session]:
    settings = Settings(host_inputs=(str(opened),), docker_host=executor.settings.docker_host)
    runtime = executor.settings.runtime
    with Executor(skills=[skills_root], runtime=runtime, settings=settings) as own, own.session() as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts", scope="user")


def test_an_artifact_comes_in_its_version_and_a_pin_keeps_it(session: Session, store: ArtifactStore) -> None:
    """trpc-1.9.1, trpc-1.9.4, trpc-38, trpc-39"""
    store.save("d.csv", b"zero")
    pinned = Input("artifact://d.csv", to="work/pinned.csv", pin=True)
    (first,) = session.stage_inputs([pinned], artifacts=store)
    assert (first.path, first.source) == ("work/pinned.csv", "artifact://d.csv@0")
    store.save("d.csv", b"one")
    both = session.stage_inputs([pinned, "artifact://d.csv", "artifact://d.csv@0"], artifacts=store)
    assert [one.source for one in both] == ["artifact://d.csv@0", "artifact://d.csv@1", "artifact://d.csv@0"]
    assert [one.path for one in both] == ["work/pinned.csv", "inputs/d.csv", "inputs/d.csv"]
    assert session.read("work/pinned.csv") == b"zero"
    # A pin belongs to a session and a place: the next session begins with the latest.
    assert store.resolve("artifact://d.csv", pin="another:/workspace/work/pinned.csv").version == 1
    with pytest.raises(BadRequestError, match="unsupported input"):
        session.stage_inputs(["artifact://d.csv", "http://x/y"], artifacts=store)
    with pytest.raises(BadRequestError, match="cannot be an artifact's name"):
        session.stage_inputs(["artifact://@0"], artifacts=store)


def test_files_of_the_host_come_from_opened_folders_only(session: Session, opened: Path) -> None:
    """trpc-1.9.2, trpc-40"""
    made = session.stage_inputs([f"host://{opened}/a.csv", Input(f"host://{opened}/tree", to="work/t")])
    assert [one.path for one in made] == ["inputs/a.csv", "work/t"]
    assert session.read("inputs/a.csv") == b"a,b\n"
    assert session.exec("cat work/t/one.txt; work/t/sub/run.sh").stdout == "1hi\n"
    outside = opened.parent / "secret.txt"
    for path in (
        outside,
        opened / "way-out",
        opened / "way-up" / "secret.txt",
        f"{opened}/../secret.txt",
        "/etc/hostname",
        "/does/not/exist",
    ):
        with pytest.raises(BadPathError, match="not below a folder that the operator opened"):
            session.stage_inputs([f"host://{path}"])
    with pytest.raises(BadPathError, match="no such file"):
        session.stage_inputs([f"host://{opened}/missing"])
    with pytest.raises(BadPathError, match="no absolute path"):
        session.stage_inputs(["host://a.csv"])


def test_without_opened_folders_nothing_of_the_host_comes(shared: Session, opened: Path) -> None:
    """trpc-40, ref-14; the session above is the control"""
    with pytest.raises(BadPathError, match="the operator opened"):
        shared.stage_inputs([f"host://{opened}/a.csv"])


def test_the_workspace_and_skills_are_copied_or_linked(session: Session) -> None:
    """trpc-1.9.3, trpc-1.9.4, trpc-41"""
    session.exec(
        "mkdir -p work/tree/deep && echo x > work/tree/deep/x && printf '#!/bin/sh\\necho ran' > work/r"
    )
    session.exec("chmod +x work/r")
    session.stage_inputs(
        [
            Input("workspace://work/tree", to="inputs/copy"),
            Input("workspace://work/r", to="inputs/"),
            Input("workspace://work/tree", to="work/link", mode="link"),
            Input("workspace://work/tree", to="work/inputs/far", mode="link"),
            Input("skill://log-digest/references/digest-json.md"),
            Input("skill://log-digest/scripts", to="work/scripts", mode="link"),
        ]
    )
    result = session.exec(
        "cat inputs/copy/deep/x work/link/deep/x; inputs/r; ls work/scripts/digest.sh; readlink work/link;"
        "cat inputs/far/deep/x"
    )
    assert result.stdout == "x\nx\nran\nwork/scripts/digest.sh\n/workspace/work/tree\nx\n", result
    assert b"digest" in session.read("inputs/digest-json.md")
    # A copy is one and a link is one.
    session.exec("echo y > work/tree/deep/x")
    assert session.exec("cat inputs/copy/deep/x work/link/deep/x").stdout == "x\ny\n"
    kept = Input("workspace://work/tree/deep/x", to="work/kept", pin=True)
    session.stage_inputs([kept])
    session.exec("echo z > work/tree/deep/x")
    session.stage_inputs([kept])
    assert session.read("work/kept") == b"y\n"


@pytest.mark.parametrize(
    "wanted",
    [
        "workspace://../../etc/hostname",
        "workspace://work/missing",
        "skill://log-digest/../../etc/passwd",
        "skill://log-digest/missing",
        Input("workspace://work", to="../victim", mode="link"),
        Input("workspace://work", to="/etc/victim", mode="link"),
        Input("workspace://work", to=".", mode="link"),
        Input("workspace://work", to="out", mode="link"),
        Input("workspace://work", to="work/inside"),
        Input("workspace://.", to="work/everything"),
    ],
    ids=str,
)
def test_nothing_leads_out_and_nothing_swallows_itself(session: Session, wanted: Input | str) -> None:
    """trpc-40, trpc-41"""
    session.put("work/there", b"")
    with pytest.raises(BadPathError):
        session.stage_inputs([wanted])
    assert session.stat("out") is not None and session.stat("work/there") is not None


def test_a_link_out_of_the_workspace_is_not_followed(session: Session) -> None:
    """trpc-41"""
    session.exec("ln -s /etc/passwd work/evil; mkdir -p work/d; ln -s /etc work/d/evil; echo ok > work/d/ok")
    with pytest.raises(BadPathError, match="it is a link"):
        session.stage_inputs(["workspace://work/evil"])
    session.stage_inputs([Input("workspace://work/d", to="work/e")])
    assert [info.name for info in session.list_files("work/e")] == ["ok"]
    (said,) = [one for one in session.exec("true").warnings if "left out" in one]
    assert "1 links" in said and "'evil'" in said
    # What a script laid in the way is replaced or refused, and never written through.
    session.exec("ln -s /etc work/way; ln -s ../out work/side")
    with pytest.raises(BadPathError):
        session.stage_inputs([Input("workspace://work/d/ok", to="work/way/ok")])
    session.stage_inputs([Input("workspace://work/d/ok", to="a';touch work/p;'")])
    assert session.stat("work/p") is None and session.read("a';touch work/p;'") == b"ok\n"


def test_a_skill_is_never_a_folder_of_the_host(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working folder is a skill, and so is a folder in it; the controls find both."""
    folder = tmp_path / "stray"
    (folder / "inner").mkdir(parents=True)
    for place in (folder, folder / "inner"):
        (place / "SKILL.md").write_text(f"---\nname: {place.name}\ndescription: x\n---\n")
        (place / "secret.txt").write_text("secret")
    monkeypatch.chdir(folder)
    for name in (".", "inner", "..", "~"):
        for reference in (f"skill://{name}", f"skill://{name}/secret.txt"):
            with pytest.raises(SkillNotFoundError):
                session.stage_inputs([Input(reference, to="work/stray")])
    assert session.load(".") == "/skills/stray" and session.load("inner") == "/skills/inner"


def test_a_skill_that_the_filter_hides_is_no_input_either(executor: Executor, shared: Session) -> None:
    """The same reference, seen and hidden."""
    reference = [{"from": "skill://log-digest/SKILL.md", "to": "inputs/seen.md"}]
    for visible in (True, False):
        tools = SyncSkillToolset(
            executor, session=shared, state=":memory:", filter=lambda _context, _skill, shown=visible: shown
        )
        result = tools.call("workspace_exec", {"command": "true", "inputs": reference})
        assert result.is_error is not visible
    assert "unknown skill: 'log-digest'" in result.text
    tools.close()


def test_a_bad_reference_stages_nothing_of_its_batch(session: Session) -> None:
    """trpc-1.9.5"""
    session.put("work/there", b"")
    for bad in (
        "ftp://x",
        "nothing",
        "skill://",
        "skill://nobody",
        Input("host:///tmp", mode="link"),
        "workspace:///",
    ):
        with pytest.raises((BadPathError, BadRequestError, SkillNotFoundError)):
            session.stage_inputs([Input("workspace://work/there", to="work/first"), bad])
        assert session.stat("work/first") is None


def test_runs_take_inputs(session: Session, opened: Path, skills_root: Path) -> None:
    """trpc-1.9.4, trpc-1.8.7"""
    session.put("work/there", b"")
    result = session.exec("cat inputs/b.csv", inputs=[Input(f"host://{opened}/a.csv", to="inputs/b.csv")])
    assert result.stdout == "a,b\n"
    with pytest.raises(BadRequestError, match="unsupported"):
        session.exec("touch work/never", inputs=["x://y"])
    assert session.stat("work/never") is None
    found = session.script(
        "log-digest",
        "scripts/digest.sh",
        args=["inputs/c.log"],
        inputs=[Input("workspace://work/there", to="inputs/c.log")],
    )
    assert found.status in ("ok", "error") and "(0 lines read)" in found.stderr, found
