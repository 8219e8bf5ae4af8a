"""Rules for where a cut is legal: each returns the indices that it allows, and `legal` intersects them.

A cut at index i removes items[:i] and keeps items[i:]. Protected events (`Context.protected`) may be in front of a cut,
because the reducer keeps them apart; but no cut falls inside their round.
"""

from collections.abc import Callable, Sequence

from app.core.log.events import ASSISTANT_SIDE, SPEAKERS, EventType
from app.core.plan.context.context import Item, units

Boundary = Callable[[Sequence[Item]], frozenset[int]]


def legal(items: Sequence[Item], rules: Sequence[Boundary]) -> tuple[int, ...]:
    """The indices that every rule allows, in order, and always 0 (nothing is removed)."""
    allowed = frozenset(range(len(items)))
    for rule in rules:
        allowed &= rule(items)
    return tuple(sorted(allowed | {0}))


def pairing(items: Sequence[Item]) -> frozenset[int]:
    """All indices outside rounds: a round's calls and all their results stay or go together."""
    return _outside(items, lambda unit_items: len(unit_items) > 1)


def open_calls(items: Sequence[Item]) -> frozenset[int]:
    """All indices outside rounds with a call that has no result yet."""
    answered = {item.event.call_seq for item in items if item.event.type is EventType.TOOL_RESULT}

    def is_open(unit_items: Sequence[Item]) -> bool:
        return any(i.event.type is EventType.TOOL_CALL and i.event.seq not in answered for i in unit_items)

    return _outside(items, is_open)


def pins(items: Sequence[Item]) -> frozenset[int]:
    """All indices outside rounds with a pinned event."""
    return _outside(items, lambda unit_items: any(item.event.pinned for item in unit_items))


def reasoning(items: Sequence[Item]) -> frozenset[int]:
    """All indices not between reasoning and the assistant's next event: providers refuse one without the other."""
    return frozenset(
        index
        for index in range(len(items))
        if index == 0 or not (items[index - 1].event.reasons and items[index].event.type in ASSISTANT_SIDE)
    )


def turn_starts(items: Sequence[Item]) -> frozenset[int]:
    """The starts of turns: the first item, and the user's message if nobody spoke before it in that turn."""
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


def speakers(items: Sequence[Item]) -> frozenset[int]:
    """Messages and calls of the user or the assistant, and events whose author is neither the system nor a tool."""
    return frozenset(index for index, item in enumerate(items) if _speaks(item))


def _speaks(item: Item) -> bool:
    event = item.event
    if event.type is EventType.TOOL_RESULT:
        return False
    return event.type in SPEAKERS or (event.author is not None and event.author not in ("system", "tool"))


def _outside(items: Sequence[Item], applies: Callable[[Sequence[Item]], bool]) -> frozenset[int]:
    """All indices outside units for which `applies` is true."""
    at = {item.event.seq: index for index, item in enumerate(items)}
    inside: set[int] = set()
    for unit in units(items):
        if applies(unit.all_items):
            places = [at[item.event.seq] for item in unit.all_items]
            inside.update(range(min(places) + 1, max(places) + 1))
    return frozenset(range(len(items))) - inside
