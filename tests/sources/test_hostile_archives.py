"""Archives that mean harm are refused whole and leave nothing behind; the same without the fault is taken.

Each case is data: what is wrong, an archive with the fault, the same without it, and what is said.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from executor.errors import SkillSourceError
from executor.skills.sources.archive import FileArchive, archive_source
from executor.skills.sources.members import DEPTH, FREE, LIMITS, NAME
from tests.sources.publish import as_bundle, skill

SKILL = ("s/SKILL.md", skill("s"))
Content = bytes | Callable[[], bytes]


@dataclass(frozen=True)
class Case:
    """`bad` has one fault that `good` does not have. They are made when they are needed."""

    says: str
    bad: Callable[[], bytes]
    good: Callable[[], bytes]
    ending: str = ""


# --- building -----------------------------------------------------------------------------------------------


def made_zip(*entries: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED, mode: int = 0o100644) -> bytes:
    """A zip with SKILL.md and these entries."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for number, (name, data) in enumerate([SKILL, *entries]):
            info = zipfile.ZipInfo("placeholder")
            info.filename = name  # as it is: ZipInfo would mend it
            info.create_system = 3
            info.external_attr = (mode if number else 0o100644) << 16
            info.compress_type = method
            archive.writestr(info, data)
    return packed.getvalue()


