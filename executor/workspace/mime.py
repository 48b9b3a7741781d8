"""The media type of one output file, the same on every machine.

Decided from three things, in this order:

1. the extension, by the table below, if the bytes do not contradict it;
2. the bytes: signatures of our own, then a few kinds of text;
3. libmagic, for binary data that nothing above knows. Where there is no libmagic, or where its answer
   rests on two bytes, the answer is `application/octet-stream`.

The operating system's tables (`mimetypes`, /etc/mime.types) are never asked: they differ between machines.
Nothing is opened and nothing is run here. Names and bytes are hostile and never raise.

Choices that a reader may wonder about:
- `.xml` is `application/xml`, as RFC 7303 prefers; `text/xml` is its alias.
- `.ts` is TypeScript; MPEG transport streams are known by their bytes.
- A text type is kept whatever the encoding is, but not if the bytes are binary.
- An empty file has no bytes to check: a text extension keeps its type, all else is `application/octet-stream`
  (libmagic's `inode/x-empty` is not a media type; the size already says that it is empty).
"""

from __future__ import annotations

import codecs
import contextlib
import importlib.util
import json
import os
import re
import sys
import threading
from typing import Any

HEAD_BYTES = 8192
"""How much of a file is looked at."""

UNKNOWN = "application/octet-stream"

# ---------------------------------------------------------------------------------------------------- tables

_OOXML = "application/vnd.openxmlformats-officedocument."
_ODF = "application/vnd.oasis.opendocument."

