"""Tool-result retention without economics: what the rules allow to go goes when it must, oldest first."""

from dataclasses import dataclass

from app.core.budget import Budget
from app.core.plan.candidates import candidates
from app.core.plan.context import Context, Reduced
from app.core.plan.frontier import Frontier
from app.core.plan.stubs import apply_stubs, stubs_for
from app.core.policy import Retention

REDUCER = "retention"


@dataclass(frozen=True, slots=True)
class RetentionReducer:
    """Stubs what the rules allow, oldest first, until the context is about within `budget.goal`."""

    retention: Retention

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Stubs only; drops nothing."""
        over = context.tokens - budget.goal
        going = []
        for candidate in candidates(context, self.retention):
            if over <= 0:
                break
            going.append(candidate)
            over -= candidate.saves
        return apply_stubs(context, state, stubs_for(context, going, self.retention.identifiers, REDUCER))
