"""What the medians are compared with. Printed as met or not met, and never asserted: machines differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Medians = dict[str, dict[str, float]]  # row → system → median


@dataclass(frozen=True)
class Target:
    """`system` of a row at most `factor` times `other` of it (at least, where `least`); `other` '' is 1."""

    row: str
    system: str
    factor: float
    other: str = ""
    least: bool = False

    def value(self, medians: Medians) -> float | None:
        """The factor that was reached; None when the row or a system was left out."""
        systems = medians.get(self.row, {})
        base = systems.get(self.other) if self.other else 1.0
        return systems[self.system] / base if base and self.system in systems else None

    def met(self, value: float) -> bool:
        return value >= self.factor if self.least else value <= self.factor

    def __str__(self) -> str:
        sign = "at least" if self.least else "at most"
        return f"{self.row}: {self.system} {sign} {self.factor:.3g}" + (
            f" x {self.other}" if self.other else ""
        )


BARE, BWRAP, RUN = "bare subprocess", "bubblewrap per command", "docker run --rm"
BULK = (("put one file of 256 MiB", "docker exec -i cat"), ("get one file of 256 MiB", "docker exec cat"))
TARGETS = [
    Target("true", "container", 2.0, BARE),
    Target("true", "container, async", 2.0, BARE),
    Target("true", "container", 1 / 20, "SDK exec_run"),
    Target("true", "local", 2.0, BWRAP),
    Target("python3 -c pass", "container", 1.3, BARE),
    Target("python3 -I -S -c pass", "container", 1.3, BARE),
    Target("python3 -c pass", "local", 1.3, BWRAP),
    Target("create to first result", "container, pooled", 20.0),
    Target("create to first result", "container, pooled", 1 / 10, "SDK create, start, exec"),
    Target("create to first result", "container", 1.3, RUN),
    Target("create to first result", "local, pooled", 20.0),
    Target("put 1,000 files", "container", 1 / 3, "put_archive"),
    Target("get 1,000 files", "container", 1 / 4, "get_archive"),
    Target("put 1,000 files", "local", 1 / 3, "put_archive"),
    Target("get 1,000 files", "local", 1 / 4, "get_archive"),
    *(Target(row, runtime, 1 / 0.8, other) for row, other in BULK for runtime in ("container", "local")),
    *(
        target
        for runtime in ("container", "local")
        for target in (
            Target("stage a skill of 1,000 files, unchanged", runtime, 5.0),
            Target(
                "runs per second, 50 sessions with 20 each",
                runtime,
                0.6,
                f"bare fork and exec, beside {runtime}",
                least=True,
            ),
            Target("memory of an idle session", runtime, 25.0),
            Target("memory of the host process with them", runtime, 200.0),
            Target("memory for stdout of 256 MiB", runtime, 64.0),
            Target("memory for stdout of 256 MiB", f"{runtime}, streamed", 64.0),
        )
    ),
]


def judged(medians: Medians) -> Iterator[tuple[Target, float, bool]]:
    """(target, what was reached, whether it is met) of every target whose row was measured."""
    for target in TARGETS:
        value = target.value(medians)
        if value is not None:
            yield target, value, target.met(value)
