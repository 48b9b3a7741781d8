"""A session's files survive it: checkpoint on one runtime, go on in a fresh sandbox of any."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor import BadRequestError, Executor, RuntimeUnavailableError, SandboxError, Settings, StateError
from executor.workspace.archive import export_session, import_session
from tests.conftest import REQUIRED

MAKE = r"""
mkdir -p out/deep/er work/empty && printf 'a\0b' > out/deep/er/bin && echo text > work/t.txt
chmod 755 work/t.txt && touch -d '2001-02-03 04:05:06 UTC' work/t.txt
ln -s ../work/t.txt out/link && ln -s /nowhere out/dangling
printf x > $'out/odd\n\xff name'
echo changed >> "$SKILL_DIR/SKILL.md" && mkfifo out/fifo
"""
SHOW = r"""
find /workspace /skills -not -path '*/runs*' -not -name fifo -printf '%P %y %m %l\n' | LC_ALL=C sort
find /workspace /skills -type f -not -path '*/runs/*' -exec sha256sum {} + | LC_ALL=C sort -k2
stat -c %Y work/t.txt
"""


@pytest.fixture
def keeping(runtime: str, executor: Executor, skills_root: Path, tmp_path: Path) -> Iterator[Executor]:
    """An executor that keeps its checkpoints in a folder of the test's own."""
    settings = Settings(state_dir=str(tmp_path / "state"))
    with Executor(skills=[skills_root], runtime=runtime, settings=settings) as made:
        yield made


def test_a_restored_session_has_every_file_as_it_was(keeping: Executor) -> None:
    name = f"s-{secrets.token_hex(4)}"
    with keeping.session(name) as session:
        session.exec(MAKE, skill="sales-report", cwd="/workspace")
        before = session.exec(SHOW)
        session.checkpoint()
        warned = session.exec("true").warnings
    assert [text for text in warned if "fifo" in text], warned
    with keeping.restore(name) as session:
        after = session.exec(SHOW)
        assert after.stdout == before.stdout
        assert "out/link l 777 ../work/t.txt" in after.stdout
        assert after.stdout.endswith("981173106\n")


LOCK = r"""
cd work && mkdir -p a/b/c write-only closed private && echo 1 > a/b/c/f && echo 2 > write-only/f
echo 3 > secret && ln secret a/again && echo 4 > a/open && ln -s open a/link && mkfifo a/fifo
echo 5 > append
chmod 200 append && chmod 0 secret a/b/c/f a/b/c a/b a closed && chmod 311 write-only && chmod 700 private
"""
SHOW_LOCKED = "stat -c '%n %a' a secret write-only append closed private"
UNLOCK = r"""
chmod -R u+rwX . && find . -not -type d -printf '%P %l|' | tr '|' '\n' | LC_ALL=C sort
cat a/again a/b/c/f a/link append secret write-only/f
"""


def test_what_its_owner_has_locked_is_kept_and_stays_locked(keeping: Executor) -> None:
    """Folders and files whose mode keeps their owner out; while something runs they are left as they are."""
    with keeping.session("locked") as session:
        session.exec(LOCK, cwd="/workspace")
        locked = session.exec(SHOW_LOCKED, cwd="work").stdout
        run = session.start("sleep 600")
        session.checkpoint()
        warned = " ".join(session.exec("true").warnings)
        assert "work/a cannot be read: what is in it is left out" in warned
        assert "work/secret could not be read" in warned
        run.kill()
        session.checkpoint()
        warned = " ".join(session.exec("true").warnings)
        assert "cannot" not in warned and "could not" not in warned, warned
        assert session.exec(SHOW_LOCKED, cwd="work").stdout == locked
    with keeping.restore("locked") as session:
        assert session.exec(SHOW_LOCKED, cwd="work").stdout == locked
        session.checkpoint()
        found = session.exec(UNLOCK, cwd="work").stdout.split()
        assert found[:6] == ["a/again", "a/b/c/f", "a/link", "open", "a/open", "append"]
        assert found[6:] == ["inputs", "../inputs", "secret", "write-only/f", *"314532"]


def test_an_unchanged_skill_keeps_what_a_script_wrote_into_it_after_a_restore(keeping: Executor) -> None:
    with keeping.session("skill") as session:
        session.exec("echo mine > note.txt", skill="sales-report")
        session.checkpoint()
    with keeping.restore("skill") as session:
        session.load("sales-report")
        assert session.exec("cat note.txt", skill="sales-report").stdout == "mine\n"


def test_a_second_checkpoint_sees_a_change_that_hides_behind_the_old_time_and_size(keeping: Executor) -> None:
    with keeping.session("again") as session:
        session.exec("printf aaaa > work/f; touch -d @1000000000 work/f")
        first = session.checkpoint()
        session.exec("printf bbbb > work/f; touch -d @1000000000 work/f")
        assert session.checkpoint() != first
    with keeping.restore("again") as session:
        assert session.read("work/f") == b"bbbb"


def test_a_removed_file_is_gone_after_the_next_checkpoint(keeping: Executor) -> None:
    with keeping.session("gone") as session:
        session.exec("echo 1 > out/a; echo 2 > out/b")
        session.checkpoint()
        session.exec("rm out/a")
        session.checkpoint()
    with keeping.restore("gone") as session:
        assert [file.path for file in session.collect()] == ["out/b"]


