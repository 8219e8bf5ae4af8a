"""A token bucket for rate limits."""

from dataclasses import dataclass
from typing import Final

ROUNDING: Final = 1e-6
"""The shortfall that is ignored, because a caller's waiting time is rounded."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate at which a bucket fills, and the most that it holds."""

    per_second: float
    most: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """The amount `held` in a bucket at the time `at`, in seconds of a monotonic clock."""

    held: float
    at: float

    def holds(self, rate: Rate, now: float) -> float:
        """Return the amount in the bucket at the time `now`."""
        return min(rate.most, self.held + (now - self.at) * rate.per_second)


def full(rate: Rate, now: float) -> Bucket:
    """Return a full bucket."""
    return Bucket(rate.most, now)


def take(bucket: Bucket, rate: Rate, amount: float, now: float) -> tuple[Bucket, float]:
    """Take `amount` and return the bucket left and 0.0; or the same bucket and the seconds until it holds the amount.

    The caller must refuse an amount over `rate.most`, which the bucket never holds.
    """
    held = bucket.holds(rate, now)
    if held + ROUNDING >= amount:
        return Bucket(max(0.0, held - amount), now), 0.0
    return bucket, (amount - held) / rate.per_second
