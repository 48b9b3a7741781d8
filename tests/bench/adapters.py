"""The bench's jobs by each package. `peers.py` runs it with the Python of the package's own environment:

    python adapters.py '{"name": …, "image": …, "folder": …, "host_network": …}'

`folder` holds the files to be put. A line on stdin asks for one job, a line on stdout answers it (see
`answer`). All jobs of one process are done in one sandbox after the other. Each package is used as its
documentation shows; nothing of this project is imported here but by `Ours`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import io
import json
import os
import shlex
import shutil
import socket
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT, SAYS = "print(sum(range(10)))", "45"


@dataclass
class Setup:
    """What the bench says once, on the command line."""

    name: str
    image: str
    folder: str
    host_network: bool = False
    """The engine has no bridge: a server in a sandbox is reached on the host's own network."""


class Peer:
    """A package with one sandbox at a time. What it has no call for raises NotImplementedError."""

    root = "/workspace"
    """The folder inside that files are put into."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.notes: list[str] = []
        """How it does a job in another way than the others."""

    async def prepare(self) -> None:
        """What a user does once for many sandboxes."""

    async def create(self) -> None:
        raise NotImplementedError

    async def run(self, *words: str) -> str:
        """A command's stdout; an error for any status but 0."""
        raise NotImplementedError

    async def put(self, folder: Path, name: str) -> None:
        raise NotImplementedError

    async def get(self, name: str, into: Path) -> None:
        """The files of the sandbox's folder `name` are then somewhere below the host's folder `into`."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def true(self) -> None:
        await self.run("true")

    async def script(self) -> str:
        return await self.run("python3", "-c", SCRIPT)

    async def first(self) -> None:
        await self.true()


class Ours(Peer):
    """This project's own executor."""

    root = "/workspace/work"

    async def prepare(self) -> None:
        from executor import AsyncExecutor, OutputLimits

        self.limits: Any = OutputLimits(max_files=10_000)
        self.executor: Any = AsyncExecutor(skills=[], runtime=self.setup.name)
        await self.executor.__aenter__()

    async def create(self) -> None:
        self.session: Any = self.executor.session()

    async def run(self, *words: str) -> str:
        result = await self.session.exec(words)
        assert result.exit_code == 0, result
        return str(result.stdout)

    async def put(self, folder: Path, name: str) -> None:
        await self.session.put(f"work/{name}", folder)

    async def get(self, name: str, into: Path) -> None:
        for file in await self.session.collect(f"work/{name}/**", limits=self.limits):
            await file.save(into)

    async def close(self) -> None:
        await self.session.close()


class LlmSandbox(Peer):
    root = "/sandbox"

    async def create(self) -> None:
        from llm_sandbox import SandboxSession

        self.session: Any = SandboxSession(
            lang="python",
            image=self.setup.image,
            skip_environment_setup=True,  # it would make a venv and ask an index
            keep_template=True,
        )
        self.session.open()

    async def run(self, *words: str) -> str:
        result = self.session.execute_command(shlex.join(words))
        assert result.exit_code == 0, result
        return str(result.stdout)

    async def put(self, folder: Path, name: str) -> None:
        self.session.copy_to_runtime(str(folder), f"{self.root}/{name}")

    async def get(self, name: str, into: Path) -> None:
        self.session.copy_from_runtime(f"{self.root}/{name}", str(into / name))

    async def close(self) -> None:
        self.session.close()


class OpenAIAgents(Peer):
    async def prepare(self) -> None:
        import docker
        from agents.sandbox.sandboxes.docker import DockerSandboxClient

        self.client: Any = DockerSandboxClient(docker.from_env())

    async def create(self) -> None:
        from agents.sandbox.sandboxes.docker import DockerSandboxClientOptions

        options = DockerSandboxClientOptions(image=self.setup.image, network_mode="none")
        self.session: Any = await self.client.create(options=options)
        await self.session.start()

    async def run(self, *words: str) -> str:
        result = await self.session.exec(*words, shell=False)
        assert result.exit_code == 0, result
        return str(result.stdout.decode())

    async def put(self, folder: Path, name: str) -> None:
        await self.session.hydrate_workspace(io.BytesIO(packed(folder, name)))

    async def get(self, name: str, into: Path) -> None:
        unpack((await self.session.persist_workspace()).read(), into)

    async def close(self) -> None:
        await self.client.delete(self.session)


