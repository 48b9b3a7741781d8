"""Spans of OpenTelemetry: which there are, what each may say, and the one place that makes them.

Rules of this module:
1. Whoever wants spans has imported the API: then it is used. Otherwise nothing is imported and nothing costs.
2. A span says only what stands in `SPANS`: names, counts, paths and how it ended. No value of a variable, no
   input, no output and no argument of a command; `cmd` is the program alone.
3. An error is told by its class. Its text may quote what rule 2 keeps out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SPANS: dict[str, tuple[str, ...]] = {
    "workspace.create": ("exec_id", "runtime", "path"),
    "workspace.stage.files": ("exec_id", "to", "count"),
    "workspace.stage.dir": ("exec_id", "host_path", "to", "count", "mount_used"),
    "workspace.run": ("exec_id", "run_id", "skill", "cmd", "cwd", "status", "exit_code", "timed_out"),
    "workspace.collect": ("exec_id", "patterns", "count"),
    "workspace.inline": ("exec_id", "run_id", "language", "status", "exit_code", "timed_out"),
    "workspace.cleanup": ("exec_id", "path"),
    "skill.load": ("exec_id", "skill", "digest", "agent"),
    "skill.run": ("exec_id", "run_id", "skill", "script", "language", "status", "exit_code", "timed_out"),
    "skill.tool_call": ("exec_id", "run_id", "call_id", "method", "tool", "result"),
}
"""Span → its attributes. `exec_id` is the session's id."""


class Span:
    """A span under way, or none."""

    def __init__(self, name: str, span: Any = None) -> None:
        self._name = name
        self._span = span

    @property
    def heard(self) -> bool:
        """Somebody wants it."""
        return self._span is not None

    def say(self, **attributes: Any) -> None:
        """Add attributes; those without a value are left out."""
        known = SPANS[self._name]
        for name, value in attributes.items():
            if name not in known:
                raise AssertionError(f"{self._name} does not say {name}")
            if self._span is not None and value is not None:
                self._span.set_attribute(name, value)

    def end(self, error: BaseException | None = None) -> None:
        """It is over; `error` is what ended it. Only the first end counts."""
        if self._span is None:
            return
        if error is not None:
            trace = sys.modules["opentelemetry.trace"]
            self._span.set_status(trace.StatusCode.ERROR, type(error).__name__)
        self._span.end()
        self._span = None


def begin(name: str, **attributes: Any) -> Span:
    """A span that ends with `end`, below the current one and not itself current."""
    tracer = _tracer()
    made = Span(name, None if tracer is None else tracer.start_span(name))
    made.say(**attributes)
    return made


@contextmanager
def span(name: str, **attributes: Any) -> Iterator[Span]:
    """The current span while the block runs."""
    made = begin(name, **attributes)
    try:
        with inside(made):
            yield made
    except BaseException as error:
        made.end(error)
        raise
    made.end()


@contextmanager
def inside(parent: Span) -> Iterator[None]:
    """Spans that begin in the block are below `parent`, whichever task runs it."""
    if parent._span is None:
        yield
        return
    trace = sys.modules["opentelemetry.trace"]
    with trace.use_span(
        parent._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
    ):
        yield


def _tracer() -> Any:
    trace = sys.modules.get("opentelemetry.trace")
    # While another thread is importing it, not all of it is there.
    get = getattr(trace, "get_tracer", None)
    return None if get is None or not hasattr(trace, "use_span") else get("executor")
