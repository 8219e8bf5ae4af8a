"""Live updates: the session's stream, as its pages read it."""

from fastapi import Request
from starlette.types import Receive, Scope, Send

from app.wings.pages.page import admit


class Live:
    """The ASGI application that forwards the stream of a session to a page."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the stream's messages until the page is left."""
        visit = await admit(Request(scope, receive), "read")
        await visit.api.stream(f"/v1/sessions/{visit.line}/stream", receive, send)
