"""Contexts: the request for one, and its answer."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import (
    CallEpoch,
    CallFormat,
    CallHead,
    CallId,
    CallModel,
    Clock,
    Closed,
    Depth,
    FormatName,
    FromSeq,
    Reducer,
    RequestSha256,
    SessionName,
    SummaryId,
    ToSeq,
    ViewName,
    ViewOf,
)
from app.api.schemas.policies import PolicyGiven, PolicyRef

ProviderRequest = Annotated[
    dict[str, Any],
    Field(
        description="Request in the provider's format, to be sent with the client's own parameters beside it: "
        "`messages`, `tools` (openai); `input`, `instructions`, `tools` (openai-responses); `system`, `messages`, "
        "`tools` (anthropic); or `blocks`. What the log does not hold is absent."
    ),
]


class InjectionIn(Closed):
    """Content for one call only, placed at the end of its context and never logged as an event."""

    name: str = Field(
        min_length=1, max_length=256, description="Name of the content's source: shown to the model and in errors."
    )
    content: str | list[dict[str, Any]] = Field(
        min_length=1, description="Text, or a list of parts as in an event's `content`."
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Most tokens that this content may take, as the model counts; more is the error "
        "`injection-over-reserve`. Null: the policy's injection reserve alone is the limit.",
    )


class ContextQuery(Closed):
    """Parameters of a context request. Omitted ones keep the view's current value, unless they have a default."""

    view: ViewName = "main"
    format: FormatName = Field(
        "openai",
        description="Format of the request that is rendered: `openai` (chat completions), `openai-responses`, "
        "`anthropic` (messages), or `blocks` (neutral, for no provider).",
    )
    model: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Name of the model that will be called: it sets window, token counting and cache rules. Null: the "
        "view's model, else the session's.",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="Context window of the model, in tokens; the reserve for the answer is taken off it. Null: the "
        "view's window while its model and policy stay the same, else the policy's, else the model's own.",
    )
    at: int | None = Field(
        None,
        ge=1,
        le=2**63 - 1,
        description="Seq of the last event to take into account: the context as it would have been then. Null: all "
        "events up to the head.",
    )
    outside_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="Tokens that the client sends to the model beside this request, such as tools or a system prompt "
        "of its own, as the provider counts them; they are taken off the window. Null: the policy's value, else the "
        "session's, else what reported usage suggests.",
    )
    recall: bool = Field(
        False,
        description="Whether the agent has the recall tool although the log's newest tools do not contain it: stubs "
        "and summaries then say how to recall what they stand for.",
    )
    wait_ms: int | None = Field(
        None,
        ge=0,
        le=600_000,
        description="Longest time to wait for a summary, in milliseconds, where the context would have to be reduced "
        "now. When it is over, a summary written without a model is used. Null: do not wait.",
    )


class ContextIn(ContextQuery):
    """Parameters of a context request, with those that only a body can hold."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"format": "anthropic", "model": "claude-sonnet-5-5", "max_tokens": 60000}]},
    )

    as_it_was = frozenset({"policy"})

    policy: PolicyGiven = None
    force: bool = Field(False, description="Whether to reduce the context now, although nothing makes it necessary.")
    now: Clock | None = Field(
        None,
        description="Time of the call, for replaying a recorded session: it decides what has expired and whether the "
        "provider's cache is cold. Null: the server's clock.",
    )
    injections: list[InjectionIn] = Field(
        default_factory=list, max_length=64, description="Content for this call only, in the order in which it appears."
    )
    retry_of: UUID | None = Field(
        None,
        description="Id of a call whose outcome was an overflow: this context is made to fit where that one did not. "
        "Parameters that are omitted here are taken from that call.",
    )


class CalibrationUsed(BaseModel):
    """What reported usage has taught about counting the model's tokens, as applied to this context."""

    ratio: float = Field(description="Model's tokens for one token of the estimator.")
    margin: float = Field(
        description="Share by which the model's count may exceed the estimate, kept free below the target."
    )
    samples: int = Field(description="Number of calls with reported usage behind it.")


class TokensOut(BaseModel):
    """Token budget of a context and the use made of it, in the model's tokens: the estimator's count times `ratio`."""

    estimate: int = Field(
        description="Estimated size of the request, injected content included. Without that it is at most `target`."
    )
    target: int = Field(
        description="Most that the context may take: `limit` less `reserve`, `outside`, the reserve for injected "
        "content, and a margin for inexact counting."
    )
    limit: int = Field(
        description="Context window that was planned for: smaller than asked where the provider named a smaller one."
    )
    reserve: int = Field(description="Part of the window left free for the model's answer.")
    outside: int = Field(description="What the client sends beside the request; 0 if nothing is known of it.")
    estimator: str = Field(description="Name of the estimator that counted, such as `tiktoken:o200k_base`.")
    by_source: dict[str, int] = Field(
        description="`estimate` by part of the context: `tools`, `system`, `summaries`, `history`, `current_turn`, and "
        "`ephemeral` (layers, notices and injected content behind the cached prefix)."
    )
    calibration: CalibrationUsed | None = Field(
        description="Calibration that was applied; null while no usage has been reported, then the ratio is 1."
    )


