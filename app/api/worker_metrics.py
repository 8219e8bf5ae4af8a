"""Metrics about all workers, read from the database, since workers listen on no port."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.core.lexicon.times import to_seconds
from app.store import jobs, spending, work_counts
from app.store.engine import Database
from app.store.jobs import Queue
from app.store.spending import Today
from app.store.work_counts import BOUNDS, WorkCount

WRITTEN: Final = frozenset({"live", "degraded"})
"""The outcomes of summaries that contexts may show."""


@dataclass(frozen=True, slots=True)
class WorkersState:
    """The state of the workers: the queue, today's token spending, and the counts of work done so far."""

    queues: Sequence[Queue]
    today: Today
    work: Sequence[WorkCount]


async def read_workers_state(database: Database) -> WorkersState:
    """Read the state of the workers. Raises StoreUnavailable."""
    return WorkersState(
        await jobs.queues(database), await spending.today(database), await work_counts.all_counts(database)
    )


class WorkersCollector(Collector):
    """The metrics of a WorkersState."""

    def __init__(self, state: WorkersState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """Return the metric families."""
        summaries = [one for one in self._state.work if one.kind == "summary"]
        deliveries = [one for one in self._state.work if one.kind == "delivery"]
        erased = [one for one in self._state.work if one.kind == "retention"]
        return (
            *_job_metrics(self._state.queues),
            *_spending_metrics(self._state.today),
            *_summary_metrics(summaries),
            *_delivery_metrics(deliveries),
            *_retention_metrics(erased),
        )


def _job_metrics(queues: Sequence[Queue]) -> Iterable[Metric]:
    states = GaugeMetricFamily("palimpsest_jobs", "Jobs of the workers' queue", labels=["kind", "state"])
    overdue = GaugeMetricFamily(
        "palimpsest_jobs_overdue", "Waiting jobs that were due more than a minute ago", labels=["kind"]
    )
    oldest = GaugeMetricFamily(
        "palimpsest_jobs_overdue_seconds",
        "Seconds for which the longest-waiting job has been due",
        labels=["kind"],
    )
    for queue in queues:
        states.add_metric([queue.kind, "waiting"], queue.waiting)
        states.add_metric([queue.kind, "running"], queue.running)
        states.add_metric([queue.kind, "dead"], queue.dead)
        overdue.add_metric([queue.kind], queue.overdue)
        oldest.add_metric([queue.kind], queue.overdue_seconds)
    return states, overdue, oldest


def _spending_metrics(today: Today) -> Iterable[Metric]:
    tokens = GaugeMetricFamily(
        "palimpsest_summarizer_tokens_today",
        "Tokens used by summarizers' models today (UTC), by all workers",
        labels=["state"],
    )
    tokens.add_metric(["spent"], today.spent)
    tokens.add_metric(["reserved"], today.reserved)
    refused = GaugeMetricFamily(
        "palimpsest_summarizer_requests_refused_today",
        "Requests to summarizers' models refused today (UTC), because a tenant had used up its tokens",
        value=today.refused,
    )
    return tokens, refused


def _summary_metrics(work: Sequence[WorkCount]) -> Iterable[Metric]:
    made = CounterMetricFamily(
        "palimpsest_summaries", "Summaries by summarizer and outcome", labels=["summarizer", "outcome"]
    )
    for (maker, outcome), number in _sums(work, lambda one: (one.maker, one.outcome), lambda one: one.number).items():
        made.add_metric([maker, outcome], number)
    tokens = CounterMetricFamily(
        "palimpsest_summarizer_tokens", "Tokens used by summarizers' models", labels=["summarizer", "kind"]
    )
    for maker, spent in _sums(work, lambda one: one.maker, lambda one: one.input_tokens).items():
        tokens.add_metric([maker, "input"], spent)
    for maker, spent in _sums(work, lambda one: one.maker, lambda one: one.output_tokens).items():
        tokens.add_metric([maker, "output"], spent)
    written = [one for one in work if one.outcome in WRITTEN]
    newest = GaugeMetricFamily(
        "palimpsest_summary_newest_timestamp_seconds",
        "Time at which the newest summary was written",
        labels=["summarizer"],
    )
    lag = HistogramMetricFamily(
        "palimpsest_summary_lag_seconds",
        "Time from when a session's summaries were due until each was live",
        labels=["summarizer"],
    )
    for maker in dict.fromkeys(one.maker for one in written):
        own = [one for one in written if one.maker == maker]
        newest.add_metric([maker], to_seconds(max(one.newest_at for one in own)))
        lag.add_metric([maker], _buckets(own), sum(one.seconds for one in own))
    return made, tokens, newest, lag


def _delivery_metrics(work: Sequence[WorkCount]) -> Iterable[Metric]:
    attempts = CounterMetricFamily(
        "palimpsest_webhook_attempts", "Attempts to deliver a webhook, by outcome", labels=["outcome"]
    )
    known = dict.fromkeys(("delivered", "retried", "failed"), 0)  # present from 0, so that the first is an increase
    for outcome, number in (known | _sums(work, lambda one: one.outcome, lambda one: one.number)).items():
        attempts.add_metric([outcome], number)
    lag = HistogramMetricFamily(
        "palimpsest_webhook_lag_seconds", "Time from an event to its delivery to a webhook", labels=[]
    )
    delivered = [one for one in work if one.outcome == "delivered"]
    lag.add_metric([], _buckets(delivered), sum(one.seconds for one in delivered))
    return attempts, lag


def _retention_metrics(work: Sequence[WorkCount]) -> Iterable[Metric]:
    erased = CounterMetricFamily(
        "palimpsest_retention_erased",
        "Sessions (rules age, idle, erasure) or records (other rules) that were erased",
        labels=["rule"],
    )
    known = dict.fromkeys(("age", "idle", "erasure", "calls", "compactions", "changes", "deliveries"), 0)
    for rule, number in (known | _sums(work, lambda one: one.maker, lambda one: one.number)).items():
        erased.add_metric([rule], number)
    return (erased,)


Key = TypeVar("Key")


def _sums(
    work: Sequence[WorkCount], key: Callable[[WorkCount], Key], figure: Callable[[WorkCount], int]
) -> dict[Key, int]:
    sums: dict[Key, int] = {}
    for one in work:
        sums[key(one)] = sums.get(key(one), 0) + figure(one)
    return sums


def _buckets(work: Sequence[WorkCount]) -> list[tuple[str, float]]:
    """Return a histogram's cumulative buckets."""
    return [(_bound(bound), sum(one.number for one in work if one.bound <= bound)) for bound in BOUNDS]


def _bound(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else str(bound)
