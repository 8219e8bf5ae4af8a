"""The ledger of a session's view, and the sums of a tenant's calls, with their bills."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from statistics import median
from typing import Final, Generic, TypeVar
from uuid import UUID

from app.core import dataclass, replace
from app.core.errors import InvalidRequest
from app.core.policy.groups import Prices
from app.core.policy.policy import Policy
from app.core.record.evictions import input_if_sent
from app.core.render.formats import FORMATS
from app.core.tokens.models import Bill, CacheProfile, cache_profile, priced, profile_name
from app.resources.feedback.measurements import CacheReads
from app.resources.feedback.service import RecordedReport
from app.resources.policies.service import Policies
from app.store import sessions
from app.store.engine import Database
from app.wings.ledger import store
from app.wings.ledger.cache_use import Caches, CountedCall, CountedEpoch, LedgerBreakpoint, LedgerLine, Usage
from app.wings.ledger.totals import (
    POTENTIAL_CALLS_MAX,
    Account,
    Group,
    Holdout,
    PotentialBill,
    SessionBill,
    Totals,
    accounts,
    totals,
)

CACHES_KEPT: Final = 256
"""Number of cache profiles that are remembered, by model, policy and format."""
CALLS_MAX: Final = 5_000
"""Maximum number of calls of a view in a ledger: the newest. Each takes about 0.1 ms of CPU."""
DAYS_MAX: Final = 31
DRAWN_MAX: Final = 20_000
"""Maximum number of rows, one per session and model, from which held-out sessions and others are compared."""
CALLS_LOOKED_BACK: Final = 16
"""Calls of a view that are read to compute the expected cache reads of the last one."""
FOLLOWED_MAX: Final = 256
"""Views whose caches are kept in memory: the expected reads of a call then follow from its own row."""
EPOCHS_FOLLOWED_MAX: Final = 64
"""Epochs of a view after which its caches are computed from its last calls again."""


@dataclass(frozen=True, slots=True)
class _Outside:
    """Tokens sent outside the requests, in the provider's tokens; `scale`: the provider's tokens per token of ours."""

    known: int
    scale: float

    def provider_tokens(self, row: store.LedgerRow) -> int:
        """Return the tokens sent outside one call's request."""
        return row.outside or self.known

    def estimator_tokens(self, row: store.LedgerRow) -> int:
        """Return the tokens sent outside one call's request, in the estimator's tokens."""
        return round(self.provider_tokens(row) / self.scale)


@dataclass(frozen=True, slots=True)
class ViewLedger:
    """The ledger of a view: calls with their lines, newest first, the epochs they were rendered in, and all totals.

    `causes` are the causes of the epochs by number. `partial`: older calls are left out. `ends`: this is the last page.
    `warmings` are those of the view's cache.
    """

    calls: Sequence[tuple[store.LedgerRow, LedgerLine]]
    epochs: Sequence[Account]
    causes: Mapping[int, str]
    totals: Totals
    partial: bool
    ends: bool
    warmings: Sequence["Billed[store.WarmingSums]"] = ()


Sums = TypeVar("Sums", store.CallSums, store.WarmingSums)


@dataclass(frozen=True, slots=True)
class Billed(Generic[Sums]):
    """The sums of the calls or warmings of one model, format and policy, with their bill at the policy's prices."""

    sums: Sums
    bill: Bill
    prices: Prices


@dataclass(frozen=True, slots=True)
class TenantLedger:
    """The sums of a tenant's calls in [since, until), of the warmings of their caches, and of its observed calls.

    `potential` prices the newest of the observed calls. `holdout` are the sessions held out and the others they are
    compared with; None if none was drawn.
    """

    since: datetime
    until: datetime
    sums: Sequence[Billed[store.CallSums]]
    warmings: Sequence[Billed[store.WarmingSums]]
    observed: Sequence[Billed[store.CallSums]]
    potential: PotentialBill
    holdout: Holdout | None


@dataclass(frozen=True, slots=True)
class _Followed:
    """The caches that a view's calls left, up to the call `last` in `epoch`, and the tokens outside their requests."""

    caches: Caches
    outside: _Outside
    last: UUID
    epoch: int


