"""Recall over HTTP, and as the tool of an MCP server: stateless streamable HTTP at /mcp.

An MCP client that is bound to a session, by `x-palimpsest-session` or by the path `/mcp/s/SESSION`, gets the tool
without the parameter `session`, so that the model need not know the session's name.
"""

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Final

from fastapi import Depends
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from app.core.render.formats.tools import definition
from app.http.auth import PrefixAccess, check_session, session_of_client
from app.http.fields import Sid
from app.http.middleware import EXCHANGE
from app.http.operation import Operation, Resource, TemplateRoute, Who, service
from app.http.requests import read_json
from app.resources.lines.service import Lines
from app.resources.summaries.routes import ToolShape, ToolsOut
from app.wings.recall.schemas import TOOL, RecallIn, RecallOut
from app.wings.recall.service import Recall

CALLER: Final = "caller"
BOUND: Final = "bound_session"
"""Keys in the state of an MCP request: its caller, and the session that its client is bound to, if any."""

router = Resource("recall", scope="read")


@router.operation(
    "POST",
    "/v1/sessions/{sid}/recall",
    resolves_line=False,
    name="recall",
    summary="Recall originals",
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
    access=PrefixAccess.NONE,
    summary="Get the recall tool",
    returns=ToolsOut | dict[str, Any],
)
async def recall_tool(shape: ToolShape = None) -> Mapping[str, Any]:
    """Get the definition of the recall tool for a model. Send the arguments of its calls to `POST …/recall`."""
    return definition(TOOL, shape)


class Mcp:
    """The ASGI application of the MCP routes."""

    operation: Final = Operation("mcp", "read", PrefixAccess.WITHIN, resolves_line=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an authenticated caller.

        Raises Unauthorized or Forbidden, NotFound or InvalidRequest for the bound session, then BodyTooLarge or
        InvalidJson.
        """
        request = Request(scope, receive)
        who = await self.operation.admit(request)
        session = session_of_client(request.headers, request.path_params.get("sid"))
        if session is not None:
            check_session(who, session)
            scope[EXCHANGE].assign_session(session)
        _, raw = await read_json(request)
        server = await asyncio.to_thread(import_module, "app.wings.recall.mcp_server")  # its SDK takes a second
        state = {**scope["state"], CALLER: who, BOUND: session}
        await server.handle({**scope, "state": state}, _replay_body(raw, receive), send)


def _replay_body(raw: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first gives the body that was read already."""
    bodies: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def again() -> Message:
        return bodies.pop() if bodies else await receive()

    return again


MCP_ROUTES: Final = [
    TemplateRoute(path, Mcp(), methods=["POST"], include_in_schema=False) for path in ("/mcp", "/mcp/s/{sid}")
]
"""They accept POST only, since the server sends nothing on its own initiative."""
