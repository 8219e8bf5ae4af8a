"""Proof that a view accounts for every event of a session exactly once."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from app.core.errors import NotFound
from app.core.log.event import Event
from app.core.log.events import BOOKKEEPING, Json
from app.core.memory.cover import cover_id
from app.core.plan.state import drops
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.projection import project
from app.core.policy.groups import ViewFilter
from app.core.record.evictions import disposition_runs, dispositions
from app.core.tokens.counter import Counter
from app.resources.counting import Counting
from app.resources.policies.service import Policies
from app.store import audit, event_log, sessions, summaries, views
from app.store.engine import Database
from app.store.spans import MAIN
from app.store.views import CurrentEpoch


@dataclass(frozen=True, slots=True)
class CoverageProof:
    """Runs of events with one disposition each, up to the head, and the faults found; none if all are accounted for."""

    head: int
    view: str
    epoch: int
    runs: Sequence[Mapping[str, Json]]
    faults: Sequence[str]

    @property
    def ok(self) -> bool:
        """Whether every event is accounted for exactly once."""
        return not self.faults


class Coverage:
    """Proves the coverage of views."""

    def __init__(self, database: Database, counting: Counting, policies: Policies) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies

    async def prove(self, tenant_id: UUID, external_id: str, view: str) -> CoverageProof:
        """Return the proof for a view as of now. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        current = await views.current_epoch(self._database, session.session_id, view)
        if current is None and view == MAIN:
            current = CurrentEpoch(session.policy, 0, START)
        if current is None:
            raise NotFound(f"session {external_id!r} has no view {view!r} yet", session=external_id, view=view)
        policy = await self._policies.get(tenant_id, current.policy)
        events = await event_log.events_without_bodies(self._database, session.log, session.state.head)
        redacted = await audit.erased_seqs(self._database, session.session_id)
        counter = self._counting.session_counter(session.estimator, session.model)
        state, runs, faults = await asyncio.to_thread(
            _account, events, current.frontier, counter, policy.shows, redacted, session.state.head
        )
        stored = await summaries.spans(self._database, session.session_id, [UUID(f.id) for f in state.folds])
        faults += _fold_faults(state, stored)
        live = await summaries.live(self._database, session.session_id, cover_id(session.session_id, policy.shows))
        faults += _overlaps([(one.from_seq, one.to_seq) for one in live])
        return CoverageProof(session.state.head, view, current.epoch, runs, faults)


def _account(
    events: Sequence[Event],
    frontier: Frontier,
    counter: Counter,
    shows: ViewFilter,
    redacted: Collection[int],
    head: int,
) -> tuple[Frontier, list[Json], list[str]]:
    """Return the frontier with the log's newest prefix, the runs of equal disposition, and the log's faults."""
    state = drops.update_prefix(events, frontier)
    turn = events[-1].turn if events else 0
    fates = dispositions(events, project(events, state, counter, turn=turn, shows=shows), state, redacted)
    hidden = {e.seq for e in events if shows.leaves_out(e.type, e.author)}
    faults = [*_log_faults(events, head), *_unaccounted(events, fates, hidden)]
    return state, list(disposition_runs(fates, state.folds)), faults


def _log_faults(events: Sequence[Event], head: int) -> list[str]:
    seqs = [event.seq for event in events]
    return [] if seqs == list(range(1, head + 1)) else [f"the log has {len(seqs)} events up to its head {head}"]


def _fold_faults(state: Frontier, stored: Mapping[str, tuple[int, int]]) -> list[str]:
    faults, end = [], 0
    for fold in state.folds:
        if fold.from_seq != end + 1:
            faults.append(f"summary {fold.id} begins at {fold.from_seq}, the one before it ends at {end}")
        if stored.get(fold.id) != (fold.from_seq, fold.to_seq):
            faults.append(f"summary {fold.id} is not stored for {fold.from_seq} to {fold.to_seq}")
        end = fold.to_seq
    return faults


def _unaccounted(events: Sequence[Event], fates: Mapping[int, str], hidden: set[int]) -> list[str]:
    lost = [
        event.seq
        for event in events
        if fates[event.seq] == "not_rendered"
        and event.type not in BOOKKEEPING
        and event.seq not in hidden
        and event.call_seq not in hidden
    ]
    return [f"event {seq} is neither shown nor accounted for" for seq in lost]


def _overlaps(spans: Sequence[tuple[int, int]]) -> list[str]:
    return [f"live summaries overlap at {later[0]}" for earlier, later in pairwise(spans) if later[0] <= earlier[1]]