# What a binary file must look like: any one of the alternatives, each {offset: bytes}.
_SHAPES: dict[str, list[dict[int, bytes]]] = {
    "png": [{0: b"\x89PNG\r\n\x1a\n"}],
    "jpeg": [{0: b"\xff\xd8\xff"}],
    "gif": [{0: b"GIF87a"}, {0: b"GIF89a"}],
    "webp": [{0: b"RIFF", 8: b"WEBP"}],
    "bmp": [{0: b"BM", 6: b"\0\0\0\0"}],
    "tiff": [{0: b"II*\0"}, {0: b"MM\0*"}, {0: b"II+\0"}, {0: b"MM\0+"}],
    "ico": [{0: b"\0\0\1\0", 5: b"\0", 9: b"\0"}],
    "psd": [{0: b"8BPS\0"}],
    "jxl": [{0: b"\xff\x0a"}, {0: b"\0\0\0\x0cJXL \r\n"}],
    "jp2": [{0: b"\0\0\0\x0cjP  \r\n"}],
    "pdf": [{0: b"%PDF-"}],
    "rtf": [{0: b"{\\rtf"}],
    "ps": [{0: b"%!PS"}, {0: b"\xc5\xd0\xd3\xc6"}],
    "ole": [{0: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"}],
    "zip": [{0: b"PK\3\4"}, {0: b"PK\5\6"}],
    "gzip": [{0: b"\x1f\x8b\x08"}],
    "bzip2": [{0: b"BZh", 4: b"1AY&SY"}, {0: b"BZh", 4: b"\x17rE8P\x90"}],
    "xz": [{0: b"\xfd7zXZ\0"}],
    "zstd": [{0: b"\x28\xb5\x2f\xfd"}],
    "lz4": [{0: b"\x04\x22\x4d\x18"}],
    "7z": [{0: b"7z\xbc\xaf\x27\x1c"}],
    "rar": [{0: b"Rar!\x1a\x07"}],
    "tar": [{257: b"ustar"}],
    "deb": [{0: b"!<arch>\ndebian"}],
    "ar": [{0: b"!<arch>\n"}],
    "rpm": [{0: b"\xed\xab\xee\xdb"}],
    "ftyp": [{0: b"\0", 4: b"ftyp"}],
    "quicktime": [{4: b"ftyp"}, {4: b"moov"}, {4: b"mdat"}, {4: b"wide"}, {4: b"free"}],
    "ebml": [{0: b"\x1a\x45\xdf\xa3"}],
    "avi": [{0: b"RIFF", 8: b"AVI "}],
    "mpeg": [{0: b"\0\0\1\xba"}, {0: b"\0\0\1\xb3"}],
    "mpegts": [{0: b"G", 188: b"G", 376: b"G"}],
    "wav": [{0: b"RIFF", 8: b"WAVE"}, {0: b"RIFX", 8: b"WAVE"}, {0: b"RF64", 8: b"WAVE"}],
    "ogg": [{0: b"OggS\0"}],
    "flac": [{0: b"fLaC\0"}],
    "mp3": [{0: b"ID3\2"}, {0: b"ID3\3"}, {0: b"ID3\4"}],
    "aac": [{0: b"\xff\xf1"}, {0: b"\xff\xf9"}, {0: b"ID3"}, {0: b"ADIF"}],
    "aiff": [{0: b"FORM", 8: b"AIFF"}, {0: b"FORM", 8: b"AIFC"}],
    "midi": [{0: b"MThd\0"}],
    "ttf": [{0: b"\0\1\0\0\0"}, {0: b"true\0"}],
    "otf": [{0: b"OTTO\0"}, {0: b"\0\1\0\0\0"}],
    "ttc": [{0: b"ttcf\0"}],
    "woff": [{0: b"wOFF", 4: flavour} for flavour in (b"\0\1\0\0", b"OTTO", b"true")],
    "woff2": [{0: b"wOF2", 4: flavour} for flavour in (b"\0\1\0\0", b"OTTO", b"true", b"ttcf")],
    "sqlite": [{0: b"SQLite format 3\0"}],
    "parquet": [{0: b"PAR1\x15"}],
    "arrow": [{0: b"ARROW1\0\0"}, {0: b"FEA1\0\0\0\0"}],
    "avro": [{0: b"Obj\1"}],
    "hdf5": [{at: b"\x89HDF\r\n\x1a\n"} for at in (0, 512, 1024, 2048, 4096)],
    "netcdf": [{0: b"CDF\1"}, {0: b"CDF\2"}, {0: b"CDF\5"}, {0: b"\x89HDF\r\n\x1a\n"}],
    "npy": [{0: b"\x93NUMPY"}],
    "pickle": [{0: bytes([0x80, protocol])} for protocol in range(2, 6)],
    "wasm": [{0: b"\0asm"}],
    "elf": [{0: b"\x7fELF"}],
    "class": [{0: b"\xca\xfe\xba\xbe\0"}],
    "pe": [{0: b"MZ"}],
    "glb": [{0: b"glTF", 5: b"\0"}],
}

# Extensions: (type, shape the bytes must have, extensions). The shape "text" means: no binary data.
_EXTENSIONS: tuple[tuple[str, str, str], ...] = (
    # data
    ("text/csv", "text", "csv"),
    ("text/tab-separated-values", "text", "tsv tab"),
    ("application/json", "text", "json map topojson har"),
    ("application/x-ndjson", "text", "jsonl ndjson"),
    ("application/json5", "text", "json5 jsonc"),
    ("application/ld+json", "text", "jsonld"),
    ("application/geo+json", "text", "geojson"),
    ("application/manifest+json", "text", "webmanifest"),
    ("application/x-ipynb+json", "text", "ipynb"),
    ("application/yaml", "text", "yaml yml"),
    ("application/toml", "text", "toml"),
    ("application/xml", "text", "xml xsd drawio"),
    ("application/xslt+xml", "text", "xsl xslt"),
    ("application/rss+xml", "text", "rss"),
    ("application/atom+xml", "text", "atom"),
    ("application/gpx+xml", "text", "gpx"),
    ("application/vnd.google-earth.kml+xml", "text", "kml"),
    ("application/vnd.google-earth.kmz", "zip", "kmz"),
    ("application/sql", "text", "sql"),
    ("application/vnd.apache.parquet", "parquet", "parquet"),
    ("application/vnd.apache.arrow.file", "arrow", "arrow feather"),
    ("application/avro", "avro", "avro"),
    ("application/vnd.sqlite3", "sqlite", "sqlite sqlite3 db db3"),
    ("application/x-hdf5", "hdf5", "h5 hdf5 he5"),
    ("application/x-netcdf", "netcdf", "nc"),
    ("application/x-npy", "npy", "npy"),
    ("application/x-npz", "zip", "npz"),
    ("application/x-pickle", "pickle", "pkl pickle"),
    # prose and other text
    ("text/markdown", "text", "md markdown mdx"),
    ("text/plain", "text", "txt text log ini cfg conf env properties lock list asc org adoc bat cmd m"),
    ("text/html", "text", "html htm"),
    ("application/xhtml+xml", "text", "xhtml"),
    ("text/css", "text", "css"),
    ("text/x-scss", "text", "scss sass"),
    ("text/x-less", "text", "less"),
    ("text/x-rst", "text", "rst"),
    ("text/x-tex", "text", "tex sty cls ltx"),
    ("text/x-bibtex", "text", "bib"),
    ("text/x-gettext-translation", "text", "po pot"),
    ("text/x-diff", "text", "diff patch"),
    ("text/calendar", "text", "ics"),
    ("text/vcard", "text", "vcf vcard"),
    ("text/vtt", "text", "vtt"),
    ("application/x-subrip", "text", "srt"),
    ("text/vnd.graphviz", "text", "dot gv"),
    ("message/rfc822", "text", "eml"),
    # code
    ("text/javascript", "text", "js mjs cjs jsx"),
    ("text/x-typescript", "text", "ts tsx mts cts"),
    ("text/x-python", "text", "py pyi pyw"),
    ("text/x-shellscript", "text", "sh bash zsh ksh"),
    ("text/x-powershell", "text", "ps1 psm1"),
    ("text/x-r", "text", "r"),
    ("text/x-java", "text", "java"),
    ("text/x-kotlin", "text", "kt kts"),
    ("text/x-scala", "text", "scala"),
    ("text/x-c", "text", "c h"),
    ("text/x-c++", "text", "cc cpp cxx hpp hh hxx"),
    ("text/x-csharp", "text", "cs"),
    ("text/x-go", "text", "go"),
    ("text/x-rust", "text", "rs"),
    ("text/x-ruby", "text", "rb"),
    ("text/x-perl", "text", "pl pm"),
    ("text/x-php", "text", "php"),
    ("text/x-lua", "text", "lua"),
    ("text/x-swift", "text", "swift"),
    ("text/x-julia", "text", "jl"),
    ("text/x-protobuf", "text", "proto"),
    ("application/graphql", "text", "graphql gql"),
    # documents
    ("application/pdf", "pdf", "pdf"),
    ("application/rtf", "rtf", "rtf"),
    ("application/postscript", "ps", "ps eps"),
    (_OOXML + "wordprocessingml.document", "zip", "docx"),
    (_OOXML + "wordprocessingml.template", "zip", "dotx"),
    (_OOXML + "spreadsheetml.sheet", "zip", "xlsx"),
    (_OOXML + "spreadsheetml.template", "zip", "xltx"),
    (_OOXML + "presentationml.presentation", "zip", "pptx"),
    (_OOXML + "presentationml.template", "zip", "potx"),
    (_OOXML + "presentationml.slideshow", "zip", "ppsx"),
    ("application/vnd.ms-word.document.macroEnabled.12", "zip", "docm"),
    ("application/vnd.ms-excel.sheet.macroEnabled.12", "zip", "xlsm"),
    ("application/vnd.ms-excel.sheet.binary.macroEnabled.12", "zip", "xlsb"),
    ("application/vnd.ms-powerpoint.presentation.macroEnabled.12", "zip", "pptm"),
    ("application/vnd.ms-visio.drawing", "zip", "vsdx"),
    ("application/msword", "ole", "doc"),
    ("application/vnd.ms-excel", "ole", "xls"),
    ("application/vnd.ms-powerpoint", "ole", "ppt"),
    ("application/vnd.ms-outlook", "ole", "msg"),
    (_ODF + "text", "zip", "odt"),
    (_ODF + "spreadsheet", "zip", "ods"),
    (_ODF + "presentation", "zip", "odp"),
    (_ODF + "graphics", "zip", "odg"),
    ("application/vnd.apple.pages", "zip", "pages"),
    ("application/vnd.apple.numbers", "zip", "numbers"),
    ("application/vnd.apple.keynote", "zip", "key"),
    ("application/epub+zip", "zip", "epub"),
    # images
    ("image/svg+xml", "text", "svg"),
    ("image/png", "png", "png"),
    ("image/jpeg", "jpeg", "jpg jpeg jpe jfif"),
    ("image/gif", "gif", "gif"),
    ("image/webp", "webp", "webp"),
    ("image/avif", "ftyp", "avif"),
    ("image/heic", "ftyp", "heic heif"),
    ("image/jxl", "jxl", "jxl"),
    ("image/jp2", "jp2", "jp2"),
    ("image/bmp", "bmp", "bmp"),
    ("image/tiff", "tiff", "tif tiff"),
    ("image/vnd.microsoft.icon", "ico", "ico"),
    ("image/vnd.adobe.photoshop", "psd", "psd"),
    # sound and film
    ("audio/mpeg", "mp3", "mp3"),
    ("audio/wav", "wav", "wav"),
    ("audio/ogg", "ogg", "ogg oga opus"),
    ("audio/flac", "flac", "flac"),
    ("audio/aac", "aac", "aac"),
    ("audio/mp4", "ftyp", "m4a"),
    ("audio/aiff", "aiff", "aif aiff"),
    ("audio/midi", "midi", "mid midi"),
    ("video/mp4", "ftyp", "mp4 m4v"),
    ("video/webm", "ebml", "webm"),
    ("video/x-matroska", "ebml", "mkv"),
    ("video/quicktime", "quicktime", "mov qt"),
    ("video/ogg", "ogg", "ogv"),
    ("video/x-msvideo", "avi", "avi"),
    ("video/mpeg", "mpeg", "mpg mpeg"),
    ("video/mp2t", "mpegts", "m2ts"),
    # archives and packages
    ("application/zip", "zip", "zip skill mcpb whl"),
    ("application/java-archive", "zip", "jar war"),
    ("application/vnd.android.package-archive", "zip", "apk"),
    ("application/x-tar", "tar", "tar"),
    ("application/gzip", "gzip", "gz tgz"),
    ("application/x-bzip2", "bzip2", "bz2 tbz tbz2"),
    ("application/x-xz", "xz", "xz txz"),
    ("application/zstd", "zstd", "zst tzst"),
    ("application/x-lz4", "lz4", "lz4"),
    ("application/x-7z-compressed", "7z", "7z"),
    ("application/vnd.rar", "rar", "rar"),
    ("application/vnd.debian.binary-package", "deb", "deb"),
    ("application/x-rpm", "rpm", "rpm"),
    # fonts, programs, models
    ("font/ttf", "ttf", "ttf"),
    ("font/otf", "otf", "otf"),
    ("font/collection", "ttc", "ttc"),
    ("font/woff", "woff", "woff"),
    ("font/woff2", "woff2", "woff2"),
    ("application/wasm", "wasm", "wasm"),
    ("application/x-sharedlib", "elf", "so"),
    ("application/x-object", "elf", "o"),
    ("application/x-archive", "ar", "a"),
    ("application/java-vm", "class", "class"),
    ("application/vnd.microsoft.portable-executable", "pe", "exe dll"),
    ("model/gltf-binary", "glb", "glb"),
    ("model/gltf+json", "text", "gltf"),
    ("model/obj", "text", "obj"),
)

# Whole names, in lower case, that say as much as an extension; all are text.
_NAMES = {
    "makefile": "text/x-makefile",
    "gnumakefile": "text/x-makefile",
    "dockerfile": "text/x-dockerfile",
}

# Shapes that are enough without an extension. The order counts; the others are too weak for that.
_BY_SHAPE: tuple[tuple[str, str], ...] = (
    ("zip", "application/zip"),  # refined by its entries
    ("png", "image/png"),
    ("jpeg", "image/jpeg"),
    ("pdf", "application/pdf"),
    ("gzip", "application/gzip"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("bmp", "image/bmp"),
    ("tiff", "image/tiff"),
    ("ico", "image/vnd.microsoft.icon"),
    ("psd", "image/vnd.adobe.photoshop"),
    ("jp2", "image/jp2"),
    ("rtf", "application/rtf"),
    ("ps", "application/postscript"),
    ("ole", "application/x-ole-storage"),
    ("bzip2", "application/x-bzip2"),
    ("xz", "application/x-xz"),
    ("zstd", "application/zstd"),
    ("lz4", "application/x-lz4"),
    ("7z", "application/x-7z-compressed"),
    ("rar", "application/vnd.rar"),
    ("tar", "application/x-tar"),
    ("deb", "application/vnd.debian.binary-package"),
    ("ar", "application/x-archive"),
    ("rpm", "application/x-rpm"),
    ("ftyp", "video/mp4"),  # refined by its brand
    ("ebml", "video/x-matroska"),  # refined by its document type
    ("avi", "video/x-msvideo"),
    ("mpeg", "video/mpeg"),
    ("wav", "audio/wav"),
    ("ogg", "audio/ogg"),  # refined by its first stream
    ("flac", "audio/flac"),
    ("mp3", "audio/mpeg"),
    ("aiff", "audio/aiff"),
    ("midi", "audio/midi"),
    ("ttf", "font/ttf"),
    ("otf", "font/otf"),
    ("ttc", "font/collection"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("sqlite", "application/vnd.sqlite3"),
    ("parquet", "application/vnd.apache.parquet"),
    ("arrow", "application/vnd.apache.arrow.file"),
    ("avro", "application/avro"),
    ("hdf5", "application/x-hdf5"),
    ("netcdf", "application/x-netcdf"),
    ("npy", "application/x-npy"),
    ("wasm", "application/wasm"),
    ("elf", "application/x-executable"),
    ("glb", "model/gltf-binary"),
)

_BRANDS = {
    b"avif": "image/avif",
    b"avis": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"mif1": "image/heic",
    b"qt  ": "video/quicktime",
    b"M4A ": "audio/mp4",
    b"M4B ": "audio/mp4",
}

# First folder inside an Office Open XML package, and files that only such packages have.
_OFFICE_FOLDERS = {
    b"word/": _OOXML + "wordprocessingml.document",
    b"xl/": _OOXML + "spreadsheetml.sheet",
    b"ppt/": _OOXML + "presentationml.presentation",
}
_OFFICE_MARKS = (b"[Content_Types].xml", b"_rels/", b"docProps/")

# A first entry called `mimetype`, stored, names the type. Believed only for these.
_ZIP_MIMETYPES = {
    b"application/epub+zip": "application/epub+zip",
    **{
        (_ODF + kind).encode(): _ODF + kind
        for kind in ("text", "spreadsheet", "presentation", "graphics", "formula", "text-template")
    },
}

# Interpreters, by the beginning of the name in the first line.
_INTERPRETERS = (
    ("python", "text/x-python"),
    ("node", "text/javascript"),
    ("bun", "text/javascript"),
    ("deno", "text/x-typescript"),
    ("tsx", "text/x-typescript"),
    ("ts-node", "text/x-typescript"),
    ("bash", "text/x-shellscript"),
    ("sh", "text/x-shellscript"),
    ("dash", "text/x-shellscript"),
    ("zsh", "text/x-shellscript"),
    ("ksh", "text/x-shellscript"),
    ("perl", "text/x-perl"),
    ("ruby", "text/x-ruby"),
    ("php", "text/x-php"),
    ("lua", "text/x-lua"),
    ("Rscript", "text/x-r"),
)

# How other text without an extension may begin.
_OPENINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?:<\?xml[^>]{0,200}>\s*)?(?:<!--[^>]{0,400}-->\s*)?<svg[\s>]"), "image/svg+xml"),
    (re.compile(r"<!doctype html[\s>]|<html[\s>]", re.IGNORECASE), "text/html"),
    (re.compile(r"<\?xml[\s]"), "application/xml"),
    (re.compile(r"diff --git |--- [^\n]{1,400}\n\+\+\+ "), "text/x-diff"),
    (re.compile(r"BEGIN:VCALENDAR\r?\n"), "text/calendar"),
    (re.compile(r"BEGIN:VCARD\r?\n"), "text/vcard"),
)
_JSON_OPENING = re.compile(r'\{\s*"[^"\\]*"\s*:|\[\s*\{\s*"[^"\\]*"\s*:')

# Answers of libmagic that rest on a byte or two, or that say nothing: as good as no answer.
_DISTRUSTED = re.compile(
    r"text/.*|inode/.*|application/(?:x-empty|octet-stream|data|x-dosexec|x-compress.*|zlib|x-dbt|x-ibm-.*"
    r"|x-tex-tfm|postscript|vnd\.hp-HPGL)|image/(?:g3fax|x-tga|x-award-.*)|audio/(?:x-mp4a-latm|mpeg|basic)"
)
_MEDIA_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9][A-Za-z0-9.+_-]{0,126}")

# ---------------------------------------------------------------------------------------------------- lookups

_BY_EXTENSION = {ext: (mime, shape) for mime, shape, exts in _EXTENSIONS for ext in exts.split()}
_MARKS = {
    shape: tuple(tuple(alternative.items()) for alternative in alternatives)
    for shape, alternatives in _SHAPES.items()
}
_SNIFF = tuple((shape, _MARKS[shape], mime) for shape, mime in _BY_SHAPE)

_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What `file` calls text: \a \b \t \n \v \f \r ESC and everything printable. The rest are control bytes.
_NOT_CONTROL = bytes(sorted({*range(0x07, 0x0E), 0x1B, *range(0x20, 0x7F), *range(0x80, 0x100)}))
_NOT_ASCII = bytes(range(0x80, 0x100))


# ------------------------------------------------------------------------------------------------------- code


def guess(name: str, head: bytes, size: int) -> str:
    """The media type of a file: its name or path, its first bytes (up to 8 KiB are used), its whole size."""
    head = head[:HEAD_BYTES]
    claim = _claim(name)
    if not head:
        if claim and (claim[1] == "text" or size > 0):  # nothing to check the claim against
            return claim[0]
        return UNKNOWN
    if claim and _has_shape(claim[1], head, size):
        if claim[0] == "text/vcard" and head.startswith(b"##fileformat=VCF"):
            return "text/x-vcf"  # genetic variants, not visiting cards
        return claim[0]
    return _by_signature(head) or _by_text(head, size) or _by_libmagic(head, claim)


def _claim(name: str) -> tuple[str, str] | None:
    """(type, shape) that the name claims, or None."""
    base = name.rpartition("/")[2]
    stem, dot, extension = base.rpartition(".")
    if dot and stem:
        return _BY_EXTENSION.get(extension.lower()) if extension.isascii() else None
    exact = _NAMES.get(base.lower())
    return (exact, "text") if exact else None


def _has_shape(shape: str, head: bytes, size: int) -> bool:
    if shape == "text":
        return not head.startswith(b"%PDF-") and _is_text(head, size, strict=False)
    if _matches(_MARKS[shape], head):
        return True
    match shape:
        case "pdf":  # readers accept leading rubbish
            return b"%PDF-" in head[:1024]
        case "mp3":  # no tag: a frame header of layer III
            return (
                len(head) > 3
                and head[0] == 0xFF
                and head[1] & 0xE6 == 0xE2
                and head[2] & 0xF0 not in (0x00, 0xF0)
                and head[2] & 0x0C != 0x0C
            )
        case "tar":  # before POSIX: no mark, but a checksum
            return _tar_checksum(head)
        case "mpegts":
            return len(head) <= 376 and _matches((((0, b"G"), (188, b"G")),), head)
    return False


def _matches(alternatives: tuple[tuple[tuple[int, bytes], ...], ...], head: bytes) -> bool:
    for marks in alternatives:
        for at, mark in marks:
            if not head.startswith(mark, at):
                break
        else:
            return True
    return False


def _tar_checksum(head: bytes) -> bool:
    if len(head) < 512 or not head[0]:
        return False
    digits = head[148:156].strip(b" \0")
    if not digits or digits.strip(b"01234567"):
        return False
    return int(digits, 8) == sum(head[:148]) + 8 * 0x20 + sum(head[156:512])


def _is_text(head: bytes, size: int, *, strict: bool) -> bool:
    """No binary data. `strict`, for files without a name that helps: UTF-8, or else mostly ASCII."""
    for bom, encoding in _BOMS:
        if head.startswith(bom):
            try:
                text = codecs.getincrementaldecoder(encoding)().decode(head, size <= len(head))
            except UnicodeDecodeError:
                break
            return "\0" not in text
    if b"\0" in head:
        return False
    controls = len(head.translate(None, _NOT_CONTROL))
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, size <= len(head))
    except UnicodeDecodeError:
        if controls:
            return False
        return not strict or len(head.translate(None, _NOT_ASCII)) * 10 >= len(head) * 7
    return controls * 16 <= len(head)


