"""The purge of rows that are kept for a limited time, of all tenants.

The database's function has the times of what is a tenant's.
"""

from typing import Final

from app.store.engine import Database

ROWS_PER_STATEMENT: Final = 1000
_JOB_LOG: Final = """
WITH deleted AS (
    DELETE FROM pgqueuer_log WHERE id IN (
        SELECT id FROM pgqueuer_log WHERE created < now() - interval '1 day' ORDER BY created LIMIT :limit)
    RETURNING id
)
SELECT count(*) AS gone FROM deleted
"""


async def purge_appends(database: Database) -> int:
    """Delete idempotency keys older than a day; return how many."""
    return await _purge(database, "appends")


async def purge_calls(database: Database) -> int:
    """Delete expired records of calls; return how many."""
    return await _purge(database, "calls")


async def purge_deliveries(database: Database) -> int:
    """Delete deliveries that ended a month ago; return how many."""
    return await _purge(database, "deliveries")


async def purge_job_log(database: Database) -> int:
    """Delete what the queue noted of its jobs more than a day ago, which nobody reads; return how many rows."""
    return await _in_batches(database, _JOB_LOG)


async def _purge(database: Database, what: str) -> int:
    return await _in_batches(database, "SELECT palimpsest_across_purge(:what, :limit) AS gone", what=what)


async def _in_batches(database: Database, sql: str, **values: object) -> int:
    """Delete in batches that lock few rows, oldest first; return how many rows were deleted."""
    purged = 0
    while True:
        row = await database.fetchrow(sql, **values, limit=ROWS_PER_STATEMENT)
        gone = 0 if row is None else int(row["gone"])
        purged += gone
        if gone < ROWS_PER_STATEMENT:
            return purged
