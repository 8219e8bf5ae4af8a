"""Recorded calls: lists, manifests, contexts rendered again, differences, histories; and previews."""

from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.core.audit.declined import Reason
from app.http import fields
from app.http.openapi import examples
from app.http.paging import page_of
from app.resources.contexts.schemas import (
    CacheOut,
    ContextOut,
    EvictionOut,
    ProviderRequest,
    SummaryRef,
    TokensOut,
    example,
)
from app.resources.feedback.schemas import MatchedOut
from app.resources.layers.routes import LayerKind
from app.resources.policies.routes import PolicyRef
from app.resources.summaries.routes import CoverageRun

OUTCOME: Final = (
    "Outcome of the call; null until one is reported. Until then it is not known whether its request was ever sent."
)


class CallRef(BaseModel):
    """A recorded call, and the settings of its context."""

    call_id: fields.CallId
    created_at: datetime = Field(description="Time at which the context was made.")
    session: fields.SessionName
    line: fields.LineName
    view: fields.ViewOf
    head: fields.CallHead
    epoch: fields.CallEpoch
    format: fields.CallFormat
    model: fields.CallModel
    policy: PolicyRef = Field(description="Version of the policy that the context was made with.")


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
    """Error of a call, as reported; fields that were not reported are absent."""

    status: int | None = Field(None, description="HTTP status of the provider's response.")
    message: str | None = Field(None, description="Text of the error, as the provider wrote it.")
    code: str | None = Field(None, description="Provider's code or type of the error.")
    overflow: MatchedOut | None = Field(
        None, description="Pattern by which an overflow was recognized; absent if it was not one."
    )


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
        "as it is shown. Null if unknown: in records of early versions, for retries of calls that were too long, and "
        "if events that the call showed were erased since; or if the query says `declined=false`."
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


class BlockOut(BaseModel):
    """A block of a context: one event, or a text of the server in place of several."""

    seq: int = Field(description="Seq of the event that it shows; for several events, that of the last.")
    kind: str = Field(
        description="Kind of block: `tools`, `system`, `user`, `assistant`, `call`, `result` or `note` (a text of the "
        "server)."
    )
    replaced: bool = Field(description="Whether a stub or other text replaces the event's own content.")
    ephemeral: bool = Field(description="Whether it comes after the cached prefix and may differ in the next call.")
    chars: int = Field(description="Length of its text, in characters.")
    begins: str = Field(description="Beginning of its text, at most 240 characters.")


class FirstDifference(BaseModel):
    """The first block in which two contexts differ."""

    index: int = Field(description="Position of the block in each context, counted from 0.")
    a: BlockOut | None = Field(description="Block of the first context; null if it has fewer blocks.")
    b: BlockOut | None = Field(description="Block of the second context; null if it has fewer blocks.")


class Change(BaseModel):
    """A range of events that the second context shows differently from the first."""

    model_config = ConfigDict(populate_by_name=True)

    from_seq: fields.FromSeq
    to_seq: fields.ToSeq
    change: Literal["added", "removed", "changed"] = Field(
        description="Kind of change: only the second context shows any of the events (`added`), only the first does "
        "(`removed`), or both or neither do (`changed`)."
    )
    before: str | None = Field(
        alias="from",
        description="Disposition in the first context, as in `DispositionRun`; null if the events were not logged yet.",
    )
    after: str | None = Field(
        alias="to",
        description="Disposition in the second context, as in `DispositionRun`; null if the events were not logged "
        "yet.",
    )
    summary: str | None = Field(
        None, description="Id of the summary that covers the events in the later call; null or absent if none does."
    )
    reducer: fields.ReducerIfAny = None
    reason: fields.ReasonIfAny = None
    epoch: int | None = Field(
        description="Number of the epoch that made the change, in the view of the later call; null if an append or an "
        "erasure made it."
    )
    cause: str | None = Field(
        description="Cause of that epoch, as in `EpochOut.cause`; `appended` if the events were not logged yet, "
        "`redaction` if they were erased."
    )
    tokens: int = Field(
        description="Additional tokens that the events take in the second context, by the estimator; negative if they "
        "take fewer."
    )


class TokensDiff(BaseModel):
    """Sizes of the two contexts, in tokens by the estimator of each."""

    a: int = Field(description="Size of the first context.")
    b: int = Field(description="Size of the second context.")
    by_cause: dict[str, int] = Field(
        description="Difference in size by cause, as in `Change.cause`, with `other` for the rest. The figures add up "
        "to `b` minus `a`."
    )


class DiffOut(BaseModel):
    """Difference between two calls of a session."""

    a: CallRef = Field(description="First call.")
    b: CallRef = Field(description="Second call.")
    identical: bool = Field(description="Whether both contexts have the same blocks in the same format.")
    first_difference: FirstDifference | None = Field(description="First block that differs; null if none does.")
    changes: list[Change] = Field(description="Events that are shown differently, in the order of the log.")
    tokens: TokensDiff = Field(description="Difference in size, and what caused it.")


class HistoryItem(BaseModel):
    """An event as the context of one call shows it."""

    call_id: fields.CallId
    created_at: datetime = Field(description="Time at which the call's context was made.")
    view: fields.ViewOf
    disposition: fields.Disposition
    summary: fields.CoveringSummary = None
    reducer: fields.ReducerIfAny = None
    reason: fields.ReasonIfAny = None
    epoch: fields.CallEpoch
    cause: fields.CallCause
    reported: bool = Field(
        description="Whether an outcome of the call was reported. If not, it is not known whether its request was sent."
    )


HistoryPage = page_of(
    HistoryItem, "A page of the history of an event.", "Calls made since the event was logged, oldest first."
)


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
        description="Reducers that evict nothing at the next call, each with its reason; null if it is reduced."
    )
    stalled: str | None = Field(
        description="Reason why so small a reduction would be refused now; null if it would be made."
    )


class PreviewRef(CallRef):
    """A preview, and the settings of its context."""

    call_id: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed
    created_at: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed


class PreviewDiff(DiffOut):
    """Difference between a recorded call (`a`) and a preview (`b`)."""

    b: PreviewRef = Field(description="The preview.")


class PreviewOut(ContextOut):
    """A context as the next call would get it. Nothing was recorded or changed."""

    model_config = examples(
        lambda: PreviewOut(
            **example().model_dump(exclude={"call_id"}, exclude_unset=True), call_id=None, preview=True, cause="start"
        )
    )

    call_id: None = Field(description="Always null: nothing is recorded.")  # type: ignore[assignment]  # narrowed
    preview: Literal[True] = Field(description="Always true: this is a preview.")
    cause: str | None = Field(
        description="Cause of the new epoch that it would open, as in `EpochOut.cause`; null if the current epoch "
        "would stay."
    )
    diff: PreviewDiff | None = Field(
        None, description="Difference from the recorded call named by `diff_with`; absent without it."
    )
