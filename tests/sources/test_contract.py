"""One set of checks of `SkillSource` that every kind passes, with the same skills published in each way."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.errors import BadPathError, SkillNotFoundError
from executor.skills.contents import contents, read_resource
from executor.skills.repository import Repository
from executor.skills.sources.base import SkillSource
from executor.skills.sources.directory import DirectorySource
from executor.skills.sources.roots import open_source
from tests.sources.publish import KINDS, Files, Folder, Kind, Web, skill, write_folder

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
LATIN = b"caf\xe9\n"
FILES: Files = {
    "alpha/SKILL.md": (
        b"---\nname: Alpha One\ndescription: 'does: things #1'\nlicense: MIT\n"
        b"metadata:\n  a: {b: c}\n---\n# A\r\n\xc3\xa9\n"
    ),
    "alpha/scripts/run.sh!": b"#!/bin/sh\necho hi\n",
    "alpha/references/a b.md": b"\xef\xbb\xbftext\r\n",
    "alpha/assets/logo.png": PNG,
    "alpha/assets/latin.txt": LATIN,
    "alpha/empty": b"",
    "group/beta/SKILL.md": b"no front matter",
    "group/beta/sub/gamma/skill.md": skill("gamma"),
    "README.md": b"not of a skill",
}
FEW: Files = {
    name: FILES[name] for name in ("alpha/SKILL.md", "alpha/assets/latin.txt", "group/beta/SKILL.md")
}
BROKEN = {"broken/SKILL.md": b"{\\rtf1}"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path, web: Web) -> Kind:
    """A kind of source."""
    s3 = request.getfixturevalue("s3") if request.param == "bucket" else None
    return KINDS[request.param](tmp_path, web, s3)


@pytest.fixture
def folder(tmp_path: Path) -> DirectorySource:
    """The same skills in a folder, to compare with."""
    return DirectorySource(write_folder(FILES, tmp_path / "compared"))


def described(source: SkillSource) -> dict[str, object]:
    return {name: found.document for name, found in source.list().first().items()}


def test_the_same_skills_are_the_same_from_everywhere(kind: Kind, folder: DirectorySource) -> None:
    """TH-01, TH-02, TH-03, TH-04, TH-05, TH-33, TH-34, ref-4, ref-8."""
    kind.publish({**FILES, **BROKEN})
    source = open_source(kind.root)
    listing = source.list()
    assert described(source) == described(folder)
    assert sorted(described(source)) == ["alpha", "beta", "gamma"]
    # A skill that cannot be used is told, with its slug, and hides nothing.
    told = {problem.slug: problem.reason for problem in listing.problems}
    assert told == (
        {"broken": "the SKILL.md of 'broken' is an RTF document, not text"} if kind.broken_too else {}
    )
    for found in listing.skills:
        assert source.id in found.origin and found.slug in found.origin
    assert source.fingerprint() == folder.fingerprint()
    # A look without news changes nothing.
    source.refresh()
    assert source.list() == listing

    same = {found.slug: found for found in folder.list().skills}
    for found in listing.skills:
        loaded = source.load(found.slug)
        assert loaded == found
        assert contents(found) == contents(same[found.slug])
        for resource in contents(found).resources:
            expected = read_resource(same[found.slug], resource.path)
            assert read_resource(found, resource.path) == expected
            assert source.read_resource(found.slug, resource.path) == expected
    alpha = listing.first()["alpha"]
    if kind.modes:
        modes = {
            name: bool((alpha.path / name).stat().st_mode & 0o111) for name in ("scripts/run.sh", "empty")
        }
        assert modes == {"scripts/run.sh": True, "empty": False}
    assert source.read_resource("alpha", "SKILL.md") == FILES["alpha/SKILL.md"]
    assert source.read_resource("alpha", "none") is None
    assert source.read_resource("none", "SKILL.md") is None and source.load("none") is None
    for bad in ("../beta/SKILL.md", "/etc/passwd", "a//b", "./SKILL.md", "", "a\0b"):
        with pytest.raises(BadPathError, match="must be a normalized relative path"):
            source.read_resource("alpha", bad)
    # Nobody can have the skill of a source write into it by mistake.
    if not isinstance(kind, Folder):
        assert all(not path.stat().st_mode & 0o222 for path in alpha.path.rglob("*") if path.is_file())


def test_edits_are_seen_and_change_the_fingerprint(kind: Kind) -> None:
    """TH-24, ref-4."""
    kind.publish(FEW)
    source = open_source(kind.root)
    first = source.list()
    was = source.fingerprint()
    old_text = read_resource(first.first()["alpha"], "assets/latin.txt")
    kind.publish({**FEW, "alpha/assets/latin.txt": b"cafe!\n"})
    source.refresh()
    assert source.fingerprint() != was
    assert source.read_resource("alpha", "assets/latin.txt") == b"cafe!\n"
    if not isinstance(kind, Folder):  # whoever still has the skill as it was can finish with it
        assert read_resource(first.first()["alpha"], "assets/latin.txt") == old_text
    kind.publish({"group/beta/SKILL.md": skill("beta", "new"), "delta/SKILL.md": skill("delta")})
    source.refresh()
    now = source.list().first()
    assert sorted(now) == ["beta", "delta"]
    assert now["beta"].document.description == "new"
    kind.publish(FEW)
    source.refresh()
    assert source.fingerprint() == was


def test_a_bad_source_hides_no_other_and_is_told_once(
    kind: Kind, tmp_path: Path, warnings: list[str]
) -> None:
    """TH-07, TH-08, TH-09, ref-2."""
    good = write_folder({"good/SKILL.md": skill("good")}, tmp_path / "good")
    kind.spoil()
    repository = Repository([kind.root, str(good)])
    assert [found.slug for found in repository.skills()] == ["good"]
    (problem,) = repository.problems()
    name = repository.sources[0].id
    assert problem.where == name
    repository.refresh()
    assert repository.problems() == [problem]
    with pytest.raises(SkillNotFoundError) as caught:
        repository.named("alpha")
    if isinstance(kind, Folder):
        assert "cannot be listed" in problem.reason
    else:
        assert "was skipped" in problem.reason
        assert name in caught.value.hint
        assert len(warnings) == 1 and name in warnings[0]
    # It comes back.
    kind.web.reset()
    if not isinstance(kind, Folder) and kind.s3 is None:
        kind.publish(FEW)
        repository.refresh()
        assert [found.slug for found in repository.skills()] == ["alpha", "beta", "good"]
        assert repository.problems() == []


def test_the_earlier_source_wins_and_both_are_named(kind: Kind, tmp_path: Path) -> None:
    """TH-06, TH-10, ref-1."""
    other = write_folder({"x/alpha/SKILL.md": skill("alpha", "other")}, tmp_path / "other")
    kind.publish(FEW)
    first, second = Repository([kind.root, str(other)]), Repository([str(other), kind.root])
    assert first.named("alpha").document.name == "Alpha One"
    assert second.named("alpha").document.description == "other"
    theirs = first.named("alpha").origin
    here = str(other / "x" / "alpha")
    assert [(p.where, p.reason) for p in first.problems()] == [
        (here, f"hidden by {theirs}, which comes first and has the same folder name 'alpha'")
    ]
    assert [(p.where, p.reason) for p in second.problems()] == [
        (theirs, f"hidden by {here}, which comes first and has the same folder name 'alpha'")
    ]
    assert first.fingerprint() != second.fingerprint()
    assert sorted(first.fingerprint().split("|")) == sorted(second.fingerprint().split("|"))
