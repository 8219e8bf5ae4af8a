"""The moments for which contexts are planned: a recorded call's, derived from its record, and a view's next reduction.

A moment holds the facts by which reducers decide.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, cast

from app.core.assembly.assemble import CallRecord
from app.core.assembly.inputs import ContextInputs, has_recall_tool, plan_inputs
from app.core.audit.declined import Declined, PlannedMoment, declined
from app.core.errors import CannotFit
from app.core.log.event import Event
from app.core.plan.pipeline import PlanStart, begin, finish
from app.core.plan.reducers.economics import Moment
from app.core.plan.reducers.ttl import Status
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.projection import project
from app.core.policy.policy import Policy
from app.core.record import ReplayedCall
from app.core.record.evictions import Eviction, evictions, newly_left_out
from app.core.tokens.budget import Budget, budget_for
from app.core.tokens.counter import REQUEST_TOKENS, Counter
from app.core.tokens.models import CacheProfile


@dataclass(frozen=True, slots=True)
class RecordedMoment:
    """The stored facts about a call's moment.

    `cause` and `before`, the frontier before, are those of the epoch that the call opened; None if it opened none.
    `shown_again` and `pins` (seq to whether it is pinned) are decisions on events.
    """

    policy: Policy
    cache: CacheProfile
    cause: str | None = None
    before: Frontier | None = None
    foldable: bool = False
    shown_again: frozenset[int] = frozenset()
    pins: Mapping[int, bool] | None = None


def planned_moment(
    call: ReplayedCall,
    events: Mapping[int, Event],
    state: Frontier,
    record: CallRecord,
    facts: RecordedMoment,
    counter: Counter,
) -> PlannedMoment | None:
    """Return the moment of a call that was rendered again; None if its record does not have it, or for a retry.

    `events` are those of the call as `counter` counts them, by seq. Raises InvalidPolicy or CannotFit for an impossible
    budget.
    """
    manifest, policy = record.manifest, facts.policy
    if manifest.moment is None or record.retry_of is not None:
        return None
    pins = facts.pins or {}
    counted = [replace(one, pinned=pins.get(seq, one.pinned)) if seq in pins else one for seq, one in events.items()]
    budget = recorded_budget(record, policy)
    ephemeral = max(0, budget.own(manifest.by_source.get("ephemeral", 0)) - REQUEST_TOKENS)
    context = project(
        sorted(counted, key=lambda one: one.seq),
        state,
        counter,
        turn=call.context.turn,
        shows=policy.shows,
        ephemeral_tokens=ephemeral,
        summaries=call.context.summaries,
    )
    context = replace(context, shown_again=facts.shown_again)
    moment, opened = cast(Moment, manifest.moment), facts.cause is not None
    forced = facts.cause == "forced" if opened else moment == "pressed" and context.tokens <= budget.trigger
    return PlannedMoment(
        context=context,
        state=state,
        policy=policy,
        budget=budget,
        moment=moment,
        cache=facts.cache,
        called=manifest.caching and facts.cause != "start",
        outside=manifest.outside,
        recall=(manifest.recall or policy.recall or has_recall_tool(call.layout.tools)) and manifest.caching,
        forced=forced,
        foldable=facts.foldable,
        evicted=frozenset(newly_left_out(facts.before or START, state)) if opened else frozenset(),
        stalled=manifest.stalled,
        pruning=cast(Status, manifest.ttl_pruning),
    )


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

    `moment` is that of the next call, at which `declined` are the reducers that evict nothing; None if it reduces.
    `stalled` is the reason for which such a reduction would be refused.
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


def new_evictions(before: Sequence[Eviction], after: Sequence[Eviction]) -> tuple[Eviction, ...]:
    """Return the parts of later evictions whose events the earlier ones did not leave out for the same reason.

    Both are in the order of the log. The tokens that a longer eviction saves in addition are divided by events.
    """
    known: dict[tuple[str, str, str], list[Eviction]] = {}
    for row in before:
        known.setdefault(_decision(row), []).append(row)
    new: list[Eviction] = []
    for row in after:
        earlier = known.get(_decision(row), [])
        at = bisect_left(earlier, row.from_seq, key=attrgetter("to_seq"))
        start, saved, parts = row.from_seq, row.tokens_saved, []
        while at < len(earlier) and earlier[at].from_seq <= row.to_seq:
            parts.append((start, earlier[at].from_seq - 1))
            start, saved, at = earlier[at].to_seq + 1, saved - earlier[at].tokens_saved, at + 1
        parts = [(first, last) for first, last in (*parts, (start, row.to_seq)) if first <= last]
        events = sum(last - first + 1 for first, last in parts)
        for first, last in parts:
            share = max(0, saved) * (last - first + 1) // events
            new.append(replace(row, from_seq=first, to_seq=last, tokens_saved=share))
    return tuple(new)


def _decision(row: Eviction) -> tuple[str, str, str]:
    return row.disposition, row.reducer, row.reason


def _rank(reducer: str) -> int:
    return ORDER.index(reducer) if reducer in ORDER else len(ORDER)


def _moment(inputs: ContextInputs, begun: PlanStart) -> PlannedMoment:
    read, base = begun.at.read, begun.base
    return PlannedMoment(
        context=base.context,
        state=base.state,
        policy=inputs.settings.policy,
        budget=inputs.budget,
        moment=begun.at.moment,
        cache=read.cache,
        called=read.used_at is not None and read.caching,
        outside=read.outside_tokens,
        recall=read.recall and read.caching,
        foldable=any(one.to_seq > base.state.folded_to for one in read.tree),
        pruning=begun.unchanged.pruning,
    )
