"""Stored summaries: immutable but for their status, never two live ones over one event."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.cover.summaries import Summary
from app.core.log.events import Json, canonical_json, readable
from app.store import texts
from app.store.engine import Connection, Database

COLUMNS: Final = (
    "id::text, from_seq, to_seq, depth, tokens, text, source_tokens, events, split_turn,"
    " to_char(starts_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'),"
    " to_char(ends_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), cover_id::text, status = 'live', origin"
)

FINER_MAX: Final = 200
"""So many superseded summaries are looked at: a context shows a few dozen at most."""


async def told(
    connection: Connection | Database, records: Iterable[Sequence[Any]], known: Iterable[Summary] = ()
) -> tuple[Summary, ...]:
    """Rows of COLUMNS. What those say that a fork took over is read where it stands, unless it is `known`."""
    rows = [(Summary(*record[:-1]), record[-1]) for record in records]
    texts = {one.id: one.text for one in known}
    away = await _away(connection, [(one.id, origin) for one, origin in rows if one.id not in texts])
    texts |= {id: row["text"] for id, row in away.items()}
    return tuple(one if origin is None else replace(one, text=texts[one.id]) for one, origin in rows)


async def _away(
    connection: Connection | Database, rows: Iterable[tuple[str, UUID | None]]
) -> dict[str, asyncpg.Record]:
    """Text, digest and usage of those of the rows (id and origin) that another session holds, by id."""
    wanted: dict[UUID, list[str]] = {}
    for id, origin in rows:
        if origin is not None:
            wanted.setdefault(origin, []).append(id)
    found: dict[str, asyncpg.Record] = {}
    for origin, ids in wanted.items():
        held = await connection.fetch(
            "SELECT id::text, text, digest, usage FROM summaries WHERE session_id = $1 AND id = ANY($2::uuid[])",
            origin,
            ids,
        )
        found |= {row["id"]: row for row in held}
    return found


@dataclass(frozen=True, slots=True)
class NewSummary:
    """A summary to be stored; `status` is live, or refused with the `complaints` of the gate."""

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
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
"""


async def insert(tx: Connection, session_id: UUID, tenant_id: UUID, new: NewSummary) -> None:
    """Store a summary; its live sources give way to it. Raises asyncpg.ExclusionViolationError on an overlap."""
    if new.sources and new.status == "live":
        await tx.execute(
            "UPDATE summaries SET status = 'superseded', superseded_by = $3 "
            "WHERE session_id = $1 AND id = ANY($2) AND status IN ('live', 'invalid')",
            session_id,
            list(new.sources),
            new.id,
        )
    await tx.execute(
        _INSERT,
        session_id,
        tenant_id,
        new.id,
        new.cover_id,
        new.depth,
        new.from_seq,
        new.to_seq,
        readable(new.text),
        texts.dumps(new.digest),
        new.tokens,
        new.source_tokens,
        new.events,
        list(new.turns),
        new.split_turn,
        new.starts_at,
        new.ends_at,
        new.summarizer,
        new.model,
        new.prompt_version,
        canonical_json(new.usage),
        new.degraded,
        new.status,
        list(new.complaints),
        list(new.sources),
    )


async def live(connection: Connection | Database, session_id: UUID, cover_id: UUID) -> list[Mapping[str, Any]]:
    """The live summaries of a cover in the log's order, with their digests."""
    rows = await connection.fetch(
        f"SELECT ROW({COLUMNS}) AS summary, digest, turns, starts_at AS began, ends_at AS ended, degraded, created_at "
        "FROM summaries WHERE session_id = $1 AND cover_id = $2 AND status = 'live' ORDER BY from_seq",
        session_id,
        cover_id,
    )
    parts = await told(connection, (row["summary"] for row in rows))
    away = await _away(connection, [(row["summary"][0], row["summary"][-1]) for row in rows])
    return [
        {**row, "summary": one, "digest": texts.loads(away.get(one.id, row)["digest"])}
        for row, one in zip(rows, parts, strict=True)
    ]


