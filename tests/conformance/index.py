"""A package index and a registry of npm on loopback: real files, made here, and a real server process."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile
from pathlib import Path


class Index:
    """`simple/` as pip and uv ask for it, and the registry as npm does, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Serve the folder on a free port."""
        code = (
            "import http.server, functools, sys\n"
            "handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])\n"
            "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)\n"
            "print(server.server_port, flush=True)\n"
            "server.serve_forever()\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(self.folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        for _ in range(100):
            try:
                urllib.request.urlopen(self.url, timeout=5).close()
                return
            except OSError:
                time.sleep(0.05)

    def stop(self) -> None:
        """End the server: from now on the index does not answer."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    # -- Python --

    def wheel(
        self, name: str, version: str, files: dict[str, str], scripts: dict[str, str] | None = None
    ) -> Path:
        """Add a wheel. `scripts` are console scripts: name → `module:function`."""
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        content = {
            **files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        if scripts:
            lines = "".join(f"{key} = {value}\n" for key, value in scripts.items())
            content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}"
        content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
        path = self._file(name, f"{name.replace('-', '_')}-{version}-py3-none-any.whl")
        with zipfile.ZipFile(path, "w") as archive:
            for inner, text in content.items():
                archive.writestr(inner, text)
        self._page(name)
        return path

    def sdist(self, name: str, version: str, setup: str) -> None:
        """Add a source distribution whose setup.py is `setup`."""
        path = self._file(name, f"{name}-{version}.tar.gz")
        with tarfile.open(path, "w:gz") as archive:
            for inner, text in (
                ("setup.py", setup),
                ("PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
            ):
                entry = tarfile.TarInfo(f"{name}-{version}/{inner}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        self._page(name)

    def _file(self, name: str, file: str) -> Path:
        path = self.folder / "simple" / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _page(self, name: str) -> None:
        folder = self.folder / "simple" / name
        links = []
        for path in sorted(folder.iterdir()):
            if path.name != "index.html":
                sha = hashlib.sha256(path.read_bytes()).hexdigest()
                links.append(f'<a href="{path.name}#sha256={sha}">{path.name}</a>')
        (folder / "index.html").write_text("<html><body>" + "".join(links) + "</body></html>")

    # -- Node --

    def package(self, name: str, version: str, files: dict[str, str], **manifest: object) -> Path:
        """Add a package of Node."""
        table = {"name": name, "version": version, **manifest}
        path = self.folder / "-" / f"{name.replace('/', '-')}-{version}.tgz"
        path.parent.mkdir(exist_ok=True)
        with tarfile.open(path, "w:gz") as archive:
            for inner, text in {"package.json": json.dumps(table), **files}.items():
                entry = tarfile.TarInfo(f"package/{inner}")
                entry.size, entry.mode = len(text), 0o755
                archive.addfile(entry, io.BytesIO(text.encode()))
        digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
        dist = {"tarball": f"{self.url}/-/{path.name}", "integrity": f"sha512-{digest}"}
        scripted = {"hasInstallScript": True} if "scripts" in manifest else {}
        page = self.folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(page.read_text())["versions"] if page.exists() else {}
        known[version] = {**table, **scripted, "dist": dist}
        page.write_text(json.dumps({"name": name, "dist-tags": {"latest": version}, "versions": known}))
        return path
