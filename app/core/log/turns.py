"""Turns of a log, and the lifetime of events in turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.core.log.events import Draft, EventType


@dataclass(frozen=True, slots=True)
class TurnState:
    """The state that determines the next event's turn: the running turn's id, and whether its user message is
    pending."""

    turn_id: str | None = None
    awaits_user: bool = False


FIRST: Final = TurnState()

TURN_MARKS: Final = (EventType.USER_MESSAGE, EventType.TURN_START, EventType.TURN_END)
"""The types of events that determine the running turn."""


def count_turns(state: TurnState, drafts: Sequence[Draft]) -> tuple[TurnState, tuple[int, ...]]:
    """Return the state after the batch, and for each event the number of turns begun in the batch up to and with it."""
    begun = 0
    numbers: list[int] = []
    for draft in drafts:
        state, begins = _step(state, draft)
        begun += begins
        numbers.append(begun)
    return state, tuple(numbers)


def depends_on_state(drafts: Sequence[Draft]) -> bool:
    """Return whether the batch's turn numbers, or the state after it, depend on the state before it."""
    first = next((d for d in drafts if d.type in TURN_MARKS), None)
    if first is None or first.type is EventType.TURN_START:
        return False
    return first.type is EventType.USER_MESSAGE or first.turn_id is not None


def moves_state(drafts: Sequence[Draft]) -> bool:
    """Return whether the batch may change the state."""
    return any(draft.type in TURN_MARKS for draft in drafts)


@dataclass(frozen=True, slots=True)
class TurnMark:
    """An event that delimits turns: a user message, or a turn's explicit start or end."""

    seq: int
    type: EventType
    turn_id: str | None


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: its first seq, its id, and whether it was explicitly started and ended."""

    from_seq: int
    turn_id: str | None
    explicit: bool
    ended: bool

    def state(self, *, running: bool) -> str:
        """Return `running` for the last turn until it ends; else `ended`, or `interrupted` for a turn that was
        explicitly started but never ended. The flag `running` means that this is the last turn."""
        if self.ended:
            return "ended"
        if running:
            return "running"
        return "interrupted" if self.explicit else "ended"


def turn_of(marks: Sequence[TurnMark]) -> Turn:
    """Return the turn with these marks, in order; the first mark begins it."""
    first = marks[0]
    state, ended = TurnState(first.turn_id, awaits_user=first.type is EventType.TURN_START), False
    turn_id = first.turn_id
    for mark in marks[1:]:
        if mark.type is EventType.TURN_END:
            ended = ended or mark.turn_id in (None, turn_id)
        elif mark.type is EventType.USER_MESSAGE and state.awaits_user:
            turn_id = mark.turn_id or turn_id
            state = TurnState(turn_id)
    return Turn(first.seq, turn_id, first.type is EventType.TURN_START, ended)


def _step(state: TurnState, draft: Draft) -> tuple[TurnState, bool]:
    if draft.type is EventType.TURN_START:
        return TurnState(draft.turn_id, awaits_user=True), True
    if draft.type is EventType.TURN_END:
        return (FIRST if draft.turn_id in (None, state.turn_id) else state), False
    if draft.type is not EventType.USER_MESSAGE:
        return state, False
    if state.awaits_user or (draft.turn_id is not None and draft.turn_id == state.turn_id):
        return TurnState(draft.turn_id or state.turn_id), False
    return TurnState(draft.turn_id), True
