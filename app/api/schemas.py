"""The shapes of the API, for its validation and its OpenAPI document."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from typing_extensions import TypeAliasType

from app.core.events import SESSION_ID_PATTERN, EventType
from app.core.policy import json_schema

SessionId = Annotated[str, Field(pattern=SESSION_ID_PATTERN)]
ViewName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
FormatName = Literal["openai", "openai-responses", "anthropic", "blocks"]
NativeFormat = Literal["openai", "openai-responses", "anthropic"]

_POLICY_EXAMPLE: dict[str, Any] = {"retention": {"keep_last": 5, "never_evict": ["plan"]}, "trigger": {"ratio": 0.8}}
POLICY_SCHEMA: Final[dict[str, Any]] = json_schema() | {
    "title": "PolicyDocument",
    "description": "All knobs of a view; those left out have their defaults.",
    "examples": [_POLICY_EXAMPLE],
}

# The core checks a policy and names the knob at fault; here it is only described, once for every place it may stand.
PolicyDocument = TypeAliasType("PolicyDocument", Annotated[dict[str, Any], WithJsonSchema(POLICY_SCHEMA)])
PolicyGiven = Annotated[
    str | PolicyDocument | None,
    Field(description="A policy's name (its newest version), `name@version`, or a document."),
]


class Closed(BaseModel):
    """A request's object: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class EventIn(Closed):
    """One fact to log. Which fields a type needs: `call_id` and `tool` for tool.call, `call_id` for tool.result,
    `content` for everything a model reads."""

    type: EventType
    id: str | None = Field(None, max_length=256, description="Yours; unique in the session. Repeating it is safe.")
    turn_id: str | None = Field(None, max_length=256, description="Your own name for the turn this belongs to.")
    author: str | None = Field(None, max_length=256, description="Which agent said or did this.")
    content: str | list[dict[str, Any]] | None = Field(None, description="Text, or a list of parts.")
    call_id: str | None = Field(None, max_length=256)
    tool: str | None = Field(None, max_length=256)
    arguments: dict[str, Any] | str | None = Field(None, description="An object, or the JSON text of one.")
    is_error: bool | None = None
    path: str | None = Field(None, max_length=4096)
    mime: str | None = Field(None, max_length=256)
    pinned: bool | None = Field(None, description="Never left out of a context.")
    ttl_turns: int | None = Field(None, ge=1)
    ttl_seconds: int | None = Field(None, ge=1)
    replacement: str | None = None
    supersedes: str | None = Field(None, max_length=256)
    occurred_at: datetime | None = None
    metadata: dict[str, Any] | None = None


class EventsIn(Closed):
    """An append: all or nothing."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"events": [{"type": "user.message", "content": "Which files changed?"}], "expected_head": 0}]
        },
    )

    events: list[EventIn] = Field(min_length=1, max_length=1000)
    expected_head: int | None = Field(None, ge=0, description="Append only if this is the head.")


class MessagesIn(Closed):
    """An append of a provider's own messages."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"format": "openai", "messages": [{"role": "user", "content": "Hello"}]}]},
    )

    format: NativeFormat
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1000)
    expected_head: int | None = Field(None, ge=0)


class SessionIn(Closed):
    """Settings of a session; what is left out stays as it is."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"model": "gpt-4o", "policy": {"retention": {"keep_last": 5}}, "metadata": {"user": "ann"}}]
        },
    )

    policy: PolicyGiven = None
    model: str | None = Field(None, min_length=1, max_length=256)
    metadata: dict[str, Any] | None = None


class PolicyRef(BaseModel):
    """An immutable policy."""

    name: str
    version: int


class PolicyOut(BaseModel):
    """A version of a policy, as it was given; presets come with the server and have no date."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "careful",
                    "version": 2,
                    "preset": False,
                    "policy": _POLICY_EXAMPLE,
                    "created_at": "2026-11-21T09:30:00Z",
                }
            ]
        }
    )

    name: str
    version: int
    preset: bool
    policy: PolicyDocument
    created_at: datetime | None


