"""What an operator may add to a container: an allow-list of settings that cannot weaken a sandbox.

Everything else is refused by name. A create body has two hundred settings; most of them undo the hardening,
so there is no way to pass one through.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from executor.errors import BadRequestError

OWN_LABELS = "executor."


@dataclass(frozen=True)
class Option:
    """One allowed setting."""

    where: str
    """Its name in the create body's HostConfig; '' for what is not a plain value there."""
    meaning: str
    """What may be written, for a person."""
    accepts: Callable[[Any], bool]


def _number(lowest: int, highest: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and lowest <= value <= highest


def _text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


def _labels(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(text, str) and key and not key.startswith(OWN_LABELS)
        for key, text in value.items()
    )


ALLOWED = {
    "apparmor": Option(
        "",
        "the name of an AppArmor profile that is loaded on the engine's machine, not `unconfined`",
        lambda value: _text(r"[A-Za-z0-9_][\w.-]{0,127}")(value) and value != "unconfined",
    ),
    "blkio_weight": Option("BlkioWeight", "a number from 10 to 1000", _number(10, 1000)),
    "cgroup_parent": Option(
        "CgroupParent",
        "the name of a cgroup or slice, such as `sandboxes.slice` or `/sandboxes`",
        lambda value: _text(r"/?[\w@:-][\w.@:-]*(/[\w@:-][\w.@:-]*)*")(value) and len(value) <= 255,
    ),
    "cpu_shares": Option("CpuShares", "a number from 2 to 262144; ours is 256", _number(2, 262_144)),
    "cpuset_cpus": Option(
        "CpusetCpus",
        "a list of processors, such as `0-2,4`",
        _text(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*"),
    ),
    "labels": Option("", f"a map of texts whose names do not begin with `{OWN_LABELS}`", _labels),
    "oom_score_adj": Option("OomScoreAdj", "a number from 0 to 1000; ours is 500", _number(0, 1000)),
}


def check(options: Mapping[str, Any]) -> None:
    """BadRequestError for the first option that is not allowed, or not with this value."""
    for name, value in options.items():
        option = ALLOWED.get(name)
        if option is None:
            raise BadRequestError(
                f"the container option {name!r} is not allowed: it could weaken the sandbox",
                hint=f"Allowed are {', '.join(sorted(ALLOWED))}.",
            )
        if not option.accepts(value):
            raise BadRequestError(
                f"the container option {name}={value!r} is not allowed", hint=f"Write {option.meaning}."
            )


def applied(body: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A create body with the operator's options. Pure. BadRequestError as from `check`."""
    check(options)
    made = copy.deepcopy(dict(body))
    host = made["HostConfig"]
    for name, value in options.items():
        if where := ALLOWED[name].where:
            host[where] = value
    if "apparmor" in options:
        host["SecurityOpt"].append(f"apparmor={options['apparmor']}")
    made["Labels"] = {**options.get("labels", {}), **made["Labels"]}
    return made
