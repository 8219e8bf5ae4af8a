"""Types of `ledger`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from typing import Literal

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class AppendOnlyOut(Model):
    """Estimated bill of the same calls if nothing had been left out of their contexts."""

    tokens: int
    """All input tokens: the sum of the other three."""
    read_tokens: int
    """Input tokens read from the provider's cache."""
    write_tokens: int
    """Input tokens written to the provider's cache."""
    fresh_tokens: int
    """Input tokens that were neither read from the cache nor written to it."""
    billed: float
    """Price of the input, expressed as the number of uncached input tokens that would cost the same."""
    calls_beyond_window: int
    """Number of those calls that would have exceeded the model's window."""


@dataclass(frozen=True, kw_only=True)
class HoldoutGroup(Model):
    """Sessions that were drawn for one group, with their reported calls."""

    sessions: int
    """Number of sessions."""
    calls: int
    """Number of calls with reported usage."""
    billed: float
    """Price of the input, expressed as the number of uncached input tokens that would cost the same."""


@dataclass(frozen=True, kw_only=True)
class MeasuredSaving(Model):
    """A measured difference between the enforced sessions and those held out."""

    share: float
    """Share of the price that is saved, such as 0.3; negative if it rose."""
    low: float
    """Lower limit of the 95% confidence interval."""
    high: float
    """Upper limit of the 95% confidence interval."""


@dataclass(frozen=True, kw_only=True)
class LedgerHoldout(Model):
    """Comparison of sessions that were held out of reduction with the others, drawn by the sessions' names.

    The calls of held-out sessions are also in `observed`. Sessions that changed their group are left out, and a
    sample is compared if there are very many.
    """

    held_out: HoldoutGroup
    """Sessions whose client's own bytes were sent."""
    enforced: HoldoutGroup
    """Sessions whose contexts were sent."""
    saved_per_call: MeasuredSaving | None
    """Difference in the price of a call; null with fewer than 30 sessions in a group."""
    saved_per_session: MeasuredSaving | None
    """Difference in the price of a session, which includes calls made in addition; null as `saved_per_call`."""


@dataclass(frozen=True, kw_only=True)
class SumMoney(Model):
    """Price of input and output in one currency, for calls whose policy has prices."""

    currency: str
    """Currency of the amounts, as the policy's `prices` name it."""
    billed: float
    """Amount billed, from reported usage."""


@dataclass(frozen=True, kw_only=True)
class LedgerModel(Model):
    """Sums over the calls of one model."""

    calls: int
    """Number of calls."""
    reported_calls: int
    """Number of calls with reported usage."""
    overflows: int
    """Number of calls that the provider refused as too long."""
    unreported_tokens: int
    """Estimated input tokens of calls without reported usage or error; not included in any other sum."""
    input_tokens: int
    """All input tokens, including those read from and written to the cache."""
    read_tokens: int
    """Input tokens read from the provider's cache."""
    write_tokens: int
    """Input tokens written to the provider's cache."""
    output_tokens: int
    """Tokens of the models' answers."""
    left_out_tokens: int
    """Estimated tokens saved by not sending everything verbatim, in the model's tokens."""
    billed: float
    """Price of the input, expressed as the number of uncached input tokens that would cost the same."""
    money: list[SumMoney]
    """Amounts by currency; empty if no policy names prices."""
    model: str | None
    """Name of the model; null for calls without one."""


@dataclass(frozen=True, kw_only=True)
class LedgerObserved(Model):
    """Sums over observed calls: the clients' own requests were sent, and the contexts in the view `~observed` were
    not.

    No other sum includes them.
    """

    calls: int
    """Number of calls."""
    reported_calls: int
    """Number of calls with reported usage, which all sums below cover."""
    input_tokens: int
    """Input tokens of the clients' own requests, as reported."""
    read_tokens: int
    """Input tokens of these requests that were read from the provider's cache."""
    write_tokens: int
    """Input tokens of these requests that were written to the provider's cache."""
    billed: float
    """Price of these requests, expressed as the number of uncached input tokens that would cost the same."""
    potential_input_tokens: int
    """Input tokens if the contexts had been sent instead: `input_tokens` without the estimated share that each
    context leaves out of the whole log.
    """
    priced_calls: int
    """Number of calls that the following two prices cover: the newest, 1000 at most."""
    priced_billed: float
    """Price of the clients' own requests of these calls, as `billed`."""
    potential_billed: float
    """Price of these calls if the contexts had been sent instead, with the reads from the provider's cache to
    expect of them.
    """


