"""Limits of a tenant: events a second, and sessions. Each process counts for itself."""

import math
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

from app.core.errors import TooManyEvents, TooManySessions
from app.core.log.events import EVENTS_PER_BATCH_MAX
from app.core.network.rates import Bucket, Rate, full, take
from app.store import sessions
from app.store.engine import Connection

BURST_SECONDS: Final = 10
"""How many seconds' worth of events an idle tenant may append at once; at least one whole batch."""
TENANTS_REMEMBERED_MAX: Final = 10_000
SHARE: Final = 16
"""Before a process counts again it admits the remaining sessions divided by this: so many processes together stay
within the limit."""
FULL_SECONDS: Final = 1.0
"""How long a count at the limit is believed, so that repeated refusals cost no counting."""


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
        bucket, wait = take(self._buckets.get(tenant_id) or full(rate, now), rate, events, now)
        if wait:
            seconds = math.ceil(wait)
            raise TooManyEvents(
                f"this tenant may append {rate.per_second} events a second; {events} may come in {seconds} seconds",
                limit=rate.per_second,
                retry_after_seconds=seconds,
            )
        if len(self._buckets) >= TENANTS_REMEMBERED_MAX:
            self._buckets = {one: held for one, held in self._buckets.items() if held.holds(rate, now) < rate.most}
        self._buckets[tenant_id] = bucket


class SessionQuota:
    """The limit on a tenant's sessions; `most` 0: no limit.

    Sessions are counted when one is created, and seldom far below the limit. Sessions that several processes create at
    the same moment may exceed it by as many.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._left: dict[UUID, int] = {}
        self._full_until: dict[UUID, float] = {}

    async def admit(self, tx: Connection, tenant_id: UUID) -> None:
        """Admit a session that `tx` has just created. Raises TooManySessions, which must roll the transaction back."""
        if not self._most:
            return
        left = self._left.get(tenant_id, 0)
        if left > 0:
            self._left[tenant_id] = left - 1
            return
        now = self._clock()
        if self._full_until.get(tenant_id, now) > now:
            self._refuse()
        made = await sessions.count(tx, tenant_id, self._most + 1)
        if len(self._left) + len(self._full_until) >= TENANTS_REMEMBERED_MAX:
            self._left.clear()
            self._full_until.clear()
        if made > self._most:
            self._full_until[tenant_id] = now + FULL_SECONDS
            self._refuse()
        self._left[tenant_id] = (self._most - made) // SHARE

    def erased(self, tenant_id: UUID) -> None:
        """Note that a session of the tenant was erased."""
        self._full_until.pop(tenant_id, None)

    def _refuse(self) -> None:
        raise TooManySessions(f"this tenant may have {self._most} sessions; erase some", limit=self._most)