def _by_signature(head: bytes) -> str:
    for shape, marks, mime in _SNIFF:
        if not _matches(marks, head):
            continue
        match shape:
            case "zip":
                return _zip_kind(head)
            case "ftyp":
                return _BRANDS.get(head[8:12], mime)
            case "ebml":
                return "video/webm" if b"webm" in head[:64] else mime
            case "ogg":
                return "video/ogg" if b"theora" in head[:512] else mime
        return mime
    if head.startswith(b"MZ") and len(head) >= 64:
        at = int.from_bytes(head[60:64], "little")
        if head.startswith(b"PE\0\0", at):
            return "application/vnd.microsoft.portable-executable"
    return ""


def _zip_kind(head: bytes) -> str:
    names: list[bytes] = []
    at = 0
    while (at := head.find(b"PK\3\4", at)) >= 0 and len(names) < 200:
        length = int.from_bytes(head[at + 26 : at + 28], "little")
        names.append(head[at + 30 : at + 30 + length])
        at += 30
    if names and names[0] == b"mimetype":
        extra = int.from_bytes(head[28:30], "little")
        size = int.from_bytes(head[18:22], "little")
        start = 30 + len(names[0]) + extra
        return _ZIP_MIMETYPES.get(head[start : start + min(size, 128)], "application/zip")
    if names and names[0].startswith(b"META-INF/"):
        return "application/java-archive"
    if any(name.startswith(_OFFICE_MARKS) for name in names):
        for folder, mime in _OFFICE_FOLDERS.items():
            if any(name.startswith(folder) for name in names):
                return mime
    return "application/zip"


