"""Where turns begin. A turn is a user event and all up to the next one.

A `turn.start` always begins a turn. A `user.message` begins one too, unless it is the first of a turn that a
`turn.start` has just opened, or it names the `turn_id` of the turn that is already running (a user speaking again into
a running turn).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.events import Draft, EventType


@dataclass(frozen=True, slots=True)
class TurnState:
    """What the next event's turn depends on: the running turn's own id, and whether it still awaits its user."""

    turn_id: str | None = None
    awaits_user: bool = False


FIRST = TurnState()


def count_turns(state: TurnState, drafts: Sequence[Draft]) -> tuple[TurnState, tuple[int, ...]]:
    """The state after the batch, and for each event how many turns of the batch have begun up to and including it."""
    begun = 0
    numbers: list[int] = []
    for draft in drafts:
        state, begins = _step(state, draft)
        begun += begins
        numbers.append(begun)
    return state, tuple(numbers)


def depends_on_state(drafts: Sequence[Draft]) -> bool:
    """Whether turn numbers (or the state after) would differ under another state before the batch."""
    first = next((d for d in drafts if d.type in (EventType.USER_MESSAGE, EventType.TURN_START)), None)
    return first is not None and first.type is EventType.USER_MESSAGE


def _step(state: TurnState, draft: Draft) -> tuple[TurnState, bool]:
    if draft.type is EventType.TURN_START:
        return TurnState(draft.turn_id, awaits_user=True), True
    if draft.type is not EventType.USER_MESSAGE:
        return state, False
    if state.awaits_user or (draft.turn_id is not None and draft.turn_id == state.turn_id):
        return TurnState(draft.turn_id or state.turn_id), False
    return TurnState(draft.turn_id), True
