"""Recorded calls: lists, manifests, and contexts rendered again; and the evictions to come."""

from datetime import datetime
from typing import Final

from pydantic import BaseModel, Field

from app.http import fields
from app.http.paging import page_of
from app.resources.contexts.schemas import CacheOut, CallRef, EvictionOut, ProviderRequest, SummaryRef, TokensOut
from app.resources.feedback.schemas import MatchedOut
from app.resources.layers.routes import LayerKind
from app.resources.summaries.routes import CoverageRun
from app.wings.audit.declined import Reason

OUTCOME: Final = (
    "Outcome of the call; null until one is reported. Until then it is not known whether its request was ever sent."
)


class InjectionRef(BaseModel):
    """Content that was injected into one call."""

    name: str = Field(description="Name of the content's source.")
    chars: int = Field(
        description="Number of characters of the content's text; other parts count as the words shown for them."
    )


class DispositionRun(CoverageRun):
    """A range of events that were all shown in the same way."""


class CallUsage(BaseModel):
    """Token usage of a call, as reported by the provider. A figure that was not reported is null."""

    input_tokens: int | None = Field(
        description="All input tokens, including those read from and written to the cache."
    )
    cache_read_tokens: int | None = Field(description="Input tokens that were read from the provider's cache.")
    cache_write_tokens: int | None = Field(description="Input tokens that were written to the provider's cache.")
    output_tokens: int | None = Field(description="Tokens of the model's answer.")


class ReportedError(BaseModel):
    """Error of a call, as reported; fields that were not reported are null."""

    status: int | None = Field(None, description="HTTP status of the provider's response.")
    message: str | None = Field(None, description="Text of the error, as the provider wrote it.")
    code: str | None = Field(None, description="Provider's code or type of the error.")
    overflow: MatchedOut | None = Field(None, description="Pattern by which an overflow was recognized; else null.")


class CallOutcome(BaseModel):
    """Outcome of a call, as reported."""

    reported_at: datetime = Field(description="Time of the report.")
    usage: CallUsage = Field(description="Token usage; all figures are null if none was reported.")
    latency_ms: int | None = Field(description="Duration of the call in milliseconds; null if it was not reported.")
    error: ReportedError | None = Field(description="Error of the provider; null after a success.")
    overflow: bool = Field(description="Whether the error means that the context was too long.")


class CallItem(CallRef):
    """A recorded call in a list."""

    estimate: int = Field(description="Estimated size of the request, in the model's tokens.")
    target: int = Field(description="Maximum size of the context, in the model's tokens.")
    evicted_tokens: int = Field(
        description="Estimated tokens saved by not sending everything verbatim, in the model's tokens."
    )
    summaries: int = Field(description="Number of summaries that were shown.")
    outcome: CallOutcome | None = Field(description=OUTCOME)
    overflow: bool = Field(description="Whether the provider was reported to have refused the request as too long.")
    input_tokens: int | None = Field(
        description="Input tokens that the provider reported, including cached ones; null until they are reported."
    )
    retry_of: fields.RetryOf
    sha256: fields.RequestSha256


CallPage = page_of(CallItem, "A page of recorded calls.", "Recorded calls, newest first.")


class DeclinedOut(BaseModel):
    """A reducer that evicted nothing for a call, and the reason."""

    reducer: fields.Reducer
    reason: Reason = Field(
        description="Reason: the policy does not use it (`disabled`), it evicts only at other moments (`not_asked`) or "
        "later (`not_due`), nothing is old and large enough for it (`nothing_eligible`) or may go (`protected`), it "
        "would save too little (`below_minimum`) or nothing (`would_save_nothing`), writing the rest to the cache "
        "again would cost more (`would_not_pay`), the context is within the threshold (`below_trigger`), within the "
        "reducer's own limit (`within_limit`), or has its goal already (`reached_goal`), no summary is stored yet "
        "(`no_summary`), or so small a reduction was refused (`stalled`)."
    )
    detail: str = Field(description="The reason in words, with its figures; tokens are the model's.")
    events: int | None = Field(description="Number of events that it left; null if not counted.")
    tokens: int | None = Field(description="Size of these events as shown, in the model's tokens; null if not counted.")


