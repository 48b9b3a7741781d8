"""What must stay cheap, said without a clock: how often the two ends speak, and what is not done twice."""

from __future__ import annotations

from typing import Any

import pytest

from executor import Executor, Grant, Session, tool
from executor.guest import wire


@tool
def nothing() -> None:
    """Nothing."""


def frames_of(session: Session, **options: Any) -> list[str]:
    """The frames that come back while `true` runs."""
    connection: Any = session._inner._box.channel._connection  # type: ignore[union-attr]
    found: list[str] = []
    receive = connection.receive

    def recording(data: bytes) -> Any:
        events = receive(data)
        found.extend(wire.NAMES[event.type] for event in events if event.stream)
        return events

    connection.receive = recording
    try:
        assert session.exec(["true"], **options).ok
    finally:
        del connection.receive
    return found


def test_a_run_is_one_round_trip(shared: Session) -> None:
    """The end of it and the ends of its two channels, and nothing before: each word wakes the host."""
    shared.exec("true")
    assert sorted(frames_of(shared)) == ["DATA", "DATA", "EXIT"]


def test_only_a_bridge_is_told_when_its_run_starts(shared: Session) -> None:
    shared.exec("true")
    assert "STARTED" in frames_of(shared, grant=Grant(tools=[nothing]))


def test_the_first_import_compiles_nothing_of_the_library(executor: Executor) -> None:
    with executor.session() as session:
        if not session.exec("test -d /usr/lib/executor/pycache").ok:
            pytest.skip("not an image of ours: its library was not compiled with it")
        probe = "/usr/bin/python3 -v -c 'import asyncio, json' 2>&1"
        assert compiled(session.exec(probe).stdout) == []
        # The control: with a cache that has nothing, the same imports compile.
        assert compiled(session.exec(probe, env={"PYTHONPYCACHEPREFIX": "/tmp/empty"}).stdout)


def compiled(said: str) -> list[str]:
    """The modules that `python3 -v` says it made from their sources."""
    return [line for line in said.splitlines() if "code object from" in line and ".pyc" not in line]
