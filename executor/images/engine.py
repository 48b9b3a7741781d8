"""What is asked of a Docker engine: does it answer, load a layer, build a context, give the files."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from executor.errors import EngineDownError, EngineForbiddenError, ExecutorError
from executor.images.description import LABEL_RECIPE, Progress, reference
from executor.images.layer import Entry, docker_archive, image_config, tar_of

TIMEOUT = 600  # seconds without a byte: an engine is silent while it registers a layer


def connect(docker_host: str | None = None) -> docker.DockerClient:
    """A client of an engine that answers."""
    where = docker_host or os.environ.get("DOCKER_HOST") or "the default socket"
    try:
        if docker_host:
            client = docker.DockerClient(base_url=docker_host, timeout=TIMEOUT)
        else:
            client = docker.from_env(timeout=TIMEOUT)
        client.ping()
    except (DockerException, OSError) as error:
        if "PermissionError" in repr(error) or "Permission denied" in str(error):
            raise EngineForbiddenError(
                f"the Docker engine at {where} may not be opened by this user",
                hint="Join the group docker, or use root.",
            ) from error
        raise EngineDownError(
            f"no Docker engine answers at {where}",
            hint="Start Docker, set DOCKER_HOST, or build for the local runtime only: --target local",
        ) from error
    return client


class ImageEngine:
    """One image name on one engine."""

    def __init__(self, client: docker.DockerClient, name: str, say: Progress) -> None:
        self.client = client
        self.tag = f"{reference(name)}:latest"
        self.say = say

    def find(self, recipe: str | None = None) -> Any:
        """The image with our name, None when there is none or when it was made by another recipe."""
        try:
            image = self.client.images.get(self.tag)
        except ImageNotFound:
            return None
        return image if recipe in (None, image.labels.get(LABEL_RECIPE)) else None

    def load(self, layer: Path, layer_digest: str, machine: str, labels: Mapping[str, str]) -> str:
        """Puts the layer there as an image of one layer; returns its id."""
        config = image_config(machine, layer_digest, labels)
        total = layer.stat().st_size

        def watched() -> Iterator[bytes]:
            sent = shown = 0
            for chunk in docker_archive(self.tag, config, layer, layer_digest):
                yield chunk
                sent += len(chunk)
                if sent - shown > total / 10:
                    shown = sent
                    self.say("engine", f"loading {self.tag}", min(1.0, sent / total))

        old = self.find()
        self.say("engine", f"loading {self.tag}", 0.0)
        try:
            # types-docker leaves this method without types
            answers = cast("Any", self.client.api).load_image(watched(), quiet=True)
            for answer in answers:
                if answer.get("error"):
                    raise ExecutorError(f"the engine refused {self.tag}: {answer['error']}")
            return self._replaced(old)
        except DockerException as error:
            raise ExecutorError(f"the engine could not load {self.tag}: {error}") from error

    def build(
        self,
        context: Mapping[str, Entry],
        base: str,
        labels: Mapping[str, str],
        *,
        fresh: bool,
        network: str | None,
    ) -> str:
        """An ordinary `docker build`; returns the image's id."""
        old = self.find()
        self.say("engine", f"building {self.tag} on {base}", None)
        last: list[str] = []
        try:
            for answer in self.client.api.build(
                fileobj=io.BytesIO(tar_of(context)),
                custom_context=True,
                tag=self.tag,
                buildargs={"BASE": base},
                labels=dict(labels),
                nocache=fresh,
                network_mode=network,
                rm=True,
                forcerm=True,
                decode=True,
            ):
                text = str(answer.get("stream") or answer.get("status") or "").strip()
                if text:
                    last = [*last, *text.splitlines()][-15:]
                if text.startswith("Step "):
                    done, _, total = text.split()[1].partition("/")
                    self.say("engine", text, (int(done) - 1) / int(total))
                if answer.get("error"):
                    raise ExecutorError(
                        f"docker build failed: {answer['error']}\n  " + "\n  ".join(last),
                        hint="The build needs the base image and, inside its steps, Debian's mirrors.",
                    )
            return self._replaced(old)
        except DockerException as error:
            raise ExecutorError(f"docker build failed: {error}") from error

    def export(self, image_id: str, target: Path) -> None:
        """The image's files as a tar, through a container that is never started."""
        self.say("rootfs", "reading the image's files from the engine", None)
        try:
            container = self.client.api.create_container(image_id, command=["true"], network_disabled=True)
            try:
                with open(target, "wb") as stream:
                    for chunk in self.client.api.export(container["Id"], chunk_size=1 << 20):
                        stream.write(chunk)
            finally:
                with contextlib.suppress(NotFound):
                    self.client.api.remove_container(container["Id"], force=True, v=True)
        except DockerException as error:
            raise ExecutorError(f"the engine did not give the files of {self.tag}: {error}") from error

    def _replaced(self, old: Any) -> str:
        """The new image's id. The old one goes, unless another name or a container still needs it."""
        new = str(self.find().id)
        if old is not None and old.id != new:
            with contextlib.suppress(APIError):
                if not self.client.images.get(old.id).tags:
                    self.client.api.remove_image(old.id)
        return new
