"""Recall of originals, and the definition of the recall tool for agents."""

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Query

from app.api.auth import Caller, require_scope
from app.api.body import BodyRoute
from app.api.openapi import problems
from app.api.routes.sessions import Sid
from app.api.schemas.recall import RecallIn, RecallOut, ToolsOut, to_request
from app.api.service import service
from app.core.recall.tool import definition
from app.core.render.formats.tools import NativeFormat
from app.services.lines import Lines
from app.services.recall import Recall, Recalled

router = APIRouter(tags=["recall"], route_class=BodyRoute)


@router.post(
    "/v1/sessions/{sid}/recall",
    operation_id="recall",
    summary="Recall originals",
    response_model=RecallOut,
    response_model_exclude_none=True,
    responses=problems("not-found"),
)
async def post_recall(
    sid: Sid,
    body: RecallIn,
    who: Annotated[Caller, Depends(require_scope("read"))],
    recall: Annotated[Recall, Depends(service(Recall))],
    lines: Annotated[Lines, Depends(service(Lines))],
) -> Recalled:
    """Recall the originals of events from the whole log, by seq, path or search.

    Events that the call shows verbatim are only listed, without content. With `call_id`, the log is that of the
    session's line on which the call was made.
    """
    line = await lines.of_call(who.tenant_id, sid, body.call_id)
    return await recall.find(who.tenant_id, line, to_request(body))


@router.get(
    "/v1/tools/recall",
    operation_id="recall_tool",
    summary="Get the recall tool",
    response_model=ToolsOut | dict[str, Any],
    responses=problems(),
    dependencies=[Depends(require_scope("read"))],
)
async def recall_tool(
    shape: Annotated[
        NativeFormat | None,
        Query(alias="format", description="Format of the definition. Default: all, by name of the format."),
    ] = None,
) -> Mapping[str, Any]:
    """Get the definition of the recall tool for a model. Send the arguments of its calls to `POST …/recall`."""
    return {name: definition(name) for name in get_args(NativeFormat)} if shape is None else definition(shape)
