"""The record of calls cannot be changed without being noticed, and holds no secrets."""

from __future__ import annotations

import json
import os
import resource
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor.bridge.audit import PREVIEW, STRUCK, AuditLog, line, preview, strike, verify


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_chained(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(5):
        log.record({"n": number})
    assert verify(path) == (5, log.records[-1]["hash"])
    found = lines(path)
    assert [entry["seq"] for entry in found] == list(range(5))
    assert found[0]["prev_hash"] == "0" * 64
    assert [entry["prev_hash"] for entry in found[1:]] == [entry["hash"] for entry in found[:-1]]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("how", ["change", "remove", "swap", "insert", "truncate line", "renumber"])
def test_a_change_is_noticed_at_its_place(tmp_path: Path, how: str) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(5):
        log.record({"n": number})
    text = path.read_text().splitlines(keepends=True)
    if how == "change":
        text[2] = text[2].replace('"n":2', '"n":7')
    elif how == "remove":
        del text[2]
    elif how == "swap":
        text[2], text[3] = text[3], text[2]
    elif how == "insert":
        text.insert(2, text[1])
    elif how == "truncate line":
        text[2] = text[2][:30] + "\n"
    else:
        text[2] = text[2].replace('"seq":2', '"seq":3')
    path.write_text("".join(text))
    with pytest.raises(ValueError, match="breaks at line 3"):
        verify(path)
    with pytest.raises(ValueError, match="breaks at line 3"):
        AuditLog(path)


def test_a_log_goes_on_after_a_restart_and_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    one = AuditLog(path)
    one.record({"by": "one"})
    two = AuditLog(path)
    two.record({"by": "two"})
    one.record({"by": "one"})
    threads = [
        threading.Thread(target=lambda log=log: [log.record({"x": 1}) for _ in range(50)])  # type: ignore[misc]
        for log in (one, two, AuditLog(path))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verify(path)[0] == 153


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[None]:
    """Files of this process have room for 4 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_record_that_has_no_room_is_not_there_at_all(tmp_path: Path, tiny_disk: None) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.record({"n": 0})
    size = path.stat().st_size
    with pytest.raises(OSError):
        log.record({"n": "x" * 5000})  # of which a part has room
    assert path.stat().st_size == size
    log.record({"n": 2})
    assert verify(path) == (2, log.records[-1]["hash"])


def test_a_record_that_a_killed_process_left_in_half_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(3):
        log.record({"n": number})
    whole = path.read_bytes()
    for torn in (b'{"ts":1', b"x" * 100_000):
        path.write_bytes(whole + torn)
        with pytest.raises(ValueError, match="breaks at line 4"):  # it is seen by who only looks
            verify(path)
        log.record({"by": "one that had it open"})
        assert verify(path)[0] == 4
        path.write_bytes(whole + torn)
        assert AuditLog(path).record({"by": "another"})["seq"] == 3
        assert verify(path)[0] == 4
    path.write_bytes(b'{"ts":1')
    assert AuditLog(path).record({})["seq"] == 0


def test_in_memory_only_the_latest_stay() -> None:
    log = AuditLog()
    for number in range(1500):
        log.record({"n": number})
    assert len(log.records) == 1000
    assert log.records[-1]["n"] == 1499


@pytest.mark.parametrize(
    "value",
    [
        {"password": "hunter2hunter2"},
        {"a": [{"API_KEY": "hunter2hunter2"}]},
        {"headers": {"Authorization": "hunter2hunter2"}},
        {"note": "use Bearer hunter2hunter2 now"},
        "token sk-hunter2hunter2",
        ["ghp_hunter2hunter2"],
        "eyJhunter2hunter2.eyJhunter2.x",
        {"x": {"sessionId": {"deep": "hunter2hunter2"}}},
    ],
)
def test_previews_show_no_secrets(value: Any) -> None:
    shown = preview(value)
    assert "hunter2" not in shown
    assert STRUCK in shown


def test_known_secrets_are_struck_however_they_are_written() -> None:
    secret = 'p"a\\ß\n€'
    for ascii_only in (True, False):
        text = strike(json.dumps({"a": f"x{secret}y"}, ensure_ascii=ascii_only), (secret,))
        assert json.loads(text) == {"a": f"x{STRUCK}y"}
    assert "hunter" not in preview({"a": "my hunter word"}, ("hunter",))
    assert "hunter" not in preview({"hunter": 1}, ("hunter",))


@pytest.mark.parametrize("piece", ["-eyJ", "eyJaaaaaaaa.", "bearer  "])
def test_a_text_is_not_read_once_for_each_beginning_in_it(piece: str) -> None:
    """Or this would take minutes, in which the host's event loop stands still."""
    assert len(line(piece * (100_000 // len(piece)))) == PREVIEW


def test_previews_are_short_and_never_fail() -> None:
    assert len(preview({"a": "x" * 10_000})) == PREVIEW
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert len(preview(deep)) < PREVIEW
    assert preview({"a": os.urandom})
    assert preview("\ud800")
