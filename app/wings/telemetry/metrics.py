"""Observers: metrics of requests, contexts, reports and processes, served at /metrics, and traces of requests.

Names and units follow Prometheus' conventions. No label has a value that users choose: no tenant, session or model.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from structlog.contextvars import bind_contextvars

from app.core.assembly.inputs import OBSERVED_VIEW, ContextRequest
from app.core.errors import CannotFit, ContextError, StoreUnavailable
from app.core.record.evictions import newly_left_out
from app.http.errors import PROBLEM
from app.http.middleware import PROBES, Exchange
from app.resources.contexts.service import ContextAnswer
from app.resources.feedback.measurements import Verdict
from app.runtime.wing import Observers
from app.store.engine import Database
from app.tracing import TraceSpan, tracer

PULSE_SECONDS: Final = 1.0
REPLICA_STATES: Final = ("ready", "behind", "away", "other")
REPLICA_READS: Final = ("replica", "primary_asked", "primary_missing", "primary_away", "refused")

REQUESTS = Counter("palimpsest_http_requests", "Requests by route and status", ["method", "route", "status"])
SECONDS = Histogram("palimpsest_http_request_seconds", "Seconds to answer by route", ["method", "route"])
NOT_REPRODUCIBLE = Counter(
    "palimpsest_calls_not_reproducible", "Recorded calls that could not be rendered again to the same bytes"
)

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})

CONTEXTS = Counter("palimpsest_contexts", "Context requests, by outcome and format", ["outcome", "format"])
CONTEXT_TOKENS = Histogram(
    "palimpsest_context_tokens",
    "Estimated tokens of a served context",
    buckets=(1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000),
)
CONTEXT_FILL = Histogram(
    "palimpsest_context_fill_ratio",
    "Estimated tokens of a served context as a share of its target",
    buckets=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)
EPOCHS = Counter("palimpsest_epochs", "Epochs opened, by cause", ["cause"])
EVICTED_EVENTS = Counter(
    "palimpsest_evicted_events",
    "Events that a new epoch leaves out or shortens and the previous one did not",
    ["reducer"],
)
EVICTED_TOKENS = Counter("palimpsest_evicted_tokens", "Tokens that these evictions save in each context", ["reducer"])

OUTCOMES = Counter("palimpsest_outcomes", "Reported calls: answered, failed, or too long", ["outcome"])
OVERFLOWS = Counter("palimpsest_overflows", "Calls reported as too long, by the set of patterns that matched", ["set"])
RETRIES = Counter("palimpsest_overflow_retries", "Smaller contexts made for calls that were too long")
ESTIMATE_OFF = Histogram(
    "palimpsest_estimate_off_ratio",
    "Error of an estimate, as a share of the reported input tokens",
    buckets=(0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 4),
)
INPUT_TOKENS = Counter("palimpsest_cache_input_tokens", "Input tokens of calls that reported cache reads", ["profile"])
EXPECTED_TOKENS = Counter(
    "palimpsest_cache_expected_read_tokens",
    "Those input tokens that earlier calls had left in the provider's cache",
    ["profile"],
)
READ_TOKENS = Counter(
    "palimpsest_cache_read_tokens", "Those input tokens that were reported as read from the cache", ["profile"]
)

GATEWAY = Counter("palimpsest_gateway_calls", "Requests through the gateway, by mode", ["provider", "mode"])
POTENTIAL_CONTEXTS = Counter(
    "palimpsest_potential_contexts", "Contexts that were recorded in the view `~observed` and not sent"
)
POTENTIAL_TOKENS = Counter("palimpsest_potential_context_tokens", "Estimated sizes of these contexts, in tokens")
PINGS = Counter("palimpsest_gateway_pings", "Pings that the gateway sent to keep a provider's cache", ["outcome"])
PING_TOKENS = Counter(
    "palimpsest_gateway_ping_billed_tokens", "Price of these pings, as a number of uncached input tokens"
)
STREAMS = Gauge("palimpsest_streams", "Open streams", multiprocess_mode="livesum")

POOL_LIMIT = Gauge("palimpsest_pool_limit_connections", "Connections that may be open", multiprocess_mode="livesum")
POOL = Gauge("palimpsest_pool_connections", "Open connections, used and free", ["state"], multiprocess_mode="livesum")
POOL_WAITING = Gauge("palimpsest_pool_waiting", "Statements waiting for a connection", multiprocess_mode="livesum")
POOL_WAIT = Histogram(
    "palimpsest_pool_wait_seconds",
    "Time until a connection was available, if none was free",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10),
)
REPLICA = Gauge(
    "palimpsest_replica", "API processes by the state they see of the replica", ["state"], multiprocess_mode="livesum"
)
REPLICA_BEHIND = Gauge(
    "palimpsest_replica_behind_seconds", "Maximum age of the replica's data, if known", multiprocess_mode="livemax"
)
LATE_READS = Counter(
    "palimpsest_late_reads", "Reads that a replica may serve, by what served them and why", ["answered_by"]
)
LOOP_LAG = Histogram(
    "palimpsest_event_loop_lag_seconds",
    "Delay of the event loop, measured once a second",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)


for _state in REPLICA_STATES:  # present from the start, so that alert rules and panels find them
    REPLICA.labels(_state)
for _answered_by in REPLICA_READS:
    LATE_READS.labels(_answered_by)
for _ping in ("sent", "failed"):
    PINGS.labels(_ping)


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


def observe_context(request: ContextRequest, result: ContextAnswer | ContextError) -> None:
    """Count the outcome of a context request."""
    if isinstance(result, ContextError):
        _contexts(_failure(result), request.format).inc()
        return
    call, epoch = result.assembled.call, result.assembled.epoch
    if call.view == OBSERVED_VIEW:
        POTENTIAL_CONTEXTS.inc()
        POTENTIAL_TOKENS.inc(call.estimate)
        return
    outcome = "held" if result.held else "read"
    if call.retry_of is not None:
        RETRIES.inc()
        outcome = "retried"
    elif epoch is not None:
        outcome = "epoch"
    _contexts(outcome, request.format).inc()
    CONTEXT_TOKENS.observe(call.estimate)
    CONTEXT_FILL.observe(call.estimate / max(1, call.target))
    if epoch is None:
        return
    EPOCHS.labels(epoch.cause).inc()
    grown = newly_left_out(result.assembled.inputs.loaded.frontier, epoch.frontier)
    for reducer, (events, tokens) in grown.items():
        EVICTED_EVENTS.labels(reducer).inc(events)
        EVICTED_TOKENS.labels(reducer).inc(result.assembled.inputs.budget.provider_tokens(tokens))


def _failure(error: ContextError) -> str:
    if isinstance(error, CannotFit):
        return "infeasible"
    return "unavailable" if isinstance(error, StoreUnavailable) else "refused"


@lru_cache(maxsize=128)
def _contexts(outcome: str, form: str) -> Counter:
    return CONTEXTS.labels(outcome, form)


def observe_report(verdict: Verdict) -> None:
    """Count a report of a call's outcome."""
    outcome, cache = verdict.outcome, verdict.cache
    if verdict.call.view == OBSERVED_VIEW:
        return
    OUTCOMES.labels("overflow" if outcome.overflow else "answered" if outcome.error is None else "failed").inc()
    if verdict.overflow is not None:
        OVERFLOWS.labels(verdict.overflow.set).inc()
    if verdict.estimate_error is not None:
        ESTIMATE_OFF.observe(verdict.estimate_error)
    if cache is not None:
        INPUT_TOKENS.labels(cache.profile).inc(cache.input)
        EXPECTED_TOKENS.labels(cache.profile).inc(cache.expected)
        READ_TOKENS.labels(cache.profile).inc(cache.actual)


