"""Skills from elsewhere run like those of a folder, on every runtime, without a network in the sandbox."""

from __future__ import annotations

from pathlib import Path

from executor import AsyncExecutor, Executor
from executor.settings import load
from executor.skills.sources.base import Listing, SkillSource
from executor.skills.sources.directory import DirectorySource
from tests.sources.publish import S3, Web, as_tar, as_zip, commit, skill, write_folder

SCRIPT = b"import pathlib, sys\nprint(pathlib.Path('data.txt').read_text(), sys.argv[1])\n"


def test_a_skill_from_an_archive_and_one_from_a_bucket_run(runtime: str, web: Web, s3: S3) -> None:
    web.files["/a.tgz"] = as_tar(
        {
            "one/SKILL.md": skill("one"),
            "one/x.py": SCRIPT,
            "one/data.txt": b"1",
            "one/run.sh!": b"#!/bin/sh\nid -u",
        }
    )
    s3.put({"two/SKILL.md": skill("two"), "two/x.py": SCRIPT, "two/data.txt": b"2"})
    with Executor(skills=[f"{web.url}/a.tgz", s3.root("refresh=0")], runtime=runtime) as made:
        assert [found.slug for found in made.repository.skills()] == ["one", "two"]
        with made.session() as session:
            assert session.exec(["python3", "x.py", "a"], skill="one").stdout == "1 a\n"
            assert session.exec(["./run.sh"], skill="one").status == "ok"
            assert session.exec(["python3", "x.py", "b"], skill="two").stdout == "2 b\n"
            s3.put({"two/SKILL.md": skill("two"), "two/x.py": SCRIPT, "two/data.txt": b"3"})
            made.repository.renew()
            session.load("two")
            assert session.exec(["python3", "x.py", "b"], skill="two").stdout == "3 b\n"


FEW = {
    "download": (100, "larger than 100 bytes"),
    "file": (10, "larger than 10 bytes"),
    "total": (20, "unpacks to more than 20 bytes"),
    "entries": (2, "more than 2 "),
    "ratio": (1, "at most 1 for 1"),
}


def test_what_a_source_may_cost_is_a_setting(web: Web, tmp_path: Path) -> None:
    files = {"one/SKILL.md": skill("one"), "one/zeros": bytes(4_200_000), "one/x.py": SCRIPT}
    web.files["/a.tgz"] = as_tar(files)
    (tmp_path / "a.zip").write_bytes(as_zip(files))
    commit(files, tmp_path / "repo")
    roots = [f"{web.url}/a.tgz", f"{tmp_path}/a.zip", f"git+file://{tmp_path}/repo"]
    for name, (value, says) in FEW.items():
        settings = load({"skills": roots}, {"EXECUTOR_SOURCES": f"{{{name}: {value}}}"})
        told = AsyncExecutor(settings=settings).repository.problems()
        wanted = [problem for problem in told if name != "ratio" or "repo" not in problem.where]
        assert len(wanted) == 3 - (name == "ratio")  # git packs as it likes: only what comes out counts
        for problem in wanted:
            assert says in problem.reason and f"raise `{name}` of the setting `sources`" in problem.reason
    web.before = lambda request: request.rfile.read(100_000_000) is not None  # it never answers
    settings = load({"skills": [f"{web.url}/b.tgz"]}, {"EXECUTOR_SOURCES": "{seconds: 0.3}"})
    assert "not fetched within 0.3 s" in AsyncExecutor(settings=settings).repository.problems()[0].reason
    web.before = None
    generous = load({"skills": roots}, {"EXECUTOR_SOURCES": "{ratio: 2000, total: 1g}"})
    assert all(problem.hidden for problem in AsyncExecutor(settings=generous).repository.problems())


class Own(SkillSource):
    """A source that somebody else wrote."""

    id = "own"

    def __init__(self, inner: SkillSource) -> None:
        self.inner = inner

    def list(self) -> Listing:
        return self.inner.list()

    def refresh(self) -> None:
        raise OSError("it is broken")


def test_a_source_of_ones_own_stands_among_roots(tmp_path: Path) -> None:
    root = write_folder({"one/SKILL.md": skill("one")}, tmp_path / "one")
    other = write_folder({"two/SKILL.md": skill("two")}, tmp_path / "two")
    made = Executor(skills=[Own(DirectorySource(root)), other])
    assert made.settings.skills == ("own", str(other))
    assert [found.slug for found in made.repository.skills()] == ["one", "two"]
    made.repository.refresh()  # whatever it raises is its own affair
    assert made.repository.named("one").slug == "one"
    assert [(p.where, p.reason) for p in made.repository.problems()] == [
        ("own", "could not be looked at again: OSError: it is broken")
    ]
    made.close()
