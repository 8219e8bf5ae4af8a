"""Context requests and their responses."""

from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from app.core.render.formats import FormatName
from app.http import fields
from app.http.openapi import examples
from app.resources.events.schemas import AppendedOut, EventsIn, MessagesIn
from app.resources.feedback.schemas import OutcomeIn, OutcomeOut, UsageIn
from app.resources.policies.routes import PolicyGiven, PolicyRef
from app.resources.reconcile.schemas import InsertedOut, MessagePlanOut, ReconciledEvent
from app.resources.summaries.routes import CompactionOut

_CALL_ID: Final = "019373a1-0000-7000-8000-000000000000"

ProviderRequest = Annotated[
    dict[str, Any],
    Field(
        description="Request in the given format, to be sent together with the client's own parameters, such as the "
        "model. Its fields are `messages`, `tools` (openai); `input`, `instructions`, `tools` (openai-responses); "
        "`system`, `messages`, `tools` (anthropic); `systemInstruction`, `contents`, `tools` (gemini); `blocks` "
        "(blocks). Fields without content are absent."
    ),
]


class _BodyOfAppend:
    """Describes an object as the body of an append, which validates it."""

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(model.__pydantic_core_schema__) for model in (EventsIn, MessagesIn)]}


AppendIn = Annotated[dict[str, Any], _BodyOfAppend()]


class InjectionIn(fields.StrictRequest):
    """Content for one call only, placed at the end of its context and never logged as an event."""

    name: str = Field(
        min_length=1, max_length=256, description="Name of the content's source, shown to the model and in errors."
    )
    content: str | list[dict[str, Any]] = Field(
        min_length=1, description="Text, or a list of parts as in an event's `content`."
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Maximum size of the content, in the model's tokens; above it the error is "
        "`injection-over-reserve`. Default: limited only by the policy's injection reserve.",
    )


class ContextQuery(fields.StrictRequest):
    """Parameters of a context request. Those omitted keep the view's current value, unless they have a default."""

    view: fields.ViewName = "main"
    format: FormatName = Field(
        "openai",
        description="Format of the request: `openai` (chat completions), `openai-responses`, `anthropic` (messages), "
        "`gemini` (contents), or `blocks` (neutral, for no provider).",
    )
    model: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Name of the model to call; window, token counting and cache rules depend on it. Default: the "
        "view's model, else the session's.",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="Window of the model, in tokens: the maximum for request and answer together. (It is not the "
        "`max_tokens` of a provider's API, which limits only the answer; the policy's `reserve_tokens` does that "
        "here.) The view keeps it: later contexts without `max_tokens` have the same window, so that their prefix "
        "stays cached, until a request names another window, model or policy. Default: the view's window, else the "
        "policy's, else the model's own, else 128,000 (`limit_assumed` is then true).",
    )
    at: int | None = Field(
        None,
        ge=1,
        le=2**63 - 1,
        description="Seq of the last event to take into account: returns the context as it would have been then. "
        "Default: the head.",
    )
    outside_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="Tokens that the client sends in addition to this request, such as tools or a system prompt of its "
        "own, as the provider counts them. They are subtracted from the window. Default: the policy's value, else the "
        "session's, else a value learned from reported usage.",
    )
    recall: bool = Field(
        False,
        description="Whether the agent has the recall tool even though the log's tools do not include it. Stubs and "
        "summaries then say how to recall the originals.",
    )
    wait_ms: int | None = Field(
        None,
        ge=0,
        le=600_000,
        description="Maximum time to wait for a summary, in milliseconds, if the context must be reduced now. After "
        "that, a summary written without a model is used. Default: do not wait.",
    )


class StepOutcomeIn(OutcomeIn):
    """Outcome of an earlier call of the session."""

    model_config = examples(lambda: StepOutcomeIn(call_id=UUID(_CALL_ID), usage=UsageIn(input_tokens=1200)))

    call_id: UUID = Field(description="Id of the recorded call.")


