"""All pages as routes, with those that need no key: the login and the static files; and the stream of a session."""

from typing import Final

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from app.http.auth import authenticate
from app.http.errors import PROBLEM, Forbidden, Unauthorized
from app.http.operation import TemplateRoute
from app.wings.pages import calls, log, sessions
from app.wings.pages.access import HOME, check_origin, log_in, log_out, safe_target
from app.wings.pages.page import HEADERS, admit, assets, failure, html, read_form, render

_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_KEPT: Final = {"Cache-Control": "max-age=31536000, immutable", "Vary": "Accept-Encoding"}


async def root(request: Request) -> Response:
    """Lead a browser to the pages; to anything else there is nothing here."""
    if "text/html" not in request.headers.get("accept", ""):
        raise HTTPException(404)
    return RedirectResponse(HOME, 307)


async def login(request: Request) -> Response:
    """Show the form for a key."""
    return _form(safe_target(request.query_params.get("next")))


async def enter(request: Request) -> Response:
    """Log in with a key that has the scope `read`."""
    try:
        check_origin(request)
    except Forbidden as error:
        return _form(HOME, error.detail, 403)
    fields = await read_form(request)
    key, target = fields.get("key", "").strip(), safe_target(fields.get("next"))
    try:
        await authenticate(request, key, ("read",), "enter one")
    except (Unauthorized, Forbidden) as error:
        return _form(target, error.detail, 401 if isinstance(error, Unauthorized) else 403)
    response = RedirectResponse(target, 303, HEADERS)
    log_in(request, response, key)
    return response


async def leave(request: Request) -> Response:
    """Log out."""
    try:
        check_origin(request)
    except Forbidden as error:
        return _form(HOME, error.detail, 403)
    response = RedirectResponse("/ui/login", 303, HEADERS)
    log_out(response)
    return response


async def asset(request: Request) -> Response:
    """Return a static file, compressed if the browser takes it."""
    name = request.path_params["name"]
    if name not in assets():
        raise HTTPException(404)
    data, packed = assets()[name]
    headers = {**HEADERS, **_KEPT}
    if "gzip" in request.headers.get("accept-encoding", ""):
        data, headers = packed, {**headers, "Content-Encoding": "gzip"}
    return Response(data, media_type=_TYPES["." + name.rpartition(".")[2]], headers=headers)


async def unknown(request: Request) -> Response:
    """Say that there is no such page."""
    request.scope[PROBLEM] = "not-found"
    return failure(None, "Not found", f"There is no page {request.url.path}.", 404, "not-found")


def _form(target: str, detail: str = "", status: int = 200) -> Response:
    return html(render("login.html", None, target=target, detail=detail), status)


class Live:
    """The ASGI application that forwards the stream of a session to a page."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the stream's messages until the page is left, from the session's last event on."""
        visit = await admit(Request(scope, receive), "read")
        head = (await visit.api.get(visit.path))["head"]
        await visit.api.stream(f"{visit.path}/stream", receive, send, after=head)


ROUTES: Final[list[BaseRoute]] = [
    TemplateRoute("/", root, methods=["GET"], include_in_schema=False),
    TemplateRoute("/ui", root, methods=["GET"]),
    TemplateRoute("/ui/login", login, methods=["GET"]),
    TemplateRoute("/ui/login", enter, methods=["POST"]),
    TemplateRoute("/ui/logout", leave, methods=["POST"]),
    TemplateRoute("/ui/static/{name}", asset, methods=["GET"]),
    TemplateRoute("/ui/sessions/{sid}/live", Live(), methods=["GET"]),
    *sessions.pages.routes,
    *calls.pages.routes,
    *log.pages.routes,
    Route("/ui/{path:path}", unknown, include_in_schema=False),  # any other page: tried last, logged without a route
]
"""No path here is the beginning of another."""
