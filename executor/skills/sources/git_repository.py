"""Runs git to bring the files of one commit here, and nothing else.

Rules of this module:
1. Nothing is checked out. Git brings objects into a bare repository of its own in scratch, and their bytes
   are read from there; so no hook, filter, LFS, submodule, attribute or link of the repository does anything.
2. Git sees no configuration of this machine or its user, asks nobody for anything, and speaks only the one
   transport of the address. What it reads of ours are the proxies, certificates, the SSH agent and a command
   for ssh; ssh itself knows hosts and keys from where it always does, and asks nobody either.
3. No text of an address is an option: it was checked, and goes into the configuration, behind `--`, or
   behind a word that cannot be one.
4. Only one commit is fetched, without history; if a folder is given, only its files.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import tenacity

from executor.errors import SkillSourceError
from executor.models import SourceLimits
from executor.skills.sources import progress
from executor.skills.sources.members import Member, beyond, check, refused, unpack
from executor.skills.sources.web import TRIES, UnreachableError

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MOST_OUTPUT = 64 << 20  # bytes of a list of files
_FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
_LFS = b"version https://git-lfs.github.com/spec/"
# Words of git for what will not be otherwise the next time.
_DECIDED = (
    "not found",
    "does not exist",
    "does not appear",
    "denied",
    "Authentication",
    "could not read",
    "Host key verification failed",
    "certificate",
    "returned error: 30",
    "returned error: 403",
    "not our ref",
    "transport",
    "dubious ownership",
    "not allowed",
    "not a git repository",
)
_SMALLEST_PIECE = 16 << 20  # bytes that git may need at once for what is small itself
_POLL = 0.1  # seconds between two looks at how large a fetch has become
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK")
# What we call certificates to trust, as all of Python does → what git does.
_CERTIFICATES = {"SSL_CERT_FILE": "GIT_SSL_CAINFO", "SSL_CERT_DIR": "GIT_SSL_CAPATH"}
_KEPT_TOO = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
# What every git here is told; names and values go through its environment.
_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.bigFileThreshold": "1m",  # larger ones are streamed and never whole in memory
    "credential.helper": "",
    "credential.interactive": "false",
    "fetch.fsckObjects": "true",
    "transfer.credentialsInUrl": "allow",  # they go through the environment, to one host
    "fetch.recurseSubmodules": "false",
    "submodule.recurse": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.version": "2",
    "http.lowSpeedLimit": "1",
}


@dataclass(frozen=True)
class _Entry:
    path: str
    mode: str
    blob: str


class Repository:
    """A bare repository in scratch, made at `place`, for one commit of the one at `url`.

    `folder`: the one whose files are wanted, '' for all. `name`: what people call it.
    """

    def __init__(self, place: Path, url: str, *, folder: str, caps: SourceLimits, name: str) -> None:
        self._place = place
        self._url = url
        self._folder = folder
        self._caps = caps
        self._name = name
        self._deadline = time.monotonic() + caps.seconds
        self._environment = environment(os.environ, url, caps, partial=bool(folder))
        self._commit = ""
        place.mkdir()
        empty = place.parent / "template"
        empty.mkdir()
        self._git("init", "--quiet", "--bare", f"--template={empty}", ".")

    def resolve(self, rev: str) -> str:
        """The commit that a revision means now; '' is the remote's HEAD."""
        if COMMIT.fullmatch(rev):
            return rev
        wanted = [f"refs/tags/{rev}^{{}}", f"refs/tags/{rev}", f"refs/heads/{rev}"] if rev else ["HEAD"]
        answer = self._remote("ls-remote", "--quiet", "--", "origin", *wanted).decode("utf-8", "replace")
        found: dict[str, str] = {}
        for line in answer.splitlines():
            commit, _, name = line.partition("\t")
            found[name] = commit
        for name in wanted:
            if COMMIT.fullmatch(commit := found.get(name, "")):
                return commit
        what = f"no branch or tag {rev!r}" if rev else "no commit"
        hint = "A commit is given by all digits of its id." if re.fullmatch("[0-9a-f]{7,39}", rev) else ""
        raise SkillSourceError(f"{self._name}: the repository has {what}", hint=hint)

    def fetch(self, commit: str) -> None:
        """Bring the commit and its folders; its files too, unless a folder was given."""
        few = ["--filter=blob:none"] if self._folder else []
        self._remote(*_FETCH, "--depth=1", *few, "origin", commit)
        self._commit = commit

    def write(self, folder: Path) -> list[str]:
        """Write the commit's files; what was left out or is not what it seems."""
        entries, notes = self._entries()
        check((Member(entry.path, ()) for entry in entries), self._caps)
        if self._folder:
            self._bring({entry.blob for entry in entries})
        pointers: list[str] = []
        unpack(self._members(entries, pointers), folder, caps=self._caps)
        return notes + [f"{path} is a pointer of Git LFS: its content was not fetched" for path in pointers]

    def _entries(self) -> tuple[list[_Entry], list[str]]:
        inside = [f"{self._commit}:{self._folder}" if self._folder else self._commit]
        try:
            answer = self._git("ls-tree", "-r", "-z", "--full-tree", *inside, local=True)
        except SkillSourceError as error:
            if self._folder:
                what = f"{self._name}: the commit has no folder {self._folder!r}"
                raise SkillSourceError(what, hint="Look behind the #.") from error
            raise
        entries, notes = [], []
        for line in filter(None, answer.split(b"\0")):
            head, _, raw = line.partition(b"\t")
            mode, kind, blob = head.decode("ascii").split(" ")
            path = raw.decode("utf-8", "surrogateescape")
            if kind == "commit":
                notes.append(f"{path} is a submodule: it was not fetched")
            elif mode == "120000":
                raise refused(f"{path!r} is a link")
            else:
                entries.append(_Entry(path, mode, blob))
            if len(entries) > self._caps.entries:
                raise beyond(f"it has more than {self._caps.entries:,} files", "entries")
        return entries, notes

    def _bring(self, blobs: set[str]) -> None:
        """Fetch the files of the folder in one go. A server that knows no filters has sent them already."""
        listed = self._git("rev-list", "--objects", "--missing=print", self._commit, local=True).decode()
        missing = blobs.intersection(line[1:] for line in listed.splitlines() if line.startswith("?"))
        if missing:
            with tempfile.TemporaryFile() as wanted:
                wanted.write("".join(f"{blob}\n" for blob in sorted(missing)).encode())
                self._remote(*_FETCH, "--filter=blob:none", "--stdin", "origin", stdin=wanted)

    def _members(self, entries: Sequence[_Entry], pointers: list[str]) -> Iterator[Member]:
        with tempfile.TemporaryFile() as wanted:
            wanted.write("".join(f"{entry.blob}\n" for entry in entries).encode())
            wanted.seek(0)
            process = self._started(("cat-file", "--batch"), wanted, subprocess.PIPE, None, local=True)
            assert process.stdout is not None
            try:
                for entry in entries:
                    head = process.stdout.readline().split()
                    if len(head) != 3 or head[1] != b"blob":
                        raise refused(f"{entry.path!r} is not in what the server sent")
                    yield Member(
                        entry.path,
                        _blob(process.stdout, int(head[2]), entry.path, pointers),
                        entry.mode == "100755",
                    )
                    process.stdout.read(1)
            finally:
                process.kill()
                process.wait()
                process.stdout.close()

    # -- running git --

    def _remote(self, *words: str, stdin: IO[bytes] | None = None) -> bytes:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(UnreachableError),
            stop=tenacity.stop_after_attempt(TRIES),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=5),
            reraise=True,
        )
        for attempt in retrying:
            with attempt:
                if stdin is not None:
                    stdin.seek(0)
                answer = self._git(*words, stdin=stdin)
                self._check_size()  # it may have come faster than anybody looked
                return answer
        raise AssertionError("tenacity returns or raises")

    def _started(
        self,
        words: Sequence[str],
        stdin: IO[bytes] | None,
        stdout: int | IO[bytes],
        stderr: IO[bytes] | None,
        *,
        local: bool,
    ) -> subprocess.Popen[bytes]:
        environment = self._environment
        if local:  # never fetch an object because it is missing
            environment = {**environment, "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
        try:
            return subprocess.Popen(
                ["git", *words],
                cwd=self._place,
                env=environment,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=stdout,
                stderr=subprocess.DEVNULL if stderr is None else stderr,
                start_new_session=True,  # no terminal to ask at
            )
        except FileNotFoundError:
            raise SkillSourceError(f"{self._name} needs git", hint="Install git.") from None

    def _git(self, *words: str, stdin: IO[bytes] | None = None, local: bool = False) -> bytes:
        """Run git to its end, watched; what it wrote."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as told:
            process = self._started(words, stdin, out, told, local=local)
            try:
                self._wait(process, out)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # its transports too
                process.wait()
                raise
            out.seek(0)
            if process.returncode == 0:
                return out.read()
            told.seek(0)
            said = told.read(1 << 16).decode("utf-8", "replace")
            if "over limit" in said:  # of GIT_ALLOC_LIMIT
                raise beyond(f"a file of its commit is larger than {self._caps.file:,} bytes", "file")
            why = _reason(said)
            kind = SkillSourceError if local or any(word in why for word in _DECIDED) else UnreachableError
            raise kind(f"{self._name} cannot be fetched: {why}", hint=_hint(why, self._url))

    def _check_size(self) -> None:
        size = _size(self._place)
        progress.step(self._name, size)
        if size > self._caps.download:
            raise beyond(f"its commit is larger than {self._caps.download:,} bytes", "download")

    def _wait(self, process: subprocess.Popen[bytes], out: IO[bytes]) -> None:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL)
            # A few folders in each other, each many times, are a list without an end.
            if os.fstat(out.fileno()).st_size > MOST_OUTPUT:
                raise refused(f"git answers with more than {MOST_OUTPUT:,} bytes")
            if process.returncode is not None:
                return
            self._check_size()
            if time.monotonic() > self._deadline:
                raise UnreachableError(f"{self._name} was not fetched within {self._caps.seconds:g} s")


def _reason(told: str) -> str:
    """The line that says why git failed, without names and passwords; ssh says it before git does."""
    lines = [line.strip() for line in told.split("\n") if line.strip()] or ["git said nothing"]
    at = next((at for at, line in enumerate(lines) if line.startswith(("fatal:", "error:"))), 0)
    if at and lines[at] == "fatal: Could not read from remote repository.":
        at -= 1
    why = re.sub(r"\A(fatal|error|ssh): ", "", lines[at])
    return re.sub(r"(?<=://)[^/@\s]*@", "", why)[:300]


def _hint(why: str, url: str) -> str:
    if "Host key verification failed" in why:
        return (
            f"Nobody has told ssh the key of {urlsplit(url).hostname}: connect once by hand, and look at it."
        )
    if "Authentication" in why or "could not read" in why or "Permission denied" in why:
        return "Put a token into the address (git+https://NAME:TOKEN@host/…), or use git+ssh: with an agent."
    if "returned error: 30" in why:
        return "It has moved, and a password goes to no other address: write the new one."
    if "dubious ownership" in why:
        return f"The repository belongs to another user: {urlsplit(url).path}"
    return "Look at the address and the network of this machine."


def _size(folder: Path) -> int:
    total = 0
    for top, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(top, name)).st_size
            except OSError:  # gone meanwhile
                pass
    return total


def _blob(stream: IO[bytes], size: int, path: str, pointers: list[str]) -> Iterator[bytes]:
    first = True
    while size:
        piece = stream.read(min(size, 1 << 16))
        if not piece:
            raise refused(f"{path!r} is cut")
        if first and piece.startswith(_LFS) and size < 1024:
            pointers.append(path)
        first = False
        size -= len(piece)
        yield piece


def environment(own: Mapping[str, str], url: str, caps: SourceLimits, *, partial: bool) -> dict[str, str]:
    """All that git gets to know. `partial`: files may be missing and come later."""
    idle = math.ceil(caps.idle)
    kept = {name: own[name] for name in (*_KEPT, *_KEPT_TOO, *_CERTIFICATES.values()) if name in own}
    for ours, its in _CERTIFICATES.items():
        if ours in own:
            kept.setdefault(its, own[ours])
    # What stands first counts for ssh; that it asks nobody holds without its options too: it has no terminal.
    ssh = f"{own.get('GIT_SSH_COMMAND') or 'ssh'} -oBatchMode=yes -oConnectTimeout={idle}"
    config = {
        **_CONFIG,
        "http.lowSpeedTime": f"{idle}",
        # Git would give a name and password of the address to whoever the server sends it on to.
        "http.followRedirects": "false" if "@" in urlsplit(url).netloc else "initial",
        "remote.origin.url": url,
        **({"remote.origin.promisor": "true"} if partial else {}),
    }
    pairs = {}
    for number, (name, value) in enumerate(config.items()):
        pairs[f"GIT_CONFIG_KEY_{number}"] = name
        pairs[f"GIT_CONFIG_VALUE_{number}"] = value
    return {
        **kept,
        **pairs,
        "GIT_CONFIG_COUNT": str(len(config)),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": urlsplit(url).scheme,
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "SSH_ASKPASS": "false",
        "SSH_ASKPASS_REQUIRE": "never",
        "GIT_SSH_COMMAND": f"{ssh} -oClearAllForwardings=yes",
        "GIT_SSH_VARIANT": "ssh",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        # Of one piece of memory: a few bytes of a pack can stand for a file of any size.
        "GIT_ALLOC_LIMIT": str(max(caps.file, _SMALLEST_PIECE)),
        "LC_ALL": "C",
    }
