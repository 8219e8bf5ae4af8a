"""The purge of rows that are kept for a limited time, of all tenants. The database's function has the times."""

from typing import Final

from app.store.engine import Database

ROWS_PER_STATEMENT: Final = 1000


async def purge_appends(database: Database) -> int:
    """Delete idempotency keys older than a day; return how many."""
    return await _purge(database, "appends")


async def purge_calls(database: Database) -> int:
    """Delete expired records of calls; return how many."""
    return await _purge(database, "calls")


async def purge_deliveries(database: Database) -> int:
    """Delete deliveries that ended a month ago; return how many."""
    return await _purge(database, "deliveries")


async def _purge(database: Database, what: str) -> int:
    """Delete in batches that lock few rows, oldest first; return how many rows were deleted."""
    purged = 0
    while True:
        row = await database.fetchrow(
            "SELECT palimpsest_across_purge(:what, :limit) AS gone", what=what, limit=ROWS_PER_STATEMENT
        )
        gone = 0 if row is None else int(row["gone"])
        purged += gone
        if gone < ROWS_PER_STATEMENT:
            return purged
