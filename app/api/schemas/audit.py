"""Recorded calls: lists, manifests, contexts rendered again, differences, histories."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.common import FormatName
from app.api.schemas.context import CacheOut, EvictionOut, SummaryRef, TokensOut
from app.api.schemas.live import LayerKind
from app.api.schemas.policies import PolicyRef


class CallRef(BaseModel):
    """Which call, and what it was rendered with."""

    call_id: str
    created_at: datetime
    session: str
    view: str
    head: int
    epoch: int
    format: FormatName
    model: str | None
    policy: PolicyRef


class CallItem(CallRef):
    """A call in a list. `summaries` is how many it showed, `input_tokens` what the provider reported."""

    estimate: int
    target: int
    evicted_tokens: int
    summaries: int
    overflow: bool
    input_tokens: int | None
    retry_of: str | None
    sha256: str


class CallPage(BaseModel):
    """The newest first."""

    items: list[CallItem]
    next_cursor: str | None


class InjectionRef(BaseModel):
    """Content that was injected into one call."""

    name: str
    chars: int


class DispositionRun(BaseModel):
    """Events from_seq..to_seq that were all shown the same way."""

    from_seq: int
    to_seq: int
    disposition: str
    summary: str | None = None


class CallUsage(BaseModel):
    """What the provider counted."""

    input_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None


class CallOutcome(BaseModel):
    """How the call went."""

    reported_at: datetime
    usage: CallUsage
    latency_ms: int | None
    error: Any
    overflow: bool


class Manifest(CallRef):
    """Why a call came out as it did. `cause` is what opened its epoch; `redacted_since` are seqs that were erased after
    the call; `dispositions` account for every event up to its head."""

    render_version: int
    tokens: TokensOut
    summaries: list[SummaryRef]
    evictions: list[EvictionOut]
    cause: str
    cache: CacheOut
    injections: list[InjectionRef]
    layers: dict[LayerKind, int] = Field(description="The layers that it showed, by version.")
    notice: str | None
    stalled: str | None
    now: datetime | None
    retry_of: str | None
    outcome: CallOutcome | None
    expires_at: datetime | None
    dispositions: list[DispositionRun]
    redacted_since: list[int]
    sha256: str


class ContextAgain(CallRef):
    """A recorded call rendered again. `reproduced`: to the byte; if not, `redacted` says which events it told of were
    erased since, and `recorded_sha256` what it was."""

    reproduced: bool
    redacted: list[int]
    request: dict[str, Any]
    tokens: TokensOut
    summaries: list[SummaryRef]
    evictions: list[EvictionOut]
    cache: CacheOut
    sha256: str
    recorded_sha256: str


class BlockOut(BaseModel):
    """A block of a context: the event it shows (`seq`; the last one it stands for), and how it begins."""

    seq: int
    kind: str
    replaced: bool
    ephemeral: bool
    chars: int
    begins: str


class FirstDifference(BaseModel):
    """The first block that differs; null where one context has ended."""

    index: int
    a: BlockOut | None
    b: BlockOut | None


class Change(BaseModel):
    """Events from_seq..to_seq that `b` shows otherwise than `a`.

    `reducer`, `reason`, `epoch` and `cause` are those of the decision behind the later call's disposition; `cause` is
    `appended` for what was not in the log yet. `tokens` is how much more they take in `b`.
    """

    from_seq: int
    to_seq: int
    change: Literal["added", "removed", "changed"]
    before: str | None = Field(alias="from")
    after: str | None = Field(alias="to")
    summary: str | None = None
    reducer: str | None = None
    reason: str | None = None
    epoch: int | None
    cause: str | None
    tokens: int


class TokensDiff(BaseModel):
    """What each call took by its estimator, and the difference by cause; the causes sum up to it."""

    a: int
    b: int
    by_cause: dict[str, int]


class DiffOut(BaseModel):
    """What differs between two calls of a session."""

    a: CallRef
    b: CallRef
    identical: bool
    first_difference: FirstDifference | None
    changes: list[Change]
    tokens: TokensDiff


class HistoryItem(BaseModel):
    """One call, and what the model saw of the event in it."""

    call_id: str
    created_at: datetime
    view: str
    disposition: str
    summary: str | None = None
    reducer: str | None = None
    reason: str | None = None
    epoch: int
    cause: str


class HistoryPage(BaseModel):
    """The oldest call first."""

    items: list[HistoryItem]
    next_cursor: str | None