@dataclass(frozen=True, kw_only=True)
class LedgerSums(Model):
    """Sums over calls, from their reported usage."""

    calls: int
    """Number of calls."""
    reported_calls: int
    """Number of calls with reported usage."""
    overflows: int
    """Number of calls that the provider refused as too long."""
    unreported_tokens: int
    """Estimated input tokens of calls without reported usage or error; not included in any other sum."""
    input_tokens: int
    """All input tokens, including those read from and written to the cache."""
    read_tokens: int
    """Input tokens read from the provider's cache."""
    write_tokens: int
    """Input tokens written to the provider's cache."""
    output_tokens: int
    """Tokens of the models' answers."""
    left_out_tokens: int
    """Estimated tokens saved by not sending everything verbatim, in the model's tokens."""
    billed: float
    """Price of the input, expressed as the number of uncached input tokens that would cost the same."""
    money: list[SumMoney]
    """Amounts by currency; empty if no policy names prices."""


@dataclass(frozen=True, kw_only=True)
class LedgerWarmings(Model):
    """Requests that kept the provider's cache, from their reported usage. No other sum includes them."""

    warmings: int
    """Number of requests, including failed ones."""
    failed: int
    """Number of requests that failed and were not billed."""
    input_tokens: int
    """All input tokens, including those read from and written to the cache."""
    read_tokens: int
    """Input tokens read from the provider's cache."""
    write_tokens: int
    """Input tokens written to the provider's cache."""
    billed: float
    """Price of the requests, expressed as the number of uncached input tokens that would cost the same."""
    money: list[SumMoney]
    """Amounts by currency; empty if no policy names prices."""


@dataclass(frozen=True, kw_only=True)
class AuditLedgerOut(Model):
    """Sums over the calls of all sessions in a range of time."""

    since: str
    """Beginning of the range, inclusive, in ISO 8601."""
    until: str
    """End of the range, exclusive, in ISO 8601."""
    items: list[LedgerModel]
    """Sums by model."""
    totals: LedgerSums
    """Sums over all models."""
    warmings: LedgerWarmings
    """Requests in the range that kept the providers' caches."""
    observed: LedgerObserved
    """Calls in the range whose contexts were recorded and not sent."""
    holdout: LedgerHoldout | None
    """Measured difference to sessions held out of reduction; null if the range has no call of a session that was
    drawn for a group.
    """


@dataclass(frozen=True, kw_only=True)
class BilledOut(Model):
    """Input tokens divided by how the provider bills them, with their price."""

    tokens: int
    """All input tokens: the sum of the other three."""
    read_tokens: int
    """Input tokens read from the provider's cache."""
    write_tokens: int
    """Input tokens written to the provider's cache."""
    fresh_tokens: int
    """Input tokens that were neither read from the cache nor written to it."""
    billed: float
    """Price of the input, expressed as the number of uncached input tokens that would cost the same."""


@dataclass(frozen=True, kw_only=True)
class EpochMoney(Model):
    """Cost and gain of an epoch in money, at the prices of the call that opened it."""

    currency: str
    """Currency of the amounts, as the policy's `prices` name it."""
    cost: float
    """Cost of writing to the cache again."""
    gain: float
    """Amount saved by carrying fewer tokens."""
    net: float
    """`gain` minus `cost`; above 0 the epoch paid off."""


@dataclass(frozen=True, kw_only=True)
class PartsOut(Model):
    """Input tokens as the provider counts them, divided by how it bills them."""

    tokens: int
    """All input tokens: the sum of the other three."""
    read_tokens: int
    """Input tokens read from the provider's cache."""
    write_tokens: int
    """Input tokens written to the provider's cache."""
    fresh_tokens: int
    """Input tokens that were neither read from the cache nor written to it."""


@dataclass(frozen=True, kw_only=True)
class ReportedOut(Model):
    """Token usage of a call, as reported."""

    input_tokens: int
    """All input tokens, including those read from and written to the cache."""
    read_tokens: int | None
    """Input tokens read from the cache; null if not reported."""
    write_tokens: int | None
    """Input tokens written to the cache; null if not reported."""
    output_tokens: int | None
    """Tokens of the model's answer; null if not reported."""


