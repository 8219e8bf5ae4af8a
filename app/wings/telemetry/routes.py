"""The operation that serves metrics: those of the API's processes, and those of all workers.

Workers listen on no port, so their metrics are read from the database.
"""

import asyncio
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import psutil
from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from app.core.errors import StoreUnavailable
from app.core.lexicon.times import to_seconds
from app.http.openapi import open_problems
from app.http.requests import check_query
from app.store import jobs
from app.store.engine import Database
from app.store.jobs import BOUNDS, Queue, TokensToday, WorkCount
from app.wings.telemetry import SHARED_METRICS
from app.wings.telemetry.metrics import set_pool_gauges

router = APIRouter(tags=["operations"], dependencies=[Depends(check_query)])

_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)
_Samples: TypeAlias = dict[tuple[str, ...], float]

WORKERS_SECONDS: Final = 2.0
"""The timeout for reading the workers' metrics; a scrape without these figures is better than a late one."""
WRITTEN: Final = frozenset({"live", "degraded"})
"""The outcomes of summaries that contexts may show."""


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Metrics in Prometheus' text format",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **open_problems("not-local", "store-unavailable"),
    },
)
async def metrics(request: Request) -> Response:
    """Get metrics in Prometheus' text format. Metrics of the workers are missing while the database is unreachable.

    If several processes serve one port, the metrics are those of all of them together.
    """
    database: Database = request.state.services.database
    workers = await _workers(database)
    set_pool_gauges(database)
    return Response(generate_latest(process_metrics()) + generate_latest(workers), media_type=CONTENT_TYPE_LATEST)


async def _workers(database: Database) -> CollectorRegistry:
    """Return the metrics of the workers, or none if the database is unreachable or too slow."""
    registry = CollectorRegistry()
    try:
        async with asyncio.timeout(WORKERS_SECONDS):
            queues, today = await jobs.queues(database), await jobs.tokens_today(database)
            registry.register(WorkersCollector(queues, today, await jobs.work_counts(database)))
    except (StoreUnavailable, TimeoutError):
        pass
    return registry


def process_metrics() -> CollectorRegistry:
    """Return the metrics of the API's processes."""
    folder = os.environ.get(SHARED_METRICS)
    if folder is None:
        return REGISTRY
    for file in Path(folder).glob("gauge_live*.db"):  # gauges of processes that have ended
        if not psutil.pid_exists(int(file.stem.rpartition("_")[2])):
            file.unlink(missing_ok=True)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library leaves it untyped
    return registry


class WorkersCollector(Collector):
    """The metrics of the workers: the queue, today's token spending, and the work done so far."""

    def __init__(self, queues: Sequence[Queue], today: TokensToday, work: Sequence[WorkCount]) -> None:
        self._queues, self._today, self._work = queues, today, work

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        yield from _job_metrics(self._queues)
        yield from _spending_metrics(self._today)
        yield from _summary_metrics([one for one in self._work if one.kind == "summary"])
        yield from _delivery_metrics([one for one in self._work if one.kind == "delivery"])
        yield _retention_metric([one for one in self._work if one.kind == "retention"])


def _job_metrics(queues: Sequence[Queue]) -> Iterator[Metric]:
    states = GaugeMetricFamily("palimpsest_jobs", "Jobs of the workers' queue", labels=["kind", "state"])
    for one in queues:
        _fill(states, {(one.kind, state): getattr(one, state) for state in ("waiting", "running", "dead")})
    yield states
    text = "Waiting jobs that were due more than a minute ago"
    overdue = GaugeMetricFamily("palimpsest_jobs_overdue", text, labels=["kind"])
    yield _fill(overdue, {(one.kind,): one.overdue for one in queues})
    text = "Seconds for which the longest-waiting job has been due"
    oldest = GaugeMetricFamily("palimpsest_jobs_overdue_seconds", text, labels=["kind"])
    yield _fill(oldest, {(one.kind,): one.overdue_seconds for one in queues})


