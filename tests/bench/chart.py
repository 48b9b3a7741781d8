"""The bench's medians as a chart: plain SVG that reads on light and on dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT = 880, 250, 150
BAR, GAP, HEAD = 15, 5, 34
ROWS = (
    "true",
    "python3 -c pass",
    "create to first result",
    "put 1,000 files",
    "get 1,000 files",
    "put one file of 256 MiB",
    "get one file of 256 MiB",
    "stdout 256 MiB",
)
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 } .row { font-weight: 600 } .note { fill: #59636e }
.ours { fill: #1a7f64 } .other { fill: #afb8c1 } .grid { stroke: #d1d9e0; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9198a1 }
  .ours { fill: #3fb68b } .other { fill: #545d68 } .grid { stroke: #3d444d }
}
"""


def svg(
    report: dict[str, Any],
    facts: dict[str, Any],
    *,
    rows: Sequence[str] = ROWS,
    title: str = "What runs, starts and transfers cost",
) -> str:
    """Those of the rows that were measured, their systems from fast to slow, on a logarithmic scale."""
    measured = [(name, report[name]["systems"]) for name in rows if name in report]
    values = [found["median"] for _, systems in measured for found in systems.values() if found["median"] > 0]
    if not values:
        return '<svg xmlns="http://www.w3.org/2000/svg"/>\n'
    low = math.floor(math.log10(min(values)))
    high = max(math.log10(max(values)), low + 1)
    room = WIDTH - LEFT - RIGHT

    def across(value: float) -> float:
        return max(2.0, (math.log10(value) - low) / (high - low) * room) if value > 0 else 2.0

    parts: list[str] = []
    y = 62
    for name, systems in measured:
        parts.append(f'<text class="row" x="16" y="{y + 12}">{escape(name)}</text>')
        y += HEAD - 14
        for system, found in sorted(systems.items(), key=lambda pair: float(pair[1]["median"])):
            ours = "ours" if system.startswith(("local", "container")) else "other"
            width = across(found["median"])
            parts.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(system)}</text>')
            parts.append(
                f'<rect class="{ours}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>'
            )
            shown = f"{found['median']:,.2f}" if found["median"] < 10 else f"{found['median']:,.0f}"
            parts.append(f'<text class="note" x="{LEFT + width + 6:.1f}" y="{y + 12}">{shown} ms</text>')
            y += BAR + GAP
        y += 12
    grid = []
    for power in range(low, math.floor(high) + 1):
        x = LEFT + across(10.0**power) if power > low else LEFT
        grid.append(f'<line class="grid" x1="{x:.1f}" y1="54" x2="{x:.1f}" y2="{y}"/>')
        grid.append(
            f'<text class="note" x="{x:.1f}" y="{y + 16}" text-anchor="middle">{10.0**power:g} ms</text>'
        )
    note = (
        f"median milliseconds, logarithmic; {facts['cpus']} processors, Linux {facts['kernel'].split('-')[0]}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 28}" width="{WIDTH}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<text class="title" x="16" y="26">{escape(title)}</text>\n'
        f'<text class="note" x="16" y="44">{escape(note)}</text>\n' + "\n".join(grid + parts) + "\n</svg>\n"
    )
