"""When a quantity that was sampled over time counts as flat; pure functions of samples."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

WARM_UP: Final = 0.2
"""The share of the time that comes before the first third: caches fill, and Postgres' backends prepare statements."""
THIRD_LEAST: Final = 3
"""Samples that a third needs."""
PAIRS_MAX: Final = 200
"""Samples whose slopes are compared with each other; of more, so many are taken evenly."""

Series = Sequence[tuple[float, float]]
"""Seconds since the beginning, and the value then."""


@dataclass(frozen=True, slots=True)
class Bound:
    """By how much a quantity may grow: a share of its first third's median, or `slack` in its unit, if that is more."""

    share: float
    slack: float


@dataclass(frozen=True, slots=True)
class Trend:
    """How a quantity went: the medians of the first and the last third, and its slope an hour.

    `allowed_per_hour` is the slope that comes to what the bound allows in the whole time. None where there were too few
    samples to say.
    """

    first: float | None
    last: float | None
    per_hour: float | None
    allowed_per_hour: float | None
    flat: bool | None


def trend(series: Series, bound: Bound) -> Trend:
    """Whether a quantity is flat.

    Behind the warm-up the time is cut into thirds. Flat is what has grown by no more than the bound allows, both from
    the first third's median to the last's, and by its slope (Theil and Sen's: the median of the slopes between any two
    samples, which outliers do not move) over the whole of that time. What falls is flat.
    """
    begun = series[0][0] + (series[-1][0] - series[0][0]) * WARM_UP if series else 0.0
    kept = [sample for sample in series if sample[0] >= begun]
    third = (kept[-1][0] - kept[0][0]) / 3 if kept else 0.0
    first = [value for at, value in kept if at <= kept[0][0] + third]
    last = [value for at, value in kept if at >= kept[-1][0] - third]
    if min(len(first), len(last)) < THIRD_LEAST or not third:
        return Trend(None, None, None, None, None)
    before, after = statistics.median(first), statistics.median(last)
    hours = third * 3 / 3600
    allowed = max(bound.slack, bound.share * before)
    per_hour = _slope(kept) * 3600
    flat = after - before <= allowed and per_hour * hours <= allowed
    return Trend(before, after, per_hour, allowed / hours, flat)


def _slope(series: Series) -> float:
    """The median of the slopes between any two samples, a second."""
    step = -(-len(series) // PAIRS_MAX)
    pairs = combinations(series[::step], 2)
    return statistics.median((b - a) / (then - at) for (at, a), (then, b) in pairs if then > at)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
