"""The evictions that the next reduction of a view would make, and the reasons for which they are not made yet."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.assembly.inputs import ContextInputs, plan_inputs
from app.core.audit.declined import Declined, PlannedMoment, declined
from app.core.errors import CannotFit
from app.core.plan.pipeline import PlanStart, begin, finish
from app.core.plan.reducers.economics import Moment
from app.core.record.evictions import Eviction, evictions

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
        at, start, saved, parts = bisect_left(earlier, row.from_seq, key=_end), row.from_seq, row.tokens_saved, []
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


def _end(row: Eviction) -> int:
    return row.to_seq


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
