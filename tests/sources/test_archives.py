"""Archives from files and over HTTP: the cache, validators, pins, failures, and many processes at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from executor.errors import SkillSourceError
from executor.models import SourceLimits
from executor.skills.repository import Repository
from executor.skills.sources import archive, progress
from executor.skills.sources.archive import archive_at
from executor.skills.sources.base import SkillSource
from executor.skills.sources.roots import open_source
from tests.sources.publish import Web, as_tar, as_zip, skill, write_folder

ONE = as_zip({"one/SKILL.md": skill("one")})
TWO = as_zip({"two/SKILL.md": skill("two")})
REPO = {"SKILL.md": skill("repo"), "run.sh!": b"#!/bin/sh\n"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
QUICK = SourceLimits(seconds=2.0, idle=0.5, download=1 << 20)


def slugs(source: SkillSource) -> list[str]:
    return sorted(source.list().first())


def statuses(web: Web) -> list[int]:
    return [status for _, status, _ in web.asked]


def test_what_has_not_changed_is_not_fetched_again(web: Web) -> None:
    """trpc-11, trpc-1.2.1, trpc-1.2.3."""
    web.files["/a.zip"] = ONE
    first = open_source(f"{web.url}/a.zip")
    assert slugs(first) == slugs(first) == ["one"]
    assert statuses(web) == [200]
    first.refresh()
    assert slugs(open_source(f"{web.url}/a.zip")) == ["one"]  # as another process would
    assert statuses(web) == [200, 304, 304]
    web.files["/a.zip"] = TWO
    assert slugs(first) == ["one"]  # until it looks again
    first.refresh()
    assert slugs(first) == ["two"]
    # The same content at another address, by a server that knows no validators: fetched, and not unpacked.
    web.validators = False
    web.files["/b/a.zip"] = TWO
    assert open_source(f"{web.url}/b/a.zip").list().skills[0].place == first.list().skills[0].place
    first.refresh()
    assert slugs(first) == ["two"]


def test_last_modified_is_used_where_there_is_no_tag(web: Web) -> None:
    when = "Mon, 30 Nov 2026 10:00:00 GMT"

    def before(request: BaseHTTPRequestHandler) -> bool:
        same = request.headers.get("If-Modified-Since") == when
        request.say(304 if same else 200, b"" if same else ONE, Last_Modified=when)  # type: ignore[attr-defined]
        return True

    web.before = before
    source = open_source(f"{web.url}/a.zip")
    assert slugs(source) == ["one"]
    source.refresh()
    assert slugs(source) == ["one"]
    assert statuses(web) == [200, 304]


def test_a_pinned_archive_is_fetched_once_and_never_another(web: Web) -> None:
    web.files["/a.zip"] = ONE
    pin = hashlib.sha256(ONE).hexdigest()
    root = f"{web.url}/a.zip#sha256={pin}"
    assert slugs(open_source(root)) == ["one"]
    again = open_source(root)
    again.refresh()
    assert slugs(again) == ["one"]
    assert len(web.asked) == 1
    wrong = open_source(f"{web.url}/a.zip#sha256={'0' * 64}")
    with pytest.raises(SkillSourceError, match="has another content than it was pinned to") as caught:
        wrong.list()
    assert pin in caught.value.message and "#sha256=" in caught.value.hint
    with pytest.raises(SkillSourceError, match="no checksum"):
        open_source(f"{web.url}/a.zip#sha256=123").list()


def test_a_server_that_fails_leaves_the_last_good_copy(web: Web, warnings: list[str]) -> None:
    """ref-3: what the tools and the prompt are made of stays one list."""
    web.files["/a.zip"] = ONE
    source = open_source(f"{web.url}/a.zip")
    assert slugs(source) == ["one"]

    def down(request: BaseHTTPRequestHandler) -> bool:
        request.say(503, b"")  # type: ignore[attr-defined]
        return True

    web.before = down
    source.refresh()
    assert slugs(source) == slugs(open_source(f"{web.url}/a.zip")) == ["one"]
    (note,) = source.list().problems
    assert note.reason.startswith("answers 503 Service Unavailable; the copy of 20")
    assert len(warnings) == 1 and "503" in warnings[0]
    assert statuses(web).count(503) == 6  # each look is tried three times
    # One that says that it is gone, or not ours, is believed.
    web.before = None
    del web.files["/a.zip"]
    with pytest.raises(SkillSourceError, match="answers 404"):
        source.refresh()
    with pytest.raises(SkillSourceError, match="answers 404"):
        source.list()
    # Unpacked content that is refused leaves the last good copy too, and comes back.
    web.files["/a.zip"] = TWO
    source.refresh()
    assert slugs(source) == ["two"] and source.list().problems == ()


def test_what_passes_is_tried_again(web: Web) -> None:
    web.files["/a.zip"] = ONE
    left = [503, 429]

    def before(request: BaseHTTPRequestHandler) -> bool:
        if left:
            request.say(left.pop(), b"")  # type: ignore[attr-defined]
            return True
        return False

    web.before = before
    assert slugs(open_source(f"{web.url}/a.zip")) == ["one"]
    assert statuses(web) == [429, 503, 200]


def _never(request: BaseHTTPRequestHandler) -> None:
    time.sleep(5)


def _slow_headers(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(100):
        request.wfile.write(b"X-%d: y\r\n" % number)
        time.sleep(0.1)


def _slow_content(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(100):
        request.wfile.write(b"P")
        time.sleep(0.1)


def _endless(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        request.wfile.write(bytes(1 << 20))


def _cut(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nPK")


def _says_large(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (_never, "within"),
        (_slow_headers, "within 2 s"),
        (_slow_content, "within 2 s"),
        (_endless, "is larger than"),
        (_cut, "cannot be reached"),
        (_says_large, "is larger than"),
    ],
)
def test_a_hostile_server_is_bounded(web: Web, cache: Path, server: object, says: str) -> None:
    """trpc-13, trpc-14, trpc-1.2.4."""

    def before(request: BaseHTTPRequestHandler) -> bool:
        request.close_connection = True
        with contextlib.suppress(OSError):
            server(request)  # type: ignore[operator]
        return True

    web.before = before
    began = time.monotonic()
    with pytest.raises(SkillSourceError, match=says):
        archive_at(f"{web.url}/a.zip", caps=QUICK).list()
    assert time.monotonic() - began < 60  # and not the hours that it would take
    assert os.listdir(cache / "trees") == os.listdir(cache / "scratch") == []


def test_redirects_are_followed_to_http_only(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(ONE)
    targets = {
        "/good": "/a.zip",
        "/file": f"file://{tmp_path}/a.zip",
        "/ftp": "ftp://127.0.0.1/a.zip",
        "/loop": "/loop",
    }
    web.files["/a.zip"] = ONE

    def before(request: BaseHTTPRequestHandler) -> bool:
        if target := targets.get(request.path):
            request.say(302, b"", Location=target)  # type: ignore[attr-defined]
        return request.path in targets

    web.before = before
    assert slugs(open_source(f"{web.url}/good")) == ["one"]
    for path in ("/file", "/ftp", "/loop"):
        with pytest.raises(SkillSourceError):
            open_source(web.url + path).list()


def test_a_password_goes_to_its_host_and_into_no_message(web: Web) -> None:
    web.files["/a.zip"] = ONE
    host = web.url.removeprefix("http://")

    def before(request: BaseHTTPRequestHandler) -> bool:
        moved = request.path == "/moved?token=s3cret"
        if moved:
            request.say(302, b"", Location=f"http://localhost:{host.split(':')[1]}/a.zip")  # type: ignore[attr-defined]
        return moved

    web.before = before
    source = open_source(f"http://me:s3cret@{host}/moved?token=s3cret")
    assert slugs(source) == ["one"]
    assert [request[2].get("Authorization") for request in web.asked] == ["Basic bWU6czNjcmV0", None]
    assert "s3cret" not in source.id and "s3cret" not in source.list().skills[0].origin
    missing = open_source(f"http://me:s3cret@{host}/none?token=s3cret")
    with pytest.raises(SkillSourceError) as caught:
        missing.list()
    assert "s3cret" not in str(caught.value)


def test_a_skill_at_the_top_is_called_like_its_archive(web: Web, tmp_path: Path) -> None:
    """trpc-14, trpc-1.2.2."""
    tarball = as_tar(REPO, top=f"repo-{COMMIT}/", commit=COMMIT)
    branch = as_tar(REPO, top="repo-main/", commit=COMMIT)
    web.files.update(
        {
            "/o/repo/archive/x.tar.gz": tarball,
            "/repo/tar.gz/refs/heads/main": branch,
            "/plain-1.2.zip": as_zip(REPO),
            "/in/folder.zip": as_zip(REPO, top="mine/"),
            "/skills/bare/SKILL.md": skill("x"),
        }
    )
    found = {path: slugs(open_source(web.url + path)) for path in web.files}
    assert found == {
        "/o/repo/archive/x.tar.gz": ["repo"],
        "/repo/tar.gz/refs/heads/main": ["repo"],
        "/plain-1.2.zip": ["plain-1.2"],
        "/in/folder.zip": ["mine"],
        "/skills/bare/SKILL.md": ["bare"],
    }


def test_a_file_is_seen_when_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "skills.zip"
    repository = Repository([str(file), f"file:{tmp_path}", "file://elsewhere/x.zip"])
    assert repository.skills() == []
    file.write_bytes(ONE)
    assert [found.slug for found in Repository([str(file)]).skills()] == ["one"]
    source = open_source(str(file))
    assert slugs(source) == ["one"]
    file.write_bytes(TWO)
    assert slugs(source) == ["two"]
    file.unlink()
    assert slugs(source) == ["two"]
    assert "cannot be read: No such file" in source.list().problems[0].reason
    # A SKILL.md of this host means its folder, file: may name a folder.
    write_folder({"y/SKILL.md": skill("y"), "y/data": b"1"}, tmp_path / "more")
    assert open_source(str(tmp_path / "more/y/SKILL.md")).read_resource("y", "data") == b"1"
    write_folder({"x/SKILL.md": skill("x")}, tmp_path / "folder")
    assert slugs(open_source(f"file:{tmp_path}/folder")) == ["x"]


def test_what_is_unpacked_is_what_was_digested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written in place meanwhile stands under no other's checksum in the cache."""
    file = tmp_path / "skills.zip"
    file.write_bytes(ONE)
    unpacked = archive.unpacked

    def meanwhile(*words: Any) -> Any:
        file.write_bytes(TWO[:100])
        return unpacked(*words)

    with monkeypatch.context() as patch:
        patch.setattr(archive, "unpacked", meanwhile)
        assert slugs(open_source(f"file:{file}#sha256={hashlib.sha256(ONE).hexdigest()}")) == ["one"]
    file.write_bytes(TWO)
    assert slugs(open_source(str(file))) == ["two"]


