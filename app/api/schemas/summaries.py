"""Summaries, compaction runs and coverage."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.common import (
    Closed,
    CoveringSummary,
    CreatedAt,
    Depth,
    Disposition,
    FromSeq,
    NextCursor,
    SummaryId,
    ToSeq,
)


class SummaryOut(BaseModel):
    """A stored summary of a range of events."""

    id: SummaryId
    from_seq: FromSeq
    to_seq: ToSeq
    depth: Depth
    tokens: int = Field(description="Estimated size of its text as a message, in tokens.")
    status: Literal["live", "superseded", "refused", "invalid"] = Field(
        description="`live`: contexts may show it; `superseded`: it became part of another summary; `refused`: its "
        "text did not pass the quality gate; `invalid`: an event it covers was erased, and it is to be written anew."
    )
    summarizer: str = Field(
        description="Name of the summarizer that wrote it: `anthropic`, `openai`, or `extractive`, which needs no "
        "model."
    )
    model: str | None = Field(description="Name of the model that wrote it; null if none did.")
    degraded: bool = Field(
        description="Whether it was written without the model that should have written it; it may be written again by "
        "that."
    )
    created_at: CreatedAt


class SummaryPage(BaseModel):
    """A page of summaries."""

    items: list[SummaryOut] = Field(description="Summaries, oldest first.")
    next_cursor: NextCursor


class SummaryWhole(SummaryOut):
    """A stored summary with its text, its digest and its lineage."""

    text: str = Field(description="Text of the summary; empty if an event it covers was erased.")
    digest: dict[str, Any] = Field(
        description="Facts extracted mechanically from the events, such as files, commands, constraints and errors; "
        "empty like `text`."
    )
    prompt_version: str | None = Field(description="Version of the prompt it was written with; null if there was none.")
    usage: dict[str, Any] = Field(
        description="Tokens that the model billed for it, as `input_tokens` and `output_tokens`; empty if no model was "
        "asked."
    )
    turns: list[int] = Field(description="Numbers of the turns that its events belong to.")
    split_turn: int | None = Field(
        description="Number of the turn of which it covers only the beginning; null if it ends with a whole turn."
    )
    source_tokens: int = Field(description="Size of the events it was written from, in tokens.")
    events: int = Field(description="Number of events it was written from.")
    sources: list[str] = Field(
        description="Ids of the summaries it replaced; empty if it was written from events alone."
    )
    superseded_by: str | None = Field(description="Id of the summary that replaced it; null if none has.")
    complaints: list[str] = Field(description="Why the quality gate refused it, one sentence each; empty if it passed.")


class CompactionIn(Closed):
    """Request for a compaction: to summarize the older part of the log now."""

    focus: str | None = Field(
        None,
        min_length=1,
        max_length=2000,
        description="What the summary should pay attention to; null: nothing special.",
    )
    wait_ms: int = Field(
        0, ge=0, le=600_000, description="Longest time to wait for the end of the run, in milliseconds; 0: do not wait."
    )


class CompactionRun(BaseModel):
    """A compaction run: one attempt to summarize what is due in a session."""

    id: str = Field(description="Id of the run, a UUID.")
    state: Literal["scheduled", "running", "succeeded", "skipped", "failed"] = Field(
        description="State of the run; `skipped`: there was nothing to summarize."
    )
    reason: str = Field(
        description="Why it was made: `pressure` (a context is, or soon will be, above its trigger), `waited` (so it "
        "was, and its request waited), `overflow` (a provider refused a context as too long), `requested` (by a "
        "client), `merge` (too many summaries stood side by side), `redaction` (an event was erased), `redo` (a "
        "degraded summary is written again)."
    )
    focus: str | None = Field(
        description="What the summary should pay attention to, as requested; null: nothing special."
    )
    attempts: int = Field(description="How often it was put off because the summarizer could not be had.")
    error: str | None = Field(
        description="Why it failed, was skipped, was put off, or did without the model; null if nothing went wrong."
    )
    from_seq: int | None = Field(
        description="First seq that its summaries cover, inclusive; null while there are none."
    )
    to_seq: int | None = Field(description="Last seq that its summaries cover, inclusive; null while there are none.")
    summaries: list[str] = Field(description="Ids of the summaries it wrote.")
    batches_created: int = Field(0, description="Number of summaries it wrote.")
    messages_compressed: int = Field(
        0, description="Number of events summarized for the first time: those behind its summaries of depth 0."
    )
    tokens_read: int = Field(description="Tokens that the summarizer read.")
    tokens_before: int = Field(
        description="Size of the `main` view's context when it began, in tokens by the estimator; 0 while it has not "
        "begun or if it wrote nothing."
    )
    tokens_after: int = Field(
        description="Estimated size of that context with its summaries shown, in the same tokens; 0 while it has "
        "written none."
    )
    created_at: datetime = Field(description="Time at which it was scheduled, or began unasked.")
    started_at: datetime | None = Field(description="Time at which it began; null while it has not.")
    finished_at: datetime | None = Field(description="Time at which it ended; null while it has not.")


class CompactionPage(BaseModel):
    """A page of compaction runs."""

    items: list[CompactionRun] = Field(description="Compaction runs, newest first.")
    next_cursor: NextCursor


class CoverageRun(BaseModel):
    """A range of events with one disposition."""

    from_seq: FromSeq
    to_seq: ToSeq
    disposition: Disposition
    summary: CoveringSummary = None


class CoverageOut(BaseModel):
    """Proof that a view accounts for every event exactly once."""

    ok: bool = Field(description="Whether every event is accounted for exactly once.")
    head: int = Field(description="Seq of the last event in the session's log.")
    view: str = Field(description="Name of the view.")
    epoch: int = Field(description="Number of the view's current epoch.")
    runs: list[CoverageRun] = Field(
        description="Disposition of each event from seq 1 to `head`, in the order of the log."
    )
    faults: list[str] = Field(description="What is wrong, one sentence each; empty if `ok`.")
