"""Caps on parts of a context, and the cut of its oldest part."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from app.core.log.events import BRIDGES, EventType
from app.core.memory.cover import Summary
from app.core.plan.reducers.fold import cut_summaries
from app.core.plan.reducers.retention import candidates
from app.core.plan.state import cuts
from app.core.plan.state.context import Context, Reduced, Unit
from app.core.plan.state.cuts import CutPoint
from app.core.plan.state.drops import drop_units
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.stubs import apply_stubs, stubs_for
from app.core.policy.groups import Cut, Retention, Summarize
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget, auto_keep

REDUCER: Final = "caps"
CAUSE: Final = "cap"
TOKENS_MIN: Final = 120
"""The size from which a cap takes results; a budget, which can take others, spares more."""


@dataclass(frozen=True, slots=True)
class CapsReducer:
    """Brings tool results and dialogue over their caps down to `low_water` of the cap, the oldest first.

    Results become stubs. Dialogue is everything else in the conversation; whole turns of it are dropped.
    """

    retention: Retention

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Reduce each kind of content that is over its cap.

        The age and number of results, by which retention judges, do not matter. The newest result, the results of
        `never_evict` tools, the running turn and protected events (I9) stay, even if the content stays over its cap.
        """
        done = self._results(context, budget, state)
        return self._dialogue(done.context, budget, done.state)

    def _results(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        cap = budget.caps.get("tool_results")
        taken = sum(item.tokens for item in context.items if item.event.type is EventType.TOOL_RESULT)
        if cap is None or taken <= cap:
            return Reduced(context, state)
        over = taken - int(cap * budget.low_water)
        going = []
        stays = self.retention.never_evict
        any_age = Retention(keep_last=1, superseded=False, arguments=False, min_tokens=TOKENS_MIN, never_evict=stays)
        for candidate in candidates(context, any_age, forced=True):
            if over <= 0:
                break
            going.append(replace(candidate, reason="over_the_cap_for_tool_results"))
            over -= candidate.saves
        return apply_stubs(context, state, stubs_for(context, going, self.retention.identifiers, REDUCER))

    def _dialogue(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        cap = budget.caps.get("dialogue")
        if cap is None or (taken := sum(map(_dialogue_tokens, context.units))) <= cap:
            return Reduced(context, state)
        over = taken - int(cap * budget.low_water)
        older = (unit for unit in context.units if 1 <= unit.turn < context.turn)
        gone: list[Unit] = []
        for _, turn in groupby(older, lambda unit: unit.turn):
            if over <= 0:
                break
            leaving = [unit for unit in turn if unit.items[0].event.seq not in context.protected]
            gone += leaving
            over -= sum(map(_dialogue_tokens, leaving))
        return drop_units(context, state, gone, REDUCER, "over_the_cap_for_dialogue")


@dataclass(frozen=True, slots=True)
class SummaryCapReducer:
    """Cuts the summaries of a context down to their cap; `summaries` must contain those that the state names."""

    summaries: Sequence[Summary]
    rules: Summarize

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Cut the summaries as `cut_summaries` does."""
        cap = budget.cap("summaries")
        if context.summary_tokens <= cap:
            return Reduced(context, state)
        return cut_summaries(Reduced(context, state), cap, self.summaries, self.rules)


def _dialogue_tokens(unit: Unit) -> int:
    return sum(item.tokens for item in unit.items)


ALWAYS: Final = (cuts.pairing, cuts.reasoning)
KEEP_TOKENS_MAX: Final = 16_000
"""The maximum of the newest part that gets no summary, unless the policy's cut sets its size. A view with a smaller
window may need summaries of newer events; those that a view does not need, it does not show."""


def newest_part(policy: Policy, budget: Budget) -> Cut:
    """Return the policy's cut, or the default one if it has no size.

    It is the same for a tightened budget, in which `room_for_newest` limits the part.
    """
    return policy.cut if policy.cut.sizes else default_cut(policy, budget)


def default_cut(policy: Policy, budget: Budget) -> Cut:
    """Return the cut that keeps `summarize.keep_ratio` of the (untightened) target, at most KEEP_TOKENS_MAX."""
    keep = min(int(max(budget.target, budget.fallback_target) * policy.summarize.keep_ratio), KEEP_TOKENS_MAX)
    return Cut(keep_tokens=max(1, budget.shown(keep)), split_turn="prefix")


def room_for_newest(context: Context, budget: Budget) -> int:
    """Return the maximum tokens of the newest part: `budget.low` less the prefix, which leaves room for summaries."""
    return max(1, budget.low - sum(event.tokens for event in context.prefix))


def newest_from(context: Context, budget: Budget, policy: Policy) -> int | None:
    """Return the first seq of the newest part that the policy keeps, as far as `budget.low` has room for it; None if
    that is the whole context."""
    point = find_cut(context, budget, newest_part(policy, budget), room_for_newest(context, budget))
    return None if point is None else context.items[point.index].event.seq


def find_cut(context: Context, budget: Budget, cut: Cut, most: int | None = None) -> CutPoint | None:
    """Return the point at which `cut` cuts the context; None if it cuts nothing off. `most` limits sizes in tokens."""
    items = context.items
    turns = [item.event.turn for item in items]
    legal = cuts.legal(context, (*ALWAYS, cuts.speakers) if cut.lean == "forward" else ALWAYS)
    starts = cuts.legal(context, (*ALWAYS, cuts.turn_starts))
    if cut.keep_messages is not None:
        stop = cuts.stop_by_count(len(items), cut.keep_messages)
    elif cut.keep_turns is not None:
        stop = cuts.stop_by_turns(turns, cut.keep_turns)
    else:
        keep = _keep_tokens(context, budget, cut, most)
        if keep is None:
            return None
        stop = cuts.stop_by_tokens([item.tokens for item in items], keep)
    if stop is None:
        return None
    if cut.lean == "forward":
        bridges = {index for index, item in enumerate(items) if item.event.type in BRIDGES}
        index = cuts.forward(stop, legal, bridges)
    else:
        index = cuts.back(stop, legal)
    return cuts.choose(index, turns, cut.split_turn, context.turn, starts)


def keep_tokens(budget: Budget, cut: Cut, prefix: int) -> int | None:
    """Return the number of newest tokens that a policy keeps besides `prefix`; None if its rule is not in tokens."""
    if cut.keep_tokens is not None:
        return budget.own(auto_keep(budget.window) if isinstance(cut.keep_tokens, str) else cut.keep_tokens)
    if cut.keep_ratio is None:
        return None
    return max(1, int((budget.own(budget.window) - prefix) * cut.keep_ratio))


def _keep_tokens(context: Context, budget: Budget, cut: Cut, most: int | None) -> int | None:
    """Return `keep_tokens` within `most`, raised to the tokens of `keep_recent_turns` if these fit."""
    prefix = sum(event.tokens for event in context.prefix)
    keep = keep_tokens(budget, cut, prefix)
    if keep is None:
        return None
    keep = keep if most is None else min(keep, most)
    if cut.keep_recent_turns:
        recent = sorted({item.event.turn for item in context.items})[-cut.keep_recent_turns :]
        taken = sum(item.tokens for item in context.items if item.event.turn in recent)
        room = (budget.low if budget.fallback_target else budget.own(budget.window)) - prefix
        if keep < taken <= room:
            keep = taken
    return keep
