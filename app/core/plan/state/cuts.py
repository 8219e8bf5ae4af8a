"""The newest part of a context, which a policy keeps, and the points at which the rest may be cut off."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.log.events import ASSISTANT_SIDE, BRIDGES, SPEAKERS, EventType
from app.core.plan.state.context import Context
from app.core.plan.state.items import Item
from app.core.policy.groups import Cut
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget, auto_keep

CutRule = Callable[[Context], frozenset[int]]


def legal(context: Context, rules: Sequence[CutRule]) -> tuple[int, ...]:
    """Return the indices that every rule allows, in order, and always 0 (nothing is removed)."""
    allowed = frozenset(range(len(context.items)))
    for rule in rules:
        allowed &= rule(context)
    return tuple(sorted(allowed | {0}))


def pairing(context: Context) -> frozenset[int]:
    """Return all indices outside rounds: a round's calls, including open ones, and all their results stay together."""
    at = {item.event.seq: index for index, item in enumerate(context.items)}
    inside: set[int] = set()
    for unit in context.units:
        if len(unit.items) + len(unit.results) > 1:
            last = max(at[item.event.seq] for item in unit.all_items)
            inside.update(range(at[unit.items[0].event.seq] + 1, last + 1))
    return frozenset(range(len(context.items))) - inside


def reasoning(context: Context) -> frozenset[int]:
    """Return all indices except between reasoning and the next assistant event: providers refuse one without the
    other."""
    items = context.items
    return frozenset(
        index
        for index in range(len(items))
        if index == 0 or not (items[index - 1].event.has_reasoning and items[index].event.type in ASSISTANT_SIDE)
    )


def turn_starts(context: Context) -> frozenset[int]:
    """Return the starts of turns: the first item, and a user's message that no other speaker precedes in its turn."""
    items = context.items
    starts: set[int] = set()
    leads_in = False
    for index, item in enumerate(items):
        event = item.event
        first = index == 0 or event.turn != items[index - 1].event.turn
        if first or (leads_in and event.type is EventType.USER_MESSAGE):
            starts.add(index)
        spoken = event.type in SPEAKERS or event.type is EventType.TOOL_RESULT
        leads_in = (first or leads_in) and not spoken
    return frozenset(starts)


def speakers(context: Context) -> frozenset[int]:
    """Return the user's and assistant's messages and calls, and events of authors except the system and tools."""
    return frozenset(index for index, item in enumerate(context.items) if _speaks(item))


