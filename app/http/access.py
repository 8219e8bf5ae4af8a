"""Access log: one log line for each request, without its content."""

import re
import secrets
import time
from collections.abc import Mapping
from typing import Final

import structlog
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, unbind_contextvars

from app.http.concurrency import EXEMPT

PROBLEM: Final = "palimpsest.problem"
"""The key in a request's scope of the slug of its problem, if it has one."""
TENANT: Final = "palimpsest.tenant"
"""The key in a request's scope of its tenant, once that is known."""
SESSION: Final = "palimpsest.session"
"""The key in a request's scope of its session's name, if it concerns a session that its path does not name."""
AGE: Final = "palimpsest.age"
"""The key in a request's scope of the age of a response that may be out of date, in whole seconds."""
RESPONSE: Final = "palimpsest.response"
"""The key in a request's scope of the ResponseRecorder of its response."""
NAME_CHARS_MAX: Final = 300
REQUEST_ID: Final = b"x-request-id"
_SANE: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def bind_caller(scope: Scope, tenant: object, session: str | None = None) -> None:
    """Record a request's tenant, and its session unless the path names it, for the access log and later log lines."""
    scope[TENANT] = str(tenant)
    if session is not None:
        scope[SESSION] = session
    name = session_name(scope)
    if name is not None:
        bind_contextvars(session=name)


class TemplateRoute(Route):
    """A route to one of our ASGI applications that puts itself into the scope, as FastAPI's routes do."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as Route does, and add the route to the scope."""
        match, found = super().matches(scope)
        return match, {**found, "route": self} if found else found


class ResponseRecorder:
    """A `send` that adds headers to the response and records its status, size and completeness."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self.request_id = request_id
        self._scope = scope
        self._send = send
        self.status: int | None = None
        self.bytes = 0
        self.complete = False

    async def __call__(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])  # some libraries pass a member of an enumeration
            given = message.get("headers", ())
            if not any(name == REQUEST_ID for name, _ in given):  # keep the provider's own id, which it can look up
                given = [*given, (REQUEST_ID, self.request_id.encode())]
            if AGE in self._scope:
                given = [*given, (b"age", str(self._scope[AGE]).encode())]
            message["headers"] = given
        elif message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        await self._send(message)


class AccessLog:
    """ASGI middleware that logs requests; probes and metrics at `debug`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and log it when its response has ended or failed."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        response = scope[RESPONSE] = ResponseRecorder(scope, send, request_id)
        bind_contextvars(request_id=request_id)
        started = time.perf_counter()
        failed = False
        try:
            await self._app(scope, receive, response)
        except Exception:
            failed = True
            raise
        finally:
            if failed and response.status is None:
                response.status = 500
            _log(scope, response, time.perf_counter() - started)
            unbind_contextvars("request_id", "session", "trace_id")


def _request_id(scope: Scope) -> str:
    """Return the id that the client or a proxy gave the request if it is safe to log, else a new one."""
    given: bytes = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    return given.decode("ascii") if _SANE.fullmatch(given) else secrets.token_hex(8)


def session_name(scope: Scope) -> str | None:
    """Return the name of the request's session if it is short enough and printable."""
    name: str | None = scope.get(SESSION) or scope.get("path_params", {}).get("sid")
    return name if name is not None and len(name) <= NAME_CHARS_MAX and name.isprintable() else None


def _log(scope: Scope, response: ResponseRecorder, seconds: float) -> None:
    """Write the log line. It has the raw path only if no route matched, and never the query."""
    route, status = getattr(scope.get("route"), "path", None), response.status
    fields: Mapping[str, object] = {
        "method": scope["method"],
        "route": route or "unmatched",
        "path": None if route else scope.get("raw_path", b"").decode("ascii", "replace"),
        "status": status,
        "milliseconds": round(seconds * 1000, 1),
        "bytes": response.bytes,
        "tenant": scope.get(TENANT),
        "session": session_name(scope),
        "problem": scope.get(PROBLEM),
        "age": scope.get(AGE),
        "cut_off": None if response.complete else True,
    }
    log = structlog.get_logger()
    write = log.debug if scope["path"] in EXEMPT else log.warning if (status or 0) >= 500 else log.info
    write("request", **{name: value for name, value in fields.items() if value is not None})
