"""The criterion for a flat quantity, as pure functions of its samples."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

WARM_UP: Final = 0.2
"""Share of the time before the first third: caches fill, and Postgres' backends prepare statements."""
THIRD_LEAST: Final = 3
"""Minimum number of samples in a third."""
PAIRS_MAX: Final = 200
"""Samples whose slopes are compared with each other; of a longer series, evenly spaced ones."""

Series = Sequence[tuple[float, float]]
"""Seconds since the beginning, and the value then."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Permitted growth of a quantity: a share of its first third's median, or `slack` in its unit if that is more."""

    share: float
    slack: float


@dataclass(frozen=True, slots=True)
class Trend:
    """Trend of a quantity: the medians of the first and the last third, and its slope an hour.

    `allowed_per_hour` is the slope at which the growth over the whole time equals the bound. All are None with too few
    samples.
    """

    first: float | None
    last: float | None
    per_hour: float | None
    allowed_per_hour: float | None
    flat: bool | None


def trend(series: Series, bound: Bound) -> Trend:
    """Return the trend of a quantity, and whether it is flat.

    The time after the warm-up is cut into thirds. A quantity is flat if it has grown by no more than the bound allows,
    both from the first third's median to the last's, and by its slope (Theil and Sen's: the median of the slopes
    between any two samples, which is robust against outliers) over the whole of that time. A falling quantity is flat.
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
    """Return the median of the slopes between any two samples, a second."""
    step = -(-len(series) // PAIRS_MAX)
    pairs = combinations(series[::step], 2)
    return statistics.median((b - a) / (then - at) for (at, a), (then, b) in pairs if then > at)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
