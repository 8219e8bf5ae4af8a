"""The ledger of a session's view, and the sums of a tenant's calls: where the bill comes from."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final
from uuid import UUID

from app.core.audit.bill import Bill, priced
from app.core.audit.ledger import CountedCall, CountedEpoch, LedgerBreakpoint, LedgerLine, Usage, lines
from app.core.audit.ledger_totals import Account, Sums, Totals, accounts, money_of, totals
from app.core.errors import InvalidRequest
from app.core.log.events import Json
from app.core.policy.policy import Policy
from app.core.render.formats import FORMATS
from app.core.tokens.cache_profiles import CacheProfile, cache_profile
from app.services.policies import Policies
from app.store import ledger as store
from app.store import sessions
from app.store.engine import Database

CALLS_MAX: Final = 5_000
"""A ledger is of the newest so many calls of a view."""
DAYS_MAX: Final = 31


@dataclass(frozen=True, slots=True)
class _Outside:
    """What was sent beside the requests, in the provider's tokens; `scale`: of those to one of the estimator's own."""

    known: int
    scale: float

    def of(self, row: store.LedgerRow) -> int:
        """Beside one call."""
        return row.outside or self.known

    def own(self, row: store.LedgerRow) -> int:
        """The same in the estimator's own tokens."""
        return round(self.of(row) / self.scale)


class Ledger:
    """The ledger use cases."""

    def __init__(self, database: Database, policies: Policies, caches: Mapping[str, CacheProfile]) -> None:
        self._database = database
        self._policies = policies
        self._caches = caches

    async def of_view(
        self, tenant_id: UUID, external_id: str, view: str, before: UUID | None, limit: int
    ) -> dict[str, Json]:
        """Up to `limit` calls before one, the newest first, the epochs they were rendered in, and totals of all calls.

        Raises NotFound for an unknown session.
        """
        session = await sessions.get(self._database, tenant_id, external_id)
        rows = await store.calls(self._database, session.session_id, tenant_id, view, CALLS_MAX + 1)
        partial, rows = len(rows) > CALLS_MAX, rows[-CALLS_MAX:]
        first = min((row.epoch for row in rows), default=0)
        found = await store.epochs(self._database, session.session_id, tenant_id, view, first)
        used = {row.policy: await self._policies.get(tenant_id, row.policy) for row in rows}
        return await asyncio.to_thread(self._made, rows, found, used, before, limit, partial=partial)

    def _made(
        self,
        rows: Sequence[store.LedgerRow],
        found: Sequence[store.EpochRow],
        used: Mapping[tuple[str, int], Policy],
        before: UUID | None,
        limit: int,
        *,
        partial: bool,
    ) -> dict[str, Json]:
        openings = {row.epoch: row for row in reversed(rows)}
        outside = _outside(rows)
        epochs = [_epoch(row, openings.get(row.epoch), outside) for row in found]
        made = lines([self._call(row, used[row.policy], outside) for row in rows], epochs)
        newest = [pair for pair in zip(rows, made, strict=True) if before is None or pair[0].call_id < before]
        page = newest[::-1][:limit]
        shown = {row.epoch for row, _ in page}
        causes = {epoch.number: epoch.cause for epoch in epochs}
        return {
            "calls": [_line(row, line, causes) for row, line in page],
            "epochs": [_account(one) for one in accounts(made, epochs) if one.epoch.number in shown],
            "totals": {"partial": partial, **_totals(totals(made))},
        }

    def _call(self, row: store.LedgerRow, policy: Policy, outside: _Outside) -> CountedCall:
        own = row.counted / row.estimate if row.estimate else 1.0
        ephemeral = round(row.ephemeral * own)
        beside = outside.own(row)
        counted = row.counted + beside
        return CountedCall(
            id=str(row.call_id),
            at=row.at,
            head=row.head,
            epoch=row.epoch,
            model=row.model,
            format=row.format,
            rules=self._rules(row.model, row.format, policy),
            counted=counted,
            estimate=row.estimate + outside.of(row),
            tools=round(row.tools * own) + beside,
            system=round(row.system * own),
            ephemeral=ephemeral,
            left_out=round(row.evicted_tokens * own),
            window=row.window,
            marks=_marks(row, own, counted - ephemeral, beside),
            usage=None if row.usage is None else Usage(*row.usage),
            failed=row.failed,
            prices=policy.prices,
        )

    def _rules(self, model: str | None, format: str, policy: Policy) -> CacheProfile:
        return cache_profile(model, policy.cache, self._caches, FORMATS[format].cache)

    async def of_tenant(
        self, tenant_id: UUID, since: datetime, until: datetime | None, model: str | None, prefix: str = ""
    ) -> dict[str, Json]:
        """The calls of all sessions whose names begin with `prefix`, from `since` to before `until`, by model.

        Raises InvalidRequest for a range of more than DAYS_MAX days; that is also where one without an end ends.
        """
        most = timedelta(days=DAYS_MAX)
        if since.year == datetime.max.year:
            raise InvalidRequest("since is later than any call can be", field="since")
        end = since + most if until is None else until
        if not timedelta(0) <= end - since <= most:
            raise InvalidRequest(f"until must be at most {DAYS_MAX} days behind since", field="until")
        groups: dict[str | None, list[tuple[store.CallSums, Bill, Policy]]] = {}
        for row in await store.sums(self._database, tenant_id, since, end, model, prefix):
            policy = await self._policies.get(tenant_id, row.policy)
            fresh = max(0, row.input_tokens - row.read_tokens - row.write_tokens)
            bill = priced(self._rules(row.model, row.format, policy), row.read_tokens, row.write_tokens, fresh)
            groups.setdefault(row.model, []).append((row, bill, policy))
        return {
            "since": since.isoformat(),
            "until": end.isoformat(),
            "items": [{"model": name, **_sums(members)} for name, members in groups.items()],
            "totals": _sums([member for members in groups.values() for member in members]),
        }


