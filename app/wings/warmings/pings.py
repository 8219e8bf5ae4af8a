"""The sending of pings: one series for each session whose client has called last through this process.

A ping is a client's last request sent again without an answer, so that the provider keeps its cache. A client's key is
in memory for as long as its series lasts, and nowhere else. Prices are in uncached input tokens.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from uuid import UUID

import structlog

from app.core import replace
from app.core.errors import ContextError
from app.core.log.events import Json
from app.core.tokens.models import ANTHROPIC, CacheProfile
from app.core.wire.bodies import Body, object_or_none, parse
from app.core.wire.replies import AnthropicReply, mapping
from app.runtime.wing import AcceptedCall
from app.store import audit
from app.store.ids import new_id
from app.wings.warmings.routes import Warmings, WarmingUsage, warming_bill, warming_sums

if TYPE_CHECKING:
    from app.runtime.wiring import Services

PING_SECONDS: Final = 60.0
"""The time after which a ping without an answer has failed."""
BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of all requests that a process holds; beyond that, the series that has been there longest ends."""
REFUSED_REMEMBERED: Final = 1_000
"""Number of sessions whose ping was refused that a process does not ping again."""
_NOT_REPEATED: Final = {b"traceparent", b"tracestate", b"baggage", b"idempotency-key"}
"""Header fields that belong to one request alone."""


LEAD_SHARE: Final = 0.1
LEAD_SECONDS_MAX: Final = 60.0
"""A ping is sent before the cache expires, by this share of its lifetime and at most by these seconds."""

StopReason = Literal["gone", "spent", "not-worthwhile", "expired", "continued", "failed", "refused", "missed"]


class PingsEnded(Exception):
    """The end of a series of pings; the message is a `StopReason`."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class PingRules:
    """The operator's limits. `short`: entries that live for minutes are kept, too. `idle_seconds` is the time after the
    client's last call that a cache is kept, `spend_tokens` the price of all pings of a session."""

    short: bool
    idle_seconds: float
    spend_tokens: int


@dataclass(frozen=True, slots=True)
class KeptCache:
    """The provider's cache of a client's last call, with the times of that call and of the last use, in epoch seconds.

    `price` is that of the pings since that call.
    """

    tokens: int
    profile: CacheProfile
    called_at: float
    used_at: float
    price: float = 0.0

    @property
    def expires_at(self) -> float:
        """The time at which the provider drops it."""
        return self.used_at + self.profile.ttl_seconds

    @property
    def ping_price(self) -> float:
        """The price of reading it once."""
        return self.tokens * self.profile.read_price

    def after_ping(self, at: float, price: float) -> "KeptCache":
        """Return the cache after a ping that was sent `at` a time for a price."""
        return replace(self, used_at=at, price=self.price + price)


def can_keep(profile: CacheProfile, tokens: int, rules: PingRules) -> bool:
    """Return whether pings may keep a cache of `tokens`."""
    return tokens > 0 and (rules.short or profile.ttl_seconds > ANTHROPIC.ttl_seconds)


def can_ping(call: Mapping[str, Json]) -> bool:
    """Return whether Anthropic takes a call without an answer, and its cache is then the same.

    It refuses thinking with a budget, forced tools and structured outputs, and a ping that leaves them out has a cache
    of its own. A ping of a thread would add to it.
    """
    return (
        mapping(call.get("thinking")).get("type") != "enabled"
        and mapping(call.get("tool_choice")).get("type") not in ("any", "tool")
        and mapping(call.get("output_config")).get("format") is None
        and call.get("output_format") is None
        and call.get("thread") is None
    )


def ping_body(body: Body) -> bytes:
    """Return the body of a ping for that of a call."""
    return body.with_members({"max_tokens": "0"}, without=frozenset({"stream"})).encode()


def next_ping(cache: KeptCache, rules: PingRules, spent: float) -> float:
    """Return the time of the next ping, in epoch seconds; `spent` is the price of all pings of the session so far.

    Raises PingsEnded if the client will have been gone for too long, if the session's limit is reached, or if the pings
    since the last call would cost more than the next call saves by them.
    """
    lead = min(LEAD_SECONDS_MAX, LEAD_SHARE * cache.profile.ttl_seconds)
    at = cache.expires_at - lead
    if at > cache.called_at + rules.idle_seconds:
        raise PingsEnded("gone")
    if spent + cache.ping_price > rules.spend_tokens:
        raise PingsEnded("spent")
    if cache.price + cache.ping_price > cache.tokens * (cache.profile.write_price - cache.profile.read_price):
        raise PingsEnded("not-worthwhile")
    return at


class PingClock(NamedTuple):
    """The time in epoch seconds, and a wait for a number of seconds."""

    now: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]]


CLOCK: Final = PingClock(time.time, asyncio.sleep)


@dataclass(slots=True, eq=False)
class _Series:
    """The pings of a request. While one `is_sending`, its task is not cancelled, so that its cost is recorded."""

    call: AcceptedCall
    task: asyncio.Task[None] | None = None
    is_sending: bool = False


