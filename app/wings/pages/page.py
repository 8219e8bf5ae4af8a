"""Declaration of a page, in one place: its path, template and scope, and the headers of every response.

@pages.page("/ui/sessions/{sid}/money", "money.html")
async def show_money(visit: Visit) -> Mapping[str, object]:
    return {"ledger": await visit.api.get(f"/v1/sessions/{visit.sid}/ledger")}

Pages show only what requests to this server's own API return, made inside the process with the rights of the page's
reader, and their own statements on the same tenant's tables, so that nobody sees on a page more than on the API.
"""

import gzip
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from app.core.errors import ContextError, InvalidRequest, NotFound
from app.core.lexicon.times import in_utc, parse_time
from app.core.log.segments import session_of
from app.http.auth import authenticate_bearer, check_session, resolve_line
from app.http.errors import PROBLEM, Unauthorized, error_response, find_problem
from app.http.operation import TemplateRoute
from app.http.requests import check_query
from app.store.engine import Database
from app.store.ids import SessionRef, session_ref
from app.tenants import Caller
from app.version import VERSION
from app.wings.pages.access import authorization, check_origin

_OWN: Final = ("route", "router", "endpoint", "path_params", "starlette.exception_handlers", PROBLEM)
"""Parts of a scope that belong to the page's request alone. Without handlers, errors are raised here as they are."""


class Api:
    """The API as one reader of a page may use it."""

    def __init__(self, request: Request, authorization: str | None) -> None:
        self._request = request
        self._authorization = authorization

    async def get(self, path: str, **query: object) -> Any:
        """Return the JSON of a GET request; parameters that are None are left out. Raises the API's errors."""
        return json.loads(await self.read(path, **query))

    async def find(self, path: str, **query: object) -> Any:
        """Like `get`, but None if the server has no such operation, because its wing was removed."""
        try:
            return await self.get(path, **query)
        except HTTPException as error:
            if error.status_code != 404:
                raise
            return None

    async def read(self, path: str, **query: object) -> bytes:
        """Return the body of the response to a GET request. Raises the API's errors."""
        return await self._send("GET", path, query, None)

    async def post(self, path: str, body: object = None) -> Any:
        """Return the JSON of a POST request. Raises the API's errors."""
        return json.loads(await self._send("POST", path, {}, body))

    async def stream(self, path: str, receive: Receive, send: Send, **query: object) -> None:
        """Forward the response to a GET request as it comes. Raises the API's errors."""
        names = (b"last-event-id",)
        given = [(name, value) for name, value in self._request.scope["headers"] if name in names]
        await self._request.app.router(self._scope("GET", path, query, given), receive, send)

    async def _send(self, method: str, path: str, query: dict[str, object], body: object) -> bytes:
        sent = b"" if body is None else json.dumps(body).encode()
        received = bytearray()

        async def receive() -> Message:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            received.extend(message.get("body", b""))

        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(sent)).encode())]
        scope = self._scope(method, path, query, [] if body is None else headers)
        await self._request.app.router(scope, receive, send)
        return bytes(received)

    def _scope(self, method: str, path: str, query: dict[str, object], headers: list[tuple[bytes, bytes]]) -> Scope:
        given = {name: _text(value) for name, value in query.items() if value is not None}
        if self._authorization is not None:
            headers = [*headers, (b"authorization", self._authorization.encode("latin-1", "replace"))]
        kept = {name: value for name, value in self._request.scope.items() if name not in _OWN}
        return {
            **kept,
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": urlencode(given).encode(),
            "headers": headers,
            "state": dict(kept["state"]),
        }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FORM_BYTES_MAX: Final = 16_384


@dataclass(frozen=True)
class Visit:
    """A request for a page by a reader with the scope that the page needs.

    `sid` is the session or line in the path as the reader gave it, "" on pages that concern no session; `line` is the
    address of the line that it means.
    """

    request: Request
    who: Caller
    api: Api
    sid: str = ""
    line: str = ""

    @cached_property
    def session(self) -> str:
        """The session's name, without the number of a line."""
        return session_of(self.sid)

    @property
    def path(self) -> str:
        """The path of the line in the API."""
        return f"/v1/sessions/{self.line}"

    @property
    def ref(self) -> SessionRef:
        """The ids of the line's row."""
        return session_ref(self.who.tenant_id, self.line)

    @property
    def database(self) -> Database:
        """The server's database."""
        database: Database = self.request.state.services.database
        return database

    @property
    def may_act(self) -> bool:
        """Whether the reader may change something: the scope `admin`."""
        return self.who.has_scope("admin")

    @property
    def logged_in(self) -> bool:
        """Whether the reader has given a key."""
        return authorization(self.request) is not None

    def query(self, name: str, default: str = "") -> str:
        """Return a parameter of the query. Raises InvalidRequest if it holds NUL."""
        value = self.request.query_params.get(name, default)
        if "\x00" in value:
            raise InvalidRequest("a query must not hold NUL", field=name)
        return value

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**31 - 1) -> int:
        """Return a whole number in the query, within these bounds, or the default for anything else."""
        value = self.query(name)
        return min(most, max(least, int(value))) if value.isascii() and value.isdigit() else default

    @property
    def view(self) -> str:
        """The name of the view that the reader looks at."""
        return self.query("view") or "main"

    async def form(self) -> Mapping[str, str]:
        """Return the fields of the form that was sent. Raises InvalidRequest."""
        return await read_form(self.request)


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form. Raises InvalidRequest."""
    body = await request.body()
    if len(body) > FORM_BYTES_MAX:
        raise InvalidRequest(f"a form may have {FORM_BYTES_MAX} bytes", field="")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


Show = Callable[[Visit], Awaitable[Mapping[str, object] | Response]]
"""Returns the values for a page's template, or a whole response."""


