"""Planning of the next summary: the basis of a session, and the span or the summaries to summarize.

Work on many events is done in a thread: this also runs in API processes, for contexts that wait for summaries.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

from app.core.assembly.budget import budget_of, measured_from, outside_of, real_window
from app.core.assembly.inputs import ContextRequest, ViewSettings, changed_setting, window_of
from app.core.compaction.next_span import Span, least_growth, next_span, sizes, verbatim_start
from app.core.errors import CannotFit, InvalidPolicy
from app.core.log.event import Event
from app.core.memory.cover import COVER_SHARE, StoredSummary, Summary, cover_id, due_merge
from app.core.plan.reducers.expiry import without_expiring
from app.core.plan.reducers.visibility import without_hidden
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import START
from app.core.plan.state.projection import project
from app.core.tokens.budget import Budget
from app.core.tokens.counter import Counter
from app.resources.contexts.view_cache import CHARS_MAX, events_chars
from app.resources.policies.service import Policies
from app.resources.summaries.summarizing import Basis, CompactionStep, plan_merge, plan_span
from app.store import calibrations, event_log, spans, summaries, visibility
from app.store.compactions import WaitingContext
from app.store.engine import Database
from app.store.ids import SessionRef
from app.store.spans import MAIN, SessionFacts, ViewFacts
from app.tokenizers import Counting

Recount = Callable[[Sequence[Event]], Awaitable[Sequence[Event]]]


@dataclass(frozen=True, slots=True)
class _CachedEvents:
    """A session's newest events without a gap: all after the first `tokens_before` tokens of its log.

    They are valid for one `version`: creation time of the session, number of its redactions, and counter.
    """

    version: tuple[datetime, int, Counter]
    tokens_before: int
    events: tuple[Event, ...]
    chars: int


class NewestEvents:
    """Reads the newest events of sessions, and caches those of the most recently read sessions: an event changes only
    by a redaction."""

    def __init__(self, database: Database, chars_max: int = CHARS_MAX) -> None:
        self._database = database
        self._chars_max = chars_max
        self._chars = 0
        self._held: OrderedDict[UUID, _CachedEvents] = OrderedDict()

    async def read(
        self, facts: SessionFacts, after: int, tokens: int, counter: Counter, recount: Recount
    ) -> tuple[Event, ...]:
        """Return the events after `after` within the last `tokens` tokens of the log, with their tokens by `recount`.

        Only events that were added since an earlier read are read, parsed and counted.
        """
        version = (facts.created_at, facts.redactions, counter)
        held = self._held.get(facts.log.session_id)
        if held is not None and held.version == version:
            events, last = held.events, held.events[-1]
            if last.seq < facts.head:
                added = await event_log.events(self._database, facts.log, last.seq + 1, facts.head)
                events += tuple(await recount(added))
            bound = events[-1].cum_tokens - tokens
            if events[0].seq <= after + 1 or held.tokens_before <= bound:
                events = tuple(event for event in events if event.seq > after and event.cum_tokens > bound)
                self._keep(facts.log.session_id, version, after, bound, events)
                return events
        events = tuple(await recount(await event_log.newest(self._database, facts.log, after, tokens)))
        bound = events[-1].cum_tokens - tokens if events else 0
        self._keep(facts.log.session_id, version, after, bound, events)
        return events

    def _keep(
        self,
        session_id: UUID,
        version: tuple[datetime, int, Counter],
        after: int,
        bound: int,
        events: tuple[Event, ...],
    ) -> None:
        before = self._held.pop(session_id, None)
        self._chars -= before.chars if before else 0
        if events:
            tokens_before = events[0].cum_tokens if events[0].seq == after + 1 else bound
            chars = events_chars(events)
            self._held[session_id] = _CachedEvents(version, tokens_before, events, chars)
            self._chars += chars
        while self._chars > self._chars_max:
            self._chars -= self._held.popitem(last=False)[1].chars


READ_FACTOR: Final = 2
"""Tokens of the newest events that are read to find where to stop summarizing, in windows."""
NARROW_WINDOW_MIN: Final = 8_000
"""A view with a smaller window counts as having this one: a view that makes titles needs no finer summaries."""
DEEPEN_FACTOR: Final = 4
"""Factor by which the read grows if its events are less than one round, or too few of them are shown."""


@dataclass(frozen=True, slots=True)
class NotDue:
    """No summary is due until the log has grown by `growth` tokens (0: not known), or something else changes."""

    growth: int = 0


class StepPlanner:
    """Loads the basis of a compaction, and plans its next step."""

    def __init__(self, database: Database, counting: Counting, policies: Policies) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies
        self._newest_events = NewestEvents(database)

    async def load_basis(self, ref: SessionRef, wanted: Sequence[WaitingContext] = ()) -> Basis | None:
        """Load the compaction basis of a session, for its views and the contexts `wanted`; None if it was deleted.

        Raises CannotFit or InvalidPolicy if its window leaves no room for a context.
        """
        facts = await spans.facts(self._database, ref)
        if facts is None:
            return None
        waits = next((one for one in reversed(wanted) if one.view == MAIN), None)
        row = facts.main.row
        policy_ref = waits.policy if waits else row.policy if row else facts.session_policy
        policy = await self._policies.get(ref.tenant_id, policy_ref)
        model = (row.model if row else None) or facts.session_model
        window_tokens = waits.window_tokens if waits and not waits.tightened else None
        window = window_of(row, policy_ref, policy, model, window_tokens)
        known = await calibrations.of_model(self._database, ref.tenant_id, model)
        main = replace(facts.main, calibrations=known)
        window = real_window(main, model, window, time.time())
        settings = ViewSettings(policy_ref, policy, model, window)
        counter = self._counting.counter(model, policy)
        ignores_epoch = changed_setting(row, settings) is not None
        if any(one.tightened for one in wanted):
            main, facts = _without_refusals(main), replace(facts, views=tuple(map(_without_refusals, facts.views)))
        budget = await self._budget(facts, main, settings, counter, ignores_epoch=ignores_epoch)
        budgets = [budget]
        others = _other_views(facts, main, settings, wanted) if policy.summarize.view == "all" else ()
        for view, size, is_new in others:
            with contextlib.suppress(CannotFit, InvalidPolicy):  # a window without room is ignored
                own = replace(settings, window_tokens=size)
                budgets.append(await self._budget(facts, view, own, counter, ignores_epoch=is_new))
        narrow = min(budgets, key=lambda one: one.target)
        retries = [one async for one in self._retry_budgets(facts, main, settings, counter, wanted)]
        newest = min((narrow, *retries), key=lambda one: one.target)
        cover = cover_id(ref.session_id, policy.shows)
        live = await summaries.live(self._database, ref.session_id, cover)
        decided = await visibility.current(self._database, ref.session_id) if facts.decisions else ()
        return Basis(facts, policy, counter, budget, narrow, newest, cover, live, decided)

    async def _retry_budgets(
        self,
        facts: SessionFacts,
        main: ViewFacts,
        settings: ViewSettings,
        counter: Counter,
        wanted: Sequence[WaitingContext],
    ) -> AsyncIterator[Budget]:
        for one in wanted:
            if not one.tightened:
                continue
            view, own = main, settings
            if one.view != MAIN:
                view = _with_calibrations(facts.view(one.view), main, settings)
                own = replace(settings, window_tokens=view.row.window_tokens if view.row else settings.window_tokens)
            with contextlib.suppress(CannotFit, InvalidPolicy):
                budget = await self._budget(facts, view, own, counter, ignores_epoch=False)
                yield budget.tightened_to_window(one.window_tokens)

    async def _budget(
        self, facts: SessionFacts, view: ViewFacts, settings: ViewSettings, counter: Counter, *, ignores_epoch: bool
    ) -> Budget:
        """Return the budget of a view's next context, assuming that it states the `outside` tokens of the last one.

        Raises CannotFit or InvalidPolicy.
        """
        request = ContextRequest(view.name)
        if view.reported is not None and outside_of(view, settings, request).source is None:
            request = replace(request, outside_tokens=view.reported.outside)
        events: Sequence[Event] = ()
        last = measured_from(view, request, counter, ignores_epoch=ignores_epoch)
        if last is not None and last.head < facts.head:
            tokens = settings.window_tokens * READ_FACTOR
            events = await event_log.newest(self._database, facts.log, last.head, tokens)
            events = await self._recount(events, facts, counter)
        return budget_of(view, settings, request, counter, events, ignores_epoch=ignores_epoch)

    async def next_step(
        self, session_id: UUID, basis: Basis, *, requested: bool, focus: str | None, first: bool
    ) -> CompactionStep | NotDue:
        """Return the next summary to write, if one is due; `first`: the run has not summarized any events yet."""
        if not basis.policy.summarize.enabled:
            return NotDue()
        if basis.facts.redactions:
            invalid = await summaries.oldest_invalid(self._database, session_id, basis.cover_id)
            if invalid is not None:
                return await self.plan_rewrite(basis, invalid, focus)
        most = COVER_SHARE * basis.budget.target
        merged = due_merge(basis.cover, basis.policy.summarize, most)
        if merged:
            return await self._merge(basis, merged)
        return await self._summarize_events(basis, requested=requested, focus=focus, first=first)

    async def _summarize_events(
        self, basis: Basis, *, requested: bool, focus: str | None, first: bool
    ) -> CompactionStep | NotDue:
        facts, counter = basis.facts, basis.counter
        cover, policy, budget = basis.cover, basis.policy, basis.narrow
        covered_to = cover[-1].to_seq if cover else 0
        prefix: tuple[Event, ...] = ()
        before, size = 0, sizes(policy, budget)
        if policy.summarize.view == "latest":
            prefix = tuple(await self._recount(await spans.prefix(self._database, facts), facts, counter))
            before = min(sum(one.tokens for one in cover), size.summary)
            size = sizes(policy, budget, before, sum(event.tokens for event in prefix))
        if not requested and facts.tokens - facts.covered_tokens < size.least:
            return NotDue(size.least - facts.tokens + facts.covered_tokens)
        newest, context = await self._newest(basis, covered_to)
        context = replace(context, prefix=prefix)
        stop = await asyncio.to_thread(verbatim_start, context, basis.newest, policy, before)
        if stop is None:
            return NotDue()
        covered_turn = cover[-1].split_turn if cover else None
        span, tokens = None, max(budget.window, 2 * size.chunk)
        while span is None:
            events = newest
            if newest[0].seq > covered_to + 1:
                events = await event_log.oldest(self._database, facts.log, covered_to, tokens, spans.EVENTS_MAX)
            beyond = not events or events[-1].seq < stop.seq - 1
            reached = replace(stop, split_turn=None) if beyond else stop
            if events is not newest:
                context = await self._context(events, basis)
            span = await asyncio.to_thread(
                next_span, context, covered_to, reached, policy, size, requested=requested, covered_turn=covered_turn
            )
            if span is None and events is newest and self._counts_own_tokens(facts, counter):
                return NotDue(least_growth(context, stop, policy, basis.newest, size, before))
            if span is None and (not beyond or len(events) >= spans.EVENTS_MAX):
                return NotDue()
            tokens *= DEEPEN_FACTOR
        sources = await self._stored(basis, cover if policy.summarize.view == "latest" else ())
        requests = await self._requests(basis, span.from_seq, span.to_seq, span.split_turn)
        step = partial(plan_span, basis, span, sources, cover, focus, requests=requests, first=first)
        return await asyncio.to_thread(step)

    async def _newest(self, basis: Basis, after: int) -> tuple[Sequence[Event], Context]:
        """Return the newest events after `after` and their context: enough of them to fill a window, or all."""
        facts, counter, tokens = basis.facts, basis.counter, basis.narrow.window * READ_FACTOR
        while True:
            events = await self._newest_events.read(
                facts, after, tokens, counter, lambda new: self._recount(new, facts, counter)
            )
            context = await asyncio.to_thread(_shown_context, events, basis)
            all_read = not events or events[0].seq == after + 1 or len(events) >= spans.EVENTS_MAX
            if all_read or sum(item.tokens for item in context.items) >= basis.narrow.window:
                return events, context
            tokens *= DEEPEN_FACTOR

    async def _merge(self, basis: Basis, merged: Sequence[Summary]) -> CompactionStep:
        events: tuple[Event, ...] = ()
        if basis.policy.summarize.rebuild:
            events = await self._events(basis, merged[0].from_seq, merged[-1].to_seq)
        sources = await self._stored(basis, merged)
        first, last = merged[0], merged[-1]
        requests = await self._requests(basis, first.from_seq, last.to_seq, last.split_turn)
        return await asyncio.to_thread(plan_merge, basis, sources, events, requests)

    async def _stored(self, basis: Basis, sources: Sequence[Summary]) -> tuple[StoredSummary, ...]:
        """Load summaries with their digests."""
        ids = [one.id for one in sources]
        return await summaries.stored(self._database, basis.facts.log.session_id, ids) if ids else ()

    async def plan_rewrite(self, basis: Basis, old: Summary, focus: str | None) -> CompactionStep:
        """Plan to write a summary again from its events, after a redaction or because it is degraded."""
        events = await self._events(basis, old.from_seq, old.to_seq)
        split = await spans.split_turn(self._database, basis.facts.log, old.to_seq)
        requests = await self._requests(basis, old.from_seq, old.to_seq, split)
        span = Span(old.from_seq, old.to_seq, events, split_turn=split)
        step = plan_span(basis, span, (), (), focus, requests=requests)
        return replace(step, planned=replace(step.planned, depth=old.depth, sources=(old.id,)))

    async def _requests(self, basis: Basis, from_seq: int, to_seq: int, split_turn: int | None) -> tuple[Event, ...]:
        """Return the user's messages in the turns that a span cuts through, as far as a model may see them."""
        events = await spans.requests(self._database, basis.facts.log, from_seq, to_seq, split_turn)
        return tuple(item.event for item in (await self._context(events, basis)).items)

    async def _events(self, basis: Basis, from_seq: int, to_seq: int) -> tuple[Event, ...]:
        last = min(to_seq, from_seq + spans.EVENTS_MAX - 1)
        events = await event_log.events(self._database, basis.facts.log, from_seq, last)
        return tuple(item.event for item in (await self._context(events, basis)).items)

    async def _context(self, events: Sequence[Event], basis: Basis) -> Context:
        """Return the context of events as the main view shows them before any reduction, without hidden ones."""
        events = await self._recount(events, basis.facts, basis.counter)
        return await asyncio.to_thread(_shown_context, events, basis)

    async def _recount(self, events: Sequence[Event], facts: SessionFacts, counter: Counter) -> Sequence[Event]:
        return events if self._counts_own_tokens(facts, counter) else await self._counting.recount(events, counter)

    def _counts_own_tokens(self, facts: SessionFacts, counter: Counter) -> bool:
        """Return whether the counter is the one that counted the session's log."""
        return counter == self._counting.session_counter(facts.estimator, facts.session_model)


