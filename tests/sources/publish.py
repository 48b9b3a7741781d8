"""The same skills by every way in which they can come: what is published, and under which root.

`Files` is path → bytes; a path that ends in `!` is an executable file of the name without it.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import shutil
import ssl
import subprocess
import tarfile
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Files = Mapping[str, bytes]
_numbers = itertools.count()


def skill(name: str, description: str = "d", body: str = "body") -> bytes:
    """A SKILL.md."""
    return f"---\nname: {name}\ndescription: {description}\n---\n{body}\n".encode()


def split(path: str) -> tuple[str, bool]:
    """(path, executable)"""
    return path.removesuffix("!"), path.endswith("!")


# --- forms --------------------------------------------------------------------------------------------------


def write_folder(files: Files, folder: Path) -> Path:
    """As files of a folder, and nothing else in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, data in files.items():
        name, executable = split(path)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o755 if executable else 0o644)
    return folder


def as_zip(files: Files, top: str = "") -> bytes:
    """A zip as Python writes it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            name, executable = split(path)
            info = zipfile.ZipInfo(top + name)
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return packed.getvalue()


def as_tar(
    files: Files, top: str = "", mode: str = "w:gz", form: int = tarfile.PAX_FORMAT, commit: str = ""
) -> bytes:
    """A tar as Python writes it; with `commit` as GitHub does: a global header, one top folder."""
    packed = io.BytesIO()
    headers = {"comment": commit} if commit else None
    with tarfile.open(fileobj=packed, mode=mode, format=form, pax_headers=headers) as archive:
        if top:
            folder = tarfile.TarInfo(top)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for path, data in files.items():
            name, executable = split(path)
            info = tarfile.TarInfo(top + name)
            info.size, info.mode = len(data), 0o755 if executable else 0o644
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def as_bundle(files: Files, scratch: Path) -> bytes:
    """A bundle of the skills that can be used."""
    from executor.skills.repository import Repository
    from executor.skills.sources.bundle import make

    return make(Repository([write_folder(files, scratch / f"bundled-{next(_numbers)}")]).skills()).data


# --- servers ------------------------------------------------------------------------------------------------


class Web:
    """An HTTP server. `files`: path → content. `git`: folder whose repositories it serves below `/git/`.

    `tls`: speak TLS with this certificate.
    """

    def __init__(self, git: Path, tls: ssl.SSLContext | None = None) -> None:
        self.git = git
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, int, dict[str, str]]] = []
        """(path, status, headers of the request) of every answer."""
        self.before: Callable[[BaseHTTPRequestHandler], bool] | None = None
        """Called in front of every answer; True: it has answered."""
        self.validators = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if outer.before is not None and outer.before(self):
                    return
                if self.path.startswith("/git/"):
                    outer.serve_git(self)
                    return
                data = outer.files.get(self.path.split("?")[0])
                tag = f'"{hashlib.md5(data).hexdigest()}"' if data is not None else ""
                if data is None:
                    self.say(404, b"")
                elif outer.validators and self.headers.get("If-None-Match") == tag:
                    self.say(304, b"", ETag=tag)
                else:
                    self.say(200, data, **({"ETag": tag} if outer.validators else {}))

            def do_POST(self) -> None:
                if outer.before is not None and outer.before(self):
                    return
                outer.serve_git(self)

            def say(self, status: int, data: bytes, **headers: str) -> None:
                outer.asked.append((self.path, status, dict(self.headers)))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                if status != 304:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http{'s' * (tls is not None)}://127.0.0.1:{self._server.server_port}"
        if tls is not None:
            # Not at once: a handshake that fails is the affair of its own thread.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )

    def reset(self) -> None:
        """Serve nothing, and answer as it should be."""
        self.files.clear()
        self.asked.clear()
        self.before = None
        self.validators = True

    def serve_git(self, request: BaseHTTPRequestHandler) -> None:
        """`git http-backend`, as a web server calls it."""
        path, _, query = request.path.partition("?")
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length)
        done = subprocess.run(
            ["git", "-c", "uploadpack.allowFilter=true", "-c", "safe.directory=*", "http-backend"],
            input=body,
            capture_output=True,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(self.git),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path.removeprefix("/git"),
                "QUERY_STRING": query,
                "REQUEST_METHOD": request.command,
                "CONTENT_TYPE": request.headers.get("Content-Type") or "",
                "CONTENT_LENGTH": str(length),
                "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding") or "",
                "GIT_PROTOCOL": request.headers.get("Git-Protocol") or "",
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        status = int(headers.pop("Status", "200 OK").split()[0])
        self.asked.append((request.path, status, dict(request.headers)))
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def __enter__(self) -> Web:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class S3:
    """A bucket."""

    def __init__(self, url: str) -> None:
        import boto3

        self.url = url
        self.bucket = f"bucket-{next(_numbers)}"
        self.client = boto3.client("s3", endpoint_url=url)
        self.client.create_bucket(Bucket=self.bucket)

    def put(self, files: Files, prefix: str = "skills/") -> None:
        """These objects below the prefix, and no others."""
        names = {prefix + split(path)[0]: data for path, data in files.items()}
        listed = self.client.list_objects_v2(Bucket=self.bucket, Prefix=prefix).get("Contents", ())
        for one in listed:
            if one["Key"] not in names:
                self.client.delete_object(Bucket=self.bucket, Key=one["Key"])
        for name, data in names.items():
            self.client.put_object(Bucket=self.bucket, Key=name, Body=data)

    def root(self, *options: str, prefix: str = "skills") -> str:
        """The root that names it."""
        return f"s3://{self.bucket}/{prefix}?" + "&".join([f"endpoint_url={self.url}", *options])


def commit(files: Files, folder: Path) -> str:
    """Commit these files, and no others, in a repository; its id."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q", "-b", "main")
        git(folder, "config", "uploadpack.allowFilter", "true")
    for entry in folder.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for path, data in files.items():
        name, executable = split(path)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o755 if executable else 0o644)
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


