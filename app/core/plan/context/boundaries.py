"""Where a cut is legal: one function per rule, whose indices are intersected.

A cut at index i lets items[:i] go and items[i:] stay. What may never go (pinned events, open calls, the running turn's
user message) need not end a cut: the reducer keeps it apart (`Context.protected`). No rule lets a cut fall into its
round, though.
"""

from collections.abc import Callable, Sequence

from app.core.log.events import ASSISTANT_SIDE, SPEAKERS, EventType
from app.core.plan.context.context import Item, units

Boundary = Callable[[Sequence[Item]], frozenset[int]]


def legal(items: Sequence[Item], rules: Sequence[Boundary]) -> tuple[int, ...]:
    """The indices that every rule allows, in order. 0 (nothing goes) always is."""
    allowed = frozenset(range(len(items)))
    for rule in rules:
        allowed &= rule(items)
    return tuple(sorted(allowed | {0}))


def pairing(items: Sequence[Item]) -> frozenset[int]:
    """Not inside a round: its calls and all their results stay or go together."""
    return _outside(items, lambda unit_items: len(unit_items) > 1)


def open_calls(items: Sequence[Item]) -> frozenset[int]:
    """Not inside a round with a call that has no result yet."""
    answered = {item.event.call_seq for item in items if item.event.type is EventType.TOOL_RESULT}

    def is_open(unit_items: Sequence[Item]) -> bool:
        return any(i.event.type is EventType.TOOL_CALL and i.event.seq not in answered for i in unit_items)

    return _outside(items, is_open)


def pins(items: Sequence[Item]) -> frozenset[int]:
    """Not inside a round that holds a pinned event."""
    return _outside(items, lambda unit_items: any(item.event.pinned for item in unit_items))


def reasoning(items: Sequence[Item]) -> frozenset[int]:
    """Not between reasoning and what the assistant did next: a provider refuses the one without the other."""
    return frozenset(
        index
        for index in range(len(items))
        if index == 0 or not (items[index - 1].event.reasons and items[index].event.type in ASSISTANT_SIDE)
    )


def turn_starts(items: Sequence[Item]) -> frozenset[int]:
    """Only where a turn begins: at its first item, and at its user's message when nobody has spoken in it before."""
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
    """Only at a user's or the assistant's message or call, or at what an author other than the system wrote."""
    return frozenset(index for index, item in enumerate(items) if _speaks(item))


def _speaks(item: Item) -> bool:
    event = item.event
    if event.type is EventType.TOOL_RESULT:
        return False
    return event.type in SPEAKERS or (event.author is not None and event.author not in ("system", "tool"))


def _outside(items: Sequence[Item], applies: Callable[[Sequence[Item]], bool]) -> frozenset[int]:
    """All indices but those inside a unit to which a rule applies."""
    at = {item.event.seq: index for index, item in enumerate(items)}
    inside: set[int] = set()
    for unit in units(items):
        if applies(unit.all_items):
            places = [at[item.event.seq] for item in unit.all_items]
            inside.update(range(min(places) + 1, max(places) + 1))
    return frozenset(range(len(items))) - inside
