"""Which skills a request may see, when a change of them shows, and where skills usually lie.

Ids in docstrings are rows; see tests/rows.yaml.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from executor import AsyncExecutor, BadRequestError
from executor.errors import SkillSourceError
from executor.settings import load
from executor.skills.catalogue import Summary, fingerprint, seen, summary
from executor.skills.levels import scoped_root, usual_roots
from executor.skills.repository import Repository
from executor.skills.sources.base import Listing, SkillSource
from executor.skills.sources.directory import DirectorySource
from executor.tools import SkillToolset, SyncSkillToolset, ToolResult


def write(folder: Path, description: str = "What it does", more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = (
        f"---\nname: {folder.name}\ndescription: {description}\n{more}---\n# {folder.name}: {description}\n"
    )
    (folder / "SKILL.md").write_text(text)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(
        tmp_path / "skills" / "notes",
        "Takes notes",
        "license: MIT\nallowed-tools: Read\ncompatibility: linux\n",
    )
    write(tmp_path / "skills" / "plain")
    return tmp_path / "skills"


def toolset(root: Path, **options: Any) -> SkillToolset:
    executor = AsyncExecutor(skills=[root], runtime="local")
    return SkillToolset(executor, **{"session": "s", "state": ":memory:", "artifacts": False, **options})


def call(tools: SkillToolset, name: str, arguments: Any = None) -> ToolResult:
    return asyncio.run(tools.call(name, arguments))


# -- the filter --


def test_a_filter_sees_the_request_and_the_summary(root: Path) -> None:
    """TH-02, trpc-1.6.1, trpc-23, WN-03, ref-21"""
    asked: list[tuple[Any, Summary]] = []

    def only(context: Any, skill: Summary) -> bool:
        asked.append((context, skill))
        return skill.name in (context or {}).get("skills", ())

    tools = toolset(root, filter=only)
    with tools.request({"skills": ["notes"]}):
        assert [skill.slug for skill in tools.skills()] == ["notes"]
        assert "plain" not in tools.system_prompt()
        assert tools.definitions()[0]["input"]["properties"]["skill"]["enum"] == ["notes"]
        assert not call(tools, "skill_load", {"skill": "notes"}).is_error
        for name in ("skill_load", "skill_list_docs", "read_skill_resource"):
            arguments = {"skill": "plain"} | ({"path": "SKILL.md"} if name == "read_skill_resource" else {})
            hidden = call(tools, name, arguments)
            assert hidden.structured["error"]["message"] == "unknown skill: 'plain'"
            assert "plain" not in hidden.structured["error"]["hint"]
    with tools.request({"skills": ["plain"]}):
        assert [skill.slug for skill in tools.skills()] == ["plain"]
    assert tools.skills() == []
    context, about = asked[0]
    assert context == {"skills": ["notes"]}
    assert (about.name, about.description, about.license) == ("notes", "Takes notes", "MIT")
    assert (about.compatibility, about.allowed_tools) == ("linux", ("Read",))
    assert about.source.startswith(str(root))


def test_an_empty_list_of_skills_offers_nothing(root: Path) -> None:
    """ref-7"""
    allowed: list[str] = []
    tools = toolset(root, profile="think", filter=lambda _context, skill: skill.name in allowed)
    assert (tools.definitions(), tools.system_prompt()) == ([], "")


def test_two_requests_at_once_keep_their_contexts(root: Path) -> None:
    tools = toolset(root, filter=lambda context, skill: skill.name == context)

    async def one(context: str) -> list[str]:
        with tools.request(context):
            await asyncio.sleep(0)
            return [skill.slug for skill in tools.skills()]

    async def both() -> list[list[str]]:
        return await asyncio.gather(one("notes"), one("plain"))

    assert asyncio.run(both()) == [["notes"], ["plain"]]


def test_a_filter_that_fails_hides_the_skill_and_is_logged(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_context: Any, skill: Summary) -> bool:
        if skill.name == "plain":
            raise RuntimeError("filter broke")
        return True

    assert [one.slug for one in seen(Repository([root]).skills(), broken, None)] == ["notes"]
    assert "'plain' is hidden" in caplog.text


def test_a_context_reaches_through_the_twin(root: Path) -> None:
    from executor import Executor

    executor = Executor(skills=[root], runtime="local")
    try:
        tools = SyncSkillToolset(
            executor,
            session="s",
            state=":memory:",
            artifacts=False,
            filter=lambda context, one: one.name == context,
        )
        with tools.request("plain"):
            assert tools.call("skill_load", {"skill": "notes"}).is_error
            assert not tools.call("skill_load", {"skill": "plain"}).is_error
    finally:
        executor.close()


# -- turns --


def test_a_change_shows_at_the_next_turn_and_in_new_loads(root: Path) -> None:
    """TH-11, TH-12, ref-5"""
    tools = toolset(root, mode="session")
    assert asyncio.run(tools.begin_turn()) is False
    first = call(tools, "skill_load", {"skill": "notes"})
    system, definitions = tools.system_prompt(), tools.definitions()
    write(root / "notes", "Writes memos")
    write(root / "late")
    assert (tools.system_prompt(), tools.definitions()) == (
        system,
        definitions,
    )  # the same bytes all turn long
    loaded = tools.state.get("notes")
    assert loaded is not None and "Takes notes" in loaded.body
    second = call(tools, "skill_load", {"skill": "notes"})
    assert "Writes memos" in second.text
    assert second.structured["version"] != first.structured["version"]
    assert asyncio.run(tools.begin_turn()) is True
    assert "Writes memos" in tools.system_prompt() and "Takes notes" not in tools.system_prompt()
    assert asyncio.run(tools.begin_turn()) is False


def test_the_fingerprint_of_the_turn_before_outlives_its_process(root: Path, tmp_path: Path) -> None:
    """TH-11"""
    state = tmp_path / "state.sqlite"
    assert asyncio.run(toolset(root, state=state).begin_turn()) is False
    assert asyncio.run(toolset(root, state=state).begin_turn()) is False
    write(root / "notes", "Writes memos")
    assert asyncio.run(toolset(root, state=state).begin_turn()) is True
    assert asyncio.run(toolset(root, state=state, agent="other").begin_turn()) is False


def test_a_declared_load_that_fails_begins_no_turn(root: Path) -> None:
    from executor.tools import LoadRequest

    tools = toolset(root)
    asyncio.run(tools.begin_turn())
    system = tools.system_prompt()
    write(root / "notes", "Writes memos")
    with pytest.raises(BadRequestError):
        asyncio.run(tools.begin_turn([LoadRequest("ghost")]))
    assert tools.system_prompt() == system


def test_prompt_and_enumeration_agree_when_a_skill_breaks(root: Path) -> None:
    """ref-3, ref-8"""
    tools = toolset(root, profile="think")
    (root / "notes" / "SKILL.md").write_bytes(b"\0\0")
    asyncio.run(tools.begin_turn())
    assert tools.definitions()[0]["input"]["properties"]["name"]["enum"] == ["plain"]
    assert "- plain" in tools.system_prompt() and "notes:" not in tools.system_prompt()


def test_a_problem_is_logged_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TH-09, ref-2"""
    (root / "broken").mkdir()
    (root / "broken" / "SKILL.md").write_bytes(b"\0\0")
    tools = toolset(root)
    with caplog.at_level(logging.WARNING, "executor.skills"):
        for _ in range(3):
            asyncio.run(tools.begin_turn())
        assert len([one for one in caplog.records if "broken" in one.getMessage()]) == 1
        (root / "broken" / "SKILL.md").unlink()
        asyncio.run(tools.begin_turn())
    assert len([one for one in caplog.records if "broken" in one.getMessage()]) == 1
    assert Repository([root]).problems() == []


