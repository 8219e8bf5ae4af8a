"""Summaries, compactions and coverage."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.common import Closed


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
    reason: str = Field(
        description="Why it was made. By its threshold: `pressure` (a context is or soon will be above it) or `waited` "
        "(so it was, and who asked for it waited). By an overflow: `overflow` (a provider said that one was too long). "
        "Asked for: `requested`. To keep the summaries up: `merge`, `redaction`, `redo`."
    )
    focus: str | None
    attempts: int
    error: str | None
    from_seq: int | None
    to_seq: int | None
    summaries: list[str]
    batches_created: int = Field(0, description="How many summaries it wrote.")
    messages_compressed: int = Field(0, description="How many events those tell of that no summary told of before.")
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
