"""The mechanical repairs, as functions from bytes to bytes, and how they reach the disk.

Each looks for its place in what it is given and changes nothing else, so that several fit one file in any
order. A file is replaced in one step; a link is never followed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable

from executor.errors import BadPathError
from executor.places import replace_file
from executor.skills.lint.rules import Finding, Fix

Change = Callable[[bytes], bytes]

_BOM = b"\xef\xbb\xbf"
_INTERPRETER = re.compile(rb"\A#![ \t]*(\S+/)?([A-Za-z]+[\d.]*)(?=[ \t\r\n]|\Z)")


def strip_bom(data: bytes) -> bytes:
    """Without a byte order mark."""
    return data.removeprefix(_BOM)


def to_lf(data: bytes) -> bytes:
    """CRLF to LF."""
    return data.replace(b"\r\n", b"\n")


def drop_leading_blanks(data: bytes) -> bytes:
    """The opening fence becomes the first line."""
    bom = _BOM if data.startswith(_BOM) else b""
    return bom + re.sub(rb"\A(?:[ \t]*\r?\n)+(?=---)", b"", strip_bom(data))


def split_fence(data: bytes) -> bytes:
    """Text behind the closing fence goes to a line of its own."""
    fences = list(re.finditer(rb"^---+[ \t]*", data, re.MULTILINE))
    if len(fences) < 2:
        return data
    end = fences[1].end()
    newline = b"\r\n" if b"\r\n" in data else b"\n"
    return data[: fences[1].start()] + b"---" + newline + data[end:]


def env_shebang(data: bytes) -> bytes:
    """`#!/opt/x/bin/python3` becomes `#!/usr/bin/env python3`; with arguments it stays."""
    match = _INTERPRETER.match(data)
    if not match or data[match.end() :].split(b"\n", 1)[0].strip():
        return data
    return b"#!/usr/bin/env " + match[2] + data[match.end() :]


def quote(key: str, line_text: str, *, comment: bool = False) -> Change:
    """Puts the plain value on the line `line_text` in double quotes. A value of several lines stays.

    `comment`: what stands behind ` #` is a comment and no part of the value.
    """
    value = r"(.*?)([ \t]+#.*|[ \t]*)" if comment else r"(.*?)([ \t]*)"

    def change(data: bytes) -> bytes:
        lines = data.split(b"\n")
        for index, line in enumerate(lines):
            ending = b"\r" if line.endswith(b"\r") else b""
            if line.removesuffix(b"\r") != line_text.encode():
                continue
            following = lines[index + 1] if index + 1 < len(lines) else b""
            indent = len(line_text) - len(line_text.lstrip(" "))
            if following.startswith(b" " * (indent + 1)):
                return data
            match = re.fullmatch(rf"( *[\"']?{re.escape(key)}[\"']?[ \t]*:[ \t]+){value}", line_text)
            if not match or match[2][:1] in ("", '"', "'", "|", ">", "{"):
                return data
            quoted = json.dumps(match[2], ensure_ascii=False)
            lines[index] = (match[1] + quoted + match[3].rstrip()).encode() + ending
            break
        return b"\n".join(lines)

    return change


def rename_key(old: str, new: str) -> Change:
    """A top-level key in the specification's spelling."""
    pattern = re.compile(rb"^" + re.escape(old.encode()) + rb"(?=[ \t]*:)", re.MULTILINE)
    return lambda data: pattern.sub(new.encode(), data, count=1)


def apply(findings: Iterable[tuple[str, Finding]]) -> int:
    """Carries out the fixes of (file, finding); how many files it changed. BadPathError."""
    by_file: dict[str, list[Fix]] = {}
    for full, finding in findings:
        if finding.fix is not None:
            by_file.setdefault(full, []).append(finding.fix)
    return sum(_apply(full, fixes) for full, fixes in by_file.items())


def _apply(full: str, fixes: list[Fix]) -> bool:
    try:
        info = os.lstat(full)
        if not stat.S_ISREG(info.st_mode):
            return False
        with open(full, "rb") as file:
            before = file.read()
        after, mode = before, stat.S_IMODE(info.st_mode)
        for fix in fixes:
            after = fix.change(after) if fix.change else after
            mode = fix.mode(mode) if fix.mode else mode
        changed = after != before or mode != stat.S_IMODE(info.st_mode)
        if after != before:
            replace_file(full, after, mode)
        elif changed:
            os.chmod(full, mode)
        for fix in fixes:
            if fix.rename:
                target = os.path.join(os.path.dirname(full), fix.rename)
                os.rename(full, target)
                changed = True
        return changed
    except OSError as error:
        raise BadPathError(f"{full!r} cannot be fixed: {error.strerror}") from error
