"""Ledgers: explanations of a bill.

`billed`, `cost`, `gain`, `net` and `saved` are prices, expressed as numbers of uncached input tokens.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import AfterValidator, BaseModel, Field

from app.core.lexicon.times import time_text
from app.core.tokens.models import Bill
from app.http import paging
from app.http.auth import PrefixAccess
from app.http.fields import (
    CallEpoch,
    CallId,
    CallModel,
    Cursor,
    EpochCause,
    EpochNumber,
    Limit,
    Moment,
    NextCursor,
    Sid,
    ViewParameter,
    answer_of,
)
from app.http.operation import Resource, Who
from app.http.past_reads import PastRead, past_read
from app.wings.ledger.cache_use import LedgerLine
from app.wings.ledger.service import CALLS_MAX, BilledSums, Ledger
from app.wings.ledger.store import LedgerRow
from app.wings.ledger.totals import Account, Totals, money_of

Cause = Literal[
    "time_to_live",
    "epoch",
    "tools",
    "system_prompt",
    "model",
    "format",
    "lookback",
    "markers",
    "below_minimum",
    "not_reported",
    "elsewhere",
    "provider",
]
Price = Annotated[float, AfterValidator(partial(round, ndigits=1))]
Amount = Annotated[float, AfterValidator(partial(round, ndigits=6))]
Currency = Annotated[str, Field(description="Currency of the amounts, as the policy's `prices` name it.")]


class PartsOut(BaseModel):
    """Input tokens as the provider counts them, divided by how it bills them."""

    tokens: int = Field(description="All input tokens: the sum of the other three.")
    read_tokens: int = Field(description="Input tokens read from the provider's cache.")
    write_tokens: int = Field(description="Input tokens written to the provider's cache.")
    fresh_tokens: int = Field(description="Input tokens that were neither read from the cache nor written to it.")


class BilledOut(PartsOut):
    """Input tokens divided by how the provider bills them, with their price."""

    billed: Price = Field(
        description="Price of the input, expressed as the number of uncached input tokens that would cost the same."
    )


class AppendOnlyOut(BilledOut):
    """Estimated bill of the same calls if nothing had been left out of their contexts."""

    calls_beyond_window: int = Field(description="Number of those calls that would have exceeded the model's window.")


class ReportedOut(BaseModel):
    """Token usage of a call, as reported."""

    input_tokens: int = Field(description="All input tokens, including those read from and written to the cache.")
    read_tokens: int | None = Field(description="Input tokens read from the cache; null if not reported.")
    write_tokens: int | None = Field(description="Input tokens written to the cache; null if not reported.")
    output_tokens: int | None = Field(description="Tokens of the model's answer; null if not reported.")


class LedgerCall(BaseModel):
    """A call in the ledger: its expected and its actual use of the provider's cache."""

    call_id: CallId
    created_at: str = Field(description="Time at which the call's context was made, in ISO 8601.")
    epoch: CallEpoch
    model: CallModel
    format: str = Field(description="Format of the request: a provider's, or the neutral `blocks`.")
    estimate: int = Field(description="Estimated size of the request, in the model's tokens.")
    left_out_tokens: int = Field(
        description="Estimated tokens saved by not sending everything verbatim, in the model's tokens."
    )
    idle_seconds: float | None = Field(
        description="Seconds since the view's previous successful call; null if there was none."
    )
    expected: PartsOut = Field(description="Expected division of the input, calculated from the recorded calls alone.")
    reported: ReportedOut | None = Field(description="Reported token usage; null until it is reported.")
    failed: bool = Field(description="Whether an error but no usage was reported; nothing was billed then.")
    billed: Price = Field(
        description="Price of the input as reported, else as expected, expressed as the number of uncached input "
        "tokens that would cost the same."
    )
    money: Amount | None = Field(
        description="Price of input and output, in `currency`; null if the policy names no price for input."
    )
    currency: Currency
    missed_tokens: int = Field(
        description="Input tokens that the previous call left in the cache and this call did not read from it; 0 if "
        "within the tolerance of counting."
    )
    cause: Cause | None = Field(
        description="Reason why tokens were missed: `time_to_live` (idle too long), `epoch`, `tools` or "
        "`system_prompt` (the context changed), `model` or `format` (another cache), `below_minimum` (too small to be "
        "cached), `markers` (no cache breakpoints in the request), `lookback` (no breakpoint near enough). Or the "
        "reason why report and expectation differ: `not_reported` (no cache figures), `elsewhere` (more was read than "
        "expected, since other requests had the same prefix), `provider` (no known reason). Null if neither applies."
    )
    epoch_cause: str | None = Field(
        description="Cause of the call's epoch, as in `EpochOut.cause`; null unless `cause` is `epoch`, `tools` or "
        "`system_prompt`."
    )
    diverges_at: int | None = Field(
        description="Seq of the first event that was not read from the cache, if the record shows it; null if nothing "
        "was missed."
    )


