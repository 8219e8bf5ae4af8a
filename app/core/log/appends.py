"""Appends: their events as they are parsed, and placed in a log: their turns, and the calls that results answer."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from app.core import dataclass, field
from app.core.errors import DuplicateCall, HeadConflict, InvalidEvent, InvalidRequest, UnknownCall
from app.core.log.event import Event, event_time, first_line
from app.core.log.events import (
    BOOKKEEPING,
    EVENTS_PER_BATCH_MAX,
    INPUT_FIELDS,
    NESTING_MAX,
    RULES,
    BrokenRule,
    Draft,
    EventType,
    Json,
    canonical_json,
    check_values,
    finite,
    too_deep,
)


def has_values(metadata: Json, wanted: Json, *, exact: bool) -> bool:
    """Return whether metadata has the wanted value; for an object, all of its named fields.

    A list must be equal if `exact`; otherwise it must contain all of the wanted items, in any order.
    """
    if isinstance(wanted, Mapping):
        return isinstance(metadata, Mapping) and all(
            name in metadata and has_values(metadata[name], value, exact=exact) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(metadata, list):
            return False
        if exact:
            return _equal(metadata, wanted)
        return all(any(has_values(one, value, exact=False) for one in metadata) for value in wanted)
    return _equal(metadata, wanted)


def check_names_values(metadata: Mapping[str, Json]) -> None:
    """Raise InvalidRequest unless a condition names a value: an undefined variable must not match everybody's sessions.

    The condition must hold neither an empty object nor an empty list, and at least one text, number, true or false.
    """
    if any(value in ({}, []) for value in _leaves(metadata)):
        raise InvalidRequest("metadata must hold neither an empty object nor an empty list", field="metadata")
    if all(value is None for value in _leaves(metadata)):
        raise InvalidRequest("metadata must name at least one value that is not null", field="metadata")


def _leaves(value: Json) -> Iterator[Json]:
    """Yield the scalars in a value, and its empty objects and lists."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    if not inner:
        yield value
    for one in inner:
        yield from _leaves(one)


