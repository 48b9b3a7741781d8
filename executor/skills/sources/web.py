"""One download over HTTP(S), bounded in size and time.

Rules of this module:
1. Redirects lead to HTTP or HTTPS only, never from HTTPS to HTTP, and not more than five times.
2. A name and password in the address go to that host and no other, and into no message.
3. The whole of it ends at its deadline, whatever the other side does: the socket is shut then.
4. What may pass (no connection, a time-out, 408, 429, 5xx) is tried again, a few times, within that time.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import tenacity

from executor.errors import SkillSourceError
from executor.models import SourceLimits
from executor.skills.sources import progress
from executor.skills.sources.members import RefusedError, beyond

TRIES = 3
REDIRECTS = 5
_PIECE = 1 << 16
_PASSING = frozenset({408, 429, 500, 502, 503, 504})


class UnreachableError(SkillSourceError):
    """The other side could not be reached, or not in time: a good copy stays good."""


@dataclass(frozen=True)
class Got:
    """What came back."""

    changed: bool
    """False: it is as the validators say, and nothing was written."""
    sha256: str = ""
    size: int = 0
    etag: str = ""
    modified: str = ""


def shown(url: str) -> str:
    """The address without what may be a secret in it: name and password, the query, the fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" + ("?…" if parts.query else "")


def download(url: str, into: IO[bytes], *, etag: str = "", modified: str = "", caps: SourceLimits) -> Got:
    """Write what is there into a file. SkillSourceError; UnreachableError when it may be better later."""
    deadline = time.monotonic() + caps.seconds
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(UnreachableError),
        stop=tenacity.stop_after_attempt(TRIES) | tenacity.stop_after_delay(caps.seconds),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=5),
        reraise=True,
    )
    try:
        for attempt in retrying:
            with attempt:
                into.seek(0)
                into.truncate()
                return _once(url, into, etag, modified, caps, deadline)
    finally:
        progress.end(shown(url))
    raise AssertionError("tenacity returns or raises")


def _once(url: str, into: IO[bytes], etag: str, modified: str, caps: SourceLimits, deadline: float) -> Got:
    name = shown(url)
    clock = _Clock(deadline)
    try:
        with clock, _opener(clock).open(_request(url, etag, modified), timeout=caps.idle) as answer:
            got = _taken(answer, into, name, caps)
        if clock.over:  # to who reads, a socket that was shut looks like one that ended well
            raise TimeoutError
        return got
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 304:
                return Got(changed=False)
            kind = UnreachableError if error.code in _PASSING else SkillSourceError
            raise kind(f"{name} answers {error.code} {error.reason}", hint=_hint(error.code)) from None
    except SkillSourceError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        late = clock.over or isinstance(reason, TimeoutError)
        what = f"did not answer within {caps.idle:g} s" if late and not clock.over else str(reason)
        if clock.over:
            what = f"was not fetched within {caps.seconds:g} s"
        raise UnreachableError(
            f"{name} {what}" if late else f"{name} cannot be reached: {what}",
            hint="Look at the address and the network of this machine.",
        ) from None


def _taken(answer: Any, into: IO[bytes], name: str, caps: SourceLimits) -> Got:
    stated = answer.headers.get("Content-Length", "")
    total = int(stated) if stated.isascii() and stated.isdigit() else 0
    if total > caps.download:
        raise _too_large(name, caps)
    digest = hashlib.sha256()
    size = 0
    while piece := answer.read1(_PIECE):
        size += len(piece)
        if size > caps.download:
            raise _too_large(name, caps)
        digest.update(piece)
        into.write(piece)
        progress.step(name, size, total)
    if total and size != total:
        raise http.client.IncompleteRead(b"", total - size)
    into.flush()
    headers = answer.headers
    return Got(True, digest.hexdigest(), size, headers.get("ETag", ""), headers.get("Last-Modified", ""))


def _request(url: str, etag: str, modified: str) -> urllib.request.Request:
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit((parts.scheme, host, parts.path or "/", parts.query, "")))  # noqa: S310
    request.add_header("User-Agent", "skill-executor")
    request.add_header("Accept-Encoding", "identity")
    if etag:
        request.add_header("If-None-Match", etag)
    if modified:
        request.add_header("If-Modified-Since", modified)
    if login:
        plain = unquote(login).encode()
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(plain).decode())
    return request


def _too_large(name: str, caps: SourceLimits) -> RefusedError:
    return beyond(f"{name} is larger than {caps.download:,} bytes", "download")


def _hint(code: int) -> str:
    if code in (401, 403):
        return "Put a name and a password or token into the address: https://NAME:TOKEN@host/…"
    return "Look at the address." if code in (404, 410) else ""


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = REDIRECTS
    max_repeats = 2

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: Any,
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme.lower()
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            raise SkillSourceError(
                f"{shown(req.full_url)} leads on to {shown(newurl)[:200]}, which is not followed",
                hint="Only http: and https: are, and never from https: to http:.",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Clock:
    """Shuts the sockets of one try when its time is over, be it in a handshake, in headers or in content."""

    def __init__(self, deadline: float) -> None:
        self.over = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(max(0.0, deadline - time.monotonic()), self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Clock:
        self._timer.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._timer.cancel()
        for one in self._sockets:
            one.close()

    def watch(self, address: Any, timeout: Any = None, source: Any = None, **options: Any) -> socket.socket:
        """As `socket.create_connection`."""
        made = socket.create_connection(address, timeout, source, **options)
        self._sockets.append(made.dup())  # TLS takes over the other one's descriptor
        return made

    def _end(self) -> None:
        self.over = True
        for one in self._sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def _opener(clock: _Clock) -> urllib.request.OpenerDirector:
    class Plain(http.client.HTTPConnection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._create_connection = clock.watch

    class Secure(http.client.HTTPSConnection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._create_connection = clock.watch

    class PlainHandler(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> Any:
            return self.do_open(Plain, req)

    class SecureHandler(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> Any:
            return self.do_open(Secure, req)

    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
        PlainHandler(),
        SecureHandler(),
    ):
        opener.add_handler(handler)
    return opener