def test_a_session_without_a_checkpoint_cannot_be_restored(keeping: Executor) -> None:
    with pytest.raises(BadRequestError, match="has no checkpoint"):
        keeping.restore("never-was")


def test_a_damaged_content_is_refused(keeping: Executor) -> None:
    with keeping.session("damaged") as session:
        session.put("work/f", b"precious")
        session.checkpoint()
    for path in keeping.store.folder.glob("objects/*/*"):
        path.write_bytes(b"poisoned")
    with pytest.raises(StateError, match="the snapshot is damaged"), keeping.restore("damaged"):
        pass


def test_a_damaged_snapshot_is_refused(keeping: Executor) -> None:
    with keeping.session("damaged") as session:
        session.put("work/f", b"precious")
        snapshot = session.checkpoint()
    path = keeping.store.folder / "snapshots" / f"{snapshot}.json"
    path.write_bytes(path.read_bytes().replace(b"work/f", b"work/g"))
    with pytest.raises(StateError, match="does not have the hash of its name"):
        keeping.restore("damaged")


def test_the_store_keeps_equal_contents_once_and_to_its_owner(keeping: Executor) -> None:
    with keeping.session("twice") as session:
        session.exec("echo same > out/a; echo same > out/b")
        session.checkpoint()
    objects = list(keeping.store.folder.glob("objects/*/*"))
    assert len(objects) == 1
    assert not (keeping.store.folder / "objects").stat().st_mode & 0o077
    assert not list(keeping.store.folder.rglob(".part-*"))


def test_names_that_only_begin_like_the_folder_of_runs_are_kept(keeping: Executor) -> None:
    with keeping.session("names") as session:
        session.exec("echo keep > /workspace/runs.txt")
        session.checkpoint()
    with keeping.restore("names") as session:
        assert session.read("runs.txt") == b"keep\n"


def test_a_workspace_that_cannot_be_listed_does_not_replace_the_last_checkpoint(keeping: Executor) -> None:
    with keeping.session("closed") as session:
        session.exec("echo good > work/f")
        session.checkpoint()
        session.exec("chmod 0 /workspace")
        with pytest.raises(SandboxError, match="no checkpoint was taken: /workspace cannot be listed"):
            session.checkpoint()
    with keeping.restore("closed") as session:
        assert session.read("work/f") == b"good\n"


def test_a_file_in_the_place_of_a_folder_does_not_lock_the_session(keeping: Executor) -> None:
    with keeping.session("blocked") as session:
        session.exec("rm -rf /workspace/out; echo > /workspace/out; echo mine > work/f")
        session.checkpoint()
        assert "out is no folder any more: left out" in session.exec("true").warnings
    with keeping.restore("blocked") as session:
        assert session.exec("cat work/f; echo x > out/a").stdout == "mine\n"


def test_a_restored_session_copies_only_what_changed_since(keeping: Executor) -> None:
    with keeping.session("twice") as session:
        session.exec("for i in $(seq 20); do echo $i > work/$i; done; ln -s 1 work/l")
        first = session.checkpoint()
    asked: list[bytes] = []
    with keeping.restore("twice") as session:
        channel = session._inner._box.channel
        assert channel is not None
        get = channel.get_files

        async def counted(paths: list[bytes], **options: Any) -> None:
            asked.extend(paths)
            await get(paths, **options)

        channel.get_files = counted  # type: ignore[method-assign]
        assert session.checkpoint() == first
        session.exec("echo x > work/7; echo y > work/new; rm work/8; touch work/9")
        session.checkpoint()
    assert sorted(asked) == [b"/workspace/work/7", b"/workspace/work/9", b"/workspace/work/new"]
    with keeping.restore("twice") as session:
        assert session.exec("cat work/7 work/9 work/new; ls work | wc -l").stdout == "x\n9\ny\n22\n"


def test_files_that_are_larger_than_their_disk_are_no_checkpoint(keeping: Executor) -> None:
    with keeping.session("sparse") as session:
        session.exec("truncate -s 200M work/a work/b work/c work/d")
        with pytest.raises(SandboxError, match="its files are more than 768 MiB together"):
            session.checkpoint()
        session.exec("rm work/d; truncate -s 0 work/*")
        session.checkpoint()


def test_a_session_goes_on_with_the_other_runtime_and_on_another_machine(
    keeping: Executor, runtime: str, tmp_path: Path
) -> None:
    other = "container" if runtime == "local" else "local"
    with keeping.session("moves") as session:
        session.exec(MAKE, skill="sales-report", cwd="/workspace")
        before = session.exec(SHOW).stdout
        session.checkpoint()
    export_session(keeping.store, "moves", tmp_path / "moves.tar.gz")
    elsewhere = Settings(state_dir=str(tmp_path / "elsewhere"))
    with Executor(skills=keeping.settings.skills, runtime=other, settings=elsewhere) as made:
        try:
            made.choose_runtime()
        except RuntimeUnavailableError:
            if other in REQUIRED:
                raise
            pytest.skip(f"there is no {other} runtime here")
        import_session(made.store, tmp_path / "moves.tar.gz", session="moved")
        with made.restore("moved") as session:
            assert session.exec(SHOW).stdout == before
            assert session.staged == {"sales-report": ""}  # whether it is, only the archive says
            session.exec("echo 'print(1)' > scripts/report.py", skill="sales-report")
            session.load("sales-report")
            assert session.exec("cat scripts/report.py", skill="sales-report").stdout != "print(1)\n"
            assert len(session.staged["sales-report"]) == 64
