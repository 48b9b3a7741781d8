"""The OpenAI Agents SDK's interface of a sandbox, on every runtime; and an agent that uses it."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="dev/setup.sh test installs it")

from agents import set_tracing_disabled
from agents.sandbox import (
    ExecTimeoutError,
    ExecTransportError,
    LocalSnapshotSpec,
    Manifest,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.entries import File
from agents.testing import ScriptedModel, assistant_message, function_call
from examples import Examples
from waiting import gone

from executor import AsyncExecutor, BadRequestError, Executor
from executor.integrations.openai_sandbox import ExecutorSandboxClient

set_tracing_disabled(True)


def test_an_agent_uses_it(examples: Examples) -> None:
    call = function_call("exec_command", {"cmd": "pwd; echo $((6 * 7))"}, call_id="1")
    model = ScriptedModel([[call], [assistant_message("done")]])
    answer = examples.run("OpenAI Agents SDK", 2, model=model)["answer"]
    (output,) = [item.output for item in answer.new_items if item.type.endswith("call_output_item")]
    assert "/workspace\n42\n" in output


def test_a_session_from_its_manifest_to_its_end(
    executor: Executor, runtime: str, skills_root: Path, tmp_path: Path
) -> None:
    async def use(client: ExecutorSandboxClient) -> Any:
        manifest = Manifest(entries={"a/note.txt": File(content=b"hello\n")})
        made = await client.create(manifest=manifest, snapshot=LocalSnapshotSpec(base_path=tmp_path))
        await made.start()
        assert (await made.read(Path("a/note.txt"))).read() == b"hello\n"
        await made.write(Path("/workspace/b/c.bin"), io.BytesIO(b"\0\xff"))
        ran = await made.exec("cat b/c.bin; echo e >&2; exit 3")
        assert (ran.stdout, ran.stderr, ran.exit_code) == (b"\0\xff", b"e\n", 3)
        flood = await made.exec("head -c 20000000 /dev/zero")
        assert (len(flood.stdout), flood.exit_code) == (16 << 20, 0)
        with pytest.raises(WorkspaceReadNotFoundError):
            await made.read(Path("nothing"))
        with pytest.raises(IsADirectoryError):
            await made.read(Path("a"))
        with pytest.raises(PermissionError, match="one user"):
            await made.read(Path("a/note.txt"), user="root")
        with pytest.raises(ExecTimeoutError):
            await made.exec("setsid sleep 4324 & sleep 4324", timeout=0.5)
        assert await gone(made._inner.session, "sleep 4324")
        again = await client.resume(
            client.deserialize_session_state(client.serialize_session_state(made.state))
        )
        await again.start()
        assert again._inner.session is made._inner.session
        await made.stop()
        return made

    async def work() -> None:
        async with AsyncExecutor(skills=[skills_root], runtime=runtime) as own:
            client = ExecutorSandboxClient(own)
            with pytest.raises(BadRequestError, match="/elsewhere"):
                await client.create(manifest=Manifest(root="/elsewhere"))
            made = await use(client)
            state = client.serialize_session_state(made.state)
            await client.delete(made)
            assert not await made.running()
            with pytest.raises(ExecTransportError):
                await made.exec("true")
            other = await client.resume(client.deserialize_session_state(state))
            await other.start()
            assert other._inner.session is not made._inner.session
            assert (await other.read(Path("b/c.bin"))).read() == b"\0\xff"
            await client.delete(other)

    asyncio.run(asyncio.wait_for(work(), 200))
