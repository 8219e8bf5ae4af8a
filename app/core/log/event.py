"""Stored events, and the placement of an append in a session's log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.core.errors import DuplicateCall, HeadConflict, UnknownCall
from app.core.lexicon.identifiers import identifiers
from app.core.lexicon.times import parse_time, to_seconds
from app.core.lexicon.tools import ADDRESSES, FILES
from app.core.log.block import REASONING_PARTS, Block, Kind
from app.core.log.events import (
    BOOKKEEPING,
    NO_PROMPT,
    PREFIX,
    Draft,
    EventType,
    Json,
    arguments_object,
    canonical_json,
    readable,
)
from app.core.log.lazy import lazy
from app.core.log.turns import FIRST, TurnState, count_turns

ERASED: Final = "[This was erased on request.]"
"""The content shown for a redacted event."""
ERASED_TOKENS: Final = 40
"""An upper bound on the tokens of a redacted event, for every estimator."""
GIST_CHARS_MAX: Final = 120
KEPT_FIELDS: Final = ("type", "id", "turn_id", "author", "call_id", "tool", "is_error", "pinned", "occurred_at")
"""The fields of an event that a redaction keeps."""
AGES: Final = ("ttl_turns", "ttl_seconds")
EXPIRING: Final = frozenset({*AGES, "supersedes"})
PATHS: Final = (*FILES, *ADDRESSES)
"""Arguments that hold the one file or address that a tool reads."""

_KINDS: Final = {
    EventType.USER_MESSAGE: Kind.USER,
    EventType.ASSISTANT_MESSAGE: Kind.ASSISTANT,
    EventType.TOOL_CALL: Kind.CALL,
    EventType.TOOL_RESULT: Kind.RESULT,
    EventType.SYSTEM_MESSAGE: Kind.SYSTEM,
    EventType.AGENT_NOTE: Kind.NOTE,
    EventType.ANNOUNCE: Kind.NOTE,
}


@dataclass(frozen=True)
class Event:
    """One row of the log. `body` is None if it was not read (a result shown as a stub needs none).

    A tool result has the `tool` that it was appended with, else its call's, its call's seq as `call_seq`, and its first
    line as `gist`. `at` is the time of the event in epoch seconds: the one its author gave, else the time it was
    stored. `chars` is the length of the stored body. A redacted event's `tokens` are ERASED_TOKENS, or 0 if it is never
    sent; its row and `cum_tokens` count it as it was logged.
    """

    seq: int
    type: EventType
    turn: int
    tokens: int
    cum_tokens: int = 0
    call_id: str | None = None
    tool: str | None = None
    call_seq: int | None = None
    author: str | None = None
    pinned: bool = False
    is_error: bool = False
    gist: str | None = None
    at: float = 0.0
    body: Mapping[str, Json] | None = field(default=None, compare=False)
    chars: int = field(default=0, compare=False)

    @lazy
    def block(self) -> Block:
        """The block that shows this event verbatim; cached, because an event never changes."""
        body = self.body or {}
        return Block(
            kind=_KINDS.get(self.type, Kind.SYSTEM),
            seq=self.seq,
            content=body.get("content"),
            call_id=self.call_id,
            tool=self.tool,
            arguments=body.get("arguments"),
            is_error=self.is_error,
            native=body.get("native"),
        )

    @lazy
    def names(self) -> Mapping[str, int]:
        """The identifiers in the event's text and how often each occurs; cached, because an event never changes."""
        return identifiers(self.text)

    @lazy
    def density(self) -> float:
        """The identifiers' share of the event's text, repeats not counted: near 1 for a listing, near 0 for prose."""
        text = self.text
        return sum(len(name) + 1 for name in self.names) / len(text) if text else 0.0

    @lazy
    def arguments(self) -> Mapping[str, Json]:
        """A call's arguments as an object, whether they were logged as an object or as text."""
        return arguments_object((self.body or {}).get("arguments"))

    @lazy
    def request_keys(self) -> tuple[str, ...]:
        """The keys by which calls that repeat each other are found: the exact call, and the tool with its file. Empty
        for a call that names no file."""
        arguments = self.arguments
        path = next((arguments[k] for k in PATHS if arguments.get(k)), None)
        return (f"{self.tool} {canonical_json(arguments)}", f"{self.tool} of {path}") if isinstance(path, str) else ()

    @lazy
    def has_single_argument(self) -> bool:
        """Whether the call has a single argument: if that is a path, its result is the whole file."""
        return sum(value is not None for value in self.arguments.values()) == 1

    @property
    def text(self) -> str:
        """The event's text: a call's tool and arguments, any other event's content."""
        body = self.body or {}
        if self.type is EventType.TOOL_CALL:
            return f"{self.tool} {_as_text(body.get('arguments'))}"
        return content_text(body.get("content"))

    @lazy
    def reasons(self) -> bool:
        """Whether the event holds a model's reasoning, which a provider wants back with the messages after it."""
        content = (self.body or {}).get("content")
        return isinstance(content, list) and any(part.get("type") in REASONING_PARTS for part in content)

    @lazy
    def expires(self) -> bool:
        """Whether the event's author set an expiry, or an event that it supersedes."""
        return self.body is not None and not EXPIRING.isdisjoint(self.body)

    @lazy
    def expires_by_age(self) -> bool:
        """Whether the event expires at an age that its author set, so that no summary should preserve it."""
        body = self.body or {}
        return not self.pinned and any(isinstance(body.get(name), int) for name in AGES)

    @property
    def ends_prompts(self) -> bool:
        """Whether the event only marks the end of all earlier system prompts."""
        return self.type is EventType.SYSTEM_PROMPT and (self.body or {}).get("native") == NO_PROMPT.native

    @lazy
    def rendered(self) -> bool:
        """Whether a model may see this event in the conversation."""
        return self.type not in BOOKKEEPING and self.type not in PREFIX


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
    before: LogEnd, batch: Batch, bodies: Sequence[Mapping[str, Json]], stored_at: float = 0.0
) -> tuple[Event, ...]:
    """Return the rows of `batch` after it was applied to `before`; `bodies` are its stored bodies."""
    events = []
    for placed, body in zip(batch.placed, bodies, strict=True):
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
            )
        )
    return tuple(events)


