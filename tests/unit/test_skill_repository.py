"""Which skills a list of roots offers, which one a name or path means, and what is said about the rest."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from executor.errors import SkillNotFoundError, SkillUnreadableError
from executor.skills.document import MAX_BYTES
from executor.skills.repository import MAX_DEPTH, Problem, Repository
from executor.skills.sources import directory
from executor.skills.sources.directory import WORTH


def make(folder: Path, name: str = "", description: str = "d", file: str = "SKILL.md") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    name = name or folder.name
    (folder / file).write_text(f"---\nname: {name}\ndescription: {description}\n---\nbody\n")
    return folder


def slugs(repo: Repository) -> list[str]:
    return [skill.slug for skill in repo.skills()]


def reasons(repo: Repository) -> dict[str, str]:
    return {problem.path.name: problem.reason for problem in repo.problems()}


def test_skills_are_listed_by_slug_at_any_depth(tmp_path: Path) -> None:
    """trpc-1.1.1, PA-01, WN-01, TH-15"""
    make(tmp_path / "b")
    make(tmp_path / "a", name="Alpha")
    make(tmp_path / "group" / "c")
    make(tmp_path / "b" / "examples" / "nested")
    (tmp_path / "no-skill").mkdir()
    (tmp_path / "README.md").write_text("x")
    repo = Repository([tmp_path])
    assert [(s.slug, s.name, s.path) for s in repo.skills()] == [
        ("a", "Alpha", tmp_path / "a"),
        ("b", "b", tmp_path / "b"),
        ("c", "c", tmp_path / "group" / "c"),
        ("nested", "nested", tmp_path / "b" / "examples" / "nested"),
    ]
    assert repo.problems() == []


def test_a_root_may_be_a_skill_itself(tmp_path: Path) -> None:
    make(tmp_path / "one")
    assert slugs(Repository([tmp_path / "one"])) == ["one"]


def test_a_missing_root_is_empty_and_no_error(tmp_path: Path) -> None:
    """trpc-1.1.2, ref-9"""
    repo = Repository([tmp_path / "none", "", str(tmp_path)])
    assert (repo.skills(), repo.problems()) == ([], [])
    make(tmp_path / "none" / "a")
    repo.refresh()
    assert slugs(repo) == ["a"]


@pytest.mark.parametrize("folder", [".git", "node_modules", "__pycache__", ".venv"])
def test_folders_of_tools_are_not_searched(tmp_path: Path, folder: str) -> None:
    make(tmp_path / folder / "x")
    make(tmp_path / ".claude" / "skills" / "y")
    assert slugs(Repository([tmp_path])) == ["y"]


def test_the_earlier_root_wins_and_the_other_place_is_named(tmp_path: Path) -> None:
    """TH-06, trpc-1.1.5, trpc-1, ref-1"""
    first = make(tmp_path / "r1" / "calc", description="one")
    second = make(tmp_path / "r2" / "calc", description="two")
    repo = Repository([tmp_path / "r1", tmp_path / "r2"])
    assert [skill.document.description for skill in repo.skills()] == ["one"]
    assert repo.find("calc").document.description == "one"
    assert repo.problems() == [
        Problem(second, f"hidden by {first}, which comes first and has the same folder name 'calc'")
    ]


def test_a_name_of_an_earlier_root_hides_it_in_a_later_one(tmp_path: Path) -> None:
    first = make(tmp_path / "r1" / "calc-mine", name="calc")
    second = make(tmp_path / "r2" / "calc", name="calc")
    repo = Repository([tmp_path / "r1", tmp_path / "r2"])
    assert slugs(repo) == ["calc-mine"]
    assert repo.find("calc").path == first
    assert repo.problems() == [
        Problem(second, f"hidden by {first}, which comes first and has the same name 'calc'")
    ]


def test_two_skills_of_one_root_may_share_a_name(tmp_path: Path) -> None:
    first = make(tmp_path / "a", name="same")
    second = make(tmp_path / "b", name="same")
    repo = Repository([tmp_path])
    assert slugs(repo) == ["a", "b"]
    assert (repo.find("same").path, repo.find("b").path) == (first, second)
    assert repo.problems() == [
        Problem(second, f"has the same name as {first} ('same'); ask for 'b' to get it")
    ]


def test_within_a_root_the_nearer_folder_wins(tmp_path: Path) -> None:
    """trpc-1.1.5"""
    make(tmp_path / "a" / "examples" / "z", description="example")
    make(tmp_path / "z", description="real")
    repo = Repository([tmp_path])
    assert repo.find("z").document.description == "real"
    assert len(repo.problems()) == 1


def test_one_root_inside_another_or_given_twice_gives_no_duplicates(tmp_path: Path) -> None:
    """trpc-1.1.2"""
    make(tmp_path / "skills" / "a")
    repo = Repository([tmp_path / "skills", tmp_path, tmp_path / "skills" / ".." / "skills"])
    assert (slugs(repo), repo.problems()) == (["a"], [])


BROKEN = {
    "binary": (b"{\\rtf1}", "the SKILL.md of 'bad' is an RTF document, not text"),
    "too large": (b"x" * (MAX_BYTES + 1), "the SKILL.md of 'bad' is larger than 1,048,576 bytes"),
}


@pytest.mark.parametrize("data, reason", BROKEN.values(), ids=BROKEN)
def test_a_broken_skill_is_told_and_hides_no_other(tmp_path: Path, data: bytes, reason: str) -> None:
    """PA-05, ref-8"""
    make(tmp_path / "r1" / "good")
    (tmp_path / "r1" / "bad").mkdir()
    (tmp_path / "r1" / "bad" / "SKILL.md").write_bytes(data)
    repo = Repository([tmp_path / "r1", tmp_path / "r2"])
    assert (slugs(repo), repo.problems()) == (["good"], [Problem(tmp_path / "r1" / "bad", reason)])
    with pytest.raises(SkillUnreadableError, match=r"'bad' at .*/r1/bad cannot be used: the SKILL.md"):
        repo.find("bad")
    with pytest.raises(SkillUnreadableError, match="cannot be used"):
        repo.find(tmp_path / "r1" / "bad")
    make(tmp_path / "r2" / "bad", description="spare")
    repo.refresh()
    assert repo.find("bad").document.description == "spare"


def test_a_skill_file_that_is_no_file_is_told_without_waiting(tmp_path: Path) -> None:
    for name in ("pipe", "folder", "gone", "self"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "SKILL.md")
    (tmp_path / "folder" / "SKILL.md").mkdir()
    (tmp_path / "gone" / "SKILL.md").symlink_to("nowhere.md")
    (tmp_path / "self" / "SKILL.md").symlink_to("SKILL.md")
    repo = Repository([tmp_path])
    assert repo.skills() == []
    assert reasons(repo) == {
        "pipe": "its SKILL.md is not a regular file",
        "gone": "its SKILL.md is a link to nothing",
        "self": "its SKILL.md cannot be read: Too many levels of symbolic links",
    }


def test_a_skill_file_may_be_a_link_inside_the_roots_only(tmp_path: Path) -> None:
    (tmp_path / "host.md").write_text("secret")
    (tmp_path / "root" / "commands").mkdir(parents=True)
    (tmp_path / "root" / "commands" / "x.md").write_text("fine")
    for name, target in {"inside": "../commands/x.md", "outside": "../../host.md"}.items():
        (tmp_path / "root" / name).mkdir()
        (tmp_path / "root" / name / "SKILL.md").symlink_to(target)
    repo = Repository([tmp_path / "root"])
    assert [(skill.slug, skill.document.body) for skill in repo.skills()] == [("inside", "fine")]
    host = tmp_path / "host.md"
    assert reasons(repo) == {"outside": f"its SKILL.md links to {host}, outside the skill and the roots"}


@pytest.mark.parametrize("file", ["skill.md", "Skill.md", "SKILL.MD"])
def test_the_file_name_may_be_in_any_case(tmp_path: Path, file: str) -> None:
    make(tmp_path / "a", description="variant", file=file)
    repo = Repository([tmp_path])
    assert repo.find("a").document.description == "variant"
    assert repo.find(tmp_path / "a" / file).document.description == "variant"
    make(tmp_path / "a", description="exact")
    repo.refresh()
    assert repo.find("a").document.description == "exact"


def test_a_folder_link_in_a_root_is_followed_under_its_own_name(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere" / "real", name="real")
    make(tmp_path / "elsewhere" / "group" / "member")
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "elsewhere" / "real")
    (root / "team").symlink_to(tmp_path / "elsewhere" / "group")
    (root / "gone").symlink_to(tmp_path / "nowhere")
    (root / "itself").symlink_to("itself")
    repo = Repository([root])
    assert [(s.slug, s.path) for s in repo.skills()] == [
        ("linked", tmp_path / "elsewhere" / "real"),
        ("member", tmp_path / "elsewhere" / "group" / "member"),
    ]
    assert repo.find(root / "linked").slug == "linked"
    assert reasons(repo) == {
        "gone": "is a link to nothing",
        "itself": "cannot be listed: Too many levels of symbolic links",
    }


def test_links_deeper_down_add_nothing(tmp_path: Path) -> None:
    make(tmp_path / "outside")
    make(tmp_path / "root" / "a")
    (tmp_path / "root" / "a" / "refs").mkdir()
    (tmp_path / "root" / "a" / "refs" / "o").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "a" / "refs" / "a").symlink_to("../../a")
    repo = Repository([tmp_path / "root"])
    assert (slugs(repo), repo.problems()) == (["a"], [])


def test_cycles_of_links_end(tmp_path: Path) -> None:
    make(tmp_path / "root" / "a")
    (tmp_path / "root" / "up").symlink_to("..")
    (tmp_path / "root" / "here").symlink_to(".")
    (tmp_path / "root" / "a" / "loop").symlink_to("..")
    assert slugs(Repository([tmp_path / "root"])) == ["a"]


def test_depth_and_number_are_bounded_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*["d"] * (MAX_DEPTH - 1))
    make(deep / "seen")
    make(deep / "d" / "unseen")
    repo = Repository([tmp_path])
    assert slugs(repo) == ["seen"]
    assert reasons(repo) == {"unseen": f"was not searched: more than 12 levels below the root {tmp_path}"}
    monkeypatch.setattr(directory, "MAX_FOLDERS", 3)
    repo.refresh()
    assert repo.problems() == [Problem(tmp_path, "was searched in part: more than 3 folders")]


def test_edits_and_deletions_are_seen_at_once_and_new_folders_after_refresh(tmp_path: Path) -> None:
    """trpc-1.1.6, trpc-1.1.8, trpc-8, TH-12"""
    make(tmp_path / "a", description="old")
    make(tmp_path / "b")
    repo = Repository([tmp_path])
    assert slugs(repo) == ["a", "b"]
    make(tmp_path / "a", description="new")
    (tmp_path / "b" / "SKILL.md").unlink()
    make(tmp_path / "c")
    assert [(s.slug, s.document.description) for s in repo.skills()] == [("a", "new")]
    assert repo.problems() == []
    repo.refresh()
    assert slugs(repo) == ["a", "c"]


def test_an_edit_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    file = make(tmp_path / "a", description="one") / "SKILL.md"
    repo = Repository([tmp_path])
    assert repo.skills()[0].document.description == "one"
    before = file.stat()
    time.sleep(0.02)  # a tick of the kernel's file clock
    make(tmp_path / "a", description="two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert repo.skills()[0].document.description == "two"


def test_an_untouched_file_is_read_once(tmp_path: Path) -> None:
    make(tmp_path / "a")
    repo = Repository([tmp_path])
    document = repo.skills()[0].document
    repo.refresh()
    assert repo.skills()[0].document is document


def test_a_large_root_is_parsed_once_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKILLS_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "root"
    folders = [make(root / f"s{number:03}", description=f"d{number}") for number in range(WORTH + 10)]
    time.sleep(0.03)  # what is younger than a tick of the file clock is not remembered
    first = Repository([root]).skills()
    read: list[str] = []
    parse = directory.parse
    monkeypatch.setattr(
        directory, "parse", lambda data, *, folder: read.append(folder) or parse(data, folder=folder)
    )
    assert Repository([root]).skills() == first  # as another process would
    assert read == []
    make(folders[3], description="new")
    assert Repository([root]).find("s003").document.description == "new"
    assert read == ["s003"]
    # A store that is no store any more costs its use and nothing else.
    (tmp_path / "cache" / "parsed.sqlite").write_bytes(b"nonsense" * 1000)
    assert len(Repository([root]).skills()) == WORTH + 10
    assert len(read) == WORTH + 11


def test_a_deleted_skill_gives_way_to_the_one_it_hid(tmp_path: Path) -> None:
    make(tmp_path / "r1" / "a", description="one")
    make(tmp_path / "r2" / "a", description="two")
    repo = Repository([tmp_path / "r1", tmp_path / "r2"])
    assert repo.find("a").document.description == "one"
    (tmp_path / "r1" / "a" / "SKILL.md").unlink()
    assert repo.find("a").document.description == "two"


def test_an_unknown_name_is_looked_for_once_more(tmp_path: Path) -> None:
    repo = Repository([tmp_path])
    assert repo.skills() == []
    make(tmp_path / "late")
    assert repo.find("late").path == tmp_path / "late"


@pytest.mark.parametrize(
    "name, slug",
    [
        ("pdf", "pdf"),
        ("PDF", "pdf"),
        ("Sales Report", "sales-report"),
        ("sales report", "sales-report"),
        ("CI/CD Pipeline", "ci"),
        ("My Folder", "my-folder"),
        ("other", "x"),
        ("x", "x"),
    ],
)
def test_a_name_means_slug_then_name_then_folder_then_any_case(tmp_path: Path, name: str, slug: str) -> None:
    make(tmp_path / "pdf")
    make(tmp_path / "sales-report", name="Sales Report")
    make(tmp_path / "ci", name="CI/CD Pipeline")
    make(tmp_path / "My Folder", name="m")
    make(tmp_path / "w", name="x")
    make(tmp_path / "x", name="other")
    assert Repository([tmp_path]).find(name).slug == slug


def test_a_path_is_found_without_a_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "s" / "a")
    monkeypatch.setattr(directory, "_scan", None)
    monkeypatch.chdir(tmp_path)
    repo = Repository([tmp_path])
    for path in (folder, str(folder), f"{folder}/", "s/a", "./s/a/", "s/a/SKILL.md", Path("s/a")):
        assert (repo.find(path).path, repo.find(path).slug) == (folder, "a")
    monkeypatch.chdir(folder)
    assert repo.find(".").slug == "a"
    assert repo.find("./SKILL.md").slug == "a"


def test_a_bare_word_is_a_skill_of_the_roots_before_a_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "root" / "a", description="root")
    make(tmp_path / "here" / "a", description="here")
    make(tmp_path / "here" / "b", description="here")
    monkeypatch.chdir(tmp_path / "here")
    repo = Repository([tmp_path / "root"])
    assert repo.find("a").document.description == "root"
    assert repo.find("./a").document.description == "here"
    assert repo.find("b").document.description == "here"


def test_what_a_model_names_never_leaves_the_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = make(tmp_path / "outside")
    (tmp_path / "root").mkdir()
    monkeypatch.chdir(tmp_path)
    repo = Repository([tmp_path / "root"])
    for name in (str(outside), "outside", "./outside", "root/../outside"):
        with pytest.raises(SkillNotFoundError):
            repo.named(name)


def test_an_unknown_skill_is_answered_with_near_names_and_the_roots(tmp_path: Path) -> None:
    """trpc-1.1.7"""
    make(tmp_path / "sales-report")
    with pytest.raises(SkillNotFoundError) as caught:
        Repository([tmp_path]).find("sale-report")
    assert caught.value.message == f"there is no skill 'sale-report' in {tmp_path}"
    assert caught.value.hint == "did you mean 'sales-report'?"


def test_a_hidden_skill_is_explained(tmp_path: Path) -> None:
    first = make(tmp_path / "r1" / "mine", name="calc")
    make(tmp_path / "r2" / "calc-2", name="calc")
    with pytest.raises(SkillNotFoundError) as caught:
        Repository([tmp_path / "r1", tmp_path / "r2"]).find("calc-2")
    assert f"hidden by {first}" in caught.value.hint


@pytest.mark.parametrize(
    "asked",
    ["", "a\0b", "/nowhere/a", "./nowhere", "no/where", "~nobody/x", "\ud800", "x" * 5000, "/" + "x" * 5000],
)
def test_nonsense_is_not_found(tmp_path: Path, asked: str) -> None:
    for roots in ([], [tmp_path]):
        with pytest.raises(SkillNotFoundError) as caught:
            Repository(roots).find(asked)
        assert caught.value.hint


def test_a_path_without_a_skill_says_so(tmp_path: Path) -> None:
    with pytest.raises(SkillNotFoundError, match=r"the folder has no SKILL\.md"):
        Repository([]).find(tmp_path)
    with pytest.raises(SkillNotFoundError, match="no such folder"):
        Repository([]).find(tmp_path / "none")


def test_a_folder_with_an_unsafe_name_gets_a_safe_slug(tmp_path: Path) -> None:
    """trpc-1.8.5"""
    make(tmp_path / "-21risk", name="21 risk")
    skill = Repository([tmp_path]).find("-21risk")
    assert skill.slug.startswith("21risk-")
    assert skill.path == tmp_path / "-21risk"
