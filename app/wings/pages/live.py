"""Live updates: the session's stream, as its pages read it."""

from fastapi import Request
from starlette.types import Receive, Scope, Send

from app.wings.pages.page import admit


class Live:
    """The ASGI application that forwards the stream of a session to a page."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the stream's messages until the page is left, from the session's last event on."""
        visit = await admit(Request(scope, receive), "read")
        path = f"/v1/sessions/{visit.line}"
        session = await visit.api.get(path)
        await visit.api.stream(f"{path}/stream", receive, send, after=session["head"])
