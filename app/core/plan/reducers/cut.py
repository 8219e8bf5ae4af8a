"""The cut point of a policy: the part after it is summarized last and dropped last."""

from typing import Final

from app.core.log.events import BRIDGES
from app.core.plan.context import boundaries, cut_point
from app.core.plan.context.context import Context
from app.core.plan.context.cut_point import CutPoint
from app.core.policy.evictions import Cut
from app.core.policy.policy import Policy
from app.core.policy.threshold import auto_keep
from app.core.tokens.budget import Budget

ALWAYS: Final = (boundaries.pairing, boundaries.reasoning)
KEEP_TOKENS_MAX: Final = 16_000
"""The maximum that stays unsummarized in a large window, unless a cut says otherwise. A smaller view may need the
summaries, and summarized events are still shown verbatim while there is room."""


def newest_part(policy: Policy, budget: Budget) -> Cut:
    """Return the cut of a policy; if it has no size, a cut that keeps `summarize.keep_ratio` of the target.

    A tightened budget, which may have less room (`room_for_newest`), does not change it.
    """
    return policy.cut if policy.cut.has_size else part_by_room(policy, budget)


def part_by_room(policy: Policy, budget: Budget) -> Cut:
    """Return the cut that keeps `summarize.keep_ratio` of the target, at most KEEP_TOKENS_MAX."""
    keep = min(int(max(budget.target, budget.fallback_target) * policy.summarize.keep_ratio), KEEP_TOKENS_MAX)
    return Cut(keep_tokens=max(1, budget.shown(keep)), split_turn="prefix")


def room_for_newest(context: Context, budget: Budget) -> int:
    """Return the maximum tokens of the newest part that leave room for summaries."""
    return max(1, budget.low - sum(event.tokens for event in context.prefix))


def newest_from(context: Context, budget: Budget, policy: Policy) -> int | None:
    """Return the first seq of the newest part that the policy keeps, as far as `budget.low` has room for it; None if
    that is the whole context."""
    point = find(context, budget, newest_part(policy, budget), room_for_newest(context, budget))
    return None if point is None else context.items[point.index].event.seq


def find(context: Context, budget: Budget, cut: Cut, most: int | None = None) -> CutPoint | None:
    """Return the policy's cut of this context, None without one; `most` limits the tokens kept by a rule in tokens."""
    items = context.items
    turns = [item.event.turn for item in items]
    legal = boundaries.legal(context, (*ALWAYS, boundaries.speakers) if cut.lean == "forward" else ALWAYS)
    starts = boundaries.legal(context, (*ALWAYS, boundaries.turn_starts))
    if cut.keep_messages is not None:
        stop = cut_point.stop_by_count(len(items), cut.keep_messages)
    elif cut.keep_turns is not None:
        stop = cut_point.stop_by_turns(turns, cut.keep_turns)
    else:
        keep = _keep_tokens(context, budget, cut, most)
        if keep is None:
            return None
        stop = cut_point.stop_by_tokens([item.tokens for item in items], keep)
    if stop is None:
        return None
    if cut.lean == "forward":
        bridges = {index for index, item in enumerate(items) if item.event.type in BRIDGES}
        index = cut_point.forward(stop, legal, bridges)
    else:
        index = cut_point.back(stop, legal)
    return cut_point.choose(index, turns, cut.split_turn, context.turn, starts)


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
