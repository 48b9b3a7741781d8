"""The JSON Schema of case files, made of the models; `cases.schema.json` beside this is the published copy.

An editor that knows it completes and checks case files:

    # yaml-language-server: $schema=https://…/executor/testing/cases.schema.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from executor.testing.form import CaseFile

FILE = Path(__file__).with_name("cases.schema.json")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# `exit: "{{code}}"` is text in the file and a number once its parameter stands there.
PLACEHOLDER = {"type": "string", "pattern": r"^\{\{\s*[A-Za-z_]\w*\s*\}\}$"}
NUMBERS = ("integer", "number")


def schema() -> dict[str, Any]:
    """The schema as data."""
    made = CaseFile.model_json_schema(by_alias=True)
    made = _open_for_placeholders(made)
    return {"$schema": DIALECT, "$id": "executor-cases", **made, "title": "Case file of a skill"}


def text() -> str:
    """The schema as the text of its file."""
    return json.dumps(schema(), indent=2) + "\n"


def _open_for_placeholders(part: Any) -> Any:
    """Wherever a number is asked for, a placeholder will do."""
    if isinstance(part, list):
        return [_open_for_placeholders(item) for item in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") in NUMBERS:
        outer = {key: part[key] for key in ("title", "default", "description") if key in part}
        inner = {key: value for key, value in part.items() if key not in outer}
        return {**outer, "anyOf": [inner, PLACEHOLDER]}
    return {key: _open_for_placeholders(value) for key, value in part.items()}


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