def _equal(one: Json, other: Json) -> bool:
    """Return whether two values are the same JSON, with true and 1 distinct."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def parse_batch(raw: Json, *, native: bool = False) -> tuple[Draft, ...]:
    """Parse the events of one append, in order.

    `native` permits the field `native`, which the readers of provider messages set (`render/formats/rebuild` validates
    it if a client sends it). Raises InvalidRequest unless `raw` is a list of 1 to 1000 items, InvalidEvent for the
    first invalid event.
    """
    if not isinstance(raw, list) or not 1 <= len(raw) <= EVENTS_PER_BATCH_MAX:
        size = len(raw) if isinstance(raw, list) else "no list"
        raise InvalidRequest(f"events must be a list of 1 to {EVENTS_PER_BATCH_MAX}, got {size}", field="events")
    drafts = tuple(parse_event(event, index, native=native) for index, event in enumerate(raw))
    seen: set[str] = set()
    for index, draft in enumerate(drafts):
        if draft.id is not None and draft.id in seen:
            raise InvalidEvent(f"id {draft.id!r} is used twice in this batch", index=index, field="id")
        seen.add(draft.id or "")
    return drafts


def parse_event(raw: Json, index: int = 0, *, native: bool = False) -> Draft:
    """Parse one event. Raises InvalidEvent with the batch `index` and the `field` at fault."""
    if not isinstance(raw, Mapping):
        raise InvalidEvent("an event must be a JSON object", index=index, field="")
    known = INPUT_FIELDS if native else INPUT_FIELDS - {"native"}
    for name in raw:
        if name not in known:
            raise InvalidEvent(f"unknown field {name!r}", index=index, field=str(name))
    try:
        kind = EventType(str(raw.get("type")))
    except ValueError:
        known_types = ", ".join(EventType)
        raise InvalidEvent(
            f"unknown type {raw.get('type')!r}; known types: {known_types}", index=index, field="type"
        ) from None
    values = {name: value for name, value in raw.items() if name != "type" and value is not None}
    for name, value in values.items():
        try:
            RULES[name].check(value)
        except BrokenRule as broken:
            raise InvalidEvent(f"{name}: {broken}", index=index, field=name) from None
    draft = Draft(type=kind, **values)
    _check_together(draft, index)
    return draft


def body_text(draft: Draft, index: int) -> str:
    """Return the canonical JSON in which a draft is stored. Raises InvalidEvent for NaN and infinities."""
    try:
        return canonical_json(draft.body())
    except ValueError:
        raise InvalidEvent("a number is not finite", index=index, field="") from None


_NEEDS: Final[Mapping[EventType, tuple[str, ...]]] = {
    **dict.fromkeys(frozenset(EventType) - BOOKKEEPING, ("content",)),
    EventType.TOOL_CALL: ("call_id", "tool"),
    EventType.TOOL_RESULT: ("call_id",),
}
"""The fields that an event of each type must have."""


def _check_together(draft: Draft, index: int) -> None:
    for name in _NEEDS.get(draft.type, ()):
        native_empty = name == "content" and draft.native is not None
        if getattr(draft, name) is None and not native_empty:
            raise InvalidEvent(f"{draft.type} needs {name}", index=index, field=name)
    if draft.arguments is not None and draft.type is not EventType.TOOL_CALL:
        raise InvalidEvent("only a tool.call has arguments", index=index, field="arguments")
    if draft.type is EventType.TOOLS:
        try:
            if isinstance(draft.content, str):
                check_values(draft.content)
            deep = too_deep(tool_definitions(draft.content))
        except ValueError as error:
            raise InvalidEvent(f"content: {error}", index=index, field="content") from None
        if deep:
            raise InvalidEvent(f"content: is nested deeper than {NESTING_MAX} levels", index=index, field="content")


def tool_definitions(content: Json) -> Sequence[Mapping[str, Json]]:
    """Return the tool definitions of a `tools` event's content: a list, or its JSON text. Raises ValueError for others.

    Numbers that JSON lacks become text, so that the definitions can be written as JSON again.
    """
    if isinstance(content, str):
        try:
            content = json.loads(content, parse_constant=str, parse_float=finite)
        except RecursionError:
            raise ValueError(f"is nested deeper than {NESTING_MAX} levels") from None
    if not isinstance(content, list) or not all(isinstance(tool, Mapping) for tool in content):
        raise ValueError("tools must be a list of tool definitions, or its JSON text")
    return content


@dataclass(frozen=True, slots=True)
class TurnState:
    """The state that determines the next event's turn: the running turn's id; whether its user message is pending."""

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
        if draft.type is EventType.TURN_START:
            state, begun = TurnState(draft.turn_id, awaits_user=True), begun + 1
        elif draft.type is EventType.TURN_END:
            state = FIRST if draft.turn_id in (None, state.turn_id) else state
        elif draft.type is EventType.USER_MESSAGE:
            if state.awaits_user or (draft.turn_id is not None and draft.turn_id == state.turn_id):
                state = TurnState(draft.turn_id or state.turn_id)
            else:
                state, begun = TurnState(draft.turn_id), begun + 1
        numbers.append(begun)
    return state, tuple(numbers)


def depends_on_state(drafts: Sequence[Draft]) -> bool:
    """Return whether the batch's turn numbers, or the state after it, depend on the state before it."""
    first = next((d for d in drafts if d.type in TURN_MARKS), None)
    if first is None or first.type is EventType.TURN_START:
        return False
    return first.type is EventType.USER_MESSAGE or first.turn_id is not None


def changes_turn_state(drafts: Sequence[Draft]) -> bool:
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
    first, *others = marks
    turn_id, awaits_user, ended = first.turn_id, first.type is EventType.TURN_START, False
    for mark in others:
        if mark.type is EventType.TURN_END:
            ended = ended or mark.turn_id in (None, turn_id)
        elif mark.type is EventType.USER_MESSAGE and awaits_user:
            turn_id, awaits_user = mark.turn_id or turn_id, False
    return Turn(first.seq, turn_id, first.type is EventType.TURN_START, ended)


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call whose result is not in the log yet."""

    seq: int
    tool: str


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log, where the next batch is appended; `open_calls` may hold only those that the batch answers."""

    head: int = 0
    turns: int = 0
    tokens: int = 0
    open_calls: Mapping[str, OpenCall] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionState(LogEnd):
    """The state of a session's log that an append depends on; only appends change it."""

    turn: TurnState = FIRST


@dataclass(frozen=True, slots=True)
class PlacedEvent:
    """One event of a batch with its place; numbers are relative to the session's state before the batch."""

    draft: Draft
    offset: int
    turn_offset: int
    tokens: int
    tokens_through: int
    call_offset: int | None
    """The call's offset, for a result whose call is in the same batch."""
    tool: str | None
    gist: str | None


