"""Each tool and each package of the office image does one real thing, in every runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executor import Executor, Limits, RuntimeUnavailableError, Session
from tests.conftest import REQUIRED

IMAGES = {"container": "executor/office", "local": "office"}

WORKBOOK = """
import openpyxl
book = openpyxl.Workbook()
sheet = book.active
sheet["A1"], sheet["A2"], sheet["A3"] = 40, 2, "=A1+A2"
book.save("work/sum.xlsx")
"""
MACRO = (Path(__file__).parent / "recalculate.py").read_text()
PDF = """
from reportlab.pdfgen import canvas
page = canvas.Canvas("work/a.pdf")
page.setFont("Helvetica", 40)
page.drawString(72, 700, "Hello office")
page.showPage()
page.save()
"""

# name: (commands that come before, the command, what its output holds).
TOOLS = {
    "LibreOffice converts a document": (
        "echo 'Hello office' | pandoc -o work/a.docx",
        "soffice --headless --convert-to pdf --outdir work work/a.docx >/dev/null && pdftotext work/a.pdf -",
        "Hello office",
    ),
    "LibreOffice recalculates a workbook": (WORKBOOK, MACRO, "value 42"),
    "poppler": (
        PDF,
        "pdftoppm -png work/a.pdf work/p && file work/p-1.png && pdfinfo work/a.pdf",
        "PNG image",
    ),
    "pandoc": (
        "echo '# Title' > work/a.md",
        "pandoc work/a.md -o work/a.docx && pandoc work/a.docx -t html",
        "<h1",
    ),
    "tesseract": (
        "convert -size 600x120 xc:white -pointsize 60 -fill black -annotate +20+80 'HELLO 42' work/t.png",
        "tesseract work/t.png - 2>/dev/null",
        "HELLO 42",
    ),
    "ImageMagick reads a PDF": (
        PDF,
        "convert -density 40 work/a.pdf work/a.png && identify work/a.png",
        "PNG",
    ),
    "ghostscript": (
        PDF,
        "gs -q -sDEVICE=pdfwrite -o work/b.pdf work/a.pdf && pdftotext work/b.pdf -",
        "Hello office",
    ),
    "ffmpeg": (
        "ffmpeg -v error -f lavfi -i testsrc=duration=1:size=64x64 work/v.mp4",
        "ffprobe -v error -show_format work/v.mp4",
        "mp4",
    ),
    "graphviz": ("", "echo 'digraph { a -> b }' | dot -Tsvg", "<svg"),
    "qpdf": (PDF, "qpdf --check work/a.pdf", "No syntax or stream encoding errors"),
    "fonts": ("", "fc-list : family | sort -u", "Noto Sans CJK"),
    "emoji": ("", "fc-list : family | sort -u", "Noto Color Emoji"),
    "bun runs TypeScript": ("echo 'const n: number = 42; console.log(n)' > work/a.ts", "bun work/a.ts", "42"),
}
# Each ends without an error.
PYTHON = {
    "pypdf": "import pypdf\npdf = pypdf.PdfWriter()\npdf.add_blank_page(9, 9)\npdf.write('work/x.pdf')",
    "pdfplumber": PDF + "import pdfplumber\nassert pdfplumber.open('work/a.pdf').pages[0].extract_text()",
    "python-docx": "import docx\ntext = docx.Document()\ntext.add_paragraph('x')\ntext.save('work/x.docx')",
    "python-pptx": "import pptx\npptx.Presentation().save('work/x.pptx')",
    "pandas": "import pandas\npandas.DataFrame({'a': [1]}).to_excel('work/x.xlsx')",
    "matplotlib": "import matplotlib.pyplot as plot\nplot.plot([1, 2])\nplot.savefig('work/x.png')",
    "pillow": "from PIL import Image\nImage.new('RGB', (8, 8)).save('work/x.webp')",
    "lxml": "import lxml.etree, defusedxml.ElementTree\nassert lxml.etree.fromstring('<a/>').tag == 'a'",
    "pytesseract": "import pytesseract\nassert pytesseract.get_tesseract_version()",
    "pdf2image": PDF + "import pdf2image\nassert len(pdf2image.convert_from_path('work/a.pdf')) == 1",
    "text": "import bs4, jinja2, markdown, yaml, tabulate, qrcode, requests, xlrd, xlsxwriter",
}
NODE = {
    "docx": "import { Packer, Document } from 'docx'\nawait Packer.toBuffer(new Document({ sections: [] }))",
    "pptxgenjs": "import P from 'pptxgenjs'\nconst p = new P(); p.addSlide(); await p.write('nodebuffer')",
    "pdf-lib": "import { PDFDocument } from 'pdf-lib'\nawait (await PDFDocument.create()).save()",
    "sharp": "import sharp from 'sharp'\nawait sharp({ text: { text: 'x' } }).png().toBuffer()",
    "marked": "import { marked } from 'marked'\nif (!marked('# x').includes('<h1')) throw new Error()",
}


@pytest.fixture(scope="module")
def office(runtime: str) -> Iterator[Session]:
    """One session on the office image."""
    limits = Limits(memory="3g", cpus=2, disk="512m", tmp="256m", pids=256)
    with Executor(runtime=runtime, image=IMAGES[runtime]) as executor:
        try:
            executor.choose_runtime()
        except RuntimeUnavailableError as error:
            if runtime in REQUIRED:
                pytest.fail(f"the office image is required on {runtime}: {error}")
            pytest.skip(str(error))
        with executor.session(limits=limits) as session:
            yield session


def run(office: Session, text: str) -> str:
    """Run a shell line, or a Python text when it has lines."""
    if "\n" in text:
        office.put("work/step.py", text)
        text = "python3 work/step.py"
    result = office.exec(text, timeout=180)
    assert result.ok, (text, result.stdout[-2000:], result.stderr[-2000:])
    return result.stdout + result.stderr


@pytest.mark.parametrize("tool", TOOLS)
def test_tools(office: Session, tool: str) -> None:
    before, command, expected = TOOLS[tool]
    if before:
        run(office, before)
    assert expected in run(office, command)


@pytest.mark.parametrize("package", PYTHON)
def test_packages_of_python(office: Session, package: str) -> None:
    assert run(office, PYTHON[package] + "\nprint('ok')\n").startswith("ok\n")


@pytest.mark.parametrize("package", NODE)
def test_packages_of_node(office: Session, package: str) -> None:
    office.put("work/step.mjs", NODE[package] + "\nconsole.log('ok')\n")
    assert run(office, "node work/step.mjs").endswith("ok\n")


def test_the_size_is_what_the_documentation_says(runtime: str) -> None:
    """`docs/dependencies.md` states it; a tenth more is a change that somebody should see."""
    from executor.images import list_images

    sizes = [
        image.size_bytes for image in list_images() if image.name == "office" and image.target == runtime
    ]
    text = (Path(__file__).parents[2] / "docs" / "dependencies.md").read_text()
    stated = float(text.split("office image has ")[1].split(" GB")[0])
    assert sizes and all(size < stated * 1.1e9 for size in sizes)
