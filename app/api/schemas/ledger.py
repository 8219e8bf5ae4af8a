"""The ledger: where a bill comes from.

`billed`, `cost`, `gain`, `net` and `saved` are prices, as the number of uncached input tokens that cost as much.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from app.api.schemas.common import CallEpoch, CallFormat, CallId, CallModel, EpochCause, EpochNumber, NextCursor

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
Currency = Annotated[str, Field(description="Currency of the amounts, as the policy's `prices` name it.")]


class PartsOut(BaseModel):
    """Input tokens as the provider counts them, divided by how it bills them."""

    tokens: int = Field(description="All input tokens: the sum of the other three.")
    read_tokens: int = Field(description="Input tokens read from the provider's cache.")
    write_tokens: int = Field(description="Input tokens written to the provider's cache.")
    fresh_tokens: int = Field(description="Input tokens that were neither read from the cache nor written to it.")


class BilledOut(PartsOut):
    """Input tokens divided by how the provider bills them, with their price."""

    billed: float = Field(description="Price of the input, as the number of uncached input tokens that cost as much.")


class AppendOnlyOut(BilledOut):
    """Estimate of what the same calls would have been billed had nothing been left out of their contexts."""

    calls_beyond_window: int = Field(description="Number of those calls that would have exceeded the model's window.")


class ReportedOut(BaseModel):
    """Token usage of a call as it was reported."""

    input_tokens: int = Field(description="All input tokens, those read from and written to the cache included.")
    read_tokens: int | None = Field(description="Input tokens read from the cache; null if nothing was said of them.")
    write_tokens: int | None = Field(description="Input tokens written to the cache; null if nothing was said of them.")
    output_tokens: int | None = Field(description="Tokens of the model's answer; null if nothing was said of them.")


class LedgerCall(BaseModel):
    """A call in the ledger: what the provider's cache should have done for it, and what it did."""

    call_id: CallId
    created_at: str = Field(description="Time at which the call's context was made, in ISO 8601.")
    epoch: CallEpoch
    model: CallModel
    format: CallFormat
    estimate: int = Field(description="Estimated size of the request, in the model's tokens.")
    left_out_tokens: int = Field(description="Estimated tokens saved by what was not sent verbatim.")
    idle_seconds: float | None = Field(
        description="Seconds since the view's last call that did not fail; null if there was none."
    )
    expected: PartsOut = Field(description="Division of the input that follows from the recorded calls alone.")
    reported: ReportedOut | None = Field(description="Token usage that was reported; null while none was.")
    failed: bool = Field(description="Whether an error was reported and no usage: then nothing was billed.")
    billed: float = Field(
        description="Price of the input, as the number of uncached input tokens that cost as much: as reported, else "
        "as expected."
    )
    money: float | None = Field(
        description="Price of input and output in `currency`; null if the policy names no price of input."
    )
    currency: Currency
    missed_tokens: int = Field(
        description="Input tokens that the call before had left in the cache, or that took their place, and that were "
        "not read from it; 0 where that is within the tolerance of counting."
    )
    cause: Cause | None = Field(
        description="Why tokens were missed: `time_to_live` (idle too long), `epoch`, `tools`, `system_prompt` (the "
        "context changed), `model`, `format` (another cache), `below_minimum` (too small to be cached), `markers` (no "
        "cache breakpoints in the request), `lookback` (none near enough); or why report and expectation differ: "
        "`not_reported` (no cache figures), `elsewhere` (more was read: something else had sent the same), `provider` "
        "(nothing known explains it). Null where neither is so."
    )
    epoch_cause: str | None = Field(
        description="Why the call's epoch was opened, as in `EpochOut.cause`; null unless `cause` is `epoch`, `tools` "
        "or `system_prompt`."
    )
    diverges_at: int | None = Field(
        description="Seq of the first event that was not read from the cache, as exactly as the record tells; null "
        "where nothing was missed."
    )


class EpochMoney(BaseModel):
    """Cost and gain of an epoch in money, at the prices of the call that opened it."""

    currency: Currency
    cost: float = Field(description="Cost of writing to the cache again.")
    gain: float = Field(description="Amount saved by carrying fewer tokens.")
    net: float = Field(description="`gain` less `cost`; above 0 the epoch paid.")


