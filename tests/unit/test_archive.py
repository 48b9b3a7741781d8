"""Sessions as files: equal ones are equal, and whatever differs from what export writes is refused whole."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor.errors import BadPathError, BadRequestError, StateError
from executor.workspace import archive
from executor.workspace.archive import export_session, header, import_session, signed
from executor.workspace.checkpoint import Store
from executor.workspace.snapshot import DamagedError, Saved, Snapshot, canonical

FILES = {
    b"/workspace/out/report.txt": b"a report\n" * 1000,
    b"/workspace/out/same": b"a report\n" * 1000,
    b"/workspace/work/empty": b"",
    b"/workspace/work/odd\n\xff name": b"odd",
    b"/skills/x/" + b"n" * 200: b"long",
}


def keep(store: Store, session: str, files: dict[bytes, bytes]) -> Snapshot:
    """A session with these files, as a checkpoint would leave it."""
    parts: dict[str, Path] = {}
    entries = [
        Saved(b"/workspace/out", "folder", 0o755),
        Saved(b"/workspace/work", "folder", 0o755),
        Saved(b"/workspace/work/away", "link", 0o777, target=b"/etc/passwd"),
    ]
    for path, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 not in parts:
            parts[sha256], file = store.objects.part()
            with file:
                file.write(content)
        entries.append(Saved(path, "file", 0o755, len(content), 981173106 * 10**9, sha256))
    snapshot = Snapshot(entries, {"x": {"digest": "d", "files": {"n": "0"}}})
    data = snapshot.sealed()
    store.objects.add(parts, (snapshot.id, data))
    store.sessions.add(
        session, runtime="local", image="", snapshot=snapshot.id, files=len(files), size=1, skills=["x"]
    )
    return snapshot


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "state")
    keep(made, "s", FILES)
    return made


@pytest.fixture
def packed(store: Store, tmp_path: Path) -> Path:
    path = tmp_path / "s.tar"
    export_session(store, "s", path)
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store into which nothing may come."""
    return Store(tmp_path_factory.mktemp("other") / "state")


