"""Markdown tables of the measurements."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from app.core.policy.policy import PRESETS
from bench.quality.kept import Kept, Share, total
from bench.quality.scenarios import (
    FIRST_ASKED,
    LIVED_THROUGH,
    PRESET_CHANGED,
    PRESET_CHANGED_LATER,
    PRESET_FROM_START,
    RESTARTED,
    SMALLER,
    WINDOW_IN_CALL,
    WINDOW_IN_CALL_LATER,
    Record,
)

NEWEST, OWN = "the newest messages", "the agent's own summary and the newest messages"
SHORT: Final = (FIRST_ASKED, LIVED_THROUGH, RESTARTED, SMALLER, WINDOW_IN_CALL, WINDOW_IN_CALL_LATER, NEWEST, OWN)
DRAWN: Final = (FIRST_ASKED, LIVED_THROUGH, SMALLER, WINDOW_IN_CALL, NEWEST, OWN)
_SHARES: Final[tuple[tuple[str, Callable[[Kept], Share]], ...]] = (
    ("values", lambda kept: kept.values),
    ("distinct", lambda kept: kept.distinct),
    ("not shown again", lambda kept: kept.unseen),
    ("files, full path", lambda kept: kept.files),
    ("by name", lambda kept: kept.names),
    ("constraints", lambda kept: kept.constraints),
    ("short answers shown, with their question", lambda kept: kept.answers),
    ("edits", lambda kept: kept.edits),
)
_OTHERS: Final = (
    "of the target",
    "least used",
    "dropped",
    "of them covered",
    "of all covered",
    "summaries",
    "epochs opened by",
    "refused",
    "contexts",
)


def share(kept: Sequence[Kept], of: Callable[[Kept], Share]) -> float | None:
    """Return the share over all contexts, weighted by their totals; None where there was nothing to show."""
    found, every = total([of(one) for one in kept])
    return found / every if every else None


def values(records: Sequence[Record], scenario: str, window: int) -> float | None:
    """Return the share of uses of values that are visible in a scenario at a window."""
    return share(_kept(records, scenario, window), lambda kept: kept.values)


def edits(records: Sequence[Record], scenario: str, window: int) -> float | None:
    """Return the share of the texts replaced by edits that are visible in a scenario at a window."""
    return share(_kept(records, scenario, window), lambda kept: kept.edits)


def comparison(records: Sequence[Record], of: Callable[[Sequence[Record], str, int], float | None] = values) -> str:
    """Return a table of visible values, or of another share `of`, by window and scenario."""
    names = [name for name in SHORT if any(record.scenario == name for record in records)]
    lines = [f"| window | {' | '.join(names)} | first asked less lived through |", "|---" * (len(names) + 2) + "|"]
    for window in windows(records):
        cells = [_percent(of(records, name, window)) for name in names]
        first, lived = of(records, FIRST_ASKED, window), of(records, LIVED_THROUGH, window)
        gap = "" if first is None or lived is None else f"{(first - lived) * 100:+.1f}"
        lines.append(f"| {window:,} | {' | '.join(cells)} | {gap} |")
    return "\n".join(lines)


def policies(records: Sequence[Record]) -> str:
    """Return a line for each preset and window: values that are visible, and events dropped although covered."""
    heads = [
        "from the start",
        "after `default`",
        "and the worker done",
        "of the target, from the start",
        "after `default`",
        "dropped although covered, from the start",
        "after `default`",
        "and the worker done",
    ]
    lines = [f"| window | policy | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    for window in windows(records):
        for preset in PRESETS:
            names = [one.format(preset) for one in (PRESET_FROM_START, PRESET_CHANGED, PRESET_CHANGED_LATER)]
            ways = [_kept(records, name, window) for name in names]
            if any(ways):
                cells = [_percent(share(way, lambda kept: kept.values)) for way in ways]
                cells += [_percent(sum(one.used for one in way) / max(1, len(way)), 0) for way in ways[:2]]
                cells += [f"{sum(one.lost for one in way):,}" for way in ways]
                lines.append(f"| {window:,} | `{preset}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def scenario_table(records: Sequence[Record], scenario: str) -> str:
    """Return all figures of one scenario, a line for each window."""
    heads = [name for name, _ in _SHARES] + list(_OTHERS)
    lines = [f"| window | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for window in windows(records):
        kept = _kept(records, scenario, window)
        if kept:
            lines.append(f"| {window:,} | {' | '.join(_cells(kept))} |")
    return "\n".join(lines)


def windows(records: Sequence[Record]) -> list[int]:
    """Return the windows that were measured."""
    return sorted({record.window for record in records})


def scenarios(records: Sequence[Record]) -> list[str]:
    """Return the scenarios that were measured, the common ones first."""
    found = dict.fromkeys(record.scenario for record in records)
    return [name for name in SHORT if name in found] + sorted(name for name in found if name not in SHORT)


def _cells(kept: Sequence[Kept]) -> list[str]:
    shown = [one for one in kept if not one.refused]
    size = max(1, len(shown))
    causes = Counter(one.cause for one in shown if one.cause)
    return [
        *(_percent(share(kept, of)) for _, of in _SHARES),
        _percent(sum(one.used for one in shown) / size, 0),
        _percent(min((one.used for one in shown if one.dropped), default=None), 0),
        f"{sum(one.dropped for one in shown):,}",
        f"{sum(one.lost for one in shown):,}",
        _percent(share(shown, lambda one: one.covered), 0),
        f"{sum(one.summaries for one in shown) / size:.1f}",
        ", ".join(f"{cause} {times}" for cause, times in causes.most_common()),
        str(len(kept) - len(shown)),
        str(len(kept)),
    ]


def _kept(records: Sequence[Record], scenario: str, window: int) -> list[Kept]:
    return [record.kept for record in records if record.scenario == scenario and record.window == window]


def _percent(value: float | None, places: int = 1) -> str:
    return "" if value is None else f"{value:.{places}%}"
