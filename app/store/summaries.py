"""Stored summaries. Their texts never change, but redactions erase them; live ones of a cover never overlap."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.lexicon.times import parse_time
from app.core.log.events import canonical_json
from app.core.memory.cover import StoredSummary, Summary
from app.store import texts
from app.store.engine import Connection, Database, Executor
from app.store.ids import SessionRef
from app.store.rows import decode


def _time(column: str) -> str:
    """Return the SQL of a time as `time_text` writes it, to the second. Old rows have minus infinity for the year 1."""
    return f"to_char(greatest({column}, '0001-01-01 00:00+00') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"


_FORMS: Final = {
    "id": "id::text",
    "cover_id": "cover_id::text",
    "starts_at": _time("starts_at"),
    "ends_at": _time("ends_at"),
    "first_turn": "coalesce(turns[1], 0)",
    "last_turn": "coalesce(turns[cardinality(turns)], 0)",
    "sources": "sources::text[]",
    "superseded_by": "superseded_by::text",
}
"""SQL of the fields that are not read as they are stored."""
_SUMMARY: Final = [field.name for field in fields(Summary)]
_STORED: Final = [field.name for field in fields(StoredSummary)]
_WRITTEN: Final = [name for name in _STORED if name not in ("first_turn", "last_turn", "superseded_by", "created_at")]
_CONTENT: Final = ("text", "digest", "usage")
_TEXT: Final = _SUMMARY.index("text")

COLUMNS: Final = ", ".join([*(_FORMS.get(name, name) for name in _SUMMARY), "origin"])
_LISTED: Final = ", ".join(f"{_FORMS.get(name, name)} AS {name}" for name in _STORED if name not in _CONTENT)

FINER_MAX: Final = 200
"""Limit of the superseded summaries that are read; a context shows a few dozen at most."""


def _summary(record: Iterable[Any]) -> tuple[Summary, UUID | None]:
    """Decode a record of COLUMNS; return the summary, and the session that holds its text if that is another one."""
    *values, origin = record
    values[_TEXT] = texts.open_text(values[_TEXT])
    return Summary(*values), UUID(origin) if isinstance(origin, str) else origin


async def with_texts(
    connection: Executor, records: Iterable[Sequence[Any]], known: Iterable[Summary] = ()
) -> tuple[Summary, ...]:
    """Decode records of COLUMNS. Texts stored under another session are read there, unless they are in `known`."""
    pairs = [_summary(record) for record in records]
    held = {one.id: one.text for one in known}
    inherited = await _inherited(connection, ((one.id, origin) for one, origin in pairs if one.id not in held))
    held |= {id: texts.open_text(row["text"]) for id, row in inherited.items()}
    return tuple(one if origin is None else replace(one, text=held[one.id]) for one, origin in pairs)


async def _read(connection: Executor, session_id: UUID, condition: str, **values: Any) -> tuple[Summary, ...]:
    """Return the summaries of a session that match a condition."""
    rows = await connection.fetch(
        f"SELECT ROW({COLUMNS}) AS summary FROM summaries WHERE session_id = :session_id AND {condition}",
        session_id=session_id,
        **values,
    )
    return await with_texts(connection, (row["summary"] for row in rows))


async def _inherited(connection: Executor, summaries: Iterable[tuple[str, UUID | None]]) -> dict[str, asyncpg.Record]:
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


_INSERT: Final = (
    f"INSERT INTO summaries (session_id, tenant_id, {', '.join(_WRITTEN)}) "
    f"VALUES (:session_id, :tenant_id, {', '.join(f':{name}' for name in _WRITTEN)})"
)


async def insert(tx: Connection, ref: SessionRef, new: StoredSummary) -> None:
    """Store a summary; a live one supersedes its live and invalid sources. Raises asyncpg.ExclusionViolationError."""
    if new.sources and new.live:
        await tx.execute(
            "UPDATE summaries SET status = 'superseded', superseded_by = :id "
            "WHERE session_id = :session_id AND id = ANY(:sources) AND status IN ('live', 'invalid')",
            session_id=ref.session_id,
            sources=list(new.sources),
            id=new.id,
        )
    values = {name: getattr(new, name) for name in _WRITTEN} | {
        "text": texts.seal_text(new.text),
        "digest": texts.dumps(new.digest),
        "usage": canonical_json(new.usage),
        "starts_at": parse_time(new.starts_at),
        "ends_at": parse_time(new.ends_at),
    }
    await tx.execute(_INSERT, **ref._asdict(), **values)


async def live(connection: Executor, session_id: UUID, cover_id: UUID) -> tuple[Summary, ...]:
    """Return the live summaries of a cover in log order."""
    condition = "cover_id = :cover_id AND status = 'live' ORDER BY from_seq"
    return await _read(connection, session_id, condition, cover_id=cover_id)


async def live_ids(connection: Executor, session_id: UUID, cover_id: UUID) -> list[str]:
    """Return the ids of the live summaries of a cover in log order."""
    rows = await connection.fetch(
        "SELECT id::text FROM summaries WHERE session_id = :session_id AND cover_id = :cover_id AND status = 'live' "
        "ORDER BY from_seq",
        session_id=session_id,
        cover_id=cover_id,
    )
    return [row["id"] for row in rows]


async def oldest_degraded(connection: Executor, session_id: UUID, cover_id: UUID) -> Summary | None:
    """Return the first live summary of a cover that was written without the intended model; None if there is none."""
    condition = "cover_id = :cover_id AND status = 'live' AND degraded ORDER BY from_seq LIMIT 1"
    return next(iter(await _read(connection, session_id, condition, cover_id=cover_id)), None)


async def oldest_invalid(connection: Executor, session_id: UUID, cover_id: UUID) -> Summary | None:
    """Return the first summary of a cover that a redaction invalidated and that is not rewritten yet, or None."""
    condition = "cover_id = :cover_id AND status = 'invalid' AND superseded_by IS NULL ORDER BY from_seq LIMIT 1"
    return next(iter(await _read(connection, session_id, condition, cover_id=cover_id)), None)


async def superseded(connection: Executor, session_id: UUID, to_seq: int) -> tuple[Summary, ...]:
    """Return the superseded summaries up to a seq, oldest first; of many, the newest FINER_MAX."""
    condition = (
        "status = 'superseded' AND to_seq <= :to_seq AND (text <> '' OR origin IS NOT NULL) "
        "ORDER BY created_at DESC, id DESC LIMIT :limit"
    )
    return (await _read(connection, session_id, condition, to_seq=to_seq, limit=FINER_MAX))[::-1]


async def with_ids(database: Database, session_id: UUID, ids: Sequence[str]) -> dict[str, Summary]:
    """Return these summaries by id, whatever their status."""
    return {one.id: one for one in await _read(database, session_id, "id = ANY(:ids::uuid[])", ids=list(ids))}


async def stored(connection: Executor, session_id: UUID, ids: Sequence[str]) -> tuple[StoredSummary, ...]:
    """Return these summaries with their contents, in the order of `ids`; those that do not exist are left out."""
    rows = await connection.fetch(
        f"SELECT {_LISTED}, text, digest, usage, origin FROM summaries "
        "WHERE session_id = :session_id AND id = ANY(:ids::uuid[])",
        session_id=session_id,
        ids=list(ids),
    )
    inherited = await _inherited(connection, ((row["id"], row["origin"]) for row in rows))
    found = {row["id"]: _stored(row, inherited.get(row["id"], row)) for row in rows}
    return tuple(found[id] for id in ids if id in found)


def _stored(row: asyncpg.Record, content: asyncpg.Record) -> StoredSummary:
    return decode(
        StoredSummary,
        row,
        text=texts.open_text(content["text"]),
        digest=texts.loads(content["digest"]),
        usage=json.loads(content["usage"]),
    )


async def page(
    database: Database, session_id: UUID, *, live_only: bool, after: tuple[datetime, UUID] | None, limit: int
) -> list[StoredSummary]:
    """Return summaries without their contents, in the order of their creation."""
    created_at, id = after or (None, None)
    rows = await database.fetch(
        f"SELECT {_LISTED} FROM summaries WHERE session_id = :session_id AND (NOT :live_only OR status = 'live') "
        "AND (:created_at::timestamptz IS NULL OR (created_at, id) > (:created_at, :id::uuid)) "
        "ORDER BY summaries.created_at, summaries.id LIMIT :limit",
        session_id=session_id,
        live_only=live_only,
        created_at=created_at,
        id=id,
        limit=limit,
    )
    return [decode(StoredSummary, row, text="", digest={}, usage={}) for row in rows]


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


async def degraded(database: Database, older_than_seconds: float, limit: int) -> list[SessionRef]:
    """Return up to `limit` sessions with degraded live summaries, in random order.

    The order is random so that sessions whose rewriting always fails do not keep the others waiting. Sessions of
    tenants with a request that was refused today for lack of tokens are left out.
    """
    rows = await database.fetch(
        "SELECT session_id, tenant_id FROM palimpsest_across_degraded(:seconds, 2147483647)"
        " ORDER BY random() LIMIT :limit",
        seconds=older_than_seconds,
        limit=limit,
    )
    return [SessionRef(row["session_id"], row["tenant_id"]) for row in rows]
