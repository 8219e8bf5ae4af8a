"""A view's calls over time, as a chart: the sizes of their contexts, stacked by source, and the marks above them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

SOURCES: Final = ("tools", "system", "summaries", "history", "current_turn", "ephemeral")
"""Parts of a context in the order of the request, which is the order of the strata from the bottom."""
WIDTH: Final = 1000.0
HEIGHT: Final = 300.0
TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class CallColumn:
    """Consecutive calls first..last of a view, by number; the other fields are those of the largest, call `number`.

    `refused` calls were reported as too long, `failed` ones with another error.
    """

    first: int
    last: int
    number: int
    call_id: UUID
    created_at: datetime
    epoch: int
    estimate: int
    target: int
    input_tokens: int | None
    refused: int
    failed: int
    by_source: Mapping[str, int]
    stalled: str | None
    unfit: bool


@dataclass(frozen=True, slots=True)
class EpochStart:
    """A call, by number, that is rendered from another epoch than the call `before` it."""

    epoch: int
    number: int
    call_id: UUID
    before: UUID | None
    created_at: datetime
    cause: str | None
    tokens_before: int | None
    tokens_after: int | None


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A mark above the column at `x`, with the sentence that explains it."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Strata:
    """The shapes of a chart of WIDTH by HEIGHT; all paths are SVG's.

    `layers` are areas by source, `target` is a line. `slots` are the columns: x, width and the column itself. `ticks`
    are tokens and their y, `calls` numbers of calls and their x.
    """

    layers: Sequence[tuple[str, str]]
    target: str
    slots: Sequence[tuple[float, float, CallColumn]]
    epochs: Sequence[ChartMark]
    refused: Sequence[ChartMark]
    degraded: Sequence[ChartMark]
    ticks: Sequence[tuple[int, float]]
    calls: Sequence[tuple[int, float]]


def draw_strata(columns: Sequence[CallColumn], starts: Sequence[EpochStart]) -> Strata:
    """Return the chart of at least one column, in order of time, and of the beginnings of epochs, in any order."""
    most = tick_step(max(max(one.estimate, one.target) for one in columns) / TICKS) * TICKS
    width = WIDTH / len(columns)
    slots = [(round(index * width, 2), round(width, 2), column) for index, column in enumerate(columns)]
    edges = [slot[0] for slot in slots] + [WIDTH]
    lower = [0] * len(columns)
    layers = []
    for source in SOURCES:
        upper = [low + part for low, part in zip(lower, (_part(one, source) for one in columns), strict=True)]
        if upper != lower:
            layers.append((source, _area(edges, _heights(lower, most), _heights(upper, most))))
        lower = upper
    target = _steps(edges, _heights([one.target for one in columns], most))
    return Strata(
        layers,
        f"M{target}",
        slots,
        list(_epoch_marks(slots, starts)),
        list(_refused(slots)),
        list(_degraded(slots)),
        [(round(most * n / TICKS), round(HEIGHT * (1 - n / TICKS), 1)) for n in range(TICKS + 1)],
        [(slots[at][2].first, slots[at][0]) for at in range(0, len(slots), max(1, len(slots) // 8))],
    )


def tick_step(least: float) -> int:
    """Return the smallest of 1, 2, 2.5 or 5 times a power of ten, as a whole number, that is at least `least`."""
    power = 1
    while True:
        for times in (1.0, 2.0, 2.5, 5.0):
            if (step := power * times) >= least and step == int(step):
                return int(step)
        power *= 10


def _part(column: CallColumn, source: str) -> int:
    """Return the tokens of a source; of a call without such figures, all are called history."""
    if not column.by_source:
        return column.estimate if source == "history" else 0
    return column.by_source.get(source, 0)


def _heights(tokens: Sequence[int], most: int) -> list[float]:
    return [round(HEIGHT * (1 - value / most), 1) for value in tokens]


def _steps(edges: Sequence[float], heights: Sequence[float]) -> str:
    """Return a line of steps from left to right, without the move to its beginning."""
    points: list[str] = []
    for index, y in enumerate(heights):
        if index and y == heights[index - 1]:
            points.pop()
        else:
            points.append(f"{edges[index]:g},{y:g}")
        points.append(f"{edges[index + 1]:g},{y:g}")
    return " ".join(points)


def _area(edges: Sequence[float], lower: Sequence[float], upper: Sequence[float]) -> str:
    back = " ".join(reversed(_steps(edges, lower).split(" ")))
    return f"M{_steps(edges, upper)} {back}Z"


def _epoch_marks(slots: Sequence[tuple[float, float, CallColumn]], starts: Sequence[EpochStart]) -> Iterator[ChartMark]:
    """Yield one mark for each column in which epochs begin."""
    ordered = sorted(starts, key=lambda one: one.number)
    at = 0
    for x, _, column in slots:
        begun = []
        while at < len(ordered) and ordered[at].number <= column.last:
            if ordered[at].number >= column.first:
                begun.append(ordered[at])
            at += 1
        if begun:
            named = ", ".join(f"{one.epoch} ({_words(one.cause)}) at call {one.number}" for one in begun[:3])
            more = f" and {len(begun) - 3} more" if len(begun) > 3 else ""
            yield ChartMark(x, f"{'Epochs' if len(begun) > 1 else 'Epoch'} {named}{more}")


def _refused(slots: Sequence[tuple[float, float, CallColumn]]) -> Iterator[ChartMark]:
    for x, width, one in slots:
        if one.refused or one.failed:
            yield ChartMark(
                x + width / 2, f"{_calls(one)}: {one.refused} refused as too long, {one.failed} failed otherwise"
            )


def _degraded(slots: Sequence[tuple[float, float, CallColumn]]) -> Iterator[ChartMark]:
    for x, width, one in slots:
        if one.stalled or one.unfit:
            reasons = [f"stayed above its trigger ({_words(one.stalled)})"] if one.stalled else []
            reasons += ["held content that its format cannot express"] if one.unfit else []
            yield ChartMark(x + width / 2, f"Call {one.number} {' and '.join(reasons)}")


def _words(slug: str | None) -> str:
    return "unknown" if slug is None else slug.replace("_", " ")


def _calls(column: CallColumn) -> str:
    return f"Call {column.first}" if column.first == column.last else f"Calls {column.first} to {column.last}"
