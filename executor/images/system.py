"""The system: Debian packages put into a root filesystem by mmdebstrap."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from executor.errors import ExecutorError, RuntimeUnavailableError
from executor.images.description import REGISTRY_BASE, SUITE, Description, Progress
from executor.images.layer import EPOCH

MIRROR_VARIABLE = "EXECUTOR_DEBIAN_MIRROR"


def find_mmdebstrap() -> str | None:
    return shutil.which("mmdebstrap") if sys.platform == "linux" else None


def make_system(description: Description, target: Path, say: Progress) -> None:
    """Writes the system's tar. mmdebstrap cleans up after itself, on failure and on Ctrl-C too."""
    program = find_mmdebstrap()
    if program is None:
        raise RuntimeUnavailableError(
            "mmdebstrap is not installed",
            hint="Debian and Ubuntu: apt-get install mmdebstrap. Elsewhere build on a registry's image: "
            f"executor images build {description.name} --base {REGISTRY_BASE}",
        )
    root = os.geteuid() == 0
    command = [program, *mmdebstrap_arguments(description, root=root)]
    mirror = os.environ.get(MIRROR_VARIABLE)
    if mirror:
        command.append(mirror)
    last: list[str] = []
    with open(target, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "LC_ALL": "C.UTF-8"},
            text=True,
            errors="replace",
        )
        with _ended(process):
            assert process.stderr is not None
            for line in process.stderr:
                last = [*last[-14:], line.rstrip()]
                if line.startswith("I: "):  # a hook's line shows its whole script
                    say("system", line[3:].split(" in shell:")[0].strip().rstrip("."), None)
            code = process.wait()
    if code:
        raise ExecutorError(
            f"mmdebstrap failed with status {code}:\n  " + "\n  ".join(last),
            hint=f"Is the Debian mirror reachable? ${MIRROR_VARIABLE} names another one."
            if root
            else "Without root it needs the packages uidmap and debian-archive-keyring, ranges for this user "
            "in /etc/subuid and /etc/subgid, and unprivileged user namespaces. Or run it as root.",
        )


def mmdebstrap_arguments(description: Description, *, root: bool) -> list[str]:
    """The tar goes to standard output: in a user namespace mmdebstrap could not write into our folder.

    The script travels inside the argument for the same reason: there it could not read the checkout.
    """
    finish = f'printf %s {shlex.quote(description.finish)} | chroot "$1" /bin/sh -s'
    return [
        f"--mode={'root' if root else 'unshare'}",
        "--variant=apt",
        "--format=tar",
        f"--include={','.join(sorted(description.packages))}",
        *(f"--dpkgopt={option}" for option in description.dpkg_options),
        f"--customize-hook={finish}",
        SUITE,
        "-",
    ]


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """A child that does not outlive an error or Ctrl-C; it is given time to clean up after itself."""
    try:
        yield
    except BaseException:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    finally:
        if process.stderr is not None:
            process.stderr.close()
