"""What the tolerant SKILL.md reader makes of files as people write them, and what it refuses."""

from __future__ import annotations

import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.errors import SkillUnreadableError
from executor.skills import document
from executor.skills.document import MAX_BYTES, MAX_DEPTH, SkillDocument, parse, slug


@pytest.fixture(params=["c", "python"], autouse=True)
def yaml_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test holds with libyaml and without it."""
    if request.param == "python":
        monkeypatch.setattr(document, "_Loader", yaml.BaseLoader)


def read(text: str, folder: str = "folder") -> SkillDocument:
    return parse(text.encode(), folder=folder)


def front(text: str) -> SkillDocument:
    return read(f"---\nname: n\n{text}\n---\nbody\n")


def test_a_plain_skill_is_read_without_warnings() -> None:
    """TH-03, WN-02, VS-16"""
    assert read(
        "---\nname: calc\ndescription: Adds numbers.\nlicense: MIT\ncompatibility: Python 3.9+\n"
        "allowed-tools: Read, Bash(git *)\nmetadata:\n  author: me\n  version: 1.10\nhomepage: https://x.y\n"
        "---\n\n# Calc\n\nRun it.\n",
        folder="calc",
    ) == SkillDocument(
        name="calc",
        slug="calc",
        description="Adds numbers.",
        body="# Calc\n\nRun it.\n",
        license="MIT",
        compatibility="Python 3.9+",
        allowed_tools=("Read", "Bash(git *)"),
        metadata={"author": "me", "version": "1.10"},
        extra={"homepage": "https://x.y"},
        warnings=(),
    )


OK = "---\nname: n\ndescription: d\n---\nbody\n"
WRAPS = {
    "as it should be": (OK, 0),
    "byte order mark": ("\ufeff" + OK, 0),
    "CRLF": (OK.replace("\n", "\r\n"), 0),
    "byte order mark and CRLF": ("\ufeff" + OK.replace("\n", "\r\n"), 0),
    "old Mac line ends": (OK.replace("\n", "\r"), 0),
    "blank lines first": ("\n  \n\n" + OK, 0),
    "blanks behind the fences": (OK.replace("---\n", "---  \t\n"), 0),
    "all keys indented": ("---\n  name: n\n  description: d\n---\nbody\n", 0),
    "flow style": ('---\n{"name": "n",\n"description": "d"}\n---\nbody\n', 0),
    "wrapped in a code fence": (f"```skill\n{OK}```\n", 1),
    "wrapped in a tilde fence": (f"~~~\n{OK}~~~", 1),
    "front matter alone wrapped": ("```yaml\n---\nname: n\ndescription: d\n---\n```\nbody\n", 1),
    "closing fence of many dashes": ("---\nname: n\ndescription: d\n-----\nbody\n", 0),
    "closing fence glued to text": ("---\nname: n\ndescription: d\n---body\n", 1),
}


@pytest.mark.parametrize("text, warnings", WRAPS.values(), ids=WRAPS)
def test_the_front_matter_is_found_in_whatever_it_is_wrapped(text: str, warnings: int) -> None:
    """trpc-1.1.3, VS-04, trpc-6"""
    skill = read(text)
    assert (skill.name, skill.description, skill.body.rstrip()) == ("n", "d", "body")
    assert len(skill.warnings) == warnings, skill.warnings


@pytest.mark.parametrize(
    "text, body",
    [
        ("# Title\n\n---\n\ntext\n", "# Title\n\n---\n\ntext\n"),
        ("", ""),
        ("---\nname: n\ndescription: never closed\n", "---\nname: n\ndescription: never closed\n"),
        ("---\nSome prose.\n---\nmore\n", "---\nSome prose.\n---\nmore\n"),
        ("```\n# only a code block\n```\n", "```\n# only a code block\n```\n"),
    ],
    ids=["no front matter", "empty file", "unclosed fence", "prose between rules", "code block"],
)
def test_without_front_matter_the_whole_text_is_the_body(text: str, body: str) -> None:
    """trpc-1.1.3, trpc-2, VS-05"""
    skill = read(text, folder="plain")
    assert (skill.name, skill.description, skill.body) == ("plain", "", body)
    assert skill.warnings


def test_a_file_may_end_in_the_closing_fence() -> None:
    """trpc-6"""
    assert read("---\nname: n\ndescription: d\n---").description == "d"


def test_a_glued_heading_is_kept_as_body() -> None:
    skill = read("---\nname: n\ndescription: d\n---# Title\ntext\n\n---\nmore\n")
    assert skill.body == "# Title\ntext\n\n---\nmore\n"
    assert "'# Title'" in skill.warnings[0]


DESCRIPTIONS = {
    "hash": ("uses C# and #tags", "uses C# and #tags", 1),
    "hash at the start": ("#tags first", "#tags first", 1),
    "hash in wrapped text": (
        "sample names and\n  more  ##contig lines",
        "sample names and more  ##contig lines",
        1,
    ),
    "hash, then more text": ("names and ##contig\n  lines", "names and ##contig lines", 1),
    "hash in quotes": ('"C # D"', "C # D", 0),
    "colon": ("Use when: always", "Use when: always", 1),
    "colon in wrapped text": ("Reads files.\n  Use when: always", "Reads files. Use when: always", 1),
    "double quotes": ('"quoted: text"', "quoted: text", 0),
    "single quotes": ("'it''s'", "it's", 0),
    "quotes inside broken quotes": ('"say "hi" now"', 'say "hi" now', 1),
    "bold": ("**Bold** text", "**Bold** text", 1),
    "bold in paragraphs": ("**Bold**  \nAt the margin.\n\nMore.", "**Bold** At the margin.\nMore.", 1),
    "backtick": ("`code` first", "`code` first", 1),
    "percent": ("%d first", "%d first", 1),
    "at sign": ("@me first", "@me first", 1),
    "rule inside": ("a --- b---c", "a --- b---c", 0),
    "literal block": ("|\n  one\n  two", "one\ntwo", 0),
    "folded block": (">\n  one\n  two", "one two", 0),
    "folded and chomped": (">-\n  one\n  two\n\n  three", "one two\nthree", 0),
    "block with tabs": ("|\n\tone\n\ttwo", "one\ntwo", 1),
    "rule inside a block": ("|\n  one\n  ---\n  two", "one\n---\ntwo", 0),
    "to do": ("[TODO: say what it does]", "[TODO: say what it does]", 1),
    "placeholder": ("{{ description }}", "{{ description }}", 1),
    "list": ("\n  - one\n  - two", "one, two", 1),
    "list below text": ("Does:\n- one\n- two", "Does:\n- one\n- two", 1),
    "list below plain text": ("Does it all\n- one\n- two", "Does it all\n- one\n- two", 1),
    "number": ("8004", "8004", 0),
    "yes": ("yes", "yes", 0),
    "null": ("null", "", 1),
    "empty": ("", "", 1),
    "bare dash": ("-", "-", 1),
    "control character": ("a\x01b", "ab", 1),
    "line separator": ("a\u2028b", "a b", 0),
    "escaped control character": ('"a\\0b"', "ab", 0),
    "alias with text": ("*note* this", "*note* this", 1),
}


@pytest.mark.parametrize("written, meant, warnings", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_a_description_is_what_its_author_meant(written: str, meant: str, warnings: int) -> None:
    """trpc-3, trpc-4, ref-10"""
    skill = front(f"description: {written}\nversion: 1.0")
    assert skill.description == meant
    assert (skill.name, skill.extra, skill.body) == ("n", {"version": "1.0"}, "body\n")
    assert len(skill.warnings) == warnings, skill.warnings


@pytest.mark.parametrize(
    "text",
    [
        "1.10",
        "1.0",
        "007",
        "0x1F",
        "1e3",
        "2026-01-31",
        "2026-01-31T10:00:00Z",
        "true",
        "No",
        "1_000",
        "12:30",
    ],
)
def test_scalars_stay_as_they_were_written(text: str) -> None:
    skill = front(f"description: d\nversion: {text}\nmetadata:\n  v: {text}\n  l: [{text}]")
    assert skill.extra == {"version": text}
    assert skill.metadata == {"v": text, "l": [text]}


def test_a_comment_behind_a_value_is_a_comment() -> None:
    skill = front("description: d\nversion: 1.0  # bump me")
    assert (skill.extra, skill.warnings) == ({"version": "1.0"}, ())


NAMES = {
    "own name": ("name: other", "other"),
    "none": ("description: d", "folder"),
    "empty": ("name:", "folder"),
    "null": ("name: ~", "folder"),
    "nested only": ("metadata:\n  name: other", "folder"),
    "nested first": ("metadata: {name: other}\nname: own", "own"),
    "number": ("name: 8004", "8004"),
    "Cyrillic": ("name: Чиновник РФ", "Чиновник РФ"),
    "slash": ("name: CI/CD Pipeline", "CI/CD Pipeline"),
    "escape": ("name: ../../evil", "../../evil"),
    "two lines": ("name: >\n  a\n  b", "a b"),
    "capital key": ("Name: own", "own"),
    "both spellings": ("Name: Other\nname: own", "own"),
    "no blank behind the colon": ("name:own\ndescription: a: b", "own"),
}


@pytest.mark.parametrize("text, name", NAMES.values(), ids=NAMES)
def test_the_name_is_the_top_level_one_else_the_folder(text: str, name: str) -> None:
    """trpc-1.1.4, trpc-5, ref-10"""
    skill = read(f"---\n{text}\n---\n")
    assert (skill.name, skill.slug) == (name, "folder")


def test_a_folder_name_that_is_not_utf8_gives_a_printable_name() -> None:
    assert read("text", folder="caf\udce9").name == "caf?"


def test_a_name_like_a_path_is_told() -> None:
    """trpc-7"""
    assert any("'../../evil' looks like a path" in w for w in read("---\nname: ../../evil\n---\n").warnings)


TOOLS = {
    "commas": ("Read, Write,Bash", ("Read", "Write", "Bash")),
    "blanks": ("Read  Write", ("Read", "Write")),
    "one": ("Read", ("Read",)),
    "parentheses": (
        "Bash(node scripts/x.ts *), Bash(git add, commit) Read",
        ("Bash(node scripts/x.ts *)", "Bash(git add, commit)", "Read"),
    ),
    "blank before parentheses": ("Bash (git *), Read", ("Bash(git *)", "Read")),
    "never closed": ("Read, Bash(git *", ("Read", "Bash(git *")),
    "flow list": ("[Read, 'Bash(a, b)']", ("Read", "Bash(a, b)")),
    "block list": ("\n  - Read\n  - Bash(node x.ts *)", ("Read", "Bash(node x.ts *)")),
    "list at the margin": ("\n- Read\n- Write", ("Read", "Write")),
    "map": ("{Read: true}", ("Read",)),
    "empty list": ("[]", ()),
    "nothing": ("", ()),
    "star": ("*", ("*",)),
}


@pytest.mark.parametrize("written, tools", TOOLS.values(), ids=TOOLS)
def test_allowed_tools_are_split_where_a_person_would(written: str, tools: tuple[str, ...]) -> None:
    """PA-06"""
    assert front(f"description: d\nallowed-tools: {written}").allowed_tools == tools


@pytest.mark.parametrize(
    "written, text",
    [
        ("Python 3.9+", "Python 3.9+"),
        ("[linux, macos]", "linux, macos"),
        ('{os: [linux, macos], python: ">=3.9"}', "os: linux, macos; python: >=3.9"),
        ("\n  os: linux\n  needs:\n    bin: git\n    net: no", "os: linux; needs: (bin: git; net: no)"),
        ("", ""),
    ],
)
def test_compatibility_is_text_whatever_its_shape(written: str, text: str) -> None:
    assert front(f"description: d\ncompatibility: {written}").compatibility == text


METADATA = {
    "map": ("\n  a: 1.0\n  b: {c: [d, 2]}", {"a": "1.0", "b": {"c": ["d", "2"]}}, {}),
    "JSON on one line": (
        '{"oc": {"emoji": "x", "os": ["linux"]}}',
        {"oc": {"emoji": "x", "os": ["linux"]}},
        {},
    ),
    "JSON, brace at the margin": ('{\n"a": {"b": "c"}\n}', {"a": {"b": "c"}}, {}),
    "JSON with an escaped emoji": ('{"e": "\\ud83d\\ude80"}', {"e": "\U0001f680"}, {}),
    "JSON in a string": ('\'{"a": {"b": 1.50}}\'', {"a": {"b": "1.50"}}, {}),
    "null": ("null", {}, {}),
    "nothing": ("", {}, {}),
    "text": ("just text", {}, {"metadata": "just text"}),
    "list": ("[a, b]", {}, {"metadata": ["a", "b"]}),
    "broken JSON": ('{"a": {"b": 1}', {}, {"metadata": '{"a": {"b": 1}'}),
}


@pytest.mark.parametrize("written, metadata, extra", METADATA.values(), ids=METADATA)
def test_metadata_is_a_map_and_nothing_is_lost(written: str, metadata: object, extra: object) -> None:
    skill = front(f"description: d\nmetadata: {written}")
    assert (skill.metadata, skill.extra, skill.description) == (metadata, extra, "d")
    assert bool(skill.warnings) == bool(extra)


def test_unknown_keys_are_kept() -> None:
    skill = front(
        "description: d\nrequires: {bins: [git]}\nmetadata.clawdbot: x\nuser-invocable: true\nключ: знач"
    )
    assert skill.extra == {
        "requires": {"bins": ["git"]},
        "metadata.clawdbot": "x",
        "user-invocable": "true",
        "ключ": "знач",
    }


def test_of_a_repeated_key_the_last_counts_and_it_is_told() -> None:
    for broken in ("", "\nbad: a: b"):
        skill = read(f"---\nname: a\ndescription: one\nname: b\ndescription: two # three{broken}\n---\n")
        assert (skill.name, skill.description) == ("b", "two # three")
        assert sum("is repeated" in warning for warning in skill.warnings) == 2


def test_one_bad_line_costs_one_value_its_structure() -> None:
    skill = read(
        "---\nname: 'n'\ndescription: Use when: always\nallowed-tools: [Read, Write]\n"
        "metadata:\n  a: {b: c}\nbad: [1, 2\n# comment\nlast: >-\n  x\n  y\n---\nbody\n"
    )
    assert (skill.name, skill.description) == ("n", "Use when: always")
    assert skill.allowed_tools == ("Read", "Write")
    assert skill.metadata == {"a": {"b": "c"}}
    assert skill.extra == {"bad": "[1, 2", "last": "x y"}
    assert skill.body == "body\n"


def test_body_text_above_a_late_rule_is_not_swallowed() -> None:
    skill = read("---\nname: n\ndescription: d\n\n# Title\n\nUse it with `code`.\n\n---\n\nmore\n")
    assert (skill.name, skill.description) == ("n", "d")
    assert skill.body == "# Title\n\nUse it with `code`.\n\n---\n\nmore\n"


def test_bytes_that_are_not_utf8_are_replaced_and_told() -> None:
    skill = parse(b"---\nname: caf\xe9\ndescription: d\n---\nbody \xff\n", folder="f")
    assert (skill.name, skill.body) == ("caf\ufffd", "body \ufffd\n")
    assert "byte 13" in skill.warnings[0]


def levels(depth: int) -> str:
    return "---\ndescription: d\nx: " + "[" * (depth - 1) + "]" * (depth - 1) + "\n---\n"


BOMB = "---\na: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n---\n"
REFUSED = {
    "too large": (b"a" * (MAX_BYTES + 1), "larger than 1,048,576 bytes"),
    "NUL": (b"---\nname: a\x00b\n---\n", "NUL byte at offset 11"),
    "RTF": (b"{\\rtf1\\ansi}", "RTF"),
    "PDF": (b"%PDF-1.7\n", "PDF"),
    "zip": (b"PK\x03\x04abc", "zip"),
    "UTF-16": (OK.encode("utf-16"), "UTF-16"),
    "control characters": (bytes(range(1, 32)) * 4, "binary"),
    "alias bomb": (BOMB.encode(), "YAML anchor on line 1 of it: '&a'"),
    "alias": (b"---\nname: *a\n---\n", "YAML alias on line 1 of it: '*a'"),
    "tag": (b"---\nname: n\nx: !!python/object:os.system y\n---\n", "YAML tag on line 2 of it"),
    "depth": (levels(MAX_DEPTH + 1).encode(), "deeper than 20 levels"),
    "great depth": (b"---\nx: " + b"[" * 100_000 + b"\n---\n", "deeper than 20 levels"),
    "many nodes": (b"---\nx: [" + b"a," * 20_000 + b"]\n---\n", "more than 10,000 YAML nodes"),
    "many broken keys": (
        b"---\n" + b"".join(b"k%d: **\n" % n for n in range(501)) + b"---\n",
        "more than 500 keys",
    ),
}


@pytest.mark.parametrize("data, reason", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    started = time.monotonic()
    with pytest.raises(SkillUnreadableError) as caught:
        parse(data, folder="odd one")
    assert reason in caught.value.message
    assert "'odd one'" in caught.value.message
    assert caught.value.hint
    assert time.monotonic() - started < 5


def test_the_greatest_allowed_depth_and_size_load() -> None:
    assert read(levels(MAX_DEPTH)).description == "d"
    assert len(parse(OK.encode().ljust(MAX_BYTES), folder="f").body) == MAX_BYTES - len(OK) + len("body\n")


SLUGS = [
    ("calc", "calc"),
    ("My_Skill-1.0", "My_Skill-1.0"),
    ("google_admin-automation", "google_admin-automation"),
    ("8004", "8004"),
    ("My Skill", "my-skill"),
    ("  When  Stuck - Now ", "when-stuck---now"),
    ("-21risk-automation", "21risk-automation-9a742f83"),
    (".hidden", "hidden-16924190"),
    ("CI/CD Pipeline", "ci-cd-pipeline-fb581466"),
    ("../../evil", "evil-0fbfd372"),
    ("kradleverse:act", "kradleverse-act-a306ab50"),
    ("Café", "cafe-73473dcc"),
]


@pytest.mark.parametrize("text, expected", SLUGS)
def test_a_slug_keeps_what_is_safe(text: str, expected: str) -> None:
    assert slug(text) == expected


@pytest.mark.parametrize(
    "text", ["", ".", "..", "/", "天气", "...", "a" * 65, "\ud800", "\n", "a\n", "名" * 500]
)
def test_a_slug_is_always_a_safe_path_component(text: str) -> None:
    assert len(slug(text)) <= 64
    assert slug(text)[0].isalnum()
    assert slug(text).isascii()
    assert set(slug(text)).isdisjoint("/\\\n :")


def test_names_that_lose_letters_do_not_fall_together() -> None:
    names = ["天气", "地图", "a" * 65, "a" * 66, "é", "è", "a/b", "a:b", ".", "..", ""]
    assert len({slug(name) for name in names}) == len(names)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=100))
def test_any_text_has_a_slug_that_is_its_own_slug(text: str) -> None:
    assert document._SAFE_NAME.fullmatch(slug(text))
    assert slug(slug(text)) == slug(text)


WORDS = ("---", "--- ", "name: ", "description: ", "metadata:", "allowed-tools: ", "x", "~", "0", "é", "天")
MARKS = (
    "- ",
    "* ",
    "&a ",
    "*a ",
    "!!x ",
    "# ",
    ": ",
    ">-\n",
    "|\n",
    "```\n",
    "\\ud83d\\ude80",
    *"[]{}(),%@\\\"'",
)
BLANKS = ("\n", "\r\n", "\t", "  ", "\ufeff", "\x01", "\x85")
FRAGMENTS = st.sampled_from(WORDS + MARKS + BLANKS)
FILES = st.one_of(
    st.binary(max_size=200),
    st.lists(FRAGMENTS, max_size=60).map(lambda parts: "".join(parts).encode()),
    st.lists(FRAGMENTS, max_size=40).map(
        lambda parts: ("---\nname: n\n" + "".join(parts) + "\n---\nb").encode()
    ),
)


def is_value(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_value(item) for key, item in value.items())
    return all(map(is_value, value)) if isinstance(value, list) else isinstance(value, str)


@settings(max_examples=600, deadline=None)
@given(FILES)
def test_any_bytes_give_a_document_or_a_reason(data: bytes) -> None:
    try:
        skill = parse(data, folder="f")
    except SkillUnreadableError as error:
        assert error.message and error.hint
        return
    assert skill.name
    assert is_value(skill.metadata) and is_value(skill.extra)
    for text in (skill.name, skill.description, skill.body, *skill.allowed_tools, *skill.warnings):
        text.encode()
