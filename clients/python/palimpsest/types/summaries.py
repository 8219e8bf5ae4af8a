"""Types of `summaries`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class CompactionOut(Model):
    """State of the session's compaction when the context was made."""

    state: Literal["none", "scheduled", "running", "stalled"]
    """State of compaction: `none`; `scheduled` (a worker will check whether there is anything to summarize);
    `running` (summaries are being written); `stalled` (the context is above its trigger, and reducing it was
    impossible or not worth the price; or events were dropped without a summary, because the last compaction
    failed).
    """
    reason: str | None
    """Reason for a stall, or why a requested compaction (`force`, `POST …/compactions`) has no effect; null
    otherwise.
    """


@dataclass(frozen=True, kw_only=True)
class CompactionRun(Model):
    """A compaction run: one attempt to write the summaries that are due in a session."""

    id: str
    """Id of the run, a UUID."""
    state: Literal["scheduled", "running", "succeeded", "skipped", "failed"]
    """State of the run; `skipped` means that nothing was summarized; `error` says why."""
    reason: str
    """Reason for the run: `pressure` (a context is above its trigger or soon will be), `waited` (the same, and a
    request with `wait_ms` waits for it), `overflow` (a provider refused a context as too long), `requested` (by
    a client), `merge` (there were too many summaries), `redaction` (an event was erased), `redo` (a degraded
    summary is rewritten).
    """
    focus: str | None
    """Topic that the summary should focus on, as requested; null if none was."""
    attempts: int
    """Number of attempts for which the summarizer was unavailable."""
    error: str | None
    """Reason why the run failed, was skipped or postponed, or did not use the model; else null."""
    from_seq: int | None
    """First seq its summaries cover, inclusive; 1 if earlier ones left nothing to do; else null."""
    to_seq: int | None
    """Last seq its summaries cover, inclusive; theirs if earlier ones left nothing to do; else null."""
    summaries: list[str]
    """Ids of the summaries it wrote."""
    batches_created: int | None = None
    """Number of summaries it wrote."""
    messages_compressed: int | None = None
    """Number of events in its summaries of depth 0."""
    tokens_read: int
    """Number of tokens that the summarizer read."""
    tokens_before: int
    """Size of the `main` view's context when the run began, in tokens by the estimator; 0 before the run begins,
    or if it wrote nothing.
    """
    tokens_after: int
    """Estimated size of that context with the new summaries, in the same tokens; 0 if there are none."""
    created_at: datetime
    """Time at which the run was scheduled, or began without a request."""
    started_at: datetime | None
    """Time at which it began; null until then."""
    finished_at: datetime | None
    """Time at which it ended; null until then."""


@dataclass(frozen=True, kw_only=True)
class CompactionPage(Model):
    """A page of compaction runs."""

    items: list[CompactionRun]
    """Compaction runs, newest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class CoverageRun(Model):
    """A range of events with one disposition."""

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
class CoverageOut(Model):
    """Proof that a view accounts for every event exactly once."""

    ok: bool
    """Whether every event is accounted for exactly once."""
    head: int
    """Seq of the last event in the session's log."""
    view: str
    """Name of the view."""
    epoch: int
    """Number of the view's current epoch; after a new policy or an erasure, a number that no epoch gets: the next
    context opens the one after it.
    """
    runs: list[CoverageRun]
    """Disposition of each event from seq 1 to `head`, in order."""
    faults: list[str]
    """Faults found, one sentence each; empty if `ok`."""


@dataclass(frozen=True, kw_only=True)
class SummaryOut(Model):
    """A stored summary of a range of events."""

    id: str
    """Id of the summary, a UUID."""
    from_seq: int
    """First seq of the range, inclusive."""
    to_seq: int
    """Last seq of the range, inclusive."""
    depth: int
    """Level of the summary: 0 if written from events alone, else one more than the deepest summary it replaced."""
    tokens: int
    """Estimated size of its text, in tokens."""
    status: Literal["live", "superseded", "refused", "invalid"]
    """Status of the summary: `live` (contexts may show it), `superseded` (another summary replaced it), `refused`
    (its text failed the quality gate), `invalid` (an event it covers was erased; it will be rewritten).
    """
    summarizer: str
    """Name of the summarizer that wrote it: `anthropic`, `openai`, or `extractive`, which needs no model."""
    model: str | None
    """Name of the model that wrote it; null if none did."""
    degraded: bool
    """Whether it was written without the intended model, which may rewrite it later."""
    created_at: datetime
    """Time of creation."""


@dataclass(frozen=True, kw_only=True)
class SummaryPage(Model):
    """A page of summaries."""

    items: list[SummaryOut]
    """Summaries, oldest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class SummaryWhole(Model):
    """A stored summary with its text, its digest and its lineage."""

    id: str
    """Id of the summary, a UUID."""
    from_seq: int
    """First seq of the range, inclusive."""
    to_seq: int
    """Last seq of the range, inclusive."""
    depth: int
    """Level of the summary: 0 if written from events alone, else one more than the deepest summary it replaced."""
    tokens: int
    """Estimated size of its text, in tokens."""
    status: Literal["live", "superseded", "refused", "invalid"]
    """Status of the summary: `live` (contexts may show it), `superseded` (another summary replaced it), `refused`
    (its text failed the quality gate), `invalid` (an event it covers was erased; it will be rewritten).
    """
    summarizer: str
    """Name of the summarizer that wrote it: `anthropic`, `openai`, or `extractive`, which needs no model."""
    model: str | None
    """Name of the model that wrote it; null if none did."""
    degraded: bool
    """Whether it was written without the intended model, which may rewrite it later."""
    created_at: datetime
    """Time of creation."""
    text: str
    """Text of the summary; empty if an event it covers was erased."""
    digest: dict[str, Any]
    """Facts extracted from the events without a model, such as files, commands, constraints and errors; empty if
    `text` is. Artifacts have the `visibility` and `sources_used` of their event's metadata. Commands and
    searches have the `call_id`, `seq` and `result_seq` (0 without a result) of their call, for use in a recall.
    """
    prompt_version: str | None
    """Version of the prompt that it was written with; null if not known."""
    usage: dict[str, int]
    """Tokens that the model used for it, as `input_tokens` and `output_tokens`; empty if no model was used."""
    turns: list[int]
    """Numbers of the turns that it covers, in whole or in part."""
    split_turn: int | None
    """Number of the turn of which it covers only the beginning; null if there is no such turn."""
    source_tokens: int
    """Size of the events it was written from, in tokens."""
    events: int
    """Number of events it was written from."""
    sources: list[str]
    """Ids of the summaries that it replaced; empty if there were none."""
    superseded_by: str | None
    """Id of the summary that replaced it; null if none has."""
    complaints: list[str]
    """Complaints of the quality gate, one sentence each; empty if it passed."""


@dataclass(frozen=True, kw_only=True)
class ToolsOut(Model):
    """Definition of one tool in the format of each provider."""

    openai: dict[str, Any]
    """Definition for OpenAI's chat completions."""
    openai_responses: dict[str, Any] = field(metadata={"name": "openai-responses"})
    """Definition for OpenAI's Responses API."""
    anthropic: dict[str, Any]
    """Definition for Anthropic's messages."""
    gemini: dict[str, Any]
    """Definition for Gemini: a tool with one function declaration."""
