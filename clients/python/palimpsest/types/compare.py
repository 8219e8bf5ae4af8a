"""Types of `compare`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from palimpsest._model import Model
from palimpsest.types.contexts import CacheOut, CallRef, EvictionOut, SummaryRef, TokensOut
from palimpsest.types.events import AppendedOut
from palimpsest.types.feedback import OutcomeOut
from palimpsest.types.policies import PolicyRef
from palimpsest.types.reconcile import InsertedOut, MessagePlanOut, ReconciledEvent
from palimpsest.types.summaries import CompactionOut


@dataclass(frozen=True, kw_only=True)
class BlockOut(Model):
    """A block of a context: one event, or a text of the server in place of several."""

    seq: int
    """Seq of the event that it shows; for several events, that of the last."""
    kind: str
    """Kind of block: `tools`, `system`, `user`, `assistant`, `call`, `result` or `note` (a text of the server)."""
    replaced: bool
    """Whether a stub or other text replaces the event's own content."""
    ephemeral: bool
    """Whether it comes after the cached prefix and may differ in the next call."""
    chars: int
    """Length of its text, in characters."""
    begins: str
    """Beginning of its text, at most 240 characters."""


@dataclass(frozen=True, kw_only=True)
class Change(Model):
    """A range of events that the second context shows differently from the first."""

    from_seq: int
    """First seq of the range, inclusive."""
    to_seq: int
    """Last seq of the range, inclusive."""
    change: Literal["added", "removed", "changed"]
    """Kind of change: only the second context shows any of the events (`added`), only the first does (`removed`),
    or both or neither do (`changed`).
    """
    from_: str | None = field(metadata={"name": "from"})
    """Disposition in the first context, as in `DispositionRun`; null if the events were not logged yet."""
    to: str | None
    """Disposition in the second context, as in `DispositionRun`; null if the events were not logged yet."""
    summary: str | None = None
    """Id of the summary that covers the events in the later call; null or absent if none does."""
    reducer: str | None = None
    """Rule that decided this, as in `EvictionOut.reducer`; null or absent if no rule did."""
    reason: str | None = None
    """Reason for this disposition, such as `superseded`; null or absent if it needs none."""
    epoch: int | None
    """Number of the epoch that made the change, in the view of the later call; null if an append or an erasure
    made it.
    """
    cause: str | None
    """Cause of that epoch, as in `EpochOut.cause`; `appended` if the events were not logged yet, `redaction` if
    they were erased.
    """
    tokens: int
    """Additional tokens that the events take in the second context, by the estimator; negative if they take fewer."""


@dataclass(frozen=True, kw_only=True)
class FirstDifference(Model):
    """The first block in which two contexts differ."""

    index: int
    """Position of the block in each context, counted from 0."""
    a: BlockOut | None
    """Block of the first context; null if it has fewer blocks."""
    b: BlockOut | None
    """Block of the second context; null if it has fewer blocks."""


@dataclass(frozen=True, kw_only=True)
class TokensDiff(Model):
    """Sizes of the two contexts, in tokens by the estimator of each."""

    a: int
    """Size of the first context."""
    b: int
    """Size of the second context."""
    by_cause: dict[str, int]
    """Difference in size by cause, as in `Change.cause`, with `other` for the rest. The figures add up to `b`
    minus `a`.
    """


@dataclass(frozen=True, kw_only=True)
class DiffOut(Model):
    """Difference between two calls of a session."""

    a: CallRef
    """First call."""
    b: CallRef
    """Second call."""
    identical: bool
    """Whether both contexts have the same blocks in the same format."""
    first_difference: FirstDifference | None
    """First block that differs; null if none does."""
    changes: list[Change]
    """Events that are shown differently, in the order of the log."""
    tokens: TokensDiff
    """Difference in size, and what caused it."""


@dataclass(frozen=True, kw_only=True)
class HistoryItem(Model):
    """An event as the context of one call shows it."""

    call_id: str
    """Id of the recorded call, a UUID."""
    created_at: datetime
    """Time at which the call's context was made."""
    view: str
    """Name of the view that the context was made for."""
    disposition: str
    """The form in which the events are shown: `verbatim`; `stubbed` (shortened, or as a stub); `replaced` (by
    other text, by nothing, or by a newer system prompt or tool list); `summarized` (a summary that covers them
    is shown instead); `dropped` (left out); `not_rendered` (left out because they only mark turns, or the
    policy's `authors` or `types` exclude them); `redacted` (erased on request).
    """
    summary: str | None = None
    """Id of the summary that covers the events; null or absent unless the disposition is `summarized`."""
    reducer: str | None = None
    """Rule that decided this, as in `EvictionOut.reducer`; null or absent if no rule did."""
    reason: str | None = None
    """Reason for this disposition, such as `superseded`; null or absent if it needs none."""
    epoch: int
    """Number of the view's epoch that the context is rendered from; 0 before the first epoch."""
    cause: str
    """Cause of that epoch, as in `EpochOut.cause`."""
    reported: bool
    """Whether an outcome of the call was reported. If not, it is not known whether its request was sent."""


