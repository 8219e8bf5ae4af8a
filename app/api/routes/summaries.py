"""Summaries, the compaction runs that write them, and the proof that every event is accounted for."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

from fastapi import Body, Depends, Path, Query, Response

from app.api import paging
from app.api.key_prefix import PrefixAccess
from app.api.operation import Resource, Who, service
from app.api.schemas.common import Cursor, Limit, Sid, ViewParameter
from app.api.schemas.recall import ToolsOut
from app.api.schemas.summaries import (
    CompactionIn,
    CompactionPage,
    CompactionRun,
    CoverageOut,
    SummaryPage,
    SummaryWhole,
)
from app.core.compaction.transcript import definition
from app.core.render.formats.tools import NativeFormat
from app.services.compaction_queries import ENDED, CompactionQueries
from app.services.coverage import Coverage, CoverageProof
from app.store.compactions import CompactionRow
from app.store.summaries import WholeSummary

router = Resource("summaries")

SummaryId = Annotated[UUID, Path(description="Id of the summary.")]
CompactionId = Annotated[UUID, Path(description="Id of the compaction run.")]
State = Literal["scheduled", "running", "succeeded", "skipped", "failed"]


Service = Annotated[CompactionQueries, Depends(service(CompactionQueries))]


@router.operation("GET", "/v1/sessions/{sid}/summaries", scope="read", returns=SummaryPage, problems=("not-found",))
async def list_summaries(
    sid: Sid,
    who: Who,
    requests: Service,
    live: Annotated[bool, Query(description="Whether to return only live summaries.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """List the summaries of a session, oldest first."""
    rows = await requests.summaries(
        who.tenant_id, sid, live=live, after=paging.decode_date_and_id(cursor), limit=limit + 1
    )
    return paging.page(rows, limit, lambda row: (row.created_at, row.id))


@router.operation(
    "GET", "/v1/sessions/{sid}/summaries/{summary_id}", scope="read", returns=SummaryWhole, problems=("not-found",)
)
async def get_summary(sid: Sid, summary_id: SummaryId, who: Who, requests: Service) -> WholeSummary:
    """Get a summary with its text, its digest and its lineage."""
    return await requests.summary(who.tenant_id, sid, summary_id)


@router.operation(
    "GET",
    "/v1/sessions/{sid}/coverage",
    scope="read",
    returns=CoverageOut,
    problems=("not-found",),
    response_model_exclude_none=True,
)
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
    problems=("not-found",),
)
async def compact(
    sid: Sid,
    body: Annotated[CompactionIn, Body(default_factory=CompactionIn)],
    response: Response,
    who: Who,
    requests: Service,
) -> CompactionRow:
    """Request a compaction: the older part of the log is summarized now, however small it is.

    The next context of each view shows the summary. If nothing was summarized, `error` says why. 200 if the run ended
    within `wait_ms`, else 202.
    """
    run = await requests.compact(who.tenant_id, sid, body.focus, body.wait_ms)
    response.status_code = 200 if run.state in ENDED else 202
    return run


@router.operation(
    "GET",
    "/v1/tools/compact",
    scope="read",
    access=PrefixAccess.NONE,
    summary="Get the compaction tool",
    returns=ToolsOut | dict[str, Any],
)
async def compact_tool(
    shape: Annotated[
        NativeFormat | None,
        Query(alias="format", description="Format of the definition. Default: all, by name of the format."),
    ] = None,
) -> Mapping[str, Any]:
    """Get the definition of the compaction tool for a model.

    When the model calls it, send `POST …/compactions` with a `wait_ms`, return the response to the model, and request
    the next context.
    """
    return {name: definition(name) for name in get_args(NativeFormat)} if shape is None else definition(shape)


@router.operation(
    "GET", "/v1/sessions/{sid}/compactions", scope="read", returns=CompactionPage, problems=("not-found",)
)
async def list_compactions(
    sid: Sid,
    who: Who,
    requests: Service,
    state: Annotated[State | None, Query(description="State: return only runs in it. Default: all.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """List the compaction runs of a session, newest first."""
    rows = await requests.runs(
        who.tenant_id, sid, state=state, after=paging.decode_date_and_id(cursor), limit=limit + 1
    )
    return paging.page(rows, limit, lambda row: (row.created_at, row.id))


@router.operation(
    "GET",
    "/v1/sessions/{sid}/compactions/{compaction_id}",
    scope="read",
    returns=CompactionRun,
    problems=("not-found",),
)
async def get_compaction(sid: Sid, compaction_id: CompactionId, who: Who, requests: Service) -> CompactionRow:
    """Get a compaction run."""
    return await requests.run(who.tenant_id, sid, compaction_id)


@router.operation(
    "POST",
    "/v1/sessions/{sid}/compactions/{compaction_id}:retry",
    scope="ingest",
    returns=CompactionRun,
    status=202,
    problems=("not-found", "conflict"),
)
async def retry_compaction(sid: Sid, compaction_id: CompactionId, who: Who, requests: Service) -> CompactionRow:
    """Schedule a failed or skipped compaction run again."""
    return await requests.retry(who.tenant_id, sid, compaction_id)
