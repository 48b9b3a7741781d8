"""The way to an origin: a connection to an address that was checked, and what the host adds of its own.

A name is resolved once for a connection, and what it gave is what is connected to: there is no second time at
which it could mean something else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Iterable

from executor.bridge.network import VARIABLE, Credential, NetworkPolicy, Refusal

log = logging.getLogger("executor.bridge")

CONNECT_TIME = 10.0  # seconds for resolving and connecting
MAX_ADDRESSES = 4  # of one name that are tried
PIECE = 64 << 10


class Failure(Exception):
    """A request that is answered by the egress itself. `code` is for the audit, the text for the script."""

    def __init__(self, status: int, code: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


class Origin:
    """A connection to an origin."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address, self.reader, self.writer = address, reader, writer
        writer.transport.set_write_buffer_limits(0)  # so that what `drain` waits for is all of it

    async def read(self) -> bytes:
        """Some bytes; b'' at the end."""
        return await self.reader.read(PIECE)

    async def write(self, data: bytes) -> None:
        """Send; returns when the kernel has all of it."""
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        """At once, and not by a shutdown that waits for the other side."""
        self.writer.transport.abort()


async def connect(policy: NetworkPolicy, host: str, port: int, tls: ssl.SSLContext | None) -> Origin:
    """Connect to a host by one of its addresses. Failure."""
    try:
        async with asyncio.timeout(CONNECT_TIME):
            addresses = await policy.addresses(host)
            return await _first(addresses[:MAX_ADDRESSES], host, port, tls)
    except Refusal as refusal:
        raise Failure(403, "DENIED", str(refusal)) from None
    except TimeoutError:
        raise Failure(504, "TOOL_TIMEOUT", f"no connection to {host} within {CONNECT_TIME:g} s") from None
    except ssl.SSLError as error:
        raise Failure(502, "IO", f"no TLS with {host}: {error.reason or 'it failed'}") from None
    except OSError as error:
        raise Failure(502, "IO", f"no connection to {host}:{port}: {error.strerror or error}") from None


async def _first(addresses: Iterable[str], host: str, port: int, tls: ssl.SSLContext | None) -> Origin:
    """The first address that answers. OSError of the last one."""
    failed = OSError("the name has no address")
    for address in addresses:
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, (address, port))
            name = host if tls is not None else None
            reader, writer = await asyncio.open_connection(
                sock=made, ssl=tls, server_hostname=name, limit=2 * PIECE
            )
        except OSError as error:
            made.close()
            failed = error
        except BaseException:
            made.close()
            raise
        else:
            return Origin(address, reader, writer)
    raise failed


def tls_context(ca: str | None) -> ssl.SSLContext:
    """How the host speaks TLS: certificates are checked, against the system's and against `ca`."""
    found = ssl.create_default_context()
    found.minimum_version = ssl.TLSVersion.TLSv1_2
    found.set_alpn_protocols(["http/1.1"])
    if ca is not None:
        found.load_verify_locations(ca)
    return found


class Mask:
    """Strikes texts out of a stream, byte for byte, so that its length stays."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted((secret.encode("latin-1") for secret in secrets), key=len, reverse=True)
        self._keep = max(map(len, self._secrets), default=1) - 1
        self._tail = b""

    def whole(self, data: bytes) -> bytes:
        """All of a text."""
        for secret in self._secrets:
            data = data.replace(secret, b"*" * len(secret))
        return data

    def next(self, data: bytes) -> bytes:
        """The next piece; its end may have to wait for what follows."""
        data = self.whole(self._tail + data)
        end = max(0, len(data) - self._keep)
        self._tail = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """What waited."""
        return self._tail


async def credential(value: Credential) -> str:
    """The text of a credential. Failure when it cannot be had; why stays in the log of the host."""
    try:
        if isinstance(value, str):
            made = VARIABLE.sub(lambda match: os.environ[match[1]], value)
        else:
            answer = value()
            made = answer if isinstance(answer, str) else await answer
        if not made.isprintable() or not made.encode("latin-1"):
            raise ValueError("it is empty or no text of a header")
    except Exception:
        log.exception("a credential for a network rule could not be had")
        raise Failure(502, "IO", "the host has no credential for this request") from None
    return made