@dataclass(frozen=True, kw_only=True)
class HistoryPage(Model):
    """A page of the history of an event."""

    items: list[HistoryItem]
    """Calls made since the event was logged, oldest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class PreviewRef(Model):
    """A preview, and the settings of its context."""

    call_id: None
    """Always null: nothing is recorded."""
    created_at: None
    """Always null: nothing is recorded."""
    session: str
    """Id of the session, chosen by the client."""
    line: str
    """Id of the session's line that this concerns. Used in a path in place of the session's id, it always means
    this line.
    """
    view: str
    """Name of the view that the context was made for."""
    head: int
    """Seq of the last event that the context takes into account."""
    epoch: int
    """Number of the view's epoch that the context is rendered from; 0 before the first epoch."""
    format: Literal["openai", "openai-responses", "anthropic", "gemini", "blocks"]
    """Format of the request: a provider's, or the neutral `blocks`."""
    model: str | None
    """Name of the model that the context was made for; null if none was given."""
    policy: PolicyRef
    """Version of the policy that the context was made with."""


@dataclass(frozen=True, kw_only=True)
class PreviewDiff(Model):
    """Difference between a recorded call (`a`) and a preview (`b`)."""

    a: CallRef
    """First call."""
    b: PreviewRef
    """The preview."""
    identical: bool
    """Whether both contexts have the same blocks in the same format."""
    first_difference: FirstDifference | None
    """First block that differs; null if none does."""
    changes: list[Change]
    """Events that are shown differently, in the order of the log."""
    tokens: TokensDiff
    """Difference in size, and what caused it."""


@dataclass(frozen=True, kw_only=True)
class PreviewOut(Model):
    """A context as the next call would get it. Nothing was recorded or changed."""

    call_id: None
    """Always null: nothing is recorded."""
    session: str
    """Id of the session, chosen by the client."""
    line: str
    """Id of the session's line that this concerns. Used in a path in place of the session's id, it always means
    this line.
    """
    view: str
    """Name of the view that the context was made for."""
    head: int
    """Seq of the last event that the context takes into account."""
    epoch: int
    """Number of the view's epoch that the context is rendered from; 0 before the first epoch."""
    format: Literal["openai", "openai-responses", "anthropic", "gemini", "blocks"]
    """Format of the request: a provider's, or the neutral `blocks`."""
    model: str | None
    """Name of the model that the context was made for; null if none was given."""
    policy: PolicyRef
    """Version of the policy that the context was made with."""
    request: dict[str, Any]
    """Request in the given format, to be sent together with the client's own parameters, such as the model. Its
    fields are `messages`, `tools` (openai); `input`, `instructions`, `tools` (openai-responses); `system`,
    `messages`, `tools` (anthropic); `systemInstruction`, `contents`, `tools` (gemini); `blocks` (blocks).
    Fields without content are absent.
    """
    tokens: TokensOut
    """Token budget and its use."""
    summaries: list[SummaryRef]
    """Summaries that are shown, in the order of the log."""
    evictions: list[EvictionOut]
    """Events that are not shown verbatim, in the order of the log."""
    cache: CacheOut
    """Part of the request that the provider can cache."""
    compaction: CompactionOut
    """Whether summaries are being written for the session."""
    appended: AppendedOut | list[ReconciledEvent] | None = None
    """Result of the append, if the request had one; with `messages`, the list of the events that were new.
    Otherwise absent.
    """
    outcome: OutcomeOut | None = None
    """Verdict on the outcome; present if the request reported one."""
    plan: list[MessagePlanOut] | None = None
    """Plan for each of the client's messages; present if the request had `messages`."""
    inserted: list[InsertedOut] | None = None
    """Messages inserted between the client's, in order; present if the request had `messages`."""
    sha256: str
    """SHA-256, in hex, of `request` as canonical JSON: UTF-8, without whitespace, keys in the given order."""
    preview: Literal[True]
    """Always true: this is a preview."""
    cause: str | None
    """Cause of the new epoch that it would open, as in `EpochOut.cause`; null if the current epoch would stay."""
    diff: PreviewDiff | None = None
    """Difference from the recorded call named by `diff_with`; absent without it."""
