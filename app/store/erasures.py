"""Erasures of the sessions that match a filter: the request, the progress, and the receipt."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.core.log.events import Json, canonical_json
from app.store import erased_names
from app.store.engine import Connection, Database
from app.store.rows import columns, decode
from app.store.session_filter import SessionFilter, conditions, scan_conditions
from app.store.sessions import session_key


@dataclass(frozen=True, slots=True)
class ErasureRow:
    """The state of an erasure. `filter` is JSON, and None once it is done; `sessions`, `kept` and `counts` (rows by
    table) are set then."""

    tenant_id: UUID
    id: UUID
    key_id: UUID | None
    filter: str | None
    filter_sha256: bytes
    forks: bool
    sessions: int | None
    kept: int | None
    counts: Mapping[str, int] | None
    created_at: datetime
    finished_at: datetime | None


_COLUMNS: Final = columns(ErasureRow)


def _row(row: asyncpg.Record) -> ErasureRow:
    return decode(ErasureRow, row, counts=None if row["counts"] is None else json.loads(row["counts"]))


def text_sha256(text: str) -> bytes:
    """Return the hash of a text: a filter's, as receipts show it, or an idempotency key's."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


async def add(
    tx: Connection,
    tenant_id: UUID,
    id: UUID,
    *,
    key_id: UUID | None,
    key: str | None,
    text: str,
    forks: bool,
) -> tuple[ErasureRow, bool]:
    """Store an erasure with the `text` of its filter; return it and True, or the one already stored under this
    idempotency `key` and False."""
    row = await tx.fetchrow(
        "INSERT INTO erasures (tenant_id, id, key_id, idempotency_sha256, filter, filter_sha256, forks) "
        "VALUES (:tenant_id, :id, :key_id, :hashed, :filter, :filter_sha256, :forks) "
        f"ON CONFLICT (tenant_id, idempotency_sha256) DO NOTHING RETURNING {_COLUMNS}",
        tenant_id=tenant_id,
        id=id,
        key_id=key_id,
        hashed=None if key is None else text_sha256(key),
        filter=text,
        filter_sha256=text_sha256(text),
        forks=forks,
    )
    if row is not None:
        return _row(row), True
    stored = None if key is None else await under_key(tx, tenant_id, key)
    if stored is None:
        raise RuntimeError("an erasure was neither stored nor there already")
    return stored, False


async def under_key(reader: Connection | Database, tenant_id: UUID, key: str) -> ErasureRow | None:
    """Return the erasure that was stored under an idempotency key; None if there is none."""
    row = await reader.fetchrow(
        f"SELECT {_COLUMNS} FROM erasures WHERE tenant_id = :tenant_id AND idempotency_sha256 = :hashed",
        tenant_id=tenant_id,
        hashed=text_sha256(key),
    )
    return None if row is None else _row(row)


async def find(database: Database, tenant_id: UUID, id: UUID) -> ErasureRow | None:
    """Return an erasure; None if there is none."""
    row = await database.fetchrow(
        f"SELECT {_COLUMNS} FROM erasures WHERE tenant_id = :tenant_id AND id = :id", tenant_id=tenant_id, id=id
    )
    return None if row is None else _row(row)


async def page(database: Database, tenant_id: UUID, after: UUID | None, limit: int) -> list[ErasureRow]:
    """Return a tenant's erasures, newest first."""
    rows = await database.fetch(
        f"SELECT {_COLUMNS} FROM erasures WHERE tenant_id = :tenant_id AND (:after::uuid IS NULL OR id < :after) "
        "ORDER BY id DESC LIMIT :limit",
        tenant_id=tenant_id,
        after=after,
        limit=limit,
    )
    return [_row(row) for row in rows]


@dataclass(frozen=True, slots=True)
class ErasedSession:
    """A session that was erased, by its id."""

    session_id: UUID
    erased_at: datetime


async def sessions_of(
    database: Database, tenant_id: UUID, erasure_id: UUID, after: UUID | None, limit: int
) -> list[ErasedSession]:
    """Return the sessions that an erasure has erased so far, by id."""
    rows = await database.fetch(
        "SELECT session_id, erased_at FROM erased WHERE tenant_id = :tenant_id AND erasure_id = :erasure_id "
        "AND (:after::uuid IS NULL OR session_id > :after) ORDER BY session_id LIMIT :limit",
        tenant_id=tenant_id,
        erasure_id=erasure_id,
        after=after,
        limit=limit,
    )
    return [decode(ErasedSession, row) for row in rows]