def _speaks(item: Item) -> bool:
    event = item.event
    if event.type is EventType.TOOL_RESULT:
        return False
    return event.type in SPEAKERS or (event.author is not None and event.author not in ("system", "tool"))


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A cut that removes items[:index]. `split_turn` is the turn that it splits, None if it falls between turns."""

    index: int
    split_turn: int | None


def stop_by_tokens(tokens: Sequence[int], keep: int) -> int | None:
    """Return the last index from which there are at least `keep` tokens; None if there are fewer in all."""
    total = 0
    for index in range(len(tokens) - 1, -1, -1):
        total += tokens[index]
        if total >= keep:
            return index
    return None


def stop_by_count(count: int, keep: int) -> int | None:
    """Return the index at which the newest `keep` of `count` items begin; None if there are no more than `keep`."""
    return count - keep if count > keep else None


def stop_by_turns(turns: Sequence[int], keep: int) -> int | None:
    """Return the index at which the newest `keep` turns begin; None if there are no more than `keep`."""
    distinct = sorted(set(turns))
    return turns.index(distinct[-keep]) if len(distinct) > keep else None


def forward(stop: int | None, legal: Sequence[int], bridges: Collection[int] = ()) -> int:
    """Return the first legal index at or after the stop, else the first legal index; 0 if nothing is removed.

    The index then moves back over `bridges`: indices of items of neither speaker that introduce the next item.
    """
    cut = next((index for index in legal if stop is not None and index >= stop), min(legal, default=0))
    while cut - 1 > 0 and cut - 1 in bridges:
        cut -= 1
    return cut


def back(stop: int | None, legal: Sequence[int]) -> int:
    """Return the last legal index at or before the stop, else the first after it; 0 if nothing is removed."""
    if stop is None:
        return 0
    before = [index for index in legal if index <= stop]
    return max(before, default=min(legal, default=0))


def choose(index: int, turns: Sequence[int], mode: str, running: int, starts: Collection[int]) -> CutPoint | None:
    """Adjust a cut at `index` to whole turns as `mode` (`Cut.split_turn`) requires; None if nothing would be removed.

    `prefix` lets a cut split any turn, `protect_current` any but the running one. `advance` lets it split none: the cut
    moves to the next turn's start, at most to the running turn's. `starts` are the legal turn starts.
    """
    begins = next((at for at, turn in enumerate(turns) if turn == running), len(turns))
    if mode != "prefix" and index > begins:
        index = max((start for start in starts if start <= begins), default=0)
    if mode == "advance" and index not in starts:
        index = min((start for start in starts if start > index), default=max(starts, default=0))
    if not 0 < index < len(turns):
        return None
    return CutPoint(index, None if index in starts else turns[index])


ALWAYS: Final = (pairing, reasoning)
KEEP_TOKENS_MAX: Final = 16_000
"""The maximum size of the newest part, for which no summary is written, if the policy's cut has no size of its own. It
is small because a view with a smaller window may need summaries that others do not show."""


def newest_part(policy: Policy, budget: Budget) -> Cut:
    """Return the policy's cut, or the default one if it has no size.

    It is the same for a tightened budget, in which `room_for_newest` limits the part.
    """
    return policy.cut if policy.cut.sizes else default_cut(policy, budget)


def default_cut(policy: Policy, budget: Budget) -> Cut:
    """Return the cut that keeps `summarize.keep_ratio` of the (untightened) target, at most KEEP_TOKENS_MAX."""
    keep = min(int(max(budget.target, budget.fallback_target) * policy.summarize.keep_ratio), KEEP_TOKENS_MAX)
    return Cut(keep_tokens=max(1, budget.provider_tokens(keep)), split_turn="prefix")


def room_for_newest(context: Context, budget: Budget) -> int:
    """Return the maximum tokens of the newest part: `budget.low` less the prefix, which leaves room for summaries."""
    return max(1, budget.low - sum(event.tokens for event in context.prefix))


def newest_from(context: Context, budget: Budget, policy: Policy) -> int | None:
    """Return the first seq of the newest part, as far as `budget.low` has room; None if that is the whole context."""
    point = find_cut(context, budget, newest_part(policy, budget), room_for_newest(context, budget))
    return None if point is None else context.items[point.index].event.seq


def find_cut(context: Context, budget: Budget, cut: Cut, most: int | None = None) -> CutPoint | None:
    """Return the point at which `cut` cuts the context; None if it cuts nothing off. `most` limits sizes in tokens."""
    items = context.items
    turns = [item.event.turn for item in items]
    allowed = legal(context, (*ALWAYS, speakers) if cut.lean == "forward" else ALWAYS)
    starts = legal(context, (*ALWAYS, turn_starts))
    if cut.keep_messages is not None:
        stop = stop_by_count(len(items), cut.keep_messages)
    elif cut.keep_turns is not None:
        stop = stop_by_turns(turns, cut.keep_turns)
    else:
        keep = _kept_tokens(context, budget, cut, most)
        if keep is None:
            return None
        stop = stop_by_tokens([item.tokens for item in items], keep)
    if stop is None:
        return None
    if cut.lean == "forward":
        bridges = {index for index, item in enumerate(items) if item.event.type in BRIDGES}
        index = forward(stop, allowed, bridges)
    else:
        index = back(stop, allowed)
    return choose(index, turns, cut.split_turn, context.turn, starts)


def kept_tokens(budget: Budget, cut: Cut, prefix: int) -> int | None:
    """Return the number of newest tokens that a policy keeps besides `prefix`; None if its rule is not in tokens."""
    if cut.keep_tokens is not None:
        return budget.own(auto_keep(budget.window) if isinstance(cut.keep_tokens, str) else cut.keep_tokens)
    if cut.keep_ratio is None:
        return None
    return max(1, int((budget.own(budget.window) - prefix) * cut.keep_ratio))


def _kept_tokens(context: Context, budget: Budget, cut: Cut, most: int | None) -> int | None:
    """Return `kept_tokens` within `most`, raised to the tokens of `keep_recent_turns` if these fit."""
    prefix = sum(event.tokens for event in context.prefix)
    keep = kept_tokens(budget, cut, prefix)
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