class Ledger:
    """Makes the ledgers of views and tenants."""

    def __init__(self, database: Database, policies: Policies, caches: Mapping[str, CacheProfile]) -> None:
        self._database = database
        self._policies = policies
        self._caches = caches
        self._cache_profile = lru_cache(CACHES_KEPT)(partial(cache_profile, table=caches))
        self._followed: OrderedDict[tuple[UUID, str], _Followed] = OrderedDict()

    async def view_ledger(
        self, tenant_id: UUID, external_id: str, view: str, before: UUID | None, limit: int, newest: int = CALLS_MAX
    ) -> ViewLedger:
        """Return up to `limit` calls before the call `before`, newest first, their epochs, and the totals.

        Only the `newest` calls of the view are covered. Raises NotFound for an unknown session.
        """
        session = await sessions.get(self._database, tenant_id, external_id)
        rows = await store.calls(self._database, session.ref, view, newest + 1)
        partial, rows = len(rows) > newest, rows[-newest:]
        first = min((row.epoch for row in rows), default=0)
        found = await store.epochs(self._database, session.ref, view, first)
        used = {row.policy: await self._policies.get(tenant_id, row.policy) for row in rows}
        sums = await store.view_warmings(self._database, session.ref, view)
        warmed = await self._billed(tenant_id, sums)
        made = await asyncio.to_thread(self._view_ledger, rows, found, used, before, limit, partial=partial)
        return replace(made, warmings=warmed)

    async def _billed(self, tenant_id: UUID, sums: Sequence[Sums]) -> Sequence[Billed[Sums]]:
        found = []
        for one in sums:
            policy = await self._policies.get(tenant_id, one.policy)
            found.append(Billed(one, self._bill_of_sums(one, policy), policy.prices))
        return found

    def _bill_of_sums(self, sums: store.CallSums | store.DrawnSums | store.WarmingSums, policy: Policy) -> Bill:
        return self._bill(sums, (sums.input_tokens, sums.read_tokens, sums.write_tokens), policy)

    def _view_ledger(
        self,
        rows: Sequence[store.LedgerRow],
        found: Sequence[store.EpochRow],
        used: Mapping[tuple[str, int], Policy],
        before: UUID | None,
        limit: int,
        *,
        partial: bool,
    ) -> ViewLedger:
        made, epochs = self._lines(rows, found, used)
        newest = [pair for pair in zip(rows, made, strict=True) if before is None or pair[0].call_id < before]
        page = newest[::-1][:limit]
        shown = {row.epoch for row, _ in page}
        causes = {epoch.number: epoch.cause for epoch in epochs}
        accounted = [one for one in accounts(made, epochs) if one.epoch.number in shown]
        return ViewLedger(page, accounted, causes, totals(made), partial, ends=len(page) == len(newest))

    def _lines(
        self, rows: Sequence[store.LedgerRow], found: Sequence[store.EpochRow], used: Mapping[tuple[str, int], Policy]
    ) -> tuple[Sequence[LedgerLine], Sequence[CountedEpoch]]:
        calls, epochs = self._counted(rows, found, used, _outside(rows))
        return Caches().lines(calls, epochs), epochs

    def _counted(
        self,
        rows: Sequence[store.LedgerRow],
        found: Sequence[store.EpochRow],
        used: Mapping[tuple[str, int], Policy],
        outside: _Outside,
    ) -> tuple[Sequence[CountedCall], Sequence[CountedEpoch]]:
        openings = {row.epoch: row for row in reversed(rows)}
        epochs = [_epoch(row, openings.get(row.epoch), outside) for row in found]
        fronts = {row.epoch: (row.tools_seq, row.system_seq) for row in found}
        return [self._call(row, used[row.policy], outside, fronts.get(row.epoch, (0, 0))) for row in rows], epochs

    async def cache_reads(self, recorded: RecordedReport) -> CacheReads | None:
        """Return the expected and actual cache reads of a reported call; None if the call is gone.

        They follow from what the calls before it have left in the caches, which is kept for the views last reported.
        """
        ref, view, call_id = recorded.ref, recorded.call.view, recorded.call.call_id
        known = self._followed.get((ref.session_id, view))
        if known is None or known.last >= call_id or len(known.caches.epochs) > EPOCHS_FOLLOWED_MAX:
            known = None
        after, epoch = (None, None) if known is None else (known.last, known.epoch)
        if after is not None and after == recorded.previous:
            rows = [store.of_report(recorded.call, recorded.outcome)]
        else:
            rows = await store.calls(self._database, ref, view, CALLS_LOOKED_BACK, call_id, after)
        if not rows or rows[-1].call_id != call_id:
            return None
        found: Sequence[store.EpochRow] = ()
        if epoch is None:
            found = await store.epochs(self._database, ref, view, min(row.epoch for row in rows))
        elif rows[-1].epoch != epoch:
            found = await store.epochs(self._database, ref, view, epoch + 1)
        used = {row.policy: await self._policies.get(ref.tenant_id, row.policy) for row in rows}
        if known is None:
            known = _Followed(Caches(), _outside(rows), call_id, rows[-1].epoch)
        elif known.last != after:  # another report of this view was faster
            return await self.cache_reads(recorded)
        opened = [row for row in found if epoch is None or row.epoch > epoch]
        line = known.caches.lines(*self._counted(rows, opened, used, known.outside))[-1]
        self._keep((ref.session_id, view), replace(known, last=call_id, epoch=rows[-1].epoch))
        profile = profile_name(line.call.model, self._caches)
        return CacheReads(profile or "other", line.expected.read_tokens, line.actual.read_tokens, line.actual.tokens)

    def _keep(self, key: tuple[UUID, str], known: _Followed) -> None:
        """Keep a view's caches, unless those after a later call are kept."""
        held = self._followed.get(key)
        if held is None or held.last < known.last:
            self._followed[key] = known
        self._followed.move_to_end(key)
        if len(self._followed) > FOLLOWED_MAX:
            self._followed.popitem(last=False)

    def _call(self, row: store.LedgerRow, policy: Policy, outside: _Outside, front: tuple[int, int]) -> CountedCall:
        per_calibrated = row.estimator_per_calibrated
        ephemeral = round(row.ephemeral * per_calibrated)
        extra = outside.estimator_tokens(row)
        counted = row.counted + extra
        return CountedCall(
            id=str(row.call_id),
            at=row.at,
            head=row.head,
            epoch=row.epoch,
            model=row.model,
            format=row.format,
            rules=self._rules(row.model, row.format, policy),
            counted=counted,
            estimate=row.estimate + outside.provider_tokens(row),
            tools=round(row.tools * per_calibrated) + extra,
            system=round(row.system * per_calibrated),
            ephemeral=ephemeral,
            left_out=round(row.evicted_tokens * per_calibrated),
            window=row.window,
            breakpoints=_breakpoints(row, counted - ephemeral, extra),
            usage=None if row.usage is None else Usage(*row.usage),
            failed=row.failed,
            prices=policy.prices,
            front=front,
        )

    def _rules(self, model: str | None, format: str, policy: Policy) -> CacheProfile:
        return self._cache_profile(model, policy.cache, otherwise=FORMATS[format].cache)

    async def tenant_ledger(
        self, tenant_id: UUID, since: datetime, until: datetime | None, model: str | None, prefix: str = ""
    ) -> TenantLedger:
        """Return the sums of calls in [since, until), of sessions whose names begin with `prefix`.

        If `until` is None, the range is DAYS_MAX days long. Raises InvalidRequest for a longer one.
        """
        most = timedelta(days=DAYS_MAX)
        if since.year == datetime.max.year:
            raise InvalidRequest("since is later than any call can be", field="since")
        end = since + most if until is None else until
        if not timedelta(0) <= end - since <= most:
            raise InvalidRequest(f"until must be 0 to {DAYS_MAX} days after since", field="until")
        within = store.LedgerRange(tenant_id, since, end, model, prefix)
        sent = await self._billed(tenant_id, await store.sums(self._database, within))
        seen = await self._billed(tenant_id, await store.observed(self._database, within))
        warmed = await self._billed(tenant_id, await store.warmings(self._database, within))
        holdout = None
        if any(one.sums.drawn_calls for one in (*sent, *seen)):
            holdout = await self._holdout(tenant_id, await store.drawn(self._database, within, DRAWN_MAX))
        potential = PotentialBill()
        if seen:
            groups = await store.observed_lines(self._database, within, POTENTIAL_CALLS_MAX)
            potential = await self._potential(tenant_id, groups)
        return TenantLedger(since, end, sent, warmed, seen, potential, holdout)

    async def _potential(
        self, tenant_id: UUID, groups: Sequence[tuple[Sequence[store.LedgerRow], Sequence[store.EpochRow]]]
    ) -> PotentialBill:
        """Price observed calls, grouped by the session's line that made them, each group with its epochs."""
        used = {row.policy: await self._policies.get(tenant_id, row.policy) for rows, _ in groups for row in rows}

        def price() -> PotentialBill:
            calls, billed, potential = 0, 0.0, 0.0
            for rows, epochs in groups:
                made, _ = self._lines([_if_sent(row) for row in rows], epochs, used)
                for row, line in zip(rows, made, strict=True):
                    if row.usage is not None:
                        calls, potential = calls + 1, potential + line.expected.billed
                        billed += self._bill(row, row.usage[:3], used[row.policy]).billed
            return PotentialBill(calls, billed, potential)

        return await asyncio.to_thread(price)

    async def _holdout(self, tenant_id: UUID, rows: Sequence[store.DrawnSums]) -> Holdout:
        """Return the bills of the drawn sessions, without any that was in both groups, as after a change of share."""
        groups: dict[UUID, set[bool]] = {}
        bills: dict[UUID, SessionBill] = {}
        for row in rows:
            policy = await self._policies.get(tenant_id, row.policy)
            groups.setdefault(row.session_id, set()).add(row.held_out)
            before = bills.get(row.session_id, SessionBill(0, 0.0))
            billed = before.billed + self._bill_of_sums(row, policy).billed
            bills[row.session_id] = SessionBill(before.calls + row.calls, billed)
        both = (Group([bills[id] for id, drawn in groups.items() if drawn == {group}]) for group in (True, False))
        return Holdout(*both)

    def _bill(
        self,
        of: store.CallSums | store.DrawnSums | store.WarmingSums | store.LedgerRow,
        usage: tuple[int, int | None, int | None],
        policy: Policy,
    ) -> Bill:
        """Return the bill of calls of one model with this input, cache reads and cache writes."""
        total, read, write = (count or 0 for count in usage)
        return priced(self._rules(of.model, of.format, policy), read, write, max(0, total - read - write))


