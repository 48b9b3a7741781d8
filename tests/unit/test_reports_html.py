"""The HTML report: what stands in it, and that hostile text in it neither runs nor loads anything.

The last tests open it in a real headless Chromium, where there is one (Debian's package `chromium`).
"""

from __future__ import annotations

import base64
import http.server
import os
import re
import struct
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from executor.models import ExecResult, OutputFile
from executor.testing.matching import Mismatch
from executor.testing.report_html import MAX_OUTPUT, html
from executor.testing.results import CaseResult, Coverage, Report
from tests.unit.browser import PROGRAM, Chromium

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def file(path: str, content: bytes | str, mime: str) -> OutputFile:
    data = content.encode() if isinstance(content, str) else content
    try:
        text, encoding = data.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(data).decode(), "base64"
    values = {"path": path, "size": len(data), "mime": mime, "sha256": "ab" * 32, "content": text}
    return OutputFile.model_validate({**values, "encoding": encoding})


def report(*files: OutputFile, text: str = "", name: str = "a case", verdict: str = "failed") -> Report:
    result = ExecResult(
        status="ok", exit_code=0, stdout=text, stderr=text, files=list(files), runtime="local"
    )
    case = CaseResult.model_validate(
        {
            "id": f"demo::{name}",
            "skill": "demo",
            "name": name,
            "runtime": "local",
            "file": "skills/demo/tests/a.yaml",
            "line": 3,
            "command": f"echo {name}",
            "verdict": verdict,
            "attempts": 1,
            "duration_ms": 1230,
            "mismatches": [Mismatch(where="stdout", expected="'x'", got=repr(name), diff=f"-{name}\n+b")],
            "result": result,
        }
    )
    return Report(
        version="1",
        started="2026-01-02T03:04:05+00:00",
        results=[case],
        coverage=[Coverage(skill="demo", not_run=[name])],
        environment={"python": "3.11"},
    )


def page(*files: OutputFile, text: str = "", name: str = "a case", verdict: str = "failed") -> str:
    return html(report(*files, text=text, name=name, verdict=verdict)).decode("utf-8")


class Tags(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_case_is_there_with_its_reason_and_its_facts() -> None:
    text = page(text="hello\n")
    for part in (
        "<li>stdout: expected &#x27;x&#x27;, got &#x27;a case&#x27;</li>",
        '<span class="add">+b</span>',
        "skills/demo/tests/a.yaml:3",
        "<h3>stdout, 0 bytes</h3><pre>hello\n</pre>",
        "demo: no case runs <code>a case</code>",
        "<tr><th>python</th><td>3.11</td></tr>",
        '<details class="case" data-state="failed"',
        "<title>Skill tests: 1 failed</title>",
    ):
        assert part in text


def test_colours_become_classes_and_other_controls_are_shown() -> None:
    text = page(
        text="\x1b[1;31mred\x1b[0m \x1b[38;5;2mgreen\x1b[39m \x1b[48;2;1;2;3mon\x1b[m\x1b[2J\x07 \x1b]0;t\x07"
    )
    assert (
        '<pre><span class="b f1">red</span> <span class="f2">green</span> <span class="g">on</span>' in text
    )
    assert "\\x1b[2J\\x07 \\x1b]0;t\\x07" in text
    assert "\x1b" not in text


def test_files_have_previews() -> None:
    csv = "a;b\n1;<b>\n" + "".join(f"{n};x\n" for n in range(60))
    text = page(
        file("out/p.png", PNG, "image/png"),
        file("out/p.svg", "<svg xmlns='http://www.w3.org/2000/svg' width='3' height='2'/>", "image/svg+xml"),
        file("out/t.csv", csv, "text/csv"),
        file("out/d.json", '{"a": [1, {"b": "<i>"}]}', "application/json"),
        file("out/n.txt", "plain", "text/plain"),
        file("out/x.bin", b"\xff\xfe\x00", "application/octet-stream"),
    )
    assert f'src="data:image/png;base64,{base64.b64encode(PNG).decode()}"' in text
    assert "3 by 2 pixels" in text
    assert "<tr><th>a</th><th>b</th></tr><tr><td>1</td><td>&lt;b&gt;</td></tr>" in text
    assert "the first 50 of 62 lines" in text
    assert "<summary>&quot;a&quot;: [2]</summary><div>0: 1</div>" in text
    assert "<div>&quot;b&quot;: &quot;&lt;i&gt;&quot;</div>" in text
    assert "<pre>plain</pre>" in text
    assert "no preview" in text


def test_a_picture_that_claims_to_be_huge_or_is_none_is_not_shown() -> None:
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 60_000, 60_000)
    text = page(file("a.png", bomb, "image/png"), file("b.png", b"nothing", "image/png"))
    assert "60,000 by 60,000 pixels: too large to show" in text
    assert "<img" not in text