def test_the_catalogues_fingerprint_goes_by_texts_and_not_by_places(root: Path, tmp_path: Path) -> None:
    """ref-4, TH-24"""
    write(tmp_path / "other" / "plain")
    write(
        tmp_path / "other" / "notes",
        "Takes notes",
        "license: MIT\nallowed-tools: Read\ncompatibility: linux\n",
    )
    there, here = Repository([tmp_path / "other"]), Repository([root])
    assert fingerprint(there.skills()) == fingerprint(here.skills())
    assert there.fingerprint().rpartition(":")[2] == here.fingerprint().rpartition(":")[2]
    before, whole = fingerprint(here.skills()), here.fingerprint()
    (root / "plain" / "data.bin").write_bytes(b"\0")
    assert fingerprint(here.skills()) == before  # only the whole covers every file
    assert here.fingerprint() != whole
    write(root / "plain", "Another")
    assert fingerprint(here.skills()) != before


def test_the_fingerprint_of_the_whole_names_every_source_in_order(root: Path, tmp_path: Path) -> None:
    """TH-10"""
    write(tmp_path / "second" / "more")
    both = Repository([root, tmp_path / "second"]).fingerprint().split("|")
    assert [one.rpartition(":")[0] for one in both] == [str(root), str(tmp_path / "second")]
    assert all(len(one.rpartition(":")[2]) == 64 for one in both)


