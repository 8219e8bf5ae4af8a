"""Which summary is to be written next: how a session stands, read for it, and the span or the summaries it is of.

What looks at many events is done in a thread: this also runs in API processes, for contexts that wait for summaries.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

import structlog

from app.core.compaction.next_span import Span, boundary, next_span, sizes
from app.core.cover.summaries import COVER_SHARE, Summary, cover_id, due_merge
from app.core.digest.digest import Digest, from_json
from app.core.errors import CannotFit, InvalidPolicy
from app.core.log.event import Event
from app.core.plan.context.context import Context
from app.core.plan.context.frontier import START
from app.core.plan.context.projection import project
from app.core.plan.reducers.expiry import without_expiring
from app.core.plan.reducers.visibility import without_hidden
from app.core.tokens.budget import Budget
from app.core.tokens.counter import Counter
from app.core.view.budget import budget_of, measured_from, outside_of, real_window
from app.core.view.request import ContextRequest, ViewSettings, changed, window_of
from app.services.counting import Counting
from app.services.newest_events import NewestEvents
from app.services.policies import Policies
from app.services.steps import Basis, CompactionStep, of_span, of_summaries
from app.store import calibrations, event_log, spans, summaries, visibility
from app.store.compactions import WaitingContext
from app.store.engine import Database
from app.store.spans import MAIN, Facts, Viewed
from app.store.summaries import SummaryToRewrite

READ_FACTOR: Final = 2
"""How much of the newest part is read to find its boundary, in windows."""
NARROW_WINDOW_MIN: Final = 8_000
"""Smaller views do not make summaries finer: one that makes titles sees the newest part, whatever that is."""
DEEPEN_FACTOR: Final = 4
"""By how much more is read where a single round is larger than what was, or little of what was is shown."""


class StepPlanner:
    """Reads what a compaction stands on, and plans its next step."""

    def __init__(self, database: Database, counting: Counting, policies: Policies) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies
        self._newest_events = NewestEvents(database)

    async def basis(self, session_id: UUID, tenant_id: UUID, wanted: Sequence[WaitingContext] = ()) -> Basis | None:
        """How things stand, for the session's views and the contexts `wanted`; None when the session is gone."""
        facts = await spans.facts(self._database, session_id, tenant_id)
        if facts is None:
            return None
        waits = next((one for one in reversed(wanted) if one.view == MAIN), None)
        row = facts.main.row
        ref = waits.policy if waits else row.policy if row else facts.session_policy
        policy = await self._policies.get(tenant_id, ref)
        model = (row.model if row else None) or facts.session_model
        asked = waits.window_tokens if waits and not waits.tightened else None
        window = window_of(row, ref, policy, model, asked)
        known = await calibrations.known(self._database, tenant_id, model)
        main = replace(facts.main, calibrations=known)
        window = real_window(main, model, window, time.time())
        settings = ViewSettings(ref, policy, model, window)
        counter = self._counting.counter(model, policy)
        fresh = changed(row, settings) is not None
        if any(one.tightened for one in wanted):
            main, facts = _as_measured(main), replace(facts, views=tuple(map(_as_measured, facts.views)))
        try:
            budget = await self._budget(facts, main, settings, counter, fresh=fresh)
        except (CannotFit, InvalidPolicy):
            structlog.get_logger().warning("no room for summaries", window=window)
            return None
        budgets = [budget]
        for view, least, anew in _others(facts, main, settings, wanted) if policy.summarize.view == "all" else ():
            with contextlib.suppress(CannotFit, InvalidPolicy):  # no room in that window: it is left out of account
                its = replace(settings, window_tokens=least)
                budgets.append(await self._budget(facts, view, its, counter, fresh=anew))
        narrow = min(budgets, key=lambda one: one.target)
        retries = [one async for one in self._of_retries(facts, main, settings, counter, wanted)]
        newest = min((narrow, *retries), key=lambda one: one.target)
        cover = cover_id(session_id, policy.shows)
        live = await summaries.live(self._database, session_id, cover)
        decided = await visibility.current(self._database, session_id) if facts.decisions else ()
        return Basis(facts, policy, counter, budget, narrow, newest, cover, tuple(live), decided)

    async def _of_retries(
        self, facts: Facts, main: Viewed, settings: ViewSettings, counter: Counter, wanted: Sequence[WaitingContext]
    ) -> AsyncIterator[Budget]:
        """The budgets of the retries that wait."""
        for one in wanted:
            if not one.tightened:
                continue
            view, its = main, settings
            if one.view != MAIN:
                view = _provided(facts.view(one.view), main, settings)
                its = replace(settings, window_tokens=view.row.window_tokens if view.row else settings.window_tokens)
            with contextlib.suppress(CannotFit, InvalidPolicy):
                budget = await self._budget(facts, view, its, counter, fresh=False)
                yield budget.tightened_to_window(one.window_tokens)

    async def _budget(
        self, facts: Facts, view: Viewed, settings: ViewSettings, counter: Counter, *, fresh: bool
    ) -> Budget:
        """What a view's next context will be planned by, if it says no more of it than its last one did.

        Raises what `budget_of` does.
        """
        request = ContextRequest(view.name)
        if view.reported is not None and outside_of(view, settings, request).said_by is None:
            request = replace(request, outside_tokens=view.reported.outside)
        events: Sequence[Event] = ()
        last = measured_from(view, request, counter, fresh=fresh)
        if last is not None and last.head < facts.head:
            tokens = settings.window_tokens * READ_FACTOR
            events = await event_log.newest(self._database, facts.log, last.head, tokens)
            events = await self._counted(events, facts, counter)
        return budget_of(view, settings, request, counter, events, fresh=fresh)

    async def next_step(
        self, session_id: UUID, basis: Basis, *, asked: bool, focus: str | None, first: bool
    ) -> CompactionStep | None:
        """The next summary to write, None while none is due; `first`: no other of events was written before it."""
        if not basis.policy.summarize.enabled:
            return None
        if basis.facts.redactions:
            for old in await summaries.invalid(self._database, session_id, basis.cover_id):
                return await self.anew(basis, old, focus)
        most = COVER_SHARE * basis.budget.target
        merged = due_merge(basis.cover, basis.policy.summarize, most)
        if merged:
            return await self._merge(basis, merged)
        return await self._of_events(basis, asked=asked, focus=focus, first=first)

    async def _of_events(self, basis: Basis, *, asked: bool, focus: str | None, first: bool) -> CompactionStep | None:
        facts, counter = basis.facts, basis.counter
        cover, policy, budget = basis.cover, basis.policy, basis.narrow
        covered_to = cover[-1].to_seq if cover else 0
        prefix: tuple[Event, ...] = ()
        before, size = 0, sizes(policy, budget)
        if policy.summarize.view == "latest":
            prefix = tuple(await self._counted(await spans.prefix(self._database, facts), facts, counter))
            before = min(sum(one.tokens for one in cover), size.summary)
            size = sizes(policy, budget, before, sum(event.tokens for event in prefix))
        if not asked and facts.tokens - facts.covered_tokens < size.least:
            return None
        newest, context = await self._newest(basis, covered_to)
        stop = await asyncio.to_thread(boundary, replace(context, prefix=prefix), basis.newest, policy, before)
        if stop is None:
            return None
        covered_turn = cover[-1].split_turn if cover else None
        span, tokens = None, max(budget.window, 2 * size.chunk)
        while span is None:
            events = newest
            if newest[0].seq > covered_to + 1:
                events = await event_log.oldest(self._database, facts.log, covered_to, tokens, spans.EVENTS_MAX)
            beyond = not events or events[-1].seq < stop.seq - 1
            reached = replace(stop, turn=None) if beyond else stop
            if events is not newest:
                context = await self._context(events, basis)
            span = await asyncio.to_thread(
                next_span, context, covered_to, reached, policy, size, asked=asked, covered_turn=covered_turn
            )
            if span is None and (not beyond or len(events) >= spans.EVENTS_MAX):
                return None
            tokens *= DEEPEN_FACTOR
        sources: tuple[Summary, ...] = cover if policy.summarize.view == "latest" else ()
        digests = await self._digests(basis, sources)
        requests = await self._requests(basis, span.from_seq, span.to_seq, span.split_turn)
        step = partial(of_span, basis, span, sources, cover, focus, digests, requests=requests, first=first)
        return await asyncio.to_thread(step)

    async def _newest(self, basis: Basis, after: int) -> tuple[Sequence[Event], Context]:
        """So much of the newest part that what is shown of it takes a window, or all of it behind `after`."""
        facts, counter, tokens = basis.facts, basis.counter, basis.narrow.window * READ_FACTOR
        while True:
            events = await self._newest_events.read(
                facts, after, tokens, counter, lambda new: self._counted(new, facts, counter)
            )
            context = await asyncio.to_thread(_shown, events, basis)
            all_read = not events or events[0].seq == after + 1 or len(events) >= spans.EVENTS_MAX
            if all_read or sum(item.tokens for item in context.items) >= basis.narrow.window:
                return events, context
            tokens *= DEEPEN_FACTOR

    async def _merge(self, basis: Basis, merged: Sequence[Summary]) -> CompactionStep:
        events: tuple[Event, ...] = ()
        if basis.policy.summarize.rebuild:
            events = await self._events(basis, merged[0].from_seq, merged[-1].to_seq)
        digests = await self._digests(basis, merged)
        first, last = merged[0], merged[-1]
        requests = await self._requests(basis, first.from_seq, last.to_seq, last.split_turn)
        return await asyncio.to_thread(of_summaries, basis, merged, events, digests, requests)

    async def _digests(self, basis: Basis, of: Sequence[Summary]) -> list[Digest]:
        """The digests of some summaries, which are read only for what becomes part of another summary."""
        if not of:
            return []
        found = await summaries.digests(self._database, basis.facts.log.session_id, [one.id for one in of])
        return [from_json(one) for one in found]

    async def anew(self, basis: Basis, old: SummaryToRewrite, focus: str | None) -> CompactionStep:
        """What a redaction took out of the cover, written from what is left of the events themselves."""
        events = await self._events(basis, old.from_seq, old.to_seq)
        split = await spans.split_turn(self._database, basis.facts.log, old.to_seq)
        requests = await self._requests(basis, old.from_seq, old.to_seq, split)
        span = Span(old.from_seq, old.to_seq, events, split_turn=split)
        step = of_span(basis, span, (), (), focus, requests=requests)
        return replace(step, depth=old.depth, sources=(old.id,))

    async def _requests(self, basis: Basis, from_seq: int, to_seq: int, split_turn: int | None) -> tuple[Event, ...]:
        """The user's messages in the turns that a span cuts through, as far as a model may see them."""
        events = await spans.requests(self._database, basis.facts.log, from_seq, to_seq, split_turn)
        return tuple(item.event for item in (await self._context(events, basis)).items)

    async def _events(self, basis: Basis, from_seq: int, to_seq: int) -> tuple[Event, ...]:
        last = min(to_seq, from_seq + spans.EVENTS_MAX - 1)
        events = await event_log.events(self._database, basis.facts.log, from_seq, last)
        return tuple(item.event for item in (await self._context(events, basis)).items)

    async def _context(self, events: Sequence[Event], basis: Basis) -> Context:
        """Events as the main view would show them whole but for what is hidden, by what counts for it."""
        events = await self._counted(events, basis.facts, basis.counter)
        return await asyncio.to_thread(_shown, events, basis)

    async def _counted(self, events: Sequence[Event], facts: Facts, counter: Counter) -> Sequence[Event]:
        if counter == self._counting.session_counter(facts.estimator, facts.session_model):
            return events
        return await self._counting.recount(events, counter)


