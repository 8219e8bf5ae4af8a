"""The moments of recorded calls, loaded from the store."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from app.core.audit.declined import PlannedMoment
from app.core.audit.moment import RecordedMoment, planned_moment
from app.core.errors import ContextError
from app.core.memory.cover import cover_id
from app.core.plan.state.frontier import START
from app.core.policy.policy import Policy
from app.core.render.formats import FORMATS
from app.core.tokens.models import CacheProfile, cache_profile
from app.resources.contexts.recordings import Reproduced
from app.resources.counting import Counting
from app.resources.policies.service import Policies
from app.store import audit, sessions
from app.store.audit import CallRow, StoredEpoch
from app.store.engine import Database
from app.store.ids import SessionRef, session_ref

_DECIDED: Final = """
SELECT DISTINCT ON (seq, action IN ('pin', 'unpin')) seq, action FROM visibility
WHERE session_id = :session_id AND created_at <= :before
ORDER BY seq, action IN ('pin', 'unpin'), decision DESC, action
"""
_FOLDABLE: Final = """
SELECT EXISTS (SELECT FROM summaries WHERE session_id = :session_id AND cover_id = :cover_id AND created_at <= :before
               AND to_seq <= :head AND to_seq > :folded_to) AS foldable
"""


@dataclass(eq=False)
class Moments:
    """Loads the moments of recorded calls. `caches` are the profiles of providers' caches by model."""

    _database: Database
    _policies: Policies
    _counting: Counting
    _caches: Mapping[str, CacheProfile]

    async def of_call(self, tenant_id: UUID, external_id: str, done: Reproduced) -> PlannedMoment | None:
        """Return the moment of a call; None if it is unknown: of an early record, a retry, or a call with erased
        events."""
        call, ref = done.call, session_ref(tenant_id, external_id)
        if call.manifest.moment is None or call.retry_of is not None or not done.is_exact:
            return None
        policy = await self._policies.get(tenant_id, call.policy)
        session = await sessions.get(self._database, tenant_id, external_id)
        own = self._counting.session_counter(session.estimator, session.model)
        counter = self._counting.counter(call.model, policy)
        if call.manifest.estimator not in (counter.estimator.name, own.estimator.name):
            return None  # the estimator of the call is not known here any more
        shown = done.replayed.context
        events = (*(item.event for item in shown.items), *shown.prefix)
        if counter != own:
            events = await self._counting.recount(events, counter)
        facts = await self._facts(ref, call, done.epoch, policy)
        by_seq = {event.seq: event for event in events}
        derive = partial(planned_moment, done.replayed, by_seq, done.epoch.frontier, call, facts, counter)
        try:
            return await asyncio.to_thread(derive)
        except ContextError:
            return None  # the server's settings no longer allow such a budget

    async def _facts(self, ref: SessionRef, call: CallRow, epoch: StoredEpoch, policy: Policy) -> RecordedMoment:
        """Return the facts of a call; it opened its epoch if both were stored at the same time."""
        opened, before, state = epoch.created_at == call.created_at, START, epoch.frontier
        if opened:
            place = (epoch.head, epoch.epoch)
            found = await audit.epochs_before(self._database, ref.session_id, call.view, place, 1)
            before = found[0].frontier if found else START
        decided = await self._database.fetch(_DECIDED, session_id=ref.session_id, before=call.created_at)
        row = await self._database.fetchrow(
            _FOLDABLE,
            session_id=ref.session_id,
            cover_id=cover_id(ref.session_id, policy.shows),
            before=call.created_at,
            head=call.head,
            folded_to=state.folded_to,
        )
        return RecordedMoment(
            policy=policy,
            cache=cache_profile(call.model, policy.cache, self._caches, FORMATS[call.format].cache),
            cause=epoch.cause if opened else None,
            before=before if opened else None,
            foldable=bool(row and row["foldable"]),
            shown_again=frozenset(one["seq"] for one in decided if one["action"] == "show"),
            pins={one["seq"]: one["action"] == "pin" for one in decided if one["action"] in ("pin", "unpin")},
        )
