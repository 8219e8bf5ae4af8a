"""Reads of a session's log, wherever its events are stored.

A fork's log begins with a part of its parent's, which is read where it is stored (core/log/segments.py). Each
segment is read by a statement of its own, and only if the read extends into it, as ancestors may be stored elsewhere.
A module that reads events by its own SQL loops over `segments`, each of which is stored under one session.
Logs have no gaps: if a session's own events do not reach back far enough, the rest belongs to its ancestors. An
ordinary session is therefore read in one statement. Shared events change only by redaction, so no read takes a lock.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.log.appends import TurnMark
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.log.segments import SEQ_MAX, Segment, Segments, ancestry, clip, log_segments, shared_to
from app.store.engine import Executor
from app.store.rows import (
    EVENT_COLUMNS,
    STORED_COLUMNS,
    WITH_SOME_BODIES,
    WITHOUT_BODIES,
    StoredEvent,
    decode_events,
    parameters,
    stored_event,
)


@dataclass(frozen=True, slots=True)
class SessionLog:
    """The log of a session, for reads. `shared` are the segments stored under its ancestors; None if unknown: a read
    that needs them looks them up. A log made from the session's row has them (`SessionRow.log`)."""

    session_id: UUID
    shared: Segments | None = None

    @property
    def ancestors(self) -> tuple[UUID, ...]:
        """The ancestors known to share events with this session, oldest first."""
        return tuple(segment.session_id for segment in self.shared or ())

    @property
    def shared_to(self) -> int:
        """The last seq known to belong to an ancestor; 0 if none is."""
        return shared_to(self.shared or ())


def log_of(row: Mapping[str, Any] | asyncpg.Record) -> SessionLog:
    """Return the log of a session from its row."""
    return SessionLog(row["session_id"], ancestry(row["lineage_ids"], row["lineage_to"]))


async def with_segments(connection: Executor, log: SessionLog) -> SessionLog:
    """Return the log with its shared segments, looking them up if they are unknown."""
    if log.shared is not None:
        return log
    row = await connection.fetchrow(
        "SELECT session_id, lineage_ids, lineage_to FROM sessions WHERE session_id = :session_id",
        session_id=log.session_id,
    )
    return replace(log, shared=()) if row is None else log_of(row)


async def segments(connection: Executor, log: SessionLog, head: int = SEQ_MAX) -> Segments:
    """Return the segments that hold the events up to `head`, in order."""
    return log_segments((await with_segments(connection, log)).shared or (), log.session_id, head)


async def owner(connection: Executor, log: SessionLog, seq: int) -> UUID:
    """Return the session under which an event is stored, or would be stored."""
    found = await segments(connection, log)
    return next((one.session_id for one in found if seq <= one.to_seq), log.session_id)


RANGE: Final = "SELECT {columns} FROM events WHERE session_id = :session_id AND seq BETWEEN :first AND :last"
_SEQS: Final = "SELECT {columns} FROM events WHERE session_id = :session_id AND seq = ANY(:seqs::bigint[])"
READ: Final = f"{RANGE} UNION ALL {_SEQS}"


async def read(
    connection: Executor,
    log: SessionLog,
    columns: str,
    first: int,
    last: int,
    seqs: Iterable[int] = (),
    **values: object,
) -> list[asyncpg.Record]:
    """Return `columns` of the events first..last (none if `first` is greater) and of those at `seqs`, in order.

    `columns` begins with seq; `values` are the parameters that it names.
    """
    others = {seq for seq in seqs if not first <= seq <= last}
    lowest = min((*others, first) if first <= last else others, default=SEQ_MAX)
    own = Segment(log.session_id, log.shared_to + 1, SEQ_MAX)
    found = await _read_segment(connection, own, columns, first, last, others, values)
    if log.shared is None and lowest < SEQ_MAX and (not found or found[0]["seq"] > lowest):
        log = await with_segments(connection, log)
    for segment in reversed(log.shared or ()):
        found = [*await _read_segment(connection, segment, columns, first, last, others, values), *found]
    return found