class PolicyPage(BaseModel):
    """Presets first, then by name."""

    items: list[PolicyOut]
    next_cursor: str | None


def policy_body() -> dict[str, Any]:
    """The body of an operation that takes a policy's document and reads it itself."""
    schema = {"$ref": "#/components/schemas/PolicyDocument"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class SessionTokens(BaseModel):
    """`log`: all events as logged; `context`: what the main view would take now."""

    log: int
    context: int


class SessionOut(BaseModel):
    """A session as it stands."""

    id: str
    head: int
    epoch: int
    turns: int
    policy: PolicyRef
    model: str | None
    estimator: str
    metadata: dict[str, Any]
    tokens: SessionTokens
    created_at: datetime
    updated_at: datetime


class SessionPage(BaseModel):
    """Newest first."""

    items: list[SessionOut]
    next_cursor: str | None


class AppendedEvent(BaseModel):
    """Where an event stands now."""

    seq: int
    id: str
    turn: int
    tokens: int


class Pressure(BaseModel):
    """How near the main view is to its target (`budget`), both in tokens."""

    tokens: int
    budget: int
    ratio: float
    level: Literal["none", "soft", "hard"]


class AppendedOut(BaseModel):
    """The answer to an append."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "session": "demo",
                    "head": 1,
                    "epoch": 0,
                    "events": [{"seq": 1, "id": "b5c2…", "turn": 1, "tokens": 8}],
                    "pressure": {"tokens": 8, "budget": 109714, "ratio": 0.0001, "level": "none"},
                }
            ]
        }
    )

    session: str
    head: int
    epoch: int
    events: list[AppendedEvent]
    pressure: Pressure


class EventOut(EventIn):
    """An event as it was logged, and where it stands. `native` is what only its provider's own format says."""

    model_config = ConfigDict(extra="allow")

    seq: int
    turn: int
    tokens: int
    created_at: datetime
    native: dict[str, Any] | None = None


class EventPage(BaseModel):
    """In order, complete."""

    items: list[EventOut]
    next_cursor: str | None


class InjectionIn(Closed):
    """Content for this call only, placed beside the user's message at the end."""

    name: str = Field(min_length=1, max_length=256)
    content: str = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)


class ContextQuery(Closed):
    """What a context is asked for with; what is left out is as the view has it."""

    view: ViewName = "main"
    format: FormatName = "openai"
    model: str | None = Field(None, min_length=1, max_length=256)
    max_tokens: int | None = Field(None, ge=1, le=2**31 - 1, description="The model's input window.")
    at: int | None = Field(None, ge=1, le=2**63 - 1, description="As of this seq.")
    wait_ms: int | None = Field(
        None,
        ge=0,
        le=600_000,
        description="Where this call would reduce the context: have it summarized first, and wait so long for that; "
        "then a summary written without a model stands in.",
    )


class ContextIn(ContextQuery):
    """The same, with what only a body can hold."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"format": "anthropic", "model": "claude-sonnet-4-5", "max_tokens": 60000}]},
    )

    policy: PolicyGiven = None
    force: bool = Field(False, description="Reduce now, although nothing forces it.")
    now: datetime | None = Field(None, description="The time of the call, when a recorded session is replayed.")
    injections: list[InjectionIn] = Field(default_factory=list, max_length=64)


class TokensOut(BaseModel):
    """All by `estimator`. `limit` is the window, `target` what the context may take of it."""

    estimate: int
    target: int
    limit: int
    reserve: int
    estimator: str
    by_source: dict[str, int]


class SummaryRef(BaseModel):
    """A summary that stands for a span."""

    id: str
    from_seq: int
    to_seq: int
    depth: int
    tokens: int


class EvictionOut(BaseModel):
    """Events from_seq..to_seq not sent verbatim: a `stubbed` run speaks of the tool results inside it."""

    from_seq: int
    to_seq: int
    disposition: str
    reducer: str
    reason: str
    tokens_saved: int


class BreakpointOut(BaseModel):
    """A provider's cache marker behind event `seq`."""

    seq: int
    kind: str


