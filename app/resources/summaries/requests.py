"""Requests for compactions, by the API and by contexts, and reads of their runs and of summaries.

Also coverage: the proof that a view accounts for every event of a session exactly once.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Final
from uuid import UUID

from app.core.assembly.assemble import Assembled, begin_plan, folds_more
from app.core.assembly.inputs import ContextInputs
from app.core.compaction.next_span import nothing_to_summarize
from app.core.errors import Conflict, NotFound
from app.core.log.event import Event
from app.core.log.events import BOOKKEEPING, Json
from app.core.memory.cover import StoredSummary, cover_id
from app.core.memory.digest.record import complete
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.projection import project
from app.core.plan.update import update_prefix
from app.core.policy.groups import ViewFilter
from app.core.record.evictions import disposition_runs, dispositions
from app.core.tokens.counter import Counter
from app.resources.policies.service import Policies
from app.resources.summaries.service import Compaction
from app.store import audit, compactions, event_log, sessions, summaries, views
from app.store.compactions import REQUESTED, CompactionRow, WaitingContext
from app.store.engine import Connection, Database
from app.store.ids import SessionRef, new_id, overflow_run
from app.store.spans import MAIN
from app.store.views import CurrentEpoch
from app.tokenizers import Counting

END_STATES: Final = ("succeeded", "skipped", "failed")
POLL_SECONDS: Final = 0.05


class SessionCompactions:
    """Requests compactions over the API, and reads their runs and summaries."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def compact(self, tenant_id: UUID, address: str, focus: str | None, wait_ms: int) -> CompactionRow:
        """Schedule a run and return it when it has ended, or after `wait_ms`. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, address)
        id = new_id()
        async with self._database.transaction() as tx:
            await compactions.schedule(tx, session.ref, id, REQUESTED, focus=focus)
        return await self.wait_for(session.session_id, id, wait_ms)

    async def wait_for(self, session_id: UUID, id: UUID, wait_ms: int) -> CompactionRow:
        """Return a run when it has ended, or its state after `wait_ms`.

        It is polled every POLL_SECONDS: a summary takes seconds, and a listening connection per request would cost
        more.
        """
        until = time.monotonic() + wait_ms / 1000
        while True:
            run = await compactions.find(self._database, session_id, id)
            if run is None:
                raise NotFound(f"there is no compaction {id}", compaction=str(id))
            left = until - time.monotonic()
            if run.state in END_STATES or left <= 0:
                return run
            await asyncio.sleep(min(POLL_SECONDS, left))

    async def run(self, tenant_id: UUID, address: str, id: UUID) -> CompactionRow:
        """Return one run. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, address)
        return await self.wait_for(session.session_id, id, 0)

    async def runs(
        self, tenant_id: UUID, address: str, *, state: str | None, after: tuple[datetime, UUID] | None, limit: int
    ) -> list[CompactionRow]:
        """Return the runs of a session, all or those in one state, newest first. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, address)
        return await compactions.page(self._database, session.session_id, state=state, after=after, limit=limit)

    async def retry(self, tenant_id: UUID, address: str, id: UUID) -> CompactionRow:
        """Schedule a failed or skipped run again and return it. Raises NotFound, or Conflict in another state."""
        session = await sessions.get(self._database, tenant_id, address)
        async with self._database.transaction() as tx:
            again = await compactions.retry(tx, session.ref, id)
        run = await self.wait_for(session.session_id, id, 0)
        if not again:
            raise Conflict(f"compaction {id} is {run.state}: only a failed or skipped one can be retried")
        return run

    async def summaries(
        self, tenant_id: UUID, address: str, *, live: bool, after: tuple[datetime, UUID] | None, limit: int
    ) -> list[StoredSummary]:
        """Return the summaries of a session without contents, in the order of their creation. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, address)
        return await summaries.page(self._database, session.session_id, live_only=live, after=after, limit=limit)

    async def summary(self, tenant_id: UUID, address: str, id: UUID) -> StoredSummary:
        """Return one summary with its contents. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, address)
        found = await summaries.stored(self._database, session.session_id, [str(id)])
        if not found:
            raise NotFound(f"session {address!r} has no summary {id}", session=address, summary=str(id))
        return replace(found[0], digest=complete(found[0].digest))


class SummaryRequests:
    """Schedules compactions for contexts, and reports their results."""

    def __init__(self, database: Database, compaction: Compaction) -> None:
        self._database = database
        self._compaction = compaction
        self._runs = SessionCompactions(database)

    async def wait(self, tenant_id: UUID, inputs: ContextInputs, wait_ms: int) -> str | None:
        """Summarize the older part of the log before a context that would be reduced, within `wait_ms`.

        If the time is up first, a summary is written without a model, which takes no longer than planning. A retry
        waits for the compaction that the report of its call scheduled. Returns why no summary was written, or None.
        """
        settings, request, budget = inputs.settings, inputs.request, inputs.budget
        if not settings.policy.summarize.enabled:
            return None
        if (await asyncio.to_thread(begin_plan, inputs)).at.moment != "pressed":
            return None
        ref, retry = SessionRef(inputs.loaded.session_id, tenant_id), request.retry
        id, reason, window = new_id(), "waited", settings.window_tokens
        if retry is not None:
            id, reason, window = overflow_run(retry.call_id), "overflow", budget.used_window
        wanted = WaitingContext(request.view, window, settings.policy_ref, tightened=retry is not None)
        async with self._database.transaction() as tx:
            await compactions.schedule(tx, ref, id, reason, context=wanted)
        run = await self._runs.wait_for(ref.session_id, id, wait_ms)
        if run.state not in END_STATES:
            await self._compaction.run(ref, without_model=True)
            run = await self._runs.wait_for(ref.session_id, id, 0)
        return None if run.summaries else run.error

    async def force(self, tx: Connection, tenant_id: UUID, assembled: Assembled) -> tuple[str, str | None]:
        """Schedule a compaction for a forced context that had no new summary to show.

        Returns the state of compaction and, if there is nothing to summarize, why.
        """
        inputs, plan = assembled.inputs, assembled.rendered.plan
        loaded, policy = inputs.loaded, inputs.settings.policy
        if folds_more(assembled):
            return loaded.compaction, None
        why = await asyncio.to_thread(nothing_to_summarize, plan.context, plan.state, inputs.budget, policy)
        if why is not None:
            return loaded.compaction, why
        await compactions.schedule_requested(tx, SessionRef(loaded.session_id, tenant_id), new_id())
        return "scheduled", None


@dataclass(frozen=True, slots=True)
class CoverageProof:
    """Ranges of events with one disposition each, up to the head, and the faults; none if all are accounted for."""

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

    async def prove(self, tenant_id: UUID, address: str, view: str) -> CoverageProof:
        """Return the proof for a view as of now. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, address)
        current = await views.current_epoch(self._database, session.session_id, view)
        if current is None and view == MAIN:
            current = CurrentEpoch(session.policy, 0, START)
        if current is None:
            raise NotFound(f"session {address!r} has no view {view!r} yet", session=address, view=view)
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
        overlaps = (later.from_seq for earlier, later in pairwise(live) if later.from_seq <= earlier.to_seq)
        faults += [f"live summaries overlap at {seq}" for seq in overlaps]
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
    state = update_prefix(events, frontier)
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