def set_pool_gauges(database: Database) -> None:
    """Set the gauges of this process's connection pool."""
    state = database.pool()
    POOL_LIMIT.set(state.limit)
    POOL.labels("used").set(state.used)
    POOL.labels("free").set(state.free)
    POOL_WAITING.set(state.waiting)


def set_replica_gauges(state: str, behind: float | None) -> None:
    """Set the gauges of the replica as this process sees it."""
    for one in REPLICA_STATES:
        REPLICA.labels(one).set(one == state)
    if behind is not None:
        REPLICA_BEHIND.set(behind)


async def measure_loop_lag(database: Database) -> None:
    """Measure this process's loop delay and set its pool gauges, once a second, endlessly.

    Any process may serve /metrics for all of them, so the gauges must be kept current.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PULSE_SECONDS
        await asyncio.sleep(PULSE_SECONDS)
        LOOP_LAG.observe(max(0.0, loop.time() - due))
        set_pool_gauges(database)


def observe_ping(outcome: str, price: float) -> None:
    """Count a ping of the gateway and its price."""
    PINGS.labels(outcome).inc()
    PING_TOKENS.inc(price)


OBSERVERS: Final = Observers(
    request=observe_request,
    context=observe_context,
    report=observe_report,
    pool_wait=POOL_WAIT.observe,
    stream=STREAMS.track_inprogress,
    gateway_call=lambda provider, mode: GATEWAY.labels(provider, mode).inc(),
    gateway_ping=observe_ping,
    replica_check=set_replica_gauges,
    replica_read=lambda answered_by: LATE_READS.labels(answered_by).inc(),
)