def git(folder: Path, *words: str) -> str:
    """Run git there; what it says."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own.update(GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_NOSYSTEM="1")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *who, *words], cwd=folder, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- kinds of sources ---------------------------------------------------------------------------------------


class Kind(ABC):
    """A way to publish. `far`: it is reached over a network. `whole`: broken skills and modes come along."""

    far = True
    broken_too = True
    modes = True

    def __init__(self, scratch: Path, web: Web, s3: S3 | None) -> None:
        self.scratch = scratch / f"published-{next(_numbers)}"
        self.web = web
        self.s3 = s3
        self.name = self.scratch.name
        self.made()

    def made(self) -> None:
        """Prepare."""

    @property
    @abstractmethod
    def root(self) -> str:
        """What names it."""

    @abstractmethod
    def publish(self, files: Files) -> None:
        """Offer these files instead of others."""

    def break_it(self) -> None:
        """The server does not answer any more."""
        self.web.before = lambda request: not request.close_connection and _hang_up(request)

    @abstractmethod
    def spoil(self) -> None:
        """Offer what cannot be a source."""


def _hang_up(request: BaseHTTPRequestHandler) -> bool:
    request.close_connection = True
    return True


class Folder(Kind):
    """A folder."""

    far = False

    @property
    def root(self) -> str:
        return str(self.scratch)

    def publish(self, files: Files) -> None:
        write_folder(files, self.scratch)

    def spoil(self) -> None:
        self.scratch.parent.mkdir(exist_ok=True, parents=True)
        (self.scratch).symlink_to(self.scratch)


class HttpArchive(Kind):
    """An archive over HTTP."""

    ending = ".zip"

    def packed(self, files: Files) -> bytes:
        """The archive."""
        return as_zip(files)

    @property
    def root(self) -> str:
        return f"{self.web.url}/{self.name}{self.ending}"

    def publish(self, files: Files) -> None:
        self.web.files[f"/{self.name}{self.ending}"] = self.packed(files)

    def spoil(self) -> None:
        self.web.files[f"/{self.name}{self.ending}"] = b"<html>no such page</html>"


class HttpTgz(HttpArchive):
    """A tar.gz over HTTP whose name says nothing."""

    ending = ""

    def packed(self, files: Files) -> bytes:
        return as_tar(files, form=tarfile.GNU_FORMAT)


class GitHubTar(HttpArchive):
    """As GitHub makes it."""

    ending = ".tar.gz"

    def packed(self, files: Files) -> bytes:
        return as_tar(files, top="repo-5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a/", commit="5a" * 20)


class HttpBundle(HttpArchive):
    """A bundle over HTTP."""

    ending = ".json"
    broken_too = False

    def packed(self, files: Files) -> bytes:
        return as_bundle(files, self.scratch)


class TarFile(Kind):
    """A tar of this host, by its path."""

    far = False
    ending = ".tar"

    def packed(self, files: Files) -> bytes:
        """The archive."""
        return as_tar(files, mode="w", form=tarfile.USTAR_FORMAT)

    @property
    def file(self) -> Path:
        """The archive's place."""
        return self.scratch / f"all{self.ending}"

    @property
    def root(self) -> str:
        return str(self.file)

    def publish(self, files: Files) -> None:
        self.scratch.mkdir(exist_ok=True)
        new = self.scratch / "new"
        new.write_bytes(self.packed(files))
        new.replace(self.file)

    def spoil(self) -> None:
        self.scratch.mkdir(exist_ok=True)
        self.file.write_bytes(b"no archive")


