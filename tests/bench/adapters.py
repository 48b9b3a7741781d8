"""The bench's jobs by other packages. `peers.py` runs it with the Python of the package's own environment:

    python adapters.py NAME IMAGE ROUNDS FOLDER

FOLDER holds the files to be put. It prints one JSON object: the job's name → milliseconds of each round. Each
package is used as its documentation shows; nothing of this project is imported here.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = "print(sum(range(10)))"


class Peer:
    """One sandbox of a package. What a package has no call for raises NotImplementedError."""

    def __init__(self, image: str) -> None:
        self.image = image

    async def create(self) -> None:
        raise NotImplementedError

    async def true(self) -> None:
        raise NotImplementedError

    async def script(self) -> None:
        raise NotImplementedError

    async def put(self, folder: Path) -> None:
        raise NotImplementedError

    async def get(self, name: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class LlmSandbox(Peer):
    async def create(self) -> None:
        from llm_sandbox import SandboxSession

        self.session: Any = SandboxSession(
            lang="python",
            image=self.image,
            skip_environment_setup=True,
            keep_template=True,
            runtime_configs={"user": "root", "command": ["sleep", "600"]},
        )
        self.session.open()

    async def true(self) -> None:
        assert self.session.execute_command("true").exit_code == 0

    async def script(self) -> None:
        assert self.session.execute_command(f"python3 -c '{SCRIPT}'").exit_code == 0

    async def put(self, folder: Path) -> None:
        self.session.copy_to_runtime(str(folder), f"/sandbox/{folder.name}")

    async def get(self, name: str) -> None:
        self.session.copy_from_runtime(f"/sandbox/{name}", tempfile.mkdtemp())

    async def close(self) -> None:
        remove(self.session.container)


class OpenAIAgents(Peer):
    async def create(self) -> None:
        import docker
        from agents.sandbox import Manifest
        from agents.sandbox.sandboxes.docker import DockerSandboxClient, DockerSandboxClientOptions

        self.client: Any = DockerSandboxClient(docker.from_env())
        options = DockerSandboxClientOptions(image=self.image, network_mode="none")
        manifest = Manifest(root="/tmp/workspace")  # where the image's user may write
        self.session: Any = await self.client.create(options=options, manifest=manifest)
        await self.session.start()

    async def _exec(self, *words: str) -> None:
        result = await self.session.exec(*words, shell=False)
        assert result.exit_code == 0, result

    async def true(self) -> None:
        await self._exec("true")

    async def script(self) -> None:
        await self._exec("python3", "-c", SCRIPT)

    async def put(self, folder: Path) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(folder, folder.name)
        buffer.seek(0)
        await self.session.hydrate_workspace(buffer)

    async def get(self, name: str) -> None:
        (await self.session.persist_workspace()).read()

    async def close(self) -> None:
        remove(self.session._inner._container)


class AutoGen(Peer):
    async def create(self) -> None:
        from autogen_core import CancellationToken
        from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor

        self.token: Any = CancellationToken
        work = tempfile.mkdtemp()
        os.chmod(work, 0o777)  # the image's user reads it
        self.executor: Any = DockerCommandLineCodeExecutor(image=self.image, work_dir=work)
        await self.executor.start()

    async def _run(self, language: str, code: str) -> None:
        from autogen_core.code_executor import CodeBlock

        block = CodeBlock(language=language, code=code)
        result = await self.executor.execute_code_blocks([block], self.token())
        assert result.exit_code == 0, result

    async def true(self) -> None:
        await self._run("sh", "true")

    async def script(self) -> None:
        await self._run("python", SCRIPT)

    async def close(self) -> None:
        remove(self.executor._container)


class SweRex(Peer):
    async def create(self) -> None:
        from swerex.deployment.docker import DockerDeployment

        self.deployment: Any = DockerDeployment(image=self.image, startup_timeout=30, pull="never")
        await self.deployment.start()

    async def _exec(self, *words: str) -> None:
        from swerex.runtime.abstract import Command

        result = await self.deployment.runtime.execute(Command(command=list(words)))
        assert result.exit_code == 0, result

    async def true(self) -> None:
        await self._exec("true")

    async def script(self) -> None:
        await self._exec("python3", "-c", SCRIPT)

    async def close(self) -> None:
        await self.deployment.stop()


def remove(container: Any) -> None:
    """At once: what packages do instead waits ten seconds for a process that ignores TERM."""
    with contextlib.suppress(Exception):
        container.kill()
        container.remove(force=True)


PEERS = {"llm-sandbox": LlmSandbox, "openai-agents": OpenAIAgents, "autogen-ext": AutoGen, "swe-rex": SweRex}


async def measure(name: str, image: str, rounds: int, folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}

    async def timed(job: str, work: Any) -> None:
        began = time.perf_counter()
        try:
            await work
        except NotImplementedError:
            return
        found.setdefault(job, []).append((time.perf_counter() - began) * 1000)

    async def first(peer: Peer) -> None:
        await peer.create()
        await peer.true()

    for number in range(2):  # the second has everything imported
        peer = PEERS[name](image)
        try:
            if number == 0:
                await first(peer)
                continue
            await timed("create to first result", first(peer))
            for _ in range(rounds):
                await timed("true", peer.true())
                await timed("python script", peer.script())
            for _ in range(3):
                await timed("put 1,000 files", peer.put(folder))
                await timed("get 1,000 files", peer.get(folder.name))
        finally:
            await peer.close()
    return found


if __name__ == "__main__":
    result = asyncio.run(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
    print("\n" + json.dumps(result))