def _by_text(head: bytes, size: int) -> str:
    if not _is_text(head, size, strict=True):
        return ""
    encoding = next((encoding for bom, encoding in _BOMS if head.startswith(bom)), "utf-8")
    text = head.decode(encoding, errors="replace")
    if text.startswith("#!"):
        return _interpreter(text)
    text = text.lstrip("\ufeff \t\r\n")
    for opening, mime in _OPENINGS:
        if opening.match(text):
            return mime
    return _json_kind(text, whole=size <= len(head)) if text[:1] in ("{", "[") else "text/plain"


def _interpreter(text: str) -> str:
    words = text[2:].split("\n", 1)[0].split()
    if words and words[0].rpartition("/")[2] == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    program = words[0].rpartition("/")[2] if words else ""
    for name, mime in _INTERPRETERS:
        if program.rstrip("0123456789.") == name:
            return mime
    return "text/plain"


def _json_kind(text: str, *, whole: bool) -> str:
    """JSON, lines of JSON, or only text that begins like it."""
    if whole and _is_json(text):
        return "application/json"
    first, newline, rest = text.partition("\n")
    if newline and rest[:1] in ("{", "[") and _is_json(first):
        return "application/x-ndjson"
    if not whole and _JSON_OPENING.match(text):
        return "application/json"
    return "text/plain"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# --------------------------------------------------------------------------------------------------- libmagic