class ZipFileAddress(TarFile):
    """A zip of this host, by its address."""

    ending = ".zip"

    @property
    def root(self) -> str:
        return f"file://{self.file}"

    def packed(self, files: Files) -> bytes:
        return as_zip(files)


class BundleFile(TarFile):
    """A bundle of this host."""

    ending = ".json"
    broken_too = False

    def packed(self, files: Files) -> bytes:
        return as_bundle(files, self.scratch)


class GitHttp(Kind):
    """A branch, over HTTP."""

    @property
    def root(self) -> str:
        return f"git+{self.web.url}/git/{self.name}/.git@main"

    def publish(self, files: Files) -> None:
        commit(files, self.web.git / self.name)

    def spoil(self) -> None:
        (self.web.git / self.name).mkdir()


class GitFolder(Kind):
    """A folder of a repository of this host, at its HEAD."""

    far = False

    @property
    def root(self) -> str:
        return f"git+file://{self.scratch}/repo#a/folder"

    def publish(self, files: Files) -> None:
        commit(
            {**{f"a/folder/{path}": data for path, data in files.items()}, "other": b"x"},
            self.scratch / "repo",
        )

    def spoil(self) -> None:
        commit({"other": b"x"}, self.scratch / "repo")


class Bucket(Kind):
    """A bucket, fingerprint by content."""

    modes = False

    @property
    def root(self) -> str:
        assert self.s3 is not None
        return self.s3.root("fingerprint=content")

    def publish(self, files: Files) -> None:
        assert self.s3 is not None
        self.s3.put(files)

    def break_it(self) -> None:
        raise NotImplementedError

    def spoil(self) -> None:
        assert self.s3 is not None
        self.s3.client.delete_bucket(Bucket=self.s3.bucket)


KINDS: dict[str, type[Kind]] = {
    "folder": Folder,
    "zip over HTTP": HttpArchive,
    "tgz over HTTP by magic": HttpTgz,
    "GitHub tarball": GitHubTar,
    "tar file": TarFile,
    "zip at file:": ZipFileAddress,
    "bundle file": BundleFile,
    "bundle over HTTP": HttpBundle,
    "git over HTTP": GitHttp,
    "folder of a git repository": GitFolder,
    "bucket": Bucket,
}
