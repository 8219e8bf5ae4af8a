"""Tenants' rules and the purge of expired records; erasures with their progress and receipts."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final, Literal, NamedTuple
from uuid import UUID

import asyncpg

from app.core.log.events import Json, canonical_json
from app.runtime.wing import installed
from app.store import jobs
from app.store.deletion import ROWS_PER_STATEMENT, WITHOUT_KEYS, ExpiredCall, delete_calls
from app.store.engine import Connection, Database, Executor
from app.store.ids import SessionRef, new_id, session_key
from app.store.rows import columns, decode, parameters
from app.store.session_filter import SessionFilter, conditions, scan_conditions
from app.wings.retention.rules import RecordRule, RetentionDays, RuleDue

COUNTED_MAX: Final = 100_000
"""Number of records of one kind at which a preview stops counting."""


class _Records(NamedTuple):
    """A kind of record: its table, its key within the session and its type, the time that counts, and a condition."""

    table: str
    key: str
    key_type: str
    time: str
    condition: str


_RECORDS: Final[dict[RecordRule, _Records]] = {
    "calls": _Records("model_calls", "call_id", "uuid", "created_at", "TRUE"),
    "compactions": _Records("compactions", "id", "uuid", "finished_at", "state IN ('succeeded', 'skipped', 'failed')"),
    "changes": _Records("changes", "number", "bigint", "created_at", "TRUE"),
    "deliveries": _Records("deliveries", "id", "uuid", "finished_at", "state <> 'pending'"),
}


@dataclass(frozen=True, slots=True)
class RetentionRow:
    """A tenant's rules, and the time at which they were last set; None if they never were."""

    rules: RetentionDays
    updated_at: datetime | None


async def get_rules(database: Database, tenant_id: UUID) -> RetentionRow:
    """Return a tenant's rules; rules that keep everything if none were given."""
    row = await database.fetchrow(
        f"SELECT {columns(RetentionDays)}, updated_at FROM retention WHERE tenant_id = :tenant_id", tenant_id=tenant_id
    )
    if row is None:
        return RetentionRow(RetentionDays(), None)
    return RetentionRow(decode(RetentionDays, row), row["updated_at"])


_PUT: Final = (
    f"INSERT INTO retention (tenant_id, {columns(RetentionDays)}) "
    f"VALUES (:tenant_id, {', '.join(f':{one.name}' for one in fields(RetentionDays))}) "
    "ON CONFLICT (tenant_id) DO UPDATE SET updated_at = excluded.updated_at, "
    + ", ".join(f"{one.name} = excluded.{one.name}" for one in fields(RetentionDays))
)


async def put_rules(database: Database, tenant_id: UUID, rules: RetentionDays) -> None:
    """Store a tenant's rules, replacing the earlier ones."""
    await database.execute(_PUT, tenant_id=tenant_id, **parameters(rules))


async def tenants_with_rules(database: Database) -> list[UUID]:
    """Return the tenants that have a rule."""
    return [row["tenant_id"] for row in await database.fetch("SELECT tenant_id FROM palimpsest_across_retention()")]


async def tenants(database: Database) -> dict[str, UUID]:
    """Return all tenants by name. Only the tables' owner sees them all."""
    return {row["name"]: row["tenant_id"] for row in await database.fetch("SELECT tenant_id, name FROM tenants")}


async def count_records(database: Database, tenant_id: UUID, rule: RecordRule, before: datetime) -> RuleDue:
    """Count the records of a tenant that a rule would delete, those from before a time, up to COUNTED_MAX."""
    kind = _RECORDS[rule]
    row = await database.fetchrow(
        "SELECT count(*), count(*) = :limit AS more, min(at) AS oldest, max(at) AS newest "
        f"FROM (SELECT {kind.time} AS at FROM {kind.table} WHERE tenant_id = :tenant_id AND {kind.condition} "
        f"AND {kind.time} < :before ORDER BY {kind.time} LIMIT :limit) t",
        tenant_id=tenant_id,
        before=before,
        limit=COUNTED_MAX,
    )
    return RuleDue(rule, 0, False, None, None) if row is None else decode(RuleDue, row, rule=rule)


async def purge_records(database: Database, tenant_id: UUID, rule: RecordRule, before: datetime) -> int:
    """Delete a tenant's records from before a time, oldest first; return the number deleted."""
    kind = _RECORDS[rule]
    used_at = "greatest(created_at, reported_at)" if rule == "calls" else kind.time
    purged = 0
    while True:
        rows = await database.fetch(
            f"SELECT session_id, {kind.key} AS id, {used_at} AS used_at FROM {kind.table} WHERE tenant_id = :tenant_id "
            f"AND {kind.condition} AND {kind.time} < :before ORDER BY {kind.time} LIMIT :limit",
            tenant_id=tenant_id,
            before=before,
            limit=ROWS_PER_STATEMENT,
        )
        if rule == "calls":
            purged += await delete_calls(database, tenant_id, [decode(ExpiredCall, row) for row in rows])
        else:
            purged += await _delete(database, tenant_id, kind, rows)
        if len(rows) < ROWS_PER_STATEMENT:
            return purged


async def _delete(database: Database, tenant_id: UUID, kind: _Records, records: Sequence[asyncpg.Record]) -> int:
    """Delete records by their keys; return the number deleted."""
    table, key, key_type, _, condition = kind
    async with database.transaction() as tx:
        rows = await tx.fetch(
            f"DELETE FROM {table} t USING unnest(:session_ids::uuid[], :ids::{key_type}[]) AS o(session_id, id) "
            f"WHERE t.session_id = o.session_id AND t.{key} = o.id AND t.tenant_id = :tenant_id AND {condition} "
            "RETURNING t.session_id",
            session_ids=[one["session_id"] for one in records],
            ids=[one["id"] for one in records],
            tenant_id=tenant_id,
        )
    return len(rows)


