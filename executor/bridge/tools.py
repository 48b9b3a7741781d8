"""`ToolSpec`: a host function that scripts may call, described by JSON Schema; and `@tool`, which makes one.

A handler runs on the host with the host's rights, and only with input that fits the schema.
"""

from __future__ import annotations

import inspect
import keyword
import re
import sys
import time
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from pydantic_core import to_jsonable_python

from executor.bridge.codes import BridgeError
from executor.bridge.schema import Schema
from executor.bridge.values import check_fields, file_fields, marked
from executor.errors import GrantError

Approval = Literal["never", "always"] | Callable[[Any], bool | Awaitable[bool]]
Handler = Callable[[Any, "ToolContext"], Any]
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
# What `tools` in the sandbox has besides the tools.
TAKEN = frozenset({"aio", "call", "describe", "list", "then"})


@dataclass
class ToolContext:
    """What a handler may know of its call."""

    run_id: str
    session_id: str
    call_id: str
    tool: str
    skill: str | None
    deadline: float
    """When the call is given up, in `time.monotonic()` seconds."""
    report: Callable[[dict[str, Any]], None] = lambda _fields: None
    """Add fields to the audit record of this call."""

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True)
class ToolSpec:
    """A tool. `handler(input, context)` is a coroutine function, or a function that runs in a thread.

    GrantError for a name or a schema that cannot be.
    """

    name: str
    """Letters, digits, `_`, `.` and `-`. In Python and Node `.` and `-` are written `_`."""
    description: str
    input_schema: Mapping[str, Any]
    handler: Handler
    output_schema: Mapping[str, Any] | None = None
    """What the handler returns is checked against it. Default: any JSON value."""
    approval: Approval = "never"
    """Whether a person is asked: `never`, `always`, or a function of the input. One that fails asks."""
    read_only: bool = False
    """Changes nothing anywhere. Shown to scripts and policies, not enforced."""
    timeout_s: float = 30.0
    """Seconds for one call; never more than what is left of the run. Default 30."""
    max_result: int = 4 << 20
    """Bytes of the result as JSON. Default 4 MiB."""
    files: tuple[str, ...] = ()
    """Inputs that are files of the sandbox, `{"$file": PATH}`; the handler gets a `HostFile` for each."""
    overflow: Literal["error", "file"] = "error"
    """A result that is larger than it may be is an error, or goes into a file whose path is the result."""
    _input: Schema = field(init=False, repr=False, compare=False)
    _output: Schema | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise GrantError(
                f"{self.name!r} cannot be a tool's name",
                hint="Begin with a letter; letters, digits, '_', '.' and '-', at most 128.",
            )
        if not callable(self.handler):
            raise GrantError(f"the handler of tool {self.name!r} is {self.handler!r}")
        if not (self.approval in ("never", "always") or callable(self.approval)):
            raise GrantError(f"approval={self.approval!r} of tool {self.name!r} is no kind of approval")
        if self.timeout_s <= 0 or self.max_result < 0:
            raise GrantError(f"tool {self.name!r} has a limit below zero")
        if self.overflow not in ("error", "file"):
            raise GrantError(f"overflow={self.overflow!r} of tool {self.name!r} is neither error nor file")
        made = Schema(self.input_schema, f"tool {self.name!r}")
        check_fields(self.name, self.input_schema, self.files)
        object.__setattr__(self, "_input", made)
        out = self.output_schema
        found = None if out is None else Schema(out, f"the output of tool {self.name!r}")
        object.__setattr__(self, "_output", found)

    @property
    def identifier(self) -> str:
        """Its name as Python and JavaScript can write it."""
        return identifier(self.name)

    def check_input(self, value: Any) -> None:
        """BridgeError TOOL_INPUT_INVALID unless the value fits."""
        if problems := self._input.problems(value):
            raise BridgeError(
                "TOOL_INPUT_INVALID", _told(self.name, problems), details=problems, rule="input_schema"
            )

    def check_output(self, value: Any) -> None:
        """BridgeError TOOL_OUTPUT_INVALID unless the value fits; what the tool returned is not quoted."""
        if self._output is not None and (problems := self._output.problems(value, quote=False)):
            raise BridgeError(
                "TOOL_OUTPUT_INVALID",
                f"{self.name}: the tool's result does not fit its output schema",
                details=problems,
                rule="output_schema",
            )

    def entry(self) -> dict[str, Any]:
        """Its line in the catalogue that scripts see."""
        return {
            "name": self.name,
            "identifier": self.identifier,
            "description": self.description,
            "input_schema": dict(self.input_schema),
            "output_schema": None if self.output_schema is None else dict(self.output_schema),
            "approval": self.approval if isinstance(self.approval, str) else "sometimes",
            "read_only": self.read_only,
        }

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        approval: Approval = "never",
        read_only: bool = False,
        timeout_s: float = 30.0,
        max_result: int = 4 << 20,
        overflow: Literal["error", "file"] = "error",
        names: Mapping[str, Any] | None = None,
    ) -> ToolSpec:
        """A tool from a function's type hints, docstring and defaults.

        A parameter annotated `ToolContext` gets the context and is no part of the input. A single parameter
        annotated with a pydantic model is the whole input. `names` are what hints may be called besides the
        globals of its module (`@tool` looks where it stands). GrantError for `*args`, positional-only
        parameters, or hints that have no JSON Schema.
        """
        shown = name or function.__name__
        try:
            hints = typing.get_type_hints(function, localns=dict(names or {}), include_extras=True)
        except NameError as error:
            raise GrantError(f"the type hints of tool {shown!r} cannot be read: {error}") from error
        model, fill, context = _parameters(function, hints, shown)
        returned = hints.get("return", Any)
        try:
            input_schema = model.model_json_schema()
            adapter = None if returned in (Any, inspect.Signature.empty) else TypeAdapter(returned)
            output_schema = adapter.json_schema(mode="serialization") if adapter is not None else None
        except Exception as error:
            raise GrantError(f"the type hints of tool {shown!r} have no JSON Schema: {error}") from error

        def arguments(value: Any, ctx: ToolContext) -> dict[str, Any]:
            try:
                parsed = model.model_validate(value)
            except ValueError as error:  # what a schema cannot say: validators, ranges of dates
                raise _invalid(shown, error) from None
            given = fill(parsed)
            if context:
                given[context] = ctx
            return given

        def plain(value: Any) -> Any:
            return (
                to_jsonable_python(value, fallback=marked)
                if adapter is None
                else adapter.dump_python(value, mode="json")
            )

        handler: Handler
        if inspect.iscoroutinefunction(function):

            async def handler(value: Any, ctx: ToolContext) -> Any:
                return plain(await function(**arguments(value, ctx)))
        else:

            def handler(value: Any, ctx: ToolContext) -> Any:
                return plain(function(**arguments(value, ctx)))

        return cls(
            name=shown,
            description=description if description is not None else inspect.getdoc(function) or "",
            input_schema=input_schema,
            handler=handler,
            output_schema=output_schema,
            approval=approval,
            read_only=read_only,
            timeout_s=timeout_s,
            max_result=max_result,
            files=file_fields(model.model_fields),
            overflow=overflow,
        )

    @classmethod
    def from_model(
        cls, model: type[BaseModel], handler: Callable[[Any, ToolContext], Any], **options: Any
    ) -> ToolSpec:
        """A tool whose input is a pydantic model; the handler gets an instance. Options as in `ToolSpec`."""
        shown = options.pop("name", model.__name__)
        described = options.pop("description", inspect.getdoc(model) or "")

        def parsed(value: Any) -> BaseModel:
            try:
                return model.model_validate(value)
            except ValueError as error:
                raise _invalid(shown, error) from None

        wrapped: Handler
        if inspect.iscoroutinefunction(handler):

            async def wrapped(value: Any, ctx: ToolContext) -> Any:
                return to_jsonable_python(await handler(parsed(value), ctx), fallback=marked)
        else:

            def wrapped(value: Any, ctx: ToolContext) -> Any:
                return to_jsonable_python(handler(parsed(value), ctx), fallback=marked)

        return cls(
            name=shown,
            description=described,
            input_schema=model.model_json_schema(),
            handler=wrapped,
            files=file_fields(model.model_fields),
            **options,
        )


