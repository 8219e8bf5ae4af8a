"""Tool-result retention: old results become stubs, by age in turns and by count per tool."""

from collections import Counter as Tally
from dataclasses import dataclass

from app.core.budget import Budget
from app.core.events import EventType
from app.core.plan.context import Context, Item, Reduced
from app.core.plan.frontier import Frontier, Stub
from app.core.plan.stubs import apply_stubs, stub_for
from app.core.policy import Retention

REDUCER = "retention"


@dataclass(frozen=True, slots=True)
class RetentionReducer:
    """Stubs what the rules allow, oldest first, until the context is within `budget.goal`.

    Pinned results, results of `never_evict` tools and results whose stub would be no smaller stay whole.
    """

    retention: Retention

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Stubs only; drops nothing."""
        over = context.tokens - budget.goal
        stubs: list[Stub] = []
        for item, reason in self._eligible(context):
            if over <= 0:
                break
            stub = stub_for(item.event, context.counter, REDUCER, reason)
            if stub is not None and stub.tokens < item.tokens:
                stubs.append(stub)
                over -= item.tokens - stub.tokens
        return apply_stubs(context, state, stubs)

    def _eligible(self, context: Context) -> list[tuple[Item, str]]:
        newer: Tally[str] = Tally()
        eligible: list[tuple[Item, str]] = []
        for item in reversed(context.items):
            event = item.event
            if event.type is not EventType.TOOL_RESULT:
                continue
            tool = event.tool or ""
            rule = self.retention.rule(event.tool)
            if rule is not None and not event.pinned and (item.stub is None or item.stub.chars):
                if rule.age_turns is not None and context.turn - event.turn >= rule.age_turns:
                    eligible.append((item, f"at_least_{rule.age_turns}_turns_old"))
                elif rule.keep_last is not None and newer[tool] >= rule.keep_last:
                    eligible.append((item, f"not_among_last_{rule.keep_last}_of_tool"))
            newer[tool] += 1
        eligible.reverse()
        return eligible
