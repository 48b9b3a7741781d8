"""Spans of OpenTelemetry: `skill.run` for a run with a grant, `skill.tool_call` for each of its calls.

Without an SDK that records them they cost next to nothing; without the API there are none.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@functools.cache
def _trace() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


def start_run(attributes: Mapping[str, str]) -> Any:
    """The span of a run, to be ended with `end`; None without the API."""
    trace = _trace()
    return (
        None if trace is None else trace.get_tracer("executor").start_span("skill.run", attributes=attributes)
    )


def end(span: Any) -> None:
    """End a span of `start_run`."""
    if span is not None:
        span.end()


@contextmanager
def tool_call(run: Any, call_id: str) -> Iterator[dict[str, Any]]:
    """A span below the run's. What is put into the yielded map becomes its attributes."""
    found: dict[str, Any] = {"call_id": call_id}
    trace = _trace()
    if trace is None or run is None:
        yield found
        return
    context = trace.set_span_in_context(run)
    with trace.get_tracer("executor").start_as_current_span("skill.tool_call", context=context) as span:
        try:
            yield found
        finally:
            span.set_attributes(found)
