"""The sending of pings: one series for each session whose client has called last through this process.

A client's key is in memory for as long as its series lasts, and nowhere else.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import structlog

from app.core.errors import ContextError
from app.core.tokens.models import KeptCache, PingRules, PingsEnded, can_keep, can_ping, next_ping, ping_body
from app.core.wire.bodies import JSON_BYTES_MAX, object_or_none, parse
from app.core.wire.replies import AnthropicReply
from app.resources.feedback.warmings import warming_bill
from app.store import audit, reports
from app.store.ids import new_id, session_key
from app.store.reports import WarmingUsage
from app.store.spans import MAIN
from app.wings.gateway.upstream import Upstream, UpstreamError, raw_pieces

if TYPE_CHECKING:
    from app.runtime.wiring import Services
    from app.wings.gateway.service import PreparedCall

PING_SECONDS: Final = 60.0
"""The time after which a ping without an answer has failed."""
BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of all requests that a process holds; beyond that, the series that has been there longest ends."""
REFUSED_REMEMBERED: Final = 1_000
"""Number of sessions whose ping was refused that a process does not ping again."""
_NOT_REPEATED: Final = {b"traceparent", b"tracestate", b"baggage", b"idempotency-key"}
"""Header fields that belong to one request alone."""


class PingClock(NamedTuple):
    """The time in epoch seconds, and a wait for a number of seconds."""

    now: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]]


CLOCK: Final = PingClock(time.time, asyncio.sleep)


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request that was sent for a client, and the call that it was for."""

    call: "PreparedCall"
    upstream: Upstream
    target: str
    fields: Sequence[tuple[bytes, bytes]] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def session(self) -> tuple[UUID, str]:
        """The tenant and the name of its session."""
        return self.call.tenant_id, self.call.session


@dataclass(slots=True, eq=False)
class _Series:
    """The pings of a request. While one `is_sending`, its task is not cancelled, so that its cost is recorded."""

    held: HeldRequest
    task: asyncio.Task[None] | None = None
    is_sending: bool = False


class Pings:
    """Keeps the caches of clients that are idle, within the operator's rules.

    `on_ping` gets the outcome of each ping (`sent` or `failed`) and its price.
    """

    def __init__(self, kernel: "Services", rules: PingRules, clock: PingClock | None = None) -> None:
        self._kernel = kernel
        self._rules = rules
        self._clock = clock or CLOCK
        self._on_ping = kernel.observers.gateway_ping
        self._series: OrderedDict[tuple[UUID, str], _Series] = OrderedDict()
        self._bytes = 0
        self._refused: deque[tuple[UUID, str]] = deque(maxlen=REFUSED_REMEMBERED)

    def hold(self, sent: HeldRequest, seconds_ago: float) -> None:
        """Begin a session's series with a request that the provider accepted, sent some seconds ago.

        A request too small for a cache changes nothing, since it is a call in addition to the conversation.
        """
        call = sent.call
        if call.conversation.format != "anthropic" or not can_keep(call.cache, call.cached_tokens, self._rules):
            return
        self._end(sent.session)
        if sent.session in self._refused or not can_ping(call.conversation.body.value):
            return
        at = self._clock.now() - seconds_ago
        fields = tuple(one for one in sent.fields if one[0].lower() not in _NOT_REPEATED)
        held = HeldRequest(call.without_bodies(), sent.upstream, sent.target, fields, sent.body)
        series = self._series[held.session] = _Series(held)
        series.task = asyncio.create_task(self._keep(series, KeptCache(call.cached_tokens, call.cache, at, at)))
        self._bytes += len(held.body)
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
        del self._series[series.held.session]
        self._bytes -= len(series.held.body)

    def _is_current(self, series: _Series) -> bool:
        return self._series.get(series.held.session) is series

    async def _keep(self, series: _Series, cache: KeptCache) -> None:
        """Send pings until the series ends."""
        log, held = structlog.get_logger(), series.held
        try:
            while self._is_current(series):
                spent = await reports.warming_sums(self._kernel.database, *held.session)
                at = next_ping(cache, self._rules, warming_bill(spent, cache.profile).billed)
                await self._clock.sleep(max(0.0, at - self._clock.now()))
                series.is_sending = True
                cache = await self._ping(held, cache)
                series.is_sending = False
        except PingsEnded as why:
            log.info("pings end", session=held.call.session, reason=str(why))
        except ContextError as error:
            log.warning("pings end", session=held.call.session, reason=type(error).__name__)
        except Exception as error:
            log.error("gateway", session=held.call.session, exc_info=error)
        finally:
            if self._is_current(series):
                self._forget(series)

    async def _ping(self, held: HeldRequest, cache: KeptCache) -> KeptCache:
        """Send a ping, record it, and return the cache after it. Raises PingsEnded or ContextError.

        The process may have been suspended, or another one may have served the client's next call.
        """
        call, at = held.call, self._clock.now()
        if at >= cache.expires_at:
            raise PingsEnded("expired")
        if not await is_newest(self._kernel, call):
            raise PingsEnded("continued")
        try:
            report = await self._send(held)
        except PingsEnded:
            self._on_ping("failed", 0.0)
            await self._record(held, None)
            raise
        price = await self._record(held, report)
        self._on_ping("sent", price)
        if not report.cache_read_tokens:
            raise PingsEnded("missed")
        return cache.after_ping(at, price)

    async def _record(self, held: HeldRequest, report: WarmingUsage | None) -> float:
        call = held.call
        bill = await self._kernel.warmings.record(call.tenant_id, call.line, call.call_id, new_id(), report)
        return bill.billed

    async def _send(self, held: HeldRequest) -> WarmingUsage:
        """Send a ping and return its usage. Raises PingsEnded after any error."""
        log, status = structlog.get_logger(), None
        body = await asyncio.to_thread(lambda: ping_body(parse(held.body)))
        taken = bytearray()
        try:
            async with (
                asyncio.timeout(PING_SECONDS),
                held.upstream.request("POST", held.target, held.fields, body) as answer,
            ):
                status = answer.status_code
                async for piece in raw_pieces(answer):
                    taken += piece
                    if len(taken) > JSON_BYTES_MAX:
                        break
        except (UpstreamError, TimeoutError):
            status = None
        value = object_or_none(bytes(taken)) if status is not None and status < 400 else None
        usage = None if value is None else AnthropicReply().read(value).usage
        if usage is not None:
            return WarmingUsage(
                usage.get("input_tokens"), usage.get("cache_read_tokens"), usage.get("cache_write_tokens")
            )
        log.warning("a ping failed", session=held.call.session, status=status)  # its text may quote the key
        if status is not None and status < 500 and status != 429:
            self._refused.append(held.session)
            raise PingsEnded("refused")
        raise PingsEnded("failed")


async def is_newest(kernel: "Services", call: "PreparedCall") -> bool:
    """Return whether no call was made after this one on its line, through whichever process."""
    session_id = session_key(call.tenant_id, call.line)
    newest = await audit.page(kernel.database, [session_id], call.tenant_id, view=MAIN, before=None, limit=1)
    return [one.call_id for _, one in newest] == [call.call_id]