class AutoGen(Peer):
    async def create(self) -> None:
        from autogen_core import CancellationToken
        from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor

        self.token: Any = CancellationToken
        self.work = Path(tempfile.mkdtemp())
        self.executor: Any = DockerCommandLineCodeExecutor(image=self.setup.image, work_dir=self.work)
        await self.executor.start()
        self.notes = ["files: copied into and out of the folder of the host that it mounts"]

    async def _block(self, language: str, code: str) -> str:
        from autogen_core.code_executor import CodeBlock

        block = CodeBlock(language=language, code=code)
        result = await self.executor.execute_code_blocks([block], self.token())
        assert result.exit_code == 0, result
        return str(result.output)

    async def run(self, *words: str) -> str:
        return await self._block("sh", shlex.join(words))

    async def script(self) -> str:
        return await self._block("python", SCRIPT)

    async def put(self, folder: Path, name: str) -> None:
        shutil.copytree(folder, self.work / name)

    async def get(self, name: str, into: Path) -> None:
        shutil.copytree(self.work / name, into / name)

    async def close(self) -> None:
        await self.executor.stop()


class SweRex(Peer):
    async def create(self) -> None:
        from swerex.deployment.docker import DockerDeployment

        network = []
        port = free_port()
        if self.setup.host_network:
            network = ["--network=host", "--env=SERVER_HOST=127.0.0.1", f"--env=SERVER_PORT={port}"]
        self.deployment: Any = DockerDeployment(
            image=self.setup.image, port=port, docker_args=network, pull="never", startup_timeout=60
        )
        await self.deployment.start()
        self.notes = ["get: one call for each file"]

    async def run(self, *words: str) -> str:
        from swerex.runtime.abstract import Command

        result = await self.deployment.runtime.execute(Command(command=list(words)))
        assert result.exit_code == 0, result
        return str(result.stdout)

    async def put(self, folder: Path, name: str) -> None:
        from swerex.runtime.abstract import UploadRequest

        request = UploadRequest(source_path=str(folder), target_path=f"{self.root}/{name}")
        await self.deployment.runtime.upload(request)

    async def get(self, name: str, into: Path) -> None:
        from swerex.runtime.abstract import ReadFileRequest

        for file in (await self.run("ls", f"{self.root}/{name}")).split():
            request = ReadFileRequest(path=f"{self.root}/{name}/{file}")
            (into / file).write_text((await self.deployment.runtime.read_file(request)).content)

    async def close(self) -> None:
        await self.deployment.stop()


COMPOSE = """
services:
  default:
    image: {image}
    x-local: true
    init: true
    command: tail -f /dev/null
    network_mode: none
    stop_grace_period: 1s
"""


class InspectAI(Peer):
    """What an evaluation calls, though it has no public name. The compose file is the package's own, with our
    image."""

    async def prepare(self) -> None:
        from inspect_ai._util.error import PrerequisiteError
        from inspect_ai.util._sandbox.docker.docker import DockerSandboxEnvironment

        self.kind: Any = DockerSandboxEnvironment
        descriptor, self.config = tempfile.mkstemp(".yaml")
        os.write(descriptor, COMPOSE.format(image=self.setup.image).encode())
        os.close(descriptor)
        self.notes = ["files: packed by the caller; it has calls for single files only"]
        try:
            await self.kind.task_init("bench", self.config)
        except PrerequisiteError as error:  # a check of versions: what is measured may work all the same
            self.notes.append(f"measured in spite of its own check: {brief(str(error))}")

    async def create(self) -> None:
        self.boxes: Any = await self.kind.sample_init("bench", self.config, {})

    @property
    def _box(self) -> Any:
        return self.boxes["default"]

    async def run(self, *words: str) -> str:
        result = await self._box.exec(list(words))
        assert result.success, result
        return str(result.stdout)

    async def put(self, folder: Path, name: str) -> None:
        await self._box.write_file("/tmp/put.tar", packed(folder, name))
        await self.run("tar", "-xf", "/tmp/put.tar", "-C", self.root)

    async def get(self, name: str, into: Path) -> None:
        await self.run("tar", "-cf", "/tmp/get.tar", "-C", self.root, name)
        unpack(await self._box.read_file("/tmp/get.tar", text=False), into)

    async def close(self) -> None:
        await self.kind.sample_cleanup("bench", self.config, self.boxes, False)