def _spending_metrics(today: TokensToday) -> Iterator[Metric]:
    text = "Tokens used by summarizers' models today (UTC), by all workers"
    tokens = GaugeMetricFamily("palimpsest_summarizer_tokens_today", text, labels=["state"])
    yield _fill(tokens, {("spent",): today.spent, ("reserved",): today.reserved})
    text = "Requests to summarizers' models refused today (UTC), because a tenant had used up its tokens"
    yield GaugeMetricFamily("palimpsest_summarizer_requests_refused_today", text, value=today.refused)


def _summary_metrics(work: Sequence[WorkCount]) -> Iterator[Metric]:
    made = CounterMetricFamily(
        "palimpsest_summaries", "Summaries by summarizer and outcome", labels=["summarizer", "outcome"]
    )
    yield _fill(made, _sums(work, lambda one: (one.maker, one.outcome), lambda one: one.number))
    tokens = CounterMetricFamily(
        "palimpsest_summarizer_tokens", "Tokens used by summarizers' models", labels=["summarizer", "kind"]
    )
    _fill(tokens, _sums(work, lambda one: (one.maker, "input"), lambda one: one.input_tokens))
    yield _fill(tokens, _sums(work, lambda one: (one.maker, "output"), lambda one: one.output_tokens))
    text = "Time at which the newest summary was written"
    newest = GaugeMetricFamily("palimpsest_summary_newest_timestamp_seconds", text, labels=["summarizer"])
    text = "Time from when a session's summaries were due until each was live"
    lag = HistogramMetricFamily("palimpsest_summary_lag_seconds", text, labels=["summarizer"])
    written = [one for one in work if one.outcome in WRITTEN]
    for maker in dict.fromkeys(one.maker for one in written):
        own = [one for one in written if one.maker == maker]
        newest.add_metric([maker], to_seconds(max(one.newest_at for one in own)))
        lag.add_metric([maker], _buckets(own), sum(one.seconds for one in own))
    yield newest
    yield lag


def _delivery_metrics(work: Sequence[WorkCount]) -> Iterator[Metric]:
    text = "Attempts to deliver a webhook, by outcome"
    attempts = CounterMetricFamily("palimpsest_webhook_attempts", text, labels=["outcome"])
    known: _Samples = {(name,): 0 for name in ("delivered", "retried", "failed")}  # so that the first is an increase
    yield _fill(attempts, known | _sums(work, lambda one: (one.outcome,), lambda one: one.number))
    text = "Time from an event to its delivery to a webhook"
    lag = HistogramMetricFamily("palimpsest_webhook_lag_seconds", text, labels=[])
    delivered = [one for one in work if one.outcome == "delivered"]
    lag.add_metric([], _buckets(delivered), sum(one.seconds for one in delivered))
    yield lag


def _retention_metric(work: Sequence[WorkCount]) -> Metric:
    text = "Sessions (rules age, idle, erasure) or records (other rules) that were erased"
    erased = CounterMetricFamily("palimpsest_retention_erased", text, labels=["rule"])
    known: _Samples = {
        (rule,): 0 for rule in ("age", "idle", "erasure", "calls", "compactions", "changes", "deliveries")
    }
    return _fill(erased, known | _sums(work, lambda one: (one.maker,), lambda one: one.number))


def _fill(family: _Family, samples: _Samples) -> _Family:
    """Add samples, by the values of their labels, and return the family."""
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


def _sums(
    work: Sequence[WorkCount], labels: Callable[[WorkCount], tuple[str, ...]], figure: Callable[[WorkCount], int]
) -> _Samples:
    sums: _Samples = {}
    for one in work:
        sums[labels(one)] = sums.get(labels(one), 0) + figure(one)
    return sums


def _buckets(work: Sequence[WorkCount]) -> list[tuple[str, float]]:
    """Return a histogram's cumulative buckets."""
    counts = {bound: float(sum(one.number for one in work if one.bound <= bound)) for bound in BOUNDS}
    return [("+Inf" if math.isinf(bound) else str(bound), count) for bound, count in counts.items()]