class Pages:
    """The pages of one module, as routes."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def page(self, path: str, template: str, *, method: str = "GET", scope: str = "read") -> Callable[[Show], Show]:
        """Declare the decorated function as a page that readers with this scope see.

        The function returns the values for the template, or a Response. A form (`method="POST"`) must come from one
        of these pages.
        """

        def declare(show: Show) -> Show:
            async def endpoint(request: Request) -> Response:
                return await _respond(request, show, template, scope)

            self.routes.append(TemplateRoute(path, endpoint, methods=[method], name=show.__name__))
            return show

        return declare


async def _respond(request: Request, show: Show, template: str, scope: str) -> Response:
    visit = None
    try:
        if request.method == "POST":
            check_origin(request)
        visit = await admit(request, scope)
        shown = await show(visit)
        response = shown if isinstance(shown, Response) else html(render(template, visit, **shown))
    except Unauthorized:
        target = quote(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
        response = RedirectResponse(f"/ui/login?next={target}", 303)
    except (ContextError, RequestValidationError) as error:
        response = _failure(request, visit, error)
    except HTTPException as error:  # the API has no such operation: the wing that adds it was removed
        detail = "This page shows answers of a part of the server that was removed from it."
        response = failure(visit, "Not on this server", detail, error.status_code, "not-found")
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def admit(request: Request, scope: str) -> Visit:
    """Authorize a page's request as the API would. Raises the errors of the API."""
    given = authorization(request)
    if given is not None and "authorization" not in request.headers:
        request.scope["headers"] = [*request.scope["headers"], (b"authorization", given.encode("latin-1", "replace"))]
        request = Request(request.scope, request.receive)
    who = await authenticate_bearer(request, scope)
    api = Api(request, given)
    if "sid" not in request.path_params:
        return Visit(request, who, api)
    await check_query(request)
    sid: str = request.path_params["sid"]
    check_session(who, sid)
    await resolve_line(request, who)
    return Visit(request, who, api, sid, request.path_params["sid"])


def html(text: str, status: int = 200) -> Response:
    """Return a page as a response."""
    return HTMLResponse(text, status, HEADERS)


def _failure(request: Request, visit: Visit | None, error: ContextError | RequestValidationError) -> Response:
    """Return an error as a page, with the status of the API's problem."""
    if not isinstance(error, ContextError):
        error = InvalidRequest("the address of this page is not valid", field="")
    problem = find_problem(error)
    if problem.status >= 500:
        error_response(request, error)  # logs it
    request.scope[PROBLEM] = problem.slug
    title = "Not found" if isinstance(error, NotFound) else problem.title
    return failure(visit, title, error.detail, problem.status, problem.slug)


def failure(visit: Visit | None, title: str, detail: str, status: int, slug: str) -> Response:
    """Return a page that says what failed."""
    return html(render("error.html", visit, title=title, detail=detail, status=status, slug=slug), status)


FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"
EXCERPT_CHARS: Final = 160
_UNSEEN: Final = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **{code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}
"""Control characters and marks of direction, with the texts that are shown for them."""


@cache
def assets() -> Mapping[str, tuple[bytes, bytes]]:
    """Return the static files by name: the bytes, and the bytes compressed by gzip."""
    files = sorted(STATIC.iterdir())
    return {file.name: (data := file.read_bytes(), gzip.compress(data, mtime=0)) for file in files if file.is_file()}


def address(path: str, **query: object) -> str:
    """Return the address of a page; parameters that are None or empty are left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return quote(path, safe="/@:") + (f"?{urlencode(given)}" if given else "")


def count(value: float | None) -> str:
    """Return a number with separators, or a dash."""
    return "–" if value is None else f"{round(value):,}"


def short(value: float | None) -> str:
    """Return a number in at most four characters and a unit, such as 12.3K."""
    if value is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{round(value)}"


def percent(part: float, whole: float) -> str:
    """Return a share in percent, or a dash of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "–"


def moment(value: str | datetime | None) -> str:
    """Return a time in UTC, to the second."""
    if value is None:
        return "–"
    at = parse_time(value) if isinstance(value, str) else value
    return f"{in_utc(at):%Y-%m-%d %H:%M:%S}"


def age(value: str | datetime | None, now: datetime | None = None) -> str:
    """Return the time since a moment in its largest unit, such as `5 min ago`."""
    if value is None:
        return "never"
    at = parse_time(value) if isinstance(value, str) else value
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now" if seconds >= 0 else moment(at)


def plain(text: str) -> str:
    """Return text as it can be shown safely: control characters and bidirectional marks are made visible."""
    return text.translate(_UNSEEN).encode("utf-8", "replace").decode()


def excerpt(text: str, most: int = EXCERPT_CHARS) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(plain(text[: 4 * most]).split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


@cache
def environment() -> Environment:
    """Return the templates, with the filters above."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"count": count, "short": short, "moment": moment, "age": age, "plain": plain, "excerpt": excerpt}
    # It changes with any static file, so that browsers may keep the files.
    revision = hashlib.sha256(b"".join(data for data, _ in assets().values())).hexdigest()[:12]
    made.globals |= {"address": address, "percent": percent, "version": VERSION, "revision": revision}
    return made


def render(template: str, visit: "Visit | None", **values: object) -> str:
    """Return a page. `visit` is None on pages for everybody."""
    return environment().get_template(template).render(values, visit=visit)