def _shown(events: Sequence[Event], basis: Basis) -> Context:
    whole = project(events, START, basis.counter, turn=basis.facts.turn, shows=basis.policy.shows)
    return without_expiring(without_hidden(whole, basis.decided))


def _as_measured(view: Viewed) -> Viewed:
    """A view without what is known from refusals alone, from which the budget of a retry does not start either."""
    own = view.learned if view.learned and view.learned.known.samples else None
    return replace(view, calibrations=tuple(one for one in view.calibrations if one.samples), learned=own)


def _others(
    facts: Facts, main: Viewed, settings: ViewSettings, wanted: Sequence[WaitingContext]
) -> Iterator[tuple[Viewed, int, bool]]:
    """The views that have asked, and those that wait, in which windows, and whether what was reported of their epoch is
    disregarded; not what the main view is read with by `settings`."""
    own = (MAIN, settings.window_tokens)
    for view in facts.views:
        if view.row is not None and (view.name, view.row.window_tokens) != own:
            yield _provided(view, main, settings), max(view.row.window_tokens, NARROW_WINDOW_MIN), False
    for one in wanted:
        if (one.view, one.window_tokens) != own and not one.tightened:
            view = facts.view(one.view)
            anew = view.row is not None and view.row.window_tokens != one.window_tokens
            yield _provided(view, main, settings), one.window_tokens, anew


def _provided(view: Viewed, main: Viewed, settings: ViewSettings) -> Viewed:
    """A view with what is known of its model, which is the main view's; of another model nothing is looked up, so that
    it goes by the main view's."""
    if view.row is None or view.row.model != settings.model:
        return replace(main, name=view.name, reported=None)
    return replace(view, calibrations=main.calibrations)
