"""The same media type on every machine, and never one that the bytes contradict."""

from __future__ import annotations

import gzip
import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.workspace import mime
from executor.workspace.mime import UNKNOWN, guess

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
PPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
ODT = "application/vnd.oasis.opendocument.text"
PE = "application/vnd.microsoft.portable-executable"


def zipped(*names: str, mimetype: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        if mimetype:
            archive.writestr("mimetype", mimetype)
        for name in names:
            archive.writestr(name, "<x/>")
    return buffer.getvalue()


def tarred(format: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    return buffer.getvalue()


def database() -> bytes:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("create table t (x)")
        return connection.serialize()


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0"
JPEG = b"\xff\xd8\xff\xe0\0\x10JFIF\0\1"
GIF = b"GIF89a\1\0\1\0\0\0\0"
WEBP = b"RIFF\x24\0\0\0WEBPVP8 "
BMP = b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0"
ICO = b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0"
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"
AVIF = b"\0\0\0\x20ftypavif\0\0\0\0"
MP4 = b"\0\0\0\x20ftypisom\0\0\2\0"
MOV = b"\0\0\0\x14ftypqt  \0\0\2\0"
WEBM = b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\1\x42\x82\x84webm"
MKV = b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\1\x42\x82\x88matroska"
WAV = b"RIFF\x24\0\0\0WAVEfmt "
OGG = b"OggS\0\2\0\0\0\0\0\0\0\0"
FLAC = b"fLaC\0\0\0\x22"
ID3 = b"ID3\3\0\0\0\0\0\0"
MP3 = b"\xff\xfb\x90\x64\0\0"
MPEGTS = (b"G\x40\0\x10\0" + b"\xff" * 183) * 3
SQLITE = database()
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 16
GZIP = gzip.compress(b"x", mtime=0)
TAR = tarred(tarfile.USTAR_FORMAT)
ELF = b"\x7fELF\2\1\1\0" + b"\0" * 8 + b"\3\0\x3e\0"
EXE = b"MZ" + b"\0" * 58 + b"\x40\0\0\0PE\0\0\x64\x86"
WOFF = b"wOFF\0\1\0\0\0\0\4\0"
WOFF2 = b"wOF2\0\1\0\0\0\0\4\0"
TTF = b"\0\1\0\0\0\x0c\0\x80"
ZIP = zipped("a.txt")
NOISE = bytes((i * 167 + 13) % 256 for i in range(700))


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        # text
        ("a.csv", b"a,b\n1,2\n", "text/csv"),
        ("a.tsv", b"a\tb\n", "text/tab-separated-values"),
        ("a.json", b"{}", "application/json"),
        ("a.json", b"not json", "application/json"),
        ("a.jsonl", b"{}\n{}\n", "application/x-ndjson"),
        ("a.ndjson", b"{}\n", "application/x-ndjson"),
        ("a.geojson", b"{}", "application/geo+json"),
        ("a.ipynb", b"{}", "application/x-ipynb+json"),
        ("a.md", b"# x", "text/markdown"),
        ("a.txt", b"x", "text/plain"),
        ("a.log", b"\x1b[31mred\x1b[0m\n", "text/plain"),
        ("a.html", b"<p>", "text/html"),
        ("a.xml", b"<x/>", "application/xml"),
        ("[Content_Types].xml", b"<x/>", "application/xml"),
        ("a.svg", b"<svg/>", "image/svg+xml"),
        ("a.yaml", b"a: 1", "application/yaml"),
        ("a.yml", b"a: 1", "application/yaml"),
        ("a.toml", b"a=1", "application/toml"),
        ("a.ini", b"[a]", "text/plain"),
        ("a.css", b"a{}", "text/css"),
        ("a.js", b"1", "text/javascript"),
        ("a.mjs", b"1", "text/javascript"),
        ("a.cjs", b"1", "text/javascript"),
        ("a.ts", b"let a: number", "text/x-typescript"),
        ("a.ts", b"G" * 600, "text/x-typescript"),
        ("a.ts", MPEGTS, "video/mp2t"),
        ("a.tsx", b"<a/>", "text/x-typescript"),
        ("a.py", b"1", "text/x-python"),
        ("a.sh", b"ls", "text/x-shellscript"),
        ("a.R", b"x <- 1", "text/x-r"),
        ("a.sql", b"select 1", "application/sql"),
        ("a.java", b"class A {}", "text/x-java"),
        ("a.c", b"int a;", "text/x-c"),
        ("a.tex", b"\\a", "text/x-tex"),
        ("a.bib", b"@a", "text/x-bibtex"),
        ("a.rst", b"a", "text/x-rst"),
        ("a.po", b"msgid", "text/x-gettext-translation"),
        ("a.diff", b"---", "text/x-diff"),
        ("a.patch", b"---", "text/x-diff"),
        ("uv.lock", b"a", "text/plain"),
        ("a.ics", b"BEGIN:VCALENDAR", "text/calendar"),
        ("a.vcf", b"BEGIN:VCARD", "text/vcard"),
        ("a.vcf", b"##fileformat=VCFv4.2\n", "text/x-vcf"),
        ("a.eml", b"From: a", "message/rfc822"),
        ("Makefile", b"all:\n", "text/x-makefile"),
        ("d/Dockerfile", b"FROM x\n", "text/x-dockerfile"),
        # binary
        ("a.png", PNG, "image/png"),
        ("a.jpg", JPEG, "image/jpeg"),
        ("a.JPEG", JPEG, "image/jpeg"),
        ("a.gif", GIF, "image/gif"),
        ("a.webp", WEBP, "image/webp"),
        ("a.avif", AVIF, "image/avif"),
        ("a.bmp", BMP, "image/bmp"),
        ("a.tiff", b"II*\0\x08\0\0\0", "image/tiff"),
        ("a.ico", ICO, "image/vnd.microsoft.icon"),
        ("a.pdf", PDF, "application/pdf"),
        ("a.pdf", b"\n\n" + PDF, "application/pdf"),
        ("a.docx", ZIP, DOCX),
        ("a.xlsx", ZIP, XLSX),
        ("a.pptx", ZIP, PPTX),
        ("a.odt", ZIP, ODT),
        ("a.ods", ZIP, "application/vnd.oasis.opendocument.spreadsheet"),
        ("a.odp", ZIP, "application/vnd.oasis.opendocument.presentation"),
        ("a.epub", ZIP, "application/epub+zip"),
        ("a.zip", ZIP, "application/zip"),
        ("a.zip", zipped(), "application/zip"),
        ("a.skill", ZIP, "application/zip"),
        ("a.xls", OLE, "application/vnd.ms-excel"),
        ("a.mp3", ID3, "audio/mpeg"),
        ("a.mp3", MP3, "audio/mpeg"),
        ("a.wav", WAV, "audio/wav"),
        ("a.ogg", OGG, "audio/ogg"),
        ("a.flac", FLAC, "audio/flac"),
        ("a.mp4", MP4, "video/mp4"),
        ("a.webm", WEBM, "video/webm"),
        ("a.mov", MOV, "video/quicktime"),
        ("a.tar", TAR, "application/x-tar"),
        ("a.tar", tarred(tarfile.GNU_FORMAT), "application/x-tar"),
        ("a.tar.gz", GZIP, "application/gzip"),
        ("a.tgz", GZIP, "application/gzip"),
        ("a.bz2", b"BZh91AY&SY", "application/x-bzip2"),
        ("a.xz", b"\xfd7zXZ\0\0\4", "application/x-xz"),
        ("a.zst", b"\x28\xb5\x2f\xfd\4\0", "application/zstd"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c\0\4", "application/x-7z-compressed"),
        ("a.parquet", b"PAR1\x15\4\x15\x0e", "application/vnd.apache.parquet"),
        ("a.arrow", b"ARROW1\0\0", "application/vnd.apache.arrow.file"),
        ("a.feather", b"ARROW1\0\0", "application/vnd.apache.arrow.file"),
        ("a.sqlite", SQLITE, "application/vnd.sqlite3"),
        ("a.db", SQLITE, "application/vnd.sqlite3"),
        ("a.npy", b"\x93NUMPY\1\0", "application/x-npy"),
        ("a.npz", ZIP, "application/x-npz"),
        ("a.pkl", b"\x80\4\x95\0", "application/x-pickle"),
        ("a.h5", b"\x89HDF\r\n\x1a\n\0", "application/x-hdf5"),
        ("a.wasm", b"\0asm\1\0\0\0", "application/wasm"),
        ("a.ttf", TTF, "font/ttf"),
        ("a.otf", b"OTTO\0\x0c", "font/otf"),
        ("a.woff", WOFF, "font/woff"),
        ("a.woff2", WOFF2, "font/woff2"),
        ("a.exe", EXE, PE),
    ],
)
def test_extension_that_the_bytes_confirm(name: str, head: bytes, expected: str) -> None:
    assert guess(name, head, len(head)) == expected
    assert guess("dir.png/" + name, head, len(head)) == expected


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        ("a.png", b"hello\n", "text/plain"),
        ("a.png", JPEG, "image/jpeg"),
        ("a.png", b"<html><body>404</body></html>", "text/html"),
        ("a.png", b"\0\1\2\3", UNKNOWN),
        ("a.pdf", b'{"error": "no"}', "application/json"),
        ("a.docx", b"plain", "text/plain"),
        ("a.docx", OLE, "application/x-ole-storage"),
        ("a.xls", b"a,b\n1,2\n", "text/plain"),
        ("a.xls", zipped("[Content_Types].xml", "xl/workbook.xml"), XLSX),
        ("a.skill", b"---\nname: x\n", "text/plain"),
        ("a.gz", b"plain", "text/plain"),
        ("a.svg", GZIP, "application/gzip"),
        ("a.csv", b"a,b\n\0\0\0", UNKNOWN),
        ("a.csv", PNG, "image/png"),
        ("a.csv", PDF, "application/pdf"),
        ("a.csv", b"%PDF-1.4\n1 0 obj\n", "application/pdf"),
        ("a.json", SQLITE, "application/vnd.sqlite3"),
        ("a.txt", ELF, "application/x-executable"),
        ("a.md", NOISE, UNKNOWN),
        ("a.db", b"plain", "text/plain"),
        ("a.mp3", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("a.mp3", b"\xff\xff\xff\xff", UNKNOWN),
        ("a.tar", b"x" * 600, "text/plain"),
        ("a.bmp", b"BMI,weight\n22,80\n", "text/plain"),
        ("a.pkl", b"(dp0\n.", "text/plain"),
    ],
)
def test_extension_that_the_bytes_contradict(name: str, head: bytes, expected: str) -> None:
    assert guess(name, head, len(head)) == expected


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpeg"),
        (GIF, "image/gif"),
        (WEBP, "image/webp"),
        (BMP, "image/bmp"),
        (ICO, "image/vnd.microsoft.icon"),
        (AVIF, "image/avif"),
        (PDF, "application/pdf"),
        (ZIP, "application/zip"),
        (zipped(), "application/zip"),
        (zipped("[Content_Types].xml", "_rels/.rels", "word/document.xml"), DOCX),
        (zipped("docProps/app.xml", "xl/workbook.xml"), XLSX),
        (zipped("[Content_Types].xml", "ppt/presentation.xml"), PPTX),
        (zipped("word/list.txt"), "application/zip"),
        (zipped("content.xml", mimetype=ODT), ODT),
        (zipped(mimetype="application/epub+zip"), "application/epub+zip"),
        (zipped(mimetype="text/html"), "application/zip"),
        (zipped("META-INF/MANIFEST.MF"), "application/java-archive"),
        (GZIP, "application/gzip"),
        (TAR, "application/x-tar"),
        (SQLITE, "application/vnd.sqlite3"),
        (b"PAR1\x15\4\x15\x0e", "application/vnd.apache.parquet"),
        (b"\0asm\1\0\0\0", "application/wasm"),
        (ELF, "application/x-executable"),
        (EXE, PE),
        (TTF, "font/ttf"),
        (WOFF, "font/woff"),
        (WOFF2, "font/woff2"),
        (ID3, "audio/mpeg"),
        (OGG, "audio/ogg"),
        (FLAC, "audio/flac"),
        (WAV, "audio/wav"),
        (MP4, "video/mp4"),
        (MOV, "video/quicktime"),
        (WEBM, "video/webm"),
        (MKV, "video/x-matroska"),
        (MPEGTS, "video/mp2t"),
        (b"#!/usr/bin/env python3\n", "text/x-python"),
        (b"#!/usr/bin/env -S uv run python3.12\n", "text/plain"),
        (b"#!/usr/bin/env -S python3.12 -u\n", "text/x-python"),
        (b"#!/usr/bin/python", "text/x-python"),
        (b"#!/bin/sh\n", "text/x-shellscript"),
        (b"#! /bin/bash -e\n", "text/x-shellscript"),
        (b"#!/usr/bin/env node\n", "text/javascript"),
        (b"#!/usr/bin/env bun\n", "text/javascript"),
        (b"#!", "text/plain"),
        (b"#!/usr/bin/env\n", "text/plain"),
        (b"#!/opt/pythonic\n", "text/plain"),
        (b'{"a": [1, 2]}\n', "application/json"),
        (b"[1, 2]", "application/json"),
        (b'\xef\xbb\xbf{"a": 1}', "application/json"),
        (b'{"a": 1}\n{"a": 2}\n', "application/x-ndjson"),
        (b"{curly prose}", "text/plain"),
        (b"[" * 8000, "text/plain"),
        (b"<svg xmlns='x'/>", "image/svg+xml"),
        (b"<?xml version='1.0'?>\n<!-- x -->\n<svg>", "image/svg+xml"),
        (b"<?xml version='1.0'?><a/>", "application/xml"),
        (b"<!DOCTYPE html>\n<html>", "text/html"),
        (b"diff --git a/x b/x\n", "text/x-diff"),
        (b"BMI and the ftyp box", "text/plain"),
        (b"G" * 600, "text/plain"),
        (b"PAR1 and PARE", "text/plain"),
        (b"hello", "text/plain"),
        ("h\u00e9llo 好".encode(), "text/plain"),
        ("hällo, a Latin-1 line of text".encode("latin-1"), "text/plain"),
        ("hällo".encode("utf-16"), "text/plain"),
        (b"\xfe\xe1\xf0\xee\xc0", UNKNOWN),
        (b"\0", UNKNOWN),
        (NOISE, UNKNOWN),
    ],
)
@pytest.mark.parametrize("name", ["a", "a.unknownext", ".hidden", "a.", "a.png\n", "\udcff\n\u202e", ""])
def test_bytes_alone(name: str, head: bytes, expected: str) -> None:
    assert guess(name, head, len(head)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv", "text/csv"),
        ("a.json", "application/json"),
        ("Makefile", "text/x-makefile"),
        ("a.png", UNKNOWN),
        ("a.docx", UNKNOWN),
        ("a", UNKNOWN),
        ("", UNKNOWN),
        (".csv", UNKNOWN),
    ],
)
def test_empty_files(name: str, expected: str) -> None:
    assert guess(name, b"", 0) == expected


