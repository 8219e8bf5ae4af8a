"""Metrics and traces of requests."""

import time
from contextlib import nullcontext
from functools import lru_cache
from typing import Final

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from app.http.access import PROBLEM, RESPONSE, TENANT, ResponseRecorder, session_name
from app.http.concurrency import EXEMPT
from app.tracing import TraceSpan, tracer

REQUESTS = Counter("palimpsest_http_requests", "Requests by route and status", ["method", "route", "status"])
SECONDS = Histogram("palimpsest_http_request_seconds", "Seconds to answer by route", ["method", "route"])
NOT_REPRODUCIBLE = Counter(
    "palimpsest_calls_not_reproducible", "Recorded calls that could not be rendered again to the same bytes"
)

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})


class ObserveRequests:
    """ASGI middleware that counts and times requests, by route template to keep the labels few, and traces all requests
    other than probes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, in a span whose trace is named in the log."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        method = scope["method"] if scope["method"] in _METHODS else "HTTP"
        traced = (
            nullcontext(TraceSpan()) if scope["path"] in EXEMPT else tracer().span(method, "server", scope["headers"])
        )
        with traced as span:
            if span.trace_id is not None:
                bind_contextvars(trace_id=span.trace_id)
            try:
                await self._app(scope, receive, send)
            finally:
                _record(span, method, scope, time.perf_counter() - started)


def _record(span: TraceSpan, method: str, scope: Scope, seconds: float) -> None:
    """Record the outcome of a request in its metrics and its span."""
    route = getattr(scope.get("route"), "path", None)
    response: ResponseRecorder = scope[RESPONSE]
    requests, times = _series(scope["method"], route or "unmatched", response.status or 500)
    requests.inc()
    times.observe(seconds)
    if scope.get(PROBLEM) == "not-reproducible":
        NOT_REPRODUCIBLE.inc()
    span.rename(method if route is None else f"{method} {route}")
    span.set(
        http__request__method="_OTHER" if method == "HTTP" else method,
        http__route=route,
        http__response__status_code=response.status,
        http__response__body__size=response.bytes,
        url__scheme=scope["scheme"],
        url__path=scope["path"],
        palimpsest__request__id=response.request_id,
        palimpsest__tenant__id=scope.get(TENANT),
        palimpsest__session__name=session_name(scope),
        palimpsest__problem=scope.get(PROBLEM),
    )
    if (response.status or 0) >= 500:
        span.fail(str(response.status))
    elif not response.complete:
        span.fail("cut_off")


@lru_cache(maxsize=1_024)
def _series(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(method, route, status), SECONDS.labels(method, route)