def contents(folder: Path) -> list[str]:
    """What is in a store but for its locks and database."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if "state.sqlite" not in path.name
    )


@pytest.mark.parametrize("name", ["s.tar", "s.tar.gz"])
def test_what_was_exported_comes_in_elsewhere_as_it_was(store: Store, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    export_session(store, "s", path)
    assert path.stat().st_mode & 0o777 == 0o600
    other = Store(tmp_path / "other")
    found = import_session(other, path)
    assert (found.session, found.files) == ("s", len(FILES))
    kept = other.sessions.get("s")
    assert kept is not None and (kept.limits, kept.durable, kept.skills) == (None, True, ("x",))
    snapshot = other.verify(kept)
    assert snapshot.entries == store.latest("s").entries  # type: ignore[union-attr]
    # That it is that skill is only what the archive says: whoever loads it gets this machine's.
    assert snapshot.skills == {"x": {"digest": "", "files": {}}}
    read = {
        entry.path: b"".join(other.objects.read(entry.sha256)) for entry in snapshot.entries if entry.sha256
    }
    assert read == FILES
    again = [tmp_path / f"{time}-{name}" for time in ("again", "once-more")]
    export_session(other, "s", again[0])
    third = Store(tmp_path / "third")
    import_session(third, again[0])
    export_session(third, "s", again[1])
    assert again[0].read_bytes() == again[1].read_bytes()
    assert not list(tmp_path.rglob(".part-*"))


def test_any_tar_program_can_look_into_it(packed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    subprocess.run(["tar", "xf", packed, "-C", folder], check=True)
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    odd, long = (hashlib.sha256(text).hexdigest() for text in (b"odd", b"long"))
    plain = {"session.json", "workspace/out/report.txt", "workspace/out/same", "workspace/work/empty"}
    assert set(found) == {*plain, f"objects/{odd}", f"objects/{long}"}
    assert found["workspace/out/report.txt"].stat().st_mode & 0o777 == 0o644
    assert not any(path.is_symlink() for path in folder.rglob("*"))


def test_an_export_is_whole_or_not_at_all_and_over_nothing(
    store: Store, packed: Path, tmp_path: Path
) -> None:
    before = packed.read_bytes()
    with pytest.raises(BadPathError, match="exists already"):
        export_session(store, "s", packed)
    export_session(store, "s", packed, overwrite=True)
    assert packed.read_bytes() == before
    with pytest.raises(BadRequestError, match="'never' has no checkpoint"):
        export_session(store, "never", tmp_path / "never.tar")
    with pytest.raises(BadPathError, match="cannot write"):
        export_session(store, "s", tmp_path / "missing/s.tar")
    damaged = next(path for path in store.folder.glob("objects/*/*") if path.stat().st_size > 100)
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    with pytest.raises(StateError, match="the snapshot is damaged"):
        export_session(store, "s", packed, overwrite=True)
    assert packed.read_bytes() == before
    assert not list(tmp_path.rglob(".part-*"))


def test_an_id_that_is_taken_or_none_is_refused(store: Store, packed: Path) -> None:
    with pytest.raises(BadRequestError, match="there is a session 's' already") as caught:
        import_session(store, packed)
    assert "--as ID" in caught.value.hint
    with pytest.raises(BadRequestError, match="cannot be a session's id"):
        import_session(store, packed, session="../s")
    assert import_session(store, packed, session="copy").session == "copy"


# -- hostile archives --


def test_an_archive_that_differs_in_any_byte_or_length_is_refused_whole(packed: Path, tmp_path: Path) -> None:
    data = packed.read_bytes()
    other = Store(tmp_path / "another")
    hostile = tmp_path / "hostile.tar"
    head = 512 + int(data[124:135], 8)
    places = {*range(0, 512, 11), *range(512, head, 97), *range(head, len(data), 97), len(data) - 1}
    for place in sorted(places):
        hostile.write_bytes(data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :])
        with pytest.raises((StateError, BadRequestError)):
            import_session(other, hostile)
    for cut in (0, 1, 511, 512, head, head + 700, len(data) - 512, len(data) - 1):
        hostile.write_bytes(data[:cut])
        with pytest.raises(StateError):
            import_session(other, hostile)
    for more in (b"\0", bytes(10_240), data):
        hostile.write_bytes(data + more)
        with pytest.raises(StateError, match="more behind its end"):
            import_session(other, hostile)
    assert other.sessions.all() == []
    assert contents(other.folder) == ["lock", "objects"]
    import_session(other, packed)


def test_a_damaged_gzip_is_refused(store: Store, other: Store, tmp_path: Path) -> None:
    path = tmp_path / "s.tar.gz"
    export_session(store, "s", path)
    data = path.read_bytes()
    for hostile in (data[:-9], data[:40], data[:60] + b"\xff" * 20 + data[80:], data + b"more", b"\x1f\x8b"):
        path.write_bytes(hostile)
        with pytest.raises(StateError):
            import_session(other, path)
    assert other.sessions.all() == []


def made(change: Callable[[dict[str, Any]], object], files: dict[str, bytes] | None = None) -> bytes:
    """An archive that is right in everything but what `change` does to its `session.json`."""
    content = b"content"
    entry = {"path": "/workspace/out/f", "kind": "file", "mode": 0o644, "mtime_ns": 0, "target": ""}
    entry |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    value: dict[str, Any] = {
        "format": "executor-session",
        "version": 1,
        "session": {"id": "s", "runtime": "local", "image": ""},
        "snapshot": {"version": 1, "entries": [entry], "skills": {}},
    }
    change(value)
    head = canonical(signed(value))
    pieces = [header("session.json", len(head), 0), head, bytes(-len(head) % 512)]
    for name, data in (files or {"workspace/out/f": content}).items():
        pieces += [header(name, len(data), 0), data, bytes(-len(data) % 512)]
    return b"".join([*pieces, bytes(1024)])


def entry(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda value: value["snapshot"]["entries"][0].update(fields)


def more(*entries: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    plain = {"kind": "folder", "mode": 0o755, "size": 0, "mtime_ns": 0, "sha256": "", "target": ""}
    return lambda value: value["snapshot"]["entries"].extend({**plain, **extra} for extra in entries)


def layer(digest: str) -> Callable[[dict[str, Any]], object]:
    found = {"digest": digest, "python": "", "node": False, "node_folder": ""}
    skill = {"digest": "d", "files": {}, "layer": found}
    return lambda value: value["snapshot"].update(skills={"x": skill})


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a path that leaves": entry(path="/workspace/../etc/passwd"),
    "a path elsewhere": entry(path="/etc/passwd"),
    "a relative path": entry(path="workspace/f"),
    "a root": entry(path="/workspace"),
    "a name with NUL": entry(path="/workspace/a\0b"),
    "an endless name": entry(path="/workspace/" + "a" * 256),
    "too many levels": entry(path="/workspace" + "/a" * 200),
    "a name that is no bytes": entry(path="/workspace/\ud812"),
    "a path that is no text": entry(path=7),
    "another kind": entry(kind="device"),
    "a mode beyond all": entry(mode=0o170000),
    "a size below zero": entry(size=-1),
    "a size that is no number": entry(size=1.5),
    "a size that is a truth": entry(size=True),
    "a size beyond all": entry(size=1 << 60),
    "a time beyond all": entry(mtime_ns=1 << 63),
    "a hash that is a path": entry(sha256="../../../../etc/passwd"),
    "no hash": entry(sha256=""),
    "a file with a target": entry(target="x"),
    "a link without a target": more({"path": "/workspace/out/l", "kind": "link"}),
    "a link with a size": more({"path": "/workspace/out/l", "kind": "link", "target": "x", "size": 1}),
    "an endless target": more({"path": "/workspace/out/l", "kind": "link", "target": "x" * 5000}),
    "something below a file": more({"path": "/workspace/out/f/x"}),
    "the same path twice": more({"path": "/workspace/out/f"}),
    "another order": more({"path": "/workspace/a"}),
    "a field more": entry(owner=0),
    "entries that are none": lambda value: value["snapshot"].update(entries={}),
    "an entry that is none": lambda value: value["snapshot"]["entries"].append("x"),
    "skills that are none": lambda value: value["snapshot"].update(skills=[]),
    "a skill that leaves": lambda value: value["snapshot"].update(
        skills={"..": {"digest": "d", "files": {}}}
    ),
    "a skill with another field": lambda value: value["snapshot"].update(skills={"x": {"digest": "d"}}),
    "a layer that is a path": layer("../../../etc/x"),
    "a snapshot of a later version": lambda value: value["snapshot"].update(version=2),
    "a later version": lambda value: value.update(version=2),
    "another format": lambda value: value.update(format="x"),
    "something more": lambda value: value.update(more=1),
    "nobody": lambda value: value.update(session={}),
    "an owner that is no text": lambda value: value["session"].update(id=1),
    "an id that is a path": lambda value: value["session"].update(id="../x"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_description_is_refused(
    other: Store, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(made(change))
    with pytest.raises((StateError, BadRequestError)):
        import_session(other, path)
    assert other.sessions.all() == []
    assert not list(other.folder.glob("objects/*")) and not list(other.folder.glob("snapshots/*"))


def test_the_same_description_without_the_change_is_taken(tmp_path: Path) -> None:
    """The control of the hostile ones."""
    path = tmp_path / "s.tar"
    path.write_bytes(made(lambda _value: None))
    assert import_session(Store(tmp_path / "another"), path).files == 1


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"workspace/out/g": b"content"},
        {"/workspace/out/f": b"content"},
        {"workspace/out/f": b"CONTENT"},
        {"workspace/out/f": b"content and more"},
        {"workspace/out/f": b"content", "workspace/out/../../../etc/x": b"x"},
        {"workspace/out/f": b"content", "session.json": b"{}"},
    ],
)
def test_other_files_than_those_described_are_refused(
    other: Store, tmp_path: Path, files: dict[str, bytes]
) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(made(lambda _value: None, files or {"x": b""}))
    with pytest.raises(StateError):
        import_session(other, path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, b"x"])
def test_an_archive_of_anything_but_files_is_refused(other: Store, tmp_path: Path, kind: bytes) -> None:
    made_by = io.BytesIO()
    with tarfile.open(fileobj=made_by, mode="w") as tar:
        info = tarfile.TarInfo("session.json")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    path = tmp_path / "s.tar"
    path.write_bytes(made_by.getvalue())
    with pytest.raises(StateError, match="does not begin as one"):
        import_session(other, path)


def bomb(text: bytes) -> bytes:
    return header("session.json", len(text), 0) + text + bytes(-len(text) % 512) + bytes(1024)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b"[1," * 6_000_000,
        b'{"format": NaN}',
        b'{"format": "executor-session"}',
        b"\xff",
        b"7",
    ],
    ids=["deep", "many values", "NaN", "short", "no text", "a number"],
)
def test_a_description_that_is_a_bomb_is_refused(other: Store, tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(gzip.compress(bomb(text), 1))
    with pytest.raises(StateError):
        import_session(other, path)


LONG = [b"/workspace/" + b"\xff" * 250 + b"/%d" % number for number in range(45_000)]


@pytest.mark.parametrize(
    "paths",
    [[b"/workspace" + b"/a" * 130], [b"/workspace" + (b"/" + b"a" * 250) * 17], [b"/workspace"], LONG],
    ids=["deep", "long", "a root", "more bytes than are read"],
)
def test_what_could_not_be_read_back_is_never_sealed(paths: list[bytes]) -> None:
    """Else the checkpoint would be a session's latest, and the session lost."""
    with pytest.raises(DamagedError):
        Snapshot([Saved(path, "folder", 0o755) for path in sorted(paths)]).sealed()


def test_an_archive_for_which_there_is_no_room_is_refused_before_it_is_read(
    other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(made(entry(size=1 << 39)))
    with pytest.raises(StateError, match="has room for"):
        import_session(other, path)
    monkeypatch.setattr(archive, "SPARE", 0)
    with pytest.raises(StateError):
        import_session(other, path)


def test_a_file_that_is_not_there_or_no_archive_is_named(other: Store, tmp_path: Path) -> None:
    for source in (tmp_path / "missing", tmp_path, Path(os.devnull)):
        with pytest.raises(StateError, match=str(source)):
            import_session(other, source)
    (tmp_path / "text").write_text(json.dumps({}))
    with pytest.raises(StateError, match="text is no archive of a session"):
        import_session(other, tmp_path / "text")
