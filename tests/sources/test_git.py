"""Commits of git repositories: what is fetched, what is refused, and what of a repository is never run."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from executor.errors import SkillSourceError
from executor.models import SourceLimits
from executor.skills.sources import git_repository
from executor.skills.sources.git import git_source, parse
from executor.skills.sources.roots import open_source
from tests.sources.publish import Web, commit, git, skill

FILES = {
    "skills/a/SKILL.md": skill("a"),
    "skills/a/run.sh!": b"#!/bin/sh\n",
    "elsewhere/SKILL.md": skill("elsewhere"),
    "elsewhere/large.bin": os.urandom(300_000),
}


@pytest.fixture
def repository(web: Web, tmp_path: Path) -> Path:
    """A repository that the web server serves."""
    return web.git / tmp_path.name


def root(web: Web, repository: Path, rest: str = "") -> str:
    return f"git+{web.url}/git/{repository.name}/.git{rest}"


def test_a_revision_is_a_branch_a_tag_a_commit_or_the_head(web: Web, repository: Path) -> None:
    first = commit(FILES, repository)
    git(repository, "tag", "light")
    git(repository, "tag", "-a", "-m", "x", "v1.0")
    git(repository, "branch", "feature/x")
    commit({"b/SKILL.md": skill("b")}, repository)
    for rev in ("light", "v1.0", "feature/x", first):
        assert sorted(open_source(root(web, repository, f"@{rev}")).list().first()) == ["a", "elsewhere"]
    for rev in ("", "@main"):
        assert sorted(open_source(root(web, repository, rev)).list().first()) == ["b"]
    with pytest.raises(SkillSourceError, match="no branch or tag 'v2'"):
        open_source(root(web, repository, "@v2")).list()
    with pytest.raises(SkillSourceError) as caught:
        open_source(root(web, repository, f"@{first[:8]}")).list()
    assert caught.value.hint == "A commit is given by all digits of its id."


def test_a_commit_is_a_pin_and_a_branch_is_looked_up(web: Web, repository: Path) -> None:
    """TH-35."""
    first = commit(FILES, repository)
    pinned, branch = root(web, repository, f"@{first}"), root(web, repository, "@main")
    open_source(pinned).list()
    open_source(branch).list()
    web.asked.clear()
    again = open_source(pinned)
    again.refresh()
    assert sorted(again.list().first()) == ["a", "elsewhere"] and web.asked == []
    moving = open_source(branch)
    moving.refresh()
    looked = len(web.asked)
    commit({"b/SKILL.md": skill("b")}, repository)
    moving.refresh()
    assert sorted(moving.list().first()) == ["b"]
    assert len(web.asked) > looked


def test_of_a_folder_only_its_files_are_fetched(web: Web, repository: Path) -> None:
    commit(FILES, repository)
    sizes = []
    serve = web.serve_git

    def counted(request: object) -> None:
        request.wfile = _Counting(request.wfile)  # type: ignore[attr-defined]
        serve(request)  # type: ignore[arg-type]
        sizes.append(request.wfile.count)  # type: ignore[attr-defined]

    web.serve_git = counted  # type: ignore[method-assign,assignment]
    try:
        part = open_source(root(web, repository, "#skills"))
        assert sorted(part.list().first()) == ["a"]
        few = sum(sizes)
        sizes.clear()
        assert sorted(open_source(root(web, repository)).list().first()) == ["a", "elsewhere"]
        everything = sum(sizes)
    finally:
        del web.serve_git  # type: ignore[method-assign]
    assert few < 100_000 < 300_000 < everything
    found = part.list().first()["a"].path
    assert found.parent.name == "skills" and (found / "run.sh").stat().st_mode & 0o111
    with pytest.raises(SkillSourceError, match="the commit has no folder 'none'"):
        open_source(root(web, repository, "#none")).list()


class _Counting:
    def __init__(self, inner: object) -> None:
        self.inner = inner
        self.count = 0

    def write(self, data: bytes) -> int:
        self.count += len(data)
        return self.inner.write(data)  # type: ignore[attr-defined,no-any-return]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def test_nothing_of_a_repository_is_run(
    web: Web, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks, filters and templates of the user's own configuration and of the repository's attributes."""
    mark = tmp_path / "ran"
    home = tmp_path / "home"
    home.mkdir()
    hook = tmp_path / "hooks" / "post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    for name in ("reference-transaction", "post-merge", "pre-auto-gc", "post-index-change"):
        (hook.parent / name).symlink_to(hook)
    (home / ".gitconfig").write_text(
        f"[core]\nhooksPath={hook.parent}\nfsmonitor={hook}\nsshCommand={hook}\naskPass={hook}\n"
        f'[filter "evil"]\nsmudge={hook}\nprocess={hook}\nrequired=true\n'
        f'[credential]\nhelper=!{hook}\n[protocol "ext"]\nallow=always\n'
        f'[url "ext::{hook}"]\ninsteadOf={web.url}\n'
    )
    monkeypatch.setenv("HOME", str(home))
    commit(
        {
            **FILES,
            ".gitattributes": b"* filter=evil\n*.bin filter=lfs\n",
            ".gitmodules": f'[submodule "x"]\npath=x\nurl=ext::{hook}\n'.encode(),
            "skills/a/pointer.bin": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        },
        repository,
    )
    head = git(repository, "rev-parse", "HEAD")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{head},x")
    git(repository, "commit", "-q", "-m", "with a submodule")
    source = open_source(root(web, repository, "@main"))
    listing = source.list()
    assert sorted(listing.first()) == ["a", "elsewhere"]
    assert not mark.exists()
    assert sorted(problem.reason for problem in listing.problems) == [
        "skills/a/pointer.bin is a pointer of Git LFS: its content was not fetched",
        "x is a submodule: it was not fetched",
    ]
    # The control: with this configuration an ordinary clone does run it.
    subprocess.run(
        ["git", "clone", "-q", f"file://{repository}", str(tmp_path / "clone")],
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
    )
    assert mark.exists()


