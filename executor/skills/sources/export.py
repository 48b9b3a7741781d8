"""A skill of any source as a standard folder or zip: what other tools for skills read.

The same skill gives the same bytes: sorted names, no times, no owners. A folder or file appears whole or not
at all.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from executor.errors import BadPathError
from executor.places import replace_file
from executor.skills.skill import Skill
from executor.skills.sources.bundle import folder_name, read_files

_TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip knows


def export(skill: Skill, to: Path, *, overwrite: bool = False) -> Path:
    """Write the skill into the folder `to`, as a folder of its own name, or into the zip `to`. The place.

    BadPathError when something is there already and is not to be overwritten, or nothing can be written.
    """
    as_file = to.suffix.lower() in (".zip", ".skill")
    target = to if as_file else to / folder_name(skill)
    if not as_file and os.path.lexists(to) and not to.is_dir():
        raise BadPathError(f"{to} is not a folder", hint="Give a folder, or a name that ends in .zip.")
    _check(target, overwrite)
    if as_file:
        write_file(target, zipped(skill), overwrite=overwrite)
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace_folder(target, skill)
    except OSError as error:
        raise _unwritable(target, error) from error
    return target


def write_file(target: Path, data: bytes, *, overwrite: bool = False) -> None:
    """Write a file whole or not at all. BadPathError."""
    _check(target, overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, data)
    except OSError as error:
        raise _unwritable(target, error) from error


def _check(target: Path, overwrite: bool) -> None:
    if os.path.lexists(target) and not overwrite:
        raise BadPathError(f"{target} exists", hint="Remove it, or say --overwrite.")


def _unwritable(target: Path, error: OSError) -> BadPathError:
    hint = "Give a folder, which is made if it is not there, or the name of a file."
    return BadPathError(f"{target} cannot be written: {error.strerror}", hint=hint)


def zipped(skill: Skill) -> bytes:
    """The skill as a zip with its folder at the top."""
    packed = io.BytesIO()
    top = folder_name(skill)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, data, executable in read_files(skill):
            info = zipfile.ZipInfo(f"{top}/{path}", _TIME)
            info.create_system = 3
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return packed.getvalue()


def _replace_folder(target: Path, skill: Skill) -> None:
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        for path, data, executable in read_files(skill):
            file = made / "new" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(0o755 if executable else 0o644)
        if os.path.lexists(target):
            os.rename(target, made / "old")
        os.rename(made / "new", target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