HOSTILE = (
    "</pre></script></style><script>document.title='pwned'</script>"
    "<img src=x onerror=\"document.title='pwned'\"> ' \" onmouseover=alert(1) \u202e\u2066evil"
    " \x1b[31m\x00\ufdd0"
    "<iframe src='ORIGIN/frame'></iframe><link rel=stylesheet href='ORIGIN/css'><base href='ORIGIN/'>"
    "<meta http-equiv=refresh content='0;url=ORIGIN/refresh'><svg onload=alert(1)><!--"
)
HOSTILE_SVG = (
    "<svg xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink' width='40' "
    "height='20' onload=\"parent.document.title='pwned'\"><script>parent.document.title='pwned'</script>"
    "<image href='ORIGIN/svg-image' width='9' height='9'/><use xlink:href='ORIGIN/svg-use#x'/>"
    "<foreignObject><iframe xmlns='http://www.w3.org/1999/xhtml' src='ORIGIN/svg-frame'/></foreignObject>"
    "<style>@import 'ORIGIN/svg-css';</style><rect width='40' height='20' fill='teal'/></svg>"
)


def hostile(origin: str, output: int = 0) -> bytes:
    text = HOSTILE.replace("ORIGIN", origin)
    long = text + "A" * output + text
    files = [
        file(f"out/{text}.svg", HOSTILE_SVG.replace("ORIGIN", origin), "image/svg+xml"),
        file(f"out/{text}.html", text, "text/html"),
        file("out/x.csv", f'a,"{text}"\n{text},b\n', "text/csv"),
        file(
            "out/x.json",
            '{"<script>document.title=\'pwned\'</script>": "</div><script>"}',
            "application/json",
        ),
        OutputFile(path="out/y" + "y" * output, size=3, mime=f"text/{text}", sha256=text, content=text),
    ]
    return html(report(*files, text=long, name=text))


def test_hostile_text_makes_no_markup() -> None:
    harmless = {tag for tag, _ in Tags(page(file("out/x.svg", HOSTILE_SVG, "image/svg+xml"))).found}
    text = hostile("http://127.0.0.1:1").decode("utf-8")
    tags = Tags(text).found
    assert {tag for tag, _ in tags} <= harmless | {"details", "div", "th"}
    assert [tag for tag, _ in tags].count("script") == 1
    attributes = {name for _, attrs in tags for name in attrs}
    assert not [name for name in attributes if name.startswith("on")]
    assert {attrs["src"][:11] for _, attrs in tags if attrs.get("src")} == {"data:image/"}
    assert not [attrs for _, attrs in tags if "href" in attrs]
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202a-\u202e\u2066-\u2069\ufdd0]", text)


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    policy = next(
        attrs["content"] for tag, attrs in Tags(page()).found if attrs.get("http-equiv") is not None
    )
    assert re.fullmatch(
        r"default-src 'none'; img-src data:; style-src 'sha256-[\w+/=]{44}'; script-src 'sha256-[\w+/=]{44}';"
        r" base-uri 'none'; form-action 'none'",
        policy or "",
    )


def test_ten_megabytes_of_output_make_a_small_page() -> None:
    data = hostile("http://127.0.0.1:1", output=10 << 20)
    assert len(data) < 8 * MAX_OUTPUT
    assert b"bytes omitted" in data


# --- in a browser -------------------------------------------------------------------------------------------


