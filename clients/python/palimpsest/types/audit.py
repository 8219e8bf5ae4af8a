"""Types of `audit`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from palimpsest._model import Model
from palimpsest.types.contexts import CacheOut, EvictionOut, SummaryRef, TokensOut
from palimpsest.types.feedback import MatchedOut
from palimpsest.types.policies import PolicyRef


@dataclass(frozen=True, kw_only=True)
class CallBlockOut(Model):
    """A block of a recorded call's request, as the model saw it."""

    index: int
    """Position of the block in the request, counted from 0."""
    from_seq: int
    """Seq of the first event that it shows, or in whose place it is."""
    seq: int
    """Seq of the event that it shows; for several events, that of the last. Content after the conversation has
    that of the last event before it.
    """
    kind: str
    """Kind of block: `tools`, `system`, `user`, `assistant`, `call`, `result` or `note` (a note of the agent, or a
    text of the server).
    """
    source: Literal["tools", "system", "summaries", "history", "current_turn", "ephemeral"]
    """Part of the context that it counts to, as in `TokensOut.by_source`."""
    mark: Literal[
        "verbatim",
        "stub",
        "shortened",
        "replaced",
        "converted",
        "erased",
        "summary",
        "note",
        "pending",
        "layer",
        "notice",
        "injected",
    ]
    """Form of the content: whole (`verbatim`), as one line in place of a result (`stub`), with its beginning and
    end only (`shortened`), as another text (`replaced`), without parts that the request's format cannot express
    (`converted`), as a marker since it was erased (`erased`). Or a text of the server: summaries (`summary`),
    the list of dropped events (`note`), a line in place of a result that is still missing (`pending`), a layer
    (`layer`), the notice that content was pruned (`notice`). Or content that was injected into this call
    (`injected`).
    """
    name: str | None
    """Kind of a layer, or name of injected content; null for other blocks."""
    reducer: str | None
    """Rule that decided this, as in `EvictionOut.reducer`; null or absent if no rule did."""
    reason: str | None
    """Reason for this disposition, such as `superseded`; null or absent if it needs none."""
    summaries: list[str]
    """Ids of the summaries that it shows, in the order of the log."""
    tool: str | None
    """Name of the tool; null for blocks other than tool calls and their results."""
    call_id: str | None
    """Id of the tool call; null for blocks other than tool calls and their results."""
    protected_by: (
        Literal[
            "prefix",
            "pinned",
            "current_request",
            "open_call",
            "message",
            "never_evict",
            "shown_again",
            "newest",
            "below_minimum",
            "listing",
            "arguments_stay",
            "working_set",
            "unsent",
        ]
        | None
    )
    """Reason for which a block stays whole: it is a part of the prefix (`prefix`), pinned (`pinned`), the message
    that the running turn answers (`current_request`), a call without a result (`open_call`), a message
    (`message`: these go only with whole turns or under a summary), of a tool in `never_evict`, was shown again
    on request (`shown_again`), is among the newest results (`newest`) or too small (`below_minimum`), is a
    dense list of names (`listing`), arguments that the policy keeps (`arguments_stay`), the newest content of a
    file (`working_set`), or new in this call (`unsent`). Null if it may be evicted, is not whole, or `declined`
    of the call is null.
    """
    chars: int
    """Length of its text, in characters."""
    tokens: int
    """Estimated size, in the model's tokens. The blocks of a source add up to its figure in `tokens.by_source` of
    the call, but for the few tokens of `ephemeral` that belong to no block. Content after the conversation
    shares its figure by length, since a record has no figures of single blocks. If events were erased since,
    all blocks are counted as shown now.
    """
    breakpoint: str | None
    """Kind of the cache breakpoint after the block, as in `BreakpointOut.kind`; null if there is none."""
    text: str
    """Text of the block, cut to the number of characters asked for: of tool definitions and of a call's arguments
    their JSON. Parts other than text are named in brackets, such as `[image]`. An empty text is sent as the
    format requires, such as `(no output)`.
    """
    cut: bool
    """Whether `text` is only the beginning."""


@dataclass(frozen=True, kw_only=True)
class CallBlockPage(Model):
    """A page of the blocks of a recorded call's request."""

    items: list[CallBlockOut]
    """Blocks in the order of the request."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class CallUsage(Model):
    """Token usage of a call, as reported by the provider. A figure that was not reported is null."""

    input_tokens: int | None
    """All input tokens, including those read from and written to the cache."""
    cache_read_tokens: int | None
    """Input tokens that were read from the provider's cache."""
    cache_write_tokens: int | None
    """Input tokens that were written to the provider's cache."""
    output_tokens: int | None
    """Tokens of the model's answer."""