class SummaryRef(BaseModel):
    """A summary that is shown in place of a range of events."""

    id: SummaryId
    from_seq: FromSeq
    to_seq: ToSeq
    depth: Depth
    tokens: int = Field(description="Estimated size of what is shown of it, in tokens.")


class EvictionOut(BaseModel):
    """A range of events that were not sent verbatim, for one reason.

    Of a `stubbed` or `replaced` range only the events of its first one's type are meant, of a `summarized` range those
    that no other eviction names.
    """

    from_seq: FromSeq
    to_seq: ToSeq
    disposition: str = Field(
        description="What was done: `stubbed` (shortened, or a stub stands in their place), `replaced` (other text or "
        "nothing stands in their place), `summarized` (a summary covers them) or `dropped` (left out)."
    )
    reducer: Reducer
    reason: str = Field(description="Why that rule applied, such as `superseded`; for `fold` it names the summary.")
    tokens_saved: int = Field(description="Estimated tokens that the context is smaller by, in the model's tokens.")


class BreakpointOut(BaseModel):
    """A cache breakpoint in the request: the provider caches the prefix that ends there."""

    seq: int = Field(description="Seq of the event that the breakpoint stands behind.")
    kind: str = Field(
        description="What it is for: `system` (end of tools and system prompt), `tail` (end of the stable prefix, for "
        "the next call to read), `previous` (tail of the last call, read now), `kept` (end of what a new epoch left "
        "unchanged), `chain` (a step between distant ones), `previous_turn` or `pre_tail` (ends of earlier rounds)."
    )


class CacheOut(BaseModel):
    """Prompt cache of the provider: what of the request it can cache."""

    breakpoints: list[BreakpointOut] = Field(
        description="Cache breakpoints in the order of the request; empty for formats that have none."
    )
    prefix_sha256: str = Field(
        description="SHA-256, in hex, of the request without cache breakpoints and without its ephemeral tail. It "
        "stays the same while nothing is appended and no epoch is opened."
    )
    prefix_tokens: int = Field(description="Estimated size of that prefix, in the model's tokens.")


class CompactionOut(BaseModel):
    """State of the session's compaction when the context was made."""

    state: Literal["none", "scheduled", "running", "stalled"] = Field(
        description="`none`: nothing is being done; `scheduled`, `running`: summaries are about to be, or are being, "
        "written; `stalled`: the context is above its trigger, and reducing it was impossible or not worth its price."
    )
    reason: str | None = Field(description="Why it is stalled, in words; null in any other state.")


class ContextOut(BaseModel):
    """A context: the request to send to the provider as it is, and how it came about."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "call_id": "019373a1-0000-7000-8000-000000000000",
                    "session": "demo",
                    "view": "main",
                    "head": 2,
                    "epoch": 1,
                    "format": "openai",
                    "model": "gpt-4o",
                    "policy": {"name": "default", "version": 1},
                    "request": {"messages": [{"role": "user", "content": "Which files changed?"}]},
                    "tokens": {
                        "estimate": 15,
                        "target": 109714,
                        "limit": 128000,
                        "reserve": 12800,
                        "outside": 0,
                        "estimator": "tiktoken:o200k_base",
                        "by_source": {
                            "tools": 0,
                            "system": 0,
                            "summaries": 0,
                            "history": 0,
                            "current_turn": 12,
                            "ephemeral": 3,
                        },
                        "calibration": None,
                    },
                    "summaries": [],
                    "evictions": [],
                    "cache": {"breakpoints": [], "prefix_sha256": "9f86d0…", "prefix_tokens": 12},
                    "compaction": {"state": "none", "reason": None},
                    "sha256": "9f86d0…",
                }
            ]
        }
    )

    call_id: CallId
    session: SessionName
    view: ViewOf
    head: CallHead
    epoch: CallEpoch
    format: CallFormat
    model: CallModel
    policy: PolicyRef = Field(description="Version of the policy that the context was made with.")
    request: ProviderRequest
    tokens: TokensOut = Field(description="Token budget and its use.")
    summaries: list[SummaryRef] = Field(description="Summaries that are shown, in the order of the log.")
    evictions: list[EvictionOut] = Field(description="Everything that was not sent verbatim, in the order of the log.")
    cache: CacheOut = Field(description="What the provider can cache of the request.")
    compaction: CompactionOut = Field(description="Whether summaries are being written for the session.")
    sha256: RequestSha256