@pytest.fixture
def requests() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine that remembers what it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One for all tests."""
    if PROGRAM is None:
        if os.environ.get("EXECUTOR_REQUIRE_RUNTIMES"):
            pytest.fail("chromium is required here")
        pytest.skip("chromium is not installed")
    opened = Chromium(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


def test_chromium_runs_nothing_and_loads_nothing(
    browser: Chromium, tmp_path: Path, requests: tuple[str, list[str]]
) -> None:
    origin, asked = requests
    target = tmp_path / "report.html"
    # Everything is opened, so that every picture is drawn.
    target.write_bytes(hostile(origin, output=10 << 20).replace(b"<details", b"<details open"))
    browser.open(target)
    browser.settle()
    assert browser.js("document.title") == "Skill tests: 1 failed"
    # A picture in the page asks for nothing beyond it, and what is in it neither.
    assert asked == [] and [url for url in browser.asked if not url.startswith("data:image/")] == []
    tags = browser.js("[...document.querySelectorAll('*')].map((element) => element.localName)")
    assert tags.count("script") == 1 and not {"iframe", "svg", "base", "link", "a", "object"} & set(tags)
    assert browser.js("[...document.images].map((image) => image.naturalWidth)") == [40]  # it was drawn
    assert not browser.js("document.querySelector('.tools').hidden")  # the page's own script did run
    control = tmp_path / "control.html"
    control.write_text(f"<img src={origin}/control><script>document.title='ran'</script>")
    browser.open(control)
    assert (browser.js("document.title"), asked, browser.asked) == (
        "ran",
        ["/control"],
        [f"{origin}/control"],
    )


def test_chromium_searches_filters_and_turns_dark_by_the_keyboard(browser: Chromium, tmp_path: Path) -> None:
    both = report(name="alpha")
    other = report(name="beta", verdict="passed").results[0]
    other.mismatches = []
    both.results.append(other)
    target = tmp_path / "report.html"
    target.write_bytes(html(both))
    browser.screen(1000, 700)
    browser.open(target)

    def seen() -> list[str]:
        cases = "[...document.querySelectorAll('details.case:not([hidden]) .name')]"
        return list(browser.js(f"{cases}.map((element) => element.firstChild.data)"))

    def focused() -> str:
        return str(browser.js("document.activeElement.querySelector?.('.name')?.firstChild.data ?? ''"))

    assert seen() == ["alpha", "beta"]
    browser.press("/", *"beta d")
    assert browser.js("document.activeElement.value") == "beta d"
    browser.press("Escape", "j")
    assert (browser.js("document.getElementById('search').value"), focused()) == ("beta d", "beta")
    assert seen() == ["beta"]
    browser.press("/", *"zz")
    assert (seen(), browser.js("document.getElementById('none').hidden")) == ([], False)
    browser.js("document.getElementById('search').value = ''")
    browser.press(" ", "Escape", "j", "j")
    assert (seen(), focused()) == (["alpha", "beta"], "beta")
    opened = "document.activeElement.parentElement.open"
    assert not browser.js(opened)
    browser.press("Enter")  # as on every summary
    assert browser.js(opened)
    browser.press("k")
    assert focused() == "alpha"
    browser.press("f")
    assert seen() == ["alpha"]
    browser.press("f")
    assert seen() == ["alpha", "beta"]
    background = "getComputedStyle(document.body).backgroundColor"
    light = browser.js(background)
    browser.js("document.getElementById('theme').focus()")
    browser.press("Enter")
    dark = browser.js(background)
    assert dark != light
    browser.press("Enter")
    assert browser.js(background) == light
    browser.screen(1000, 700, dark=True)
    browser.open(target)
    assert browser.js(background) == dark


def test_chromium_shows_it_on_a_phone_without_scrolling_sideways(browser: Chromium, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_bytes(hostile("http://127.0.0.1:1", output=5000).replace(b"<details", b"<details open"))
    browser.screen(390, 844, phone=True)
    browser.open(target)
    assert browser.js("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    low = "[...document.querySelectorAll('button, input')].filter((e) => e.offsetHeight < 38).length"
    assert browser.js(low) == 0  # what fingers have to hit
