"""A view's calls over time: the strata, their sizes stacked by source, and the life of an event.

A life is divided where the way the calls show the event changed. The agent still needed an event that was left out if
it recalled the original, or made the tool call again.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from app.core.log.event import content_text

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


_BEFORE_MATCH: Final = 60
_EXCERPT_CHARS: Final = 240


@dataclass(frozen=True, slots=True)
class StateRun:
    """Consecutive calls of a view, by number, whose epochs decided the same about an event.

    The calls of a run show it alike, for one reason. `before` is the call before the first one.
    """

    call_id: UUID
    before: UUID | None
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LifeRun:
    """Calls first..last of a view, by number, that show an event alike; `item` of its history is the first call's.

    `before` is the id of the call before the first one.
    """

    first: int
    last: int
    item: Mapping[str, Any]
    before: UUID | None = None


def life_of(runs: Sequence[tuple[StateRun, Mapping[str, Any] | None]]) -> list[LifeRun]:
    """Return runs with the items of their first calls; neighbours that show the event alike become one."""
    done: list[LifeRun] = []
    for run, item in runs:
        if item is None:  # the call was deleted after the run was read
            continue
        if done and _shown(done[-1].item) == _shown(item):
            done[-1] = replace(done[-1], last=run.last)
        else:
            done.append(LifeRun(run.first, run.last, item, run.before))
    return done


def _shown(item: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(item[name] for name in ("disposition", "summary", "reducer", "reason"))


def run_at(life: Sequence[LifeRun], number: int) -> LifeRun | None:
    """Return the run with this call; None if it is in none."""
    return next((run for run in life if run.first <= number <= run.last), None)


def holders(lines: Sequence[Mapping[str, Any]], line: str, seq: int) -> list[str]:
    """Return the other lines of a session that have the event `seq` of this line in their logs."""
    known = {one["id"]: one for one in lines}

    def owner(id: str) -> str:
        while id in known and known[id]["parent"] is not None and seq <= known[id]["at"]:
            id = known[id]["parent"]
        return id

    return [id for id, one in known.items() if id != line and seq <= one["head"] and owner(id) == owner(line)]


def event_text(event: Mapping[str, Any]) -> str:
    """Return the text of an event: its content, and a call's arguments."""
    given = event.get("arguments")
    if isinstance(given, str):
        with suppress(ValueError):
            given = json.loads(given)
    if isinstance(given, dict):
        given = "\n".join(f"{name}: {_as_text(value)}" for name, value in given.items())
    content = event.get("content")
    if isinstance(content, list) and event["type"] == "tools":
        content = _as_text(content)
    return "\n".join(part for part in (content_text(content), "" if given is None else _as_text(given)) if part)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def pattern(find: str) -> re.Pattern[str] | None:
    """Return the pattern of a text in upper or lower case, whatever white space is between its words."""
    words = find.split()
    return re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE) if words else None


def pieces(text: str, found: re.Pattern[str] | None) -> list[tuple[str, bool]]:
    """Return an excerpt around the first match, in pieces, each with whether it matches."""
    match = found.search(text) if found else None
    start = max(0, match.start() - _BEFORE_MATCH) if match else 0
    shown = text[start : start + _EXCERPT_CHARS]
    done = [("…", False)] if start else []
    end = 0
    for hit in found.finditer(shown) if found else ():
        done += [(shown[end : hit.start()], False), (hit.group(), True)]
        end = hit.end()
    return [*done, (shown[end:] + ("…" if start + _EXCERPT_CHARS < len(text) else ""), False)]


@dataclass(frozen=True, slots=True)
class Need:
    """An event that was needed again by the time of event `at`, which recalled it or called its tool once more."""

    seq: int
    at: int
    tool: str


@dataclass(frozen=True, slots=True)
class Damage(Need):
    """An event that was needed again after it had been left out, and the decision that left it out."""

    epoch: int
    disposition: str
    reducer: str
    reason: str


def repeated_calls(calls: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, str]]:
    """Yield each tool call that repeats an earlier one: the seq of the latest equal call, its own, and the tool.

    `calls` are events as the API returns them, in the order of the log.
    """
    latest: dict[str, int] = {}
    for call in calls:
        key = json.dumps([call.get("tool"), call.get("arguments")], sort_keys=True)
        if key in latest:
            yield latest[key], call["seq"], call.get("tool") or ""
        latest[key] = call["seq"]


def recalled_seqs(content: object) -> list[int]:
    """Return the seqs of the originals in a result of the recall tool; of those the model saw anyway there is none."""
    try:
        found = json.loads(content) if isinstance(content, str) else content
        items = found["items"] if isinstance(found, dict) else []
        return [item["seq"] for item in items if isinstance(item.get("content"), str) and isinstance(item["seq"], int)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def by_rule(found: Iterable[Damage]) -> list[tuple[str, str, int]]:
    """Count damage by reducer and tool, the most frequent first."""
    counts = Counter((one.reducer, one.tool) for one in found)
    return [(reducer, tool, number) for (reducer, tool), number in counts.most_common()]
