"""Contexts: what one is asked for with, and its answer."""

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Clock, Closed, FormatName, ViewName
from app.api.schemas.policies import PolicyGiven, PolicyRef


class InjectionIn(Closed):
    """Content for this call only, placed beside the user's message at the end."""

    name: str = Field(min_length=1, max_length=256)
    content: str | list[dict[str, Any]] = Field(min_length=1, description="Text, or parts as an event has them.")
    max_tokens: int | None = Field(None, ge=1)


class ContextQuery(Closed):
    """What a context is asked for with; what is left out is as the view has it."""

    view: ViewName = "main"
    format: FormatName = "openai"
    model: str | None = Field(None, min_length=1, max_length=256)
    max_tokens: int | None = Field(None, ge=1, le=2**31 - 1, description="The model's input window.")
    at: int | None = Field(None, ge=1, le=2**63 - 1, description="As of this seq.")
    outside_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="What is sent beside this request (tools, a system prompt of the client's own), as the provider "
        "counts: it is taken off the window. Without it, as the policy or the session says, or as usage has told.",
    )
    recall: bool = Field(False, description="The agent has the recall tool, although the log's tools do not hold it.")
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
        json_schema_extra={"examples": [{"format": "anthropic", "model": "claude-sonnet-5-5", "max_tokens": 60000}]},
    )

    as_it_was = frozenset({"policy"})

    policy: PolicyGiven = None
    force: bool = Field(False, description="Reduce now, although nothing forces it.")
    now: Clock | None = Field(None, description="The time of the call, when a recorded session is replayed.")
    injections: list[InjectionIn] = Field(default_factory=list, max_length=64)
    retry_of: UUID | None = Field(
        None,
        description="A call that was reported as too long: this one is made to fit where that one did not. What is not "
        "given here is as that call had it.",
    )


class CalibrationUsed(BaseModel):
    """The model's tokens to one of the estimator's, the margin left for their spread, and how many calls taught it."""

    ratio: float
    margin: float
    samples: int


class TokensOut(BaseModel):
    """All by `estimator`, times the calibration's ratio. `limit` is the window, `target` what the context may take of
    it, after what is `outside`: sent beside the request. `calibration` is null while no usage has been reported."""

    estimate: int
    target: int
    limit: int
    reserve: int
    outside: int
    estimator: str
    by_source: dict[str, int]
    calibration: CalibrationUsed | None


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
