"""Export and bundle: the same bytes every time, from every source, and what the command line says."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from executor.cli import app, fetching
from executor.errors import BadPathError, BadRequestError
from executor.settings import split_roots
from executor.skills.repository import Repository
from executor.skills.sources import bundle, progress
from executor.skills.sources.export import export, zipped
from executor.skills.sources.roots import open_source
from tests.sources.publish import Web, as_tar, skill, write_folder

FILES = {
    "my-skill/SKILL.md": skill("my-skill", "does"),
    "my-skill/scripts/run.sh!": b"#!/bin/sh\necho hi\n",
    "my-skill/assets/logo.png": b"\x89PNG\r\n\x1a\n\0\xff",
    "my-skill/.git/config": b"not passed on",
    "my-skill/nested/SKILL.md": skill("nested"),
    "Other One/SKILL.md": skill("Other"),
}


def test_a_skill_is_exported_as_a_folder_and_a_zip_from_any_source(web: Web, tmp_path: Path) -> None:
    here = Repository([write_folder(FILES, tmp_path / "skills")])
    web.files["/a.tgz"] = as_tar({k: v for k, v in FILES.items() if ".git/" not in k})
    there = Repository([f"{web.url}/a.tgz"])
    assert zipped(here.named("my-skill")) == zipped(there.named("my-skill"))
    place = export(there.named("my-skill"), tmp_path / "out")
    assert place == tmp_path / "out" / "my-skill"
    files = {path.relative_to(place).as_posix(): path for path in place.rglob("*") if path.is_file()}
    assert sorted(files) == ["SKILL.md", "assets/logo.png", "nested/SKILL.md", "scripts/run.sh"]
    assert {name: stat.S_IMODE(path.stat().st_mode) for name, path in files.items()} == {
        "SKILL.md": 0o644,
        "assets/logo.png": 0o644,
        "nested/SKILL.md": 0o644,
        "scripts/run.sh": 0o755,
    }
    assert (
        Repository([place]).fingerprint().split(":")[1:]
        == Repository([tmp_path / "skills" / "my-skill"]).fingerprint().split(":")[1:]
    )
    file = export(here.named("Other One"), tmp_path / "out" / "other.zip")
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == ["Other One/SKILL.md"]
    assert sorted(open_source(str(file)).list().first()) == sorted(
        open_source(str(tmp_path / "skills" / "Other One")).list().first()
    )
    with pytest.raises(BadPathError, match="exists"):
        export(here.named("my-skill"), tmp_path / "out")
    (place / "stale").write_text("x")
    export(here.named("my-skill"), tmp_path / "out", overwrite=True)
    assert not (place / "stale").exists()
    assert sorted(os.listdir(tmp_path / "out")) == ["my-skill", "other.zip"]
    with pytest.raises(BadPathError, match="cannot be written"):
        export(here.named("my-skill"), place / "SKILL.md" / "x")


def test_a_bundle_is_the_same_bytes_every_time_and_text_is_text(tmp_path: Path) -> None:
    """TH-20, TH-21, TH-22, TH-23, TH-24."""
    one = Repository([write_folder(FILES, tmp_path / "one")])
    made = bundle.make(one.skills())
    other = Repository([write_folder(dict(reversed(FILES.items())), tmp_path / "two")])
    assert bundle.make(list(reversed(other.skills()))).data == made.data
    value = json.loads(made.data)
    assert [entry["folder"] for entry in value["skills"]] == ["my-skill", "Other One"]
    files = {entry["path"]: entry for entry in value["skills"][0]["files"]}
    assert files["scripts/run.sh"] == {
        "path": "scripts/run.sh",
        "size": 18,
        "executable": True,
        "text": "#!/bin/sh\necho hi\n",
    }
    assert files["assets/logo.png"]["base64"] == "iVBORw0KGgoA/w=="
    assert files["assets/logo.png"]["mime"] == "image/png"
    file = tmp_path / "b.json"
    file.write_bytes(made.data)
    source = open_source(str(file))
    assert source.fingerprint() == value["fingerprint"] == made.fingerprint == one.sources[0].fingerprint()
    assert bundle.make(Repository([str(file)]).skills()).data == made.data


def test_what_cannot_be_in_a_bundle_is_told_when_it_is_made(tmp_path: Path) -> None:
    """TH-22, TH-25."""
    odd = Repository([write_folder({"a/SKILL.md": skill("a"), "a/xx:y": b""}, tmp_path / "odd")])
    with pytest.raises(BadRequestError, match="'xx:y' holds a colon"):
        bundle.make(odd.skills())
    clash = Repository([write_folder({"a/SKILL.md": skill("a"), "a/X": b"", "a/x": b""}, tmp_path / "clash")])
    with pytest.raises(BadRequestError, match="are one name"):
        bundle.make(clash.skills())
    large = {"a/SKILL.md": skill("a"), "a/x": bytes(bundle.LARGE_FILE + 1), "a/y": bytes(bundle.LARGE)}
    notes = bundle.make(Repository([write_folder(large, tmp_path / "large")]).skills()).notes
    assert [note.split(" has ")[0].split(" have ")[0] for note in notes] == [
        "a/x",
        "a/y",
        "all files together",
    ]


def test_the_commands(web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        progress._said.clear()  # each is a process of its own
        return app.main(words), *capsys.readouterr()

    web.files["/a.tgz"] = as_tar({k: v for k, v in FILES.items() if ".git/" not in k})
    address = f"{web.url}/a.tgz"
    file = tmp_path / "b.json"
    status, out, err = run("skills", "bundle", address, "-o", str(file))
    assert (status, out) == (0, f"{file}\n") and "3 skills" in err and "fingerprint " in err
    status, out, err = run("skills", "bundle", address, "-o", str(file))
    assert status == 125 and f"{file} exists" in err and "--overwrite" in err
    status, out, err = run("skills", "list", "--skills", str(file), "--skills", f"{web.url}/none.zip")
    assert (status, err) == (0, "")
    assert f"my-skill in {file}\n" in out
    assert f"  {web.url}/none.zip: this source was skipped: answers 404 Not Found" in out
    status, out, err = run("skills", "show", "nested", "--skills", address, "--json")
    found = json.loads(out)
    assert found["origin"] == f"my-skill/nested in {address}" and found["files"][0]["path"] == "SKILL.md"
    status, out, err = run("skills", "show", "nested", "--skills", address)
    assert f"\nfrom: my-skill/nested in {address}\n" in out
    status, out, err = run(
        "skills", "export", "my-skill", "--skills", address, "--to", str(tmp_path / "x.zip")
    )
    assert (status, out, err) == (0, f"{tmp_path}/x.zip\n", "")
    status, out, err = run(
        "skills", "export", "none", "--skills", f"{web.url}/none.zip", "--to", str(tmp_path)
    )
    assert status == 125
    assert f"executor: warning: {web.url}/none.zip: answers 404" in err
    assert "executor: hint: it may be in a source that cannot be used" in err


def test_a_fetch_is_one_line_on_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(progress, "fetching", None)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    fetching.show()
    progress.step("https://h/\x1b[31mx.zip", 1 << 20, 3 << 20)
    progress.step("https://h/x.zip", 2 << 20, 3 << 20)  # too soon to be shown
    progress.end("https://h/x.zip")
    progress.end("https://h/x.zip")
    first, last = terminal.getvalue().split("\r\x1b[K")[1:]
    assert first == "executor: fetching https://h/\\x1b[31mx.zip: 1.0 MiB of 3.0 MiB" and last == ""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    fetching.show()
    assert progress.fetching is None


def test_of_two_skills_with_one_name_the_first_is_bundled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TH-26."""
    first = write_folder({"a/SKILL.md": skill("a", "first")}, tmp_path / "first")
    second = write_folder({"a/SKILL.md": skill("a", "second"), "b/SKILL.md": skill("b")}, tmp_path / "second")
    file = tmp_path / "b.json"
    assert app.main(["skills", "bundle", str(first), str(second), "-o", str(file)]) == 0
    told = capsys.readouterr().err
    assert f"warning: {second}/a: hidden by {first}/a, which comes first" in told
    found = open_source(str(file)).list().first()
    assert {name: one.document.description for name, one in found.items()} == {"a": "first", "b": "d"}