def _outside(rows: Sequence[store.LedgerRow]) -> _Outside:
    """What is known of it by now holds for the calls before as well; one scale serves for all of them, so that the same
    prefix has the same place in each."""
    known = next((row.outside for row in reversed(rows) if row.outside), 0)
    scales = [
        (row.usage[0] - (row.outside or known)) / row.counted if row.usage else row.estimate / row.counted
        for row in rows
        if row.counted
    ]
    return _Outside(known, median(scale for scale in scales if scale > 0) if any(s > 0 for s in scales) else 1.0)


def _marks(row: store.LedgerRow, own: float, stable: int, beside: int) -> tuple[LedgerBreakpoint, ...]:
    """Of records without positions only the last breakpoint is known to stand: at the end of what is stable."""
    known = [
        LedgerBreakpoint(seq, beside + round(tokens * own), blocks)
        for seq, tokens, blocks in row.marks
        if tokens is not None
    ]
    if known or not row.marks:
        return tuple(known)
    return (LedgerBreakpoint(row.marks[-1][0], stable, None),)


def _epoch(row: store.EpochRow, opening: store.LedgerRow | None, outside: _Outside) -> CountedEpoch:
    own = opening.counted / opening.estimate if opening and opening.estimate else 1.0
    stable = round(row.stable_tokens * own)
    if stable and opening is not None:
        stable += outside.own(opening)
    return CountedEpoch(row.epoch, row.cause, row.changed_seq, stable, row.tools_seq, row.system_seq)


def _line(row: store.LedgerRow, line: LedgerLine, causes: Mapping[int, str]) -> dict[str, Json]:
    usage, prices = line.call.usage, line.call.prices
    return {
        "call_id": str(row.call_id),
        "created_at": row.created_at.isoformat(),
        "epoch": row.epoch,
        "model": row.model,
        "format": row.format,
        "estimate": row.estimate,
        "left_out_tokens": row.evicted_tokens,
        "idle_seconds": None if line.idle is None else round(line.idle, 3),
        "expected": _parts(line.expected),
        "reported": None
        if usage is None
        else {
            "input_tokens": usage.input,
            "read_tokens": usage.read,
            "write_tokens": usage.write,
            "output_tokens": usage.output,
        },
        "failed": line.call.failed,
        "billed": round(line.actual.billed, 1),
        "money": _rounded(money_of(prices, line.actual.billed, usage.output if usage else None)),
        "currency": prices.currency,
        "missed_tokens": line.missed,
        "cause": line.cause,
        "epoch_cause": causes.get(row.epoch) if line.cause in ("epoch", "tools", "system_prompt") else None,
        "diverges_at": line.diverges_at,
    }


def _account(account: Account) -> dict[str, Json]:
    money = {name: money_of(account.prices, getattr(account, name)) for name in ("cost", "gain", "net")}
    return {
        "epoch": account.epoch.number,
        "cause": account.epoch.cause,
        "opened_by": account.opened_by,
        "calls": account.calls,
        "calls_since": account.calls_since,
        "rewritten_tokens": account.rewritten,
        "removed_tokens": account.removed,
        **{name: round(getattr(account, name), 1) for name in money},
        "money": None
        if money["net"] is None
        else {"currency": account.prices.currency, **{name: _rounded(value) for name, value in money.items()}},
    }


def _totals(sums: Totals) -> dict[str, Json]:
    return {
        "calls": sums.calls,
        "unreported_calls": sums.unreported,
        "failed_calls": sums.failed,
        "input": {**_parts(sums.actual), "billed": round(sums.actual.billed, 1)},
        "expected": {**_parts(sums.expected), "billed": round(sums.expected.billed, 1)},
        "output_tokens": sums.output,
        "append_only": {
            **_parts(sums.append_only),
            "billed": round(sums.append_only.billed, 1),
            "calls_beyond_window": sums.beyond_window,
        },
        "saved": round(sums.append_only.billed - sums.actual.billed, 1),
        "money": [_money(currency, amounts) for currency, amounts in sums.money.items()],
    }


def _money(currency: str, amounts: Sums) -> dict[str, Json]:
    saved = amounts.append_only - amounts.billed
    figures = {"billed": amounts.billed, "append_only": amounts.append_only, "saved": saved}
    return {"currency": currency, **{name: _rounded(value) for name, value in figures.items()}}


def _parts(bill: Bill) -> dict[str, Json]:
    return {
        "tokens": bill.tokens,
        "read_tokens": bill.read,
        "write_tokens": bill.write,
        "fresh_tokens": bill.fresh,
    }


_SUMMED: Final = (
    "calls",
    "reported",
    "overflows",
    "unreported_tokens",
    "input_tokens",
    "read_tokens",
    "write_tokens",
    "output_tokens",
    "left_out_tokens",
)


def _sums(members: Sequence[tuple[store.CallSums, Bill, Policy]]) -> dict[str, Json]:
    figures: dict[str, Json] = {name: sum(getattr(row, name) for row, _, _ in members) for name in _SUMMED}
    money: dict[str, float] = {}
    for row, bill, policy in members:
        amount = money_of(policy.prices, bill.billed, row.output_tokens)
        if amount is not None:
            money[policy.prices.currency] = money.get(policy.prices.currency, 0.0) + amount
    figures["reported_calls"] = figures.pop("reported")
    return {
        **figures,
        "billed": round(sum(bill.billed for _, bill, _ in members), 1),
        "money": [{"currency": currency, "billed": _rounded(amount)} for currency, amount in money.items()],
    }


def _rounded(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 6)