@dataclass(frozen=True, kw_only=True)
class ReportedError(Model):
    """Error of a call, as reported; fields that were not reported are null."""

    status: int | None = None
    """HTTP status of the provider's response."""
    message: str | None = None
    """Text of the error, as the provider wrote it."""
    code: str | None = None
    """Provider's code or type of the error."""
    overflow: MatchedOut | None = None
    """Pattern by which an overflow was recognized; else null."""


@dataclass(frozen=True, kw_only=True)
class CallOutcome(Model):
    """Outcome of a call, as reported."""

    reported_at: datetime
    """Time of the report."""
    usage: CallUsage
    """Token usage; all figures are null if none was reported."""
    latency_ms: int | None
    """Duration of the call in milliseconds; null if it was not reported."""
    error: ReportedError | None
    """Error of the provider; null after a success."""
    overflow: bool
    """Whether the error means that the context was too long."""


@dataclass(frozen=True, kw_only=True)
class CallItem(Model):
    """A recorded call in a list."""

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
    estimate: int
    """Estimated size of the request, in the model's tokens."""
    target: int
    """Maximum size of the context, in the model's tokens."""
    evicted_tokens: int
    """Estimated tokens saved by not sending everything verbatim, in the model's tokens."""
    summaries: int
    """Number of summaries that were shown."""
    outcome: CallOutcome | None
    """Outcome of the call; null until one is reported. Until then it is not known whether its request was ever
    sent.
    """
    overflow: bool
    """Whether the provider was reported to have refused the request as too long."""
    input_tokens: int | None
    """Input tokens that the provider reported, including cached ones; null until they are reported."""
    retry_of: str | None
    """Id of the call that this one retries because it was too long; null if it is not a retry."""
    sha256: str
    """SHA-256, in hex, of `request` as canonical JSON: UTF-8, without whitespace, keys in the given order."""


@dataclass(frozen=True, kw_only=True)
class CallPage(Model):
    """A page of recorded calls."""

    items: list[CallItem]
    """Recorded calls, newest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class ContextAgain(Model):
    """A recorded call, rendered again from its record."""

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
    reproduced: bool
    """Whether the request has the same bytes as when the call was made. False only if events that it showed were
    erased since.
    """
    redacted: list[int]
    """Seqs of the erased events that make the bytes differ; empty if `reproduced`."""
    request: dict[str, Any]
    """Request in the given format, to be sent together with the client's own parameters, such as the model. Its
    fields are `messages`, `tools` (openai); `input`, `instructions`, `tools` (openai-responses); `system`,
    `messages`, `tools` (anthropic); `systemInstruction`, `contents`, `tools` (gemini); `blocks` (blocks).
    Fields without content are absent.
    """
    tokens: TokensOut
    """Token budget and its use, as recorded."""
    summaries: list[SummaryRef]
    """Summaries that were shown, in the order of the log."""
    evictions: list[EvictionOut]
    """Events that were not sent verbatim, in the order of the log."""
    cache: CacheOut
    """Part of the request that the provider could cache; `prefix_sha256` is of this rendering."""
    sha256: str
    """SHA-256 of `request` as rendered now, in hex."""
    recorded_sha256: str
    """SHA-256 of the request as it was made for the call, in hex."""


@dataclass(frozen=True, kw_only=True)
class DeclinedOut(Model):
    """A reducer that evicted nothing for a call, and the reason."""

    reducer: str
    """Rule that decided this: `visibility`, `expiry`, `ttl_pruning`, `retention`, `once`, `economics`, `caps`,
    `dialogue_window`, `fold` (a summary), `questions` (a long message next to a fold is shortened to the part
    with the question), `last_resort`, `prefix` (a newer system prompt or tool list) or `format` (the format
    cannot express it).
    """
    reason: Literal[
        "disabled",
        "not_asked",
        "not_due",
        "nothing_eligible",
        "protected",
        "below_minimum",
        "would_not_pay",
        "below_trigger",
        "within_limit",
        "reached_goal",
        "no_summary",
        "would_save_nothing",
        "stalled",
    ]
    """Reason: the policy does not use it (`disabled`), it evicts only at other moments (`not_asked`) or later
    (`not_due`), nothing is old and large enough for it (`nothing_eligible`) or may go (`protected`), it would
    save too little (`below_minimum`) or nothing (`would_save_nothing`), writing the rest to the cache again
    would cost more (`would_not_pay`), the context is within the threshold (`below_trigger`), within the
    reducer's own limit (`within_limit`), or has its goal already (`reached_goal`), no summary is stored yet
    (`no_summary`), or so small a reduction was refused (`stalled`).
    """
    detail: str
    """The reason in words, with its figures; tokens are the model's."""
    events: int | None
    """Number of events that it left; null if not counted."""
    tokens: int | None
    """Size of these events as shown, in the model's tokens; null if not counted."""