class Manifest(CallRef):
    """Record of a call: everything its context was made from, and how it showed each event."""

    render_version: int = Field(
        description="Version of the rendering rules, with which the call can be rendered again to the same bytes."
    )
    tokens: TokensOut = Field(description="Token budget and its use.")
    summaries: list[SummaryRef] = Field(description="Summaries that were shown, in the order of the log.")
    evictions: list[EvictionOut] = Field(description="Events that were not sent verbatim, in the order of the log.")
    cause: fields.CallCause
    cache: CacheOut = Field(description="Part of the request that the provider could cache.")
    injections: list[InjectionRef] = Field(description="Content that was injected into this call only.")
    layers: dict[LayerKind, int] = Field(description="Versions of the layers that were shown, by kind of layer.")
    notice: str | None = Field(
        description="Notice that older content was pruned, shown to the model in this call only; null if there was "
        "none."
    )
    stalled: str | None = Field(description="Reason why the context stayed above its trigger; null if it did not.")
    now: datetime | None = Field(description="Time of the call as given in the request; null if it was not given.")
    retry_of: fields.RetryOf
    outcome: CallOutcome | None = Field(description=OUTCOME)
    expires_at: datetime | None = Field(
        description="Time after which the record may be deleted; null if it is kept forever."
    )
    moment: str | None = Field(
        description="Moment that the context was planned for: the provider holds a prefix of it (`warm`), does not "
        "hold it (`cold`), or the budget or the client demands a reduction (`pressed`); null in "
        "records of early versions."
    )
    declined: list[DeclinedOut] | None = Field(
        description="Reducers that evicted nothing for this call, in the order in which they are asked, by the context "
        "as it is shown. Null if unknown: in records of early versions, for retries of calls that were too long, if "
        "events that the call showed were erased since, or if the call cannot be rendered again or its estimator or "
        "budget is no longer supported; or if the query says `declined=false`."
    )
    dispositions: list[DispositionRun] = Field(
        description="Disposition of each event from seq 1 to `head`, as ranges in the order of the log; empty if the "
        "query says `dispositions=false`."
    )
    redacted_since: list[int] = Field(description="Seqs of events that were erased after the call was made.")
    sha256: fields.RequestSha256


class ContextAgain(CallRef):
    """A recorded call, rendered again from its record."""

    reproduced: bool = Field(
        description="Whether the request has the same bytes as when the call was made. False only if events that it "
        "showed were erased since."
    )
    redacted: list[int] = Field(
        description="Seqs of the erased events that make the bytes differ; empty if `reproduced`."
    )
    request: ProviderRequest
    tokens: TokensOut = Field(description="Token budget and its use, as recorded.")
    summaries: list[SummaryRef] = Field(description="Summaries that were shown, in the order of the log.")
    evictions: list[EvictionOut] = Field(description="Events that were not sent verbatim, in the order of the log.")
    cache: CacheOut = Field(
        description="Part of the request that the provider could cache; `prefix_sha256` is of this rendering."
    )
    sha256: str = Field(description="SHA-256 of `request` as rendered now, in hex.")
    recorded_sha256: str = Field(description="SHA-256 of the request as it was made for the call, in hex.")


class NextEvictionsOut(BaseModel):
    """The evictions that the next reduction of a view would make. Nothing was recorded or changed."""

    session: fields.SessionName
    line: fields.LineName
    view: fields.ViewOf
    head: fields.CallHead
    moment: str = Field(description="Moment of the next call, as in `Manifest.moment`.")
    tokens: int = Field(description="Estimated size of the context now, in the model's tokens.")
    threshold: int = Field(description="Size above which a context is reduced, in the model's tokens.")
    target: int = Field(description="Maximum size of the context, in the model's tokens.")
    tokens_after: int = Field(description="Estimated size after the reduction, in the model's tokens.")
    evictions: list[EvictionOut] = Field(
        description="The first evictions of a reduction, in the order in which its reducers are asked, if the context "
        "were above its threshold now."
    )
    more: int = Field(description="Number of further evictions that are not listed.")
    declined: list[DeclinedOut] | None = Field(
        description="Reducers that evict nothing at the next call, each with its reason; null if `moment` is `pressed`."
    )
    stalled: str | None = Field(description="Reason why this reduction would be refused now; null if it would be made.")
