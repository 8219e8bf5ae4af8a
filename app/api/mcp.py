"""The recall tool over the Model Context Protocol: streamable HTTP at /mcp, without sessions of its own.

The SDK takes a second to import, so it is imported by the first request that needs it.
"""

import asyncio
from importlib import import_module
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.api.auth import Forbidden, caller

PATH: Final = "/mcp"
CALLER: Final = "caller"
"""Where in the request's state the handlers find who is asking."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class Mcp:
    """The ASGI application behind the route."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let in whom the API lets in. Raises Unauthorized or Forbidden."""
        request = Request(scope, receive)
        _check_place(request)
        who = await caller("read")(request)
        server = await asyncio.to_thread(import_module, "app.api.mcp_server")
        await server.handle({**scope, "state": {**scope["state"], CALLER: who}}, receive, send)


def _check_place(request: Request) -> None:
    """Without a key the server is for this machine only: not for a page that had its own name point here."""
    if "authorization" in request.headers:
        return  # no page can send a key it does not have
    for name in ("host", "origin"):
        value = request.headers.get(name)
        if value is not None and _host(value, name) not in _LOOPBACK:
            raise Forbidden(f"without a key, {name.capitalize()} must be this machine's own")


def _host(value: str, name: str) -> str | None:
    try:
        return urlsplit(value if name == "origin" else f"//{value}").hostname
    except ValueError:
        return None


def route() -> Route:
    """The route: POST only, since nothing is sent that was not asked for."""
    return Route(PATH, Mcp(), methods=["POST"], include_in_schema=False)