class _Libmagic:
    """libmagic, loaded when first asked. Its own lock makes one handle safe for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded = False
        self._magic: Any = None

    def ask(self, head: bytes) -> str:
        if not self._loaded:
            with self._lock:
                if not self._loaded:
                    self._magic = _load_libmagic()
                    self._loaded = True
        if self._magic is None:
            return ""
        try:
            return str(self._magic.from_buffer(head))
        except Exception:  # a library for hostile bytes may fail in its own ways; we then know nothing
            return ""


def _load_libmagic() -> Any:
    """A handle, or None where there is no libmagic.

    The copy inside the pylibmagic package comes first, so that machines agree. It is loaded by its path:
    importing that package would change LD_LIBRARY_PATH for every child process of the host.
    """
    import ctypes  # on the first text of no known form only

    database = None
    if sys.platform == "linux":
        spec = importlib.util.find_spec("pylibmagic")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            with contextlib.suppress(OSError):
                ctypes.CDLL(os.path.join(folder, "libmagic.so.1"))  # python-magic finds it by its soname
                database = os.path.join(folder, "magic.mgc")
    try:
        import magic
    except (ImportError, OSError, AttributeError):
        return None
    for file in (database, None):
        if file is None or os.path.exists(file):
            with contextlib.suppress(Exception):  # a database of another version, or none at all
                return magic.Magic(mime=True, magic_file=file)
    return None


_libmagic = _Libmagic()


def _by_libmagic(head: bytes, claim: tuple[str, str] | None) -> str:
    """For binary data only. An answer that agrees with the name is believed in any case."""
    if _has_shape("mpegts", head, len(head)):
        return "video/mp2t"
    answer = _libmagic.ask(head)
    if claim and claim[1] != "text" and claim[0] == answer:
        return answer
    if not _MEDIA_TYPE.fullmatch(answer) or _DISTRUSTED.fullmatch(answer):
        return UNKNOWN
    return answer
