"""What a run may reach: rules, hosts, addresses. Nothing here connects to anything."""
# ruff: noqa: E501 (tables of hostile texts)

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from executor import Grant, GrantError, NetworkRule, allow
from executor.bridge.grant import intersection
from executor.bridge.network import NetworkPolicy, Refusal, hostname


def tunnel(policy: NetworkPolicy, host: str, port: int = 443) -> bool:
    try:
        return policy.tunnel(hostname(host), port).port == port
    except Refusal:
        return False


def asked(policy: NetworkPolicy, host: str, path: str = "/", method: str = "GET", port: int = 80) -> Any:
    try:
        found = policy.request(hostname(host), port, method, path)
    except Refusal:
        return None
    return found.port, found.tls


# -- hosts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Example.ORG", "example.org"),
        ("example.org.", "example.org"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_srv.example", "_srv.example"),
        ("10.0.0.1", "10.0.0.1"),
        ("[::1]", "::1"),
        ("[2001:DB8:0::1]", "2001:db8::1"),
    ],
)
def test_a_host_has_one_form(text: str, host: str) -> None:
    assert hostname(text) == host


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "a..b", ".a", "a b", "a/b", "a@b", "user@host", "a:b", "-a", "a-", "é.example", "a\0b"),
        *("127.1", "2130706433", "0x7f.1", "0x7f000001", "017700000001", "0177.0.0.1", "127.0.0.01", "1.2.3.4.5"),
        *("example.0x1", "999.1.1.1", "::1", "[::1", "[fe80::1%eth0]", "[1.2.3.4]", "a" * 64, "a." * 127 + "a"),
        *("%31%32%37.0.0.1", "127.0.0.1\r\n", "①②⑦.0.0.1"),
    ],
)  # fmt: skip
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|address|decimal|octet|[Aa]t least|permitted|IPv"):
        hostname(text)


# -- rules --------------------------------------------------------------------------------------------


def test_what_is_not_named_is_refused() -> None:
    policy = allow(["api.example.org", "*.cdn.test:8443", "192.0.2.7", "[2001:db8::1]:80"])
    assert tunnel(policy, "api.example.org")
    assert tunnel(policy, "API.Example.org.")
    assert asked(policy, "api.example.org") == (80, False)
    assert tunnel(policy, "x.cdn.test", 8443)
    assert tunnel(policy, "a.b.cdn.test", 8443)
    assert tunnel(policy, "192.0.2.7")
    assert asked(policy, "[2001:db8::1]") == (80, False)
    for host, port in (
        ("example.org", 443),
        ("x.api.example.org", 443),
        ("api.example.org.evil.test", 443),
        ("evilapi.example.org", 443),
        ("api.example.org", 22),
        ("cdn.test", 8443),
        ("evilcdn.test", 8443),
        ("x.cdn.test", 443),
        ("192.0.2.8", 443),
        ("[2001:db8::1]", 443),
    ):
        assert not tunnel(policy, host, port), host
        assert asked(policy, host, port=port) is None


def test_a_star_is_every_name_and_no_address() -> None:
    policy = allow(["*"])
    assert tunnel(policy, "anything.test")
    assert not tunnel(policy, "8.8.8.8")
    assert not tunnel(policy, "[2606:4700::1]")


def test_methods_and_paths() -> None:
    policy = allow([{"host": "api.test", "ports": [80], "methods": ["get"], "paths": ["/v1/", "/exact"]}])
    for path in ("/v1/", "/v1/x/y", "/exact", "/exact/below"):
        assert asked(policy, "api.test", path) == (80, False), path
    for path in ("/", "/v1", "/v10/x", "/exactly", "/V1/x", "/v1/../admin", "/v1/%2e%2E/admin", "/v1/.%2e/x",
                 "/v1/./x", "/v1//x", "/v1/%2f..", "/v1/\\..\\x", "/v1/%5c", "/v1/%252e%252e/", "/v1/x;/../",
                 "//v1/", "/v1/%00"):  # fmt: skip
        assert asked(policy, "api.test", path) is None, path
    assert asked(policy, "api.test", "/v1/x", "POST") is None
    assert asked(policy, "api.test", "/v1/x", "get") is None  # methods are what they are written as


