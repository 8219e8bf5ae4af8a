"""Purges of expired rows, in batches that lock few of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.store.engine import Database, Executor, acting_for
from app.store.ids import SessionRef
from app.store.rows import decode

ROWS_PER_STATEMENT: Final = 1000
_JOB_LOG: Final = """
WITH deleted AS (
    DELETE FROM pgqueuer_log WHERE id IN (
        SELECT id FROM pgqueuer_log WHERE created < now() - interval '1 day' ORDER BY created LIMIT :limit)
    RETURNING id
)
SELECT count(*) AS gone FROM deleted
"""
EXPIRED: Final = "SELECT palimpsest_across_purge(:what, :limit) AS gone"
"""Delete expired rows of the table `what`, of all tenants."""
_DEAD_JOBS: Final = """
WITH deleted AS (
    DELETE FROM pgqueuer WHERE id IN (
        SELECT id FROM pgqueuer WHERE status NOT IN ('queued', 'picked') AND updated < now() - interval '30 days'
        ORDER BY updated LIMIT :limit)
    RETURNING id
)
SELECT count(*) AS gone FROM deleted
"""


async def purge_appends(database: Database) -> int:
    """Delete idempotency keys older than a day; return the number deleted."""
    return await in_batches(database, EXPIRED, what="appends")


async def purge_job_log(database: Database) -> int:
    """Delete the queue's log of jobs older than a day, which nothing reads; return the number of rows deleted."""
    return await in_batches(database, _JOB_LOG)


async def in_batches(database: Database, sql: str, **values: object) -> int:
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
                own = [decode(ExpiredCall, row) for row in rows if row["tenant_id"] == tenant_id]
                purged += await delete_calls(database, tenant_id, own)
        if len(rows) < ROWS_PER_STATEMENT:
            return purged


async def purge_dead_jobs(database: Database) -> int:
    """Delete jobs that the queue gave up a month ago; return the number deleted."""
    return await in_batches(database, _DEAD_JOBS)


@dataclass(frozen=True, slots=True)
class ExpiredCall:
    """The key of a call's record; `used_at` is the last use of its session that the record proves."""

    session_id: UUID
    id: UUID
    used_at: datetime


async def delete_calls(database: Database, tenant_id: UUID, calls: Sequence[ExpiredCall]) -> int:
    """Delete records of calls; return the number deleted. The session keeps the time of its last deleted call."""
    last = dict(sorted((one.session_id, one.used_at) for one in calls))
    for session_id, used_at in last.items():
        await _record_use(database, SessionRef(session_id, tenant_id), used_at)
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL palimpsest.sweeping = 'calls'")  # or their trigger refuses it (migration 0021)
        rows = await tx.fetch(
            "DELETE FROM model_calls t USING unnest(:session_ids::uuid[], :ids::uuid[]) AS o(session_id, id) "
            "WHERE t.session_id = o.session_id AND t.call_id = o.id AND t.tenant_id = :tenant_id "
            "RETURNING t.session_id",
            session_ids=[one.session_id for one in calls],
            ids=[one.id for one in calls],
            tenant_id=tenant_id,
        )
    return len(rows)


async def _record_use(database: Executor, ref: SessionRef, used_at: datetime) -> None:
    """Record when a session was used, in a transaction of its own: one that locked several sessions could deadlock with
    an erasure that locks them in another order."""
    await database.execute(
        "UPDATE sessions SET called_at = :used_at WHERE session_id = :session_id AND tenant_id = :tenant_id "
        "AND updated_at < :used_at AND (called_at IS NULL OR called_at < :used_at)",
        **ref._asdict(),
        used_at=used_at,
    )
