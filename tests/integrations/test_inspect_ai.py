"""Inspect's own checks of a sandbox provider, all of them, on every runtime; and an evaluation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("inspect_ai", reason="dev/setup.sh test installs it")

import anyio
import anyio.lowlevel
from examples import Examples
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from executor import BadRequestError, Executor, Limits, Settings
from executor.integrations.inspect_ai import ExecutorSandbox, settings_of

pytestmark = pytest.mark.anyio

# Checks that ask for what a sandbox must not have.
CONTRADICTED = {
    "test_exec_as_user": "it adds a user as root; a sandbox has one user, and nothing becomes another",
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def environment(
    executor: Executor, runtime: str, anyio_backend: str
) -> AsyncIterator[SandboxEnvironment]:
    """A sandbox of the runtime under test (which `executor` has found to work), made as Inspect makes it."""
    settings = Settings(runtime=runtime)  # type: ignore[arg-type]
    made = await ExecutorSandbox.sample_init("check", settings, {})
    yield made["default"]
    await ExecutorSandbox.sample_cleanup("check", settings, made, False)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, environment: SandboxEnvironment) -> SandboxEnvironment:
    """The name that the checks ask for."""
    if reason := CONTRADICTED.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    return environment


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks wait five seconds for the end of what ran into its deadline. It has ended by then."""

    async def no_sleep(_seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(self_check, "anyio", SimpleNamespace(sleep=no_sleep))


async def test_ps_would_find_what_lives(sandbox_env: SandboxEnvironment) -> None:
    """The control of the two checks that look for what is still there."""
    found = await sandbox_env.exec(["sh", "-c", "sleep 30.5 & ps aux | grep 'sleep 30[.]5'"])
    assert "sleep 30.5" in found.stdout


async def test_errors_are_those_that_inspect_knows(sandbox_env: SandboxEnvironment) -> None:
    with pytest.raises(SandboxUserUnsupportedError, match="one user"):
        await sandbox_env.exec(["true"], user="root")
    uid = (await sandbox_env.exec(["id", "-u"])).stdout.strip()
    assert (await sandbox_env.exec(["id", "-u"], user=uid)).stdout.strip() == uid
    missing = await sandbox_env.exec(["true"], cwd="nowhere")
    assert not missing.success and "nowhere" in missing.stderr
    assert (await sandbox_env.exec(["true"], cwd="/nowhere")).returncode == 2
    with override_max_exec_output_size(1000), pytest.raises(OutputLimitExceededError) as error:
        await sandbox_env.exec(["seq", "1000"])
    assert error.value.truncated_output.startswith("1\n2\n")
    assert error.value.truncated_output.endswith("999\n1000\n")
    with pytest.raises(TimeoutError) as late:
        await sandbox_env.exec(["sh", "-c", "echo begun; sleep 9"], timeout=1)
    assert late.value.truncated_output == "begun\n"  # type: ignore[attr-defined]
    await sandbox_env.exec(["mkfifo", "/tmp/pipe"])
    for access in (sandbox_env.read_file("/tmp/pipe"), sandbox_env.write_file("/tmp/pipe", "x")):
        with pytest.raises(OSError, match="/tmp/pipe"):
            await access
    await sandbox_env.write_file("not-utf-8", b"\xff")
    with pytest.raises(UnicodeDecodeError):
        await sandbox_env.read_file("not-utf-8")


async def test_a_sandbox_that_is_gone_is_unavailable(executor: Executor, runtime: str) -> None:
    made = await ExecutorSandbox.sample_init("check", Settings(runtime=runtime), {})  # type: ignore[arg-type]
    gone = made["default"]
    await ExecutorSandbox.sample_cleanup("check", None, made, True)
    with pytest.raises(SandboxUnavailableError):
        await gone.exec(["true"])
    with pytest.raises(SandboxUnavailableError):
        await gone.read_file("x")


async def no_tokens(_text: str) -> int:
    return 0


def test_an_evaluation_uses_it(examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its entry point; its settings go through the log and back."""
    call = ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "pwd; id -u"})
    said = ModelOutput.from_content("mockllm/model", "done")
    model = get_model("mockllm/model", custom_outputs=[call, said])
    monkeypatch.setattr(model.api, "count_text_tokens", no_tokens)  # the true ones need a file of the network
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    (log,) = examples.run("Inspect", model=model)["logs"]
    assert log.status == "success", log.error
    (answer,) = [message for message in log.samples[0].messages if message.role == "tool"]
    assert answer.text.startswith("/workspace\n")


def test_settings_of_a_task() -> None:
    settings = Settings(runtime="local", timeout=7)
    assert settings_of(settings) is settings
    assert ExecutorSandbox.config_deserialize(settings.model_dump(mode="json")) == settings
    with pytest.raises(BadRequestError, match=r"executor\.Settings"):
        settings_of(Limits())
