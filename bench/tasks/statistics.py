"""Intervals of shares and of paired differences."""

from collections.abc import Sequence
from math import ceil, sqrt
from random import Random
from statistics import fmean
from typing import Final

Z: Final = 1.959964
"""Quantile of the normal distribution for intervals of 95%."""
RESAMPLES: Final = 2_000
Interval = tuple[float, float]


def wilson(successes: int, trials: int) -> Interval:
    """Return Wilson's score interval of a share; the whole range if there was no trial."""
    if trials == 0:
        return 0.0, 1.0
    share, square = successes / trials, Z * Z
    middle = share + square / (2 * trials)
    half = Z * sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    whole = 1 + square / trials
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


def paired_difference(only_first: int, only_second: int, pairs: int) -> tuple[float, Interval]:
    """Return the difference of two shares of the same trials, and the interval of Bonett and Price (2012).

    The counts are the pairs in which only one side succeeded.
    """
    if pairs == 0:
        return 0.0, (-1.0, 1.0)
    first, second = (only_first + 1) / (pairs + 2), (only_second + 1) / (pairs + 2)
    middle = first - second
    half = Z * sqrt(max(0.0, first + second - middle * middle) / (pairs + 2))
    return (only_first - only_second) / pairs, (max(-1.0, middle - half), min(1.0, middle + half))


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the bootstrap interval of a mean (percentiles of 2,000 resamples with a fixed seed)."""
    if not values:
        return 0.0, 0.0
    random = Random(1)
    means = sorted(fmean(random.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[round(RESAMPLES * 0.025)], means[round(RESAMPLES * 0.975) - 1]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that is at least as large as `percent` of the values; 0 if there are none."""
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)] if values else 0.0
