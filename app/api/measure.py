"""Counts and times requests by route."""

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.services.feedback import Verdict
from app.store.jobs import Queue
from app.store.spending import Today

SHARED: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder in which several processes add up their metrics, where there are several."""

REQUESTS = Counter("palimpsest_http_requests", "Requests by route and status", ["method", "route", "status"])
SECONDS = Histogram("palimpsest_http_request_seconds", "Seconds to answer by route", ["method", "route"])
NOT_REPRODUCIBLE = Counter("palimpsest_calls_not_reproducible", "Recorded calls that no longer came out as recorded")

OVERFLOWS = Counter("palimpsest_overflows", "Calls reported as too long, by the set of patterns that matched", ["set"])
RETRIES = Counter("palimpsest_overflow_retries", "Contexts made again, smaller, for a call that was too long")
GATEWAY = Counter("palimpsest_gateway_calls", "Requests through the gateway, by their mode", ["provider", "mode"])
ESTIMATE_OFF = Histogram(
    "palimpsest_estimate_off_ratio",
    "By what share of the reported input tokens an estimate was off",
    buckets=(0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 4),
)


def told(verdict: Verdict) -> None:
    """Count a report of a call's outcome."""
    if verdict.overflow is not None:
        OVERFLOWS.labels(verdict.overflow.set).inc()
    if verdict.off is not None:
        ESTIMATE_OFF.observe(verdict.off)


class WorkersCollector(Collector):
    """The workers' queue and what their summarizers have used today, as read from the database."""

    def __init__(self, queues: Sequence[Queue], today: Today) -> None:
        self._queues = queues
        self._today = today

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """One gauge after the other."""
        jobs = GaugeMetricFamily(
            "palimpsest_jobs", "Jobs of the workers' queue, as the database has it", labels=["kind", "state"]
        )
        overdue = GaugeMetricFamily(
            "palimpsest_jobs_overdue_seconds",
            "How long the job that has waited longest could have been running",
            labels=["kind"],
        )
        for queue in self._queues:
            jobs.add_metric([queue.kind, "waiting"], queue.waiting)
            jobs.add_metric([queue.kind, "running"], queue.running)
            overdue.add_metric([queue.kind], queue.overdue_seconds)
        tokens = GaugeMetricFamily(
            "palimpsest_summarizer_tokens_today",
            "Tokens of summarizers' models on this day (UTC), by all workers",
            labels=["state"],
        )
        tokens.add_metric(["spent"], self._today.spent)
        tokens.add_metric(["reserved"], self._today.reserved)
        refused = GaugeMetricFamily(
            "palimpsest_summarizer_requests_refused_today",
            "Requests to summarizers' models that were not made on this day (UTC), as a tenant had spent what it may",
            value=self._today.refused,
        )
        return jobs, overdue, tokens, refused


class Measure:
    """ASGI middleware; the route is its template, so that labels stay few."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

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
            requests, times = _series(scope["method"], route, status)
            requests.inc()
            times.observe(time.perf_counter() - started)


@lru_cache(maxsize=1_024)
def _series(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(method, route, status), SECONDS.labels(method, route)
