"""Limits, results and files: the values that callers pass in and get back.

Units: bytes for sizes, seconds for `timeout`, milliseconds where a name ends in `_ms`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr
from pydantic_core import PydanticSerializationError

Status = Literal[
    "ok",  # exit 0
    "error",  # any other exit of the script's own, or a signal that nobody here sent
    "timeout",  # ended by its deadline
    "oom",  # ended by the kernel for memory
    "killed",  # ended by a caller's kill
    "cancelled",  # the caller went away
    "output_limit",  # ended because it wrote more than `on_output_limit="kill"` allows
    "lost",  # the sandbox died under it
    "running",  # a background run that has not ended
    "awaiting_approval",  # it stands still until a person decides about a call
]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)


def parse_size(value: Any) -> Any:
    """`"256m"`, `"1.5g"`, `"4096"` or an int → bytes (powers of 1024). Other types pass through."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise ValueError(f"cannot read {value!r} as a size; write bytes or 64k, 256m, 1g")
    return int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))


# For what a process may never make one of: its checks are made with the first one.
MADE_LATER = ConfigDict(defer_build=True)
LARGEST = 1 << 50  # beyond every machine, and within what an engine and a kernel can read
Size = Annotated[int, BeforeValidator(parse_size)]


class Limits(BaseModel):
    """What one session may use. Sizes are bytes or strings like `"256m"`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory: Size = Field(1 << 30, ge=64 << 20, le=LARGEST)
    """Memory of all processes and memory-backed files together, swap off. Default 1 GiB."""
    cpus: float = Field(1.0, ge=0.01, le=1024)
    """Processors' worth of time. Default 1."""
    pids: int = Field(128, ge=8, le=1 << 20)
    """Processes and threads. Default 128."""
    open_files: int = Field(1024, ge=64, le=1 << 20)
    """File descriptors of each process. Default 1024."""
    disk: Size = Field(256 << 20, ge=1 << 20, le=LARGEST)
    """Size of `/workspace`; `/skills` gets half as much again. Default 256 MiB."""
    inodes: int = Field(16384, ge=256, le=LARGEST)
    """Files and folders in `/workspace`, and as many in `/skills`; one for each 18 KiB of `memory` at most.
    Default 16,384."""
    tmp: Size = Field(64 << 20, ge=1 << 20, le=LARGEST)
    """Size of `/tmp`. Default 64 MiB."""
    shm: Size = Field(64 << 20, ge=1 << 20, le=LARGEST)
    """Size of `/dev/shm`. Default 64 MiB."""


class OutputLimits(BaseModel):
    """What one collection may return."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_files: int = Field(100, ge=0)
    """Files returned. Default 100."""
    inline_bytes: Size = Field(4 << 20, ge=0)
    """A larger file comes without `content`: read it with `read()` or `save()`. Default 4 MiB."""
    max_file_bytes: Size | None = Field(None, ge=0)
    """Cut the content of every file at this many bytes instead (`truncated` says so). Default: do not."""
    max_total_bytes: Size = Field(64 << 20, ge=0)
    """Content held in memory for all files together. Default 64 MiB."""


class SourceLimits(BaseModel):
    """What one source of skills may cost. Sizes are bytes or strings like `"256m"`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    download: Size = Field(64 << 20, ge=1, le=LARGEST)
    """What is fetched: an archive, a bundle, the objects of a commit. Default 64 MiB."""
    file: Size = Field(64 << 20, ge=1, le=LARGEST)
    """One unpacked file. Default 64 MiB."""
    total: Size = Field(256 << 20, ge=1, le=LARGEST)
    """All unpacked files together. Default 256 MiB."""
    entries: int = Field(50_000, ge=1, le=10_000_000)
    """Files and folders. Default 50,000; the largest public collection of skills has 19,000."""
    ratio: int = Field(100, ge=1, le=10_000)
    """Bytes unpacked for each byte packed, once there are more than 4 MiB. Default 100; text has 3 to 20."""
    seconds: float = Field(300.0, gt=0, le=86400)
    """Seconds for a whole fetch. Default 300."""
    idle: float = Field(30.0, gt=0, le=86400)
    """Seconds for one answer of the other side. Default 30."""


class Usage(BaseModel):
    """What a run used, as the sandbox's kernel counted it."""

    model_config = MADE_LATER

    wall_ms: int = 0
    cpu_ms: int = 0
    max_rss_bytes: int = 0


