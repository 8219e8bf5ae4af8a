"""Summaries, the compaction runs that write them, and the proof that every event is accounted for."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import Body, Depends, Path, Query, Response
from pydantic import BaseModel, Field

from app.core.memory.cover import StoredSummary
from app.core.render.formats.tools import NativeFormat, definition
from app.http import fields, paging
from app.http.auth import PrefixAccess
from app.http.fields import Cursor, Limit, Sid, StrictRequest, ViewParameter
from app.http.operation import Resource, Who, service
from app.resources.summaries.requests import END_STATES, Coverage, CoverageProof, SessionCompactions
from app.store.compactions import CompactionRow


class SummaryOut(BaseModel):
    """A stored summary of a range of events."""

    id: fields.SummaryId
    from_seq: fields.FromSeq
    to_seq: fields.ToSeq
    depth: fields.Depth
    tokens: int = Field(description="Estimated size of its text, in tokens.")
    status: Literal["live", "superseded", "refused", "invalid"] = Field(
        description="Status of the summary: `live` (contexts may show it), `superseded` (another summary replaced it), "
        "`refused` (its text failed the quality gate), `invalid` (an event it covers was erased; it will be rewritten)."
    )
    summarizer: str = Field(
        description="Name of the summarizer that wrote it: `anthropic`, `openai`, or `extractive`, which needs no "
        "model."
    )
    model: str | None = Field(description="Name of the model that wrote it; null if none did.")
    degraded: bool = Field(description="Whether it was written without the intended model, which may rewrite it later.")
    created_at: fields.CreatedAt


SummaryPage = paging.page_of(SummaryOut, "A page of summaries.", "Summaries, oldest first.")


class SummaryWhole(SummaryOut):
    """A stored summary with its text, its digest and its lineage."""

    text: str = Field(description="Text of the summary; empty if an event it covers was erased.")
    digest: dict[str, Any] = Field(
        description="Facts extracted from the events without a model, such as files, commands, constraints and errors; "
        "empty if `text` is. Artifacts have the `visibility` and `sources_used` of their event's metadata. Commands "
        "and searches have the `call_id`, `seq` and `result_seq` (0 without a result) of their call, for use in a "
        "recall."
    )
    prompt_version: str | None = Field(description="Version of the prompt that it was written with; null if not known.")
    usage: dict[str, int] = Field(
        description="Tokens that the model used for it, as `input_tokens` and `output_tokens`; empty if no model was "
        "used."
    )
    turns: list[int] = Field(description="Numbers of the turns that it covers, in whole or in part.")
    split_turn: int | None = Field(
        description="Number of the turn of which it covers only the beginning; null if there is no such turn."
    )
    source_tokens: int = Field(description="Size of the events it was written from, in tokens.")
    events: int = Field(description="Number of events it was written from.")
    sources: list[fields.Id] = Field(description="Ids of the summaries that it replaced; empty if there were none.")
    superseded_by: fields.Id | None = Field(description="Id of the summary that replaced it; null if none has.")
    complaints: list[str] = Field(description="Complaints of the quality gate, one sentence each; empty if it passed.")


class CompactionIn(StrictRequest):
    """Request to summarize the older part of the log now."""

    focus: str | None = Field(
        None, min_length=1, max_length=2000, description="Topic that the summary should focus on. Default: none."
    )
    wait_ms: int = Field(
        0, ge=0, le=600_000, description="Maximum time to wait for the run to end, in milliseconds; 0 does not wait."
    )


class CompactionRun(BaseModel):
    """A compaction run: one attempt to write the summaries that are due in a session."""

    id: fields.Id = Field(description="Id of the run, a UUID.")
    state: Literal["scheduled", "running", "succeeded", "skipped", "failed"] = Field(
        description="State of the run; `skipped` means that nothing was summarized; `error` says why."
    )
    reason: str = Field(
        description="Reason for the run: `pressure` (a context is above its trigger or soon will be), `waited` (the "
        "same, and a request with `wait_ms` waits for it), `overflow` (a provider refused a context as too long), "
        "`requested` (by a client), `merge` (there were too many summaries), `redaction` (an event was erased), `redo` "
        "(a degraded summary is rewritten)."
    )
    focus: str | None = Field(description="Topic that the summary should focus on, as requested; null if none was.")
    attempts: int = Field(description="Number of attempts for which the summarizer was unavailable.")
    error: str | None = Field(
        description="Reason why the run failed, was skipped or postponed, or did not use the model; else null."
    )
    from_seq: int | None = Field(
        description="First seq its summaries cover, inclusive; 1 if earlier ones left nothing to do; else null."
    )
    to_seq: int | None = Field(
        description="Last seq its summaries cover, inclusive; theirs if earlier ones left nothing to do; else null."
    )
    summaries: list[fields.Id] = Field(description="Ids of the summaries it wrote.")
    batches_created: int = Field(0, description="Number of summaries it wrote.")
    messages_compressed: int = Field(0, description="Number of events in its summaries of depth 0.")
    tokens_read: int = Field(description="Number of tokens that the summarizer read.")
    tokens_before: int = Field(
        description="Size of the `main` view's context when the run began, in tokens by the estimator; 0 before the "
        "run begins, or if it wrote nothing."
    )
    tokens_after: int = Field(
        description="Estimated size of that context with the new summaries, in the same tokens; 0 if there are none."
    )
    created_at: datetime = Field(description="Time at which the run was scheduled, or began without a request.")
    started_at: datetime | None = Field(description="Time at which it began; null until then.")
    finished_at: datetime | None = Field(description="Time at which it ended; null until then.")


CompactionPage = paging.page_of(CompactionRun, "A page of compaction runs.", "Compaction runs, newest first.")


class CoverageRun(BaseModel):
    """A range of events with one disposition."""

    from_seq: fields.FromSeq
    to_seq: fields.ToSeq
    disposition: fields.Disposition
    summary: fields.CoveringSummary = None


class CoverageOut(BaseModel):
    """Proof that a view accounts for every event exactly once."""

    ok: bool = Field(description="Whether every event is accounted for exactly once.")
    head: int = Field(description="Seq of the last event in the session's log.")
    view: str = Field(description="Name of the view.")
    epoch: int = Field(
        description="Number of the view's current epoch; after a new policy or an erasure, a number that no epoch "
        "gets: the next context opens the one after it."
    )
    runs: list[CoverageRun] = Field(description="Disposition of each event from seq 1 to `head`, in order.")
    faults: list[str] = Field(description="Faults found, one sentence each; empty if `ok`.")


class CompactionOut(BaseModel):
    """State of the session's compaction when the context was made."""

    state: Literal["none", "scheduled", "running", "stalled"] = Field(
        description="State of compaction: `none`; `scheduled` (a worker will check whether there is anything to "
        "summarize); `running` (summaries are being written); `stalled` (the context is above its trigger, and "
        "reducing it was impossible or not worth the price; or events were dropped without a summary, because the last "
        "compaction failed)."
    )
    reason: str | None = Field(
        description="Reason for a stall, or why a requested compaction (`force`, `POST …/compactions`) has no effect; "
        "null otherwise."
    )