async def count(database: Database, tenant_id: UUID, erasure_id: UUID) -> int:
    """Count the sessions that an erasure has erased so far."""
    row = await database.fetchrow(
        "SELECT count(*) AS n FROM erased WHERE tenant_id = :tenant_id AND erasure_id = :erasure_id",
        tenant_id=tenant_id,
        erasure_id=erasure_id,
    )
    return 0 if row is None else int(row["n"])


async def record_erased(
    tx: Connection, tenant_id: UUID, erasure_id: UUID, session_id: UUID, counts: Mapping[str, int]
) -> None:
    """Record that a session is erased, and its name, in the transaction that erases it."""
    await erased_names.add(tx, tenant_id, session_id)
    await tx.execute(
        "INSERT INTO erased (session_id, erasure_id, tenant_id, counts) "
        "VALUES (:session_id, :erasure_id, :tenant_id, :counts)",
        session_id=session_id,
        erasure_id=erasure_id,
        tenant_id=tenant_id,
        counts=canonical_json(counts),
    )


_FILTERED: Final = (
    "SELECT s.session_id, s.external_id, s.line, s.model, s.metadata FROM sessions s "
    "WHERE s.session_id = ANY(:keys::uuid[]) AND s.tenant_id = :tenant_id"
)


async def matching(
    reader: Connection | Database, tenant_id: UUID, names: Collection[str], filters: SessionFilter
) -> set[str]:
    """Return the names of those sessions that match the filter."""
    sql, values = conditions(filters, None)
    more, others = scan_conditions(filters, None)
    keys = [session_key(tenant_id, name) for name in names]
    found = await reader.fetch(f"{_FILTERED} AND {sql}{more}", keys=keys, tenant_id=tenant_id, **values, **others)
    lines = [session_key(tenant_id, row["line"]) for row in found if row["line"] is not None]
    current = await reader.fetch(_FILTERED, keys=lines, tenant_id=tenant_id) if lines else []
    by_key = {row["session_id"]: row for row in current}

    def holds(row: asyncpg.Record) -> bool:
        now = row if row["line"] is None else by_key.get(session_key(tenant_id, row["line"]), row)
        return filters.holds(now["model"], *(json.loads(one["metadata"]) for one in (now, row)))

    return {row["external_id"] for row in found if holds(row)}


async def finish(database: Database, tenant_id: UUID, id: UUID, kept: int) -> ErasureRow | None:
    """Sum up the erased rows, delete the filter, and return the receipt; None if it was finished before."""
    sums = await database.fetch(
        "SELECT c.key AS name, sum(c.value::bigint)::bigint AS number FROM erased e, json_each_text(e.counts) c "
        "WHERE e.tenant_id = :tenant_id AND e.erasure_id = :erasure_id GROUP BY c.key ORDER BY c.key",
        tenant_id=tenant_id,
        erasure_id=id,
    )
    counts: dict[str, Json] = {row["name"]: row["number"] for row in sums}
    sessions = await count(database, tenant_id, id)
    row = await database.fetchrow(
        "UPDATE erasures SET filter = NULL, finished_at = now(), sessions = :sessions, kept = :kept, counts = :counts "
        f"WHERE tenant_id = :tenant_id AND id = :id AND finished_at IS NULL RETURNING {_COLUMNS}",
        tenant_id=tenant_id,
        id=id,
        sessions=sessions,
        kept=kept,
        counts=canonical_json(counts),
    )
    return None if row is None else _row(row)


async def queue(connection: Connection | Database, tenant_id: UUID, id: UUID) -> None:
    """Queue an erasure, unless a job for it waits or runs."""
    await connection.execute(
        "INSERT INTO pgqueuer (priority, entrypoint, payload, dedupe_key, status) "
        "VALUES (0, 'erase', convert_to(:payload, 'UTF8'), :dedupe_key, 'queued') ON CONFLICT (dedupe_key) "
        "WHERE ((status = ANY (ARRAY['queued'::pgqueuer_status, 'picked'::pgqueuer_status])) "
        "AND (dedupe_key IS NOT NULL)) DO NOTHING",
        payload=f"{tenant_id} {id}",
        dedupe_key=f"erase:{id}",
    )


async def enqueue_unfinished(database: Database) -> int:
    """Queue the unfinished erasures that have no job; return the number of them."""
    rows = await database.fetch("SELECT tenant_id, id FROM palimpsest_across_erasures()")
    for row in rows:
        await queue(database, row["tenant_id"], row["id"])
    return len(rows)