async def _read_segment(
    connection: Executor,
    segment: Segment,
    columns: str,
    first: int,
    last: int,
    others: Iterable[int],
    values: Mapping[str, object],
) -> list[asyncpg.Record]:
    """Return the rows of a `read` that are stored under one session."""
    low, high = max(first, segment.from_seq), min(last, segment.to_seq)
    seqs = sorted(seq for seq in others if segment.from_seq <= seq <= segment.to_seq)
    if low > high and not seqs:
        return []
    sql = f"{READ if seqs else RANGE} ORDER BY seq".format(columns=columns)
    named = {"seqs": seqs, **values} if seqs else values
    return list(await connection.fetch(sql, session_id=segment.session_id, first=low, last=high, **named))


async def events(
    connection: Executor,
    log: SessionLog,
    first: int,
    last: int,
    seqs: Iterable[int] = (),
    *,
    bodies: bool = True,
    bodiless: Sequence[int] = (),
) -> tuple[Event, ...]:
    """Return the events first..last and those at `seqs`, in order. Without `bodies` no event has its body; those at
    `bodiless` never have theirs."""
    selected = WITHOUT_BODIES if not bodies else WITH_SOME_BODIES if bodiless else EVENT_COLUMNS
    values = {"bodiless": list(bodiless)} if bodies and bodiless else {}
    return await decode_events(await read(connection, log, selected, first, last, seqs, **values))


async def events_at(
    connection: Executor, log: SessionLog, seqs: Iterable[int], *, bodies: bool = True
) -> tuple[Event, ...]:
    """Return those events at `seqs` that exist, in order."""
    return await events(connection, log, 1, 0, seqs, bodies=bodies)


async def with_calls(connection: Executor, log: SessionLog, seqs: Iterable[int], *, bodies: bool) -> tuple[Event, ...]:
    """Return those events at `seqs` that exist, and the calls of the results among them, in order."""
    found = await events_at(connection, log, seqs, bodies=bodies)
    calls = {one.call_seq for one in found if one.call_seq}.difference(one.seq for one in found)
    found += await events_at(connection, log, calls, bodies=bodies) if calls else ()
    return tuple(sorted(found, key=lambda one: one.seq))


EVENTS_PER_PAGE: Final = 2_000


async def events_without_bodies(connection: Executor, log: SessionLog, head: int) -> tuple[Event, ...]:
    """Return all events up to `head` without bodies, read in pages so that other tasks can run in between."""
    found: list[Event] = []
    for first in range(1, head + 1, EVENTS_PER_PAGE):
        found += await events(connection, log, first, min(first + EVENTS_PER_PAGE - 1, head), bodies=False)
    return tuple(found)


NEWEST: Final = (
    f"SELECT {EVENT_COLUMNS} FROM events WHERE session_id = :session_id AND seq > :after AND cum_tokens > "
    "(SELECT tokens FROM sessions WHERE session_id = :session_id) - :tokens ORDER BY seq"
)


async def newest(connection: Executor, log: SessionLog, after: int, tokens: int) -> tuple[Event, ...]:
    """Return the events after `after` that are within the last `tokens` tokens of the log."""
    found = await decode_events(await connection.fetch(NEWEST, session_id=log.session_id, after=after, tokens=tokens))
    if found and found[0].seq == after + 1:
        return found
    log = await with_segments(connection, log)
    last = log.shared_to
    if after < last and (not found or found[0].seq == last + 1):
        total = found[-1].cum_tokens if found else await tokens_through(connection, log, last)
        first = await first_seq_over(connection, await segments(connection, log, last), total - tokens) or last + 1
        found = (*await events(connection, log, max(first, after + 1), last), *found)
    return found


# The first event is returned however large it is.
_OLDEST: Final = (
    f"SELECT {EVENT_COLUMNS} FROM events WHERE session_id = :session_id AND seq > :after AND (seq = :after + 1 OR "
    "cum_tokens <= :tokens + coalesce("
    "(SELECT cum_tokens FROM events WHERE session_id = :session_id AND seq = :after), :shared_tokens)) "
    "ORDER BY seq LIMIT :limit"
)


async def oldest(connection: Executor, log: SessionLog, after: int, tokens: int, limit: int) -> tuple[Event, ...]:
    """Return the first events after `after`: about `tokens` tokens, at least one event, at most `limit`."""
    log = await with_segments(connection, log)
    before = await shared_tokens(connection, log, after)
    if after < log.shared_to:
        stop = await first_seq_over(connection, await segments(connection, log), before + tokens) or SEQ_MAX
        return await events(connection, log, after + 1, min(max(stop - 1, after + 1), after + limit))
    rows = await connection.fetch(
        _OLDEST, session_id=log.session_id, after=after, tokens=tokens, shared_tokens=before, limit=limit
    )
    return await decode_events(rows)