class ToolsOut(BaseModel):
    """Definition of one tool in the format of each provider."""

    openai: dict[str, Any] = Field(description="Definition for OpenAI's chat completions.")
    openai_responses: dict[str, Any] = Field(
        alias="openai-responses", description="Definition for OpenAI's Responses API."
    )
    anthropic: dict[str, Any] = Field(description="Definition for Anthropic's messages.")
    gemini: dict[str, Any] = Field(description="Definition for Gemini: a tool with one function declaration.")


router = Resource("summaries", scope="read")

_TOOL: Final[Mapping[str, Any]] = {
    "name": "compact_context",
    "description": "Have the older part of this conversation summarized now, so that there is room for what comes. Use"
    " it when a long piece of work is done and another one begins, or before reading much. Nothing is lost: what a"
    " summary leaves out can be recalled. The answer says how many messages were compressed into how many summaries,"
    " zero of both when there was nothing to compress.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
ToolShape = Annotated[
    NativeFormat | None,
    Query(alias="format", description="Format of the definition. Default: all, by name of the format."),
]

SummaryPath = Annotated[UUID, Path(description="Id of the summary.")]
CompactionId = Annotated[UUID, Path(description="Id of the compaction run.")]
State = Literal["scheduled", "running", "succeeded", "skipped", "failed"]

Service = Annotated[SessionCompactions, Depends(service(SessionCompactions))]


@router.operation("GET", "/v1/sessions/{sid}/summaries", returns=SummaryPage)
async def list_summaries(
    sid: Sid,
    who: Who,
    compactions: Service,
    live: Annotated[bool, Query(description="Whether to return only live summaries.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """List the summaries of a session, oldest first."""
    rows = await compactions.summaries(
        who.tenant_id, sid, live=live, after=paging.decode_date_and_id(cursor), limit=limit + 1
    )
    return paging.page(rows, limit, lambda row: (row.created_at, row.id))


@router.operation("GET", "/v1/sessions/{sid}/summaries/{summary_id}", returns=SummaryWhole)
async def get_summary(sid: Sid, summary_id: SummaryPath, who: Who, compactions: Service) -> StoredSummary:
    """Get a summary with its text, its digest and its lineage."""
    return await compactions.summary(who.tenant_id, sid, summary_id)


@router.operation("GET", "/v1/sessions/{sid}/coverage", returns=CoverageOut, response_model_exclude_none=True)
async def get_coverage(
    sid: Sid, who: Who, coverage: Annotated[Coverage, Depends(service(Coverage))], view: ViewParameter = "main"
) -> CoverageProof:
    """Prove that a view accounts for every event of the log exactly once, and say how each is shown."""
    return await coverage.prove(who.tenant_id, sid, view)


@router.operation(
    "POST",
    "/v1/sessions/{sid}/compactions",
    scope="ingest",
    summary="Request a compaction",
    returns=CompactionRun,
    status=202,
    also=(200,),
)
async def compact(
    sid: Sid,
    body: Annotated[CompactionIn, Body(default_factory=CompactionIn)],
    response: Response,
    who: Who,
    compactions: Service,
) -> CompactionRow:
    """Request a compaction: the older part of the log is summarized now, however small it is.

    The next context of each view shows the summary, unless that would save nothing or the view shows other authors or
    types of events; the context's `compaction.reason` then says so. If nothing was summarized, `error` says why. 200 if
    the run ended within `wait_ms`, else 202.
    """
    run = await compactions.compact(who.tenant_id, sid, body.focus, body.wait_ms)
    response.status_code = 200 if run.state in END_STATES else 202
    return run


@router.operation(
    "GET",
    "/v1/tools/compact",
    access=PrefixAccess.NONE,
    summary="Get the compaction tool",
    returns=ToolsOut | dict[str, Any],
)
async def compact_tool(shape: ToolShape = None) -> Mapping[str, Any]:
    """Get the definition of the compaction tool for a model.

    When the model calls it, send `POST …/compactions` with a `wait_ms`, return the response to the model, and request
    the next context.
    """
    return definition(_TOOL, shape)


@router.operation("GET", "/v1/sessions/{sid}/compactions", returns=CompactionPage)
async def list_compactions(
    sid: Sid,
    who: Who,
    compactions: Service,
    state: Annotated[State | None, Query(description="State: return only runs in it. Default: all.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """List the compaction runs of a session, newest first."""
    rows = await compactions.runs(
        who.tenant_id, sid, state=state, after=paging.decode_date_and_id(cursor), limit=limit + 1
    )
    return paging.page(rows, limit, lambda row: (row.created_at, row.id))


@router.operation("GET", "/v1/sessions/{sid}/compactions/{compaction_id}", returns=CompactionRun)
async def get_compaction(sid: Sid, compaction_id: CompactionId, who: Who, compactions: Service) -> CompactionRow:
    """Get a compaction run."""
    return await compactions.run(who.tenant_id, sid, compaction_id)


@router.operation(
    "POST",
    "/v1/sessions/{sid}/compactions/{compaction_id}:retry",
    scope="ingest",
    returns=CompactionRun,
    status=202,
    problems=("conflict",),
)
async def retry_compaction(sid: Sid, compaction_id: CompactionId, who: Who, compactions: Service) -> CompactionRow:
    """Schedule a failed or skipped compaction run again."""
    return await compactions.retry(who.tenant_id, sid, compaction_id)
