"""Types of `previews`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from typing import Any, Literal

from palimpsest._model import Model
from palimpsest.types.calls import CallRef, Change, FirstDifference, TokensDiff
from palimpsest.types.contexts import (
    CacheOut,
    EvictionOut,
    InsertedOut,
    MessagePlanOut,
    ReconciledEvent,
    SummaryRef,
    TokensOut,
)
from palimpsest.types.policies import PolicyRef
from palimpsest.types.summaries import CompactionOut


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
    appended: list[ReconciledEvent] | None = None
    """Events that were new; present if the request had `messages`."""
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
