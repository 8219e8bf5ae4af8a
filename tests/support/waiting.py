"""A count of the statements that wait for a lock, on one server or on all nodes of Citus."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

_NODES: Final = "SELECT to_regclass('citus_stat_activity') IS NOT NULL AS several"


class Queryable(Protocol):
    """A connection or a pool."""

    async def fetch(self, sql: str, /) -> Sequence[Any]: ...


async def is_distributed(database: Queryable) -> bool:
    """Return whether a database is on several nodes of Citus."""
    return bool((await database.fetch(_NODES))[0]["several"])


async def count_waiting(database: Queryable, words: str = "") -> int:
    """Return the number of waiting statements on this database whose text contains `words`."""
    activity = f"{'citus' if await is_distributed(database) else 'pg'}_stat_activity"
    rows = await database.fetch(
        f"SELECT FROM {activity} WHERE wait_event_type = 'Lock' "
        f"AND datname = current_database() AND query LIKE '%{words}%'"
    )
    return len(rows)
