"""Summaries, the compaction runs that write them, and the proof that every event is accounted for."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Path, Query, Response

from app.api import paging
from app.api.auth import Caller, require_scope
from app.api.body import BodyRoute
from app.api.openapi import problems
from app.api.routes.sessions import Cursor, Limit, Sid, ViewParameter
from app.api.schemas.recall import ToolsOut
from app.api.schemas.summaries import (
    CompactionIn,
    CompactionPage,
    CompactionRun,
    CoverageOut,
    SummaryPage,
    SummaryWhole,
)
from app.api.service import service
from app.core.compaction.transcript import definition
from app.core.render.formats.tools import NativeFormat
from app.services.compaction_queries import ENDED, CompactionQueries
from app.services.coverage import Coverage, CoverageProof
from app.store.compactions import CompactionRow
from app.store.summaries import WholeSummary

router = APIRouter(tags=["summaries"], route_class=BodyRoute)

SummaryId = Annotated[UUID, Path(description="Id of the summary.")]
CompactionId = Annotated[UUID, Path(description="Id of the compaction run.")]
State = Literal["scheduled", "running", "succeeded", "skipped", "failed"]


Service = Annotated[CompactionQueries, Depends(service(CompactionQueries))]
Reader = Annotated[Caller, Depends(require_scope("read"))]
Writer = Annotated[Caller, Depends(require_scope("ingest"))]


@router.get(
    "/v1/sessions/{sid}/summaries",
    operation_id="list_summaries",
    response_model=SummaryPage,
    responses=problems("not-found"),
)
async def list_summaries(
    sid: Sid,
    who: Reader,
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


@router.get(
    "/v1/sessions/{sid}/summaries/{summary_id}",
    operation_id="get_summary",
    response_model=SummaryWhole,
    responses=problems("not-found"),
)
async def get_summary(sid: Sid, summary_id: SummaryId, who: Reader, requests: Service) -> WholeSummary:
    """Get a summary with its text, its digest and its lineage."""
    return await requests.summary(who.tenant_id, sid, summary_id)


@router.get(
    "/v1/sessions/{sid}/coverage",
    operation_id="get_coverage",
    response_model=CoverageOut,
    response_model_exclude_none=True,
    responses=problems("not-found"),
)
async def get_coverage(
    sid: Sid, who: Reader, coverage: Annotated[Coverage, Depends(service(Coverage))], view: ViewParameter = "main"
) -> CoverageProof:
    """Prove that a view accounts for every event of the log exactly once, and say how each is shown."""
    return await coverage.prove(who.tenant_id, sid, view)


@router.post(
    "/v1/sessions/{sid}/compactions",
    operation_id="compact",
    summary="Request a compaction",
    status_code=202,
    response_model=CompactionRun,
    responses={200: {"model": CompactionRun}, **problems("not-found")},
)
async def compact(
    sid: Sid,
    body: Annotated[CompactionIn, Body(default_factory=CompactionIn)],
    response: Response,
    who: Writer,
    requests: Service,
) -> CompactionRow:
    """Request a compaction: the older part of the log is summarized now, however small it is.

    The next context of each view shows the summary. If nothing was summarized, `error` says why. 200 if the run ended
    within `wait_ms`, else 202.
    """
    run = await requests.compact(who.tenant_id, sid, body.focus, body.wait_ms)
    response.status_code = 200 if run.state in ENDED else 202
    return run


@router.get(
    "/v1/tools/compact",
    operation_id="compact_tool",
    summary="Get the compaction tool",
    response_model=ToolsOut | dict[str, Any],
    responses=problems(),
    dependencies=[Depends(require_scope("read"))],
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


@router.get(
    "/v1/sessions/{sid}/compactions",
    operation_id="list_compactions",
    response_model=CompactionPage,
    responses=problems("not-found"),
)
async def list_compactions(
    sid: Sid,
    who: Reader,
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


@router.get(
    "/v1/sessions/{sid}/compactions/{compaction_id}",
    operation_id="get_compaction",
    response_model=CompactionRun,
    responses=problems("not-found"),
)
async def get_compaction(sid: Sid, compaction_id: CompactionId, who: Reader, requests: Service) -> CompactionRow:
    """Get a compaction run."""
    return await requests.run(who.tenant_id, sid, compaction_id)


@router.post(
    "/v1/sessions/{sid}/compactions/{compaction_id}:retry",
    operation_id="retry_compaction",
    status_code=202,
    response_model=CompactionRun,
    responses=problems("not-found", "conflict"),
)
async def retry_compaction(sid: Sid, compaction_id: CompactionId, who: Writer, requests: Service) -> CompactionRow:
    """Schedule a failed or skipped compaction run again."""
    return await requests.retry(who.tenant_id, sid, compaction_id)
