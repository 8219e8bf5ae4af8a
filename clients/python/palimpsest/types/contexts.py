"""Types of `contexts`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from palimpsest._model import Model
from palimpsest.types.events import AppendedOut
from palimpsest.types.feedback import ErrorIn, OutcomeOut, UsageIn
from palimpsest.types.policies import PolicyRef
from palimpsest.types.reconcile import InsertedOut, MessagePlanOut, ReconciledEvent
from palimpsest.types.summaries import CompactionOut


@dataclass(frozen=True, kw_only=True)
class BreakpointOut(Model):
    """A cache breakpoint in the request: the provider caches the prefix that ends there."""

    seq: int
    """Seq of the last event of the prefix."""
    kind: str
    """Purpose of the breakpoint: `system` (end of tools and system prompt), `tail` (end of the stable part, for
    the next call to read), `previous` (`tail` of the previous call, for this one to read), `kept` (end of the
    part that a new epoch left unchanged), `chain` (a step between distant breakpoints), `previous_turn` (end of
    the previous turn), `pre_tail` (end of a round shortly before the tail).
    """


@dataclass(frozen=True, kw_only=True)
class CacheOut(Model):
    """Use of the provider's prompt cache by the request."""

    breakpoints: list[BreakpointOut]
    """Cache breakpoints in the order of the request; empty for formats that have none."""
    prefix_sha256: str
    """SHA-256, in hex, of the request without its cache breakpoints and its ephemeral end. It stays the same while
    nothing is appended and no epoch is opened.
    """
    prefix_tokens: int
    """Estimated size of that prefix, in the model's tokens."""
    tokens: int
    """Part of the request that the provider's cache is expected to hold after this call, in the model's tokens: up
    to the last breakpoint, or that prefix if the provider caches without breakpoints. 0 if it is too small to
    be cached, if the model is not known to be cached, or if its usage was reported without cache reads.
    """
    expires_at: datetime | None
    """Time at which that part expires in the provider's cache, counted from this context by the lifetime that the
    policy or the table of models states. Each later call of the view moves it. Null if `tokens` is 0, and in
    records of earlier versions.
    """


@dataclass(frozen=True, kw_only=True)
class CalibrationUsed(Model):
    """Calibration of the estimator to the model, learned from reported usage, as applied to this context."""

    ratio: float
    """Tokens that the model's provider counts for each token that the estimator counts."""
    margin: float
    """Safety margin: the share by which the model's count may exceed the estimate."""
    samples: int
    """Number of calls with reported usage that it is based on."""


@dataclass(frozen=True, kw_only=True)
class CallRef(Model):
    """A recorded call, and the settings of its context."""

    call_id: str
    """Id of the recorded call, a UUID."""
    created_at: datetime
    """Time at which the context was made."""
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
class EvictionOut(Model):
    """A range of events that were not sent verbatim, for one reason.

    A `stubbed` or `replaced` range concerns only events of the same type as its first one. Other ranges are
    split around events that the context shows, such as pinned ones.
    """

    from_seq: int
    """First seq of the range, inclusive."""
    to_seq: int
    """Last seq of the range, inclusive."""
    disposition: str
    """The form in which the events are shown: `stubbed` (shortened, or as a stub), `replaced` (by other text, or
    by nothing), `summarized` (a summary that covers them is shown instead) or `dropped` (left out).
    """
    reducer: str
    """Rule that decided this: `visibility`, `expiry`, `ttl_pruning`, `retention`, `once`, `economics`, `caps`,
    `dialogue_window`, `fold` (a summary), `questions` (a long message next to a fold is shortened to the part
    with the question), `last_resort`, `prefix` (a newer system prompt or tool list) or `format` (the format
    cannot express it).
    """
    reason: str
    """Reason why the rule applied, such as `superseded`; for `fold` it names the summary."""
    tokens_saved: int
    """Estimated reduction of the context's size, in the model's tokens."""


@dataclass(frozen=True, kw_only=True)
class SummaryRef(Model):
    """A summary that is shown in place of a range of events."""

    id: str
    """Id of the summary, a UUID."""
    from_seq: int
    """First seq of the range, inclusive."""
    to_seq: int
    """Last seq of the range, inclusive."""
    depth: int
    """Level of the summary: 0 if written from events alone, else one more than the deepest summary it replaced."""
    tokens: int
    """Estimated size of the text that is shown, in the model's tokens."""


@dataclass(frozen=True, kw_only=True)
class TokensOut(Model):
    """Token budget of a context and its use, in the model's tokens: the estimator's count times `ratio`."""

    estimate: int
    """Estimated size of the request. Not counting injected content, which has its own reserve, it is at most
    `target`.
    """
    target: int
    """Maximum size of the context: `limit` minus `reserve`, `outside`, the reserve for injected content, and a
    margin for inexact counting.
    """
    limit: int
    """Window that the context was planned for; smaller than requested if outcomes name or imply a smaller one."""
    limit_assumed: bool
    """Whether `limit` is only assumed (128,000), because no model is set or its window is not known. Set
    `max_tokens` or the policy's `window_tokens` to give it.
    """
    reserve: int
    """Part of the window left free for the model's answer."""
    outside: int
    """Tokens that the client sends in addition to the request; 0 if not known."""
    estimator: str
    """Name of the estimator that counted, such as `tiktoken:o200k_base`."""
    by_source: dict[str, int]
    """`estimate` by part of the context: `tools`, `system`, `summaries`, `history`, `current_turn`, and
    `ephemeral` (layers, notices and injected content, after the cached prefix).
    """
    calibration: CalibrationUsed | None
    """Calibration that was applied; null (a ratio of 1) until usage is reported."""


@dataclass(frozen=True, kw_only=True)
class ContextOut(Model):
    """A context: the request to send to the provider unchanged, and how it was made."""

    call_id: str
    """Id of the recorded call, a UUID."""
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


class _InjectionInRequired(TypedDict):
    name: str
    """Name of the content's source, shown to the model and in errors."""
    content: str | list[dict[str, Any]]
    """Text, or a list of parts as in an event's `content`."""


class InjectionIn(_InjectionInRequired, total=False):
    """Content for one call only, placed at the end of its context and never logged as an event."""

    max_tokens: int | None
    """Maximum size of the content, in the model's tokens; above it the error is `injection-over-reserve`. Default:
    limited only by the policy's injection reserve.
    """


class _StepOutcomeInRequired(TypedDict):
    call_id: str
    """Id of the recorded call."""


class StepOutcomeIn(_StepOutcomeInRequired, total=False):
    """Outcome of an earlier call of the session."""

    usage: UsageIn | None
    """Token usage, from which the server learns how the model counts."""
    latency_ms: int | None
    """Duration of the call in milliseconds."""
    error: ErrorIn | None
    """Error that the provider returned. Omit it after a success."""