class ContextIn(ContextQuery):
    """Parameters of a context request, including those that need a body."""

    model_config = examples(lambda: ContextIn(format="anthropic", model="claude-sonnet-5-5", max_tokens=60000))

    unchecked_text = frozenset({"policy", "messages", "system", "tools", "append", "outcome"})

    messages: list[dict[str, Any]] | None = Field(
        None,
        min_length=1,
        description="Client's complete messages, as it would send them to the provider in `format`. New messages are "
        "appended to the session, and the context is made of exactly this conversation: a retry appends nothing, and a "
        "conversation that differs from the log continues as a line of its own, which becomes the session's current "
        "line. Requires the scope `ingest`; not allowed with `at`.",
    )
    system: str | list[dict[str, Any]] | None = Field(
        None,
        description="System prompt that the client sends with `messages` (for Gemini, the parts of the system "
        "instruction); appended if it differs from the current one. Empty: none. Default: the current one stays.",
    )
    tools: list[dict[str, Any]] | None = Field(
        None,
        description="Tools that the client sends with `messages`; appended if they differ from the current ones. "
        "Empty: none. Default: the current ones stay.",
    )
    outcome: StepOutcomeIn | None = Field(
        None,
        description="Outcome of an earlier call, reported before anything else, as the operation `report_outcome` does "
        "it. Requires the scope `ingest`.",
    )
    append: AppendIn | None = Field(
        None,
        description="Events, or messages in a provider's format, appended after the outcome and before the context, as "
        "`append_events` and `append_messages` do it. Requires the scope `ingest`; excludes `messages` and `at`.",
    )
    observe: bool = Field(
        False,
        description="Whether the client sends its own whole conversation to the model and not this context, which is "
        "only recorded, in the view `~observed`. The usage to report for the call is that of the client's own request. "
        "The ledger of all sessions has such calls in `observed`; no other sum includes them. Excludes `view` and "
        "`retry_of`.",
    )
    holdout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the sessions, drawn by their names, for which the context is only recorded, as with "
        "`observe`. The response's `view` says whether this session is in it: `~observed`. The ledger of all sessions "
        "compares these sessions with the others. Excludes `view`.",
    )
    policy: PolicyGiven = None
    force: bool = Field(
        False,
        description="Whether to reduce the context now even if that is not necessary. If there is no new summary for "
        "it, one is scheduled, or awaited with `wait_ms`.",
    )
    cache_last: bool = Field(
        True,
        description="Whether to set a cache breakpoint at the end, for the next call to read from. Set it to false if "
        "no call follows.",
    )
    now: fields.Clock | None = Field(
        None,
        description="Time of the call, for replaying a recorded session; it determines which events have expired and "
        "whether the provider's cache is cold. Default: the server's clock.",
    )
    injections: list[InjectionIn] = Field(
        default_factory=list, max_length=64, description="Content for this call only, in the order in which it appears."
    )
    retry_of: UUID | None = Field(
        None,
        description="Id of a call that was reported as too long: the new context is made small enough to fit. Omitted "
        "parameters are taken from that call.",
    )


class CalibrationUsed(BaseModel):
    """Calibration of the estimator to the model, learned from reported usage, as applied to this context."""

    ratio: float = Field(
        description="Tokens that the model's provider counts for each token that the estimator counts."
    )
    margin: float = Field(description="Safety margin: the share by which the model's count may exceed the estimate.")
    samples: int = Field(description="Number of calls with reported usage that it is based on.")


class TokensOut(BaseModel):
    """Token budget of a context and its use, in the model's tokens: the estimator's count times `ratio`."""

    estimate: int = Field(
        description="Estimated size of the request. Not counting injected content, which has its own reserve, it is at "
        "most `target`."
    )
    target: int = Field(
        description="Maximum size of the context: `limit` minus `reserve`, `outside`, the reserve for injected "
        "content, and a margin for inexact counting."
    )
    limit: int = Field(
        description="Window that the context was planned for; smaller than requested if outcomes name or imply a "
        "smaller one."
    )
    limit_assumed: bool = Field(
        description="Whether `limit` is only assumed (128,000), because no model is set or its window is not known. "
        "Set `max_tokens` or the policy's `window_tokens` to give it."
    )
    reserve: int = Field(description="Part of the window left free for the model's answer.")
    outside: int = Field(description="Tokens that the client sends in addition to the request; 0 if not known.")
    estimator: str = Field(description="Name of the estimator that counted, such as `tiktoken:o200k_base`.")
    by_source: dict[str, int] = Field(
        description="`estimate` by part of the context: `tools`, `system`, `summaries`, `history`, `current_turn`, and "
        "`ephemeral` (layers, notices and injected content, after the cached prefix)."
    )
    calibration: CalibrationUsed | None = Field(
        description="Calibration that was applied; null (a ratio of 1) until usage is reported."
    )


class SummaryRef(BaseModel):
    """A summary that is shown in place of a range of events."""

    id: fields.SummaryId
    from_seq: fields.FromSeq
    to_seq: fields.ToSeq
    depth: fields.Depth
    tokens: int = Field(description="Estimated size of the text that is shown, in the model's tokens.")


