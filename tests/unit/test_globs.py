"""Output globs mean the same files everywhere, and no pattern takes long."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.errors import BadPathError
from executor.workspace.globs import Glob, compile_globs, strip_base

VARIABLES = {
    "WORKSPACE_DIR": "/workspace",
    "SKILLS_DIR": "/skills",
    "WORK_DIR": "/workspace/work",
    "OUTPUT_DIR": "/workspace/out",
    "INPUTS_DIR": "/workspace/inputs",
    "RUN_DIR": "/workspace/runs/r[1]",
    "SKILL_DIR": "/skills/x",
}


def compiled(*patterns: str, skill: str | None = None) -> list[Glob]:
    return compile_globs(patterns, variables=VARIABLES, skill=skill)


def matches(globs: Sequence[Glob], path: bytes | str) -> bool:
    return any(glob.matches(path) for glob in globs)


@pytest.mark.parametrize(
    ("pattern", "skill", "places"),
    [
        ("out/**", None, [("/workspace/out", True)]),
        ("out/**", "x", [("/workspace/out", True), ("/skills/x/out", True)]),
        ("out/*.txt", None, [("/workspace/out", False)]),
        ("out/*/a.txt", None, [("/workspace/out", True)]),
        ("out/a.txt", None, [("/workspace/out/a.txt", True)]),
        ("out", None, [("/workspace/out", True)]),
        ("out/", None, [("/workspace/out", True)]),
        ("./out//a/", None, [("/workspace/out/a", True)]),
        (".", None, [("/workspace", True)]),
        ("**/*.svg", None, [("/workspace", True)]),
        ("*.txt", "x", [("/workspace", False), ("/skills/x", False)]),
        ("diagrams/*.svg", "x", [("/workspace/diagrams", False), ("/skills/x/diagrams", False)]),
        ("skills/y/*.md", "x", [("/skills/y", False)]),
        ("skills", None, [("/skills", True)]),
        ("/workspace", "x", [("/workspace", True)]),
        ("/workspace/out/**", "x", [("/workspace/out", True)]),
        ("/workspace/skills/y/a", "x", [("/skills/y/a", True)]),
        ("/skills/y/d/*.svg", "x", [("/skills/y/d", False)]),
        ("$OUTPUT_DIR/a.txt", "x", [("/workspace/out/a.txt", True)]),
        ("${WORK_DIR}/**", "x", [("/workspace/work", True)]),
        ("$WORKSPACE_DIR", None, [("/workspace", True)]),
        ("$RUN_DIR/*", None, [("/workspace/runs/r[1]", False)]),
        ("$SKILL_DIR/d/*", "x", [("/skills/x/d", False)]),
        ("$SKILLS_DIR/y/*", "x", [("/skills/y", False)]),
        ("$INPUTS_DIR/**/a", None, [("/workspace/inputs", True)]),
        ("$OUTPUT_DIRECTORY/a", None, [("/workspace/$OUTPUT_DIRECTORY/a", True)]),
        ("${OUTPUT_DIR}x/a", None, [("/workspace/${OUTPUT_DIR}x/a", True)]),
        ("a/$OUTPUT_DIR", None, [("/workspace/a/$OUTPUT_DIR", True)]),
        ("$HOME/a", None, [("/workspace/$HOME/a", True)]),
        ("out/[Content_Types].xml", None, [("/workspace/out", False)]),
        ("out/{a,b}/c/*", None, [("/workspace/out", True)]),
        (
            "{out,work}/**",
            None,
            [("/workspace/out", True), ("/workspace/work", True), ("/workspace/{out,work}/**", False)],
        ),
        ("{out,*}/a", None, [("/workspace", True)]),
        ("!out/*", None, [("/workspace/!out", False)]),
    ],
)
def test_where_to_look(pattern: str, skill: str | None, places: list[tuple[str, bool]]) -> None:
    globs = compiled(pattern, skill=skill)
    assert [(glob.root, glob.recursive) for glob in globs] == places
    assert {glob.text for glob in globs} == {pattern}


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("out/**", ["out/a", "out/a/b/c.txt", "out/.hidden", "out/.d/x"], ["out", "outer/a", "work/a"]),
        ("out/**/a", ["out/a", "out/x/a", "out/x/y/a"], ["out/b", "out/a/b", "a"]),
        ("**/*.xml", ["a.xml", "out/[Content_Types].xml", "out/d/.xml"], ["a.XML", "a.xml/b"]),
        ("out/*", ["out/a b.txt", "out/-rf", "out/.x", "out/ü\n1.txt", "out/\n"], ["out/a/b", "out"]),
        ("out/*.txt", ["out/a.txt", "out/.txt", "out/x\ny.txt"], ["out/a.txt\n", "out/a.txtx", "out/A.TXT"]),
        ("out/a", ["out/a", "out/a/b", "out/a/b/c"], ["out/a\n", "out/A", "out/ab", "out"]),
        ("out/a/", ["out/a/b", "out/a/b/c"], ["out/a", "out/ab"]),
        ("out/*/", ["out/a/b", "out/a/b/c"], ["out/a"]),
        ("out/?", ["out/a", "out/好", "out/\n"], ["out/ab", "out/"]),
        ("out/[a-c]x", ["out/ax", "out/cx", "out/[a-c]x"], ["out/dx", "out/-x", "out/Ax"]),
        ("out/[!a]", ["out/b", "out/!", "out/\n", "out/[!a]"], ["out/a"]),
        ("out/[^a]", ["out/b", "out/^"], ["out/a"]),
        ("out/[]a]", ["out/]", "out/a"], ["out/b"]),
        ("out/[a-]", ["out/a", "out/-"], ["out/b"]),
        ("out/[a\\-c]", ["out/a", "out/-", "out/c"], ["out/b"]),
        ("out/[z-a]", ["out/[z-a]"], ["out/z", "out/a", "out/-"]),
        ("out/[!z-a]", ["out/z", "out/a"], ["out/zz"]),
        ("out/[a", ["out/[a"], ["out/a"]),
        ("out/[a/b]", ["out/[a/b]"], ["out/a", "out/b"]),
        ("out/{a,b}.txt", ["out/a.txt", "out/b.txt", "out/{a,b}.txt"], ["out/c.txt", "out/a,b.txt"]),
        ("out/{a,{b,c}d}", ["out/a", "out/bd", "out/cd"], ["out/b", "out/ad"]),
        ("out/{a,}x", ["out/ax", "out/x"], ["out/bx"]),
        ("out/{a}", ["out/{a}"], ["out/a"]),
        ("out/{1..3}", ["out/1", "out/3", "out/{1..3}"], ["out/4"]),
        ("a{b,c}.txt", ["ab.txt", "ac.txt", "a{b,c}.txt"], ["abc.txt"]),
        ("{out,work}/*", ["out/a", "work/a", "{out,work}/*"], ["inputs/a"]),
        ("out/x*y", ["out/x*y", "out/xy", "out/xzy"], ["out/x/y"]),
        ("out/x\\*y", ["out/x*y", "out/x\\*y"], ["out/xzy"]),
        ("out/\\{a,b}", ["out/{a,b}"], ["out/a"]),
        ("out/a\\", ["out/a\\"], ["out/a"]),
        ("[Content_Types].xml", ["[Content_Types].xml", "C.xml"], ["Content_Types.xml"]),
        ("[x]/", ["[x]/a", "x/a"], ["[x]", "x"]),
        ("**", ["a", "out/a", "x/y/z"], []),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("-*", ["-rf"], ["a"]),
        ("!a", ["!a"], ["a", "b"]),
        ("$OUTPUT_DIR/*.txt", ["out/a.txt"], ["work/a.txt"]),
        ("{$OUTPUT_DIR,$WORK_DIR}/a", ["out/a", "work/a"], ["inputs/a"]),
        ("$OUTPUT_DIRECTORY/a", ["$OUTPUT_DIRECTORY/a"], ["out/a", "out/ECTORY/a"]),
        ("$RUN_DIR/*", ["runs/r[1]/a"], ["runs/r1/a"]),
        ("out/\udcff*", ["out/\udcffa"], ["out/a"]),
        ("out/a\nb", ["out/a\nb"], ["out/a"]),
    ],
)
def test_which_files(pattern: str, yes: list[str], no: list[str]) -> None:
    globs = compiled(pattern)
    for path in yes:
        assert matches(globs, "/workspace/" + path), path
        assert matches(globs, ("/workspace/" + path).encode("utf-8", "surrogateescape")), path
        assert any(
            ("/workspace/" + path + "/").startswith(glob.root + "/")
            and (glob.recursive or "/" not in ("/workspace/" + path)[len(glob.root) + 1 :])
            for glob in globs
        ), f"{path} would not be listed"
    for path in no:
        assert not matches(globs, "/workspace/" + path), path


def test_bytes_that_are_not_utf_8() -> None:
    assert matches(compiled("out/**"), b"/workspace/out/\xff\xfe")
    assert matches(compiled("out/?"), b"/workspace/out/\xff")


@pytest.mark.parametrize(
    "path", ["", "out/a", "/workspace/out/../a", "/workspace//a", "/workspace/out/./a", "/"]
)
def test_a_path_in_another_form_never_matches(path: str) -> None:
    assert not matches(compiled("**", "out/**", "/workspace/**"), path)


def test_with_a_skill_both_places_count() -> None:
    globs = compiled("out/*.svg", skill="x")
    assert matches(globs, "/workspace/out/a.svg")
    assert matches(globs, "/skills/x/out/a.svg")
    assert not matches(globs, "/skills/y/out/a.svg")


def test_the_same_place_for_the_same_text_comes_once() -> None:
    assert len(compiled("out/**", "out/**")) == 1
    assert [glob.text for glob in compiled("out/**", "out/*")] == ["out/**", "out/*"]


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("../a", ".."),
        ("out/../../etc", ".."),
        ("out/..", ".."),
        ("out/\\.\\./a", ".."),
        ("out/{.,..}/a", ".."),
        ("/workspace/../etc/passwd", ".."),
        ("/etc/passwd", "only /workspace and /skills"),
        ("/", "only /workspace and /skills"),
        ("/**", "only /workspace and /skills"),
        ("/workspaces/a", "only /workspace and /skills"),
        ("/work*/a", "only /workspace and /skills"),
        ("\\/etc/passwd", "only /workspace and /skills"),
        ("{/etc,out}/a", "only /workspace and /skills"),
        ("a" * 4097, "4096"),
        ("{a,b}" * 10, "1000"),
        ("{1..100000000}", "1000"),
        ("{a," * 1000 + "}" * 1000, "1000"),
        ("{" * 4000, "nested"),
        ("a" * 4000 + "{b,c}" * 9, "65536"),
        ("a/*/" * 300 + "b", "256"),
        ("*/" * 200 + "{1..30}", "4096"),
    ],
)
def test_bad_patterns(pattern: str, word: str) -> None:
    with pytest.raises(BadPathError, match=word.replace(".", r"\.")):
        compiled(pattern)


def test_a_known_variable_without_a_value_is_an_error() -> None:
    with pytest.raises(BadPathError, match="SKILL_DIR"):
        compile_globs(["$SKILL_DIR/a"], variables={}, skill=None)


def test_a_variable_cannot_lead_out() -> None:
    with pytest.raises(BadPathError, match="only /workspace"):
        compile_globs(["$HOME/a"], variables={"HOME": "/root"}, skill=None)


@pytest.mark.parametrize("skill", ["", "..", "a/b", "a\0"])
def test_a_skill_is_one_component(skill: str) -> None:
    with pytest.raises(BadPathError):
        compiled("a", skill=skill)


def test_a_thousand_alternatives_are_allowed() -> None:
    globs = compiled("out/f{1..1000}*.txt", skill="x")
    assert matches(globs, "/workspace/out/f1000.txt")
    assert matches(compiled("out/{1..1000}.txt", skill="x"), "/skills/x/out/1000.txt")


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a*a*a*a*a*a*a*b", "a" * 255),
        ("*a" * 2040 + "*b", "a" * 4000),
        ("?*" * 2000 + "b", "a" * 4000),
        ("*[a-z]*[!b]" * 350 + "b", "a" * 4000),
        ("[" * 4000, "a"),
        ("[" + "a-" * 2000, "a"),
        ("[" + "a-b" * 1300 + "]", "c"),
        ("**/" * 1300 + "b", "a/" * 2000 + "a"),
        ("**/a/" * 250 + "b", "a/" * 2000 + "a"),
        ("**/" + "a*/" * 250 + "b", "a/" * 2000 + "a"),
        ("**/*a*a*a*/**/*b*b/" * 60 + "c", ("ab" * 100 + "/") * 20 + "a"),
        ("{" + ",".join(f"**/a{n}*/b" for n in range(340)) + "}", "a/" * 100 + "a"),
    ],
)
def test_no_pattern_takes_long(pattern: str, path: str) -> None:
    start = time.perf_counter()
    assert not matches(compiled(pattern), "/workspace/" + path)
    assert time.perf_counter() - start < 5


# A matcher that tries everything, written apart from the real one.


def reference(pattern: str, path: str) -> bool:
    def one(p: str, s: str) -> bool:
        if not p:
            return not s
        if p[0] == "*":
            return any(one(p[1:], s[skip:]) for skip in range(len(s) + 1))
        return bool(s) and (p[0] == "?" or p[0] == s[0]) and one(p[1:], s[1:])

    def all_(p: list[str], s: list[str]) -> bool:
        if not p:
            return not s
        if p == ["**"]:
            return bool(s)
        if p[0] == "**":
            return any(all_(p[1:], s[skip:]) for skip in range(len(s) + 1))
        return bool(s) and one(p[0], s[0]) and all_(p[1:], s[1:])

    if path == pattern:
        return True
    if "*" not in pattern and "?" not in pattern and path.startswith(pattern + "/"):
        return True
    return all_(pattern.split("/"), path.split("/"))


COMPONENT = st.one_of(st.just("**"), st.text("ab*?", min_size=1, max_size=5))
PATTERN = st.lists(COMPONENT, min_size=1, max_size=4).map("/".join)
PATH = st.lists(st.text("ab*", min_size=1, max_size=5), min_size=1, max_size=5).map("/".join)


@settings(deadline=None)
@given(PATTERN, PATH)
def test_as_the_reference_says(pattern: str, path: str) -> None:
    assert matches(compiled(pattern), "/workspace/" + path) == reference(pattern, path)


@settings(deadline=None)
@given(st.lists(PATTERN, min_size=2, max_size=4), PATH)
def test_braces_are_a_union(patterns: list[str], path: str) -> None:
    braces = "{" + ",".join(patterns) + "}"
    expected = any(reference(pattern, path) for pattern in patterns)
    assert matches(compiled(braces), "/workspace/" + path) == expected


@settings(deadline=None)
@given(st.text(min_size=1, max_size=20))
def test_the_text_itself_matches_or_is_refused(name: str) -> None:
    if "/" in name or name in (".", "..") or "\0" in name:
        return
    try:
        globs = compiled("out/" + name)
    except BadPathError:
        return  # braces that stand for too much, or for `..`
    assert matches(globs, "/workspace/out/" + name)


@settings(deadline=None)
@given(st.text("ab*?[]!^-{,}\\/.$\n", max_size=30), PATH)
def test_any_text_is_a_pattern_or_a_bad_path(pattern: str, path: str) -> None:
    try:
        globs = compiled(pattern, skill="x")
    except BadPathError:
        return
    for glob in globs:
        assert glob.root.startswith(("/workspace", "/skills"))
        assert ".." not in glob.root.split("/")
        glob.matches("/workspace/" + path)


@settings(deadline=None)
@given(PATTERN, PATH)
def test_what_matches_lies_where_we_look(pattern: str, path: str) -> None:
    path = "/workspace/" + path
    globs = compiled(pattern)
    if matches(globs, path):
        assert any(
            path == glob.root
            or (
                path.startswith(glob.root + "/") and (glob.recursive or "/" not in path[len(glob.root) + 1 :])
            )
            for glob in globs
        )


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/workspace/out/a", "out/a"),
        ("/workspace", "."),
        ("/skills/x/y", "skills/x/y"),
        ("/skills", "skills"),
        ("/workspace/a\nb", "a\nb"),
    ],
)
def test_strip_base(path: str, shown: str) -> None:
    assert strip_base(path) == shown


@pytest.mark.parametrize("path", ["/etc/passwd", "/workspaces/a", "out/a", "", "/skillsx"])
def test_strip_base_of_elsewhere(path: str) -> None:
    with pytest.raises(BadPathError):
        strip_base(path)
