"""Limits of a tenant: events per second, by a token bucket, and number of sessions. Each process counts its own."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.core.errors import TooManyEvents, TooManySessions
from app.core.log.events import EVENTS_PER_BATCH_MAX
from app.store import sessions
from app.store.engine import Connection

ROUNDING: Final = 1e-6
"""Shortfall that is ignored: after the seconds that `take` returned, rounding may leave the bucket that much short."""


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

    def amount_at(self, rate: Rate, now: float) -> float:
        """Return the amount in the bucket at the time `now`."""
        return min(rate.most, self.held + (now - self.at) * rate.per_second)


def full_bucket(rate: Rate, now: float) -> Bucket:
    """Return a full bucket."""
    return Bucket(rate.most, now)


def take(bucket: Bucket, rate: Rate, amount: float, now: float) -> tuple[Bucket, float]:
    """Take `amount` and return the bucket left and 0.0; or the same bucket and the seconds until it holds the amount.

    The caller must refuse an amount over `rate.most`, which the bucket never holds.
    """
    held = bucket.amount_at(rate, now)
    if held + ROUNDING >= amount:
        return Bucket(max(0.0, held - amount), now), 0.0
    return bucket, (amount - held) / rate.per_second


BURST_SECONDS: Final = 10
"""Size of a tenant's bucket, in seconds of its rate; at least one whole batch."""
TENANTS_REMEMBERED_MAX: Final = 10_000
NEAR_LIMIT: Final = 1_000
"""With at most this many sessions left, they are counted whenever one is created."""
SHARE: Final = 16
"""With more left, a process admits the number above NEAR_LIMIT divided by this before it counts again, so that this
many processes together stay within the limit."""
FULL: Final = -1
"""Allowance of a tenant that has reached its limit. It is cached like a count: repeated refusals count nothing."""
COUNTED_SECONDS: Final = 1.0
"""Seconds for which a count is used: other processes create and erase sessions too."""


class EventRates:
    """A token bucket for each tenant; `per_second` 0: no limit."""

    def __init__(self, per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = Rate(per_second, max(per_second * BURST_SECONDS, EVENTS_PER_BATCH_MAX)) if per_second else None
        self._clock = clock
        self._buckets: dict[UUID, Bucket] = {}

    def take(self, tenant_id: UUID, events: int) -> None:
        """Take `events` from a tenant's bucket. Raises TooManyEvents and takes none if there are too few."""
        rate = self._rate
        if rate is None:
            return
        now = self._clock()
        bucket, wait = take(self._buckets.get(tenant_id) or full_bucket(rate, now), rate, events, now)
        if wait:
            seconds = math.ceil(wait)
            raise TooManyEvents(
                f"this tenant may append {rate.per_second} events per second; retry {events} in {seconds} seconds",
                limit=rate.per_second,
                retry_after_seconds=seconds,
            )
        if len(self._buckets) >= TENANTS_REMEMBERED_MAX:
            self._buckets = {one: held for one, held in self._buckets.items() if held.amount_at(rate, now) < rate.most}
        self._buckets[tenant_id] = bucket


class SessionQuota:
    """The limit on a tenant's sessions; `most` 0: no limit.

    Near the limit, sessions are counted whenever one is created, by one transaction at a time; far from the limit, once
    per COUNTED_SECONDS. The limit is exceeded only if more than NEAR_LIMIT sessions are created within that time.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._counted: dict[UUID, tuple[float, int]] = {}
        """By tenant: the time when its count expires, and the number of sessions to admit before the next one."""

    async def admit(self, tx: Connection, tenant_id: UUID) -> None:
        """Admit a session that `tx` has just created. Raises TooManySessions, which must roll the transaction back."""
        if not self._most:
            return
        now = self._clock()
        until, left = self._counted.get(tenant_id, (now, 0))
        if until <= now or left == 0:
            existing = await sessions.count(tx, tenant_id, self._most + 1)
            if len(self._counted) >= TENANTS_REMEMBERED_MAX:
                self._counted.clear()
            until, left = now + COUNTED_SECONDS, _allowance(self._most - existing)
        self._counted[tenant_id] = until, max(left - 1, FULL)
        if left == FULL:
            raise TooManySessions(f"this tenant may have {self._most} sessions; erase some", limit=self._most)

    def note_erasure(self, tenant_id: UUID) -> None:
        """Count the tenant's sessions again at the next creation, if it had reached its limit."""
        if self._counted.get(tenant_id, (0.0, 0))[1] == FULL:
            del self._counted[tenant_id]


def _allowance(left: int) -> int:
    """Return the number of sessions to admit before the next count, including the one just counted."""
    return FULL if left < 0 else 1 + max(0, left - NEAR_LIMIT) // SHARE