def test_a_root_that_cannot_be_one_leaves_the_others(tmp_path: Path) -> None:
    write_folder({"one/SKILL.md": skill("one")}, tmp_path / "good")
    odd = ["a\0b", "http://NAME:SECRET@[::1/x", "file:///tmp/%00.zip", "git+https://[/x", "s3://[/x"]
    repository = Repository([*odd, tmp_path / "good"])
    assert [found.slug for found in repository.skills()] == ["one"]
    assert len(repository.problems()) == len(odd)
    assert "SECRET" not in str(repository.problems())


def test_a_list_of_roots_is_parted_at_colons_that_are_not_of_an_address() -> None:
    """trpc-1.2.6."""
    for text, roots in {
        "a:b": ("a", "b"),
        "/a:./b:": ("/a", "./b"),
        "https://h/x.zip:/b": ("https://h/x.zip", "/b"),
        "https://h:8080/x.zip:skills": ("https://h:8080/x.zip", "skills"),
        "https://u:p@h:1/x:y": ("https://u:p@h:1/x", "y"),
        "x:git+ssh://git@h:22/x@v1#a:y": ("x", "git+ssh://git@h:22/x@v1#a", "y"),
        "s3://b/p?endpoint_url=http://127.0.0.1:9000&refresh=0:/z": (
            "s3://b/p?endpoint_url=http://127.0.0.1:9000&refresh=0",
            "/z",
        ),
        "file:/a/b.zip:c:file:///d": ("file:/a/b.zip", "c", "file:///d"),
        "https://h/a%3Ab:c": ("https://h/a%3Ab", "c"),
        "::a::": ("a",),
    }.items():
        assert split_roots(text, ":") == roots
    assert split_roots(r"C:\a;https://h/x", ";") == (r"C:\a", "https://h/x")