@pytest.mark.parametrize(
    "head",
    [
        "ü;ö\n".encode("latin-1"),
        "价格,数量\n".encode("gbk"),
        "a\tb\n".encode("utf-16"),
        "a,b\n".encode("utf-32"),
        b"\xef\xbb\xbfa,b\n",
        b"a,b\n1,2\n" * 10 + b"\x1a",
    ],
)
def test_a_text_type_does_not_depend_on_the_encoding(head: bytes) -> None:
    assert guess("a.csv", head, len(head)) == "text/csv"


def test_a_character_cut_at_the_end_of_the_head_is_no_binary_data() -> None:
    data = b"a" + "好".encode() * 5000
    assert guess("a", data[:8192], len(data)) == "text/plain"
    assert guess("a.csv", data[:8192], len(data)) == "text/csv"


def test_json_longer_than_the_head() -> None:
    data = json.dumps([{"key": "value"}] * 2000).encode()
    assert guess("a", data[:8192], len(data)) == "application/json"
    lines = (json.dumps({"key": "value"}) + "\n").encode() * 2000
    assert guess("a", lines[:8192], len(lines)) == "application/x-ndjson"


def test_upper_case_is_ascii_only() -> None:
    assert guess("a.CSV", b"x", 1) == "text/csv"
    assert guess("a.m\u212av", b"x", 1) == "text/plain"  # a Kelvin sign is no k


