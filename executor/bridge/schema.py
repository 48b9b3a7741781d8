"""JSON Schema 2020-12 of tools: compiled once, nothing fetched, every problem with its place.

A schema comes from the operator, the values from hostile scripts. References may only point inside it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from executor.errors import GrantError

MAX_PROBLEMS = 10  # told of one value
MAX_MESSAGE = 200  # characters of one problem, which quotes the value
DRAFTS = ("draft/2020-12", "draft/2019-09", "draft-07", "draft-06")  # what MCP servers send
# Keywords whose values are data and not schemas.
DATA = frozenset({"const", "enum", "default", "examples"})
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class Schema:
    """A compiled schema. GrantError when it is not one, or points outside itself."""

    def __init__(self, schema: Any, what: str) -> None:
        self.schema = schema
        self._validator = _compile(schema, what)

    def problems(self, value: Any, *, quote: bool = True) -> list[dict[str, str]]:
        """What is wrong with a value: `path` (JSON pointer), `rule` (keyword), with `quote` a message."""
        found = []
        try:
            for error in islice(self._validator.iter_errors(value), MAX_PROBLEMS):
                problem = {"path": _pointer(error.absolute_path), "rule": str(error.validator or "false")}
                if quote:
                    problem["message"] = str(error.message)[:MAX_MESSAGE]
                found.append(problem)
        except RecursionError:
            found.append({"path": "", "rule": "depth"})
        except OverflowError:  # an integer that no float can hold
            found.append({"path": "", "rule": "range"})
        return found


def _compile(schema: Any, what: str) -> Any:
    if not isinstance(schema, Mapping):
        raise GrantError(f"the schema of {what} is {schema!r}, not an object")
    for keyword, target in _references(schema):
        if not target.startswith("#"):
            raise GrantError(
                f"the schema of {what} has {keyword} {target!r}, which points outside",
                hint="Put the definition under $defs and point at '#/$defs/…'.",
            )
    validators = _library()
    dialect = schema.get("$schema")
    kind = validators.Draft202012Validator
    if dialect is not None:
        if not any(draft in str(dialect) for draft in DRAFTS):
            raise GrantError(f"the schema of {what} is of an unknown dialect {dialect!r}")
        kind = validators.validator_for(schema, default=kind)
    try:
        kind.check_schema(schema)
    except validators.SchemaError as error:
        where = _pointer(error.absolute_path) or "its top"
        raise GrantError(f"the schema of {what} is not valid at {where}: {error.message}") from None
    from referencing import Registry

    checked = validators.extend(kind, {"uniqueItems": _unique})
    return checked(schema, registry=Registry())  # a registry that fetches nothing


def _unique(validator: Any, wanted: Any, items: Any, _schema: Any) -> Iterator[Any]:
    """The library compares what cannot be sorted each with each: a list of a script would take minutes."""
    if wanted and validator.is_type(items, "array") and len({_identity(item) for item in items}) < len(items):
        yield _library().ValidationError(f"{items!r} has non-unique elements")


def _identity(value: Any) -> Any:
    """Equal for what JSON Schema takes for equal, and of no other use."""
    if isinstance(value, dict):
        return dict, frozenset((key, _identity(item)) for key, item in value.items())
    if isinstance(value, list):
        return list, tuple(map(_identity, value))
    return (bool, value) if isinstance(value, bool) else value


@functools.cache
def _library() -> Any:
    """Imported when the first tool is made: it costs more than the rest of this package."""
    import jsonschema
    from jsonschema.validators import extend, validator_for

    class Library:
        Draft202012Validator = jsonschema.Draft202012Validator
        SchemaError = jsonschema.SchemaError
        ValidationError = jsonschema.ValidationError

    Library.validator_for = staticmethod(validator_for)  # type: ignore[attr-defined]
    Library.extend = staticmethod(extend)  # type: ignore[attr-defined]
    return Library


def _references(schema: Any) -> Iterator[tuple[str, str]]:
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            for key, value in node.items():
                if key in REFERENCES and isinstance(value, str):
                    yield key, value
                elif key not in DATA:
                    waiting.append(value)
        elif isinstance(node, list):
            waiting.extend(node)


def _pointer(path: Any) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)[:MAX_MESSAGE]
