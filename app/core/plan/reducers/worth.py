"""Whether a reduction is worth a new epoch."""

from app.core.plan.context.context import Reduced
from app.core.tokens.budget import ROOM_SHARE, Budget


def stall_reason(before: Reduced, reduced: Reduced, budget: Budget) -> str | None:
    """Return the reason not to make a reduction of a context within its target; None if it is made.

    A reduction that leaves little room below the threshold would soon be repeated. So it must save at least as much as
    all earlier ones did, and ROOM_SHARE of the threshold, unless it folds more, which is not repeated until there is
    another summary.
    """
    limit, room = budget.trigger, budget.trigger - reduced.context.tokens
    if before.context.tokens > budget.target or room >= ROOM_SHARE * limit:
        return None
    if room >= 0 and reduced.state.folded_to > before.state.folded_to:
        return None
    saved = before.context.tokens - reduced.context.tokens
    gone = sum(stub.saved for stub in before.state.stubs) + sum(drop.tokens for drop in before.state.drops)
    if saved >= max(gone, ROOM_SHARE * limit):
        return None
    shown = budget.shown
    return (
        f"what may go would save {shown(saved)} tokens only, and {shown(before.context.tokens)} are above the threshold"
    )
