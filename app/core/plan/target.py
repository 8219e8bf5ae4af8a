"""Bring a plan within its target when its policy's evictions were not enough."""

from dataclasses import replace

from app.core.errors import CannotFit
from app.core.plan.reducers import economics
from app.core.plan.reducers.earnings import last_unit_seq
from app.core.plan.reducers.fold import fold_all, show_fewer
from app.core.plan.reducers.last_resort import LastResortReducer, restore, shorten_all
from app.core.plan.reducers.retention import candidates
from app.core.plan.state import drops
from app.core.plan.state.context import Reduced
from app.core.plan.state.cuts import newest_part, room_for_newest
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.results import held_content, ranked_files
from app.core.plan.state.stubs import Candidate, apply_stubs, omit_recall_hints, stubs_for
from app.core.plan.update import PlanInputs
from app.core.policy.groups import Retention
from app.core.policy.policy import Policy
from app.core.tokens.budget import ROUND_SHARE, Budget


def fit_target(
    after: Reduced,
    base: Reduced,
    read: PlanInputs,
    budget: Budget,
    policy: Policy,
    *,
    state: Frontier,
    cause: str | None,
) -> tuple[Reduced, str | None]:
    """Return `after`, the result of the evictions, within its target, and the cause of its epoch. Raises CannotFit.

    `base` is the context before evictions, `state` the frontier of the previous call.
    """
    after, cause = _last_resort(after, read, budget, policy, cause)
    if policy.retention.working_set and base.context.tokens > budget.trigger:
        if after is not base and after.state.folds and not budget.fallback_target:
            after = _leave_room(after, budget, policy.retention)
        after = restore(after, base.state, budget, budget.refill, ranked_files(after.context))
    if any(drop.reason == drops.UNREAD for drop in set(after.state.drops) - set(state.drops)):
        after = restore(after, state, budget, budget.low)
    if after.context.tokens > max(budget.target, budget.fallback_target):
        after, cause = _smallest(base, read, budget, policy), "budget"
    if not read.recall:
        after = omit_recall_hints(state, after, (*read.folded, *read.tree), policy.summarize)
    if after.context.tokens > max(budget.target, budget.fallback_target):
        least, limit = budget.provider_tokens(after.context.tokens), budget.limit or budget.target
        raise CannotFit(
            f"the smallest legal context takes {least} tokens, but the target is {limit}",
            minimum_tokens=least,
            target=limit,
            by_source=budget.parts(after.context.by_source),
        )
    return after, cause


def _leave_room(done: Reduced, budget: Budget, retention: Retention) -> Reduced:
    """Stub the newest content of files, the least valuable first, until a folded context has room for one more round.

    Otherwise the next call would open another epoch. Files larger than that room stay, since an edit may quote them,
    and so does content that the model has not seen yet.
    """
    context, room = done.context, int(ROUND_SHARE * budget.trigger)
    over = context.tokens + room - budget.trigger
    found = candidates(context, retention, forced=True, before=last_unit_seq(context)) if over > 0 else ()
    known = {one.item.event.seq: one for one in found if one.saves <= room}
    going: list[Candidate] = []
    for one in (known[seq] for seq in reversed(ranked_files(context)) if seq in known):
        if over > 0:
            going.append(one)
            over -= one.saves
    going.sort(key=lambda one: one.item.event.seq)
    return apply_stubs(context, done.state, stubs_for(context, going, retention.identifiers, economics.REDUCER))


def _last_resort(
    after: Reduced, read: PlanInputs, budget: Budget, policy: Policy, cause: str | None
) -> tuple[Reduced, str | None]:
    """Fold every summary, then drop, shorten and stub until the target is met, or nothing more can go."""
    if after.context.tokens <= budget.target:
        return after, cause
    known = (*read.folded, *read.tree)
    held_before = held_content(after.context, policy.retention.working_set, budget.goal)
    done = fold_all(after, read.tree, known, budget, policy.summarize, held_before)
    held_after = held_content(done.context, policy.retention.working_set, budget.goal)
    last = LastResortReducer(policy.cut, held=held_after)
    if budget.fallback_target:
        last = LastResortReducer(newest_part(policy, budget), room_for_newest(done.context, budget), held_after)
    done = last.reduce(done.context, budget, done.state)
    done = show_fewer(done, budget.target, known, policy.summarize)
    return (after, cause) if done.state is after.state else (done, "budget")


def _smallest(base: Reduced, read: PlanInputs, budget: Budget, policy: Policy) -> Reduced:
    """Return the smallest legal context, so that the minimum in an error is one that fits.

    Reducing step by step, the least valuable first, may end above a target that reducing everything would reach.
    """
    nothing = replace(budget, window=0, target=0, goal=0, threshold=0, low_water=0.0, fallback_target=0)
    known = (*read.folded, *read.tree)
    bare = show_fewer(shorten_all(base), 0, known, policy.summarize)
    done, _ = _last_resort(base, read, nothing, policy, None)
    return min(done, bare, key=lambda done: done.context.tokens)
