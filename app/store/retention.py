"""What is kept for a time only."""

from typing import Final

from app.store.engine import Database

APPENDS_KEPT: Final = "24 hours"
ROWS_PER_STATEMENT: Final = 1000


async def purge_appends(database: Database) -> int:
    """Forget idempotency keys older than a day, in batches that lock little. How many went."""
    purged = 0
    while True:
        rows = await database.fetch(
            "DELETE FROM appends WHERE (session_id, key) IN (SELECT session_id, key FROM appends "
            "WHERE created_at < now() - $1::text::interval ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED) "
            "RETURNING 1",
            APPENDS_KEPT,
            ROWS_PER_STATEMENT,
        )
        purged += len(rows)
        if len(rows) < ROWS_PER_STATEMENT:
            return purged


async def purge_calls(database: Database) -> int:
    """Forget the records of calls that have expired, the oldest first, in batches that lock little. How many went."""
    purged = 0
    while True:
        rows = await database.fetch(PURGE_CALLS, ROWS_PER_STATEMENT)
        purged += len(rows)
        if len(rows) < ROWS_PER_STATEMENT:
            return purged


PURGE_CALLS: Final = """
DELETE FROM model_calls WHERE (session_id, call_id) IN (
    SELECT session_id, call_id FROM model_calls WHERE expires_at < now() ORDER BY expires_at LIMIT $1
    FOR UPDATE SKIP LOCKED
) RETURNING 1
"""