class EpochMoney(BaseModel):
    """Cost and gain of an epoch in money, at the prices of the call that opened it."""

    currency: Currency
    cost: Amount = Field(description="Cost of writing to the cache again.")
    gain: Amount = Field(description="Amount saved by carrying fewer tokens.")
    net: Amount = Field(description="`gain` minus `cost`; above 0 the epoch paid off.")


class LedgerEpoch(BaseModel):
    """Effect of an epoch on the bill, from the expected figures and without the price of summarizers."""

    epoch: EpochNumber
    cause: EpochCause
    opened_by: str = Field(description="Id of the call that opened the epoch, or of its first call in the ledger.")
    calls: int = Field(description="Number of calls rendered from the epoch, not counting failed ones.")
    calls_since: int = Field(
        description="Number of calls since the epoch was opened, up to the next epoch that planned the view from "
        "scratch."
    )
    rewritten_tokens: int = Field(
        description="Tokens that had to be written to the cache again because of the epoch, as the provider counts."
    )
    removed_tokens: int = Field(description="Tokens that the epoch removed from the context, as the provider counts.")
    cost: Price = Field(
        description="Price of writing `rewritten_tokens` instead of reading them, expressed as a number of uncached "
        "input tokens."
    )
    gain: Price = Field(
        description="Price of sending `removed_tokens` in `calls_since` calls, expressed as a number of uncached input "
        "tokens."
    )
    net: Price = Field(description="`gain` minus `cost`, in the same unit; above 0 the epoch paid off.")
    money: EpochMoney | None = Field(description="Cost and gain in money; null if the policy names no price for input.")


class TotalMoney(BaseModel):
    """Price of input and output in one currency, for calls whose policy has prices."""

    currency: Currency
    billed: Amount = Field(description="Amount billed.")
    append_only: Amount = Field(description="Estimated amount if nothing had been left out of the contexts.")
    saved: Amount = Field(
        description="`append_only` minus `billed`; negative if leaving content out cost more than it saved."
    )


class LedgerTotals(BaseModel):
    """Totals of the calls of a view. Calls without reported usage count as expected."""

    partial: bool = Field(
        description="Whether only the newest calls are covered, because there are more than `newest`."
    )
    calls: int = Field(description="Number of calls.")
    unreported_calls: int = Field(description="Number of calls without reported usage, not counting failed ones.")
    failed_calls: int = Field(description="Number of calls that failed and were not billed.")
    input: BilledOut = Field(description="Input as reported, else as expected.")
    expected: BilledOut = Field(description="Expected input, calculated from the recorded calls alone.")
    output_tokens: int = Field(description="Tokens of the models' answers, as reported.")
    append_only: AppendOnlyOut = Field(description="Estimated input if nothing had been left out of the contexts.")
    saved: Price = Field(
        description="`append_only.billed` minus `input.billed`; negative if leaving content out cost more than it "
        "saved."
    )
    money: list[TotalMoney] = Field(description="Amounts by currency; empty if no policy names prices.")


class LedgerOut(BaseModel):
    """Ledger of a view: its calls, the epochs they were rendered from, and the totals."""

    calls: list[LedgerCall] = Field(description="A page of the view's calls, newest first.")
    epochs: list[LedgerEpoch] = Field(description="Epochs that the calls of this page were rendered from, in order.")
    totals: LedgerTotals = Field(description="Totals of all calls of the view, not only of this page.")
    next_cursor: NextCursor


class SumMoney(BaseModel):
    """Price of input and output in one currency, for calls whose policy has prices."""

    currency: Currency
    billed: Amount = Field(description="Amount billed, from reported usage.")


class LedgerSums(BaseModel):
    """Sums over calls, from their reported usage."""

    calls: int = Field(description="Number of calls.")
    reported_calls: int = Field(description="Number of calls with reported usage.")
    overflows: int = Field(description="Number of calls that the provider refused as too long.")
    unreported_tokens: int = Field(
        description="Estimated input tokens of calls without reported usage or error; not included in any other sum."
    )
    input_tokens: int = Field(description="All input tokens, including those read from and written to the cache.")
    read_tokens: int = Field(description="Input tokens read from the provider's cache.")
    write_tokens: int = Field(description="Input tokens written to the provider's cache.")
    output_tokens: int = Field(description="Tokens of the models' answers.")
    left_out_tokens: int = Field(
        description="Estimated tokens saved by not sending everything verbatim, in the model's tokens."
    )
    billed: Price = Field(
        description="Price of the input, expressed as the number of uncached input tokens that would cost the same."
    )
    money: list[SumMoney] = Field(description="Amounts by currency; empty if no policy names prices.")


class LedgerModel(LedgerSums):
    """Sums over the calls of one model."""

    model: str | None = Field(description="Name of the model; null for calls without one.")


class AuditLedgerOut(BaseModel):
    """Sums over the calls of all sessions in a range of time."""

    since: str = Field(description="Beginning of the range, inclusive, in ISO 8601.")
    until: str = Field(description="End of the range, exclusive, in ISO 8601.")
    items: list[LedgerModel] = Field(description="Sums by model.")
    totals: LedgerSums = Field(description="Sums over all models.")