@dataclass(frozen=True, kw_only=True)
class LedgerCall(Model):
    """A call in the ledger: its expected and its actual use of the provider's cache."""

    call_id: str
    """Id of the recorded call, a UUID."""
    created_at: str
    """Time at which the call's context was made, in ISO 8601."""
    epoch: int
    """Number of the view's epoch that the context is rendered from; 0 before the first epoch."""
    model: str | None
    """Name of the model that the context was made for; null if none was given."""
    format: str
    """Format of the request: a provider's, or the neutral `blocks`."""
    estimate: int
    """Estimated size of the request, in the model's tokens."""
    left_out_tokens: int
    """Estimated tokens saved by not sending everything verbatim, in the model's tokens."""
    idle_seconds: float | None
    """Seconds since the view's previous successful call; null if there was none."""
    expected: PartsOut
    """Expected division of the input, calculated from the recorded calls alone."""
    reported: ReportedOut | None
    """Reported token usage; null until it is reported."""
    failed: bool
    """Whether an error but no usage was reported; nothing was billed then."""
    billed: float
    """Price of the input as reported, else as expected, expressed as the number of uncached input tokens that
    would cost the same.
    """
    money: float | None
    """Price of input and output, in `currency`; null if the policy names no price for input."""
    currency: str
    """Currency of the amounts, as the policy's `prices` name it."""
    missed_tokens: int
    """Input tokens that the previous call left in the cache and this call did not read from it; 0 if within the
    tolerance of counting.
    """
    cause: (
        Literal[
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
        | None
    )
    """Reason why tokens were missed: `time_to_live` (idle too long), `epoch`, `tools` or `system_prompt` (the
    context changed), `model` or `format` (another cache), `below_minimum` (too small to be cached), `markers`
    (no cache breakpoints in the request), `lookback` (no breakpoint near enough). Or the reason why report and
    expectation differ: `not_reported` (no cache figures), `elsewhere` (more was read than expected, since other
    requests had the same prefix), `provider` (no known reason). Null if neither applies.
    """
    epoch_cause: str | None
    """Cause of the call's epoch, as in `EpochOut.cause`; null unless `cause` is `epoch`, `tools` or
    `system_prompt`.
    """
    diverges_at: int | None
    """Seq of the first event that was not read from the cache, if the record shows it; null if nothing was missed."""


@dataclass(frozen=True, kw_only=True)
class LedgerEpoch(Model):
    """Effect of an epoch on the bill, from the expected figures and without the price of summarizers."""

    epoch: int
    """Number of the epoch within its view, counted from 1."""
    cause: str
    """Cause of the epoch: `start` (first context of the view, if nothing else applies), `system_prompt` or `tools`
    (a new one was logged), `late_result` (an old tool call got its result), `model`, `window` or `policy` (the
    view's settings changed; `policy` also if the policy evicts at every context), `redaction` (an event was
    erased), `visibility` (events were hidden or shown), `expiry` (an event expired or was superseded), `ttl`
    (TTL pruning after idle time), `healed` (a summary now covers events that had been dropped), `cap` (a kind
    of content exceeded its cap), `cold_cache` (the provider's cache had expired anyway), `break_even` (keeping
    the evicted content had cost as much as rewriting the cache), `budget` (the context exceeded its trigger or
    target), `forced` (the request set `force`), `overflow` (retry of a call that was too long).
    """
    opened_by: str
    """Id of the call that opened the epoch, or of its first call in the ledger."""
    calls: int
    """Number of calls rendered from the epoch, not counting failed ones."""
    calls_since: int
    """Number of calls since the epoch was opened, up to the next epoch that planned the view from scratch."""
    rewritten_tokens: int
    """Tokens that had to be written to the cache again because of the epoch, as the provider counts."""
    removed_tokens: int
    """Tokens that the epoch removed from the context, as the provider counts."""
    cost: float
    """Price of writing `rewritten_tokens` instead of reading them, expressed as a number of uncached input tokens."""
    gain: float
    """Price of sending `removed_tokens` in `calls_since` calls, expressed as a number of uncached input tokens."""
    net: float
    """`gain` minus `cost`, in the same unit; above 0 the epoch paid off."""
    money: EpochMoney | None
    """Cost and gain in money; null if the policy names no price for input."""


@dataclass(frozen=True, kw_only=True)
class TotalMoney(Model):
    """Price of input and output in one currency, for calls whose policy has prices."""

    currency: str
    """Currency of the amounts, as the policy's `prices` name it."""
    billed: float
    """Amount billed."""
    append_only: float
    """Estimated amount if nothing had been left out of the contexts."""
    saved: float
    """`append_only` minus `billed`; negative if leaving content out cost more than it saved."""


@dataclass(frozen=True, kw_only=True)
class LedgerTotals(Model):
    """Totals of the calls of a view. Calls without reported usage count as expected."""

    partial: bool
    """Whether only the newest calls are covered, because there are more than `newest`."""
    calls: int
    """Number of calls."""
    unreported_calls: int
    """Number of calls without reported usage, not counting failed ones."""
    failed_calls: int
    """Number of calls that failed and were not billed."""
    input: BilledOut
    """Input as reported, else as expected."""
    expected: BilledOut
    """Expected input, calculated from the recorded calls alone."""
    output_tokens: int
    """Tokens of the models' answers, as reported."""
    append_only: AppendOnlyOut
    """Estimated input if nothing had been left out of the contexts."""
    saved: float
    """`append_only.billed` minus `input.billed`; negative if leaving content out cost more than it saved."""
    money: list[TotalMoney]
    """Amounts by currency; empty if no policy names prices."""


@dataclass(frozen=True, kw_only=True)
class LedgerOut(Model):
    """Ledger of a view: its calls, the epochs they were rendered from, and the totals."""

    calls: list[LedgerCall]
    """A page of the view's calls, newest first."""
    epochs: list[LedgerEpoch]
    """Epochs that the calls of this page were rendered from, in order."""
    totals: LedgerTotals
    """Totals of all calls of the view, not only of this page."""
    warmings: LedgerWarmings
    """Requests that kept the provider's cache of the view's calls."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""
