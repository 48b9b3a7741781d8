"""Skills from elsewhere run like those of a folder, on every runtime, without a network in the sandbox."""

from __future__ import annotations

from pathlib import Path

from executor import Executor
from executor.skills.sources.base import Listing, SkillSource
from executor.skills.sources.directory import DirectorySource
from tests.sources.publish import S3, Web, as_tar, skill, write_folder

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