class EvictionOut(BaseModel):
    """A range of events that were not sent verbatim, for one reason.

    A `stubbed` or `replaced` range concerns only events of the same type as its first one. Other ranges are split
    around events that the context shows, such as pinned ones.
    """

    from_seq: fields.FromSeq
    to_seq: fields.ToSeq
    disposition: str = Field(
        description="The form in which the events are shown: `stubbed` (shortened, or as a stub), `replaced` (by other "
        "text, or by nothing), `summarized` (a summary that covers them is shown instead) or `dropped` (left out)."
    )
    reducer: fields.Reducer
    reason: str = Field(
        description="Reason why the rule applied, such as `superseded`; for `fold` it names the summary."
    )
    tokens_saved: int = Field(description="Estimated reduction of the context's size, in the model's tokens.")


class BreakpointOut(BaseModel):
    """A cache breakpoint in the request: the provider caches the prefix that ends there."""

    seq: int = Field(description="Seq of the last event of the prefix.")
    kind: str = Field(
        description="Purpose of the breakpoint: `system` (end of tools and system prompt), `tail` (end of the stable "
        "part, for the next call to read), `previous` (`tail` of the previous call, for this one to read), `kept` (end "
        "of the part that a new epoch left unchanged), `chain` (a step between distant breakpoints), `previous_turn` "
        "(end of the previous turn), `pre_tail` (end of a round shortly before the tail)."
    )


class CacheOut(BaseModel):
    """Use of the provider's prompt cache by the request."""

    breakpoints: list[BreakpointOut] = Field(
        description="Cache breakpoints in the order of the request; empty for formats that have none."
    )
    prefix_sha256: str = Field(
        description="SHA-256, in hex, of the request without its cache breakpoints and its ephemeral end. It stays the "
        "same while nothing is appended and no epoch is opened."
    )
    prefix_tokens: int = Field(description="Estimated size of that prefix, in the model's tokens.")
    tokens: int = Field(
        description="Part of the request that the provider's cache is expected to hold after this call, in the model's "
        "tokens: up to the last breakpoint, or that prefix if the provider caches without breakpoints. 0 if it is too "
        "small to be cached, if the model is not known to be cached, or if its usage was reported without cache reads."
    )
    expires_at: datetime | None = Field(
        description="Time at which that part expires in the provider's cache, counted from this context by the "
        "lifetime that the policy or the table of models states. Each later call of the view moves it. Null if "
        "`tokens` is 0, and in records of earlier versions."
    )


class ContextOut(BaseModel):
    """A context: the request to send to the provider unchanged, and how it was made."""

    model_config = examples(lambda: example())

    call_id: fields.CallId
    session: fields.SessionName
    line: fields.LineName
    view: fields.ViewOf
    head: fields.CallHead
    epoch: fields.CallEpoch
    format: fields.CallFormat
    model: fields.CallModel
    policy: PolicyRef = Field(description="Version of the policy that the context was made with.")
    request: ProviderRequest
    tokens: TokensOut = Field(description="Token budget and its use.")
    summaries: list[SummaryRef] = Field(description="Summaries that are shown, in the order of the log.")
    evictions: list[EvictionOut] = Field(description="Events that are not shown verbatim, in the order of the log.")
    cache: CacheOut = Field(description="Part of the request that the provider can cache.")
    compaction: CompactionOut = Field(description="Whether summaries are being written for the session.")
    appended: AppendedOut | list[ReconciledEvent] | None = Field(
        None,
        description="Result of the append, if the request had one; with `messages`, the list of the events that were "
        "new. Otherwise absent.",
    )
    outcome: OutcomeOut | None = Field(None, description="Verdict on the outcome; present if the request reported one.")
    plan: list[MessagePlanOut] | None = Field(
        None, description="Plan for each of the client's messages; present if the request had `messages`."
    )
    inserted: list[InsertedOut] | None = Field(
        None, description="Messages inserted between the client's, in order; present if the request had `messages`."
    )
    sha256: fields.RequestSha256


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


def example() -> ContextOut:
    """Return an example of a context."""
    return ContextOut(
        call_id=_CALL_ID,
        session="demo",
        line="demo@line.1",
        view="main",
        head=2,
        epoch=1,
        format="openai",
        model="gpt-4o",
        policy=PolicyRef(name="default", version=1),
        request={"messages": [{"role": "user", "content": "Which files changed?"}]},
        tokens=TokensOut(
            estimate=15,
            target=109714,
            limit=128000,
            limit_assumed=False,
            reserve=12800,
            outside=0,
            estimator="tiktoken:o200k_base",
            by_source={"tools": 0, "system": 0, "summaries": 0, "history": 0, "current_turn": 12, "ephemeral": 3},
            calibration=None,
        ),
        summaries=[],
        evictions=[],
        cache=CacheOut(breakpoints=[], prefix_sha256="9f86d0…", prefix_tokens=12, tokens=0, expires_at=None),
        compaction=CompactionOut(state="none", reason=None),
        sha256="9f86d0…",
    )
