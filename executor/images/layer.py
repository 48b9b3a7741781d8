"""Tar files whose bytes depend on their content only, and the archive that `docker load` takes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from executor.errors import ExecutorError

EPOCH = 1735689600  # 2025-01-01, the time of everything inside: a build must not depend on when it ran
CREATED = "2025-01-01T00:00:00Z"
ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8")
ENGINE_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}  # processors as images name them
# Filled by the runtime; the folders themselves stay.
RUNTIME_OWN = ("dev/", "proc/", "sys/", "run/", ".dockerenv")


@dataclass(frozen=True)
class Entry:
    """A file, link or folder to be laid over the system."""

    mode: int = 0o644
    data: bytes | None = None
    link: str | None = None
    source: Path | None = None
    """A file whose bytes these are, for what is too much to hold."""

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self.source.stat().st_size if self.source is not None else len(self.data or b"")

    def open(self) -> IO[bytes]:
        """The content."""
        return self.source.open("rb") if self.source is not None else io.BytesIO(self.data or b"")

    def header(self, path: str) -> tarfile.TarInfo:
        info = tarfile.TarInfo(path)
        info.mode = self.mode
        if self.link is not None:
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, self.link, 0o777
        elif self.data is None and self.source is None:
            info.type = tarfile.DIRTYPE
        else:
            info.size = self.size
        return info


def write_layer(system: Path | None, overlay: Mapping[str, Entry], target: IO[bytes]) -> None:
    """Merges the system's tar (any order, any times) and the overlay into one canonical tar.

    Sorted by name, numeric owners, one time for everything, no set-id bits, no extended attributes, neither
    devices nor sockets. Where both have a path the overlay wins.
    """
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(tarfile.open(system, "r:")) if system else None
        members: dict[str, tarfile.TarInfo] = {}
        for member in source or ():
            path = _tar_path(member.name)
            if path.startswith(RUNTIME_OWN):
                continue
            if path and (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                if member.islnk():
                    member.linkname = _tar_path(member.linkname)
                members[path] = member
        wanted = dict(overlay)
        for path in overlay:
            for parent in PurePosixPath(path).parents:
                if str(parent) != "." and str(parent) not in members:
                    wanted.setdefault(str(parent), Entry(mode=0o755))
        first: dict[str, str] = {}  # an inode's own name -> the name it got here, the first of its hard links
        for path in sorted({*members, *wanted}):
            if path in wanted:
                entry = wanted[path]
                target.write(_header(entry.header(path)))
                with entry.open() as content_of_entry:
                    _copy(content_of_entry, target, entry.size)
                continue
            member = members[path]
            info = tarfile.TarInfo(path)
            info.type, info.linkname = member.type, member.linkname
            info.mode, info.uid, info.gid = member.mode, member.uid, member.gid
            content = member
            if member.isreg() or member.islnk():
                inode = _inode(members, path)
                content = members[inode]
                if inode in first:
                    info.type, info.linkname = tarfile.LNKTYPE, first[inode]
                else:
                    first[inode] = path
                    info.type, info.linkname, info.size = tarfile.REGTYPE, "", content.size
            if not info.issym():
                info.mode &= ~(stat.S_ISUID | stat.S_ISGID)
            target.write(_header(info))
            if info.isreg():
                assert source is not None
                data = source.extractfile(content)
                assert data is not None
                _copy(data, target, content.size)
    target.write(b"\0" * 1024)


def _inode(members: Mapping[str, tarfile.TarInfo], path: str) -> str:
    for _ in range(len(members)):
        if not members[path].islnk():
            return path
        path = members[path].linkname
        if path not in members:
            break
    raise ExecutorError(f"the system's tar has a hard link to {path!r}, which it does not contain")


def _tar_path(name: str) -> str:
    path = name.removeprefix("./").strip("/")
    return "" if path == "." else path


def _header(info: tarfile.TarInfo) -> bytes:
    info.mtime, info.uname, info.gname = EPOCH, "", ""
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> None:
    shutil.copyfileobj(source, target, 1 << 20)
    target.write(b"\0" * (-size % 512))


def tar_of(entries: Mapping[str, Entry]) -> bytes:
    """A small canonical tar."""
    buffer = io.BytesIO()
    write_layer(None, entries, buffer)
    return buffer.getvalue()


def image_config(machine: str, layer_digest: str, labels: Mapping[str, str]) -> bytes:
    """The image's config; its SHA-256 is the image id."""
    config = {
        "architecture": ENGINE_NAMES[machine],
        "os": "linux",
        "created": CREATED,
        "config": {
            "Cmd": ["bash"],
            "Env": list(ENVIRONMENT),
            "Labels": dict(labels),
            "User": "1000:1000",
            "WorkingDir": "/workspace",
        },
        "history": [{"created": CREATED, "created_by": "executor images build"}],
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }
    return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()


def docker_archive(tag: str, config: bytes, layer: Path, layer_digest: str) -> Iterator[bytes]:
    """What `docker load` reads, as a stream: the layer is not copied to disk a second time."""
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    layer_name = f"{layer_digest}/layer.tar"
    manifest = [{"Config": config_name, "RepoTags": [tag], "Layers": [layer_name]}]
    small = {"manifest.json": json.dumps(manifest).encode(), config_name: config}
    for path, data in small.items():
        yield _header(Entry(data=data).header(path)) + data + b"\0" * (-len(data) % 512)
    yield _header(Entry(mode=0o755).header(layer_digest))
    info = tarfile.TarInfo(layer_name)
    info.size, info.mode = layer.stat().st_size, 0o644
    yield _header(info)
    with open(layer, "rb") as stream:
        while chunk := stream.read(1 << 20):
            yield chunk
    yield b"\0" * (-info.size % 512) + b"\0" * 1024


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