def test_a_rule_that_looks_inside_is_no_rule_for_tunnels() -> None:
    looking = allow([NetworkRule("api.test", methods=("GET",)), "other.test"])
    assert not tunnel(looking, "api.test")
    assert tunnel(looking, "other.test")
    with pytest.raises(
        Refusal, match=r"looked into, so a tunnel to it is refused: ask the proxy for http://api.test/"
    ):
        looking.tunnel("api.test", 80)
    assert looking.carries_requests("api.test", 80)
    assert tunnel(allow([NetworkRule("api.test", methods=("GET",)), "api.test:443"]), "api.test")


def test_upgrading() -> None:
    """The form of the design: port 443 with methods and paths is spoken to by the host."""
    policy = allow([{"host": "api.x.org", "ports": [443], "methods": ["GET"], "paths": ["/v1/"]}])
    assert asked(policy, "api.x.org", "/v1/a") == (443, True)
    assert asked(policy, "api.x.org", "/v1/a", port=443) == (443, True)
    assert asked(policy, "api.x.org", "/v2/a") is None
    assert asked(policy, "api.x.org", "/v1/a", port=8080) is None
    assert not tunnel(policy, "api.x.org")
    assert policy.carries_requests("api.x.org", 80)
    assert not policy.carries_requests("api.x.org", 443)
    secret = allow([NetworkRule("api.x.org", inject={"Authorization": "x"})])
    assert asked(secret, "api.x.org") == (443, True)
    assert "x" not in repr(secret.layers[0][0]).replace("api.x.org", "")
    plain = allow([NetworkRule("api.x.org", ports=(80,), inject={"Authorization": "x"}, upgrade=False)])
    assert asked(plain, "api.x.org") == (80, False)
    assert asked(allow(["api.x.org"]), "api.x.org", port=443) is None  # TLS there is the script's own


@pytest.mark.parametrize(
    "rule",
    [
        *("", "https://a.test", "a.test/x", "a.test:", "a.test:x", "a.test:0", "a.test:70000", "*.", "**.a", "a.*"),
        *("*.1.2.3.4", "bücher.example", "user@a.test", "a.test:443:1", "::1", 5, None, True),
        *({}, {"host": "a.test", "port": 1}, {"host": "a.test", "ports": []}, {"host": "a.test", "methods": []}),
        *({"host": "a.test", "methods": ["CONNECT"]}, {"host": "a.test", "methods": ["G T"]}),
        *({"host": "a.test", "paths": ["v1"]}, {"host": "a.test", "paths": ["/a/../b"]}, {"host": "a.test", "paths": []}),
        *({"host": "a.test", "inject": {"Host": "x"}}, {"host": "a.test", "inject": {"a b": "x"}}),
        *({"host": "a.test", "inject": {"X": 5}}, {"host": "a.test", "ports": ["443"]}),
    ],
)  # fmt: skip
def test_rules_that_cannot_be(rule: Any) -> None:
    with pytest.raises(GrantError):
        allow([rule])


def test_what_is_told_of_a_name_in_other_letters() -> None:
    with pytest.raises(GrantError, match=r"xn--bcher-kva\.example"):
        allow(["bücher.example"])


@pytest.mark.parametrize("network", [True, False, ["a.test"], "a.test"])
def test_w01_w02_what_is_no_policy_is_refused_and_not_ignored(network: Any) -> None:
    with pytest.raises(GrantError, match="Name the hosts"):
        Grant(network=network)


# -- layers -------------------------------------------------------------------------------------------


