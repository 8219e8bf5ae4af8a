"""Tool-result retention without economics: results are evicted by rule if the budget demands it, oldest first."""

from dataclasses import dataclass

from app.core.plan.state.candidates import Candidate, candidates
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.stubs import apply_stubs, stubs_for
from app.core.policy.evictions import Retention
from app.core.tokens.budget import Budget

REDUCER = "retention"


@dataclass(frozen=True, slots=True)
class RetentionReducer:
    """Stubs what the rules allow, oldest first, until the context is about within `budget.goal`; if `whole`, all of it.

    Nothing is stubbed if that would save less than the share `least` of the context, and nothing from `keep_from` on.
    """

    retention: Retention
    least: float = 0.0
    whole: bool = False
    keep_from: int | None = None

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Stub results and arguments; drop nothing."""
        over = context.tokens - (0 if self.whole else budget.goal)
        going: list[Candidate] = []
        for candidate in candidates(context, self.retention, before=self.keep_from):
            if over <= 0:
                break
            going.append(candidate)
            over -= candidate.saves
        if sum(candidate.saves for candidate in going) < self.least * context.tokens:
            return Reduced(context, state)
        return apply_stubs(context, state, stubs_for(context, going, self.retention.identifiers, REDUCER))
