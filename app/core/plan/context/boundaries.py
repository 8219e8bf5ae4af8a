"""Rules for legal cuts: each returns the indices that it allows, and `legal` intersects them.

A cut at index i removes items[:i] and keeps items[i:]. Protected events (`Context.protected`) may be before a cut,
because the reducer keeps them; but no cut falls inside their round.
"""

from collections.abc import Callable, Sequence

from app.core.log.events import ASSISTANT_SIDE, SPEAKERS, EventType
from app.core.plan.context.context import Context
from app.core.plan.context.item import Item

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