def _if_sent(row: store.LedgerRow) -> store.LedgerRow:
    """Return an observed call with the input to expect had its context been sent: its share of the whole log's."""
    if row.usage is None:
        return row
    expected = input_if_sent(row.usage[0], row.outside, row.estimate, row.evicted_tokens)
    return replace(row, usage=(expected, None, None, None))


def _outside(rows: Sequence[store.LedgerRow]) -> _Outside:
    """Return the tokens sent outside a view's calls; the newest known value also applies to calls without one.

    One scale is used for all calls, so that the same prefix ends at the same token in each.
    """
    known = next((row.outside for row in reversed(rows) if row.outside), 0)
    scales = [
        (row.usage[0] - (row.outside or known)) / row.counted if row.usage else row.estimate / row.counted
        for row in rows
        if row.counted
    ]
    return _Outside(known, median(scale for scale in scales if scale > 0) if any(s > 0 for s in scales) else 1.0)


def _breakpoints(row: store.LedgerRow, stable: int, extra: int) -> tuple[LedgerBreakpoint, ...]:
    """Return a call's breakpoints. A record without positions has only the last one, at the end of the stable part."""
    known = [
        LedgerBreakpoint(seq, extra + round(tokens * row.estimator_per_calibrated), blocks)
        for seq, tokens, blocks in row.marks
        if tokens is not None
    ]
    if known or not row.marks:
        return tuple(known)
    return (LedgerBreakpoint(row.marks[-1][0], stable, None),)


def _epoch(row: store.EpochRow, opening: store.LedgerRow | None, outside: _Outside) -> CountedEpoch:
    stable = round(row.stable_tokens * (opening.estimator_per_calibrated if opening else 1.0))
    if stable and opening is not None:
        stable += outside.estimator_tokens(opening)
    return CountedEpoch(row.epoch, row.cause, row.changed_seq, stable, row.tools_seq, row.system_seq)
