"""All pages, as routes."""

from typing import Final

from starlette.routing import BaseRoute

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
from app.wings.pages.live import Live

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