class Pings:
    """Keeps the caches of clients that are idle, within the operator's rules.

    `on_ping` gets the outcome of each ping (`sent` or `failed`) and its price.
    """

    def __init__(
        self, kernel: "Services", warmings: Warmings, rules: PingRules, clock: PingClock | None = None
    ) -> None:
        self._kernel = kernel
        self._warmings = warmings
        self._rules = rules
        self._clock = clock or CLOCK
        self._on_ping = kernel.observers.gateway_ping
        self._series: OrderedDict[tuple[UUID, str], _Series] = OrderedDict()
        self._bytes = 0
        self._refused: deque[tuple[UUID, str]] = deque(maxlen=REFUSED_REMEMBERED)
        kernel.forwarded_calls.on_accepted = self.hold

    def hold(self, call: AcceptedCall, seconds_ago: float) -> None:
        """Begin a session's series with a call that the provider accepted, sent some seconds ago.

        A request too small for a cache changes nothing, since it is a call in addition to the conversation.
        """
        if call.format != "anthropic" or not can_keep(call.cache, call.cached_tokens, self._rules):
            return
        self._end(call.key)
        if call.key in self._refused or not can_ping(call.request):
            return
        at = self._clock.now() - seconds_ago
        fields = tuple(one for one in call.fields if one[0].lower() not in _NOT_REPEATED)
        series = self._series[call.key] = _Series(replace(call, request={}, fields=fields))
        series.task = asyncio.create_task(self._keep(series, KeptCache(call.cached_tokens, call.cache, at, at)))
        self._bytes += len(call.body)
        while self._bytes > BYTES_MAX:
            self._end(next(iter(self._series)))

    async def aclose(self) -> None:
        """End all series; a ping that is being sent is given up."""
        tasks = [series.task for series in self._series.values() if series.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, session: tuple[UUID, str]) -> None:
        """End a session's series, if there is one."""
        series = self._series.get(session)
        if series is None:
            return
        self._forget(series)
        if series.task is not None and not series.is_sending:
            series.task.cancel()

    def _forget(self, series: _Series) -> None:
        del self._series[series.call.key]
        self._bytes -= len(series.call.body)

    def _is_current(self, series: _Series) -> bool:
        return self._series.get(series.call.key) is series

    async def _keep(self, series: _Series, cache: KeptCache) -> None:
        """Send pings until the series ends."""
        log, call = structlog.get_logger(), series.call
        try:
            while self._is_current(series):
                spent = await warming_sums(self._kernel.database, *call.key)
                at = next_ping(cache, self._rules, warming_bill(spent, cache.profile).billed)
                await self._clock.sleep(max(0.0, at - self._clock.now()))
                series.is_sending = True
                cache = await self._ping(call, cache)
                series.is_sending = False
        except PingsEnded as why:
            log.info("pings end", session=call.session, reason=str(why))
        except ContextError as error:
            log.warning("pings end", session=call.session, reason=type(error).__name__)
        except Exception as error:
            log.error("gateway", session=call.session, exc_info=error)
        finally:
            if self._is_current(series):
                self._forget(series)

    async def _ping(self, call: AcceptedCall, cache: KeptCache) -> KeptCache:
        """Send a ping, record it, and return the cache after it. Raises PingsEnded or ContextError.

        The process may have been suspended, or another one may have served the client's next call.
        """
        at = self._clock.now()
        if at >= cache.expires_at:
            raise PingsEnded("expired")
        if not await audit.is_newest(self._kernel.database, call.tenant_id, call.line, call.call_id):
            raise PingsEnded("continued")
        try:
            report = await self._send(call)
        except PingsEnded:
            self._on_ping("failed", 0.0)
            await self._record(call, None)
            raise
        price = await self._record(call, report)
        self._on_ping("sent", price)
        if not report.cache_read_tokens:
            raise PingsEnded("missed")
        return cache.after_ping(at, price)

    async def _record(self, call: AcceptedCall, report: WarmingUsage | None) -> float:
        bill = await self._warmings.record(call.tenant_id, call.line, call.call_id, new_id(), report)
        return bill.billed

    async def _send(self, call: AcceptedCall) -> WarmingUsage:
        """Send a ping and return its usage. Raises PingsEnded after any error."""
        body = await asyncio.to_thread(lambda: ping_body(parse(call.body)))
        answer = None
        with suppress(TimeoutError):
            async with asyncio.timeout(PING_SECONDS):
                answer = await call.send(call.fields, body)
        status, text = answer or (None, b"")
        value = object_or_none(text) if status is not None and status < 400 else None
        usage = None if value is None else AnthropicReply().read(value).usage
        if usage is not None:
            return WarmingUsage(
                usage.get("input_tokens"), usage.get("cache_read_tokens"), usage.get("cache_write_tokens")
            )
        # The text of an answer may quote the key.
        structlog.get_logger().warning("a ping failed", session=call.session, status=status)
        if status is not None and status < 500 and status != 429:
            self._refused.append(call.key)
            raise PingsEnded("refused")
        raise PingsEnded("failed")
