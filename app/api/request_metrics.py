"""Count and time requests by route."""

import time
from functools import lru_cache

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUESTS = Counter("palimpsest_http_requests", "Requests by route and status", ["method", "route", "status"])
SECONDS = Histogram("palimpsest_http_request_seconds", "Seconds to answer by route", ["method", "route"])


class MeasureRequests:
    """ASGI middleware that counts and times requests, labelled by route template to keep the labels few."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, recording its status and duration."""
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
            requests, times = _series(scope["method"], route, status)
            requests.inc()
            times.observe(time.perf_counter() - started)


@lru_cache(maxsize=1_024)
def _series(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(method, route, status), SECONDS.labels(method, route)