def test_a_look_of_a_clock_that_was_wrong_is_not_believed(web: Web, cache: Path) -> None:
    web.files["/a.zip"] = ONE
    open_source(f"{web.url}/a.zip").list()
    (look,) = (cache / "looks").iterdir()
    look.write_text(json.dumps({**json.loads(look.read_text()), "at": time.time() + 1e8}))
    web.files["/a.zip"] = TWO
    assert slugs(open_source(f"{web.url}/a.zip")) == ["two"]


def test_a_cache_that_others_may_write_to_is_not_believed(web: Web, cache: Path) -> None:
    web.files["/a.zip"] = ONE
    open_source(f"{web.url}/a.zip").list()
    cache.chmod(0o1777)
    with pytest.raises(SkillSourceError, match="others may write to") as caught:
        open_source(f"{web.url}/a.zip").list()
    assert "chmod 700" in caught.value.hint
    cache.chmod(0o700)
    assert slugs(open_source(f"{web.url}/a.zip")) == ["one"]


FETCH = """
import sys
from executor.skills.sources.roots import open_source
sys.stdin.readline()
source = open_source(sys.argv[1])
print(sorted(source.list().first()), source.fingerprint())
"""


def test_many_processes_fetch_it_once(web: Web, cache: Path) -> None:
    files = {f"s{number}/SKILL.md": skill(f"s{number}") for number in range(20)}
    web.files["/a.tgz"] = as_tar(files)
    words = [sys.executable, "-c", FETCH, f"{web.url}/a.tgz"]
    processes = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    said = set()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        said.add(process.communicate(timeout=120)[0])
        assert process.returncode == 0
    (one,) = said
    assert "'s19'" in one
    assert statuses(web).count(200) == 1
    assert len(os.listdir(cache / "trees")) == 1 and os.listdir(cache / "scratch") == []


