"""Retention: tenants' rules, and the purge of expired rows, in batches that lock few of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.log.turns import Lifetimes, RecordRule
from app.store.engine import Connection, Database, acting_for
from app.store.rows import columns, decode, parameters

ROWS_PER_STATEMENT: Final = 1000
_JOB_LOG: Final = """
WITH deleted AS (
    DELETE FROM pgqueuer_log WHERE id IN (
        SELECT id FROM pgqueuer_log WHERE created < now() - interval '1 day' ORDER BY created LIMIT :limit)
    RETURNING id
)
SELECT count(*) AS gone FROM deleted
"""
_DEAD_JOBS: Final = """
WITH deleted AS (
    DELETE FROM pgqueuer WHERE id IN (
        SELECT id FROM pgqueuer WHERE status NOT IN ('queued', 'picked') AND updated < now() - interval '30 days'
        ORDER BY updated LIMIT :limit)
    RETURNING id
)
SELECT count(*) AS gone FROM deleted
"""
COUNTED_MAX: Final = 100_000
"""Limit of the rows of one kind that a dry run counts."""

_RECORDS: Final[dict[RecordRule, tuple[str, str, str, str, str]]] = {
    "calls": ("model_calls", "call_id", "uuid", "created_at", "TRUE"),
    "compactions": ("compactions", "id", "uuid", "finished_at", "state IN ('succeeded', 'skipped', 'failed')"),
    "changes": ("changes", "number", "bigint", "created_at", "TRUE"),
    "deliveries": ("deliveries", "id", "uuid", "finished_at", "state <> 'pending'"),
}
"""For each kind of record: its table, its key within the session and its type, the time that counts, a condition."""


async def purge_appends(database: Database) -> int:
    """Delete idempotency keys older than a day; return the number deleted."""
    return await _purge(database, "appends")


async def purge_deliveries(database: Database) -> int:
    """Delete deliveries that ended a month ago; return the number deleted."""
    return await _purge(database, "deliveries")


async def purge_job_log(database: Database) -> int:
    """Delete the queue's log of jobs older than a day, which nothing reads; return the number of rows deleted."""
    return await _in_batches(database, _JOB_LOG)


async def _purge(database: Database, what: str) -> int:
    return await _in_batches(database, "SELECT palimpsest_across_purge(:what, :limit) AS gone", what=what)


async def _in_batches(database: Database, sql: str, **values: object) -> int:
    """Delete in batches that lock few rows, oldest first; return the number of rows deleted."""
    purged = 0
    while True:
        row = await database.fetchrow(sql, **values, limit=ROWS_PER_STATEMENT)
        gone = 0 if row is None else int(row["gone"])
        purged += gone
        if gone < ROWS_PER_STATEMENT:
            return purged


async def purge_calls(database: Database) -> int:
    """Delete expired records of calls, of all tenants; return the number deleted."""
    purged = 0
    while True:
        rows = await database.fetch(
            "SELECT tenant_id, session_id, call_id AS id, used_at FROM palimpsest_across_expired(:limit)",
            limit=ROWS_PER_STATEMENT,
        )
        for tenant_id in dict.fromkeys(row["tenant_id"] for row in rows):
            with acting_for(tenant_id):
                own = [decode(Record, row) for row in rows if row["tenant_id"] == tenant_id]
                purged += await _delete(database, tenant_id, "calls", own)
        if len(rows) < ROWS_PER_STATEMENT:
            return purged


async def purge_dead_jobs(database: Database) -> int:
    """Delete jobs that the queue gave up a month ago; return the number deleted."""
    return await _in_batches(database, _DEAD_JOBS)


@dataclass(frozen=True, slots=True)
class RetentionRow:
    """A tenant's rules, and the time from which they apply."""

    rules: Lifetimes
    updated_at: datetime | None


async def get(database: Database, tenant_id: UUID) -> RetentionRow:
    """Return a tenant's rules; rules that keep everything if none were given."""
    row = await database.fetchrow(
        f"SELECT {columns(Lifetimes)}, updated_at FROM retention WHERE tenant_id = :tenant_id", tenant_id=tenant_id
    )
    return RetentionRow(Lifetimes(), None) if row is None else RetentionRow(decode(Lifetimes, row), row["updated_at"])


_PUT: Final = (
    f"INSERT INTO retention (tenant_id, {columns(Lifetimes)}) VALUES (:tenant_id, :session_days, :idle_days, "
    ":call_days, :compaction_days, :change_days, :delivery_days) ON CONFLICT (tenant_id) DO UPDATE SET "
    + ", ".join(f"{one.name} = excluded.{one.name}" for one in fields(Lifetimes))
    + ", updated_at = excluded.updated_at"
)


