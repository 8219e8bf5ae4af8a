"""Creation, reading and erasure of sessions; and the limits of a tenant.

They are events per second, which each process counts alone, and sessions, which are counted in the database.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from app.core.errors import InvalidRequest, NotFound, TooManyEvents, TooManySessions
from app.core.log.events import EVENTS_PER_BATCH_MAX, Json, canonical_json
from app.core.log.segments import is_line, session_of
from app.core.policy.policy import Policy
from app.core.tokens.budget import own_budget
from app.resources.policies.service import Policies
from app.store import deletion, sessions, views
from app.store.engine import Connection, Database
from app.store.ids import session_ref
from app.store.session_filter import ListPosition, SessionFilter
from app.store.sessions import DEFAULT_POLICY, SessionRow, SessionSettings, ViewBudget
from app.store.spans import MAIN
from app.store.views import ListedEpoch
from app.tokenizers import Counting

ROUNDING: Final = 1e-6
"""Amount by which a bucket may fall short because of rounding."""


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
"""Processes assumed to create sessions at the same time: far from the limit, each admits 1/SHARE of the sessions above
NEAR_LIMIT before it counts again."""
FULL: Final = -1
"""Allowance of a tenant at its limit. It is kept as long as any other, so that repeated refusals do not count the
sessions again."""
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
        bucket, wait = take(self._buckets.get(tenant_id) or Bucket(rate.most, now), rate, events, now)
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
        until, allowance = self._counted.get(tenant_id, (now, 0))
        if until <= now or allowance == 0:
            existing = await sessions.count(tx, tenant_id, self._most + 1)
            if len(self._counted) >= TENANTS_REMEMBERED_MAX:
                self._counted.clear()
            until, allowance = now + COUNTED_SECONDS, _allowance(self._most - existing)
        self._counted[tenant_id] = until, max(allowance - 1, FULL)
        if allowance == FULL:
            raise TooManySessions(f"this tenant may have {self._most} sessions; erase some", limit=self._most)

    def note_erasure(self, tenant_id: UUID) -> None:
        """Count the tenant's sessions again at the next creation, if it had reached its limit."""
        if self._counted.get(tenant_id, (0.0, 0))[1] == FULL:
            del self._counted[tenant_id]


def _allowance(left: int) -> int:
    """Return the number of sessions to admit before the next count, including the one just counted."""
    return FULL if left < 0 else 1 + max(0, left - NEAR_LIMIT) // SHARE


METADATA_BYTES_MAX = 65_536


