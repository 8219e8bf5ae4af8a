"""The last resort: bring a context within its target without any summary.

It runs only above the target and removes no more than needed, the least valuable first:

1. The oldest units before the policy's newest part (`Cut`; if nothing is older than that, the units of earlier turns)
   are dropped, with one note for all of them.
2. The largest results are shortened to their head and tail.
3. Older results become stubs.
4. The oldest of all other units are dropped, except the newest unit.
5. Results are shortened further.

Protected units are never dropped. The first step reduces to `budget.low`, the last one to the target, those between to
the target, or to `budget.low` if the cut leaves nothing older and `most` is not given. All steps first spare the events
in `held`, and run again without sparing them if the context still does not fit.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.log.event import content_text
from app.core.log.events import EventType
from app.core.plan.reducers import economics
from app.core.plan.reducers.retention import SUPERSEDED
from app.core.plan.state.context import Context, Reduced, Unit
from app.core.plan.state.cuts import find_cut
from app.core.plan.state.drops import drop_units, trim_note
from app.core.plan.state.frontier import Frontier, Stub
from app.core.plan.state.items import Item
from app.core.plan.state.stubs import VISIBILITY, apply_stubs, shortened_for, stub_for
from app.core.policy.groups import Cut
from app.core.tokens.budget import SLACK, Budget, allowed_excess

REDUCER = "last_resort"
BY_BUDGET: Final = (REDUCER, economics.REDUCER)
"""Reducers whose stubs are made for lack of room, not because a rule of the policy demands them."""
NOTE_TOKENS_SPARE: Final = 120
"""Tokens kept free for the note, whose length is known only after the drops."""
SHORTEN_CHARS: Final = (8000, 4000, 2000, 1000)
SHORTEN_FURTHER_CHARS: Final = (500, 200)
LEAST_CHARS: Final = SHORTEN_FURTHER_CHARS[-1]
SHORTENED_TOKENS_SPARE: Final = 30
"""Approximate tokens of the text between the two ends."""
SYSTEM: Final = EventType.SYSTEM_MESSAGE


@dataclass(frozen=True, slots=True)
class LastResortReducer:
    """Brings a context within its target; `cut` is the newest part that the policy keeps, of at most `most` tokens.

    `held` are the seqs that go last. With `most`, a context that consists of its newest part alone loses nothing
    in the first step.
    """

    cut: Cut
    most: int | None = None
    held: Sequence[int] = ()

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Reduce in the order of the module's description until the context fits.

        The context may stay above a target that reducing everything would reach.
        """
        if context.tokens <= budget.target:
            return Reduced(context, state)
        point = find_cut(context, budget, self.cut, self.most)
        rest = budget.low if point is None and self.most is None else budget.target
        droppable = {u.items[0].event.seq: u for u in context.units[:-1]}
        droppable = {seq: u for seq, u in droppable.items() if seq not in context.protected}
        if point is None and self.most is not None:
            older = set()  # all of it is the newest part
        elif point is None:
            older = {seq for seq, unit in droppable.items() if unit.turn < context.turn}
        else:
            older = {seq for seq in droppable if seq < context.items[point.index].event.seq}
        done = Reduced(context, state)
        for stays in (self.held, ()):
            if done.context.tokens <= budget.target:
                break
            free = {seq for seq, u in droppable.items() if not any(i.event.seq in stays for i in u.all_items)}
            done = _drop_oldest(done, older & free, budget, budget.low, "oldest_turns_over_target")
            for chars in SHORTEN_CHARS:
                done = _shorten_results(done, rest, chars, "shortened", stays)
            done = _stub_older(done, rest, stays)
            done = _drop_oldest(done, free, budget, rest, "oldest_rounds_over_target")
            for chars in SHORTEN_FURTHER_CHARS:
                done = _shorten_results(done, budget.target, chars, "shortened_further", stays)
        done = restore(done, state, budget, rest)
        return trim_note(done, budget.target)


def shorten_all(done: Reduced) -> Reduced:
    """Shorten all results as far as possible and drop nothing, since the note may take more tokens than drops save."""
    done = _stub_older(done, 0)
    return _shorten_results(done, 0, LEAST_CHARS, "shortened_further")


def _drop_oldest(done: Reduced, first_seqs: Collection[int], budget: Budget, goal: int, reason: str) -> Reduced:
    """Drop units that begin at `first_seqs`, the oldest first and system messages last, until `goal` is reached.

    If the last unit is larger than the excess, its results are shortened instead, by no more than the excess. If they
    cannot be shortened, the unit stays if dropping it would leave much room (SLACK) and the excess is small
    (`allowed_excess`). If it is dropped and leaves much room, units dropped before it that fit come back.
    """
    context = done.context
    units = (unit for unit in context.units if unit.items[0].event.seq in first_seqs)
    order = sorted(units, key=lambda unit: unit.items[0].event.type is SYSTEM)
    over = context.tokens + max(0, NOTE_TOKENS_SPARE - context.note_tokens) - goal
    gone: list[Unit] = []
    stubs: list[Stub] = []
    for unit in order if context.tokens > goal else ():
        if over <= 0:
            break
        size = sum(item.tokens for item in unit.all_items)
        if size > over:
            stubs = _shorten_unit(over, unit, context)
            fits = over <= allowed_excess(goal, budget.target)
            if stubs or (fits and size - over > SLACK * goal):
                break
        gone.append(unit)
        over -= size
    for unit in reversed(gone[:-1]):
        size = sum(item.tokens for item in unit.all_items)
        if over + size <= 0:
            gone.remove(unit)
            over += size
        elif -over <= SLACK * goal:
            break
    done = drop_units(context, done.state, gone, REDUCER, reason)
    return apply_stubs(done.context, done.state, stubs)


