"""Compaction: read what is to be summarized, have it written with no transaction open, store it if it still fits.

The worker calls `run` for a session; nothing of it is on the path of an append or a context, unless that asked to wait.
Whatever a summary stood on is checked when it is stored: what changed meanwhile makes it void, and the work is planned
anew. So two workers at once, or one that was thought dead, do no harm.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from uuid import UUID

import asyncpg
import structlog

from app.core.compaction.next_span import Span, boundary, next_span, sizes
from app.core.cover.summaries import COVER_SHARE, Summary, contiguous, cover_id, due_merge
from app.core.errors import CannotFit, InvalidPolicy, StoreUnavailable
from app.core.log.event import Event
from app.core.plan.context.context import Context, project
from app.core.plan.context.frontier import START
from app.core.plan.reducers.expiry import lasting
from app.core.plan.reducers.visibility import told
from app.core.policy.shows import EVERYTHING
from app.core.tokens.budget import Budget
from app.core.tokens.counter import Counter
from app.core.view.budget import budget_of, measured_from, outside_of, real_window
from app.core.view.request import ContextRequest, ViewSettings, changed, window_of
from app.services.counting import Counting
from app.services.ids import new_id
from app.services.policies import Policies
from app.services.spending import Spending
from app.services.steps import Basis, CompactionStep, of_span, of_summaries, written
from app.services.summarizing import PutOff, Summarizing, WrittenSummary
from app.store import calibrations, compactions, event_log, sessions, spans, summaries, visibility
from app.store.compactions import Demand, RunOutcome, WaitingContext
from app.store.engine import Database
from app.store.spans import MAIN, Facts, Viewed
from app.store.summaries import NewSummary, SummaryToRewrite

STEPS_MAX: Final = 1_000
"""Summaries written in one run; a job that is longer goes on in the next one."""
STALE_MAX: Final = 10
READ_FACTOR: Final = 2
"""How much of the newest part is read to find its boundary, in windows."""
NARROW_WINDOW_MIN: Final = 8_000
"""Smaller views do not make summaries finer: one that makes titles sees the newest part, whatever that is."""
DEEPEN_FACTOR: Final = 4
"""By how much more is read where a single round is larger than what was, or little of what was is shown."""
COOL_SECONDS: Final = 10.0
COOL_SECONDS_MAX: Final = 3_600.0
ASKED: Final = ("requested", "waited", "overflow")
"""Runs that are made however little there is."""
NOTHING_DONE: Final = RunOutcome("skipped", "nothing to compact")


@dataclass(slots=True)
class _Run:
    """A run as it goes: which requests it answers, which contexts wait for it, what has come of it, what was
    looked at, and whether it has `told` of any events yet."""

    ids: list[UUID]
    wanted: tuple[WaitingContext, ...] = ()
    outcome: RunOutcome = NOTHING_DONE
    seen: Demand | None = None
    told: bool = False


class Compaction:
    """The compaction use case."""

    def __init__(
        self,
        database: Database,
        counting: Counting,
        policies: Policies,
        summarizing: Summarizing,
        spending: Spending,
    ) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies
        self._summarizing = summarizing
        self._spending = spending

    async def aclose(self) -> None:
        """Close the connections to the models; the database stays open."""
        await self._summarizing.aclose()

    async def work(self, session_id: UUID, tenant_id: UUID, job_id: int) -> None:
        """A worker's job: all there is to do for a session, also what comes up meanwhile. Raises PutOff."""
        done = False
        while not done:
            seen = await self.run(session_id, tenant_id)
            async with self._database.transaction() as tx:
                done = await compactions.let_go(tx, session_id, job_id, seen)

    async def run(self, session_id: UUID, tenant_id: UUID, *, without_model: bool = False) -> Demand | None:
        """Write all summaries that are due for a session, and those that were asked for.

        Returns what was looked at, None where there is nothing to look at.

        Raises PutOff when a summarizer cannot be had now; the run then stays scheduled.
        """
        waiting = await compactions.waiting(self._database, session_id)
        asked = any(one.reason in ASKED for one in waiting)
        focus = next((one.focus for one in waiting if one.focus), None)
        run = _Run([one.id for one in waiting], tuple(one.wanted for one in waiting if one.wanted))
        try:
            await self._steps(run, session_id, tenant_id, asked=asked, focus=focus, without_model=without_model)
        except (PutOff, StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            raise  # to be tried again, by this worker or another
        except Exception as error:  # a fault of ours must not be tried for ever
            structlog.get_logger().exception("compaction failed", session=str(session_id))
            run.outcome = replace(run.outcome, state="failed", error=f"internal: {type(error).__name__}")
        if run.ids:
            await compactions.end(self._database, session_id, run.ids, run.outcome)
            told = {"state": run.outcome.state, "error": run.outcome.error, "to_seq": run.outcome.to_seq}
            structlog.get_logger().info("compaction ended", session=str(session_id), **told)
        return run.seen

    async def _steps(
        self, run: "_Run", session_id: UUID, tenant_id: UUID, *, asked: bool, focus: str | None, without_model: bool
    ) -> None:
        """One summary after the other, until none is due."""
        stale = 0
        if not run.ids and await compactions.cools_down(self._database, session_id, COOL_SECONDS, COOL_SECONDS_MAX):
            return
        for _ in range(STEPS_MAX):
            basis = await self._basis(session_id, tenant_id, run.wanted)
            run.seen = basis.facts.demand if basis else run.seen
            step = None
            if basis is not None:
                step = await self._next(session_id, basis, asked=asked, focus=focus, first=not run.told)
            if step is None:
                return
            if not run.ids:
                run.ids = [new_id()]
            now = step.basis.facts.context_tokens
            await compactions.begin(self._database, session_id, tenant_id, run.ids[0], step.reason, now)
            try:
                draft = await self._summarizing.write(
                    step.task,
                    step.basis.policy,
                    without_model=without_model,
                    paid=partial(self._spending.paid_by, tenant_id),
                )
            except PutOff as error:
                attempts = await compactions.put_off(self._database, session_id, run.ids[0], error.detail)
                if attempts < self._summarizing.attempts_max:
                    raise
                draft = await self._summarizing.stand_in(step.task, step.basis.policy, error.detail)
            if draft.refused:
                await self._keep_refused(session_id, tenant_id, step, draft)
            if draft.text is None:
                run.outcome = replace(run.outcome, state="failed", error=draft.error)
                return
            stored = await self._store(session_id, tenant_id, step, draft)
            if stored is not None:
                run.outcome = _and(run.outcome, step, draft, stored)
                run.told = run.told or bool(step.task.events)
                continue
            stale += 1
            if stale > STALE_MAX:
                run.outcome = replace(run.outcome, state="failed", error="what was summarized kept changing")
                return

    async def redo(self, session_id: UUID, tenant_id: UUID) -> bool:
        """Have the oldest summary that was made without the model it was meant for written by it after all.

        Returns whether that was done. What was good enough so far stays if the model still cannot be had.
        """
        basis = await self._basis(session_id, tenant_id)
        old = None if basis is None else next((one.summary for one in basis.live if one.degraded), None)
        if basis is None or old is None or not self._summarizing.has_model(basis.policy):
            return False
        step = await self._anew(basis, SummaryToRewrite(UUID(old.id), old.depth, old.from_seq, old.to_seq), None)
        id = new_id()
        await compactions.begin(self._database, session_id, tenant_id, id, "redo", basis.facts.context_tokens)
        try:
            draft = await self._summarizing.write(
                step.task, basis.policy, paid=partial(self._spending.paid_by, tenant_id)
            )
            error = draft.error
        except PutOff as put_off:
            draft, error = None, put_off.detail
        if draft is None or draft.text is None or draft.degraded:
            await compactions.end(self._database, session_id, [id], RunOutcome("failed", error))
            return False
        stored = await self._store(session_id, tenant_id, step, draft)
        outcome = RunOutcome("skipped", "what was summarized has changed")
        if stored is not None:
            outcome = _and(outcome, step, draft, stored)
        await compactions.end(self._database, session_id, [id], outcome)
        return stored is not None

    async def _next(
        self, session_id: UUID, basis: Basis, *, asked: bool, focus: str | None, first: bool
    ) -> CompactionStep | None:
        """The next summary to write, None while none is due; `first`: no other of events was written before it."""
        if not basis.policy.summarize.enabled:
            return None
        for old in await summaries.invalid(self._database, session_id, basis.cover_id):
            return await self._anew(basis, old, focus)
        most = COVER_SHARE * basis.budget.target
        merged = due_merge(basis.cover, basis.policy.summarize, most)
        if merged:
            return await self._merge(basis, merged)
        return await self._of_events(basis, asked=asked, focus=focus, first=first)

    async def _basis(self, session_id: UUID, tenant_id: UUID, wanted: Sequence[WaitingContext] = ()) -> Basis | None:
        """How things stand, for the session's views and the contexts `wanted`; None when the session is gone."""
        facts = await spans.facts(self._database, session_id, tenant_id)
        if facts is None:
            return None
        waits = next((one for one in reversed(wanted) if one.view == MAIN), None)
        row = facts.main.row
        ref = waits.policy if waits else row.policy if row else facts.session_policy
        policy = await self._policies.get(tenant_id, ref)
        model = (row.model if row else None) or facts.session_model
        window = window_of(row, ref, policy, model, waits.window_tokens if waits else None)
        known = await calibrations.known(self._database, tenant_id, model)
        main = replace(facts.main, calibrations=known)
        window = real_window(main, model, window, time.time())
        settings = ViewSettings(ref, policy, model, window)
        counter = self._counting.counter(model, policy)
        fresh = changed(row, settings) is not None and not (waits and waits.tightened)
        try:
            budget = await self._budget(facts, main, settings, counter, fresh=fresh)
        except (CannotFit, InvalidPolicy):
            structlog.get_logger().warning("no room for summaries", session=str(session_id), window=window)
            return None
        budgets = [budget]
        for view, least, anew in _others(facts, main, settings, wanted) if policy.summarize.view == "all" else ():
            with contextlib.suppress(CannotFit, InvalidPolicy):  # no room in that window: it is left out of account
                its = replace(settings, window_tokens=least)
                budgets.append(await self._budget(facts, view, its, counter, fresh=anew))
        narrow = min(budgets, key=lambda one: one.target)
        cover = cover_id(session_id, policy.shows)
        live = await summaries.live(self._database, session_id, cover)
        decided = await visibility.current(self._database, session_id)
        return Basis(facts, policy, counter, budget, narrow, cover, tuple(live), decided)

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
        stop = boundary(replace(context, prefix=prefix), budget, policy, before)
        if stop is None:
            return None
        if cover and cover[-1].split_turn == stop.turn:  # the turn's beginning has been told apart already
            stop = replace(stop, turn_seq=0)
        span, tokens = None, max(budget.window, 2 * size.chunk)
        while span is None:
            events = newest
            if newest[0].seq > covered_to + 1:
                events = await event_log.oldest(self._database, facts.log, covered_to, tokens, spans.EVENTS_MAX)
            beyond = not events or events[-1].seq < stop.seq - 1
            reached = replace(stop, turn=None) if beyond else stop
            context = await self._context(events, basis)
            span = next_span(context, covered_to, reached, policy, size, asked=asked)
            if span is None and (not beyond or len(events) >= spans.EVENTS_MAX):
                return None
            tokens *= DEEPEN_FACTOR
        sources: tuple[Summary, ...] = cover if policy.summarize.view == "latest" else ()
        return of_span(basis, span, sources, cover, focus, first=first)

    async def _newest(self, basis: Basis, after: int) -> tuple[Sequence[Event], Context]:
        """So much of the newest part that what is shown of it takes a window, or all of it behind `after`."""
        tokens = basis.narrow.window * READ_FACTOR
        while True:
            events = await event_log.newest(self._database, basis.facts.log, after, tokens)
            context = await self._context(events, basis)
            all_read = not events or events[0].seq == after + 1 or len(events) >= spans.EVENTS_MAX
            if all_read or sum(item.tokens for item in context.items) >= basis.narrow.window:
                return events, context
            tokens *= DEEPEN_FACTOR

    async def _merge(self, basis: Basis, merged: Sequence[Summary]) -> CompactionStep:
        events: tuple[Event, ...] = ()
        if basis.policy.summarize.rebuild:
            events = await self._events(basis, merged[0].from_seq, merged[-1].to_seq)
        return of_summaries(basis, merged, events)

    async def _anew(self, basis: Basis, old: SummaryToRewrite, focus: str | None) -> CompactionStep:
        """What a redaction took out of the cover, written from what is left of the events themselves."""
        events = await self._events(basis, old.from_seq, old.to_seq)
        step = of_span(basis, Span(old.from_seq, old.to_seq, events), (), (), focus)
        return replace(step, depth=old.depth, sources=(old.id,))

    async def _events(self, basis: Basis, from_seq: int, to_seq: int) -> tuple[Event, ...]:
        last = min(to_seq, from_seq + spans.EVENTS_MAX - 1)
        events = await event_log.events(self._database, basis.facts.log, from_seq, last)
        return tuple(item.event for item in (await self._context(events, basis)).items)

    async def _context(self, events: Sequence[Event], basis: Basis) -> Context:
        """Events as the main view would show them whole but for what is hidden, by what counts for it."""
        events = await self._counted(events, basis.facts, basis.counter)
        whole = project(events, START, basis.counter, turn=basis.facts.turn, shows=basis.policy.shows)
        return lasting(told(whole, basis.decided))

    async def _counted(self, events: Sequence[Event], facts: Facts, counter: Counter) -> Sequence[Event]:
        if counter == self._counting.session_counter(facts.estimator, facts.session_model):
            return events
        return await self._counting.recount(events, counter)

    async def _store(
        self, session_id: UUID, tenant_id: UUID, step: CompactionStep, draft: WrittenSummary
    ) -> NewSummary | None:
        """The summary stored, or None, and nothing stored, when what it stood on has changed."""
        new = written(step, draft)
        basis = step.basis
        try:
            async with self._database.transaction() as tx:
                locked = await sessions.lock(tx, session_id, tenant_id)
                if locked is None or locked.redactions != basis.facts.redactions:
                    return None
                live = await summaries.live(tx, session_id, basis.cover_id)
                if [one.summary.id for one in live] != [one.summary.id for one in basis.live]:
                    return None
                await summaries.insert(tx, session_id, tenant_id, new)
                cover = contiguous(one.summary for one in await summaries.live(tx, session_id, basis.cover_id))
                if basis.policy.shows == EVERYTHING:
                    await spans.set_covered(tx, basis.facts.log, cover[-1].to_seq if cover else 0)
        except asyncpg.ExclusionViolationError:
            return None
        return new

    async def _keep_refused(
        self, session_id: UUID, tenant_id: UUID, step: CompactionStep, draft: WrittenSummary
    ) -> None:
        """What the gate refused, for inspection; no model ever sees it."""
        async with self._database.transaction() as tx:
            locked = await sessions.lock(tx, session_id, tenant_id)
            if locked is None or locked.redactions != step.basis.facts.redactions:
                return  # it may tell of what is erased by now
            for refused in draft.refused:
                kept = replace(
                    written(step, draft),
                    text=refused.text,
                    tokens=refused.tokens,
                    summarizer=refused.summarizer,
                    model=refused.model,
                    prompt_version=refused.prompt_version,
                    degraded=False,
                    status="refused",
                    complaints=refused.complaints,
                    sources=(),
                )
                await summaries.insert(tx, session_id, tenant_id, kept)


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
        if (one.view, one.window_tokens) != own:
            view = facts.view(one.view)
            anew = view.row is not None and view.row.window_tokens != one.window_tokens and not one.tightened
            yield _provided(view, main, settings), one.window_tokens, anew


def _provided(view: Viewed, main: Viewed, settings: ViewSettings) -> Viewed:
    """A view with what is known of its model, which is the main view's; of another model nothing is looked up, so that
    it goes by the main view's."""
    if view.row is None or view.row.model != settings.model:
        return replace(main, name=view.name, reported=None)
    return replace(view, calibrations=main.calibrations)


def _and(outcome: RunOutcome, step: CompactionStep, draft: WrittenSummary, stored: NewSummary) -> RunOutcome:
    before = step.basis.facts.context_tokens
    saved = max(0, step.task.tokens - stored.tokens)
    return RunOutcome(
        "succeeded",
        draft.error,
        (*outcome.summaries, stored.id),
        min(outcome.from_seq or stored.from_seq, stored.from_seq),
        max(outcome.to_seq or stored.to_seq, stored.to_seq),
        outcome.tokens_read + draft.tokens_read,
        outcome.tokens_before or before,
        max(0, (outcome.tokens_after or before) - saved),
    )
