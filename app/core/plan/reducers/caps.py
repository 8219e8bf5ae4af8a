"""Caps: each kind of content is reduced to its own cap, regardless of the room that others leave."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from app.core.cover.summaries import Summary
from app.core.log.events import EventType
from app.core.plan.context.candidates import candidates
from app.core.plan.context.context import Context, Reduced, Unit
from app.core.plan.context.drops import drop_units
from app.core.plan.context.frontier import Frontier
from app.core.plan.context.stubs import apply_stubs, stubs_for
from app.core.plan.reducers.fold import cut_summaries
from app.core.policy.evictions import Retention
from app.core.policy.summarize import Summarize
from app.core.tokens.budget import Budget

REDUCER: Final = "caps"
CAUSE: Final = "cap"


@dataclass(frozen=True, slots=True)
class CapsReducer:
    """Brings tool results and dialogue over their caps down to `low_water` of the cap, the oldest first.

    Results become stubs. Dialogue is everything else in the conversation; whole turns of it are dropped.
    """

    retention: Retention

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Reduce content over its cap, regardless of age or number, except content that may never be evicted.

        The newest result, the running turn and protected events (I9) stay. If no cap is set nothing changes: the
        reducers that follow bring the context within its budget.
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
        every = Retention(keep_last=1, superseded=False, arguments=False, never_evict=self.retention.never_evict)
        for candidate in candidates(context, every, forced=True):
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
    """Cuts the summaries of a context to their cap, as the last resort would; `summaries` include those it shows."""

    summaries: Sequence[Summary]
    rules: Summarize

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Shorten the longest summaries; in a clipped archive leave out those between the first and the last."""
        cap = budget.cap("summaries")
        if context.summary_tokens <= cap:
            return Reduced(context, state)
        return cut_summaries(Reduced(context, state), cap, self.summaries, self.rules)


def _dialogue_tokens(unit: Unit) -> int:
    return sum(item.tokens for item in unit.items)
