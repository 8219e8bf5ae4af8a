"""Stored summaries. Their texts are only ever erased, and live summaries of a cover never overlap."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.lexicon.times import time_text
from app.core.log.events import Json, canonical_json, readable
from app.core.memory.cover import Summary
from app.core.memory.digest.digest import complete
from app.store import texts
from app.store.engine import Connection, Database
from app.store.rows import columns, decode, parameters


def _time(column: str) -> str:
    """Return the SQL of a time as `time_text` writes it, to the second. Old rows have minus infinity for the year 1."""
    return f"to_char(greatest({column}, '0001-01-01 00:00+00') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"


COLUMNS: Final = (
    "id::text, from_seq, to_seq, depth, tokens, text, source_tokens, events, split_turn, "
    f"{_time('starts_at')}, {_time('ends_at')}, cover_id::text, status = 'live', origin, "
    "turns[1], turns[cardinality(turns)]"
)

FINER_MAX: Final = 200
"""Limit of the superseded summaries that are read; a context shows a few dozen at most."""


def _summary(record: Iterable[Any]) -> tuple[Summary, UUID | None]:
    """Decode a record of COLUMNS; return the summary, and the session that holds its text if that is another one."""
    id, first, last, depth, tokens, text, source, events, split_turn, starts, ends, cover_id, live, origin, *turns = (
        record
    )
    details = (source, events, split_turn, starts, ends, cover_id, live)
    summary = Summary(id, first, last, depth, tokens, texts.open_text(text), *details, *(turn or 0 for turn in turns))
    return summary, UUID(origin) if isinstance(origin, str) else origin


async def with_texts(
    connection: Connection | Database, records: Iterable[Sequence[Any]], known: Iterable[Summary] = ()
) -> tuple[Summary, ...]:
    """Decode records of COLUMNS. Texts stored under another session are read there, unless they are in `known`."""
    pairs = [_summary(record) for record in records]
    held = {one.id: one.text for one in known}
    inherited = await _inherited(connection, ((one.id, origin) for one, origin in pairs if one.id not in held))
    held |= {id: texts.open_text(row["text"]) for id, row in inherited.items()}
    return tuple(one if origin is None else replace(one, text=held[one.id]) for one, origin in pairs)


async def _inherited(
    connection: Connection | Database, summaries: Iterable[tuple[str, UUID | None]]
) -> dict[str, asyncpg.Record]:
    """Return text, digest and usage of the summaries (id and origin) whose text another session holds, by id."""
    wanted: dict[UUID, list[str]] = {}
    for id, origin in summaries:
        if origin is not None:
            wanted.setdefault(origin, []).append(id)
    found: dict[str, asyncpg.Record] = {}
    for origin, ids in wanted.items():
        held = await connection.fetch(
            "SELECT id::text, text, digest, usage FROM summaries "
            "WHERE session_id = :session_id AND id = ANY(:ids::uuid[])",
            session_id=origin,
            ids=ids,
        )
        found |= {row["id"]: row for row in held}
    return found


@dataclass(frozen=True, slots=True)
class NewSummary:
    """A summary to store. `status` is live, or refused with the `complaints` of the quality gate."""

    id: UUID
    cover_id: UUID
    depth: int
    from_seq: int
    to_seq: int
    text: str
    digest: Mapping[str, Json]
    tokens: int
    source_tokens: int
    events: int
    turns: tuple[int, ...]
    split_turn: int | None
    starts_at: datetime
    ends_at: datetime
    summarizer: str
    model: str | None
    prompt_version: str | None
    usage: Mapping[str, Json]
    degraded: bool
    status: str = "live"
    complaints: tuple[str, ...] = ()
    sources: tuple[UUID, ...] = ()


_INSERT: Final = """
INSERT INTO summaries (session_id, tenant_id, id, cover_id, depth, from_seq, to_seq, text, digest, tokens,
    source_tokens, events, turns, split_turn, starts_at, ends_at, summarizer, model, prompt_version, usage, degraded,
    status, complaints, sources)
VALUES (:session_id, :tenant_id, :id, :cover_id, :depth, :from_seq, :to_seq, :text, :digest, :tokens,
    :source_tokens, :events, :turns, :split_turn, :starts_at, :ends_at, :summarizer, :model, :prompt_version, :usage,
    :degraded, :status, :complaints, :sources)