TABLES: Final = (
    *("appends", "chain", "compactions", "epochs", "events", "layers", "redactions", "sessions", "summaries"),
    *("views", "visibility", *WITHOUT_KEYS),
    *(table for wing in installed() for table in wing.tables),
)
"""All tables of a session's data: the kernel's, and those that wings declare."""
_COUNT: Final = "SELECT " + ", ".join(
    f"(SELECT count(*) FROM {table} WHERE session_id = :session_id AND tenant_id = :tenant_id) AS {table}"
    for table in TABLES
)


async def counts(tx: Connection, ref: SessionRef) -> Mapping[str, int]:
    """Return the number of a session's or line's rows by table, without tables that have none."""
    row = await tx.fetchrow(_COUNT, **ref._asdict())
    return {} if row is None else {table: number for table, number in row.items() if number}


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

    @property
    def state(self) -> Literal["running", "done"]:
        """`done` once it is finished."""
        return "running" if self.finished_at is None else "done"


_COLUMNS: Final = columns(ErasureRow)


def _row(row: asyncpg.Record) -> ErasureRow:
    return decode(ErasureRow, row, counts=None if row["counts"] is None else json.loads(row["counts"]))


def text_sha256(text: str) -> bytes:
    """Return the hash of a text: a filter's, as receipts show it, or an idempotency key's."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


async def add(
    tx: Connection, tenant_id: UUID, api_key_id: UUID | None, idempotency_key: str | None, filter_text: str, forks: bool
) -> tuple[ErasureRow, bool]:
    """Store an erasure, or find the one that this idempotency key stored; return it and whether it is new."""
    row = await tx.fetchrow(
        "INSERT INTO erasures (tenant_id, id, key_id, idempotency_sha256, filter, filter_sha256, forks) "
        "VALUES (:tenant_id, :id, :key_id, :hashed, :filter, :filter_sha256, :forks) "
        f"ON CONFLICT (tenant_id, idempotency_sha256) DO NOTHING RETURNING {_COLUMNS}",
        tenant_id=tenant_id,
        id=new_id(),
        key_id=api_key_id,
        hashed=None if idempotency_key is None else text_sha256(idempotency_key),
        filter=filter_text,
        filter_sha256=text_sha256(filter_text),
        forks=forks,
    )
    if row is not None:
        return _row(row), True
    stored = None if idempotency_key is None else await find_by_key(tx, tenant_id, idempotency_key)
    if stored is None:
        raise RuntimeError("an erasure was not stored, and no other has its key")
    return stored, False


async def find_by_key(reader: Executor, tenant_id: UUID, idempotency_key: str) -> ErasureRow | None:
    """Return the erasure that was stored under an idempotency key; None if there is none."""
    row = await reader.fetchrow(
        f"SELECT {_COLUMNS} FROM erasures WHERE tenant_id = :tenant_id AND idempotency_sha256 = :hashed",
        tenant_id=tenant_id,
        hashed=text_sha256(idempotency_key),
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


async def erased_sessions(
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


async def count_erased(database: Database, tenant_id: UUID, erasure_id: UUID) -> int:
    """Count the sessions that an erasure has erased so far."""
    row = await database.fetchrow(
        "SELECT count(*) AS n FROM erased WHERE tenant_id = :tenant_id AND erasure_id = :erasure_id",
        tenant_id=tenant_id,
        erasure_id=erasure_id,
    )
    return 0 if row is None else int(row["n"])


async def record_erased(tx: Connection, ref: SessionRef, erasure_id: UUID, counts: Mapping[str, int]) -> None:
    """Record an erased session, and its name as erased, in the transaction that erases it."""
    await tx.execute(
        "INSERT INTO erased_names (session_id, tenant_id) VALUES (:session_id, :tenant_id) ON CONFLICT DO NOTHING",
        **ref._asdict(),
    )
    await tx.execute(
        "INSERT INTO erased (session_id, erasure_id, tenant_id, counts) "
        "VALUES (:session_id, :erasure_id, :tenant_id, :counts)",
        **ref._asdict(),
        erasure_id=erasure_id,
        counts=canonical_json(counts),
    )


_BY_KEY: Final = (
    "SELECT s.session_id, s.external_id, s.line, s.model, s.metadata FROM sessions s "
    "WHERE s.session_id = ANY(:keys::uuid[]) AND s.tenant_id = :tenant_id"
)


async def matching(reader: Executor, tenant_id: UUID, names: Collection[str], filters: SessionFilter) -> set[str]:
    """Return the names of those sessions that match the filter."""
    sql, values = conditions(filters, None)
    more, others = scan_conditions(filters, None)
    keys = [session_key(tenant_id, name) for name in names]
    found = await reader.fetch(f"{_BY_KEY} AND {sql}{more}", keys=keys, tenant_id=tenant_id, **values, **others)
    lines = [session_key(tenant_id, row["line"]) for row in found if row["line"] is not None]
    current = await reader.fetch(_BY_KEY, keys=lines, tenant_id=tenant_id) if lines else []
    by_key = {row["session_id"]: row for row in current}

    def holds(row: asyncpg.Record) -> bool:  # metadata may be on the session's own row or on that of its current line
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
    sessions = await count_erased(database, tenant_id, id)
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


async def enqueue_unfinished(database: Database) -> int:
    """Queue the unfinished erasures that have no job; return the number of them."""
    rows = await database.fetch("SELECT tenant_id, id FROM palimpsest_across_erasures()")
    for row in rows:
        await jobs.enqueue(database, "erase", row["id"], f"{row['tenant_id']} {row['id']}")
    return len(rows)