def test_every_layer_has_to_allow() -> None:
    outer = Grant(network=allow(["*.test", "api.other"], allow_private=["10.0.0.0/8", "127.0.0.0/8"]))
    inner = Grant(
        network=allow(
            ["a.test", "b.example", NetworkRule("api.test", methods=("GET",), inject={"X-Key": "12345678"})],
            allow_private=["10.1.0.0/16"],
        )
    )
    both = intersection(outer, None, inner).network
    assert both is not None
    assert tunnel(both, "a.test")
    assert not tunnel(both, "b.example")
    assert not tunnel(both, "api.other")
    assert asked(both, "api.test") == (443, True)
    assert both.request("api.test", 80, "GET", "/").inject == {"X-Key": "12345678"}
    assert not tunnel(both, "api.test")
    assert [str(network) for network in both.private] == ["10.1.0.0/16"]
    assert intersection(outer, Grant()).network is None
    assert intersection(Grant(), inner).network is None
    assert intersection(inner, inner).network == inner.network


# -- addresses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.31.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255"),
        *("::", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1"),
        *("fe80::1", "fe80::1%lo", "fc00::1", "fd00:ec2::254", "ff02::1", "2002:7f00:1::", "2001::1", "2001:db8::1"),
        *("", "localhost", "1.2.3", "8.8.8.8%x"),
    ],
)  # fmt: skip
def test_addresses_that_nobody_is_led_to(address: str) -> None:
    assert allow(["*"]).refuses(address)


def test_addresses_that_are_public() -> None:
    policy = allow(["*"])
    for address in ("8.8.8.8", "1.1.1.1", "::ffff:8.8.8.8", "2606:4700:4700::1111"):
        assert not policy.refuses(address), address
    own = allow(["*"], allow_private=["127.0.0.0/8", "fd00::/8"])
    assert not own.refuses("127.0.0.1")
    assert not own.refuses("::ffff:127.0.0.1")
    assert not own.refuses("fd00::1")
    assert own.refuses("10.0.0.1")
    assert own.refuses("::1")
    for wrong in ("127.0.0.1/8", "x"):
        with pytest.raises(GrantError, match="allow_private"):
            allow(["*"], allow_private=[wrong])


def test_one_address_that_is_refused_is_enough() -> None:
    """A name with a public and a private address is refused, whichever would be taken first."""
    answers = {"mixed.test": ["8.8.8.8", "10.0.0.1"], "good.test": ["8.8.8.8"], "none.test": []}

    async def slowly(name: str) -> list[str]:
        return answers[name]

    for resolve in (answers.__getitem__, slowly):
        policy = allow(["*"], resolve=resolve)
        assert asyncio.run(policy.addresses("good.test")) == ["8.8.8.8"]
        with pytest.raises(Refusal, match="not public"):
            asyncio.run(policy.addresses("mixed.test"))
        with pytest.raises(OSError, match="no address"):
            asyncio.run(policy.addresses("none.test"))
    with pytest.raises(Refusal):
        asyncio.run(allow(["10.0.0.1"]).addresses("10.0.0.1"))
    with pytest.raises(Refusal):
        asyncio.run(allow(["*"]).addresses("localhost"))


def test_names_that_are_slow_to_look_up_hold_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """All other work in threads goes on, however many such names a script asks for."""
    answered, looked_up = threading.Event(), socket.getaddrinfo

    def slow(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "slow.example":
            answered.wait(30)
            raise socket.gaierror("no such name")
        return looked_up(host, *rest, **more)

    async def main() -> None:
        policy = allow(["*"])
        waiting = [asyncio.ensure_future(policy.addresses("slow.example")) for _ in range(50)]
        try:
            await asyncio.sleep(0)
            assert await asyncio.wait_for(asyncio.to_thread(lambda: "works"), 10) == "works"
            waiting[0].cancel()
            with pytest.raises(asyncio.CancelledError):  # as when its time is up
                await asyncio.wait_for(waiting[0], 10)
        finally:
            answered.set()
        for found in await asyncio.gather(*waiting[1:], return_exceptions=True):
            assert isinstance(found, socket.gaierror)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    asyncio.run(main())
