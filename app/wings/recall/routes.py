"""The operations of recall."""

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from fastapi import Depends, Query

from app.core.render.formats.tools import NativeFormat
from app.http.addresses import PrefixAccess
from app.http.fields import Sid
from app.http.operation import Resource, Who, service
from app.resources.lines.service import Lines
from app.resources.summaries.routes import ToolsOut
from app.wings.recall.schemas import RecallIn, RecallOut, definition
from app.wings.recall.service import Recall

router = Resource("recall")


@router.operation(
    "POST",
    "/v1/sessions/{sid}/recall",
    scope="read",
    resolves_line=False,
    name="recall",
    summary="Recall originals",
    returns=RecallOut,
    problems=("not-found",),
    response_model_exclude_none=True,
)
async def post_recall(
    sid: Sid,
    body: RecallIn,
    who: Who,
    recall: Annotated[Recall, Depends(service(Recall))],
    lines: Annotated[Lines, Depends(service(Lines))],
) -> RecallOut:
    """Recall the originals of events from the whole log, by seq, path or search.

    Events that the call shows verbatim are only listed, without content. With `call_id`, the log is that of the
    session's line on which the call was made.
    """
    line = await lines.of_call(who.tenant_id, sid, body.call_id)
    return await recall.find(who.tenant_id, line, body)


@router.operation(
    "GET",
    "/v1/tools/recall",
    scope="read",
    access=PrefixAccess.NONE,
    summary="Get the recall tool",
    returns=ToolsOut | dict[str, Any],
)
async def recall_tool(
    shape: Annotated[
        NativeFormat | None,
        Query(alias="format", description="Format of the definition. Default: all, by name of the format."),
    ] = None,
) -> Mapping[str, Any]:
    """Get the definition of the recall tool for a model. Send the arguments of its calls to `POST …/recall`."""
    return {name: definition(name) for name in get_args(NativeFormat)} if shape is None else definition(shape)
