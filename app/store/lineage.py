"""Reading a log that begins in other sessions. Ordinary sessions never come here: their log is all their own.

A fork's ancestors may live on other shards: each segment is read by a statement of its own, and only the segments that
a read reaches into. Logs are gapless, so what the statement on a session's own rows does not bring of a range is an
ancestor's. What is shared never changes but by redaction, so it needs no lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.log.events import EventType
from app.core.log.segments import AsOf, Segments, SharedEvent, ancestry, as_of, clip, shared_to
from app.store.engine import Connection, Database

_CUM_TOKENS: Final = 4
"""Where that stands in the rows of events that a context is loaded from."""


async def of(connection: Connection | Database, session_id: UUID) -> Segments:
    """What a session shares with its ancestors; nothing for an ordinary one, or without such a session."""
    row = await connection.fetchrow("SELECT lineage_ids, lineage_to FROM sessions WHERE session_id = $1", session_id)
    return () if row is None else ancestry(row["lineage_ids"], row["lineage_to"])


_READ: Final = (
    "SELECT {columns} FROM events WHERE session_id = $1 AND seq BETWEEN $2 AND $3 UNION ALL "
    "SELECT {columns} FROM events WHERE session_id = $1 AND seq = ANY($4::bigint[]) ORDER BY seq"
)


async def read(
    connection: Connection | Database,
    segments: Segments,
    columns: str,
    first: int,
    last: int,
    seqs: Sequence[int] = (),
    *values: Any,
) -> list[asyncpg.Record]:
    """The events first..last and those of `seqs`, in order: `columns` of each, with `values` as their $5 and so on.

    `columns` must begin with seq.
    """
    sql = _READ.format(columns=columns)
    found: list[asyncpg.Record] = []
    for segment in segments:
        low, high = max(first, segment.from_seq), min(last, segment.to_seq)
        others = sorted({s for s in seqs if segment.from_seq <= s <= segment.to_seq and not low <= s <= high})
        if low <= high or others:
            found += await connection.fetch(sql, segment.session_id, low, high, others, *values)
    return found


async def inherited(
    connection: Connection | Database, session_id: UUID, columns: str, first: int, last: int
) -> list[asyncpg.Record]:
    """What of first..last belongs to a session's ancestors, in order."""
    return [] if last < first else await read(connection, await of(connection, session_id), columns, first, last)


# Tokens only ever grow along a log: one step into their index, whatever else the session holds.
_BEYOND: Final = "SELECT seq FROM events WHERE session_id = $1 AND cum_tokens > $2 ORDER BY cum_tokens, seq LIMIT 1"


async def beyond(connection: Connection | Database, segments: Segments, tokens: int) -> int | None:
    """The first seq up to which, itself included, the log takes more than so many tokens; None if it never does."""
    for segment in segments:
        row = await connection.fetchrow(_BEYOND, segment.session_id, tokens)
        if row is not None and row["seq"] <= segment.to_seq:
            return int(row["seq"])
    return None


async def tokens_at(connection: Connection | Database, segments: Segments, seq: int) -> tuple[int, int]:
    """The turn of an event, and the log's tokens up to it; zeros without it."""
    rows = await read(connection, clip(segments, seq, seq), "seq, turn, cum_tokens", seq, seq)
    return (rows[0]["turn"], rows[0]["cum_tokens"]) if rows else (0, 0)


async def pairs(connection: Connection | Database, segments: Segments, pinned: Sequence[int]) -> list[int]:
    """The calls of pinned results, and the results of pinned calls."""
    found: list[int] = []
    for segment in segments if pinned else ():
        rows = await connection.fetch(
            "SELECT call_seq AS seq FROM events WHERE session_id = $1 AND seq = ANY($4::bigint[]) "
            "AND seq BETWEEN $2 AND $3 AND call_seq IS NOT NULL "
            "UNION SELECT seq FROM events WHERE session_id = $1 AND call_seq = ANY($4::bigint[]) "
            "AND seq BETWEEN $2 AND $3",
            segment.session_id,
            segment.from_seq,
            segment.to_seq,
            list(pinned),
        )
        found += [row["seq"] for row in rows]
    return found


@dataclass(frozen=True, slots=True)
class AncestorPart:
    """What of a context stands with ancestors: events from `first` on (the whole context's) and older ones by seq.

    `turn` is that of the last event, `unread` the seq, turn and tokens up to which nothing else was read.
    """

    rows: Sequence[asyncpg.Record]
    turn: int
    unread: tuple[int, int, int]


