"""Summaries, the compactions that write them, and the proof that nothing is lost."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from app.api import paging
from app.api.auth import Caller, caller
from app.api.body import BodyRoute
from app.api.documents import problems
from app.api.routes.sessions import Limit, Sid
from app.api.schemas.common import NativeFormat
from app.api.schemas.recall import ToolsOut
from app.api.schemas.summaries import (
    CompactionIn,
    CompactionPage,
    CompactionRun,
    CoverageOut,
    SummaryPage,
    SummaryWhole,
)
from app.core.compaction.tool import definition
from app.core.recall.tool import SHAPES
from app.services.compaction_queries import ENDED, CompactionQueries
from app.services.coverage import Coverage

router = APIRouter(tags=["summaries"], route_class=BodyRoute)

View = Annotated[str, Query(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Id = Annotated[UUID, Path()]
State = Literal["scheduled", "running", "succeeded", "skipped", "failed"]


async def service(request: Request) -> CompactionQueries:
    """The use cases behind these routes."""
    found: CompactionQueries = request.state.services.compaction_queries
    return found


async def _coverage(request: Request) -> Coverage:
    found: Coverage = request.state.services.coverage
    return found


Service = Annotated[CompactionQueries, Depends(service)]
Reader = Annotated[Caller, Depends(caller("read"))]
Writer = Annotated[Caller, Depends(caller("ingest"))]


@router.get(
    "/v1/sessions/{sid}/summaries",
    operation_id="list_summaries",
    response_model=SummaryPage,
    responses=problems("not-found", "invalid-request"),
)
async def list_summaries(
    sid: Sid,
    who: Reader,
    requests: Service,
    live: Annotated[bool, Query(description="Only those that stand for their events now.")] = False,
    limit: Limit = 100,
    cursor: str | None = None,
) -> Mapping[str, Any]:
    """The summaries of a session, as they were made."""
    rows = await requests.summaries(who.tenant_id, sid, live=live, after=paging.dated(cursor), limit=limit)
    return _page(rows, limit)


@router.get(
    "/v1/sessions/{sid}/summaries/{summary_id}",
    operation_id="get_summary",
    response_model=SummaryWhole,
    responses=problems("not-found", "invalid-request"),
)
async def get_summary(sid: Sid, summary_id: Id, who: Reader, requests: Service) -> Mapping[str, Any]:
    """One summary with its text, its digest and its lineage."""
    return await requests.summary(who.tenant_id, sid, summary_id)


@router.get(
    "/v1/sessions/{sid}/coverage",
    operation_id="get_coverage",
    response_model=CoverageOut,
    response_model_exclude_none=True,
    responses=problems("not-found", "invalid-request"),
)
async def get_coverage(
    sid: Sid, who: Reader, coverage: Annotated[Coverage, Depends(_coverage)], view: View = "main"
) -> Mapping[str, Any]:
    """What became of every event in a view, and whether each is accounted for once."""
    return await coverage.of(who.tenant_id, sid, view)


@router.post(
    "/v1/sessions/{sid}/compactions",
    operation_id="compact",
    status_code=202,
    response_model=CompactionRun,
    responses={200: {"model": CompactionRun}, **problems("not-found", "invalid-request")},
)
async def compact(
    sid: Sid, body: CompactionIn, response: Response, who: Writer, requests: Service
) -> Mapping[str, Any]:
    """Have the older part of the log summarized now, however much there is; 200 when that ended within `wait_ms`."""
    run = await requests.compact(who.tenant_id, sid, body.focus, body.wait_ms)
    response.status_code = 200 if run["state"] in ENDED else 202
    return run


@router.get(
    "/v1/tools/compact",
    operation_id="compact_tool",
    response_model=ToolsOut | dict[str, Any],
    responses=problems("invalid-request"),
    dependencies=[Depends(caller("read"))],
)
async def compact_tool(
    shape: Annotated[NativeFormat | None, Query(alias="format", description="One provider's; else all three.")] = None,
) -> Mapping[str, Any]:
    """The compaction tool, ready to be given to a model: when it is called, post to `…/compactions` with a `wait_ms`,
    give the model what that answers, and ask for the next context with `force`."""
    return {name: definition(name) for name in SHAPES} if shape is None else definition(shape)


@router.get(
    "/v1/sessions/{sid}/compactions",
    operation_id="list_compactions",
    response_model=CompactionPage,
    responses=problems("not-found", "invalid-request"),
)
async def list_compactions(
    sid: Sid,
    who: Reader,
    requests: Service,
    state: Annotated[State | None, Query(description="Only those in this state.")] = None,
    limit: Limit = 100,
    cursor: str | None = None,
) -> Mapping[str, Any]:
    """The compactions of a session, the newest first, failed ones with their reason."""
    rows = await requests.runs(who.tenant_id, sid, state=state, after=paging.dated(cursor), limit=limit)
    return _page(rows, limit)


@router.get(
    "/v1/sessions/{sid}/compactions/{compaction_id}",
    operation_id="get_compaction",
    response_model=CompactionRun,
    responses=problems("not-found", "invalid-request"),
)
async def get_compaction(sid: Sid, compaction_id: Id, who: Reader, requests: Service) -> Mapping[str, Any]:
    """One compaction."""
    return await requests.run(who.tenant_id, sid, compaction_id)


@router.post(
    "/v1/sessions/{sid}/compactions/{compaction_id}:retry",
    operation_id="retry_compaction",
    status_code=202,
    response_model=CompactionRun,
    responses=problems("not-found", "invalid-request", "conflict"),
)
async def retry_compaction(sid: Sid, compaction_id: Id, who: Writer, requests: Service) -> Mapping[str, Any]:
    """Try a failed or skipped compaction again."""
    return await requests.retry(who.tenant_id, sid, compaction_id)


def _page(rows: list[Mapping[str, Any]], limit: int) -> Mapping[str, Any]:
    last = rows[-1] if len(rows) == limit else None
    following = paging.encode([last["created_at"].isoformat(), str(last["id"])]) if last else None
    return {"items": rows, "next_cursor": following}
