"""Reads of a session's past: its row as of an earlier head, and the part of a fork's context stored under ancestors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.log.segments import AsOf, Segments, SharedEvent, as_of, clip, shared_to
from app.store.engine import Executor
from app.store.event_log import SessionLog, events, first_seq_over, log_of, owners, prompts, turn_and_tokens_at
from app.store.events import event
from app.store.rows import Row

# The few events stored under one session that determine the values of a session's row, found in one scan. Calls
# answered within the range are skipped.
_UNANSWERED: Final = """
    e.type = 'tool.call' AND NOT EXISTS (
        SELECT FROM events r WHERE r.session_id = :session_id AND r.call_seq = e.seq AND r.seq <= :to_seq)"""
_AS_OF: Final = f"""
SELECT e.seq, e.type, e.turn, e.call_id, e.tool, e.call_seq, {_UNANSWERED} AS unanswered, e.pinned, e.author,
       e.body ->> 'turn_id' AS turn_id
FROM events e WHERE e.session_id = :session_id AND e.seq BETWEEN :from_seq AND :to_seq AND (
    e.pinned OR e.type IN ('system.prompt', 'tools')
    OR (e.turn = :last_turn AND e.type IN ('user.message', 'turn.start', 'turn.end'))
    OR e.call_seq < :from_seq OR ({_UNANSWERED}))
ORDER BY e.seq
"""


async def as_of_head(connection: Executor, log: SessionLog, head: int) -> AsOf:
    """Return the values of a session's row as of `head`, as if the session had stored its whole log itself."""
    turn, tokens = await turn_and_tokens_at(connection, log, head)
    marks: list[SharedEvent] = []
    for owner in await owners(connection, log, head):
        rows = list(
            await connection.fetch(
                _AS_OF, session_id=owner.session_id, from_seq=owner.from_seq, to_seq=owner.to_seq, last_turn=turn
            )
        )
        marks += [SharedEvent(row["seq"], EventType(row["type"]), *list(row.values())[2:]) for row in rows]
    found = as_of(head, turn, tokens, marks)
    return replace(found, system_seqs=tuple(await prompts(connection, log, found.system_seq)))


_PAIRS: Final = """
SELECT call_seq AS seq FROM events WHERE session_id = :session_id AND seq = ANY(:seqs::bigint[])
AND seq BETWEEN :from_seq AND :to_seq AND call_seq IS NOT NULL
UNION SELECT seq FROM events WHERE session_id = :session_id AND call_seq = ANY(:seqs::bigint[])
AND seq BETWEEN :from_seq AND :to_seq"""


async def _pairs(connection: Executor, parts: Segments, seqs: Sequence[int]) -> set[int]:
    """Return the seqs of the results of these calls, and of the calls of these results."""
    found: set[int] = set()
    for owner in parts if seqs else ():
        rows = await connection.fetch(
            _PAIRS, session_id=owner.session_id, seqs=list(seqs), from_seq=owner.from_seq, to_seq=owner.to_seq
        )
        found |= {row["seq"] for row in rows}
    return found


@dataclass(frozen=True, slots=True)
class AncestorPart:
    """The events of a fork's context that are stored under its ancestors. `turn` is the turn of the context's last
    event; `unread` is the last unread seq, its turn, and the tokens up to it."""

    events: tuple[Event, ...]
    turn: int
    unread: tuple[int, int, int]


async def part(
    connection: Executor,
    row: Row,
    *,
    bound_tokens: int,
    kept: Sequence[int],
    anchors: Sequence[int],
    pinned: Sequence[int],
    bodiless: Sequence[int],
) -> AncestorPart:
    """Return the ancestors' part of a fork's context, which the statement that loads a context does not read.

    `row` is that statement's row, `kept` the older seqs that are shown, `anchors` those needed if later events are not
    all read. Events at `bodiless` come without their bodies.
    """
    own, head, log = row["events"], row["head"], log_of(row)
    parts = clip(log.shared or (), 1, head)
    to_seq, first, floor = shared_to(parts), row["first"], row["floor"]
    turn, tokens = (
        (row["turn"], event(own[-1]).cum_tokens) if head > to_seq else await turn_and_tokens_at(connection, log, head)
    )
    if head <= to_seq or first == to_seq + 1 > floor + 1:  # the token bound may reach into ancestors' events
        start = await first_seq_over(connection, parts, tokens - bound_tokens) or to_seq + 1
        first = start if start > row["epoch_head"] + 1 else floor + 1
    seqs = {seq for seq in kept if seq < first}
    unread = (0, 0, 0)
    if first > floor + 1:
        seqs |= {seq for seq in (*anchors, *await _pairs(connection, parts, pinned)) if seq < first}
        unread = (first - 1, row["unread_turn"] or 0, row["unread_tokens"] or 0)
        if first - 1 <= to_seq:
            unread = (first - 1, *await turn_and_tokens_at(connection, log, first - 1))
    shared = {seq for seq in seqs if seq <= to_seq}
    return AncestorPart(await events(connection, log, first, to_seq, shared, bodiless=bodiless), turn, unread)