def event_time(body: Mapping[str, Json] | None, stored_at: float) -> float:
    """Return the time of an event in epoch seconds: its `occurred_at`, as UTC if without a zone, else `stored_at`."""
    stated = body.get("occurred_at") if body else None
    if not isinstance(stated, str):
        return stored_at
    try:
        return to_seconds(parse_time(stated))
    except ValueError:
        return stored_at


def tombstone(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the body of a redacted event: the fields in TIES, which connect it to other events."""
    kept = {name: body[name] for name in KEPT_FIELDS if name in body}
    if body["type"] == EventType.TOOL_CALL:
        return {**kept, "arguments": {}, "redacted": True}
    if body["type"] in BOOKKEEPING:
        return {**kept, "redacted": True}
    return {**kept, "content": [] if body["type"] == EventType.TOOLS else ERASED, "redacted": True}


def content_text(content: Json) -> str:
    """Return the readable text of an event's content: its text parts joined, other parts named."""
    if content is None:
        return ""
    if isinstance(content, str):
        return readable(content)
    return readable(
        "\n".join(
            part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type', 'part')}]" for part in content
        )
    )


def _as_text(value: Json) -> str:
    return readable(value if isinstance(value, str) else canonical_json(value))


def first_line(draft: Draft) -> str | None:
    """Return the first line of a result that is not blank, in at most GIST_CHARS_MAX characters; None without one."""
    content = draft.content
    if isinstance(content, str):
        text = content
    else:
        text = next((p["text"] for p in content or () if isinstance(p.get("text"), str)), "")
    line = next((line for raw in readable(text[:4096]).splitlines() if (line := " ".join(raw.split()))), "")
    if not line:
        return None
    return line if len(line) <= GIST_CHARS_MAX else line[: GIST_CHARS_MAX - 1] + "…"


def paths(event: Event) -> tuple[str, ...]:
    """Return the files that an event is about: its own path, and the paths in single arguments of a call."""
    own = (event.body or {}).get("path")
    single = (event.arguments.get(name) for name in PATHS) if event.type is EventType.TOOL_CALL else ()
    return tuple(dict.fromkeys(readable(path) for path in (own, *single) if isinstance(path, str) and path))
