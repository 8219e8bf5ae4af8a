"""Statements that wait for a lock, on the tests' server or on any of Citus' nodes."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

_NODES: Final = "SELECT to_regclass('citus_stat_activity') IS NOT NULL AS several"


class Asked(Protocol):
    """A connection, or a pool."""

    async def fetch(self, sql: str, /) -> Sequence[Any]: ...


async def waiting(database: Asked, words: str = "") -> int:
    """How many statements on this database that have these words wait for a lock."""
    several = (await database.fetch(_NODES))[0]["several"]
    rows = await database.fetch(
        f"SELECT FROM {'citus' if several else 'pg'}_stat_activity WHERE wait_event_type = 'Lock' "
        f"AND datname = current_database() AND query LIKE '%{words}%'"
    )
    return len(rows)