@overload
def tool(function: Callable[..., Any], /) -> ToolSpec: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval = "never",
    read_only: bool = False,
    timeout_s: float = 30.0,
    max_result: int = 4 << 20,
    overflow: Literal["error", "file"] = "error",
) -> Callable[[Callable[..., Any]], ToolSpec]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorator: the function as a `ToolSpec`. See `ToolSpec.from_function`."""
    names = sys._getframe(1).f_locals
    if function is not None:
        return ToolSpec.from_function(function, names=names)
    return lambda function: ToolSpec.from_function(function, names=names, **options)


def identifier(name: str) -> str:
    """A tool's name as an identifier: `a-b` → `a_b`; a keyword or a taken name gets a `_` behind it."""
    made = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return made + "_" if keyword.iskeyword(made) or made in TAKEN or made.startswith("__") else made


def _parameters(
    function: Callable[..., Any], hints: dict[str, Any], shown: str
) -> tuple[type[BaseModel], Callable[[BaseModel], dict[str, Any]], str]:
    """(model of the input, input → keyword arguments, name of the context's parameter or '')."""
    fields: dict[str, Any] = {}
    context = ""
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            context = parameter.name
        elif parameter.kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.POSITIONAL_ONLY,
        ):
            raise GrantError(
                f"tool {shown!r}: the parameter {parameter} cannot be given by name",
                hint="Use named parameters only.",
            )
        else:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[parameter.name] = (hint, default)
    if len(fields) == 1:
        ((only, (hint, _)),) = fields.items()
        if inspect.isclass(hint) and issubclass(hint, BaseModel):
            return hint, lambda parsed: {only: parsed}, context
    try:
        model = create_model(shown, __config__=ConfigDict(extra="forbid"), **fields)
    except Exception as error:
        raise GrantError(f"tool {shown!r} cannot be made from its parameters: {error}") from error
    names = list(fields)
    return model, lambda parsed: {name: getattr(parsed, name) for name in names}, context


def _invalid(name: str, error: ValueError) -> BridgeError:
    found: list[Any] = getattr(error, "errors", list)()
    problems = [
        {
            "path": "".join(f"/{part}" for part in item["loc"]),
            "rule": item["type"],
            "message": str(item["msg"])[:200],
        }
        for item in found[:10]
    ] or [{"path": "", "rule": "value"}]
    return BridgeError("TOOL_INPUT_INVALID", _told(name, problems), details=problems, rule="input_model")


def _told(name: str, problems: list[dict[str, str]]) -> str:
    first = problems[0]
    where = first["path"].lstrip("/") or "input"
    return f"{name}: {where}: {first.get('message') or first['rule']}"
