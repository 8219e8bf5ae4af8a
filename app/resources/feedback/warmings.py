"""Warmings: reports of requests that kept the provider's cache of a call, and their price."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.core.assembly.inputs import OBSERVED_VIEW
from app.core.errors import NotFound, NothingToSend
from app.core.log.events import Json
from app.core.log.segments import is_line
from app.core.render.formats import FORMATS
from app.core.tokens.models import Bill, CacheProfile, cache_profile, priced
from app.resources.contexts.recordings import Recordings
from app.resources.policies.service import Policies
from app.store import audit, lines, reports, sessions
from app.store.audit import CallRow
from app.store.engine import Database
from app.store.ids import session_ref
from app.store.reports import WarmedCall, WarmingUsage

WARMED_FORMAT: Final = "anthropic"
"""Anthropic's API alone documents a request that reads the cache and asks for no answer: `max_tokens` 0."""


def warming_bill(usage: WarmingUsage, profile: CacheProfile) -> Bill:
    """Return the bill of a warming, or of the sums of several."""
    total, read, write = usage.input_tokens or 0, usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    return priced(profile, read, write, max(0, total - read - write))


def _usage(report: WarmingUsage | None, format: str) -> WarmingUsage:
    """Return the figures to store, of which the first is the whole input, for those that the provider reported."""
    if report is None:
        return WarmingUsage()
    read, write = report.cache_read_tokens or 0, report.cache_write_tokens or 0
    apart = read + write if FORMATS[format].excludes_cached_tokens else 0
    return WarmingUsage((report.input_tokens or 0) + apart, read, write)


@dataclass(frozen=True, slots=True)
class PreparedWarming:
    """The request that keeps the cache of a call, its price, and the price that the next call saves by it.

    Prices are in uncached input tokens.
    """

    call: CallRow
    request: Mapping[str, Json]
    price: float
    saves: float


@dataclass(eq=False)
class Warmings:
    """Prepares and records warmings."""

    _database: Database
    _policies: Policies
    _recordings: Recordings
    _caches: Mapping[str, CacheProfile]

    async def record(
        self, tenant_id: UUID, address: str, call_id: UUID, warming_id: UUID, report: WarmingUsage | None
    ) -> Bill:
        """Record a warming of a call, and return its bill; without a report it failed and was not billed.

        A `warming_id` is recorded once. `address` is the session's id or a line's. Raises NotFound.
        """
        name = address
        call = await reports.find_warmed_call(self._database, session_ref(tenant_id, name), call_id)
        if call is None and not is_line(address):
            name = await lines.of_call(self._database, tenant_id, address, call_id) or address
            call = await reports.find_warmed_call(self._database, session_ref(tenant_id, name), call_id)
        if call is None:
            raise NotFound(f"session {address!r} has no call {call_id}", call_id=str(call_id))
        usage = _usage(report, call.format)
        await reports.add_warming(self._database, session_ref(tenant_id, name), call_id, warming_id, usage)
        return warming_bill(usage, await self._profile(tenant_id, call))

    async def prepare(self, tenant_id: UUID, line: str, view: str) -> PreparedWarming:
        """Return the request that keeps the provider's cache of a view's last call.

        Raises NotFound, NotReproducible, or NothingToSend if there is no such request.
        """
        ref = session_ref(tenant_id, line)
        found = await audit.page(self._database, (ref.session_id,), tenant_id, view=view, before=None, limit=1)
        if not found:
            await sessions.get(self._database, tenant_id, line)
            raise NothingToSend(f"view {view!r} has no call whose cache could be kept")
        if view == OBSERVED_VIEW:
            raise NothingToSend("the last context of this view was not sent, so the provider's cache does not have it")
        done = await self._recordings.reproduce(tenant_id, line, found[0][1])
        call = done.call
        if call.format != WARMED_FORMAT:
            raise NothingToSend(f"no request in the format {call.format!r} keeps a cache without an answer")
        if not done.is_exact:
            raise NothingToSend("events of the last call were erased, so the provider's cache does not have its prefix")
        policy = await self._policies.get(tenant_id, call.policy)
        profile = cache_profile(call.model, policy.cache, self._caches, FORMATS[call.format].cache)
        tokens = call.manifest.cached_tokens
        return PreparedWarming(
            call=call,
            request=json.loads(done.replayed.request.body) | {"max_tokens": 0},
            price=tokens * profile.read_price,
            saves=tokens * max(0.0, profile.write_price - profile.read_price),
        )

    async def _profile(self, tenant_id: UUID, call: WarmedCall) -> CacheProfile:
        policy = await self._policies.get(tenant_id, (call.policy_name, call.policy_version))
        return cache_profile(call.model, policy.cache, self._caches, FORMATS[call.format].cache)