class Sandboxed(BaseModel):
    """Values with names from a sandbox, which may hold lone surrogates: in JSON they are escaped."""

    model_config = MADE_LATER

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """As pydantic's, also for names that UTF-8 cannot hold."""
        try:
            return super().model_dump_json(indent=indent, **options)
        except PydanticSerializationError:
            return json.dumps(self.model_dump(mode="json", **options), indent=indent)


class OutputFile(Sandboxed):
    """One collected file. `read()` and `save()` are methods of the collected object."""

    path: str
    """Relative to `/workspace`, `/`-separated; `skills/<name>/…` for files in a skill. Bytes that are
    not UTF-8 stand as lone surrogates (`path.encode("utf-8", "surrogateescape")`), escaped in JSON."""
    size: int
    """True size in bytes, also when the content is cut or left out."""
    mime: str
    sha256: str
    """Of the whole file; '' when the file was over every cap and not read."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """How `content` is written."""
    content: str | None = None
    """Absent when over the inline cap."""
    truncated: bool = False
    """`content` is not the whole file: only its beginning, or absent because of a cap."""
    saved_as: str | None = None
    """Where `--save` or `save()` put it."""


class FileInfo(BaseModel):
    """One entry of a session's files, as it is listed."""

    model_config = MADE_LATER

    path: str
    """As `OutputFile.path`."""
    name: str
    """The path below the folder that was listed; of a single file its name."""
    type: Literal["file", "folder", "link", "other"]
    size: int = 0
    """Bytes of a file; 0 for everything else."""
    executable: bool = False


@dataclass(frozen=True)
class Input:
    """A file or folder that a run is to find, by reference.

    `source`: `artifact://name[@version]`, `host:///path`, `workspace://path` or `skill://name/path`. `to`:
    where it goes, relative to `/workspace`; default `inputs/<its name>`, and one that ends in `/` keeps it.
    `mode`: `copy`, or `link` for what lies in the sandbox anyway. `pin`: what came to this place first stays:
    an artifact in its version, anything else as it was.
    """

    source: str
    to: str = ""
    mode: Literal["copy", "link"] = "copy"
    pin: bool = False


class StagedInput(BaseModel):
    """An input as it was brought in."""

    model_config = MADE_LATER

    path: str
    """As `OutputFile.path`."""
    source: str
    """The reference; of an artifact with its version."""
    mode: Literal["copy", "link"] = "copy"


class WaitingCall(BaseModel):
    """A call of a granted tool that waits for a decision."""

    model_config = MADE_LATER

    call_id: str
    tool: str
    input: Any
    reason: str
    """Why it is asked: `the tool needs approval` or `the policy asks`."""
    digest: str
    """SHA-256 over tool, input, skill digest and script: what the decision is about."""


class ExecResult(Sandboxed):
    """How a run ended, with what it wrote. A failed script is a result like any other."""

    status: Status
    exit_code: int | None = None
    """As a shell would say it: the command's own, 128 + n after signal n, 124 after a time-out, 137 for
    memory. None while it runs, or when the sandbox was lost.
    """
    signal: int | None = None
    """Number of the signal that ended it."""
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: int = 0
    """Bytes that the run wrote, also those that were cut."""
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    timed_out: bool = False
    duration_ms: int = 0
    """Wall time seen by the host, from request to result."""
    usage: Usage = Field(default_factory=Usage)
    files: list[OutputFile] = Field(default_factory=list)
    limits_hit: list[str] = Field(default_factory=list)
    """Names of the limits that cut something: `stdout`, `stderr`, `memory`, `timeout`, `output_files`, …"""
    warnings: list[str] = Field(default_factory=list)
    killed_descendants: int = 0
    """Processes that the run left behind and that were ended with it."""
    pending: list[WaitingCall] = []
    """What a run with status `awaiting_approval` waits for; `session.resume` goes on with it."""
    run_id: str = ""
    session_id: str = ""
    runtime: str = ""

    _stdout_raw: bytes = PrivateAttr(default=b"")
    _stderr_raw: bytes = PrivateAttr(default=b"")

    @property
    def ok(self) -> bool:
        """True for exit 0."""
        return self.status == "ok"

    def kept(self, stream: Literal["stdout", "stderr"]) -> bytes:
        """The bytes that were kept of a stream: all of it, or its first and its last half together."""
        return self._stdout_raw if stream == "stdout" else self._stderr_raw
