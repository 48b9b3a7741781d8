"""Values that are files: what a tool says of them, copies, limits, and marks that nobody can forge."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from executor import (
    ApprovalRequest,
    AuditLog,
    BridgeLimits,
    Grant,
    GrantError,
    HostFile,
    SandboxFile,
    ToolSpec,
    tool,
)
from executor.bridge.dispatch import RunBridge, Subject
from executor.bridge.values import SCHEMA, Values
from executor.errors import BadPathError
from tests.unit.test_bridge_dispatch import Request

seen: list[Any] = []


@tool
def take(document: HostFile, more: list[HostFile] | None = None) -> int:
    """Count."""
    seen.append(document)
    return document.size + sum(file.size for file in more or [])


@tool
def give(text: str) -> SandboxFile:
    """Make."""
    return SandboxFile("made.txt", text)


@tool
def both(count: int) -> Any:
    """Make several, among other things."""
    return {"files": [SandboxFile(f"{n}.bin", bytes([n])) for n in range(count)], "n": count}


class Box:
    """What the sandbox holds, and a bridge to it."""

    def __init__(self, *tools: Any, approver: Any = None, **limits: Any) -> None:
        self.files: dict[str, bytes] = {"/workspace/work/a.txt": b"hello", "b.bin": bytes(1000)}
        self.audit = AuditLog()
        made = BridgeLimits(rate=None, **limits)
        self.bridge = RunBridge(
            Grant(tools=tools, limits=made, approver=approver), Subject("r", "s"), self.audit
        )
        self.bridge.values = Values(self.pull, self.push, "/workspace/runs/r", made.file, made.files)

    async def pull(self, path: str, most: int, take: Callable[[bytes], None]) -> None:
        if path not in self.files:
            raise BadPathError(f"cannot read {path!r}")
        for at in range(0, min(most, len(self.files[path])), 100):
            take(self.files[path][at : min(at + 100, most)])
            await asyncio.sleep(0)

    async def push(self, path: str, content: bytes | Path) -> None:
        self.files[path] = content if isinstance(content, bytes) else content.read_bytes()  # noqa: ASYNC240

    async def call(self, name: str, value: Any) -> Any:
        import json

        request = Request(
            json.dumps({"method": "tool.call", "params": {"name": name, "input": value}}).encode()
        )
        self.bridge.incoming(request)  # type: ignore[arg-type]
        await asyncio.wait_for(request.answered.wait(), 10)
        answer = json.loads(request.answer or b"")
        return answer["value"] if answer["ok"] else answer["error"]["code"]


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def test_what_the_schema_says() -> None:
    assert take.files == ("document", "more")
    assert dict(SCHEMA).items() <= take.input_schema["properties"]["document"].items()
    assert give.files == ()
    assert give.output_schema == {"type": "object", "required": ["$file"]}
    with pytest.raises(GrantError, match="no input 'other'"):
        ToolSpec("t", "", {"properties": {"a": {}}}, lambda value, ctx: None, files=("other",))
    with pytest.raises(GrantError, match="overflow"):
        dataclasses.replace(give, overflow="elsewhere")  # type: ignore[arg-type]
    for name in ("", "..", "a/b", "a\n", "x" * 201):
        with pytest.raises(ValueError, match="name of a file"):
            SandboxFile(name, b"")


def test_an_argument_is_a_copy_on_the_host() -> None:
    box = Box(take)
    assert asyncio.run(box.call("take", {"document": {"$file": "/workspace/work/a.txt"}})) == 5
    (file,) = seen
    assert (file.read(), file.open().read(), file.path) == (b"hello", b"hello", "/workspace/work/a.txt")
    assert file.sha256 == hashlib.sha256(b"hello").hexdigest()
    local = file.local
    assert local.exists()
    (entry,) = box.audit.records
    assert '"sha256":"2cf24d' in entry["input_preview"]
    seen.clear()
    del file
    gc.collect()
    assert not local.exists()


def test_lists_and_models() -> None:
    class Wanted(BaseModel):
        """Of files."""

        one: HostFile
        name: str = ""

    made = ToolSpec.from_model(Wanted, lambda value, ctx: value.one.read().decode())
    box = Box(take, made)
    reference = {"$file": "/workspace/work/a.txt"}
    assert (
        asyncio.run(box.call("take", {"document": reference, "more": [reference, {"$file": "b.bin"}]}))
        == 1010
    )
    assert asyncio.run(box.call("Wanted", {"one": reference, "name": "n"})) == "hello"


def test_what_is_no_reference_reaches_no_handler() -> None:
    box = Box(take)
    for wrong in (5, "text", {}, {"$file": 5}, {"$file": "b.bin", "size": 1}, [], None):
        assert asyncio.run(box.call("take", {"document": wrong})) == "TOOL_INPUT_INVALID"
    assert asyncio.run(box.call("take", {"document": {"$file": "missing"}})) == "NOT_FOUND"
    assert seen == []


def test_limits_hold_for_files_side_by_side() -> None:
    async def test() -> None:
        box = Box(take, file=1000, files=2500)
        found = await asyncio.gather(*(box.call("take", {"document": {"$file": "b.bin"}}) for _ in range(4)))
        assert sorted(found, key=str) == [1000, 1000, "VALUE_TOO_LARGE", "VALUE_TOO_LARGE"]
        assert await box.call("take", {"document": {"$file": "/workspace/work/a.txt"}}) == 5
        assert await Box(take, file=999).call("take", {"document": {"$file": "b.bin"}}) == "VALUE_TOO_LARGE"

    asyncio.run(test())


def test_a_person_sees_which_file_it_is() -> None:
    async def test() -> None:
        asked: list[ApprovalRequest] = []

        async def approver(request: ApprovalRequest) -> bool:
            asked.append(request)
            return False

        box = Box(dataclasses.replace(take, approval="always"), approver=approver)
        reference = {"$file": "/workspace/work/a.txt"}
        assert await box.call("take", {"document": reference}) == "APPROVAL_REJECTED"
        box.files["/workspace/work/a.txt"] = b"other"
        await box.call("take", {"document": reference})
        assert asked[0].input["document"] == {
            **reference,
            "size": 5,
            "sha256": hashlib.sha256(b"hello").hexdigest(),
        }
        assert asked[0].digest != asked[1].digest

    asyncio.run(test())


def test_results_are_put_into_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"from the host")
    from_path = ToolSpec("path", "", {}, lambda value, ctx: SandboxFile("p.txt", tmp_path / "x"))
    box = Box(give, both, from_path)
    found = asyncio.run(box.call("give", {"text": "é"}))
    assert found["size"] == 2
    assert found["$file"].startswith("/workspace/runs/r/c1-")
    assert box.files[found["$file"]] == "é".encode()
    several = asyncio.run(box.call("both", {"count": 3}))
    assert [box.files[file["$file"]] for file in several["files"]] == [b"\0", b"\1", b"\2"]
    assert several["n"] == 3
    assert box.files[asyncio.run(box.call("path", {}))["$file"]] == b"from the host"
    assert asyncio.run(Box(give, file=4).call("give", {"text": "12345"})) == "VALUE_TOO_LARGE"


def test_marks_of_others_are_only_text() -> None:
    echo = ToolSpec("echo", "", {}, lambda value, ctx: value)
    box = Box(echo, give)
    for forged in ("x", "0" * 32 + "/made.txt", "/etc/passwd"):
        assert asyncio.run(box.call("echo", {"$file": forged})) == {"$file": forged}
    assert set(box.files) == {"/workspace/work/a.txt", "b.bin"}


def test_a_result_that_is_too_large_may_be_a_file() -> None:
    large = ToolSpec("large", "", {}, lambda value, ctx: ["x" * 100] * 100, max_result=1000)
    assert asyncio.run(Box(large).call("large", {})) == "VALUE_TOO_LARGE"
    box = Box(dataclasses.replace(large, overflow="file"))
    found = asyncio.run(box.call("large", {}))
    assert found["$file"].endswith("/result.json")
    assert box.files[found["$file"]].startswith(b'["xxx')
    assert found["size"] == len(box.files[found["$file"]])
