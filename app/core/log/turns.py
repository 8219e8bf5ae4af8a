"""Turns of a log, and the lifetime of events in turns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final, Literal

from app.core.errors import InvalidRequest
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


DAYS_MAX: Final = 36_500
DELIVERY_DAYS_MAX: Final = 30
"""The maximum days for which deliveries are kept, whatever a rule says."""

SessionRule = Literal["age", "idle"]
RecordRule = Literal["calls", "compactions", "changes", "deliveries"]


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The days for which data is kept; None: without limit.

    `session_days` counts from a session's creation, `idle_days` from its last use. The others apply to records about
    sessions: calls, ended compactions, changes for streams, ended deliveries.
    """

    session_days: int | None = None
    idle_days: int | None = None
    call_days: int | None = None
    compaction_days: int | None = None
    change_days: int | None = None
    delivery_days: int | None = None

    def of_records(self) -> Mapping[RecordRule, int]:
        """Return the days of the rules about records that are set."""
        days: dict[RecordRule, int | None] = {
            "calls": self.call_days,
            "compactions": self.compaction_days,
            "changes": self.change_days,
            "deliveries": self.delivery_days,
        }
        return {rule: number for rule, number in days.items() if number is not None}

    def of_sessions(self) -> Mapping[SessionRule, int]:
        """Return the days of the rules about sessions that are set."""
        days: dict[SessionRule, int | None] = {"age": self.session_days, "idle": self.idle_days}
        return {rule: number for rule, number in days.items() if number is not None}

    def created_before(self, now: datetime) -> datetime | None:
        """Return the creation time before which sessions may be past their time; None if sessions have no limit."""
        days = self.of_sessions().values()
        return now - timedelta(days=min(days)) if days else None

    def expired_rule(self, life: "Life", now: datetime) -> SessionRule | None:
        """Return the rule by which a session is past its time; None if it is not."""
        if self.session_days is not None and life.created_at < now - timedelta(days=self.session_days):
            return "age"
        if (
            self.idle_days is not None
            and not life.has_running_compaction
            and life.used_at < now - timedelta(days=self.idle_days)
        ):
            return "idle"
        return None


@dataclass(frozen=True, slots=True)
class Life:
    """The creation and last use of a session, with all of its lines; `has_running_compaction`: a summary of it is being
    written."""

    created_at: datetime
    used_at: datetime
    has_running_compaction: bool = False


@dataclass(frozen=True, slots=True)
class DueSession:
    """A session past its time, and the rule that applies."""

    id: str
    rule: SessionRule
    created_at: datetime
    used_at: datetime


def validate(asked: Lifetimes) -> Lifetimes:
    """Return the rules with None in place of 0, which means the same. Raises InvalidRequest for days out of range."""
    values: dict[str, int | None] = {}
    for one in fields(asked):
        days = getattr(asked, one.name)
        most = DELIVERY_DAYS_MAX if one.name == "delivery_days" else DAYS_MAX
        if days is not None and not 0 <= days <= most:
            raise InvalidRequest(f"{one.name} must be from 0 to {most}; 0 keeps for ever", field=one.name)
        values[one.name] = days or None
    return Lifetimes(**values)


def due_sessions(
    rules: Lifetimes, now: datetime, lives: Mapping[str, Life], families: Mapping[str, Collection[str]]
) -> list[DueSession]:
    """Return the sessions past their time whose family, which shares their events, is past its time, too."""
    over = {name: rules.expired_rule(life, now) for name, life in lives.items()}
    found = []
    for name, family in families.items():
        rule = over.get(name)
        if rule is not None and all(over.get(one) for one in family):
            found.append(DueSession(name, rule, lives[name].created_at, lives[name].used_at))
    return found