@dataclass(frozen=True, kw_only=True)
class DispositionRun(Model):
    """A range of events that were all shown in the same way."""

    from_seq: int
    """First seq of the range, inclusive."""
    to_seq: int
    """Last seq of the range, inclusive."""
    disposition: str
    """The form in which the events are shown: `verbatim`; `stubbed` (shortened, or as a stub); `replaced` (by
    other text, by nothing, or by a newer system prompt or tool list); `summarized` (a summary that covers them
    is shown instead); `dropped` (left out); `not_rendered` (left out because they only mark turns, or the
    policy's `authors` or `types` exclude them); `redacted` (erased on request).
    """
    summary: str | None = None
    """Id of the summary that covers the events; null or absent unless the disposition is `summarized`."""


@dataclass(frozen=True, kw_only=True)
class InjectionRef(Model):
    """Content that was injected into one call."""

    name: str
    """Name of the content's source."""
    chars: int
    """Number of characters of the content's text; other parts count as the words shown for them."""


@dataclass(frozen=True, kw_only=True)
class Manifest(Model):
    """Record of a call: everything its context was made from, and how it showed each event."""

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
    render_version: int
    """Version of the rendering rules, with which the call can be rendered again to the same bytes."""
    tokens: TokensOut
    """Token budget and its use."""
    summaries: list[SummaryRef]
    """Summaries that were shown, in the order of the log."""
    evictions: list[EvictionOut]
    """Events that were not sent verbatim, in the order of the log."""
    cause: str
    """Cause of that epoch, as in `EpochOut.cause`."""
    cache: CacheOut
    """Part of the request that the provider could cache."""
    injections: list[InjectionRef]
    """Content that was injected into this call only."""
    layers: dict[str, int]
    """Versions of the layers that were shown, by kind of layer."""
    notice: str | None
    """Notice that older content was pruned, shown to the model in this call only; null if there was none."""
    stalled: str | None
    """Reason why the context stayed above its trigger; null if it did not."""
    now: datetime | None
    """Time of the call as given in the request; null if it was not given."""
    retry_of: str | None
    """Id of the call that this one retries because it was too long; null if it is not a retry."""
    outcome: CallOutcome | None
    """Outcome of the call; null until one is reported. Until then it is not known whether its request was ever
    sent.
    """
    expires_at: datetime | None
    """Time after which the record may be deleted; null if it is kept forever."""
    moment: str | None
    """Moment that the context was planned for: the provider holds a prefix of it (`warm`), does not hold it
    (`cold`), or the budget or the client demands a reduction (`pressed`); null in records of early versions.
    """
    declined: list[DeclinedOut] | None
    """Reducers that evicted nothing for this call, in the order in which they are asked, by the context as it is
    shown. Null if unknown: in records of early versions, for retries of calls that were too long, if events
    that the call showed were erased since, or if the call cannot be rendered again or its estimator or budget
    is no longer supported; or if the query says `declined=false`.
    """
    dispositions: list[DispositionRun]
    """Disposition of each event from seq 1 to `head`, as ranges in the order of the log; empty if the query says
    `dispositions=false`.
    """
    redacted_since: list[int]
    """Seqs of events that were erased after the call was made."""
    sha256: str
    """SHA-256, in hex, of `request` as canonical JSON: UTF-8, without whitespace, keys in the given order."""


@dataclass(frozen=True, kw_only=True)
class NextEvictionsOut(Model):
    """The evictions that the next reduction of a view would make. Nothing was recorded or changed."""

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
    moment: str
    """Moment of the next call, as in `Manifest.moment`."""
    tokens: int
    """Estimated size of the context now, in the model's tokens."""
    threshold: int
    """Size above which a context is reduced, in the model's tokens."""
    target: int
    """Maximum size of the context, in the model's tokens."""
    tokens_after: int
    """Estimated size after the reduction, in the model's tokens."""
    evictions: list[EvictionOut]
    """The first evictions of a reduction, in the order in which its reducers are asked, if the context were above
    its threshold now.
    """
    more: int
    """Number of further evictions that are not listed."""
    declined: list[DeclinedOut] | None
    """Reducers that evict nothing at the next call, each with its reason; null if `moment` is `pressed`."""
    stalled: str | None
    """Reason why this reduction would be refused now; null if it would be made."""
