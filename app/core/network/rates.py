"""A token bucket: how much may be taken at once, and how soon the rest is there."""

from dataclasses import dataclass
from typing import Final

ROUNDING: Final = 1e-6
"""By so much a bucket that was waited for may hold too little, since times are rounded."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a bucket fills, and how much it holds at most."""

    per_second: float
    most: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """What was in a bucket at a time, in seconds of a clock that never goes back."""

    held: float
    at: float

    def holds(self, rate: Rate, now: float) -> float:
        """What is in it now."""
        return min(rate.most, self.held + (now - self.at) * rate.per_second)


def full(rate: Rate, now: float) -> Bucket:
    """A bucket of which nothing was taken yet."""
    return Bucket(rate.most, now)


def take(bucket: Bucket, rate: Rate, amount: float, now: float) -> tuple[Bucket, float]:
    """The bucket without `amount`, and 0; or as it is, and the seconds until it holds so much.

    An amount over `rate.most` is never there: it is for the caller to refuse.
    """
    held = bucket.holds(rate, now)
    if held + ROUNDING >= amount:
        return Bucket(max(0.0, held - amount), now), 0.0
    return bucket, (amount - held) / rate.per_second