def test_a_fetch_that_is_killed_leaves_nothing_that_counts(web: Web, cache: Path) -> None:
    stop = threading.Event()

    def before(request: BaseHTTPRequestHandler) -> bool:
        if stop.is_set():
            return False
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nPK")
        stop.set()
        time.sleep(20)
        return True

    web.before = before
    web.files["/a.zip"] = ONE
    process = subprocess.Popen([sys.executable, "-c", FETCH, f"{web.url}/a.zip"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert stop.wait(60)
    process.kill()
    process.wait()
    assert slugs(open_source(f"{web.url}/a.zip")) == ["one"]


def test_whoever_waits_sees_progress(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, int, int]] = []
    monkeypatch.setattr(progress, "fetching", lambda *step: steps.append(step))
    web.files["/a.zip"] = ONE
    open_source(f"{web.url}/a.zip").list()
    assert steps == [(f"{web.url}/a.zip", len(ONE), len(ONE)), (f"{web.url}/a.zip", 0, -1)]


def test_a_cache_that_cannot_be_used_is_told(web: Web, cache: Path) -> None:
    web.files["/a.zip"] = ONE
    cache.write_text("a file")
    with pytest.raises(SkillSourceError, match="the cache cannot be used") as caught:
        open_source(f"{web.url}/a.zip").list()
    assert "SKILLS_CACHE_DIR" in caught.value.hint


def test_a_cache_that_cannot_be_written_to_is_told(web: Web, cache: Path) -> None:
    web.files["/a.zip"] = ONE
    open_source(f"{web.url}/a.zip").list()
    for lock in (cache / "locks").iterdir():  # what nobody may open for writing, root neither
        lock.unlink()
        lock.mkdir()
    with pytest.raises(SkillSourceError, match="the cache cannot be used") as caught:
        open_source(f"{web.url}/a.zip").list()
    assert "SKILLS_CACHE_DIR" in caught.value.hint


def test_the_cache_may_be_emptied_at_any_time(web: Web, cache: Path) -> None:
    web.files["/a.zip"] = ONE
    source = open_source(f"{web.url}/a.zip")
    assert slugs(source) == ["one"]
    shutil.rmtree(cache)
    assert slugs(source) == ["one"]
    assert (source.list().skills[0].path / "SKILL.md").exists()
    assert statuses(web) == [200, 200]


def test_the_interval_says_when_to_look_again(web: Web) -> None:
    web.files["/a.zip"] = ONE
    repository = Repository([f"{web.url}/a.zip"])
    assert [found.slug for found in repository.skills()] == ["one"]
    repository.renew()
    with pytest.raises(SkillSourceError):
        _find(repository, "two")  # a name that is unknown asks no server again at once
    assert len(web.asked) == 1
    web.files["/a.zip"] = TWO
    repository.sources[0].interval = 0.0
    repository.renew()
    assert [found.slug for found in repository.skills()] == ["two"]
    web.files["/a.zip"] = ONE
    assert repository.named("one").slug == "one"


def _find(repository: Repository, name: str) -> None:
    from executor.errors import SkillNotFoundError

    try:
        repository.named(name)
    except SkillNotFoundError as error:
        raise SkillSourceError(error.message) from error
