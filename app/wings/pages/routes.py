"""All pages, as routes, and the stream that keeps them up to date."""

from typing import Final

from fastapi import Request
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from app.http.operation import TemplateRoute
from app.wings.pages import (
    call,
    events,
    login,
    money,
    operations,
    sessions,
    strata,
    summaries,
    window,
)
from app.wings.pages.page import admit


class Live:
    """The ASGI application that forwards the stream of a session to a page."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the stream's messages until the page is left, from the session's last event on."""
        visit = await admit(Request(scope, receive), "read")
        session = await visit.api.get(visit.path)
        await visit.api.stream(f"{visit.path}/stream", receive, send, after=session["head"])


ROUTES: Final[list[BaseRoute]] = [
    *login.ROUTES,
    TemplateRoute("/ui/sessions/{sid}/live", Live(), methods=["GET"]),
    *sessions.pages.routes,
    *window.pages.routes,
    *strata.pages.routes,
    *call.pages.routes,
    *events.pages.routes,
    *summaries.pages.routes,
    *money.pages.routes,
    *operations.pages.routes,
    login.UNKNOWN,
]
"""A path for one session is tried before longer ones with other endings; no path here is the beginning of another."""