"""


async def insert(tx: Connection, session_id: UUID, tenant_id: UUID, new: NewSummary) -> None:
    """Store a summary, which supersedes its live sources. Raises asyncpg.ExclusionViolationError on an overlap."""
    if new.sources and new.status == "live":
        await tx.execute(
            "UPDATE summaries SET status = 'superseded', superseded_by = :id "
            "WHERE session_id = :session_id AND id = ANY(:sources) AND status IN ('live', 'invalid')",
            session_id=session_id,
            sources=list(new.sources),
            id=new.id,
        )
    words = texts.seal_text(readable(new.text))
    stored_as = {"text": words, "digest": texts.dumps(new.digest), "usage": canonical_json(new.usage)}
    await tx.execute(_INSERT, session_id=session_id, tenant_id=tenant_id, **parameters(new) | stored_as)


@dataclass(frozen=True, slots=True)
class LiveSummary:
    """A live summary as a merge reads it, without its digest."""

    summary: Summary
    turns: tuple[int, ...]
    starts_at: datetime
    ends_at: datetime
    degraded: bool


async def live(connection: Connection | Database, session_id: UUID, cover_id: UUID) -> list[LiveSummary]:
    """Return the live summaries of a cover in log order."""
    rows = await connection.fetch(
        f"SELECT ROW({COLUMNS}) AS summary, turns, starts_at, ends_at, degraded "
        "FROM summaries WHERE session_id = :session_id AND cover_id = :cover_id AND status = 'live' ORDER BY from_seq",
        session_id=session_id,
        cover_id=cover_id,
    )
    whole = await with_texts(connection, (row["summary"] for row in rows))
    return [
        LiveSummary(one, tuple(row["turns"]), row["starts_at"], row["ends_at"], row["degraded"])
        for one, row in zip(whole, rows, strict=True)
    ]


def as_live(new: NewSummary) -> LiveSummary:
    """Return a stored summary as `live` returns it."""
    starts, ends = (f"{time_text(at)[:19]}Z" for at in (new.starts_at, new.ends_at))
    turns = (new.turns[0], new.turns[-1]) if new.turns else (0, 0)
    about = (new.source_tokens, new.events, new.split_turn, starts, ends, str(new.cover_id), True, *turns)
    summary = Summary(str(new.id), new.from_seq, new.to_seq, new.depth, new.tokens, readable(new.text), *about)
    return LiveSummary(summary, new.turns, new.starts_at, new.ends_at, new.degraded)


async def live_ids(connection: Connection | Database, session_id: UUID, cover_id: UUID) -> list[str]:
    """Return the ids of the live summaries of a cover in log order."""
    rows = await connection.fetch(
        "SELECT id::text FROM summaries WHERE session_id = :session_id AND cover_id = :cover_id AND status = 'live' "
        "ORDER BY from_seq",
        session_id=session_id,
        cover_id=cover_id,
    )
    return [row["id"] for row in rows]


async def digests(connection: Connection | Database, session_id: UUID, ids: Sequence[str]) -> list[Mapping[str, Json]]:
    """Return the digests of these summaries as `core/digest.to_json` writes them; empty where there is none."""
    rows = await connection.fetch(
        "SELECT id::text, digest, origin FROM summaries WHERE session_id = :session_id AND id = ANY(:ids::uuid[])",
        session_id=session_id,
        ids=list(ids),
    )
    inherited = await _inherited(connection, ((row["id"], row["origin"]) for row in rows))
    held = {row["id"]: texts.loads(inherited.get(row["id"], row)["digest"]) for row in rows}
    return [held.get(id, {}) for id in ids]


async def superseded(database: Database, session_id: UUID, to_seq: int) -> tuple[Summary, ...]:
    """Return the superseded summaries up to a seq, oldest first; of many, the newest FINER_MAX."""
    rows = await database.fetch(
        f"SELECT ROW({COLUMNS}) AS summary FROM summaries WHERE session_id = :session_id AND status = 'superseded' "
        "AND to_seq <= :to_seq AND (text <> '' OR origin IS NOT NULL) ORDER BY created_at DESC, id DESC LIMIT :limit",
        session_id=session_id,
        to_seq=to_seq,
        limit=FINER_MAX,
    )
    return await with_texts(database, (row["summary"] for row in reversed(rows)))


@dataclass(frozen=True, slots=True)
class SummaryToRewrite:
    """An invalid summary, to be replaced by a new one of the same events."""

    id: UUID
    depth: int
    from_seq: int
    to_seq: int


async def invalid(connection: Connection | Database, session_id: UUID, cover_id: UUID) -> list[SummaryToRewrite]:
    """Return the summaries that redactions invalidated and that are not rewritten yet, in log order."""
    rows = await connection.fetch(
        f"SELECT {columns(SummaryToRewrite)} FROM summaries WHERE session_id = :session_id AND cover_id = :cover_id "
        "AND status = 'invalid' AND superseded_by IS NULL ORDER BY from_seq",
        session_id=session_id,
        cover_id=cover_id,
    )
    return [decode(SummaryToRewrite, row) for row in rows]


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A summary as it is listed."""

    id: UUID
    from_seq: int
    to_seq: int
    depth: int
    tokens: int
    status: str
    summarizer: str
    model: str | None
    prompt_version: str | None
    degraded: bool
    turns: tuple[int, ...]
    split_turn: int | None
    source_tokens: int
    events: int
    sources: tuple[UUID, ...]
    superseded_by: UUID | None
    complaints: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class WholeSummary(SummaryRow):
    """A summary with its text, digest and usage."""

    text: str
    digest: Mapping[str, Json]
    usage: Mapping[str, Json]