class LedgerEpoch(BaseModel):
    """Effect of an epoch on the bill, by the expected figures. What summarizers were paid is not in it."""

    epoch: EpochNumber
    cause: EpochCause
    opened_by: str = Field(description="Id of the call that opened it, or of its first call that the ledger covers.")
    calls: int = Field(description="Number of calls that were rendered from it; failed ones do not count.")
    calls_since: int = Field(
        description="Number of calls from its first one on, until the view was planned from nothing again."
    )
    rewritten_tokens: int = Field(
        description="Tokens that stood in the cache and had to be written again because of it, as the provider counts."
    )
    removed_tokens: int = Field(description="Tokens that it took out of the context, as the provider counts.")
    cost: float = Field(description="Price of the rewritten tokens, as a number of uncached input tokens.")
    gain: float = Field(
        description="Price of carrying the removed tokens through `calls_since` calls, as a number of uncached input "
        "tokens."
    )
    net: float = Field(description="`gain` less `cost`; above 0 the epoch paid.")
    money: EpochMoney | None = Field(description="The same in money; null if the policy names no price of input.")


class TotalMoney(BaseModel):
    """Price of input and output in one currency, of the calls whose policy names prices."""

    currency: Currency
    billed: float = Field(description="Amount billed.")
    append_only: float = Field(description="Estimated amount had nothing been left out of the contexts.")
    saved: float = Field(
        description="`append_only` less `billed`; negative if leaving content out cost more than it saved."
    )


class LedgerTotals(BaseModel):
    """Totals of the calls of a view. Calls without reported usage count as expected."""

    partial: bool = Field(description="Whether only the newest 5,000 calls are covered because there are more.")
    calls: int = Field(description="Number of calls.")
    unreported_calls: int = Field(description="Number of calls without reported usage, failed ones not counted.")
    failed_calls: int = Field(description="Number of calls that failed and were not billed.")
    input: BilledOut = Field(description="Input as reported, else as expected.")
    expected: BilledOut = Field(description="Input that follows from the recorded calls alone.")
    output_tokens: int = Field(description="Tokens of the models' answers, as reported.")
    append_only: AppendOnlyOut = Field(description="Estimated input had nothing been left out of the contexts.")
    saved: float = Field(
        description="`append_only.billed` less `input.billed`; negative if leaving content out cost more than it saved."
    )
    money: list[TotalMoney] = Field(description="Amounts by currency; empty if no policy names prices.")


class LedgerOut(BaseModel):
    """Ledger of a view: its calls, the epochs they were rendered from, and the totals."""

    calls: list[LedgerCall] = Field(description="A page of the view's calls, newest first.")
    epochs: list[LedgerEpoch] = Field(description="Epochs that the calls of this page were rendered from, in order.")
    totals: LedgerTotals = Field(description="Totals of all calls of the view, not only of this page.")
    next_cursor: NextCursor


class SumMoney(BaseModel):
    """Price of input and output in one currency, of the calls whose policy names prices."""

    currency: Currency
    billed: float = Field(description="Amount billed, by reported usage.")


class LedgerSums(BaseModel):
    """Sums over calls, by the usage that was reported for them."""

    calls: int = Field(description="Number of calls.")
    reported_calls: int = Field(description="Number of calls with reported usage.")
    overflows: int = Field(description="Number of calls that the provider refused as too long.")
    unreported_tokens: int = Field(
        description="Estimated input tokens of the calls for which neither usage nor an error was reported; they are "
        "in no other sum."
    )
    input_tokens: int = Field(description="All input tokens, those read from and written to the cache included.")
    read_tokens: int = Field(description="Input tokens read from the provider's cache.")
    write_tokens: int = Field(description="Input tokens written to the provider's cache.")
    output_tokens: int = Field(description="Tokens of the models' answers.")
    left_out_tokens: int = Field(description="Estimated tokens saved by what was not sent verbatim.")
    billed: float = Field(description="Price of the input, as the number of uncached input tokens that cost as much.")
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