async def superseded(database: Database, session_id: UUID, to_seq: int) -> tuple[Summary, ...]:
    """What the summaries up to a seq were made of, in the order in which they were made, the newest FINER_MAX of it."""
    rows = await database.fetch(
        f"SELECT ROW({COLUMNS}) AS summary FROM summaries WHERE session_id = $1 AND status = 'superseded' "
        "AND to_seq <= $2 AND (text <> '' OR origin IS NOT NULL) ORDER BY created_at DESC, id DESC LIMIT $3",
        session_id,
        to_seq,
        FINER_MAX,
    )
    return await told(database, (row["summary"] for row in reversed(rows)))


async def invalid(connection: Connection | Database, session_id: UUID, cover_id: UUID) -> list[Mapping[str, Any]]:
    """What a redaction has taken out of the cover and that has not been written anew, in the log's order."""
    rows = await connection.fetch(
        "SELECT id, depth, from_seq, to_seq FROM summaries "
        "WHERE session_id = $1 AND cover_id = $2 AND status = 'invalid' AND superseded_by IS NULL ORDER BY from_seq",
        session_id,
        cover_id,
    )
    return [dict(row) for row in rows]


_LISTED: Final = (
    "id, cover_id, from_seq, to_seq, depth, tokens, status, summarizer, model, prompt_version, degraded, turns, "
    "split_turn, source_tokens, events, sources, superseded_by, complaints, created_at"
)


async def page(
    database: Database, session_id: UUID, *, live_only: bool, after: tuple[datetime, UUID] | None, limit: int
) -> list[asyncpg.Record]:
    """Summaries as they were made, oldest first."""
    return list(
        await database.fetch(
            f"SELECT {_LISTED} FROM summaries WHERE session_id = $1 AND (NOT $2 OR status = 'live') "
            "AND ($3::timestamptz IS NULL OR (created_at, id) > ($3, $4::uuid)) ORDER BY created_at, id LIMIT $5",
            session_id,
            live_only,
            *(after or (None, None)),
            limit,
        )
    )


async def find(database: Database, session_id: UUID, id: UUID) -> Mapping[str, Any] | None:
    """One summary with its text, digest and usage."""
    row = await database.fetchrow(
        f"SELECT {_LISTED}, text, digest, usage, origin FROM summaries WHERE session_id = $1 AND id = $2",
        session_id,
        id,
    )
    if row is None:
        return None
    away = await _away(database, [(str(id), row["origin"])])
    said = away.get(str(id), row)
    return {name: value for name, value in row.items() if name != "origin"} | {
        name: said[name] for name in ("text", "digest", "usage")
    }


async def spans(database: Database, session_id: UUID, ids: Sequence[UUID]) -> Mapping[str, tuple[int, int]]:
    """The spans of summaries whose text there is, by id."""
    rows = await database.fetch(
        "SELECT id, from_seq, to_seq FROM summaries WHERE session_id = $1 AND id = ANY($2) "
        "AND (text <> '' OR origin IS NOT NULL)",
        session_id,
        list(ids),
    )
    return {str(row["id"]): (row["from_seq"], row["to_seq"]) for row in rows}


async def invalidate(tx: Connection, session_id: UUID, seq: int) -> int:
    """Destroy what is derived from an event: every summary over it. How many live ones were.

    A live one leaves a hole that is written anew; older ones and refused ones lose their text.
    """
    rows = await tx.fetch(
        "UPDATE summaries SET text = '', digest = '{}', usage = '{}', complaints = '{}', origin = NULL, "
        "status = CASE WHEN status = 'live' THEN 'invalid' ELSE status END "
        "WHERE session_id = $1 AND $2 BETWEEN from_seq AND to_seq RETURNING status",
        session_id,
        seq,
    )
    return sum(row["status"] == "invalid" for row in rows)


async def degraded(database: Database, older_than_seconds: float, limit: int) -> list[tuple[UUID, UUID]]:
    """Sessions with a live summary that a model was meant to write and did not, and their tenants; not those of tenants
    that may spend no more today."""
    rows = await database.fetch(
        "SELECT session_id, tenant_id FROM palimpsest_across_degraded($1, $2)",
        older_than_seconds,
        limit,
    )
    return [(row["session_id"], row["tenant_id"]) for row in rows]