# -- sources --


class Failing(SkillSource):
    """One that works, fails and works again."""

    def __init__(self, inner: DirectorySource) -> None:
        self.id, self.inner, self.broken, self.looks = "failing", inner, False, 0

    def list(self) -> Listing:
        if self.broken:
            raise SkillSourceError("it does not answer")
        return self.inner.list()

    def refresh(self) -> None:
        self.looks += 1
        if self.broken:
            raise SkillSourceError("it does not answer")
        self.inner.refresh()


def test_a_source_that_fails_hides_nothing_of_the_others(root: Path, tmp_path: Path) -> None:
    """TH-01, TH-07, TH-08, ref-2, ref-3"""
    write(tmp_path / "far" / "distant")
    source = Failing(DirectorySource(tmp_path / "far"))
    executor = AsyncExecutor(skills=[root], runtime="local")
    executor.repository = Repository([source, root])
    tools = SkillToolset(executor, session="s", profile="think", state=":memory:", artifacts=False)
    assert [skill.slug for skill in tools.skills()] == ["distant", "notes", "plain"]
    source.broken = True
    asyncio.run(tools.begin_turn())
    enum = tools.definitions()[0]["input"]["properties"]["name"]["enum"]
    assert enum == ["notes", "plain"] and "distant" not in tools.system_prompt()
    executor.repository.refresh()  # what fails is told and not raised
    assert source.looks >= 1
    told = [problem.reason for problem in executor.repository.problems()]
    assert told and all("it does not answer" in reason for reason in told)
    source.broken = False
    executor.repository.refresh()
    asyncio.run(tools.begin_turn())
    assert "distant" in tools.system_prompt() and executor.repository.problems() == []


class Slow(Failing):
    """One that is far away: it comes back once all of them have been asked."""

    interval = 60.0

    def __init__(self, inner: DirectorySource, all_asked: threading.Barrier, broken: bool) -> None:
        super().__init__(inner)
        self.id = f"slow-{id(self)}"
        self.all_asked, self.broken = all_asked, broken

    def refresh(self) -> None:
        self.all_asked.wait(timeout=20)
        super().refresh()


def test_sources_are_refreshed_side_by_side(root: Path, tmp_path: Path) -> None:
    """TH-08"""
    write(tmp_path / "far" / "distant")
    barrier = threading.Barrier(3)
    sources = [Slow(DirectorySource(tmp_path / "far"), barrier, broken) for broken in (True, False, True)]
    repository = Repository([*sources, root])
    repository.refresh()  # one after the other they would never come back
    assert [source.looks for source in sources] == [1, 1, 1] and not barrier.broken
    assert [skill.slug for skill in repository.skills()] == ["distant", "notes", "plain"]
    assert len(repository.problems()) == 2


def test_a_source_offers_nothing_that_writes(root: Path) -> None:
    """TH-33"""
    contract = {"due", "fingerprint", "id", "interval", "list", "load", "read_resource", "refresh"}
    assert {name for name in vars(SkillSource) if not name.startswith("_")} <= contract
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    source = DirectorySource(root)
    source.list(), source.refresh(), source.load("notes"), source.fingerprint()
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_what_is_absent_in_a_source_is_no_exception(root: Path) -> None:
    """TH-01, TH-34"""
    source = DirectorySource(root)
    found = source.load("notes")
    assert found is not None and found.document.description == "Takes notes"
    assert source.load("ghost") is None
    assert source.read_resource("ghost", "x.md") is None and source.read_resource("notes", "x.md") is None
    data = source.read_resource("notes", "SKILL.md")
    assert data is not None and data.startswith(b"---\nname: notes")
    assert len(source.fingerprint()) == 64