def test_links_and_odd_names_are_refused(web: Web, repository: Path, cache: Path) -> None:
    commit(FILES, repository)
    (repository / "skills" / "a" / "link").symlink_to("/etc/passwd")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "link")
    with pytest.raises(SkillSourceError, match=r"is refused: 'skills/a/link' is a link"):
        open_source(root(web, repository)).list()
    # Elsewhere in the repository it is nobody's business.
    assert sorted(open_source(root(web, repository, "#elsewhere")).list().first()) == ["elsewhere"]
    commit({**FILES, "skills/a/X": b"", "skills/a/x": b""}, repository)
    with pytest.raises(SkillSourceError, match="are one name"):
        open_source(root(web, repository)).list()
    commit({**FILES, "skills/a/nul.txt": b""}, repository)
    with pytest.raises(SkillSourceError, match="is reserved"):
        open_source(root(web, repository)).list()
    assert len(os.listdir(cache / "trees")) == 1 and os.listdir(cache / "scratch") == []


def test_size_and_time_are_bounded(web: Web, repository: Path, tmp_path: Path) -> None:
    commit({**FILES, "zeros": bytes(3 << 20)}, repository)
    address = root(web, repository)
    with pytest.raises(SkillSourceError, match="'zeros' is larger than 1,048,576 bytes"):
        git_source(address, caps=SourceLimits(file=1 << 20)).list()
    with pytest.raises(SkillSourceError, match="more than 3 files"):
        git_source(address, caps=SourceLimits(entries=3)).list()
    web.before = lambda request: bool(request.rfile.read(100_000_000))  # it never answers
    with pytest.raises(SkillSourceError, match="was not fetched within 1 s"):
        git_source(address, caps=SourceLimits(seconds=1)).list()


def test_a_small_pack_that_stands_for_more_than_a_machine_has(web: Web, repository: Path) -> None:
    """Folders in each other, each many times; and a file that is a small one many times."""
    commit(FILES, repository)
    blob = git(repository, "rev-parse", "HEAD:elsewhere/SKILL.md")
    tree = _tree(repository, f"100644 blob {blob}\tSKILL.md\n")
    for _ in range(8):
        tree = _tree(repository, "".join(f"040000 tree {tree}\t{'x' * 99}{number}\n" for number in range(12)))
    git(repository, "tag", "folders", git(repository, "commit-tree", "-m", "x", tree))
    with pytest.raises(SkillSourceError, match="is refused: git answers with more than"):
        open_source(root(web, repository, "@folders")).list()
    base, times = b"A" * 65536, 800
    whole = hashlib.sha1(b"blob %d\0" % (len(base) * times) + base * times).hexdigest()
    delta = _size(len(base)) + _size(len(base) * times) + b"\x80" * times  # the whole base, each time
    name = hashlib.sha1(b"blob %d\0" % len(base) + base).digest()
    pack = b"PACK" + struct.pack(">LL", 2, 2) + _head(3, len(base)) + zlib.compress(base)
    pack += _head(7, len(delta)) + name + zlib.compress(delta)
    pack += hashlib.sha1(pack).digest()
    subprocess.run(
        ["git", "-C", repository, "index-pack", "--stdin"], input=pack, check=True, capture_output=True
    )
    files = {"SKILL.md": blob, "large": whole, "small": name.hex()}
    tree = _tree(repository, "".join(f"100644 blob {one}\t{path}\n" for path, one in files.items()))
    git(repository, "tag", "file", git(repository, "commit-tree", "-m", "x", tree))
    with pytest.raises(SkillSourceError, match="is refused: a file of its commit is larger than 1,048,576"):
        git_source(root(web, repository, "@file"), caps=SourceLimits(file=1 << 20)).list()