_LISTED: Final = columns(SummaryRow)


async def page(
    database: Database, session_id: UUID, *, live_only: bool, after: tuple[datetime, UUID] | None, limit: int
) -> list[SummaryRow]:
    """Return summaries in the order of their creation."""
    created_at, id = after or (None, None)
    rows = await database.fetch(
        f"SELECT {_LISTED} FROM summaries WHERE session_id = :session_id AND (NOT :live_only OR status = 'live') "
        "AND (:created_at::timestamptz IS NULL OR (created_at, id) > (:created_at, :id::uuid)) "
        "ORDER BY created_at, id LIMIT :limit",
        session_id=session_id,
        live_only=live_only,
        created_at=created_at,
        id=id,
        limit=limit,
    )
    return [decode(SummaryRow, row) for row in rows]


async def find(database: Database, session_id: UUID, id: UUID) -> WholeSummary | None:
    """Return one summary; None if there is none."""
    row = await database.fetchrow(
        f"SELECT {_LISTED}, text, digest, usage, origin FROM summaries WHERE session_id = :session_id AND id = :id",
        session_id=session_id,
        id=id,
    )
    if row is None:
        return None
    held = (await _inherited(database, [(str(id), row["origin"])])).get(str(id), row)
    content = {
        "text": texts.open_text(held["text"]),
        "digest": complete(texts.loads(held["digest"])),
        "usage": json.loads(held["usage"]),
    }
    return decode(WholeSummary, row, **content)


async def spans(database: Database, session_id: UUID, ids: Sequence[UUID]) -> Mapping[str, tuple[int, int]]:
    """Return the spans of those summaries whose text still exists, by id."""
    rows = await database.fetch(
        "SELECT id, from_seq, to_seq FROM summaries WHERE session_id = :session_id AND id = ANY(:ids) "
        "AND (text <> '' OR origin IS NOT NULL)",
        session_id=session_id,
        ids=list(ids),
    )
    return {str(row["id"]): (row["from_seq"], row["to_seq"]) for row in rows}


async def invalidate(tx: Connection, session_id: UUID, seq: int) -> int:
    """Erase the texts of all summaries that cover an event; return the number of those that are now invalid. A live one
    becomes invalid and is rewritten later."""
    rows = await tx.fetch(
        "UPDATE summaries SET text = '', digest = '{}', usage = '{}', complaints = '{}', origin = NULL, "
        "status = CASE WHEN status = 'live' THEN 'invalid' ELSE status END "
        "WHERE session_id = :session_id AND :seq BETWEEN from_seq AND to_seq RETURNING status",
        session_id=session_id,
        seq=seq,
    )
    return sum(row["status"] == "invalid" for row in rows)


async def degraded(database: Database, older_than_seconds: float, limit: int) -> list[tuple[UUID, UUID]]:
    """Return up to `limit` sessions with degraded live summaries, and their tenants, in random order.

    So none that fails each time is always before the others. Sessions of tenants that may spend no more today are left
    out.
    """
    rows = await database.fetch(
        "SELECT session_id, tenant_id FROM palimpsest_across_degraded(:seconds, 2147483647)"
        " ORDER BY random() LIMIT :limit",
        seconds=older_than_seconds,
        limit=limit,
    )
    return [(row["session_id"], row["tenant_id"]) for row in rows]