async def put(database: Database, tenant_id: UUID, rules: Lifetimes) -> None:
    """Store a tenant's rules, replacing the earlier ones."""
    await database.execute(_PUT, tenant_id=tenant_id, **parameters(rules))


async def tenants_with_rules(database: Database) -> list[UUID]:
    """Return the tenants that have a rule."""
    return [row["tenant_id"] for row in await database.fetch("SELECT tenant_id FROM palimpsest_across_retention()")]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant and its name."""

    tenant_id: UUID
    name: str


async def tenants(database: Database) -> list[Tenant]:
    """Return all tenants by name. Only the tables' owner sees them all."""
    return [decode(Tenant, row) for row in await database.fetch("SELECT tenant_id, name FROM tenants ORDER BY name")]


@dataclass(frozen=True, slots=True)
class Counted:
    """Records older than a rule keeps them: their number, up to COUNTED_MAX, and the times of the oldest and newest."""

    number: int
    oldest: datetime | None
    newest: datetime | None


async def count(database: Database, tenant_id: UUID, rule: RecordRule, before: datetime) -> Counted:
    """Count a tenant's records from before a time."""
    table, _, _, time, which = _RECORDS[rule]
    row = await database.fetchrow(
        f"SELECT count(*) AS number, min(at) AS oldest, max(at) AS newest FROM (SELECT {time} AS at FROM {table} "
        f"WHERE tenant_id = :tenant_id AND {which} AND {time} < :before ORDER BY {time} LIMIT :limit) t",
        tenant_id=tenant_id,
        before=before,
        limit=COUNTED_MAX,
    )
    return Counted(0, None, None) if row is None else decode(Counted, row)


@dataclass(frozen=True, slots=True)
class Record:
    """The key of a record; `used_at` is the last use of its session that the record proves."""

    session_id: UUID
    id: UUID | int
    used_at: datetime


async def purge(database: Database, tenant_id: UUID, rule: RecordRule, before: datetime) -> int:
    """Delete a tenant's records from before a time, oldest first; return the number deleted."""
    table, key, _, time, which = _RECORDS[rule]
    used_at = "greatest(created_at, reported_at)" if rule == "calls" else time
    purged = 0
    while True:
        rows = await database.fetch(
            f"SELECT session_id, {key} AS id, {used_at} AS used_at FROM {table} "
            f"WHERE tenant_id = :tenant_id AND {which} AND {time} < :before ORDER BY {time} LIMIT :limit",
            tenant_id=tenant_id,
            before=before,
            limit=ROWS_PER_STATEMENT,
        )
        purged += await _delete(database, tenant_id, rule, [decode(Record, row) for row in rows])
        if len(rows) < ROWS_PER_STATEMENT:
            return purged


async def _delete(database: Database, tenant_id: UUID, rule: RecordRule, records: Sequence[Record]) -> int:
    """Delete records by their keys; return the number deleted. The session keeps the time of its last deleted call."""
    table, key, kind, _, which = _RECORDS[rule]
    if rule == "calls":
        last = dict(sorted((one.session_id, one.used_at) for one in records))
        for session_id, used_at in last.items():
            await _record_use(database, tenant_id, session_id, used_at)
    async with database.transaction() as tx:
        if rule == "calls":  # the trigger on their table refuses to delete them otherwise (migration 0021)
            await tx.execute("SET LOCAL palimpsest.sweeping = 'calls'")
        rows = await tx.fetch(
            f"DELETE FROM {table} t USING unnest(:session_ids::uuid[], :ids::{kind}[]) AS o(session_id, id) "
            f"WHERE t.session_id = o.session_id AND t.{key} = o.id AND t.tenant_id = :tenant_id AND {which} "
            "RETURNING t.session_id",
            session_ids=[one.session_id for one in records],
            ids=[one.id for one in records],
            tenant_id=tenant_id,
        )
    return len(rows)


async def _record_use(database: Connection | Database, tenant_id: UUID, session_id: UUID, used_at: datetime) -> None:
    """Record when a session was used, in a transaction of its own: one that locked several sessions could deadlock with
    an erasure that locks them in another order."""
    await database.execute(
        "UPDATE sessions SET called_at = :used_at WHERE session_id = :session_id AND tenant_id = :tenant_id "
        "AND updated_at < :used_at AND (called_at IS NULL OR called_at < :used_at)",
        session_id=session_id,
        tenant_id=tenant_id,
        used_at=used_at,
    )