_TOOL_CALLS: Final = (
    f"SELECT {EVENT_COLUMNS.removesuffix('body')} CASE WHEN type = 'tool.call' THEN body END FROM events "
    "WHERE session_id = :session_id AND seq BETWEEN :from_seq AND :to_seq "
    "AND (type = 'tool.call' OR type = 'tool.result' AND is_error) ORDER BY seq DESC LIMIT :limit"
)


async def tool_calls(connection: Executor, log: SessionLog, first: int, last: int, limit: int) -> tuple[Event, ...]:
    """Return the newest tool calls and errors among the events first..last, at most `limit`; errors without bodies."""
    found: tuple[Event, ...] = ()
    for segment in reversed(clip(await segments(connection, log), first, last)):
        rows = await connection.fetch(_TOOL_CALLS, **parameters(segment), limit=limit - len(found))
        found = (*await decode_events(rows[::-1]), *found)
    return found


async def stored(connection: Executor, log: SessionLog, after: int, limit: int) -> list[StoredEvent]:
    """Return up to `limit` events with seq > `after`, in order."""
    rows = await read(connection, log, STORED_COLUMNS, after + 1, after + limit)
    return [stored_event(tuple(row.values())) for row in rows]


SCAN_MAX: Final = 10_000
_OF_KIND: Final = (
    f"SELECT {STORED_COLUMNS} FROM events WHERE session_id = :session_id AND seq BETWEEN :from_seq AND :to_seq "
    "AND (:type::text IS NULL OR type = :type) AND (:author::text IS NULL OR author = :author) "
    "ORDER BY seq LIMIT :limit"
)


async def by_type_or_author(
    connection: Executor, log: SessionLog, after: int, limit: int, kind: str | None, author: str | None
) -> list[StoredEvent]:
    """Return up to `limit` events of a type, an author or both among the SCAN_MAX events after `after`, in order."""
    found: list[StoredEvent] = []
    for segment in clip(await segments(connection, log), after + 1, after + SCAN_MAX):
        rows = await connection.fetch(
            _OF_KIND, **parameters(segment), type=kind, author=author, limit=limit - len(found)
        )
        found += [stored_event(tuple(row.values())) for row in rows]
        if len(found) == limit:
            break
    return found


BY_IDS: Final = (
    f"SELECT {STORED_COLUMNS} FROM events WHERE session_id = :session_id AND event_id = ANY(:event_ids::text[])"
)


async def by_ids(
    connection: Executor, log: SessionLog, event_ids: Collection[str], *, own: bool = True
) -> dict[str, StoredEvent]:
    """Return the events with these client ids, by id; without `own`, only events of ancestors."""
    log = await with_segments(connection, log)
    found: dict[str, StoredEvent] = {}
    for segment in reversed(await segments(connection, log, SEQ_MAX if own else log.shared_to)):
        missing = [one for one in event_ids if one not in found]
        rows = await connection.fetch(BY_IDS, session_id=segment.session_id, event_ids=missing) if missing else ()
        found |= {row["event_id"]: stored_event(tuple(row.values())) for row in rows if row["seq"] <= segment.to_seq}
    return found


async def paths(connection: Executor, log: SessionLog, seqs: Iterable[int]) -> dict[int, str]:
    """Return the paths named in the bodies of these events, by seq."""
    rows = await read(connection, log, "seq, body ->> 'path' AS path", 1, 0, seqs)
    return {row["seq"]: row["path"] for row in rows if row["path"] is not None}


async def tokens_through(connection: Executor, log: SessionLog, seq: int) -> int:
    """Return the tokens of the log through an event; 0 if there is no such event."""
    return (await tokens_by_seq(connection, log, (seq,))).get(seq, 0)


async def tokens_by_seq(connection: Executor, log: SessionLog, seqs: Iterable[int]) -> dict[int, int]:
    """Return the tokens of the log through each of these events, by seq."""
    rows = await read(connection, log, "seq, cum_tokens", 1, 0, seqs)
    return {row["seq"]: row["cum_tokens"] for row in rows}


