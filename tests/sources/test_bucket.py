"""An S3-compatible bucket, against a real server process."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import pytest

from executor.errors import SkillSourceError
from executor.models import SourceLimits
from executor.skills.repository import Repository
from executor.skills.sources.bucket import BucketSource
from executor.skills.sources.roots import open_source
from tests.sources.publish import S3, skill

FILES = {
    "a/SKILL.md": skill("a"),
    "a/ref.md": b"reference",
    "a/large.bin": bytes(200_000),
    "b/SKILL.md": skill("Bee"),
    "b/node_modules/x/SKILL.md": skill("x"),
}


class Requests:
    """Counts what a source asks the server for."""

    def __init__(self, source: BucketSource) -> None:
        self.names: list[tuple[str, str]] = []
        filesystem = source._store._filesystem()
        inner = filesystem._call_s3

        async def call(method: str, *args: Any, **options: Any) -> Any:
            self.names.append((method, options.get("Key", "")))
            return await inner(method, *args, **options)

        filesystem._call_s3 = call

    def take(self) -> list[tuple[str, str]]:
        """What was asked since the last time."""
        taken, self.names = sorted(self.names), []
        return taken


def test_a_look_is_a_list_and_texts_and_files_come_when_they_are_wanted(s3: S3) -> None:
    """TH-31, TH-32."""
    s3.put(FILES)
    source = BucketSource.at(s3.root())
    asked = Requests(source)
    listing = source.list()
    texts = [("get_object", "skills/a/SKILL.md"), ("get_object", "skills/b/SKILL.md")]
    assert asked.take() == [*texts, ("list_objects_v2", "")]
    assert {name: found.document.name for name, found in listing.first().items()} == {"a": "a", "b": "Bee"}
    first = source.fingerprint()
    source.refresh()
    assert source.fingerprint() == first and source.list() == listing
    assert asked.take() == [("list_objects_v2", "")]
    assert source.read_resource("a", "ref.md") == b"reference"
    assert asked.take() == [("get_object", "skills/a/ref.md")]
    place = listing.first()["a"].place
    assert not place.exists()
    assert (listing.first()["a"].path / "large.bin").stat().st_size == 200_000
    assert ("get_object", "skills/a/large.bin") in asked.take()
    assert source.load("a") is not None and asked.take() == []
    # Another process finds all of it in the cache.
    other = BucketSource.at(s3.root())
    asked = Requests(other)
    assert other.list().first()["a"].path == place
    assert asked.take() == [("list_objects_v2", "")]
    # What one object says is enough to know that it changed.
    s3.put({**FILES, "a/ref.md": b"REFERENCE"})
    source.refresh()
    assert source.fingerprint() != first
    assert source.list().first()["a"].place != place
    assert source.read_resource("a", "ref.md") == b"REFERENCE"


def test_skills_are_chosen_by_name_and_an_empty_choice_is_none(s3: S3) -> None:
    """TH-30, ref-7."""
    s3.put(FILES)
    assert sorted(open_source(s3.root("skills=Bee,zzz")).list().first()) == ["b"]
    assert open_source(s3.root("skills=")).list().skills == ()
    assert sorted(open_source(s3.root(prefix="skills/a")).list().first()) == ["a"]


def test_the_interval_holds(s3: S3) -> None:
    """TH-30, ref-6."""
    s3.put(FILES)
    each, minute = s3.root("refresh=0"), s3.root()
    repository = Repository([each, minute])
    assert len(repository.skills()) == 2
    asked = [Requests(source) for source in repository.sources if isinstance(source, BucketSource)]
    for _ in range(2):
        repository.renew()
        assert [one.take() for one in asked] == [[("list_objects_v2", "")], []]


def test_an_object_that_is_written_meanwhile_is_noticed(s3: S3, cache: Path) -> None:
    s3.put(FILES)
    source = BucketSource.at(s3.root())
    found = source.list().first()["a"]
    s3.put({**FILES, "a/ref.md": b"another one"})
    with pytest.raises(SkillSourceError, match="was written to while it was read") as caught:
        _ = found.path
    assert caught.value.hint == "Look again."
    assert os.listdir(cache / "scratch") == []
    source.refresh()
    assert (source.list().first()["a"].path / "ref.md").read_bytes() == b"another one"


def test_names_that_no_folder_could_have_cost_their_skill(s3: S3) -> None:
    bad = {
        "evil/SKILL.md": skill("evil"),
        "evil/../../up": b"",
        "odd/SKILL.md": skill("odd"),
        "odd/a\\b": b"",
    }
    for name, data in {**FILES, **bad, "big/SKILL.md": bytes(2 << 20)}.items():
        s3.client.put_object(Bucket=s3.bucket, Key=f"skills/{name}", Body=data)
    listing = open_source(s3.root()).list()
    assert sorted(listing.first()) == ["a", "b"]
    assert {problem.slug: problem.reason.split(" ")[-1] for problem in listing.problems} == {
        "evil": "'..'",
        "odd": "backslash",
        "big": "bytes",
    }


def test_sizes_are_bounded(s3: S3) -> None:
    s3.put(FILES)
    source = BucketSource.at(s3.root(), caps=SourceLimits(total=1000))
    with pytest.raises(SkillSourceError, match="is larger than 1,000 bytes"):
        _ = source.list().first()["a"].path
    source = BucketSource.at(s3.root(), caps=SourceLimits(file=1000))
    with pytest.raises(SkillSourceError, match=r"large\.bin is larger than 1,000 bytes"):
        _ = source.list().first()["a"].path


def test_a_server_that_is_down_leaves_the_last_list(s3: S3, warnings: list[str], cache: Path) -> None:
    s3.put(FILES)
    source = BucketSource.at(s3.root(), caps=SourceLimits(idle=1, seconds=20))
    found = source.list().first()["a"].path
    source._store._options["endpoint_url"] = "http://127.0.0.1:1"
    source._store._made = None
    source.refresh()
    assert source.list().first()["a"].path == found
    assert "the list of 20" in source.list().problems[0].reason
    assert len(warnings) == 1
    # Without a copy there is an error.
    with pytest.raises(SkillSourceError, match="cannot be reached"):
        BucketSource("none", endpoint_url="http://127.0.0.1:1", caps=SourceLimits(idle=1, seconds=20)).list()


def test_what_is_wrong_with_an_address_or_a_bucket_is_told(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for address, says in {
        "s3://b/p?endpoint=x": "no option 'endpoint'",
        "s3:///p": "no address of a bucket",
        "s3://b/p#x": "no address of a bucket",
        "s3://b/p?refresh=soon": "no number of seconds",
        "s3://b/p?fingerprint=none": "fingerprint='none'",
        f"s3://no-such-bucket/p?endpoint_url={s3.url}": "bucket does not exist",
    }.items():
        with pytest.raises(SkillSourceError, match=says):
            open_source(address).list()
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "s3fs":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SkillSourceError) as caught:
        open_source("s3://b/p").list()
    assert caught.value.hint == "pip install 'skill-executor[s3]'"
