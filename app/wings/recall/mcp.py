"""The recall tool over the Model Context Protocol: stateless streamable HTTP at /mcp.

A client that is bound to a session, by `x-palimpsest-session` or by the path `/mcp/s/SESSION`, gets the tool without
the parameter `session`, so that the model need not know the session's name.

The SDK takes a second to import, so it is imported by the first request.
"""

import asyncio
from importlib import import_module
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from app.http.access import TemplateRoute, bind_caller
from app.http.addresses import PrefixAccess, check_session, session_of_client
from app.http.body import parse_json
from app.http.operation import Operation

PATH: Final = "/mcp"
BOUND_PATH: Final = "/mcp/s/{sid}"
CALLER: Final = "caller"
BOUND: Final = "bound_session"
"""The keys in a request's state of its caller, and of the session that its client is bound to, if any."""


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
            bind_caller(scope, who.tenant_id, session)
        raw = await request.body()
        await parse_json(raw, request.app.state.json_limits)
        server = await asyncio.to_thread(import_module, "app.wings.recall.mcp_server")
        state = {**scope["state"], CALLER: who, BOUND: session}
        await server.handle({**scope, "state": state}, _again(raw, receive), send)


def _again(raw: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first gives the body that was read already."""
    bodies: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def again() -> Message:
        return bodies.pop() if bodies else await receive()

    return again


def routes() -> list[Route]:
    """Return the routes. They accept POST only, since the server sends nothing on its own initiative."""
    return [TemplateRoute(path, Mcp(), methods=["POST"], include_in_schema=False) for path in (PATH, BOUND_PATH)]
