"""The guest's first word compared with the order: a sandbox that is not what was ordered is never used.

The guest can be believed here and only here: nothing untrusted has run yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from executor.errors import SandboxStartError
from executor.guest import wire
from executor.runtimes.base import OWN_NAMESPACES, WRITABLE, Facts
from executor.workspace.text import printable_name

CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
KERNEL_OWN = ("proc", "devpts", "mqueue", "cgroup", "cgroup2", "sysfs")
KEYS = {"dumpable", "namespaces", "nonce", "pid", "python", "root", "status", "version", "writable"}


@dataclass(frozen=True)
class Expected:
    """What was ordered."""

    nonce: str
    facts: Facts


def check_attestation(body: dict[str, Any], expected: Expected) -> list[str]:
    """Raise SandboxStartError naming every difference. Returns the attested writable mount points."""
    wrong = list(_differences(body, expected))
    if wrong:
        raise SandboxStartError(
            "the sandbox is not what was ordered: " + printable_name("; ".join(wrong)),
            hint="It was destroyed unused. Run `executor doctor` to see which protection this machine lacks.",
        )
    return [str(mount[0]) for mount in body["writable"]]


def _differences(body: dict[str, Any], expected: Expected) -> Any:
    if set(body) != KEYS:
        yield f"its hello has the keys {sorted(map(str, body))[:20]}"
        return
    if body["nonce"] != expected.nonce:
        yield "its hello does not carry our nonce"
    if not _is(body["version"], wire.VERSION):
        yield f"it speaks protocol {body['version']!r}, not {wire.VERSION}"
    if not _is(body["pid"], 1):
        yield f"the guest is process {body['pid']!r}, not 1"
    if not _is(body["dumpable"], 0):
        yield "the guest is dumpable"
    status, namespaces, writable = body["status"], body["namespaces"], body["writable"]
    if not (isinstance(status, dict) and isinstance(namespaces, dict) and isinstance(writable, list)):
        yield "its hello is malformed"
        return
    for name in CAPABILITY_SETS:
        if _integer(status.get(name), 16) != 0:
            yield f"{name} is {status.get(name)!r}, not empty"
    if status.get("NoNewPrivs") != "1":
        yield "no_new_privs is off"
    if status.get("Seccomp") != "2":
        yield "no seccomp filter is in force"
    facts = expected.facts
    for name, wanted in (("Uid", facts.uid), ("Gid", facts.gid)):
        if str(status.get(name, "")).split() != [str(wanted)] * 4:
            yield f"{name} is {status.get(name)!r}, not {wanted}"
    groups = set(str(status.get("Groups", "")).split()) - {str(facts.gid), "65534"}
    if groups:
        yield f"it has the supplementary groups {sorted(groups)}"
    for name in OWN_NAMESPACES:
        inside, ours = namespaces.get(name), facts.namespaces.get(name)
        if not inside or not isinstance(inside, str):
            yield f"its {name} namespace is unknown"
        elif inside == ours:
            yield f"its {name} namespace is the host's"
    if "ro" not in str(body["root"]).split(","):
        yield "its root file system is writable"
    for mount in writable:
        if not (isinstance(mount, list) and len(mount) == 2 and all(isinstance(x, str) for x in mount)):
            yield "its hello is malformed"
            return
        where, kind = mount
        if where in WRITABLE:
            if kind != "tmpfs":
                yield f"{where} is {kind}, not tmpfs"
        elif kind not in KERNEL_OWN and not where.startswith("/dev/"):
            yield f"{where} ({kind}) is writable"
    missing = set(WRITABLE) - {mount[0] for mount in writable}
    if missing:
        yield f"{sorted(missing)} are not mounted writable"


def _is(value: Any, wanted: int) -> bool:
    """Equal, and not a truth value or a float that Python takes for equal."""
    return type(value) is int and value == wanted


def _integer(text: Any, base: int) -> int:
    try:
        return int(str(text), base)
    except ValueError:
        return -1
