"""Files of the workspace: listed, read, written, edited, saved as artifacts.

Every path goes through `layout.absolute`, and every byte through the guest, which follows no link out of the
two roots: nothing of the host is opened by a name that a model gave.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable

from executor.errors import BadPathError
from executor.models import FileInfo
from executor.tools.desk import Desk
from executor.tools.inputs import EditFile, ListFiles, ReadFile, SaveArtifact, WriteFile
from executor.tools.outputs import ArtifactSaved, FileEdited, FileEntry, FileRead, FilesListed, FileWritten
from executor.tools.results import Image, RefusedError, ToolResult
from executor.workspace import globs, layout, mime
from executor.workspace.text import plural, printable, printable_name, to_bytes

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
EDIT_BYTES = 16 << 20  # of a file that is shown, edited or appended to
SAVED_FROM = ("/workspace/work/", "/workspace/out/", "/workspace/runs/")


async def workspace_list_files(desk: Desk, args: ListFiles) -> ToolResult:
    """List a folder."""
    recursive = args.recursive or "/" in args.pattern or "**" in args.pattern
    listed = await (await desk.session()).list_files(args.path or ".", recursive=recursive)
    wanted = _matcher(args.pattern)
    found = [entry for entry in listed if wanted is None or wanted(entry.name)]
    truncated = len(found) > args.limit
    entries = [
        FileEntry(path=printable_name(entry.name), type=entry.type, size=entry.size)
        for entry in found[: args.limit]
    ]
    made = FilesListed(path=args.path or ".", entries=entries, truncated=truncated)
    lines = [_entry_line(entry) for entry in made.entries] or ["(empty)"]
    if truncated:
        lines.append(f"(the first {args.limit} of {len(found)}; give a folder, a pattern or a higher limit)")
    return ToolResult("\n".join(lines), made.model_dump(mode="json"))


async def workspace_read_file(desk: Desk, args: ReadFile) -> ToolResult:
    """Show a file: lines of a text, or a picture."""
    shown = printable_name(args.path)
    data = await _read(desk, args.path, EDIT_BYTES)
    kind = mime.guess(args.path.rpartition("/")[2], data[: mime.HEAD_BYTES], len(data))
    if kind in IMAGES and len(data) <= desk.options.image_bytes:
        made = FileRead(
            path=shown,
            size=len(data),
            mime=kind,
            content=None,
            start_line=1,
            lines=0,
            total_lines=0,
            truncated=False,
        )
        image = Image(data, kind, shown)
        return ToolResult(f"{shown}: {kind}, {len(data)} bytes", made.model_dump(mode="json"), (image,))
    text = _text(data)
    if text is None:
        made = FileRead(
            path=shown,
            size=len(data),
            mime=kind,
            content=None,
            start_line=1,
            lines=0,
            total_lines=0,
            truncated=True,
        )
        advice = "it is not text: look at it with a command, or save it with workspace_save_artifact"
        return ToolResult(f"{shown}: {kind}, {len(data)} bytes; {advice}", made.model_dump(mode="json"))
    return _lines(desk, args, shown, kind, data, text)


def _lines(desk: Desk, args: ReadFile, shown: str, kind: str, data: bytes, text: str) -> ToolResult:
    # Never all of them at once, which are half a gigabyte where each is short.
    total = text.count("\n") + text.count("\r") - text.count("\r\n") + (text[-1:] not in ("", "\n", "\r"))
    if args.start_line > max(1, total):
        raise RefusedError(
            f"start_line={args.start_line} is behind the end of {shown}: it has {plural(total, 'line')}",
            kind="BadRequestError",
        )
    taken: list[str] = []
    size = 0
    cut_line = False
    first = args.start_line - 1
    for line in itertools.islice(io.StringIO(text, newline=""), first, first + args.max_lines):
        size += len(line.encode())
        if size > desk.options.read_bytes:
            if not taken:  # one line alone is too long: its beginning
                taken.append(line.encode()[: desk.options.read_bytes].decode("utf-8", "ignore"))
                cut_line = True
            break
        taken.append(line)
    last = args.start_line + len(taken) - 1
    truncated = cut_line or args.start_line > 1 or last < total
    content = printable("".join(taken))
    made = FileRead(
        path=shown,
        size=len(data),
        mime=kind,
        content=content,
        start_line=args.start_line,
        lines=len(taken),
        total_lines=total,
        truncated=truncated,
    )
    note = ""
    if cut_line:
        note = f"\n[line {args.start_line} is cut at {desk.options.read_bytes} bytes]"
    elif last < total:
        note = f"\n[lines {args.start_line} to {last} of {total}; go on with start_line={last + 1}]"
    return ToolResult(content.removesuffix("\n") + note, made.model_dump(mode="json"))


async def workspace_write_file(desk: Desk, args: WriteFile) -> ToolResult:
    """Write a file, with its folders."""
    data = args.content.encode()
    entry = await _stat(desk, args.path)
    if args.append and entry is not None:
        data = await _read(desk, args.path, EDIT_BYTES) + data
    await _write(desk, args.path, data, entry)
    shown = printable_name(args.path)
    made = FileWritten(path=shown, size=len(data))
    return ToolResult(f"wrote {shown}, {len(data)} bytes", made.model_dump(mode="json"))


async def workspace_edit_file(desk: Desk, args: EditFile) -> ToolResult:
    """Replace text in a file."""
    entry = await _stat(desk, args.path)
    data = await _read(desk, args.path, EDIT_BYTES)
    old, new = args.old_text.encode(), args.new_text.encode()
    if old not in data and b"\r\n" in data and b"\n" in old:
        # A model does not see which line ends a file has: they stay as they are.
        old, new = (part.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for part in (old, new))
    count = data.count(old)
    shown = printable_name(args.path)
    if count == 0:
        raise RefusedError(f"old_text is not in {shown}", "Read the file again and copy the text exactly.")
    if count > 1 and not args.replace_all:
        raise RefusedError(
            f"old_text is {count} times in {shown}",
            "Give more of the text around it, or replace_all=true.",
        )
    if old == new:
        raise RefusedError("old_text and new_text are the same", "Nothing was changed.")
    size = len(data) + count * (len(new) - len(old))
    if size > EDIT_BYTES:
        raise RefusedError(f"{shown} would have {size:,} bytes, more than {EDIT_BYTES:,}", "Use a command.")
    data = data.replace(old, new)
    await _write(desk, args.path, data, entry)
    made = FileEdited(path=shown, replaced=count, size=len(data))
    return ToolResult(f"replaced {count} in {shown}", made.model_dump(mode="json"))


async def workspace_save_artifact(desk: Desk, args: SaveArtifact) -> ToolResult:
    """Keep a file beyond the session."""
    store = desk.artifacts
    if store is None:
        raise RefusedError("there is no place for artifacts here", kind="BadRequestError")
    if any(character in args.path for character in "*?["):
        raise BadPathError(f"{args.path!r} has a wildcard: name one file")
    path = layout.absolute(args.path)
    if not path.startswith(SAVED_FROM):
        raise BadPathError(
            f"{args.path!r} cannot be saved: it is not below work/, out/ or runs/",
            hint="Copy it to out/ first.",
        )
    entry = await _stat(desk, args.path)
    if entry is not None and entry.size > store.max_bytes:
        raise RefusedError(
            f"{args.path!r} has {entry.size:,} bytes and an artifact may have {store.max_bytes:,}",
            "Save a smaller file, or several parts.",
        )
    data = await _read(desk, args.path, store.max_bytes)
    name = path.removeprefix(layout.WORKSPACE + "/")
    artifact = store.save(name, data)
    made = ArtifactSaved(
        path=name,
        saved_as=artifact.name,
        version=artifact.version,
        ref=artifact.ref,
        mime_type=artifact.mime,
        size_bytes=artifact.size,
    )
    return ToolResult(f"saved {artifact.ref}, {artifact.mime}, {artifact.size} bytes", made.model_dump())


# --- inside -------------------------------------------------------------------------------------------------


async def _stat(desk: Desk, path: str) -> FileInfo | None:
    """The entry of a file; None when there is none. BadPathError for a folder."""
    if len(layout.absolute(path).split("/")) < 3:
        raise BadPathError(f"{path!r} is a folder that every session has: name a file in it")
    info = await (await desk.session()).stat(path)
    if info is not None and info.type == "folder":
        raise BadPathError(f"{path!r} is a folder: name a file in it")
    return info


async def _read(desk: Desk, path: str, most: int) -> bytes:
    entry = await _stat(desk, path)
    if entry is not None and entry.size > most:
        raise RefusedError(
            f"{path!r} has {entry.size:,} bytes, more than the {most:,} that this tool reads",
            "Look at a part of it with a command, such as head or sed.",
        )
    return await (await desk.session()).read(path, limit=most)


async def _write(desk: Desk, path: str, data: bytes, entry: FileInfo | None) -> None:
    """Whole, and executable if the file was."""
    await (await desk.session()).put(path, data, executable=entry is not None and entry.executable)


def _matcher(pattern: str) -> Callable[[str], bool] | None:
    if not pattern:
        return None
    compiled = globs.compile_globs([f"{layout.WORKSPACE}/{pattern.lstrip('/')}"], variables={}, skill=None)
    base = to_bytes(layout.WORKSPACE) + b"/"
    return lambda below: any(glob.matches(base + to_bytes(below)) for glob in compiled)


def _entry_line(entry: FileEntry) -> str:
    if entry.type == "folder":
        return entry.path + "/"
    return f"{entry.path}  {entry.size} bytes" if entry.type == "file" else f"{entry.path}  ({entry.type})"


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