def test_the_default_root() -> None:
    """trpc-1.2.6"""
    assert load({}, {"SKILLS_ROOT": "/one:/two"}).skills == ("/one", "/two")
    assert load({}, {}).skills == ("./skills",)
    assert load({"skills": ("/given",)}, {"SKILLS_ROOT": "/one"}).skills == ("/given",)


# -- the usual places --


def test_project_before_user_before_builtin(tmp_path: Path) -> None:
    """PA-03, VS-14, ref-9"""
    project, home, own = tmp_path / "project", tmp_path / "home", tmp_path / "own"
    write(project / ".agents" / "skills" / "a", "project")
    for name in ("a", "b"):
        write(home / ".config" / "agent" / "skills" / name, "user")
    for name in ("a", "b", "c"):
        write(own / name, "builtin")
    found = Repository(usual_roots(project, home=home, builtin=[own]))
    assert [(one.slug, one.document.description) for one in found.skills()] == [
        ("a", "project"),
        ("b", "user"),
        ("c", "builtin"),
    ]
    assert sorted(problem.path.name for problem in found.problems()) == ["a", "a", "b"]
    assert summary(found.skills()[0]).source.startswith(str(project))
    assert Repository(usual_roots(tmp_path / "nowhere", home=tmp_path / "nobody")).skills() == []


@pytest.mark.parametrize(
    ("app", "user", "below"),
    [
        ("", "", ""),
        ("shop", "", "apps/shop"),
        ("shop", "u-1", "users/shop/u-1"),
        ("shop", "u/../x", "users/shop/id-"),
        ("..", "", "apps/id-"),
        ("a" * 129, "", "apps/id-"),
        ("ü", ".", "users/id-"),
    ],
)
def test_roots_of_applications_and_users(app: str, user: str, below: str) -> None:
    """trpc-1.1.9, trpc-10"""
    made = scoped_root("/base", app=app, user=user).relative_to("/base").as_posix()
    wanted = below.partition("id-")[0]
    assert made.startswith(wanted) if "id-" in below else made == (below or ".")
    assert all(part not in ("..", "") and len(part) <= 128 for part in made.split("/"))
    assert scoped_root("/base", app=app, user=user) == scoped_root("/base", app=app, user=user)


def test_a_user_belongs_to_an_application() -> None:
    """trpc-10"""
    with pytest.raises(BadRequestError, match="give app too"):
        scoped_root("/base", user="u")


# -- skills that bring skills --


def test_a_skill_may_bring_others_that_live_with_it(tmp_path: Path) -> None:
    """WN-15, WN-03, WN-09"""
    root = tmp_path / "skills"
    write(root / "outer", more="allowed-tools: Read, Skill(inner), Skill(outer), Skill(ghost)\n")
    write(root / "inner", more="allowed-tools: Skill(inmost)\n")
    write(root / "inmost")
    write(root / "a", more="allowed-tools: Skill(b)\n")
    write(root / "b", more="allowed-tools: Skill(a)\n")
    tools = toolset(root, profile="flow", mode="run")
    definitions, system = tools.definitions(), tools.system_prompt()
    assert definitions[0]["input"]["properties"]["skillId"]["enum"] == ["skill_a", "skill_b", "skill_outer"]
    assert "inner" not in system and "inmost" not in system
    early = call(tools, "loadSkill", {"skillId": "skill_inner"})
    assert early.structured["error"]["message"] == (
        "the skill 'inner' can be loaded only while one that brings it is active"
    )
    assert early.structured["error"]["hint"] == "Load outer first."
    assert not call(tools, "loadSkill", {"skillId": "skill_outer"}).is_error
    assert call(tools, "loadSkill", {"skillId": "skill_inmost"}).is_error
    assert not call(tools, "loadSkill", {"skillId": "skill_inner"}).is_error
    assert not call(tools, "loadSkill", {"skillId": "skill_inmost"}).is_error
    assert (tools.definitions(), tools.system_prompt()) == (definitions, system)
    # Other profiles have nothing of the kind.
    assert not call(toolset(root, profile="think"), "activate_skill", {"name": "inner"}).is_error