class CacheOut(BaseModel):
    """`prefix_sha256`: of the request without cache markers and without its ephemeral tail."""

    breakpoints: list[BreakpointOut]
    prefix_sha256: str
    prefix_tokens: int


class SummaryOut(BaseModel):
    """A stored summary. `status`: live, superseded by a later one, refused by the gate, invalid after a redaction."""

    id: str
    from_seq: int
    to_seq: int
    depth: int
    tokens: int
    status: Literal["live", "superseded", "refused", "invalid"]
    summarizer: str
    model: str | None
    degraded: bool
    created_at: datetime


class SummaryPage(BaseModel):
    """As they were made."""

    items: list[SummaryOut]
    next_cursor: str | None


class SummaryWhole(SummaryOut):
    """With its text, its digest, and its lineage."""

    text: str
    digest: dict[str, Any]
    prompt_version: str | None
    usage: dict[str, Any]
    turns: list[int]
    split_turn: int | None
    source_tokens: int
    events: int
    sources: list[str]
    superseded_by: str | None
    complaints: list[str]


class CompactionIn(Closed):
    """A compaction on request."""

    focus: str | None = Field(None, min_length=1, max_length=2000, description="What the summary should look at.")
    wait_ms: int = Field(0, ge=0, le=600_000, description="Wait so long for its end.")


class CompactionRun(BaseModel):
    """What became of a compaction."""

    id: str
    state: Literal["scheduled", "running", "succeeded", "skipped", "failed"]
    reason: str
    focus: str | None
    attempts: int
    error: str | None
    from_seq: int | None
    to_seq: int | None
    summaries: list[str]
    tokens_read: int
    tokens_before: int
    tokens_after: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class CompactionPage(BaseModel):
    """The newest first."""

    items: list[CompactionRun]
    next_cursor: str | None


class CoverageRun(BaseModel):
    """Events of one disposition."""

    from_seq: int
    to_seq: int
    disposition: str
    summary: str | None = None


class CoverageOut(BaseModel):
    """Every event up to the head, accounted for once; `faults` says where that is not so."""

    ok: bool
    head: int
    view: str
    epoch: int
    runs: list[CoverageRun]
    faults: list[str]


class CompactionOut(BaseModel):
    """Whether summaries are being written for this session."""

    state: Literal["none", "scheduled", "running", "stalled"]
    reason: str | None


class ContextOut(BaseModel):
    """A context. `request` goes to the provider as it is; `sha256` is of its canonical JSON (no whitespace, keys as
    given, UTF-8)."""

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
                        "estimator": "tiktoken:o200k_base",
                        "by_source": {
                            "tools": 0,
                            "system": 0,
                            "summaries": 0,
                            "history": 0,
                            "current_turn": 12,
                            "ephemeral": 3,
                        },
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

    call_id: str
    session: str
    view: str
    head: int
    epoch: int
    format: FormatName
    model: str | None
    policy: PolicyRef
    request: dict[str, Any]
    tokens: TokensOut
    summaries: list[SummaryRef]
    evictions: list[EvictionOut]
    cache: CacheOut
    compaction: CompactionOut
    sha256: str


class EpochOut(BaseModel):
    """One stored state of a view: why it was opened, at which head, and what the context took before and after."""

    epoch: int
    head: int
    cause: str
    tokens_before: int
    tokens_after: int
    created_at: datetime


class EpochPage(BaseModel):
    """In order."""

    items: list[EpochOut]
    next_cursor: str | None


class ProblemOut(BaseModel):
    """RFC 9457. `type` is stable; other members depend on it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
