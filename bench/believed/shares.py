"""Shares with Wilson's 95% intervals."""

from collections.abc import Collection
from math import sqrt
from typing import Final

Z: Final = 1.959964
"""Two-sided 95% point of the normal distribution."""


def wilson(found: int, of: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share."""
    share, square = found / of, Z * Z
    middle, half = share + square / (2 * of), Z * sqrt(share * (1 - share) / of + square / (4 * of * of))
    return (middle - half) / (1 + square / of), (middle + half) / (1 + square / of)


def cell(found: Collection[bool]) -> str:
    """Return a share with its interval in the form `34.5% (32-37)`; empty without anything to count."""
    if not found:
        return ""
    low, high = wilson(sum(found), len(found))
    return f"{sum(found) / len(found):.1%} ({max(0.0, low) * 100:.0f}-{high * 100:.0f})"
