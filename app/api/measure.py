"""Counts and times requests by route, and logs those that were refused."""

import time
from functools import lru_cache
from typing import Final

import structlog
from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROBLEM: Final = "palimpsest.problem"
"""Where in a request's scope the kind of its problem is left, if it has one."""

REQUESTS = Counter("palimpsest_http_requests", "Requests by route and status", ["method", "route", "status"])
SECONDS = Histogram("palimpsest_http_request_seconds", "Seconds to answer by route", ["method", "route"])


class Measure:
    """ASGI middleware; the route is its template, so that labels stay few. `log_all`: what went well is logged too."""

    def __init__(self, app: ASGIApp, *, log_all: bool) -> None:
        self._app = app
        self._log_all = log_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, watching its answer begin and end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            seconds = time.perf_counter() - started
            requests, times = _series(scope["method"], route, status)
            requests.inc()
            times.observe(seconds)
            if status >= 400 or self._log_all:
                _log(scope, status, seconds)


@lru_cache(maxsize=1_024)
def _series(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(method, route, status), SECONDS.labels(method, route)


def _log(scope: Scope, status: int, seconds: float) -> None:
    """A line for a request."""
    log = structlog.get_logger()
    say = log.debug if status < 400 else log.info if status < 500 else log.warning
    say(
        "request",
        method=scope["method"],
        path=scope.get("raw_path", b"").decode("ascii", "replace"),  # as it came: what is encoded in it stays so
        status=status,
        problem=scope.get(PROBLEM),
        milliseconds=round(seconds * 1000, 1),
    )
