"""The moments for which contexts are planned: a recorded call's, derived from its record, and a view's next reduction.

A moment holds the facts by which reducers decide.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast
from uuid import UUID

from app.core.assembly.assemble import CallRecord
from app.core.assembly.inputs import ContextInputs, has_recall_tool, plan_inputs
from app.core.errors import CannotFit, ContextError
from app.core.log.event import Event
from app.core.memory.cover import cover_id
from app.core.plan.pipeline import PlanStart, begin, finish
from app.core.plan.reducers.economics import Moment
from app.core.plan.reducers.ttl import Status
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.projection import project
from app.core.policy.policy import Policy
from app.core.record.evictions import Eviction, evictions, new_evictions, newly_left_out
from app.core.render.formats import FORMATS
from app.core.tokens.budget import Budget, budget_for
from app.core.tokens.counter import REQUEST_TOKENS, Counter
from app.core.tokens.models import CacheProfile, cache_profile
from app.resources.contexts.recordings import Reproduced
from app.resources.policies.service import Policies
from app.store import audit, sessions
from app.store.engine import Database
from app.store.ids import session_ref
from app.store.rows import Row
from app.tokenizers import Counting
from app.wings.audit.declined import Declined, PlannedMoment, declined


def recorded_budget(record: CallRecord, policy: Policy) -> Budget:
    """Return the budget of a call by its record. Raises InvalidPolicy or CannotFit for an impossible one."""
    manifest = record.manifest
    reserves = replace(policy, reserve_tokens=manifest.reserve, injection_reserve_tokens=manifest.injection_reserve)
    room = manifest.window - manifest.outside - manifest.reserve - manifest.injection_reserve
    margin = max(0.0, room / max(1, record.target) - 1)
    ratio = manifest.calibration.ratio if manifest.calibration else 1.0
    return budget_for(reserves, manifest.window, margin, ratio, outside=manifest.outside)


ORDER: Final = ("once", "economics", "retention", "caps", "dialogue_window", "fold", "last_resort", "questions")
"""The reducers that a reduction asks, in their order."""


@dataclass(frozen=True, slots=True)
class NextReduction:
    """The evictions of a view's next reduction, the first ones first, and the view's sizes, in the estimator's tokens.

    `moment` is that of the next call, at which `declined` are the reducers that evict nothing; None if it is `pressed`.
    `stalled` is the reason for which this reduction would be refused; None if it would be made.
    """

    evictions: tuple[Eviction, ...]
    tokens: int
    tokens_after: int
    moment: Moment
    declined: tuple[Declined, ...] | None
    stalled: str | None


def next_reduction(inputs: ContextInputs) -> NextReduction:
    """Return the next reduction of a view: that of a call whose context just exceeds its threshold.

    Nothing is recorded. Raises CannotFit if no valid context fits the target.
    """
    read, state = plan_inputs(inputs)
    policy, budget = inputs.settings.policy, inputs.budget
    begun = begin(read, budget, policy, state)
    tokens = begun.base.context.tokens
    if tokens <= budget.trigger:
        threshold = max(1, tokens - 1)
        target = threshold if budget.trigger >= budget.target else budget.target
        budget = replace(budget, threshold=threshold, target=target, goal=int(threshold * budget.low_water))
    pressed = begin(read, budget, policy, state)
    try:
        plan = finish(pressed)
    except CannotFit:
        if budget is inputs.budget:
            raise
        plan = pressed.unchanged  # nothing of so small a context may go
    base = pressed.base
    rows = new_evictions(evictions(base.state, base.context), evictions(plan.state, plan.context))
    return NextReduction(
        evictions=tuple(sorted(rows, key=lambda row: (_rank(row.reducer), row.from_seq))),
        tokens=tokens,
        tokens_after=plan.context.tokens,
        moment=begun.at.moment,
        declined=None if begun.at.moment == "pressed" else declined(_moment(inputs, begun)),
        stalled=plan.stalled,
    )


def _rank(reducer: str) -> int:
    return ORDER.index(reducer) if reducer in ORDER else len(ORDER)


def _moment(inputs: ContextInputs, begun: PlanStart) -> PlannedMoment:
    read, after = begun.at.read, finish(begun)
    return PlannedMoment(
        context=after.context,
        state=after.state,
        policy=inputs.settings.policy,
        budget=inputs.budget,
        moment=begun.at.moment,
        cache=read.cache,
        called=read.used_at is not None and read.caching,
        outside=read.outside_tokens,
        recall=read.recall and read.caching,
        foldable=any(one.to_seq > after.state.folded_to for one in read.tree),
        evicted=frozenset(newly_left_out(begun.previous, after.state)),
        pruning=after.pruning,
    )


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
        """Return the moment of a call; None for an early record, a retry, a call with erased events, or one whose
        estimator or budget the server no longer supports."""
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
        before = await self._frontier_before(ref.session_id, done)
        decided = await self._database.fetch(_DECIDED, session_id=ref.session_id, before=call.created_at)
        row = await self._database.fetchrow(
            _FOLDABLE,
            session_id=ref.session_id,
            cover_id=cover_id(ref.session_id, policy.shows),
            before=call.created_at,
            head=call.head,
            folded_to=done.epoch.frontier.folded_to,
        )
        cache = cache_profile(call.model, policy.cache, self._caches, FORMATS[call.format].cache)
        try:
            moment = await asyncio.to_thread(_recorded_moment, done, before, policy, cache, counter, events, decided)
        except ContextError:
            return None  # the server's settings no longer allow such a budget
        return replace(moment, foldable=bool(row and row["foldable"]))

    async def _frontier_before(self, session_id: UUID, done: Reproduced) -> Frontier | None:
        """Return the frontier before the epoch that a call opened; None if it opened none.

        It opened its epoch if both were stored at the same time.
        """
        call, epoch = done.call, done.epoch
        if epoch.created_at != call.created_at:
            return None
        found = await audit.epochs_before(self._database, session_id, call.view, (epoch.head, epoch.epoch), 1)
        return found[0].frontier if found else START


def _recorded_moment(
    done: Reproduced,
    before: Frontier | None,
    policy: Policy,
    cache: CacheProfile,
    counter: Counter,
    events: Iterable[Event],
    decided: Sequence[Row],
) -> PlannedMoment:
    """Return the moment of a call that was rendered again, of its `events` as `counter` counts them.

    `before` is the frontier before the epoch that it opened, if any, `decided` are decisions on events. Raises
    InvalidPolicy or CannotFit for an impossible budget.
    """
    call, state, manifest = done.replayed, done.epoch.frontier, done.call.manifest
    pins = {one["seq"]: one["action"] == "pin" for one in decided if one["action"] in ("pin", "unpin")}
    by_seq = {one.seq: replace(one, pinned=pins[one.seq]) if one.seq in pins else one for one in events}
    budget = recorded_budget(done.call, policy)
    context = project(
        [by_seq[seq] for seq in sorted(by_seq)],
        state,
        counter,
        turn=call.context.turn,
        shows=policy.shows,
        ephemeral_tokens=max(0, budget.own(manifest.by_source.get("ephemeral", 0)) - REQUEST_TOKENS),
        summaries=call.context.summaries,
    )
    context = replace(context, shown_again=frozenset(one["seq"] for one in decided if one["action"] == "show"))
    moment, cause = cast(Moment, manifest.moment), None if before is None else done.epoch.cause
    pressed = moment == "pressed" and context.tokens <= budget.trigger
    return PlannedMoment(
        context=context,
        state=state,
        policy=policy,
        budget=budget,
        moment=moment,
        cache=cache,
        called=manifest.caching and cause != "start",
        outside=manifest.outside,
        recall=(manifest.recall or policy.recall or has_recall_tool(call.layout.tools)) and manifest.caching,
        forced=pressed if before is None else cause == "forced",
        evicted=frozenset() if before is None else frozenset(newly_left_out(before, state)),
        stalled=manifest.stalled,
        pruning=cast(Status, manifest.ttl_pruning),
    )
