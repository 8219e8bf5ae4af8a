"""What the database tells of all workers and processes together, as metrics: workers listen on no port."""

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
"""The outcomes of summaries that contexts show as soon as they can."""


@dataclass(frozen=True, slots=True)
class WorkersState:
    """What was read of the database: the queue, what was spent today, and what has been done so far."""

    queues: Sequence[Queue]
    today: Today
    work: Sequence[WorkCount]


async def read(database: Database) -> WorkersState:
    """Read it. Raises StoreUnavailable."""
    return WorkersState(
        await jobs.queues(database), await spending.today(database), await work_counts.all_counts(database)
    )


class WorkersCollector(Collector):
    """The metrics of what was read."""

    def __init__(self, state: WorkersState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """One family after the other."""
        summaries = [one for one in self._state.work if one.kind == "summary"]
        deliveries = [one for one in self._state.work if one.kind == "delivery"]
        erased = [one for one in self._state.work if one.kind == "retention"]
        return (
            *_jobs(self._state.queues),
            *_spent(self._state.today),
            *_summaries(summaries),
            *_sent(deliveries),
            *_erased(erased),
        )


def _jobs(queues: Sequence[Queue]) -> Iterable[Metric]:
    states = GaugeMetricFamily("palimpsest_jobs", "Jobs of the workers' queue", labels=["kind", "state"])
    overdue = GaugeMetricFamily(
        "palimpsest_jobs_overdue", "Of those that wait, jobs that were due more than a minute ago", labels=["kind"]
    )
    oldest = GaugeMetricFamily(
        "palimpsest_jobs_overdue_seconds",
        "How long the job that has waited longest could have been running",
        labels=["kind"],
    )
    for queue in queues:
        states.add_metric([queue.kind, "waiting"], queue.waiting)
        states.add_metric([queue.kind, "running"], queue.running)
        states.add_metric([queue.kind, "dead"], queue.dead)
        overdue.add_metric([queue.kind], queue.overdue)
        oldest.add_metric([queue.kind], queue.overdue_seconds)
    return states, overdue, oldest


def _spent(today: Today) -> Iterable[Metric]:
    tokens = GaugeMetricFamily(
        "palimpsest_summarizer_tokens_today",
        "Tokens of summarizers' models on this day (UTC), by all workers",
        labels=["state"],
    )
    tokens.add_metric(["spent"], today.spent)
    tokens.add_metric(["reserved"], today.reserved)
    refused = GaugeMetricFamily(
        "palimpsest_summarizer_requests_refused_today",
        "Requests to summarizers' models that were not made on this day (UTC), as a tenant had spent what it may",
        value=today.refused,
    )
    return tokens, refused


def _summaries(work: Sequence[WorkCount]) -> Iterable[Metric]:
    made = CounterMetricFamily(
        "palimpsest_summaries", "Summaries by who wrote them and what came of them", labels=["summarizer", "outcome"]
    )
    for (maker, outcome), number in _sums(work, lambda one: (one.maker, one.outcome), lambda one: one.number).items():
        made.add_metric([maker, outcome], number)
    tokens = CounterMetricFamily(
        "palimpsest_summarizer_tokens", "Tokens of summarizers' models", labels=["summarizer", "kind"]
    )
    for maker, spent in _sums(work, lambda one: one.maker, lambda one: one.input_tokens).items():
        tokens.add_metric([maker, "input"], spent)
    for maker, spent in _sums(work, lambda one: one.maker, lambda one: one.output_tokens).items():
        tokens.add_metric([maker, "output"], spent)
    written = [one for one in work if one.outcome in WRITTEN]
    newest = GaugeMetricFamily(
        "palimpsest_summary_newest_timestamp_seconds", "When the newest summary was written", labels=["summarizer"]
    )
    lag = HistogramMetricFamily(
        "palimpsest_summary_lag_seconds",
        "From when a session's summaries were due until each was live",
        labels=["summarizer"],
    )
    for maker in dict.fromkeys(one.maker for one in written):
        own = [one for one in written if one.maker == maker]
        newest.add_metric([maker], to_seconds(max(one.newest_at for one in own)))
        lag.add_metric([maker], _buckets(own), sum(one.seconds for one in own))
    return made, tokens, newest, lag


def _sent(work: Sequence[WorkCount]) -> Iterable[Metric]:
    attempts = CounterMetricFamily(
        "palimpsest_webhook_attempts", "Attempts to deliver a webhook, by what came of them", labels=["outcome"]
    )
    known = dict.fromkeys(("delivered", "retried", "failed"), 0)  # from the start, so that the first one is an increase
    for outcome, number in (known | _sums(work, lambda one: one.outcome, lambda one: one.number)).items():
        attempts.add_metric([outcome], number)
    lag = HistogramMetricFamily(
        "palimpsest_webhook_lag_seconds", "From what a webhook tells of until it was delivered", labels=[]
    )
    delivered = [one for one in work if one.outcome == "delivered"]
    lag.add_metric([], _buckets(delivered), sum(one.seconds for one in delivered))
    return attempts, lag


def _erased(work: Sequence[WorkCount]) -> Iterable[Metric]:
    erased = CounterMetricFamily(
        "palimpsest_retention_erased",
        "What a tenant's rules or erasures had erased: sessions (age, idle, erasure), else records",
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
    """A histogram's buckets, each with all that were no later."""
    return [(_bound(bound), sum(one.number for one in work if one.bound <= bound)) for bound in BOUNDS]


def _bound(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else str(bound)
