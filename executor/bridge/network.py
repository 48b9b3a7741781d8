"""What a run may reach on the network: rules of hosts, ports, methods and paths. Nothing by default.

    Grant(network=allow(["pypi.org", "*.pythonhosted.org:443",
                         NetworkRule("api.example.org", methods=("GET",), paths=("/v1/",),
                                     inject={"Authorization": "Bearer ${API_TOKEN}"})]))

A rule that looks into requests (methods, paths, credentials) needs to see them. TLS is never broken open, so
such a rule is for `http://` only: the script asks the proxy for `http://api.example.org/v1/x` and the host
speaks TLS to the origin. A CONNECT tunnel, which is what `https://` becomes, can be held to host and port and
no further.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from executor.bridge.threads import in_thread
from executor.errors import GrantError

Credential = str | Callable[[], str | Awaitable[str]]
Resolver = Callable[[str], Iterable[str] | Awaitable[Iterable[str]]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# What the egress says itself of a message; a credential cannot be one of these.
FRAMING = {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"}
PORTS = (80, 443)

# Special ranges that no script is led to, whatever a name says: this machine, its networks, its cloud's
# metadata. Of IPv6 only what is handed out to the public is taken, and nothing that carries an IPv4 address.
REFUSED_V4 = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # a public address under which one cloud shows its metadata
    )
)
TAKEN_V6 = ipaddress.ip_network("2000::/3")
REFUSED_V6 = tuple(
    ipaddress.ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)


def hostname(text: str) -> str:
    """A host as it is compared: lower case, no dot at the end. ValueError for what is no name and no address.

    What only a resolver of C would take for an address (`127.1`, `0x7f000001`, `2130706433`) is none.
    """
    name = text.lower()
    if name.startswith("[") and name.endswith("]") and "%" not in name:
        return str(ipaddress.IPv6Address(name[1:-1]))
    name = name.removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text[:80]!a} is not the name of a host")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        return str(ipaddress.IPv4Address(name))
    return name


def is_address(host: str) -> bool:
    """Whether a `hostname` is an IP address."""
    return ":" in host or host.rpartition(".")[2].isdigit()


@dataclass(frozen=True)
class NetworkRule:
    """One host, or the hosts below a name, and what may be asked of it.

    GrantError for a rule that nothing could ever use.
    """

    host: str
    """`api.example.org`, `*.example.org` (below it, not itself), `*` (any public host), or an IP address."""
    ports: tuple[int, ...] = PORTS
    """Default 80 and 443; 443 alone with `upgrade`."""
    methods: tuple[str, ...] | None = None
    """`GET`, …. Default: any."""
    paths: tuple[str, ...] | None = None
    """Beginnings of paths, by whole segments: `/v1` is `/v1` and `/v1/x`, not `/v10`. Default: any."""
    inject: Mapping[str, Credential] = field(default_factory=dict, repr=False)
    """Headers that the host adds: name → text, in which `${NAME}` is a variable of the host's environment, or
    a function that is asked for each request. The script sees none of it."""
    upgrade: bool | None = None
    """Requests by `http://` go on by TLS, to the first of `ports`. Default: with `inject`; and with `methods`
    or `paths` when 443 is among the ports and 80 is not."""

    def __post_init__(self) -> None:
        shown = f"the network rule for {self.host!r}"
        host = self.host.lower()
        try:
            if host != "*":
                name = hostname(host.removeprefix("*."))
                if host.startswith("*.") and is_address(name):
                    raise ValueError("an address has nothing below it")
                host = "*." + name if host.startswith("*.") else name
        except ValueError as error:
            hint = "Write a name, *.name or an address, without a scheme."
            if not host.isascii():
                hint = f"Write it in its ASCII form: {host.encode('idna').decode()}."
            raise GrantError(f"{shown} has no host: {error}", hint=hint) from None
        object.__setattr__(self, "host", host)
        ports = tuple(self.ports)
        methods = None if self.methods is None else tuple(self.methods)
        paths = None if self.paths is None else tuple(self.paths)
        upgrade = self.upgrade
        if upgrade is None:
            looks = methods is not None or paths is not None
            upgrade = bool(self.inject) or (looks and 443 in ports and 80 not in ports)
        if upgrade and ports == PORTS:
            ports = (443,)
        for port in ports:
            if type(port) is not int or not 1 <= port <= 65535:
                raise GrantError(f"{shown}: {port!r} is not a port")
        if not ports or methods == () or paths == ():
            raise GrantError(f"{shown} allows nothing", hint="Leave out what is not to be limited.")
        for method in methods or ():
            if not TOKEN.fullmatch(method) or method.upper() in ("CONNECT", "TRACE"):
                raise GrantError(f"{shown}: {method!r} is not a method that can be allowed")
        for path in paths or ():
            if not path.startswith("/") or not path.isascii() or _is_tricky(path) or "?" in path:
                raise GrantError(f"{shown}: {path!r} is not the beginning of a path")
        for name, value in self.inject.items():
            if not TOKEN.fullmatch(name) or name.lower() in FRAMING:
                raise GrantError(f"{shown}: {name!r} is not a header that can be added")
            if not (isinstance(value, str) or callable(value)):
                raise GrantError(f"{shown}: the value of {name!r} is neither a text nor a function")
        object.__setattr__(self, "ports", ports)
        object.__setattr__(
            self, "methods", None if methods is None else tuple(method.upper() for method in methods)
        )
        object.__setattr__(self, "paths", paths)
        object.__setattr__(self, "upgrade", upgrade)

    @classmethod
    def of(cls, given: str | Mapping[str, Any] | NetworkRule) -> NetworkRule:
        """A rule from `HOST`, `HOST:PORT`, `[ADDRESS]:PORT` or a mapping of its fields. GrantError."""
        if isinstance(given, NetworkRule):
            return given
        if isinstance(given, Mapping):
            try:
                fields: dict[str, Any] = {
                    key: tuple(value) if key in _LISTS and value is not None else value
                    for key, value in given.items()
                }
                return cls(**fields)
            except TypeError as error:
                raise GrantError(f"a network rule cannot be made of {dict(given)!r}: {error}") from None
        if not isinstance(given, str):
            raise GrantError(f"{given!r} is not a network rule")
        host, colon, port = given.rpartition(":")
        if not colon or given.endswith("]") or "/" in given:
            return cls(given)
        if not (port.isascii() and port.isdigit()) or (":" in host and not host.startswith("[")):
            raise GrantError(
                f"{given!r} is not a network rule", hint="Write HOST or HOST:PORT, an address of IPv6 in []."
            )
        return cls(host, (int(port),))

    @property
    def looks_inside(self) -> bool:
        """Whether it has to see requests, so that it is no rule for tunnels."""
        return bool(self.methods or self.paths or self.inject)

    def is_for(self, host: str) -> bool:
        """Whether a `hostname` is one of its hosts."""
        if self.host == "*":
            return not is_address(host)
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return host == self.host

    def port_of(self, port: int) -> int | None:
        """The origin's port for a request to this one; None when the rule does not allow it."""
        if port in self.ports:
            return port
        return self.ports[0] if self.upgrade and port == 80 else None

    def permits(self, method: str, path: str) -> bool:
        """Whether a request is allowed; `path` without its query."""
        if self.methods is not None and method not in self.methods:
            return False
        if self.paths is None:
            return True
        return not _is_tricky(path) and any(_is_below(path, beginning) for beginning in self.paths)