async def shared_tokens(connection: Executor, log: SessionLog, seq: int) -> int:
    """Return the tokens of the log through an event of an ancestor; 0, without a read, for any other event."""
    log = await with_segments(connection, log)
    return await tokens_through(connection, log, seq) if 0 < seq <= log.shared_to else 0


async def turn_and_tokens_at(connection: Executor, log: SessionLog, head: int) -> tuple[int, int]:
    """Return the turn of the event at `head` and the tokens of the log through it; zeros if there is no such event."""
    rows = await read(connection, log, "seq, turn, cum_tokens", head, head)
    return (rows[0]["turn"], rows[0]["cum_tokens"]) if rows else (0, 0)


# Cumulative tokens only grow along a log, so this is a single index look-up, however long the log is.
_BEYOND: Final = (
    "SELECT seq FROM events WHERE session_id = :session_id AND cum_tokens > :tokens ORDER BY cum_tokens, seq LIMIT 1"
)


async def first_seq_over(connection: Executor, parts: Segments, tokens: int) -> int | None:
    """Return the first seq of `parts` at which the log's tokens so far exceed `tokens`; None if there is none."""
    for segment in parts:
        row = await connection.fetchrow(_BEYOND, session_id=segment.session_id, tokens=tokens)
        if row is not None and row["seq"] <= segment.to_seq:
            return int(row["seq"])
    return None


# Two index ranges, however long the turns are.
_MARKS: Final = " UNION ALL ".join(
    "SELECT turn, seq, type, body ->> 'turn_id' AS turn_id FROM events WHERE session_id = :session_id AND "
    f"{types} AND turn BETWEEN :first AND :last AND seq BETWEEN :from_seq AND :to_seq"
    for types in ("type IN ('turn.start', 'turn.end')", "type = 'user.message'")
)


async def turn_marks(
    connection: Executor, log: SessionLog, first: int, last: int, head: int = SEQ_MAX
) -> Mapping[int, Sequence[TurnMark]]:
    """Return the marks, in order, of each of the turns first..last that has begun by `head`."""
    found: dict[int, list[TurnMark]] = {}
    for segment in await segments(connection, log, head):
        rows = await connection.fetch(_MARKS, **parameters(segment), first=first, last=last)
        for row in rows:
            found.setdefault(row["turn"], []).append(TurnMark(row["seq"], EventType(row["type"]), row["turn_id"]))
    return {turn: sorted(found[turn], key=lambda mark: mark.seq) for turn in sorted(found)}


_SILENT: Final = "('system.prompt', 'tools', 'turn.start', 'turn.end')"
"""Event types that are not part of a conversation."""
PROMPTS: Final = f"""
    SELECT p.seq FROM events p WHERE p.session_id = :session_id AND p.type = 'system.prompt' AND p.seq <= $newest
    AND p.seq > (SELECT coalesce(max(t.seq), 0) FROM events t
                 WHERE t.session_id = :session_id AND t.seq <= $newest AND t.type NOT IN {_SILENT})"""
"""The seqs of the system prompts up to the event `$newest` that are followed by no conversation up to there."""
_PROMPTS: Final = PROMPTS.replace("$newest", ":newest::bigint")
_SPOKEN: Final = (
    "SELECT FROM events WHERE session_id = :session_id AND seq BETWEEN :from_seq AND :to_seq "
    f"AND type NOT IN {_SILENT} LIMIT 1"
)


async def has_conversation(connection: Executor, log: SessionLog, after: int = 0, head: int = SEQ_MAX) -> bool:
    """Return whether a log contains any conversation after the event `after`, up to `head`."""
    return await _spoken(connection, clip(await segments(connection, log, head), after + 1, head))


async def _spoken(connection: Executor, parts: Segments) -> bool:
    for segment in parts:
        row = await connection.fetchrow(_SPOKEN, **parameters(segment))
        if row is not None:
            return True
    return False


async def prompts(connection: Executor, log: SessionLog, system_seq: int) -> list[int]:
    """Return the seqs of the system prompts in effect: the newest, at `system_seq`, and those before it without any
    conversation in between."""
    if system_seq == 0:
        return []
    found: list[int] = []
    for segment in reversed(await segments(connection, log, system_seq)):
        rows = await connection.fetch(_PROMPTS, session_id=segment.session_id, newest=segment.to_seq)
        found += [row["seq"] for row in rows]
        if segment.from_seq > 1 and await _spoken(connection, (segment,)):
            break
    return sorted(found)