def made_tar(*entries: tuple[str, bytes] | tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar with SKILL.md and these entries."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
        for entry in [SKILL, *entries]:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            archive.addfile(info, io.BytesIO(entry[1]))
    return packed.getvalue()


def special(kind: bytes, name: str = "s/x", target: str = "") -> tarfile.TarInfo:
    """A tar's entry of another kind."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def patched(data: bytes, *changes: tuple[int | bytes, int, bytes]) -> bytes:
    """The bytes with others at (the last occurrence of a mark + an offset)."""
    found = bytearray(data)
    for mark, offset, new in changes:
        at = (mark if isinstance(mark, int) else data.rindex(mark)) + offset
        found[at : at + len(new)] = new
    return bytes(found)


CENTRAL, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"


def raw_tar(*blocks: bytes) -> bytes:
    """A tar's blocks in front of its end, after SKILL.md's."""
    whole = made_tar()
    content = whole[: 512 + 512]
    return content + b"".join(block + bytes(-len(block) % 512) for block in blocks) + bytes(1024)


def header(name: str, kind: bytes, size: int) -> bytes:
    """One header block of a tar."""
    block = bytearray(512)
    block[:100] = name.encode().ljust(100, b"\0")
    block[100:108] = b"0000644\0"
    block[124:136] = b"%011o\0" % size
    block[156:157] = kind
    block[257:265] = b"ustar\00000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(**records: str) -> bytes:
    """The content of a pax header."""
    found = b""
    for name, value in records.items():
        record = b" %s=%s\n" % (name.replace("__", ".").encode(), value.encode())
        length = len(record) + 1
        while len(str(length)) + len(record) != length:
            length = len(str(length)) + len(record)
        found += str(length).encode() + record
    return found


def noise(size: int) -> bytes:
    """Bytes that no one can pack."""
    return random.Random(1).randbytes(size)


def both(name: str, control: str) -> tuple[Callable[[], bytes], Callable[[], bytes]]:
    """A zip and the same with another name."""
    return lambda: made_zip((name, b"x")), lambda: made_zip((control, b"x"))


def tar_both(name: str, control: str) -> tuple[Callable[[], bytes], Callable[[], bytes]]:
    """The same as tars."""
    return lambda: made_tar((name, b"x")), lambda: made_tar((control, b"x"))


def overlapping() -> bytes:
    """Two entries of a zip that are one piece of it."""
    whole = made_zip(("s/a", noise(1000)), ("s/b", noise(1000)))
    first, second = whole.index(b"s/a") - 30, whole.index(b"s/b") - 30
    name = whole[:second].rindex(b"s/a")
    assert name == first + 30
    # The second entry says that it is where the first one is, under the first one's name.
    at = whole.rindex(CENTRAL)
    return patched(whole, (at, 42, struct.pack("<L", first)), (at, 46, b"s/a"))


def quoted() -> bytes:
    """A zip whose first entry, stored, spans the header and the bytes of the second."""
    inner = made_zip(("s/b", noise(500)), method=zipfile.ZIP_STORED)
    start, end = inner.index(b"s/b") - 30, inner.index(CENTRAL)
    size = end - start
    # SKILL.md grows over the entry behind it.
    body = inner[30 + len(SKILL[0]) : end]
    new = struct.pack("<LLL", zlib.crc32(body), len(body), len(body))
    first = inner.index(CENTRAL)
    assert size > 500
    return patched(inner, (0, 14, new), (first, 16, new))


def bomb(data: bytes) -> bytes:
    """A tar.gz."""
    return gzip.compress(data, mtime=0)


def many_zip(count: int) -> bytes:
    """A zip with so many empty files, written by hand: zipfile takes seconds for it."""
    local, central = io.BytesIO(), io.BytesIO()
    for number in range(count):
        name = b"s/%d" % number if number else b"s/SKILL.md"
        offset = local.tell()
        local.write(struct.pack("<4s5H3L2H", LOCAL, 20, 0, 0, 0, 33, 0, 0, 0, len(name), 0) + name)
        central.write(
            struct.pack(
                "<4s6H3L5H2L", CENTRAL, 20, 20, 0, 0, 0, 33, 0, 0, 0, len(name), 0, 0, 0, 0, 0, offset
            )
            + name
        )
    stated = min(count, 0xFFFF)
    end = struct.pack("<4s4H2LH", END, 0, 0, stated, stated, central.tell(), local.tell(), 0)
    return local.getvalue() + central.getvalue() + end


def many_tar(count: int) -> bytes:
    """A tar with so many empty files."""
    return b"".join(header(f"s/{n}" if n else "s/SKILL.md", b"0", 0) for n in range(count)) + bytes(1024)


LONG = "n" * (NAME + 1)
DEEP = "/".join(["d"] * (DEPTH + 1))
NFC, NFD = (unicodedata.normalize(form, "s/caf\u00e9.md") for form in ("NFC", "NFD"))

CASES: dict[str, Case] = {
    # names
    "absolute": Case("is absolute", *both("/etc/x", "etc/x")),
    "absolute, tar": Case("is absolute", *tar_both("/etc/x", "etc/x")),
    "absolute, pax": Case(
        "is absolute",
        lambda: raw_tar(
            header("p", b"x", len(pax(path="/etc/x"))), pax(path="/etc/x"), header("s/x", b"0", 0)
        ),
        lambda: raw_tar(
            header("p", b"x", len(pax(path="s/yy/x"))), pax(path="s/yy/x"), header("s/x", b"0", 0)
        ),
    ),
    "up": Case("has the part '..'", *both("s/../../x", "s/.../x".replace("...", "_.._"))),
    "up, tar": Case("has the part '..'", *tar_both("../x", "s/..x")),
    "up, GNU long name": Case(
        "has the part '..'",
        lambda: raw_tar(header("././@LongLink", b"L", 6), b"../x\0\0", header("s/x", b"0", 0)),
        lambda: raw_tar(header("././@LongLink", b"L", 6), b"s/zz\0\0", header("s/x", b"0", 0)),
    ),
    "a dot inside": Case("has the part '.'", *both("s/./x", "./s/x")),
    "an empty part": Case("has the part ''", *tar_both("s//x", "s/x")),
    "backslash": Case("holds a backslash", *both("s\\..\\x", "s/x")),
    "drive letter": Case("begins with a drive letter", *both("C:x", "C/x")),
    "stream of NTFS": Case("holds a colon", *both("s/a:b", "s/a-b")),
    "NUL": Case("holds a character", *both("s/a\0.md", "s/a.md")),
    "control": Case("holds a character", *both("s/a\x1b[31m", "s/a[31m")),
    "newline": Case("holds a character", *tar_both("s/a\nb", "s/a b")),
    "turned text": Case("holds a character", *both("s/a\u202egpj.exe", "s/agpj.exe")),
    "trailing dot": Case("ends in a dot", *both("s/a.", "s/a.b")),
    "trailing blank": Case("ends in a dot or a blank", *tar_both("s/a /b", "s/a b/b")),
    "reserved": Case("is reserved for a device", *both("s/aux.md", "s/auxiliary.md")),
    "not UTF-8": Case(
        "is not UTF-8",
        lambda: raw_tar(header("s/xy", b"0", 0).replace(b"xy", b"\xff\xfe")[:148] + fixed(b"s/\xff\xfe")),
        lambda: raw_tar(header("s/xy", b"0", 0)),
    ),
    "nested too deep": Case("is nested more than", *both(f"{DEEP}/x", f"{DEEP[:-4]}/x")),
    "name too long": Case("has a part longer than", *both(f"s/{LONG}", f"s/{LONG[1:]}")),
    "path too long": Case(
        "is longer than 1024", *tar_both("/".join(["p" * 200] * 6), "/".join(["p" * 200] * 4))
    ),
    # names together
    "duplicate": Case(
        "is there twice",
        lambda: made_zip(("s/a", b"1"), ("s/a", b"2")),
        lambda: made_zip(("s/a", b"1"), ("s/b", b"2")),
    ),
    "duplicate, tar": Case(
        "is there twice",
        lambda: made_tar(("s/a", b"1"), ("./s/a", b"2")),
        lambda: made_tar(("s/a", b"1"), ("./s/b", b"2")),
    ),
    "case clash": Case(
        "are one name",
        lambda: made_zip(("s/a", b"1"), ("s/A", b"2")),
        lambda: made_zip(("s/a", b"1"), ("t/A", b"2")),
    ),
    "case clash of folders": Case(
        "are one name", lambda: made_tar(("S/x", b"1")), lambda: made_tar(("s2/x", b"1"))
    ),
    "normalisation clash": Case(
        "are one name",
        lambda: made_zip((NFC, b"1"), (NFD, b"2")),
        lambda: made_zip((NFC, b"1"), (NFD.replace("s/", "t/"), b"2")),
    ),
    "file as folder": Case(
        "is a file and a folder",
        lambda: made_zip(("s/a", b"1"), ("s/a/b", b"2")),
        lambda: made_zip(("s/a", b"1"), ("s/c/b", b"2")),
    ),
    "folder as file": Case(
        "is a file and a folder",
        lambda: made_tar(("s/a/b", b"1"), ("s/a", b"2")),
        lambda: made_tar(("s/a/b", b"1"), special(tarfile.DIRTYPE, "s/a")),
    ),
    # kinds of members
    "link": Case("is a link", lambda: made_tar(special(tarfile.SYMTYPE, target="SKILL.md")), made_tar),
    "link, zip": Case(
        "is a link",
        lambda: made_zip(("s/x", b"SKILL.md"), mode=0o120777),
        lambda: made_zip(("s/x", b"SKILL.md"), mode=0o100777),
    ),
    "hard link": Case(
        "is a hard link", lambda: made_tar(special(tarfile.LNKTYPE, target="s/SKILL.md")), made_tar
    ),
    "device": Case("is a device", lambda: made_tar(special(tarfile.CHRTYPE)), made_tar),
    "block device": Case("is a device", lambda: made_tar(special(tarfile.BLKTYPE)), made_tar),
    "device, zip": Case(
        "is neither a file nor a folder",
        lambda: made_zip(("s/x", b""), mode=0o020666),
        lambda: made_zip(("s/x", b""), mode=0o100666),
    ),
    "pipe": Case("is a named pipe", lambda: made_tar(special(tarfile.FIFOTYPE)), made_tar),
    "sparse": Case("is a sparse file", lambda: raw_tar(header("s/x", b"S", 0)), made_tar),
    "sparse, pax": Case(
        "it holds a sparse file",
        lambda: raw_tar(header("p", b"x", len(SPARSE)), SPARSE, header("s/x", b"0", 0)),
        lambda: raw_tar(header("p", b"x", len(HARMLESS)), HARMLESS, header("s/x", b"0", 0)),
    ),
    "unknown kind": Case("of the unknown kind", lambda: raw_tar(header("s/x", b"Z", 0)), made_tar),
    "part of a file": Case("is a part of a file", lambda: raw_tar(header("s/x", b"M", 0)), made_tar),
    # amounts
    "huge ratio": Case(
        "unpack to more than",
        lambda: made_zip(("s/x", bytes(FREE + 1))),
        lambda: made_zip(("s/x", bytes(FREE - 1000))),
    ),
    "huge ratio, gzip": Case(
        "unpack to more than",
        lambda: bomb(made_tar(("s/x", bytes(4 * FREE)))),
        lambda: bomb(made_tar(("s/x", bytes(FREE - 1000)))),
    ),
    "100,000 entries": Case("more than 50,000 entries", lambda: many_zip(100_000), lambda: many_zip(1000)),
    "too many entries, tar.gz": Case(
        "more than 50,000 entries", lambda: bomb(many_tar(LIMITS.entries + 1)), lambda: bomb(many_tar(1000))
    ),
    "giant header": Case(
        "is too large",
        lambda: raw_tar(header("p", b"x", 2 << 20), bytes(2 << 20), header("s/x", b"0", 0)),
        lambda: raw_tar(header("p", b"x", len(HARMLESS)), HARMLESS, header("s/x", b"0", 0)),
    ),
    "giant header that is not there": Case(
        "is too large", lambda: raw_tar(header("p", b"L", 8 << 30)), made_tar
    ),
    # damage and lies
    "encrypted": Case(
        "is encrypted",
        lambda: patched(made_zip(("s/x", b"1")), (CENTRAL, 8, b"\1\0"), (LOCAL, 6, b"\1\0")),
        lambda: made_zip(("s/x", b"1")),
    ),
    "truncated": Case("the end of it is missing", lambda: made_zip(("s/x", noise(99)))[:-40], made_zip),
    "truncated, tar": Case("the tar archive is cut", lambda: made_tar(("s/x", noise(2000)))[:2500], made_tar),
    "truncated, gzip": Case(
        "the gzip file is cut",
        lambda: bomb(made_tar(("s/x", noise(2000))))[:-9],
        lambda: bomb(made_tar(("s/x", noise(2000)))),
    ),
    "without an end": Case("the tar archive is cut", lambda: made_tar()[:1024], made_tar),
    "larger than it says": Case(
        "another size, method or checksum",
        lambda: patched(made_zip(("s/x", noise(99))), (CENTRAL, 24, b"\x10\0\0\0")),
        lambda: made_zip(("s/x", noise(99))),
    ),
    "both headers lie": Case(
        "does not have the 16 bytes",
        lambda: patched(
            made_zip(("s/x", noise(99))), (CENTRAL, 24, b"\x10\0\0\0"), (LOCAL, 22, b"\x10\0\0\0")
        ),
        lambda: made_zip(("s/x", noise(99))),
    ),
    "smaller than it says": Case(
        "does not have the 200 bytes",
        lambda: patched(
            made_zip(("s/x", noise(99))), (CENTRAL, 24, b"\xc8\0\0\0"), (LOCAL, 22, b"\xc8\0\0\0")
        ),
        lambda: made_zip(("s/x", noise(99))),
    ),
    "another name in its own header": Case(
        "has another name in its own header",
        lambda: patched(made_zip(("s/x", b"1")), (LOCAL, 30, b"s/y")),
        lambda: made_zip(("s/x", b"1")),
    ),
    "wrong checksum": Case(
        "the checksum of 's/x' is wrong",
        lambda: patched(made_zip(("s/x", b"12")), (CENTRAL, 16, b"\1\2\3\4"), (LOCAL, 14, b"\1\2\3\4")),
        lambda: made_zip(("s/x", b"12")),
    ),
    "wrong checksum, gzip": Case(
        "the gzip file is damaged",
        lambda: patched(bomb(made_tar()), (len(bomb(made_tar())) - 8, 0, b"\1\2\3\4")),
        lambda: bomb(made_tar()),
    ),
    "wrong checksum, tar": Case(
        "is damaged",
        lambda: patched(made_tar(("s/x", b"1")), (1024 + 3, 0, b"y")),
        lambda: made_tar(("s/x", b"1")),
    ),
    "entries that are one": Case(
        "share bytes",
        overlapping,
        lambda: made_zip(("s/a", noise(1000)), ("s/b", noise(1000))),
    ),
    "an entry around another": Case(
        "share bytes", quoted, lambda: made_zip(("s/b", noise(500)), method=zipfile.ZIP_STORED)
    ),
    "one of several disks": Case(
        "one part of a zip archive of several", lambda: patched(made_zip(), (END, 4, b"\1\0")), made_zip
    ),
    "fewer entries than there are": Case(
        "has more entries than its end says",
        lambda: patched(made_zip(("s/x", b"1")), (END, 8, b"\1\0\1\0")),
        lambda: made_zip(("s/x", b"1")),
    ),
    "trailing garbage": Case("bytes follow the end", lambda: made_zip() + b"garbage", made_zip),
    "trailing garbage, tar": Case("bytes follow the end", lambda: made_tar() + b"garbage", made_tar),
    "trailing garbage, gzip": Case(
        "something follows it", lambda: bomb(made_tar()) + b"garbage", lambda: bomb(made_tar()) + bytes(100)
    ),
    "a second archive behind it": Case(
        "bytes follow the end",
        lambda: bomb(made_tar()) + bomb(made_tar(("s/x", b"1"))),
        lambda: bomb(made_tar()[:700]) + bomb(made_tar()[700:]),
    ),
    "in front of it": Case("is no zip, tar", lambda: b"#!/bin/sh\n" + made_zip(), made_zip),
    "another method": Case(
        "is packed by method 12",
        lambda: made_zip(("s/x", b"1"), method=zipfile.ZIP_BZIP2),
        lambda: made_zip(("s/x", b"1")),
    ),
    "two sizes": Case(
        "has two sizes",
        lambda: raw_tar(
            header("p", b"x", len(pax(size="3"))), pax(size="3"), header("s/x", b"0", 5), b"12345"
        ),
        lambda: raw_tar(
            header("p", b"x", len(pax(size="5"))), pax(size="5"), header("s/x", b"0", 5), b"12345"
        ),
    ),
    "negative size": Case(
        "is damaged",
        lambda: raw_tar(header("p", b"x", len(pax(size="-9"))), pax(size="-9"), header("s/x", b"0", 0)),
        lambda: raw_tar(header("p", b"x", len(pax(size="00"))), pax(size="00"), header("s/x", b"0", 0)),
    ),
    "a record longer than its header": Case(
        "a pax header is damaged",
        lambda: raw_tar(header("p", b"x", 12), b"99 path=s/y\n", header("s/x", b"0", 0)),
        lambda: raw_tar(header("p", b"x", 12), b"12 path=s/y\n", header("s/x", b"0", 0)),
    ),
    "a header for all": Case(
        "says of all members",
        lambda: raw_tar(header("p", b"g", len(pax(path="s/y"))), pax(path="s/y"), header("s/x", b"0", 0)),
        lambda: raw_tar(header("p", b"g", len(HARMLESS)), HARMLESS, header("s/x", b"0", 0)),
    ),
    "a folder with content": Case(
        "has content",
        lambda: raw_tar(header("s/x/", b"5", 3), b"abc"),
        lambda: raw_tar(header("s/x/", b"5", 0)),
    ),
    # bundles
    "a bundle's path": Case("has the part '..'", lambda: bundled(path="../../x"), lambda: bundled(), ".json"),
    "a bundle's folder": Case("is absolute", lambda: bundled(folder="/x"), lambda: bundled(), ".json"),
    "a bundle's size": Case("does not have the 7 bytes", lambda: bundled(size=7), lambda: bundled(), ".json"),
    "a bundle's text": Case(
        "not those of its fingerprint", lambda: bundled(text="y"), lambda: bundled(), ".json"
    ),
    "a bundle's form": Case("is missing or no", lambda: bundled(path=3), lambda: bundled(), ".json"),
    "a bundle's keys": Case(
        "a key is there twice",
        lambda: bundled().replace(b'"version"', b'"format": 1, "version"'),
        lambda: bundled(),
        ".json",
    ),
    "a bundle of lists": Case(
        "more lists and maps than 50,000", lambda: b'{"a":[' + b"[]," * 5_000_000, lambda: bundled(), ".json"
    ),
    "a deep bundle": Case("it is no JSON", lambda: b'{"a":' + b"[" * 100_000, lambda: bundled(), ".json"),
}
SOAK = bool(os.environ.get("EXECUTOR_SOAK"))
FLIPS, CUTS = (3000, 1000) if SOAK else (60, 20)
SPARSE = pax(GNU__sparse__size="99999999999")
HARMLESS = pax(mtime="1.5", comment="x", SCHILY__xattr__a="b")
_scratch: list[Path] = []


def fixed(name: bytes) -> bytes:
    """The rest of a header block of a file with this name, from its checksum on."""
    block = bytearray(header("s/xy", b"0", 0))
    block[: len(name)] = name
    block[148:156] = b" " * 8
    return b"%06o\0 " % sum(block) + bytes(block[156:])


def bundled(**changes: object) -> bytes:
    """A bundle with something else in its second file."""
    value = json.loads(as_bundle({SKILL[0]: SKILL[1], "s/x": b"x"}, _scratch[-1]))
    (one,) = value["skills"]
    one.update({name: changes.pop(name) for name in ("folder",) if name in changes})
    one["files"][1].update(changes)
    return json.dumps(value).encode()


def left(cache: Path) -> list[str]:
    """All that is in the cache besides locks and what was looked at."""
    return sorted(
        os.path.relpath(os.path.join(top, name), cache)
        for folder in ("trees", "scratch")
        for top, folders, names in os.walk(cache / folder)
        for name in [*folders, *names]
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_archive_is_refused_whole(name: str, tmp_path: Path, cache: Path) -> None:
    """trpc-12, trpc-1.2.4, trpc-1.2.5."""
    case = CASES[name]
    _scratch.append(tmp_path)
    for which, content in (("bad", case.bad), ("good", case.good)):
        (tmp_path / f"{which}{case.ending}").write_bytes(content())
    bad = archive_source(FileArchive(tmp_path / f"bad{case.ending}"))
    with pytest.raises(SkillSourceError) as caught:
        bad.list()
    assert case.says in caught.value.message
    assert str(tmp_path / "bad") in caught.value.message and "is refused" in caught.value.message
    assert left(cache) == []
    good = archive_source(FileArchive(tmp_path / f"good{case.ending}"))
    assert "s" in good.list().first()
    if "entries" in name:
        return  # they take long
    # A good copy that is spoiled later stays in use, and says so.
    os.replace(tmp_path / f"bad{case.ending}", tmp_path / f"good{case.ending}")
    before = left(cache)
    listing = good.list()
    assert "s" in listing.first()
    assert case.says in listing.problems[0].reason and "the copy of 20" in listing.problems[0].reason
    assert left(cache) == before


WRITERS: dict[str, Sequence[str]] = {
    "GNU tar": ["tar", "-czf", "{out}", "-C", "{folder}", "."],
    "GNU tar, pax": ["tar", "--format=posix", "-czf", "{out}", "-C", "{folder}", "."],
    "GNU tar, v7": ["tar", "--format=v7", "-cf", "{out}.tar", "-C", "{folder}", "."],
    "zip": ["zip", "-qr", "{out}.zip", "."],
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_ordinary_programs_write_is_taken(writer: str, tmp_path: Path) -> None:
    import shutil
    import subprocess

    program = WRITERS[writer][0]
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    folder = tmp_path / "files"
    long = folder / "s" / ("long" * 30) / ("name" * 30 if "v7" not in writer else "x")
    if "v7" in writer:
        long = folder / "s" / "x"
    long.mkdir(parents=True)
    (long / "é.txt").write_bytes(noise(70_000))
    (folder / "s" / "SKILL.md").write_bytes(SKILL[1])
    (folder / "s" / "empty").mkdir()
    words = [word.format(out=tmp_path / "out", folder=folder) for word in WRITERS[writer]]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    (made,) = tmp_path.glob("out*")
    found = archive_source(FileArchive(made)).list().first()["s"]
    assert (found.path / long.relative_to(folder / "s") / "é.txt").read_bytes() == noise(70_000)


def test_every_cut_of_an_archive_is_refused(tmp_path: Path, cache: Path) -> None:
    """However much of it came: at no length does a part pass for the whole."""
    zipped, tarred = made_zip(("s/x", noise(300))), made_tar(("s/x", noise(300)))
    packed = bomb(tarred)
    for whole, end in (
        (zipped, len(zipped)),
        (packed, len(packed)),
        (tarred, 2048 + 512),
    ):  # then zeros follow
        for length in range(1, end, max(1, end // CUTS)):
            file = tmp_path / f"cut-{length}"
            file.write_bytes(whole[:length])
            with pytest.raises(SkillSourceError):
                archive_source(FileArchive(file)).list()
    assert left(cache) == []


def test_any_byte_may_be_wrong(tmp_path: Path, cache: Path) -> None:
    """A changed byte is refused or harmless: nothing is written outside and no other error comes out."""
    dice = random.Random(7)
    for number in range(FLIPS):
        whole = bytearray(dice.choice((made_zip(("s/x", b"abc" * 50)), made_tar(("s/x", b"abc" * 50)))))
        for _ in range(dice.randint(1, 4)):
            whole[dice.randrange(len(whole))] = dice.randrange(256)
        file = tmp_path / f"flipped-{number}"
        file.write_bytes(bytes(whole))
        try:
            archive_source(FileArchive(file)).list()
        except SkillSourceError:
            pass
    assert {path.name for path in tmp_path.iterdir()} == {"cache", *(f"flipped-{n}" for n in range(FLIPS))}
    assert os.listdir(cache / "scratch") == []
