"""Skills from elsewhere run like those of a folder, on every runtime, without a network in the sandbox."""

from __future__ import annotations

from executor import Executor
from tests.sources.publish import S3, Web, as_tar, skill

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
