"""A bundle: one JSON file with whole skills in it, for programs that ship their skills with them.

    {"format": "executor-skills", "version": 1, "fingerprint": "…64 digits…",
     "skills": [{"folder": "sales-report", "name": "…", "description": "…",
                 "files": [{"path": "SKILL.md", "size": 812, "text": "…"},
                           {"path": "scripts/run.sh", "size": 60, "executable": true, "text": "…"},
                           {"path": "assets/logo.png", "size": 9000, "mime": "image/png", "base64": "…"}]}]}

The same skills give the same bytes: sorted, without times or places. `fingerprint` is that of a source which
offers just these skills.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.errors import BadRequestError, SkillSourceError
from executor.models import SourceLimits
from executor.skills import contents
from executor.skills.document import slug
from executor.skills.skill import Skill
from executor.skills.sources.directory import DirectorySource
from executor.skills.sources.members import LIMITS, Member, beyond, check, check_name, refused, unpack

FORMAT = "executor-skills"
VERSION = 1
LARGE_FILE = 256 << 10  # bytes of one file, and `LARGE` of all: then it is worth a word
LARGE = 1 << 20
STRUCTURE = 256  # bytes of a file's JSON outside of texts, well indented
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
MORE = "Take fewer skills, or raise `{}` of the setting `sources`."
# Ending → MIME type of what is not text. A table and no library, so that every machine writes the same.
KINDS = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "pdf": "application/pdf",
    "zip": "application/zip",
    "ttf": "font/ttf",
    "otf": "font/otf",
    "woff": "font/woff",
    "woff2": "font/woff2",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}


@dataclass(frozen=True)
class Bundle:
    """A bundle that was made."""

    data: bytes
    fingerprint: str
    skills: tuple[Skill, ...]
    notes: tuple[str, ...]
    """What is large."""


def make(skills: Sequence[Skill], *, caps: SourceLimits = LIMITS) -> Bundle:
    """The bundle of these skills, which have different slugs. BadRequestError names a file that cannot be in
    one.
    """
    chosen = sorted(skills, key=lambda skill: skill.slug)
    inside = [skill.path for skill in chosen]
    # What lies in the folder of another one comes with that one, and is found there.
    chosen = [skill for skill in chosen if not any(top in skill.place.parents for top in inside)]
    packed, notes, total = [], [], 0
    for skill in chosen:
        files = []
        for path, data, executable in read_files(skill):
            total += len(data)
            if len(data) > LARGE_FILE:
                notes.append(f"{skill.slug}/{path} has {len(data):,} bytes")
            if total > caps.total:
                raise BadRequestError(
                    f"the skills have more than {caps.total:,} bytes", hint=MORE.format("total")
                )
            files.append(_file(path, data, executable))
        packed.append(
            {
                "folder": folder_name(skill),
                "name": skill.name,
                "description": skill.document.description,
                "files": files,
            }
        )
    if total > LARGE:
        notes.append(f"all files together have {total:,} bytes")
    value: dict[str, Any] = {"format": FORMAT, "version": VERSION, "fingerprint": "", "skills": packed}
    with tempfile.TemporaryDirectory() as scratch:  # what cannot be unpacked is told now and not to its users
        try:
            value["fingerprint"] = _unpacked(value, Path(scratch), caps)
        except SkillSourceError as error:
            raise BadRequestError(f"the skills cannot be in one bundle: {error.message}") from None
    data = json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8") + b"\n"
    if len(data) > caps.download:
        raise BadRequestError(
            f"the bundle would have more than {caps.download:,} bytes", hint=MORE.format("download")
        )
    return Bundle(data, value["fingerprint"], tuple(chosen), tuple(notes))


def folder_name(skill: Skill) -> str:
    """What the skill's folder is called where it has no place yet: as it is now, if that gives its slug."""
    try:
        fits = slug(skill.place.name) == skill.slug and check_name(skill.place.name)
    except SkillSourceError:
        fits = ()
    return skill.place.name if fits else skill.slug


def read_files(skill: Skill) -> Iterator[tuple[str, bytes, bool]]:
    """(path, bytes, executable) of every file of a skill, sorted. BadRequestError for a name that no archive
    may hold.
    """
    for path, real in contents.files(skill):
        try:
            check_name(path)
        except SkillSourceError as error:
            raise BadRequestError(
                f"a file of the skill {skill.slug!r} cannot be passed on: {error.message}",
                hint="Give the file another name.",
            ) from None
        executable = bool(os.stat(real).st_mode & 0o111)
        yield path, contents.read_resource(skill, path), executable


def _file(path: str, data: bytes, executable: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"path": path, "size": len(data)}
    if executable:
        made["executable"] = True
    try:
        text = data.decode("utf-8")
        if "\0" not in text:
            return {**made, "text": text}
    except UnicodeDecodeError:
        pass
    if kind := KINDS.get(path.rpartition(".")[2].lower()):
        made["mime"] = kind
    return {**made, "base64": base64.b64encode(data).decode("ascii")}


def unpack_bundle(file: Path, folder: Path, caps: SourceLimits = LIMITS) -> None:
    """Write the skills of a bundle below `folder`. SkillSourceError; then what is there is not whole."""
    with open(file, "rb") as opened:
        data = opened.read(caps.download + 1)
    if len(data) > caps.download:
        raise beyond(f"it is larger than {caps.download:,} bytes", "download")
    # Of lists and maps a few bytes become many times as much memory; what bundles have most of is text.
    if len(_TEXT.sub(b"", data)) > STRUCTURE * caps.entries:
        raise beyond(f"it has more lists and maps than {caps.entries:,} files need", "entries")
    try:
        value = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise refused(f"it is no JSON: {error}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise refused("it is JSON and no bundle of skills")
    if value.get("version") != VERSION:
        raise refused(f"it is a bundle of version {value.get('version')!r}; version {VERSION} is read")
    if _unpacked(value, folder, caps) != value.get("fingerprint"):
        raise refused("its files are not those of its fingerprint")


def _unpacked(value: dict[str, Any], folder: Path, caps: SourceLimits) -> str:
    """Write the files; the fingerprint of what is there then."""
    check(_members(value), caps)
    unpack(_members(value), folder, caps=caps)
    return DirectorySource(folder).fingerprint()


def _members(value: dict[str, Any]) -> Iterator[Member]:
    for skill in _texts(value, "skills", list):
        top = _texts(skill, "folder", str)
        for file in _texts(skill, "files", list):
            name = f"{top}/{_texts(file, 'path', str)}"
            yield Member(name, [_content(name, file)], file.get("executable") is True)


def _content(name: str, file: dict[str, Any]) -> bytes:
    try:
        data: bytes
        if "text" in file:
            data = _texts(file, "text", str).encode("utf-8")
        else:
            data = base64.b64decode(_texts(file, "base64", str), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise refused(f"the content of {name!r} is damaged") from None
    if file.get("size") != len(data):
        raise refused(f"{name!r} does not have the {file.get('size')!r} bytes that the bundle says")
    return data


def _texts(value: Any, name: str, kind: type) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise refused(f"it is damaged: {name!r} is missing or no {kind.__name__}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found
