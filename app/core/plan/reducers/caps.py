"""Caps on single kinds of content: tool results, dialogue and summaries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from app.core.log.events import EventType
from app.core.memory.cover import Summary
from app.core.plan.reducers.fold import cut_summaries
from app.core.plan.reducers.retention import candidates
from app.core.plan.state.context import Context, Reduced, Unit
from app.core.plan.state.drops import drop_units
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.stubs import apply_stubs, stubs_for
from app.core.policy.groups import Retention, Summarize
from app.core.tokens.budget import Budget

REDUCER: Final = "caps"
CAUSE: Final = "cap"
TOKENS_MIN: Final = 120
"""The size from which a cap stubs results. Other reductions spare larger ones too: they have more to choose from."""


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
