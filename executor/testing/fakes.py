"""Fake tools of a case: what they answer, and what is said of calls that were not as expected.

They are granted like real tools, so that a call goes through the whole bridge. What a script sends is
hostile: it is kept as text of a bounded length and escaped where it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from executor import bridge  # its parts are imported when a case has tools
from executor.testing.form import Answer
from executor.testing.matching import Mismatch, counted, json_text, subset, within

MAX_UNEXPECTED = 5  # calls without an answer that are told of, for each tool
ANYTHING: Mapping[str, Any] = {"type": "object"}


class FakeTools:
    """The fake tools of one run. GrantError for a name that no tool can have."""

    def __init__(self, answers: Mapping[str, tuple[Answer, ...]]) -> None:
        self._answers = answers
        self._given: Counter[tuple[str, int]] = Counter()
        self._unexpected: dict[str, list[str]] = {}
        self.grant = bridge.Grant(tools=[self._spec(name) for name in answers]) if answers else None  # type: ignore[arg-type]

    def _spec(self, name: str) -> bridge.ToolSpec:
        async def handler(value: Any, _context: bridge.ToolContext) -> Any:
            return self._answer(name, value)

        return bridge.ToolSpec(
            name=name, description="A fake tool of a test case.", input_schema=ANYTHING, handler=handler
        )

    def _answer(self, name: str, value: Any) -> Any:
        for number, answer in enumerate(self._answers[name]):
            spent = answer.most is not None and self._given[name, number] >= answer.most
            if not spent and (answer.when is None or not any(subset(answer.when, value))):
                self._given[name, number] += 1
                if answer.error is not None:
                    raise bridge.PublicToolError(answer.error)
                return answer.returns
        told = self._unexpected.setdefault(name, [])
        if len(told) < MAX_UNEXPECTED:
            told.append(json_text(value))
        raise bridge.PublicToolError("the test case has no answer to this call")

    def mismatches(self) -> Iterable[Mismatch]:
        """Calls that nobody expected, and expected ones that did not come."""
        for name, answers in self._answers.items():
            for value in self._unexpected.get(name, ()):
                yield Mismatch(where=f"tools {name}", expected=f"a call {_fitting(answers)}", got=value)
            for number, answer in enumerate(answers):
                got = self._given[name, number]
                if answer.calls is not None and not within(answer.calls, got):
                    where = f"tools {name}" + (f" {_wanted(answer)}" if len(answers) > 1 else "")
                    yield Mismatch(where=where, expected=counted(answer.calls, "call"), got=str(got))


def _fitting(answers: tuple[Answer, ...]) -> str:
    """Which calls have an answer."""
    return " or ".join(
        _wanted(answer) + ("" if answer.calls is None else f" ({counted(answer.calls, 'time')})")
        for answer in answers
    )


def _wanted(answer: Answer) -> str:
    return "with anything" if answer.when is None else f"with {json_text(answer.when)}"