def test_each_extension_is_listed_once_in_lower_case() -> None:
    extensions = [ext for _, _, exts in mime._EXTENSIONS for ext in exts.split()]
    assert len(extensions) == len(set(extensions))
    assert all(ext == ext.lower() and ext.isascii() for ext in extensions)
    assert {shape for _, shape, _ in mime._EXTENSIONS} <= {"text", *mime._SHAPES}
    assert all(mime._MEDIA_TYPE.fullmatch(type_) for type_, _, _ in mime._EXTENSIONS)


def test_libmagic_knows_what_we_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed:
        answer = ""

        def ask(self, head: bytes) -> str:
            return self.answer

    monkeypatch.setattr(mime, "_libmagic", Fixed())
    for answer, expected in [
        ("application/x-gettext-translation", "application/x-gettext-translation"),
        ("application/octet-stream", UNKNOWN),
        ("application/x-dosexec", UNKNOWN),  # two letters, MZ
        ("image/g3fax", UNKNOWN),
        ("text/x-c", UNKNOWN),  # it is binary
        ("inode/x-empty", UNKNOWN),
        ("cannot open `x' (No such file)", UNKNOWN),
        ("", UNKNOWN),
    ]:
        Fixed.answer = answer
        assert guess("a", NOISE, len(NOISE)) == expected
    Fixed.answer = "audio/mpeg"
    assert guess("a", NOISE, len(NOISE)) == UNKNOWN
    assert guess("a.mp3", NOISE, len(NOISE)) == "audio/mpeg"  # name and libmagic agree