_LISTS = ("ports", "methods", "paths")


@dataclass(frozen=True)
class Passage:
    """What the rules say of one request or tunnel that they allow."""

    port: int
    tls: bool
    """The host speaks TLS to the origin."""
    inject: Mapping[str, Credential]
    rule: str
    """Hosts of the rules, for the audit."""
    narrow: bool = False
    """Not every method or path is allowed."""


class Refusal(Exception):
    """The rules do not allow it; the text is for the script."""


@dataclass(frozen=True)
class NetworkPolicy:
    """Layers of rules: of each layer at least one rule has to allow. Made by `allow`."""

    layers: tuple[tuple[NetworkRule, ...], ...]
    private: tuple[Network, ...] = ()
    """Special ranges that may be reached nevertheless."""
    resolve: Resolver | None = field(default=None, repr=False)
    ca: str | None = None

    def __and__(self, other: NetworkPolicy) -> NetworkPolicy:
        """What both allow."""
        shared = tuple(
            max(one, two, key=lambda network: network.prefixlen)
            for one in self.private
            for two in other.private
            if one.version == two.version and one.overlaps(two)
        )
        return NetworkPolicy(
            layers=self.layers + tuple(layer for layer in other.layers if layer not in self.layers),
            private=tuple(dict.fromkeys(shared)),
            resolve=self.resolve or other.resolve,
            ca=self.ca or other.ca,
        )

    def tunnel(self, host: str, port: int) -> Passage:
        """For CONNECT: a tunnel that nobody looks into. Refusal."""
        rules = []
        for layer in self.layers:
            fitting = [rule for rule in layer if rule.is_for(host) and port in rule.ports]
            opaque = [rule for rule in fitting if not rule.looks_inside]
            if fitting and not opaque:
                raise Refusal(
                    f"requests to {host} are looked into, so a tunnel to it is refused: "
                    f"ask the proxy for http://{host}/, the host speaks TLS where it is needed"
                )
            if not opaque:
                raise Refusal(f"{host}:{port} is not allowed to this run")
            rules.append(opaque[0])
        return Passage(port, False, {}, " & ".join(rule.host for rule in rules))

    def request(self, host: str, port: int, method: str, path: str) -> Passage:
        """For a request that the host sees. Refusal."""
        upgrading = [
            rule
            for layer in self.layers
            for rule in layer
            if rule.upgrade and rule.is_for(host) and rule.port_of(port) is not None
        ]
        found = (upgrading[0].port_of(port) if upgrading else None) or port
        rules = []
        for layer in self.layers:
            fitting = [rule for rule in layer if rule.is_for(host) and found in rule.ports]
            if not fitting:
                raise Refusal(f"{host}:{port} is not allowed to this run")
            allowed = [rule for rule in fitting if rule.permits(method, path)]
            if not allowed:
                raise Refusal(f"{method} {path[:200]} is not allowed at {host}")
            rules.append(allowed[0])
        if found == 443 and not upgrading:
            raise Refusal(f"port 443 of {host} speaks TLS: ask for https://{host}/")
        inject: dict[str, Credential] = {}
        for rule in reversed(rules):
            inject.update(rule.inject)
        narrow = any(rule.methods is not None or rule.paths is not None for rule in rules)
        return Passage(found, bool(upgrading), inject, " & ".join(rule.host for rule in rules), narrow)

    def carries_requests(self, host: str, port: int) -> bool:
        """Whether a tunnel may carry requests that are looked into: some clients tunnel `http://` too."""
        return all(
            any(
                rule.is_for(host)
                and rule.port_of(port) is not None
                and not (rule.upgrade and port in rule.ports)
                for rule in layer
            )
            for layer in self.layers
        )

    def refuses(self, address: str) -> bool:
        """Whether nothing may be connected to this address."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return True
        if "%" in address:
            return True
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if any(found.version == network.version and found in network for network in self.private):
            return False
        if isinstance(found, ipaddress.IPv4Address):
            return any(found in network for network in REFUSED_V4) or _is_ours(address)
        return found not in TAKEN_V6 or any(found in network for network in REFUSED_V6) or _is_ours(address)

    async def addresses(self, host: str) -> list[str]:
        """Addresses of a host, all of them checked. Refusal for one that may not be reached; OSError."""
        if is_address(host):
            found = [host]
        elif self.resolve is not None:
            answer = self.resolve(host)
            found = [str(item) for item in (await answer if isinstance(answer, Awaitable) else answer)]
        else:
            # A name's own servers decide how long this takes.
            looking = in_thread(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
            listed = await asyncio.shield(looking)
            found = list(dict.fromkeys(str(item[4][0]) for item in listed))
        if not found:
            raise OSError("the name has no address")
        if any(self.refuses(address) for address in found):
            raise Refusal(f"{host} leads to an address that is not public")
        return found


def allow(
    rules: Iterable[str | Mapping[str, Any] | NetworkRule],
    *,
    allow_private: Iterable[str] = (),
    resolve: Resolver | None = None,
    ca: str | os.PathLike[str] | None = None,
) -> NetworkPolicy:
    """A policy for `Grant(network=…)`: what is not named is refused.

    A rule is `HOST`, `HOST:PORT`, a mapping of the fields of `NetworkRule`, or one. `allow_private` are
    ranges (`10.1.0.0/16`) to be reached although they are private; `resolve` a function that gives the
    addresses of a name instead of this machine's resolver; `ca` a file of certificates to trust besides the
    system's, for origins that the host speaks TLS to. GrantError.
    """
    if isinstance(rules, str | Mapping):
        rules = [rules]
    made = tuple(NetworkRule.of(rule) for rule in rules)
    try:
        private = tuple(ipaddress.ip_network(text) for text in allow_private)
    except ValueError as error:
        raise GrantError(f"allow_private: {error}", hint="Write ranges such as 10.1.0.0/16.") from None
    if ca is not None and not os.path.isfile(ca):
        raise GrantError(f"ca={os.fspath(ca)!r} is not a file")
    return NetworkPolicy((made,), private, resolve, None if ca is None else os.fspath(ca))


def _is_tricky(path: str) -> bool:
    """Whether a server may understand another path than the one that is written."""
    plain = path.lower()
    if any(mark in plain for mark in ("\\", "%2f", "%5c", "%25", "%00", ";", "//")):
        return True
    return any(part in (".", "..") for part in plain.replace("%2e", ".").split("/"))


def _is_below(path: str, beginning: str) -> bool:
    return path == beginning or path.startswith(beginning if beginning.endswith("/") else beginning + "/")


def _is_ours(address: str) -> bool:
    """Whether an address is this machine's own: what is sent there would come from there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            own = ipaddress.ip_address(probe.getsockname()[0])
    except OSError:
        return False
    return own == ipaddress.ip_address(address)
