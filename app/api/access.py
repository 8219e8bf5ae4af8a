"""A line in the log and a span in the trace for each request: who asked for what, and how it went, without content."""

import re
import secrets
import time
from collections.abc import Mapping
from typing import Final

import structlog
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, unbind_contextvars

from app import tracing
from app.api.busy import EXEMPT
from app.api.late import AGE

PROBLEM: Final = "palimpsest.problem"
"""Where in a request's scope the kind of its problem is left, if it has one."""
TENANT: Final = "palimpsest.tenant"
"""Where in a request's scope its tenant is left, as soon as it is known."""
SESSION: Final = "palimpsest.session"
"""Where in a request's scope the name of its session is left, if it is about one."""
NAME_CHARS_MAX: Final = 300
REQUEST_ID: Final = b"x-request-id"
_SANE: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})


def known(scope: Scope, tenant: object, session: str | None = None) -> None:
    """Leave whose request it is, for its line, and which session it is about unless its path says so; lines from here
    on name the session."""
    scope[TENANT] = str(tenant)
    if session is not None:
        scope[SESSION] = session
    name = _session(scope)
    if name is not None:
        bind_contextvars(session=name)


class TemplateRoute(Route):
    """A route to an application of ours, whose template is left in the scope as that of FastAPI's routes is."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See Route."""
        match, found = super().matches(scope)
        return match, {**found, "route": self} if found else found


class _Watched:
    """An answer as it leaves."""

    def __init__(self, scope: Scope, send: Send, request_id: bytes) -> None:
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self.status: int | None = None
        self.bytes = 0
        self.whole = False

    async def __call__(self, message: Message) -> None:
        """Send a part of it."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])  # an enumeration's member, of some libraries
            given = message.get("headers", ())
            if not any(name == REQUEST_ID for name, _ in given):  # a provider's own, by which it finds the call again
                given = [*given, (REQUEST_ID, self._request_id)]
            if AGE in self._scope:
                given = [*given, (b"age", str(self._scope[AGE]).encode())]
            message["headers"] = given
        elif message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
        await self._send(message)


class Access:
    """ASGI middleware. Probes and metrics leave a line at `debug` only, and no span."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and tell of it when its answer has ended, however that was."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        watched = _Watched(scope, send, request_id.encode())
        bind_contextvars(request_id=request_id)
        started = time.perf_counter()
        failed = False
        try:
            if scope["path"] in EXEMPT:
                await self._app(scope, receive, watched)
            else:
                await self._traced(scope, receive, watched, request_id)
        except Exception:
            failed = True
            raise
        finally:
            if failed and watched.status is None:
                watched.status = 500
            _tell(scope, watched, time.perf_counter() - started)
            unbind_contextvars("request_id", "session", "trace_id")

    async def _traced(self, scope: Scope, receive: Receive, watched: _Watched, request_id: str) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "HTTP"
        with tracing.served(method, scope["headers"]) as span:
            if span.trace_id is not None:
                bind_contextvars(trace_id=span.trace_id)
            try:
                await self._app(scope, receive, watched)
            finally:
                route = _route(scope)
                span.rename(method if route is None else f"{method} {route}")
                span.set(
                    http__request__method="_OTHER" if method == "HTTP" else method,
                    http__route=route,
                    http__response__status_code=watched.status,
                    http__response__body__size=watched.bytes,
                    url__scheme=scope["scheme"],
                    url__path=scope["path"],
                    palimpsest__request__id=request_id,
                    palimpsest__tenant__id=scope.get(TENANT),
                    palimpsest__session__name=_session(scope),
                    palimpsest__problem=scope.get(PROBLEM),
                )
                if (watched.status or 0) >= 500:
                    span.failed(str(watched.status))
                elif not watched.whole:
                    span.failed("cut_off")


def _request_id(scope: Scope) -> str:
    """The id that the client or a proxy gave the request, if it is fit for a log, or a new one."""
    given: bytes = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    return given.decode("ascii") if _SANE.fullmatch(given) else secrets.token_hex(8)


def _session(scope: Scope) -> str | None:
    """The name in the path, if it could be one."""
    name: str | None = scope.get(SESSION) or scope.get("path_params", {}).get("sid")
    return name if name is not None and len(name) <= NAME_CHARS_MAX and name.isprintable() else None


def _route(scope: Scope) -> str | None:
    return getattr(scope.get("route"), "path", None)


def _tell(scope: Scope, watched: _Watched, seconds: float) -> None:
    """Write the line. The path is in it only where no route stands for it, encoded as it came, and never a query."""
    route, status = _route(scope), watched.status
    fields: Mapping[str, object] = {
        "method": scope["method"],
        "route": route or "unmatched",
        "path": None if route else scope.get("raw_path", b"").decode("ascii", "replace"),
        "status": status,
        "milliseconds": round(seconds * 1000, 1),
        "bytes": watched.bytes,
        "tenant": scope.get(TENANT),
        "session": _session(scope),
        "problem": scope.get(PROBLEM),
        "age": scope.get(AGE),
        "cut_off": None if watched.whole else True,
    }
    log = structlog.get_logger()
    say = log.debug if scope["path"] in EXEMPT else log.warning if (status or 0) >= 500 else log.info
    say("request", **{name: value for name, value in fields.items() if value is not None})
