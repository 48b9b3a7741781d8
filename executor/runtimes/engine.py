"""The Docker Engine as this project meets it: its attach stream, its failures, the end of a container.

Nothing here knows what a sandbox is. Everything but the stream blocks, for a bounded time, and belongs into a
thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
import threading
import time
from datetime import datetime
from typing import Any

import docker.errors
import requests

from executor.errors import EngineDownError, EngineForbiddenError, ExecutorError, RuntimeUnavailableError
from executor.runtimes.base import Stream

FAILURES = (docker.errors.DockerException, requests.RequestException, OSError)
REMOVAL = 15.0  # seconds of tries; what is still there then is left to the reaper
ABSENCE = 1.0  # seconds of tries at an engine that is not there at all, or to which no connection can be made
FULL = (errno.EMFILE, errno.ENFILE)  # no descriptor is free, in this process or on this machine
_TIME = re.compile(r"([\d-]+T[\d:]+)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


class AttachedStream(Stream):
    """The engine's attach stream: an 8-byte header (stream, 0, 0, 0, length) before every piece."""

    _head = struct.Struct(">BxxxL")

    def __init__(self) -> None:
        super().__init__()
        self._buffer = b""  # the beginning of a piece
        self.stderr = b""

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        view = memoryview(buffer)
        at = 0
        pieces: list[memoryview] = []
        while len(buffer) - at >= 8:
            kind, length = self._head.unpack_from(buffer, at)
            if len(buffer) - at - 8 < length:
                break
            piece = view[at + 8 : at + 8 + length]
            at += 8 + length
            if kind == 1:
                pieces.append(piece)
            else:
                self.stderr = (self.stderr + piece)[-8192:]
        self._buffer = buffer[at:]
        if pieces:
            self.deliver(b"".join(pieces))


def plain_socket(attached: Any) -> socket.socket:
    """The attached connection as a socket that an event loop can watch.

    A Unix or TCP socket is that already. TLS, SSH and named pipes are not: two threads copy between them and
    a socket pair, and end with either side.
    """
    raw = getattr(attached, "_sock", attached)
    if type(raw) is socket.socket:
        try:
            return socket.socket(fileno=os.dup(raw.fileno()))
        finally:
            attached.close()
    raw.settimeout(None)
    ours, theirs = socket.socketpair()

    def copy(source: Any, target: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            theirs.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            attached.close()

    for source, target in ((raw, theirs), (theirs, raw)):
        threading.Thread(target=copy, args=(source, target), name="executor-attach", daemon=True).start()
    return ours


def remove_container(api: Any, container: str) -> bool:
    """Kill and remove, in bounded time. True when it is certainly not there any more."""
    began = time.monotonic()
    delay = 0.05
    while True:
        absent = False
        try:
            api.remove_container(container, force=True, v=True)
        except docker.errors.NotFound:
            return True
        except docker.errors.APIError:
            pass  # 409: being removed already
        except FAILURES as error:
            absent = errno_of(error) in (errno.ECONNREFUSED, errno.ENOENT, errno.EACCES, *FULL)
        if not absent:
            try:
                api.inspect_container(container)
            except docker.errors.NotFound:
                return True
            except FAILURES:
                pass
        if time.monotonic() - began + delay > (ABSENCE if absent else REMOVAL):
            return False
        time.sleep(delay)
        delay = min(2 * delay, 2.0)


def engine_time(api: Any) -> str:
    """The engine's clock, as its list of events takes it: seconds and nanoseconds since 1970."""
    match = _TIME.fullmatch(api.info()["SystemTime"])
    if match is None:
        raise ValueError("the engine tells no time")
    seconds = int(datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00")).timestamp())
    return f"{seconds}.{match[2] or '':0<9}"


def engine_error(error: Exception, address: str) -> ExecutorError:
    """A connection failure as the error that names its cause and the next step."""
    text = str(error)
    if "SSL" in text or "TLS" in text:
        return EngineDownError(
            f"the engine at {address} and this client do not agree on TLS: {text[-300:]}",
            hint="Check DOCKER_TLS_VERIFY and the ca.pem, cert.pem and key.pem in DOCKER_CERT_PATH; a set "
            "REQUESTS_CA_BUNDLE goes before them.",
        )
    if errno_of(error) in (errno.EACCES, errno.EPERM) or "Permission denied" in text:
        return EngineForbiddenError(
            f"this user may not open the engine's socket at {address}",
            hint="Add the user to the engine's group (that equals root on this machine), use a rootless "
            "engine, or use --runtime local.",
        )
    number = errno_of(error)
    if number in FULL:
        return RuntimeUnavailableError(
            f"the engine at {address} cannot be asked: {os.strerror(number)}",
            hint="Raise the limit of this process (`ulimit -n`), or close sessions and files.",
        )
    cause = os.strerror(number) if number else text[:200]
    return EngineDownError(
        f"no Docker engine answers at {address}: {cause}",
        hint="Start it, point DOCKER_HOST to one, or use --runtime local.",
    )


def errno_of(error: BaseException | None) -> int | None:
    """The first errno in the chain of causes, which the SDK hides three levels deep."""
    for _ in range(10):
        if error is None:
            return None
        if isinstance(error, OSError) and error.errno:
            return error.errno
        inner = error.args[0] if error.args and isinstance(error.args[0], BaseException) else None
        for argument in error.args[1:]:
            if isinstance(argument, BaseException):
                inner = argument
        error = inner or error.__cause__ or error.__context__
    return None
