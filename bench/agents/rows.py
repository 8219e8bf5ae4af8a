"""Figures of one kind for each side, as the scenes give them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.agents.sides import Side


@dataclass(slots=True)
class Row:
    """A figure: a value of each side for each round or time it was taken."""

    what: str
    form: str = ".1f"
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: Side, value: float) -> None:
        """One more value of a side."""
        self.values.setdefault(side.name, []).append(value)

    def of(self, side: str) -> float | None:
        """The median of a side."""
        found = self.values.get(side)
        return statistics.median(found) if found else None


def rows_table(rows: Sequence[Row], sides: Sequence[str]) -> str:
    """Medians, and the ratio of each side to the first."""
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
