"""The last resort: makes the budget hold without any summary, or says that nothing can.

In order, each only while the context is still too large: the oldest whole turns leave a one-line note behind; the
largest results of the running turn are shortened head and tail; its older results become stubs; its oldest rounds
leave; what is left of its results is shortened further.
"""

from dataclasses import dataclass
from typing import Final

from app.core.budget import Budget
from app.core.events import EventType
from app.core.plan.context import Context, Item, Reduced, Unit
from app.core.plan.drop import drop_units
from app.core.plan.frontier import Frontier, Stub
from app.core.plan.settle import must_stay
from app.core.plan.stubs import VISIBILITY, apply_stubs, shortened_for, stub_for

REDUCER = "last_resort"
NOTE_TOKENS_SPARE: Final = 120
"""Room kept for the note, whose length is known only once the drops are."""
SHORTEN_CHARS: Final = (8000, 4000, 2000, 1000)
SHORTEN_FURTHER_CHARS: Final = (500, 200)


@dataclass(frozen=True, slots=True)
class LastResortReducer:
    """Runs only above `budget.target`, and then aims for `budget.goal`."""

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """The smallest loss, in the order of the module's description, that fits.

        When the result is still above the target, it is the least that any order could reach.
        """
        if context.tokens <= budget.target:
            return Reduced(context, state)
        done = _drop_turns(context, budget, state)
        for chars in SHORTEN_CHARS:
            done = _shorten(done, budget.goal, chars, "shortened")
        done = _stub_running_turn(done, budget)
        done = _drop_rounds(done, budget)
        for chars in SHORTEN_FURTHER_CHARS:
            done = _shorten(done, budget.target, chars, "shortened_further")
        return done


def _drop_turns(context: Context, budget: Budget, state: Frontier) -> Reduced:
    stays = must_stay(context.items, context.turn)
    by_turn: dict[int, list[Unit]] = {}
    for unit in context.units:
        if unit.turn < context.turn and unit.items[0].event.seq not in stays:
            by_turn.setdefault(unit.turn, []).append(unit)
    over = context.tokens + NOTE_TOKENS_SPARE - budget.goal
    gone: list[Unit] = []
    for turn in sorted(by_turn):
        if over <= 0:
            break
        gone += by_turn[turn]
        over -= sum(i.tokens for unit in by_turn[turn] for i in unit.all_items)
    return drop_units(context, state, gone, REDUCER, "oldest_turns_over_target")


def _drop_rounds(done: Reduced, budget: Budget) -> Reduced:
    """Oldest units of the running turn, but never the newest one."""
    context = done.context
    over = context.tokens + NOTE_TOKENS_SPARE - budget.goal
    if context.tokens <= budget.goal:
        return done
    stays = must_stay(context.items, context.turn)
    candidates = [u for u in context.units[:-1] if u.items[0].event.seq not in stays]
    gone: list[Unit] = []
    for unit in candidates:
        if over <= 0:
            break
        gone.append(unit)
        over -= sum(i.tokens for i in unit.all_items)
    return drop_units(context, done.state, gone, REDUCER, "oldest_rounds_over_target")


def _shorten(done: Reduced, goal: int, chars: int, reason: str) -> Reduced:
    """Results longer than twice `chars`, the largest first."""
    context = done.context
    over = context.tokens - goal
    stubs: list[Stub] = []
    for item in sorted(_results(context), key=lambda i: (-i.tokens, i.event.seq)):
        if over <= 0:
            break
        if item.stub is not None and item.stub.chars == 0:
            continue
        short = shortened_for(item.event, chars, context.counter, REDUCER, reason)
        if short is not None and short.tokens < item.tokens:
            stubs.append(short)
            over -= item.tokens - short.tokens
    return apply_stubs(context, done.state, stubs)


def _stub_running_turn(done: Reduced, budget: Budget) -> Reduced:
    """Results become stubs whatever retention says, oldest first; the newest round's stay."""
    context = done.context
    over = context.tokens - budget.goal
    all_units = context.units
    newest = {i.event.seq for i in all_units[-1].all_items} if all_units else set()
    stubs: list[Stub] = []
    for item in _results(context):
        if over <= 0:
            break
        if item.event.seq in newest:
            continue
        stub = stub_for(item.event, context.counter, REDUCER, "older_results_over_target")
        if stub is not None and stub.tokens < item.tokens:
            stubs.append(stub)
            over -= item.tokens - stub.tokens
    return apply_stubs(context, done.state, stubs)


def _results(context: Context) -> tuple[Item, ...]:
    """Those that may be shown shorter: not pinned ones, nor what stands for a hidden one."""
    results = (i for i in context.items if i.event.type is EventType.TOOL_RESULT and not i.event.pinned)
    return tuple(i for i in results if i.stub is None or i.stub.reducer != VISIBILITY)
