"""The ledger: where a bill comes from. What is `billed`, `cost`, `gain`, `net` and `saved` is in input tokens."""

from typing import Literal

from pydantic import BaseModel, Field

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


class PartsOut(BaseModel):
    """Input in the provider's tokens: read from its cache, written to it, and neither."""

    tokens: int
    read_tokens: int
    write_tokens: int
    fresh_tokens: int


class BilledOut(PartsOut):
    """The same with its price."""

    billed: float


class AppendOnlyOut(BilledOut):
    """What the same calls would have been billed with nothing left out: an estimate. So many of them would not have
    fit the model's window."""

    calls_beyond_window: int


class ReportedOut(BaseModel):
    """As it was reported; `input_tokens` is all of the input."""

    input_tokens: int
    read_tokens: int | None
    write_tokens: int | None
    output_tokens: int | None


class LedgerCall(BaseModel):
    """One call: what its provider's cache should have done, and what it did.

    `missed_tokens` were in the cache after the call before, or in the place of what was, and were not read; `cause`
    is why: `time_to_live` (idle too long), `epoch` (our own change, with its `epoch_cause`), `tools`, `system_prompt`,
    `model`, `format`, `below_minimum` (too small to be cached), `markers` (the request carries none), `lookback` (none
    near enough); and where a report and the record disagree, `not_reported` (nothing was said of the cache),
    `elsewhere` (more was read: something else had sent the same), `provider` (nothing we know of explains it).
    """

    call_id: str
    created_at: str
    epoch: int
    model: str | None
    format: str
    estimate: int
    left_out_tokens: int
    idle_seconds: float | None = Field(description="Since the view's call before.")
    expected: PartsOut
    reported: ReportedOut | None
    failed: bool = Field(description="An error was reported: nothing was billed.")
    billed: float = Field(description="As reported, else as expected.")
    money: float | None = Field(description="With output; null without a price in the policy.")
    currency: str
    missed_tokens: int
    cause: Cause | None
    epoch_cause: str | None
    diverges_at: int | None = Field(description="Seq of the first block not read, as exactly as the record knows.")


class EpochMoney(BaseModel):
    """The same in money."""

    currency: str
    cost: float
    gain: float
    net: float


class LedgerEpoch(BaseModel):
    """What an epoch did to the bill: it cost writing `rewritten_tokens` again, and saved `calls_since` calls from
    carrying `removed_tokens`. By the expected figures; what a summarizer took is not in it."""

    epoch: int
    cause: str
    opened_by: str
    calls: int = Field(description="Those that were rendered in it.")
    calls_since: int = Field(description="Those, and later ones until a context was planned from nothing.")
    rewritten_tokens: int
    removed_tokens: int
    cost: float
    gain: float
    net: float = Field(description="Above 0 it paid.")
    money: EpochMoney | None


class TotalMoney(BaseModel):
    """Input and output of the calls whose policy names a price."""

    currency: str
    billed: float
    append_only: float
    saved: float


class LedgerTotals(BaseModel):
    """All calls of the view (the newest 5,000 if `partial`). Calls without a report count as expected."""

    partial: bool
    calls: int
    unreported_calls: int
    failed_calls: int
    input: BilledOut
    expected: BilledOut
    output_tokens: int
    append_only: AppendOnlyOut
    saved: float
    money: list[TotalMoney]


class LedgerOut(BaseModel):
    """A view's calls, the newest first, the epochs they were rendered in, and the totals of all calls."""

    calls: list[LedgerCall]
    epochs: list[LedgerEpoch]
    totals: LedgerTotals
    next_cursor: str | None


class SumMoney(BaseModel):
    """Input and output of the calls whose policy names a price."""

    currency: str
    billed: float


class LedgerSums(BaseModel):
    """Calls, and what was reported of them. `unreported_tokens` is the estimate of those without a report."""

    calls: int
    reported_calls: int
    overflows: int
    unreported_tokens: int
    input_tokens: int
    read_tokens: int
    write_tokens: int
    output_tokens: int
    left_out_tokens: int
    billed: float
    money: list[SumMoney]


class LedgerModel(LedgerSums):
    """Those of one model."""

    model: str | None


class AuditLedgerOut(BaseModel):
    """The calls of all sessions in a range of time, by model."""

    since: str
    until: str
    items: list[LedgerModel]
    totals: LedgerSums
