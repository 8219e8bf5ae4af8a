"""Recall, and the definition of the tool by which agents ask for it."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from app.api.auth import Caller, caller
from app.api.body import BodyRoute
from app.api.documents import problems
from app.api.routes.sessions import Sid
from app.api.schemas.common import NativeFormat
from app.api.schemas.recall import RecallIn, RecallOut, ToolsOut, asked
from app.core.recall.tool import SHAPES, definition
from app.services.recall import Recall

router = APIRouter(tags=["recall"], route_class=BodyRoute)


async def service(request: Request) -> Recall:
    """The use case behind these routes."""
    found: Recall = request.state.services.recall
    return found


@router.post(
    "/v1/sessions/{sid}/recall",
    operation_id="recall",
    response_model=RecallOut,
    response_model_exclude_none=True,
    responses=problems("not-found", "invalid-request"),
)
async def post_recall(
    sid: Sid,
    body: RecallIn,
    who: Annotated[Caller, Depends(caller("read"))],
    recall: Annotated[Recall, Depends(service)],
) -> Mapping[str, Any]:
    """The originals of what a context left out, from the whole log; what is visible anyway is not repeated."""
    return await recall.of(who.tenant_id, sid, asked(body))


@router.get(
    "/v1/tools/recall",
    operation_id="recall_tool",
    response_model=ToolsOut | dict[str, Any],
    responses=problems("invalid-request"),
    dependencies=[Depends(caller("read"))],
)
async def recall_tool(
    shape: Annotated[NativeFormat | None, Query(alias="format", description="One provider's; else all three.")] = None,
) -> Mapping[str, Any]:
    """The recall tool, ready to be given to a model: post what it is called with to `…/recall`."""
    return {name: definition(name) for name in SHAPES} if shape is None else definition(shape)