def _tree(repository: Path, lines: str) -> str:
    argv = ["git", "-C", str(repository), "mktree"]
    return subprocess.run(argv, input=lines.encode(), capture_output=True, check=True).stdout.decode().strip()


def _size(number: int) -> bytes:
    """As a delta states it."""
    found = []
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _head(kind: int, size: int) -> bytes:
    """Of an object in a pack."""
    if size < 16:
        return bytes([kind << 4 | size])
    return bytes([kind << 4 | size & 15 | 128]) + _size(size >> 4)


def test_a_server_that_is_down_leaves_the_last_good_copy(web: Web, repository: Path) -> None:
    commit(FILES, repository)
    source = open_source(root(web, repository))
    source.list()

    def down(request: object) -> bool:
        request.say(500, b"")  # type: ignore[attr-defined]
        return True

    web.before = down
    source.refresh()
    assert sorted(source.list().first()) == ["a", "elsewhere"]
    assert "the copy of 20" in source.list().problems[0].reason


BAD = [
    "git+https://-oProxyCommand=touch x/repo.git",
    "git+ssh://-oProxyCommand=touch%20x/repo.git",
    "git+ssh://host/repo.git@--upload-pack=touch",
    "git+ssh://host/repo.git@-x",
    "git+https://host/repo.git@a..b",
    "git+https://host/repo.git@a:refs/heads/b",
    "git+https://host/repo.git@{0}",
    "git+https://host/repo.git@main#../x",
    "git+https://host/repo.git?a=b",
    "git+https://host/a\nb.git",
    "git+https:///repo.git",
    "git+https://host/",
    "git+file://host/repo.git",
    "git+ext://sh -c touch",
    "git+fd://17/x",
]


@pytest.mark.parametrize("address", BAD)
def test_an_address_that_could_be_more_is_refused(address: str) -> None:
    with pytest.raises(SkillSourceError):
        open_source(address).list()


def test_addresses_are_read() -> None:
    found = parse("git+ssh://git@host:22/o/r.git@feature/x#a%20b/c")
    assert (found.url, found.rev, found.folder) == ("ssh://git@host:22/o/r.git", "feature/x", "a b/c")
    assert found.shown == "git+ssh://host:22/o/r.git@feature/x#a b/c"
    token = parse("git+https://x:s3cret@host/o/r")
    assert (token.url, token.shown) == ("https://x:s3cret@host/o/r", "git+https://host/o/r")
    told = git_repository.environment(os.environ, token.url, SourceLimits(), partial=False)
    assert told["GIT_ALLOW_PROTOCOL"] == "https"
    assert not {name for name in told if name.startswith("GIT_") and name in os.environ} - set(told)


def test_a_repository_of_this_host_needs_no_server(tmp_path: Path) -> None:
    commit(FILES, tmp_path / "repo")
    source = open_source(f"git+file://{tmp_path}/repo#skills")
    found = source.list().first()["a"]
    assert stat.S_IMODE((found.path / "SKILL.md").stat().st_mode) == 0o444
    assert found.origin == f"a in git+file://{tmp_path}/repo#skills"
    # A server that knows no filters sends more, and the same comes of it.
    git(tmp_path / "repo", "config", "uploadpack.allowFilter", "false")
    git(tmp_path / "repo", "commit", "-q", "--allow-empty", "-m", "y")
    before = source.fingerprint()
    source.refresh()
    assert source.fingerprint() == before and source.list().problems == ()
