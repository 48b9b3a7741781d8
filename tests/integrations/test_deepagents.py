"""LangChain's own tests of a sandbox backend, all of them, on every runtime; and an agent that uses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("deepagents", reason="dev/setup.sh test installs it")

from examples import Examples
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import SandboxIntegrationTests

from executor import Executor
from executor.integrations.deepagents import ExecutorSandbox


class TestStandard(SandboxIntegrationTests):
    """What LangChain asks of every sandbox."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture(scope="class")
    @classmethod
    def anyio_backend(cls) -> str:
        return "asyncio"

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, executor: Executor) -> Iterator[ExecutorSandbox]:
        with executor.session() as session:
            yield ExecutorSandbox(session)


class Scripted(GenericFakeChatModel):
    """A model that says what it was told to, whichever tools it has."""

    def bind_tools(self, tools: Sequence[Any], **_options: Any) -> Scripted:
        return self


def test_an_agent_uses_it(examples: Examples) -> None:
    call = {
        "name": "write_file",
        "args": {"file_path": "/workspace/out/answer.txt", "content": "42"},
        "id": "1",
    }
    listed = {"name": "execute", "args": {"command": "ls out; cat out/answer.txt"}, "id": "2"}
    said = [AIMessage("", tool_calls=[call]), AIMessage("", tool_calls=[listed]), AIMessage("done")]
    found = examples.run("LangChain deep agents", model=Scripted(messages=iter(said)))
    texts = [message.text for message in found["answer"]["messages"] if message.type == "tool"]
    assert texts[1].startswith("answer.txt\n42"), texts
    assert [(file.path, file.content) for file in found["files"]] == [("out/answer.txt", "42")]


def test_commands_and_files_as_the_protocol_has_them(executor: Executor) -> None:
    with executor.session() as session:
        backend = ExecutorSandbox(session, max_download=1000)
        assert backend.id == session.id
        both = backend.execute("echo a; echo b >&2; echo c; exit 3")
        assert (both.output, both.exit_code, both.truncated) == ("a\nb\nc\n", 3, False)
        late = backend.execute("echo begun; sleep 9", timeout=1)
        assert (late.output, late.exit_code) == ("begun\n\n[timeout: the command was ended]", 124)
        flood = backend.execute("yes | head -c 3000000")
        assert flood.truncated and flood.exit_code == 0 and len(flood.output) < 2 << 20
        written = backend.upload_files(
            [("x", b""), ("/workspace/a/b", b"\0\xff"), ("/proc/nothing", b""), ("/x\0", b"")]
        )
        assert [one.error for one in written] == ["invalid_path", None, "file_not_found", "invalid_path"]
        backend.execute("head -c 1001 /dev/zero > large; mkfifo pipe; ln -s a/b link; ln -s loop loop")
        names = ("a/b", "link", "large", "pipe", "a", "a/b/c", "nothing", "loop")
        read = backend.download_files([f"/workspace/{name}" for name in names])
        assert [one.content for one in read[:2]] == [b"\0\xff"] * 2
        assert "File too large" in read[2].error and "Invalid argument" in read[3].error
        errors = ["is_directory", "file_not_found", "file_not_found", "invalid_path"]
        assert [one.error for one in read[4:]] == errors
