"""Roots that fsspec reaches: the same actions, confined by names of our own, on memory and on an S3 server."""
# ruff: noqa: E501 (hostile texts)

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor import Grant, GrantError
from executor.bridge.codes import BridgeError
from executor.bridge.grant import intersection
from executor.bridge.remote import RemoteFolder

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """Options for a server with a bucket called `shelf`."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "key": "k",
        "secret": "s",
        "client_kwargs": {"endpoint_url": f"http://{host}:{port}", "region_name": "eu-west-1"},
    }
    fsspec.filesystem("s3", **options).mkdir("shelf")
    yield options
    server.stop()


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """(URL of the root, options, file system), with a secret beside the root."""
    if request.param == "memory":
        url, options, above = "memory://shelf/notes", {}, "/shelf"
    else:
        url, options, above = "s3://shelf/notes", request.getfixturevalue("s3"), "shelf"
    storage = fsspec.filesystem(request.param, **options)
    for name, text in (("notes/a.txt", b"hello"), ("notes/sub/n.md", b"n"), ("notes/sub/deep/m.md", b"m"),
                       ("secret.txt", b"secret outside"), ("notes2/x.txt", b"secret outside")):  # fmt: skip
        storage.pipe_file(f"{above}/{name}", text)
    yield url, options, storage
    storage.rm(f"{above}/notes", recursive=True)


def made(place: tuple[str, dict[str, Any], Any], *, most: int = 1000, entries: int = 100) -> RemoteFolder:
    return RemoteFolder(place[0], place[1], most=most, entries=entries)


def code(folder: RemoteFolder, action: str, **params: Any) -> str:
    with pytest.raises(BridgeError) as caught:
        folder.do(action, params)
    return caught.value.code


def test_reading(place: Any) -> None:
    folder = made(place)
    assert folder.do("read", {"path": "a.txt"}) == "hello"
    assert folder.do("read", {"path": "./sub//n.md"}) == "n"
    assert [entry["name"] for entry in folder.do("list", {"path": "."})] == ["a.txt", "sub"]
    assert [(entry["name"], entry["type"]) for entry in folder.do("list", {"path": "sub"})] == [
        ("deep", "directory"),
        ("n.md", "file"),
    ]
    assert folder.do("glob", {"pattern": "**/*.md"}) == ["sub/deep/m.md", "sub/n.md"]
    assert folder.do("glob", {"pattern": "*"}) == ["a.txt"]
    found = folder.do("stat", {"path": "a.txt"})
    assert (found["type"], found["size"]) == ("file", 5)
    assert found["mtime"] > 1e9
    assert folder.do("stat", {"path": "sub"})["type"] == "directory"
    assert folder.do("stat", {"path": "."})["type"] == "directory"
    assert folder.do("stat", {"path": "missing"}) is None
    assert code(folder, "read", path="missing") == "NOT_FOUND"
    assert code(folder, "read", path="sub") == "IS_DIR"
    assert code(folder, "read", path=".") == "IS_DIR"
    assert code(folder, "list", path="a.txt") == "NOT_DIR"
    part = folder.do("read", {"path": "a.txt", "offset": 1, "size": 3})
    assert (base64.b64decode(part["base64"]), part["size"]) == (b"ell", 5)
    assert base64.b64decode(folder.do("read", {"path": "a.txt", "offset": 9, "size": 3})["base64"]) == b""


def test_writing(place: Any) -> None:
    folder = made(place)
    data = bytes(range(256))
    assert folder.do("write", {"path": "new/b.bin", "base64": base64.b64encode(data).decode()}) == {
        "size": 256
    }
    assert folder.do("write", {"path": "a.txt", "text": "é"}) == {"size": 2}
    assert base64.b64decode(folder.do("read", {"path": "new/b.bin", "binary": True})["base64"]) == data
    assert folder.do("read", {"path": "a.txt"}) == "é"
    assert code(folder, "read", path="new/b.bin") == "NOT_UTF8"
    assert code(folder, "write", path="sub", text="x") == "IS_DIR"
    assert code(folder, "write", path=".", text="x") == "IS_DIR"
    assert code(folder, "write", path="x") == "TOOL_INPUT_INVALID"
    assert code(folder, "delete", path="sub") == "EXISTS"
    assert code(folder, "delete", path="missing") == "NOT_FOUND"
    assert code(folder, "delete", path=".") == "DENIED"
    folder.do("delete", {"path": "a.txt"})
    assert code(folder, "read", path="a.txt") == "NOT_FOUND"


OUTSIDE = [
    *(
        "../secret.txt",
        "/shelf/secret.txt",
        "sub/../../secret.txt",
        "a\0b",
        "a\nb",
        "\ud800",
        "x/" * 65 + "x",
        "..",
    ),
    *(
        "sub/..",
        "../notes2/x.txt",
        "../notes/a.txt",
        "%2e%2e/secret.txt",
        "..\\secret.txt",
        "a.txt?versionId=1",
    ),
    *("a.txt#x",),
]
INSIDE = [
    "memory://shelf/secret.txt",
    "s3://shelf/secret.txt",
    "file:///etc/passwd",
    "~/x",
    "sub*",
    "..;/s",
    "{a}[b]",
]


def test_names_that_lead_out(place: Any) -> None:
    folder = made(place)
    for path in OUTSIDE:
        for action in ("read", "list", "stat", "delete"):
            assert code(folder, action, path=path) == "BAD_PATH", path
        assert code(folder, "write", path=path, text="x") == "BAD_PATH"
    _, _, storage = place
    assert storage.cat_file("shelf/secret.txt") == b"secret outside"


def test_names_that_only_look_like_more_stay_inside(place: Any) -> None:
    folder = made(place)
    url, _, storage = place
    for path in INSIDE:
        assert code(folder, "read", path=path) == "NOT_FOUND", path
        folder.do("write", {"path": path, "text": "inside"})
        assert folder.do("read", {"path": path}) == "inside"
        written = url.partition("://")[2] + "/" + "/".join(part for part in path.split("/") if part)
        assert storage.cat_file(written) == b"inside"
    assert storage.cat_file("shelf/secret.txt") == b"secret outside"


def test_limits(place: Any) -> None:
    assert code(made(place, most=4), "read", path="a.txt") == "VALUE_TOO_LARGE"
    assert made(place, most=5).do("read", {"path": "a.txt"}) == "hello"
    part = made(place, most=4).do("read", {"path": "a.txt", "size": 100})
    assert base64.b64decode(part["base64"]) == b"hell"
    assert code(made(place, entries=1), "list", path=".") == "VALUE_TOO_LARGE"
    assert code(made(place, entries=1), "glob", pattern="**/*") == "VALUE_TOO_LARGE"


def test_a_revoked_grant_changes_nothing(place: Any) -> None:
    folder = made(place)
    folder.close()
    assert code(folder, "write", path="late.txt", text="x") == "REVOKED"
    assert code(folder, "delete", path="a.txt") == "REVOKED"
    assert made(place).do("read", {"path": "a.txt"}) == "hello"


def test_what_a_storage_says_stays_on_the_host(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(place)

    def fails(*_args: Any, **_more: Any) -> None:
        raise RuntimeError("key AKIA1234 at https://internal")

    monkeypatch.setattr(folder._storage, "info", fails)
    with pytest.raises(BridgeError) as caught:
        folder.do("read", {"path": "a.txt"})
    assert (caught.value.code, caught.value.message) == ("IO", "a.txt: the storage failed")


# -- grants -------------------------------------------------------------------------------------------


def test_roots_of_a_grant(tmp_path: Path) -> None:
    assert Grant(root="memory://a//b/").root == "memory://a/b"
    assert Grant(root="memory://").root == "memory://"
    assert Grant(root=f"file://{tmp_path}").root == tmp_path  # confined as every folder of this machine
    assert Grant(root="memory://a").right == "read"
    assert "pass" not in repr(Grant(root="memory://a", root_options={"password": "pass"}))
    for wrong in (
        "nothing://x",
        "memory://a/../b",
        "s3://",
        "simplecache::s3://b/x",
        "s3://a\nb",
        "a b://x",
        "file:///nowhere",
    ):
        with pytest.raises(GrantError):
            Grant(root=wrong)


def test_the_inner_root_counts(tmp_path: Path) -> None:
    outer = Grant(root="memory://a/b", workspace="read-write", root_options={"o": 1})
    inner = Grant(root="memory://a/b/c", root_options={"o": 2})
    both = intersection(outer, inner)
    assert (both.root, both.right, both.root_options) == ("memory://a/b/c", "read", {"o": 2})
    assert intersection(inner, outer).root == "memory://a/b/c"
    for other in ("memory://a/bc", "memory://a2"):
        assert intersection(outer, Grant(root=other)).right == "none"
    assert intersection(outer, Grant(root=tmp_path)).right == "none"
    assert intersection(Grant(workspace="read"), outer).root == "memory://a/b"
