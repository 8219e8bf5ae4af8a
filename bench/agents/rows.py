"""Rows of a scene's table: one figure for each side."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.agents.sides import Side


@dataclass(slots=True)
class Row:
    """A figure with its values by side, one for each round or measurement."""

    what: str
    form: str = ".1f"
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: Side, value: float) -> None:
        """Add a value of a side."""
        self.values.setdefault(side.name, []).append(value)

    def of(self, side: str) -> float | None:
        """Return the median of a side, None without values."""
        found = self.values.get(side)
        return statistics.median(found) if found else None


def rows_table(rows: Sequence[Row], sides: Sequence[str]) -> str:
    """Return a Markdown table of medians, and of the ratio of each side to the first."""
    base, *compared = sides
    lines = [
        f"| | {' | '.join(sides)} | {' | '.join(f'{side} / {base}' for side in compared)} |",
        "|---" * (2 * len(sides)) + "|",
    ]
    for row in rows:
        found = {side: row.of(side) for side in sides}
        cells = ["" if found[side] is None else format(found[side], row.form) for side in sides]
        least = found[base]
        for side in compared:
            value = found[side]
            cells.append(f"{value / least:.2f} ×" if value is not None and least else "")
        lines.append(f"| {row.what} | {' | '.join(cells)} |")
    return "\n".join(lines)
