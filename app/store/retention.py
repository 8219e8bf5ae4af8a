"""What is kept for a time only, whosever it is. How long that is stands in the database's own function."""

from typing import Final

from app.store.engine import Database

ROWS_PER_STATEMENT: Final = 1000


async def purge_appends(database: Database) -> int:
    """Forget idempotency keys older than a day. How many went."""
    return await _purge(database, "appends")


async def purge_calls(database: Database) -> int:
    """Forget the records of calls that have expired. How many went."""
    return await _purge(database, "calls")


async def purge_deliveries(database: Database) -> int:
    """Forget deliveries that ended a month ago. How many went."""
    return await _purge(database, "deliveries")


async def _purge(database: Database, what: str) -> int:
    """In batches that lock little, the oldest first."""
    purged = 0
    while True:
        row = await database.fetchrow(
            "SELECT palimpsest_across_purge(:what, :limit) AS gone", what=what, limit=ROWS_PER_STATEMENT
        )
        gone = 0 if row is None else int(row["gone"])
        purged += gone
        if gone < ROWS_PER_STATEMENT:
            return purged
