"""The recall tool over the Model Context Protocol: streamable HTTP at /mcp, without sessions of its own.

The SDK takes a second to import, so it is imported by the first request that needs it.
"""

import asyncio
from importlib import import_module
from typing import Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from app.api.access import TemplateRoute
from app.api.auth import caller
from app.api.body import parsed

PATH: Final = "/mcp"
CALLER: Final = "caller"
"""Name under which a request's state holds its caller."""


class Mcp:
    """The ASGI application behind the route."""

    operation_id: Final = "mcp"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a caller that the API allows. Raises Unauthorized or Forbidden, then BodyTooLarge or InvalidJson."""
        request = Request(scope, receive)
        who = await caller("read")(request)
        raw = await request.body()
        await parsed(raw, request.app.state.json_limits)
        server = await asyncio.to_thread(import_module, "app.api.mcp_server")
        await server.handle({**scope, "state": {**scope["state"], CALLER: who}}, _again(raw, receive), send)


def _again(raw: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body that was read already, then what `receive` gives."""
    bodies: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def again() -> Message:
        return bodies.pop() if bodies else await receive()

    return again


def route() -> Route:
    """Return the route: POST only, since the server sends nothing unrequested."""
    return TemplateRoute(PATH, Mcp(), methods=["POST"], include_in_schema=False)
