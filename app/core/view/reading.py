"""Decisions whether more of a session must be read before its context is assembled."""

from uuid import UUID

from app.core.cover.summaries import cover_id
from app.core.plan.context.demanded import UNREAD
from app.core.plan.context.drops import EXPIRY
from app.core.plan.context.frontier import Frontier
from app.core.plan.reducers.fold import FoldReducer
from app.core.plan.update import update_context
from app.core.view.inputs import ContextInputs, plan_inputs, summary_tree


def may_heal(state: Frontier) -> bool:
    """Return whether events were dropped that a summary may cover by now."""
    return any(drop.reducer != EXPIRY for drop in state.drops)


def covered(inputs: ContextInputs) -> tuple[UUID, int]:
    """Return the view's cover, and the last seq that its loaded live summaries reach (0 without one)."""
    own = cover_id(inputs.loaded.session_id, inputs.settings.policy.shows)
    return own, max((one.to_seq for one in inputs.loaded.cover if one.cover_id == str(own)), default=0)


def heals(inputs: ContextInputs) -> bool:
    """Return whether the summaries that were read cover some of the dropped events."""
    return FoldReducer(summary_tree(inputs), inputs.settings.policy.summarize).heal_to(inputs.loaded.frontier) > 0


def heals_in_part(inputs: ContextInputs) -> bool:
    """Return whether summaries now cover some of the dropped events, but not all.

    Healing rewrites everything shown, so the other dropped events may return and must be read.
    """
    if inputs.request.at is not None or not may_heal(inputs.loaded.frontier):
        return False
    folding = FoldReducer(summary_tree(inputs), inputs.settings.policy.summarize)
    lost_to, drops = folding.heal_to(inputs.loaded.frontier), inputs.loaded.frontier.drops
    return lost_to > 0 and any(drop.to_seq > folding.last and drop.reducer != EXPIRY for drop in drops)


def may_fold(inputs: ContextInputs) -> bool:
    """Return whether this context may fold summaries, or replace those that are folded."""
    loaded, before = inputs.loaded, inputs.last_context.plan if inputs.last_context else None
    if not loaded.cover:
        return False
    if inputs.from_scratch or inputs.request.at is not None or inputs.request.force or may_heal(loaded.frontier):
        return True
    if loaded.requested_to > loaded.frontier.folded_to:
        return True
    start = 0 if before is None else before.count
    tokens = loaded.frontier.summary_tokens if before is None else before.context.tokens
    return tokens + sum(event.tokens for event in inputs.events[start:]) > inputs.budget.goal


def wants_more(inputs: ContextInputs) -> bool:
    """Return whether unread older events may still fit: the events read need no reduction, or include only a part of
    the newest round."""
    read, state = plan_inputs(inputs)
    planned = update_context(read, inputs.budget, inputs.settings.policy, state)
    newest = next((event.seq for event in reversed(inputs.events) if event.rendered), 0)
    cut = any(d.from_seq <= newest <= d.to_seq and d.reason == UNREAD for d in planned.state.drops)
    return cut or planned.context.tokens <= inputs.budget.trigger