def _shorten_unit(over: int, unit: Unit, context: Context) -> list[Stub]:
    """Return stubs that shorten the results of a unit by `over` tokens, the largest first; none if impossible."""
    stubs: list[Stub] = []
    for item in sorted(_results(unit.all_items), key=lambda i: (-i.tokens, i.event.seq)):
        short = _shortened_stub(item, over, LEAST_CHARS, context, "shortened")
        if short is not None:
            stubs.append(short)
            over -= item.tokens - short.tokens
        if over <= 0:
            return stubs
    return []


def _shortened_stub(item: Item, over: int, least_chars: int, context: Context, reason: str) -> Stub | None:
    """Return a result shortened by about `over` tokens, with at least `least_chars` at each end; None if impossible."""
    text = content_text((item.event.body or {}).get("content"))
    if (item.stub is not None and item.stub.chars == 0) or len(text) <= 2 * least_chars:
        return None
    share = max(0.0, 1 - (over + SHORTENED_TOKENS_SPARE) / item.event.tokens)
    chars = max(least_chars, int(len(text) * share / 2))
    while True:
        short = shortened_for(item.event, chars, context.counter, REDUCER, reason)
        if short is not None and short.tokens < item.tokens and item.tokens - short.tokens >= over:
            return short
        if chars <= least_chars:
            return short if short is not None and short.tokens < item.tokens else None
        chars = max(least_chars, chars * 9 // 10)


def _shorten_results(done: Reduced, goal: int, chars: int, reason: str, stays: Collection[int] = ()) -> Reduced:
    """Shorten results longer than twice `chars`, the largest first, by no more than the excess over `goal`.

    Results in `stays` stay.
    """
    context = done.context
    over = context.tokens - goal
    stubs: list[Stub] = []
    for item in sorted(_results(context.items), key=lambda i: (-i.tokens, i.event.seq)):
        if over <= 0:
            break
        short = None if item.event.seq in stays else _shortened_stub(item, over, chars, context, reason)
        if short is not None:
            stubs.append(short)
            over -= item.tokens - short.tokens
    return apply_stubs(context, done.state, stubs)


def restore(done: Reduced, before: Frontier, budget: Budget, goal: int, order: Sequence[int] | None = None) -> Reduced:
    """Show results and arguments again that were stubbed since `before` for lack of room: in `order`, or newest first.

    They must fit below `goal`, and results below their cap as well. A result that does not fit whole comes back in
    part. Stubs that a rule of the policy demands, and those of repeated results, stay.
    """
    context, old = done.context, {stub.seq for stub in before.stubs}
    new = (stub for stub in done.state.stubs if stub.reducer in BY_BUDGET and stub.seq not in old)
    gone = dict.fromkeys(stub.seq for stub in new if stub.reason != SUPERSEDED)
    taken = sum(item.tokens for item in context.items if item.event.type is EventType.TOOL_RESULT)
    left, cap = goal - context.tokens, budget.cap("tool_results") - taken
    whole: dict[int, Item] = {}
    longer: list[Stub] = []
    for seq in reversed(gone) if order is None else (seq for seq in order if seq in gone):
        item = context.item(seq)
        if item is None or item.stub is None or item.event.pinned:
            continue
        is_result = item.event.type is EventType.TOOL_RESULT
        room = min(left, cap) if is_result else left
        if room <= SHORTENED_TOKENS_SPARE:
            continue
        size = item.event.tokens
        if size - item.tokens <= room:
            whole[seq] = Item(item.event, size)
        elif is_result:
            short = _shortened_stub(
                Item(item.event, size), size - item.tokens - room, LEAST_CHARS, context, "shortened"
            )
            if short is None or not item.tokens < short.tokens <= item.tokens + room:
                continue
            longer.append(short)
            size = short.tokens
        else:
            continue
        left -= size - item.tokens
        cap -= size - item.tokens if is_result else 0
    if whole:
        items = tuple(whole.get(item.event.seq, item) for item in context.items)
        rest = tuple(stub for stub in done.state.stubs if stub.seq not in whole)
        done = Reduced(replace(context, items=items), replace(done.state, stubs=rest))
    return apply_stubs(done.context, done.state, longer)


def _stub_older(done: Reduced, goal: int, stays: Collection[int] = ()) -> Reduced:
    """Stub results regardless of retention, oldest first, except those of the newest round and those in `stays`."""
    context = done.context
    over = context.tokens - goal
    newest = {i.event.seq for i in context.units[-1].all_items} if context.units else set()
    stubs: list[Stub] = []
    for item in _results(context.items):
        if over <= 0:
            break
        if item.event.seq in newest or item.event.seq in stays:
            continue
        stub = stub_for(item.event, context, REDUCER, "older_results_over_target")
        if stub is not None and stub.tokens < item.tokens:
            stubs.append(stub)
            over -= item.tokens - stub.tokens
    return apply_stubs(context, done.state, stubs)


def _results(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return the tool results that may be shortened: neither pinned nor hidden."""
    results = (i for i in items if i.event.type is EventType.TOOL_RESULT and not i.event.pinned)
    return tuple(i for i in results if i.stub is None or i.stub.reducer != VISIBILITY)
