"""What a session has from its ancestors where its own rows do not say it: its row as it was at a head, and the older
part of a fork's context."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import asyncpg

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.log.segments import AsOf, Segments, SharedEvent, as_of, clip, shared_to
from app.store.engine import Connection, Database
from app.store.event_log import SessionLog, beyond, end_at, events, log_of, owners, prompts
from app.store.events import event

# What a session's row would say follows from these few of the events stored under one session. One walk along them;
# calls that are answered there are passed over.
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


async def as_of_head(connection: Connection | Database, log: SessionLog, head: int) -> AsOf:
    """What the session's row said when its head was `head`, or would have if the log had always been its own."""
    turn, tokens = await end_at(connection, log, head)
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


async def _pairs(connection: Connection | Database, parts: Segments, seqs: Sequence[int]) -> set[int]:
    """The calls of those events that are results, and the results of those that are calls."""
    found: set[int] = set()
    for owner in parts if seqs else ():
        rows = await connection.fetch(
            _PAIRS, session_id=owner.session_id, seqs=list(seqs), from_seq=owner.from_seq, to_seq=owner.to_seq
        )
        found |= {row["seq"] for row in rows}
    return found


@dataclass(frozen=True, slots=True)
class AncestorPart:
    """The events of a context that are stored with ancestors: from `first` on (the whole context's) and older ones by
    seq. `turn` is that of the context's last event, `unread` the seq, turn and tokens up to which nothing else was
    read."""

    events: tuple[Event, ...]
    turn: int
    unread: tuple[int, int, int]


async def part(
    database: Database,
    row: asyncpg.Record,
    *,
    bound_tokens: int,
    kept: Sequence[int],
    anchors: Sequence[int],
    pinned: Sequence[int],
    bodiless: Sequence[int],
) -> AncestorPart:
    """What the statement that loads a context did not find of a fork, by the same rules.

    `row` is what it found: from where it read (`first`) and what that follows from. `kept` are older seqs that are
    shown, `anchors` those that are needed where so much was appended since that not all of it is read; the `bodiless`
    come without their bodies.
    """
    own, head, log = row["events"], row["head"], log_of(row)
    parts = clip(log.shared or (), 1, head)
    to_seq, first, floor = shared_to(parts), row["first"], row["floor"]
    turn, tokens = (row["turn"], event(own[-1]).cum_tokens) if head > to_seq else await end_at(database, log, head)
    if head <= to_seq or first == to_seq + 1 > floor + 1:  # the last tokens may reach back beyond its own
        start = await beyond(database, parts, tokens - bound_tokens) or to_seq + 1
        first = start if start > row["epoch_head"] + 1 else floor + 1
    seqs = {seq for seq in kept if seq < first}
    unread = (0, 0, 0)
    if first > floor + 1:
        seqs |= {seq for seq in (*anchors, *await _pairs(database, parts, pinned)) if seq < first}
        unread = (first - 1, row["unread_turn"] or 0, row["unread_tokens"] or 0)
        if first - 1 <= to_seq:
            unread = (first - 1, *await end_at(database, log, first - 1))
    shared = {seq for seq in seqs if seq <= to_seq}
    return AncestorPart(await events(database, log, first, to_seq, shared, bodiless=bodiless), turn, unread)