router = Resource("audit")


Service = Annotated[PastRead[Ledger], Depends(past_read(Ledger))]


@router.operation("GET", "/v1/sessions/{sid}/ledger", scope="read", returns=LedgerOut, problems=("not-found",))
async def get_ledger(
    sid: Sid,
    who: Who,
    ledger: Service,
    view: ViewParameter = "main",
    limit: Limit = 100,
    cursor: Cursor = None,
    newest: Annotated[
        int, Query(ge=1, le=CALLS_MAX, description="Most calls that are covered: the newest.")
    ] = CALLS_MAX,
) -> LedgerOut:
    """Get the ledger of a view: the cost of each call, newest first, cost and gain of each epoch, and the totals."""
    before = paging.decode_id(cursor)
    found = await ledger(lambda own: own.view_ledger(who.tenant_id, sid, view, before, limit, newest))
    return LedgerOut(
        calls=[_call(row, line, found.causes) for row, line in found.calls],
        epochs=[_epoch(one) for one in found.epochs],
        totals=_totals(found.totals, partial=found.partial),
        next_cursor=None if found.ends else paging.encode(str(found.calls[-1][0].call_id)),
    )


@router.operation(
    "GET",
    "/v1/audit/ledger",
    scope="audit",
    access=PrefixAccess.WITHIN,
    summary="Get the ledger of all sessions",
    returns=AuditLedgerOut,
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
) -> AuditLedgerOut:
    """Get the token usage and price of the calls of all sessions that the key can access, by model."""
    found = await ledger(lambda own: own.tenant_ledger(who.tenant_id, since, until, model, who.session_prefix))
    by_model = groupby(found.sums, lambda one: one.sums.model)
    return AuditLedgerOut(
        since=time_text(found.since),
        until=time_text(found.until),
        items=[LedgerModel(model=name, **_sums(list(members))) for name, members in by_model],
        totals=LedgerSums(**_sums(found.sums)),
    )


def _call(row: LedgerRow, line: LedgerLine, causes: Mapping[int, str]) -> LedgerCall:
    usage, prices = line.call.usage, line.call.prices
    reported = usage and ReportedOut(
        input_tokens=usage.input, read_tokens=usage.read, write_tokens=usage.write, output_tokens=usage.output
    )
    return answer_of(
        LedgerCall,
        row,
        line,
        line.call,
        call_id=line.call.id,
        created_at=time_text(row.created_at),
        left_out_tokens=row.evicted_tokens,
        idle_seconds=None if line.idle is None else round(line.idle, 3),
        expected=PartsOut(**_bill(line.expected)),
        reported=reported,
        billed=line.actual.billed,
        money=money_of(prices, line.actual.billed, usage.output if usage else None),
        currency=prices.currency,
        missed_tokens=line.missed,
        epoch_cause=causes.get(row.epoch) if line.cause in ("epoch", "tools", "system_prompt") else None,
    )


def _epoch(account: Account) -> LedgerEpoch:
    money = {name: money_of(account.prices, getattr(account, name)) for name in ("cost", "gain", "net")}
    return answer_of(
        LedgerEpoch,
        account,
        account.epoch,
        epoch=account.epoch.number,
        money=None if None in money.values() else EpochMoney(currency=account.prices.currency, **money),
    )


def _totals(sums: Totals, *, partial: bool) -> LedgerTotals:
    return answer_of(
        LedgerTotals,
        sums,
        partial=partial,
        input=BilledOut(**_bill(sums.actual)),
        expected=BilledOut(**_bill(sums.expected)),
        append_only=AppendOnlyOut(**_bill(sums.append_only), calls_beyond_window=sums.beyond_window),
        saved=sums.append_only.billed - sums.actual.billed,
        money=[
            TotalMoney(
                currency=name, billed=one.billed, append_only=one.append_only, saved=one.append_only - one.billed
            )
            for name, one in sums.money.items()
        ],
    )


def _bill(bill: Bill) -> dict[str, Any]:
    return {
        "tokens": bill.tokens,
        "read_tokens": bill.read,
        "write_tokens": bill.write,
        "fresh_tokens": bill.fresh,
        "billed": bill.billed,
    }


def _sums(members: Sequence[BilledSums]) -> dict[str, Any]:
    """Return the fields of `LedgerSums`."""
    money: dict[str, float] = {}
    for one in members:
        amount = money_of(one.prices, one.bill.billed, one.sums.output_tokens)
        if amount is not None:
            money[one.prices.currency] = money.get(one.prices.currency, 0.0) + amount
    counted = LedgerSums.model_fields.keys() - {"billed", "money"}
    return {
        **{name: sum(getattr(one.sums, name) for one in members) for name in counted},
        "billed": sum(one.bill.billed for one in members),
        "money": [SumMoney(currency=currency, billed=amount) for currency, amount in money.items()],
    }
