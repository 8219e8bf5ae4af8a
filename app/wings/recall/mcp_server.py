"""The MCP server with its one tool, imported by the first request (app/wings/recall/routes.py)."""

import json
from collections.abc import Mapping
from typing import Any, Final

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import ValidationError
from starlette.datastructures import State
from starlette.types import Receive, Scope, Send

from app.core.errors import ContextError
from app.core.lexicon.identifiers import OWN_TOOL
from app.core.log.segments import ADDRESS_PATTERN
from app.http.auth import check_session
from app.tenants import Caller
from app.version import VERSION
from app.wings.recall.routes import BOUND, CALLER
from app.wings.recall.schemas import DESCRIPTION, PARAMETERS, RecallIn
from app.wings.recall.service import Recall

SESSION: Final = {"type": "string", "pattern": ADDRESS_PATTERN, "description": "The session's id."}
SCHEMA: Final[Mapping[str, Any]] = {
    **PARAMETERS,
    "properties": {"session": SESSION, **PARAMETERS["properties"]},
    "required": ["session"],
}

Context = ServerRequestContext[dict[str, Any]]


async def _tools(context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    schema = SCHEMA if _bound(context) is None else PARAMETERS
    annotations = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    tool = types.Tool(name=OWN_TOOL, description=DESCRIPTION, input_schema=dict(schema), annotations=annotations)
    return types.ListToolsResult(tools=[tool])


async def _call(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Call the tool. Errors in the arguments are returned to the model, which may correct them."""
    if params.name != OWN_TOOL:
        return _result(f"there is no tool {params.name!r}", wrong=True)
    given = dict(params.arguments or {})
    session = _bound(context) or given.pop("session", None)
    if not isinstance(session, str):
        return _result("session: the id of a session is needed", wrong=True)
    state = _state(context)
    recall: Recall = state.services.by_class[Recall]
    who: Caller = getattr(state, CALLER)
    try:
        check_session(who, session)
        wanted = RecallIn.model_validate(given)
        session = await state.services.lines.of_call(who.tenant_id, session, wanted.call_id)
        found = await recall.find(who.tenant_id, session, wanted)
    except ValidationError as error:
        first = error.errors()[0]
        return _result(": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"]))), wrong=True)
    except ContextError as error:
        return _result(error.detail, wrong=True)
    answer = found.model_dump(mode="json", exclude_none=True)
    return _result(json.dumps(answer, ensure_ascii=False), wrong=False)


def _bound(context: Context) -> str | None:
    """Return the session that the client is bound to, if any."""
    bound: str | None = getattr(_state(context), BOUND)
    return bound


def _state(context: Context) -> State:
    if context.request is None:
        raise RuntimeError("the transport passed no request")
    state: State = context.request.state
    return state


def _result(text: str, *, wrong: bool) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=wrong)


_SERVER: Final = Server("palimpsest", version=VERSION, on_list_tools=_tools, on_call_tool=_call)


async def handle(scope: Scope, receive: Receive, send: Send) -> None:
    """Handle one request with its own transport, so that any process can handle the next one."""
    manager = StreamableHTTPSessionManager(_SERVER, json_response=True, stateless=True)
    async with manager.run():
        await manager.handle_request(scope, receive, send)