@dataclass(frozen=True, slots=True)
class Batch:
    """An append, complete except for the state that it is applied to.

    `needs_open` are the ids of earlier calls that this batch answers, `starts` those of calls that it makes, and
    `opens` maps the ids that it leaves open to offset and tool. The store applies the batch only if every call of
    `needs_open` is open and none of `starts` is.
    """

    placed: tuple[PlacedEvent, ...]
    turn_after: TurnState
    turns_begun: int
    tokens: int
    needs_open: tuple[str, ...]
    starts: tuple[str, ...]
    opens: Mapping[str, tuple[int, str]]


def place(drafts: Sequence[Draft], tokens: Sequence[int], turn: TurnState) -> Batch:
    """Place a batch in a session whose running turn is `turn`; `tokens` are the drafts' tokens.

    Raises UnknownCall for a second result of one call, DuplicateCall for a call whose id is open within the batch.
    """
    turn_after, turn_offsets = count_turns(turn, drafts)
    opened: dict[str, tuple[int, str]] = {}
    answered_before: list[str] = []
    starts: list[str] = []
    placed: list[PlacedEvent] = []
    through = 0
    for offset, (draft, cost, begun) in enumerate(zip(drafts, tokens, turn_offsets, strict=True), start=1):
        through += cost
        call_offset, tool = None, draft.tool
        if draft.type is EventType.TOOL_CALL and draft.call_id:
            if draft.call_id in opened:
                raise DuplicateCall(draft.call_id, index=offset - 1)
            if draft.call_id not in answered_before and draft.call_id not in starts:
                starts.append(draft.call_id)
            opened[draft.call_id] = (offset, draft.tool or "")
        elif draft.type is EventType.TOOL_RESULT and draft.call_id:
            if draft.call_id in opened:
                call_offset, call_tool = opened.pop(draft.call_id)
                tool = tool or call_tool
            elif draft.call_id in answered_before or draft.call_id in starts:
                raise UnknownCall(draft.call_id, index=offset - 1)
            else:
                answered_before.append(draft.call_id)
        gist = first_line(draft) if draft.type is EventType.TOOL_RESULT else None
        placed.append(PlacedEvent(draft, offset, begun, cost, through, call_offset, tool, gist))
    return Batch(
        placed=tuple(placed),
        turn_after=turn_after,
        turns_begun=turn_offsets[-1] if turn_offsets else 0,
        tokens=through,
        needs_open=tuple(answered_before),
        starts=tuple(starts),
        opens=opened,
    )


def check(state: SessionState, batch: Batch, expected_head: int | None) -> None:
    """Raise HeadConflict, UnknownCall or DuplicateCall if `batch` cannot be applied to `state`."""
    if expected_head is not None and expected_head != state.head:
        raise HeadConflict(expected=expected_head, head=state.head)
    index = {p.draft.call_id: p.offset - 1 for p in reversed(batch.placed) if p.draft.call_id}
    for call_id in batch.needs_open:
        if call_id not in state.open_calls:
            raise UnknownCall(call_id, index=index[call_id])
    for call_id in batch.starts:
        if call_id in state.open_calls:
            raise DuplicateCall(call_id, index=index[call_id])


def as_stored(
    before: LogEnd,
    batch: Batch,
    bodies: Sequence[Mapping[str, Json]],
    stored_at: float = 0.0,
    chars: Sequence[int] = (),
) -> tuple[Event, ...]:
    """Return the rows of `batch` after it was applied to `before`; `bodies` are its stored bodies, of `chars` each."""
    events = []
    for placed, body, length in zip(batch.placed, bodies, chars or [0] * len(bodies), strict=True):
        draft = placed.draft
        answers = before.open_calls.get(draft.call_id or "") if draft.type is EventType.TOOL_RESULT else None
        call_seq = before.head + placed.call_offset if placed.call_offset else answers.seq if answers else None
        events.append(
            Event(
                seq=before.head + placed.offset,
                type=draft.type,
                turn=before.turns + placed.turn_offset,
                tokens=placed.tokens,
                cum_tokens=before.tokens + placed.tokens_through,
                call_id=draft.call_id,
                tool=placed.tool or (answers.tool if answers else None),
                call_seq=call_seq,
                author=draft.author,
                pinned=bool(draft.pinned),
                is_error=bool(draft.is_error),
                gist=placed.gist,
                at=event_time(body, stored_at),
                body=body,
                chars=length,
            )
        )
    return tuple(events)
