"""Which text of a reply is code: exactly one fenced block of a language that can be run."""

from __future__ import annotations

import pytest

from executor import BadRequestError
from executor.bridge import code


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("```python\nprint(1)\n```", ("python", "print(1)\n")),
        ("Here:\n\n```py\na\n\nb\n```\ndone", ("python", "a\n\nb\n")),
        ("~~~js\nx\n~~~", ("node", "x\n")),
        ("````python\n```\nnot an end\n```\n````", ("python", "```\nnot an end\n```\n")),
        ("```PYTHON title\nx\n```", ("python", "x\n")),
        ("```python\r\nx\r\n```\r\n", ("python", "x\r\n")),
        ("```python\na\n```\n```python\nb\n```", None),
        ("```python\na\n```\n```json\n{}\n```", None),
        ('```json\n{"a":1}\n```', None),
        ("```\nx\n```", None),
        ("```python\nnever closed", None),
        ("use `print(1)`", None),
        ("", None),
        ("    ```python\n    indented\n    ```", None),
    ],
)
def test_trpc_66_exactly_one_block_is_code(reply: str, found: object) -> None:
    """trpc-66, trpc-1.13.5"""
    assert code.of_reply(reply) == found


def test_trpc_65_what_cannot_be_code() -> None:
    """trpc-65, trpc-1.13.7"""
    with pytest.raises(BadRequestError, match="9 bytes, at most 8"):
        code.plan("x = 1 + 2", "python", 8)
    with pytest.raises(BadRequestError, match="cannot be run"):
        code.plan("x", "ruby", 8)
    with pytest.raises(BadRequestError, match="NUL"):
        code.plan("x\0", "python", 8)
    with pytest.raises(BadRequestError, match="surrogates"):
        code.plan("\ud800", "python", 8)
    assert code.plan("x = 1 + 2", "python", 9)[1] == b"x = 1 + 2"
