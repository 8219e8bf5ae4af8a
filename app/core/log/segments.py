"""Names of sessions and of their lines, and the segments of other sessions that a fork's log begins with."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from uuid import UUID

from app.core.log.appends import FIRST, TURN_MARKS, OpenCall, SessionState, count_turns
from app.core.log.events import SESSION_ID_PATTERN, Draft, EventType

_LINE: Final = r"@line\.([1-9][0-9]{0,8})"
ADDRESS_PATTERN: Final = SESSION_ID_PATTERN.removesuffix("$") + rf"({_LINE.replace('(', '(?:', 1)})?$"
"""The pattern of an id in a path: a session's name, or the id of one of its lines."""
_ADDRESS: Final = re.compile(rf"(.+){_LINE}")


def line_id(name: str, number: int) -> str:
    """Return the id of a session's line; the first is number 1."""
    return f"{name}@line.{number}"


def is_line(address: str) -> bool:
    """Return whether an address is the id of a line. No session can be given such a name."""
    return "@line." in address and _ADDRESS.fullmatch(address) is not None


def session_of(address: str) -> str:
    """Return the session's name in an address."""
    found = _ADDRESS.fullmatch(address) if "@line." in address else None
    return address if found is None else found[1]


def line_of(row_name: str) -> str:
    """Return the id of the line stored in the row of this name: a session's row is that of its first line."""
    return row_name if is_line(row_name) else line_id(row_name, 1)


def row_name(address: str) -> str:
    """Return the name of the row that an address means, assuming that a session's name means its first line."""
    return address.removesuffix("@line.1")


def is_held_out(tenant_id: UUID, session: str, share: float) -> bool:
    """Return whether a session is in the share (0 to 1) of a tenant's sessions that is held out.

    A session held out of a share is held out of every larger one.
    """
    drawn = blake2b(session.encode(), digest_size=8, key=tenant_id.bytes).digest()
    return int.from_bytes(drawn) < share * 2**64


SEQ_MAX: Final = 2**62
"""A seq beyond every log's head."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The seqs from_seq..to_seq of a log, stored under the session `session_id`."""

    session_id: UUID
    from_seq: int
    to_seq: int


Segments = tuple[Segment, ...]
"""Segments in the log's order, without a hole, from seq 1 on."""


def ancestry(session_ids: Sequence[UUID], to_seqs: Sequence[int]) -> Segments:
    """Return the segments that a fork shares with its ancestors, oldest first; `to_seqs` are the last seqs of each."""
    starts = (0, *to_seqs)
    return tuple(
        Segment(owner, start + 1, end) for owner, start, end in zip(session_ids, starts, to_seqs, strict=False)
    )


def shared_to(segments: Segments) -> int:
    """Return the last seq that belongs to an ancestor, 0 without ancestors."""
    return segments[-1].to_seq if segments else 0


def log_segments(segments: Segments, session_id: UUID, head: int) -> Segments:
    """Return the segments of a session's log up to `head`: those shared with its ancestors, then its own."""
    return clip((*segments, Segment(session_id, shared_to(segments) + 1, head)), 1, head)


def clip(segments: Segments, first: int, last: int) -> Segments:
    """Return the parts of the segments within first..last."""
    cut = (Segment(s.session_id, max(s.from_seq, first), min(s.to_seq, last)) for s in segments)
    return tuple(segment for segment in cut if segment.from_seq <= segment.to_seq)


@dataclass(frozen=True, slots=True)
class SharedEvent:
    """An event of a shared log, with the fields that determine a session's row.

    The row as of a seq depends on these events up to that seq: system prompts and tool lists, pinned events, user
    messages of the last turn, its start and end, calls without a result in their own segment (`unanswered`), and the
    results of such calls.
    """

    seq: int
    type: EventType
    turn: int
    call_id: str | None = None
    tool: str | None = None
    call_seq: int | None = None
    unanswered: bool = False
    pinned: bool = False
    author: str | None = None
    turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class AsOf:
    """A session's row as of the head `state.head`; `state.turns` is the number of the running turn.

    `system_seqs` are the system prompts in effect, if they were loaded.
    """

    state: SessionState
    system_seq: int = 0
    tools_seq: int = 0
    user_seqs: tuple[int, ...] = ()
    pinned_seqs: tuple[int, ...] = ()
    system_seqs: tuple[int, ...] = ()

    @property
    def anchors(self) -> tuple[int, ...]:
        """The seqs that a context needs regardless of their age, except pinned events."""
        calls = (call.seq for call in self.state.open_calls.values())
        return tuple(sorted({self.system_seq, *self.system_seqs, self.tools_seq, *self.user_seqs, *calls} - {0}))


def as_of(head: int, turn: int, tokens: int, marks: Sequence[SharedEvent]) -> AsOf:
    """Return the row as of `head`, from the `marks` up to it; `turn` and `tokens` are its turn and total tokens."""
    users = [m for m in marks if m.turn == turn and m.type in TURN_MARKS]
    turn_state, _ = count_turns(FIRST, [Draft(m.type, turn_id=m.turn_id, author=m.author) for m in users])
    answered = {m.call_seq for m in marks}
    calls = (m for m in marks if m.unanswered and m.seq not in answered)
    return AsOf(
        SessionState(
            head=head,
            turns=turn,
            tokens=tokens,
            turn=turn_state,
            open_calls={str(m.call_id): OpenCall(m.seq, m.tool or "") for m in calls},
        ),
        system_seq=max((m.seq for m in marks if m.type is EventType.SYSTEM_PROMPT), default=0),
        tools_seq=max((m.seq for m in marks if m.type is EventType.TOOLS), default=0),
        user_seqs=tuple(m.seq for m in users if m.type is EventType.USER_MESSAGE),
        pinned_seqs=tuple(m.seq for m in marks if m.pinned),
    )


@dataclass(frozen=True, slots=True)
class InheritableSummary:
    """A summary that a fork could inherit; `live`: it belongs to its session's cover now."""

    id: UUID
    from_seq: int
    to_seq: int
    live: bool


def cover_at(candidates: Sequence[InheritableSummary], at: int) -> tuple[InheritableSummary, ...]:
    """Return the widest adjacent summaries from seq 1 that end at `at` or before.

    A summary merged beyond `at` since then is replaced by its sources. If two summaries have one span, the live one is
    preferred, else the newer one (`candidates` are ordered by creation).
    """
    cover: list[InheritableSummary] = []
    while True:
        start = cover[-1].to_seq + 1 if cover else 1
        fitting = [summary for summary in candidates if summary.from_seq == start and summary.to_seq <= at]
        if not fitting:
            return tuple(cover)
        cover.append(max(enumerate(fitting), key=lambda pair: (pair[1].to_seq, pair[1].live, pair[0]))[1])