def _shown_context(events: Sequence[Event], basis: Basis) -> Context:
    context = project(events, START, basis.counter, turn=basis.facts.turn, shows=basis.policy.shows)
    return without_expiring(without_hidden(context, basis.decisions))


def _without_refusals(view: ViewFacts) -> ViewFacts:
    """Return a view without calibrations from refusals alone, since the budget of a retry ignores them too."""
    own = view.learned if view.learned and view.learned.known.reports else None
    return replace(view, calibrations=tuple(one for one in view.calibrations if one.reports), learned=own)


def _other_views(
    facts: SessionFacts, main: ViewFacts, settings: ViewSettings, wanted: Sequence[WaitingContext]
) -> Iterator[tuple[ViewFacts, int, bool]]:
    """Yield the views that have made or wait for contexts, except the main view with the window of `settings`: each
    with its window, and whether its next context has a new window, so that its last report does not apply."""
    own = (MAIN, settings.window_tokens)
    for view in facts.views:
        if view.row is not None and (view.name, view.row.window_tokens) != own:
            yield _with_calibrations(view, main, settings), max(view.row.window_tokens, NARROW_WINDOW_MIN), False
    for one in wanted:
        if (one.view, one.window_tokens) != own and not one.tightened:
            view = facts.view(one.view)
            is_new = view.row is not None and view.row.window_tokens != one.window_tokens
            yield _with_calibrations(view, main, settings), one.window_tokens, is_new


def _with_calibrations(view: ViewFacts, main: ViewFacts, settings: ViewSettings) -> ViewFacts:
    """Return a view with the main view's calibrations. In place of a view of another model, whose calibrations are not
    loaded, return the main view under its name."""
    if view.row is None or view.row.model != settings.model:
        return replace(main, name=view.name, reported=None)
    return replace(view, calibrations=main.calibrations)
