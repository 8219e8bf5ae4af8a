"""Caps: one kind of content is reduced to its own cap, however much room the others leave."""

from dataclasses import dataclass, replace

from app.core.log.events import EventType
from app.core.plan.context.candidates import candidates
from app.core.plan.context.context import Context, Reduced
from app.core.plan.context.frontier import Frontier
from app.core.plan.context.stubs import apply_stubs, stubs_for
from app.core.policy.evictions import Retention
from app.core.tokens.budget import Budget

REDUCER = "caps"


@dataclass(frozen=True, slots=True)
class CapsReducer:
    """Tool results over `budget.cap("tool_results")` become stubs, oldest first, down to `low_water` of the cap."""

    retention: Retention

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Stub results whatever their age or number, except the newest and those that may never be evicted.

        Without a cap for tool results nothing changes: the reducers that follow bring the context within its budget.
        """
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