def test_without_libmagic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "magic", None)  # import fails
    monkeypatch.setattr(mime, "_libmagic", mime._Libmagic())
    assert guess("a", NOISE, len(NOISE)) == UNKNOWN
    assert guess("a.png", PNG, len(PNG)) == "image/png"


def test_loading_libmagic_is_late_and_leaves_the_environment_alone() -> None:
    code = (
        "import os, sys; before = dict(os.environ)\n"
        "from executor.workspace.mime import guess\n"
        "guess('a.png', b'x', 1); guess('a.csv', b'x', 1)\n"
        "assert 'magic' not in sys.modules\n"
        "print(guess('a', bytes.fromhex('de120495') + bytes(40), 44))\n"
        "assert dict(os.environ) == before\n"
        "assert 'pylibmagic' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() in ("application/x-gettext-translation", UNKNOWN)


def test_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mime, "_libmagic", mime._Libmagic())
    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(lambda n: guess(f"a{n}", NOISE, len(NOISE)), range(200)))
    assert answers == {UNKNOWN}


def test_a_thousand_files_are_quick() -> None:
    table = b"a,b,c\n" * 1365
    start = time.perf_counter()
    for n in range(1000):
        guess(f"out/{n}.csv", table, len(table))
        guess(f"out/{n}.png", PNG, len(PNG))
    assert time.perf_counter() - start < 1


NAMES = st.one_of(
    st.text(max_size=20), st.sampled_from(sorted(mime._BY_EXTENSION)).map(lambda ext: "a." + ext)
)


@settings(deadline=None)
@given(
    NAMES,
    st.one_of(
        st.binary(max_size=200), st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))
    ),
    st.integers(0, 10**6),
)
def test_any_name_and_bytes_give_a_media_type(name: str, head: bytes, more: int) -> None:
    answer = guess(name, head, len(head) + more)
    assert mime._MEDIA_TYPE.fullmatch(answer)
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        assert not answer.startswith("text/")


@settings(deadline=None)
@given(st.sampled_from(sorted(mime._BY_EXTENSION)))
def test_random_bytes_never_confirm_a_binary_extension(ext: str) -> None:
    head = b"\0\xee" + os.urandom(300)
    assert not mime._has_shape(mime._BY_EXTENSION[ext][1], head, len(head))