async def tail(
    database: Database,
    row: asyncpg.Record,
    columns: str,
    *,
    bound_tokens: int,
    kept: Sequence[int],
    anchors: Sequence[int],
    pinned: Sequence[int],
    bodiless: Sequence[int],
) -> AncestorPart:
    """What the statement that loads a context did not find of a fork, by the same rules.

    `row` is what it found: from where it read (`first`) and what that follows from. `kept` are older seqs that are
    shown, `anchors` those that are needed where so much was appended since that not all of it is read; `columns` may
    name the `bodiless` seqs as $5.
    """
    own, head = row["events"], row["head"]
    segments = clip(ancestry(row["lineage_ids"], row["lineage_to"]), 1, head)
    to_seq, first, floor = shared_to(segments), row["first"], row["floor"]
    turn, tokens = (row["turn"], own[-1][_CUM_TOKENS]) if head > to_seq else await tokens_at(database, segments, head)
    if head <= to_seq or first == to_seq + 1 > floor + 1:  # the last tokens may reach back beyond its own
        start = await beyond(database, segments, tokens - bound_tokens) or to_seq + 1
        first = start if start > row["epoch_head"] + 1 else floor + 1
    seqs = {seq for seq in kept if seq < first}
    unread = (0, 0, 0)
    if first > floor + 1:
        seqs |= {seq for seq in (*anchors, *await pairs(database, segments, pinned)) if seq < first}
        unread = (first - 1, row["unread_turn"] or 0, row["unread_tokens"] or 0)
        if first - 1 <= to_seq:
            unread = (first - 1, *await tokens_at(database, segments, first - 1))
    rows = await read(database, segments, columns, first, to_seq, sorted(seqs), list(bodiless))
    return AncestorPart(rows, turn, unread)


_SILENT: Final = "('system.prompt', 'tools', 'turn.start', 'turn.end')"
"""Types that are no part of a conversation."""
PROMPTS: Final = f"""
    SELECT p.seq FROM events p WHERE p.session_id = $1 AND p.type = 'system.prompt' AND p.seq <= $newest AND p.seq > (
        SELECT coalesce(max(t.seq), 0) FROM events t
        WHERE t.session_id = $1 AND t.seq < $newest AND t.type NOT IN {_SILENT})"""
"""The system prompts that take effect together with the one at `$newest`: nothing of the conversation is between."""
_PROMPTS: Final = PROMPTS.replace("$newest", "$2::bigint")
_SPOKEN: Final = f"SELECT FROM events WHERE session_id = $1 AND seq BETWEEN $2 AND $3 AND type NOT IN {_SILENT} LIMIT 1"


async def spoken(connection: Connection | Database, segments: Segments) -> bool:
    """Whether anything of a conversation is in these segments."""
    for segment in segments:
        if await connection.fetchrow(_SPOKEN, segment.session_id, segment.from_seq, segment.to_seq) is not None:
            return True
    return False


async def prompts(connection: Connection | Database, segments: Segments, newest: int) -> list[int]:
    """The system prompts of a log that take effect with the `newest`, which is 0 where there is none."""
    found: list[int] = []
    for segment in reversed(clip(segments, 1, newest)):
        rows = await connection.fetch(_PROMPTS, segment.session_id, segment.to_seq)
        found += [row["seq"] for row in rows]
        if await spoken(connection, (segment,)):
            break
    return sorted(found)


# What a session's row would say follows from these few of a segment's events ($4: the last turn's number). One walk
# along the segment; calls that it answers itself are passed over.
_UNANSWERED: Final = """
    e.type = 'tool.call' AND NOT EXISTS (
        SELECT FROM events r WHERE r.session_id = $1 AND r.call_seq = e.seq AND r.seq <= $3)"""
_MARKS: Final = f"""
SELECT e.seq, e.type, e.turn, e.call_id, e.tool, e.call_seq, {_UNANSWERED} AS unanswered, e.pinned, e.author,
       e.body ->> 'turn_id' AS turn_id
FROM events e WHERE e.session_id = $1 AND e.seq BETWEEN $2 AND $3 AND (
    e.pinned OR e.type IN ('system.prompt', 'tools')
    OR (e.turn = $4 AND e.type IN ('user.message', 'turn.start', 'turn.end'))
    OR e.call_seq < $2 OR ({_UNANSWERED}))
ORDER BY e.seq
"""


async def as_of_end(connection: Connection | Database, segments: Segments) -> AsOf:
    """What the row of a session with exactly this log would say."""
    head = shared_to(segments)
    turn, tokens = await tokens_at(connection, segments, head)
    marks: list[SharedEvent] = []
    for segment in segments:
        rows = await connection.fetch(_MARKS, segment.session_id, segment.from_seq, segment.to_seq, turn)
        marks += [SharedEvent(row["seq"], EventType(row["type"]), *list(row.values())[2:]) for row in rows]
    found = as_of(head, turn, tokens, marks)
    return replace(found, system_seqs=tuple(await prompts(connection, segments, found.system_seq)))
