"""Ledgers as they are returned. `billed`, `cost`, `gain`, `net` and `saved` are in uncached input tokens."""

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from app.http.fields import CallEpoch, CallId, CallModel, EpochCause, EpochNumber, NextCursor
from app.wings.ledger.totals import POTENTIAL_CALLS_MAX, SESSIONS_LEAST

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


class SumMoney(BaseModel):
    """Price of input and output in one currency, for calls whose policy has prices."""

    currency: Currency
    billed: Amount = Field(description="Amount billed, from reported usage.")


class LedgerWarmings(BaseModel):
    """Requests that kept the provider's cache, from their reported usage. No other sum includes them."""

    warmings: int = Field(description="Number of requests, including failed ones.")
    failed: int = Field(description="Number of requests that failed and were not billed.")
    input_tokens: int = Field(description="All input tokens, including those read from and written to the cache.")
    read_tokens: int = Field(description="Input tokens read from the provider's cache.")
    write_tokens: int = Field(description="Input tokens written to the provider's cache.")
    billed: Price = Field(
        description="Price of the requests, expressed as the number of uncached input tokens that would cost the same."
    )
    money: list[SumMoney] = Field(description="Amounts by currency; empty if no policy names prices.")


class LedgerOut(BaseModel):
    """Ledger of a view: its calls, the epochs they were rendered from, and the totals."""

    calls: list[LedgerCall] = Field(description="A page of the view's calls, newest first.")
    epochs: list[LedgerEpoch] = Field(description="Epochs that the calls of this page were rendered from, in order.")
    totals: LedgerTotals = Field(description="Totals of all calls of the view, not only of this page.")
    warmings: LedgerWarmings = Field(description="Requests that kept the provider's cache of the view's calls.")
    next_cursor: NextCursor


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


class LedgerObserved(BaseModel):
    """Sums over observed calls: the clients' own requests were sent, and the contexts in the view `~observed` were not.

    No other sum includes them.
    """

    calls: int = Field(description="Number of calls.")
    reported_calls: int = Field(description="Number of calls with reported usage, which all sums below cover.")
    input_tokens: int = Field(description="Input tokens of the clients' own requests, as reported.")
    read_tokens: int = Field(description="Input tokens of these requests that were read from the provider's cache.")
    write_tokens: int = Field(description="Input tokens of these requests that were written to the provider's cache.")
    billed: Price = Field(
        description="Price of these requests, expressed as the number of uncached input tokens that would cost the "
        "same."
    )
    potential_input_tokens: int = Field(
        description="Input tokens if the contexts had been sent instead: `input_tokens` without the estimated share "
        "that each context leaves out of the whole log."
    )
    priced_calls: int = Field(
        description=f"Number of calls that the following two prices cover: the newest, {POTENTIAL_CALLS_MAX} at most."
    )
    priced_billed: Price = Field(description="Price of the clients' own requests of these calls, as `billed`.")
    potential_billed: Price = Field(
        description="Price of these calls if the contexts had been sent instead, with the reads from the provider's "
        "cache to expect of them."
    )


class HoldoutGroup(BaseModel):
    """Sessions that were drawn for one group, with their reported calls."""

    sessions: int = Field(description="Number of sessions.")
    calls: int = Field(description="Number of calls with reported usage.")
    billed: Price = Field(
        description="Price of the input, expressed as the number of uncached input tokens that would cost the same."
    )


class MeasuredSaving(BaseModel):
    """A measured difference between the enforced sessions and those held out."""

    share: Amount = Field(description="Share of the price that is saved, such as 0.3; negative if it rose.")
    low: Amount = Field(description="Lower limit of the 95% confidence interval.")
    high: Amount = Field(description="Upper limit of the 95% confidence interval.")


class LedgerHoldout(BaseModel):
    """Comparison of sessions that were held out of reduction with the others, drawn by the sessions' names.

    The calls of held-out sessions are also in `observed`. Sessions that changed their group are left out, and a sample
    is compared if there are very many.
    """

    held_out: HoldoutGroup = Field(description="Sessions whose client's own bytes were sent.")
    enforced: HoldoutGroup = Field(description="Sessions whose contexts were sent.")
    saved_per_call: MeasuredSaving | None = Field(
        description=f"Difference in the price of a call; null with fewer than {SESSIONS_LEAST} sessions in a group."
    )
    saved_per_session: MeasuredSaving | None = Field(
        description="Difference in the price of a session, which includes calls made in addition; null as "
        "`saved_per_call`."
    )


class AuditLedgerOut(BaseModel):
    """Sums over the calls of all sessions in a range of time."""

    since: str = Field(description="Beginning of the range, inclusive, in ISO 8601.")
    until: str = Field(description="End of the range, exclusive, in ISO 8601.")
    items: list[LedgerModel] = Field(description="Sums by model.")
    totals: LedgerSums = Field(description="Sums over all models.")
    warmings: LedgerWarmings = Field(description="Requests in the range that kept the providers' caches.")
    observed: LedgerObserved = Field(description="Calls in the range whose contexts were recorded and not sent.")
    holdout: LedgerHoldout | None = Field(
        description="Measured difference to sessions held out of reduction; null if the range has no call of a session "
        "that was drawn for a group."
    )
