"""How a command's output is shown: its head and tail, and the file of the workspace that holds the rest.

Rules of this module:
1. What is not shown is in a file that the result names, or a warning says why it is not.
2. Text of a script is escaped, and comes behind what this program says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from executor.errors import ExecutorError
from executor.models import ExecResult
from executor.session import AsyncSession, RunOutput
from executor.tools.desk import Desk
from executor.tools.outputs import ExecOutput, FullOutput, FullStream
from executor.tools.results import ToolResult
from executor.workspace.text import clip, printable

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


async def finished(desk: Desk, session: AsyncSession, result: ExecResult) -> ToolResult:
    """A command that ran to its end."""
    shown = Shown(desk.options.output_bytes)
    streams, warnings = {}, list(result.warnings)
    for name in STREAMS:
        streams[name] = shown.stream(name, result.kept(name), getattr(result, name + "_bytes"))
    files = [] if result.status == "lost" else await spill(session, result.run_id, shown.cut, "", warnings)
    made = output(desk, result, streams, files, warnings)
    made.next_offset = made.total_bytes
    return as_result(made, "")


class Shown:
    """What of a command's output is shown, and what is left for a file."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.cut: dict[FullStream, tuple[bytes, bool]] = {}
        """stream → what a file is to hold of it, and whether that is all."""
        self.warnings: list[str] = []

    def stream(self, name: Stream, data: bytes, total: int | None = None) -> str:
        total = len(data) if total is None else total
        if total <= self.limit and total == len(data):
            return printable(data.decode("utf-8", "replace"))
        # Of more than was kept, `data` is the first half and the last one.
        middle = len(data) if total <= len(data) else len(data) - len(data) // 2
        head, tail = data[:middle], data[middle:]
        text, cut = clip(head, tail, total, self.limit)
        if cut:
            gap = f"\n[... {total - len(data):,} bytes omitted ...]\n" if total > len(data) else ""
            self.cut[name] = (head + gap.encode() + tail, total <= len(data))
        return printable(text)


async def spill(
    session: AsyncSession,
    run_id: str,
    cut: Mapping[FullStream, tuple[bytes, bool]],
    suffix: str,
    warnings: list[str],
) -> list[FullOutput]:
    """Put what is not shown into files of the workspace."""
    files = []
    for name, (data, whole) in cut.items():
        path = f"runs/{run_id}{suffix}.{name}.txt"
        try:
            await session.put(path, data)
        except ExecutorError as error:
            warnings.append(f"the whole {name} could not be kept in {path}: {error.message}")
            continue
        files.append(FullOutput(stream=name, path=path, bytes=len(data), whole=whole))
    return files


def output(
    desk: Desk,
    result: ExecResult | RunOutput,
    streams: Mapping[Stream, str],
    files: list[FullOutput],
    warnings: list[str],
) -> ExecOutput:
    """A result with what is shown of its output."""
    values = {name: getattr(result, name) for name in ExecResult.model_fields}
    made = ExecOutput(**values)
    made.session_id = ""
    made.stdout, made.stderr = streams["stdout"], streams["stderr"]
    made.full_output = files
    for name in STREAMS:
        cut = any(file.stream == name for file in files) or getattr(result, name + "_truncated")
        setattr(made, name + "_truncated", cut)
    made.truncated = made.stdout_truncated or made.stderr_truncated
    made.total_bytes = result.stdout_bytes + result.stderr_bytes
    made.warnings = [printable(warning) for warning in dict.fromkeys([*warnings, *desk.take_warnings()])]
    return made


def as_result(made: ExecOutput, note: str) -> ToolResult:
    """The same for the model and for a program."""
    streams: dict[Stream, str] = {"stdout": made.stdout, "stderr": made.stderr}
    lines = [status_line(made)]
    lines += [note] if note else []
    lines += [file_line(file) for file in made.full_output]
    lines += [f"warning: {warning}" for warning in made.warnings]
    lines += output_lines(streams)
    return ToolResult("\n".join(lines), made.model_dump(mode="json"))


def status_line(made: ExecOutput) -> str:
    """The first line of the text. Output comes after it, so that a script cannot write one of its own."""
    if made.status == "awaiting_approval":
        return f"[awaiting approval: run {made.run_id}]"
    if made.status == "running":
        return (
            f"[running: session_id {made.session_id}; read on with workspace_write_stdin, "
            "end it with workspace_kill_session]"
        )
    what = {"timeout": "timed out", "oom": "out of memory", "lost": "the sandbox was lost"}.get(made.status)
    code = "no exit code" if made.exit_code is None else f"exit {made.exit_code}"
    return f"[{code}{f', {what}' if what else ''}, {made.duration_ms} ms]"


def output_lines(streams: Mapping[Stream, str]) -> list[str]:
    """What was written, stderr under a heading."""
    lines = []
    if streams["stdout"]:
        lines.append(streams["stdout"].removesuffix("\n"))
    if streams["stderr"]:
        lines += ["[stderr]", streams["stderr"].removesuffix("\n")]
    return lines


def file_line(file: FullOutput) -> str:
    """Where the rest of a stream is."""
    what = "all of it is" if file.whole else "its beginning and end are"
    return f"[{file.stream} is cut; {what} in {file.path}, {file.bytes} bytes]"
