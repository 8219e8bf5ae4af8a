"""Ledgers: explanations of a bill.

`billed`, `cost`, `gain`, `net` and `saved` are prices, expressed as numbers of uncached input tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

from fastapi import Depends, Query

from app.core.lexicon.times import time_text
from app.core.policy.groups import Prices
from app.core.tokens.models import Bill
from app.http import paging
from app.http.auth import PrefixAccess
from app.http.fields import Cursor, Limit, Moment, Sid, ViewParameter, answer_of
from app.http.operation import PastService, Resource, Who, past_service
from app.wings.ledger import schemas
from app.wings.ledger.cache_use import LedgerLine
from app.wings.ledger.service import CALLS_MAX, Billed, Ledger
from app.wings.ledger.store import CallSums, LedgerRow, WarmingSums
from app.wings.ledger.totals import Account, PotentialBill, Totals, money_of

router = Resource("audit")


Service = Annotated[PastService[Ledger], Depends(past_service(Ledger))]


@router.operation("GET", "/v1/sessions/{sid}/ledger", scope="read")
async def get_ledger(
    sid: Sid,
    who: Who,
    ledger: Service,
    view: ViewParameter = "main",
    limit: Limit = 100,
    cursor: Cursor = None,
    newest: Annotated[
        int, Query(ge=1, le=CALLS_MAX, description="Maximum number of calls that are covered, counted from the newest.")
    ] = CALLS_MAX,
) -> schemas.LedgerOut:
    """Get the ledger of a view: the cost of each call, newest first, cost and gain of each epoch, and the totals."""
    before = paging.decode_id(cursor)
    found = await ledger(lambda own: own.view_ledger(who.tenant_id, sid, view, before, limit, newest))
    return schemas.LedgerOut(
        calls=[_call(row, line, found.causes) for row, line in found.calls],
        epochs=[_epoch(one) for one in found.epochs],
        totals=_totals(found.totals, partial=found.partial),
        warmings=_warmings(found.warmings),
        next_cursor=None if found.ends else paging.encode(str(found.calls[-1][0].call_id)),
    )


@router.operation(
    "GET", "/v1/audit/ledger", scope="audit", access=PrefixAccess.WITHIN, summary="Get the ledger of all sessions"
)
async def get_audit_ledger(
    who: Who,
    ledger: Service,
    since: Annotated[Moment, Query(description="Earliest time of the calls, inclusive, in ISO 8601.")],
    until: Annotated[
        Moment | None,
        Query(
            description="Latest time of the calls, exclusive, in ISO 8601, at most 31 days after `since`. Default: 31 "
            "days after it."
        ),
    ] = None,
    model: Annotated[
        str | None, Query(min_length=1, max_length=256, description="Name of a model: include only its calls.")
    ] = None,
) -> schemas.AuditLedgerOut:
    """Get the token usage and price of the calls of all sessions that the key can access, by model."""
    found = await ledger(lambda own: own.tenant_ledger(who.tenant_id, since, until, model, who.session_prefix))
    by_model = groupby(found.sums, lambda one: one.sums.model)
    return schemas.AuditLedgerOut(
        since=time_text(found.since),
        until=time_text(found.until),
        items=[schemas.LedgerModel(model=name, **_sums(list(members))) for name, members in by_model],
        totals=schemas.LedgerSums(**_sums(found.sums)),
        warmings=_warmings(found.warmings),
        observed=_observed(found.observed, found.potential),
        holdout=found.holdout and answer_of(schemas.LedgerHoldout, found.holdout),
    )


def _call(row: LedgerRow, line: LedgerLine, causes: Mapping[int, str]) -> schemas.LedgerCall:
    usage, prices = line.call.usage, line.call.prices
    return answer_of(
        schemas.LedgerCall,
        row,
        line,
        line.call,
        call_id=line.call.id,
        created_at=time_text(row.created_at),
        left_out_tokens=row.evicted_tokens,
        idle_seconds=None if line.idle is None else round(line.idle, 3),
        reported=usage,
        billed=line.actual.billed,
        money=money_of(prices, line.actual.billed, usage.output_tokens if usage else None),
        currency=prices.currency,
        missed_tokens=line.missed,
        epoch_cause=causes.get(row.epoch) if line.cause in ("epoch", "tools", "system_prompt") else None,
    )


def _epoch(account: Account) -> schemas.LedgerEpoch:
    money = {name: money_of(account.prices, getattr(account, name)) for name in ("cost", "gain", "net")}
    return answer_of(
        schemas.LedgerEpoch,
        account,
        account.epoch,
        epoch=account.epoch.number,
        money=None if None in money.values() else schemas.EpochMoney(currency=account.prices.currency, **money),
    )


def _totals(sums: Totals, *, partial: bool) -> schemas.LedgerTotals:
    return answer_of(
        schemas.LedgerTotals,
        sums,
        partial=partial,
        input=sums.actual,
        append_only=answer_of(schemas.AppendOnlyOut, sums.append_only, calls_beyond_window=sums.beyond_window),
        saved=sums.append_only.billed - sums.actual.billed,
        money=[
            answer_of(schemas.TotalMoney, one, currency=name, saved=one.append_only - one.billed)
            for name, one in sums.money.items()
        ],
    )


def _sums(members: Sequence[Billed[CallSums]]) -> dict[str, Any]:
    """Return the fields of `LedgerSums`."""
    counted = schemas.LedgerSums.model_fields.keys() - {"billed", "money"}
    return {
        **{name: sum(getattr(one.sums, name) for one in members) for name in counted},
        "billed": sum(one.bill.billed for one in members),
        "money": _money((one.prices, one.bill.billed, one.sums.output_tokens) for one in members),
    }


def _observed(members: Sequence[Billed[CallSums]], potential: PotentialBill) -> schemas.LedgerObserved:
    counted = ("calls", "reported_calls", "input_tokens", "read_tokens", "write_tokens")
    return answer_of(
        schemas.LedgerObserved,
        potential,
        **{name: sum(getattr(one.sums, name) for one in members) for name in counted},
        billed=sum(one.bill.billed for one in members),
        potential_input_tokens=sum(one.sums.remaining_tokens for one in members),
    )


def _warmings(members: Sequence[Billed[WarmingSums]]) -> schemas.LedgerWarmings:
    bill = sum((one.bill for one in members), Bill())
    return answer_of(
        schemas.LedgerWarmings,
        bill,
        warmings=sum(one.sums.warmings for one in members),
        failed=sum(one.sums.failed for one in members),
        input_tokens=bill.tokens,
        money=_money((one.prices, one.bill.billed, 0) for one in members),
    )


def _money(billed: Iterable[tuple[Prices, float, int]]) -> list[schemas.SumMoney]:
    """Return the sums by currency of bills in input tokens, each with its prices and its tokens of output."""
    money: dict[str, float] = {}
    for prices, tokens, output in billed:
        amount = money_of(prices, tokens, output)
        if amount is not None:
            money[prices.currency] = money.get(prices.currency, 0.0) + amount
    return [schemas.SumMoney(currency=currency, billed=amount) for currency, amount in money.items()]
