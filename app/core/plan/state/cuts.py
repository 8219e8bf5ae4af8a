"""Seqs at which a context may be cut."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from app.core.log.events import ASSISTANT_SIDE, SPEAKERS, EventType
from app.core.plan.state.context import Context
from app.core.plan.state.items import Item

Boundary = Callable[[Context], frozenset[int]]


def legal(context: Context, rules: Sequence[Boundary]) -> tuple[int, ...]:
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
        if index == 0 or not (items[index - 1].event.reasons and items[index].event.type in ASSISTANT_SIDE)
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
    """A cut that removes items[:index]. `split_turn` is the turn that it splits, None if it falls between turns.

    `turn_start` is the index at which the turn of items[index] begins: `index` itself, unless that turn is split.
    """

    index: int
    split_turn: int | None
    turn_start: int


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


def choose(cut: int, turns: Sequence[int], split_turn: str, running: int, starts: Collection[int]) -> CutPoint | None:
    """Adjust `cut` to whole turns as `split_turn` requires; None if nothing would be removed.

    `prefix` lets a cut split any turn, `protect_current` any but the running one. `advance` lets it split none: the cut
    moves to the next turn's start, at most to the running turn's. `starts` are the legal turn starts.
    """
    begins = next((index for index, turn in enumerate(turns) if turn == running), len(turns))
    if split_turn != "prefix" and cut > begins:
        cut = max((index for index in starts if index <= begins), default=0)
    if split_turn == "advance" and cut not in starts:
        cut = min((index for index in starts if index > cut), default=max(starts, default=0))
    if not 0 < cut < len(turns):
        return None
    if cut in starts:
        return CutPoint(cut, None, cut)
    own = (index for index in starts if index < cut and turns[index] == turns[cut])
    return CutPoint(cut, turns[cut], max(own, default=turns.index(turns[cut])))