class Unpublished(dict[str, Any]):
    """The package publishes a port always, which is refused for a container on the host's network."""

    def __setitem__(self, _port: str, _where: Any) -> None:
        pass


class SmolAgents(Peer):
    async def create(self) -> None:
        from smolagents.monitoring import AgentLogger, LogLevel
        from smolagents.remote_executors import DockerExecutor

        port = free_port()
        network: dict[str, Any] = {}
        if self.setup.host_network:
            listen = {"KG_IP": "127.0.0.1", "KG_PORT": str(port)}
            network = {"network_mode": "host", "ports": Unpublished(), "environment": listen}
        self.executor: Any = DockerExecutor(
            additional_imports=[],
            logger=AgentLogger(level=LogLevel.OFF),
            port=port,
            image_name=self.setup.image,
            build_new_image=False,
            container_run_kwargs=network,
        )
        self.notes = ["python script: runs in the Jupyter kernel that is up, not in a process of its own"]

    async def script(self) -> str:
        return str(self.executor(SCRIPT).logs)

    async def first(self) -> None:
        await self.script()

    async def close(self) -> None:
        self.executor.cleanup()


PEERS: dict[str, type[Peer]] = {
    "container": Ours,
    "local": Ours,
    "llm-sandbox": LlmSandbox,
    "swe-rex": SweRex,
    "inspect-ai": InspectAI,
    "autogen-ext": AutoGen,
    "openai-agents": OpenAIAgents,
    "smolagents": SmolAgents,
}


def packed(folder: Path, name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, name)
    return buffer.getvalue()


def unpack(archive: bytes, into: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        members.extractall(into, filter="data")


def contents(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((path.name, path.read_bytes()) for path in folder.rglob("*") if path.is_file())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def brief(text: str) -> str:
    """The first line that says something, in one line of a table's foot."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return lines[0][:200] if lines else ""


async def timed(work: Awaitable[Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = await work
    return (time.perf_counter() - began) * 1000, result


async def job(peer: Peer, what: str, number: int) -> float:
    """Do one job; its milliseconds. What came of it is checked, outside the time."""
    folder = Path(peer.setup.folder)
    name = f"{folder.name}-{number}"
    if what == "create to first result":

        async def both() -> None:
            await peer.create()
            await peer.first()

        return (await timed(both()))[0]
    if what == "true":
        return (await timed(peer.true()))[0]
    if what == "python script":
        took, said = await timed(peer.script())
        assert said.strip() == SAYS, f"the script said {said!r}"
        return took
    if what == "put 1,000 files":
        return (await timed(peer.put(folder, name)))[0]
    if what == "get 1,000 files":
        with tempfile.TemporaryDirectory() as into:
            took, _ = await timed(peer.get(name, Path(into)))
            came = contents(Path(into))
        assert came == contents(folder), f"{len(came)} files came back, or they differ"
        await peer.run("rm", "-r", f"{peer.root}/{name}")
        return took
    assert what == "close", what
    return (await timed(peer.close()))[0]


async def answer(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    """{"job", "number"} → {"ms", "notes"}, {"unsupported"} where there is no call for it, or {"error"}."""
    try:
        if request["job"] == "prepare":
            await peer.prepare()
            return {"notes": peer.notes, "version": version(peer.setup.name)}
        return {"ms": await job(peer, request["job"], request.get("number", 0)), "notes": peer.notes}
    except NotImplementedError:
        return {"unsupported": True}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {brief(str(error))}"}


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""  # ours


async def serve(peer: Peer) -> None:
    """Packages print to stdout and start processes that read stdin, so both are kept for the bench alone."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    while line := await asyncio.to_thread(requests.readline):
        answers.write(json.dumps(await answer(peer, json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    setup = Setup(**json.loads(sys.argv[1]))
    asyncio.run(serve(PEERS[setup.name](setup)))
