"""The workers' queue, as operators look at it."""

from dataclasses import dataclass
from typing import Final

from app.store.engine import Database
from app.store.rows import decode

KINDS: Final = ("compact", "deliver")
"""The kinds of jobs: the compaction of a session, the delivery of a webhook."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The jobs of a kind. `overdue_seconds`: how long ago the oldest waiting one was due; 0 if none is."""

    kind: str
    waiting: int = 0
    running: int = 0
    overdue_seconds: float = 0.0


_QUEUES: Final = """
SELECT entrypoint AS kind, count(*) FILTER (WHERE status = 'queued') AS waiting,
       count(*) FILTER (WHERE status = 'picked') AS running,
       coalesce(extract(epoch FROM now() - min(execute_after)
                FILTER (WHERE status = 'queued' AND execute_after <= now())), 0)::float8 AS overdue_seconds
FROM pgqueuer GROUP BY entrypoint
"""


async def queues(database: Database) -> list[Queue]:
    """Return one queue for each kind, including kinds without jobs."""
    found = [decode(Queue, row) for row in await database.fetch(_QUEUES)]
    return [next((one for one in found if one.kind == kind), Queue(kind)) for kind in KINDS]
