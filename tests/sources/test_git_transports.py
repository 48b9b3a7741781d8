"""Repositories over TLS and SSH, from real servers: what is believed and refused; nobody is asked."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import trustme

from executor.errors import SkillSourceError
from executor.models import SourceLimits
from executor.skills.sources.git import git_source
from executor.skills.sources.roots import open_source
from tests.sources.publish import Web, as_zip, commit, skill

FILES = {"skills/a/SKILL.md": skill("a"), "other": b"x"}


# --- HTTPS --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Web, Path]]:
    """A server with a certificate of its own authority, and that authority's certificate."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with Web(folder, tls=context) as server:
        commit(FILES, folder / "repo")
        yield server, folder / "ca.pem"


def test_https_with_an_authority_of_ones_own(
    secure: tuple[Web, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One variable counts for archives and for git; without it neither believes the server."""
    web, authority = secure
    web.files["/a.zip"] = as_zip({"a/SKILL.md": skill("a")})
    roots = (f"git+{web.url}/git/repo/.git@main#skills", f"{web.url}/a.zip")
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_SSL_NO_VERIFY", "true")  # not for us
    for root in roots:
        with pytest.raises(SkillSourceError, match="certificate"):
            open_source(root).list()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    for root in roots:
        assert sorted(open_source(root).list().first()) == ["a"]


def test_a_redirect_takes_no_password_along_and_leaves_no_encryption(
    secure: tuple[Web, Path], web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git itself would: it gives the password to the other server, as the control shows."""
    first, authority = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    commit(FILES, web.git / "plain")
    other = f"http://localhost:{web.url.rpartition(':')[2]}"  # another host to who compares names

    def moved(request: Any) -> bool:
        if not request.path.startswith("/git/moved"):
            return False
        if "open" not in request.path and "Authorization" not in request.headers:
            request.say(401, b"", WWW_Authenticate='Basic realm="x"')
        else:
            path = request.path.replace("moved-open", "plain").replace("moved", "plain")
            request.say(302, b"", Location=other + path)
        return True

    def asked() -> dict[str, set[bool]]:
        """Path → whether there was a password."""
        found: dict[str, set[bool]] = {}
        for path, _, headers in web.asked:
            found.setdefault(path.split("/")[2], set()).add("Authorization" in headers)
        web.asked.clear()
        return found

    first.before = web.before = moved
    with pytest.raises(SkillSourceError, match="cannot be fetched"):
        open_source(f"git+{first.url}/git/moved-open/.git").list()
    assert asked() == {}
    assert sorted(open_source(f"git+{web.url}/git/moved-open/.git#skills").list().first()) == ["a"]
    assert asked() == {"moved-open": {False}, "plain": {False}}
    private = f"{web.url.replace('://', '://NAME:SECRET@')}/git/moved/.git"
    with pytest.raises(SkillSourceError, match="error: 302") as caught:
        open_source(f"git+{private}").list()
    assert "It has moved" in caught.value.hint and "SECRET" not in str(caught.value)
    assert asked() == {"moved": {False, True}}
    subprocess.run(["git", "ls-remote", private], capture_output=True, env={"PATH": os.environ["PATH"]})
    assert asked()["plain"] == {False, True}


# --- SSH ----------------------------------------------------------------------------------------------------


class Server:
    """An SSH server that runs `git-upload-pack` for whoever has the key, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.host_key, user = asyncssh.generate_private_key("ssh-ed25519"), folder / "user"
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(user)
        user.chmod(0o600)
        self.user = user
        self.allowed = folder / "allowed"
        self.allowed.write_bytes(asyncssh.read_private_key(user).export_public_key())
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        listener = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[self.host_key],
            authorized_client_keys=str(self.allowed),
            process_factory=self._serve,
            encoding=None,
        )
        self.port = listener.get_port()

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        program, _, path = (process.command or "").partition(" ")
        if program != "git-upload-pack":
            process.exit(1)
            return
        inner = await asyncio.create_subprocess_exec(
            *("git", "-c", "safe.directory=*", "-c", "uploadpack.allowFilter=true"),
            *("upload-pack", path.strip("'")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "GIT_PROTOCOL": process.env.get("GIT_PROTOCOL", "")},
        )
        await process.redirect(stdin=inner.stdin, stdout=inner.stdout)
        process.exit(await inner.wait())
        await process.wait_closed()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Running."""
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh here")
    with Server(tmp_path_factory.mktemp("ssh")) as made:
        yield made


def test_ssh_asks_nobody_and_believes_no_stranger(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's own command for ssh gives keys and hosts; each that is missing is told."""
    commit(FILES, tmp_path / "repo")
    root = f"git+ssh://git@127.0.0.1:{server.port}{tmp_path}/repo@main#skills"
    hosts, asked = tmp_path / "hosts", tmp_path / "asked"
    hosts.write_bytes(f"[127.0.0.1]:{server.port} ".encode() + server.host_key.export_public_key())
    (tmp_path / "ask").write_text(f"#!/bin/sh\ntouch {asked}\necho yes\n")
    (tmp_path / "ask").chmod(0o755)
    for name in ("SSH_ASKPASS", "GIT_ASKPASS"):
        monkeypatch.setenv(name, str(tmp_path / "ask"))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)

    def listed(known: Path | str, key: Path | str) -> list[str]:
        command = f"ssh -F none -oUserKnownHostsFile={known} -oIdentityFile={key} -oIdentitiesOnly=yes"
        monkeypatch.setenv("GIT_SSH_COMMAND", command)
        return sorted(open_source(root).list().first())

    with pytest.raises(SkillSourceError, match="Host key verification failed") as caught:
        listed("/dev/null", server.user)
    assert "the key of 127.0.0.1" in caught.value.hint
    with pytest.raises(SkillSourceError, match="Permission denied") as caught:
        listed(hosts, "/dev/null")
    assert "with an agent" in caught.value.hint
    assert listed(hosts, server.user) == ["a"] and not asked.exists()


def test_an_ssh_server_that_is_silent_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        root = f"git+ssh://git@127.0.0.1:{silent.getsockname()[1]}/srv/repo.git"
        with pytest.raises(SkillSourceError, match=r"was not fetched within 0\.3 s"):
            git_source(root, caps=SourceLimits(seconds=0.3, idle=30)).list()
