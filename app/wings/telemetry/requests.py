"""Metrics and traces of requests."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Final

from prometheus_client import Counter, Histogram
from structlog.contextvars import bind_contextvars

from app.http.errors import PROBLEM
from app.http.middleware import PROBES, Exchange
from app.tracing import TraceSpan, tracer

REQUESTS = Counter("palimpsest_http_requests", "Requests by route and status", ["method", "route", "status"])
SECONDS = Histogram("palimpsest_http_request_seconds", "Seconds to answer by route", ["method", "route"])
NOT_REPRODUCIBLE = Counter(
    "palimpsest_calls_not_reproducible", "Recorded calls that could not be rendered again to the same bytes"
)

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})


@contextmanager
def observe_request(exchange: Exchange) -> Iterator[None]:
    """Count and time a request, by route template to keep the labels few, and trace it unless it is a probe.

    The log names the trace.
    """
    scope, started = exchange.scope, time.perf_counter()
    method = scope["method"] if scope["method"] in _METHODS else "HTTP"
    traced = (
        nullcontext(TraceSpan()) if scope["path"] in PROBES else tracer.get().span(method, "server", scope["headers"])
    )
    with traced as span:
        if span.trace_id is not None:
            bind_contextvars(trace_id=span.trace_id)
        try:
            yield
        finally:
            route = getattr(scope.get("route"), "path", None)
            requests, times = _series(scope["method"], route or "unmatched", exchange.status or 500)
            requests.inc()
            times.observe(time.perf_counter() - started)
            if scope.get(PROBLEM) == "not-reproducible":
                NOT_REPRODUCIBLE.inc()
            if span.is_recording:
                _describe(span, method, route, exchange)


def _describe(span: TraceSpan, method: str, route: str | None, exchange: Exchange) -> None:
    """Describe a request and its outcome in its span."""
    scope = exchange.scope
    span.rename(method if route is None else f"{method} {route}")
    span.set(
        http__request__method="_OTHER" if method == "HTTP" else method,
        http__route=route,
        http__response__status_code=exchange.status,
        http__response__body__size=exchange.bytes,
        url__scheme=scope["scheme"],
        url__path=scope["path"],
        palimpsest__request__id=exchange.request_id,
        palimpsest__tenant__id=None if exchange.tenant is None else str(exchange.tenant),
        palimpsest__session__name=exchange.session,
        palimpsest__problem=scope.get(PROBLEM),
    )
    if (exchange.status or 0) >= 500:
        span.fail(str(exchange.status))
    elif not exchange.complete:
        span.fail("cut_off")


@lru_cache(maxsize=1_024)
def _series(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(method, route, status), SECONDS.labels(method, route)