@dataclass(eq=False)
class Sessions:
    """Creates, changes, reads and erases sessions."""

    _database: Database
    _counting: Counting
    _policies: Policies
    _quota: SessionQuota

    async def put(
        self,
        tenant_id: UUID,
        address: str,
        *,
        model: str | None,
        policy: str | Mapping[str, Any] | None,
        metadata: Mapping[str, Json] | None,
        outside_tokens: int | None = None,
    ) -> tuple[SessionRow, bool]:
        """Create or change a session; return it, and whether it is new.

        A new policy applies to the main view and to every view with the session's policy: they are planned again at
        their next context. Views with a policy of their own keep it. Raises InvalidRequest, NotFound, InvalidPolicy or
        CannotFit if policy, model and outside tokens together leave no room, TooManySessions, or SessionErased if the
        name was erased and no metadata is given.
        """
        if metadata is not None:
            check_metadata(metadata)
        policy_ref = None if policy is None else await self._policies.resolve(tenant_id, policy)
        given = SessionSettings(model, policy_ref, metadata, outside_tokens)
        created = False
        if not await self._change(tenant_id, address, given):
            created = await self._create(tenant_id, address, given)
            if not created:
                await self._change(tenant_id, address, given)
        if metadata is not None and is_line(address):  # filters also read the session's own row
            await self._change(tenant_id, session_of(address), SessionSettings(metadata=metadata))
        return await sessions.get_line(self._database, tenant_id, address), created

    async def _create(self, tenant_id: UUID, address: str, given: SessionSettings) -> bool:
        """Create a session; return False if it exists. Raises InvalidRequest for a name reserved for lines."""
        sessions.check_name(address)
        policy = await self._policies.get(tenant_id, given.policy or DEFAULT_POLICY)
        self._view_budget(policy, given.model, given.outside_tokens)
        estimator = self._counting.estimator(given.model).name
        async with self._database.transaction() as tx:
            created = await sessions.create(tx, tenant_id, address, given, estimator=estimator)
            if created:
                await deletion.admit_name(tx, tenant_id, address, has_metadata=given.metadata is not None)
                await self._quota.admit(tx, tenant_id)
        return created

    async def _change(self, tenant_id: UUID, address: str, given: SessionSettings) -> bool:
        """Change a session; return False if there is none."""
        ref = session_ref(tenant_id, address)
        estimator = None if given.model is None else self._counting.estimator(given.model).name
        async with self._database.transaction() as tx:
            session = await sessions.lock(tx, ref)
            if session is None:
                return False
            await self._apply_to_views(tx, session, given)
            await sessions.update(tx, ref.session_id, given, estimator)
        return True

    async def _apply_to_views(self, tx: Connection, session: SessionRow, given: SessionSettings) -> None:
        """Give a new policy to the views that use the old one, after checking that the changed settings leave room for
        contexts. Raises InvalidPolicy or CannotFit."""
        old = session.policy, session.model, session.outside_tokens
        policy_ref, model = given.policy or session.policy, given.model or session.model
        outside = session.outside_tokens if given.outside_tokens is None else given.outside_tokens
        if (policy_ref, model, outside) == old:
            return
        policy = await self._policies.get(session.tenant_id, policy_ref, tx)
        self._view_budget(policy, model, outside)
        if (policy_ref, outside) == (session.policy, session.outside_tokens):
            return  # a new model concerns only views without one of their own, whose budget was just checked
        has_new_policy = policy_ref != session.policy
        for view, view_model in (await sessions.lock_views_on_policy(tx, session, main=has_new_policy)).items():
            budget = self._view_budget(policy, view_model or model, outside)
            if has_new_policy:
                await sessions.set_view_policy(tx, session.session_id, view, policy_ref, budget)

    def _view_budget(self, policy: Policy, model: str | None, outside: int | None) -> ViewBudget:
        """Return a view's window and target with this policy and model, if `outside` tokens are sent besides requests.

        Raises InvalidPolicy when the reserves leave nothing, CannotFit when the tokens outside take the rest.
        """
        margin = self._counting.counter(model, policy).estimator.margin
        budget = own_budget(policy, model, margin, outside=outside)
        return ViewBudget(budget.window, budget.target)

    async def get(self, tenant_id: UUID, address: str) -> SessionRow:
        """Return a session. Raises NotFound."""
        return await sessions.get_line(self._database, tenant_id, address)

    async def page(
        self, tenant_id: UUID, limit: int, after: ListPosition | None, filters: SessionFilter
    ) -> tuple[list[SessionRow], ListPosition | None]:
        """Return sessions, newest first; if fewer than `limit` though more may follow, also where to resume after."""
        return await sessions.page(self._database, tenant_id, limit, after, filters)

    async def erase(self, tenant_id: UUID, address: str, *, forks: bool = False, prefix: str = "") -> None:
        """Erase a session and all its data, and its forks if `forks`.

        Raises NotFound, Conflict naming the forks if they must stay, or OutsidePrefix if a name lacks the `prefix`.
        """
        erased = await deletion.erase_session(self._database, tenant_id, address, forks=forks, prefix=prefix)
        if not erased:
            raise NotFound(f"there is no session {address!r}", session=address)
        self._quota.note_erasure(tenant_id)

    async def epochs(self, tenant_id: UUID, address: str, view: str, after: int, limit: int) -> list[ListedEpoch]:
        """Return the epochs of a view; `main` exists from the start. Raises NotFound."""
        row = await sessions.get(self._database, tenant_id, address)
        found = await views.page_of_epochs(self._database, row.session_id, view, after, limit)
        if not found and view != MAIN and await views.current_epoch(self._database, row.session_id, view) is None:
            raise NotFound(f"session {address!r} has no view {view!r} yet", session=address, view=view)
        return found


def check_metadata(metadata: Mapping[str, Json]) -> None:
    """Check metadata. Raises InvalidRequest for values that cannot be stored."""
    try:
        text = canonical_json(metadata)
        size = len(text.encode())
    except (ValueError, RecursionError):
        detail = "metadata contains a value that JSON cannot hold, or is nested too deeply"
        raise InvalidRequest(detail, field="metadata") from None
    if size > METADATA_BYTES_MAX:
        raise InvalidRequest(f"metadata takes {size} bytes, at most {METADATA_BYTES_MAX}", field="metadata")
    if "\\u0000" in text:
        raise InvalidRequest("metadata holds a NUL character", field="metadata")
